"""The network of the universal corrections: from what nodes, edges and cells know of their surroundings to bounded numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import NamedTuple

import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.files import plain
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
        self.dim, self.hidden = dim, hidden
        self.node = MLP([NODES, hidden, hidden], norm=True)
        self.edge = MLP([EDGES, hidden, hidden], norm=True)
        self.process = Processor(hidden, layers)
        self.pair = MLP([3 * hidden, hidden, 2], zero=True)  # mass, memory
        self.directed = MLP([3 * hidden, hidden, 1], zero=True)
        self.side = MLP([3 * hidden + SIDES, hidden, 1], zero=True)
        self.cell = MLP([2 * hidden, hidden, 1], zero=True)
        self.rim = MLP([hidden, hidden, 2], zero=True)
        self.corner = MLP([4 * hidden + SIDES, hidden, 4], zero=True)  # middle and memory; for corners on the side, and off it
        for name, size in (("node", NODES), ("edge", EDGES), ("side", SIDES)):
            self.register_buffer(f"low_{name}", torch.full((size,), -1e6))
            self.register_buffer(f"high_{name}", torch.full((size,), 1e6))

    low_node: Tensor
    high_node: Tensor
    low_edge: Tensor
    high_edge: Tensor
    low_side: Tensor
    high_side: Tensor

    def fading(self, s: Surroundings) -> tuple[Tensor, Tensor, Tensor]:
        """Between 1 and 0, for nodes [N], edges [E] and cells [K]: 1 where all features are in the range of the training parts,
        0 from a tenth of the range beyond it, for whatever touches such a place."""
        def inside(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
            margin = 0.1 * (high - low) + 0.05
            return (1 - torch.maximum(low - x, x - high).clamp(min=0) / margin).clamp(min=0).amin(-1)

        graph, E = s.graph, len(s.graph.pairs)
        node = inside(graph.node, self.low_node, self.high_node)
        edge = inside(graph.edge, self.low_edge, self.high_edge)
        edge = torch.minimum(edge[:E], edge[E:])
        side = inside(s.side, self.low_side, self.high_side)
        cell = torch.minimum(torch.minimum(side, edge[s.of_cell]).amin(1), node[graph.cells].amin(1))
        around = cell.repeat_interleave(graph.cells.shape[1])
        node = torch.minimum(node, torch.ones_like(node).scatter_reduce(0, graph.cells.ravel(), around, "amin"))
        ends = graph.to[graph.pairs]
        return node, torch.minimum(edge, node[ends].amin(1)), cell

    def forward(self, s: Surroundings, fade: bool = False) -> Numbers:
        """`fade`: numbers go to zero outside of the range of the training parts."""
        z = self._numbers(s)
        if not fade:
            return z
        node, edge, cell = (x.double() for x in self.fading(s))
        return Numbers(z.mass * edge, z.source * torch.cat([edge, edge]), z.stretch * cell[:, None], z.middle * cell[:, None, None],
                       z.memory * cell[:, None, None], z.keep, z.ahead * cell, z.rim * node, z.rim_ahead * node)

    @torch.no_grad()
    def trained_on(self, ranges: Mapping[str, Tensor]) -> None:
        """Set the range of the features: [2, a] of `node`, `edge` and `side`."""
        for name, (low, high) in ranges.items():
            self.get_buffer(f"low_{name}").copy_(low)
            self.get_buffer(f"high_{name}").copy_(high)

    def save(self, path: Path) -> None:
        """Tensors alone, with the sizes that `load` needs."""
        sizes = torch.tensor([self.dim, self.hidden, len(self.process.receive)])
        torch.save({"sizes": sizes} | {name: value.cpu() for name, value in self.state_dict().items()}, path)

    @classmethod
    def load(cls, path: Path) -> UniversalNet:
        """What `save` wrote. The file cannot run code."""
        try:
            state = torch.load(plain(path), map_location="cpu", weights_only=True)
            net = cls(*state.pop("sizes").tolist())
            net.load_state_dict({name: value.float() for name, value in state.items()})
        except FileNotFoundError as error:
            raise InputError(f"there is no file {path}") from error
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, EOFError, UnpicklingError) as error:
            raise InputError(f"{path} does not hold universal weights") from error
        return net.requires_grad_(False)

    def _numbers(self, s: Surroundings) -> Numbers:
        graph = s.graph
        e = self.edge(graph.edge)
        h = self.process(self.node(graph.node)[:, None], self.process.edge_terms(e, graph), graph)[:, 0]
        i, j = graph.to[graph.pairs[:, 0]], graph.frm[graph.pairs[:, 0]]
        both = e[graph.pairs].sum(1)  # read both ways: the result does not depend on the order of i and j
        ends, cells, sides = h[i] + h[j], graph.cells, s.of_cell
        corners = h[cells]  # [K, d+1, H]
        whole = corners.sum(1)
        pair = self.pair(torch.cat([ends, (h[i] - h[j]).abs(), both], -1)).double()
        directed = apart(self.directed, (h, lambda y: y[graph.to]), (h, lambda y: y[graph.frm]), (e, lambda y: y)).double()
        stretch = apart(self.side, (ends, lambda y: y[sides]), (both, lambda y: y[sides]), (s.side, lambda y: y),
                        (whole, lambda y: y[:, None]))[..., 0].double()
        found = apart(self.corner, (h, lambda y: y[cells][:, :, None]), (ends, lambda y: y[sides][:, None]),
                      (both, lambda y: y[sides][:, None]), (s.side, lambda y: y[:, None]),
                      (whole, lambda y: y[:, None, None])).double()  # [K, d+1, s, 4]
        rim = self.rim(h).double()
        on = (s.ends[None, :, :] == torch.arange(self.dim + 1, device=h.device)[:, None, None]).any(-1)  # [d+1, s]
        middle, memory = (torch.where(on, found[..., k], found[..., k + 1]) for k in (0, 2))
        memory = soft_limit(memory, STENCIL, STENCIL)
        scale = torch.exp(-2 * s.graph.edge[: len(pair), 0].double())  # Fourier number of an edge
        return Numbers(pair[:, 0], soft_limit(directed[:, 0], STENCIL, STENCIL),
                       soft_limit(stretch, STRETCH, STRETCH), soft_limit(middle, STENCIL, STENCIL),
                       memory - memory.mean(1, keepdim=True),
                       torch.exp(-scale * _DECAY * torch.exp(soft_limit(pair[:, 1], 3.0, 3.0))),
                       ahead(self.cell(torch.cat([whole, corners.amax(1)], -1))[:, 0].double()),
                       soft_limit(rim[:, 0], RIM, RIM), ahead(rim[:, 1]))


def apart(mlp: MLP, *pieces: tuple[Tensor, Callable[[Tensor], Tensor]]) -> Tensor:
    """mlp of joined pieces, each put in its place by its function: the first layer's products run before that, over fewer rows."""
    first = mlp[0]
    assert isinstance(first, nn.Linear)
    weights = first.weight.split([x.shape[-1] for x, _ in pieces], 1)
    total: Tensor = first.bias
    for (x, place), weight in zip(pieces, weights):
        total = total + place(nn.functional.linear(x, weight))
    for layer in list(mlp)[1:]:
        total = layer(total)
    return total


def ahead(z: Tensor) -> Tensor:
    """Between 0 and 1/2, zero below zero: from Crank-Nicolson to backward Euler."""
    return 0.5 * torch.tanh(2 * z.clamp(min=0.0))  # clamp passes the gradient at 0, so it can leave zero


def stretched(s: Surroundings, stretch: Tensor) -> Tensor:
    """The diffusivity [K, d, d] of each cell: R exp(S) R^T, S = sum of stretch times the projection onto each side. Positive."""
    S = torch.einsum("ks,ksa,ksb->kab", stretch, s.units, s.units)
    half = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device) + S / 4 + S @ S / 32  # its square: exp(S/2), to third order
    wide = s.root @ half @ half
    return wide @ wide.mT
