"""A step for reactions that are fast against the time step: diagonally implicit, second order, no limit on the step.

With gamma = 1 - 1/sqrt(2) and a = gamma dt (SDIRK2 of Alexander 1977: L-stable, stiffly accurate), two stages U1, U2 = u+ solve

    M (U - b) = a [ -K U + S r(U) + P f + g ],      b1 = u,   b2 = u + (1 - gamma) / gamma (U1 - u)

K and g are those of the whole step, as in the other steps; Dirichlet values are those of the stage, t + a and t + dt.
The whole system is solved at once. Splitting the reaction off, node by node, is cheaper, but first order only where reaction and
diffusion are both fast, and a balance of the two is not kept.

Newton's method takes J = dr/du node by node (blocks F x F); its linear systems (M + a K - a S J) x = y are solved by BiCGStab,
preconditioned by the blocks of the diagonal. A step whose Newton iteration does not converge is halved. Gradients follow from the
implicit function theorem: one solve with the transposed matrix per stage, whatever the iterations did.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch

from dgnet.errors import SolveError
from dgnet.operators import EdgeMatrix
from dgnet.stepping.backends import bicgstab
from dgnet.stepping.fold import product

if TYPE_CHECKING:
    from dgnet.stepping.operator import Assembled
    from dgnet.stepping.solver import Operators

Tensor = torch.Tensor

GAMMA = 1 - 1 / sqrt(2)
LIMIT = 1.5  # of dt times the slope of r: above, steps are implicit. (The guard of a learned reaction alone has 1.)
_SELDOM = 10  # steps between two looks at a slope that is far below the limit
_NEWTON, _LINEAR, _HALVINGS = 20, 200, 8  # at most
_CLOSE = {torch.float32: 2e-6, torch.float64: 1e-9}  # the last correction of Newton's method, relative to each field
_FAINT = 1e-6  # of the largest field: what counts as the size of a smaller one
_POOR = 0.1  # reduction of a residual that a linear solve must reach at least
_ADJOINT = {torch.float32: 1e-6, torch.float64: 1e-12}


def slopes(rate: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """dr_i/du_j at every node [B, n, F, F] of a rate that acts node by node."""
    with torch.enable_grad():
        x = u.detach().requires_grad_()
        r = rate(x)
        if not r.requires_grad:
            return u.new_zeros(*u.shape, u.shape[-1])
        rows = [torch.autograd.grad(r[..., i].sum(), x, retain_graph=True)[0] for i in range(u.shape[-1])]
    return torch.stack(rows, -2)


class Stiffness:
    """Watches dt times the slope of a reaction along a run: while it is above `LIMIT`, steps are implicit (`found`)."""

    def __init__(self) -> None:
        self.found = False
        self._wait = 0

    @property
    def memory(self) -> tuple[float, float]:
        """Memory that is left to the next step; set again, that step is made as it was."""
        return float(self.found), float(self._wait)

    @memory.setter
    def memory(self, memory: Sequence[float]) -> None:
        found, wait = memory or (0, 0)
        self.found, self._wait = bool(found), int(wait)

    def look(self, rate: Callable[[Tensor], Tensor], u: Tensor, dt: float, changes: tuple[Tensor, Tensor] | None = None) -> bool:
        """Whether steps near the state u [B, n, F] must be implicit.

        Far below the limit it looks seldom, unless the `changes` of u and of the rate within a step already tell that the slope has
        grown (on the CPU, where that costs nothing).
        """
        if torch.compiler.is_compiling() or (u.is_cuda and torch.cuda.is_current_stream_capturing()):
            return self.found
        self._wait -= 1
        if self._wait > 0 and (changes is None or u.is_cuda or not dt * changes[1].abs().max() > LIMIT * changes[0].abs().max()):
            return self.found
        J = slopes(rate, u)
        for _ in range(2):  # |J^4|^(1/4) bounds the spectral radius and hardly depends on the units of the fields
            J = J @ J
        size = dt * float(J.abs().sum(-1).max()) ** 0.25
        self.found = not size <= LIMIT
        self._wait = _SELDOM if size == 0 else 1 if self.found else max(1, min(_SELDOM, int(LIMIT / size)))
        return self.found


class _NotConverged(Exception):
    """Newton's method has not converged."""


def implicit_step(ops: Operators, op: Assembled, u: Tensor, force: Tensor | None, values: Callable[[float], Tensor | None],
                  fixed: Tensor | None, t: float) -> Tensor:
    """u at t [B, n, F] -> u at t + dt; `force` P f + g, `values` the Dirichlet values w(t), `fixed` their mask [f, n].

    `op` is the explicit step's operator: of it only -dt K, its sums and dt are used. A step that does not converge is halved.
    """
    def advance(u: Tensor, t: float, share: float) -> Tensor:
        try:
            one = _Stages(ops, op, force, fixed, share)
            first = one.solve(u, u, values(t + GAMMA * share * op.dt))
            return one.solve(u + (1 - GAMMA) / GAMMA * (first - u), first, values(t + share * op.dt))
        except _NotConverged:
            if share * 2 ** _HALVINGS < 1:
                raise SolveError(f"the implicit step of the reaction does not converge, not even with steps {share:.2g} times as "
                                 "long: is the reaction smooth, and is the state within its range?") from None
        return advance(advance(u, t, share / 2), t + 0.5 * share * op.dt, share / 2)

    return advance(u, t, 1.0)


