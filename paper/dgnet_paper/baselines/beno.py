"""BENO: boundary-embedded neural operators (Wang, Li, Dwivedi, Hara, Wu, ICLR 2024).

Two unshared branches, summed: one sees the interior forcing with the boundary values zeroed, the other the boundary values with
the forcing zeroed. Node features: x, forcing, smoothed forcing, its gradient, distance to the boundary; edges: nearest neighbours
and Delaunay. Ten message-passing steps of width 128 per branch; a small transformer over boundary points (x, g), max-pooled,
joins every node update. Published size: 8.7 M.

Changed: published for steady elliptic problems; here one time step is the elliptic problem, its forcing is (u^k, source), its
boundary values are u at boundary nodes (Dirichlet nodes: at the end of the step), and the output is the normalised increment.
Gradients are the mesh's instead of a grid's, smoothing is a mean over the neighbours; known coefficients and node types join the
node features. At most 128 boundary points, by farthest-point sampling, enter the transformer. The widths inside the MLPs (256) and
the transformer's are chosen to meet the published count. Comparable: three steps of width 32, 48 inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import nn

from dgnet.operators import EdgeMatrix, gradient
from dgnet.problems import Problem
from dgnet_paper.baselines.adapter import (
    Baseline,
    EdgeMLP,
    Graph,
    Inputs,
    Nodes,
    Prepared,
    Settings,
    farthest,
    kept,
    mlp,
    near_graph,
)

Tensor = torch.Tensor

RECIPE = {"lr": 5e-4, "lr_end": 5e-6, "weight_decay": 5e-4, "noise": 0.0, "pushforward": 0, "window": 1, "loss": "all", "clip": 1.0}


@dataclass(frozen=True)
class BENOConfig(Settings):
    hidden: int = 32
    inner: int = 48
    steps: int = 3
    heads: int = 4
    boundary_layers: int = 1
    boundary_points: int = 128
    neighbours: int = 8

    @classmethod
    def published(cls) -> Self:
        return cls(hidden=128, inner=256, steps=10, heads=4, boundary_layers=1)


class Own(NamedTuple):
    graph: Graph
    gradient: EdgeMatrix  # values [d, nnz]
    rim: Tensor  # [P] boundary points of the transformer
    distance: Tensor  # [n, 1] to the boundary, in spacings of the training mesh once divided


class Attention(nn.Module):
    """One pre-norm transformer layer over the boundary points [B, P, H]."""

    def __init__(self, H: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.qkv, self.out = nn.LayerNorm(H), nn.Linear(H, 3 * H), nn.Linear(H, H)
        self.feed = nn.Sequential(nn.LayerNorm(H), mlp([H, 2 * H, H]))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [B, heads, P, H/heads]
        h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return h + self.feed(h)


class Branch(nn.Module):
    def __init__(self, c: BENOConfig, dim: int, inputs: int, fields: int) -> None:
        super().__init__()
        H, I = c.hidden, c.inner
        self.node, self.edge = mlp([inputs, I, H], nn.SiLU, norm=True), mlp([dim + 1, I, H], nn.SiLU, norm=True)
        self.rim = nn.Linear(dim + fields, H)
        self.transformer = nn.Sequential(*(Attention(H, c.heads) for _ in range(c.boundary_layers)), nn.LayerNorm(H))
        self.message = nn.ModuleList(EdgeMLP(H, H, [I, I, H], nn.SiLU, norm=True) for _ in range(c.steps))
        self.update = nn.ModuleList(mlp([3 * H, I, I, H], nn.SiLU, norm=True) for _ in range(c.steps))
        self.decode = mlp([H, I, I, fields], nn.SiLU)

    def forward(self, x: Tensor, edge: Tensor, rim: Tensor, graph: Graph) -> Tensor:
        """Nodes [B, n, a], edges [E, d+1], boundary points [B, P, d+F] -> [B, n, F]."""
        h, e = self.node(x), self.edge(edge)
        shape = self.transformer(self.rim(rim)).amax(1, keepdim=True).expand_as(h)  # the whole boundary in one vector
        for message, update in zip(self.message, self.update):
            new = message(h, e, graph)
            e = e + new
            h = h + update(torch.cat([h, graph.mean(new), shape], -1))
        return self.decode(h)


class BENO(Baseline):
    name = "beno"

    def __init__(self, config: BENOConfig, problem: Problem) -> None:
        super().__init__(problem)
        self.config = config
        forcing = 2 * self.fields
        inputs = forcing * (2 + self.dim) + self.dim + 1 + self.channels - forcing
        self.interior = Branch(config, self.dim, inputs, self.fields)
        self.rim = Branch(config, self.dim, inputs, self.fields)

    def ready(self, p: Problem, nodes: Nodes) -> Own:
        def make(p: Problem) -> Own:
            on = np.flatnonzero(nodes.boundary[:, 0].cpu().numpy() > 0)
            on = on if len(on) else np.arange(p.n)  # a torus has no boundary: its points stand in for it
            distance = cKDTree(nodes.points[on]).query(nodes.points)[0][:, None]
            rim = torch.as_tensor(on[farthest(nodes.points[on], self.config.boundary_points)], device=p.geometry.device)
            return Own(near_graph(p, self.config.neighbours), gradient(p.geometry), rim, p.geometry.tensor(distance))

        return kept(p, ("beno", self.config.neighbours, self.config.boundary_points), make)

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        own, p, nodes = state.own, state.problem, state.nodes
        graph: Graph = own.graph
        B, n, F = z.u.shape
        g = z.u  # boundary values
        w = p.fixed_values(z.t + p.dt)
        if p.fixed is not None and w is not None:
            g = torch.where(p.fixed.T, (w - self.mean) / self.std, g)
        inside = 1 - nodes.boundary
        place = torch.cat([nodes.x.expand(B, -1, -1), (own.distance / self.length).expand(B, -1, -1), z.known, z.types], -1)
        row, col = own.gradient.pattern.row, own.gradient.pattern.col

        def features(q: Tensor) -> Tensor:
            """q [B, n, 2F] with its neighbours' mean and its gradient per spacing [B, n, 2F (2 + d)], and the place."""
            smooth = graph.mean(q.index_select(1, graph.frm))
            at = q.index_select(1, col)
            slopes = [q.new_zeros(B, n, 2 * F).index_add(1, row, at * (v * self.length)[:, None]) for v in own.gradient.values]
            return torch.cat([q, smooth, *slopes, place], -1)

        def points(g: Tensor) -> Tensor:
            return torch.cat([nodes.x.expand(B, -1, -1), g], -1).index_select(1, own.rim)

        edge, zero = graph.features / self.length, torch.zeros_like(g)
        first = self.interior(features(torch.cat([z.u * inside, z.source], -1)), edge, points(zero), graph)
        return first + self.rim(features(torch.cat([g * nodes.boundary, zero], -1)), edge, points(g), graph)
