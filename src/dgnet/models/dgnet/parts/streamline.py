"""Streamline diffusion."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dgnet.models.dgnet.parts.limits import ceiling
from dgnet.operators import EdgeMatrix, nodal_velocity
from dgnet.problems import Discretisation

Tensor = torch.Tensor

_STREAMLINE = 10.0  # largest strength of streamline diffusion; 1 is what an upwind scheme has, trained models use up to 1.3


class FlowInCells(NamedTuple):
    """The flow as learned numbers meet it."""

    way: Tensor  # [..., K, d] its direction, zero where it rests
    speed: Tensor  # [..., K], times the capacity

    @classmethod
    def at(cls, p: Discretisation, t: float) -> FlowInCells:
        g = p.geometry
        velocity = p.pde.velocity(t) if callable(p.pde.velocity) else p.pde.velocity
        assert velocity is not None
        v = nodal_velocity(g, velocity).double()[..., g.cells, :].mean(-2)
        speed = v.norm(dim=-1)
        way = v / speed.clamp(min=torch.finfo(v.dtype).tiny)[..., None]
        return cls(way, speed if p.capacity is None else speed * p.carried_capacity)

    @property
    def seen(self) -> Tensor:
        """What learned numbers multiply: the direction w and w w^T, [..., K, d + d(d+1)/2]."""
        w, d = self.way, self.way.shape[-1]
        return torch.cat([w, *(w[..., a, None] * w[..., a:] for a in range(d))], -1)


def streamline_diffusion(p: Discretisation, strength: Tensor, flow: FlowInCells, turning: Tensor | None = None) -> EdgeMatrix:
    """sum over cells of V tau (v . grad phi_i)(v . grad phi_j), tau = strength h / 2|v|. Values [b, 1, nnz], in double.

    strength [K], plus `turning` [K, ways] times what is seen of the direction; where that is negative, zero; at most 10.
    """
    g = p.geometry.exact
    if turning is not None:
        strength = strength + (turning * flow.seen).sum(-1)
    strength = ceiling(strength.clamp(min=0.0), _STREAMLINE)  # clamp passes the gradient at 0, so it can leave zero
    along = torch.einsum("...kd,kid->...ki", flow.way, g.gradients)
    scale = 0.5 * g.volumes ** (1 + 1 / g.dim) * strength * flow.speed
    values = EdgeMatrix.from_cells(g.pattern, scale[..., None, None] * along[..., :, None] * along[..., None, :]).values
    return EdgeMatrix(g.pattern, values.reshape(-1, 1, g.pattern.nnz))
