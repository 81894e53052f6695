"""`dgnet bench tradeoff`: what an error costs. A trained model beside the classical solver in every setting that may reach it.

All solve the same test trajectories at once, on the same device, in single precision, in the same run. The model has the data's
mesh and step. A setting of the classical solver is a degree of its elements (P1, P2), a mass, a number of refinements of that mesh
and of parts of that step. With "sources at nodes" a P2 or refined solver is given the sources at the data's nodes alone and fits
what is between them (`Lift`), which costs it as little as the model. Nothing is left out of the cost:

    setup_s     matrices, factorisation or bounds, decoding of learned operators, capture
    source_s    averages of the sources over the steps, where the solver has its points
    rollout_s   all steps, at the pace of those after the fourth
    cost_s      their sum: from a mesh and an equation to the states

Given to all and not counted: the mesh, refined or not, with what it keeps of its own geometry, and the flow at its nodes. Coarser
meshes and longer steps than the data's are no settings: the error is measured at the data's nodes and times.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__
from dgnet.bench.timing import hardware, sync
from dgnet.data import Dataset
from dgnet.data.fits import check_fits
from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model, Refined, rollout
from dgnet.models.timeloop import few_threads
from dgnet.problems import CONSISTENT, LUMPED, WORKING, Discretisation, given_velocity, step_average
from dgnet.progress import Report
from dgnet.reference.record import FlowRecord
from dgnet.scenarios import Scenario
from dgnet.scenarios.generate import flow_record
from dgnet.scenarios.redrawn import Redrawn
from dgnet.scenarios.scenario import Sample
from dgnet.scoring.metrics import rne
from dgnet.training.run import Run

Tensor = torch.Tensor

WARM = 4  # steps before the clock of a rollout counts
_BYTES = {"cpu": 1 << 30, "cuda": 1 << 34}  # of a setting's sources
_ENTRIES = {"cpu": 1 << 21, "cuda": 1 << 26}  # of one call of a source


@dataclass(frozen=True)
class Setting:
    """A way to solve classically."""

    degree: int = 1
    refine: int = 0
    substeps: int = 1
    mass: float = CONSISTENT
    fitted: bool = False  # sources are given at the data's nodes alone: P2 there, or P1 on the mesh refined once

    @property
    def kind(self) -> str:
        return f"P{self.degree}" + (", lumped" if self.mass == LUMPED else "") + (", sources at nodes" if self.fitted else "")

    def work(self, dim: int) -> float:
        """Unknowns times steps, against those of the data's mesh and step."""
        return 2.0 ** (dim * (self.refine + self.degree - 1)) * self.substeps

    @property
    def model(self) -> Model[Any]:
        if self.fitted and self.degree == 1:
            return Refined(Classical(self.mass))
        return Classical(degree=2) if self.degree == 2 else Classical(self.mass)

    @property
    def given(self) -> int:
        """Refinements of the mesh that the solver is given."""
        return 0 if self.fitted else self.refine


def ladder(dim: int, sources: bool, flow: bool) -> list[Setting]:
    """From cheap to dear. A refined solver in a flow needs the flow at its own nodes, so it does not fit."""
    found = [Setting(degree, refine, substeps, mass) for refine in range(4 - dim + 1) for substeps in (1, 2, 4)
             for degree, mass in ((1, CONSISTENT), (1, LUMPED), (2, CONSISTENT))]
    for substeps in (1, 2, 4) if sources else ():
        found += [Setting(2, 0, substeps, fitted=True)] + ([] if flow else [Setting(1, 1, substeps, fitted=True)])
    return sorted(found, key=lambda s: (s.work(dim), not s.fitted, s.degree))


