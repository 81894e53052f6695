"""DGNet and universal weights on materials that change with the solution: zero at birth, stable by structure, trainable."""

from __future__ import annotations

import pytest
import torch

import dgnet as dg
from dgnet.models.dgnet.parts.diffusion import shaped_stiffness
from tests.stepping.test_materials import double, halves, mixed_problem

Tensor = torch.Tensor


def untrained(p: dg.Problem, **settings: object) -> dg.DGNet:
    return dg.DGNet(dg.DGNetConfig(hidden=8, layers=1, **settings), p).double()  # type: ignore[arg-type]


def shaken(model: dg.DGNet, size: float) -> dg.DGNet:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return model


def test_untrained_it_is_the_classical_solver() -> None:
    mesh, gen = halves((5, 5)), torch.Generator().manual_seed(0)
    p = mixed_problem(mesh, 0.05, True, double(0.9)[0].detach())
    u, f = (torch.rand(2, *shape, mesh.n_nodes, 2, dtype=torch.float64, generator=gen) for shape in ((), (4,)))
    with torch.no_grad():
        assert (dg.rollout(untrained(p), p, u, f) - dg.rollout(dg.Classical(1.0), p, u, f)).abs().max() < 1e-12
        assert torch.equal(dg.rollout(dg.Universal(), p, u, f), dg.rollout(dg.Classical(), p, u, f))


def melting(cells: int = 8, regions: bool = False) -> dg.Problem:
    c, k = dg.Curve([0.0, 1.0], [1.0, 2.0]).melting(2.0, 0.4, 0.45), dg.Curve([0.0, 1.0], [0.1, 0.3])
    D = dg.ByRegion({"left": k, "right": k * 0.5}) if regions else k
    return dg.Problem(halves((cells, cells)), dg.PDE(capacity=c, diffusion=D), [], dt=0.05)


@pytest.mark.parametrize(("size", "regions"), [(0.5, False), (30.0, False), (0.5, True)])
def test_no_weights_make_enthalpy(size: float, regions: bool) -> None:
    p = melting(regions=regions)
    model = shaken(untrained(p, free=True), size)
    u = torch.rand(2, p.mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        states = dg.rollout(model, p, u, steps=40)[..., 0]
        assert (states - dg.rollout(dg.Classical(), p, u, steps=40)[..., 0]).abs().max() > 1e-4  # the weights do act
    c, k = p.pde.capacity, p.pde.diffusion
    assert isinstance(c, dg.Curve)
    V = p.source_mass.row_sums()[0, 0]
    heat = c.integral(states) @ V
    assert (heat - heat[:, :1]).abs().max() < 1e-12 * heat.max()
    if not isinstance(k, dg.Curve):
        return
    # the potential, the integral of theta over H, falls
    s = torch.linspace(0, 1, 4001, dtype=torch.float64)
    table = torch.cat([s.new_zeros(1), torch.cumulative_trapezoid(k.integral(s) * c.value(s), s)])
    place = (states * 4000).clamp(0, 3999).long()
    potential = torch.lerp(table[place], table[place + 1], states * 4000 - place) @ V
    assert bool((potential.diff(dim=1) < 1e-5 * potential[:, :1]).all()) and float(states.max()) < 1.01


def test_learned_diffusivities_can_be_found_again() -> None:
    """Data of a turned material on the curves of the equation: training through rollouts comes close."""
    p = melting(5)
    u = torch.rand(1, p.mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        truth = dg.rollout(shaken(untrained(p, free=True), 0.3), p, u, steps=4)
    model = untrained(p, free=True, network=False, learn_mass=False)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = (dg.rollout(model, p, u, steps=4) - truth).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


def test_shapes_of_zero_are_the_plain_stiffness() -> None:
    p = melting(4)
    raw, D = torch.zeros(p.mesh.n_cells, 3, dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64)
    same = [shaped_stiffness(p, D, given).values for given in (raw, None)]
    assert torch.equal(same[0], same[1])


def test_parts_that_are_not_there_are_refused() -> None:
    p = melting(3)
    u = torch.zeros(1, p.mesh.n_nodes, 1, dtype=torch.float64)
    for settings in ({"learn_start": True}, {"early_steps": 2}, {"calibrate": ("diffusion",)}):
        with pytest.raises(dg.InputError, match=f"a DGNet has no .*{next(iter(settings))}"):
            dg.rollout(untrained(p, **settings), p, u, steps=1)
