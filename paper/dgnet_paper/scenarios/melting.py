"""The plate of phase-transition with its material as it is: capacity and conductivity are curves of the temperature.

The trajectories are those of phase-transition, whose models have the constants of the solid: the failure mode of the paper. Here
they are told both curves; or, with curves unknown, they find them in the data.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from dgnet.problems.curves import Curve
from dgnet.problems.pde import PDE
from dgnet_paper.scenarios import phase_transition
from dgnet_paper.scenarios.phase_transition import CRITICAL, WIDTH
from dgnet_paper.scenarios.scenario import Draw, Parameter, Sample, Scenario


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """The lasers of phase-transition, one by one the same."""
    return phase_transition.sample(scenario, [(draw, draw.rng("phase-transition")) for draw, _ in draws])


def curve(function: Callable[[torch.Tensor], torch.Tensor], name: str) -> Curve:
    """A table of the material, dense where it melts; it goes on as it is at its ends."""
    near = CRITICAL + WIDTH * torch.linspace(-3, 3, 61, dtype=torch.float64)
    at = torch.cat([near[:1] - 20 * WIDTH, near, near[-1:] + 20 * WIDTH])
    return Curve(at, function(at), extends=True, name=name)


def scenario(size: str) -> Scenario:
    linear = phase_transition.scenario(size)
    melts = linear.phase_change
    assert melts is not None
    told = Parameter("what models are given", "the curves c_eff(T) and k(T); with curves unknown, nothing of them", "ours")
    return replace(
        linear, name="melting", title="Melting plate, curves of the material known or unknown", sampler=sample,
        pde=PDE(("T",), diffusion=curve(melts.conductivity, "conductivity"), capacity=curve(melts.capacity, "capacity")),
        parameters=(*linear.parameters[:-1], Parameter("trajectories", "those of phase-transition", "ours"), told))
