"""What a file holds becomes trajectories of the problem.

`settled` puts it onto the nodes of the mesh and the steps of the problem, and `driven` adds its source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator

from dgnet.arguments import returned
from dgnet.data import Trajectory
from dgnet.errors import InputError
from dgnet.files import DAMAGED, plain
from dgnet.mesh import Mesh
from dgnet.problems.sight import spot_doubts
from dgnet.problems.sources import Source, converged_average
from dgnet.problems.spot_table import SpotTable
from dgnet.progress import Report
from dgnet.projects.between_meshes import IDENTITY, SHARE, Transfer, error_of, transfer
from dgnet.projects.physics import Physics
from dgnet.projects.readers import READERS, Found, Frame, checked_numbers, numbers_of, read_series
from dgnet.projects.toml import SeriesSpec, SourceSpec

Tensor = torch.Tensor

MOST_BETWEEN = 1 << 24
"""Numbers of a source between the nodes that are kept of a trajectory; beyond, quadratic elements fit it."""


@dataclass(frozen=True)
class Note:
    """What was done to a trajectory on its way in."""

    label: str
    split: str
    how: str
    interpolation: float = 0.0  # relative error of the interpolation in space, estimated
    outside: int = 0  # nodes outside of what was given
    resampling: float = 0.0  # relative error of the interpolation in time, estimated
    source: str = "none"  # none | average | samples | function | spots
    travel: float = 0.0  # radii that the fastest spot moves in a step
    narrow: float = 0.0  # smallest radius of a spot in units of the spacing
    missed: str = ""  # what the mesh does not see of the spots, in words
    rough: float = 0.0  # how much finer quadrature still changed the step averages of a function

    @property
    def text(self) -> str:
        """What was done and what it cost."""
        cost = f", interpolation error about {self.interpolation:.2g}" if self.interpolation else ""
        cost += f", in time {self.resampling:.2g}" if self.resampling else ""
        cost += f", {self.outside} nodes outside" if self.outside else ""
        return f"{self.how}{cost}, source: {self.source}"


# ---------------------------------------------------------------------- onto the nodes and steps of the problem


def settled(found: Found, spec: SeriesSpec, frame: Frame, where: str) -> tuple[Found, Note]:
    """The same trajectory at the nodes, in steps of dt from t = 0."""
    for name, values in (("state", found.state), ("source", found.source), ("velocity", found.velocity)):
        if values is not None and not np.abs(values).max(initial=0.0) < np.finfo(np.float32).max:
            raise InputError(f"{where}: its {name} is not finite in single precision")
    found, resampling = _in_steps(found, spec, frame.dt, where)
    if len(found.state) < 2:
        raise InputError(f"{where}: a trajectory needs at least two stored times")
    if frame.flow and found.velocity is None:
        raise InputError(f"{where} has no velocity, but pde.velocity says that it comes with the data")
    way = moved_to_nodes(frame.mesh, found.points, found.cells, found.state.shape[1], where)
    cost = error_of(way, found.state, np.array(frame.offset))
    moved = replace(found.mapped(way), points=None, cells=None)
    if not way.exact:
        moved = replace(moved, state_error=way.error(found.state) + (0.0 if moved.state_error is None else moved.state_error))
    label = found.label.replace(",", ";")
    return moved, Note(label, spec.split or found.split or "train", way.how, cost, way.outside, resampling)


def _in_steps(found: Found, spec: SeriesSpec, dt: float, where: str) -> tuple[Found, float]:
    """Stored times k dt: as they are, cut at `begin`, or interpolated where the entry allows it."""
    if found.time is None:
        if spec.begin is not None:
            raise InputError(f"{where} holds no times, so 'begin' has no meaning")
        return found, 0.0
    time = np.asarray(found.time, dtype=np.float64)
    if not np.isfinite(time).all() or (np.diff(time) <= 0).any():
        raise InputError(f"{where}: its stored times do not increase")
    begin = 0.0 if spec.begin is None else spec.begin
    slack = 1e-4 * dt
    if spec.begin is not None:
        keep = time >= begin - slack
        if keep.sum() < 2:
            raise InputError(f"{where} has fewer than two stored times from begin = {begin:g} on")
        first = int(np.argmax(keep))
        found = found.mapped(lambda v: v[first:])
        time = time[first:]
    time = time - begin
    if abs(time[0]) > slack:
        start = f"{time[0] + begin:g}"
        raise InputError(f"{where} starts at t = {start}, but a trajectory starts at 0; say begin = {start} in its [[data]] entry "
                         "if that is its start")
    wanted = dt * np.arange(len(time))
    if np.abs(time - wanted).max() <= slack * max(1.0, len(time) * 1e-2):
        return found, 0.0
    if not spec.resample:
        k = int(np.argmax(np.abs(time - wanted) > slack))
        raise InputError(f"{where}: stored time {k} is t = {time[k]:g}, expected {wanted[k]:g} = {k} dt; say resample = true in "
                         "its [[data]] entry to interpolate in time")
    if found.source_average is not None:
        raise InputError(f"{where}: step averages of a source cannot be interpolated in time")
    count = int(np.floor(time[-1] / dt * (1 + 1e-9))) + 1
    if count < 2:
        raise InputError(f"{where} ends at t = {time[-1]:g}, before the first step dt = {dt:g} is over")
    if count > 10_000_000 // found.state.shape[1] + 100_000:
        raise InputError(f"{where} would have {count} steps of dt = {dt:g}")
    at = dt * np.arange(count)
    new = replace(found.mapped(lambda v: _between(time, v, at)), time=at)
    wrong = SHARE * (_linear(time, found.state, at) - new.state)
    size = float(np.linalg.norm(new.state - new.state.mean((0, 1))))
    return replace(new, state_error=wrong), float(np.linalg.norm(wrong)) / size if size > 0 else 0.0


def _between(time: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Cubic in time between neighbours, and never beyond their values."""
    return PchipInterpolator(time, values, axis=0)(at) if len(time) > 2 else _linear(time, values, at)


