"""The classical solver with quadratic elements: order, exactness, conservation, conditions, flows, adjoint, recorded steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, Model, Refined, rollout
from dgnet.operators.elements import element
from dgnet.problems import given_velocity
from dgnet.problems.lift import Lift
from dgnet.problems.sources import step_average
from dgnet_paper.reference.transport import solve

Tensor = torch.Tensor
P2, PLAIN = Classical(degree=2), Classical(degree=2, start=0)


def steps_of(model: Model, problem: dg.Problem, u0: Tensor, source: Tensor | None, steps: int, t0: float = 0.0) -> Tensor:
    """What the model steps, at all of its points [B, P, F]."""
    state = model.prepare(problem, len(u0), steps)
    u = state.begin(u0)
    with torch.no_grad():
        for k in range(steps):
            u = state.step(u, None if source is None else source[:, k], t0 + k * problem.dt, k)
    return u


def l2(problem: dg.Problem, u: Tensor, exact: np.ndarray) -> float:
    """The L2 norm of u - exact for a state [P] with quadratic elements, exact [K, q] given at the points of the quadrature."""
    e, mesh = element(problem.mesh.dim, 2), problem.mesh
    there = u.numpy()[e.nodes_of(mesh, mesh.cells)] @ e.values.T
    return float(np.sqrt((mesh.volumes[:, None] * e.weights * (there - exact) ** 2).sum()))


def at_quadrature(problem: dg.Problem) -> np.ndarray:
    return np.einsum("qc,kcd->kqd", element(problem.mesh.dim, 2).corners, problem.mesh.points[problem.mesh.cells])


def slope(sizes: list[float], errors: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


# ---------------------------------------------------------------------- order


@pytest.mark.parametrize("dim, cells", [(2, (4, 8, 16)), (3, (2, 4, 6))])
def test_third_order_in_space(dim: int, cells: tuple[int, ...]) -> None:
    """exp(-d pi^2 D t) prod cos(pi x) in a closed box; the step shrinks like h^1.5, so that its error is of third order, too."""
    D, end, h, found = 0.05, 0.2, [], []
    for n in cells:
        mesh = box((n,) * dim, perturb=0.2)
        steps = max(2, round(4 * (n / cells[0]) ** 1.5))
        p = dg.Problem(mesh, dg.PDE(diffusion=D), [], dt=end / steps)

        def exact(x: np.ndarray, t: float) -> np.ndarray:
            return np.exp(-dim * np.pi**2 * D * t) * np.cos(np.pi * x).prod(-1)

        u = steps_of(P2, p, torch.tensor(exact(P2.points(p), 0.0))[None, :, None], None, steps)
        h.append(1 / n)
        found.append(l2(p, u[0, :, 0], exact(at_quadrature(p), end)))
    assert 2.8 < slope(h, found) < 3.4


def manufactured(steps: int, degree2: Model = PLAIN) -> float:
    """Largest error of (x^2 + x y) exp(-t) with everything on: capacity, decay, a rotating flow, all conditions in time.

    It is quadratic in space, as is every term of its equation, so quadratic elements have no error but that of the step.
    """
    D, c, k, h = 0.3, 2.0, 0.7, 1.5
    mesh = box((3, 3), perturb=0.2)

    def u(x: Tensor, t: float) -> Tensor:
        return (x[:, 0] ** 2 + x[:, 0] * x[:, 1]) * np.exp(-t)

    def source(x: Tensor, t: float) -> Tensor:
        ux, uy = (2 * x[:, 0] + x[:, 1]) * np.exp(-t), x[:, 0] * np.exp(-t)
        moved = (0.5 - x[:, 1]) * ux + (x[:, 0] - 0.5) * uy
        return c * (moved - u(x, t)) - 2 * D * np.exp(-t) + k * u(x, t)

    v = torch.stack([0.5 - torch.tensor(mesh.points[:, 1]), torch.tensor(mesh.points[:, 0]) - 0.5], 1)
    conditions = [dg.Dirichlet("left", lambda x, t: u(x, t)),
                  dg.Neumann("right", lambda x, t: D * (2 * x[:, 0] + x[:, 1]) * np.exp(-t)),
                  dg.Robin("top", h, lambda x, t: u(x, t) + D / h * x[:, 0] * np.exp(-t)),
                  dg.Robin("bottom", lambda x, t: h + x[:, 0], lambda x, t: u(x, t) - D / (h + x[:, 0]) * x[:, 0] * np.exp(-t))]
    p = dg.Problem(mesh, dg.PDE(diffusion=D, capacity=c, decay=k, velocity=v), conditions, dt=1.0 / steps)
    x = torch.tensor(P2.points(p))
    f = step_average(dg.FunctionSource(source), x, p.dt * torch.arange(steps), p.dt)
    states = rollout(degree2, p, u(x, 0.0)[None, :, None], f, steps)
    return float((states[0, -1, :, 0] - u(x[: mesh.n_nodes], 1.0)).abs().max())


def test_second_order_in_time_and_nothing_else() -> None:
    """The ambient divided by a coefficient that varies is no polynomial: a little remains, far below the step's error."""
    steps = [8, 16, 32]
    assert 1.9 < slope([1 / s for s in steps], [manufactured(s) for s in steps]) < 2.1


