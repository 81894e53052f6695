"""DGNet: what holds untrained, what holds for any weights, and that each learned part can learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh, box, perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import (
    DGNet,
    DGNetConfig,
    FlowInCells,
    cell_pairs,
    direction_features,
    learned_diffusion,
    mass_headroom,
    soft_limit,
    streamline_diffusion,
    swirl_transport,
)
from dgnet.models.gnn import MeshGraph
from dgnet.operators import Geometry
from dgnet.problems import PDE, Dirichlet, Neumann, Periodic, Problem, Robin, step_average
from dgnet.stepping import GreenSolver, Operators, product
from dgnet_paper.model import BOUNDED, PaperConfig, variants
from dgnet_paper.scenarios import get, names
from tests.conftest import shuffled

Tensor = torch.Tensor

EVERYTHING = PaperConfig(free=True, learn_streamline=True, learn_swirl=True, learn_start=True,
                         calibrate=("diffusion", "decay", "convection"), hidden=16, layers=2, residual_hidden=16,
                         residual_layers=2, reaction_hidden=16)
SMALL_PAPER = replace(BOUNDED, hidden=16, layers=2, residual_hidden=16, residual_layers=2)


def build(config: DGNetConfig, problem: Problem, seed: int = 0) -> DGNet:
    """A factor of a coefficient that is zero is refused, so those are left out."""
    def given(name: str) -> bool:
        if name == "convection":
            return any(isinstance(c, Robin) for c in problem.conditions)
        return all(bool(torch.as_tensor(value).any()) for value in problem.pde.per_field(name))

    torch.manual_seed(seed)
    return DGNet(replace(config, calibrate=tuple(filter(given, config.calibrate))), problem).to(problem.dtype)


def randomised(model: DGNet, size: float, seed: int = 1) -> DGNet:
    """Every parameter drawn anew; size 30 saturates every bound."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(size * torch.randn(p.shape, generator=g, dtype=p.dtype))
    return model


def operators(model: DGNet, problem: Problem) -> Operators:
    with torch.no_grad():
        return model.prepare(problem).solver.operators


def dense(values: Tensor, problem: Problem) -> np.ndarray:
    """The first matrix of a batch as an array."""
    p = problem.geometry.pattern
    out = np.zeros((p.n, p.n))
    out[p.row.numpy(), p.col.numpy()] = values.detach().reshape(-1, p.nnz)[0].numpy()
    return out


def swirl(mesh: Mesh, batch: int, times: int, seed: int = 0) -> Tensor:
    """Velocities [B, T, N, 2] of random stream functions: free of divergence but for the interpolation."""
    rng = np.random.default_rng(seed)
    x = mesh.points / np.ptp(mesh.points, axis=0).max()
    phase, turn = rng.uniform(0, 2 * np.pi, (batch, 1, 1)), rng.uniform(1, 3, (batch, 1, 1))
    t = np.linspace(0, 1, times)[None, :, None]
    a = turn * (x[:, 0] + 0.3 * t) + phase
    b = 2 * x[:, 1] - phase
    return torch.tensor(np.stack([0.4 * np.sin(a) * np.cos(b) + 0.3, -0.2 * turn * np.cos(a) * np.sin(b)], -1))


# ---------------------------------------------------------------------- untrained


@pytest.mark.parametrize("name", [n for n in names() if not get(n, "small").pde.curved])  # for those: test_curved.py
def test_untrained_is_the_classical_solver_on_every_scenario(name: str) -> None:
    s = get(name, "small")
    steps, draws = 4, s.draws()[:2]
    drawn = s.sample(draws)
    x = torch.tensor(s.mesh.points)
    u0 = drawn.initial if isinstance(drawn.initial, Tensor) else drawn.initial(x)
    f = None if drawn.source is None else step_average(drawn.source, x, s.times[:steps] + s.horizon / 3, s.dt, s.panels)
    problem = s.problem(None if s.flow is None else swirl(s.mesh, len(draws), steps + 1))
    with torch.no_grad():
        for config in (EVERYTHING, replace(EVERYTHING, residual=True), replace(EVERYTHING, advection_form="skew"), SMALL_PAPER):
            model = build(config, problem)
            base = problem.recast(config.consistent, config.advection_form)
            theirs = rollout(Classical(config.consistent, start=0), base, u0, f, steps)
            model.fit_statistics(theirs, f, s.dt)
            ours = rollout(model, problem, u0, f, steps)
            assert torch.isfinite(theirs).all()
            assert float((ours - theirs).norm()) < 1e-11 * float(theirs.norm()) + 1e-14


