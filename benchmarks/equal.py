"""`python -m benchmarks equal`: what the error of universal weights costs classically, on parts that no training has seen.

For each part the cheapest classical setting that reaches the error of universal weights on quadratic elements: linear and quadratic
elements on the mesh or refined ones, with steps of a quarter to eight of the data's, with an L-stable start or all of dG(1) (the search
of `tradeoff`; states between long steps are interpolated). Parts of three sizes: the test part, and the same part refined until it has
about 6,000 and 50,000 nodes, with the same random numbers in units of its own spacing. Where a truth would take hours (above `judged`
nodes), the settings that reached the error on the largest size with a truth are clocked.

    steps     of a rollout, two trajectories at once, single precision, one thread
    set-up    and steps: matrices, factorisation, the network
    whole     and the averages of the sources, where the solver has its points; the mesh does not count

Costs of rollouts of other lengths follow from set-up and the pace of 24 steps. `solves` is how many rollouts of 1,000 steps it takes
until the time saved is that of the training.
"""

from __future__ import annotations

import math
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
from dgnet_paper.study.tradeoff import PARTS, Search, Setting, Trial, measure, named, setting_of
from dgnet_paper.universal.problems import PANELS, STEPS, PartProblem, unseen_parts, unseen_problem

Tensor = torch.Tensor
Row = dict[str, Any]
LEAST = 1e-6  # error from which there is something to compare
SIZES, LENGTHS = (500, 6_000, 50_000), (24, 1_000)
JUDGED = {2: 8_000, 3: 1_000}  # nodes up to which there are truths
COUNTED = {"steps": ("rollout_s",), "set-up": ("setup_s", "rollout_s"), "whole": PARTS}
TRAINING = 1_800.0  # seconds on one H200 of each set of weights, truths on 16 cores included


@dataclass(frozen=True, eq=False)
class PartTrial(Trial):
    """The two trajectories of a test part."""

    @classmethod
    def of(cls, part: PartProblem, judged: bool = True) -> PartTrial:
        """`judged`: with a truth; else there are no errors."""
        case = replace(get("laser-heat", "small"), name=part.kind, build_mesh=lambda: part.mesh, pde=part.pde,
                       conditions=part.conditions, dt=part.dt, steps=STEPS, panels=PANELS, offset=(0.0,))
        none = torch.full((2, STEPS + 1, part.mesh.n_nodes, 1), math.nan, dtype=torch.float64)
        return cls(case, Sample(part.start, part.source), part.truth() if judged else none, "cpu")

    def problem(self, setting: Setting, velocity: Tensor | None) -> Problem:
        s = self.scenario
        return Problem(self.mesh(setting.given), self._pde(setting.given), s.conditions, s.dt * setting.skip / setting.substeps,
                       dtype=WORKING)

    def _pde(self, refine: int) -> PDE:
        """The equation on the mesh refined so often: cells have the coefficients of their parents."""
        kept: dict[int, PDE] = self.__dict__.setdefault("_pdes", {0: self.scenario.pde})
        if refine not in kept:
            s = self.scenario
            kept[refine] = refined(Problem(self.mesh(refine - 1), self._pde(refine - 1), s.conditions, s.dt)).pde
        return kept[refine]


def spent(row: Row, steps: int, counted: str) -> float:
    """Seconds of a rollout of so many steps."""
    return float(sum(row[part] * (1.0 if part == "setup_s" else steps / STEPS) for part in COUNTED[counted]))


def cheapest(rows: Sequence[Row], own: Row) -> dict[str, Row | None]:
    """For each length and each way to count, the cheapest of the rows, with its cost over that of the own one."""
    found: dict[str, Row | None] = {}
    for steps in LENGTHS:
        for counted in COUNTED:
            best = min(rows, key=lambda row: spent(row, steps, counted), default=None)
            found[f"{counted}, {steps}"] = None if best is None else {
                "what": named(best), "ratio": spent(best, steps, counted) / spent(own, steps, counted),
                "saved_s": spent(best, steps, counted) - spent(own, steps, counted)}
    return found


def compared(part: PartProblem, budget: float, known: Sequence[Row] = ()) -> Row:
    """Universal weights and the classical settings that reach their error on one part, in `budget` seconds of search; or those that
    are `known` to do so from a smaller size, without a truth."""
    trial, model, at = PartTrial.of(part, judged=not known), Universal(degree=2), Setting(degree=2)
    own = {"solver": "universal-quadratic"} | measure(trial, model, at)
    search = Search(trial, own, budget, at)
    if known:
        near = {named(row): row for row in known if any(
            spent(row, steps, counted) < 1.5 * min(spent(other, steps, counted) for other in known)
            for steps in LENGTHS for counted in COUNTED)}
        rows = [row | measure(trial, setting_of(row).model, setting_of(row)) for row in near.values()]
    else:
        search.explore()
        search.settle(model)
        rows = [row for row in search.rows if search.reached(row)]
    return {"part": part.kind, "conditions": part.conditions_kind, "fourier": part.fourier, "nodes": part.mesh.n_nodes, "own": own,
            "reached": rows, "judged": not known, "best": cheapest(rows, own),
            "complete": not any(row.get("not_run") == "no time left" for row in search.rows)}


