"""Curves and tables in time of a problem file: .csv files, functions of physics.py, latent heat, and their products."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.files import read_text
from dgnet.problems.conditions import TimeTable
from dgnet.problems.curves import ELSEWHERE, ByRegion, Curve, Scaled
from dgnet.problems.units import FIELD, TIME, Dimension, Units
from dgnet.projects.curve_spec import CurveSpec, Melting
from dgnet.projects.physics import Physics
from dgnet.projects.toml import TimeFile

CURVE, TABLE = ".curve", ".table"  # end the names of what a run brings along
POINTS = 513  # of a function of physics.py


def curve_of(spec: CurveSpec, name: str, where: str, folder: Path, units: Units, physics: Physics) -> Curve:
    """The curve that a problem file names; what a run brings along takes the place of its file or function."""
    place, label = where + CURVE, f"{name} ({spec.file or spec.function})"
    table = physics.stored(place)
    if table is None and spec.file:
        table = physics.keep(place, read_table(folder / spec.file, units, spec.of, (FIELD, spec.dimension)))
    elif table is None:
        at = torch.linspace(*spec.limits, POINTS, dtype=torch.float64)
        values = physics.of_space(spec.function, f"{where}.values{CURVE}", at, ((POINTS,),))
        table = physics.keep(place, np.stack([at.numpy(), values.numpy()]))
    try:
        return Curve(table[0], table[1], name=label)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def table_of(spec: TimeFile, where: str, folder: Path, units: Units, physics: Physics) -> TimeTable:
    """The table in time that a problem file names; what a run brings along takes the place of its file."""
    rows = physics.stored(where + TABLE)
    if rows is None:
        rows = physics.keep(where + TABLE, read_table(folder / spec.path, units, spec.of, (TIME, spec.dimension)))
    try:
        return TimeTable(rows[0], rows[1])
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def read_table(path: Path, units: Units, of: str, dimensions: tuple[Dimension, Dimension]) -> np.ndarray:
    """A table of two columns [2, m] in the units of the problem: the field or the time, and what depends on it.

    Separated by commas, semicolons, tabs or blanks. A first row of names may have units in brackets: `T [K], k [W/m/K]`.
    """
    lines = [line.strip() for line in read_text(path).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    head = "" if not lines or _is_number(_cells(lines[0])[0]) else lines.pop(0)
    rows = [_cells(line) for line in lines]
    bad = next((k for k, row in enumerate(rows, start=1)
                if len(row) != 2 or not all(_is_number(cell) and isfinite(float(cell)) for cell in row)), None)
    if bad is not None or not rows:
        columns = "the time and the value" if dimensions[0] == TIME else f"{of} and the coefficient"
        which = f"row {bad} of the table is not" if bad else "the table has no rows of"
        raise InputError(f"{path}: {which} two numbers, {columns}")
    factors = _factors(path, re.findall(r"\[(.*?)\]", head), units, of, dimensions)
    return np.ascontiguousarray(np.array(rows, dtype=np.float64).T) * factors


def _cells(line: str) -> list[str]:
    return re.split(r"\s*[,;\t]\s*|\s+", line)


def _factors(path: Path, given: list[str], units: Units, of: str, dimensions: tuple[Dimension, Dimension]) -> np.ndarray:
    """What the columns are to be multiplied by [2, 1]; a field must have the unit of the problem."""
    if not given:
        return np.ones((2, 1))
    if len(given) != 2:
        raise InputError(f"{path}: the first row has {len(given)} units in brackets, not those of both columns")
    try:
        return np.array([[units.convert(f"1 {unit}", kind, of)] for unit, kind in zip(given, dimensions)])
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# ---------------------------------------------------------------------- latent heat, products


def melted(capacity: Any, melting: Mapping[str, Melting], where: str) -> Any:
    """The capacity with its latent heats: everywhere, or in regions."""
    if not melting:
        return capacity
    if isinstance(capacity, Mapping):
        raise InputError(f"{where}: latent_heat needs one capacity for all fields")
    if "" in melting:
        if isinstance(capacity, ByRegion):
            return ByRegion({name: _with_latent(part, melting[""], where) for name, part in capacity.parts.items()})
        return _with_latent(capacity, melting[""], where)
    parts = dict(capacity.parts) if isinstance(capacity, ByRegion) else {name: capacity for name in (*melting, ELSEWHERE)}
    for name, melt in melting.items():
        if name not in parts:
            raise InputError(f"{where}: latent_heat names the region '{name}', but the capacity does not")
        parts[name] = _with_latent(parts[name], melt, where)
    return ByRegion(parts)


def _with_latent(capacity: Any, melt: Melting, where: str) -> Curve:
    if isinstance(capacity, float):
        capacity = Curve([melt.low - 1, (melt.high or melt.low) + 1], [capacity, capacity], extends=True, name="capacity")
    if not isinstance(capacity, Curve):
        raise InputError(f"{where}: latent_heat needs a capacity that is a number or a curve")
    return capacity.melting(melt.heat, melt.low, melt.high)


def times(a: Any, b: Any) -> Any:
    """The product of two coefficients, of which at most one has curves."""
    if isinstance(b, Curve | Scaled | ByRegion):
        a, b = b, a
    if isinstance(b, Curve | Scaled | ByRegion):
        raise InputError("density and capacity cannot both change with the field: give their product as volumetric_capacity")
    if isinstance(a, ByRegion):
        return ByRegion({name: times(part, b) for name, part in a.parts.items()})
    return Scaled(a.curve, np.asarray(a.by) * b) if isinstance(a, Scaled) else a * b
