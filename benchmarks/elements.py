"""`python -m benchmarks elements`: the time of a step with linear and with quadratic elements, and the error that it buys.

All rows are measured in turn in one run, so that their ratios hold on a machine that others use, too. The mesh refined once has
exactly the nodes of quadratic elements (vertices and middles of edges), so the last two rows compare elements at equal nodes.

    us_per_step  of a running rollout, after its first steps, all trajectories at once; median of the repetitions. Sources are known
    setup_s      from the problem to the first steps: assembly, factorisation, capture
    error        RNE from offset on test trajectories, where a data set is given
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dgnet import __version__
from dgnet.errors import InputError
from dgnet.models import Classical, Model, few_threads, rollout
from dgnet.models.registry import title_of
from dgnet.problems import CONSISTENT, LUMPED, Problem, step_average
from dgnet.problems.case import base_problem
from dgnet.scoring.judge import finer, judge_file
from dgnet_paper.scenarios import Draw, get
from dgnet_paper.study.timing import hardware, sync

Tensor = torch.Tensor

WARM = 4  # steps before the clock counts
_KEPT = 8  # different sources of a trajectory, used in turn


def models() -> dict[str, Model]:
    """Linear elements with both masses, then those with more points, in the order of the table."""
    return {"classical_lumped": Classical(LUMPED), "classical_consistent": Classical(CONSISTENT), **finer(0)}


def run(scenario: str = "laser-heat", size: str = "paper", device: str = "cpu", trajectories: int = 1, data: Path | None = None,
        steps: int | None = None, repeats: int = 5) -> dict[str, Any]:
    """Rows of all `models`, and the ratios of quadratic to linear elements on the same mesh and at equal nodes."""
    s = get(scenario, size)
    if s.flow is not None:
        raise InputError(f"elements are compared without a flow that comes with the data, which '{scenario}' has")
    steps, base = steps or (60 if device == "cpu" else 1000), base_problem(s, device)
    source = s.sample([Draw("test", 0)]).source
    times = s.times[torch.linspace(0, s.steps - 1, _KEPT).long()].to(device)
    rows: dict[str, dict[str, Any]] = {}
    clocks: dict[str, list[float]] = {name: [] for name in models()}
    given: dict[int, tuple[Tensor, Tensor | None]] = {}  # from rest, driven by some sources of one trajectory
    for name, model in models().items():
        x = torch.tensor(model.points(base), device=device)
        if len(x) not in given:
            f = None if source is None else step_average(source, x, times, s.dt, s.panels).float().expand(trajectories, -1, -1, -1)
            given[len(x)] = torch.tensor(s.offsets, device=device).expand(trajectories, len(x), -1), f
        rows[name] = {"model": name, "points": len(x)}
    with torch.no_grad(), few_threads(s.mesh.n_nodes, device):
        for _ in range(repeats):  # in turn, so that what else the machine does falls on all of them alike
            for name, model in models().items():
                u0, f = given[rows[name]["points"]]
                each, setup = _clocked(model, base, u0, f, steps, device)
                clocks[name].append(each)
                rows[name]["setup_s"] = setup
    errors = {} if data is None else {name: row["rne_from_offset"] for name, row in
                                      judge_file(models(), s, data, device).scores().items()}
    for name, row in rows.items():
        row |= {"us_per_step": 1e6 * median(clocks[name])} | ({"error": errors[name]} if errors else {})
    own = rows["classical_p2"]["us_per_step"]
    return {"benchmark": "elements", "version": __version__, "hardware": hardware(torch.device(device).type), "device": device,
            "scenario": s.name, "size": s.size, "trajectories": trajectories, "steps": steps, "rows": list(rows.values()),
            "ratio_same_mesh": own / rows["classical_consistent"]["us_per_step"],
            "ratio_equal_nodes": own / rows["classical_refined"]["us_per_step"]}


def _clocked(model: Model, base: Problem, u0: Tensor, f: Tensor | None, steps: int, device: str) -> tuple[float, float]:
    """Seconds of a step, and of everything before the steps that count."""
    source = None if f is None else f[:, torch.arange(steps, device=f.device) % f.shape[1]]
    sync(device)
    begin = middle = time.perf_counter()

    def keep(k: int, u: Tensor) -> None:
        nonlocal middle
        if k == WARM:
            sync(device)
            middle = time.perf_counter()

    rollout(model, base, u0, source, steps, sink=keep)
    sync(device)
    return (time.perf_counter() - middle) / (steps - WARM), middle - begin


def table(result: dict[str, Any]) -> str:
    """The rows as a table, and the two ratios."""
    scored = any("error" in row for row in result["rows"])
    lines = [f"## Elements: {result['scenario']} ({result['size']}), {result['trajectories']} trajectories at once, on "
             f"{result['hardware']}", "",
             "| solver | points | µs per step | set-up (s) |" + (" error |" if scored else ""),
             "|---|---|---|---|" + ("---|" if scored else "")]
    lines += [f"| {title_of(r['model'])} | {r['points']:,} | {r['us_per_step']:,.0f} | {r['setup_s']:.2f} |"
              + (f" {r['error']:.3g} |" if scored else "") for r in result["rows"]]
    mesh, nodes = result["ratio_same_mesh"], result["ratio_equal_nodes"]
    return "\n".join([*lines, "", f"A step with quadratic elements takes {mesh:.2f} times that with linear ones on the same mesh, "
                      f"and {nodes:.2f} times that at equal nodes (the mesh refined once)."])
