"""`dgnet rollout`: a trained run for a source and a start of one's own, its states streamed to disk.

Sources come as a table of moving Gaussian spots (CSV) or from a stored trajectory. Neither the states nor long sources are held in
memory: states go to HDF5 (docs/data-format.md, one trajectory) and to ParaView files as they are made, and a source that would
not fit is averaged block by block.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from xml.sax.saxutils import quoteattr

import h5py
import numpy as np
import torch

from dgnet import __version__
from dgnet.data import Dataset, Header
from dgnet.data.store import _CHUNK, _atomic, _put, _write_header
from dgnet.errors import InputError, SolveError
from dgnet.evaluation.figures import whole
from dgnet.mesh import Mesh
from dgnet.mesh.io import save
from dgnet.models import few_threads, rollout
from dgnet.problems.spot_table import SpotTable
from dgnet.scenarios.scenario import Scenario, given_velocity
from dgnet.training.run import Run, base_problem

Tensor = torch.Tensor
Report = Callable[[str, int, int], None]

_WHOLE = 1 << 28  # bytes of a source that is handed over in one piece, so that a step can be captured on CUDA
_BLOCK = 1 << 24  # bytes of a source that are averaged or read at once otherwise


# ---------------------------------------------------------------------- sources


class Drive(Protocol):
    """Step-averaged source by the block."""

    def rows(self, start: int, stop: int) -> Tensor:
        """Averages of the steps start .. stop-1 as [1, n, N, F]."""
        ...


@dataclass(frozen=True, eq=False)
class TableDrive:
    """Averages of a table of spots at the nodes of a mesh."""

    table: SpotTable
    x: Tensor  # [N, d], float64
    dt: float

    def rows(self, start: int, stop: int) -> Tensor:
        return self.table.average(self.x, start, stop, self.dt)


@dataclass(frozen=True, eq=False)
class StoredDrive:
    """Averages of a trajectory on disk."""

    data: Dataset
    number: int

    def rows(self, start: int, stop: int) -> Tensor:
        part = self.data.read(self.number, start, stop - start, only=("source_average",)).source_average
        assert part is not None
        return torch.from_numpy(part)[None]


class Driven:
    """A model that fetches its source block by block instead of being handed one; steps come in order."""

    def __init__(self, model: Any, drive: Drive, steps: int, block: int, like: Tensor) -> None:
        self.model, self.drive, self.steps, self.block, self.like = model, drive, steps, block, like
        self.first, self.held = 0, like.new_empty(1, 0, *like.shape[1:])

    @property
    def name(self) -> str:
        return str(self.model.name)

    def prepare(self, problem: Any, batch: int = 1, steps: int = 1000, careful: bool = False) -> Any:
        return self.model.prepare(problem, batch, steps, careful)

    def step(self, state: Any, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        if not self.first <= k < self.first + self.held.shape[1]:
            self.first = k
            self.held = self.drive.rows(k, min(k + self.block, self.steps)).to(self.like)
        return self.model.step(state, u, self.held[:, k - self.first], t, k)

    def capturable(self, state: Any) -> bool:
        return False  # the source changes behind a captured graph's back

    def finish(self, state: Any) -> None:
        self.model.finish(state)


# ---------------------------------------------------------------------- where states go


Sink = Callable[[int, np.ndarray], None]
"""Takes step k and its state [N, F]."""


@contextmanager
def recording(path: Path, header: Header, label: str) -> Iterator[Sink]:
    """An HDF5 data set of one trajectory, filled row by row in chunks; it appears when it is whole."""
    shape = (header.steps + 1, header.mesh.n_nodes, len(header.fields))
    rows = max(1, min(shape[0], _CHUNK // (4 * shape[1] * shape[2])))
    held = np.empty((rows, *shape[1:]), dtype=np.float32)
    with _written(path), _atomic(path) as file:
        group = _write_header(file, header).create_group("00000")
        group.attrs.update({"seed": np.uint64(0), "split": "test", "index": 0, "labels": label})
        _put(group, "time", header.dt * np.arange(shape[0], dtype=np.float64))
        state: h5py.Dataset = group.create_dataset("state", shape=shape, dtype="f4", chunks=held.shape, track_times=False)

        def add(k: int, u: np.ndarray) -> None:
            held[k % rows] = u
            if k % rows == rows - 1 or k == header.steps:
                state[k - k % rows:k + 1] = held[:k % rows + 1]

        yield add


@contextmanager
def paraview(path: Path, mesh: Mesh, fields: tuple[str, ...], dt: float, steps: int, every: int) -> Iterator[Sink]:
    """NAME.pvd and a folder NAME-vtu of NAME-000000.vtu ..., every so many steps and the last one."""
    folder, part = path.with_name(f"{path.stem}-vtu"), path.with_name(f"{path.stem}-vtu.part")
    entries: list[str] = []
    with _written(path):
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            def add(k: int, u: np.ndarray) -> None:
                if k % every == 0 or k == steps:
                    name = f"{path.stem}-{k:06d}.vtu"
                    save(mesh, part / name, {field: u[:, f] for f, field in enumerate(fields)})
                    entries.append(f'  <DataSet timestep="{k * dt:.17g}" file={quoteattr(f"{folder.name}/{name}")}/>')

            yield add
            for old in folder.glob(f"{path.stem}-*.vtu"):
                old.unlink()
            folder.mkdir(exist_ok=True)
            for file in part.iterdir():
                os.replace(file, folder / file.name)
            lines = ['<?xml version="1.0"?>', '<VTKFile type="Collection" version="0.1">', " <Collection>", *entries,
                     " </Collection>", "</VTKFile>", ""]
            whole(path, lambda partial: partial.write_text("\n".join(lines)))
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


# ---------------------------------------------------------------------- the command


def roll_out(folder: Path, *, source: Path | None = None, trajectory: int | None = None, initial: Path | None = None,
             data: Path | None = None, steps: int | None = None, out: Path | None = None, vtk: Path | None = None, every: int = 1,
             device: str = "cpu", report: Report | None = None, sink: Sink | None = None) -> dict[str, Any]:
    """Roll out a run; returns figures for a person and for JSON.

    `trajectory` (its number in the data file) gives start, flow and source; `source` and `initial` replace what they name. Without
    a start, every field begins at the scenario's offset (an ambient temperature, or zero). `sink` also gets every state.
    """
    if source is None and trajectory is None and initial is None:
        raise InputError("a rollout needs --source, --trajectory or --initial")
    for path, suffixes in ((out, (".h5", ".hdf5")), (vtk, (".pvd",))):
        if path is not None and path.suffix.lower() not in suffixes:
            raise InputError(f"{path} must end in {suffixes[0]}")
    if every < 1 or (steps is not None and steps < 1):
        raise InputError("the number of steps must be positive")
    if vtk is not None:
        _needs_meshio()
    run = Run.open(folder, device)
    used = data or Path(run.settings.data)
    if out is not None and out.resolve() == used.resolve():
        raise InputError(f"{out} is the data set of the run; choose another name for --out")
    scenario, mesh, fields = run.scenario, run.scenario.mesh, run.scenario.pde.fields
    if source is not None and len(fields) != 1:
        raise InputError(f"a table of spots drives one field, '{scenario.name}' has {len(fields)}")
    table = None if source is None else SpotTable.read(source, mesh.dim)
    with ExitStack() as stack:
        stored = None
        if trajectory is not None:
            stored = stack.enter_context(Dataset(used))
            _check_stored(stored, scenario)
        elif scenario.flow is not None:
            raise InputError(f"'{scenario.name}' needs a flow: name the trajectory that has it with --trajectory")
        steps = _steps(scenario, stored, trajectory, table, steps)
        problem, u0 = base_problem(scenario, device), _start(scenario, stored, trajectory, initial).to(device)
        if stored is not None and trajectory is not None and stored.has_velocity:
            rows = stored.read(trajectory, 0, steps, only=("velocity",)).velocity
            assert rows is not None
            problem = problem.given(given_velocity(torch.from_numpy(rows)[None].to(u0), scenario.dt))
        drive: Drive | None = None
        if table is not None:
            drive = TableDrive(table, torch.tensor(mesh.points, dtype=torch.float64, device=device), scenario.dt)
        elif stored is not None and trajectory is not None and stored.has_source:
            drive = StoredDrive(stored, trajectory)
        compared = stored if table is None and initial is None else None

        origin: dict[str, str | int | float] = {
            "package": "dgnet", "package_version": __version__, "scenario": scenario.name, "size": scenario.size,
            "model": run.settings.model,
            "run": str(folder), "truth": "prediction", "source": str(source or ("none" if drive is None else "stored")),
            "trajectory": -1 if trajectory is None else trajectory, "device": torch.device(device).type}
        header = Header(mesh, fields, scenario.dt, steps, scenario.offsets, origin)
        watch = Watch(scenario, compared, trajectory or 0, steps)
        sinks: list[Sink] = [watch.add, *([] if sink is None else [sink])]
        if out is not None:
            sinks.append(stack.enter_context(recording(out, header, "prediction")))
        if vtk is not None:
            sinks.append(stack.enter_context(paraview(vtk, mesh, fields, scenario.dt, steps, every)))

        def take(k: int, u: Tensor) -> None:
            value = u[0].detach().cpu().numpy()
            for each in sinks:
                each(k, value)
            if report is not None:
                report("rollout", k, steps)

        begin = time.perf_counter()
        take(0, u0)
        _march(run, problem, u0, drive, steps, take)
        seconds = time.perf_counter() - begin
    return {"scenario": scenario.name, "size": scenario.size, "nodes": mesh.n_nodes, "steps": steps, "dt": scenario.dt,
            "device": device, "seconds": seconds, "steps_per_second": steps / seconds,
            "range": {name: [float(low), float(high)] for name, low, high in zip(fields, watch.low, watch.high)},
            "rne": watch.rne, "spots": None if table is None else len(table.names),
            "out": None if out is None else str(out), "vtk": None if vtk is None else str(vtk)}


def summary(result: dict[str, Any]) -> str:
    lines = [f"{result['scenario']} ({result['size']}): {result['steps']} steps of {result['dt']:g} on {result['nodes']:,} nodes "
             f"in {result['seconds']:.2f} s ({result['steps_per_second']:,.0f} steps/s, source and files included)"]
    lines += [f"  {name} from {low:.6g} to {high:.6g}" for name, (low, high) in result["range"].items()]
    if result["rne"] is not None:
        lines.append(f"  RNE from the offset against the stored trajectory: {result['rne']:.3g}")
    return "\n".join([*lines, *(result[kind] for kind in ("out", "vtk") if result[kind] is not None)])


class Watch:
    """Range of every field, a check that numbers stay finite, and the error against a stored trajectory."""

    def __init__(self, scenario: Scenario, stored: Dataset | None, number: int, steps: int) -> None:
        width = len(scenario.pde.fields)
        self.low, self.high = np.full(width, math.inf), np.full(width, -math.inf)
        self.offset, self.stored, self.number, self.steps = np.array(scenario.offsets), stored, number, steps
        self.block = max(1, _BLOCK // (4 * scenario.mesh.n_nodes * width))
        self.first, self.held = 0, np.empty((0, scenario.mesh.n_nodes, width), dtype=np.float32)
        self.error = self.size = 0.0

    def add(self, k: int, u: np.ndarray) -> None:
        if not np.isfinite(u).all():
            raise SolveError(f"the rollout is no longer finite at step {k}")
        self.low, self.high = np.minimum(self.low, u.min(axis=0)), np.maximum(self.high, u.max(axis=0))
        if self.stored is None or k > self.stored.steps:
            return
        if not self.first <= k < self.first + len(self.held):
            self.first = min(k, self.stored.steps - 1)  # a window has at least one step, that is two states
            self.held = self.stored.read(self.number, self.first, min(self.block, self.stored.steps - self.first), only=()).state
        true = self.held[k - self.first].astype(np.float64)
        self.error += float(np.square(u - true).sum())
        self.size += float(np.square(true - self.offset).sum())

    @property
    def rne(self) -> float | None:
        if self.stored is None or self.steps > self.stored.steps:
            return None
        return math.sqrt(self.error / self.size) if self.size > 0 else None


def _march(run: Run, problem: Any, u0: Tensor, drive: Drive | None, steps: int, take: Callable[[int, Tensor], None]) -> None:
    with torch.no_grad(), few_threads(u0.shape[1], str(u0.device)):
        if drive is None:
            rollout(run.model, problem, u0, None, steps, sink=take)
            return
        one = 4 * u0.numel()
        block = max(1, _BLOCK // one)
        if one * steps <= _WHOLE:
            parts = [drive.rows(k, min(k + block, steps)).to(u0) for k in range(0, steps, block)]
            rollout(run.model, problem, u0, torch.cat(parts, dim=1), steps, sink=take)
        else:
            rollout(Driven(run.model, drive, steps, block, u0), problem, u0, None, steps, sink=take)


def _steps(scenario: Scenario, stored: Dataset | None, trajectory: int | None, table: SpotTable | None, steps: int | None) -> int:
    if stored is None or trajectory is None:
        return steps or scenario.steps
    steps = steps or stored.steps
    bound = stored.has_velocity or (stored.has_source and table is None)
    if bound and steps > stored.steps:
        raise InputError(f"trajectory {trajectory} has a {'flow' if stored.has_velocity else 'source'} for {stored.steps} steps, "
                         f"not for {steps}")
    return steps


def _start(scenario: Scenario, stored: Dataset | None, trajectory: int | None, initial: Path | None) -> Tensor:
    """The first state [1, N, F] in single precision."""
    shape = (scenario.mesh.n_nodes, len(scenario.pde.fields))
    if initial is not None:
        try:
            value = np.load(initial, allow_pickle=False)
        except FileNotFoundError as error:
            raise InputError(f"there is no file {initial}") from error
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{initial} is not an array of numbers (.npy)") from error
        if isinstance(value, np.ndarray) and value.shape == shape[:1] and shape[1] == 1:
            value = value[:, None]
        if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind not in "fiu":
            raise InputError(f"{initial} must hold numbers [{shape[0]} nodes, {shape[1]} fields]")
        if not np.isfinite(value).all():
            raise InputError(f"{initial} is not a finite number at node {int(np.argwhere(~np.isfinite(value))[0][0])}")
    elif stored is not None and trajectory is not None:
        value = stored.read(trajectory, 0, 1, only=()).state[0]
    else:
        value = np.broadcast_to(np.array(scenario.offsets), shape)
    return torch.from_numpy(np.array(value, dtype=np.float32))[None]


def _check_stored(stored: Dataset, scenario: Scenario) -> None:
    found = stored.mesh
    if found.points.shape != scenario.mesh.points.shape or not np.array_equal(found.points, scenario.mesh.points):
        raise InputError(f"{stored.path} is on another mesh than the run's {scenario.name} ({scenario.size})")
    if stored.fields != scenario.pde.fields or abs(stored.dt - scenario.dt) > 1e-9 * scenario.dt:
        raise InputError(f"{stored.path} has other fields or another time step than {scenario.name} ({scenario.size})")


def _needs_meshio() -> None:
    try:
        import meshio  # noqa: F401
    except ImportError as error:
        raise InputError("--vtk needs meshio: pip install meshio") from error
