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
from dgnet.models.universal import Universal, UniversalNet
from dgnet.models.universal.gathering import Table
from dgnet.models.universal.local import surroundings
from dgnet.models.universal.model import WEIGHTS, untrained
from dgnet.problems import PDE, Condition, Dirichlet, Neumann, Periodic, Problem, Robin
from dgnet.stepping import GreenSolver
from dgnet_paper.universal.batched import Part, gather, rivals, roll, silent, squared_error

Tensor = torch.Tensor
RIM: tuple[Condition, ...] = (Dirichlet("left", 0.3), Robin("right", 2.0, 1.0), Neumann("top", 0.1))


def wild(dim: int, size: float = 0.6, seed: int = 0, flow: bool = False) -> UniversalNet:
    """A network whose decoders are far from zero."""
    torch.manual_seed(seed)
    net = UniversalNet(dim, 12, 2, flow)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(size * torch.randn_like(weight))
    return net.requires_grad_(False)


def plate(dim: int = 2, cells: int = 5, conditions: tuple[Condition, ...] = RIM, **coefficients: object) -> Problem:
    mesh = box((cells, cells - 1) if dim == 2 else (3, 3, 2), perturb=0.2)
    return Problem(mesh, PDE(**({"diffusion": 0.7} | coefficients)), conditions, 0.02)  # type: ignore[arg-type]


def given(p: Problem, steps: int = 6, batch: int = 2) -> tuple[Tensor, Tensor]:
    points, g = p.mesh.n_nodes + len(p.mesh.edges), torch.Generator().manual_seed(1)
    return (torch.randn(batch, points, p.n_fields, dtype=torch.float64, generator=g),
            torch.randn(batch, steps, points, p.n_fields, dtype=torch.float64, generator=g))


def states(p: Problem, net: UniversalNet, u0: Tensor, f: Tensor | None, steps: int | None = None) -> Tensor:
    with torch.no_grad():
        return rollout(Universal({p.mesh.dim: net}), p, u0, f, steps)


@pytest.mark.parametrize("dim", [2, 3])
def test_with_fresh_weights_it_is_the_classical_solver(dim: int) -> None:
    p = plate(dim, decay=0.4)
    u0, f = given(p)
    n = p.mesh.n_nodes
    with torch.no_grad():
        classical = rollout(Classical(1.0, start=0), p, u0[:, :n], f[:, :, :n])
    assert torch.allclose(states(p, UniversalNet(dim, 8, 1), u0, f), classical, atol=1e-12)


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
def test_moving_turning_mirroring_scaling_and_renumbering_change_nothing(dim: int, mirror: bool, flow: bool) -> None:
    rng, scale = np.random.default_rng(0), 3.7
    turn = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    if (np.linalg.det(turn) < 0) != mirror:
        turn[:, 0] *= -1
    axes = np.eye(dim) + 0.3 * np.ones((dim, dim))
    p, net = plate(dim, diffusion=axes, velocity=[7.0, -4.0, 2.0][:dim] if flow else None), wild(dim, flow=flow)
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
    assert float((own[:, 1:] - rollout(Classical(1.0, start=0), p, u0[:, :n], f[:, :, :n])[:, 1:]).abs().max()) > 1e-3
    assert torch.allclose(other[:, :, torch.as_tensor(back)], own, atol=1e-5)  # networks are in single precision


