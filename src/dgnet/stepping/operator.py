"""One assembled step: the matrices of a step, Dirichlet rows inside the system, and the prepared inverse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from dgnet.errors import SolveError
from dgnet.operators import EdgeMatrix
from dgnet.stepping.auto import choose, choose_symmetric, mass_ratio
from dgnet.stepping.backends import TOLERANCE, ConjugateOrLU, Monitor, Prepared, apply, prepare
from dgnet.stepping.bounds import Bounds, bounds_of, sharpened
from dgnet.stepping.fold import fold, product, unfold

Tensor = torch.Tensor

_POOR = 0.1  # a lower bound below which it is worth estimating one


@dataclass(frozen=True, eq=False)
class Elimination:
    """Dirichlet rows inside the system: `fixed` is a mask [f, n]."""

    fixed: Tensor

    def matrix(self, A: EdgeMatrix) -> EdgeMatrix:
        """A with unit rows and columns at fixed degrees of freedom."""
        p = A.pattern
        free = (~self.fixed).to(A.values.dtype)
        free_values = A.values * (free.index_select(-1, p.row) * free.index_select(-1, p.col))
        unit = torch.zeros_like(free_values).index_copy(-1, p.diagonal, (1 - free).expand(*free_values.shape[:-1], -1).contiguous())
        return EdgeMatrix(p, free_values + unit)

    def right(self, A: EdgeMatrix, b: Tensor, w: Tensor | None) -> Tensor:
        """Right-hand side [B, n, F] for boundary values w [n, F] (or [B, n, F]); None is zero."""
        fixed = self.fixed.T
        if w is None:
            return b.masked_fill(fixed, 0.0)
        w = w.expand_as(b)
        return torch.where(fixed, w, b - product(A, torch.where(fixed, w, torch.zeros_like(w))))


class Assembled:
    """What every step has: the mass (+ dt times `advanced_part`), -dt K, Dirichlet rows, and the right-hand side.

    `sums` [b, f, n] are the row sums of K, None where they are all zero; `pivot` is the degree of freedom whose value is c.
    """

    def __init__(self, M: EdgeMatrix, K: EdgeMatrix, dt: float, fixed: Tensor | None = None,
                 advanced_part: EdgeMatrix | None = None, sums: Tensor | None = None, pivot: int = 0) -> None:
        self.dt, self.pivot = dt, pivot
        self.mass = M if advanced_part is None else M + advanced_part * dt
        self.explicit = _aligned(K * -dt)
        self.sums = None if sums is None else (sums * -dt).mT  # [b, n, f]
        self.elimination = None if fixed is None else Elimination(fixed)

    def reference(self, u: Tensor) -> Tensor:
        """c [B, 1, F]. It carries no gradient: the step does not depend on it."""
        return u[:, self.pivot:self.pivot + 1].detach()

    def right_hand_side(self, u: Tensor, force: Tensor | None, moved: Tensor | None = None) -> Tensor:
        """dt (-K u + force), with the force [B, n, F] integrated already (M f + g). `moved`: -dt K (u - c), if at hand."""
        c = self.reference(u)
        right = product(self.explicit, u - c) if moved is None else moved
        if self.sums is not None:
            right = torch.addcmul(right, c, self.sums)
        return right if force is None else torch.add(right, force, alpha=self.dt)


class StepOperator(Assembled):
    """One assembled step of the theta scheme with the prepared inverse of A = M + theta dt K (+ dt times `advanced_part`)."""

    def __init__(self, M: EdgeMatrix, K: EdgeMatrix, dt: float, theta: float = 0.5, fixed: Tensor | None = None, *,
                 advanced_part: EdgeMatrix | None = None, sums: Tensor | None = None, pivot: int = 0, backend: str = "auto",
                 symmetric: bool, mass_low: float = 0.0, estimate_bounds: bool = False,
                 indefinite_part: EdgeMatrix | Callable[[], EdgeMatrix | None] | None = None, tolerance: float | None = None,
                 solves: int = 1000, monitor: Monitor | None = None, bounds: Bounds | None = None, columns: int = 1) -> None:
        super().__init__(M, K, dt, fixed, advanced_part, sums, pivot)
        self.M, self.theta = M, theta
        full = self.full = _aligned(M + K * (theta * dt) if advanced_part is None else M + K * (theta * dt) + advanced_part * dt)
        self.A = full if self.elimination is None else self.elimination.matrix(full)
        self.groups = self.A.values.shape[:2]
        self.flat = EdgeMatrix(self.A.pattern, self.A.values.reshape(-1, self.A.pattern.nnz))
        self.symmetric, self.monitor = symmetric, monitor or Monitor()
        self.tolerance = tolerance or TOLERANCE[self.A.values.dtype]
        self._mass_low = mass_low
        self._indefinite, self._estimate, self._bounds = indefinite_part, estimate_bounds, bounds
        self.backend = backend if backend != "auto" else self._fastest(columns, solves)
        self.prepared: Prepared
        if backend == "auto" and self.backend == "cg":
            self.prepared = ConjugateOrLU(self.flat, self.tolerance)
        else:
            self.prepared = prepare(self.flat, self.backend, self.bounds if self.backend == "iterative" else None, symmetric,
                                    self.tolerance, self.monitor)

    def _fastest(self, columns: int, solves: int) -> str:
        groups, pattern, dtype = self.groups[0] * self.groups[1], self.A.pattern, self.A.values.dtype
        if self.symmetric and pattern.device.type == "cpu":
            return choose_symmetric(pattern, groups, columns, mass_ratio(self.full, self.M), self.tolerance, solves,
                                    dtype.itemsize, lambda: self.bounds.within_reach(self.tolerance, dtype))
        return choose(pattern, groups, columns, self.bounds.iterations(self.tolerance), solves)

    @property
    def bounds(self) -> Bounds:
        """Bounds of the spectrum, measured when they are asked for: a factorisation does not need them."""
        if self._bounds is None:
            found = replace(self.measure_bounds(), tight=not self.symmetric)
            poor = self._estimate or (not self.symmetric and found.low < _POOR)
            self._bounds = sharpened(found, self.A) if poor and found.high < math.inf else found
        return self._bounds

    def measure_bounds(self) -> Bounds:
        e = self.elimination
        M = self.M if e is None else e.matrix(self.M)
        indefinite_part = self._indefinite() if callable(self._indefinite) else self._indefinite
        indefinite_part = None if indefinite_part is None else indefinite_part * (self.theta * self.dt)
        if indefinite_part is not None and e is not None:
            indefinite_part = e.matrix(indefinite_part) - e.matrix(indefinite_part * 0.0)
        return bounds_of(self.A, M, self._mass_low, indefinite_part, self.symmetric)

    def solve(self, right: Tensor, w: Tensor | None = None) -> Tensor:
        """A^-1 right with values w at Dirichlet rows (zero when None): [B, n, F] -> [B, n, F]."""
        if self.elimination is not None:
            right = self.elimination.right(self.full, right, w)
        b, f = self.groups
        x = self._proven(lambda: apply(self.prepared, self.flat, fold(right, b, f)))
        return unfold(x, b, f, right.shape[0], right.shape[2])

    def inverse(self, right: Tensor, transposed: bool = False) -> Tensor:
        """A^-1 right, or A^-T right, without gradients: [G, n, R] -> [G, n, R]."""
        return self._proven(lambda: self.prepared.solve(right, transposed))

    def _proven(self, solve: Callable[[], Tensor]) -> Tensor:
        try:
            return solve()
        except SolveError:
            if self.backend != "iterative" or not self.bounds.tight:
                raise
            # the count was not proven, or its bounds came from another time level: prove it for this very matrix
            self._bounds = self.measure_bounds()
            self.prepared = prepare(self.flat, self.backend, self.bounds, self.symmetric, self.tolerance, self.monitor)
            return solve()


def _aligned(A: EdgeMatrix) -> EdgeMatrix:
    return EdgeMatrix(A.pattern, A.values.contiguous())
