"""`dgnet bench peers`: 100 Crank-Nicolson heat steps by dgnet and by other programs, side by side on one thread.

Every program solves the same problem to the same tolerance: linear elements, consistent mass, a perturbed box, insulated, a source.
A run goes from the program's own mesh to the last state, set-up included, in a process that runs nothing else meanwhile; runs of
different programs take turns. The clock is processor time, so other work on the machine changes little. The last state is compared
with that of a direct solve in double precision (scikit-fem + SuperLU); one that is farther away than `LIMIT` is marked. Programs
that are not installed are rows that say so. `peers_run` is what the processes run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dgnet import __version__
from dgnet.bench import peers_run
from dgnet.bench.timing import hardware
from dgnet.errors import InputError, SolveError
from dgnet.green.backends import NAMES, TOLERANCE
from dgnet.mesh import box
from dgnet.progress import Report

SIZES: dict[str, tuple[int, ...]] = {"2D 10k": (99, 99), "2D 100k": (315, 315), "3D 50k": (36, 36, 36)}
QUICK: dict[str, tuple[int, ...]] = {"2D 1k": (31, 31), "3D 1k": (9, 9, 9)}
STIFFNESS = (0.5, 20.0)  # dt D / h^2
STEPS = 100
REPEATS = 5
PATIENCE, LONG = 3.0, 2.0  # a program that takes this many times as long as auto, and more seconds than this, runs once
LIMIT = {"float64": 1e-9, "float32": 1e-4}  # of the last state, relative; of a gradient a hundred times that
AUTO, REFERENCE, ASSEMBLY = "dgnet auto", "scikit-fem + SuperLU", "matrices"
COLUMNS: dict[str, tuple[str, ...]] = {
    AUTO: (AUTO,), "dgnet's own best": (AUTO, *(f"dgnet {name}" for name in NAMES)), REFERENCE: (REFERENCE,),
    "SciPy CG": ("SciPy CG",),
    "PETSc Cholesky": ("PETSc Cholesky",), "PETSc CG + ICC": ("PETSc CG + ICC",),
    "FEniCSx best": ("FEniCSx, Cholesky", "FEniCSx, CG + ICC"), "TensorMesh best": ("TensorMesh, LU", "TensorMesh, CG"),
    "torch-fem": ("torch-fem",),
}
"""Columns of the table, each the best of its programs."""
GRADIENTS = ("gradient: dgnet", "gradient: adjoint by hand", "gradient: TensorMesh", "gradient: torch-fem")
SYSTEM = ("PETSc Cholesky", "PETSc CG + ICC", "FEniCSx, Cholesky", "FEniCSx, CG + ICC")  # run by the system's Python
DOUBLE_ONLY = SYSTEM  # Debian builds PETSc in double precision
_MOST = {"dgnet dense": (4_000, 4_000), "torch-fem": (15_000, 15_000), "gradient: torch-fem": (15_000, 0),
         "gradient: TensorMesh": (15_000, 0), "TensorMesh, LU": (400_000, 15_000)}
"""Nodes in 2D and in 3D beyond which a run would take minutes."""


class Worker:
    """A process that runs programs one after the other, with one thread."""

    def __init__(self, command: Sequence[str]) -> None:
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env=os.environ | threads)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def run(self, name: str, path: Path, out: Path) -> dict[str, Any]:
        """What `peers_run.measured` answers; a process that dies is a failure of that program."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"name": name, "path": str(path), "out": str(out)}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        return json.loads(line) if line else {"failed": "its process ended"}


