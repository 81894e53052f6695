"""A project: a user's own problem as a case, its data, and settings of the training."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.arguments import Positive, checked
from dgnet.data import Dataset, Header, Trajectory, write_dataset
from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import InputError
from dgnet.files import arrays_of, locked, read_toml, write_bytes, writing
from dgnet.mesh import Mesh
from dgnet.mesh import load as load_mesh
from dgnet.mesh import save as save_mesh
from dgnet.models.registry import all_models, changed, changes, configure
from dgnet.problems.case import OWN, Case, equation
from dgnet.problems.conditions import Condition
from dgnet.problems.pde import PDE
from dgnet.problems.problem import Problem
from dgnet.problems.sources import Source
from dgnet.problems.spot_table import SpotTable
from dgnet.progress import Report
from dgnet.projects.curves import CURVE
from dgnet.projects.equation import Function, Site, conditions_of, equation_of
from dgnet.projects.importers import Note, Sampled, collected, sampled
from dgnet.projects.named_files import IMPORTED, PHYSICS, named_files
from dgnet.projects.physics import Physics
from dgnet.projects.readers import Frame, matches
from dgnet.projects.shapes import build
from dgnet.projects.toml import FILE, ProblemFile, SeriesSpec, Training, read

Tensor = torch.Tensor

MESH, VALUES = "mesh.npz", "values.npz"
"""What a run carries of its problem besides problem.toml and physics.py."""

TRUTH = "given"
_LAYOUT = 3  # of what the import writes; raise it to import everything anew


@dataclass(frozen=True, eq=False)
class Project:
    """A user's own problem. Training, evaluation and rollouts use `case` and `data`."""

    case: Case
    data: Path
    folder: Path | None = None  # None: made in Python
    file: ProblemFile | None = None
    unknowns: Unknowns = field(default_factory=Unknowns)
    model: Mapping[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    notes: tuple[Note, ...] = ()
    physics: Physics | None = None

    @property
    def code(self) -> bytes | None:
        """physics.py, if equation or conditions call it at every step; functions of space alone are known by their values."""
        if self.file is None or self.physics is None:
            return None
        pde, moving = self.file.pde, "pde.velocity" not in self.physics.values
        called: list[Any] = [pde.reaction, pde.velocity if moving else None]
        called += [value for b in self.file.boundaries for value in b.values.values()]
        return self.physics.text if any(isinstance(value, Function) for value in called) else None


@checked
def load(folder: Path | str, report: Report | None = None, force: bool = False) -> Project:
    """The problem of a folder with problem.toml, and its data. Data that are new or have changed are imported.

    - `folder`: as `dgnet new` makes one; docs/problem-files.md has every key
    - `report`: called with what is done, how much of it is done and how much there is
    - `force`: import the data in any case

        >>> import dgnet as dg, numpy as np, pathlib
        >>> mesh = dg.box((2, 2))
        >>> dg.save_mesh(mesh, "plate.msh")
        >>> np.savez("run.npz", state=np.zeros((6, mesh.n_nodes)))
        >>> _ = pathlib.Path("problem.toml").write_text('''
        ... problem = { name = "plate", fields = ["T"], dt = 0.1 }
        ... mesh = { file = "plate.msh" }
        ... pde = { diffusion = 0.1 }
        ... data = [{ file = "run.npz", split = "train" }]
        ... ''')
        >>> dg.load_project(".").case.steps
        5
    """
    file = read(Path(folder))
    if not file.data:
        raise InputError(f"{file.path}: data is missing; without [[data]] there is nothing to check or to learn, but "
                         f"`dgnet simulate` needs none")
    physics = Physics(file.folder)
    request = _request(file)
    kept = None if force else _kept(file, request)
    mesh = _mesh_of(file, physics, kept)
    case = _case(file, mesh, physics, 0)  # the number of steps is known after the import
    _validated(file, case)
    for name in ("dgnet", *(m for m in file.model if m in all_models() and m != "dgnet")):
        settings = configure(name)
        if name == "dgnet" and file.pde.unknowns.reaction:
            settings = settings.reacting(len(case.pde.fields), changes(name, file.model))
        changed(name, file.model, settings, f"{file.path}: model")
    path = file.folder / IMPORTED
    if kept is None:
        with locked(path):
            if force or _kept(file, request) is None:  # another process may have imported them meanwhile
                _import(file, mesh, physics, request, path, report)
    with Dataset(path) as data:
        steps = data.steps
        notes = tuple(Note(**n) for n in json.loads(str(data.provenance["notes"])))
    return _of(file, replace(case, steps=steps), path, physics, notes)


def _of(file: ProblemFile, case: Case, data: Path, physics: Physics, notes: tuple[Note, ...] = ()) -> Project:
    return Project(case, data, file.folder, file, file.pde.unknowns, file.model, file.training, notes, physics)


# ---------------------------------------------------------------------- in the folder of a run


def carry(project: Project, folder: Path) -> None:
    """Write all that it takes to build the case again, wherever the folder goes: the problem file, the mesh, the values of
    arrays and functions of space, and physics.py where every step calls it (a record: see `Physics`)."""
    assert project.file is not None and project.physics is not None
    write_bytes(folder / FILE, project.file.path.read_bytes())
    save_mesh(project.case.mesh, folder / MESH)
    values = project.physics.values
    with writing(folder / VALUES) as part:
        arrays: dict[str, Any] = {f"value{i}": v for i, v in enumerate(values.values())}
        np.savez(part, names=np.array(list(values), dtype=np.str_), **arrays)
    if project.code is not None:
        write_bytes(folder / PHYSICS, project.code)


def carried(folder: Path, name: str, data: Path, steps: int) -> Project:
    """The project that `carry` wrote. Its physics.py is run only if the user has run the same before."""
    if not (folder / FILE).is_file() or not (folder / VALUES).is_file():
        raise InputError(f"{folder} is incomplete: it does not hold what `dgnet train` puts there")
    with arrays_of(folder / VALUES) as archive:
        kept = {str(key): archive[f"value{i}"].astype(np.float64) for i, key in enumerate(archive["names"])}
    return _without_data(read(folder, name), load_mesh(folder / MESH), Physics(folder, kept), data, steps)


def described(folder: Path, name: str, data: Path, steps: int) -> Project:
    """The project of a folder that the user names, with the data of a run in place of its own: nothing is imported."""
    file = read(Path(folder), name)
    physics = Physics(file.folder)
    return _without_data(file, _mesh_of(file, physics, None), physics, data, steps)


def on_mesh(project: Project, path: Path) -> Case:
    """The project's equation and conditions on the mesh of another file, whose names are those of the problem file."""
    file, physics = project.file, project.physics
    assert file is not None and physics is not None
    curves = {key: value for key, value in physics.values.items() if key.endswith(CURVE)}  # other values belong to its own mesh
    fresh = Physics(file.folder, None if physics.kept is None else curves)
    mesh = build(replace(file.mesh, file=str(path.resolve()), shipped="", shape="", measures={}), file.folder, fresh, str(path))
    return _case(file, mesh, fresh, project.case.steps)


def _without_data(file: ProblemFile, mesh: Mesh, physics: Physics, data: Path, steps: int) -> Project:
    return _of(file, _case(file, mesh, physics, steps), data, physics)


# ---------------------------------------------------------------------- made in Python


@checked
def project(name: str, mesh: Mesh, pde: PDE, conditions: Sequence[Condition], dt: Positive, trajectories: Sequence[Trajectory],
            data: Path | str, *, offset: Sequence[float] = (), calibrate: Sequence[str] = (), per_region: bool = False,
            unknown_reaction: bool = False, unknown_curves: Sequence[str] = (), model: Mapping[str, object] | None = None,
            training: Training | None = None) -> Project:
    """A problem of your own with its data, made in Python instead of a folder with problem.toml.

    - `name`: of the problem
    - `mesh`, `pde`, `conditions`, `dt`: what is known, as for `Problem`
    - `trajectories`: what `trajectory` makes of simulations or measurements, some with split "train", others "test"; equally long
    - `data`: the HDF5 file that they are written to
    - `offset`: per field, what relative errors are measured from (an ambient temperature), in its unit; zero by default
    - `calibrate`: which of diffusion, decay, convection to fit to the data, as factors on the given ones
    - `per_region`: one factor for each region of the mesh
    - `unknown_reaction`: learn the reaction from the data
    - `unknown_curves`: which of capacity and diffusion to learn from the data as curves of the field, beginning at the
      equation's numbers
    - `model`: settings of `DGNetConfig` by name that differ from what the problem suggests
    - `training`: windows, iterations, minutes and so on (the table [training] of docs/problem-files.md)

        >>> import dgnet as dg, torch
        >>> mesh, pde = dg.box((4, 4)), dg.PDE(diffusion=0.1)
        >>> start = torch.rand(3, mesh.n_nodes, 1, dtype=torch.float64)
        >>> states = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.1), start, steps=8)  # your simulations here
        >>> runs = [dg.trajectory(s, mesh, 0.1, split=k) for s, k in zip(states.numpy(), ("train", "train", "test"))]
        >>> own = dg.project("cooling", mesh, pde, [], 0.1, runs, "cooling.h5")
        >>> own.case.equation
        'du/dt = div(D grad u) + f'
    """
    data = Path(data)
    if not trajectories or all(t.split != "train" for t in trajectories):
        raise InputError("a project needs at least one trajectory for training")
    steps = {t.steps for t in trajectories}
    if len(steps) > 1:
        raise InputError(f"all trajectories of a project have the same number of steps, got {sorted(steps)}")
    flow = trajectories[0].velocity is not None
    shift = tuple(offset) or (0.0,) * len(pde.fields)
    for t in trajectories:
        if t.state.shape[1:] != (mesh.n_nodes, len(pde.fields)):
            raise InputError(f"a trajectory's states are [time, {mesh.n_nodes}, {len(pde.fields)}], got {list(t.state.shape)}")
    header = Header(mesh, pde.fields, dt, steps.pop(), shift, {"truth": TRUTH, "scenario": name, "size": OWN,
                                                               "package": "dgnet", "package_version": __version__})
    write_dataset(data, header, trajectories)
    case = Case(name=name, title=name, equation=equation(pde, flow), build_mesh=lambda: mesh, pde=pde, conditions=tuple(conditions),
                dt=dt, steps=header.steps, offset=shift, given_flow=flow)
    unknowns = Unknowns(unknown_reaction, tuple(unknown_curves), tuple(calibrate), per_region)
    return Project(case, data, None, None, unknowns, dict(model or {}), training or Training())


@checked
def trajectory(state: np.ndarray, mesh: Mesh, dt: Positive, source: Source | SpotTable | np.ndarray | None = None,
               split: str = "train") -> Trajectory:
    """One simulation or measurement at the nodes of a mesh, for `project`.

    - `state`: at evenly spaced times from 0 on, [T+1, N] or [T+1, N, F], in the unit of each field
    - `mesh`: where
    - `dt`: time between two states
    - `source`: what drove it: a `SpotTable`, a function f(x, t) of points [n, d] and times [T] that returns [1, T, n, F], samples
      [T+1, N] or [T+1, N, F] at the same times, or None; field/time, or W/m3 with a heat capacity
    - `split`: train or test

        >>> import dgnet as dg, numpy as np
        >>> mesh = dg.box((4, 4))
        >>> one = dg.trajectory(np.zeros((11, 25)), mesh, dt=0.5, source=np.ones((11, 25)))
        >>> one.state.shape, one.source_average.shape, float(one.time[-1])
        ((11, 25, 1), (10, 25, 1), 5.0)
    """
    value = np.asarray(state, dtype=np.float32)
    value = value[..., None] if value.ndim == 2 else value
    if value.ndim != 3 or len(value) < 2 or value.shape[1] != mesh.n_nodes:
        raise InputError(f"the states of a trajectory must be [times, {mesh.n_nodes}] or [times, {mesh.n_nodes}, fields] at two "
                         f"times at least, got {list(np.shape(state))}")
    time = dt * np.arange(len(value))
    if source is None:
        return Trajectory(value, time, split=split)
    if isinstance(source, np.ndarray):
        samples = source[..., None] if source.ndim == 2 else source
        if samples.shape != value.shape:
            raise InputError(f"the source of a trajectory must be {list(value.shape)}, got {list(source.shape)}")
        found = Sampled(samples, 0.5 * (samples[1:] + samples[:-1]), None)
    else:
        source = source.on(mesh) if isinstance(source, SpotTable) else source
        found = sampled(source, mesh, dt, len(time) - 1, value.shape[2])
    return Trajectory(value, time, found.samples.astype(np.float32), found.average.astype(np.float32), split=split,
                      source_middles=None if found.middles is None else found.middles.astype(np.float32))


# ---------------------------------------------------------------------- mesh and case


def _mesh_of(file: ProblemFile, physics: Physics, kept: Path | None) -> Mesh:
    if kept is not None and file.mesh.shape:  # making a shape takes longer than reading it back
        with Dataset(kept) as data:
            return data.mesh
    return build(file.mesh, file.folder, physics, str(file.path))


def _case(file: ProblemFile, mesh: Mesh, physics: Physics, steps: int) -> Case:
    site, flow = Site(file.path, file.fields, file.units, mesh, physics, file.pde), file.pde.velocity == "data"
    pde = equation_of(site)
    return Case(name=file.name, title=file.title, equation=equation(pde, flow), build_mesh=lambda: mesh, pde=pde,
                conditions=conditions_of(file.boundaries, site), dt=file.dt, steps=steps, offset=file.offset, given_flow=flow,
                units=file.units)


def _validated(file: ProblemFile, case: Case) -> None:
    """Build the discretised problem once, so that what is wrong is said with the file's name."""
    try:
        problem = Problem(case.mesh, case.pde, case.conditions, case.dt)
        problem.load(0.0, file.dt)
        problem.convection_part(0.0, file.dt)
        for t in (0.0, file.dt):
            problem.fixed_values(t)
        if file.pde.unknowns.per_region:
            from dgnet.models.dgnet import regions_of

            regions_of(case.mesh)
    except InputError as error:
        raise error if str(file.folder) in str(error) else InputError(f"{file.path}: {error}") from error


# ---------------------------------------------------------------------- import, and when it is needed


def _request(file: ProblemFile) -> str:
    """What decides how files are read; not what they hold."""
    parts = (_LAYOUT, file.name, file.fields, file.offset, file.dt, file.mesh, file.data, file.pde.velocity == "data")
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _entries(file: ProblemFile) -> list[tuple[str, Path, SeriesSpec]]:
    return [(f"{file.path}: data[{k}]", path, each) for k, spec in enumerate(file.data, start=1)
            for path, each in matches(spec, file.folder, f"{file.path}: data[{k}].file")]


def _inputs(file: ProblemFile) -> list[Path]:
    """Every file that the import reads: what [mesh] and [[data]] name, and physics.py where they have functions of it."""
    tables = read_toml(file.path)
    found = list(named_files([tables.get("mesh"), tables.get("data")], file.folder))
    selected = (*file.mesh.boundaries.values(), *file.mesh.regions.values())
    if any(s.function for s in selected) or any(spec.source.function for spec in file.data):
        found.append(file.folder / PHYSICS)
    return [p for p in dict.fromkeys(found) if p.is_file()]


def _stamp(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _kept(file: ProblemFile, request: str) -> Path | None:
    """The imported data, if they are what the files would give again. Without the files, what was imported is used."""
    path = file.folder / IMPORTED
    if not path.exists():
        return None
    try:
        with Dataset(path) as data:
            if data.provenance.get("request") != request:
                return None
            stored = json.loads(str(data.provenance["inputs"]))
    except (InputError, KeyError, ValueError, OSError, TypeError):
        return None
    now = {os.path.relpath(p, file.folder): p for p in _inputs(file)}
    if set(now) - set(stored):
        return None
    for name, place in now.items():
        size, when, digest = stored[name]
        if _stamp(place) != (size, when) and _digest(place) != digest:
            return None
    return path


def _import(file: ProblemFile, mesh: Mesh, physics: Physics, request: str, path: Path, report: Report | None) -> None:
    entries = _entries(file)
    for where, given, _ in entries:
        if given.resolve() == path.resolve():
            raise InputError(f"{where}: {IMPORTED} is what dgnet writes itself; give your file another name")
    frame = Frame(file.folder, mesh, file.fields, file.offset, file.dt, file.pde.velocity == "data")
    trajectories, notes = collected(entries, frame, physics, report)
    if all(t.split != "train" for t in trajectories):
        raise InputError(f"{file.path}: data has no trajectory for training (split = \"train\")")
    inputs = {os.path.relpath(p, file.folder): [*_stamp(p), _digest(p)] for p in _inputs(file)}
    origin: dict[str, str | int | float] = {
        "truth": TRUTH, "scenario": file.name, "size": OWN, "package": "dgnet", "package_version": __version__,
        "request": request, "inputs": json.dumps(inputs), "notes": json.dumps([vars(n) for n in notes])}
    write_dataset(path, Header(mesh, file.fields, file.dt, trajectories[0].steps, file.offset, origin), trajectories)
