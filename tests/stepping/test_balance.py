"""What entered, what left and what is stored, for linear problems and materials that change with the field."""

from __future__ import annotations

import pytest
import torch

import dgnet as dg
from dgnet.problems import Condition
from dgnet.stepping import Balance, Totals

K, C = dg.Curve([250.0, 400.0], [0.1, 0.4]), dg.Curve([250.0, 400.0], [1.0, 2.0]).melting(3.0, 302.0, 304.0)
CASES: dict[str, tuple[dg.PDE, list[Condition]]] = {
    "closed": (dg.PDE(diffusion=0.1), []),
    "heat": (dg.PDE(diffusion=0.1, capacity=2.0, decay=0.1), [dg.Robin("left", 0.3, 290.0), dg.Neumann("top", 1.0)]),
    "fixed": (dg.PDE(diffusion=0.1, capacity=2.0), [dg.Dirichlet("left", 310.0), dg.Neumann("top", lambda x, t: 1 + t * x[:, 0])]),
    "flow": (dg.PDE(diffusion=0.1, velocity=[0.3, 0.1]), [dg.Dirichlet("left", 310.0), dg.Robin("right", 0.3, 290.0)]),
    "melting": (dg.PDE(diffusion=K, capacity=C), [dg.Dirichlet("left", 310.0), dg.Robin("right", 0.3, 290.0)])}


@pytest.mark.parametrize("name", CASES)
def test_the_balance_closes(name: str) -> None:
    pde, conditions = CASES[name]
    mesh, gen = dg.box((8, 8), perturb=0.2), torch.Generator().manual_seed(0)
    problem, model, t0 = dg.Problem(mesh, pde, conditions, dt=0.05), dg.Classical(), 0.7
    u0 = 300 + torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=gen)
    f = 10 * torch.rand(1, 8, mesh.n_nodes, 1, dtype=torch.float64, generator=gen)
    states = dg.rollout(model, problem, u0, f, t0=t0)
    balance = Balance(model.prepare(problem).problem, t0, start=model.start)
    for u in states[0]:
        balance.state(u)
    for one in f[0]:
        balance.source(one)
    found = balance.totals()[0]
    assert found.closes < 1e-11 and found.source > 0 and found.entered - found.left == pytest.approx(found.stored, rel=1e-10)
    assert (found.fixed != 0) == any(isinstance(c, dg.Dirichlet) for c in conditions)
    assert Totals.of(found.as_dict()) == found
    assert "entered" in found.sentence("J/m") and "closes to" in found.sentence("J/m")


def test_a_gap_is_seen() -> None:
    """A state that somebody has warmed by hand."""
    mesh = dg.box((4, 4))
    problem = dg.Problem(mesh, dg.PDE(diffusion=0.1), [], dt=0.1)
    balance, u = Balance(problem), torch.zeros(25, 1, dtype=torch.float64)
    for k in range(4):
        balance.state(u + (k == 3))
    assert balance.totals()[0].gap == pytest.approx(1.0) and balance.totals()[0].closes == pytest.approx(1.0)
