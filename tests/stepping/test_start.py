"""L-stable steps after a start and after jumps: no ringing, and every way to make them gives the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.models import Refined
from dgnet.problems import Condition, TimeTable
from dgnet.stepping.galerkin import poles
from tests.stepping.test_precision import available

Tensor = torch.Tensor
F64 = torch.float64


# ---------------------------------------------------------------------- the scheme itself


@pytest.mark.parametrize("degree", [1, 2])
def test_the_poles_are_those_of_pade(degree: int) -> None:
    """1 + z times what the poles make of a right-hand side is Pade's (degree, degree + 1) approximation of exp(z)."""
    z = -np.logspace(-3, 4, 30)
    found = np.ones_like(z)
    for pole in poles(degree):
        share = pole.gather[0] * sum(pole.spread) / (pole.shift - z)
        found += z * (share.real if pole.real else 2 * share.real)
    exact = {1: (1 + z / 3) / (1 - 2 * z / 3 + z**2 / 6),
             2: (1 + 2 * z / 5 + z**2 / 20) / (1 - 3 * z / 5 + 3 * z**2 / 20 - z**3 / 60)}[degree]
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- no ringing


def wall_series(x: np.ndarray, time: float) -> np.ndarray:
    """A wall from 0 to 1 that starts at 0, is held at 1 at x = 0 and is insulated at x = 1."""
    k = (np.arange(4000) + 0.5) * np.pi
    return 1 - 2 * (np.sin(np.outer(x, k)) / k * np.exp(-k**2 * time)).sum(1)


@pytest.mark.parametrize("degree", [1, 2])
def test_a_held_face_does_not_ring(degree: int) -> None:
    """At a cell Fourier number of 5, Crank-Nicolson alone is off by 0.25 and 0.09 in the first two steps."""
    cells = 20
    dt = 5.0 / cells**2
    wall = dg.Problem(dg.box((cells, 1), upper=(1.0, 1 / cells)), dg.PDE(diffusion=1.0), [dg.Dirichlet("left", 1.0)], dt)
    off = {}
    for start in (0, 2):
        zero = torch.zeros(1, wall.mesh.n_nodes, 1, dtype=F64)
        states = dg.rollout(dg.Classical(start=start, degree=degree), wall, zero, steps=2)
        off[start] = [float(np.abs(states[0, k, :, 0].numpy() - wall_series(wall.mesh.points[:, 0], k * dt)).max()) for k in (1, 2)]
    assert off[2][0] < 0.06 and off[2][1] < 0.01 and off[0][0] > 0.2 and off[0][1] > 0.05


JUMPS: dict[str, Callable[[float], dg.TimeTable | Callable[[Tensor, float], Tensor]]] = {
    "a table": lambda t: TimeTable([0.0, t, t, 1e3], [0.0, 0.0, 1.0, 1.0]),
    "a function": lambda t: lambda x, s: torch.full_like(x[:, 0], float(s >= t)),
    "a ramp": lambda t: TimeTable([0.0, t, 1.001 * t], [0.0, 0.0, 1.0])}


@pytest.mark.parametrize("where", [6.0, 6.4])
@pytest.mark.parametrize("kind", JUMPS)
@pytest.mark.parametrize("degree", [1, 2])
def test_a_jump_of_the_surroundings_or_of_a_held_value_does_not_overshoot(degree: int, kind: str, where: float) -> None:
    dt = 100.0 / 16**2
    value = JUMPS[kind](where * dt)
    for condition in (dg.Robin("left", 1e3, value), dg.Dirichlet("left", value)):
        wall = dg.Problem(dg.box((16, 2), upper=(1.0, 0.125)), dg.PDE(diffusion=1.0), [condition], dt)
        states = dg.rollout(dg.Classical(degree=degree), wall, torch.zeros(1, wall.mesh.n_nodes, 1, dtype=F64), steps=16)
        assert -0.01 < float(states.min()) and float(states.max()) < 1.01
        plain = dg.rollout(dg.Classical(degree=degree, start=0), wall, torch.zeros(1, wall.mesh.n_nodes, 1, dtype=F64), steps=16)
        assert float(plain.max()) > 1.015 or where == 6.4


