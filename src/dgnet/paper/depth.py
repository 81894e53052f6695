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

VALIDATIONS = 12  # of a piece, evenly over its updates or its time
HELD = 2  # training trajectories that an experiment holds out


@dataclass(frozen=True)
class Reading:
    """One answer to what the text leaves open: changes of the model, of the stage and of the recipe against the settled ones."""

    says: str
    model: dict[str, Any] = field(default_factory=dict)
    stage: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)


def _first(says: str, model: dict[str, Any] | None = None, recipe: dict[str, Any] | None = None, **stage: Any) -> Reading:
    """A reading of the first round: errors and noise in units of the mean change of a step, no LayerNorm, a tenth from the start."""
    common = {"unit": "change", "step_noise": 0.1, "from_start": 0.1, "cut": True}
    return Reading(says, {"norm": False, **(model or {})}, common | stage, recipe or {})


def _second(says: str, model: dict[str, Any] | None = None, **stage: Any) -> Reading:
    """A reading of the second round: every window in units of its own first change."""
    return _first(says, model, **{"unit": "own", **stage})


READINGS = {
    "settled": Reading("as settled for the scenario"),
    "first": _first("bound, diagonal, thirds of triangles, cut gradients, noise of a tenth of a step's change"),
    "no bound": _first("decoder without tanh, numbers in 1/time", {"bound": 0.0}),
    "narrow bound": _first("L_neural at most 0.2 of L_physics", {"bound": 0.2}),
    "no diagonal": _first("nothing on the diagonal of L_neural", {"diagonal": False}),
    "mixed areas": _first("Voronoi areas and faces", {"areas": "mixed"}),
    "norms": _first("LayerNorm at the end of every MLP", {"norm": True}),
    "no noise": _first("no noise on the first state", step_noise=0.0),
    "large noise": _first("noise as large as the change of a step", step_noise=1.0),
    "no starts": _first("windows from anywhere alike", from_start=0.0),
    "many starts": _first("half of the windows from the start", from_start=0.5),
    "gradients": _first("gradients through all steps of a window", cut=False),
    "units": _first("errors in units of the spread, Adam's eps 1e-8", recipe={"eps": 1e-8}, unit="spread"),
    "own units": _second("every window in units of its own first change"),
    "own units, norms": _second("and LayerNorm", {"norm": True}),
    "own units, norms, no noise": _second("and no noise", {"norm": True}, step_noise=0.0),
    "own units, norms, no starts": _second("and windows from anywhere", {"norm": True}, from_start=0.0),
    "own units, norms, no bound": _second("and no tanh", {"norm": True, "bound": 0.0}),
    "own units, gradients": _second("gradients through the window", cut=False),
    "own units, norms, gradients": _second("gradients through the window, LayerNorm", {"norm": True}, cut=False),
    "own units, norms, gradients, no starts": _second("and windows from anywhere", {"norm": True}, cut=False, from_start=0.0),
}


def recipe_of(scenario: Scenario, facts: Facts, reading: Reading, factor: float = 1.0) -> Recipe:
    """The paper's recipe under a reading, its iterations times `factor`."""
    row = scenario.training.paper
    plan = settled(paper_recipe(row, facts.trajectories, facts.steps), row)
    stages = tuple(replace(stage, **reading.stage) for stage in plan.stages)
    return replace(plan, stages=stages, **reading.recipe).scaled(factor)


def model_of(scenario: Scenario, reading: Reading) -> dict[str, Any]:
    """Changes of the paper's model for a scenario under a reading."""
    return {"norm": scenario.training.paper.norm} | reading.model


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
    plan = replace(plan.scaled(updates / plan.iterations), validations=1)
    base, begin = base_problem(scenario, device), time.perf_counter()
    torch.manual_seed(seed)
    model = DGNet(replace(config, **model_of(scenario, reading)), base).to(device)
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
    model = DGNet(replace(PAPER, **model_of(scenario, reading)), base).to(device)
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
          reading: Reading = READINGS["settled"]) -> Progress:
    """Begin a training in RUN, or go on with it, for so many seconds; `beside`: processes on the device, itself included.

    RUN/pieces.json has a row for each piece: seconds, updates at its end, GPU-seconds (its share of the device).
    """
    with Dataset(data) as dataset:
        told, facts = dataset.provenance, Facts.of(dataset)
    scenario = get(str(told["scenario"]), str(told["size"]))
    notes = run / "pieces.json"
    rows: list[dict[str, Any]] = json.loads(notes.read_text()) if notes.exists() else []
    before = sum(row["seconds"] for row in rows)
    plan = replace(recipe_of(scenario, facts, reading, factor), validations=VALIDATIONS)
    _, progress = train(scenario, str(told["truth"]), data, run, model="dgnet-paper", recipe="paper", device=device, plan=plan,
                        config=replace(PAPER, **model_of(scenario, reading)), budget=before + seconds, portable=False)
    spent = progress.seconds - before
    rows.append({"seconds": spent, "beside": beside, "gpu_seconds": spent / beside, "updates": progress.updates,
                 "of": plan.iterations, "factor": factor, "best": progress.best, "untrained": progress.history[0]["validation"],
                 "recipe": asdict(plan), "device": device})
    write_json(notes, rows)
    return progress
