"""Ten lasers on the gear plate; at test time they move in ways never seen in training."""

from collections.abc import Sequence

import numpy as np
import torch

from dgnet.mesh import ALL
from dgnet.mesh.library import shipped
from dgnet.problems.conditions import Robin
from dgnet.problems.pde import PDE
from dgnet.problems.sources import panels_for
from dgnet.training.plan import general
from dgnet_paper.scenarios import lasers
from dgnet_paper.scenarios.scenario import Draw, Figure, Parameter, Sample, Scenario, Truth
from dgnet_paper.scenarios.spots import Spots

PAPER = {"DGNet": Figure(17.6, 0.0102), "DeepONet": Figure(2.48e3, 0.1208), "MGN": Figure(4.98e3, 0.1711),
         "MP-PDE": Figure(3.88e3, 0.1510), "BENO": Figure(1.95e3, 0.1071), "PhyMPGN": Figure(6.78e3, 0.1998),
         "SINGER": Figure(9.58e3, 0.2504), "AMG": Figure(2.96e3, 0.1831), "Transolver": Figure(5.72e3, 0.1785)}
WIDER = 2.0  # of the small size, whose coarse mesh would not see the spots


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    widen = WIDER if scenario.size == "small" else 1.0
    spots = [lasers.plate_spots(draw.split, rng, scenario.horizon, widen) for draw, rng in draws]
    start = torch.full((len(draws), scenario.mesh.n_nodes, 1), lasers.AMBIENT, dtype=torch.float64)
    return Sample(start, Spots(spots), labels=tuple(lasers.labels(s) for s in spots))


def scenario(size: str) -> Scenario:
    small = size == "small"
    dt, steps, train, test = (0.5, 40, 4, 4) if small else (0.5, 120, 20, 20)
    return Scenario(
        name="laser-heat", title="Laser heat treatment of a plate", size=size,
        equation=r"\rho c_p\,\partial_t T = k\nabla^2 T + Q(\mathbf{x},t),\qquad "
                 r"-k\,\partial_n T = h(T-T_\mathrm{amb})\ \text{on every edge}",
        geometry="Plate of 1.4 × 0.9 m with bulging sides, a gear-shaped hole and two round holes.",
        build_mesh=lambda: shipped("gear-plate-small" if small else "gear-plate"),
        pde=PDE(("T",), diffusion=lasers.CONDUCTIVITY / lasers.CAPACITY),
        conditions=(Robin(ALL, lasers.CONVECTION / lasers.CAPACITY, lasers.AMBIENT),),
        dt=dt, steps=steps, train=train, test=test, sampler=sample, offset=(lasers.AMBIENT,), units=lasers.UNITS,
        truths={"same-mesh": Truth(0, 8), "converged": Truth(1, 8, degree=2)}, paper=PAPER,
        panels=panels_for(lasers.FASTEST, lasers.NARROWEST * (WIDER if small else 1.0), dt),
        training=general(small),
        parameters=(
            Parameter("ρ, c_p, k", "7850 kg/m³, 450 J/(kg K), 50 W/(m K)", "paper"),
            Parameter("convection h, T_amb", "25 W/(m² K), 298.15 K, also the initial state", "paper"),
            Parameter("convection acts on", "the edges (the script lacks the volumetric term of the paper's Table 1)",
                      "script"),
            Parameter("time", f"{steps} steps of {dt:g} s", "ours" if small else "paper"),
            Parameter("lasers", "ten Gaussian spots; four always orbit the holes, the gear and the plate", "script"),
            Parameter("radii, peaks, speeds", "orbits 0.03–0.04 m, 0.8–1.5e8 W/m³, 0.8–1.2 rad/s; others 0.08–0.12 m, "
                      "0.3–0.6e8 W/m³, 0.8 m/s" + ("; radii doubled at this size" if small else ""), "script"),
            Parameter("kinds in training", "orbit, " + ", ".join(lasers.TRAINING_KINDS), "ours"),
            Parameter("kinds at test, besides orbits", ", ".join(lasers.TEST_KINDS), "paper"),
            Parameter("begin of paths that end", "random in the first 60% of the time; ramps of 0.5 s", "ours")))
