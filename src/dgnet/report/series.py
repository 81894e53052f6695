"""Where the states of a rollout go: a store on disk that survives a kill, and the files for other programs made from it.

The store is a data set of one trajectory (docs/data-format.md). Its HDF5 structure is written once, with the space of all states
reserved in one piece; states are then put into that space with plain writes, so that the file is whole in structure at every moment
and a process that dies cannot damage it. `NAME.resume` beside it holds the last state and all that is needed to go on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import h5py
import numpy as np

from dgnet.data import CHUNK, LIBVER, Header, digests, put_array, write_header
from dgnet.errors import InputError
from dgnet.files import (
    DAMAGED,
    discard,
    locked,
    read_arrays,
    unfinished,
    unwritable,
    write_arrays,
    write_at,
    write_text,
    writing,
    writing_hdf5,
)
from dgnet.mesh import Mesh, save
from dgnet.report.figures import Band, grid
from dgnet.report.pictures import Film, scale_of

PAUSE = 1.0
"""Seconds between checkpoints of a rollout."""

Frame = tuple[int, np.ndarray]
"""Step and state [N, F]."""


class Store:
    """States 0, K, 2K, ... of a rollout in PATH.part, which becomes PATH when the rollout is over.

    `resumed` is what an interrupted rollout with the same `request` left: the arrays given to `checkpoint`, and how many `rows`.
    """

    def __init__(self, path: Path, header: Header, label: str, every: int, request: dict[str, Any]) -> None:
        self.path, self.every, self.steps = path, every, header.steps * every
        self.part, self.note = path.with_name(path.name + ".part"), path.with_name(path.name + ".resume")
        self.shape = (header.steps + 1, header.mesh.n_nodes, len(header.fields))
        self.rows = max(1, min(self.shape[0], CHUNK // (4 * self.shape[1] * self.shape[2])))
        self.held = np.empty((self.rows, *self.shape[1:]), dtype="<f4")
        self.first = self.count = 0  # row of the file that held[0] is, and how many are held
        self.request = json.dumps(request, sort_keys=True)
        self.open = ExitStack()
        with ExitStack() as stack:
            stack.enter_context(locked(path))
            self.resumed = self._left()
            if self.resumed is None:
                self.note.unlink(missing_ok=True)
                self._create(header, label)
            else:
                self.first = int(self.resumed["rows"])
            with h5py.File(self.part, "r") as file:
                self.offset = int(file["trajectories/00000/state"].id.get_offset())
            self.file: Any = stack.enter_context(self.part.open("r+b", buffering=0))
            self.open = stack.pop_all()
        self.last = time.monotonic()

    def _create(self, header: Header, label: str) -> None:
        with writing_hdf5(self.part, LIBVER) as file:
            group = write_header(file, header).create_group("00000")
            group.attrs.update({"seed": np.uint64(0), "split": "test", "index": 0, "labels": label})
            put_array(group, "time", header.dt * np.arange(self.shape[0], dtype=np.float64))
            plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plan.set_layout(h5py.h5d.CONTIGUOUS)
            plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            plan.set_obj_track_times(False)
            h5py.h5d.create(group.id, b"state", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple(self.shape), plan)
            rows = digests.block_rows(self.shape[0], self.rows)
            digests.mark(group["state"], [0] * -(-self.shape[0] // rows), rows)  # space for sums, which `publish` fills in
            group.attrs[digests.SUM] = file["trajectories"].attrs[digests.SUM] = np.uint32(0)

    def _seal(self) -> None:
        """Checksums of what was written, in the space that is there for them."""
        with h5py.File(self.part, "r+") as file:
            group = file["trajectories/00000"]
            digests.mark_whole(group["state"])
            group.attrs.modify(digests.SUM, np.uint32(digests.trajectory_sum(group)))
            group.parent.attrs.modify(digests.SUM, np.uint32(digests.contents_sum(group.parent)))

    def _left(self) -> dict[str, np.ndarray] | None:
        """What is not whole, or of another rollout, is begun anew."""
        try:
            found = read_arrays(self.note, "where a rollout stopped")
            if str(found["request"]) != self.request:
                return None
            with h5py.File(self.part, "r") as file:
                states = file["trajectories/00000/state"]
                whole = states.shape == self.shape and states.id.get_offset() + self.held[0].nbytes * self.shape[0] <= (
                    self.part.stat().st_size)
            return found if whole and 0 < int(found["rows"]) <= self.shape[0] else None
        except (InputError, *DAMAGED):
            return None

    def add(self, k: int, u: np.ndarray) -> None:
        """Steps come in order."""
        if k % self.every == 0 and k <= self.steps:
            self.held[self.count] = u
            self.count += 1
            if self.count == self.rows:
                self._flush()

    def due(self) -> bool:
        return time.monotonic() - self.last > PAUSE

    def checkpoint(self, arrays: dict[str, np.ndarray]) -> None:
        """All that was added is on disk, then a note with these arrays, from which the rollout may go on."""
        self._flush()
        write_arrays(self.note, {"request": np.array(self.request), "rows": np.array(self.first), **arrays})
        self.last = time.monotonic()

    def _flush(self) -> None:
        if self.count:
            with written(self.path):
                write_at(self.file, self.held[:self.count].tobytes(), self.offset + self.first * self.held[0].nbytes)
            self.first, self.count = self.first + self.count, 0

    def complete(self) -> None:
        """All states are on disk."""
        self._flush()
        self.file.close()

    def frames(self, last: Frame, most: int | None = None) -> Iterator[Frame]:
        """Stored states in order and the last one; with `most`, evenly spread ones of them."""
        steps = [k * self.every for k in range(self.shape[0])]
        steps += [last[0]] if steps[-1] != last[0] else []
        if most is not None and len(steps) > most:
            steps = [steps[i] for i in sorted({round(i) for i in np.linspace(0, len(steps) - 1, most)})]
        with h5py.File(self.part, "r") as file:
            states = file["trajectories/00000/state"]
            for k in steps:
                yield k, last[1] if k == last[0] else states[k // self.every]

    def publish(self) -> None:
        with written(self.path):
            self._seal()
            os.replace(self.part, self.path)
        self.discard()

    def discard(self) -> None:
        for path in (self.part, self.note):
            discard(path)
        self.open.close()

    def leave(self) -> None:
        """For now: the last checkpoint stays, and the same rollout goes on from there."""
        if self.note.exists():
            self.open.close()
        else:
            self.discard()


# ---------------------------------------------------------------------- ParaView


@contextmanager
def written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def paraview(path: Path, mesh: Mesh, fields: Sequence[str], dt: float, frames: Iterator[Frame]) -> None:
    """NAME.pvd and a folder NAME-vtu of NAME-000000.vtu ..."""
    folder = path.with_name(f"{path.stem}-vtu")
    part, entries = unfinished(folder), list[str]()
    with written(path):
        part.mkdir(parents=True)
        try:
            for k, u in frames:
                name = f"{path.stem}-{k:06d}.vtu"
                # meshio writes names as they are, so that what XML forbids has to be escaped before
                save(mesh, part / name, {escape(field, {'"': "&quot;"}): u[:, f] for f, field in enumerate(fields)})
                entries.append(f'  <DataSet timestep="{k * dt:.17g}" file={quoteattr(f"{folder.name}/{name}")}/>')
            for old in folder.glob(f"{path.stem}-*.vtu"):
                old.unlink()
            folder.mkdir(exist_ok=True)
            for file in part.iterdir():
                os.replace(file, folder / file.name)
            lines = ['<?xml version="1.0"?>', '<VTKFile type="Collection" version="0.1">', " <Collection>", *entries,
                     " </Collection>", "</VTKFile>", ""]
            write_text(path, "\n".join(lines))
        finally:
            discard(part)


def xdmf(path: Path, mesh: Mesh, fields: Sequence[str], dt: float, frames: Iterator[Frame]) -> None:
    """One time series: NAME.xdmf (XDMF 3) that points into NAME.xdmf.h5, one array per field and time."""
    heavy = path.with_name(path.name + ".h5")
    N, K, kind = mesh.n_nodes, mesh.n_cells, {2: "Triangle", 3: "Tetrahedron"}[mesh.dim]

    def item(where: str, dims: str, number: str, precision: int) -> str:
        return (f'<DataItem DataType="{number}" Precision="{precision}" Dimensions="{dims}" Format="HDF">'
                f"{escape(heavy.name)}:{where}</DataItem>")

    shape = (f'<Topology TopologyType="{kind}" NumberOfElements="{K}">{item("/cells", f"{K} {mesh.dim + 1}", "Int", 8)}</Topology>'
             f'<Geometry GeometryType="XYZ">{item("/points", f"{N} 3", "Float", 8)}</Geometry>')
    with writing(path) as light, writing_hdf5(heavy, LIBVER) as file, light.open("w", encoding="utf-8") as out:
        put_array(file, "points", np.pad(mesh.points, ((0, 0), (0, 3 - mesh.dim))))
        put_array(file, "cells", mesh.cells.astype(np.int64))
        groups = [file.create_group(f"field{f}") for f in range(len(fields))]
        out.write('<?xml version="1.0"?>\n<Xdmf Version="3.0"><Domain>\n'
                  '<Grid Name="rollout" GridType="Collection" CollectionType="Temporal">\n')
        for k, u in frames:
            out.write(f'<Grid Name="step {k}" GridType="Uniform"><Time Value="{k * dt:.17g}"/>{shape}')
            for f, (group, name) in enumerate(zip(groups, fields)):
                put_array(group, f"{k:06d}", np.ascontiguousarray(u[:, f], dtype=np.float32))
                out.write(f'<Attribute Name={quoteattr(name)} AttributeType="Scalar" Center="Node">'
                          f'{item(f"/field{f}/{k:06d}", str(N), "Float", 4)}</Attribute>')
            out.write("</Grid>\n")
        out.write("</Grid>\n</Domain></Xdmf>\n")


# ---------------------------------------------------------------------- pictures


def movie(path: Path, mesh: Mesh, fields: Sequence[str], dt: float, frames: Sequence[Frame],
          progress: Callable[[int, int], None] | None = None) -> None:
    """GIF or MP4 by the suffix, one panel per field, each on one colour scale."""
    with written(path):
        film = Film(mesh, fields, [scale_of(np.stack([u[:, f] for _, u in frames])) for f in range(len(fields))])
        shots = ((u, f"t = {k * dt:.4g}") for k, u in frames)
        tell = None if progress is None else lambda done: progress(done, len(frames))
        if path.suffix.lower() == ".mp4":
            film.mp4(path, shots, tell)
        else:
            film.gif(path, shots, tell)


def snapshots(path: Path, mesh: Mesh, fields: Sequence[str], dt: float, frames: Sequence[Frame], heading: str) -> None:
    """PNG: a row per field, a column per time."""
    bands = []
    for f, name in enumerate(fields):
        rows = np.stack([u[:, f] for _, u in frames]).astype(float)
        norm, colours = scale_of(rows)
        bands.append(Band([(name, rows)], norm, colours, name))
    with written(path):
        grid(path, mesh, bands, [f"t = {k * dt:.3g}" for k, _ in frames], heading)