@dataclass(frozen=True, eq=False)
class Trial:
    """Test trajectories: how they were drawn, the flow they were given, and the truth [B, T+1, N, F] they are judged by."""

    scenario: Scenario
    sample: Sample
    truth: Tensor
    device: str
    flow: FlowRecord | None = None

    @classmethod
    def read(cls, run: Run, data: Path, device: str, limit: int | None, report: Report | None = None) -> Trial:
        """The draws behind stored trajectories: starts, sources and flows are needed where nothing is stored."""
        if not isinstance(run.case, Scenario):
            raise InputError("cost against accuracy is measured for the paper's scenarios: sources of your own are stored at the "
                             "nodes only, and finer settings need them elsewhere, too")
        scenario = run.case
        with Dataset(data) as dataset:
            for name, value in (("scenario", scenario.name), ("size", scenario.size)):
                if dataset.provenance.get(name) != value:
                    raise InputError(f"{data} is of {name} '{dataset.provenance.get(name)}', the run of '{value}'")
            check_fits(dataset, scenario)
            numbers = dataset.of("test")[:limit]
            if not numbers:
                raise InputError(f"{data} has no test trajectory")
            drawn = Redrawn.of(scenario, dataset, numbers, device)
            if drawn is None:
                raise InputError(f"{data} was drawn by another version: its trajectories cannot be sampled again")
            truth = torch.stack([torch.from_numpy(dataset.read(n, only=()).state) for n in numbers]).double()
        return cls(scenario, scenario.sample(drawn.draws), truth, device, flow_record(scenario, data.parent, device, report))

    @property
    def batch(self) -> int:
        return len(self.truth)

    @cached_property
    def _meshes(self) -> dict[int, Mesh]:
        return {0: self.scenario.mesh}

    def mesh(self, refine: int) -> Mesh:
        """The data's mesh refined so often; its nodes stay the first ones."""
        if refine not in self._meshes:
            self._meshes[refine] = self.scenario.mesh.refined(refine)
        return self._meshes[refine]

    def velocity(self, refine: int) -> Tensor | None:
        """[B, T+1, M, d] at the nodes of the mesh refined so often: those of the flow's own elements."""
        if self.flow is None or self.sample.phases is None:
            return None
        first = [round(phase / self.scenario.dt) for phase in self.sample.phases]
        rows = [torch.tensor(self.flow.snapshots(refine, slice(k, k + self.scenario.steps + 1))) for k in first]
        return torch.stack(rows).to(self.device, WORKING)

    def problem(self, setting: Setting, velocity: Tensor | None) -> Discretisation:
        s = self.scenario
        pde = s.pde if velocity is None else replace(s.pde, velocity=given_velocity(velocity, s.dt))
        return Discretisation(self.mesh(setting.given), pde, s.conditions, s.dt / setting.substeps, dtype=WORKING,
                              device=self.device)

    def start(self, setting: Setting) -> Tensor:
        """Initial states at the points of a setting [B, P, F]: the function where there is one, else linear in between."""
        fine = self.mesh(setting.refine + setting.degree - 1)  # middles of edges are the nodes of the next refinement
        if callable(self.sample.initial):
            u = self.sample.initial(torch.tensor(fine.points)).expand(self.batch, -1, -1)
        else:
            u = self.sample.initial.expand(self.batch, -1, -1)
            for level in range(setting.refine + setting.degree - 1):
                edges = torch.tensor(self.mesh(level).edges)
                u = torch.cat([u, 0.5 * (u[:, edges[:, 0]] + u[:, edges[:, 1]])], 1)
        return u.to(self.device, WORKING)

    def sources(self, model: Model[Any], problem: Discretisation, setting: Setting) -> Tensor | None:
        """Of every step at the model's points [B, T, P, F], or at the nodes that it is given, in single precision."""
        s, source, substeps = self.scenario, self.sample.source, setting.substeps
        if source is None:
            return None
        points = problem.mesh.points if setting.fitted else model.points(problem)
        count, width, kind = s.steps * substeps, len(s.pde.fields), _kind(self.device)
        shape = (self.batch, count, len(points), width)
        if 4 * math.prod(shape) > _BYTES[kind]:
            raise SolveError("its sources do not fit into memory at once")
        x, panels = torch.tensor(points, device=self.device), max(1, -(-s.panels // substeps))
        rows = max(1, _ENTRIES[kind] // (self.batch * len(points) * width))
        out = torch.empty(shape, dtype=WORKING, device=self.device)
        for k in range(0, count, rows):
            first = problem.dt * torch.arange(k, min(k + rows, count), dtype=torch.float64, device=self.device)
            out[:, k:k + len(first)] = step_average(source, x, first, problem.dt, panels, rule=model.rule).to(WORKING)
        return out

    def error(self, states: Tensor) -> float:
        return rne(states.double(), self.truth, self.scenario.offsets)


def measure(trial: Trial, model: Model[Any], setting: Setting, repeats: int = 2) -> dict[str, Any]:
    """Cost and error of a model in a setting of mesh and step; of several runs, each from scratch, the quickest after the first."""
    n, steps, kind = trial.truth.shape[2], trial.scenario.steps * setting.substeps, _kind(trial.device)
    u0, velocity = trial.start(setting), trial.velocity(setting.given)
    states = torch.empty(trial.truth.shape, dtype=WORKING, device=trial.device)
    states[:, 0] = u0[:, :n]
    warm = min(WARM, steps - 1)
    found: list[dict[str, float]] = []
    while len(found) < repeats and (not found or found[-1]["cost_s"] < 20.0):
        marks = [_now(kind)]
        problem = trial.problem(setting, velocity)
        marks.append(_now(kind))
        source = trial.sources(model, problem, setting)
        marks.append(_now(kind))

        def keep(k: int, u: Tensor, marks: list[float] = marks) -> None:
            if k % setting.substeps == 0:
                states[:, k // setting.substeps] = u[:, :n]
            if k == warm:
                marks.append(_now(kind))

        with torch.no_grad():
            rollout(model, problem, u0, source, steps, sink=keep)
        begin, assembled, averaged, *running = marks
        end = _now(kind)
        pace = (end - running[0]) / (steps - warm) if running else (end - averaged) / steps
        source_s = averaged - assembled
        rollout_s = min(pace * steps, end - averaged)
        found.append({"setup_s": end - begin - source_s - rollout_s, "source_s": source_s, "rollout_s": rollout_s,
                      "cost_s": end - begin})
        del problem, source
    best = min(found[1:] or found, key=lambda t: t["cost_s"])
    return {"unknowns": u0.shape[1], **best, "error": trial.error(states.cpu())}


# ---------------------------------------------------------------------- the measurement


def tradeoff(run: Run, data: Path, device: str = "cpu", trajectories: int | None = None, budget: float = 45.0,
             settings: Sequence[Setting] | None = None, report: Report | None = None) -> dict[str, Any]:
    """Cost and error of a run's model and of the classical solver; what was not run says why.

    - `data`: with test trajectories, of which the first `trajectories` are solved
    - `budget`: seconds for the classical settings
    - `settings`: in place of the usual ones
    """
    with few_threads(run.case.mesh.n_nodes, device):
        trial = Trial.read(run, data, device, trajectories, report)
        s = trial.scenario
        wanted = list(settings or ladder(s.mesh.dim, trial.sample.source is not None, trial.flow is not None))
        own = {"solver": run.settings.model} | measure(trial, run.model, Setting())
        rows, begin = [own], time.perf_counter()
        for done, setting in enumerate(wanted):
            work = setting.work(s.mesh.dim)
            row: dict[str, Any] = {"solver": "classical", "kind": setting.kind, "refine": setting.refine,
                                   "substeps": setting.substeps}
            reason = _needless(rows, row, own["error"], work)
            if reason is None and time.perf_counter() - begin > budget:
                reason = "no time left"
            try:
                row |= {"not_run": reason} if reason else {"work": work, **measure(trial, setting.model, setting)}
            except (SolveError, InputError) as error:
                row["not_run"] = str(error)
            rows.append(row)
            gc.collect()
            if report is not None:
                report(f"{s.name}: cost against accuracy", done + 1, len(wanted))
    result = {"benchmark": "tradeoff", "version": __version__, "hardware": hardware(_kind(device)), "device": device,
              "scenario": s.name, "size": s.size, "truth": run.settings.truth, "trajectories": trial.batch, "steps": s.steps,
              "nodes": s.mesh.n_nodes, "run": str(run.folder), "rows": rows}
    best = cheapest(result)
    return result | {"cheapest": best, "ratio": None if best is None else whole(best) / whole(own)}


def whole(row: dict[str, Any]) -> float:
    """Seconds of a row with set-up and sources."""
    return float(row["setup_s"] + row["source_s"] + row["rollout_s"])


def cheapest(result: dict[str, Any]) -> dict[str, Any] | None:
    """The cheapest classical setting that reaches the model's error, set-up and sources included."""
    own, *others = result["rows"]
    reached = [r for r in others if r["solver"] == "classical" and "not_run" not in r and r["error"] <= own["error"]]
    return min(reached, key=whole, default=None)


def _needless(rows: list[dict[str, Any]], row: dict[str, Any], goal: float, work: float) -> str | None:
    """Why a setting need not be run: with less work it cost more than what suffices, or shorter steps change nothing."""
    tried = [r for r in rows[1:] if "not_run" not in r]
    best = min((r["cost_s"] for r in tried if r["error"] <= goal), default=math.inf)
    if any(r["cost_s"] > best and r["work"] <= work and r["kind"] == row["kind"] for r in tried):
        return "dearer than what suffices"
    kin = sorted((r for r in tried if (r["kind"], r["refine"]) == (row["kind"], row["refine"])), key=lambda r: r["substeps"])
    if len(kin) > 1 and abs(kin[-1]["error"] - kin[-2]["error"]) < 0.02 * kin[-1]["error"]:
        return "shorter steps change nothing here"
    return None


def _now(kind: str) -> float:
    sync(kind)
    return time.perf_counter()


def _kind(device: str) -> str:
    return torch.device(device).type


# ---------------------------------------------------------------------- for people


def named(row: dict[str, Any]) -> str:
    """What a row is, in words."""
    if row["solver"] != "classical":
        return str(row["solver"])
    what = [row["kind"] if "kind" in row else f"P1, {row['mass']}"]  # as cells of before P2 have it
    often = {0: "same mesh", 1: "mesh refined once", 2: "mesh refined twice"}
    what.append(often.get(row["refine"], f"mesh refined {row['refine']} times"))
    return ", ".join(what + ([f"Δt/{row['substeps']}"] if row["substeps"] > 1 else []))


def verdict(result: dict[str, Any]) -> str:
    """One sentence: the cheapest classical setting, and how its cost compares."""
    own, best = result["rows"][0], cheapest(result)
    if best is None:
        return f"No classical setting that was run reaches the model's error of {own['error']:.3g}."
    return (f"The cheapest classical setting that reaches the model's error of {own['error']:.3g} ({named(best)}: "
            f"{best['error']:.3g}) costs {whole(best) / whole(own):.3g} times as much as the model, set-up and sources included.")


def markdown(result: dict[str, Any]) -> str:
    lines = [f"## Cost against accuracy: {result['scenario']} ({result['size']}) on {result['hardware']}", "",
             f"{result['trajectories']} test trajectories of {result['steps']} steps at once, {result['truth']} truth; errors from "
             "the offset at the data's nodes. Seconds, all from scratch.", "",
             "| solver | unknowns | error | whole (s) | set-up (s) | sources (s) | rollout (s) |", "|---|---|---|---|---|---|---|"]
    for r in result["rows"]:
        lines.append(f"| {named(r)} | | not run: {r['not_run']} | | | | |" if "not_run" in r else
                     f"| {named(r)} | {r.get('unknowns', 0):,} | {r['error']:.3g} | {whole(r):.3g} | {r['setup_s']:.3g} "
                     f"| {r['source_s']:.3g} | {r['rollout_s']:.3g} |")
    return "\n".join([*lines, "", verdict(result)])
