"""Kalman filter and smoother in square-root form: x = m + S z with z ~ N(0, I), so that the covariance S S' is never formed.

    step      m <- F m + c,  S <- [F S, G]                                                G G' the noise of the step
    reading   y = H x + noise: B = H S / noise = U diag(b) V',
              m <- m + S V diag(b / (1 + b^2)) U' (y - H m) / noise,  S <- S (I - V diag(1 - 1 / sqrt(1 + b^2)) V')

A step makes S wider. Where it has more columns than x has entries it is turned until the surplus vanishes, which loses nothing:
this is the exact filter. With a smaller `rank` the directions of least variance are left out, and their share is kept in `lost`.

The smoother goes back through the same z: turning and readings are linear maps of it, so what later readings say about z now is
what they say about z then, and what was turned away keeps its variance of one. This is the Rauch-Tung-Striebel smoother; no
covariance is inverted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

_MEMORY = 1e9  # bytes of past moments that are kept for the smoother
_ROUNDING = 1e-13  # of the largest variance: directions below are rounding


@dataclass(frozen=True, eq=False)
class Innovation:
    """A set of readings beside what was expected of them: y - H m [m] and H S / noise = U diag(b) V'."""

    gap: np.ndarray
    left: np.ndarray  # U [m, q]
    size: np.ndarray  # b [q]
    right: np.ndarray  # V [r, q]
    noise: float

    @classmethod
    def of(cls, gap: np.ndarray, seen: np.ndarray, noise: float) -> Innovation:
        """From y - H m [m] and H S [m, r]."""
        left, size, right = np.linalg.svd(seen / noise, full_matrices=False)
        return cls(gap, left, size, right.T, noise)

    def covariance(self) -> np.ndarray:
        """Of the gaps [m, m]: H S S' H' + noise^2."""
        return self.noise**2 * (np.eye(len(self.gap)) + (self.left * self.size**2) @ self.left.T)

    @property
    def chi_square(self) -> float:
        """gap' covariance^-1 gap, m on average."""
        inside = self.left.T @ self.gap
        return float((self.gap @ self.gap - (inside**2 * self.size**2 / (1 + self.size**2)).sum()) / self.noise**2)

    @property
    def log_likelihood(self) -> float:
        m = len(self.gap)
        return -0.5 * (self.chi_square + m * np.log(2 * np.pi * self.noise**2) + float(np.log1p(self.size**2).sum()))

    @property
    def shift(self) -> np.ndarray:
        """The mean of z after the readings [r]."""
        return self.right @ (self.size / (1 + self.size**2) * (self.left.T @ self.gap)) / self.noise

    def narrowed(self, S: np.ndarray) -> np.ndarray:
        """S [., r] times the root of the covariance of z after the readings."""
        return S - (S @ self.right * (1 - 1 / np.sqrt(1 + self.size**2))) @ self.right.T


@dataclass(eq=False)
class Moment:
    """What the smoother needs of one time: the estimate, the readings that made it, and how its z went into the next one's."""

    mean: np.ndarray
    root: np.ndarray
    read: list[Innovation]
    turn: np.ndarray  # [r, r of the next moment]

    @property
    def nbytes(self) -> int:
        return self.mean.nbytes + self.root.nbytes + self.turn.nbytes + sum(x.right.nbytes for x in self.read)


@dataclass(eq=False)
class Filter:
    """The estimate N(mean, root root') of x [d], and its past as far as memory reaches.

    - `rank`: most columns of the root
    - `weights` [d]: by which the entries of x are compared where directions have to be left out
    - `lost`: of every step, the share of the weighted variance that was left out
    """

    mean: np.ndarray
    root: np.ndarray
    rank: int
    weights: np.ndarray
    past: deque[Moment] = field(default_factory=deque)
    read: list[Innovation] = field(default_factory=list)
    lost: float = 0.0
    forgotten: int = 0

    def step(self, mean: np.ndarray, root: np.ndarray, noise: np.ndarray) -> None:
        """Replace m by F m + c [d] and S by [F S, G], given F S [d, r] and G [d, q]."""
        kept, turn, lost = turned(root, noise, self.rank, self.weights)
        self.past.append(Moment(self.mean, self.root, self.read, turn))
        while sum(m.nbytes for m in self.past) > _MEMORY and len(self.past) > 1:
            self.past.popleft()
            self.forgotten += 1
        self.mean, self.root, self.read, self.lost = mean, kept, [], max(self.lost, lost)

    def update(self, innovation: Innovation) -> None:
        """Take readings in."""
        self.mean = self.mean + self.root @ innovation.shift
        self.root = innovation.narrowed(self.root)
        self.read.append(innovation)

    def smoothed(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Mean [d], S [d, r] and the covariance C [r, r] of z, from now back to the earliest moment kept: x has the one S C S'."""
        z, C = np.zeros(self.root.shape[1]), np.eye(self.root.shape[1])
        yield self.mean, self.root, C
        read = self.read
        for moment in reversed(self.past):
            for innovation in reversed(read):
                z = innovation.shift + innovation.narrowed(z[None])[0]
                C = innovation.narrowed(innovation.narrowed(C).T).T
            z = moment.turn @ z
            C = np.eye(len(z)) + moment.turn @ (C - np.eye(len(C))) @ moment.turn.T
            yield moment.mean + moment.root @ z, moment.root, C
            read = moment.read


def turned(root: np.ndarray, noise: np.ndarray, rank: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """[root, noise] in at most `rank` columns, the turn Q of the root's columns [r, rank], and the share of variance left out."""
    wide, r = np.concatenate([root, noise], axis=1), root.shape[1]
    d, width = wide.shape
    if width <= min(rank, d):
        return wide, np.eye(r, width), 0.0
    if rank >= d:
        Q, R = np.linalg.qr(wide.T)
        return R.T, Q[:r], 0.0
    scaled = weights[:, None] * wide
    variance, V = np.linalg.eigh(scaled.T @ scaled)
    variance, V = variance[::-1].clip(min=0.0), V[:, ::-1]
    kept = min(rank, max(1, int((variance > _ROUNDING * variance[0]).sum())))
    total = float(variance.sum())
    return wide @ V[:, :kept], V[:r, :kept], float(variance[kept:].sum()) / total if total > 0 else 0.0
