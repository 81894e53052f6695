"""Methods that apply G = A^-1, with one interface: prepare a matrix, then solve with it or with its transpose.

    lu         SciPy SuperLU, factor once (the paper's way), in float64; on CUDA the solve runs on the host
    cholesky   cholespy (extra `cholesky`), for symmetric positive definite matrices on the CPU
    cg         conjugate gradients with Jacobi's preconditioner, for the same matrices; starts from the last solutions
    iterative  Chebyshev with a proven fixed count; CG or BiCGStab with an adaptive one where that would take too many
    dense      the explicit inverse, for few nodes

A is a batch of G matrices on one pattern, b is [G, n, R]. Every iterative solve checks its residual, and one that misses is an
error; direct ones, backward stable, are checked for values that are not finite.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from scipy.sparse import csc_array
from scipy.sparse.linalg import SuperLU, splu

from dgnet.errors import InputError, SolveError
from dgnet.operators import EdgeMatrix, Pattern, kernels
from dgnet.operators.sparse import csr, outer_on_pattern
from dgnet.stepping.bounds import Bounds
from dgnet.stepping.host import OnHost, in_narrow_parts

Tensor = torch.Tensor

NAMES = ("lu", "cholesky", "cg", "iterative", "dense")
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12, torch.complex128: 1e-12}
_SLACK = 20.0  # a verified residual may exceed the tolerance by rounding, not by more than this
# beyond this many proven iterations an adaptive Krylov method is cheaper; fused iterations cost next to nothing
MAX_FIXED = {"cpu": 80, "cuda": 3000}
_RECENT = 6  # solutions from which a solve starts
_SHORT = 6  # iterations from zero up to which that does not pay
_REMEMBERED = 650_000  # numbers of a right-hand side for which solutions are kept: 60 MB of them
_CACHED = 100_000  # numbers of the columns that are solved for together: more leave the cache
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
        adjoint = ctx.prepared.solve(g.conj().resolve_conj().contiguous(), transposed=True).conj().resolve_conj()
        grad_values = None
        if ctx.needs_input_grad[2]:
            grad_values = -(_outer_complex if x.is_complex() else outer_on_pattern)(ctx.pattern, adjoint, x)
        return None, None, grad_values, adjoint


def _outer_complex(pattern: Pattern, left: Tensor, right: Tensor) -> Tensor:
    """sum_R left_i conj(right_j) at every entry of the pattern."""
    a, b, c, d = left.real, left.imag, right.real, right.imag
    parts = [outer_on_pattern(pattern, torch.cat(x, -1), torch.cat(y, -1)) for x, y in (((a, b), (c, d)), ((b, -a), (c, d)))]
    return torch.complex(*parts)


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
        return LU(A, symmetric)
    if backend == "cholesky":
        return Cholesky(A, symmetric)
    if backend == "cg":
        if not symmetric:
            raise InputError("the backend 'cg' needs a symmetric matrix; use lu or iterative with advection")
        return Krylov(A, True, tol, remember=True)
    if backend == "dense":
        return Dense(A, monitor or Monitor())
    if backend == "krylov":
        return Shifted(A, tol)
    if backend == "iterative":
        monitor = monitor or Monitor()
        fused = kernels.AVAILABLE and A.values.is_cuda
        if bounds is not None and bounds.iterations(tol) <= MAX_FIXED["cuda" if fused else "cpu"]:
            return Chebyshev(A, bounds, tol, monitor)
        return Krylov(A, symmetric, tol)
    raise InputError(f"unknown backend '{backend}' (known: auto, {', '.join(NAMES)})")


# ---------------------------------------------------------------------- direct


class LU(OnHost):
    """SuperLU, one factorisation of the block-diagonal batch, in double precision, real or complex."""

    label = "lu"

    def __init__(self, A: EdgeMatrix, symmetric: bool) -> None:
        self.symmetric = symmetric
        rows = A.to_scipy()
        self.kind = np.result_type(rows.data.dtype, np.float64)
        matrix = csc_array((rows.data.astype(self.kind, copy=False), rows.indices, rows.indptr), shape=rows.shape)  # of A^T
        # a symmetric matrix needs no pivoting, and where rows are this short so are the best panels
        options: dict[str, Any] = dict(diag_pivot_thresh=0.0, options=dict(SymmetricMode=True)) if symmetric else {}
        try:
            self.factor: SuperLU = splu(matrix if symmetric else matrix.T.tocsc(), permc_spec="MMD_AT_PLUS_A", relax=4,
                                        panel_size=4, **options)
        except RuntimeError as error:
            raise SolveError(f"the system matrix cannot be factorised: {error}") from error

    def array(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        # conversions stay in NumPy: torch's threads and those of the factorisation's BLAS get in each other's way;
        # where both solves are the same, the transposed one is quicker for one column (by a sixth) and slower for many
        swapped = b.size == len(b) if self.symmetric else transposed
        x = in_narrow_parts(partial(self.factor.solve, trans="T" if swapped else "N"), b.astype(self.kind, copy=False))
        if not cmath.isfinite(np.add.reduce(x, axis=None)) and not np.isfinite(x).all():  # a sum is quicker, but may overflow
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
        wide = values if values.is_complex() else values.double()
        full = wide.new_zeros((values.shape[0], n, n))
        full[:, A.pattern.row.long(), A.pattern.col.long()] = wide
        try:
            self.inverse = torch.linalg.inv(full).to(values.dtype)
        except RuntimeError as error:
            raise SolveError(f"the system matrix cannot be inverted: {str(error).splitlines()[0]}") from error

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        x = (self.inverse.mT if transposed else self.inverse) @ b
        self.monitor.record(x.abs().amax() * 0.0, 1.0)  # zero, unless something is not finite
        return x


class Rotated:
    """(2 + i sqrt 2) M + dt K by solves with A = M + dt/2 K, factorised already: half of it is its real part.

    The eigenvalues of (2 A)^-1 times it lie on the segment from 1 to 1 + i / sqrt 2, where Chebyshev's iteration gains a factor of
    six each time. SuperLU takes eight times as long for a complex matrix as for a real one. What is not symmetric, or damped beside
    A, lies near that segment: residuals are checked, and where 60 iterations are not enough the matrix is factorised after all.
    """

    capturable = False
    label = "rotated"
    _centre, _foci = 1 + 1j / math.sqrt(8), -1 / 8
    _most = 60

    def __init__(self, A: EdgeMatrix, inner: Prepared, symmetric: bool, tolerance: float) -> None:
        self.system, self.inner, self.symmetric, self.tolerance = A, inner, symmetric, tolerance
        self.whole: Prepared | None = None
        self._matrices: dict[bool, Tensor] = {}

    def _matrix(self, transposed: bool) -> Tensor:
        if transposed not in self._matrices:
            v = self.system.values.detach()
            self._matrices[transposed] = csr(self.system.pattern, v.index_select(-1, self.system.pattern.transpose)
                                             if transposed else v)
        return self._matrices[transposed]

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        if self.whole is not None:
            return self.whole.solve(b, transposed)
        A, (groups, n, columns) = self._matrix(transposed and not self.symmetric), b.shape
        goal = self.tolerance * b.abs().square().sum(1, keepdim=True).sqrt()
        x, r, p = torch.zeros_like(b), b, torch.zeros_like(b)
        alpha, beta = 1 / self._centre, 0.0 + 0.0j
        for k in range(self._most):
            both = self.inner.solve(torch.cat([r.real, r.imag], -1), transposed)
            p = 0.5 * torch.complex(both[..., :columns].double(), both[..., columns:].double()) + beta * p
            x = x + alpha * p
            r = b - (A @ x.reshape(groups * n, columns)).view(b.shape)
            if bool((r.abs().square().sum(1, keepdim=True).sqrt() <= goal).all()):
                return x
            beta = (0.5 if k == 0 else 0.25) * self._foci * alpha * alpha
            alpha = 1 / (self._centre - beta / alpha)
        self.whole = LU(self.system, self.symmetric)
        return self.whole.solve(b, transposed)


# ---------------------------------------------------------------------- iterative


class ConjugateOrLU:
    """`cg` as `auto` takes it: where it fails (a matrix that is not positive definite, no convergence), LU from then on."""

    capturable = False

    def __init__(self, A: EdgeMatrix, tolerance: float) -> None:
        self.matrix = A
        self.inner: LU | Krylov = Krylov(A, True, tolerance, remember=True)
        self.label = self.inner.label

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        try:
            return self.inner.solve(b, transposed)
        except SolveError:
            if isinstance(self.inner, LU) or not bool(torch.isfinite(b).all()):
                raise
            self.inner = LU(self.matrix, False)  # which pivots: nothing is known of this matrix any more
            self.label = self.inner.label
            return self.inner.solve(b, transposed)


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
    """CG (symmetric) or BiCGStab with Jacobi's preconditioner, each column to the tolerance, restarted on its true residual.

    With D = diag(A) they solve (D^-1/2 A D^-1/2) y = D^-1/2 b. What float32 leaves of a residual, taken in float64, is the
    right-hand side of another turn. With `remember`, a solve starts from that combination of the last solutions of the same
    columns which leaves the least residual (Fischer 1998), so that a step depends on those before it, within the tolerance;
    adjoint solves start from zero.
    """

    capturable = False

    def __init__(self, A: EdgeMatrix, symmetric: bool, tolerance: float, max_iterations: int = 5000,
                 remember: bool = False) -> None:
        self.pattern, self.values, self.symmetric = A.pattern, A.values.detach(), symmetric
        self.tolerance, self.max_iterations, self.remember = tolerance, max_iterations, remember
        self.label = "cg" if symmetric else "bicgstab"
        self.last_count = 0
        diagonal = self.values.index_select(-1, self.pattern.diagonal).double()
        self.root = diagonal.abs().clamp(min=1e-300).rsqrt().reshape(-1, 1)  # a negative one: no convergence, which is an error
        self.recent: dict[int, _Recent] = {}  # by the first of the columns that are solved for together
        self._matrices: dict[tuple[bool, torch.dtype], Tensor] = {}

    def _matrix(self, transposed: bool, dtype: torch.dtype) -> Tensor:
        """D^-1/2 A D^-1/2."""
        key = (transposed, dtype)
        if key not in self._matrices:
            p, root = self.pattern, self.root.view(-1, self.pattern.n)
            v = self.values.index_select(-1, p.transpose) if transposed else self.values
            scaled = v.double() * root.index_select(-1, p.row) * root.index_select(-1, p.col)
            self._matrices[key] = csr(p, scaled.to(dtype))
        return self._matrices[key]

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        right = b.reshape(-1, b.shape[-1])
        n, columns = right.shape
        remember = self.remember and not transposed and right.numel() <= _REMEMBERED
        if remember and sum(r.columns for r in self.recent.values()) not in (0, columns):  # other states than before
            self.recent.clear()
        width = columns if b.is_cuda else max(1, min(columns, _CACHED // n))
        self.last_count = 0
        parts = [self._columns(right[:, k:k + width], transposed and not self.symmetric, k if remember else None, b.dtype)
                 for k in range(0, columns, width)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).view(b.shape)

    def _columns(self, b: Tensor, transposed: bool, place: int | None, dtype: torch.dtype) -> Tensor:
        """A^-1 b [n, R]; `place` is where these columns have their last solutions."""
        A, wide = self._matrix(transposed, dtype), self._matrix(transposed, torch.float64)
        method = _conjugate_gradients if self.symmetric else _bicgstab
        scaled = b.double() * self.root
        scaled = scaled[:, 0] if scaled.shape[1] == 1 else scaled  # products with one column are quicker
        size = _dot(scaled, scaled).sqrt().clamp(min=1e-300)
        recent = None if place is None else self.recent.setdefault(place, _Recent(b.shape[1]))
        y = torch.zeros_like(scaled) if recent is None else recent.start(scaled)
        for turn in range(7):
            residual = scaled - wide @ y if turn or recent is not None else scaled
            reached = _dot(residual, residual).sqrt() / size
            worst = float(reached.max())
            if worst <= self.tolerance or not worst < 1e6 or turn == 6:
                break
            unit = (reached * size).clamp(min=1e-300)
            goal = (0.7 * self.tolerance / reached.clamp(min=1e-300)).clamp(min=0.7 * self.tolerance).to(dtype)
            part, count = method(A, (residual / unit).to(dtype), goal, self.max_iterations)
            self.last_count += count
            y = y + part.double() * unit
        if not worst <= _SLACK * self.tolerance:
            raise SolveError(f"{self.label} stopped at a relative residual of {worst:.2g}, asked for {self.tolerance:.2g}")
        if recent is not None and (recent.rights or self.last_count > _SHORT):
            recent.keep(y, scaled)
        return (y.view(len(self.root), -1) * self.root).to(dtype)


class Shifted:
    """BiCGStab with Jacobi's preconditioner for the complex or real matrices of a step of dG, in double precision throughout."""

    capturable = False
    label = "bicgstab"

    def __init__(self, A: EdgeMatrix, tolerance: float) -> None:
        self.pattern, self.values, self.tolerance = A.pattern, A.values.detach(), tolerance
        self.inverse_diagonal = 1 / self.values.index_select(-1, self.pattern.diagonal)[..., None]
        self._matrices: dict[bool, Tensor] = {}

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        if transposed not in self._matrices:
            v = self.values.index_select(-1, self.pattern.transpose) if transposed else self.values
            self._matrices[transposed] = csr(self.pattern, v)
        A, w = self._matrices[transposed], self.inverse_diagonal.reshape(-1, 1)
        right = b.reshape(-1, b.shape[-1]) * w
        size = torch.linalg.vector_norm(right, dim=0, keepdim=True).clamp(min=1e-300)
        x, rest = torch.zeros_like(right), right
        for _ in range(7):  # restarted on the true residual
            reached = torch.linalg.vector_norm(rest, dim=0, keepdim=True) / size
            worst = float(reached.max())
            if worst <= self.tolerance or not worst < 1e6:
                break
            part, _, _ = bicgstab(lambda y: w * (A @ y), rest, 0.7 * self.tolerance * size, 5000, (0,))
            x = x + part
            rest = right - w * (A @ x)
        if not worst <= _SLACK * self.tolerance:
            raise SolveError(f"{self.label} stopped at a relative residual of {worst:.2g}, asked for {self.tolerance:.2g}")
        return x.view(b.shape)


