"""The other kinds of cells: what is asked of a trained model, and what is measured with a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.colors import Normalize

from dgnet.data import Corpus, Dataset
from dgnet.data.fits import check_fits
from dgnet.models import Pause, few_threads, rollout
from dgnet.problems import given_velocity
from dgnet.problems.case import base_problem
from dgnet.report.figures import Band, error_norm, grid
from dgnet.report.pictures import robust_limits
from dgnet.scoring.judge import judge_file
from dgnet.training.run import Run
from dgnet_paper.analyse import operator as analyse
from dgnet_paper.analyse import pictures as operators
from dgnet_paper.scenarios.generate import flow_record, flow_rows, source_rows
from dgnet_paper.scenarios.scenario import Scenario, scenario_of
from dgnet_paper.study import throughput as bench
from dgnet_paper.study import tradeoff as ladders
from dgnet_paper.study.engine import Options, about, beside_classical, data_set, results
from dgnet_paper.study.experiment import Experiment
from dgnet_paper.study.stored import read

Tensor = torch.Tensor

_TRIAL_STEPS, _TRIAL_NODES = 4, (300, 600)  # of measurements in a trial (`few`)
_LADDER = 90.0  # seconds for the ladders of a trade-off


def robust(cell: Experiment, options: Options) -> dict[str, Any]:
    """A model trained on the usual sources, on test trajectories with scaled ones; nothing is trained here."""
    scenario = cell.definition()
    path, made = data_set(cell, options)
    opened = Run.open(cell.trained.folder(options.out) / "run", options.device)
    begin = time.perf_counter()
    own = beside_classical(results(judge_file({cell.method: opened.model}, scenario, path, options.device)), cell, options)
    trained = read(cell.trained, options.out)
    return {"about": about(scenario), "best_iteration": trained["best_iteration"],
            "seconds": {"generate": made, "evaluate": time.perf_counter() - begin}, **own}


def long(cell: Experiment, options: Options) -> dict[str, Any]:
    """Ten times the steps of the data: a test trajectory's start, sources and flow, then no source and the last flow."""
    opened = Run.open(cell.trained.folder(options.out) / "run", options.device)
    s, device = scenario_of(opened), options.device
    begin = time.perf_counter()
    sample = s.sample([draw for draw in s.draws() if draw.split == "test"][:1])
    x = torch.tensor(s.mesh.points, dtype=torch.float64)
    start = sample.initial(x) if callable(sample.initial) else sample.initial
    source = None
    if sample.source is not None:
        samples, averages = (torch.from_numpy(rows).to(device) for rows in source_rows(s, sample.source, 1))
        source = averages if opened.model.rule == "average" else 0.5 * (samples[:, :-1] + samples[:, 1:])
    flow = flow_record(s, options.data, device, options.report)
    problem = base_problem(s, device)
    if flow is not None:
        assert sample.phases is not None
        problem = problem.with_velocity(given_velocity(flow_rows(s, flow, sample.phases).to(device), s.dt))
    offset = torch.tensor(s.offsets, dtype=torch.float32, device=device)
    at: Tensor | Pause = start.to(device, torch.float32)
    largest = []
    with torch.no_grad(), few_threads(s.mesh.n_nodes, device):
        for part in range(10):
            steps: list[Tensor] = []

            def watch(k: int, state: Tensor, kept: list[Tensor] = steps) -> None:
                kept.append((state - offset).abs().amax())

            _, at = rollout(opened.model, problem, at, source if part == 0 else None, s.steps, sink=watch, pause=True)
            largest.append(float(torch.stack(steps).max()))
            if options.report is not None:
                options.report(f"{s.name}: ten horizons", part + 1, 10)
    assert isinstance(at, Pause)
    last = float((at.values - offset).abs().max())
    return {"about": about(s), "steps": 10 * s.steps, "largest_within": largest[0], "largest_beyond": max(largest[1:]),
            "last": last, "finite": bool(np.isfinite([*largest, last]).all()), "seconds": {"evaluate": time.perf_counter() - begin}}


def operator(cell: Experiment, options: Options) -> dict[str, Any]:
    """Spectra, matrices and what L makes of the true field of the first test trajectory, in double precision on the CPU."""
    path, made = data_set(cell, options)
    opened = Run.open(cell.trained.folder(options.out) / "run", "cpu")
    scenario, folder = scenario_of(opened), cell.folder(options.out)
    with Dataset(path) as dataset:
        check_fits(dataset, scenario)
        corpus = dataset.batch(dataset.of("test")[:1], dtype=torch.float64, ends=opened.model.rule == "trapezoid")
    begin = time.perf_counter()
    problem = corpus.problem(base_problem(scenario, "cpu"))
    found = analyse.study(opened.dgnet, problem, corpus.state, corpus.under(opened.model.rule).source_average)
    operators.draw_spectra(folder / "spectrum.png", found.fields)
    operators.draw_matrices(folder / "matrices.png", found.fields[0])
    acted = action(found, scenario, corpus)
    numbers = {"action": draw_action(folder / "action.png", scenario, acted), **found.numbers()}
    most = 400  # eigenvalues that are kept of each operator
    spectra = {f.name: {key: _pairs(values, most) for key, values in f.spectra.items()} for f in found.fields}
    return {"about": about(scenario), "numbers": numbers, "spectra": spectra,
            "figures": ["spectrum.png", "action.png", "matrices.png"],
            "seconds": {"generate": made, "evaluate": time.perf_counter() - begin}}


