"""The matrices of a step from the numbers of the universal network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from dgnet.mesh import facet_geometry
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.mass import RANGE_DOWN, learned_mass, mass_headroom
from dgnet.models.universal.elements import (
    LARGEST,
    ElementNet,
    beside_the_flow,
    corrected_mass,
    corrected_source,
    corrected_stiffness,
    coupling,
    root_of,
    stiffness_of,
    tables,
    taken_ahead,
)
from dgnet.models.universal.local import Surroundings
from dgnet.models.universal.network import Numbers, stretched
from dgnet.models.universal.network import beside_the_flow as beside_linear
from dgnet.operators import EdgeMatrix
from dgnet.operators.elements import element
from dgnet.problems import Condition, Problem
from dgnet.problems.conditions import samples
from dgnet.stepping import Operators
from dgnet.stepping.solver import InTime

Tensor = torch.Tensor


class Convective(NamedTuple):
    """The facets of a convective (Robin) condition, in double precision."""

    corners: Tensor  # [F, d]
    nodes: Tensor  # [F, a]: the corners, and with quadratic elements the middles
    matrix: Tensor  # [F, a, a] coefficient times integrals of phi_i phi_j
    condition: Condition
    points: Tensor  # [F, a, dim]

    def load(self, t: float, dt: float) -> Tensor:
        """[F, a]: what the ambient brings to the nodes of each facet, on average over a step."""
        weights, (ambient,) = samples([self.condition.drive], self.points.flatten(0, 1), t, dt)
        value = torch.tensordot(weights, ambient, 1).reshape(self.nodes.shape)
        return (self.matrix @ value.to(self.matrix)[..., None])[..., 0]


def convective(p: Problem) -> list[Convective]:
    """All convective conditions of a problem; their coefficients are numbers (`untrained`)."""
    g, found = p.geometry.exact, []
    mass = g.table(element(p.mesh.dim - 1, p.degree).mass)
    for c in p.conditions:
        if c.role == "exchange" and not callable(c.coefficient):
            corners, nodes = p.mesh.facets(c.boundary), torch.tensor(np.asarray(g.facets(c.boundary)), device=g.device)
            size = torch.tensor(facet_geometry(p.mesh.points, corners)[0], device=g.device)
            matrix = float(c.coefficient) * size[:, None, None] * mass
            found.append(Convective(torch.tensor(corners, device=g.device), nodes, matrix, c,
                                    torch.tensor(g.nodes, device=g.device)[nodes]))
    return found


class Exchange(NamedTuple):
    """Convective conditions with a learned factor for each facet."""

    stiffness: Tensor  # [nnz] their part of K
    sums: Tensor | None  # [n] its row sums; None where there is none
    load: InTime[Tensor | None]  # all boundary loads


def exchange(p: Problem, facets: Sequence[Convective], factors: Sequence[Tensor]) -> Exchange:
    """That of a problem. `factors`: [F] of the facets of each condition."""
    pattern = p.geometry.pattern
    K, sums = torch.zeros(pattern.nnz, dtype=torch.float64, device=p.geometry.device), None
    for one, factor in zip(facets, factors):
        ring = factor[:, None, None] * one.matrix
        K = K.index_add(0, _slots(p, one), ring.ravel())
        sums = (ring.new_zeros(p.n) if sums is None else sums).index_add(0, one.nodes.ravel(), ring.sum(-1).ravel())

    def load(t: float, dt: float = 0.0) -> Tensor | None:
        total = p.flux_load(t, dt)
        for one, factor in zip(facets, factors):
            part = (factor[:, None] * one.load(t, dt)).ravel()
            part = part.new_zeros(p.n).index_add(0, one.nodes.ravel(), part).to(p.dtype)[:, None]
            total = part.expand(-1, p.n_fields) if total is None else total + part
        return total

    still = None if p.data_changes else load(0.0)
    return Exchange(K, sums, load if p.data_changes else lambda t, dt=0.0: still)


def _slots(p: Problem, one: Convective) -> Tensor:
    """Places of the entries of the facets' matrices [F a a]."""
    shape = one.matrix.shape
    return p.geometry.pattern.slots(*(x.expand(shape).ravel() for x in (one.nodes[:, :, None], one.nodes[:, None, :])))


