"""The demo: lasers run over a steel plate with holes, and a model that trained for a minute follows the heat.

First the show: one unseen trajectory of the scenario laser-heat on the mesh of the paper with the classical solver. Then the main
job on the small mesh: data, training, and test trajectories whose lasers move in ways that training never saw, DGNet beside
the classical solvers. A second run uses finished data and a finished training, and resumes an interrupted one.
"""

from __future__ import annotations

import shutil
import time
import tomllib
import warnings
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__
from dgnet.data import Dataset
from dgnet.files import read_json, write_json
from dgnet.models import Classical, few_threads, rollout
from dgnet.models.registry import title_of
from dgnet.problems import step_average
from dgnet.problems.case import base_problem
from dgnet.scoring.judge import judge, rivals
from dgnet.training.evaluate import evaluate
from dgnet.training.fit import Tell
from dgnet.training.plan import plan_for_data
from dgnet.training.run import Run, train
from dgnet_paper.demo.pictures import Duel, Report, Scene
from dgnet_paper.scenarios import Scenario, get
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.scenarios.spots import Spots

Tensor = torch.Tensor

"""Told how far training is, and how many iterations there are at most."""

SCENARIO, TRUTH, RECIPE = "laser-heat", "converged", "staged"
BUDGET = 75.0  # seconds of training
SNAPSHOTS = (3.0, 10.0, 30.0, 60.0)
DUEL_SNAPSHOTS = (2.0, 5.0, 10.0, 20.0)
_CHUNK = 4  # steps whose sources are averaged at once: memory, and a progress bar that moves
_REPEATS = 3  # rollouts that are timed; the fastest counts


def _silent(what: str, done: int, total: int) -> None:
    pass


def demo(out: Path, *, seed: int = 0, device: str = "cpu", size: str = "paper", frames: int = 61, budget: float = BUDGET,
         factor: float = 1.0, report: Report = _silent, tell: Tell | None = None) -> tuple[dict[str, Any], list[Path]]:
    """Everything: the record of OUT/demo.json and the files written.

    `size` is that of the show, `frames` bounds both animations; `budget` (seconds) and `factor` (on iterations) bound training.
    """
    first, written = show(out, size=size, seed=seed, device=device, frames=frames, report=report)
    record, files = learn(out, seed=seed, device=device, frames=frames, budget=budget, factor=factor, report=report, tell=tell)
    record["show"] = asdict(first)
    path = out / "demo.json"
    write_json(path, record)
    return record, [*written, *files, path]


# ---------------------------------------------------------------------- the show


@dataclass(frozen=True)
class Show:
    """Figures of the classical solver's show. `seconds` is the rollout, set-up of the solver included."""

    scenario: str
    nodes: int
    cells: int
    steps: int
    dt: float
    device: str
    backend: str
    seconds: float
    steps_per_second: float
    peak: float
    peak_time: float
    peak_place: tuple[float, ...]
    unit: str = "K"


def show(out: Path, *, size: str = "paper", seed: int = 0, device: str = "cpu", frames: int = 61,
         report: Report = _silent) -> tuple[Show, list[Path]]:
    """The classical solver on an unseen trajectory: OUT/laser.png and OUT/laser.gif."""
    scenario = get(SCENARIO, size)
    with few_threads(scenario.mesh.n_nodes, device):
        initial, source, spots = trajectory(scenario, seed, device, report)
        run, states = simulate(scenario, initial, source, device, report)
    scene = Scene(scenario.mesh, spots, states[0, :, :, 0].cpu().numpy(), scenario.dt)
    png, gif = out / "laser.png", out / "laser.gif"
    scene.strip(png, [t for t in SNAPSHOTS if t <= scenario.horizon])
    scene.animation(gif, frames, report)
    return run, [png, gif]


def trajectory(scenario: Scenario, seed: int, device: str = "cpu",
               report: Report = _silent) -> tuple[Tensor, Tensor, Spots]:
    """Initial state [1, N, 1], step-averaged source [1, T, N, 1] and the spots of the first test trajectory."""
    sample = scenario.sample([draw for draw in scenario.draws(1, seed) if draw.split == "test"])
    assert isinstance(sample.source, Spots) and isinstance(sample.initial, Tensor)
    x = torch.tensor(scenario.mesh.points, device=device)
    start = scenario.times[:-1].to(device)
    parts = []
    for k in range(0, scenario.steps, _CHUNK):
        parts.append(step_average(sample.source, x, start[k:k + _CHUNK], scenario.dt, scenario.panels))
        report("lasers, averaged over each step", min(k + _CHUNK, scenario.steps), scenario.steps)
    return sample.initial.to(device), torch.cat(parts, dim=1), sample.source


