"""Taylor-Hood elements on triangles: quadratic velocity (P2), linear pressure (P1); matrices and interpolation.

P2 nodes are the corners, then the middles of the edges, numbered as in `mesh.refined(1)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
from scipy.sparse import coo_array, csr_array

from dgnet.errors import InputError
from dgnet.mesh.mesh import Mesh


def p2_cells(mesh: Mesh) -> np.ndarray:
    """Nodes of each P2 triangle [K, 6]: corners, then the middles of edges 01, 12, 20, numbered as in `mesh.refined(1)`."""
    key = mesh.edges @ np.array([mesh.n_nodes, 1])
    pairs = np.sort(mesh.cells[:, [[0, 1], [1, 2], [2, 0]]], axis=2)
    return np.concatenate([mesh.cells, mesh.n_nodes + np.searchsorted(key, pairs @ np.array([mesh.n_nodes, 1]))], axis=1)


def p2_points(mesh: Mesh) -> np.ndarray:
    return np.concatenate([mesh.points, mesh.points[mesh.edges].mean(axis=1)])


def p2_shapes(bary: np.ndarray) -> np.ndarray:
    """Values of the six P2 shape functions [..., 6] at barycentric coordinates [..., 3]."""
    middle = 4 * bary[..., [0, 1, 2]] * bary[..., [1, 2, 0]]
    return np.concatenate([bary * (2 * bary - 1), middle], axis=-1)


def p2_slopes(bary: np.ndarray) -> np.ndarray:
    """Derivatives of the P2 shape functions with respect to the three barycentric coordinates [Q, 6, 3]."""
    slopes = np.zeros((len(bary), 6, 3))
    for i in range(3):
        j = (i + 1) % 3
        slopes[:, i, i] = 4 * bary[:, i] - 1
        slopes[:, 3 + i, i], slopes[:, 3 + i, j] = 4 * bary[:, j], 4 * bary[:, i]
    return slopes


def triangle_rule() -> tuple[np.ndarray, np.ndarray]:
    """Radon's 7 points [7, 3] and weights (sum 1), exact to degree 5: all that P2 convection needs."""
    root = sqrt(15)
    points, weights = [np.full((1, 3), 1 / 3)], [0.225]
    for a, w in (((6 - root) / 21, (155 - root) / 1200), ((6 + root) / 21, (155 + root) / 1200)):
        points.append(np.full((3, 3), a) + (1 - 3 * a) * np.eye(3))
        weights += [w] * 3
    return np.concatenate(points), np.array(weights)


def assembled(blocks: np.ndarray, rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> csr_array:
    i = np.broadcast_to(rows[:, :, None], blocks.shape)
    j = np.broadcast_to(cols[:, None, :], blocks.shape)
    return coo_array((blocks.ravel(), (i.ravel(), j.ravel())), shape=shape).tocsr()


@dataclass(frozen=True, eq=False)
class TaylorHood:
    """Matrices of the P2–P1 pair on a mesh: mass, stiffness (scalar, [n, n]) and B = -(q, div v) [n_p, 2n], with the
    two velocity components of a node side by side."""

    mesh: Mesh

    def __post_init__(self) -> None:
        if self.mesh.dim != 2:
            raise InputError("the flow solver is two-dimensional, but the mesh is 3D")

    @property
    def n(self) -> int:
        return self.mesh.n_nodes + len(self.mesh.edges)

    @cached_property
    def cells(self) -> np.ndarray:
        return p2_cells(self.mesh)

    @cached_property
    def element_matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """Mass and stiffness per cell [K, 6, 6]."""
        bary, weight = triangle_rule()
        phi = p2_shapes(bary)
        area = self.mesh.volumes[:, None, None]
        slope = np.einsum("qai,kid->kqad", p2_slopes(bary), self.mesh.gradients)
        return area * np.einsum("q,qa,qb->ab", weight, phi, phi), area * np.einsum("q,kqad,kqbd->kab", weight, slope, slope)

    @cached_property
    def mass(self) -> csr_array:
        return assembled(self.element_matrices[0], self.cells, self.cells, (self.n, self.n))

    @cached_property
    def stiffness(self) -> csr_array:
        return assembled(self.element_matrices[1], self.cells, self.cells, (self.n, self.n))

    @cached_property
    def divergence(self) -> csr_array:
        bary, weight = triangle_rule()
        slope = np.einsum("qai,kid->kqad", p2_slopes(bary), self.mesh.gradients)
        local = -self.mesh.volumes[:, None, None, None] * np.einsum("q,qi,kqad->kiad", weight, bary, slope)
        columns = (2 * self.cells[:, :, None] + np.arange(2)).reshape(len(self.cells), 12)
        return assembled(local.reshape(-1, 3, 12), self.mesh.cells, columns, (self.mesh.n_nodes, 2 * self.n))

    def nodes_on(self, name: str) -> np.ndarray:
        """P2 nodes on a named boundary."""
        return np.unique(self.facets(name))

    def facets(self, name: str) -> np.ndarray:
        """Facets of a boundary with their middles [F, 3]."""
        facets = self.mesh.facets(name)
        key = self.mesh.edges @ np.array([self.mesh.n_nodes, 1])
        middle = np.searchsorted(key, np.sort(facets, axis=1) @ np.array([self.mesh.n_nodes, 1]))
        return np.column_stack([facets, self.mesh.n_nodes + middle])


def p2_interpolator(mesh: Mesh, refine: int, target: int) -> csr_array:
    """From P2 values on `mesh.refined(refine)` to the nodes of `mesh.refined(target)`; exact, with at most 6 entries a row."""
    flow = mesh.refined(refine)
    n = flow.n_nodes + len(flow.edges)
    if target <= refine + 1:
        rows = mesh.refined(target).n_nodes
        return csr_array((np.ones(rows), np.arange(rows), np.arange(rows + 1)), shape=(rows, n))
    levels = target - refine
    fine = flow.refined(levels)
    node, first = np.unique(fine.cells.ravel(), return_index=True)
    cell = first // 3 // 4**levels  # the four children of a cell follow each other
    bary = 1 / 3 + np.einsum("nid,nd->ni", flow.gradients[cell], fine.points - flow.centroids[cell])
    bary = np.round(bary * 2**levels) / 2**levels  # nodes of a regular refinement sit at dyadic coordinates
    matrix = coo_array((p2_shapes(bary).ravel(), (np.repeat(node, 6), p2_cells(flow)[cell].ravel())), shape=(len(node), n)).tocsr()
    matrix.eliminate_zeros()
    return matrix


def p2_values(mesh: Mesh, values: np.ndarray, points: np.ndarray) -> np.ndarray:
    """A P2 field [n_p2, ...] at any points [P, 2], extrapolated from the nearest cell a little outside of the mesh."""
    from scipy.spatial import cKDTree

    _, near = cKDTree(mesh.centroids).query(points, k=min(24, mesh.n_cells))
    bary = 1 / 3 + np.einsum("pkid,pkd->pki", mesh.gradients[near], points[:, None] - mesh.centroids[near])
    best = np.arange(len(points)), bary.min(axis=2).argmax(axis=1)
    return np.einsum("pa,pa...->p...", p2_shapes(bary[best]), values[p2_cells(mesh)[near[best]]])
