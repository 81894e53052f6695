"""What a run was trained on, by content: short words and sums that say whether a problem is the same one, and what differs.

Numbers are compared in single precision, so that a function that another machine rounds differently stays the same function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from dgnet.data import Dataset
from dgnet.mesh import Mesh
from dgnet.problems.case import GIVEN_FLOW, Case
from dgnet.problems.conditions import Condition, TimeTable
from dgnet.problems.curves import ByRegion, Curve, Scaled
from dgnet.problems.pde import PDE

_WORDS = {"dt": "Δt", "physics": "physics.py", "data": "the training data", "phase_change": "phase change", "mesh": "the mesh"}


def fingerprint(case: Case, code: bytes | None = None) -> dict[str, Any]:
    """The problem as TOML can hold it, one entry per ingredient; coefficients that are what a PDE has by default are left out."""
    mesh, pde = case.mesh, case.pde
    times = tuple(k * case.dt for k in (0, 1, 3, 10))
    found: dict[str, Any] = {"fields": list(pde.fields), "dt": float(case.dt), "offset": [float(v) for v in case.offsets],
                             "mesh": _mesh(mesh)}
    for f in fields(PDE):
        value = getattr(pde, f.name)
        if f.name in ("fields", "velocity", "reaction") or (np.isscalar(value) and value == f.default):
            continue
        rows = pde.per_field(f.name)
        found[f.name] = _value(rows[0]) if pde.shared(f.name) else [_value(row) for row in rows]
    if pde.velocity is not None:
        found["velocity"] = _sampled(pde.velocity, times) if callable(pde.velocity) else _value(pde.velocity)
    if pde.reaction is not None:
        found["reaction"] = _reaction(pde.reaction, case.offsets)
    found |= case.particulars
    found["conditions"] = [_condition(c, mesh, times) for c in case.conditions]
    if code is not None:
        found["physics"] = hashlib.sha256(code).hexdigest()
    return found


def trained_on(case: Case, code: bytes | None, data: Dataset, trajectories: int | None) -> dict[str, Any]:
    """The [trained_on] table of a run: the problem, and which data."""
    counts = {f"{split}_trajectories": len(data.of(split)) for split in ("train", "test")}
    return {**fingerprint(case, code), "steps": data.steps, **counts, "data": data.identity(data.of("train")[:trajectories])}


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, in words."""
    return [f"{_WORDS.get(name, name)} was {_short(stored.get(name))} and is {_short(now.get(name))}"
            for name in dict.fromkeys([*stored, *now]) if _today(stored.get(name)) != _today(now.get(name))]


def _today(value: Any) -> Any:
    """The word that takes the place of what earlier versions wrote for a flow that comes with the data."""
    return GIVEN_FLOW if isinstance(value, str) and value.startswith("Flow(mean_velocity=0.0, viscosity=0.0,") else value


def of_problem(table: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a [trained_on] table that is about the problem, not about the data."""
    return {k: v for k, v in table.items() if k not in ("data", "steps", "train_trajectories", "test_trajectories")}


def digest(table: Mapping[str, Any]) -> str:
    """One sum of a fingerprint."""
    return hashlib.sha256(repr(sorted(table.items())).encode()).hexdigest()


def _short(value: Any) -> str:
    if value is None:
        return "absent"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return (text if len(text) <= 80 else text[:77] + "...") or "none"


def summed(*arrays: Any) -> str:
    """A sum of numbers in single precision."""
    found = hashlib.sha256()
    for array in arrays:
        value = np.asarray(array.detach().cpu() if isinstance(array, torch.Tensor) else array)
        value = np.nan_to_num(value.astype("<f4")) + np.float32(0) if value.dtype.kind == "f" else value.astype("<i8")  # -0 is 0
        found.update(str(value.shape).encode() + value.tobytes())
    return found.hexdigest()[:16]


def _mesh(mesh: Mesh) -> str:
    named = [part for kind in (mesh.boundaries, mesh.regions) for name in sorted(kind)
             for part in (np.frombuffer(name.encode(), dtype=np.uint8), kind[name])]
    return f"{mesh.n_nodes} nodes, {mesh.n_cells} cells, {summed(mesh.points, mesh.cells, *named)}"


def _value(value: Any) -> str:
    """A number as it is, an array by its range and its sum, a curve by its points, a value per region by its parts."""
    if isinstance(value, ByRegion):
        return "; ".join(f"{name}: {_value(part)}" for name, part in sorted(value.parts.items()))
    if isinstance(value, Scaled):
        return f"{_value(value.curve)} times {_value(value.by)}"
    if isinstance(value, Curve):
        heats = [x for melt in value.latent for x in (float(torch.as_tensor(melt.heat).detach()), melt.low, melt.high)]
        return f"curve from {value.low:.6g} to {value.high:.6g}, {summed(*value.points, np.array(heats))}"
    v = np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value, dtype=np.float64)
    return repr(float(v)) if v.ndim == 0 else f"{v.min():.6g} to {v.max():.6g}, {summed(v)}"


def _sampled(function: Callable[..., Any], times: tuple[float, ...], *points: Any) -> str:
    return f"function, {summed(*(function(*points, t) for t in times))}"


def _reaction(function: Callable[[torch.Tensor], torch.Tensor], offsets: tuple[float, ...]) -> str:
    width = len(offsets)
    trial = torch.linspace(-2.0, 2.0, 24 * width, dtype=torch.float64).reshape(24, width)
    shift = torch.tensor(offsets, dtype=torch.float64)
    with torch.no_grad():
        return f"function, {summed(function(trial + shift), function(1 + trial.abs()))}"


def _condition(condition: Condition, mesh: Mesh, times: tuple[float, ...]) -> str:
    kind, name = condition.kind, condition.boundary
    if condition.role == "periodic":
        return f"{kind} on {' and '.join(condition.boundaries)}"
    facets = mesh.boundaries.get(name, mesh.boundary_facets)
    x = torch.tensor(mesh.points[np.unique(facets)])

    def of(value: Any) -> str:
        if isinstance(value, TimeTable):
            return f"table, {summed(value.times, value.values)}"
        return _sampled(value, times, x) if callable(value) else repr(float(value))

    parts = [f"{name} {of(value)}" for name, value in vars(condition).items() if name not in ("boundary", "field")]
    return f"{kind} on {condition.boundary}" + (f" for {condition.field}" if condition.field else "") + f": {', '.join(parts)}"
