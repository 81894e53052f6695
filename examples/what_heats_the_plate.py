"""What heats the plate? The strengths of three lasers over time, from twelve thermocouples with 1% of noise.

The plate is that of laser-heat at its small size. The truth comes from the independent reference on a mesh with half the spacing
and quadratic elements, never from the model's own operator. Places of the sensors are chosen among 100 by `dg.place`. Half of the
histories swing smoothly, half are switched on and off once.

    python examples/what_heats_the_plate.py 50
"""

import sys

import numpy as np
import torch

import dgnet as dg
from dgnet.inverse import Readings, spread_out
from dgnet_paper.reference import solve as reference_solve
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.lasers import AMBIENT

PLACES, RADIUS, SENSORS, NOISE = ((0.35, 0.2), (0.75, 0.78), (1.05, 0.2)), 0.08, 12, 0.01


def strengths(seed: int, t: torch.Tensor) -> torch.Tensor:
    """Of the three lasers in K/s at times t [T]: [3, T]; even seeds swing, odd ones are switched with ramps of 1 s."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in PLACES:
        peak, phase, speed, on, off = rng.uniform((8, 0, 0.2, 0, 10), (25, 6.28, 0.6, 8, 20))
        swing, switched = 1 + 0.6 * torch.sin(speed * t + phase), (t - on).clip(0, 1) - (t - off).clip(0, 1)
        rows.append(peak * (switched if seed % 2 else swing))
    return torch.stack(rows)


def main(repeats: int = 4) -> dict[str, dict[str, float]]:
    """Of each kind of history: relative rms error of the strengths (median, largest), share of them inside their bands of 90%."""
    plate = get("laser-heat", "small")
    problem, mesh, dt, steps = plate.problem(), plate.mesh, plate.dt, plate.steps
    tables = [np.array([[*place, RADIUS, 1.0]] * 2) for place in PLACES]
    spots = dg.SpotTable(("left", "top", "right"), (np.array([0.0, 1.0]),) * 3, tuple(tables))

    def lasers(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        near = torch.stack([torch.exp(-((x - torch.tensor(p)) ** 2).sum(1) / (2 * RADIUS**2)) for p in PLACES])
        return torch.stack([strengths(seed, t).T @ near for seed in range(repeats)])[..., None]

    start = torch.full((1, mesh.n_nodes, 1), AMBIENT, dtype=torch.float64)
    truth = reference_solve(mesh, plate.pde, plate.conditions, start, dt=dt, steps=steps, refine=1, substeps=8, degree=2,
                               source=lasers, order=2)
    best = dg.place(problem, spread_out(mesh, 100), SENSORS, ["source"], steps, noise=2.0, strength=15.0, spots=spots)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    found: dict[str, list[tuple[float, float]]] = {"swinging": [], "switched": []}
    for seed in range(repeats):
        clean = mesh.interpolate(truth[seed], [s.place for s in best.sensors])[..., 0]
        noise = NOISE * (clean.max() - AMBIENT) * np.random.default_rng(1000 + seed).standard_normal(clean.shape)
        answer = dg.recover(problem, Readings(dt * np.arange(steps + 1), clean + noise, best.sensors), ["source"], spots=spots,
                            start=start[0])
        when = dt * torch.arange(steps, dtype=torch.float64)
        true = sum(0.5 * w * strengths(seed, when + 0.5 * dt * (1 + x)) for x, w in zip(nodes, weights)).T.numpy()
        low, high = (band.reshape(3, steps).T for band in answer.answers["source"].band())
        error = np.sqrt(((answer.get("source") - true) ** 2).mean() / (true**2).mean())
        found["switched" if seed % 2 else "swinging"].append((error, ((low <= true) & (true <= high)).mean()))
    result = {}
    for kind, rows in found.items():
        error, inside = np.array(rows).T
        result[kind] = {"median": float(np.median(error)), "largest": float(error.max()), "inside": float(inside.mean())}
        print(f"{kind} ({len(rows)}): rms error {np.median(error):.1%} (median), {error.max():.1%} (largest); "
              f"{inside.mean():.0%} inside the bands of 90%")
    random = [best.left(np.random.default_rng(k).choice(100, SENSORS, replace=False)) for k in range(50)]
    result["places"] = {"variance": float(np.median(random)) / best.left(best.chosen)}
    print(f"posterior variance of random places over that of the chosen ones: {result['places']['variance']:.1f} (median of 50)")
    return result


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)
