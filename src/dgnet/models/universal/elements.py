"""Learned corrections of element matrices, of linear and of quadratic elements: positive for any weights.

With m nodes in a cell, its stiffness K_e, its mass M_e and symmetric X, Y with |X|, |Y| < 7/10 (Frobenius) from a network,

    stiffness   K_e^1/2 (I + X)^2 K_e^1/2         positive semidefinite, constants in its kernel, between 0.09 and 2.9 times K_e
    mass        M_e^1/2 (I + P Y P)^2 M_e^1/2     positive definite; P leaves M_e^1/2 1 alone, so rows keep their sums
    ahead       K_e^1/2 A K_e^1/2, A >= 0 diagonal, is taken later than the middle of a step, up to backward Euler's: it damps, and
                steady states stay
    source      M_e + V, the rows of V sum to zero: a uniform source is exact
    rim         each convective coefficient times a factor between 1/2 and 2; a part at the ambient value stays there
    flow        diffusion along it, positive semidefinite; transport beside it, skew with zero row and column sums

So constants and totals are kept, and with f = g = 0 and no flow no step gains energy in the norm of M + ahead. With all numbers
zero the matrices are those of the elements. The network knows local geometry alone (`local`), and a cell's numbers do not depend
on the order of its nodes: numbers for pairs of nodes come from what both know, and from how they lie to each other.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import silu

from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.gnn import MLP, Processor
from dgnet.models.universal.local import EDGES, FLOW_EDGES, FLOW_NODES, NODES, SIDES, Surroundings
from dgnet.models.universal.network import RIM, STENCIL, Ranged, ahead, in_blocks
from dgnet.operators.elements import element

Tensor = torch.Tensor

LARGEST = 0.7  # Frobenius norm of X and Y
BESIDE = 0.5  # largest entry of the transport beside a flow, in volumes that it carries across the cell
_GAIN = 0.1  # of the numbers for pairs of nodes: steps of the training are small beside LARGEST
_KINDS = 7  # how two nodes of a cell lie to each other
_ROWS = 16  # of directed edges whose numbers take the memory of those of a cell


class Numbers(NamedTuple):
    """Numbers of each cell in double precision; with all of them zero the matrices are those of the elements."""

    stiffness: Tensor  # [K, m, m] X, symmetric
    mass: Tensor  # [K, m, m] Y, symmetric
    source: Tensor  # [K, m, q] of the load at a node for the source at nodes and middles, in entries of the mass
    ahead: Tensor  # [K, m] A
    rim: Tensor  # [F] log of the factor of each convective facet
    along: Tensor | None = None  # [K] strength of the diffusion along a flow, not negative
    beside: Tensor | None = None  # [K, m, m] skew, of the transport beside a flow


class Tables(NamedTuple):
    """What all cells of an element share."""

    ends: tuple[tuple[int, int], ...]  # corners of each side
    mass: Tensor  # [m, m] of a cell of volume 1
    wide: Tensor  # [m, q] the same for values at nodes and middles; linear elements do not look at the middles
    root: Tensor  # [m, m] of the mass
    keep: Tensor  # [m, m] the projection that leaves the root's row sums alone
    spread: Tensor  # [d+1, d+1, m, m]
    entry: float  # size of an entry of the mass beside its diagonal
    own: Tensor  # [m, q] 1 where both are the same node
    kinds: Tensor  # [q, q] how two nodes lie to each other
    touch: Tensor  # [d+1, s] 1/d where a side ends at a corner
    apart: Tensor  # [d+1, s] the mean over all others


@lru_cache
def tables(dim: int, degree: int, device: str = "cpu") -> Tables:
    e = element(dim, degree)
    ends = tuple(combinations(range(dim + 1), 2))
    nodes = [{c} for c in range(dim + 1)] + [set(pair) for pair in ends]
    m, q, s = len(e.mass), len(nodes), len(ends)
    value, vectors = np.linalg.eigh(e.mass)
    root = (vectors * np.sqrt(value)) @ vectors.T
    sums = root.sum(1)
    kinds = np.zeros((q, q), dtype=np.int64)
    for a, b in np.ndindex(q, q):
        shared, corners = len(nodes[a] & nodes[b]), (a <= dim) + (b <= dim)
        if a == b:
            kinds[a, b] = 5 if a <= dim else 6
        else:
            kinds[a, b] = {2: 0, 1: 1 if shared else 2, 0: 3 if shared else 4}[corners]
    touch = np.array([[float(c in pair) for pair in ends] for c in range(dim + 1)])

    def put(a: np.ndarray) -> Tensor:
        return torch.tensor(a, device=device)

    return Tables(ends, put(e.mass), put(np.pad(e.mass, ((0, 0), (0, q - m)))), put(root),
                  put(np.eye(m) - np.outer(sums, sums) / (sums @ sums)), put(e.spread),
                  float(np.abs(e.mass - np.diag(np.diag(e.mass))).sum() / (m * m - m)), put(np.eye(m, q)), put(kinds),
                  put(touch / dim), put((1 - touch) / max(1, s - dim)))


def coupling(s: Surroundings, gradients: Tensor) -> Tensor:
    """g_i . D g_j of the corners of each cell [K, d+1, d+1]."""
    along = gradients @ s.root
    return along @ along.mT


def stiffness_of(t: Tables, pairs: Tensor) -> Tensor:
    """K_e [K, m, m] of cells of volume 1 from `coupling`; rows sum to zero beyond rounding."""
    m = t.mass.shape[0]
    K = (pairs.flatten(1) @ t.spread.reshape(-1, m * m)).unflatten(1, (m, m))
    return K - torch.diag_embed(K.sum(-1))


def root_of(K: Tensor) -> Tensor:
    """K^1/2 of positive semidefinite matrices [K, m, m]."""
    value, vectors = torch.linalg.eigh(K)
    value = torch.where(value > 1e-10 * value[..., -1:], value, torch.zeros_like(value))
    return (vectors * value.sqrt()[..., None, :]) @ vectors.mT


def bounded(z: Tensor) -> Tensor:
    """Symmetric matrices with a Frobenius norm below `LARGEST`."""
    return LARGEST * z / (1 + z.square().sum((-2, -1), keepdim=True)).sqrt()


def corrected_stiffness(root: Tensor, z: Numbers) -> Tensor:
    """[K, m, m] from roots of element stiffnesses."""
    half = root + z.stiffness @ root
    return half.mT @ half


def taken_ahead(root: Tensor, z: Numbers) -> Tensor:
    """[K, m, m] from roots of element stiffnesses."""
    return (root * z.ahead[:, None, :]) @ root


def corrected_mass(t: Tables, z: Numbers) -> Tensor:
    """[K, m, m] of cells of volume 1."""
    half = t.root + t.keep @ z.mass @ t.keep @ t.root
    return half.mT @ half


def corrected_source(t: Tables, z: Numbers) -> Tensor:
    """[K, m, q] of cells of volume 1: what values of a source at nodes and middles bring to each node."""
    off = t.entry * z.source * (1 - t.own)
    return t.wide + off - off.sum(-1, keepdim=True) * t.own


def beside_the_flow(t: Tables, s: Surroundings, z: Numbers, gradients: Tensor, dt: Tensor | float) -> tuple[Tensor, Tensor]:
    """Corrections of the transport in cells of volume 1, [K, m, m] each: diffusion along a flow, and a skew transport beside it.

    tau (v . grad phi_i)(v . grad phi_j) with tau = along (dt + crossing time) / 2. dt is a number or [K].
    """
    assert s.carried is not None and z.along is not None and z.beside is not None
    push = torch.einsum("kd,kid->ki", s.carried, gradients)
    rate = push.abs().sum(-1) / 2  # of crossing the cell
    tau = 0.5 * z.along * (dt + 1 / rate.clamp(min=1e-12 * rate.max().clamp(min=1e-300)))
    along = stiffness_of(t, tau[:, None, None] * push[:, :, None] * push[:, None, :])
    centred = z.beside - z.beside.mean(-1, keepdim=True)
    centred = centred - centred.mean(-2, keepdim=True)
    return along, t.entry * rate[:, None, None] * centred


class ElementNet(Ranged):
    """Encoder, messages between the nodes of the mesh, and decoders for the pairs of nodes in each cell; these start at zero.

    - `degree`: of the elements
    - `hidden`, `layers`: width and number of the messages
    - `width`: of what pairs of nodes are decoded from
    """

    def __init__(self, dim: int, degree: int = 2, hidden: int = 64, layers: int = 3, width: int = 32, flow: bool = False) -> None:
        super().__init__(dim, flow)
        self.degree, self.hidden, self.width = degree, hidden, width
        t = tables(dim, degree)
        nodes, edges, more = NODES + FLOW_NODES * self.flow, EDGES + FLOW_EDGES * self.flow, 2 * self.flow
        self.node = MLP([nodes, hidden, hidden], norm=True)
        self.edge = MLP([edges, hidden, hidden], norm=True)
        self.process = Processor(hidden, layers)
        # what a corner and a middle know in a cell: their latent numbers and those of the cell's sides
        self.corner, self.corner_sides = nn.Linear(hidden, hidden), nn.Linear(2 * SIDES, hidden, bias=False)
        self.middle, self.middle_sides = nn.Linear(2 * hidden, hidden), nn.Linear(SIDES, hidden, bias=False)
        self.role = nn.Linear(hidden, 3 * width)  # of either end of a pair, of the node that receives, of the one that sends
        self.whole = nn.Linear(hidden, 2 * width, bias=False)
        self.kind = nn.Embedding(_KINDS, 2 * width)
        self.entry = nn.Linear(1 + more, width, bias=False)  # entry of the stiffness; with a flow what it carries between both
        self.apart = nn.Parameter(torch.ones(width))
        self.pair = _zero(nn.Linear(width, 2))
        self.directed = _zero(nn.Linear(width, 1))
        self.cell = MLP([2 * hidden, hidden, 1], zero=True)
        self.rim = MLP([2 * hidden, hidden, 1], zero=True)
        if self.flow:
            self.along = MLP([2 * hidden, hidden, 1], zero=True)
            self.carry = nn.Linear(2, width, bias=False)
            self.beside = _zero(nn.Linear(width, 1, bias=False))  # it is odd in the order of two nodes, so a bias would cancel
        self.later = _zero(nn.Linear(hidden, 1))
        m, q = t.own.shape
        for name, places in (("_pairs", [(a, b) for a in range(m) for b in range(a, m)]),
                             ("_ways", [(a, b) for a in range(m) for b in range(q) if a != b])):
            self.register_buffer(name, torch.tensor(places).T.contiguous(), persistent=False)

    _pairs: Tensor
    _ways: Tensor

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Pairs of nodes of a cell, each once, and a node with itself: [m (m + 1) / 2] each."""
        return self._pairs[0], self._pairs[1]

    @property
    def ways(self) -> tuple[Tensor, Tensor]:
        """From all nodes and middles to the nodes of a cell, but not from one to itself: [m (q - 1)] each."""
        return self._ways[0], self._ways[1]

    @property
    def name(self) -> str:
        return f"elements{self.degree}-{'flow-' * self.flow}{self.dim}d"

    @property
    def sizes(self) -> list[int]:
        return [self.dim, self.degree, self.hidden, len(self.process.receive), self.width, int(self.flow)]

    def forward(self, s: Surroundings, stiffness: Tensor, facets: Tensor, fade: bool = False) -> Numbers:
        """`stiffness`: K_e of each cell [K, m, m]; `facets`: corners of convective facets [F, d]. `fade`: numbers go to zero
        outside of the range of the training parts."""
        z = self._numbers(s, stiffness, facets)
        if not fade:
            return z
        node, _, cell = (x.double() for x in self.fading(s))
        wide = cell[:, None, None]
        return Numbers(z.stiffness * wide, z.mass * wide, z.source * wide, z.ahead * cell[:, None],
                       z.rim * node[facets].amin(-1) if len(facets) else z.rim, None if z.along is None else z.along * cell,
                       None if z.beside is None else z.beside * wide)

    def _numbers(self, s: Surroundings, stiffness: Tensor, facets: Tensor) -> Numbers:
        graph, E = s.graph, len(s.graph.pairs)
        e = self.edge(graph.edge)
        h = self.process(self.node(graph.node)[:, None], self.process.edge_terms(e, graph), graph)[:, 0]
        joined = torch.cat([h[graph.to[:E]] + h[graph.frm[:E]], e[:E] + e[E:]], -1)  # does not depend on the order of the ends
        corners, middles = self.corner(h), self.middle(joined)
        found = in_blocks(lambda block: self._cells(s, stiffness, corners, middles, block), len(graph.cells), h.device, _ROWS)
        at = h[facets] if len(facets) else h.new_zeros(0, 1, self.hidden)
        rim = soft_limit(self.rim(torch.cat([at.mean(1), at.amax(1)], -1))[:, 0].double(), RIM, RIM)
        stiffness, mass, source, later, *flow = found
        return Numbers(stiffness, mass, source, later, rim, *flow[:2])

    def _cells(self, s: Surroundings, stiffness: Tensor, corners: Tensor, middles: Tensor, block: slice) -> tuple[Tensor, ...]:
        """Numbers of some cells: all of `Numbers` but those of the rim."""
        t = tables(self.dim, self.degree, str(corners.device))
        (m, q), w, side, K = t.own.shape, self.width, s.side[block], stiffness[block]
        around = torch.cat([t.touch.to(side) @ side, t.apart.to(side) @ side], -1)  # [K, d+1, 2 * 3]
        x = silu(torch.cat([corners[s.graph.cells[block]] + self.corner_sides(around),
                            middles[s.of_cell[block]] + self.middle_sides(side)], 1))  # [K, q, H]
        mean = x.mean(1)
        either, to, frm = self.role(x).split(w, -1)
        whole = self.whole(mean)[:, None]
        kinds = self.kind(t.kinds)  # [q, q, 2 w]
        scale = K.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-300)
        entry = (K / scale[:, None, None]).to(x.dtype)[..., None]
        carried = self._carried(s, q, block) if self.flow else None  # [K, q, q, 2]
        if carried is not None:
            entry = torch.cat([entry, carried[:, :m, :m].abs()], -1)

        a, b = self.pairs
        ends = either[:, :m] + 0.5 * whole[..., :w]
        one, other = ends.index_select(1, a), ends.index_select(1, b)
        y = torch.addcmul(one + other, self.apart, (one - other).abs_())
        entry = entry.flatten(1, 2).index_select(1, a * m + b)
        y = torch.addcmul(y, entry, self.entry.weight[:, 0]) if carried is None else y + self.entry(entry)
        y = _active(y + kinds[a, b, :w])
        found = _GAIN * self.pair(y).double()  # [K, pairs, 2]
        both = found.new_zeros(len(K), m, m, 2)
        both[:, a, b] = found
        both[:, b, a] = found

        a, b = self.ways
        y = (to + whole[..., w:]).index_select(1, a) + frm.index_select(1, b) + kinds[a, b, w:]
        y = _active(y if carried is None else y + self.carry(carried.flatten(1, 2).index_select(1, a * q + b)))
        source = found.new_zeros(len(K), m, q)
        source[:, a, b] = soft_limit(self.directed(y)[..., 0].double(), STENCIL, STENCIL)
        seen = torch.cat([mean, x.amax(1)], -1)
        later = ahead(self.cell(seen).double() + self.later(x[:, :m])[..., 0].double())
        numbers = bounded(both[..., 0]), bounded(both[..., 1]), source, later
        if carried is None:
            return numbers
        one_way = found.new_zeros(len(K), m, q)
        one_way[:, a, b] = self.beside(y)[..., 0].double()
        beside = one_way[..., :m]
        return *numbers, ahead(self.along(seen)[:, 0].double()), BESIDE * torch.tanh(beside - beside.mT)

    def _carried(self, s: Surroundings, q: int, block: slice) -> Tensor:
        """asinh of the Peclet and Courant numbers between the nodes of each cell [K, q, q, 2], odd in their order."""
        assert s.drift is not None
        d = self.dim
        x = s.units[block, :d].double() * s.side[block, :d, :1].double().exp()  # corners from the first one, in the cell's measure
        x = torch.cat([torch.zeros_like(x[:, :1]), x], 1)
        ends = tables(d, self.degree).ends
        x = torch.cat([x, torch.stack([0.5 * (x[:, i] + x[:, j]) for i, j in ends], 1)], 1)  # [K, q, d]
        way = x[:, None] - x[:, :, None]  # from a to b
        peclet = torch.einsum("kabd,kd->kab", way, s.drift[block].double())
        courant = peclet / way.square().sum(-1).clamp(min=1e-12)
        found = torch.stack([peclet, courant], -1).asinh()
        return found.to(s.side.dtype)


def _active(x: Tensor) -> Tensor:
    """silu, in place where nothing is differentiated."""
    return silu(x, inplace=not torch.is_grad_enabled())


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
