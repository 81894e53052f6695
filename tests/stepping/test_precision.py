"""What a step keeps in single precision, when it moves to double, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, SINGLE, Dirichlet, Problem, Robin
from dgnet.stepping import GreenSolver

CUDA = pytest.param("cuda", marks=[pytest.mark.gpu,
                                   pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")])
DEVICES = ["cpu", CUDA]
BACKENDS = ["lu", "cholesky", "iterative", "dense"]
AMBIENT = 298.15


def plate(aspect: float, cells: tuple[int, int] = (6, 6)) -> Mesh:
    return box(cells, (0.0, 0.0), (1.0, 1.0 / aspect), perturb=0.2, seed=1)


def problem(mesh: Mesh, fourier: float, dtype: torch.dtype = torch.float32, device: str = "cpu", conditions=(),
            **terms) -> Problem:
    """Steps of this Fourier number D dt / h^2 of the longest edges."""
    h = float(mesh.edge_lengths.max())
    return Problem(mesh, PDE(diffusion=1.0, **terms), list(conditions), fourier * h * h, dtype=dtype, device=device)


def available(backend: str) -> str:
    if backend == "cholesky":
        pytest.importorskip("cholespy")
    return backend


# ---------------------------------------------------------------------- constants


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fourier", "aspect"), [(1e-3, 1), (1e2, 1), (1e6, 1), (1.0, 1e4), (1e6, 1e4)])
def test_a_constant_in_a_closed_box_stays_what_it_is(backend, fourier, aspect, device):
    """A state that a step gives back bit by bit stays for ever."""
    p = problem(plate(aspect), fourier, device=device)
    u0 = torch.full((2, p.mesh.n_nodes, 1), AMBIENT, device=device)
    u0[1] = 300.1
    with torch.no_grad():
        assert torch.equal(GreenSolver(p.held(), available(backend)).step(u0), u0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fourier", [100.0, 1e6])
def test_a_constant_over_a_thousand_steps(fourier, device):
    p = problem(plate(1, (3, 3)), fourier, device=device)
    u0 = torch.full((1, p.mesh.n_nodes, 1), AMBIENT, device=device)
    with torch.no_grad():
        end = rollout(Classical(), p, u0, steps=1000, sink=lambda k, u: None)
    assert torch.equal(end[:, 0], u0)


@pytest.mark.parametrize("terms", [{}, {"velocity": [0.3, -0.2]}])
@pytest.mark.parametrize("fourier", [0.1, 1e4])
def test_a_trained_dgnet_keeps_constants_too(terms, fourier):
    p = problem(plate(1), fourier, **terms)
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1, learn_streamline=True, learn_swirl=True), p)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
        u0 = torch.full((1, p.mesh.n_nodes, 1), AMBIENT)
        assert torch.equal(rollout(model, p, u0, steps=50)[:, -1], u0)


def test_a_wall_at_the_same_value_changes_nothing():
    p = problem(plate(1), 1e3, conditions=[Dirichlet("left", AMBIENT)])
    u0 = torch.full((1, p.mesh.n_nodes, 1), AMBIENT)
    with torch.no_grad():
        assert torch.equal(rollout(Classical(), p, u0, steps=100)[:, -1], u0)


# ---------------------------------------------------------------------- against a dense solve in more digits


def exact(p: Problem, u: torch.Tensor, steps: int) -> np.ndarray:
    """States [steps+1, n] by a dense solve for the increment in extended precision."""
    wide = p.double
    M, K = (torch.zeros(p.n, p.n, dtype=torch.float64) for _ in range(2))
    for full, A in ((M, wide.mass), (K, wide.diffusion_part)):
        full[A.pattern.row.long().cpu(), A.pattern.col.long().cpu()] = A.values[0, 0].cpu()
    m, k = M.numpy().astype(np.longdouble), K.numpy().astype(np.longdouble)
    k[np.diag_indices(p.n)] -= k.sum(1)
    left, right = m + p.dt / 2 * k, -p.dt * k
    rows = [u[0, :, 0].cpu().numpy().astype(np.longdouble)]
    for _ in range(steps):
        rows.append(rows[-1] + _eliminate(left, right @ (rows[-1] - rows[-1][0])))
    return np.stack(rows)


def _eliminate(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    A, b = A.copy(), b.copy()
    for i in range(len(b)):  # symmetric positive definite: no pivots
        factor = A[i + 1:, i] / A[i, i]
        A[i + 1:] -= factor[:, None] * A[i]
        b[i + 1:] -= factor * b[i]
    for i in reversed(range(len(b))):
        b[i] = (b[i] - A[i, i + 1:] @ b[i + 1:]) / A[i, i]
    return b


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_agree_with_more_digits_or_are_refused(backend, dtype, device):
    """Error of a step relative to its change, beyond what storing the state costs: below 1e-4 in float32, 1e-6 in float64."""
    available(backend)
    for fourier in (1e-3, 1.0, 1e3, 1e6):
        for aspect in (1, 1e2, 1e4):
            p = problem(plate(aspect, (4, 4)), fourier, dtype, device)
            u = (AMBIENT + torch.rand(1, p.mesh.n_nodes, 1, generator=torch.Generator().manual_seed(0))).to(device, dtype)
            try:
                with torch.no_grad():
                    got = rollout(Classical(start=0, backend=backend), p, u, steps=1)[0, 1, :, 0].cpu().numpy()
            except SolveError as error:
                assert "\n" not in str(error)
                assert p.stiffness_number > (1e6 if backend == "iterative" else 1e10), (fourier, aspect, error)
                continue
            want = exact(p, u, 1)
            stored = 2 * np.finfo(got.dtype).eps * AMBIENT
            change = float(np.abs(want[1] - want[0]).max())
            near = 1e-4 if dtype == torch.float32 else 1e-6
            assert float(np.abs(got - want[1]).max()) <= near * change + stored, (fourier, aspect, p.stiffness_number)


def test_heat_is_kept_while_a_source_and_a_sink_drive_a_pattern():
    """Rounding that adds up step by step is what decides where float32 ends."""
    mesh = plate(1, (10, 10))
    for stiffness in (10.0, 0.9 * SINGLE, 1e4):
        p = Problem(mesh, PDE(diffusion=1.0), [], 1.0, dtype=torch.float32)
        p = Problem(mesh, PDE(diffusion=1.0), [], stiffness / p.stiffness_number, dtype=torch.float32)
        weight = p.double.mass.row_sums()[0, 0]
        f = torch.cos(torch.pi * torch.tensor(mesh.points[:, 0]))
        f = (f - weight @ f / weight.sum())[None, :, None].float()
        f = f - (weight @ f[0].double() / weight.sum()).float()
        with torch.no_grad():
            end = rollout(Classical(), p, torch.full((1, mesh.n_nodes, 1), AMBIENT), f[:, None].expand(-1, 300, -1, -1))[0, -1]
        drift = float(weight @ (end[:, 0].double() - torch.tensor(AMBIENT).float().double()) / weight.sum())
        assert abs(drift) < 1e-4 * float(end.max() - end.min()), stiffness


# ---------------------------------------------------------------------- the iteration against the offset


def test_the_iteration_is_as_good_far_from_zero_as_near_it():
    mesh = plate(1, (12, 12))
    errors = {}
    for offset in (0.0, 1000.0):
        p = problem(mesh, 0.5, torch.float64)
        bump = torch.exp(-40 * ((torch.tensor(mesh.points) - 0.4) ** 2).sum(1))[None, :, None]
        with torch.no_grad():
            exact, loose = (GreenSolver(p, b, tolerance=t).step(offset + bump) for b, t in (("lu", None), ("iterative", 1e-4)))
        errors[offset] = float((loose - exact).norm() / (exact - offset - bump).norm())
    assert errors[1000.0] < 1.5 * errors[0.0] < 1e-3


# ---------------------------------------------------------------------- which precision


def test_stiff_problems_are_computed_in_double_and_say_so():
    soft, stiff = problem(plate(1), 0.1), problem(plate(1), 1e4)
    assert soft.held() is soft and "single" in soft.precision
    assert stiff.held().dtype == torch.float64 and "double precision, since" in stiff.precision
    assert stiff.held().geometry.pattern is stiff.geometry.pattern
    other = stiff.with_velocity([0.1, 0.0])
    assert other.held().pde.velocity.tolist() == [0.1, 0.0] and other.held().diffusion_part is stiff.held().diffusion_part
    assert stiff.recast(0.0, "galerkin").held().consistent == 0.0


def test_gradients_pass_through_a_step_in_double():
    p = problem(plate(1), 1e4)
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1, reaction="learned", learn_start=True), p)
    u0 = torch.rand(1, p.mesh.n_nodes, 1, requires_grad=True)
    states = rollout(model, p, u0, steps=3)
    assert states.dtype == torch.float32
    states[:, -1].square().sum().backward()
    assert all(w.grad is None or bool(torch.isfinite(w.grad).all()) for w in model.parameters())
    assert bool(torch.isfinite(u0.grad).all()) and float(u0.grad.abs().max()) > 0


def test_a_state_in_another_precision_is_taken_and_given_back():
    p = problem(plate(1), 0.1, torch.float64)
    u = torch.rand(1, p.mesh.n_nodes, 1)
    out = GreenSolver(p).step(u, torch.ones_like(u))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), GreenSolver(p).step(u.double(), torch.ones_like(u).double()), rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------------- refused


@pytest.mark.parametrize("decay", [-20.0, -25.0])
def test_a_growth_that_the_step_cannot_follow_is_refused(decay):
    mesh = plate(1)
    with pytest.raises(InputError, match="grows too fast for the time step"):
        GreenSolver(Problem(mesh, PDE(diffusion=1.0, decay=decay), [], 0.1))
    GreenSolver(Problem(mesh, PDE(diffusion=1.0, decay=-19.0), [], 0.1))


def test_a_tensor_that_is_not_symmetric_is_refused():
    with pytest.raises(InputError, match="must be symmetric"):
        Problem(plate(1), PDE(diffusion=[[1.0, 0.3], [0.1, 1.0]]), [], 0.1)


def test_plain_numbers_keep_double_precision():
    mesh, v = plate(1), [0.1, 0.7]
    lists, tensors = (Problem(mesh, PDE(velocity=x), [], 0.1).advection().values
                      for x in (v, torch.tensor(v, dtype=torch.float64)))
    assert torch.equal(lists, tensors)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_that_are_not_finite_end_a_rollout_at_their_step(backend, device):
    p = problem(plate(1), 0.1, device=device)
    u0 = torch.zeros(1, p.mesh.n_nodes, 1, device=device)
    source = torch.full((1, 12, p.mesh.n_nodes, 1), 0.1 / p.dt, device=device)  # 0.6 after six steps
    broken = replace(p, pde=replace(p.pde, reaction=lambda u: 0 * (0.65 - u).sqrt()))
    with torch.no_grad(), pytest.raises(SolveError, match="step 7"):
        rollout(Classical(backend=available(backend)), broken, u0, source)
    source[0, 6, 3] = float("nan")
    with torch.no_grad(), pytest.raises(InputError, match=r"the source must be finite, got nan at \[0, 6, 3, 0\]"):
        rollout(Classical(backend=available(backend)), p, u0, source)


def test_growth_without_bound_is_an_error_that_names_the_step():
    """An inflow without a condition: the Galerkin form then feeds on itself."""
    mesh = box((10, 10), perturb=0.2, seed=3)
    p = Problem(mesh, PDE(diffusion=0.0, velocity=[1.0, 0.0]), [], 0.05)
    u0 = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), pytest.raises(SolveError, match=r"grows without bound.*at step \d+"):
        rollout(Classical(), p, u0, steps=4000)


def test_a_state_driven_from_zero_is_no_growth_without_bound():
    mesh = plate(1)
    wall = Dirichlet("left", lambda x, t: torch.full((len(x),), 1e9 * t, dtype=x.dtype))
    p = problem(mesh, 0.1, torch.float64, conditions=[wall, Robin("right", 1e-3, 5.0)])
    with torch.no_grad():
        rollout(Classical(), p, torch.zeros(1, mesh.n_nodes, 1, dtype=torch.float64), steps=150)


# ---------------------------------------------------------------------- the way back through a rollout


def test_the_way_back_is_linear_in_the_number_of_steps():
    p = problem(plate(1), 0.1, torch.float64)
    copied = {}
    for steps in (25, 50, 100):
        u0 = torch.rand(1, p.mesh.n_nodes, 1, dtype=torch.float64, requires_grad=True)
        states = rollout(Classical(backend="lu"), p, u0, steps=steps)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
            states.square().sum().backward()
        views = ("aten::select", "aten::narrow", "aten::slice", "aten::unbind", "aten::as_strided", "aten::view", "aten::squeeze")
        copied[steps] = sum(int(np.prod(shape)) for event in seen.events() if event.name not in views
                            for shape in event.input_shapes if shape)
    assert copied[100] - copied[50] < 2.2 * (copied[50] - copied[25])
