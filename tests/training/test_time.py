"""Windows know their time: boundary data, coefficients and flows in time are those of the trajectory, wherever a piece begins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.discovery.calibrate import gauss_newton
from dgnet.discovery.identify import identify
from dgnet.mesh import perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, Dirichlet, Neumann, Problem, Robin
from dgnet.training import Recipe, Stage, evaluate_rne, fit, replay
from dgnet.training.update import iterate, parameter_groups

Tensor = torch.Tensor
DT, STEPS = 0.05, 16
MESH = perturbed_square(6)
CONFIG = DGNetConfig(hidden=8, layers=1, free=True)


def wave(x: Tensor, t: float) -> Tensor:
    return (1 + x[:, 0]) * math.sin(3 * t)


def gust(t: float) -> Tensor:
    x, y = torch.tensor(MESH.points).T
    return math.cos(4 * t) * torch.stack([0.5 - y, x - 0.5], -1)


CONDITIONS = {
    "dirichlet": [Dirichlet("left", wave)],
    "neumann": [Neumann("left", wave)],
    "ambient": [Robin("left", 2.0, wave)],
    "coefficient": [Robin("left", lambda x, t: 1 + 0 * x[:, 0] + math.sin(3 * t) ** 2, 0.7)],
    "flow": [], "stored flow": [], "stored flow and boundary": [Dirichlet("left", wave)],
}


def world(name: str, count: int = 3, begin: float = 0.0) -> tuple[Problem, Corpus]:
    """Trajectories of the classical solver itself: the untrained model is exact on every piece of them."""
    rng = np.random.default_rng(0)
    flow = gust if name == "flow" else None
    base = Problem(MESH, PDE(diffusion=0.03, velocity=flow, decay=0.1), CONDITIONS[name], DT)
    rows = None
    if name.startswith("stored"):
        rows = torch.from_numpy(0.3 * rng.normal(size=(count, STEPS + 1, MESH.n_nodes, 2)))
    blank = torch.from_numpy(rng.normal(size=(count, STEPS + 1, MESH.n_nodes, 1)))
    source = torch.from_numpy(rng.normal(size=(count, STEPS, MESH.n_nodes, 1)))
    data = Corpus(blank, source, rows, DT, (0.0,))
    if begin:
        data = replace(data, begin=torch.tensor([begin], dtype=torch.float64))
    with torch.no_grad():
        states = rollout(Classical(start=0), data.problem(base), blank[:, 0], source, STEPS,
                         t0=0.0 if name == "stored flow" else begin)
    return base, replace(data, state=states)


def exact_loss(name: str, stage: Stage, monkeypatch: pytest.MonkeyPatch, replayed: bool, begin: float = 0.0) -> float:
    base, data = world(name, begin=begin)
    model = DGNet(CONFIG, base).double()
    if replayed:
        def now(stepper, length, device, times=()):
            return replay.ready(stepper, times)
        monkeypatch.setattr(replay, "applies", now)
    optimiser = torch.optim.SGD(parameter_groups(model, Recipe("x", (stage,))), lr=0.0)
    return max(iterate(model, base, data, stage, optimiser, data.spread, 0, iteration, 0.0) for iteration in range(3))


@pytest.mark.parametrize("name", CONDITIONS)
def test_the_exact_model_has_no_loss_on_a_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(1, 4, batch=4, first=3, pushforward=2)
    assert exact_loss(name, stage, monkeypatch, False) < 1e-14
    if name not in ("dirichlet", "neumann", "ambient", "coefficient", "stored flow and boundary"):  # these are never replayed
        assert exact_loss(name, stage, monkeypatch, True) < 1e-14


def test_a_trajectory_that_begins_later_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exact_loss("dirichlet", Stage(1, 4, batch=4, first=3), monkeypatch, False, begin=0.35) < 1e-14
    for name in CONDITIONS:
        base, data = world(name, begin=0.35)
        assert evaluate_rne(Classical(start=0), base, data) < 1e-8
        assert evaluate_rne(Classical(start=0), base, data.windows(torch.tensor([2, 0, 1]), torch.tensor([2, 7, 2]), 4)) < 1e-7


@pytest.mark.parametrize("name", CONDITIONS)
def test_back_to_back_windows_of_a_calibration(name: str) -> None:
    base, data = world(name)
    model = DGNet(DGNetConfig(decoder="none", calibrate=("diffusion",), start=0), base).double()
    assert gauss_newton(model, base, data, Stage(1, 5, method="gauss-newton"), data.spread) < 1e-14


# ---------------------------------------------------------------------- what it is for


def swing(x: Tensor, t: float) -> Tensor:
    return 293 + 30 * math.sin(0.5 * math.pi * t) + 0 * x[:, 0]


def rising(x: Tensor, t: float) -> Tensor:
    return 293 + 10 * t + 0 * x[:, 0]


def plate(n: int, dt: float) -> Problem:
    return Problem(perturbed_square(n), PDE(diffusion=0.05), [Dirichlet("left", swing), Robin("right", 0.2, rising)], dt)


def test_short_windows_learn_a_boundary_value_in_time() -> None:
    """Truth: the same equation on a mesh refined twice, with a quarter of the step."""
    base, steps = plate(5, 0.1), 30
    fine = Problem(base.mesh.refined(2), base.pde, base.conditions, 0.025)
    x, y = torch.tensor(fine.mesh.points).T
    start = torch.stack([293 + 8 * a * torch.sin(math.pi * x) * torch.cos(b * y) for a, b in ((1, 1), (-1, 2), (1, 4), (-1, 3))])
    with torch.no_grad():
        truth = rollout(Classical(), fine, start[..., None], None, 4 * steps)[:, ::4, :base.mesh.n_nodes]
    data = Corpus(truth, None, None, 0.1, (293.0,))
    train, valid = data.part([0, 1, 2]), data.part([3])
    torch.manual_seed(0)
    model = DGNet(CONFIG, base).double()
    progress = fit(model, base, train, valid, Recipe("short", (Stage(80, 4, batch=8, lr=3e-3, first=1),)))
    print(f"validation error {progress.best:.5f}, classical {progress.classical:.5f}")
    assert progress.best < 0.7 * progress.classical


def found_reaction(flow: Callable[[float], Tensor] | tuple[float, float]) -> float:
    """Relative error of an identified reaction where there are data."""
    pde = PDE(diffusion=0.02, reaction=lambda u: u - u**3, velocity=flow)
    fine, base = (Problem(MESH, pde, [], dt) for dt in (DT / 4, DT))
    x, y = torch.tensor(MESH.points).T
    start = torch.stack([0.8 * torch.sin(a * x) * torch.cos(b * y) for a, b in ((3, 1), (2, 4), (5, 2))])[..., None]
    with torch.no_grad():
        states = rollout(Classical(), fine, start, None, 160)[:, ::4]
    data = Corpus(states, None, None, DT, (0.0,))
    model = DGNet(DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=32), base).double()
    model.fit_statistics(data.state, None, DT)
    identify(model, base, data)
    u = torch.linspace(float(states.min()), float(states.max()), 50, dtype=torch.float64)[:, None]
    with torch.no_grad():
        return float((model.learned_reaction()(u) - (u - u**3)).norm() / (u - u**3).norm())


def test_an_unknown_reaction_in_a_flow_that_changes() -> None:
    steady, changing = found_reaction((0.3, 0.1)), found_reaction(gust)
    print(f"reaction off by {steady:.4f} in a steady flow, {changing:.4f} in v(x, t)")
    assert steady < 0.03 and changing < 0.03