@dataclass
class Bench:
    """Processes and the folder that they share; `python` is the interpreter with PETSc and FEniCSx."""

    python: str
    repeats: int = REPEATS
    folder: Path = field(init=False)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _workers: dict[bool, Worker] = field(default_factory=dict, init=False)

    def __enter__(self) -> Bench:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self, name: str, path: Path) -> tuple[dict[str, Any], np.ndarray | None]:
        """One run and its answer."""
        outside = name in SYSTEM
        if outside and not Path(self.python).exists():
            return {"missing": f"not installed (there is no {self.python})"}, None
        if outside not in self._workers or self._workers[outside].process.poll() is not None:
            # -I: nothing of this environment reaches the system's Python
            command = [self.python, "-I", peers_run.__file__] if outside else [sys.executable, "-m", "dgnet.bench.peers_run"]
            self._workers[outside] = self._stack.enter_context(Worker(command))
        out = self.folder / "answer.npy"
        result = self._workers[outside].run(name, path, out)
        return result, np.load(out) if "total_s" in result else None

    def answer(self, name: str, path: Path) -> np.ndarray:
        """Of a program that is always there."""
        result, found = self.run(name, path)
        if found is None:
            raise SolveError(f"{name}: {result.get('failed') or result.get('missing')}")
        return found

    def pose(self, cells: tuple[int, ...], stiffness: float, dtype: str, steps: int) -> Path:
        """The file of a case."""
        mesh, h = box(cells, perturb=0.2), 1 / max(cells)
        x = mesh.points
        spots = ((1.0, 0.3, 0.1), (0.5 / (steps * h**2), 0.7, 0.15))  # size, centre and width of the start and of the source
        u0, f = (a * np.exp(-((x - c) ** 2).sum(1) / (2 * w**2)) for a, c, w in spots)
        tolerance = {str(key).removeprefix("torch."): value for key, value in TOLERANCE.items()}[dtype]
        path = self.folder / "case.npz"
        np.savez(path, points=x, cells=mesh.cells, u0=u0, f=f, D=1.0, dt=stiffness * h**2, steps=steps, tolerance=tolerance,
                 dtype=dtype, matrices=str(self.folder / "matrices.npz"))
        return path

    def warm(self, dim: int) -> None:
        """Every program once on a few nodes: imports and compilations are not what is measured."""
        for name in (ASSEMBLY, *(n for column in COLUMNS.values() for n in column), *GRADIENTS):
            self.run(name, self.pose((4,) * dim, 1.0, "float64", 2))

    def measure(self, names: Sequence[str], path: Path, limit: float, cells: tuple[int, ...],
                truth: np.ndarray) -> dict[str, dict[str, Any]]:
        """Rows of the programs, the first of them what others are compared with; runs take turns."""
        nodes = number(cells)
        rows: dict[str, dict[str, Any]] = {}
        clocks: dict[str, list[dict[str, Any]]] = {}
        result: dict[str, Any]
        waiting = list(names)
        for _ in range(self.repeats):
            for name in list(waiting):
                most = _MOST[name][len(cells) - 2] if name in _MOST else nodes
                result, found = self.run(name, path) if nodes <= most else ({"failed": f"limited to {most} nodes"}, None)
                if found is None:
                    rows.setdefault(name, result)
                    waiting.remove(name)
                    continue
                clocks.setdefault(name, []).append(result)
                if name not in rows:
                    error = 0.0 if name == ASSEMBLY else _error(found, truth, [1] if name in GRADIENTS else [])
                    rows[name] = {"label": result["label"], "error": error, "missed": not error <= limit}
                if len(clocks[name]) == 1 and result["total_s"] > max(LONG, PATIENCE * clocks[names[0]][0]["total_s"]):
                    waiting.remove(name)
        for name, some in clocks.items():
            rows[name] |= {key: median(c[key] for c in some) for key in ("total_s", "setup_s", "step_s") if key in some[0]}
            rows[name]["runs"] = len(some)
        return rows


