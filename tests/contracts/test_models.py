"""What every model promises, one table: a new model is one more line in MODELS."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from dgnet.mesh import box
from dgnet.models import Classical, Model, Refined, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.registry import build
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Problem, Robin, given_velocity
from dgnet_paper.model import BOUNDED, PAPER, PaperConfig, variants

Tensor = torch.Tensor
AMBIENT = 1.3
VARIANTS = variants(BOUNDED)
SMALL = dict(hidden=16, layers=2, reaction_hidden=24)
SMALL_PAPER = dict(SMALL, residual_hidden=24, residual_layers=2)


def dgnet(config: DGNetConfig) -> Callable[[Problem], Model]:
    small = SMALL_PAPER if isinstance(config, PaperConfig) else SMALL
    return lambda problem: DGNet(replace(config, **small), problem).to(problem.dtype)  # type: ignore[arg-type]


# name: (how to make one, factor by which overfitting one trajectory must reduce the loss; None: no iterations)
MODELS: dict[str, tuple[Callable[[Problem], Model], float | None]] = {
    "classical consistent": (lambda p: Classical(), None),
    "classical lumped": (lambda p: Classical(0.0), None),
    "classical quadratic": (lambda p: Classical(degree=2), None),
    "classical refined": (lambda p: Refined(Classical()), None),
    "universal-quadratic": (lambda p: Universal(degree=2), None),
    "universal": (lambda p: Universal(), None),  # the classical solver on problems of other kinds than heat
    "dgnet": (dgnet(DGNetConfig(free=True, learn_streamline=True, learn_start=True, reaction="learned")), 20.0),
    "dgnet without free numbers": (dgnet(DGNetConfig(reaction="learned")), 20.0),
    "dgnet paper": (dgnet(replace(PAPER, reaction="none")), 20.0),
    "dgnet paper, variant D": (dgnet(replace(variants(PAPER)["D"], reaction="none")), 5.0),
    "dgnet bounded": (dgnet(replace(BOUNDED, reaction="none")), 20.0),
    # its bounded residual has to stand in for the diffusion, too, of data that are rough
    "variant A": (dgnet(replace(VARIANTS["A"], reaction="none")), 8.0),
    "variant B": (dgnet(replace(VARIANTS["B"], reaction="none")), 20.0),
    "variant C": (dgnet(replace(VARIANTS["C"], reaction="none")), 1.3),  # a linear operator cannot make a reaction
    "variant D": (dgnet(replace(VARIANTS["D"], reaction="none")), 20.0),
    "pod": (lambda p: build("pod", None, p), None),  # fitted at once: paper/tests/models/test_reduced.py
    "opinf": (lambda p: build("opinf", None, p), None),
}


@dataclass(frozen=True)
class Case:
    problem: Problem
    u0: Tensor  # [B, N, F]
    source: Tensor  # [B, T, N, F]
    truth: Tensor  # [B, T+1, N, F], with the reaction that learned models do not know


def bistable(u: Tensor) -> Tensor:
    return 3 * (u - u**3)


def case(kind: str) -> Case:
    dim, fields = (3, ("u",)) if kind == "3D" else (2, ("u", "v") if kind == "fields" else ("u",))
    mesh = box((5, 5), perturb=0.2) if dim == 2 else box((3, 3, 2), perturb=0.2)
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    batch, steps = 3, 8
    velocity = None if kind != "flow" else given_velocity(draw(batch, steps + 1, mesh.n_nodes, 2), 0.05)
    pde = PDE(fields, diffusion=0.05, decay=0.1 if kind == "fields" else 0.0, velocity=velocity, reaction=bistable)
    problem = Problem(mesh, pde, (Robin("left", 1.0, AMBIENT),), 0.05)
    u0, source = 1.2 * torch.tanh(draw(batch, mesh.n_nodes, len(fields))), draw(batch, steps, mesh.n_nodes, len(fields))
    with torch.no_grad():
        return Case(problem, u0, source, rollout(Classical(), problem, u0, source))


KINDS = ("plain", "fields", "flow", "3D")


@pytest.fixture(scope="module", params=KINDS)
def shared(request) -> Case:
    return case(request.param)


def make(name: str, problem: Problem, seed: int = 0, moved: float = 0.0) -> Model:
    torch.manual_seed(seed)
    model = MODELS[name][0](problem)
    if isinstance(model, nn.Module) and moved:
        with torch.no_grad():
            for p in model.parameters():
                p.add_(moved * torch.randn_like(p))
    return model


def run(model: Model, c: Case, rows: slice = slice(None)) -> Tensor:
    problem = c.problem
    if callable(problem.pde.velocity):
        whole = problem.pde.velocity
        problem = problem.with_velocity(lambda t: whole(t)[rows])
    with torch.no_grad():
        return rollout(model, problem, c.u0[rows], c.source[rows])


@pytest.mark.parametrize("name", MODELS)
def test_protocol_and_shapes(name: str, shared: Case) -> None:
    model = make(name, shared.problem, moved=0.1)
    assert isinstance(model.name, str) and model.name
    states = run(model, shared)
    assert states.shape == shared.truth.shape and states.dtype == shared.u0.dtype and torch.isfinite(states).all()
    assert torch.equal(states[:, 0], shared.u0)
    with torch.no_grad():
        state = model.prepare(shared.problem, 3, 8)
        u = state.begin(shared.u0)
        assert torch.equal(state.read(state.lift(shared.u0)), shared.u0)
        assert u.shape[1] == len(model.points(shared.problem)) >= shared.u0.shape[1]
        assert state.read(state.step(u, None, 0.0, 1)).shape == shared.u0.shape  # a source is optional
        assert isinstance(state.repeats(), bool)
        assert state.finish() is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize("name", MODELS)
def test_inference_mode_changes_nothing(name: str) -> None:
    """The same states; and what was made under it does not stand in the way of gradients."""
    inside, outside = case("plain"), case("plain")
    model = make(name, outside.problem, moved=0.1)
    expected = run(model, outside)
    with torch.inference_mode():
        own = replace(inside.problem)  # one that is made under it, too
        for found in (rollout(model, p, inside.u0 + 0.0, inside.source) for p in (inside.problem, own)):
            assert torch.allclose(found, expected, rtol=1e-10, atol=1e-10)
    start = inside.u0.clone().requires_grad_()
    rollout(model, inside.problem, start, inside.source[:, :2], steps=2).square().sum().backward()
    assert start.grad is not None and bool(start.grad.any())


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_its_trajectories(name: str, shared: Case) -> None:
    model = make(name, shared.problem, moved=0.1)
    together = run(model, shared)
    for b in range(len(shared.u0)):
        assert torch.allclose(run(model, shared, slice(b, b + 1)), together[b:b + 1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_decides_everything(name: str, shared: Case) -> None:
    states = run(make(name, shared.problem, 3, 0.1), shared)
    assert torch.equal(states, run(make(name, shared.problem, 3, 0.1), shared))
    if isinstance(make(name, shared.problem), nn.Module):
        assert not torch.equal(states, run(make(name, shared.problem, 4, 0.1), shared))


@pytest.mark.parametrize("name", MODELS)
def test_weights_survive_the_disk(name: str, shared: Case) -> None:
    model = make(name, shared.problem, 1, 0.1)
    if not isinstance(model, nn.Module):
        pytest.skip("nothing to store")
    fit_statistics = getattr(model, "fit_statistics", None)
    if fit_statistics is not None:
        fit_statistics(shared.truth, shared.source, shared.problem.dt)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = make(name, shared.problem, 2)
    assert isinstance(other, nn.Module)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(run(model, shared), run(other, shared))


@pytest.mark.parametrize("name", MODELS)
def test_a_constant_field_is_no_trouble(name: str, shared: Case) -> None:
    """Statistics of data that do not move are all zero; the state at the ambient value stays where the equation says so."""
    problem = shared.problem
    flat = torch.full_like(shared.truth, AMBIENT)
    model = make(name, problem)
    fit_statistics = getattr(model, "fit_statistics", None)
    if fit_statistics is not None:
        fit_statistics(flat, torch.zeros_like(shared.source), problem.dt)
    with torch.no_grad():
        states = rollout(model, problem, flat[:, 0], None, 5)
    assert torch.isfinite(states).all()
    quiet = isinstance(model, DGNet) and model.config.reaction != "known"
    if quiet and problem.pde.decay == 0.0:
        assert float((states - AMBIENT).abs().max()) < 1e-9


@pytest.mark.parametrize("name", [name for name, (_, factor) in MODELS.items() if factor is not None])
def test_one_trajectory_can_be_learned_by_heart(name: str) -> None:
    c = case("plain")
    factor = MODELS[name][1]
    assert factor is not None
    u0, source, truth = c.u0[:1], c.source[:1, :4], c.truth[:1, :5]
    torch.manual_seed(0)
    model = MODELS[name][0](c.problem)
    assert isinstance(model, nn.Module)
    fit_statistics = getattr(model, "fit_statistics", None)
    if fit_statistics is not None:
        fit_statistics(truth, source, c.problem.dt)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(300):
        optimiser.zero_grad()
        loss = ((rollout(model, c.problem, u0, source) - truth) ** 2).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        if losses[-1] * factor < losses[0]:
            return
    raise AssertionError(f"the loss fell by {losses[0] / min(losses):.1f} only, {factor:g} was promised")
