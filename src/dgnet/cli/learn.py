"""Commands about models: train, evaluate, roll out, analyse."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgnet.cli.options import Adaptive, Seed, file_to_write, folder_to_write, named, positive, refuse, vtk_files, xdmf_files
from dgnet.cli.screen import advise, errors, folding, narrating, page, reporting, say, say_path, table
from dgnet.cli.shell import AllowDifferent, Device, Json, Problem, Size, Truth, checked_device, command, write_json
from dgnet.errors import InputError

if TYPE_CHECKING:
    from dgnet.problems.case import Case


@command("dgnet demo --out demo")
def demo(out: Annotated[Path, typer.Option(help="Folder for the pictures and demo.json.",
                                         callback=folder_to_write())] = Path("out"),
         seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Lasers on a steel plate: the classical solver first, then DGNet from data to test in about three minutes."""
    from dgnet.paper import demo as acts

    checked_device(device)
    begin = time.perf_counter()
    with narrating(acts.BUDGET) as (report, tell):
        record, written = acts.demo(out, seed=seed, device=device, report=report, tell=tell)
    first, seconds = record["show"], record["seconds"]
    write_json(json_path, record)
    say(f"Classical show: {first['nodes']:,} nodes, {first['steps']} steps of {first['dt']:g} s at "
        f"{first['steps_per_second']:,.0f} steps/s ({first['backend']}), peak {first['peak']:.1f} {first['unit']} at "
        f"t = {first['peak_time']:g} s\n")
    rows, sentences = acts.table(record)
    table(("model", "RNE", "of the better classical"), rows)
    for sentence in sentences:
        say(sentence)
    again = f" ({' and '.join(record['reused'])} of an earlier demo used again)" if record["reused"] else ""
    say(f"Data {seconds['generate']:.0f} s, training {seconds['train']:.0f} s, test {seconds['evaluate']:.1f} s; one "
        f"rollout of all test trajectories {1e3 * seconds['rollout_dgnet']:.0f} ms with DGNet, "
        f"{1e3 * seconds['rollout_classical']:.0f} ms classical; {time.perf_counter() - begin:.0f} s in all{again}.\n")
    for path in written:
        say_path(path)
    advise("new", "my-problem")


# ---------------------------------------------------------------------- training and evaluation

Told = Annotated[list[Path] | None, typer.Option(help="Learn from readings of sensors instead of fields: CSV tables, t and one "
                                                      "column for each sensor, one table an experiment. May be repeated.")]
Sensed = Annotated[Path | None, typer.Option(help="With --readings: CSV table of the sensors: sensor, x, y[, z] and, where "
                                                  "needed, radius, field, boundary.")]
Driven = Annotated[list[Path] | None, typer.Option(help="With --readings: CSV tables of the moving spots of each experiment, or "
                                                        "one for all.")]
Begun = Annotated[list[Path] | None, typer.Option(help="With --readings: starts of each experiment (.npy), or one for all; the "
                                                       "default is the problem's offset.")]


@command("dgnet train my-problem --out run", "dgnet train laser-heat --out run --budget 10",
         "dgnet train fisher-kpp --unknown-reaction --out run", "dgnet train laser-heat --model mgn --out run-mgn")
