"""Graph networks on a mesh: what the hybrid operator and the residual are made of.

Encode-process-decode (paper, Section 3.4.2): node and edge encoders, M message-passing layers with residuals, decoders. All
parts are MLPs; all decoders start at zero, so that an untrained model is the classical solver. `plain` is what the paper's text
says and no more: raw coordinates, no LayerNorm, sums that are not divided by anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dgnet.errors import InputError
from dgnet.models import messages
from dgnet.operators import Geometry

Tensor = torch.Tensor


class Norm(nn.LayerNorm):
    """LayerNorm of numbers whose squares single precision can hold: weights of any reasonable size give finite results."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(-1e16, 1e16))


class MLP(nn.Sequential):
    """Linear layers with SiLU in between; `zero` starts the last one at zero, `norm` ends with a LayerNorm."""

    def __init__(self, sizes: list[int], zero: bool = False, norm: bool = False) -> None:
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(sizes)):
            layers += [nn.Linear(a, b)] + ([nn.SiLU()] if i < len(sizes) - 2 else [])
        last = layers[-1]
        assert isinstance(last, nn.Linear)
        if zero:
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        if norm:
            layers.append(Norm(sizes[-1]))
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        weight = self[0].weight
        if (x.dtype == torch.float64) != (weight.dtype == torch.float64):  # half precision beside single is that of autocast
            weights, others = ("double", "single") if weight.dtype == torch.float64 else ("single", "double")
            raise InputError(f"the model's weights are in {weights} precision, the problem in {others}: use model.double(), or "
                             "model.float() and a problem with dtype=torch.float32")
        found: Tensor = super().forward(x)
        return found


@dataclass(frozen=True, eq=False)
class MeshGraph:
    """A mesh as a graph: directed edges (both ways) with geometric features that do not depend on units.

    Nodes: position in the bounding box, boundary flag C_i (the paper's), and ours: size of the control volume and the share of
    a full turn that the domain fills around the node (1 inside, 1/2 on a straight boundary, more at re-entrant corners).
    Edges: displacement and length in local spacings, boundary flag, cotangent weight.
    Networks of states see the two flags of a node, not where it is (`place`).

    `plain`: what the paper's encoder has. Nodes: x_i and C_i. Edges: x_j - x_i and its length, in the mesh's own unit.
    """

    node: Tensor  # [N, a]
    place: Tensor  # [N, p]
    edge: Tensor  # [2E, b]
    to: Tensor  # [2E] node that receives
    frm: Tensor  # [2E] node that sends
    pairs: Tensor  # [E, 2] directed edges (both ways) of each undirected one
    cells: Tensor  # [K, d+1]

    @cached_property
    def incoming(self) -> Incoming:
        return Incoming.of(self.to, self.frm, len(self.node), self.node.dtype)

    @classmethod
    def kept(cls, geometry: Geometry, plain: bool = False) -> MeshGraph:
        """That of a geometry, made once."""
        cache: dict[bool, MeshGraph] = geometry.__dict__.setdefault("_graphs", {})
        if plain not in cache:
            cache[plain] = cls.of(geometry, plain)
        return cache[plain]

    @classmethod
    def of(cls, geometry: Geometry, plain: bool = False) -> MeshGraph:
        mesh, E = geometry.mesh, len(geometry.mesh.edges)
        i, j = mesh.edges.T
        to, frm = np.concatenate([i, j]), np.concatenate([j, i])
        put = geometry.tensor

        def index(a: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(a), device=geometry.device)

        pairs = index(np.arange(2 * E).reshape(2, E).T)
        if plain:
            step = mesh.points[frm] - mesh.points[to]
            place = put(np.column_stack([mesh.points, mesh.on_boundary.astype(float)]))
            lengths = np.linalg.norm(step, axis=1)
            return cls(place, place, put(np.column_stack([step, lengths])), index(to), index(frm), pairs, geometry.cells)
        low, high = mesh.points.min(0), mesh.points.max(0)
        volume = mesh.dual_volumes()
        local = volume ** (1 / mesh.dim)
        flag = mesh.on_boundary.astype(float)
        turns = turn_share(torch.tensor(mesh.points[mesh.cells]), torch.tensor(mesh.cells), mesh.n_nodes)
        node = np.column_stack([2 * (mesh.points - low) / (high - low).max() - 1, flag, np.log(volume / volume.mean()), turns])
        step = (mesh.points[frm] - mesh.points[to]) / np.sqrt(local[to] * local[frm])[:, None]
        rim = np.zeros(E)
        sides = np.concatenate([mesh.boundary_facets[:, [a, b]] for a in range(mesh.dim) for b in range(a)])
        key = np.array([mesh.n_nodes, 1])
        rim[np.searchsorted(mesh.edges @ key, np.unique(np.sort(sides, axis=1) @ key))] = 1.0
        weight = mesh.cotangent_weights / (mesh.edge_lengths ** (mesh.dim - 2))
        edge = np.column_stack([step, np.linalg.norm(step, axis=1), np.tile(rim, 2), np.tile(np.tanh(weight), 2)])
        return cls(put(node), put(node[:, -3::2]), put(edge), index(to), index(frm), pairs, geometry.cells)