class _Recent:
    """The last solutions y of B y = b for some columns, and their right-hand sides."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.solutions: list[Tensor] = []
        self.rights: list[Tensor] = []

    def start(self, b: Tensor) -> Tensor:
        """The combination of solutions whose right-hand sides come closest to b, each column by itself."""
        if not self.rights:
            return torch.zeros_like(b)
        Q = torch.stack(self.rights).view(len(self.rights), len(b), -1).permute(2, 1, 0)  # [R, n, kept]
        gram, target = Q.mT @ Q, Q.mT @ b.view(len(b), -1).T[..., None]
        scale = gram.diagonal(dim1=-2, dim2=-1).clamp(min=1e-300).rsqrt()
        # right-hand sides of neighbouring steps are all but parallel: what rounding leaves of the least directions is not used
        gram = gram * scale[:, None] * scale[..., None] + 1e-14 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        share = scale[..., None] * torch.linalg.solve(gram, scale[..., None] * target)  # [R, kept, 1]
        y = torch.stack(self.solutions).view(len(self.solutions), len(b), -1).permute(2, 1, 0) @ share
        return y[..., 0].T.reshape(b.shape).nan_to_num(0.0)

    def keep(self, y: Tensor, b: Tensor) -> None:
        self.solutions, self.rights = [*self.solutions, y][-_RECENT:], [*self.rights, b][-_RECENT:]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The product of each pair of columns."""
    return torch.dot(a, b) if a.dim() == 1 else (a * b).sum(0)


