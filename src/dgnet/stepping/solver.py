"""The discrete Green solver: one step of the theta scheme, with everything inside one linear system.

    (M + theta dt K) u+ = (M - (1 - theta) dt K) u + dt (M f + g)              theta = 1/2: Crank-Nicolson, order 2

(paper, Eq. 6-7, with G = (M + dt/2 K)^-1 M.) f and the boundary loads g are averages over the step, and so are the
convective coefficients in K; a velocity is that of its middle, t + dt/2. The same K on both sides, whatever changes in time. With
w = theta u+ + (1 - theta) u,

    |u+|_M^2 - |u|_M^2 = -2 dt w^T K w - (2 theta - 1) |u+ - u|_M^2            (f = g = 0)

so where the symmetric part of K is not negative, no step gains energy, for any sequence of flows. With K(t) on the right and
K(t + dt) on the left, as the trapezoidal rule has them, a flow that reverses at every step gains energy without bound.

What is solved for is the increment d = u+ - u, with a reference value c of each field:

    (M + theta dt K) d = dt [ -K (u - c) - c s + M f + g ],      s = K 1, from the terms whose rows do not sum to zero

This is the same equation, but its rounding and tolerances are relative to the change and to the range of u, not to an offset
like 298 K, and a constant in a closed box stays what it is, exactly.

A known reaction enters by predictor-corrector: u* with r(u), then u+ with (r(u) + r(u*)) / 2, order 2. Where that asks for shorter
steps (dt times the slope of r at u* above 1.5), steps are implicit as long as that lasts: `stiff`. Dirichlet rows sit
inside the system: their columns go to the right-hand side, so the matrix stays symmetric, and their value is that of the
new time level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch

from dgnet.arguments import Finite, checked, ordinary
from dgnet.errors import InputError, SolveError
from dgnet.operators import EdgeMatrix
from dgnet.problems import DOUBLE, HeldFlow, Problem
from dgnet.stepping.backends import NAMES, Monitor
from dgnet.stepping.bounds import Bounds
from dgnet.stepping.fold import product
from dgnet.stepping.galerkin import GalerkinOperator, Walls, radau
from dgnet.stepping.linear import Linear
from dgnet.stepping.operator import Assembled, StepOperator
from dgnet.stepping.stiff import Stiffness, implicit_step

Tensor = torch.Tensor
Kind = TypeVar("Kind", covariant=True)

SCHEMES = {"crank-nicolson": 0, "dg1": 1, "dg2": 2}
"""The degree of dG in time; 0 for the theta scheme."""
_WORKING = (torch.float64, torch.float32)
_FEW, _SMALL = 8, 8000  # states at once up to which, and unknowns from which on, a complex factorisation does not pay for a start
_FROZEN_ENTRIES = {"cpu": 1 << 20, "cuda": 1 << 24}  # of matrices whose bounds are measured at once


class InTime(Protocol[Kind]):
    """A value that may change in time: at a time t, or what a step from t to t + dt sees of it."""

    def __call__(self, t: float, dt: float = 0.0, /) -> Kind: ...


@dataclass(frozen=True, eq=False)
class Operators:
    """The matrices and rates of a step. The classical ones come from a `Problem`; a learned model replaces them."""

    mass: EdgeMatrix  # [b, f, nnz], symmetric positive definite
    source: EdgeMatrix  # turns f into a load: the plain mass, unless it is learned
    stiffness: InTime[EdgeMatrix]  # K
    indefinite_part: Callable[[float], EdgeMatrix | None]  # the part of K at a time that need not be positive semidefinite
    load: InTime[Tensor | None]
    reaction: Callable[[Tensor], Tensor] | None
    mass_low: float  # proven lower bound of diag(M)^-1 M
    symmetric: bool
    time_dependent: bool
    row_sums_constant: Tensor | None = None  # row sums [b, f, n] of what does not change in K (decay); None where they are zero
    moving_sums: InTime[Tensor | None] = lambda t, dt=0.0: None  # and of what may (convective boundaries, skew advection)
    ingredients: tuple[Tensor, ...] = ()  # tensors that K is made of, and how: K = assemble(t, dt, *ingredients)
    assemble: Callable[..., EdgeMatrix] | None = None
    plain: EdgeMatrix | None = None  # turns r(u) into a load, where a capacity makes it differ from the mass
    reaction_excess: Callable[[Tensor], Tensor] | None = None  # a rate of u taken away along with it: the mass makes it a load
    advanced_part: EdgeMatrix | None = None  # taken later than the rest of K, by one step for a weight of 1; positive semidefinite
    may_be_stiff: bool = True  # the reaction is taken implicitly where it is too fast; a learned one stays what it was trained as
    estimate_bounds: bool = False  # what is proven of the matrices from below is far from sharp: estimate it, and check every solve

    @classmethod
    def classical(cls, p: Problem) -> Operators:
        return cls(p.mass, p.source_mass, p.stiffness, p.advection, p.load, p.pde.reaction, p.mass_bounds[0],
                   p.pde.velocity is None, p.time_dependent, p.decay_sums, p.moving_sums,
                   plain=None if p.capacity is None else p.source_mass, estimate_bounds=p.degree == 2)

    def sums(self, t: float, dt: float) -> Tensor | None:
        """K 1 [b, f, n] without the rounding of the terms that do not contribute; None where it is zero."""
        moving = self.moving_sums(t, dt)
        if moving is None or self.row_sums_constant is None:
            return self.row_sums_constant if moving is None else moving
        return self.row_sums_constant + moving

    def rates(self, u: Tensor) -> list[Tensor]:
        """r(u), and the reaction excess where there is one."""
        return [one(u) for one in (self.reaction, self.reaction_excess) if one is not None]

    def gathered(self, rates: Sequence[Tensor]) -> Tensor:
        """The load that the rates add to the right-hand side of a step."""
        load = product(self.mass if self.plain is None else self.plain, rates[0])
        return load if self.reaction_excess is None else load - product(self.mass, rates[1])


def _working(u: Tensor) -> bool:
    """A tensor that a step can take as it is."""
    return isinstance(u, Tensor) and u.dtype in _WORKING and u.layout is torch.strided and not u.is_meta


@checked
def _entered(u: Tensor, f: Tensor | None, t: Finite, start: bool) -> tuple[Tensor, Tensor | None, float, bool]:
    """The arguments of a step, checked."""
    return u, f, t, start


@checked
class GreenSolver:
    """The solver alone: one step at a time. `rollout` is the loop around it.

    - `problem`: what is stepped
    - `backend`: auto (the fastest that fits), lu, cholesky, cg, iterative or dense (see `backends`)
    - `theta`: 1/2 Crank-Nicolson (second order) to 1 backward Euler (first order, damps)
    - `scheme`: crank-nicolson (with `theta`), or discontinuous Galerkin in time: dg1 (order 3, L-stable, one complex solve) or dg2
      (order 5, one real and one complex solve)
    - `tolerance`: of iterative solves, relative; None for 1e-12 in double and 1e-6 in single precision
    - `solves`, `columns`: how many steps and states at once are to come, for the choice of `auto`
    - `operators`: matrices of your own in place of the problem's (a learned model puts in its own)

    States of another precision than the problem's are taken and given back in their own.

        >>> import dgnet as dg, torch
        >>> solver = dg.GreenSolver(dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [], dt=0.1), backend="lu")
        >>> u = torch.zeros(1, 25, 1, dtype=torch.float64)
        >>> u = solver.step(u, torch.ones_like(u))  # a source of 1 for a time of 0.1
        >>> u.mean().round(decimals=6).item()
        0.1
    """

    def __init__(self, problem: Problem, backend: str = "auto", theta: float = 0.5, tolerance: float | None = None,
                 solves: int = 1000, columns: int = 1, operators: Operators | None = None,
                 scheme: str = "crank-nicolson") -> None:
        if backend != "auto" and backend not in NAMES:
            raise InputError(f"unknown backend '{backend}' (known: auto, {', '.join(NAMES)})")
        if scheme not in SCHEMES:
            raise InputError(f"unknown scheme '{scheme}' (known: {', '.join(SCHEMES)})")
        if not 0.5 <= theta <= 1.0:
            raise InputError(f"theta must lie in [0.5, 1] (Crank-Nicolson to backward Euler), got {theta}")
        if tolerance is not None and not 0 < tolerance < 1:
            raise InputError(f"the tolerance must lie between 0 and 1, got {tolerance}")
        if problem.pde.curved:
            raise InputError("the capacity or the diffusion changes with the solution: EnthalpySolver takes such a problem")
        self.problem, self.backend, self.theta = problem, backend, theta
        self.tolerance, self.solves, self.columns, self.degree = tolerance, solves, columns, SCHEMES[scheme]
        if problem.least_decay <= -1 / (theta * problem.dt):
            raise InputError(f"a decay of {problem.least_decay:.4g} grows too fast for the time step {problem.dt:g}: "
                             f"it must be above {-1 / (theta * problem.dt):.4g}")
        self.operators = operators or Operators.classical(problem)
        self.monitor, self.stiff = Monitor(), Stiffness()
        self._cache: tuple[tuple[object, ...], EdgeMatrix, StepOperator] | None = None
        self._bounds: Bounds | None = None
        self._age = self._version = 0
        self._severed: StepOperator | None = None
        self._frozen: Bounds | None = None
        self._linear: tuple[bool, Linear] | None = None  # and whether gradients were on
        self._begun: tuple[tuple[object, ...], EdgeMatrix, int, GalerkinOperator] | None = None
        self._severed_start: GalerkinOperator | None = None

    @property
    def memory(self) -> tuple[float, ...]:
        """Memory that steps leave to the next: whether the reaction is taken implicitly, and where operators change in time
        bounds that only widen, and their age in steps. Set in another solver of the same problem, it steps on as this one would;
        an empty one is that of a start.
        """
        b = self._bounds
        return self.stiff.memory + (() if b is None else (b.low, b.high, b.imag, float(b.tight), float(self._age)))

    @memory.setter
    def memory(self, memory: Sequence[float]) -> None:
        self.stiff.memory = memory[:2]
        if len(memory) > 2:
            low, high, imag, tight, age = memory[2:]
            self._bounds, self._age = Bounds(low, high, imag, bool(tight)), int(age)
        elif self._bounds is not None:
            self._bounds, self._age, self._cache = None, 0, None

    @property
    def capturable(self) -> bool:
        """The step is the same sequence of device operations every time."""
        p = self.problem
        if p.time_dependent or p.data_changes or self.stiff.found:
            return False
        return all(x.capturable for x in (self.start_operator().prepared if self.degree else [self.operator().prepared]))

    def finish(self) -> None:
        """Raise if a solve whose check was put off missed its tolerance."""
        self.monitor.check()

    # ------------------------------------------------------------------ operators

    def operator(self, t: float = 0.0, theta: float | None = None, dt: float | None = None) -> StepOperator:
        """The step from t to t + dt. Kept while nothing it was built from has changed."""
        if self._severed is not None:
            return self._severed
        p, ops = self.problem, self.operators
        theta = self.theta if theta is None else theta
        dt = p.dt if dt is None else dt
        if self._frozen is not None:
            return self._assembled(ops.stiffness(t, dt), t, dt, theta, "iterative", bounds=self._frozen)
        key = (t if ops.time_dependent else None, theta, dt, torch.is_grad_enabled())
        if self._cache is not None and self._cache[0] == key:
            stiffness = self._cache[1]
            if ops.time_dependent or (stiffness is ops.stiffness(t, dt) and stiffness.version == self._version):
                return self._cache[2]
        K = ops.stiffness(t, dt)
        bounds = self._bounds if ops.time_dependent and self._age % 50 else None
        step = self._assembled(K, t, dt, theta, self.backend, bounds=bounds, solves=1 if ops.time_dependent else self.solves,
                               columns=self.columns)
        if ops.time_dependent:
            wide = step.bounds if self._bounds is None else step.bounds.union(self._bounds)
            self._bounds, self._age = replace(wide, tight=True), self._age + 1
        self._cache, self._version = (key, K, step), K.version
        return step

    def _assembled(self, K: EdgeMatrix, t: float, dt: float, theta: float, backend: str, **options: Any) -> StepOperator:
        p, ops = self.problem, self.operators
        return StepOperator(ops.mass, K, dt, theta, p.fixed, advanced_part=ops.advanced_part, sums=ops.sums(t, dt), pivot=p.pivot,
                            backend=backend, symmetric=ops.symmetric, mass_low=ops.mass_low, estimate_bounds=ops.estimate_bounds,
                            indefinite_part=lambda: ops.indefinite_part(t + 0.5 * dt), tolerance=self.tolerance,
                            monitor=self.monitor, **options)

    def linear(self) -> Linear | None:
        """The steps as operations on arrays, where all of them are the same and linear, on the CPU; None elsewhere."""
        p, ops, held = self.problem, self.operators, self._linear
        if self.degree or ops.reaction is not None or ops.time_dependent or self._severed is not None:
            return None
        if held is not None and held[0] == torch.is_grad_enabled() and held[1].unchanged(ops.stiffness(0.0)):
            return held[1]
        w, op = None if p.fixed is None else p.still_values, self.operator()
        alike = all(a in (1, g) for a, g in zip(ops.source.values.shape, op.groups))
        walls = p.fixed is None or (w is not None and not w.requires_grad)
        if p.geometry.device.type != "cpu" or not alike or not walls or p.stiffness_number > DOUBLE:
            return None
        self._linear = torch.is_grad_enabled(), Linear(p, ops, op, ops.stiffness(0.0))
        return self._linear[1]

    @torch.no_grad()
    def freeze(self, times: Sequence[float]) -> bool:
        """Make steps the same sequence of operations at all these times, for a problem in which only a `HeldFlow` changes.

        The number of iterations follows from the worst bounds over all steps, measured for many flows at once; residuals are
        still recorded, and `monitor.check` tells at the end. False, and nothing changed, if no fixed number will do.
        """
        p, ops, flow = self.problem, self.operators, self.problem.pde.velocity
        if self.degree or not isinstance(flow, HeldFlow) or not times or self.stiff.found:
            return False
        one = flow(times[0])
        matrices = (one.shape[0] if one.dim() == 3 else 1) * p.geometry.pattern.nnz
        chunk = max(1, _FROZEN_ENTRIES[p.geometry.device.type] // matrices)
        worst: Bounds | None = None
        try:
            for first in range(0, len(times), chunk):
                flow.spread([t + 0.5 * p.dt for t in times[first:first + chunk]])
                found = self._assembled(ops.stiffness(0.0), 0.0, p.dt, self.theta, "iterative").bounds
                worst = found if worst is None else worst.union(found)
        finally:
            flow.release()
        self._frozen = worst
        if not self.operator(times[0]).prepared.capturable:
            self._frozen = None
            return False
        self.monitor.deferred = True
        return True

    def hold(self, bounds: Bounds | None = None) -> None:
        """Take the step of now for all that follow, with gradients or without, where its matrices do not change in time.

        With `bounds` the number of iterations follows from them and nothing is asked of the host: they are not proven for these
        matrices, and `monitor.check` tells whether they hold.
        """
        p, ops = self.problem, self.operators
        if bounds is None:
            self._severed = self.operator()
            return
        self._severed = StepOperator(ops.mass, ops.stiffness(0.0, p.dt), p.dt, self.theta, p.fixed, sums=ops.sums(0.0, p.dt),
                                     pivot=p.pivot, backend="iterative", symmetric=ops.symmetric, mass_low=ops.mass_low,
                                     tolerance=self.tolerance, monitor=self.monitor, bounds=bounds)

    def severed(self, start: bool = False) -> tuple[GreenSolver, list[tuple[Tensor, Tensor]]] | None:
        """The same step with its matrices as leaves of their own, and the pairs (matrix values, leaf) that need gradients; `start`:
        the first steps, too.

        What a long window differentiates again and again is the step; how the matrices came about is differentiated once.
        Where they change with a flow, a frozen solver is cut at what they are made of. None where they change otherwise.
        """
        p, ops = self.problem, self.operators
        changing = ops.time_dependent and (self._frozen is None or ops.assemble is None)
        if self.degree or p.data_changes or self.stiff.found or changing:
            return None
        pairs: list[tuple[Tensor, Tensor]] = []

        def leaf(x: Tensor) -> Tensor:
            if not x.requires_grad:
                return x
            pairs.append((x, x.detach().requires_grad_()))
            return pairs[-1][1]

        def cut(A: EdgeMatrix) -> EdgeMatrix:
            return EdgeMatrix(A.pattern, leaf(A.values))

        own = copy(self)
        plain = None if ops.plain is None or ops.reaction is None else cut(ops.plain)
        if ops.time_dependent:
            ingredients = tuple(leaf(x) for x in ops.ingredients)
            assemble = ops.assemble
            assert assemble is not None
            still = None if ops.row_sums_constant is None else leaf(ops.row_sums_constant)
            own.operators = replace(ops, mass=cut(ops.mass), source=cut(ops.source), ingredients=ingredients, plain=plain,
                                    row_sums_constant=still, stiffness=lambda t, dt=0.0: assemble(t, dt, *ingredients))
            return own, pairs
        op = self.operator()
        step = copy(op)
        step.explicit, step.flat = cut(op.explicit), cut(op.flat)
        step.sums = None if op.sums is None else leaf(op.sums)
        if op.elimination is not None:
            step.full = cut(op.full)
        load = ops.load(0.0)
        load = None if load is None else leaf(load)
        used = ops.reaction is not None and (ops.plain is None or ops.reaction_excess is not None)  # B and A are cut by themselves
        own.operators = replace(ops, mass=cut(ops.mass) if used else ops.mass, source=cut(ops.source), plain=plain,
                                load=lambda t, dt=0.0: load)
        own._severed = step
        if start:
            first = own._severed_start = copy(self.start_operator())
            first.explicit, first.sums = step.explicit, step.sums
            first.mass = EdgeMatrix(first.mass.pattern, first.mass.values.detach())  # of walls that move: they are not severed
            first.systems = [cut(A) for A in first.systems]
        return own, pairs

    # ------------------------------------------------------------------ stepping

    def step(self, u: Tensor, f: Tensor | None = None, t: float = 0.0, start: bool = False) -> Tensor:
        """u at t [B, N, F] and the step-averaged source f [B, N, F] -> u at t + dt [B, N, F]. Leading axis optional.

        `start`: a step of dG(1) (`galerkin`). Two after a start or a jump leave nothing that Crank-Nicolson rings with.
        """
        if not (_working(u) and (f is None or _working(f)) and type(t) is float and type(start) is bool):  # in every step: quick
            u, f, t, start = _entered(u, f, t, start)
        if torch.is_inference_mode_enabled():
            with ordinary():
                return self.step(u, f, t, start)
        if not start and not self.degree and self._begun is not None and not self.problem.data_changes:
            self._begun = None  # no jump will need it again
        linear = None if start or self.degree else self.linear()
        quick = None if linear is None else linear.step(u, f, t)
        if quick is not None:
            return quick
        p = self.problem
        p.check_state(u)
        if f is not None:
            p.check_state(f, "the source")
        if f is not None and f.dim() == 4 and f.shape[1] > max(1, self.degree + 1):
            raise InputError(f"a source with {f.shape[1]} moments is more than the {self.degree + 1} that these steps take")
        if u.dim() == 2:
            return self.step(u[None], None if f is None else f.reshape(-1, *f.shape[-2:]), t, start)[0]
        dtype = u.dtype
        self._refuse_stiff(u)
        u = p.restrict(u).to(p.dtype)
        f = None if f is None else p.restrict(f).to(p.dtype)
        if self.degree:
            u = self._galerkin(self.walled(u, t), f, t)[1]
        else:
            f = f if f is None or f.dim() < 4 else f[:, 0]
            u = self._start(self.walled(u, t), f, t) if start else self._advance(u, f, t, self.theta, p.dt)
        return p.expand(u).to(dtype)

    def step_moved(self, u: Tensor, moved: Tensor, t: float = 0.0, start: bool = False) -> Tensor:
        """The same step, where a model has made `moved` = dt (-K (u - c) + load of the source) [B, n, F] at one go.

        c = `operator().reference(u)`; u and `moved` are at the degrees of freedom, in the problem's precision. With `start`, u has
        its Dirichlet values (`walled`).
        """
        self._refuse_stiff(u)
        return self._start(u, None, t, moved) if start else self._advance(u, None, t, self.theta, self.problem.dt, moved)

    def walled(self, u: Tensor, t: float) -> Tensor:
        """A state [B, n, F] with the Dirichlet values of the time t."""
        w, fixed = self.problem.fixed_values(t), self.problem.fixed
        return u if w is None or fixed is None else torch.where(fixed.T, w, u)

    def _start(self, u: Tensor, f: Tensor | None, t: float, moved: Tensor | None = None) -> Tensor:
        """A step of dG(1) from a state with its Dirichlet values; the source is its average, a reaction linear in the step."""
        p, ops = self.problem, self.operators
        op, dt = self.start_operator(t), p.dt
        w = p.fixed_values(t + dt)
        before = None if w is None or p.still_values is not None else p.fixed_values(t)
        walls = None if w is None or before is None else Walls.straight(w - before)
        right = op.right_hand_side(u, self._force(f, t, dt), moved)

        def add(right: Tensor, first: Tensor | None = None) -> Tensor:
            ends = op.increments([right, first], walls)
            new = u + ends[0] + ends[1]
            return new if w is None or p.fixed is None else torch.where(p.fixed.T, w, new)

        if ops.reaction is None:
            return add(right)
        rates = self._rates(u, right, dt, add)
        if rates is None:
            return self._implicit(op, u, f, t)
        start, end = rates
        mean = ops.gathered([0.5 * (r0 + r1) for r0, r1 in zip(start, end)])
        slope = ops.gathered([(r1 - r0) / 6 for r0, r1 in zip(start, end)])
        return add(right + dt * mean, dt * slope)

    def course(self, u: Tensor, f: Tensor | None, t: float) -> tuple[list[Tensor], Tensor]:
        """The polynomial of a step of dG(k) without a reaction, from u at t [B, N, F] and moments of a source [B, i, N, F]: its
        coefficients V_i (`galerkin`), without what Dirichlet values move by, and the state at t + dt."""
        p, dtype = self.problem, u.dtype
        inner, f = p.restrict(u).to(p.dtype), None if f is None else p.restrict(f).to(p.dtype)
        ends, new = self._galerkin(self.walled(inner, t), f, t)
        return [p.expand(v).to(dtype) for v in ends], p.expand(new).to(dtype)

    def _galerkin(self, u: Tensor, f: Tensor | None, t: float) -> tuple[list[Tensor], Tensor]:
        """A step of dG(k) from a state with its Dirichlet values, and moments of a source [B, i, n, F]; averages are constant in
        the step. A reaction is taken at Radau's points, by Picard's iteration, each of which is worth one order."""
        p, ops, dt = self.problem, self.operators, self.problem.dt
        op, count = self.start_operator(t), self.degree + 1
        before, w = (None, None) if p.fixed is None else (p.fixed_values(t), p.fixed_values(t + dt))
        walls = None
        if before is not None and w is not None and p.still_values is None:
            walls = Walls(w - before, p.fixed_moments(t, count))
        forces = [] if f is None else list((f if f.dim() == 4 else f[:, None]).unbind(1))
        right: list[Tensor | None] = [op.right_hand_side(u, self._force(forces[0] if forces else None, t, dt))]
        for i in range(1, count):
            load = p.load(t, dt, i) if p.data_changes or p.exchange_changes else None
            force = product(ops.source, forces[i]) if i < len(forces) else None
            force = force if load is None else load[None].expand_as(u) if force is None else force + load
            right.append(None if force is None else dt * force)

        def held(u: Tensor, s: float) -> Tensor:
            return self.walled(u, t + s * dt) if walls is not None else u

        ends = op.increments(right, walls)
        if ops.reaction is not None:
            if self.stiff.found:
                return ends, self._implicit(op, u, None if not forces else forces[0], t)
            points, weights, P = radau(count)
            start = ops.rates(u)
            rates = [start] * count
            for turn in range(2 * self.degree + 1):
                driven = list(right)
                for i in range(count):
                    mean = [sum((r[m] * float(a * b) for r, a, b in zip(rates, weights, P[i])), torch.zeros_like(u))
                            for m in range(len(start))]
                    more, now = dt * ops.gathered(mean), driven[i]
                    driven[i] = more if now is None else now + more
                ends = op.increments(driven, walls)
                inner = [held(u + sum((v * float(q) for v, q in zip(ends, P[:, j])), torch.zeros_like(u)), float(s))
                         for j, s in enumerate(points)]
                rates = [ops.rates(x) for x in inner]
                change = inner[-1] - u, self._per_capacity(rates[-1][0] - start[0])
                if not turn and ops.may_be_stiff and self.stiff.look(self._speed, inner[-1], dt, change):
                    return ends, self._implicit(op, u, None if not forces else forces[0], t)
        new = u + sum(ends[1:], ends[0])
        return ends, new if w is None or p.fixed is None else torch.where(p.fixed.T, w, new)

    def start_operator(self, t: float = 0.0) -> GalerkinOperator:
        """The step of dG from t to t + dt. Kept for the steps that follow a start, and given back by the first other one."""
        p, ops = self.problem, self.operators
        if self._severed_start is not None:
            return self._severed_start
        key = (t if ops.time_dependent else None, torch.is_grad_enabled())
        K = ops.stiffness(t, p.dt)
        if self._begun is not None and self._begun[0] == key and (ops.time_dependent or (
                K is self._begun[1] and K.version == self._begun[2])):
            return self._begun[3]
        backend = self.backend
        if backend == "auto":
            backend = "lu" if ops.time_dependent and K.values.device.type == "cpu" else self.operator(t).backend
        once = not self.degree and self.columns <= _FEW and backend in ("lu", "cholesky") and self.theta == 0.5
        usual = self.operator(t) if once else None
        middle = usual.prepared if usual is not None and usual.backend in ("lu", "cholesky") and p.n > _SMALL else None
        op = GalerkinOperator(ops.mass, K, p.dt, self.degree or 1, p.fixed, advanced_part=ops.advanced_part,
                              sums=ops.sums(t, p.dt), pivot=p.pivot, backend=backend, symmetric=ops.symmetric,
                              tolerance=self.tolerance, monitor=self.monitor, middle=middle)
        self._begun = (key, K, K.version, op)
        return op

    def _refuse_stiff(self, u: Tensor) -> None:
        p = self.problem
        if p.stiffness_number > DOUBLE and not (u.is_cuda and torch.cuda.is_current_stream_capturing()):
            if bool((u - u[:, :1]).any()):
                raise SolveError(f"the step cannot be computed: {p.precision}; take a smaller time step or less slender cells")

    def _advance(self, u: Tensor, f: Tensor | None, t: float, theta: float, dt: float, moved: Tensor | None = None) -> Tensor:
        ops = self.operators
        op = self.operator(t, theta, dt)
        w, fixed = self.problem.fixed_values(t + dt), self.problem.fixed
        wall = None if w is None or self._met(u, w) else w - u
        right = op.right_hand_side(u, self._force(f, t, dt), moved)

        def add(right: Tensor) -> Tensor:
            new = u + op.solve(right, wall)
            return new if wall is None or w is None or fixed is None else torch.where(fixed.T, w, new)

        if ops.reaction is None:
            return add(right)
        rates = self._rates(u, right, dt, add)
        if rates is None:
            return self._implicit(op, u, f, t)
        start, end = rates
        mean = [torch.lerp(r0, r1, theta) for r0, r1 in zip(start, end)]
        return add(right + dt * ops.gathered(mean))

    def _rates(self, u: Tensor, right: Tensor, dt: float,
               add: Callable[[Tensor], Tensor]) -> tuple[list[Tensor], list[Tensor]] | None:
        """The rates at both ends of a step, at its end those of a predictor; None where they are too fast for that."""
        ops = self.operators
        if self.stiff.found:
            return None
        start = ops.rates(u)
        guess = add(right + dt * ops.gathered(start))
        end = ops.rates(guess)
        fast = ops.may_be_stiff and self.stiff.look(self._speed, guess, dt, (guess - u, self._per_capacity(end[0] - start[0])))
        return None if fast else (start, end)

    def _implicit(self, op: Assembled, u: Tensor, f: Tensor | None, t: float) -> Tensor:
        p, ops = self.problem, self.operators
        new = implicit_step(ops, op, u, self._force(f, t, op.dt), p.fixed_values, p.fixed, t)
        self.stiff.look(self._speed, new, op.dt)
        return new

    def _speed(self, u: Tensor) -> Tensor:
        """The speed of the reaction alone, [B, n, F]: r(u) / c, the capacity that of the cells around a node."""
        assert self.operators.reaction is not None
        return self._per_capacity(self.operators.reaction(u))

    def _per_capacity(self, rate: Tensor) -> Tensor:
        plain, mass = self.operators.plain, self.operators.mass
        return rate if plain is None else rate * (plain.row_sums() / mass.row_sums()).detach()[0].T

    def _met(self, u: Tensor, w: Tensor) -> bool:
        """u has the Dirichlet values w already, so that nothing changes there. Only looked at where that is cheap."""
        if u.is_cuda or torch.is_grad_enabled():
            return False
        nodes, fixed = self.problem.walls
        return not bool(((u.index_select(1, nodes) - w.index_select(0, nodes)) * fixed).any())

    def _force(self, f: Tensor | None, t: float, dt: float) -> Tensor | None:
        """P f + g: averages over the step, as K has them, so that a state equal to the ambient rests whatever the exchange does."""
        force = None if f is None else product(self.operators.source, f)
        load = self.operators.load(t, dt)
        if load is None:
            return force
        return load[None] if force is None else force + load

    @checked
    def impulse(self, node: int, field: int = 0, t: float = 0.0) -> Tensor:
        """A column of G = (M + theta dt K)^-1 M as a field [N, F]: the response to a unit impulse at a node."""
        p = self.problem
        if self.degree:
            raise InputError("a column of G is that of the scheme crank-nicolson")
        if not 0 <= node < p.n_nodes:
            raise InputError(f"node {node} does not exist: the mesh has {p.n_nodes} nodes")
        if not 0 <= field < p.n_fields:
            raise InputError(f"field {field} does not exist: the problem has {p.n_fields}")
        e = torch.zeros(1, p.n, p.n_fields, dtype=p.dtype, device=p.geometry.device)
        e[0, int(p.geometry.dof[node]), field] = 1.0
        w = None if p.fixed is None else torch.zeros(p.n, p.n_fields, dtype=p.dtype, device=p.geometry.device)
        return p.expand(self.operator(t).solve(product(self.operators.mass, e), w))[0]