def sized(dim: int, number: int, nodes: int) -> PartProblem:
    """A test part with about so many nodes."""
    return unseen_problem(dim, number, refine=max(0, round(math.log2(nodes / unseen_parts(dim)[number][1].n_nodes) / dim)))


def run(parts: int = 10, dim: int = 2, budget: float = 30.0, report: Report | None = None, largest: int = SIZES[-1],
        training: float = TRAINING) -> dict[str, Any]:
    """Parts spread evenly over the test set, without those that stay as they are: there is no error to reach.

    `largest`: sizes of up to so many nodes. `training`: its seconds. `budget`: seconds of search for each part, times ten at 6,000
    nodes.
    """
    count, sizes = len(unseen_parts(dim)), [nodes for nodes in SIZES if nodes <= largest]
    numbers = sorted({round(k) for k in np.linspace(0, count - 1, min(parts, count))})
    rows: list[Row] = []
    with few_threads(0):
        for done, number in enumerate(numbers):
            known: list[Row] = []
            for step, nodes in enumerate(sizes):
                part = sized(dim, number, nodes)
                if part.mesh.n_nodes <= JUDGED[dim] or known:
                    row = compared(part, budget * (10 if nodes > SIZES[0] else 1), [] if part.mesh.n_nodes <= JUDGED[dim] else known)
                    known = row["reached"]
                    if row["own"]["error"] <= LEAST:
                        break
                    rows.append(row | {"size": nodes})
                if report is not None:
                    report("parts", done * len(sizes) + step + 1, len(numbers) * len(sizes))
    return {"what": "equal", "version": __version__, "hardware": hardware("cpu"), "dim": dim, "rows": rows, "training_s": training}


def mean(values: Sequence[float]) -> float:
    """The geometric mean; NaN of none."""
    return float(np.exp(np.mean(np.log(values)))) if values else math.nan


def solves(rows: Sequence[Row], training: float) -> float:
    """Rollouts of the longest kind, set-up and sources included, in which as much time is saved as a training takes."""
    saved = [r["best"][f"whole, {LENGTHS[-1]}"]["saved_s"] for r in rows]
    return training / float(np.mean(saved)) if saved and np.mean(saved) > 0 else math.inf


def table(result: dict[str, Any]) -> str:
    """The page of a result."""
    dim, keys = result["dim"], [f"{counted}, {steps}" for steps in LENGTHS for counted in COUNTED]
    lines = [f"# What the error of universal weights costs classically, {dim}D", "",
             "The cheapest of linear and quadratic elements, on the mesh or refined ones, with shorter or longer steps and an L-stable "
             "start, that reaches the error of universal weights on quadratic elements without data. Cost over that of universal "
             "weights, in the geometric mean: above 1, these are cheaper. Set-up includes the steps, whole also the sources. Two "
             f"trajectories at once, single precision, one thread, {result['hardware']}.", "",
             "| nodes | parts | reached classically | " + " | ".join(f"{key} steps" for key in keys) + " | solves that pay for the "
             "training |", "|---|---|---|" + "---|" * len(keys) + "---|"]
    for size in sorted({r["size"] for r in result["rows"]}):
        rows = [r for r in result["rows"] if r["size"] == size]
        found = [r for r in rows if r["reached"]]
        means = " | ".join(f"{mean([r['best'][key]['ratio'] for r in found]):.2f}" for key in keys)
        paid = solves(found, result["training_s"])
        carried = "" if all(r["judged"] for r in rows) else " (as on smaller ones)"
        lines.append(f"| {size:,} | {len(rows)} | {len(found)}{carried} | {means} | {'never' if math.isinf(paid) else f'{paid:,.0f}'} |")
    lines += ["", "| part | conditions | Fourier number | nodes | error | universal: set-up, sources, steps (ms) | cheapest for 24 steps, "
              "whole | cost | cheapest for 1,000 steps, set-up | cost |", "|---|---|---|---|---|---|---|---|---|---|"]
    for r in result["rows"]:
        own = r["own"]
        clock = ", ".join(f"{1e3 * own[part]:.1f}" for part in PARTS)
        error = f"{own['error']:.2g}" if r["judged"] else ""
        none = "none" if r["complete"] else "none before the time was over"
        best = [r["best"][key] for key in (f"whole, {LENGTHS[0]}", f"set-up, {LENGTHS[-1]}")]
        rest = " | ".join(f"{none} | –" if one is None else f"{one['what']} | {one['ratio']:.2f}" for one in best)
        lines.append(f"| {r['part']} | {r['conditions']} | {r['fourier']:.3g} | {r['nodes']:,} | {error} | {clock} | {rest} |")
    lines += ["", f"`python -m benchmarks equal{' --dim 3' * (dim == 3)}` prints this page.", ""]
    return "\n".join(lines)
