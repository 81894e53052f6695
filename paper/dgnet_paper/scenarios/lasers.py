"""Steel, and the moving lasers of the plate: what laser-heat and phase-transition share.

Kinds and ranges of the authors' public script; random beginnings and soft switching are ours.
"""

from __future__ import annotations

import numpy as np

from dgnet.problems.units import Units
from dgnet_paper.scenarios.paths import Path, billiard, lissajous, orbit, raster, spline, waypoint
from dgnet_paper.scenarios.spots import Spot

DENSITY, HEAT, CONDUCTIVITY, CONVECTION, AMBIENT = 7850.0, 450.0, 50.0, 25.0, 298.15
CAPACITY = DENSITY * HEAT  # J/(m^3 K)
UNITS = Units("m", "s", {"T": "K"})

LOW, HIGH = np.array([0.0, 0.0]), np.array([1.4, 0.9])
SPEED = 0.8
ORBITS = (((0.25, 0.45), 0.146, (0.8e8, 1.1e8)), ((1.15, 0.45), 0.146, (0.8e8, 1.1e8)),
          ((0.7, 0.45), 0.26, (0.8e8, 1.1e8)), ((0.7, 0.45), 0.665, (1.2e8, 1.5e8)))
TRAINING_KINDS = ("waypoint", "raster", "billiard")
TEST_KINDS = ("spline", "lissajous")
FASTEST, NARROWEST = 0.665 * 1.2, 0.03
"""Speed of the quickest spot (the outer orbit) and radius of the smallest one: what quadrature in time must resolve."""


def free_path(kind: str, rng: np.random.Generator, horizon: float) -> Path:
    """A path over the plate. Those that end begin at a random time, so that not all of them are over at once."""
    begin = rng.uniform(0.0, 0.6 * horizon)
    if kind == "waypoint":
        return waypoint(rng.uniform(LOW, HIGH, (int(rng.integers(5, 11)), 2)), SPEED, begin)
    if kind == "raster":
        extent = rng.uniform(0.2, 0.5, 2)
        corner = rng.uniform(LOW, HIGH - extent)
        across, up = np.diag(extent)
        return raster(corner, across, up, int(rng.integers(5, 10)), SPEED, begin)
    if kind == "billiard":
        angle = rng.uniform(0, 2 * np.pi)
        velocity = SPEED * np.array([np.cos(angle), np.sin(angle)])
        return billiard(LOW.tolist(), HIGH.tolist(), rng.uniform(LOW, HIGH), velocity)
    if kind == "lissajous":
        return lissajous((LOW + HIGH) / 2, rng.uniform(0.5, 0.95, 2) * (HIGH - LOW) / 2, 0.2 * rng.integers(1, 5, 2),
                         rng.uniform(0, 2 * np.pi, 2))
    if kind == "spline":
        duration = rng.uniform(40.0, 60.0) * horizon / 60.0
        return spline(rng.uniform(LOW, HIGH, (int(rng.integers(5, 9)), 2)), duration)
    raise KeyError(kind)


def plate_spots(split: str, rng: np.random.Generator, horizon: float, widen: float = 1.0) -> list[Spot]:
    """Four spots that always orbit and six of the kinds that belong to the split; peaks as dT/dt = P / (rho c_p)."""
    spots = []
    for centre, radius, peak in ORBITS:
        path: Path = orbit(centre, radius, rng.uniform(0.8, 1.2) * rng.choice([-1, 1]), rng.uniform(0, 2 * np.pi))
        spots.append(Spot("orbit", path, widen * rng.uniform(0.03, 0.04), rng.uniform(*peak) / CAPACITY))
    kinds = TRAINING_KINDS if split == "train" else TEST_KINDS
    for kind in rng.choice(kinds, 6):
        path = free_path(str(kind), rng, horizon)
        spots.append(Spot(str(kind), path, widen * rng.uniform(0.08, 0.12), rng.uniform(0.3e8, 0.6e8) / CAPACITY))
    return spots


def labels(spots: list[Spot]) -> tuple[str, ...]:
    return tuple(spot.kind for spot in spots)
