"""Test trajectories, once: DGNet beside the classical solvers on the same mesh and step."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__
from dgnet.data import Corpus, Dataset
from dgnet.data.fits import check_fits
from dgnet.errors import InputError
from dgnet.models import Classical, few_threads
from dgnet.models.dgnet import DGNet
from dgnet.models.registry import LABELS
from dgnet.problems import CONSISTENT, LUMPED
from dgnet.problems.case import base_problem
from dgnet.scenarios.scenario import Scenario
from dgnet.scoring.judge import predict
from dgnet.scoring.metrics import Sums, error_ratio, score
from dgnet.training.run import Run

Tensor = torch.Tensor
_BATCH_BYTES = 6e9
TOLD = "classical, told what was found"
"""Name of the row of the solver that `told` makes."""


def rivals() -> dict[str, Any]:
    """The classical solvers that every table holds."""
    return {"classical_consistent": Classical(CONSISTENT), "classical_lumped": Classical(LUMPED)}


def untold(run: Run) -> list[str]:
    """What the model found out about the physics and the classical solvers beside it were not told, in words."""
    if not isinstance(run.model, DGNet):
        return []
    c = run.model.config
    reaction = ["the reaction"] * (c.reaction == "learned" and run.case.pde.reaction is None)
    return reaction + [f"the calibrated {name}" for name in c.calibrate]


def told(model: DGNet) -> DGNet:
    """The classical solver that is told what the model found: its reaction and its coefficients, and nothing else of it."""
    twin = copy.deepcopy(model)
    twin.config = replace(model.config, decoder="none", residual=False, learn_start=False, early_steps=0)
    return twin


def predictions(models: dict[str, Any], run: Run, data: Corpus, device: str,
                seconds: dict[str, float] | None = None) -> dict[str, Tensor]:
    """States [B, T+1, N, F] of each model from the first states of the trajectories, in batches that fit.

    `seconds` takes the time that each model spent on all of them, set-up of its solver included.
    """
    base = base_problem(run.case, device)
    per = max(1, int(_BATCH_BYTES // (data.state[0].numel() * 4 * 3)))
    out: dict[str, Tensor] = {}
    for name, model in models.items():
        parts, begin = [], time.perf_counter()
        for at in range(0, len(data), per):
            piece = data.part(range(at, min(at + per, len(data))))
            with torch.no_grad(), few_threads(run.case.mesh.n_nodes, device):
                parts.append(predict(model, base, piece).cpu())
        out[name] = torch.cat(parts)
        if seconds is not None:
            seconds[name] = time.perf_counter() - begin
    return out


def evaluate(run: Run, path: Path, device: str = "cpu", split: str = "test", limit: int | None = None,
             ) -> tuple[dict[str, Any], dict[str, Tensor], Corpus]:
    """(scores for JSON, predicted states, truth) of a split of a data set."""
    with Dataset(path) as dataset:
        check_fits(dataset, run.case, run.settings.truth)
        numbers: Sequence[int] = dataset.of(split)[:limit]
        if not numbers:
            raise InputError(f"{path} has no {split} trajectory")
        data = Corpus.read(dataset, numbers, device)
    seconds: dict[str, float] = {}
    own = run.settings.model
    states = predictions({own: run.model, **rivals()}, run, data, device, seconds)
    missing = untold(run)
    informed = predictions({"told": told(run.model)}, run, data, device, seconds)["told"] if missing else None
    truth = data.state.cpu()
    offset = run.case.offsets
    rows = {name: asdict(score(s, truth, offset, run.case.pde.fields, run.case.dt)) for name, s in states.items()}
    errors = {name: row["rne_from_offset"] for name, row in rows.items()}
    known = None
    if informed is not None:
        known = asdict(score(informed, truth, offset, run.case.pde.fields, run.case.dt))
    paper = run.case.paper.get("DGNet") if isinstance(run.case, Scenario) else None
    result = {
        "scenario": run.settings.scenario, "size": run.settings.size, "truth": run.settings.truth, "split": split, "model": own,
        "trajectories": len(numbers), "version": __version__, "notes": list(run.notes), "scores": rows, "seconds": seconds,
        "untold": missing, "told": known, "paper": None if paper is None else asdict(paper),
        "error_ratio": error_ratio(errors[own], (errors[name] for name in rivals())),
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "over_time": {name: Sums.of(s, truth, offset).rne_over_time(offset=True)[:: max(1, truth.shape[1] // 50)].tolist()
                      for name, s in states.items()},
    }
    return result, states, data


def table(result: dict[str, Any]) -> str:
    """The scores as a Markdown table, best in bold, the paper's figure beside them."""
    head = (f"{result['scenario']} ({result['size']}), {result['truth']} truth, "
            f"{result['trajectories']} {result['split']} trajectories")
    lines = [head, "", "| model | MSE | RNE | RNE from offset | RNE, last step |", "|---|---|---|---|---|"]
    rows = result["scores"]
    best = min(rows, key=lambda name: rows[name]["rne_from_offset"])
    for name, s in rows.items():
        label = f"**{LABELS.get(name, name)}**" if name == best else LABELS.get(name, name)
        lines.append(f"| {label} | {s['mse']:.3g} | {s['rne']:.3g} | {s['rne_from_offset']:.3g} | {s['rne_final']:.3g} |")
    if result.get("told"):
        s = result["told"]
        lines.append(f"| {TOLD} | {s['mse']:.3g} | {s['rne']:.3g} | {s['rne_from_offset']:.3g} | {s['rne_final']:.3g} |")
    if result["paper"]:
        lines.append(f"| DGNet, paper (its own data) | {result['paper']['mse']:.3g} | {result['paper']['rne']:.3g} | – | – |")
    lines += [line for note in result["notes"] for line in ("", note)]
    if result.get("untold"):
        what = " and ".join(result["untold"])
        lines += ["", f"The classical solvers were not told {what}; the one that was has what the model found."]
    return "\n".join(lines)
