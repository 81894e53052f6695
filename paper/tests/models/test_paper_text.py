"""The paper's model against dense matrices written down from its text, on a mesh with obtuse angles.

Nothing of the package's assembly is used for the expected values: corners, angles and faces are taken one triangle at a time.
Equation numbers are those of the paper: 4 du/dt = Lu + f, 5-6 Crank-Nicolson, 7 the Green update, 8 L = L_physics + L_neural, 9 the
processor, 10 the decoder.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet
from dgnet.models.gnn import MLP, MeshGraph
from dgnet.problems import PDE, Dirichlet, FunctionSource, Periodic, Problem, Robin, step_average
from dgnet.recipe import Recipe, Stage
from dgnet.scoring.judge import judge
from dgnet.stepping import product
from dgnet.training.fit import fit
from dgnet.training.plan import make_plan
from dgnet_paper.analyse.operator import study
from dgnet_paper.model import PAPER, variants
from dgnet_paper.scenarios import get

Tensor = torch.Tensor

# a fan with two obtuse triangles: corners 3 (around 117 degrees) and 5 (around 128 degrees)
POINTS = np.array([[0.0, 0.0], [1.0, 0.1], [2.2, 0.0], [0.55, 0.35], [1.5, 0.8], [0.9, 1.6], [0.0, 1.5], [2.1, 1.4]])
CELLS = np.array([[0, 1, 3], [1, 4, 3], [1, 2, 4], [0, 3, 6], [3, 5, 6], [3, 4, 5], [2, 7, 4], [4, 7, 5]])
D, WIND, DT, DECAY = 0.3, np.array([0.7, -0.4]), 0.05, 0.2
SMALL = replace(PAPER, hidden=6, layers=2, residual_hidden=5, residual_layers=2)


def mesh() -> Mesh:
    return Mesh(POINTS, CELLS)


def problem(**more: object) -> Problem:
    return Problem(mesh(), PDE(diffusion=D, velocity=tuple(WIND), decay=DECAY, **more), [], DT)  # type: ignore[arg-type]


def model(config=SMALL, p: Problem | None = None, size: float = 0.4) -> DGNet:
    torch.manual_seed(0)
    found = DGNet(config, p or problem()).double()
    with torch.no_grad():
        for w in found.parameters():
            w.add_(size * torch.randn_like(w))
    return found


# ---------------------------------------------------------------------- the text, one triangle at a time


def angle(at: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    u, v = a - at, b - at
    return float(np.arccos(u @ v / np.linalg.norm(u) / np.linalg.norm(v)))


def area(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> float:
    return abs(turn(b - a, c - a)) / 2


def turn(a: np.ndarray, b: np.ndarray) -> float:
    return float(a[0] * b[1] - a[1] * b[0])


def centre(cell: np.ndarray) -> np.ndarray:
    """The circumcentre; in an obtuse triangle the middle of its longest side (Meyer et al. 2003)."""
    x = POINTS[cell]
    for k in range(3):
        if angle(x[k], x[k - 1], x[k - 2]) > np.pi / 2:
            return (x[k - 1] + x[k - 2]) / 2
    left = 2 * np.array([x[1] - x[0], x[2] - x[0]])
    return np.linalg.solve(left, (x[1:] ** 2).sum(1) - (x[0] ** 2).sum())


def volumes() -> np.ndarray:
    """|Omega_i|: the area around each corner that middles of sides and the centre bound."""
    out = np.zeros(len(POINTS))
    for cell in CELLS:
        for k in range(3):
            i, j, m = cell[k], cell[k - 1], cell[k - 2]
            out[i] += sum(area(POINTS[i], (POINTS[i] + POINTS[o]) / 2, centre(cell)) for o in (j, m))
    return out


def cotangents() -> np.ndarray:
    """w_ij = (cot alpha_ij + cot beta_ij) / 2, over the one or two angles opposite the edge."""
    w = np.zeros((len(POINTS), len(POINTS)))
    for cell in CELLS:
        for k in range(3):
            i, j, m = cell[k], cell[k - 1], cell[k - 2]
            cot = 1 / np.tan(angle(POINTS[m], POINTS[i], POINTS[j]))
            w[i, j] += cot / 2
            w[j, i] += cot / 2
    return w


def faces() -> np.ndarray:
    """n_ij l_ij [N, N, 2]: the boundary between the control volumes of i and j, its normal from i to j."""
    s = np.zeros((len(POINTS), len(POINTS), 2))
    for cell in CELLS:
        for k in range(3):
            i, j = cell[k], cell[k - 1]
            face = centre(cell) - (POINTS[i] + POINTS[j]) / 2
            normal = np.array([face[1], -face[0]])  # its length is that of the face
            third = POINTS[cell[k - 2]]
            side = np.sign(turn(POINTS[j] - POINTS[i], third - POINTS[i]))  # the face lies on the side of the third corner
            s[i, j] += side * normal
            s[j, i] -= side * normal
    return s


def laplacian() -> np.ndarray:
    L = cotangents() / volumes()[:, None]
    return L - np.diag(L.sum(1))


def directional() -> np.ndarray:
    """The gradient operator with m_ij = v . n_ij."""
    L = faces() @ WIND / (2 * volumes()[:, None])
    return L - np.diag(L.sum(1))


def l_physics() -> np.ndarray:
    """du/dt = D lap u - v . grad u - k u."""
    return D * laplacian() - directional() - DECAY * np.eye(len(POINTS))


def l_neural(m: DGNet) -> np.ndarray:
    """Encoder, processor (Eq. 9) and decoder (Eq. 10) by loops over nodes and edges."""
    h = processed(m.get_submodule("geometry_net"))
    L = np.zeros((len(POINTS), len(POINTS)))
    for i in range(len(POINTS)):
        for j in neighbours(i):
            L[i, j] = m.get_submodule("decode_edge")(torch.cat([h[i], h[j]])).item()
    return L


def neighbours(i: int) -> list[int]:
    return sorted({int(j) for cell in CELLS if i in cell for j in cell} - {i})


def processed(net: torch.nn.Module, inputs: Tensor | None = None) -> Tensor:
    """h_i^{m+1} = Update(h_i, sum_j Message(h_i, h_j, e_ij)) + h_i, from NodeEncoder([x_i, C_i]) and EdgeEncoder([x_ij, d_ij])."""
    x, inside = POINTS, (3, 4)
    features = torch.tensor([[*x[i], float(i not in inside)] for i in range(len(x))])
    h = net.node(features if inputs is None else torch.cat([inputs, features], 1))
    p = net.process
    for receive, send, edge, message, update in zip(p.receive, p.send, p.edge, p.message, p.update):
        rows = []
        for i in range(len(x)):
            total = torch.zeros(h.shape[1], dtype=torch.float64)
            for j in neighbours(i):
                step = x[j] - x[i]
                e = net.edge(torch.tensor([*step, np.linalg.norm(step)]))
                # Message: an MLP of [h_i, h_j, e_ij]; its first layer is stored in three blocks
                first = torch.cat([receive.weight, send.weight, edge.weight], 1) @ torch.cat([h[i], h[j], e]) + receive.bias
                total = total + message(first)
            rows.append(update(torch.cat([h[i], total])) + h[i])
        h = torch.stack(rows)
    return h


def dense(values: Tensor, p: Problem) -> np.ndarray:
    pattern = p.geometry.pattern
    out = np.zeros((pattern.n, pattern.n))
    out[pattern.row.numpy(), pattern.col.numpy()] = values.detach().reshape(-1, pattern.nnz)[0].numpy()
    return out


def of_model(m: DGNet, p: Problem) -> tuple[np.ndarray, np.ndarray]:
    """M and L = -M^-1 K as the model steps with them."""
    with torch.no_grad():
        ops = m.prepare(p).solver.operators
    M, K = dense(ops.mass.values, p), dense(ops.stiffness(0.0).values, p)
    assert np.array_equal(M, np.diag(np.diag(M)))
    return np.diag(M), -K / np.diag(M)[:, None]


# ---------------------------------------------------------------------- term by term


def test_the_mesh_has_obtuse_angles_and_both_kinds_of_nodes() -> None:
    worst = [max(angle(POINTS[c[k]], POINTS[c[k - 1]], POINTS[c[k - 2]]) for k in range(3)) for c in CELLS]
    assert sum(a > np.pi / 2 for a in worst) >= 2 and sum(a < np.pi / 2 for a in worst) >= 2
    assert mesh().on_boundary.tolist() == [True, True, True, False, False, True, True, True]


def test_control_volumes_are_voronoi_areas_mixed_where_obtuse() -> None:
    found, _ = of_model(model(), problem())
    assert np.allclose(found, volumes(), rtol=1e-13)
    assert not np.allclose(found, mesh().dual_volumes())  # not the equal shares of finite elements


def test_laplacian_has_cotangent_weights() -> None:
    p = Problem(mesh(), PDE(diffusion=1.0), [], DT)
    _, L = of_model(DGNet(variants(SMALL)["B"], p).double(), p)
    assert np.allclose(L, laplacian(), atol=1e-12 * np.abs(L).max())


def test_gradient_is_that_of_green_and_gauss() -> None:
    p = Problem(mesh(), PDE(velocity=tuple(WIND)), [], DT)
    _, L = of_model(DGNet(variants(SMALL)["B"], p).double(), p)
    assert np.allclose(-L, directional(), atol=1e-12 * np.abs(L).max())
    assert np.abs(L.sum(1)).max() < 1e-13


def test_a_flow_of_its_own_at_every_node_and_time() -> None:
    g = torch.Generator().manual_seed(1)
    v = torch.randn(8, 2, dtype=torch.float64, generator=g)
    p = Problem(mesh(), PDE(velocity=lambda t: (1 + t) * v), [], DT)
    with torch.no_grad():
        K = dense(DGNet(variants(SMALL)["B"], p).double().prepare(p).solver.operators.stiffness(1.0).values, p)
    wanted = np.einsum("id,ijd->ij", 2 * v.numpy(), faces()) / 2
    assert np.allclose(K, wanted - np.diag(wanted.sum(1)), atol=1e-12)


def test_l_physics_is_the_sum_of_its_terms_and_l_neural_is_the_network() -> None:
    """Eq. 8-10, and variants A, B of the ablation."""
    m, p = model(), problem()
    _, L = of_model(m, p)
    neural = l_neural(m)
    assert np.abs(neural).max() > 0.1 and np.all(np.diag(neural) == 0)
    assert np.abs(neural.sum(1)).max() > 0.01  # the text does not make rows sum to zero
    assert np.allclose(L, l_physics() + neural, atol=1e-11 * np.abs(L).max())
    assert np.allclose(of_model(model(variants(SMALL)["B"]), p)[1], l_physics(), atol=1e-12 * np.abs(L).max())
    assert np.allclose(of_model(model(variants(SMALL)["A"]), p)[1], l_neural(model(variants(SMALL)["A"])), atol=1e-11)


def test_the_step_is_the_green_update() -> None:
    """Eq. 5-7: u+ = G (I + dt/2 L) u + G dt/2 (f + f+), G = (I - dt/2 L)^-1; with a start far from zero, so that row sums count."""
    m, p = model(variants(SMALL)["C"]), problem()
    L, eye = l_physics() + l_neural(m), np.eye(8)
    G = np.linalg.inv(eye - DT / 2 * L)
    source = FunctionSource(lambda x, t: torch.exp(3 * t - (x[:, 0] - t) ** 2))
    x, times = torch.tensor(POINTS), DT * torch.arange(4, dtype=torch.float64)
    f = step_average(source, x, times[:3], DT, rule=m.rule)
    samples = source(x, times)[0, :, :, 0].numpy()
    u = 300 + np.random.default_rng(0).normal(size=8)
    with torch.no_grad():
        states = rollout(m, p, torch.tensor(u)[None, :, None], f)[0, :, :, 0].numpy()
    for k in range(3):
        u = G @ (eye + DT / 2 * L) @ u + G @ (DT / 2 * (samples[k] + samples[k + 1]))
        assert np.abs(states[k + 1] - u).max() < 1e-10


def test_the_discrete_greens_function_is_the_inverse() -> None:
    m, p = model(variants(SMALL)["C"]), problem()
    G = np.linalg.inv(np.eye(8) - DT / 2 * (l_physics() + l_neural(m)))
    with torch.no_grad():
        columns = np.stack([m.prepare(p).solver.impulse(node)[:, 0].numpy() for node in range(8)], 1)
    assert np.abs(columns - G).max() < 1e-12


def test_the_residual_network_is_added_to_the_update() -> None:
    """Section 3.5: a plain encode-process-decode network of the state before the step, without a limit."""
    m, p = model(), problem()
    state = torch.randn(2, 5, 8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    m.fit_statistics(state, None, DT)
    u = state[0, 0]
    net = m.get_submodule("residual_net")
    added = DT * m.rate * net.decode(processed(net, (u - m.mean) / m.std))
    with torch.no_grad():
        plain = model(variants(SMALL)["C"])
        plain.load_state_dict({k: v for k, v in m.state_dict().items() if not k.startswith("residual_net")})
        without = plain.prepare(p).step(u[None], None, 0.0, 0)[0]
        assert torch.allclose(m.prepare(p).step(u[None], None, 0.0, 0)[0], without + added, atol=1e-12)
        for w in net.decode.parameters():
            w.mul_(1e6)
        assert float((m.prepare(p).step(u[None], None, 0.0, 0)[0] - without).abs().max()) > 1e3 * float(added.abs().max())


def test_no_layer_norm_and_nothing_but_the_papers_features() -> None:
    m = model()
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in m.modules())
    graph = MeshGraph.of(problem().geometry, plain=True)
    assert graph.node.shape == (8, 3) and graph.edge.shape[1] == 3  # x, y, C; x_ij, y_ij, d_ij
    assert torch.equal(graph.node[:, :2], torch.tensor(POINTS))
    assert all(isinstance(part, MLP) for part in (m.get_submodule("geometry_net.node"), m.get_submodule("decode_edge")))


def test_untrained_it_is_l_physics_alone() -> None:
    p = problem()
    torch.manual_seed(0)
    assert np.allclose(of_model(DGNet(SMALL, p).double(), p)[1], l_physics(), atol=1e-12 * np.abs(l_physics()).max())


def test_the_analysis_takes_the_papers_l_physics() -> None:
    m = model()
    field = study(m, problem()).fields[0]
    u = np.random.default_rng(0).normal(size=8)
    assert np.allclose(field.physics.apply(u), l_physics() @ u)
    assert np.allclose(field.learned.apply(u), (l_physics() + l_neural(m)) @ u)


# ---------------------------------------------------------------------- what the text leaves open


def test_in_three_dimensions_volumes_and_faces_are_barycentric() -> None:
    """A linear field has its gradient at every inner node, the control volumes fill the domain."""
    space = box((3, 3, 3), perturb=0.2, seed=2)
    wind, slope = torch.tensor([0.3, -0.5, 0.8], dtype=torch.float64), torch.tensor([1.0, 2.0, -1.5], dtype=torch.float64)
    p = Problem(space, PDE(velocity=wind), [], DT)
    with torch.no_grad():
        ops = DGNet(variants(SMALL)["B"], p).double().prepare(p).solver.operators
        u = (torch.tensor(space.points) @ slope)[None, :, None]
        rate = product(ops.stiffness(0.0), u)[..., 0] / ops.mass.diagonal[0, 0]
    assert float(ops.mass.diagonal.sum()) == pytest.approx(1.0)
    inner = torch.tensor(~space.on_boundary)
    assert torch.allclose(rate[0, inner], (wind @ slope).expand(int(inner.sum())), atol=1e-11)


def test_periodic_boundaries_make_one_control_volume_of_two() -> None:
    square = box((4, 4), perturb=0.2)
    p = Problem(square, PDE(diffusion=D, velocity=tuple(WIND)), [Periodic("left", "right")], DT)
    found, L = of_model(DGNet(variants(SMALL)["B"], p).double(), p)
    assert len(found) == p.n == 20 and found.sum() == pytest.approx(1.0) and np.abs(L.sum(1)).max() < 1e-12
    with torch.no_grad():
        states = rollout(model(SMALL, p, 0.1), p, p.expand(torch.rand(2, 20, 1, dtype=torch.float64)), steps=3)
    assert torch.equal(p.expand(p.restrict(states)), states)


def test_capacity_weighs_the_volumes_cell_by_cell() -> None:
    c = np.linspace(1.0, 4.0, len(CELLS))
    p = Problem(mesh(), PDE(diffusion=D, capacity=torch.tensor(c)), [], DT)
    found, L = of_model(DGNet(variants(SMALL)["B"], p).double(), p)
    shares = mesh().dual_shares("mixed")
    assert np.allclose(found, np.bincount(CELLS.ravel(), (c[:, None] * shares).ravel()))
    assert np.allclose(shares.sum(1), mesh().volumes) and np.allclose(L * found[:, None], D * laplacian() * volumes()[:, None])


def test_a_reaction_is_a_source_at_both_ends() -> None:
    """Table 1 of the paper counts r(u) as a source: (r(u) + r(u*)) / 2, u* from a first solve with r(u)."""
    m, p = model(variants(SMALL)["C"], problem(reaction=lambda u: u - u**3)), problem(reaction=lambda u: u - u**3)
    L = l_physics() + l_neural(m)
    G, right = np.linalg.inv(np.eye(8) - DT / 2 * L), np.eye(8) + DT / 2 * L
    u = np.random.default_rng(0).normal(size=8)
    guess = G @ (right @ u + DT * (u - u**3))
    wanted = G @ (right @ u + DT / 2 * ((u - u**3) + (guess - guess**3)))
    with torch.no_grad():
        found = m.prepare(p).step(torch.tensor(u)[None, :, None], None, 0.0, 0)[0, :, 0].numpy()
    assert np.abs(found - wanted).max() < 1e-12


def test_conditions_hold_after_the_residual_network() -> None:
    square = box((4, 4), perturb=0.2)
    p = Problem(square, PDE(diffusion=D), [Dirichlet("left", 2.0), Robin("right", 1.0, 3.0)], DT)
    with torch.no_grad():
        states = rollout(model(SMALL, p, 0.1), p, torch.rand(2, 25, 1, dtype=torch.float64), steps=3)
    assert float((states[:, 1:, square.nodes_on("left")] - 2.0).abs().max()) == 0.0


@pytest.mark.parametrize("change", [{"decoder": "structured"}, {"free": True}, {"regions": True, "calibrate": ("decay",)},
                                    {"network": False}])
def test_what_does_not_go_with_the_papers_scheme_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match="the paper's scheme goes with"):
        replace(PAPER, **change)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- training

TABLE = {  # Appendix C: batch, rate, epochs, decay step, decay rate, states of a sub-sequence, training trajectories
    "allen-cahn": (36, 1e-3, 600, 200, 0.1, 20, 10), "fisher-kpp": (24, 5e-4, 300, 60, 0.1, 10, 10),
    "fitzhugh-nagumo": (10, 1e-3, 400, 100, 0.1, 10, 7), "cylinder": (6, 5e-4, 300, 100, 0.2, 6, 15),
    "sediments": (6, 5e-4, 300, 100, 0.2, 6, 15), "obstacles": (6, 5e-4, 300, 100, 0.2, 6, 15),
    "laser-heat": (8, 5e-4, 400, 200, 0.1, 8, 20)}


@pytest.mark.parametrize("name", TABLE)
def test_training_is_that_of_the_papers_table(name: str) -> None:
    batch, rate, epochs, every, factor, states, count = TABLE[name]
    s = get(name, "paper")
    plan = make_plan(s, s.train, s.steps, s.name == "laser-heat", model="dgnet-paper")
    config, recipe = plan.config, plan.recipe
    (stage,) = recipe.stages
    per_epoch = count * (s.steps // (states - 1)) // batch
    assert config == PAPER and s.train == count and recipe.hold_out == 0
    assert (stage.batch, stage.lr, stage.length, stage.iterations) == (batch, rate, states - 1, epochs * per_epoch)
    assert (stage.decay, stage.decay_every, stage.decay_rate) == ("step", every * per_epoch, factor)
    assert stage.loss == "ends" and stage.pushforward == 1 and stage.noise > 0 and stage.method == "adam"


def test_gradients_are_those_of_differences() -> None:
    m, p = model(), problem()
    u, f = (torch.randn(2, 8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (0, 1))

    def value() -> Tensor:
        state = m.prepare(p)
        return (state.step(state.step(u, f, 0.0, 0), f, DT, 1) ** 2).sum()

    value().backward()
    g = torch.Generator().manual_seed(3)
    along = {name: torch.randn(w.shape, dtype=w.dtype, generator=g) for name, w in m.named_parameters()}
    assert all(w.grad is not None and float(w.grad.abs().max()) > 0 for w in m.parameters())
    slope = sum(float((w.grad * along[name]).sum()) for name, w in m.named_parameters())  # type: ignore[operator]
    ends = []
    with torch.no_grad():
        for sign in (1, -2):
            for name, w in m.named_parameters():
                w.add_(sign * 1e-6 * along[name])
            ends.append(float(value()))
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def driven(steps: int = 12) -> tuple[Problem, Corpus]:
    """Diffusion on a small square with a travelling source, by finite elements in small steps; the source by both rules."""
    square = box((5, 5), perturb=0.2, seed=1)
    p = Problem(square, PDE(diffusion=0.05), [], DT)
    fine = replace(p, dt=DT / 8)
    x, times = torch.tensor(square.points), DT * torch.arange(steps, dtype=torch.float64)
    source = FunctionSource(lambda x, t: 5 * torch.exp(-((x[:, 0] - 2 * t) ** 2 + (x[:, 1] - 0.5) ** 2) / 0.05))
    many = step_average(source, x, DT / 8 * torch.arange(8 * steps, dtype=torch.float64), DT / 8)
    with torch.no_grad():
        states = rollout(Classical(), fine, torch.cos(3 * x[:, :1])[None], many)[:, ::8]
    average, ends = (step_average(source, x, times, DT, 4, rule=rule) for rule in ("average", "trapezoid"))  # type: ignore[arg-type]
    return p, Corpus(states, average, None, DT, (0.0,), ends=ends)


def test_what_the_source_at_both_ends_costs() -> None:
    """Lasers cross more than their own radius in a step: what happens in between is not seen. `pytest -s` prints by how much."""
    s = get("laser-heat", "small")
    sample = s.sample([d for d in s.draws() if d.split == "test"][:1])
    p, x = s.problem(), torch.tensor(s.mesh.points)
    m = DGNet(variants(PAPER)["B"], p).double()
    rows = {rule: step_average(sample.source, x, s.times[:-1], s.dt, s.panels, rule=rule) for rule in ("average", "trapezoid")}
    with torch.no_grad():
        mean, ends = (rollout(m, p, sample.initial, f) for f in rows.values())
    gap = float((mean - ends).norm() / (mean - sample.initial[:, None]).norm())
    print(f"laser-heat, small, untrained: the two rules differ by {gap:.3f} of the rise above ambient")
    assert gap > 0.01


def test_it_trains_on_the_source_at_both_ends_and_is_judged_on_it() -> None:
    p, data = driven()
    torch.manual_seed(0)
    m = DGNet(SMALL, p).double()
    recipe = Recipe("paper", (Stage(40, 4, 4, 1e-2, loss="ends", noise=0.01, pushforward=1),), validations=2)
    progress = fit(m, p, data, data, recipe)
    assert progress.best < 0.9 * progress.history[0]["validation"]
    with torch.no_grad():
        same = rollout(m, p, data.state[:, 0], data.ends)
    error = judge({"paper": m}, p, data, keep=True)
    assert torch.equal(error.states["paper"], same)
    with pytest.raises(InputError, match="at both ends of each step"):
        judge({"paper": m}, p, replace(data, ends=None))
