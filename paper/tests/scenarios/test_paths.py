"""Paths: where they should be, stateless, inside their boxes, on and off."""

import numpy as np
import pytest
import torch

from dgnet_paper.scenarios.lasers import HIGH, LOW, SPEED, free_path
from dgnet_paper.scenarios.paths import RAMP, Paths, billiard, lissajous, orbit, raster, spline, waypoint

KINDS = ("waypoint", "raster", "billiard", "lissajous", "spline")
T = torch.linspace(0, 60, 2401, dtype=torch.float64)


def random_paths(n: int = 12, seed: int = 0) -> Paths:
    rng = np.random.default_rng(seed)
    return Paths([free_path(KINDS[k % 5], rng, 60.0) for k in range(n)]
                 + [orbit((0.7, 0.4), 0.3, 1.1, 0.2), orbit((0.7, 0.4), 0.1, -0.9, 0.5)])


def test_positions_do_not_depend_on_what_was_asked_before() -> None:
    paths = random_paths()
    whole, power = paths.position(T), paths.power(T)
    order = torch.randperm(len(T), generator=torch.Generator().manual_seed(1))
    assert torch.equal(paths.position(T[order]), whole[:, order]) and torch.equal(paths.power(T[order]), power[:, order])
    assert torch.equal(paths.position(T[700:701]), whole[:, 700:701])
    assert torch.equal(random_paths().position(T), whole) and not torch.equal(random_paths(seed=1).position(T), whole)
    assert whole.shape == (14, len(T), 2) and power.shape == (14, len(T))
    assert float(power.min()) >= 0 and float(power.max()) <= 1


def test_joined_paths_equal_single_ones() -> None:
    rng = np.random.default_rng(3)
    singles = [free_path(kind, rng, 60.0) for kind in KINDS * 3]
    joined = Paths(singles)
    for k, path in enumerate(singles):
        assert torch.allclose(joined.position(T)[k], path.position(T)[0], atol=1e-14)
        assert torch.allclose(joined.power(T)[k], path.power(T)[0], atol=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_billiard_stays_in_its_box_at_constant_speed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = free_path("billiard", rng, 60.0).position(T)[0].numpy()
    assert (x >= LOW - 1e-12).all() and (x <= HIGH + 1e-12).all()
    assert (x.min(0) < LOW + 0.05).all() and (x.max(0) > HIGH - 0.05).all()
    speed = np.linalg.norm(np.diff(x, axis=0), axis=1) / 0.025
    assert np.median(speed) == pytest.approx(SPEED, rel=1e-9) and speed.max() <= SPEED * (1 + 1e-9)


def test_billiard_by_hand() -> None:
    path = billiard((0.0, 0.0), (1.0, 2.0), np.array([0.5, 0.5]), np.array([1.0, -0.5]))
    x = path.position(torch.tensor([0.0, 0.5, 1.0, 2.0], dtype=torch.float64))[0]
    assert torch.allclose(x, torch.tensor([[0.5, 0.5], [1.0, 0.25], [0.5, 0.0], [0.5, 0.5]], dtype=torch.float64))


def test_waypoints_are_passed_on_time_and_then_off() -> None:
    points = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]])
    path = waypoint(points, 2.0, start=1.0)
    t = torch.tensor([0.0, 1.0, 1.5, 2.5, 4.5, 9.0], dtype=torch.float64)
    want = torch.tensor([[0, 0], [0, 0], [1, 0], [3, 0], [3, 4], [3, 4]], dtype=torch.float64)
    assert torch.allclose(path.position(t)[0], want)
    power = path.power(torch.tensor([0.9, 1.0 + RAMP, 3.0, 4.5 - RAMP, 4.5, 8.0], dtype=torch.float64))[0]
    assert torch.allclose(power, torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64))


def test_raster_sweeps_its_box() -> None:
    path = raster(np.array([1.0, 2.0]), np.array([0.4, 0.0]), np.array([0.0, 0.2]), 5, 0.8)
    assert path.vertices.shape == (1, 10, 2) and float(path.duration) == pytest.approx((5 * 0.4 + 0.2) / 0.8)
    v = path.vertices[0].numpy()
    assert v.min(0) == pytest.approx([1.0, 2.0]) and v.max(0) == pytest.approx([1.4, 2.2])
    assert np.allclose(np.abs(np.diff(v, axis=0)).min(axis=1), 0)  # along one axis at a time


def test_spline_goes_through_its_points_smoothly() -> None:
    points = np.random.default_rng(0).uniform(size=(6, 3))
    path = spline(points, 10.0, start=2.0)
    knots = torch.linspace(2.0, 12.0, 6, dtype=torch.float64)
    assert np.allclose(path.position(knots)[0].numpy(), points)
    eps = 1e-4
    velocity = (path.position(knots[1:-1] + eps) - path.position(knots[1:-1])) / eps
    before = (path.position(knots[1:-1]) - path.position(knots[1:-1] - eps)) / eps
    assert torch.allclose(velocity, before, atol=1e-3)
    assert float(path.power(torch.tensor([1.9, 12.1])).abs().sum()) == 0


def test_closed_curves() -> None:
    t = torch.tensor([0.0, 0.7], dtype=torch.float64)
    period = 2 * np.pi / 1.5
    path = orbit((0.5, 0.5, 0.1), 0.2, 1.5, 0.3, (1, 0, 0), (0, 1, 0))
    assert torch.allclose(path.position(t), path.position(t + period))
    assert torch.allclose((path.position(t)[0] - torch.tensor([0.5, 0.5, 0.1])).norm(dim=1), torch.tensor(0.2, dtype=torch.float64))
    curve = lissajous(np.zeros(2), np.array([1.0, 2.0]), np.array([0.2, 0.4]), np.array([0.0, 1.0]))
    assert torch.allclose(curve.position(t), curve.position(t + 2 * np.pi / 0.2), atol=1e-12)
