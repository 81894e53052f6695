"""Least squares on rollouts: the loop, the evidence for noise and smoothness, and what must never be silently wrong."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from dgnet.discovery.least_squares import Differences, Prior, Sums, least_squares
from dgnet.errors import InputError, SolveError
from dgnet.projects.check import fitted

Tensor = torch.Tensor
T = torch.linspace(0, 2, 60, dtype=torch.float64)


def decay(theta: Tensor) -> Tensor:
    return theta[0].exp() * (-theta[1].exp() * T).exp()


def noise(size: float, seed: int, count: int = len(T)) -> Tensor:
    return size * torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("sides", [(1.0, -1.0), (1.0,)])
def test_numbers_are_found_and_one_that_nothing_depends_on_stays(sides: tuple[float, ...]) -> None:
    true = torch.tensor([0.7, -0.4], dtype=torch.float64)
    start = torch.tensor([-2.0, 1.5, 0.3], dtype=torch.float64)
    found = least_squares(lambda theta: Differences(lambda x: decay(x) - decay(true), theta, sides=sides), start, rounds=30,
                          longest=1.0, settled=1e-8)
    assert found.settled and found.theta[:2].tolist() == pytest.approx(true.tolist(), abs=1e-6) and float(found.theta[2]) == 0.3
    assert all(b <= a for a, b in pairwise(found.history)) and len(found.history) > 3


def test_steps_are_no_longer_than_asked_for_and_halved_where_rollouts_break_down() -> None:
    tried = []

    def residual(theta: Tensor) -> Tensor:
        tried.append(float(theta))
        if float(theta) > 0.6:
            raise SolveError("blown up")
        return theta - 5.0

    found = least_squares(lambda theta: Differences(residual, theta), torch.zeros(1, dtype=torch.float64), rounds=1, longest=1.0)
    assert float(found.theta) == pytest.approx(0.5) and max(tried) == pytest.approx(1.0) and not found.settled
    with pytest.raises(SolveError):  # the start itself is not something to step back from
        least_squares(lambda theta: Differences(residual, theta), torch.ones(1, dtype=torch.float64))
    with pytest.raises(InputError, match="between 1 and 64 numbers"):
        Differences(residual, torch.zeros(65, dtype=torch.float64))


def test_a_prior_finds_the_noise_and_bars_that_cover() -> None:
    """Over 40 draws standard errors are those of the scatter, whatever the size of the noise."""
    true, off = torch.tensor([0.7, -0.4], dtype=torch.float64), []
    for seed in range(40):
        size = 10.0 ** -(seed % 3 + 1)
        data = decay(true) + noise(size, seed)
        found = least_squares(lambda theta, data=data: Differences(lambda x: decay(x) - data, theta), 0 * true,
                              Prior(2, free=torch.full((2,), 10.0, dtype=torch.float64)), longest=1.0, settled=1e-6)
        assert math.sqrt(found.prior.c) == pytest.approx(size, rel=0.35) and found.prior.used == pytest.approx(2.0, abs=0.02)
        off.append((found.theta - true) / found.covariance.diagonal().sqrt())
    assert 0.7 < float(torch.stack(off).square().mean()) < 1.4


def test_residuals_that_hang_together_say_less() -> None:
    """The same residual ten times over: independent, it would count tenfold; in groups of ten it counts once."""
    true, repeats = torch.tensor([0.7, -0.4], dtype=torch.float64), 10
    data = decay(true) + noise(0.05, 0)

    def once(theta: Tensor) -> Differences:
        return Differences(lambda x: decay(x) - data, theta)

    def grouped(theta: Tensor) -> Sums:
        p = once(theta)
        return Sums(repeats * p.matrix, -repeats * p.jacobian * p.r[:, None], repeats * p.misfit, p.square, repeats * p.count)

    bars = [least_squares(at, 0 * true, Prior(2), longest=1.0, settled=1e-6).covariance.diagonal().sqrt() for at in (once, grouped)]
    assert bars[1].tolist() == pytest.approx(bars[0].tolist(), rel=0.4)


@pytest.mark.parametrize("neighbours", [0, 5])
def test_evidence_finds_how_smooth_a_curve_is(neighbours: int) -> None:
    """A curve of 60 values from five noisy readings of each: nearer to the truth than their means, and its bars hold."""
    truth, ratios = torch.sin(2 * T), []
    for seed in range(8):
        data = truth.repeat(5) + noise(0.3, seed, 5 * len(T))
        prior = Prior(len(T), (slice(0, len(T)),), torch.full((len(T),), 30.0, dtype=torch.float64), neighbours)
        found = least_squares(lambda theta, data=data: Differences(lambda x: x.repeat(5) - data, theta), 0 * truth, prior, rounds=5)
        off, alpha = found.theta - truth, found.prior.alpha
        assert float(off.square().mean().sqrt()) < 0.8 * 0.3 / 5**0.5 and 3 < found.prior.used < 50
        assert math.sqrt(found.prior.c) == pytest.approx(0.3, rel=0.15)
        assert alpha is not None and (alpha.max() > 1.5 * alpha.min() if neighbours else alpha.max() == alpha.min())
        ratios.append(float((off / found.covariance.diagonal().sqrt()).square().mean()))
    assert 0.5 < np.mean(ratios) < 1.6


def test_factors_of_coefficients_are_found_from_their_misfit() -> None:
    true = {"diffusion": 3.0, "decay": 0.25}

    def misfit(factors: dict[str, float]) -> Tensor:
        if factors["diffusion"] > 50:
            raise SolveError("blown up")
        x, y = (torch.tensor([math.log(f[name]) for name in true], dtype=torch.float64) for f in (factors, true))
        return decay(x) - decay(y)

    found, left = fitted(misfit, tuple(true))
    assert found == pytest.approx(true, rel=0.02) and float(left.norm()) < 0.02
    assert np.isfinite(list(found.values())).all()
