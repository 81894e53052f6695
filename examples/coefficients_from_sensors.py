"""Two regional diffusivities and the exchange with the surroundings, from twelve thermocouples with 1% of noise.

The plate is that of laser-heat at its small size, of a material that conducts 20 times and loses 200 times as much as steel, so
that 20 s show it. The truth comes from the independent reference on a mesh with half the spacing and quadratic elements.
With `latent`, a small plate melts, and its latent heat is unknown as well; there the truth is that of the classical solver with a
quarter of the spacing and of the step.

    python examples/coefficients_from_sensors.py 50
    python examples/coefficients_from_sensors.py 15 latent
"""

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import dgnet as dg
from dgnet.inverse import Readings, recover_coefficients, spread_out
from dgnet.problems.curves import ByRegion, Curve
from dgnet_paper.reference import solve as reference_solve
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.lasers import AMBIENT, CAPACITY, CONDUCTIVITY, CONVECTION

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
    states = reference_solve(mesh, true, [dg.Robin("boundary", TRUE["convection"] * h, AMBIENT)], start, dt=dt, steps=steps,
                                refine=1, substeps=8, degree=2, source=lamps, order=2)[0]
    clean = mesh.interpolate(states, [s.place for s in spread_out(mesh, SENSORS)])[..., 0]
    guess = dg.Problem(mesh, dg.PDE(("T",), diffusion=D), [dg.Robin("boundary", h, AMBIENT)], dt)
    return repeated(repeats, guess, TRUE, ["diffusion", "convection"], clean, start[0], lamps)


def latent(repeats: int = 1) -> dict[str, tuple[float, float]]:
    """The same for a plate of 1 x 0.7 that melts between 1.3 and 1.7, with its latent heat as a fourth unknown; without units."""
    mesh, dt, steps = dg.box((10, 7), upper=(1.0, 0.7)), 0.2, 20
    west = np.flatnonzero(mesh.centroids[:, 0] < 0.5)
    mesh = replace(mesh, regions={"west": west, "east": np.setdiff1d(np.arange(mesh.n_cells), west)})
    fine, true = mesh.refined().refined(), {"diffusion in east": 1.2, "diffusion in west": 0.85, "convection": 1.3, "latent": 1.2}

    def problem(mesh: dg.Mesh, dt: float, factors: dict[str, float]) -> dg.Problem:
        melts = Curve([0.0, 9.0], [1.0, 1.0], extends=True).melting(0.5 * factors["latent"], 1.3, 1.7)
        D = ByRegion({name: 0.03 * factors[f"diffusion in {name}"] for name in ("west", "east")})
        rim = dg.Robin("boundary", 0.1 * factors["convection"], 1.0)
        return dg.Problem(mesh, dg.PDE(("T",), diffusion=D, capacity=melts), [rim], dt)

    def lamps(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        parts = [2.5 * (1 + 0.5 * torch.sin(1.5 * t + k))[:, None] * torch.exp(-((x - torch.tensor(p)) ** 2).sum(1) / (2 * 0.12**2))
                 for k, p in enumerate(((0.25, 0.3), (0.7, 0.45), (0.5, 0.15)))]
        return sum(parts[1:], parts[0])[None, ..., None]

    when, start = 0.25 * dt * torch.arange(4 * steps, dtype=torch.float64), torch.ones(1, fine.n_nodes, 1, dtype=torch.float64)
    states = dg.rollout(dg.Classical(), problem(fine, 0.25 * dt, true), start,
                        dg.step_average(lamps, torch.tensor(fine.points), when, 0.25 * dt))[0, ::4]
    clean = fine.interpolate(states, [s.place for s in spread_out(mesh, SENSORS)])[..., 0]
    return repeated(repeats, problem(mesh, dt, dict.fromkeys(true, 1.0)), true, ["latent", "convection", "diffusion"], clean,
                    start[0, : mesh.n_nodes], lamps)


def repeated(repeats: int, guess: dg.Problem, true: dict[str, float], unknown: list[str], clean: np.ndarray, start: torch.Tensor,
             drive: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> dict[str, tuple[float, float]]:
    """Rms errors of the factors on the guess and shares inside their bands, from readings `clean` [T, S] with noise."""
    sensors, dt, steps = tuple(spread_out(guess.mesh, SENSORS)), guess.dt, len(clean) - 1
    errors, inside = [], []
    for seed in range(repeats):
        noise = NOISE * (clean.max() - float(start.mean())) * np.random.default_rng(seed).standard_normal(clean.shape)
        readings = Readings(dt * np.arange(steps + 1), clean + noise, sensors)
        found = recover_coefficients(guess, readings, unknown, per_region=True, start=start, source=drive)
        off = np.log(found.factors / [true[name] for name in found.names])
        errors.append(off)
        inside.append(np.abs(off) < 1.645 * found.sd)
    result = {}
    for name, off, held in zip(found.names, np.abs(np.transpose(errors)), np.transpose(inside)):
        result[name] = float(np.sqrt(np.mean(off**2))), float(held.mean())
        print(f"{name} ({repeats}): rms error {result[name][0]:.1%}, {np.median(off):.1%} (median), {off.max():.1%} (largest); "
              f"{held.mean():.0%} inside the bands of 90%")
    return result


if __name__ == "__main__":
    (latent if "latent" in sys.argv else main)(*[int(word) for word in sys.argv[1:2]])
