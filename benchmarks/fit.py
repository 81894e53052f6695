"""`python -m benchmarks fit`: the constants of the automatic choice on the CPU (`stepping.auto`), measured and fitted on this machine.

All of it in both precisions, each to its own tolerance: factorisations once for each mesh, conjugate gradients at four stiffness
numbers and with a lumped and a consistent mass; the fixed iteration with several right-hand sides and for two counts; the explicit
inverse on small meshes. Times are those of the process, in microseconds; least squares are taken of their logarithms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares

from dgnet import __version__
from dgnet.mesh import box
from dgnet.operators import EdgeMatrix, Geometry, mass, stiffness
from dgnet.stepping.auto import INVERTED, mass_ratio
from dgnet.stepping.backends import TOLERANCE, Krylov, Prepared, prepare
from dgnet.stepping.bounds import bounds_of
from dgnet.stepping.host import OnHost
from dgnet_paper.study.timing import hardware

SIZES = {2: (21, 30, 40, 70, 120, 210, 360, 550), 3: (7, 10, 13, 20, 28, 42)}  # cells along an edge
STIFFNESS = (0.02, 0.5, 5.0, 50.0)  # dt D / h^2
COLUMNS = (4, 32)  # right-hand sides of a fixed iteration
_MOST = {2: 200_000, 3: 25_000}  # nodes that are factorised
_ITERATED = 50_000  # nodes with several right-hand sides
Row = dict[str, Any]
Array = np.ndarray


def run(largest: int = 400_000, tell: Callable[[Row], None] = lambda row: None) -> dict[str, Any]:
    """Measure boxes of up to `largest` nodes, and fit."""
    rows: list[Row] = []
    for dim, edges in SIZES.items():
        for edge in edges:
            if (edge + 1) ** dim <= largest:
                for row in _mesh(dim, edge):
                    rows.append(row)
                    tell(row)
    return {"benchmark": "fit", "version": __version__, "hardware": hardware("cpu"), "rows": rows, "constants": fitted(rows)}


def _mesh(dim: int, edge: int) -> list[Row]:
    g = Geometry.of(box((edge,) * dim, perturb=0.2))
    n, nnz = g.pattern.n, g.pattern.nnz

    def system(s: float, share: float, dtype: torch.dtype) -> tuple[EdgeMatrix, EdgeMatrix]:
        M = mass(g, share)
        A = M + stiffness(g) * (0.5 * s / edge**2)
        A, M = (EdgeMatrix(g.pattern, X.values[None].to(dtype)) for X in (A, M))
        return A, M

    rows: list[Row] = []
    for dtype, tolerance in TOLERANCE.items():
        numbers = np.random.default_rng(0).normal(size=(n, 33)).astype(str(dtype).removeprefix("torch."))
        one, many = numbers[:, 0].copy(), numbers[:, 1:].copy()
        head = {"dim": dim, "n": n, "nnz": nnz, "bytes": dtype.itemsize}
        if n <= _MOST[dim] and dtype == torch.float64:
            rows += [head | row for row in _direct(system(0.5, 1.0, dtype)[0], one, many)]
        for s in STIFFNESS:
            for share in (0.0, 1.0):
                A, M = system(s, share, dtype)
                rows.append(head | {"ratio": mass_ratio(A, M), "tolerance": tolerance}
                            | _conjugate(A, tolerance, one, many, timed=share > 0))
        if n <= _ITERATED:
            for s in (0.02, 0.3):
                rows += [head | row for row in _iterated(*system(s, 1.0, dtype), tolerance)]
        if n <= INVERTED:
            rows.append(head | _inverted(system(5.0, 1.0, dtype)[0]))
    return rows


def _direct(A: EdgeMatrix, one: Array, many: Array) -> Iterator[Row]:
    """Factorisations, in double precision whatever the matrix is in."""
    for backend in ("lu", "cholesky") if find_spec("cholespy") else ("lu",):
        direct = prepare(A, backend, symmetric=True)
        assert isinstance(direct, OnHost)
        yield {"backend": backend, "setup": _microseconds(partial(prepare, A, backend, symmetric=True)),
               "one": _microseconds(partial(direct.array, one)), "many": _microseconds(partial(direct.array, many))}


def _conjugate(A: EdgeMatrix, tolerance: float, one: Array, many: Array, timed: bool) -> Row:
    cg = Krylov(A, True, tolerance)
    columns, column = torch.from_numpy(many)[None], torch.from_numpy(one)[None, :, None]
    cg.solve(column)
    row: Row = {"backend": "cg", "iterations": cg.last_count}
    if timed:
        row |= {"setup": _microseconds(partial(_fresh, A, tolerance, column)), "one": _microseconds(partial(cg.solve, column)),
                "many": _microseconds(partial(cg.solve, columns))}
    return row


def _iterated(A: EdgeMatrix, M: EdgeMatrix, tolerance: float) -> Iterator[Row]:
    """The fixed iteration, with a count that is proven: of triangles and tetrahedra diag(M)^-1 M is at least 1/2."""
    def ready() -> tuple[Prepared, int]:
        bounds = bounds_of(A, M, 0.5, symmetric=True)
        return prepare(A, "iterative", bounds, True, tolerance), bounds.iterations(tolerance)

    (prepared, count), setup = ready(), _microseconds(ready)
    for columns in COLUMNS:
        b = torch.randn(1, A.pattern.n, columns, dtype=A.values.dtype, generator=torch.Generator().manual_seed(0))
        yield {"backend": "iterative", "iterations": count, "columns": columns, "setup": setup,
               "solve": _microseconds(partial(prepared.solve, b))}


def _inverted(A: EdgeMatrix) -> Row:
    dense = prepare(A, "dense")
    many = torch.randn(1, A.pattern.n, 32, dtype=A.values.dtype, generator=torch.Generator().manual_seed(0))
    return {"backend": "dense", "setup": _microseconds(partial(prepare, A, "dense")),
            "many": _microseconds(partial(dense.solve, many))}


def _fresh(A: EdgeMatrix, tolerance: float, zero: torch.Tensor) -> None:
    """Matrices are made at the first solve; one of zero takes no iteration."""
    Krylov(A, True, tolerance).solve(0.0 * zero)


def _microseconds(action: Callable[[], object]) -> float:
    """The least of seven calls, of fewer where they take seconds: other work on the machine only ever adds to a time."""
    samples: list[float] = []
    while len(samples) < 7 and sum(samples) < 2.0:
        begin = time.process_time()
        action()
        samples.append(time.process_time() - begin)
    return 1e6 * min(samples)


def fitted(rows: list[Row]) -> dict[str, Any]:
    """Constants by their names in `stepping.auto`."""
    found: dict[str, Any] = {"DIRECT": {}, "DENSE": {}, "CONJUGATE": {}, "CONJUGATE_32": {}, "FIXED": {}}
    cg, fixed = ([r for r in rows if r["backend"] == backend] for backend in ("cg", "iterative"))
    for size in sorted({r["bytes"] for r in rows}):
        some = [r for r in rows if r["bytes"] == size]
        if inverted := [r for r in some if r["backend"] == "dense"]:
            found["DENSE"][str(size)] = _powers(inverted, "setup", "many")
        for dim in sorted({r["dim"] for r in some}):
            _fit_mesh(found, [r for r in some if r["dim"] == dim], dim, size)
    for name, chosen in (("CONJUGATE_SETUP", [r for r in cg if "setup" in r]), ("FIXED_SETUP", fixed)):
        if chosen:
            found[name] = _fit(partial(_line, np.array([r["nnz"] for r in chosen])), [r["setup"] for r in chosen], [100.0, 0.01])
    chosen = [r for r in cg if r["ratio"] > 1.2 and r["n"] > 2000]  # on few nodes, and where the mass rules, there are fewer
    ratio, digits = np.array([r["ratio"] for r in chosen]), np.log([1 / r["tolerance"] for r in chosen])
    found["COUNT"] = _fit(lambda p: p[0] * ratio ** p[1] * digits, [r["iterations"] for r in chosen], [0.3, 0.4])
    return found


def _fit_mesh(found: dict[str, Any], rows: list[Row], dim: int, size: int) -> None:
    """Constants of one dimension and precision."""
    for backend in ("lu", "cholesky"):
        if size == 8 and (chosen := [r for r in rows if r["backend"] == backend]):
            found["DIRECT"][f"{backend} {dim}"] = _powers(chosen, "setup", "one", "many")
    for name, key, start in (("CONJUGATE", "one", [30.0, 3e-3, 10.0, 1e3, 1.1]), ("CONJUGATE_32", "many", [30.0, 0.1, 30.0, 3e4, 1.1])):
        if chosen := [r for r in rows if r["backend"] == "cg" and key in r]:
            nnz, count = (np.array([r[k] for r in chosen]) for k in ("nnz", "iterations"))
            found[name][f"{dim} {size}"] = _fit(partial(_counted, nnz, count), [r[key] for r in chosen], start)
    if chosen := [r for r in rows if r["backend"] == "iterative"]:
        nnz, columns, count = (np.array([r[k] for r in chosen]) for k in ("nnz", "columns", "iterations"))
        found["FIXED"][f"{dim} {size}"] = _fit(partial(_fixed, nnz, columns, count), [r["solve"] for r in chosen],
                                               [30.0, 10.0, 1e-3, 300.0, 1.1])


def _powers(rows: list[Row], *keys: str) -> list[list[float]]:
    n = np.array([r["n"] for r in rows]) / 1e4
    return [_fit(partial(_power, n), [r[k] for r in rows], [10.0, 1e3, 1.3]) for k in keys]


def _line(nnz: Array, p: Array) -> Array:
    return p[0] + p[1] * nnz


def _power(n: Array, p: Array) -> Array:
    return p[0] + p[1] * n ** p[2]


def _counted(nnz: Array, count: Array, p: Array) -> Array:
    return p[0] + p[1] * nnz + count * (p[2] + p[3] * (nnz / 1e6) ** p[4])


def _fixed(nnz: Array, columns: Array, count: Array, p: Array) -> Array:
    return p[0] + count * (p[1] + p[2] * nnz + p[3] * (nnz * columns / 1e6) ** p[4])


def _fit(model: Callable[[Array], Array], values: list[float], start: list[float]) -> list[float]:
    """Positive constants of a model with the least squares of log(model / value)."""
    with np.errstate(over="ignore"):  # of a trial step that is far too long
        solved = least_squares(lambda p: np.log(model(np.exp(p)) / np.array(values)), np.log(start))
    return [float(f"{x:.4g}") for x in np.exp(solved.x)]
