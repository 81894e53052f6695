"""Readers of trajectories from files of other programs: HDF5, .npz, series for ParaView, tables of sensors.

Each returns what its file holds (`Found`); `importers` makes trajectories of the problem from it. Anything unreadable is an
InputError with the file's name.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from dgnet.arguments import array
from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.files import DAMAGED, arrays_of, csv_number, read_csv
from dgnet.mesh import Mesh
from dgnet.projects.named_files import parts_of
from dgnet.projects.toml import SeriesSpec

BROKEN = (*DAMAGED, OverflowError, MemoryError)
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
    source_middles: np.ndarray | None = None  # [T - 1, E, F], at the middles of the mesh's edges
    state_error: np.ndarray | None = None  # [T, M, F], about what interpolation misses of the state

    def mapped(self, change: Callable[[np.ndarray], np.ndarray]) -> Found:
        """The same with every array of values [T, M, ...] changed."""
        def of(value: np.ndarray | None) -> np.ndarray | None:
            return None if value is None else change(value)

        return replace(self, state=change(self.state), source=of(self.source), source_average=of(self.source_average),
                       velocity=of(self.velocity), state_error=of(self.state_error))


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
    except BROKEN as error:
        raise InputError(f"{path} is damaged or not what its name says") from error


# ---------------------------------------------------------------------- readers


def _hdf5(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    with Dataset(path) as data:
        order = _columns(data.fields, frame.fields, path)
        points, cells = data.mesh.points, data.mesh.cells
        for number in range(len(data)):
            t = data.read(number)
            pick = [None if v is None else v[..., order].astype(np.float64)
                    for v in (t.state, t.source, t.source_average, t.state_error)]
            assert pick[0] is not None
            yield Found(f"{path.name} {number}", pick[0], t.time, points, cells, pick[1], pick[2],
                        None if t.velocity is None else t.velocity.astype(np.float64), t.split, state_error=pick[3])


def _columns(found: Sequence[str], fields: Sequence[str], path: Path) -> list[int]:
    missing = [f for f in fields if f not in found]
    if missing:
        raise InputError(f"{path} has no field '{missing[0]}' (it has: {', '.join(found)})")
    return [list(found).index(f) for f in fields]


NPZ_KEYS = ("state", "time", "points", "cells", "source", "source_average", "velocity")


def numbers_of(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, in double precision and finite; `cells` as they are."""
    with arrays_of(path) as archive:
        return {key: checked_numbers(archive[key], key, path) for key in archive.files}


def checked_numbers(value: Any, key: str, path: Path) -> np.ndarray:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
        raise InputError(f"{path}: the array '{key}' holds {getattr(value, 'dtype', type(value).__name__)}, not numbers")
    found = value if key == "cells" else value.astype(np.float64)
    if not np.isfinite(found).all():
        raise InputError(f"{path}: the array '{key}' is not finite at index {np.argwhere(~np.isfinite(found))[0].tolist()}")
    return found


def _npz(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    arrays = numbers_of(path)
    for key in arrays:
        if key not in NPZ_KEYS and key not in frame.fields:
            raise InputError(f"{path} holds the unknown array '{key}' (known: {', '.join([*NPZ_KEYS, *frame.fields])})")
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
            columns.setdefault(name, []).append(array(value, f"{path}: point data '{name}'").astype(np.float64))

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
        for name in parts_of(path):
            if not (path.parent / name).is_file():
                raise InputError(f"{path} keeps its numbers in {name}, which is not beside it: copy both files together") from error
        raise InputError(f"{path} is truncated or not a time series that meshio can read") from error
    yield _frames(path, frame, frames)


def _sensors(path: Path, spec: SeriesSpec, frame: Frame) -> Iterator[Found]:
    """A table t, x, y[, z] or sensor, value[, field]; every sensor needs a value at every time."""
    axes = ["x", "y", "z"][:frame.mesh.dim]
    places: dict[str, tuple[float, ...]] = {}
    if spec.sensors:
        table = frame.folder / spec.sensors
        for line, row in read_csv(table, ["sensor", *axes], []):
            if row["sensor"] in places:
                raise InputError(f"{table}, line {line}: sensor '{row['sensor']}' is listed twice")
            places[row["sensor"]] = tuple(csv_number(row[a], table, line, a) for a in axes)
        required, optional = ["t", "sensor", "value"], ["field"]
    else:
        required, optional = ["t", *axes, "value"], ["sensor", "field"]
    if len(frame.fields) > 1:
        required, optional = [*required, "field"], [k for k in optional if k != "field"]
    times, where, column, values, lines = [], [], [], [], []
    for line, row in read_csv(path, required, optional):
        times.append(csv_number(row["t"], path, line, "t"))
        if spec.sensors and row["sensor"] not in places:
            raise InputError(f"{path}, line {line}: {spec.sensors} has no sensor '{row['sensor']}'")
        where.append(places[row["sensor"]] if spec.sensors else tuple(csv_number(row[a], path, line, a) for a in axes))
        name = row.get("field", frame.fields[0])
        if name not in frame.fields:
            raise InputError(f"{path}, line {line}: there is no field '{name}' (the fields are {', '.join(frame.fields)})")
        column.append(frame.fields.index(name))
        values.append(csv_number(row["value"], path, line, "value"))
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
