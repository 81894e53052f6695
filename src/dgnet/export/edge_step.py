"""The universal step in plain operations: nodes, and the memory of the edges beside them (`Gathering`)."""

from __future__ import annotations

import torch
from torch import nn

from dgnet.export.plain import Padded, Step
from dgnet.models.universal.gathering import Gathering
from dgnet.problems.lift import Lift
from dgnet.stepping import GreenSolver

Tensor = torch.Tensor


class Middles(nn.Module):
    """From values at the nodes [B, N, F] those at the middles of edges [B, E, F]; `curve`: their distance from the mean of ends."""

    first: Tensor
    second: Tensor

    def __init__(self, g: Gathering, lift: Lift, dtype: torch.dtype) -> None:
        super().__init__()
        self.fit = Padded(lift.index.T, lift.weight.T[..., None].to(dtype))
        self.register_buffer("first", g.first.long())
        self.register_buffer("second", g.second.long())

    def forward(self, u: Tensor) -> Tensor:
        level = u[:, :1]
        return level + self.fit(u - level)

    def curve(self, u: Tensor, middles: Tensor) -> Tensor:
        return middles - 0.5 * (u.index_select(1, self.first) + u.index_select(1, self.second))


class EdgeStart(nn.Module):
    """A start at the nodes [B, N, F] as a state: the same, then the memory of the edges [B, N + E, F]."""

    def __init__(self, g: Gathering, lift: Lift, dtype: torch.dtype) -> None:
        super().__init__()
        self.middles = Middles(g, lift, dtype)

    def forward(self, u: Tensor) -> Tensor:
        return torch.cat([u, self.middles.curve(u, self.middles(u))], 1)


class EdgeStep(Step):
    """A step of a state [B, N + E, F] with a source at the nodes [B, N, F], which is fitted at the middles."""

    keep_memory: Tensor
    gain: Tensor

    def __init__(self, solver: GreenSolver, g: Gathering, lift: Lift) -> None:
        super().__init__(solver, near=g.near)
        dtype = solver.problem.dtype
        self.n, self.middles = g.n, Middles(g, lift, dtype)
        crow, _, col, _ = g.places
        self.of_middles, self.of_memory = (Padded.rows(crow, col, values.to(dtype)) for values in (g.middle, g.memory))
        self.register_buffer("keep_memory", g.keep[:, None].to(dtype))
        self.register_buffer("gain", g.gain[:, None].to(dtype))

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        nodes, memory, f = u[:, :self.n], u[:, self.n:].to(self.dtype), source.to(self.dtype)
        middles = self.middles(f)
        new = self.stepped(nodes, source, self.of_middles(middles) + self.of_memory(memory))
        kept = self.keep_memory * memory + self.gain * self.middles.curve(f, middles)
        return torch.cat([new, kept.to(u.dtype)], 1)
