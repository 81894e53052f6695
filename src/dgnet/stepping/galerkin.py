"""Steps by discontinuous Galerkin in time, dG(k): L-stable, of order 2k + 1 at the ends of the steps, exact for sources given by
their moments.

In a step, s = (time - t) / dt from 0 to 1, u is a polynomial of degree k that may jump at s = 0. With the increment from the value
at t in Legendre polynomials, u = u(t) + sum_i V_i P_i(2 s - 1), and the right-hand side of the step by its moments R_i,

    sum_j T_ij M V_j + dt K V_i / (2 i + 1) = R_i,      R_i = dt * integral over s of P_i (f - K u(t))
    T_ij = (-1)^(i + j) + integral over s of P_i P_j'

The new value is u(t) + sum_i V_i: without sources the approximation (k, k + 1) of Pade to exp(-dt K / M), which vanishes where
dt K / M is large. Eigenvalues l of Y^-1 T, Y = diag(1 / (2 i + 1)), take the system apart:

    (l M + dt K) c = sum_i g_i R_i,      V_i = sum over all l of q_i c

They are real or pairs of conjugates, of which one is solved for: dG(1) is one complex solve with l = 2 + i sqrt(2), and with q
scaled such that sum q = 1 that is g_0 = 1/2 + i sqrt(2), g_1 = 3/2 - 3 i / sqrt(2).

Dirichlet values go linearly from w(t) to w(t + dt): with v = u - w there, moment 0 of what drives v has -M (w(t + dt) - w(t))
besides K's share, as it has it in the exact system, and no condition is met at ends of steps only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from dgnet.operators import EdgeMatrix
from dgnet.stepping.backends import TOLERANCE, Monitor, Prepared, Rotated, apply, prepare
from dgnet.stepping.fold import fold, product, unfold
from dgnet.stepping.operator import Assembled

Tensor = torch.Tensor


@dataclass(frozen=True)
class Pole:
    """An eigenvalue l of dG(k), or a pair of conjugates by the one above the real line."""

    shift: complex
    gather: tuple[complex, ...]  # g_i
    spread: tuple[complex, ...]  # q_i, of sum 1
    real: bool


@cache
def poles(degree: int) -> tuple[Pole, ...]:
    """The eigenvalues of dG(degree)."""
    count = degree + 1
    signs = (-1.0) ** np.arange(count)
    T = np.outer(signs, signs)
    for i in range(count):  # the integral of P_i P_j' over s is 2 where i < j and i + j is odd
        T[i, i + 1::2] += 2.0
    weights = 2.0 * np.arange(count) + 1.0
    shifts, Q = np.linalg.eig(weights[:, None] * T)
    Q = Q / Q.sum(0)
    G = np.linalg.inv(Q) * weights
    kept = [k for k in np.argsort(shifts.real) if shifts[k].imag > -1e-9]
    return tuple(Pole(complex(shifts[k]), tuple(G[k].tolist()), tuple(Q[:, k].tolist()), abs(shifts[k].imag) < 1e-9) for k in kept)


@dataclass(frozen=True, eq=False)
class Walls:
    """How Dirichlet values move in a step: by how much in all, and the moments of how far they are; zero elsewhere, each [n, F]."""

    change: Tensor
    moved: Sequence[Tensor]

    @classmethod
    def straight(cls, change: Tensor) -> Walls:
        return cls(change, (0.5 * change, change / 6))

    def moments(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """Of how far they are, and of their rate: the integrals of P_i z and P_i z' = [P_i z] - P_i' z."""
        z = [*self.moved, *[torch.zeros_like(self.change)] * (count - len(self.moved))]
        slopes = [torch.zeros_like(self.change), *(2 * (2 * i + 1) * x for i, x in enumerate(z))]  # P_i' = 2 (2 i - 1) P_i-1 + ...
        return [(z[i], self.change - slopes[i] - (slopes[i - 2] if i > 2 else 0.0)) for i in range(count)]


@cache
def radau(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points from 0 to 1, the end among them, their weights, and the Legendre polynomials there [count, points]: exact to the
    degree 2 count - 2."""
    P = np.polynomial.legendre.Legendre.basis
    x = np.sort((P(count) - P(count - 1)).roots().real)
    values = np.polynomial.legendre.legvander(x, count - 1).T
    right = np.zeros(count)
    right[0] = 1.0
    return 0.5 * (1 + x), np.linalg.solve(values, right), values


class GalerkinOperator(Assembled):
    """One assembled step of dG(degree), with a prepared inverse for each of its poles. Solves are in double precision.

    `middle`: solves with M + dt/2 K, if they are at hand and steps of dG(1) so few that a factorisation of their own does not pay.
    """

    def __init__(self, M: EdgeMatrix, K: EdgeMatrix, dt: float, degree: int, fixed: Tensor | None = None, *,
                 advanced_part: EdgeMatrix | None = None, sums: Tensor | None = None, pivot: int = 0, backend: str,
                 symmetric: bool, tolerance: float | None = None, monitor: Monitor | None = None,
                 middle: Prepared | None = None) -> None:
        super().__init__(M, K, dt, fixed, advanced_part, sums, pivot)
        self.poles = poles(degree)
        self.symmetric, self.tolerance, self.monitor = symmetric, tolerance, monitor
        self.backend = "lu" if backend == "cholesky" else "krylov" if backend in ("cg", "iterative") else backend
        mass, moved = self.mass.values.double(), self.explicit.values.double()
        self.systems: list[EdgeMatrix] = []
        for pole in self.poles:
            A = EdgeMatrix(M.pattern, mass * (pole.shift.real if pole.real else pole.shift) - moved)
            A = A if self.elimination is None else self.elimination.matrix(A)
            self.groups = A.values.shape[:2]
            self.systems.append(EdgeMatrix(A.pattern, A.values.reshape(-1, A.pattern.nnz).contiguous()))
        self.prepared: list[Prepared] = [
            Rotated(A, middle, symmetric, tolerance or TOLERANCE[torch.float64]) if middle is not None
            else prepare(A, self.backend, None, symmetric, tolerance, monitor) for A in self.systems]

    def increments(self, moments: Sequence[Tensor | None], walls: Walls | None = None) -> list[Tensor]:
        """V_i [B, n, F] of the moments R_i, None for zero, where Dirichlet values move as `walls` say."""
        right = [*moments, *[None] * (len(self.poles[0].gather) - len(moments))]
        assert right[0] is not None
        like, dtype = right[0], right[0].dtype
        for i, (moved, gained) in enumerate(() if walls is None else walls.moments(len(right))):
            more = product(self.explicit, moved.expand_as(like)) - product(self.mass, gained.expand_as(like))
            before = right[i]
            right[i] = more if before is None else before + more
        if self.elimination is not None:
            right = [None if r is None else r.masked_fill(self.elimination.fixed.T, 0.0) for r in right]
        found: list[Tensor] = []
        for pole, A, prepared in zip(self.poles, self.systems, self.prepared):
            b = sum(r.double() * (g.real if pole.real else g) for r, g in zip(right, pole.gather) if r is not None)
            assert isinstance(b, Tensor)
            (rows, columns), (batch, _, fields) = self.groups, b.shape
            c = unfold(apply(prepared, A, fold(b, rows, columns)), rows, columns, batch, fields)
            share = [c * q.real if pole.real else 2 * (c.real * q.real - c.imag * q.imag) for q in pole.spread]
            found = share if not found else [x + y for x, y in zip(found, share)]
        return [x.to(dtype) for x in found]
