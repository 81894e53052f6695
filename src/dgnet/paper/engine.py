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

import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.bench.timing import hardware
from dgnet.data import Dataset
from dgnet.errors import InputError, NoRoom
from dgnet.files import Lock, discard, holder, read_json, strict, unfinished, unwritable, write_json, writing
from dgnet.models.registry import DGNETS, parameter_count
from dgnet.paper import archive
from dgnet.paper.cell import CLOCKED, Cell, current_methods, method
from dgnet.progress import Report
from dgnet.scenarios.generate import file_stem, generate, provenance
from dgnet.scenarios.scenario import Scenario
from dgnet.scoring.judge import Judged, judge_file, rivals
from dgnet.scoring.metrics import current_names, error_ratio
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import Tell
from dgnet.training.plan import Facts, Wishes, baseline_recipe
from dgnet.training.plan import plan as plan_training
from dgnet.training.run import Run, train

Say = Callable[[str], None]

POLL = 2.0  # seconds between looks at what others do


@dataclass(frozen=True)
class Options:
    """How cells are run; none of it decides what a cell is."""

    data: Path
    out: Path
    device: str = "cpu"
    budget: float | None = None  # seconds of training per cell
    makers: int = 2  # data sets made at once in one folder: each may fill a good part of a device
    sharing: int = 1  # processes that were told to share the device
    keep_last: bool = False  # the checkpoint to resume from, of finished cells
    stop_after: float | None = None  # start no cell that would, by its estimate, end later than so many seconds from the start
    report: Report | None = None
    tell: Tell | None = None
    say: Say = print


@dataclass
class Summary:
    """What one call did."""

    ran: list[str] = field(default_factory=list)
    finished_before: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)  # to other processes: cell -> who
    postponed: list[str] = field(default_factory=list)  # by stop_after, or because their clocks need the device alone


class Busy(Exception):
    """Another process makes the data set that is needed."""


# ---------------------------------------------------------------------- the loop


def run(cells: Iterable[Cell], options: Options) -> Summary:
    """Run the cells and whatever they need, in order."""
    todo, summary, begin = expand(cells), Summary(), time.perf_counter()
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


def _fits(cell: Cell, options: Options, elapsed: float) -> bool:
    assert options.stop_after is not None
    done = load([options.out]) if options.out.is_dir() else {}
    making = 0.0 if has_data(cell, options) else generation(cell)
    return elapsed + making + estimate(cell, options, done) <= options.stop_after


def expand(cells: Iterable[Cell]) -> list[Cell]:
    """The cells with all they need, each once, what is needed first."""
    out: dict[Cell, None] = {}

    def add(cell: Cell) -> None:
        for need in cell.needs:
            add(need)
        out.setdefault(cell)

    for cell in cells:
        add(cell)
    return list(out)


def attempt(cell: Cell, options: Options, summary: Summary) -> bool:
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


def execute(cell: Cell, options: Options) -> dict[str, Any]:
    """The result of one cell, as cell.json holds it."""
    from dgnet.paper import kinds as more

    runners = {"classical": _classical, "train": _train, **more.RUNNERS}
    return {**_header(cell, options), **runners[cell.kind](cell, options)}


def _header(cell: Cell, options: Options) -> dict[str, Any]:
    return {"tag": cell.tag, "cell": asdict(cell), "version": __version__, "torch": torch.__version__, "date": _date(),
            "device": options.device, "hardware": hardware(torch.device(options.device).type), "sharing": options.sharing}


# ---------------------------------------------------------------------- the two main kinds


def _classical(cell: Cell, options: Options) -> dict[str, Any]:
    scenario = cell.definition()
    path, made = data_set(cell, options)
    begin = time.perf_counter()
    found = judge_file(rivals(), scenario, path, options.device)
    write_sample(cell.folder(options.out) / "sample.npz", found)
    return {"about": about(scenario), "seconds": {"generate": made, "evaluate": time.perf_counter() - begin},
            **results(found)}


def _train(cell: Cell, options: Options) -> dict[str, Any]:
    scenario, how = cell.definition(), method(cell.method)
    folder = cell.folder(options.out)
    path, made = data_set(cell, options)
    training, config, count = recipe(cell, scenario, path)
    _reset_memory(options.device)

    def attempt_training() -> tuple[Run, Progress]:
        return train(scenario, cell.truth, path, folder / "run", model=how.model, recipe=how.recipe, seed=cell.seed,
                     device=options.device, budget=options.budget, trajectories=cell.trajectories or None, config=config,
                     plan=training, unknown_reaction=cell.unknown_reaction, report=options.tell,
                     portable=False)  # its data can be made again, and a cell is copied from machine to machine

    try:
        run, progress = attempt_training()
    except InputError as error:
        if "holds another run" not in str(error):
            raise
        shutil.rmtree(folder / "run")  # begun with other settings or another version, never finished
        options.say(f"{cell.tag}: begun with other settings before; started again")
        run, progress = attempt_training()
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
    errors = {name: row["rne_from_offset"] for name, row in own["scores"].items()}
    return {"about": about(scenario), "recipe": {"name": training.name, **asdict(training)}, "config": asdict(run.model.config),
            "budget": options.budget, "training_trajectories": count, "parameters": parameter_count(run.model),
            "iterations": progress.updates, "best_iteration": progress.best_iteration, "validation": strict(progress.best),
            "validation_classical": strict(progress.classical), "memory": memory,
            "history": [strict(h) for h in progress.history],
            "seconds": {"generate": made, "train": progress.seconds, "evaluate": time.perf_counter() - begin},
            "error_ratio": strict(error_ratio(errors[cell.method], (errors[name] for name in rivals()))), **own}


