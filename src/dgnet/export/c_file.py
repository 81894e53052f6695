"""One step as a C file with its header: constants of the run, then the fixed text of `c/step.c`. C99, no dependency but libm.

The linear system is solved by a sparse factorisation, made when a model is created, or by the fixed Chebyshev iteration where
factors would be dear (many nodes in space). Before anything is written the file is compiled and compared with the library, if there
is a compiler.
"""

from __future__ import annotations

import ctypes
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import splu

from dgnet import __version__
from dgnet.errors import InputError
from dgnet.export.c_rates import number, rates_in_c
from dgnet.export.pieces import Pieces, refuse_changing, refuse_fast
from dgnet.export.record import Exported, agree, described, probe, write_beside
from dgnet.files import write_text
from dgnet.models import Classical, Model
from dgnet.models.dgnet import DGNet, MassChange
from dgnet.models.universal import Gathering, PreparedUniversal, Universal
from dgnet.operators import EdgeMatrix
from dgnet.problems import SINGLE, Condition, Lift, Problem, base_problem
from dgnet.stepping import Bounds, GreenSolver, bounds_of
from dgnet.training import Simulator

Tensor = torch.Tensor

TEXT = Path(__file__).parent / "c"
MEANINGS = {"held": "value", "flux": "flux", "exchange": "ambient"}  # of the number that a boundary is driven by
FLAGS = ("-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic")
TOLERANCE = 1e-9  # of the Chebyshev iteration
_ITERATIONS = 400  # at most
_TOUCHED = 0.6  # cost of an entry of the matrix in a product, against one of the factors, whose places jump
_STEPS = 3  # that are compared with the library


@dataclass(frozen=True)
class Boundary:
    """A value at a boundary that may be changed from step to step."""

    name: str
    value: float
    meaning: str


@dataclass(frozen=True, eq=False)
class CSource:
    """A written file."""

    name: str  # prefix of everything in it
    header_name: str  # of the file that it includes
    header: str
    source: str
    boundaries: tuple[Boundary, ...]
    solver: str
    double_only: bool  # single precision does not hold a step


def export_c(run: Simulator, out: Path) -> Exported:
    """Write OUT.c and OUT.h, OUT.vtu and OUT.json."""
    header = out.with_suffix(".h")
    if re.search(r'["\\\x00-\x1f\x7f]|\?\?', header.name):
        raise InputError(f"{out}: a C file cannot include a header of this name (leave out quotes, backslashes, ?? and control "
                         "characters)")
    problem = base_problem(run.case, "cpu")
    made = written(run, problem, identifier(out.stem), header.name)
    compiler = find_compiler()
    if compiler is not None:
        with tempfile.TemporaryDirectory() as place:
            compare(run, problem, made, Path(place), compiler)
    record = described(run, problem, out) | {
        "header": header.name, "prefix": made.name, "solver": made.solver, "precision": "double" if made.double_only else
        "double, or single with -DDGNET_REAL=float", "boundaries": {b.name: b.value for b in made.boundaries},
        "compared": compiler is not None, "bytes": len(made.source),
        "call": [f"cc {' '.join(FLAGS)} -c {shlex.quote(out.name)}", f"{made.name}_model *m = {made.name}_new();",
                 f"{made.name}_step(m);"]}
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, made.source)
    write_text(header, made.header)
    return write_beside(out, problem, {"header": header}, record)


def identifier(stem: str) -> str:
    """A name that C takes."""
    name = re.sub(r"\W", "_", stem, flags=re.ASCII)
    return name if re.match(r"[A-Za-z]", name) else f"step_{name}"


def find_compiler() -> str | None:
    return next((found for found in map(shutil.which, ("cc", "gcc", "clang")) if found is not None), None)


# ---------------------------------------------------------------------- text


