"""An unknown reaction as a table, identified by least squares from what the known terms leave over."""

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig, Table
from dgnet.problems import PDE, Dirichlet, Discretisation
from dgnet.training.fit import Corpus, evaluate_rne
from dgnet.training.identify import identify
from dgnet.training.presets import model_config, recipe_for

CONFIG = DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=32)


def growth(u: torch.Tensor) -> torch.Tensor:
    return 0.8 * u.clamp(min=0.0) * (1 - u)


def cubic(u: torch.Tensor) -> torch.Tensor:
    return u - u**3


def world(reaction, low: float, high: float, flow: bool = False) -> tuple[Discretisation, Corpus]:
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
    fine = Discretisation(mesh, pde, conditions, 0.0125)
    with torch.no_grad():
        states = rollout(Classical(), fine, start, source.repeat_interleave(4, 1), 160)[:, ::4]
    return Discretisation(mesh, pde, conditions, 0.05), Corpus(states, source, None, 0.05, (0.0,))


@pytest.mark.parametrize(("reaction", "odd", "low", "high", "flow"),
                         [(cubic, True, -0.9, 0.9, False), (cubic, False, -0.9, 0.9, False), (growth, False, 0.0, 1.2, True)])
def test_a_table_finds_the_reaction(reaction, odd: bool, low: float, high: float, flow: bool) -> None:
    base, data = world(reaction, low, high, flow)
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=32, odd_reaction=odd), base).double()
    model.fit_statistics(data.state, data.source, data.dt)
    left = identify(model, base, data)
    u = torch.linspace(float(data.state.min()), float(data.state.max()), 50, dtype=torch.float64)[:, None]
    with torch.no_grad():
        found, true = model.learned_reaction()(u), reaction(u)
    assert 0 <= left < 1e-2 and float((found - true).norm() / true.norm()) < 0.03
    without = DGNet(DGNetConfig(hidden=8, layers=1, reaction="none"), base).double()
    assert evaluate_rne(model, base, data) < 0.02 * evaluate_rne(without, base, data) + 1e-3


def test_table() -> None:
    table = Table(10).double()
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
    two = Discretisation(base.mesh, PDE(("u", "v"), diffusion=0.1), [], 0.1)
    with pytest.raises(InputError, match="one field"):
        DGNet(CONFIG, two)
    with pytest.raises(InputError, match="reaction_table"):
        DGNetConfig(reaction_table=8)


def test_what_comes_after_the_identification() -> None:
    first, *rest = recipe_for("cylinder", "staged", 15, 2000, True, "paper").stages
    assert first.method == "identify" and first.only == ("reaction_net",)
    assert all(s.only and "reaction_net" not in s.only for s in rest)  # the table stays
    first, *rest = recipe_for("allen-cahn", "staged", 10, 1000, True, "paper").stages
    assert first.method == "identify" and not any(s.only for s in rest)
    assert [s.method for s in recipe_for("fitzhugh-nagumo", "staged", 7, 1200, True, "paper").stages[:2]] == ["adam", "adam"]
    assert model_config("fisher-kpp", unknown_reaction=True).reaction_table and not model_config("fisher-kpp").reaction_table
    assert not model_config("fitzhugh-nagumo", unknown_reaction=True).reaction_table  # two fields: a network


def test_a_given_flow_is_followed() -> None:
    """The same flow as a constant of the equation and as rows of the data leads to the same table."""
    base, data = world(growth, 0.0, 1.2, flow=True)
    rows = torch.tensor([0.3, 0.1], dtype=torch.float64).expand(len(data), data.steps + 1, base.mesh.n_nodes, 2)
    tables = []
    for corpus in (data, Corpus(data.state, data.source, rows, data.dt, data.offset)):
        torch.manual_seed(0)
        model = DGNet(CONFIG, base).double()
        model.fit_statistics(data.state, data.source, data.dt)
        identify(model, base, corpus)
        tables.append(model.reaction_net.values.detach())
    assert float(tables[0].norm()) > 0
    torch.testing.assert_close(tables[1], tables[0], rtol=1e-4, atol=1e-6)
