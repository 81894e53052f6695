"""Estimate of the sources that a person has drawn: their mean, recovered from the readings of the page's sensors alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.inverse import Point, Readings, recover
from dgnet.problems import Problem, Source
from dgnet.progress import Report
from dgnet.studio.scene import number
from dgnet.studio.simulation import Simulation

Tensor = torch.Tensor

_NODES = 30_000  # beyond which an answer would take minutes
_STEPS = 60  # of the kernels, at most: longer ones than those of the page where it has taken more
_TIMES = 20  # of readings that are used, evenly spread
_BYTES = 4e8  # of the kernels


@dataclass(frozen=True, eq=False)
class Estimate:
    """A recovered source, nodal and in the unit of a source, and figures about it.

    - `values`: [3, N]: its mean, its standard deviation, the mean of what was drawn
    - `figures`: the noise that was added to the readings, what is left of them unexplained (root mean square), how long they
      lasted, how many there are and how many numbers they determine, and notes
    """

    values: np.ndarray
    figures: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of the sensors: the problem over the time of the readings, the readings with their noise, the field at the
    beginning, and the mean [N] of what was drawn. Nothing of it changes while the simulation goes on."""

    problem: Problem
    readings: Readings
    start: Tensor
    drawn: np.ndarray
    noise: float
    field: int

    @classmethod
    def read(cls, simulation: Simulation, message: dict[str, Any]) -> Question:
        """From a message (`Session`): the readings since a source first acted after the last restart or change of settings.

        Noise of the given share of the largest change is added to them: without it they would be better than any sensor's.
        """
        nodes, times, values, of = _read(simulation, message)
        began, start = simulation.began
        if simulation.problem.time_dependent or simulation.problem.data_changes:
            raise InputError("sources cannot be recovered here: the flow or a boundary value changes in time")
        after = times >= began - 1e-9 * max(1.0, abs(began))
        times, values = times[after] - began, values[after]
        if len(times) < 4 or not simulation.log:
            raise InputError("draw a source and let it run for a moment: the sensors have read too little since the settings "
                             "changed")
        some = np.unique(np.linspace(0, len(times) - 1, _TIMES).round().astype(int))
        times, values = times[some], values[some]
        noise = max(message["noise"] * float(np.abs(values - values[0]).max()), 1e-12 * float(np.abs(values).max()), 1e-300)
        values = values + noise * np.random.default_rng(0).standard_normal(values.shape)

        scene, controls = simulation.scene, simulation.controls
        mesh, field = scene.case.mesh, scene.case.pde.fields[of]
        most = int(_BYTES / (8 * len(nodes) * mesh.n_nodes * simulation.problem.n_fields))
        steps = max(4, min(_STEPS, most, round(times[-1] / controls.dt)))
        problem = scene.problem(float(times[-1]) / steps, controls.diffusion, scene.conditions(controls.conditions))
        sensors = tuple(Point(tuple(mesh.points[node]), f"sensor {k}", field) for k, node in enumerate(nodes, start=1))
        return cls(problem, Readings(times, values, sensors), start, mean_source(simulation)[:, of], noise, of)

    def answer(self, report: Report | None = None) -> Estimate:
        """Recover a source that does not change in time.

        The field at the beginning and the boundary values count as known. The classical solver explains the readings, whatever
        model has made them; what it cannot explain counts as noise.
        """
        # the readings are of this mesh with its own steps, so that no finer one knows better
        found = recover(self.problem, self.readings, ["field"], start=self.start, finer=False, report=report)
        rows = found.get("field")[:, self.field], found.get("field", "sd")[:, self.field], self.drawn
        figures = {"noise": self.noise, "left": found.misfit, "seconds": float(self.readings.times[-1]),
                "readings": int(np.isfinite(found.fitted).sum()), "determined": found.determined, "notes": list(found.notes)}
        return Estimate(np.stack(rows).astype(np.float32), figures)


def mean_source(simulation: Simulation) -> np.ndarray:
    """The mean over time [N, F] of what has driven the simulation since it began anew: the page's spots, the scenario's source."""
    mesh = simulation.scene.case.mesh
    x = torch.tensor(mesh.points, dtype=torch.float64)
    total, steps = np.zeros((len(x), simulation.problem.n_fields)), 0
    source: Source | None = simulation.scene.source
    moments = [at for at, _, _, driven in simulation.log if driven and source is not None]
    for _, count, spots, _ in simulation.log:
        steps += count
        for spot in spots:
            total[:, spot.field] += count * spot.averages(x, 1, mesh)[0].numpy()
    if moments and source is not None:
        share = sum(count for _, count, _, driven in simulation.log if driven)
        at = torch.tensor(moments[:: max(1, len(moments) // 200)], dtype=torch.float64)
        total += share * source(x, at)[0].mean(0).numpy()
    return total / max(steps, 1)


def _read(simulation: Simulation, message: dict[str, Any]) -> tuple[list[int], np.ndarray, np.ndarray, int]:
    """Sensor nodes, times [T], readings [T, S] and the index of the field, checked."""
    case = simulation.scene.case
    if case.mesh.n_nodes > _NODES:
        raise InputError(f"sources are recovered on meshes of up to {_NODES:,} nodes; this one has {case.mesh.n_nodes:,}")
    number(message.get("noise"), "the noise", 1e-6, 1.0)
    of = int(number(message.get("field", 0), "the field", 0, len(case.pde.fields) - 1))
    try:
        nodes = [int(n) for n in message["sensors"]]
        times, values = np.array(message["times"], dtype=float), np.array(message["values"], dtype=float)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError("readings are tables of sensors, times and values") from error
    if not 0 < len(nodes) <= 16 or not all(0 <= n < case.mesh.n_nodes for n in nodes):
        raise InputError("place one to 16 sensors on the mesh first")
    if times.ndim != 1 or values.shape != (len(times), len(nodes)) or not np.isfinite(times).all() or not np.isfinite(values).all():
        raise InputError("readings must be finite numbers, one of each sensor for each time")
    if (np.diff(times) <= 0).any():
        raise InputError("the times of readings must increase")
    return nodes, times, values, of
