"""`python -m benchmarks model`: DGNet with its networks on a clock: rollouts of one and of many trajectories, a training iteration.

Also `throughput` (every model beside every other) and `scaling` (time and memory against nodes). Trajectories are synthetic:
the scenario's own start, a few of its sources in turn, and where it needs a flow, a swaying one of its speed. Figures:

    prepare_s     from the mesh to a model that is ready to step (median of cold starts)
    ms_per_step   of a running rollout: its last three quarters
    steps_per_s   of a whole rollout, preparation and capture included
    peak_bytes    the most memory that preparing and stepping hold at once, states that are kept not counted
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import spsolve
from torch import nn

from dgnet import __version__
from dgnet.data import Corpus
from dgnet.errors import InputError, SolveError
from dgnet.mesh.box import perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.registry import DGNETS, TUNED, all_models, build, parameter_count
from dgnet.models.timeloop import few_threads
from dgnet.models.universal import Universal
from dgnet.operators import Geometry, gradient, stiffness
from dgnet.problems import CONSISTENT, LUMPED, PDE, Problem, given_velocity
from dgnet.problems.case import base_problem
from dgnet.problems.sources import step_average
from dgnet.progress import Report
from dgnet.recipe import Recipe, Stage
from dgnet.training.run import Run
from dgnet.training.update import iterate, parameter_groups
from dgnet_paper.model import PAPER
from dgnet_paper.scenarios import Draw, get
from dgnet_paper.scenarios.scenario import Scenario, scenario_of
from dgnet_paper.study.timing import hardware, peak, sync, timed

Tensor = torch.Tensor

STEPS = {"cpu": 24, "cuda": 2000}
ITERATIONS = {"cpu": 2, "cuda": 20}  # of training that are timed
BATCH, WINDOW = 16, 7  # of the training iteration
CLASSICAL = {"classical_consistent": CONSISTENT, "classical_lumped": LUMPED}
NODES = {"cpu": (1_000, 3_000, 10_000, 30_000), "cuda": (1_000, 10_000, 100_000, 300_000, 1_000_000)}
_KEPT = 8  # different sources of a synthetic trajectory, used in turn
_SHAKE = 1e-3  # size of the random weights on top of decoders that start at zero


# ---------------------------------------------------------------------- what is run


@dataclass(frozen=True, eq=False)
class Workload:
    """A problem with synthetic trajectories: start [B, N, F], sources [B, k, N, F] in turn, flow [B, T+1, N, d] or None."""

    fresh: Callable[[], Problem]  # a problem without anything computed yet
    u0: Tensor
    sources: Tensor | None
    velocity: Tensor | None
    dt: float
    offset: tuple[float, ...]
    device: str

    @classmethod
    def of(cls, scenario: Scenario, batch: int, steps: int, device: str) -> Workload:
        """Float32 trajectories of a scenario: its first training draws, again and again."""
        drawn = min(batch, 4, scenario.train)
        sample = scenario.sample([Draw("train", i) for i in range(drawn)])
        x = torch.tensor(scenario.mesh.points, dtype=torch.float64)
        start = sample.initial(x) if callable(sample.initial) else sample.initial
        again = torch.arange(batch) % drawn
        sources = None
        if sample.source is not None:
            times = scenario.times[torch.linspace(0, scenario.steps - 1, _KEPT).long()]
            place = x.to(device)
            sources = step_average(sample.source, place, times.to(device), scenario.dt, scenario.panels).float()[again.to(device)]
        velocity = None if scenario.flow is None else swaying(scenario, batch, steps).to(device)
        return cls(partial(base_problem, scenario, device), start.float()[again].to(device), sources, velocity, scenario.dt,
                   scenario.offsets, device)

    def source(self, steps: int) -> Tensor | None:
        """[B, steps, N, F]."""
        if self.sources is None:
            return None
        return self.sources[:, torch.arange(steps, device=self.sources.device) % self.sources.shape[1]]

    def problem(self) -> Problem:
        base = self.fresh()
        return base if self.velocity is None else base.with_velocity(given_velocity(self.velocity, self.dt))

    def first(self, batch: int) -> Workload:
        """The first trajectories only."""
        return Workload(self.fresh, self.u0[:batch], None if self.sources is None else self.sources[:batch],
                    None if self.velocity is None else self.velocity[:batch], self.dt, self.offset, self.device)

    def corpus(self, steps: int) -> Corpus:
        """Windows to train on: classical states."""
        source = self.source(steps)
        with torch.no_grad():
            states = rollout(Classical(), self.problem(), self.u0, source, steps)
        velocity = None if self.velocity is None else self.velocity[:, : steps + 1]
        return Corpus(states, source, velocity, self.dt, self.offset)


def swaying(scenario: Scenario, batch: int, steps: int) -> Tensor:
    """A potential flow of the scenario's speed [B, steps+1, N, d], a little faster and slower in turn.

    Without divergence, and along walls and obstacles, so that nothing is blown up over thousands of steps.
    """
    assert scenario.flow is not None
    mesh, g = scenario.mesh, Geometry.of(scenario.mesh)
    inlet, outlet = mesh.nodes_on("inlet"), mesh.nodes_on("outlet")
    potential = np.zeros(mesh.n_nodes)
    potential[inlet] = -1.0
    K = stiffness(g).to_scipy().tocsr()
    free = np.setdiff1d(np.arange(mesh.n_nodes), np.concatenate([inlet, outlet]))
    potential[free] = spsolve(K[free][:, free].tocsc(), -(K @ potential)[free])
    flow = gradient(g) @ torch.tensor(potential)[None, :, None]  # [d, N, 1]
    flow = flow[..., 0].T.float()
    flow *= scenario.flow.mean_velocity / flow[torch.tensor(inlet), 0].mean()
    t = scenario.dt * torch.arange(steps + 1) + torch.arange(batch)[:, None]
    return (1 + 0.1 * torch.sin(t))[..., None, None] * flow


def presets(scenario: str) -> dict[str, DGNetConfig]:
    """DGNet as we train it, and the paper's."""
    return {"dgnet": get(scenario, "small").training.config, "dgnet-paper": PAPER}


