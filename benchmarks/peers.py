"""`python -m benchmarks peers`: 100 Crank-Nicolson heat steps by dgnet and by other programs, side by side on one thread.

Every program solves the same problem to the same tolerance: linear elements, consistent mass, a perturbed box, insulated, a source.
A run goes from the program's own mesh to the last state, set-up included, in a process that runs nothing else meanwhile; runs of
different programs take turns. The clock is processor time, so other work on the machine changes little. The last state is compared
with that of a direct solve in double precision (scikit-fem + SuperLU); one that is farther away than `LIMIT` is marked. Programs
that are not installed, fail or take too long are cells that say so. `peers_run` is what the processes run, `peers_page` the page.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import peers_run
from dgnet import __version__
from dgnet.errors import InputError, SolveError
from dgnet.mesh import box
from dgnet.progress import Report
from dgnet.stepping.backends import NAMES, TOLERANCE
from dgnet_paper.study.timing import hardware

SIZES: dict[str, tuple[int, ...]] = {"2D 10k": (99, 99), "2D 100k": (315, 315), "3D 50k": (36, 36, 36)}
QUICK: dict[str, tuple[int, ...]] = {"2D 1k": (31, 31), "3D 1k": (9, 9, 9)}
STIFFNESS = (0.5, 20.0)  # dt D / h^2
STEPS = 100
REPEATS = 5
PATIENCE, LONG = 2.0, 1.0  # a program that takes this many times as long as dgnet, and more seconds than this, runs once
SHORT, MOST = 10, 5.0  # a guest runs SHORT steps first; where all of them would take more than MOST seconds, it is left at that
TOO_LONG = 20.0  # processor seconds of these short runs after which a guest is ended
LIMIT = {"float64": 1e-9, "float32": 1e-4}  # of the last state, relative; of a gradient a hundred times that
AUTO, OWN, REFERENCE, ASSEMBLY = "dgnet auto", "dgnet's own best", "scikit-fem + SuperLU", "matrices"
COLUMNS: dict[str, tuple[str, ...]] = {
    AUTO: (AUTO,), OWN: (AUTO, *(f"dgnet {name}" for name in NAMES)), REFERENCE: (REFERENCE,), "SciPy CG": ("SciPy CG",),
    "PETSc Cholesky": ("PETSc Cholesky",), "PETSc CG + ICC": ("PETSc CG + ICC",),
    "FEniCSx best": ("FEniCSx, Cholesky", "FEniCSx, CG + ICC"), "TensorMesh best": ("TensorMesh, LU", "TensorMesh, CG"),
    "torch-fem best": ("torch-fem, its choice", "torch-fem, CG"),
}
"""Columns of the table, each the best of its programs."""
BY_HAND = "gradient: adjoint by hand, SuperLU"
GRADIENTS: dict[str, tuple[str, ...]] = {
    "dgnet": ("gradient: dgnet",), "adjoint by hand, best": (BY_HAND, "gradient: adjoint by hand, CG"),
    "TensorMesh, CG": ("gradient: TensorMesh, CG",), "torch-fem, CG": ("gradient: torch-fem, CG",),
}
"""Gradients; of TensorMesh and torch-fem with their quicker solver: others are made anew in every step."""
SYSTEM = ("PETSc Cholesky", "PETSc CG + ICC", "FEniCSx, Cholesky", "FEniCSx, CG + ICC")  # run by the system's Python
DOUBLE_ONLY = SYSTEM  # Debian builds PETSc in double precision
GUESTS = (*COLUMNS["TensorMesh best"], *COLUMNS["torch-fem best"], *GRADIENTS["TensorMesh, CG"], *GRADIENTS["torch-fem, CG"])
"""Programs that may take minutes or more memory than there is: a process of their own, short runs first."""
HOSTS = (ASSEMBLY, *dict.fromkeys(n for some in (*COLUMNS.values(), *GRADIENTS.values()) for n in some if n not in SYSTEM + GUESTS))


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

    def run(self, name: str, path: Path, out: Path, steps: int | None = None, limit: float | None = None) -> dict[str, Any]:
        """What `peers_run.measured` answers; a process that dies, or takes longer than `limit`, is a failure of that program."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"name": name, "path": str(path), "out": str(out), "steps": steps}) + "\n")
            self.process.stdin.flush()
            begin = self._spent()
            while limit is not None and not select.select([self.process.stdout], [], [], min(1.0, limit))[0]:
                if self._spent() - begin >= limit:
                    self.process.kill()
                    self.process.wait()
                    return {"failed": f"{steps} steps take more than {limit:g} s", "over_s": limit}
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        return json.loads(line) if line else {"failed": "its process ended"}

    def _spent(self) -> float:
        """Processor seconds of the process; where the system does not tell them, those that have passed."""
        try:
            after_its_name = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return time.monotonic()
        return sum(int(ticks) for ticks in after_its_name[11:13]) / os.sysconf("SC_CLK_TCK")


