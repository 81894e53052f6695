"""Ten lasers on and in an L-shaped bracket with a bore."""

from collections.abc import Sequence

import numpy as np
import torch

from dgnet.mesh import ALL
from dgnet.mesh.library import shipped
from dgnet.problems.conditions import Robin
from dgnet.problems.pde import PDE
from dgnet.problems.sources import panels_for
from dgnet.training.plan import general
from dgnet_paper.scenarios.lasers import AMBIENT, CAPACITY, CONDUCTIVITY, CONVECTION, UNITS, labels
from dgnet_paper.scenarios.paths import Path, billiard, lissajous, orbit, raster, spline, waypoint
from dgnet_paper.scenarios.scenario import Draw, Figure, Parameter, Sample, Scenario, Truth
from dgnet_paper.scenarios.spots import Spot, Spots

PAPER = {"DGNet": Figure(44.2, 0.0314), "DeepONet": Figure(4.41e3, 0.1630), "MGN": Figure(4.60e2, 0.1249),
         "MP-PDE": Figure(2.59e4, 0.1993), "BENO": Figure(5.28e2, 0.0938), "PhyMPGN": Figure(8.83e3, 0.2352)}
ROBUSTNESS = {"size": (15.3, 17.6, 38.8, 73.6), "power": (22.7, 17.6, 16.2, 19.5), "count": (10.9, 17.6, 32.6, 44.0)}
"""The paper's MSE of DGNet with this attribute of the sources scaled by 0.5, 1, 2 and 3."""

SPOTS, SPEED, RADIUS = 10, 0.009, (0.5e-3, 2.5e-3)
BORE, BORE_ORBIT = (0.0375, 0.015, 0.010), 0.009
DETERMINISTIC, STOCHASTIC = ("orbit", "raster", "lissajous"), ("spline", "waypoint", "billiard")
# the upper face of the base and the inner face of the back: corner, two edge vectors
FACES = ((np.array([0.016, 0.002, 0.010]), np.array([0.042, 0.0, 0.0]), np.array([0.0, 0.026, 0.0])),
         (np.array([0.010, 0.002, 0.016]), np.array([0.0, 0.026, 0.0]), np.array([0.0, 0.0, 0.022])))
ARMS = (((0.0, 0.0, 0.0), (0.06, 0.03, 0.01)), ((0.0, 0.0, 0.0), (0.01, 0.03, 0.04)))


def path(kind: str, rng: np.random.Generator, horizon: float) -> Path:
    corner, across, up = FACES[rng.integers(2)]
    begin, turn = rng.uniform(0, 0.5 * horizon), 2 * np.pi
    if kind == "orbit":
        rate = rng.uniform(0.8, 1.0) * rng.choice([-1, 1])
        return orbit(BORE, BORE_ORBIT, rate, rng.uniform(0, turn), (1, 0, 0), (0, 1, 0))
    if kind == "raster":
        part = rng.uniform(0.5, 1.0, 2)
        at = corner + rng.uniform(0, 1 - part[0]) * across + rng.uniform(0, 1 - part[1]) * up
        return raster(at, part[0] * across, part[1] * up, int(rng.integers(5, 10)), SPEED, begin)
    if kind == "lissajous":
        size = 0.5 * (across + up)
        rates, phases = 0.1 * rng.integers(1, 4, 3), rng.uniform(0, turn, 3)
        return lissajous(corner + size, rng.uniform(0.6, 1.0) * size, rates, phases)
    if kind == "billiard":
        low, high = ARMS[rng.integers(2)]
        heading = rng.normal(size=3)
        return billiard(low, high, rng.uniform(low, high), SPEED * heading / np.linalg.norm(heading))
    face = rng.integers(2, size=int(rng.integers(5, 9)))
    points = np.stack([FACES[f][0] + rng.uniform() * FACES[f][1] + rng.uniform() * FACES[f][2] for f in face])
    if kind == "waypoint":
        return waypoint(points, SPEED, begin)
    longest = np.linalg.norm(np.diff(points, axis=0), axis=1).max()
    return spline(points, max(horizon, 1.5 * longest * len(points) / SPEED))


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """Deterministic and stochastic paths in turn; more spots (scale) leave the first ones as they are."""
    scale, count = scenario.scale, max(1, round(SPOTS * scenario.scale.count))
    widen = 3.0 if scenario.size == "small" else 1.0
    batch = []
    for _, rng in draws:
        spots = []
        for k in range(count):
            kind = str(rng.choice(STOCHASTIC if k % 2 else DETERMINISTIC))
            on, off = rng.uniform(-0.2, 0.3) * scenario.horizon, rng.uniform(0.7, 1.2) * scenario.horizon
            route = path(kind, rng, scenario.horizon)
            radius, peak = rng.uniform(*RADIUS), rng.uniform(4e8, 10e8) / CAPACITY
            spots.append(Spot(kind, route, widen * scale.size * radius, scale.power * peak / widen**2,
                              (on, off, 0.15 * scenario.horizon)))
        batch.append(spots)
    start = torch.full((len(draws), scenario.mesh.n_nodes, 1), AMBIENT, dtype=torch.float64)
    return Sample(start, Spots(batch), labels=tuple(labels(s) for s in batch))


