"""`python -m benchmarks tradeoff`: what an error costs. A trained model beside the classical solver in every setting that may
reach it.

All solve the same test trajectories at once, on the same device, in single precision, in the same run. The model has the data's
mesh and step. A setting of the classical solver is a degree of its elements (P1, P2), a mass, a number of refinements of that mesh
and a multiple or part of that step; after long steps, states in between are interpolated in time by cubic polynomials. With
"sources at nodes" a P2 or refined solver is given the sources at the data's nodes alone and fits what is between them (`Lift`),
which costs it as little as the model. Nothing is left out of the cost:

    setup_s     matrices, factorisation or bounds, decoding of learned operators, capture
    source_s    averages of the sources over the steps, where the solver has its points
    rollout_s   all steps, at the pace of those after the fourth, and interpolation in time
    cost_s      their sum: from a mesh and an equation to the states

Given to all and not counted: the mesh, refined or not, with what it keeps of its own geometry, and the flow at its nodes. Coarser
meshes than the data's are no settings: the error is measured at the data's nodes.
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
from dgnet.data import Dataset
from dgnet.data.fits import check_fits
from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model, Refined, rollout
from dgnet.models.timeloop import few_threads
from dgnet.problems import CONSISTENT, LUMPED, WORKING, Problem, given_velocity, step_average, step_moments
from dgnet.progress import Report
from dgnet.scoring.metrics import rne
from dgnet.training.run import Run
from dgnet_paper.reference.record import FlowRecord
from dgnet_paper.scenarios import Scenario
from dgnet_paper.scenarios.generate import flow_record
from dgnet_paper.scenarios.redrawn import Redrawn
from dgnet_paper.scenarios.scenario import Sample
from dgnet_paper.study.timing import hardware, sync

Tensor = torch.Tensor

WARM = 4  # steps before the clock of a rollout counts
PARTS = ("setup_s", "source_s", "rollout_s")
LONGEST = 8  # steps of the data that may be one step
_COMPLEX = 3.0  # work of a step of dG(1) over that of Crank-Nicolson
_BYTES = {"cpu": 1 << 30, "cuda": 1 << 34}  # of a setting's sources
_ENTRIES = {"cpu": 1 << 21, "cuda": 1 << 26}  # of one call of a source


@dataclass(frozen=True)
class Setting:
    """A way to solve classically."""

    degree: int = 1
    refine: int = 0
    substeps: int = 1  # parts of a step of the data
    skip: int = 1  # steps of the data that are one step
    mass: float = CONSISTENT
    fitted: bool = False  # sources are given at the data's nodes alone: P2 there, or P1 on the mesh refined once
    scheme: str = "crank-nicolson"

    @property
    def kind(self) -> str:
        more = {", lumped": self.mass == LUMPED, ", sources at nodes": self.fitted, ", dG(1)": self.scheme == "dg1"}
        return f"P{self.degree}" + "".join(word for word, said in more.items() if said)

    def work(self, dim: int) -> float:
        """Unknowns times steps, against those of the data's mesh and step."""
        one = _COMPLEX if self.scheme == "dg1" else 1.0
        return one * 2.0 ** (dim * (self.refine + self.degree - 1)) * self.substeps / self.skip

    @property
    def model(self) -> Model[Any]:
        if self.fitted and self.degree == 1:
            return Refined(Classical(self.mass))
        return Classical(CONSISTENT if self.degree == 2 else self.mass, degree=self.degree, scheme=self.scheme)

    @property
    def given(self) -> int:
        """Refinements of the mesh that the solver is given."""
        return 0 if self.fitted else self.refine


