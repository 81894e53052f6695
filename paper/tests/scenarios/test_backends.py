"""Rows of the classical solvers do not depend on how a step is solved: direct (what a CPU takes) or iterated (what a GPU takes).

A table shows three digits of an error, so the two must differ by less than 1% of it. The error itself needs a reference solution;
half the distance between the two classical solvers, which both are off, stands for it here.
"""

from __future__ import annotations

import pytest
import torch

from dgnet.models import Classical, rollout
from dgnet.problems import CONSISTENT, LUMPED
from dgnet_paper.scenarios import get, names
from tests.golden.record import first_steps

STEPS = 20


@pytest.mark.parametrize("name", names())
def test_direct_and_iterated_steps_give_the_same_rows(name: str) -> None:
    problem, start, source = first_steps(get(name, "small"), STEPS)
    with torch.no_grad():
        found = {(mass, backend): rollout(Classical(mass, backend), problem, start, source, STEPS).double()
                 for mass in (CONSISTENT, LUMPED) for backend in ("lu", "iterative")}
    error = 0.5 * (found[CONSISTENT, "lu"] - found[LUMPED, "lu"]).norm()
    for mass in (CONSISTENT, LUMPED):
        assert float((found[mass, "iterative"] - found[mass, "lu"]).norm()) < 0.01 * float(error), mass