def scenario(size: str) -> Scenario:
    small = size == "small"
    dt, steps, train, test = (0.5, 40, 4, 4) if small else (0.5, 120, 20, 40)
    return Scenario(
        name="laser-heat-3d", title="Laser heat treatment of a bracket", size=size,
        equation=r"\rho c_p\,\partial_t T = \nabla\cdot(k\nabla T) + Q(\mathbf{x},t),\qquad "
                 r"-k\,\partial_n T = h(T-T_\mathrm{amb})\ \text{on the surface}",
        geometry="L-bracket, 60 × 30 mm base, back 40 mm high, 10 mm thick, bore of radius 7 mm.",
        build_mesh=lambda: shipped("bracket-small" if small else "bracket"),
        pde=PDE(("T",), diffusion=CONDUCTIVITY / CAPACITY), conditions=(Robin(ALL, CONVECTION / CAPACITY, AMBIENT),),
        dt=dt, steps=steps, train=train, test=test, sampler=sample, offset=(AMBIENT,), units=UNITS, scalable=True,
        truths={"same-mesh": Truth(0, 8), "converged": Truth(0, 4, degree=2)}, paper=PAPER,
        panels=panels_for(SPEED, RADIUS[0] * (3.0 if small else 1.0), dt),
        training=general(small),
        parameters=(
            Parameter("ρ, c_p, k", "7850 kg/m³, 450 J/(kg K), 50 W/(m K)", "paper"),
            Parameter("convection h", "25 W/(m² K)", "paper"),
            Parameter("convection acts on", "the surface (a volumetric term would not have the right unit)", "ours"),
            Parameter("T_amb", "298.15 K, also the initial state", "ours"),
            Parameter("time", f"{steps} steps of {dt:g} s", "ours" if small else "paper"),
            Parameter("lasers", "ten moving Gaussian spots, radii 0.5–2.5 mm, ramped power, deterministic and stochastic "
                      "paths" + (" (radii tripled, power lowered at this size)" if small else ""), "paper"),
            Parameter("paths", f"{', '.join(DETERMINISTIC)} and {', '.join(STOCHASTIC)} in turn, {1e3 * SPEED:g} mm/s, on "
                      "the upper face of the base, the inner face of the back, around the bore, or through the arms",
                      "ours"),
            Parameter("peak power", "4–10e8 W/m³, ramps of 15% of the time", "ours"),
            Parameter("scale factors", "`scaled(size=, power=, count=)`, the paper's 0.5, 1, 2, 3", "paper")))
