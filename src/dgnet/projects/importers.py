"""Trajectories from files of other programs: HDF5, .npz, series for ParaView, tables of sensors.

Each reader returns what its file holds (`Found`). `settled` puts it onto the nodes of the mesh and the steps of the problem, and
`driven` adds its source. Anything unreadable is an InputError with the file's name.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch

from dgnet.data import Dataset, Trajectory
from dgnet.errors import InputError
from dgnet.files import plain
from dgnet.mesh import Mesh
from dgnet.problems.sources import converged_average
from dgnet.problems.spot_table import SpotTable, number_in, read_table
from dgnet.progress import Report
from dgnet.projects.physics import Physics
from dgnet.projects.toml import SeriesSpec, SourceSpec
from dgnet.projects.transfer import IDENTITY, Transfer, error_of, transfer

Tensor = torch.Tensor

_BROKEN = (OSError, ValueError, EOFError, KeyError, IndexError, AttributeError, zipfile.BadZipFile, NotImplementedError,
           RuntimeError, TypeError, zlib.error, OverflowError, MemoryError, UnicodeError)
_CELLS = {2: "triangle", 3: "tetra"}


@dataclass(frozen=True, eq=False)
class Found:
    """One trajectory as a file has it: M points, which need not be the nodes."""

    label: str
    state: np.ndarray  # [T, M, F]
    time: np.ndarray | None  # [T]; None: dt apart
    points: np.ndarray | None = None  # [M, d]; None: the nodes
    cells: np.ndarray | None = None
    source: np.ndarray | None = None  # [T, M, F]
    source_average: np.ndarray | None = None  # [T - 1, M, F]
    velocity: np.ndarray | None = None  # [T, M, d]
    split: str = ""

    def mapped(self, change: Callable[[np.ndarray], np.ndarray]) -> Found:
        """The same with every array of values [T, M, ...] changed."""
        def of(value: np.ndarray | None) -> np.ndarray | None:
            return None if value is None else change(value)

        return replace(self, state=change(self.state), source=of(self.source), source_average=of(self.source_average),
                       velocity=of(self.velocity))


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
    missed: str = ""  # a spot that reaches no node, in words
    rough: float = 0.0  # how much finer quadrature still changed the step averages of a function


@dataclass(frozen=True, eq=False)
class Frame:
    """What every reader needs to know about the problem."""

    folder: Path
    mesh: Mesh
    fields: tuple[str, ...]
    offset: tuple[float, ...]
    dt: float
    flow: bool  # a velocity belongs to every trajectory


# ---------------------------------------------------------------------- which files


def matches(spec: SeriesSpec, folder: Path, where: str) -> list[tuple[Path, SeriesSpec]]:
    """The files of an entry; `*` in the names of source and sensors stands for what it stood for in the file's name."""
    if "*" not in spec.file or spec.file.endswith(".vtu"):
        return [(folder / spec.file, spec)]
    try:
        found = sorted(folder.glob(spec.file), key=_natural)
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"{where}: '{spec.file}' is not a pattern of file names inside the folder") from error
    if not found:
        raise InputError(f"{where}: no file in {folder} matches '{spec.file}'")
    for path in found:
        if not path.is_file():  # left out, it would be missed by nobody
            kind = "a folder" if path.is_dir() else "a link to nothing" if path.is_symlink() else "a device or a pipe"
            raise InputError(f"{where}: '{spec.file}' also stands for {path}, which is {kind}")
    pattern = re.compile("".join("(.*)" if c == "*" else "." if c == "?" else re.escape(c) for c in spec.file) + "$")
    filled = []
    for path in found:
        hit = pattern.match(path.relative_to(folder).as_posix())
        star = hit[1] if hit else ""
        source = replace(spec.source, table=spec.source.table.replace("*", star), function=spec.source.function.replace("*", star))
        filled.append((path, replace(spec, source=source, sensors=spec.sensors.replace("*", star))))
    return filled


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """run-2 before run-10."""
    return [(1, int(p), "") if p.isdigit() else (0, 0, p) for p in re.split(r"(\d+)", path.as_posix())]


