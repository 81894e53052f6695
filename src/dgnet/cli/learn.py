"""Commands about models: train, evaluate, roll out, analyse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgnet.cli.options import Adaptive, Seed, file_to_write, folder_to_write, positive, refuse, vtk_files, xdmf_files
from dgnet.cli.screen import advise, folding, page, reporting, say, say_path, table
from dgnet.cli.shell import AllowDifferent, Device, Json, Problem, checked_device, command, write_json
from dgnet.errors import InputError

if TYPE_CHECKING:
    pass




# ---------------------------------------------------------------------- training and evaluation

Told = Annotated[list[Path] | None, typer.Option(help="Learn from readings of sensors instead of fields: CSV tables, t and one "
                                                      "column for each sensor, one table an experiment. May be repeated.")]
Sensed = Annotated[Path | None, typer.Option(help="With --readings: CSV table of the sensors: sensor, x, y[, z] and, where "
                                                  "needed, radius, field, boundary.")]
Driven = Annotated[list[Path] | None, typer.Option(help="With --readings: CSV tables of the moving spots of each experiment, or "
                                                        "one for all.")]
Begun = Annotated[list[Path] | None, typer.Option(help="With --readings: starts of each experiment (.npy), or one for all; the "
                                                       "default is the problem's offset.")]


@command("dgnet train my-problem --out run", "dgnet train my-problem --model dgnet --budget 10 --out run-dgnet")
def train(context: typer.Context, folder: Annotated[Path, typer.Argument(help="Folder of your problem, with problem.toml.")],
          out: Annotated[Path, typer.Option(help="Folder of the run.", callback=folder_to_write(shared=True))],
          budget: Annotated[float | None, typer.Option(help="Minutes of training.", callback=positive)] = None,
          trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.", min=1)] = None,
          model: Annotated[str | None, typer.Option(help="Any of `dgnet models`. The default is universal weights, tuned to the "
                                                         "data, where these hold, otherwise dgnet.")] = None,
          from_scratch: Annotated[bool, typer.Option("--from-scratch", help="dgnet from the classical solver on, where universal "
                                                                            "weights hold, too.")] = False,
          readings: Told = None, sensors: Sensed = None, source: Driven = None, initial: Begun = None,
          seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Train a model on your own problem (a folder with problem.toml). If interrupted, rerun to resume."""
    from dgnet.cli.projects import train_own
    from dgnet.models.registry import entry

    if from_scratch and model is not None:
        raise InputError(f"--from-scratch trains dgnet, not {model}")
    if readings:
        from dgnet.cli.sensors import train_from_sensors

        train_from_sensors(context, folder, out, readings, sensors, source or [], initial or [], seed, budget, json_path)
        return
    refuse(context, dict.fromkeys(("sensors", "source", "initial"), "it belongs to --readings"))
    model = "dgnet" if from_scratch else model
    if model is not None:
        entry(model)
    checked_device(device)
    train_own(folder, out, model=model, seed=seed, device=device, minutes=budget, trajectories=trajectories, json_path=json_path)
    advise("evaluate", out)


