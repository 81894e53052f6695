"""Methods that apply G = A^-1, with one interface: prepare a matrix, then solve with it or with its transpose.

    lu         SciPy SuperLU, factor once (the paper's way), in float64 unless float32 is enough; on CUDA the solve runs on the host
    cholesky   cholespy (extra `cholesky`), for symmetric positive definite matrices on the CPU
    cg         conjugate gradients with an incomplete Cholesky factorisation, for the same matrices (`conjugate`)
    iterative  Chebyshev with a proven fixed count; CG or BiCGStab with an adaptive one where that would take too many
    dense      the explicit inverse, for few nodes

A is a batch of G matrices on one pattern, b is [G, n, R]. Every iterative solve checks its residual, and one that misses is an
error; direct ones, backward stable, are checked for values that are not finite, and one in float32 on a known solution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import SuperLU, splu

from dgnet.errors import InputError, SolveError
from dgnet.operators import EdgeMatrix, Pattern, kernels
from dgnet.operators.sparse import csr, outer_on_pattern
from dgnet.stepping.bounds import Bounds
from dgnet.stepping.conjugate import ConjugateGradients
from dgnet.stepping.host import FlushedToZero, OnHost, in_narrow_parts

Tensor = torch.Tensor

NAMES = ("lu", "cholesky", "cg", "iterative", "dense")
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
_SLACK = 20.0  # a verified residual may exceed the tolerance by rounding, not by more than this
# beyond this many proven iterations an adaptive Krylov method is cheaper; fused iterations cost next to nothing
MAX_FIXED = {"cpu": 80, "cuda": 3000}
# factors in float32: the largest diagonal over the mass of a node, in the plane and in space; the share of its tolerance to ask for
_STIFFEST, _MILD = {False: 300.0, True: 5.0}, 0.03
_DENSE_LIMIT = {"cpu": 4_000, "cuda": 20_000}


class Prepared(Protocol):
    """A matrix made ready. `label` says what was chosen, for tables."""

    label: str
    capturable: bool

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor: ...


class _Solve(torch.autograd.Function):
    """x = A^-1 b with the exact adjoint: A^T lambda = dl/dx, dl/db = lambda, dl/dA_ij = -lambda_i x_j on the pattern."""

    @staticmethod
    def forward(ctx: Any, prepared: Prepared, pattern: Pattern, values: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
        x = prepared.solve(b)
        ctx.prepared, ctx.pattern = prepared, pattern
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        adjoint = ctx.prepared.solve(g.contiguous(), transposed=True)
        grad_values = -outer_on_pattern(ctx.pattern, adjoint, x) if ctx.needs_input_grad[2] else None
        return None, None, grad_values, adjoint


def apply(prepared: Prepared, A: EdgeMatrix, b: Tensor) -> Tensor:
    """Differentiable solve: A with values [G, nnz] prepared by `prepare`, b [G, n, R]."""
    if not (torch.is_grad_enabled() and (A.values.requires_grad or b.requires_grad)):
        return prepared.solve(b.contiguous())
    return _Solve.apply(prepared, A.pattern, A.values, b.contiguous())


def prepare(A: EdgeMatrix, backend: str, bounds: Bounds | None = None, symmetric: bool = False,
            tolerance: float | None = None, monitor: Monitor | None = None) -> Prepared:
    """Make A (values [G, nnz]) ready for solves. `bounds` are needed by the fixed iteration only."""
    tol = tolerance or TOLERANCE[A.values.dtype]
    if backend == "lu":
        return LU(A, symmetric, tol)
    if backend == "cholesky":
        return Cholesky(A, symmetric)
    if backend == "cg":
        return ConjugateGradients(A, symmetric, tol)
    if backend == "dense":
        return Dense(A, monitor or Monitor())
    if backend == "iterative":
        monitor = monitor or Monitor()
        fused = kernels.AVAILABLE and A.values.is_cuda
        if bounds is not None and bounds.iterations(tol) <= MAX_FIXED["cuda" if fused else "cpu"]:
            return Chebyshev(A, bounds, tol, monitor)
        return Krylov(A, symmetric, tol)
    raise InputError(f"unknown backend '{backend}' (known: auto, {', '.join(NAMES)})")


# ---------------------------------------------------------------------- direct


def single_factors(pattern: Pattern, ratio: float, tolerance: float) -> bool:
    """Float32 is worth a try for a symmetric matrix on the CPU whose diagonal is `ratio` times the mass at a node."""
    return tolerance >= _MILD * TOLERANCE[torch.float32] and ratio <= _STIFFEST[pattern.cell_slots.shape[-1] in (4, 10)]


class LU(OnHost):
    """SuperLU, one factorisation of the block-diagonal batch, in float64 unless float32 is enough.

    That is for a symmetric matrix on the CPU that is not stiff, where the tolerance is about that of float32; solves are up to a
    quarter quicker. The one for x = 1 has to be right to half that tolerance, or the factorisation is made anew in float64.
    """

    label = "lu"

    def __init__(self, A: EdgeMatrix, symmetric: bool, tolerance: float) -> None:
        self.symmetric = symmetric
        rows, factor = A.to_scipy(), None
        if symmetric and A.values.device.type == "cpu" and single_factors(A.pattern, 0.0, tolerance):
            mass = rows @ np.ones(rows.shape[1], rows.dtype)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = rows.diagonal() / mass
            if ratio.min() > 0 and single_factors(A.pattern, float(ratio.max()), tolerance):
                factor = self._in_single(rows, mass)
        self.dtype = np.dtype(np.float64 if factor is None else np.float32)
        self.factor: SuperLU = factor or self._factorised(rows)

    def _factorised(self, rows: csr_array) -> SuperLU:
        matrix = csc_array((rows.data.astype(self.dtype, copy=False), rows.indices, rows.indptr), shape=rows.shape)  # of A^T
        # a symmetric matrix needs no pivoting, and where rows are this short so are the best panels
        options: dict[str, Any] = dict(diag_pivot_thresh=0.0, options=dict(SymmetricMode=True)) if self.symmetric else {}
        try:
            return splu(matrix if self.symmetric else matrix.T.tocsc(), permc_spec="MMD_AT_PLUS_A", relax=4, panel_size=4,
                        **options)
        except RuntimeError as error:
            raise SolveError(f"the system matrix cannot be factorised: {error}") from error

    def _in_single(self, rows: csr_array, mass: np.ndarray) -> SuperLU | None:
        """None where A^-1 `mass` is not 1; `mass` is A 1, at each node about the mass there."""
        self.dtype = np.dtype(np.float32)
        try:
            with FlushedToZero(True):
                factor = self._factorised(rows)
                off = factor.solve(mass.astype(np.float32, copy=False)) - 1
        except SolveError:  # singular in float32
            return None
        return factor if float(np.sqrt(np.mean(off * off))) <= 0.5 * TOLERANCE[torch.float32] else None

    def _solved(self, b: np.ndarray, trans: str) -> np.ndarray:
        with FlushedToZero(self.dtype == np.float32):
            return self.factor.solve(b, trans)

    def array(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        # conversions stay in NumPy: torch's threads and those of the factorisation's BLAS get in each other's way;
        # where both solves are the same, the transposed one is quicker for one column (by a sixth) and slower for many
        swapped = b.size == len(b) if self.symmetric else transposed
        x = in_narrow_parts(partial(self._solved, trans="T" if swapped else "N"), b.astype(self.dtype, copy=False))
        if not math.isfinite(np.add.reduce(x, axis=None)) and not np.isfinite(x).all():  # a sum is quicker, but may overflow
            raise SolveError("the direct solve gave values that are not finite")
        return np.ascontiguousarray(x, dtype=b.dtype)


class Cholesky(OnHost):
    """cholespy's sparse Cholesky factorisation, double precision."""

    label = "cholesky"

    def __init__(self, A: EdgeMatrix, symmetric: bool) -> None:
        try:
            from cholespy import CholeskySolverD, MatrixType
        except ImportError as error:
            raise InputError("the backend 'cholesky' needs an extra: pip install 'dgnet[cholesky]'") from error
        if not symmetric:
            raise InputError("the backend 'cholesky' needs a symmetric matrix; use lu or iterative with advection")
        rows = A.to_scipy()
        self.factor = CholeskySolverD(rows.shape[0], rows.indptr, rows.indices, rows.data.astype(np.float64), MatrixType.CSR)

    def array(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        x = np.empty(b.shape)
        right = np.ascontiguousarray(b, dtype=np.float64).reshape(len(b), -1)
        width = 128  # the library's limit on simultaneous right-hand sides
        for start in range(0, right.shape[1], width):
            part = np.ascontiguousarray(right[:, start:start + width])
            out = np.empty_like(part)
            self.factor.solve(part, out)
            x.reshape(right.shape)[:, start:start + width] = out
        return x.astype(b.dtype, copy=False)


class Dense:
    """The explicit inverse [G, n, n]. The only place where an n x n array exists."""

    capturable = True
    label = "dense"

    def __init__(self, A: EdgeMatrix, monitor: Monitor) -> None:
        self.monitor = monitor
        n, device = A.pattern.n, A.values.device
        limit = _DENSE_LIMIT[device.type]
        if n > limit:
            raise InputError(f"the dense backend takes at most {limit} nodes on this device, the problem has {n}")
        values = A.values.detach()
        full = values.new_zeros((values.shape[0], n, n), dtype=torch.float64)
        full[:, A.pattern.row.long(), A.pattern.col.long()] = values.double()
        try:
            self.inverse = torch.linalg.inv(full).to(values.dtype)
        except RuntimeError as error:
            raise SolveError(f"the system matrix cannot be inverted: {str(error).splitlines()[0]}") from error

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        x = (self.inverse.mT if transposed else self.inverse) @ b
        self.monitor.record(x.abs().amax() * 0.0, 1.0)  # zero, unless something is not finite
        return x


# ---------------------------------------------------------------------- iterative


class ConjugateOrLU(OnHost):
    """`cg` as `auto` takes it: where it fails (a matrix that is not positive definite, no convergence), LU from then on."""

    def __init__(self, A: EdgeMatrix, tolerance: float) -> None:
        self.matrix, self.tolerance = A, tolerance
        self.inner: OnHost
        try:
            self.inner = ConjugateGradients(A, True, tolerance)
            self.label = self.inner.label
        except SolveError:
            self._factorise()

    def _factorise(self) -> None:
        self.inner = LU(self.matrix, False, self.tolerance)  # which pivots: nothing is known of this matrix any more
        self.label = self.inner.label

    def array(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        if isinstance(self.inner, LU):
            return self.inner.array(b, transposed)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # the residual tells
                return self.inner.array(b, transposed)
        except SolveError:
            if not np.isfinite(b).all():
                raise
            self._factorise()
            return self.inner.array(b, transposed)


@dataclass
class Monitor:
    """The worst residual seen, kept on the device so that checking does not stall it."""

    deferred: bool = False
    worst: dict[torch.device, Tensor] = field(default_factory=dict)

    def record(self, value: Tensor, limit: float) -> None:
        excess = value / limit
        held = self.worst.get(value.device)
        if held is None:
            self.worst[value.device] = excess.clone()
        else:
            torch.maximum(held, excess, out=held)
        if not self.deferred and not (value.is_cuda and torch.cuda.is_current_stream_capturing()):
            self.check()

    def check(self) -> None:
        for excess in self.worst.values():
            worst = float(excess)
            excess.zero_()
            if not worst <= 1.0:  # NaN must not pass
                raise SolveError("a solve gave values that are not finite" if math.isnan(worst) else
                                 f"the iterative solve missed its tolerance: residual {worst:.2g} times the allowed one")


class Chebyshev:
    """A fixed number of iterations, proven enough by `Bounds`; no inner products, so it runs inside a CUDA graph.

    Where the matrix is so stiff that float32 cannot hold the tolerance, the fused version works in cycles: each reduces the
    residual by what float32 can, and the next one starts from the residual taken in float64.
    """

    capturable = True

    def __init__(self, A: EdgeMatrix, bounds: Bounds, tolerance: float, monitor: Monitor) -> None:
        self.pattern, self.values = A.pattern, A.values.detach()
        self.monitor, self.limit = monitor, _SLACK * tolerance
        self.inverse_diagonal = 1 / self.values.index_select(-1, self.pattern.diagonal)
        self.fused = kernels.AVAILABLE and self.values.is_cuda
        reach = bounds.reach(self.values.dtype)
        self.cycles = 1
        if self.fused and reach > 4 * tolerance:
            self.cycles = max(2, math.ceil(math.log(tolerance) / math.log(min(0.1, 10 * reach))))
        count = bounds.iterations(tolerance ** (1 / self.cycles))
        self.coefficients = bounds.coefficients(count)
        self.label = f"chebyshev({count})" if self.cycles == 1 else f"chebyshev({self.cycles}x{count})"
        self._layouts: dict[tuple[bool, torch.dtype], Tensor] = {}

    def _layout(self, transposed: bool, dtype: torch.dtype) -> Tensor:
        """The matrix (or its transpose) as the device likes it: ELL values for the fused kernels, CSR otherwise."""
        key = (transposed, dtype)
        if key not in self._layouts:
            v = self.values.index_select(-1, self.pattern.transpose) if transposed else self.values
            self._layouts[key] = self.pattern.to_ell(v.to(dtype)) if self.fused else csr(self.pattern, v)
        return self._layouts[key]

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        return self._fused(b, transposed) if self.fused else self._plain(b, transposed)

    def _fused(self, b: Tensor, transposed: bool) -> Tensor:
        columns, w = self.pattern.ell[0], self.inverse_diagonal
        A = self._layout(transposed, b.dtype)
        x = kernels.iterate(columns, A, w, b, self.coefficients)
        if self.cycles == 1:
            self.monitor.record(kernels.residual(columns, A, w, b, x), self.limit)
            return x
        A64, wide = self._layout(transposed, torch.float64), b.double()
        total = x.double()
        for _ in range(self.cycles - 1):
            rest = wide - kernels.multiply(columns, A64, total)
            total = total + kernels.iterate(columns, A, w, rest.to(b.dtype), self.coefficients).double()
        self.monitor.record(kernels.residual(columns, A64, w.double(), wide, total), self.limit)
        return total.to(b.dtype)

    def _plain(self, b: Tensor, transposed: bool) -> Tensor:
        A = self._layout(transposed, b.dtype)
        shape = b.shape
        single = shape[-1] == 1
        b = b.reshape(-1) if single else b.reshape(-1, shape[-1])
        w = self.inverse_diagonal.reshape(-1) if single else self.inverse_diagonal.reshape(-1, 1)
        x, r = torch.zeros_like(b), b
        p = torch.empty_like(b)
        for k, (alpha, beta) in enumerate(self.coefficients):
            if k:
                p.mul_(beta).addcmul_(r, w.expand_as(r))
            else:
                torch.mul(r, w, out=p)
            x.add_(p, alpha=alpha)
            r = torch.addmv(b, A, x, alpha=-1) if single else torch.addmm(b, A, x, alpha=-1)
        size = (b * w * b).sum(0).clamp(min=torch.finfo(b.dtype).tiny)
        self.monitor.record(((r * w * r).sum(0) / size).max().sqrt(), self.limit)
        return x.view(shape)


class Krylov:
    """Jacobi-preconditioned CG (symmetric) or BiCGStab, each column to the tolerance, restarted on its true residual.

    float32 stalls where the matrix is stiff; then the correction equation is solved again with the residual taken in
    float64 (iterative refinement), which restores the tolerance.
    """

    capturable = False

    def __init__(self, A: EdgeMatrix, symmetric: bool, tolerance: float, max_iterations: int = 5000) -> None:
        self.pattern, self.values, self.symmetric = A.pattern, A.values.detach(), symmetric
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.label = "cg" if symmetric else "bicgstab"
        self.last_count = 0
        self._matrices: dict[tuple[bool, torch.dtype], Tensor] = {}

    def _matrix(self, transposed: bool, dtype: torch.dtype) -> Tensor:
        key = (transposed, dtype)
        if key not in self._matrices:
            v = self.values.index_select(-1, self.pattern.transpose) if transposed else self.values
            self._matrices[key] = csr(self.pattern, v.to(dtype))
        return self._matrices[key]

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        transposed = transposed and not self.symmetric
        A = self._matrix(transposed, b.dtype)
        A64 = self._matrix(transposed, torch.float64)
        right = b.reshape(-1, b.shape[-1])
        diagonal = self.values.index_select(-1, self.pattern.diagonal).reshape(-1, 1)
        weight = 1 / diagonal
        method = _conjugate_gradients if self.symmetric else _bicgstab
        x64 = torch.zeros_like(right, dtype=torch.float64)
        wide = right.double()
        scale = (wide * wide * weight).sum(0).sqrt().clamp(min=1e-300)
        residual, self.last_count = wide, 0
        for _ in range(6):
            part, count = method(A, (residual / scale).to(b.dtype), weight, self.tolerance, self.max_iterations)
            self.last_count += count
            x64 += part.double() * scale
            residual = wide - A64 @ x64
            reached = float(((residual * residual * weight).sum(0).sqrt() / scale).max())
            if reached <= self.tolerance:
                return x64.to(b.dtype).view(b.shape)
            if not reached < 1e6:
                break
        if reached <= _SLACK * self.tolerance:
            return x64.to(b.dtype).view(b.shape)
        raise SolveError(f"{self.label} stopped at a relative residual of {reached:.2g}, asked for {self.tolerance:.2g}")


def _conjugate_gradients(A: Tensor, b: Tensor, weight: Tensor, tolerance: float, limit: int) -> tuple[Tensor, int]:
    """Batched over columns; columns that are done keep their solution."""
    weight = weight.to(b.dtype)
    x, r = torch.zeros_like(b), b.clone()
    z = r * weight
    p, rz = z.clone(), (r * z).sum(0)
    goal = tolerance**2 * 0.25
    every = 1 if not b.is_cuda else 8
    for k in range(1, limit + 1):
        Ap = A @ p
        alpha = rz / (p * Ap).sum(0).clamp(min=1e-30)
        x.addcmul_(p, alpha.expand_as(p))
        r.addcmul_(Ap, -alpha.expand_as(p))
        z = r * weight
        new = (r * z).sum(0)
        if k % every == 0 and (not bool((new > goal).any()) or not bool(torch.isfinite(new).all())):
            break
        p = torch.addcmul(z, p, (new / rz.clamp(min=1e-38)).expand_as(p))
        rz = new
    return x, k


def _bicgstab(A: Tensor, b: Tensor, weight: Tensor, tolerance: float, limit: int) -> tuple[Tensor, int]:
    weight = weight.to(b.dtype)
    x, r = torch.zeros_like(b), b.clone()
    shadow = r.clone()
    rho = alpha = omega = b.new_ones(b.shape[1])
    v = p = torch.zeros_like(b)
    goal = tolerance**2 * 0.25

    def safe(a: Tensor) -> Tensor:
        return torch.where(a.abs() < 1e-30, torch.full_like(a, 1e-30), a)

    done = torch.zeros(b.shape[1], dtype=torch.bool, device=b.device)
    for k in range(1, limit + 1):  # noqa: B007 (returned)
        new = (shadow * r).sum(0)
        beta = (new / safe(rho)) * (alpha / safe(omega))
        p = r + beta * (p - omega * v)
        hat = weight * p
        v = A @ hat
        alpha = torch.where(done, 0.0, new / safe((shadow * v).sum(0)))
        s = r - alpha * v
        s_hat = weight * s
        t = A @ s_hat
        omega = torch.where(done, 0.0, (t * s).sum(0) / safe((t * t).sum(0)))
        x = x + alpha * hat + omega * s_hat
        r = s - omega * t
        rho = new
        size = (r * r * weight).sum(0)
        done = done | (size <= goal)
        if bool(done.all()) or not bool(torch.isfinite(size).all()):
            break
    return x, k
