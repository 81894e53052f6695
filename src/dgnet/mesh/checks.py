"""What is checked of points and cells before they become a mesh. Every error names the node or cell."""

from __future__ import annotations

from itertools import combinations
from math import factorial

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dgnet.errors import InputError

_DEGENERATE = 1e-12  # cell volume below this times (longest edge)^d counts as zero


def signed_volumes(points: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Cell volumes [K], negative where the corners are in the other order."""
    x = points[cells]
    return np.linalg.det(x[:, 1:] - x[:, :1]) / factorial(points.shape[1])


def longest_edge(points: np.ndarray, cells: np.ndarray) -> np.ndarray:
    x = points[cells]
    pairs = combinations(range(x.shape[1]), 2)
    return np.max([np.linalg.norm(x[:, i] - x[:, j], axis=1) for i, j in pairs], axis=0)


def checked_arrays(points: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copies of points and cells as arrays that fit each other; every node is used and at a place of its own."""
    try:
        points, cells = np.array(points, dtype=np.float64), np.array(cells)
    except (TypeError, ValueError) as error:
        raise InputError("points and cells must be rectangular arrays of numbers") from error
    if points.ndim != 2 or points.shape[1] not in (2, 3):
        raise InputError(f"points must have shape [N, 2] or [N, 3], got {list(points.shape)}")
    dim = points.shape[1]
    if cells.ndim != 2 or cells.shape[1] != dim + 1 or not len(cells):
        raise InputError(f"cells of a {dim}D mesh must have shape [K, {dim + 1}] with K > 0, got {list(cells.shape)}")
    if not np.issubdtype(cells.dtype, np.integer):
        raise InputError(f"cells must be integers, got {cells.dtype}")
    cells = cells.astype(np.int64)
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if bad.size:
        raise InputError(f"node {bad[0]} has a coordinate that is not a finite number")
    if cells.min() < 0 or cells.max() >= len(points):
        k = int(np.flatnonzero((cells < 0).any(1) | (cells >= len(points)).any(1))[0])
        raise InputError(f"cell {k} names nodes {cells[k].tolist()}, but the mesh has {len(points)} nodes")
    used = np.zeros(len(points), dtype=bool)
    used[cells.ravel()] = True
    if not used.all():
        raise InputError(f"node {int(np.argmin(used))} belongs to no cell")
    order = np.lexsort(points.T)
    same = np.flatnonzero((np.diff(points[order], axis=0) == 0).all(axis=1))
    if same.size:
        i, j = sorted((int(order[same[0]]), int(order[same[0] + 1])))
        raise InputError(f"nodes {i} and {j} are at the same point")
    return points, cells


def oriented(points: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Cells reordered so that every volume is positive; degenerate cells are an error."""
    ordered = np.sort(cells, axis=1)
    repeated = np.flatnonzero((np.diff(ordered, axis=1) == 0).any(axis=1))
    if repeated.size:
        raise InputError(f"cell {repeated[0]} names a node twice: {cells[repeated[0]].tolist()}")
    _, first, count = np.unique(ordered, axis=0, return_index=True, return_counts=True)
    if (count > 1).any():
        k = first[np.argmax(count > 1)]
        raise InputError(f"cell {k} (nodes {cells[k].tolist()}) occurs more than once")
    volumes = signed_volumes(points, cells)
    flat = np.flatnonzero(np.abs(volumes) <= _DEGENERATE * longest_edge(points, cells) ** points.shape[1])
    if flat.size:
        raise InputError(f"cell {flat[0]} (nodes {cells[flat[0]].tolist()}) is degenerate: its volume is {volumes[flat[0]]:.3g}")
    flip = volumes < 0
    cells = cells.copy()
    cells[flip, :2] = cells[flip, 1::-1]
    return cells


def check_connectivity(points: np.ndarray, cells: np.ndarray) -> None:
    """Refuse cells that fall into parts or overlap."""
    n = len(points)
    row, col = np.repeat(cells[:, 0], cells.shape[1] - 1), cells[:, 1:].ravel()
    graph = coo_array((np.ones(len(row)), (row, col)), shape=(n, n)).tocsr()
    parts, label = connected_components(graph, directed=False)
    if parts > 1:
        stray = int(np.flatnonzero(label != label[0])[0])
        raise InputError(f"the mesh falls into {parts} disconnected parts: node {stray} cannot be reached from node 0")
    _check_overlap(points, cells)


def _check_overlap(points: np.ndarray, cells: np.ndarray) -> None:
    """A facet shared by two cells on the same side means that one of them is folded over the other (inverted)."""
    d = points.shape[1]
    facets = np.concatenate([np.delete(cells, k, axis=1) for k in range(d + 1)])
    apex = np.concatenate([cells[:, k] for k in range(d + 1)])
    owner = np.tile(np.arange(len(cells)), d + 1)
    key = np.sort(facets, axis=1)
    number = facet_keys(key, len(points))
    order = np.argsort(number, kind="stable")
    pair = np.flatnonzero(np.diff(number[order]) == 0)
    a, b = order[pair], order[pair + 1]
    base = points[key[a]]
    side_a = np.linalg.det(np.concatenate([base[:, 1:], points[apex[a]][:, None]], axis=1) - base[:, :1])
    side_b = np.linalg.det(np.concatenate([base[:, 1:], points[apex[b]][:, None]], axis=1) - base[:, :1])
    folded = np.flatnonzero(np.sign(side_a) == np.sign(side_b))
    if folded.size:
        i, j = int(owner[a[folded[0]]]), int(owner[b[folded[0]]])
        raise InputError(f"cell {j} is inverted: it overlaps cell {i} across their shared facet")


def facet_keys(sorted_facets: np.ndarray, n: int) -> np.ndarray:
    """One sortable integer per facet."""
    if n ** sorted_facets.shape[1] >= 2**63:
        raise InputError(f"the mesh has {n} nodes; in 3D at most two million are possible")
    key = sorted_facets[:, 0].astype(np.int64)
    for k in range(1, sorted_facets.shape[1]):
        key = key * n + sorted_facets[:, k]
    return key
