"""Gaussian answers to linear questions: y = sum of H_b x_b + noise, with a prior on each x_b whose strength the data choose.

    x_b ~ N(0, tau_b^2 C_b(choice)),   noise ~ N(0, sigma^2)   =>   y ~ N(0, S),  S = sum of tau_b^2 H_b C_b H_b' + sigma^2 I
    mean of x_b = tau_b^2 C_b H_b' S^-1 y,     covariance = tau_b^2 C_b - tau_b^4 C_b H_b' S^-1 H_b C_b

tau_b and sigma maximise the evidence N(y; 0, S) for every choice of smoothness and length; the answers are mixed by their evidence,
so that what the data do not settle widens the bands. Everything happens in the space of the readings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, qr
from scipy.optimize import minimize
from scipy.special import ndtri

from dgnet.errors import InputError

_FLOOR = 1e-7  # smallest noise, relative to the readings: rounding of what they are compared with
_NEGLIGIBLE = 1e-3  # weight of a choice, against the best one

Choice = tuple[float, float]
"""Smoothness of a prior (how often its functions are differentiable, about) and the length of its correlation."""

Spread = Callable[[Choice, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, eq=False)
class Unknown:
    """Numbers x [n] that readings depend on linearly.

    - `name`: of the whole
    - `response`: H [m, n] of the readings
    - `choices`: of the prior's correlation, from which the data choose: its smoothness and its length
    - `spread`: (choice, H [k, n]) -> C H' [n, k] and the diagonal of C [n], with a mean of about 1
    """

    name: str
    response: np.ndarray
    choices: tuple[Choice, ...]
    spread: Spread


@dataclass(frozen=True, eq=False)
class Answer:
    """What readings say about one unknown.

    - `mean`, `sd` [n]: of the posterior
    - `prior_sd` [n]: what was assumed before, of the strength that the data chose
    - `length`: of the prior, the one with most evidence
    """

    name: str
    mean: np.ndarray
    sd: np.ndarray
    prior_sd: np.ndarray
    length: float

    @property
    def seen(self) -> np.ndarray:
        """Share of the prior variance that the readings remove [n]: near 0 the sensors do not see it."""
        return 1.0 - (self.sd / self.prior_sd).clip(max=1.0) ** 2

    def band(self, share: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the credible bands that hold each number with this probability."""
        reach = float(ndtri(0.5 + 0.5 * share)) * self.sd
        return self.mean - reach, self.mean + reach


@dataclass(frozen=True, eq=False)
class Posterior:
    """All answers, the noise of the readings (standard deviation), and how many numbers the readings determine."""

    answers: tuple[Answer, ...]
    noise: float
    determined: float
    fitted: np.ndarray  # [m]


def infer(y: np.ndarray, unknowns: Sequence[Unknown], noise: float | None = None) -> Posterior:
    """The posterior of all unknowns given readings y [m] (what is known taken off); `noise` where it is known."""
    data, responses, found = _searched(y, unknowns, noise)
    best = max(evidence for *_, evidence in found)
    weights = np.array([np.exp(evidence - best) for *_, evidence in found])
    chosen = [(f, w) for f, w in zip(found, weights / weights.sum()) if w > _NEGLIGIBLE * weights.max() / weights.sum()]
    total = sum(w for _, w in chosen)
    first = [np.zeros(H.shape[1]) for H in responses]
    second, prior = [np.zeros_like(x) for x in first], [np.zeros_like(x) for x in first]
    sigma = determined = 0.0
    for (_, spreads, theta, _), weight in chosen:
        share = weight / total
        tau2, s2 = np.exp(2 * theta[:-1]), float(np.exp(2 * theta[-1]))
        S = sum(t * (H @ CHt) for t, H, (CHt, _) in zip(tau2, responses, spreads)) + s2 * np.eye(len(data))
        factor = cho_factor(S)
        weighted = cho_solve(factor, data)
        for b, (t, (CHt, diagonal)) in enumerate(zip(tau2, spreads)):
            mean = t * (CHt @ weighted)
            variance = t * diagonal - t**2 * np.einsum("nm,mn->n", CHt, cho_solve(factor, CHt.T))
            first[b] += share * mean
            second[b] += share * (mean**2 + variance.clip(min=0.0))
            prior[b] += share * t * diagonal
        sigma += share * s2
        determined += share * float(len(data) - s2 * np.trace(cho_solve(factor, np.eye(len(data)))))
    top = found[int(weights.argmax())][0]
    answers = tuple(Answer(u.name, mean, np.sqrt((square - mean**2).clip(min=0.0)), np.sqrt(before), choice[1])
                    for u, mean, square, before, choice in zip(unknowns, first, second, prior, top))
    fitted = np.sum([u.response @ a.mean for u, a in zip(unknowns, answers)], axis=0)
    return Posterior(answers, float(np.sqrt(sigma)), determined, fitted)


