"""Exactness of the operators: kernels, linear fields, symmetry, conservation, derivatives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.operators import (
    EdgeMatrix,
    Geometry,
    Pattern,
    advection,
    boundary_flux,
    facet_load,
    facet_mass,
    gradient,
    lumped,
    mass,
    mass_range,
    stiffness,
)
from tests.conftest import shuffled


def dense(A: EdgeMatrix) -> np.ndarray:
    return A.to_scipy().toarray()


@pytest.mark.parametrize("kind", ["scalar", "cell", "tensor", "cell tensor"])
def test_stiffness_is_symmetric_semidefinite_with_constants_in_its_kernel(mesh, kind):
    g = Geometry.of(mesh)
    rng = np.random.default_rng(0)
    root = rng.normal(size=(mesh.n_cells, mesh.dim, mesh.dim))
    D = {"scalar": 0.7, "cell": rng.uniform(0.1, 2, mesh.n_cells), "tensor": root[0] @ root[0].T,
         "cell tensor": root @ np.swapaxes(root, 1, 2)}[kind]
    K = stiffness(g, D)
    assert float(K.row_sums().abs().max()) < 1e-12
    full = dense(K)
    np.testing.assert_allclose(full, full.T, atol=1e-13)
    assert np.linalg.eigvalsh(full)[0] > -1e-12
    assert np.linalg.eigvalsh(full)[1] > 1e-6  # constants only


def test_stiffness_off_diagonals_are_the_cotangent_weights(mesh):
    K = stiffness(Geometry.of(mesh))
    np.testing.assert_allclose(K.values[K.pattern.upper].numpy(), -mesh.cotangent_weights, atol=1e-13)


def test_quadratic_form_of_a_linear_field_is_exact(mesh):
    g = Geometry.of(mesh)
    a = torch.arange(1.0, mesh.dim + 1, dtype=torch.float64)
    u = g.points @ a
    assert float(u @ (stiffness(g, 2.0) @ u)) == pytest.approx(2.0 * float(a @ a) * mesh.volumes.sum(), rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_mass_rows_sum_to_barycentric_volumes_and_spectrum_is_bounded(mesh, share):
    M = mass(Geometry.of(mesh), share)
    np.testing.assert_allclose(M.row_sums().numpy(), mesh.dual_volumes(), rtol=1e-12)
    full = dense(M)
    values = np.linalg.eigvals(full / np.diag(full)[:, None]).real
    low, high = mass_range(mesh.dim, share)
    assert values.min() >= low - 1e-12 and values.max() <= high + 1e-12


def test_consistent_mass_integrates_products_of_linears():
    mesh = box((5, 5), perturb=0.2)
    g = Geometry.of(mesh)
    x, y = g.points.T
    assert float(x @ (mass(g) @ y)) == pytest.approx(0.25, rel=1e-12)
    assert float(lumped(g, "mixed").values.sum()) == pytest.approx(1.0, rel=1e-12)


def test_green_gauss_is_exact_on_linear_fields_at_every_node(mesh):
    for m in (mesh, shuffled(mesh)):
        g = Geometry.of(m)
        a = torch.tensor([1.5, -2.0, 0.7][: m.dim], dtype=torch.float64)
        field = (g.points @ a + 3.0)[:, None]
        G = gradient(g)
        got = (G @ field.expand(m.dim, -1, -1))[..., 0].T
        torch.testing.assert_close(got, a.expand_as(got), rtol=0, atol=1e-12)


def test_green_gauss_equals_the_face_sum_of_the_dual_cells():
    """The paper's formula, closed at the boundary: sum over dual faces of S_ij (u_i + u_j)/2, on inner nodes."""
    mesh = box((6, 6), perturb=0.25, seed=1)
    g = Geometry.of(mesh)
    grads, volume = mesh.gradients, mesh.volumes
    total = np.zeros((mesh.n_nodes, mesh.n_nodes, 2))
    for i in range(3):
        for j in range(3):
            face = (grads[:, j] - grads[:, i]) * volume[:, None] / 3
            np.add.at(total, (mesh.cells[:, i], mesh.cells[:, j]), face)
    u = np.random.default_rng(0).normal(size=mesh.n_nodes)
    by_faces = (total * 0.5 * (u[:, None, None] + u[None, :, None])).sum(1) / mesh.dual_volumes()[:, None]
    by_cells = (gradient(g) @ torch.from_numpy(u)[:, None].expand(2, -1, -1))[..., 0].T.numpy()
    np.testing.assert_allclose(by_cells[~mesh.on_boundary], by_faces[~mesh.on_boundary], atol=1e-11)


@pytest.mark.parametrize("form", ["galerkin", "upwind", "skew"])
def test_advection_of_constants_vanishes(mesh, form):
    g = Geometry.of(mesh)
    C = advection(g, [0.3, -0.2, 0.5][: mesh.dim], form)
    inner = ~mesh.on_boundary
    assert np.abs(C.row_sums().numpy()[inner if form == "skew" else slice(None)]).max() < 1e-13


def test_galerkin_advection_is_exact_on_linear_fields(mesh):
    g = Geometry.of(mesh)
    a, v = np.array([1.0, 2.0, -1.0][: mesh.dim]), np.array([0.3, -0.2, 0.5][: mesh.dim])
    u = torch.from_numpy(mesh.points @ a)
    got = advection(g, v) @ u
    np.testing.assert_allclose(got.numpy(), (a @ v) * mesh.dual_volumes(), atol=1e-13)


