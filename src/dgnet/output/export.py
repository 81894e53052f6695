"""One step of a trained run as a `torch.export` program, for use without this package.

    step = torch.export.load("step.pt2").module();  u = step(u, f)            u, f [batch, nodes, fields], float32

The program is the same step in other words: matrices as constants in a padded row layout (products are gathers), the solve as the
fixed number of Chebyshev iterations that its proven bounds ask for (the explicit inverse where that would be too many), reaction by
predictor-corrector, Dirichlet rows, residual network. Baselines are traced as they are. It is compared with the package's own step
before it is written. Beside it: the mesh as .vtu and a .json that says how to call it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dgnet import __version__
from dgnet.errors import InputError
from dgnet.evaluation.trust import training_range
from dgnet.files import write_bytes, write_json
from dgnet.green import GreenSolver, Operators
from dgnet.green.bounds import Bounds, bounds_of
from dgnet.green.solver import StepOperator
from dgnet.mesh.io import save
from dgnet.models.dgnet import DGNet, MassChange, PreparedDGNet
from dgnet.models.gnn import MeshGraph, StateNet
from dgnet.operators import EdgeMatrix, Pattern
from dgnet.problems import Discretisation
from dgnet.problems.case import base_problem
from dgnet.training.run import Run

Tensor = torch.Tensor

TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-12}
CLOSE = 1e-5
"""Largest difference from the package's own step, relative to the largest value."""
_UNROLLED = 400  # iterations of a solve that a program may hold
_DENSE = 4000  # degrees of freedom up to which the explicit inverse takes their place


# ---------------------------------------------------------------------- pieces in plain operations


class Product(nn.Module):
    """A u for a matrix with values [1, f, nnz] and u [B, n, F]: gathered over the padded rows of A."""

    columns: Tensor
    values: Tensor

    def __init__(self, A: EdgeMatrix, dtype: torch.dtype) -> None:
        super().__init__()
        columns, slots = A.pattern.ell
        flat = A.values.detach().reshape(-1, A.pattern.nnz).to(dtype)
        padded = torch.cat([flat, flat.new_zeros(len(flat), 1)], 1)
        self.register_buffer("columns", columns.long().ravel())
        self.register_buffer("values", padded[:, slots.ravel()].view(-1, *slots.shape).permute(1, 2, 0).contiguous())  # [w, n, f]

    def forward(self, u: Tensor) -> Tensor:
        width, n = self.values.shape[:2]
        near = u.index_select(1, self.columns).reshape(u.shape[0], width, n, u.shape[2])
        return (near * self.values).sum(1)


class Solve(nn.Module):
    """A^-1 b [B, n, F] by a fixed Chebyshev iteration, or by the explicit inverse."""

    def __init__(self, A: EdgeMatrix, bounds: Bounds, dtype: torch.dtype) -> None:
        super().__init__()
        values = A.values.detach().reshape(-1, A.pattern.nnz).double()
        reach = torch.finfo(dtype).eps * bounds.high / max(bounds.low, 1e-300) if bounds.usable else 1.0
        self.inner = torch.float64 if reach > 1e-6 else dtype  # a stiff matrix needs more digits than single precision has
        tolerance = TOLERANCE[self.inner] if self.inner == dtype else 1e-9
        count = bounds.iterations(tolerance)
        self.coefficients: list[tuple[float, float]] = []
        if count <= _UNROLLED:
            self.coefficients = bounds.coefficients(count)
            self.product = Product(EdgeMatrix(A.pattern, values), self.inner)
            self.register_buffer("weight", (1 / values[:, A.pattern.diagonal]).T.to(self.inner).contiguous())  # [n, f]
        elif A.pattern.n <= _DENSE:
            self.register_buffer("inverse", torch.linalg.inv(_dense(A.pattern, values)).to(dtype))  # [f, n, n]
        else:
            raise InputError(f"the step is too stiff to export: {count:,} iterations on {A.pattern.n:,} nodes; a smaller time step "
                             "needs fewer")
        self.label = f"chebyshev({count})" if self.coefficients else "dense inverse"

    weight: Tensor
    inverse: Tensor

    def forward(self, b: Tensor) -> Tensor:
        if not self.coefficients:
            return torch.einsum("fnm,bmf->bnf", self.inverse.expand(b.shape[2], -1, -1), b)
        right = b.to(self.inner)
        x, r, p = torch.zeros_like(right), right, torch.zeros_like(right)
        for alpha, beta in self.coefficients:
            p = beta * p + self.weight * r
            x = x + alpha * p
            r = right - self.product(x)
        return x.to(b.dtype)


