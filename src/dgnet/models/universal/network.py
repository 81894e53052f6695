"""The network of the universal corrections: from what nodes, edges and cells know of their surroundings to bounded numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import atanh
from pathlib import Path
from typing import NamedTuple, Self

import torch
from torch import nn
from torch.nn.functional import linear

from dgnet.data.digests import load_checkpoint, save_tensors
from dgnet.errors import InputError
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.gnn import BLOCK, MLP, Incoming, MeshGraph, Processor
from dgnet.models.universal.local import EDGES, FLOW_EDGES, FLOW_NODES, NODES, SIDES, SPREAD, Surroundings

Tensor = torch.Tensor

STRETCH = 0.4  # largest entry along one side of the stretch of a cell's diffusivity
STENCIL = 3.0  # largest change of an entry of the source's stencil, in units of the consistent mass of its edge
RIM = 0.7  # largest log of the factor of a convective coefficient
SWIRL = 0.5  # largest weight of a corner in the potential of the transport beside a flow
MIDWAY = 3 * atanh(1 / 3)
"""A mass of minus half of this is midway between consistent and lumped, behind its limit of 3/2."""
_KEPT = 1 << 26  # numbers that are kept of the edges: meshes of up to 180,000 nodes in 2D
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
    along: Tensor | None = None  # [K] strength of the diffusion along a flow; not negative
    swirl: Tensor | None = None  # [K, d+1] weight of a corner in the potential of a transport beside the flow


class Ranged(nn.Module):
    """A network of local geometry that knows the range of the features of its training parts."""

    def __init__(self, dim: int, flow: bool = False) -> None:
        super().__init__()
        self.dim, self.flow = dim, bool(flow)
        for name, size in (("node", NODES + FLOW_NODES * self.flow), ("edge", EDGES + FLOW_EDGES * self.flow), ("side", SIDES)):
            self.register_buffer(f"low_{name}", torch.full((size,), -1e6))
            self.register_buffer(f"high_{name}", torch.full((size,), 1e6))

    low_node: Tensor
    high_node: Tensor
    low_edge: Tensor
    high_edge: Tensor
    low_side: Tensor
    high_side: Tensor

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def sizes(self) -> list[int]:
        """What it is built with again."""
        raise NotImplementedError

    def fading(self, s: Surroundings) -> tuple[Tensor, Tensor, Tensor]:
        """Between 1 and 0, for nodes [N], edges [E] and cells [K]: 1 where all features are in the range of the training parts,
        0 from a tenth of the range beyond it, for whatever touches such a place."""
        graph, E = s.graph, len(s.graph.pairs)
        node = _inside(graph.node, self.low_node, self.high_node)
        edge = _inside(graph.edge, self.low_edge, self.high_edge)
        return _spread(s, node, torch.minimum(edge[:E], edge[E:]), _inside(s.side, self.low_side, self.high_side))

    def jumps(self, s: Surroundings) -> Tensor:
        """The same for edges [E], by the jumps of the diffusivity alone."""
        spread, E = slice(SPREAD, SPREAD + 1), len(s.graph.pairs)
        edge = _inside(s.graph.edge[:E, spread], self.low_edge[spread], self.high_edge[spread])
        return _spread(s, torch.ones_like(s.graph.node[:, 0]), edge, torch.ones_like(s.side[..., 0]))[1]

    @torch.no_grad()
    def trained_on(self, ranges: Mapping[str, Tensor]) -> None:
        """Set the range of the features: [2, a] of `node`, `edge` and `side`."""
        for name, (low, high) in ranges.items():
            self.get_buffer(f"low_{name}").copy_(low)
            self.get_buffer(f"high_{name}").copy_(high)

    def save(self, path: Path) -> None:
        """Tensors alone, with the sizes that `load` needs."""
        save_tensors(path, {"sizes": torch.tensor(self.sizes)} | {name: value.cpu() for name, value in self.state_dict().items()})

    @classmethod
    def load(cls, path: Path, sha256: str = "") -> Self:
        """What `save` wrote; a damaged file is refused, and one whose SHA-256 is another. The file cannot run code."""
        return cls.of(load_checkpoint(path, sha256=sha256), path)

    @classmethod
    def of(cls, state: dict[str, Tensor], path: Path) -> Self:
        """The network of what a file holds."""
        try:
            net = cls(*state.pop("sizes").tolist())
            net.load_state_dict({name: value.float() for name, value in state.items()})
        except Exception as error:  # what reading fails with depends on what the file holds
            raise InputError(f"{path} does not hold universal weights") from error
        return net.requires_grad_(False)


class UniversalNet(Ranged):
    """Encoder, messages and one decoder for each correction. All decoders start at zero."""

    def __init__(self, dim: int, hidden: int = 48, layers: int = 2, flow: bool = False) -> None:
        super().__init__(dim, flow)
        self.hidden = hidden
        nodes, edges = NODES + FLOW_NODES * self.flow, EDGES + FLOW_EDGES * self.flow
        self.node = MLP([nodes, hidden, hidden], norm=True)
        self.edge = MLP([edges, hidden, hidden], norm=True)
        self.process = Processor(hidden, layers)
        self.pair = MLP([3 * hidden, hidden, 2], zero=True)  # mass, memory
        self.directed = MLP([3 * hidden, hidden, 1], zero=True)
        self.side = MLP([3 * hidden + SIDES, hidden, 1], zero=True)
        self.cell = MLP([2 * hidden, hidden, 1], zero=True)
        self.rim = MLP([hidden, hidden, 2], zero=True)
        self.corner = MLP([4 * hidden + SIDES, hidden, 4], zero=True)  # middle and memory; for corners on the side, and off it
        if self.flow:
            self.along = MLP([2 * hidden, hidden, 1], zero=True)
            self.swirl = MLP([2 * hidden, hidden, 1], zero=True)

    @property
    def name(self) -> str:
        return f"universal-{'flow-' * self.flow}{self.dim}d"

    @property
    def sizes(self) -> list[int]:
        return [self.dim, self.hidden, len(self.process.receive), int(self.flow)]

    def forward(self, s: Surroundings, fade: bool = False) -> Numbers:
        """`fade`: numbers go to zero outside of the range of the training parts. Where that is because the diffusivity jumps, mass
        and source go to the mean of consistent and lumped: of the two, now one is better there and now the other."""
        z = self._numbers(s)
        if not fade:
            return z
        node, edge, cell = (x.double() for x in self.fading(s))
        half = 0.5 * (1 - self.jumps(s).double()) * (not self.flow)  # fronts in a flow need the consistent mass
        z = z._replace(mass=z.mass * edge - MIDWAY * half, source=z.source * torch.cat([edge, edge]) - torch.cat([half, half]))
        return Numbers(z.mass, z.source, z.stretch * cell[:, None], z.middle * cell[:, None, None],
                       z.memory * cell[:, None, None], z.keep, z.ahead * cell, z.rim * node, z.rim_ahead * node,
                       None if z.along is None else z.along * cell, None if z.swirl is None else z.swirl * cell[:, None])

    def _numbers(self, s: Surroundings) -> Numbers:
        graph, H, E = s.graph, self.hidden, len(s.graph.pairs)
        to, frm, cells = graph.to, graph.frm, graph.cells
        kept = torch.is_grad_enabled() or len(graph.edge) * H < _KEPT  # what is made for edges; else it is made again for each use
        e = self._edges(graph, kept)
        terms = (self.process.edge_terms(e(slice(None)), graph) if torch.is_grad_enabled() else
                 [partial(_edge_term, layer, e) for layer in self.process.edge])
        h = self.process(self.node(graph.node)[:, None], terms, graph)[:, 0]

        # first layers act piece by piece, where a piece has the fewest rows: at nodes, edges, sides or cells
        side, corner, directed = _first(self.side), _first(self.corner), _first(self.directed)
        sizes = [2 * H, SIDES, H]
        of_edge, of_side, of_cell = zip(side.weight.split(sizes, 1), corner.weight[:, H:].split(sizes, 1))
        ways = directed.weight.split(H, 1)
        at_corner, at_to, at_frm = (linear(h, weight) for weight in (corner.weight[:, :H], *ways[:2]))

        def both_ways(places: slice | Tensor, back: slice | Tensor) -> Tensor:  # does not depend on the order of the ends
            return torch.cat([h[to[places]] + h[frm[places]], e(places) + e(back)], -1)

        def edge(b: slice) -> tuple[Tensor, ...]:
            back = slice(b.start + E, b.stop + E)
            one = [_rest(self.directed, (at_to[to[way]] + at_frm[frm[way]]).add_(linear(e(way), ways[2], directed.bias)))[:, 0]
                   for way in (b, back)]
            joined = both_ways(b, back)
            pair = self.pair(torch.cat([joined[:, :H], (h[to[b]] - h[frm[b]]).abs(), joined[:, H:]], -1))
            return (pair, *one, *(linear(joined, w) for w in of_edge)) if kept else (pair, *one)

        pair, there, back, *at_edge = in_blocks(edge, E, h.device)
        on = (s.ends[None, :, :] == torch.arange(self.dim + 1, device=h.device)[:, None, None]).any(-1)  # [d+1, s]

        def cell(b: slice) -> tuple[Tensor, ...]:
            corners, sides = h[cells[b]], s.of_cell[b]  # [k, d+1, H], [k, s]
            whole = corners.sum(1)
            on_edges = [at[sides] for at in at_edge] if kept else [linear(both_ways(sides, sides + E), w) for w in of_edge]
            along, across = (at.add_(linear(s.side[b], w, bias)).add_(linear(whole, v)[:, None])  # [k, s, H]
                             for at, w, bias, v in zip(on_edges, of_side, (side.bias, corner.bias), of_cell))
            raw = _rest(self.corner, at_corner[cells[b]][:, :, None] + across[:, None])  # [k, d+1, s, 4]
            middle, memory = (torch.where(on, raw[..., k], raw[..., k + 1]) for k in (0, 2))
            seen = torch.cat([whole, corners.amax(1)], -1)
            found = (_rest(self.side, along)[..., 0], middle, memory, self.cell(seen)[:, 0])
            if not self.flow:
                return found
            return *found, self.along(seen)[:, 0], self.swirl(torch.cat([corners, whole[:, None].expand_as(corners)], -1))[..., 0]

        stretch, middle, memory, later, *flow = (x.double() for x in in_blocks(cell, len(cells), h.device, 1 + s.of_cell.shape[1]))
        pair, rim = pair.double(), self.rim(h).double()
        memory = soft_limit(memory, STENCIL, STENCIL)
        scale = torch.exp(-2 * graph.edge[:E, 0].double())  # Fourier number of an edge
        return Numbers(pair[:, 0], soft_limit(torch.cat([there, back]).double(), STENCIL, STENCIL),
                       soft_limit(stretch, STRETCH, STRETCH), soft_limit(middle, STENCIL, STENCIL),
                       memory - memory.mean(1, keepdim=True),
                       torch.exp(-scale * _DECAY * torch.exp(soft_limit(pair[:, 1], 3.0, 3.0))),
                       ahead(later), soft_limit(rim[:, 0], RIM, RIM), ahead(rim[:, 1]),
                       *((ahead(flow[0]), soft_limit(flow[1], SWIRL, SWIRL)) if self.flow else ()))

    def _edges(self, graph: MeshGraph, kept: bool) -> Callable[[slice | Tensor], Tensor]:
        """The encoded edges by their places; unless they are kept, they are encoded whenever they are asked for."""
        if kept:
            return in_blocks(lambda b: (self.edge(graph.edge[b]),), len(graph.edge), graph.edge.device)[0].__getitem__
        return lambda places: self.edge(graph.edge[places])


def _edge_term(layer: nn.Module, e: Callable[[Tensor], Tensor], block: Incoming) -> Tensor:
    """What edges add to the messages of a layer."""
    found: Tensor = layer(e(block.order))
    return found


def in_blocks(make: Callable[[slice], tuple[Tensor, ...]], count: int, device: torch.device, rows: int = 1) -> tuple[Tensor, ...]:
    """`make` of 0 .. count; where nothing is differentiated, in blocks that fit into the cache. `rows`: of each place."""
    size = count if torch.is_grad_enabled() else BLOCK[device.type] // 2 // rows
    made = [make(slice(k, min(k + size, count))) for k in range(0, count, max(1, size))]
    return tuple(parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*made))


def _first(mlp: MLP) -> nn.Linear:
    layer = mlp[0]
    assert isinstance(layer, nn.Linear)
    return layer


def _rest(mlp: MLP, x: Tensor) -> Tensor:
    """All layers but the first, whose result is x."""
    x = nn.functional.silu(x, inplace=not torch.is_grad_enabled())
    for layer in list(mlp)[2:]:
        x = layer(x)
    return x


def _inside(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """1 where all numbers [..., n] lie in their range, 0 from a tenth of it beyond."""
    margin = 0.1 * (high - low) + 0.05
    return (1 - torch.maximum(low - x, x - high).clamp(min=0) / margin).clamp(min=0).amin(-1)


def _spread(s: Surroundings, node: Tensor, edge: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The least of nodes [N], edges [E] and sides of cells [K, s] around each node, edge and cell."""
    graph = s.graph
    cell = torch.minimum(torch.minimum(side, edge[s.of_cell]).amin(1), node[graph.cells].amin(1))
    around = cell.repeat_interleave(graph.cells.shape[1])
    node = torch.minimum(node, torch.ones_like(node).scatter_reduce(0, graph.cells.ravel(), around, "amin"))
    return node, torch.minimum(edge, node[graph.to[graph.pairs]].amin(1)), cell


