"""A training run as a folder that can be moved: what was asked for, what it was trained on, the weights, the history.

    run.toml      scenario, data, model, recipe, seed: all that is needed to build the model again; what it was trained on by
                  content (`identity`); the checksum of the weights
    problem/      a user's own problem as it was (`projects.carry`), or any other case without functions (`write_case`)
    trained-on.h5 the data, as a second name of the same file or a copy; very large ones that cannot be linked stay where they are
    weights.pt    the best weights by validation rollout
    last.pt       where to resume
    history.csv   iteration, updates, loss, validation error, best so far, seconds; history.png draws it
    reaction.csv, capacity.csv, diffusion.csv   what was found about the physics (`discovery.found`)
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__, plugins
from dgnet.arguments import Device, checked
from dgnet.data import Corpus, Dataset
from dgnet.data.digests import load_checkpoint, save_tensors
from dgnet.data.fits import check_fits
from dgnet.discovery.found import write_found
from dgnet.errors import InputError
from dgnet.files import (
    discard,
    locked,
    read_dataclass,
    read_toml,
    toml_text,
    unfinished,
    unwritable,
    write_text,
    writing,
)
from dgnet.models.base import LearnedModel
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.registry import DGNETS, TUNED, as_stored, entry
from dgnet.models.timeloop import few_threads
from dgnet.problems.case import OWN, Case, base_problem
from dgnet.projects import CASE, Project, carried, carry, described, read_case, write_case
from dgnet.projects import load as load_project
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import fit, split
from dgnet.training.identity import differences, digest, fingerprint, of_problem, trained_on
from dgnet.training.plan import Plan, plan_for_data
from dgnet.training.processes import join_processes, wait_for_all
from dgnet.training.simulator import Simulator, simulator

Tensor = torch.Tensor

PROBLEM, DATA = "problem", "trained-on.h5"
_COPIED = 1 << 30  # bytes of a data set that is copied where it cannot be linked
_FORMER = ("unknown_reaction",)  # keys of [run] in earlier versions: [model] says it
_MAY_DIFFER = ("data", "project", *_FORMER)  # keys of [run] that may change when a run goes on


@dataclass(frozen=True)
class Settings:
    """What identifies a run; stored as [run] in run.toml."""

    scenario: str
    size: str
    truth: str
    data: str  # file, from the run's folder on
    model: str = "dgnet"
    recipe: str = "staged"
    seed: int = 0
    trajectories: int = 0  # training trajectories used; 0 means all
    project: str = ""  # "problem" where the run carries a user's own problem; empty for a scenario of the paper
    version: str = __version__

    @classmethod
    def read(cls, table: Mapping[str, Any], where: str) -> Settings:
        """From the table [run] of a run.toml, of earlier versions, too."""
        return read_dataclass(cls, {key: value for key, value in table.items() if key not in _FORMER}, where)


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(Simulator):
    """An opened run: a `Simulator` with what was asked for and the data of its training. `load_run` opens one, `train` makes one.

    - `folder`: where it is
    - `settings`: scenario or problem, data, model, recipe, seed
    - `case`: mesh, equation, conditions and time step
    - `model`: with its weights
    - `project`: the problem of your own that it carries, where there is one
    - `identity`: checksum of the problem that it is opened with
    - `notes`: sentences that every output about the run repeats: what is not as it was at training
    - `parts`, `facts`: as of any `Simulator`

        >>> import dgnet as dg, torch
        >>> mesh, pde = dg.box((4, 4)), dg.PDE(diffusion=0.1)
        >>> start = torch.rand(3, mesh.n_nodes, 1, dtype=torch.float64)
        >>> states = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.1), start, steps=8)
        >>> runs = [dg.trajectory(s, mesh, 0.1, split=k) for s, k in zip(states.numpy(), ("train", "train", "test"))]
        >>> own = dg.project("cooling", mesh, pde, [], 0.1, runs, "cooling.h5")
        >>> run, _ = dg.train(own, "run", model="dgnet", minutes=0.002)
        >>> run.settings.model, run.case.mesh.n_nodes
        ('dgnet', 25)
    """

    settings: Settings
    model: LearnedModel[Any]

    @property
    def name(self) -> str:
        return self.settings.model

    @property
    def data(self) -> Path:
        """The data set that it was trained on."""
        return self.folder / self.settings.data

    @property
    def dgnet(self) -> DGNet:
        """The model, where it is a DGNet: the others have no operator."""
        if not isinstance(self.model, DGNet):
            raise InputError(f"{self.folder} is a run of {self.settings.model}, which has no operator")
        return self.model

    @classmethod
    @checked
    def open(cls, folder: Path | str, device: Device = "cpu", case: Case | None = None, problem: Path | None = None,
             allow_different: bool = False) -> Run:
        """Open a run (`dgnet.load_run`) with the problem stored in it.

        - `folder`: of the run
        - `device`: of its weights: cpu or cuda
        - `case`: that of a problem made in Python with functions (`project(...).case`), which a run cannot carry; the same one
        - `problem`: a folder with problem.toml in place of what the run carries; it must be the same problem
        - `allow_different`: take a problem that differs from what the run was trained on, and say so in `notes`

            >>> import dgnet as dg, torch
            >>> mesh, pde = dg.box((4, 4)), dg.PDE(diffusion=0.1)
            >>> start = torch.rand(3, mesh.n_nodes, 1, dtype=torch.float64)
            >>> states = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.1), start, steps=8)
            >>> runs = [dg.trajectory(s, mesh, 0.1, split=k) for s, k in zip(states.numpy(), ("train", "train", "test"))]
            >>> own = dg.project("cooling", mesh, pde, [], 0.1, runs, "cooling.h5")
            >>> run, _ = dg.train(own, "run", model="dgnet", minutes=0.002)
            >>> dg.load_run("run").case.name
            'cooling'
        """
        folder = Path(folder)
        path = folder / "run.toml"
        if not path.exists():
            raise InputError(f"{folder} is no training run: it has no run.toml")
        text = read_toml(path)
        settings = Settings.read(_table(text, "run", path), f"{path} [run]")
        described = entry(settings.model)
        config: Any = read_dataclass(described.config, as_stored(settings.model, _table(text, "model", path)),
                                     f"{path} [model]")
        stored = _table(text, "trained_on", path)
        project = None if case is not None else _project_of(settings, folder, problem, stored)
        case = case or (_case_of(settings, folder) if project is None else project.case)
        now = fingerprint(case, None if project is None else project.code)
        notes = _compared(folder, of_problem(stored), now, allow_different)
        if stored and settings.version != __version__:
            notes += (f"{folder} was trained with dgnet {settings.version}, this is {__version__}.",)
        state = load_checkpoint(folder / "weights.pt", device, _weights_sum(folder, text))
        model = described.make(config, base_problem(case, device)).to(device)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise InputError(f"{folder / 'weights.pt'} does not fit the model that run.toml describes") from error
        for name, weight in model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise InputError(f"{folder / 'weights.pt'}: the weight '{name}' holds numbers that are not finite")
        return cls(folder=folder, settings=settings, case=case, model=model, project=project, identity=digest(now), notes=notes)


def open_simulator(folder: Path, problem: Path | None = None, allow_different: bool = False, model: str = "classical") -> Simulator:
    """The run in a folder; where it holds a problem and no run, that problem with a model that needs no data."""
    if (folder / "run.toml").exists() or not (folder / "problem.toml").exists():
        return Run.open(folder, problem=problem, allow_different=allow_different)
    return simulator(folder, model)


def _table(text: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    found = text.get(name, {})
    if not isinstance(found, dict):
        raise InputError(f"{path}: '{name}' must be a table")
    return found


def _project_of(settings: Settings, folder: Path, problem: Path | None, stored: Mapping[str, Any]) -> Project | None:
    """The user's own problem: that which the run carries, or that of a folder named now. Nothing else is ever loaded."""
    if settings.size != OWN:
        if problem is not None:
            raise InputError(f"{folder} is about the scenario '{settings.scenario}' of the paper: it has no problem folder")
        return None
    if problem is None and not settings.project:
        return None
    if problem is None and settings.project != PROBLEM:
        raise InputError(f"{folder} is a run of an older version that does not carry its problem: name the problem's folder with "
                         "--problem")
    if problem is not None and not stored:
        return load_project(problem)
    steps = stored.get("steps")
    if not isinstance(steps, int) or steps < 0:
        raise InputError(f"{folder / 'run.toml'} is damaged: [trained_on] lacks the number of steps")
    make, place = (carried, folder / PROBLEM) if problem is None else (described, problem)
    return make(place, settings.scenario, folder / settings.data, steps)