def _dense(pattern: Pattern, values: Tensor) -> Tensor:
    full = values.new_zeros(len(values), pattern.n, pattern.n)
    full[:, pattern.row.long(), pattern.col.long()] = values
    return full


class Residual(nn.Module):
    """`StateNet` in plain operations: x [B, N, C] -> [B, N, F]."""

    edge: Tensor
    place: Tensor
    receiver: Tensor
    sender: Tensor
    degree: Tensor

    def __init__(self, net: StateNet, graph: MeshGraph) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("edge", net.edge(graph.edge).detach())
        self.register_buffer("place", graph.place.clone())
        self.register_buffer("receiver", graph.to.clone())
        self.register_buffer("sender", graph.frm.clone())
        ones = torch.ones(len(graph.to), dtype=graph.node.dtype)
        self.register_buffer("degree", torch.zeros(len(graph.node), dtype=graph.node.dtype).index_add(0, graph.to, ones))

    def forward(self, x: Tensor) -> Tensor:
        h = self.net.node(torch.cat([x, self.place.expand(x.shape[0], -1, -1)], -1))
        scale = (1 / self.degree.sqrt())[:, None]
        p = self.net.process
        for receive, send, edge, message, update in zip(p.receive, p.send, p.edge, p.message, p.update):
            m = functional.silu(receive(h).index_select(1, self.receiver) + send(h).index_select(1, self.sender) + edge(self.edge))
            total = torch.zeros_like(h).index_add(1, self.receiver, m) * scale
            outer: Any = list(message.children())[1]  # linear, so it may act on the sum
            total = functional.linear(total, outer.weight) + outer.bias * (scale * self.degree[:, None])
            h = h + update(torch.cat([h, total], -1))
        return self.net.decode(h)


class Step(nn.Module):
    """DGNet's step for one mesh, time step and set of conditions: u [B, N, F], f [B, N, F] -> u after dt."""

    def __init__(self, model: DGNet, state: PreparedDGNet, solver: GreenSolver) -> None:
        super().__init__()
        p, ops, c = solver.problem, solver.operators, model.config
        op = solver.operator()
        self.dt, self.periodic, dtype = p.dt, p.periodic, p.dtype
        self.keep("owner", p.owner if self.periodic else None)
        self.keep("dof", p.dof if self.periodic else None)
        self.explicit, self.source = Product(op.explicit, dtype), Product(ops.source, dtype)
        self.pivot, self.dtype = op.pivot, dtype
        self.keep("sums", None if op.sums is None else op.sums[0])
        self.solve = Solve(op.A, sharp_bounds(op, ops), dtype)
        load = ops.load(0.0)
        self.keep("load", None if load is None else (p.dt * load).detach())
        self.keep("fixed", None if p.fixed is None else p.fixed.T)
        self.keep("wall", p.fixed_values(0.0))
        self.full = None if p.fixed is None else Product(op.full, dtype)
        self.rates = ops.rates
        matrices = [] if ops.reaction is None else [ops.mass if ops.plain is None else ops.plain]
        matrices += [] if ops.excess is None else [ops.mass * -1.0]
        self.gather = nn.ModuleList([Product(A, dtype) for A in matrices])
        self.reaction_net = model.reaction_net if c.reaction == "learned" else None  # whose weights the reaction uses
        self.residual = Residual(model.residual_net, state.graph) if c.residual else None
        self.inputs: Callable[[Tensor, Tensor | None], Tensor] = model.scales.inputs
        self.keep("rate", model.rate)

    def keep(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, None if value is None else value.detach().clone(memory_format=torch.contiguous_format))

    owner: Tensor | None
    dof: Tensor | None
    load: Tensor | None
    fixed: Tensor | None
    wall: Tensor | None
    sums: Tensor | None
    rate: Tensor

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        inner, f = self.inward(u).to(self.dtype), self.inward(source).to(self.dtype)
        c = inner[:, self.pivot:self.pivot + 1]
        right = self.explicit(inner - c) + self.dt * self.source(f)
        if self.sums is not None:
            right = right + c * self.sums
        if self.load is not None:
            right = right + self.load
        if len(self.gather) == 0:
            new = self.advanced(inner, right)
        else:
            start = self.rates(inner)
            guess = self.advanced(inner, right + self.dt * self.gathered(start))
            mean = [0.5 * (r + after) for r, after in zip(start, self.rates(guess))]
            new = self.advanced(inner, right + self.dt * self.gathered(mean))
        new = self.outward(new).to(u.dtype)
        if self.residual is not None:
            new = new + self.dt * self.rate * torch.tanh(self.residual(self.inputs(new, source)))
            new = self.outward(self.imposed(self.inward(new)))
        return new

    def gathered(self, rates: list[Tensor]) -> Tensor:
        loads = [product(r) for product, r in zip(self.gather, rates)]
        return loads[0] if len(loads) == 1 else loads[0] + loads[1]

    def advanced(self, u: Tensor, right: Tensor) -> Tensor:
        """u plus the increment, which Dirichlet rows know beforehand."""
        if self.full is not None and self.fixed is not None and self.wall is not None:
            gap = torch.where(self.fixed, self.wall - u, 0.0)
            right = torch.where(self.fixed, gap, right - self.full(gap))
        return self.imposed(u + self.solve(right))

    def imposed(self, u: Tensor) -> Tensor:
        return u if self.fixed is None or self.wall is None else torch.where(self.fixed, self.wall.to(u.dtype), u)

    def inward(self, u: Tensor) -> Tensor:
        return u if self.owner is None else u.index_select(1, self.owner)

    def outward(self, u: Tensor) -> Tensor:
        return u if self.dof is None else u.index_select(1, self.dof)