@pytest.mark.parametrize("form, consistent", [("upwind", 1.0), ("skew", 0.0), ("galerkin", 0.3)])
def test_what_a_problem_says_of_its_discretisation_is_honoured_or_refused(form: str, consistent: float) -> None:
    """Not overwritten: untrained, DGNet is the classical solver of that very problem, or says why it cannot be."""
    mesh = box((6, 5), perturb=0.2, seed=1)
    problem = Problem(mesh, PDE(diffusion=0.01, velocity=no_normal_flow(mesh)), (), 0.05, consistent, form)
    u0 = torch.randn(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs = rollout(Classical(start=0), problem, u0, None, 5)
        assert torch.equal(theirs[:, 1], GreenSolver(problem).step(u0))
        ours = rollout(build(replace(EVERYTHING, advection_form=form, consistent=consistent), problem), problem, u0, None, 5)
        assert float((ours - theirs).norm()) < 1e-11 * float(theirs.norm())
        with pytest.raises(InputError, match=r"the problem.s \w+ is .+, that of the model"):
            build(EVERYTHING, problem).prepare(problem)


def boundary_case(kind: str) -> Problem:
    mesh = box((6, 5), perturb=0.2, seed=1)
    pde = PDE(("u", "v"), diffusion={"u": 0.1, "v": 0.02}, decay={"u": 0.3, "v": 0.0}, reaction=lambda u: torch.sin(u))
    if kind == "periodic":
        rules = (Periodic("left", "right"), Dirichlet("top", 1.0, "v"))
        return Problem(mesh, replace(pde, velocity=(1.0, 0.2)), rules, 0.05)
    if kind == "in time":
        return Problem(mesh, pde, (
            Robin("left", lambda x, t: 1 + t + 0 * x[:, 0], lambda x, t: 2 + torch.cos(3 * t + x[:, 1])),
            Neumann("right", lambda x, t: t * x[:, 1]), Dirichlet("top", lambda x, t: x[:, 0] * np.sin(t), "u")), 0.05)
    if kind == "coefficient in time":
        return Problem(mesh, pde, (Robin("left", lambda x, t: 1 + 9 * t + 0 * x[:, 0], 2.0),), 0.05)
    tensor = torch.tensor([[0.1, 0.03], [0.03, 0.05]], dtype=torch.float64)
    cells = tensor * torch.linspace(0.5, 2, mesh.n_cells, dtype=torch.float64)[:, None, None]
    return Problem(mesh, PDE(diffusion=cells, velocity=(0.3, -0.4)), (Robin("left", 0.7, 1.5), Neumann("top", 0.2)), 0.05)


@pytest.mark.parametrize("config", [EVERYTHING, replace(SMALL_PAPER, free=True)], ids=["structured", "paper"])
@pytest.mark.parametrize("kind", ["periodic", "in time", "coefficient in time", "tensor"])
def test_untrained_is_the_classical_solver_for_every_boundary_condition(kind: str, config: DGNetConfig) -> None:
    problem = boundary_case(kind)
    u0 = torch.randn(2, problem.mesh.n_nodes, problem.n_fields, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u0 = problem.expand(problem.restrict(u0))
    with torch.no_grad():
        theirs = rollout(Classical(config.consistent, start=0), problem, u0, None, 6)
        model = build(config, problem)
        ours = rollout(model, problem, u0, None, 6)
        assert float((ours - theirs).norm()) < 1e-11 * float(theirs.norm())
        moved = rollout(randomised(model, 0.5), problem, u0, None, 6)
    assert torch.isfinite(moved).all() and float((moved - theirs).norm()) > 1e-4 * float(theirs.norm())
    assert torch.equal(problem.expand(problem.restrict(moved)), moved)  # nodes that are one stay one
    if problem.fixed is not None:  # and Dirichlet values hold
        values = problem.fixed_values(6 * problem.dt)
        gap = (problem.restrict(moved[:, -1]) - values)[:, problem.fixed.T.expand_as(values)]
        assert float(gap.abs().max()) < 1e-14


# ---------------------------------------------------------------------- gradients


def test_gradients_reach_every_part() -> None:
    mesh = box((5, 5), perturb=0.2)
    problem = Problem(mesh, PDE(diffusion=0.05, decay=0.1, velocity=(0.5, 0.2)), (Robin("left", 1.0, 2.0),), 0.05)
    g = torch.Generator().manual_seed(0)
    u, f, target = (torch.randn(3, mesh.n_nodes, 1, dtype=torch.float64, generator=g) for _ in range(3))
    for config in (replace(EVERYTHING, residual=True, reaction="learned", advection_form="skew"),
                   replace(SMALL_PAPER, free=True, reaction="learned")):
        model = build(config, problem)

        def gradients(model: DGNet) -> dict[str, Tensor]:
            state = model.prepare(problem)
            new = state.step(state.step(state.begin(u), f, 0.0, 0), f, problem.dt, 1)
            model.zero_grad()
            ((new - target) ** 2).mean().backward()
            return {name: torch.zeros(1) if p.grad is None else p.grad for name, p in model.named_parameters()}

        at_birth = {name for name, grad in gradients(model).items() if float(grad.abs().max()) > 0}
        last = {n for n, _ in model.named_parameters() if n.startswith(("free", "calibration"))}
        last |= {n for n, p in model.named_parameters() if "decode" in n and not p.any()}
        assert last and last <= at_birth, last - at_birth  # what starts at zero can leave it
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.2 * torch.randn(p.shape, dtype=p.dtype, generator=g))
        dead = [name for name, grad in gradients(model).items() if not float(grad.abs().max()) > 0]
        assert not dead


def test_gradients_are_those_of_differences() -> None:
    mesh = box((3, 3), perturb=0.2)
    problem = Problem(mesh, PDE(diffusion=0.05, velocity=(0.5, 0.2)), (Robin("left", 1.0, 2.0),), 0.05)
    model = randomised(build(replace(EVERYTHING, network=False), problem), 0.3)
    g = torch.Generator().manual_seed(0)
    u, f = (torch.randn(2, mesh.n_nodes, 1, dtype=torch.float64, generator=g) for _ in range(2))

    def value() -> Tensor:
        state = model.prepare(problem)
        return (state.step(state.begin(u), f, 0.0, 0) ** 2).sum()

    value().backward()
    for p in model.parameters():
        if p.grad is None:
            continue
        way = torch.randn(p.shape, dtype=p.dtype, generator=g)
        with torch.no_grad():
            p.add_(1e-5 * way)
            up = value()
            p.sub_(2e-5 * way)
            down = value()
            p.add_(1e-5 * way)
        assert float((p.grad * way).sum()) == pytest.approx(float(up - down) / 2e-5, rel=1e-5, abs=1e-7)


# ---------------------------------------------------------------------- any weights


def no_normal_flow(mesh: Mesh) -> Tensor:
    """A vortex in the unit square that runs along its walls."""
    x, y = mesh.points.T * np.pi
    return torch.tensor(np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)], 1))


