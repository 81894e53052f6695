"""Commands about models: train, judge, use."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.options import Seed, file_to_write, folder_to_write, named, positive, refuse
from dgnet.cli.shell import (
    AllowDifferent,
    Device,
    Json,
    Problem,
    Size,
    Truth,
    app,
    checked_device,
    console,
    errors,
    folding,
    narrating,
    reporting,
    write_json,
)
from dgnet.errors import InputError


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the pictures and demo.json.", callback=folder_to_write)] = Path("out"),
         seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Lasers on a steel plate: the classical solver's show, then DGNet from data to test in about three minutes."""
    from rich.table import Table

    from dgnet.paper import demo as acts

    checked_device(device)
    begin = time.perf_counter()
    with narrating(acts.BUDGET) as (report, tell):
        record, written = acts.demo(out, seed=seed, device=device, report=report, tell=tell)
    first, seconds = record["show"], record["seconds"]
    write_json(json_path, record)
    console.print(f"Classical show: {first['nodes']:,} nodes, {first['steps']} steps of {first['dt']:g} s at "
                  f"{first['steps_per_second']:,.0f} steps/s ({first['backend']}), peak {first['peak']:.1f} {first['unit']} at "
                  f"t = {first['peak_time']:g} s\n", highlight=False, soft_wrap=True)
    rows, sentences = acts.table(record)
    table = Table("model", "RNE", "of the better classical", box=None)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)
    again = f" ({' and '.join(record['reused'])} of an earlier demo used again)" if record["reused"] else ""
    console.print(f"Data {seconds['generate']:.0f} s, training {seconds['train']:.0f} s, test {seconds['evaluate']:.1f} s; one "
                  f"rollout of all test trajectories {1e3 * seconds['rollout_dgnet']:.0f} ms with DGNet, "
                  f"{1e3 * seconds['rollout_classical']:.0f} ms classical; {time.perf_counter() - begin:.0f} s in all{again}.\n",
                  highlight=False, soft_wrap=True)
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)


# ---------------------------------------------------------------------- training and evaluation


