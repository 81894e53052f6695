"""A goal file (TOML) for `dgnet design`: free sources, targets and limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.designs.design import Designed, Target, design
from dgnet.designs.spots import FreeSpot, Range
from dgnet.errors import InputError
from dgnet.files import csv_number, read_array, read_csv, read_toml
from dgnet.inverse import problem_of, read_start
from dgnet.mesh import Mesh
from dgnet.problems import FIELD, LENGTH, PURE, SPEED, TIME, Dimension, SpotTable, Units
from dgnet.projects import Table
from dgnet.training import Simulator

Corners = tuple[tuple[float, ...], tuple[float, ...]]
_STEPS = 1_000_000


@dataclass(frozen=True, eq=False)
class Goal:
    """What `design` is called with."""

    sources: tuple[FreeSpot, ...]
    targets: tuple[Target, ...]
    steps: int
    highest: float | None
    lowest: float | None
    tolerance: float


def read_goal(path: Path, mesh: Mesh, dt: float, field: str, units: Units) -> Goal:
    """The goal in a TOML file, for a problem's mesh, time step, field and units. Files that it names lie beside it."""
    top = Table(read_toml(path), path)
    length = top.number("time", None, TIME, units, positive=True)
    steps = round(length / dt)
    if steps < 1 or steps > _STEPS or abs(steps * dt - length) > 1e-6 * length:
        raise InputError(f"{path}: time must be a multiple of the problem's step of {dt:g}, up to {_STEPS:,} of them, got "
                         f"{length:g}")
    limits = top.table("limits")
    highest, lowest = (limits.number(key, None, FIELD, units, field) if limits.has(key) else None for key in ("highest", "lowest"))
    limits.close()
    sources = [_source(one, k, path, mesh.dim, units) for k, one in enumerate(top.tables("source"), start=1)]
    targets = [_target(one, k, path, mesh, field, units) for k, one in enumerate(top.tables("target"), start=1)]
    tolerance = top.number("tolerance", 0.02, positive=True)
    top.close()
    return Goal(tuple(sources), tuple(targets), steps, highest, lowest, tolerance)


def design_from_goal(simulator: Simulator, goal: Path, *, initial: Path | None = None, starts: int = 4, seed: int = 0,
                     correct: bool = False) -> Designed:
    """`design` for a run or problem and a goal file, in double precision; `initial` is a start [nodes], a .npy file."""
    case, model = simulator.case, simulator.model
    if isinstance(model, torch.nn.Module):
        model.double()
    wanted = read_goal(goal, case.mesh, case.dt, case.pde.fields[0], case.units)
    return design(problem_of(simulator, double=True), wanted.sources, wanted.targets, wanted.steps, highest=wanted.highest,
                  lowest=wanted.lowest, start=read_start(case, initial), model=model, tolerance=wanted.tolerance, starts=starts,
                  seed=seed, correct=correct)


def _source(table: Table, number: int, path: Path, dim: int, units: Units) -> FreeSpot:
    stays = table.has("place")
    found = FreeSpot(
        table.text("name", f"source {number}"), table.number("radius", None, LENGTH, units, positive=True),
        _range(table, "power", PURE, units, needed=True) or 0.0,
        _point(table, "place", dim, units) if stays else None,
        SpotTable.read(path.parent / table.text("path"), dim) if table.has("path") else None,
        _corners(table, dim, units), table.count("bends", 5), table.number("speed", math.inf, SPEED, units),
        table.number("rate", math.inf), table.count("knots", 21), _range(table, "on", TIME, units),
        _range(table, "off", TIME, units))
    table.close()
    return found


def _target(table: Table, number: int, path: Path, mesh: Mesh, field: str, units: Units) -> Target:
    given = [key for key in ("value", "field", "history") if table.has(key)]
    if len(given) != 1:
        raise InputError(f"{table.where('value')}: a target has a value, a field or a history, one of them")
    value: float | np.ndarray = 0.0
    history = None
    if given[0] == "value":
        value = table.number("value", None, FIELD, units, field)
    elif given[0] == "field":
        value = read_array(path.parent / table.text("field"), ((mesh.n_nodes,),)).astype(np.float64)
    else:
        file = path.parent / table.text("history")
        columns = ["t", "value"]
        rows = np.array([[csv_number(row[c], file, line, c) for c in columns] for line, row in read_csv(file, columns, [])])
        if len(rows) < 2 or (np.diff(rows[:, 0]) <= 0).any():
            raise InputError(f"{file} needs two rows at least, with times that increase")
        history = rows[:, 0], rows[:, 1]
    moment = table.number("time", None, TIME, units) if table.has("time") else None
    begin, end = (table.number(key, None, TIME, units) if table.has(key) else None for key in ("from", "to"))
    if moment is not None and (begin is not None or end is not None):
        raise InputError(f"{table.where('time')}: a target has one time, or from and to")
    found = Target(table.text("name", f"target {number}"), value, history,
                   _point(table, "place", mesh.dim, units) if table.has("place") else None,
                   table.number("radius", 0.0, LENGTH, units), _corners(table, mesh.dim, units),
                   (begin or 0.0) if moment is None else moment, end if moment is None else moment,
                   table.number("weight", 1.0, positive=True))
    table.close()
    return found


def _point(table: Table, key: str, dim: int, units: Units, value: Any = None) -> tuple[float, ...]:
    value = table.need(key) if value is None else value
    if not isinstance(value, list) or len(value) != dim:
        raise table.wrong(key, f"a list of {dim} coordinates")
    return tuple(table.quantity(x, key, LENGTH, units) for x in value)


def _corners(table: Table, dim: int, units: Units) -> Corners | None:
    if not table.has("area"):
        return None
    value = table.values["area"]
    if not isinstance(value, list) or len(value) != 2:
        raise table.wrong("area", "two corners, the lower and the upper one")
    low, high = (_point(table, "area", dim, units, corner) for corner in value)
    return low, high


def _range(table: Table, key: str, dimension: Dimension, units: Units, needed: bool = False) -> Range | float | None:
    """A number, or the lowest and the highest one."""
    if not table.has(key):
        return table.need(key) if needed else None
    value = table.values[key]
    if not isinstance(value, list):
        return table.quantity(value, key, dimension, units)
    if len(value) != 2:
        raise table.wrong(key, "a number, or the lowest and the highest one")
    low, high = (table.quantity(v, key, dimension, units) for v in value)
    return low, high
