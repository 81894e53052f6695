"""The paper's model trained to its end in pieces, and the experiments that settle what its text leaves open.

    python -m dgnet.paper.depth readings DATA --out OUT                every reading by itself, short trainings, validation rollouts
    python -m dgnet.paper.depth piece DATA RUN --seconds 480           begin a training, or go on with it for so many seconds
    python -m dgnet.paper.depth report RUN... --readings OUT           tables and learning curves

DATA is a data set of `dgnet data`. Training trajectories are read, test trajectories never: an experiment holds some of the training
trajectories out and rolls them out from their first state to their last. A piece ends where its time ends; the next one goes on to the
bit, with the learning rate of its number of updates.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.data import Corpus, Dataset, hold_out
from dgnet.errors import SolveError
from dgnet.files import strict, write_json
from dgnet.models.dgnet import PAPER, DGNet, DGNetConfig
from dgnet.problems.case import base_problem
from dgnet.recipe import Recipe, Stage, paper_recipe, settled
from dgnet.scenarios import get
from dgnet.scenarios.scenario import Scenario
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import fit
from dgnet.training.plan import Facts
from dgnet.training.run import train
from dgnet.training.update import iterate, parameter_groups

HELD = 2  # training trajectories that an experiment holds out


@dataclass(frozen=True)
class Reading:
    """One answer to what the text leaves open: changes of the model, of the stage and of the recipe against the settled ones."""

    says: str
    model: dict[str, Any] = field(default_factory=dict)
    stage: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)


READINGS = {
    "settled": Reading("all of the readings below as they were settled"),
    "no bound": Reading("decoder without tanh, numbers in 1/time", model={"bound": 0.0}),
    "norms": Reading("LayerNorm at the end of every MLP", model={"norm": True}),
    "no noise": Reading("no noise on the first state", stage={"step_noise": 0.0}),
    "large noise": Reading("noise as large as the change of a step", stage={"step_noise": 1.0}),
    "no diagonal": Reading("nothing on the diagonal of L_neural", model={"diagonal": False}),
    "no starts": Reading("windows from anywhere alike", stage={"from_start": 0.0}),
    "many starts": Reading("half of the windows from the start", stage={"from_start": 0.5}),
    "units": Reading("errors in units of the spread, Adam's eps 1e-8", stage={"unit": "spread"}, recipe={"eps": 1e-8}),
    "own units": Reading("every window in units of its own first change", stage={"unit": "own"}),
    "own units, norms": Reading("both", stage={"unit": "own"}, model={"norm": True}),
    "narrow bound": Reading("|L_neural| at most 0.2 of L_physics", model={"bound": 0.2}),
    "gradients": Reading("gradients through all steps of a window", stage={"cut": False}),
    "mixed areas": Reading("Voronoi areas and faces", model={"areas": "mixed"}),
}


def recipe_of(scenario: Scenario, facts: Facts, reading: Reading, factor: float = 1.0) -> Recipe:
    """The paper's recipe under a reading, its iterations times `factor`."""
    row = scenario.training.paper
    plan = settled(paper_recipe(row, facts.trajectories, facts.steps), row)
    stages = tuple(replace(stage, **reading.stage) for stage in plan.stages)
    return replace(plan, stages=stages, **reading.recipe).scaled(factor)


def parts(data: Path, device: str) -> tuple[Scenario, Facts, Corpus, Corpus]:
    """Scenario, facts of the data set, and training trajectories to learn from and to validate on."""
    with Dataset(data) as dataset:
        told, facts = dataset.provenance, Facts.of(dataset)
        scenario = get(str(told["scenario"]), str(told["size"]))
        numbers, held = hold_out(dataset.of("train"), min(HELD, facts.trajectories - 1), np.random.default_rng(0))
        learn, check = (dataset.batch(rows, device=device, ends=True) for rows in (numbers, held))
    return scenario, facts, learn, check