@torch.no_grad()
def written(run: Simulator, problem: Problem, name: str, header: str = "") -> CSource:
    """The step of a run as C, not yet compared with anything; `name` begins all its names, its header is NAME.h unless said."""
    header = header or f"{name}.h"
    model, case = run.model, run.case
    refuse_changing(problem, case)
    changes, solvers, early, edges = _prepared(model, problem, run)
    made = [Pieces.of(solver) for solver in solvers]
    if edges is not None:
        made = [replace(m, source=edges.near * (1 / problem.dt)) for m in made]
    p, pattern = made[-1].problem, made[-1].system.pattern
    order, label, counts = _order(made, changes)
    new = np.empty(p.n, np.int64)
    new[order] = np.arange(p.n)
    row, col = pattern.row.long().numpy(), pattern.col.long().numpy()
    slots = np.lexsort((new[col], new[row]))
    starts = np.concatenate([[0], np.cumsum(np.bincount(new[row], minlength=p.n))])
    boundaries, loads = _boundaries(model, problem, p)
    C = _Constants(slots)
    C.enum(NODES=p.mesh.n_nodes, UNKNOWNS=p.n, FIELDS=p.n_fields, DIM=p.mesh.dim, ENTRIES=len(col), CONDITIONS=len(boundaries),
           PIVOT=int(new[made[-1].pivot]), EARLY_STEPS=early)
    C.define(EDGES=0 if edges is None else len(edges.keep))
    groups = max(m.system.values.shape[1] for m in made)
    fixed = _fixed_by(p, case.conditions, order)
    C.define(RATES=len(made[-1].gather), STAGES=len(made), CHANGES=len(changes), GROUPS=groups, FIXED=0 if fixed is None else
             len(fixed), SYMMETRIC=int(all(m.symmetric for m in made)), DIRECT=int(label == "direct"))
    C.integers("row_start", starts)
    C.integers("column", new[col[slots]])
    C.integers("owner", p.owner.numpy()[order] if p.periodic else order)
    C.integers("unknown", new[p.dof.numpy()])
    C.integers("fixed_by", np.array([-1]) if fixed is None else fixed, "short")
    C.reals("points", torch.from_numpy(np.array(model.points(problem))))
    C.reals("offset", torch.tensor(case.offsets, dtype=torch.float64))
    if edges is not None:
        C.edges(edges, Lift.of(p.mesh), order)
    at, weight = [], []
    for load in loads:
        moved = load.T[:, torch.from_numpy(order)].flatten()
        at.append(torch.nonzero(moved).ravel().numpy())
        weight.append(moved[at[-1]])
    C.integers("load_start", np.cumsum([0, *(len(a) for a in at)]))
    C.integers("load_at", np.concatenate([*at, [0]]))
    C.reals("load_weight", torch.cat([*weight, torch.zeros(1)]))
    C.reals("boundary_value", torch.tensor([*(b.value for b in boundaries), 0.0], dtype=torch.float64))
    names = ", ".join([*(f'"{b.name}"' for b in boundaries), '""'])
    C.lines.append(f"static const char *const boundary_name[] = {{{names}}};")
    if made[-1].gather:
        mean, std, _ = model.typical()
        states = (mean + std * torch.randn(1, 8, p.n_fields, generator=torch.Generator().manual_seed(0))).to(p.dtype)
        C.lines.append(rates_in_c(made[-1].rates, states, case.name))
    stages = C.stages(made, changes, order, counts, early)
    double_only = p.stiffness_number > SINGLE or (label != "direct" and any(_reach(m.bounds) > 1e-6 for m in made))
    fields = header_fields(run, name, boundaries)
    guard = [f"typedef char single_precision_does_not_hold_this_step[sizeof({name}_real) >= sizeof(double) ? 1 : -1];"]
    includes = [f'#include "{header}"', "", "#include <math.h>", "#include <stdlib.h>", "#include <string.h>", "",
                f"typedef {name}_real real;", *(guard if double_only else [])]
    head = f"/* {fields['title']}: one step, written by dgnet {__version__}. {_comment(header)} says how to use it. */"
    body = filled((TEXT / "step.c").read_text(), fields | {"stages": stages})
    source = "\n".join([head, *includes, "", *C.lines, "", body])
    return CSource(name, header, filled((TEXT / "step.h").read_text(), fields), source, boundaries,
                   label if label == "direct" else f"chebyshev({counts[0]})", double_only)


def _prepared(model: Model[Any], problem: Problem,
              run: Simulator) -> tuple[dict[str, MassChange], list[GreenSolver], int, Gathering | None]:
    """What the model made of the problem: changes of the mass, a solver for each stage, number of early steps, the edges' part."""
    if isinstance(model, Universal) and model.degree == 1:
        prepared = model.prepare(problem)
        assert isinstance(prepared, PreparedUniversal)
        assert isinstance(prepared.solver, GreenSolver)  # `refuse_changing`
        return {}, [prepared.solver], 0, prepared.gathering
    if isinstance(model, Classical) and model.degree == 1 and model.moments == 1:
        solver = model.prepare(problem).green
        assert solver is not None  # `refuse_changing`
        return {}, [solver], 0, None
    if not isinstance(model, DGNet):
        raise InputError(f"{model.name} cannot be written as C: it is not a step of the linear solver with a reaction; .pt2 and "
                         ".onnx hold learned models of any kind")
    ready = model.eval().prepare(problem)
    if model.config.plain or ready.instead is not None or ready.corrections:
        raise InputError(f"{run.name} cannot be written as C: a network of states acts in every step; .pt2 and .onnx "
                         "hold it")
    if ready.early is None:
        return ready.changes(), [ready.solver], 0, None
    return ready.changes(), [ready.early.solver, ready.solver], ready.early.steps, None