def simulate(scenario: Scenario, initial: Tensor, source: Tensor, device: str = "cpu",
             report: Report = _silent) -> tuple[Show, Tensor]:
    """Crank-Nicolson with the consistent mass over the whole trajectory: figures and states [1, T+1, N, 1]."""
    problem, steps = scenario.problem(device=device), source.shape[1]
    model: Any = Classical()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        backend = model.prepare(problem, 1, steps).solver.operator().prepared.label
        begin = time.perf_counter()
        states = rollout(model, problem, initial, source, progress=lambda k: report("heat", k, steps))
        if states.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    flat = states[0, :, :, 0]
    step, node = divmod(int(flat.argmax()), flat.shape[1])
    mesh = scenario.mesh
    run = Show(scenario.name, mesh.n_nodes, mesh.n_cells, steps, scenario.dt, device, backend, seconds, steps / seconds,
               float(flat[step, node]), step * scenario.dt, tuple(float(v) for v in mesh.points[node]))
    return run, states


# ---------------------------------------------------------------------- the main job


def learn(out: Path, *, seed: int = 0, device: str = "cpu", frames: int = 61, budget: float = BUDGET, factor: float = 1.0,
          report: Report = _silent, tell: Tell | None = None) -> tuple[dict[str, Any], list[Path]]:
    """Data, training, test: the record without the show, and OUT/demo.png and OUT/demo.gif.

    The data set is always that of seed 0 made on the CPU, in OUT/data; `seed` is that of training, in OUT/demo-run.
    """
    scenario = get(SCENARIO, "small")
    folder = out / "demo-run"
    spent, reused = Spent(folder / "seconds.json"), []
    begin = time.perf_counter()
    data = out / "data" / f"{SCENARIO}-small-{TRUTH}.h5"
    there = data.exists()
    with few_threads(scenario.mesh.n_nodes):
        data = generate(scenario, out / "data", truth=TRUTH, report=report)
    generated = spent.read("generate") if there else time.perf_counter() - begin
    reused += ["data"] if there else []

    run = finished(folder, data, seed, budget, device)
    if run is None:
        spent.write({"generate": generated})
        with few_threads(scenario.mesh.n_nodes, device):
            with Dataset(data) as stored:
                plan = plan_for_data(scenario, stored, recipe=RECIPE)
            plan = replace(plan, recipe=plan.recipe.scaled(factor))
            run, progress = train(scenario, TRUTH, data, folder, plan, seed=seed, device=device, budget=budget, report=tell)
        spent.write({"generate": generated, "train": progress.seconds, "budget": budget, "iterations": progress.iteration,
                     "validation": progress.best, "validation_classical": progress.classical})
    else:
        reused.append("training")

    begin = time.perf_counter()
    result, states, test = evaluate(run, data, device)
    spans: dict[str, list[float]] = {name: [s] for name, s in result["seconds"].items()}
    for _ in range(_REPEATS - 1):  # the first pass pays for what is loaded on first use
        again = judge({"dgnet": run.model, **rivals()}, base_problem(run.case, device), test)
        for name, s in again.seconds.items():
            spans[name].append(s)
    evaluated = time.perf_counter() - begin

    rne = {name: row["rne_from_offset"] for name, row in result["scores"].items()}
    rival = min(rivals(), key=lambda n: rne[n])
    sample, ways = scenario.sample([d for d in scenario.draws() if d.split == "test"][:1]), kinds(data)
    spots, new = sample.source, [kind for kind in sample.labels[0] if kind not in ways["train"]]
    assert isinstance(spots, Spots)
    duel = Duel(scenario.mesh, spots, test.state[0, :, :, 0].cpu().numpy(), states["dgnet"][0, :, :, 0].numpy(),
                states[rival][0, :, :, 0].numpy(), scenario.dt, scenario.offsets[0])
    png, gif = out / "demo.png", out / "demo.gif"
    duel.picture(png, [t for t in DUEL_SNAPSHOTS if t <= scenario.horizon],
                 f"{len(new)} of {len(sample.labels[0])} lasers move in ways never seen in training")
    duel.animation(gif, min(frames, scenario.steps + 1), report)
    return {
        "rne": rne, "wins": rne["dgnet"] < rne[rival], "error_ratio": rne["dgnet"] / rne[rival],
        "seconds": {"generate": generated, "train": spent.read("train"), "evaluate": evaluated,
                    "rollout_dgnet": min(spans["dgnet"]), "rollout_classical": min(spans[rival])},
        "training": {"iterations": int(spent.read("iterations")), "validation": spent.read("validation"),
                     "validation_classical": spent.read("validation_classical"), "parameters": result["parameters"]},
        "scenario": SCENARIO, "size": "small", "truth": TRUTH, "seed": seed, "device": device, "nodes": scenario.mesh.n_nodes,
        "steps": scenario.steps, "dt": scenario.dt, "trajectories": result["trajectories"], "kinds": ways, "reused": reused,
    }, [png, gif]


