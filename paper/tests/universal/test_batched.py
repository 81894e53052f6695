"""The dense steps of many meshes at once, against the library, against steps in SciPy, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.universal import ElementNet, Universal
from dgnet.problems import PDE, Condition, Dirichlet, Neumann, Robin
from dgnet_paper.universal.batched import errors, example, gather, loss, numbers, roll, silent
from dgnet_paper.universal.problems import PartProblem
from dgnet_paper.universal.training import solved
from tests.models.test_universal import damping, wild

Tensor = torch.Tensor
BETWEEN: dict[str, Sequence[Condition]] = {
    "insulated": (),
    "robin": (Robin("left", 3.0, 1.2), Robin("top", 0.5, -1.0), Neumann("right", 0.4)),
    "held": (Dirichlet("left", lambda x, t: x[:, 1] + 20 * t), Robin("right", 2.0, 0.3))}


def start(x: Tensor) -> Tensor:
    return torch.stack([torch.cos(3 * x).sum(-1), x[:, 0] ** 2 - x[:, 1]])[..., None]


def source(x: Tensor, t: Tensor) -> Tensor:
    at, seed = t[:, None], torch.tensor([[[1.0]], [[-2.0]]], dtype=torch.float64)
    return (seed * torch.exp(-8 * (x[:, 0] - 10 * at) ** 2 - 3 * x[:, 1] ** 2) * (20 + 900 * at))[..., None]


def drawn(dim: int, cells: int, conditions: str, flow: bool = False, **more: object) -> PartProblem:
    mesh = box((cells, cells - 1) if dim == 2 else (cells - 2, 2, 2), perturb=0.2)
    velocity = [[5.0, -3.0, 2.0][:dim]] * mesh.n_nodes if flow else None
    D = np.linspace(0.4, 1.2, mesh.n_cells) if cells % 2 else np.eye(dim) + 0.3
    pde = PDE(diffusion=D, velocity=None if velocity is None else np.array(velocity), **more)  # type: ignore[arg-type]
    return PartProblem("box", conditions, 0.1, mesh, pde, tuple(BETWEEN[conditions]), 0.004, start, source)


def by_the_library(model: Universal | Classical, part: PartProblem) -> Tensor:
    p = part.problem()
    x = torch.tensor(model.points(p))
    with torch.no_grad():
        return rollout(model, p, part.start(x), part.samples(x))[..., 0]


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("flow", [False, True])
@pytest.mark.parametrize("degree", [1, 2])
def test_dense_steps_are_those_of_the_model(dim: int, flow: bool, degree: int) -> None:
    """Padded parts of two sizes with an exchange, held values that move, decay, anisotropy, jumps, and wild weights."""
    net = damping(wild(dim, 0.5, flow=flow, degree=2)) if degree == 2 else ElementNet(dim, 1, 12, 2, 8, flow)
    assert isinstance(net, ElementNet)
    parts = [drawn(dim, 4 + k, kind, flow, decay=0.7 * k) for k, kind in enumerate(("insulated", "robin", "held"))]
    batch = gather([example(part, degree, np.ones((2, 25, part.mesh.n_nodes)), (1.0, 1.0, 1.0)) for part in parts], degree)
    with torch.no_grad():
        found = roll(batch, numbers(net, batch))
        plain = roll(batch, silent(batch))
    for k, part in enumerate(parts):
        n = part.mesh.n_nodes
        classical = by_the_library(Classical(1.0, degree=degree), part)[:, 1:]
        assert torch.allclose(plain[k, :, :n].permute(2, 0, 1), classical, atol=1e-10)
        if degree == 2:  # linear elements with such corrections are no model of the library
            own = by_the_library(Universal({dim: net}, degree=2), part)[:, 1:]
            assert float((own - classical).abs().max()) > 1e-2
            assert torch.allclose(found[k, :, :n].permute(2, 0, 1), own, atol=1e-6)


def test_errors_are_those_of_steps_in_scipy() -> None:
    """Without corrections the dense steps make the error that the elements make, stepped one problem at a time."""
    part = drawn(2, 5, "held")
    found = solved(part)
    assert found is not None
    truth, (quadratic, linear, lumped) = found
    assert quadratic < 0.7 * min(linear, lumped)
    batch = gather([example(part, 2, truth, found[1])], 2)
    assert float(errors(batch, roll(batch, silent(batch)))[0] / quadratic) == pytest.approx(1.0, abs=1e-6)
    value, r = loss(batch, roll(batch, silent(batch)))
    assert float(r[0]) == pytest.approx(0.0, abs=1e-6) and float(value) == pytest.approx(2 * 0.15**2, abs=1e-6)


@pytest.mark.parametrize("velocity", [None, (1.5, -0.7)])
def test_the_truth_converges(velocity: tuple[float, float] | None) -> None:
    """A cosine that decays (without a flow it is exact), and the next finer truth is nearer to the one after it."""
    mesh = box((4, 4), perturb=0.1)
    pde = PDE(diffusion=0.5, velocity=None if velocity is None else np.tile(velocity, (mesh.n_nodes, 1)))
    part = PartProblem("box", "insulated", 0.1, mesh, pde, (), 0.01, lambda x: torch.cos(np.pi * x[:, :1]).expand(2, -1, -1), None)
    coarse, fine, finest = (part.truth(refine=k)[0, :, :, 0] for k in (0, 1, 2))
    if velocity is None:
        t = 0.01 * torch.arange(25, dtype=torch.float64)
        finest = torch.exp(-0.5 * np.pi**2 * t)[:, None] * torch.cos(np.pi * torch.tensor(mesh.points[:, 0]))
        assert float((part.truth()[0, :, :, 0] - finest).norm() / finest.norm()) < 2e-5
    assert float((fine - finest).norm()) < 0.2 * float((coarse - finest).norm())


def test_gradients_reach_every_correction() -> None:
    net = damping(wild(2, 0.3, flow=True, degree=2)).requires_grad_(True)
    parts = [drawn(2, 4 + k, "robin", flow=True) for k in (0, 1)]
    batch = gather([example(part, 2, np.ones((2, 25, part.mesh.n_nodes)), (1.0, 1.0, 1.0)) for part in parts], 2)
    assert isinstance(net, ElementNet)
    loss(batch, roll(batch, numbers(net, batch)))[0].backward()
    for name, weight in net.named_parameters():
        assert weight.grad is not None and float(weight.grad.abs().max()) > 0, name


def test_one_mesh_alone_or_among_others() -> None:
    net, parts = wild(2, 0.3, degree=2), [drawn(2, k, "held") for k in (6, 4, 5)]
    assert isinstance(net, ElementNet)
    ready = [example(part, 2, np.ones((2, 25, part.mesh.n_nodes)), (1.0, 1.0, 1.0)) for part in parts]
    with torch.no_grad():
        alone, among = (roll(b, numbers(net, b)) for b in (gather(ready[1:2], 2), gather(ready, 2)))
    assert torch.allclose(among[1, :, :alone.shape[2]], alone[0], atol=1e-6)
