"""Commands about problems: a new folder, the studio, simulations without data, a check, the import of data."""

from __future__ import annotations

import signal
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.options import Adaptive, Every, Gif, Initial, Out, Png, Seed, Source, Steps, Vtk, point, refuse
from dgnet.cli.screen import advise, console, reporting, say, say_path
from dgnet.cli.shell import Device, Json, Stopped, checked_device, command, write_json
from dgnet.files import visible

Folder = Annotated[Path, typer.Argument(help="Folder with problem.toml.")]
_COLOURS = {"ok": "green", "note": "yellow", "warn": "red"}


@command("dgnet new my-problem", "dgnet new my-part --mesh part.msh")
def new(context: typer.Context, folder: Annotated[Path, typer.Argument(help="Folder to make.")],
        mesh: Annotated[Path | None, typer.Option(help="A mesh of your own: the problem is heat in it, ready to be simulated, and "
                                                       "there are no data yet.")] = None, seed: Seed = 0) -> None:
    """Write a small problem folder to start from: problem.toml, a mesh and data. It can be checked and trained as it is."""
    from dgnet.projects.template import write, write_around

    refuse(context, {"seed": "nothing is random around a mesh of your own"} if mesh is not None else {})
    with reporting() as report:
        written = write(folder, seed, report) if mesh is None else write_around(mesh, folder)
    for path in written:
        say_path(path)
    if mesh is None:
        advise("check", folder)
    else:
        advise("simulate", folder, "--source", folder / "spots.csv", "--gif", "part.gif")


@command("dgnet studio", "dgnet studio run", "dgnet studio my-problem", "dgnet studio part.msh", "dgnet studio laser-heat")
def studio(what: Annotated[str | None, typer.Argument(help="Folder of a run, folder with problem.toml, file of a mesh, or a "
                                                           "scene of the gallery; without it, the gallery.")] = None,
           port: Annotated[int, typer.Option(help="Port on this computer; 0 takes a free one.", min=0, max=65535)] = 0,
           browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True) -> None:
    """Draw sources with the mouse and watch the field in the browser. The page is served to this computer only."""
    from dgnet.studio.server import opened

    address, serve = opened(what, port)
    say(f"The studio is open at {address} (Ctrl-C closes it)")
    if browser:
        webbrowser.open(address)
    try:
        serve()
    except Stopped as stopped:
        if stopped.number != signal.SIGINT:
            raise
        say("The studio is closed.")
        advise("new", "my-problem")


@command("dgnet simulate my-problem --source my-problem/spots.csv --steps 60 --gif plate.gif",
         "dgnet simulate my-problem --initial warm.npy --model classical --vtk plate.pvd",
         "dgnet simulate my-problem --source my-problem/spots.csv --error 1%")
def simulate(context: typer.Context,
             folder: Annotated[Path, typer.Argument(help="Folder with problem.toml; it needs no [[data]].")],
             model: Annotated[str, typer.Option(help="universal (learned once, for every mesh), classical or "
                                                     "quadratic.")] = "universal",
             weights: Annotated[Path | None, typer.Option(help="Universal weights of your own, from `dgnet-paper "
                                                               "universal`.")] = None,
             source: Source = None, initial: Initial = None, steps: Steps = None, out: Out = None, vtk: Vtk = None,
             gif: Gif = None, png: Png = None, every: Every = 1, adaptive: Adaptive = None,
             error: Annotated[str | None, typer.Option(help="Choose model, mesh and step: the cheapest whose estimated error is "
                                                            "below this, as 1% of the range of each field or a number in its "
                                                            "unit.")] = None,
             probe: Annotated[list[str] | None, typer.Option(help="With --error: X,Y or X,Y,Z, a point where it is asked for, too. "
                                                                  "May be repeated.")] = None,
             device: Device = "cpu", json_path: Json = None) -> None:
    """Simulate a problem without any data: with universal weights, classically, or with what reaches an error."""
    from dgnet.training.simulator import simulator

    refuse(context, {"probe": "it belongs to --error"} if error is None else dict.fromkeys(
        ("model", "weights", "adaptive"), "--error chooses model and step"))
    run, choice = simulator(folder, model, weights), None
    if error is not None:
        from dgnet.prediction.choose import chosen

        with reporting() as report:
            run, choice = chosen(run, error, probes=[point(text) for text in probe or ()], report=report, source=source,
                                 initial=initial, steps=steps, device=checked_device(device))
    predict(run, json_path, choice, source=source, initial=initial, steps=steps, out=out, vtk=vtk, gif=gif, png=png, every=every,
            device=checked_device(device), adaptive=adaptive)
    checkable = run.project is not None and run.project.file is not None and run.project.file.data
    advise(*(("show", out, "--out", "pictures") if out is not None else ("check" if checkable else "studio", folder)))


def predict(simulator: Any, json_path: Path | None, choice: Any = None, **options: Any) -> None:
    """Roll out to files and print the result, with the choice of the solver where there was one."""
    from dgnet.prediction.to_files import predict_to_files, summary

    with reporting() as report:
        result = predict_to_files(simulator, report=report, **options) | {"chosen": choice and choice.as_dict()}
    write_json(json_path, result)
    say(summary(result))


@command("dgnet check my-problem", "dgnet check my-problem --json check.json")
def check(folder: Folder, device: Device = "cpu", json_path: Json = None) -> None:
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


@command("dgnet import my-problem", name="import")
def import_(folder: Folder, json_path: Json = None) -> None:
    """Import the data of a problem into its imported.h5. Other commands do this automatically when the data have changed."""
    from dgnet.projects import load

    with reporting() as report:
        project = load(folder, report, force=True)
    write_json(json_path, {"data": str(project.data), "trajectories": [vars(n) for n in project.notes]})
    for note in project.notes:
        say(f"{note.split:<5}  {note.label}: {note.text}")
    say_path(project.data)
    advise("check", folder)
