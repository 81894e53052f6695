"""The physics on a mesh as sparse matrices: stiffness, mass, gradient, advection, boundary terms.

All of them are finite elements on simplices, written once for triangles and tetrahedra, vectorised over cells and
differentiable in their coefficients. With P1 basis functions phi_i, cell volume V and constant gradients g_i = grad(phi_i):

    stiffness   K_ij = sum_cells V g_i . D g_j                       (2D: the cotangent weights of the paper, Section 3.4.1)
    mass        M_ij = integral of phi_i phi_j, or its row sums on the diagonal (lumped)
    advection   C_ij = integral of phi_i v . grad(phi_j)
    gradient    (grad u)_i = average of the cell gradients around node i, weighted by volume

Stiffness, mass, advection and convective boundaries are assembled in double precision whatever the working precision is, and
rounded once: rows of a stiffness assembled in single precision do not sum to zero, which acts like a small decay and adds up over
hundreds of steps.

A geometry of degree 2 has quadratic elements (P2): the same integrals from the tables of `elements`. Coefficients stay what they
are, constant (diffusion, capacity) or linear (velocity, decay) in each cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from dgnet.arguments import tensor
from dgnet.errors import InputError
from dgnet.mesh import ALL, Mesh, facet_geometry
from dgnet.operators.elements import Element, element
from dgnet.operators.sparse import EdgeMatrix, Pattern

Tensor = torch.Tensor

Array = float | Sequence[float] | Sequence[Sequence[float]] | np.ndarray | Tensor
"""Anything that `torch.as_tensor` reads; each function names the shapes that it takes."""

FORMS = ("galerkin", "skew", "upwind")
"""Forms of the advection, see `advection`."""


def check_scheme(consistent: float = 1.0, form: str = "galerkin", degree: int = 1) -> None:
    """Refuse a mass or an advection that does not exist."""
    if degree not in (1, 2):
        raise InputError(f"elements are linear (degree 1) or quadratic (degree 2), got degree {degree}")
    if not 0 <= consistent <= 1:
        raise InputError(f"the consistent share of the mass must lie in [0, 1], got {consistent}")
    if form not in FORMS:
        raise InputError(f"unknown advection form '{form}' (known: {', '.join(FORMS)})")
    if degree == 2 and consistent != 1:
        raise InputError("quadratic elements (degree = 2) have no lumped mass: its entries at the corners are not positive; use "
                         "consistent = 1")
    if degree == 2 and form == "upwind":
        raise InputError("quadratic elements (degree = 2) have no upwind advection, which is of first order: use galerkin or skew")


@dataclass(frozen=True, eq=False)
class Geometry:
    """A mesh as tensors on a device, with the degrees of freedom its nodes stand for.

    `dof[i]` is the degree of freedom of node i: itself, unless periodic boundaries identify nodes. With degree 2 the nodes are
    those of the mesh and then the middles of its edges, in the order of `Mesh.edges`.
    """

    mesh: Mesh
    device: torch.device
    dtype: torch.dtype
    dof: np.ndarray
    degree: int = 1

    @classmethod
    def of(cls, mesh: Mesh, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64,
           dof: np.ndarray | None = None, degree: int = 1) -> Geometry:
        nodes = mesh.n_nodes + (len(mesh.edges) if degree == 2 else 0)
        return cls(mesh, torch.device(device), dtype, np.arange(nodes) if dof is None else dof, degree)

    def tensor(self, array: np.ndarray) -> Tensor:
        """A copy on the device: mesh arrays are read-only."""
        return torch.tensor(array, dtype=self.dtype, device=self.device)

    @property
    def n(self) -> int:
        return int(self.dof.max()) + 1

    @property
    def dim(self) -> int:
        return self.mesh.dim

    @cached_property
    def exact(self) -> Geometry:
        """The same in double precision, for what is assembled once."""
        if self.dtype == torch.float64:
            return self
        wide = Geometry(self.mesh, self.device, torch.float64, self.dof, self.degree)
        wide.__dict__["pattern"] = self.pattern
        return wide

    @cached_property
    def pattern(self) -> Pattern:
        """Places of the entries of matrices. On the CPU it is made once for a mesh and shared by all problems on it."""
        kept: dict[tuple[int, bytes], Pattern] = self.mesh.__dict__.setdefault("_patterns", {}) if self.device.type == "cpu" else {}
        key = self.degree, b"" if np.array_equal(self.dof, np.arange(len(self.dof))) else self.dof.tobytes()
        if key not in kept:
            kept[key] = Pattern.from_cells(self.dof[self.element.nodes_of(self.mesh, self.mesh.cells)], self.n, self.device)
        return kept[key]

    @property
    def element(self) -> Element:
        return element(self.dim, self.degree)

    def table(self, array: np.ndarray) -> Tensor:
        """A table of an element on the device, in double precision; copied once, since a recorded step cannot wait for the host."""
        kept: dict[int, Tensor] = self.__dict__.setdefault("_tables", {})  # elements are kept, so an id stays that of its table
        if id(array) not in kept:
            kept[id(array)] = torch.tensor(array, device=self.device)
        return kept[id(array)]

    def facets(self, name: str) -> np.ndarray:
        """Nodes of the facets of a boundary [F, m], corners first."""
        return self._boundary(name)[0]

    def nodes_on(self, name: str) -> np.ndarray:
        """Sorted nodes on a boundary."""
        return self._boundary(name)[1]

    def _boundary(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Both, looked up once: data that change in time ask for them at every step."""
        kept: dict[str, tuple[np.ndarray, np.ndarray]] = self.__dict__.setdefault("_boundaries", {})
        if name not in kept:
            facets = element(self.dim - 1, self.degree).nodes_of(self.mesh, self.mesh.facets(name))
            kept[name] = facets, np.unique(facets)
        return kept[name]

    @cached_property
    def skin(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All boundary facets: corners [F, d], outward normals [F, d], measures [F] and places of their matrices [F m m].

        On the device: a flow that changes meets them in every step.
        """
        measure, normal = self.mesh.facet_geometry()
        slots = self.pattern.facet_slots(self.dof[self.facets(ALL)])
        corners = torch.tensor(self.mesh.boundary_facets, device=self.device)
        return corners, torch.tensor(normal, device=self.device), torch.tensor(measure, device=self.device), slots

    @cached_property
    def cells(self) -> Tensor:
        """Corner nodes (not degrees of freedom) of each cell [K, d+1]."""
        return torch.tensor(self.mesh.cells, device=self.device)

    @cached_property
    def volumes(self) -> Tensor:
        return self.tensor(self.mesh.volumes)

    @cached_property
    def gradients(self) -> Tensor:
        return self.tensor(self.mesh.gradients)

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor]:
        """The ends of the mesh's edges, [E] each, lower node first, in the order of `Mesh.edges`."""
        if self.n == self.mesh.n_nodes == len(self.dof):  # the pattern has them already
            return self.pattern.row[self.pattern.upper].long(), self.pattern.col[self.pattern.upper].long()
        first, second = torch.tensor(self.mesh.edges, device=self.device).T
        return first, second

    @cached_property
    def points(self) -> Tensor:
        return self.tensor(self.mesh.points)

    @cached_property
    def nodes(self) -> np.ndarray:
        """Places of all nodes, the middles of edges included [nodes, d]."""
        mesh = self.mesh
        return mesh.points if self.degree == 1 else np.concatenate([mesh.points, mesh.middles])


def stiffness(geometry: Geometry, diffusion: Array = 1.0) -> EdgeMatrix:
    """K_ij = integral of grad(phi_i) . D grad(phi_j): symmetric, positive semidefinite, constants in its kernel.

    D is a number, one per cell [K], a symmetric tensor [d, d] or one per cell [K, d, d]; it must not be negative.
    """
    g, v = geometry.exact.gradients, geometry.exact.volumes
    D = torch.as_tensor(diffusion, dtype=torch.float64, device=geometry.device)
    d, cells = geometry.dim, geometry.mesh.n_cells
    if D.dim() <= 1:
        if D.dim() == 1 and len(D) != cells:
            raise InputError(f"diffusivity per cell needs {cells} values, got {len(D)}")
        if bool((D.detach() < 0).any()) or not bool(torch.isfinite(D.detach()).all()):
            where = "" if D.dim() == 0 else f" in cell {int((~(D.detach() >= 0)).nonzero()[0])}"
            raise InputError(f"the diffusivity must be finite and not negative, got {float(D.detach().min()):.4g}{where}")
        local = torch.einsum("k,kid,kjd->kij", v * D, g, g)
    else:
        if D.shape not in ((d, d), (cells, d, d)):
            raise InputError(f"a diffusivity tensor must be [{d}, {d}] or [{cells}, {d}, {d}], got {list(D.shape)}")
        gap = float((D - D.mT).detach().abs().max())
        if not gap <= 1e-6 * float(D.detach().abs().max()):
            raise InputError(f"a diffusivity tensor must be symmetric, but entries across its diagonal differ by {gap:.3g}")
        lowest = torch.linalg.eigvalsh(0.5 * (D + D.mT).detach())[..., 0]
        if not bool((lowest >= -1e-12 * D.detach().abs().amax()).all()):
            raise InputError("a diffusivity tensor must be positive semidefinite, its lowest eigenvalue is "
                             f"{float(lowest.min()):.3g}")
        local = torch.einsum("k,kid,kde,kje->kij", v, g, D.expand(cells, d, d), g)
    if geometry.degree == 2:
        local = _contracted(geometry, geometry.element.spread, local)
    return EdgeMatrix.from_cells(geometry.pattern, local).to(geometry.dtype)


def _contracted(geometry: Geometry, table: np.ndarray, local: Tensor) -> Tensor:
    """sum over the corners a, c of local [..., K, a, c] times a table [a, c, i, j]: [..., K, i, j]."""
    m = table.shape[-1]
    return (local.flatten(-2) @ geometry.table(table).reshape(-1, m * m)).unflatten(-1, (m, m))


def mass(geometry: Geometry, consistent: float = 1.0, weight: Tensor | None = None) -> EdgeMatrix:
    """M = (1 - c) lumped + c consistent, c in [0, 1]: c = 1 is Galerkin, c = 0 the paper's control volumes.

    `weight` [N] (nodal) or [K] (per cell) multiplies the integrand through its cell averages; with degree 2 a nodal one is linear
    in each cell. Row sums do not depend on c. With degree 2 only c = 1: those row sums, of the corners, are not positive.
    """
    check_scheme(consistent, degree=geometry.degree)
    d = geometry.dim
    scale = geometry.exact.volumes
    if geometry.degree == 2:
        if weight is not None and weight.shape[-1] != len(scale):
            at = weight.double()[geometry.cells] * scale[:, None]
            table = geometry.table(geometry.element.weighted[d + 1])
            return EdgeMatrix.from_cells(geometry.pattern, torch.einsum("ka,aij->kij", at, table)).to(geometry.dtype)
        scale = scale if weight is None else scale * weight
        local = scale[:, None, None] * geometry.table(geometry.element.mass)
        return EdgeMatrix.from_cells(geometry.pattern, local).to(geometry.dtype)
    if weight is not None:
        per_cell = weight if weight.shape[-1] == len(scale) else weight[geometry.cells].mean(-1)
        scale = scale * per_cell
    eye = torch.eye(d + 1, dtype=torch.float64, device=geometry.device)
    galerkin = (1 + eye) / ((d + 1) * (d + 2))
    local = consistent * galerkin + (1 - consistent) * eye / (d + 1)
    return EdgeMatrix.from_cells(geometry.pattern, scale[:, None, None] * local).to(geometry.dtype)


def mass_range(dim: int, consistent: float, degree: int = 1) -> tuple[float, float]:
    """Bounds of the eigenvalues of diag(M)^-1 M, exact per cell and so valid on every mesh (Wathen 1987)."""
    if degree == 2:
        local = element(dim, 2).mass
        root = np.sqrt(np.diag(local))
        found = np.linalg.eigvalsh(local / np.outer(root, root))
        return float(found[0]), float(found[-1])
    diagonal = consistent * 2 / (dim + 2) + (1 - consistent)
    low = consistent / (dim + 2) + (1 - consistent)
    return low / diagonal, 1 / diagonal


def lumped(geometry: Geometry, kind: str = "barycentric", weight: Tensor | None = None) -> EdgeMatrix:
    """Diagonal mass from dual volumes (`barycentric` or `mixed` Voronoi); `weight` [K] multiplies each cell's share."""
    share = geometry.exact.tensor(geometry.mesh.dual_shares(kind))
    return EdgeMatrix.from_cells(geometry.pattern, torch.diag_embed(share if weight is None else share * weight[:, None])
                                 ).to(geometry.dtype)


def gradient(geometry: Geometry) -> EdgeMatrix:
    """Green-Gauss gradient at the nodes: d matrices, values [d, nnz], exact on linear fields at every node.

    Integrating the P1 interpolant over the boundary of the barycentric dual cell, domain boundary faces included, gives
    the volume-weighted mean of the cell gradients (the paper's face sum m_ij l_ij / 2|Omega_i|, closed at the boundary).
    """
    d = geometry.dim
    share = geometry.volumes[:, None] / (d + 1)
    local = (share[:, :, None] * geometry.gradients)[:, None].expand(-1, d + 1, -1, -1)  # [K, i, j, d]
    summed = EdgeMatrix.from_cells(geometry.pattern, local.permute(3, 0, 1, 2).contiguous())
    volume = EdgeMatrix.from_cells(geometry.pattern, torch.diag_embed(share.expand(-1, d + 1))).diagonal
    return summed.scale_rows(1 / volume)


def nodal_velocity(geometry: Geometry, velocity: Array) -> Tensor:
    """Velocity as a nodal field [..., N, d] from a constant [d] or a nodal field."""
    velocity_in = tensor(velocity, "the velocity")
    v = velocity_in.to(dtype=geometry.dtype, device=geometry.device)
    n, d = geometry.mesh.n_nodes, geometry.dim
    if v.shape == (d,):
        return v.expand(n, d)
    if v.dim() < 2 or v.shape[-2:] != (n, d):
        raise InputError(f"the velocity must be [{d}] or [{n}, {d}], got {list(v.shape)}")
    # a flow that already lives on a GPU may change with every step: asking would stall each one, and the solves see a NaN
    if not velocity_in.is_cuda and not bool(torch.isfinite(v.detach()).all()):
        bad = int((~torch.isfinite(v.detach())).nonzero()[0][-2])
        raise InputError(f"the velocity at node {bad} is not a finite number")
    return v


def advection(geometry: Geometry, velocity: Array, form: str = "galerkin", weight: Tensor | None = None) -> EdgeMatrix:
    """C u ~ integral of phi_i v . grad(u), for v constant [d] or nodal [..., N, d]. Constants are in its kernel, except `skew`.

    `weight` [K] multiplies the integrand cell by cell (not for `skew`).

    What u^T C u can be, for v linear in each cell (so that div v is a number per cell, seldom zero even where the flow itself is
    free of divergence), n the outer normal:

    galerkin   half the outflow, 1/2 int (v.n) u^2, minus 1/2 int (div v) u^2. Second order, P1 velocity integrated exactly.
               |u| may grow at the rate max |div v| / 2, which tends to 0 with the mesh size for a flow without divergence
    skew       half the outflow, and nothing else, for any v: C = (C_galerkin - C_galerkin^T)/2 + half the flux through the
               boundary. Not negative where nothing flows in, or where what flows in is held at zero (Dirichlet on every node
               of every facet with v.n < 0). Second order for flows without divergence, wrong for others
    upwind     1/2 sum F_ij (u_i - u_j)^2 over the flows F_ij >= 0 into i from j, plus 1/2 (flow into i - flow out of i) u_i^2:
               not negative where no node loses more than it gets. First order, on the faces of the dual cells with the upstream
               value; off-diagonal entries <= 0: backward Euler with a lumped mass makes no over- or undershoots
    """
    v, exact = nodal_velocity(geometry, velocity).double(), geometry.exact
    d, g = exact.dim, exact.gradients
    at = v[..., geometry.cells, :]  # [..., K, d+1, d]
    if weight is not None:
        at = at * weight[:, None, None]
    check_scheme(form=form, degree=geometry.degree)
    if form == "upwind":
        return _upwind(exact, at).to(geometry.dtype)
    if geometry.degree == 2:
        along = torch.einsum("...kad,kcd->...kac", at * exact.volumes[:, None, None], g)
        local = _contracted(geometry, geometry.element.carried, along)
    else:
        moment = (at.sum(-2, keepdim=True) + at) * (exact.volumes / ((d + 1) * (d + 2)))[:, None, None]
        local = torch.einsum("...kid,kjd->...kij", moment, g)
    C = EdgeMatrix.from_cells(geometry.pattern, local)
    if form == "skew":
        C = (C - C.mT) * 0.5 + boundary_flux(exact, v) * 0.5
    return C.to(geometry.dtype)


def _upwind(geometry: Geometry, at: Tensor) -> EdgeMatrix:
    """Flux through the dual face between i and j inside each cell, S_ij = V/(d+1) (g_j - g_i), carried by the upstream node.

    The convective form v . grad(u) = sum_j F_ij (u_face - u_i) / |Omega_i| keeps constants in the kernel.
    """
    d, g = geometry.dim, geometry.gradients
    face = (g[:, None] - g[:, :, None]) * (geometry.volumes / (d + 1))[:, None, None, None]  # [K, i, j, d], from i to j
    mean = 0.5 * (at[..., :, None, :] + at[..., None, :, :])
    incoming = -torch.clamp((mean * face).sum(-1), max=0.0)  # [..., K, i, j] flow into i from j
    local = torch.diag_embed(incoming.sum(-1)) - incoming
    return EdgeMatrix.from_cells(geometry.pattern, local)


def boundary_flux(geometry: Geometry, velocity: Tensor) -> EdgeMatrix:
    """integral over the boundary of (v . n) phi_i phi_j, v nodal [..., N, d]; with degree 1 v . n is averaged over each facet."""
    corners, normal, measure, slots = geometry.skin
    vn = torch.einsum("...fid,fd->...fi", velocity[..., corners, :], normal.to(velocity.dtype))
    return EdgeMatrix.from_facets(geometry.pattern, slots, _facet_local(geometry, measure, vn)).to(geometry.dtype)


def facet_mass(geometry: Geometry, facets: np.ndarray, weight: Tensor | float = 1.0) -> EdgeMatrix:
    """integral over facets of w phi_i phi_j; periodic facets vanish by summation.

    `facets` [F, m] are nodes, corners first. w is a number or given at the corners or all nodes of each facet [..., F, a]; with
    degree 1 it is averaged over each facet.
    """
    local = _facet_local(geometry, _measure(geometry, facets), weight)
    slots = geometry.pattern.facet_slots(geometry.dof[facets])
    return EdgeMatrix.from_facets(geometry.pattern, slots, local).to(geometry.dtype)


def _measure(geometry: Geometry, facets: np.ndarray) -> Tensor:
    """Lengths or areas of facets [F], double."""
    return torch.tensor(facet_geometry(geometry.mesh.points, facets[:, :geometry.dim])[0], device=geometry.device)


def _facet_local(geometry: Geometry, measure: Tensor, weight: Tensor | float) -> Tensor:
    """Matrices [..., F, m, m] of facets with these measures, weighted as in `facet_mass`."""
    kind = element(geometry.dim - 1, geometry.degree)
    if not isinstance(weight, float) and (weight.dim() < 2 or weight.shape[-2] != len(measure)):
        raise InputError(f"a weight on {len(measure)} facets is a number or given at their nodes, got shape {list(weight.shape)}")
    if isinstance(weight, float) or geometry.degree == 1:
        mean = weight if isinstance(weight, float) else weight.mean(-1)
        return geometry.table(kind.mass) * (measure * mean)[..., None, None]
    table = geometry.table(kind.weighted[weight.shape[-1]])
    return torch.einsum("...fa,aij->...fij", weight.double() * measure[:, None], table)


def facet_load(geometry: Geometry, facets: np.ndarray, nodal: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    """integral over facets of w q phi_i for q given at the facets' nodes [F, m] (or a number), and w as in `facet_mass`: [n]."""
    q = torch.as_tensor(nodal, dtype=torch.float64, device=geometry.device).expand(*facets.shape)
    load = torch.einsum("fij,fj->fi", _facet_local(geometry, _measure(geometry, facets), weight), q).to(geometry.dtype)
    index = torch.as_tensor(geometry.dof[facets], device=geometry.device)
    return torch.zeros(geometry.n, dtype=geometry.dtype, device=geometry.device).index_add(0, index.ravel(), load.ravel())