def _order(made: Sequence[Pieces], changes: dict[str, MassChange]) -> tuple[np.ndarray, str, list[int]]:
    """New numbers of the unknowns, the cheaper solver, and for the iteration how often each stage and change needs it."""
    last = made[-1]
    A = EdgeMatrix(last.system.pattern, last.system.values.reshape(-1, last.system.pattern.nnz)[:1]).to_scipy().tocsc()
    factor = splu(A.astype(np.float64), permc_spec="MMD_AT_PLUS_A", options=dict(SymmetricMode=True), diag_pivot_thresh=0.0)
    counts = [m.bounds.iterations(TOLERANCE) for m in made] + [_mass_bounds(c).iterations(TOLERANCE) for c in changes.values()]
    if max(counts) > _ITERATIONS or 2 * factor.L.nnz <= _TOUCHED * max(counts) * A.nnz:
        return np.argsort(factor.perm_c), "direct", counts  # column j of A is column perm_c[j] of the factors
    return np.arange(A.shape[0]), "chebyshev", counts


def _mass_bounds(c: MassChange) -> Bounds:
    return bounds_of(c.mass, c.mass, c.mass_low, symmetric=True)


def _reach(bounds: Bounds) -> float:
    return float(torch.finfo(torch.float32).eps) * bounds.high / max(bounds.low, 1e-300)


def _boundaries(model: Model[Any], problem: Problem, p: Problem) -> tuple[tuple[Boundary, ...], list[Tensor]]:
    """Values at boundaries, and for each the load [n, F] of one unit of it during a step."""
    found, loads, taken = [], [], set[str]()
    for c in p.conditions:
        if c.role == "periodic":
            continue
        assert not callable(c.drive)  # `refuse_changing`
        meaning = MEANINGS[c.role]
        base = re.sub(r'[\x00-\x1f"\\?]', "_", "_".join([c.boundary, meaning, *([c.field] if c.field else [])]))
        name = base if base not in taken else f"{base}_{len(taken)}"
        taken.add(name)
        found.append(Boundary(name, float(c.drive), f"{meaning} on '{c.boundary}'"))
        load = None
        if c.role != "held":
            units = [other.with_drive(1.0 if other is c else 0.0) for other in p.conditions]
            one = Problem(problem.mesh, problem.pde, units, problem.dt, problem.consistent, problem.advection_form,
                                 problem.dtype)
            solver = model.prepare(one).green
            load = None if solver is None else solver.operators.load(0.0)
        loads.append(torch.zeros(p.n, p.n_fields) if load is None else p.dt * load.expand(p.n, p.n_fields))
    return tuple(found), loads


def _fixed_by(p: Problem, conditions: Sequence[Condition], order: np.ndarray) -> np.ndarray | None:
    """Which condition holds an unknown [f, n], -1 for none; later ones win, as in `Problem.fixed_values`."""
    if p.fixed is None:
        return None
    by = np.full((p.n_fields, p.n), -1)
    for k, c in enumerate(c for c in conditions if c.role != "periodic"):
        if c.role == "held":
            rows = slice(None) if c.field is None else p.pde.fields.index(c.field)
            by[rows, p.geometry.dof[p.geometry.nodes_on(c.boundary)]] = k
    return by[:1, order] if len(p.fixed) == 1 and bool((by == by[:1]).all()) else by[:, order]


