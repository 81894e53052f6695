"""Excitation of a slab of heart muscle whose fibres turn through its thickness. Ours, not the paper's.

The kinetics are those of Aliev and Panfilov (1996), with their time unit of 12.9 ms. A stimulus starts a wave that runs twice as
fast along the fibres as across them (speed goes with the root of the conductivity), so the front is no ellipse: every layer pulls
it its own way. `dgnet_paper.scenarios.waves.activation_times` is the map that cardiologists read.
"""

from collections.abc import Sequence
from math import pi

import numpy as np
import torch
from torch import Tensor

from dgnet.mesh import Mesh, box
from dgnet.problems.fibres import fibre_tensors
from dgnet.problems.pde import PDE
from dgnet.recipe import PaperSettings, Stage
from dgnet.training.plan import OPERATOR, Plan, staged
from dgnet_paper.scenarios.scenario import Draw, Parameter, Sample, Scenario, Truth, stack

K, A, EPSILON, MU_1, MU_2, UNIT = 8.0, 0.15, 0.002, 0.2, 0.3, 12.9
ALONG, ACROSS = 0.4, 0.1  # mm2/ms
TURN = (-60.0, 60.0)  # degrees, at the lower and the upper face
STIMULI, PULSE, RADIUS, STRENGTH = 2, 6.0, 1.4, 0.5  # per trajectory; ms, mm, 1/ms


def reaction(w: Tensor) -> Tensor:
    u, v = w[..., 0], w[..., 1]
    rate = EPSILON + MU_1 * v / (u + MU_2)
    return torch.stack([-K * u * (u - A) * (u - 1) - u * v, rate * (-v - K * u * (u - A - 1))], dim=-1) / UNIT


def fibres(mesh: Mesh) -> np.ndarray:
    """Directions [K, 3], in the plane of the slab, turning evenly from face to face."""
    z = mesh.centroids[:, 2] / mesh.points[:, 2].max()
    angle = np.deg2rad(TURN[0] + (TURN[1] - TURN[0]) * z)
    return np.stack([np.cos(angle), np.sin(angle), np.zeros_like(angle)], axis=1)


class Stimuli:
    """f(x, t) [B, T, N, 2]: currents into u, round in space, sin² pulses in time; table [B, S, 4]: places (mm), beginnings (ms)."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        at = self.table.to(x.device, x.dtype)
        t = t.to(x.device, x.dtype)
        near = torch.exp(-((x[None, None] - at[:, :, None, :3]) ** 2).sum(-1) / (2 * RADIUS**2))  # [B, S, N]
        phase = ((t[None, None] - at[..., 3:]) / PULSE).clamp(0, 1)
        u = torch.einsum("bst,bsn->btn", STRENGTH * torch.sin(pi * phase) ** 2, near)
        return torch.stack([u, torch.zeros_like(u)], dim=-1)


def sample(scenario: Scenario, draws: Sequence[tuple[Draw, np.random.Generator]]) -> Sample:
    """A stimulus at once and a second one within the first third of the time, both anywhere; the muscle is at rest before."""
    size = scenario.mesh.points.max(axis=0)
    table = stack([np.stack([[*(size * rng.uniform(0, 1, 3)), k * rng.uniform(0, scenario.horizon / 3)] for k in range(STIMULI)])
                   for _, rng in draws])
    return Sample(torch.zeros(len(draws), scenario.mesh.n_nodes, 2, dtype=torch.float64), Stimuli(table))


def scenario(size: str) -> Scenario:
    small = size == "small"
    cells, side = ((10, 10, 3), (12.0, 12.0, 3.6)) if small else ((30, 30, 9), (24.0, 24.0, 7.2))
    dt, steps, train, test = (1.0, 100, 4, 2) if small else (1.0, 300, 10, 10)
    mesh = box(cells, upper=side, perturb=0.15)
    return Scenario(
        name="cardiac", title="Excitation of heart muscle with turning fibres (not in the paper)", size=size,
        equation=r"\partial_t u = \nabla\cdot(D\nabla u) + \tfrac1\tau\left[k u(u-a)(1-u) - uv\right] + f,\quad "
                 r"\partial_t v = \tfrac1\tau\left(\epsilon + \tfrac{\mu_1 v}{u+\mu_2}\right)\left(-v - k u(u-a-1)\right)",
        geometry="×".join(f"{s:g}" for s in side) + " mm slab, " + "×".join(map(str, cells)) + " boxes of six tetrahedra, inner "
                 "nodes moved by up to 0.15 spacings.",
        build_mesh=lambda: mesh,
        pde=PDE(("u", "v"), diffusion={"u": fibre_tensors(fibres(mesh), ALONG, ACROSS), "v": 0.0}, reaction=reaction),
        conditions=(), dt=dt, steps=steps, train=train, test=test, sampler=sample, panels=4, activated=0.5,
        truths={"same-mesh": Truth(0, 4), "converged": Truth(1, 2, degree=2) if small else Truth(0, 4, degree=2)}, paper={},
        training=Plan(
            OPERATOR,
            staged((Stage(120, 8, 8, 3e-3), Stage(60, 50, 4, 2e-3, from_start=1.0)) if small else
                   (Stage(200, 8, 8, 3e-3), Stage(150, 60, 4, 2e-3, from_start=0.25), Stage(60, 300, 2, 1e-3, from_start=1.0))),
            PaperSettings(8, 5e-4, 400, 200, 0.1, 8)),
        parameters=(
            Parameter("k, a, ε, μ₁, μ₂", f"{K:g}, {A:g}, {EPSILON:g}, {MU_1:g}, {MU_2:g} (Aliev and Panfilov 1996)", "ours"),
            Parameter("τ", f"{UNIT:g} ms (the same)", "ours"),
            Parameter("D along and across fibres", f"{ALONG:g} and {ACROSS:g} mm²/ms; v does not spread", "ours"),
            Parameter("fibres", f"in the plane of the slab, turning from {TURN[0]:g}° to {TURN[1]:g}° through it", "ours"),
            Parameter("time", f"{steps} steps of {dt:g} ms", "ours"),
            Parameter("stimuli", f"{STIMULI}, anywhere: Gaussian of radius {RADIUS:g} mm, sin² pulses of {PULSE:g} ms and "
                      f"{STRENGTH:g}/ms, the first at once, the other within a third of the time", "ours"),
            Parameter("initial state, boundary", "at rest; no flux", "ours")))
