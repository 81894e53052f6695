"""A scene: what can be opened in the studio, from a run, a problem or a bare mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import arguments
from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.mesh import Mesh, load
from dgnet.models import Classical, Model, title_of
from dgnet.models.universal import Universal
from dgnet.problems import (
    LENGTH,
    OWN,
    PDE,
    TERMS,
    WORKING,
    ByRegion,
    Case,
    Condition,
    Curve,
    Dirichlet,
    Neumann,
    Problem,
    Robin,
    Scaled,
    Source,
    Units,
    Value,
    given_velocity,
)
from dgnet.training import Run, Simulator, open_simulator

Tensor = torch.Tensor

CLASSICAL, UNIVERSAL, TRAINED = "classical", "universal", "trained"
KINDS = {"insulated": None, "held": Dirichlet, "flux": Neumann, "exchange": Robin}
"""What can be asked of a boundary, by the names of the page."""
_EXTENT = 0.04  # radius of the pointer's spot over the size of the mesh
_SMALL = 20_000  # nodes up to which universal weights are prepared in a second or two
_DIFFUSION = 1e-4  # of a bare mesh, in units of its size squared over a step


@dataclass(frozen=True, eq=False)
class Scene:
    """A case with the models that know it, where it starts and what drives it.

    - `start`: nodal values [1, N, F], in the unit of each field
    - `source`: of a scenario, f(x, t) -> [1, T, N, F]; None where only the pointer drives
    - `flow`: v(t) [1, N, d] of a case whose flow is not part of its equation
    - `panels`: parts of a step for the average of `source`
    - `radius`, `power`: of the pointer's spot, length and field/time (a power per volume with a heat capacity)
    - `free`: each boundary may be insulated, held, given a flux or an exchange; else only the values of its conditions change
    """

    title: str
    case: Case
    start: Tensor
    power: float
    radius: float
    learned: Model[Any] | None = None
    source: Source | None = None
    flow: Callable[[float], Tensor] | None = None
    panels: int = 1
    steps: int = 5  # of a frame
    free: bool = False
    notes: tuple[str, ...] = ()

    def problem(self, dt: float, diffusion: float, conditions: Sequence[Condition]) -> Problem:
        """The discretised case with another step, a factor on its diffusion, and these conditions."""
        pde = self.case.pde if diffusion == 1.0 else replace(self.case.pde, diffusion=_times(self.case.pde.diffusion, diffusion))
        pde = pde if self.flow is None else replace(pde, velocity=self.flow)
        return Problem(self.case.mesh, pde, conditions, dt, dtype=WORKING)

    @cached_property
    def models(self) -> dict[str, str]:
        """The models that can run here, and their names on the page. Universal weights only where they correct anything."""
        found = {CLASSICAL: "Classical solver"}
        if Universal().acts(self.problem(self.case.dt, 1.0, list(self.case.conditions))):
            found[UNIVERSAL] = "Universal weights"
        if self.learned is not None:
            found[TRAINED] = title_of(self.learned.name)
        return found

    @property
    def usual(self) -> str:
        """The model to begin with: a trained one, else the universal weights where preparing them takes a moment only."""
        small = self.case.mesh.n_nodes <= _SMALL
        return next(name for name in (TRAINED, UNIVERSAL, CLASSICAL) if name in self.models and (small or name != UNIVERSAL))

    def model(self, name: str) -> Model[Any]:
        if name == TRAINED and self.learned is not None:
            return self.learned
        if name not in (CLASSICAL, UNIVERSAL):
            raise InputError(f"this scene has no model '{name}'")
        return Universal() if name == UNIVERSAL else Classical()

    def rows(self) -> list[dict[str, Any]]:
        """The conditions as the page shows them; `fixed` where a value is a function or a boundary is periodic."""
        if self.free:
            names, h = list(self.case.mesh.boundaries)[:12] or ["boundary"], 4 * _DIFFUSION * _size(self.case.mesh)
            return [{"boundary": name, "kind": "insulated", "value": 0.0, "coefficient": h, "fixed": False} for name in names]
        return [_row(c) for c in self.case.conditions]

    def read_rows(self, given: Any) -> list[dict[str, Any]]:
        """Rows of the page, checked; those of the scene where none are given."""
        usual = self.rows()
        if given is None:
            return usual
        if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
            raise InputError("the boundary conditions must be a list of tables")
        if not self.free and len(given) != len(usual):
            raise InputError(f"this scene has {len(usual)} boundary conditions, got {len(given)}")
        by_name = {row["boundary"]: row for row in usual}
        found: dict[str, dict[str, Any]] = {}
        for k, row in enumerate(given):
            name, kind = str(row.get("boundary"))[:80], str(row.get("kind"))[:20]
            old = by_name.get(name) if self.free else usual[k]
            if old is None or (self.free and kind not in KINDS) or (self.free and name in found):
                raise InputError(f"there is no boundary '{name}' that can be '{kind}', or it is there twice")
            kind = kind if self.free else old["kind"]
            new = old | {"kind": kind}
            needed = () if old["fixed"] or kind == "insulated" else ("value", *(("coefficient",) if kind == "exchange" else ()))
            for key in needed:
                new[key] = number(row.get(key), f"the {key} of '{name}'", -1e30, 1e30)
            found[name if self.free else str(k)] = new
        return list(found.values())

    def conditions(self, rows: list[dict[str, Any]]) -> list[Condition]:
        """The conditions that rows ask for (`read_rows`)."""
        if self.free:
            return [c for c in map(_condition, rows) if c is not None]
        return [c if row["fixed"] else _changed(c, row) for c, row in zip(self.case.conditions, rows)]

    def described(self) -> dict[str, Any]:
        """Everything that the page needs besides the mesh, as JSON."""
        case, units = self.case, self.case.units
        name, heat = case.pde.fields[0], case.pde.weighted
        return {
            "title": self.title, "dim": case.mesh.dim, "nodes": case.mesh.n_nodes, "cells": case.mesh.n_cells,
            "fields": list(case.pde.fields), "offsets": list(case.offsets), "models": self.models, "dt": case.dt,
            "conditions": self.rows(), "free": self.free, "radius": self.radius, "power": self.power,
            "steps": self.steps, "driven": self.source is not None, "notes": list(self.notes),
            "size": _size(case.mesh),
            "units": {"time": units.time, "length": units.name(LENGTH),
                      "fields": [units.fields.get(f, "") for f in case.pde.fields],
                      "power": units.name((0, -3, -1, 1, 0) if heat else (1, 0, -1, 0, 0), name),
                      "flux": units.name(TERMS["flux"][heat], name), "coefficient": units.name(TERMS["convection"][heat], name)}}


# ---------------------------------------------------------------------- made from


def run_scene(run: Simulator) -> Scene:
    """A trained run, or a problem without one (`open_simulator`). A run of one's own starts as its first test does."""
    start = flow = None
    if isinstance(run, Run) and run.case.size == OWN and run.data.exists():
        with Dataset(run.data) as data:
            first = data.read((data.of("test") or data.of("train"))[0], 0, None if run.case.given_flow else 1, only=("velocity",))
        start = torch.as_tensor(first.state)[None, 0]
        if first.velocity is not None:
            flow = given_velocity(torch.as_tensor(first.velocity)[None].to(WORKING), run.case.dt)
    return case_scene(run.case, run.model if isinstance(run, Run) else None, start, run.notes, flow)


