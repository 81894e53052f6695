"""SINGER-style: a small network u_theta(x) whose weights evolve by a graph network on the weight graph.

After SINGER (Feng et al.: stochastic network graph evolving operator, 2025), which is no mesh method and has no source: dtheta/dt
comes from a GNN whose nodes are the neurons and whose edges are the weights of u_theta, integrated by RK4. There is no published
size to meet. Name it "SINGER-style" in every table: any supervised version with a source is an adaptation. This one:

- theta is found from the state at every step: the hidden weights are shared and trained, the last layer is the least-squares fit
  to u (weighted by control volumes, ridge), exact and differentiable. The protocol's steps then need no memory but u itself.
- dtheta/dt is conditioned on a pooled encoding of all inputs; the last layer's edges also see the source, fitted the same way.
- u+ = u + (u_theta+ - u_theta), in units of the training data's rates: what u_theta cannot represent stays instead of being lost.
- data loss at the nodes, like every other model; sine activations, since fields here have fine detail.
Published and comparable are the same setting: u_theta [d, 32, 32, F], GNN of 3 rounds, width 68.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from dgnet.problems import Problem
from dgnet_paper.baselines.adapter import Baseline, Inputs, Nodes, Prepared, Settings, mlp

Tensor = torch.Tensor

RECIPE = {"lr": 1e-3, "lr_end": 1e-5, "weight_decay": 0.0, "noise": 0.0, "pushforward": 0, "window": 4, "loss": "all", "clip": 1.0}


@dataclass(frozen=True)
class SingerConfig(Settings):
    width: int = 32  # of u_theta
    hidden: int = 68  # of the graph network
    rounds: int = 3
    frequency: float = 6.0  # of the first layer over half the domain
    pace: float = 0.1  # size of a step in weights, in units of their own
    ridge: float = 1e-3


class Own(NamedTuple):
    fit: Tensor  # [w+1, n] nodal values -> weights and bias of the last layer


class Round(nn.Module):
    """Messages along the weights: e_ab <- MLP(e_ab, h_a, h_b); h_b <- MLP(h_b, mean of incoming, mean of outgoing)."""

    def __init__(self, H: int) -> None:
        super().__init__()
        self.own, self.tail, self.head = nn.Linear(H, H), nn.Linear(H, H, bias=False), nn.Linear(H, H, bias=False)
        self.edge = nn.Sequential(nn.SiLU(), nn.Linear(H, H), nn.LayerNorm(H))
        self.node = mlp([3 * H, H, H], nn.SiLU, norm=True)

    def forward(self, h: list[Tensor], e: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Per layer of u_theta: h_l [B, n_l, H], e_l [B, n_l+1, n_l, H]."""
        e = [w + self.edge(self.own(w) + self.tail(a)[:, None] + self.head(b)[:, :, None]) for w, a, b in zip(e, h, h[1:])]
        into = [torch.zeros_like(h[0])] + [w.mean(2) for w in e]
        out = [w.mean(1) for w in e] + [torch.zeros_like(h[-1])]
        return [a + self.node(torch.cat([a, i, o], -1)) for a, i, o in zip(h, into, out)], e


