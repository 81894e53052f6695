"""The automatic choice on the CPU: what it takes where there is no doubt, and the fit of its constants."""

import numpy as np
import pytest
import torch

from benchmarks.fit import fitted
from dgnet.errors import SolveError
from dgnet.mesh import box
from dgnet.models import Classical
from dgnet.operators import EdgeMatrix, Geometry, Pattern, mass, stiffness
from dgnet.problems import PDE, Problem
from dgnet.stepping import GreenSolver, auto, operator
from dgnet.stepping.auto import CONJUGATE, DENSE, DIRECT, FIXED, choose_symmetric, iterations, mass_ratio
from dgnet.stepping.backends import ConjugateOrLU, Krylov
from dgnet.stepping.bounds import NEVER, Bounds


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
    (2, 100_000, 1, 2.0, 10, "cg"),  # mild
    (2, 10_000, 1, 2.0, 1, "cg"),  # used once
    (3, 50_000, 1, 40.0, 100, "cg"),  # fill in space
    (3, 50_000, 1, 2.0, 10_000, "cg"),
    (3, 1_000, 32, 40.0, 10_000, "lu"),
])
def test_clear_cases(dim, n, columns, ratio, solves, expected):
    assert choose_symmetric(large(dim, n), 1, columns, ratio, 1e-10, solves) == expected


@pytest.mark.parametrize("dim, n, ratio, expected", [
    (2, 10_000, 2.0, "lu"), (2, 10_000, 40.0, "lu"), (2, 100_000, 2.0, "cg"), (2, 100_000, 40.0, "lu"),
    (3, 50_000, 2.0, "cg"), (3, 50_000, 40.0, "cg"),
])
def test_hundred_steps_in_single_precision(dim, n, ratio, expected):
    assert choose_symmetric(large(dim, n), 1, 1, ratio, 1e-6, 100, 4) == expected


@pytest.mark.parametrize("dim, n, columns, size, count, expected", [
    (3, 10_000, 32, 4, 16, "iterative"),  # mild, with many columns in space: one product for all of them
    (2, 10_000, 32, 4, 14, "iterative"),
    (3, 10_000, 32, 8, NEVER, "cg"),  # without a proof
    (3, 10_000, 32, 8, 81, "cg"),  # it would not be the fixed iteration
    (3, 600, 32, 4, 16, "dense"),  # few nodes in space
    (3, 600, 32, 8, 16, "lu"),  # twice the bytes
    (2, 600, 32, 4, 16, "lu"),  # in the plane factors are sparse
])
def test_many_columns(dim, n, columns, size, count, expected):
    assert choose_symmetric(large(dim, n), 1, columns, 2.0, 1e-6, 2000, size, lambda: count) == expected


def test_the_proof_is_asked_for_only_where_it_may_matter():
    def never():
        raise AssertionError("asked for")

    assert choose_symmetric(large(3, 10_000), 1, 1, 2.0, 1e-6, 2000, 4, never) == "cg"  # one column
    assert choose_symmetric(large(2, 500), 1, 32, 2.0, 1e-6, 10_000, 8, never) == "lu"  # even a short count loses
    assert Bounds(0.5, 2.0).within_reach(1e-6, torch.float32) == Bounds(0.5, 2.0).iterations(1e-6)
    assert Bounds(0.01, 2.0).within_reach(1e-6, torch.float32) == NEVER  # rounding in float32 leaves more than the tolerance
    assert Bounds(0.0, 2.0).within_reach(1e-6, torch.float64) == NEVER