def strongest(y: np.ndarray, unknowns: Sequence[Unknown],
              noise: float | None = None) -> tuple[tuple[Choice, ...], np.ndarray, float]:
    """The choice with most evidence for each unknown, its strength tau, and the noise; as `infer` finds them."""
    choices, _, theta, _ = max(_searched(y, unknowns, noise)[2], key=lambda f: f[-1])
    sizes = np.exp(theta)
    return choices, sizes[:-1], float(sizes[-1])


_Found = tuple[tuple[Choice, ...], list[tuple[np.ndarray, np.ndarray]], np.ndarray, float]
"""Choices, what their priors spread, logarithms of strengths and noise, evidence."""


def _searched(y: np.ndarray, unknowns: Sequence[Unknown],
              noise: float | None) -> tuple[np.ndarray, list[np.ndarray], list[_Found]]:
    """The data and the responses as far as unknowns explain them, and what was tried."""
    if noise is not None and not noise > 0:
        raise InputError(f"the noise must be positive, got {noise}")
    data, spare, rest, responses = _reduced(y, [u.response for u in unknowns])
    scale = max(float(np.sqrt(np.mean(y**2))), 1e-300)
    found: list[_Found] = []

    def settle(choices: tuple[Choice, ...]) -> None:
        spreads = [u.spread(choice, H) for u, choice, H in zip(unknowns, choices, responses)]
        grams = [H @ CHt for H, (CHt, _) in zip(responses, spreads)]
        found.append((choices, spreads, *_strongest(data, spare, rest, grams, scale, noise)))

    now = tuple(u.choices[len(u.choices) // 2] for u in unknowns)
    for b, u in enumerate(unknowns):  # one unknown after the other: all combinations would be many
        others = [(*now[:b], choice, *now[b + 1:]) for choice in u.choices if b == 0 or choice != now[b]]
        for choices in others:
            settle(choices)
        now = max(found, key=lambda f: f[-1])[0]
    return data, responses, found


def _reduced(y: np.ndarray, responses: list[np.ndarray]) -> tuple[np.ndarray, int, float, list[np.ndarray]]:
    """The same question with as many data as unknowns, where there are more: what is left over tells about the noise alone."""
    H = np.concatenate(responses, axis=1)
    if H.shape[1] >= len(y):
        return y, 0, 0.0, responses
    Q, R = qr(H, mode="economic")
    data = Q.T @ y
    pieces = np.split(R, np.cumsum([r.shape[1] for r in responses])[:-1], axis=1)
    return data, len(y) - len(data), max(0.0, float(y @ y - data @ data)), pieces


def _strongest(data: np.ndarray, spare: int, rest: float, grams: list[np.ndarray], scale: float,
               noise: float | None) -> tuple[np.ndarray, float]:
    """Logarithms of the strengths and of the noise that maximise the evidence, and its logarithm (up to a constant)."""
    floor = np.log(_FLOOR * scale)

    def full(theta: np.ndarray) -> np.ndarray:
        return np.append(theta, np.log(noise)) if noise is not None else np.append(theta[:-1], max(theta[-1], floor))

    def loss(theta: np.ndarray) -> float:
        given = full(theta).clip(-300, 300)
        s2 = float(np.exp(2 * given[-1]))
        S = sum(np.exp(2 * t) * G for t, G in zip(given, grams)) + s2 * np.eye(len(data))
        try:
            factor = cho_factor(S, lower=True)
        except np.linalg.LinAlgError:
            return 1e300
        inside = float(np.log(np.diagonal(factor[0])).sum() + 0.5 * data @ cho_solve(factor, data))
        return inside + 0.5 * (2 * spare * given[-1] + rest / s2)

    power = max(float(data @ data), 1e-300)
    begin = [0.5 * np.log(power / max(float(np.trace(G)), 1e-300)) for G in grams]
    begin += [] if noise is not None else [np.log(0.05 * scale)]
    result = minimize(loss, begin, method="Nelder-Mead", options={"xatol": 1e-2, "fatol": 1e-2, "initial_simplex": [
        begin, *(np.add(begin, step) for step in 1.5 * np.eye(len(begin)))]})
    return full(result.x), -float(result.fun)
