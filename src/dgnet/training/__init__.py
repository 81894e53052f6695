"""Training: recipes, the loop, checkpoints."""

from dgnet.data import Corpus
from dgnet.data.digests import load_checkpoint
from dgnet.discovery.calibrate import calibrated_first, uncertainty
from dgnet.recipe import Recipe, Stage
from dgnet.training.bars import error_bars
from dgnet.training.checkpoints import Progress
from dgnet.training.evaluate import FOUND_VALUES, failures
from dgnet.training.fit import Loop, evaluate_rne, fit, split
from dgnet.training.identity import differences, digest, fingerprint, summed
from dgnet.training.plan import Plan, make_plan, plan_for_data
from dgnet.training.run import PROBLEM, Run, Settings, open_simulator, to_toml, train, write_trained
from dgnet.training.simulator import Simulator

__all__ = ["FOUND_VALUES", "PROBLEM", "Corpus", "Loop", "Plan", "Progress", "Recipe", "Run", "Settings", "Simulator", "Stage",
           "calibrated_first", "differences", "digest", "error_bars", "evaluate_rne", "failures", "fingerprint", "fit",
           "load_checkpoint", "make_plan", "open_simulator", "plan_for_data", "split", "summed", "to_toml", "train",
           "uncertainty", "write_trained"]