def test_what_is_smooth_does_not_count_as_a_jump() -> None:
    table = TimeTable([0.0, 2.05, 9.0], [0.0, 1.0, -3.0])
    smooth = [lambda x, t: torch.sin(7 * t + x[:, 0]), lambda x, t: 300 + t + 0 * x[:, 0], table]
    for value in smooth:
        p = dg.Problem(dg.box((3, 3)), dg.PDE(diffusion=1.0), [dg.Robin("left", 1.0, value), dg.Dirichlet("right", value)], 0.1)
        assert not any(p.jumps(0.1 * k) for k in range(1, 60))
    pulse = dg.Problem(dg.box((3, 3)), dg.PDE(diffusion=1.0), [dg.Neumann("left", TimeTable([0, 1.02, 1.02, 1.03, 1.03],
                                                                                           [0.0, 0.0, 1.0, 1.0, 0.0]))], 0.1)
    assert [k for k in range(1, 60) if pulse.jumps(0.1 * k)] == [10, 11]


# ---------------------------------------------------------------------- every way gives the same


MESH = dg.box((5, 4), perturb=0.2)
STEP = TimeTable([0.0, 0.23, 0.23, 9.0], [0.0, 0.0, 2.0, 2.0])
CASES: dict[str, tuple[dg.PDE, list[Condition]]] = {
    "closed": (dg.PDE(diffusion=0.3), []),
    "walls that move": (dg.PDE(diffusion=0.3), [dg.Dirichlet("left", lambda x, t: t + x[:, 1]), dg.Dirichlet("right", STEP)]),
    "exchange": (dg.PDE(diffusion=0.3, capacity=2.0), [dg.Robin("left", lambda x, t: 1 + t + 0 * x[:, 0], 2.0),
                                                       dg.Neumann("top", STEP)]),
    "reaction": (dg.PDE(diffusion=0.3, reaction=lambda u: u - u**3), [dg.Dirichlet("left", STEP)]),
    "flow": (dg.PDE(diffusion=0.3, velocity=[0.8, 0.3], decay=0.4), [dg.Robin("right", 1.0, STEP)]),
    "periodic fields": (dg.PDE(("a", "b"), diffusion={"a": 0.3, "b": 0.1}), [dg.Periodic("left", "right"),
                                                                             dg.Robin("top", 1.0, STEP, "b")]),
    "curve": (dg.PDE(diffusion=dg.Curve([-9.0, 9.0], [0.1, 0.5])), [dg.Dirichlet("left", STEP)])}


def problem_of(name: str, degree: int = 1) -> tuple[dg.Problem, dg.Classical, Tensor, Tensor]:
    """A problem with a jump in its third step, a model, and random start and sources at the model's points."""
    pde, conditions = CASES[name]
    p, model = dg.Problem(MESH, pde, conditions, 0.1), dg.Classical(degree=degree, tolerance=1e-13)
    gen, points = torch.Generator().manual_seed(0), len(model.points(p))
    u0, f = (torch.rand(2, *shape, points, p.n_fields, dtype=F64, generator=gen) for shape in ((), (8,)))
    work = p.quadratic if degree == 2 else p
    return p, model, work.expand(work.restrict(u0)), f


WAYS = [(name, degree) for name in CASES for degree in (1, 2) if not (name == "curve" and degree == 2)]