def turn_share(corners: Tensor, cells: Tensor, n: int) -> Tensor:
    """Angle (2D) or solid angle (3D) that cells [K, d+1] with corners [K, d+1, d] fill around each of n nodes, as a share of the
    full one [n]."""
    d, share = corners.shape[-1], []
    for c in range(d + 1):
        e = [corners[:, k] - corners[:, c] for k in range(d + 1) if k != c]
        length = [v.norm(dim=1) for v in e]
        if d == 2:
            share.append(((e[0] * e[1]).sum(1) / (length[0] * length[1])).clamp(-1, 1).arccos() / (2 * np.pi))
        else:
            top = torch.linalg.det(torch.stack(e, 1)).abs()
            bottom = (length[0] * length[1] * length[2] + (e[0] * e[1]).sum(1) * length[2]
                      + (e[0] * e[2]).sum(1) * length[1] + (e[1] * e[2]).sum(1) * length[0])
            share.append(2 * torch.arctan2(top, bottom) / (4 * np.pi))
    return corners.new_zeros(n).index_add(0, cells.ravel(), torch.stack(share, 1).ravel())


BLOCK = {"cpu": 1 << 13, "cuda": 1 << 18}
"""Directed edges whose messages are made at once, where nothing is differentiated: what the cache holds, or some 60 MB."""


@dataclass(frozen=True, eq=False)
class Incoming:
    """Directed edges sorted by receiver, so that sums at nodes are sums over runs: no atomics, the same result every time."""

    order: Tensor  # [2E] place of each sorted edge in the graph's own order
    to: Tensor  # [2E]
    frm: Tensor  # [2E]
    ends: Tensor  # [N + 1] edges of node i are ends[i] .. ends[i + 1]
    reverse: Tensor  # [2E] the same edge the other way round
    degree: Tensor  # [N]
    first: int = 0  # of a block: the place of its first edge

    @classmethod
    def of(cls, to: Tensor, frm: Tensor, n: int, dtype: torch.dtype) -> Incoming:
        order = torch.argsort(to * n + frm)
        to, frm = to[order], frm[order]
        reverse = torch.searchsorted(to * n + frm, frm * n + to)
        degree = torch.bincount(to, minlength=n)
        ends = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        return cls(order, to, frm, ends, reverse, degree.to(dtype))

    @cached_property
    def _matrix(self) -> Tensor:
        """[N, 2E] ones, for sums on the CPU."""
        count = len(self.to)
        return torch.sparse_csr_tensor(self.ends.int(), torch.arange(count, dtype=torch.int32, device=self.to.device),
                                       self.degree.new_ones(count), size=(len(self.degree), count), check_invariants=False)

    @cached_property
    def blocks(self) -> list[Incoming]:
        """The same for runs of receivers: messages of one block after the other need little memory."""
        size, n = BLOCK[self.to.device.type], len(self.degree)
        if len(self.to) <= size:
            return [self]
        cuts = torch.arange(size, len(self.to), size, device=self.to.device)
        nodes = [0, *dict.fromkeys(torch.searchsorted(self.ends, cuts).tolist()), n]
        runs = self.ends[torch.tensor(nodes, device=self.to.device)].tolist()
        return [Incoming(self.order[a:b], self.to[a:b], self.frm[a:b], self.ends[i:j + 1] - a, self.reverse[a:b],
                         self.degree[i:j], a)
                for i, j, a, b in zip(nodes, nodes[1:], runs, runs[1:]) if i < j]

    def total(self, m: Tensor) -> Tensor:
        """Sums of [2E, W] at the receivers [N, W]."""
        if m.is_cuda or m.dtype != self.degree.dtype:
            return torch.segment_reduce(m, "sum", offsets=self.ends, axis=0, unsafe=True)
        return torch.mm(self._matrix, m)


class _Gather(torch.autograd.Function):
    """sum over incoming edges (i, j) of silu(a_i + b_j + c_ij): a, b [N, B, H], c [2E, H] sorted -> [N, B, H].

    Nothing of the size of the edges is kept for the way back: it is computed again.
    """

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor, c: Tensor, edges: Incoming) -> Tensor:  # type: ignore[override]
        ctx.edges = edges
        ctx.save_for_backward(a, b, c)
        return _Gather.value(a, b, c, edges)

    @staticmethod
    def value(a: Tensor, b: Tensor, c: Tensor | Callable[[Incoming], Tensor], edges: Incoming) -> Tensor:
        """c may be a function that makes the terms of a block of edges when they are needed."""
        if isinstance(c, Tensor) and messages.applies(a, b, c):
            return messages.total(a, b, c, edges.frm, edges.ends)
        found = []
        for block in edges.blocks:
            term = c[block.first:block.first + len(block.to)] if isinstance(c, Tensor) else c(block)
            found.append(block.total(functional.silu(_Gather.inner(a, b, term, block), inplace=True).flatten(1)))
        return (found[0] if len(found) == 1 else torch.cat(found)).view(a.shape)

    @staticmethod
    def inner(a: Tensor, b: Tensor, c: Tensor, edges: Incoming) -> Tensor:
        z = a.index_select(0, edges.to)
        z += b.index_select(0, edges.frm)
        return z.add_(c[:, None])

    @staticmethod
    def backward(ctx, g: Tensor):  # type: ignore[override]
        a, b, c = ctx.saved_tensors
        edges: Incoming = ctx.edges
        if messages.applies(a, b, c) and g.dtype == a.dtype:
            found = messages.gradients(a, b, c, g, edges.frm, edges.reverse, edges.ends)
            return found[0], found[1], found[2] if ctx.needs_input_grad[2] else None, None
        z = _Gather.inner(a, b, c, edges)
        s = torch.sigmoid(z)
        z.mul_(1 - s).add_(1).mul_(s).mul_(g.to(z.dtype).index_select(0, edges.to))  # silu'(z) = s (1 + z (1 - s))
        flat = z.flatten(1)
        grad_b = edges.total(flat.index_select(0, edges.reverse)).view(b.shape)
        return edges.total(flat).view(a.shape), grad_b, z.sum(1) if ctx.needs_input_grad[2] else None, None


