"""A given flow as learned numbers meet it, cell by cell."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dgnet.operators import nodal_velocity
from dgnet.problems import Problem

Tensor = torch.Tensor

GENTLE = 0.2  # scale of numbers that multiply these features: they are many in each cell, so an optimiser should move them less


def direction_features(dim: int) -> int:
    """How many features of a direction there are, see `FlowInCells.features`."""
    return dim + dim * (dim + 1) // 2


class FlowInCells(NamedTuple):
    """Direction and speed of the flow in each cell."""

    direction: Tensor  # [..., K, d], zero where the flow rests
    speed: Tensor  # [..., K], times the capacity

    @classmethod
    def at(cls, p: Problem, t: float) -> FlowInCells:
        g = p.geometry
        velocity = p.pde.velocity(t) if callable(p.pde.velocity) else p.pde.velocity
        assert velocity is not None
        v = nodal_velocity(g, velocity).double()[..., g.cells, :].mean(-2)
        speed = v.norm(dim=-1)
        direction = v / speed.clamp(min=torch.finfo(v.dtype).tiny)[..., None]
        return cls(direction, speed if p.capacity is None else speed * p.carried_capacity)

    @property
    def features(self) -> Tensor:
        """What learned numbers multiply: the direction w and the upper triangle of w w^T, [..., K, d + d(d+1)/2]."""
        w, d = self.direction, self.direction.shape[-1]
        return torch.cat([w, *(w[..., a, None] * w[..., a:] for a in range(d))], -1)