def finished(folder: Path, data: Path, seed: int, budget: float, device: str) -> Run | None:
    """The run of an earlier demo with the same settings; one of other settings is removed, an unfinished one stays to go on."""
    wanted = {"scenario": SCENARIO, "size": "small", "truth": TRUTH, "recipe": RECIPE, "seed": seed,
              "trajectories": 0, "version": __version__}
    config = get(SCENARIO, "small").training.config
    model = {f.name: getattr(config, f.name) for f in fields(config)}
    try:
        text = tomllib.loads((folder / "run.toml").read_text())
    except FileNotFoundError:
        return None
    except tomllib.TOMLDecodeError:
        text = {}
    found = {k: tuple(v) if isinstance(v, list) else v for k, v in text.get("model", {}).items()}
    with Dataset(data) as dataset:
        same = text.get("trained_on", {}).get("data") == dataset.identity(dataset.of("train"))
    if not same or found != model or any(text.get("run", {}).get(k) != v for k, v in wanted.items()):
        shutil.rmtree(folder)
        return None
    spent = Spent(folder / "seconds.json")
    if spent.read("budget") != budget or not (folder / "weights.pt").exists():
        return None
    return Run.open(folder, device)


@dataclass(frozen=True)
class Spent:
    """What finished stages took, kept beside the run for demos that use it again."""

    path: Path

    def read(self, name: str) -> float:
        """Zero where nothing is known."""
        try:
            return float(read_json(self.path).get(name, 0.0))
        except (TypeError, ValueError):
            return 0.0

    def write(self, values: dict[str, float]) -> None:
        write_json(self.path, values)


def kinds(path: Path) -> dict[str, list[str]]:
    """Kinds of laser paths in each split of a data set."""
    with Dataset(path) as data:
        return {split: sorted({label for i in data.of(split) for label in data.labels(i)}) for split in ("train", "test")}


def table(record: dict[str, Any]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Rows (model, RNE, against the better classical solver) and the sentences below them."""
    rne, seconds = record["rne"], record["seconds"]
    best = min(rne["classical_consistent"], rne["classical_lumped"])
    trained = f"DGNet, trained {seconds['train']:.0f} s"
    rows = [(trained if name == "dgnet" else title_of(name), f"{value:.5f}", f"{value / best:.2f}") for name, value in rne.items()]
    new = sorted(set(record["kinds"]["test"]) - set(record["kinds"]["train"]))
    shared = sorted(set(record["kinds"]["test"]) & set(record["kinds"]["train"]))
    verdict = (f"DGNet makes {record['error_ratio']:.2f} of the error of the better classical solver with linear elements on the "
               "same mesh and step." if record["wins"] else
               f"DGNet does NOT win here: its error is {record['error_ratio']:.2f} times that of the better classical solver.")
    return rows, [
        f"RNE from the ambient temperature on {record['trajectories']} test trajectories of {record['steps']} steps, "
        f"{record['nodes']} nodes, {record['truth']} truth.",
        f"Their lasers follow {' and '.join(new)} paths, kinds that never occur in training"
        + (f" ({' and '.join(shared)} paths occur in both)." if shared else "."), verdict,
        *(f"Without training, {what} make {rne[name]:.5f}." for name, what in (
            ("classical_p2", "quadratic elements on that mesh"), ("universal", "universal weights")) if name in rne)]
