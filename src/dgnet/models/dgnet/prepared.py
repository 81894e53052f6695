"""A problem that a DGNet has made ready to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dgnet.errors import InputError
from dgnet.models.dgnet.build import Advance, Correction
from dgnet.models.dgnet.masses import MassChange
from dgnet.models.dgnet.parts.start import EarlySteps
from dgnet.models.gnn import MeshGraph
from dgnet.stepping import EnthalpySolver, GreenSolver, Stepper

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class PreparedDGNet:
    """A problem made ready: the hybrid solver, and what acts besides it."""

    stepper: GreenSolver | EnthalpySolver
    graph: MeshGraph
    start: MassChange | None  # filter of the initial state
    early: EarlySteps | None
    corrections: tuple[Correction, ...]
    instead: Advance | None  # variant D

    @property
    def solver(self) -> GreenSolver:
        """The solver of a linear equation, with its operators; refused where capacity or diffusion change with u."""
        if not isinstance(self.stepper, GreenSolver):
            raise InputError("capacity or diffusion change with the solution: this step has no single operator to look at")
        return self.stepper

    @property
    def solvers(self) -> dict[str, Stepper]:
        """That of the early steps, where there are any, and that of all others."""
        found: dict[str, Stepper] = {"solver": self.stepper}
        return found if self.early is None else found | {"early": self.early.solver}

    def changes(self) -> dict[str, MassChange]:
        """What is done to a state once: `start` to the initial one, `switch` after the early steps."""
        found = {"start": self.start, "switch": None if self.early is None else self.early.switch}
        return {name: change for name, change in found.items() if change is not None}

    @property
    def capturable(self) -> bool:
        p = self.stepper.problem
        return self.stepper.capturable if self.instead is None else not (p.time_dependent or p.data_changes)

    def freeze(self, times: Sequence[float]) -> bool:
        return self.instead is not None or self.stepper.freeze(times)

    def finish(self) -> None:
        for solver in self.solvers.values():
            solver.finish()

    def severed(self) -> tuple[PreparedDGNet, list[tuple[Tensor, Tensor]]] | None:
        """The same with operators as leaves, and (tensor, leaf) pairs; None where they change with time, unless frozen."""
        solver = self.stepper.severed() if self.instead is None and isinstance(self.stepper, GreenSolver) else None
        early = (None, []) if self.early is None else self.early.severed()
        if solver is None or early is None:
            return None
        return replace(self, stepper=solver[0], early=early[0]), [*solver[1], *early[1]]
