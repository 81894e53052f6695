"""Training: recipes, the loop, checkpoints."""

from dgnet.data import Corpus
from dgnet.data.digests import load_checkpoint
from dgnet.discovery.calibrate import calibrated_first, uncertainty
from dgnet.recipe import Recipe, Stage
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import evaluate_rne, fit, split

__all__ = ["Corpus", "Progress", "Recipe", "Stage", "calibrated_first", "evaluate_rne", "fit", "load_checkpoint",
           "split", "uncertainty"]
