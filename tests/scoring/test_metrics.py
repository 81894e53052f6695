"""Errors on arrays."""

import math

import pytest
import torch

from dgnet.errors import InputError
from dgnet.scoring.metrics import Sums, error_ratio, rne, score


def test_against_plain_formulas() -> None:
    true = torch.randn(2, 5, 7, 2, dtype=torch.float64) + 300
    wrong = true + 0.1 * torch.randn_like(true)
    assert score(wrong, true, fields=("u", "v")).mse == pytest.approx(float(((wrong - true) ** 2).mean()))
    assert rne(wrong, true) == pytest.approx(float((wrong - true).norm() / true.norm()))
    assert rne(wrong, true, (300.0, 300.0)) > 50 * rne(wrong, true)
    assert rne(torch.full_like(true, 300.0), true, (300.0, 300.0)) == pytest.approx(1.0)
    over = Sums.of(wrong, true).rne_over_time()
    assert over.shape == (5,) and float(over[3]) == pytest.approx(rne(wrong[:, 3:4], true[:, 3:4]))


def test_score_holds_every_field() -> None:
    true = torch.ones(1, 3, 4, 2)
    wrong = true.clone()
    wrong[..., 1] += 0.5
    found = score(wrong, true, fields=("u", "v"))
    assert found.fields["u"] == 0 and found.fields["v"] == pytest.approx(0.5)
    assert found.mse == pytest.approx(0.125) and found.rne == found.rne_from_offset == pytest.approx(0.125**0.5)


def test_shapes_must_agree() -> None:
    with pytest.raises(InputError, match="predicted states have shape"):
        rne(torch.zeros(1, 2, 3, 1), torch.zeros(1, 2, 4, 1))


def test_numbers_by_hand() -> None:
    """Truth 2, 2, 4, 4 at two nodes; errors 0, 0.1, 0.3, 0.5 at the second one."""
    true = torch.tensor([2.0, 2.0, 4.0, 4.0], dtype=torch.float64)[None, :, None, None].expand(1, 4, 2, 1)
    wrong = true.clone()
    wrong[0, :, 1, 0] += torch.tensor([0.0, 0.1, 0.3, 0.5], dtype=torch.float64)
    found = score(wrong, true, offset=(1.0,), dt=0.5)
    assert found.mse == pytest.approx(0.35 / 8) and found.log10_mse == pytest.approx(math.log10(0.35 / 8))
    assert found.rne == pytest.approx(math.sqrt(0.35 / (2 * (4 + 4 + 16 + 16))))
    assert found.rne_from_offset == pytest.approx(math.sqrt(0.35 / (2 * (1 + 1 + 9 + 9))))
    assert found.rne_final == pytest.approx(math.sqrt(0.25 / 32))
    assert found.until is None  # 0.5 / sqrt(32) = 0.088
    wrong[0, 2, 0, 0] += 0.7  # sqrt(0.49 + 0.09) / sqrt(32) = 0.135 at the third stored time
    later = score(wrong, true, dt=0.5)
    assert later.until == pytest.approx(1.0) and later.until_share == pytest.approx(1.0 / 1.5)
    assert later.trajectories == (pytest.approx(later.rne_from_offset),)


def test_pieces_of_a_test_set_give_the_same() -> None:
    true = torch.randn(5, 6, 7, 2, dtype=torch.float64)
    wrong = true + 0.1 * torch.randn_like(true)
    parts = [Sums.of(wrong[a:b], true[a:b], (1.0, 2.0)) for a, b in ((0, 2), (2, 5))]
    joined, whole = Sums.join(parts).score(("u", "v")), score(wrong, true, (1.0, 2.0), ("u", "v"))
    assert joined == whole and len(whole.trajectories) == 5
    over = Sums.join(parts).rne_over_time()
    assert torch.allclose(over, Sums.of(wrong, true).rne_over_time())


def test_what_diverges_is_infinitely_wrong() -> None:
    true = torch.ones(1, 3, 4, 1)
    for bad in (math.nan, math.inf):
        wrong = true.clone()
        wrong[0, 2, 1, 0] = bad
        found = score(wrong, true, dt=2.0)
        assert found.mse == found.rne == found.rne_final == math.inf and found.until == 4.0


def test_a_truth_of_zero_has_no_relative_error() -> None:
    true = torch.zeros(1, 3, 4, 1)
    true[0, 1:] = 1.0
    wrong = true + 0.01
    found = score(wrong, true)
    assert found.until is None and math.isfinite(found.rne)
    assert score(torch.zeros(1, 2, 3, 1), torch.zeros(1, 2, 3, 1)).rne == 0.0
    with pytest.raises(InputError, match="2 offsets were given for 3 fields"):
        Sums.of(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3), (1.0, 2.0))


def test_single_values_follow_the_same_rules() -> None:
    """RNE of a truth of zero, of what is not a number, and at each time: as in `Score`."""
    zero = torch.zeros(1, 2, 3, 1)
    assert rne(zero, zero) == 0.0 and rne(zero + 1, zero) == math.inf and rne(zero * math.nan, zero + 1) == math.inf
    true = torch.cat([zero, zero + 2], 1)
    wrong = true + torch.tensor([0.0, 1.0, 1.0, math.nan])[None, :, None, None]
    assert Sums.of(wrong, true).rne_over_time().tolist() == [0.0, math.inf, 0.5, math.inf]
    assert Sums.of(wrong, true, (1.0,)).rne_over_time(offset=True).tolist() == [0.0, 1.0, 1.0, math.inf]


def test_the_error_ratio_is_better_below_one() -> None:
    assert error_ratio(0.1, (0.4, 0.2)) == 0.5 and error_ratio(0.1, (None, 0.05)) == 2.0
    assert error_ratio(None, (0.1, 0.2)) == error_ratio(None, (None, None)) == math.inf and error_ratio(0.1, (None, None)) == 0.0
