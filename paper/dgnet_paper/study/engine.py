"""Running cells: data made once, finished cells skipped, interrupted ones resumed, those of other processes left alone.

    OUT/cells/TAG/cell.json     the result, written last: what has it is finished
    OUT/cells/TAG/run/          the training run with its weights
    OUT/cells/TAG/sample.npz    frames of the first test trajectory, for pictures
    OUT/cells/TAG/failed.json   why it could not be finished the last time
    DATA/*.h5                   data sets, one per scenario, size, truth and scale

Any number of processes may run the same command at once: each takes the next cell that nobody works on, by a lock per cell. Folders
of cells from several machines are merged by copying.
"""

from __future__ import annotations

import gc
import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.data import Dataset
from dgnet.errors import InputError, NoRoom
from dgnet.files import Lock, locked, strict, write_json, writing
from dgnet.models.base import Model
from dgnet.models.registry import parameter_count
from dgnet.problems.case import base_problem
from dgnet.progress import Report
from dgnet.recipe import Recipe
from dgnet.scoring.judge import Judged, finer, judge_file, rivals, without_data
from dgnet.scoring.metrics import error_ratio
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import Tell
from dgnet.training.plan import Plan, plan_for_data
from dgnet.training.run import Run, train
from dgnet_paper.scenarios.generate import file_stem, generate, provenance
from dgnet_paper.scenarios.scenario import Scenario, unknowns_of
from dgnet_paper.study import search, stored
from dgnet_paper.study.experiment import CLOCKED, Experiment, Record, method
from dgnet_paper.study.origin import code_version, improving, learned
from dgnet_paper.study.timing import hardware

POLL = 2.0  # seconds between looks at what others do


@dataclass(frozen=True)
class Options:
    """How cells are run; none of it decides what a cell is.

    - `budget`: seconds of training per cell
    - `search`: share of the budget for each trial of `search`; 0 takes the method's own recipe
    - `sharing`: processes that share the device, recorded in the cells
    - `keep_last`: keep the checkpoint to resume from of finished cells
    """

    data: Path
    out: Path
    device: str = "cpu"
    budget: float | None = None
    search: float = 0.0
    sharing: int = 1
    keep_last: bool = False
    report: Report | None = None
    tell: Tell | None = None
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        if self.search and self.budget is None:
            raise InputError("a search of the learning rate takes a share of the budget for each trial: give a budget (--budget)")


@dataclass
class Summary:
    """Cells by what one call did with them; `left` to other processes, `postponed` because their clocks need the device alone."""

    ran: list[str] = field(default_factory=list)
    finished_before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    postponed: list[str] = field(default_factory=list)

    def words(self) -> str:
        counts = (f"{len(self.ran)} cells run, {len(self.finished_before)} finished before, {len(self.failed)} failed, "
                  f"{len(self.left)} left to other processes, {len(self.postponed)} postponed")
        return "\n".join([counts, *(f"failed: {tag}: {reason}" for tag, reason in self.failed.items())])


# ---------------------------------------------------------------------- the loop


def expand(cells: Iterable[Experiment]) -> list[Experiment]:
    """The cells with all they need, each once, what is needed first."""
    out: dict[Experiment, None] = {}
    for cell in cells:
        out |= dict.fromkeys([*expand(cell.needs), cell])
    return list(out)


def plan(cells: Iterable[Experiment], options: Options) -> list[dict[str, str]]:
    """Every cell with its state (finished, failed, missing), the command that runs it, and why it failed."""
    studied = stored.packed(options.out) or (options.out / "cells").is_dir()
    done, failed = (stored.load([options.out]), stored.failures([options.out])) if studied else ({}, {})
    return [{"tag": cell.tag, "state": "finished" if cell.tag in done else "failed" if cell.tag in failed else "missing",
             "command": command_of(cell, options), "note": failed.get(cell.tag, "")} for cell in expand(cells)]


