"""The learned mass M."""

from __future__ import annotations

import torch

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.edges import cell_pairs, pair_correction
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem

Tensor = torch.Tensor

RANGE_DOWN = 1.5  # the mass factor of an edge may fall by this much below its classical value


class Mass(Part):
    """M: lumped minus a graph Laplacian with one learned factor for each edge, which moves between lumped and consistent mass.

    Guarantee: M stays symmetric and positive definite, cell by cell; row sums, and with them constants and the total mass,
    never change. The same factors hold for the mass that gathers a reaction, where a capacity makes it a matrix of its own.
    """

    def contribute(self, build: Build) -> None:
        assert build.numbers is not None
        p = build.problem
        delta = soft_limit(build.numbers.pair[:, 0], RANGE_DOWN, mass_headroom(p))
        build.mass, build.mass_low = learned_mass(p, delta)
        if p.capacity is not None:
            build.reaction_mass = pair_correction(p, build.reaction_mass, delta)


def mass_headroom(p: Problem) -> float:
    """How far an edge's factor may rise: a cell's mass stays positive definite below (d+2)/(d+1); 5% are kept back."""
    d = p.mesh.dim
    return 0.95 * (d + 2) / (d + 1) - p.consistent


def learned_mass(p: Problem, delta: Tensor) -> tuple[EdgeMatrix, float]:
    """M with edge factors consistent + delta, and a proven lower bound of diag(M)^-1 M.

    In units of the share V/((d+1)(d+2)) a cell has lumped mass d+2 and off-diagonals phi_ij = consistent + delta_ij; its graph
    Laplacian is at most (d+1) max(phi), so the cell's lowest eigenvalue is at least d + 2 - (d+1) max(phi) > 0. A capacity
    multiplies the cell as a whole, so the bound does not depend on it.
    """
    d = p.mesh.dim
    edge = cell_pairs(p.geometry).of_cell
    with torch.no_grad():
        phi = (p.consistent + delta)[edge]  # [K, pairs]
        ends = [(a, b) for a in range(d + 1) for b in range(a + 1, d + 1)]
        low = (d + 2) - (d + 1) * phi.amax(1).clamp(min=0)
        diagonal = torch.stack([(d + 2) - phi[:, [k for k, e in enumerate(ends) if a in e]].sum(1) for a in range(d + 1)], 1)
        bound = float((low / diagonal.amax(1)).min())
    return pair_correction(p, p.mass, delta), min(bound, 1.0)
