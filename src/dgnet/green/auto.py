"""Which backend is the fastest for a problem: a cost model fitted to `dgnet bench solver` (docs/results/solver.md).

Costs are in units of one sparse product with one column, which itself scales with the number of entries; so the model
compares counts, not seconds, and does not depend on the machine's clock.
"""

from __future__ import annotations

import torch


def choose(n: int, nnz: int, groups: int, columns: int, device: str, dtype: torch.dtype, iterations: int, solves: int,
           symmetric: bool) -> str:
    """Backend for `groups` matrices of n nodes, `columns` right-hand sides each and `solves` solves per matrix.

    `iterations` is the proven count of the fixed iteration (very large when there is no proof).
    """
    spatial = nnz / n > 10  # tetrahedra have about 15 neighbours, triangles 7 with the diagonal
    if device == "cuda":
        if n <= 3_000 and iterations > 60 and solves * columns >= 20:
            return "dense"
        return "iterative"
    krylov = min(iterations, 40 + int(iterations**0.5) * 8) if iterations < 10**8 else 200
    count = iterations if iterations <= 80 else krylov
    iterate = solves * count * _product_cost(n, nnz, columns)
    factor, solve = _direct_cost(n, nnz, spatial, columns)
    return "iterative" if iterate <= factor + solves * solve else "lu"


def _product_cost(n: int, nnz: int, columns: int) -> float:
    """Microseconds of one iteration on the CPU: launch, matrix traffic, vector traffic."""
    return 12.0 + 3.0e-4 * nnz + 2.2e-3 * n * columns


def _direct_cost(n: int, nnz: int, spatial: bool, columns: int) -> tuple[float, float]:
    """Microseconds to factor and to solve with SuperLU."""
    if spatial:
        return 1.6e5 * (n / 6e3) ** 2.4, 2.2e3 * (n / 6e3) ** 1.75 * (1 + 0.55 * (columns - 1))
    return 3.7e4 * (n / 1e4) ** 1.65, 6.0e2 * (n / 1e4) ** 1.58 * (1 + 0.75 * (columns - 1))
