"""Updates as one function, recorded where there is a GPU: the same gradients as piece by piece; trainings in pieces, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, messages, rollout
from dgnet.models.dgnet import DGNet
from dgnet.models.gnn import MeshGraph, _Gather
from dgnet.operators import Geometry
from dgnet.problems import PDE, Dirichlet, Problem
from dgnet.recipe import Recipe, Stage
from dgnet.training import update
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import fit
from dgnet.training.recorded import RecordedUpdate
from dgnet_paper.model import LETTER, PAPER, PaperConfig

SMALL = replace(PAPER, hidden=8, layers=1, residual_hidden=8, residual_layers=1)
STAGE = Stage(9, 4, 3, 1e-3, loss="ends", cut=True, unit="own", step_noise=0.2, from_start=0.3)


def problem() -> Problem:
    pde = PDE(diffusion=0.02, velocity=(0.3, 0.1), reaction=lambda u: u - u**3)
    return Problem(box((5, 5), perturb=0.2), pde, [Dirichlet("left", 0.0)], 0.05, dtype=torch.float32)


def data(p: Problem) -> Corpus:
    start = torch.rand(3, p.mesh.n_nodes, 1, generator=torch.Generator().manual_seed(1)) - 0.5
    with torch.no_grad():
        return Corpus(rollout(Classical(), p, start, steps=12), None, None, p.dt, (0.0,))


def model(p: Problem, rows: Corpus, config: PaperConfig = SMALL, size: float = 0.05) -> DGNet:
    torch.manual_seed(0)
    found = DGNet(config, p)
    found.fit_statistics(rows.state, None, rows.dt)
    with torch.no_grad():
        for w in found.parameters():
            w.add_(size * torch.randn_like(w))
    return found


@pytest.mark.parametrize("config", [SMALL, replace(LETTER, hidden=8, layers=1, residual_hidden=8, residual_layers=1, norm=True)])
@pytest.mark.parametrize("stage", [STAGE, replace(STAGE, cut=False), replace(STAGE, unit="change", step_noise=0.0),
                                   replace(STAGE, length=1)])
def test_the_recorded_update_is_the_one_that_is_launched(config: PaperConfig, stage: Stage) -> None:
    p = problem()
    rows = data(p)
    m = model(p, rows, config)
    windows = update.draw(m, p, rows, stage, 0, 5)
    _, loss = update._descended(m, p, rows, windows, stage, rows.spread)
    launched = torch.cat([w.grad.flatten() for w in m.parameters() if w.grad is not None])
    recorded = RecordedUpdate.of(m, p, rows, stage, rows.spread, 1e9, device="cpu")
    assert recorded is not None
    value, norm = recorded(windows)
    found = torch.cat([w.grad.flatten() for w in m.parameters() if w.grad is not None])
    assert value == pytest.approx(float(loss.detach()), rel=1e-4) and norm == pytest.approx(float(launched.norm()), rel=1e-3)
    assert float((found - launched).norm()) < 1e-3 * float(launched.norm())


def test_clipped_gradients_have_the_norm_of_the_limit() -> None:
    p = problem()
    rows = data(p)
    m = model(p, rows)
    recorded = RecordedUpdate.of(m, p, rows, STAGE, rows.spread, 1e-3, device="cpu")
    assert recorded is not None and recorded(update.draw(m, p, rows, STAGE, 0, 0))[1] > 1e-3
    assert float(torch.stack([w.grad.norm() for w in m.parameters() if w.grad is not None]).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_only_what_can_be_recorded_is() -> None:
    p = problem()
    rows = data(p)
    m = model(p, rows)
    for stage in (replace(STAGE, loss="all", cut=False), replace(STAGE, only=("residual_net",)), replace(STAGE, noise=0.1)):
        assert RecordedUpdate.of(m, p, rows, stage, rows.spread, 1.0, device="cpu") is None
    assert RecordedUpdate.of(m, p, rows, STAGE, rows.spread, 1.0) is None  # there is no GPU
    with pytest.raises(InputError, match="cut"):
        replace(STAGE, loss="all")


def test_gradients_that_are_cut_are_those_of_one_step() -> None:
    """The first and the last step, each from a state that carries no gradient."""
    p = problem()
    rows = data(p)
    m = model(p, rows)
    stage = replace(STAGE, step_noise=0.0)
    windows = update.draw(m, p, rows, stage, 0, 2)
    part = rows.windows(torch.as_tensor(windows.rows), torch.as_tensor(windows.starts), 4)
    state = m.prepare(p, 3, 4)
    u = part.state[:, 0]
    with torch.no_grad():
        for k in range(3):
            u = state.step(u, None, 0.0, k)
    unit = (part.state[:, 1] - part.state[:, 0]).square().mean(1, keepdim=True).sqrt()
    wanted = sum((((state.step(x, None, 0.0, 0) - true) / unit).square().mean() for x, true in
                  ((part.state[:, 0], part.state[:, 1]), (u, part.state[:, 4]))), start=torch.zeros(())) / 2
    g = torch.autograd.grad(wanted, list(m.parameters()))
    update._descended(m, p, rows, windows, stage, rows.spread)
    for w, own in zip(m.parameters(), g):
        assert w.grad is not None and torch.allclose(w.grad, own, rtol=1e-3, atol=1e-6 * float(own.abs().max()) + 1e-9)


def test_a_training_in_pieces_is_one_training_to_the_bit(tmp_path: Path) -> None:
    """The rate decays by updates, and a budget ends a piece anywhere."""
    p = problem()
    rows = data(p)
    plan = Recipe("paper", (replace(STAGE, decay="step", decay_every=3),), by_updates=True, eps=1e-16, hold_out=0)
    whole = model(p, rows, size=0.0)
    fit(whole, p, rows, rows, plan)

    class Enough(Exception):
        pass

    def until(stop: int) -> Callable[[Progress, int], None]:
        def report(progress: Progress, count: int) -> None:
            if progress.updates == stop:
                raise Enough
        return report

    for stop in (2, 5):  # what a validation after each update has written is where the next piece goes on
        with pytest.raises(Enough):
            fit(model(p, rows, size=0.0), p, rows, rows, plan, folder=tmp_path, report=until(stop))
    m = model(p, rows, size=0.0)
    fit(m, p, rows, rows, plan, folder=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), m.state_dict().values()))


def test_a_budget_does_not_change_the_rates() -> None:
    p = problem()
    rows = data(p)
    plan = Recipe("paper", (replace(STAGE, iterations=100_000),), by_updates=True, hold_out=0)
    progress = fit(model(p, rows), p, rows, rows, plan, budget=1.0)
    assert 0 < progress.updates < 100_000 and progress.updates == progress.iteration  # the clock did not move the place on


@pytest.mark.skipif(not (messages.AVAILABLE and torch.cuda.is_available()), reason="needs a GPU")
def test_fused_messages_are_the_sums_that_are_launched() -> None:
    edges = MeshGraph.of(Geometry.of(problem().mesh, "cuda", torch.float32), plain=True).incoming
    found = []
    for fused in (True, False):
        torch.manual_seed(0)
        a, b, c = (torch.randn(*shape, 64, device="cuda").requires_grad_() for shape in ((36, 9), (36, 9), (len(edges.to),)))
        assert messages.applies(a, b, c)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(messages, "AVAILABLE", fused)
            total = _Gather.apply(a, b, c, edges)
            total.square().sum().backward()
        found.append([total.detach(), a.grad, b.grad, c.grad])
    for x, y in zip(*found):
        assert torch.allclose(x, y, rtol=1e-4, atol=1e-4)
