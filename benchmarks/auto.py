"""`python -m benchmarks auto`: does `auto` take the fastest backend? Random cases on the CPU that its cost model has not been fitted to.

Heat problems with the consistent mass on perturbed boxes of odd shapes: 2D and 3D, 500 to 500,000 nodes, stiffness dt D / h^2 from
0.01 to 100, 10 to 10,000 steps, 1 or 32 trajectories at once, both precisions. Each backend is set up and steps for a moment, three
times in turn on small meshes, always on a new one; assembled matrices are given. A total is

    set-up + number of steps x median time of a step          processor time, one thread; never run to the end

The ratio of a case is the total of the backend that `auto` takes over the smallest total of all backends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.errors import InputError, SolveError
from dgnet.mesh import box
from dgnet.models import Classical
from dgnet.problems import PDE, Problem
from dgnet.progress import Report
from dgnet.stepping import GreenSolver
from dgnet.stepping.backends import NAMES
from dgnet_paper.study.timing import hardware

NODES, STIFFNESS, STEPS, TRAJECTORIES = (500, 500_000), (0.01, 100.0), (10, 10_000), (1, 32)
ENTRIES = 640_000  # nodes times trajectories, at most, where there are several: more takes minutes a step
GOAL = 1.15
COUNT, SEED = 64, 2029  # the cases of the seeds 2024 and 2026 were looked at when `auto` was changed
_MOST = {"lu": (600_000, 40_000), "dense": (1_500, 1_500)}
"""Nodes in 2D and 3D beyond which a backend does not fit or takes minutes."""
_MOMENT, _LEAST = 0.25, 3  # seconds of steps, but so many steps at least
_SMALL, _TURNS = 20_000, 3  # nodes up to which there are so many turns; larger cases have one
_HOPELESS = 3.0  # times the best total so far: no further turn


@dataclass(frozen=True)
class Case:
    """`stiffness` is dt D / h^2 with h the mean spacing, D = 1."""

    cells: tuple[int, ...]
    stiffness: float
    steps: int
    trajectories: int
    dtype: torch.dtype

    @property
    def nodes(self) -> int:
        return math.prod(c + 1 for c in self.cells)

    def problem(self) -> Problem:
        """On a mesh of its own, matrices assembled."""
        upper = tuple(c / max(self.cells) for c in self.cells)
        mesh = box(self.cells, upper=upper, perturb=0.2, seed=self.nodes)
        p = Problem(mesh, PDE(diffusion=1.0), [], self.stiffness / max(self.cells) ** 2, dtype=self.dtype)
        _ = p.held().mass, p.held().stiffness(0.0)
        return p

    def solver(self, p: Problem, backend: str) -> GreenSolver:
        """As a rollout of so many steps takes it: what is too stiff for float32 is computed in float64."""
        solver = Classical(backend=backend).prepare(p, self.trajectories, self.steps).main
        assert isinstance(solver, GreenSolver)
        return solver


def cases(count: int = COUNT, seed: int = SEED) -> list[Case]:
    """Always the same: half of them 3D; sizes spread evenly, everything else drawn, all on logarithmic scales."""
    rng = np.random.default_rng(seed)
    found = []
    for k in range(count):
        dim, nodes = 2 + k % 2, NODES[0] * (NODES[1] / NODES[0]) ** ((k // 2 + 0.5) / math.ceil(count / 2))
        shape = rng.uniform(0.4, 1.0, dim)
        shape *= (nodes / shape.prod()) ** (1 / dim)
        several = nodes * TRAJECTORIES[1] <= ENTRIES and rng.random() < 0.6
        stiffness, steps = (a * (b / a) ** rng.random() for a, b in (STIFFNESS, STEPS))
        found.append(Case(tuple(max(2, round(s) - 1) for s in shape), float(f"{stiffness:.2g}"), round(steps),
                          TRAJECTORIES[several], (torch.float32, torch.float64)[(k // 2) % 2]))
    return found


class Trial:
    """One backend on one case: its set-ups and its steps so far, in processor seconds."""

    def __init__(self, case: Case, backend: str) -> None:
        self.case, self.backend, self.setups, self.paces = case, backend, list[float](), list[float]()
        self.label = ""

    def look(self, p: Problem) -> None:
        """Set up once more, and step for a moment."""
        case = self.case
        g = torch.Generator().manual_seed(1)
        x = torch.tensor(p.mesh.points)
        spots = x[torch.randint(len(x), (2 * case.trajectories,), generator=g)]
        u, f = (torch.exp(-50 * (x - spot[:, None]).square().sum(-1))[..., None].to(case.dtype) for spot in spots.chunk(2))
        with torch.no_grad():
            begin = time.process_time()
            solver = case.solver(p, self.backend)
            operator = solver.operator()
            self.setups.append(time.process_time() - begin)
            u, first = solver.step(u, f), time.process_time()  # the first step fills what is kept between steps
            paces: list[float] = []
            while len(paces) < _LEAST or (time.process_time() - first < _MOMENT and len(paces) < 200):
                begin = time.process_time()
                u = solver.step(u, f)
                paces.append(time.process_time() - begin)
        self.paces.append(median(paces))
        self.label = operator.prepared.label

    @property
    def total(self) -> float:
        return median(self.setups) + self.case.steps * median(self.paces)


def compared(case: Case, backends: Sequence[str] = NAMES) -> dict[str, Any]:
    """The row of a case; backends take turns, and those far behind after one look get no other."""
    trials: dict[str, Trial] = {}
    left_out: dict[str, str] = {}
    for turn in range(_TURNS if case.nodes <= _SMALL else 1):
        problem = case.problem()
        for backend in backends:
            most = _MOST.get(backend, (case.nodes, case.nodes))[len(case.cells) - 2]
            if backend in left_out or case.nodes > most:
                left_out.setdefault(backend, f"limited to {most} nodes")
                continue
            trial = trials.setdefault(backend, Trial(case, backend))
            if turn and trial.total > _HOPELESS * min(t.total for t in trials.values()):
                continue
            try:
                trial.look(problem)
            except (InputError, SolveError) as error:
                left_out[backend] = str(error)
                del trials[backend]
    totals = {backend: trial.total for backend, trial in trials.items()}
    with torch.no_grad():
        choice = case.solver(problem, "auto").operator().backend
    best = min(totals, key=lambda name: totals[name])
    return {"cells": case.cells, "nodes": case.nodes, "stiffness": case.stiffness, "steps": case.steps,
            "trajectories": case.trajectories, "dtype": str(case.dtype).removeprefix("torch."), "totals": totals,
            "labels": {name: t.label for name, t in trials.items()}, "left_out": left_out, "choice": choice, "best": best,
            "ratio": totals[choice] / totals[best] if choice in totals else None}


def run(count: int = COUNT, largest: int = NODES[1], report: Report | None = None) -> dict[str, Any]:
    """The first `count` cases with at most `largest` nodes."""
    some = [case for case in cases() if case.nodes <= 1.1 * largest]
    some = [some[k] for k in np.linspace(0, len(some) - 1, min(count, len(some))).round().astype(int)]
    rows = []
    for done, case in enumerate(some, start=1):
        rows.append(compared(case))
        if report is not None:
            report("cases", done, len(some))
    return {"benchmark": "auto", "version": __version__, "hardware": hardware("cpu"), "rows": rows, "summary": summary(rows)}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By groups of cases: how many, the share within `GOAL`, geometric mean and largest ratio. Without a ratio is not within."""
    def of(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
        ratios = [r["ratio"] for r in group if r["ratio"] is not None]
        return {"cases": len(group), "within": sum(x <= GOAL for x in ratios) / len(group),
                "mean": math.exp(sum(math.log(x) for x in ratios) / len(ratios)), "worst": max(ratios)} if ratios else {}

    groups = {"all": rows, "2D": [r for r in rows if len(r["cells"]) == 2], "3D": [r for r in rows if len(r["cells"]) == 3],
              "1 trajectory": [r for r in rows if r["trajectories"] == 1], "32": [r for r in rows if r["trajectories"] > 1],
              **{dtype: [r for r in rows if r["dtype"] == dtype] for dtype in ("float32", "float64")}}
    return {name: of(group) for name, group in groups.items() if of(group)}