def command_of(cell: Experiment, options: Options) -> str:
    """The command that runs one cell."""
    budget = f" --budget {options.budget / 60:g}" if options.budget is not None and cell.kind == "train" else ""
    budget += f" --search {options.search:g}" if options.search and budget else ""
    device = f" --device {options.device}" if options.device != "cpu" else ""
    return f"dgnet-paper reproduce {cell.tag} --data {options.data} --out {options.out}{budget}{device}"


def run(cells: Iterable[Experiment], options: Options) -> Summary:
    """Run the cells and whatever they need, in order. Cells of other processes are waited for only where they are needed."""
    if stored.packed(options.out):
        raise InputError(f"{options.out} is a packed study: copy its cells with "
                         f"'dgnet-paper reproduce merge {options.out} --out NEW', then  give --out NEW")
    todo, summary = expand(cells), Summary()
    while todo:
        left = [cell for cell in todo if not _settled(cell, options, summary)]
        if len(left) == len(todo):
            if all(need.finished(options.out) for cell in left for need in cell.needs):
                break
            time.sleep(POLL)
        todo = left
    summary.left = [cell.tag for cell in todo]
    return summary


def _settled(cell: Experiment, options: Options, summary: Summary) -> bool:
    """Run a cell if it can be run now; False where it, or what it needs, belongs to another process."""
    needs = [need.tag for need in cell.needs]
    if cell.finished(options.out):
        summary.finished_before.append(cell.tag)
    elif any(tag in summary.failed for tag in needs):
        summary.failed[cell.tag] = f"it needs {next(tag for tag in needs if tag in summary.failed)}, which failed"
    elif any(tag in summary.postponed for tag in needs) or (cell.kind in CLOCKED and options.sharing > 1):
        summary.postponed.append(cell.tag)
    elif not all(need.finished(options.out) for need in cell.needs):
        return False
    else:
        lock = Lock.take(cell.lock(options.out))
        if lock is None:
            return False
        with lock:
            if cell.finished(options.out):  # since we looked
                summary.finished_before.append(cell.tag)
            else:
                _attempt(cell, options, summary)
    return True


def _attempt(cell: Experiment, options: Options, summary: Summary) -> None:
    """Run a cell that nobody works on, and write its result or why there is none."""
    folder, begin = cell.folder(options.out), time.perf_counter()
    try:
        record = execute(cell, options)
    except NoRoom:  # a full disk would fail the next cell, too
        raise
    except Exception as error:  # one bad cell must not end a study of many hours
        text = f"{type(error).__name__}: {error}" if not isinstance(error, InputError) else str(error)
        write_json(folder / "failed.json", {"error": text, "date": _date(), "version": __version__,
                                            "trace": traceback.format_exc().splitlines()[-12:]})
        summary.failed[cell.tag] = text
        options.say(f"{cell.tag}: FAILED after {time.perf_counter() - begin:.0f} s: {text}")
    else:
        record["seconds"]["total"] = time.perf_counter() - begin
        write_json(folder / "cell.json", record)
        (folder / "failed.json").unlink(missing_ok=True)
        if not options.keep_last:
            (folder / "run" / "last.pt").unlink(missing_ok=True)
        summary.ran.append(cell.tag)
        options.say(f"{cell.tag}: {headline(record)}")
    _free_memory(options.device)


def execute(cell: Experiment, options: Options) -> Record:
    """The result of one cell, as cell.json holds it."""
    from dgnet_paper.study import kinds

    runners = {"classical": _classical, "train": _train, **kinds.RUNNERS}
    head = {"tag": cell.tag, "cell": asdict(cell), "version": __version__, "torch": torch.__version__, "date": _date(),
            "code": code_version(), "device": options.device, "hardware": hardware(torch.device(options.device).type),
            "sharing": options.sharing}
    return {**head, **runners[cell.kind](cell, options)}


# ---------------------------------------------------------------------- the two main kinds