def test_skew_advection_makes_energy_through_the_boundary_only(mesh):
    g = Geometry.of(mesh)
    v = torch.tensor([0.3, -0.2, 0.5][: mesh.dim], dtype=torch.float64)
    C = advection(g, v, "skew")
    B = boundary_flux(g, v.expand(mesh.n_nodes, -1))
    u = torch.randn(mesh.n_nodes, dtype=torch.float64)
    assert float(u @ (C @ u)) == pytest.approx(0.5 * float(u @ (B @ u)), abs=1e-13)


def test_upwind_is_an_m_matrix(mesh):
    C = advection(Geometry.of(mesh), [1.0, 0.5, -0.3][: mesh.dim], "upwind")
    off = C.values.index_fill(0, C.pattern.diagonal, 0.0)
    assert float(off.max()) <= 0 and float(C.diagonal.min()) >= 0


def test_facet_terms(mesh):
    g = Geometry.of(mesh)
    measure, _ = mesh.facet_geometry("left")
    facets = mesh.facets("left")
    ones = torch.ones(mesh.n_nodes, dtype=torch.float64)
    assert float(ones @ (facet_mass(g, facets, 2.0) @ ones)) == pytest.approx(2 * measure.sum())
    assert float(facet_load(g, facets, torch.tensor(3.0)).sum()) == pytest.approx(3 * measure.sum())


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 5), seed=st.integers(0, 99), spatial=st.booleans())
def test_products_transpose_and_scipy_agree(n, seed, spatial):
    mesh = shuffled(box((n,) * (3 if spatial else 2), perturb=0.15, seed=seed), seed)
    pattern = Pattern.from_cells(mesh.cells, mesh.n_nodes)
    torch.manual_seed(seed)
    A = EdgeMatrix(pattern, torch.randn(pattern.nnz, dtype=torch.float64))
    full = torch.from_numpy(dense(A))
    x = torch.randn(4, mesh.n_nodes, 3, dtype=torch.float64)
    torch.testing.assert_close(A @ x, full @ x)
    torch.testing.assert_close(A.mT @ x, full.T @ x)
    torch.testing.assert_close(A @ x[0, :, 0], full @ x[0, :, 0])
    torch.testing.assert_close(EdgeMatrix.from_scipy(pattern, A.to_scipy()).values, A.values)
    many = EdgeMatrix(pattern, torch.randn(4, pattern.nnz, dtype=torch.float64))
    blocks = torch.stack([torch.from_numpy(dense(EdgeMatrix(pattern, v))) for v in many.values])
    torch.testing.assert_close(many @ x, blocks @ x)
    cols, _ = pattern.ell
    padded = pattern.to_ell(many.values)
    torch.testing.assert_close(torch.einsum("gwn,gwnr->gnr", padded, x[:, cols.long()]), blocks @ x)


def test_products_and_assembly_pass_gradcheck():
    mesh = box((2, 2), perturb=0.2)
    g = Geometry.of(mesh)
    D = torch.rand(mesh.n_cells, dtype=torch.float64, requires_grad=True)
    v = torch.randn(mesh.n_nodes, 2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, mesh.n_nodes, 2, dtype=torch.float64, requires_grad=True)
    for form in ("galerkin", "skew"):
        assert torch.autograd.gradcheck(lambda D, v, x, form=form: (stiffness(g, D) + advection(g, v, form)) @ x, (D, v, x))
    raw = torch.randn(2, g.pattern.nnz, dtype=torch.float64, requires_grad=True)
    two = x.detach().expand(2, -1, -1).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda raw, x: EdgeMatrix(g.pattern, raw) @ x, (raw, two))


def test_float32_matches_float64(mesh):
    low, high = Geometry.of(mesh, dtype=torch.float32), Geometry.of(mesh)
    torch.testing.assert_close(stiffness(low, 0.3).values.double(), stiffness(high, 0.3).values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad, word", [
    (lambda g: stiffness(g, -1.0), "negative"),
    (lambda g: stiffness(g, np.full(g.mesh.n_cells + 1, 1.0)), "per cell"),
    (lambda g: stiffness(g, float("nan")), "finite"),
    (lambda g: stiffness(g, -np.eye(g.dim)), "semidefinite"),
    (lambda g: mass(g, 1.5), "[0, 1]"),
    (lambda g: advection(g, [1.0]), "velocity"),
    (lambda g: advection(g, np.full((g.mesh.n_nodes, g.dim), np.nan)), "node 0"),
    (lambda g: advection(g, [1.0] * g.dim, "sideways"), "sideways"),
])
def test_bad_coefficients_are_named(mesh, bad, word):
    with pytest.raises(InputError, match=word.replace("[", r"\[")):
        bad(Geometry.of(mesh))


def test_single_precision_matrices_are_the_double_ones_rounded_once(mesh):
    """Assembled in single precision, rows of K miss zero by so much that it adds up over hundreds of stiff steps."""
    single, double = (Geometry.of(mesh, dtype=dtype) for dtype in (torch.float32, torch.float64))
    D = 0.1 + torch.rand(mesh.n_cells, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for make in (stiffness, lambda g: stiffness(g, D), mass, lambda g: mass(g, 0.3)):
        found, exact = make(single).values, make(double).values
        assert found.dtype == torch.float32 and torch.equal(found, exact.float())
