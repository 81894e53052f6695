"""Questions from files: tables of sensors, readings and spots, a start, and the run or problem that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.files import did_you_mean, read_array
from dgnet.inverse.coefficients import COEFFICIENTS, Coefficients, recover_coefficients
from dgnet.inverse.place import Placement, place, spread_out
from dgnet.inverse.readings import read_readings, read_sensors
from dgnet.inverse.recover import Recovered, recover
from dgnet.inverse.sensor import Sensor
from dgnet.inverse.tracks import TRACKS, Track, recover_track
from dgnet.inverse.unknowns import KINDS, read_spots
from dgnet.problems import Case, Problem, SpotTable, base_problem
from dgnet.training import Simulator

Tensor = torch.Tensor

CANDIDATES = 100
"""Nodes all over a part from which sensors are chosen, unless candidates are given."""


def read_start(case: Case, path: Path | None = None) -> Tensor:
    """The start [N, F] in double precision: from a .npy file [N] or [N, F], the offsets of the case unless given."""
    shape = case.mesh.n_nodes, len(case.pde.fields)
    if path is None:
        return torch.tensor(case.offsets, dtype=torch.float64).expand(shape).clone()
    return torch.from_numpy(read_array(path, (shape, shape[:1]) if shape[1] == 1 else (shape,)).astype(np.float64).reshape(shape))


def problem_of(simulator: Simulator, double: bool = False) -> Problem:
    """The discretised problem of a run, in the precision of its weights, or in double precision."""
    if simulator.case.given_flow:
        raise InputError(f"{simulator.folder}: its flow changes from trajectory to trajectory, so sensors respond differently in "
                         "each")
    weights = list(simulator.model.parameters()) if isinstance(simulator.model, torch.nn.Module) and not double else []
    return base_problem(simulator.case, "cpu", weights[0].dtype if weights else torch.float64)


def recover_from_files(simulator: Simulator, readings: Path, sensors: Path, unknown: Sequence[str], *, spots: Path | None = None,
                       radius: float | None = None, source: Path | None = None, initial: Path | None = None,
                       noise: float | None = None, per_region: bool = False) -> Recovered | Coefficients | Track:
    """What is unknown: linear unknowns (`recover`), coefficients with some of them (`recover_coefficients`), or the place or path
    of a spot (`recover_track`).

    - `spots`: table of places or paths of an unknown `source`; `radius`: of a spot whose place or path is unknown
    - `source`: table of known spots, `initial`: start, a .npy file
    """
    known_kinds = (*KINDS, *COEFFICIENTS, *TRACKS)
    for name in unknown:
        if name not in known_kinds and not name.startswith("flux:"):
            raise InputError(f"--unknown {name} cannot be recovered{did_you_mean(name, known_kinds)}")
    coefficients = [name for name in unknown if name in COEFFICIENTS]
    tracked = bool(set(unknown) & set(TRACKS))
    if tracked and (len(unknown) > 1 or radius is None):
        raise InputError(f"--unknown {' '.join(unknown)}: a place or path is recovered on its own, and needs the spot's --radius")
    case, problem = simulator.case, problem_of(simulator, bool(coefficients))
    table = read_readings(readings, read_sensors(sensors, case.mesh.dim))
    start, moving = read_start(case, initial), None if source is None else SpotTable.read(source, case.mesh.dim)
    places = None if spots is None else read_spots(spots, case.mesh.dim)
    if coefficients:
        others = [name for name in unknown if name not in COEFFICIENTS]
        return recover_coefficients(problem, table, coefficients, per_region=per_region, start=start, noise=noise, source=moving,
                                    spots=places, also=others)
    if tracked:
        assert radius is not None
        return recover_track(problem, table, radius, moving="path" in unknown, start=start, noise=noise, model=simulator.model,
                             source=moving)
    return recover(problem, table, unknown, spots=places, start=start, noise=noise, model=simulator.model, source=moving)


def place_from_files(simulator: Simulator, count: int, unknown: Sequence[str], steps: int, *, noise: float, strength: float,
                     length: float | None = None, spots: Path | None = None, candidates: Path | None = None,
                     criterion: Literal["A", "D"] = "A") -> tuple[Placement, list[Sensor]]:
    """The best places (`place`) among the candidates of a table, or among nodes all over the part; and the candidates."""
    mesh = simulator.case.mesh
    where = spread_out(mesh, CANDIDATES) if candidates is None else read_sensors(candidates, mesh.dim)
    return place(problem_of(simulator), where, count, unknown, steps, noise=noise, strength=strength, length=length,
                 model=simulator.model, spots=None if spots is None else read_spots(spots, mesh.dim), criterion=criterion), where
