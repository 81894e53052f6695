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
from dgnet.scoring.balance import balance_of
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


# ---------------------------------------------------------------------- the scheme for all steps


def sine(x: Tensor, t: float) -> Tensor:
    return torch.sin(torch.tensor(2.0 * t)) + x[:, 1]


ORDERS: dict[str, tuple[dg.PDE, list[Condition]]] = {
    "closed": (dg.PDE(diffusion=0.3), []), "held": (dg.PDE(diffusion=0.1), [dg.Dirichlet("left", sine)]),
    "exchange": (dg.PDE(diffusion=0.1), [dg.Robin("left", 1.0, sine), dg.Neumann("top", sine)]),
    "flow": (dg.PDE(diffusion=0.1, velocity=[0.7, 0.3]), [dg.Dirichlet("left", sine)]),
    "reaction": (dg.PDE(diffusion=0.1, reaction=lambda u: 0.5 * (u - u**3)), [])}


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_orders_in_time(name: str, rough: bool) -> None:
    """2, 3 and 5 against short steps of order 5, with a source in time; a rough start with a reaction is left out: less."""
    if rough and name == "reaction":
        return
    pde, conditions = ORDERS[name]
    mesh = dg.box((4, 3), perturb=0.2)
    x = torch.tensor(mesh.points)
    start = (torch.arange(mesh.n_nodes, dtype=F64)[:, None] % 2 if rough else torch.cos(np.pi * x[:, :1]))[None]
    glow = dg.FunctionSource(lambda x, t: np.sin(2 * t) * x[:, 0])

    def end(scheme: str, steps: int) -> Tensor:
        model, p = dg.Classical(scheme=scheme, backend="lu"), dg.Problem(mesh, pde, conditions, 1.0 / steps)
        f = dg.step_moments(glow, x, torch.arange(steps, dtype=F64) / steps, 1.0 / steps, model.moments)
        return dg.rollout(model, p, start, f)[0, -1]

    true = end("dg2", 192)
    for scheme, order, counts in (("crank-nicolson", 2, (32, 64)), ("dg1", 3, (32, 64)), ("dg2", 5, (16, 32))):
        one, other = (float((end(scheme, steps) - true).norm()) for steps in counts)
        room = 1.0 if name == "reaction" else 0.8  # Picard's iteration is not at its limit yet
        assert order - room < np.log2(one / other) < order + 1.3 or other < 1e-10, (scheme, one, other)


@pytest.mark.parametrize("scheme", ["dg1", "dg2"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "curve"])
def test_all_steps_of_a_scheme_pause_repeat_and_have_gradients(name: str, scheme: str) -> None:
    p, model, u0, f = problem_of(name)
    model = replace(model, scheme=scheme, backend="lu")
    f = torch.stack([f, *(0.1 * f.flip(1) for _ in range(model.moments - 1))], 2)
    with torch.no_grad():
        whole = dg.rollout(model, p, u0, f)
        assert torch.isfinite(whole).all() and torch.equal(whole, dg.rollout(model, p, u0, f, capture="always"))
        first, pause = dg.rollout(model, p, u0, f[:, :3], pause=True)
        assert torch.equal(torch.cat([first, dg.rollout(model, p, pause, f[:, 3:])[:, 1:]], 1), whole)
    x, s = u0[:1].clone().requires_grad_(), f[:1, :2].clone().requires_grad_()
    assert torch.equal(dg.rollout(model, p, x, s, checkpoint=True).detach(), dg.rollout(model, p, x, s).detach())
    assert torch.autograd.gradcheck(lambda u, f: dg.rollout(model, p, u, f)[:, -1].square().sum(-1)[:, ::9], [x, s], atol=1e-7)


def test_moments_are_refused_where_a_model_takes_averages_and_curves_have_no_scheme() -> None:
    p, model, u0, f = problem_of("closed")
    with pytest.raises(dg.InputError, match="takes 1 moments"):
        dg.rollout(model, p, u0, torch.stack([f, f], 2))
    with pytest.raises(dg.InputError, match="unknown scheme"):
        dg.Classical(scheme="dg3")
    with pytest.raises(dg.InputError, match="a column of G"):
        dg.GreenSolver(p, scheme="dg1").impulse(3)
    assert balance_of(dg.Classical(scheme="dg2"), p) is None and balance_of(dg.Classical(), p) is not None
    finer = Refined(dg.Classical(scheme="dg1"))
    assert dg.rollout(finer, p, u0, torch.stack([f, 0 * f], 2)).isfinite().all() and finer.moments == 2
    curved, _, start, _ = problem_of("curve")
    with pytest.raises(dg.InputError, match="there is no scheme"):
        dg.rollout(dg.Classical(scheme="dg1"), curved, start, steps=2)


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
