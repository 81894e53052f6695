"""The loop of all rollouts: where steps of one kind hand over to another."""

from __future__ import annotations

import pytest
import torch

from dgnet.errors import InputError, SolveError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, Dirichlet, Neumann, Problem

Tensor = torch.Tensor


def test_dirichlet_values_in_a_single_step() -> None:
    """The first step takes them over, and nothing is left for the others."""
    conditions = [Dirichlet("left", 1.0), Neumann("right", lambda x, t: x[:, 1] + t)]
    p = Problem(box((3, 3)), PDE(diffusion=0.1), conditions, dt=0.1)
    u = torch.zeros(1, p.n, 1, dtype=torch.float64, requires_grad=True)
    states = rollout(Classical(), p, u, steps=1)
    assert states.shape[1] == 2 and states.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(rollout(Classical(), p, u, steps=1), states.detach())


@pytest.mark.parametrize("condition", [Dirichlet("left", 1e39), Neumann("left", -1e300)])
def test_what_single_precision_cannot_hold_is_no_result(condition: Dirichlet | Neumann) -> None:
    """Steps in double precision went on with numbers that the states, in single, could not hold: infinity was returned."""
    p = Problem(box((3, 3)), PDE(diffusion=0.1), [condition], dt=0.1)
    for grad in (False, True):
        with pytest.raises(SolveError, match="too large at step 1"):
            rollout(Classical(), p, torch.zeros(1, p.n, 1, requires_grad=grad), steps=3)


def test_a_rollout_that_no_memory_holds_is_refused() -> None:
    p = Problem(box((3, 3)), PDE(diffusion=0.1), [], dt=0.1)
    with pytest.raises(InputError, match="more than there is"):
        rollout(Classical(), p, torch.zeros(1, p.n, 1), steps=2**50)


def test_sinks_and_progress_see_every_step() -> None:
    p = Problem(box((3, 3)), PDE(diffusion=0.1), [Dirichlet("left", 1.0)], dt=0.1)
    u = torch.zeros(1, p.n, 1, dtype=torch.float64)
    for start in (u, u.clone().requires_grad_()):
        whole = rollout(Classical(), p, start, steps=5)
        seen, steps = {}, []
        last = rollout(Classical(), p, start, steps=5, sink=seen.__setitem__, progress=steps.append)
        assert list(seen) == steps == [1, 2, 3, 4, 5]
        torch.testing.assert_close(torch.stack([start, *seen.values()], 1), whole)
        torch.testing.assert_close(last, whole[:, -1:])


def test_a_start_comes_before_the_equal_steps() -> None:
    p = Problem(box((4, 4)), PDE(diffusion=0.1), [], dt=0.5)
    u = torch.rand(1, p.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = Classical(start=2, backend="lu")
    with torch.no_grad():
        state, one = model.prepare(p), [u]
        for k in range(6):
            one.append(state.step(one[-1], None, k * p.dt, k))
        torch.testing.assert_close(rollout(model, p, u, steps=6), torch.stack(one, 1), rtol=0, atol=1e-13)
    torch.testing.assert_close(rollout(model, p, u.requires_grad_(), steps=6).detach(), torch.stack(one, 1), rtol=0, atol=1e-13)
