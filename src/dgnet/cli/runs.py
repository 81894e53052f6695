"""Commands about runs: training, evaluation, rollouts, exports, pictures; and the list of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.options import (
    Adaptive,
    Every,
    Gif,
    Initial,
    Out,
    Png,
    Seed,
    Source,
    Steps,
    Vtk,
    file_to_write,
    folder_to_write,
    point,
    positive,
    refuse,
    xdmf_files,
)
from dgnet.cli.problems import predict
from dgnet.cli.screen import advise, narrating, page, reporting, say, say_path, table
from dgnet.cli.shell import AllowDifferent, Device, Json, Problem, checked_device, command, write_json
from dgnet.errors import InputError

Run = Annotated[Path, typer.Argument(help="Folder of a run.")]
_FMU = "it is an option of .fmu"


@command("dgnet train my-problem --out run", "dgnet train my-problem --model dgnet --budget 10 --out run-dgnet")
def train(context: typer.Context, folder: Annotated[Path, typer.Argument(help="Folder of your problem, with problem.toml.")],
          out: Annotated[Path, typer.Option(help="Folder of the run.", callback=folder_to_write(shared=True))],
          budget: Annotated[float | None, typer.Option(help="Minutes of training.", callback=positive)] = None,
          trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.", min=1)] = None,
          model: Annotated[str | None, typer.Option(help="Any of `dgnet models`. The default is universal weights, tuned to the "
                                                         "data, where these hold, otherwise dgnet.")] = None,
          from_scratch: Annotated[bool, typer.Option("--from-scratch", help="dgnet from the classical solver on, where universal "
                                                                            "weights hold, too.")] = False,
          readings: Annotated[list[Path] | None, typer.Option(
              help="Learn from readings of sensors instead of fields: CSV tables, t and one column for each sensor, one table an "
                   "experiment. May be repeated.")] = None,
          sensors: Annotated[Path | None, typer.Option(help="With --readings: CSV table of the sensors: sensor, x, y[, z] and, "
                                                            "where needed, radius, field, boundary.")] = None,
          source: Annotated[list[Path] | None, typer.Option(help="With --readings: CSV tables of the moving spots of each "
                                                                 "experiment, or one for all.")] = None,
          initial: Annotated[list[Path] | None, typer.Option(help="With --readings: starts of each experiment (.npy), or one for "
                                                                  "all; the default is the problem's offset.")] = None,
          seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Train a model on your own problem (a folder with problem.toml). If interrupted, rerun to resume."""
    from dgnet.report.trained import training_result
    from dgnet.training.own import project_to_train, train_project

    if from_scratch and model is not None:
        raise InputError(f"--from-scratch trains dgnet, not {model}")
    if readings:
        from dgnet.cli.sensors import train_from_sensors

        train_from_sensors(context, folder, out, readings, sensors, source or [], initial or [], seed, budget, json_path)
        return
    refuse(context, dict.fromkeys(("sensors", "source", "initial"), "it belongs to --readings"))
    with reporting() as report:
        project = project_to_train(folder, out, checked_device(device), trajectories, report)
    with narrating(60 * (budget or project.training.minutes)) as (_, follow):
        run, progress = train_project(project, out, model="dgnet" if from_scratch else model, seed=seed, device=device,
                                      minutes=budget, trajectories=trajectories, report=follow)
    result, lines = training_result(f"{run.case.name} ({folder})", run, progress)
    write_json(json_path, result)
    for line in lines:
        say(line)
    advise("evaluate", out)


