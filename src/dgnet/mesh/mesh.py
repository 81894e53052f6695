"""A simplicial mesh is two arrays and some names.

Triangles in 2D, tetrahedra in 3D. Everything a discretisation needs from geometry is computed here, once, vectorised:
cell volumes, the constant gradients of the P1 basis, oriented boundary facets, edges and dual (control) volumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import Delaunay, QhullError

from dgnet.arguments import between, checked
from dgnet.errors import InputError
from dgnet.mesh.checks import (
    check_connected,
    check_names,
    checked_arrays,
    facet_keys,
    longest_edge,
    oriented,
    outer_facets,
    signed_volumes,
)
from dgnet.mesh.locate import from_cells

ALL = "boundary"
"""Reserved boundary name: every boundary facet, named or not."""


@checked
@dataclass(frozen=True, eq=False)
class Mesh:
    """Triangles in the plane (d = 2) or tetrahedra in space (d = 3), with named boundaries and regions; it never changes.

    - `points`: coordinates of the nodes [N, d], in the unit of length of the problem
    - `cells`: the nodes of each cell [K, d+1], in any order; they are oriented here
    - `boundaries`: name -> facets [F, d] as nodes, in any order and orientation; stored with outward normals
    - `regions`: name -> cells [R], for example of one material

    `volumes` are the areas or volumes of the cells [K], all positive.

    Bad input raises `InputError` naming the node, cell or boundary.

        >>> import dgnet as dg
        >>> square = dg.Mesh([[0, 0], [1, 0], [1, 1], [0, 1]], [[0, 1, 2], [0, 2, 3]], {"floor": [[0, 1]]})
        >>> square
        Mesh(4 nodes, 2 triangles, boundaries: floor)
        >>> square.interpolate([0.0, 1.0, 1.0, 0.0], [[0.25, 0.5]])
        array([0.25])
        >>> square.refined().n_nodes
        9
    """

    points: np.ndarray
    cells: np.ndarray
    boundaries: Mapping[str, np.ndarray] = field(default_factory=dict)
    regions: Mapping[str, np.ndarray] = field(default_factory=dict)
    volumes: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        points, cells = checked_arrays(self.points, self.cells)
        points.setflags(write=False)
        object.__setattr__(self, "points", points)
        cells, volumes = oriented(points, cells)
        cells.setflags(write=False)
        object.__setattr__(self, "cells", cells)
        object.__setattr__(self, "volumes", volumes)
        check_connected(cells, len(points))
        _ = self._facets_and_owners  # fails here, not later, where cells overlap
        check_names("boundary", self.boundaries)
        check_names("region", self.regions)
        object.__setattr__(self, "boundaries", self._named_facets(self.boundaries))
        regions = {}
        for name, index in dict(self.regions).items():
            index = np.asarray(index)
            if index.ndim != 1 or (index.size and not np.issubdtype(index.dtype, np.integer)):
                raise InputError(f"region '{name}' must be an integer array [R] of cells, got {index.dtype} {list(index.shape)}")
            outside = index[(index < 0) | (index >= len(self.cells))]
            if outside.size:
                raise InputError(f"region '{name}' names cell {outside[0]}, but the mesh has {len(self.cells)} cells")
            regions[name] = np.unique(index.astype(np.int64))
        object.__setattr__(self, "regions", regions)

    # ------------------------------------------------------------------ construction

    @classmethod
    @checked
    def delaunay(cls, points: np.ndarray, boundaries: Mapping[str, np.ndarray] | None = None) -> Mesh:
        """Delaunay triangulation of scattered points, as the paper builds its graphs (Section 3.3).

        Flat slivers on the hull (collinear or coplanar points) are dropped.
        """
        points = np.asarray(points, dtype=float)
        if points.ndim != 2 or points.shape[1] not in (2, 3):
            raise InputError(f"points must have shape [N, 2] or [N, 3], got {list(points.shape)}")
        bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
        if bad.size:
            raise InputError(f"node {bad[0]} has a coordinate that is not a finite number")
        try:
            cells = Delaunay(points).simplices.astype(np.int64)
        except QhullError as error:
            raise InputError(f"the {len(points)} points span no {points.shape[1]}D region to triangulate") from error
        keep = np.abs(signed_volumes(points, cells)) > 1e-9 * longest_edge(points, cells) ** points.shape[1]
        return cls(points, cells[keep], boundaries or {})

    # ------------------------------------------------------------------ sizes

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    def n_nodes(self) -> int:
        return len(self.points)

    @property
    def n_cells(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        kind = "triangles" if self.dim == 2 else "tetrahedra"
        return f"Mesh({self.n_nodes} nodes, {self.n_cells} {kind}, boundaries: {', '.join(self.boundaries) or 'none named'})"

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen digits by which meshes are told apart: those of points and cells."""
        return hashlib.sha256(self.points.tobytes() + self.cells.tobytes()).hexdigest()[:16]

    # ------------------------------------------------------------------ cells

    @cached_property
    def gradients(self) -> np.ndarray:
        """Constant gradients of the P1 basis on each cell [K, d+1, d]."""
        x = self.points[self.cells]
        jacobian = x[:, 1:] - x[:, :1]  # rows are edge vectors; grad(lambda_i) . edge_j = delta_ij
        inner = np.swapaxes(np.linalg.inv(jacobian), 1, 2)
        return np.concatenate([-inner.sum(axis=1, keepdims=True), inner], axis=1)

    @cached_property
    def centroids(self) -> np.ndarray:
        return self.points[self.cells].mean(axis=1)

    @cached_property
    def edges(self) -> np.ndarray:
        """Undirected edges [E, 2], i < j, sorted."""
        pairs = np.concatenate([self.cells[:, list(p)] for p in combinations(range(self.dim + 1), 2)])
        keys = np.sort(facet_keys(np.sort(pairs, axis=1), self.n_nodes))
        keys = keys[np.append(True, keys[1:] != keys[:-1])]  # np.unique hashes, which takes ten times as long
        return np.stack([keys // self.n_nodes, keys % self.n_nodes], axis=1)

    @cached_property
    def middles(self) -> np.ndarray:
        """The points in the middle of the edges [E, d]."""
        return 0.5 * (self.points[self.edges[:, 0]] + self.points[self.edges[:, 1]])

    @cached_property
    def edge_lengths(self) -> np.ndarray:
        return np.linalg.norm(self.points[self.edges[:, 1]] - self.points[self.edges[:, 0]], axis=1)

    @property
    def spacing(self) -> float:
        """Typical node spacing h: the mean edge length."""
        return float(self.edge_lengths.mean())

    @cached_property
    def quality(self) -> np.ndarray:
        """d * (inradius / circumradius) per cell [K]: 1 for the regular simplex, towards 0 for a sliver."""
        facet_measure = np.linalg.norm(self.gradients, axis=2) * self.volumes[:, None] * self.dim
        inradius = self.dim * self.volumes / facet_measure.sum(axis=1)
        radius = np.linalg.norm(self.points[self.cells[:, 0]] - circumcentres(self.points[self.cells]), axis=1)
        return self.dim * inradius / radius

    # ------------------------------------------------------------------ boundary

    @cached_property
    def boundary_facets(self) -> np.ndarray:
        """Every facet with one cell only [F, d], oriented outwards."""
        return self._facets_and_owners[0]

    @cached_property
    def facet_cells(self) -> np.ndarray:
        """The one cell behind each boundary facet [F]."""
        return self._facets_and_owners[1]

    @cached_property
    def _facets_and_owners(self) -> tuple[np.ndarray, np.ndarray]:
        return outer_facets(self.cells, self.n_nodes)

    @checked
    def facets(self, name: str) -> np.ndarray:
        """Facets [F, d] of the named boundary, outward; `boundary` is all of them."""
        return self.boundary_facets[self.facet_index(name)]

    def facet_index(self, name: str) -> np.ndarray:
        """Rows of `boundary_facets` that carry the name."""
        if name == ALL:
            return np.arange(len(self.boundary_facets))
        if name not in self.boundaries:
            known = ", ".join([*self.boundaries, ALL])
            raise InputError(f"the mesh has no boundary '{name}' (it has: {known})")
        return self._match_facets(self.boundaries[name], name)

    @checked
    def nodes_on(self, name: str) -> np.ndarray:
        """Sorted node indices on the named boundary."""
        return np.unique(self.facets(name))

    @checked
    def facet_geometry(self, name: str = ALL) -> tuple[np.ndarray, np.ndarray]:
        """Measures [F] and outward unit normals [F, d] of the facets of a boundary."""
        return facet_geometry(self.points, self.facets(name))

    @cached_property
    def on_boundary(self) -> np.ndarray:
        """True for nodes on the boundary [N]: the paper's node type C_i."""
        mask = np.zeros(self.n_nodes, dtype=bool)
        mask[self.boundary_facets.ravel()] = True
        return mask

    # ------------------------------------------------------------------ dual volumes

    @checked
    def dual_volumes(self, kind: str = "barycentric") -> np.ndarray:
        """Control volumes |Omega_i| [N]; they sum to the volume of the mesh. See `dual_shares` for the kinds."""
        return np.bincount(self.cells.ravel(), self.dual_shares(kind).ravel(), minlength=self.n_nodes)

    def dual_shares(self, kind: str = "barycentric") -> np.ndarray:
        """Shares that each cell gives to the control volumes of its corners [K, d+1]; rows sum to the cell's volume.

        `barycentric`: each cell gives an equal share to its corners; the row sums of the P1 mass matrix.
        `mixed`: Voronoi shares where they are all positive. Obtuse triangles give half of their area to the obtuse corner
        and a quarter to each other one (Meyer et al. 2003); tetrahedra with a negative share fall back to equal ones.
        """
        d = self.dim
        share = np.full((self.n_cells, d + 1), 1.0 / (d + 1)) * self.volumes[:, None]
        if kind == "mixed":
            share = _mixed_shares_2d(self) if d == 2 else _mixed_shares_3d(self, share)
        elif kind != "barycentric":
            raise InputError(f"unknown dual volumes '{kind}' (known: barycentric, mixed)")
        return share

    @cached_property
    def cotangent_weights(self) -> np.ndarray:
        """Weights w_ij of the Laplacian per edge [E], in the order of `edges`.

        2D: (cot alpha + cot beta) / 2 over the angles opposite the edge (paper, Section 3.4.1).
        3D: sum over tetrahedra of |opposite edge| * cot(dihedral angle at it) / 6.
        """
        x = self.points[self.cells]
        corners = range(self.dim + 1)
        pairs, weights = [], []
        for i, j in combinations(corners, 2):
            rest = [k for k in corners if k not in (i, j)]
            if self.dim == 2:
                a, b = x[:, i] - x[:, rest[0]], x[:, j] - x[:, rest[0]]
                cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
                weights.append(0.5 * (a * b).sum(1) / np.abs(cross))
            else:
                axis = x[:, rest[1]] - x[:, rest[0]]
                length = np.linalg.norm(axis, axis=1)
                na = np.cross(axis, x[:, i] - x[:, rest[0]])
                nb = np.cross(axis, x[:, j] - x[:, rest[0]])
                sine = np.linalg.norm(np.cross(na, nb), axis=1)
                weights.append(length * (na * nb).sum(1) / sine / 6)
            pairs.append(np.sort(self.cells[:, [i, j]], axis=1))
        keys = np.concatenate(pairs) @ np.array([self.n_nodes, 1])
        index = np.searchsorted(self.edges @ np.array([self.n_nodes, 1]), keys)
        return np.bincount(index, np.concatenate(weights), minlength=len(self.edges))

    # ------------------------------------------------------------------ refinement

    @checked
    def refined(self, times: Annotated[int, between(0, 8, "a whole number from 0 to 8")] = 1) -> Mesh:
        """Regular refinement (4 triangles or 8 tetrahedra per cell). The old nodes stay the first N nodes."""
        mesh = self
        for _ in range(times):
            mesh = _refine_once(mesh)
        return mesh

    @checked
    def interpolate(self, values: ArrayLike, points: ArrayLike) -> np.ndarray:
        """Nodal values [N] or [..., N, F] (as `rollout` gives them) at points [P, d], linear in each cell: [P] or [..., P, F].

        A point outside of the mesh is an `InputError`.
        """
        v, x = np.asarray(values), np.asarray(points, dtype=np.float64)
        axis = max(0, v.ndim - 2)
        if not v.ndim or v.shape[axis] != self.n_nodes:
            raise InputError(f"values must be [{self.n_nodes}] or [..., {self.n_nodes}, fields], got {list(v.shape)}")
        if x.ndim != 2 or x.shape[1] != self.dim or not np.isfinite(x).all():
            raise InputError(f"points must be finite numbers [P, {self.dim}], got {list(x.shape)}")
        matrix, outside = from_cells(self.points, self.cells, x)
        if len(outside):
            raise InputError(f"point {outside[0]} at {x[outside[0]].tolist()} lies outside of the mesh")
        moved = np.moveaxis(v, axis, 0)
        return np.moveaxis((matrix @ moved.reshape(len(moved), -1)).reshape(len(x), *moved.shape[1:]), 0, axis)

    # ------------------------------------------------------------------ helpers

    def _match_facets(self, facets: np.ndarray, name: str) -> np.ndarray:
        key = facet_keys(np.sort(self.boundary_facets, axis=1), self.n_nodes)
        want = facet_keys(np.sort(facets, axis=1), self.n_nodes)
        order = np.argsort(key)
        if len(key) == 0:
            raise InputError(f"boundary '{name}' names facets, but the mesh has no boundary")
        place = np.minimum(np.searchsorted(key[order], want), len(key) - 1)
        hit = order[place]
        wrong = np.flatnonzero(key[hit] != want)
        if wrong.size:
            raise InputError(f"boundary '{name}' lists nodes {facets[wrong[0]].tolist()}, which are no boundary facet of the mesh")
        return hit

    def _named_facets(self, boundaries: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        named = {}
        for name, facets in dict(boundaries).items():
            if name == ALL:
                raise InputError(f"the boundary name '{ALL}' is reserved for all boundary facets")
            facets = np.asarray(facets)
            if facets.ndim != 2 or facets.shape[1] != self.dim or not np.issubdtype(facets.dtype, np.integer):
                got = f"{facets.dtype} {list(facets.shape)}"
                raise InputError(f"boundary '{name}' must be an integer array [F, {self.dim}], got {got}")
            outside = facets[(facets < 0) | (facets >= self.n_nodes)]
            if outside.size:
                raise InputError(f"boundary '{name}' names node {outside[0]}, but the mesh has {self.n_nodes} nodes")
            index = np.unique(self._match_facets(facets.astype(np.int64), name)) if len(facets) else np.empty(0, int)
            named[name] = self.boundary_facets[index]
        return named


def facet_geometry(points: np.ndarray, facets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Measures [F] and unit normals [F, d] of oriented facets."""
    x = points[facets]
    if points.shape[1] == 2:
        tangent = x[:, 1] - x[:, 0]
        normal = np.stack([tangent[:, 1], -tangent[:, 0]], axis=1)
        measure = np.linalg.norm(normal, axis=1)
    else:
        normal = np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0])
        measure = 0.5 * np.linalg.norm(normal, axis=1)
    return measure, normal / np.linalg.norm(normal, axis=1, keepdims=True)


def circumcentres(x: np.ndarray) -> np.ndarray:
    """Circumcentres [K, d] of simplices with corners x [K, d+1, d]."""
    edge = x[:, 1:] - x[:, :1]
    half = 0.5 * (edge**2).sum(axis=2)
    return x[:, 0] + np.linalg.solve(edge, half[:, :, None])[:, :, 0]


def _mixed_shares_2d(mesh: Mesh) -> np.ndarray:
    x = mesh.points[mesh.cells]
    to_next, to_prev = np.roll(x, -1, axis=1) - x, np.roll(x, 1, axis=1) - x
    cosine = (to_next * to_prev).sum(axis=2)  # sign of the cosine of each corner's angle
    cot = cosine / (2 * mesh.volumes[:, None])
    # Voronoi share of corner i: (|e_ij|^2 cot(angle at k) + |e_ik|^2 cot(angle at j)) / 8
    voronoi = ((to_next**2).sum(2) * np.roll(cot, -2, axis=1) + (to_prev**2).sum(2) * np.roll(cot, -1, axis=1)) / 8
    obtuse = (cosine < 0).any(axis=1)[:, None]
    return np.where(obtuse, np.where(cosine < 0, 0.5, 0.25) * mesh.volumes[:, None], voronoi)


def _mixed_shares_3d(mesh: Mesh, fallback: np.ndarray) -> np.ndarray:
    x = mesh.points[mesh.cells]
    centre = circumcentres(x)
    share = np.zeros_like(fallback)
    for i in range(4):
        for j in (k for k in range(4) if k != i):
            for k in (m for m in range(4) if m not in (i, j)):
                face = circumcentre_in_plane(x[:, i], x[:, j], x[:, k])
                last = next(m for m in range(4) if m not in (i, j, k))
                mid = 0.5 * (x[:, i] + x[:, j])
                corner = np.stack([mid - x[:, i], face - x[:, i], centre - x[:, i]], axis=1)
                ref = np.stack([x[:, j] - x[:, i], x[:, k] - x[:, i], x[:, last] - x[:, i]], axis=1)
                share[:, i] += np.linalg.det(corner) * np.sign(np.linalg.det(ref)) / 6
    positive = (share.min(axis=1) > 1e-6 * mesh.volumes)[:, None]
    return np.where(positive, share, fallback)


def circumcentre_in_plane(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Circumcentres of triangles in space [K, 3]."""
    u, v = b - a, c - a
    w = np.cross(u, v)
    top = np.cross((u**2).sum(1)[:, None] * v - (v**2).sum(1)[:, None] * u, w)
    return a + top / (2 * (w**2).sum(1)[:, None])


def _refine_once(mesh: Mesh) -> Mesh:
    n, d = mesh.n_nodes, mesh.dim
    key = mesh.edges @ np.array([n, 1])

    def middle(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return n + np.searchsorted(key, np.minimum(a, b) * n + np.maximum(a, b))

    points = np.concatenate([mesh.points, mesh.middles])
    c = mesh.cells.T
    if d == 2:
        m01, m12, m20 = middle(c[0], c[1]), middle(c[1], c[2]), middle(c[2], c[0])
        children = [(c[0], m01, m20), (m01, c[1], m12), (m20, m12, c[2]), (m01, m12, m20)]
    else:
        m01, m02, m03 = middle(c[0], c[1]), middle(c[0], c[2]), middle(c[0], c[3])
        m12, m13, m23 = middle(c[1], c[2]), middle(c[1], c[3]), middle(c[2], c[3])
        corner = [(c[0], m01, m02, m03), (m01, c[1], m12, m13), (m02, m12, c[2], m23), (m03, m13, m23, c[3])]
        # the inner octahedron is cut along its shortest diagonal, which keeps the children well shaped
        diagonals = [((m01, m23), (m02, m12, m13, m03)), ((m02, m13), (m01, m12, m23, m03)), ((m03, m12), (m01, m02, m23, m13))]
        length = np.stack([np.linalg.norm(points[p] - points[q], axis=1) for (p, q), _ in diagonals])
        best = length.argmin(axis=0)
        inner = []
        for r in range(4):
            quad = [np.choose(best, [np.asarray(v) for v in options]) for options in zip(
                *[(p, q, ring[r], ring[(r + 1) % 4]) for (p, q), ring in diagonals])]
            inner.append(tuple(quad))
        children = corner + inner
    cells = np.stack([np.stack(child, axis=1) for child in children], axis=1).reshape(-1, d + 1)
    regions = {name: (index[:, None] * 2**d + np.arange(2**d)).ravel() for name, index in mesh.regions.items()}
    boundaries = {}
    for name, facets in mesh.boundaries.items():
        f = facets.T
        if d == 2:
            m = middle(f[0], f[1])
            parts: list[tuple[np.ndarray, ...]] = [(f[0], m), (m, f[1])]
        else:
            ab, bc, ca = middle(f[0], f[1]), middle(f[1], f[2]), middle(f[2], f[0])
            parts = [(f[0], ab, ca), (ab, f[1], bc), (ca, bc, f[2]), (ab, bc, ca)]
        boundaries[name] = np.stack([np.stack(part, axis=1) for part in parts], axis=1).reshape(-1, d)
    return Mesh(points, cells, boundaries, regions)
