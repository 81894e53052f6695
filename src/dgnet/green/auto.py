"""Which backend is the fastest for a problem: a cost model fitted to `dgnet bench solver` (docs/results/solver.md).

Costs are microseconds on the machines of that page; what matters is their ratio, and that carries over.
"""

from __future__ import annotations

import torch


def choose(n: int, nnz: int, groups: int, columns: int, device: str, dtype: torch.dtype, iterations: int, solves: int,
           symmetric: bool) -> str:
    """Backend for `groups` matrices of n nodes, `columns` right-hand sides each and `solves` solves per matrix.

    `iterations` is the proven count of the fixed iteration (very large when there is no proof).
    """
    if device == "cuda":
        return _choose_cuda(n, nnz, groups, columns, iterations, solves)
    spatial = nnz / n > 10  # tetrahedra have about 15 neighbours, triangles 7 with the diagonal
    krylov = min(iterations, 40 + int(iterations**0.5) * 8) if iterations < 10**8 else 200
    count = iterations if iterations <= 80 else 2 * krylov
    iterate = 15.0 + 0.02 * nnz * groups + solves * count * _product_cost(n * groups, nnz * groups, columns)
    factor, solve = _direct_cost(n, spatial, columns)
    return "iterative" if iterate <= groups * (factor + solves * solve) else "lu"


def _choose_cuda(n: int, nnz: int, groups: int, columns: int, iterations: int, solves: int) -> str:
    """The fused iteration, or for few nodes and stiff matrices the explicit inverse (a direct solver runs on the host)."""
    width = 1 + 0.64 * (columns - 1)
    each = 15.0 + min(iterations, 3000) * max(1.95, 3.2e-6 * nnz * groups * width)
    if n > 12_000 or groups * n * n > 4e8:
        return "iterative"
    dense_setup = 4.5e3 * max(1.0, n / 1300) ** 1.55 * groups
    dense = max(10.0, n * n * groups * 1.03e-6) * (1 + 0.02 * (columns - 1))
    return "dense" if dense_setup + solves * dense < 700.0 + solves * each else "iterative"


def _product_cost(n: int, nnz: int, columns: int) -> float:
    """One iteration on the CPU: launch, matrix traffic, vector traffic."""
    return 12.0 + 3.0e-4 * nnz + 2.2e-3 * n * columns


def _direct_cost(n: int, spatial: bool, columns: int) -> tuple[float, float]:
    """To factor and to solve with SuperLU."""
    if spatial:
        return 1.6e5 * (n / 6e3) ** 2.4, 2.2e3 * (n / 6e3) ** 1.75 * (1 + 0.55 * (columns - 1))
    return 3.7e4 * (n / 1e4) ** 1.65, 6.0e2 * (n / 1e4) ** 1.58 * (1 + 0.75 * (columns - 1))
