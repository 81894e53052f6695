"""A run that was trained from readings alone: the folder that `dgnet train PROBLEM --readings` writes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from dgnet.errors import InputError
from dgnet.files import locked, write_json
from dgnet.inverse.files import read_start
from dgnet.inverse.fit_to_readings import Experiment, Learned, learn
from dgnet.inverse.readings import cleaned, read_readings, read_sensors, steps_until
from dgnet.models.dgnet import DGNet
from dgnet.problems import OWN, SpotTable, base_problem
from dgnet.projects import Project, carry, described
from dgnet.training import PROBLEM, Run, Settings, digest, fingerprint, make_plan, write_trained

READINGS = "readings"
"""The kind of truth, the recipe and the place of data of such a run."""


def train_from_tables(problem: Path, folder: Path, readings: Sequence[Path], sensors: Path, *, source: Sequence[Path] = (),
                      initial: Sequence[Path] = (), seed: int = 0, minutes: float | None = None) -> tuple[Run, Learned]:
    """`train_on_readings` of a folder with problem.toml and of tables: one experiment for each table of readings.

    - `source`, `initial`: known spots and starts, one for all experiments or one for each
    """
    for given, option in ((source, "--source"), (initial, "--initial")):
        if len(given) not in (0, 1, len(readings)):
            raise InputError(f"{option} is given {len(given)} times for {len(readings)} tables of readings: once, or once for each")
    project = described(problem, "", problem / "none", 1)
    case, places = project.case, read_sensors(sensors, project.case.mesh.dim)
    base, experiments = base_problem(case, "cpu", torch.float64), []
    for k, path in enumerate(readings):
        own, driven = (x[min(k, len(x) - 1)] if x else None for x in (initial, source))
        start = read_start(case, own)
        table = cleaned(read_readings(path, places), base, float(start.mean()))
        spots = None if driven is None else SpotTable.read(driven, case.mesh.dim).on(case.mesh)
        heat = None if spots is None else spots.average(torch.tensor(case.mesh.points), 0, steps_until(table.times[-1], case.dt),
                                                        case.dt)[0]
        experiments.append(Experiment(table, start, heat))
    return train_on_readings(project, folder, experiments, seed=seed, minutes=minutes)


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
    content = hashlib.sha256()
    for e in experiments:
        content.update(e.readings.times.tobytes() + e.readings.values.tobytes() + e.start.numpy().tobytes())
    trained_on = {**fingerprint(case, project.code), "steps": steps, "train_trajectories": len(experiments), "test_trajectories": 0,
                  "data": content.hexdigest()[:16]}
    folder.mkdir(parents=True, exist_ok=True)
    with locked(path):
        carry(project, folder / PROBLEM)
        model = model.float()
        write_trained(folder, {"run": settings, "model": config, "trained_on": trained_on}, model, case)
        coefficients = model.coefficients() if config.calibrate else {}
        write_json(folder / "learned.json", asdict(found) | {"coefficients": coefficients})
    return Run(folder=folder, settings=settings, case=case, model=model, project=project,
               identity=digest(fingerprint(case, project.code))), found
