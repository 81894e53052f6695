"""Do data fit a problem? Every command that reads a data set for a case asks here first."""

from __future__ import annotations

import numpy as np

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.problems.case import OWN, Case


def check_fits(data: Dataset, case: Case, truth: str = "", from_zero: bool = False) -> None:
    """Refuse data of another scenario, mesh, field, time step, offset, flow or (where given) kind of truth, naming what differs.

    Times must be evenly spaced; with `from_zero` they also must begin at 0.
    """
    named = data.provenance.get("scenario")
    if named is not None and named != case.name and OWN not in (case.size, data.provenance.get("size")):
        raise InputError(f"{data.path} holds data of '{named}', not of '{case.name}'")
    kind = data.provenance.get("truth")
    if truth and kind not in (None, truth):
        raise InputError(f"{data.path} holds {kind} truth, the run was trained on {truth}")
    _check_mesh(data, case)
    clock = case.units.in_time
    if data.fields != case.pde.fields:
        raise InputError(f"{data.path} has the fields {', '.join(data.fields)}, '{case.name}' has "
                         f"{', '.join(case.pde.fields)}")
    if not abs(data.dt - case.dt) <= 1e-9 * case.dt:
        raise InputError(f"{data.path} has the time step {clock(data.dt)}, '{case.name}' has {clock(case.dt)}")
    if not np.allclose(data.offset, case.offsets, rtol=1e-6, atol=1e-12):
        raise InputError(f"{data.path} has the offset {_list(data.offset)}, '{case.name}' has {_list(case.offsets)}: "
                         "errors would be measured from another value")
    if data.has_velocity != case.given_flow:
        raise InputError(f"{data.path} has {'a' if data.has_velocity else 'no'} flow, '{case.name}' "
                         f"{'needs one' if case.given_flow else 'has none that comes with the data'}")
    even = case.dt * np.arange(data.steps + 1)
    for number in range(len(data)):
        times = data.times(number)
        wanted = even if from_zero else times[0] + even
        off = ~(np.abs(times - wanted) <= 1e-4 * case.dt)  # single precision of long series is enough
        if off.any():
            k = int(off.argmax())
            raise InputError(f"{data.path}: trajectory {number} has its stored time {k} at t = {times[k]:g}, not at "
                             f"{clock(wanted[k])}: times must be evenly spaced by Δt = {clock(case.dt)}"
                             + (" and begin at 0" if from_zero else ""))


def _check_mesh(data: Dataset, case: Case) -> None:
    found, mesh = data.mesh, case.mesh
    if found.points.shape != mesh.points.shape or found.cells.shape != mesh.cells.shape:
        raise InputError(f"{data.path} is on another mesh ({found.n_nodes} nodes, {found.n_cells} cells) than '{case.name}' "
                         f"({mesh.n_nodes} nodes, {mesh.n_cells} cells)")
    far = np.linalg.norm(found.points - mesh.points, axis=1)
    if not far.max() <= 1e-9 * np.ptp(mesh.points, axis=0).max():
        raise InputError(f"{data.path} is on another mesh than '{case.name}': node {int(far.argmax())} lies elsewhere")
    if not np.array_equal(np.sort(found.cells, axis=1), np.sort(mesh.cells, axis=1)):
        raise InputError(f"{data.path} is on another mesh than '{case.name}': its cells join other nodes")


def _list(values: tuple[float, ...]) -> str:
    return ", ".join(f"{v:g}" for v in values)
