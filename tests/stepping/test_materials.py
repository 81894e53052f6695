"""Capacity and diffusion as curves of u: exact solutions, conservation, gradients, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.problems import LUMPED
from dgnet.stepping import system

Tensor = torch.Tensor


def halves(cells: tuple[int, ...]) -> dg.Mesh:
    """A box with two regions, left and right."""
    mesh = dg.box(cells)
    left = mesh.centroids[:, 0] < 0.5
    return replace(mesh, regions={"left": np.flatnonzero(left), "right": np.flatnonzero(~left)})


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


# ---------------------------------------------------------------------- curves


@pytest.mark.parametrize("heat", [-1.0, float("nan"), float("inf")])
def test_a_latent_heat_is_finite_and_not_negative(heat: float) -> None:
    with pytest.raises(dg.InputError, match=r"heat must be (a )?finite"):
        dg.Curve([0.0, 1.0], [1.0, 1.0]).melting(heat, 0.5)


def test_a_curve_integrates_its_values_and_the_latent_heat() -> None:
    curve = dg.Curve([0.0, 1.0, 3.0], [1.0, 3.0, 2.0]).melting(5.0, 0.5, 1.5)
    u = torch.linspace(-1, 4, 200_001, dtype=torch.float64)
    c = curve.value(u)
    trapezoid = torch.cat([c.new_zeros(1), (0.5 * (c[1:] + c[:-1]) * u.diff()).cumsum(0)])
    assert torch.allclose(curve.integral(u) - curve.integral(u[:1]), trapezoid, atol=2e-4)
    assert curve.integral(torch.tensor(0.0)) == 0.0 and curve.value(torch.tensor([-5.0, 9.0])).tolist() == [1.0, 2.0]


def test_a_sharp_transition_takes_up_its_heat_within_a_thousandth() -> None:
    curve = dg.Curve([0.0, 100.0], [2.0, 2.0]).melting(50.0, 40.0)
    assert curve.latent[0].high - curve.latent[0].low == pytest.approx(50 / 2 * 1e-3)
    assert float(curve.integral(torch.tensor(100.0, dtype=torch.float64))) == pytest.approx(250.0)


@pytest.mark.parametrize(("at", "values", "said"), [
    ([0.0, 0.0], [1.0, 1.0], "must increase, but 0 follows 0"), ([0.0, 1.0], [1.0, -2.0], "not negative, got -2 at 1"),
    ([0.0], [1.0], "two at least"), ([0.0, 1.0, 2.0], [1.0, 1.0], "as many values as points"),
    ([0.0, 1.0], [1.0, float("nan")], "finite")])
def test_a_bad_table_is_refused(at: list[float], values: list[float], said: str) -> None:
    with pytest.raises(dg.InputError, match=said):
        dg.Curve(at, values)


def test_bad_materials_are_refused() -> None:
    zero, mesh = dg.Curve([0.0, 1.0], [0.0, 1.0], name="c(T)"), halves((4, 4))
    with pytest.raises(dg.InputError, match=r"capacity must be positive, but the c\(T\) falls to 0"):
        dg.PDE(capacity=zero)
    with pytest.raises(dg.InputError, match="decay must be real numbers, got a Curve"):
        dg.PDE(decay=zero)  # type: ignore[arg-type]
    with pytest.raises(dg.InputError, match=r"there is no region 'lift'.*left"):
        dg.Problem(mesh, dg.PDE(diffusion=dg.ByRegion({"lift": 1.0, "elsewhere": 2.0})), [], dt=1.0)
    with pytest.raises(dg.InputError, match="give 'elsewhere' a value"):
        dg.Problem(mesh, dg.PDE(diffusion=dg.ByRegion({"left": zero})), [], dt=1.0)
    with pytest.raises(dg.InputError, match=r"one per cell \[32\]"):
        dg.Problem(mesh, dg.PDE(diffusion=dg.ByRegion({"left": dg.Scaled(zero, [1.0, 2.0]), "right": 1.0})), [], dt=1.0)
    with pytest.raises(dg.InputError, match="EnthalpySolver"):
        dg.GreenSolver(dg.Problem(mesh, dg.PDE(diffusion=zero), [], dt=1.0))
    with pytest.raises(dg.InputError, match="must end above"):
        dg.Curve([0.0, 1.0], [1.0, 1.0]).melting(1.0, 0.5, 0.4)


def test_a_run_that_leaves_a_table_is_refused() -> None:
    k = dg.Curve([0.0, 1.0], [1.0, 2.0], name="conductivity")
    u0 = torch.zeros(1, 25, 1, dtype=torch.float64)
    warm = torch.ones(1, 20, 25, 1, dtype=torch.float64)
    with pytest.raises(dg.InputError, match=r"reaches u = 1\.1, but the conductivity ends at 1: its table must cover"):
        dg.rollout(dg.Classical(), dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=k), [], dt=0.1), u0, warm)
    wide = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=replace(k, extends=True)), [], dt=0.1)
    assert dg.rollout(dg.Classical(), wide, u0, warm)[0, -1].mean() == pytest.approx(2.0)


# ---------------------------------------------------------------------- the step


@pytest.mark.parametrize("consistent", [0.0, 1.0])
def test_constant_curves_give_the_linear_solver(consistent: float) -> None:
    mesh, gen = dg.box((10, 10)), torch.Generator().manual_seed(0)
    u0, f = (torch.rand(2, *shape, mesh.n_nodes, 1, dtype=torch.float64, generator=gen) for shape in ((), (10,)))
    conditions = [dg.Dirichlet("left", 1.0), dg.Robin("right", 0.3, 0.5)]
    numbers = dg.PDE(diffusion=0.1, capacity=2.0, decay=0.3, velocity=[0.3, 0.1])
    curves = replace(numbers, diffusion=dg.Curve([-9.0, 9.0], [0.1, 0.1]), capacity=dg.Curve([-9.0, 9.0], [2.0, 2.0]))
    states = [dg.rollout(dg.Classical(consistent=consistent, start=0), dg.Problem(mesh, pde, conditions, dt=0.05), u0, f)
              for pde in (numbers, curves)]
    assert (states[0] - states[1]).abs().max() < 1e-10


def test_a_skew_flow_and_one_in_time_give_the_linear_solver() -> None:
    """The capacity is a number here, so the advection may have any form and change in time."""
    mesh, gen = dg.box((8, 8), perturb=0.2), torch.Generator().manual_seed(0)
    u0 = 300 + torch.rand(2, mesh.n_nodes, 1, dtype=torch.float64, generator=gen)
    flow = torch.rand(mesh.n_nodes, 2, dtype=torch.float64, generator=gen)
    exchange = [dg.Robin("left", lambda x, t: 0.3 + t * x[:, 1], 290.0)]
    for form, velocity in (("skew", flow), ("galerkin", lambda t: (1 + t) * flow)):
        numbers = dg.PDE(diffusion=0.1, capacity=2.0, velocity=velocity)
        curves = replace(numbers, diffusion=dg.Curve([200.0, 400.0], [0.1, 0.1], extends=True))
        problems = [dg.Problem(mesh, pde, exchange, dt=0.05, advection_form=form) for pde in (numbers, curves)]
        states = [dg.rollout(dg.Classical(0.0, start=0), p, u0, steps=4) for p in problems]
        assert (states[0] - states[1]).abs().max() < 1e-8
    each = replace(curves, velocity=lambda t: flow.expand(2, -1, -1))
    with pytest.raises(dg.InputError, match="all trajectories share one velocity"):
        dg.rollout(dg.Classical(), dg.Problem(mesh, each, [], dt=0.05), u0, steps=1)
    bent = replace(numbers, velocity=flow, capacity=dg.Curve([200.0, 400.0], [1.0, 2.0]))
    with pytest.raises(dg.InputError, match="skew form of the advection needs a constant capacity"):
        dg.rollout(dg.Classical(), dg.Problem(mesh, bent, [], dt=0.05, advection_form="skew"), u0, steps=1)


def test_regions_with_equal_curves_are_one_material() -> None:
    mesh = halves((8, 8))
    u0 = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    c, k = dg.Curve([0.0, 1.0], [1.0, 3.0]).melting(2.0, 0.4, 0.5), dg.Curve([0.0, 1.0], [0.1, 0.3])
    one = dg.PDE(capacity=c, diffusion=k)
    two = dg.PDE(capacity=dg.ByRegion({"left": c, "right": replace(c)}), diffusion=dg.ByRegion({"left": k, "right": replace(k)}))
    states = [dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.05), u0, steps=5) for pde in (one, two)]
    assert (states[0] - states[1]).abs().max() < 1e-10


def mixed_problem(mesh: dg.Mesh, dt: float, reaction: bool = False, wall: Tensor | None = None,
                  parts: tuple[Tensor, Tensor, Tensor] | None = None) -> dg.Problem:
    """Two fields, two regions, a tensor, melting, decay; optionally a reaction and a fixed value."""
    cv, kv, heat = parts or (double(1.0, 3.0, 2.0).detach(), double(0.1, 0.4).detach(), torch.tensor(2.0, dtype=torch.float64))
    c, k = dg.Curve([0.0, 1.0, 2.0], cv, extends=True).melting(heat, 0.4, 0.8), dg.Curve([0.0, 2.0], kv, extends=True)
    tensor = torch.tensor([[1.0, 0.3], [0.3, 0.5]], dtype=torch.float64)
    pde = dg.PDE(("T", "S"), diffusion={"T": dg.ByRegion({"left": k, "right": dg.Scaled(k, tensor)}), "S": 0.1},
                 capacity={"T": dg.ByRegion({"left": c, "right": 1.5}), "S": 2.0},
                 reaction=(lambda u: 0.1 * torch.stack([u[..., 1] * u[..., 0], -u[..., 0] ** 2], -1)) if reaction else None)
    fixed = [] if wall is None else [dg.Dirichlet("left", lambda x, t: wall * x[:, 1], "T"), dg.Robin("right", 0.3, 0.5)]
    return dg.Problem(mesh, pde, fixed, dt=dt)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_enthalpy_gained_is_what_entered(dtype: torch.dtype) -> None:
    mesh = halves((10, 10))
    p = replace(mixed_problem(mesh, 0.5), dtype=dtype)
    gen = torch.Generator().manual_seed(1)
    u0, f = torch.rand(3, mesh.n_nodes, 2, dtype=torch.float64, generator=gen), torch.rand(3, 8, mesh.n_nodes, 2, generator=gen)
    states = dg.rollout(dg.Classical(), p, u0, f.double())
    volume, share = np.zeros((2, mesh.n_nodes)), mesh.volumes / 3
    for k, name in enumerate(("left", "right")):
        np.add.at(volume[k], mesh.cells[mesh.regions[name]].ravel(), share[mesh.regions[name]].repeat(3))
    left, right = torch.tensor(volume)
    curve = p.pde.capacity["T"].parts["left"]  # type: ignore[index, union-attr]

    def content(u: Tensor) -> Tensor:
        T = (left * curve.integral(u[..., 0]) + 1.5 * right * u[..., 0]).sum(-1)
        return torch.stack([T, 2.0 * ((left + right) * u[..., 1]).sum(-1)], -1)

    entered = 0.5 * ((left + right)[:, None] * f.double()).sum((1, 2))
    gained = content(states[:, -1]) - content(states[:, 0])
    assert ((gained - entered).abs() / entered).max() < 1e-12


def test_gradients_are_those_of_the_solution() -> None:
    mesh, gen = halves((2, 3)), torch.Generator().manual_seed(0)
    u0, f = (torch.rand(2, *shape, mesh.n_nodes, 2, dtype=torch.float64, generator=gen).requires_grad_() for shape in ((), (2,)))

    def end(u0: Tensor, f: Tensor, c: Tensor, k: Tensor, heat: Tensor, wall: Tensor) -> Tensor:
        p = mixed_problem(mesh, 0.05, True, wall, (c, k, heat))
        return dg.rollout(dg.Classical(tolerance=1e-13), p, u0, f)[:, -1]

    inputs = (u0, f, double(1.0, 3.0, 2.0), double(0.1, 0.4), double(2.0)[0], double(0.9)[0])
    assert torch.autograd.gradcheck(end, inputs, eps=1e-6, atol=1e-6, fast_mode=True)


def test_gradients_with_a_flow_and_a_coupled_mass() -> None:
    mesh = dg.box((3, 3))
    u0 = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def end(u0: Tensor, c: Tensor, k: Tensor) -> Tensor:
        pde = dg.PDE(capacity=dg.Curve([-2.0, 1.0, 4.0], c), diffusion=dg.Curve([-2.0, 4.0], k), velocity=[1.0, 0.5])
        p = dg.Problem(mesh, pde, [dg.Dirichlet("left", 1.0), dg.Dirichlet("bottom", 1.0)], dt=0.05)
        return dg.rollout(dg.Classical(consistent=1.0, tolerance=1e-13), p, u0, steps=3)[:, -1]

    assert torch.autograd.gradcheck(end, (u0, double(1.0, 3.0, 2.0), double(0.1, 0.4)), eps=1e-6, atol=1e-6, fast_mode=True)


def test_a_strong_flow_is_factorised() -> None:
    """Chebyshev's iteration would need far too many products; the two ways agree where both go."""
    mesh = dg.box((8, 8), perturb=0.2)
    u0 = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    c, k = (dg.Curve([-2.0, 4.0], values, extends=True) for values in ([1.0, 2.0], [1e-3, 2e-3]))
    pde = dg.PDE(capacity=c, diffusion=k, velocity=[3.0, 1.0])
    fixed = [dg.Dirichlet("left", 1.0), dg.Dirichlet("bottom", 1.0)]
    end = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, fixed, dt=0.2), u0, steps=3)[:, -1]
    assert torch.isfinite(torch.autograd.grad(end.square().sum(), u0)[0]).all()
    short = dg.Problem(mesh, pde, fixed, dt=0.01)
    with torch.no_grad():
        iterated = dg.rollout(dg.Classical(), short, u0, steps=3)
        limits, system.MOST["cpu"] = system.MOST["cpu"], 0
        try:
            assert (dg.rollout(dg.Classical(), short, u0, steps=3) - iterated).abs().max() < 1e-9
        finally:
            system.MOST["cpu"] = limits


