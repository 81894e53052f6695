"""Finite element spaces on a refined mesh, assembled by scikit-fem: the matrices of the reference solver.

Shares no code with `dgnet.operators`. Degrees of freedom are numbered by nodes: those of `mesh.refined(refine)` for P1,
those of `mesh.refined(refine + 1)` for P2 (vertices, then edge midpoints), so that the first N are the coarse nodes.
"""

from __future__ import annotations

import warnings
from functools import cached_property

import numpy as np
import skfem
import torch
from scipy.sparse import coo_matrix, csr_matrix, eye, vstack
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from skfem.element import DiscreteField
from skfem.helpers import dot, grad, mul

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.problems.conditions import Condition

Tensor = torch.Tensor

_ELEMENTS = {(2, 1): skfem.ElementTriP1, (2, 2): skfem.ElementTriP2,
             (3, 1): skfem.ElementTetP1, (3, 2): skfem.ElementTetP2}


class Space:
    """Continuous P1 or P2 elements with M degrees of freedom, periodic boundaries identified.

    points [M, d]; `prolongation` [M, N] interpolates P1 functions of the coarse mesh; `coarse` [N] is where the coarse
    nodes are found among the degrees of freedom.
    """

    def __init__(self, mesh: Mesh, refine: int = 0, degree: int = 1, periodic: tuple[Condition, ...] = ()) -> None:
        if degree not in (1, 2):
            raise InputError(f"the reference solver has elements of degree 1 and 2, not {degree}")
        if refine < 0:
            raise InputError(f"refine must not be negative, got {refine}")
        self.n_coarse, self.dim, self.degree, self.level = mesh.n_nodes, mesh.dim, degree, refine + degree - 1
        chain = eye(mesh.n_nodes, format="csr")
        fine = mesh
        for _ in range(refine):
            chain = _midpoints(fine) @ chain
            fine = fine.refined(1)
        self.fine, self.children = fine, fine.n_cells // mesh.n_cells
        points = fine.points
        if degree == 2:
            middle = _midpoints(fine)
            chain, points = middle @ chain, middle @ points

        kind = skfem.MeshTri if self.dim == 2 else skfem.MeshTet
        self.skmesh = kind(fine.points.T.copy(), fine.cells.T.copy())
        self.element = _ELEMENTS[self.dim, degree]()
        self.basis = skfem.Basis(self.skmesh, self.element, intorder=2 * degree)
        # number[i]: our index of scikit-fem's degree of freedom i
        self.number = np.arange(self.basis.N)
        if degree == 2:
            pairs = np.sort(self.skmesh.facets if self.dim == 2 else self.skmesh.edges, axis=0)
            weight = np.array([fine.n_nodes, 1])
            self.number[fine.n_nodes:] = fine.n_nodes + np.searchsorted(fine.edges @ weight, pairs.T @ weight)

        owner = self._identify(points, periodic)
        first = np.unique(owner, return_index=True)[1]
        self.number = owner[self.number]
        self.representative = first
        self.points, self.prolongation = points[first], csr_matrix(chain)[first]
        self.coarse = owner[:mesh.n_nodes]
        self.size = len(first)

    # ------------------------------------------------------------------ volume matrices

    def mass(self, weight: np.ndarray | None = None) -> csr_matrix:
        """int w phi_i phi_j [M, M]; w nodal [M] or 1."""
        w = self.basis.interpolate(np.ones(self.basis.N) if weight is None else weight[self.number])
        return self._matrix(skfem.BilinearForm(lambda u, v, p: p["w"] * u * v).assemble(self.basis, w=w))

    def stiffness(self, diffusion: np.ndarray) -> csr_matrix:
        """int grad phi_i . D grad phi_j [M, M]; D a number or tensor [d, d], or one per coarse cell [K]."""
        d, k = self.dim, self.skmesh.nelements // self.children
        tensor = diffusion.ndim >= 2
        if diffusion.shape not in ((), (k,), (d, d), (k, d, d)):
            raise InputError(f"diffusion has shape {list(diffusion.shape)}; known are a number, [{k}], [{d}, {d}] and "
                             f"[{k}, {d}, {d}]")
        if diffusion.ndim in (1, 3):
            diffusion = np.repeat(diffusion, self.children, axis=0)
        cells = np.broadcast_to(diffusion, (self.skmesh.nelements, *((d, d) if tensor else ())))
        points = self.basis.dx.shape[1]
        value = np.broadcast_to(np.moveaxis(cells, 0, -1)[..., None], (*cells.shape[1:], len(cells), points))
        if tensor:
            form = skfem.BilinearForm(lambda u, v, p: dot(mul(p["D"], grad(u)), grad(v)))
        else:
            form = skfem.BilinearForm(lambda u, v, p: p["D"] * dot(grad(u), grad(v)))
        return self._matrix(form.assemble(self.basis, D=DiscreteField(np.array(value))))

    def advection(self, velocity: np.ndarray) -> csr_matrix:
        """int phi_i v . grad phi_j [M, M]; v nodal [M, d]."""
        basis = skfem.Basis(self.skmesh, self.element, intorder=3 * self.degree - 1)
        v = np.stack([basis.interpolate(velocity[self.number, a]) for a in range(self.dim)])
        form = skfem.BilinearForm(lambda u, w, p: dot(p["v"], grad(u)) * w)
        return self._matrix(form.assemble(basis, v=DiscreteField(v)))

    # ------------------------------------------------------------------ boundaries

    def nodes_on(self, name: str) -> np.ndarray:
        """Degrees of freedom on a named boundary."""
        return np.unique(self.number[self.basis.get_dofs(facets=self._facets(name)).all()])

    def boundary_mass(self, name: str, weight: np.ndarray | None = None) -> csr_matrix:
        """int over the boundary of w phi_i phi_j [M, M]; w nodal [M] or 1."""
        basis = skfem.FacetBasis(self.skmesh, self.element, facets=self._facets(name), intorder=3 * self.degree)
        w = basis.interpolate(np.ones(basis.N) if weight is None else weight[self.number])
        return self._matrix(skfem.BilinearForm(lambda u, v, p: p["w"] * u * v).assemble(basis, w=w))

    def _facets(self, name: str) -> np.ndarray:
        n = self.fine.n_nodes
        weight = np.array([n ** (self.dim - 1 - a) for a in range(self.dim)], dtype=np.int64)
        key = np.sort(self.skmesh.facets, axis=0).T.astype(np.int64) @ weight
        order = np.argsort(key)
        return order[np.searchsorted(key[order], np.sort(self.fine.facets(name), axis=1) @ weight)]

    def _identify(self, points: np.ndarray, periodic: tuple[Condition, ...]) -> np.ndarray:
        """Index of the class of each node [n] under the identifications; classes keep the order of their first node."""
        n = len(points)
        self.number = np.asarray(self.number)
        pairs = []
        for condition in periodic:
            one, other = condition.boundaries
            a, b = self.nodes_on(one), self.nodes_on(other)
            shift = points[b].mean(axis=0) - points[a].mean(axis=0)
            distance, match = cKDTree(points[b]).query(points[a] + shift)
            if len(a) != len(b) or distance.max() > 1e-6 * np.linalg.norm(shift) or len(set(match)) < len(b):
                raise InputError(f"boundaries '{one}' and '{other}' do not match by a translation")
            pairs.append(np.stack([a, b[match]]))
        if not pairs:
            return np.arange(n)
        row, col = np.concatenate(pairs, axis=1)
        label = connected_components(coo_matrix((np.ones(len(row)), (row, col)), shape=(n, n)), directed=False)[1]
        return np.unique(np.unique(label, return_index=True)[1][label], return_inverse=True)[1]

    def _matrix(self, assembled: csr_matrix) -> csr_matrix:
        """Renumber from scikit-fem's degrees of freedom to ours; identified ones add up."""
        a = assembled.tocoo()
        return coo_matrix((a.data, (self.number[a.row], self.number[a.col])), shape=(self.size, self.size)).tocsr()

    # ------------------------------------------------------------------ matrix-free pieces of int phi_i v . grad u

    @cached_property
    def quadrature(self) -> tuple[csr_matrix, csr_matrix, csr_matrix]:
        """Gradient [d Q, M], test [M, Q] and value [Q, M] at quadrature points; one point per cell with P1.

        P1: gradients are constant on a cell and `test` holds its volume for each corner, `value` 1 for each corner.
        """
        basis = self.basis if self.degree == 1 else skfem.Basis(self.skmesh, self.element, intorder=5)
        dofs = self.number[basis.element_dofs]  # [n, K]
        local = [b[0] for b in basis.basis]
        points = 1 if self.degree == 1 else basis.dx.shape[1]
        q = np.arange(dofs.shape[1] * points)
        volume = basis.dx.sum(axis=1, keepdims=True) if self.degree == 1 else basis.dx

        def stack(values: list[np.ndarray]) -> csr_matrix:
            col = np.concatenate([np.repeat(dofs[i], points) for i in range(len(local))])
            data = np.concatenate([np.broadcast_to(v, (dofs.shape[1], points)).ravel() for v in values])
            return coo_matrix((data, (np.tile(q, len(local)), col)), shape=(len(q), self.size)).tocsr()

        slopes = [np.asarray(b.grad)[..., :points] for b in local]
        gradient = vstack([stack([g[a] for g in slopes]) for a in range(self.dim)], format="csr")
        value = stack([np.ones((1, 1)) if self.degree == 1 else np.asarray(b) for b in local])
        test = stack([volume if self.degree == 1 else np.asarray(b) * volume for b in local]).T.tocsr()
        return gradient, test, value