def read_series(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    """All trajectories of a file."""
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise InputError(f"{path}: trajectories are read from {', '.join(READERS)}, not from '{path.suffix}'")
    if suffix != ".vtu" and not path.is_file():
        raise InputError(f"there is no file {path}")
    if spec.sensors and suffix != ".csv":
        raise InputError(f"{path}: 'sensors' belongs to tables of sensor values (.csv)")
    try:
        yield from READERS[suffix](path, spec, frame)
    except InputError as error:
        text = str(error)
        if str(path) in text:
            raise
        raise InputError(f"{path}{text[len(path.name):]}" if text.startswith(path.name) else f"{path}: {text}") from error
    except _BROKEN as error:
        raise InputError(f"{path} is damaged or not what its name says ({type(error).__name__})") from error


# ---------------------------------------------------------------------- readers


def _hdf5(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    with Dataset(path) as data:
        order = _columns(data.fields, frame.fields, path)
        points, cells = data.mesh.points, data.mesh.cells
        for number in range(len(data)):
            t = data.read(number)
            pick = [None if v is None else v[..., order].astype(np.float64) for v in (t.state, t.source, t.source_average)]
            assert pick[0] is not None
            yield Found(f"{path.name} {number}", pick[0], t.time, points, cells, pick[1], pick[2],
                        None if t.velocity is None else t.velocity.astype(np.float64), t.split)


def _columns(found: Sequence[str], fields: Sequence[str], path: Path) -> list[int]:
    missing = [f for f in fields if f not in found]
    if missing:
        raise InputError(f"{path} has no field '{missing[0]}' (it has: {', '.join(found)})")
    return [list(found).index(f) for f in fields]


NPZ_KEYS = ("state", "time", "points", "cells", "source", "source_average", "velocity")


def _npz(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    with np.load(path, allow_pickle=False) as archive:
        if not hasattr(archive, "files"):
            raise InputError(f"{path} is a single array, not an archive of named ones")
        arrays = {key: archive[key] for key in archive.files}
    for key, value in arrays.items():
        if key not in NPZ_KEYS and key not in frame.fields:
            raise InputError(f"{path} holds the unknown array '{key}' (known: {', '.join([*NPZ_KEYS, *frame.fields])})")
        if value.dtype.kind not in "fiu":
            raise InputError(f"{path}: the array '{key}' holds {value.dtype}, not numbers")
        if key != "cells":
            arrays[key] = value.astype(np.float64)
            if not np.isfinite(arrays[key]).all():
                raise InputError(f"{path}: the array '{key}' is not finite at index "
                                 f"{np.argwhere(~np.isfinite(arrays[key]))[0].tolist()}")
    state = _npz_state(arrays, frame, path)
    many = state.ndim == 4
    width = len(frame.fields)

    def rows(key: str, extra: int, last: int) -> np.ndarray | None:
        value = arrays.get(key)
        if value is None:
            return None
        if value.ndim == state.ndim - 1 and last == 1:
            value = value[..., None]
        wanted = (*state.shape[:-3], state.shape[-3] + extra, state.shape[-2], last)
        if value.shape != wanted:
            raise InputError(f"{path}: the array '{key}' has shape {list(value.shape)}, expected {list(wanted)}")
        return value

    source, average = rows("source", 0, width), rows("source_average", -1, width)
    velocity = rows("velocity", 0, frame.mesh.dim)
    time = arrays.get("time")
    if time is not None and time.shape != (state.shape[-3],):
        raise InputError(f"{path}: the array 'time' has shape {list(time.shape)}, expected [{state.shape[-3]}]")
    for b in range(len(state) if many else 1):
        def one(value: np.ndarray | None, b: int = b) -> np.ndarray | None:
            return value if value is None or not many else value[b]

        first = one(state)
        assert first is not None
        yield Found(f"{path.name} {b}" if many else path.name, first, time, arrays.get("points"), arrays.get("cells"), one(source),
                    one(average), one(velocity))


def _npz_state(arrays: dict[str, np.ndarray], frame: Frame, path: Path) -> np.ndarray:
    """[T, M, F], or [B, T, M, F] for several trajectories."""
    width = len(frame.fields)
    if "state" in arrays:
        state = arrays["state"]
        if width == 1 and (state.ndim == 2 or (state.ndim == 3 and state.shape[-1] != 1)):
            state = state[..., None]
        if state.ndim not in (3, 4) or state.shape[-1] != width or 0 in state.shape:
            raise InputError(f"{path}: the array 'state' has shape {list(arrays['state'].shape)}, expected [time, node, {width}]")
        return state
    missing = [f for f in frame.fields if f not in arrays]
    if missing:
        raise InputError(f"{path} holds neither 'state' nor the field '{missing[0]}'")
    shapes = {arrays[f].shape for f in frame.fields}
    if len(shapes) > 1 or len(next(iter(shapes))) not in (2, 3) or 0 in next(iter(shapes)):
        raise InputError(f"{path}: its fields must be arrays [time, node] of one shape, got "
                         f"{' and '.join(str(list(s)) for s in sorted(shapes))}")
    return np.stack([arrays[f] for f in frame.fields], axis=-1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """meshio prints to the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _meshio_read(path: Path) -> Any:
    import meshio

    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        with _quiet():
            return meshio.read(path)
    except (Exception, SystemExit) as error:  # meshio leaves by sys.exit, and its parsers fail in many ways
        raise InputError(f"{path} is truncated or not a file of the kind that its name says") from error


def _frames(path: Path, frame: Frame, frames: Sequence[tuple[float | None, Any, Any, dict[str, np.ndarray]]]) -> Found:
    """One trajectory from (time, points, cell blocks, point data) of every stored time."""
    if not frames:
        raise InputError(f"{path} holds no stored time")
    points = np.asarray(frames[0][1], dtype=np.float64)
    kinds = {block.type: block.data for block in frames[0][2]}
    cells = kinds.get(_CELLS[frame.mesh.dim])
    columns: dict[str, list[np.ndarray]] = {}
    for k, (_, where, _, data) in enumerate(frames):
        if np.shape(where) != points.shape or not np.array_equal(where, points):
            raise InputError(f"{path}: stored time {k} has another mesh than the first one")
        for f in frame.fields:
            if f not in data:
                raise InputError(f"{path}: stored time {k} has no point data '{f}' (it has: {', '.join(data) or 'none'})")
        for name, value in data.items():
            columns.setdefault(name, []).append(np.asarray(value, dtype=np.float64))

    def rows(name: str, width: int) -> np.ndarray | None:
        parts = columns.get(name, [])
        if not parts:
            return None
        if len(parts) != len(frames):
            raise InputError(f"{path}: '{name}' is missing at some stored times")
        value = np.stack([p.reshape(len(points), -1)[:, :width] for p in parts])
        if value.shape[2] != width:
            raise InputError(f"{path}: point data '{name}' has {value.shape[2]} components, expected {width}")
        if not np.isfinite(value).all():
            k, node = np.argwhere(~np.isfinite(value))[0][:2]
            raise InputError(f"{path}: '{name}' is not finite at stored time {k}, point {node}")
        return value

    def stacked(names: Sequence[str]) -> np.ndarray | None:
        parts = [rows(n, 1) for n in names]
        return None if any(p is None for p in parts) else np.concatenate([p for p in parts if p is not None], axis=2)

    state = stacked(frame.fields)
    assert state is not None
    source = stacked([f"source:{f}" for f in frame.fields])
    if source is None and len(frame.fields) == 1:
        source = stacked(["source"])
    times = [t for t, *_ in frames]
    time = None if any(t is None for t in times) else np.array(times, dtype=np.float64)
    velocity = rows("velocity", frame.mesh.dim) if frame.flow else None
    return Found(path.name, state, time, points, cells, source, None, velocity)


def _pvd(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise InputError(f"{path} is truncated or not XML") from error
    entries = root.findall("./Collection/DataSet")
    if not entries:
        raise InputError(f"{path} lists no stored times")
    frames = []
    for k, entry in enumerate(entries):
        file, text = entry.get("file"), entry.get("timestep")
        if file is None or text is None:
            raise InputError(f"{path}: entry {k + 1} lacks its {'file' if file is None else 'timestep'}")
        raw = _meshio_read(path.parent / file)
        frames.append((_time(text, path, k), raw.points, raw.cells, raw.point_data))
    yield _frames(path, frame, frames)


def _time(text: str, path: Path, k: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise InputError(f"{path}: the time of entry {k + 1} is '{text}', not a number")
    return value


def _vtu(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    """Numbered files, dt apart: `out-*.vtu`."""
    files = sorted(frame.folder.glob(spec.file), key=_natural) if "*" in spec.file else [path]
    if not files:
        raise InputError(f"no file in {frame.folder} matches '{spec.file}'")
    raws = [_meshio_read(f) for f in files]
    yield _frames(path, frame, [(None, raw.points, raw.cells, raw.point_data) for raw in raws])


def _xdmf(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    from meshio.xdmf import TimeSeriesReader

    try:
        with _quiet(), TimeSeriesReader(str(path)) as reader:
            points, blocks = reader.read_points_cells()
            frames = []
            for k in range(reader.num_steps):
                t, data, _ = reader.read_data(k)
                frames.append((float(t), points, blocks, {key: np.array(v) for key, v in data.items()}))
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        for name in _beside(path):
            if not (path.parent / name).is_file():
                raise InputError(f"{path} keeps its numbers in {name}, which is not beside it: copy both files together") from error
        raise InputError(f"{path} is truncated or not a time series that meshio can read") from error
    yield _frames(path, frame, frames)


def _beside(path: Path) -> list[str]:
    """Names of the HDF5 files that an XDMF file refers to."""
    try:
        items = ElementTree.parse(path).getroot().iter("DataItem")
    except (ElementTree.ParseError, OSError):
        return []
    return list(dict.fromkeys(i.text.strip().split(":")[0] for i in items if i.get("Format") == "HDF" and i.text))


def _sensors(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    """A table t, x, y[, z] or sensor, value[, field]; every sensor needs a value at every time."""
    axes = ["x", "y", "z"][:frame.mesh.dim]
    places: dict[str, tuple[float, ...]] = {}
    if spec.sensors:
        table = frame.folder / spec.sensors
        for line, row in read_table(table, ["sensor", *axes], []):
            if row["sensor"] in places:
                raise InputError(f"{table}, line {line}: sensor '{row['sensor']}' is listed twice")
            places[row["sensor"]] = tuple(number_in(row[a], table, line, a) for a in axes)
        required, optional = ["t", "sensor", "value"], ["field"]
    else:
        required, optional = ["t", *axes, "value"], ["sensor", "field"]
    if len(frame.fields) > 1:
        required, optional = [*required, "field"], [k for k in optional if k != "field"]
    times, where, column, values, lines = [], [], [], [], []
    for line, row in read_table(path, required, optional):
        times.append(number_in(row["t"], path, line, "t"))
        if spec.sensors and row["sensor"] not in places:
            raise InputError(f"{path}, line {line}: {spec.sensors} has no sensor '{row['sensor']}'")
        where.append(places[row["sensor"]] if spec.sensors else tuple(number_in(row[a], path, line, a) for a in axes))
        name = row.get("field", frame.fields[0])
        if name not in frame.fields:
            raise InputError(f"{path}, line {line}: there is no field '{name}' (the fields are {', '.join(frame.fields)})")
        column.append(frame.fields.index(name))
        values.append(number_in(row["value"], path, line, "value"))
        lines.append(line)
    if not values:
        raise InputError(f"{path} has no rows below its header")
    when, row_time = np.unique(np.array(times), return_inverse=True)
    points, row_point = np.unique(np.array(where), axis=0, return_inverse=True)
    row_point = row_point.ravel()
    state = np.full((len(when), len(points), len(frame.fields)), np.nan)
    place = (row_time, row_point, np.array(column))
    count = np.zeros(state.shape, dtype=int)
    np.add.at(count, place, 1)
    if (count > 1).any():
        k = int(np.flatnonzero(count[place] > 1)[-1])
        raise InputError(f"{path}, line {lines[k]}: a second value for the same sensor, time and field")
    state[place] = values
    if (count == 0).any():
        k, m, f = np.argwhere(count == 0)[0]
        raise InputError(f"{path}: the sensor at {points[m].tolist()} has no value of '{frame.fields[f]}' at t = {when[k]:g}")
    yield Found(path.name, state, when, points)


READERS: dict[str, Callable[[Path, SeriesSpec, Frame], Iterator[Found]]] = {
    ".h5": _hdf5, ".hdf5": _hdf5, ".npz": _npz, ".pvd": _pvd, ".vtu": _vtu, ".xdmf": _xdmf, ".csv": _sensors,
}


# ---------------------------------------------------------------------- onto the nodes and steps of the problem


def settled(found: Found, spec: SeriesSpec, frame: Frame, where: str) -> tuple[Found, Note]:
    """The same trajectory at the nodes, in steps of dt from t = 0."""
    found, resampling = _in_steps(found, spec, frame.dt, where)
    if len(found.state) < 2:
        raise InputError(f"{where}: a trajectory needs at least two stored times")
    if frame.flow and found.velocity is None:
        raise InputError(f"{where} has no velocity, but pde.velocity says that it comes with the data")
    if found.points is None:
        if found.state.shape[1] != frame.mesh.n_nodes:
            raise InputError(f"{where} has {found.state.shape[1]} nodes and no points, but the mesh has {frame.mesh.n_nodes} nodes")
        way: Transfer = IDENTITY
    else:
        if found.state.shape[1] != len(found.points):
            raise InputError(f"{where} has {found.state.shape[1]} values for {len(found.points)} points")
        way = transfer(frame.mesh, found.points, found.cells, where)
    cost = 0.0
    if not way.exact and found.points is not None:
        cost = error_of(way, frame.mesh, found.points, found.cells, found.state, np.array(frame.offset))
    moved = replace(found.mapped(way), points=None, cells=None)
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
    cost = 0.0
    if len(time) > 2:  # every second time left out and interpolated from its neighbours: four times the true error, roughly
        inner = slice(1, -1, 2)
        guess = _between(np.delete(time, np.arange(len(time))[inner]), np.delete(found.state, np.arange(len(time))[inner], 0),
                         time[inner])
        size = np.linalg.norm(found.state[inner] - found.state.mean((0, 1)))
        cost = float(np.linalg.norm(guess - found.state[inner]) / size / 4) if size > 0 else 0.0
    return new, cost


def _between(time: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Linear in time."""
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
    x = torch.tensor(frame.mesh.points, dtype=torch.float64)
    times = frame.dt * torch.arange(steps + 1, dtype=torch.float64)
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
            table = SpotTable.read(frame.folder / source.table, frame.mesh.dim)
            steps_of = table.average(x, 0, steps, frame.dt)
        except InputError as error:
            raise InputError(f"{where}.source: {error}") from error
        samples, average = np.zeros((steps + 1, len(x), width)), np.zeros((steps, len(x), width))
        samples[..., column] = table(x, times)[0, :, :, 0].numpy()
        average[..., column] = steps_of[0, :, :, 0].numpy()
        travel, radius = spot_motion(table, steps, frame.dt)
        note = replace(note, source="spots", travel=travel, narrow=radius / frame.mesh.spacing,
                       missed=table.missed(frame.mesh.points))
    else:
        function = physics.of_space_time(source.function, where, trailing=() if column is not None else (width,))
        own = OwnSource(function, width, column)
        samples = own(x, times)[0].numpy()
        found_average, rough = converged_average(own, x, times[:-1], frame.dt)
        average = found_average[0].numpy()
        note = replace(note, source="function", rough=rough)
    if not (np.isfinite(samples).all() and np.isfinite(average).all()):
        raise InputError(f"{where}: the source of {found.label} is not finite everywhere")
    return replace(found, source=samples, source_average=average), note


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
    try:
        loaded = np.load(plain(path), allow_pickle=False)
        arrays = {key: loaded[key] for key in loaded.files} if path.suffix.lower() == ".npz" else {"source_average": loaded}
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except _BROKEN as error:
        raise InputError(f"{path} is damaged or not what its name says ({type(error).__name__})") from error
    key = next((k for k in ("source_average", "source") if k in arrays), None)
    if key is None:
        raise InputError(f"{path} holds neither 'source' nor 'source_average' (it holds: {', '.join(arrays) or 'nothing'})")
    value = arrays[key]
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        raise InputError(f"{path}: '{key}' must hold numbers")
    value = value[..., None] if value.ndim == 2 and width == 1 else value
    if value.ndim != 3 or value.shape[2] != width or len(value) < (1 if key == "source_average" else 2):
        raise InputError(f"{path}: '{key}' has shape {list(arrays[key].shape)}, expected [time, node, {width}]")
    value = value.astype(np.float64)
    if not np.isfinite(value).all():
        raise InputError(f"{path}: '{key}' is not finite at index {np.argwhere(~np.isfinite(value))[0].tolist()}")
    if key == "source":
        found = Found(path.name, value, arrays.get("time"), arrays.get("points"), arrays.get("cells"))
        samples = settled(found, SeriesSpec(path.name, resample=True), replace(frame, flow=False), str(path))[0].state
        return 0.5 * (samples[1:] + samples[:-1])
    points = arrays.get("points")
    if points is None and value.shape[1] != frame.mesh.n_nodes:
        raise InputError(f"{path} has {value.shape[1]} nodes and no points, but the mesh has {frame.mesh.n_nodes} nodes")
    if points is not None and len(points) != value.shape[1]:
        raise InputError(f"{path} has {value.shape[1]} values for {len(points)} points")
    return value if points is None else transfer(frame.mesh, points, arrays.get("cells"), str(path))(value)


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
    trajectories, notes, count = [], [], {"train": 0, "test": 0}
    for f, note in found:
        if len(f.state) - 1 > steps:
            note = replace(note, how=f"{note.how}, the first {steps} of {len(f.state) - 1} steps")
        source, average = f.source, f.source_average
        if moving and average is None:
            source, average = np.zeros((steps + 1, *f.state.shape[1:])), np.zeros((steps, *f.state.shape[1:]))
        with np.errstate(over="ignore"):  # said below
            trajectories.append(Trajectory(
                f.state[:steps + 1].astype(np.float32), frame.dt * np.arange(steps + 1),
                None if source is None else source[:steps + 1].astype(np.float32),
                None if average is None else average[:steps].astype(np.float32),
                None if f.velocity is None or not frame.flow else f.velocity[:steps + 1].astype(np.float32),
                split=note.split, index=count[note.split], labels=(note.label,)))
        for name in ("state", "source_average", "velocity"):
            value = getattr(trajectories[-1], name)
            if value is not None and not np.isfinite(value).all():
                raise InputError(f"{note.label}: its {name.replace('_', ' ')} is not finite in single precision")
        notes.append(note)
        count[note.split] += 1
    return trajectories, notes


def notes_text(notes: Sequence[Note]) -> str:
    return json.dumps([vars(n) for n in notes])


def notes_from(text: str) -> tuple[Note, ...]:
    return tuple(Note(**n) for n in json.loads(text))