@dataclass(frozen=True, eq=False)
class _Stages:
    """The two stages of a step of length share * dt: one equation with two right-hand sides."""

    ops: Operators
    op: Assembled
    force: Tensor | None
    fixed: Tensor | None
    share: float

    @property
    def a(self) -> float:
        return GAMMA * self.share * self.op.dt

    def residual(self, U: Tensor, b: Tensor) -> Tensor:
        """M (U - b) - a [-K U + S r(U) + force], zero at Dirichlet rows."""
        linear = self.op.right_hand_side(U, self.force) * (GAMMA * self.share)
        res = product(self.ops.mass, U - b) - linear - self.a * self.ops.gathered(self.ops.rates(U))
        return res if self.fixed is None else res.masked_fill(self.fixed.T, 0.0)

    def put(self, U: Tensor, w: Tensor | None) -> Tensor:
        return U if self.fixed is None or w is None else torch.where(self.fixed.T, w, U)

    def solve(self, b: Tensor, guess: Tensor, w: Tensor | None) -> Tensor:
        """The stage U with U = w at Dirichlet rows: Newton, then one more correction that carries the gradients."""
        with torch.no_grad():
            U, system = self.newton(b, guess, w)
        if not torch.is_grad_enabled():
            return U
        res = self.residual(self.put(U, w), b)
        if not res.requires_grad:
            return U
        return self.put(U - _Solve.apply(system, res), w)

    def newton(self, b: Tensor, guess: Tensor, w: Tensor | None) -> tuple[Tensor, _System]:
        U = self.put(guess, w)
        size = torch.maximum(U.abs(), b.abs()).amax((0, 1))  # [F]
        size = torch.maximum(size, _FAINT * size.max()).clamp(min=torch.finfo(U.dtype).tiny)  # fields may begin at zero
        for _ in range(_NEWTON):
            system = _System(self, U, size)
            step = system.solve(self.residual(U, b), 1e-4)
            U = U - step
            size = torch.maximum(size, U.abs().amax((0, 1)))
            change = float((step.abs().amax((0, 1)) / size).max())
            if change <= _CLOSE[U.dtype]:
                return U, system
            if not change < 1e6:
                break
        raise _NotConverged


class _System:
    """(M + a K - a S J) x = y at a state, and its transpose; rows and columns of Dirichlet nodes are those of the identity."""

    def __init__(self, stages: _Stages, U: Tensor, size: Tensor) -> None:
        ops, op, self.a, self.size = stages.ops, stages.op, stages.a, size
        self.mass = EdgeMatrix(ops.mass.pattern, ops.mass.values.detach())
        self.plain = self.mass if ops.plain is None else EdgeMatrix(ops.plain.pattern, ops.plain.values.detach())
        self.linear = self.mass - EdgeMatrix(op.explicit.pattern, op.explicit.values.detach()) * (GAMMA * stages.share)
        assert ops.reaction is not None
        self.slope = slopes(ops.reaction, U)
        self.excess = None if ops.reaction_excess is None else slopes(ops.reaction_excess, U)
        self.free = None if stages.fixed is None else (~stages.fixed).to(U.dtype).T
        blocks = torch.diag_embed(self.linear.diagonal.mT.expand_as(U))
        blocks = blocks - self.a * self.plain.diagonal.mT[..., None] * self.slope
        if self.excess is not None:
            blocks = blocks + self.a * self.mass.diagonal.mT[..., None] * self.excess
        inverse, bad = torch.linalg.inv_ex(blocks)
        plain = torch.diag_embed(1 / self.linear.diagonal.mT.expand_as(U))
        self.inverse = torch.where((bad == 0)[..., None, None], inverse, plain)

    def multiply(self, x: Tensor, transposed: bool = False) -> Tensor:
        x = x if self.free is None else x * self.free
        if transposed:
            y = product(self.linear.mT, x) - self.a * _nodal(self.slope.mT, product(self.plain.mT, x))
            if self.excess is not None:
                y = y + self.a * _nodal(self.excess.mT, product(self.mass.mT, x))
        else:
            y = product(self.linear, x) - self.a * product(self.plain, _nodal(self.slope, x))
            if self.excess is not None:
                y = y + self.a * product(self.mass, _nodal(self.excess, x))
        return y if self.free is None else y * self.free

    def solve(self, y: Tensor, tolerance: float, transposed: bool = False) -> Tensor:
        """BiCGStab for every trajectory by itself, of the system in which every field has size one; NaN where that is poor."""
        weight = self.size if not transposed else 1 / self.size  # of an unknown
        inverse = self.inverse.mT if transposed else self.inverse

        def scaled(y: Tensor) -> Tensor:
            out = _nodal(inverse, y) / weight
            return out if self.free is None else out * self.free

        right = scaled(y)
        size = right.square().sum((1, 2), keepdim=True).sqrt()
        best, left, _ = bicgstab(lambda x: scaled(self.multiply(x * weight, transposed)), right, tolerance * size, _LINEAR, (1, 2))
        return torch.where(left <= _POOR * size, best, torch.full_like(best, torch.nan)) * weight


def _nodal(blocks: Tensor, x: Tensor) -> Tensor:
    return (blocks @ x[..., None])[..., 0]


class _Solve(torch.autograd.Function):
    """x = A^-1 y with A held: what the implicit function theorem asks for."""

    @staticmethod
    def forward(ctx: Any, system: _System, y: Tensor) -> Tensor:  # type: ignore[override]
        ctx.system = system
        return system.solve(y, 1e-4)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        return None, ctx.system.solve(g, _ADJOINT[g.dtype], transposed=True)