@dataclass
class Bench:
    """Processes and the folder that they share; `python` is the interpreter with PETSc and FEniCSx."""

    python: str
    repeats: int = REPEATS
    folder: Path = field(init=False)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)
    _workers: dict[tuple[str, ...], Worker] = field(default_factory=dict, init=False)

    def __enter__(self) -> Bench:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _worker(self, name: str) -> Worker:
        """The process of a program, in which every program of its kind has run once on a few nodes: imports and compilations are
        not what is measured."""
        kind = next(some for some in (SYSTEM, GUESTS, HOSTS) if name in some)
        if kind not in self._workers or self._workers[kind].process.poll() is not None:
            # -I: nothing of this environment reaches the system's Python
            command = [self.python, "-I", peers_run.__file__] if kind == SYSTEM else [sys.executable, "-m", "benchmarks.peers_run"]
            self._workers[kind] = worker = self._stack.enter_context(Worker(command))
            for dim, dtype in product((2, 3), ("float64",) if kind == SYSTEM else LIMIT):
                path = self.pose((4,) * dim, 1.0, dtype, 2, f"tiny-{dim}")
                if kind == SYSTEM:
                    self.run(ASSEMBLY, path)
                for other in kind:
                    worker.run(other, path, self.folder / "tiny.npy")
        return self._workers[kind]

    def run(self, name: str, path: Path, steps: int | None = None) -> tuple[dict[str, Any], np.ndarray | None]:
        """One run and its answer; `steps`: only so many of the case, and within `TOO_LONG`."""
        if name in SYSTEM and not Path(self.python).exists():
            return {"missing": f"not installed (there is no {self.python})"}, None
        out = self.folder / "answer.npy"
        result = self._worker(name).run(name, path, out, steps, TOO_LONG if steps and name in GUESTS else None)
        return result, np.load(out) if "total_s" in result else None

    def pose(self, cells: tuple[int, ...], stiffness: float, dtype: str, steps: int, name: str = "case") -> Path:
        """The file of a case."""
        mesh, h = box(cells, perturb=0.2), 1 / max(cells)
        x = mesh.points
        spots = ((1.0, 0.3, 0.1), (0.5 / (steps * h**2), 0.7, 0.15))  # size, centre and width of the start and of the source
        u0, f = (a * np.exp(-((x - c) ** 2).sum(1) / (2 * w**2)) for a, c, w in spots)
        tolerance = {str(key).removeprefix("torch."): value for key, value in TOLERANCE.items()}[dtype]
        path = self.folder / f"{name}-{dtype}.npz"
        np.savez(path, points=x, cells=mesh.cells, u0=u0, f=f, D=1.0, dt=stiffness * h**2, steps=steps, tolerance=tolerance,
                 dtype=dtype, matrices=str(self.folder / f"{name}-matrices.npz"))
        return path


@dataclass
class Measurement:
    """Rows of one case: programs take turns, the first named is what others are compared with in time.

    `truth`: the answer of `reference` to the steps of `exact`, a case in double precision; by number of steps, filled as needed.
    """

    bench: Bench
    path: Path
    exact: Path
    reference: str
    steps: int
    truth: dict[int, np.ndarray]
    over: dict[str, dict[str, Any]]  # guests that took too long at this size before
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _clocks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _answers: dict[str, np.ndarray] = field(default_factory=dict)

    def run(self, names: Sequence[str], limit: float) -> dict[str, dict[str, Any]]:
        waiting = [name for name in names if name not in GUESTS or self._worth_all_steps(name)]
        for _ in range(self.bench.repeats):
            for name in list(waiting):
                result, found = self.bench.run(name, self.path)
                if found is None:
                    self.rows[name] = result
                    waiting.remove(name)
                    continue
                self._note(name, result, found)
                first = self._clocks[names[0]][0]["total_s"] if names[0] in self._clocks else 0.0
                if len(self._clocks[name]) == 1 and result["total_s"] > max(LONG, PATIENCE * first):
                    waiting.remove(name)
        for name, some in self._clocks.items():
            keys = [key for key in ("total_s", "setup_s", "step_s", "mesh_s", "memory_MB") if key in some[0]]
            error = 0.0 if name == ASSEMBLY else self._error(name, some[0]["steps"])
            row = self.rows[name] = {key: median(c[key] for c in some) for key in keys} | {
                "label": some[0]["label"], "runs": len(some), "error": error, "missed": not error <= limit,
                "extrapolated": some[0]["steps"] < self.steps}
            if row["extrapolated"]:
                row["total_s"] = row["setup_s"] + self.steps * row["step_s"]
        return self.rows

    def _worth_all_steps(self, name: str) -> bool:
        """Whether a guest that ran a few steps would do all of them soon enough; else what it did is its row."""
        short = min(SHORT, self.steps)
        result, found = self.bench.run(name, self.path, short) if name not in self.over else (self.over[name], None)
        if found is None:
            self.rows[name] = result
            self.over |= {name: result} if "over_s" in result else {}
            return False
        soon = "step_s" not in result or result["setup_s"] + self.steps * result["step_s"] <= MOST or short == self.steps
        if not soon:
            self._note(name, result, found)
        return soon

    def _note(self, name: str, result: dict[str, Any], found: np.ndarray) -> None:
        self._clocks.setdefault(name, []).append(result)
        self._answers.setdefault(name, found)

    def _error(self, name: str, steps: int) -> float:
        """The largest relative difference of the last state; of a gradient, of either of its parts."""
        if steps not in self.truth:
            known = self._answers.get(self.reference) if steps == self.steps and self.path == self.exact else None
            self.truth[steps] = known if known is not None else self._solved(steps)
        at = [1] if name.startswith("gradient") else []
        pairs = zip(np.split(self._answers[name], at), np.split(self.truth[steps], at))
        return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)

    def _solved(self, steps: int) -> np.ndarray:
        result, found = self.bench.run(self.reference, self.exact, steps)
        if found is None:
            raise SolveError(f"{self.reference}: {result.get('failed') or result.get('missing')}")
        return found


