"""Conjugate gradients on the CPU for symmetric positive definite A, with an incomplete Cholesky preconditioner.

With A = L + D + L^T (L strictly lower) the preconditioner is

    M = (E + L) E^-1 (E + L^T),    E_i = D_i - sum_(j<i) L_ij [(1 - w) L_ij + w s_j] / E_j,    s_j = min(0, sum_(k>j) A_jk)

It has no fill, and where diffusion rules its row sums are those of A but for a share 1 - w of what is dropped (modified incomplete
Cholesky, Gustafsson 1978). Any positive E makes M positive definite; E is kept above sum_(k>j) |A_jk|, so that no sweep grows.

Scaled by E^-1/2, the preconditioned matrix times p needs no product with A (Eisenstat 1981):

    t = (I + L^T)^-1 p,    (I + L)^-1 A t = t + (I + L)^-1 (p + (D/E - 2) t)

so an iteration costs one backward and one forward sweep, together as many operations as one product. A sweep is SciPy's compiled
product of a strictly lower matrix with a vector that is overwritten in place: rows are done in order, so each one finds the new
values of those before it. `sweeps_work` tries this once; where it fails, the backend says so.

Sweeps and the vectors of an iteration have the precision of A: in float32 a solve takes a fifth less time. Solutions, right-hand
sides and residuals are float64 throughout; what float32 leaves of a residual is the right-hand side of another turn.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import daxpy, saxpy
from scipy.sparse import _sparsetools, csr_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from dgnet.errors import InputError, SolveError
from dgnet.operators import EdgeMatrix, Pattern
from dgnet.stepping.host import LARGE, FlushedToZero, OnHost, threaded_blas

Array = NDArray[np.floating]

_MODIFIED = 0.9  # w
TOGETHER = 8000  # rows up to which many right-hand sides are done at once; with more they leave the cache
_CHUNK = 32  # right-hand sides at once
_KEPT = 650_000  # numbers of a right-hand side for which solutions are kept: 60 MB of them
_RECENT = 6  # solutions from which a start is made
LONG = 6  # iterations from zero above which such a start pays
_MOST = 5000
_STRANDS = 3
_SLACK = 20.0  # as in `backends`


class Rows(NamedTuple):
    """A sparse matrix in compressed rows, as SciPy's routines take it."""

    start: NDArray[np.int32]
    column: NDArray[np.int32]
    value: Array

    @classmethod
    def of(cls, A: csr_array, factor: float = 1.0) -> Rows:
        """Of a matrix, times a number."""
        return cls(A.indptr, A.indices, A.data if factor == 1.0 else A.data * A.data.dtype.type(factor))

    def scaled(self, value: Array, scale: Array, dtype: np.dtype[Any]) -> Rows:
        """Minus the matrix with these entries, rows and columns scaled, in this precision."""
        value = -value * np.repeat(scale, np.diff(self.start)) * scale[self.column]
        return self._replace(value=value.astype(dtype, copy=False))

    def add_product(self, x: Array, y: Array, rows: slice | None = None) -> None:
        """y += A x in place for y [n] or [n, R], C-contiguous; x may be y itself, then rows use what those before them have left.

        `rows`: these rows alone.
        """
        start, column, value = self
        if rows is not None:
            start, y = start[rows.start:rows.stop + 1], y[rows]
        n = len(start) - 1
        if x.ndim == 1:
            _sparsetools.csr_matvec(n, n, start, column, value, x, y)
        else:
            assert y.flags.c_contiguous  # else its flat form were a copy
            _sparsetools.csr_matvecs(n, n, x.shape[1], start, column, value, x.reshape(-1), y.reshape(-1))


class Layout(NamedTuple):
    """Where the entries of a block-diagonal matrix go, once for each pattern: renumbered, whole and in two halves."""

    order: NDArray[np.int64] | None  # degrees of freedom in the order of the sweeps; None leaves them as they are
    place: NDArray[np.int64] | None  # of each degree of freedom in that order
    whole: Rows
    slots: NDArray[np.int32]  # of the entries of `whole` in those of the matrix
    diagonal: NDArray[np.int64]
    lower: Rows
    lower_slots: NDArray[np.int64]  # in `whole`, as the rest
    upper: Rows  # rows and columns counted from the end
    upper_slots: NDArray[np.int64]