def header_fields(run: Simulator, name: str, boundaries: Sequence[Boundary]) -> dict[str, str]:
    """What the texts of `c` leave open."""
    case, units = run.case, run.case.units
    rows = "".join(f"\n        {k} {_comment(f'{b.name}: {b.meaning}')}, {b.value:g} unless changed"
                   for k, b in enumerate(boundaries))
    unit = units.in_time(case.dt).removeprefix(f"{case.dt:g}")
    return {"title": _comment(case.title), "name": name, "NAME": name.upper(), "dt": repr(case.dt), "unit": _comment(unit),
            "nodes": str(case.mesh.n_nodes), "fields": str(len(case.pde.fields)), "dim": str(case.mesh.dim),
            "field_names": _comment(", ".join(case.pde.fields)), "conditions": str(len(boundaries)), "boundary_list": rows,
            "version": __version__, "offsets": ", ".join(f"{o:g}" for o in case.offsets),
            "source_unit": "power per volume" if case.pde.weighted else "change of the field per time"}


def _comment(text: str) -> str:
    """Words of a user for a comment, which they must not end."""
    return re.sub(r"\s+", " ", text).replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?")


def filled(text: str, fields: dict[str, str]) -> str:
    """The text with @name@ replaced."""
    return re.sub(r"@(\w+)@", lambda found: fields[found[1]], text)


class _Constants:
    """Arrays of a C file; matrices in the new order of the unknowns, equal ones once."""

    def __init__(self, slots: np.ndarray) -> None:
        self.slots = torch.from_numpy(slots)
        self.lines: list[str] = []
        self.matrices: list[tuple[Tensor, str]] = []

    def enum(self, **values: int) -> None:
        self.lines.append(f"enum {{{', '.join(f'{key} = {value}' for key, value in values.items())}}};")

    def define(self, **values: int) -> None:
        self.lines += [f"#define {key} {value}" for key, value in values.items()]

    def integers(self, name: str, values: np.ndarray, kind: str = "int") -> None:
        self.lines.append(f"static const {kind} {name}[{values.size}] = {{{_lines([str(v) for v in values.ravel().tolist()])}}};")

    def reals(self, name: str, values: Tensor) -> None:
        array = values.detach().numpy().ravel()
        text = [str(v) for v in array] if array.dtype == np.float32 else [number(v) for v in array.tolist()]
        self.lines.append(f"static const real {name}[{array.size}] = {{{_lines(text)}}};")

    def edges(self, g: Gathering, lift: Lift, order: np.ndarray) -> None:
        """What nodes gather of the edges around them, rows in the new order; how middles follow from nodes."""
        crow = g.places.crow.numpy()
        counts = np.diff(crow)[order]
        start = np.concatenate([[0], np.cumsum(counts)])
        slots = np.repeat(crow[order] - start[:-1], counts) + np.arange(start[-1])
        self.integers("around_start", start)
        self.integers("around", g.places.col.numpy()[slots])
        self.reals("around_middle", g.middle[slots])
        self.reals("around_memory", g.memory[slots])
        self.integers("edge_end", torch.stack([g.first, g.second], 1).numpy())
        self.reals("edge_keep", g.keep)
        self.reals("edge_gain", g.gain)
        used = lift.weight != 0
        self.integers("fit_start", np.concatenate([[0], np.cumsum(used.sum(1).numpy())]))
        self.integers("fit_node", lift.index[used].numpy())
        self.reals("fit_weight", lift.weight[used])

    def matrix(self, A: EdgeMatrix | None) -> str:
        if A is None:
            return "{NULL, 0}"
        values = A.values.detach().reshape(-1, A.pattern.nnz)[:, self.slots]
        own = int(len(values) > 1)
        for kept, name in self.matrices:
            if torch.equal(kept, values):
                return f"{{{name}, {own}}}"
        name = f"matrix_{len(self.matrices)}"
        self.matrices.append((values, name))
        self.reals(name, values)
        return f"{{{name}, {own}}}"

    def coefficients(self, bounds: Bounds, count: int) -> tuple[str, int]:
        if not count:
            return "NULL", 0
        name = f"coefficient_{len(self.lines)}"
        pairs = ", ".join(f"{{{a!r}, {b!r}}}" for a, b in bounds.coefficients(count))
        self.lines.append(f"static const real {name}[{count}][2] = {{{pairs}}};")
        return name, count

    def stages(self, made: Sequence[Pieces], changes: dict[str, MassChange], order: np.ndarray, counts: Sequence[int],
               early: int) -> str:
        """Tables of the stages and changes; their arrays are added to the lines."""
        direct = "#define DIRECT 1" in self.lines
        rows = []
        for k, m in enumerate(made):
            sums = "NULL"
            if m.sums is not None:
                sums = f"sums_{k}"
                self.reals(sums, m.sums.expand(-1, m.problem.n_fields).T[:, torch.from_numpy(order)].contiguous())
            gather = ", ".join([self.matrix(A) for A in m.gather] + ["{NULL, 0}"])
            name, count = self.coefficients(m.bounds, 0 if direct else counts[k])
            rows.append(f"    {{{self.matrix(m.explicit)}, {self.matrix(m.source)}, {self.matrix(m.full)}, {{{gather}}}, {sums}, "
                        f"{name}, {count}}}")
        text = ["static const stage stages[STAGES] = {", ",\n".join(rows), "};"]
        if changes:
            rows, when = [], []
            for k, (key, c) in enumerate(changes.items()):
                M = EdgeMatrix(c.mass.pattern, c.mass.values[None])
                name, count = self.coefficients(_mass_bounds(c), 0 if direct else counts[len(made) + k])
                rows.append(f"    {{{self.matrix(M)}, {self.matrix(c.right - M)}, {name}, {count}}}")
                when.append(0 if key == "start" else early)
            text += ["static const change changes[CHANGES] = {", ",\n".join(rows), "};",
                     f"static const int change_at[CHANGES] = {{{', '.join(map(str, when))}}};"]
        return "\n".join(text)


