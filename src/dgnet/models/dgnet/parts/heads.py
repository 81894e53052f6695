"""The network on the mesh geometry and its decoders, which several parts share."""

from __future__ import annotations

import torch
from torch import nn

from dgnet.models.dgnet.build import Build, Numbers
from dgnet.models.dgnet.config import DGNetConfig
from dgnet.models.dgnet.flow import direction_features
from dgnet.models.dgnet.parts.part import Part, network_precision
from dgnet.models.gnn import MLP, GeometryNet
from dgnet.problems import Problem

Tensor = torch.Tensor


class Heads(Part):
    """Raw numbers of edges and cells: what a network makes of the mesh (`network`), plus free ones for one mesh (`free`).

    All decoders start at zero. The early steps have numbers of their own for pairs of nodes and for cells.
    """

    free_pair: nn.Parameter
    free_source: nn.Parameter
    free_cell: nn.Parameter
    free_flow: nn.Parameter
    free_early_pair: nn.Parameter
    free_early_cell: nn.Parameter

    def __init__(self, c: DGNetConfig, problem: Problem) -> None:
        super().__init__()
        self.config, d = c, problem.mesh.dim
        edges, cells, hidden = len(problem.mesh.edges), problem.mesh.n_cells, c.hidden
        self.cell_size = d * (d + 1) // 2 + 1  # diffusion, streamline diffusion
        self.flow_size = direction_features(d) * (2 if d == 2 else 4)  # streamline diffusion, components of a potential
        if c.network:
            self.geometry_net = GeometryNet(d, hidden, c.layers)
            self.decode_pair = MLP([3 * hidden, hidden, 2], zero=True)  # mass, start
            self.decode_source = MLP([3 * hidden, hidden, 1], zero=True)
            self.decode_cell = MLP([hidden, hidden, self.cell_size], zero=True)
            if c.learn_swirl:
                self.decode_flow = MLP([hidden, hidden, self.flow_size], zero=True)
            if c.early_steps:
                self.decode_early_pair = MLP([3 * hidden, hidden, 2], zero=True)
                self.decode_early_cell = MLP([hidden, hidden, self.cell_size], zero=True)
        if c.free:
            sizes = {"pair": (edges, 2), "source": (2 * edges,), "cell": (cells, self.cell_size)}
            sizes |= {"flow": (cells, self.flow_size)} if c.learn_swirl else {}
            sizes |= {"early_pair": (edges, 2), "early_cell": (cells, self.cell_size)} if c.early_steps else {}
            for name, size in sizes.items():
                self.register_parameter(f"free_{name}", nn.Parameter(torch.zeros(size)))

    def contribute(self, build: Build) -> None:
        c, g, graph, dtype = self.config, build.problem.geometry, build.graph, build.scales.mean.dtype
        pair = torch.zeros(len(graph.pairs), 2, dtype=g.dtype, device=g.device)
        directed = torch.zeros(len(graph.to), dtype=g.dtype, device=g.device)
        cell = torch.zeros(len(graph.cells), self.cell_size, dtype=g.dtype, device=g.device)
        flow = torch.zeros(len(graph.cells), self.flow_size, dtype=g.dtype, device=g.device) if c.learn_swirl else None
        if c.network:
            with network_precision(c.amp, g.device):
                h, e = self.geometry_net(graph)
            h, e = h.to(dtype), e.to(dtype)
            i, j = graph.to[graph.pairs[:, 0]], graph.frm[graph.pairs[:, 0]]
            both = e[graph.pairs].sum(1)  # e is read in both directions: the result does not depend on the order of i, j
            decode_pair = self.decode_early_pair if build.early else self.decode_pair
            pair = pair + decode_pair(torch.cat([h[i] + h[j], (h[i] - h[j]).abs(), both], -1))
            directed = directed + self.decode_source(torch.cat([h[graph.to], h[graph.frm], e], -1))[:, 0]
            corners = h[graph.cells].mean(1)
            cell = cell + (self.decode_early_cell if build.early else self.decode_cell)(corners)
            flow = None if flow is None else flow + self.decode_flow(corners)
        if c.free:
            pair = pair + (self.free_early_pair if build.early else self.free_pair)
            cell = cell + (self.free_early_cell if build.early else self.free_cell)
            directed = directed + self.free_source
            flow = None if flow is None else flow + self.free_flow
        build.numbers = Numbers(pair.double(), directed.double(), cell.double(), None if flow is None else flow.double())
