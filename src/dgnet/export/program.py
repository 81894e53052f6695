"""One step as a program for other software: `torch.export` (.pt2) or ONNX (.onnx).

    step = torch.export.load("step.pt2").module();  u = step(u, f)            u, f [batch, nodes, fields], float32
    (u,) = onnxruntime.InferenceSession("step.onnx").run(None, {"u": u, "source": f})

The program is the same step in other words (`plain`), compared with the package's own step before it is written. Beside it: the
mesh as .vtu and a .json that says how to call it.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.export.pieces import refuse_changing, refuse_fast
from dgnet.export.plain import EdgeStart, EdgeStep, Step
from dgnet.export.record import Exported, agree, described, probe, reason, write_beside
from dgnet.files import write_bytes
from dgnet.models import Classical
from dgnet.models.dgnet import DGNet, PreparedDGNet
from dgnet.models.universal import Universal
from dgnet.problems import Lift, Problem, base_problem
from dgnet.training import Simulator

Tensor = torch.Tensor

OPSET = 18  # of ONNX: what runtimes know since 2023


@dataclass(frozen=True, eq=False)
class Traces:
    """Traced programs by name: `step`, and `start` where a state holds more than the nodes."""

    problem: Problem
    programs: dict[str, Any]
    batch: int | None  # the number of trajectories that they are tied to; None: any
    solver: str | None
    checks: dict[str, tuple[tuple[Tensor, ...], Tensor]]  # inputs and what the model makes of them


class Traced(nn.Module):
    """The step of any model."""

    def __init__(self, model: Any, state: Any) -> None:
        super().__init__()
        self.model, self.state = model, state

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        return self.state.step(u, source, 0.0, 0)


def export_program(run: Simulator, out: Path, batch: int | None = None) -> Exported:
    """Write OUT, OUT.vtu and OUT.json; with universal weights also OUT-start, which makes a state from values at the nodes.

    Any number of trajectories at once, unless `batch` fixes it (or the model can be traced for one number only).
    """
    made, onnx = traced(run, batch), out.suffix == ".onnx"
    files = {key: out if key == "step" else out.with_name(f"{out.stem}-{key}{out.suffix}") for key in made.programs}
    data = {key: (to_onnx if onnx else _saved)(program) for key, program in made.programs.items()}
    if onnx:
        for key, (inputs, expected) in made.checks.items():
            agree(_run_onnx(data[key], inputs, made.batch), expected, f"{key} in ONNX")
    more = "; after the nodes, a row for the memory of each edge" if "start" in files else ""
    record = described(run, made.problem, out) | {
        "start": files["start"].name if "start" in files else None, "torch": torch.__version__, "batch": made.batch,
        "dtype": "float32", "solver": made.solver, "bytes": sum(len(d) for d in data.values()),
        "inputs": {"u": "[batch, nodes, fields], the state at a time t; nodes in the order of the mesh file" + more,
                   "source": "[batch, nodes, fields], the source averaged over t .. t + dt, in u per time; zeros for none"},
        "output": "[batch, nodes, fields], the state at t + dt" + more, "call": _call_lines(files, onnx)}
    out.parent.mkdir(parents=True, exist_ok=True)
    for key, path in files.items():
        write_bytes(path, data[key])
    return write_beside(out, made.problem, {key: path for key, path in files.items() if key != "step"}, record)


def _call_lines(files: dict[str, Path], onnx: bool) -> list[str]:
    """How to use the files, as lines of Python."""
    lines = [f"import {'onnxruntime' if onnx else 'torch'}"]
    for key, when in (("start", "once, on the first values"), ("step", "as often as you like")):
        if key in files:
            name, source = files[key].name, key == "step"
            if onnx:
                inputs = "{'u': u, 'source': source}" if source else "{'u': u}"
                lines += [f"{key} = onnxruntime.InferenceSession({name!r})", f"(u,) = {key}.run(None, {inputs})  # {when}"]
            else:
                lines += [f"{key} = torch.export.load({name!r}).module()", f"u = {key}(u{', source' if source else ''})  # {when}"]
    return lines


def _saved(program: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():  # about constants that share memory; what is loaded again is compared by a test
        warnings.filterwarnings("ignore", message="No complete tensor found")
        torch.export.save(program, buffer)
    return buffer.getvalue()


def to_onnx(program: Any) -> bytes:
    """A traced program as an ONNX file, equal constants once. Inputs have the names of its arguments, the output is `next`."""
    try:
        import onnxruntime  # noqa: F401
        from onnx_ir import to_proto
        from onnx_ir.passes.common import DeduplicateInitializersPass
        from onnxscript import ir  # noqa: F401
    except ImportError as error:
        raise InputError("an ONNX file needs an extra: pip install 'dgnet[onnx]'") from error
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made: Any = torch.onnx.export(program, (), dynamo=True, opset_version=OPSET, output_names=["next"], verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        found = re.search(r"op='([\w.]+)'", f"{error} {error.__cause__}")
        raise InputError(f"ONNX: the step has an operation '{found[1] if found else reason(error)}' that has no counterpart there; "
                         ".pt2 can hold it") from error
    finally:
        log.setLevel(level)
    for value in (*made.model.graph.inputs, *made.model.graph.outputs):
        if not isinstance(value.shape[0], int):
            value.shape[0] = "batch"
    return to_proto(DeduplicateInitializersPass(size_limit=10**9)(made.model).model).SerializeToString()


def _run_onnx(data: bytes, inputs: tuple[Tensor, ...], batch: int | None) -> Tensor:
    """What onnxruntime makes of the inputs, in pieces where the file is tied to a batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names, size = [i.name for i in session.get_inputs()], batch or len(inputs[0])
    return torch.from_numpy(np.concatenate([session.run(None, {name: e[k:k + size].numpy() for name, e in zip(names, inputs)})[0]
                                            for k in range(0, len(inputs[0]), size)]))


