"""Periodic boundaries: which nodes are one and the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from dgnet.errors import InputError
from dgnet.operators import Geometry
from dgnet.problems.conditions import Condition


def identified(geometry: Geometry, conditions: Sequence[Condition]) -> np.ndarray:
    """Degree of freedom of each node: periodic partners share one (corners through every pair they belong to)."""
    points, n = geometry.nodes, len(geometry.dof)
    pairs = [np.empty((2, 0), dtype=np.int64)]
    for c in conditions:
        if c.role != "periodic":
            continue
        one, other = c.boundaries
        a, b = geometry.nodes_on(one), geometry.nodes_on(other)
        if len(a) != len(b):
            raise InputError(f"periodic boundaries '{one}' and '{other}' have {len(a)} and {len(b)} nodes")
        shift = points[b].mean(0) - points[a].mean(0)
        gap, partner = cKDTree(points[b]).query(points[a] + shift)
        if gap.max() > 1e-6 * geometry.mesh.spacing or len(set(partner)) != len(partner):
            worst = int(a[np.argmax(gap)])
            which = f"node {worst}" if worst < geometry.mesh.n_nodes else "the middle of an edge"
            raise InputError(f"periodic boundaries '{one}' and '{other}' do not match: {which} has no partner")
        pairs.append(np.stack([a, b[partner]]))
    i, j = np.concatenate(pairs, axis=1)
    if not len(i):
        return np.arange(n)
    links = coo_array((np.ones(len(i)), (i, j)), shape=(n, n))
    label = connected_components(links, directed=False)[1]
    _, first = np.unique(label, return_index=True)  # number the parts by their first node, so that plain nodes keep order
    return np.argsort(np.argsort(first))[label]
