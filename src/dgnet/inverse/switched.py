"""Histories that are switched: constant between a few switches, often off. Their posterior is sampled.

A history is a sum of stretches, each either off or on with a level ~ N(0, tau^2), between switches that all take the same time (a
ramp). For given switches the readings are linear in the levels, so these are integrated out:

    y ~ N(0, sigma^2 I + tau^2 G G'),   G = H (stretches),   probability of k switches ~ (1 / (2 positions))^k

Switches come, go, move and turn stretches on or off by Metropolis steps; sigma and tau are drawn from their conditional laws. A
step costs a Cholesky factorisation of the few levels. Times of switches stay as uncertain as the readings leave them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve, solve_triangular

_PER_STEP = 2  # positions in a step at which ramps are tabulated; between them they are linear
_RAMPS = (0.01, 1.0, 2.0, 4.0)  # how long a switch takes, in steps
_WARM, _KEPT, _MOVES = 200, 500, 25  # rounds before and after, Metropolis steps of each
_REACH = (0.05, 0.2, 1.0, 4.0)  # of a switch that moves, in positions
_COLD = 0.02  # the first rounds see the data this weakly, so that switches find their places

Stretches = tuple[tuple[float, bool], ...]
"""Of one history: where each stretch begins (in positions), and whether it is on."""


@dataclass(frozen=True, eq=False)
class Sampled:
    """Histories [n, count * steps], and about the logarithm of their evidence (the mean of what was visited)."""

    histories: np.ndarray
    evidence: float
    variance: float  # of the noise, the mean
    level: float  # tau^2, the median
    numbers: float  # switches and levels, the mean


def sample(y: np.ndarray, spare: int, rest: float, H: np.ndarray, count: int, steps: int, variance: float, hold: bool) -> Sampled:
    """From readings y = H x + noise; `spare` more of them see nothing of x and have the sum of squares `rest`.

    `variance` is that of the noise: a first value, or the true one where it is to be held.
    """
    chain = _Chain(y, spare, rest, H, count, steps, variance)
    kept, variances, levels, numbers, values = [], [], [], [], []
    for k in range(_WARM + _KEPT):
        chain.move(_MOVES * (2 if k < _WARM else 1), min(1.0, _COLD ** (1 - 1.5 * k / _WARM)))
        x = chain.redraw(hold)
        if k >= _WARM:
            kept.append(x)
            variances.append(chain.variance)
            levels.append(chain.level)
            numbers.append(sum(2 * len(s) - 1 for s in chain.state))
            values.append(chain.value)
    value = float(np.mean(values))
    return Sampled(np.array(kept), value, float(np.mean(variances)), float(np.median(levels)), float(np.mean(numbers)))


def ramps(steps: int, duration: float) -> np.ndarray:
    """Averages over the steps [positions + 1, steps] of a history that goes from 0 to 1 within a duration (in steps).

    Positions are those of the middle of the ramp; at the first one it is on from before the start, at the last one never.
    """
    begin = np.arange(_PER_STEP * steps + 1)[:, None] / _PER_STEP - 0.5 * duration
    late = (np.arange(steps + 1) - begin).clip(min=0.0)
    integral = np.where(late > duration, late - 0.5 * duration, 0.5 * late**2 / duration)
    out = np.diff(integral, axis=1)
    out[0], out[-1] = 1.0, 0.0
    return out


class _Chain:
    def __init__(self, y: np.ndarray, spare: int, rest: float, H: np.ndarray, count: int, steps: int, variance: float) -> None:
        self.rng, self.count, self.last = np.random.default_rng(0), count, _PER_STEP * steps
        self.variance, self.readings, self.square = variance, len(y) + spare, float(y @ y) + rest
        self.ramps = [ramps(steps, duration) for duration in _RAMPS]
        seen = [np.concatenate([part @ u.T for part in np.split(H, count, axis=1)], axis=1) for u in self.ramps]
        self.products, self.right = [s.T @ s for s in seen], [s.T @ y for s in seen]
        self.first = self.level = max(float(y @ y) / max(float((H**2).sum()), 1e-300), 1e-300)
        self.ramp = 1
        self.state: list[Stretches] = [((0.0, False),)] * count
        self.value = self.score(self.state, self.ramp)

    def columns(self, state: list[Stretches]) -> tuple[np.ndarray, np.ndarray]:
        """Which tabulated ramps [4 n] make up the n stretches that are on, and their shares [4 n, n]: begin less end."""
        ends = [(j * (self.last + 1), a, b) for j, own in enumerate(state)
                for (a, on), b in zip(own, [p for p, _ in own[1:]] + [float(self.last)]) if on]
        n = len(ends)
        at, shares = np.empty(4 * n, dtype=np.int64), np.zeros((4 * n, n))
        for k, (first, *places) in enumerate(ends):
            for m, (place, sign) in enumerate(zip(places, (1.0, -1.0))):
                left = min(int(place), self.last - 1)
                at[4 * k + 2 * m: 4 * k + 2 * m + 2] = first + left, first + left + 1
                shares[4 * k + 2 * m: 4 * k + 2 * m + 2, k] = sign * (1 - place + left), sign * (place - left)
        return at, shares

    def normal(self, state: list[Stretches], ramp: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """G'G, G'y and the factor of G'G + sigma^2 / tau^2."""
        at, shares = self.columns(state)
        G = shares.T @ self.products[ramp][at[:, None], at] @ shares
        A = G + (self.variance / self.level) * np.eye(len(G))
        return G, shares.T @ self.right[ramp][at], np.linalg.cholesky(A)

    def score(self, state: list[Stretches], ramp: int) -> float:
        """Logarithm of the evidence of these switches, times their probability."""
        switches = sum(len(own) - 1 for own in state)
        try:
            _, right, factor = self.normal(state, ramp)
        except np.linalg.LinAlgError:
            return -math.inf
        half = np.linalg.solve(factor, right)
        size = 2 * float(np.log(np.diagonal(factor)).sum()) + len(right) * math.log(self.level / self.variance)
        data = self.readings * math.log(self.variance) + size + (self.square - float(half @ half)) / self.variance
        return -0.5 * data - switches * math.log(2 * self.last)

    def proposed(self) -> tuple[list[Stretches], int, float] | None:
        """Another state, another ramp, and the logarithm of how much rarer the way here is than the way back."""
        rng, kind, j = self.rng, self.rng.random(), int(self.rng.integers(self.count))
        own, state, extra = list(self.state[j]), list(self.state), 0.0
        if kind < 0.1:
            return state, int(rng.integers(len(_RAMPS))), 0.0
        if kind < 0.3:
            place = float(rng.uniform(0, self.last))
            own.insert(sum(p < place for p, _ in own), (place, bool(rng.random() < 0.5)))
            extra = math.log(2 * self.last / (len(own) - 1))
        elif kind < 0.45 or len(own) == 1:
            k = int(rng.integers(len(own)))
            own[k] = own[k][0], not own[k][1]
        else:
            k = int(rng.integers(1, len(own)))
            if kind < 0.65:
                extra = -math.log(2 * self.last / (len(own) - 1))
                own.pop(k)
            else:
                place = own[k][0] + _REACH[int(rng.integers(len(_REACH)))] * float(rng.standard_normal())
                if not own[k - 1][0] < place < (own[k + 1][0] if k + 1 < len(own) else self.last):
                    return None
                own[k] = place, own[k][1]
        state[j] = tuple(own)
        return state, self.ramp, extra

    def move(self, times: int, share: float) -> None:
        """Metropolis steps; the evidence counts with this exponent."""
        for _ in range(times):
            found = self.proposed()
            if found is not None:
                value = self.score(found[0], found[1])
                if math.log(self.rng.random()) < share * (value - self.value) + found[2]:
                    self.state, self.ramp, self.value = found[0], found[1], value

    def redraw(self, hold: bool) -> np.ndarray:
        """Levels, and then noise and tau, from their conditional laws; the histories [count * steps]."""
        x, left = np.zeros((self.count, self.ramps[0].shape[1])), self.square
        G, right, factor = self.normal(self.state, self.ramp)
        levels = cho_solve((factor, True), right) if len(right) else right
        if len(right):
            levels = levels + math.sqrt(self.variance) * solve_triangular(factor.T, self.rng.standard_normal(len(right)))
            left += float(levels @ G @ levels - 2 * levels @ right)
            at, shares = self.columns(self.state)
            table = self.ramps[self.ramp]
            np.add.at(x, at // (self.last + 1), (shares @ levels)[:, None] * table[at % (self.last + 1)])
        if not hold:
            self.variance = 0.5 * max(left, 1e-300) / self.rng.gamma(0.5 * self.readings)
        self.level = (0.5 * float(levels @ levels) + self.first) / self.rng.gamma(0.5 * len(levels) + 1)
        self.value = self.score(self.state, self.ramp)
        return x.ravel()
