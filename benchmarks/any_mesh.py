"""`python -m benchmarks any-mesh`: universal weights on parts that no training has seen, beside the classical solvers.

Every row is measured on the same random heat problems (`dgnet_paper.universal.problems`), against a truth of quadratic elements on the
mesh refined twice (3D: once), of fifth order in time. A ratio is the error of a model over that of the best classical solver on the
same mesh with the same step: linear elements with consistent or lumped mass, or quadratic ones, each with an L-stable start. Means
are geometric. Quadratic elements have four (2D) to seven (3D) times the unknowns, and so has the mesh refined once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.models import Classical, Model, Refined, few_threads, rollout
from dgnet.models.universal import Universal
from dgnet.problems import CONSISTENT, LUMPED
from dgnet.progress import Report
from dgnet.report.figures import error_map
from dgnet_paper.study.timing import hardware, sync
from dgnet_paper.universal.problems import CONDITIONS, UNSEEN, PartProblem, driven, unseen_parts, unseen_problem

Tensor = torch.Tensor

LOW, HIGH = 0.03, 0.3  # Fourier numbers between which a part counts as middle
RIVALS = ("linear, consistent", "linear, lumped", "quadratic")
AT_NODES = "universal-quadratic, source at the nodes alone"
BELOW = 0.9


def models() -> dict[str, Model]:
    return {"linear, consistent": Classical(CONSISTENT), "linear, lumped": Classical(LUMPED),
            "quadratic": Classical(CONSISTENT, degree=2), "quadratic, Crank–Nicolson": Classical(CONSISTENT, degree=2, start=0),
            "linear, mesh refined once": Refined(Classical(CONSISTENT)), "universal": Universal(),
            "universal-quadratic": Universal(degree=2), AT_NODES: Universal(degree=2)}


def errors(part: PartProblem, truth: Tensor) -> dict[str, float]:
    """The RNE of each model on a part's two trajectories."""
    problem, found = part.problem(), {}
    n = part.mesh.n_nodes
    for name, model in models().items():
        x = torch.tensor(model.points(problem))
        source, start = part.samples(x), part.start(x)
        start[:, :n] = truth[:, 0]
        if name == AT_NODES:
            source, start = source[:, :, :n], start[:, :n]
        with torch.no_grad():
            found[name] = float((rollout(model, problem, start, source) - truth).norm() / truth.norm())
    return found


def row(part: PartProblem, kind: str, truth: Callable[[PartProblem], Tensor]) -> dict[str, Any] | None:
    """Errors and ratios on one part; None where the classical solvers make no error to speak of."""
    found = errors(part, truth(part))
    best = min(found[name] for name in RIVALS)
    if best < 1e-6:
        return None
    return {"part": kind, "conditions": part.conditions_kind, "fourier": part.fourier, "nodes": part.mesh.n_nodes, "errors": found,
            "coverage": Universal(degree=2).coverage(part.problem()), "ratios": {name: value / best for name, value in found.items()}}


def mean(rows: Sequence[dict[str, Any]], name: str) -> float:
    """The geometric mean of a model's error ratios; NaN of none."""
    return float(np.exp(np.mean([np.log(r["ratios"][name]) for r in rows]))) if rows else float("nan")


