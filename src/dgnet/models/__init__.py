"""Models: one protocol, one rollout; the classical solver, DGNet and the baselines."""

from dgnet.models.base import Model, few_threads, rollout
from dgnet.models.classical import Classical

__all__ = ["Classical", "Model", "few_threads", "rollout"]
