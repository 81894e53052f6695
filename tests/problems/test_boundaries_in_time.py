"""Boundary values that change in time: what a step takes of them is their integral, whatever the step, the scheme and the model."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.discovery.weak import _window
from dgnet.errors import InputError
from dgnet.following import Follower, Prior
from dgnet.inverse import kernels
from dgnet.inverse.coefficients import Factors
from dgnet.inverse.unknowns import warmed
from dgnet.mesh import box
from dgnet.models import Classical, Model, rollout
from dgnet.models.adaptive import Adaptive
from dgnet.models.dgnet import DGNet, DGNetConfig, Library
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Condition, Curve, Dirichlet, Neumann, Periodic, Problem, Robin, TimeTable, conditions
from dgnet.problems.conditions import Value, changed, samples
from dgnet.stepping import Balance, GreenSolver, Operators, steady
from dgnet_paper.reference.transport import solve

Tensor = torch.Tensor
PART = box((5, 4), upper=(0.05, 0.04), perturb=0.2)
STEEL = PDE(diffusion=45.0, capacity=3.6e6)
SOFT = PDE(diffusion=Curve([0.0, 1000.0], [20.0, 50.0]), capacity=Curve([0.0, 1000.0], [3e6, 5e6]))


def filled(pulse: Callable[[float], float], knots: tuple[float, ...] = ()) -> Callable[[Tensor, float], Tensor]:
    """The same along the boundary."""
    def value(x: Tensor, t: float) -> Tensor:
        return torch.full((len(x),), pulse(t), dtype=torch.float64)

    value.knots = knots  # type: ignore[attr-defined]
    return value


def pulse(begin: float, end: float, height: float, kind: str) -> Value:
    """On between two times, as a function, as one that tells its knots, or as a table."""
    if kind == "table":
        return TimeTable([0.0, begin, begin, end, end], [0.0, 0.0, height, height, 0.0])
    return filled(lambda t: height * (begin <= t < end), (begin, end) if kind == "knots" else ())


def content(p: Problem, u: Tensor) -> Tensor:
    """What states [T, N, 1] hold: the integral of the capacity over u, against zero."""
    if p.pde.curved:
        (c,) = p.pde.per_field("capacity")
        assert isinstance(c, Curve)
        V = torch.tensor(p.mesh.dual_volumes())
        return (c.integral(u.double()) * V[:, None]).sum((1, 2))
    return (p.mass.row_sums()[0].T.double() * u.double()).sum((1, 2))


def far_from_zero(p: Problem) -> DGNet:
    torch.manual_seed(0)
    net = DGNet(DGNetConfig(hidden=6, layers=1), p).to(p.dtype)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return net


MODELS: dict[str, Callable[[Problem], Model]] = {
    "classical": lambda p: Classical(), "lumped": lambda p: Classical(consistent=0.0),
    "no start": lambda p: Classical(start=0), "dg1": lambda p: Classical(scheme="dg1"), "dg2": lambda p: Classical(scheme="dg2"),
    "backward": lambda p: Classical(theta=1.0), "quadratic": lambda p: Classical(degree=2), "universal": lambda p: Universal(),
    "dgnet": far_from_zero, "adaptive": lambda p: Adaptive(Classical(), 1e-3)}


@pytest.mark.parametrize(("name", "kind"), [*((name, "table") for name in [*MODELS, "curves", "adaptive curves", "single"]),
                                            *((name, kind) for name in ("classical", "curves") for kind in ("function", "knots"))])
def test_a_pulse_of_flux_brings_its_energy_whatever_the_step(name: str, kind: str) -> None:
    """1e6 W/m2 for 1 s through 5 cm, with steps of 5 s, where the middle of the step does not see it and where it does."""
    pde = SOFT if "curves" in name else STEEL
    for begin in (0.4, 2.3, 9.6)[kind == "function" or "adaptive" in name:]:  # the last one is cut by the end of a step
        p = Problem(PART, pde, [Neumann("bottom", pulse(begin, begin + 1, 1e6, kind))], 5.0,
                           dtype=torch.float32 if name in ("single", "dgnet") else torch.float64)
        model = MODELS["adaptive" if name == "adaptive curves" else "classical" if name in ("curves", "single") else name](p)
        start = torch.full((1, PART.n_nodes, 1), 300.0, dtype=p.dtype)
        if name == "quadratic":
            p, solver = p.quadratic, GreenSolver(p.quadratic)
            u = torch.full((1, p.n_nodes, 1), 300.0, dtype=torch.float64)
            steps = [u]
            for k in range(4):
                steps.append(solver.step(steps[-1], None, 5.0 * k, start=k == 0))
            got = torch.cat(steps)
        else:
            with torch.no_grad():
                got = rollout(model, p, start, steps=4)[0]
        held = content(p, got)
        wanted = 0.05 * 1e6 * np.array([min(max(5.0 * k - begin, 0.0), 1.0) for k in range(5)])
        slack = {"single": 3e-3, "dgnet": 3e-3}.get(name, 1e-5 if kind == "function" else 1e-9)
        assert (held - held[0]).numpy() == pytest.approx(wanted, abs=slack * 0.05e6), begin


ONE = PDE(diffusion=1e6, capacity=2.0)


def cell(h: Value, ambient: Value, dt: float, pde: PDE = ONE) -> Problem:
    """A part that is warm everywhere alike: c du/dt = -h(t) (A / V) (u - a(t)) with c = 2 and A / V = 1."""
    return Problem(box((2, 2)), pde, [Robin("left", h, ambient)], dt)


def lumped_cell(h: TimeTable, ambient: TimeTable, start: float, end: float) -> float:
    """The exact solution at the end, by Taylor steps of the integrating factor far shorter than anything that changes."""
    knots = np.unique(np.concatenate([[0.0, end], h.knots, ambient.knots]).clip(0, end))
    fine = np.unique(np.concatenate([np.linspace(a, b, 400) for a, b in pairwise(knots)]))
    left, right = fine[:-1], fine[1:]
    u, nodes = start, np.array([0.5 - math.sqrt(3) / 6, 0.5 + math.sqrt(3) / 6])
    at = left[:, None] + (right - left)[:, None] * nodes
    rates, ambients = (v.at(at.ravel()).numpy().reshape(at.shape) for v in (h, ambient))
    for width, rate, around in zip(right - left, rates / 2.0, ambients):
        x = width * rate.mean()
        u = u * math.exp(-x) + (1 - math.exp(-x)) * (rate @ around / max(rate.sum(), 1e-300))
    return u


PULSES = {"ambient": (TimeTable([0.0], [0.05]), TimeTable([0.0, 1.1, 1.1, 1.6, 1.6, 9.0], [0.0, 0.0, 80.0, 60.0, 0.0, 5.0])),
          "coefficient": (TimeTable([0.0, 2.1, 2.1, 2.2, 2.2], [0.0, 0.0, 2.0, 2.0, 0.0]), TimeTable([0.0, 9.0], [10.0, 12.0])),
          "both": (TimeTable([0.0, 1.2, 1.2, 1.5, 1.5], [0.01, 0.03, 0.5, 0.4, 0.02]),
                   TimeTable([0.0, 1.3, 1.3, 1.4, 1.4], [1.0, 2.0, 60.0, 50.0, 1.0]))}


@pytest.mark.parametrize("kind", ["table", "function"])
@pytest.mark.parametrize("what", PULSES)
def test_exchange_with_pulses_is_that_of_one_cell(what: str, kind: str) -> None:
    """Steps of 1.5 in which the pulses are short: without an average they are lost, or ten times too long."""
    h, around = PULSES[what]
    wanted = lumped_cell(h, around, 3.0, 4.5) - 3.0
    given = (h, around) if kind == "table" else tuple(filled(lambda t, v=v: float(v.at(np.array([t])))) for v in (h, around))
    start = torch.full((1, 9, 1), 3.0, dtype=torch.float64)
    adaptive = [(Adaptive(Classical(), 1e-3), 5e-3)] if kind == "table" else []
    for model, slack in ((Classical(), 0.03), (Classical(degree=2), 0.03), *adaptive):
        got = float(rollout(model, cell(*given, dt=1.5), start, steps=3)[0, -1].mean()) - 3.0
        assert got == pytest.approx(wanted, rel=slack), model.name
    if what == "ambient":
        got = float(rollout(Universal(), cell(0.05, given[1], 1.5), start, steps=3)[0, -1].mean()) - 3.0
        assert got == pytest.approx(wanted, rel=0.03)
    curves = PDE(diffusion=50.0, capacity=Curve([-100.0, 200.0], [2.0, 2.0]))
    got = float(rollout(Classical(), cell(*given, dt=1.5, pde=curves), start, steps=3)[0, -1].mean()) - 3.0
    assert got == pytest.approx(wanted, rel=0.03)


def test_a_held_ramp_is_followed_exactly() -> None:
    """u = r t + r (x^2 - 2 x) / (2 D) with u = r t on the left: quadratic in x, linear in t, both exact for quadratic elements."""
    r, D, bar = 3.0, 0.7, box((4, 2))
    for value in (TimeTable([0.0, 100.0], [0.0, 100.0 * r]), filled(lambda t: r * t)):
        p = Problem(bar, PDE(diffusion=D), [Dirichlet("left", value)], 0.4).quadratic
        x = torch.tensor(p.geometry.nodes)[:, 0]
        u = (r / D * (0.5 * x**2 - x))[None, :, None]
        solver = GreenSolver(p)
        start = u
        for k in range(5):
            u = solver.step(u, None, 0.4 * k)
            assert u == pytest.approx(start + r * 0.4 * (k + 1), abs=1e-11)


def test_held_values_jump_at_the_time_of_the_second_row() -> None:
    table = TimeTable([0.0, 0.8, 0.8, 1.0], [1.0, 1.0, 5.0, 7.0])
    p = Problem(box((3, 3)), PDE(diffusion=0.1), [Dirichlet("left", table)], 0.1)
    left = p.mesh.nodes_on("left")
    got = rollout(Classical(), p, torch.ones(1, 16, 1, dtype=torch.float64), steps=12)[0, :, left, 0]
    wanted = np.interp(0.1 * np.arange(13), [0.0, 0.75, 0.8, 1.0], [1.0, 1.0, 5.0, 7.0])  # 0.7 + 0.1 is a little less than 0.8
    wanted[1:8] = 1.0
    assert got.numpy() == pytest.approx(np.repeat(wanted[:, None], 4, 1))


@pytest.mark.parametrize("around", ["number", "function", "table"])
def test_a_part_at_the_ambient_value_rests_whatever_the_exchange_does(around: str) -> None:
    ambient = {"number": 293.0, "function": filled(lambda t: 293.0), "table": TimeTable([0.0, 1.0, 5.0], [293.0] * 3)}[around]
    for h in (filled(lambda t: 40.0 * (0.33 < t < 0.34) + t * t), TimeTable([0.0, 0.7, 0.7, 1.9], [0.0, 3e4, 0.0, 70.0])):
        for name in ("classical", "no start", "dg1", "dg2", "quadratic", "dgnet", "adaptive", "curves"):
            p = Problem(PART, SOFT if name == "curves" else STEEL, [Robin("boundary", h, ambient)], 0.5)
            model = MODELS["classical" if name == "curves" else name](p)
            with torch.no_grad():
                got = rollout(model, p, torch.full((1, PART.n_nodes, 1), 293.0, dtype=torch.float64), steps=5)
            assert (got - 293.0).abs().max() < 1e-9, (name, around)
    for form in ("skew", "galerkin"):
        flow = PDE(diffusion=0.1, velocity=lambda t: torch.tensor([math.sin(t), 0.2]))
        p = Problem(box((4, 4)), flow, [Robin("boundary", filled(lambda t: abs(math.sin(9 * t))), ambient)], 0.5,
                           advection_form=form)
        if form == "galerkin":
            got = rollout(Classical(), p, torch.full((1, 25, 1), 293.0, dtype=torch.float64), steps=5)
            assert (got - 293.0).abs().max() < 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_tables_are_integrated_exactly_over_any_step(seed: int) -> None:
    """Against integrals of the pieces written down one by one, for two tables and their product."""
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(2):
        knots = np.sort(rng.uniform(-1, 4, 7))
        knots[3] = knots[4]  # a jump
        tables.append(TimeTable(knots, rng.uniform(-2, 5, 7)))
    t, dt = rng.uniform(-2, 4), rng.uniform(0.01, 3)
    weights, (a, b) = samples(tables, torch.zeros(3, 2), t, dt)

    def exactly(value: Callable[[np.ndarray], np.ndarray], degree: int) -> float:
        edges = np.unique(np.concatenate([[t, t + dt], *(x.knots for x in tables)]).clip(t, t + dt))
        total = 0.0
        for left, right in pairwise(edges):
            at = np.linspace(left, right, degree + 3)[1:-1]  # an interpolating polynomial, integrated
            total += float(np.polynomial.Polynomial.fit(at, value(at), degree).integ()(right)
                           - np.polynomial.Polynomial.fit(at, value(at), degree).integ()(left))
        return total / dt

    def linear(table: TimeTable, at: np.ndarray) -> np.ndarray:
        knots, values = table.knots, np.asarray(table.values)
        k = np.searchsorted(knots, at, side="right").clip(1, len(knots) - 1)
        inside = values[k - 1] + (at - knots[k - 1]) * (values[k] - values[k - 1]) / (knots[k] - knots[k - 1])
        return np.where(at < knots[0], values[0], np.where(at >= knots[-1], values[-1], inside))

    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-14) and a.shape == (len(weights), 3)
    for found, wanted in ((weights @ a[:, 0], exactly(lambda at: linear(tables[0], at), 1)),
                          (weights @ (a * b)[:, 0], exactly(lambda at: linear(tables[0], at) * linear(tables[1], at), 2))):
        assert float(found) == pytest.approx(wanted, abs=1e-10)


@pytest.mark.parametrize("seed", range(6))
def test_functions_are_integrated_as_closely_as_they_jump(seed: int) -> None:
    """Square waves, a ramp and a sine; as precise with 2 steps as with 64, and loads of parts of a step add up."""
    rng = np.random.default_rng(seed)
    period, share, speed = rng.uniform(0.5, 3), rng.uniform(0.1, 0.9), rng.uniform(1, 20)

    def wave(t: float) -> float:
        return 3.0 * ((t / period) % 1.0 < share) + math.sin(speed * t) + 0.2 * t

    def integral(t: float) -> float:
        whole, rest = divmod(t / period, 1.0)
        return 3.0 * period * (whole * share + min(rest, share)) + (1 - math.cos(speed * t)) / speed + 0.1 * t * t

    p = Problem(box((3, 3)), PDE(diffusion=0.1), [Neumann("left", filled(wave))], 1.0)
    for steps in (2, 7, 64):
        dt = 5.0 / steps
        for k in range(steps):
            load = p.load(k * dt, dt)
            assert load is not None
            assert dt * float(load.sum()) == pytest.approx(integral((k + 1) * dt) - integral(k * dt), abs=1e-5)


def test_gradients_reach_what_is_inside_of_values() -> None:
    """Of tables and of numbers inside functions, through steps as arrays, through a reaction and through a coefficient."""
    mesh, start = box((2, 2)), torch.rand(1, 9, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for reaction in (None, lambda u: u - u**2):
        def last(values: Tensor, height: Tensor, held: Tensor, reaction: object = reaction) -> Tensor:
            h = TimeTable([0.0, 0.25, 0.25, 2.0], values[:4])
            conditions: list[Condition] = [
                Robin("left", h, lambda x, t: height * torch.sin(torch.tensor(9.0 * t)) + 0 * x[:, 0]),
                Neumann("right", lambda x, t: height**2 * float(0.3 < t < 0.37) + 0 * x[:, 0]),
                Neumann("top", TimeTable([0.1, 0.5], values[4:])), Dirichlet("bottom", TimeTable([0.0, 1.0], held))]
            p = Problem(mesh, PDE(diffusion=0.3, reaction=reaction), conditions, 0.2)  # type: ignore[arg-type]
            return rollout(Classical(), p, start, steps=3)[0, -1]

        values = torch.tensor([0.5, 1.0, 0.2, 0.7, 1.0, -1.0], dtype=torch.float64, requires_grad=True)
        height, held = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.5, [0.3, 0.9]))
        assert torch.autograd.gradcheck(last, (values, height, held), atol=1e-6, fast_mode=True)
    p = Problem(mesh, PDE(diffusion=0.3), [Neumann("top", TimeTable([0.1, 0.5], values[4:]))], 0.2)
    rollout(Classical(), p, start, steps=3)[0, -1].sum().backward()
    assert values.grad is not None and (values.grad[4:] > 0).all()


def test_what_a_value_costs() -> None:
    """Nothing where nothing changes; 64 values of a smooth function in a step, a few hundred where it jumps."""
    calls = {"smooth": 0, "jump": 0, "held": 0}

    def counted(name: str, value: Callable[[float], float]) -> Callable[[Tensor, float], Tensor]:
        def function(x: Tensor, t: float) -> Tensor:
            calls[name] += 1
            return torch.full((len(x),), value(t), dtype=torch.float64)
        return function

    p = Problem(box((3, 3)), PDE(diffusion=0.1), [Dirichlet("left", counted("held", lambda t: t)),
                                                         Robin("right", 2.0, 1.0), Neumann("top", 3.0)], 0.1)
    rollout(Classical(), p, torch.ones(1, 16, 1, dtype=torch.float64), steps=10)
    assert p.load(0.3, 0.1) is p.load(0.4, 0.1) or torch.equal(p.load(0.3, 0.1), p.load(0.4, 0.1))  # type: ignore[arg-type]
    assert p.flux_load(0.0, 0.1) is p.flux_load(5.0, 0.1) and calls["held"] <= 120
    for name, value in (("smooth", lambda t: math.sin(20 * t)), ("jump", lambda t: float(t > 0.0333))):
        q = replace(p, conditions=[Neumann("top", counted(name, value))])
        q.load(0.0, 0.1)
    assert calls["smooth"] == 64 and calls["jump"] < 500


def test_the_balance_of_a_rollout_closes_with_pulses() -> None:
    flux, ambient = pulse(0.4, 0.7, 1e6, "function"), TimeTable([0.0, 4.0, 4.0], [300.0, 300.0, 900.0])
    for pde in (STEEL, SOFT):
        p = Problem(PART, pde, [Neumann("bottom", flux), Robin("top", 50.0, ambient)], 5.0)
        balance, model = Balance(p if pde is STEEL else p.recast(0.0, p.advection_form), start=2), Classical()
        for u in rollout(model, p, torch.full((1, PART.n_nodes, 1), 300.0, dtype=torch.float64), steps=4)[0]:
            balance.state(u)
        (total,) = balance.totals()
        assert total.closes < 1e-10 and total.fluxes == pytest.approx(0.05 * 1e6 * 0.3, rel=1e-5)


@pytest.mark.parametrize("degree", [1, 2])
def test_order_two_stays_for_smooth_data(degree: int) -> None:
    """Uniform part, c u' = -h(t) (u - a(t)) with smooth h and a: a step four times as short leaves a sixteenth of the error."""
    h, around = (lambda t: 1.0 + 0.5 * math.sin(3 * t)), (lambda t: math.cos(2 * t))

    def error(steps: int) -> float:
        p = cell(filled(h), filled(around), 2.0 / steps)
        return float(rollout(Classical(degree=degree), p, torch.zeros(1, 9, 1, dtype=torch.float64), steps=steps)[0, -1].mean())

    u, n = 0.0, 20_000
    for k in range(n):  # the midpoint rule on a grid a thousand times finer
        t = 2.0 * (k + 0.5) / n
        x = h(t) / n
        u = u + x * (around(t) - u) / (1 + 0.5 * x)
    errors = [abs(error(steps) - u) for steps in (5, 10, 20, 40)]
    assert all(3.3 < a / b < 4.7 for a, b in pairwise(errors)), errors


