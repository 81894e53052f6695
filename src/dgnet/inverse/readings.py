"""Readings of sensors from CSV tables. What is wrong with them is named in one sentence, and worked around where that can be."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dgnet.arguments import checked
from dgnet.errors import LARGEST, InputError
from dgnet.files import csv_number, read_csv, read_text
from dgnet.inverse.sensor import SENSORS, Point, Sensor
from dgnet.mesh import from_cells
from dgnet.problems import Problem

NOTHING = ("", "nan", "na", "null", "none", "-")
"""Cells without a reading."""
_STUCK = 5  # equal readings in a row, of a sensor that is noisy before
_KELVIN = 273.15
_STEPS = 10_000_000  # of a table of readings, at most
_ENOUGH, _NEXT = 12, 3  # residuals of a sensor, fewer of which tell nothing of their colour; readings that each is compared with
_COLOUR = 4.0  # standard deviations of white noise's sum of correlations above which residuals are no noise
APART = 4.0  # a sensor whose residuals are this often the median of all sensors' does not fit the others


@checked
@dataclass(frozen=True, eq=False)
class Readings:
    """What sensors read.

    - `times` [T], increasing, counted from the start
    - `values` [T, S], not a number where there is none
    - `sensors`: what each of them reads
    - `notes`: what was wrong and how it was worked around
    """

    times: np.ndarray
    values: np.ndarray
    sensors: tuple[Sensor, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        times, shape = np.shape(self.times), np.shape(self.values)
        if len(times) != 1 or not times[0] or shape != (*times, len(self.sensors)) or not self.sensors:
            raise InputError(f"readings must be [times, sensors] at times [times], got {list(shape)} at {list(times)} for "
                             f"{len(self.sensors)} sensors")
        with np.errstate(invalid="ignore"):
            if (np.abs(self.values) > LARGEST).any() or (np.abs(self.times) > LARGEST).any():
                raise InputError(f"readings and their times must be numbers of up to {LARGEST:g}, or not a number")

    @checked
    def keeping(self, kept: Sequence[int], *notes: str) -> Readings:
        """These sensors alone."""
        if not all(0 <= k < len(self.sensors) for k in kept):
            raise InputError(f"sensors are numbered from 0 to {len(self.sensors) - 1}, got {list(kept)}")
        return replace(self, values=self.values[:, list(kept)], sensors=tuple(self.sensors[k] for k in kept),
                       notes=(*self.notes, *notes))


@checked
def read_sensors(path: Path, dim: int) -> list[Sensor]:
    """A table with columns sensor, x, y[, z]; where needed field, lag, and those of kinds (`Sensor.columns`): radius, boundary."""
    axes, own = ["x", "y", "z"][:dim], {key: kind for cls in SENSORS for key, kind in cls.columns.items()}
    found: dict[str, Sensor] = {}
    for line, row in read_csv(path, ["sensor"], [*axes, *own, "field", "lag"]):
        name, field = row["sensor"], row.get("field") or None
        if not name or name in found:
            raise InputError(f"{path}, line {line}: sensor '{name}' {'is listed twice' if name else 'has no name'}")
        cells = {key: row.get(key, "") if kind is str else csv_number(row[key], path, line, key) if row.get(key) else 0.0
                    for key, kind in own.items()}
        lag = csv_number(row["lag"], path, line, "lag") if row.get("lag") else 0.0
        if lag < 0:
            raise InputError(f"{path}, line {line}: the lag of sensor '{name}' must not be negative, got {row['lag']}")
        cls: Any = next(c for c in SENSORS if not c.columns or cells[next(iter(c.columns))])
        given: dict[str, Any] = {key: cells[key] for key in cls.columns}
        if "place" in cls.__annotations__:
            given["place"] = tuple(csv_number(row.get(axis, ""), path, line, axis) for axis in axes)
        found[name] = cls(**given, name=name, field=field, lag=lag)
    if not found:
        raise InputError(f"{path} lists no sensors")
    return list(found.values())


@checked
def read_readings(path: Path, sensors: Sequence[Sensor]) -> Readings:
    """A table with the column t and one column for each sensor, by its name; cells may be empty or nan."""
    lines = [row for row in csv.reader(read_text(path, "utf-8-sig").splitlines()) if any(cell.strip() for cell in row)]
    if len(lines) < 2:
        raise InputError(f"{path} has no rows below its header")
    known = {sensor.name: sensor for sensor in sensors}
    header = checked_header(lines[0], list(known), str(path))
    table = np.full((len(lines) - 1, len(header)), np.nan)
    for k, cells in enumerate(lines[1:]):
        if len(cells) != len(header):
            raise InputError(f"{path}, row {k + 2}: {len(cells)} cells under {len(header)} columns")
        for j, cell in enumerate(cells):
            if cell.strip().lower() not in NOTHING or header[j] == "t":
                table[k, j] = csv_number(cell.strip(), path, k + 2, header[j])
    at = header.index("t")
    times, values = table[:, at], np.delete(table, at, axis=1)
    late = np.flatnonzero(np.diff(times) <= 0)
    if len(late):
        raise InputError(f"{path}, row {late[0] + 3}: times must increase, got {times[late[0] + 1]:g} after {times[late[0]]:g}")
    names = [name for name in header if name != "t"]
    absent = [name for name in known if name not in names]
    notes = (f"No readings of {_listed(absent)}: left out.",) if absent else ()
    return Readings(times, values, tuple(known[name] for name in names), notes)


def checked_header(cells: Sequence[str], sensors: Sequence[str], name: str) -> list[str]:
    """The columns of a table of readings: t, and sensors of the list."""
    header = [cell.strip() for cell in cells]
    if header.count("t") != 1:
        raise InputError(f"{name} needs one column t (the time), and one for each sensor")
    for column in header:
        if column != "t" and column not in sensors:
            raise InputError(f"{name}: column '{column}' is no sensor of the list (it has: {', '.join(sensors)})")
        if header.count(column) > 1:
            raise InputError(f"{name} has twice the column '{column}'")
    return header


def kelvin_shift(first: np.ndarray, level: float) -> float:
    """What to add to readings whose first ones look like degrees Celsius of a start in kelvin (273.15), or like kelvin of a start
    in degrees Celsius (-273.15); else 0."""
    middle = float(np.nanmedian(first)) if np.isfinite(first).any() else math.nan
    for shift, warm in ((_KELVIN, level), (-_KELVIN, middle)):  # what is in kelvin is never near zero
        if warm > 0.5 * _KELVIN and abs(middle + shift - level) < 0.1 * _KELVIN < abs(middle - level):
            return shift
    return 0.0


def shift_note(first: np.ndarray, shift: float) -> str:
    """What `kelvin_shift` found, in words."""
    unit, moved = ("degrees Celsius", "added") if shift > 0 else ("kelvin", "taken off")
    return f"readings begin at {np.nanmedian(first):.4g}: taken for {unit}, {abs(shift)} {moved}"


def cleaned(readings: Readings, problem: Problem, level: float | None = None) -> Readings:
    """Readings that can be used: sensors outside of the part, dead ones and gaps left out, degrees Celsius turned into kelvin
    where the start is in kelvin, and the other way round.

    `level` is the mean of the start, where it is known.
    """
    if not math.isfinite(readings.times[0]) or readings.times[0] < 0:
        raise InputError(f"readings begin at t = {readings.times[0]:g}, before the start at 0")
    if readings.times[-1] < 0.5 * problem.dt:
        raise InputError(f"readings end at t = {readings.times[-1]:g}, within the first step of {problem.dt:g}: are they in another"
                         " unit of time?")
    if readings.times[-1] > _STEPS * problem.dt:
        raise InputError(f"readings end at t = {readings.times[-1]:g}, more than {_STEPS:,} steps of {problem.dt:g}: are they "
                         "in another unit of time?")
    large = np.abs(np.nan_to_num(readings.values)).max(initial=0.0)
    if large > LARGEST:
        raise InputError(f"a reading of {large:g} is beyond what can be computed with ({LARGEST:g})")
    readings = _inside(readings, problem)
    empty = [k for k in range(len(readings.sensors)) if not np.isfinite(readings.values[:, k]).any()]
    readings = _without(readings, empty, "without any reading")
    readings = _alive(readings)
    notes = [f"Sensor '{s.name}' lacks {gaps} of {len(column)} readings: the others are used."
             for s, column in zip(readings.sensors, readings.values.T) if (gaps := int(np.isnan(column).sum()))]
    readings = replace(readings, notes=(*readings.notes, *notes))
    shift = 0.0 if level is None else kelvin_shift(readings.values[0], level)
    if shift:
        note = f"The start is at {level:.4g}, {shift_note(readings.values[0], shift)}."
        readings = replace(readings, values=readings.values + shift, notes=(*readings.notes, note))
    return readings


def disagreeing(left: np.ndarray, sensors: Sequence[Sensor]) -> list[str]:
    """Notes on sensors whose residuals [T, S] are well above those of the others, where nothing was left out for it."""
    if len(sensors) < 4:
        return []
    size = np.sqrt(np.nanmean(left**2, axis=0))
    return [f"Sensor '{s.name}' disagrees with the others (residuals of {x:.3g}, the median is {np.median(size):.3g}): drifting or "
            "misplaced. Leave it out and ask again." for s, x in zip(sensors, size) if x > APART * np.median(size)]


def coloured(left: np.ndarray) -> list[int]:
    """Sensors whose residuals [T, S] hang together over time more than noise would: one reading with the next three of it."""
    found = []
    for k, column in enumerate(left.T):
        e = column[np.isfinite(column)]
        if len(e) < _ENOUGH or not e.any():
            continue
        hang = sum(float(e[j:] @ e[:-j]) for j in range(1, _NEXT + 1)) / float(e @ e)
        if hang > _COLOUR * np.sqrt(_NEXT / len(e)):
            found.append(k)
    return found


def steps_until(time: float, dt: float) -> int:
    """Steps of length dt from 0 until a time is reached."""
    return int(np.ceil(time / dt - 1e-9))


def interpolation(times: np.ndarray, steps: int, dt: float) -> np.ndarray:
    """[T, H+1]: readings between two steps are linear in time."""
    place = np.clip(times / dt, 0, steps)
    left = np.minimum(place.astype(int), steps - 1)
    out = np.zeros((len(times), steps + 1))
    out[np.arange(len(times)), left] = 1 - (place - left)
    out[np.arange(len(times)), left + 1] += place - left
    return out


def _inside(readings: Readings, problem: Problem) -> Readings:
    placed = [(k, s) for k, s in enumerate(readings.sensors) if isinstance(s, Point)]
    if not placed:
        return readings
    places = np.array([s.place for _, s in placed])
    if places.shape[1] != problem.mesh.dim:
        raise InputError(f"sensors have {places.shape[1]} coordinates, the part has {problem.mesh.dim}")
    outside = [placed[k] for k in from_cells(problem.mesh.points, problem.mesh.cells, places)[1]]
    if len(outside) == len(placed):
        low, high = problem.mesh.points.min(0), problem.mesh.points.max(0)
        raise InputError(f"every sensor lies outside of the part, which reaches from {low.round(4).tolist()} to "
                         f"{high.round(4).tolist()}: are their coordinates in another unit?")
    return _without(readings, [k for k, _ in outside], "outside of the part")


def _alive(readings: Readings) -> Readings:
    """Without sensors that never change while others do; of one that stops changing, what it read before."""
    values = readings.values.copy()
    moves = [len(np.unique(column[np.isfinite(column)])) > 1 for column in values.T]
    if not any(moves):
        raise InputError("no sensor ever changes its reading: there is nothing to learn from")
    notes = []
    for k, sensor in enumerate(readings.sensors):
        there = np.flatnonzero(np.isfinite(values[:, k]))
        changes = np.diff(values[there, k]) != 0
        if not moves[k] or not changes[: len(changes) // 3].all():
            continue  # dead throughout, or not noisy: equal readings mean nothing
        stuck = len(changes) - (int(np.flatnonzero(changes)[-1]) + 1)
        if stuck >= _STUCK:
            since = readings.times[there[-stuck - 1]]
            notes.append(f"Sensor '{sensor.name}' repeats its reading from t = {since:g} on: left out there.")
            values[there[-stuck:], k] = np.nan
    readings = replace(readings, values=values, notes=(*readings.notes, *notes))
    return _without(readings, [k for k, moved in enumerate(moves) if not moved and len(readings.times) > 2], "that never change")


def _without(readings: Readings, dropped: Sequence[int], why: str) -> Readings:
    if not dropped:
        return readings
    kept = [k for k in range(len(readings.sensors)) if k not in set(dropped)]
    if not kept:
        raise InputError(f"all sensors are {why}" if why.startswith("outside") else f"there are only sensors {why}")
    return readings.keeping(kept, f"Sensors {why}, left out: {', '.join(readings.sensors[k].name for k in dropped)}.")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
