"""Rollouts as sensors read them: from what is known of a part, with what unknowns of given numbers add to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.inverse.finer import Finer, Gap
from dgnet.inverse.readings import Readings, interpolation, steps_until
from dgnet.inverse.sensor import Sensor, curved_rows, delayed, first_state, over_steps, rows
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model, rollout
from dgnet.problems import Lift, Problem, Source, SpotTable, converged_average

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of what drives a part: the start [N, F], sources, the places of spots.

    - `level`: mean of the start, where it is known; `t0`: the time of the start
    """

    start: Tensor
    source: Source | Tensor | None = None
    spots: SpotTable | None = None
    level: float | None = None
    t0: float = 0.0

    @classmethod
    def of(cls, problem: Problem, start: Tensor | None, source: Source | Tensor | None = None,
           spots: SpotTable | None = None, t0: float = 0.0) -> Known:
        begin = first_state(problem, start)
        return cls(begin, source, spots, None if start is None else float(begin.mean()), t0)

    def averages(self, problem: Problem, model: Model[Any], steps: int) -> Tensor | None:
        """Of the source over the steps of a problem, at the points of a model: [steps, P, F]. Averages are taken as they are."""
        if self.source is None or isinstance(self.source, Tensor):
            return None if self.source is None else self.source.double()
        x = torch.tensor(model.points(problem))
        if isinstance(self.source, SpotTable):
            return model.taking(self.source, problem).average(x, 0, steps, problem.dt, self.t0)[0]
        times = self.t0 + problem.dt * torch.arange(steps, dtype=torch.float64)
        return converged_average(self.source, x, times, problem.dt)[0][0]


def read(problem: Problem, model: Model[Any], sensors: Sequence[Sensor], start: Tensor, source: Tensor | None,
         steps: int, curved: bool = False, t0: float = 0.0) -> Tensor:
    """What sensors read of a rollout from a start [N, F] with a source [steps, P or N, F]: [S, steps + 1].

    Fields are linear in cells, or `curved`.
    """
    w = (curved_rows if curved else rows)(sensors, problem)
    out = w.new_empty(len(sensors), steps + 1)
    out[:, 0] = torch.einsum("nf,snf->s", start[:problem.mesh.n_nodes].double(), w)

    def keep(k: int, u: Tensor) -> None:
        out[:, k] = torch.einsum("nf,snf->s", u[0].double(), w)

    source = None if source is None else source[None].to(problem.dtype)
    rollout(model, problem, start[None].to(problem.dtype), source, steps, sink=keep, t0=t0)
    return delayed(out, [s.lag for s in sensors], problem.dt)


def summed(one: Tensor | None, other: Tensor, mesh: Mesh) -> Tensor:
    """Of two sources, each at the nodes or at all points of a model."""
    if one is None:
        return other
    if one.shape[-2] != other.shape[-2]:
        one, other = (Lift.of(mesh)(x) for x in (one, other))
    return one + other


@dataclass(eq=False)
class Rollout:
    """A rollout on one of the meshes of `Finer`; unknowns change it before it is read (`unknowns.Kind.put`).

    - `problem`, `count`: the problem on that mesh, and its number of steps
    - `start` [N, F] at the nodes of the given mesh, `force` [count, P or N, F]; `t0`: the time of the start
    """

    finer: Finer
    level: int
    problem: Problem
    count: int
    start: Tensor
    force: Tensor | None
    t0: float

    @classmethod
    def of(cls, known: Known, steps: int, finer: Finer, level: int) -> Rollout:
        """With what is known alone, over `steps` steps of the given problem. Averages are taken to the mesh and its steps."""
        problem, count = finer.problems[level], steps * 2**level
        force = known.averages(problem, finer.model, count)
        if isinstance(known.source, Tensor):
            assert force is not None
            force = finer.halved(finer.up(force, level), level)
        return cls(finer, level, problem, count, known.start, force, known.t0)

    def halved(self, averages: Tensor) -> Tensor:
        """Averages over the steps of the given problem [H, ...] as those over the steps of this one."""
        return self.finer.halved(averages, self.level)

    def add(self, source: Tensor) -> None:
        """A source [count, P or N, F], or one that stays [1, P or N, F]."""
        self.force = summed(self.force, source.expand(self.count, -1, -1), self.problem.mesh)

    def read(self, sensors: Sequence[Sensor]) -> Tensor:
        """What sensors read, curved in cells: [S, count + 1]."""
        start = self.finer.up(self.start, self.level)
        return read(self.problem, self.finer.model, sensors, start, self.force, self.count, curved=True, t0=self.t0)


class Measured:
    """Readings of a part (`readings.cleaned`) beside the steps of a model.

    - `steps`: that they cover; `at` [T, H+1]: readings from what sensors say at the ends of these; `there` [T, S]: which are not
      missing
    - `finer`: finer meshes with smaller steps; None, and `why` not, where there are none
    """

    def __init__(self, problem: Problem, readings: Readings, known: Known, model: Model[Any] | None, finer: bool) -> None:
        self.problem, self.model = problem, model or Classical()
        self.readings = readings
        self.steps = max(1, steps_until(readings.times[-1], problem.dt))
        self.at, self.there = interpolation(self.readings.times, self.steps, problem.dt), np.isfinite(self.readings.values)
        self.known = replace(known, source=over_steps(known.source, self.steps)) if isinstance(known.source, Tensor) else known
        self.source = self.known.averages(problem, self.model, self.steps)
        self.finer = Finer(problem, self.model) if finer and Finer.exists(problem) else None
        self.why = "the refined mesh would be too large" if finer and self.finer is None else ""

    def gap_of(self, reached: np.ndarray, put: Callable[[Rollout], None], finer: Finer | None = None,
               sensors: Sequence[Sensor] | None = None) -> Gap:
        """What mesh and step get wrong of readings [T, S] that were `reached` with unknowns that `put` puts into rollouts."""
        finer, there = finer or self.finer, sensors or self.readings.sensors
        assert finer is not None

        def solved(level: int) -> np.ndarray:
            run = Rollout.of(self.known, self.steps, finer, level)
            put(run)
            return interpolation(self.readings.times, run.count, run.problem.dt) @ run.read(there).numpy().T

        return Gap.of(finer, reached, solved(finer.last - 1), solved(finer.last))


def no_second(why: str) -> tuple[str, ...]:
    """The note about bands without a second solution; none without a reason."""
    return (f"The bands do not hold what mesh and step get wrong: there is no second solution ({why}).",) if why else ()


def refuse_several_fields(problem: Problem) -> None:
    """Spots drive one field."""
    if problem.n_fields > 1:
        raise InputError("spots drive one field; this problem has several")