def run(quick: bool = False, sizes: Sequence[str] | None = None, stiffness: Sequence[float] = STIFFNESS, steps: int = STEPS,
        repeats: int = REPEATS, python: str = "/usr/bin/python3", report: Report | None = None) -> dict[str, Any]:
    """All cases in both precisions, and gradients in double precision. `quick`: two meshes of a thousand nodes and 10 steps."""
    known = QUICK if quick else SIZES
    unknown = set(sizes or []) - set(known)
    if unknown:
        raise InputError(f"unknown size '{min(unknown)}' (known: {', '.join(known)})")
    steps = 10 if quick else steps
    jobs = [(size, s) for size in sizes or known for s in stiffness]
    rows: list[dict[str, Any]] = []
    gradients: list[dict[str, Any]] = []
    over: dict[str, dict[str, dict[str, Any]]] = {size: {} for size in known}
    with Bench(python, repeats) as bench:
        for done, (size, s) in enumerate(jobs):
            cells = known[size]
            head = {"size": size, "nodes": int(np.prod([c + 1 for c in cells])), "stiffness": s}
            exact = bench.pose(cells, s, "float64", steps)
            truth: dict[int, np.ndarray] = {}
            for dtype, limit in LIMIT.items():
                path = exact if dtype == "float64" else bench.pose(cells, s, dtype, steps)
                names = [AUTO, ASSEMBLY, *(n for column in COLUMNS.values() for n in column
                                           if n != AUTO and not (dtype == "float32" and n in DOUBLE_ONLY))]
                found = Measurement(bench, path, exact, REFERENCE, steps, truth, over[size]).run(names, limit)
                rows.append(head | {"dtype": dtype, "programs": _completed(found)})
            names = [n for column in GRADIENTS.values() for n in column]
            found = Measurement(bench, exact, exact, BY_HAND, steps, {}, over[size]).run(names, 100 * LIMIT["float64"])
            gradients.append(head | {"dtype": "float64", "programs": found})
            if report is not None:
                report("cases", done + 1, len(jobs))
    return {"benchmark": "peers", "version": __version__, "hardware": hardware("cpu"), "others": versions(python), "steps": steps,
            "repeats": repeats, "rows": rows, "gradients": gradients}


def _completed(programs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """PETSc is given its matrices: the time to assemble them, and the mesh they come from, are added to its own.

    `whole_s` is the time with the mesh.
    """
    assembly = programs.pop(ASSEMBLY)
    for name in ("PETSc Cholesky", "PETSc CG + ICC"):
        if "total_s" in programs.get(name, {}) and "total_s" in assembly:
            programs[name] |= {key: programs[name][key] + assembly["total_s"] for key in ("total_s", "setup_s")}
            programs[name]["mesh_s"] = programs[REFERENCE]["mesh_s"]
    for row in programs.values():
        if "total_s" in row:
            row["whole_s"] = row["total_s"] + row["mesh_s"]
    return programs


def versions(python: str) -> str:
    """Of the other programs, in words."""
    code = "import importlib.metadata as m, sys\nfor n in sys.argv[1:]:\n  try: print(n, m.version(n))\n  except Exception: pass"
    here = ("torch", "scipy", "scikit-fem", "tensormesh-fem", "torch-sla", "torch-fem", "pyamg")
    found: list[str] = []
    for command, names in (([sys.executable], here), ([python, "-I"], ("petsc4py", "fenics-dolfinx"))):
        if Path(command[0]).exists():
            found += subprocess.run([*command, "-c", code, *names], capture_output=True, text=True).stdout.splitlines()
    return ", ".join(found)
