"""A run that was trained from readings alone: the folder that `dgnet train PROBLEM --readings` writes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dgnet.errors import InputError
from dgnet.files import locked, write_json
from dgnet.inverse.fit_to_readings import Experiment, Learned, learn
from dgnet.models.dgnet import DGNet
from dgnet.problems.case import OWN, base_problem
from dgnet.projects import Project, carry
from dgnet.training.identity import digest, fingerprint
from dgnet.training.plan import make_plan
from dgnet.training.run import PROBLEM, Run, Settings, write_run

READINGS = "readings"
"""The kind of truth, the recipe and the place of data of such a run."""


def train_on_readings(project: Project, folder: Path, experiments: Sequence[Experiment], *, seed: int = 0,
                      minutes: float | None = None) -> tuple[Run, Learned]:
    """Learn from readings what the problem leaves open, and keep it as a run: weights, problem, formulas and curves.

    - `project`: of a folder with problem.toml; it needs no [[data]]
    - `experiments`: readings with their starts and sources
    - `minutes`: for the corrections of the operator; those of the table [training] by default
    """
    case, path = project.case, folder / "run.toml"
    if path.exists():
        raise InputError(f"{folder} holds another run; choose another folder (--out) or remove it")
    steps = max(round(e.readings.times[-1] / case.dt) for e in experiments)
    plan = make_plan(project, len(experiments), steps, any(e.source is not None for e in experiments))
    config = replace(plan.config, free=False)
    base = base_problem(case, "cpu", torch.float64)
    torch.manual_seed(seed)
    model = DGNet(config, base).double()
    found = learn(model, base, experiments, seconds=60 * (project.training.minutes if minutes is None else minutes))
    settings = Settings(case.name, case.size, READINGS, READINGS, "dgnet", OWN, seed, project=PROBLEM)
    told = hashlib.sha256()
    for e in experiments:
        told.update(e.readings.times.tobytes() + e.readings.values.tobytes() + e.start.numpy().tobytes())
    trained_on = {**fingerprint(case, project.code), "steps": steps, "train_trajectories": len(experiments), "test_trajectories": 0,
                  "data": told.hexdigest()[:16]}
    folder.mkdir(parents=True, exist_ok=True)
    with locked(path):
        carry(project, folder / PROBLEM)
        model = model.float()
        write_run(folder, {"run": settings, "model": config, "trained_on": trained_on}, model, case)
        write_json(folder / "learned.json", {
            "before": found.before, "numbers": found.numbers, "after": found.after, "held": found.held, "unknowns": found.unknowns,
            "determined": found.determined, "coefficients": model.coefficients() if config.calibrate else {}, "sd": found.sd,
            "notes": list(found.notes)})
    return Run(folder=folder, settings=settings, case=case, model=model, project=project,
               identity=digest(fingerprint(case, project.code))), found
