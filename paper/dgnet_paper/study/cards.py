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
from dgnet_paper.scenarios import SIZES, Scenario, get, names, paper_names
from dgnet_paper.scenarios.generate import file_stem, generate
from dgnet_paper.scenarios.waves import activation_times

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
    theirs = paper.name in paper_names()
    lines = [f"# {paper.title}", "", f"`{paper.name}` · written by `dgnet-paper cards`", "", "## Equation", "",
             f"$${paper.equation}$$", "", "## Geometry and mesh", "", paper.geometry, "",
             "| | paper | small |", "|---|---|---|",
             f"| nodes | {paper.mesh.n_nodes:,} | {small.mesh.n_nodes:,} |",
             f"| cells | {paper.mesh.n_cells:,} | {small.mesh.n_cells:,} |",
             f"| mean spacing | {paper.mesh.spacing:.3g} | {small.mesh.spacing:.3g} |",
             f"| steps × Δt | {paper.steps:,} × {paper.dt:g} | {small.steps:,} × {small.dt:g} |",
             f"| trajectories, train / test | {paper.train} / {paper.test} | {small.train} / {small.test} |", "",
             f"![mesh](img/{paper.name}-mesh.png)", "", "## Parameters", "",
             "At the paper's size." if theirs else "At the larger size.", "",
             "| parameter | value | origin |", "|---|---|---|"]
    lines += [f"| {p.name} | {p.value} | {p.origin} |" for p in paper.parameters]
    origins = '"paper": given there; "script": in the authors\' public code; "ours": left open by both.'
    lines += ["", origins if theirs else "This scenario is ours; the paper does not have it.", "",
              "## Truth", "",
              f"Snapshots of one training trajectory (`converged`, {shown} size).", ""]
    lines += [f"![truth](img/{name})" for name in pictures]
    lines += ["", "| kind | refinements r | substeps s | element degree |", "|---|---|---|---|"]
    lines += [f"| {kind} | {t.refine} | {t.substeps} | {t.degree} |" for kind, t in paper.truths.items()]
    lines += ["", "## Convergence certificate and classical error", "",
              "Relative distance, over the rollout at the coarse nodes, between truth at (r, s) and at (r+1, 2s), and "
              "the error of Crank–Nicolson without learning on the same mesh and step"
              + (f", all measured from {paper.offsets[0]:g}." if any(paper.offsets) else "."), "",
              "| size | truth | (r, s) | measured over | distance | classical, lumped | classical, consistent "
              "| best classical / distance |", "|---|---|---|---|---|---|---|---|"]
    for size, scenario in zip(SIZES, (small, paper)):
        t = scenario.truth("converged")
        found = measured.get(f"{paper.name}/{size}/converged")
        values = [NOT_RUN] * 5
        if found is not None:
            t_r, t_s = found["settings"]["refine"], found["settings"]["substeps"]
            classical = [_number(found["classical"].get(kind)) for kind in ("lumped", "consistent")]
            span = f"{found['trajectories']} × {found.get('steps') or scenario.steps} steps"
            values = [span, _number(found["distance"]), *classical, NOT_RUN if found["ratio"] is None else f"{found['ratio']:.0f}×"]
        else:
            t_r, t_s = t.refine, t.substeps
        lines.append(f"| {size} | converged | ({t_r}, {t_s}) | " + " | ".join(values) + " |")
    if paper.paper:
        lines += ["", "## Published results", "", "| model | MSE | RNE |", "|---|---|---|"]
        lines += [f"| {model} | {f.mse:.2e} | {f.rne:.4f} |" for model, f in paper.paper.items()]
    return "\n".join(lines) + "\n"


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
