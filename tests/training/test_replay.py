"""A long window replayed step by step has the gradient of the plain loop."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.mesh import perturbed_square
from dgnet.models.base import Stepper
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.registry import all_models, build
from dgnet.problems import PDE, Dirichlet, Problem, Robin
from dgnet.recipe import Recipe, Stage
from dgnet.training import replay
from dgnet.training.update import iterate, parameter_groups
from dgnet_paper.model import BOUNDED, PAPER

BASELINES = [name for name in all_models() if name not in ("dgnet", "classical", "classical-p2", "universal", "universal-tuned")]
STRUCTURED = DGNetConfig(hidden=8, layers=1, free=True, learn_start=True)
PLAIN = replace(PAPER, hidden=8, layers=1, residual_hidden=8, residual_layers=1)
CASES = {
    "structured": (STRUCTURED, PDE(diffusion=0.05, reaction=lambda u: u - u**3), [Robin("right", 0.5, 0.2)]),
    "early": (replace(STRUCTURED, early_steps=3), PDE(diffusion=0.05, reaction=lambda u: u - u**3), [Robin("right", 0.5, 0.2)]),
    "early, from the start": (replace(STRUCTURED, early_steps=5), PDE(diffusion=0.05), []),
    "calibrated": (replace(STRUCTURED, calibrate=("diffusion", "convection")), PDE(diffusion=0.05), [Robin("right", 0.5, 0.2)]),
    "dirichlet": (replace(STRUCTURED, learn_start=False), PDE(diffusion=0.05), [Dirichlet("left", 0.3)]),
    "learned reaction": (replace(STRUCTURED, reaction="learned", reaction_hidden=8), PDE(diffusion=0.05), []),
    "flow": (replace(STRUCTURED, learn_streamline=True, learn_swirl=True), PDE(diffusion=0.05, reaction=lambda u: u - u**3),
             [Dirichlet("left", 0.0)]),
    "residual": (replace(BOUNDED, hidden=8, layers=1, residual_hidden=8, residual_layers=1),
                 PDE(diffusion=0.05, velocity=(0.3, 0.1)), []),
    "paper": (PLAIN, PDE(diffusion=0.05, decay=0.1, reaction=lambda u: u - u**3), [Robin("right", 0.5, 0.2)]),
    "paper in a flow": (PLAIN, PDE(diffusion=0.05), [Dirichlet("left", 0.0)]),
}


def setting(name: str) -> tuple[DGNet, Problem, Corpus, Stage]:
    config, pde, conditions = CASES[name]
    base = Problem(perturbed_square(6), pde, conditions, 0.05, dtype=torch.float64)
    torch.manual_seed(0)
    model = DGNet(config, base).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    rng = np.random.default_rng(0)
    state = torch.from_numpy(rng.normal(size=(2, 13, base.mesh.n_nodes, 1)))
    source = torch.from_numpy(rng.normal(size=(2, 12, base.mesh.n_nodes, 1)))
    stage = Stage(1, 8, batch=3, from_start=0.5, skip=2, pushforward=2)
    flow = torch.from_numpy(0.3 * rng.normal(size=(2, 13, base.mesh.n_nodes, 2))) if name.endswith("flow") else None
    return model, base, Corpus(state, source, flow, 0.05, (0.0,)), stage


def ready(stepper: Stepper, times: list[float]) -> bool:
    assert not times or replay.ready(stepper, times)
    return True


@pytest.mark.parametrize("name", CASES)
def test_same_loss_and_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, base, data, stage = setting(name)
    found = []
    for replayed in (False, True):
        m = copy.deepcopy(model)
        monkeypatch.setattr(replay, "applies", lambda s, length, device, times, now=replayed: now and ready(s, times))
        optimiser = torch.optim.SGD(parameter_groups(m, Recipe("x", (stage,))), lr=0.0)
        loss = iterate(m, base, data, stage, optimiser, data.spread, 0, 3, 0.0)
        found.append((loss, {n: p.grad for n, p in m.named_parameters()}))
    (loss, plain), (loss_again, again) = found
    assert loss_again == pytest.approx(loss, rel=1e-10)
    assert any(g is not None and bool((g != 0).any()) for g in plain.values())
    for key, g in plain.items():
        if g is None:
            assert again[key] is None or not again[key].any()
        else:
            torch.testing.assert_close(again[key], g, rtol=1e-7, atol=1e-12 + 1e-9 * float(g.abs().max()))


def test_a_flow_that_is_not_held_is_not_replayed() -> None:
    mesh = perturbed_square(4)

    def flow(t: float) -> torch.Tensor:
        return torch.full((mesh.n_nodes, 2), t, dtype=torch.float64)

    base = Problem(mesh, PDE(diffusion=0.05, velocity=flow), [], 0.05)
    model = DGNet(DGNetConfig(hidden=8, layers=1), base).double()
    assert model.prepare(base, 1, 4).severed() is None


def test_short_windows_and_processors_take_the_plain_loop() -> None:
    model, base, _, _ = setting("structured")
    assert not replay.applies(model.prepare(base, 2, 8), 100, torch.device("cpu"))


@pytest.mark.parametrize("moving", [False, True], ids=["still", "flow"])
@pytest.mark.parametrize("name", BASELINES)
def test_baselines_replay(name: str, moving: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a baseline allows it; what it prepares from its weights is differentiated once."""
    base = Problem(perturbed_square(5), PDE(diffusion=0.02), [Robin("right", 0.5, 0.2)], 0.05, dtype=torch.float64)
    rng = np.random.default_rng(0)
    shape = (2, 6, base.mesh.n_nodes, 1)
    flow = torch.from_numpy(0.3 * rng.normal(size=(*shape[:3], 2))) if moving else None
    data = Corpus(torch.from_numpy(rng.normal(size=shape)), torch.from_numpy(rng.normal(size=shape))[:, 1:], flow, 0.05, (0.0,))
    base = data.problem(base)
    torch.manual_seed(0)
    model = build(name, None, base)
    if not isinstance(model, torch.nn.Module) or model.prepare(base).severed() is None:
        pytest.skip(f"{name} is not replayed")
    model.fit_statistics(data.state, data.source_average, 0.05, data.velocity)
    stage = Stage(1, 4, batch=2)
    found = []
    for replayed in (False, True):
        m = copy.deepcopy(model)
        monkeypatch.setattr(replay, "applies", lambda s, length, device, times, now=replayed: now and ready(s, times))
        optimiser = torch.optim.SGD(parameter_groups(m, Recipe("x", (stage,))), lr=0.0)
        iterate(m, base, data, stage, optimiser, data.spread, 0, 3, 0.0)
        found.append({n: p.grad for n, p in m.named_parameters() if p.grad is not None})
    assert found[0].keys() <= found[1].keys() and found[0]
    size = max(float(g.abs().max()) for g in found[0].values())
    for key, g in found[0].items():
        torch.testing.assert_close(found[1][key], g, rtol=1e-6, atol=1e-9 * size)
