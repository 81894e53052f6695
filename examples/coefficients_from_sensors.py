"""Two regional diffusivities and the exchange with the surroundings, from twelve thermocouples with 1% of noise.

The plate is that of laser-heat at its small size, of a material that conducts 20 times and loses 200 times as much as steel, so
that 20 s show it. The truth comes from the independent reference on a mesh with half the spacing and quadratic elements.

    python examples/coefficients_from_sensors.py 50
"""

import sys
from dataclasses import replace

import numpy as np
import torch

import dgnet as dg
from dgnet.scenarios import get
from dgnet.scenarios.lasers import AMBIENT, CAPACITY, CONDUCTIVITY, CONVECTION
from dgnet.sensors import Readings, recover_coefficients
from dgnet.sensors.place import spread_out

TRUE = {"diffusion in east": 1.3, "diffusion in west": 0.8, "convection": 1.4}  # factors on the guess
PLACES, SENSORS, NOISE = ((0.35, 0.2), (0.75, 0.78), (1.05, 0.2)), 12, 0.01


def lamps(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    parts = [15 * (1 + 0.5 * torch.sin(0.5 * t + k))[:, None] * torch.exp(-((x - torch.tensor(p)) ** 2).sum(1) / (2 * 0.1**2))
             for k, p in enumerate(PLACES)]
    return sum(parts[1:], parts[0])[None, ..., None]


def main(repeats: int = 2) -> dict[str, tuple[float, float]]:
    """Of each coefficient: the rms of its relative error, and how often the truth was in the band of 90%."""
    plate = get("laser-heat", "small")
    dt, steps, west = plate.dt, plate.steps, plate.mesh.centroids[:, 0] < 0.7
    mesh = replace(plate.mesh, regions={"west": np.flatnonzero(west), "east": np.flatnonzero(~west)})
    D, h = 20 * CONDUCTIVITY / CAPACITY, 200 * CONVECTION / CAPACITY
    true = dg.PDE(("T",), diffusion=D * np.where(west, TRUE["diffusion in west"], TRUE["diffusion in east"]))
    start = torch.full((1, mesh.n_nodes, 1), AMBIENT, dtype=torch.float64)
    states = dg.reference_solve(mesh, true, [dg.Robin("boundary", TRUE["convection"] * h, AMBIENT)], start, dt=dt, steps=steps,
                                refine=1, substeps=8, degree=2, source=lamps, order=2)[0]
    sensors = tuple(spread_out(mesh, SENSORS))
    clean = mesh.interpolate(states, [s.place for s in sensors])[..., 0]
    guess = dg.Problem(mesh, dg.PDE(("T",), diffusion=D), [dg.Robin("boundary", h, AMBIENT)], dt)
    when = dt * torch.arange(steps, dtype=torch.float64)
    errors, inside = [], []
    for seed in range(repeats):
        noise = NOISE * (clean.max() - AMBIENT) * np.random.default_rng(seed).standard_normal(clean.shape)
        readings = Readings(dt * np.arange(steps + 1), clean + noise, sensors)
        found = recover_coefficients(guess, readings, ["diffusion", "convection"], per_region=True, start=start[0],
                                     source=lambda x: dg.step_average(lamps, x, when, dt)[0])
        off = np.log(found.factors / [TRUE[name] for name in found.names])
        errors.append(off)
        inside.append(np.abs(off) < 1.645 * found.sd)
    result = {name: (float(np.sqrt(np.mean(np.square(e)))), float(np.mean(i)))
              for name, e, i in zip(found.names, np.transpose(errors), np.transpose(inside))}
    for name, (error, share) in result.items():
        print(f"{name}: rms error {error:.1%}, {share:.0%} of {repeats} inside the bands of 90%")
    return result


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
