"""Materials against exact solutions: melting fronts, porous media, Kirchhoff's transform, turned tensors, order."""

from __future__ import annotations

import math

import pytest
import torch

import dgnet as dg
from benchmarks.materials import Barenblatt, Kirchhoff, Stefan, order


def test_solidification_front_is_that_of_neumann() -> None:
    case = Stefan()
    assert case.root == pytest.approx(0.2916105, rel=1e-6)
    front, _ = case.found(200, 50)
    assert front == pytest.approx(case.front(5.0), rel=0.005)
    # a sharp front on a fixed mesh: first order at least
    assert order(lambda k: case.found(25 * 2**k, 12 * 2**k)[1]) > 0.9


def test_porous_medium_spreads_as_barenblatt_says() -> None:
    case = Barenblatt()
    height, error, change = case.found(32, 16)
    assert height == pytest.approx(0.1 / math.sqrt(3), rel=0.01) and error < 0.02 and change < 1e-13
    assert order(lambda k: case.found(12 * 2**k, 6 * 2**k)[1]) > 1.3  # the edge is not smooth


def test_kirchhoff_with_a_turned_tensor_is_second_order() -> None:
    assert order(lambda k: Kirchhoff().error(16 * 2**k, 4 * 2**k)) > 1.85


def test_capacity_and_conductivity_in_proportion_are_the_linear_equation_of_theta() -> None:
    mesh, b = dg.box((12, 12), perturb=0.2), 0.8
    ramp = dg.Curve([-0.5, 2.0], [1 - b / 2, 1 + 2 * b])
    u = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = dg.rollout(dg.Classical(start=0), dg.Problem(mesh, dg.PDE(diffusion=ramp * 0.1, capacity=ramp), [], dt=0.1), u,
                       steps=10)
    line = dg.rollout(dg.Classical(0.0, start=0), dg.Problem(mesh, dg.PDE(diffusion=0.1), [], dt=0.1), u + b / 2 * u**2, steps=10)
    assert (found + b / 2 * found**2 - line).abs().max() < 1e-10


@pytest.mark.parametrize("consistent", [0.0, 1.0])
def test_second_order_in_space_and_time_with_both_curves(consistent: float) -> None:
    k0, b, end = 0.3, 0.8, 0.5

    def exact(x: torch.Tensor, t: float) -> torch.Tensor:
        return 0.5 + 0.5 * math.exp(-t) * torch.cos(math.pi * x[:, 0]) * torch.cos(math.pi * x[:, 1])

    def source(x: torch.Tensor, t: float) -> torch.Tensor:
        w, (cx, cy), (sx, sy) = 0.5 * math.exp(-t), torch.cos(math.pi * x).T, torch.sin(math.pi * x).T
        u, gradient = 0.5 + w * cx * cy, (w * math.pi) ** 2 * ((sx * cy) ** 2 + (cx * sy) ** 2)
        return -(1 + 0.5 * u) * w * cx * cy - k0 * ((1 + b * u) * -2 * math.pi**2 * w * cx * cy + b * gradient)

    def error(level: int) -> float:
        mesh, steps = dg.box((8 * 2**level, 8 * 2**level), perturb=0.2), 4 * 2**level
        k, c = dg.Curve([-1.0, 2.0], [k0 * (1 - b), k0 * (1 + 2 * b)]), dg.Curve([-1.0, 2.0], [0.5, 2.0])
        p = dg.Problem(mesh, dg.PDE(diffusion=k, capacity=c), [], dt=end / steps)
        x = torch.tensor(mesh.points)
        f = dg.step_average(dg.FunctionSource(source), x, p.dt * torch.arange(steps, dtype=torch.float64), p.dt)
        states = dg.rollout(dg.Classical(consistent=consistent), p, exact(x, 0.0)[None, :, None], f)
        return float((states[0, -1, :, 0] - exact(x, end)).square().mean().sqrt())

    assert order(error) > 1.9


def test_a_front_may_cross_many_cells_in_one_step() -> None:
    case = Stefan()
    front, _ = case.found(300, 16)
    assert front == pytest.approx(case.front(5.0), rel=0.01)


@pytest.mark.parametrize("dt", [1e-3, 1e2, 1e6, 1e8])
def test_any_step_is_taken(dt: float) -> None:
    """Stiffness numbers from 1e-5 to 1e6. Long steps end in the steady state of Kirchhoff's transform, straight from 900 to 300."""
    mesh = dg.box((8, 2), upper=(1.0, 0.25))
    k = dg.Curve([0.0, 1000.0], [50.0, 20.0])
    c = dg.Curve([0.0, 1000.0], [1e6, 3e6])
    p = dg.Problem(mesh, dg.PDE(diffusion=k, capacity=c), [dg.Dirichlet("left", 900.0), dg.Dirichlet("right", 300.0)], dt=dt)
    u0 = torch.full((1, mesh.n_nodes, 1), 300.0, dtype=torch.float64)
    with torch.no_grad():
        end = dg.rollout(dg.Classical(theta=1.0), p, u0, steps=4)[0, -1, :, 0]
    assert float(end.min()) > 299.9 and float(end.max()) < 900.1
    if dt > 1e5:
        hot, cold = (k.integral(torch.tensor(v, dtype=torch.float64)) for v in (900.0, 300.0))
        assert torch.allclose(k.integral(end), hot + (cold - hot) * torch.tensor(mesh.points[:, 0]), rtol=1e-6)
