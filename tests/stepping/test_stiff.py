"""Reactions that are fast against the step: order, balance, gradients, and when they are taken implicitly."""

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

import dgnet as dg
from dgnet.errors import SolveError
from dgnet.stepping import GreenSolver
from dgnet.stepping.stiff import slopes

F64 = torch.float64


def robertson(y: torch.Tensor) -> torch.Tensor:
    a, b, c = y.unbind(-1)
    slow, fast = 0.04 * a - 1e4 * b * c, 3e7 * b * b
    return torch.stack([-slow, slow - fast, fast], -1)


def exchange(rate: float):
    """u and v^2 equalise within 1 / rate; both are used up slowly."""
    def r(w: torch.Tensor) -> torch.Tensor:
        u, v = w.unbind(-1)
        return torch.stack([-rate * (u - v**2), rate * (u - v**2) - u * v], -1)

    return r


def exchanging(rate: float, dt: float, conditions=(), **options) -> dg.Problem:
    mesh = dg.box((10, 1))
    return dg.Problem(mesh, dg.PDE(("u", "v"), {"u": 0.1, "v": 0.02}, reaction=exchange(rate)), conditions, dt=dt, **options)


def begun(problem: dg.Problem) -> torch.Tensor:
    v = 1 + 0.5 * torch.cos(torch.pi * torch.tensor(problem.mesh.points[:, 0]))
    return torch.stack([v**2, v], -1)[None]


def order(dts: list[float], errors: list[float]) -> float:
    return float(np.polyfit(np.log(dts), np.log(errors), 1)[0])


def test_robertson_has_order_two_with_steps_thousands_of_times_longer_than_explicit_ones() -> None:
    exact = solve_ivp(lambda t, y: robertson(torch.tensor(y)).numpy(), (0, 40), [1.0, 0, 0], method="Radau", rtol=1e-10,
                      atol=1e-14).y[:, -1]
    start, dts, errors = torch.tensor([1.0, 0, 0], dtype=F64).expand(1, 4, 3), [4.0, 2.0, 1.0], []
    for dt in dts:
        problem = dg.Problem(dg.box((1, 1)), dg.PDE(("a", "b", "c"), reaction=robertson), [], dt=dt)
        last = dg.rollout(dg.Classical(), problem, start, steps=round(40 / dt))[0, -1].numpy()
        errors.append(np.abs(last / exact - 1).max())
        assert np.abs(last.sum(-1) - 1).max() < 1e-9  # nothing is lost
    explicit = 1 / float(torch.linalg.eigvals(slopes(robertson, torch.tensor(exact)[None, None]))[0, 0].abs().max())
    assert min(dts) > 1000 * explicit
    assert errors[-1] < 5e-4 and order(dts, errors) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("walls", [(), (dg.Dirichlet("left", 1.5, field="v"), dg.Dirichlet("left", 2.25, field="u"))])
def test_order_two_where_reaction_and_diffusion_are_both_fast(walls: tuple[dg.Dirichlet, ...]) -> None:
    def last(dt: float) -> torch.Tensor:
        problem = exchanging(1e4, dt, walls)
        return dg.rollout(dg.Classical(), problem, begun(problem), steps=round(0.4 / dt))[0, -1]

    exact, dts = last(0.0125), [0.1, 0.05]  # 1,000 and 500 times the explicit limit
    errors = [float((last(dt) - exact).norm() / exact.norm()) for dt in dts]
    assert errors[-1] < 1e-3 and order(dts, errors) > 1.8  # a reaction split off, node by node, has 1.0 here


def test_same_solution_as_the_explicit_step_where_both_hold() -> None:
    problem = exchanging(10.0, 0.002)
    solver, implicit = GreenSolver(problem), GreenSolver(problem)
    implicit.stiff.found = True
    u = v = begun(problem)
    for k in range(15):
        u, v = solver.step(u, t=0.002 * k), implicit.step(v, t=0.002 * k)
    assert not solver.stiff.found
    assert torch.allclose(u, v, atol=2e-5) and not torch.equal(u, v)


def test_a_balance_of_reaction_and_diffusion_stays() -> None:
    """The steady state of a long run is one of long and short implicit steps alike."""
    conditions = [dg.Dirichlet("left", 1.0), dg.Robin("right", 0.3, ambient=2.0)]
    made = [exchanging(500.0, dt, conditions) for dt in (20.0, 0.05)]
    u = dg.rollout(dg.Classical(), made[0], begun(made[0]), steps=40)[:, -1]
    assert torch.allclose(GreenSolver(made[0]).step(u), u, rtol=1e-9)
    assert torch.allclose(dg.rollout(dg.Classical(), made[1], u, steps=3)[:, -1], u, rtol=1e-8)


def test_the_slope_along_the_run_decides() -> None:
    slow, fast = exchanging(10.0, 0.01), exchanging(1e3, 0.01)
    for problem, expected in ((slow, False), (fast, True)):
        solver = GreenSolver(problem)
        solver.step(begun(problem))
        assert solver.stiff.found == expected
    growing = dg.Problem(dg.box((1, 1)), dg.PDE(reaction=lambda u: u * (1 - u) * (1 + u**2)), [], dt=1.0)
    solver, u = GreenSolver(growing), torch.full((1, 4, 1), 0.01, dtype=F64)
    found = []
    for _ in range(20):
        u = solver.step(u)
        found.append(solver.stiff.found)
    assert not found[0] and found[-1]  # the slope is 1 at the start and -2 at u = 1
    assert torch.allclose(u, torch.ones_like(u), atol=1e-6)


