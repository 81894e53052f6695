"""From other points to the nodes of a mesh: linear interpolation as one sparse matrix, and an estimate of what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import Delaunay, QhullError, cKDTree

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.mesh.locate import from_cells, sparse_rows

_SAME = 1e-3  # of the spacing: nodes nearer than this are the same (files often hold single precision)
_SINGLE = 64  # number of points up to which each is left out by itself
_FOLDS = 8  # otherwise groups of them


@dataclass(frozen=True, eq=False)
class Transfer:
    """u at the nodes = matrix @ v at the given points. `how` says in words what is done."""

    matrix: csr_array | None  # [N, M]; None: the points are the nodes, in this order
    order: np.ndarray | None  # [N] the given point that is node i, where nothing is interpolated
    how: str
    outside: int = 0  # nodes that lie outside of what is given

    @property
    def exact(self) -> bool:
        return self.matrix is None

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """[T, M, ...] -> [T, N, ...]."""
        if self.matrix is None:
            return values if self.order is None else values[:, self.order]
        moved = np.moveaxis(values, 1, 0)
        flat = self.matrix @ moved.reshape(len(moved), -1)
        return np.moveaxis(flat.reshape(-1, *moved.shape[1:]), 0, 1)


IDENTITY = Transfer(None, None, "given at the nodes")


def transfer(mesh: Mesh, points: np.ndarray, cells: np.ndarray | None, where: str) -> Transfer:
    """To the nodes of `mesh` from values at `points` [M, d], with P1 elements where `cells` are known."""
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
        matrix, outside = from_cells(points, _proper(points, cells, where), mesh.points)
        return Transfer(matrix, None, f"interpolated linearly from another mesh ({len(points)} nodes)", len(outside))
    matrix, outside = from_cloud(points, mesh.points)
    return Transfer(matrix, None, f"interpolated linearly between {len(points)} points", len(outside))


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


def from_cloud(points: np.ndarray, targets: np.ndarray) -> tuple[csr_array, np.ndarray]:
    """Linear between scattered points (Delaunay), the nearest one outside of their hull. And which are outside."""
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
    return sparse_rows(corners, weight, len(points)), np.flatnonzero(outside)


# ---------------------------------------------------------------------- what it costs


def error_of(way: Transfer, mesh: Mesh, points: np.ndarray, cells: np.ndarray | None, values: np.ndarray,
             offset: np.ndarray) -> float:
    """Relative error of the interpolation of values [T, M, F], estimated from these values alone.

    From another mesh: what a quadratic through the same values and their gradients would give instead, so nothing where a node
    is a node of that mesh. From scattered points: each of them (or every eighth) left out and interpolated from the others,
    which is pessimistic.
    """
    if way.exact:
        return 0.0
    size = float(np.linalg.norm(values - offset))
    if size == 0:
        return 0.0
    points = points[:, :mesh.dim]
    if cells is not None and way.matrix is not None:
        missed = Transfer(_curved(way.matrix, mesh.points, points, _proper(points, cells, "the mesh")), None, "")(values)
        size = float(np.linalg.norm(way(values) - offset))
        return float(np.linalg.norm(missed)) / size if size > 0 else 0.0
    folds = len(points) if len(points) <= _SINGLE else _FOLDS
    order = np.random.default_rng(0).permutation(len(points))
    miss = 0.0
    for k in range(folds):
        out = order[k::folds]
        rest = np.setdiff1d(order, out)
        if not len(rest):
            return 1.0
        matrix, _ = from_cloud(points[rest], points[out])
        guess = Transfer(matrix, None, "")(values[:, rest])
        miss += float(np.square(guess - values[:, out]).sum())
    return float(np.sqrt(miss)) / size


def _curved(matrix: csr_array, targets: np.ndarray, points: np.ndarray, cells: np.ndarray) -> csr_array:
    """What linear interpolation leaves out at the targets [targets, points]: half of sum_i w_i (x - x_i) . grad u(x_i).

    For a quadratic u with exact gradients that is all of it: u(x) = u_i + (grad u(x_i) + grad u(x)) . (x - x_i) / 2, summed with
    the weights. Gradients at the points are means over their cells.
    """
    corner = points[cells]
    inner = np.linalg.inv(corner[:, 1:] - corner[:, :1])  # [K, d, d]: column j is the gradient of corner j + 1
    slopes = np.concatenate([-inner.sum(2, keepdims=True), inner], axis=2)  # [K, d, d + 1]
    volume = np.abs(np.linalg.det(corner[:, 1:] - corner[:, :1]))
    share = np.bincount(cells.ravel(), np.repeat(volume, cells.shape[1]), minlength=len(points))
    rows, columns = (np.broadcast_to(a, (*cells.shape, cells.shape[1])).ravel() for a in (cells[:, :, None], cells[:, None]))
    entries = matrix.tocoo()
    hit, of = entries.coords
    total = csr_array(matrix.shape)
    for axis in range(points.shape[1]):
        local = volume[:, None, None] * slopes[:, None, axis] / np.maximum(share[cells], 1e-300)[:, :, None]
        gradient = csr_array((local.ravel(), (rows, columns)), shape=(len(points), len(points)))
        lever = csr_array((entries.data * (targets[hit, axis] - points[of, axis]), (hit, of)), shape=matrix.shape)
        total = total + 0.5 * (lever @ gradient)
    return total
