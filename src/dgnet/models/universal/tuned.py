"""Universal weights as a model to train: it begins as the shipped weights and is tuned to the data of a problem."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from dgnet.errors import InputError
from dgnet.models.base import LearnedModel
from dgnet.models.classical import ClassicalStepper
from dgnet.models.universal.model import PreparedUniversal, Universal, untrained
from dgnet.operators import check_scheme
from dgnet.problems import Problem


@dataclass(frozen=True)
class AsShipped:
    """Universal weights have no settings: their sizes are those of the shipped ones."""


@dataclass(frozen=True)
class TunedConfig:
    """Settings of universal weights that are tuned.

    - `degree`: of the elements: 1 linear, 2 quadratic
    """

    unsaid: ClassVar[Mapping[str, object]] = {"degree": 1}

    degree: int = 1

    def __post_init__(self) -> None:
        check_scheme(degree=self.degree)


class Tuned(Universal, LearnedModel[PreparedUniversal | ClassicalStepper]):
    """Universal weights that are tuned to the data of a problem, and belong to no mesh."""

    def __init__(self, config: TunedConfig, problem: Problem) -> None:
        nn.Module.__init__(self)
        self.degree = config.degree
        shipped = Universal(degree=config.degree).net(problem.mesh.dim, problem.pde.velocity is not None)
        why = untrained(problem) or (f"there are none for {problem.mesh.dim}D yet" if shipped is None else None)
        if shipped is None or why is not None:
            raise InputError(f"universal weights do not apply: {why}; use --model dgnet")
        self.config, self.shipped, self.network = config, False, deepcopy(shipped).requires_grad_(True)
        self.loaded = {shipped.name: self.network}
