"""Phase change: the material's functions, energy conservation, and the Stefan problem."""

from __future__ import annotations

from math import erf, exp, pi, sqrt

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.problems.conditions import Dirichlet, Neumann, Periodic, Robin
from dgnet.problems.sources import FunctionSource
from dgnet_paper.reference import transport
from dgnet_paper.reference.phase import solve
from dgnet_paper.reference.phase_change import PhaseChange

METAL = PhaseChange(temperature=1.0, width=0.05, latent_heat=2.0, density=3.0, capacity_solid=0.8, capacity_liquid=1.3,
                    conductivity_solid=2.0, conductivity_liquid=0.5)


def test_material_functions_belong_together():
    t = torch.linspace(0.5, 1.5, 401, dtype=torch.float64, requires_grad=True)
    for function, slope in ((METAL.enthalpy, METAL.capacity), (METAL.kirchhoff, METAL.conductivity)):
        gradient = torch.autograd.grad(function(t).sum(), t)[0]
        assert torch.allclose(gradient, slope(t), rtol=1e-10)
    solid, liquid = METAL.enthalpy(torch.tensor([0.5, 1.5], dtype=torch.float64))
    assert float(liquid - solid) == pytest.approx(3.0 * (0.5 * 0.8 + 0.5 * 1.3 + 2.0), rel=1e-6)


def test_bad_materials_are_refused():
    with pytest.raises(InputError, match="conductivity_liquid"):
        PhaseChange(temperature=1.0, width=0.1, latent_heat=1.0, conductivity_liquid=0.0)


@pytest.mark.parametrize("order", [1, 2])
def test_energy_is_conserved(order):
    """Two trajectories melted by a moving spot and a heated edge: H gains what comes in, to the tolerance."""
    mesh = box((10, 10), perturb=0.2)

    def spot(x, t):
        centre = torch.tensor([0.3 + 0.4 * t, 0.5])
        return 40 * torch.exp(-((x - centre) ** 2).sum(1) / 0.02)

    start = torch.tensor([0.9, 0.98], dtype=torch.float64)[:, None, None].expand(-1, mesh.n_nodes, 1)
    t = solve(mesh, METAL, [Neumann("left", 1.5)], start, dt=0.1, steps=6, substeps=2, source=FunctionSource(spot),
              order=order)
    volume = torch.tensor(mesh.dual_volumes())
    energy = (METAL.enthalpy(t[..., 0]) * volume).sum(-1)
    offset = torch.tensor(np.concatenate([transport.Averages(FunctionSource(spot), torch.tensor(mesh.points), 0.1, 2, 3, 1)(
        0.1 * k)[0].T.numpy() for k in range(6)]))
    gained = torch.cumsum(0.1 * (offset @ volume) + 0.1 * 1.5, 0)
    assert float(t.max()) > 1.1  # some of it has melted
    assert torch.allclose(energy[:, 1:] - energy[:, :1], gained.expand(2, -1), rtol=1e-8)


def test_without_latent_heat_it_is_the_heat_equation():
    """Constant properties: the transport solver's problem with D = k / (rho c), up to the lumped mass and time steps."""
    mesh = box((8, 8), perturb=0.2)
    plain = PhaseChange(temperature=0.0, width=1.0, latent_heat=0.0, density=2.0, capacity_solid=0.5, capacity_liquid=0.5,
                        conductivity_solid=0.3, conductivity_liquid=0.3)
    start = lambda x: torch.cos(pi * x[:, 0])[None, :, None]  # noqa: E731
    ours = solve(mesh, plain, [Robin("right", 0.4, 1.0)], start, dt=0.1, steps=5, substeps=10, refine=2)
    theirs = transport.solve(mesh, transport.PDE(diffusion=0.3), [Robin("right", 0.4, 1.0)], start, dt=0.1, steps=5,
                             substeps=10, refine=2)
    assert float((ours - theirs).norm() / theirs.norm()) < 2e-3


def test_batch_is_single_trajectories():
    mesh = box((6, 6), perturb=0.2)
    start = torch.rand(3, mesh.n_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    conditions = [Dirichlet("left", lambda x, t: 1.0 + 0.5 * t + 0 * x[:, 0])]
    both = solve(mesh, METAL, conditions, start, dt=0.05, steps=3, refine=1)
    for b in range(3):
        assert torch.allclose(solve(mesh, METAL, conditions, start[b:b + 1], dt=0.05, steps=3, refine=1)[0], both[b], atol=1e-7)
    with pytest.raises(InputError, match="no periodic boundaries"):
        solve(mesh, METAL, [Periodic("left", "right")], start, dt=0.05, steps=1)


def test_stefan_front():
    """One-phase Stefan problem: a solid at T_c melted from the left, front at 2 lam sqrt(alpha t), St = c dT / L."""
    stefan = 0.5
    lam = brentq(lambda s: s * exp(s * s) * erf(s) - stefan / sqrt(pi), 0.01, 2)
    mesh = box((50, 1), upper=(1.0, 0.02))
    ice = PhaseChange(temperature=0.0, width=0.01, latent_heat=1 / stefan)
    t = solve(mesh, ice, [Dirichlet("left", 1.0)], torch.full((1, mesh.n_nodes, 1), -0.02), dt=0.05, steps=8, refine=1,
              substeps=20)
    x = mesh.points[:, 0]
    row = np.argsort(x[mesh.nodes_on("bottom")])
    nodes = mesh.nodes_on("bottom")[row]
    for k in (2, 4, 8):
        profile = t[0, k, nodes, 0].numpy()
        last = int(np.flatnonzero(profile > 0)[-1])
        front = np.interp(0.0, -profile[last:last + 2], x[nodes[last:last + 2]])
        assert front == pytest.approx(2 * lam * sqrt(0.05 * k), rel=0.03)
    exact = 1 - np.vectorize(erf)(x[nodes] / (2 * sqrt(0.4))) / erf(lam)
    assert np.abs(profile - np.maximum(exact, 0)).max() < 0.03
