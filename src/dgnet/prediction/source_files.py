"""Sources of steps read block by block, in every format of data: their averages, or by the rule of the paper's scheme the mean of
both ends of each step.

`source_from` takes a table of moving spots (.csv), step averages or samples in a file (.npy, .npz, .h5, .pvd, .vtu, .xdmf), or
`physics:NAME`, a function f(x, t) of the problem's physics.py; `stored_source` takes those of a data set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.models import Wrapper
from dgnet.problems.case import base_problem
from dgnet.problems.finer import half_steps
from dgnet.problems.sources import Rule, converged_average, step_average
from dgnet.problems.spot_table import SpotTable
from dgnet.projects.importers import OwnSource, source_averages
from dgnet.projects.readers import Frame
from dgnet.training.simulator import Simulator

Tensor = torch.Tensor
FUNCTION = "physics:"


@dataclass(frozen=True, eq=False)
class Drive:
    """What drives a rollout. `rows(start, stop)` gives the sources of the steps start .. stop-1 as [1, n, N, F]."""

    rows: Callable[[int, int], Tensor]
    name: str = "stored"  # as the user wrote it
    steps: int | None = None  # how long it is known; None: as long as one likes
    spots: SpotTable | None = None
    function: OwnSource | None = None
    digest: str = ""
    note: str = ""  # what is strange about it


def source_from(source: str, simulator: Simulator, device: str) -> Drive:
    """The source that a file or a function gives on the mesh and in the steps of a simulator's case. Those of the file are the
    steps of its problem, `parts` of the case's."""
    case, rule, model = simulator.case, simulator.model.rule, simulator.model
    base = base_problem(case, "cpu")
    names, points = case.pde.fields, torch.tensor(model.points(base), dtype=torch.float64)
    if source.startswith(FUNCTION):
        if simulator.project is None or simulator.project.physics is None:
            raise InputError(f"--source {source}: '{case.name}' has no physics.py; name a problem's folder with --problem")
        physics, width = simulator.project.physics, len(names)
        function = physics.of_space_time(source.removeprefix(FUNCTION), f"--source {source}",
                                         trailing=() if width == 1 else (width,))
        own = OwnSource(function, width, 0 if width == 1 else None)
        own(points, torch.zeros(1, dtype=torch.float64))  # says now what is wrong with it
        digest = hashlib.sha256((physics.text or b"") + source.encode()).hexdigest()
        return Drive(_in_time(own, points, case.dt, rule), source, function=own, digest=digest)
    path = Path(source)
    if path.suffix.lower() == ".csv":
        if len(names) != 1:
            raise InputError(f"a table of spots drives one field, '{case.name}' has {len(names)}")
        table = SpotTable.read(path, case.mesh.dim).on((model.inner(base) if isinstance(model, Wrapper) else base).mesh)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return Drive(_in_time(table, points.to(device), case.dt, rule), source, spots=table, digest=digest)
    given = Frame(path.parent, case.mesh, names, case.offsets, case.dt * simulator.parts, False)
    averages = halved(torch.from_numpy(source_averages(path, given))[None], simulator.parts)[0].numpy().astype(np.float32)
    note = "" if averages.any() else f"{path} holds a source that is zero everywhere"
    if rule == "trapezoid":
        note = note or f"{path} is used by its averages over the steps, not at both ends of them as the model was trained"
    return Drive(lambda start, stop: torch.from_numpy(averages[start:stop])[None], source, len(averages),
                 digest=hashlib.sha256(averages.tobytes()).hexdigest(), note=note)


def halved(averages: Tensor, parts: int) -> Tensor:
    """Averages over steps [B, T, N, F] as those over smaller ones [B, parts T, N, F]; `parts` is a power of two."""
    for _ in range(parts.bit_length() - 1):
        averages = half_steps(averages)
    return averages


def _in_time(source: SpotTable | OwnSource, x: Tensor, dt: float, rule: Rule) -> Callable[[int, int], Tensor]:
    """The blocks of what is known at every time, at points x [N, d]."""
    def rows(start: int, stop: int) -> Tensor:
        begin = dt * torch.arange(start, stop, dtype=torch.float64)
        if rule == "trapezoid":
            return step_average(source, x, begin, dt, rule=rule)
        return source.average(x, start, stop, dt) if isinstance(source, SpotTable) else converged_average(source, x, begin, dt)[0]

    return rows


def stored_source(data: Dataset, number: int, ratio: float = 1.0, rule: Rule = "average") -> Drive:
    """The source of a trajectory on disk, in steps that are `ratio` times as long: what a step takes of each stored one, so that
    the integral over time stays what it is. By the rule of the trapezoid, the mean of both ends of each stored step."""
    def stored(start: int, stop: int) -> Tensor:
        found = data.read(number, start, stop - start, only=("source_average" if rule == "average" else "source",))
        if rule == "average":
            assert found.source_average is not None
            return torch.from_numpy(found.source_average)[None]
        assert found.source is not None
        return torch.from_numpy(0.5 * (found.source[:-1] + found.source[1:]))[None]

    def shared(start: int, stop: int) -> Tensor:
        ends = ratio * np.arange(start, stop + 1)
        first, last = int(np.floor(ends[0] + 1e-9)), min(data.steps, int(np.ceil(ends[-1] - 1e-9)))
        grid = np.arange(first, last + 1)
        overlap = np.minimum(ends[1:, None], grid[None, 1:]) - np.maximum(ends[:-1, None], grid[None, :-1])
        part = stored(first, last)[0]
        share = torch.from_numpy(overlap.clip(min=0.0) / ratio)  # [steps, stored]
        return torch.tensordot(share.to(part.dtype), part, 1)[None]

    return Drive(stored if ratio == 1.0 else shared)
