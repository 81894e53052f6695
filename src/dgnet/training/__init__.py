"""Training: recipes, the loop, checkpoints."""

from dgnet.data import Corpus
from dgnet.training.calibrate import calibrated_first, uncertainty
from dgnet.training.fit import Progress, evaluate_rne, fit, load_checkpoint, split
from dgnet.training.recipe import Recipe, Stage, paper_recipe

__all__ = ["Corpus", "Progress", "Recipe", "Stage", "calibrated_first", "evaluate_rne", "fit", "load_checkpoint",
           "paper_recipe", "split", "uncertainty"]
