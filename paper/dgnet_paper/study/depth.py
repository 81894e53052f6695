"""The paper's model trained to its end in pieces, and the experiments that settle what its text leaves open.

    python -m dgnet_paper.study.depth readings DATA --out OUT            every reading by itself: short trainings, validation
    python -m dgnet_paper.study.depth piece DATA RUN --seconds 480       begin a training, or go on with it for so many seconds
    python -m dgnet_paper.study.depth score RUN TEST-DATA                test trajectories, once
    python -m dgnet_paper.study.depth report STORE --picture curves.png  tables and learning curves

DATA is a data set of `dgnet data`. Training trajectories are read, test trajectories never: an experiment holds some of the
training trajectories out and rolls them out from their first state to their last. A piece ends where its time ends; the next one
goes on to the bit, with the learning rate of its number of updates.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dgnet.data import Corpus, Dataset
from dgnet.errors import SolveError
from dgnet.files import strict, write_json
from dgnet.models.dgnet import DGNet
from dgnet.problems.case import base_problem
from dgnet.recipe import Recipe, Stage, paper_recipe, settled
from dgnet.scoring.judge import judge
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import fit, split
from dgnet.training.run import Run, train
from dgnet.training.update import iterate, parameter_groups
from dgnet_paper.model import PAPER, PaperConfig
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.scenario import Scenario

VALIDATIONS = 12  # of a piece, evenly over its updates or its time
HELD = 2  # training trajectories that an experiment holds out


class Facts(NamedTuple):
    """Of a data set: training trajectories, and steps of each."""

    trajectories: int
    steps: int

    @classmethod
    def of(cls, data: Dataset) -> Facts:
        return cls(len(data.of("train")), data.steps)


@dataclass(frozen=True)
class Reading:
    """One answer to what the text leaves open: changes of the model, of the stage and of the recipe against the settled ones."""

    says: str
    model: dict[str, Any] = field(default_factory=dict)
    stage: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)


def _first(says: str, model: dict[str, Any] | None = None, recipe: dict[str, Any] | None = None, **stage: Any) -> Reading:
    """A reading of the first round: errors and noise in units of the mean change of a step, no LayerNorm, a tenth from the
    start."""
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
        provenance, facts = dataset.provenance, Facts.of(dataset)
        scenario = get(str(provenance["scenario"]), str(provenance["size"]))
        numbers, held = split(dataset, Recipe("held", (), hold_out=min(HELD, facts.trajectories - 1)))
        learn, check = (dataset.batch(rows, device=device, ends=True) for rows in (numbers, held))
    return scenario, facts, learn, check


def trial(scenario: Scenario, facts: Facts, learn: Corpus, check: Corpus, reading: Reading, updates: int, device: str,
          seed: int = 0, config: PaperConfig = PAPER) -> dict[str, Any]:
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


def speed(scenario: Scenario, facts: Facts, learn: Corpus, reading: Reading, count: int, device: str,
          recorded: bool = True) -> float:
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


def readings(data: Path, out: Path, device: str, updates: int, names: Sequence[str] = tuple(READINGS),
             seconds: float = 1e9) -> None:
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
        provenance, facts = dataset.provenance, Facts.of(dataset)
    scenario = get(str(provenance["scenario"]), str(provenance["size"]))
    notes = run / "pieces.json"
    rows: list[dict[str, Any]] = json.loads(notes.read_text()) if notes.exists() else []
    before = sum(row["seconds"] for row in rows)
    plan = replace(recipe_of(scenario, facts, reading, factor), validations=VALIDATIONS)
    chosen = replace(scenario.training, config=replace(PAPER, **model_of(scenario, reading)), recipe=plan, model="dgnet-paper")
    _, progress = train(scenario, str(provenance["truth"]), data, run, chosen, device=device, budget=before + seconds,
                        portable=False)
    spent = progress.seconds - before
    rows.append({"seconds": spent, "beside": beside, "gpu_seconds": spent / beside, "updates": progress.updates,
                 "of": plan.iterations, "factor": factor, "best": progress.best, "untrained": progress.history[0]["validation"],
                 "recipe": asdict(plan), "device": device})
    write_json(notes, rows)
    return progress


def score(run: Path, data: Path, device: str, few: int | None = None) -> dict[str, Any]:
    """Free rollouts of test trajectories (all, or the first `few`): the model with its chosen weights, and the same untrained."""
    opened = Run.open(run, device)
    base, model = base_problem(opened.case, device), opened.dgnet
    plain = DGNet(replace(model.config, decoder="none", residual=False), base).to(device)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if name in plain.state_dict()})
    with Dataset(data) as dataset:
        rows = dataset.batch(dataset.of("test")[:few], device=device, ends=True)
    found: dict[str, Any] = strict(judge({"trained": model, "untrained": plain}, base, rows).scores())
    return found | {"test_trajectories": len(rows)}


# ---------------------------------------------------------------------- what was found


def table(store: dict[str, Any]) -> str:
    """The trainings, one row each, in Markdown."""
    rows = ["| scenario | reading | updates (of) | GPU-seconds | ms per update, four at once | untrained | trained | published |",
            "|---|---|---|---|---|---|---|---|"]
    for t in sorted(store["trainings"], key=lambda t: (t["scenario"], not t["chosen"])):
        learnt = f"{t['best']:.4f}" if t["best"] < t["untrained"] else f"none better ({min(r[2] for r in t['history'][1:]):.3f})"
        rows.append(f"| {t['scenario']} | {t['reading']}{' (chosen)' if t['chosen'] else ''} | {t['updates']:,} ({t['of']:,}) "
                    f"| {t['gpu_seconds']:.0f} | {t['milliseconds']:.0f} | {t['untrained']:.4f} | {learnt} "
                    f"| {t['published']:.4f} |")
    return "\n".join(rows)


def table_of_readings(store: dict[str, Any]) -> str:
    """The short trainings: validation after them, untrained first; updates in brackets."""
    names = list(dict.fromkeys(r["scenario"] for r in store["readings"]))
    found = {(r["round"], r["reading"], r["scenario"]): f"{r['history'][-1][2]:.4f} ({r['updates']})" for r in store["readings"]}
    first = {r["scenario"]: r["untrained"] for r in store["readings"]}
    rows = ["| round | reading | says | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(names),
            "| | untrained | | " + " | ".join(f"{first[n]:.4f}" for n in names) + " |"]
    order = list(READINGS)
    for number, label in sorted({k[:2] for k in found}, key=lambda k: (k[0], order.index(k[1]))):
        cells = (found.get((number, label, n), "not run") for n in names)
        rows.append(f"| {number} | {label} | {READINGS[label].says} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def draw(store: dict[str, Any], path: Path) -> None:
    """Learning curves of the trainings: validation rollouts against updates, and the published figure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(t["scenario"] for t in store["trainings"]))
    figure, axes = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.0), layout="constrained")
    for axis, name in zip(axes, names):
        for t in (t for t in store["trainings"] if t["scenario"] == name):
            axis.semilogy([r[0] for r in t["history"]], [r[2] for r in t["history"]], "o-", ms=2.5, lw=1.2,
                          label="gradients cut" if t["recipe"]["cut"] else "through the window")
        axis.axhline(t["untrained"], color="0.6", lw=1, label="untrained")
        if name != "laser-heat":  # published relative to the temperature itself
            axis.axhline(t["published"], color="k", ls="--", lw=1, label="published RNE")
        axis.set(title=name, xlabel="updates")
    axes[0].set_ylabel("RNE from offset, validation")
    axes[0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m dgnet_paper.study.depth", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    tried = commands.add_parser("readings", help="short trainings, one for each reading")
    tried.add_argument("data", type=Path)
    tried.add_argument("--out", type=Path, required=True)
    tried.add_argument("--updates", type=int, default=300)
    tried.add_argument("--only", nargs="*", choices=list(READINGS), default=list(READINGS))
    long = commands.add_parser("piece", help="begin a training, or go on with it")
    long.add_argument("data", type=Path)
    long.add_argument("run", type=Path)
    long.add_argument("--seconds", type=float, required=True)
    long.add_argument("--factor", type=float, default=1.0, help="on the updates of the recipe, the same for all pieces")
    long.add_argument("--beside", type=int, default=1, help="processes on the device, this one included")
    long.add_argument("--reading", choices=list(READINGS), default="settled")
    final = commands.add_parser("score", help="test trajectories: once, when all is chosen")
    final.add_argument("run", type=Path)
    final.add_argument("data", type=Path)
    final.add_argument("--few", type=int)
    for command in (tried, long, final):
        command.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    shown = commands.add_parser("report", help="tables of a store, and its learning curves")
    shown.add_argument("store", type=Path)
    shown.add_argument("--picture", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "readings":
        readings(given.data, given.out, given.device, given.updates, given.only)
    elif given.command == "piece":
        progress = piece(given.data, given.run, given.device, given.seconds, given.factor, given.beside, READINGS[given.reading])
        print(f"{progress.updates} updates, best validation {progress.best:.4g} after {progress.best_iteration}, "
              f"untrained {progress.history[0]['validation']:.4g}")
    elif given.command == "score":
        print(json.dumps(score(given.run, given.data, given.device, given.few), indent=1))
    else:
        store = json.loads(given.store.read_text())
        print(table(store), table_of_readings(store), sep="\n\n")
        if given.picture:
            draw(store, given.picture)


if __name__ == "__main__":
    main()
