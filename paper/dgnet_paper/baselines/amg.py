"""AMG: arbitrary-geometry multi-graph neural operator (Li, Song, Xiao, Lai, Wang: Harnessing scale and physics, KDD 2025).

MLP([x, inputs]) -> 128, then three blocks of: physics attention (32 tokens, 8 heads), graph attention on a local graph (the nodes
where the fields are hardest to interpolate, six nearest neighbours each), graph attention on a global graph (25% of the nodes by
farthest-point sampling, four neighbours each by similarity of features). Predicts the normalised next state. Published size: 3.5 M.

Changed: no compiled graph extensions; graphs are neighbour lists, gathered in one batch. What is hard to interpolate is read from
state and source: the distance to their interpolation from the three nearest global nodes. The local graph has as many nodes as
the global one, both at most 2048. Each sub-layer is pre-norm and followed by an MLP; head width (128) and MLP ratio are chosen to
meet the published count. Comparable: two blocks of width 48, heads of 12.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import nn

from dgnet.problems import Problem
from dgnet_paper.baselines.adapter import Baseline, Inputs, Nodes, Prepared, Settings, farthest, kept, mlp
from dgnet_paper.baselines.transolver import PhysicsAttention

Tensor = torch.Tensor

RECIPE = {"lr": 1e-3, "lr_end": 1e-5, "weight_decay": 1e-5, "noise": 0.0, "pushforward": 0, "window": 1, "loss": "all",
          "relative": 1, "clip": 1.0}


@dataclass(frozen=True)
class AMGConfig(Settings):
    hidden: int = 48
    blocks: int = 2
    heads: int = 8
    head: int = 12  # width of a head of the graph attention
    token_head: int = 12  # width of a head of the physics attention
    tokens: int = 32
    ratio: int = 2
    local_neighbours: int = 6
    global_neighbours: int = 4
    share: float = 0.25
    most: int = 2048

    @classmethod
    def published(cls) -> Self:
        return cls(hidden=128, blocks=3, head=128, token_head=64, ratio=4)


class Own(NamedTuple):
    coarse: Tensor  # [M] nodes of the global graph
    near: Tensor  # [n, 3] nearest global nodes (numbers in `coarse`) ...
    weight: Tensor  # [n, 3] ... and their share in the interpolation


def pick(h: Tensor, index: Tensor) -> Tensor:
    """h [B, M, H] at index [B, ...] -> [B, ..., H]."""
    offset = torch.arange(len(h), device=h.device).view(-1, *[1] * (index.dim() - 1)) * h.shape[1]
    return h.flatten(0, 1).index_select(0, (index + offset).ravel()).view(*index.shape, h.shape[-1])


def neighbours(distance: Tensor, k: int) -> Tensor:
    """Itself and the k nearest others [B, M, k+1] from distances [B, M, M]."""
    M = distance.shape[-1]
    own = torch.arange(M, device=distance.device)
    far = distance.masked_fill(torch.eye(M, dtype=torch.bool, device=distance.device), torch.inf)
    return torch.cat([own[:, None].expand(len(distance), M, 1), far.topk(min(k, M - 1), largest=False).indices], -1)


class GraphAttention(nn.Module):
    """Additive attention over neighbour lists (GAT), several heads."""

    def __init__(self, hidden: int, heads: int, head: int) -> None:
        super().__init__()
        self.heads = heads
        self.value, self.out = nn.Linear(hidden, heads * head, bias=False), nn.Linear(heads * head, hidden)
        self.here = nn.Parameter(torch.randn(heads, head) / head**0.5)
        self.there = nn.Parameter(torch.randn(heads, head) / head**0.5)

    def forward(self, h: Tensor, near: Tensor) -> Tensor:
        """h [B, M, H], near [B, M, k] -> [B, M, H]."""
        z = self.value(h)
        by_head = z.unflatten(-1, (self.heads, -1))
        score = (by_head * self.here).sum(-1)[:, :, None] + pick((by_head * self.there).sum(-1), near)  # [B, M, k, heads]
        weight = torch.softmax(nn.functional.leaky_relu(score, 0.2), 2)
        return self.out(torch.einsum("bmkh,bmkhd->bmhd", weight, pick(z, near).unflatten(-1, (self.heads, -1))).flatten(2))


class Block(nn.Module):
    def __init__(self, c: AMGConfig) -> None:
        super().__init__()
        H = c.hidden
        self.global_neighbours = c.global_neighbours
        self.norms = nn.ModuleList(nn.LayerNorm(H) for _ in range(3))
        self.physics = PhysicsAttention(H, c.heads, c.tokens, c.token_head)
        self.local, self.wide = GraphAttention(H, c.heads, c.head), GraphAttention(H, c.heads, c.head)
        self.feeds = nn.ModuleList(nn.Sequential(nn.LayerNorm(H), mlp([H, c.ratio * H, H], nn.GELU)) for _ in range(3))

    def forward(self, h: Tensor, chosen: Tensor, near: Tensor, coarse: Tensor) -> Tensor:
        """h [B, n, H]; local nodes `chosen` [B, M] with neighbours `near` [B, M, k]; global nodes `coarse` [M]."""
        h = h + self.physics(self.norms[0](h))
        h = h + self.feeds[0](h)
        local = self.local(pick(self.norms[1](h), chosen), near)
        h = h.scatter_add(1, chosen[..., None].expand_as(local), local)
        h = h + self.feeds[1](h)
        wide = self.norms[2](h).index_select(1, coarse)
        with torch.no_grad():
            alike = neighbours(torch.cdist(wide, wide), self.global_neighbours)
        h = h.index_add(1, coarse, self.wide(wide, alike))
        return h + self.feeds[2](h)


class AMG(Baseline):
    name = "amg"
    predicts = "state"

    def __init__(self, config: AMGConfig, problem: Problem) -> None:
        super().__init__(problem)
        self.config, H = config, config.hidden
        self.embed = mlp([self.channels + self.dim, 2 * H, H], nn.GELU)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.decode = nn.Sequential(nn.LayerNorm(H), nn.Linear(H, self.fields))

    def ready(self, p: Problem, nodes: Nodes) -> Own:
        def make(p: Problem) -> Own:
            count = max(min(4, p.n), min(round(self.config.share * p.n), self.config.most))
            coarse = farthest(nodes.points, count)
            gap, near = cKDTree(nodes.points[coarse]).query(nodes.points, min(3, count))
            weight = 1 / np.maximum(gap, 1e-9 * p.mesh.spacing)
            device = p.geometry.device
            return Own(torch.as_tensor(coarse, device=device), torch.as_tensor(near, device=device),
                       p.geometry.tensor(weight / weight.sum(1, keepdims=True)))

        return kept(p, ("amg", self.config.share, self.config.most), make)

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        own: Own = state.own
        x = state.nodes.x
        with torch.no_grad():
            field = torch.cat([z.u, z.source], -1)
            smooth = (field.index_select(1, own.coarse)[:, own.near] * own.weight[..., None]).sum(2)  # [B, n, 2F]
            chosen = (field - smooth).square().sum(-1).topk(len(own.coarse), sorted=False).indices  # [B, M]
            places = x[chosen]
            near = neighbours(torch.cdist(places, places), self.config.local_neighbours)
        h = self.embed(torch.cat([x.expand(len(z.u), -1, -1), z.all], -1))
        for block in self.blocks:
            h = block(h, chosen, near, own.coarse)
        return self.decode(h)
