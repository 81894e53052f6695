"""Capacity per region: c (du/dt + v . grad u) = div(D grad u) - k u + r(u) + f, with c piecewise constant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import skfem
import torch
from scipy.optimize import brentq
from skfem.helpers import dot, grad

from dgnet.errors import InputError
from dgnet.export import Step
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, Dirichlet, Neumann, Problem, Robin
from dgnet.stepping import GreenSolver
from dgnet.stepping.solver import Operators
from dgnet_paper.baselines.adapter import coefficients

Tensor = torch.Tensor

ALUMINIUM, STEEL = (2.4e6, 200.0), (3.9e6, 15.0)  # capacity [J/m3/K], conductivity [W/m/K]


def by_side(mesh: Mesh, left: float, right: float, at: float = 0.5) -> np.ndarray:
    return np.where(mesh.centroids[:, 0] < at, left, right)


def mixed(capacity: object = None, **terms: object) -> Problem:
    """A small square of two materials with every kind of condition; the capacity may be replaced."""
    mesh = box((6, 6), perturb=0.2, seed=3)
    c = by_side(mesh, 1.0, 40.0) if capacity is None else capacity
    given = {"diffusion": by_side(mesh, 0.3, 2.0), "decay": 0.7, "capacity": c} | terms
    return Problem(mesh, PDE(**given), [Dirichlet("left", 0.4), Robin("right", 0.8, 1.5), Neumann("top", 0.6)], 0.02)


def test_a_slab_of_two_materials_follows_the_exact_mode_to_second_order():
    """u = 0 at both ends, the slowest mode of [0, 0.1 m]: sines on either side, u and D du/dx continuous at the middle."""
    (c1, k1), (c2, k2), half = ALUMINIUM, STEEL, 0.05

    def waves(rate: float) -> tuple[float, float]:
        return np.sqrt(rate * c1 / k1), np.sqrt(rate * c2 / k2)

    def jump(rate: float) -> float:
        a, b = waves(rate)
        return k1 * a / np.tan(a * half) + k2 * b / np.tan(b * half)

    rate = brentq(jump, 1e-6, 0.999 * (np.pi / half) ** 2 * k2 / c2)
    a, b = waves(rate)

    def mode(x: np.ndarray) -> np.ndarray:
        return np.where(x < half, np.sin(a * x) / np.sin(a * half), np.sin(b * (2 * half - x)) / np.sin(b * half))

    end, errors = 0.5 / rate, []
    for cells in (24, 48, 96):
        mesh = box((cells, 2), (0.0, 0.0), (2 * half, 0.02))
        pde = PDE(diffusion=by_side(mesh, k1, k2, half), capacity=by_side(mesh, c1, c2, half))
        p = Problem(mesh, pde, [Dirichlet("left", 0.0), Dirichlet("right", 0.0)], end / cells)
        exact = mode(mesh.points[:, 0])
        u = rollout(Classical(), p, torch.tensor(exact)[None, :, None], None, cells)[0, -1, :, 0].numpy()
        errors.append(np.linalg.norm(u - np.exp(-rate * end) * exact) / np.linalg.norm(exact))
    assert errors[2] < 3e-4
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (orders > 1.8).all()

    # and the flux D du/dx: what leaves one side enters the other, seen in the cells next to the interface
    row = np.flatnonzero(mesh.points[:, 1] == 0)
    row = row[np.argsort(mesh.points[row, 0])]
    slope = np.diff(u[row]) / np.diff(mesh.points[row, 0])
    assert k1 * slope[47] == pytest.approx(k2 * slope[48], rel=0.03)


def test_dividing_by_the_capacity_is_another_problem():
    """What a user had to do before: D/c per region, whose interface condition is wrong by the ratio of the capacities."""
    mesh = box((20, 2), (0.0, 0.0), (0.1, 0.02))
    c, k = by_side(mesh, ALUMINIUM[0], STEEL[0], 0.05), by_side(mesh, ALUMINIUM[1], STEEL[1], 0.05)
    ends = [Dirichlet("left", 0.0), Dirichlet("right", 1.0)]
    u0 = torch.zeros(1, mesh.n_nodes, 1, dtype=torch.float64)
    right, wrong = (rollout(Classical(), Problem(mesh, pde, ends, 5.0), u0, None, 400)[0, -1, :, 0]
                    for pde in (PDE(diffusion=k, capacity=c), PDE(diffusion=k / c)))
    at = int(np.abs(mesh.points - [0.05, 0.0]).sum(1).argmin())
    assert float(right[at]) == pytest.approx(15 / 215, rel=1e-3)  # steady: fluxes are equal, k1 u = k2 (1 - u)
    assert abs(float(wrong[at]) - 15 / 215) > 0.02


def test_matrices_agree_with_scikit_fem():
    p = mixed(velocity=torch.tensor([0.3, -0.2], dtype=torch.float64))
    kept = skfem.MeshTri(p.mesh.points.T.copy(), p.mesh.cells.T.copy())
    basis = skfem.Basis(kept, skfem.ElementTriP1(), intorder=3)
    c = np.repeat(np.asarray(p.pde.capacity)[:, None], basis.dx.shape[1], axis=1)
    heat = skfem.BilinearForm(lambda u, v, w: w["c"] * u * v).assemble(basis, c=c)
    plain = skfem.BilinearForm(lambda u, v, w: u * v).assemble(basis)
    carried = skfem.BilinearForm(lambda u, v, w: w["c"] * (0.3 * grad(u)[0] - 0.2 * grad(u)[1]) * v).assemble(basis, c=c)
    spread = skfem.BilinearForm(lambda u, v, w: w["D"] * dot(grad(u), grad(v)) + 0.7 * u * v).assemble(
        basis, D=np.repeat(np.asarray(p.pde.diffusion)[:, None], basis.dx.shape[1], axis=1))
    advection = p.advection()
    assert advection is not None
    for ours, theirs in ((p.mass, heat), (p.source_mass, plain), (advection, carried), (p.diffusion_part + p.decay_part, spread)):
        dense = np.zeros((p.n, p.n))
        dense[ours.pattern.row.numpy(), ours.pattern.col.numpy()] = ours.values[0, 0].numpy()
        np.testing.assert_allclose(dense, theirs.toarray(), atol=1e-13)


def test_heat_is_kept_to_rounding_in_an_insulated_box():
    mesh = box((8, 8), perturb=0.2, seed=1)
    c = by_side(mesh, *(m[0] for m in (ALUMINIUM, STEEL)))
    p = Problem(mesh, PDE(diffusion=by_side(mesh, 200.0, 15.0), capacity=c), [], 50.0)
    g = torch.Generator().manual_seed(0)
    u0, f = (torch.randn(shape, dtype=torch.float64, generator=g) for shape in ((1, mesh.n_nodes, 1), (1, 30, mesh.n_nodes, 1)))
    states = rollout(Classical(), p, 300 + u0, 1e4 * f, 30)[0, ..., 0]
    heat = states @ p.mass.row_sums()[0, 0]
    given = 50.0 * 1e4 * (f[0, ..., 0] @ p.source_mass.row_sums()[0, 0]).cumsum(0)
    np.testing.assert_allclose(heat[1:] - heat[0], given, rtol=0, atol=1e-12 * float(heat[0]))


def test_without_a_capacity_nothing_changes_and_a_constant_one_divides_out():
    plain, ones = mixed(1.0), mixed(np.ones(mixed().mesh.n_cells))
    assert plain.mass is plain.source_mass and ones.capacity is None
    g = torch.Generator().manual_seed(0)
    u0, f = (torch.randn(shape, dtype=torch.float64, generator=g) for shape in ((2, plain.n, 1), (2, 5, plain.n, 1)))
    factor = 3.7e6
    scaled = Problem(plain.mesh, PDE(diffusion=factor * np.asarray(plain.pde.diffusion), decay=0.7 * factor, capacity=factor,
                                            velocity=[0.3, 0.1], reaction=lambda u: factor * (u - u**3)),
                            [Dirichlet("left", 0.4), Robin("right", 0.8 * factor, 1.5), Neumann("top", 0.6 * factor)], 0.02)
    bare = Problem(plain.mesh, replace(plain.pde, velocity=[0.3, 0.1], reaction=lambda u: u - u**3), plain.conditions, 0.02)
    for form in ("galerkin", "skew", "upwind"):
        one, other = (GreenSolver(p.recast(1.0, form), "lu").step(u0, s * f[:, 0]) for p, s in ((bare, 1.0), (scaled, factor)))
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


EVERYTHING = DGNetConfig(free=True, learn_streamline=True, learn_swirl=True, learn_start=True, early_steps=2,
                         calibrate=("diffusion", "decay", "convection"), hidden=8, layers=1)


@pytest.mark.parametrize("capacity", [None, {"u": 2.0, "v": 50.0}])
def test_untrained_dgnet_is_the_classical_solver(capacity):
    fields = {} if capacity is None else {"fields": ("u", "v")}
    flow = {"velocity": [0.4, 0.1]} if capacity is None else {}
    p = mixed(capacity, reaction=lambda u: u - u**3, **fields, **flow)
    g = torch.Generator().manual_seed(0)
    F = p.n_fields
    u0, f = (torch.rand(shape, dtype=torch.float64, generator=g) for shape in ((2, p.n, F), (2, 4, p.n, F)))
    model = DGNet(EVERYTHING, p).double()
    with torch.no_grad():
        torch.testing.assert_close(rollout(model, p, u0, f, 4), rollout(Classical(), p, u0, f, 4), rtol=1e-10, atol=1e-12)


def test_any_weights_keep_constants_heat_and_energy():
    mesh = box((6, 6), perturb=0.2, seed=3)
    p = Problem(mesh, PDE(diffusion=by_side(mesh, 0.3, 2.0), capacity=by_side(mesh, 1.0, 1e3)), [], 0.02)
    model = DGNet(DGNetConfig(free=True, hidden=8, layers=1), p).double()
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(10 * torch.randn(weight.shape, generator=g))
        state = model.prepare(p)
        M = state.solver.operators.mass
        dense = torch.zeros(p.n, p.n, dtype=torch.float64)
        dense[M.pattern.row.long(), M.pattern.col.long()] = M.values[0, 0]
        scale = dense.diagonal().rsqrt()
        assert float(torch.linalg.eigvalsh(scale[:, None] * dense * scale)[0]) >= state.solver.operators.mass_low > 0
        u = torch.randn(1, p.n, 1, dtype=torch.float64, generator=g)
        states = rollout(model, p, u, None, 40)[0, ..., 0]
        energy = torch.einsum("ti,ij,tj->t", states, dense, states)
        assert bool((energy[1:] <= energy[:-1] * (1 + 1e-12)).all())
        heat = states @ p.mass.row_sums()[0, 0]
        torch.testing.assert_close(heat, heat[:1].expand_as(heat), rtol=1e-10, atol=1e-10)
        flat = rollout(model, p, torch.full_like(u, 3.0), None, 5)
        torch.testing.assert_close(flat, torch.full_like(flat, 3.0))


def test_a_reaction_beyond_its_range_stays_bounded_at_a_jump_of_the_capacity():
    p = mixed(reaction=lambda u: 5 * u**2)
    model = DGNet(DGNetConfig(hidden=8, layers=1), p).double()
    model.low.fill_(-1.0)
    model.high.fill_(1.0)
    u = 50 * torch.randn(1, p.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = rollout(model, p, u, None, 60)
    assert float(states[:, -1].abs().max()) < 10.0


@pytest.mark.parametrize("kind", ["known", "learned"])
def test_the_exported_step_gathers_the_reaction_without_the_capacity(kind):
    p = mixed(reaction=(lambda u: u - u**3) if kind == "known" else None)
    table = 8 if kind == "learned" else 0
    config = DGNetConfig(free=True, hidden=8, layers=1, reaction=kind, reaction_table=table)
    model = DGNet(config, p).double()
    g = torch.Generator().manual_seed(1)
    u, f = (torch.rand(1, p.n, 1, dtype=torch.float64, generator=g) for _ in range(2))
    model.fit_statistics(torch.stack([u, u + 0.1 * f], 1), f[:, None], p.dt)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=g))
        state = model.prepare(p)
        state.settle()
        exported = Step(state.solver, model.reaction_net if kind == "learned" else None)
        torch.testing.assert_close(exported(u, f), state.step(u, f, 0.0, 1), rtol=1e-8, atol=1e-10)


def test_gradients_pass_through_the_capacity():
    mesh = box((2, 2), perturb=0.2, seed=1)

    def three(u: Tensor, c: Tensor) -> Tensor:
        p = Problem(mesh, PDE(diffusion=0.5, velocity=[0.2, 0.1], reaction=lambda s: s - s**3, capacity=c),
                           [Dirichlet("left", 0.3)], 0.1)
        solver = GreenSolver(p, "lu")
        for k in range(3):
            u = solver.step(u, None, 0.1 * k)
        return u

    u = torch.randn(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    c = (0.5 + torch.rand(mesh.n_cells, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(three, (u, c), atol=1e-6, fast_mode=True)


def test_severed_steps_have_the_same_gradients():
    p = mixed()
    config = DGNetConfig(free=True, hidden=8, layers=1, reaction="learned", reaction_table=8)
    model = DGNet(config, p).double()
    u = torch.rand(1, p.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model.fit_statistics(torch.stack([u, u + 0.1], 1), None, p.dt)
    weight = model.free_pair
    (direct,) = torch.autograd.grad(model.prepare(p).step(u, None, 0.0, 1).square().sum(), weight)
    state = model.prepare(p)
    found = state.severed()
    assert found is not None
    own, pairs = found
    leaves = torch.autograd.grad(own.step(u, None, 0.0, 1).square().sum(), [leaf for _, leaf in pairs], allow_unused=True)
    used = [(x, g) for (x, _), g in zip(pairs, leaves) if g is not None]
    (indirect,) = torch.autograd.grad([x for x, _ in used], weight, [g for _, g in used])
    torch.testing.assert_close(direct, indirect)


def test_what_a_capacity_must_not_be():
    mesh = box((3, 3))
    for value, words in ((0.0, "positive"), (-1.0, "positive"), (np.nan, "positive"), (np.ones(5), "one per cell"),
                         (np.where(np.arange(mesh.n_cells) == 7, -2.0, 1.0), "in cell 7")):
        with pytest.raises(InputError, match=words):
            Problem(mesh, PDE(capacity=value), [], 0.1)
    with pytest.raises(InputError, match="capacity is not given for field 'v'"):
        PDE(("u", "v"), capacity={"u": 1.0})
    with pytest.raises(InputError, match="skew"):
        Problem(mesh, PDE(capacity=by_side(mesh, 1.0, 2.0), velocity=[1.0, 0.0]), [], 0.1, advection_form="skew")
    with pytest.raises(InputError, match="share one capacity"):
        Problem(mesh, PDE(("u", "v"), capacity={"u": 1.0, "v": 2.0}, velocity=[1.0, 0.0]), [], 0.1)


def test_baselines_are_told_the_capacity():
    p = mixed()
    assert coefficients(p).shape[1] == coefficients(mixed(1.0)).shape[1] + 1
    assert Operators.classical(p).plain is p.source_mass


def test_the_double_of_another_form_has_that_form():
    """Once kept, it used to be that of the form before."""
    p = mixed()
    assert p.double is p
    assert p.recast(0.0, "galerkin").double.consistent == 0.0