@command("dgnet evaluate run", "dgnet evaluate run --leave-one-out --budget 10")
def evaluate(context: typer.Context, run: Run,
             data: Annotated[Path | None, typer.Option(help="Data set; the default is the run's own.")] = None,
             split: Annotated[str, typer.Option(help="test or train")] = "test", device: Device = "cpu",
             calibrate: Annotated[Path | None, typer.Option(help="Data set whose test trajectories calibrate the bands; the "
                                                                 "default are those that are scored, each tested by the "
                                                                 "others.")] = None,
             figures: Annotated[bool, typer.Option(help="Draw figures into RUN/figures and write RUN/report.html.")] = True,
             leave_one_out: Annotated[bool, typer.Option(
                 "--leave-one-out", help="Also retrain without each training trajectory in turn and score on it (RUN/trust.json).",
             )] = False,
             budget: Annotated[float | None, typer.Option(help="Minutes for --leave-one-out; the default is the run's own training "
                                                          "time per trajectory.", callback=positive)] = None,
             problem: Problem = None, allow_different: AllowDifferent = False, json_path: Json = None) -> None:
    """Score a run on its test trajectories beside the classical solvers on the same mesh, and write a report page."""
    from dgnet.report.trained import evaluate_run, evaluation_text
    from dgnet.training.run import Run

    refuse(context, {} if leave_one_out else {"budget": "it sets the time for --leave-one-out"})
    refuse(context, {} if split == "test" else {"calibrate": "bands belong to the test trajectories of a run"})
    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    with reporting() as report:
        result, written = evaluate_run(opened, data=data, split=split, device=device, calibrate=calibrate, figures=figures,
                                       leave_one_out=leave_one_out, minutes=budget, report=report)
    write_json(json_path, result)
    page(evaluation_text(result))
    if written:
        say("")
    for path in written:
        say_path(path)
    advise("rollout", run, "--trajectory", "0", "--gif", "rollout.gif")


@command("dgnet rollout run --trajectory 0 --gif rollout.gif", "dgnet rollout run --source spots.csv --steps 200 --vtk rollout.pvd")
def rollout(run: Run, source: Source = None,
            trajectory: Annotated[int | None, typer.Option(help="Number of a stored trajectory: use its start, its flow and, "
                                                           "without --source, its source.")] = None, initial: Initial = None,
            data: Annotated[Path | None, typer.Option(help="Data set of --trajectory; the default is the run's own.")] = None,
            steps: Steps = None, out: Out = None, vtk: Vtk = None,
            xdmf: Annotated[Path | None, typer.Option(help="FILE.xdmf for ParaView, one series with its HDF5 beside it.",
                                                     callback=file_to_write(".xdmf", beside=xdmf_files))] = None, gif: Gif = None,
            mp4: Annotated[Path | None, typer.Option(help="Animation, FILE.mp4; needs the program ffmpeg.",
                                                    callback=file_to_write(".mp4"))] = None, png: Png = None, every: Every = 1,
            dt: Annotated[float | None, typer.Option(help="Time step, if different from the training data.")] = None,
            mesh: Annotated[Path | None, typer.Option(help="File of another mesh with the same boundary names. The model must have "
                                                      "been trained with free = false.")] = None,
            adaptive: Adaptive = None,
            band: Annotated[float | None, typer.Option(help="Level of the bands that are written where `dgnet evaluate` has "
                                                            "calibrated them: 0.8, 0.9 (the default) or 0.95.",
                                                       callback=positive)] = None,
            everywhere: Annotated[bool, typer.Option("--everywhere", help="Bands that hold the whole rollout at once with this "
                                                                          "probability, not this share of its values.")] = False,
            problem: Problem = None, allow_different: AllowDifferent = False, device: Device = "cpu",
            json_path: Json = None) -> None:
    """Roll out a trained run with a new source and start, writing states to disk as it goes. If interrupted, rerun to resume."""
    from dgnet.training.run import Run

    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    predict(opened, json_path, source=source, trajectory=trajectory, initial=initial, data=data, steps=steps, out=out, vtk=vtk,
            xdmf=xdmf, gif=gif, mp4=mp4, png=png, every=every, device=device, dt=dt, mesh=mesh, adaptive=adaptive, band=band,
            everywhere=everywhere)
    advise(*(("show", out, "--out", "pictures") if out is not None else ("export", run, "--out", "step.c")))


