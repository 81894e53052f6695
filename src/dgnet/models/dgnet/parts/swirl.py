"""Swirl: transport along the curl of a learned potential."""

from __future__ import annotations

import torch

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.flow import GENTLE, FlowInCells, direction_features
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem

Tensor = torch.Tensor


class Swirl(Part):
    """Divergence-free corrections of the transport: a learned potential in each cell, which follows the flow's direction.

    Guarantee: skew, with zero row and column sums. It moves, but neither makes nor destroys energy or mass.
    """

    def contribute(self, build: Build) -> None:
        p, numbers = build.problem, build.numbers
        assert numbers is not None and numbers.flow is not None
        if p.pde.velocity is None:
            return
        raw = soft_limit(GENTLE * numbers.flow[:, direction_features(p.mesh.dim):], 0.5, 0.5)
        build.flow_terms.append((lambda flow, raw: swirl_transport(p, raw, flow), (raw,)))


def swirl_transport(p: Problem, raw: Tensor, flow: FlowInCells) -> EdgeMatrix:
    """sum over cells of V a . (grad phi_i x grad phi_j): transport along the curl of a, a piecewise constant potential.

    a = h |v| times `raw` [K, w] (one component, 2D) or [K, 3 w] (3D) times the w features of the flow's direction. Skew, with zero
    row and column sums whatever `raw` is: it moves, but neither makes nor destroys anything. Values [b, 1, nnz], in double.
    """
    g = p.geometry.exact
    scale, w = g.volumes ** (1 + 1 / g.dim) * flow.speed, flow.features
    x, y = g.gradients[:, :, None, :], g.gradients[:, None, :, :]
    if g.dim == 2:
        potential = (w * raw).sum(-1) * scale
        local = potential[..., None, None] * (x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0])
    else:
        a = torch.einsum("kaw,...kw->...ka", raw.view(len(raw), 3, -1), w) * scale[..., None]
        local = torch.einsum("...ka,kija->...kij", a, torch.linalg.cross(*torch.broadcast_tensors(x, y)))
    return EdgeMatrix(g.pattern, EdgeMatrix.from_cells(g.pattern, local).values.reshape(-1, 1, g.pattern.nnz))