def test_all_choices_solve_the_same_steps(monkeypatch):
    p = Problem(box((4, 3, 3), perturb=0.2), PDE(diffusion=0.1), [], 0.01)
    u = torch.rand(4, p.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = GreenSolver(p, "lu").step(u)
    for name in ("iterative", "dense", "cg"):
        monkeypatch.setattr(operator, "choose_symmetric", lambda *given, name=name: name)
        solver = GreenSolver(p, columns=4)
        torch.testing.assert_close(solver.step(u), exact, rtol=1e-9, atol=1e-10)
        assert solver.operator().backend == name


def test_where_conjugate_gradients_fail_a_factorisation_takes_over(monkeypatch):
    """No convergence within the iterations that are allowed."""
    monkeypatch.setattr(operator, "choose_symmetric", lambda *given: "cg")
    p = Problem(box((6, 5), perturb=0.2), PDE(diffusion=1.0), [], 1.0)
    u = torch.rand(2, p.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    solver, exact = GreenSolver(p), GreenSolver(p, "lu")
    assert solver.operator().prepared.label == "cg"
    with monkeypatch.context() as patch:
        patch.setattr(Krylov.__init__, "__defaults__", (1, False))
        solver.operator().prepared.inner.max_iterations = 1
        torch.testing.assert_close(solver.step(u), exact.step(u), rtol=1e-9, atol=1e-10)
        with pytest.raises(SolveError, match="cg stopped"):
            GreenSolver(p, "cg").step(u)  # who asks for it by name is told
    assert solver.operator().prepared.label == "lu"
    with pytest.raises(SolveError, match="not finite"):
        solver.step(u * torch.nan)


@pytest.mark.parametrize("share, positive", [(3.0, True), (1000.0, False)])
def test_a_matrix_that_is_not_positive_definite_is_factorised(share, positive):
    """K - share M: the constant field has a negative energy; the diagonal is positive, or not even that."""
    g = Geometry.of(box((6, 5), perturb=0.2))
    A = stiffness(g) + mass(g, 1.0) * -share
    A = EdgeMatrix(A.pattern, A.values[None])
    full = A.to_scipy().toarray()
    assert np.linalg.eigvalsh(full).min() < 0 and bool((np.diag(full) > 0).all()) == positive
    b = np.random.default_rng(0).normal(size=(len(full), 3))
    for transposed in (False, True):
        found = ConjugateOrLU(A, 1e-12).solve(torch.from_numpy(b)[None], transposed)[0].numpy()
        np.testing.assert_allclose(found, np.linalg.solve(full, b), rtol=1e-8, atol=1e-8)


def test_operators_that_do_not_change_are_factorised_sooner():
    pattern = large(2, 30_000)
    chosen = [choose_symmetric(pattern, 1, 1, 10.0, 1e-10, solves) for solves in (1, 3, 10, 30, 100, 300, 1000)]
    assert chosen[0] == "cg" and chosen[-1] == "lu" and chosen == sorted(chosen)


def test_the_extra_is_taken_where_it_pays(monkeypatch):
    monkeypatch.setattr(auto, "find_spec", lambda name: object())
    assert choose_symmetric(large(2, 10_000), 1, 32, 40.0, 1e-10, 10_000) == "cholesky"


def test_a_flow_is_factorised_or_iterated():
    flow = Problem(box((8, 8)), PDE(diffusion=0.1, velocity=[1.0, 0.0]), [], 0.01)
    assert GreenSolver(flow).operator().backend in ("lu", "iterative")


def test_the_fit_finds_the_constants_that_made_the_rows():
    rows = []
    for dim in (2, 3):
        for n in (500, 2_500, 10_000, 60_000, 200_000):
            for size, (setup, many) in DENSE.items():
                head, nnz, lu = {"bytes": size, "dim": dim, "n": n, "nnz": 10 * n}, 10 * n, DIRECT["lu", dim]
                rows.append(head | {"backend": "lu", "setup": lu.setup.at(n), "one": lu.one.at(n), "many": lu.many.at(n)})
                rows.append(head | {"backend": "dense", "setup": setup.at(n), "many": many.at(n)})
                rows += [head | {"backend": "iterative", "columns": columns, "iterations": count, "setup": 200 + 0.01 * nnz,
                                 "solve": FIXED[dim, size].cost(nnz, columns, count)} for columns in (4, 32) for count in (15, 30)]
                for ratio in (2.0, 10.0, 100.0):
                    count = iterations(ratio, 1e-6)
                    cost = CONJUGATE[dim, size].cost(nnz, count)
                    rows.append(head | {"backend": "cg", "ratio": ratio, "tolerance": 1e-6, "iterations": count,
                                        "setup": 300 + 0.02 * nnz, "one": cost, "many": cost})
    found = fitted(rows)
    np.testing.assert_allclose(found["COUNT"], auto.COUNT, rtol=1e-3)
    np.testing.assert_allclose(found["CONJUGATE_SETUP"], (300, 0.02), rtol=1e-3)
    np.testing.assert_allclose(found["FIXED_SETUP"], (200, 0.01), rtol=1e-3)
    for size, powers in DENSE.items():
        np.testing.assert_allclose(found["DENSE"][str(size)], powers, rtol=0.02, atol=1e-3)
    for dim in (2, 3):
        for size in DENSE:
            np.testing.assert_allclose(found["CONJUGATE"][f"{dim} {size}"], CONJUGATE[dim, size], rtol=0.02, atol=1e-3)
            np.testing.assert_allclose(found["FIXED"][f"{dim} {size}"], FIXED[dim, size], rtol=0.02, atol=1e-3)
        np.testing.assert_allclose(found["DIRECT"][f"lu {dim}"][2], DIRECT["lu", dim].many, rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("shape", [(5, 5), (3, 3, 3)], ids=["plane", "space"])
def test_the_ratio_of_quadratic_elements_leaves_out_corners(shape: tuple[int, ...]) -> None:
    """Whose rows of the mass sum to zero, up to rounding, or less."""
    problem = Problem(box(shape), PDE(diffusion=0.02), [], 0.05, dtype=torch.float64)
    op = Classical(degree=2).prepare(problem).main.operator()
    assert float(op.M.row_sums().min()) <= 1e-15 and 0.1 < mass_ratio(op.full, op.M) < 10


@pytest.mark.parametrize("shape", [(20, 20), (6, 6, 6)], ids=["plane", "space"])
@pytest.mark.parametrize("fourier", [0.02, 0.5, 5.0])
def test_iterations_with_quadratic_elements_are_counted(shape: tuple[int, ...], fourier: float) -> None:
    """Conjugate gradients take about twice as many as with linear elements of the same ratio."""
    problem = Problem(box(shape, perturb=0.2), PDE(diffusion=1.0), [], fourier / shape[0] ** 2)
    op = Classical(degree=2).prepare(problem).main.operator()
    cg = Krylov(op.flat, True, op.tolerance)
    cg.solve(torch.randn(1, op.A.pattern.n, 1, generator=torch.Generator().manual_seed(0)))
    assert 0.6 < iterations(mass_ratio(op.full, op.M), op.tolerance, quadratic=True) / cg.last_count < 1.7


def test_one_right_hand_side_with_quadratic_elements_is_iterated_where_that_is_proven_short() -> None:
    problem = Problem(box((40, 40), perturb=0.2), PDE(diffusion=0.02), [], 1e-3)
    solvers = {backend: GreenSolver(Classical(degree=2).prepare(problem).problem, solves=10, backend=backend)
               for backend in ("auto", "lu")}
    assert solvers["auto"].operator().backend == "iterative"
    x = torch.linspace(0, 1, solvers["lu"].problem.n)[None, :, None]
    torch.testing.assert_close(solvers["auto"].step(x, None, 0.0), solvers["lu"].step(x, None, 0.0), rtol=1e-5, atol=1e-6)