@pytest.mark.parametrize("dim", [2, 3])
def test_quadratics_are_exact(dim: int) -> None:
    """u = x^2 - x y + (2 D + 1) t with Dirichlet, Neumann and Robin data: linear in time, so no error at all."""
    D, h, mesh = 0.4, 2.0, box((3,) * dim, perturb=0.2)

    def u(x: Tensor, t: float) -> Tensor:
        return x[:, 0] ** 2 - x[:, 0] * x[:, 1] + (2 * D + 1) * t

    conditions = [dg.Dirichlet("left", u), dg.Neumann("right", lambda x, t: D * (2 * x[:, 0] - x[:, 1])),
                  dg.Robin("top", h, lambda x, t: u(x, t) - D / h * x[:, 0]), dg.Neumann("bottom", lambda x, t: D * x[:, 0])]
    p = dg.Problem(mesh, dg.PDE(diffusion=D), conditions, dt=0.1)
    x = torch.tensor(mesh.points)
    source = torch.ones(1, 5, mesh.n_nodes, 1, dtype=torch.float64)
    states = rollout(PLAIN, p, u(x, 0.0)[None, :, None], source, 5)  # from nodal values: the fit meets quadratics exactly
    assert float((states[0, -1, :, 0] - u(x, 0.5)).abs().max()) < 1e-10
    assert torch.equal(rollout(Classical(start=0), p.quadratic, u(x, 0.0)[None, :, None], source, 5), states)  # it says so, too
    still = dg.Problem(mesh, dg.PDE(diffusion=D), [dg.Dirichlet("boundary", lambda x, t: u(x, 0.0))], dt=0.1).quadratic
    every = torch.tensor(P2.points(p))
    rest = dg.steady(still, torch.full((1, len(every), 1), -2 * D, dtype=torch.float64))
    assert float((rest[0, :, 0] - u(every, 0.0)).abs().max()) < 1e-12


# ---------------------------------------------------------------------- what is kept


RING = [dg.Periodic("left", "right"), dg.Periodic("bottom", "top")]


@pytest.mark.parametrize("dim", [2, 3])
def test_constants_totals_and_energy(dim: int) -> None:
    g = torch.Generator().manual_seed(0)
    mesh = box((4, 3) if dim == 2 else (3, 2, 2))
    v = torch.randn(mesh.n_nodes, dim, dtype=torch.float64, generator=g)
    still = dg.Problem(mesh, dg.PDE(("a", "b"), diffusion={"a": 0.1, "b": 0.3}, capacity=2.0), RING, dt=0.05)
    moving = dg.Problem(mesh, dg.PDE(velocity=v), [], dt=0.5, advection_form="skew")
    flat = torch.full((2, mesh.n_nodes, 2), 298.15, dtype=torch.float64)
    assert torch.equal(rollout(P2, still, flat, steps=5)[:, -1], flat)
    u = P2.prepare(still).lift(torch.randn(2, mesh.n_nodes, 2, dtype=torch.float64, generator=g))
    q = still.quadratic
    total, energy = [], []
    solver = dg.GreenSolver(q)
    u = q.expand(q.restrict(u))
    for _ in range(6):
        r = q.restrict(u)
        Mu = torch.stack([q.mass @ r[b, :, f] for b in range(2) for f in range(2)]).reshape(2, 2, -1)
        total.append(Mu.sum(-1))
        energy.append((Mu * r.mT).sum(-1))
        u = solver.step(u)
    assert all(torch.allclose(t, total[0], rtol=1e-12, atol=1e-12) for t in total)
    assert all(bool((b <= a).all()) for a, b in pairwise(energy))
    assert torch.equal(u, q.expand(q.restrict(u)))  # partners stay one
    # skew advection by any flow: nothing but what the boundary lets through
    w, step = moving.quadratic, dg.GreenSolver(moving.quadratic, "lu")
    u = torch.randn(1, w.n_nodes, 1, dtype=torch.float64, generator=g)
    new = step.step(u)
    mean = 0.5 * (u + new)[0, :, 0]
    change = float(new[0, :, 0] @ (w.mass @ new[0, :, 0])) - float(u[0, :, 0] @ (w.mass @ u[0, :, 0]))
    advection = w.advection()
    assert advection is not None
    assert change == pytest.approx(-2 * w.dt * float(mean @ (advection @ mean)), abs=1e-10)