def path_scene(path: Path, known: Sequence[str] = ()) -> Scene:
    """A run, a problem or the file of a mesh; `known` are scenes that may have been meant."""
    if path.is_dir():
        return run_scene(open_simulator(path))
    if not path.exists():
        raise InputError(f"there is no run, problem or mesh '{path}', and no scene of that name{did_you_mean(str(path), known)}")
    return mesh_scene(load(path), path.name)


def case_scene(case: Case, learned: Model[Any] | None = None, start: Tensor | None = None, notes: tuple[str, ...] = (),
               flow: Callable[[float], Tensor] | None = None) -> Scene:
    """A case from a start [1, N, F], by default that of its opening, else its offset; driven by the opening's source and flow."""
    opening = case.opening()
    if flow is None:
        flow, notes = opening.flow, (*notes, *opening.notes)
    if case.given_flow and flow is None:
        raise InputError(f"{case.name}: its flow comes with its data, and there are none here")
    x = torch.tensor(case.mesh.points, dtype=torch.float64)
    start = opening.start if start is None else start
    source, panels = opening.source, opening.panels
    steps = 5 if source is None or flow is not None else 1
    if start is None:
        start = torch.tensor(case.offsets, dtype=torch.float64).expand(1, case.mesh.n_nodes, -1)
    if source is not None:
        some, times = x[:: max(1, len(x) // 1000)], case.times[:: max(1, case.steps // 250)]  # short pulses must not be missed
        power = float(source(some, times).abs().max())
    else:
        power = max(float((start - torch.tensor(case.offsets)).abs().max()), 1.0) / (20 * case.dt)
    return Scene(case.title or case.name, case, start.to(WORKING), power, _EXTENT * _size(case.mesh), learned, source, flow,
                 panels, steps, notes=notes)


def mesh_scene(mesh: Mesh, name: str) -> Scene:
    """Heat on a bare mesh, with a diffusivity by its size: in a hundred steps a spot spreads over a tenth of it."""
    size = _size(mesh)
    case = Case(name=name, title=f"Heat in {name}", equation="du/dt = div(D grad u) + f", build_mesh=lambda: mesh,
                pde=PDE(("T",), diffusion=_DIFFUSION * size**2), conditions=(), dt=1.0, steps=1000, units=Units())
    start = torch.zeros(1, mesh.n_nodes, 1, dtype=WORKING)
    return Scene(case.title, case, start, 1.0, _EXTENT * size, free=True)


# ---------------------------------------------------------------------- pieces


def _size(mesh: Mesh) -> float:
    return float(np.ptp(mesh.points, axis=0).max())


def _times(value: Any, factor: float) -> Any:
    """A coefficient times a number: numbers, tensors, curves of the field, each perhaps by field or by region."""
    if isinstance(value, Mapping):
        return {name: _times(v, factor) for name, v in value.items()}
    if isinstance(value, ByRegion):
        return ByRegion({name: _times(v, factor) for name, v in value.parts.items()})
    if isinstance(value, Curve | Scaled):
        curve, by = (value, 1.0) if isinstance(value, Curve) else (value.curve, value.by)
        return Scaled(curve, _times(by, factor))
    return factor * (value if isinstance(value, Tensor) else np.asarray(value))


def _row(c: Condition) -> dict[str, Any]:
    if c.role == "periodic":
        return {"boundary": " and ".join(c.boundaries), "kind": c.role, "fixed": True}
    coefficient: Value = c.coefficient if c.role == "exchange" else 0.0
    name = c.boundary if c.field is None else f"{c.boundary}, {c.field}"
    if callable(c.drive) or callable(coefficient):
        return {"boundary": name, "kind": c.role, "fixed": True}
    return {"boundary": name, "kind": c.role, "value": float(c.drive), "coefficient": float(coefficient), "fixed": False}


def _changed(c: Condition, row: dict[str, Any]) -> Condition:
    return c.with_coefficient(float(row["coefficient"])).with_drive(float(row["value"]))


def _condition(row: dict[str, Any]) -> Condition | None:
    if row["kind"] == "exchange":
        return Robin(row["boundary"], row["coefficient"], row["value"])
    cls = KINDS[row["kind"]]
    return None if cls is None else cls(row["boundary"], row["value"])


def number(value: Any, what: str, low: float, high: float) -> float:
    """A finite number between bounds, from JSON."""
    found = arguments.number(value, what)
    if not low <= found <= high:
        raise InputError(f"{what} must be a number from {low:g} to {high:g}, got {found:g}")
    return found
