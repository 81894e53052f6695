"""How cells are run, what is missing of a study, and how long it will take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgnet.errors import InputError
from dgnet.files import holder
from dgnet.progress import Report
from dgnet.training.fit import Tell
from dgnet_paper.scenarios.generate import file_stem
from dgnet_paper.study import archive
from dgnet_paper.study.experiment import HEAVY, Experiment
from dgnet_paper.study.search import TRIALS
from dgnet_paper.study.stored import failures, load

Say = Callable[[str], None]

_GENERATION = {  # seconds of a whole data set, converged truth: one H200 for paper size, one core for small
    "paper": {"cylinder": 67, "laser-heat": 17, "allen-cahn": 6, "fisher-kpp": 9, "laser-heat-3d": 15, "fitzhugh-nagumo": 19,
              "phase-transition": 30, "sediments": 129, "wavy-channel": 160, "light-reaction": 150, "obstacles": 200},
    "small": {name: 9 for name in ("cylinder", "sediments", "obstacles", "wavy-channel")}}
_TRAINING = {"paper": 300.0, "small": 45.0}  # seconds, where nothing is known


@dataclass(frozen=True)
class Options:
    """How cells are run; none of it decides what a cell is."""

    data: Path
    out: Path
    device: str = "cpu"
    budget: float | None = None  # seconds of training per cell
    search: float = 0.0  # share of the budget for each trial (`search`); 0 takes the method's own recipe
    makers: int = 2  # data sets made at once in one folder: each may fill a good part of a device
    sharing: int = 1  # processes that were told to share the device
    keep_last: bool = False  # the checkpoint to resume from, of finished cells
    stop_after: float | None = None  # start no cell that would, by its estimate, end later than so many seconds from the start
    report: Report | None = None
    tell: Tell | None = None
    say: Say = print

    def __post_init__(self) -> None:
        if self.search and self.budget is None:
            raise InputError("a search of the learning rate takes a share of the budget for each trial: give a budget (--budget)")


def expand(cells: Iterable[Experiment]) -> list[Experiment]:
    """The cells with all they need, each once, what is needed first."""
    out: dict[Experiment, None] = {}

    def add(cell: Experiment) -> None:
        for need in cell.needs:
            add(need)
        out.setdefault(cell)

    for cell in cells:
        add(cell)
    return list(out)


def alike(cells: Sequence[Experiment]) -> list[Experiment]:
    """For processes that share a device: what fills it last, so that models share it with their like; else the same order."""
    return sorted(cells, key=lambda cell: cell.method in HEAVY)


@dataclass(frozen=True)
class Item:
    """A line of a plan."""

    cell: Experiment
    state: str  # finished | running | failed | missing
    seconds: float  # still to come
    command: str
    note: str = ""


def plan(cells: Iterable[Experiment], options: Options) -> list[Item]:
    """What is finished, what is missing, how long it will take, and the command for each cell."""
    done = load([options.out]) if (options.out / "cells").is_dir() or (options.out / archive.CELLS).exists() else {}
    failed = failures([options.out]) if (options.out / "cells").is_dir() else {}
    items, planned = [], set()
    for cell in expand(cells):
        command = command_of(cell, options)
        if cell.tag in done:
            items.append(Item(cell, "finished", 0.0, command))
            continue
        who = holder(cell.folder(options.out) / ".claim")
        key = (cell.scenario, cell.size, cell.truth, cell.scale, cell.few)
        seconds = estimate(cell, options, done)
        if cell.kind in ("classical", "train") and key not in planned and not has_data(cell, options):
            planned.add(key)
            seconds += generation(cell)
        state = "running" if who else "failed" if cell.tag in failed else "missing"
        items.append(Item(cell, state, seconds, command, who or failed.get(cell.tag, "")))
    return items


def generation(cell: Experiment) -> float:
    """Seconds for the data set of a cell, roughly."""
    return 3.0 if cell.few else float(_GENERATION[cell.size].get(cell.scenario, 4))


def estimate(cell: Experiment, options: Options, done: dict[str, dict[str, Any]]) -> float:
    """Seconds of a cell without its data: as finished cells of its like took, else the budget."""
    alike = [r for r in done.values() if r["cell"]["kind"] == cell.kind and r["cell"]["size"] == cell.size
             and r["device"] == options.device and (r["cell"]["factor"] < 1.0) == (cell.factor < 1.0)]
    same = [r for r in alike if r["cell"]["scenario"] == cell.scenario]
    exact = [r for r in same if r["cell"]["method"] == cell.method]
    trials = TRIALS * options.search * (options.budget or 0.0)  # at most: seeds share them
    for group in (exact, same, alike):
        if group:
            took = float(np.mean([r["seconds"]["total"] - r["seconds"].get("generate", 0.0) for r in group]))
            if cell.kind == "train" and options.budget is not None:  # trained as long as now allowed, judged as before
                took = float(np.mean([r["seconds"].get("evaluate", 5.0) for r in group])) + options.budget + trials
            return took
    if cell.kind != "train":
        return 10.0 if cell.size == "small" else 60.0
    if cell.factor < 1.0:
        return 5.0
    return 15.0 + (_TRAINING[cell.size] if options.budget is None else options.budget + trials)


def has_data(cell: Experiment, options: Options) -> bool:
    if cell.method == "every":
        return True  # it needs none
    folder = options.data if not cell.few else options.data / f"few-{cell.few}"
    return (folder / f"{file_stem(cell.definition(), cell.truth)}.h5").exists()


def command_of(cell: Experiment, options: Options) -> str:
    budget = f" --budget {options.budget / 60:g}" if options.budget is not None and cell.kind == "train" else ""
    budget += f" --search {options.search:g}" if options.search and budget else ""
    device = f" --device {options.device}" if options.device != "cpu" else ""
    return f"dgnet-paper reproduce {cell.tag} --data {options.data} --out {options.out}{budget}{device}"
