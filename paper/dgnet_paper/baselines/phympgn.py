"""PhyMPGN: physics-encoded message passing graph network (Zeng, Liu, Chen, Zhao, Liu, Sun, ICLR 2025).

    du/dt = c (L_cot u + d^-1 NN_lap) + NN_mp + f,      one step of RK2 (Heun)

L_cot is the cotangent Laplacian, d the control volume, c the diffusivity. NN_mp: node encoder [., 32, 64, 128], edge encoder on
(du, dx, |dx|), five mean-aggregated layers of message(h_i, h_j - h_i, e), residual except the last, decoder [128, 64, 32, F];
NN_lap the same with three layers of width 24; ELU. Boundary values are padded in physical and latent space. Published size: 0.95 M.

Changed: the known diffusivity field takes the place of 1/Re (the P1 stiffness, so tetrahedra and jumps in it work, and no-flux
boundaries need no ghost nodes); the step-averaged source joins the right-hand side; velocity, decay, boundary load and reaction
are left to NN_mp, which sees them as inputs. Padding: Dirichlet values hold at both stages, and their nodes keep the encoder's
latent vector through all layers. Where dt is beyond Heun's limit for the diffusion (laser-heat-3d, light-reaction), the linear part
takes substeps with the networks held; with one substep it is the published scheme. The last window frames, 3% noise and
clipping at 0.15 are the trainer's (`RECIPE`). Comparable: same network, width 48.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple, Self

import torch
from torch import nn

from dgnet.operators import stiffness
from dgnet.problems import Problem
from dgnet.stepping import product
from dgnet_paper.baselines.adapter import Baseline, EdgeMLP, Graph, Inputs, Nodes, Prepared, Settings, kept, mesh_graph, mlp

Tensor = torch.Tensor

RECIPE = {"lr": 2.5e-4, "lr_end": 2.5e-6, "weight_decay": 1e-2, "noise": 0.03, "pushforward": 0, "window": 19, "loss": "ends",
          "clip": 0.15}
LIMIT = 1.6  # dt times the largest eigenvalue per substep; Heun is stable to 2


@dataclass(frozen=True)
class PhyMPGNConfig(Settings):
    hidden: int = 48
    layers: int = 5
    depth: int = 3  # hidden layers of the message and update MLPs
    laplace_hidden: int = 24
    laplace_layers: int = 3

    @classmethod
    def published(cls) -> Self:
        return cls(hidden=128)


class Own(NamedTuple):
    graph: Graph
    relative: Tensor  # [n, F] diffusivity over its mean, times mean control volume over control volume
    substeps: int


class Network(nn.Module):
    """Encoder, mean-aggregated layers, decoder: [B, n, a] -> [B, n, F]."""

    def __init__(self, dim: int, inputs: int, fields: int, H: int, layers: int, depth: int) -> None:
        super().__init__()
        small = [max(4, H // 4), max(8, H // 2)]
        self.node, self.edge = mlp([inputs, *small, H], nn.ELU), mlp([fields + dim + 1, *small, H], nn.ELU)
        self.message = nn.ModuleList(EdgeMLP(H, H, [H] * (depth + 1), nn.ELU, relative=True) for _ in range(layers))
        self.update = nn.ModuleList(mlp([2 * H] + [H] * (depth + 1), nn.ELU) for _ in range(layers))
        self.decode = mlp([H, *small[::-1], fields], nn.ELU)

    def forward(self, x: Tensor, u: Tensor, edge: Tensor, graph: Graph, pinned: Tensor | None) -> Tensor:
        start = h = self.node(x)
        change = u.index_select(1, graph.frm) - u.index_select(1, graph.to)
        e = self.edge(torch.cat([change, edge.expand(len(u), -1, -1)], -1))  # [B, E, H]
        for k, (message, update) in enumerate(zip(self.message, self.update)):
            new = update(torch.cat([h, graph.mean(message(h, e, graph))], -1))
            h = new if k == len(self.message) - 1 else h + new
            h = h if pinned is None else torch.where(pinned, start, h)  # latent padding
        return self.decode(h)


class PhyMPGN(Baseline):
    name = "phympgn"

    def __init__(self, config: PhyMPGNConfig, problem: Problem) -> None:
        super().__init__(problem)
        c = self.config = config
        self.mp = Network(self.dim, self.channels, self.fields, c.hidden, c.layers, c.depth)
        self.laplace = Network(self.dim, self.fields, self.fields, c.laplace_hidden, c.laplace_layers, 1)

    def ready(self, p: Problem, nodes: Nodes) -> Own:
        def make(p: Problem) -> Own:
            K = p.diffusion_part  # [1, f, nnz]
            D = (K.diagonal[0] / stiffness(p.geometry).diagonal).T.expand(-1, self.fields)  # [n, F]
            mean = D.mean()
            D = torch.zeros_like(D) if float(mean) == 0 else D / mean
            rows = K.values.new_zeros(K.values.shape[1], p.n).index_add(1, K.pattern.row, K.values[0].abs())
            fastest = float((rows / nodes.volume.T).max())  # bound of the largest eigenvalue of M^-1 K
            return Own(mesh_graph(p), (D * nodes.volume.mean() / nodes.volume).detach(), max(1, ceil(p.dt * fastest / LIMIT)))

        return kept(p, "phympgn", make)

    def learned(self, own: Own, z: Inputs, pinned: Tensor | None) -> Tensor:
        """c d^-1 NN_lap + NN_mp in units of the training data's rates."""
        edge = own.graph.features / self.length
        return own.relative * self.laplace(z.u, z.u, edge, own.graph, pinned) + self.mp(z.all, z.u, edge, own.graph, pinned)

    def advance(self, state: Prepared, u: Tensor, source: Tensor | None, t: float) -> Tensor:
        p, own, dt = state.problem, state.own, state.problem.dt
        pinned = None if p.fixed is None else p.fixed.T  # [n, f]
        held = None if pinned is None else pinned.any(1, keepdim=True)  # [n, 1]
        w = p.fixed_values(t + dt)

        def pad(v: Tensor) -> Tensor:
            return v if pinned is None or w is None else torch.where(pinned, w, v)

        def diffusion(v: Tensor) -> Tensor:
            return -product(p.diffusion_part, v) / state.nodes.volume

        def rest(v: Tensor) -> Tensor:
            out = self.rate * self.learned(own, self.inputs(state, v, source, t), held)
            return out if source is None else out + source

        def substeps(v: Tensor, r: Tensor) -> Tensor:
            h = dt / own.substeps
            for _ in range(own.substeps):
                first = diffusion(v) + r
                v = pad(v + 0.5 * h * (first + diffusion(pad(v + h * first)) + r))
            return v

        first = rest(u)
        if own.substeps > 1:
            return substeps(u, 0.5 * (first + rest(substeps(u, first))))
        first = first + diffusion(u)
        v = pad(u + dt * first)
        return u + 0.5 * dt * (first + diffusion(v) + rest(v))
