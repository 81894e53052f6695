"""Every scheme states its order; here it is fitted, on manufactured solutions, in float64."""

from itertools import pairwise
from math import exp, pi

import numpy as np
import pytest
import torch

from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, Dirichlet, Neumann, Periodic, Problem, Robin, step_average
from dgnet.stepping import GreenSolver

Tensor = torch.Tensor


def order(sizes, errors) -> float:
    return -np.polyfit(np.log(sizes), np.log(errors), 1)[0]


def relative(u: Tensor, exact: Tensor, mesh: Mesh) -> float:
    w = torch.from_numpy(mesh.dual_volumes())[:, None]
    return float(((w * (u - exact) ** 2).sum() / (w * exact**2).sum()).sqrt())


class Manufactured:
    """u = exp(-t) s(x) with s = prod(sin(a_i x_i + 0.3 i)) + 0.2 x_0; its derivatives by autograd."""

    def __init__(self, dim: int) -> None:
        self.a = torch.tensor([2.1, 1.7, 1.3][:dim], dtype=torch.float64)
        self.shift = 0.3 * torch.arange(dim, dtype=torch.float64)

    def space(self, x: Tensor) -> Tensor:
        return torch.sin(self.a * x + self.shift).prod(-1) + 0.2 * x[..., 0]

    def grad(self, x: Tensor) -> Tensor:
        x = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(self.space(x).sum(), x, create_graph=True)
        return g

    def u(self, x: Tensor, t: float) -> Tensor:
        return exp(-t) * self.space(x)


def run(mesh: Mesh, steps: int, T: float, *, conditions, D=lambda x: torch.ones(len(x), dtype=torch.float64), v=None, decay=0.0,
        consistent=1.0, form="galerkin") -> float:
    """Solve du/dt = div(D grad u) - v grad u - k u + f for the manufactured u; return the relative error at T."""
    sol = Manufactured(mesh.dim)
    x = torch.from_numpy(np.array(mesh.points))
    dt = T / steps

    def residual(t: float) -> Tensor:  # f = u_t - div(D grad u) + v . grad u + k u
        y = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(sol.space(y).sum(), y, create_graph=True)
        flux = D(y)[:, None] * g
        div = sum(torch.autograd.grad(flux[:, i].sum(), y, retain_graph=True)[0][:, i] for i in range(mesh.dim))
        s = sol.space(x)
        out = -s - div.detach() + decay * s
        if v is not None:
            out = out + (torch.tensor(v, dtype=torch.float64) * g).sum(-1).detach()
        return exp(-t) * out

    f = torch.stack([residual(k * dt) * (1 - exp(-dt)) / dt for k in range(steps)])[None, :, :, None]  # exact step averages
    cell_D = D(torch.from_numpy(mesh.centroids)).numpy()
    p = Problem(mesh, PDE(diffusion=cell_D, velocity=v, decay=decay), conditions(sol, D), dt, consistent=consistent,
                       advection_form=form)
    u = rollout(Classical(consistent=consistent, backend="lu"), p, sol.u(x, 0.0)[None, :, None], f)
    return relative(u[0, -1], sol.u(x, T)[:, None], mesh)


def dirichlet(sol, D):
    return [Dirichlet("boundary", lambda x, t: sol.u(x, t))]


def side_flux(sol, D, axis: int, sign: float):
    return lambda x, t: exp(-t) * D(x) * sign * sol.grad(x)[:, axis].detach()


def neumann(sol, D):
    return [Dirichlet("left", lambda x, t: sol.u(x, t)), Dirichlet("bottom", lambda x, t: sol.u(x, t)),
            Neumann("right", side_flux(sol, D, 0, 1.0)), Neumann("top", side_flux(sol, D, 1, 1.0)),
            Neumann("back", side_flux(sol, D, 2, -1.0)), Neumann("front", side_flux(sol, D, 2, 1.0))]


def robin(sol, D):
    h = 1.5
    right = side_flux(sol, D, 0, 1.0)
    return [*(c for c in neumann(sol, D) if c.boundary != "right"),
            Robin("right", h, lambda x, t: sol.u(x, t) + right(x, t) / h)]


def present(conditions, mesh):
    return lambda sol, D: [c for c in conditions(sol, D) if c.boundary in mesh.boundaries or c.boundary == "boundary"]