def _linear(time: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    k = np.clip(np.searchsorted(time, at, side="right") - 1, 0, len(time) - 2)
    share = ((at - time[k]) / (time[k + 1] - time[k])).clip(0, 1).reshape(-1, *[1] * (values.ndim - 1))
    return (1 - share) * values[k] + share * values[k + 1]


# ---------------------------------------------------------------------- sources


@dataclass(frozen=True, eq=False)
class OwnSource:
    """A function of physics.py as a source of one field or of all: f(x [N, d], t) -> [N] or [N, F]."""

    function: Callable[[Tensor, float], Tensor]
    width: int
    column: int | None

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        rows = torch.stack([self.function(x, float(s)) for s in t]).to(torch.float64)
        if self.column is None:
            return rows.reshape(1, len(t), len(x), self.width)
        out = torch.zeros(1, len(t), len(x), self.width, dtype=torch.float64)
        out[0, :, :, self.column] = rows
        return out


def driven(found: Found, note: Note, source: SourceSpec, frame: Frame, physics: Physics, where: str) -> tuple[Found, Note]:
    """The trajectory with samples and step averages of its source."""
    steps, width = len(found.state) - 1, len(frame.fields)
    if source.kind == "none":
        return replace(found, source=None, source_average=None), replace(note, source="none")
    if source.kind == "file":
        samples, average = found.source, found.source_average
        if samples is None and average is None:
            return found, replace(note, source="none")
        if average is None and samples is not None:
            return replace(found, source_average=0.5 * (samples[1:] + samples[:-1])), replace(note, source="samples")
        if samples is None and average is not None:
            samples = np.concatenate([average[:1], 0.5 * (average[1:] + average[:-1]), average[-1:]])
        return replace(found, source=samples), replace(note, source="average")
    if found.source is not None or found.source_average is not None:
        raise InputError(f"{where}: {found.label} has a source of its own; say source = \"file\" or leave the other one out")
    column = frame.fields.index(source.field) if source.field else (0 if width == 1 else None)
    if source.kind == "spots":
        if column is None:
            raise InputError(f"{where}: a table of spots drives one field: source = {{ spots = \"...\", field = \"NAME\" }}")
        try:
            table = SpotTable.read(frame.folder / source.table, frame.mesh.dim).on(frame.mesh)
            known = sampled(table, frame.mesh, frame.dt, steps, width, column)
        except InputError as error:
            raise InputError(f"{where}.source: {error}") from error
        travel, radius = spot_motion(table, steps, frame.dt)
        note = replace(note, source="spots", travel=travel, narrow=radius / frame.mesh.spacing,
                       missed="; ".join(d.text for d in spot_doubts(frame.mesh, table, begin=0.0, end=steps * frame.dt)))
    else:
        function = physics.of_space_time(source.function, where, trailing=() if column is not None else (width,))
        known = sampled(OwnSource(function, width, column), frame.mesh, frame.dt, steps, width)
        note = replace(note, source="function", rough=known.rough)
    if not (np.isfinite(known.samples).all() and np.isfinite(known.average).all()):
        raise InputError(f"{where}: the source of {found.label} is not finite everywhere")
    return replace(found, source=known.samples, source_average=known.average, source_middles=known.middles), note


@dataclass(frozen=True, eq=False)
class Sampled:
    """A source of T steps: at the nodes at the step times [T+1, N, F] and on average over each step [T, N, F]; at the middles of
    the edges [T, E, F], None where it is not known there; and how much finer quadrature still changed the averages."""

    samples: np.ndarray
    average: np.ndarray
    middles: np.ndarray | None
    rough: float = 0.0


def sampled(source: Source | SpotTable, mesh: Mesh, dt: float, steps: int, width: int, column: int = 0) -> Sampled:
    """A source of all `width` fields, or a table of spots of the field number `column`."""
    x, times = torch.tensor(mesh.points), dt * torch.arange(steps + 1, dtype=torch.float64)
    between = torch.tensor(mesh.middles)
    between = between if steps * len(between) * width <= MOST_BETWEEN else between[:0]
    if not isinstance(source, SpotTable):
        samples = returned(source(x, times), (1, len(times), len(x), width), "a source f(x, t)")[0].numpy()
        average, rough = converged_average(source, x, times[:-1], dt)
        middles = _averages_between(source, between, times[:-1], dt)
        middles = middles if middles is not None and np.isfinite(middles).all() else None
        return Sampled(samples, average[0].numpy(), middles, rough)

    def placed(values: Tensor) -> np.ndarray:
        found = np.zeros((*values.shape[1:3], width))
        found[..., column] = values[0, :, :, 0].numpy()
        return found

    middles = placed(source.average(between, 0, steps, dt)) if len(between) else None
    return Sampled(placed(source(x, times)), placed(source.average(x, 0, steps, dt)), middles)


def _averages_between(source: Source, points: Tensor, start: Tensor, dt: float) -> np.ndarray | None:
    """Step averages [T, P, F] at points that are no nodes; None of a function that knows the nodes only, or nowhere."""
    try:
        if not len(points) or source(points[:2], start[:1]).shape[2] != len(points[:2]):
            return None
        return converged_average(source, points, start, dt)[0][0].numpy()
    except (InputError, RuntimeError, IndexError, ValueError):  # it looks something up by node
        return None


def source_averages(path: Path, frame: Frame) -> np.ndarray:
    """Step averages [T, N, F] of the source that a file holds, at the nodes and in steps of dt; samples become their trapezoid.

    .npy and `source_average` of .npz are step averages, `source` of .npz and point data `source` or `source:FIELD` are samples;
    a data set of dgnet must hold one trajectory.
    """
    suffix, width = path.suffix.lower(), len(frame.fields)
    if suffix in (".npy", ".npz"):
        return _array_averages(path, frame)
    if suffix in (".h5", ".hdf5"):
        rows = list(read_series(path, SeriesSpec(path.name), frame))
        if len(rows) != 1:
            raise InputError(f"{path} holds {len(rows)} trajectories; name one with --data {path} --trajectory NUMBER")
        moved, note = settled(rows[0], SeriesSpec(path.name), frame, str(path))
        found, _ = driven(moved, note, SourceSpec("file"), frame, Physics(frame.folder), str(path))
        if found.source_average is None:
            raise InputError(f"{path} holds no source")
        return found.source_average
    if suffix not in READERS:
        raise InputError(f"{path}: a source is read from .npy, {', '.join(READERS)}, not from '{path.suffix}'")
    spec = SeriesSpec(path.name, resample=True)
    names = tuple(f"source:{f}" for f in frame.fields)
    try:
        raw = next(iter(read_series(path, spec, replace(frame, fields=names))))
    except InputError:
        if width > 1:
            raise
        raw = next(iter(read_series(path, spec, replace(frame, fields=("source",)))))
    samples = settled(raw, spec, frame, str(path))[0].state
    return 0.5 * (samples[1:] + samples[:-1])


def _array_averages(path: Path, frame: Frame) -> np.ndarray:
    width = len(frame.fields)
    if path.suffix.lower() == ".npz":
        arrays = numbers_of(path)
    else:
        try:
            arrays = {"source_average": checked_numbers(np.load(plain(path), allow_pickle=False), "source_average", path)}
        except FileNotFoundError as error:
            raise InputError(f"there is no file {path}") from error
        except DAMAGED as error:
            raise InputError(f"{path} is damaged, or not an array of numbers (.npy)") from error
    key = next((k for k in ("source_average", "source") if k in arrays), None)
    if key is None:
        raise InputError(f"{path} holds neither 'source' nor 'source_average' (it holds: {', '.join(arrays) or 'nothing'})")
    value = arrays[key][..., None] if arrays[key].ndim == 2 and width == 1 else arrays[key]
    if value.ndim != 3 or value.shape[2] != width or len(value) < (1 if key == "source_average" else 2):
        raise InputError(f"{path}: '{key}' has shape {list(arrays[key].shape)}, expected [time, node, {width}]")
    points, cells = arrays.get("points"), arrays.get("cells")
    if key == "source":
        found = Found(path.name, value, arrays.get("time"), points, cells)
        samples = settled(found, SeriesSpec(path.name, resample=True), replace(frame, flow=False), str(path))[0].state
        return 0.5 * (samples[1:] + samples[:-1])
    return moved_to_nodes(frame.mesh, points, cells, value.shape[1], str(path))(value)


def moved_to_nodes(mesh: Mesh, points: np.ndarray | None, cells: np.ndarray | None, count: int, where: str) -> Transfer:
    """How `count` values at points (None: the nodes) come to the nodes of the mesh."""
    if points is None:
        if count != mesh.n_nodes:
            raise InputError(f"{where} has {count} nodes and no points, but the mesh has {mesh.n_nodes} nodes")
        return IDENTITY
    if count != len(points):
        raise InputError(f"{where} has {count} values for {len(points)} points")
    return transfer(mesh, points, cells, where)


def spot_motion(table: SpotTable, steps: int, dt: float) -> tuple[float, float]:
    """(most radii that a burning spot moves in one step, smallest radius of a burning spot)."""
    state = table.at(dt * np.arange(steps + 1))
    on = (state[:, 1:, -1] != 0) | (state[:, :-1, -1] != 0)
    way = np.linalg.norm(np.diff(state[:, :, :-2], axis=1), axis=2) / np.minimum(state[:, 1:, -2], state[:, :-1, -2])
    radius = np.where(state[:, :, -1] != 0, state[:, :, -2], np.inf).min()
    smallest = float(radius) if np.isfinite(radius) else float(state[:, :, -2].min())
    return float(np.where(on, way, 0.0).max()), smallest


# ---------------------------------------------------------------------- all of them


def collected(entries: Sequence[tuple[str, Path, SeriesSpec]], frame: Frame, physics: Physics,
              report: Report | None = None) -> tuple[list[Trajectory], list[Note]]:
    """Every trajectory of the problem, cut to the shortest one. `entries`: place in the problem file, file, and what it says."""
    found: list[tuple[Found, Note]] = []
    for k, (where, path, spec) in enumerate(entries):
        for raw in read_series(path, spec, frame):
            here, note = settled(raw, spec, frame, str(path.parent / raw.label))
            found.append(driven(here, note, spec.source, frame, physics, where))
        if report is not None:
            report("import", k + 1, len(entries))
    steps = min(len(f.state) for f, _ in found) - 1
    moving = any(f.source_average is not None for f, _ in found)
    every = moving and all(f.source_middles is not None for f, _ in found if f.source_average is not None)
    trajectories, notes, count = [], [], {"train": 0, "test": 0}
    for f, note in found:
        if len(f.state) - 1 > steps:
            note = replace(note, how=f"{note.how}, the first {steps} of {len(f.state) - 1} steps")
        source, average, middles = f.source, f.source_average, f.source_middles
        if moving and average is None:
            source, average = np.zeros((steps + 1, *f.state.shape[1:])), np.zeros((steps, *f.state.shape[1:]))
            middles = np.zeros((steps, len(frame.mesh.edges), len(frame.fields))) if every else None
        with np.errstate(over="ignore"):  # said below
            trajectories.append(Trajectory(
                f.state[:steps + 1].astype(np.float32), frame.dt * np.arange(steps + 1),
                None if source is None else source[:steps + 1].astype(np.float32),
                None if average is None else average[:steps].astype(np.float32),
                None if f.velocity is None or not frame.flow else f.velocity[:steps + 1].astype(np.float32),
                split=note.split, index=count[note.split], labels=(note.label,),
                source_middles=None if middles is None or not every else middles[:steps].astype(np.float32),
                state_error=None if f.state_error is None else f.state_error[:steps + 1].astype(np.float32)))
        for name in ("state", "source_average", "velocity"):
            value = getattr(trajectories[-1], name)
            if value is not None and not np.isfinite(value).all():
                raise InputError(f"{note.label}: its {name.replace('_', ' ')} is not finite in single precision")
        notes.append(note)
        count[note.split] += 1
    return trajectories, notes