def trial(scenario: Scenario, facts: Facts, learn: Corpus, check: Corpus, reading: Reading, updates: int, device: str,
          seed: int = 0, config: DGNetConfig = PAPER) -> dict[str, Any]:
    """A short training under a reading, with the whole schedule of learning rates in `updates` updates."""
    plan = recipe_of(scenario, facts, reading)
    plan = replace(plan.scaled(updates / plan.iterations), validations=3)
    base, begin = base_problem(scenario, device), time.perf_counter()
    torch.manual_seed(seed)
    model = DGNet(replace(config, **reading.model), base).to(device)
    record: dict[str, Any] = {"says": reading.says, "updates": plan.iterations}
    try:
        progress = fit(model, base, learn, check, plan, seed=seed)
    except SolveError as error:
        return record | {"error": str(error), "seconds": time.perf_counter() - begin}
    history = [strict(row) for row in progress.history]
    return record | {"untrained": progress.history[0]["validation"], "best": progress.best, "history": history,
                     "seconds": time.perf_counter() - begin, "setbacks": progress.setbacks}


def speed(scenario: Scenario, facts: Facts, learn: Corpus, reading: Reading, count: int, device: str, recorded: bool = True) -> float:
    """Seconds of an update, after the first ones."""
    from dgnet.training.recorded import RecordedUpdate

    base = base_problem(scenario, device)
    plan = recipe_of(scenario, facts, reading)
    model = DGNet(replace(PAPER, **reading.model), base).to(device)
    learn = learn.under(model.rule)
    model.fit_statistics(learn.state, learn.source_average, learn.dt)
    optimiser = torch.optim.Adam(parameter_groups(model, plan), eps=plan.eps)
    stage: Stage = plan.stages[0]
    graph = RecordedUpdate.of(model, base, learn, stage, learn.spread, plan.clip) if recorded else None
    for k in range(count + 2):
        if k == 2:
            _wait(device)
            begin = time.perf_counter()
        iterate(model, base, learn, stage, optimiser, learn.spread, 0, k, plan.clip, graph)
    _wait(device)
    return (time.perf_counter() - begin) / count


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def readings(data: Path, out: Path, device: str, updates: int, names: Sequence[str] = tuple(READINGS), seconds: float = 1e9) -> None:
    """Trials of the readings, one after the other while time is left; those that are in OUT already are left alone."""
    scenario, facts, learn, check = parts(data, device)
    begin = time.perf_counter()
    for name in names:
        path = out / f"{scenario.name}-{name.replace(' ', '-')}.json"
        if not path.exists() and time.perf_counter() - begin < seconds:
            found = trial(scenario, facts, learn, check, READINGS[name], updates, device)
            write_json(path, {"scenario": scenario.name, "reading": name, **found})


def piece(data: Path, run: Path, device: str, seconds: float, factor: float = 1.0, beside: int = 1,
          limit: int | None = None) -> Progress:
    """Begin a training in RUN, or go on with it, for so many seconds; `beside`: processes on the device, itself included.

    RUN/pieces.json has a row for each piece: seconds, updates at its end, GPU-seconds (its share of the device).
    """
    with Dataset(data) as dataset:
        told, facts = dataset.provenance, Facts.of(dataset)
    scenario = get(str(told["scenario"]), str(told["size"]))
    notes = run / "pieces.json"
    rows: list[dict[str, Any]] = json.loads(notes.read_text()) if notes.exists() else []
    before = sum(row["seconds"] for row in rows)
    plan = recipe_of(scenario, facts, READINGS["settled"], factor)
    _, progress = train(scenario, str(told["truth"]), data, run, model="dgnet-paper", recipe="paper", device=device, plan=plan,
                        budget=before + seconds, portable=False)
    spent = progress.seconds - before
    rows.append({"seconds": spent, "beside": beside, "gpu_seconds": spent / beside, "updates": progress.updates,
                 "of": plan.iterations, "best": progress.best, "untrained": progress.history[0]["validation"],
                 "recipe": asdict(plan), "device": device})
    write_json(notes, rows)
    return progress
