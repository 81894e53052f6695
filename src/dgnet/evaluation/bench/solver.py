"""`dgnet bench solver`: one application of G by every backend, beside SciPy's and CuPy's sparse LU, in one run.

The matrix is the paper's, A = M + dt/2 K with lumped M, on perturbed boxes; stiffness is dt D / (2 h^2). Totals are for 100
applications with set-up included. What is not run says why.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import splu

from dgnet import __version__
from dgnet.errors import InputError, SolveError
from dgnet.evaluation.bench.timing import captured, hardware, resident, timed
from dgnet.green.auto import choose
from dgnet.green.backends import TOLERANCE, prepare
from dgnet.green.bounds import Bounds, bounds_of
from dgnet.mesh import box
from dgnet.operators import EdgeMatrix, Geometry, mass, stiffness

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
        columns: tuple[int, ...] = (1, 32), report: Callable[[dict[str, Any]], None] = lambda row: None) -> dict[str, Any]:
    """All rows, with `auto`'s choice and how it compares with the best of the same run."""
    unknown = set(sizes or []) - set(SIZES)
    if unknown:
        raise InputError(f"unknown size '{min(unknown)}' (known: {', '.join(SIZES)})")
    rows = []
    for name in sizes or SIZES:
        mass_matrix, K, h = matrices(SIZES[name], device)
        for s in stiff:
            A, M = system(mass_matrix, K, h, s, torch.float32)
            for r in columns:
                case = {"size": name, "nodes": A.pattern.n, "stiffness": s, "columns": r}
                for row in _case(A, M, r, device, len(SIZES[name])):
                    rows.append(case | row)
                    report(rows[-1])
    return {"benchmark": "solver", "version": __version__, "hardware": hardware(device), "device": device,
            "dtype": "float32", "applications": APPLICATIONS, "rows": rows, "auto": _auto(rows)}


def _case(A: EdgeMatrix, M: EdgeMatrix, columns: int, device: str, dim: int) -> Iterator[dict[str, Any]]:
    n = A.pattern.n
    generator = torch.Generator().manual_seed(0)
    b = torch.randn(1, n, columns, generator=generator).to(device)
    bounds = bounds_of(A, M, 1.0, symmetric=True)
    for backend in ("iterative", "lu", "dense"):
        limit = {"iterative": 10**9, "lu": _LU_LIMIT[dim], "dense": _DENSE_LIMIT[device]}[backend]
        if n > limit or (device == "cuda" and backend == "lu"):
            reason = "on the host only" if device == "cuda" and backend == "lu" else f"limited to {limit} nodes"
            yield {"backend": backend, "not_run": reason}
            continue
        yield _measure(backend, A, M, bounds, b, device)
    yield _rival_cupy(A, b, dim) if device == "cuda" else _rival_scipy(A, b, dim)
    count = bounds.iterations(TOLERANCE[A.values.dtype])
    yield {"backend": "auto", "choice": choose(n, A.pattern.nnz, 1, columns, device, A.values.dtype, count, APPLICATIONS, True)}


def _measure(backend: str, A: EdgeMatrix, M: EdgeMatrix, bounds: Bounds, b: torch.Tensor, device: str) -> dict[str, Any]:
    def setup():
        # bounds are part of the set-up of an iteration: they are proven anew for each matrix
        return prepare(A, backend, bounds_of(A, M, 1.0, symmetric=True) if backend == "iterative" else bounds, True)

    base = resident()
    if device == "cuda":
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        base = torch.cuda.memory_allocated() - sum(t.numel() * t.element_size() for t in _held(A, M, b))
        torch.cuda.reset_peak_memory_stats()
    try:
        begin = time.perf_counter()
        prepared = setup()
        prepared.solve(b)
        first = time.perf_counter() - begin
        set_up = timed(setup, device, repeats=3, budget=0.5) if first < 5 else first
        x = prepared.solve(b)
        apply = timed(lambda: prepared.solve(b), device)
        graph = captured(lambda: prepared.solve(b)) if device == "cuda" and prepared.capturable else None
    except SolveError as error:
        return {"backend": backend, "not_run": str(error)}
    memory = (torch.cuda.max_memory_allocated() if device == "cuda" else resident()) - base
    best = apply if graph is None else min(apply, graph)
    return {"backend": backend, "label": prepared.label, "setup_s": set_up, "apply_s": best, "eager_s": apply, "graph_s": graph,
            "total_s": set_up + APPLICATIONS * best, "memory_bytes": max(0, memory), "residual": _residual(A, b, x)}