def _refuse_several_steps(run: Simulator, state: Any) -> None:
    """A program holds one step, the same every time, of the solver alone."""
    if isinstance(state, PreparedDGNet) and state.instead is None:
        for what, there, files in (("a filter of its start", state.start, ".c and .fmu hold it"),
                                   ("early steps of their own kind", state.early, ".c and .fmu hold them"),
                                   ("a network of states in every step", state.corrections, "train without it")):
            if there:
                raise InputError(f"{run.name} cannot be exported as a program: it has {what}, and a program holds one step; "
                                 f"{files}")


def traced(run: Simulator, batch: int | None = None) -> Traces:
    """The step, and what makes a state of the start, as programs of torch that were compared with the model."""
    if batch is not None and batch < 1:
        raise InputError(f"the batch must be positive, got {batch}")
    case, model = run.case, run.model
    if isinstance(model, nn.Module):
        model.eval()
    if isinstance(model, DGNet) and model.config.plain:
        raise InputError(f"{run.name} cannot be exported: its scheme takes a source at both ends of a step, and its "
                         "networks are not those that a program is written for")
    if model.moments > 1:
        raise InputError(f"{model.name} cannot be exported: its steps are complex solves, and a program has real ones")
    problem = base_problem(case, "cpu")
    edged = isinstance(model, Universal) and model.degree == 1 and len(model.points(problem)) != problem.mesh.n_nodes
    if not edged and len(model.points(problem)) != problem.mesh.n_nodes:
        raise InputError(f"{model.name} has values at the middles of the edges, which a program does not hold")
    refuse_changing(problem, case)
    with torch.no_grad():
        state = model.prepare(problem, batch or 1)
        state.settle()
        _refuse_several_steps(run, state)
        solved = isinstance(model, Classical | Universal) or (isinstance(state, PreparedDGNet) and state.instead is None)
        solver = state.green if solved else None
        u, f = probe(model, problem, batch or 3)
        modules: dict[str, nn.Module] = {}
        checks: dict[str, tuple[tuple[Tensor, ...], Tensor]] = {}
        if edged:
            assert solver is not None  # `refuse_changing`
            lift, start = Lift.of(problem.mesh), u
            u = state.lift(start)
            checks["start"], modules["start"] = ((start,), u), EdgeStart(state.gathering, lift, problem.dtype)
            modules["step"] = EdgeStep(solver, state.gathering, lift)
        else:
            network = model.reaction_net if isinstance(model, DGNet) and model.config.reaction == "learned" else None
            modules["step"] = Traced(model, state) if solver is None else Step(solver, network)
        checks["step"] = (u, f), state.step(u, f, 0.0, 0)  # before tracing, which leaves its own tensors in caches
        if solver is not None:
            refuse_fast(solver, case)
        programs = {}
        for key in reversed(modules):
            programs[key], batch = _traced(modules[key], checks[key][0], batch, case.name)
            agree(_call(programs[key], checks[key][0], batch), checks[key][1], key)
    step = modules["step"]
    return Traces(problem, programs, batch, step.solve.label if isinstance(step, Step) else None, checks)


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
        raise InputError(f"the step of '{name}' cannot be traced by torch.export, a reaction or network in it does something other "
                         f"than tensor operations: {reason(error)}") from error


def _call(program: Any, inputs: tuple[Tensor, ...], batch: int | None) -> Tensor:
    """The program on all of the inputs, in pieces where it is tied to a batch."""
    step = program.module()
    if batch is None:
        return step(*inputs)
    return torch.cat([step(*(e[k:k + batch].contiguous() for e in inputs)) for k in range(0, len(inputs[0]), batch)])