def test_a_fixed_number_of_iterations_gives_the_same_step() -> None:
    from dgnet.stepping import EnthalpySolver
    mesh = halves((10, 10))
    p = mixed_problem(mesh, 0.02).recast(LUMPED, "galerkin")
    u = torch.rand(2, mesh.n_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    free, fixed = EnthalpySolver(p), EnthalpySolver(p, tolerance=1e-6, deferred=True)
    a = b = u
    with torch.no_grad():
        for _ in range(5):
            a, b = free.step(a), fixed.step(b)
    fixed.finish()
    assert (a - b).abs().max() < 1e-6


def test_a_recorded_step_is_the_step() -> None:
    mesh, gen = halves((8, 8)), torch.Generator().manual_seed(0)
    p = mixed_problem(mesh, 0.02, True)
    u, f = (torch.rand(2, *shape, mesh.n_nodes, 2, dtype=torch.float64, generator=gen) for shape in ((), (12,)))
    with torch.no_grad():
        recorded, plain = (dg.rollout(dg.Classical(), p, u, f, capture=how) for how in ("always", False))
    assert torch.equal(recorded, plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_on_cuda_are_recorded_and_the_same(dtype: torch.dtype) -> None:
    mesh, gen = halves((12, 12)), torch.Generator().manual_seed(0)
    u, f = (torch.rand(2, *shape, mesh.n_nodes, 2, dtype=torch.float64, generator=gen).to(dtype) for shape in ((), (20,)))
    states = []
    for device in ("cpu", "cuda"):
        p = replace(mixed_problem(mesh, 0.02, True), dtype=dtype, device=device)
        with torch.no_grad():
            model = dg.Classical(tolerance=1e-7)
            assert model.prepare(p).repeats()
            states.append(dg.rollout(model, p, u.to(device), f.to(device)).cpu())
    assert (states[0] - states[1]).abs().max() < 1e-5


def test_numbers_by_region_are_a_linear_problem() -> None:
    mesh = halves((6, 6))
    tensor = [[2.0, 0.3], [0.3, 1.0]]
    pde = dg.PDE(diffusion=dg.ByRegion({"left": 1.0, "right": tensor}), capacity=dg.ByRegion({"left": 1.0, "right": 3.0}))
    p = dg.Problem(mesh, pde, [dg.Dirichlet("left", 1.0)], dt=0.01)
    u0 = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left = torch.tensor(mesh.centroids[:, 0] < 0.5)
    D = torch.where(left[:, None, None], torch.eye(2, dtype=torch.float64), torch.tensor(tensor, dtype=torch.float64))
    same = replace(p, pde=dg.PDE(diffusion=D, capacity=torch.where(left, 1.0, 3.0).double()))
    assert not p.pde.curved
    with torch.no_grad():
        for model in (dg.Classical(), dg.Universal(), dg.DGNet(dg.DGNetConfig(hidden=8, layers=1), p).double()):
            assert torch.allclose(dg.rollout(model, p, u0, steps=3), dg.rollout(model, same, u0, steps=3), rtol=1e-12)


@pytest.mark.parametrize("deferred", [False, True])
def test_a_field_that_is_zero_stays_zero(deferred: bool) -> None:
    """Nothing happens to it, so there is no change that its residual could be compared with."""
    from dgnet.stepping import EnthalpySolver

    k = dg.Curve([0.0, 2.0], [1.0, 3.0], name="conductivity")
    problem = dg.Problem(dg.box((3, 3)), dg.PDE(("u", "v"), diffusion={"u": k, "v": 0.2}), [dg.Neumann("left", 1.0, "u")], dt=0.01)
    solver = EnthalpySolver(problem, deferred=deferred)
    after = solver.step(torch.zeros(1, 16, 2, dtype=torch.float64))
    solver.finish()
    assert after[..., 0].max() > 0.01 and not after[..., 1].any()
