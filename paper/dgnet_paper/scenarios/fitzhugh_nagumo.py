"""A circular perturbation of an excitable medium near its rest state."""

from collections.abc import Sequence
from dataclasses import replace
from math import pi

import numpy as np
import torch
from torch import Tensor

from dgnet.mesh import perturbed_square
from dgnet.problems.conditions import Dirichlet
from dgnet.problems.pde import PDE
from dgnet.recipe import PaperSettings, Stage
from dgnet.training.plan import OPERATOR, Plan, staged
from dgnet_paper.scenarios.scenario import Draw, Figure, Parameter, Sample, Scenario, Truth, stack

SCALE, GAMMA, ALPHA, BETA = 16 * pi, 9.657, 0.5, 2.1
PAPER = {"DGNet": Figure(1.18e-7, 0.0952), "DeepONet": Figure(2.49e-6, 0.9745), "MGN": Figure(3.75e-5, 3.4815),
         "MP-PDE": Figure(6.464e-6, 1.4454), "BENO": Figure(2.14e-4, 8.3106), "PhyMPGN": Figure(1.69e-3, 23.5696),
         "SINGER": Figure(4.58e-6, 1.3844), "AMG": Figure(3.30e-5, 2.4837), "Transolver": Figure(7.87e-6, 0.6729)}
HEIGHT = (0.03, 0.075)  # rms of the state over the rollout about 3.6e-3, what the paper's MSE and RNE imply


def reaction(w: Tensor) -> Tensor:
    u, v = w[..., 0], w[..., 1]
    return torch.stack([GAMMA * (-(u**3) + u - v), GAMMA * BETA * (u - ALPHA * v)], dim=-1)


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """u raised inside a circle with a smooth rim, v at rest."""
    table = stack([[*rng.uniform(0.3, 0.7, 2), rng.uniform(0.06, 0.12), rng.uniform(*HEIGHT) * rng.choice([-1, 1])]
                   for _, rng in draws])
    rim = 0.06 if scenario.size == "small" else 0.015

    def initial(x: Tensor) -> Tensor:
        px, py, radius, height = table.to(x.device, x.dtype)[..., None].unbind(1)
        distance = ((x[:, 0] - px) ** 2 + (x[:, 1] - py) ** 2).sqrt()
        u = 0.5 * height * (1 - torch.tanh((distance - radius) / rim))
        return torch.stack([u, torch.zeros_like(u)], dim=-1)

    return Sample(initial)


def scenario(size: str) -> Scenario:
    small = size == "small"
    n, dt, steps, train, test = (20, 0.01, 60, 4, 2) if small else (99, 0.005, 1200, 7, 3)
    return Scenario(
        name="fitzhugh-nagumo", title="FitzHugh–Nagumo excitable medium", size=size,
        equation=r"\partial_t u = D_u\nabla^2 u + \Gamma(-u^3+u-v),\quad "
                 r"\partial_t v = D_v\nabla^2 v + \Gamma\beta(u-\alpha v)",
        geometry=f"[0,1]², perturbed {n}×{n} grid.", build_mesh=lambda: perturbed_square(n),
        pde=PDE(("u", "v"), diffusion={"u": 1 / SCALE**2, "v": 6.181 / SCALE**2}, reaction=reaction),
        conditions=(Dirichlet("left", 0.0),), dt=dt, steps=steps, train=train, test=test, sampler=sample,
        truths={"same-mesh": Truth(0, 8), "converged": Truth(1, 8, degree=2) if small else Truth(0, 4, degree=2)}, paper=PAPER,
        training=Plan(
            replace(OPERATOR, learn_source=False),
            staged((Stage(300, 10, 8, 3e-3), Stage(200, 60, 4, 2e-3), Stage(60, 200, 4, 1e-3, from_start=0.5)) if small else
                   (Stage(200, 10, 8, 3e-3), Stage(200, 60, 4, 2e-3), Stage(150, 200, 4, 1e-3, from_start=0.5)),
                   validate_steps=600),
            PaperSettings(10, 1e-3, 400, 100, 0.1, 10)),
        parameters=(
            Parameter("D_u, D_v", "1/L_s², 6.181/L_s² with L_s = 16π", "paper"),
            Parameter("Γ, α, β", "9.657, 0.5, 2.1", "paper"),
            Parameter("time", f"{steps} steps of {dt:g}", "ours" if small else "paper"),
            Parameter("initial state", "circular perturbation", "paper"),
            Parameter("perturbation", f"u = ±{list(HEIGHT)} inside a circle of radius [0.06, 0.12] about a point of "
                      "[0.3, 0.7]², rim of tanh shape; v = 0", "ours"),
            Parameter("boundary", "u = v = 0 at the inflow, no flux elsewhere", "paper"),
            Parameter("inflow", "the left side", "ours"),
            Parameter("perturbation of the grid", "inner nodes moved by up to 0.25 spacings", "ours")))