def train(context: typer.Context, name: Annotated[str, typer.Argument(help="A scenario, or the folder of your problem.")],
          out: Annotated[Path, typer.Option(help="Folder of the run.", callback=folder_to_write(shared=True))],
          size: Size = "small", truth: Truth = "converged",
          recipe: Annotated[str, typer.Option(help="staged (ours), or paper: as --model dgnet-paper")] = "staged",
          data: Annotated[Path | None, typer.Option(help="Folder of data sets. Missing ones are generated there.")] = None,
          budget: Annotated[float | None, typer.Option(help="Minutes of training.", callback=positive)] = None,
          trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.", min=1)] = None,
          unknown_reaction: Annotated[bool, typer.Option(help="Learn the reaction from data instead of using the known "
                                                              "one.")] = False,
          unknown_curves: Annotated[bool, typer.Option(help="Learn capacity and diffusion as curves of the field instead of "
                                                            "using the known ones.")] = False,
          model: Annotated[str | None, typer.Option(help="Any of `dgnet models`. The default is dgnet; for a problem folder where "
                                                         "universal weights hold, these, tuned to its data.")] = None,
          from_scratch: Annotated[bool, typer.Option("--from-scratch", help="dgnet from the classical solver on, where universal "
                                                                            "weights hold, too.")] = False,
          amp: Annotated[bool, typer.Option("--amp", help="Compute networks in bfloat16; operators and solves are "
                                                          "unchanged.")] = False,
          readings: Told = None, sensors: Sensed = None, source: Driven = None, initial: Begun = None,
          seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Train a model on your own problem (a folder with problem.toml) or on a scenario of the paper.

    If interrupted, rerun to resume.
    """
    from dgnet.models.registry import entry
    from dgnet.scenarios import get
    from dgnet.scenarios.generate import generate as make
    from dgnet.training import run as runs
    from dgnet.training.formula import sentences
    from dgnet.training.processes import join_processes, wait_for_all

    if recipe not in ("staged", "paper"):
        raise InputError(f"unknown recipe '{recipe}' (known: staged, paper)")
    if from_scratch and model is not None:
        raise InputError(f"--from-scratch trains dgnet, not {model}")
    own_folder = _means_a_folder(name)
    if readings:
        from dgnet.cli.sensors import train_from_sensors

        train_from_sensors(context, Path(name) if own_folder else None, out, readings, sensors, source or [], initial or [], seed,
                           budget, json_path)
        return
    refuse(context, dict.fromkeys(("sensors", "source", "initial"), "it belongs to --readings"))
    model = model if own_folder and not from_scratch else model or "dgnet"
    if model is not None:
        entry(model)
        runs.check_choice(model, amp, unknown_reaction or unknown_curves)
    checked_device(device)
    if model not in (None, "dgnet"):
        refuse(context, {"recipe": f"{model} is trained with the recipe of its own paper"})
    if own_folder:
        from dgnet.cli.projects import train_own

        own = "a problem folder sets this in its problem.toml"
        refuse(context, {"size": own, "truth": own, "data": f"{own} ([[data]])", "recipe": f"{own} ([training])",
                         "amp": f"{own} ([model] amp = true)", "unknown_reaction": f'{own} ([pde] reaction = "unknown")',
                         "unknown_curves": f'{own} ([pde] capacity = "unknown", conductivity = "unknown")'})

        train_own(Path(name), out, model=model, seed=seed, device=device, minutes=budget, trajectories=trajectories,
                  json_path=json_path)
        return
    assert model is not None
    scenario = get(name, size)
    scenario.truth(truth)
    if unknown_reaction and scenario.pde.reaction is None:
        raise InputError(f"--unknown-reaction does not apply here: '{name}' has no reaction")
    if unknown_curves and not scenario.pde.curved:
        raise InputError(f"--unknown-curves does not apply here: capacity and diffusion of '{name}' are numbers")
    if (trajectories or 0) > scenario.train:
        raise InputError(f"--trajectories {trajectories}: '{name}' has {scenario.train} training trajectories")
    if join_processes(device):  # under torchrun one process makes the data, the others wait for it
        with reporting() as report:
            path = make(scenario, data or out / "data", truth=truth, seed=0, device=device, report=report)
    wait_for_all()
    path = make(scenario, data or out / "data", truth=truth, seed=0, device=device)
    with narrating(60 * budget if budget else math.inf) as (_, tell):
        run, progress = runs.train(scenario, truth, path, out, model=model, recipe=recipe, seed=seed, device=device,
                                   budget=None if budget is None else 60 * budget, trajectories=trajectories,
                                   unknown_reaction=unknown_reaction or unknown_curves, amp=amp, report=tell)
    tell_training(f"{name} ({size}, {truth})", run.settings.model, progress, json_path, found=sentences(run.model))
    advise("evaluate", out)


def _means_a_folder(name: str) -> bool:
    """Whether an argument of `train` is the folder of a problem. A bare name of a scenario is the scenario; both are refused."""
    from dgnet.projects import FILE
    from dgnet.scenarios import names

    if not name.strip() or not Path(name).is_dir():
        return False
    if name in names() and (Path(name) / FILE).exists():
        raise InputError(f"'{name}' is a scenario and a problem folder here: write ./{name} for the folder, or rename it")
    return name not in names()


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
    from dgnet.problems import PDE, Discretisation

    problem = Discretisation(perturbed_square(12), PDE(diffusion=0.1), [], 0.01)
    rows = [{"name": name, "title": entry.title, "parameters": parameter_count(build(name, None, problem))}
            for name, entry in all_models().items()]
    write_json(json_path, rows)
    table(("model", "title", "parameters"), [(str(r["name"]), str(r["title"]), f"{r['parameters']:,}") for r in rows])
    advise("train", "laser-heat", "--model", "mgn", "--out", "run")


@command("dgnet evaluate run", "dgnet evaluate run --leave-one-out --budget 10",
         "dgnet evaluate --pretrained laser-heat --trajectories 2")
def evaluate(context: typer.Context, run: Annotated[Path | None, typer.Argument(help="Folder of a run.")] = None,
             data: Annotated[Path | None, typer.Option(help="Data set; the default is the run's own. With --pretrained: a "
                                                       "folder of data sets, by default out/pretrained.")] = None,
             pretrained: Annotated[str | None, typer.Option(help="Instead of RUN: the shipped weights of this scenario, or a "
                                                            "folder written by `dgnet pretrained pack`. Test data are generated.",
                                                            callback=named)] = None,
             truth: Annotated[str | None, typer.Option(help="With --pretrained: converged (the default) or same-mesh.")] = None,
             trajectories: Annotated[int | None, typer.Option(help="With --pretrained: use only this many test trajectories.",
                                                              min=1)] = None,
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
    from dgnet.evaluation import bands as band
    from dgnet.evaluation import evaluate as scoring
    from dgnet.evaluation import trust
    from dgnet.output import bands as drawn
    from dgnet.output import figures as figures_of
    from dgnet.output import page as pages
    from dgnet.training.run import Run

    if not leave_one_out:
        refuse(context, {"budget": "it sets the time for --leave-one-out"})
    if split not in SPLITS:
        raise InputError(f"--split {split} is unknown (known: {', '.join(SPLITS)})")
    if split != "test" or pretrained is not None:
        refuse(context, {"calibrate": "bands belong to the test trajectories of a run"})
    if pretrained is not None:
        if run is not None or leave_one_out or split != "test" or problem is not None or allow_different:
            raise InputError("--pretrained takes the place of RUN and scores test trajectories only")
        refuse(context, {"figures": "--pretrained prints a table and draws nothing"})
        _evaluate_pretrained(pretrained, truth or "converged", data or Path("out/pretrained"), trajectories, checked_device(device),
                             json_path)
        return
    if run is None:
        raise InputError("give the folder of a run (RUN), or --pretrained with the name of a scenario")
    if truth is not None or trajectories is not None:
        raise InputError("--truth and --trajectories are options of --pretrained only")
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
    from dgnet.evaluation.bands import sentences
    from dgnet.evaluation.evaluate import table as scores

    page(scores(result))
    if result["warning"] is not None:
        say(f"\n{result['warning']}")
    if result["bands"] is not None:
        say("\n" + " ".join(sentences(result["bands"])))
    if "leave_one_out" in result:
        trials = result["leave_one_out"]
        say(f"\nLeave-one-out on {trials['trajectories']} trajectories: mean RNE {trials['mean']:.3g}, worst {trials['worst']:.3g} "
            f"(classical: mean {trials['classical_mean']:.3g})")


def _evaluate_pretrained(name: str, truth: str, data: Path, trajectories: int | None, device: str, json_path: Path | None) -> None:
    from dgnet.files import strict
    from dgnet.paper import compared
    from dgnet.paper.pretrained import find

    with reporting() as report:
        result = compared.check(find(name, truth), data=data, trajectories=trajectories, device=device, report=report)
    write_json(json_path, strict(result))
    page(compared.table(result))
    advise("pretrained")


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
    from dgnet.output import rollouts
    from dgnet.training.run import Run

    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    with reporting() as report:
        result = rollouts.roll_out(opened, source=source, trajectory=trajectory, initial=initial, data=data, steps=steps, out=out,
                                   vtk=vtk, xdmf=xdmf, gif=gif, mp4=mp4, png=png, every=every, device=device, report=report,
                                   dt=dt, mesh=mesh, adaptive=adaptive, band=band, everywhere=everywhere)
    write_json(json_path, result)
    say(rollouts.summary(result))
    advise(*(("score", out, data or opened.data, "--trajectory", trajectory) if out is not None and trajectory is not None else
             ("show", out, "--out", "pictures") if out is not None else ("analyse", run)))


@command("dgnet analyse run")
def analyse(run: Annotated[Path, typer.Argument(help="Folder of a run.")],
            data: Annotated[Path | None, typer.Option(help="Data set; the default is the run's own.")] = None,
            out: Annotated[Path | None, typer.Option(help="Folder for the pictures; the default is RUN/analysis.",
                                                    callback=folder_to_write())] = None,
            problem: Problem = None, allow_different: AllowDifferent = False, device: Device = "cpu",
            json_path: Json = None) -> None:
    """Analyse the learned operator: spectrum, stability, step norm, size and consistency, with pictures."""
    from dgnet.data import Dataset
    from dgnet.data.fits import check_fits
    from dgnet.output.operators import analyse as study_operator
    from dgnet.problems.case import base_problem
    from dgnet.training.run import Run

    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    with Dataset(data or opened.data) as dataset:
        check_fits(dataset, opened.case)
        rule = opened.model.rule
        corpus = dataset.batch(dataset.of("train")[:1], device=device, ends=rule == "trapezoid").under(rule)
    base, folder = base_problem(opened.case, device), out or run / "analysis"
    result = study_operator(opened.dgnet, corpus.problem(base), corpus.state, corpus.source_average, t=corpus.clock(base),
                            folder=folder) | {"notes": list(opened.notes)}
    written = json_path or run / "analysis.json"
    write_json(written, result)
    for note in opened.notes:
        errors.print(note, highlight=False, soft_wrap=not errors.is_terminal)
    _tell_analysis(opened.case, result)
    for path in (*(folder / name for name in result["figures"]), written):
        say_path(path)
    advise("evaluate", run)


def _tell_analysis(case: Case, result: dict[str, Any]) -> None:
    """The verdict of each field, and how much of the classical solver's one-step error is left."""
    rate = f" [1/{case.units.time}]" if case.units.time else ""
    size = f"{result['degrees_of_freedom']:,} degrees of freedom"
    say(f"{case.name} ({case.size}): learned operator beside the classical one, {size}")
    head = ("field", "verdict", f"max Re λ, learned{rate}", f"max Re λ, classical{rate}", "norm of a step", "correction/classical")
    rows = []
    for name, found in result["fields"].items():
        new, old = found["learned"], found["physics"]
        verdict = "UNSTABLE" if not new["stable"] else "stable" if new["proven"] else "stable as far as computed"
        rows.append((name, verdict, f"{new['rightmost']:.3g}", f"{old['rightmost']:.3g}", f"{new['step_norm_mass']:.6g}",
                     f"{found['size']['frobenius_ratio']:.2g}"))
    table(head, rows)
    c = result["consistency"]
    say(f"One step from a true state: error {c['learned']:.3g} of the step's change, {c['classical']:.3g} with the classical "
        f"operator (ratio {c['ratio']:.3g}; {c['steps']} steps)")
