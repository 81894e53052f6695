"""The matrices of a step from the numbers of the universal network."""

from __future__ import annotations

from typing import NamedTuple

import torch

from dgnet.mesh import facet_geometry
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.mass import RANGE_DOWN, learned_mass, mass_headroom
from dgnet.models.universal.local import Surroundings
from dgnet.models.universal.network import Numbers, beside_the_flow, stretched
from dgnet.operators import EdgeMatrix
from dgnet.problems import Condition, Problem
from dgnet.problems.conditions import samples
from dgnet.stepping import Operators

Tensor = torch.Tensor


class Convective(NamedTuple):
    """The facets of a convective (Robin) condition, in double precision."""

    nodes: Tensor  # [F, d]
    matrix: Tensor  # [F, d, d] coefficient times integrals of phi_i phi_j
    condition: Condition
    points: Tensor  # [F, d, dim]

    def load(self, t: float, dt: float) -> Tensor:
        """[F, d]: what the ambient brings to the nodes of each facet, on average over a step."""
        weights, (ambient,) = samples([self.condition.drive], self.points.flatten(0, 1), t, dt)
        value = torch.tensordot(weights, ambient, 1).reshape(self.nodes.shape)
        return (self.matrix @ value.to(self.matrix)[..., None])[..., 0]


def convective(p: Problem) -> list[Convective]:
    """All convective conditions of a problem; their coefficients are numbers (`untrained`)."""
    found = []
    for c in p.conditions:
        if c.role == "exchange" and not callable(c.coefficient):
            facets = p.mesh.facets(c.boundary)
            d, size = facets.shape[1], p.geometry.exact.tensor(facet_geometry(p.mesh.points, facets)[0])
            ring = size[:, None, None] * (1 + torch.eye(d, dtype=size.dtype, device=size.device)) / (d * (d + 1))
            nodes = torch.tensor(facets, device=size.device)
            found.append(Convective(nodes, float(c.coefficient) * ring, c, p.geometry.exact.points[nodes]))
    return found


def operators(p: Problem, s: Surroundings, z: Numbers) -> Operators:
    """M, K and the boundary loads of a step. What the source brings is made by `Gathering`."""
    g, pattern = p.geometry.exact, p.geometry.pattern
    M, low = learned_mass(p, soft_limit(z.mass, RANGE_DOWN, mass_headroom(p)))
    local = torch.einsum("k,kid,kde,kje->kij", g.volumes, g.gradients, stretched(s, z.stretch), g.gradients)
    K = EdgeMatrix.from_cells(pattern, local).values + p.decay_part.values.double()
    more = EdgeMatrix.from_cells(pattern, z.ahead[:, None, None] * local).values
    carried = p.advection()
    if carried is not None and z.along is not None:
        weight = (g.volumes if p.capacity is None else g.volumes * p.capacity[0])[:, None, None]
        along, swirl = (EdgeMatrix.from_cells(pattern, weight * part).values
                        for part in beside_the_flow(s, z, g.gradients, g.points[g.cells], p.dt))
        carried = EdgeMatrix(pattern, carried.values.double() + swirl).to(p.dtype)
        K = K + along + carried.values.double()
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

    def load(t: float, dt: float = 0.0) -> Tensor | None:
        total = p.flux_load(t, dt)
        for one, factor in exchanges:
            part = factor.new_zeros(p.n).index_add(0, one.nodes.ravel(), (factor * one.load(t, dt)).ravel()).to(p.dtype)[:, None]
            total = part.expand(-1, p.n_fields) if total is None else total + part
        return total

    still = None if p.data_changes else load(0.0)
    return Operators(
        mass=M, source=p.source_mass, stiffness=lambda t, dt=0.0: stiffness,
        indefinite_part=lambda t: carried, load=load if p.data_changes else lambda t, dt=0.0: still,
        reaction=p.pde.reaction, mass_low=low, symmetric=carried is None, time_dependent=False,
        row_sums_constant=p.decay_sums, moving_sums=lambda t, dt=0.0: rows,
        plain=None if p.capacity is None else p.source_mass, advanced_part=EdgeMatrix(pattern, more[None, None]).to(p.dtype))