def run(quick: bool = False, sizes: Sequence[str] | None = None, stiffness: Sequence[float] = STIFFNESS, steps: int = STEPS,
        repeats: int = REPEATS, python: str = "/usr/bin/python3", report: Report | None = None) -> dict[str, Any]:
    """All cases in both precisions, then gradients (2D). `quick`: two meshes of a thousand nodes and 10 steps.

    `steps` are run, 2 at least; where these are fewer than `STEPS`, totals are set-up + `STEPS` times the time of one.
    """
    known = QUICK if quick else SIZES
    unknown = set(sizes or []) - set(known)
    if unknown:
        raise InputError(f"unknown size '{min(unknown)}' (known: {', '.join(known)})")
    steps = 10 if quick else steps
    jobs = [(size, s) for size in sizes or known for s in stiffness]
    rows: list[dict[str, Any]] = []
    gradients: list[dict[str, Any]] = []
    with Bench(python, repeats) as bench:
        for done, (size, s) in enumerate(jobs):
            cells = known[size]
            if done == 0 or len(cells) != len(known[jobs[done - 1][0]]):
                bench.warm(len(cells))
            head = {"size": size, "nodes": number(cells), "stiffness": s, "steps_run": steps}
            truth = bench.answer(REFERENCE, bench.pose(cells, s, "float64", steps))
            for dtype, limit in LIMIT.items():
                path = bench.pose(cells, s, dtype, steps)
                names = [AUTO, ASSEMBLY, *(n for column in COLUMNS.values() for n in column
                                           if n != AUTO and not (dtype == "float32" and n in DOUBLE_ONLY))]
                found = bench.measure(names, path, limit, cells, truth)
                rows.append(head | {"dtype": dtype, "programs": _completed(found, 0 if quick else STEPS - steps)})
            if len(cells) == 2:
                path = bench.pose(cells, s, "float64", steps)
                exact = bench.answer(GRADIENTS[1], path)
                gradients.append(head | {"programs": bench.measure(GRADIENTS, path, 100 * LIMIT["float64"], cells, exact)})
            if report is not None:
                report("cases", done + 1, len(jobs))
    return {"benchmark": "peers", "version": __version__, "hardware": hardware("cpu"), "steps": steps if quick else STEPS,
            "repeats": repeats, "rows": rows, "gradients": gradients}


def number(cells: tuple[int, ...]) -> int:
    """Of nodes of a box."""
    return int(np.prod([c + 1 for c in cells]))


def _error(found: np.ndarray, truth: np.ndarray, at: list[int]) -> float:
    """The largest relative difference of the parts between these places."""
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(np.split(found, at), np.split(truth, at)))


def _completed(programs: dict[str, dict[str, Any]], left: int) -> dict[str, dict[str, Any]]:
    """PETSc is given its matrices: the time to assemble them is added to its own. `left` steps were not run: they are added."""
    assembly = programs.pop(ASSEMBLY)
    for name in ("PETSc Cholesky", "PETSc CG + ICC"):
        if "total_s" in programs.get(name, {}) and "total_s" in assembly:
            for key in ("total_s", "setup_s"):
                programs[name][key] += assembly["total_s"]
    for name, row in programs.items():
        if left and "step_s" in row:
            row["total_s"] += left * row["step_s"]
        elif left and "total_s" in row:
            programs[name] = {"failed": "no time of a single step"}
    return programs


# ---------------------------------------------------------------------- tables


