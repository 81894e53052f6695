"""Checks of points and cells before they become a mesh. Every error names the node or cell."""

from __future__ import annotations

from collections.abc import Iterable
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
    x = [points[cells[:, k]] for k in range(cells.shape[1])]
    return np.sqrt(np.max([((a - b) ** 2).sum(axis=1) for a, b in combinations(x, 2)], axis=0))


def checked_arrays(points: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Copies of points and cells as arrays that fit each other; every node is used and at a place of its own."""
    points, cells = np.array(points, dtype=np.float64), np.array(cells)
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


def check_names(kind: str, names: Iterable[object]) -> None:
    """Names of boundaries and regions are texts that files can hold."""
    for name in names:
        if not isinstance(name, str) or not name.strip() or "\0" in name:
            raise InputError(f"{name!r} cannot be the name of a {kind}: a name is a text that is not empty")


def oriented(points: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cells reordered so that every volume is positive, and these volumes [K]; degenerate cells are an error."""
    repeated = np.flatnonzero(np.any([cells[:, i] == cells[:, j] for i, j in combinations(range(cells.shape[1]), 2)], axis=0))
    if repeated.size:
        raise InputError(f"cell {repeated[0]} names a node twice: {cells[repeated[0]].tolist()}")
    volumes = signed_volumes(points, cells)
    d, across = points.shape[1], 2 * np.linalg.norm(np.ptp(points, axis=0))  # no edge is longer than that
    flat = np.flatnonzero(np.abs(volumes) <= _DEGENERATE * across**d)
    flat = flat[np.abs(volumes[flat]) <= _DEGENERATE * longest_edge(points, cells[flat]) ** d]
    if flat.size:
        _refuse_twins(cells)
        raise InputError(f"cell {flat[0]} (nodes {cells[flat[0]].tolist()}) is degenerate: its volume is {volumes[flat[0]]:.3g}")
    flip = np.flatnonzero(volumes < 0)
    if flip.size:
        cells = cells.copy()
        cells[flip, :2] = cells[flip, 1::-1]
        volumes[flip] = signed_volumes(points, cells[flip])
    return cells, volumes


def _refuse_twins(cells: np.ndarray) -> None:
    """Cells of the same nodes. They overlap, so the check is needed only for a clearer message than that."""
    _, first, count = np.unique(np.sort(cells, axis=1), axis=0, return_index=True, return_counts=True)
    if (count > 1).any():
        k = first[np.argmax(count > 1)]
        raise InputError(f"cell {k} (nodes {sorted(cells[k].tolist())}) occurs more than once")


def check_connected(cells: np.ndarray, n: int) -> None:
    """Refuse cells that fall into parts."""
    row, col = np.repeat(cells[:, 0], cells.shape[1] - 1), cells[:, 1:].ravel()
    graph = coo_array((np.ones(len(row)), (row, col)), shape=(n, n)).tocsr()
    parts, label = connected_components(graph, directed=False)
    if parts > 1:
        _refuse_twins(cells)
        stray = int(np.flatnonzero(label != label[0])[0])
        raise InputError(f"the mesh falls into {parts} disconnected parts: node {stray} cannot be reached from node 0")


def outer_facets(cells: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Facets with one cell only [F, d], oriented outwards, and that cell [F], of cells with positive volumes and n nodes.

    Two cells on different sides of a facet see it in opposite orientations. The same orientation means that one is folded over
    the other (inverted): an error, as is a facet with more than two cells.
    """
    d = cells.shape[1] - 1
    # facet k of a positively oriented simplex leaves out vertex k; this ordering makes its normal point outwards
    corners = [[1, 2], [2, 0], [0, 1]] if d == 2 else [[1, 2, 3], [0, 3, 2], [0, 1, 3], [0, 2, 1]]
    facets = np.concatenate([cells[:, c] for c in corners])
    owner = np.tile(np.arange(len(cells)), d + 1)
    columns, odd = list(facets.T), np.zeros(len(facets), dtype=bool)
    for i, j in ((0, 1),) if d == 2 else ((0, 1), (1, 2), (0, 1)):
        odd ^= columns[i] > columns[j]
        columns[i], columns[j] = np.minimum(columns[i], columns[j]), np.maximum(columns[i], columns[j])
    number = facet_keys(np.stack(columns, axis=1), n)
    order = np.argsort(number, kind="stable")
    same = np.diff(number[order]) == 0
    a, b = order[:-1][same], order[1:][same]
    folded = np.flatnonzero(odd[a] == odd[b])
    if folded.size:
        _refuse_twins(cells)
        i, j = int(owner[a[folded[0]]]), int(owner[b[folded[0]]])
        raise InputError(f"cell {j} is inverted: it overlaps cell {i} across their shared facet")
    third = np.flatnonzero(same[1:] & same[:-1])
    if third.size:
        _refuse_twins(cells)
        raise InputError(f"more than two cells share the facet of nodes {np.sort(facets[order[third[0]]]).tolist()}")
    outer = np.sort(order[~(np.append(same, False) | np.append(False, same))])
    return facets[outer], owner[outer]


def facet_keys(sorted_facets: np.ndarray, n: int) -> np.ndarray:
    """One sortable integer per facet."""
    if n ** sorted_facets.shape[1] >= 2**63:
        raise InputError(f"the mesh has {n} nodes; in 3D at most two million are possible")
    key = sorted_facets[:, 0].astype(np.int64)
    for k in range(1, sorted_facets.shape[1]):
        key = key * n + sorted_facets[:, k]
    return key
