"""The reference solver against closed forms, with fitted orders in space and time."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, pi, sqrt

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.special import jn_zeros, jnp_zeros, jv

from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh, box
from dgnet.problems.conditions import Dirichlet, Neumann, Periodic, Robin
from dgnet.problems.pde import PDE
from dgnet.problems.sources import FunctionSource
from dgnet_paper.reference import linear
from dgnet_paper.reference.assembly import Advection, Space
from dgnet_paper.reference.transport import march, solve

Tensor = torch.Tensor
TWO_PI = 2 * pi


def nodes(mesh: Mesh) -> Tensor:
    return torch.tensor(mesh.points)


def start(function):
    """One trajectory, one field, from function(x, t) at t = 0."""
    return lambda x: function(x, 0.0)[None, :, None]


def l2(mesh: Mesh, error: Tensor) -> float:
    """L2 norm of a nodal error, by the lumped mass."""
    return float((torch.tensor(mesh.dual_volumes()) * error**2).sum().sqrt())


def check_order(cells, error, least, last=np.inf) -> None:
    """error(n) with n cells a side, or n substeps, falls at least with this power of 1 / n, below `last` on the finest."""
    errors = [error(n) for n in cells]
    assert -np.polyfit(np.log(cells), np.log(errors), 1)[0] >= least and errors[-1] < last, errors


def disc(rings: int, radius: float = 1.0) -> Mesh:
    points = [np.zeros((1, 2))]
    for k in range(1, rings + 1):
        angle = np.arange(6 * k) * TWO_PI / (6 * k)
        points.append(radius * k / rings * np.stack([np.cos(angle), np.sin(angle)], axis=1))
    return Mesh.delaunay(np.concatenate(points))


@dataclass
class Rotation:
    """Rigid rotation about the origin, omega(t) = 1 + t: linear in time and space, so snapshots lose nothing."""

    mesh: Mesh
    dt: float = 0.25
    snapshots: int = 9

    @property
    def values(self) -> np.ndarray:
        x = self.mesh.points
        turn = np.stack([-x[:, 1], x[:, 0]], axis=1)
        return np.stack([(1 + k * self.dt) * turn for k in range(self.snapshots)])

    def interpolator(self, refine: int) -> csr_matrix:
        return Space(self.mesh, refine).prolongation


# ---------------------------------------------------------------------- space


@pytest.mark.parametrize(("degree", "least"), [(1, 1.9), (2, 2.8)])
@pytest.mark.parametrize("waves", [(1, 2), (1, 1, 1)], ids=["rectangle", "box"])
def test_heat_mode(waves, degree, least):
    def exact(x, t):
        return torch.cos(pi * x * torch.tensor(waves)).prod(1) * exp(-sum(w**2 for w in waves) * pi**2 * 0.1 * t)

    flat = len(waves) == 2

    def error(n):
        mesh = box((n,) * len(waves), perturb=0.2 * flat)
        u = solve(mesh, PDE(diffusion=0.1), [], start(exact), dt=0.1, steps=1, substeps=2 * n if flat else 10, degree=degree)
        return l2(mesh, u[0, -1, :, 0] - exact(nodes(mesh), 0.1))

    cells = (8, 16, 32) if flat else (4, 8, 12) if degree == 1 else (3, 6)
    check_order(cells, error, least, (2e-3 if degree == 1 else 2e-5) if flat else np.inf)


@pytest.mark.parametrize("closed", [True, False])
def test_bessel_mode_in_a_disc(closed):
    """J1(k r) cos(theta) decays at D k^2; the polygon inside the circle costs second order as the elements do."""
    k = float(jnp_zeros(1, 1)[0] if closed else jn_zeros(1, 1)[0])

    def exact(x, t):
        r = x.norm(dim=1)
        return torch.tensor(jv(1, k * r.numpy())) * x[:, 0] / r.clamp(min=1e-12) * exp(-k**2 * t)

    conditions = [] if closed else [Dirichlet("boundary")]

    def error(rings):
        mesh = disc(rings)
        u = solve(mesh, PDE(diffusion=1.0), conditions, start(exact), dt=0.1, steps=1, substeps=40)
        return l2(mesh, u[0, -1, :, 0] - exact(nodes(mesh), 0.1))

    check_order((6, 12, 24), error, 1.9, 2e-3)


@pytest.mark.parametrize(("degree", "least"), [(1, 1.9), (2, 2.8)])
def test_blob_in_a_uniform_wind(degree, least):
    """A spreading Gaussian carried by v: exact in the plane, zero to rounding at the walls."""
    diffusion, v, sigma2 = 0.002, (0.5, 0.25), 0.004

    def exact(x, t):
        s = sigma2 + 2 * diffusion * t
        moved = x - torch.tensor([0.3 + v[0] * t, 0.35 + v[1] * t])
        return sigma2 / s * torch.exp(-(moved**2).sum(1) / (2 * s))

    def error(n):
        mesh = box((n, n), perturb=0.15)
        u = solve(mesh, PDE(diffusion=diffusion, velocity=v), [], start(exact), dt=0.25, steps=2, substeps=3 * n, refine=1,
                  degree=degree)
        return l2(mesh, u[0, -1, :, 0] - exact(nodes(mesh), 0.5))

    check_order((16, 24, 32), error, least)


@pytest.mark.parametrize("degree", [1, 2])
def test_blob_in_a_rotating_flow(degree):
    """Rotation leaves diffusion alone, so the exact blob turns by theta(b) = int of omega; phases differ by trajectory."""
    diffusion, sigma2, phases = 0.001, 0.004, [0.0, 0.5, 1.0]
    mesh = disc(8, 0.5)

    def exact(x, t, phase):
        angle = torch.tensor(t * (1 + phase) + t**2 / 2)
        centre = 0.2 * torch.stack([torch.cos(angle), torch.sin(angle)])
        s = sigma2 + 2 * diffusion * t
        return sigma2 / s * torch.exp(-((x - centre) ** 2).sum(1) / (2 * s))

    u = solve(mesh, PDE(diffusion=diffusion), [], start(lambda x, t: exact(x, t, 0.0)), dt=0.25, steps=4, substeps=80,
              refine=3 - degree, degree=degree, flow=Rotation(mesh), phases=phases)
    truth = torch.stack([exact(nodes(mesh), 1.0, p) for p in phases])
    assert u.shape == (3, 5, mesh.n_nodes, 1)
    assert float((u[:, -1, :, 0] - truth).norm() / truth.norm()) < (0.02 if degree == 1 else 0.002)


def test_flow_must_cover_the_trajectories():
    mesh = box((4, 4))
    with pytest.raises(InputError, match="recorded for times 0 to 2"):
        solve(mesh, PDE(diffusion=1.0), [], torch.zeros(1, 25, 1), dt=1.0, steps=2, flow=Rotation(mesh), phases=[0.5])


@pytest.mark.parametrize("degree", [1, 2])
def test_matrix_free_advection_is_the_assembled_one(degree):
    space = Space(box((5, 4), perturb=0.2), 1, degree)
    generator = np.random.default_rng(0)
    # P1 velocity: exact for both quadratures
    v = space.prolongation @ generator.standard_normal((space.n_coarse, 2, 3))[..., 0]
    u = torch.tensor(generator.standard_normal((space.size, 3)))
    apply = Advection(space, torch.device("cpu"), torch.float64)
    got = apply(torch.tensor(v)[:, :, None].expand(-1, -1, 3).contiguous(), u)
    assert torch.allclose(got, torch.tensor(space.advection(v) @ u.numpy()), atol=1e-14)


# ---------------------------------------------------------------------- time


def fisher(x: Tensor, t: float) -> Tensor:
    """Ablowitz and Zeppetella 1979: u_t = u_xx + u (1 - u), speed 5 / sqrt 6."""
    return (1 + torch.exp((x[:, 0] - 5 * t / sqrt(6)) / sqrt(6))) ** -2


@pytest.mark.parametrize(("order", "least"), [(2, 1.9), (3, 2.6)])
def test_fisher_wave_with_moving_dirichlet_values(order, least):
    mesh = box((16, 2), lower=(-5.0, 0.0), upper=(5.0, 1.0), perturb=0.2)
    pde = PDE(diffusion=1.0, reaction=lambda u: u * (1 - u))
    conditions = [Dirichlet("left", fisher), Dirichlet("right", fisher)]

    def error(substeps):
        u = solve(mesh, pde, conditions, start(fisher), dt=0.25, steps=4, substeps=substeps, refine=2, degree=2, order=order)
        return l2(mesh, u[0, -1, :, 0] - fisher(nodes(mesh), 1.0))

    check_order((2, 4, 8), error, least, 1e-3)


def test_two_fields_rotate_in_phase_space():
    """u' = w, w' = -u and unequal diffusion of a constant state: pure reaction, order by the scheme."""
    mesh = box((3, 3))
    pde = PDE(fields=("u", "w"), diffusion={"u": 1.0, "w": 0.1}, reaction=lambda s: torch.stack([s[..., 1], -s[..., 0]], -1))

    def error(substeps):
        u = solve(mesh, pde, [], torch.tensor([1.0, 0.0]).expand(2, 16, 2), dt=0.5, steps=2, substeps=substeps, order=2)
        return float((u[:, -1] - torch.tensor([np.cos(1.0), -np.sin(1.0)])).abs().max())

    check_order((8, 16, 32), error, 1.9)


def test_decay_and_source_by_manufactured_solution():
    """u = cos(pi x) sin(3 t): f = du/dt + (D pi^2 + k) u, decay given per node."""
    diffusion, decay = 0.3, 2.0
    mesh = box((12, 3))

    def exact(x, t):
        return torch.cos(pi * x[:, 0]) * np.sin(3 * t)

    def f(x, t):
        return torch.cos(pi * x[:, 0]) * (3 * np.cos(3 * t) + (diffusion * pi**2 + decay) * np.sin(3 * t))

    pde = PDE(diffusion=diffusion, decay=np.full(mesh.n_nodes, decay))

    def error(substeps):
        u = solve(mesh, pde, [], start(exact), dt=0.25, steps=4, substeps=substeps, source=FunctionSource(f), degree=2,
                  refine=1, order=2)
        return l2(mesh, u[0, -1, :, 0] - exact(nodes(mesh), 1.0))

    check_order((2, 4, 8), error, 1.9, 5e-3)


@pytest.mark.parametrize("order", [2, 3])
def test_fast_source_is_conserved(order):
    """A spot that crosses the plate within one step: what is injected arrives, whatever the step."""
    mesh = box((20, 20))

    def f(x, t):
        centre = torch.tensor([0.5 + 0.3 * np.cos(8 * t), 0.5 + 0.3 * np.sin(8 * t)])
        return torch.exp(-((x - centre) ** 2).sum(1) / 0.005)

    u = solve(mesh, PDE(diffusion=0.01), [], torch.zeros(1, mesh.n_nodes, 1), dt=0.4, steps=3, source=FunctionSource(f),
              panels=6, order=order)
    volume = torch.tensor(mesh.dual_volumes())
    totals = (u[0, :, :, 0] * volume).sum(1)
    # lumped sums are the exact integral of P1 functions; the orbit injects pi * 0.005 per second
    assert torch.allclose(totals, torch.arange(4, dtype=torch.float64) * 0.4 * pi * 0.005, rtol=1e-3, atol=1e-12)


# ---------------------------------------------------------------------- boundary conditions


def test_robin_and_neumann_make_a_line():
    """Steady state of -u'' = 0 with inflow q on the left and exchange with 2 on the right: u = 2 + q / c + q (1 - x) / D."""
    diffusion, c, q = 1.5, 0.8, 0.6
    mesh = box((6, 3), perturb=0.2)
    conditions = [Neumann("left", q), Robin("right", c, 2.0)]
    u = solve(mesh, PDE(diffusion=diffusion), conditions, torch.zeros(1, mesh.n_nodes, 1), dt=1.0, steps=50)
    x = nodes(mesh)[:, 0]
    assert torch.allclose(u[0, -1, :, 0], 2 + q / c + q * (1 - x) / diffusion, atol=1e-7)


def test_robin_mode_decays_at_its_rate():
    """cos(a x) with a tan a = c / D, no flux at x = 0 and exchange at x = 1: rate D a^2."""
    a, diffusion = 0.8603335890193797, 0.5  # a tan a = 1

    def exact(x, t):
        return torch.cos(a * x[:, 0]) * exp(-diffusion * a**2 * t)

    mesh = box((8, 2))
    u = solve(mesh, PDE(diffusion=diffusion), [Robin("right", lambda x, t: torch.full_like(x[:, 0], diffusion))],
              start(exact), dt=0.5, steps=2, substeps=10, refine=1, degree=2)
    assert l2(mesh, u[0, -1, :, 0] - exact(nodes(mesh), 1.0)) < 1e-5


def test_time_dependent_robin_coefficient_is_refused():
    with pytest.raises(InputError, match="Robin coefficient on 'left'"):
        solve(box((2, 2)), PDE(), [Robin("left", lambda x, t: x[:, 0] + t)], torch.zeros(1, 9, 1), dt=1.0, steps=1)


@pytest.mark.parametrize("degree", [1, 2])
def test_periodic_wave_comes_round(degree):
    diffusion = 0.002

    def exact(x, t):
        return torch.sin(TWO_PI * (x[:, 0] - 0.5 * t)) * torch.cos(TWO_PI * (x[:, 1] - t)) * exp(-8 * pi**2 * diffusion * t)

    mesh = box((12, 12), perturb=0.15)
    u = solve(mesh, PDE(diffusion=diffusion, velocity=(0.5, 1.0)), [Periodic("left", "right"), Periodic("bottom", "top")],
              start(exact), dt=0.5, steps=2, substeps=100, refine=2 - degree, degree=degree)
    assert l2(mesh, u[0, -1, :, 0] - exact(nodes(mesh), 1.0)) < (0.02 if degree == 1 else 0.006)
    left, right = mesh.nodes_on("left"), mesh.nodes_on("right")
    assert torch.equal(u[0, :, left], u[0, :, right])


def test_periodic_boundaries_must_match():
    with pytest.raises(InputError, match="do not match by a translation"):
        solve(box((4, 3)), PDE(diffusion=1.0), [Periodic("left", "top")], torch.zeros(1, 20, 1), dt=1.0, steps=1)


# ---------------------------------------------------------------------- coefficients


def test_tensor_and_cellwise_diffusion_agree_with_the_scalar_one():
    mesh = box((6, 6), perturb=0.2)
    u0 = torch.rand(2, mesh.n_nodes, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ways = [0.2, np.full(mesh.n_cells, 0.2), 0.2 * np.eye(2), np.tile(0.2 * np.eye(2), (mesh.n_cells, 1, 1))]
    states = [solve(mesh, PDE(diffusion=d), [], u0, dt=0.1, steps=2, refine=1) for d in ways]
    assert all(torch.allclose(s, states[0], atol=1e-12) for s in states)
    with pytest.raises(InputError, match="diffusion has shape"):
        solve(mesh, PDE(diffusion=np.ones(5)), [], u0, dt=0.1, steps=1)


def test_two_materials_keep_the_flux_continuous():
    """D = 1 left and 4 right of the middle, u = 0 and 1 at the ends: u(1/2) = 4/5."""
    mesh = box((8, 2))
    diffusion = np.where(mesh.centroids[:, 0] < 0.5, 1.0, 4.0)
    u = solve(mesh, PDE(diffusion=diffusion), [Dirichlet("left"), Dirichlet("right", 1.0)], torch.zeros(1, mesh.n_nodes, 1),
              dt=0.2, steps=20, refine=1)
    middle = torch.tensor(np.isclose(mesh.points[:, 0], 0.5))
    assert torch.allclose(u[0, -1, middle, 0], torch.tensor(0.8, dtype=torch.float64), atol=1e-8)


# ---------------------------------------------------------------------- batches, solvers, failures


def problem(mesh: Mesh):
    pde = PDE(diffusion=0.05, velocity=(0.4, -0.2), decay=0.1, reaction=lambda u: u - u**3)
    conditions = [Dirichlet("left", lambda x, t: x[:, 1] * t), Robin("top", 0.3, 0.5)]
    u0 = torch.rand(3, mesh.n_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return pde, conditions, u0


def test_batch_is_single_trajectories():
    mesh = box((6, 6), perturb=0.2)
    pde, conditions, u0 = problem(mesh)
    seen: list[int] = []
    both = solve(mesh, pde, conditions, u0, dt=0.05, steps=4, substeps=2, refine=1, progress=seen.append)
    for b in range(3):
        alone = solve(mesh, pde, conditions, u0[b:b + 1], dt=0.05, steps=4, substeps=2, refine=1)
        assert torch.allclose(alone[0], both[b], atol=1e-12)
    assert seen == [1, 2, 3, 4]
    states = list(march(mesh, pde, conditions, u0, dt=0.05, steps=4, substeps=2, refine=1))
    assert torch.equal(torch.stack(states, dim=1), both)


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("single", [False, True])
def test_iteration_agrees_with_factorisation(degree, single, monkeypatch):
    mesh = box((8, 8), perturb=0.2)
    pde, conditions, u0 = problem(mesh)
    factored = solve(mesh, pde, conditions, u0, dt=0.05, steps=4, refine=1, degree=degree)

    class Iterative(linear.SPDSolver):
        def __init__(self, *args, **options):
            super().__init__(*args, **options, factor=False, single=single)

    monkeypatch.setattr("dgnet_paper.reference.transport.SPDSolver", Iterative)
    iterated = solve(mesh, pde, conditions, u0, dt=0.05, steps=4, refine=1, degree=degree)
    assert float((iterated - factored).abs().max()) < 1e-8


def test_a_step_too_long_is_an_error():
    mesh = box((20, 20))
    with pytest.raises(SolveError, match="more substeps"):
        solve(mesh, PDE(velocity=(30.0, 0.0)), [], start(lambda x, t: torch.sin(20 * x[:, 0])), dt=0.1, steps=400)


def test_shapes_are_checked():
    mesh = box((2, 2))
    with pytest.raises(InputError, match=r"must have shape \[B, 9, 1\]"):
        solve(mesh, PDE(), [], torch.zeros(9, 1), dt=1.0, steps=1)
    with pytest.raises(InputError, match="given twice"):
        solve(mesh, PDE(velocity=(1.0, 0.0)), [], torch.zeros(1, 9, 1), dt=1.0, steps=1, flow=Rotation(mesh))
    with pytest.raises(InputError, match="a source must return"):
        solve(mesh, PDE(), [], torch.zeros(1, 9, 1), dt=1.0, steps=1, source=lambda x, t: x[:, 0])


def test_the_distance_to_a_finer_truth_bounds_the_error():
    def exact(x, t):
        return torch.cos(pi * x[:, 0]) * exp(-(pi**2) * 0.1 * t)

    mesh = box((8, 8), perturb=0.2)
    arguments = (mesh, PDE(diffusion=0.1), [], start(exact))
    truth = solve(*arguments, dt=0.2, steps=4, refine=1, substeps=2)
    finer = solve(*arguments, dt=0.2, steps=4, refine=2, substeps=4)
    distance = float((truth - finer).norm() / finer.norm())
    states = torch.stack([exact(nodes(mesh), 0.2 * k) for k in range(5)])
    error = float((truth[0, :, :, 0] - states).norm() / states.norm())
    assert 0.5 * error < distance < error


def test_refinement_keeps_the_numbering():
    mesh = box((3, 2), perturb=0.2)
    for degree in (1, 2):
        space = Space(mesh, 1, degree)
        finer = mesh.refined(degree)
        assert np.allclose(space.points, finer.points)
        assert np.allclose(space.prolongation @ mesh.points, finer.points)
        assert np.allclose(space.points[space.nodes_on("top"), 1], 1.0)
        assert len(space.nodes_on("top")) == len(finer.nodes_on("top"))
        assert space.boundary_mass("left").sum() == pytest.approx(1.0)
