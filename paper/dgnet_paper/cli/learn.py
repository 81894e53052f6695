"""Commands about models on the scenarios: train, evaluate shipped weights, analyse, universal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgnet.cli.options import Seed, file_to_write, folder_to_write, positive, refuse
from dgnet.cli.screen import errors, narrating, page, reporting, say, say_path, table
from dgnet.cli.shell import AllowDifferent, Device, Json, Problem, checked_device, write_json
from dgnet.errors import InputError
from dgnet_paper.cli.frame import PROCESSES, Size, Truth, advise, command, named

if TYPE_CHECKING:
    from dgnet.problems.case import Case


@command("dgnet-paper train laser-heat --out run --budget 10", "dgnet-paper train fisher-kpp --unknown-reaction --out run",
         "dgnet-paper train laser-heat --model mgn --out run-mgn")
def train(context: typer.Context, name: Annotated[str, typer.Argument(help="Any of `dgnet-paper scenarios`.")],
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
          model: Annotated[str, typer.Option(help="Any of `dgnet models`.")] = "dgnet",
          amp: Annotated[bool, typer.Option("--amp", help="Compute networks in bfloat16; operators and solves are "
                                                          "unchanged.")] = False,
          seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Train a model on a scenario of the paper. If interrupted, rerun to resume."""
    from dataclasses import replace

    from dgnet.data import Dataset
    from dgnet.models.registry import entry
    from dgnet.report.trained import training_result
    from dgnet.training import run as runs
    from dgnet.training.plan import plan_for_data
    from dgnet.training.processes import join_processes, wait_for_all
    from dgnet_paper.scenarios import get
    from dgnet_paper.scenarios.generate import generate as make
    from dgnet_paper.scenarios.scenario import unknowns_of

    if recipe not in ("staged", "paper"):
        raise InputError(f"unknown recipe '{recipe}' (known: staged, paper)")
    entry(model)
    runs.check_choice(model, amp, unknown_reaction or unknown_curves)
    checked_device(device)
    if model != "dgnet":
        refuse(context, {"recipe": f"{model} is trained with the recipe of its own paper"})
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
    if model == "dgnet" and recipe == "paper":  # one choice under two names: the paper's model is trained by the paper's recipe
        model = "dgnet-paper"
    with Dataset(path) as stored:
        plan = plan_for_data(scenario, stored, trajectories, model=model,
                             unknowns=unknowns_of(scenario, unknown_reaction or unknown_curves))
    plan = replace(plan, config=replace(plan.config, amp=True)) if amp else plan
    with narrating(60 * budget if budget else math.inf) as (_, tell):
        run, progress = runs.train(scenario, truth, path, out, plan, seed=seed, device=device,
                                   budget=None if budget is None else 60 * budget, trajectories=trajectories, report=tell)
    result, lines = training_result(f"{name} ({size}, {truth})", run, progress)
    write_json(json_path, result)
    for line in lines:
        say(line)
    advise("evaluate", out, program="dgnet")


@command("dgnet-paper evaluate laser-heat --trajectories 2", "dgnet-paper evaluate laser-heat --truth same-mesh")
def evaluate(name: Annotated[str, typer.Argument(help="The shipped weights of this scenario, or a folder written by `dgnet-paper "
                                                      "pretrained pack`.", callback=named)], truth: Truth = "converged",
             data: Annotated[Path, typer.Option(help="Folder of data sets; missing ones are generated.",
                                                callback=folder_to_write(shared=True))] = Path("out/pretrained"),
             trajectories: Annotated[int | None, typer.Option(help="Use only this many test trajectories.", min=1)] = None,
             device: Device = "cpu", json_path: Json = None) -> None:
    """Score shipped weights on the test trajectories of their scenario, beside the classical solvers."""
    from dgnet.files import strict
    from dgnet_paper.study import compared
    from dgnet_paper.study.pretrained import find

    with reporting() as report:
        result = compared.check(find(name, truth), data=data, trajectories=trajectories, device=checked_device(device),
                                report=report)
    write_json(json_path, strict(result))
    page(compared.table(result))
    advise("pretrained")


@command("dgnet-paper analyse run")
def analyse(run: Annotated[Path, typer.Argument(help="Folder of a run.")],
            data: Annotated[Path | None, typer.Option(help="Data set; the default is the run's own.")] = None,
            out: Annotated[Path | None, typer.Option(help="Folder for the pictures; the default is RUN/analysis.",
                                                    callback=folder_to_write())] = None,
            problem: Problem = None, allow_different: AllowDifferent = False, device: Device = "cpu",
            json_path: Json = None) -> None:
    """Analyse the learned operator: spectrum, stability, step norm, size and consistency, with pictures."""
    from dgnet.data import Dataset
    from dgnet.data.fits import check_fits
    from dgnet.problems.case import base_problem
    from dgnet.training.run import Run
    from dgnet_paper.analyse.pictures import analyse as study_operator

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
    advise("evaluate", run, program="dgnet")


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


@command("dgnet-paper universal meshes/*.msh --out family.pt --budget 10")
def universal(parts: Annotated[list[Path], typer.Argument(help="At least four meshes of a family of parts, all flat or all "
                                                           "solid. At most 2,500 nodes and edges each.")],
              out: Annotated[Path, typer.Option(help="FILE.pt for the weights.", callback=file_to_write(".pt"))],
              draws: Annotated[int, typer.Option(help="Random problems on each mesh.", min=1)] = 2,
              budget: Annotated[float, typer.Option(help="Minutes of training.", callback=positive)] = 1.0,
              flow: Annotated[bool, typer.Option("--flow", help="Weights for steady flows, on flat meshes.")] = False,
              workers: Annotated[int, typer.Option(help="Processes that compute truths.", min=1, max=PROCESSES)] = 1,
              seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Tune universal weights for quadratic elements to a family of meshes, on which problems are drawn and solved."""
    from dgnet.mesh import load
    from dgnet_paper.universal.training import tune

    with reporting() as report:
        net, found = tune([(path.stem, load(path)) for path in parts], 60 * budget, draws, workers, seed, checked_device(device),
                          report, flow)
    net.cpu().save(out)
    before = found.history[0]["validation"]
    write_json(json_path, {"before": before, "after": found.best, "updates": found.updates,
                           "history": [(row["seconds"], row["validation"]) for row in found.history[1:]]})
    say(f"Error over that of the best classical solver, on {len(parts)} meshes, a fifth of them held out: "
        f"{found.best:.3f}, {before:.3f} before; {found.updates} updates")
    say_path(out)
    advise("simulate", "PROBLEM", "--weights", out, program="dgnet")
