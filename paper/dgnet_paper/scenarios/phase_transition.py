"""Lasers melt a plate: the quasilinear failure mode of the paper, whose geometry and numbers are all ours.

The equation is divided by rho c_s, so that sources, convection and the linear surrogate that models are given (its solid
constants) carry the same units as in laser-heat; enthalpies are then in kelvin.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dgnet.mesh import ALL
from dgnet.mesh.library import shipped
from dgnet.problems.conditions import Robin
from dgnet.problems.pde import PDE
from dgnet.problems.sources import panels_for
from dgnet.training.plan import general
from dgnet_paper.reference.phase_change import PhaseChange
from dgnet_paper.scenarios import lasers
from dgnet_paper.scenarios.scenario import Draw, Parameter, Sample, Scenario, Truth
from dgnet_paper.scenarios.spots import Spots

CRITICAL, WIDTH, LATENT = 420.0, 10.0, 9e4
LIQUID_HEAT, LIQUID_CONDUCTIVITY = 600.0, 25.0
WIDER = 2.0  # of the small size, whose coarse mesh would not see the spots


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """The lasers of laser-heat, with the kinds of its training set in both splits."""
    widen = WIDER if scenario.size == "small" else 1.0
    spots = [lasers.plate_spots("train", rng, scenario.horizon, widen) for _, rng in draws]
    start = torch.full((len(draws), scenario.mesh.n_nodes, 1), lasers.AMBIENT, dtype=torch.float64)
    return Sample(start, Spots(spots), labels=tuple(lasers.labels(s) for s in spots))


def scenario(size: str) -> Scenario:
    small = size == "small"
    dt, steps, train, test = (0.5, 40, 4, 2) if small else (0.5, 120, 20, 20)
    diffusion = lasers.CONDUCTIVITY / lasers.CAPACITY
    return Scenario(
        name="phase-transition", title="Quasilinear phase transition", size=size,
        equation=r"\rho\,c_\mathrm{eff}(T)\,\partial_t T = \nabla\cdot(k(T)\nabla T) + Q(\mathbf{x},t),\qquad "
                 r"c_\mathrm{eff} = c_s + (c_l-c_s)S + L\,S',\quad k = k_s + (k_l-k_s)S,\quad "
                 r"S = \frac{1}{1+e^{-4(T-T_c)/w}}",
        geometry="The plate of laser-heat.", build_mesh=lambda: shipped("gear-plate-small" if small else "gear-plate"),
        pde=PDE(("T",), diffusion=diffusion),
        conditions=(Robin(ALL, lasers.CONVECTION / lasers.CAPACITY, lasers.AMBIENT),),
        dt=dt, steps=steps, train=train, test=test, sampler=sample, offset=(lasers.AMBIENT,), units=lasers.UNITS,
        truths={"same-mesh": Truth(0, 8), "converged": Truth(2, 8)}, paper={},
        panels=panels_for(lasers.FASTEST, lasers.NARROWEST * (WIDER if small else 1.0), dt),
        phase_change=PhaseChange(CRITICAL, WIDTH, LATENT / lasers.HEAT, capacity_liquid=LIQUID_HEAT / lasers.HEAT,
                                 conductivity_solid=diffusion,
                                 conductivity_liquid=LIQUID_CONDUCTIVITY / lasers.CAPACITY),
        training=general(small),
        parameters=(
            Parameter("equation with a sharp transition", "quasilinear in c_eff and k", "paper"),
            Parameter("T_c, w", f"{CRITICAL:g} K, {WIDTH:g} K (three quarters of the transition)", "ours"),
            Parameter("latent heat L", f"{LATENT:g} J/kg, as much as {LATENT / lasers.HEAT:g} K of the solid", "ours"),
            Parameter("ρ, c_s, c_l", f"{lasers.DENSITY:g} kg/m³, {lasers.HEAT:g} and {LIQUID_HEAT:g} J/(kg K)", "ours"),
            Parameter("k_s, k_l", f"{lasers.CONDUCTIVITY:g} and {LIQUID_CONDUCTIVITY:g} W/(m K)", "ours"),
            Parameter("convection h, T_amb", "25 W/(m² K) on every edge, 298.15 K, also the initial state", "ours"),
            Parameter("lasers", "as in laser-heat, kinds of its training set in both splits", "ours"),
            Parameter("time", f"{steps} steps of {dt:g} s", "ours"),
            Parameter("what models are given", "the linear equation with the constants of the solid", "ours")))
