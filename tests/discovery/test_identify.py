"""An unknown reaction as a table, identified through rollouts of windows."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.discovery.identify import Fit, identify
from dgnet.discovery.reactions import unknown_of
from dgnet.discovery.residuals import noise_level
from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import InputError
from dgnet.mesh import perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig, ReactionTable
from dgnet.problems import PDE, Dirichlet, Problem
from dgnet.recipe import Stage
from dgnet.training.fit import evaluate_rne
from dgnet.training.plan import make_plan
from dgnet_paper.scenarios import get

CONFIG = DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=32)


def growth(u: torch.Tensor) -> torch.Tensor:
    return 0.8 * u.clamp(min=0.0) * (1 - u)


def cubic(u: torch.Tensor) -> torch.Tensor:
    return u - u**3


@cache
def world(reaction, low: float, high: float, flow: bool = False) -> tuple[Problem, Corpus]:
    """Trajectories of the classical solver with a quarter of the step, on the model's mesh."""
    mesh = perturbed_square(9)
    pde = PDE(diffusion=0.01, reaction=reaction, velocity=(0.3, 0.1) if flow else None)
    conditions = [Dirichlet("left", 0.0)] if flow else []
    rng = np.random.default_rng(0)
    x, y = mesh.points.T
    u0 = [low + (high - low) * (0.5 + 0.5 * np.sin(a * x + b) * np.cos(c * y)) for a, b, c in rng.uniform(1, 6, (4, 3))]
    start = torch.tensor(np.stack(u0))[..., None]
    if flow:
        start = start * torch.tensor(np.sin(0.5 * np.pi * x))[:, None]
    source = torch.tensor(0.1 * rng.uniform(size=(4, 1, mesh.n_nodes, 1))).expand(-1, 40, -1, -1)
    fine = Problem(mesh, pde, conditions, 0.0125)
    with torch.no_grad():
        states = rollout(Classical(), fine, start, source.repeat_interleave(4, 1), 160)[:, ::4]
    return Problem(mesh, pde, conditions, 0.05), Corpus(states, source, None, 0.05, (0.0,))


@pytest.mark.parametrize(("reaction", "odd", "low", "high", "flow"),
                         [(cubic, True, -0.9, 0.9, False), (cubic, False, -0.9, 0.9, False), (growth, False, 0.0, 1.2, True)])
def test_a_table_finds_the_reaction(reaction, odd: bool, low: float, high: float, flow: bool) -> None:
    base, data = world(reaction, low, high, flow)
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=32, odd_reaction=odd), base).double()
    model.fit_statistics(data.state, data.source_average, data.dt)
    left = identify(model, base, data)
    u = torch.linspace(float(data.state.min()), float(data.state.max()), 50, dtype=torch.float64)[:, None]
    with torch.no_grad():
        found, true = model.learned_reaction()(u), reaction(u)
    assert 0 <= left < 1e-2 and float((found - true).norm() / true.norm()) < 0.03
    without = DGNet(DGNetConfig(hidden=8, layers=1, reaction="none"), base).double()
    assert evaluate_rne(model, base, data) < 0.02 * evaluate_rne(without, base, data) + 1e-3


