"""Rollouts that keep their states alone and make every step again on the way back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.base import WrappedStepper, Wrapper
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Dirichlet, Problem

Tensor = torch.Tensor
MESH = box((4, 3))
POINTS = torch.tensor(MESH.points)


def cubic(rate: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda u: rate * u * (1 - u) * (u - 0.3)


CASES: dict[str, dict[str, Any]] = {
    "reaction": dict(reaction=True),
    "no L-stable start": dict(reaction=True, model=lambda p: Classical(start=0)),
    "reaction too fast in the end": dict(reaction=True, speed=60.0, drive=60.0),
    "flow that changes": dict(velocity=lambda t: math.cos(9 * t) * POINTS.flip(1)),
    "quadratic": dict(model=lambda p: Classical(degree=2)),
    "universal": dict(model=lambda p: Universal(), rtol=1e-6),  # its network is in single precision
    "universal quadratic": dict(model=lambda p: Universal(degree=2), rtol=1e-6),
    "DGNet": dict(reaction=True, model=lambda p: DGNet(DGNetConfig(hidden=4, layers=1), p).double()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpointed_rollout_has_the_same_states_and_gradients(name: str) -> None:
    case = CASES[name]
    steps, found = 7, []
    for checkpoint in (False, True):
        torch.manual_seed(0)
        diffusion = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        rate = torch.tensor(case.get("speed", 2.0), dtype=torch.float64, requires_grad=True)
        pde = PDE(diffusion=diffusion, velocity=case.get("velocity"), reaction=cubic(2 * rate) if case.get("reaction") else None)
        p = Problem(MESH, pde, [Dirichlet("left", 1.0)], dt=0.01)
        u = torch.rand(2, 20, 1, dtype=torch.float64).requires_grad_()
        growing = torch.linspace(0, case.get("drive", 1.0), steps, dtype=torch.float64)[:, None, None]
        f = (growing * torch.rand(2, steps, 20, 1, dtype=torch.float64)).requires_grad_()
        model = case.get("model", lambda p: Classical())(p)
        states = rollout(model, p, u, f, checkpoint=checkpoint)
        loss = (states * torch.linspace(0, 1, states.numel(), dtype=torch.float64).view(states.shape)).sum()
        weights = [w for w in model.parameters() if w.requires_grad] if isinstance(model, DGNet) else []
        found.append([states.detach(), *torch.autograd.grad(loss, [u, f, diffusion, rate, *weights], allow_unused=True)])
    assert found[0][1] is not None and found[0][3] is not None
    for one, other in zip(*found):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=case.get("rtol", 1e-8), atol=1e-10 * float(other.abs().max()) + 1e-14)


class Noisy(WrappedStepper):
    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return self.inner.step(u, source, t, k) + 1e-3 * torch.rand_like(u)


class Late(WrappedStepper):
    offset = torch.zeros(1, dtype=torch.float64, requires_grad=True)

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        new = self.inner.step(u, source, t, k)
        return new if k < 2 else new + self.offset


class Changed(Wrapper[WrappedStepper]):
    """The classical solver with another stepper around its own."""

    name, model = "changed", Classical(start=0)

    def __init__(self, kind: type[WrappedStepper]) -> None:
        self.kind = kind

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> WrappedStepper:
        return self.kind(self.model.prepare(problem, batch, steps, careful))


@pytest.mark.parametrize("model, words", [(Changed(Noisy), "other values"), (Changed(Late), "depends on a tensor")])
def test_a_step_that_cannot_be_made_again_is_an_error_and_not_a_wrong_gradient(model: Changed, words: str) -> None:
    p = Problem(box((3, 3)), PDE(diffusion=0.1), [], dt=0.01)
    u = torch.rand(1, 16, 1, dtype=torch.float64).requires_grad_()
    with pytest.raises(InputError, match=words):
        rollout(model, p, u, steps=4, checkpoint=True).sum().backward()


def test_a_checkpointed_rollout_keeps_no_graph() -> None:
    p = Problem(box((3, 3)), PDE(diffusion=0.1, reaction=cubic(torch.ones(1, dtype=torch.float64))), [], dt=0.01)
    u, kept = torch.rand(1, 16, 1, dtype=torch.float64).requires_grad_(), {}

    def pack(x: Tensor) -> Tensor:
        kept[x.data_ptr()] = x.numel()
        return x

    sizes = []
    for steps in (5, 50):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            rollout(Classical(), p, u, steps=steps, checkpoint=True)
        sizes.append(sum(kept.values()))
    assert 45 * 16 <= sizes[1] - sizes[0] < 2 * 45 * 16  # a state for each step; with its graph it were twenty