def tell_training(what: str, model: str, progress: Any, json_path: Path | None, more: Mapping[str, Any] | None = None,
                  bars: Mapping[str, Any] | None = None, untold: Sequence[str] = (),
                  values: Mapping[str, str] | None = None, found: Sequence[str] = ()) -> None:
    """The result of a training on the screen and as JSON: its errors, the coefficients found, and whether anything was learned.

    `untold` is what the classical solver beside it did not know; `values` are the coefficients with their units; `found` are
    sentences about it.
    """
    from dgnet.models.registry import TUNED

    rival = f" (which does not know {' and '.join(untold)})" if untold else ""
    learned = progress.best_iteration > 0
    best, classical = (f"{error:.3e}" for error in (progress.best, progress.classical))
    verdict = "the same as" if best == classical else "below" if progress.best < progress.classical else "NOT below"
    write_json(json_path, {"validation": progress.best, "classical": progress.classical, "iterations": progress.iteration,
                           "best_iteration": progress.best_iteration, "learned": learned, "seconds": progress.seconds,
                           "history": progress.history} | ({} if more is None else {"coefficients": dict(more)})
               | ({"found": list(found)} if found else {})
               | ({} if bars is None else {"error_bars": {name: asdict(bar) for name, bar in bars.items()}}))
    say(f"{what}: validation error {best} after {progress.best_iteration} iterations, {verdict} the "
        f"classical solver's {classical}{rival}; {progress.seconds:.0f} s")
    if model == TUNED:
        first = progress.history[0]["validation"]
        say(f"  It started from universal weights: {first:.3e} before any training, {first / progress.classical:.2f} times the "
            "classical solver's (--from-scratch trains dgnet without them)")
    for name, factor in (more or {}).items():
        value = f", that is {values[name]}" if values and values.get(name) else ""
        bar = f"; error bar: {bars[name]}" if bars and name in bars else ""
        say(f"  {name}: {factor:.4g} times the value in problem.toml{value}{bar}")
    for line in found:
        say(f"  {line}")
    if not learned:
        why = f"none of {progress.updates} updates lowered the error" if progress.updates else "the time allowed no update"
        start = {"dgnet": "the classical solver", "dgnet-paper": "the paper's solver alone",
                 TUNED: "universal weights as they are"}.get(model, "an untrained network")
        say(f"nothing was learned: {why}, the result is {start}")


@command("dgnet models")
def models(json_path: Json = None) -> None:
    """List the models with their numbers of parameters (two dimensions, one field)."""
    from dgnet.mesh import perturbed_square
    from dgnet.models.registry import all_models, build, parameter_count
    from dgnet.problems import PDE, Problem

    problem = Problem(perturbed_square(12), PDE(diffusion=0.1), [], 0.01)
    rows = [{"name": name, "title": entry.title, "parameters": parameter_count(build(name, None, problem))}
            for name, entry in all_models().items()]
    write_json(json_path, rows)
    table(("model", "title", "parameters"), [(str(r["name"]), str(r["title"]), f"{r['parameters']:,}") for r in rows])
    advise("train", "PROBLEM", "--model", "dgnet", "--out", "run")


