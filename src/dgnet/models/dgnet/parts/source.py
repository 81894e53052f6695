"""The source's own stencil P."""

from __future__ import annotations

import torch

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.edges import cell_pairs
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem

Tensor = torch.Tensor

_RANGE = 3.0  # of an entry, in units of the consistent mass of its edge


class Source(Part):
    """P: how each node gathers the source from its neighbours, one learned number for each directed edge.

    Guarantee: P keeps its row sums, so a uniform source is exact; no entry moves by more than three times the mass of its edge.
    """

    def contribute(self, build: Build) -> None:
        assert build.numbers is not None
        build.source = source_stencil(build.problem, soft_limit(build.numbers.directed, _RANGE, _RANGE))


def source_stencil(p: Problem, delta: Tensor) -> EdgeMatrix:
    """S plus delta_ij times the consistent mass of the edge at (i, j), taken from (i, i): how node i gathers the source."""
    e = cell_pairs(p.geometry)
    c = (torch.cat([e.weight, e.weight]) * delta)[None, None]
    S = p.source_mass
    values = S.values.double().index_add(-1, torch.cat([e.upper, e.lower, e.first, e.second]), torch.cat([c, -c], -1))
    return EdgeMatrix(S.pattern, values).to(p.dtype)
