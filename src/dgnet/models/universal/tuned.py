"""Universal weights as a model to train: it begins as the shipped weights and is tuned to the data of a problem."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from torch import nn

from dgnet.errors import InputError
from dgnet.models.base import LearnedModel
from dgnet.models.universal.model import PreparedUniversal, Universal, untrained
from dgnet.problems import Problem


@dataclass(frozen=True)
class AsShipped:
    """Universal weights have no settings: their sizes are those of the shipped ones."""


class Tuned(Universal, LearnedModel[PreparedUniversal]):
    """Universal weights that are tuned to the data of a problem, and belong to no mesh."""

    degree = 1

    def __init__(self, config: AsShipped, problem: Problem) -> None:
        nn.Module.__init__(self)
        shipped = Universal().net(problem.mesh.dim, problem.pde.velocity is not None)
        why = untrained(problem) or (f"there are none for {problem.mesh.dim}D yet" if shipped is None else None)
        if shipped is None or why is not None:
            raise InputError(f"universal weights do not apply: {why}; use --model dgnet")
        self.config, self.shipped, self.network = config, False, deepcopy(shipped).requires_grad_(True)
        self.loaded = {shipped.name: self.network}