@command("dgnet evaluate run", "dgnet evaluate run --leave-one-out --budget 10")
def evaluate(context: typer.Context, run: Annotated[Path, typer.Argument(help="Folder of a run.")],
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
    from dgnet.data.trajectory import SPLITS
    from dgnet.report import bands as drawn
    from dgnet.report import figures as figures_of
    from dgnet.report import page as pages
    from dgnet.training import evaluate as scoring
    from dgnet.training.run import Run
    from dgnet.trust import bands as band
    from dgnet.trust import training_range as trust

    if not leave_one_out:
        refuse(context, {"budget": "it sets the time for --leave-one-out"})
    if split not in SPLITS:
        raise InputError(f"--split {split} is unknown (known: {', '.join(SPLITS)})")
    if split != "test":
        refuse(context, {"calibrate": "bands belong to the test trajectories of a run"})
    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    if calibrate is not None and calibrate.resolve() == (data or opened.data).resolve():
        raise InputError(f"--calibrate {calibrate} holds the trajectories that are scored: bands would be tested on what made them")
    result, states, true = scoring.evaluate(opened, data or opened.data, device, split)
    known = trust.training_range(opened)
    left = None if known is None else pages.findings(opened, states, true, known)
    result |= {"left_range": left, "warning": trust.sentence(left or [], opened.case.units)}
    own = states[opened.settings.model]
    tested = band.bands_of(opened, own, true, calibrate, device) if split == "test" else None
    result["bands"] = None if tested is None else tested.summary()
    if leave_one_out:
        with folding() as tell:
            result["leave_one_out"] = trust.leave_one_out(opened, budget=None if budget is None else 60 * budget, device=device,
                                                          tell=tell)
    write_json(json_path, result)
    write_json(run / f"{split}.json", result)
    _say_scores(result)
    if figures:
        tail = "" if split == "test" else f"-{split}"
        with reporting() as report:
            written = figures_of.draw(opened, result, states, true, run / f"figures{tail}", report)
            if tested is not None:
                written.append(drawn.draw(run / "figures" / "bands.png", opened, tested, own, true))
            written.append(pages.write(opened, result, states, true, written, run / f"report{tail}.html", report))
        say("")
        for path in written:
            say_path(path)
    advise("rollout", run, "--trajectory", "0", "--gif", "rollout.gif")


def _say_scores(result: dict[str, Any]) -> None:
    from dgnet.training.evaluate import table as scores
    from dgnet.trust.bands import sentences

    page(scores(result))
    if result["warning"] is not None:
        say(f"\n{result['warning']}")
    if result["bands"] is not None:
        say("\n" + " ".join(sentences(result["bands"])))
    if "leave_one_out" in result:
        trials = result["leave_one_out"]
        say(f"\nLeave-one-out on {trials['trajectories']} trajectories: mean RNE {trials['mean']:.3g}, worst {trials['worst']:.3g} "
            f"(classical: mean {trials['classical_mean']:.3g})")




@command("dgnet rollout run --trajectory 0 --gif rollout.gif", "dgnet rollout run --source spots.csv --steps 200 --vtk rollout.pvd")
def rollout(run: Annotated[Path, typer.Argument(help="Folder of a run.")],
            source: Annotated[str | None, typer.Option(help="CSV table of moving spots (t, x, y[, z], radius, power[, spot]); a "
                                                       "source in .npy, .npz, .h5, .pvd, .vtu or .xdmf; or physics:NAME, a "
                                                       "function f(x, t) in the problem's physics.py.")] = None,
            trajectory: Annotated[int | None, typer.Option(help="Number of a stored trajectory: use its start, its flow and, "
                                                           "without --source, its source.")] = None,
            initial: Annotated[Path | None, typer.Option(help="Start, a .npy file of shape [nodes] or [nodes, fields].")] = None,
            data: Annotated[Path | None, typer.Option(help="Data set of --trajectory; the default is the run's own.")] = None,
            steps: Annotated[int | None, typer.Option(help="Number of steps; the default is that of the problem or "
                                                           "trajectory.", min=1)] = None,
            out: Annotated[Path | None, typer.Option(help="HDF5 file for the states, written during the rollout.",
                                                    callback=file_to_write(".h5", ".hdf5"))] = None,
            vtk: Annotated[Path | None, typer.Option(help="FILE.pvd for ParaView, with a folder of .vtu beside it.",
                                                    callback=file_to_write(".pvd", beside=vtk_files))] = None,
            xdmf: Annotated[Path | None, typer.Option(help="FILE.xdmf for ParaView, one series with its HDF5 beside it.",
                                                     callback=file_to_write(".xdmf", beside=xdmf_files))] = None,
            gif: Annotated[Path | None, typer.Option(help="Animation, FILE.gif.", callback=file_to_write(".gif"))] = None,
            mp4: Annotated[Path | None, typer.Option(help="Animation, FILE.mp4; needs the program ffmpeg.",
                                                    callback=file_to_write(".mp4"))] = None,
            png: Annotated[Path | None, typer.Option(help="Snapshots, FILE.png.", callback=file_to_write(".png"))] = None,
            every: Annotated[int, typer.Option(help="Write one state every N steps.", min=1)] = 1,
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
    from dgnet.prediction import to_files as rollouts
    from dgnet.training.run import Run

    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    with reporting() as report:
        result = rollouts.predict_to_files(
            opened, source=source, trajectory=trajectory, initial=initial, data=data, steps=steps, out=out, vtk=vtk, xdmf=xdmf,
            gif=gif, mp4=mp4, png=png, every=every, device=device, report=report, dt=dt, mesh=mesh, adaptive=adaptive, band=band,
            everywhere=everywhere)
    write_json(json_path, result)
    say(rollouts.summary(result))
    advise(*(("show", out, "--out", "pictures") if out is not None else ("export", run, "--out", "step.c")))