SIZES = {2: (6, 10, 16), 3: (6, 9, 12)}


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("conditions", [dirichlet, robin])  # with fluxes on the other sides
def test_second_order_in_space_for_diffusion(dim, conditions):
    meshes = [box((n,) * dim, perturb=0.2, seed=n) for n in SIZES[dim]]
    errors = [run(m, 10, 0.2, conditions=present(conditions, m)) for m in meshes]
    assert order(SIZES[dim], errors) > 1.75


@pytest.mark.parametrize("form, least", [("galerkin", 1.75), ("skew", 1.75), ("upwind", 0.7)])
def test_order_in_space_for_advection_diffusion(form, least):
    sizes = (8, 14, 24)
    errors = [run(box((n, n), perturb=0.2, seed=n), 40, 0.2, conditions=dirichlet, v=[1.0, 0.6], D=lambda x: 0.05 + 0 * x[:, 0],
                  form=form) for n in sizes]
    assert order(sizes, errors) > least


@pytest.mark.parametrize("consistent", [0.0, 1.0])
def test_second_order_for_variable_coefficients_and_decay(consistent):
    sizes = (6, 10, 16)
    errors = [run(box((n, n), perturb=0.2, seed=n), 20, 0.2, conditions=dirichlet, decay=0.7, consistent=consistent,
                  D=lambda x: 1 + 0.5 * torch.sin(2 * x[:, 0]) * x[:, 1]) for n in sizes]
    assert order(sizes, errors) > 1.75


@pytest.mark.parametrize("dim", [2, 3])
def test_second_order_with_periodic_boundaries(dim):
    errors = []
    sides = [("left", "right"), ("bottom", "top"), ("back", "front")][:dim]
    T, D, v = 0.2, 0.1, torch.tensor([1.0, 0.5, 0.25][:dim], dtype=torch.float64)
    sizes = (8, 12, 20) if dim == 2 else (6, 9, 12)
    for n in sizes:
        mesh = box((n,) * dim, perturb=0.15, seed=n)
        x = torch.from_numpy(np.array(mesh.points))

        def wave(t, x=x):
            return exp(-4 * pi**2 * D * t) * torch.sin(2 * pi * (x - v * t)).sum(-1)[:, None]

        steps = 4 * n
        p = Problem(mesh, PDE(diffusion=D, velocity=v.tolist()), [Periodic(*s) for s in sides], T / steps)
        u = rollout(Classical(backend="lu"), p, wave(0.0)[None], steps=steps)[0, -1]
        errors.append(relative(u, wave(T), mesh))
    assert order(sizes, errors) > 1.75


# ---------------------------------------------------------------------- time


def final_states(problem_at, u0, T, counts, source=None, **model) -> list[Tensor]:
    out = []
    for steps in counts:
        p = problem_at(T / steps)
        x = torch.from_numpy(np.array(p.mesh.points))
        f = None
        if source is not None:
            f = step_average(source, x, torch.arange(steps, dtype=torch.float64) * p.dt, p.dt, panels=4)
        out.append(rollout(Classical(backend="lu", **model), p, u0(x), f, steps)[0, -1])
    return out


def self_order(states, counts) -> float:
    """Order from successive differences of a doubling sequence: |u_n - u_2n| falls by 2^order."""
    gaps = [float((a - b).norm()) for a, b in pairwise(states)]
    return float(np.polyfit(np.log([1 / c for c in counts[:-1]]), np.log(gaps), 1)[0])


COUNTS = (10, 20, 40, 80)
MESH = box((7, 7), perturb=0.2)


def smooth(x):
    return (torch.cos(pi * x[:, 0]) * torch.cos(pi * x[:, 1]))[None, :, None]


def test_second_order_in_time_with_moving_dirichlet_data():
    def at(dt):
        moving = Dirichlet("left", lambda x, t: torch.sin(5 * torch.as_tensor(t)) * x[:, 1])
        return Problem(MESH, PDE(diffusion=0.1), [moving], dt)
    states = final_states(at, lambda x: 0 * smooth(x), 1.0, COUNTS)
    assert self_order(states, COUNTS) > 1.85


def test_second_order_in_time_with_a_moving_source():
    def spot(x, t):
        centre = torch.stack([0.5 + 0.3 * torch.cos(4 * t), 0.5 + 0.3 * torch.sin(4 * t)], dim=-1)
        return torch.exp(-((x[None] - centre[:, None]) ** 2).sum(-1) / (2 * 0.15**2))[None, :, :, None]
    states = final_states(lambda dt: Problem(MESH, PDE(diffusion=0.05), [Robin("right", 1.0, 0.2)], dt),
                          lambda x: 0 * smooth(x), 1.0, COUNTS, source=spot)
    assert self_order(states, COUNTS) > 1.85


