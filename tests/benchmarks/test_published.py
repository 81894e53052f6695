"""Numbers of others (`python -m benchmarks published`): the quick ones, each against its published value or an independent code."""

import math

import numpy as np
import pytest
import skfem
import torch
from scipy.sparse.linalg import splu
from skfem.helpers import dot, grad

from benchmarks import published
from benchmarks.published import BENCHMARKS, cone, turn

Tensor = torch.Tensor

# largest deviation of ours from the published value, relative, by elements
TOLERANCE = {
    "NAFEMS T3, bar with a swinging end": (1e-3, 2e-4),
    "NAFEMS T4, plate with convection": (6e-3, 3e-3),  # published with three digits
    "Robin shock, Biot 10": (2e-4, 2e-4),
    "Rotating cone, P1": (1e-12, None),
    "Fisher wave": (2e-3, 1e-3),
    "Fisher front from a step": (0.01, None),
    "Shrinking Allen–Cahn circle": (0.04, None),
    "Porous medium, Barenblatt's solution": (2e-3, None),
}


@pytest.mark.parametrize("name", TOLERANCE)
def test_published_values_are_found(name: str) -> None:
    found = next(b for b in BENCHMARKS if b.name == name)
    for degree, tolerance in zip((1, 2), TOLERANCE[name]):
        if tolerance is not None:
            assert found.compute(degree) == pytest.approx(found.published, rel=tolerance)


def test_robin_series() -> None:
    """Its first root and coefficient are those of the handbook; early values need more terms, and the solver follows them."""
    assert published.robin_series(10, 1.0) == pytest.approx(1.2620 * math.exp(-(1.4289**2)), rel=1e-4)
    assert published.robin_series(10, 0.0) == pytest.approx(1.0, abs=0.02)
    assert published.robin_shock(1, fourier=0.1) == pytest.approx(published.robin_series(10, 0.1), rel=1e-3)


def test_pfhub_error_at_the_coarsest_width() -> None:
    """Below SymPhas's, above MMSP's; the source is the residual of the solution, by differences."""
    assert 3.2e-3 < published.pfhub_7a(0.01, 1, 0.08) < 6.8e-3
    exact = published.Manufactured()
    x = torch.tensor([[0.3, 0.24], [0.71, 0.26], [0.52, 0.2]], dtype=torch.float64)
    t, d = 3.0, 1e-4

    def eta(dx: float = 0.0, dy: float = 0.0, dt: float = 0.0) -> Tensor:
        return exact(x + torch.tensor([dx, dy], dtype=torch.float64), t + dt)

    u = eta()
    laplace = (eta(d) + eta(-d) + eta(0.0, d) + eta(0.0, -d) - 4 * u) / d**2
    rate = (eta(dt=d) - eta(dt=-d)) / (2 * d)
    wanted = rate + 4 * u * (u - 1) * (u - 0.5) - exact.kappa * laplace
    torch.testing.assert_close(exact.source(x, t), wanted, rtol=1e-3, atol=1e-4)


def cone_by_scikit_fem(degree: int) -> float:
    """The top after one turn by scikit-fem's matrices and SciPy's solver."""
    mesh, dt = turn()
    basis = skfem.Basis(skfem.MeshTri(mesh.points.T, mesh.cells.T), skfem.ElementTriP1() if degree == 1 else skfem.ElementTriP2())
    flow = skfem.BilinearForm(lambda u, v, w: v * dot(w["flow"], grad(u)))
    # the flow is linear in space: the same in both elements
    velocity = 2 * np.pi * np.stack([0.5 - basis.global_coordinates()[1], basis.global_coordinates()[0] - 0.5])
    M, C = skfem.BilinearForm(lambda u, v, w: u * v).assemble(basis), flow.assemble(basis, flow=velocity)
    free, u = basis.complement_dofs(basis.get_dofs()), cone(torch.tensor(basis.doflocs.T)).numpy()
    left, right = ((M + sign * 0.5 * dt * C)[free][:, free] for sign in (1, -1))
    solve = splu(left.tocsc())
    for _ in range(round(1 / dt)):
        u[free] = solve.solve(right @ u[free])
    return float(u.max())


@pytest.mark.parametrize("degree", [1, 2])
def test_rotating_cone_is_that_of_scikit_fem(degree: int) -> None:
    row = next(b for b in BENCHMARKS if b.name == f"Rotating cone, P{degree}")
    assert cone_by_scikit_fem(degree) == pytest.approx(row.published, rel=1e-12)
    assert published.rotating_cone(degree) == pytest.approx(row.published, rel=1e-12)
