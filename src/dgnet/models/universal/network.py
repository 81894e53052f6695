"""The network of the universal corrections: from what nodes, edges and cells know of their surroundings to bounded numbers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.gnn import MLP, Processor
from dgnet.models.universal.local import EDGES, NODES, SIDES, Surroundings

Tensor = torch.Tensor

STRETCH = 0.4  # largest entry along one side of the stretch of a cell's diffusivity
STENCIL = 3.0  # largest change of an entry of the source's stencil, in units of the consistent mass of its edge
RIM = 0.7  # largest log of the factor of a convective coefficient
_DECAY = 8.0  # of the memory of an untrained network, in Fourier numbers of the edge


class Numbers(NamedTuple):
    """Bounded numbers in double precision; with all but `keep` zero, the operators are the classical ones."""

    mass: Tensor  # [E] change of an edge's factor between lumped and consistent mass, before its limit
    source: Tensor  # [2E] change of the source's stencil, one way
    change: Tensor  # [2E] the same for the change of the source from step to step
    stretch: Tensor  # [K, s] of the diffusivity along each side
    middle: Tensor  # [K, d+1, s] what a corner gathers from the middle of a side
    memory: Tensor  # [K, d+1, s] what a corner gathers from the memory of a side, zero in sum over the corners
    keep: Tensor  # [E] share of its memory that an edge keeps over a step, between 0 and 1
    ahead: Tensor  # [K] how far beyond the middle of the step the diffusion of a cell is taken, in steps; not negative
    rim: Tensor  # [N] log of the factor of a node's convective coefficient
    rim_ahead: Tensor  # [N] as `ahead`, for convective boundaries


class UniversalNet(nn.Module):
    """Encoder, messages and one decoder for each correction. All decoders start at zero."""

    def __init__(self, dim: int, hidden: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.dim = dim
        self.node = MLP([NODES, hidden, hidden], norm=True)
        self.edge = MLP([EDGES, hidden, hidden], norm=True)
        self.process = Processor(hidden, layers)
        self.pair = MLP([3 * hidden, hidden, 2], zero=True)  # mass, memory
        self.directed = MLP([3 * hidden, hidden, 2], zero=True)  # source, change
        self.side = MLP([3 * hidden + SIDES, hidden, 1], zero=True)
        self.cell = MLP([2 * hidden, hidden, 1], zero=True)
        self.rim = MLP([hidden, hidden, 2], zero=True)
        self.corner = MLP([4 * hidden + SIDES, hidden, 4], zero=True)  # middle and memory; for corners on the side, and off it

    def forward(self, s: Surroundings) -> Numbers:
        graph = s.graph
        e = self.edge(graph.edge)
        h = self.process(self.node(graph.node)[:, None], self.process.edge_terms(e, graph), graph)[:, 0]
        i, j = graph.to[graph.pairs[:, 0]], graph.frm[graph.pairs[:, 0]]
        both = e[graph.pairs].sum(1)  # read both ways: the result does not depend on the order of i and j
        ends = h[i] + h[j]
        pair = self.pair(torch.cat([ends, (h[i] - h[j]).abs(), both], -1)).double()
        directed = self.directed(torch.cat([h[graph.to], h[graph.frm], e], -1)).double()

        rim = self.rim(h).double()
        corners = h[graph.cells]  # [K, d+1, H]
        whole = corners.sum(1, keepdim=True).expand(-1, s.side.shape[1], -1)
        seen = torch.cat([ends[s.of_cell], both[s.of_cell], s.side], -1)  # [K, s, 2H + 3]
        stretch = self.side(torch.cat([seen, whole], -1))[..., 0].double()
        shape = (-1, self.dim + 1, s.side.shape[1], -1)
        inputs = torch.cat([x.expand(len(corners), *shape[1:]) for x in (
            corners[:, :, None], seen[:, None], whole[:, None])], -1)
        found = self.corner(inputs).double()  # [K, d+1, s, 4]
        on = (s.ends[None, :, :] == torch.arange(self.dim + 1, device=h.device)[:, None, None]).any(-1)  # [d+1, s]
        middle, memory = (torch.where(on, found[..., k], found[..., k + 1]) for k in (0, 2))
        memory = soft_limit(memory, STENCIL, STENCIL)
        scale = torch.exp(-2 * s.graph.edge[: len(pair), 0].double())  # Fourier number of an edge
        return Numbers(pair[:, 0], soft_limit(directed[:, 0], STENCIL, STENCIL), soft_limit(directed[:, 1], STENCIL, STENCIL),
                       soft_limit(stretch, STRETCH, STRETCH), soft_limit(middle, STENCIL, STENCIL),
                       memory - memory.mean(1, keepdim=True),
                       torch.exp(-scale * _DECAY * torch.exp(soft_limit(pair[:, 1], 3.0, 3.0))),
                       ahead(self.cell(torch.cat([corners.sum(1), corners.amax(1)], -1))[:, 0].double()),
                       soft_limit(rim[:, 0], RIM, RIM), ahead(rim[:, 1]))


def ahead(z: Tensor) -> Tensor:
    """Between 0 and 1/2, zero below zero: from Crank-Nicolson to backward Euler."""
    return 0.5 * torch.tanh(2 * z.clamp(min=0.0))  # clamp passes the gradient at 0, so it can leave zero


def stretched(s: Surroundings, stretch: Tensor) -> Tensor:
    """The diffusivity [K, d, d] of each cell: R exp(S) R^T, S = sum of stretch times the projection onto each side. Positive."""
    S = torch.einsum("ks,ksa,ksb->kab", stretch, s.units, s.units)
    half = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device) + S / 4 + S @ S / 32  # its square: exp(S/2), to third order
    wide = s.root @ half @ half
    return wide @ wide.mT
