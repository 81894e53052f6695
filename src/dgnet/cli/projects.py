"""Commands about users' own problems: new, check, import; and training on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.options import Seed
from dgnet.cli.shell import Device, Json, app, checked_device, console, narrating, reporting, write_json
from dgnet.errors import InputError

_MARKS = {"ok": "[green]ok[/]  ", "note": "[yellow]note[/]", "warn": "[red]warn[/]"}


@app.command()
def new(folder: Annotated[Path, typer.Argument(help="Folder to make.")], seed: Seed = 0) -> None:
    """Write a small problem of your own to start from: problem.toml, a mesh and data. It checks, trains and rolls out as it is."""
    from dgnet.projects.template import write

    with reporting() as report:
        written = write(folder, seed, report)
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True, markup=False)
    console.print(f"Next: dgnet check {folder}, then dgnet train {folder} --out RUN", highlight=False, soft_wrap=True, markup=False)


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="Folder with problem.toml.")], device: Device = "cpu",
          json_path: Json = None) -> None:
    """Say what dgnet understands of a problem: mesh, equation, data, numbers to know, and the classical solver's error."""
    from rich.markup import escape

    from dgnet.projects import check as checks
    from dgnet.projects import load

    checked_device(device)
    with reporting() as report:
        project = load(folder, report)
        items = checks.check(project, device, report)
    write_json(json_path, checks.as_dict(project, items))
    console.print(f"{project.case.title} ({folder})", highlight=False, soft_wrap=True, markup=False)
    width = max(len(i.name) for i in items)
    for item in items:
        console.print(f"{_MARKS[item.verdict]}  {escape(item.name):<{width}}  {escape(item.text)}", highlight=False, soft_wrap=True,
                      markup=True)


@app.command("import")
def import_(folder: Annotated[Path, typer.Argument(help="Folder with problem.toml.")], json_path: Json = None) -> None:
    """Read the data of a problem anew into its imported.h5. Other commands do this by themselves when data have changed."""
    from dgnet.projects import load

    with reporting() as report:
        project = load(folder, report, force=True)
    write_json(json_path, {"data": str(project.data), "trajectories": [vars(n) for n in project.notes]})
    for note in project.notes:
        cost = f", interpolation error about {note.interpolation:.2g}" if note.interpolation else ""
        cost += f", in time {note.resampling:.2g}" if note.resampling else ""
        cost += f", {note.outside} nodes outside" if note.outside else ""
        console.print(f"{note.split:<5}  {note.label}: {note.how}{cost}, source: {note.source}", highlight=False, soft_wrap=True,
                      markup=False)
    console.print(str(project.data), highlight=False, soft_wrap=True, markup=False)


def train_own(folder: Path, out: Path, *, model: str, seed: int, device: str, minutes: float | None, trajectories: int | None,
              json_path: Path | None) -> None:
    """`dgnet train FOLDER`."""
    from dgnet.cli.learn import tell_training
    from dgnet.data import Dataset
    from dgnet.evaluation.bars import error_bars
    from dgnet.evaluation.evaluate import untold
    from dgnet.projects import load
    from dgnet.training.fit import join_processes, wait_for_all
    from dgnet.training.own import train_project

    if out.resolve() == folder.resolve():
        raise InputError(f"--out {out} is the problem itself; a run needs a folder of its own")
    if join_processes(device):  # under torchrun one process imports the data, the others wait for it
        with reporting() as report:
            load(folder, report)
    wait_for_all()
    project = load(folder)
    with Dataset(project.data) as data:
        count = len(data.of("train"))
    if (trajectories or 0) > count:
        raise InputError(f"--trajectories {trajectories}: {folder} has {count} training trajectories")
    with narrating(60 * (minutes or project.training.minutes)) as (_, tell):
        run, progress = train_project(project, out, model=model, seed=seed, device=device, minutes=minutes,
                                      trajectories=trajectories, report=tell)
    found: dict[str, Any] = run.model.coefficients() if project.calibrate and model == "dgnet" else {}
    tell_training(f"{project.case.name} ({folder})", model, progress, json_path, found, error_bars(run), untold(run))
