"""Universal corrections: what they do not depend on, what they keep for any weights, and where they fade."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.models.gnn import BLOCK
from dgnet.models.universal import ElementNet, Universal, UniversalNet, load_weights
from dgnet.models.universal.elements import (
    corrected_mass,
    corrected_stiffness,
    coupling,
    root_of,
    stiffness_of,
    tables,
    taken_ahead,
)
from dgnet.models.universal.gathering import Table
from dgnet.models.universal.local import surroundings
from dgnet.models.universal.model import WEIGHTS, untrained
from dgnet.operators import EdgeMatrix
from dgnet.problems import PDE, Condition, Dirichlet, Neumann, Periodic, Problem, Robin
from dgnet.stepping import GreenSolver

Tensor = torch.Tensor
RIM: tuple[Condition, ...] = (Dirichlet("left", 0.3), Robin("right", 2.0, 1.0), Neumann("top", 0.1))


def fresh(dim: int, degree: int = 1, flow: bool = False, hidden: int = 12, layers: int = 2) -> UniversalNet | ElementNet:
    torch.manual_seed(0)
    return UniversalNet(dim, hidden, layers, flow) if degree == 1 else ElementNet(dim, degree, hidden, layers, 8, flow)


def wild(dim: int, size: float = 0.6, seed: int = 0, flow: bool = False, degree: int = 1) -> UniversalNet | ElementNet:
    """A network whose decoders are far from zero."""
    net = fresh(dim, degree, flow)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(size * torch.randn_like(weight))
    return net.requires_grad_(False)


def damping(net: UniversalNet | ElementNet) -> UniversalNet | ElementNet:
    """Takes the diffusion later than the middle of the step, and diffuses along a flow: by wild weights this is cut at zero."""
    with torch.no_grad():
        for mlp in (net.cell, *([net.along] if net.flow else []), *([net.rim] if isinstance(net, UniversalNet) else [])):
            mlp[-1].weight.mul_(1e-3 / mlp[-1].weight.abs().amax())
            mlp[-1].bias.fill_(0.2)
        if isinstance(net, ElementNet):
            net.later.weight.mul_(1e-3 / net.later.weight.abs().amax())
            net.later.bias.zero_()
    return net


def model_of(net: UniversalNet | ElementNet) -> Universal:
    return Universal({net.dim: net}, degree=getattr(net, "degree", 1))


def classically(p: Problem, u0: Tensor, f: Tensor | None, degree: int = 1) -> Tensor:
    """What elements without corrections make."""
    n = len(model_of(fresh(p.mesh.dim, degree)).points(p)) if degree == 2 else p.mesh.n_nodes
    with torch.no_grad():
        return rollout(Classical(1.0, degree=degree, start=2 * (degree - 1)), p, u0[:, :n], None if f is None else f[:, :, :n])


def plate(dim: int = 2, cells: int = 5, conditions: tuple[Condition, ...] = RIM, **coefficients: object) -> Problem:
    mesh = box((cells, cells - 1) if dim == 2 else (3, 3, 2), perturb=0.2)
    return Problem(mesh, PDE(**({"diffusion": 0.7} | coefficients)), conditions, 0.02)  # type: ignore[arg-type]


def given(p: Problem, steps: int = 6, batch: int = 2) -> tuple[Tensor, Tensor]:
    points, g = p.mesh.n_nodes + len(p.mesh.edges), torch.Generator().manual_seed(1)
    return (torch.randn(batch, points, p.n_fields, dtype=torch.float64, generator=g),
            torch.randn(batch, steps, points, p.n_fields, dtype=torch.float64, generator=g))


def states(p: Problem, net: UniversalNet | ElementNet, u0: Tensor, f: Tensor | None, steps: int | None = None) -> Tensor:
    with torch.no_grad():
        return rollout(model_of(net), p, u0, f, steps)


both = pytest.mark.parametrize("degree", [1, 2])


@both
@pytest.mark.parametrize("dim", [2, 3])
def test_with_fresh_weights_it_is_the_classical_solver(dim: int, degree: int) -> None:
    p = plate(dim, decay=0.4, capacity=1.5)
    u0, f = given(p)
    assert torch.allclose(states(p, fresh(dim, degree), u0, f), classically(p, u0, f, degree), atol=1e-12)


def moved(p: Problem, matrix: np.ndarray, scale: float, order: np.ndarray) -> Problem:
    """The part turned or mirrored, scaled with its time, its nodes in another order (`order[k]` is the old number of node k)."""
    back = np.argsort(order)
    mesh = p.mesh
    points = (scale * mesh.points @ matrix.T + 3.0)[order]
    cells = back[mesh.cells]
    flip = np.linalg.det(matrix) < 0
    cells = cells[:, [1, 0, *range(2, mesh.dim + 1)]] if flip else cells
    boundaries = {name: back[mesh.facets(name)] for name in ("left", "right", "top")}
    diffusion = torch.as_tensor(np.asarray(p.pde.diffusion))
    if diffusion.dim() == 2:
        diffusion = torch.as_tensor(matrix) @ diffusion @ torch.as_tensor(matrix.T)
    conditions = (Dirichlet("left", 0.3), Robin("right", 2.0 / scale, 1.0), Neumann("top", 0.1 / scale))
    velocity = None if p.pde.velocity is None else matrix @ np.asarray(p.pde.velocity) / scale
    pde = replace(p.pde, diffusion=diffusion, velocity=velocity)
    return Problem(Mesh(points, cells, boundaries), pde, conditions, p.dt * scale**2)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("flow", [False, True])
@both
def test_moving_turning_mirroring_scaling_and_renumbering_change_nothing(dim: int, mirror: bool, flow: bool, degree: int) -> None:
    rng, scale = np.random.default_rng(0), 3.7
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    if (np.linalg.det(turn) < 0) != mirror:
        turn[:, 0] *= -1
    axes = np.eye(dim) + 0.3 * np.ones((dim, dim))
    p, net = plate(dim, diffusion=axes, velocity=[7.0, -4.0, 2.0][:dim] if flow else None), wild(dim, flow=flow, degree=degree)
    order = rng.permutation(p.mesh.n_nodes)
    q = moved(p, turn, scale, order)
    n, back = p.mesh.n_nodes, np.argsort(order)
    u0, f = given(p)
    # middles: the edge between the same two nodes
    key = {tuple(sorted(order[e])): k for k, e in enumerate(q.mesh.edges)}
    middles = np.array([key[tuple(sorted(e))] for e in p.mesh.edges])
    place = torch.as_tensor(np.concatenate([back, n + middles]))
    v0, g = torch.empty_like(u0), torch.empty_like(f)
    v0[:, place], g[:, :, place] = u0, f / scale**2
    own, other = states(p, net, u0, f), states(q, net, v0, g)
    assert float((own - classically(p, u0, f, degree))[:, 1:].abs().max()) > 1e-3
    assert torch.allclose(other[:, :, torch.as_tensor(back)], own, atol=1e-5)  # networks are in single precision


def dense(A: EdgeMatrix) -> Tensor:
    return torch.as_tensor(A.to_scipy().toarray())


@both
@pytest.mark.parametrize("dim", [2, 3])
def test_corrections_of_a_flow_make_no_energy_and_keep_constants(dim: int, degree: int) -> None:
    p = plate(dim, conditions=(), velocity=[7.0, -4.0, 2.0][:dim])
    nets = [wild(dim, 0.2, seed=2, flow=True, degree=degree), fresh(dim, degree, flow=True)]
    with torch.no_grad():  # the diffusion alone
        nets.append(nets[0].of({"sizes": torch.tensor(nets[0].sizes)} | nets[0].state_dict(), Path("net")))
        nets[2].along[-1].weight.zero_()
        nets[2].along[-1].bias.fill_(-1.0)
    ops, plain, still = (model_of(net).prepare(p).solver.operators for net in nets)
    K, C, own, classical = (dense(A) for A in (ops.stiffness(0.0), ops.indefinite_part(0.0), plain.stiffness(0.0),
                                               plain.indefinite_part(0.0)))
    wide = p if degree == 1 else p.quadratic
    assert torch.allclose(classical, dense(wide.advection()), atol=1e-14)
    beside = C - classical
    assert float(beside.abs().max()) > 1e-3 and torch.allclose(beside, -beside.T, atol=1e-13)
    assert max(float(beside.sum(k).abs().max()) for k in (0, 1)) < 1e-12
    along = K - dense(still.stiffness(0.0))
    assert float(torch.linalg.eigvalsh((along + along.T) / 2).min()) > -1e-10 and float((along - along.T).abs().max()) < 1e-12
    assert float(along.abs().max()) > 1e-3 and float((K - C).sum(1).abs().max()) < 1e-11
    assert float(torch.linalg.eigvalsh(K - C).min()) > -1e-10 and float((K - C - own + classical).abs().max()) > 1e-3
    constant = torch.full((1, p.mesh.n_nodes, 1), 3.0, dtype=torch.float64)
    assert torch.allclose(states(p, wild(dim, seed=2, flow=True, degree=degree), constant, None, 5), constant[:, None], atol=1e-12)


@both
@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("uneven", [False, True])
def test_any_weights_keep_energy_constants_and_total(dim: int, uneven: bool, degree: int) -> None:
    free, net = plate(dim, conditions=()), damping(wild(dim, 2.0, degree=degree))
    if uneven:
        free = replace(free, pde=replace(free.pde, capacity=np.linspace(1, 4, free.mesh.n_cells)))
    model, wide = model_of(net), free if degree == 1 else free.quadratic
    n = wide.n
    u0 = given(free)[0][:, :n]
    state = model.prepare(free)
    ops = state.solver.operators
    assert ops.advanced_part is not None
    mass, later, K = (dense(A) for A in (ops.mass, ops.advanced_part * free.dt, ops.stiffness(0.0)))
    weight = wide.mass.row_sums()[0, 0]
    assert float(torch.linalg.eigvalsh(mass).min()) > 0 and float(later.abs().max()) > 1e-4
    assert min(float(torch.linalg.eigvalsh(A).min()) for A in (K, later)) > -1e-10
    assert torch.allclose(mass.sum(1), weight, atol=1e-13) and max(float(A.sum(1).abs().max()) for A in (K, later)) < 1e-10
    u = u0
    for k in range(20):
        new = state.solver.step(u, start=degree == 2 and k < 2)
        before, after = (torch.einsum("bi,ij,bj->b", x[..., 0], mass + later, x[..., 0]) for x in (u, new))
        assert float((after - before).max()) < 1e-12
        assert torch.allclose(new[..., 0] @ weight, u[..., 0] @ weight, atol=1e-11)
        u = new
    points = len(model.points(free))
    constant = torch.full((1, points, 1), 5.0, dtype=torch.float64)
    assert torch.allclose(states(free, net, constant, None, 10), torch.tensor(5.0, dtype=torch.float64), atol=1e-11)
    u, uniform = state.begin(constant), torch.full((1, points, 1), 2.0, dtype=torch.float64)
    for k in range(10):
        u = state.step(u, uniform, k * free.dt, k)
    entered = 20 * free.dt * free.mesh.volumes.sum()
    assert float(u[0, :n, 0] @ weight) == pytest.approx(float(5 * weight.sum() + entered), abs=1e-10)
    if not uneven:
        assert torch.allclose(u[:, :n], torch.full_like(u[:, :n], 5.0 + 20 * free.dt), atol=1e-11)


@pytest.mark.parametrize("dim", [2, 3])
def test_each_element_stays_between_bounds_with_huge_weights(dim: int) -> None:
    """Beside element matrices by quadrature, in NumPy."""
    D = np.eye(dim) + 0.3
    p = plate(dim, diffusion=D)
    s, g, t, net = surroundings(p), p.geometry, tables(dim, 2), wild(dim, 30.0, degree=2)
    plain = g.volumes[:, None, None] * stiffness_of(t, coupling(s, g.gradients))
    z = net(s.to(torch.float32), plain, torch.zeros(0, dim, dtype=torch.long))
    K, later, M = corrected_stiffness(root_of(plain), z), taken_ahead(root_of(plain), z), corrected_mass(t, z)
    near, far = (2 / 3, 1 / 6) if dim == 2 else (0.58541019662496852, 0.13819660112501048)  # exact for quadratic functions
    for k in range(len(plain)):
        slopes, by_quadrature = g.gradients[k].numpy(), 0.0
        for c in range(dim + 1):
            at = np.where(np.arange(dim + 1) == c, near, far)
            rows = np.stack([(4 * a - 1) * slope for a, slope in zip(at, slopes)]
                            + [4 * (at[i] * slopes[j] + at[j] * slopes[i]) for i, j in t.ends])
            by_quadrature += float(g.volumes[k]) / (dim + 1) * rows @ D @ rows.T
        size = np.abs(by_quadrature).max()
        assert np.allclose(plain[k], by_quadrature, atol=1e-12 * size)
        for matrix, least, most in ((K[k].numpy(), 0.09, 2.89), (later[k].numpy(), 0.0, 0.5)):
            assert np.abs(matrix.sum(1)).max() < 1e-6 * size and np.allclose(matrix, matrix.T, atol=1e-12 * size)
            for gap in (matrix - least * by_quadrature, most * by_quadrature - matrix):
                assert np.linalg.eigvalsh(gap).min() > -1e-6 * size
        assert np.linalg.eigvalsh(M[k] - 0.089 * t.mass).min() > 0 and np.linalg.eigvalsh(2.9 * t.mass - M[k]).min() > 0
        assert torch.allclose(M[k].sum(1), t.mass.sum(1), atol=1e-14)
    assert float((K - plain).abs().max()) > 0.1 * float(plain.abs().max())


@both
def test_an_ambient_that_changes_in_time_is_followed(degree: int) -> None:
    rule = Robin("right", 2.0, lambda x, t: torch.full((len(x),), 1.0 + 3 * t, dtype=torch.float64))
    p = plate(conditions=(rule,))
    u0, f = given(p)
    assert torch.allclose(states(p, fresh(2, degree), u0, f), classically(p, u0, f, degree), atol=1e-12)


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("between", [True, False])
@pytest.mark.parametrize("conditions", [[Robin("boundary", 1.0, 0.3)], [Dirichlet("left", 1.0)]])
def test_a_rollout_without_gradients_is_one_step_after_the_other(conditions: list, between: bool, large: bool,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    if large:  # four steps at once, in blocks of rows
        monkeypatch.setattr("dgnet.models.universal.steps._CACHED", 0)
        monkeypatch.setattr("dgnet.models.universal.steps._BLOCK", 7)
    p = Problem(box((5, 4)), PDE(diffusion=0.5), conditions, dt=0.02)
    model = Universal()
    points = len(model.points(p)) if between else p.n_nodes
    rng = torch.Generator().manual_seed(0)
    u0 = 300 + torch.rand(2, points, 1, generator=rng, dtype=torch.float64)
    f = torch.rand(2, 6, points, 1, generator=rng, dtype=torch.float64)
    state = model.prepare(p, 2, 6)
    with torch.no_grad():
        assert state.linear() is not None
        for source, start in ((f, u0), (f[:1], u0[:1]), (None, u0)):
            u = state.begin(start)
            for k in range(6):
                u = state.step(u, None if source is None else source[:, k], k * p.dt, k)
            found = rollout(model, p, start, source, 6)[:, -1]
            torch.testing.assert_close(found, state.read(u), rtol=0, atol=1e-11)


@both
def test_a_capacity_is_the_same_as_dividing_by_it(degree: int) -> None:
    """Heat with c = 3.5e6 J/m3/K: sources in W/m3 act as sources over c do, on the memory of the edges, too."""
    c, net = 3.5e6, wild(2, degree=degree)
    plain = plate(conditions=(Robin("right", 2.0, 1.0),), decay=0.2)
    heat = Problem(plain.mesh, PDE(diffusion=0.7 * c, capacity=c, decay=0.2 * c), (Robin("right", 2.0 * c, 1.0),), plain.dt)
    u0, f = given(plain)
    assert torch.allclose(states(heat, net, u0, f * c), states(plain, net, u0, f), atol=1e-5)


@both
def test_superposition_and_steady_states_stay(degree: int) -> None:
    p, net = plate(conditions=(Robin("right", 2.0, 0.0),)), wild(2, degree=degree)
    u0, f = given(p)
    whole = states(p, net, u0[:1] + u0[1:], f[:1] + f[1:])
    assert torch.allclose(states(p, net, u0[:1], f[:1]) + states(p, net, u0[1:], f[1:]), whole, atol=1e-11)
    ambient = plate(conditions=(Robin("right", 2.0, 1.5),))
    rest = torch.full((1, len(Universal().points(ambient)), 1), 1.5, dtype=torch.float64)
    assert torch.allclose(states(ambient, net, rest, None, 10), torch.tensor(1.5, dtype=torch.float64), atol=1e-12)
    held = plate(conditions=(Dirichlet("left", 0.3), Robin("right", 2.0, 2.0)))
    found = states(held, net, torch.zeros_like(rest), None, 4000)
    solver = model_of(net).prepare(held).solver  # with the learned diffusion, whatever mass and what is later
    K, load = dense(solver.operators.stiffness(0.0)), solver.operators.load(0.0)[:, 0]
    free = ~solver.problem.fixed[0]
    steady = torch.full_like(load, 0.3)
    steady[free] = torch.linalg.solve(K[free][:, free], load[free] - 0.3 * K[free][:, ~free].sum(1))
    assert torch.allclose(found[0, -1, :, 0], steady[:held.mesh.n_nodes], atol=1e-9)


@both
def test_gradients_are_those_of_differences_for_every_weight(degree: int) -> None:
    """One number of each; steps with a source, held values, an exchange and a flow."""
    net = damping(wild(2, 0.2, flow=True, degree=degree)).double().requires_grad_(True)
    p = plate(velocity=[3.0, -2.0], conditions=(*RIM[:2], Dirichlet("top", lambda x, t: 1 + 5 * t + 0 * x[:, 0])))
    u0, f = given(p, steps=4, batch=1)
    seed = torch.Generator().manual_seed(5)
    onto = torch.randn(5, p.mesh.n_nodes, 1, dtype=torch.float64, generator=seed)

    def value() -> Tensor:
        return (rollout(model_of(net), p, u0, f)[0] * onto).sum()

    value().backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None and float(weight.grad.abs().max()) > 0, name
        place = tuple(int(i) for i in np.unravel_index(int(weight.grad.abs().argmax()), weight.shape))
        with torch.no_grad():
            before, sides = float(weight[place]), []
            for step in (1e-5, -1e-5):
                weight[place] = before + step
                sides.append(float(value()))
            weight[place] = before
        assert float(weight.grad[place]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-4, abs=1e-7), name


@both
def test_it_fades_outside_of_the_range_of_its_training(degree: int) -> None:
    net, p = wild(2, degree=degree), plate()
    u0, f = given(p)
    s = surroundings(p)
    ranges = {"node": s.graph.node, "edge": s.graph.edge, "side": s.side.flatten(0, 1)}
    net.trained_on({name: torch.stack([x.amin(0), x.amax(0)]) for name, x in ranges.items()})
    assert model_of(net).coverage(p) == 1.0
    slow = replace(p, dt=p.dt * 1e-4)  # a Fourier number far below
    assert model_of(net).coverage(slow) == 0.0
    assert torch.allclose(states(slow, net, u0, f), classically(slow, u0, f, degree), atol=1e-10)


@both
@pytest.mark.parametrize("kind", ["flow", "skew", "reaction", "periodic", "fields"])
def test_what_was_not_trained_is_solved_classically(kind: str, degree: int) -> None:
    mesh = box((4, 4))
    p = {"flow": Problem(mesh, PDE(diffusion=0.1, velocity=lambda t: torch.ones(25, 2, dtype=torch.float64)), (), 0.1),
         "skew": Problem(mesh, PDE(diffusion=0.1, velocity=(1.0, 0.0)), (), 0.1, advection_form="skew"),
         "reaction": Problem(mesh, PDE(diffusion=0.1, reaction=lambda u: u - u**3), (), 0.1),
         "periodic": Problem(mesh, PDE(diffusion=0.1), (Periodic("left", "right"),), 0.1),
         "fields": Problem(mesh, PDE(("a", "b"), diffusion={"a": 0.1, "b": 1.0}), (), 0.1)}[kind]
    assert untrained(p) is not None and Universal().coverage(p) == 0.0
    u0 = p.expand(p.restrict(torch.rand(1, mesh.n_nodes, p.n_fields, dtype=torch.float64)))
    assert torch.equal(states(p, wild(2, degree=degree), u0, None, 4), rollout(Classical(1.0, degree=degree), p, u0, steps=4))


@pytest.mark.parametrize("name", ["universal-2d", "universal-3d", "universal-flow-2d", "elements2-2d", "elements2-3d",
                                  "elements2-flow-2d"])
def test_shipped_weights_are_tensors_of_a_few_hundred_kilobytes(name: str) -> None:
    path = WEIGHTS / f"{name}.pt"
    assert path.stat().st_size < 800_000
    card, net = json.loads(path.with_suffix(".json").read_text()), load_weights(path)
    assert card["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (net.name, isinstance(net, ElementNet)) == (name, name.startswith("elements"))
    told = {"dim": net.dim, "hidden": net.hidden, "layers": len(net.process.receive)}
    assert {key: card[key] for key in told if key in card} == {key: value for key, value in told.items() if key in card}
    with pytest.raises(InputError, match="do not belong to elements of degree"):
        Universal({net.dim: net}, degree=2 if isinstance(net, UniversalNet) else 1)


@both
def test_states_in_another_precision_and_recorded_steps_agree(degree: int) -> None:
    p, net = plate(), wild(2, degree=degree)
    u0, f = given(p, steps=12)
    full = states(p, net, u0, f)
    with torch.no_grad():
        recorded = rollout(model_of(net), p, u0, f, capture="always")
    assert torch.allclose(recorded, full, atol=1e-12)
    single = Problem(p.mesh, p.pde, p.conditions, p.dt, dtype=torch.float32)
    assert torch.allclose(states(single, net, u0.float(), f.float()).double(), full, atol=2e-4)
    assert isinstance(Universal(degree=degree).prepare(p).green, GreenSolver)


def term_by_term(columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    """`kernels.multiply` without a GPU."""
    return (values[..., None] * x[:, columns.long()]).sum(1)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("driven", [True, False])
def test_one_matrix_gathers_what_the_terms_gather(dim: int, batch: int, driven: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    p = plate(dim)
    u0, f = given(p, batch=batch)
    source, n = f[:, 0] if driven else None, p.mesh.n_nodes
    with torch.no_grad():
        gather = Universal({dim: wild(dim)}).prepare(p).gathering
        assert gather is not None
        x = u0[:, :n], source, u0[:, n:]
        plain = gather._differentiable(*x)
        assert float((plain - gather._differentiable(x[0], source, 0 * x[2])).abs().max()) > 1e-3
        assert torch.allclose(gather(*x), plain, atol=1e-13)
        monkeypatch.setattr("dgnet.operators.kernels.multiply", term_by_term)
        gather.__dict__["_tables"] = {driven: Table.of(*gather._terms(driven), padded=True)}
        assert torch.allclose(gather(*x), plain, atol=1e-13)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("kept", [True, False])
def test_the_network_in_blocks_is_the_network(dim: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, s = wild(dim, seed=2, flow=True), surroundings(plate(dim, velocity=[3.0, -2.0, 1.0][:dim])).to(torch.float32)
    whole = net(s)  # in one piece, as training has it
    monkeypatch.setitem(BLOCK, "cpu", 40)
    monkeypatch.setattr("dgnet.models.universal.network._KEPT", 1 << 26 if kept else 0)
    s.graph.__dict__.pop("incoming")
    with torch.no_grad():
        parts = net(s)
    for name, one, other in zip(whole._fields, whole, parts):
        assert float(one.abs().max()) > 1e-7, name
        assert torch.allclose(one, other, atol=2e-5), name


# ---------------------------------------------------------------------- files


@both
def test_damaged_weights_are_refused_or_are_what_they_were(tmp_path: Path, degree: int) -> None:
    """A flipped bit anywhere in the file: in the numbers it is noticed, beside them it changes nothing."""
    sound = wild(2, degree=degree)
    sound.save(tmp_path / "sound.pt")
    content = (tmp_path / "sound.pt").read_bytes()
    places = np.random.default_rng(0).integers(0, len(content), 60)
    refused = 0
    for place in places:
        broken = bytearray(content)
        broken[place] ^= 4
        (tmp_path / "broken.pt").write_bytes(bytes(broken))
        try:
            net = load_weights(tmp_path / "broken.pt")
        except InputError as error:
            assert "broken.pt" in str(error)
            refused += 1
        else:
            assert all(torch.equal(value, sound.state_dict()[name]) for name, value in net.state_dict().items()), place
    assert refused > 40


@both
def test_shipped_weights_are_those_of_their_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, degree: int) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "weights")
    monkeypatch.setattr("dgnet.models.universal.model.WEIGHTS", tmp_path / "weights")
    assert Universal(degree=degree).net(2) is not None
    other = fresh(2, degree, hidden=48)
    other.save(tmp_path / "weights" / f"{other.name}.pt")  # whole, and another network
    with pytest.raises(InputError, match=rf"{other.name}.pt is damaged"):
        Universal(degree=degree).net(2)
