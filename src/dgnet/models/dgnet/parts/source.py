"""The source's own stencil."""

from __future__ import annotations

import torch

from dgnet.models.dgnet.parts.edges import cell_pairs
from dgnet.models.gnn import MeshGraph
from dgnet.operators import EdgeMatrix
from dgnet.problems import Discretisation

Tensor = torch.Tensor

def source_stencil(p: Discretisation, graph: MeshGraph, delta: Tensor) -> EdgeMatrix:
    """S plus delta_ij times the consistent mass of the edge at (i, j), taken from (i, i): how node i gathers the source."""
    e = cell_pairs(p.geometry)
    c = (torch.cat([e.weight, e.weight]) * delta)[None, None]
    S = p.source_mass
    values = S.values.double().index_add(-1, torch.cat([e.upper, e.lower, e.first, e.second]), torch.cat([c, -c], -1))
    return EdgeMatrix(S.pattern, values).to(p.dtype)
