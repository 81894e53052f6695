"""Running cells: data made once, finished cells skipped, interrupted ones resumed, others' left alone.

    OUT/cells/TAG/cell.json     the result, written last: what has it is finished
    OUT/cells/TAG/run/          the training run with its weights
    OUT/cells/TAG/sample.npz    frames of the first test trajectory, for pictures
    OUT/cells/TAG/failed.json   why it could not be finished the last time
    OUT/cells/TAG/.claim        locked while a process works on it
    DATA/*.h5                   data sets, one per scenario, size, truth and scale

Any number of processes may run the same command at once; each takes the next cell that nobody has. Folders of cells from
several machines are merged by copying.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.bench.timing import hardware
from dgnet.data import Dataset
from dgnet.errors import InputError, NoRoom
from dgnet.files import Lock, holder, strict, write_json, writing
from dgnet.models.base import Model
from dgnet.models.registry import DGNETS, parameter_count
from dgnet.paper import archive
from dgnet.paper.experiment import CLOCKED, Experiment, method
from dgnet.paper.origin import code_version, commit, improving, learned
from dgnet.paper.planning import Options, alike, estimate, expand, generation, has_data
from dgnet.paper.search import Way, for_trial, found_way, searched, single_steps
from dgnet.paper.stored import load, read
from dgnet.problems.case import base_problem
from dgnet.recipe import Recipe
from dgnet.scenarios.generate import file_stem, generate, provenance
from dgnet.scenarios.scenario import Scenario
from dgnet.scoring.judge import Judged, finer, judge_file, rivals, without_data
from dgnet.scoring.metrics import error_ratio
from dgnet.training.checkpoints import Progress
from dgnet.training.plan import Facts, Wishes, baseline_recipe
from dgnet.training.plan import plan as plan_training
from dgnet.training.run import Run, train

POLL = 2.0  # seconds between looks at what others do


@dataclass
class Summary:
    """What one call did."""

    ran: list[str] = field(default_factory=list)
    finished_before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # to other processes: cell -> who
    postponed: list[str] = field(default_factory=list)  # by stop_after, or because their clocks need the device alone


class Busy(Exception):
    """Another process makes the data set that is needed, or looks for the learning rate."""


# ---------------------------------------------------------------------- the loop


def run(cells: Iterable[Experiment], options: Options) -> Summary:
    """Run the cells and whatever they need, in order."""
    if (options.out / archive.CELLS).exists():
        raise InputError(f"{options.out} is a packed study: copy its cells with 'dgnet reproduce merge {options.out} --out NEW', "
                         "then give --out NEW")
    todo, summary, begin = expand(cells), Summary(), time.perf_counter()
    if options.sharing > 1:
        todo = alike(todo)
    for cell in list(todo):
        if cell.finished(options.out):
            summary.finished_before.append(cell.tag)
            todo.remove(cell)
    while todo:
        idle, waiting = True, False
        summary.left.clear()
        for cell in list(todo):
            if any(n.tag in summary.postponed for n in cell.needs):
                summary.postponed.append(cell.tag)
                todo.remove(cell)
                continue
            broken = [n.tag for n in cell.needs if n.tag in summary.failed]
            if broken:
                summary.failed[cell.tag] = f"it needs {broken[0]}, which failed"
                todo.remove(cell)
                continue
            if not all(n.finished(options.out) for n in cell.needs):
                waiting = True
                continue
            late = options.stop_after is not None and not _fits(cell, options, time.perf_counter() - begin)
            if late or (cell.kind in CLOCKED and options.sharing > 1):  # clocks need the device for themselves
                summary.postponed.append(cell.tag)
                todo.remove(cell)
                continue
            try:
                state = attempt(cell, options, summary)
            except Busy:
                waiting = True
                continue
            if state:
                todo.remove(cell)
                idle = False
        if idle and not waiting:
            break
        if idle:
            time.sleep(POLL)
    return summary


def _fits(cell: Experiment, options: Options, elapsed: float) -> bool:
    assert options.stop_after is not None
    done = load([options.out]) if options.out.is_dir() else {}
    making = 0.0 if has_data(cell, options) else generation(cell)
    return elapsed + making + estimate(cell, options, done) <= options.stop_after


def attempt(cell: Experiment, options: Options, summary: Summary) -> bool:
    """Run a cell that nobody works on; True when it needs no more attention, False when it is someone else's."""
    folder = cell.folder(options.out)
    claim = Lock.take(folder / ".claim")
    if claim is None:
        summary.left[cell.tag] = holder(folder / ".claim")
        return False
    with claim:
        if cell.finished(options.out):  # since we looked
            summary.finished_before.append(cell.tag)
            return True
        begin = time.perf_counter()
        try:
            record = execute(cell, options)
        except (Busy, NoRoom):  # a full disk would fail the next cell, too
            raise
        except Exception as error:  # one bad cell must not end a study of many hours
            text = f"{type(error).__name__}: {error}" if not isinstance(error, InputError) else str(error)
            write_json(folder / "failed.json", {"error": text, "date": _date(), "version": __version__,
                                                "trace": traceback.format_exc().splitlines()[-12:]})
            summary.failed[cell.tag] = text
            options.say(f"{cell.tag}: FAILED after {time.perf_counter() - begin:.0f} s: {text}")
            _forget(options.device)
            return True
        record["seconds"]["total"] = time.perf_counter() - begin
        write_json(folder / "cell.json", record)
        (folder / "failed.json").unlink(missing_ok=True)
        if not options.keep_last:
            (folder / "run" / "last.pt").unlink(missing_ok=True)
        summary.ran.append(cell.tag)
        options.say(f"{cell.tag}: {headline(record)}")
        _forget(options.device)
        return True


