"""Geometry: every quantity against a closed form or an identity that holds on any mesh."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnet.errors import InputError
from dgnet.mesh import Mesh, box, perturbed_square

BOXES = {"square": box((5, 4), upper=(2.0, 1.5)), "moved square": box((6, 7), perturb=0.35, seed=3),
         "cube": box((3, 2, 2), upper=(1.5, 1.0, 1.0)), "moved cube": box((3, 3, 4), perturb=0.2, seed=1)}


@pytest.fixture(params=list(BOXES))
def mesh(request: pytest.FixtureRequest) -> Mesh:
    return BOXES[request.param]


@st.composite
def random_boxes(draw: st.DrawFn) -> Mesh:
    dim = draw(st.sampled_from([2, 3]))
    cells = tuple(draw(st.integers(1, 7 if dim == 2 else 3)) for _ in range(dim))
    upper = tuple(draw(st.floats(0.5, 2.0)) for _ in range(dim))
    return box(cells, upper=upper, perturb=draw(st.floats(0, 0.35 if dim == 2 else 0.15)), seed=draw(st.integers(0, 999)))


def stiffness_entries(mesh: Mesh) -> np.ndarray:
    """-K_ij per edge by the definition K_ij = sum over cells of |T| grad(i) . grad(j)."""
    total = np.zeros((mesh.n_nodes, mesh.n_nodes))
    for i, j in combinations(range(mesh.dim + 1), 2):
        a, b = np.sort(mesh.cells[:, [i, j]], axis=1).T
        np.add.at(total, (a, b), -mesh.volumes * (mesh.gradients[:, i] * mesh.gradients[:, j]).sum(1))
    return total[tuple(mesh.edges.T)]


# ---------------------------------------------------------------------- cells


def test_volumes_fill_the_box(mesh: Mesh) -> None:
    assert (mesh.volumes > 0).all()
    assert mesh.volumes.sum() == pytest.approx(np.prod(np.ptp(mesh.points, axis=0)), rel=1e-13)


def test_one_triangle_and_one_tetrahedron() -> None:
    triangle = Mesh([[0, 0], [2, 0], [0, 1]], [[0, 1, 2]])
    assert triangle.volumes.tolist() == [1.0]
    np.testing.assert_allclose(triangle.gradients[0], [[-0.5, -1], [0.5, 0], [0, 1]])
    tetrahedron = Mesh(np.concatenate([np.zeros((1, 3)), np.eye(3)]), [[0, 1, 2, 3]])
    np.testing.assert_allclose(tetrahedron.volumes, [1 / 6])
    np.testing.assert_allclose(tetrahedron.gradients[0], [[-1, -1, -1], [1, 0, 0], [0, 1, 0], [0, 0, 1]])


def test_regular_simplices_have_quality_one() -> None:
    triangle = Mesh([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]], [[0, 1, 2]])
    tetrahedron = Mesh([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]], [[0, 1, 2, 3]])
    assert triangle.quality[0] == pytest.approx(1) and tetrahedron.quality[0] == pytest.approx(1)


def test_gradients_are_exact_on_linear_fields(mesh: Mesh) -> None:
    slope = np.array([0.3, -1.7, 2.2])[:mesh.dim]
    values = mesh.points @ slope + 4
    found = np.einsum("kid,ki->kd", mesh.gradients, values[mesh.cells])
    np.testing.assert_allclose(found, np.broadcast_to(slope, found.shape), atol=1e-12)


def test_sizes_and_words() -> None:
    mesh = box((3, 2))
    assert (mesh.dim, mesh.n_nodes, mesh.n_cells, len(mesh.edges)) == (2, 12, 12, 23)  # Euler: V - E + F = 1
    assert mesh.edge_lengths.min() == pytest.approx(1 / 3) and 0 < mesh.spacing < 1
    assert "12 nodes, 12 triangles" in repr(mesh) and "left" in repr(mesh)
    assert perturbed_square(35).n_nodes == 1296
    np.testing.assert_allclose(mesh.volumes @ mesh.centroids / mesh.volumes.sum(), [0.5, 0.5])


def test_arrays_are_frozen(mesh: Mesh) -> None:
    for array in (mesh.points, mesh.cells):
        with pytest.raises(ValueError, match=r"read-only"):
            array[0] = 0


# ---------------------------------------------------------------------- boundary


def test_outward_normals_close_the_surface(mesh: Mesh) -> None:
    measure, normal = mesh.facet_geometry()
    np.testing.assert_allclose(measure @ normal, 0, atol=1e-13)
    middle = mesh.points[mesh.boundary_facets].mean(axis=1)
    assert (((middle - mesh.centroids[mesh.facet_cells]) * normal).sum(axis=1) > 0).all()
    # divergence theorem for the field x: the flux is d times the volume
    assert measure @ (middle * normal).sum(axis=1) == pytest.approx(mesh.dim * mesh.volumes.sum())


def test_named_boundaries_of_a_box(mesh: Mesh) -> None:
    names = ["left", "right", "bottom", "top", "back", "front"][:2 * mesh.dim]
    assert list(mesh.boundaries) == names
    rows = np.concatenate([mesh.facet_index(name) for name in names])
    assert sorted(rows) == list(range(len(mesh.boundary_facets)))
    for axis in range(mesh.dim):
        for side, name in enumerate(names[2 * axis:2 * axis + 2]):
            _, normal = mesh.facet_geometry(name)
            np.testing.assert_allclose(normal, np.broadcast_to((2 * side - 1) * np.eye(mesh.dim)[axis], normal.shape), atol=1e-12)
            level = mesh.points[:, axis].max() if side else mesh.points[:, axis].min()
            assert (mesh.nodes_on(name) == np.flatnonzero(mesh.points[:, axis] == level)).all()
    assert (np.flatnonzero(mesh.on_boundary) == mesh.nodes_on("boundary")).all()


def test_facets_may_come_in_any_order_and_orientation() -> None:
    plain = box((3, 3, 3))
    rng = np.random.default_rng(0)
    shuffled = {name: rng.permuted(f, axis=1)[rng.permutation(len(f))] for name, f in plain.boundaries.items()}
    again = Mesh(plain.points, plain.cells, shuffled)
    for name in plain.boundaries:
        np.testing.assert_array_equal(again.facet_index(name), plain.facet_index(name))
        np.testing.assert_allclose(again.facet_geometry(name)[1], plain.facet_geometry(name)[1])


def test_a_named_boundary_may_be_empty() -> None:
    mesh = box((2, 2))
    mesh = Mesh(mesh.points, mesh.cells, {"none": np.empty((0, 2), dtype=int)})
    assert mesh.facets("none").shape == (0, 2) and mesh.nodes_on("none").size == 0
    assert mesh.refined().facets("none").shape == (0, 2)


# ---------------------------------------------------------------------- dual volumes and weights


@pytest.mark.parametrize("kind", ["barycentric", "mixed"])
def test_dual_volumes_are_positive_and_fill_the_mesh(mesh: Mesh, kind: str) -> None:
    dual = mesh.dual_volumes(kind)
    assert (dual > 0).all()
    assert dual.sum() == pytest.approx(mesh.volumes.sum(), rel=1e-13)


def test_mixed_dual_volumes_by_hand() -> None:
    obtuse = Mesh([[0, 0], [4, 0], [2, 0.5]], [[0, 1, 2]])
    np.testing.assert_allclose(obtuse.dual_volumes("mixed"), [0.25, 0.25, 0.5])  # area 1
    right = Mesh([[0, 0], [2, 0], [0, 1]], [[0, 1, 2]])
    np.testing.assert_allclose(right.dual_volumes("mixed"), [0.5, 0.25, 0.25])
    # an acute triangle: the Voronoi cell of a corner, by sampling nearest corners
    acute = Mesh([[0, 0], [1, 0], [0.4, 0.9]], [[0, 1, 2]])
    weights = np.random.default_rng(0).dirichlet([1, 1, 1], 200_000)
    nearest = ((weights @ acute.points)[:, None] - acute.points) ** 2
    share = np.bincount(nearest.sum(2).argmin(1), minlength=3) / 200_000 * acute.volumes.sum()
    np.testing.assert_allclose(acute.dual_volumes("mixed"), share, atol=3e-3)


def test_mixed_dual_volumes_of_tetrahedra_by_hand() -> None:
    acute = Mesh([[1, 1, 1], [1, -1, -1.1], [-1, 1.2, -1], [-1, -1, 1]], [[0, 1, 2, 3]])
    weights = np.random.default_rng(0).dirichlet([1, 1, 1, 1], 200_000)
    nearest = ((weights @ acute.points)[:, None] - acute.points) ** 2
    share = np.bincount(nearest.sum(2).argmin(1), minlength=4) / 200_000 * acute.volumes.sum()
    np.testing.assert_allclose(acute.dual_volumes("mixed"), share, atol=1e-2)
    flat = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0.3, 0.3, 0.1]], [[0, 1, 2, 3]])
    np.testing.assert_allclose(flat.dual_volumes("mixed"), flat.dual_volumes())


def test_unknown_dual_volumes() -> None:
    with pytest.raises(InputError, match=r"unknown dual volumes 'voronoi'"):
        box((2, 2)).dual_volumes("voronoi")


def test_cotangent_weights_are_the_stiffness(mesh: Mesh) -> None:
    np.testing.assert_allclose(mesh.cotangent_weights, stiffness_entries(mesh), atol=1e-12)


# ---------------------------------------------------------------------- orientation, delaunay, refinement


@settings(max_examples=25, deadline=None)
@given(random_boxes(), st.integers(0, 999))
def test_shuffling_corners_and_cells_changes_nothing(mesh: Mesh, seed: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.permutation(mesh.n_cells)
    other = Mesh(mesh.points, rng.permuted(mesh.cells[order], axis=1), mesh.boundaries)
    np.testing.assert_allclose(other.volumes, mesh.volumes[order])
    np.testing.assert_array_equal(other.edges, mesh.edges)
    np.testing.assert_allclose(other.cotangent_weights, mesh.cotangent_weights, atol=1e-10)
    for kind in ("barycentric", "mixed"):
        np.testing.assert_allclose(other.dual_volumes(kind), mesh.dual_volumes(kind), rtol=1e-10)
    for name in mesh.boundaries:
        measure, normal = mesh.facet_geometry(name)
        np.testing.assert_allclose(other.facet_geometry(name)[0].sum(), measure.sum())
        np.testing.assert_allclose(other.facet_geometry(name)[1], np.broadcast_to(normal[0], normal.shape), atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(random_boxes())
def test_identities_hold_on_random_boxes(mesh: Mesh) -> None:
    volume = mesh.volumes.sum()
    assert volume == pytest.approx(np.prod(np.ptp(mesh.points, axis=0)))
    measure, normal = mesh.facet_geometry()
    np.testing.assert_allclose(measure @ normal, 0, atol=1e-12)
    for kind in ("barycentric", "mixed"):
        assert mesh.dual_volumes(kind).min() > 0 and mesh.dual_volumes(kind).sum() == pytest.approx(volume)
    np.testing.assert_allclose(mesh.cotangent_weights, stiffness_entries(mesh), atol=1e-9)
    np.testing.assert_allclose(mesh.gradients.sum(axis=1), 0, atol=1e-9)
    # Euler's formula for a ball counts nodes, edges, triangles and tetrahedra
    facets = (mesh.n_cells * (mesh.dim + 1) + len(mesh.boundary_facets)) // 2
    euler = mesh.n_nodes - len(mesh.edges) + (mesh.n_cells if mesh.dim == 2 else facets - mesh.n_cells)
    assert euler == 1


@settings(max_examples=15, deadline=None)
@given(random_boxes())
def test_refinement(mesh: Mesh) -> None:
    fine = mesh.refined()
    assert fine.n_nodes == mesh.n_nodes + len(mesh.edges)
    assert fine.n_cells == 2**mesh.dim * mesh.n_cells
    np.testing.assert_array_equal(fine.points[:mesh.n_nodes], mesh.points)
    assert fine.volumes.sum() == pytest.approx(mesh.volumes.sum())
    np.testing.assert_allclose(fine.volumes.reshape(mesh.n_cells, -1).sum(axis=1), mesh.volumes)
    assert list(fine.boundaries) == list(mesh.boundaries)
    for name in mesh.boundaries:
        assert len(fine.facets(name)) == 2 ** (mesh.dim - 1) * len(mesh.facets(name))
        assert fine.facet_geometry(name)[0].sum() == pytest.approx(mesh.facet_geometry(name)[0].sum())


def test_refinement_carries_regions_and_repeats() -> None:
    coarse = box((4, 4))
    west = np.flatnonzero(coarse.centroids[:, 0] < 0.5)
    fine = Mesh(coarse.points, coarse.cells, coarse.boundaries, {"west": west}).refined(2)
    assert (fine.regions["west"] == np.flatnonzero(fine.centroids[:, 0] < 0.5)).all()
    assert fine.n_cells == 16 * coarse.n_cells and coarse.refined(0) is coarse


def test_refined_tetrahedra_keep_their_shape() -> None:
    """Cutting the octahedra along the shortest diagonal keeps the quality from sinking with every refinement."""
    once, twice = box((2, 2, 2)).refined(1), box((2, 2, 2)).refined(3)
    assert twice.quality.min() > 0.9 * once.quality.min() > 0.2


@pytest.mark.parametrize("dim", [2, 3])
def test_delaunay(dim: int) -> None:
    points = np.random.default_rng(4).uniform(size=(150, dim))
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * dim), axis=-1).reshape(-1, dim)
    mesh = Mesh.delaunay(np.concatenate([points, corners]))
    assert mesh.n_nodes == 150 + 2**dim
    assert mesh.volumes.sum() == pytest.approx(1)


def test_delaunay_drops_flat_cells_on_the_hull() -> None:
    grid = box((6, 6), perturb=0.2).points
    hull = grid + 1e-14 * np.random.default_rng(0).standard_normal(grid.shape)
    assert Mesh.delaunay(hull).quality.min() > 1e-3


# ---------------------------------------------------------------------- bad input

SQUARE = np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
HALVES = np.array([[0, 1, 2], [0, 2, 3]])


def with_point(k: int, value: tuple[float, float]) -> np.ndarray:
    points = SQUARE.copy()
    points[k] = value
    return points


BAD = {
    "NaN": (with_point(2, (np.nan, 1)), HALVES, {}, {}, "node 2 has a coordinate that is not a finite number"),
    "infinite": (with_point(1, (np.inf, 1)), HALVES, {}, {}, "node 1 has a coordinate"),
    "duplicate": (np.vstack([SQUARE, SQUARE[1]]), [[0, 1, 2], [0, 2, 3], [0, 4, 2]], {}, {}, "nodes 1 and 4 are at the same point"),
    "dangling": (np.vstack([SQUARE, [2, 2]]), HALVES, {}, {}, "node 4 belongs to no cell"),
    "degenerate": (with_point(1, (0.5, 0.5)), HALVES, {}, {}, r"cell 0 \(nodes \[0, 1, 2\]\) is degenerate"),
    "inverted": (with_point(1, (0.2, 0.8)), HALVES, {}, {}, "cell . is inverted: it overlaps cell ."),
    "out of range": (SQUARE, [[0, 1, 2], [0, 2, 9]], {}, {}, r"cell 1 names nodes \[0, 2, 9\], but the mesh has 4 nodes"),
    "negative index": (SQUARE, [[0, 1, 2], [0, 2, -1]], {}, {}, r"cell 1 names nodes \[0, 2, -1\]"),
    "repeated node": (SQUARE, [[0, 1, 2], [0, 3, 3], [0, 2, 3]], {}, {}, r"cell 1 names a node twice: \[0, 3, 3\]"),
    "repeated cell": (SQUARE, [[0, 1, 2], [0, 2, 3], [3, 0, 2]], {}, {}, r"cell 1 \(nodes \[0, 2, 3\]\) occurs more than once"),
    "disconnected": (np.vstack([SQUARE, SQUARE[:3] + 5]), [[0, 1, 2], [0, 2, 3], [4, 5, 6]], {}, {},
                     "2 disconnected parts: node 4 cannot be reached from node 0"),
    "three on an edge": (np.vstack([SQUARE, [2, -1]]), [[0, 2, 3], [0, 1, 2], [0, 4, 2]], {}, {}, "overlaps|share the facet"),
    "points shape": (np.zeros((4, 4)), HALVES, {}, {}, r"points must have shape \[N, 2\] or \[N, 3\], got \[4, 4\]"),
    "cells shape": (SQUARE, [[0, 1, 2, 3]], {}, {}, r"cells of a 2D mesh must have shape \[K, 3\]"),
    "no cells": (SQUARE, np.empty((0, 3), dtype=int), {}, {}, "K > 0"),
    "float cells": (SQUARE, HALVES.astype(float), {}, {}, "cells must be integers, got float64"),
    "words": ([["a", "b"]], HALVES, {}, {}, "points must be real numbers"),
    "ragged": (SQUARE, [[0, 1, 2], [0, 2]], {}, {}, "cells must be numbers in rows of equal length"),
    "inner facet": (SQUARE, HALVES, {"cut": [[0, 2]]}, {}, r"boundary 'cut' lists nodes \[0, 2\], which are no boundary facet"),
    "facet range": (SQUARE, HALVES, {"w": [[0, 7]]}, {}, "boundary 'w' names node 7, but the mesh has 4 nodes"),
    "facet negative": (SQUARE, HALVES, {"w": [[0, -3]]}, {}, "boundary 'w' names node -3"),
    "facet shape": (SQUARE, HALVES, {"w": [[0, 1, 2]]}, {}, r"boundary 'w' must be an integer array \[F, 2\]"),
    "facet type": (SQUARE, HALVES, {"w": [[0.0, 1.0]]}, {}, "boundary 'w' must be an integer array .* got float64"),
    "reserved": (SQUARE, HALVES, {"boundary": [[0, 1]]}, {}, "the boundary name 'boundary' is reserved"),
    "region range": (SQUARE, HALVES, {}, {"r": [0, 2]}, "region 'r' names cell 2, but the mesh has 2 cells"),
    "region negative": (SQUARE, HALVES, {}, {"r": [-1]}, "region 'r' names cell -1"),
    "region mask": (SQUARE, HALVES, {}, {"r": [True, False]}, r"regions\['r'\] must be real numbers"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_bad_meshes_name_the_culprit(case: str) -> None:
    points, cells, boundaries, regions, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        Mesh(points, cells, boundaries, regions)
    assert "\n" not in str(caught.value)


def test_a_node_pulled_through_its_neighbours_is_found() -> None:
    for mesh in (box((4, 4)), box((3, 3, 3))):
        points = mesh.points.copy()
        inner = np.flatnonzero(~mesh.on_boundary)[0]
        points[inner] += 0.41 * np.arange(1, mesh.dim + 1)
        with pytest.raises(InputError, match=r"is inverted: it overlaps cell"):
            Mesh(points, mesh.cells)


def test_three_tetrahedra_on_a_facet() -> None:
    points = [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, -1], [1, 1, 3]]
    with pytest.raises(InputError, match=r"overlaps|more than two cells share the facet"):
        Mesh(points, [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5]])


def test_unknown_boundary_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no boundary 'inlet' \(it has: left, right, bottom, top, boundary\)"):
        box((2, 2)).facets("inlet")


def test_bad_boxes_and_clouds() -> None:
    for cells in ((3,), (0, 2), (1, 2, 3, 4)):
        with pytest.raises(InputError, match=r"positive cell counts"):
            box(cells)
    with pytest.raises(InputError, match=r"perturb must lie in"):
        box((2, 2), perturb=0.5)
    with pytest.raises(InputError, match=r"span no 2D region"):
        Mesh.delaunay([[0, 0], [1, 1], [2, 2]])
    with pytest.raises(InputError, match=r"node 1 has a coordinate"):
        Mesh.delaunay([[0, 0], [np.nan, 1], [2, 2]])
    with pytest.raises(InputError, match=r"shape"):
        Mesh.delaunay([0.0, 1.0])