class Processor(nn.Module):
    """M layers h_i <- h_i + Update(h_i, sum_j Message(h_i, h_j, e_ij)), for h [N, B, H] (batched) and e [2E, H].

    The first linear layer of Message is split by its inputs, and its last one acts on the sum: products with H columns run
    over nodes, not edges. What edges contribute does not depend on h and can be computed beforehand (`edge_terms`).
    Unless `plain`, the sum is divided by the root of its number of terms. With `norm`, Update ends with a LayerNorm.
    """

    def __init__(self, hidden: int, layers: int, plain: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.plain = plain
        self.receive = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.send = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        self.edge = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        self.message = nn.ModuleList(nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden)) for _ in range(layers))
        self.update = nn.ModuleList(MLP([2 * hidden, hidden, hidden], norm=norm) for _ in range(layers))

    def edge_terms(self, e: Tensor, graph: MeshGraph) -> list[Tensor]:
        """[2E, H] per layer, sorted by receiver."""
        e = e.index_select(0, graph.incoming.order)
        return [edge(e) for edge in self.edge]

    def forward(self, h: Tensor, edge_terms: Sequence[Tensor | Callable[[Incoming], Tensor]], graph: MeshGraph) -> Tensor:
        edges = graph.incoming
        gather = _Gather.apply if torch.is_grad_enabled() else _Gather.value
        # keeps the sum's size the same at nodes of any degree
        scale = (torch.ones_like(edges.degree) if self.plain else 1 / edges.degree.clamp(min=1).sqrt())[:, None, None]
        for receive, send, term, message, update in zip(self.receive, self.send, edge_terms, self.message, self.update):
            total = gather(receive(h), send(h), term, edges)
            outer = message.get_submodule("1")
            assert isinstance(outer, nn.Linear)
            total = functional.linear(total * scale, outer.weight) + outer.bias * (scale * edges.degree[:, None, None])
            h = h + update(torch.cat([h, total.to(h.dtype)], -1))
        return h


class GeometryNet(nn.Module):
    """Encoder and processor of the operator network: node embeddings h [N, H] from geometry alone."""

    def __init__(self, dim: int, hidden: int, layers: int, plain: bool = False, norm: bool | None = None) -> None:
        super().__init__()
        norm = not plain if norm is None else norm
        self.node, self.edge = (MLP([dim + (1 if plain else 3), hidden, hidden], norm=norm) for _ in range(2))
        self.process = Processor(hidden, layers, plain, norm)

    def forward(self, graph: MeshGraph) -> tuple[Tensor, Tensor]:
        e = self.edge(graph.edge)
        return self.process(self.node(graph.node)[:, None], self.process.edge_terms(e, graph), graph)[:, 0], e


class StateNet(nn.Module):
    """A message-passing network on states [B, N, C] -> [B, N, F], zero at birth."""

    def __init__(self, dim: int, inputs: int, outputs: int, hidden: int, layers: int, plain: bool = False,
                 norm: bool | None = None) -> None:
        super().__init__()
        norm = not plain if norm is None else norm
        self.node = MLP([inputs + (dim + 1 if plain else 2), hidden, hidden], norm=norm)
        self.edge = MLP([dim + (1 if plain else 3), hidden, hidden], norm=norm)
        self.process = Processor(hidden, layers, plain, norm)
        self.decode = MLP([hidden, hidden, outputs], zero=True)

    def edge_terms(self, graph: MeshGraph) -> list[Tensor]:
        """What depends on the mesh alone: once per rollout is enough."""
        return self.process.edge_terms(self.edge(graph.edge), graph)

    def forward(self, x: Tensor, graph: MeshGraph, edge_terms: list[Tensor] | None = None) -> Tensor:
        h = self.node(torch.cat([x, graph.place.expand(*x.shape[:-1], -1)], -1).transpose(0, 1))
        return self.decode(self.process(h, self.edge_terms(graph) if edge_terms is None else edge_terms, graph)).transpose(0, 1)
