"""Lagrange elements of degree 1 and 2 on lines, triangles and tetrahedra: their nodes and the integrals that assembly needs.

With barycentric coordinates l_0 .. l_d the basis is

    degree 1   l_i                                    at the corners
    degree 2   l_i (2 l_i - 1) at the corners, 4 l_i l_j at the middle of the edges, in the order (0, 1), (0, 2), .., (d - 1, d)

and grad(phi) = sum_c dphi/dl_c grad(l_c). So an integral over any cell is its volume times a table of this module, the mean of a
polynomial over the cell, contracted with the constant gradients of l_c. Tables are integrated exactly, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np
from scipy.special import roots_jacobi

from dgnet.mesh import Mesh

_POINTS = 4  # per direction: exact to degree 7, and the highest here is 6


@dataclass(frozen=True)
class Element:
    """The tables of one element; m basis functions, c counts the d + 1 corners."""

    dim: int
    degree: int

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Corners of the edges whose middle is a node."""
        return list(combinations(range(self.dim + 1), 2)) if self.degree == 2 else []

    @cached_property
    def mass(self) -> np.ndarray:
        """Means of phi_i phi_j [m, m]."""
        return np.einsum("q,qi,qj->ij", self.weights, self.values, self.values)

    @cached_property
    def spread(self) -> np.ndarray:
        """Means of dphi_i/dl_c dphi_j/dl_e [c, e, i, j]: of the stiffness."""
        return np.einsum("q,qic,qje->ceij", self.weights, self.slopes, self.slopes)

    @cached_property
    def carried(self) -> np.ndarray:
        """Means of l_a phi_i dphi_j/dl_c [a, c, i, j]: of the advection by a velocity that is linear in the cell."""
        return np.einsum("q,qa,qi,qjc->acij", self.weights, self.corners, self.values, self.slopes)

    @cached_property
    def weighted(self) -> dict[int, np.ndarray]:
        """Means of w_a phi_i phi_j [a, i, j] for weights at the corners (w_a = l_a) or all nodes (phi_a), by how many there are."""
        return {w.shape[1]: np.einsum("q,qa,qi,qj->aij", self.weights, w, self.values, self.values)
                for w in (self.corners, self.values)}

    # ------------------------------------------------------------------ at the points of a quadrature

    @cached_property
    def _quadrature(self) -> tuple[np.ndarray, np.ndarray]:
        """Barycentric points [q, c] and weights [q] that sum to 1: Gauss-Jacobi in each collapsed direction."""
        left, weights, coordinates = np.ones(1), np.ones(1), np.empty((1, 0))
        for k in range(self.dim):
            x, w = roots_jacobi(_POINTS, self.dim - 1 - k, 0.0)
            share, w = 0.5 * (1 + x), w / w.sum()
            here = left[:, None] * share
            coordinates = np.concatenate([np.repeat(coordinates, _POINTS, 0), here.reshape(-1, 1)], 1)
            left, weights = (left[:, None] - here).ravel(), (weights[:, None] * w).ravel()
        return np.concatenate([left[:, None], coordinates], 1), weights

    @property
    def weights(self) -> np.ndarray:
        """[q], their sum is 1."""
        return self._quadrature[1]

    @property
    def corners(self) -> np.ndarray:
        """Barycentric coordinates [q, c]: the values of the linear basis."""
        return self._quadrature[0]

    @cached_property
    def values(self) -> np.ndarray:
        """phi_i [q, m]."""
        l = self.corners
        if self.degree == 1:
            return l
        return np.concatenate([l * (2 * l - 1), *(4 * l[:, [i]] * l[:, [j]] for i, j in self.edges)], 1)

    @cached_property
    def slopes(self) -> np.ndarray:
        """dphi_i/dl_c [q, m, c]."""
        l = self.corners
        eye = np.eye(self.dim + 1)
        if self.degree == 1:
            return np.broadcast_to(eye, (len(l), *eye.shape))
        corners = (4 * l - 1)[:, :, None] * eye
        middles = [4 * (l[:, [i]] * eye[j] + l[:, [j]] * eye[i]) for i, j in self.edges]
        return np.concatenate([corners, np.stack(middles, 1)], 1)

    # ------------------------------------------------------------------ nodes

    def nodes_of(self, mesh: Mesh, simplices: np.ndarray) -> np.ndarray:
        """Nodes [K, m] of simplices [K, d + 1] of a mesh: corners, then with degree 2 the middles of their edges.

        The middle of edge e of the mesh is node N + e, as on the mesh refined once.
        """
        if self.degree == 1:
            return simplices
        key = np.array([mesh.n_nodes, 1])
        known = mesh.edges @ key
        pairs = np.stack([np.sort(simplices[:, list(e)], axis=1) for e in self.edges], 1)  # [K, edges, 2]
        return np.concatenate([simplices, mesh.n_nodes + np.searchsorted(known, pairs @ key)], 1)


@lru_cache
def element(dim: int, degree: int) -> Element:
    return Element(dim, degree)
