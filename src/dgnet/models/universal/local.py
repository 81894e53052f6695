"""What a node, an edge and a cell know of their surroundings: numbers without units, without position, without direction.

In each cell the tensor dt D / c, of a step dt, diffusivity D and capacity c, is a unit of area: a displacement x has the length
|x|^2 = x^T (dt D / c)^-1 x. In this measure dt = D = c = 1, whatever the units, the part's size and the direction of its fibres. So
the features do not change when the part is moved, turned, mirrored, scaled together with its time, or its nodes are renumbered.

    nodes   log of the local Fourier number dt K_ii / M_ii; on the rim; held (Dirichlet); share of the full turn that the cells
            fill; Biot number R_ii / K_ii and rate dt R_ii / M_ii of convective boundaries; decay dt k
    edges   mean log length squared and its spread over the edge's cells (jumps of D); coupling -K_ij / sqrt(K_ii K_jj); mass of
            the edge against its ends'; on the rim. One way: log of the ends' mass ratio
    sides   an edge as one of its cells sees it: log length squared, coupling in the cell, share of the edge's mass
    flow    with a velocity v, along an edge x one way: the Peclet number v D^-1 x c and the Courant number, that divided by the
            square of the length; at nodes the largest Courant number around
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch

from dgnet.models.dgnet.edges import cell_pairs
from dgnet.models.gnn import MeshGraph, turn_share
from dgnet.operators import Geometry, nodal_velocity
from dgnet.problems import Problem
from dgnet.problems.curves import typical

Tensor = torch.Tensor

NODES, EDGES, SIDES = 7, 6, 3
FLOW_NODES, FLOW_EDGES = 1, 2  # more of them, with a flow
SPREAD = 1  # which of an edge is the spread of its log length squared over its cells
_LEAST = 1e-12


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Features of a problem, in double precision, and where its nodes, edges and cells lie."""

    graph: MeshGraph  # node [N, 7], edge [2E, 6]: both ways, the first E from high to low node
    side: Tensor  # [K, s, 3], s = d (d + 1) / 2 edges of each cell
    of_cell: Tensor  # [K, s] the edge of each side
    ends: Tensor  # [s, 2] corners of each side
    units: Tensor  # [K, s, d] direction of each side in the measure of its cell, of length 1
    root: Tensor  # [K, d, d] R with R R^T = D
    carried: Tensor | None = None  # [K, d] velocity of each cell
    drift: Tensor | None = None  # [K, d] how far it carries in a step, in the measure of the cell

    def to(self, dtype: torch.dtype) -> Surroundings:
        g = self.graph
        graph = MeshGraph(g.node.to(dtype), g.place, g.edge.to(dtype), g.to, g.frm, g.pairs, g.cells)
        return replace(self, graph=graph, side=self.side.to(dtype))


def cell_tensors(p: Problem) -> Tensor:
    """D of each cell [K, d, d] in double precision; all fields must share it."""
    g, d = p.geometry, p.mesh.dim
    D = torch.as_tensor(typical(p.pde.per_field("diffusion")[0], p.mesh, "diffusion"), dtype=torch.float64, device=g.device)
    eye = torch.eye(d, dtype=torch.float64, device=g.device)
    return (D.reshape(-1, 1, 1) * eye if D.dim() <= 1 else D).expand(p.mesh.n_cells, d, d)


