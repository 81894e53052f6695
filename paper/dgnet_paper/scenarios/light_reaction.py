"""A large dish under dynamic light."""

from collections.abc import Sequence

import numpy as np
import torch

from dgnet.mesh.library import shipped
from dgnet.problems.pde import PDE
from dgnet.problems.sources import panels_for
from dgnet.training.plan import general
from dgnet_paper.scenarios import patterns
from dgnet_paper.scenarios.scenario import Draw, Figure, Parameter, Sample, Scenario, Truth

DIFFUSION, DECAY = 5e-4, 5e-3
PAPER = {"DGNet": Figure(3.97, 0.0227), "DeepONet": Figure(6.11e3, 0.8832), "MGN": Figure(1.93e2, 0.1582),
         "MP-PDE": Figure(13.7, 0.0422), "BENO": Figure(6.04e2, 0.2796), "PhyMPGN": Figure(2.87e2, 0.1921)}


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    coarse = 2.0 if scenario.size == "small" else 1.0
    start = torch.zeros(len(draws), scenario.mesh.n_nodes, 1, dtype=torch.float64)
    return Sample(start, patterns.Light([patterns.draw(rng, coarse) for _, rng in draws]),
                  labels=tuple(patterns.NAMES for _ in draws))


def scenario(size: str) -> Scenario:
    small = size == "small"
    dt, steps, train, test = (0.5, 40, 4, 4) if small else (0.5, 200, 40, 160)
    return Scenario(
        name="light-reaction", title="Light-driven reaction in a dish", size=size,
        equation=r"\partial_t C = D\nabla^2 C - kC + f(\mathbf{x},t)", geometry="Disc of radius 1.",
        build_mesh=lambda: shipped("disc-small" if small else "disc"),
        pde=PDE(("C",), diffusion=DIFFUSION, decay=DECAY), conditions=(), dt=dt, steps=steps, train=train, test=test,
        sampler=sample, paper=PAPER,
        truths={"same-mesh": Truth(0, 8), "converged": Truth(1, 4, degree=2) if small else Truth(0, 8, degree=2, order=3)},
        panels=panels_for(patterns.FASTEST, patterns.WIDTH, dt),
        training=general(small),
        parameters=(
            Parameter("diffusivity D, decay k", "5e-4, 5e-3", "paper"),
            Parameter("time", f"{steps} steps of {dt:g} s", "ours" if small else "paper"),
            Parameter("boundary", "no flux", "paper"),
            Parameter("light", "six superposed patterns: spirals, rings, spots, waves and two more", "paper"),
            Parameter("patterns", "rotating spiral, pulsating ring, moving spot, travelling wave, breathing lattice, "
                      "turning bar, with random places, speeds, widths and strengths", "ours"),
            Parameter("initial state", "C = 0", "ours")))
