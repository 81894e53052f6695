"""The demo: lasers run over a steel plate with holes, and a model that trained for a minute follows the heat.

First the show: one unseen trajectory of the scenario laser-heat on the mesh of the paper with the classical solver. Then the main
job on the small mesh: data, training, and test trajectories whose lasers move in ways that training never saw, DGNet beside
the classical solvers. A second run uses finished data and a finished training, and resumes an interrupted one.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.files import write_json
from dgnet.models import Classical, few_threads, rollout
from dgnet.models.registry import title_of
from dgnet.problems import step_average
from dgnet.problems.case import base_problem
from dgnet.scoring.judge import judge, rivals
from dgnet.training.evaluate import evaluate
from dgnet.training.fit import Tell
from dgnet.training.plan import plan_for_data
from dgnet.training.run import train
from dgnet_paper.demo.pictures import Duel, Report, Scene
from dgnet_paper.scenarios import Sample, Scenario, get
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.scenarios.spots import Spots

Tensor = torch.Tensor

SCENARIO, TRUTH = "laser-heat", "converged"
BUDGET = 75.0  # seconds of training
SNAPSHOTS = {"show": (3.0, 10.0, 30.0, 60.0), "duel": (2.0, 5.0, 10.0, 20.0)}  # seconds


def _silent(what: str, done: int, total: int) -> None:
    pass


def demo(out: Path, *, seed: int = 0, device: str = "cpu", size: str = "paper", frames: int = 61, budget: float = BUDGET,
         factor: float = 1.0, report: Report = _silent, tell: Tell | None = None) -> tuple[dict[str, Any], list[Path]]:
    """Everything: the record of OUT/demo.json and the files written.

    `size` is that of the show, `frames` bounds both animations; `budget` (seconds) and `factor` (on iterations) bound training.
    """
    first, pictures = show(out, size=size, seed=seed, device=device, frames=frames, report=report)
    record, more = learn(out, seed=seed, device=device, frames=frames, budget=budget, factor=factor, report=report, tell=tell)
    record["show"] = first
    write_json(out / "demo.json", record)
    return record, [*pictures, *more, out / "demo.json"]


def show(out: Path, *, size: str = "paper", seed: int = 0, device: str = "cpu", frames: int = 61,
         report: Report = _silent) -> tuple[dict[str, Any], list[Path]]:
    """The classical solver on an unseen trajectory: its figures, and OUT/laser.png and OUT/laser.gif."""
    scenario = get(SCENARIO, size)
    sample = first_test(scenario, seed)
    with few_threads(scenario.mesh.n_nodes, device), torch.no_grad():
        x, steps = torch.tensor(scenario.mesh.points, device=device), scenario.steps
        report("lasers, averaged over each step", 0, 1)
        source = torch.cat([step_average(sample.source, x, times.to(device), scenario.dt, scenario.panels)
                            for times in scenario.times[:-1].split(4)], dim=1)  # a few steps at once fit into memory
        problem, model = scenario.problem(device=device), Classical()
        backend = model.prepare(problem, 1, steps).solver.operator().prepared.label
        begin = time.perf_counter()
        states = rollout(model, problem, sample.initial.to(device), source, progress=lambda k: report("heat", k, steps))
        field = states[0, :, :, 0].cpu()
        seconds = time.perf_counter() - begin
    step, node = divmod(int(field.argmax()), field.shape[1])
    scene = Scene(scenario.mesh, sample.source, field.numpy(), scenario.dt)
    scene.strip(out / "laser.png", [t for t in SNAPSHOTS["show"] if t <= scenario.horizon])
    scene.animation(out / "laser.gif", frames, report)
    return {"scenario": scenario.name, "nodes": scenario.mesh.n_nodes, "cells": scenario.mesh.n_cells, "steps": steps,
            "dt": scenario.dt,
            "device": device, "backend": backend, "seconds": seconds, "steps_per_second": steps / seconds,
            "peak": float(field[step, node]), "peak_time": step * scenario.dt,
            "peak_place": [float(v) for v in scenario.mesh.points[node]], "unit": "K"}, [out / "laser.png", out / "laser.gif"]


def first_test(scenario: Scenario, seed: int = 0) -> Any:
    """The first test trajectory: its start and its lasers."""
    sample: Sample = scenario.sample([draw for draw in scenario.draws(1, seed) if draw.split == "test"])
    assert isinstance(sample.source, Spots) and isinstance(sample.initial, Tensor)
    return sample


def learn(out: Path, *, seed: int = 0, device: str = "cpu", frames: int = 61, budget: float = BUDGET, factor: float = 1.0,
          report: Report = _silent, tell: Tell | None = None) -> tuple[dict[str, Any], list[Path]]:
    """Data, training, test: the record without the show, and OUT/demo.png and OUT/demo.gif.

    The data set is always that of seed 0 made on the CPU, in OUT/data; `seed` is that of training, in OUT/demo-run.
    """
    scenario, folder = get(SCENARIO, "small"), out / "demo-run"
    reused = [name for name, path in (("data", out / "data" / f"{SCENARIO}-small-{TRUTH}.h5"), ("training", folder / "weights.pt"))
              if path.exists()]
    begin = time.perf_counter()
    with few_threads(scenario.mesh.n_nodes):
        data = generate(scenario, out / "data", truth=TRUTH, report=report)
    generated = time.perf_counter() - begin

    def trained() -> Any:
        with few_threads(scenario.mesh.n_nodes, device):
            with Dataset(data) as dataset:
                plan = plan_for_data(scenario, dataset)
            plan = replace(plan, recipe=plan.recipe.scaled(factor))
            return train(scenario, TRUTH, data, folder, plan, seed=seed, device=device, budget=budget, report=tell)

    try:
        run, progress = trained()
    except InputError:  # a run of other settings, or a damaged one
        shutil.rmtree(folder)
        reused = reused[:1]
        run, progress = trained()
    begin = time.perf_counter()
    result, states, test = evaluate(run, data, device)
    again = judge({"dgnet": run.model, **rivals()}, base_problem(run.case, device), test)  # the first pays for what is loaded once
    pace = {name: min(seconds, result["seconds"][name]) for name, seconds in again.seconds.items()}
    rne = {name: row["rne_from_offset"] for name, row in result["scores"].items()}
    rival = min(rivals(), key=lambda name: rne[name])
    sample, ways = first_test(scenario), kinds(data)
    new = [kind for kind in sample.labels[0] if kind not in ways["train"]]
    duel = Duel(scenario.mesh, sample.source, test.state[0, :, :, 0].cpu().numpy(), states["dgnet"][0, :, :, 0].numpy(),
                states[rival][0, :, :, 0].numpy(), scenario.dt, scenario.offsets[0])
    evaluated = time.perf_counter() - begin
    duel.picture(out / "demo.png", [t for t in SNAPSHOTS["duel"] if t <= scenario.horizon],
                 f"{len(new)} of {len(sample.labels[0])} lasers move in ways never seen in training")
    duel.animation(out / "demo.gif", min(frames, scenario.steps + 1), report)
    return {
        "rne": rne, "wins": rne["dgnet"] < rne[rival], "error_ratio": rne["dgnet"] / rne[rival],
        "seconds": {"generate": generated, "train": progress.seconds, "evaluate": evaluated,
                    "rollout_dgnet": pace["dgnet"], "rollout_classical": pace[rival]},
        "training": {"iterations": progress.iteration, "validation": progress.best, "validation_classical": progress.classical,
                     "parameters": result["parameters"]},
        "scenario": SCENARIO, "size": "small", "truth": TRUTH, "seed": seed, "device": device, "nodes": scenario.mesh.n_nodes,
        "steps": scenario.steps, "dt": scenario.dt, "trajectories": result["trajectories"], "kinds": ways, "reused": reused,
    }, [out / "demo.png", out / "demo.gif"]


def kinds(path: Path) -> dict[str, list[str]]:
    """Kinds of laser paths in each split of a data set."""
    with Dataset(path) as data:
        return {split: sorted({label for i in data.of(split) for label in data.labels(i)}) for split in ("train", "test")}


# ---------------------------------------------------------------------- words


def headline(first: dict[str, Any]) -> str:
    """The show in a sentence."""
    return (f"Classical show: {first['nodes']:,} nodes, {first['steps']} steps of {first['dt']:g} s at "
            f"{first['steps_per_second']:,.0f} steps/s ({first['backend']}), peak {first['peak']:.1f} {first['unit']} at "
            f"t = {first['peak_time']:g} s\n")


def table(record: dict[str, Any]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Rows (model, RNE, against the better classical solver) and the sentences below them."""
    rne, seconds = record["rne"], record["seconds"]
    best = min(rne[name] for name in rivals())
    trained = f"DGNet, trained {seconds['train']:.0f} s"
    rows = [(trained if name == "dgnet" else title_of(name), f"{value:.5f}", f"{value / best:.2f}") for name, value in rne.items()]
    test, train = (set(record["kinds"][split]) for split in ("test", "train"))
    verdict = (f"DGNet makes {record['error_ratio']:.2f} of the error of the better classical solver with linear elements on the "
               "same mesh and step." if record["wins"] else
               f"DGNet does NOT win here: its error is {record['error_ratio']:.2f} times that of the better classical solver.")
    return rows, [
        f"RNE from the ambient temperature on {record['trajectories']} test trajectories of {record['steps']} steps, "
        f"{record['nodes']} nodes, {record['truth']} truth.",
        f"Their lasers follow {' and '.join(sorted(test - train))} paths, kinds that never occur in training"
        + (f" ({' and '.join(sorted(test & train))} paths occur in both)." if test & train else "."), verdict,
        *(f"Without training, {what} make {rne[name]:.5f}." for name, what in (
            ("classical_p2", "quadratic elements on that mesh"), ("universal", "universal weights")) if name in rne)]


def times(record: dict[str, Any]) -> str:
    """What each part took."""
    seconds, reused = record["seconds"], " and ".join(record["reused"])
    return (f"Data {seconds['generate']:.0f} s, training {seconds['train']:.0f} s, test {seconds['evaluate']:.1f} s; one "
            f"rollout of all test trajectories {1e3 * seconds['rollout_dgnet']:.0f} ms with DGNet, "
            f"{1e3 * seconds['rollout_classical']:.0f} ms classical" + (f" ({reused} of an earlier demo used again)" if reused
                                                                        else ""))