def surroundings(p: Problem) -> Surroundings:
    """All of the above. The matrices of the problem are those of the first field."""
    g, d = p.geometry.exact, p.mesh.dim
    pairs = cell_pairs(p.geometry)
    ends = torch.tensor(list(combinations(range(d + 1), 2)), device=g.device)
    D = cell_tensors(p)
    capacity = torch.ones(len(D), dtype=torch.float64, device=g.device) if p.capacity is None else p.capacity[0]
    small = _LEAST * D.abs().amax().clamp(min=_LEAST)
    root = torch.linalg.cholesky(D + small * torch.eye(d, dtype=D.dtype, device=g.device))
    measure = root * (p.dt / capacity).sqrt()[:, None, None]
    x = torch.linalg.solve_triangular(measure, g.points[g.cells].mT, upper=False).mT  # [K, d+1, d]
    step = x[:, ends[:, 1]] - x[:, ends[:, 0]]
    square = step.square().sum(-1)  # [K, s]
    length = square.log()
    local = -(_slopes(x) @ _slopes(x).mT)[:, ends[:, 0], ends[:, 1]]  # coupling of a cell of volume 1
    coupling = local * square.mean(1, keepdim=True) / 4

    E, flat = len(pairs.weight), pairs.of_cell.ravel()

    def per_edge(value: Tensor, reduce: str) -> Tensor:
        return torch.zeros_like(pairs.weight).scatter_reduce(0, flat, value.ravel(), reduce, include_self=False)

    dof = torch.as_tensor(p.geometry.dof, device=g.device)
    K, M = p.diffusion_part.diagonal[0, 0].double(), p.mass.row_sums()[0, 0].double()
    K = K.clamp(min=_LEAST * float(K.max().clamp(min=_LEAST)))
    convection = p.convection_part(0.0)
    R = torch.zeros_like(M) if convection is None else convection.diagonal[0, 0].double()
    decay = torch.zeros_like(M) if p.decay_sums is None else p.decay_sums[0, 0].double()
    fixed = torch.zeros_like(M) if p.fixed is None else p.fixed[0].double()
    turn = turn_share(x, g.cells, p.mesh.n_nodes)
    rim = g.tensor(p.mesh.on_boundary.astype(float))
    at_dof = torch.stack([(p.dt * K / M).log() / 2, fixed, torch.log1p(30 * R / K) / 2, torch.log1p(p.dt * R / M),
                          torch.log1p(30 * p.dt * decay.clamp(min=0) / M)], 1)[dof]
    node = torch.cat([at_dof, rim[:, None], 2 * turn[:, None] - 1], 1)

    i, j = g.edges
    a, b = dof[i], dof[j]
    off = p.diffusion_part.values[0, 0].double()[pairs.upper] / (K[a] * K[b]).sqrt()
    weight = pairs.weight / (p.source_mass.row_sums()[0, 0].double()[a] * p.source_mass.row_sums()[0, 0].double()[b]).sqrt()
    both = torch.stack([per_edge(length, "mean") / 2, per_edge(length, "amax") - per_edge(length, "amin"), -3 * off, 8 * weight - 1,
                        _on_rim(g)], 1)
    one_way, carried, drift = (M[b] / M[a]).log()[:, None], None, None
    if p.pde.velocity is not None:
        carried, drift, peclet, courant = _flow(p, measure, step, square, per_edge)
        one_way = torch.cat([one_way, peclet[:, None], courant[:, None]], 1)
        largest = torch.zeros_like(M).scatter_reduce(0, torch.cat([i, j]), courant.abs().repeat(2), "amax")
        node = torch.cat([node, largest[:, None]], 1)
    edge = torch.cat([torch.cat([both, one_way], 1), torch.cat([both, -one_way], 1)])
    order = torch.arange(2 * E, device=g.device).reshape(2, E).T
    graph = MeshGraph(node, node[:, :0], edge, torch.cat([i, j]), torch.cat([j, i]), order, g.cells)

    share = g.volumes[:, None] / ((d + 1) * (d + 2)) / pairs.weight[pairs.of_cell]
    side = torch.stack([length / 2, torch.tanh(coupling), 2 * share - 1], -1)
    return Surroundings(graph, side, pairs.of_cell, ends, step / square.sqrt()[..., None], root, carried, drift)


def _flow(p: Problem, measure: Tensor, step: Tensor, square: Tensor,
          per_edge: Callable[[Tensor, str], Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The velocity of each cell [K, d] and its way in a step, in the measure of the cell [K, d]; asinh of the Peclet and Courant
    numbers of each edge [E], from its second to its first node."""
    g = p.geometry.exact
    assert p.pde.velocity is not None and not callable(p.pde.velocity)
    velocity = nodal_velocity(p.geometry, p.pde.velocity).double()[g.cells].mean(1)
    w = torch.linalg.solve_triangular(measure, velocity[..., None] * p.dt, upper=False)[..., 0]  # in the measure of the cell
    peclet = torch.einsum("kd,ksd->ks", w, step)
    corners = g.cells[:, torch.tensor(list(combinations(range(p.mesh.dim + 1), 2)), device=g.device)]  # [K, s, 2]
    along = torch.where(corners[..., 0] < corners[..., 1], -1.0, 1.0)  # edges go from their lower node to their higher one
    return velocity, w, per_edge(along * peclet, "mean").asinh(), per_edge(along * peclet / square, "mean").asinh()


def _slopes(x: Tensor) -> Tensor:
    """Gradients [K, d+1, d] of the corners' basis functions."""
    inverse = torch.linalg.inv(x[:, 1:] - x[:, :1])  # columns are the gradients of corners 1 .. d
    return torch.cat([-inverse.sum(-1, keepdim=True), inverse], -1).mT


def _on_rim(g: Geometry) -> Tensor:
    """1 for edges of boundary facets [E]."""
    n, mesh = g.mesh.n_nodes, g.mesh
    sides = np.sort(np.concatenate([mesh.boundary_facets[:, [a, b]] for a in range(mesh.dim) for b in range(a)]), axis=1)
    place = torch.searchsorted(g.edges[0] * n + g.edges[1], torch.tensor(sides @ np.array([n, 1]), device=g.device))
    return g.points.new_zeros(len(g.edges[0])).index_fill(0, place, 1.0)