_LAYOUTS: WeakKeyDictionary[Pattern, dict[int, Layout]] = WeakKeyDictionary()


def _layout(pattern: Pattern, copies: int) -> Layout:
    known = _LAYOUTS.setdefault(pattern, {})
    if copies not in known:
        known[copies] = _laid_out(pattern, copies)
    return known[copies]


def _laid_out(pattern: Pattern, copies: int) -> Layout:
    start, column = (t.numpy() for t in pattern.tiled(copies))
    slots = np.arange(len(column), dtype=np.int32)
    order, place = _renumbered(pattern), None
    if order is not None:
        order = (order + pattern.n * np.arange(copies)[:, None]).reshape(-1)
        moved = csr_array((slots, column, start))[order]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        moved.indices = place.astype(np.int32)[moved.indices]
        moved.sort_indices()
        slots, column, start = moved.data, moved.indices, moved.indptr
    n, none = len(start) - 1, np.empty(0)
    row = np.repeat(np.arange(n, dtype=np.int32), np.diff(start))
    lower, upper = np.flatnonzero(column < row), np.flatnonzero(column > row)[::-1]

    def rows(row: NDArray[np.int32], column: NDArray[np.int32]) -> Rows:
        return Rows(np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))]).astype(np.int32), column, none)

    return Layout(order, place, Rows(start, column, none), slots, np.flatnonzero(row == column),
                  rows(row[lower], column[lower]), lower, rows(n - 1 - row[upper], n - 1 - column[upper]), upper)


