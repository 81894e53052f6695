"""Commands about the paper's evidence: reproduce, score, report."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgnet.cli.options import PROCESSES, all_named, file_to_write, folder_to_write, page_to_write, positive, refuse
from dgnet.cli.screen import narrating, reporting, say, say_path, table
from dgnet.cli.shell import Device, Json, checked_device, undisturbed, write_json
from dgnet.errors import InputError
from dgnet.files import write_text
from dgnet.progress import Report
from dgnet_paper.cli.frame import Size, Truth, advise, command

if TYPE_CHECKING:
    from dgnet_paper.study.planning import Item
    from dgnet_paper.study.results import Setting

_NAMED = ("scenarios", "models", "size", "truth", "seeds", "few", "factor", "trajectories", "unknown_reaction")
"""Options that choose cells of a target; the name of a single cell holds them all."""


def _listed(values: list[str] | None) -> tuple[str, ...]:
    """Names given one by one, or several at once with commas or spaces."""
    return tuple(name for value in values or () for name in value.replace(",", " ").split())


@command("dgnet-paper reproduce table-main --scenarios laser-heat --models dgnet,mgn --budget 10 --out study",
         "dgnet-paper reproduce table-main --plan", "dgnet-paper reproduce merge other-study --out study")
def reproduce(context: typer.Context,
              target: Annotated[str, typer.Argument(help="table-main, table-recent, table-3d, table-wavy, table-light, "
                                                    "table-robustness, ablation, throughput, scaling, tradeoff, spectrum, "
                                                    "operator, fields, failure, data-efficiency, dgnet, long, all; the name of "
                                                    "one cell; merge (copy cells of other studies); or pack (write "
                                                    "studies as one small store).")],
              sources: Annotated[list[Path] | None, typer.Argument(help="With merge and pack: where to take cells from.")] = None,
              out: Annotated[Path, typer.Option(help="Folder of the study; finished cells are skipped.",
                                          callback=folder_to_write(shared=True))] = Path("out/reproduce"),
              data: Annotated[Path | None, typer.Option(help="Folder of data sets, generated when missing; the default is "
                                                             "OUT/data.")] = None,
              scenarios: Annotated[list[str] | None, typer.Option(help="Only these scenarios (several: a,b,c).",
                                                                  callback=all_named)] = None,
              models: Annotated[list[str] | None, typer.Option(help="Only these models (several: a,b,c); dgnet-paper is "
                                                               "the paper's, mgn-published a model's own size.",
                                                               callback=all_named)] = None,
              size: Size = "small", truth: Truth = "converged",
              seeds: Annotated[int, typer.Option(help="Seeds 0 .. K-1.", min=1, max=1000)] = 1,
              budget: Annotated[float | None, typer.Option(help="Minutes of training per cell.", callback=positive)] = None,
              search: Annotated[float, typer.Option(help="Share of the budget for each of three or four trials that choose how a "
                                                    "network is trained: its own learning rate, half of it, twice of it; single "
                                                    "steps or windows. 0 for no search.",
                                                    min=0.0, max=1.0)] = 0.0,
              trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.", min=1)] = None,
              unknown_reaction: Annotated[bool, typer.Option(help="DGNet learns the reaction from data instead of using the known "
                                                                  "one.")] = False,
              sharing: Annotated[int, typer.Option(help="Number of processes that share the device; recorded in the "
                                                        "cells.", min=1)] = 1,
              workers: Annotated[int, typer.Option(help="Number of processes to start. They share the cells and the device; "
                                                   "their output goes to OUT/logs.", min=1, max=PROCESSES)] = 1,
              makers: Annotated[int, typer.Option(help="Largest number of processes that generate data sets at once.", min=1,
                                                   max=PROCESSES)] = 2,
              stop_after: Annotated[float | None, typer.Option(help="Start no cell that would end later than this many "
                                                               "minutes from now.", callback=positive)] = None,
              few: Annotated[int, typer.Option(help="Trial: number of trajectories per split; 0 for all.", min=0)] = 0,
              factor: Annotated[float, typer.Option(help="Trial: fraction of each recipe's iterations.",
                                                    callback=positive)] = 1.0,
              plan: Annotated[bool, typer.Option("--plan", help="Run nothing; list what is missing and how long it "
                                                                "takes.")] = False,
              keep_last: Annotated[bool, typer.Option(help="Keep the resume checkpoint of finished cells.")] = False,
              device: Device = "cpu", json_path: Json = None) -> None:
    """Regenerate a table or figure of the paper, cell by cell (a cell is one experiment).

    If interrupted, rerun to resume. Processes started with the same --out share the cells. `dgnet-paper report` writes the pages.
    """
    from dgnet_paper.study import engine, planning
    from dgnet_paper.study.results import Setting
    from dgnet_paper.study.targets import Choice, cells

    if target in ("merge", "pack"):
        kept = {"target", "sources", "out", "json_path"}
        refuse(context, {name: f"{target} only copies cells" for name in context.params if name not in kept})
        _copy(target, sources or [], out, json_path)
        return
    if sources:
        raise InputError(f"'{sources[0]}' does not apply to '{target}'; only merge and pack take folders")
    if "_" in target:
        refuse(context, {name: "the name of a cell contains it" for name in _NAMED})
    checked_device(device)
    wanted = cells(target, Choice(_listed(scenarios), _listed(models), size, truth, seeds, trajectories or 0, unknown_reaction, few,
                                  factor))
    seconds = None if budget is None else 60 * budget
    where = data or out / "data"
    late = None if stop_after is None else 60 * stop_after
    options = planning.Options(where, out, device, seconds, search, makers, sharing, keep_last, late)
    if plan:
        _tell_plan(planning.plan(wanted, options), out, json_path)
        return
    if workers > 1:
        settings: dict[str, Any] = {"--out": out, "--data": where, "--budget": budget, "--search": search, "--makers": makers,
                                    "--sharing": max(workers, sharing), "--stop-after": stop_after, "--device": device}
        chosen = {"--scenarios": ",".join(scenarios or ()), "--models": ",".join(models or ()), "--size": size, "--truth": truth,
                  "--seeds": seeds, "--trajectories": trajectories, "--few": few, "--factor": factor}
        settings |= {} if "_" in target else chosen
        flags = ["--unknown-reaction"] * unknown_reaction + ["--keep-last"] * keep_last
        _run_crew(workers, [target, *_given(settings), *flags], out, len(planning.expand(wanted)), json_path)
        return
    with narrating(seconds or 1e9) as (report, tell):
        summary = engine.run(wanted, replace(options, report=report, tell=tell, say=say))
    say(f"{len(summary.ran)} cells run, {len(summary.finished_before)} finished before, {len(summary.failed)} failed, "
        f"{len(summary.left)} left to other processes, {len(summary.postponed)} postponed")
    drawn = [] if summary.left or "_" in target else _draw(target, out, Setting(size, truth, few, factor), _listed(scenarios))
    write_json(json_path, {**asdict(summary), "figures": [str(p) for p in drawn]})
    advise("report", out)
    _tell_failed(summary.failed)


def _given(settings: Mapping[str, Any]) -> list[str]:
    """Options as they are written on a command line."""
    return [str(part) for key, value in settings.items() if value not in (None, "") for part in (key, value)]


def _copy(target: str, sources: list[Path], out: Path, json_path: Path | None) -> None:
    """Cells of other studies: into a study (merge), or into one small store (pack)."""
    from dgnet_paper.study import stored
    from dgnet_paper.study.results import pack

    if not sources:
        raise InputError(f"{target} needs the studies to take cells from")
    if target == "merge":
        copied = stored.merge(sources, out)
        write_json(json_path, copied)
        say(f"{len(copied)} cells copied to {out}")
    else:
        count = pack(sources, out)
        write_json(json_path, {"cells": count})
        say(f"{count} cells packed into {out}")
    advise("report", out)


def _draw(target: str, out: Path, setting: Setting, scenarios: Sequence[str]) -> list[Path]:
    """Pictures of the cells; of several processes, one draws."""
    from dgnet.files import Lock
    from dgnet_paper.study.drawing import pictures
    from dgnet_paper.study.results import Shelf
    from dgnet_paper.study.targets import targets

    claim = Lock.take(out / "figures" / ".claim") if out.is_dir() else None
    if claim is None:
        return []
    shelf = Shelf.open([out])
    drawn = [path for one in targets(target) for path in pictures(one.name, shelf, setting, out / "figures", scenarios)]
    claim.release()
    for path in dict.fromkeys(drawn):
        say_path(path)
    return drawn


def _tell_failed(failed: Mapping[str, str]) -> None:
    """Name the cells that failed; the exit code says so, too."""
    for tag, reason in failed.items():
        say(f"failed: {tag}: {reason}")
    if failed:
        raise typer.Exit(1)


def _run_crew(workers: int, arguments: list[str], out: Path, cells: int, json_path: Path | None) -> None:
    with reporting() as progress:
        done = crew(workers, arguments, out, cells, progress)
    write_json(json_path, done)
    say(f"{done['finished']} of {done['cells']} cells finished, {len(done['failed'])} failed")
    _tell_failed(done["failed"])


def crew(workers: int, arguments: list[str], out: Path, cells: int, progress: Report) -> dict[str, Any]:
    """Run `dgnet-paper reproduce ARGUMENTS` in several processes at once and wait for them."""
    from dgnet_paper.study.stored import failures

    logs = out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    known = set(out.glob("cells/*/cell.json"))
    environment = {"OMP_NUM_THREADS": "1", **os.environ}  # threads of many processes would only wait for each other
    running: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        stack.callback(end, running)
        for number in range(workers):
            log = stack.enter_context((logs / f"worker-{number}.log").open("w"))
            with undisturbed():
                running.append(subprocess.Popen([sys.executable, "-m", "dgnet_paper", "reproduce", *arguments], stdout=log,
                                                stderr=subprocess.STDOUT, env=environment))
        while any(p.poll() is None for p in running):
            progress("cells", len(set(out.glob("cells/*/cell.json")) - known), cells)
            time.sleep(1.0)
    if any(p.returncode not in (0, 1) for p in running):
        last = (logs / "worker-0.log").read_text().strip().splitlines()[-1:]
        raise InputError(f"a worker could not run: {' '.join(last)}")
    return {"cells": cells, "finished": len(set(out.glob("cells/*/cell.json"))), "failed": failures([out])}


def end(processes: Sequence[subprocess.Popen[bytes]], patience: float = 3.0) -> None:
    """Ask the processes to stop, and end those that have not within `patience` seconds: a study survives a kill."""
    late = time.monotonic() + patience
    for p in processes:
        p.terminate()
    for p in processes:
        try:
            p.wait(max(0.0, late - time.monotonic()))
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()


def _tell_plan(items: list[Item], out: Path, json_path: Path | None) -> None:
    """List what is missing, with the command of each cell; the cells of a packed study are to be copied first."""
    from dgnet_paper.study import archive

    missing = [i for i in items if i.state != "finished"]
    for item in missing:
        note = f"  ({item.state}: {item.note})" if item.note else ""
        say(f"{_clock(item.seconds):>8}  {item.command}{note}")
    total = sum(i.seconds for i in missing)
    say(f"{len(items) - len(missing)} of {len(items)} cells finished; {len(missing)} missing, about {_clock(total)} for "
        "one process")
    write_json(json_path, [{"tag": i.cell.tag, "state": i.state, "seconds": i.seconds, "command": i.command, "note": i.note}
                           for i in items])
    advise("reproduce", *(("merge", out, "--out", "out/study") if (out / archive.CELLS).exists() else ("--help",)))


def _clock(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1.5:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


@command("dgnet-paper report study --out report.html")
def report(folders: Annotated[list[Path], typer.Argument(help="Folders of studies.")],
           out: Annotated[Path, typer.Option(help="HTML file to write, self-contained.",
                                          callback=file_to_write(".html"))] = Path("out/report.html"),
           markdown: Annotated[Path | None, typer.Option(help="Also write a Markdown page with pictures: FILE.md, or a "
                                                              "folder.", callback=page_to_write)] = None,
           dgnet: Annotated[Path | None, typer.Option(help="Also write the comparison of DGNet with the classical solvers: "
                                                           "FILE.md.", callback=file_to_write(".md"))] = None,
           ) -> None:
    """Write tables and pictures of finished cells, with the paper's figures beside ours."""
    from dgnet_paper.study import evidence, summary

    with reporting() as progress:
        written = evidence.write(folders, out, markdown, progress)
    if dgnet is not None:
        write_text(dgnet, summary.markdown(folders))
        written.append(dgnet)
    for path in written:
        say(f"wrote {path}")
    advise("reproduce", "all", "--out", folders[0], "--plan")