def recipe(cell: Cell, scenario: Scenario, path: Path) -> tuple[Any, Any, int]:
    """(recipe, configuration or None for the preset, training trajectories) of a training cell."""
    how = method(cell.method)
    with Dataset(path) as dataset:
        facts = Facts.of(dataset, cell.trajectories or None)
    if how.model in DGNETS:
        found = plan_training(scenario, facts, Wishes(how.recipe, cell.unknown_reaction))[1]
    else:
        found = baseline_recipe(how.model, scenario, facts)
    return found.scaled(cell.factor), how.config, facts.trajectories


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


def data_set(cell: Cell, options: Options, wait: bool = False) -> tuple[Path, float]:
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


def read(cell: Cell, out: Path) -> dict[str, Any]:
    return current_names(read_json(cell.folder(out) / "cell.json"))


def load(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """All finished cells of some studies by tag, packed ones included; `folder` is where each lies. The later of two counts."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        if not (folder / "cells").is_dir() and not (folder / archive.CELLS).exists():
            raise InputError(f"{folder} is no study: it has neither a folder 'cells' nor a file {archive.CELLS}")
        for path, record in (*archive.records(folder), *_loose(folder)):
            tag, record = record["tag"], _checked(record, path)
            if tag not in found or record.get("date", "") > found[tag].get("date", ""):
                found[tag] = record
    return found


def _loose(folder: Path) -> Iterable[tuple[Path, dict[str, Any]]]:
    """The cells of a study that is being worked on, each in a folder of its own."""
    for path in sorted(folder.glob("cells/*/cell.json")):
        record = current_methods(current_names(read_json(path, {"tag": str})))
        if path.parent.name != record.get("stored_as", record["tag"]):
            raise InputError(f"{path}: '{record['tag']}' is not the name of a cell in this folder")
        yield path, {**record, "folder": path.parent}


class _Part(dict[str, Any]):
    """Of a record: who asks for something that is not there is told which file lacks it."""

    def __init__(self, rows: Mapping[str, Any], path: Path) -> None:
        super().__init__(rows)
        self.path = path

    def __missing__(self, key: str) -> None:
        raise InputError(f"{self.path} is damaged: it has no '{key}'")


def _checked(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record of a cell, unless its parts are not what tables and pictures expect."""
    try:
        cell = Cell.parse(record["tag"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if cell.tag != record["tag"]:
        raise InputError(f"{path}: '{record['tag']}' is not the name of a cell")
    wanted: dict[str, type] = {"about": dict, "history": list, "curves": dict, "scores": dict, "cell": dict, "date": str,
                               "seconds": dict}
    for key, kind in wanted.items():
        if not isinstance(record.get(key, kind()), kind):
            raise InputError(f"{path} is damaged: '{key}' is of the wrong kind")
    for name, row in record.get("scores", {}).items():
        figures = [row.get(k) for k in ("rne", "mse", "rne_from_offset")] if isinstance(row, dict) else [""]
        if any(not isinstance(v, int | float | None) for v in figures):
            raise InputError(f"{path} is damaged: the scores of '{name}' are not numbers")
    if any(not isinstance(v, int | float) for v in record.get("seconds", {}).values()):
        raise InputError(f"{path} is damaged: its seconds are not numbers")
    if "scores" in record:
        record["scores"] = _Part({name: _Part(row, path) for name, row in record["scores"].items()}, path)
    return _Part(record, path)


def failures(folders: Sequence[Path]) -> dict[str, str]:
    """Cells that were tried and could not be finished, with the reason."""
    out = {}
    for folder in folders:
        for path in sorted(folder.glob("cells/*/failed.json")):
            if not (path.parent / "cell.json").exists():
                out[path.parent.name] = str(read_json(path).get("error", ""))
    return out


def merge(sources: Sequence[Path], out: Path) -> list[str]:
    """Copy the finished cells of other studies that OUT does not have; returns their tags."""
    here, copied = load([out]) if (out / "cells").is_dir() else {}, []
    wanted = {tag: record for tag, record in load(sources).items() if tag not in here}
    for record in wanted.values():  # before the first is copied
        if (record["folder"] / "cell.json").is_symlink():
            raise InputError(f"{record['folder'] / 'cell.json'} is a symbolic link, which merge does not follow")
    for tag, record in wanted.items():
        target = out / "cells" / tag
        part = unfinished(target)
        try:
            if (record["folder"] / archive.CELLS).exists():
                write_json(part / "cell.json", {k: v for k, v in record.items() if k != "folder"})
            else:
                shutil.copytree(record["folder"], part, ignore=_not_merged)
            with _locked(target / ".claim", wait=True):
                for item in part.iterdir():  # cell.json last: what has it is finished
                    if item.name != "cell.json":
                        if (target / item.name).is_dir():
                            discard(target / item.name)
                        os.replace(item, target / item.name)
                os.replace(part / "cell.json", target / "cell.json")
        except (OSError, shutil.Error) as error:
            raise unwritable(target, error) from error
        finally:
            discard(part)
        copied.append(tag)
    return copied


def _not_merged(folder: str, names: list[str]) -> set[str]:
    """What stays behind: unfinished things, and symbolic links, which could point to any file of this machine."""
    return {name for name in names if (Path(folder) / name).is_symlink() or name in (".claim", "last.pt") or ".part" in name}


_GENERATION = {  # seconds of a whole data set, converged truth: one H200 for paper size, one core for small
    "paper": {"cylinder": 67, "laser-heat": 17, "allen-cahn": 6, "fisher-kpp": 9, "laser-heat-3d": 15, "fitzhugh-nagumo": 19,
              "phase-transition": 30, "sediments": 129, "wavy-channel": 160, "light-reaction": 150, "obstacles": 200},
    "small": {name: 9 for name in ("cylinder", "sediments", "obstacles", "wavy-channel")}}
_TRAINING = {"paper": 300.0, "small": 45.0}  # seconds, where nothing is known


@dataclass(frozen=True)
class Item:
    """A line of a plan."""

    cell: Cell
    state: str  # finished | running | failed | missing
    seconds: float  # still to come
    command: str
    note: str = ""


def plan(cells: Iterable[Cell], options: Options) -> list[Item]:
    """What is finished, what is missing, how long it will take, and the command for each cell."""
    done = load([options.out]) if (options.out / "cells").is_dir() else {}
    failed = failures([options.out]) if (options.out / "cells").is_dir() else {}
    items, planned = [], set()
    for cell in expand(cells):
        command = command_of(cell, options)
        if cell.tag in done:
            items.append(Item(cell, "finished", 0.0, command))
            continue
        who = holder(cell.folder(options.out) / ".claim")
        key = (cell.scenario, cell.size, cell.truth, cell.scale, cell.few)
        seconds = estimate(cell, options, done)
        if cell.kind in ("classical", "train") and key not in planned and not has_data(cell, options):
            planned.add(key)
            seconds += generation(cell)
        state = "running" if who else "failed" if cell.tag in failed else "missing"
        items.append(Item(cell, state, seconds, command, who or failed.get(cell.tag, "")))
    return items


def generation(cell: Cell) -> float:
    """Seconds for the data set of a cell, roughly."""
    return 3.0 if cell.few else float(_GENERATION[cell.size].get(cell.scenario, 4))


def estimate(cell: Cell, options: Options, done: dict[str, dict[str, Any]]) -> float:
    """Seconds of a cell without its data: as finished cells of its like took, else the budget."""
    alike = [r for r in done.values() if r["cell"]["kind"] == cell.kind and r["cell"]["size"] == cell.size
             and r["device"] == options.device and (r["cell"]["factor"] < 1.0) == (cell.factor < 1.0)]
    same = [r for r in alike if r["cell"]["scenario"] == cell.scenario]
    exact = [r for r in same if r["cell"]["method"] == cell.method]
    for group in (exact, same, alike):
        if group:
            took = float(np.mean([r["seconds"]["total"] - r["seconds"].get("generate", 0.0) for r in group]))
            if cell.kind == "train" and options.budget is not None:  # trained as long as now allowed, judged as before
                took = float(np.mean([r["seconds"].get("evaluate", 5.0) for r in group])) + options.budget
            return took
    if cell.kind != "train":
        return 10.0 if cell.size == "small" else 60.0
    if cell.factor < 1.0:
        return 5.0
    return 15.0 + (_TRAINING[cell.size] if options.budget is None else options.budget)


def command_of(cell: Cell, options: Options) -> str:
    budget = f" --budget {options.budget / 60:g}" if options.budget is not None and cell.kind == "train" else ""
    device = f" --device {options.device}" if options.device != "cpu" else ""
    return f"dgnet reproduce {cell.tag} --data {options.data} --out {options.out}{budget}{device}"


def headline(record: dict[str, Any]) -> str:
    """One line about a finished cell."""
    kind, seconds = record["cell"]["kind"], record["seconds"].get("total", 0.0)
    scores = record.get("scores")
    if not scores:
        return f"done in {seconds:.0f} s"
    parts = [f"{name} {_short(row['rne_from_offset'])}" for name, row in scores.items()]
    extra = f", {record['seconds']['train']:.0f} s of training, {record['iterations']} iterations" if kind == "train" else ""
    return f"RNE from offset: {', '.join(parts)}{extra}, {seconds:.0f} s in all"


# ---------------------------------------------------------------------- pieces


def has_data(cell: Cell, options: Options) -> bool:
    if cell.method == "every":
        return True  # it needs none
    folder = options.data if not cell.few else options.data / f"few-{cell.few}"
    return (folder / f"{file_stem(cell.definition(), cell.truth)}.h5").exists()


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
