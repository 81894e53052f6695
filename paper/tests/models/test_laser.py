"""The classical solver on the laser problem of the paper (6,072 nodes, steps of 0.5 s) against a converged truth.

The first six steps of one test trajectory. Errors in kelvin are relative to about 298 K, so they are small as long as the plate
is cold; what must hold at every length is the error relative to the rise of temperature, which is asserted beside it.
"""

from dataclasses import dataclass

import pytest
import torch

from dgnet.models import Classical, rollout
from dgnet.problems import CONSISTENT, LUMPED, step_average
from dgnet.scoring.metrics import rne
from dgnet_paper.reference.transport import solve
from dgnet_paper.scenarios import Draw, Scenario, get

STEPS = 6
Tensor = torch.Tensor


@dataclass(frozen=True)
class Case:
    scenario: Scenario
    initial: Tensor
    truth: Tensor  # [1, T+1, N, 1], mesh refined twice, two substeps of third order
    rougher: Tensor  # the same on the mesh refined once
    average: Tensor  # [1, T, N, 1]
    at_ends: Tensor

    def error(self, share: float, source: Tensor) -> tuple[float, float]:
        """RNE in kelvin and of the rise of temperature."""
        with torch.no_grad():
            states = rollout(Classical(share), self.scenario.problem(), self.initial, source)
        return rne(states, self.truth), rne(states, self.truth, self.scenario.offsets)


@pytest.fixture(scope="module")
def case() -> Case:
    scenario = get("laser-heat", "paper")
    assert scenario.mesh.n_nodes == 6072 and scenario.dt == 0.5
    drawn = scenario.sample([Draw("test", 0)])
    assert drawn.source is not None and isinstance(drawn.initial, Tensor)

    def truth(refine: int) -> Tensor:
        return solve(scenario.mesh, scenario.pde, scenario.conditions, drawn.initial, dt=scenario.dt, steps=STEPS, refine=refine,
                     substeps=2, source=drawn.source, panels=scenario.panels // 2)

    x, start = torch.tensor(scenario.mesh.points), scenario.times[:STEPS]
    return Case(scenario, drawn.initial, truth(2), truth(1), step_average(drawn.source, x, start, scenario.dt, scenario.panels),
                drawn.source(x, start + scenario.dt))


def test_truth_is_closer_to_itself_than_the_solver_to_it(case: Case) -> None:
    """Second order: what is left of the error of the truth is a third of the distance between its last two levels."""
    left = rne(case.rougher, case.truth) / 3
    solver, _ = case.error(CONSISTENT, case.average)
    print(f"\nerror left in the truth about {left:.1e}, classical (consistent) {solver:.2e}")
    assert left < 0.1 * solver


def test_step_averaged_source_makes_the_classical_solver_accurate(case: Case) -> None:
    figures = {(name, source): case.error(share, values)
               for name, share in (("lumped", LUMPED), ("consistent", CONSISTENT))
               for source, values in (("average", case.average), ("step ends", case.at_ends))}
    print()
    for (name, source), (kelvin, rise) in figures.items():
        print(f"{name:10s} mass, source {source:9s}: RNE {kelvin:.2e} in kelvin, {rise:.2e} of the rise")
    for name in ("lumped", "consistent"):
        kelvin, rise = figures[name, "average"]
        assert kelvin <= 7e-4 and rise <= 5e-3
        assert figures[name, "step ends"][0] >= 5 * kelvin
    assert figures["consistent", "average"] < figures["lumped", "average"]