def _classical(cell: Experiment, options: Options) -> Record:
    scenario = cell.definition()
    path, made = data_set(cell, options)
    begin = time.perf_counter()
    points = scenario.mesh.n_nodes + len(scenario.mesh.edges)
    more: dict[str, Model] = {}
    if cell.truth != "same-mesh":
        more = finer(points, options.device, scenario.pde.curved) | without_data(base_problem(scenario, options.device))
    found = judge_file({**rivals(), **more}, scenario, path, options.device)
    write_sample(cell.folder(options.out) / "sample.npz", found)
    return {"about": about(scenario), "seconds": {"generate": made, "evaluate": time.perf_counter() - begin}, **results(found)}


def _train(cell: Experiment, options: Options) -> Record:
    scenario, folder = cell.definition(), cell.folder(options.out)
    path, made = data_set(cell, options)
    training, count = recipe(cell, scenario, path)
    rate: Record = {"factor": 1.0, "trials": {}}
    if options.search and search.searched(training):
        rate = _search(cell, options, search.single_steps(training))
    training = search.Way.read(rate).applied(training, scenario.training.paper, scenario.steps)
    budget = options.budget if search.searched(training) else None  # what is fitted at once has nothing to show if cut short
    _reset_memory(options.device)
    try:
        run, progress = _trained(cell, folder / "run", options, training, budget)
    except InputError as error:
        if "holds another run" not in str(error):
            raise
        shutil.rmtree(folder / "run")  # begun with other settings or another version, never finished
        options.say(f"{cell.tag}: begun with other settings before; started again")
        run, progress = _trained(cell, folder / "run", options, training, budget)
    memory = {"train": _peak_memory(options.device)}
    _reset_memory(options.device)
    begin = time.perf_counter()
    found = judge_file({cell.method: run.model}, scenario, path, options.device)
    memory["evaluate"] = _peak_memory(options.device)
    write_sample(folder / "sample.npz", found)
    own = beside_classical(results(found), cell, options)
    errors = {name: row["rne_from_offset"] for name, row in own["scores"].items()}
    history = [strict(h) for h in progress.history]
    return {"about": about(scenario), "recipe": {"name": training.name, **asdict(training)}, "config": asdict(run.model.config),
            "budget": budget, "rate": rate, "training_trajectories": count, "parameters": parameter_count(run.model),
            "updates": progress.updates, "best_iteration": progress.best_iteration, "validation": strict(progress.best),
            "validation_classical": strict(progress.classical), "validation_steps": progress.validation_steps or scenario.steps,
            "retreats": progress.retreats, "left_out": progress.left_out, "improving": improving(history), "history": history,
            "memory": memory,
            "seconds": {"generate": made, "train": progress.seconds, "evaluate": time.perf_counter() - begin},
            "error_ratio": strict(error_ratio(errors[cell.method], (errors[name] for name in rivals()))), **own}


def _trained(cell: Experiment, folder: Path, options: Options, training: Recipe, budget: float | None) -> tuple[Run, Progress]:
    """The training of a cell, begun or resumed."""
    scenario = cell.definition()
    path, _ = data_set(cell, options)
    found = training_plan(cell, scenario, path)[0]
    return train(scenario, cell.truth, path, folder, replace(found, recipe=training), seed=cell.seed, device=options.device,
                 budget=budget, trajectories=cell.trajectories or None, report=options.tell,
                 portable=False)  # its data can be made again, and a cell is copied from machine to machine


