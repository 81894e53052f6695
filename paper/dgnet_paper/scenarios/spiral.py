"""Spiral waves of an excitable medium (Barkley's model), begun by two crossed half planes. Ours, not the paper's.

The paper's FitzHugh-Nagumo parameters are not excitable: its perturbations die out. Here a wave with a free end curls up around it,
and the spiral turns for good: its tip is a point around which the phase of (u, v) winds once (`dgnet_paper.scenarios.waves.tips`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import pi

import numpy as np
import torch
from torch import Tensor

from dgnet.mesh import box
from dgnet.problems.pde import PDE
from dgnet.recipe import PaperSettings, Stage
from dgnet.training.plan import OPERATOR, Plan, staged
from dgnet_paper.scenarios.scenario import Draw, Parameter, Sample, Scenario, Truth, stack

A, B = 0.75, 0.01
CENTRE = (0.5, A / 2 - B)
"""(u, v) about which an excitation turns: the unstable state between rest and excitation."""


def kinetics(epsilon: float) -> Callable[[Tensor], Tensor]:
    def reaction(w: Tensor) -> Tensor:
        u, v = w[..., 0], w[..., 1]
        return torch.stack([u * (1 - u) * (u - (v + B) / A) / epsilon, u - v], dim=-1)

    return reaction


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """u excited on one side of a line, v raised on one side of another at right angles: the front that is left has a free end."""
    size, rim = float(scenario.mesh.points.max()), 0.5 if scenario.size == "small" else 0.3
    table = stack([[*(size * rng.uniform(0.4, 0.6, 2)), rng.uniform(0, 2 * pi), rng.choice([-1, 1])] for _, rng in draws])

    def initial(x: Tensor) -> Tensor:
        px, py, angle, hand = table.to(x.device, x.dtype)[..., None].unbind(1)
        dx, dy, c, s = x[:, 0] - px, x[:, 1] - py, angle.cos(), angle.sin()
        u = 0.5 * (1 - torch.tanh((c * dx + s * dy) / rim))
        v = 0.25 * A * (1 - torch.tanh(hand * (c * dy - s * dx) / rim))
        return torch.stack([u, v], dim=-1)

    return Sample(initial)


def scenario(size: str) -> Scenario:
    small = size == "small"
    n, side, epsilon = (24, 12.0, 0.04) if small else (99, 20.0, 0.02)
    dt, steps, train, test = (0.05, 100, 4, 2) if small else (0.025, 1200, 7, 3)
    return Scenario(
        name="spiral", title="Spiral waves of an excitable medium (not in the paper)", size=size,
        equation=r"\partial_t u = \nabla^2 u + \tfrac1\epsilon\,u(1-u)\left(u-\tfrac{v+b}{a}\right),\quad \partial_t v = u - v",
        geometry=f"[0, {side:g}]², {n}×{n} grid, inner nodes moved by up to 0.25 spacings.",
        build_mesh=lambda: box((n, n), upper=(side, side), perturb=0.25),
        pde=PDE(("u", "v"), diffusion={"u": 1.0, "v": 0.0}, reaction=kinetics(epsilon)), conditions=(),
        dt=dt, steps=steps, train=train, test=test, sampler=sample,
        truths={"same-mesh": Truth(0, 8), "converged": Truth(1, 8, degree=2) if small else Truth(0, 8, degree=2)}, paper={},
        training=Plan(
            replace(OPERATOR, learn_source=False),
            staged((Stage(200, 10, 8, 3e-3), Stage(120, 40, 4, 2e-3), Stage(40, 100, 4, 1e-3, from_start=0.5)) if small else
                   (Stage(200, 10, 8, 3e-3), Stage(200, 60, 4, 2e-3), Stage(150, 200, 4, 1e-3, from_start=0.5)),
                   validate_steps=600),
            PaperSettings(10, 1e-3, 400, 100, 0.1, 10)),
        parameters=(
            Parameter("a, b", f"{A:g}, {B:g} (Barkley 1991)", "ours"),
            Parameter("ε", f"{epsilon:g}", "ours"),
            Parameter("time", f"{steps} steps of {dt:g}; a turn takes about {'5' if small else '3'}", "ours"),
            Parameter("initial state", "u = 1 on one side of a line, v = a/2 on one side of a line at right angles, both with a "
                      "rim of tanh shape; crossing, direction and sense at random", "ours"),
            Parameter("boundary", "no flux", "ours")))
