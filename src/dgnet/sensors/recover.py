"""What is unknown about a part, from the readings of its sensors, with bands and with what the sensors cannot see.

Linear unknowns: the strength over time of sources at known places or on known paths, a steady source field, the start, the flux
through a boundary, the temperature of the surroundings; several at once. Their responses come from sensor kernels, the answer is a
Gaussian posterior (`posterior`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError
from dgnet.files import did_you_mean, read_text
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model, few_threads, rollout
from dgnet.problems import Discretisation, Neumann, Robin, SpotTable
from dgnet.problems.conditions import changed
from dgnet.problems.sight import spot_doubts
from dgnet.problems.spot_table import number_in, read_table
from dgnet.progress import Report
from dgnet.sensors.kernels import Kernels, kernels
from dgnet.sensors.posterior import Answer, Unknown, infer
from dgnet.sensors.priors import NUMBER, fields, histories, numbers
from dgnet.sensors.readings import APART, Readings, cleaned, interpolation
from dgnet.sensors.sensor import Averages, Sensor, first_state, over_steps, rows

Tensor = torch.Tensor

KINDS = ("source", "field", "start", "flux:BOUNDARY", "ambient")
_DIMLY = 0.5  # share of the prior variance below which a number counts as unseen


@dataclass(frozen=True, eq=False)
class Recovered:
    """Answers by name: histories [H, spots] or [H, 1] (averages over the steps), fields [N, F], a number [1] (ambient).

    - `noise`: standard deviation of the readings, as given or found; `misfit`: root mean square of what the answers leave
    - `determined`: how many numbers the readings determine, of `unknowns`
    - `notes`: what was wrong with the readings, what the sensors do not see
    """

    answers: dict[str, Answer]
    shapes: dict[str, tuple[int, ...]]
    columns: dict[str, tuple[str, ...]]
    times: np.ndarray  # [H + 1], ends of the steps
    noise: float
    misfit: float
    determined: float
    readings: Readings
    fitted: np.ndarray  # [T, S]
    notes: tuple[str, ...]

    @property
    def unknowns(self) -> int:
        return sum(a.mean.size for a in self.answers.values())

    @checked
    def get(self, name: str, what: Literal["mean", "sd", "prior_sd", "seen"] = "mean") -> np.ndarray:
        """`mean`, `sd`, `prior_sd` or `seen` of an answer, in its shape; histories as [H, columns]."""
        if name not in self.answers:
            raise InputError(f"'{name}' was not asked for" + did_you_mean(name, self.answers, "known"))
        value: np.ndarray = getattr(self.answers[name], what).reshape(self.shapes[name])
        return value.T if self.history(name) else value

    @checked
    def history(self, name: str) -> bool:
        """Whether an answer is a history (strengths, a flux), not a field or a number."""
        return name == "source" or name.startswith("flux:")


@checked
def recover(problem: Discretisation, readings: Readings, unknown: Sequence[str], *, spots: SpotTable | None = None,
            start: Tensor | None = None, source: Averages | None = None, noise: Positive | None = None,
            model: Model[Any] | None = None, report: Report | None = None) -> Recovered:
    """What is unknown about a part, from readings of sensors, with uncertainty.

    - `problem`: a linear one
    - `readings`: of sensors, as `read_readings` reads them from CSV; they are checked and cleaned first
    - `unknown`: which of source (the strength of each spot over time), field (a steady source anywhere), start, flux:BOUNDARY (into
      the part, the same along the boundary, over time), ambient (what is to be added to the ambient values of all Robin conditions)
    - `spots`: places or paths and radii of the sources whose strength is unknown; their powers are not used
    - `start`: what is known of the start [N, F]; zero unless given. An unknown start is found as a deviation from it
    - `source`: what is known of the sources, averages over the steps [H, P or N, F]
    - `noise`: standard deviation of the readings; found by the evidence unless given
    - `model`: whose step; the classical solver unless given
    - `report`: called with what is done, how much of it is done and how much there is

        >>> import dgnet as dg, numpy as np, torch
        >>> from dgnet.sensors import Point, Readings
        >>> problem = dg.Problem(dg.box((6, 6)), dg.PDE(diffusion=0.1), [dg.Robin("boundary", 1.0, 0.0)], dt=0.1)
        >>> lamp = dg.SpotTable(("lamp",), (np.array([0.0, 9.0]),), (np.array([[0.4, 0.5, 0.2, 1.0]] * 2),))
        >>> sensors = tuple(Point(place, f"s{k}") for k, place in enumerate([(0.3, 0.5), (0.7, 0.6)]))
        >>> states = dg.rollout(dg.Classical(), problem, torch.zeros(1, 49, 1, dtype=torch.float64),
        ...                     3.0 * lamp.average(torch.tensor(problem.mesh.points), 0, 30, 0.1))
        >>> seen = problem.mesh.interpolate(states[0], [s.place for s in sensors])[..., 0]
        >>> noisy = seen + 1e-3 * np.random.default_rng(0).standard_normal(seen.shape)
        >>> found = dg.recover(problem, Readings(0.1 * np.arange(31), noisy, sensors), ["source"], spots=lamp)
        >>> bool(abs(found.get("source")[5:25].mean() - 3.0) < 0.1)
        True
    """
    if not unknown:
        raise InputError(f"name at least one unknown (known: {', '.join(KINDS)})")
    begin = first_state(problem, start)
    readings = cleaned(readings, problem, None if start is None else float(begin.mean()))
    horizon = int(np.ceil(readings.times[-1] / problem.dt - 1e-9))
    with few_threads(problem.mesh.n_nodes), torch.no_grad():
        if report is not None:
            report("sensors", 0, 1)
        made = kernels(problem, readings.sensors, horizon, model)
        expected = made.readings(over_steps(source, horizon), begin)
        parts = {name: responses_of(name, problem, made, readings.sensors, spots, model) for name in unknown}
    return _answered(problem, readings, parts, made, expected, noise, report)


def _answered(problem: Discretisation, readings: Readings, parts: dict[str, tuple[Tensor, tuple[int, ...], tuple[str, ...]]],
              made: Kernels, expected: Tensor, noise: float | None, report: Report | None = None) -> Recovered:
    """Infer, and once more without sensors whose residuals stand out."""
    H, index = made.horizon, list(range(len(readings.sensors)))
    at = interpolation(readings.times, H, problem.dt)
    while True:
        there = np.isfinite(readings.values)
        y = (readings.values - at @ expected[index].double().numpy().T)[there]
        unknowns = []
        for name, (R, shape, columns) in parts.items():
            response = np.einsum("tn,snj->tsj", at, R[index].double().numpy())[there]
            unknowns.append(with_prior(name, response, shape if columns else (), problem, H, float(np.abs(y).max())))
        count = sum(u.response.shape[1] for u in unknowns)
        found = infer(y, unknowns, noise, report)
        left = np.full(there.shape, np.nan)
        left[there] = y - found.fitted
        size = np.sqrt(np.nanmean(left**2, axis=0))
        worst = int(size.argmax())
        if len(size) < 4 or size[worst] < APART * np.median(size) or size[worst] < 3 * (noise or 0.0):
            break
        note = (f"Sensor '{made.names[index.pop(worst)]}' disagrees with the others (residuals of {size[worst]:.3g}, the median is "
                f"{np.median(size):.3g}): drifting or misplaced, left out.")
        readings = readings.keeping([k for k in range(len(size)) if k != worst], note)
    notes = list(readings.notes)
    if len(y) < count:
        notes.append(f"{len(y)} readings for {count} unknown numbers: the rest follows from the smoothness that the prior assumes.")
    for answer in found.answers:
        dim = float((answer.seen < _DIMLY).mean())
        if dim > 0.01:
            notes.append(f"The sensors hardly see {dim:.0%} of '{answer.name}' (there its band is nearly that of the prior).")
    fitted = np.full(there.shape, np.nan)
    fitted[there] = readings.values[there] - left[there]
    return Recovered({a.name: a for a in found.answers}, {n: p[1] for n, p in parts.items()}, {n: p[2] for n, p in parts.items()},
                     problem.dt * np.arange(H + 1), found.noise, float(np.sqrt(np.nanmean(left**2))), found.determined, readings,
                     fitted, tuple(notes))


def with_prior(name: str, response: np.ndarray, shape: tuple[int, ...], problem: Discretisation, steps: int,
               largest: float) -> Unknown:
    """An unknown with the prior of its kind.

    Histories of the shape [count, steps] are smooth or switched, a number [1] is of the size of the `largest` reading (what is
    known taken off); without a shape it is a smooth field.
    """
    if not shape:
        return Unknown(name, response, *fields(problem.mesh, problem.n_fields))
    if len(shape) == 1:
        return Unknown(name, response, (NUMBER,), numbers, strength=largest or 1.0)
    return Unknown(name, response, *histories(shape[0], steps, problem.dt), switched=(shape[0], steps))


def responses_of(name: str, problem: Discretisation, made: Kernels, sensors: Sequence[Sensor], spots: SpotTable | None,
                 model: Model[Any] | None) -> tuple[Tensor, tuple[int, ...], tuple[str, ...]]:
    """Of all readings [S, H+1, n] to one unknown, the shape of its n numbers, and names of histories or numbers (none: a field)."""
    H, nodes = made.horizon, problem.mesh.n_nodes
    if name == "source":
        if spots is None:
            raise InputError("the strength of a source is unknown, but not its place: give the places (or paths) of the spots")
        if problem.n_fields > 1:
            raise InputError("spots drive one field; this problem has several")
        check_seen(spots, problem.mesh)
        R = made.responses(unit_shapes(spots, problem, model, 0, H))
        return R.flatten(2), (R.shape[2], H), tuple(n or f"spot {k}" for k, n in enumerate(spots.names, start=1))
    if name == "field":
        total = torch.zeros_like(made.start)
        first = made.early.shape[2]
        for n in range(1, H + 1):
            total[:, n] = made.early[:, n].sum(1) + (made.lag[:, : n - first].sum(1) if n > first else 0)
        return _at_nodes(made, total), (nodes, problem.n_fields), ()
    if name == "start":
        return _at_nodes(made, made.start), (nodes, problem.n_fields), ()
    if name.startswith("flux:"):
        return impulses(heated(problem, name.removeprefix("flux:")), problem, made, sensors, model), (1, H), (name,)
    if name == "ambient":
        return ambient_response(problem, sensors, H, model), (1,), (name,)
    raise InputError(f"unknown '{name}' cannot be recovered (known: {', '.join(KINDS)})")


def unit_shapes(spots: SpotTable, problem: Discretisation, model: Model[Any] | None, start: int, stop: int,
                t0: float = 0.0) -> Tensor:
    """Spots of power 1 where they are in each step start .. stop-1, counted from the time t0: [J, n, P, 1]."""
    x = torch.tensor((model or Classical()).points(problem))
    return torch.stack([one.average(x, start, stop, problem.dt, t0)[0] for one in spots.on(problem.mesh).units()])


def check_seen(spots: SpotTable, mesh: Mesh) -> None:
    """Refuse spots that miss the mesh, wherever their paths lead."""
    for one in spots.units():
        for doubt in spot_doubts(mesh, one):
            if doubt.kind == "missed":
                raise InputError(doubt.text)


@checked
def read_spots(path: Path, dim: int) -> SpotTable:
    """Places of sources: columns x, y[, z], radius and spot; or paths, with the columns t and power, too (`SpotTable`)."""
    with_time = any(cell.strip().lower() == "t" for cell in (read_text(path, "utf-8-sig").splitlines() or [""])[0].split(","))
    if with_time:
        return SpotTable.read(path, dim)
    axes = ["x", "y", "z"][:dim]
    names: list[str] = []
    values: list[np.ndarray] = []
    for line, row in read_table(path, [*axes, "radius"], ["spot"]):
        numbers = [number_in(row[name], path, line, name) for name in [*axes, "radius"]]
        if numbers[-1] <= 0:
            raise InputError(f"{path}, line {line}: a radius must be positive, got {row['radius']}")
        names.append(row.get("spot", "") or f"spot {len(names) + 1}")
        values.append(np.array([[*numbers, 1.0]] * 2))
    if not names:
        raise InputError(f"{path} has no rows below its header")
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two spots have the same name; paths need a column t")
    return SpotTable(tuple(names), (np.array([0.0, 1.0]),) * len(names), tuple(values))


def _at_nodes(made: Kernels, values: Tensor) -> Tensor:
    """Responses to values at the model's points [S, n, P, F] as responses to those at the nodes [S, n, N F]."""
    if made.lift is None:
        return values.flatten(2)
    with torch.enable_grad():
        u = values.new_zeros(*values.shape[:2], made.lift.n_nodes, values.shape[3]).requires_grad_()
        return torch.autograd.grad(made.lift(u), u, values)[0].flatten(2)


