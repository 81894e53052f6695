"""Data sets on disk: HDF5, described in docs/data-format.md.

A file appears under its name only when it is whole. Numbers are stored in single precision: rounding (6e-8 relative)
lies three orders below the error of any solver compared with them, and paper-size sets are gigabytes. No time stamps and a
fixed file-format version, so that equal data give equal bytes. Checksums (`digests`) are written along and verified.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import h5py
import numpy as np
import torch

from dgnet.arguments import AnyDevice, Precision, checked
from dgnet.data import digests, typed
from dgnet.data.corpus import Corpus, StoredMiddles
from dgnet.data.trajectory import SPLITS, Trajectory
from dgnet.errors import InputError
from dgnet.files import writing_hdf5
from dgnet.mesh import Mesh
from dgnet.problems import WORKING

FORMAT = "dgnet-trajectories"
VERSION = 1
LIBVER = ("earliest", "v110")
CHUNK = 1 << 20  # bytes of a chunk: a few steps of all nodes, what a training window reads
MIDDLES = "source_middles"
_TIMED = {"state": 1, "source": 1, "source_average": 0, "velocity": 1, "state_error": 1}  # rows beyond the number of steps

Scalar = str | int | float


@dataclass(frozen=True, eq=False)
class Header:
    """What all trajectories of a file share."""

    mesh: Mesh
    fields: tuple[str, ...]
    dt: float
    steps: int
    offset: tuple[float, ...] = ()  # per field: subtracted before a relative error (an ambient temperature)
    provenance: Mapping[str, Scalar] = field(default_factory=dict)
    velocity: np.ndarray | None = None  # [R, N, d], a record in steps of dt that trajectories take stretches of


# ---------------------------------------------------------------------- writing


def write_dataset(path: Path, header: Header, trajectories: Iterable[Trajectory]) -> None:
    """Write a whole data set; `path` appears when it is complete."""
    with writing_hdf5(path, LIBVER) as file:
        group = write_header(file, header)
        for number, trajectory in enumerate(trajectories):
            _write_trajectory(group.create_group(f"{number:05d}"), trajectory)
        group.attrs[digests.SUM] = digests.contents_sum(group)


def write_part(path: Path, trajectory: Trajectory) -> None:
    """Write one finished trajectory on its own, to be assembled later."""
    with writing_hdf5(path, LIBVER) as file:
        _write_trajectory(file.create_group("trajectory"), trajectory)


def assemble(path: Path, header: Header, parts: Sequence[Path]) -> None:
    """Join parts into a data set, in the order given. The parts stay."""
    with writing_hdf5(path, LIBVER) as file:
        group = write_header(file, header)
        for number, part in enumerate(parts):
            with _opened(part) as source:
                source.copy("trajectory", group, name=f"{number:05d}")
        group.attrs[digests.SUM] = digests.contents_sum(group)


def write_header(file: h5py.File, header: Header) -> h5py.Group:
    file.attrs["format"] = FORMAT
    file.attrs["version"] = VERSION
    file.attrs["fields"] = list(header.fields)
    file.attrs["dt"] = header.dt
    file.attrs["steps"] = header.steps
    file.attrs["offset"] = np.array(header.offset or (0.0,) * len(header.fields), dtype=np.float64)
    origin = file.create_group("provenance")
    for name, value in sorted(header.provenance.items()):
        origin.attrs[name] = value
    mesh = file.create_group("mesh")
    put_array(mesh, "points", header.mesh.points)
    put_array(mesh, "cells", header.mesh.cells)
    for kind in ("boundaries", "regions"):
        group = mesh.create_group(kind)
        for name, rows in getattr(header.mesh, kind).items():
            put_array(group, _escaped(name), rows)
    if header.velocity is not None:
        _put_chunked(file, "velocity", header.velocity)
    file.attrs[digests.SUM] = digests.header_sum(file)
    return file.create_group("trajectories")


def _escaped(name: str) -> str:
    """The name of a boundary or region as HDF5 can hold it: a stroke would make groups of it."""
    return "%2E" * len(name) if name in (".", "..") else name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")


def _write_trajectory(group: h5py.Group, trajectory: Trajectory) -> None:
    group.attrs["seed"] = np.uint64(trajectory.seed)
    group.attrs["split"] = trajectory.split
    group.attrs["index"] = trajectory.index
    group.attrs["labels"] = ",".join(trajectory.labels)
    if trajectory.velocity_start is not None:
        group.attrs["velocity_start"] = trajectory.velocity_start
    put_array(group, "time", np.asarray(trajectory.time, dtype=np.float64))
    for name in _TIMED:
        value = getattr(trajectory, name)
        if value is not None:
            _put_chunked(group, name, value)
    if trajectory.source_middles is not None:
        _put_chunked(group, MIDDLES, trajectory.source_middles)
    group.attrs[digests.SUM] = digests.trajectory_sum(group)


def put_array(group: h5py.Group, name: str, value: np.ndarray) -> None:
    group.create_dataset(name, data=value, track_times=False)


def _put_chunked(group: h5py.Group, name: str, value: np.ndarray) -> None:
    """Store [T, N, F] in chunks of whole time rows; rows that are all zero (a source that is off) take no space."""
    rows = max(1, min(len(value), CHUNK // max(1, value[0].size * 4)))
    data = group.create_dataset(name, shape=value.shape, dtype="f4", chunks=(rows, *value.shape[1:]), track_times=False,
                                fillvalue=0.0)
    rows, sums = digests.block_rows(len(value), rows), []
    for start in range(0, len(value), rows):
        block = np.asarray(value[start:start + rows], dtype=np.float32)
        sums.append(digests.crc(block))
        if block.any():
            data[start:start + rows] = block
    digests.mark(data, sums, rows)


# ---------------------------------------------------------------------- reading


@checked
class Dataset:
    """A data set opened for reading; arrays stay on disk until asked for (`read`, `batch`). Use it in a `with`.

    - `path`: the HDF5 file, as `dgnet-paper generate`, an import or `project` wrote it (docs/data-format.md)

    Opening checks everything but the numbers themselves; every read checks that those are finite and, where the file has
    checksums, that they are what was written.

        >>> import dgnet as dg, numpy as np
        >>> mesh = dg.box((2, 2))
        >>> runs = [dg.trajectory(np.ones((4, 9)), mesh, dt=0.1)]  # states [time, node]
        >>> own = dg.project("still", mesh, dg.PDE(diffusion=0.1), [], 0.1, runs, "still.h5")
        >>> with dg.Dataset("still.h5") as data:
        ...     data.fields, data.steps, data.of("train"), data.read(0).state.shape
        (('u',), 3, [0], (4, 9, 1))
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = _opened(self.path)
        self._sound: set[tuple[str, int]] = set()  # blocks that were verified
        try:
            with self._readable():
                self._check()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._keys)

    # ------------------------------------------------------------------ what the file says

    @cached_property
    def mesh(self) -> Mesh:
        group, where = self._file["mesh"], self.path.name
        named: dict[str, dict[str, np.ndarray]] = {"boundaries": {}, "regions": {}}
        for kind, found in named.items():
            inner = typed.group(group, kind, f"{where}: mesh") if kind in group else {}
            found |= {unquote(name): typed.array(inner, name, f"{where}: mesh/{kind}", "iu")[()] for name in inner}
        try:
            return Mesh(group["points"][()], group["cells"][()], named["boundaries"], named["regions"])
        except InputError as error:
            raise InputError(f"{where}: {error}") from error

    @cached_property
    def provenance(self) -> dict[str, Scalar]:
        found = self._file["provenance"].attrs if "provenance" in self._file else {}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in found.items()}

    @cached_property
    def _keys(self) -> list[str]:
        return sorted(self._file["trajectories"])

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The split of every trajectory."""
        return tuple(str(self._group(i).attrs["split"]) for i in range(len(self)))

    @checked
    def of(self, split: str) -> list[int]:
        """Numbers of the trajectories of a split."""
        if split not in SPLITS:
            raise InputError(f"unknown split '{split}' (known: {', '.join(SPLITS)})")
        return [i for i, name in enumerate(self.splits) if name == split]

    @checked
    def labels(self, number: int) -> tuple[str, ...]:
        text = str(self._group(number).attrs.get("labels", ""))
        return tuple(text.split(",")) if text else ()

    @checked
    def origin(self, number: int) -> tuple[str, int, int]:
        """Split, number within it, and seed of a trajectory."""
        attrs = self._group(number).attrs
        return str(attrs["split"]), int(attrs.get("index", number)), int(attrs["seed"])

    @cached_property
    def has_source(self) -> bool:
        """Whether any trajectory has a source; those without one then have a source of zeros."""
        return any("source_average" in self._group(i) for i in range(len(self)))

    @cached_property
    def has_velocity(self) -> bool:
        return self._moving(self._group(0))

    @staticmethod
    def _moving(group: h5py.Group) -> bool:
        return "velocity" in group or "velocity_start" in group.attrs

    def identity(self, numbers: Sequence[int] | None = None) -> str:
        """SHA-256 of what these trajectories (all by default) are: mesh, fields, times, numbers; not where they come from."""
        found = hashlib.sha256(repr((self.fields, self.dt, self.steps, self.offset)).encode())
        found.update(digests.mesh_sum(self._file["mesh"]).to_bytes(4, "little"))
        for number in range(len(self)) if numbers is None else numbers:
            group = self._group(number)
            found.update(digests.trajectory_sum(group).to_bytes(4, "little"))
            if "velocity_start" in group.attrs:
                found.update(digests.array_sum(self._file["velocity"]).to_bytes(4, "little"))
        return found.hexdigest()

    # ------------------------------------------------------------------ what is in it

    @checked
    def read(self, number: int, start: int = 0, steps: int | None = None,
             only: Sequence[str] | None = None) -> Trajectory:
        """Trajectory `number` from stored time `start` over `steps` steps (to its end by default).

        `only` names what to read besides state and time (source, source_average, velocity, state_error); all of it by default.
        """
        steps = self.steps - start if steps is None else steps
        if start < 0 or steps < 1 or start + steps > self.steps:
            raise InputError(f"a window of {steps} steps from {start} does not fit the {self.steps} steps "
                             f"of {self.path.name}")
        group = self._group(number)
        wanted = set(_TIMED) if only is None else {"state", *only}
        found: dict[str, Any] = {}
        with self._readable():
            self._verify_trajectory(number)
            for name, extra in _TIMED.items():
                if name in wanted and name in group:
                    found[name] = self._rows(group[name], start, start + steps + extra, number, name, start)
                elif name in wanted and name.startswith("source") and self.has_source:
                    found[name] = np.zeros((steps + extra, *group["state"].shape[1:]), dtype=np.float32)
            if "velocity" in wanted and "velocity_start" in group.attrs and "velocity" not in found:
                first = int(group.attrs["velocity_start"]) + start
                found["velocity"] = self._rows(self._file["velocity"], first, first + steps + 1, number, "velocity", start)
            split, index, seed = self.origin(number)
            return Trajectory(**found, time=group["time"][start:start + steps + 1], seed=seed, split=split, index=index,
                              labels=self.labels(number))

    def raw_states(self, number: int) -> np.ndarray:
        """States [T+1, N, F] as they are stored: predictions may hold what is not finite, and `read` refuses that."""
        with self._readable():
            return self._group(number)["state"][()]

    @checked
    def times(self, number: int) -> np.ndarray:
        """Stored times [T+1] of a trajectory."""
        with self._readable():
            return self._group(number)["time"][()]

    @checked
    def batch(self, numbers: Sequence[int], start: int | Sequence[int] = 0, steps: int | None = None,
              device: AnyDevice = "cpu", dtype: Precision = WORKING, ends: bool = False) -> Corpus:
        """Pieces of several trajectories as tensors [B, T, N, F]; `start` may differ between them. `ends`: see `Corpus.ends`."""
        starts = [start] * len(numbers) if isinstance(start, int) else list(start)
        if not numbers:
            raise InputError("a batch needs the number of a trajectory at least")
        if len(starts) != len(numbers):
            raise InputError(f"{len(starts)} starts were given for {len(numbers)} trajectories")
        wanted = ("source_average", "velocity", "state_error", *(("source",) if ends else ()))
        parts = [self.read(n, s, steps, wanted) for n, s in zip(numbers, starts)]
        return Corpus.of(parts, self.dt, self.offset, device, dtype)

    def middles(self, numbers: Sequence[int], device: torch.device | str = "cpu",
                dtype: torch.dtype = WORKING) -> StoredMiddles | None:
        """Step averages of the source at the middles of the mesh's edges; None where one of these trajectories lacks them."""
        groups = [self._group(n) for n in numbers]
        if not any(MIDDLES in g for g in groups) or any("source_average" in g and MIDDLES not in g for g in groups):
            return None
        shape, found = (self.steps, len(self.mesh.edges), len(self.fields)), []
        with self._readable():
            for number, group in zip(numbers, groups):
                if MIDDLES in group and typed.array(group, MIDDLES, f"{self.path.name}: trajectory {number}").shape != shape:
                    raise InputError(f"{self.path.name}: trajectory {number}: {MIDDLES} has shape {list(group[MIDDLES].shape)}, "
                                     f"expected {list(shape)}")
                found.append(self._rows(group[MIDDLES], 0, self.steps, number, MIDDLES, 0) if MIDDLES in group
                             else np.zeros(shape, dtype=np.float32))
        return StoredMiddles(torch.from_numpy(np.stack(found)).to(device, dtype))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every field [F] over the training trajectories; 1 for one that never varies."""
        count, mean, square = 0, np.zeros(1), np.zeros(1)
        for number in self.of("train"):
            values = self.read(number, only=()).state.astype(np.float64).reshape(-1, len(self.fields))
            n, centre = len(values), values.mean(axis=0)
            delta, total = centre - mean, count + n
            square = square + ((values - centre) ** 2).sum(axis=0) + delta**2 * (count * n / total)
            mean, count = mean + delta * (n / total), total
        spread = np.sqrt(square / max(count, 1))
        return mean, np.where(spread > 1e-12 * np.maximum(1e-30, np.abs(mean)), spread, 1.0)

    def check_numbers(self) -> None:
        """Read everything once; raises at the first number that is not finite."""
        for number in range(len(self)):
            self.read(number)

    # ------------------------------------------------------------------ checks

    def _group(self, number: int) -> h5py.Group:
        if not 0 <= number < len(self._keys):
            raise InputError(f"{self.path.name} has {len(self._keys)} trajectories, there is no number {number}")
        return self._file["trajectories"][self._keys[number]]

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """What HDF5 says of a damaged file, in one sentence."""
        try:
            yield
        except InputError:
            raise
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, OverflowError, MemoryError) as error:
            raise InputError(f"{self.path.name} is damaged and cannot be read") from error

    def _rows(self, data: h5py.Dataset, start: int, stop: int, number: int, name: str, step: int) -> np.ndarray:
        """Rows start .. stop-1, finite; blocks that are touched for the first time are verified."""
        sums, rows = data.attrs.get(digests.SUM), int(data.attrs.get(digests.ROWS, 1))
        blocks = range(start // rows, -(-stop // rows))
        new = [] if sums is None or not digests.verifying() else [b for b in blocks if (data.name, b) not in self._sound]
        if new:
            first = new[0] * rows
            whole = data[min(start, first):max(stop, min((new[-1] + 1) * rows, len(data)))]
            value = whole[start - min(start, first):][:stop - start]
        else:
            value = data[start:stop]
        if not np.isfinite(value).all():
            row, node = np.argwhere(~np.isfinite(value))[0][:2]
            raise InputError(f"{self.path.name}: {name} of trajectory {number} is not a finite number at "
                             f"step {step + row}, node {node}")
        for b in new:
            at = b * rows - min(start, first)
            if b >= len(sums) or digests.crc(whole[at:at + rows]) != sums[b]:
                raise self._changed(f"{name} of trajectory {number}, rows {b * rows} to {min((b + 1) * rows, len(data)) - 1}")
            self._sound.add((data.name, b))
        return value

    def _verify_trajectory(self, number: int) -> None:
        group = self._group(number)
        if digests.verifying() and (group.name, -1) not in self._sound and digests.SUM in group.attrs:
            if digests.trajectory_sum(group) != int(group.attrs[digests.SUM]):
                raise self._changed(f"trajectory {number}")
            self._sound.add((group.name, -1))

    def _changed(self, what: str) -> InputError:
        return InputError(f"{self.path.name} is damaged: {what} is not what was written (its checksum differs); copy or make it "
                          "again")

    def _check(self) -> None:
        file, name = self._file, self.path.name
        if file.attrs.get("format") != FORMAT:
            raise InputError(f"{name} is an HDF5 file, but not a dgnet data set (its attribute 'format' is not "
                             f"'{FORMAT}')")
        version = typed.whole(file, "version", name)
        if version != VERSION:
            raise InputError(f"{name} has data format version {version}, this program reads version {VERSION}")
        self.fields = typed.names(file, "fields", name)
        self.dt, self.steps = typed.positive(file, "dt", name), typed.whole(file, "steps", name, least=1)
        count = len(self.fields)
        self.offset = typed.numbers(file, "offset", name, count) if "offset" in file.attrs else (0.0,) * count
        points = typed.array(file, "mesh/points", name).shape
        typed.array(file, "mesh/cells", name, "iu")
        typed.group(file, "trajectories", name)
        if len(points) != 2 or points[1] not in (2, 3):
            raise InputError(f"{name}: mesh/points has shape {list(points)}, expected [N, 2] or [N, 3]")
        if not self._keys:
            raise InputError(f"{name} holds no trajectory")
        record = self._check_record(points)
        for number in range(len(self)):
            self._check_trajectory(number, points, record)
        group = file["trajectories"]
        if digests.verifying():
            if digests.SUM in file.attrs and digests.header_sum(file) != int(file.attrs[digests.SUM]):
                raise self._changed("the mesh or what describes the data")
            if digests.SUM in group.attrs and digests.contents_sum(group) != int(group.attrs[digests.SUM]):
                raise self._changed("the list of trajectories")

    def _check_record(self, points: tuple[int, ...]) -> int:
        if "velocity" not in self._file:
            return 0
        shape = typed.array(self._file, "velocity", self.path.name).shape
        if len(shape) != 3 or shape[1:] != points:
            raise InputError(f"{self.path.name}: velocity has shape {list(shape)}, expected "
                             f"[rows, {points[0]}, {points[1]}]")
        return int(shape[0])

    def _check_trajectory(self, number: int, points: tuple[int, ...], record: int) -> None:
        where = f"{self.path.name}: trajectory {number}"
        group = typed.group(self._file["trajectories"], self._keys[number], self.path.name)
        for key in ("state", "time", *(k for k in _TIMED if k in group)):
            typed.array(group, key, where)
        for key in ("seed", "index", "velocity_start"):
            if key == "seed" or key in group.attrs:
                typed.whole(group, key, where)
        split = typed.text(group, "split", where)
        if split not in SPLITS:
            raise InputError(f"{where} belongs to the unknown split '{split}'")
        if ("source" in group) != ("source_average" in group):
            raise InputError(f"{where} has only one of 'source' and 'source_average'")
        shapes = {name: (self.steps + extra, points[0], points[1] if name == "velocity" else len(self.fields))
                  for name, extra in _TIMED.items()}
        shapes["time"] = (self.steps + 1,)  # type: ignore[assignment]
        for key, shape in shapes.items():
            if key in group and group[key].shape != shape:
                raise InputError(f"{where}: {key} has shape {list(group[key].shape)}, expected {list(shape)}")
        time = group["time"][()]
        if not np.isfinite(time).all() or np.abs(np.diff(time) - self.dt).max() > 1e-3 * self.dt:
            raise InputError(f"{where}: its times are not steps of {self.dt:g}")
        if self._moving(group) != self.has_velocity:
            raise InputError(f"{where} has {'a' if self._moving(group) else 'no'} velocity, trajectory 0 has "
                             f"{'one' if self.has_velocity else 'none'}: all trajectories of a file have one, or none of them")
        first = group.attrs.get("velocity_start")
        if first is not None and not 0 <= first <= record - self.steps - 1:
            raise InputError(f"{where} takes its velocity from row {first}, but the file's record has {record} rows")


def _opened(path: Path) -> h5py.File:
    """The file, or one sentence about why it cannot be read."""
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a data set")
    if not h5py.is_hdf5(path):
        raise InputError(f"{path.name} is not an HDF5 file")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if "truncated" in str(error):
            raise InputError(f"{path.name} is truncated: its end is missing; generate or copy it again") from error
        raise InputError(f"{path.name} is damaged and cannot be opened") from error