def _held(A: EdgeMatrix, M: EdgeMatrix, b: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of the problem itself: matrices, pattern, right-hand sides. They count as memory of every backend."""
    p = A.pattern
    return [A.values, M.values, b, p.crow, p.col, p.row, p.diagonal, p.transpose]


def _residual(A: EdgeMatrix, b: torch.Tensor, x: torch.Tensor) -> float:
    """max over columns of ||b - A x|| / ||b||, in float64."""
    A64 = EdgeMatrix(A.pattern, A.values.double())
    rest = b.double() - A64 @ x.double()
    return float((rest.norm(dim=1) / b.double().norm(dim=1)).max())


def _rival_scipy(A: EdgeMatrix, b: torch.Tensor, dim: int) -> dict[str, Any]:
    """SciPy's splu as a user calls it, with the ordering and mode that suit these matrices best."""
    if A.pattern.n > _LU_LIMIT[dim]:
        return {"backend": "scipy splu", "not_run": f"limited to {_LU_LIMIT[dim]} nodes"}
    matrix, right = A.to_scipy().astype(np.float64).tocsc(), b[0].double().numpy()
    begin = time.perf_counter()
    factor = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    set_up = time.perf_counter() - begin
    apply = timed(lambda: factor.solve(right), "cpu")
    x = torch.from_numpy(factor.solve(right))[None]
    return {"backend": "scipy splu", "label": "splu", "setup_s": set_up, "apply_s": apply, "total_s": set_up + APPLICATIONS * apply,
            "memory_bytes": (factor.L.nnz + factor.U.nnz) * 12, "residual": _residual(A, b, x)}


def _rival_cupy(A: EdgeMatrix, b: torch.Tensor, dim: int) -> dict[str, Any]:
    """CuPy's splu: the paper's way on the GPU (factorised on the host, triangular solves on the device)."""
    if A.pattern.n > _CUPY_LIMIT[dim]:
        return {"backend": "cupy splu", "not_run": f"limited to {_CUPY_LIMIT[dim]} nodes"}
    try:
        import cupy
        from cupyx.scipy.sparse import csc_matrix
        from cupyx.scipy.sparse.linalg import splu as gpu_splu
    except ImportError:
        return {"backend": "cupy splu", "not_run": "CuPy is not installed"}
    matrix = csc_matrix(A.to_scipy().astype(np.float32).tocsc())
    right = cupy.from_dlpack(b[0].contiguous())
    begin = time.perf_counter()
    factor = gpu_splu(matrix)
    set_up = time.perf_counter() - begin
    apply = timed(lambda: factor.solve(right), "cuda", repeats=5)
    x = torch.from_dlpack(factor.solve(right))[None]
    return {"backend": "cupy splu", "label": "splu", "setup_s": set_up, "apply_s": apply, "total_s": set_up + APPLICATIONS * apply,
            "residual": _residual(A, b, x)}


def _auto(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case: the choice of `auto`, the best of our backends in the same run, and their ratio."""
    cases: dict[tuple, dict[str, dict]] = {}
    for row in rows:
        cases.setdefault((row["size"], row["stiffness"], row["columns"]), {})[row["backend"]] = row
    out = []
    for (size, s, r), by in cases.items():
        ours = {k: v["total_s"] for k, v in by.items() if k in ("iterative", "lu", "dense") and "total_s" in v}
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
    count = bounds_of(A, M, 1.0, symmetric=True).iterations(TOLERANCE[torch.float32])
    choice = choose(A.pattern.n, A.pattern.nnz, 1, 1, device, torch.float32, count, every, True)

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
