"""Least squares on rollouts: one Gauss-Newton for everything that is found from data.

    minimise  |r(theta)|^2 + c ( sum over i of alpha_i (B theta)_i^2 + sum over k of (theta_k / s_k)^2 )

r are residuals of rollouts, c is their variance, B takes second differences (bends), s are standard deviations before any data. A
step goes to where the linearised problem leads, is no longer than asked for, and is halved until the sum does not grow. With a
`Prior`, c and the smoothness alpha are those that make the data most likely (evidence): with the covariance S = c (J^T J + c P)^-1,

    c        where residuals are independent |r|^2 / (m - used), used = tr(S J^T J) / c: how many numbers the data decide;
             where they hang together in groups, what groups contribute to the gradient against what J^T J says
    alpha    (number of bends - sum of alpha B S B^T) / |B theta|^2, one for a block of numbers; or, for curves that bend in places
             only, 1 / ((B theta)^2 + B S B^T) in the mean over neighbouring bends

Use: a function from theta to a `Point`: `Differences` of a residual, or `Sums` that a rollout made together with its tangents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import torch

from dgnet.errors import InputError, SolveError

Tensor = torch.Tensor

MAX_NUMBERS = 64
"""Numbers that `Differences` takes: each costs two rollouts a step."""
_HALVINGS, _EVIDENCE_ROUNDS, _EVIDENCE_CHANGE = 6, 30, 0.02
_RIDGE = 1e-12  # of the largest diagonal entry: a number that nothing depends on stays where it is
_STIFFEST = 1e9  # times what the data say, the most that smoothness may weigh: beyond it rounding decides


class Point(Protocol):
    """Residuals r [m] and their derivatives at numbers theta [K].

    - `misfit`: the sum to be minimised, |r|^2 or a robust one; `square`: mean of r^2; `count`: m
    - `matrix`: J^T J [K, K]; `downhill`: -J^T r [K]
    - `groups`: -J^T r of groups of residuals that hang together [C, K]; None where all are independent
    """

    @property
    def misfit(self) -> float: ...
    @property
    def square(self) -> float: ...
    @property
    def count(self) -> int: ...
    @property
    def matrix(self) -> Tensor: ...
    @property
    def downhill(self) -> Tensor: ...
    @property
    def groups(self) -> Tensor | None: ...


@dataclass(frozen=True, eq=False)
class Sums:
    """A `Point` whose sums were made during a rollout with tangents; `downhill` is the sum over the groups."""

    matrix: Tensor
    groups: Tensor
    misfit: float
    square: float
    count: int

    @property
    def downhill(self) -> Tensor:
        return self.groups.sum(0)


class Differences:
    """A `Point` of a residual function [K] -> [m] in float64; J by differences of it, made when it is asked for.

    `step`: of theta; central differences (2 K rollouts), or with `sides` = (1.0,) forward ones (K rollouts).
    """

    groups: Tensor | None = None

    def __init__(self, residual: Callable[[Tensor], Tensor], theta: Tensor, step: float = 1e-2,
                 sides: Sequence[float] = (1.0, -1.0)) -> None:
        if not 0 < len(theta) <= MAX_NUMBERS:
            raise InputError(f"Gauss-Newton fits between 1 and {MAX_NUMBERS} numbers, not {len(theta)}: name them by `only`")
        self.residual, self.theta, self.step, self.sides = residual, theta, step, sides
        self.r = residual(theta)
        self.misfit, self.count = float(self.r.square().sum()), len(self.r)
        self.square = self.misfit / max(self.count, 1)

    @cached_property
    def jacobian(self) -> Tensor:
        """dr/dtheta [m, K]."""
        columns = []
        for k in range(len(self.theta)):
            ends = []
            for side in self.sides:
                moved = self.theta.clone()
                moved[k] += side * self.step
                ends.append(self.residual(moved))
            columns.append((ends[0] - (ends[1] if len(ends) > 1 else self.r)) / (len(ends) * self.step))
        return torch.stack(columns, 1)

    @property
    def matrix(self) -> Tensor:
        return self.jacobian.T @ self.jacobian

    @property
    def downhill(self) -> Tensor:
        return -(self.jacobian.T @ self.r)


@dataclass(frozen=True, eq=False)
class Prior:
    """What is assumed of the numbers before any data, and what the data said of noise and smoothness so far.

    - `blocks`: for each block of numbers that are smooth together their place in theta, in order; the others have no bends
    - `free`: standard deviation of each number [K]; infinite where nothing is known
    - `neighbours`: bends that share a smoothness; 0 for all of a block
    - `alpha`: of each bend; None: still to be found; `c`: variance of the residuals, likewise; `used`: numbers the data decide
    """

    size: int
    blocks: tuple[slice, ...] = ()
    free: Tensor | None = None
    neighbours: int = 0
    alpha: Tensor | None = None
    c: float = 0.0
    used: float = 0.0

    @cached_property
    def bends(self) -> Tensor:
        """B [R, K]: second differences within the blocks."""
        eye = torch.eye(self.size, dtype=torch.float64)
        rows = [torch.diff(eye[block], n=2, dim=0) for block in self.blocks]
        found = torch.cat(rows) if rows else eye[:0]
        return found if self.free is None else found.to(self.free.device)

    @property
    def _rows(self) -> list[slice]:
        """The rows of B that belong to each block."""
        ends = [0]
        for block in self.blocks:
            ends.append(ends[-1] + max(0, block.stop - block.start - 2))
        return [slice(a, b) for a, b in pairwise(ends)]

    @property
    def penalty(self) -> Tensor:
        """P [K, K]."""
        bends = self.bends
        found = bends.T @ bends if self.alpha is None else bends.T @ (self.alpha.to(bends)[:, None] * bends)
        return found if self.free is None else found + torch.diag(self.free.to(found) ** -2)

    def inverse(self, matrix: Tensor) -> Tensor:
        """(J^T J + c P)^-1."""
        ridge = _RIDGE * float(matrix.diagonal().max()) + 1e-300
        return torch.linalg.inv(matrix + self.c * self.penalty.to(matrix) + ridge * torch.eye(self.size).to(matrix))

    def covariance(self, matrix: Tensor) -> Tensor:
        """S [K, K]; infinite for a number that neither data nor prior say anything about."""
        return self.c * self.inverse(matrix)

    def objective(self, point: Point, theta: Tensor) -> float:
        return point.misfit + self.c * float(theta @ self.penalty.to(theta) @ theta)

    def target(self, point: Point, theta: Tensor) -> tuple[Tensor, Prior]:
        """Where the linearised problem leads, and the prior with the c and alpha that go with it."""
        H, g, bends = point.matrix, point.downhill, self.bends.to(theta)
        now = self
        if not now.c:
            now = replace(now, c=max(point.square, 1e-300))
        if now.alpha is None:
            now = replace(now, alpha=torch.full((len(bends),), max(1e-6 * float(H.diagonal().max()), 1e-300) / now.c).to(theta))
        spread = None if point.groups is None else point.groups.T @ point.groups
        for _ in range(_EVIDENCE_ROUNDS):
            inverse = now.inverse(H)
            delta = inverse @ (g - now.c * (now.penalty.to(theta) @ theta))
            used = float((inverse * H).sum())
            if spread is None or point.groups is None:
                left = max(point.misfit - 2 * float(g @ delta) + float(delta @ H @ delta), 1e-13 * point.misfit)
                c = left / max(point.count - used, 1.0)
            else:
                groups, decided = len(point.groups), max(used, 1e-3)
                c = float((inverse * spread).sum()) / decided * groups / max(groups - decided, 1.0)
            new = replace(now, c=max(c, 1e-300), used=used)
            new = replace(new, alpha=new._smoothness(bends, theta + delta, inverse, H, now))
            change = abs(math.log(new.c / now.c))
            if not self.neighbours and len(bends):
                assert new.alpha is not None and now.alpha is not None
                change += float((new.alpha.log() - now.alpha.log()).abs().max())
            now = new
            if change < _EVIDENCE_CHANGE:
                break
        return theta + delta, now

    def _smoothness(self, bends: Tensor, theta: Tensor, inverse: Tensor, H: Tensor, before: Prior) -> Tensor:
        """alpha [R]."""
        assert before.alpha is not None
        found, bent = before.alpha.clone(), (bends @ theta).square()
        doubt = before.c * (bends @ inverse * bends).sum(1)
        for rows in self._rows:
            if rows.stop <= rows.start:
                continue
            if self.neighbours:
                half = self.neighbours // 2
                wide = torch.nn.functional.pad((bent + doubt)[rows][None], (half, half), mode="replicate")[0]
                found[rows] = 1 / wide.unfold(0, self.neighbours, 1).mean(-1).clamp(min=1e-8)
                continue
            free = max(rows.stop - rows.start - float((found[rows] * doubt[rows]).sum()), 1e-3)
            weight = float(bends[rows].square().sum(0).max())  # numbers without any bend would make alpha infinite
            most = max(_STIFFEST * float(H.diagonal().max()) / (self.c * weight), 1e-300)
            found[rows] = min(free / max(float(bent[rows].sum()), 1e-300), most)
        return found


P = TypeVar("P", bound=Point)


@dataclass(frozen=True, eq=False)
class Found(Generic[P]):
    """Where least squares ended.

    - `theta` [K], and `point`: residuals there
    - `prior`: with the last c and alpha
    - `history`: mean square of the residuals at the start and after each step
    - `settled`: the last step was as small as asked for
    """

    theta: Tensor
    point: P
    prior: Prior
    history: tuple[float, ...]
    settled: bool

    @property
    def covariance(self) -> Tensor:
        """[K, K], by the variance of the residuals."""
        return self.prior.covariance(self.point.matrix)


def least_squares(at: Callable[[Tensor], P], theta: Tensor, prior: Prior | None = None, *, rounds: int = 10,
                  longest: float = math.inf, settled: Callable[[Tensor, Tensor], bool] | float = 0.0,
                  worse: float = math.inf) -> Found[P]:
    """Gauss-Newton from theta [K].

    - `at`: residuals at given numbers; a SolveError stands for a rollout that breaks down: the step is halved
    - `prior`: None: nothing is assumed, and the noise is of no interest
    - `rounds`: steps, at most
    - `longest`: the largest change of a number in one step
    - `settled`: a step whose largest change is smaller is the last one; or a function of step and theta
    - `worse`: times the least mean square so far, the most that a step may leave (far outliers hardly count in a robust misfit)
    """
    plain, prior = prior is None, prior or Prior(len(theta))
    point = at(theta)
    history, least, done = [point.square], point.square, False
    for _ in range(rounds):
        if plain:
            delta = prior.inverse(point.matrix) @ point.downhill
        else:
            goal, prior = prior.target(point, theta)
            delta = goal - theta
        delta = delta * min(1.0, longest / max(float(delta.abs().max()), 1e-300))
        before, better = prior.objective(point, theta), None
        for _ in range(_HALVINGS):
            better = _tried(at, theta + delta)
            if better is not None and better.square <= worse * least and prior.objective(better, theta + delta) <= before:
                break
            better, delta = None, 0.5 * delta
        if better is None:
            break
        theta, point = theta + delta, better
        history.append(point.square)
        least = min(least, point.square)
        done = settled(delta, theta) if callable(settled) else float(delta.abs().max()) < settled
        if done:
            break
    return Found(theta, point, prior, tuple(history), done)


def _tried(at: Callable[[Tensor], P], theta: Tensor) -> P | None:
    try:
        return at(theta)
    except SolveError:
        return None
