"""CUDA against the CPU: the same numbers to the solver's tolerance. Runs where there is a device."""

from __future__ import annotations

import pytest
import torch

from dgnet.mesh import box
from dgnet.problems.conditions import Dirichlet, Robin
from dgnet.problems.pde import PDE
from dgnet_paper.reference import linear, phase, transport
from dgnet_paper.reference.phase_change import PhaseChange
from paper.tests.reference.test_transport import Rotation, disc

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def spots(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """Three trajectories of a turning spot [3, T, n, 1]."""
    angle = t + torch.arange(3, device=t.device)[:, None]
    centre = 0.5 + 0.3 * torch.stack([torch.cos(angle), torch.sin(angle)], dim=-1)
    return torch.exp(-((x - centre[:, :, None]) ** 2).sum(-1) / 0.02)[..., None]


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("single", [False, True])
def test_transport(degree, single, monkeypatch):
    monkeypatch.setattr(linear, "_SINGLE_LIMIT", 0 if single else 1 << 60)
    mesh = box((12, 12), perturb=0.2)
    pde = PDE(diffusion=0.05, velocity=(0.4, -0.2), decay=0.1, reaction=lambda u: u - u**3)
    conditions = [Dirichlet("left", lambda x, t: x[:, 1] * t), Robin("top", 0.3, 0.5)]
    u0 = torch.rand(3, mesh.n_nodes, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = (transport.solve(mesh, pde, conditions, u0, dt=0.02, steps=5, substeps=2, refine=1, degree=degree, source=spots,
                            device=device) for device in ("cpu", "cuda"))
    assert float((a - b).abs().max()) < 1e-8


@pytest.mark.parametrize("degree", [1, 2])
def test_flow(degree):
    mesh = disc(6, 0.5)
    u0 = torch.exp(-30 * torch.tensor(mesh.points).square().sum(1))[None, :, None]
    a, b = (transport.solve(mesh, PDE(diffusion=0.01), [], u0, dt=0.05, steps=4, substeps=10, refine=1, degree=degree,
                            flow=Rotation(mesh), phases=[0.0, 0.5, 1.0], device=device) for device in ("cpu", "cuda"))
    assert float((a - b).abs().max()) < 1e-8


def test_phase():
    mesh = box((10, 10), perturb=0.2)
    metal = PhaseChange(temperature=1.0, width=0.05, latent_heat=2.0, conductivity_liquid=0.5)
    u0 = torch.full((1, mesh.n_nodes, 1), 0.9)
    a, b = (phase.solve(mesh, metal, [Robin("left", 1.0, 2.0)], u0, dt=0.05, steps=4, substeps=2, refine=1,
                        source=lambda x, t: 10 * spots(x, t), device=device) for device in ("cpu", "cuda"))
    assert float((a - b).abs().max()) < 1e-7
