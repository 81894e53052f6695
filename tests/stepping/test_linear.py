"""Many equal steps as one operation: the same states and gradients as one step after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, Dirichlet, Neumann, Periodic, Problem, Robin
from dgnet.stepping import GreenSolver

Tensor = torch.Tensor
STEPS = 37  # more than are gathered at once on the way back


def plate(n: int = 4) -> Mesh:
    mesh = box((n, n))
    points = mesh.points.copy()
    inner = ~mesh.on_boundary
    points[inner] += 0.04 / n * np.random.default_rng(0).standard_normal((int(inner.sum()), 2))
    return Mesh(points, mesh.cells, mesh.boundaries)


CASES = {
    "convection, decay": (dict(decay=0.3), [Robin("boundary", 0.5, 2.0)], 1),
    "wall": (dict(), [Dirichlet("left", 1.5), Robin("right", 0.4, 1.0)], 1),
    "flux in time": (dict(), [Neumann("left", lambda x, t: torch.sin(5 * x[:, 1] + 40 * t)), Robin("right", 1.0, 0.0)], 1),
    "wall in time": (dict(), [Dirichlet("left", lambda x, t: x[:, 1] + 3 * t)], 1),
    "flow": (dict(velocity=(1.0, -0.4)), [Dirichlet("left", 0.0)], 2),
    "flow, each its own": (dict(velocity=torch.rand(3, 25, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64)),
                           [Dirichlet("left", 0.0)], 3),
    "flow, skew": (dict(velocity=(1.0, -0.4)), [Robin("left", 0.4, 1.0)], 3),
    "periodic": (dict(decay=0.1), [Periodic("left", "right")], 2),
    "capacity": (dict(capacity=2.5), [Neumann("top", 1.0)], 1),
    "fields": (dict(fields=("a", "b"), diffusion={"a": 0.05, "b": 0.2}),
               [Dirichlet("left", 1.0, field="b"), Neumann("top", 0.3, field="a")], 3),
    "fields alike": (dict(fields=("a", "b")), [Robin("left", 0.2, 5.0, field="b")], 2),
}


def make(name: str, dtype: torch.dtype = torch.float64,
         diffusion: Tensor | dict | None = None) -> tuple[Problem, Tensor, Tensor]:
    """A problem, an initial state and sources."""
    given, conditions, batch = CASES[name]
    pde = PDE(**({"diffusion": 0.1} | given | ({} if diffusion is None else {"diffusion": diffusion})))
    form = "skew" if "skew" in name else "galerkin"
    p = Problem(plate(), pde, conditions, dt=0.02, dtype=dtype, advection_form=form)
    rng = torch.Generator().manual_seed(1)
    u0 = 300 + torch.rand(batch, p.n_nodes, p.n_fields, generator=rng, dtype=dtype)
    return p, u0, torch.rand(batch, STEPS, p.n_nodes, p.n_fields, generator=rng, dtype=dtype)


def one_by_one(p: Problem, u: Tensor, f: Tensor | None, backend: str = "lu", steps: int = STEPS) -> Tensor:
    """Steps of the general solver, each in the graph."""
    solver, states = GreenSolver(p, backend), [u]
    with torch.enable_grad():
        u = u if u.requires_grad else u.detach().requires_grad_()
        for k in range(steps):
            u = solver.step(u, None if f is None else f[:, k], k * p.dt)
            states.append(u)
    return torch.stack(states, 1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("driven", ["at every step", "steadily", "not at all"])
def test_a_rollout_and_single_steps_are_those_of_the_general_solver(name: str, driven: str) -> None:
    p, u, source = make(name)
    f = {"at every step": source, "steadily": source[:, :1].expand(-1, STEPS, -1, -1), "not at all": None}[driven]
    want = one_by_one(p, u, f).detach()
    with torch.no_grad():
        solver = GreenSolver(p, "lu")
        assert (solver.linear() is None) == (name == "wall in time")
        torch.testing.assert_close(rollout(Classical(start=0, backend="lu"), p, u, f, STEPS), want, rtol=0, atol=1e-11)
        for k in range(STEPS):
            u = solver.step(u, None if f is None else f[:, k], k * p.dt)
    torch.testing.assert_close(u, want[:, -1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("backend", ["iterative", "dense", "auto"])
def test_any_backend_serves(backend: str) -> None:
    p, u, f = make("flow")
    with torch.no_grad():
        torch.testing.assert_close(rollout(Classical(start=0, backend=backend), p, u, f), one_by_one(p, u, f).detach(), rtol=0,
                                   atol=1e-8)


def test_single_precision_stays_within_its_rounding() -> None:
    p, u, f = make("convection, decay", torch.float32)
    exact, _, _ = make("convection, decay")
    want = one_by_one(exact, u.double(), f.double()).detach()
    with torch.no_grad():
        found = rollout(Classical(start=0, backend="lu"), p, u, f)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), want, rtol=0, atol=2e-4)  # three units in the last place of 300


def test_a_constant_stays_what_it_is_exactly() -> None:
    p, u, _ = make("capacity")
    p = Problem(p.mesh, p.pde, [], p.dt)
    with torch.no_grad():
        states = rollout(Classical(start=0, backend="lu"), p, torch.full_like(u, 298.15), steps=20)
    assert bool((states == 298.15).all())


@pytest.mark.parametrize("backend", ["lu", "cg", "iterative"])
def test_walls_are_exact_after_a_start_that_is_off(backend: str) -> None:
    """The first step takes the values over; conjugate gradients that begin with its solution must not carry a rest of it on."""
    p = Problem(box((12, 12), perturb=0.2), PDE(diffusion=1.0), [Dirichlet("boundary", 2.0)], dt=0.05)
    u0 = torch.rand(1, p.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = rollout(Classical(start=0, backend=backend), p, u0, torch.zeros(1, 12, p.n_nodes, 1, dtype=torch.float64))
    assert (states[0, 1:, p.mesh.on_boundary] == 2.0).all()


def test_matrices_that_are_changed_in_place_are_used() -> None:
    p, u, _ = make("convection, decay")
    with torch.no_grad():
        solver = GreenSolver(p, "lu")
        before = solver.step(u)
        p.stiffness().values.mul_(2.0)
        assert float((solver.step(u) - before).abs().max()) > 1e-3


# ---------------------------------------------------------------------- gradients


def gradients(states: Tensor, of: list[Tensor]) -> list[Tensor]:
    weight = torch.rand(states.shape, generator=torch.Generator().manual_seed(2), dtype=states.dtype)
    return list(torch.autograd.grad((states * weight).sum() + (states[:, -1] - 300).square().sum(), of))


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_single_steps(name: str) -> None:
    cells = plate().n_cells
    found = []
    for way in (lambda p, u, f: rollout(Classical(start=0, backend="lu"), p, u, f), one_by_one):
        own = name == "fields"
        diffusion = torch.linspace(0.1, 0.15, cells, dtype=torch.float64, requires_grad=True)
        p, u, f = make(name, diffusion={"a": diffusion, "b": 0.2} if own else diffusion)
        u.requires_grad_(), f.requires_grad_()
        found.append(gradients(way(p, u, f), [diffusion, u, f]))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


def test_gradients_of_all_coefficients() -> None:
    """Mass (by the capacity), row sums and loads (by convection and decay) besides the stiffness."""
    found = []
    for way in (lambda p, u, f: rollout(Classical(start=0, backend="lu"), p, u, f), one_by_one):
        given = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (0.1, 0.3, 1.7, 2.0)]
        diffusion, decay, capacity, flux = given
        pde = PDE(diffusion=diffusion, decay=decay, capacity=capacity)
        conditions = [Neumann("left", lambda x, t, flux=flux: flux * (1 + t + x[:, 1])), Dirichlet("right", 300.0)]
        p = Problem(plate(), pde, conditions, dt=0.02)
        _, u, f = make("wall")
        found.append(gradients(way(p, u, f), given))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=0)


def test_the_adjoint_against_differences() -> None:
    mesh = box((2, 1))

    def last(diffusion: Tensor, velocity: Tensor, u: Tensor, f: Tensor) -> Tensor:
        p = Problem(mesh, PDE(diffusion=diffusion, velocity=velocity), [Robin("left", 0.4, 1.0), Dirichlet("right", 0.2)],
                           dt=0.1, advection_form="skew")
        return rollout(Classical(start=0, backend="lu"), p, u, f)[:, 1:]

    rng = torch.Generator().manual_seed(0)
    shapes = ((mesh.n_cells,), (mesh.n_nodes, 2), (2, mesh.n_nodes, 1), (2, 2, mesh.n_nodes, 1))
    given = [(0.5 + torch.rand(shape, generator=rng, dtype=torch.float64)).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(last, given)


def test_weights_of_a_model_get_the_gradients_of_single_steps() -> None:
    p, u, f = make("wall")
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1), p).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    weights = [w for w in model.parameters() if w.requires_grad]
    found = []
    for together in (True, False):
        if together:
            states = rollout(model, p, u, f)
        else:
            prepared, one = model.prepare(p), [u]
            for k in range(STEPS):
                one.append(prepared.step(one[-1], f[:, k], k * p.dt, k))
            states = torch.stack(one, 1)
        found.append(torch.autograd.grad((states - 300).square().sum(), weights, allow_unused=True))
    assert any(g is not None and float(g.abs().max()) > 0 for g in found[0])
    for a, b in zip(*found):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * float(b.abs().max()) + 1e-12)
