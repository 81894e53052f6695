"""`python -m benchmarks export`: steps of exported files beside those of the library, on one core, in one run."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.errors import InputError
from dgnet.export import export
from dgnet.export.c_file import Compiled, find_compiler, written
from dgnet.export.record import probe
from dgnet.models.timeloop import few_threads
from dgnet.problems.case import base_problem
from dgnet.training.run import open_simulator
from dgnet.training.simulator import Simulator
from dgnet_paper.study.timing import hardware

STEPS, ROUNDS = 100, 5


@torch.no_grad()
def run(folder: Path, steps: int = STEPS) -> dict[str, Any]:
    """Milliseconds of a step by library, C (double, float) and ONNX: medians of rounds in turn; differences after `steps` steps."""
    opened = open_simulator(folder)
    model, problem = opened.model, base_problem(opened.case, "cpu")
    u, f = probe(model, problem, 1)
    state = model.prepare(problem, 1, steps)
    rows, ways, reasons = [], dict[str, Callable[[int], np.ndarray]](), []
    with few_threads(0), tempfile.TemporaryDirectory() as folder:
        def library(count: int) -> np.ndarray:
            v = state.begin(u)
            for k in range(count):
                v = state.step(v, f, k * problem.dt, k)
            return state.read(v).numpy().ravel()

        ways["library"] = library
        sizes: dict[str, int | None] = {"library": None}
        for kind in ("C (double)", "C (float)", "ONNX"):
            try:
                ways[kind], sizes[kind] = (_onnx if kind == "ONNX" else _compiled)(opened, Path(folder), kind, u, f)
            except InputError as error:
                reasons.append(f"{kind}: {error}")
        seconds: dict[str, list[float]] = {kind: [] for kind in ways}
        ends = {kind: way(steps) for kind, way in ways.items()}  # also warms up
        for _ in range(ROUNDS):
            for kind, way in ways.items():
                begin = time.process_time()
                way(steps)
                seconds[kind].append((time.process_time() - begin) / steps)
    base = statistics.median(seconds["library"])
    for kind in ways:
        middle = statistics.median(seconds[kind])
        gap = float(np.abs(ends[kind] - ends["library"]).max() / np.abs(ends["library"]).max())
        rows.append({"kind": kind, "ms": 1e3 * middle, "speed": base / middle, "bytes": sizes[kind], "difference": gap})
    return {"benchmark": "export", "version": __version__, "hardware": hardware("cpu"), "scenario": opened.case.name,
            "model": opened.name, "nodes": problem.mesh.n_nodes, "steps": steps, "rows": rows, "not_run": reasons}


def _compiled(opened: Simulator, folder: Path, kind: str, u: torch.Tensor, f: torch.Tensor) -> tuple[Callable[[int], np.ndarray], int]:
    compiler = find_compiler()
    if compiler is None:
        raise InputError("there is no C compiler")
    made = written(opened, base_problem(opened.case, "cpu"), "step")
    c = Compiled(made, folder, compiler, "float" if "float" in kind else "double")

    def way(count: int) -> np.ndarray:
        c.function("restart")(c.model)
        state = c.array("state", u.numel())
        state[:] = u.numpy().ravel()
        c.array("source", u.numel())[:] = f.numpy().ravel()
        for _ in range(count):
            c.step()
        return state.astype(np.float64)

    return way, len(made.source)


def _onnx(opened: Simulator, folder: Path, kind: str, u: torch.Tensor, f: torch.Tensor) -> tuple[Callable[[int], np.ndarray], int]:
    made = export(opened, folder / "step.onnx", batch=1)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    step = onnxruntime.InferenceSession(str(made.program), options, providers=["CPUExecutionProvider"])

    def way(count: int) -> np.ndarray:
        v, source = u.numpy(), f.numpy()
        for _ in range(count):
            (v,) = step.run(None, {"u": v, "source": source})
        return v.ravel()

    return way, made.record["bytes"]


def table(data: dict[str, Any]) -> str:
    lines = [f"## Exported steps of {data['scenario']} on {data['hardware']}", "",
             f"{data['nodes']:,} nodes, one core, one trajectory; medians of {ROUNDS} rounds in turn. Speed: steps per second "
             f"against the library. Difference: after {data['steps']} steps, relative to the largest value.", "",
             "| | ms a step | speed | file (MB) | difference |", "|---|---|---|---|---|"]
    for r in data["rows"]:
        size = "–" if r["bytes"] is None else f"{r['bytes'] / 1e6:.1f}"
        lines.append(f"| {r['kind']} | {r['ms']:.3g} | {r['speed']:.2f} | {size} | {r['difference']:.1e} |")
    return "\n".join([*lines, *(f"\nNot run: {reason}" for reason in data["not_run"])])
