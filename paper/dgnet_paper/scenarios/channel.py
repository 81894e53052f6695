"""What the contaminant scenarios share: transport by a given unsteady flow, logistic growth, pulsed injections.

    dc/dt + u . grad c = div(D grad c) + rho_g c (1 - c) - k_d c + q(x, t)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dgnet.mesh.library import shipped
from dgnet.problems.conditions import Dirichlet
from dgnet.problems.pde import PDE
from dgnet.recipe import IN_A_FLOW, PaperSettings, Stage
from dgnet.training.plan import OPERATOR, Plan, staged
from dgnet_paper.scenarios.scenario import Draw, Figure, Flow, Parameter, Sample, Sampler, Scenario, Truth, stack

Tensor = torch.Tensor

VISCOSITY, DIFFUSION, GROWTH, DECAY = 5e-3, 2e-3, 0.1, 0.025
DIAMETER = 2.0


@dataclass(frozen=True)
class Injection:
    """How contaminant is injected: number of pulses, where (x, y), widths, durations in s and rates in 1/s."""

    pulses: int
    x: tuple[float, float]
    y: tuple[float, float]
    width: tuple[float, float]
    duration: tuple[float, float]
    rate: tuple[float, float]


class Pulses:
    """q(x, t) = sum_j rate_j sin^2(pi (t - t_j) / T_j) exp(-|x - x_j|^2 / (2 w_j^2)) while t_j < t < t_j + T_j."""

    def __init__(self, table: Tensor) -> None:
        self.table = table  # [B, J, 6]: x, y, width, begin, duration, rate

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        px, py, width, begin, duration, rate = self.table.to(x.device, x.dtype).unbind(2)
        share = (t.to(x.device, x.dtype)[:, None, None] - begin) / duration  # [T, B, J]
        on = rate * torch.sin(np.pi * share.clamp(0, 1)) ** 2
        distance = (x[:, 0] - px[..., None]) ** 2 + (x[:, 1] - py[..., None]) ** 2  # [B, J, N]
        shape = torch.exp(-0.5 * distance / width[..., None] ** 2)
        return torch.einsum("tbj,bjn->btn", on, shape)[..., None]


def sampler(injection: Injection) -> Sampler:
    def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
        tables, phases = [], []
        assert scenario.flow is not None
        for _, rng in draws:
            n = injection.pulses
            slot = (np.arange(n) + rng.uniform(0, 0.8, n)) / n  # one pulse begins in each part of the time
            columns = [rng.uniform(*span, n) for span in (injection.x, injection.y, injection.width)]
            duration, rate = rng.uniform(*injection.duration, n), rng.uniform(*injection.rate, n)
            tables.append(np.stack([*columns, 0.9 * scenario.horizon * slot, duration, rate], axis=1))
            phases.append(scenario.dt * int(rng.integers(0, round(scenario.flow.phases / scenario.dt) + 1)))
        start = torch.zeros(len(draws), scenario.mesh.n_nodes, 1, dtype=torch.float64)
        return Sample(start, Pulses(stack(tables)), tuple(phases), tuple(("pulses",) for _ in draws))

    return sample


def channel(name: str, title: str, size: str, geometry: str, reynolds: float, flow_dt: float, injection: Injection,
            paper: Mapping[str, Figure], truth: Truth) -> Scenario:
    """A channel at either size; `flow_dt` and `truth` are those of the paper's size."""
    small = size == "small"
    velocity = reynolds * VISCOSITY / DIAMETER
    dt, steps, train, test = (0.25, 48, 4, 2) if small else (0.05, 2000, 15, 5)
    viscosity = 4 * VISCOSITY if small else VISCOSITY  # thinner wakes than its coarse mesh carries would be noise
    flow = Flow(velocity, viscosity, dt=0.025 if small else flow_dt, spin_up=20.0 if small else 100.0,
                phases=10.0 if small else 25.0)
    if small:  # the coarse mesh sees wider spots only, and the run is shorter
        injection = Injection(3, injection.x, injection.y, (0.8, 1.1), (3.0, 5.0), injection.rate)
    return Scenario(
        name=name, title=title, size=size,
        equation=r"\partial_t c + \mathbf{u}\cdot\nabla c = D\nabla^2 c + \rho_g c(1-c) - k_d c + q(\mathbf{x},t)",
        geometry=geometry, build_mesh=lambda: shipped(f"{name}-small" if small else name),
        pde=PDE(("c",), diffusion=DIFFUSION, decay=DECAY, reaction=growth),
        conditions=(Dirichlet("inlet", 0.0),), dt=dt, steps=steps, train=train, test=test,
        sampler=sampler(injection),
        truths={"same-mesh": Truth(0, 8, order=3), "converged": Truth(2, 16, order=3) if small else truth},
        paper=paper, flow=flow,
        training=Plan(
            replace(OPERATOR, learn_streamline=True, learn_swirl=not small),  # the few small trajectories do not carry a swirl
            staged(IN_A_FLOW if small else (Stage(150, 40, 12, 3e-3), Stage(250, 120, 12, 2e-3), Stage(150, 400, 12, 1.5e-3))),
            PaperSettings(6, 5e-4, 300, 100, 0.2, 6), hold_reaction=True),
        parameters=(
            Parameter("viscosity μ, density ρ", f"{viscosity:g}, 1", "ours" if small else "paper"),
            Parameter("Reynolds number", f"{DIAMETER * velocity / viscosity:g} on diameter 2: mean inflow {velocity:g}",
                      "ours" if small else "paper"),
            Parameter("diffusivity D", f"{DIFFUSION:g}", "paper"),
            Parameter("growth ρ_g, decay k_d", f"{GROWTH:g}, {DECAY:g}", "paper"),
            Parameter("growth below zero", "none: an undershoot must not grow", "ours"),
            Parameter("time", f"{steps} steps of {dt:g} s", "ours" if small else "paper"),
            Parameter("inlet", "c = 0; parabolic profile, steady after start-up", "ours"),
            Parameter("other boundaries", "no diffusive flux of c; no slip at walls, do-nothing outlet", "ours"),
            Parameter("injection", f"{injection.pulses} Gaussian pulses, widths {_span(injection.width)}, durations "
                      f"{_span(injection.duration)} s, rates {_span(injection.rate)} 1/s, x in {_span(injection.x)}, "
                      f"y in {_span(injection.y)}, c = 0 at first", "ours"),
            Parameter("flow", f"one run: start-up {flow.spin_up:g} s, then each trajectory begins up to {flow.phases:g} s "
                      "later", "ours")))


def growth(c: Tensor) -> Tensor:
    """rho_g c (1 - c) for c > 0, else none: an undershoot must not grow. The decay -k_d c is part of the linear operator."""
    return GROWTH * c.clamp(min=0.0) * (1 - c)


def _span(values: tuple[float, float]) -> str:
    return f"[{values[0]:g}, {values[1]:g}]"
