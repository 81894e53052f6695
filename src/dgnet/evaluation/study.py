"""Train and score DGNet on many scenarios: one folder per cell, finished cells are skipped, the table is written from the cells.

    OUT/data/                       data sets, generated when missing
    OUT/NAME-SIZE-TRUTH-SEED/       a training run with cell.json: scores, seconds, settings, hardware
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dgnet import __version__
from dgnet.evaluation.bench.timing import hardware
from dgnet.evaluation.evaluate import evaluate
from dgnet.scenarios import get, names
from dgnet.scenarios.generate import generate
from dgnet.training.run import train

Say = Callable[[str], None]


def cell(name: str, size: str, truth: str, out: Path, *, seed: int = 0, budget: float | None = None, device: str = "cpu",
         trajectories: int | None = None, recipe: str = "staged", unknown_reaction: bool = False,
         keep_data: bool = True, say: Say = print) -> dict[str, Any]:
    """Generate, train, evaluate; returns what cell.json holds. `budget` is seconds of training."""
    few, other = f"-{trajectories}" if trajectories else "", "" if recipe == "staged" else f"-{recipe}"
    tag = f"{name}-{size}-{truth}-{seed}{few}{other}" + ("-unknown" if unknown_reaction else "")
    folder = out / tag
    record = folder / "cell.json"
    if record.exists():
        say(f"{tag}: finished before")
        return json.loads(record.read_text())
    scenario = get(name, size)
    begin = time.perf_counter()
    data = generate(scenario, out / "data", truth=truth, device=device)
    made = time.perf_counter() - begin
    run, progress = train(scenario, truth, data, folder, seed=seed, device=device, budget=budget, trajectories=trajectories,
                          recipe=recipe, unknown_reaction=unknown_reaction)
    begin = time.perf_counter()
    result, _, _ = evaluate(run, data, device)
    result |= {"seed": seed, "recipe": recipe, "unknown_reaction": unknown_reaction,
               "training_trajectories": trajectories or scenario.train,
               "hardware": hardware(device),
               "seconds": {"generate": made, "train": progress.seconds, "evaluate": time.perf_counter() - begin},
               "iterations": progress.updates, "best_iteration": progress.best_iteration, "validation": progress.best,
               "validation_classical": progress.classical, "config": asdict(run.model.config), "version": __version__}
    part = record.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1))
    os.replace(part, record)
    if not keep_data:
        shutil.rmtree(out / "data", ignore_errors=True)
    scores = result["scores"]
    say(f"{tag}: dgnet {scores['dgnet']['fluctuation']:.3e}, classical {scores['classical_consistent']['fluctuation']:.3e} / "
        f"{scores['classical_lumped']['fluctuation']:.3e}, {progress.seconds:.0f} s of training")
    return result


def cells(out: Path) -> list[dict[str, Any]]:
    """All finished cells of a study."""
    return [json.loads(p.read_text()) for p in sorted(out.glob("*/cell.json"))]


def markdown(found: Sequence[dict[str, Any]]) -> str:
    """The results page: one table per size and truth, the classical rows beside DGNet, what was not run said so."""
    lines = ["# DGNet beside the classical solvers", "",
             "Written by `dgnet study --report` from finished cells. RNE over the whole rollout of the test trajectories,",
             "measured from the offset of the field (T − T_amb for temperatures). *gain* is DGNet against the better classical",
             "solver on the same mesh and step; below 1 means that learning helped. Unless the row says otherwise, the reaction,",
             "the coefficients and the sources are known to the model; what is learned is the mass, the source stencil, the cell",
             "diffusivities and, with a flow, streamline diffusion."]
    for size, truth in sorted({(c["size"], c["truth"]) for c in found}):
        rows: dict[str, list[dict[str, Any]]] = {}
        for c in found:
            if (c["size"], c["truth"]) == (size, truth):
                rows.setdefault(c["scenario"], []).append(c)
        lines += ["", f"## `{size}` size, `{truth}` truth", "",
                  "| scenario | DGNet | classical, consistent | classical, lumped | gain | paper's DGNet (RNE) | DGNet, plain RNE "
                  "| training | hardware |", "|---|---|---|---|---|---|---|---|---|"]
        for name in names():
            if name not in rows:
                lines.append(f"| {name} | not run: `dgnet study --only {name} --size {size} --truth {truth}` | | | | | | | |")
                continue
            for c in rows[name]:
                s = c["scores"]
                few = c["training_trajectories"] < get(name, size).train
                label = name + (f", {c['training_trajectories']} training trajectories" if few else "")
                label += ", reaction unknown to DGNet" if c.get("unknown_reaction") else ""
                paper = f"{c['paper']['rne']:.4f}" if c["paper"] and size == "paper" else "–"
                lines.append(f"| {label} | {s['dgnet']['fluctuation']:.3g} | {s['classical_consistent']['fluctuation']:.3g} "
                             f"| {s['classical_lumped']['fluctuation']:.3g} | {c['gain']:.2f} | {paper} | {s['dgnet']['rne']:.3g} "
                             f"| {c['seconds']['train']:.0f} s, {c['iterations']} iterations | {c['hardware']} |")
    return "\n".join(lines) + "\n"
