"""Undirected edges of a mesh, as mass-like matrices see them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dgnet.models.gnn import MeshGraph
from dgnet.operators import EdgeMatrix, Geometry
from dgnet.problems import Problem

Tensor = torch.Tensor


class Pairs(NamedTuple):
    """Undirected edges seen from the matrices."""

    of_cell: Tensor  # [K, (d+1)d/2] edge of each pair of corners
    weight: Tensor  # [E] consistent mass of each edge: sum over its cells of V / ((d+1)(d+2))
    upper: Tensor  # [E] slots of (i, j)
    lower: Tensor  # [E] slots of (j, i)
    first: Tensor  # [E] slots of (i, i)
    second: Tensor  # [E] slots of (j, j)


def cell_pairs(g: Geometry) -> Pairs:
    cache = g.__dict__.setdefault("_pairs", {})
    if "pairs" not in cache:
        n, d = g.mesh.n_nodes, g.dim
        key = g.edges[0] * n + g.edges[1]
        ends = [(a, b) for a in range(d + 1) for b in range(a + 1, d + 1)]
        low = torch.stack([torch.minimum(g.cells[:, a], g.cells[:, b]) for a, b in ends], 1)
        high = torch.stack([torch.maximum(g.cells[:, a], g.cells[:, b]) for a, b in ends], 1)
        edge = torch.searchsorted(key, low * n + high)
        share = g.exact.volumes / ((d + 1) * (d + 2))
        weight = torch.zeros(len(key), dtype=torch.float64, device=g.device).index_add(
            0, edge.ravel(), share[:, None].expand_as(edge).reshape(-1))
        i, j = (torch.as_tensor(g.dof, device=g.device)[end] for end in g.edges)
        cache["pairs"] = Pairs(edge, weight, g.pattern.slots(i, j), g.pattern.slots(j, i), g.pattern.diagonal[i],
                               g.pattern.diagonal[j])
    return cache["pairs"]


def directed_slots(p: Problem, graph: MeshGraph) -> Tensor:
    dof = torch.as_tensor(p.geometry.dof, device=p.geometry.device)
    return p.geometry.pattern.slots(dof[graph.to], dof[graph.frm])


def edge_mass(p: Problem, base: EdgeMatrix) -> Tensor:
    """Consistent mass of every edge [f, E], as it is in `base`: p.mass, with the capacity of its cells, or p.source_mass."""
    e = cell_pairs(p.geometry)
    if p.capacity is None or base is p.source_mass:
        return e.weight[None]
    d = p.mesh.dim
    share = (p.geometry.exact.volumes * p.capacity / ((d + 1) * (d + 2)))[..., None].expand(-1, *e.of_cell.shape).flatten(1)
    return share.new_zeros(len(share), len(e.weight)).index_add(1, e.of_cell.ravel(), share)


def pair_correction(p: Problem, base: EdgeMatrix, delta: Tensor) -> EdgeMatrix:
    """base - graph Laplacian: entry (i, j) grows by delta_ij times the consistent mass of the edge, rows keep their sums."""
    e = cell_pairs(p.geometry)
    c = (edge_mass(p, base) * delta)[None]
    values = base.values.double().index_add(-1, torch.cat([e.upper, e.lower, e.first, e.second]), torch.cat([c, c, -c, -c], -1))
    return EdgeMatrix(base.pattern, values).to(p.dtype)
