"""Errors on arrays."""

import pytest
import torch

from dgnet.errors import InputError
from dgnet.evaluation.metrics import mse, rne, rne_over_time, score


def test_against_plain_formulas() -> None:
    true = torch.randn(2, 5, 7, 2, dtype=torch.float64) + 300
    wrong = true + 0.1 * torch.randn_like(true)
    assert mse(wrong, true) == pytest.approx(float(((wrong - true) ** 2).mean()))
    assert rne(wrong, true) == pytest.approx(float((wrong - true).norm() / true.norm()))
    assert rne(wrong, true, (300.0, 300.0)) > 50 * rne(wrong, true)
    assert rne(torch.full_like(true, 300.0), true, (300.0, 300.0)) == pytest.approx(1.0)
    over = rne_over_time(wrong, true)
    assert over.shape == (5,) and float(over[3]) == pytest.approx(rne(wrong[:, 3:4], true[:, 3:4]))


def test_score_holds_every_field() -> None:
    true = torch.ones(1, 3, 4, 2)
    wrong = true.clone()
    wrong[..., 1] += 0.5
    found = score(wrong, true, fields=("u", "v"))
    assert found.fields["u"] == 0 and found.fields["v"] == pytest.approx(0.5)
    assert found.mse == pytest.approx(0.125) and found.rne == found.fluctuation == pytest.approx(0.125**0.5)


def test_shapes_must_agree() -> None:
    with pytest.raises(InputError, match="predicted states have shape"):
        mse(torch.zeros(1, 2, 3, 1), torch.zeros(1, 2, 4, 1))