class Singer(Baseline):
    name = "singer"

    def __init__(self, config: SingerConfig, problem: Problem) -> None:
        super().__init__(problem)
        c = self.config = config
        self.sizes = [self.dim, c.width, c.width, self.fields]
        self.first, self.second = nn.Linear(self.dim, c.width), nn.Linear(c.width, c.width)
        with torch.no_grad():
            self.first.weight.uniform_(-c.frequency, c.frequency)
            self.first.bias.uniform_(-torch.pi, torch.pi)
            self.second.weight.mul_(6**0.5)
        H = c.hidden
        self.neuron = nn.Parameter(torch.randn(sum(self.sizes), H) / H**0.5)
        self.layer = nn.Parameter(torch.randn(len(self.sizes) - 1, H) / H**0.5)
        self.lift_bias, self.lift_weight = nn.Linear(1, H), nn.Linear(2, H)
        self.condition = mlp([self.dim + self.channels, H, H, H], nn.SiLU)
        self.rounds = nn.ModuleList(Round(H) for _ in range(c.rounds))
        self.drop_bias, self.drop_weight = nn.Linear(H, 1), nn.Linear(H, 1)
        with torch.no_grad():
            for drop in (self.drop_bias, self.drop_weight):
                drop.weight.mul_(0.1)  # a thousand weights move one field
                drop.bias.zero_()

    def ready(self, p: Problem, nodes: Nodes) -> Own:
        """The least-squares fit as a matrix: (A + ridge)^-1 Phi^T V with Phi = [last hidden layer, 1], A = Phi^T V Phi."""
        phi = torch.sin(self.second(torch.sin(self.first(nodes.x))))
        phi = torch.cat([phi, torch.ones_like(phi[:, :1])], 1).double()  # [n, w+1]
        weighted = (phi * (nodes.volume / nodes.volume.sum())).mT
        A = weighted @ phi
        A = A + self.config.ridge * torch.eye(len(A), dtype=A.dtype, device=A.device)
        return Own(torch.cholesky_solve(weighted, torch.linalg.cholesky_ex(A)[0]).to(nodes.x.dtype))

    def unpack(self, theta: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """theta [B, P] -> weights [B, n_l+1, n_l] and biases [B, n_l+1]."""
        weights, biases, at = [], [], 0
        for a, b in zip(self.sizes, self.sizes[1:]):
            weights.append(theta[:, at : at + a * b].unflatten(1, (b, a)))
            biases.append(theta[:, at + a * b : at + a * b + b])
            at += a * b + b
        return weights, biases

    def evaluate(self, theta: Tensor, x: Tensor) -> Tensor:
        """u_theta at x [n, d]: [B, n, F]."""
        (W1, W2, W3), (b1, b2, b3) = self.unpack(theta)
        h = torch.sin(x @ W1.mT + b1[:, None])
        return torch.sin(h @ W2.mT + b2[:, None]) @ W3.mT + b3[:, None]

    def velocity(self, theta: Tensor, source: Tensor, condition: Tensor) -> Tensor:
        """dtheta/dt [B, P] per step, from theta, the fitted source [B, F, w] and the condition [B, H]."""
        weights, biases = self.unpack(theta)
        biases = [torch.zeros_like(theta[:, : self.dim]), *biases]
        h = [self.lift_bias(b[..., None]) + own + condition[:, None]
             for b, own in zip(biases, self.neuron.split(self.sizes))]
        extra = [torch.zeros_like(w) for w in weights[:-1]] + [source]
        e = [self.lift_weight(torch.stack([w, f], -1)) + self.layer[k] for k, (w, f) in enumerate(zip(weights, extra))]
        for round_ in self.rounds:
            h, e = round_(h, e)
        return torch.cat([part.flatten(1) for w, b in zip(e, h[1:])
                          for part in (self.drop_weight(w), self.drop_bias(b))], 1)

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        own: Own = state.own
        B, nodes = len(z.u), state.nodes
        last, source = ((own.fit @ f).mT for f in (z.u, z.source))  # [B, F, w+1]
        hidden = torch.cat([p.ravel() for layer in (self.first, self.second) for p in (layer.weight, layer.bias)])
        theta = torch.cat([hidden.expand(B, -1), last[..., :-1].flatten(1), last[..., -1]], 1)
        share = nodes.volume / nodes.volume.sum()
        condition = (self.condition(torch.cat([nodes.x.expand(B, -1, -1), z.all], -1)) * share).sum(1)

        def rate(theta: Tensor) -> Tensor:
            return self.config.pace * self.velocity(theta, source[..., :-1], condition)

        k1 = rate(theta)
        k2 = rate(theta + 0.5 * k1)
        k3 = rate(theta + 0.5 * k2)
        k4 = rate(theta + k3)
        moved = theta + (k1 + 2 * k2 + 2 * k3 + k4) / 6
        return (self.evaluate(moved, nodes.x) - self.evaluate(theta, nodes.x)) / self.config.pace
