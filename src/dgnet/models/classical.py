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
    """The classical solver: Crank-Nicolson finite elements on the same mesh, what every learned model has to beat.

    - `consistent`: share of the consistent mass: 1 Galerkin, 0 lumped (the paper's L_physics), None as the problem says
    - `backend`: of the linear solves: auto, lu, cholesky, iterative or dense
    - `damped_start`: that many first steps are each replaced by two backward Euler half steps (Rannacher), which remove the ringing
      of Crank-Nicolson on rough initial data without losing second order
    - `theta`: 1/2 Crank-Nicolson to 1 backward Euler
    - `tolerance`: of iterative solves, relative; None for 1e-12 in double and 1e-6 in single precision

        >>> import dgnet as dg
        >>> dg.Classical(consistent=0.0, damped_start=2).name
        'classical (lumped)'
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
