"""What readings depend on linearly: one class for each kind of unknown, with its responses, its place in a rollout and its prior.

    source          the strength over time of spots at known places or on known paths
    field           a steady source anywhere; of a part that is followed, smooth sources whose strengths change
    start           the start, as a deviation from what is known of it
    flux:BOUNDARY   the flux into the part through a boundary over time
    ambient         what is to be added to the ambient values of all Robin conditions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.files import csv_number, did_you_mean, read_csv, read_text
from dgnet.inverse.kernels import Kernels
from dgnet.inverse.posterior import Unknown
from dgnet.inverse.priors import NUMBER, fields, histories, numbers
from dgnet.inverse.rollouts import Rollout, read, refuse_several_fields
from dgnet.inverse.sensor import Sensor
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model
from dgnet.problems import Neumann, Problem, SpotTable, Value, changed, spot_doubts

Tensor = torch.Tensor

LAG = "lag"
KINDS = ("source", "field", "start", "flux:BOUNDARY", "ambient", LAG)


@dataclass(frozen=True, eq=False)
class Kind:
    """Numbers x that readings depend on linearly.

    - `shape` of x; `columns`: names of histories [count, steps] or of a number [1]; none of a field at the nodes
    """

    name: str
    shape: tuple[int, ...]
    columns: tuple[str, ...]

    def responses(self, problem: Problem, made: Kernels, sensors: Sequence[Sensor], model: Model[Any] | None = None) -> Tensor:
        """R [S, H+1, n] of all readings to the n numbers, from the kernels of the sensors."""
        raise NotImplementedError

    def put(self, run: Rollout, x: Tensor) -> None:
        """Add the numbers, in their shape, to a rollout."""
        raise NotImplementedError

    def prior(self, response: np.ndarray, problem: Problem, largest: float = 1.0) -> Unknown:
        """As an unknown of the posterior: histories are smooth or switched, a field is smooth, a number is of the size of the
        `largest` reading (what is known taken off)."""
        if not self.columns:
            return Unknown(self.name, response, *fields(problem.mesh, problem.n_fields))
        if len(self.shape) == 1:
            return Unknown(self.name, response, (NUMBER,), numbers, strength=largest or 1.0)
        count, steps = self.shape
        return Unknown(self.name, response, *histories(count, steps, problem.dt), switched=(count, steps))


@dataclass(frozen=True, eq=False)
class Strengths(Kind):
    """Of spots, averages over the steps after `t0`."""

    spots: SpotTable
    t0: float = 0.0

    def responses(self, problem: Problem, made: Kernels, sensors: Sequence[Sensor], model: Model[Any] | None = None) -> Tensor:
        return made.responses(unit_shapes(self.spots, problem, model, 0, made.horizon, self.t0)).flatten(2)

    def put(self, run: Rollout, x: Tensor) -> None:
        shapes = unit_shapes(self.spots, run.problem, run.finer.model, 0, run.count, self.t0)
        run.add(torch.einsum("tj,jtpf->tpf", run.halved(x.T), shapes))


class SteadyField(Kind):
    """A source that does not change in time."""

    def responses(self, problem: Problem, made: Kernels, sensors: Sequence[Sensor], model: Model[Any] | None = None) -> Tensor:
        total, first = torch.zeros_like(made.start), made.early.shape[2]
        for n in range(1, made.horizon + 1):
            total[:, n] = made.early[:, n].sum(1) + (made.lag[:, : n - first].sum(1) if n > first else 0)
        return made.at_nodes(total)

    def put(self, run: Rollout, x: Tensor) -> None:
        run.add(run.finer.up(x, run.level)[None])


class Start(Kind):
    """A deviation from the start that is known."""

    def responses(self, problem: Problem, made: Kernels, sensors: Sequence[Sensor], model: Model[Any] | None = None) -> Tensor:
        return made.at_nodes(made.start)

    def put(self, run: Rollout, x: Tensor) -> None:
        run.start = run.start + x


@dataclass(frozen=True, eq=False)
class Boundary(Kind):
    """What crosses boundaries: a history [1, H], or a number [1] that stays. `loaded` is the problem with that much more of it."""

    loaded: Callable[[Problem, Value], Problem]

    def responses(self, problem: Problem, made: Kernels, sensors: Sequence[Sensor], model: Model[Any] | None = None) -> Tensor:
        """To a history: of what it does if it stays, the differences of two steps."""
        if len(self.shape) > 1 and made.early.shape[2]:
            raise InputError("a flux or an ambient value over time is recovered where all steps are the same: not with L-stable "
                             "first steps (Classical(start=0) has none), early steps or changing flow")
        zero, H = torch.zeros(problem.mesh.n_nodes, problem.n_fields, dtype=torch.float64), made.horizon
        on, off = (read(p, model or Classical(), sensors, zero, None, H) for p in (self.loaded(problem, 1.0), problem))
        if len(self.shape) == 1:
            return (on - off)[..., None]
        impulse = (on - off).diff(dim=1)
        out = impulse.new_zeros(len(sensors), H + 1, H)
        for k in range(H):
            out[:, k + 1:, k] = impulse[:, : H - k]
        return out

    def put(self, run: Rollout, x: Tensor) -> None:
        by = float(x[0]) if len(self.shape) == 1 else in_steps(run.halved(x[0]), run.problem.dt, run.t0)
        run.problem = self.loaded(run.problem, by)


def linear_kind(name: str, problem: Problem, steps: int, spots: SpotTable | None = None, t0: float = 0.0,
                over_time: bool = False) -> Kind:
    """The unknown of this name over some steps; what stays may be asked for `over_time`."""
    if name == "source":
        spots = checked_spots(spots, problem)
        columns = tuple(n or f"spot {k}" for k, n in enumerate(spots.names, start=1))
        return Strengths(name, (len(columns), steps), columns, spots, t0)
    if name in ("field", "start"):
        return (SteadyField if name == "field" else Start)(name, (problem.mesh.n_nodes, problem.n_fields), ())
    if name.startswith("flux:") or name == "ambient":
        return Boundary(name, (1, steps) if over_time or name != "ambient" else (1,), (name,), loaded_by(name))
    raise InputError(f"unknown '{name}' cannot be recovered{did_you_mean(name, KINDS, 'known')}")


# ---------------------------------------------------------------------- spots


def checked_spots(spots: SpotTable | None, problem: Problem) -> SpotTable:
    """The places of spots whose strength is unknown. Refused where they are missing or miss the mesh, wherever their paths lead."""
    if spots is None:
        raise InputError("the strength of a source is unknown, but not its place: give the places (or paths) of the spots")
    refuse_several_fields(problem)
    refuse_missed(spots, problem.mesh)
    return spots


def refuse_missed(spots: SpotTable, mesh: Mesh, kind: str = "spot") -> None:
    """Refuse spots that miss the mesh, wherever their paths lead; `kind` is what the sentence calls them."""
    for one in spots.units():
        for doubt in spot_doubts(mesh, one):
            if doubt.kind == "missed":
                raise InputError(doubt.text.replace("spot", kind, 1))


def unit_shapes(spots: SpotTable, problem: Problem, model: Model[Any] | None, start: int, stop: int, t0: float = 0.0) -> Tensor:
    """Spots of power 1 where they are in each step start .. stop-1, counted from the time t0: [J, n, P, 1]."""
    solver = model or Classical()
    return taken_shapes(solver.taking(spots, problem), problem, solver, start, stop, t0)


def taken_shapes(spots: SpotTable, problem: Problem, model: Model[Any], start: int, stop: int, t0: float = 0.0) -> Tensor:
    """The same of spots as the model takes them up (`Model.taking`)."""
    x = torch.tensor(model.points(problem))
    return torch.stack([one.average(x, start, stop, problem.dt, t0)[0] for one in spots.units()])


@checked
def read_spots(path: Path, dim: int) -> SpotTable:
    """Places of sources: columns x, y[, z], radius and spot; or paths, with the columns t and power, too (`SpotTable`)."""
    with_time = any(cell.strip().lower() == "t" for cell in (read_text(path, "utf-8-sig").splitlines() or [""])[0].split(","))
    if with_time:
        return SpotTable.read(path, dim)
    columns = [*["x", "y", "z"][:dim], "radius"]
    found: dict[str, np.ndarray] = {}
    for line, row in read_csv(path, columns, ["spot"]):
        values, name = [csv_number(row[column], path, line, column) for column in columns], row.get("spot", "")
        if values[-1] <= 0:
            raise InputError(f"{path}, line {line}: a radius must be positive, got {row['radius']}")
        name = name or f"spot {len(found) + 1}"
        if name in found:
            raise InputError(f"{path}: two spots have the same name; paths need a column t")
        found[name] = np.array([[*values, 1.0]] * 2)
    if not found:
        raise InputError(f"{path} has no rows below its header")
    return SpotTable(tuple(found), (np.array([0.0, 1.0]),) * len(found), tuple(found.values()))


# ---------------------------------------------------------------------- boundaries


def loaded_by(name: str) -> Callable[[Problem, Value], Problem]:
    """How a problem gets more of a flux, or of the temperature of its surroundings."""
    return warmed if name == "ambient" else lambda problem, by: heated(problem, name.removeprefix("flux:"), by)


def warmed(problem: Problem, by: Value = 1.0) -> Problem:
    """The same problem in surroundings that are warmer."""
    if not any(c.role == "exchange" for c in problem.conditions):
        raise InputError("the ambient value is unknown, but no boundary exchanges anything with surroundings (kind robin)")
    return replace(problem, conditions=[c.with_drive(_more(c.drive, by)) if c.role == "exchange" else c
                                        for c in problem.conditions])


def _more(value: Value, by: Value) -> Value:
    if not callable(by):
        return changed(value, more=by)

    def function(x: Tensor, t: float) -> Tensor:
        return by(x, t) + (value(x, t) if callable(value) else value)

    function.jumps = value if callable(value) else ()  # type: ignore[attr-defined]
    return function


def heated(problem: Problem, boundary: str, by: Value = 1.0) -> Problem:
    """The same problem with more flux into the part through a boundary."""
    return replace(problem, conditions=[*problem.conditions, Neumann(boundary, by)])


def in_steps(values: Tensor, dt: float, t0: float = 0.0) -> Value:
    """A boundary value that is the same everywhere, with one number for each step after `t0`."""
    def at(x: Tensor, t: float) -> Tensor:
        return values[min(int((float(t) - t0) / dt), len(values) - 1)].expand(len(x))

    at.jumps = ()  # type: ignore[attr-defined]  # an unknown history: its steps are those of the kernels
    return at