def shaken(model: Any, seed: int) -> Any:
    """Small random weights everywhere: decoders that are zero at birth would be a special case."""
    if isinstance(model, nn.Module):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for p in model.parameters():
                p.add_((_SHAKE * torch.randn(p.shape, generator=generator)).to(p))
    return model


def fresh(name: str, config: Any, problem: Problem, data: Corpus, seed: int) -> Any:
    """A model of the registry with new weights, scaled by the data; for dgnet `config` is a `DGNetConfig`."""
    torch.manual_seed(seed)
    if isinstance(config, DGNetConfig):
        model = DGNet(config, problem).to(device=problem.geometry.device, dtype=problem.dtype)
    else:
        model = build(name, config, problem)
    model.fit_statistics(data.state, data.source_average, data.dt, data.velocity)
    return shaken(model, seed)


# ---------------------------------------------------------------------- clocks


def measure_rollout(model: Any, work: Workload, steps: int, repeats: int = 3, budget: float = 20.0) -> dict[str, Any]:
    """Figures of one model (see the module); a rollout that fails says why under `not_run`."""
    device, batch = work.device, work.u0.shape[0]
    row: dict[str, Any] = {"trajectories": batch, "nodes": work.u0.shape[1], "steps": steps, "parameters": parameter_count(model)}

    def ready() -> Any:
        state = model.prepare(work.problem(), batch, steps)
        solver = state.green
        if solver is not None:
            row["backend"] = solver.operator(0.0).prepared.label
        return state

    marks: list[float] = []
    running: list[float] = []
    late = steps // 4  # by then a CUDA graph has been captured

    def mark(k: int) -> None:
        if k in (late, steps):
            sync(device)
            marks.append(time.perf_counter())

    def trajectory(problem: Problem, source: Tensor | None) -> None:
        marks.clear()
        mark(0)
        rollout(model, problem, work.u0, source, steps, progress=mark)
        running.append((marks[-1] - marks[-2]) / (steps - late))

    try:
        with torch.no_grad(), few_threads(work.u0.shape[1], device):
            row["prepare_s"] = timed(ready, device, repeats, budget / 4)
            source = work.source(steps)
            whole = timed(partial(trajectory, work.problem(), source), device, repeats, budget)
            gc.collect()
            with peak(device) as memory:
                rollout(model, work.problem(), work.u0, source, min(steps, 12), sink=lambda k, u: None)
                sync(device)
    except SolveError as error:
        return row | {"not_run": str(error)}
    each = median(running[1:] or running)
    return row | {"seconds": whole, "ms_per_step": 1e3 * each, "steps_per_s": steps / whole,
                  "trajectory_steps_per_s": batch * steps / whole, "running_steps_per_s": 1 / each, "peak_bytes": memory.bytes}


