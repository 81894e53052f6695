"""Curves of the field, tables in time and latent heat: as a problem file gives them, and as coefficients.

Curves come from .csv files or functions of physics.py; what a run brings along takes the place of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.files import read_text
from dgnet.problems.conditions import TimeTable
from dgnet.problems.curves import ELSEWHERE, ByRegion, Curve, Scaled
from dgnet.problems.units import FIELD, LATENT_HEAT, LATENT_VOLUME, TIME, Dimension, Units
from dgnet.projects.physics import Physics
from dgnet.projects.table import Table

CURVE, TABLE = ".curve", ".table"  # end the names of what a run brings along
POINTS = 513  # of a function of physics.py


@dataclass(frozen=True)
class CurveSpec:
    """A coefficient as a function of the field: a table in a .csv file, or a function of physics.py between two values."""

    of: str  # the field
    dimension: Dimension
    file: str = ""
    function: str = ""
    limits: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class TimeFile:
    """A boundary value over time in a .csv file."""

    path: str
    of: str  # the field
    dimension: Dimension


@dataclass(frozen=True)
class Melting:
    """A latent heat, per mass or volume as the capacity is, and where it is taken up: at one value of the field or between two."""

    heat: float
    low: float
    high: float | None = None


# ---------------------------------------------------------------------- in the problem file


def read_curve(t: Table, dimension: Dimension, units: Units, of: str) -> CurveSpec:
    spec = CurveSpec(of, dimension, function=t.text("curve"), limits=t.span("range", FIELD, units, of, single=False))
    t.close()
    return spec


def read_melting(t: Table, capacity: Sequence[str], of: str, units: Units) -> dict[str, Melting]:
    """`latent_heat` and `melting`, for all cells ("") or per region; `capacity`: the keys that the capacity was given by."""
    if not t.has("latent_heat") and not t.has("melting"):
        return {}
    heat, at = t.need("latent_heat"), t.need("melting")
    if not capacity:
        raise InputError(f"{t.where('latent_heat')} needs density and capacity, or volumetric_capacity")
    rows = {"": t}
    if isinstance(heat, dict) or isinstance(at, dict):
        heats, places = t.table("latent_heat"), t.table("melting")
        for key in [*heats.values, *places.values]:
            heats.need(key)
            places.need(key)
        rows = {key: Table({"latent_heat": heats.values[key], "melting": places.values[key]}, t.path, f"{t.place}[{key}]")
                for key in heats.values}
    found = {}
    for key, row in rows.items():
        low, high = row.span("melting", FIELD, units, of)
        latent = row.number("latent_heat", None, LATENT_HEAT if "capacity" in capacity else LATENT_VOLUME, units, of, positive=True)
        found[key] = Melting(latent, low, high if high > low else None)
    return found


# ---------------------------------------------------------------------- as coefficients


def curve_of(spec: CurveSpec, name: str, where: str, folder: Path, units: Units, physics: Physics) -> Curve:
    """The curve that a problem file names."""
    def made() -> np.ndarray:
        if spec.file:
            return read_columns(folder / spec.file, units, spec.of, (FIELD, spec.dimension))
        at = torch.linspace(*spec.limits, POINTS, dtype=torch.float64)
        values = physics.of_space(spec.function, f"{where}.values{CURVE}", at, ((POINTS,),))
        return np.stack([at.numpy(), values.numpy()])

    table = physics.remembered(where + CURVE, made)
    try:
        return Curve(table[0], table[1], name=f"{name} ({spec.file or spec.function})")
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def table_of(spec: TimeFile, where: str, folder: Path, units: Units, physics: Physics) -> TimeTable:
    """The table in time that a problem file names."""
    rows = physics.remembered(where + TABLE, lambda: read_columns(folder / spec.path, units, spec.of, (TIME, spec.dimension)))
    try:
        return TimeTable(rows[0], rows[1])
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def read_columns(path: Path, units: Units, of: str, dimensions: tuple[Dimension, Dimension]) -> np.ndarray:
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


def _factors(path: Path, named: list[str], units: Units, of: str, dimensions: tuple[Dimension, Dimension]) -> np.ndarray:
    """What the columns are to be multiplied by [2, 1]; a field must have the unit of the problem."""
    if not named:
        return np.ones((2, 1))
    if len(named) != 2:
        raise InputError(f"{path}: the first row has {len(named)} units in brackets, not those of both columns")
    try:
        return np.array([[units.convert(f"1 {unit}", kind, of)] for unit, kind in zip(named, dimensions)])
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
        ends = [melt.low - 1, (melt.low if melt.high is None else melt.high) + 1]
        capacity = Curve(ends, [capacity, capacity], extends=True, name="capacity")
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