def best(programs: dict[str, dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """The quickest of these programs that met the tolerance; else one that says why there is none."""
    some = [programs[name] | {"name": name} for name in names if name in programs]
    fair = [p for p in some if "total_s" in p and not p["missed"]] or [p for p in some if "total_s" in p]
    return min(fair, key=lambda p: p["total_s"]) if fair else (some or [{"failed": "double precision only"}])[0]


def _cell(program: dict[str, Any], ours: dict[str, Any], key: str, bold: bool = False) -> str:
    if "missing" in program:
        return "not installed"
    if "failed" in program or key not in program or not ours.get(key):
        return "–"
    text = f"{program[key] / ours[key]:.2f}"
    text = f"**{text}**" if bold else text
    return text + ("!" if program["missed"] else "") + ("¹" if program["runs"] < 2 else "")


def _table(rows: Sequence[dict[str, Any]], key: str, columns: dict[str, tuple[str, ...]]) -> list[str]:
    lines = ["| case (Δt·D/h²) | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        found = {name: best(row["programs"], names) for name, names in columns.items()}
        ours = next(iter(found.values()))
        there = {name: p[key] for name, p in found.items() if p.get(key) and not p["missed"]}
        first = min(there, key=lambda name: there[name]) if there else ""
        lines.append(f"| {row['size']} ({row['stiffness']:g}) | "
                     + " | ".join(_cell(p, ours, key, name == first) for name, p in found.items()) + " |")
    return lines


def verdict(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where others are ahead: the ratio of auto's time to that of the best column, case by case."""
    ratios = []
    for row in rows:
        found = {name: best(row["programs"], names) for name, names in COLUMNS.items()}
        others = {name: p["total_s"] for name, p in found.items() if name != AUTO and "total_s" in p and not p["missed"]}
        ours = found[AUTO]
        if others and "total_s" in ours:
            name = min(others, key=lambda key: others[key])
            ratios.append({"size": row["size"], "stiffness": row["stiffness"], "dtype": row["dtype"], "best": name,
                           "ratio": ours["total_s"] / others[name]})
    return {"cases": len(ratios), "first": sum(r["ratio"] <= 1 for r in ratios), "within": sum(r["ratio"] <= 1.1 for r in ratios),
            "ratios": ratios}


def markdown(result: dict[str, Any]) -> str:
    """The page of a result: ratios only."""
    steps, lines = result["steps"], [
        "# Heat steps beside other programs, on one thread", "",
        f"{result['steps']} Crank–Nicolson steps of the heat equation with a source: linear elements, consistent mass, perturbed "
        "boxes, insulated. Numbers are processor times as multiples of that of `dgnet auto` in the same row: below 1 is "
        f"faster than dgnet, bold is the fastest. Medians of {result['repeats']} runs that took turns; ¹: one run, since the "
        f"first took more than {PATIENCE:g} times as long and more than {LONG:g} s. Where a column has several programs, the "
        "best of them.", "",
        f"Iterative solvers stop at the same relative residual ({', '.join(_tolerances())}). The last state is compared with that "
        f"of a direct solve in double precision; ! marks one that is off by more than {LIMIT['float64']:g} (float32: "
        f"{LIMIT['float32']:g}). torch-fem is always marked: it integrates the mass at one point of each cell, so its matrices are "
        "others. –: does not exist in this precision, takes minutes at this size, or did not converge.", ""]
    for dtype in dict.fromkeys(r["dtype"] for r in result["rows"]):
        rows = [r for r in result["rows"] if r["dtype"] == dtype]
        columns = {name: some for name, some in COLUMNS.items() if any("failed" not in best(r["programs"], some) for r in rows)}
        for title, key in ((f"{steps} steps with set-up", "total_s"), ("set-up alone", "setup_s"), ("one step", "step_s")):
            lines += [f"## {dtype}, {title}", "", *_table(rows, key, columns), ""]
    short = {r["size"]: r["steps_run"] for r in result["rows"] if r["steps_run"] < steps}
    if short:
        counts = "; ".join(f"{size}: {count}" for size, count in short.items())
        lines += [f"Not all steps were run ({counts}): times are set-up + {steps} times the mean of these but the first.", ""]
    lines += ["What was used: " + "; ".join(_used(r) for r in result["rows"] if r["dtype"] == "float64") + ".", ""]
    found = verdict(result["rows"])
    behind = [f"{r['size']} ({r['stiffness']:g}, {r['dtype']}): {r['ratio']:.2f} times {r['best']}"
              for r in found["ratios"] if r["ratio"] > 1.1]
    lines += [f"`dgnet auto` is the fastest of all columns in {found['first']} of {found['cases']} cases, and within 1.1 times the "
              f"fastest in {found['within']}." + (f" It is behind in: {'; '.join(behind)}." if behind else ""), ""]
    if result["gradients"]:
        names: dict[str, tuple[str, ...]] = {name.removeprefix("gradient: "): (name,) for name in GRADIENTS}
        lines += [f"## Gradient of {' or '.join(str(n) for n in sorted({g['steps_run'] for g in result['gradients']}))} steps", "",
                  "Of the squared state at the end, in the diffusivity (a number) and in the source at every node. float64; set-up "
                  "and both directions included; as multiples of dgnet's time.", "",
                  *_table(result["gradients"], "total_s", names), ""]
    return "\n".join([*lines, f"dgnet {result['version']}, {result['hardware']}. `dgnet bench peers` makes this page.", ""])


def _tolerances() -> list[str]:
    return [f"{value:g} in {str(dtype).removeprefix('torch.')}" for dtype, value in TOLERANCE.items()]


def _used(row: dict[str, Any]) -> str:
    """Which backend auto took, and which own one was the best."""
    auto, own = (best(row["programs"], COLUMNS[name]) for name in (AUTO, "dgnet's own best"))
    return f"{row['size']} ({row['stiffness']:g}) auto {auto.get('label', '–')}, best {own.get('label', '–')}"