def execute(cell: Experiment, options: Options) -> dict[str, Any]:
    """The result of one cell, as cell.json holds it."""
    from dgnet.paper import kinds as more

    runners = {"classical": _classical, "train": _train, **more.RUNNERS}
    return {**_header(cell, options), **runners[cell.kind](cell, options)}


def _header(cell: Experiment, options: Options) -> dict[str, Any]:
    return {"tag": cell.tag, "cell": asdict(cell), "version": __version__, "torch": torch.__version__, "date": _date(),
            "code": code_version(), "commit": commit(), "device": options.device,
            "hardware": hardware(torch.device(options.device).type), "sharing": options.sharing}


# ---------------------------------------------------------------------- the two main kinds


def _classical(cell: Experiment, options: Options) -> dict[str, Any]:
    scenario = cell.definition()
    path, made = data_set(cell, options)
    begin = time.perf_counter()
    points = scenario.mesh.n_nodes + len(scenario.mesh.edges)
    more: dict[str, Model] = {}
    if cell.truth != "same-mesh":
        more = finer(points, options.device, scenario.pde.curved) | without_data(base_problem(scenario, options.device))
    found = judge_file({**rivals(), **more}, scenario, path, options.device)
    write_sample(cell.folder(options.out) / "sample.npz", found)
    return {"about": about(scenario), "seconds": {"generate": made, "evaluate": time.perf_counter() - begin},
            **results(found)}


def _train(cell: Experiment, options: Options) -> dict[str, Any]:
    scenario, folder = cell.definition(), cell.folder(options.out)
    path, made = data_set(cell, options)
    training, count = recipe(cell, scenario, path)
    rate: dict[str, Any] = {"factor": 1.0, "trials": {}}
    if options.search and searched(training):
        rate = _way(cell, options, single_steps(training))
    training = Way.read(rate).applied(training, scenario.training.paper, scenario.steps)
    budget = options.budget if searched(training) else None  # what is fitted at once has nothing to show when it is cut short
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
    rival = read(cell.needs[0], options.out)
    own = results(found)
    for key in ("scores", "curves"):  # the classical rows on the same trajectories, from their own cell
        own[key] = {**rival[key], **own[key]}
    history = [strict(h) for h in progress.history]
    errors = {name: row["rne_from_offset"] for name, row in own["scores"].items()}
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
    scenario, how = cell.definition(), method(cell.method)
    path, _ = data_set(cell, options)
    config = how.config
    if getattr(config, "plain", False):  # variants of the paper's model have its networks
        config = replace(config, norm=scenario.training.paper.norm)
    return train(scenario, cell.truth, path, folder, model=how.model, recipe=how.recipe, seed=cell.seed, device=options.device,
                 budget=budget, trajectories=cell.trajectories or None, config=config, plan=training,
                 unknown_reaction=cell.unknown_reaction, report=options.tell,
                 portable=False)  # its data can be made again, and a cell is copied from machine to machine


