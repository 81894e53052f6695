"""Streamline diffusion."""

from __future__ import annotations

import torch

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.flow import GENTLE, FlowInCells, direction_features
from dgnet.models.dgnet.limits import ceiling
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem

Tensor = torch.Tensor

_STREAMLINE = 10.0  # largest strength of streamline diffusion; 1 is what an upwind scheme has, trained models use up to 1.3


class Streamline(Part):
    """Diffusion along the flow, with a learned strength in each cell, which may depend on the flow's direction.

    Guarantee: symmetric and positive semidefinite with zero row sums; between 0 and 10 times that of an upwind scheme.
    """

    def contribute(self, build: Build) -> None:
        p, numbers = build.problem, build.numbers
        assert numbers is not None
        if p.pde.velocity is None:
            return
        tensors: tuple[Tensor, ...] = (numbers.cell[:, -1],)
        if numbers.flow is not None:
            tensors = (*tensors, GENTLE * numbers.flow[:, :direction_features(p.mesh.dim)])

        def term(flow: FlowInCells, strength: Tensor, directional: Tensor | None = None) -> EdgeMatrix:
            return streamline_diffusion(p, strength, flow, directional)

        build.flow_terms.append((term, tensors))


def streamline_diffusion(p: Problem, strength: Tensor, flow: FlowInCells, directional: Tensor | None = None) -> EdgeMatrix:
    """sum over cells of V tau (v . grad phi_i)(v . grad phi_j), tau = strength h / 2|v|. Values [b, 1, nnz], in double.

    strength [K], plus `directional` [K, w] times the w features of the flow's direction; where that is negative, zero; at most 10.
    """
    g = p.geometry.exact
    if directional is not None:
        strength = strength + (directional * flow.features).sum(-1)
    strength = ceiling(strength.clamp(min=0.0), _STREAMLINE)  # clamp passes the gradient at 0, so it can leave zero
    along = torch.einsum("...kd,kid->...ki", flow.direction, g.gradients)
    scale = 0.5 * g.volumes ** (1 + 1 / g.dim) * strength * flow.speed
    values = EdgeMatrix.from_cells(g.pattern, scale[..., None, None] * along[..., :, None] * along[..., None, :]).values
    return EdgeMatrix(g.pattern, values.reshape(-1, 1, g.pattern.nnz))
