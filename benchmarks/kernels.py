"""`python -m benchmarks kernels`: how long sensor kernels take, and a reading from them beside a rollout."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.inverse import Kernels, Sensor, kernels, spread_out
from dgnet.inverse.sensor import rows as weights
from dgnet.mesh import Mesh, shipped
from dgnet.models import Classical, few_threads, rollout
from dgnet.problems import PDE, Problem, Robin
from dgnet_paper.study.timing import hardware, timed

_READINGS = ("reading_source_s", "reading_shapes_s", "reading_start_s")
_TOGETHER = 200  # readings that are timed at once


def run(device: str = "cpu", mesh: str = "gear-plate", sensors: int = 20, steps: int = 120) -> dict[str, Any]:
    """Kernels of the plate of laser-heat in both precisions: making them, then one reading after the last step.

    From a source at all nodes in all steps (as many products as it has numbers), from sources of known shapes (their responses are
    made once, a reading has a product for each step), from a start (a product for each node).
    """
    shape = shipped(mesh)
    found = [_row(shape, dtype, device, spread_out(shape, sensors), steps) for dtype in (torch.float64, torch.float32)]
    return {"benchmark": "kernels", "version": __version__, "hardware": hardware(device), "device": device, "mesh": mesh,
            "nodes": shape.n_nodes, "sensors": sensors, "steps": steps, "rows": found}


def _row(shape: Mesh, dtype: torch.dtype, device: str, places: list[Sensor], steps: int) -> dict[str, Any]:
    p = Problem(shape, PDE(("T",), diffusion=1.4e-5), [Robin("boundary", 7.1e-6, 298.15)], 0.5, dtype=dtype, device=device)
    g = torch.Generator().manual_seed(0)
    drawn = torch.rand(steps + 1, shape.n_nodes, 1, generator=g, dtype=torch.float64).to(device, dtype)
    source, start = drawn[1:], drawn[0]
    with torch.no_grad(), few_threads(shape.n_nodes, device):
        make = timed(lambda: kernels(p, places, steps), device, repeats=3, budget=60.0)
        whole = timed(lambda: rollout(Classical(), p, start[None], source[None]), device, repeats=5, budget=20.0)
        made = kernels(p, places, steps)
        states = rollout(Classical(), p, start[None], source[None])[0].double().cpu()
        seen = torch.einsum("npf,spf->sn", states, weights(places, p))
        error = float((made.readings(source, start).double().cpu() - seen).abs().max() / (seen.max() - seen.min()))
        row = {"dtype": str(dtype).removeprefix("torch."), "make_s": make, "rollout_s": whole, "error": error}
        return row | (_readings(made, source, start) if device == "cpu" else {})


def _readings(made: Kernels, source: torch.Tensor, start: torch.Tensor) -> dict[str, float]:
    """Seconds of one reading from kernels that were written to a file and read again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.npz"
        made.save(path)
        again = Kernels.load(path)
    last, shape = made.horizon, source[0][None]
    response = again.responses(shape)[0, last, 0].numpy()
    strengths = np.random.default_rng(0).random(last).astype(response.dtype)
    actions: tuple[Callable[[], object], ...] = (lambda: again.reading(0, last, source), lambda: response @ strengths,
                                                 lambda: again.reading(0, last, None, start))
    return dict(zip(_READINGS, map(_each, actions)))


def _each(action: Callable[[], object]) -> float:
    def many() -> None:
        for _ in range(_TOGETHER):
            action()

    return median(timed(many, "cpu", repeats=3) for _ in range(3)) / _TOGETHER


def table(data: dict[str, Any]) -> str:
    lines = [f"## Sensor kernels on {data['hardware']}", "",
             f"{data['sensors']} sensors, {data['steps']} steps, {data['nodes']:,} nodes ({data['mesh']}), medians. Readings are "
             "of one sensor after the last step, from stored kernels; in brackets how many take as long as one rollout.", "",
             "| precision | kernels | a rollout | reading: source at all nodes, all steps | known shapes | start | largest error |",
             "|---|---|---|---|---|---|---|"]
    for r in data["rows"]:
        cells = [f"{1e6 * r[name]:.3g} µs ({r['rollout_s'] / r[name]:,.0f})" if name in r else "–" for name in _READINGS]
        cells = [r["dtype"], f"{r['make_s']:.3g} s", f"{1e3 * r['rollout_s']:.3g} ms", *cells, f"{r['error']:.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
