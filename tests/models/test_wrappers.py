"""Models around models: nothing of the wrapped one is dropped on the way, and no shortcut survives another step."""

from __future__ import annotations

import pytest
import torch

from dgnet.mesh import box
from dgnet.models import Adaptive, Classical, Model, Refined, rollout
from dgnet.models.base import Stepper, WrappedStepper, Wrapper
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Problem

Tensor = torch.Tensor
PROBLEM = Problem(box((3, 3)), PDE(diffusion=1.0), [], 0.1)
START = torch.rand(1, PROBLEM.mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


@pytest.mark.parametrize("base, wrapper, own", [(Model, Wrapper, {"name", "prepare", "again"}), (Stepper, WrappedStepper, set())])
def test_a_wrapper_hands_on_every_name(base: type, wrapper: type, own: set[str]) -> None:
    assert public(base) - own <= public(wrapper)


class Still(WrappedStepper):
    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return u


class Same(WrappedStepper):
    pass


class Around(Wrapper[WrappedStepper]):
    name, model = "around", Classical()

    def __init__(self, kind: type[WrappedStepper]) -> None:
        self.kind = kind

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> WrappedStepper:
        return self.kind(self.model.prepare(problem, batch, steps, careful))


def test_a_step_of_one_s_own_is_the_one_that_is_taken() -> None:
    """The shortcuts for equal linear steps and for recordings are about the wrapped step."""
    still, same = (Around(kind).prepare(PROBLEM) for kind in (Still, Same))
    assert torch.equal(rollout(Around(Still), PROBLEM, START, None, 4)[:, -1], START)
    assert still.linear() is None and still.green is None and still.severed() is None and not still.repeats()
    assert same.linear() is not None and same.green is not None and same.repeats() == same.inner.repeats()
    assert torch.equal(rollout(Around(Same), PROBLEM, START, None, 4), rollout(Classical(), PROBLEM, START, None, 4))


def test_a_model_with_a_step_is_refused() -> None:
    with pytest.raises(TypeError, match="steps belong to the `Stepper`"):
        class Old(Classical):
            def step(self, state: Stepper, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
                return u


def test_what_a_wrapped_model_says_is_about_the_problem_that_it_solves() -> None:
    model, finer = Refined(Universal()), Refined(Universal()).finer(PROBLEM)
    points, brought, own = model.points(PROBLEM), model.brought(PROBLEM), Universal().brought(finer)
    assert brought is not None and own is not None and len(points) == len(brought)
    assert torch.allclose(torch.tensor(brought), torch.tensor(own))
    assert Adaptive(Classical(start=2), 1e-3).first_steps == Refined(Classical(start=2)).first_steps == 2
    with torch.no_grad():
        stepper = Refined(Classical(degree=2)).prepare(PROBLEM)
        assert torch.equal(stepper.read(stepper.begin(START)), START)