@app.command()
def train(context: typer.Context, name: Annotated[str, typer.Argument(help="A scenario, or the folder of your problem.")],
          out: Annotated[Path, typer.Option(help="Folder of the run.", callback=folder_to_write)], size: Size = "small",
          truth: Truth = "converged",
          recipe: Annotated[str, typer.Option(help="staged (ours) or paper")] = "staged",
          data: Annotated[Path | None, typer.Option(help="Folder of data sets; missing ones are generated there.")] = None,
          budget: Annotated[float | None, typer.Option(help="Minutes of training.", callback=positive)] = None,
          trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.", min=1)] = None,
          unknown_reaction: Annotated[bool, typer.Option(help="Learn the reaction instead of being told.")] = False,
          model: Annotated[str, typer.Option(help="Any of `dgnet models`.")] = "dgnet",
          amp: Annotated[bool, typer.Option("--amp", help="Networks in bfloat16; operators and solves stay as they are.")] = False,
          seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Train a model on a scenario of the paper, or on your own problem: a folder with problem.toml. Interrupted, it goes on."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from dgnet.models.registry import entry
    from dgnet.scenarios import get
    from dgnet.scenarios.generate import generate as make
    from dgnet.training import run as runs
    from dgnet.training.fit import join_processes, wait_for_all

    if recipe not in ("staged", "paper"):
        raise InputError(f"unknown recipe '{recipe}' (known: staged, paper)")
    entry(model)
    checked_device(device)
    runs.check_choice(model, amp, unknown_reaction)
    if model != "dgnet":
        refuse(context, {"recipe": f"{model} is trained as its own paper says"})
    if name.strip() and Path(name).is_dir():
        from dgnet.cli.projects import train_own

        own = "a problem of your own says this in its problem.toml"
        refuse(context, {"size": own, "truth": own, "data": f"{own} ([[data]])", "recipe": f"{own} ([training])",
                         "amp": f"{own} ([model] amp = true)", "unknown_reaction": f'{own} ([pde] reaction = "unknown")'})

        train_own(Path(name), out, model=model, seed=seed, device=device, minutes=budget, trajectories=trajectories,
                  json_path=json_path)
        return
    scenario = get(name, size)
    scenario.truth(truth)
    if unknown_reaction and scenario.pde.reaction is None:
        raise InputError(f"--unknown-reaction does not apply here: '{name}' has no reaction")
    if (trajectories or 0) > scenario.train:
        raise InputError(f"--trajectories {trajectories}: '{name}' has {scenario.train} training trajectories")
    if join_processes(device):  # under torchrun one process makes the data, the others wait for it
        with reporting() as report:
            path = make(scenario, data or out / "data", truth=truth, seed=0, device=device, report=report)
    wait_for_all()
    path = make(scenario, data or out / "data", truth=truth, seed=0, device=device)
    columns = (TextColumn("train"), BarColumn(), TextColumn("{task.fields[note]}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        task = bars.add_task("train", total=None, note="")

        def tell(progress: Any, total: int) -> None:
            last = progress.history[-1] if progress.history else {"loss": float("nan"), "validation": float("nan")}
            share = progress.iteration / total
            if budget:
                share = max(share, progress.seconds / (60 * budget))
            note = (f"iteration {progress.iteration}  loss {last['loss']:.2e}  validation {last['validation']:.2e}  "
                    f"best {progress.best:.2e}  classical {progress.classical:.2e}")
            bars.update(task, total=1.0, completed=min(1.0, share), note=note)

        _, progress = runs.train(scenario, truth, path, out, model=model, recipe=recipe, seed=seed, device=device,
                                 budget=None if budget is None else 60 * budget, trajectories=trajectories,
                                 unknown_reaction=unknown_reaction, amp=amp, report=tell)
    tell_training(f"{name} ({size}, {truth})", model, progress, json_path)


def tell_training(what: str, model: str, progress: Any, json_path: Path | None, more: Mapping[str, Any] | None = None,
                  bars: Mapping[str, Any] | None = None, untold: Sequence[str] = ()) -> None:
    """The last lines of a training, for people and machines: what it reached, and whether anything was learned at all.

    `untold` is what the classical solver beside it did not know.
    """
    rival = f" (which was not told {' and '.join(untold)})" if untold else ""
    verdict = "below" if progress.best < progress.classical else "NOT below"
    learned = progress.best_iteration > 0
    write_json(json_path, {"validation": progress.best, "classical": progress.classical, "iterations": progress.iteration,
                           "best_iteration": progress.best_iteration, "learned": learned, "seconds": progress.seconds,
                           "history": progress.history} | ({} if more is None else {"coefficients": dict(more)})
               | ({} if bars is None else {"error_bars": {name: asdict(bar) for name, bar in bars.items()}}))
    console.print(f"{what}: validation error {progress.best:.3e} after {progress.best_iteration} iterations, {verdict} the "
                  f"classical solver's {progress.classical:.3e}{rival}; {progress.seconds:.0f} s", highlight=False, soft_wrap=True,
                  markup=False)
    for name, factor in (more or {}).items():
        bar = f"; error bar: {bars[name]}" if bars and name in bars else ""
        console.print(f"  {name}: {factor:.4g} times what problem.toml says{bar}", highlight=False, soft_wrap=True, markup=False)
    if not learned:
        why = f"none of {progress.updates} updates lowered the error" if progress.updates else "the time allowed no update"
        start = "the classical solver" if model == "dgnet" else "an untrained network"
        console.print(f"nothing was learned: {why}, so the result is {start}", highlight=False, soft_wrap=True, markup=False)


@app.command()
def models(json_path: Json = None) -> None:
    """List the models with their numbers of parameters (two dimensions, one field)."""
    from rich.table import Table

    from dgnet.mesh import perturbed_square
    from dgnet.models.registry import MODELS, build, parameter_count
    from dgnet.problems import PDE, Discretisation

    problem = Discretisation(perturbed_square(12), PDE(diffusion=0.1), [], 0.01)
    rows = [{"name": name, "parameters": parameter_count(build(name, None, problem))} for name in MODELS]
    table = Table("model", "parameters", box=None)
    for row in rows:
        table.add_row(str(row["name"]), f"{row['parameters']:,}")
    write_json(json_path, rows)
    console.print(table)


@app.command()
def evaluate(context: typer.Context, run: Annotated[Path | None, typer.Argument(help="Folder of a run.")] = None,
             data: Annotated[Path | None, typer.Option(help="Data set; the run's own by default. With --pretrained a folder of "
                                                       "data sets, out/pretrained by default.")] = None,
             pretrained: Annotated[str | None, typer.Option(help="In place of RUN: weights that ship with dgnet, by scenario, or a "
                                                            "folder of `dgnet pretrained pack`. Their test data are made again.",
                                                            callback=named)] = None,
             truth: Annotated[str | None, typer.Option(help="With --pretrained: converged (the default) or same-mesh.")] = None,
             trajectories: Annotated[int | None, typer.Option(help="With --pretrained: only the first so many test trajectories.",
                                                              min=1)] = None,
             split: Annotated[str, typer.Option(help="test or train")] = "test", device: Device = "cpu",
             figures: Annotated[bool, typer.Option(help="Draw figures into RUN/figures and write RUN/report.html.")] = True,
             leave_one_out: Annotated[bool, typer.Option(
                 "--leave-one-out", help="Also train again without each training trajectory and score on it (RUN/trust.json).",
             )] = False,
             budget: Annotated[float | None, typer.Option(help="Minutes for --leave-one-out; per trajectory what the run had by "
                                                          "default.", callback=positive)] = None,
             problem: Problem = None, allow_different: AllowDifferent = False, json_path: Json = None) -> None:
    """Score a run on its test trajectories, beside the classical solvers on the same mesh, and write a page about it."""
    from dgnet.data.trajectory import SPLITS
    from dgnet.evaluation import evaluate as scoring
    from dgnet.evaluation import trust
    from dgnet.output import figures as figures_of
    from dgnet.output import page
    from dgnet.training.run import Run

    if not leave_one_out:
        refuse(context, {"budget": "it is the time for --leave-one-out"})
    if split not in SPLITS:
        raise InputError(f"--split {split} is unknown (known: {', '.join(SPLITS)})")
    if pretrained is not None:
        if run is not None or leave_one_out or split != "test" or problem is not None or allow_different:
            raise InputError("--pretrained stands in place of RUN and is about test trajectories only")
        refuse(context, {"figures": "--pretrained prints a table and draws nothing"})
        _evaluate_pretrained(pretrained, truth or "converged", data or Path("out/pretrained"), trajectories, checked_device(device),
                             json_path)
        return
    if run is None:
        raise InputError("give the folder of a run (RUN), or --pretrained with the name of a scenario")
    if truth is not None or trajectories is not None:
        raise InputError("--truth and --trajectories go with --pretrained")
    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    result, states, true = scoring.evaluate(opened, data or opened.data, device, split)
    known = trust.training_range(opened)
    left = None if known is None else page.findings(opened, states, true, known)
    result |= {"left_range": left, "warning": trust.sentence(left or [])}
    if leave_one_out:
        with folding() as tell:
            result["leave_one_out"] = trust.leave_one_out(opened, budget=None if budget is None else 60 * budget, device=device,
                                                          tell=tell)
    write_json(json_path, result)
    write_json(run / f"{split}.json", result)
    console.print(scoring.table(result), highlight=False)
    if result["warning"] is not None:
        console.print(f"\n{result['warning']}", highlight=False, soft_wrap=True, markup=False)
    if leave_one_out:
        trials = result["leave_one_out"]
        console.print(f"\nLeft out of training, one by one: RNE {trials['mean']:.3g} in the mean, {trials['worst']:.3g} at worst "
                      f"(classical {trials['classical_mean']:.3g}), {trials['trajectories']} trajectories", highlight=False,
                      soft_wrap=True)
    if figures:
        tail = "" if split == "test" else f"-{split}"
        with reporting() as report:
            written = figures_of.draw(opened, result, states, true, run / f"figures{tail}", report)
            written.append(page.write(opened, result, states, true, written, run / f"report{tail}.html", report))
        console.print()
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)


def _evaluate_pretrained(name: str, truth: str, data: Path, trajectories: int | None, device: str, json_path: Path | None) -> None:
    from dgnet.files import strict
    from dgnet.paper import pretrained as shelf

    with reporting() as report:
        result = shelf.check(shelf.find(name, truth), data=data, trajectories=trajectories, device=device, report=report)
    write_json(json_path, strict(result))
    console.print(shelf.table(result), highlight=False, soft_wrap=True)


@app.command()
def rollout(run: Path,
            source: Annotated[str | None, typer.Option(help="CSV of moving spots (t, x, y[, z], radius, power[, spot]), a source "
                                                       "in .npy, .npz, .h5, .pvd, .vtu or .xdmf, or physics:NAME, a function "
                                                       "f(x, t) of the problem's physics.py.")] = None,
            trajectory: Annotated[int | None, typer.Option(help="Stored trajectory: its start, its flow and, without --source, its "
                                                           "source.")] = None,
            initial: Annotated[Path | None, typer.Option(help="Start as .npy, [nodes] or [nodes, fields].")] = None,
            data: Annotated[Path | None, typer.Option(help="Data set of --trajectory; the run's own by default.")] = None,
            steps: Annotated[int | None, typer.Option(help="Steps; those of the scenario or trajectory by default.", min=1)] = None,
            out: Annotated[Path | None, typer.Option(help="HDF5 file for the states; written as they are made.",
                                                    callback=file_to_write)] = None,
            vtk: Annotated[Path | None, typer.Option(help="FILE.pvd for ParaView, with a folder of .vtu beside it.",
                                                    callback=file_to_write)] = None,
            xdmf: Annotated[Path | None, typer.Option(help="FILE.xdmf for ParaView, one series with its HDF5 beside it.",
                                                     callback=file_to_write)] = None,
            gif: Annotated[Path | None, typer.Option(help="Animation, FILE.gif.", callback=file_to_write)] = None,
            mp4: Annotated[Path | None, typer.Option(help="Animation, FILE.mp4; needs the program ffmpeg.",
                                                    callback=file_to_write)] = None,
            png: Annotated[Path | None, typer.Option(help="Snapshots, FILE.png.", callback=file_to_write)] = None,
            every: Annotated[int, typer.Option(help="Files get one state every so many steps.", min=1)] = 1,
            dt: Annotated[float | None, typer.Option(help="Another time step than that of the training.")] = None,
            mesh: Annotated[Path | None, typer.Option(help="File of another mesh with the same names of boundaries; the model "
                                                      "needs free = false.")] = None,
            problem: Problem = None, allow_different: AllowDifferent = False, device: Device = "cpu",
            json_path: Json = None) -> None:
    """Roll out a trained run for a new source and start, streaming the states to disk. Interrupted, the same command goes on."""
    from dgnet.output import rollouts
    from dgnet.training.run import Run

    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    with reporting() as report:
        result = rollouts.roll_out(run, source=source, trajectory=trajectory, initial=initial, data=data, steps=steps, out=out,
                                   vtk=vtk, xdmf=xdmf, gif=gif, mp4=mp4, png=png, every=every, device=device, report=report,
                                   run=opened, dt=dt, mesh=mesh)
    write_json(json_path, result)
    console.print(rollouts.summary(result), highlight=False, soft_wrap=True)


@app.command()
def analyse(run: Path, data: Annotated[Path | None, typer.Option(help="Data set; the run's own by default.")] = None,
            out: Annotated[Path | None, typer.Option(help="Folder for the pictures; RUN/analysis by default.",
                                                    callback=folder_to_write)] = None,
            problem: Problem = None, allow_different: AllowDifferent = False, device: Device = "cpu",
            json_path: Json = None) -> None:
    """Spectrum, stability, step norm, size and consistency of what was learned, with pictures."""
    from dgnet.data import Corpus, Dataset
    from dgnet.data.fits import check_fits
    from dgnet.output.operators import analyse as study_operator
    from dgnet.problems.case import base_problem
    from dgnet.training.run import Run

    opened = Run.open(run, checked_device(device), problem=problem, allow_different=allow_different)
    with Dataset(data or opened.data) as dataset:
        check_fits(dataset, opened.case)
        corpus = Corpus.read(dataset, dataset.of("train")[:1], device)
    base = base_problem(opened.case, device)
    result = study_operator(opened.model, corpus.problem(base), corpus.state, corpus.source, t=corpus.clock(base),
                            folder=out or run / "analysis") | {"notes": list(opened.notes)}
    write_json(json_path or run / "analysis.json", result)
    for note in opened.notes:
        errors.print(note, highlight=False, soft_wrap=True, markup=False)
    console.print_json(json.dumps({k: v for k, v in result.items() if not isinstance(v, list)}))
