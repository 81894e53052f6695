"""Every baseline keeps the contract of `Model` (shapes, batches, seeds, saving, boundaries, learning) and its published size."""

import io
import time
from dataclasses import FrozenInstanceError
from functools import cache
from itertools import pairwise

import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.registry import SETTINGS, all_models, build, config_class, configure, parameter_count
from dgnet.operators import EdgeMatrix, lumped
from dgnet.problems import PDE, Dirichlet, Neumann, Periodic, Problem, Robin
from dgnet_paper.baselines.adapter import Baseline, Nodes, farthest, kept, mesh_graph

Tensor = torch.Tensor
BASELINES = ["deeponet", "mgn", "mp-pde", "beno", "phympgn", "transolver", "amg", "singer"]
TINY = {
    "deeponet": {"read": 60, "hidden": 48, "modes": 24},
    "mgn": {"hidden": 16, "blocks": 2},
    "mp-pde": {"hidden": 24, "layers": 2},
    "beno": {"hidden": 16, "inner": 16, "steps": 2, "heads": 2, "boundary_points": 9, "neighbours": 5},
    "phympgn": {"hidden": 16, "layers": 2, "depth": 1, "laplace_hidden": 8, "laplace_layers": 2},
    "transolver": {"hidden": 32, "blocks": 2, "heads": 4, "slices": 8},
    "amg": {"hidden": 32, "blocks": 1, "heads": 4, "head": 8, "token_head": 8, "tokens": 8},
    "singer": {"width": 12, "hidden": 16, "rounds": 2},
}
CASES = ["2d", "2d-two-fields", "2d-flow", "3d", "3d-flow"]
B, STEPS, DT = 3, 3, 0.05