@command("dgnet show data/laser-heat-small-converged.h5 --out pictures --trajectory 2")
def show(context: typer.Context, file: Annotated[Path, typer.Argument(help="A data set, FILE.h5.")],
         out: Annotated[Path, typer.Option(help="Folder for the pictures.", callback=folder_to_write())],
         trajectory: Annotated[int, typer.Option(help="Number of the trajectory, from 0.", min=0)] = 0,
         snapshots: Annotated[int, typer.Option(help="Panels of the picture.", min=2)] = 5,
         frames: Annotated[int, typer.Option(help="Frames of the animation.", min=2)] = 40, gif: bool = True) -> None:
    """Draw snapshots (PNG) and an animation (GIF) of one trajectory of a data set."""
    from dgnet.report.show import show as draw

    refuse(context, {} if gif else {"frames": "--no-gif draws no animation"})
    with reporting() as report:
        written = draw(file, out, trajectory=trajectory, columns=snapshots, frames=frames, gif=gif, progress=report)
    for path in written:
        say_path(path)
    advise("train", "PROBLEM", "--out", "run")


def _beside(out: Path) -> list[Path]:
    """What `export` writes with OUT."""
    return [out.with_suffix(end) for end in (".vtu", ".json", *((".h",) if out.suffix == ".c" else ()))]


@command("dgnet export run --out step.pt2", "dgnet export run --out step.onnx", "dgnet export run --out plate.c",
         "dgnet export run --out plate.fmu --fmi 3 --probe 0.3,0.7 --spots 2")
def export(context: typer.Context,
           run: Annotated[Path, typer.Argument(help="Folder of a run, or of a problem (problem.toml).")],
           out: Annotated[Path, typer.Option(help="FILE.pt2 (torch.export), FILE.onnx, FILE.c (C99, with FILE.h) or FILE.fmu; the "
                                                  "mesh (.vtu) and a description (.json) are written beside it.",
                                             callback=file_to_write(".pt2", ".onnx", ".c", ".fmu", beside=_beside))],
           batch: Annotated[int | None, typer.Option(help="Fix the number of trajectories of .pt2 and .onnx; the default is any "
                                                          "number.", min=1)] = None,
           fmi: Annotated[int, typer.Option(help="Version of the standard of an .fmu: 2 or 3.", min=2, max=3)] = 2,
           probe: Annotated[list[str] | None, typer.Option(help="X,Y or X,Y,Z: a point whose values are outputs of an .fmu. May be "
                                                                "repeated; the default is the middle.")] = None,
           spots: Annotated[int, typer.Option(help="Number of Gaussian spots that are inputs of an .fmu.", min=0, max=1000)] = 1,
           model: Annotated[str, typer.Option(help="Model of a problem: classical, or universal as .c or .fmu.")] = "classical",
           problem: Problem = None, allow_different: AllowDifferent = False, json_path: Json = None) -> None:
    """Write one step of a run as a program, a C file or an FMU that works without this package."""
    from dgnet.export import export as write
    from dgnet.training.run import open_simulator

    refuse(context, {"batch": "a C file has one trajectory"} if out.suffix in (".c", ".fmu") else {})
    refuse(context, {} if out.suffix == ".fmu" else {"fmi": _FMU, "probe": _FMU, "spots": _FMU})
    if (run / "problem.toml").exists() and not (run / "run.toml").exists():
        refuse(context, dict.fromkeys(("problem", "allow_different"), f"{run} is a problem, not a run"))
    else:
        refuse(context, {"model": f"{run} is no problem; runs have theirs"})
    opened = open_simulator(run, problem, allow_different, model)
    result = write(opened, out, batch, fmi=fmi, probes=[point(text) for text in probe or ()], spots=spots)
    write_json(json_path, result.record)
    size = f"{result.record['nodes']} nodes, {len(result.record['fields'])} field{'s' * (len(result.record['fields']) > 1)}"
    say(f"One step of {opened.case.units.in_time(result.record['dt'])} on {size}: {result.record['bytes'] / 1e6:.1f} MB")
    for line in (*opened.notes, *(f"    {line}" for line in result.record["call"])):
        say(line)
    for path in result.paths:
        say_path(path)
    advise("rollout", run, "--trajectory", "0")


@command("dgnet models")
def models(json_path: Json = None) -> None:
    """List the models with their numbers of parameters (two dimensions, one field)."""
    from dgnet.models.registry import listed

    rows = listed()
    write_json(json_path, rows)
    table(("model", "title", "parameters"), [(str(r["name"]), str(r["title"]), f"{r['parameters']:,}") for r in rows])
    advise("train", "PROBLEM", "--model", "dgnet", "--out", "run")
