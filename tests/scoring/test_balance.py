"""The balance that people are told: of the steps that a model makes, or none."""

import pytest
import torch

import dgnet as dg
from dgnet.scoring.balance import balance_of


@torch.no_grad()
@pytest.mark.parametrize("model", [dg.Classical(), dg.Classical(start=0), dg.Classical(consistent=0.0), dg.Classical(theta=1.0),
                                   dg.Classical(scheme="dg1")], ids=lambda m: f"{m.name} {m.theta}")
def test_it_closes_or_there_is_none(model: dg.Classical) -> None:
    problem = dg.Problem(dg.box((5, 4)), dg.PDE(diffusion=0.2, decay=0.3), [dg.Dirichlet("left", 1.0)], dt=0.02)
    balance = balance_of(model, problem)
    if balance is None:
        assert model.theta != 0.5 or model.moments > 1
        return
    for u in dg.rollout(model, problem, torch.zeros(1, 30, 1, dtype=torch.float64), steps=20)[0]:
        balance.state(u)
    assert balance.totals()[0].closes < 1e-12
