"""The Green solver: exactness, backends that agree, adjoints, honest failures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgnet.errors import InputError, SolveError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.operators import EdgeMatrix, Geometry, Pattern, mass, stiffness
from dgnet.problems import CONSISTENT, LUMPED, PDE, Dirichlet, Neumann, Periodic, Problem, Robin
from dgnet.stepping import Bounds, GreenSolver, StepOperator, bounds_of, fold, unfold
from dgnet.stepping.backends import Chebyshev, Krylov, Monitor, apply, prepare
from tests.conftest import shuffled

BACKENDS = ["lu", "iterative", "dense"]
MESH = box((6, 5), perturb=0.25, seed=2)


def weighted(p: Problem, u) -> float:
    return float((u[..., 0] * (EdgeMatrix(p.mass.pattern, p.mass.values[0, 0]) @ u[..., 0])).sum().sqrt())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("consistent", [LUMPED, 0.5, CONSISTENT])
def test_no_flux_conserves_the_integral_and_never_gains_energy(mesh, backend, consistent):
    p = Problem(mesh, PDE(diffusion=0.3), [], 0.05, consistent=consistent)
    solver = GreenSolver(p, backend)
    u = torch.randn(mesh.n_nodes, 1, dtype=torch.float64)
    volume = torch.from_numpy(mesh.dual_volumes())
    total, energy = float(volume @ u[:, 0]), weighted(p, u)
    for _ in range(10):
        u = solver.step(u)
        assert float(volume @ u[:, 0]) == pytest.approx(total, rel=1e-10, abs=1e-11)
        new = weighted(p, u)
        assert new <= energy * (1 + 1e-12)
        energy = new
    constant = torch.full((mesh.n_nodes, 1), 3.7, dtype=torch.float64)
    torch.testing.assert_close(solver.step(constant), constant, rtol=1e-11, atol=0)


def test_energy_never_grows_with_skew_advection_in_a_closed_box():
    swirl = np.stack([np.sin(np.pi * MESH.points[:, 0]) * np.cos(np.pi * MESH.points[:, 1]),
                      -np.cos(np.pi * MESH.points[:, 0]) * np.sin(np.pi * MESH.points[:, 1])], -1) * 5
    p = Problem(MESH, PDE(diffusion=1e-3, velocity=swirl), [], 0.1, advection_form="skew")
    u = torch.randn(MESH.n_nodes, 1, dtype=torch.float64)
    solver, energy = GreenSolver(p), weighted(p, u)
    for _ in range(30):
        u = solver.step(u)
        assert weighted(p, u) <= energy * (1 + 1e-12)
        energy = weighted(p, u)


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("theta", [0.5, 0.8, 1.0])
def test_energy_never_grows_whatever_the_flow_does_in_time(theta, start):
    """A closed flow that turns round at every step: with K(t) and K(t + dt) on the two sides, energy grows without bound."""
    swirl = torch.from_numpy(np.stack([np.sin(np.pi * MESH.points[:, 0]) * np.cos(np.pi * MESH.points[:, 1]),
                                       -np.cos(np.pi * MESH.points[:, 0]) * np.sin(np.pi * MESH.points[:, 1])], -1) * 50)
    dt, g = 0.1, torch.Generator().manual_seed(0)
    size = torch.rand(200, dtype=torch.float64, generator=g)

    def turning(t):
        return swirl * (-1) ** int(t / dt + 1e-6)

    for flow in (turning, lambda t: turning(t) * size[int(t / dt + 1e-6)]):
        p = Problem(MESH, PDE(diffusion=1e-4, velocity=flow), [], dt, advection_form="skew")
        u = torch.randn(MESH.n_nodes, 1, dtype=torch.float64, generator=g)
        solver, energy = GreenSolver(p, "lu", theta), weighted(p, u)
        for k in range(100):
            u = solver.step(u, None, k * dt, start=start)
            assert weighted(p, u) <= energy * (1 + 1e-12), k
            energy = weighted(p, u)


@pytest.mark.parametrize("start", [False, True])
def test_a_state_equal_to_the_ambient_rests_whatever_the_exchange_does(start):
    exchange = Robin("right", lambda x, t: 2 + np.sin(9 * t) + 0 * x[:, 0], 3.0)
    p = Problem(MESH, PDE(diffusion=0.3), [exchange], 0.1)
    u = rest = torch.full((MESH.n_nodes, 1), 3.0, dtype=torch.float64)
    solver = GreenSolver(p, "lu")
    for k in range(20):
        u = solver.step(u, None, k * p.dt, start=start)
    torch.testing.assert_close(u, rest, rtol=1e-12, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_superposition_holds_to_rounding(backend):
    p = Problem(MESH, PDE(diffusion=0.3, velocity=[0.4, 0.1], decay=0.2), [Robin("right", 1.0)], 0.05)
    solver = GreenSolver(p, backend, tolerance=1e-15)
    u, f = torch.randn(2, MESH.n_nodes, 1, dtype=torch.float64), torch.randn(2, MESH.n_nodes, 1, dtype=torch.float64)
    zero = torch.zeros_like(u)
    whole, parts = solver.step(u, f), solver.step(u, zero) + solver.step(zero, f)
    assert float((whole - parts).norm() / whole.norm()) < 1e-12


@pytest.mark.parametrize("conditions", [[], [Dirichlet("left")], [Periodic("left", "right")]])
def test_columns_of_green_are_impulse_responses(conditions):
    p = Problem(box((5, 5), perturb=0.2 if not conditions else 0.0), PDE(diffusion=0.3), conditions, 0.05)
    solver = GreenSolver(p, "lu")
    n = p.mesh.n_nodes
    A = p.mass.values[0, 0] + 0.5 * p.dt * p.stiffness().values[0, 0]
    for node in (7, 18):
        pulse = torch.zeros(n, 1, dtype=torch.float64)
        pulse[p.geometry.dof == p.geometry.dof[node], 0] = 1 / p.dt
        torch.testing.assert_close(solver.step(torch.zeros_like(pulse), pulse), solver.impulse(node), rtol=1e-11, atol=1e-13)
        if not conditions:
            full = np.linalg.inv(EdgeMatrix(p.mass.pattern, A).to_scipy().toarray())
            full = full @ EdgeMatrix(p.mass.pattern, p.mass.values[0, 0]).to_scipy().toarray()
            np.testing.assert_allclose(solver.impulse(node)[:, 0].numpy(), full[:, node], atol=1e-12)
    with pytest.raises(InputError, match="node 36"):
        solver.impulse(n)
    with pytest.raises(InputError, match="field 1 does not exist"):
        solver.impulse(0, field=1)


@pytest.mark.parametrize("consistent", [LUMPED, CONSISTENT])
def test_an_eigenmode_decays_by_the_crank_nicolson_factor(mesh, consistent):
    p = Problem(mesh, PDE(diffusion=0.3), [], 0.05, consistent=consistent)
    K = EdgeMatrix(p.mass.pattern, p.stiffness().values[0, 0]).to_scipy().toarray()
    M = EdgeMatrix(p.mass.pattern, p.mass.values[0, 0]).to_scipy().toarray()
    from scipy.linalg import eigh

    lam, modes = eigh(K, M)
    for k in (1, 5, len(lam) - 1):
        u = torch.from_numpy(modes[:, k:k + 1].copy())
        factor = (1 - 0.5 * p.dt * lam[k]) / (1 + 0.5 * p.dt * lam[k])
        torch.testing.assert_close(GreenSolver(p, "lu").step(u), factor * u, rtol=0, atol=1e-11)


# ---------------------------------------------------------------------- backends


def problem(seed: int, dtype: torch.dtype, spatial: bool, velocity: bool, fields: int, dirichlet: bool, share: float):
    mesh = shuffled(box((4, 3, 3) if spatial else (7, 6), perturb=0.15, seed=seed), seed)
    names = ("a", "b")[:fields]
    conditions = [Robin("right", 0.7, 0.3), Neumann("top", 0.2)]
    if dirichlet:
        conditions.append(Dirichlet("left", 1.0, names[0] if fields > 1 else None))
    v = np.random.default_rng(seed).normal(size=(mesh.n_nodes, mesh.dim)) if velocity else None
    diffusion = {n: 0.05 * (k + 1) for k, n in enumerate(names)} if fields > 1 else 0.1
    pde = PDE(fields=names, diffusion=diffusion, velocity=v, decay=0.1)
    return Problem(mesh, pde, conditions, 0.02, consistent=share, dtype=dtype)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), double=st.booleans(), spatial=st.booleans(), velocity=st.booleans(),
       fields=st.integers(1, 2), dirichlet=st.booleans(), share=st.sampled_from([0.0, 0.6, 1.0]))
def test_all_backends_agree(seed, double, spatial, velocity, fields, dirichlet, share):
    dtype = torch.float64 if double else torch.float32
    p = problem(seed, dtype, spatial, velocity, fields, dirichlet, share)
    torch.manual_seed(seed)
    u, f = torch.randn(3, p.mesh.n_nodes, fields, dtype=dtype), torch.randn(3, p.mesh.n_nodes, fields, dtype=dtype)
    reference = GreenSolver(p, "lu").step(u, f)
    for backend in ("iterative", "dense", "auto"):
        got = GreenSolver(p, backend).step(u, f)
        assert float((got - reference).norm() / reference.norm()) < (1e-10 if double else 1e-5), backend


@pytest.mark.parametrize("stiff", [0.02, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("velocity", [None, [1.0, 0.5]])
def test_the_iteration_reaches_its_tolerance_at_any_stiffness(stiff, dtype, velocity):
    mesh = box((20, 20), perturb=0.3, seed=4)
    dt = 2 * stiff * mesh.spacing**2
    p = Problem(mesh, PDE(diffusion=1.0, velocity=velocity), [], dt, dtype=dtype)
    u = torch.randn(2, mesh.n_nodes, 1, dtype=dtype)
    solver, exact = GreenSolver(p, "iterative"), GreenSolver(p, "lu")
    A = solver.operator()
    right = A.right_hand_side(u, None)
    residual = right.double() - EdgeMatrix(A.full.pattern, A.full.values[0, 0].double()) @ A.solve(right).double()
    assert float(residual.norm() / right.norm()) < (1e-4 if dtype == torch.float32 else 1e-10)
    got, want = solver.step(u), exact.step(u)  # the error is the residual times the condition number, some 1e4 here
    assert float((got - want).norm() / want.norm()) < (1e-3 if dtype == torch.float32 else 1e-9)


def test_batched_matrices_equal_single_ones():
    v = torch.randn(3, MESH.n_nodes, 2, dtype=torch.float64)
    u, f = torch.randn(3, MESH.n_nodes, 2, dtype=torch.float64), torch.randn(3, MESH.n_nodes, 2, dtype=torch.float64)
    for diffusion in (0.1, {"a": 0.1, "b": 0.3}):
        def at(velocity, diffusion=diffusion):
            pde = PDE(fields=("a", "b"), diffusion=diffusion, velocity=lambda t: velocity * (1 + t))
            return Problem(MESH, pde, [Dirichlet("left", 0.5)], 0.05)
        for backend in BACKENDS:
            whole = GreenSolver(at(v), backend).step(u, f, 0.3)
            single = torch.cat([GreenSolver(at(v[i]), backend).step(u[i:i + 1], f[i:i + 1], 0.3) for i in range(3)])
            torch.testing.assert_close(whole, single, rtol=1e-10, atol=1e-11)


def test_fold_and_unfold_are_inverse():
    u = torch.randn(3, 5, 2)
    for b in (1, 3):
        for f in (1, 2):
            torch.testing.assert_close(unfold(fold(u, b, f), b, f, 3, 2), u)


# ---------------------------------------------------------------------- bounds


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), stiff=st.sampled_from([0.01, 0.3, 5.0, 100.0]), share=st.sampled_from([0.0, 1.0]),
       velocity=st.booleans(), perturb=st.sampled_from([0.0, 0.24]))
def test_bounds_hold_and_the_proven_count_is_enough(seed, stiff, share, velocity, perturb):
    """Obtuse meshes included: perturb 0.24 gives negative cotangent weights."""
    mesh = box((8, 7), perturb=perturb, seed=seed)
    v = np.random.default_rng(seed).normal(size=(mesh.n_nodes, 2)) * 2 if velocity else None
    p = Problem(mesh, PDE(diffusion=1.0, velocity=v), [], stiff * mesh.spacing**2, consistent=share)
    K, C = p.stiffness(), p.advection()
    A = p.mass + K * (0.5 * p.dt)
    bounds = bounds_of(A, p.mass, p.mass_bounds[0], None if C is None else C * (0.5 * p.dt), symmetric=v is None)
    full = EdgeMatrix(A.pattern, A.values[0, 0]).to_scipy().toarray()
    root = np.sqrt(np.diag(full))
    scaled = full / np.outer(root, root)
    sym = np.linalg.eigvalsh(0.5 * (scaled + scaled.T))
    assert bounds.low <= sym[0] + 1e-12 and sym[-1] <= bounds.high + 1e-12
    assert np.linalg.norm(0.5 * (scaled - scaled.T), 2) <= bounds.imag + 1e-12
    if bounds.usable:
        tolerance, b = 1e-6, np.random.default_rng(seed).normal(size=len(full))
        count = min(bounds.iterations(tolerance), 3000)
        x, p_ = np.zeros(len(full)), np.zeros(len(full))
        for alpha, beta in bounds.coefficients(count):
            p_ = (b - full @ x) / np.diag(full) + beta * p_
            x = x + alpha * p_
        weight = 1 / np.diag(full)
        reached = np.sqrt((weight * (b - full @ x) ** 2).sum() / (weight * b**2).sum())
        if count < 3000:
            assert reached <= tolerance


def test_bounds_are_useless_rather_than_wrong_without_a_positive_diagonal():
    pattern = Pattern.from_cells(MESH.cells, MESH.n_nodes)
    assert not bounds_of(EdgeMatrix(pattern, -torch.ones(pattern.nnz, dtype=torch.float64))).usable


# ---------------------------------------------------------------------- honest failure


def test_a_missed_tolerance_is_an_error():
    g = Geometry.of(MESH)
    A = mass(g) + stiffness(g, 1.0)
    A = EdgeMatrix(A.pattern, A.values[None])
    lie = Bounds(0.9, 1.1)
    with pytest.raises(SolveError, match="missed its tolerance"):
        Chebyshev(A, lie, 1e-10, Monitor()).solve(torch.randn(1, MESH.n_nodes, 1, dtype=torch.float64))
    deferred = Monitor(deferred=True)
    Chebyshev(A, lie, 1e-10, deferred).solve(torch.randn(1, MESH.n_nodes, 1, dtype=torch.float64))
    with pytest.raises(SolveError):
        deferred.check()
    with pytest.raises(SolveError, match="cg stopped"):
        Krylov(A, True, 1e-12, max_iterations=1).solve(torch.randn(1, MESH.n_nodes, 1, dtype=torch.float64))


def test_wrong_bounds_from_another_time_level_fall_back_to_a_right_answer():
    p = Problem(MESH, PDE(diffusion=1.0, velocity=[3.0, 1.0]), [], 0.1)
    u = torch.randn(1, MESH.n_nodes, 1, dtype=torch.float64)
    K = p.stiffness()
    op = StepOperator(p.mass, K, p.dt, backend="iterative", symmetric=False, mass_low=p.mass_bounds[0],
                      indefinite_part=p.advection(), bounds=Bounds(0.9, 1.1, 0.01, tight=True))
    right = op.right_hand_side(u, None)
    torch.testing.assert_close(op.solve(right), GreenSolver(p, "lu").operator().solve(right), rtol=1e-9, atol=1e-11)


def test_singular_matrices_are_reported():
    pattern = Pattern.from_cells(MESH.cells, MESH.n_nodes)
    A = EdgeMatrix(pattern, torch.zeros(1, pattern.nnz, dtype=torch.float64))
    with pytest.raises(SolveError):
        prepare(A, "lu").solve(torch.ones(1, MESH.n_nodes, 1, dtype=torch.float64))


# ---------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("backend", [*BACKENDS, "cg"])
def test_gradcheck_through_three_steps(backend):
    mesh = box((2, 2), perturb=0.2, seed=1)

    def three(u, f, D, v):
        conditions = [Dirichlet("left", 0.3), Robin("right", 1.0, 0.1)]
        p = Problem(mesh, PDE(diffusion=D, velocity=None if backend == "cg" else v, reaction=lambda s: s - s**3), conditions, 0.1)
        solver = GreenSolver(p, backend, tolerance=1e-14)
        for k in range(3):
            u = solver.step(u, f[k], 0.1 * k)
        return u

    torch.manual_seed(0)
    u = torch.randn(2, mesh.n_nodes, 1, dtype=torch.float64, requires_grad=True)
    f = torch.randn(3, 2, mesh.n_nodes, 1, dtype=torch.float64, requires_grad=True)
    D = (0.2 + torch.rand(mesh.n_cells, dtype=torch.float64)).requires_grad_()
    v = torch.randn(mesh.n_nodes, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(three, (u, f, D, v.detach() if backend == "cg" else v), atol=1e-6, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_gradcheck_in_raw_matrix_values(backend, symmetric):
    mesh = box((2, 2), perturb=0.2, seed=1)
    g = Geometry.of(mesh)
    base = (mass(g) + stiffness(g, 0.1)).values
    torch.manual_seed(0)
    noise = 1e-3 * torch.randn(2, g.pattern.nnz, dtype=torch.float64)
    if symmetric:
        noise = noise + noise[:, g.pattern.transpose]
    values = (base + noise).requires_grad_()
    b = torch.randn(2, mesh.n_nodes, 2, dtype=torch.float64, requires_grad=True)

    def solve(values, b):
        A = EdgeMatrix(g.pattern, values)
        # perturbed entries are not symmetric: say so, whatever the matrix looks like
        return apply(prepare(A, backend, bounds_of(A), symmetric=False, tolerance=1e-14), A, b)

    assert torch.autograd.gradcheck(solve, (values, b), atol=1e-6, fast_mode=True)


def test_changed_coefficients_are_noticed():
    """A cached operator must not outlive the values it was made from."""
    D = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    p = Problem(MESH, PDE(diffusion=D), [], 0.1)
    u = torch.randn(1, MESH.n_nodes, 1, dtype=torch.float64)
    solver = GreenSolver(p, "lu")
    before = solver.step(u).detach()
    with torch.no_grad():
        p.stiffness().values.mul_(2.0)
    assert float((solver.step(u).detach() - before).abs().max()) > 1e-6


# ---------------------------------------------------------------------- input


@pytest.mark.parametrize("build, word", [
    (lambda: Problem(MESH, PDE(), [], 0.0), "dt must be a positive"),
    (lambda: Problem(MESH, PDE(), [], -1.0), "dt must be a positive"),
    (lambda: Problem(MESH, PDE(diffusion=-0.1), [], 0.1), "diffusivity"),
    (lambda: Problem(MESH, PDE(), [Dirichlet("lid")], 0.1), "lid"),
    (lambda: Problem(MESH, PDE(), [Robin("left", -1.0)], 0.1), "convective"),
    (lambda: Problem(MESH, PDE(), [Dirichlet("left", 0.0, "w")], 0.1), "'w'"),
    (lambda: Problem(MESH, PDE(), [Periodic("left", "top")], 0.1), "periodic"),
    (lambda: Problem(MESH, PDE(velocity=[1.0]), [], 0.1), "velocity"),
    (lambda: PDE(fields=("a", "a")), "distinct"),
    (lambda: PDE(fields=("a",), diffusion={"b": 1.0}), "'b'"),
    (lambda: GreenSolver(Problem(MESH, PDE(), [], 0.1), "magic"), "magic"),
    (lambda: GreenSolver(Problem(MESH, PDE(), [], 0.1), theta=0.2), "theta"),
    (lambda: GreenSolver(Problem(MESH, PDE(), [], 0.1)).step(torch.zeros(1, MESH.n_nodes, 2)), "1 fields"),
    (lambda: GreenSolver(Problem(MESH, PDE(), [], 0.1)).step(torch.zeros(1, 5, 1)), "nodes"),
    (lambda: rollout(Classical(), Problem(MESH, PDE(), [], 0.1), torch.zeros(1, MESH.n_nodes, 1)), "0 steps"),
])
def test_bad_input_is_named(build, word):
    with pytest.raises(InputError, match=word):
        build()


# ---------------------------------------------------------------------- rollout


def test_rollout_streams_the_same_states():
    p = Problem(MESH, PDE(diffusion=0.1, reaction=lambda u: u - u**3), [Dirichlet("left", 0.2)], 0.05)
    u0 = torch.randn(2, MESH.n_nodes, 1, dtype=torch.float64)
    f = torch.randn(1, 12, MESH.n_nodes, 1, dtype=torch.float64)
    whole = rollout(Classical(), p, u0, f)
    seen = {}
    last = rollout(Classical(), p, u0, f, sink=lambda k, u: seen.__setitem__(k, u.clone()))
    assert sorted(seen) == list(range(1, 13))
    torch.testing.assert_close(torch.stack([seen[k] for k in range(1, 13)], 1), whole[:, 1:])
    torch.testing.assert_close(last[:, 0], whole[:, -1])


def test_inference_mode_sees_values_that_change_in_place() -> None:
    """torch does not count changes of tensors that are made under it; a kept factorisation follows all the same."""
    problem = Problem(box((5, 4), perturb=0.2), PDE(diffusion=0.2), [], 0.1)
    u = torch.rand(1, problem.n_nodes, 1, dtype=torch.float64)
    with torch.inference_mode():
        fresh = replace(problem, dt=0.1)
        solver = GreenSolver(fresh)
        assert torch.allclose(solver.step(u), GreenSolver(problem).step(u), rtol=0, atol=1e-14)
        solver.operators.stiffness(0.05).values.mul_(3.0)
        thrice = GreenSolver(replace(problem, pde=PDE(diffusion=0.6))).step(u)
        assert torch.allclose(solver.step(u), thrice, rtol=0, atol=1e-12)
