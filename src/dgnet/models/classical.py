"""The classical solver on the same mesh: what every learned model has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.models.base import START, Model, Severed, SolverStepper, Stepper, WrappedStepper, Wrapper
from dgnet.operators import check_scheme
from dgnet.problems import CONSISTENT, LUMPED, SINGLE, Problem
from dgnet.problems.finer import refined
from dgnet.problems.lift import Lift
from dgnet.stepping import EnthalpySolver, GreenSolver, Linear, Solver
from dgnet.stepping.backends import TOLERANCE
from dgnet.stepping.solver import SCHEMES

Tensor = torch.Tensor


@checked
@dataclass(frozen=True)
class Classical(Model["ClassicalStepper"]):
    """The classical solver: Crank-Nicolson finite elements on the same mesh, what every learned model has to beat.

    - `consistent`: share of the consistent mass: 1 Galerkin, 0 lumped (the paper's L_physics), None as the problem says; lumped
      where capacity or diffusion are curves of u, since it overshoots less
    - `backend`: of the linear solves: auto, lu, cholesky, cg, iterative or dense
    - `start`: how many steps after the start, or after a jump of boundary data, are L-stable ones of discontinuous Galerkin in time
      (order 3; two stages of order 2 where capacity or diffusion are curves of u): they leave nothing that Crank-Nicolson rings
      with. 0 for none
    - `theta`: 1/2 Crank-Nicolson to 1 backward Euler
    - `scheme`: crank-nicolson, or discontinuous Galerkin for all steps, L-stable: dg1 of order 3 at the price of one complex solve,
      dg2 of order 5 at that of a complex and a real one. They take moments of the source (`step_moments`), `moments` of them; one
      that is known by its averages is constant in each step, of order 2. A reaction costs 3 and 5 times as many solves; matrices
      that change in time are those of the middle of the step, order 2
    - `tolerance`: of iterative solves, relative; None for 1e-12 in double and 1e-6 in single precision, less where steps of
      single precision are so stiff that they are computed in double
    - `degree`: of the elements: 1 linear, second order; 2 quadratic, third order: it has values at the middles of the edges and
      takes starts and sources there, too (`points`). Given at the nodes alone, it fits them. With the consistent mass only

        >>> import dgnet as dg
        >>> dg.Classical(consistent=0.0, start=0).name
        'classical (lumped)'
    """

    consistent: float | None = None
    backend: str = "auto"
    start: int = START
    theta: float = 0.5
    tolerance: float | None = None
    degree: int = 1
    scheme: str = "crank-nicolson"

    @property
    def name(self) -> str:
        kinds = {CONSISTENT: "consistent", LUMPED: "lumped"}
        mass = () if self.consistent is None else (kinds.get(self.consistent, f"{self.consistent:g} consistent"),)
        said = (*(("P2",) if self.degree == 2 else mass), *((self.scheme,) if SCHEMES[self.scheme] else ()))
        return f"classical ({', '.join(said)})" if said else "classical"

    @property
    def solves(self) -> bool:
        return True

    @property
    def first_steps(self) -> int:
        return 0 if SCHEMES[self.scheme] else self.start

    @property
    def moments(self) -> int:
        return SCHEMES[self.scheme] + 1

    def stable_steps(self, problem: Problem) -> int:
        return 0 if SCHEMES[self.scheme] else self.start

    def points(self, problem: Problem) -> np.ndarray:
        return (problem.quadratic if self.degree == 2 else problem).geometry.nodes

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(f"unknown scheme '{self.scheme}' (known: {', '.join(SCHEMES)})")
        check_scheme(CONSISTENT if self.consistent is None else self.consistent, degree=self.degree)
        if self.start < 0:
            raise InputError(f"start must not be negative, got {self.start}")

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> ClassicalStepper:
        curved = problem.pde.curved
        if (curved and self.degree == 1) or self.consistent is not None:
            problem = problem.recast(LUMPED if self.consistent is None else self.consistent, problem.advection_form)
        deferred = problem.geometry.device.type == "cuda" and not careful
        problem = problem.quadratic if self.degree == 2 else problem
        if curved and SCHEMES[self.scheme]:
            raise InputError(f"where capacity or diffusion change with the solution there is no scheme '{self.scheme}': take "
                             "crank-nicolson")
        if curved:
            return ClassicalStepper(EnthalpySolver(problem, self.theta, self.tolerance, deferred=deferred), self.start)
        wide, tolerance = problem.held(), self.tolerance
        if wide is not problem and tolerance is None and problem.geometry.device.type == "cpu":
            # states in float32 need no more: the stiffer, the smaller, so that errors stay below those where float32 steps end
            tolerance = max(TOLERANCE[torch.float64], 0.1 * TOLERANCE[torch.float32] * SINGLE / problem.stiffness_number)
        solver = GreenSolver(wide, self.backend, self.theta, tolerance, solves=steps, columns=batch, scheme=self.scheme)
        solver.monitor.deferred = deferred
        return ClassicalStepper(solver, self.stable_steps(problem))


class ClassicalStepper(SolverStepper):
    """Steps of a classical solver, of linear or quadratic elements."""

    def __init__(self, main: Solver, stable: int = 0) -> None:
        super().__init__(main, stable)
        self.quadratic = main.problem.degree == 2

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return super().step(u, None if source is None else self.lift(source), t, k)

    def lift(self, u: Tensor) -> Tensor:
        return Lift.of(self.problem.mesh, u.device)(u) if self.quadratic else u

    def read(self, u: Tensor) -> Tensor:
        return u[:, :self.problem.mesh.n_nodes] if self.quadratic else u

    def linear(self) -> Linear | None:
        return None if self.quadratic else super().linear()

    def severed(self) -> Severed | None:
        found = None if self.green is None else self.green.severed(self.stable > 0)
        return None if found is None else Severed(ClassicalStepper(found[0], self.stable), found[1])


@checked
class Refined(Wrapper["RefinedStepper"]):
    """A model on the mesh refined once, read at the nodes of the given one: what half the spacing gives for its price.

    - `model`: any model whose weights do not belong to one mesh

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [], dt=0.1)
        >>> from dgnet.models import Refined
        >>> dg.rollout(Refined(dg.Classical()), problem, torch.zeros(1, 25, 1, dtype=torch.float64), steps=3).shape
        torch.Size([1, 4, 25, 1])
    """

    def __init__(self, model: Model[Any]) -> None:
        self.model = model
        self._finer: WeakKeyDictionary[Problem, Problem] = WeakKeyDictionary()

    @property
    def name(self) -> str:
        return f"{self.model.name}, mesh refined once"

    def finer(self, problem: Problem) -> Problem:
        """The problem on the mesh refined once, made once."""
        if problem not in self._finer:
            self._finer[problem] = refined(problem)
        return self._finer[problem]

    def inner(self, problem: Problem) -> Problem:
        return self.finer(problem)

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> RefinedStepper:
        lift = Lift.of(problem.mesh, problem.geometry.device)
        return RefinedStepper(self.model.prepare(self.finer(problem), batch, steps, careful), lift)


class RefinedStepper(WrappedStepper):
    """Steps on the mesh refined once. States and sources at the nodes of the given mesh are lifted to it."""

    def __init__(self, inner: Stepper, up: Lift) -> None:
        super().__init__(inner)
        self.up = up

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return self.inner.step(u, None if source is None else self.up(source), t, k)

    def begin(self, u: Tensor) -> Tensor:
        return self.inner.begin(self.up(u))

    def lift(self, u: Tensor) -> Tensor:
        return self.inner.lift(self.up(u))

    def read(self, u: Tensor) -> Tensor:
        return u[:, :self.up.n_nodes]

    def foresee(self, source: Tensor | None, first: int) -> None:
        self.inner.foresee(None if source is None else self.up(source), first)

    def repeats(self, times: Sequence[float] = ()) -> bool:
        return not times and self.inner.repeats()
