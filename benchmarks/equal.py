"""`python -m benchmarks equal`: what the error of universal weights costs classically, on parts that no training has seen.

For each part the cheapest of linear and quadratic elements on the mesh or refined ones, with any time step, that reaches the error
of universal weights (the search of `tradeoff`). Set-up, sources and steps count; the mesh does not. Two trajectories at once, 24
steps, single precision. Universal weights are given the source at the nodes alone. `steps alone` leaves set-up and sources out, as
in many rollouts of one problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.models import few_threads
from dgnet.models.universal import Universal
from dgnet.problems import WORKING, Problem
from dgnet.problems.finer import refined
from dgnet.problems.pde import PDE
from dgnet.progress import Report
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.scenario import Sample
from dgnet_paper.study.timing import hardware
from dgnet_paper.study.tradeoff import PARTS, Search, Setting, Trial, measure, named, whole
from dgnet_paper.universal.problems import PANELS, STEPS, PartProblem, unseen_parts, unseen_problem

Tensor = torch.Tensor
LEAST = 1e-6  # error from which there is something to compare


@dataclass(frozen=True, eq=False)
class PartTrial(Trial):
    """The two trajectories of a test part."""

    @classmethod
    def of(cls, part: PartProblem) -> PartTrial:
        case = replace(get("laser-heat", "small"), name=part.kind, build_mesh=lambda: part.mesh, pde=part.pde,
                       conditions=part.conditions, dt=part.dt, steps=STEPS, panels=PANELS, offset=(0.0,))
        return cls(case, Sample(part.start, part.source), part.truth(), "cpu")

    def problem(self, setting: Setting, velocity: Tensor | None) -> Problem:
        s = self.scenario
        return Problem(self.mesh(setting.given), self._pde(setting.given), s.conditions,
                              s.dt * setting.skip / setting.substeps, dtype=WORKING)

    def _pde(self, refine: int) -> PDE:
        """The equation on the mesh refined so often: cells have the coefficients of their parents."""
        kept: dict[int, PDE] = self.__dict__.setdefault("_pdes", {0: self.scenario.pde})
        if refine not in kept:
            s = self.scenario
            kept[refine] = refined(Problem(self.mesh(refine - 1), self._pde(refine - 1), s.conditions, s.dt)).pde
        return kept[refine]


def compared(part: PartProblem, budget: float) -> dict[str, Any]:
    """Universal weights and the cheapest classical setting that reaches their error on one part, in `budget` seconds of search."""
    trial, model, at = PartTrial.of(part), Universal(), Setting(fitted=True)
    search = Search(trial, {"solver": "universal"} | measure(trial, model, at), budget, at)
    search.explore()
    search.settle(model)
    own, best = search.own, search.best
    return {"part": part.kind, "conditions": part.conditions_kind, "fourier": part.fourier, "nodes": part.mesh.n_nodes, "own": own,
            "best": best, "complete": not any(row.get("not_run") == "no time left" for row in search.rows),
            "ratio": np.inf if best is None else whole(best) / whole(own),
            "steps_ratio": np.inf if best is None else best["rollout_s"] / own["rollout_s"]}


def run(parts: int = 10, dim: int = 2, budget: float = 30.0, report: Report | None = None) -> dict[str, Any]:
    """Parts spread evenly over the test set, without those that stay as they are: there is no error to reach."""
    count = len(unseen_parts(dim))
    numbers = sorted({round(k) for k in np.linspace(0, count - 1, min(parts, count))})
    rows = []
    with few_threads(0):
        for done, number in enumerate(numbers, start=1):
            row = compared(unseen_problem(dim, number), budget)
            rows += [row] if row["own"]["error"] > LEAST else []
            if report is not None:
                report("parts", done, len(numbers))
    return {"what": "equal", "version": __version__, "hardware": hardware("cpu"), "dim": dim, "rows": rows}


def mean(values: Sequence[float]) -> float:
    """The geometric mean; NaN of none."""
    return float(np.exp(np.mean(np.log(values)))) if values else float("nan")


def table(result: dict[str, Any]) -> str:
    """The page of a result."""
    rows = result["rows"]
    lines = [f"# What the error of universal weights costs classically, {result['dim']}D", "",
             "The cheapest of linear and quadratic elements, on the mesh or refined ones, with any time step, that reaches the "
             "error of universal weights without data. Cost over that of universal weights: above 1, these are cheaper. "
             f"Two trajectories of {STEPS} steps at once, single precision, one thread, {result['hardware']}.", "",
             "| part | conditions | Fourier number | nodes | error | universal: set-up, sources, steps (ms) | cheapest classical | "
             "its error | set-up, sources, steps (ms) | cost | steps alone |", "|---|---|---|---|---|---|---|---|---|---|---|"]

    def clock(row: dict[str, Any]) -> str:
        return ", ".join(f"{1e3 * row[part]:.1f}" for part in PARTS)

    for r in rows:
        own, best = r["own"], r["best"]
        none = "none" if r["complete"] else "none before the time was over"
        rest = f"{none} | – | – | – | –" if best is None else (
            f"{named(best)} | {best['error']:.2g} | {clock(best)} | {r['ratio']:.2f} | {r['steps_ratio']:.2f}")
        lines.append(f"| {r['part']} | {r['conditions']} | {r['fourier']:.3g} | {r['nodes']} | {own['error']:.2g} | {clock(own)} | "
                     f"{rest} |")
    quadratic = sum(r["best"] is not None and r["best"]["kind"].startswith("P2") for r in rows)
    found = [r for r in rows if r["best"] is not None]
    cost, steps = (mean([r[key] for r in found]) for key in ("ratio", "steps_ratio"))
    wins = sum(r["ratio"] < 1 for r in found)
    lines += ["", f"On {len(found)} of {len(rows)} parts a classical setting reaches the error. There the geometric mean of the "
              f"cost is {cost:.2f}, of the steps alone {steps:.2f}; on {wins} of them it is the cheaper way. The cheapest "
              f"setting has quadratic elements on {quadratic} parts. `python -m benchmarks equal{' --dim 3' * (result['dim'] == 3)}` "
              "prints this page.", ""]
    return "\n".join(lines)
