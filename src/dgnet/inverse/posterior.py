"""Gaussian answers to linear questions: y = sum of H_b x_b + noise, with a prior on each x_b whose strength the data choose.

    x_b ~ N(0, tau_b^2 C_b(choice)),   noise ~ N(0, sigma^2)   =>   y ~ N(0, S),  S = sum of tau_b^2 H_b C_b H_b' + sigma^2 I
    mean of x_b = tau_b^2 C_b H_b' S^-1 y,     covariance = tau_b^2 C_b - tau_b^4 C_b H_b' S^-1 H_b C_b

tau_b and sigma maximise the evidence N(y; 0, S) for every choice of smoothness and length; the answers are mixed by their evidence,
so that what the data do not settle widens the bands. Everything happens in the space of the readings. Histories that are rough are
also tried with a prior of switches (`switched`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, qr, solve_triangular
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.optimize import minimize
from scipy.special import ndtri

from dgnet.arguments import Share, checked
from dgnet.errors import LARGEST, InputError
from dgnet.inverse.switched import sample
from dgnet.progress import Report

_FLOOR = 1e-7  # smallest noise, relative to the readings: rounding of what they are compared with
_NEGLIGIBLE = 1e-3  # weight of a choice, against the best one
_HOPELESS = -1e250  # evidence of what cannot be computed
_ROUGH = 1.5  # histories whose best smoothness is at most this may be switched ones

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
    - `switched`: how many histories of how many steps x holds, where they may be switched on and off; None for what is smooth
    - `strength`: the standard deviation before any reading; None where the readings are to choose it
    - `wanted`: whether it is asked for, and counts among what the readings determine
    """

    name: str
    response: np.ndarray
    choices: tuple[Choice, ...]
    spread: Spread
    switched: tuple[int, int] | None = None
    strength: float | None = None
    wanted: bool = True

    def like(self, found: Posterior | None) -> Unknown:
        """Without switches, and with the choice that an answer of this name made, where there is one."""
        chosen = [] if found is None else [a.choice for a in found.answers if a.name == self.name]
        return replace(self, choices=tuple(chosen) or self.choices, switched=None)


@dataclass(frozen=True, eq=False)
class Answer:
    """What readings say about one unknown.

    - `mean`, `sd` [n]: of the posterior
    - `prior_sd` [n]: what was assumed before, of the strength that the data chose
    - `choice`: of the prior, the one with most evidence
    - `switched`: the probability that histories are switched on and off instead of changing gradually (`sensors.switched`)
    """

    name: str
    mean: np.ndarray
    sd: np.ndarray
    prior_sd: np.ndarray
    choice: Choice
    switched: float = 0.0

    @property
    def length(self) -> float:
        return self.choice[1]

    @property
    def seen(self) -> np.ndarray:
        """Share of the prior variance that the readings remove [n]: near 0 the sensors do not see it."""
        return 1.0 - (self.sd / self.prior_sd).clip(max=1.0) ** 2

    @checked
    def band(self, share: Share = 0.9) -> tuple[np.ndarray, np.ndarray]:
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

    def answer(self, name: str) -> Answer:
        return next(a for a in self.answers if a.name == name)

    @property
    def numbers(self) -> dict[str, np.ndarray]:
        """The means of all unknowns."""
        return {a.name: a.mean for a in self.answers}


