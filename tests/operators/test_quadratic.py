"""Quadratic elements: matrices beside scikit-fem's, exactness on quadratics, conservation, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import skfem
import torch

from dgnet.errors import InputError
from dgnet.mesh import ALL, Mesh, box
from dgnet.operators import Geometry, advection, boundary_flux, facet_load, facet_mass, mass, mass_range, stiffness
from dgnet_paper.reference.assembly import Space


def meshes() -> dict[str, Mesh]:
    return {"2D": box((4, 3), perturb=0.25), "3D": box((2, 3, 2), perturb=0.2)}


@pytest.mark.parametrize("kind", ["2D", "3D"])
def test_matrices_agree_with_scikit_fem(kind: str) -> None:
    mesh = meshes()[kind]
    space, g, rng = Space(mesh, degree=2), Geometry.of(mesh, degree=2), np.random.default_rng(0)
    assert np.array_equal(space.points, g.nodes)
    space.basis = skfem.Basis(space.skmesh, space.element, intorder=6)  # its own order is not enough for a weight that varies
    D = rng.uniform(1, 2, (mesh.n_cells, mesh.dim, mesh.dim))
    D = D @ np.swapaxes(D, 1, 2)
    v, k = rng.normal(size=(mesh.n_nodes, mesh.dim)), rng.uniform(1, 2, mesh.n_nodes)
    h = rng.uniform(1, 2, len(g.nodes))
    facets = g.facets("left")
    pairs = {
        "stiffness": (stiffness(g, D), space.stiffness(D)),
        "mass": (mass(g), space.mass()),
        "decay": (mass(g, weight=torch.tensor(k)), space.mass(space.prolongation @ k)),
        "advection": (advection(g, v), space.advection(space.prolongation @ v)),
        "facets": (facet_mass(g, facets, torch.tensor(h[facets])), space.boundary_mass("left", h)),
    }
    for name, (ours, theirs) in pairs.items():
        assert abs(ours.to_scipy() - theirs).max() < 1e-13 * abs(theirs).max(), name
    q = rng.normal(size=len(g.nodes))
    load = facet_load(g, facets, torch.tensor(q[facets]), torch.tensor(h[facets]))
    assert np.allclose(load.numpy(), space.boundary_mass("left", h) @ q, atol=1e-14)


@pytest.mark.parametrize("kind", ["2D", "3D"])
def test_integrals_of_quadratics_are_exact(kind: str) -> None:
    """u^T K u, 1^T M u and u^T C u of a quadratic u on the unit box, from its formula."""
    mesh = meshes()[kind]
    g = Geometry.of(mesh, degree=2)
    x = torch.tensor(g.nodes)
    u = x[:, 0] ** 2 + x[:, 0] * x[:, 1] - 2 * x[:, 1]
    # grad u = (2x + y, x - 2); integrals over [0, 1]^d
    assert float(u @ (stiffness(g) @ u)) == pytest.approx(4 / 3 + 1 + 1 / 3 + 1 / 3 - 2 + 4)
    assert float((mass(g) @ u).sum()) == pytest.approx(1 / 3 + 1 / 4 - 1)
    v = torch.zeros(mesh.n_nodes, mesh.dim, dtype=torch.float64)
    v[:, 0] = torch.tensor(mesh.points[:, 1])  # (y, 0): free of divergence, linear
    half = 0.5 * float(u @ (boundary_flux(g, v) @ u))
    assert half == pytest.approx(_outflow(), rel=1e-12)
    for form in ("galerkin", "skew"):
        C = advection(g, v, form)
        assert float(u @ (C @ u)) == pytest.approx(half, rel=1e-10)
        assert form == "skew" or float((C @ torch.ones_like(u)).abs().max()) < 1e-14


def _outflow() -> float:
    """1/2 integral over x = 1 minus x = 0 of y u^2 for u as above."""
    y = np.polynomial.Polynomial([0, 1])
    right, left = y * (1 - y) ** 2, y * (2 * y) ** 2
    whole = (right - left).integ()
    return 0.5 * float(whole(1.0) - whole(0.0))


@pytest.mark.parametrize("kind", ["2D", "3D"])
def test_bounds_of_the_mass_hold(kind: str) -> None:
    mesh = meshes()[kind]
    M = mass(Geometry.of(mesh, degree=2)).to_scipy().toarray()
    root = np.sqrt(np.diag(M))
    found = np.linalg.eigvalsh(M / np.outer(root, root))
    low, high = mass_range(mesh.dim, 1.0, 2)
    assert 0 < low <= found[0] + 1e-12 and found[-1] <= high + 1e-12


def test_what_does_not_exist_is_refused() -> None:
    g = Geometry.of(box((2, 2)), degree=2)
    with pytest.raises(InputError, match="no lumped mass"):
        mass(g, 0.0)
    with pytest.raises(InputError, match="no upwind advection"):
        advection(g, [1.0, 0.0], "upwind")
    assert len(g.nodes_on(ALL)) == 16
    with pytest.raises(InputError, match="given at their nodes"):
        facet_mass(g, g.facets(ALL), torch.ones(8, dtype=torch.float64))