@pytest.mark.parametrize("name, degree", WAYS)
def test_pauses_recordings_and_repetitions_change_nothing(name: str, degree: int) -> None:
    p, model, u0, f = problem_of(name, degree)
    with torch.no_grad():
        whole = dg.rollout(model, p, u0, f)
        assert torch.equal(whole, dg.rollout(model, p, u0, f))
        torch.testing.assert_close(dg.rollout(model, p, u0, f, capture="always"), whole, rtol=0, atol=1e-11)
        for cut in (1, 2, 3):
            first, pause = dg.rollout(model, p, u0, f[:, :cut], pause=True)
            both = torch.cat([first, dg.rollout(model, p, pause, f[:, cut:])[:, 1:]], 1)
            torch.testing.assert_close(both, whole, rtol=0, atol=1e-11)
    x, s = u0.clone().requires_grad_(), f.clone().requires_grad_()
    grads = []
    for checkpoint in (False, True):
        states = dg.rollout(model, p, x, s, checkpoint=checkpoint)
        torch.testing.assert_close(states.detach(), whole, rtol=0, atol=1e-10)
        grads.append(torch.autograd.grad((states * torch.cos(states)).sum(), [x, s]))
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["walls that move", "exchange", "reaction", "flow", "periodic fields"])
def test_gradients_are_exact(name: str) -> None:
    p, model, u0, f = problem_of(name)
    pde = p.pde

    def run(scale: Tensor, u: Tensor, source: Tensor) -> Tensor:
        value = {k: 0.3 * scale for k in pde.fields} if len(pde.fields) > 1 else 0.3 * scale
        own = replace(p, pde=replace(pde, diffusion=value))
        return dg.rollout(replace(model, backend="lu"), own, u, source)[:, -1].square().sum(-1)[:, ::7]

    inputs = torch.tensor(1.2, dtype=F64), u0[:1], f[:1, :4]
    assert torch.autograd.gradcheck(run, [x.clone().requires_grad_() for x in inputs], atol=1e-7)


@pytest.mark.parametrize("backend", ["lu", "cholesky", "cg", "iterative", "dense"])
@pytest.mark.parametrize("degree", [1, 2])
def test_backends_agree(backend: str, degree: int) -> None:
    p, model, u0, f = problem_of("exchange", degree)
    p = replace(p, conditions=[dg.Robin("left", 1.0, 2.0), dg.Dirichlet("top", STEP)])
    wanted = dg.rollout(replace(model, backend="lu"), p, u0, f)
    torch.testing.assert_close(dg.rollout(replace(model, backend=available(backend)), p, u0, f), wanted, rtol=0, atol=1e-10)


def test_learned_models_and_refined_meshes_have_the_same_start() -> None:
    p, _, u0, f = problem_of("walls that move")
    model = dg.DGNet(dg.DGNetConfig(hidden=6, layers=1), p).double()
    with torch.no_grad():
        torch.testing.assert_close(dg.rollout(model, p, u0, f), dg.rollout(dg.Classical(1.0), p, u0, f), rtol=0, atol=1e-10)
        assert dg.Universal().stable_steps(p) == 0 and dg.Universal(degree=2).stable_steps(p) == 2  # as they were trained
        finer = Refined(dg.Classical())
        assert finer.first_steps == 2 and finer.stable_steps(p) == 2
        assert float((dg.rollout(finer, p, u0, f) - dg.rollout(Refined(dg.Classical(start=0)), p, u0, f)).abs().max()) > 1e-4


@pytest.mark.parametrize("flow", [None, [3.0, 1.0]])
def test_a_start_from_real_solves_is_that_of_a_complex_factorisation(flow: list[float] | None,
                                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    def found(small: int) -> tuple[torch.Tensor, torch.Tensor]:
        monkeypatch.setattr("dgnet.stepping.solver._SMALL", small)
        D = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        rules = [dg.Dirichlet("left", 1.0), dg.Robin("right", 2.0, 0.3)]
        p = dg.Problem(dg.box((6, 5), perturb=0.2), dg.PDE(diffusion=D, velocity=flow), rules, dt=0.3)
        u = dg.rollout(dg.Classical(1.0, backend="lu"), p, torch.zeros(1, p.mesh.n_nodes, 1, dtype=torch.float64), steps=4)
        u.square().sum().backward()
        assert D.grad is not None
        return u.detach(), D.grad

    for ours, usual in zip(found(0), found(10**9)):
        assert torch.allclose(ours, usual, rtol=1e-10, atol=1e-11)
