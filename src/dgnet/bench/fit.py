"""`dgnet bench fit`: the constants of the automatic choice on the CPU (`green.auto`), measured and fitted on this machine.

Factorisations are timed once for each mesh, conjugate gradients at four stiffness numbers, two tolerances and with a lumped and a
consistent mass. Times are those of the process, in microseconds; least squares are taken of their logarithms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from dgnet import __version__
from dgnet.bench.timing import hardware
from dgnet.green.auto import mass_ratio
from dgnet.green.backends import prepare
from dgnet.green.conjugate import TOGETHER, ConjugateGradients
from dgnet.green.host import OnHost
from dgnet.mesh import box
from dgnet.operators import EdgeMatrix, Geometry, mass, stiffness

SIZES = {2: (21, 40, 70, 120, 210, 360), 3: (8, 13, 20, 28, 42)}  # cells along an edge
STIFFNESS = (0.02, 0.5, 5.0, 50.0)  # dt D / h^2
_MOST = {2: 200_000, 3: 25_000}  # nodes that are factorised
Row = dict[str, Any]
Array = np.ndarray


def run(largest: int = 200_000, report: Callable[[Row], None] = lambda row: None) -> dict[str, Any]:
    """Measure boxes of up to `largest` nodes, and fit."""
    rows: list[Row] = []
    for dim, edges in SIZES.items():
        for edge in edges:
            if (edge + 1) ** dim <= largest:
                for row in _mesh(dim, edge):
                    rows.append(row)
                    report(row)
    return {"benchmark": "fit", "version": __version__, "hardware": hardware("cpu"), "rows": rows, "constants": fitted(rows)}


def _mesh(dim: int, edge: int) -> list[Row]:
    g = Geometry.of(box((edge,) * dim, perturb=0.2))
    n, nnz = g.pattern.n, g.pattern.nnz
    random = np.random.default_rng(0)
    one, many = random.normal(size=n), random.normal(size=(n, 32))

    def system(s: float, share: float) -> tuple[EdgeMatrix, EdgeMatrix]:
        M = mass(g, share)
        A = M + stiffness(g) * (0.5 * s / edge**2)
        return EdgeMatrix(g.pattern, A.values[None]), EdgeMatrix(g.pattern, M.values[None])

    rows: list[Row] = []
    for backend in ("lu", "cholesky") if find_spec("cholespy") else ("lu",):
        if n <= _MOST[dim]:
            A, _ = system(5.0, 1.0)
            direct = prepare(A, backend, symmetric=True)
            assert isinstance(direct, OnHost)
            rows.append({"backend": backend, "dim": dim, "n": n,
                         "setup": _microseconds(partial(prepare, A, backend, symmetric=True)),
                         "one": _microseconds(partial(direct.array, one)), "many": _microseconds(partial(direct.array, many))})
    for s in STIFFNESS:
        for share in (0.0, 1.0):
            A, M = system(s, share)
            for tolerance in (1e-6, 1e-12):
                cg = ConjugateGradients(A, True, tolerance)
                cg.array(one, transposed=True)  # adjoint solves start from zero
                row = {"backend": "cg", "dim": dim, "n": n, "nnz": nnz, "ratio": mass_ratio(A, M), "tolerance": tolerance,
                       "iterations": cg.last_count}
                if share:
                    row["setup"] = _microseconds(partial(_fresh, A, tolerance))
                    row["one"] = _microseconds(partial(cg.array, one, True))
                    if n <= TOGETHER:
                        row["many"] = _microseconds(partial(cg.array, many, True))
                rows.append(row)
    return rows


def _fresh(A: EdgeMatrix, tolerance: float) -> ConjugateGradients:
    """As for a mesh that has not been seen: what is kept for a pattern is kept for that very object."""
    return ConjugateGradients(EdgeMatrix(replace(A.pattern), A.values), True, tolerance)


def _microseconds(action: Callable[[], object]) -> float:
    """Median over five calls, fewer where they take seconds."""
    samples: list[float] = []
    while len(samples) < 5 and sum(samples) < 2.0:
        begin = time.process_time()
        action()
        samples.append(time.process_time() - begin)
    return 1e6 * median(samples)


def fitted(rows: list[Row]) -> dict[str, Any]:
    """Constants by their names in `green.auto`."""
    found: dict[str, Any] = {"DIRECT": {}, "SWEEPS": {}, "SWEEPS_32": {}}
    cg = [r for r in rows if r["backend"] == "cg"]
    for dim in sorted({r["dim"] for r in rows}):
        for backend in ("lu", "cholesky"):
            chosen = [r for r in rows if r["backend"] == backend and r["dim"] == dim]
            if chosen:
                n = np.array([r["n"] for r in chosen]) / 1e4
                found["DIRECT"][f"{backend} {dim}"] = [_fit(partial(_power, n), [r[k] for r in chosen], [10.0, 1e3, 1.3])
                                                       for k in ("setup", "one", "many")]
        for name, key in (("SWEEPS", "one"), ("SWEEPS_32", "many")):
            chosen = [r for r in cg if key in r and r["dim"] == dim]
            nnz, count = (np.array([r[k] for r in chosen]) for k in ("nnz", "iterations"))
            found[name][str(dim)] = _fit(partial(_sweeps, nnz, count), [r[key] for r in chosen], [30.0, 3e-3, 10.0, 1e-3])
    chosen = [r for r in cg if "setup" in r]
    nnz = np.array([r["nnz"] for r in chosen])
    found["SWEEPS_SETUP"] = _fit(lambda p: p[0] + p[1] * nnz, [r["setup"] for r in chosen], [100.0, 0.01])
    chosen = [r for r in cg if r["ratio"] > 1.2 and r["n"] > 2000]  # on few nodes, and where the mass rules, there are fewer
    ratio, digits = np.array([r["ratio"] for r in chosen]), np.log([1 / r["tolerance"] for r in chosen])
    found["COUNT"] = _fit(lambda p: p[0] * ratio ** p[1] * digits, [r["iterations"] for r in chosen], [0.3, 0.4])
    return found


def _power(n: Array, p: Array) -> Array:
    return p[0] + p[1] * n ** p[2]


def _sweeps(nnz: Array, count: Array, p: Array) -> Array:
    return p[0] + p[1] * nnz + count * (p[2] + p[3] * nnz)


def _fit(model: Callable[[Array], Array], values: list[float], start: list[float]) -> list[float]:
    """Positive constants of a model with the least squares of log(model / value)."""
    solved = least_squares(lambda p: np.log(model(np.exp(p)) / np.array(values)), np.log(start))
    return [float(f"{x:.4g}") for x in np.exp(solved.x)]