def _operators(p: Problem, mass: EdgeMatrix, low: float, source: EdgeMatrix, K: Tensor, more: Tensor, carried: EdgeMatrix | None,
               boundary: Exchange, estimate: bool = False) -> Operators:
    """Operators of a step from values [.., nnz] of the learned matrices; K has no convective part yet."""
    pattern = p.geometry.pattern
    stiffness = EdgeMatrix(pattern, K + boundary.stiffness).to(p.dtype)
    rows = None if boundary.sums is None else boundary.sums.to(p.dtype)[None, None]
    return Operators(
        mass=mass, source=source, stiffness=lambda t, dt=0.0: stiffness, indefinite_part=lambda t: carried, load=boundary.load,
        reaction=p.pde.reaction, mass_low=low, symmetric=carried is None, time_dependent=False, row_sums_constant=p.decay_sums,
        moving_sums=lambda t, dt=0.0: rows, plain=None if p.capacity is None else p.source_mass,
        advanced_part=EdgeMatrix(pattern, more.view(1, 1, -1)).to(p.dtype), estimate_bounds=estimate)


def element_operators(p: Problem, s: Surroundings, net: ElementNet) -> Operators:
    """Those of a problem with the elements of a network, with its corrections where they hold."""
    g, pattern = p.geometry.exact, p.geometry.pattern
    t = tables(p.mesh.dim, p.degree, str(g.device))
    V = g.volumes[:, None, None]
    plain = V * stiffness_of(t, coupling(s, g.gradients))
    facets = convective(p)
    corners = torch.cat([one.corners for one in facets]) if facets else g.cells[:0, :p.mesh.dim]
    z = net(s, plain, corners, fade=True)
    root, c = root_of(plain), 1.0 if p.capacity is None else p.capacity[0][:, None, None]

    def of(local: Tensor) -> Tensor:
        return EdgeMatrix.from_cells(pattern, local).values

    M = EdgeMatrix(pattern, of(c * V * corrected_mass(t, z)).view(1, 1, -1)).to(p.dtype)
    S = EdgeMatrix(pattern, of(V * corrected_source(t, z)).view(1, 1, -1)).to(p.dtype)
    K = of(corrected_stiffness(root, z)) + p.decay_part.values.double()
    carried = p.advection()
    if carried is not None:
        along, beside = beside_the_flow(t, s, z, g.gradients, p.dt)
        carried = EdgeMatrix(pattern, carried.values.double() + of(V * beside)).to(p.dtype)
        K = K + of(V * along) + carried.values.double()
    factors = z.rim.exp().split([len(one.corners) for one in facets])
    # element by element the learned mass lies between both squares of the classical one
    low = ((1 - LARGEST) / (1 + LARGEST)) ** 2 * p.mass_bounds[0]
    return _operators(p, M, low, S, K, of(taken_ahead(root, z)), carried, exchange(p, facets, factors), estimate=True)


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
                        for part in beside_linear(s, z, g.gradients, g.points[g.cells], p.dt))
        carried = EdgeMatrix(pattern, carried.values.double() + swirl).to(p.dtype)
        K = K + along + carried.values.double()
    facets = convective(p)
    for one in facets:
        ahead = z.rim_ahead[one.nodes].mean(1)[:, None, None]
        more = more.index_add(-1, _slots(p, one), (ahead * z.rim[one.nodes].mean(1).exp()[:, None, None] * one.matrix).ravel())
    return _operators(p, M, low, p.source_mass, K, more, carried,
                      exchange(p, facets, [z.rim[one.nodes].mean(1).exp() for one in facets]))