def _renumbered(pattern: Pattern) -> NDArray[np.int64] | None:
    """Reverse Cuthill-McKee, where neighbours are further apart than in a mesh numbered row by row; in the plane in strands.

    Far apart costs cache misses, and iterations too: an incomplete factorisation wants neighbours to follow each other. In the
    plane, where a row is short, a sweep waits for the row before it. The first, second and third part of the numbering in turn
    keep the processor busy, at a sweep in less than half the time.
    """
    n, spatial = pattern.n, pattern.cell_slots.shape[-1] in (4, 10)
    row, column, start = (t.cpu().numpy() for t in (pattern.row, pattern.col, pattern.crow))
    order = None
    if float(np.abs(row - column).mean()) > n ** (2 / 3 if spatial else 1 / 2):
        ones = csr_array((np.ones(len(column), np.int8), column, start))
        order = reverse_cuthill_mckee(ones, symmetric_mode=True).astype(np.int64)
    if spatial:
        return order
    strands = np.arange(-(-n // _STRANDS) * _STRANDS).reshape(_STRANDS, -1).T.reshape(-1)
    strands = strands[strands < n]
    return strands if order is None else order[strands]


@cache
def sweeps_work() -> bool:
    """(I - L) y = 1 for a chain of ones: y = 1, 2, 3, ... if rows are done in order and in place."""
    lower = Rows(np.array([0, 0, 1, 2, 3], np.int32), np.array([0, 1, 2], np.int32), np.ones(3))
    one, two = np.ones(4), np.ones((4, 2))
    lower.add_product(one, one)
    lower.add_product(two, two)
    return bool((one == [1, 2, 3, 4]).all() and (two[:, 1] == one).all())


class ConjugateGradients(OnHost):
    """A [G, nnz] on the CPU; each column of a right-hand side to the tolerance, in the norm weighted with D^-1.

    Guarantee: the true residual of every solve is computed; above the tolerance the iteration goes on from it, and an error says
    where that ends. A long iteration starts from that combination of the last solutions of the same column which leaves the least
    residual (Fischer 1998), so a step depends on those before it within the tolerance. Adjoint solves start from zero.
    """

    label = "cg"

    def __init__(self, A: EdgeMatrix, symmetric: bool, tolerance: float) -> None:
        if not symmetric:
            raise InputError("the backend 'cg' needs a symmetric matrix; use lu or iterative with advection")
        if not sweeps_work():
            raise InputError("the backend 'cg' does not work with this version of SciPy; use lu or iterative")
        self.tolerance = tolerance
        here = A.values.device.type == "cpu"  # states of another device have the time for float64
        pattern, values = A.pattern.to("cpu"), (A.values if here else A.values.cpu().double()).detach().numpy()
        layout = _layout(pattern, len(values))
        self.order, self.place = layout.order, layout.place
        self._flushed = FlushedToZero(values.dtype == np.float32)
        entries = (values.reshape(-1) if self.order is None else values.reshape(-1)[layout.slots]).astype(np.float64, copy=False)
        self.A = layout.whole._replace(value=entries)
        D = entries[layout.diagonal]
        if not (D > 0).all():
            raise SolveError("the system matrix cannot be factorised: its diagonal is not positive")
        self.weight = 1 / D
        low, up = entries[layout.lower_slots], entries[layout.upper_slots]
        E = _pivots(layout, low, up, D)
        scale, shift = 1 / np.sqrt(E), D / E - 2
        self.lower = layout.lower.scaled(low, scale, values.dtype)
        self.upper = layout.upper.scaled(up, scale[::-1], values.dtype)
        self.scale, self.shift = (x.astype(values.dtype, copy=False) for x in (scale, shift))
        self.recent: dict[int, Recent] = {}  # of each column
        self.columns = 1
        self.last_count = 0

    def array(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        right = (b if self.order is None else b.take(self.order, 0)).astype(np.float64, copy=False)
        columns = right.size // len(right)
        if columns > 1 and len(right) <= TOGETHER:
            parts = (np.ascontiguousarray(right[:, k:k + _CHUNK]) for k in range(0, columns, _CHUNK))
            x = np.hstack([self._solved(part, part * self.weight[:, None]) for part in parts])
        else:
            remember = not transposed and right.size <= _KEPT
            if remember and columns != self.columns:  # other states than before
                self.recent.clear()
                self.columns = columns
            each = right.reshape(len(right), columns).T
            x = np.stack([self._column(np.ascontiguousarray(column), k, remember) for k, column in enumerate(each)], 1)
        x = np.ascontiguousarray(x, dtype=b.dtype).reshape(b.shape)
        return x if self.place is None else x.take(self.place, 0)

    def _column(self, b: Array, k: int, remember: bool) -> Array:
        weighted = b * self.weight
        recent = self.recent.get(k) if remember else None
        x = self._solved(b, weighted, None if recent is None else recent.start(weighted))
        if recent is None and remember and self.last_count > LONG:
            recent = self.recent[k] = Recent(len(b))
            recent.start(weighted)
        if recent is not None:
            recent.keep(x, b)
        return x

    def _residual(self, b: Array, x: Array) -> Array:
        product = np.zeros_like(b)
        self.A.add_product(x, product)
        return np.subtract(b, product, out=product)

    def _solved(self, b: Array, weighted: Array, x: Array | None = None) -> Array:
        """x with A x = b to the tolerance, given D^-1 b, and from another x if there is one."""
        r = b if x is None else self._residual(b, x)
        size = np.maximum(np.sqrt(_dot(weighted, b)), 1e-300)
        goal = 0.7 * self.tolerance * size  # M is at most about twice D: in its norm a residual counts 0.7 of that in D's, or more
        self.last_count = 0
        for _ in range(6):
            change = self._correction(r, goal)
            x = change if x is None else x + change
            r = self._residual(b, x)
            with np.errstate(invalid="ignore"):  # a right-hand side that is not finite is told below
                reached = float(np.max(np.sqrt(_dot(r * _beside(self.weight, r), r)) / size))
            if reached <= self.tolerance:
                return x
            goal = 0.3 * goal
        if x is not None and reached <= _SLACK * self.tolerance:
            return x
        raise SolveError(f"cg stopped at a relative residual of {reached:.2g}, asked for {self.tolerance:.2g}")

    def _correction(self, right: Array, goal: Any) -> Array:
        """A^-1 right, until the preconditioned residual is below `goal` in each column."""
        scale, shift = _beside(self.scale, right), _beside(self.shift, right)
        unit = np.ldexp(1.0, 20 + np.frexp(goal)[1])  # a power of two: squares stay within the range of float32, digits as they are
        r = np.multiply(right, 1 / unit, out=np.empty(right.shape, scale.dtype), casting="same_kind")
        r *= scale
        with self._flushed:
            x = self._iterated(r, shift, (goal / unit) ** 2) * scale
        return x * unit

    def _iterated(self, r: Array, shift: Array, goal: Any) -> Array:
        """The scaled solution for the scaled residual r, until its square is below `goal`."""
        least = 1e-300 if r.dtype == np.float64 else 1e-37
        self.lower.add_product(r, r)
        y, p = np.zeros_like(r), r.copy()
        v, backward = np.empty_like(r), np.empty_like(r)
        t = backward[::-1]
        rr = _dot(r, r)
        for _ in range(_MOST):
            if not np.any(rr > goal):
                break
            t[:] = p
            self.upper.add_product(backward, backward)
            np.multiply(shift, t, out=v)
            v += p
            self.lower.add_product(v, v)
            v += t
            alpha = rr / np.maximum(_dot(p, v), least)
            _add(y, p, alpha)
            _add(r, v, -alpha)
            new = _dot(r, r)
            p *= new / np.maximum(rr, least)
            p += r
            rr = new
            self.last_count += 1
        t[:] = y
        self.upper.add_product(backward, backward)
        return t


class Recent:
    """The last solutions of A x = b, and the products of their right-hand sides in the norm weighted with D^-1."""

    def __init__(self, n: int) -> None:
        self.x, self.b = np.zeros((_RECENT, n)), np.zeros((_RECENT, n))
        self.gram = np.zeros((_RECENT, _RECENT))
        self.kept = 0

    def start(self, weighted: Array) -> Array:
        """The combination of solutions whose right-hand sides come closest to b, given D^-1 b."""
        have = min(self.kept, _RECENT)
        self.weighted = weighted
        self.products = np.array([_dot(b, weighted) for b in self.b[:have]])
        gram = self.gram[:have, :have]
        scale = 1 / np.sqrt(np.maximum(gram.diagonal(), 1e-300))
        # right-hand sides of neighbouring steps are all but parallel: what rounding leaves of the least directions is not used
        matrix = gram * scale * scale[:, None] + 1e-14 * np.eye(have)
        x = np.zeros_like(weighted)
        for share, kept in zip(scale * np.linalg.solve(matrix, scale * self.products), self.x[:have]):
            _add(x, kept, share)
        return x

    def keep(self, x: Array, b: Array) -> None:
        """In place of the oldest; after `start` for the same b."""
        place = self.kept % _RECENT
        self.x[place], self.b[place] = x, b
        self.gram[place, :len(self.products)] = self.gram[:len(self.products), place] = self.products
        self.gram[place, place] = _dot(b, self.weighted)
        self.kept += 1


def _pivots(layout: Layout, low: Array, up: Array, D: Array) -> Array:
    """E by a fixed-point iteration from D; `low` and `up` are the entries of the halves."""
    row = np.repeat(np.arange(len(D)), np.diff(layout.upper.start))
    s, most = (np.bincount(row, each, len(D))[::-1] for each in (up, np.abs(up)))  # of the rows of L^T
    factor = low * ((1 - _MODIFIED) * low + _MODIFIED * np.minimum(s, 0.0)[layout.lower.column])
    step, E = layout.lower._replace(value=-factor), D
    for _ in range(5):
        new = D.copy()
        step.add_product(1 / E, new)
        E = np.maximum(new, np.maximum(most, 0.1 * D))
    return E


def _parts(n: int) -> list[slice]:
    """Pieces of a vector that BLAS leaves to one thread: on busy cores its threads made solves three hundred times slower."""
    width = LARGE if threaded_blas() else n
    return [slice(k, k + width) for k in range(0, n, width)] if n else []


def _dot(a: Array, b: Array) -> Any:
    """Of each column."""
    if a.ndim > 1:
        return np.einsum("nr,nr->r", a, b)
    return sum(a[part] @ b[part] for part in _parts(len(a)))


def _add(y: Array, x: Array, factor: Any) -> None:
    """y += x factor in place, for each column."""
    if y.ndim > 1:
        y += x * factor
        return
    axpy = daxpy if y.dtype == np.float64 else saxpy
    for part in _parts(len(y)):
        axpy(x[part], y[part], a=factor)


def _beside(a: Array, like: Array) -> Array:
    return a if like.ndim == 1 else a[:, None]
