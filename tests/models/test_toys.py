"""A learned part and a baseline from outside the package, each in at most 30 lines, trained by the ordinary training."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from dgnet.data import Corpus
from dgnet.mesh import perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.base import LearnedModel
from dgnet.models.dgnet import Build, DGNet, DGNetConfig, Part
from dgnet.problems import PDE, Problem
from dgnet.recipe import Recipe, Stage
from dgnet.training import fit
from dgnet_paper.baselines.adapter import Baseline, Inputs, Prepared, mlp

Tensor = torch.Tensor


class MoreDiffusion(Part):
    """Up to as much diffusion again as the equation has. Guarantee: symmetric, positive semidefinite, zero row sums."""

    def __init__(self) -> None:
        super().__init__()
        self.more_diffusion = nn.Parameter(torch.zeros(()))

    def contribute(self, build: Build) -> None:
        build.still_terms.append(build.problem.diffusion_part * torch.tanh(self.more_diffusion.double()).clamp(min=0.0))


class Pointwise(Baseline):
    """A network that sees one node at a time."""

    name = "pointwise"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.net = mlp([self.channels, 16, self.fields])

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        return self.net(z.all)


def world() -> tuple[Problem, Corpus]:
    """A problem whose diffusivity is believed to be two thirds of what made the data."""
    mesh, dt = perturbed_square(6), 0.05
    true, believed = (Problem(mesh, PDE(diffusion=D), (), dt) for D in (0.15, 0.1))
    u0 = torch.randn(4, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return believed, Corpus(rollout(Classical(), true, u0, None, 6), None, None, dt, (0.0,))


def plain(problem: Problem, *extra: Part) -> DGNet:
    return DGNet(DGNetConfig(decoder="none", network=False), problem, extra)


@pytest.mark.parametrize("kind", [MoreDiffusion, Pointwise])
def test_a_toy_is_trained_like_any_other(kind: type) -> None:
    problem, data = world()
    torch.manual_seed(0)
    model: LearnedModel = Pointwise(problem).double() if kind is Pointwise else plain(problem, MoreDiffusion()).double()
    assert len(inspect.getsource(kind).splitlines()) <= 30
    progress = fit(model, problem, data, data, Recipe("toy", (Stage(30, 3, batch=4, lr=0.05),)))
    assert progress.best < 0.9 * progress.history[0]["validation"]
    if isinstance(model, DGNet):
        found = float(torch.tanh(model.get_parameter("more_diffusion").detach()))
        assert found == pytest.approx(0.5, abs=0.1) and next(iter(model.state_dict())) == "more_diffusion"


def test_a_toy_part_changes_nothing_at_birth() -> None:
    problem, data = world()
    with torch.no_grad():
        a, b = (rollout(m.double(), problem, data.state[:, 0], None, 4) for m in (plain(problem), plain(problem, MoreDiffusion())))
    assert torch.equal(a, b)