def _case_of(settings: Settings, folder: Path) -> Case:
    """The case of a run that has no problem file: that of the package that knows its name, else the one stored with the run."""
    stored = folder / PROBLEM / CASE
    if settings.size != OWN and (known := plugins.case(settings.scenario, settings.size)) is not None:
        return known
    if stored.exists():
        return read_case(folder / PROBLEM)
    if settings.size == OWN:
        raise InputError(f"'{settings.scenario}' was made in Python: open its run with Run.open(folder, case=project.case)")
    raise InputError(f"no installed package knows the case '{settings.scenario}' of size '{settings.size}' (those of the paper "
                     "come with dgnet-paper)")


def _compared(folder: Path, stored: Mapping[str, Any], now: Mapping[str, Any], allow_different: bool) -> tuple[str, ...]:
    if not stored:
        shipped = (folder / "card.json").exists()  # weights of the package say by their card what they are
        said = f"{folder} does not say what it was trained on (an older version wrote it): nothing was compared."
        return () if shipped else (said,)
    found = differences(stored, now)
    if not found:
        return ()
    text = f"{folder} was trained on another problem: {'; '.join(found)}"
    if not allow_different:
        raise InputError(f"{text} (--allow-different accepts it)")
    return (f"{text}.",)


def _weights_sum(folder: Path, text: Mapping[str, Any]) -> str:
    """The SHA-256 that weights.pt should have: of run.toml, or of the card of shipped weights; empty where nothing says so."""
    card = folder / "card.json"
    try:
        found = json.loads(card.read_text()).get("sha256") if card.exists() else text.get("weights", {}).get("sha256")
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{card if card.exists() else folder / 'run.toml'} is damaged") from error
    return found if isinstance(found, str) else ""