# ---------------------------------------------------------------------- the contract


def test_a_recorded_step_is_the_step() -> None:
    g = torch.Generator().manual_seed(0)
    mesh = box((4, 4), perturb=0.2)
    u, f = (torch.randn(2, *s, mesh.n_nodes, 1, dtype=torch.float64, generator=g) for s in ((), (12,)))
    rows = torch.randn(1, 13, mesh.n_nodes, 2, dtype=torch.float64, generator=g)
    for velocity in (None, given_velocity(rows, 0.01)):
        p = dg.Problem(mesh, dg.PDE(diffusion=0.1, velocity=velocity), [dg.Robin("left", 1.0, 0.3)], dt=0.01)
        with torch.no_grad():
            plain = rollout(Classical(backend="iterative", degree=2), p, u, f, capture=False)
            recorded = rollout(Classical(backend="iterative", degree=2), p, u, f, capture="always")
        assert torch.allclose(plain, recorded, rtol=1e-9, atol=1e-10)


def test_gradients_are_exact() -> None:
    g = torch.Generator().manual_seed(0)
    mesh = box((2, 1), perturb=0.1)
    u0 = torch.randn(1, mesh.n_nodes, 1, dtype=torch.float64, generator=g, requires_grad=True)
    f = torch.randn(1, 2, mesh.n_nodes, 1, dtype=torch.float64, generator=g, requires_grad=True)
    D = torch.rand(mesh.n_cells, dtype=torch.float64, generator=g).requires_grad_()
    v = torch.randn(mesh.n_nodes, 2, dtype=torch.float64, generator=g, requires_grad=True)

    def end(u0: Tensor, f: Tensor, D: Tensor, v: Tensor) -> Tensor:
        pde = dg.PDE(diffusion=0.1 + D, velocity=v, reaction=lambda u: u - u**3)
        p = dg.Problem(mesh, pde, [dg.Dirichlet("left", 1.0), dg.Robin("right", 2.0, 0.5)], dt=0.1)
        return rollout(Classical(backend="lu", degree=2), p, u0, f)[:, -1]

    assert torch.autograd.gradcheck(end, (u0, f, D, v), atol=1e-7, fast_mode=True)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="no lumped mass"):
        Classical(0.0, degree=2)
    with pytest.raises(InputError, match="got degree 3"):
        Classical(degree=3)
    p = dg.Problem(box((2, 2)), dg.PDE(diffusion=0.1, velocity=[1.0, 0.0]), [], dt=0.1, advection_form="upwind")
    u = torch.zeros(1, 9, 1, dtype=torch.float64)
    with pytest.raises(InputError, match="no upwind advection"):
        rollout(P2, p, u, steps=1)
    q = dg.Problem(box((2, 2)), dg.PDE(diffusion=0.1), [], dt=0.1).quadratic
    with pytest.raises(InputError, match="dgnet has linear elements"):
        rollout(dg.DGNet(dg.DGNetConfig(), q), q, torch.zeros(1, q.n_nodes, 1), steps=1)
    with pytest.raises(InputError, match=r"must end in .9 nodes, 1 fields"):
        rollout(P2, p.recast(1.0, "skew"), u[:, :8], steps=1)


