"""The automatic choice on the CPU: what it takes where there is no doubt, and the fit of its constants."""

import numpy as np
import pytest

from dgnet.bench.fit import fitted
from dgnet.green import GreenSolver, auto
from dgnet.green.auto import DIRECT, SWEEPS, choose_symmetric, iterations
from dgnet.mesh import box
from dgnet.operators import Pattern
from dgnet.problems import PDE, Discretisation


@pytest.fixture(autouse=True)
def without_extras(monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: None)


class Large(Pattern):
    """A pattern of which only the sizes are asked for."""

    @property
    def nnz(self) -> int:
        return (7 if self.cell_slots.shape[-1] == 3 else 14) * self.n


def large(dim: int, n: int) -> Pattern:
    one = Pattern.from_cells(np.arange(dim + 1)[None], dim + 1)
    return Large(n, one.crow, one.col, one.row, one.diagonal, one.transpose, one.cell_slots)


@pytest.mark.parametrize("dim, n, columns, ratio, solves, expected", [
    (2, 10_000, 1, 40.0, 100, "lu"),  # few nodes in the plane: a factorisation is cheap
    (2, 100_000, 1, 40.0, 1000, "lu"),  # stiff in the plane
    (2, 100_000, 1, 2.0, 100, "cg"),  # mild
    (2, 10_000, 1, 2.0, 1, "cg"),  # used once
    (3, 50_000, 1, 40.0, 100, "cg"),  # fill in space
    (3, 50_000, 1, 2.0, 10_000, "cg"),
    (3, 1_000, 32, 40.0, 10_000, "lu"),
])
def test_clear_cases(dim, n, columns, ratio, solves, expected):
    assert choose_symmetric(large(dim, n), 1, columns, ratio, 1e-10, solves) == expected


def test_operators_that_do_not_change_are_factorised_sooner():
    pattern = large(2, 30_000)
    chosen = [choose_symmetric(pattern, 1, 1, 10.0, 1e-10, solves) for solves in (1, 3, 10, 30, 100, 300, 1000)]
    assert chosen[0] == "cg" and chosen[-1] == "lu" and chosen == sorted(chosen)


def test_the_extra_is_taken_where_it_pays(monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: object())
    assert choose_symmetric(large(2, 10_000), 1, 32, 40.0, 1e-10, 10_000) == "cholesky"


def test_where_sweeps_fail_and_where_a_flow_asks_for_more(monkeypatch):
    monkeypatch.setattr(auto, "sweeps_work", lambda: False)
    assert choose_symmetric(large(3, 50_000), 1, 1, 2.0, 1e-10, 100) == "lu"
    flow = Discretisation(box((8, 8)), PDE(diffusion=0.1, velocity=[1.0, 0.0]), [], 0.01)
    assert GreenSolver(flow).operator().backend in ("lu", "iterative")


def test_the_fit_finds_the_constants_that_made_the_rows():
    rows = []
    for dim in (2, 3):
        for n in (500, 2_500, 10_000, 60_000, 200_000):
            lu = DIRECT["lu", dim]
            rows.append({"backend": "lu", "dim": dim, "n": n, "setup": lu.setup.at(n), "one": lu.one.at(n), "many": lu.many.at(n)})
            for ratio in (2.0, 10.0, 100.0):
                count, nnz = iterations(ratio, 1e-6), 10 * n
                cost = SWEEPS[dim].cost(nnz, count)
                rows.append({"backend": "cg", "dim": dim, "n": n, "nnz": nnz, "ratio": ratio, "tolerance": 1e-6,
                             "iterations": count, "setup": 300 + 0.02 * nnz, "one": cost, "many": cost})
    found = fitted(rows)
    np.testing.assert_allclose(found["COUNT"], auto.COUNT, rtol=1e-3)
    np.testing.assert_allclose(found["SWEEPS_SETUP"], (300, 0.02), rtol=1e-3)
    for dim in (2, 3):
        np.testing.assert_allclose(found["SWEEPS"][str(dim)], SWEEPS[dim], rtol=0.02)
        np.testing.assert_allclose(found["DIRECT"][f"lu {dim}"][2], DIRECT["lu", dim].many, rtol=0.02)
