"""POD-Galerkin and operator inference: what they are where the basis holds everything, and that they are fitted honestly."""

from collections.abc import Callable

import pytest
import torch

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.base import impose
from dgnet.models.registry import build
from dgnet.problems import PDE, Dirichlet, Neumann, Periodic, Problem, Robin, given_velocity
from dgnet.recipe import Recipe, Stage
from dgnet.training import fit
from dgnet.training.plan import make_plan
from dgnet_paper.baselines.opinf import bounded
from dgnet_paper.baselines.reduced import Reduced
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.scenario import Draw

Tensor = torch.Tensor
DT, STEPS = 0.05, 6


def waving(x: Tensor, t: float) -> Tensor:
    return x[:, 1] * (1 + t)


def bistable(u: Tensor) -> Tensor:
    return 0.3 * (u - u**3)  # slow enough for explicit steps, which reduced models have


MESH = box((5, 4), perturb=0.2, seed=1)
PROBLEMS: dict[str, Callable[[], Problem]] = {
    "plain": lambda: Problem(MESH, PDE(diffusion=0.02), [Robin("right", 0.3, 1.0), Neumann("top", 0.2)], DT),
    "reaction": lambda: Problem(MESH, PDE(diffusion=0.02, reaction=bistable), [Dirichlet("left", 0.5)], DT),
    "moving wall": lambda: Problem(MESH, PDE(diffusion=0.02, capacity=2.0), [Dirichlet("left", waving)], DT),
    "fields": lambda: Problem(MESH, PDE(("u", "v"), {"u": 0.02, "v": 0.05}, decay=0.1),
                                     [Dirichlet("left", 0.3, "u")], DT),
    "two": lambda: Problem(MESH, PDE(("u", "v"), {"u": 0.02, "v": 0.05}, decay=0.1), [Robin("right", 0.3, 1.0)], DT),
    "flow": lambda: Problem(MESH, PDE(diffusion=0.02, velocity=lambda t: torch.zeros(1, MESH.n_nodes, 2)),
                                   [Robin("right", 0.3, 1.0)], DT),
    "periodic": lambda: Problem(box((5, 4)), PDE(diffusion=0.02, velocity=(0.3, 0.1)), [Periodic("left", "right")], DT),
}


