"""Proven bounds of the spectrum of D^-1 A, so that a fixed number of iterations is enough.

With D = diag(A) the iteration matrix is similar to B = D^-1/2 A D^-1/2. Write B = H + S with H symmetric and S skew. If

    low <= H <= high   and   ||S|| <= imag,

the field of values of B lies in the rectangle [low, high] x i[-imag, imag], hence in an ellipse around it, and Chebyshev
polynomials of that ellipse bound the residual after m iterations by 2 rate^m (symmetric) or 2 (1 + sqrt 2) rate^m
(Crouzeix and Palencia 2017), in the norm weighted with D^-1. Nothing is estimated.

With advection the ellipse around the rectangle asks for about twice the iterations that are needed, since the corners of
the rectangle are not reached. `tight` bounds take the ellipse inside it instead; their count is not proven, so a solve that
uses them relies on the check of its residual, and falls back to the proven count or to a Krylov method when it misses. Where
next to nothing is proven from below (a learned mass with a flow), `sharpened` estimates it, under the same reservation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log, sqrt

import torch

from dgnet.operators import EdgeMatrix, Pattern
from dgnet.operators.sparse import csr

Tensor = torch.Tensor

NEVER = 10**9  # iterations where none are proven

@dataclass(frozen=True)
class Bounds:
    """low <= sym(B) <= high, ||skew(B)|| <= imag."""

    low: float
    high: float
    imag: float = 0.0
    tight: bool = False

    @property
    def usable(self) -> bool:
        return self.low > 0 and max(self.high, self.imag) < inf

    @property
    def centre(self) -> float:
        return 0.5 * (self.high + self.low)

    @property
    def axes(self) -> tuple[float, float]:
        """Semi-axes of an ellipse around the rectangle with the smallest sum (the sum sets the rate)."""
        half = 0.5 * (self.high - self.low)
        if self.imag == 0.0:
            return half, 0.0
        if half == 0.0 or self.tight:
            return half, self.imag
        real = half * sqrt(1 + (self.imag / half) ** (2 / 3))
        if real < self.centre:
            return real, self.imag * sqrt(1 + (half / self.imag) ** (2 / 3))
        # the best ellipse would contain 0: take the widest one that does not, if the rectangle allows it
        real = 0.5 * (half + self.centre)
        return real, self.imag / sqrt(1 - (half / real) ** 2)

    @property
    def foci_squared(self) -> float:
        a, b = self.axes
        return a * a - b * b

    @property
    def rate(self) -> float:
        """Guaranteed reduction of the residual per iteration."""
        if not self.usable:
            return 1.0
        a, b = self.axes
        return (a + b) / (self.centre + sqrt(self.centre**2 - self.foci_squared))

    def iterations(self, tolerance: float) -> int:
        """Iterations that guarantee the relative residual `tolerance`."""
        if not self.rate < 1.0:  # nor where bounds have overflown
            return NEVER
        if self.rate < 1e-12:
            return 1
        constant = 2.0 if self.imag == 0.0 else 2.0 * (1 + sqrt(2.0))
        return max(1, ceil(log(tolerance / constant) / log(self.rate)))

    def reach(self, dtype: torch.dtype) -> float:
        """The relative residual that rounding leaves."""
        return torch.finfo(dtype).eps * self.high / self.low

    def within_reach(self, tolerance: float, dtype: torch.dtype) -> int:
        """`iterations`, without end where rounding would spoil them."""
        return self.iterations(tolerance) if self.usable and self.reach(dtype) <= 4 * tolerance else NEVER

    def coefficients(self, count: int) -> list[tuple[float, float]]:
        """(alpha_k, beta_k) of the Chebyshev iteration p = z + beta p, x = x + alpha p."""
        c2, d = self.foci_squared, self.centre
        alpha, beta = 1.0 / d, 0.0
        out = [(alpha, beta)]
        for k in range(1, count):
            beta = (0.5 if k == 1 else 0.25) * c2 * alpha * alpha
            alpha = 1.0 / (d - beta / alpha)
            out.append((alpha, beta))
        return out

    def widened(self, factor: float, least: float = 0.05) -> Bounds:
        """With room for matrices that are not known yet: every distance from 1 is larger by this factor, and by 0.02."""
        low, high = 1 - factor * (1 - self.low) - 0.02, 1 + factor * (self.high - 1) + 0.02
        return Bounds(max(least, low), high, factor * self.imag + 0.02, True)

    def union(self, other: Bounds) -> Bounds:
        return Bounds(min(self.low, other.low), max(self.high, other.high), max(self.imag, other.imag),
                      self.tight and other.tight)


def bounds_of(A: EdgeMatrix, M: EdgeMatrix | None = None, mass_low: float = 0.0,
              indefinite_part: EdgeMatrix | None = None, symmetric: bool = False) -> Bounds:
    """Bounds for A = M + P + R: Gershgorin discs everywhere, sharpened below by the mass matrix.

    `mass_low` bounds diag(M)^-1 M from below, P is positive semidefinite (diffusion, decay, convection), and `indefinite_part` is
    R, of which nothing is assumed (advection, an unstructured learned part). `symmetric` promises that R = 0.
    """
    pattern = A.pattern
    values = A.values.detach().double()
    diagonal = values.index_select(-1, pattern.diagonal)
    if not bool((diagonal > 0).all()):
        return Bounds(0.0, inf, inf)
    root = diagonal.sqrt()
    weight = 1 / (root.index_select(-1, pattern.row) * root.index_select(-1, pattern.col))

    def parts(v: Tensor) -> tuple[Tensor, Tensor]:
        scaled = v.detach().double() * weight
        if symmetric:
            return scaled, scaled
        mirrored = scaled.index_select(-1, pattern.transpose)
        return 0.5 * (scaled + mirrored), 0.5 * (scaled - mirrored)

    sym, skew = parts(values)
    imag = 0.0 if symmetric else float(norm_bound(pattern, skew))
    spread = float(norm_bound(pattern, sym.index_fill(-1, pattern.diagonal, 0.0)))
    low = 1.0 - spread
    if M is not None and mass_low > 0:
        share = float((M.values.detach().double().index_select(-1, pattern.diagonal) / diagonal).min())
        unsigned = 0.0 if symmetric or indefinite_part is None else float(norm_bound(pattern, parts(indefinite_part.values)[0]))
        low = max(low, mass_low * share - unsigned)
    return Bounds(low, 1.0 + spread, imag)


def sharpened(bounds: Bounds, A: EdgeMatrix) -> Bounds:
    """Tight bounds whose lower end is estimated instead of proven: 0.7 of what some Lanczos steps find."""
    pattern, values = A.pattern, A.values.detach().double()
    root = values.index_select(-1, pattern.diagonal).sqrt()
    scaled = values / (root.index_select(-1, pattern.row) * root.index_select(-1, pattern.col))
    sym = 0.5 * (scaled + scaled.index_select(-1, pattern.transpose))
    return replace(bounds, low=max(bounds.low, 0.7 * _lowest(pattern, sym)), tight=True)


def _lowest(pattern: Pattern, entries: Tensor, steps: int = 24) -> float:
    """The smallest Ritz value of a batch of symmetric matrices, an estimate of their smallest eigenvalue from above."""
    H = csr(pattern, entries.reshape(-1, pattern.nnz))
    n = H.shape[0]
    start = torch.randn(n, dtype=entries.dtype, generator=torch.Generator().manual_seed(0)).to(entries.device)
    Q = start[None] / start.norm()
    for _ in range(min(steps, n) - 1):
        w = torch.mv(H, Q[-1])
        for _ in range(2):  # twice is enough
            w = w - Q.T @ (Q @ w)
        size = w.norm()
        if float(size) < 1e-10:
            break
        Q = torch.cat([Q, w[None] / size])
    small = Q @ torch.stack([torch.mv(H, q) for q in Q]).T
    return float(torch.linalg.eigvalsh(0.5 * (small + small.T))[0])


def norm_bound(pattern: Pattern, entries: Tensor) -> Tensor:
    """Upper bound of the 2-norm of a (skew-)symmetric matrix: its largest absolute row sum, sharpened.

    For positive weights w, ||X|| <= max_i (|X| w)_i / w_i for symmetric |X| (Perron-Frobenius); w after some products is
    close to the Perron vector.
    """
    size = csr(pattern, entries.abs().reshape(-1, pattern.nnz))
    w = torch.ones(size.shape[0], dtype=entries.dtype, device=entries.device)
    best = torch.full((), inf, dtype=entries.dtype, device=entries.device)
    for _ in range(3):
        new = torch.mv(size, w)
        best = torch.minimum(best, (new / w).amax())
        w = new + 1e-3 * new.amax() + 1e-300
    return best
