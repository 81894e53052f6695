"""DeepONet (Lu, Jin, Pang, Zhang, Karniadakis: learning nonlinear operators via DeepONet, Nature Machine Intelligence 2021).

A branch MLP reads the input functions at fixed sensors, a trunk MLP reads the query point; their dot product plus a bias is the
next state at that point. Published sizes on irregular meshes: branch [m, 128, 128, 100], trunk [2, 128, 128, 128, 100].

Changed: used autoregressively, in the Cartesian-product form (branch once per state, trunk once per mesh). The input functions
are state, source and known fields at m / channels sensors, spread by farthest-point sampling; the sensors' places are stored, and
on another mesh the nodes nearest to them serve. With F fields the branch ends in F x 100, the trunk is shared. Comparable: the
same layers with m = 384 instead of 1024 numbers read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import nn

from dgnet.operators.sparse import version
from dgnet.problems import Problem
from dgnet_paper.baselines.adapter import Baseline, Inputs, Nodes, Prepared, Settings, farthest, kept, mlp, nearest

Tensor = torch.Tensor

RECIPE = {"lr": 1e-3, "lr_end": 1e-5, "weight_decay": 0.0, "noise": 0.0, "pushforward": 0, "window": 1, "loss": "all", "clip": 1.0}


@dataclass(frozen=True)
class DeepONetConfig(Settings):
    read: int = 384  # m: numbers the branch reads, sensors times channels
    hidden: int = 128
    modes: int = 100

    @classmethod
    def published(cls) -> Self:
        return cls(read=1024)


class Own(NamedTuple):
    sensors: Tensor  # [S]
    trunk: Tensor  # [n, modes]


class DeepONet(Baseline):
    name = "deeponet"
    predicts = "state"
    places: Tensor

    def __init__(self, config: DeepONetConfig, problem: Problem) -> None:
        super().__init__(problem)
        self.config, H, P = config, config.hidden, config.modes
        points = kept(problem, "nodes", Nodes.of).points
        channels = 2 * self.fields + self.known
        count = max(1, config.read // channels)
        chosen = points[farthest(points, count)]
        self.register_buffer("places", torch.tensor(chosen, dtype=torch.float32))  # [S, d]
        self.branch = mlp([len(chosen) * channels, H, H, P * self.fields])
        self.trunk = mlp([self.dim, H, H, H, P])
        self.bias = nn.Parameter(torch.zeros(self.fields))

    def ready(self, p: Problem, nodes: Nodes) -> Own:
        def find(p: Problem) -> tuple[Tensor, Tensor]:
            index = nearest(nodes.points, self.places.double().cpu().numpy(), 1)[:, 0]
            return torch.as_tensor(index, device=p.geometry.device), self.places  # kept, so that its id stays taken

        sensors, _ = kept(p, ("sensors", id(self.places), version(self.places)), find)
        return Own(sensors, self.trunk(nodes.x))

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        own: Own = state.own
        read = torch.cat([z.u, z.source, z.known], -1).index_select(1, own.sensors).flatten(1)  # [B, m]
        b = self.branch(read).unflatten(-1, (self.fields, -1))  # [B, F, P]
        return torch.einsum("bfp,np->bnf", b, own.trunk) / self.config.modes ** 0.5 + self.bias
