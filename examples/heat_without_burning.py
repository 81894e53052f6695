"""How to heat the plate: powers of three lasers, and the path of a fourth, that meet targets and never burn the plate.

The plate is that of laser-heat at its small size. `dg.design` chooses; then the independent reference solver (quadratic elements on
half the spacing, eight substeps) says what the chosen sources really do.

    python examples/heat_without_burning.py
"""

import time

import numpy as np
import torch

import dgnet as dg
from dgnet.designs import Designed, FreeSpot, Target
from dgnet_paper.reference import solve as reference_solve
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.lasers import AMBIENT

PLACES, RADIUS = {"left": (0.35, 0.2), "top": (0.75, 0.78), "right": (1.05, 0.2)}, 0.08  # m
LIMITS = {"three lasers": 346.0, "a path": 320.0}  # K


def lasers() -> tuple[list[FreeSpot], list[Target]]:
    """Three at known places: their powers over time. Two points shall be warm from 10 s on."""
    sources = [FreeSpot(name, RADIUS, (0.0, 25.0), place=place, rate=10.0) for name, place in PLACES.items()]
    points = get("laser-heat", "small").mesh.points  # at nodes, where the reference is known without interpolation
    gear, rim = (tuple(points[np.linalg.norm(points - place, axis=1).argmin()].tolist()) for place in ((0.45, 0.22), (1.15, 0.22)))
    return sources, [Target("gear", 320.0, place=gear, begin=10.0), Target("rim", 310.0, place=rim, begin=10.0)]


def torch_on_a_path() -> tuple[list[FreeSpot], list[Target]]:
    """One that moves: its path and its power. A strip shall be evenly warm at the end."""
    source = FreeSpot("torch", 0.1, (0.0, 25.0), area=((0.2, 0.05), (1.2, 0.3)), bends=5, speed=0.3, knots=9)
    return [source], [Target("strip", 315.0, area=((0.4, 0.1), (1.0, 0.2)), begin=20.0)]


def judged(found: Designed, targets: list[Target]) -> tuple[float, float]:
    """By the reference: the worst share by which a target is missed, and the hottest node."""
    plate = get("laser-heat", "small")
    start = torch.full((1, plate.mesh.n_nodes, 1), AMBIENT, dtype=torch.float64)
    truth = reference_solve(plate.mesh, plate.pde, plate.conditions, start, dt=plate.dt, steps=plate.steps, refine=1, substeps=8,
                               degree=2, source=found.spots, order=2)[0]
    shares = []
    for target, met in zip(targets, found.met):
        rows = (met.times / plate.dt).round().astype(int)
        if target.place is None:
            points = plate.mesh.points
            inside = ((points >= target.area[0]) & (points <= target.area[1])).all(1)  # type: ignore[index]
            got = truth[rows][:, inside, 0]
        else:
            got = plate.mesh.interpolate(truth[rows], [target.place])[:, 0, 0]
        shares.append(float(np.sqrt(np.mean((np.asarray(got) - met.wanted) ** 2)) / (target.value - AMBIENT)))
    return max(shares), float(truth.max())


def main(names: tuple[str, ...] = tuple(LIMITS)) -> dict[str, tuple[float, float, float]]:
    """Of each design: share by which the targets are missed and margin to the limit, both by the reference, and seconds."""
    plate = get("laser-heat", "small")
    start = torch.full((plate.mesh.n_nodes, 1), AMBIENT, dtype=torch.float64)
    result = {}
    for name in names:
        sources, targets = lasers() if name == "three lasers" else torch_on_a_path()
        began = time.process_time()
        found = dg.design(plate.problem(), sources, targets, plate.steps, highest=LIMITS[name], start=start, model=dg.Universal(),
                          correct=True)
        seconds = time.process_time() - began
        share, hottest = judged(found, targets)
        print(f"{name}: {found.rollouts} rollouts, {seconds:.1f} s; by the reference, targets are missed by {share:.1%} and the "
              f"hottest node is at {hottest:.1f} K, {LIMITS[name]:g} K are allowed")
        for m in found.margins:
            print(f"    {m.what}: {m.reached:.5g}, limit {m.limit:g}, margin {m.margin:.3g} {m.where}".rstrip())
        result[name] = share, LIMITS[name] - hottest, seconds
    return result


if __name__ == "__main__":
    main()