@pytest.mark.parametrize("dim", [2, 3])
def test_corrections_of_a_flow_make_no_energy_and_keep_constants(dim: int) -> None:
    p = plate(dim, conditions=(), velocity=[7.0, -4.0, 2.0][:dim])
    nets = wild(dim, 0.2, seed=2, flow=True), UniversalNet(dim, 8, 1, flow=True)
    ops, plain = (Universal({dim: net}).prepare(p).solver.operators for net in nets)
    K, C, own, classical = (torch.as_tensor(A.to_scipy().toarray()) for A in (
        ops.stiffness(0.0), ops.indefinite_part(0.0), plain.stiffness(0.0), plain.indefinite_part(0.0)))
    assert torch.allclose(classical, torch.as_tensor(p.advection().to_scipy().toarray()), atol=1e-14)
    swirl = C - classical
    assert float(swirl.abs().max()) > 1e-3 and torch.allclose(swirl, -swirl.T, atol=1e-13)
    assert max(float(swirl.sum(k).abs().max()) for k in (0, 1)) < 1e-12
    along = K - C
    assert float(torch.linalg.eigvalsh((along + along.T) / 2).min()) > -1e-10 and float((along - along.T).abs().max()) < 1e-12
    assert float((along - (own - classical)).abs().max()) > 1e-3
    constant = torch.full((1, p.mesh.n_nodes, 1), 3.0, dtype=torch.float64)
    assert torch.allclose(states(p, wild(dim, seed=2, flow=True), constant, None, 5), constant[:, None], atol=1e-12)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("uneven", [False, True])
def test_any_weights_keep_energy_constants_and_total(dim: int, uneven: bool) -> None:
    free, net = plate(dim, conditions=()), wild(dim, 2.0)
    if uneven:
        free = replace(free, pde=replace(free.pde, capacity=np.linspace(1, 4, free.mesh.n_cells)))
    u0 = given(free)[0]
    n = free.mesh.n_nodes
    model = Universal({dim: net})
    state = model.prepare(free)
    ops = state.solver.operators
    assert ops.advanced_part is not None
    M = torch.as_tensor((ops.mass + ops.advanced_part * free.dt).to_scipy().toarray())
    assert float(torch.linalg.eigvalsh(torch.as_tensor(ops.mass.to_scipy().toarray())).min()) > 0
    assert float(torch.linalg.eigvalsh(torch.as_tensor(ops.stiffness(0.0).to_scipy().toarray())).min()) > -1e-10
    u = u0[:, :n, 0]
    for _ in range(20):
        new = state.solver.step(u[..., None])[..., 0]
        assert float(torch.einsum("bi,ij,bj->b", new, M, new).max() - torch.einsum("bi,ij,bj->b", u, M, u).max()) < 1e-12
        weight = free.mass.row_sums()[0, 0]
        assert torch.allclose(new @ weight, u @ weight, atol=1e-11)
        u = new
    constant = torch.full((1, len(model.points(free)), 1), 5.0, dtype=torch.float64)
    assert torch.allclose(states(free, net, constant, None, 10), torch.tensor(5.0, dtype=torch.float64), atol=1e-12)
    uniform = torch.full((1, 10, len(model.points(free)), 1), 2.0, dtype=torch.float64)
    heated = states(free, net, constant, uniform)[:, -1]
    entered = 20 * free.dt * free.mesh.volumes.sum()
    assert float(heated[0, :, 0] @ weight) == pytest.approx(float(5 * weight.sum() + entered), abs=1e-10)
    if not uneven:
        assert torch.allclose(heated, torch.full_like(heated, 5.0 + 20 * free.dt), atol=1e-11)


def test_an_ambient_that_changes_in_time_is_followed() -> None:
    rule = Robin("right", 2.0, lambda x, t: torch.full((len(x),), 1.0 + 3 * t, dtype=torch.float64))
    p, n = plate(conditions=(rule,)), UniversalNet(2, 8, 1)
    u0, f = given(p)
    with torch.no_grad():
        classical = rollout(Classical(1.0, start=0), p, u0[:, : p.mesh.n_nodes], f[:, :, : p.mesh.n_nodes])
    assert torch.allclose(states(p, n, u0, f), classical, atol=1e-12)


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


