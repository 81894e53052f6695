"""The classical solver on the same mesh: what every learned model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.green import EnthalpySolver, GreenSolver, Linear, Stepper
from dgnet.green.backends import TOLERANCE
from dgnet.models.base import Memory, Model, S, set_memory, solver_memory
from dgnet.operators import check_scheme
from dgnet.problems import CONSISTENT, LUMPED, SINGLE, Discretisation, Rule, SpotTable
from dgnet.problems.finer import refined
from dgnet.problems.lift import Lift

Tensor = torch.Tensor


@checked
@dataclass(frozen=True)
class Classical(Model[Stepper]):
    """The classical solver: Crank-Nicolson finite elements on the same mesh, what every learned model has to beat.

    - `consistent`: share of the consistent mass: 1 Galerkin, 0 lumped (the paper's L_physics), None as the problem says; lumped
      where capacity or diffusion are curves of u, since it overshoots less
    - `backend`: of the linear solves: auto, lu, cholesky, cg, iterative or dense
    - `damped_start`: that many first steps are each replaced by two backward Euler half steps (Rannacher), which remove the ringing
      of Crank-Nicolson on rough initial data without losing second order
    - `theta`: 1/2 Crank-Nicolson to 1 backward Euler
    - `tolerance`: of iterative solves, relative; None for 1e-12 in double and 1e-6 in single precision, less where steps of
      single precision are so stiff that they are computed in double
    - `degree`: of the elements: 1 linear, second order; 2 quadratic, third order: it has values at the middles of the edges and
      takes starts and sources there, too (`points`). Given at the nodes alone, it fits them. With the consistent mass only

        >>> import dgnet as dg
        >>> dg.Classical(consistent=0.0, damped_start=2).name
        'classical (lumped)'
    """

    consistent: float | None = None
    backend: str = "auto"
    damped_start: int = 0
    theta: float = 0.5
    tolerance: float | None = None
    degree: int = 1

    @property
    def name(self) -> str:
        if self.degree == 2:
            return "classical (P2)"
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

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> Stepper:
        curved = problem.pde.curved
        if (curved and self.degree == 1) or self.consistent is not None:
            problem = problem.recast(LUMPED if self.consistent is None else self.consistent, problem.advection_form)
        deferred = problem.geometry.device.type == "cuda" and not careful
        problem = problem.quadratic if self.degree == 2 else problem
        if curved:
            return EnthalpySolver(problem, self.theta, self.tolerance, deferred=deferred)
        wide, tolerance = problem.held(), self.tolerance
        if wide is not problem and tolerance is None and problem.geometry.device.type == "cpu":
            # states in float32 need no more: the stiffer, the smaller, so that errors stay below those where float32 steps end
            tolerance = max(TOLERANCE[torch.float64], 0.1 * TOLERANCE[torch.float32] * SINGLE / problem.stiffness_number)
        solver = GreenSolver(wide, self.backend, self.theta, tolerance, solves=steps, columns=batch)
        solver.monitor.deferred = deferred
        return solver

    def step(self, state: Stepper, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        source = None if source is None else self.lift(state, source)
        return state.step(u, source, t, damped=k < self.damped_start)

    def points(self, problem: Discretisation) -> np.ndarray:
        return (problem.quadratic if self.degree == 2 else problem).geometry.nodes

    def lift(self, state: Stepper, u: Tensor) -> Tensor:
        return u if state.problem.degree == 1 else Lift.of(state.problem.mesh, u.device)(u)

    def read(self, state: Stepper, u: Tensor) -> Tensor:
        return u if state.problem.degree == 1 else u[:, :state.problem.mesh.n_nodes]

    def __post_init__(self) -> None:
        check_scheme(CONSISTENT if self.consistent is None else self.consistent, degree=self.degree)
        if self.damped_start < 0:
            raise InputError(f"damped_start must not be negative, got {self.damped_start}")

    def capturable(self, state: Stepper) -> bool:
        return state.capturable

    def freeze(self, state: Stepper, times: Sequence[float]) -> bool:
        return state.freeze(times)

    def severed(self, state: Stepper) -> tuple[Stepper, list[tuple[Tensor, Tensor]]] | None:
        return state.severed() if isinstance(state, GreenSolver) and not self.damped_start else None

    def memory(self, state: Stepper) -> Memory:
        return solver_memory(solver=state)

    def remember(self, state: Stepper, memory: Memory) -> None:
        set_memory(memory, solver=state)

    def finish(self, state: Stepper) -> None:
        state.finish()

    def solver(self, state: Stepper) -> GreenSolver | None:
        return state if isinstance(state, GreenSolver) else None

    def linear_steps(self, state: Stepper) -> Linear | None:
        return state.linear() if isinstance(state, GreenSolver) and self.degree == 1 else None


@checked
class Refined(Model[tuple[S, Lift]]):
    """A model on the mesh refined once, read at the nodes of the given one: what half the spacing gives for its price.

    - `model`: any model whose weights do not belong to one mesh

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [], dt=0.1)
        >>> from dgnet.models import Refined
        >>> dg.rollout(Refined(dg.Classical()), problem, torch.zeros(1, 25, 1, dtype=torch.float64), steps=3).shape
        torch.Size([1, 4, 25, 1])
    """

    def __init__(self, model: Model[S]) -> None:
        self.model = model
        self._finer: WeakKeyDictionary[Discretisation, Discretisation] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return f"{self.model.name}, mesh refined once"

    def finer(self, problem: Discretisation) -> Discretisation:
        """The problem on the mesh refined once, made once."""
        if problem not in self._finer:
            self._finer[problem] = refined(problem)
        return self._finer[problem]

    @property
    def solves(self) -> bool:
        return self.model.solves

    @property
    def any_step(self) -> bool:
        return self.model.any_step

    @property
    def rule(self) -> Rule:
        return self.model.rule

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> tuple[S, Lift]:
        return self.model.prepare(self.finer(problem), batch, steps, careful), Lift.of(problem.mesh, problem.geometry.device)

    def step(self, state: tuple[S, Lift], u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return self.model.step(state[0], u, None if source is None else state[1](source), t, k)

    def points(self, problem: Discretisation) -> np.ndarray:
        return self.model.points(self.finer(problem))

    def taking(self, spots: SpotTable, problem: Discretisation) -> SpotTable:
        return self.model.taking(spots, self.finer(problem))  # the mesh whose points it has

    def lift(self, state: tuple[S, Lift], u: Tensor) -> Tensor:
        return self.model.lift(state[0], state[1](u))

    def begin(self, state: tuple[S, Lift], u: Tensor) -> Tensor:
        return self.model.begin(state[0], state[1](u))

    def read(self, state: tuple[S, Lift], u: Tensor) -> Tensor:
        return u[:, :state[1].n_nodes]

    @property
    def first_steps(self) -> int:
        return self.model.first_steps

    @property
    def plain_start(self) -> bool:
        return self.model.plain_start

    def phase(self, k: int) -> int:
        return self.model.phase(k)

    def capturable(self, state: tuple[S, Lift]) -> bool:
        return self.model.capturable(state[0])

    def memory(self, state: tuple[S, Lift]) -> Memory:
        return self.model.memory(state[0])

    def remember(self, state: tuple[S, Lift], memory: Memory) -> None:
        self.model.remember(state[0], memory)

    def finish(self, state: tuple[S, Lift]) -> None:
        self.model.finish(state[0])