def _conjugate_gradients(A: Tensor, b: Tensor, goal: Tensor, limit: int) -> tuple[Tensor, int]:
    """y with |b - A y| <= goal for every column; `b` is overwritten."""
    x, r, p = torch.zeros_like(b), b, b.clone()
    rr, goal, least = _dot(r, r), goal.square(), torch.finfo(b.dtype).tiny
    every = 1 if not b.is_cuda else 8
    for k in range(1, limit + 1):
        Ap = A @ p
        alpha = rr / _dot(p, Ap).clamp(min=least)
        x.addcmul_(p, alpha)
        r.addcmul_(Ap, alpha, value=-1)
        new = _dot(r, r)
        if k % every == 0 and (not bool((new > goal).any()) or not bool(torch.isfinite(new).all())):
            break
        p.mul_(new / rr.clamp(min=least)).add_(r)
        rr = new
    return x, k


def _bicgstab(A: Tensor, b: Tensor, goal: Tensor, limit: int) -> tuple[Tensor, int]:
    x, _, count = bicgstab(lambda x: A @ x, b, goal, limit, (0,))
    return x, count


def bicgstab(multiply: Callable[[Tensor], Tensor], b: Tensor, goal: Tensor, limit: int,
             axes: tuple[int, ...]) -> tuple[Tensor, Tensor, int]:
    """The best x of all iterations, |b - A x| and how many there were, until that is below `goal`, for vectors along `axes`."""
    def dot(x: Tensor, y: Tensor) -> Tensor:
        return (x.conj() * y).sum(axes, keepdim=True)

    def length(x: Tensor) -> Tensor:
        return dot(x, x).real.sqrt() if x.is_complex() else dot(x, x).sqrt()

    def ratio(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(y != 0, x / torch.where(y != 0, y, torch.ones_like(y)), torch.zeros_like(x))

    x, r, shadow = torch.zeros_like(b), b, b
    best, least = x, length(b)
    rho = alpha = omega = torch.ones_like(least, dtype=b.dtype)
    p = v = torch.zeros_like(b)
    count = 0
    while count < limit and bool(((least > goal) & torch.isfinite(least)).any()):
        new = dot(shadow, r)
        p = r + ratio(new * alpha, rho * omega) * (p - omega * v)
        v = multiply(p)
        alpha, rho = ratio(new, dot(shadow, v)), new
        s = r - alpha * v
        z = multiply(s)
        omega = ratio(dot(z, s), dot(z, z))
        x, r = x + alpha * p + omega * s, s - omega * z
        now = length(r)
        best, least = torch.where(now < least, x, best), torch.minimum(now, least)
        count += 1
    return best, least, count
