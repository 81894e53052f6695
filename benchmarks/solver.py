"""`python -m benchmarks solver`: one application of G by every backend, beside SciPy's and CuPy's sparse LU, in one run.

The matrix is the paper's, A = M + dt/2 K with lumped M, on perturbed boxes; stiffness is dt D / (2 h^2). Totals are for 100
applications with set-up included. What is not run says why.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import splu

from dgnet import __version__
from dgnet.errors import InputError, SolveError
from dgnet.mesh import box
from dgnet.operators import EdgeMatrix, Geometry, mass, stiffness
from dgnet.stepping.auto import choose, choose_symmetric, mass_ratio
from dgnet.stepping.backends import LU, TOLERANCE, prepare
from dgnet.stepping.bounds import bounds_of
from dgnet_paper.study.timing import captured, hardware, resident, sync, timed

SIZES: dict[str, tuple[int, ...]] = {
    "2D 1.3k": (35, 35), "2D 10k": (99, 99), "2D 30k": (172, 172), "2D 100k": (315, 315), "2D 1M": (999, 999),
    "3D 6k": (17, 17, 17), "3D 50k": (36, 36, 36), "3D 500k": (78, 78, 78),
}
STIFFNESS = (0.02, 1.0, 100.0)
APPLICATIONS = 100
# nodes beyond which a direct factorisation takes minutes or does not fit
_LU_LIMIT = {2: 350_000, 3: 60_000}
_CUPY_LIMIT = {2: 110_000, 3: 20_000}
_DENSE_LIMIT = {"cpu": 1_500, "cuda": 20_000}


def matrices(cells: tuple[int, ...], device: str) -> tuple[EdgeMatrix, EdgeMatrix, float]:
    """(M, K, h) in float64, values [1, nnz]; assembled on the host."""
    g = Geometry.of(box(cells, perturb=0.2))
    M, K = mass(g, 0.0).values[None].to(device), stiffness(g).values[None].to(device)
    pattern = g.pattern.to(device)
    return EdgeMatrix(pattern, M), EdgeMatrix(pattern, K), float(np.mean([1 / c for c in cells]))


def system(M: EdgeMatrix, K: EdgeMatrix, h: float, stiff: float, dtype: torch.dtype) -> tuple[EdgeMatrix, EdgeMatrix]:
    """(A, M) with A = M + dt/2 K, where dt = 2 stiff h^2."""
    return (M + K * (stiff * h**2)).to(dtype), M.to(dtype)


def run(device: str = "cpu", sizes: list[str] | None = None, stiff: tuple[float, ...] = STIFFNESS,
        columns: tuple[int, ...] = (1, 32), tell: Callable[[dict[str, Any]], None] = lambda row: None) -> dict[str, Any]:
    """All rows, with `auto`'s choice and how it compares with the best of the same run."""
    unknown = set(sizes or []) - set(SIZES)
    if unknown:
        raise InputError(f"unknown size '{min(unknown)}' (known: {', '.join(SIZES)})")
    rows = []
    for name in sizes or SIZES:
        mass_matrix, K, h = matrices(SIZES[name], device)
        for s in stiff:
            A, M = system(mass_matrix, K, h, s, torch.float32)
            for row in _case(A, M, columns, device, len(SIZES[name])):
                rows.append({"size": name, "nodes": A.pattern.n, "stiffness": s} | row)
                tell(rows[-1])
    return {"benchmark": "solver", "version": __version__, "hardware": hardware(device), "device": device,
            "dtype": "float32", "memory": "own", "applications": APPLICATIONS, "rows": rows, "auto": _auto(rows)}


def _case(A: EdgeMatrix, M: EdgeMatrix, columns: tuple[int, ...], device: str, dim: int) -> Iterator[dict[str, Any]]:
    """One matrix: every backend and the rival, set up once, applied to each number of columns."""
    n = A.pattern.n
    generator = torch.Generator().manual_seed(0)
    right = {r: torch.randn(1, n, r, generator=generator).to(device) for r in columns}
    for backend in ("iterative", "lu", "dense") if device == "cuda" else ("cg", "iterative", "lu", "dense"):
        limit = {"lu": _LU_LIMIT[dim], "dense": _DENSE_LIMIT[device]}.get(backend, 10**9)
        if n > limit or (device == "cuda" and backend == "lu"):
            reason = "on the host only" if device == "cuda" and backend == "lu" else f"limited to {limit} nodes"
            rows: Iterable[dict[str, Any]] = [{"backend": backend, "columns": r, "not_run": reason} for r in columns]
        else:
            rows = _measure(backend, A, M, right, device)
        yield from rows
    if device == "cuda":
        yield from _rival_cupy(A, right, dim)
    for r in columns:
        yield {"backend": "auto", "columns": r, "choice": _choice(A, M, r, APPLICATIONS)}


def _choice(A: EdgeMatrix, M: EdgeMatrix, columns: int, solves: int) -> str:
    """What `auto` takes for this symmetric matrix."""
    dtype = A.values.dtype
    tolerance, bounds = TOLERANCE[dtype], bounds_of(A, M, 1.0, symmetric=True)
    if A.values.is_cuda:
        return choose(A.pattern, 1, columns, bounds.iterations(tolerance), solves)
    return choose_symmetric(A.pattern, 1, columns, mass_ratio(A, M), tolerance, solves, dtype.itemsize,
                            lambda: bounds.within_reach(tolerance, dtype))


