"""How a network of a study is trained: by its own recipe or on windows, and at which learning rate; short trials choose.

Every method of a study gets the same search, DGNet included: its own learning rate, half of it and twice of it. A network whose
own recipe takes single steps is first tried on windows as well, as the paper trains its model (Section 3.5): sub-sequences of the
scenario's length with noise on the first state, one step without gradient before them, the loss on the first and the last state.
Single steps say nothing about a free rollout, and networks that were published for steady problems have no recipe for one.

A trial is a short training with seed 0 on all trajectories; its schedule cools down within its own time. Where set-up and the first
validation take more than half of it, all trials of the search are longer by as much: a trial without updates says nothing. What
counts is the best validation over that of the untrained weights, which sees the same rollouts; of equal ones the first counts.
Test trajectories are not read. What was found is kept in

    OUT/rates/KEY.json      {"factor": 2.0, "windows": true, "trials": {"windows 1": {"validation": 0.31, ...}, ...}}

and serves all seeds, all numbers of trajectories, and DGNet with the reaction unknown, whose operator is the same.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dgnet.errors import SolveError
from dgnet.files import locked, read_json, strict, write_json
from dgnet.recipe import PaperSettings, Recipe, paper_recipe
from dgnet.training.checkpoints import Progress
from dgnet_paper.study.experiment import Experiment

FACTORS = (1.0, 0.5, 2.0)
"""On the learning rate of the method's own paper."""
TRIALS = len(FACTORS) + 1  # at most
_VALIDATIONS = 4  # of a trial; as many as in a whole training would take most of its time
_MOSTLY = 0.5  # share of a trial before its first update from which on trials are longer


@dataclass(frozen=True)
class Way:
    """How a recipe is changed: a factor on its learning rate, and windows in place of single steps."""

    factor: float = 1.0
    windows: bool = False

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Way:
        """What a search has found. Searches before November 2026 did not try windows."""
        return cls(float(found["factor"]), bool(found.get("windows", False)))

    @property
    def name(self) -> str:
        return f"windows {self.factor:g}" if self.windows else f"{self.factor:g}"

    def applied(self, plan: Recipe, row: PaperSettings, steps: int) -> Recipe:
        """The recipe trained in this way; stages that fit numbers directly stay as they are.

        - `row`: the paper's settings for the scenario, which has the length of its sub-sequences
        - `steps`: of a trajectory
        """
        if self.windows:
            like = paper_recipe(row, 1, steps).stages[0]
            plan = replace(plan, stages=tuple(
                replace(s, length=like.length, noise=like.noise, pushforward=like.pushforward, loss=like.loss,
                        batch=max(2, s.batch // like.length))  # an update has about as many steps as before
                for s in plan.stages))
        return replace(plan, stages=tuple(replace(s, lr=s.lr * self.factor) if s.method == "adam" else s for s in plan.stages))


Trial = Callable[[Experiment, Path, Way, float], Progress]
"""`trial(cell, folder, way, aside)`: a short training in this way, longer by `aside` seconds than the search allows for one."""


def searched(plan: Recipe) -> bool:
    """There is a learning rate to look for."""
    return any(s.method == "adam" for s in plan.stages)


def single_steps(plan: Recipe) -> bool:
    """It is trained on single steps alone, so that windows are worth a trial."""
    return all(s.method == "adam" and s.length == 1 for s in plan.stages)


def for_trial(plan: Recipe) -> Recipe:
    """The recipe with fewer validations, which would take most of the time of a trial, and cooled down within it."""
    return replace(plan, validations=_VALIDATIONS, by_updates=False)


def shared(cell: Experiment) -> Experiment:
    """The cell whose search serves this one."""
    return replace(cell, kind="train", seed=0, trajectories=0, unknown_reaction=False, scale=(1.0, 1.0, 1.0))


def found_way(cell: Experiment, out: Path, trial: Trial, windows: bool = False) -> dict[str, Any]:
    """The way of a cell with the trials that chose it, windows tried where they may be. One process searches, others wait."""
    base = shared(cell)
    path = out / "rates" / f"{base.tag}.json"
    with locked(path):
        if not path.exists():
            write_json(path, _search(base, out / "rates" / base.tag, trial, windows))
        return dict(read_json(path, {"factor": float, "trials": dict}))


def _search(base: Experiment, folder: Path, trial: Trial, windows: bool) -> dict[str, Any]:
    """Single steps and windows at the method's own rate, then the other rates of the better of the two."""
    trials: dict[Way, dict[str, Any]] = {}
    aside = 0.0

    def tried(way: Way) -> float:
        nonlocal aside
        if way not in trials:
            place = folder / way.name.replace(" ", "-")
            first, record = not trials, _tried(base, place, trial, way, aside)
            if first and record["aside"] > _MOSTLY * record["seconds"]:
                aside = record["aside"]
                record = _tried(base, place, trial, way, aside)
            trials[way] = record
        value: float = trials[way]["share"]
        return value

    best = min([Way(windows=w) for w in ((False, True) if windows else (False,))], key=tried)
    best = min([replace(best, factor=f) for f in FACTORS], key=tried)
    shutil.rmtree(folder, ignore_errors=True)
    found: dict[str, Any] = strict({"factor": best.factor, "windows": best.windows,
                                    "trials": {way.name: record for way, record in trials.items()}})
    return found


def _tried(base: Experiment, place: Path, trial: Trial, way: Way, aside: float) -> dict[str, Any]:
    """`validation` is the best one, `share` that over the validation of the untrained weights, `aside` the seconds before the first
    update."""
    shutil.rmtree(place, ignore_errors=True)  # a trial that was cut off is short: it begins again
    try:
        progress = trial(base, place, way, aside)
    except SolveError:
        return {"validation": math.inf, "share": math.inf, "updates": 0, "seconds": 0.0, "aside": 0.0}
    begun = progress.history[0] if progress.history else {"validation": 1.0, "seconds": 0.0}
    value = share = math.inf  # untrained weights say nothing about a way
    if progress.best_iteration:
        value = progress.best
        untrained = begun["validation"]  # infinite where untrained weights diverge: then the same in all trials
        share = value / untrained if 0 < untrained < math.inf else value
    return {"validation": value, "share": share, "updates": progress.updates, "seconds": progress.seconds,
            "aside": begun["seconds"]}