def test_table() -> None:
    table = ReactionTable(10).double()
    table.spread(-0.33, 1.0, 0.0)
    places = table.first + table.spacing * torch.arange(12)
    assert float(places[0]) <= -0.33 and float(places[-1]) >= 1.0 and float(places.abs().min()) < 1e-12
    with torch.no_grad():
        table.values.copy_(torch.randn(12, dtype=torch.float64))
    v = torch.linspace(-2, 3, 41, dtype=torch.float64)
    torch.testing.assert_close(table.features(v) @ table.values, table(v))
    torch.testing.assert_close(table(places.double()), table.values.detach(), rtol=1e-9, atol=1e-9)
    assert float(table(torch.tensor([9.0])).detach()) == float(table.values[-1].detach())
    inner = torch.tensor([0.11, 0.52], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(table, (inner,))


def test_what_cannot_be_a_table_is_refused() -> None:
    base, data = world(cubic, -0.9, 0.9)
    network = DGNet(DGNetConfig(hidden=8, layers=1, reaction="learned"), base).double()
    with pytest.raises(InputError, match="table"):
        identify(network, base, data)
    two = Problem(base.mesh, PDE(("u", "v"), diffusion=0.1), [], 0.1)
    with pytest.raises(InputError, match="one field"):
        DGNet(CONFIG, two)
    with pytest.raises(InputError, match="reaction_table"):
        DGNetConfig(reaction_table=8)


def test_what_comes_after_the_identification() -> None:
    def stages(name: str, trajectories: int, steps: int) -> tuple[Stage, ...]:
        return make_plan(get(name, "paper"), trajectories, steps, unknowns=Unknowns(reaction=True)).recipe.stages

    def config(name: str, unknown: bool = True) -> DGNetConfig:
        return make_plan(get(name, "small"), 10, 100, unknowns=Unknowns(reaction=unknown)).config

    first, *rest = stages("cylinder", 15, 2000)
    assert first.method == "identify" and first.only == ("reaction_net",)
    assert all(s.only and "reaction_net" not in s.only for s in rest)  # the table stays
    first, *rest = stages("allen-cahn", 10, 1000)
    assert first.method == "identify" and not any(s.only for s in rest)
    first, *rest, last = stages("fitzhugh-nagumo", 7, 1200)
    assert first == last and first.method == "identify" and all("reaction_net" not in s.only for s in rest)
    assert config("fisher-kpp").reaction_table and not config("fisher-kpp", False).reaction_table
    assert not config("fitzhugh-nagumo").reaction_table and config("fitzhugh-nagumo").reaction_degree  # two fields: terms


def test_a_given_flow_is_followed() -> None:
    """The same flow as a constant of the equation and as rows of the data leads to the same table."""
    base, data = world(growth, 0.0, 1.2, flow=True)
    rows = torch.tensor([0.3, 0.1], dtype=torch.float64).expand(len(data), data.steps + 1, base.mesh.n_nodes, 2)
    tables = []
    for corpus in (data, Corpus(data.state, data.source_average, rows, data.dt, data.offset)):
        torch.manual_seed(0)
        model = DGNet(CONFIG, base).double()
        model.fit_statistics(data.state, data.source_average, data.dt)
        identify(model, base, corpus)
        tables.append(model.reaction_net.values.detach())
    assert float(tables[0].norm()) > 0
    torch.testing.assert_close(tables[1], tables[0], rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------- noise, layers, the band

NOISY = 64  # intervals of the table


def bistable(u: torch.Tensor) -> torch.Tensor:
    return 4.0 * u * (1 - u) * (u - 0.35)


def menten(u: torch.Tensor) -> torch.Tensor:
    return -1.2 * u.clamp(min=0) / (0.2 + u.clamp(min=0))


@cache
def fine_world(kind: str, seed: int) -> tuple[Problem, Corpus, Corpus]:
    """Four training and two test trajectories of the classical solver on a refined mesh with a third of the step.

    `flow` and `still`: a bistable reaction in a closed box. `inlet`: uptake, and a jump to 1 at the inlet when it begins.
    """
    coarse, dt, steps, rng = perturbed_square(12), 0.04, 32, np.random.default_rng(seed)
    inlet, fine = kind == "inlet", coarse.refined(1)

    def problem(mesh, dt: float) -> Problem:
        x, y = np.pi * mesh.points.T
        around = torch.tensor(0.4 * np.stack([-np.sin(x) * np.cos(y), np.cos(x) * np.sin(y)], 1))
        pde = PDE(diffusion=0.02 if inlet else 0.01, velocity=(0.3, 0.0) if inlet else around if kind == "flow" else None,
                  reaction=menten if inlet else bistable)
        return Problem(mesh, pde, [Dirichlet("left", 1.0)] if inlet else [], dt)

    def bumps() -> np.ndarray:
        parts = [a * np.exp(-((fine.points - c) ** 2).sum(1) / (2 * w**2))
                 for a, c, w in zip(rng.uniform(0.4, 1.1, 3), rng.uniform(0, 1, (3, 2)), rng.uniform(0.12, 0.3, 3))]
        return sum(parts) / np.max(sum(parts)) * rng.uniform(0.8, 1.1) * (0.6 if inlet else 1.0)

    start = torch.tensor(np.stack([bumps() for _ in range(6)]))[..., None]
    if inlet:
        start[:, fine.nodes_on("left")] = 1.0
    with torch.no_grad():
        states = rollout(Classical(start=2 * inlet), problem(fine, dt / 3), start, None, 3 * steps)[:, ::3, :coarse.n_nodes]
    train, test = (Corpus(part.clone(), None, None, dt, (0.0,)) for part in (states[:4], states[4:]))
    return problem(coarse, dt), train, test


def blurred(data: Corpus, share: float, seed: int) -> Corpus:
    """With white noise of a share of the range."""
    noise = torch.randn(data.state.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return replace(data, state=data.state + share * (data.state.max() - data.state.min()) * noise)


def judged(base: Problem, train: Corpus, test: Corpus, clean: Corpus) -> tuple[float, float, float]:
    """RNE on the test trajectories; largest error of the curve where there are data, against max |r| there; share within the band.

    "Where there are data": places of the table with at least a tenth of an even share of the free nodes' states.
    """
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=NOISY), base).double()
    model.fit_statistics(train.state, None, train.dt)
    identify(model, base, train)
    table = model.reaction_net
    u = table.where() * model.std + model.mean
    free = slice(None) if base.fixed is None else ~base.fixed[0]
    there = table.features(((clean.state[:, :, free] - model.mean) / model.std).flatten()).mean(0) > 0.1 / len(u)
    with torch.no_grad():
        found, true = model.learned_reaction()(u[:, None])[:, 0], base.pde.reaction(u)
    off = (found - true).abs()[there]
    inside = (off <= 2 * table.deviation[there]).double().mean()
    return evaluate_rne(model, base, test), float(off.max() / true[there].abs().max()), float(inside)


@pytest.mark.parametrize(("kind", "seed", "shares"), [("flow", 0, (0.001, 0.01)), ("still", 0, (0.01,)), ("inlet", 13, (0.01,))])
def test_an_unknown_reaction_survives_noise(kind: str, seed: int, shares: tuple[float, ...]) -> None:
    base, clean, test = fine_world(kind, seed)
    plain = judged(base, clean, test, clean)
    assert plain[1] < 0.1 and plain[2] > 0.6
    for share in shares:
        rne, off, inside = judged(base, blurred(clean, share, seed), test, clean)
        assert rne < 2 * plain[0], (share, rne, plain[0])
        assert off < 0.1 and inside > 0.6, (share, off, inside)


def test_the_band_knows_where_there_are_no_data() -> None:
    base, clean, _ = fine_world("still", 0)
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=NOISY), base).double()
    model.fit_statistics(clean.state * 1.5, None, clean.dt)  # a table that reaches half as far again as the states
    identify(model, base, blurred(clean, 0.01, 0))
    table = model.reaction_net
    u = table.where() * model.std + model.mean
    beyond, within = u > 1.3, (u > 0.2) & (u < 0.9)
    assert float(table.density.sum()) == pytest.approx(1.0) and float(table.density[beyond].max()) < 1e-3
    assert float(table.deviation[beyond].min()) > 3 * float(table.deviation[within].max())


def test_the_noise_is_measured() -> None:
    _, clean, _ = fine_world("still", 0)
    span = float(clean.state.max() - clean.state.min())
    assert noise_level(clean.state) < 1e-5 * span
    for share in (0.001, 0.01):
        assert noise_level(blurred(clean, share, 3).state) == pytest.approx(share * span, rel=0.05)


def test_tangents_are_derivatives() -> None:
    """Of a rollout by one coefficient, against a difference."""
    base, clean, _ = fine_world("flow", 0)
    model = DGNet(CONFIG, base).double()
    model.fit_statistics(clean.state, None, clean.dt)
    fit = Fit(model, unknown_of(model, clean), base, clean)
    fit.pieces = clean.windows(torch.tensor([0]), torch.tensor([0]), 6)
    theta = torch.linspace(-1, 1, len(fit.theta), dtype=torch.float64) ** 2
    found, shift = fit.at(theta), torch.zeros_like(theta)
    shift[9] = 1e-5
    ends = [0.5 * fit.at(theta + sign * shift).misfit for sign in (1, -1)]
    assert float(-found.downhill[9]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-2)
