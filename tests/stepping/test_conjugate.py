"""Conjugate gradients: the same answers as dense algebra, starts from the last solutions, honest failures."""

import numpy as np
import pytest
import torch

from dgnet.errors import InputError, SolveError
from dgnet.mesh import box
from dgnet.operators import EdgeMatrix, Geometry, mass, stiffness
from dgnet.problems import PDE, Dirichlet, Problem, Robin
from dgnet.stepping import GreenSolver, backends
from dgnet.stepping.backends import LU, Krylov, apply, prepare
from tests.conftest import shuffled

PLANE, SPACE = box((12, 11), perturb=0.24, seed=2), box((5, 4, 6), perturb=0.2, seed=2)


def matrix(mesh, stiff: float, share: float = 1.0, copies: int = 1) -> EdgeMatrix:
    """M + stiff h^2 K, `copies` of them with growing K."""
    g = Geometry.of(mesh)
    M, K = mass(g, share), stiffness(g) * (stiff * mesh.spacing**2)
    return EdgeMatrix(g.pattern, torch.stack([(M + K * (1.0 + k)).values for k in range(copies)]))


@pytest.mark.parametrize("mesh", [PLANE, shuffled(PLANE, 5), SPACE, shuffled(SPACE, 5)], ids=["plane", "plane*", "space", "space*"])
@pytest.mark.parametrize("stiff", [0.005, 0.3, 10.0, 1000.0])
@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("together", [True, False])
def test_every_column_meets_the_tolerance(mesh, stiff, share, together, monkeypatch):
    """Lumped and consistent mass, both numberings, several blocks and columns, more columns than are done at once."""
    monkeypatch.setattr(backends, "_CACHED", 10**6 if together else 1)
    A = matrix(mesh, stiff, share, copies=2)
    full = A.to_scipy().toarray()
    b = np.random.default_rng(0).normal(size=(len(full), 11)) * np.logspace(-8, 8, 11)
    for tolerance in (1e-6, 1e-12):
        x = Krylov(A, True, tolerance).solve(torch.from_numpy(b).view(2, -1, 11)).numpy().reshape(b.shape)
        weight = 1 / np.diag(full)[:, None]
        residual = np.sqrt((weight * (b - full @ x) ** 2).sum(0) / (weight * b**2).sum(0))
        assert residual.max() <= tolerance
    error = np.abs(x - np.linalg.solve(full, b)).max(0) / np.abs(x).max(0)
    assert error.max() < 1e-12 * np.linalg.cond(full * np.sqrt(weight) * np.sqrt(weight.T))


@pytest.mark.parametrize("mesh", [PLANE, shuffled(SPACE, 5)], ids=["plane", "space*"])
@pytest.mark.parametrize("stiff", [0.005, 10.0])
def test_single_precision_meets_the_tolerance_whatever_the_size_of_the_numbers(mesh, stiff):
    A = matrix(mesh, stiff)
    A = EdgeMatrix(A.pattern, A.values.float())
    full = A.to_scipy().toarray().astype(np.float64)
    b = torch.randn(1, len(full), 5, generator=torch.Generator().manual_seed(0)) * torch.logspace(-30, 30, 5)
    prepared, weight = Krylov(A, True, 1e-6), 1 / np.diag(full)
    for x, right in ((prepared.solve(b), b), *((prepared.solve(b[..., k:k + 1]), b[..., k:k + 1]) for k in range(5))):
        c = right[0].double().numpy()
        residual = c - full @ x[0].double().numpy()
        assert (weight @ residual**2 <= 4e-12 * (weight @ c**2)).all()  # and the rounding of x itself


@pytest.mark.parametrize("dtype, close", [(torch.float32, 2e-5), (torch.float64, 1e-10)])
def test_rollouts_agree_with_direct_ones(dtype, close):
    """Two fields of their own diffusivity, Dirichlet and convective boundaries, three states, and one state alone."""
    pde = PDE(fields=("a", "b"), diffusion={"a": 0.3, "b": 0.02}, decay=0.1)
    p = Problem(PLANE, pde, [Dirichlet("left", 1.0, "a"), Robin("right", 2.0, 0.5)], 0.05, dtype=dtype)
    start = torch.rand(3, PLANE.n_nodes, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    for u in (start, start[:1]):
        v, one, other = u, GreenSolver(p, "cg"), GreenSolver(p, "lu")
        for k in range(15):
            u, v = one.step(u, t=k * p.dt), other.step(v, t=k * p.dt)
        assert float((u - v).norm() / v.norm()) < close


def test_gradients_are_those_of_a_direct_solve():
    A = matrix(box((3, 2), perturb=0.2, seed=1), 2.0)
    prepared = Krylov(A, True, 1e-14)
    b = torch.randn(1, A.pattern.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda b: apply(prepared, A, b), (b,))
    values = A.values.clone().requires_grad_()
    found = []
    for one in (prepared, LU(A, True)):
        apply(one, EdgeMatrix(A.pattern, values), b).square().sum().backward()
        assert values.grad is not None
        found.append(values.grad)
        values.grad = None
    torch.testing.assert_close(found[0], found[1], rtol=1e-10, atol=1e-12)


def test_a_start_from_the_last_solutions_saves_iterations_and_changes_nothing_else():
    p = Problem(PLANE, PDE(diffusion=1.0), [], 20 * PLANE.spacing**2)
    x = torch.tensor(PLANE.points)
    u = v = torch.exp(-8 * (x - 0.4).square().sum(-1))[None, :, None]
    solver, exact = GreenSolver(p, "cg", tolerance=1e-10), GreenSolver(p, "lu")
    counts, prepared = [], solver.operator().prepared
    assert isinstance(prepared, Krylov)
    for k in range(30):
        u, v = solver.step(u, t=k * p.dt), exact.step(v, t=k * p.dt)
        counts.append(prepared.last_count)
    assert max(counts[10:]) < 0.8 * counts[0]
    assert float((u - v).norm() / v.norm()) < 1e-9
    b, kept = torch.randn(1, p.n, 1, dtype=torch.float64), prepared.recent[0].rights
    first, second = prepared.solve(b, transposed=True), prepared.solve(b, transposed=True)
    assert torch.equal(first, second) and prepared.recent[0].rights is kept  # adjoint solves leave no trace


def test_zero_and_what_is_not_a_number():
    prepared = prepare(matrix(PLANE, 5.0), "cg", symmetric=True)
    zero = torch.zeros(1, PLANE.n_nodes, 1, dtype=torch.float64)
    for _ in range(3):
        assert (prepared.solve(zero) == 0).all()
    with pytest.raises(SolveError, match="nan"):
        prepared.solve(zero + np.nan)


def test_failures_are_named():
    A, b = matrix(PLANE, 100.0), torch.randn(1, PLANE.n_nodes, 1, dtype=torch.float64)
    with pytest.raises(InputError, match="symmetric"):
        GreenSolver(Problem(PLANE, PDE(diffusion=0.3, velocity=[1.0, 0.0]), [], 0.05), "cg").operator()
    for bad, limit in ((A, 1), (A * -1.0, 5000)):
        with pytest.raises(SolveError, match="cg stopped"):
            Krylov(bad, True, 1e-10, limit).solve(b)
