"""Rows of the classical solvers do not depend on how a step is solved: direct (what a CPU takes) or iterated (what a GPU takes).

A table shows three digits of an error, so the two must differ by less than 1% of it. The error itself needs a reference solution;
half the distance between the two classical solvers, which both are off, stands for it here.
"""

from __future__ import annotations

import pytest
import torch

from dgnet.models import Classical, rollout
from dgnet.problems import CONSISTENT, LUMPED
from dgnet.problems.sources import step_average
from dgnet.scenarios import get, names
from dgnet.scenarios.scenario import Scenario

STEPS = 20
Tensor = torch.Tensor


def flow(scenario: Scenario) -> Tensor:
    """A smooth flow [1, STEPS + 1, N, d] that pulses along the first axis; no solution of anything."""
    x = torch.tensor(scenario.mesh.points)
    s = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
    t = torch.arange(STEPS + 1, dtype=torch.float64)[:, None]
    v = torch.zeros(STEPS + 1, *x.shape, dtype=torch.float64)
    v[..., 0] = 4 * s[:, 1] * (1 - s[:, 1]) * (1 + 0.2 * torch.sin(0.7 * t))
    return v[None].float()


@pytest.mark.parametrize("name", names())
def test_direct_and_iterated_steps_give_the_same_rows(name: str) -> None:
    scenario = get(name, "small")
    sample = scenario.sample([draw for draw in scenario.draws() if draw.split == "test"][:1])
    x = torch.tensor(scenario.mesh.points)
    start = (sample.initial(x) if callable(sample.initial) else sample.initial).float()
    if not start.any():  # a channel is empty until something is injected: put a cloud into it
        s = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
        start = start + torch.exp(-((s - 0.4) ** 2).sum(-1) / 0.02).float()[None, :, None]
    source = None
    if sample.source is not None:
        source = step_average(sample.source, x, scenario.times[:STEPS], scenario.dt, scenario.panels).float()
    problem = scenario.problem(None if scenario.flow is None else flow(scenario), dtype=torch.float32)
    with torch.no_grad():
        found = {(mass, backend): rollout(Classical(mass, backend), problem, start, source, STEPS).double()
                 for mass in (CONSISTENT, LUMPED) for backend in ("lu", "iterative")}
    error = 0.5 * (found[CONSISTENT, "lu"] - found[LUMPED, "lu"]).norm()
    for mass in (CONSISTENT, LUMPED):
        assert float((found[mass, "iterative"] - found[mass, "lu"]).norm()) < 0.01 * float(error), mass
