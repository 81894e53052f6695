"""Leave one out: the run trained again without each of its training trajectories, scored on the one that was missing.

That is the error to expect on a new trajectory, and the only way to tell it from few of them.
"""

from __future__ import annotations

import csv
import hashlib
import math
import shutil
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from dgnet import __version__
from dgnet.data import Dataset, digests
from dgnet.discovery import Unknowns
from dgnet.errors import InputError
from dgnet.files import read_dataclass, read_json, write_json, write_text, writing_hdf5
from dgnet.models import as_stored, entry
from dgnet.models.dgnet import DGNetConfig
from dgnet.progress import Report
from dgnet.scoring import judge_file, rivals
from dgnet.training import Plan, Progress, Run, make_plan, train


def leave_one_out(run: Run, *, budget: float | None = None, device: str = "cpu", report: Report | None = None,
                  tell: Callable[[int, int, Progress, int], None] | None = None) -> dict[str, Any]:
    """Train again without each training trajectory, score on it; the result is kept as RUN/trust.json.

    `budget` seconds for all of it together; without one every fold has as long as the run itself took. A fold that is finished is
    not done again, an interrupted one is resumed.
    """
    settings, scenario = run.settings, run.case
    config = _config(run.folder, settings.model)
    with Dataset(run.data) as data:
        numbers, steps = data.of("train")[: settings.trajectories or None], data.steps
    if len(numbers) < 2:
        raise InputError(f"leaving one trajectory out needs at least two to train on, {run.folder} has {len(numbers)}")
    share = _seconds(run.folder) if budget is None else budget / len(numbers)
    plan = _plan(run, config, len(numbers) - 1, steps)
    folds = []
    for at, number in enumerate(numbers):
        folder = run.folder / "leave-one-out" / f"{number:05d}"
        record = folder / "fold.json"
        request = {"budget": share, "version": __version__, "weights": _digest(run.folder / "run.toml")}
        kept = _read_json(record)
        if kept is None or kept.get("request") != request:
            _begin(folder, request["weights"], fresh=kept is not None)
            rest = folder / "data.h5"
            link_without(run.data, rest, numbers, number)

            def follow(progress: Progress, total: int, at: int = at) -> None:
                if tell is not None:
                    tell(at, len(numbers), progress, total)

            trained, progress = train(
                scenario, settings.truth, rest, folder / "run", plan, seed=settings.seed, device=device, budget=share,
                project=run.project, portable=False, report=follow)
            kept = {"trajectory": number, **_score(trained, run.data, number, device), "iterations": progress.iteration,
                    "seconds": progress.seconds, "request": request}
            write_json(record, kept)
            (folder / "run" / "last.pt").unlink(missing_ok=True)  # no longer needed, and the largest of them
            rest.unlink(missing_ok=True)
        folds.append({k: v for k, v in kept.items() if k != "request"})
        if report is not None:
            report("leave one out", at + 1, len(numbers))
    errors, classical = (np.array([math.inf if f[key] is None else f[key] for f in folds]) for key in ("rne", "classical"))
    result = {"trajectories": len(folds), "budget_seconds": budget, "mean": float(errors.mean()), "worst": float(errors.max()),
              "classical_mean": float(classical.mean()), "below_classical": int((errors < classical).sum()), "folds": folds,
              "version": __version__}
    write_json(run.folder / "trust.json", result)
    return result


def _begin(folder: Path, weights: Any, fresh: bool) -> None:
    """An empty folder, unless an interrupted fold of the same run can go on in it."""
    note = folder / "request.txt"
    if fresh or (folder.exists() and (not note.exists() or note.read_text() != weights)):
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(note, weights)


def _config(folder: Path, model: str) -> Any:
    """The model's configuration as run.toml has it."""
    text = tomllib.loads((folder / "run.toml").read_text())
    return read_dataclass(entry(model).config, as_stored(model, text.get("model", {})), f"{folder / 'run.toml'} [model]")


def _plan(run: Run, config: Any, trajectories: int, steps: int) -> Plan:
    """The run's own plan for this number of trajectories."""
    unknowns = Unknowns.of(config) if isinstance(config, DGNetConfig) else None
    found = make_plan(run.project or run.case, trajectories, steps, model=run.settings.model, unknowns=unknowns,
                      recipe="paper" if run.settings.recipe == "paper" else "")
    return replace(found, config=config)


def _seconds(folder: Path) -> float | None:
    """How long the run was trained."""
    try:
        with (folder / "history.csv").open() as file:
            return float([row["seconds"] for row in csv.DictReader(file)][-1])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def link_without(data: Path, path: Path, numbers: Sequence[int], left_out: int) -> None:
    """A data set that borrows all training trajectories but one from another file; nothing is copied."""
    with h5py.File(data, "r") as source, writing_hdf5(path) as file:
        for key, value in source.attrs.items():
            file.attrs[key] = value
        for name in source:
            if name not in ("trajectories", "velocity"):
                source.copy(name, file)
        target = str(data.resolve())
        if "velocity" in source:
            file["velocity"] = h5py.ExternalLink(target, "/velocity")
        group, keys = file.create_group("trajectories"), sorted(source["trajectories"])
        for number in numbers:
            if number != left_out:
                group[keys[number]] = h5py.ExternalLink(target, f"/trajectories/{keys[number]}")
        group.attrs[digests.SUM] = digests.contents_sum(source["trajectories"], group.keys())


def _score(run: Run, data: Path, number: int, device: str) -> dict[str, float]:
    """RNE from offset on one trajectory, beside the better classical solver."""
    found = judge_file({"own": run.model, **rivals()}, run.case, data, device, numbers=[number])
    return {"rne": found.error("own"), "classical": min(found.error(name) for name in rivals())}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except InputError:
        return None


def read_trust(folder: Path) -> dict[str, Any] | None:
    """The stored result of `leave_one_out`."""
    found = _read_json(folder / "trust.json")
    return found and found | {key: math.inf for key in ("mean", "worst", "classical_mean") if found.get(key) is None}

