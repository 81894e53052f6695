"""The learning rate of a cell: that of the method's own paper, half of it or twice of it, whichever validates best.

Every method of a study gets the same search, DGNet included. A trial is a short training with seed 0 on all trajectories; its
schedule cools down within its own time. Test trajectories are not read. What was found is kept in

    OUT/rates/KEY.json      {"factor": 2.0, "trials": {"0.5": {"validation": 0.31, "updates": 120, "seconds": 12.1}, ...}}

and serves all seeds, all numbers of trajectories, and DGNet with the reaction unknown, whose operator is the same.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dgnet.errors import SolveError
from dgnet.files import Lock, read_json, strict, write_json
from dgnet.paper.experiment import Experiment
from dgnet.recipe import Recipe
from dgnet.training.checkpoints import Progress

FACTORS = (1.0, 0.5, 2.0)
"""On the learning rate of the method's own paper; of equal validations the first counts."""

Trial = Callable[[Experiment, Path, float], Progress]
"""`trial(cell, folder, factor)`: a short training with this factor on its learning rate."""


def faster(plan: Recipe, factor: float) -> Recipe:
    """The recipe with another learning rate; stages that fit numbers directly have none."""
    return replace(plan, stages=tuple(replace(s, lr=s.lr * factor) if s.method == "adam" else s for s in plan.stages))


def searched(plan: Recipe) -> bool:
    """There is a learning rate to look for."""
    return any(s.method == "adam" for s in plan.stages)


def shared(cell: Experiment) -> Experiment:
    """The cell whose search serves this one."""
    return replace(cell, kind="train", seed=0, trajectories=0, unknown_reaction=False, scale=(1.0, 1.0, 1.0))


def found_rate(cell: Experiment, out: Path, trial: Trial) -> dict[str, Any] | None:
    """The factor of a cell with the trials that chose it. None while another process looks for it."""
    base = shared(cell)
    path = out / "rates" / f"{base.tag}.json"
    claim = Lock.take(path.with_suffix(".lock"))
    if claim is None:
        return None
    with claim:
        if not path.exists():
            write_json(path, _search(base, out / "rates" / base.tag, trial))
        return dict(read_json(path, {"factor": float, "trials": dict}))


def _search(base: Experiment, folder: Path, trial: Trial) -> dict[str, Any]:
    trials: dict[str, dict[str, Any]] = {}
    for factor in FACTORS:
        place = folder / f"{factor:g}"
        shutil.rmtree(place, ignore_errors=True)  # a trial that was cut off is short: it begins again
        try:
            progress = trial(base, place, factor)
            value = progress.best if progress.best_iteration else math.inf  # untrained weights say nothing about a rate
            trials[f"{factor:g}"] = {"validation": value, "updates": progress.updates, "seconds": progress.seconds}
        except SolveError:
            trials[f"{factor:g}"] = {"validation": math.inf, "updates": 0, "seconds": 0.0}
    shutil.rmtree(folder, ignore_errors=True)
    best = min(FACTORS, key=lambda f: trials[f"{f:g}"]["validation"])
    found: dict[str, Any] = strict({"factor": best, "trials": trials})
    return found