def test_a_reaction_that_sets_in_suddenly_is_seen_at_once() -> None:
    """Nothing happens up to u = 0.5, where a sink begins that is 200 times too fast: u = t, then 0.5 + 1 / 2000."""
    problem = dg.Problem(dg.box((1, 1)), dg.PDE(reaction=lambda u: -2000 * (u - 0.5).clamp(min=0)), [], dt=0.1)
    one = torch.ones(1, 12, 4, 1, dtype=F64)
    states = dg.rollout(dg.Classical(), problem, 0 * one[:, 0] + 0.03, one)[0, :, 0, 0]
    expected = torch.clamp(0.03 + 0.1 * torch.arange(13, dtype=F64), max=0.5 + 1 / 2000)
    assert torch.allclose(states, expected, atol=2e-2) and torch.allclose(states[-3:], expected[-3:], atol=1e-6)


def test_rows_of_a_batch_do_not_see_each_other() -> None:
    problem = exchanging(1e3, 0.05)
    start = torch.cat([begun(problem), 2 * begun(problem)])
    both = dg.rollout(dg.Classical(), problem, start, steps=4)
    alone = torch.cat([dg.rollout(dg.Classical(), problem, row[None], steps=4) for row in start])
    assert torch.allclose(both, alone, rtol=1e-8)


def test_single_precision_agrees_with_double() -> None:
    single = exchanging(1e3, 0.05, dtype=torch.float32)
    double = exchanging(1e3, 0.05)
    a, b = (dg.rollout(dg.Classical(), p, begun(p).to(p.dtype), steps=8) for p in (single, double))
    assert torch.allclose(a.double(), b, rtol=1e-4)


def test_gradients_are_exact() -> None:
    mesh = dg.box((1, 1))
    base = torch.rand(1, 4, 2, dtype=F64, generator=torch.Generator().manual_seed(0)) + 0.5

    def step(u: torch.Tensor, f: torch.Tensor, D: torch.Tensor, rate: torch.Tensor, wall: torch.Tensor, c: torch.Tensor):
        pde = dg.PDE(("u", "v"), D, velocity=[0.3, 0.1], capacity=c,
                     reaction=lambda w: torch.stack([-rate * (w[..., 0] - w[..., 1]**2), w[..., 0] - w[..., 1]], -1))
        problem = dg.Problem(mesh, pde, [dg.Dirichlet("left", lambda x, t: wall * (1 + t) + 0 * x[:, 0], field="u")], dt=0.3)
        solver = GreenSolver(problem)
        u = solver.step(u, f)
        assert solver.stiff.found
        return u

    values = [base, 0.1 * base, *(torch.tensor(x, dtype=F64) for x in (0.2, 50.0, 0.8, 1.7))]
    assert torch.autograd.gradcheck(step, [v.requires_grad_() for v in values], atol=1e-6, rtol=1e-4, fast_mode=True)


def test_an_untrained_model_is_the_classical_solver_and_can_be_trained() -> None:
    problem = exchanging(1e3, 0.05)
    model = dg.DGNet(dg.DGNetConfig(hidden=4, layers=1, free=True), problem).double()
    with torch.no_grad():
        learned, plain = (dg.rollout(m, problem, begun(problem), steps=3) for m in (model, dg.Classical()))
    assert torch.allclose(learned, plain, rtol=1e-8)
    dg.rollout(model, problem, begun(problem), steps=2)[:, -1].square().sum().backward()
    moved = [p.grad.abs().max() for p in model.parameters() if p.grad is not None]
    assert moved and max(moved) > 0 and all(torch.isfinite(g) for g in moved)


def test_a_front_that_newton_misses_in_one_step_is_halved() -> None:
    """u (1 - u)(u - 0.4) / 0.001 with steps of 1: the iteration has three solutions to choose from."""
    problem = dg.Problem(dg.box((20, 1)), dg.PDE(diffusion=0.01, reaction=lambda u: 1e3 * u * (1 - u) * (u - 0.4)), [], dt=1.0)
    start = (torch.tensor(problem.mesh.points[:, :1]) < 0.3).double()[None]
    last = dg.rollout(dg.Classical(0.0), problem, start, steps=5)[:, -1]
    assert float(last.min()) > -1e-6 and float(last.max()) < 1 + 1e-6


def test_a_reaction_without_a_solution_is_an_error() -> None:
    problem = dg.Problem(dg.box((1, 1)), dg.PDE(reaction=lambda u: 100 * u**2), [], dt=10.0)
    with pytest.raises(SolveError):
        dg.rollout(dg.Classical(), problem, torch.ones(1, 4, 1, dtype=F64), steps=3)


def test_a_reaction_without_a_value_is_no_answer() -> None:
    """sqrt(u) - 2 takes u to zero with an infinite slope, and has no value below: the run must end with an error."""
    problem = dg.Problem(dg.box((6, 6)), dg.PDE(diffusion=0.1, reaction=lambda u: u.sqrt() - 2),
                         [dg.Robin("boundary", 1.0, 0.0)], dt=0.1)
    with pytest.raises(SolveError, match=r"not finite|within its range"):
        dg.rollout(dg.Classical(), problem, torch.ones(1, 49, 1, dtype=torch.float64), steps=30)
