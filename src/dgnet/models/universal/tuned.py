"""Universal weights as a model to train: it begins as the shipped weights and is tuned to the data of a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from dgnet.errors import InputError
from dgnet.models.base import LearnedModel
from dgnet.models.universal.model import PreparedUniversal, Universal, untrained
from dgnet.models.universal.network import UniversalNet
from dgnet.problems import Discretisation


@dataclass(frozen=True)
class TunedConfig:
    """Sizes of the network, as the shipped weights have them."""

    hidden: int = 64
    layers: int = 2


class Tuned(Universal, LearnedModel[PreparedUniversal]):
    """Universal weights that belong to the data of a problem, and to no mesh."""

    def __init__(self, config: TunedConfig, problem: Discretisation) -> None:
        nn.Module.__init__(self)
        dim, shipped = problem.mesh.dim, Universal().net(problem.mesh.dim)
        why = untrained(problem) or (f"there are no weights for {dim}D yet" if shipped is None else None)
        if why is not None:
            raise InputError(f"universal weights do not apply: {why}; use --model dgnet")
        assert shipped is not None
        self.config, self.shipped = config, False
        self.network = UniversalNet(dim, config.hidden, config.layers)
        if (shipped.hidden, len(shipped.process.receive)) != (config.hidden, config.layers):
            raise InputError(f"universal weights for {dim}D have hidden = {shipped.hidden} and layers = "
                             f"{len(shipped.process.receive)}, not {config.hidden} and {config.layers}")
        self.network.load_state_dict(shipped.state_dict())
        self.nets = {dim: self.network}

    def step_weights(self) -> Iterator[nn.Parameter]:
        return iter(())  # they make the matrices of the steps