STABLE = {
    "2D": (lambda: (box((7, 6), perturb=0.25, seed=3), PDE(diffusion=0.1, decay=0.05), ()), {}),
    "2D fixed": (lambda: (box((7, 6), perturb=0.25, seed=3), PDE(diffusion=0.1), (Dirichlet("left"),)), {}),
    "2D convective": (lambda: (box((7, 6), perturb=0.25, seed=3), PDE(diffusion=0.1), (Robin("left", 2.0, 0.0),)), {}),
    "3D": (lambda: (box((4, 3, 3), perturb=0.2, seed=3), PDE(diffusion=0.1), ()), {}),
    "skew": (lambda: (m := box((7, 6), perturb=0.25, seed=3), PDE(diffusion=1e-3, velocity=no_normal_flow(m)), ()),
             {"advection_form": "skew"}),
}


@pytest.mark.parametrize("lumped", [False, True], ids=["consistent", "lumped"])
@pytest.mark.parametrize("case", STABLE)
def test_saturated_weights_never_make_energy(case: str, lumped: bool) -> None:
    make, extra = STABLE[case]
    mesh, pde, conditions = make()
    problem = Problem(mesh, pde, conditions, 0.05)
    config = replace(EVERYTHING, learn_start=False, calibrate=(), consistent=0.0 if lumped else 1.0, **extra)
    for seed in range(2):
        model = randomised(build(config, problem), 30.0, seed)
        with torch.no_grad():
            state = model.prepare(problem, batch=6, steps=1_000)
            M = state.solver.operators.mass
            u = torch.randn(6, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
            u[:3] /= u[:3].norm()
            if problem.fixed is not None:
                u = u * (~problem.fixed).T
            before = first = (u * product(M, u)).sum((1, 2))
            for k in range(1_000):  # ten thousand: tests/models/test_any_weights.py
                u = state.step(u, None, k * problem.dt, k)
                now = (u * product(M, u)).sum((1, 2))
                assert bool((now <= before * (1 + 1e-10)).all()), (seed, k)
                before = now
            state.finish()
        assert bool((now < first).all())


@pytest.mark.parametrize("lumped", [0.0, 1.0])
def test_learned_mass_stays_positive_and_keeps_its_proven_bound(mesh: Mesh, lumped: float) -> None:
    problem = Problem(mesh, PDE(diffusion=0.1), (), 0.05, consistent=lumped)
    classical = dense(problem.mass.values, problem)
    for seed, size in ((0, 0.1), (1, 1.0), (2, 30.0), (3, 1e3)):
        model = randomised(build(replace(EVERYTHING, consistent=lumped), problem), size, seed)
        ops = operators(model, problem)
        M = dense(ops.mass.values, problem)
        assert np.allclose(M, M.T, atol=1e-16) and np.allclose(M.sum(1), classical.sum(1), rtol=1e-12)
        root = np.sqrt(np.diag(M))
        assert 0 < ops.mass_low <= np.linalg.eigvalsh(M / np.outer(root, root))[0] + 1e-12
        P = dense(ops.source.values, problem)
        assert np.allclose(P.sum(1), classical.sum(1), rtol=1e-12)  # a uniform source is exact
    # all the way up: the bound is still above zero
    model = build(replace(EVERYTHING, network=False, consistent=lumped), problem)
    with torch.no_grad():
        model.free_pair.fill_(1e6)
    ops = operators(model, problem)
    M = dense(ops.mass.values, problem)
    assert 0 < ops.mass_low <= np.linalg.eigvalsh(M / np.sqrt(np.outer(np.diag(M), np.diag(M))))[0] + 1e-12


def test_constants_and_the_total_are_kept_for_any_weights(mesh: Mesh) -> None:
    problem = Problem(mesh, PDE(diffusion=0.1), (), 0.05)
    model = randomised(build(replace(EVERYTHING, calibrate=()), problem), 30.0)
    g = torch.Generator().manual_seed(0)
    u0, f = (torch.randn(2, *shape, dtype=torch.float64, generator=g) for shape in ((mesh.n_nodes, 1), (50, 1, 1)))
    share = torch.tensor(mesh.dual_volumes())[:, None]
    with torch.no_grad():
        flat = rollout(model, problem, torch.full_like(u0, 3.7), None, 50)
        assert float((flat - 3.7).abs().max()) < 1e-10
        free = rollout(model, problem, u0, None, 50)
        total = (free * share).sum((2, 3))
        assert torch.allclose(total, total[:, :1].expand_as(total), rtol=1e-10, atol=1e-12)
        driven = rollout(model, problem, u0, f.expand(-1, -1, mesh.n_nodes, -1).contiguous())
        gained = (driven * share).sum((2, 3)) - total[:, :1]
        wanted = problem.dt * float(share.sum()) * torch.cumsum(f[..., 0, 0], 1)
        assert torch.allclose(gained[:, 1:], wanted, rtol=1e-9, atol=1e-10)


def test_learned_diffusion_and_streamline_stay_positive_semidefinite(mesh: Mesh) -> None:
    d, K = mesh.dim, mesh.n_cells
    spread = torch.eye(d, dtype=torch.float64) * torch.rand(K, 1, 1, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    for D in (0.3, spread):
        problem = Problem(mesh, PDE(diffusion=D, velocity=torch.ones(d, dtype=torch.float64)), (), 0.05)
        s = d * (d + 1) // 2
        still = dense(learned_diffusion(problem, torch.zeros(K, s, dtype=torch.float64)).values, problem)
        assert np.allclose(still, dense(problem.diffusion_part.values, problem), rtol=0, atol=1e-15)
        for size in (0.1, 1.0, 100.0):
            A = dense(learned_diffusion(problem, size * torch.randn(K, s, dtype=torch.float64, generator=g)).values, problem)
            assert np.allclose(A, A.T, atol=1e-14) and np.abs(A.sum(1)).max() < 1e-12
            low = np.linalg.eigvalsh(A)
            assert low[0] > -1e-13 * low[-1] and low[-1] > 0
        strength = 10 * torch.rand(K, dtype=torch.float64, generator=g)
        B = dense(streamline_diffusion(problem, strength, FlowInCells.at(problem, 0.0)).values, problem)
        low = np.linalg.eigvalsh(0.5 * (B + B.T))
        assert np.allclose(B, B.T) and np.abs(B.sum(1)).max() < 1e-12 and low[0] > -1e-13 * low[-1] and low[-1] > 0


def test_diffusion_tensors_move_the_way_the_exponential_does() -> None:
    """The stiffness for S is that of exp(S/2) D exp(S/2) to third order."""
    mesh = box((3, 3), perturb=0.2)
    S = torch.tensor([[0.2, -0.1], [-0.1, 0.05]], dtype=torch.float64)
    raw = torch.tensor([0.2, -0.1, 0.05], dtype=torch.float64)
    raw = (0.5 * torch.atanh(2 * raw)).expand(mesh.n_cells, 3)  # undoes the limit
    problem = Problem(mesh, PDE(diffusion=0.3), (), 0.05)
    exact = Problem(mesh, PDE(diffusion=0.3 * torch.matrix_exp(S)), (), 0.05)
    A, B = (dense(m.values, problem) for m in (learned_diffusion(problem, raw), exact.diffusion_part))
    assert np.linalg.norm(A - B) < 2e-4 * np.linalg.norm(B)


def test_streamline_strength_is_never_negative_and_a_flow_at_rest_is_harmless() -> None:
    mesh = box((5, 4), perturb=0.2)
    config = DGNetConfig(network=False, free=True, learn_streamline=True, advection_form="skew")
    for velocity, moving in ((torch.zeros(mesh.n_nodes, 2, dtype=torch.float64), False), (no_normal_flow(mesh), True)):
        problem = Problem(mesh, PDE(diffusion=0.1, velocity=velocity), (), 0.05)
        model = build(config, problem)
        still = operators(model, problem).stiffness(0.0).values
        with torch.no_grad():
            model.free_cell[:, -1] = -5.0
        assert torch.equal(operators(model, problem).stiffness(0.0).values, still)
        with torch.no_grad():
            model.free_cell[:, -1] = 5.0
        change = operators(model, problem).stiffness(0.0).values - still
        assert torch.isfinite(change).all() and bool(change.abs().max() > 0) == moving


@pytest.mark.parametrize("shape", [(5, 4), (3, 2, 2)])
def test_learned_swirl_moves_and_does_nothing_else(shape: tuple[int, ...]) -> None:
    """Skew, constants in its kernel, totals untouched; a linear field in a uniform potential is left alone inside."""
    mesh = box(shape, perturb=0.2)
    torch.manual_seed(0)
    velocity = torch.randn(mesh.n_nodes, mesh.dim, dtype=torch.float64)
    problem = Problem(mesh, PDE(diffusion=0.1, velocity=velocity), (), 0.05)
    model = build(DGNetConfig(network=False, free=True, learn_swirl=True), problem)
    still = operators(model, problem).stiffness(0.0)
    with torch.no_grad():
        model.free_flow.normal_()
    change = operators(model, problem).stiffness(0.0) - still
    assert float(change.values.abs().max()) > 1e-4
    assert float((change.values + change.mT.values).abs().max()) < 1e-14
    assert float(change.row_sums().abs().max()) < 1e-14

    uniform = problem.with_velocity((1.0, 0.5, 0.2)[: mesh.dim])
    h = problem.geometry.volumes ** (1 / mesh.dim)
    size = direction_features(mesh.dim) * (1 if mesh.dim == 2 else 3)
    raw = torch.ones(mesh.n_cells, size, dtype=torch.float64) / h[:, None]
    inside = ~torch.as_tensor(mesh.on_boundary)
    moved = product(swirl_transport(uniform, raw, FlowInCells.at(uniform, 0.0)), problem.geometry.tensor(mesh.points[:, :1])[None])
    assert float(moved[0, inside].abs().max()) < 1e-13 < float(moved.abs().max())


def test_edge_decoder_has_zero_row_sums_and_keeps_its_limit(mesh: Mesh) -> None:
    problem = Problem(mesh, PDE(("u", "v"), diffusion={"u": 0.1, "v": 0.2}), (), 0.05, consistent=0.0)
    model = randomised(build(replace(SMALL_PAPER, free=True), problem), 30.0)
    change = operators(model, problem).stiffness(0.0) - problem.stiffness()
    assert change.values.shape[1] == 2 and float(change.values.abs().max()) > 0
    assert float(change.row_sums().abs().max()) < 1e-13
    size = problem.diffusion_part.diagonal
    off = change.values.index_fill(-1, change.pattern.diagonal, 0.0).abs()
    total = torch.zeros_like(size).index_add(-1, change.pattern.row.long(), off)
    assert bool((total <= BOUNDED.edge_limit * size * (1 + 1e-12)).all())
    skew = change.values - change.mT.values
    assert float(skew.abs().max()) > 0.01 * float(change.values.abs().max())  # directed: not symmetric


@pytest.mark.parametrize("config", [EVERYTHING, SMALL_PAPER], ids=["structured", "paper"])
def test_a_trajectory_does_not_see_its_neighbours_or_the_clock(config: DGNetConfig) -> None:
    """With given flows: the operator of a trajectory is its own, and that of a time does not depend on where a window began."""
    s = get("cylinder", "small")
    v = swirl(s.mesh, 3, 7)
    v[1] *= 4
    g = torch.Generator().manual_seed(0)
    u0 = torch.rand(3, s.mesh.n_nodes, 1, dtype=torch.float64, generator=g)
    model = randomised(build(replace(config, free=False), s.problem(v)), 0.3)
    with torch.no_grad():
        together = rollout(model, s.problem(v), u0, None, 6)
        for b in range(3):
            alone = rollout(model, s.problem(v[b:b + 1]), u0[b:b + 1], None, 6)
            assert torch.allclose(alone, together[b:b + 1], rtol=1e-8, atol=1e-10)
        if not config.learn_start:
            later = rollout(model, s.problem(v[:, 3:]), together[:, 3], None, 3)
            assert torch.allclose(later, together[:, 3:], rtol=1e-8, atol=1e-10)


# ---------------------------------------------------------------------- linearity, other meshes, renumbering


@pytest.mark.parametrize("config", [EVERYTHING, replace(SMALL_PAPER, free=True, residual=False)], ids=["structured", "paper"])
def test_superposition(mesh: Mesh, config: DGNetConfig) -> None:
    problem = Problem(mesh, PDE(diffusion=0.1, velocity=torch.ones(mesh.dim, dtype=torch.float64)),
                             (Dirichlet("left", 1.0), Robin("right", 0.5, 2.0)), 0.05)
    model = randomised(build(config, problem), 0.5)
    g = torch.Generator().manual_seed(0)
    u, f = (torch.randn(2, *shape, dtype=torch.float64, generator=g) for shape in ((mesh.n_nodes, 1), (5, mesh.n_nodes, 1)))
    zero = torch.zeros_like(u[:1]), torch.zeros_like(f[:1])
    with torch.no_grad():
        rest = rollout(model, problem, *zero)  # the answer to boundary data alone
        one, two = (rollout(model, problem, u[k:k + 1], f[k:k + 1]) - rest for k in (0, 1))
        both = rollout(model, problem, 2.5 * u[:1] - 0.7 * u[1:], 2.5 * f[:1] - 0.7 * f[1:]) - rest
    assert float((both - (2.5 * one - 0.7 * two)).norm()) < 1e-9 * float(both.norm())


@pytest.mark.parametrize("config", [replace(EVERYTHING, free=False, residual=True), SMALL_PAPER], ids=["structured", "paper"])
def test_renumbered_nodes_give_renumbered_answers(mesh: Mesh, config: DGNetConfig) -> None:
    rng = np.random.default_rng(0)
    order = torch.as_tensor(rng.permutation(mesh.n_nodes))
    other = shuffled(mesh, 0)
    assert np.array_equal(other.points, mesh.points[order])
    velocity = torch.ones(mesh.dim, dtype=torch.float64)
    pde = PDE(diffusion=0.1, velocity=velocity)
    first, second = (Problem(m, pde, (Robin("left", 1.0, 0.5),), 0.05) for m in (mesh, other))
    model = randomised(build(config, first), 0.5)
    u, f = torch.randn(2, mesh.n_nodes, 1, dtype=torch.float64), torch.randn(2, 4, mesh.n_nodes, 1, dtype=torch.float64)
    with torch.no_grad():
        a = rollout(model, first, u, f)
        b = rollout(model, second, u[:, order], f[:, :, order])
        still = rollout(Classical(config.consistent, start=0), first, u, f)
    assert float((a[:, :, order] - b).norm()) < 1e-9 * float(a.norm())
    assert float((a - still).norm()) > 1e-3 * float(a.norm())


def test_weights_of_one_mesh_run_on_another() -> None:
    """A network trained on one mesh keeps its guarantees elsewhere; free numbers belong to their own mesh."""
    pde = PDE(diffusion=0.1)
    here, there = (Problem(perturbed_square(n, seed=n), pde, (), 0.02) for n in (6, 9))
    fine = [torch.tensor(np.cos(np.pi * p.mesh.points[:, :1]))[None] for p in (here, there)]
    exact = [u * torch.exp(-0.1 * np.pi**2 * 0.02 * torch.arange(1, 6).view(-1, 1, 1)) for u in fine]
    model = build(replace(EVERYTHING, free=False, learn_start=False, calibrate=()), here)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)

    def loss(problem: Problem, u: Tensor, truth: Tensor) -> Tensor:
        return ((rollout(model, problem, u, None, 5)[:, 1:] - truth) ** 2).mean()

    with torch.no_grad():
        before = [float(loss(p, u, t)) for p, u, t in zip((here, there), fine, exact)]
    for _ in range(60):
        optimiser.zero_grad()
        loss(here, fine[0], exact[0]).backward()
        optimiser.step()
    with torch.no_grad():
        after = [float(loss(p, u, t)) for p, u, t in zip((here, there), fine, exact)]
    assert after[0] < 0.5 * before[0] and after[1] < before[1]
    fixed = randomised(build(EVERYTHING, here), 0.1)
    with pytest.raises((InputError, RuntimeError)):
        rollout(fixed, there, fine[1], None, 2)


# ---------------------------------------------------------------------- bounds


def test_soft_limit() -> None:
    z = torch.linspace(-20, 20, 4001, dtype=torch.float64, requires_grad=True)
    for down, up in ((1.5, 0.2), (0.5, 0.5), (3.0, 1.2)):
        y = soft_limit(z, down, up)
        (slope,) = torch.autograd.grad(y.sum(), z)
        assert bool((y >= -down).all()) and bool((y <= up).all()) and bool((slope >= 0).all()) and bool((slope <= 1).all())
        assert abs(float(y[2000])) < 1e-14 and float(slope[2000]) == pytest.approx(1.0)
        assert bool((y.diff() >= 0).all())
    assert torch.isfinite(soft_limit(torch.tensor([-1e30, 1e30]), 1.5, 0.2)).all()


def test_mass_headroom_stays_below_the_edge(mesh: Mesh) -> None:
    for c in (0.0, 0.5, 1.0):
        problem = Problem(mesh, PDE(diffusion=0.1), (), 0.05, consistent=c)
        assert 0 < mass_headroom(problem) + c < (mesh.dim + 2) / (mesh.dim + 1)
    pairs, g = cell_pairs(problem.geometry), problem.geometry
    assert torch.equal(pairs.upper, g.pattern.upper)  # edges in the order of the pattern
    assert torch.allclose(pairs.weight, problem.recast(1.0, "galerkin").mass.values[0, 0, pairs.upper])
    assert torch.equal(pairs.of_cell.unique(), torch.arange(len(mesh.edges)))


def test_graph_features_do_not_depend_on_units_or_place(mesh: Mesh) -> None:
    moved = Mesh(1000 * mesh.points + 7, mesh.cells, mesh.boundaries)
    a, b = (MeshGraph.of(Geometry.of(m)) for m in (mesh, moved))
    assert torch.allclose(a.node, b.node, atol=1e-9) and torch.allclose(a.edge, b.edge, atol=1e-9)
    inside = ~torch.tensor(mesh.on_boundary)
    assert torch.allclose(a.node[inside, -1], torch.ones(int(inside.sum()), dtype=torch.float64))
    assert bool((a.node[~inside, -1] < 0.6).all())


def test_unknown_names_are_refused() -> None:
    for wrong in ({"decoder": "edges"}, {"reaction": "maybe"}, {"calibrate": ("viscosity",)}):
        with pytest.raises(InputError):
            DGNetConfig(**wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- each part learns


def train(model: DGNet, problem: Problem, states: Tensor, source: Tensor | None, iterations: int, lr: float) -> float:
    """Adam on the whole trajectories; returns the last loss over the first."""
    optimiser = torch.optim.Adam(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations, lr / 50)
    steps = states.shape[1] - 1
    first = last = 0.0
    for _ in range(iterations):
        optimiser.zero_grad()
        loss = ((rollout(model, problem, states[:, 0], source, steps) - states) ** 2).mean()
        loss.backward()
        optimiser.step()
        schedule.step()
        last = float(loss.detach())
        first = first or last
    return last / first


def test_calibration_recovers_wrong_coefficients() -> None:
    mesh = box((6, 6), perturb=0.2)

    def make(factor: float) -> Problem:
        return Problem(mesh, PDE(diffusion=0.05 * factor, decay=0.4 / factor), (Robin("left", 0.8 * factor, 2.0),), 0.05)

    g = torch.Generator().manual_seed(0)
    u0 = torch.rand(4, mesh.n_nodes, 1, dtype=torch.float64, generator=g)
    with torch.no_grad():
        truth = rollout(Classical(), make(1.0), u0, None, 8)
    wrong = make(2.0)
    model = build(DGNetConfig(decoder="none", network=False, calibrate=("diffusion", "decay", "convection")), wrong)
    train(model, wrong, truth, None, 120, 0.08)
    assert model.coefficients() == pytest.approx({"diffusion": 0.5, "decay": 2.0, "convection": 0.5}, rel=0.01)


@pytest.mark.parametrize("odd", [False, True])
def test_learned_reaction_on_allen_cahn(odd: bool) -> None:
    mesh = perturbed_square(6)
    pde = PDE(diffusion=0.0016, reaction=lambda u: u - u**3)
    problem = Problem(mesh, pde, (), 0.1)
    g = torch.Generator().manual_seed(0)
    u0 = 2.4 * torch.rand(6, mesh.n_nodes, 1, dtype=torch.float64, generator=g) - 1.2
    with torch.no_grad():
        truth = rollout(Classical(), problem, u0, None, 10)

    def error(model: DGNet) -> float:
        with torch.no_grad():
            return float((rollout(model, problem, truth[4:, 0], None, 10) - truth[4:]).norm() / truth[4:].norm())

    config = DGNetConfig(decoder="none", network=False, reaction="learned", odd_reaction=odd, reaction_hidden=24)
    model = build(config, problem)
    model.fit_statistics(truth[:4], None, problem.dt)
    without = error(build(replace(config, reaction="none"), problem))
    assert error(model) == pytest.approx(without)  # at birth there is none
    train(model, problem, truth[:4, :4], None, 100, 0.03)  # three steps of ten
    assert error(model) < 0.15 * without


def test_residual_is_bounded_by_the_rate_of_the_data(mesh: Mesh) -> None:
    problem = Problem(mesh, PDE(diffusion=0.1), (), 0.05)
    config = replace(SMALL_PAPER, decoder="none")
    model = randomised(build(config, problem), 30.0)
    model.rate.fill_(2.0)
    u = torch.randn(2, mesh.n_nodes, 1, dtype=torch.float64)
    with torch.no_grad():
        change = rollout(model, problem, u, None, 1) - rollout(Classical(0.0, start=0), problem, u, None, 1)
    assert 0 < float(change.abs().max()) <= 0.05 * 2.0 * (1 + 1e-9)


# ---------------------------------------------------------------------- the paper's variants


@pytest.mark.parametrize("letter", variants(BOUNDED))
def test_variants(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = box((5, 5), perturb=0.2)
    problem = Problem(mesh, PDE(("u", "v"), diffusion={"u": 0.1, "v": 0.2}), (Robin("left", 1.0, 2.0, "u"),), 0.05)
    config = replace(variants(BOUNDED)[letter], hidden=16, layers=1, residual_hidden=16, residual_layers=1)
    model = build(config, problem)
    u = torch.randn(2, mesh.n_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if letter == "D":
        def never(*_: object, **__: object) -> None:
            raise AssertionError("variant D solved a system")

        monkeypatch.setattr("dgnet.stepping.operator.apply", never)
        monkeypatch.setattr("dgnet.stepping.operator.prepare", never)
    with torch.no_grad():
        born = rollout(model, problem, u, None, 3)
        moved = rollout(randomised(model, 0.5), problem, u, None, 3)
    assert torch.isfinite(born).all() and torch.isfinite(moved).all() and not torch.equal(born, moved)
    if letter in "AD":  # nothing is known to them but the state: untrained, they stand still
        assert torch.allclose(born, u[:, None].expand_as(born), rtol=1e-12, atol=1e-12)
    has = {name.split(".")[0] for name, _ in model.named_parameters()}
    assert ("residual_net" in has) == (letter != "C") and ("decode_edge" in has) == (letter in "AC")


def test_early_steps_have_operators_of_their_own_and_hand_over_the_total() -> None:
    problem = Problem(perturbed_square(6), PDE(diffusion=0.05), [], 0.05, dtype=torch.float64)
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1, learn_start=True, early_steps=3), problem).double()
    plain = DGNet(DGNetConfig(hidden=8, layers=1), problem).double()
    u0 = torch.randn(2, problem.mesh.n_nodes, 1, dtype=torch.float64)
    with torch.no_grad():
        untrained = rollout(model, problem, u0, None, 12)
        torch.testing.assert_close(untrained, rollout(plain, problem, u0, None, 12), rtol=1e-9, atol=1e-9)
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
        trained = rollout(model, problem, u0, None, 12)
        state = model.prepare(problem, 2)
        assert state.early is not None
        total = problem.mass.row_sums()[0, 0]
        amounts = torch.einsum("n,btn->bt", total, trained[..., 0])
        torch.testing.assert_close(amounts, amounts[:, :1].expand_as(amounts), rtol=1e-8, atol=1e-10)
        again = rollout(model, problem, u0, None, 12, capture="always")  # the recorded step is one behind the early ones
        torch.testing.assert_close(again, trained, rtol=1e-8, atol=1e-10)
        u = trained[:, 1]
        early, late = state.step(u, None, 0.0, 1), state.step(u, None, 0.0, 9)
    assert float((early - late).norm() / late.norm()) > 1e-3
    assert [state.phase(k) for k in range(6)] == [0, 0, 1, 2, 3, 3]
    assert [plain.prepare(problem).phase(k) for k in range(4)] == [2, 2, 3, 3]
    with pytest.raises(InputError, match="early_steps"):
        DGNetConfig(early_steps=1)