def corpus(base: Problem, rows: int, seed: int) -> Corpus:
    """Trajectories of the classical solver from random states, under random sources and flows of two patterns."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=g)

    size = (base.mesh.n_nodes, base.n_fields)
    start = impose(base, draw(rows, *size), -base.dt)  # the values of time zero
    source = base.expand(base.restrict(draw(rows, STEPS, *size)))
    flow = None
    if callable(base.pde.velocity):
        x = torch.tensor(base.mesh.points)
        patterns = torch.stack([torch.stack([x[:, 1], -x[:, 0]], 1), torch.ones_like(x)])
        flow = 0.2 * torch.einsum("btp,pnd->btnd", draw(rows, STEPS + 1, 2), patterns)
    still = Corpus(start[:, None].expand(-1, STEPS + 1, -1, -1), source, flow, base.dt, (0.0,) * base.n_fields)
    with torch.no_grad():
        states = rollout(Classical(backend="dense", start=0), still.problem(base), start, source)
    return Corpus(states, source, flow, base.dt, still.offset)


@pytest.mark.parametrize("kind", PROBLEMS)
def test_pod_with_all_modes_is_the_classical_solver(kind: str) -> None:
    """Galerkin in a basis of the whole space: the same scheme, to rounding; boundary data, reaction and flow included."""
    base = PROBLEMS[kind]()
    train, other = corpus(base, 12, 0), corpus(base, 2, 1)
    model = build("pod", {"modes": 1000}, base)
    model.fit_data(base, train, train)
    model.rank.fill_(model.modes)  # random starts fill the space
    with torch.no_grad():
        states = rollout(model, other.problem(base), other.state[:, 0], other.source_average)
    assert float((states[:, 1:] - other.state[:, 1:]).abs().max()) < 1e-5 * float(other.state.abs().max())  # of modes in float32


def test_fewer_modes_are_chosen_where_they_suffice() -> None:
    """A source of one shape makes states of few modes; the run goes through `fit`, which reports the error of held-out data."""
    base = PROBLEMS["plain"]()
    shape = torch.exp(-8 * (torch.tensor(MESH.points) - 0.5).square().sum(-1))[:, None]
    strength = torch.rand(4, STEPS, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = rollout(Classical(start=0), base, torch.zeros(4, MESH.n_nodes, 1, dtype=torch.float64), strength * shape)
    data = Corpus(states, strength * shape, None, DT, (0.0,))
    model, recipe = build("pod", {"modes": 20}, base), Recipe("pod", (Stage(1, 1, method="fitted"),))
    progress = fit(model, base, data.part([0, 1, 2]), data.part([3]), recipe)
    assert int(model.rank) < 15 and progress.updates == 1
    assert progress.best < 1e-3 < 0.05 < progress.history[0]["validation"]
    assert progress.best == progress.history[-1]["loss"]  # the error from before it saw what was held out
    with pytest.raises(InputError, match="iterations"):
        fit(build("mgn", {"hidden": 8, "blocks": 1}, base), base, data, data, recipe)


@pytest.mark.parametrize("kind", ["plain", "two", "periodic"])
def test_operator_inference_finds_a_linear_system(kind: str) -> None:
    """Enough data of a linear equation: an unseen trajectory to 1e-4, without having been told anything."""
    base = PROBLEMS[kind]()
    train, other = corpus(base, 40, 0), corpus(base, 2, 1)
    model = build("opinf", None, base)
    assert model.fit_data(base, train, corpus(base, 2, 2)) < 1e-4
    assert not bool(model.quadratic)
    assert model.held_out(base, other) < 1e-4


def test_operator_inference_learns_a_reaction() -> None:
    """Logistic growth of nearly flat states needs products."""
    base = Problem(MESH, PDE(diffusion=1e-4, reaction=lambda u: 4 * u * (1 - u)), [], DT)
    g = torch.Generator().manual_seed(0)
    start = (torch.rand(32, 1, 1, dtype=torch.float64, generator=g)
             + 1e-4 * torch.randn(32, MESH.n_nodes, 1, dtype=torch.float64, generator=g))
    with torch.no_grad():
        data = Corpus(rollout(Classical(start=0), base, start, steps=STEPS), None, None, DT, (0.0,))
    model = build("opinf", None, base)
    assert model.fit_data(base, data.part(range(30)), data.part([30, 31])) < 0.01
    assert bool(model.quadratic)


def test_operator_inference_learns_a_flow() -> None:
    base = PROBLEMS["flow"]()
    model = build("opinf", None, base)
    assert model.fit_data(base, corpus(base, 60, 0), corpus(base, 2, 1)) < 0.2
    assert bool(model.carried)


def test_no_linear_model_grows() -> None:
    torch.manual_seed(0)
    step = torch.eye(12, dtype=torch.float64) + 0.3 * torch.randn(12, 12, dtype=torch.float64)
    assert float(torch.linalg.eigvals(step).abs().max()) > 1.1
    kept = bounded(step)
    assert float(torch.linalg.eigvals(kept).abs().max()) < 1 + 1e-9
    small = torch.linalg.eigvals(step).abs() < 1
    assert torch.allclose(torch.linalg.eigvals(kept).abs().sort()[0][:int(small.sum())],
                          torch.linalg.eigvals(step).abs()[small].sort()[0])


@pytest.mark.parametrize("name", ["pod", "opinf"])
@pytest.mark.parametrize("kind", ["plain", "flow"])
def test_recorded_step_is_the_step(name: str, kind: str) -> None:
    base = PROBLEMS[kind]()
    data = corpus(base, 3, 0)
    model = build(name, None, base)
    model.fit_data(base, data, data)
    source = torch.cat([data.source_average, data.source_average], 1)
    with torch.no_grad():
        plain, held = (rollout(model, data.problem(base), data.state[:, 0], source, capture=c) for c in (False, "always"))
    torch.testing.assert_close(plain, held)


@pytest.mark.parametrize("name", ["pod", "opinf"])
def test_both_train_on_a_scenario_and_survive_the_disk(name: str) -> None:
    case = get("laser-heat", "small")
    base = case.problem(dtype=torch.float32)
    sample = case.sample([Draw("train", k) for k in range(4)])
    assert sample.source is not None and isinstance(sample.initial, Tensor)
    x, steps = torch.tensor(case.mesh.points), 12
    source = sample.source(x, case.dt * (torch.arange(steps, dtype=torch.float64) + 0.5)).float()
    with torch.no_grad():
        states = rollout(Classical(start=0), base, sample.initial.float(), source)
    data = Corpus(states, source, None, case.dt, case.offset)
    torch.manual_seed(0)
    model = build(name, None, base)
    recipe = make_plan(case, 4, steps, True, model=name).recipe
    progress = fit(model, base, data.part([0, 1, 2]), data.part([3]), recipe)
    assert progress.best_iteration == 1 and progress.best < 0.2 < progress.history[0]["validation"]
    torch.manual_seed(1)
    other = build(name, None, base)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(*(rollout(m, base, states[:, 0], source) for m in (model, other)))


def test_modes_belong_to_their_mesh() -> None:
    model = build("pod", None, PROBLEMS["plain"]())
    assert isinstance(model, Reduced)
    with pytest.raises(InputError, match="its modes belong to one mesh"):
        model.prepare(Problem(box((3, 3)), PDE(diffusion=0.02), [], DT))
    with pytest.raises(InputError, match="without a flow"):
        model.prepare(PROBLEMS["plain"]().with_velocity(given_velocity(torch.zeros(1, 2, MESH.n_nodes, 2), DT)))
    moving = Robin("left", lambda x, t: 1 + 0 * x[:, 0], 0.0)
    with pytest.raises(InputError, match="coefficient that changes"):
        build("pod", None, Problem(MESH, PDE(diffusion=0.02), [moving], DT))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["pod", "opinf"])
@pytest.mark.parametrize("kind", ["plain", "reaction", "flow"])
def test_cuda_equals_cpu(name: str, kind: str) -> None:
    """Fitted on the CPU, rolled out on both; captured where the problem allows it."""
    base = PROBLEMS[kind]()
    data = corpus(base, 6, 0)
    model = build(name, None, base)
    model.fit_data(base, data, data)
    there = Problem(base.mesh, base.pde, base.conditions, base.dt, device="cuda")
    flow = None if data.velocity is None else data.velocity.cuda()
    moved = Corpus(data.state.cuda(), data.source_average.cuda(), flow, data.dt, data.offset)
    source, far = (torch.cat([d.source_average, d.source_average], 1) for d in (data, moved))
    with torch.no_grad():
        cpu = rollout(model, data.problem(base), data.state[:, 0], source)
        cuda = rollout(model.to("cuda"), moved.problem(there), moved.state[:, 0], far)
    torch.testing.assert_close(cuda.cpu(), cpu, rtol=1e-5, atol=1e-6)
