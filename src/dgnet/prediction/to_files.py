"""Rollouts that are written to disk step by step: of a trained run, or of a problem and a model that needs no data.

Sources come in whatever data come in (`source_files`) or from a stored trajectory. Neither the states nor long sources are held in
memory: states go to HDF5 (docs/data-format.md, one trajectory) as they are made, a source is averaged block by block, and files for
other programs are written from what is on disk. A rollout that was interrupted resumes from its last checkpoint (`Store`).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.arguments import Device, checked
from dgnet.data import Dataset, Header
from dgnet.data.fits import check_fits
from dgnet.errors import InputError, NoRoom
from dgnet.files import read_array
from dgnet.models import Adaptive, Model, Pause, Ready, few_threads
from dgnet.prediction.source_files import Drive, source_from, stored_source
from dgnet.prediction.watch import Content, Observer, Range, Truth
from dgnet.problems import Problem, given_velocity
from dgnet.problems.case import Case, base_problem
from dgnet.problems.sight import Bounds, Doubt, spot_doubts
from dgnet.problems.sight import doubts as find_doubts
from dgnet.progress import Report
from dgnet.report import series
from dgnet.report.bands import Widths, level_of
from dgnet.report.bands import sentence as sentence_about
from dgnet.report.pictures import needs_ffmpeg
from dgnet.report.series import Store, written
from dgnet.scoring.balance import balance_of, content_units, sentences
from dgnet.training.run import Run
from dgnet.training.simulator import Simulator
from dgnet.training.transfer import adaptively, on_other_mesh, with_step
from dgnet.trust import Bands, Guard, Profile, TrainingRange, sentence, stored_bands, training_range

Tensor = torch.Tensor

_WHOLE = 1 << 28  # bytes of a source that is handed over in one piece, so that a step can be captured on CUDA
_BLOCK = 1 << 22  # bytes of a source that are averaged or read at once otherwise
GIF_FRAMES, MP4_FRAMES, SNAPSHOTS = 60, 240, 5  # at most

Sink = Callable[[int, np.ndarray], None]
"""Takes step k and its state [N, F]."""


@dataclass(frozen=True)
class Outputs:
    """Files to write; every one is optional."""

    out: Path | None = None
    vtk: Path | None = None
    xdmf: Path | None = None
    gif: Path | None = None
    mp4: Path | None = None
    png: Path | None = None

    @property
    def named(self) -> dict[str, Path]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def check(self, data: Path | None) -> None:
        """Refuse names of another kind, and that of the data set."""
        suffixes = {"out": (".h5", ".hdf5"), "vtk": (".pvd",)}
        for name, path in self.named.items():
            allowed = suffixes.get(name, (f".{name}",))
            if path.suffix.lower() not in allowed:
                raise InputError(f"{path} must end in {allowed[0]}")
        if self.mp4 is not None:
            needs_ffmpeg()
        if self.out is not None and data is not None and self.out.resolve() == data.resolve():
            raise InputError(f"{self.out} is the data set of the run; choose another name for --out")


@checked
def predict_to_files(run: Simulator | Path, *, source: Path | str | None = None, trajectory: int | None = None,
                     initial: Path | None = None, data: Path | None = None, steps: int | None = None, out: Path | None = None,
                     vtk: Path | None = None, xdmf: Path | None = None, gif: Path | None = None, mp4: Path | None = None,
                     png: Path | None = None, every: int = 1, device: Device = "cpu", report: Report | None = None,
                     sink: Sink | None = None, dt: float | None = None, mesh: Path | None = None, adaptive: float | None = None,
                     band: float | None = None, everywhere: bool = False) -> dict[str, Any]:
    """Roll out a trained run and write its states; returns figures for a person and for JSON. If interrupted, rerun to resume.

    - `run`: the run, or its folder
    - `source`: file of a source (a table of spots, an array, a series for ParaView) or the name of a function of physics.py
    - `trajectory`: number of a trajectory in the data set: gives start, flow and source; `initial` and `source` replace theirs
    - `initial`: .npy file of the first state [nodes] or [nodes, fields]; without one every field begins at the case's offset
    - `data`: data set of `trajectory` instead of the run's own
    - `steps`: number of steps; by default as long as source or trajectory last, else as the case
    - `out`, `vtk`, `xdmf`, `gif`, `mp4`, `png`: files to write: HDF5, series for ParaView, films, a picture of some states
    - `every`: store one state every this many steps; all files but HDF5, whose times are even, also get the last one
    - `device`: cpu or cuda
    - `report`: called with what is done, how much of it is done and how much there is
    - `sink`: called with every step's number and state [nodes, fields]
    - `dt`: another time step than that of the training, where the model allows it
    - `mesh`: file of another mesh than that of the training, where the model allows it
    - `adaptive`: largest error of a step, relative to the range of each field: steps between the stored times are halved until they
      keep it
    - `band`: level of the bands that are written with the states where `dgnet evaluate` has calibrated them: 0.8, 0.9 (unless
      given) or 0.95
    - `everywhere`: bands that hold the whole rollout at once, not that share of its values

        >>> import dgnet as dg, numpy as np, pathlib, torch
        >>> mesh, pde = dg.box((4, 4)), dg.PDE(diffusion=0.1)
        >>> start = torch.rand(3, mesh.n_nodes, 1, dtype=torch.float64)
        >>> states = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.1), start, steps=8)
        >>> runs = [dg.trajectory(s, mesh, 0.1, split=k) for s, k in zip(states.numpy(), ("train", "train", "test"))]
        >>> own = dg.project("cooling", mesh, pde, [], 0.1, runs, "cooling.h5")
        >>> run, _ = dg.train(own, "run", model="dgnet", minutes=0.002)
        >>> np.save("warm.npy", np.full(run.case.mesh.n_nodes, 0.5))  # between what the training data hold
        >>> found = dg.rollout_run(run, initial=pathlib.Path("warm.npy"), steps=3, png=pathlib.Path("warm.png"))
        >>> found["steps"], round(found["range"]["u"][1], 2)
        (3, 0.5)
    """
    opened = run if isinstance(run, Simulator) else Run.open(run, device)
    if source is None and trajectory is None and initial is None and not _driven(opened.case):
        raise InputError(f"a rollout needs --source{', --trajectory' * isinstance(opened, Run)} or --initial")
    if data is not None and trajectory is None:
        raise InputError("--data does not apply here: it is the data set of --trajectory, which is not given")
    if every < 1 or (steps is not None and steps < 1):
        raise InputError("the number of steps must be positive")
    data = data or (opened.data if isinstance(opened, Run) else None)
    if trajectory is not None and data is None:
        raise InputError("--trajectory needs the data set that it is in (--data)")
    files = Outputs(out, vtk, xdmf, gif, mp4, png)
    files.check(data)
    parts = opened.parts
    steps, every = steps and steps * parts, every * parts
    with ExitStack() as stack:
        stored = None if trajectory is None or data is None else stack.enter_context(Dataset(data))
        plan = _planned(opened, stored, trajectory, initial, source, steps, every, device, dt, mesh, adaptive)
        if out is not None and every > plan.steps:
            raise InputError(f"--every {every // parts} leaves nothing to store of {plan.steps // parts} steps")
        level = level_of(plan.bands, band, everywhere, opened.folder)
        u0 = _start(plan.case, stored, trajectory, initial).to(device)
        problem = plan.problem(u0)
        watch, doubts = plan.observers(problem), plan.doubts(problem, u0)
        store = plan.store(files) if files.named else None
        begin = time.perf_counter()
        try:
            resumed, last = _march(plan, problem, u0, watch, store, sink and _whole(sink, parts), report)
            seconds = time.perf_counter() - begin
            widths = None if plan.bands is None else Widths.of(plan.bands, plan.case.mesh, plan.case.dt, level, everywhere,
                                                               watch["profile"], plan.steps)
            if store is not None:
                _write_files(files, store, plan, last, widths, report)
        except BaseException as error:
            if store is not None:  # stopped, or no room: the same call resumes; anything else would only happen again
                again = not isinstance(error, Exception) or isinstance(error, NoRoom | OSError | MemoryError)
                store.leave() if again else store.discard()
            raise
    doubts += watch["bounds"].doubts(plan.case.units) if "bounds" in watch else []
    return plan.figures(watch, resumed, seconds) | {
        "bands": None if widths is None else widths.as_dict(), "doubts": [asdict(d) for d in doubts],
        **{f.name: None for f in fields(Outputs)}, **{name: str(path) for name, path in files.named.items()}}


def _planned(opened: Simulator, stored: Dataset | None, trajectory: int | None, initial: Path | None, source: Path | str | None,
             steps: int | None, every: int, device: str, dt: float | None, mesh: Path | None, adaptive: float | None) -> _Plan:
    """Open and compare what a rollout needs; refuse what does not go together."""
    run, trained = opened, opened.case
    if mesh is not None:
        if trajectory is not None:
            raise InputError("--mesh goes with --source and --initial: a stored trajectory is on the mesh of the training")
        run = on_other_mesh(run, mesh)
    run = run if dt is None or dt == trained.dt else with_step(run, dt)
    if run.parts > 1:
        run = replace(run, case=replace(run.case, dt=run.case.dt / run.parts, steps=run.case.steps * run.parts))
    ratio = run.case.dt / trained.dt
    drive = None if source is None else source_from(str(source), run, device)
    if stored is not None:
        check_fits(stored, trained, from_zero=True)
    elif run.case.given_flow:
        raise InputError(f"'{run.case.name}' needs a flow: name the trajectory that has it with --trajectory")
    count = _steps(run.case, stored, trajectory, drive, steps, ratio)
    if drive is None and stored is not None and trajectory is not None and stored.has_source:
        drive = stored_source(stored, trajectory, ratio, run.model.rule)
    run, model = (run, run.model) if adaptive is None else adaptively(run, adaptive)
    return _Plan(run, model, opened, ratio, stored, trajectory, drive, source is None and initial is None, initial, mesh, count,
                 every, device)


@dataclass(frozen=True, eq=False)
class _Plan:
    """A rollout before its first step: everything is open and fits together."""

    run: Simulator
    model: Model[Any]  # the run's, perhaps with shorter steps
    opened: Simulator  # the run as it was trained; `run` may have another step or mesh
    ratio: float  # step of the rollout over the stored step
    stored: Dataset | None
    trajectory: int | None  # of `stored`
    drive: Drive | None
    stored_only: bool  # start and source are those of the trajectory
    initial: Path | None
    mesh: Path | None
    steps: int
    every: int
    device: str

    @property
    def case(self) -> Case:
        return self.run.case

    @property
    def adaptive(self) -> Adaptive | None:
        return self.model if isinstance(self.model, Adaptive) else None

    @cached_property
    def known(self) -> TrainingRange | None:
        return training_range(self.run)

    @cached_property
    def bands(self) -> Bands | None:
        """None where none were calibrated for this mesh and step."""
        return stored_bands(self.run) if self.mesh is None and self.ratio == 1.0 and self.adaptive is None else None

    def problem(self, like: Tensor) -> Problem:
        problem = base_problem(self.case, self.device)
        if self.stored is None or self.trajectory is None or not self.stored.has_velocity:
            return problem
        last = min(self.stored.steps, math.ceil(self.steps * self.ratio - 1e-9))
        rows = self.stored.read(self.trajectory, 0, last, only=("velocity",)).velocity
        assert rows is not None
        return problem.with_velocity(given_velocity(torch.from_numpy(rows)[None].to(like), self.opened.case.dt))

    def observers(self, problem: Problem) -> dict[str, Any]:
        """Whoever follows the rollout, by name."""
        case, project = self.case, self.run.project
        found: dict[str, Observer] = {"range": Range(len(case.pde.fields))}
        if self.known is not None:
            found["guard"] = Guard(self.known, case.mesh, case.dt, self.steps)
        if self.bands is not None:
            found["profile"] = Profile(case.mesh, len(case.pde.fields))
        if project is None or not (project.unknowns.reaction or project.unknowns.curves):
            found["bounds"] = Bounds(problem)
        if self.stored is not None and self.trajectory is not None and self.stored_only:
            found["truth"] = Truth(case, self.stored, self.trajectory, self.steps, self.ratio)
        return found

    def doubts(self, problem: Problem, u0: Tensor) -> list[Doubt]:
        """What mesh and step cannot see, before the rollout. A trained model has learned what a start does: of it, spots alone."""
        spots, function = (None, None) if self.drive is None else (self.drive.spots, self.drive.function)
        if isinstance(self.run, Run):
            return spot_doubts(self.case.mesh, spots, self.case.units, 0.0, self.steps * self.case.dt, self.case.conditions)
        return find_doubts(problem, u0[0], spots=spots, source=function, steps=self.steps, short=self.adaptive is not None,
                           units=self.case.units)

    def store(self, files: Outputs) -> Store:
        """The states on disk. A store that an equal request has left is resumed."""
        run, case, number, drive = self.run, self.case, self.trajectory, self.drive
        origin: dict[str, str | int | float] = {
            "package": "dgnet", "package_version": __version__, "scenario": case.name, "size": case.size,
            "model": run.name, "run": run.folder.name, "run_identity": run.identity, "truth": "prediction",
            "source": "none" if drive is None else drive.name, "trajectory": -1 if number is None else number,
            "device": torch.device(self.device).type, "every": self.every, **run.facts}
        header = Header(case.mesh, case.pde.fields, self.every * case.dt, self.steps // self.every, case.offsets, origin)
        inputs = run.folder / "run.toml", run.folder / "weights.pt", self.initial, self.mesh
        request = {"steps": self.steps, "every": self.every, "trajectory": number, "device": self.device, "version": __version__,
                   "files": [_digest(p) for p in inputs], "source": None if drive is None else drive.digest,
                   "dt": case.dt, "problem": run.identity, "adaptive": self.adaptive and self.adaptive.tolerance,
                   "data": None if self.stored is None or number is None else self.stored.identity([number])}
        first = next(iter(files.named.values()))
        place = files.out if files.out is not None else first.with_name(f"{first.name}.states")
        with written(place):
            return Store(place, header, "prediction", self.every, request)

    def figures(self, watch: dict[str, Any], resumed: int, seconds: float) -> dict[str, Any]:
        """What a rollout says of itself."""
        case, units, (low, high) = self.case, self.case.units, watch["range"].memory
        findings = watch["guard"].findings() if "guard" in watch else []
        note = "" if self.drive is None else self.drive.note
        spots = None if self.drive is None or self.drive.spots is None else len(self.drive.spots.names)
        return {"scenario": case.name, "size": case.size, "nodes": case.mesh.n_nodes, "steps": self.steps, "dt": case.dt,
                "device": self.device, "seconds": seconds, "steps_per_second": (self.steps - resumed) / seconds,
                "resumed_from": resumed, "every": self.every, "trained": isinstance(self.run, Run),
                "range": {name: [float(a), float(b)] for name, a, b in zip(case.pde.fields, low, high)},
                "rne": watch["truth"].rne if "truth" in watch else None, "spots": spots,
                "training_range": None if self.known is None else self.known.as_dict(),
                "left_range": None if self.known is None else findings,
                "balance": watch["content"].totals() if "content" in watch else None, "warning": sentence(findings, units),
                "notes": [*self.run.notes, *([note[0].upper() + note[1:]] if note else [])],
                "adaptive": self.adaptive and self.adaptive.figures(), "chosen": None,
                "units": {"time": units.time, "fields": units.fields, "content": content_units(case)}}


def _march(plan: _Plan, problem: Problem, u0: Tensor, watch: dict[str, Any], store: Store | None, sink: Sink | None,
           report: Report | None) -> tuple[int, np.ndarray]:
    """March to the end, from where an earlier attempt stopped; returns that step and the last state [N, F]."""
    left, steps, drive = None if store is None else store.resumed, plan.steps, plan.drive
    end = None if left is None else Pause.of(left)
    done = first = 0 if end is None else end.step
    if left is not None:
        for name, observer in watch.items():
            observer.memory = left[f"watch/{name}"]
    balance = balance_of(plan.model, problem) if first == 0 and plan.adaptive is None else None  # of whole, even rollouts
    if balance is not None:
        watch["content"] = Content(balance)
    last, stride = (u0 if end is None else end.values)[0].cpu().numpy(), max(1, steps // 500)
    cuda = u0.is_cuda and (drive is None or 4 * u0.numel() * steps <= _WHOLE)  # in one piece, so that steps can be recorded

    def take(k: int, u: Tensor) -> None:
        nonlocal last
        k += done
        last = u[0].detach().cpu().numpy()
        for observer in watch.values():
            observer.state(k, last)
        if sink is not None:
            sink(k, last)
        if store is not None:
            store.add(k, last)
            if k and (store.due() or k == steps):
                memory = {f"watch/{name}": observer.memory for name, observer in watch.items()}
                store.checkpoint(memory | ready.pause().arrays())
        if report is not None and (k % stride == 0 or k == steps):
            report("rollout", k, steps)

    if left is None:
        take(0, u0)
    if first < steps:
        with torch.no_grad(), few_threads(u0.shape[1], str(u0.device)):
            ready = Ready(plan.model, problem, 1, steps, replayed=cuda)
            blocks = iter([None]) if drive is None else _blocks(drive, first, steps, u0, list(watch.values()))
            for rows in [torch.cat(list(blocks), 1)] if cuda and drive is not None else blocks:  # type: ignore[arg-type]
                count = steps - done if rows is None else rows.shape[1]
                ready.rollout(u0 if end is None else end, rows, count, sink=take, capture=cuda)
                end, done = ready.pause(), done + count
    return first, np.array(last)


def _blocks(drive: Drive, first: int, steps: int, like: Tensor, observers: Sequence[Observer]) -> Iterator[Tensor | None]:
    """The sources [1, steps, P, F] from step `first` on, shown to the observers. Blocks lie at fixed places, wherever a rollout
    begins: the same numbers as those of one that was never interrupted."""
    size = max(1, _BLOCK // (4 * like.numel()))
    for start in range(first - first % size, steps, size):
        rows = drive.rows(start, min(start + size, steps)).to(like)
        for observer in observers:
            observer.sources(start, rows[0].cpu().numpy())
        yield rows[:, max(0, first - start):]


def _write_files(files: Outputs, store: Store, plan: _Plan, last: np.ndarray, widths: Widths | None, report: Report | None) -> None:
    """What other programs read, from the states on disk; then the store takes its name, or goes."""
    store.complete()
    case, mesh, names, dt, end = plan.case, plan.case.mesh, plan.case.pde.fields, plan.case.dt, (plan.steps, last)
    count = store.shape[0] + (plan.steps % store.every > 0)

    def frames(what: str) -> Iterator[tuple[int, np.ndarray]]:
        for done, frame in enumerate(store.frames(end), 1):
            yield frame
            if report is not None:
                report(what, done, count)

    wide = (lambda frames: frames) if widths is None else widths.wide
    more = names if widths is None else (*names, *(f"{name} half-width" for name in names))
    if files.vtk is not None:
        series.paraview(files.vtk, mesh, more, dt, wide(frames("vtu files")))
    if files.xdmf is not None:
        series.xdmf(files.xdmf, mesh, more, dt, wide(frames("xdmf")))
    for path, most in ((files.gif, GIF_FRAMES), (files.mp4, MP4_FRAMES)):
        if path is not None:
            progress = None if report is None else partial(report, path.name)
            series.movie(path, mesh, names, dt, list(store.frames(end, most)), progress)
    if files.png is not None:
        heading = f"{case.title}: rollout of {plan.run.name}"
        series.snapshots(files.png, mesh, names, dt, list(store.frames(end, SNAPSHOTS)), heading)
    if files.out is None:
        store.discard()
        return
    if widths is not None:
        widths.save(files.out, names, store.frames(end), count)
    store.publish()


def summary(result: dict[str, Any]) -> str:
    """The result of `predict_to_files` in lines, with the units of the problem."""
    units, time = result["units"]["fields"], result["units"]["time"]
    step = f"{result['dt']:g} {time}".strip()
    lines = [f"{result['scenario']} ({result['size']}): {result['steps']} steps of {step} on {result['nodes']:,} nodes "
             f"in {result['seconds']:.2f} s ({result['steps_per_second']:,.0f} steps/s, source and files included)"]
    if result["adaptive"] is not None:
        a = result["adaptive"]
        lines.append(f"  {a['taken']:,} steps, the shortest {a['shortest']:.3g} {time}".rstrip() +
                     f", kept the tolerance {a['tolerance']:g}; {a['rejected']:,} others were too long")
    lines += [f"  {name} from {low:.6g} to {high:.6g} {units.get(name, '')}".rstrip()
              for name, (low, high) in result["range"].items()]
    lines += [f"  {line}" for line in sentences(result["balance"], result["units"]["content"])]
    if result["rne"] is not None:
        lines.append(f"  RNE from offset against the stored trajectory: {result['rne']:.3g}")
    if result["warning"] is not None:
        lines.append(f"  {result['warning']}")
    elif result["left_range"] is None and result["trained"]:
        lines.append("  The range of the training data is not known: the run's data set is missing.")
    lines += [] if result["bands"] is None else [f"  {sentence_about(result['bands'])}."]
    lines += [f"  {line}" for line in (result["chosen"] or {}).get("sentences", ())]
    lines += [f"  {note}" for note in result["notes"]]
    lines += [f"  Warning: {doubt['text']}." for doubt in result["doubts"]]
    return "\n".join([*lines, *(result[f.name] for f in fields(Outputs) if result[f.name] is not None)])


def _whole(sink: Sink, parts: int) -> Sink:
    """A sink of whole steps alone."""
    return sink if parts == 1 else lambda k, u: None if k % parts else sink(k // parts, u)


def _driven(case: Case) -> bool:
    """Whether boundary conditions or a known reaction alone move a case away from its offsets."""
    if case.pde.reaction is not None:
        return True
    return any(c.role != "periodic" and (callable(c.drive) or c.drive != (0.0 if c.role == "flux" else rest))
               for c in case.conditions for rest in case.offsets)


def _digest(path: Path | None) -> str | None:
    return None if path is None or not path.is_file() else hashlib.sha256(path.read_bytes()).hexdigest()


def _steps(case: Case, stored: Dataset | None, trajectory: int | None, drive: Drive | None, steps: int | None,
           ratio: float) -> int:
    longest = None if drive is None else drive.steps
    if longest is not None and steps is not None and steps > longest:
        raise InputError(f"the source is given for {longest} steps, not for {steps}")
    if stored is None or trajectory is None:
        return steps or longest or case.steps
    there = int(stored.steps / ratio * (1 + 1e-9))  # steps of the rollout in the time that is stored
    steps = steps or min(there, longest or there)
    bound = stored.has_velocity or (stored.has_source and drive is None)
    if steps < 1 or (bound and steps > there):
        raise InputError(f"trajectory {trajectory} has a {'flow' if stored.has_velocity else 'source'} for {there} steps, "
                         f"not for {steps}")
    return steps


def _start(case: Case, stored: Dataset | None, trajectory: int | None, initial: Path | None) -> Tensor:
    """The first state [1, N, F] in single precision."""
    shape = (case.mesh.n_nodes, len(case.pde.fields))
    if initial is not None:
        value = read_array(initial, (shape, shape[:1]) if shape[1] == 1 else (shape,)).reshape(shape)
    elif stored is not None and trajectory is not None:
        value = stored.read(trajectory, 0, 1, only=()).state[0]
    else:
        value = np.broadcast_to(np.array(case.offsets), shape)
    return torch.from_numpy(np.array(value, dtype=np.float32))[None]
