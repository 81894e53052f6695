"""Where was the laser, and how warm was the plate at first? Twelve thermocouples with 1% of noise on the plate of laser-heat.

One laser of the scenario's radii and powers runs along a random curve; nobody knows where, nor how strong it is. In a second test
the plate begins with three warm places that nobody knows. The truth comes from the independent reference on a mesh with half the
spacing and quadratic elements.

    python examples/where_was_the_laser.py 50
"""

import sys

import numpy as np
import torch
from scipy.interpolate import CubicSpline

import dgnet as dg
from dgnet.inverse import Readings, recover_track, spread_out
from dgnet_paper.reference import solve as reference_solve
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.lasers import AMBIENT, CAPACITY

SENSORS, NOISE, SEEN = 12, 0.01, 0.99
PLATE = get("laser-heat", "small")
MESH, DT, STEPS = PLATE.mesh, PLATE.dt, PLATE.steps
PLACES = tuple(spread_out(MESH, SENSORS))


def measured(states: np.ndarray, seed: int) -> Readings:
    clean = MESH.interpolate(states, [s.place for s in PLACES])[..., 0]
    noise = NOISE * (clean.max() - AMBIENT) * np.random.default_rng(1000 + seed).standard_normal(clean.shape)
    return Readings(DT * np.arange(STEPS + 1), clean + noise, PLACES)


def path(seed: int) -> tuple[CubicSpline, float, float]:
    """The curve, the radius in m and the power in K/s."""
    rng = np.random.default_rng(seed)
    corners, radius, power = rng.uniform((0.1, 0.1), (1.3, 0.8), (5, 2)), 2 * rng.uniform(0.08, 0.12), rng.uniform(0.3e8, 0.6e8)
    return CubicSpline(np.linspace(0, DT * STEPS, 5), corners), radius, power / CAPACITY


def warm_places(seed: int, x: torch.Tensor) -> torch.Tensor:
    """The start above the surroundings in K at points x [n, 2]: [n, 1]."""
    rng = np.random.default_rng(seed)
    places, heights, widths = rng.uniform((0.1, 0.1), (1.3, 0.8), (3, 2)), rng.uniform(30, 100, 3), rng.uniform(0.25, 0.4, 3)
    bumps = [h * torch.exp(-(x - torch.tensor(p)).square().sum(1) / (2 * w**2)) for p, h, w in zip(places, heights, widths)]
    return sum(bumps[1:], bumps[0])[:, None]


def main(repeats: int = 4) -> dict[str, float]:
    """Medians of the errors: of the path in mesh spacings, of the power, of the start where it is seen; shares inside the bands."""
    spacing = float(np.median(np.linalg.norm(np.diff(MESH.points[MESH.edges], axis=1)[:, 0], axis=1)))
    start, curves = torch.full((MESH.n_nodes, 1), AMBIENT, dtype=torch.float64), [path(seed) for seed in range(repeats)]

    def laser(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        away = [(x[None] - torch.tensor(curve(t.numpy()))[:, None]).square().sum(-1) for curve, _, _ in curves]
        return torch.stack([q * torch.exp(-a / (2 * r**2)) for a, (_, r, q) in zip(away, curves)])[..., None]

    options = {"dt": DT, "steps": STEPS, "refine": 1, "degree": 2, "order": 2}
    heated = reference_solve(MESH, PLATE.pde, PLATE.conditions, start[None], substeps=8, source=laser, **options)

    def warm(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([AMBIENT + warm_places(seed, x) for seed in range(repeats)])

    cooling = reference_solve(MESH, PLATE.pde, PLATE.conditions, warm, substeps=2, **options)
    rows = []
    for seed, (curve, radius, power) in enumerate(curves):
        found = recover_track(PLATE.problem(), measured(heated[seed], seed), radius, start=start)
        true = curve(found.times)
        answer = dg.recover(PLATE.problem(), measured(cooling[seed], seed), ["start"], start=start)
        mean, sd, seen = (answer.get("start", what)[:, 0] for what in ("mean", "sd", "seen"))
        field = warm_places(seed, torch.tensor(MESH.points))[:, 0].numpy()
        off, apart = (mean - field)[seen > SEEN], np.linalg.norm(found.path - true, axis=1)
        rows.append((np.median(apart) / spacing, np.sqrt(np.mean((found.power / power - 1) ** 2)),
                     (np.abs(found.path - true) < 1.645 * found.path_sd).mean(),
                     (np.abs(found.power - power) < 1.645 * found.power_sd).mean(),
                     np.sqrt(np.square(off).mean()) / np.ptp(field), (seen > SEEN).mean(),
                     (np.abs(mean - field) < 1.645 * sd).mean()))
    way, power, way_in, power_in, field, share, field_in = np.array(rows).T
    print(f"path ({repeats}): {np.median(way):.2f} mesh spacings (median), {way.max():.2f} (largest); "
          f"{way_in.mean():.0%} inside the bands of 90%")
    print(f"power ({repeats}): {np.median(power):.1%} rms (median), {power.max():.1%} (largest); "
          f"{power_in.mean():.0%} inside the bands of 90%")
    print(f"start ({repeats}): {np.median(field):.1%} of its range (rms, median), {field.max():.1%} (largest) where the readings "
          f"remove {SEEN:.0%} of its variance, that is at {np.median(share):.0%} of the nodes; "
          f"{field_in.mean():.0%} of all nodes inside the bands of 90%")
    return {"path": float(np.median(way)), "power": float(np.median(power)), "inside": float(way_in.mean()),
            "start": float(np.median(field))}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