def measure_training(model: Any, work: Workload, data: Corpus, iterations: int, batch: int = BATCH, window: int = WINDOW,
                     loss: str = "all", seed: int = 0) -> dict[str, Any]:
    """Forward, backward and optimiser on `batch` windows of `window` steps, through the trainer's own iteration."""
    device, base = work.device, work.fresh()
    stage = Stage(1, window, batch, 1e-4, loss=loss, noise=0.01)
    recipe = Recipe("bench", (stage,))
    groups = parameter_groups(model, recipe)
    for group in groups:
        group["lr"] = stage.lr * group["factor"]
    optimiser = torch.optim.Adam(groups)
    scale, count = data.spread, 0

    def once() -> None:
        nonlocal count
        iterate(model, base, data, stage, optimiser, scale, seed, count, recipe.clip)
        count += 1

    row = {"batch": batch, "window": window, "loss": loss, "parameters": parameter_count(model), "nodes": work.u0.shape[1]}
    try:
        with few_threads(work.u0.shape[1], device):
            seconds = timed(once, device, iterations, budget=30.0)
            gc.collect()
            with peak(device) as memory:
                once()
    except SolveError as error:
        return row | {"not_run": str(error)}
    return row | {"ms": 1e3 * seconds, "peak_bytes": memory.bytes}


def _free(device: str) -> None:
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def _kind(device: str) -> str:
    return torch.device(device).type


def _head(benchmark: str, device: str) -> dict[str, Any]:
    return {"benchmark": benchmark, "version": __version__, "hardware": hardware(_kind(device)), "device": device,
            "dtype": "float32"}


# ---------------------------------------------------------------------- the three measurements


def bounded(scenario: Scenario, steps: int) -> int:
    """Growth turns what a mesh cannot resolve into nonsense beyond the horizon: rollouts with a reaction stay within it."""
    if scenario.pde.reaction is None:
        return steps
    return min(steps, scenario.steps, 400 if scenario.flow is not None else steps)


def run(scenario: str = "laser-heat", size: str = "paper", device: str = "cpu", folder: Path | None = None, seed: int = 0,
        steps: int | None = None, together: Sequence[int] = (1, 16), batch: int = BATCH, window: int = WINDOW, amp: bool = False,
        report: Report | None = None) -> dict[str, Any]:
    """DGNet in both presets (or the trained one of `folder`) and the classical solvers: rollouts, and a training iteration."""
    trained = None if folder is None else Run.open(folder, device)
    setting = get(scenario, size) if trained is None else scenario_of(trained)
    steps = bounded(setting, steps or STEPS[_kind(device)])
    most = max([*together, batch])
    work = Workload.of(setting, most, max(steps, window + 2), device)
    data = work.corpus(window + 2)
    base = work.fresh()
    models: dict[str, Any] = {}
    if trained is not None:
        models[trained.settings.model] = trained.model
    else:
        models |= {name: fresh("dgnet", replace(config, amp=amp), base, data, seed)
                   for name, config in presets(setting.name).items()}
    learned = list(models)
    models |= {name: Classical(mass) for name, mass in CLASSICAL.items()}
    total, done = len(models) * len(together) + len(learned), 0
    rows, training = [], []

    def tell() -> None:
        nonlocal done
        done += 1
        _free(device)
        if report is not None:
            report("measuring", done, total)

    for count in together:
        for name, model in models.items():
            rows.append({"model": name} | measure_rollout(model, work.first(count), steps))
            tell()
    for name in learned:
        loss = "ends" if name == "dgnet-paper" else "all"
        training.append({"model": name} | measure_training(models[name], work, data, ITERATIONS[_kind(device)], batch, window,
                                                            loss, seed))
        tell()
    return _head("model", device) | {"scenario": setting.name, "size": setting.size, "nodes": setting.mesh.n_nodes,
                                     "amp": amp, "run": None if folder is None else str(folder), "rows": rows, "training": training}


