"""Where a spot is, from readings of a few sensors; truths of the reference on a finer mesh."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.inverse import Point, Readings, recover_track
from dgnet.mesh import box
from dgnet.problems import PDE, Problem, Robin
from dgnet_paper.reference.transport import solve

Tensor = torch.Tensor
DT, STEPS, RADIUS, POWER = 0.1, 30, 0.18, 4.0
PLATE = Problem(box((10, 10)), PDE(diffusion=0.01), [Robin("boundary", 0.1, 1.0)], DT)
SENSORS = tuple(Point((0.1 + 0.4 * i, 0.1 + 0.4 * j), f"s{i}{j}") for i in range(3) for j in range(3))
ONES = torch.ones(1, 121, 1, dtype=torch.float64)


def readings(path: Callable[[Tensor], Tensor]) -> Readings:
    """With noise of 1% of their range, from the reference on a mesh with half the spacing."""
    def spot(x: Tensor, t: Tensor) -> Tensor:
        return POWER * torch.exp(-(x[None] - path(t)[:, None]).square().sum(-1) / (2 * RADIUS**2))[None, ..., None]

    u = solve(PLATE.mesh, PLATE.pde, PLATE.conditions, ONES, dt=DT, steps=STEPS, refine=1, degree=2, substeps=2, order=2,
              source=spot)
    seen = PLATE.mesh.interpolate(u[0], [s.place for s in SENSORS])[..., 0]
    noise = 0.01 * np.ptp(seen) * np.random.default_rng(0).standard_normal(seen.shape)
    return Readings(DT * np.arange(STEPS + 1), seen + noise, SENSORS)


def test_the_path_and_power_of_a_spot_that_moves() -> None:
    def path(t: Tensor) -> Tensor:
        return torch.stack([0.2 + 0.2 * t, 0.5 + 0.3 * torch.sin(1.5 * t)], 1)

    found = recover_track(PLATE, readings(path), RADIUS, start=ONES[0])
    true = path(torch.from_numpy(found.times)).numpy()
    off = np.linalg.norm(found.path - true, axis=1)
    assert np.median(off) < 0.05 and off.max() < 0.2  # the spacing is 0.1
    assert (np.abs(found.path - true) < 2 * found.path_sd).mean() > 0.85 and np.median(found.path_sd) < 0.1
    assert np.sqrt(np.mean((found.power / POWER - 1) ** 2)) < 0.1 and not found.notes
    assert found.misfit == pytest.approx(found.noise, rel=0.2)


def test_the_place_of_a_spot_that_stays() -> None:
    found = recover_track(PLATE, readings(lambda t: torch.tensor([[0.37, 0.62]]).expand(len(t), 2)), RADIUS, moving=False,
                          start=ONES[0])
    assert (found.path == found.path[0]).all()
    assert np.abs(found.path[0] - [0.37, 0.62]).max() < 0.02 and found.path_sd[0].max() < 0.02
    assert found.power[2:-2].mean() == pytest.approx(POWER, rel=0.05)


@pytest.mark.parametrize("place", [(0.42, 0.56), (0.458, 0.541), (0.5, 0.5)], ids=["beside", "middle", "node"])
def test_a_spot_narrower_than_the_spacing_has_its_place_and_power(place: tuple[float, float]) -> None:
    """The truth is a point source: the sum of the plate's cosines, each with its own rate. Beside a node such a spot has nearly no
    values at the nodes, on a node a multiple."""
    diffusion, radius, dt, steps, rate = 0.05, 0.02, 0.1, 30, 0.05
    plate = Problem(box((12, 12)), PDE(diffusion=diffusion), [], dt)
    around = (0.2, 0.2), (0.8, 0.2), (0.2, 0.8), (0.8, 0.8), (0.5, 0.15), (0.15, 0.5)
    sensors = tuple(Point(q, f"s{k}") for k, q in enumerate(around))
    times, m = dt * np.arange(steps + 1), np.arange(40)
    size = np.where(m == 0, 1.0, np.sqrt(2.0))
    waves = diffusion * np.pi**2 * (m[:, None] ** 2 + m**2)
    grown = np.where(waves > 0, -np.expm1(-waves * times[:, None, None]) / np.maximum(waves, 1e-300), times[:, None, None])
    grown *= np.exp(-0.5 * radius**2 * waves / diffusion)

    def modes(x: tuple[float, ...]) -> np.ndarray:
        a, b = (size * np.cos(m * np.pi * c) for c in x)
        return a[:, None] * b

    seen = np.stack([rate * (grown * modes(place) * modes(s.place)).sum((1, 2)) for s in sensors], 1)
    noisy = seen + 1e-4 * np.random.default_rng(0).standard_normal(seen.shape)
    found = recover_track(plate, Readings(times, noisy, sensors), radius, moving=False)
    brought = 2 * np.pi * radius**2 * found.power[3:27]
    assert brought.mean() == pytest.approx(rate, rel=0.03) and found.misfit < 2e-4
    assert np.abs(found.path[0] - place).max() < 2e-3
    assert any(note.startswith("The spot has a radius of 0.02, the meshes that are compared spacings from") for note in found.notes)


def test_a_sensor_that_drifts_is_named() -> None:
    good = readings(lambda t: torch.tensor([[0.37, 0.62]]).expand(len(t), 2))
    good.values[:, 2] += np.linspace(0, 2.0, STEPS + 1)
    found = recover_track(PLATE, good, RADIUS, moving=False, start=ONES[0])
    assert any("Sensor 's02' disagrees" in note for note in found.notes), found.notes


def test_what_cannot_be_a_spot() -> None:
    cold = Readings(DT * np.arange(5), 1 - 0.1 * np.random.default_rng(0).random((5, 9)), SENSORS)
    with pytest.raises(InputError, match="no source of positive power"):
        recover_track(PLATE, cold, RADIUS, start=ONES[0])
    with pytest.raises(InputError, match="radius must be a positive"):
        recover_track(PLATE, cold, -1.0)
