"""Which backend is the fastest for a problem: a cost model fitted to `dgnet bench solver` (docs/results/solver.md).

Costs are microseconds on the machines of that page; what matters is their ratio, and that carries over.
"""

from __future__ import annotations

from dgnet.operators import Pattern


def choose(pattern: Pattern, groups: int, columns: int, iterations: int, solves: int) -> str:
    """Backend for `groups` matrices on a pattern, `columns` right-hand sides each and `solves` solves per matrix.

    `iterations` is the proven count of the fixed iteration (very large when there is no proof).
    """
    n, nnz = pattern.n, pattern.nnz
    if pattern.device.type == "cuda":
        return _choose_cuda(n, nnz, groups, columns, iterations, solves)
    nodes = pattern.cell_slots.shape[-1]  # of a cell: 3 or 6 of a triangle, 4 or 10 of a tetrahedron
    # where the fixed count is too long, conjugate gradients take fewer but dearer steps: about as much work
    count = min(iterations, 1000)
    bounds = 250.0 + 0.01 * nnz * groups
    iterate = bounds + solves * (60.0 + count * _iteration_cost(n * groups, nnz * groups, columns))
    factor, solve = _direct_cost(n, nodes in (4, 10), columns)
    if nodes in (6, 10):  # quadratic elements couple more nodes with each other, and fill grows along
        factor, solve = 2.5 * factor, 1.6 * solve
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


def _iteration_cost(n: int, nnz: int, columns: int) -> float:
    """One iteration on the CPU: calls, matrix traffic, and vectors that may fall out of the cache."""
    entries = n * columns
    vectors = 0.0 if columns == 1 else 5e-4 * entries * (1 + min(2.0, entries / 1.5e6))
    return 13.0 + 3.2e-4 * nnz + vectors


def _direct_cost(n: int, spatial: bool, columns: int) -> tuple[float, float]:
    """To factor and to solve with SuperLU; fill grows much faster in space than in the plane."""
    if spatial:
        return 7.1e4 * (n / 5832) ** 2.23, 30.0 + 1.25e3 * (n / 5832) ** 1.72 * (1 + 0.45 * (columns - 1))
    return 1.45e4 * (n / 1e4) ** 1.3, 30.0 + 3.8e2 * (n / 1e4) ** 1.3 * (1 + 0.75 * (columns - 1))