def _midpoints(mesh: Mesh) -> csr_matrix:
    """Interpolation from the nodes of a mesh to those of its refinement [N + E, N]."""
    edges = mesh.edges
    row = np.repeat(np.arange(len(edges)), 2)
    half = csr_matrix((np.full(2 * len(edges), 0.5), (row, edges.ravel())), shape=(len(edges), mesh.n_nodes))
    return vstack([eye(mesh.n_nodes, format="csr"), half], format="csr")


def to_torch(matrix: csr_matrix, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A SciPy matrix as a torch CSR tensor; 32-bit indices halve what a product reads besides its values."""
    matrix = csr_matrix(matrix)
    matrix.sum_duplicates()
    index = torch.int32 if matrix.nnz < 2**31 else torch.int64
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR tensors a beta, once per process
        return torch.sparse_csr_tensor(
            torch.tensor(matrix.indptr, dtype=index, device=device), torch.tensor(matrix.indices, dtype=index, device=device),
            torch.tensor(matrix.data, dtype=dtype, device=device), size=matrix.shape, check_invariants=False)


class Advection:
    """C(v) u = int phi_i v . grad u for many velocities at once: v [M, d, B], u [M, B] -> [M, B], exact for P1 v and u.

    With P1, int phi_i phi_j = |T| (1 + [i = j]) / ((d+1)(d+2)) on a cell T, hence
    C(v) u_i = (v_i . sum_T |T| g_T + sum_T |T| s_T . g_T) / ((d+1)(d+2)),  g_T = grad u,  s_T = sum of v over corners.
    With P2 by quadrature of degree 5. Either way a few sparse products, none of them per trajectory.
    """

    def __init__(self, space: Space, device: torch.device, dtype: torch.dtype) -> None:
        gradient, test, value = space.quadrature
        self.dim, self.linear = space.dim, space.degree == 1
        if self.linear:
            scale = 1.0 / ((space.dim + 1) * (space.dim + 2))
            parts = [gradient[a * test.shape[1]:(a + 1) * test.shape[1]] for a in range(space.dim)]
            self.nodal = [to_torch(scale * test @ g, device, dtype) for g in parts]
            test = scale * test
        self.gradient, self.test, self.value = (to_torch(m, device, dtype) for m in (gradient, test, value))

    def __call__(self, velocity: Tensor, u: Tensor) -> Tensor:
        d, b = self.dim, u.shape[1]
        v = (self.value @ velocity.reshape(len(velocity), -1)).reshape(-1, d, velocity.shape[2])
        g = (self.gradient @ u).reshape(d, -1, b)
        flow = v[:, 0] * g[0]
        for a in range(1, d):
            flow.addcmul_(v[:, a], g[a])
        result = self.test @ flow
        if self.linear:
            for a in range(d):
                result.addcmul_(velocity[:, a], self.nodal[a] @ u)
        return result