def test_reference_truth_keeps_the_energy_of_pulses() -> None:
    """Flux pulses shorter than a substep, as a function with many panels and as a table; an ambient that jumps."""
    mesh = box((3, 3))
    for value, slack in ((TimeTable([0.0, 0.31, 0.31, 0.33, 0.33], [0.0, 0.0, 50.0, 50.0, 0.0]), 1e-9),
                         (filled(lambda t: 50.0 * math.exp(-((t - 0.32) / 0.01) ** 2)), 1e-4)):
        u = solve(mesh, PDE(diffusion=1.0), [Neumann("left", value)], torch.zeros(1, 16, 1, dtype=torch.float64), dt=0.5, steps=2,
                  substeps=4, panels=16)[0, -1, :, 0]
        wanted = 1.0 if isinstance(value, TimeTable) else 50.0 * 0.01 * math.sqrt(math.pi)
        V = torch.tensor(mesh.dual_volumes())
        assert float(V @ u) == pytest.approx(wanted, rel=slack)


def test_steady_takes_the_value_at_its_time() -> None:
    table = TimeTable([0.0, 1.0, 1.0, 2.0], [0.0, 1.0, 3.0, 5.0])
    p = Problem(box((2, 2)), PDE(diffusion=1.0), [Robin("left", 1.0, table), Neumann("right", 0.0)], 0.1)
    for t, wanted in ((0.5, 0.5), (1.0, 3.0), (1.5, 4.0), (9.0, 5.0)):
        assert steady(p, t=t) == pytest.approx(wanted)


