"""An unknown reaction through rollouts, before anything else is trained; with its standard deviations.

    minimise  sum s^2 log(1 + (y_k - u_k)^2 / s^2) + c alpha theta^T P theta      u_k: rollout of a window

r is linear in theta: of one field a cubic spline, laid down in the model's table, of several a sum of few terms
(`training.unknowns`; P is the spline's bending, zero for terms). Which terms, least squares decide beforehand (`training.weak`);
of those a term goes that the rollouts cannot tell from zero. A window is rolled out from its first state: no
difference of noisy states is divided by dt, and the noise of all nodes and steps is averaged. Gauss-Newton; the columns of the
Jacobian are stepped along with the state, all in one solve (tangent of a step; phi(u) the splines or terms at u):

    (M + dt/2 K) d+ = (M - dt/2 K) d + dt/2 M [r'(u) d + phi(u) + r'(u+) d* + phi(u+)],      d* the same with r'(u) d + phi(u) alone

- The logarithm (Cauchy) keeps the few nodes where the mesh misses a layer from bending the curve; windows that begin while a rough
  start smooths out are left out.
- Noise of a window's first state stays with the window, so residuals hang together in patches of nodes, of which c is the variance;
  alpha is the one that makes the data most likely (`least_squares`).
- Windows become longer as long as noise is most of what is left. What misses whole trajectories by far more than what was found on
  other windows, or with one term more, is not taken: terms that cannot say what the reaction is may blow up in a long rollout.
- The band: c (J^T J + c alpha P)^-1 for the noise, and beside it what the curve would change if the mass were lumped, which is of
  the order of the mesh's own error.
- Where states were interpolated (`Corpus.error`), they are also taken with what that missed. By how much the gradient then changes
  says what it may do to the coefficients: with the signs of all patches as they are, and with those of each on its own.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dgnet.discovery.least_squares import least_squares
from dgnet.discovery.reactions import Terms, Unknown, unknown_of
from dgnet.discovery.residuals import Sweep, deviation, free_nodes, noise_level, patches, sweep
from dgnet.discovery.weak import choose_terms
from dgnet.errors import InputError, SolveError
from dgnet.models import Classical
from dgnet.models.dgnet import DGNet
from dgnet.problems import LUMPED, Problem
from dgnet.scoring.judge import predict
from dgnet.stepping import GreenSolver, Operators
from dgnet.stepping.operator import StepOperator

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor

_SHORT, _LONGER = 4, 4  # steps of the first windows, and how much longer the next ones are
_ITERATIONS = 6  # of Gauss-Newton for each length
_WORK = 2e7  # nodes times steps times unknowns of a pass: more windows than that are thinned out
_TAIL = 2.4  # where Cauchy's weights set in, in standard deviations
_ROUGH = 3.0  # a patch that misses the data by this many times the usual: the window's start is not resolved
_WORSE = 2.0  # times the least mean square so far, the most that a step of the fit, other windows or a term less may leave over
_NOISY = 0.25  # share of noise in what is left, above which longer windows are worth their work


def identify(model: Any, base: Problem, train: Corpus) -> float:
    """Set the reaction and its standard deviations; returns the mean square of what it leaves, against that without a reaction."""
    if not isinstance(model, DGNet):
        raise InputError("only a DGNet whose learned reaction is a table or a sum of terms can be identified")
    unknown = unknown_of(model, train)
    if isinstance(unknown, Terms) and unknown.fresh:
        choose_terms(model, unknown.library, base, train)
    fit = Fit(model, unknown, base, train)
    whole = fit.without()
    fit = _fitted(fit)
    least = fit.missed
    while isinstance(unknown, Terms):
        terms = unknown.library.active.clone()
        if not unknown.drop(fit.theta, fit.covariance):
            break
        fewer = _fitted(Fit(model, unknown, base, train))
        if not fewer.missed <= _WORSE * least:
            unknown.library.active.copy_(terms)
            break
        fit, least = fewer, min(least, fewer.missed)
    left = 0.0 if fit.last is None else fit.last.square
    fit.finish()
    return left / max(whole, 1e-300)


def _fitted(fit: Fit) -> Fit:
    """The fit after windows of every length that is worth it; the beginning itself where none of them is better."""
    train, length, first = fit.train, min(_SHORT, fit.train.steps), 0
    fit.descend(length, first, iterations=0)
    fit, better = _onward(fit, length, first)
    settled = fit.settled(length) if better else 0
    if settled:
        first = settled
        fit, better = _onward(fit, length, first)
    noise = noise_level(train.state / fit.unknown.unit)
    while better and length < train.steps - first and (length == _SHORT or noise**2 > _NOISY * fit.spread**2):
        length = min(_LONGER * length, train.steps - first)
        fit, better = _onward(fit, length, first)
    return fit


def _onward(fit: Fit, length: int, first: int) -> tuple[Fit, bool]:
    """The fit after windows of this length, and True; as it was, and False, where they blow up or whole trajectories are missed."""
    onward = copy(fit)
    try:
        onward.descend(length, first)
    except SolveError:
        return fit, False
    return (onward, True) if onward.missed <= _WORSE * fit.missed else (fit, False)


class Fit:
    """The unknowns, and what is known of them so far."""

    def __init__(self, model: DGNet, unknown: Unknown, base: Problem, train: Corpus) -> None:
        self.model, self.unknown, self.base, self.train = model, unknown, base, train
        self.patch = patches(base).to(train.state.device)
        self.theta, self.prior = unknown.theta, unknown.prior
        self.pieces, self.scale = train, math.inf
        self.spread, self.missed = 0.0, math.inf  # of the residuals, and the mean square that whole trajectories leave
        self.last: Sweep | None = None
        self.between = torch.zeros(len(self.theta), len(self.theta)).to(self.theta)  # of the gradient, by what interpolation missed

    def at(self, theta: Tensor, pieces: Corpus | None = None, change: Tensor | None = None) -> Sweep:
        """Roll out the windows with these coefficients; a SolveError where that is not finite."""
        with torch.no_grad():
            self.unknown.put(theta)
        return sweep(self.model, self.base, pieces or self.pieces, len(theta), partial(tangents, unknown=self.unknown), self.patch,
                     unit=self.unknown.unit, scale=self.scale, change=change)

    def without(self) -> float:
        """The mean squared misfit of short windows without a reaction."""
        self.pieces = windows(self.train, min(_SHORT, self.train.steps), 0, len(self.theta))
        return self.at(torch.zeros_like(self.theta)).square

    def whole(self) -> float:
        """The mean squared misfit of rollouts over whole trajectories; infinite where one is not finite."""
        with torch.no_grad():
            self.unknown.put(self.theta)
            try:
                left = (predict(self.model, self.base, self.train) - self.train.state) / self.unknown.unit
            except SolveError:
                return math.inf
        square = float(left.double().square().mean())
        return square if math.isfinite(square) else math.inf

    def descend(self, length: int, first: int, iterations: int = _ITERATIONS) -> None:
        """Gauss-Newton on windows of this length that begin at step `first` or later.

        Far outliers hardly count in the misfit, so that it may fall while a few windows blow up; such steps are not taken.
        """
        self.pieces, self.scale = windows(self.train, length, first, len(self.theta)), math.inf
        found = least_squares(self.at, self.theta, self.prior, rounds=min(1, iterations), worse=_WORSE)
        if not iterations:
            self.prior = self.prior.target(found.point, self.theta)[1]
        else:
            if len(found.history) > 1:
                self.scale = max(_TAIL * deviation(found.point.residuals), 1e-300)
                found = least_squares(self.at, found.theta, found.prior, rounds=iterations - 1, settled=self.unknown.settled,
                                      worse=_WORSE)
            self.theta, self.prior = found.theta, found.prior
        self.last, self.spread, self.missed = found.point, deviation(found.point.residuals), self.whole()
        other = self.pieces.missed()
        if other is not None:
            change = self.at(self.theta, other).groups - found.point.groups
            self.between = change.T @ change + change.sum(0)[:, None] * change.sum(0)

    @property
    def covariance(self) -> Tensor:
        """Of the coefficients, by the noise and by interpolation, at the last pass."""
        assert self.last is not None
        inverse = self.prior.inverse(self.last.matrix)
        return self.prior.c * inverse + inverse @ self.between @ inverse

    def settled(self, length: int) -> int:
        """The step from which on windows are as good as usual: twice the time in which a patch misses by `_ROUGH` times as much."""
        assert self.last is not None
        free = free_nodes(self.base)[0]
        square, patch = self.last.residuals.square().mean((1, 3)), self.patch[free.to(self.patch.device)]
        nodes = torch.bincount(patch, minlength=int(self.patch.max()) + 1).clamp(min=1)
        worst = (square.new_zeros(len(square), len(nodes)).index_add(1, patch, square) / nodes).amax(1)
        starts = torch.round((self.pieces.begin - self.train.begin.min()) / self.train.dt)  # trajectories may begin apart
        starts = starts - starts.min()
        rough = 0
        for start in starts.unique().tolist():
            if float(worst[(starts == start).to(worst.device)].mean()) <= _ROUGH**2 * float(worst.median()):
                break
            rough = int(start) + length
        return min(2 * rough, self.train.steps // 2)

    def finish(self) -> None:
        """The reaction and its standard deviations at the last coefficients."""
        with torch.no_grad():
            self.unknown.put(self.theta)
            known = replace(self.base, pde=replace(self.base.pde, reaction=self.model.learned_reaction()))
            change = predict(Classical(LUMPED), known, self.pieces) - predict(self.model, self.base, self.pieces)
        self.last = self.at(self.theta, change=change)
        self.unknown.conclude(self.covariance, self.prior.inverse(self.last.matrix) @ self.last.aside, self.base)


def tangents(solver: GreenSolver, u: Tensor, after: Tensor, d: Tensor, t: float, unknown: Unknown) -> Tensor:
    """Derivatives [B, n, F, K] of the state after a step by the coefficients, from those before it."""
    op, ops = solver.operator(t), solver.operators
    drive = _along(ops, unknown, u, d)
    guess = _advanced(op, ops, d, drive)
    mean = [0.5 * (a + b) for a, b in zip(drive, _along(ops, unknown, after, guess))]
    return _advanced(op, ops, d, mean)


def _advanced(op: StepOperator, ops: Operators, d: Tensor, rates: list[Tensor]) -> Tensor:
    """A step of the derivatives [B, n, F, K]. Those that share a matrix are columns of one solve."""
    batch, n, fields, count = d.shape
    many, each = op.groups

    def columns(x: Tensor) -> list[Tensor]:
        if each == 1:  # all fields have the same matrix
            return [x.reshape(batch, n, fields * count)]
        return [x.permute(0, 3, 1, 2).reshape(batch * count, n, fields)] if many == 1 else list(x.unbind(-1))

    new = [one + op.solve(op.right_hand_side(one, ops.gathered(own)))
           for one, *own in zip(columns(d), *(columns(rate) for rate in rates))]
    if each == 1:
        return new[0].view(batch, n, fields, count)
    return new[0].view(batch, count, n, fields).permute(0, 2, 3, 1) if many == 1 else torch.stack(new, -1)


def _along(ops: Operators, unknown: Unknown, u: Tensor, d: Tensor) -> list[Tensor]:
    """Derivatives [B, n, F, K] of the rates at u, which itself has derivatives d."""
    found = []
    with torch.enable_grad():
        v = u.detach().requires_grad_()
        for rate in ops.rates(v):
            slopes = [torch.autograd.grad(one.sum(), v, retain_graph=True, allow_unused=True)[0] for one in rate.unbind(-1)]
            found.append(torch.stack([torch.zeros_like(u) if s is None else s for s in slopes], -2))
    first, *rest = (slope @ d for slope in found)
    return [first + unknown.slopes(u).to(u.dtype), *rest]


def windows(train: Corpus, length: int, first: int, count: int) -> Corpus:
    """Back-to-back windows of all trajectories from step `first` on; evenly spread, and few enough that a pass stays affordable."""
    starts = torch.arange(first, train.steps - length + 1, length)
    rows = torch.arange(len(train)).repeat_interleave(len(starts))
    starts = starts.repeat(len(train))
    most = max(1, int(_WORK / (train.state.shape[2] * length * count)))
    keep = torch.linspace(0, len(rows) - 1, min(most, len(rows))).round().long().unique()
    return train.windows(rows[keep], starts[keep], length)