def summary(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    """Means by Fourier number and by condition, the 95th percentile, the worst, and the share below `BELOW`."""
    ratios = [r["ratios"][name] for r in rows]
    by = {"all": rows, f"Fo < {LOW}": [r for r in rows if r["fourier"] < LOW],
          f"{LOW} to {HIGH}": [r for r in rows if LOW <= r["fourier"] < HIGH],
          f"Fo > {HIGH}": [r for r in rows if r["fourier"] >= HIGH]}
    by |= {kind: [r for r in rows if r["conditions"] == kind] for kind in (*CONDITIONS, "inflow")}
    by = {key: some for key, some in by.items() if some}
    return {key: mean(some, name) for key, some in by.items()} | {
        "95%": float(np.quantile(ratios, 0.95)), "worst": max(ratios), f"below {BELOW}": float(np.mean([r < BELOW for r in ratios]))}


def cost(dim: int, device: str = "cpu", flow: bool = False, repeats: int = 5) -> dict[str, float]:
    """Time of a step and of preparing, against the classical solver with the same elements in the same run, on the largest part."""
    part = max((unseen_problem(dim, k, flow) for k in range(len(unseen_parts(dim)))), key=lambda p: p.mesh.n_nodes)
    problem = part.problem(device=device)
    pairs = {"universal": "linear, consistent", "universal-quadratic": "quadratic"}
    clocks: dict[str, list[tuple[float, float]]] = {name: [] for pair in pairs.items() for name in pair}
    with torch.no_grad(), few_threads(part.mesh.n_nodes, device):
        for _ in range(repeats):
            for name, clock in clocks.items():
                model = models()[name]
                source = part.samples(torch.tensor(model.points(problem))).to(device)
                u0 = torch.zeros_like(source[:, 0])
                sync(device)
                begin = time.perf_counter()
                state = model.prepare(problem, len(source), 100)
                u = state.begin(u0)
                for k in range(3):  # those of the start, and the first of all others
                    u = state.step(u, source[:, k], k * problem.dt, k)
                sync(device)
                ready = time.perf_counter()
                for k in range(3, source.shape[1]):
                    u = state.step(u, source[:, k], k * problem.dt, k)
                sync(device)
                clock.append((ready - begin, (time.perf_counter() - ready) / (source.shape[1] - 3)))
    prepare, step = ({name: median(c[i] for c in clock) for name, clock in clocks.items()} for i in (0, 1))
    found: dict[str, float] = {"nodes": part.mesh.n_nodes}
    for name, other in pairs.items():
        found |= {f"{name}: step": step[name] / step[other], f"{name}: prepare": prepare[name] / prepare[other]}
    return found


def measured(dim: int, number: int, kind: str | None, flow: bool, refine: int | None) -> dict[str, Any] | None:
    """The row of a test part, with its own source or one of an unseen kind."""
    part = unseen_problem(dim, number, flow)
    part = part if kind is None else driven(part, kind, np.random.default_rng([13, number]))
    with few_threads(0):
        return row(part, unseen_parts(dim)[number][0], lambda part: part.truth(refine=refine))


def run(dim: int = 2, parts: int | None = None, device: str = "cpu", report: Report | None = None, flow: bool = False,
        workers: int = 1, refine: int | None = None) -> dict[str, Any]:
    """All test parts of a dimension, or the first `parts`; then sources of unseen kinds on the first eight of them.

    `flow`: with a steady flow on each. `refine`: how often the mesh of the truth is refined, by default twice in 2D and once in 3D.
    The clocks run on the device, all else on the CPU.
    """
    count = min(parts or 10**6, len(unseen_parts(dim)))
    jobs: list[tuple[int, int, str | None, bool, int | None]] = [(dim, k, None, flow, refine) for k in range(count)]
    jobs += [(dim, k, kind, flow, refine) for kind in UNSEEN for k in range(min(count, 8))]
    found: dict[str | None, list[dict[str, Any]]] = {None: [], **{kind: [] for kind in UNSEEN}}
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        made = pool.map(measured, *zip(*jobs)) if workers > 1 else (measured(*job) for job in jobs)
        for done, (job, one) in enumerate(zip(jobs, made), start=1):
            found[job[2]] += [] if one is None else [one]
            if report is not None:
                report("problems", done, len(jobs))
    return {"what": "any-mesh", "version": __version__, "hardware": hardware(device), "dim": dim, "flow": flow,
            "rows": found.pop(None), "unseen_sources": found, "cost": cost(dim, device, flow)}


def picture(path: Path, dim: int = 2, number: int = 16) -> None:
    """Where the errors are, on one test part. The default has nearly the median error ratio of all."""
    part = unseen_problem(dim, number)
    truth, problem, n = part.truth(), part.problem(), part.mesh.n_nodes
    states: dict[str, Tensor] = {}
    shown: dict[str, Model] = {"classical_consistent": Classical(CONSISTENT), "classical_p2": Classical(CONSISTENT, degree=2),
                               "universal": Universal(), "universal_p2": Universal(degree=2)}
    for name, model in shown.items():
        x = torch.tensor(model.points(problem))
        start = part.start(x)
        start[:, :n] = truth[:, 0]
        with torch.no_grad():
            states[name] = rollout(model, problem, start, part.samples(x))[..., 0]
    error_map(path, part.mesh, states, truth[..., 0], f"A part that no training has seen (Fourier number {part.fourier:.2g})")


def table(result: dict[str, Any]) -> str:
    """The page of a result."""
    rows, names, sources = result["rows"], list(models()), result["unseen_sources"]
    sums = {name: summary(rows, name) for name in names}
    head = list(sums[names[0]])
    lines = [f"# Universal weights on {len(rows)} unseen parts, {result['dim']}D{', with a steady flow' * result['flow']}", "",
             "Error over that of the best classical solver on the same mesh with the same step (linear elements with consistent or "
             "lumped mass, quadratic ones; L-stable start); below 1 is better. Geometric means, by Fourier number and by boundary "
             "condition.", "", "| model | " + " | ".join(head) + " |", "|---|" + "---|" * len(head)]
    lines += [f"| {name} | " + " | ".join(f"{sums[name][key]:.3f}" for key in head) + " |" for name in names]
    lines += ["", "Sources of kinds that no training held, from rest, mean error ratio:", "",
              "| model | " + " | ".join(sources) + " |", "|---|" + "---|" * len(sources)]
    lines += [f"| {name} | " + " | ".join(f"{mean(some, name):.3f}" for some in sources.values()) + " |" for name in names]
    c = result["cost"]
    clocks = "; ".join(f"{name}: a step {c[f'{name}: step']:.2f}, preparing {c[f'{name}: prepare']:.1f}"
                       for name in ("universal", "universal-quadratic"))
    lines += ["", f"Times over those of the same elements without corrections: {clocks} ({c['nodes']} nodes, {result['hardware']}, "
              f"medians in one run). Corrections act in full around {100 * float(np.mean([r['coverage'] for r in rows])):.1f}% of "
              "the nodes.", ""]
    return "\n".join(lines)
