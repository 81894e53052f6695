"""The right-hand side of a universal step: one sparse matrix from state, source and the memory of the edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from dgnet.green.solver import product
from dgnet.models.dgnet.edges import cell_pairs
from dgnet.models.dgnet.parts.source import source_stencil
from dgnet.models.universal.local import Surroundings
from dgnet.models.universal.network import Numbers
from dgnet.operators import EdgeMatrix, Geometry, kernels
from dgnet.problems import Discretisation

Tensor = torch.Tensor


class Around(NamedTuple):
    """Where the edges of the cells around each node stand, as a CSR pattern [N, E]."""

    crow: Tensor  # [N + 1]
    row: Tensor  # [m]
    col: Tensor  # [m]
    slots: Tensor  # [K, d+1, s] where each pair of a corner and a side of a cell goes


def around(g: Geometry) -> Around:
    """That of a geometry, made once."""
    kept: dict[str, Around] = g.__dict__.setdefault("_around", {})
    if "around" not in kept:
        sides, n, E = cell_pairs(g).of_cell, g.mesh.n_nodes, len(g.mesh.edges)
        key, slots = torch.unique(g.cells[:, :, None] * E + sides[:, None, :], return_inverse=True)
        row = key // E
        crow = torch.cat([row.new_zeros(1), torch.bincount(row, minlength=n).cumsum(0)])
        kept["around"] = Around(crow, row, key - row * E, slots)
    return kept["around"]


@dataclass(frozen=True, eq=False)
class Gathering:
    """What diffusion moves in a step, and what nodes gather of a source: from the nodes around, from the middles of the edges of
    the cells around, and from the memory of these edges.

    The middle of an edge counts by how far the source there is from the mean of its ends, c = f_middle - (f_i + f_j) / 2. The
    memory holds the same for the state, as far as the source and the start made it: w+ = keep w + gain c with
    gain = (1 + keep) dt / 2, divided by the capacity, and (w + w+) / 2 acts in the step. A source that is linear along the edges
    brings nothing to either.
    """

    moved: EdgeMatrix  # -dt K
    near: EdgeMatrix  # dt times what a node gets of the source at the nodes around
    middle: Tensor  # [m] dt times what it gets of the middles of the edges around, in the order of `places`
    memory: Tensor  # [m] and of their memory
    places: Around
    keep: Tensor  # [E]
    gain: Tensor  # [E]
    first: Tensor  # [E]
    second: Tensor  # [E]

    @classmethod
    def of(cls, p: Discretisation, s: Surroundings, z: Numbers, stiffness: EdgeMatrix) -> Gathering:
        g, d, places = p.geometry.exact, p.mesh.dim, around(p.geometry)
        i, j = (torch.as_tensor(p.mesh.edges[:, k].copy(), device=g.device) for k in (0, 1))
        steepness = torch.einsum("k,kid,kde,kie->k", g.volumes, g.gradients, s.root @ s.root.mT, g.gradients) / (d + 1)
        memory = steepness[:, None, None] * z.memory
        mass, whole = (A.row_sums()[0, 0].double() for A in (p.source_mass, p.mass))
        capacity = (whole[i] + whole[j]) / (mass[i] + mass[j])  # a source f raises the state by dt f / c
        gain = 0.5 * (1 + z.keep) * p.dt / capacity
        bubble = (g.volumes / ((d + 1) * (d + 2)))[:, None, None]
        curve = bubble * z.middle + 0.5 * gain[s.of_cell][:, None] * memory  # [K, d+1, s]
        ends = torch.nn.functional.one_hot(s.ends, d + 1).sum(1).to(curve)  # [s, d+1]
        flat = EdgeMatrix.from_cells(p.geometry.pattern, curve @ (-0.5 * ends)).values  # minus the mean of the ends
        near = source_stencil(p, z.source).values.double() + flat

        def gathered(local: Tensor) -> Tensor:
            return local.new_zeros(len(places.col)).index_add(0, places.slots.ravel(), p.dt * local.ravel()).to(p.dtype)

        return cls(stiffness * -p.dt, EdgeMatrix(p.geometry.pattern, (p.dt * near).to(p.dtype)), gathered(curve),
                   gathered(0.5 * (1 + z.keep[s.of_cell])[:, None] * memory), places, z.keep.to(p.dtype), gain.to(p.dtype), i, j)

    @property
    def n(self) -> int:
        return self.moved.pattern.n

    def curve(self, u: Tensor) -> Tensor:
        """How far values at the middles are from the means of the ends: [B, N + E, F] -> [B, E, F]."""
        return u[:, self.n:] - 0.5 * (u.index_select(1, self.first) + u.index_select(1, self.second))

    def __call__(self, u: Tensor, source: Tensor | None, memory: Tensor) -> Tensor:
        """[B, N + E, F]: dt (-K u + load of the source) at the nodes, then the memory after the step.

        From a state [B, N, F] without its reference value, a source at nodes and middles [B, N + E, F] and the memory [B, E, F].
        """
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (u, source, memory, self.middle, self.moved.values)):
            return self._differentiable(u, source, memory)
        batch, _, fields = u.shape
        x = torch.cat([u, memory] if source is None else [u, source, memory], 1)
        x = x.reshape(-1) if batch * fields == 1 else x.transpose(0, 1).flatten(1)
        return (self._table(source is not None) @ x).view(-1, batch, fields).transpose(0, 1)

    def _differentiable(self, u: Tensor, source: Tensor | None, memory: Tensor) -> Tensor:
        """The same, term by term."""
        def total(values: Tensor, x: Tensor) -> Tensor:
            found = x.new_zeros(x.shape[0], self.n, x.shape[2])
            return found.index_add(1, self.places.row, values[:, None] * x.index_select(1, self.places.col))

        moved, kept = product(self.moved, u) + total(self.memory, memory), self.keep[:, None] * memory
        if source is not None:
            moved = moved + product(self.near, source[:, :self.n]) + total(self.middle, source[:, self.n:])
            kept = kept + self.gain[:, None] * self.curve(source)
        return torch.cat([moved, kept], 1)

    def _table(self, driven: bool) -> Tensor:
        """All terms as one CSR matrix: [N + E, N + (N + E) + E], or without a source [N + E, N + E]."""
        kept: dict[bool, Tensor] = self.__dict__.setdefault("_tables", {})
        if driven not in kept:
            kept[driven] = self._laid_out(driven)
        return kept[driven]

    def _laid_out(self, driven: bool) -> Tensor:
        ring, n, E = self.moved.pattern, self.n, len(self.keep)
        edge = torch.arange(E, device=self.keep.device)
        left = 2 * n + E if driven else n  # columns before the memory
        terms = [(ring.crow, ring.row, ring.col, self.moved.values[0, 0]), (*self.places[:2], self.places.col + left, self.memory)]
        narrow, own = [(edge + left, self.keep)], 1
        if driven:
            terms[1:1] = [(ring.crow, ring.row, ring.col + n, self.near.values[0, 0]),
                          (*self.places[:2], self.places.col + 2 * n, self.middle)]
            half = -0.5 * self.gain
            narrow = [(self.first + n, half), (self.second + n, half), (edge + 2 * n, self.gain), *narrow]
            own = 4
        counts = [(crow[1:] - crow[:-1]).long() for crow, *_ in terms]
        size = torch.cat([torch.stack(counts).sum(0), torch.full_like(edge, own)])
        start = torch.cat([size.new_zeros(1), size.cumsum(0)])
        total = int(start[-1])
        column, value = torch.empty(total, dtype=torch.int32, device=edge.device), self.keep.new_empty(total)
        offset = start[:n]
        for (crow, row, col, entries), count in zip(terms, counts):
            place = (offset - crow[:-1])[row.long()] + torch.arange(len(row), device=edge.device)
            column[place], value[place] = col.int(), entries.detach()
            offset = offset + count
        for k, (col, entries) in enumerate(narrow):
            column[start[n]:][k::own], value[start[n]:][k::own] = col.int(), entries.detach()
        return torch.sparse_csr_tensor(start.int(), column, value, size=(n + E, left + E), check_invariants=False)