def _measure(backend: str, A: EdgeMatrix, M: EdgeMatrix, right: dict[int, torch.Tensor], device: str) -> Iterator[dict[str, Any]]:
    def setup():
        # bounds are part of the set-up of an iteration: they are proven anew for each matrix
        return prepare(A, backend, bounds_of(A, M, 1.0, symmetric=True) if backend == "iterative" else None, True)

    gc.collect()
    base = resident()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        base = torch.cuda.memory_allocated() - sum(t.numel() * t.element_size() for t in _held(A, M, *right.values()))
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    prepared = setup()
    sync(device)
    set_up = time.perf_counter() - begin
    if set_up < 1.0:
        set_up = timed(setup, device, repeats=5, budget=0.5)
    for r, b in right.items():
        try:
            x = prepared.solve(b)
            apply = timed(partial(prepared.solve, b), device, budget=1.0)
            graph = captured(partial(prepared.solve, b)) if device == "cuda" and prepared.capturable else None
        except SolveError as error:
            yield {"backend": backend, "columns": r, "not_run": str(error)}
            continue
        memory = (torch.cuda.max_memory_allocated() if device == "cuda" else resident()) - base
        best = apply if graph is None else min(apply, graph)
        yield {"backend": backend, "columns": r, "label": prepared.label, "setup_s": set_up, "apply_s": best, "eager_s": apply,
               "graph_s": graph, "total_s": set_up + APPLICATIONS * best, "memory_bytes": max(0, memory),
               "residual": _residual(A, b, x)}
        if isinstance(prepared, LU):  # SciPy's splu as a user calls it: the same factors, without our conversions
            wide = b[0].double().cpu().numpy()
            factor = prepared.factor
            plain = timed(partial(factor.solve, wide), "cpu", budget=1.0)
            yield {"backend": "scipy splu", "columns": r, "label": "splu", "setup_s": set_up, "apply_s": plain,
                   "total_s": set_up + APPLICATIONS * plain, "memory_bytes": (factor.L.nnz + factor.U.nnz) * 12,
                   "residual": _residual(A, b, torch.from_numpy(factor.solve(wide))[None])}


def _held(A: EdgeMatrix, M: EdgeMatrix, *right: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of the problem itself: matrices, pattern, right-hand sides. They count as memory of every backend."""
    p = A.pattern
    return [A.values, M.values, *right, p.crow, p.col, p.row, p.diagonal, p.transpose]


def _residual(A: EdgeMatrix, b: torch.Tensor, x: torch.Tensor) -> float:
    """max over columns of ||b - A x|| / ||b||, in float64."""
    A64 = EdgeMatrix(A.pattern, A.values.double())
    rest = b.double() - A64 @ x.double()
    return float((rest.norm(dim=1) / b.double().norm(dim=1)).max())


def _rival_cupy(A: EdgeMatrix, right: dict[int, torch.Tensor], dim: int) -> Iterator[dict[str, Any]]:
    """CuPy's splu: the paper's way on the GPU (factorised on the host, triangular solves on the device)."""
    reason = f"limited to {_CUPY_LIMIT[dim]} nodes" if A.pattern.n > _CUPY_LIMIT[dim] else None
    try:
        import cupy
        from cupyx.scipy.sparse import csc_matrix
        from cupyx.scipy.sparse.linalg import splu as gpu_splu
    except ImportError:
        reason = "CuPy is not installed"
    if reason:
        yield from ({"backend": "cupy splu", "columns": r, "not_run": reason} for r in right)
        return
    matrix = csc_matrix(A.to_scipy().astype(np.float32).tocsc())
    begin = time.perf_counter()
    factor = gpu_splu(matrix)
    set_up = time.perf_counter() - begin
    for r, b in right.items():
        vector = cupy.from_dlpack(b[0].contiguous())
        apply = timed(partial(factor.solve, vector), "cuda", repeats=5)
        x = torch.from_dlpack(factor.solve(vector))[None]
        yield {"backend": "cupy splu", "columns": r, "label": "splu", "setup_s": set_up, "apply_s": apply,
               "total_s": set_up + APPLICATIONS * apply, "residual": _residual(A, b, x)}


def _auto(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case: the choice of `auto`, the best of our backends in the same run, and their ratio."""
    cases: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        cases.setdefault((row["size"], row["stiffness"], row["columns"]), {})[row["backend"]] = row
    out = []
    for (size, s, r), by in cases.items():
        ours = {k: v["total_s"] for k, v in by.items() if k in ("cg", "iterative", "lu", "dense") and "total_s" in v}
        choice = by["auto"]["choice"]
        if choice in ours:
            best = min(ours, key=lambda k: ours[k])
            out.append({"size": size, "stiffness": s, "columns": r, "choice": choice, "best": best,
                        "ratio": ours[choice] / ours[best]})
    return out


def changing(device: str = "cpu", every: int = 10, size: str = "2D 10k", stiff: float = 0.02) -> dict[str, Any]:
    """The operator changes every few solves, as in training: seconds per `every` solves, beside SciPy's splu."""
    A, M = system(*matrices(SIZES[size], device), stiff, torch.float32)
    b = torch.randn(1, A.pattern.n, 1, generator=torch.Generator().manual_seed(0)).to(device)
    right = b[0].double().cpu().numpy()
    choice = _choice(A, M, 1, every)

    def ours():
        fresh = EdgeMatrix(A.pattern, A.values * 1.0)
        prepared = prepare(fresh, choice, bounds_of(fresh, M, 1.0, symmetric=True), True)
        for _ in range(every):
            prepared.solve(b)

    def rival():
        factor = splu(A.to_scipy().astype(np.float64).tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0,
                      options={"SymmetricMode": True})
        for _ in range(every):
            factor.solve(right)

    mine, theirs = timed(ours, device), timed(rival, "cpu")
    return {"size": size, "stiffness": stiff, "every": every, "choice": choice, "ours_s": mine, "splu_s": theirs,
            "ratio": theirs / mine}