def _lines(words: Sequence[str]) -> str:
    return "\n" + ",\n".join(", ".join(words[k:k + 12]) for k in range(0, len(words), 12))


# ---------------------------------------------------------------------- compared with the library


class Compiled:
    """The file as a library of this process, for comparisons: `step` on arrays."""

    def __init__(self, made: CSource, folder: Path, compiler: str, real: str = "double", flags: Sequence[str] = FLAGS) -> None:
        source, library = folder / f"{made.name}.c", folder / f"{made.name}-{real}.so"
        source.write_text(made.source)
        (folder / made.header_name).write_text(made.header)
        command = [compiler, *flags, "-shared", "-fPIC", f"-DDGNET_REAL={real}", "-o", str(library), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise InputError(f"the C file does not compile: {done.stderr.strip().splitlines()[0] if done.stderr else compiler}")
        self.messages = done.stderr
        self.kind: Any = ctypes.c_float if real == "float" else ctypes.c_double
        self.library, self.name = ctypes.CDLL(str(library)), made.name
        for call in ("new", "state", "source"):
            function = self.function(call)
            function.restype = ctypes.c_void_p if call == "new" else ctypes.POINTER(self.kind)
            function.argtypes = [] if call == "new" else [ctypes.c_void_p]
        for call in ("step", "free", "restart"):
            self.function(call).argtypes = [ctypes.c_void_p]
        self.function("set_boundary").argtypes = [ctypes.c_void_p, ctypes.c_int, self.kind]
        self.model = self.function("new")()
        if not self.model:
            raise InputError("the C file cannot factorise the matrix of the step; a smaller time step may help")

    def function(self, call: str) -> Any:
        return getattr(self.library, f"{self.name}_{call}")

    def array(self, which: str, size: int) -> np.ndarray:
        """State or source as the model holds it [nodes * fields]."""
        return np.ctypeslib.as_array(self.function(which)(self.model), (size,))

    def step(self) -> None:
        if self.function("step")(self.model):
            raise InputError("the C file gives values that are not finite")

    def close(self) -> None:
        self.function("free")(self.model)


@torch.no_grad()
def compare(run: Simulator, problem: Problem, made: CSource, folder: Path, compiler: str) -> None:
    """Step the compiled file and the model side by side, in all precisions that the file allows."""
    model = run.model
    state = model.prepare(problem)
    state.settle()
    u, f = probe(model, problem, 1)
    u = u if problem.fixed is None else problem.expand(torch.where(problem.fixed.T, _walls(problem), problem.restrict(u)))
    expected = state.begin(u)
    for k in range(_STEPS):
        expected = state.step(expected, f, k * problem.dt, k)
    expected, solver = state.read(expected), state.green
    if solver is not None:
        refuse_fast(solver, run.case)
    for real in ("double",) if made.double_only else ("double", "float"):
        c = Compiled(made, folder, compiler, real)
        c.array("state", u.numel())[:] = u.numpy().ravel()
        c.array("source", u.numel())[:] = f.numpy().ravel()
        for _ in range(_STEPS):
            c.step()
        found = torch.from_numpy(c.array("state", u.numel()).astype(np.float64)).view(u.shape)
        c.close()
        agree(found, expected, f"step in C ({real})")


def _walls(problem: Problem) -> Tensor:
    values = problem.fixed_values(0.0)
    assert values is not None
    return values