def sharp_bounds(op: StepOperator, ops: Operators) -> Bounds:
    """Bounds of the step's matrix; without symmetry the ones that are proven, not the tight ones that need a check."""
    return op.bounds if ops.symmetric else op.measure_bounds()


class Filter(nn.Module):
    """What is done to a state once (`MassChange`): to the initial one, or between the early steps and the others."""

    def __init__(self, change: MassChange) -> None:
        super().__init__()
        p, M = change.problem, change.mass
        self.solve = Solve(M, bounds_of(M, M, change.mass_low, symmetric=True), p.dtype)
        self.right, self.dtype = Product(change.right - EdgeMatrix(M.pattern, M.values[None]), p.dtype), p.dtype
        self.register_buffer("owner", p.owner.clone() if p.periodic else None)
        self.register_buffer("dof", p.dof.clone() if p.periodic else None)

    owner: Tensor | None
    dof: Tensor | None

    def forward(self, u: Tensor) -> Tensor:
        inner = u if self.owner is None else u.index_select(1, self.owner)
        change = self.solve(self.right(inner.to(self.dtype))).to(u.dtype)
        return u + (change if self.dof is None else change.index_select(1, self.dof))


class Traced(nn.Module):
    """Any model's own step."""

    def __init__(self, model: Any, state: Any) -> None:
        super().__init__()
        self.model, self.state = model, state

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        return self.model.step(self.state, u, source, 0.0, self.model.first_steps)


# ---------------------------------------------------------------------- the command


@dataclass(frozen=True)
class Exported:
    """What was written."""

    program: Path
    mesh: Path
    about: Path
    extra: dict[str, Path]  # what the first steps need besides: start, early, switch
    record: dict[str, Any]

    @property
    def paths(self) -> list[Path]:
        return [self.program, *self.extra.values(), self.mesh, self.about]