def test_second_order_in_time_with_a_nonlinear_reaction():
    def at(dt):
        pde = PDE(fields=("u", "v"), diffusion={"u": 0.02, "v": 0.1},
                  reaction=lambda s: torch.stack([s[..., 0] - s[..., 0] ** 3 - s[..., 1], 2 * (s[..., 0] - 0.5 * s[..., 1])], -1))
        return Problem(MESH, pde, [], dt)
    states = final_states(at, lambda x: torch.cat([smooth(x), 0.3 * smooth(x)], -1), 2.0, COUNTS)
    assert self_order(states, COUNTS) > 1.85


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("form", ["galerkin", "skew"])
def test_second_order_in_time_with_a_moving_velocity_and_per_trajectory_flow(form, start):
    def at(dt):
        def velocity(t):
            swirl = torch.stack([torch.from_numpy(MESH.points[:, 1] - 0.5), torch.from_numpy(0.5 - MESH.points[:, 0])], -1)
            return torch.stack([swirl * np.cos(3 * t), swirl * (1 + np.sin(2 * t))])
        return Problem(MESH, PDE(diffusion=0.02, velocity=velocity), [], dt, advection_form=form)
    both = final_states(at, lambda x: smooth(x).expand(2, -1, -1), 1.0, COUNTS, start=start)
    assert self_order(both, COUNTS) > (1.75 if start else 1.85)  # the first steps have hardly any share in the error


def test_second_order_in_time_with_a_velocity_of_place_and_time():
    """A standing swirl whose centre wanders: v(x, t) is not a product of a field and a factor."""
    def at(dt):
        x = torch.from_numpy(np.array(MESH.points))

        def velocity(t):
            centre = torch.tensor([0.5 + 0.2 * np.cos(4 * t), 0.5 + 0.2 * np.sin(3 * t)])
            away = x - centre
            return torch.stack([-away[:, 1], away[:, 0]], -1) * torch.exp(-8 * away.square().sum(-1, keepdim=True)) * 5
        return Problem(MESH, PDE(diffusion=0.02, velocity=velocity), [], dt, advection_form="skew")
    states = final_states(at, smooth, 1.0, COUNTS)
    assert self_order(states, COUNTS) > 1.85


def test_second_order_in_time_with_a_moving_exchange_and_flux():
    def at(dt):
        return Problem(MESH, PDE(diffusion=0.1), [
            Robin("right", lambda x, t: 2 + np.sin(5 * t) + 0 * x[:, 0], lambda x, t: x[:, 1] * np.cos(4 * t)),
            Neumann("left", lambda x, t: x[:, 1] * np.sin(6 * t))], dt)
    states = final_states(at, smooth, 1.0, COUNTS)
    assert self_order(states, COUNTS) > 1.85


@pytest.mark.parametrize("theta, expected", [(0.5, 2.0), (1.0, 1.0)])
def test_theta_scheme_has_its_order_in_time(theta, expected):
    def at(dt):
        return Problem(MESH, PDE(diffusion=0.1), [], dt)
    counts = (40, 80, 160)  # coarser steps still feel the stiff modes that the mesh mixes into the start
    assert self_order(final_states(at, smooth, 1.0, counts, theta=theta), counts) == pytest.approx(expected, abs=0.1)


def test_start_keeps_second_order_and_removes_ringing():
    def at(dt):
        return Problem(MESH, PDE(diffusion=0.1), [], dt)
    assert self_order(final_states(at, smooth, 1.0, COUNTS, start=2), COUNTS) > 1.75
    rough = torch.zeros(1, MESH.n_nodes, 1, dtype=torch.float64)
    rough[0, 30] = 1.0
    stiff = Problem(MESH, PDE(diffusion=10.0), [], 0.1)
    plain = rollout(Classical(start=0, backend="lu"), stiff, rough, steps=6)[0, -1]
    stable = rollout(Classical(backend="lu", start=2), stiff, rough, steps=6)[0, -1]
    assert float(plain.std()) > 20 * float(stable.std())


def test_the_solver_class_steps_single_states_too():
    p = Problem(MESH, PDE(diffusion=0.1), [], 0.1)
    solver = GreenSolver(p)
    u = smooth(torch.from_numpy(np.array(MESH.points)))
    torch.testing.assert_close(solver.step(u[0]), solver.step(u)[0])