@cache
def flow(points: int, dim: int) -> Tensor:
    return torch.randn(B, points, dim, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@cache
def problem(case: str, dtype: torch.dtype = torch.float64) -> Problem:
    mesh = box((5, 4), perturb=0.2, seed=1) if case.startswith("2d") else box((3, 2, 2), perturb=0.1, seed=1)
    v = flow(mesh.n_nodes, mesh.dim).to(dtype)
    rules = [Robin("right", 0.3, 1.0), Neumann("top", 0.2), Dirichlet("left", 1.5)]
    if case == "2d":
        pde = PDE(diffusion=0.02)
    elif case == "2d-two-fields":
        pde = PDE(("u", "v"), {"u": 0.02, "v": torch.linspace(0.01, 0.05, mesh.n_cells)}, decay=0.1)
        rules = [Dirichlet("left", lambda x, t: x[:, 1] + t, "u")]
    elif case == "3d":
        pde = PDE(diffusion=torch.diag(torch.tensor([0.02, 0.01, 0.03])))
    else:
        pde = PDE(diffusion=0.01, velocity=lambda t: (1 + t) * v)
    return Problem(mesh, pde, rules, DT, dtype=dtype)


def data(p: Problem, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random states [B, T+1, N, F] and sources [B, T, N, F]."""
    g = torch.Generator().manual_seed(seed)
    shape = (p.mesh.n_nodes, p.n_fields)
    return (torch.randn(B, STEPS + 1, *shape, generator=g, dtype=torch.float64).to(p.dtype) + 2.0,
            torch.randn(B, STEPS, *shape, generator=g, dtype=torch.float64).to(p.dtype))


def tiny(name: str, p: Problem, seed: int = 0) -> Baseline:
    torch.manual_seed(seed)
    model = build(name, TINY[name], p)
    model.fit_statistics(*data(p), p.dt)
    return model


def run(model: Baseline, p: Problem, u: Tensor, f: Tensor | None) -> Tensor:
    with torch.no_grad():
        return rollout(model, p, u, f, STEPS)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", BASELINES)
def test_contract(name: str, case: str) -> None:
    """Shapes, finite values, with and without a source, Dirichlet values to the bit, the seed decides, a batch is its parts."""
    p = problem(case)
    u, f = data(p)
    model = tiny(name, p)
    assert model.name == name
    out = run(model, p, u[:, 0], f)
    assert out.shape == (B, STEPS + 1, p.mesh.n_nodes, p.n_fields) and out.dtype == p.dtype and out.isfinite().all()
    assert not torch.equal(out, run(model, p, u[:, 0], None))

    assert p.fixed is not None
    for k in range(1, STEPS + 1):
        w = p.fixed_values((k - 1) * p.dt + p.dt)
        assert w is not None
        mask = p.fixed.T.expand(p.n, p.n_fields)
        assert (out[:, k][:, mask] == w[mask]).all()

    again = tiny(name, p)
    assert torch.equal(out, run(again, p, u[:, 0], f))
    assert not torch.equal(out, run(tiny(name, p, seed=1), p, u[:, 0], f))

    v = p.pde.velocity
    for b in range(B):
        single = p.with_velocity(lambda t, b=b: v(t)[b : b + 1]) if callable(v) else p
        torch.testing.assert_close(run(model, single, u[b : b + 1, 0], f[b : b + 1]), out[b : b + 1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", BASELINES)
def test_save_and_load(name: str) -> None:
    p = problem("2d-flow")
    u, f = data(p)
    model = tiny(name, p)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    torch.manual_seed(9)
    other = build(name, TINY[name], p)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(model, p, u[:, 0], f), run(other, p, u[:, 0], f))


@pytest.mark.parametrize("name", BASELINES)
def test_gradients_reach_every_parameter(name: str) -> None:
    p = problem("2d-two-fields")
    u, f = data(p)
    model = tiny(name, p)
    state = model.prepare(p, B, 2)
    v = state.step(u[:, 0], f[:, 0], 0.0, 0)
    v = state.step(v, f[:, 1], p.dt, 1)
    (v - u[:, 2]).square().mean().backward()
    for key, q in model.named_parameters():
        assert q.grad is not None and q.grad.isfinite().all() and (q.grad != 0).any(), key


@pytest.mark.parametrize("name", BASELINES)
def test_constant_features_give_no_nan(name: str) -> None:
    """States, sources and velocities that never change, in single precision, forwards and backwards."""
    p = problem("2d-flow", torch.float32).with_velocity(torch.tensor([0.0, 0.0]))
    u = torch.full((B, STEPS + 1, p.mesh.n_nodes, 1), 298.15)
    for f in (torch.zeros(B, STEPS, p.mesh.n_nodes, 1), torch.full((B, STEPS, p.mesh.n_nodes, 1), 3e7)):
        torch.manual_seed(0)
        model = build(name, TINY[name], p)
        model.fit_statistics(u, f, p.dt)
        out = model.prepare(p).step(u[:, 0], f[:, 0], 0.0, 0)
        out.square().mean().backward()
        assert out.isfinite().all()
        assert all(q.grad.isfinite().all() for q in model.parameters())


@cache
def trajectory() -> tuple[Problem, Tensor, Tensor]:
    """A warm blob beside a moving source: states [1, T+1, N, 1] and sources [1, T, N, 1]."""
    p = Problem(box((5, 4), perturb=0.2, seed=1), PDE(diffusion=0.02), [Dirichlet("left", 0.0)], 0.1, dtype=torch.float64)
    x = torch.tensor(p.mesh.points)
    centre = torch.stack([torch.linspace(0.3, 0.8, 6), torch.full((6,), 0.5)], 1).double()
    f = torch.exp(-8 * (x[None] - centre[:, None]).square().sum(-1))[None, ..., None]
    u0 = torch.sin(3 * x[:, :1]).expand(1, -1, -1)
    with torch.no_grad():
        states = rollout(Classical(), p, u0, f)
    single = Problem(p.mesh, p.pde, p.conditions, p.dt, dtype=torch.float32)
    return single, states.float(), f.float()


@pytest.mark.parametrize("name", BASELINES)
def test_overfits_a_tiny_trajectory(name: str) -> None:
    """One-step loss over the steps of one trajectory, plain Adam: at least 20 times smaller."""
    p, u, f = trajectory()
    torch.manual_seed(0)
    model = build(name, TINY[name], p)
    model.fit_statistics(u, f, p.dt)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    first = best = float("nan")
    for k in range(400):
        optimiser.zero_grad()
        out = model.prepare(p).step(u[0, :-1], f[0], 0.0, 1)  # the steps are the batch
        loss = ((out - u[0, 1:]) / model.std).square().mean()
        loss.backward()
        optimiser.step()
        first, best = (loss.item(), loss.item()) if k == 0 else (first, min(best, loss.item()))
        if best <= first / 20:
            break
    assert best <= first / 20, f"the loss fell from {first:.3g} to {best:.3g} only"


@pytest.mark.parametrize("name", BASELINES)
def test_sizes(name: str) -> None:
    """Published: within 5% of the figure; comparable: within 25% of DGNet."""
    p = Problem(box((20, 20)), PDE(diffusion=0.01), [], 0.1, dtype=torch.float32)  # 2D, one field
    published = parameter_count(build(name, {"setting": "published"}, p))
    if name == "deeponet":  # branch [m, 128, 128, 100], trunk [2, 128, 128, 128, 100]
        def count(*sizes: int) -> int:
            return sum((a + 1) * b for a, b in pairwise(sizes))

        assert published == count(1023, 128, 128, 100) + count(2, 128, 128, 128, 100) + 1
    elif name != "singer":  # which has no figure
        figure = all_models()[name].published
        assert figure is not None and abs(published / figure - 1) < 0.05, published
    ours = parameter_count(DGNet(DGNetConfig(), p))
    assert abs(parameter_count(build(name, None, p)) / ours - 1) < 0.25


@pytest.mark.parametrize("name", BASELINES)
def test_geometry_is_computed_once(name: str) -> None:
    mesh = box((30, 30), perturb=0.2)
    p = Problem(mesh, PDE(diffusion=1e-4, velocity=lambda t: torch.zeros(1, mesh.n_nodes, 2)), [], 0.1, dtype=torch.float32)
    model = build(name, TINY[name], p)
    first = model.prepare(p)
    cache = dict(p.geometry.__dict__["_baselines"])
    begin = time.perf_counter()
    other = model.prepare(p.with_velocity(lambda t: torch.ones(1, mesh.n_nodes, 2)))  # another flow on the same mesh
    assert time.perf_counter() - begin < 0.5  # milliseconds; the machine may be busy
    assert p.geometry.__dict__["_baselines"] == cache and other.nodes is first.nodes


@pytest.mark.parametrize("name", BASELINES)
def test_periodic_nodes_agree(name: str) -> None:
    mesh = box((5, 4))
    p = Problem(mesh, PDE(diffusion=0.02), [Periodic("left", "right"), Periodic("bottom", "top")], DT)
    torch.manual_seed(0)
    model = build(name, TINY[name], p)
    u = p.expand(torch.randn(2, p.n, 1, dtype=torch.float64))
    out = run(model, p, u, None)
    assert out.isfinite().all() and torch.equal(out, p.expand(p.restrict(out)))


def test_translation_on_a_periodic_grid_moves_the_answer() -> None:
    """Graph and edge features close up across the boundary: MGN, which knows no place, commutes with shifts of the grid."""
    mesh = box((6, 4))
    p = Problem(mesh, PDE(diffusion=0.02), [Periodic("left", "right"), Periodic("bottom", "top")], DT)
    graph = mesh_graph(p)
    assert kept(p, "nodes", Nodes.of).types[:, 0].all()  # what is a boundary in the box is none on the torus
    assert p.n == 24 and len(graph.to) == 2 * 3 * 24  # a torus: three edges per node
    x = p.restrict(torch.tensor(mesh.points))
    place = ((x * torch.tensor([6, 4])).round().long() @ torch.tensor([4, 1])).argsort()  # node of each grid place
    moved = torch.empty(24, dtype=torch.long)
    moved[place] = place.view(6, 4).roll(2, 0).flatten()  # two columns: the pattern of diagonals repeats
    torch.manual_seed(0)
    model = build("mgn", TINY["mgn"], p)
    u = torch.randn(1, 24, 1, dtype=torch.float64)
    here, there = (p.restrict(run(model, p, p.expand(v), None)[:, -1]) for v in (u, u[:, moved]))
    torch.testing.assert_close(there, here[:, moved])


def test_farthest_points_spread() -> None:
    points = box((9, 9)).points
    chosen = farthest(points, 16)
    assert len(set(chosen.tolist())) == 16 and len(farthest(points, 1000)) == 100
    gaps = torch.pdist(torch.tensor(points[chosen]))
    assert gaps.min() > 0.2


def test_phympgn_with_zero_networks_is_stable_physics() -> None:
    """Its networks at zero: the diffusion alone, close to exp(-t M^-1 K), also where dt is far beyond Heun's limit."""
    mesh = box((12, 12), perturb=0.2, seed=1)
    x = torch.tensor(mesh.points)
    u0 = torch.cos(torch.pi * x[:, :1])[None]
    for diffusion, substeps in ((1e-3, False), (0.5, True)):
        p = Problem(mesh, PDE(diffusion=diffusion), [], 0.05)
        model = build("phympgn", TINY["phympgn"], p)
        with torch.no_grad():
            for net in (model.mp, model.laplace):
                net.decode[-1].weight.zero_()
                net.decode[-1].bias.zero_()
        assert (model.prepare(p).own.substeps > 1) == substeps
        K = torch.tensor(EdgeMatrix(p.geometry.pattern, p.diffusion_part.values[0, 0]).to_scipy().toarray())
        L = -K / lumped(p.geometry).diagonal[:, None]
        for k, u in enumerate(run(model, p, u0, None)[0]):
            torch.testing.assert_close(u, torch.matrix_exp(k * p.dt * L) @ u0[0], rtol=0, atol=1e-3)


def test_registry() -> None:
    assert {*BASELINES, "pod", "opinf", "dgnet-paper", "dgnet", "universal-tuned", "universal", "classical"} <= set(all_models())
    p = problem("2d")
    for name, entry in all_models().items():
        assert config_class(name) is entry.config and set(entry.settings) == set(SETTINGS)
        assert isinstance(entry.settings["published"], entry.config)
        assert entry.recipe.keys() <= {"lr", "lr_end", "weight_decay", "noise", "pushforward", "window", "loss", "clip",
                                       "relative", "method"}
        with pytest.raises(FrozenInstanceError):
            entry.settings["comparable"].anything = 1
    assert parameter_count(build("classical", None, p)) == 0 and build("classical", {"consistent": 0.0}, p).consistent == 0.0
    assert build("dgnet", {"calibrate": ["diffusion"]}, p).config.calibrate == ("diffusion",)
    assert configure("mgn", {"setting": "published", "blocks": 3}).hidden == 128
    with pytest.raises(InputError, match="did you mean 'mgn'"):
        build("mgm", None, p)
    for wrong in ({"hiden": 3}, {"setting": "x"}):
        with pytest.raises(InputError):
            configure("mgn", wrong)
    with pytest.raises(InputError, match="built for 2 dimensions"):
        tiny("mgn", p).prepare(problem("3d"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", BASELINES)
def test_cuda_equals_cpu(name: str) -> None:
    """Captured as a CUDA graph where the problem allows it."""
    p = problem("2d")
    u, f = data(p)
    model = tiny(name, p)
    f = f.repeat(1, 4, 1, 1)
    here = Problem(p.mesh, p.pde, p.conditions, p.dt, device="cuda")
    with torch.no_grad():
        cpu = rollout(model, p, u[:, 0], f)
        cuda = rollout(model.to("cuda"), here, u[:, 0].cuda(), f.cuda())
    torch.testing.assert_close(cuda.cpu(), cpu, rtol=1e-6, atol=1e-6)