def test_a_capacity_is_the_same_as_dividing_by_it() -> None:
    """Heat with c = 3.5e6 J/m3/K: sources in W/m3 act as sources over c do, on the memory of the edges, too."""
    c, net = 3.5e6, wild(2)
    plain = plate(conditions=(Robin("right", 2.0, 1.0),))
    heat = Problem(plain.mesh, PDE(diffusion=0.7 * c, capacity=c), (Robin("right", 2.0 * c, 1.0),), plain.dt)
    u0, f = given(plain)
    assert torch.allclose(states(heat, net, u0, f * c), states(plain, net, u0, f), atol=1e-5)


def test_superposition_and_steady_states_stay() -> None:
    p, net = plate(conditions=(Robin("right", 2.0, 0.0),)), wild(2)
    u0, f = given(p)
    whole = states(p, net, u0[:1] + u0[1:], f[:1] + f[1:])
    assert torch.allclose(states(p, net, u0[:1], f[:1]) + states(p, net, u0[1:], f[1:]), whole, atol=1e-11)
    ambient = plate(conditions=(Robin("right", 2.0, 1.5),))
    rest = torch.full((1, len(Universal().points(p)), 1), 1.5, dtype=torch.float64)
    assert torch.allclose(states(ambient, net, rest, None, 10), torch.tensor(1.5, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("dim", [2, 3])
def test_batched_dense_training_steps_as_the_model_does(dim: int) -> None:
    net, parts, expected = wild(dim, 0.5), [], []
    for k in (0, 1):
        p = plate(dim, cells=4 + k, decay=0.3 * k)
        u0, f = given(p, steps=4)
        n = p.mesh.n_nodes
        u0[:, :n] = torch.where((p.fixed[0])[None, :, None], 0.3, u0[:, :n])  # type: ignore[index]
        expected.append(states(p, net, u0, f)[..., 0])
        parts.append(Part("box", 0.1, p, f[:, :, :n, 0], f[:, :, n:, 0], u0[:, n:, 0], expected[-1].clone()))
    batch = gather(parts)
    with torch.no_grad():
        found = roll(batch, net(batch.surroundings))
    for k, own in enumerate(expected):
        assert torch.allclose(found[k, :, :, : own.shape[-1]], own, atol=1e-6)  # padding changes the order of single precision sums
    own = rivals(batch)
    for k, part in enumerate(parts):
        for column, consistent in enumerate((1.0, 0.0)):
            with torch.no_grad():
                model = Classical(consistent, start=0)
                classical = rollout(model, part.problem, part.truth[:, 0, :, None], part.nodal[..., None])[..., 0]
            assert float(own[k, column]) == pytest.approx(float((classical - part.truth).square().sum()), rel=1e-9)
    assert torch.equal(squared_error(batch, roll(batch, silent(batch))), own[:, 0])


def test_gradients_reach_every_correction() -> None:
    net = wild(2, 0.3).requires_grad_(True)
    p = plate()
    u0, f = given(p, steps=3)
    part = Part("box", 0.1, p, f[:, :, : p.mesh.n_nodes, 0], f[:, :, p.mesh.n_nodes:, 0], u0[:, p.mesh.n_nodes:, 0],
                torch.randn(2, 4, p.mesh.n_nodes, dtype=torch.float64))
    batch = gather([part])
    squared_error(batch, roll(batch, net(batch.surroundings))).sum().backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None and float(weight.grad.abs().max()) > 0, name


def test_it_fades_outside_of_the_range_of_its_training() -> None:
    net, p = wild(2), plate()
    u0, f = given(p)
    n = p.mesh.n_nodes
    s = surroundings(p)
    ranges = {"node": s.graph.node, "edge": s.graph.edge, "side": s.side.flatten(0, 1)}
    net.trained_on({name: torch.stack([x.amin(0), x.amax(0)]) for name, x in ranges.items()})
    assert Universal({2: net}).coverage(p) == 1.0
    slow = replace(p, dt=p.dt * 1e-4)  # a Fourier number far below
    assert Universal({2: net}).coverage(slow) == 0.0
    with torch.no_grad():
        assert torch.allclose(states(slow, net, u0, f), rollout(Classical(1.0, start=0), slow, u0[:, :n], f[:, :, :n]), atol=1e-10)


@pytest.mark.parametrize("kind", ["flow", "skew", "reaction", "periodic", "fields"])
def test_what_was_not_trained_is_solved_classically(kind: str) -> None:
    mesh = box((4, 4))
    p = {"flow": Problem(mesh, PDE(diffusion=0.1, velocity=lambda t: torch.ones(25, 2, dtype=torch.float64)), (), 0.1),
         "skew": Problem(mesh, PDE(diffusion=0.1, velocity=(1.0, 0.0)), (), 0.1, advection_form="skew"),
         "reaction": Problem(mesh, PDE(diffusion=0.1, reaction=lambda u: u - u**3), (), 0.1),
         "periodic": Problem(mesh, PDE(diffusion=0.1), (Periodic("left", "right"),), 0.1),
         "fields": Problem(mesh, PDE(("a", "b"), diffusion={"a": 0.1, "b": 1.0}), (), 0.1)}[kind]
    assert untrained(p) is not None and Universal().coverage(p) == 0.0
    u0 = p.expand(p.restrict(torch.rand(1, mesh.n_nodes, p.n_fields, dtype=torch.float64)))
    assert torch.equal(states(p, wild(2), u0, None, 4), rollout(Classical(1.0), p, u0, steps=4))


@pytest.mark.parametrize("name", ["universal-2d", "universal-3d", "universal-flow-2d"])
def test_shipped_weights_are_tensors_of_a_few_hundred_kilobytes(name: str) -> None:
    path = WEIGHTS / f"{name}.pt"
    assert path.stat().st_size < 800_000
    card = json.loads(path.with_suffix(".json").read_text())
    assert card["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    net = UniversalNet.load(path)
    assert (net.name, net.dim, net.hidden, len(net.process.receive)) == (name, card["dim"], card["hidden"], card["layers"])


def test_states_on_another_precision_and_recorded_steps_agree() -> None:
    p = plate()
    u0, f = given(p, steps=12)
    full = states(p, wild(2), u0, f)
    with torch.no_grad():
        recorded = rollout(Universal({2: wild(2)}), p, u0, f, capture="always")
    assert torch.allclose(recorded, full, atol=1e-12)
    single = Problem(p.mesh, p.pde, p.conditions, p.dt, dtype=torch.float32)
    assert torch.allclose(states(single, wild(2), u0.float(), f.float()).double(), full, atol=2e-4)
    assert isinstance(Universal().prepare(p).green, GreenSolver)


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


def test_damaged_weights_are_refused_or_are_what_they_were(tmp_path: Path) -> None:
    """A flipped bit anywhere in the file: in the numbers it is noticed, beside them it changes nothing."""
    wild(2).save(tmp_path / "sound.pt")
    content = (tmp_path / "sound.pt").read_bytes()
    places = np.random.default_rng(0).integers(0, len(content), 60)
    refused = 0
    for place in places:
        broken = bytearray(content)
        broken[place] ^= 4
        (tmp_path / "broken.pt").write_bytes(bytes(broken))
        try:
            net = UniversalNet.load(tmp_path / "broken.pt")
        except InputError as error:
            assert "broken.pt" in str(error)
            refused += 1
        else:
            assert all(torch.equal(value, wild(2).state_dict()[name]) for name, value in net.state_dict().items()), place
    assert refused > 40


def test_shipped_weights_are_those_of_their_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(WEIGHTS, tmp_path / "weights")
    monkeypatch.setattr("dgnet.models.universal.model.WEIGHTS", tmp_path / "weights")
    assert Universal().net(2) is not None
    UniversalNet(2).save(tmp_path / "weights" / "universal-2d.pt")  # whole, and another network
    with pytest.raises(InputError, match=r"universal-2d.pt is damaged"):
        Universal().net(2)