def export(run: Run, out: Path, batch: int | None = None) -> Exported:
    """Write OUT.pt2, OUT.vtu and OUT.json; with a learned filter of the start also OUT-start.pt2, and where the first steps have
    operators of their own OUT-early.pt2 and OUT-switch.pt2.

    Any number of trajectories at once, unless `batch` fixes it (or the model can be traced for one number only).
    """
    if out.suffix != ".pt2":
        raise InputError(f"{out} must end in .pt2")
    if batch is not None and batch < 1:
        raise InputError(f"the batch must be positive, got {batch}")
    case, model = run.case, run.model
    if isinstance(model, DGNet) and model.config.plain:
        raise InputError(f"{run.settings.model} cannot be exported: its scheme takes a source at both ends of a step, and its "
                         "networks are not those that a program is written for")
    problem = base_problem(case, "cpu")
    if problem.time_dependent or problem.data_changes:
        what = "its flow" if case.given_flow else "a coefficient or boundary value"
        raise InputError(f"the step of '{case.name}' cannot be exported: {what} changes in time, and a program holds one step")
    with torch.no_grad():
        model.eval()
        state = model.prepare(problem, batch or 1)
        solved = model if isinstance(model, DGNet) and model.config.green else None
        module = Traced(model, state) if solved is None else Step(solved, state, state.solver)
        u, f = _probe(model, problem, batch or 3)
        expected = model.step(state, u, f, 0.0, model.first_steps)  # before tracing, which leaves its own tensors in caches
        program, fixed = _traced(module, (u, f), batch, case.name)
        _agree(_call(program, (u, f), fixed), expected, "step")
        programs = {}
        for key, change in () if solved is None else state.changes().items():
            programs[key], _ = _traced(Filter(change), (u,), fixed, case.name)
            _agree(_call(programs[key], (u,), fixed), u + change(u), f"filter '{key}'")
        if solved is not None and state.early is not None:
            programs["early"], _ = _traced(Step(solved, state, state.early.solver), (u, f), fixed, case.name)
            _agree(_call(programs["early"], (u, f), fixed), model.step(state, u, f, 0.0, 0), "early step")
    known = training_range(run)
    extra = {key: out.with_name(f"{out.stem}-{key}.pt2") for key in programs}
    mesh, about = out.with_suffix(".vtu"), out.with_suffix(".json")
    name = repr(out.name)
    record = {
        "program": out.name, "mesh": mesh.name, "scenario": case.name, "notes": list(run.notes),
        **{key: extra[key].name if key in extra else None for key in ("start", "early", "switch")},
        "early_steps": model.config.early_steps if "early" in extra else 0,
        "model": run.settings.model, "version": __version__, "torch": torch.__version__, "dt": case.dt,
        "fields": list(case.pde.fields), "offset": list(case.offsets), "nodes": problem.mesh.n_nodes,
        "batch": fixed, "dtype": "float32", "solver": module.solve.label if isinstance(module, Step) else None,
        "inputs": {"u": "[batch, nodes, fields], the state at a time t; nodes in the order of the mesh file",
                   "source": "[batch, nodes, fields], the source averaged over t .. t + dt, in u per time; zeros for none"},
        "output": "[batch, nodes, fields], the state at t + dt", "training_range": None if known is None else known.as_dict(),
        "call": ["import torch", f"step = torch.export.load({name}).module()",
                 *(f"{key} = torch.export.load({path.name!r}).module()" for key, path in extra.items()),
                 *(["u = start(u)  # once, on the first state"] if "start" in extra else []),
                 *([f"u = early(u, source)  # the first {model.config.early_steps} steps", "u = switch(u)  # once, after them"]
                   if "early" in extra else []),
                 "u = step(u, source)  # as often as you like"]}
    out.parent.mkdir(parents=True, exist_ok=True)
    for target, made in ((out, program), *((extra[key], programs[key]) for key in programs)):
        buffer = io.BytesIO()
        torch.export.save(made, buffer)
        write_bytes(target, buffer.getbuffer())
    save(problem.mesh, mesh)
    write_json(about, record)
    return Exported(out, mesh, about, extra, record)


def _probe(model: Any, problem: Discretisation, batch: int) -> tuple[Tensor, Tensor]:
    """States and sources of the size that the model was trained on."""
    g, shape = torch.Generator().manual_seed(0), (batch, problem.mesh.n_nodes, problem.n_fields)
    mean, std, size = model.typical()
    u = mean + std * torch.randn(shape, generator=g)
    return problem.expand(problem.restrict(u)), size * torch.randn(shape, generator=g)


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


def _agree(found: Tensor, expected: Tensor, what: str) -> None:
    gap = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    if not gap <= CLOSE:
        raise InputError(f"the exported {what} would differ from the model's own by {gap:.1e}; nothing was written")
