"""Commands about the paper's evidence: reproduce, score, report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.options import file_to_write, folder_to_write, positive, refuse
from dgnet.cli.screen import narrating, reporting, say, table
from dgnet.cli.shell import Device, Json, checked_device, write_json
from dgnet.errors import InputError
from dgnet.files import write_text
from dgnet_paper.cli.frame import Size, Truth, advise, all_named, command, page_to_write

_NAMED = ("scenarios", "models", "size", "truth", "seeds", "few", "factor", "trajectories", "unknown_reaction")
"""Options that choose cells of a target; the name of a single cell holds them all."""
_COPYING = ("target", "sources", "out", "json_path")


def _listed(values: list[str] | None) -> tuple[str, ...]:
    """Names that were written one by one, or several at once with commas or spaces."""
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
                                                    "steps or windows. 0 for no search.", min=0.0, max=1.0)] = 0.0,
              trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.", min=1)] = None,
              unknown_reaction: Annotated[bool, typer.Option(help="DGNet learns the reaction from data instead of using the known "
                                                                  "one.")] = False,
              sharing: Annotated[int, typer.Option(help="Number of processes that share the device; recorded in the "
                                                        "cells.", min=1)] = 1,
              few: Annotated[int, typer.Option(help="Trial: number of trajectories per split; 0 for all.", min=0)] = 0,
              factor: Annotated[float, typer.Option(help="Trial: fraction of each recipe's iterations.", callback=positive)] = 1.0,
              plan: Annotated[bool, typer.Option("--plan", help="Run nothing; list the commands of what is missing.")] = False,
              keep_last: Annotated[bool, typer.Option(help="Keep the resume checkpoint of finished cells.")] = False,
              device: Device = "cpu", json_path: Json = None) -> None:
    """Regenerate a table or figure of the paper, cell by cell (a cell is one experiment).

    If interrupted, rerun to resume. Processes started with the same --out share the cells. `dgnet-paper report` writes the pages.
    """
    from dgnet_paper.study import engine
    from dgnet_paper.study.targets import Choice, cells

    if target in ("merge", "pack"):
        refuse(context, {name: f"{target} only copies cells" for name in context.params if name not in _COPYING})
        return _copy(target, sources or [], out, json_path)
    if sources:
        raise InputError(f"'{sources[0]}' does not apply to '{target}'; only merge and pack take folders")
    if "_" in target:
        refuse(context, {name: "the name of a cell contains it" for name in _NAMED})
    wanted = cells(target, Choice(_listed(scenarios), _listed(models), size, truth, seeds, trajectories or 0, unknown_reaction,
                                  few, factor))
    with narrating(60 * budget if budget else 1e9) as (report, tell):
        options = engine.Options(data or out / "data", out, checked_device(device), None if budget is None else 60 * budget, search,
                                 sharing, keep_last, report, tell, say)
        if plan:
            return _tell_plan(engine.plan(wanted, options), json_path)
        summary = engine.run(wanted, options)
    say(summary.words())
    write_json(json_path, asdict(summary))
    advise("report", out)
    if summary.failed:
        raise typer.Exit(1)


def _copy(target: str, sources: list[Path], out: Path, json_path: Path | None) -> None:
    """Cells of other studies: into a study (merge), or into one small store (pack)."""
    from dgnet_paper.study import stored

    if not sources:
        raise InputError(f"{target} needs the studies to take cells from")
    copied = stored.merge(sources, out) if target == "merge" else stored.pack(sources, out)
    write_json(json_path, copied)
    say(f"{len(copied)} cells {'copied to' if target == 'merge' else 'packed into'} {out}")
    advise("report", out)


def _tell_plan(items: list[dict[str, str]], json_path: Path | None) -> None:
    """The command of each missing cell, one a line: `xargs -P` runs them side by side."""
    missing = [item for item in items if item["state"] != "finished"]
    for item in missing:
        say(item["command"] + (f"  # failed: {item['note']}" if item["note"] else ""))
    say(f"{len(items) - len(missing)} of {len(items)} cells finished; {len(missing)} missing")
    write_json(json_path, items)


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
          trajectory: Annotated[int | None, typer.Option(help="Number in TRUTH of a single predicted trajectory.", min=0)] = None,
          json_path: Json = None) -> None:
    """Score the predictions of any model: MSE, RNE of the rollout, from the offset and of the last step, time until RNE is 0.1."""
    from dgnet_paper.study.predictions import measures, score_files

    result = score_files(predictions, truth, split, trajectory)
    write_json(json_path, result)
    say(f"{result['trajectories']} trajectories, {result['steps']} steps, {result['nodes']:,} nodes")
    table(("measure", "value"), measures(result))
    advise("evaluate", "--help")
