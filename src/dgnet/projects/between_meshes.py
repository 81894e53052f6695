"""From other points to the nodes of a mesh: quadratic interpolation as one sparse matrix, and an estimate of what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, eye_array
from scipy.spatial import Delaunay, QhullError, cKDTree

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.mesh.locate import from_cells, sparse_rows
from dgnet.problems.lift import STEADY, quadratic

_SAME = 1e-3  # of the spacing: nodes nearer than this are the same (files often hold single precision)
_SOFT = 1e-4  # squared distance, in units of that to the corners around: points nearer than that decide alone
SHARE = 0.3
"""Of the difference between linear and quadratic interpolation, what the better one still misses."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """u at the nodes = matrix @ v at the given points. `how` says in words what is done."""

    matrix: csr_array | None  # [N, M]; None: the points are the nodes, in this order
    order: np.ndarray | None  # [N] the given point that is node i, where nothing is interpolated
    how: str
    outside: int = 0  # nodes that lie outside of what is given
    wrong: csr_array | None = None  # [N, M]: about what the interpolation misses, with its sign

    @property
    def exact(self) -> bool:
        return self.matrix is None

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """[T, M, ...] -> [T, N, ...]; never beyond the least and the largest of each component: a concentration stays one."""
        if self.matrix is None:
            return values if self.order is None else values[:, self.order]
        return _moved(self.matrix, values).clip(values.min((0, 1)), values.max((0, 1)))

    def error(self, values: np.ndarray) -> np.ndarray:
        """About what is missed of them, at the nodes: [T, M, ...] -> [T, N, ...].

        A share of the difference between linear and quadratic interpolation; outside of the given points, all of what a quadratic
        says beyond the nearest value. It cannot see changes between the points that leave no trace at them.
        """
        return np.zeros_like(self(values)) if self.wrong is None else _moved(self.wrong, values)


def _moved(matrix: csr_array, values: np.ndarray) -> np.ndarray:
    first = np.moveaxis(values, 1, 0)
    flat = matrix @ first.reshape(len(first), -1)
    return np.moveaxis(flat.reshape(-1, *first.shape[1:]), 0, 1)


IDENTITY = Transfer(None, None, "given at the nodes")


def transfer(mesh: Mesh, points: np.ndarray, cells: np.ndarray | None, where: str) -> Transfer:
    """To the nodes of `mesh` from values at `points` [M, d]; where `cells` are known, by points that these connect."""
    if points.ndim != 2 or points.shape[1] < mesh.dim:
        raise InputError(f"{where}: points have shape {list(points.shape)}, expected [M, {mesh.dim}]")
    if not np.isfinite(points).all():
        raise InputError(f"{where}: point {int(np.argwhere(~np.isfinite(points))[0][0])} is not finite")
    if points.shape[1] > mesh.dim:
        if np.ptp(points[:, mesh.dim:]) > 1e-9 * np.ptp(points):
            raise InputError(f"{where}: points lie in space, but the mesh is flat")
        points = points[:, :mesh.dim]
    points = np.asarray(points, dtype=np.float64)
    order = same_nodes(mesh, points)
    if order is not None:
        return Transfer(None, None if np.array_equal(order, np.arange(len(order))) else order, "given at the nodes")
    if cells is not None:
        how, cells = f"interpolated from another mesh ({len(points)} nodes)", _proper(points, cells, where)
        matrix, outside = from_cells(points, cells, mesh.points)
    else:
        how, (matrix, outside, cells) = f"interpolated between {len(points)} points", from_cloud(points, mesh.points)
    better, wrong = _curved(matrix, mesh.points, points, cells, outside)
    return Transfer(better, None, how, len(outside), wrong)


def _curved(linear: csr_array, targets: np.ndarray, points: np.ndarray, cells: np.ndarray,
            outside: np.ndarray) -> tuple[csr_array, csr_array]:
    """Quadratic in place of linear interpolation [targets, points], where the points around settle it, and what that may miss.

    Around a target are the corners of its cell and their neighbours; outside, the nearest value stays.
    """
    M = len(points)
    pairs = cells[:, np.argwhere(~np.eye(cells.shape[1], dtype=bool))].reshape(-1, 2)
    near = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(M, M)) + eye_array(M)
    ends = csr_array((np.ones(linear.nnz), linear.indices, linear.indptr), shape=linear.shape)
    corners = linear.tocoo()
    hit, of = corners.coords
    reach = np.zeros(len(targets))
    np.maximum.at(reach, hit, np.linalg.norm(targets[hit] - points[of], axis=1))
    index, weight = quadratic(points, targets, reach.clip(1e-300), ends @ near, _SOFT)
    settled = (np.abs(weight).sum(1) <= STEADY) & (linear.max(axis=1).toarray().ravel() < 1 - 1e-9)  # not at a point
    rows = np.flatnonzero(settled)
    found = csr_array((weight[rows].ravel(), (np.repeat(rows, index.shape[1]), index[rows].ravel())), shape=linear.shape)
    keep, beyond = np.ones(len(targets)), np.zeros(len(targets))
    keep[settled], beyond[outside] = 0.0, 1.0
    curved = found + keep[:, None] * linear
    inner = (1 - beyond)[:, None]
    return csr_array(inner * curved + (1 - inner) * linear), csr_array((inner * -SHARE + (1 - inner)) * (curved - linear))


def same_nodes(mesh: Mesh, points: np.ndarray) -> np.ndarray | None:
    """For every node the given point at its place, if the points are the nodes in any order."""
    if points.shape != mesh.points.shape:
        return None
    gap, order = cKDTree(points).query(mesh.points)
    return order if gap.max() < _SAME * mesh.spacing and len(np.unique(order)) == len(order) else None


def _proper(points: np.ndarray, cells: np.ndarray, where: str) -> np.ndarray:
    cells = np.asarray(cells)
    width = points.shape[1] + 1
    if cells.ndim != 2 or cells.shape[1] != width or not len(cells) or cells.dtype.kind not in "iu":
        raise InputError(f"{where}: cells have shape {list(cells.shape)}, expected whole numbers [K, {width}]")
    if cells.min() < 0 or cells.max() >= len(points):
        raise InputError(f"{where}: a cell names point {int(cells.max())}, but there are {len(points)}")
    corner = points[cells]
    size = np.abs(np.linalg.det(corner[:, 1:] - corner[:, :1]))
    keep = size > 1e-14 * size.max()
    if not keep.any() or not np.isfinite(size).all():
        raise InputError(f"{where}: all of its cells are degenerate")
    return cells[keep].astype(np.int64)


def from_cloud(points: np.ndarray, targets: np.ndarray) -> tuple[csr_array, np.ndarray, np.ndarray]:
    """Linear between scattered points (Delaunay), the nearest one outside of their hull. Which are outside; the cells between."""
    nearest = cKDTree(points).query(targets)[1]
    width = points.shape[1] + 1
    corners = np.repeat(nearest[:, None], width, axis=1)
    weight = np.zeros((len(targets), width))
    weight[:, 0] = 1.0
    outside = np.ones(len(targets), dtype=bool)
    try:
        hull = Delaunay(points) if len(points) >= width else None
    except QhullError:  # all on one line or plane
        hull = None
    if hull is not None:
        cell = hull.find_simplex(targets, tol=1e-10)
        outside = cell < 0
        affine = hull.transform[cell[~outside]]
        inner = np.einsum("tde,te->td", affine[:, :-1], targets[~outside] - affine[:, -1])
        found = np.concatenate([inner, 1 - inner.sum(axis=1, keepdims=True)], axis=1)
        flat = ~np.isfinite(found).all(axis=1)  # a degenerate cell of the hull
        found[flat] = np.eye(1, width)
        corners[~outside] = np.where(flat[:, None], corners[~outside], hull.simplices[cell[~outside]])
        weight[~outside] = found
    cells = np.zeros((0, width), dtype=np.int64) if hull is None else hull.simplices.astype(np.int64)
    return sparse_rows(corners, weight, len(points)), np.flatnonzero(outside), cells


def error_of(way: Transfer, values: np.ndarray, offset: np.ndarray) -> float:
    """Relative error of the interpolation of values [T, M, F], estimated from these values alone (`Transfer.error`)."""
    size = float(np.linalg.norm(way(values) - offset))
    return float(np.linalg.norm(way.error(values))) / size if size > 0 else 0.0
