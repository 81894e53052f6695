"""Spots on paths: where they are in any window, asked in any way, and powers that are found on paths longer than the readings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import erf

from dgnet.designs.search import Plant
from dgnet.designs.spots import FreeSpot, FreeSpots
from dgnet.errors import InputError
from dgnet.following import Follower, Prior, follow
from dgnet.following.dynamics import Driven
from dgnet.following.unknown_inputs import Unknowns
from dgnet.inverse import Point, Readings, recover
from dgnet.inverse.rollouts import Known
from dgnet.inverse.unknowns import unit_shapes
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Problem, Robin, SpotTable
from dgnet.studio.simulation import Spot
from dgnet_paper.reference.transport import solve

Tensor = torch.Tensor
DT, STEPS = 0.25, 12
MESH = box((8, 8))
PLATE = Problem(MESH, PDE(diffusion=0.04), [Robin("boundary", 0.3, 1.0)], DT)


def ways(seed: int, begin: tuple[float, float] = (-4.0, 2.0), end: tuple[float, float] = (2.5, 9.0),
         radii: tuple[float, float] = (0.15, 0.25)) -> SpotTable:
    """Two random paths: they begin before the window or late, end early or go on, with rows anywhere."""
    rng = np.random.default_rng(seed)
    times = [np.sort(np.concatenate([[rng.uniform(*begin)], rng.uniform(2.0, 2.5, 3), [rng.uniform(*end)]])) for _ in range(2)]
    values = [np.concatenate([rng.uniform(0.1, 0.9, (5, 2)), rng.uniform(*radii, (5, 1)), rng.uniform(1, 3, (5, 1))], 1)
              for _ in times]
    return SpotTable(("a", "b"), tuple(times), tuple(values))


def shape_at(spots: SpotTable, spot: int, x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """exp(-|x - p|^2 / 2 r^2) at times [T], linear between the rows and as the nearest row beyond them: [T, P]."""
    rows, values = spots.times[spot], spots.values[spot]
    now = np.stack([np.interp(t, rows, column) for column in values.T], 1)
    return np.exp(-((x[None] - now[:, None, :2]) ** 2).sum(-1) / (2 * now[:, None, 2] ** 2))


def known_averages(spots: SpotTable, t0: float) -> tuple[np.ndarray, np.ndarray]:
    """A known source [STEPS, N] as `recover` asks for it, at once, and as `follow` does, step by step."""
    once = Known.of(PLATE, None, spots, t0=t0).averages(PLATE, Classical(), STEPS)
    steps = Driven(PLATE, Classical(), Unknowns(PLATE, []), spots, t0)
    each = [steps.known(k) for k in range(STEPS)]
    assert once is not None
    return once[..., 0].numpy(), torch.cat([one for one in each if one is not None])[..., 0].numpy()


@pytest.mark.parametrize("seed", range(8))
def test_shapes_asked_step_by_step_are_those_asked_at_once(seed: int) -> None:
    spots, t0 = ways(seed), float(np.random.default_rng(seed).uniform(-3, 3)) * (seed % 2)
    unknowns, x, fine = Unknowns(PLATE, ["source"], spots), MESH.points, 4000
    once = unit_shapes(spots, PLATE, None, 0, STEPS, t0)[..., 0].numpy()
    for k in range(STEPS):
        assert unknowns.spot_shapes(PLATE, Classical(), t0 + k * DT)[..., 0].numpy() == pytest.approx(once[:, k], abs=1e-12)
    pieces = [unit_shapes(spots, PLATE, None, a, b, t0)[..., 0].numpy() for a, b in ((0, 5), (5, 6), (6, STEPS))]
    assert np.concatenate(pieces, 1) == pytest.approx(once, abs=1e-12)
    t = t0 + DT * (np.arange(STEPS * fine) + 0.5) / fine
    for spot in range(2):
        true = np.stack([shape_at(spots, spot, x, part).mean(0) for part in t.reshape(STEPS, fine)])
        assert once[spot] == pytest.approx(true, abs=2e-5)


@pytest.mark.parametrize("seed", range(4))
def test_narrow_spots_on_paths_bring_what_lies_on_the_plate_in_any_window(seed: int) -> None:
    spots, t0, fine = ways(seed, radii=(0.02, 0.06)), float(np.random.default_rng(seed).uniform(-3, 3)) * (seed % 2), 4000
    unknowns = Unknowns(PLATE, ["source"], spots)
    once = unit_shapes(spots, PLATE, None, 0, STEPS, t0)[..., 0].numpy()
    for k in range(STEPS):
        assert unknowns.spot_shapes(PLATE, Classical(), t0 + k * DT)[..., 0].numpy() == pytest.approx(once[:, k], abs=1e-10)
    t = t0 + DT * (np.arange(STEPS * fine) + 0.5) / fine
    for spot, (rows, values) in enumerate(zip(spots.times, spots.values)):
        x, y, r, _ = (np.interp(t, rows, column) for column in values.T)
        sides = [erf((1 - c) / r / 2**0.5) + erf(c / r / 2**0.5) for c in (x, y)]
        true = (np.pi * r**2 / 2 * sides[0] * sides[1]).reshape(STEPS, fine).mean(1)
        assert once[spot] @ MESH.dual_volumes() == pytest.approx(true, rel=2e-3)
    once, each = known_averages(spots, t0)
    assert each == pytest.approx(once, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_known_table_is_off_beyond_its_rows_in_any_window(seed: int) -> None:
    spots, t0, fine = ways(seed), 0.7, 4000
    once, each = known_averages(spots, t0)
    assert each == pytest.approx(once, abs=1e-11)
    t = t0 + DT * (np.arange(STEPS * fine) + 0.5) / fine
    true = 0.0
    for spot, (rows, values) in enumerate(zip(spots.times, spots.values)):
        power = np.interp(t, rows, values[:, 3]) * ((rows[0] <= t) & (t <= rows[-1]))
        true = true + (power[:, None] * shape_at(spots, spot, MESH.points, t)).reshape(STEPS, fine, -1).mean(1)
    assert once == pytest.approx(true, abs=2e-3)  # jumps between the points of `true`


@pytest.mark.parametrize("seed", range(4))
def test_a_design_on_a_known_path_sees_its_table(seed: int) -> None:
    spots = ways(seed)
    way = SpotTable(("a",), spots.times[:1], (np.concatenate([spots.values[0][:, :2], np.full((5, 1), 0.15), np.ones((5, 1))], 1),))
    free = FreeSpots([FreeSpot("a", 0.15, (1.0, 2.0), path=way, knots=4, on=0.13, off=2.81)], 2, STEPS, DT)
    theta = free.lower + 0.3 * (free.upper - free.lower)
    table = free.table(theta).average(torch.tensor(MESH.points), 0, STEPS, DT)[0, :, :, 0].numpy()
    assert free.averages(theta, MESH.points) == pytest.approx(table, abs=1e-5 * np.abs(table).max())


def test_a_spot_of_the_studio_goes_where_its_table_says() -> None:
    x = torch.tensor(MESH.points)
    for begin, end in (((0.2, 0.3), (0.7, 0.6)), ((0.4, 0.4), (0.4, 0.4))):
        rows = np.array([[*begin, 0.15, 3.0], [*end, 0.15, 3.0]])
        table = SpotTable(("",), (np.array([0.0, 4.0]),), (rows,)).on(MESH).average(x, 0, 4, 1.0)[0, :, :, 0]
        found = torch.stack(Spot(begin, end, 0.15, 3.0).averages(x, 4, MESH))
        assert found.numpy() == pytest.approx(table.numpy(), abs=5e-3)  # two points for each radius that it travels


def on_the_way(seed: int) -> tuple[SpotTable, Problem, np.ndarray, np.ndarray, np.ndarray]:
    """Two spots that move through a plate from before the readings until after them, with random powers, as the reference sees it.

    Returns the paths, the problem, noisy readings [T+1, 10] at ten nodes, these nodes, and the powers on average over steps [T, 2].
    """
    rng, dt, steps = np.random.default_rng(seed), 0.1, 60
    p = Problem(box((10, 10)), PDE(diffusion=rng.uniform(0.02, 0.06)), [Robin("boundary", rng.uniform(0.1, 0.5), 1.0)], dt)
    times = [np.sort(np.concatenate([[-1.0], rng.uniform(0, 6, 3), [rng.uniform(7, 11)]])) for _ in range(2)]
    values = [np.concatenate([rng.uniform(0.15, 0.85, (5, 2)), np.full((5, 1), rng.uniform(0.12, 0.2)), np.ones((5, 1))], 1)
              for _ in times]
    spots, knots, keep = SpotTable(("a", "b"), tuple(times), tuple(values)), np.linspace(0, 6, 241), np.exp(-0.025 / 1.5)
    powers = rng.standard_normal((2, 241))
    for k in range(1, 241):  # correlated over 1.5 s, with a standard deviation of 3
        powers[:, k] = keep * powers[:, k - 1] + np.sqrt(1 - keep**2) * powers[:, k]
    powers *= 3

    def source(x: Tensor, t: Tensor) -> Tensor:
        each = [torch.tensor(np.interp(t.numpy(), knots, power)[:, None] * shape_at(spots, k, x.numpy(), t.numpy()))
                for k, power in enumerate(powers)]
        return torch.stack(each).sum(0)[None, ..., None]

    u = solve(p.mesh, p.pde, p.conditions, torch.ones(1, 121, 1, dtype=torch.float64), dt=dt, steps=steps, refine=1, degree=2,
              substeps=2, order=2, panels=2, source=source)[0, :, :, 0].numpy()
    nodes = rng.permutation(121)[:10]
    fine = 0.1 * (np.arange(steps * 40) + 0.5) / 40
    true = np.stack([np.interp(fine, knots, power).reshape(steps, 40).mean(1) for power in powers], 1)
    return spots, p, u[:, nodes] + 0.02 * rng.standard_normal((steps + 1, 10)), nodes, true


@pytest.mark.parametrize(("plates", "low", "high"), [(4, 0.8, 0.97), pytest.param(20, 0.85, 0.95, marks=pytest.mark.slow)])
def test_bands_hold_the_powers_of_two_spots_that_move(plates: int, low: float, high: float) -> None:
    """Priors are learned from the first 30 rows; times are counted from another one than zero on every other plate."""
    inside = []
    for plate in range(plates):
        spots, p, seen, nodes, true = on_the_way(plate)
        t0 = 5.0 * (plate % 2)
        spots = SpotTable(spots.names, tuple(t + t0 for t in spots.times), spots.values)
        sensors = tuple(Point(tuple(p.mesh.points[k]), f"s{k}") for k in nodes)
        part = follow(p, Readings(t0 + 0.1 * np.arange(31), seen[:31], sensors), ["source"], start=torch.ones(121, 1), spots=spots)
        for k in range(31, 60):
            part.update(t0 + 0.1 * k, seen[k])
            drives = part.dynamics.part("source")
            sd = np.sqrt((part.filter.root[drives] ** 2).sum(1))
            inside.append(np.abs(part.filter.mean[drives] - true[k]) < 1.645 * sd)
    assert low < np.mean(inside) < high


def test_powers_are_recovered_on_a_path_that_goes_on_after_the_last_reading() -> None:
    spots, p, _, nodes, _ = on_the_way(3)
    sensors = tuple(Point(tuple(p.mesh.points[k]), f"s{k}") for k in nodes)
    steps = 24
    shapes = unit_shapes(spots, p, None, 0, steps)  # [2, H, N, 1]
    true = np.stack([20 + 10 * np.sin(0.3 * np.arange(steps)), np.full(steps, 30.0)], 1)
    source = torch.einsum("hj,jhnf->hnf", torch.tensor(true), shapes)
    with torch.no_grad():
        u = rollout(Classical(), p, torch.ones(1, 121, 1, dtype=torch.float64), source[None])[0, :, nodes, 0].numpy()
    noisy = u + 0.01 * np.random.default_rng(0).standard_normal(u.shape)
    found = recover(p, Readings(0.1 * np.arange(steps + 1), noisy, sensors), ["source"], spots=spots, start=torch.ones(121, 1),
                    finer=False)
    low, high = (x.reshape(2, steps).T for x in found.answers["source"].band())
    assert ((low < true) & (true < high)).mean() > 0.8
    assert np.abs(found.get("source") - true)[:-2].mean() < 1.0


def test_a_spot_that_never_comes_near_is_refused_and_one_that_leaves_is_not() -> None:
    away = np.array([[5.0, 5.0, 0.1, 1.0], [6.0, 5.0, 0.1, 1.0]])
    leaving = np.array([[0.5, 0.5, 0.1, 1.0], [6.0, 5.0, 0.1, 1.0]])
    readings = Readings(DT * np.arange(9), 1 + np.arange(18).reshape(9, 2) % 5, (Point((0.3, 0.3), "a"), Point((0.6, 0.6), "b")))
    far, gone = (SpotTable(("w",), (np.array([0.0, 1.0]),), (rows,)) for rows in (away, leaving))
    with pytest.raises(InputError, match="misses the mesh"):
        recover(PLATE, readings, ["source"], spots=far)
    with pytest.raises(InputError, match="misses the mesh"):
        Follower(PLATE, readings.sensors, {"source": Prior(1.0, time=1.0)}, noise=0.1, spots=far)
    part = Follower(PLATE, readings.sensors, {"source": Prior(1.0, time=1.0)}, noise=0.1, spots=gone, start=torch.ones(81, 1))
    for k in range(9):
        part.update(DT * k, [1.0, 1.0])
    assert np.isfinite(part.filter.mean).all()


@pytest.mark.parametrize("how", ["recover", "known", "follow", "design"])
def test_universal_weights_take_up_the_integral_of_a_narrow_spot(how: str) -> None:
    """On an insulated plate all that a spot brings stays: whoever makes its values, the energy is that of its integral."""
    plate, model, steps = Problem(box((9, 9)), PDE(diffusion=0.02), [], 0.1), Universal(), 12
    radius, zero = 0.03, torch.zeros(100, 1, dtype=torch.float64)
    spot = SpotTable(("s",), (np.array([0.0, 1.2]),), (np.array([[0.31, 0.36, radius, 1.0], [0.66, 0.52, radius, 1.0]]),))
    volumes = torch.from_numpy(plate.mesh.dual_volumes())
    if how == "follow":
        part = Follower(plate, [[0.5, 0.5]], {"start": Prior(1e-9, 1.0)}, noise=1.0, source=spot, model=model, finer=False)
        end = torch.from_numpy(part.forecast(steps).fields[-1].mean)
    elif how == "design":
        end = torch.from_numpy(Plant(plate, model, zero, steps).driven(spot)[-1])[:, None]
    else:
        drive = (unit_shapes(spot, plate, model, 0, steps)[0] if how == "recover"
                 else Known.of(plate, None, spot).averages(plate, model, steps))
        assert drive is not None
        end = rollout(model, plate, zero[None], drive[None])[0, -1]
    assert float(volumes @ end[:, 0]) == pytest.approx(1.2 * 2 * np.pi * radius**2, rel=1e-6)