def test_single_precision_follows_double() -> None:
    mesh = box((6, 6), perturb=0.2)
    x = torch.tensor(mesh.points)
    u = (300 + torch.sin(3 * x[:, 0]) * x[:, 1])[None, :, None]
    for D in (0.01, 100.0):  # the second is too stiff for single precision
        p, q = (dg.Problem(mesh, dg.PDE(diffusion=D), [dg.Robin("left", 1.0, 290.0)], dt=0.1, dtype=t)
                for t in (torch.float64, torch.float32))
        a, b = rollout(P2, p, u, steps=20), rollout(P2, q, u.float(), steps=20)
        assert b.dtype == torch.float32 and float((a - b).abs().max()) < 2e-4


# ---------------------------------------------------------------------- beside linear elements


def test_far_below_linear_elements_on_a_moving_spot() -> None:
    """A spot of one and a half spacings on its way; the truth is the reference solver's on a finer mesh with finer steps."""
    mesh, pde, dt, steps = box((10, 10), perturb=0.2), dg.PDE(diffusion=0.02), 0.05, 10
    exchange = [dg.Robin("boundary", 0.1, 0.0)]

    def spot(x: Tensor, t: Tensor) -> Tensor:
        where = torch.stack([0.3 + 0.4 * t, 0.5 + 0 * t], -1).to(x)
        return torch.exp(-((x - where[:, None]) ** 2).sum(-1) / (2 * 0.15**2))[None, :, :, None]

    start = torch.zeros(1, mesh.n_nodes, 1, dtype=torch.float64)
    truth = solve(mesh, pde, exchange, start, dt=dt, steps=steps, refine=1, substeps=4, degree=2, source=spot)
    p = dg.Problem(mesh, pde, exchange, dt=dt)

    def error(model: Model, evaluated: bool = True) -> float:
        x = torch.tensor(model.points(p) if evaluated else mesh.points)
        f = step_average(spot, x, dt * torch.arange(steps, dtype=torch.float64), dt)
        return float((rollout(model, p, start, f) - truth).norm() / truth.norm())

    linear, quadratic, fitted, finer = error(Classical()), error(P2), error(P2, evaluated=False), error(Refined(Classical()))
    assert quadratic < 0.1 * linear
    assert quadratic < fitted < 0.4 * linear
    assert 0.15 * linear < finer < 0.45 * linear  # second order: a quarter, roughly


def test_fitted_middles() -> None:
    """Third order where the field is smooth, never far beyond the data, and linear where nothing else is known."""
    h, found = [], []
    for n in (8, 16, 32):
        mesh = box((n, n), perturb=0.2)
        x = np.concatenate([mesh.points, mesh.points[mesh.edges].mean(1)])
        u = torch.tensor(np.sin(3 * x[:, 0] + 2 * x[:, 1]))[:, None]
        h.append(1 / n)
        found.append(float((Lift(mesh)(u[: mesh.n_nodes]) - u).norm() / len(u) ** 0.5))
    assert slope(h, found) > 2.7
    assert float(Lift(mesh).weight.abs().sum(1).max()) < 3
    two = Lift(box((1, 1)))
    assert torch.equal(two(torch.tensor([[0.0], [1.0], [2.0], [4.0]]))[4:, 0].sort()[0], torch.tensor([0.5, 1.0, 2.0, 2.5, 3.0]))


@pytest.mark.parametrize("degree", [1, 2])
def test_a_skew_flow_is_assembled_on_the_device_alone(degree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step cannot wait for the host: after the first step nothing is copied from NumPy any more."""
    mesh = box((3, 3))
    rows = torch.randn(1, 4, mesh.n_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p = dg.Problem(mesh, dg.PDE(diffusion=0.1, velocity=given_velocity(rows, 0.1)), [dg.Robin("left", 1.0, 0.3)], dt=0.1,
                   advection_form="skew")
    p = p.quadratic if degree == 2 else p
    before = p.stiffness(0.05)

    def copied(*arguments: object, **more: object) -> Tensor:
        raise AssertionError("a copy from the host")

    monkeypatch.setattr(torch, "tensor", copied)
    after = p.stiffness(0.05)
    p.moving_sums(0.15)
    assert torch.equal(before.values, after.values)
