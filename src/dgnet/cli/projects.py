"""Commands about users' own problems: new, check, import; and training on them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.options import Adaptive, Seed, file_to_write, refuse, vtk_files
from dgnet.cli.screen import advise, console, narrating, reporting, say, say_path
from dgnet.cli.shell import Device, Json, checked_device, command, write_json
from dgnet.errors import InputError
from dgnet.files import visible

_COLOURS = {"ok": "green", "note": "yellow", "warn": "red"}


@command("dgnet new my-problem", "dgnet new my-part --mesh part.msh")
def new(context: typer.Context, folder: Annotated[Path, typer.Argument(help="Folder to make.")],
        mesh: Annotated[Path | None, typer.Option(help="A mesh of your own: the problem is heat in it, ready to be simulated, and "
                                                       "there are no data yet.")] = None, seed: Seed = 0) -> None:
    """Write a small problem folder to start from: problem.toml, a mesh and data. It can be checked and trained as it is."""
    from dgnet.projects.from_mesh import write_around
    from dgnet.projects.template import write

    refuse(context, {"seed": "nothing is random around a mesh of your own"} if mesh is not None else {})
    with reporting() as report:
        written = write(folder, seed, report) if mesh is None else write_around(mesh, folder)
    for path in written:
        say_path(path)
    if mesh is None:
        advise("check", folder)
    else:
        advise("simulate", folder, "--source", folder / "spots.csv", "--gif", "part.gif")


@command("dgnet check my-problem", "dgnet check my-problem --json check.json")
def check(folder: Annotated[Path, typer.Argument(help="Folder with problem.toml.")], device: Device = "cpu",
          json_path: Json = None) -> None:
    """Check a problem folder: mesh, equation, data, characteristic numbers and the error of the classical solver."""
    from rich.table import Table
    from rich.text import Text

    from dgnet.projects import check as checks
    from dgnet.projects import load

    checked_device(device)
    with reporting() as report:
        project = load(folder, report)
        items = checks.check(project, device, report)
    write_json(json_path, checks.as_dict(project, items))
    say(f"{project.case.title} ({folder})")
    if console.is_terminal:
        lines = Table.grid(padding=(0, 2, 0, 0))
        for item in items:
            lines.add_row(Text(item.verdict, _COLOURS[item.verdict]), Text(visible(item.name), no_wrap=True),
                          Text(visible(item.text, but="\n")))
        console.print(lines)
    else:
        width = max(len(i.name) for i in items)
        for item in items:
            say(f"{item.verdict:<4}  {item.name:<{width}}  {item.text}")
    advise("train", folder, "--out", "run")


@command("dgnet simulate my-problem --source my-problem/spots.csv --steps 60 --gif plate.gif",
         "dgnet simulate my-problem --initial warm.npy --model classical --vtk plate.pvd")
def simulate(folder: Annotated[Path, typer.Argument(help="Folder with problem.toml; it needs no [[data]].")],
             model: Annotated[str, typer.Option(help="universal (learned once, for every mesh), classical or "
                                                     "quadratic.")] = "universal",
             weights: Annotated[Path | None, typer.Option(help="Universal weights of your own, from `dgnet universal`.")] = None,
             source: Annotated[str | None, typer.Option(help="CSV table of moving spots (t, x, y[, z], radius, power[, spot]); a "
                                                        "source in .npy, .npz, .h5, .pvd, .vtu or .xdmf; or physics:NAME, a "
                                                        "function f(x, t) in the problem's physics.py.")] = None,
             initial: Annotated[Path | None, typer.Option(help="Start, a .npy file of shape [nodes] or [nodes, fields]; the "
                                                          "default is the problem's offset.")] = None,
             steps: Annotated[int | None, typer.Option(help="Number of steps; the default is that of the source, or 100.",
                                                       min=1)] = None,
             out: Annotated[Path | None, typer.Option(help="HDF5 file for the states.",
                                                     callback=file_to_write(".h5", ".hdf5"))] = None,
             vtk: Annotated[Path | None, typer.Option(help="FILE.pvd for ParaView, with a folder of .vtu beside it.",
                                                     callback=file_to_write(".pvd", beside=vtk_files))] = None,
             gif: Annotated[Path | None, typer.Option(help="Animation, FILE.gif.", callback=file_to_write(".gif"))] = None,
             png: Annotated[Path | None, typer.Option(help="Snapshots, FILE.png.", callback=file_to_write(".png"))] = None,
             every: Annotated[int, typer.Option(help="Write one state every N steps.", min=1)] = 1, adaptive: Adaptive = None,
             device: Device = "cpu", json_path: Json = None) -> None:
    """Simulate a problem without any data: with universal weights, or classically."""
    from dgnet.prediction import to_files as rollouts
    from dgnet.training.simulator import simulator

    run = simulator(folder, model, weights)
    with reporting() as report:
        result = rollouts.predict_to_files(run, source=source, initial=initial, steps=steps, out=out, vtk=vtk, gif=gif, png=png,
                                   every=every, device=checked_device(device), report=report, adaptive=adaptive)
    write_json(json_path, result)
    say(rollouts.summary(result))
    checkable = run.project is not None and run.project.file is not None and run.project.file.data
    advise(*(("show", out, "--out", "pictures") if out is not None else ("check" if checkable else "studio", folder)))






@command("dgnet import my-problem", name="import")
def import_(folder: Annotated[Path, typer.Argument(help="Folder with problem.toml.")], json_path: Json = None) -> None:
    """Import the data of a problem into its imported.h5. Other commands do this automatically when the data have changed."""
    from dgnet.projects import load

    with reporting() as report:
        project = load(folder, report, force=True)
    write_json(json_path, {"data": str(project.data), "trajectories": [vars(n) for n in project.notes]})
    for note in project.notes:
        cost = f", interpolation error about {note.interpolation:.2g}" if note.interpolation else ""
        cost += f", in time {note.resampling:.2g}" if note.resampling else ""
        cost += f", {note.outside} nodes outside" if note.outside else ""
        say(f"{note.split:<5}  {note.label}: {note.how}{cost}, source: {note.source}")
    say_path(project.data)
    advise("check", folder)


def train_own(folder: Path, out: Path, *, model: str | None, seed: int, device: str, minutes: float | None,
              trajectories: int | None, json_path: Path | None) -> None:
    """`dgnet train FOLDER`."""
    from dgnet.cli.learn import tell_training
    from dgnet.data import Dataset
    from dgnet.discovery.found import sentences
    from dgnet.models.registry import DGNETS
    from dgnet.projects import load
    from dgnet.report.learned import coefficients
    from dgnet.training.bars import error_bars
    from dgnet.training.evaluate import untold
    from dgnet.training.own import first_choice, train_project
    from dgnet.training.processes import join_processes, wait_for_all

    if out.resolve() == folder.resolve():
        raise InputError(f"--out {out} is the problem folder itself; a run needs its own folder")
    if join_processes(device):  # under torchrun one process imports the data, the others wait for it
        with reporting() as report:
            load(folder, report)
    wait_for_all()
    project = load(folder)
    with Dataset(project.data) as data:
        count = len(data.of("train"))
    if (trajectories or 0) > count:
        raise InputError(f"--trajectories {trajectories}: {folder} has {count} training trajectories")
    model = first_choice(project) if model is None else model
    with narrating(60 * (minutes or project.training.minutes)) as (_, tell):
        run, progress = train_project(project, out, model=model, seed=seed, device=device, minutes=minutes,
                                      trajectories=trajectories, report=tell)
    found: dict[str, Any] = run.dgnet.coefficients() if project.unknowns.factors and model in DGNETS else {}
    values = {name: c.value for name, c in zip(found, coefficients(run))}
    tell_training(f"{project.case.name} ({folder})", model, progress, json_path, found, error_bars(run), untold(run), values,
                  sentences(run.model))
