"""Scenario cards: a page per scenario with fixed headings, written from the scenario itself and from measured files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.files import read_json
from dgnet.progress import Report
from dgnet.report.figures import Band, grid
from dgnet.report.pictures import mesh_picture, scale_of
from dgnet.report.series import snapshots
from dgnet_paper.scenarios import Scenario, get, names, paper_names
from dgnet_paper.scenarios.generate import file_stem, generate
from dgnet_paper.scenarios.waves import activation_times
from dgnet_paper.study.blocks import template

NOT_RUN = "not yet run"
SNAPSHOTS = 4


def write_cards(out: Path, certificates: Path, data: Path | None, names: Sequence[str],
                report: Report | None = None) -> Iterator[Path]:
    """Write OUT/NAME.md and its pictures; snapshots come from DATA where it holds the paper-size set, else from a small one."""
    measured: dict[str, Any] = read_json(certificates) if certificates.exists() else {}
    if any(not isinstance(row, dict) for row in measured.values()):
        raise InputError(f"{certificates} holds no certificates of `dgnet-paper certify --record`")
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        paper = get(name, "paper")
        mesh_picture(out / "img" / f"{name}-mesh.png", paper.mesh)
        size, pictures = _snapshots(out / "img", name, data, report)
        path = out / f"{name}.md"
        path.write_text(card(paper, get(name, "small"), measured, size, pictures))
        yield path
    index = out / "README.md"
    index.write_text(contents(measured))
    yield index


def card(paper: Scenario, small: Scenario, measured: Mapping[str, Any], shown: str, pictures: Sequence[str]) -> str:
    """The page of one scenario."""
    certificates = [_certificate(scenario, measured.get(f"{scenario.name}/{scenario.size}/converged"))
                    for scenario in (small, paper)]
    page: str = template("card.md").render(paper=paper, small=small, shown=shown, pictures=pictures, certificates=certificates,
                                           theirs=paper.name in paper_names())
    return page


def _certificate(scenario: Scenario, found: Mapping[str, Any] | None) -> list[str]:
    """A row of the table of certificates."""
    if found is None:
        truth = scenario.truth("converged")
        return [scenario.size, "converged", f"({truth.refine}, {truth.substeps})", *[NOT_RUN] * 5]
    ratio = NOT_RUN if found["ratio"] is None else f"{found['ratio']:.0f}×"
    return [scenario.size, "converged", f"({found['settings']['refine']}, {found['settings']['substeps']})",
            f"{found['trajectories']} × {found.get('steps') or scenario.steps} steps", _number(found["distance"]),
            *(_number(found["classical"].get(kind)) for kind in ("lumped", "consistent")), ratio]


def contents(measured: Mapping[str, Any]) -> str:
    """The list of cards."""
    *own, last = [n for n in names() if n not in paper_names()]
    lines = ["# Scenarios", "", "Written by `dgnet-paper cards`; data by `dgnet-paper generate NAME --size paper --out DIR`. "
             f"{', '.join(own)} and {last} are ours, the others the paper's.", "",
             "| scenario | nodes | steps × Δt | train / test | certificate (paper size) |", "|---|---|---|---|---|"]
    for name in names():
        s = get(name, "paper")
        found = measured.get(f"{name}/paper/converged")
        lines.append(f"| [{name}]({name}.md) | {s.mesh.n_nodes:,} | {s.steps:,} × {s.dt:g} | {s.train} / {s.test} | "
                     f"{NOT_RUN if found is None else _number(found['distance'])} |")
    return "\n".join(lines) + "\n"


def _snapshots(folder: Path, name: str, data: Path | None, report: Report | None) -> tuple[str, list[str]]:
    paper = get(name, "paper")
    stored = None if data is None else data / f"{file_stem(paper, 'converged')}.h5"
    if stored is not None and stored.exists():
        return "paper", _strips(folder, name, stored)
    with tempfile.TemporaryDirectory() as scratch:
        path = generate(get(name, "small"), Path(scratch), trajectories=1, report=report)
        return "small", _strips(folder, name, path)


def _strips(folder: Path, name: str, path: Path) -> list[str]:
    with Dataset(path) as data:
        states, dt, mesh, fields = data.read(0, only=()).state, data.dt, data.mesh, data.fields
    rows = np.linspace(0, len(states) - 1, SNAPSHOTS + 1).round().astype(int)[1:]
    written, units = [], get(name).units
    for f, field in enumerate(fields):
        written.append(f"{name}-truth.png" if len(fields) == 1 else f"{name}-truth-{field}.png")
        unit = units.fields.get(field)
        snapshots(folder / written[-1], mesh, [f"{field} [{unit}]" if unit else field], dt,
                  [(int(k), states[k, :, f:f + 1]) for k in rows], "")
    threshold = get(name).activated
    if threshold is not None:
        times = activation_times(torch.from_numpy(states[None, ..., 0]), dt, threshold)[0].numpy()
        times = np.where(np.isnan(times), dt * (len(states) - 1), times)[None]
        written.append(f"{name}-activation.png")
        norm, colours = scale_of(times)
        grid(folder / written[-1], mesh, [Band([("", times)], norm, colours, "ms")], [f"when {fields[0]} reaches {threshold:g}"],
             "activation times")
    return written


def _number(value: float | None) -> str:
    return NOT_RUN if value is None else f"{value:.2e}"
