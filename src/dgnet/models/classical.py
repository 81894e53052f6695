"""The classical solver on the same mesh: what every learned model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgnet.errors import InputError
from dgnet.green import GreenSolver
from dgnet.models.base import Model
from dgnet.operators import check_scheme
from dgnet.problems import CONSISTENT, LUMPED, Discretisation

Tensor = torch.Tensor


@dataclass(frozen=True)
class Classical(Model[GreenSolver]):
    """Crank-Nicolson finite elements without a learned weight.

    `damped_start`: that many first steps are each replaced by two backward Euler half steps (Rannacher), which use the
    same matrix and remove the ringing of Crank-Nicolson on rough initial data without losing second order.

    `consistent` 1: Galerkin mass; 0: lumped, the paper's L_physics; None: as the problem says.
    """

    consistent: float | None = None
    backend: str = "auto"
    damped_start: int = 0
    theta: float = 0.5
    tolerance: float | None = None

    @property
    def name(self) -> str:
        if self.consistent is None:
            return "classical"
        kinds = {CONSISTENT: "consistent", LUMPED: "lumped"}
        return f"classical ({kinds.get(self.consistent, f'{self.consistent:g} consistent')})"

    @property
    def solves(self) -> bool:
        return True

    @property
    def first_steps(self) -> int:
        return self.damped_start

    def phase(self, k: int) -> int:
        return int(k >= self.damped_start)

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> GreenSolver:
        problem = problem.held()
        if self.consistent is not None:
            problem = problem.recast(self.consistent, problem.advection_form)
        solver = GreenSolver(problem, self.backend, self.theta, self.tolerance, solves=steps, columns=batch)
        solver.monitor.deferred = problem.geometry.device.type == "cuda" and not careful
        return solver

    def step(self, state: GreenSolver, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return state.step(u, source, t, damped=k < self.damped_start)

    def __post_init__(self) -> None:
        check_scheme(CONSISTENT if self.consistent is None else self.consistent)
        if self.damped_start < 0:
            raise InputError(f"damped_start must not be negative, got {self.damped_start}")

    def capturable(self, state: GreenSolver) -> bool:
        p = state.problem
        return not (p.time_dependent or p.data_changes) and state.operator().prepared.capturable

    def freeze(self, state: GreenSolver, times: Sequence[float]) -> bool:
        return state.freeze(times)

    def finish(self, state: GreenSolver) -> None:
        state.monitor.check()

    def solver(self, state: GreenSolver) -> GreenSolver:
        return state