def _way(cell: Experiment, options: Options, windows: bool) -> dict[str, Any]:
    """The way of training, looked for with a share of the budget for each trial."""
    def trial(base: Experiment, place: Path, way: Way, aside: float) -> Progress:
        scenario = base.definition()
        training = recipe(base, scenario, data_set(base, options)[0])[0]
        assert options.budget is not None  # Options sees to it
        options.say(f"{base.tag}: trial {way.name}")
        training = for_trial(way.applied(training, scenario.training.paper, scenario.steps))
        found = _trained(base, place, options, training, options.search * options.budget + aside)[1]
        _forget(options.device)
        return found

    found = found_way(cell, options.out, trial, windows)
    if found is None:
        raise Busy
    return found


def recipe(cell: Experiment, scenario: Scenario, path: Path) -> tuple[Recipe, int]:
    """The recipe of a training cell, and how many trajectories it is given."""
    how = method(cell.method)
    with Dataset(path) as dataset:
        facts = Facts.of(dataset, cell.trajectories or None)
    if how.model in DGNETS:
        found = plan_training(scenario, facts, Wishes(how.recipe, cell.unknown_reaction))[1]
    else:
        found = baseline_recipe(how.model, scenario, facts)
    return found.scaled(cell.factor), facts.trajectories


def about(scenario: Scenario) -> dict[str, Any]:
    """What a table needs to know of a scenario."""
    return {"nodes": scenario.mesh.n_nodes, "dim": scenario.mesh.dim, "steps": scenario.steps, "dt": scenario.dt,
            "fields": list(scenario.pde.fields), "offset": list(scenario.offsets)}


def results(found: Judged) -> dict[str, Any]:
    return {"test_trajectories": found.trajectories, "scores": strict(found.scores()), "curves": found.curves()}


def write_sample(path: Path, found: Judged) -> None:
    """Frames of one trajectory: `frames` are step numbers, every other array [frames, N, F] in single precision."""
    arrays: dict[str, Any] = {name: rows.astype(np.float32) for name, rows in found.sample.items()}
    with writing(path) as part, part.open("wb") as file:
        np.savez_compressed(file, frames=np.array(found.frames), **arrays)


# ---------------------------------------------------------------------- data


def data_set(cell: Experiment, options: Options, wait: bool = False) -> tuple[Path, float]:
    """The data set of a cell and the seconds it took to make it (0 if it was there). Busy while another process makes it."""
    scenario = cell.definition()
    folder = options.data if not cell.few else options.data / f"few-{cell.few}"
    path = folder / f"{file_stem(scenario, cell.truth)}.h5"
    if not path.exists():
        begin = time.perf_counter()
        # one process per scenario (they share a flow), and few of them in all
        with _locked(folder / f".{scenario.name}-{scenario.size}.lock", wait):
            if path.exists():
                return path, 0.0
            with _slot(folder, wait, options.makers):
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


def _locked(path: Path, wait: bool) -> Lock:
    claim = Lock.take(path, wait)
    if claim is None:
        raise Busy
    return claim


def _slot(folder: Path, wait: bool, makers: int) -> Lock:
    while True:
        for number in range(makers):
            claim = Lock.take(folder / f".slot-{number}.lock")
            if claim is not None:
                return claim
        if not wait:
            raise Busy
        time.sleep(POLL)


# ---------------------------------------------------------------------- reading, merging, planning


def headline(record: dict[str, Any]) -> str:
    """One line about a finished cell."""
    kind, seconds = record["cell"]["kind"], record["seconds"].get("total", 0.0)
    scores = record.get("scores")
    if not scores:
        return f"done in {seconds:.0f} s"
    parts = [f"{name} {_short(row['rne_from_offset'])}" for name, row in scores.items()]
    extra = ""
    if kind == "train":
        extra = f", {record['seconds']['train']:.0f} s of training, {record['updates']} updates"
        extra += "" if learned(record) else ", DID NOT LEARN"
    return f"RNE from offset: {', '.join(parts)}{extra}, {seconds:.0f} s in all"


# ---------------------------------------------------------------------- pieces


def _date() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _short(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.3g}"


def _reset_memory(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_memory(device: str) -> int | None:
    return torch.cuda.max_memory_allocated() if torch.device(device).type == "cuda" else None


def _forget(device: str) -> None:
    """Give a shared device its memory back between cells."""
    import gc

    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
