"""The matrices of a step from the numbers of the universal network, and how a source reaches the nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from dgnet.green import Operators
from dgnet.mesh import facet_geometry
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.mass import RANGE_DOWN, learned_mass, mass_headroom
from dgnet.models.dgnet.parts.source import source_stencil
from dgnet.models.universal.local import Surroundings
from dgnet.models.universal.network import Numbers, stretched
from dgnet.operators import EdgeMatrix
from dgnet.operators import mass as lumped
from dgnet.problems import Discretisation, Robin

Tensor = torch.Tensor


class Convective(NamedTuple):
    """The facets of a convective (Robin) condition, in double precision."""

    nodes: Tensor  # [F, d]
    matrix: Tensor  # [F, d, d] coefficient times integrals of phi_i phi_j
    condition: Robin
    points: Tensor  # [F, d, dim]

    def load(self, t: float) -> Tensor:
        """[F, d]: what the ambient brings to the nodes of each facet."""
        ambient = self.condition.ambient
        value = (torch.as_tensor(ambient(self.points.flatten(0, 1), t)).reshape(self.nodes.shape) if callable(ambient)
                 else torch.full(self.nodes.shape, float(ambient), device=self.points.device))
        return (self.matrix @ value.to(self.matrix)[..., None])[..., 0]


def convective(p: Discretisation) -> list[Convective]:
    """All convective conditions of a problem; their coefficients are numbers (`untrained`)."""
    found = []
    for c in p.conditions:
        if isinstance(c, Robin) and not callable(c.coefficient):
            facets = p.mesh.facets(c.boundary)
            d, size = facets.shape[1], p.geometry.exact.tensor(facet_geometry(p.mesh.points, facets)[0])
            ring = size[:, None, None] * (1 + torch.eye(d, dtype=size.dtype, device=size.device)) / (d * (d + 1))
            nodes = torch.tensor(facets, device=size.device)
            found.append(Convective(nodes, float(c.coefficient) * ring, c, p.geometry.exact.points[nodes]))
    return found


def operators(p: Discretisation, s: Surroundings, z: Numbers) -> Operators:
    """M, K and the boundary loads of a step. The source is lumped here: `Gathering` makes its load."""
    g, pattern = p.geometry.exact, p.geometry.pattern
    M, low = learned_mass(p, soft_limit(z.mass, RANGE_DOWN, mass_headroom(p)))
    local = torch.einsum("k,kid,kde,kje->kij", g.volumes, g.gradients, stretched(s, z.stretch), g.gradients)
    K = EdgeMatrix.from_cells(pattern, local).values + p.decay_part.values.double()
    more = EdgeMatrix.from_cells(pattern, z.ahead[:, None, None] * local).values
    sums, exchanges = None, []
    for one in convective(p):
        factor, ahead = z.rim[one.nodes].mean(1).exp(), z.rim_ahead[one.nodes].mean(1)
        ring = factor[:, None, None] * one.matrix
        slots = pattern.slots(*(x.expand_as(ring).ravel() for x in (one.nodes[:, :, None], one.nodes[:, None, :])))
        K = K.index_add(-1, slots, ring.ravel().expand(*K.shape[:-1], -1))
        more = more.index_add(-1, slots, (ahead[:, None, None] * ring).ravel())
        sums = (ring.new_zeros(p.n) if sums is None else sums).index_add(0, one.nodes.ravel(), ring.sum(-1).ravel())
        exchanges.append((one, factor[:, None]))
    stiffness = EdgeMatrix(pattern, K).to(p.dtype)
    rows = None if sums is None else sums.to(p.dtype)[None, None]

    def load(t: float) -> Tensor | None:
        total = p.flux_load(t)
        for one, factor in exchanges:
            part = factor.new_zeros(p.n).index_add(0, one.nodes.ravel(), (factor * one.load(t)).ravel()).to(p.dtype)[:, None]
            total = part.expand(-1, p.n_fields) if total is None else total + part
        return total

    still = None if p.data_changes else load(0.0)
    return Operators(
        mass=M, source=EdgeMatrix(pattern, lumped(p.geometry, 0.0).values[None, None]), stiffness=lambda t: stiffness,
        rest=lambda t: None, load=load if p.data_changes else lambda t: still, reaction=p.pde.reaction, mass_low=low,
        symmetric=True, time_dependent=False, still_sums=p.decay_sums, moving_sums=lambda t: rows,
        plain=None if p.capacity is None else p.source_mass, ahead=EdgeMatrix(pattern, more[None, None]).to(p.dtype))


@dataclass(frozen=True, eq=False)
class Gathering:
    """How nodes gather a source: from the nodes around, from the middles of the edges around, and from the edges' memory.

    The middle of an edge counts by how far the source there is from the mean of its ends, c = f_middle - (f_i + f_j) / 2. The
    memory holds the same for the state, as far as the source and the start made it: w+ = keep w + (1 + keep) dt c / 2, divided by
    the capacity, and (w + w+) / 2 acts in the step. A source that is linear along the edges brings nothing to either.

    One sparse matrix [N + E, N + 2E] does it: from the source at nodes and middles and the memory, to what the nodes get, divided
    by their mass, and the new memory.
    """

    matrix: tuple[Tensor, Tensor, Tensor]  # rows, columns and values
    table: Tensor | None  # the same as a CSR matrix, where nothing is differentiated
    first: Tensor  # [E]
    second: Tensor  # [E]
    n: int

    @classmethod
    def of(cls, p: Discretisation, s: Surroundings, z: Numbers) -> Gathering:
        g, n, E, d = p.geometry.exact, p.n, len(z.keep), p.mesh.dim
        P = source_stencil(p, z.source)
        i, j = (torch.as_tensor(p.mesh.edges[:, k].copy(), device=g.device) for k in (0, 1))
        steepness = torch.einsum("k,kid,kde,kie->k", g.volumes, g.gradients, s.root @ s.root.mT, g.gradients) / (d + 1)
        memory = steepness[:, None, None] * z.memory
        mass, whole = (A.row_sums()[0, 0].double() for A in (p.source_mass, p.mass))
        capacity = (whole[i] + whole[j]) / (mass[i] + mass[j])  # a source f raises the state by dt f / c
        gain = 0.5 * (1 + z.keep) * p.dt / capacity
        keep = z.keep[s.of_cell][:, None]
        curve = (g.volumes / ((d + 1) * (d + 2)))[:, None, None] * z.middle + 0.5 * gain[s.of_cell][:, None] * memory  # [K, d+1, s]
        corner, side = (x.expand_as(curve).ravel() for x in (s.graph.cells[:, :, None], s.of_cell[:, None, :]))
        edge = torch.arange(E, device=g.device)
        flat, old = curve.ravel() / mass[corner], (0.5 * (1 + keep) * memory).ravel() / mass[corner]
        row = torch.cat([P.pattern.row.long(), *[corner] * 4, *[n + edge] * 4])
        column = torch.cat([P.pattern.col.long(), n + side, i[side], j[side], n + E + side, n + edge, i, j, n + E + edge])
        near = P.values[0, 0].double() / mass[P.pattern.row.long()]
        value = torch.cat([near, flat, -0.5 * flat, -0.5 * flat, old, gain, -0.5 * gain, -0.5 * gain, z.keep])
        size = n + 2 * E
        key, place = torch.unique(row * size + column, return_inverse=True)
        total = value.new_zeros(len(key)).index_add(0, place, value).to(p.dtype)
        row, column, table = key // size, key % size, None
        if not total.requires_grad:
            starts = torch.cat([row.new_zeros(1), torch.bincount(row, minlength=n + E).cumsum(0)])
            table = torch.sparse_csr_tensor(starts.int(), column.int(), total, size=(n + E, size), check_invariants=False)
        return cls((row, column, total), table, i, j, n)

    def curve(self, u: Tensor) -> Tensor:
        """How far values at the middles are from the means of the ends: [B, N + E, F] -> [B, E, F]."""
        return u[:, self.n:] - 0.5 * (u.index_select(1, self.first) + u.index_select(1, self.second))

    def __call__(self, source: Tensor | None, memory: Tensor) -> tuple[Tensor, Tensor]:
        """From a source at nodes and middles [B, N + E, F] and the memory [B, E, F]: what the nodes get [B, N, F], and the memory
        after the step."""
        batch, edges, fields = memory.shape
        if source is None:
            source = memory.new_zeros(batch, self.n + edges, fields)
        x = torch.cat([source, memory], 1).transpose(0, 1).flatten(1)
        if self.table is None or (torch.is_grad_enabled() and x.requires_grad):
            row, column, value = self.matrix
            found = x.new_zeros(self.n + edges, x.shape[1]).index_add(0, row, value[:, None] * x.index_select(0, column))
        else:
            found = torch.mm(self.table, x)
        found = found.view(-1, batch, fields).transpose(0, 1)
        return found[:, :self.n], found[:, self.n:]