@command("dgnet-paper score rollout.h5 data/laser-heat-small-converged.h5 --trajectory 0")
def score(predictions: Annotated[Path, typer.Argument(help="Predicted states: a dgnet data set, or HDF5 with 'state'.")],
          truth: Annotated[Path, typer.Argument(help="True states: a dgnet data set.")],
          split: Annotated[str | None, typer.Option(help="Only this split, test or train.")] = None,
          trajectory: Annotated[int | None, typer.Option(help="Number in TRUTH of a single predicted trajectory.",
                                                          min=0)] = None,
          json_path: Json = None) -> None:
    """Score the predictions of any model: MSE, RNE of the rollout, from the offset and of the last step, time until RNE is 0.1."""
    from dgnet_paper.study.predictions import score_files
    from dgnet_paper.study.results import number

    result = score_files(predictions, truth, split, trajectory)
    write_json(json_path, result)
    found = result["score"]
    until = "never" if found["until"] is None else f"{number(found['until'])} ({100 * found['until_share']:.0f}% of the horizon)"
    rows = [("MSE", found["mse"]), ("log10 MSE", found["log10_mse"]), ("RNE over the rollout", found["rne"]),
            ("RNE from offset", found["rne_from_offset"]), ("RNE of the last step", found["rne_final"]),
            *((f"RNE from offset of {name}", value) for name, value in found["fields"].items() if len(result["fields"]) > 1)]
    say(f"{result['trajectories']} trajectories, {result['steps']} steps, {result['nodes']:,} nodes")
    table(("measure", "value"), [*((name, "not finite" if value is None else number(value)) for name, value in rows),
                                 ("time at which RNE passes 0.1", until)])
    advise("evaluate", "--help")