def _pairs(values: np.ndarray, most: int) -> list[list[float]]:
    """[Re, Im] of at most so many eigenvalues, the rightmost first, spread over all of them."""
    ordered = values[np.argsort(-values.real)]
    chosen = ordered[np.unique(np.linspace(0, len(ordered) - 1, min(most, len(ordered))).round().astype(int))]
    return [[float(z.real), float(z.imag)] for z in chosen]


def action(found: analyse.Study, scenario: Scenario, data: Corpus) -> dict[str, np.ndarray]:
    """The mean field of one step, and what the operators make of it, [N, F] each; fixed nodes are left at zero.

    The reference is what the truth says of L over that step, (u+ - u)/dt - f - (r(u) + r(u+))/2 = L (u + u+)/2, up to O(dt^2).
    """
    k = data.steps // 2
    u, after = data.state[0, k], data.state[0, k + 1]
    reference = (after - u) / data.dt
    if data.source_average is not None:
        reference = reference - data.source_average[0, k]
    if scenario.pde.reaction is not None:
        reference = reference - 0.5 * (scenario.pde.reaction(u) + scenario.pde.reaction(after))
    middle = (0.5 * (u + after) - u.new_tensor(scenario.offsets)).numpy()
    out = {"field": middle, "reference": np.zeros_like(middle), "physics": np.zeros_like(middle), "learned": np.zeros_like(middle)}
    for f in range(middle.shape[1]):
        study = found.fields[min(f, len(found.fields) - 1)]
        free = study.free
        out["reference"][free, f] = reference[:, f].numpy()[free]
        out["physics"][free, f] = study.physics.apply(middle[free, f])
        out["learned"][free, f] = study.learned.apply(middle[free, f])
    return out


def draw_action(path: Any, scenario: Scenario, acted: dict[str, np.ndarray]) -> dict[str, float]:
    """The first field, the reference, L_physics u and L u side by side; returns relative distances to the reference."""
    size = max(float(np.linalg.norm(acted["reference"])), 1e-300)
    off = {key: float(np.linalg.norm(acted[key] - acted["reference"])) / size for key in ("physics", "learned")}
    reference, field = acted["reference"][:, 0], acted["field"][:, 0]
    top = max(float(np.quantile(np.abs(reference), 0.995)), 1e-300)
    low, high = robust_limits(field)
    errors = [np.abs(acted[key][:, 0] - reference) for key in ("physics", "learned")]
    values = np.stack([reference, acted["physics"][:, 0], acted["learned"][:, 0]])
    wrong = np.stack([np.zeros_like(reference), *errors])
    name = scenario.pde.fields[0]
    bands = [Band([(name, np.repeat(field[None], 3, 0))], Normalize(low, high), "viridis", name),
             Band([("L applied", values)], Normalize(-top, top), "RdBu_r", "per time", "both"),
             Band([("|difference|", wrong)], error_norm(*errors), "Reds", "per time", "max")]
    titles = ["reference", f"L physics ({off['physics']:.2g})", f"L learned ({off['learned']:.2g})"]
    grid(path, scenario.mesh, bands, titles, f"{scenario.name}: the operator on a true field, and how far from the reference it is")
    return {"physics_to_reference": off["physics"], "learned_to_reference": off["learned"]}


# ---------------------------------------------------------------------- clocks


def throughput(cell: Experiment, options: Options) -> dict[str, Any]:
    """Every model on the scenario's mesh, in one run."""
    begin = time.perf_counter()
    found = bench.throughput(None, cell.scenario, cell.size, options.device, steps=_TRIAL_STEPS if cell.few else None,
                             report=options.report)
    return {"about": about(cell.definition()), "result": found, "seconds": {"evaluate": time.perf_counter() - begin}}


def scaling(cell: Experiment, options: Options) -> dict[str, Any]:
    """DGNet and the classical solvers on squares of more and more nodes."""
    begin = time.perf_counter()
    found = bench.scaling(options.device, _TRIAL_NODES if cell.few else None, _TRIAL_STEPS if cell.few else None,
                          report=options.report)
    return {"result": found, "seconds": {"evaluate": time.perf_counter() - begin}}


def tradeoff(cell: Experiment, options: Options) -> dict[str, Any]:
    """A trained model beside the classical solver with other elements, meshes and steps, on the same device."""
    path, made = data_set(cell, options)
    opened = Run.open(cell.trained.folder(options.out) / "run", options.device)
    begin = time.perf_counter()
    few = [ladders.Setting(), ladders.Setting(2), ladders.Setting(1, 1)] if cell.few else None
    found = ladders.tradeoff(opened, path, options.device, budget=_LADDER, settings=few, report=options.report)
    del found["run"]  # cells travel, folders do not
    return {"about": about(scenario_of(opened)), "result": found,
            "seconds": {"generate": made, "evaluate": time.perf_counter() - begin}}


RUNNERS: dict[str, Callable[[Experiment, Options], dict[str, Any]]] = {
    "robust": robust, "operator": operator, "long": long, "throughput": throughput, "scaling": scaling,
    "tradeoff": tradeoff}