def ambient_response(problem: Discretisation, sensors: Sequence[Sensor], steps: int, model: Model[Any] | None) -> Tensor:
    """[S, H+1, 1] to surroundings that are warmer by 1."""
    return _difference(warmed(problem), problem, sensors, steps, model)[..., None]


def warmed(problem: Discretisation) -> Discretisation:
    """The same problem in surroundings that are warmer by 1."""
    if not any(isinstance(c, Robin) for c in problem.conditions):
        raise InputError("the ambient value is unknown, but no boundary exchanges anything with surroundings (kind robin)")

    return replace(problem, conditions=[replace(c, ambient=changed(c.ambient, more=1.0)) if isinstance(c, Robin) else c
                                        for c in problem.conditions])


def heated(problem: Discretisation, boundary: str) -> Discretisation:
    """The same problem with a flux of 1 more into the part through a boundary."""
    return replace(problem, conditions=[*problem.conditions, Neumann(boundary, 1.0)])


def _difference(changed: Discretisation, problem: Discretisation, sensors: Sequence[Sensor], steps: int,
                model: Model[Any] | None) -> Tensor:
    """[S, H+1]: what a change of the conditions does to readings, from a start of zero."""
    zero = torch.zeros(1, problem.mesh.n_nodes, problem.n_fields, dtype=problem.dtype)
    w = rows(sensors, problem).to(problem.dtype)
    on, off = (torch.einsum("npf,spf->sn", rollout(model or Classical(), p, zero, steps=steps)[0], w) for p in (changed, problem))
    return on - off


def impulses(changed: Discretisation, problem: Discretisation, made: Kernels, sensors: Sequence[Sensor],
             model: Model[Any] | None) -> Tensor:
    """[S, H+1, H] to changed conditions in each step: what they do if they stay, and of that the difference of two steps."""
    if made.early.shape[2]:
        raise InputError("a flux or an ambient value over time is recovered where all steps are the same: not with a damped start, "
                         "early steps or changing flow")
    H = made.horizon
    impulse = _difference(changed, problem, sensors, H, model).diff(dim=1)
    out = impulse.new_zeros(len(sensors), H + 1, H)
    for k in range(H):
        out[:, k + 1:, k] = impulse[:, : H - k]
    return out
