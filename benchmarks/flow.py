"""The flow solver against the DFG cylinder benchmarks (Schäfer and Turek 1996): `python -m benchmarks dfg` and docs/results/flow.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.dfg import cylinder_flow, dfg
from dgnet.errors import InputError
from dgnet.files import read_json
from dgnet.progress import Report
from dgnet_paper.reference.flow import ChannelFlow

LADDER = ((0.04, 0.010), (0.028, 0.007), (0.02, 0.005), (0.014, 0.0035))
"""Meshes of the convergence study: spacing far from the cylinder and on it."""
COLUMNS = ("drag max", "lift max", "lift min", "lift amplitude", "Strouhal")


def run(case: str, *, refine: int = 0, dt: float | None = None, device: str = "cpu",
        progress: Report | None = None) -> dict[str, Any]:
    """One case on the shipped mesh, refined."""
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


# ---------------------------------------------------------------------- for people


def lines(result: dict[str, Any]) -> list[str]:
    """One case, ours beside the published interval."""
    head = (f"DFG {result['case']}: {result['nodes']:,} nodes, {result['cells']:,} cells ({result['around']} on the cylinder), "
            f"dt {result['dt']:.3g}" + ("" if result["settled"] else ", NOT SETTLED"))
    rows = [f"  {name:15s} {q['ours']:10.5f}   published {q['published'][0]:g} to {q['published'][1]:g}   "
            + ("inside" if q["inside"] else "OUTSIDE") for name, q in result["quantities"].items()]
    return [head, *rows, *(f"  {name:15s} {value:10.5f}" for name, value in result["also"].items())]


def read(path: Path) -> dict[str, Any]:
    """The record beside a page: results by key, empty where there is none yet."""
    if not path.exists():
        return {}
    try:
        record = read_json(path)
        markdown(record)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{path} is no record of 'python -m benchmarks dfg'") from error
    return record


def key(result: dict[str, Any]) -> str:
    return "ladder" if "rows" in result else f"{result['case']} on {result['mesh']}"


def _row(row: dict[str, Any]) -> str:
    figures = " | ".join(f"{figure(row, name):.4f}" for name in COLUMNS)
    return f"| {row['size']:g} / {row['near']:g} | {row['nodes']:,} | {row['around']} | {row['dt']:.2g} | {figures} |"


def markdown(record: dict[str, Any]) -> str:
    """docs/results/flow.md."""
    out = ["# Flow solver: DFG cylinder benchmarks", "",
           "Schäfer and Turek, *Benchmark computations of laminar flow around a cylinder* (1996). Written by `python -m benchmarks dfg "
           "--report docs/results/flow.md` (`--case`, `--refine`, `--ladder`) from the JSON of the same name beside it. P2–P1 "
           "elements, BDF3/EX3 in time, forces by the weak form; the cylinder is a polygon of the circle's area. Lengths and Δt "
           "are in the benchmark's units (channel height 0.41, mean inflow 0.2 in 2D-1 and 1 in 2D-2).", ""]
    for result in (r for r in record.values() if "rows" not in r):
        out += [f"## {result['case']} on {result['mesh']}", "",
                f"{result['nodes']:,} nodes, {result['cells']:,} triangles, {result['around']} edges around the cylinder, "
                f"Δt = {result['dt']:.3g}" + ("." if result["settled"] else "; not settled at the end."), "",
                "| figure | ours | published | |", "|---|---|---|---|"]
        out += [f"| {name} | {q['ours']:.5f} | {q['published'][0]:g} – {q['published'][1]:g} | "
                f"{'inside' if q['inside'] else '**outside**'} |" for name, q in result["quantities"].items()]
        out += [f"| {name} | {value:.5f} | | |" for name, value in result["also"].items()]
        out.append("")
    study = record.get("ladder")
    if study:
        low, high = study["rows"][-1]["quantities"]["lift max"]["published"]
        limit = study["limit"]
        head = ["| spacing far / at the cylinder | nodes | around | Δt | " + " | ".join(COLUMNS) + " |",
                "|" + "---|" * (4 + len(COLUMNS))]
        out += ["## 2D-2 as the mesh is refined", "", *head, *(_row(r) for r in study["rows"])]
        out.append("| *limit* | | | | " + " | ".join(f"*{limit[n]['value']:.4f}*" for n in COLUMNS) + " |")
        out.append("| *order* | | | | " + " | ".join("–" if limit[n]["order"] is None else f"*{limit[n]['order']:.1f}*"
                                                   for n in COLUMNS) + " |")
        for row in study["variants"]:
            what = "half the step" if row["rounded"] else "the cylinder's nodes on the circle, a polygon thinner than it"
            out += ["", f"One of these meshes with {what}:", "", *head, _row(row)]
        lift, swing = limit["lift max"]["value"], limit["lift amplitude"]["value"]
        (y1, h1), (y2, h2) = ((figure(r, "lift max"), r["near"]) for r in study["rows"][-2:])
        cautious = y2 + (y2 - y1) / ((h1 / h2) ** 2 - 1)
        inside = low <= lift <= high
        where = "inside" if inside else "outside"
        out += ["", f"**The signed maximum of the lift tends to {lift:.4f}, {where} the published {low:g} – {high:g}** "
                f"(to {cautious:.4f} if the last two meshes are taken to converge with second order only). "
                + ("" if inside else "A finer mesh or a smaller step does not change that: the interval is that of the "
                   "computations of 1996, and this figure is reported as outside. ")
                + f"Lift swings about {(lift + limit['lift min']['value']) / 2:.4f}, as the cylinder stands below the middle of "
                f"the channel; half of its swing, {swing:.4f}, is {'inside' if low <= swing <= high else 'outside'} the interval, "
                f"its largest magnitude, {-limit['lift min']['value']:.4f}, "
                f"{'inside' if low <= -limit['lift min']['value'] <= high else 'outside'}."]
    return "\n".join(out).rstrip() + "\n"