def ahead(z: Tensor) -> Tensor:
    """Between 0 and 1/2, zero below zero: from Crank-Nicolson to backward Euler."""
    return 0.5 * torch.tanh(2 * z.clamp(min=0.0))  # clamp passes the gradient at 0, so it can leave zero


def stretched(s: Surroundings, stretch: Tensor) -> Tensor:
    """The diffusivity [K, d, d] of each cell: R exp(S) R^T, S = sum of stretch times the projection onto each side. Positive."""
    S = torch.einsum("ks,ksa,ksb->kab", stretch, s.units, s.units)
    half = torch.eye(S.shape[-1], dtype=S.dtype, device=S.device) + S / 4 + S @ S / 32  # its square: exp(S/2), to third order
    wide = s.root @ half @ half
    return wide @ wide.mT


def beside_the_flow(s: Surroundings, z: Numbers, gradients: Tensor, points: Tensor, dt: Tensor | float) -> tuple[Tensor, Tensor]:
    """Corrections of a transport by v in cells of volume 1, [K, d+1, d+1] each.

    - along the flow: tau (v . grad phi_i)(v . grad phi_j) with tau = along (dt + crossing time) / 2, symmetric and positive
      semidefinite with zero row sums
    - swirl: a . (grad phi_i x grad phi_j) with a = sum of the corners' weights times v x (corner - centre), a transport along the
      curl of a; skew with zero row and column sums

    So neither makes energy, for any weights. points [K, d+1, d]; dt is a number or [K].
    """
    assert s.carried is not None and z.along is not None and z.swirl is not None
    push = torch.einsum("kd,kid->ki", s.carried, gradients)
    rate = push.abs().sum(-1) / 2  # of crossing the cell
    tau = 0.5 * z.along * (dt + 1 / rate.clamp(min=1e-12 * rate.max().clamp(min=1e-300)))
    arm = points - points.mean(1, keepdim=True)
    x, y = gradients[:, :, None, :], gradients[:, None, :, :]
    if points.shape[-1] == 2:
        lever = s.carried[:, None, 0] * arm[..., 1] - s.carried[:, None, 1] * arm[..., 0]
        swirl = (z.swirl * lever).sum(1)[:, None, None] * (x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0])
    else:
        lever = (z.swirl[..., None] * torch.linalg.cross(s.carried[:, None].expand_as(arm), arm)).sum(1)
        swirl = torch.einsum("ka,kija->kij", lever, torch.linalg.cross(*torch.broadcast_tensors(x, y)))
    return tau[:, None, None] * push[:, :, None] * push[:, None, :], swirl
