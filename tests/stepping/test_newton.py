"""Newton's method for curves where its plain iteration fails: linear solves whose bounds do not hold, and fronts in long steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.stepping import Bounds, EnthalpySolver
from tests.independent.draw import curved

Tensor = torch.Tensor


@pytest.mark.parametrize("seed", [3, 13, 17, 22, 41, 44, 46])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_linear_solve_whose_bounds_do_not_hold_is_as_good_as_asked(seed: int, transposed: bool) -> None:
    """Regions, exchange, flows and coupled masses make the matrix other than the bounds take it for."""
    drawn = curved(seed)
    p = drawn.problem.recast(drawn.model.consistent or 0.0, drawn.problem.advection_form)
    solver = EnthalpySolver(p)
    system, rng = solver._system(0.0, 0.5, p.dt), np.random.default_rng(seed)
    low, high = min(c.low for c in solver.curves), max(c.high for c in solver.curves)
    at = system.at(torch.from_numpy(rng.uniform(low, high, (p.n, 1, p.n_fields))))
    right = system.masked(torch.from_numpy(rng.normal(size=at.u.shape)))
    z = system.solve(at, right, 1e-8, transposed=transposed)
    for f in range(p.n_fields):
        free = torch.ones(p.n) if system.free is None else system.free.expand_as(right)[:, 0, f]
        A = system.wide.collapsed((at.slope / at.D).numpy()[:, :, 0, f]).toarray() * np.outer(free, free) + np.eye(p.n)
        x = np.linalg.solve(A.T if transposed else A, right[:, 0, f].numpy())
        assert np.linalg.norm(z[:, 0, f].numpy() - x) < 1e-5 * np.linalg.norm(x)


def test_bounds_without_end_promise_nothing() -> None:
    assert Bounds(1.0, 2.0, float("inf")).iterations(1e-3) == Bounds(0.0, 2.0).iterations(1e-3) >= 10**9


def ice(cells: int, dt: float, width: float | None = None, conditions: tuple[dg.Dirichlet, ...] = ()) -> dg.Problem:
    """Melting at 0.45, sharp or wide, with a conductivity that halves."""
    k = dg.Curve([-1.0, 0.4, 0.5, 2.0], [0.1, 0.1, 0.05, 0.05], extends=True)
    c = dg.Curve([-1.0, 2.0], [1.0, 1.0], extends=True).melting(2.0, 0.45, None if width is None else 0.45 + width)
    return dg.Problem(dg.box((cells, cells), perturb=0.2), dg.PDE(diffusion=k, capacity=c), conditions, dt=dt)


def content(p: dg.Problem, u: Tensor) -> Tensor:
    """The enthalpy in a body [B] of states [B, N, 1]."""
    volumes = torch.zeros(p.mesh.n_nodes, dtype=torch.float64)
    volumes.index_add_(0, torch.tensor(p.mesh.cells).ravel(), torch.tensor(p.mesh.volumes / 3).repeat_interleave(3))
    return (volumes * p.pde.capacity.integral(u[..., 0])).sum(-1)  # type: ignore[union-attr]


@pytest.mark.parametrize("dt", [3.0, 30.0])
def test_a_sharp_front_may_cross_many_cells_in_a_step(dt: float) -> None:
    """Backward Euler with insulated sides: what the body holds stays, and every state lies between the values of the start."""
    p = ice(40, dt)
    warm = torch.tensor(p.mesh.points[:, 0] < 0.6)
    u0 = torch.where(warm, 1.0, 0.0)[None, :, None].double()
    with torch.no_grad():
        states = dg.rollout(dg.Classical(theta=1.0), p, u0, steps=5)[0]
    held = content(p, states)
    assert ((held - held[0]).abs() / held[0]).max() < 1e-12
    assert states.min() > -1e-9 and states.max() < 1 + 1e-9


def test_a_trajectory_does_not_depend_on_its_companions() -> None:
    """Of three columns one needs shorter ways than the others."""
    p = ice(20, 1.0, conditions=(dg.Dirichlet("left", 1.0),))
    gen = torch.Generator().manual_seed(0)
    u0 = torch.stack([torch.zeros(p.mesh.n_nodes), torch.rand(p.mesh.n_nodes, generator=gen), torch.ones(p.mesh.n_nodes)])
    u0 = u0[..., None].double()
    with torch.no_grad():
        together = dg.rollout(dg.Classical(), p, u0, steps=6)
        alone = torch.cat([dg.rollout(dg.Classical(), p, u0[b:b + 1], steps=6) for b in range(3)])
    assert (together - alone).abs().max() < 1e-9


@pytest.mark.parametrize("seed", [8, 11, 13, 24])
def test_the_way_ahead_begins_where_it_stands_and_as_newton_says(seed: int) -> None:
    """u(0) is the state, and du/dshare there is what the change of the enthalpy makes of it."""
    drawn = curved(seed)
    p = drawn.problem.recast(drawn.model.consistent or 0.0, drawn.problem.advection_form)
    solver = EnthalpySolver(p)
    system, rng = solver._system(0.0, 0.5, p.dt), np.random.default_rng(seed)
    low, high = min(c.low for c in solver.curves), max(c.high for c in solver.curves)
    u = torch.from_numpy(rng.uniform(low - 0.2 * (high - low), high + 0.2 * (high - low), (p.n, 2, p.n_fields)))
    at = system.at(u)
    z = at.D * torch.from_numpy(rng.normal(size=u.shape)) * (high - low)
    ahead = system.ahead(at, z)
    assert (ahead(torch.zeros(1, 1)) - u).abs().max() < 1e-9 * (high - low)
    slope = (ahead(torch.full((1, 1), 1e-8)) - u) / 1e-8
    assert ((slope - z / at.D).abs() / (z / at.D).abs().max()).median() < 1e-5  # but for the few that meet a bend


def test_gradients_where_the_plain_iteration_fails() -> None:
    """A front in a long step with regions, exchange and a flow: the derivative along a line is that of differences."""
    mesh = dg.box((6, 6), perturb=0.2)
    left = mesh.centroids[:, 0] < 0.5
    mesh = replace(mesh, regions={"left": np.flatnonzero(left)})
    gen = torch.Generator().manual_seed(0)
    u0, along = (torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=gen) for _ in range(2))

    def end(x: Tensor, heat: Tensor) -> Tensor:
        c = dg.Curve([-1.0, 2.0], [1.0, 1.5], extends=True).melting(heat, 0.3, 0.6)
        k = dg.Curve([-1.0, 0.4, 0.5, 2.0], [0.01, 0.01, 1.0, 1.0], extends=True)
        pde = dg.PDE(diffusion=dg.ByRegion({"left": k, "elsewhere": 0.2}), capacity=dg.ByRegion({"left": c, "elsewhere": 1.5}),
                     velocity=[0.2, 0.05])
        p = dg.Problem(mesh, pde, [dg.Robin("left", 2.0, 1.0), dg.Dirichlet("bottom", 0.8)], dt=1.0)
        return dg.rollout(dg.Classical(tolerance=1e-13), p, u0 + x * along, steps=2)[:, -1].square().sum()

    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    heat = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    found = torch.autograd.grad(end(x, heat), (x, heat))
    with torch.no_grad():
        for k, got in enumerate(found):
            step = 1e-6
            moved = [end(x + s * step * (k == 0), heat + s * step * (k == 1)) for s in (1, -1)]
            assert float(got) == pytest.approx(float((moved[0] - moved[1]) / (2 * step)), rel=1e-5)