def infer(y: np.ndarray, unknowns: Sequence[Unknown], noise: float | None = None, report: Report | None = None) -> Posterior:
    """The posterior of all unknowns given readings y [m] (what is known taken off); `noise` where it is known."""
    data, spare, rest, responses, found = _searched(y, unknowns, noise, report)
    top = max(found, key=lambda f: f.evidence)
    if not _HOPELESS < top.evidence < np.inf:
        raise InputError("nothing explains the readings" + ("" if noise is None else f" up to a noise of {noise:g}: is it too "
                                                            "small?"))
    wanted = [u.wanted for u in unknowns]
    parts = [f.answered(data, wanted) for f in found if f.evidence >= top.evidence + np.log(_NEGLIGIBLE)]
    for b, u in enumerate(unknowns):
        if u.switched is not None and top.choices[b][0] <= _ROUGH:
            parts.append(top.switched(b, u.switched, data, spare, rest, responses, noise is not None))
    best = max(part.evidence for part in parts)
    weights = np.array([np.exp(part.evidence - best) for part in parts])
    weights /= weights.sum()

    def mixed(values: Sequence[float] | Sequence[np.ndarray]) -> Any:
        return sum(w * value for w, value in zip(weights, values))

    answers = []
    for b, u in enumerate(unknowns):
        mean = mixed([p.mean[b] for p in parts])
        square = mixed([p.mean[b] ** 2 + p.variance[b].clip(min=0.0) for p in parts])
        answers.append(Answer(u.name, mean, np.sqrt((square - mean**2).clip(min=0.0)), np.sqrt(mixed([p.prior[b] for p in parts])),
                              top.choices[b], float(sum(w for w, p in zip(weights, parts) if p.switches == b))))
    fitted = np.sum([u.response @ a.mean for u, a in zip(unknowns, answers)], axis=0)
    return Posterior(tuple(answers), float(np.sqrt(mixed([p.noise for p in parts]))), float(mixed([p.determined for p in parts])),
                     fitted)


def strongest(y: np.ndarray, unknowns: Sequence[Unknown],
              noise: float | None = None) -> tuple[tuple[Choice, ...], np.ndarray, float]:
    """The choice with most evidence for each unknown, its strength tau, and the noise; as `infer` finds them."""
    top = max(_searched(y, unknowns, noise)[-1], key=lambda f: f.evidence)
    return top.choices, np.sqrt(top.strength), float(np.sqrt(top.noise))


