"""The choice of the fastest backend for a problem: cost models fitted by the benchmarks `fit` (CPU) and `solver` (CUDA).

Costs are microseconds on the machines of docs/results/solver.md; what matters is their ratio, and that carries over.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from math import log
from typing import NamedTuple

from dgnet.operators import EdgeMatrix, Pattern
from dgnet.stepping.backends import MAX_FIXED
from dgnet.stepping.bounds import NEVER


class Power(NamedTuple):
    """A cost that grows like a power of the number of rows n: fixed + scale (n / 10^4)^exponent."""

    fixed: float
    scale: float
    exponent: float

    def at(self, n: int) -> float:
        return self.fixed + self.scale * (n / 1e4) ** self.exponent


class Direct(NamedTuple):
    """A factorisation: to make it, and to solve with one and with 32 right-hand sides."""

    setup: Power
    one: Power
    many: Power

    def cost(self, n: int, columns: int, solves: int, quadratic: bool) -> float:
        """Quadratic elements couple more nodes with each other, and fill grows along."""
        solve = self.one.at(n) if columns == 1 else self.many.at(n) * columns / 32
        return (2.5 if quadratic else 1.0) * self.setup.at(n) + solves * (1.6 if quadratic else 1.0) * solve


class Iterated(NamedTuple):
    """Conjugate gradients: fixed cost and cost per entry of a solve; fixed cost of an iteration and its cost at 10^6 entries.

    An iteration grows with a power of the entries, since large matrices leave the cache.
    """

    solve: float
    solve_entry: float
    iteration: float
    scale: float
    exponent: float

    def cost(self, nnz: int, iterations: float) -> float:
        return self.solve + self.solve_entry * nnz + iterations * (self.iteration + self.scale * (nnz / 1e6) ** self.exponent)


class Fixed(NamedTuple):
    """The fixed iteration: cost of a solve; of an iteration, a fixed one, one per entry, and one at 10^6 entries times columns."""

    solve: float
    iteration: float
    iteration_entry: float
    scale: float
    exponent: float

    def cost(self, nnz: int, columns: int, count: int) -> float:
        products = self.scale * (nnz * columns / 1e6) ** self.exponent
        return self.solve + count * (self.iteration + self.iteration_entry * nnz + products)


# by the dimension of the mesh and the bytes of a number; written by `python -m benchmarks fit`
DIRECT = {
    ("lu", 2): Direct(Power(226, 1.475e+04, 1.279), Power(8.943, 415.2, 1.248), Power(60.09, 1.138e+04, 1.399)),
    ("lu", 3): Direct(Power(1096, 3.521e+05, 2.205), Power(10.04, 5399, 1.802), Power(196.3, 6.119e+04, 1.617)),
    ("cholesky", 2): Direct(Power(73.8, 42250, 1.233), Power(11.1, 333, 1.388), Power(0.0, 5968, 1.307)),
    ("cholesky", 3): Direct(Power(2005, 396200, 2.22), Power(0.0, 3695, 1.73), Power(0.0, 41170, 1.744)),
}
CONJUGATE = {  # of one right-hand side
    (2, 4): Iterated(90.0, 0.003, 22.0, 560.0, 1.05),
    (2, 8): Iterated(90.0, 0.003, 22.0, 700.0, 1.05),
    (3, 4): Iterated(90.0, 0.003, 22.0, 430.0, 1.05),
    (3, 8): Iterated(90.0, 0.003, 22.0, 560.0, 1.05),
}
CONJUGATE_32 = {  # of 32 at once
    (2, 4): Iterated(90.0, 0.1, 60.0, 4e4, 1.05),
    (2, 8): Iterated(90.0, 0.1, 60.0, 4e4, 1.05),
    (3, 4): Iterated(90.0, 0.1, 60.0, 2e4, 1.05),
    (3, 8): Iterated(90.0, 0.1, 60.0, 2e4, 1.05),
}
FIXED = {
    (2, 4): Fixed(44.48, 11.89, 0.001433, 151.1, 1.242),
    (2, 8): Fixed(415.6, 0.0, 0.001078, 424.9, 1.229),
    (3, 4): Fixed(0.0, 13.26, 0.0009462, 103.5, 0.9743),
    (3, 8): Fixed(307.8, 3.001, 0.0006282, 271.7, 1.04),
}
FIXED_SETUP = (135.3, 0.01535)  # and per entry, with the proof of the count
DENSE = {  # to invert, and to multiply with 32 right-hand sides
    4: (Power(2.319e-05, 3.319e+07, 2.549), Power(0.0, 8.815e+04, 1.892)),
    8: (Power(6.101e-06, 4.313e+07, 2.669), Power(0.0, 1.311e+06, 2.395)),
}
CONJUGATE_SETUP = (300.0, 0.01)  # and per entry
COUNT = (0.72, 0.5)  # iterations for a factor e of the residual: at a ratio of 1, and the power with which they grow
INVERTED = 1500  # nodes up to which an explicit inverse is thought of
QUADRATIC = 1.8  # times the iterations of conjugate gradients with linear elements at the same ratio
_SHORT = 5  # a count of the fixed iteration that is hardly ever undercut
_WARM, _FIRST = 0.65, 15  # share of them that good starts leave, and after how many solves


def mass_ratio(A: EdgeMatrix, M: EdgeMatrix) -> float:
    """The mean of A_ii over the sum of row i of M: about 1 + 2 dt D / h^2, or where the mass is consistent half less.

    Only rows with a mass count: with quadratic elements those of corners sum to zero or less, up to rounding.
    """
    mass = M.row_sums().detach()
    ratios = A.diagonal.detach() / mass
    heavy = (mass > 1e-6 * mass.abs().max()).expand_as(ratios)
    return float(ratios[heavy].mean()) if heavy.any() else 1.0


def iterations(ratio: float, tolerance: float, quadratic: bool = False) -> float:
    """Iterations of conjugate gradients for a `mass_ratio`; ratios below 1 (consistent mass) need extra ones."""
    return max(1.0, (QUADRATIC if quadratic else 1.0) * COUNT[0] * max(ratio, 1 / ratio) ** COUNT[1] * log(1 / tolerance))


def choose_symmetric(pattern: Pattern, groups: int, columns: int, ratio: float, tolerance: float, solves: int,
                     size: int = 8, proven: Callable[[], int] = lambda: NEVER) -> str:
    """Backend on the CPU for `groups` symmetric positive definite matrices, `columns` right-hand sides each, `solves` times.

    Numbers have `size` bytes. `proven` gives the count of the fixed iteration; it is asked for only where a short one would win.
    """
    n, nnz = pattern.n, pattern.nnz * groups
    nodes = pattern.cell_slots.shape[-1]  # of a cell: 3 or 6 of a triangle, 4 or 10 of a tetrahedron
    dim, quadratic = 3 if nodes in (4, 10) else 2, nodes in (6, 10)
    direct = ["lu"] if find_spec("cholespy") is None else ["lu", "cholesky"]
    costs = {name: groups * DIRECT[name, dim].cost(n, columns, solves, quadratic) for name in direct}
    count = iterations(ratio, tolerance, quadratic)
    count *= _WARM + (1 - _WARM) * min(1.0, _FIRST / solves)
    each = CONJUGATE[dim, size].cost(nnz, count) if columns == 1 else CONJUGATE_32[dim, size].cost(nnz, count) * columns / 32
    costs["cg"] = CONJUGATE_SETUP[0] + CONJUGATE_SETUP[1] * nnz + solves * each
    if columns > 1 and n <= INVERTED:
        setup, many = DENSE[size]
        costs["dense"] = groups * (setup.at(n) + solves * many.at(n) * columns / 32)
    if columns > 1 or quadratic:  # of one with linear elements, conjugate gradients take a third of the iterations and win

        def fixed(count: int) -> float:
            each = FIXED[dim, size].cost(nnz, columns, count) if columns > 1 else _iterated(n * groups, nnz, 1, count)
            return FIXED_SETUP[0] + FIXED_SETUP[1] * nnz + solves * each

        if fixed(_SHORT) < min(costs.values()) and (needed := proven()) <= MAX_FIXED["cpu"]:
            costs["iterative"] = fixed(needed)
    return min(costs, key=lambda name: costs[name])


def choose(pattern: Pattern, groups: int, columns: int, iterations: int, solves: int) -> str:
    """Backend for `groups` matrices on a pattern, `columns` right-hand sides each and `solves` solves per matrix.

    On CUDA for any matrix, on the CPU for those that are not symmetric. `iterations` is the proven count of the fixed iteration
    (very large when there is no proof).
    """
    n, nnz = pattern.n, pattern.nnz
    if pattern.device.type == "cuda":
        return _choose_cuda(n, nnz, groups, columns, iterations, solves)
    nodes = pattern.cell_slots.shape[-1]
    # where the fixed count is too long, Krylov methods take fewer but dearer steps: about as much work
    count = min(iterations, 1000)
    bounds = 250.0 + 0.01 * nnz * groups
    iterate = bounds + solves * _iterated(n * groups, nnz * groups, columns, count)
    direct = DIRECT["lu", 3 if nodes in (4, 10) else 2].cost(n, columns, solves, nodes in (6, 10))
    return "iterative" if iterate <= groups * direct else "lu"


def _choose_cuda(n: int, nnz: int, groups: int, columns: int, iterations: int, solves: int) -> str:
    """The fused iteration, or for few nodes and stiff matrices the explicit inverse (a direct solver runs on the host)."""
    width = 1 + 0.64 * (columns - 1)
    each = 15.0 + min(iterations, 3000) * max(1.95, 3.2e-6 * nnz * groups * width)
    if n > 12_000 or groups * n * n > 4e8:
        return "iterative"
    dense_setup = 4.5e3 * max(1.0, n / 1300) ** 1.55 * groups
    dense = max(10.0, n * n * groups * 1.03e-6) * (1 + 0.02 * (columns - 1))
    return "dense" if dense_setup + solves * dense < 700.0 + solves * each else "iterative"


def _iterated(n: int, nnz: int, columns: int, count: int) -> float:
    """A solve by `count` fixed iterations on the CPU: calls, matrix traffic, and vectors that may fall out of the cache."""
    entries = n * columns
    vectors = 0.0 if columns == 1 else 5e-4 * entries * (1 + min(2.0, entries / 1.5e6))
    return 60.0 + count * (13.0 + 3.2e-4 * nnz + vectors)
