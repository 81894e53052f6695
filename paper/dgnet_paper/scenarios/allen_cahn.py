"""Phase separation from noise."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from dgnet.mesh import perturbed_square
from dgnet.problems.pde import PDE
from dgnet.recipe import PaperSettings, Stage
from dgnet.training.plan import OPERATOR, Plan, staged
from dgnet_paper.scenarios.scenario import Draw, Figure, Parameter, Sample, Scenario, Truth, stack

EPSILON = 0.04
PAPER = {"DGNet": Figure(8.75e-3, 0.0188), "DeepONet": Figure(2.60e-1, 0.6686), "MGN": Figure(2.70e-1, 0.6813),
         "MP-PDE": Figure(8.52e-1, 1.2109), "BENO": Figure(2.52, 2.0813), "PhyMPGN": Figure(5.16e-1, 0.9420)}


def reaction(u: Tensor) -> Tensor:
    return u - u**3


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """Independent noise at the nodes, linear in between: a function that every refinement represents exactly."""
    return Sample(stack([rng.uniform(-0.5, 0.5, (scenario.mesh.n_nodes, 1)) for _, rng in draws]))


def scenario(size: str) -> Scenario:
    small = size == "small"
    n, dt, steps, train, test = (18, 0.05, 60, 4, 2) if small else (35, 0.005, 1000, 10, 10)
    return Scenario(
        name="allen-cahn", title="Allen–Cahn phase separation", size=size,
        equation=r"\partial_t u = \epsilon^2\nabla^2 u - (u^3 - u)", geometry=f"[0,1]², perturbed {n}×{n} grid.",
        build_mesh=lambda: perturbed_square(n), pde=PDE(("u",), diffusion=EPSILON**2, reaction=reaction), conditions=(),
        dt=dt, steps=steps, train=train, test=test, sampler=sample,
        truths={"same-mesh": Truth(0, 8), "converged": Truth(1, 4, degree=2)}, paper=PAPER,
        # Its noise needs another mass than the interfaces that grow out of it, and free numbers overfit its few interfaces.
        # Errors of the first instants grow with the instability: only whole rollouts see what matters.
        training=Plan(
            replace(OPERATOR, learn_source=False, learn_start=True, early_steps=4 if small else 30, free=False),
            staged((Stage(160, 600, 8, 3e-3, from_start=1.0) if small else Stage(250, 1000, 8, 2e-3, from_start=1.0),)),
            PaperSettings(36, 1e-3, 600, 200, 0.1, 20), odd_reaction=True),
        parameters=(
            Parameter("interface width ε", "0.04", "paper"),
            Parameter("time", f"{steps} steps of {dt:g}", "ours" if small else "paper"),
            Parameter("initial state", "uniform noise in [−0.5, 0.5]", "paper"),
            Parameter("noise between nodes", "independent at the nodes, linear in between", "ours"),
            Parameter("boundary", "no flux", "paper"),
            Parameter("perturbation of the grid", "inner nodes moved by up to 0.25 spacings", "ours")))
