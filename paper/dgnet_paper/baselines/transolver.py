"""Transolver (Wu, Luo, Wang, Wang, Long: a fast transformer solver for PDEs on general geometries, ICML 2024).

MLP([x, inputs]) -> 128, then eight pre-norm blocks of physics attention and an MLP of ratio 1. Physics attention assigns nodes
softly to 64 slices (learned temperature), attends among the slices' tokens, and hands the tokens back by the same weights; eight
heads. Predicts the normalised next state. Published size: 0.71 M.

Changed: nothing in the network; inputs are the common adapter's. Relative L2, OneCycle and clipping at 0.1 are the trainer's
(`RECIPE`). Comparable: same network, three blocks of width 88, 32 slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from dgnet.problems import Problem
from dgnet_paper.baselines.adapter import Baseline, Inputs, Prepared, Settings, mlp

Tensor = torch.Tensor

RECIPE = {"lr": 1e-3, "lr_end": 0.0, "weight_decay": 1e-5, "noise": 0.0, "pushforward": 0, "window": 1, "loss": "all",
          "relative": 1, "clip": 0.1}


@dataclass(frozen=True)
class TransolverConfig(Settings):
    hidden: int = 88
    blocks: int = 3
    heads: int = 8
    slices: int = 32
    ratio: int = 1

    @classmethod
    def published(cls) -> Self:
        return cls(hidden=128, blocks=8, slices=64)


class PhysicsAttention(nn.Module):
    """Attention among soft slices of the nodes: linear in their number."""

    def __init__(self, hidden: int, heads: int, slices: int, head: int | None = None) -> None:
        super().__init__()
        self.heads, self.head = heads, head or hidden // heads
        inner = self.heads * self.head
        self.place, self.value = nn.Linear(hidden, inner), nn.Linear(hidden, inner)
        self.slice = nn.Linear(self.head, slices)
        nn.init.orthogonal_(self.slice.weight)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 0.5))
        self.query, self.key, self.content = (nn.Linear(self.head, self.head, bias=False) for _ in range(3))
        self.out = nn.Linear(inner, hidden)

    def split(self, h: Tensor) -> Tensor:
        return h.unflatten(-1, (self.heads, self.head)).transpose(1, 2)  # [B, heads, n, head]

    def forward(self, h: Tensor) -> Tensor:
        """[B, n, H] -> [B, n, H]."""
        weight = torch.softmax(self.slice(self.split(self.place(h))) / self.temperature.clamp(0.1, 5.0), -1)  # [B, heads, n, S]
        token = weight.mT @ self.split(self.value(h)) / (weight.sum(2)[..., None] + 1e-5)  # [B, heads, S, head]
        token = nn.functional.scaled_dot_product_attention(self.query(token), self.key(token), self.content(token))
        return self.out((weight @ token).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, c: TransolverConfig) -> None:
        super().__init__()
        H = c.hidden
        self.before, self.attend = nn.LayerNorm(H), PhysicsAttention(H, c.heads, c.slices)
        self.between, self.feed = nn.LayerNorm(H), mlp([H, c.ratio * H, H], nn.GELU)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attend(self.before(h))
        return h + self.feed(self.between(h))


class Transolver(Baseline):
    name = "transolver"
    predicts = "state"

    def __init__(self, config: TransolverConfig, problem: Problem) -> None:
        super().__init__(problem)
        self.config, H = config, config.hidden
        self.embed = mlp([self.channels + self.dim, 2 * H, H], nn.GELU)
        self.shift = nn.Parameter(torch.rand(H) / H)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.decode = nn.Sequential(nn.LayerNorm(H), nn.Linear(H, self.fields))

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        h = self.embed(torch.cat([state.nodes.x.expand(len(z.u), -1, -1), z.all], -1)) + self.shift
        for block in self.blocks:
            h = block(h)
        return self.decode(h)