def _search(cell: Experiment, options: Options, windows: bool) -> Record:
    """The way of training of a cell, chosen by trials that take a share of the budget each."""
    def trial(base: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        scenario = base.definition()
        training = recipe(base, scenario, data_set(base, options)[0])[0]
        assert options.budget is not None  # Options sees to it
        options.say(f"{base.tag}: trial {way.name}")
        training = search.for_trial(way.applied(training, scenario.training.paper, scenario.steps))
        found = _trained(base, place, options, training, options.search * options.budget + aside)[1]
        _free_memory(options.device)
        return found

    return search.found_way(cell, options.out, trial, windows)


def training_plan(cell: Experiment, scenario: Scenario, path: Path) -> tuple[Plan, int]:
    """The plan of a training cell, and how many trajectories it is given."""
    how = method(cell.method)
    with Dataset(path) as dataset:
        found = plan_for_data(scenario, dataset, cell.trajectories or None, model=how.model, recipe=how.recipe,
                              unknowns=unknowns_of(scenario, cell.unknown_reaction))
        count = len(dataset.of("train")[:cell.trajectories or None])
    return replace(found, config=found.config if how.config is None else how.config, recipe=found.recipe.scaled(cell.factor)), count


def recipe(cell: Experiment, scenario: Scenario, path: Path) -> tuple[Recipe, int]:
    """The recipe of a training cell, and how many trajectories it is given."""
    found, count = training_plan(cell, scenario, path)
    return found.recipe, count


# ---------------------------------------------------------------------- pieces of a record


def about(scenario: Scenario) -> Record:
    """What a table needs to know of a scenario."""
    return {"nodes": scenario.mesh.n_nodes, "dim": scenario.mesh.dim, "steps": scenario.steps, "dt": scenario.dt,
            "fields": list(scenario.pde.fields), "offset": list(scenario.offsets)}


def results(found: Judged) -> Record:
    """Scores, errors in time and the number of test trajectories."""
    return {"test_trajectories": found.trajectories, "scores": strict(found.scores()), "curves": found.curves()}


def beside_classical(own: Record, cell: Experiment, options: Options) -> Record:
    """The results of a model with those of the classical solvers on the same trajectories, from their own cell."""
    rival = stored.read(cell.needs[0], options.out)
    return {**own, **{key: {**rival[key], **own[key]} for key in ("scores", "curves")}}


def write_sample(path: Path, found: Judged) -> None:
    """Frames of one trajectory: `frames` are step numbers, every other array [frames, N, F] in single precision."""
    arrays: dict[str, Any] = {name: rows.astype(np.float32) for name, rows in found.sample.items()}
    with writing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, frames=np.array(found.frames), **arrays)


def headline(record: Record) -> str:
    """One line about a finished cell."""
    seconds, scores = record["seconds"].get("total", 0.0), record.get("scores")
    if not scores:
        return f"done in {seconds:.0f} s"
    errors = {name: row["rne_from_offset"] for name, row in scores.items()}
    parts = ", ".join(f"{name} {'diverged' if error is None else f'{error:.3g}'}" for name, error in errors.items())
    training = f", {record['seconds']['train']:.0f} s of training, {record['updates']} updates" if "updates" in record else ""
    return f"RNE from offset: {parts}{training}{'' if learned(record) else ', DID NOT LEARN'}, {seconds:.0f} s in all"


# ---------------------------------------------------------------------- data


def data_set(cell: Experiment, options: Options) -> tuple[Path, float]:
    """The data set of a cell and the seconds it took to make it (0 if it was there). One process makes it, others wait."""
    scenario = cell.definition()
    folder = options.data if not cell.few else options.data / f"few-{cell.few}"
    path = folder / f"{file_stem(scenario, cell.truth)}.h5"
    if not path.exists():
        begin = time.perf_counter()
        with locked(folder / f"{scenario.name}-{scenario.size}"):  # its data sets share a flow
            if path.exists():
                return path, 0.0
            options.say(f"{path.name}: generating")
            generate(scenario, folder, truth=cell.truth, trajectories=cell.few or None, device=options.device,
                     report=options.report)
        return path, time.perf_counter() - begin
    wanted = provenance(scenario, cell.truth, scenario.draws(cell.few or None), 0, options.device)
    with Dataset(path) as found:
        for key, value in wanted.items():
            if key != "device" and found.provenance.get(key) != value:  # data may come from another kind of machine
                raise InputError(f"{path} holds a data set with {key} = {found.provenance.get(key)} instead of {value}; "
                                 "choose another --data folder")
    return path, 0.0


def _date() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _reset_memory(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_memory(device: str) -> int | None:
    """The most memory that torch held on a CUDA device since it was reset; None elsewhere."""
    return torch.cuda.max_memory_allocated() if torch.device(device).type == "cuda" else None


def _free_memory(device: str) -> None:
    """Give a shared device its memory back between cells."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