def _searched(y: np.ndarray, unknowns: Sequence[Unknown], noise: float | None,
              report: Report | None = None) -> tuple[np.ndarray, int, float, list[np.ndarray], list[_Chosen]]:
    """The data and the responses as far as unknowns explain them (`_reduced`), and what was tried."""
    if noise is not None and not 1 / LARGEST <= noise <= LARGEST:
        raise InputError(f"the noise must be a positive number from {1 / LARGEST:g} to {LARGEST:g}, got {noise}")
    data, spare, rest, responses = _reduced(y, [u.response for u in unknowns])
    scale = max(float(np.sqrt(np.mean(y**2))), 1e-300)
    found: list[_Chosen] = []
    trials = sum(len(u.choices) - (b > 0) for b, u in enumerate(unknowns))

    def settle(choices: tuple[Choice, ...]) -> None:
        if report is not None:
            report("priors", len(found), trials)
        spreads = [u.spread(choice, H) for u, choice, H in zip(unknowns, choices, responses)]
        grams = [H @ CHt for H, (CHt, _) in zip(responses, spreads)]
        theta, evidence = _strongest(data, spare, rest, grams, scale, [*(u.strength for u in unknowns), noise])
        found.append(_Chosen(choices, spreads, grams, np.exp(2 * theta[:-1]), float(np.exp(2 * theta[-1])), evidence))

    now = tuple(u.choices[len(u.choices) // 2] for u in unknowns)
    for b, u in enumerate(unknowns):  # one unknown after the other: all combinations would be many
        others = [(*now[:b], choice, *now[b + 1:]) for choice in u.choices if b == 0 or choice != now[b]]
        for choices in others:
            settle(choices)
        now = max(found, key=lambda f: f.evidence).choices
    return data, spare, rest, responses, found


@dataclass(frozen=True, eq=False)
class _Part:
    """One explanation of the readings: its evidence, and of each unknown mean, variance and variance before any reading."""

    evidence: float
    mean: list[np.ndarray]
    variance: list[np.ndarray]
    prior: list[np.ndarray]
    noise: float  # its variance
    determined: float
    switches: int = -1  # the number of the unknown that is switched


@dataclass(frozen=True, eq=False)
class _Chosen:
    """Gaussian priors with the strengths tau^2 and the noise sigma^2 that have the most evidence."""

    choices: tuple[Choice, ...]
    spreads: list[tuple[np.ndarray, np.ndarray]]
    grams: list[np.ndarray]
    strength: np.ndarray
    noise: float
    evidence: float

    def covariance(self, without: int = -1) -> np.ndarray:
        """Of the readings."""
        size = self.noise * np.eye(len(self.grams[0]))
        return size + sum(t * G for b, (t, G) in enumerate(zip(self.strength, self.grams)) if b != without)

    def answered(self, data: np.ndarray, wanted: Sequence[bool]) -> _Part:
        """The Gaussian posterior."""
        factor = cho_factor(self.covariance())
        explained = [t * G for t, G, asked in zip(self.strength, self.grams, wanted) if asked]
        determined = float(np.trace(cho_solve(factor, sum(explained)))) if explained else 0.0
        return self._part(factor, data, self.evidence, determined)

    def _part(self, factor: tuple[np.ndarray, bool], data: np.ndarray, evidence: float, determined: float) -> _Part:
        weighted = cho_solve(factor, data)
        mean = [t * (CHt @ weighted) for t, (CHt, _) in zip(self.strength, self.spreads)]
        variance = [t * diagonal - t**2 * np.einsum("nm,mn->n", CHt, cho_solve(factor, CHt.T))
                    for t, (CHt, diagonal) in zip(self.strength, self.spreads)]
        prior = [t * diagonal for t, (_, diagonal) in zip(self.strength, self.spreads)]
        return _Part(evidence, mean, variance, prior, self.noise, determined)

    def switched(self, b: int, shape: tuple[int, int], data: np.ndarray, spare: int, rest: float, responses: list[np.ndarray],
                 hold: bool) -> _Part:
        """The unknown b with a prior of switched histories, all others as they are."""
        covariance = self.covariance(b)
        half = cholesky(covariance / self.noise, lower=True)  # of what the others and the noise leave, in units of the noise
        y, H = (solve_triangular(half, x, lower=True) for x in (data, responses[b]))
        found = sample(y, spare, rest, H, *shape, self.noise, hold)
        size = float(np.log(np.diagonal(half)).sum())
        factor = cho_factor(covariance)
        mean = found.histories.mean(0)
        part = self._part(factor, data - responses[b] @ mean, found.evidence - size, found.numbers)
        moved = cho_solve(factor, responses[b] @ (found.histories - mean).T)  # [m, samples]
        for c, (t, (CHt, _)) in enumerate(zip(self.strength, self.spreads)):
            part.variance[c] += (t * (CHt @ moved)).var(1)
        part.mean[b], part.variance[b] = mean, found.histories.var(0)
        part.prior[b] = np.full(len(mean), 0.5 * found.level)
        return replace(part, noise=found.variance, switches=b)


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
               given: Sequence[float | None]) -> tuple[np.ndarray, float]:
    """Logarithms of the strengths and of the noise that maximise the evidence, and its logarithm (up to a constant).

    `given`: those that are known, the noise last; None for the others.
    """
    floor, free = np.log(_FLOOR * scale), [k for k, value in enumerate(given) if value is None]
    n = len(data)
    table = np.stack(grams).reshape(len(grams), n * n)
    known = np.array([0.0 if value is None else np.log(value) for value in given])

    def full(theta: np.ndarray) -> np.ndarray:
        out = known.copy()
        out[free] = np.clip(theta, -300, 300)
        out[-1] = max(out[-1], floor) if given[-1] is None else out[-1]
        return out

    def loss(theta: np.ndarray) -> float:
        now = full(theta)
        s2 = float(np.exp(2 * now[-1]))
        S = np.exp(2 * now[:-1]) @ table
        S[::n + 1] += s2
        factor, bad = dpotrf(S.reshape(n, n).T, lower=1, overwrite_a=1)  # without the copies and checks of `cho_factor`
        if bad:
            return 1e300
        inside = float(np.log(np.diagonal(factor)).sum() + 0.5 * data @ dpotrs(factor, data, lower=1)[0])
        value = inside + 0.5 * (2 * spare * now[-1] + rest / s2)
        return value if np.isfinite(value) else 1e300

    if not free:
        return known, -loss(np.zeros(0))
    power = max(float(data @ data), 1e-300)
    start = [*(0.5 * np.log(power / max(float(np.trace(G)), 1e-300)) for G in grams), np.log(0.05 * scale)]
    begin = [start[k] for k in free]
    result = minimize(loss, begin, method="Nelder-Mead", options={"xatol": 1e-2, "fatol": 1e-2, "initial_simplex": [
        begin, *(np.add(begin, step) for step in 1.5 * np.eye(len(begin)))]})
    return full(result.x), -float(result.fun)
