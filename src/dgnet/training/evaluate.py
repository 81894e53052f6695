"""Scores of a run on test trajectories, beside the classical solvers on the same mesh and step."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__
from dgnet.arguments import Count, Device, checked
from dgnet.data import Corpus
from dgnet.discovery.unknowns import Unknowns
from dgnet.models.dgnet import Calibration, DGNet, Material, Reaction
from dgnet.models.registry import title_of
from dgnet.problems.case import base_problem
from dgnet.scoring.judge import Judged, finer, judge_file, rivals, without_data
from dgnet.scoring.metrics import error_ratio
from dgnet.training.run import Run

Tensor = torch.Tensor
FOUND_VALUES = "classical with the values found"
"""Name of the row of `with_found_values`."""
_SHOWN = ("mse", "rne", "rne_from_offset", "rne_final")


def unknown_terms(run: Run) -> list[str]:
    """Names of the terms that the model learned about the physics and that the classical solvers do not know."""
    if not isinstance(run.model, DGNet):
        return []
    found, pde = Unknowns.of(run.model.config), run.case.pde
    return replace(found, reaction=found.reaction and pde.reaction is None, curves=() if pde.curved else found.curves).words


def with_found_values(model: DGNet) -> DGNet:
    """The classical solver with the reaction and the coefficients that the model found, without its other learned parts."""
    return model.keeping(Calibration, Material, Reaction)


@checked
def evaluate(run: Run, path: Path, device: Device = "cpu", split: str = "test", limit: Count | None = None,
             ) -> tuple[dict[str, Any], dict[str, Tensor], Corpus]:
    """Score a run beside the classical solvers: (scores for JSON, predicted states by model, truth).

    - `run`: from `train` or `load_run`
    - `path`: the data set
    - `device`: cpu or cuda
    - `split`: train or test
    - `limit`: number of trajectories, from the first on; None for all

        >>> import dgnet as dg, torch
        >>> mesh, pde = dg.box((4, 4)), dg.PDE(diffusion=0.1)
        >>> start = torch.rand(3, mesh.n_nodes, 1, dtype=torch.float64)
        >>> states = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.1), start, steps=8)
        >>> runs = [dg.trajectory(s, mesh, 0.1, split=k) for s, k in zip(states.numpy(), ("train", "train", "test"))]
        >>> run, _ = dg.train(dg.project("cooling", mesh, pde, [], 0.1, runs, "cooling.h5"), "run", model="dgnet", minutes=0.002)
        >>> sorted(dg.evaluate(run, run.data)[0]["scores"])
        ['classical_consistent', 'classical_lumped', 'classical_p2', 'classical_refined', 'dgnet', 'universal',
         'universal_p2']
    """
    result, found = scores(run, path, device, split, limit, keep=True)
    assert found.data is not None
    result |= run.case.remarks(found.states, found.data.state)
    return result, {name: states for name, states in found.states.items() if name != "told"}, found.data


def scores(run: Run, path: Path, device: str = "cpu", split: str = "test", limit: int | None = None, keep: bool = False,
           ) -> tuple[dict[str, Any], Judged]:
    """Judge a run and the classical solvers: for JSON, and what the judge found; with `keep` states and truth stay in memory."""
    own, missing = run.settings.model, unknown_terms(run)
    mesh = run.case.mesh
    more = {} if run.settings.truth == "same-mesh" else finer(
        mesh.n_nodes + len(mesh.edges), device, run.case.pde.curved) | without_data(base_problem(run.case, device))
    models = {own: run.model, **rivals(), **more} | ({"told": with_found_values(run.dgnet)} if missing else {})
    found = judge_file(models, run.case, path, device, split=split, limit=limit, truth=run.settings.truth, keep=keep)
    clocks = ("seconds", "steps_per_second")  # they stand apart: the same run has the same scores every time
    rows = {name: {key: value for key, value in row.items() if key not in clocks} for name, row in found.scores().items()}
    curves = found.curves()
    errors = {name: row["rne_from_offset"] for name, row in rows.items()}
    return {
        "scenario": run.settings.scenario, "size": run.settings.size, "truth": run.settings.truth, "split": split, "model": own,
        "trajectories": found.trajectories, "version": __version__,
        "notes": [*run.notes, *filter(None, [found.between])],
        "scores": {name: row for name, row in rows.items() if name != "told"}, "told": rows.get("told"), "untold": missing,
        "seconds": found.seconds, "paper": run.case.published,
        "error_ratio": error_ratio(errors[own], (errors[name] for name in rivals())),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "over_time": {name: curve for name, curve in curves.items() if name != "told"}}, found


def failures(result: dict[str, Any]) -> list[str]:
    """A sentence for each model whose rollout broke down or diverged."""
    return [f"{title_of(name)} diverged: {row['error']}." for name, row in result["scores"].items() if "error" in row]


def table(result: dict[str, Any]) -> str:
    """The scores as a Markdown table, best in bold, the paper's figure beside them."""
    head = (f"{result['scenario']} ({result['size']}), {result['truth']} truth, "
            f"{result['trajectories']} {result['split']} trajectories")
    lines = [head, "", "| model | MSE | RNE | RNE from offset | RNE, last step |", "|---|---|---|---|---|"]
    rows = result["scores"]
    best = min(rows, key=lambda name: rows[name]["rne_from_offset"])
    for name, s in [*rows.items(), *([(FOUND_VALUES, result["told"])] if result.get("told") else [])]:
        figures = " | ".join("diverged" if not math.isfinite(s[key]) else f"{s[key]:.3g}" for key in _SHOWN)
        label = title_of(name)
        lines.append(f"| {f'**{label}**' if name == best else label} | {figures} |")
    if result["paper"]:
        lines.append(f"| DGNet, paper (its own data) | {result['paper']['mse']:.3g} | {result['paper']['rne']:.3g} | – | – |")
    lines += [line for note in [*result.get("remarks", ()), *failures(result), *result["notes"]] for line in ("", note)]
    if result.get("untold"):
        what = " and ".join(result["untold"])
        lines += ["", f"The classical solvers do not know {what}. The row \"{FOUND_VALUES}\" uses the values that the model found."]
    return "\n".join(lines)
