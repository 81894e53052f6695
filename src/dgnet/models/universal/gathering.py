"""The right-hand side of a universal step: one sparse matrix from state, source and the memory of the edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dgnet.models.dgnet.edges import cell_pairs
from dgnet.models.dgnet.parts.source import source_stencil
from dgnet.models.universal.local import Surroundings
from dgnet.models.universal.network import Numbers
from dgnet.operators import EdgeMatrix, Geometry, kernels
from dgnet.problems import Problem
from dgnet.stepping.fold import product

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
        sides, n, E = cell_pairs(g).of_cell, g.mesh.n_nodes, len(g.edges[0])
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
    def of(cls, p: Problem, s: Surroundings, z: Numbers, stiffness: EdgeMatrix) -> Gathering:
        g, d, places = p.geometry.exact, p.mesh.dim, around(p.geometry)
        i, j = g.edges
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
        tracked = (u, source, memory, self.middle, self.moved.values)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tracked):
            return self._differentiable(u, source, memory)
        batch, _, fields = u.shape
        x = torch.cat([u, memory] if source is None else [u, source, memory], 1)
        x = x.reshape(-1) if batch * fields == 1 else x.transpose(0, 1).flatten(1)
        return (self.table(source is not None) @ x).view(-1, batch, fields).transpose(0, 1)

    def brought(self) -> np.ndarray:
        """What a unit of the source at each node and middle brings all nodes together in a step [N + E]; memories bring nothing."""
        middle = self.keep.new_zeros(len(self.keep)).index_add(0, self.places.col, self.middle.detach())
        near = self.near.values.detach()[0, 0]
        nodes = near.new_zeros(self.n).index_add(0, self.near.pattern.col.long(), near)
        return torch.cat([nodes, middle]).double().cpu().numpy()

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

    def table(self, driven: bool) -> Table:
        """All terms as one matrix: [N + E, N + (N + E) + E], or without a source [N + E, N + E]."""
        kept: dict[bool, Table] = self.__dict__.setdefault("_tables", {})
        if driven not in kept:
            kept[driven] = Table.of(*self._terms(driven), padded=kernels.AVAILABLE and self.keep.is_cuda)
        return kept[driven]

    def _terms(self, driven: bool) -> tuple[list[Term], list[tuple[Tensor, Tensor]]]:
        """Blocks of entries in the rows of nodes; columns and values of the edges' rows, which have all the same number of them."""
        ring, n, E = self.moved.pattern, self.n, len(self.keep)
        crow, row, col, _ = self.places
        own = torch.arange(E, device=col.device)
        if not driven:
            return [Term(ring.crow, ring.row, ring.col, self.moved.values[0, 0]), Term(crow, row, col + n, self.memory)], [
                (own + n, self.keep)]
        half = -0.5 * self.gain
        return [Term(ring.crow, ring.row, ring.col, self.moved.values[0, 0]),
                Term(ring.crow, ring.row, ring.col + n, self.near.values[0, 0]), Term(crow, row, col + 2 * n, self.middle),
                Term(crow, row, col + 2 * n + E, self.memory)], [
            (self.first + n, half), (self.second + n, half), (own + 2 * n, self.gain), (own + 2 * n + E, self.keep)]


class Term(NamedTuple):
    """A block of entries of a matrix in CSR order."""

    crow: Tensor
    row: Tensor
    col: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class Table:
    """A matrix with rows for nodes and rows for edges: CSR on the host, padded (ELL) for the kernels of the GPU."""

    csr: Tensor | None
    ell: tuple[tuple[Tensor, Tensor], ...]  # columns [width, rows] and values [1, width, rows], of nodes and of edges

    @classmethod
    def of(cls, wide: list[Term], narrow: list[tuple[Tensor, Tensor]], padded: bool) -> Table:
        n, E, device, dtype = len(wide[0].crow) - 1, len(narrow[0][0]), narrow[0][0].device, narrow[0][1].dtype
        counts = torch.stack([(term.crow[1:] - term.crow[:-1]).long() for term in wide])  # [terms, n]
        size = counts.sum(0)
        offsets = counts.cumsum(0) - counts
        # the place of each entry in its row
        lanes = [(offset - term.crow[:-1])[term.row] + torch.arange(len(term.row), device=device)
                 for term, offset in zip(wide, offsets)]
        if padded:
            width = int(size.max())
            columns = torch.zeros(width, n, dtype=torch.int32, device=device)
            values = torch.zeros(1, width, n, dtype=dtype, device=device)
            for term, lane in zip(wide, lanes):
                columns[lane, term.row.long()], values[0, lane, term.row.long()] = term.col.int(), term.value.detach()
            return cls(None, ((columns, values), (torch.stack([col for col, _ in narrow]).int(),
                                                  torch.stack([x for _, x in narrow]).detach()[None])))
        start = torch.cat([size.new_zeros(1), torch.cat([size, size.new_full((E,), len(narrow))]).cumsum(0)])
        total, first = int(start[-1]), int(start[n])
        column, value = torch.empty(total, dtype=torch.int32, device=device), torch.empty(total, dtype=dtype, device=device)
        for term, lane in zip(wide, lanes):
            place = start[term.row] + lane
            column[place], value[place] = term.col.int(), term.value.detach()
        column[first:] = torch.stack([col for col, _ in narrow], 1).ravel().int()
        value[first:] = torch.stack([x for _, x in narrow], 1).ravel().detach()
        shape = n + E, int(narrow[-1][0][-1]) + 1
        return cls(torch.sparse_csr_tensor(start.int(), column, value, size=shape, check_invariants=False), ())

    def __matmul__(self, x: Tensor) -> Tensor:
        """Of x [columns] or [columns, R]."""
        if self.csr is not None:
            return self.csr @ x
        return torch.cat([kernels.multiply(*part, x.reshape(1, len(x), -1).contiguous())[0] for part in self.ell])
