"""`dgnet bench tradeoff`: what an error costs. A trained model beside the reference solver and the classical one on ladders.

All solve the test trajectories of a data set at once, on the same device, in the same run. The model has the data's mesh and
step; a rung of a ladder is a refinement of that mesh, a division of the step, and for the reference a degree of its elements.

    rollout_s   seconds of all steps, from those after the fourth (by then everything is set up and captured), sources apart
    setup_s     what the whole took beyond that: assembly, factorisation, decoding, capture
    source_s    averages of the sources over the steps: beforehand for ours, as it goes in the reference
    cost_s      rollout_s + source_s: what another trajectory costs

The reference runs in double precision with the loose tolerance that its error allows. Coarser meshes than the data's are no
rungs: the error is measured at the data's nodes, and building other meshes needs a mesh generator.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__
from dgnet.bench.timing import hardware, sync
from dgnet.data import Dataset
from dgnet.data.fits import check_fits
from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh
from dgnet.models import Classical, rollout
from dgnet.models.timeloop import few_threads
from dgnet.problems import CONSISTENT, LUMPED, Discretisation, Source, step_average
from dgnet.problems.case import base_problem
from dgnet.progress import Report
from dgnet.reference.transport import march
from dgnet.scenarios import Draw, Scenario, Truth
from dgnet.scenarios.scenario import Sample
from dgnet.scoring.metrics import rne
from dgnet.training.run import Run

Tensor = torch.Tensor

WARM = 4  # steps before the clock of a rollout counts
TOLERANCE = 1e-7  # of the reference's solves
_BYTES = {"cpu": 1 << 30, "cuda": 1 << 34}  # of a rung's sources
_ENTRIES = {"cpu": 1 << 21, "cuda": 1 << 26}  # of one call of a source


@dataclass(frozen=True, eq=False)
class Trial:
    """Test trajectories: how they were drawn, and the truth [B, T+1, N, F] they are judged by."""

    scenario: Scenario
    sample: Sample
    truth: Tensor
    device: str

    @classmethod
    def read(cls, run: Run, data: Path, device: str, limit: int | None) -> Trial:
        """The draws behind stored trajectories; their sources are needed as functions."""
        scenario = run.scenario
        if scenario.flow is not None or scenario.phase_change is not None or run.settings.project:
            raise InputError(f"cost against accuracy is measured for the paper's scenarios without flow or phase change, "
                             f"not for '{scenario.name}'")
        with Dataset(data) as dataset:
            found = dataset.provenance
            for name, value in (("scenario", scenario.name), ("size", scenario.size)):
                if found.get(name) != value:
                    raise InputError(f"{data} is of {name} '{found.get(name)}', the run of '{value}'")
            check_fits(dataset, scenario)
            numbers = dataset.of("test")[:limit]
            if not numbers:
                raise InputError(f"{data} has no test trajectory")
            stored = [dataset.read(n, only=()) for n in numbers]
        seed = int(found.get("seed", 0))
        draws = [Draw("test", t.index, seed) for t in stored]
        if any(d.seed(scenario.name) != t.seed for d, t in zip(draws, stored)):
            raise InputError(f"{data} was drawn by another version: its trajectories cannot be sampled again")
        truth = torch.stack([torch.from_numpy(t.state) for t in stored]).double()
        return cls(scenario, scenario.sample(draws), truth, device)

    @property
    def batch(self) -> int:
        return len(self.truth)

    def error(self, states: Tensor) -> float:
        return rne(states.double(), self.truth, self.scenario.offsets)

    def start(self, mesh: Mesh, refine: int) -> Tensor:
        """Initial states on the mesh refined so often [B, M, F]: the function where there is one, else linear in between."""
        if callable(self.sample.initial):
            return self.sample.initial(torch.tensor(mesh.points)).expand(self.batch, -1, -1)
        u, coarse = self.sample.initial.expand(self.batch, -1, -1), self.scenario.mesh
        for level in range(refine):
            edges = torch.tensor(coarse.edges)
            u = torch.cat([u, 0.5 * (u[:, edges[:, 0]] + u[:, edges[:, 1]])], 1)
            coarse = coarse.refined() if level + 1 < refine else coarse
        return u

    def averages(self, mesh: Mesh, substeps: int) -> tuple[Tensor | None, float]:
        """Step averages [B, T, M, F] in single precision, and the seconds they took."""
        s, source = self.scenario, self.sample.source
        if source is None:
            return None, 0.0
        dt, count, width = s.dt / substeps, s.steps * substeps, len(s.pde.fields)
        shape = (self.batch, count, mesh.n_nodes, width)
        if 4 * math.prod(shape) > _BYTES[_kind(self.device)]:
            raise SolveError("its sources do not fit into memory at once")
        x = torch.tensor(mesh.points, device=self.device)
        panels = max(1, -(-s.panels // substeps))
        rows = max(1, _ENTRIES[_kind(self.device)] // (self.batch * mesh.n_nodes * width))
        sync(_kind(self.device))
        begin = time.perf_counter()
        out = torch.empty(shape, dtype=torch.float32, device=self.device)
        for k in range(0, count, rows):
            first = dt * torch.arange(k, min(k + rows, count), dtype=torch.float64, device=self.device)
            out[:, k:k + len(first)] = step_average(source, x, first, dt, panels).float()
        sync(_kind(self.device))
        return out, time.perf_counter() - begin


class Clock:
    """Set-up and rollout, told apart by the pace of the steps after the first few."""

    def __init__(self, steps: int, device: str) -> None:
        self.steps, self.device = steps, _kind(device)
        self.warm = min(WARM, max(0, steps - 1))
        sync(self.device)
        self.begin = self.middle = time.perf_counter()

    def tick(self, k: int) -> None:
        if k == self.warm:
            sync(self.device)
            self.middle = time.perf_counter()

    def stop(self) -> dict[str, float]:
        sync(self.device)
        end = time.perf_counter()
        whole = (end - self.middle) * self.steps / (self.steps - self.warm)
        return {"rollout_s": whole, "setup_s": max(0.0, end - self.begin - whole)}


class Timed:
    """A source that keeps account of its time."""

    def __init__(self, source: Source, device: str) -> None:
        self.source, self.device, self.seconds = source, _kind(device), 0.0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        sync(self.device)
        begin = time.perf_counter()
        value = self.source(x, t)
        sync(self.device)
        self.seconds += time.perf_counter() - begin
        return value


# ---------------------------------------------------------------------- the three competitors


def ours(trial: Trial, model: Any, problem: Discretisation, refine: int = 0, substeps: int = 1, repeats: int = 2) -> dict[str, Any]:
    """A model's rollout on a (refined) mesh with a (divided) step; the states at the data's nodes and times are judged."""
    s, n = trial.scenario, trial.truth.shape[2]
    source, source_s = trial.averages(problem.mesh, substeps)
    u0 = trial.start(problem.mesh, refine).float().to(trial.device)
    steps = s.steps * substeps
    states = torch.empty(trial.truth.shape, dtype=torch.float32, device=trial.device)
    states[:, 0] = u0[:, :n]
    times: list[dict[str, float]] = []
    with torch.no_grad():
        for _ in range(repeats):  # the first one also warms up
            clock = Clock(steps, trial.device)

            def keep(k: int, u: Tensor, clock: Clock = clock) -> None:
                if k % substeps == 0:
                    states[:, k // substeps] = u[:, :n]
                clock.tick(k)

            rollout(model, problem, u0, source, steps, sink=keep)
            times.append(clock.stop())
    best = min(times[1:] or times, key=lambda t: t["rollout_s"])
    return {"unknowns": problem.mesh.n_nodes, **best, "source_s": source_s, "cost_s": best["rollout_s"] + source_s,
            "error": trial.error(states.cpu())}


def reference(trial: Trial, rung: Truth, steps: int | None = None) -> dict[str, Any]:
    """The reference solver on one rung."""
    s = trial.scenario
    count = steps or s.steps
    panels = max(1, -(-s.panels // rung.substeps))
    states = torch.empty((trial.batch, count + 1, *trial.truth.shape[2:]), dtype=torch.float64, device=trial.device)
    source = None if trial.sample.source is None else Timed(trial.sample.source, trial.device)
    clock = Clock(count, trial.device)
    for k, state in enumerate(march(s.mesh, s.pde, s.conditions, trial.sample.initial, dt=s.dt, steps=count, refine=rung.refine,
                                    substeps=rung.substeps, degree=rung.degree, source=source, device=trial.device,
                                    order=rung.order, panels=panels, tolerance=TOLERANCE)):
        states[:, k] = state
        clock.tick(k)
    times = clock.stop()
    error = trial.error(states.cpu()) if count == s.steps else math.nan
    spent = 0.0 if source is None else min(source.seconds, times["rollout_s"])
    return {"rollout_s": times["rollout_s"] - spent, "setup_s": times["setup_s"], "source_s": spent, "cost_s": times["rollout_s"],
            "error": error}


def ladder(scenario: Scenario, truth: Truth) -> list[Truth]:
    """Rungs of the reference from cheap to dear, by unknowns times substeps; none beyond the truth itself."""
    rungs = [Truth(refine, substeps, degree, truth.order) for refine in range(3) for degree in (1, 2)
             for substeps in (1, 2, 4, 8) if refine + degree <= truth.refine + truth.degree and substeps <= truth.substeps]
    return sorted(rungs, key=lambda r: (work(scenario, r), r.degree))


def work(scenario: Scenario, rung: Truth) -> float:
    """Unknowns times substeps, roughly."""
    return float(scenario.mesh.n_nodes * 2 ** (scenario.mesh.dim * (rung.refine + rung.degree - 1)) * rung.substeps)


# ---------------------------------------------------------------------- the measurement


def tradeoff(run: Run, data: Path, device: str = "cpu", trajectories: int | None = None, budget: float = 45.0,
             rungs: Sequence[Truth] | None = None, climbs: Sequence[tuple[int, int]] | None = None,
             report: Report | None = None) -> dict[str, Any]:
    """Cost and error of a run's model and of both ladders; what was not run for lack of time says so.

    `budget` seconds are for the ladders; the classical one, which is quick, goes first. A ladder ends once two rungs that cost
    more than the cheapest success have been seen. `rungs` of the reference and `climbs` (refinements, substeps) of the classical
    solver take the place of the usual ones.
    """
    with few_threads(run.scenario.mesh.n_nodes, device):
        return _measure(run, data, device, trajectories, budget, rungs, climbs, report)


def _measure(run: Run, data: Path, device: str, trajectories: int | None, budget: float, rungs: Sequence[Truth] | None,
             wanted: Sequence[tuple[int, int]] | None, report: Report | None) -> dict[str, Any]:
    begin = time.perf_counter()
    trial = Trial.read(run, data, device, trajectories)
    s = trial.scenario
    steps = list(rungs if rungs is not None else ladder(s, s.truth(run.settings.truth)))
    usual = [(refine, substeps) for refine in range(4 - s.mesh.dim + 1) for substeps in (1, 2, 4)]
    climbs = [(refine, substeps, mass) for refine, substeps in wanted or usual for mass in (CONSISTENT, LUMPED)]
    total, done = 1 + len(climbs) + len(steps), 0

    def tell() -> None:
        nonlocal done
        done += 1
        gc.collect()
        if report is not None:
            report(f"{s.name}: cost against accuracy", done, total)

    own = {"solver": run.settings.model} | ours(trial, run.model, base_problem(s, device))
    goal = own["error"]
    rows: list[dict[str, Any]] = [own]
    tell()
    problems: dict[tuple[int, int], Discretisation] = {}
    for refine, substeps, mass in sorted(climbs, key=lambda c: 4 ** c[0] * c[1]):
        row: dict[str, Any] = {"solver": "classical", "mass": "consistent" if mass == CONSISTENT else "lumped", "refine": refine,
                               "substeps": substeps}
        reason = _needless(rows, row, goal) or ("no time left" if time.perf_counter() - begin > 0.5 * budget else None)
        if reason is not None:
            row["not_run"] = reason
        else:
            try:
                if (refine, substeps) not in problems:
                    problems[refine, substeps] = Discretisation(s.mesh.refined(refine), s.pde, s.conditions, s.dt / substeps,
                                                                dtype=torch.float32, device=device)
                row |= ours(trial, Classical(mass), problems[refine, substeps], refine, substeps)
            except (SolveError, InputError) as error:
                row["not_run"] = str(error)
        rows.append(row)
        tell()
    problems.clear()
    reference(trial, replace(steps[0], substeps=1), min(s.steps, 3))  # warms up
    for rung in steps:
        row = {"solver": "reference", "refine": rung.refine, "substeps": rung.substeps, "degree": rung.degree}
        reason = _needless(rows, row, goal) or ("no time left" if time.perf_counter() - begin > budget else None)
        if reason is not None:
            row["not_run"] = reason
        else:
            try:
                row |= reference(trial, rung)
            except SolveError as error:
                row["not_run"] = str(error)
        rows.append(row)
        tell()
    cheapest = {name: _cheapest(rows, name, goal) for name in ("reference", "classical")}
    ratio, stepping = ({name: None if row is None else row[what] / own[what] for name, row in cheapest.items()}
                       for what in ("cost_s", "rollout_s"))
    return {"benchmark": "tradeoff", "version": __version__, "hardware": hardware(_kind(device)), "device": device,
            "scenario": s.name, "size": s.size, "truth": run.settings.truth, "trajectories": trial.batch, "steps": s.steps,
            "nodes": s.mesh.n_nodes, "run": str(run.folder), "rows": rows, "cheapest": cheapest, "ratio": ratio,
            "ratio_rollout": stepping, "seconds": time.perf_counter() - begin}


def _reached(rows: list[dict[str, Any]], solver: str, goal: float) -> list[dict[str, Any]]:
    return [r for r in rows if r["solver"] == solver and "not_run" not in r and r["error"] <= goal]


def _cheapest(rows: list[dict[str, Any]], solver: str, goal: float) -> dict[str, Any] | None:
    return min(_reached(rows, solver, goal), key=lambda r: r["cost_s"], default=None)


def _needless(rows: list[dict[str, Any]], row: dict[str, Any], goal: float) -> str | None:
    """Why a rung need not be run: two in a row cost more than the cheapest success, or shorter steps change nothing."""
    tried = [r for r in rows if r["solver"] == row["solver"] and "not_run" not in r]
    best = _cheapest(rows, row["solver"], goal)
    if best is not None and len(tried) > 1 and all(r["cost_s"] > best["cost_s"] for r in tried[-2:]):
        return "dearer than what suffices"
    alike = [r for r in tried if all(r.get(k) == row.get(k) for k in ("refine", "mass", "degree"))]
    kin = sorted(alike, key=lambda r: r["substeps"])
    if len(kin) > 1 and abs(kin[-1]["error"] - kin[-2]["error"]) < 0.02 * kin[-1]["error"]:
        return "shorter steps change nothing here"
    return None


def _kind(device: str) -> str:
    return torch.device(device).type


def markdown(result: dict[str, Any]) -> str:
    lines = [f"## Cost against accuracy: {result['scenario']} ({result['size']}) on {result['hardware']}", "",
             f"{result['trajectories']} test trajectories of {result['steps']} steps at once, {result['truth']} truth; errors from "
             "the offset at the data's nodes.", "",
             "| solver | mesh refined | substeps | unknowns or degree | error | rollout (s) | sources (s) | set-up (s) |",
             "|---|---|---|---|---|---|---|---|"]
    for r in result["rows"]:
        name = r["solver"] + (f", {r['mass']}" if "mass" in r else "")
        size = f"P{r['degree']}" if "degree" in r else f"{r['unknowns']:,}" if "unknowns" in r else ""
        head = f"| {name} | {r.get('refine', 0)} | {r.get('substeps', 1)} | {size} "
        lines.append(head + (f"| not run: {r['not_run']} | | | |" if "not_run" in r else
                             f"| {r['error']:.3g} | {r['rollout_s']:.3g} | {r['source_s']:.3g} | {r['setup_s']:.3g} |"))
    lines.append("")
    for name, row in result["cheapest"].items():
        if row is None:
            lines.append(f"No rung of the {name} ladder that was run reaches the model's error.")
            continue
        what = f"refined {row['refine']} times, {row['substeps']} substeps" + (f", P{row['degree']}" if "degree" in row else "")
        lines.append(f"The cheapest {name} setting that reaches the model's error ({what}) costs {result['ratio'][name]:.3g} times "
                     f"as much as the model, {result['ratio_rollout'][name]:.3g} times without the sources.")
    return "\n".join(lines)