def throughput(models: Sequence[str] | None = None, scenario: str = "laser-heat", size: str = "paper", device: str = "cpu",
               steps: int | None = None, batch: int = 1, setting: str = "comparable", seed: int = 0,
               report: Report | None = None) -> dict[str, Any]:
    """Every model in one run: rows of `measure_rollout`. `classical` stands for both masses.

    Unless they are asked for, universal weights are left out where they do not apply.
    """
    names = list(all_models()) if models is None else list(models)
    for name in names:
        if name not in all_models():
            raise InputError(f"there is no model '{name}' (known: {', '.join(all_models())})")
    chosen = get(scenario, size)
    steps = bounded(chosen, steps or STEPS[_kind(device)] // (1 if _kind(device) == "cpu" else 5))
    work = Workload.of(chosen, batch, max(steps, WINDOW), device)
    data = work.corpus(WINDOW)
    base = work.fresh()
    if models is None and not Universal().acts(base):
        names = [name for name in names if name not in (TUNED, "universal", "universal-quadratic")]
    wanted: dict[str, tuple[str, Any]] = {}
    for name in names:
        if name in DGNETS:
            wanted[name] = (name, presets(scenario)[name])
        elif name == "classical":
            wanted |= {label: (name, {"consistent": mass}) for label, mass in CLASSICAL.items()}
        elif name == "classical-p2":
            wanted["classical_p2"] = (name, {})
        else:
            wanted[name] = (name, {"setting": setting})
    rows = []
    for k, (label, (name, config)) in enumerate(wanted.items()):
        model = fresh(name, config, base, data, seed)
        rows.append({"model": label} | measure_rollout(model, work, steps))
        del model
        _free(device)
        if report is not None:
            report("throughput", k + 1, len(wanted))
    return _head("throughput", device) | {"scenario": scenario, "size": size, "nodes": chosen.mesh.n_nodes, "setting": setting,
                                          "rows": rows}


def scaling(device: str = "cpu", sizes: Sequence[int] | None = None, steps: int | None = None, stiff: float = 1.0,
            seed: int = 0, report: Report | None = None) -> dict[str, Any]:
    """Time per step and memory against nodes, DGNet and both classical solvers, on perturbed squares.

    The diffusivity follows the spacing, dt D / 2h^2 = `stiff`, so that a solve takes as many iterations on every mesh.
    """
    sizes = list(sizes or NODES[_kind(device)])
    steps = steps or (12 if _kind(device) == "cpu" else 200)
    config = DGNetConfig(hidden=32, layers=2)
    rows = []
    for k, wanted in enumerate(sizes):
        cells = max(2, round(sqrt(wanted)) - 1)
        mesh = perturbed_square(cells)
        pde = PDE(("u",), diffusion=2 * stiff / cells**2)  # dt = 1

        def problem(mesh=mesh, pde=pde) -> Problem:
            return Problem(mesh, pde, [], 1.0, dtype=torch.float32, device=device)

        x = torch.tensor(mesh.points, dtype=torch.float32, device=device)
        u0 = torch.sin(5 * x[:, :1]) * torch.cos(3 * x[:, 1:])
        work = Workload(problem, u0[None], u0[None, None], None, 1.0, (0.0,), device)
        models: Mapping[str, Any] = {"dgnet": shaken(DGNet(config, problem()).to(device), seed),
                                     **{name: Classical(mass) for name, mass in CLASSICAL.items()}}
        for name, model in models.items():
            rows.append({"model": name} | measure_rollout(model, work, steps, repeats=2, budget=10.0))
            _free(device)
        if report is not None:
            report("scaling", k + 1, len(sizes))
    return _head("scaling", device) | {"stiffness": stiff, "rows": rows}


# ---------------------------------------------------------------------- for people


def _mb(count: int | None) -> str:
    return "–" if count is None else f"{count / 1e6:,.0f}"


def _today(name: str) -> str:
    """What a row is about: older files call the bounded model the paper's."""
    return "dgnet-bounded" if name == "dgnet_paper" else name


def markdown(result: dict[str, Any]) -> str:
    """Any of the three results as tables."""
    where = "" if "scenario" not in result else f", {result['scenario']} ({result['size']}, {result['nodes']:,} nodes)"
    lines = [f"## {result['benchmark'].capitalize()} on {result['hardware']}{where}", "",
             "| model | parameters | nodes | trajectories | prepare (ms) | ms/step | steps/s, running | steps/s, whole rollout "
             "| trajectory-steps/s | memory (MB) |", "|---|---|---|---|---|---|---|---|---|---|"]
    for r in result["rows"]:
        head = f"| {_today(r['model'])} | {r['parameters']:,} | {r['nodes']:,} | {r['trajectories']} "
        if "not_run" in r:
            lines.append(head + f"| not run: {r['not_run']} | | | | | |")
            continue
        lines.append(head + f"| {1e3 * r['prepare_s']:.3g} | {r['ms_per_step']:.3g} | {r['running_steps_per_s']:,.0f} "
                            f"| {r['steps_per_s']:,.0f} | {r['trajectory_steps_per_s']:,.0f} | {_mb(r['peak_bytes'])} |")
    if result.get("training"):
        lines += ["", "| training iteration | windows | steps | ms | memory (MB) |", "|---|---|---|---|---|"]
        for r in result["training"]:
            head = f"| {_today(r['model'])} | {r['batch']} | {r['window']} "
            lines.append(head + (f"| not run: {r['not_run']} | |" if "not_run" in r else
                                 f"| {r['ms']:.1f} | {_mb(r['peak_bytes'])} |"))
    return "\n".join(lines)