def check_choice(model: str, amp: bool = False, unknown_reaction: bool = False) -> None:
    """Refuse options that do not apply to a model."""
    if model in ("classical", "classical-p2"):
        raise InputError("the classical solver has nothing to train; it stands beside every evaluation")
    if model == "universal":
        raise InputError("universal weights need no training, they stand beside every evaluation; "
                         f"--model {TUNED} tunes them to data")
    for chosen, option in ((amp, "--amp (mixed precision)"), (unknown_reaction, "--unknown-reaction")):
        if chosen and model not in DGNETS:
            raise InputError(f"{option} is an option of dgnet, not of {model}")


def train(case: Case, truth: str, data: Path, folder: Path, plan: Plan | None = None, *, seed: int = 0, device: str = "cpu",
          budget: float | None = None, trajectories: int | None = None, project: Project | None = None, portable: bool = True,
          report: Callable[[Progress, int], None] | None = None) -> tuple[Run, Progress]:
    """Train a model on a data set, or resume an interrupted run.

    - `plan`: what is learned and how; by default what follows from problem and data (`training.plan`)
    - `budget`: seconds of wall clock
    - `trajectories`: train on the first ones only
    - `portable`: the run carries problem and data along
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, code = folder / "run.toml", None if project is None else project.code
    carried_along = project is not None and project.file is not None
    with Dataset(data) as dataset:
        check_fits(dataset, case, truth)
        plan = plan or plan_for_data(project or case, dataset, trajectories)
        check_choice(plan.model)
        settings = Settings(case.name, case.size, truth, DATA if portable else _from(data, folder), plan.model,
                            plan.recipe.name if plan.model in DGNETS else plan.model, seed, trajectories or 0,
                            PROBLEM if carried_along else "")
        tables = {"run": settings, "model": plan.config, "trained_on": trained_on(case, code, dataset, trajectories)}
        _check_same(path, tables)
        training, validation = _corpora(dataset, plan, seed, trajectories, device)
    writes = join_processes(device)
    with locked(path) if writes else nullcontext():  # one process trains in a folder; the next finds what it has done
        if writes:
            _check_same(path, tables)
            if portable:
                settings = replace(settings, data=_carry_data(data, folder))
                if carried_along and project is not None and not path.exists():
                    carry(project, folder / PROBLEM)
                elif not path.exists():
                    write_case(case, folder / PROBLEM)
            tables["run"] = settings
            if not path.exists():  # one that went on and was refused is what it was before, its weights and their checksum included
                write_text(path, to_toml(tables))
        base = base_problem(case, device)
        torch.manual_seed(seed)
        network = entry(plan.model).make(plan.config, base).to(device)
        with few_threads(case.mesh.n_nodes, device):
            progress = fit(network, base, training, validation, plan.recipe, seed=seed, budget=budget, folder=folder, report=report)
        if writes:
            write_text(path, to_toml(tables))  # without a checksum while the weights change
            write_trained(folder, tables, network, case)
            write_history(folder, progress)
        wait_for_all()
    return Run(folder=folder, settings=settings, case=case, model=network, project=project,
               identity=digest(fingerprint(case, code))), progress


def write_trained(folder: Path, tables: Mapping[str, Any], model: LearnedModel[Any], case: Case) -> None:
    """weights.pt, run.toml with their checksum, and tables of what the model found."""
    weights = {"sha256": save_tensors(folder / "weights.pt", model.state_dict())}
    write_text(folder / "run.toml", to_toml({**tables, "weights": weights}))
    write_found(folder, model, case)


def _corpora(dataset: Dataset, plan: Plan, seed: int, trajectories: int | None, device: str) -> list[Corpus]:
    """Trajectories to train on and to validate with."""
    ends = isinstance(plan.config, DGNetConfig) and plan.config.rule == "trapezoid"
    return [replace(dataset.batch(rows, device=device, ends=ends),
                    middles=dataset.middles(rows, device) if plan.model == TUNED else None)
            for rows in split(dataset, plan.recipe, seed, trajectories)]


def _check_same(path: Path, tables: Mapping[str, Any]) -> None:
    """A folder with a run can only resume that run, on the same problem and data."""
    if not path.exists():
        return
    found, wanted = read_toml(path), tomllib.loads(to_toml(tables))
    if "trained_on" not in found:
        raise InputError(f"{path.parent} holds another run, of an older version that does not say what it was trained on; "
                         "choose another folder (--out) or remove it")
    parts = []
    if isinstance(found.get("model"), dict):
        found["model"] = as_stored(tables["run"].model, found["model"])
    for name in tables:
        old, new = ({k: v for k, v in t.items() if not (name == "run" and k in _MAY_DIFFER)}
                    for t in (_table(found, name, path), wanted[name]))
        parts += differences(old, new)
    if parts:
        raise InputError(f"{path.parent} holds another run: {'; '.join(parts)}; choose another folder (--out) or remove it")


def _from(path: Path, folder: Path) -> str:
    """The path as it is seen from a folder."""
    return os.path.relpath(path.resolve(), folder.resolve())


def _carry_data(data: Path, folder: Path) -> str:
    """The data set in the run's folder: a second name of the file, so that what replaces the first leaves it alone, else a copy.

    Returns where it is, from the folder on. A large file on another disk stays where it is.
    """
    target, source = folder / DATA, data.resolve()
    if target.exists() and target.samefile(source):
        return DATA
    part = unfinished(target)
    try:
        try:
            os.link(source, part)
        except OSError:
            if source.stat().st_size > _COPIED:
                return _from(data, folder)
            shutil.copyfile(source, part)
        os.replace(part, target)
    except OSError as error:
        raise unwritable(target, error) from error
    finally:
        discard(part)
    return DATA


def write_history(folder: Path, progress: Progress) -> None:
    """history.csv and history.png."""
    with writing(folder / "history.csv") as part, part.open("w", newline="") as file:
        rows = csv.DictWriter(file, ["iteration", "updates", "loss", "validation", "best", "seconds"])
        rows.writeheader()
        rows.writerows(progress.history)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    at = [h["iteration"] for h in progress.history]
    axis.semilogy(at, [h["validation"] for h in progress.history], "o-", ms=3, label="validation rollout")
    axis.axhline(progress.classical, color="k", ls="--", lw=1, label="classical, same mesh")
    axis.set(xlabel="iteration", ylabel="relative error")
    axis.legend(frameon=False)
    with writing(folder / "history.png") as part:
        figure.savefig(part, format="png", dpi=150)
    plt.close(figure)


# ---------------------------------------------------------------------- TOML


def to_toml(tables: Mapping[str, Any]) -> str:
    """Dataclasses or mappings of plain values as TOML tables."""
    lines = []
    for name, value in tables.items():
        rows = value if isinstance(value, Mapping) else {f.name: getattr(value, f.name) for f in fields(value)}
        lines += [f"[{name}]", *(f"{key} = {_toml(entry)}" for key, entry in rows.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_text(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)