def test_values_are_changed_with_their_knots() -> None:
    x = torch.zeros(2, 2, dtype=torch.float64)
    table, function = TimeTable([0.0, 1.0], [1.0, 3.0]), filled(lambda t: t, (0.5,))
    assert changed(2.0, 3.0, 1.0) == 7.0
    made = changed(table, 3.0, 1.0)
    assert isinstance(made, TimeTable) and made(x, 0.5) == pytest.approx(7.0)
    other = changed(function, 3.0, 1.0)
    assert callable(other) and other(x, 0.5) == pytest.approx(2.5) and list(other.knots) == [0.5]  # type: ignore[union-attr]


@pytest.mark.parametrize(("times", "values", "words"), [
    ([0.0, 1.0], [1.0], "one value for each time"), ([], [], "one value for each time"),
    ([1.0, 0.5], [1.0, 2.0], "0.5 comes after 1"),
    ([0.0, math.nan], [1.0, 2.0], "must be finite"), ([0.0, 1.0], [1.0, math.inf], "must be finite"),
    ([[0.0, 1.0]], [[1.0, 2.0]], "one value for each time"), (["a"], [1.0], "must be a number"),
    ([0.0], ["a"], "must be real numbers"), ([0.0], [1j], "must be real")])
def test_a_bad_table_is_refused(times: list[float], values: list[float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        TimeTable(times, values)


def test_examples_run() -> None:
    assert doctest.testmod(conditions).failed == 0


def test_a_bad_function_is_refused() -> None:
    for wrong, words in ((lambda x, t: torch.zeros(2), "must return numbers"), (filled(lambda t: -float(t > 0.09)), "negative")):
        p = Problem(box((2, 2)), PDE(diffusion=1.0), [Robin("left", wrong, 1.0)], 0.1)
        with pytest.raises(InputError, match=words):
            rollout(Classical(), p, torch.ones(1, 9, 1, dtype=torch.float64), steps=1)


def test_periodic_sides_and_several_fields_take_their_own_values() -> None:
    flux = {"a": pulse(0.3, 0.4, 10.0, "table"), "b": pulse(0.9, 0.95, -4.0, "function")}
    p = Problem(box((4, 4)), PDE(("a", "b"), diffusion={"a": 0.1, "b": 0.2}),
                       [Periodic("left", "right"), *(Neumann("top", v, k) for k, v in flux.items())], 0.5)
    got = rollout(Classical(), p, torch.zeros(1, 25, 2, dtype=torch.float64), steps=2)[0]
    total = (p.mass.row_sums()[0].T * p.restrict(got)).sum(1)
    assert total[1].numpy() == pytest.approx([1.0, 0.0], abs=1e-6) and total[2].numpy() == pytest.approx([1.0, -0.2], abs=1e-6)


def test_three_dimensions_and_rollouts_that_go_on_from_a_later_time() -> None:
    block = box((3, 2, 2), upper=(0.3, 0.2, 0.2), perturb=0.2)
    flux = pulse(7.1, 7.2, 1e6, "function")
    for model in (Classical(start=0), Universal()):
        p = Problem(block, STEEL, [Neumann("left", flux), Robin("right", 20.0, TimeTable([0.0, 20.0], [300.0, 400.0]))], 5.0)
        start = torch.full((1, block.n_nodes, 1), 300.0, dtype=torch.float64)
        with torch.no_grad():
            whole = rollout(model, p, start, steps=4)
            rest = rollout(model, p, whole[:, 1], steps=3, t0=5.0)
        if isinstance(model, Classical):
            assert rest[0, 1:].numpy() == pytest.approx(whole[0, 2:].numpy(), abs=1e-10)
        insulated = replace(p, conditions=[Neumann("left", flux)])
        held = content(insulated, rollout(model, insulated, start, steps=4)[0])
        assert (held - held[0]).numpy() == pytest.approx([0.0, 0.0, 4e3, 4e3, 4e3], abs=0.1)


def test_a_filter_steps_as_the_model_does_where_boundaries_change() -> None:
    """A known start and no noise: the mean is the rollout, with pulses in flux and ambient and a drive of the ambient."""
    p = Problem(box((5, 5)), PDE(diffusion=0.05),
                       [Robin("boundary", 0.4, TimeTable([0.0, 0.33, 0.33, 0.36, 0.36], [1.0, 1.0, 9.0, 9.0, 1.0])),
                        Neumann("left", pulse(0.51, 0.53, 8.0, "function"))], 0.1)
    sensors, start = [[0.2, 0.3], [0.7, 0.6]], torch.ones(36, 1)
    with torch.no_grad():
        states = rollout(Classical(), p, start[None].double(), steps=8, t0=0.2)[0]
    part = Follower(p, sensors, {"ambient": Prior(0.5, time=1.0)}, noise=0.01, start=start, t0=0.2, finer=False)
    for k, seen in enumerate(p.mesh.interpolate(states, sensors)[..., 0]):
        part.update(0.2 + 0.1 * k, seen)
    assert part.estimate().mean == pytest.approx(states[-1].numpy(), abs=1e-9) and part.chi_square < 1e-12
    made = kernels(p, sensors, 8, t0=0.2)
    assert made.readings(None, start.double()).numpy().T == pytest.approx(p.mesh.interpolate(states, sensors)[..., 0], abs=1e-10)
    warm, factor = warmed(p), Factors(["convection"], False, p)
    rise = warm.load(0.3, 0.1) - p.load(0.3, 0.1)  # type: ignore[operator]
    assert float(rise.sum()) == pytest.approx(0.4 * 4)
    more = factor.applied(p, [2.0]).load(0.3, 0.1) - p.load(0.3, 0.1)  # type: ignore[union-attr, operator]
    assert float(more.sum()) == pytest.approx(0.4 * 4 * (1.0 * 0.7 + 9.0 * 0.3), rel=1e-9)


def test_what_windows_leave_over_for_unknown_terms_is_no_pulse() -> None:
    """The sum over an insulated part of what the known terms do not explain is zero, wherever in a window the pulse is."""
    for begin in (0.02, 0.13, 0.21):
        flux = pulse(begin, begin + 0.01, 300.0, "function")
        p = Problem(box((4, 4)), PDE(("u", "v"), diffusion={"u": 0.1, "v": 0.2}), [Neumann("left", flux, "u")], 0.1)
        states = rollout(Classical(), p, torch.rand(1, 25, 2, dtype=torch.float64), steps=4)
        y, _ = _window(Corpus(states, None, None, 0.1, ()), p, Operators.classical(p), Library(("u", "v"), 2), 0, 4, 0.0)
        assert y.sum(1)[0].numpy() == pytest.approx([0.0, 0.0], abs=1e-4 * 300.0 * 0.01 / 0.1)


def test_a_pulse_of_a_thirtieth_of_a_step_is_never_lost() -> None:
    p = Problem(box((1, 1)), PDE(diffusion=1.0), [], 1.0)
    for begin in np.random.default_rng(0).uniform(0, 29 / 30, 100):
        load = replace(p, conditions=[Neumann("left", pulse(begin, begin + 1 / 30, 3.0, "function"))]).load(0.0, 1.0)
        assert load is not None and float(load.sum()) == pytest.approx(0.1, rel=1e-5)
