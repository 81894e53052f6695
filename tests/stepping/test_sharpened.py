"""Where next to nothing is proven from below, the estimate makes a fixed iteration possible, and its residual is checked."""

import numpy as np
import pytest
import torch

from dgnet.mesh import perturbed_square
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.operators import EdgeMatrix
from dgnet.problems import PDE, Problem
from dgnet.stepping.bounds import bounds_of, sharpened


def saturated(seed: int) -> tuple[DGNet, Problem]:
    mesh = perturbed_square(12)
    x = torch.tensor(mesh.points)
    flow = torch.stack([torch.sin(9 * x[:, 1]), torch.cos(7 * x[:, 0])], 1)  # not free of divergence: a part with any sign
    problem = Problem(mesh, PDE(diffusion=1e-3, velocity=flow), [], 0.02)
    torch.manual_seed(seed)
    model = DGNet(DGNetConfig(hidden=8, layers=1, free=True, learn_streamline=True), problem).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model, problem


@pytest.mark.parametrize("seed", (0, 2))
def test_estimate_lies_between_zero_and_the_lowest_eigenvalue(seed: int) -> None:
    model, problem = saturated(seed)
    with torch.no_grad():
        op = model.prepare(problem).solver.operator()
    proven = op.measure_bounds()
    estimate = sharpened(proven, op.A)
    A = EdgeMatrix(op.A.pattern, op.A.values[0]).to_scipy().toarray()
    root = np.sqrt(A.diagonal())
    B = A / root[:, None] / root
    lowest = np.linalg.eigvalsh(0.5 * (B + B.T))[0]
    assert proven.low < 0.1 and max(proven.low, 0.02) < estimate.low < lowest and estimate.tight and estimate.high == proven.high
    assert sharpened(estimate, op.A) == estimate


def test_a_learned_mass_with_a_flow_iterates_a_fixed_number_of_times() -> None:
    model, problem = saturated(0)
    with torch.no_grad():
        solver = model.prepare(problem, 1, 1).solver
        solver.backend, solver.tolerance = "iterative", 1e-8
        op = solver.operator()
        assert op.prepared.capturable and op.prepared.label.startswith("chebyshev") and not op.measure_bounds().usable
        b = torch.randn(2, problem.n, 1, dtype=torch.float64)
        x = op.solve(b)  # checks its residual
        exact = np.linalg.solve(EdgeMatrix(op.A.pattern, op.A.values[0]).to_scipy().toarray(), b[0].numpy())
    assert np.abs(x[0].numpy() - exact).max() < 1e-6 * np.abs(exact).max()


def test_bounds_that_are_proven_are_left_alone() -> None:
    mesh = perturbed_square(8)
    problem = Problem(mesh, PDE(diffusion=0.1, velocity=(1.0, 0.5)), [], 0.01)
    op = DGNet(DGNetConfig(hidden=8, layers=1), problem).double().prepare(problem).solver.operator()
    proven = bounds_of(op.A, op.M, op._mass_low, op._indefinite() * (op.theta * op.dt) if callable(op._indefinite) else None)
    assert op.bounds.low == pytest.approx(proven.low) and proven.low > 0.1
