"""Following from files: the part of a run or problem, rows as they come, strengths from the first of them or an earlier state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from dgnet.errors import InputError
from dgnet.following.dynamics import in_double
from dgnet.following.follow import LEARN, Follower, placed
from dgnet.following.stream import Row, in_kelvin, rows
from dgnet.following.unknown_inputs import Prior, learned
from dgnet.inverse import Readings, Sensor, problem_of, read_sensors, read_spots, read_start
from dgnet.problems import SpotTable
from dgnet.training import Simulator


def follow_from_files(simulator: Simulator, readings: Path | None, sensors: Path, unknown: Sequence[str] = ("start", "field"), *,
                      priors: Mapping[str, Prior] | None = None, noise: float | None = None, learn: int = LEARN,
                      spots: Path | None = None, source: Path | None = None, initial: Path | None = None,
                      rank: int | None = None, chance: float = 1e-6, wait: float = 0.0,
                      resume: Path | None = None) -> tuple[Follower, Iterator[Row]]:
    """A part that is ready to be followed, and the rows of its readings.

    - `readings`: a table that may go on growing, or standard input (None); `wait`: seconds for further rows at its end
    - `priors`, `noise`: of all unknowns; else from the likelihood of the first rows (`learn`)
    - `resume`: a state that `Follower.save` wrote; unknowns, noise and rank are then those of that state
    """
    case = simulator.case
    problem, model = in_double(problem_of(simulator), simulator.model)
    listed = read_sensors(sensors, case.mesh.dim)
    there, _ = placed(listed, problem)
    start, known = read_start(case, initial), None if source is None else SpotTable.read(source, case.mesh.dim)
    places = None if spots is None else read_spots(spots, case.mesh.dim)
    stream = in_kelvin(rows(readings, [s.name for s in there], wait, [s.name for s in listed]), float(start.mean()))
    if resume is not None:
        part = Follower.load(resume, problem, listed, start=start, source=known, spots=places, model=model)
        last = part.time
        return part, (row for row in stream if not row.time <= last)  # later rows may still go back: that is an event
    first = _first(stream, 1 if priors and noise else learn)
    begin = next(row.time for row in first if math.isfinite(row.time))
    found, level = dict(priors or {}), noise
    if not found or level is None:
        asked, level = learned(problem, _rising(first, there), unknown, noise=noise, t0=begin, start=start, source=known,
                               spots=places, model=model)
        found = asked | found
    part = Follower(problem, listed, found, noise=level, t0=begin, rank=rank, chance=chance, start=start, source=known,
                    spots=places, model=model)
    return part, chain(first, stream)


def _first(stream: Iterator[Row], count: int) -> list[Row]:
    """The first rows, as many as strengths are learned from."""
    found, usable = [], 0
    for row in stream:
        found.append(row)
        usable += math.isfinite(row.time)
        if usable == count:
            return found
    if not usable:
        raise InputError("there is no row of readings with a time")
    return found


def _rising(first: Sequence[Row], sensors: Sequence[Sensor]) -> Readings:
    """The rows whose times increase, counted from the first."""
    used: list[Row] = []
    for row in first:
        if math.isfinite(row.time) and (not used or row.time > used[-1].time):
            used.append(row)
    return Readings(np.array([row.time - used[0].time for row in used]), np.stack([row.values for row in used]), tuple(sensors))
