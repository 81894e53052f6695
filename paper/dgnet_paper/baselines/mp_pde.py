"""MP-PDE: message passing neural PDE solver (Brandstetter, Worrall, Welling, ICLR 2022).

Nodes are embedded from (u, x, equation parameters) by an MLP of 128 (Swish). Six layers: message(h_i, h_j, u_i - u_j, x_i - x_j,
parameters), mean aggregation, update(h_i, message, parameters), residual, instance norm over the nodes. The decoder is a 1-D
convolution along the hidden vector, u+ = u + dt d. Published size: 0.63 M.

Changed: the paper bundles K = 25 past frames into 25 future ones; tasks here start from a single frame and are stepped one at a
time, so K = 1, and the second convolution covers what the first leaves. "Equation parameters" are fields here: source, known
coefficients and node type at the receiving node. The time is no input (see the adapter). The last convolution has one channel
per field. Pushforward is the trainer's (`RECIPE`). Comparable: same network, four layers of width 72.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from dgnet.problems import Problem
from dgnet_paper.baselines.adapter import Baseline, EdgeMLP, Graph, Inputs, Nodes, Prepared, Settings, mesh_graph, mlp

Tensor = torch.Tensor

RECIPE = {"lr": 1e-4, "lr_end": 1e-6, "weight_decay": 1e-8, "noise": 0.0, "pushforward": 2, "window": 1, "loss": "all", "clip": 1.0}


@dataclass(frozen=True)
class MPPDEConfig(Settings):
    hidden: int = 72
    layers: int = 4
    kernel: int = 16
    stride: int = 3

    @classmethod
    def published(cls) -> Self:
        return cls(hidden=128, layers=6)


class Layer(nn.Module):
    def __init__(self, H: int, edge: int, parameters: int) -> None:
        super().__init__()
        self.message = EdgeMLP(H, edge, [H, H], nn.SiLU)
        self.update = mlp([2 * H + parameters, H, H], nn.SiLU)

    def forward(self, h: Tensor, e: Tensor, parameters: Tensor, graph: Graph) -> Tensor:
        m = graph.mean(nn.functional.silu(self.message(h, e, graph)))
        h = h + nn.functional.silu(self.update(torch.cat([h, m, parameters], -1)))
        h = h - h.mean(-2, keepdim=True)  # instance norm: every trajectory and channel over its nodes
        return h * torch.rsqrt(h.square().mean(-2, keepdim=True) + 1e-5)


class MPPDE(Baseline):
    name = "mp-pde"

    def __init__(self, config: MPPDEConfig, problem: Problem) -> None:
        super().__init__(problem)
        self.config, H = config, config.hidden
        parameters = self.channels - self.fields
        self.embed = mlp([self.channels + self.dim, H, H], nn.SiLU)
        self.layers = nn.ModuleList(Layer(H, self.fields + self.dim + parameters, parameters) for _ in range(config.layers))
        left = (H - config.kernel) // config.stride + 1
        self.decode = nn.Sequential(nn.Conv1d(1, 8, config.kernel, config.stride), nn.SiLU(), nn.Conv1d(8, self.fields, left))

    def ready(self, p: Problem, nodes: Nodes) -> Graph:
        return mesh_graph(p)

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        graph: Graph = state.own
        B, n, F = z.u.shape
        parameters = z.all[..., F:]
        h = nn.functional.silu(self.embed(torch.cat([z.all, state.nodes.x.expand(B, -1, -1)], -1)))
        e = torch.cat([z.u.index_select(1, graph.to) - z.u.index_select(1, graph.frm),
                       (-graph.step / self.length).expand(B, -1, -1), parameters.index_select(1, graph.to)], -1)  # [B, E, .]
        for layer in self.layers:
            h = layer(h, e, parameters, graph)
        return self.decode(h.reshape(B * n, 1, -1)).reshape(B, n, F)
