"""One step as a program for other software: `torch.export` (.pt2) or ONNX (.onnx).

    step = torch.export.load("step.pt2").module();  u = step(u, f)            u, f [batch, nodes, fields], float32
    (u,) = onnxruntime.InferenceSession("step.onnx").run(None, {"u": u, "source": f})

The program is the same step in other words (`plain`), compared with the package's own step before it is written. Beside it: the
mesh as .vtu and a .json that says how to call it.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.export.edge_step import EdgeStart, EdgeStep
from dgnet.export.pieces import refuse_changing, refuse_fast
from dgnet.export.plain import Filter, Step, Traced
from dgnet.export.record import Exported, agree, described, probe
from dgnet.files import write_bytes, write_json
from dgnet.mesh.io import save
from dgnet.models import Classical
from dgnet.models.dgnet import DGNet
from dgnet.models.universal import Universal
from dgnet.problems import Problem
from dgnet.problems.case import base_problem
from dgnet.problems.lift import Lift
from dgnet.training.simulator import Simulator

Tensor = torch.Tensor

ORDER = ("start", "early", "switch")
_ADVICE = {"start": "once, on the first state", "switch": "once, after them"}


@dataclass(frozen=True, eq=False)
class Traces:
    """The step as traced programs, and those of the first steps where they differ."""

    problem: Problem
    step: Any
    extra: dict[str, Any]  # of ORDER
    batch: int | None  # the number of trajectories that they are tied to; None: any
    solver: str | None
    early: int  # how many first steps have operators of their own
    checks: dict[str, tuple[tuple[Tensor, ...], Tensor]]  # inputs and what the model makes of them
    more: str = ""  # what follows the nodes in a state


def export_program(run: Simulator, out: Path, batch: int | None = None) -> Exported:
    """Write OUT, OUT.vtu and OUT.json; with a learned filter of the start also OUT-start, and where the first steps have
    operators of their own OUT-early and OUT-switch.

    Any number of trajectories at once, unless `batch` fixes it (or the model can be traced for one number only).
    """
    made = traced(run, batch)
    onnx = out.suffix == ".onnx"
    files = {"step": out, **{key: out.with_name(f"{out.stem}-{key}{out.suffix}") for key in ORDER if key in made.extra}}
    programs = {"step": made.step, **made.extra}
    if onnx:
        from dgnet.export.onnx_graph import check_onnx, to_onnx

        data = {key: to_onnx(programs[key], made.batch is None) for key in files}
        for key in files:
            check_onnx(data[key], *made.checks[key], made.batch, what=key)
    else:
        data = {key: _saved(programs[key]) for key in files}
    record = described(run, made.problem, out) | {key: files[key].name if key in files else None for key in ORDER} | {
        "early_steps": made.early, "torch": torch.__version__, "batch": made.batch, "dtype": "float32", "solver": made.solver,
        "bytes": sum(len(d) for d in data.values()),
        "inputs": {"u": "[batch, nodes, fields], the state at a time t; nodes in the order of the mesh file" + made.more,
                   "source": "[batch, nodes, fields], the source averaged over t .. t + dt, in u per time; zeros for none"},
        "output": "[batch, nodes, fields], the state at t + dt" + made.more, "call": _call_lines(files, made.early, onnx)}
    out.parent.mkdir(parents=True, exist_ok=True)
    for key, path in files.items():
        write_bytes(path, data[key])
    mesh, about = out.with_suffix(".vtu"), out.with_suffix(".json")
    save(made.problem.mesh, mesh)
    write_json(about, record)
    return Exported(out, mesh, about, {key: path for key, path in files.items() if key != "step"}, record)


def _call_lines(files: dict[str, Path], early: int, onnx: bool) -> list[str]:
    """How to use the files, as lines of Python."""
    advice = _ADVICE | {"early": f"the first {early} steps", "step": "as often as you like"}
    order = [key for key in ("start", "early", "switch", "step") if key in files]
    both = {"early", "step"}
    if onnx:
        return ["import onnxruntime", *(f"{key} = onnxruntime.InferenceSession({files[key].name!r})" for key in order),
                *(f"(u,) = {key}.run(None, {{'u': u{', ' + repr('source') + ': source' if key in both else ''}}})  # {advice[key]}"
                  for key in order)]
    return ["import torch", *(f"{key} = torch.export.load({files[key].name!r}).module()" for key in order),
            *(f"u = {key}(u{', source' if key in both else ''})  # {advice[key]}" for key in order)]


def _saved(program: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # about constants that share memory; what is loaded again is compared by a test
        warnings.filterwarnings("ignore", message="No complete tensor found")
        torch.export.save(program, buffer)
    return buffer.getvalue()


def traced(run: Simulator, batch: int | None = None) -> Traces:
    """The step and what the first ones need besides, as programs of torch that were compared with the model."""
    if batch is not None and batch < 1:
        raise InputError(f"the batch must be positive, got {batch}")
    case, model = run.case, run.model
    if isinstance(model, nn.Module):
        model.eval()
    if isinstance(model, DGNet) and model.config.plain:
        raise InputError(f"{run.name} cannot be exported: its scheme takes a source at both ends of a step, and its "
                         "networks are not those that a program is written for")
    problem = base_problem(case, "cpu")
    edged = isinstance(model, Universal) and len(model.points(problem)) != problem.mesh.n_nodes
    if not edged and len(model.points(problem)) != problem.mesh.n_nodes:
        raise InputError(f"{model.name} has values at the middles of the edges, which a program does not hold")
    refuse_changing(problem, case)
    with torch.no_grad():
        state = model.prepare(problem, batch or 1)
        solved = model if isinstance(model, DGNet) and model.config.green else None
        solver = state.green if solved is not None or isinstance(model, Classical | Universal) else None
        u, f = probe(model, problem, batch or 3)
        module: nn.Module
        if edged:
            assert solver is not None
            lift = Lift.of(problem.mesh)
            module, start, u = EdgeStep(solver, state.gathering, lift), u, state.lift(u)
        else:
            module = Traced(model, state) if solver is None else Step(solver, solved, None if solved is None else state.graph)
        # before tracing, which leaves its own tensors in caches
        checks: dict[str, tuple[tuple[Tensor, ...], Tensor]] = {"step": ((u, f), state.step(u, f, 0.0, model.first_steps))}
        if solver is not None:
            refuse_fast(solver, case)
        program, fixed = _traced(module, (u, f), batch, case.name)
        extra = {}
        if edged:
            checks["start"] = (start,), u
            extra["start"], _ = _traced(EdgeStart(state.gathering, lift, problem.dtype), (start,), fixed, case.name)
        for key, change in () if solved is None else state.changes().items():
            checks[key] = (u,), u + change(u)
            extra[key], _ = _traced(Filter(change), (u,), fixed, case.name)
        if solved is not None and state.early is not None:
            checks["early"] = (u, f), state.step(u, f, 0.0, 0)
            extra["early"], _ = _traced(Step(state.early.solver, solved, state.graph), (u, f), fixed, case.name)
        for key, (inputs, expected) in checks.items():
            agree(_call(program if key == "step" else extra[key], inputs, fixed), expected, key)
    return Traces(problem, program, extra, fixed, module.solve.label if isinstance(module, Step) else None,
                  solved.config.early_steps if solved is not None and "early" in extra else 0, checks,
                  "; after the nodes, a row for the memory of each edge" if edged else "")


def _traced(module: nn.Module, example: tuple[Tensor, ...], batch: int | None, name: str) -> tuple[Any, int | None]:
    """The program, and the batch it is tied to (None: any)."""
    try:
        if batch is None:
            try:
                size = torch.export.Dim("batch")
                return torch.export.export(module, example, dynamic_shapes=tuple({0: size} for _ in example)), None
            except Exception:
                batch = 1
        return torch.export.export(module, tuple(e[:batch].contiguous() for e in example)), batch
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise InputError(f"the step of '{name}' cannot be traced by torch.export, a reaction or network in it does something other "
                         f"than tensor operations: {reason}") from error


def _call(program: Any, inputs: tuple[Tensor, ...], batch: int | None) -> Tensor:
    """The program on all of the inputs, in pieces where it is tied to a batch."""
    step = program.module()
    if batch is None:
        return step(*inputs)
    return torch.cat([step(*(e[k:k + batch].contiguous() for e in inputs)) for k in range(0, len(inputs[0]), batch)])
