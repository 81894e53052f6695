"""Models: one contract, one time loop; the classical solver, DGNet and the baselines."""

from dgnet.models.adaptive import Adaptive
from dgnet.models.base import Model, Stepper, WrappedStepper, Wrapper
from dgnet.models.classical import Classical, Refined
from dgnet.models.pause import Pause
from dgnet.models.registry import TUNED, as_stored, entry, title_of
from dgnet.models.timeloop import Ready, few_threads, rollout

__all__ = ["TUNED", "Adaptive", "Classical", "Model", "Pause", "Ready", "Refined", "Stepper", "WrappedStepper", "Wrapper",
           "as_stored", "entry", "few_threads", "rollout", "title_of"]
