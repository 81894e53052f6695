"""Linear systems of the reference solver: one symmetric positive definite matrix, many right-hand sides, checked.

Defect correction from a good guess: the residual is always formed in full precision, and the solve is repeated until
every column meets the tolerance. Corrections come from a factorisation (CPU) or from Chebyshev iteration (CUDA, or
meshes too large to factor), in float32 where memory traffic is the cost.
"""

from __future__ import annotations

from math import acosh, ceil

import numpy as np
import torch
from scipy.linalg import eigvalsh_tridiagonal
from scipy.sparse import csc_matrix, csr_matrix, diags
from scipy.sparse.linalg import splu

from dgnet.errors import SolveError
from dgnet_paper.reference.assembly import to_torch

Tensor = torch.Tensor

FACTOR_LIMIT = 150_000  # unknowns; above it a factorisation costs more than all iterations of a usual run
_SINGLE_LIMIT = 1 << 20  # entries of [M, B] from which float32 corrections pay: below, launches cost more than bytes
_CYCLES = 8


class SPDSolver:
    """x with A x = b on the free rows and x = guess on the fixed ones; A [M, M], b, guess, x [M, B].

    Converged means |r| <= tolerance * (|b|^2 + |x|^2)^(1/2) for each column, in the norms of D^-1, D^-1 and D = diag A.
    """

    def __init__(self, matrix: csr_matrix, fixed: np.ndarray, *, device: torch.device, dtype: torch.dtype, columns: int,
                 tolerance: float = 1e-10, factor: bool | None = None, single: bool | None = None) -> None:
        self.tolerance = tolerance
        self.matrix = to_torch(matrix, device, dtype)
        diagonal = matrix.diagonal()
        free = (~fixed).astype(float)
        self.inverse = torch.as_tensor(free / diagonal, device=device, dtype=dtype)[:, None]
        self.diagonal = torch.as_tensor(free * diagonal, device=device, dtype=dtype)[:, None]
        self.masked = bool(fixed.any())
        # fixed rows and columns become those of the identity: principal submatrices keep the spectrum's bounds
        inner = diags(free) @ matrix @ diags(free) + diags((1 - free) * diagonal)
        factor = device.type == "cpu" and matrix.shape[0] <= FACTOR_LIMIT if factor is None else factor
        self.lu = splu(csc_matrix(inner), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0,
                       options={"SymmetricMode": True}) if factor else None
        if self.lu is None:
            scaled = diags(diagonal**-0.5) @ inner @ diags(diagonal**-0.5)
            low, high = spectrum(csr_matrix(scaled), free * diagonal**0.5)
            self.centre, self.radius = 0.5 * (high + low), 0.5 * (high - low)
            single = device.type == "cuda" and matrix.shape[0] * columns >= _SINGLE_LIMIT if single is None else single
            self.inner_dtype = torch.float32 if single else dtype
            self.scaled = to_torch(scaled, device, self.inner_dtype)
            self.scale = self.inverse.sqrt()

    def __call__(self, b: Tensor, guess: Tensor) -> Tensor:
        x = guess
        weight = None
        for _ in range(_CYCLES):
            r = torch.addmm(b, self.matrix, x, beta=1, alpha=-1)
            if weight is None:
                weight = (b.square().mul_(self.inverse).sum(0) + x.square().mul_(self.diagonal).sum(0))
                weight.clamp_(min=torch.finfo(b.dtype).tiny)
            error = float((r.square().mul_(self.inverse).sum(0) / weight).max().sqrt())
            if error <= self.tolerance:
                return x
            if not np.isfinite(error):
                raise SolveError("the right-hand side of a linear solve is not finite: the time step is too long for "
                                 "the explicit terms (advection, reaction); use more substeps")
            x = x + self._correction(r, 0.3 * self.tolerance / error)
        raise SolveError(f"a linear solve stopped at a relative residual of {error:.1e}, above {self.tolerance:.1e}")

    def _correction(self, r: Tensor, reduction: float) -> Tensor:
        if self.lu is not None:
            if self.masked:
                r = r * (self.inverse > 0)
            return torch.as_tensor(self.lu.solve(r.cpu().numpy()), dtype=r.dtype, device=r.device)
        single = self.inner_dtype == torch.float32 and r.dtype == torch.float64
        # each column scaled to unit size, so that float32 neither overflows nor loses small columns
        size = (r.square().mul_(self.inverse).sum(0)).sqrt_().clamp_(min=torch.finfo(r.dtype).tiny)
        scaled = (r * self.scale / size).to(self.inner_dtype)
        x = chebyshev(self.scaled, scaled, self.centre, self.radius, max(reduction, 1e-6 if single else 1e-14))
        return x.to(r.dtype).mul_(self.scale).mul_(size)


def chebyshev(matrix: Tensor, r: Tensor, centre: float, radius: float, reduction: float) -> Tensor:
    """Chebyshev iteration for matrix x = r from zero; spectrum in centre +- radius; overwrites r.

    The count follows from |error| <= |error_0| / T_k(centre/radius), T_k the Chebyshev polynomial. No inner products,
    so nothing waits for the device, and all columns share the coefficients.
    """
    count = max(1, ceil(acosh(max(1.0, 1.0 / reduction)) / acosh(centre / radius)))
    sigma = centre / radius
    rho = 1.0 / sigma
    d = r.clone()  # the update is scale * d: rescaling by a number instead of by a pass over memory
    scale = 1.0 / centre
    x = d * scale
    for _ in range(count - 1):
        r = torch.addmm(r, matrix, d, beta=1, alpha=-scale, out=r)
        new = 1.0 / (2.0 * sigma - rho)
        scale *= new * rho
        d.add_(r, alpha=2.0 * new / (radius * scale))
        rho = new
        x.add_(d, alpha=scale)
    return x


def spectrum(matrix: csr_matrix, low_vector: np.ndarray, steps: int = 40) -> tuple[float, float]:
    """Bounds of the spectrum of a symmetric positive definite matrix: Lanczos' Ritz values with some room.

    `low_vector` lies near the low end (constants, for M + dt K), noise reaches the high end. A bound missed by a little
    costs iterations, not accuracy: the residual decides.
    """
    noise = np.random.default_rng(0).standard_normal(len(low_vector))
    q = low_vector / np.linalg.norm(low_vector) + noise / np.linalg.norm(noise)
    q /= np.linalg.norm(q)
    before, alpha, beta = np.zeros_like(q), [], [0.0]
    for _ in range(min(steps, len(q))):
        w = matrix @ q - beta[-1] * before
        alpha.append(float(q @ w))
        w -= alpha[-1] * q
        beta.append(float(np.linalg.norm(w)))
        if beta[-1] < 1e-10:
            break
        before, q = q, w / beta[-1]
    values = eigvalsh_tridiagonal(np.array(alpha), np.array(beta[1:len(alpha)]))
    if values[0] <= 0:
        raise SolveError(f"the matrix is not positive definite: it has an eigenvalue near {values[0]:.1e}")
    return 0.85 * float(values[0]), 1.05 * float(values[-1])
