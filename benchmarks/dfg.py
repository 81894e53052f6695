"""The DFG benchmark: flow around a cylinder against published drag, lift and Strouhal intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError, SolveError
from dgnet.mesh.mesh import Mesh
from dgnet.progress import Report
from dgnet_paper.reference.flow import ChannelFlow
from dgnet_paper.reference.taylor_hood import p2_points, p2_values

DFG = {
    "2D-1": {"drag": (5.57, 5.59), "lift": (0.0104, 0.0110), "pressure drop": (0.1172, 0.1176)},
    "2D-2": {"drag max": (3.22, 3.24), "lift max": (0.99, 1.01), "Strouhal": (0.295, 0.305)},
}
"""Published intervals of the cylinder benchmarks (Schäfer and Turek 1996): steady at Re 20, periodic at Re 100.

The signed maximum of the lift in 2D-2 converges to 0.987, just below its interval; see docs/results/flow.md.
"""


def dfg(case: str, *, mesh: Mesh | None = None, refine: int = 0, dt: float | None = None, longest: float | None = None,
        device: str | torch.device = "cpu", method: str = "auto",
        progress: Report | None = None) -> dict[str, Any]:
    """Flow around a cylinder against the published intervals, on `mesh.refined(refine)` with the cylinder made round again.

    With `refine` > 0 the flow develops on the coarse mesh first. `dt` is that of the last mesh; see `cylinder_flow`.
    """
    if case not in DFG:
        raise InputError(f"unknown DFG case '{case}' (known: {', '.join(DFG)})")
    if refine < 0:
        raise InputError(f"refine must not be negative, got {refine}")
    if mesh is None:
        from dgnet.mesh.library import shipped  # here, so that flows on other meshes do not need the files

        mesh = shipped("dfg-cylinder")
    begin = None
    for level in range(refine + 1):
        begin, ours = cylinder_flow(case, mesh.refined(level), dt=dt if level == refine else None, begin=begin, longest=longest,
                                    device=device, method=method, progress=progress)
    return ours


def cylinder_flow(case: str, mesh: Mesh, *, dt: float | None = None, begin: ChannelFlow | None = None,
                  longest: float | None = None, tolerance: float = 1e-4, rounded: bool = True,
                  device: str | torch.device = "cpu", method: str = "auto",
                  progress: Report | None = None) -> tuple[ChannelFlow, dict[str, Any]]:
    """The developed flow of a DFG case on one mesh, and its figures beside the published ones.

    Channel [0, 2.2] x [0, 0.41], cylinder of diameter D = 0.1 at (0.2, 0.2), nu = 1e-3, mean inflow U = 0.2 (2D-1) or 1 (2D-2),
    coefficients 2 F / (U^2 D). It marches, from rest or from the state of `begin` on another mesh, until the force is steady
    (2D-1) or until the extremes of drag and lift repeat to within `tolerance` over three periods (2D-2), and no farther than
    `longest` (20 and 10; `settled` in the result says which). `dt` defaults to 0.85 of the step limit, or to a cautious guess of
    that where the flow starts from rest. `rounded` gives the cylinder's polygon the area of the circle.
    """
    steady, diameter = case == "2D-1", 0.1
    speed = 0.2 if steady else 1.0
    mesh = _rounded(mesh, (0.2, 0.2), diameter / 2, rounded)
    longest = (20.0 if steady else 10.0) if longest is None else longest
    common: dict[str, Any] = {"mean_velocity": speed, "viscosity": 1e-3, "device": device, "method": method}
    if begin is not None:
        common |= {"initial": p2_values(begin.mesh, begin.velocity, p2_points(mesh)), "ramp": 0.0, "perturbation": 0.0}
    if dt is None:
        dt = 0.056 / (speed * float(np.sqrt((mesh.gradients**2).sum(axis=2).max())))  # 0.8 of the limit at twice the mean speed
        if begin is not None:
            dt = 0.85 * ChannelFlow(mesh, dt=dt, **common | {"device": "cpu", "method": "lu"}).step_limit()
    flow = ChannelFlow(mesh, dt=dt, **common)
    every = max(1, round(0.001 / (speed * dt)))
    wait = 1 / speed if begin is None else 0.0  # the lift of a flow just started can stand still
    samples: list[np.ndarray] = []
    crests: list[tuple[float, ...]] = []
    settled = False
    while not settled and flow.time < longest * (1 - 1e-9):
        flow.advance(every)
        samples.append(2 * flow.forces("obstacle") / (speed**2 * diameter))
        if progress and len(samples) % 10 == 0:
            progress(f"{case}, {mesh.n_nodes:,} nodes", round(1000 * flow.time / longest), 1000)
        if steady:
            back = round(1 / (every * dt))
            settled = flow.time > wait and len(samples) > back and float(np.ptp(samples[-back:], axis=0).max()) < 0.1 * tolerance
        elif len(samples) > 2 and samples[-3][1] < samples[-2][1] >= samples[-1][1] and samples[-2][1] > 0.3:
            crests.append(_extremes(np.array(samples[-round(0.36 / (every * dt)):])))
            settled = len(crests) > 3 and float(np.ptp(crests[-3:], axis=0).max()) < tolerance
    flow.check()
    also: dict[str, float] = {}
    if steady:
        front, back_side = flow.pressure_at(np.array([[0.15, 0.2], [0.25, 0.2]]))
        ours = {"drag": samples[-1][0], "lift": samples[-1][1], "pressure drop": front - back_side}
    else:
        if len(crests) < 4:
            raise SolveError(f"the flow shed no vortices before t = {longest:g}")
        high, low, drag, drag_low = crests[-1]
        lift = np.array(samples)[-round(1.1 / (every * dt)):, 1]
        ours = {"drag max": drag, "lift max": high, "Strouhal": diameter / speed / period(lift, every * dt)}
        # lift swings about a small negative mean, so its largest value and its amplitude differ by two per cent
        also = {"lift min": low, "lift amplitude": (high - low) / 2, "drag min": drag_low}
    around = len(mesh.nodes_on("obstacle"))
    return flow, {"case": case, "nodes": mesh.n_nodes, "cells": mesh.n_cells, "around": around, "rounded": rounded, "dt": dt,
                  "time": flow.time, "settled": settled, "also": {name: float(value) for name, value in also.items()},
                  "quantities": {name: {"ours": float(ours[name]), "published": [low, high],
                                        "inside": bool(low <= ours[name] <= high)} for name, (low, high) in DFG[case].items()}}


def _extremes(forces: np.ndarray) -> tuple[float, float, float, float]:
    """Largest and smallest lift and drag of [T, 2]."""
    drag, lift = forces.T
    return _peak(lift), -_peak(-lift), _peak(drag), -_peak(-drag)


def period(signal: np.ndarray, dt: float) -> float:
    """Mean time between upward crossings of the middle of an oscillating signal (linear interpolation between samples)."""
    level = signal - 0.5 * (signal.max() + signal.min())
    k = np.flatnonzero((level[:-1] < 0) & (level[1:] >= 0))
    if len(k) < 2:
        raise SolveError("the signal has less than one full period")
    crossing = k - level[k] / (level[k + 1] - level[k])
    return float((crossing[-1] - crossing[0]) / (len(k) - 1) * dt)


def _peak(signal: np.ndarray) -> float:
    """Maximum of the parabola through the largest sample and its neighbours."""
    k = int(np.clip(signal.argmax(), 1, len(signal) - 2))
    left, top, right = signal[k - 1:k + 2]
    bend = left - 2 * top + right
    return float(top - (right - left) ** 2 / (8 * bend)) if bend < 0 else float(signal.max())


def _rounded(mesh: Mesh, centre: tuple[float, float], radius: float, equal_area: bool = True) -> Mesh:
    """The nodes of the obstacle moved onto the circle, or a little out of it, so that their polygon has the circle's area.

    On the circle itself they make a cylinder that is thinner by about the square of their spacing.
    """
    nodes = mesh.nodes_on("obstacle")
    away = mesh.points[nodes] - centre
    angle = np.sort(np.arctan2(away[:, 1], away[:, 0]))
    area = 0.5 * np.sin(np.diff(np.append(angle, angle[0] + 2 * np.pi))).sum()
    scale = radius * (sqrt(np.pi / area) if equal_area else 1.0)
    points = mesh.points.copy()
    points[nodes] = centre + scale * away / np.linalg.norm(away, axis=1, keepdims=True)
    return Mesh(points, mesh.cells, mesh.boundaries)


# ---------------------------------------------------------------------- as a benchmark


LADDER = ((0.04, 0.010), (0.028, 0.007), (0.02, 0.005), (0.014, 0.0035))
"""Meshes of the convergence study: spacing far from the cylinder and on it."""
COLUMNS = ("drag max", "lift max", "lift min", "lift amplitude", "Strouhal")


def run(case: str = "2D-1", refine: int = 0, dt: float | None = None, finer: bool = False, device: str = "cpu",
        progress: Report | None = None) -> dict[str, Any]:
    """Flow around a cylinder: drag and lift beside the intervals of Schäfer and Turek (1996).

    2D-1 or 2D-2 on the shipped mesh, refined; `finer`: 2D-2 on a sequence of finer meshes (needs gmsh).
    """
    if finer:
        return ladder(device=device, progress=progress)
    return {"benchmark": "dfg", "mesh": f"dfg-cylinder refined {refine} times" if refine else "dfg-cylinder",
            **dfg(case, refine=refine, dt=dt, device=device, progress=progress)}


def ladder(sizes: Sequence[tuple[float, float]] = LADDER, *, device: str = "cpu", progress: Report | None = None,
           done: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """2D-2 on finer and finer meshes (these need gmsh), each begun from the one before.

    `variants` repeats the second mesh with half the step, and with the cylinder's nodes on the circle (`rounded` false).
    """
    from dgnet.mesh.shapes import dfg_channel

    rows, variants = [], []
    begin: ChannelFlow | None = None
    for k, (size, near) in enumerate(sizes):
        mesh = dfg_channel(size, near, 0.3)
        begin, result = cylinder_flow("2D-2", mesh, begin=begin, device=device, progress=progress)
        rows.append({"size": size, "near": near, **result})
        if done:
            done(rows[-1])
        if k == 1:
            for dt, rounded in ((result["dt"] / 2, True), (result["dt"], False)):
                _, other = cylinder_flow("2D-2", mesh, dt=dt, begin=begin, rounded=rounded, device=device, progress=progress)
                variants.append({"size": size, "near": near, **other})
    return {"benchmark": "dfg ladder", "rows": rows, "variants": variants, "limit": limits(rows)}


def figure(row: dict[str, Any], name: str) -> float:
    return float(row["quantities"][name]["ours"] if name in row["quantities"] else row["also"][name])


def limits(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Richardson's limit of each figure from the last three meshes, with the order h^q that their differences show.

    Where they show none (differences that change sign or do not shrink) the limit is the last value.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name in COLUMNS:
        y, h = np.array([figure(r, name) for r in rows[-3:]]), [r["near"] for r in rows[-3:]]
        step = np.diff(y)
        if len(y) < 3 or step[0] * step[1] <= 0 or abs(step[1]) >= abs(step[0]):
            found[name] = {"value": float(y[-1]), "order": None}
            continue
        order = float(np.log(step[0] / step[1]) / np.log(h[0] / h[1]))  # the ratios of the ladder are nearly equal
        found[name] = {"value": float(y[-1] + step[1] / ((h[1] / h[2]) ** order - 1)), "order": order}
    return found
