"""What drives a rollout: sources of steps by the block, from whatever data come from: their averages, or by the rule of the
paper's scheme the mean of both ends of each step.

`opened` takes a table of moving spots (.csv), step averages or samples in a file (.npy, .npz, .h5, .pvd, .vtu, .xdmf), or
`physics:NAME`, a function f(x, t) of the problem's physics.py.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.problems.case import base_problem
from dgnet.problems.sources import Rule, Source, converged_average, step_average
from dgnet.problems.spot_table import SpotTable
from dgnet.projects.importers import OwnSource, source_averages
from dgnet.projects.readers import Frame
from dgnet.training.simulator import Simulator

Tensor = torch.Tensor
FUNCTION = "physics:"


class Drive(Protocol):
    """The source of steps by the block."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Those of the steps start .. stop-1 as [1, n, N, F]."""
        ...


@dataclass(frozen=True, eq=False)
class TableDrive:
    """A table of spots at the nodes of a mesh."""

    table: SpotTable
    x: Tensor  # [N, d], float64
    dt: float
    rule: Rule = "average"

    def on(self, mesh: Mesh, brings: np.ndarray | None) -> TableDrive:
        """The same for a solver that takes up a source by its own rule (`Model.brings`)."""
        return replace(self, table=self.table.on(mesh, brings))

    def rows(self, start: int, stop: int) -> Tensor:
        if self.rule == "trapezoid":
            return both_ends(self.table, self.x, start, stop, self.dt)
        return self.table.average(self.x, start, stop, self.dt)


@dataclass(frozen=True, eq=False)
class FunctionDrive:
    """A function of space and time."""

    source: OwnSource
    x: Tensor  # [N, d], float64, on the CPU
    dt: float
    rule: Rule = "average"

    def rows(self, start: int, stop: int) -> Tensor:
        if self.rule == "trapezoid":
            return both_ends(self.source, self.x, start, stop, self.dt)
        return converged_average(self.source, self.x, self.dt * torch.arange(start, stop, dtype=torch.float64), self.dt)[0]


def both_ends(source: Source, x: Tensor, start: int, stop: int, dt: float) -> Tensor:
    return step_average(source, x, dt * torch.arange(start, stop, dtype=torch.float64), dt, rule="trapezoid")


@dataclass(frozen=True, eq=False)
class ArrayDrive:
    """Averages [T, N, F] that are at hand."""

    averages: np.ndarray

    def rows(self, start: int, stop: int) -> Tensor:
        return torch.from_numpy(self.averages[start:stop])[None]


@dataclass(frozen=True, eq=False)
class StoredDrive:
    """Averages of a trajectory on disk whose steps are `ratio` times as long: what a step takes of each stored one, so that the
    integral over time stays what it is. By the rule of the trapezoid, the mean of both ends of each stored step."""

    data: Dataset
    number: int
    ratio: float = 1.0  # step of the rollout over step of the data
    rule: Rule = "average"

    def rows(self, start: int, stop: int) -> Tensor:
        if self.ratio == 1.0:
            return self._stored(start, stop)
        ends = self.ratio * np.arange(start, stop + 1)
        first, last = int(np.floor(ends[0] + 1e-9)), min(self.data.steps, int(np.ceil(ends[-1] - 1e-9)))
        grid = np.arange(first, last + 1)
        overlap = np.minimum(ends[1:, None], grid[None, 1:]) - np.maximum(ends[:-1, None], grid[None, :-1])
        share = torch.from_numpy(overlap.clip(min=0.0) / self.ratio)  # [steps, stored]
        part = self._stored(first, last)[0]
        return torch.tensordot(share.to(part.dtype), part, 1)[None]

    def _stored(self, start: int, stop: int) -> Tensor:
        name = "source_average" if self.rule == "average" else "source"
        found = self.data.read(self.number, start, stop - start, only=(name,))
        part = found.source_average if self.rule == "average" else found.source
        assert part is not None
        return torch.from_numpy(part if self.rule == "average" else 0.5 * (part[:-1] + part[1:]))[None]


@dataclass(frozen=True, eq=False)
class Opened:
    """A source that was named on the command line."""

    name: str  # as it was given
    drive: Drive
    steps: int | None = None  # how long it is known; None: as long as one likes
    spots: int | None = None
    digest: str = ""
    note: str = ""  # what is strange about it


def opened(source: str, run: Simulator, device: str) -> Opened:
    """The source for the run's scenario (mesh and step)."""
    s = run.case
    names, points = s.pde.fields, torch.tensor(run.model.points(base_problem(s, "cpu")), dtype=torch.float64)
    if source.startswith(FUNCTION):
        if run.project is None or run.project.physics is None:
            raise InputError(f"--source {source}: '{s.name}' has no physics.py; name a problem's folder with --problem")
        width = len(names)
        function = run.project.physics.of_space_time(source.removeprefix(FUNCTION), f"--source {source}",
                                                     trailing=() if width == 1 else (width,))
        own = OwnSource(function, width, 0 if width == 1 else None)
        own(points, torch.zeros(1, dtype=torch.float64))  # says now what is wrong with it
        text = run.project.physics.text or b""
        drive: Drive = FunctionDrive(own, points, s.dt, run.model.rule)
        return Opened(source, drive, digest=hashlib.sha256(text + source.encode()).hexdigest())
    path = Path(source)
    if path.suffix.lower() == ".csv":
        if len(names) != 1:
            raise InputError(f"a table of spots drives one field, '{s.name}' has {len(names)}")
        table = SpotTable.read(path, s.mesh.dim).on(s.mesh)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        drive = TableDrive(table, points.to(device), s.dt, run.model.rule)
        return Opened(source, drive, None, len(table.names), digest)
    averages = source_averages(path, Frame(path.parent, s.mesh, names, s.offsets, s.dt, False)).astype(np.float32)
    still = "" if averages.any() else f"{path} holds a source that is zero everywhere"
    if run.model.rule == "trapezoid":
        still = still or f"{path} is used by its averages over the steps, not at both ends of them as the model was trained"
    return Opened(source, ArrayDrive(averages), len(averages), None, hashlib.sha256(averages.tobytes()).hexdigest(), still)
