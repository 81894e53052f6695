"""One step where capacity or diffusion change with u: the theta scheme in the enthalpy, by Newton's method.

    M (H(u+) - H(u)) + dt [ K theta(w) + C H(w) + L w ] = dt (S (f + r) + g),    phi(w) = (1 - a) phi(u) + a phi(u+)

(see `material`; a = 1/2: Crank-Nicolson, order 2). With E(u) the enthalpy in the volume of each node, Newton's unknown is z = dE:

    (I + W q) z = residual,     q = (slopes of H, theta, u) / E',     W = [M - E', a dt K, a dt C, a dt L] side by side

W never changes: only the numbers q at the nodes do, so trajectories are columns of one product. Without flow I + W q is similar to
I + a dt q^1/2 K q^1/2: symmetric, never below I, also where the diffusion vanishes or melting makes the capacity as large as one
likes. Chebyshev's iteration with Jacobi's preconditioner then needs a number of iterations that is known beforehand; where regions,
exchange or a flow spoil that, a run that misses is followed by a factorisation. The new u follows from E + z exactly, piece by
piece, so that a sharp melting front needs no smaller steps; and since the columns of K sum to zero, what is left of a residual in a
closed box can be spread such that the enthalpy gained is what entered, to rounding, however early the iteration ends.

An iteration counts only if the residual falls. Where E + z does not make it fall, each node goes part of the way that it would go
if its neighbours stayed (`System.ahead`); and where that ends, too, the step is followed from one without length on.
What still fails is a flow that carries latent heat over many cells in one step: these equations may have many solutions, or none.

Steps are computed in double precision whatever states they are given. A known reaction enters by predictor-corrector, and is
refused where it is too fast for that. Gradients are those of the solution (implicit adjoint): one linear solve with the transposed
matrix per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from dgnet.arguments import checked
from dgnet.errors import InputError, RangeError, SolveError
from dgnet.problems import Problem
from dgnet.problems.curves import Curve, tabulated
from dgnet.stepping.backends import Monitor
from dgnet.stepping.fold import product
from dgnet.stepping.material import Materials
from dgnet.stepping.stiff import GAMMA, LIMIT, Stiffness
from dgnet.stepping.system import MOST, At, System

Tensor = torch.Tensor

TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-11}
_MOST = 60  # Newton iterations, where their number is free
_FALLS, _SHORTEST = 1e-4, 1e-6  # a residual that falls does so by this part of the share of the way; and the shortest share
_PARTS, _SHORTEST_PART = 40, 1e-3  # of a step that is followed from its beginning on
_ROUNDING = 10.0  # what is left of a residual, at most, over the rounding of its largest terms
# reductions of the linear solves where their number is not free, by precision and whether something melts
_FIXED = {(torch.float32, False): (1e-2, 1e-3, 1e-4), (torch.float64, False): (1e-2, 1e-4, 1e-6),
          (torch.float32, True): (1e-2,) * 5 + (1e-3,), (torch.float64, True): (1e-2,) * 5 + (1e-3, 1e-3, 1e-4)}
_SLACK = 20.0  # a fixed number of iterations may miss the tolerance by this factor
_TANGENT = 1e-4  # reduction of the linear solves of derivatives
_BEYOND = 0.01  # how far a state may leave a curve, in parts of its range


class Solver(Protocol):
    """The part of a solver that models use: steps, and questions before and after them."""

    problem: Problem
    memory: Sequence[float]

    def step(self, u: Tensor, f: Tensor | None = None, t: float = 0.0, start: bool = False) -> Tensor: ...

    @property
    def capturable(self) -> bool: ...

    def freeze(self, times: Sequence[float]) -> bool: ...

    def finish(self) -> None: ...


@checked
class EnthalpySolver:
    """Steps of a problem whose capacity or diffusion are curves of u. `Classical` chooses it where it is needed.

    - `problem`: what is stepped
    - `theta`: 1/2 Crank-Nicolson (second order) to 1 backward Euler (first order, damps)
    - `tolerance`: of Newton's method, relative to the change of a step; None for 1e-11 in double and 1e-7 in single precision
    - `materials`: matrices of your own in place of the problem's (a learned model puts in its own)
    - `deferred`: a fixed number of iterations; residuals and ranges are looked at in `finish` only, so that steps can be recorded

        >>> import dgnet as dg, torch
        >>> k = dg.Curve([0.0, 1.0], [0.1, 0.2], name="conductivity")
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=k), [dg.Dirichlet("left", 1.0)], dt=0.1)
        >>> states = dg.rollout(dg.Classical(), problem, torch.zeros(1, 25, 1, dtype=torch.float64), steps=200)
        >>> round(states[0, -1].min().item(), 4)
        1.0
    """

    def __init__(self, problem: Problem, theta: float = 0.5, tolerance: float | None = None,
                 materials: Materials | None = None, deferred: bool = False) -> None:
        if not 0.5 <= theta <= 1.0:
            raise InputError(f"theta must lie in [0.5, 1] (Crank-Nicolson to backward Euler), got {theta}")
        if tolerance is not None and not 0 < tolerance < 1:
            raise InputError(f"the tolerance must lie between 0 and 1, got {tolerance}")
        p = self.problem = problem.double
        self.theta, self.tolerance, self.monitor = theta, tolerance or TOLERANCE[problem.dtype], Monitor(deferred)
        self.stiff = Stiffness()
        m = self.materials = materials or Materials.classical(p)
        self.curves = list({id(c): c for term in (*m.mass, *m.spread) if (c := term.curve) is not None}.values())
        self.tables = tabulated(self.curves, p.geometry.device)
        self._systems: dict[tuple[float, float], System] = {}
        self._reductions = _FIXED[problem.dtype, any(c.latent for c in self.curves)]
        self._reached = torch.tensor([[math.inf, -math.inf]] * p.n_fields, dtype=torch.float64, device=p.geometry.device)

    # ------------------------------------------------------------------ stepping

    def step(self, u: Tensor, f: Tensor | None = None, t: float = 0.0, start: bool = False) -> Tensor:
        """u at t [B, N, F] and the step-averaged source f [B, N, F] -> u at t + dt [B, N, F]. Leading axis optional.

        `start`: two L-stable stages of second order (SDIRK2, as in `stiff`): the part that dG(1) has in `GreenSolver.step`.
        """
        p = self.problem
        p.check_state(u)
        if f is not None:
            p.check_state(f, "the source")
        if u.dim() == 2:
            return self.step(u[None], None if f is None else f.reshape(-1, *f.shape[-2:]), t, start)[0]
        dtype = u.dtype
        u = p.restrict(u).to(p.dtype)
        f = None if f is None else p.restrict(f).to(p.dtype)
        if start:
            self._look(u.detach())
            u = self.stages(u, f, t)[-1]
        else:
            u = self._advance(u, f, t)
        self._look(u.detach())
        return p.expand(u).to(dtype)

    def _advance(self, u: Tensor, f: Tensor | None, t: float) -> Tensor:
        """A step of the theta scheme."""
        system, w = self._system(t, self.theta, 1.0), self.problem.fixed_values(t + self.problem.dt)
        return self._reacting(system, u, f, t, self.theta, lambda force: (self._solve(system, u, force, w),))[0]

    def stages(self, u: Tensor, f: Tensor | None, t: float) -> tuple[Tensor, ...]:
        """The two stages of an L-stable step, at the degrees of freedom; the second one is its end."""
        p, system = self.problem, self._system(t, 1.0, GAMMA)
        inside, end = p.fixed_values(t + GAMMA * p.dt), p.fixed_values(t + p.dt)

        def both(force: Tensor) -> tuple[Tensor, Tensor]:
            first = self._solve(system, u, force, inside)
            gained = system.stored(first.transpose(0, 1)) - system.stored(u.transpose(0, 1))
            more = (1 - GAMMA) / (GAMMA * system.dt) * gained.transpose(0, 1)
            return first, self._solve(system, u, force + more, end)

        return self._reacting(system, u, f, t, 0.5, both)

    def _reacting(self, system: System, u: Tensor, f: Tensor | None, t: float, theta: float,
                  solve: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """`solve` for what drives a step: source, loads, and a reaction by predictor and corrector."""
        m, load = self.materials, self.materials.load(t, self.problem.dt)
        force = torch.zeros_like(u) if f is None else product(m.source, f)
        force = force if load is None else force + load
        if m.reaction is None:
            return solve(force)
        start = m.reaction(u)
        guess = solve(force + product(m.plain, start))[-1]
        self._refuse_fast(system, guess.detach())
        return solve(force + product(m.plain, torch.lerp(start, m.reaction(guess), theta)))

    def _refuse_fast(self, system: System, u: Tensor) -> None:
        """Predictor and corrector are stable only where the reaction is slow against the step."""
        m = self.materials

        def speed(v: Tensor) -> Tensor:
            """The speed of the reaction alone [B, n, F]: r(u) / c(u), the capacity taken as held."""
            assert m.reaction is not None
            return m.reaction(v) * (m.plain.row_sums()[0].T / system.at(v.transpose(0, 1)).D.transpose(0, 1)).detach()

        if m.may_be_stiff and self.stiff.look(speed, u, self.problem.dt):
            raise SolveError(f"the reaction is too fast for steps of {self.problem.dt:.3g}: where capacity or diffusion change "
                             "with the field, the step times the slope of the reaction over the capacity must stay below "
                             f"{LIMIT:g}; take shorter or adaptive steps")

    def _system(self, t: float, theta: float, share: float) -> System:
        p = self.problem
        if p.time_dependent:
            return System(p, self.materials, self.curves, self.tables, t, theta, p.dt, share)
        key = (theta, share)
        if key not in self._systems:
            self._systems[key] = System(p, self.materials, self.curves, self.tables, 0.0, theta, p.dt, share)
        return self._systems[key]

    def _solve(self, system: System, u: Tensor, force: Tensor, w: Tensor | None) -> Tensor:
        """u [B, n, F] at t and the load over time [B, n, F] -> u at t + dt."""
        old, load = u.transpose(0, 1), system.dt * force.transpose(0, 1)
        wall = None if w is None else w[:, None].expand_as(old)
        with torch.no_grad():
            at = self._newton(system, old, load, wall)
        new = at.u
        if torch.is_grad_enabled():
            now, before = system.at(new), system.at(old)
            rest = now.E - before.E + system.gathered(now.phi + system.ratios * before.phi) - load
            if wall is not None and system.free is not None:
                rest = torch.where(system.free.bool(), rest, new - wall)
            new = _Implicit.apply(rest, new, system, at, self.tolerance)
        return new.transpose(0, 1)

    def _newton(self, system: System, old: Tensor, load: Tensor, wall: Tensor | None) -> At:
        """The state at the end of the step: E(u) + W phi(u) = E(old) - W (ratio phi(old)) + load."""
        before = system.at(old)
        base = before.E - system.product(system.ratios * before.phi) + load
        equation = _Equation(system, before.E, base, wall, before.D.rsqrt())
        start = before if wall is None else system.at(system.imposed(old, wall))
        residual, size = equation.residual(start)
        rounding = _ROUNDING * torch.finfo(old.dtype).eps * _size(system.magnitude(start), equation.weight) / self.tolerance
        scale = rounding.clamp(min=torch.finfo(old.dtype).tiny) + size  # a field may be zero and stay so
        if self.monitor.deferred:
            return self._fixed(equation, start, residual, scale)
        at, left = self._descended(equation, start, residual, size, scale)
        if not bool((left <= self.tolerance).all()):
            at, left = self._followed(equation, start, at, left, scale)
        if not bool((left <= self.tolerance).all()):
            raise SolveError("Newton's method for the enthalpy stopped at a residual of "
                             f"{float(left.max()):.1e} of the change in the step")
        return at

    def _fixed(self, equation: _Equation, at: At, residual: Tensor, scale: Tensor) -> At:
        """A fixed number of iterations; the residual at their end is looked at later."""
        system = equation.system
        for reduction in self._reductions:
            z = system.solve(at, residual, reduction, system.worst)
            at = equation.at(system.inverse(at.E + z))
            residual, size = equation.residual(at)
        self.monitor.record((size / scale).max(), _SLACK * self.tolerance)
        return at

    def _descended(self, equation: _Equation, at: At, residual: Tensor, size: Tensor, scale: Tensor) -> tuple[At, Tensor]:
        """The solution from a state near it, or where its residual does not fall any further; and its size over `scale` [B, F].

        A column takes what makes its residual fall: the enthalpy E + z, which conserves, else a share of the way that
        `System.ahead` goes, halved until it does. One that no share makes fall is stuck, and stays.
        """
        system, last, stuck = equation.system, 1.0, torch.zeros_like(size, dtype=torch.bool)
        for _ in range(_MOST):
            ratio = float((size / scale).masked_fill_(stuck, 0.0).max())
            if not self.tolerance < ratio < math.inf:  # NaN ends it, too
                break
            z = system.solve(at, residual, max(0.3 * self.tolerance / ratio, min(1e-2, (ratio / last) ** 2)))
            last, bound = ratio, torch.maximum(size, self.tolerance * scale)
            new = equation.at(system.inverse(at.E + z))
            residual, size = equation.residual(new)
            fine = size <= (1 - _FALLS) * bound
            if not bool(fine.all()):
                ahead, share = system.ahead(at, z), (~stuck).to(size.dtype)
                fine = fine & ~stuck
                while not bool(fine.all()):
                    new = equation.at(torch.where(fine, new.u, ahead(share)))
                    residual, size = equation.residual(new)
                    stuck = share < _SHORTEST
                    fine = stuck | (size <= (1 - _FALLS * share) * bound)
                    share = torch.where(fine, share, 0.5 * share)
            at = new
        return at, size / scale

    def _followed(self, equation: _Equation, start: At, at: At, left: Tensor, scale: Tensor) -> tuple[At, Tensor]:
        """The same by way of shorter steps, from one without length on, whose end is its beginning; for columns not done yet."""
        done = left <= self.tolerance
        u, reached, stride = torch.where(done, at.u, start.u), done.double(), torch.full_like(left, 0.25)
        for _ in range(_PARTS):
            to = (reached + stride).clamp(max=1.0)
            part = replace(equation, share=to)
            begin = part.at(u)
            found, left = self._descended(part, begin, *part.residual(begin), scale)
            good = left <= self.tolerance
            u, reached, stride = torch.where(good, found.u, u), torch.where(good, to, reached), torch.where(good, 1.5, 0.5) * stride
            if bool(((reached == 1) | (stride < _SHORTEST_PART)).all()):
                break
        at = equation.at(u)
        return at, equation.residual(at)[1] / scale

    @torch.no_grad()
    def tangent(self, u: Tensor, after: Tensor, d: Tensor, t: float, inner: Callable[[Curve, Tensor], Tensor | None]) -> Tensor:
        """Derivatives [B, n, F, K] by K numbers of the state `after` the step from u [B, n, F], from those before it.

        `inner(curve, u)`: derivatives [B, n, F, K] of the integral of a curve at u by the numbers, u held; None for none.
        """
        batch, n, fields, count = d.shape
        system = self._system(t, self.theta, 1.0)

        def wide(x: Tensor) -> Tensor:
            """[B, n, F, K] -> [n, B K, F]"""
            return x.permute(1, 0, 3, 2).reshape(n, batch * count, fields)

        def repeated(at: At) -> At:
            return At(*(x.repeat_interleave(count, -2) for x in at))

        def direct(v: Tensor) -> tuple[Tensor, Tensor]:
            """Derivatives of E and phi by the numbers alone."""
            none = torch.zeros(n, batch * count, fields, dtype=torch.float64, device=d.device)
            rows = [none if (found := inner(curve, v)) is None else wide(found) for curve in self.curves] + [none]
            phi = torch.stack([rows[k] for k in system.curve])
            E = torch.stack([volume * rows[k] for volume, k in zip(system.volume, system.mass_curve)]).sum(0)
            return E, phi if system.own is None else phi * system.own

        old, new = (repeated(system.at(x.transpose(0, 1))) for x in (u, after))
        along, (E0, phi0), (E1, phi1) = wide(d), direct(u), direct(after)
        right = old.D * along + E0 - E1 - system.product(system.ratios * (old.slope * along + phi0) + phi1)
        found = system.solve(new, system.masked(right), _TANGENT) / new.D
        return found.view(n, batch, count, fields).permute(1, 0, 3, 2)

    # ------------------------------------------------------------------ before and after

    @property
    def memory(self) -> Sequence[float]:
        """Memory that the steps so far leave to the next, as that of a `GreenSolver`."""
        return self.stiff.memory

    @memory.setter
    def memory(self, memory: Sequence[float]) -> None:
        self.stiff.memory = memory

    @property
    def capturable(self) -> bool:
        """The step is the same sequence of operations every time, without the host."""
        p = self.problem
        if p.time_dependent or p.data_changes:
            return False
        return self._system(0.0, self.theta, 1.0).worst.iterations(min(self._reductions)) <= MOST[p.geometry.device.type]

    def freeze(self, times: Sequence[float]) -> bool:
        """Steps with a flow that changes are not recorded."""
        return False

    def finish(self) -> None:
        """Raise if a step missed its tolerance, or if the states left the range of a curve."""
        self.monitor.check()
        self._in_range()

    def _look(self, u: Tensor) -> None:
        least, most = self._reached.unbind(1)
        if not self.monitor.deferred:  # every step by itself: one that left the table may be taken again, with a shorter step
            least.copy_(u.amin((0, 1)))
            most.copy_(u.amax((0, 1)))
            return self._in_range()
        torch.minimum(least, u.amin((0, 1)), out=least)
        torch.maximum(most, u.amax((0, 1)), out=most)

    def _in_range(self) -> None:
        m, names = self.materials, self.problem.pde.fields
        for field, (least, most) in enumerate(self._reached.tolist()):
            for curve in dict.fromkeys(t.curve for t in (*m.mass, *m.spread) if field in t.fields and t.curve is not None):
                slack = _BEYOND * (curve.high - curve.low)
                if curve.extends or (least >= curve.low - slack and most <= curve.high + slack):
                    continue
                below = least < curve.low - slack
                end = f"begins at {curve.low:g}" if below else f"ends at {curve.high:g}"
                raise RangeError(f"the run reaches {names[field]} = {least if below else most:.6g}, but the {curve.name} {end}: "
                                 "its table must cover the run")


@dataclass(frozen=True)
class _Equation:
    """E(u) + share W phi(u) = E(old) + share (base - E(old)): a step, and with a share below one a step on the way to it."""

    system: System
    start: Tensor  # E(old)
    base: Tensor
    wall: Tensor | None
    weight: Tensor  # of a residual at each node
    share: Tensor | None = None  # [B, F]; None for the whole step

    def at(self, u: Tensor) -> At:
        """Everything at u, with the values of the wall imposed, phi and slopes times the share."""
        at = self.system.at(self.system.imposed(u, self.wall))
        return at if self.share is None else at._replace(phi=self.share * at.phi, slope=self.share * at.slope)

    def residual(self, at: At) -> tuple[Tensor, Tensor]:
        """The residual of the equation [n, B, F], and its size in each column [B, F]."""
        base = self.base if self.share is None else torch.lerp(self.start, self.base, self.share)
        left = self.system.masked(base - at.E - self.system.product(at.phi))
        return left, _size(left, self.weight)


def _size(x: Tensor, weight: Tensor) -> Tensor:
    """The weighted norm of each column: [n, B, F] -> [B, F]."""
    return (x * weight).norm(dim=0)


class _Implicit(torch.autograd.Function):
    """The solution u+ of R(u+, ...) = 0: d u+ = -J^-1 dR with J = dR/du+, so that the adjoint solves with J^T = D + slope W^T."""

    @staticmethod
    def forward(ctx: Any, rest: Tensor, new: Tensor, system: System, at: At, tolerance: float) -> Tensor:  # type: ignore[override]
        ctx.system, ctx.at, ctx.tolerance = system, at, tolerance
        return new.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        system, at = ctx.system, ctx.at
        adjoint = system.solve(at, system.masked(g / at.D), ctx.tolerance, transposed=True)
        if system.free is not None:  # rows of fixed values are u+ - w = 0
            through = (at.slope * system.wide.transposed(adjoint.flatten(1)).view(at.slope.shape)).sum(0)
            adjoint = torch.where(system.free.bool(), adjoint, g - through)
        return -adjoint, None, None, None, None
