"""Growing blobs carried by a uniform wind."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dgnet.mesh import perturbed_square
from dgnet.problems.conditions import Dirichlet
from dgnet.problems.pde import PDE
from dgnet.recipe import PaperSettings, Stage
from dgnet.training.plan import OPERATOR, Plan, staged
from dgnet_paper.scenarios.scenario import Draw, Figure, Parameter, Sample, Scenario, Truth, stack

GROWTH, WIND = 1.0, (0.1, 0.12)
BLOBS, MARGIN = 5, 0.12
PAPER = {"DGNet": Figure(2.59e-4, 0.0238), "DeepONet": Figure(3.05e-2, 0.4181), "MGN": Figure(3.66e-3, 0.1448),
         "MP-PDE": Figure(9.90e-2, 0.7530), "BENO": Figure(6.26e-2, 0.5989), "PhyMPGN": Figure(1.50e-2, 0.9270)}


def reaction(u: Tensor) -> Tensor:
    return GROWTH * u * (1 - u)


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """Five Gaussian blobs, faded out at the inflow: without diffusion a jump there would never smooth out."""
    table = stack([np.column_stack([rng.uniform(0.15, 0.8, (BLOBS, 2)), rng.uniform(0.07, 0.13, BLOBS),
                                    rng.uniform(0.2, 0.8, BLOBS)]) for _, rng in draws])  # [B, J, 4]

    def initial(x: Tensor) -> Tensor:
        px, py, width, peak = table.to(x.device, x.dtype)[..., None].unbind(2)
        blobs = peak * torch.exp(-0.5 * ((x[:, 0] - px) ** 2 + (x[:, 1] - py) ** 2) / width**2)
        fade = (1 - torch.exp(-((x / MARGIN) ** 4))).prod(1)
        return (blobs.sum(1) * fade)[..., None]

    return Sample(initial)


def scenario(size: str) -> Scenario:
    small = size == "small"
    n, dt, steps, train, test = (18, 0.025, 40, 4, 2) if small else (40, 0.00125, 1600, 10, 10)
    return Scenario(
        name="fisher-kpp", title="Fisher–KPP population in a wind", size=size,
        equation=r"\partial_t u + \mathbf{c}\cdot\nabla u = \rho u(1-u)", geometry=f"[0,1]², perturbed {n}×{n} grid.",
        build_mesh=lambda: perturbed_square(n), pde=PDE(("u",), velocity=WIND, reaction=reaction),
        conditions=(Dirichlet("left", 0.0), Dirichlet("bottom", 0.0)), dt=dt, steps=steps, train=train, test=test,
        sampler=sample, truths={"same-mesh": Truth(0, 8, order=3), "converged": Truth(2, 4, order=3)}, paper=PAPER,
        training=Plan(
            replace(OPERATOR, learn_source=False, learn_streamline=True, learn_start=not small, free=small),
            staged((Stage(300, 10, 16, 3e-3), Stage(200, 60, 8, 2e-3), Stage(60, 300, 4, 1e-3, from_start=0.5)) if small else
                   (Stage(60, 200, 8, 3e-3, from_start=0.5), Stage(200, 1000, 8, 2e-3, from_start=1.0))),
            PaperSettings(24, 5e-4, 300, 60, 0.1, 10, norm=True)),
        parameters=(
            Parameter("growth ρ", "1", "paper"),
            Parameter("wind c", "(0.1, 0.12)", "paper"),
            Parameter("time", f"{steps} steps of {dt:g}", "ours" if small else "paper"),
            Parameter("initial state", "Gaussian blobs", "paper"),
            Parameter("blobs", "five, centres in [0.15, 0.8]², widths [0.07, 0.13], heights [0.2, 0.8], faded out "
                      "smoothly within 0.12 of the inflow", "ours"),
            Parameter("boundary", "u = 0 at the inflow (left, bottom), natural at the outflow", "paper"),
            Parameter("perturbation of the grid", "inner nodes moved by up to 0.25 spacings", "ours")))