def meshes(dim: int, sources: bool, flow: bool) -> list[Setting]:
    """Elements and meshes, from cheap to dear. A refined solver in a flow needs the flow at its own nodes: it does not fit."""
    found = [Setting(degree, refine, mass=mass) for refine in range(4 - dim + 1)
             for degree, mass in ((1, CONSISTENT), (1, LUMPED), (2, CONSISTENT))]
    if not flow:
        found += [Setting(2, refine, scheme="dg1") for refine in range(4 - dim + 1)]
    if sources:
        found += [Setting(2, 0, fitted=True)] + ([] if flow else [Setting(1, 1, fitted=True)])
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

    def problem(self, setting: Setting, velocity: Tensor | None) -> Problem:
        s = self.scenario
        pde = s.pde if velocity is None else replace(s.pde, velocity=given_velocity(velocity, s.dt))
        return Problem(self.mesh(setting.given), pde, s.conditions, s.dt * setting.skip / setting.substeps,
                              dtype=WORKING, device=self.device)

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

    def sources(self, model: Model[Any], problem: Problem, setting: Setting) -> Tensor | None:
        """Of every step at the model's points [B, T, P, F], or at the nodes that it is given, in single precision."""
        s, source = self.scenario, self.sample.source
        if source is None:
            return None
        points = problem.mesh.points if setting.fitted else model.points(problem)
        count, width, kind = s.steps * setting.substeps // setting.skip, len(s.pde.fields), _kind(self.device)
        moments = (model.moments,) if model.moments > 1 else ()
        shape = (self.batch, count, *moments, len(points), width)
        if 4 * math.prod(shape) > _BYTES[kind]:
            raise SolveError("its sources do not fit into memory at once")
        x, panels = torch.tensor(points, device=self.device), max(1, -(-s.panels * setting.skip // setting.substeps))
        rows = max(1, _ENTRIES[kind] // (self.batch * len(points) * width * model.moments))
        out = torch.empty(shape, dtype=WORKING, device=self.device)
        for k in range(0, count, rows):
            first = problem.dt * torch.arange(k, min(k + rows, count), dtype=torch.float64, device=self.device)
            out[:, k:k + len(first)] = (step_moments(source, x, first, problem.dt, *moments, panels) if moments else
                                        step_average(source, x, first, problem.dt, panels, rule=model.rule)).to(WORKING)
        return out

    def error(self, states: Tensor) -> float:
        return rne(states.double(), self.truth, self.scenario.offsets)


def measure(trial: Trial, model: Model[Any], setting: Setting, seconds: float = 1.5) -> dict[str, Any]:
    """Cost and error of a model in a setting of mesh and step. Of up to six runs from scratch, as many as these seconds allow, each
    part counts at its quickest.
    """
    B, times, n, fields = trial.truth.shape
    steps, kind = (times - 1) * setting.substeps // setting.skip, _kind(trial.device)
    u0, velocity = trial.start(setting), trial.velocity(setting.given)
    kept = torch.empty(B, (times - 1) // setting.skip + 1, n, fields, dtype=WORKING, device=trial.device)
    kept[:, 0] = u0[:, :n]
    between = in_time(times, setting.skip).to(kept)
    warm = min(WARM, steps - 1)
    states, found = kept, list[dict[str, float]]()
    spent = 0.0
    while not found or (len(found) < 6 and spent < seconds):
        marks = [_now(kind)]
        problem = trial.problem(setting, velocity)
        marks.append(_now(kind))
        source = trial.sources(model, problem, setting)
        marks.append(_now(kind))

        def keep(k: int, u: Tensor, marks: list[float] = marks) -> None:
            if k % setting.substeps == 0:
                kept[:, k // setting.substeps] = u[:, :n]
            if k == warm:
                marks.append(_now(kind))

        with torch.no_grad():
            rollout(model, problem, u0, source, steps, sink=keep)
        stepped = _now(kind)
        if setting.skip > 1:
            states = (between @ kept.flatten(2)).unflatten(2, (n, fields))
        begin, assembled, averaged, *running = marks
        end = _now(kind)
        pace = (stepped - running[0]) / (steps - warm) if running else (stepped - averaged) / steps
        source_s = averaged - assembled
        rollout_s = min(pace * steps, stepped - averaged) + end - stepped
        found.append({"setup_s": end - begin - source_s - rollout_s, "source_s": source_s, "rollout_s": rollout_s})
        spent += end - begin
        del problem, source
    best = {part: min(f[part] for f in found) for part in found[0]}  # another process may have disturbed any of them
    return {"unknowns": u0.shape[1], **best, "cost_s": whole(best), "error": trial.error(states.cpu())}


def in_time(times: int, skip: int) -> Tensor:
    """Weights [times, times // skip + 1] that interpolate every skip-th state to all times by cubics through the four around."""
    coarse = (times - 1) // skip + 1
    out = torch.zeros(times, coarse, dtype=torch.float64)
    for k in range(times):
        first = min(max(k // skip - 1, 0), max(coarse - 4, 0))
        near = range(first, min(first + 4, coarse))
        for i in near:
            out[k, i] = math.prod((k / skip - j) / (i - j) for j in near if j != i)
    return out


# ---------------------------------------------------------------------- the measurement


def tradeoff(run: Run, data: Path, device: str = "cpu", trajectories: int | None = None, budget: float = 45.0,
             settings: Sequence[Setting] | None = None, report: Report | None = None) -> dict[str, Any]:
    """Cost and error of a run's model and of the classical solver; what was not run says why.

    - `data`: with test trajectories, of which the first `trajectories` are solved
    - `budget`: seconds for the classical settings
    - `settings`: all of these in place of a search
    """
    with few_threads(run.case.mesh.n_nodes, device):
        trial = Trial.read(run, data, device, trajectories, report)
        s = trial.scenario
        search = Search(trial, {"solver": run.settings.model} | measure(trial, run.model, Setting()), budget)
        if settings is None:
            search.explore(report)
        for setting in settings or ():
            search.attempt(setting)
        search.settle(run.model)
    own, rows = search.own, search.rows
    result = {"benchmark": "tradeoff", "version": __version__, "hardware": hardware(_kind(device)), "device": device,
              "scenario": s.name, "size": s.size, "truth": run.settings.truth, "trajectories": trial.batch, "steps": s.steps,
              "nodes": s.mesh.n_nodes, "run": str(run.folder), "rows": [own, *rows]}
    best = cheapest(result)
    return result | {"cheapest": best, "ratio": None if best is None else whole(best) / whole(own)}


class Search:
    """Classical settings that may reach a model's error, tried from cheap to dear until the time is over."""

    def __init__(self, trial: Trial, own: dict[str, Any], budget: float, at: Setting | None = None) -> None:
        self.trial, self.own, self.rows, self.at = trial, own, list[dict[str, Any]](), at or Setting()  # `at`: of the model
        self.end = time.perf_counter() + budget
        self.still = math.inf  # the smallest error that shorter steps did not lower
        self.longest = LONGEST  # in steps of the data: one that fails where the mesh is fine enough fails on finer ones, too

    @property
    def best(self) -> dict[str, Any] | None:
        return min((r for r in self.rows if self.reached(r)), key=whole, default=None)

    def reached(self, row: dict[str, Any]) -> bool:
        return "not_run" not in row and row["error"] <= self.own["error"]

    def attempt(self, setting: Setting, reason: str | None = None) -> dict[str, Any] | None:
        """A row for the setting; None where it is not run."""
        row: dict[str, Any] = {"solver": "classical", "kind": setting.kind, "refine": setting.refine, "substeps": setting.substeps,
                               "skip": setting.skip}
        if reason is None and time.perf_counter() > self.end:
            reason = "no time left"
        try:
            row |= {"not_run": reason} if reason else measure(self.trial, setting.model, setting)
        except (SolveError, InputError) as error:
            row["not_run"] = str(error)
        self.rows.append(row)
        gc.collect()
        return None if "not_run" in row else row

    def settle(self, model: Model[Any]) -> None:
        """The model and its nearest rivals once more, one after the other: on a shared machine times drift."""
        best = self.best
        near = [] if best is None else [r for r in self.rows if self.reached(r) and whole(r) < 1.5 * whole(best)]
        for row in (self.own, *near):
            setting = self.at if row is self.own else setting_of(row)
            again = measure(self.trial, model if row is self.own else setting.model, setting)
            row |= {part: min(row[part], again[part]) for part in PARTS}
        alike = [self.own, *(r for r in near if setting_of(r).fitted and r["substeps"] == r["skip"] == 1)]
        for row in (self.own, *near):
            if row in alike:  # the same sources at the same places and times: the same work
                row["source_s"] = min(r["source_s"] for r in alike)
            row["cost_s"] = whole(row)

    def needless(self, setting: Setting) -> str | None:
        """Why a mesh need not be tried: even its longest step is more work, or its sources alone cost more, than what suffices."""
        best, dim = self.best, self.trial.scenario.mesh.dim
        if best is None:
            return None
        points = 1.0 if setting.fitted else setting.work(dim)
        dear = setting.work(dim) / self.longest > setting_of(best).work(dim) or self.own["source_s"] * points > whole(best)
        return "dearer than what suffices" if dear else None

    @cached_property
    def wanted(self) -> list[Setting]:
        return meshes(self.trial.scenario.mesh.dim, self.trial.sample.source is not None, self.trial.flow is not None)

    def explore(self, report: Report | None = None) -> None:
        """Every mesh with the data's step; then longer ones where that reaches the error, and shorter ones where they help."""
        steps = self.trial.scenario.steps
        for done, setting in enumerate(self.wanted):
            row = self.attempt(setting, self.needless(setting))
            if row is not None and self.reached(row):
                for skip in (k for k in (2, 4, LONGEST) if k <= self.longest and steps % k == 0 and steps // k >= LONGEST):
                    longer = self.attempt(replace(setting, skip=skip))
                    if longer is None or not self.reached(longer):
                        if longer is not None and row["error"] < 0.5 * self.own["error"]:
                            self.longest = skip // 2
                        break
            elif row is not None and row["error"] < self.still:
                for substeps in (2, 4):
                    shorter = self.attempt(replace(setting, substeps=substeps))
                    if shorter is None or self.reached(shorter):
                        break
                    if shorter["error"] > 0.98 * row["error"]:
                        self.still = min(self.still, row["error"])
                        break
                    row = shorter
            if report is not None:
                report(f"{self.trial.scenario.name}: cost against accuracy", done + 1, len(self.wanted))


def setting_of(row: dict[str, Any]) -> Setting:
    """The setting of a row."""
    degree, mass = int(row["kind"][1]), LUMPED if "lumped" in row["kind"] else CONSISTENT
    return Setting(degree, row["refine"], row["substeps"], row["skip"], mass, "nodes" in row["kind"],
                   "dg1" if "dG(1)" in row["kind"] else "crank-nicolson")


def whole(row: dict[str, Any]) -> float:
    """Seconds of a row with set-up and sources."""
    return float(sum(row[part] for part in PARTS))


def cheapest(result: dict[str, Any]) -> dict[str, Any] | None:
    """The cheapest classical setting that reaches the model's error, set-up and sources included."""
    own, *others = result["rows"]
    reached = [r for r in others if r["solver"] == "classical" and "not_run" not in r and r["error"] <= own["error"]]
    return min(reached, key=whole, default=None)


def _now(kind: str) -> float:
    """Seconds: of this process where it has one thread, so that others on the machine count less, else of wall clock."""
    sync(kind)
    return time.process_time() if kind == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()


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
    what += [f"Δt/{row['substeps']}"] if row["substeps"] > 1 else [f"{row['skip']} Δt"] if row.get("skip", 1) > 1 else []
    return ", ".join(what)


def verdict(result: dict[str, Any]) -> str:
    """One sentence: the cheapest classical setting, and how its cost compares."""
    own, best = result["rows"][0], cheapest(result)
    more = " The time was over before all were tried." if any("no time" in r.get("not_run", "") for r in result["rows"]) else ""
    if best is None:
        return f"No classical setting that was run reaches the model's error of {own['error']:.3g}.{more}"
    return (f"The cheapest classical setting that reaches the model's error of {own['error']:.3g} ({named(best)}: "
            f"{best['error']:.3g}) costs {whole(best) / whole(own):.3g} times as much as the model, set-up and sources "
            f"included.{more}")


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
