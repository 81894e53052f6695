"""Designs: against brute force and superposition, limits by rollouts of their own, every kind of freedom, model and bad goal."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from typer.testing import CliRunner

from dgnet.cli import app
from dgnet.designs import Designed, FreeSpot, Target, design
from dgnet.designs.goal import read_goal
from dgnet.designs.quadratic import minimise
from dgnet.designs.spots import FreeSpots
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, Model, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Curve, Problem, Robin, SpotTable
from dgnet.problems.units import Units

PLATE = Problem(box((7, 5), upper=(1.4, 1.0)), PDE(diffusion=0.02), [Robin("boundary", 0.02, 20.0)], 0.25)
START = torch.full((PLATE.mesh.n_nodes, 1), 20.0, dtype=torch.float64)
STEPS = 16


def rolled(spots: SpotTable, problem: Problem = PLATE, model: Model | None = None) -> np.ndarray:
    """States [T+1, N] under a table of spots, without any code of the design."""
    f = spots.on(problem.mesh).average(torch.tensor(problem.mesh.points), 0, STEPS, problem.dt)
    return rollout(model or Classical(), problem, START[None], f)[0, :, :, 0].numpy()


def read(states: np.ndarray, place: tuple[float, float]) -> np.ndarray:
    return PLATE.mesh.interpolate(states[..., None], [place])[..., 0, 0]


@pytest.mark.parametrize(("n", "rank"), [(3, 3), (20, 20), (40, 4), (8, 0)])
def test_quadratic_programs_against_another_solver(n: int, rank: int) -> None:
    """With full, poor and no curvature, in a box; some rows are there twice, one leaves next to no room."""
    rng = np.random.default_rng(n)
    A, q, inside = rng.standard_normal((rank, n)), rng.standard_normal(n), rng.uniform(-0.5, 0.5, n)
    rows = rng.standard_normal((4 * n, n))
    G = np.concatenate([rows, np.eye(n), -np.eye(n), rows[:2], -rows[:1]])
    h = G @ inside + np.concatenate([[1e-6], rng.uniform(0.1, 1, 4 * n - 1), np.full(2 * n, 0.5), [1e-6, 1.0], [1e-6]])
    x, P = minimise(A.T @ A, q, G, h), A.T @ A
    other = minimize(lambda z: 0.5 * z @ P @ z + q @ z, inside, jac=lambda z: P @ z + q, method="SLSQP", options={
        "ftol": 1e-14, "maxiter": 500}, constraints={"type": "ineq", "fun": lambda z: h - G @ z, "jac": lambda z: -G})
    assert (G @ x - h).max() < 1e-9 and 0.5 * x @ P @ x + q @ x == pytest.approx(other.fun, abs=1e-8)


@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e6])
def test_limits_that_leave_nothing_are_named(gap: float) -> None:
    G, h = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), np.array([0.0, -gap, 1.0])
    with pytest.raises(InputError, match="no values keep all limits at once"):
        minimise(np.eye(2), np.ones(2), G, h)


def test_powers_against_brute_force() -> None:
    """Two constant powers on a grid of 25 x 25, every one rolled out; the limit decides."""
    sources = [FreeSpot(name, 0.2, (0.0, 20.0), place=place, knots=1) for name, place in (("a", (0.4, 0.4)), ("b", (1.0, 0.6)))]
    targets = [Target("p", 26.0, place=(0.6, 0.5), begin=2.0), Target("q", 23.0, place=(1.2, 0.3), begin=2.0)]
    found = design(PLATE, sources, targets, STEPS, highest=27.0, start=START, finer=False)
    grid = np.linspace(0, 12, 25)
    choices = np.array(list(product(grid, grid)))
    x = torch.tensor(PLATE.mesh.points)
    near = torch.stack([torch.exp(-((x - torch.tensor(s.place)) ** 2).sum(1) / (2 * 0.2**2)) for s in sources])
    f = (torch.from_numpy(choices) @ near)[:, None, :, None].expand(-1, STEPS, -1, -1)
    states = rollout(Classical(), PLATE, START[None].expand(len(choices), -1, -1), f)[..., 0].numpy()
    rows = np.arange(8, STEPS + 1)
    still = rollout(Classical(), PLATE, START[None], steps=STEPS)[0, :, :, 0].numpy()

    def cost(u: np.ndarray) -> np.ndarray:
        """Of states [..., T+1, N]."""
        def missed(u: np.ndarray, t: Target) -> np.ndarray:
            assert t.place is not None
            return ((read(u, (t.place[0], t.place[1]))[..., rows] - t.value) ** 2).mean(-1)

        return np.sum([missed(u, t) / missed(still, t) for t in targets], axis=0)

    free = cost(states)
    costs = np.where(states.max((1, 2)) <= 27.0, free, np.inf)
    best = choices[costs.argmin()]
    powers = np.array([values[0, -1] for values in found.spots.values])
    mine = rolled(found.spots)
    assert found.exact and mine.max() <= 27.0
    assert cost(mine) <= costs.min() * (1 + 1e-6) and np.abs(powers - best).max() < 1.0
    assert states[free.argmin()].max() > 27.0  # without the limit, another choice would be best


def test_a_place_against_brute_force() -> None:
    """One constant power at a free place: every place of a grid with the best power for it, under the limit."""
    targets = {(0.5, 0.7): 24.0, (1.1, 0.6): 23.0, (0.8, 0.2): 22.0}
    lamp = FreeSpot("lamp", 0.2, (0.0, 20.0), area=((0.1, 0.1), (1.3, 0.9)), bends=1, knots=1)
    found = design(PLATE, [lamp], [Target(f"{place}", value, place=place, begin=4.0) for place, value in targets.items()], STEPS,
                   highest=29.0, start=START, finer=False)
    places = np.array(list(product(np.linspace(0.1, 1.3, 25), np.linspace(0.1, 0.9, 17))))
    x = torch.tensor(PLATE.mesh.points)
    near = torch.exp(-((x - torch.from_numpy(places)[:, None]) ** 2).sum(-1) / (2 * 0.2**2))[:, None, :, None]
    starts = START[None].expand(len(places), -1, -1)
    one = rollout(Classical(), PLATE, starts, near.expand(-1, STEPS, -1, -1))[..., 0].numpy() - 20.0
    seen = np.stack([read(one, place)[:, -1] for place in targets], 1)  # [places, targets]
    asked = np.array(list(targets.values())) - 20.0
    power = ((seen / asked).sum(1) / ((seen / asked) ** 2).sum(1)).clip(0, np.minimum(20.0, 9.0 / one.max((1, 2))))
    costs = ((power[:, None] * seen / asked - 1) ** 2).sum(1)
    mine = np.array([read(rolled(found.spots), place)[-1] for place in targets]) - 20.0
    assert rolled(found.spots).max() <= 29.0
    assert ((mine / asked - 1) ** 2).sum() <= 1.01 * costs.min()


def test_what_the_limits_allow_is_named() -> None:
    """One constant power: the highest reading follows from superposition."""
    lamp = FreeSpot("lamp", 0.2, (0.0, 20.0), place=(0.4, 0.4), knots=1)
    found = design(PLATE, [lamp], [Target("far", 40.0, place=(1.0, 0.6), begin=4.0)], STEPS, highest=30.0, start=START, finer=False)
    one = rolled(SpotTable(("one",), (np.array([0.0, 4.0]),), (np.array([[0.4, 0.4, 0.2, 1.0]] * 2),))) - 20.0
    allowed = 20.0 + min(20.0, 10.0 / one.max()) * read(one, (1.0, 0.6))[-1]
    (note,) = found.notes
    told = re.search(r"40 is wanted, and the limits allow at most ([\d.]+) \(the limit of 30 is reached at \(0.4, 0.4\)", note)
    assert told is not None and float(told[1]) == pytest.approx(allowed, rel=1e-4)
    assert not found.reached and found.holds
    broken = design(PLATE, [FreeSpot("lamp", 0.2, (10.0, 20.0), place=(0.4, 0.4))], [Target("far", 21.0, place=(1.0, 0.6))], STEPS,
                    highest=22.0, start=START, finer=False)
    assert not broken.holds and "The limit of 22 cannot be kept" in broken.notes[0]


AWAY = SpotTable(("way",), (np.array([0.0, 4.0]),), (np.array([[5.0, 0.2, 0.1, 1.0], [6.0, 0.4, 0.1, 1.0]]),))


@pytest.mark.parametrize("where", [{"place": (5.0, 0.4)}, {"area": ((5.0, 0.1), (6.0, 0.9))}, {"path": AWAY}])
def test_a_source_outside_of_the_part_is_named(where: dict[str, Any]) -> None:
    lamp, lost = FreeSpot("lamp", 0.2, (0.0, 20.0), place=(0.4, 0.4), knots=1), FreeSpot("lost", 0.2, (0.0, 20.0), knots=1, **where)
    with pytest.raises(InputError, match=r"source 'lost' misses the mesh: .* 5 to"):
        design(PLATE, [lamp, lost], [Target("far", 21.0, place=(1.0, 0.6))], STEPS, finer=False)


def test_averages_are_those_of_the_table_and_derivatives_those_of_differences() -> None:
    rows, area = np.array([[0.2, 0.2, 0.2, 1.0], [0.9, 0.4, 0.2, 1.0], [1, 0.9, 0.2, 1]]), ((0.1, 0.1), (1.3, 0.9))
    way = SpotTable(("w",), (np.array([0.0, 2.0, 4.0]),), (rows,))
    free = FreeSpots([FreeSpot("path", 0.2, (0.0, 9.0), area=area, bends=3, knots=5, on=(0.1, 1.0), off=(2.0, 3.9)),
                      FreeSpot("place", 0.15, 4.0, area=area, bends=1, off=(1.0, 4.0)),
                      FreeSpot("known", 0.2, (1.0, 2.0), path=way, knots=4)], 2, STEPS, 0.25)
    rng, x = np.random.default_rng(3), PLATE.mesh.points
    theta = free.lower + rng.uniform(0.2, 0.8, free.n) * (free.upper - free.lower)
    averages = free.averages(theta, x)
    table = free.table(theta).average(torch.tensor(x), 0, STEPS, 0.25)[0, :, :, 0].numpy()
    assert np.abs(averages - table).max() < 1e-4 * np.abs(table).max()
    slopes = free.derivatives(theta, x, np.ones(free.n, dtype=bool))
    for k, e in enumerate(1e-5 * np.eye(free.n)):
        difference = (free.averages(theta + e, x) - free.averages(theta - e, x)) / 2e-5
        assert np.abs(slopes[k] - difference).max() < 1e-4 * max(1.0, np.abs(difference).max()), k


def test_narrow_spots_have_their_integral_in_a_design_too() -> None:
    """Of a quarter of the spacing: the averages are those of the table on the mesh, the slopes those of differences."""
    lamp = FreeSpot("lamp", 0.05, 4.0, area=((0.3, 0.3), (1.1, 0.7)), bends=1)
    free = FreeSpots([lamp], 2, STEPS, 0.25, PLATE.mesh)
    theta, x = np.array([0.52, 0.47]), PLATE.mesh.points
    averages = free.averages(theta, x)
    assert averages[0] @ PLATE.mesh.dual_volumes() == pytest.approx(4.0 * 2 * np.pi * 0.05**2, rel=1e-6)
    table = free.table(theta).on(PLATE.mesh).average(torch.tensor(x), 0, STEPS, 0.25)[0, :, :, 0].numpy()
    assert np.abs(averages - table).max() < 1e-6 * table.max()
    for slope, e in zip(free.derivatives(theta, x, np.ones(2, dtype=bool)), 3e-3 * np.eye(2)):
        difference = (free.averages(theta + e, x) - free.averages(theta - e, x)) / 6e-3
        assert np.abs(slope - difference).max() < 0.01 * np.abs(difference).max()
    found = design(PLATE, [lamp], [Target("warm", 20.05, place=(0.9, 0.5), begin=2.0)], STEPS, start=START, finer=False)
    assert np.abs(rolled(found.spots) - found.states).max() < 1e-6


def limits_hold(found: Designed, highest: float) -> None:
    assert found.holds and rolled(found.spots).max() <= highest
    for free, times, values in zip(found.free, found.spots.times, found.spots.values):
        power = free.power if isinstance(free.power, tuple) else (free.power, free.power)
        assert power[0] - 1e-7 <= values[:, -1].min() and values[:, -1].max() <= power[1] + 1e-7
        assert np.abs(np.diff(values[:, -1]) / np.diff(times)).max() <= free.rate * (1 + 1e-6)
        assert (np.linalg.norm(np.diff(values[:, :2], axis=0), axis=1) / np.diff(times)).max() <= free.speed * (1 + 1e-6)
        if free.area is not None:
            assert (values[:, :2] >= np.array(free.area[0]) - 1e-7).all() and (values[:, :2] <= np.array(free.area[1]) + 1e-7).all()


def test_a_path_warms_a_strip() -> None:
    source = FreeSpot("torch", 0.2, (0.0, 40.0), area=((0.1, 0.2), (1.3, 0.8)), bends=4, speed=0.5, knots=5, rate=40.0)
    found = design(PLATE, [source], [Target("strip", 26.0, area=((0.4, 0.35), (1.0, 0.65)), begin=4.0)], STEPS, highest=34.0,
                   start=START, starts=2, finer=False)
    assert found.reached and not found.exact
    limits_hold(found, 34.0)


def test_switching_times_are_found() -> None:
    lamp = np.array([[0.5, 0.5, 0.2, 12.0]] * 2)
    wanted = read(rolled(SpotTable(("lamp",), (np.array([0.6, 2.3]),), (lamp,))), (0.7, 0.5))
    goal = Target("p", history=(0.25 * np.arange(STEPS + 1), wanted), place=(0.7, 0.5))
    switched = FreeSpot("lamp", 0.2, 12.0, place=(0.5, 0.5), on=(0.0, 2.0), off=(1.0, 4.0))
    found = design(PLATE, [switched], [goal], STEPS, start=START, finer=False)
    assert found.spots.times[0] == pytest.approx([0.6, 2.3], abs=0.02)


@pytest.mark.parametrize("kind", ["universal", "quadratic", "universal quadratic", "dgnet", "curved"])
def test_models_and_materials(kind: str) -> None:
    torch.manual_seed(0)
    curve = Curve([0.0, 20.0, 40.0], [0.02, 0.02, 0.06])
    problem = Problem(PLATE.mesh, PDE(diffusion=curve), PLATE.conditions, 0.25) if kind == "curved" else PLATE
    model: Model = {"universal": Universal(), "quadratic": Classical(degree=2), "universal quadratic": Universal(degree=2),
                    "curved": Classical()}.get(kind) or DGNet(DGNetConfig(decoder="none", network=False), problem).double()
    if isinstance(model, DGNet):
        with torch.no_grad():
            for p in model.parameters():
                p += 0.1 * torch.rand_like(p)
    lamp = FreeSpot("lamp", 0.2, (0.0, 20.0), place=(0.5, 0.5), knots=5)
    found = design(problem, [lamp], [Target("p", 24.0, place=(0.7, 0.5), begin=3.0)], STEPS, highest=29.0, start=START, model=model)
    assert found.reached and found.holds and found.exact == (kind != "curved"), (found.met, found.margins)
    assert {m.what for m in found.margins} >= {"highest u", "highest u, finer mesh"}


def test_correction_meets_targets_on_the_finer_mesh() -> None:
    lamp = FreeSpot("lamp", 0.15, (0.0, 30.0), place=(0.5, 0.5))
    goal = [Target("p", 24.0, place=(0.7, 0.55), begin=3.0)]
    plain, corrected = (design(PLATE, [lamp], goal, STEPS, highest=40.0, start=START, correct=c) for c in (False, True))
    assert plain.met[0].share < 0.01 < 0.02 < plain.met[0].finer and "is missed by" in plain.notes[0]
    assert corrected.met[0].finer < 0.01 and corrected.reached


GOAL = """
time = 4.0
[limits]
highest = 40.0
[[source]]
name = "a"
place = [0.5, 0.5]
radius = 0.2
power = [0.0, 20.0]
[[target]]
value = 24.0
place = [0.7, 0.5]
"""


@pytest.mark.parametrize(("change", "words"), [
    (("time = 4.0", "time = 4.1"), "a multiple of the problem's step"),
    (("power = [0.0, 20.0]", "power = [20.0, 0.0]"), "a range goes from"),
    (("power = [0.0, 20.0]", "power = 3.0"), "nothing is free"),
    (("place = [0.5, 0.5]\nradius", "radius"), "needs a place, a path or an area"),
    (("place = [0.7, 0.5]", "place = [7.0, 5.0]"), "outside of the part"),
    (("highest = 40.0", "highest = 10.0"), "the start is above the limit"),
    (("highest", "higest"), "did you mean 'highest'"),
    (("value = 24.0", 'value = 24.0\nhistory = "x.csv"'), "one of them"),
    (("place = [0.7, 0.5]", "place = [0.7, 0.5]\nfrom = 9.0"), "must be wanted within"),
    (("[[target]]\nvalue = 24.0\nplace = [0.7, 0.5]", ""), "at least one target")])
def test_bad_goals_are_named(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    assert change[0] in GOAL
    (tmp_path / "goal.toml").write_text(GOAL.replace(*change))
    with pytest.raises(InputError, match=words):
        goal = read_goal(tmp_path / "goal.toml", PLATE.mesh, 0.25, "u", Units())
        design(PLATE, goal.sources, goal.targets, goal.steps, highest=goal.highest, start=START)


def test_the_page_about_design_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "design.md").read_text()
    exec(re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)[0], {})
    (tmp_path / "goal.toml").write_text(re.findall(r"^```toml\n(.*?)^```", text, re.S | re.M)[0])
    said = ""
    for line in "".join(re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)).splitlines():
        done = CliRunner().invoke(app, line.split()[1:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        said += done.output
    assert "Targets met, all limits hold" in said
    found = json.loads((tmp_path / "designed" / "design.json").read_text())
    assert found["reached"] and found["limits_hold"] and len(found["limits"]) == 7
    top = float(re.findall(r"T from 293.1\d+ to ([\d.]+)", said)[0])  # by `dgnet simulate`, from the table
    assert top == pytest.approx(next(m["reached"] for m in found["limits"] if m["what"] == "highest T"), abs=0.01) and top <= 296.45
    assert "<h2>Limits</h2>" in (tmp_path / "designed" / "design.html").read_text()
    assert (tmp_path / "designed" / "field.vtu").stat().st_size > 1000
