"""What the server computes: a request as a table of numbers and arrays -> arrays by name. It knows nothing of HTTP.

    rollout    times [T], states [T, nodes, fields]
    probe      times [T], values [T, points, fields]
    gradient   value J = sum of weights * u(points) at the end, and how it changes: dJ/d initial [nodes, fields], dJ/d source
               [nodes, fields] (a source that is the same in all steps), dJ/d spots [spots] (each one's power times 1 + x)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dgnet.arguments import array
from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.mesh.locate import from_cells
from dgnet.models import Ready, few_threads
from dgnet.problems.case import base_problem
from dgnet.problems.lift import Lift
from dgnet.problems.spot_table import SpotTable
from dgnet.training.run import Run

Tensor = torch.Tensor
Table = Mapping[str, Any]
Arrays = dict[str, np.ndarray]

KEYS = {"rollout": ("steps", "every", "initial", "source", "spots"),
        "probe": ("steps", "every", "initial", "source", "spots", "points"),
        "gradient": ("steps", "initial", "source", "spots", "points", "weights")}
_TAPE = 4  # a gradient keeps what a rollout lets go


@dataclass(frozen=True)
class Limits:
    """What a request, and all of them together, may take."""

    work: int = 10_000_000  # nodes times fields times steps of a request
    numbers: int = 4_000_000  # of an answer
    body: int = 32 << 20  # bytes of a request
    held: int = 256 << 20  # bytes of all requests and answers at once
    queue: int = 256  # requests at once; one is computed, the others wait
    seconds: float = 60.0  # of computing, of receiving and of sending


class TooLong(Exception):
    """Computing took longer than allowed."""


class Service:
    """One run, made ready to answer. Not for several threads at once."""

    def __init__(self, run: Run, limits: Limits | None = None) -> None:
        if run.case.given_flow:
            raise InputError(f"'{run.case.name}' cannot be served: its flow comes with the data")
        self.run, self.limits = run, limits or Limits()
        self.problem = base_problem(run.case, "cpu")
        # a model with values between the nodes takes spots there, too
        self.points = torch.tensor(run.model.points(self.problem), dtype=torch.float64)
        if isinstance(run.model, torch.nn.Module):
            run.model.eval().requires_grad_(False)
        with torch.no_grad():
            self.ready = Ready(run.model, self.problem)

    @property
    def shape(self) -> tuple[int, int]:
        """Nodes and fields."""
        return self.problem.mesh.n_nodes, self.problem.n_fields

    def about(self) -> dict[str, Any]:
        """Facts for a client."""
        case, n = self.run.case, self.limits
        low, high = self.problem.mesh.points.min(0), self.problem.mesh.points.max(0)
        return {"title": case.title, "name": case.name, "model": self.run.settings.model, "fields": list(case.pde.fields),
                "nodes": self.shape[0], "dimension": self.problem.mesh.dim, "box": [low.tolist(), high.tolist()], "dt": case.dt,
                "offset": list(case.offsets), "notes": list(self.run.notes),
                "limits": {"nodes_fields_steps": n.work, "numbers": n.numbers, "body_bytes": n.body, "queue": n.queue,
                           "seconds": n.seconds}}

    def mesh(self) -> Arrays:
        return {"points": self.problem.mesh.points, "cells": self.problem.mesh.cells}

    def answer(self, kind: str, table: Table) -> Arrays:
        """The arrays of a request; what is wrong with it is an `InputError`."""
        for key in table:
            if key not in KEYS[kind]:
                raise InputError(f"unknown entry '{str(key)[:60]}'" + did_you_mean(str(key), KEYS[kind]))
        steps = _whole(table.get("steps"), "steps")
        size = len(self.points) * self.shape[1] * steps * (_TAPE if kind == "gradient" else 1)
        if size > self.limits.work:
            most = self.limits.work * steps // size
            raise InputError(f"{steps} steps are too many: with {len(self.points)} nodes, a {kind} has at most {most}")
        with few_threads(self.shape[0]):
            return {"rollout": self._rollout, "probe": self._probe, "gradient": self._gradient}[kind](table, steps)

    # ------------------------------------------------------------------ the three kinds

    def _states(self, table: Table, steps: int, keep: Callable[[Tensor], np.ndarray], size: int) -> tuple[np.ndarray, np.ndarray]:
        """Times and what `keep` makes of the states [1, N, F] at them."""
        every = _whole(table.get("every", 1), "every")
        count = steps // every + 1
        if count * size > self.limits.numbers:
            raise InputError(f"the answer would hold {count * size:,} numbers, at most {self.limits.numbers:,} are sent: ask for "
                             "fewer steps, or for every tenth")
        u, given, spots = self._initial(table), self._given(table, steps), self._spots(table)
        source = None if given is None and not spots else self._lifted(given, steps)
        for spot in spots:
            source[..., :1] += self._spot(spot, steps)  # type: ignore[index]
        out = np.empty((count, size), np.float32)
        out[0] = keep(u).ravel()

        def sink(k: int, state: Tensor) -> None:
            if k % every == 0:
                out[k // every] = keep(state).ravel()

        with torch.no_grad():
            self.ready.rollout(u, source, steps, sink=sink, progress=self._clock())
        return self.run.case.dt * every * np.arange(count), out

    def _rollout(self, table: Table, steps: int) -> Arrays:
        n, fields = self.shape
        times, states = self._states(table, steps, lambda u: u[0].numpy(), n * fields)
        return {"times": times, "states": states.reshape(-1, n, fields)}

    def _probe(self, table: Table, steps: int) -> Arrays:
        rows = self._interpolation(table)
        times, values = self._states(table, steps, lambda u: rows @ u[0].numpy(), rows.shape[0] * self.shape[1])
        return {"times": times, "values": values.reshape(len(times), -1, self.shape[1])}

    def _gradient(self, table: Table, steps: int) -> Arrays:
        rows = self._interpolation(table)
        weights = self._array(table.get("weights", 1.0), (rows.shape[0], self.shape[1]), "weights")
        last = torch.from_numpy((rows.T @ weights.numpy()).astype(np.float32))
        u, given, spots = self._initial(table).requires_grad_(), self._given(table, steps), self._spots(table)
        nodes = (torch.zeros(1, steps, *self.shape) if given is None else given).requires_grad_()
        parts = torch.zeros(1, steps, len(self.points), self.shape[1])
        for spot in spots:
            parts[..., :1] += self._spot(spot, steps)
        f = self._lifted(nodes, steps) + parts
        value = (self.ready.rollout(u, f, steps, progress=self._clock())[0, -1] * last).sum()
        du, df, dn = torch.autograd.grad(value, (u, f, nodes))
        powers = np.array([float((df[..., :1] * self._spot(spot, steps)).sum()) for spot in spots])
        return {"value": value.detach().numpy(), "initial": du[0].numpy(), "source": dn[0].sum(0).numpy(), "spots": powers}

    def _clock(self) -> Callable[[int], None]:
        end = time.monotonic() + self.limits.seconds

        def tick(k: int) -> None:
            if time.monotonic() > end:
                raise TooLong(f"stopped after {k} steps, which took {self.limits.seconds:g} s: ask for fewer")

        return tick

    # ------------------------------------------------------------------ what a request holds

    def _initial(self, table: Table) -> Tensor:
        given = table.get("initial")
        offsets = torch.tensor(self.run.case.offsets, dtype=torch.float32)
        u = offsets.expand(self.shape).clone() if given is None else self._array(given, self.shape, "initial")
        return self.problem.expand(self.problem.restrict(u[None])).contiguous()

    def _given(self, table: Table, steps: int) -> Tensor | None:
        """The source at the nodes [1, steps, N, F]."""
        if table.get("source") is None:
            return None
        values = _numbers(table["source"], "source")
        shape = (steps, *self.shape) if values.ndim == 3 else self.shape
        return self._array(values, shape, "source").reshape(1, -1, *self.shape).expand(1, steps, *self.shape).contiguous()

    def _lifted(self, source: Tensor | None, steps: int) -> Tensor:
        """A source at the nodes at all points of the model [1, steps, P, F]; zero where there is none."""
        if source is None:
            return torch.zeros(1, steps, len(self.points), self.shape[1])
        return source if len(self.points) == self.shape[0] else Lift.of(self.problem.mesh)(source)

    def _spots(self, table: Table) -> list[SpotTable]:
        given, width = table.get("spots"), self.problem.mesh.dim + 3
        found = []
        for k, rows in enumerate([] if given is None else _rows(given, "spots")):
            values = _numbers(rows, f"spot {k + 1}")
            if values.ndim != 2 or values.shape[1] != width or len(values) < 2:
                raise InputError(f"spot {k + 1} needs two rows or more of {width} numbers each: time, place, radius, power")
            if not (np.diff(values[:, 0]) > 0).all() or not (values[:, -2] > 0).all():
                raise InputError(f"spot {k + 1}: times must increase and radii be positive")
            found.append(SpotTable((str(k + 1),), (values[:, 0],), (values[:, 1:],)))
        return found

    def _spot(self, spot: SpotTable, steps: int) -> Tensor:
        return spot.on(self.problem.mesh).average(self.points, 0, steps, self.run.case.dt).float()

    def _interpolation(self, table: Table) -> Any:
        """A sparse matrix [points, nodes]."""
        points = _numbers(table.get("points"), "points")
        dim = self.problem.mesh.dim
        if points.ndim != 2 or points.shape[1] != dim or not len(points):
            raise InputError(f"points must be a list of places with {dim} coordinates each")
        if points.size > self.limits.numbers:
            raise InputError("there are too many points")
        mesh = self.problem.mesh
        rows, outside = from_cells(mesh.points, mesh.cells, points)
        if len(outside):
            raise InputError(f"point {int(outside[0]) + 1} lies outside of the mesh")
        return rows

    def _array(self, given: Any, shape: tuple[int, ...], what: str) -> Tensor:
        """Numbers of a shape; one number, or one for each field, stands for all."""
        values = _numbers(given, what)
        if values.shape not in ((), shape[-1:], shape, *([shape[:-1]] if shape[-1] == 1 else [])):
            raise InputError(f"{what} must be one number, {shape[-1]} (one for each field) or an array {list(shape)}, got the "
                             f"shape {list(values.shape)}")
        values = values[..., None] if values.shape == shape[:-1] and values.shape != shape[-1:] else values
        return torch.from_numpy(np.broadcast_to(values, shape).astype(np.float32))


def _whole(value: Any, what: str) -> int:
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{what} must be a positive whole number" + ("" if value is None else f", got {str(value)[:40]}"))
    return value


def _rows(value: Any, what: str) -> list[Any]:
    if isinstance(value, np.ndarray) and value.ndim == 3:
        return list(value)
    if not isinstance(value, list):
        raise InputError(f"{what} must be a list")
    return value


def _numbers(value: Any, what: str) -> np.ndarray:
    found = array(value, what)
    if found.dtype.kind == "b" or not np.isfinite(found).all():
        raise InputError(f"{what} must be finite numbers, in rows of equal length")
    return found.astype(np.float64)
