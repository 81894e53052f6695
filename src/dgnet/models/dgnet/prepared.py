"""A problem that a DGNet has made ready to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dgnet.green import GreenSolver
from dgnet.models.dgnet.build import Advance, Correction
from dgnet.models.dgnet.masses import MassChange
from dgnet.models.dgnet.parts.start import EarlySteps
from dgnet.models.gnn import MeshGraph

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class PreparedDGNet:
    """A problem made ready: the hybrid solver, and what acts besides it."""

    solver: GreenSolver
    graph: MeshGraph
    start: MassChange | None  # filter of the initial state
    early: EarlySteps | None
    corrections: tuple[Correction, ...]
    instead: Advance | None  # variant D

    def changes(self) -> dict[str, MassChange]:
        """What is done to a state once: `start` to the initial one, `switch` after the early steps."""
        found = {"start": self.start, "switch": None if self.early is None else self.early.switch}
        return {name: change for name, change in found.items() if change is not None}

    @property
    def capturable(self) -> bool:
        p = self.solver.problem
        still = not (p.time_dependent or p.data_changes or self.solver.stiff.found)
        return still and (self.instead is not None or self.solver.operator().prepared.capturable)

    def freeze(self, times: Sequence[float]) -> bool:
        return self.instead is not None or self.solver.freeze(times)

    def finish(self) -> None:
        self.solver.monitor.check()
        if self.early is not None:
            self.early.solver.monitor.check()

    def severed(self) -> tuple[PreparedDGNet, list[tuple[Tensor, Tensor]]] | None:
        """The same with operators as leaves, and (tensor, leaf) pairs; None where they change with time, unless frozen."""
        solver = None if self.instead is not None else self.solver.severed()
        early = (None, []) if self.early is None else self.early.severed()
        if solver is None or early is None:
            return None
        return replace(self, solver=solver[0], early=early[0]), [*solver[1], *early[1]]
