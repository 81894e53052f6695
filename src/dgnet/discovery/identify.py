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
- Noise of a window's first state stays with the window, so residuals hang together: c is the variance of what patches of nodes
  contribute to the gradient, against what J^T J says. alpha is the one that makes the data most likely (evidence).
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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from dgnet.discovery.residuals import deviation, noise_level, patches
from dgnet.discovery.unknowns import Terms, Unknown, free_nodes, unknown_of
from dgnet.discovery.weak import choose_terms
from dgnet.errors import InputError, SolveError
from dgnet.models import rollout
from dgnet.models.dgnet import DGNet, PreparedDGNet
from dgnet.problems import LUMPED, Problem
from dgnet.stepping import GreenSolver, Operators
from dgnet.stepping.operator import StepOperator

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor

_SHORT, _LONGER = 4, 4  # steps of the first windows, and how much longer the next ones are
_ITERATIONS = 6  # of Gauss-Newton for each length
_WORK = 2e7  # nodes times steps times unknowns of a pass: more windows than that are thinned out
_STIFFEST = 1e9  # times what the data say, the most that smoothness may weigh: beyond it rounding decides
_TAIL = 2.4  # where Cauchy's weights set in, in standard deviations
_ROUGH = 3.0  # a patch that misses the data by this many times the usual: the window's start is not resolved
_WORSE = 2.0  # times the least mean square so far, the most that a step of the fit, other windows or a term less may leave over
_NOISY = 0.25  # share of noise in what is left, above which longer windows are worth their work


@dataclass(frozen=True, eq=False)
class Pass:
    """All windows rolled out once: J^T W J [K, K], gradients of patches [C, K], objective, residuals, lumped against consistent."""

    matrix: Tensor
    scores: Tensor
    misfit: float
    residuals: Tensor  # [windows, steps, free nodes, F], in the unknown's units
    lumped: Tensor  # [K]: J^T W (rollout with a lumped mass - rollout)

    @property
    def square(self) -> float:
        """The mean square of the residuals."""
        return float(self.residuals.square().mean())


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
    fit.finish()
    return fit.left / max(whole, 1e-300)


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
        self.bend, self.theta = unknown.bend, unknown.theta
        self.c = self.alpha = self.spread = self.left = 0.0
        self.pieces, self.scale, self.missed = train, math.inf, math.inf
        self.last: Pass | None = None
        self.between = torch.zeros_like(self.bend)  # of the gradient [K, K], by what interpolation missed

    def at(self, theta: Tensor, lumped: bool = False, pieces: Corpus | None = None) -> Pass:
        """Roll out with these coefficients; a SolveError where that is not finite."""
        with torch.no_grad():
            self.unknown.put(theta)
            return linearised(self.model, self.base, pieces or self.pieces, self.unknown, self.patch, self.scale, lumped)

    def without(self) -> float:
        """The mean squared misfit of short windows without a reaction."""
        self.pieces = windows(self.train, min(_SHORT, self.train.steps), 0, len(self.theta))
        return self.at(torch.zeros_like(self.theta)).square

    def whole(self) -> float:
        """The mean squared misfit of rollouts over whole trajectories; infinite where one is not finite."""
        square, count = 0.0, 0
        with torch.no_grad():
            self.unknown.put(self.theta)
            for rows in self.train.together(self.base):
                data = self.train.part(rows)
                try:
                    states = rollout(self.model, data.problem(self.base), data.state[:, 0], data.source_average, data.steps,
                                     t0=data.clock(self.base))
                except SolveError:
                    return math.inf
                rest = (states - data.state) / self.unknown.unit
                square, count = square + float(rest.double().square().sum()), count + rest.numel()
        return square / count if math.isfinite(square) else math.inf

    def descend(self, length: int, first: int, iterations: int = _ITERATIONS) -> None:
        """Gauss-Newton on windows of this length that begin at step `first` or later.

        Far outliers hardly count in the objective, so that it may fall while a few windows blow up; such steps are not taken.
        """
        self.pieces, self.scale = windows(self.train, length, first, len(self.theta)), math.inf
        found = self.at(self.theta)
        most = _WORSE * found.square
        for k in range(iterations):
            if k == 1:
                self.scale = max(_TAIL * deviation(found.residuals), 1e-300)
                found = self.at(self.theta)
            target = self.regularised(found)
            delta, better = target - self.theta, None
            for _ in range(6):
                try:
                    better = self.at(self.theta + delta)
                except SolveError:
                    better = None
                if better is not None and better.square <= most and (
                        self.objective(better, self.theta + delta) <= self.objective(found, self.theta)):
                    break
                better, delta = None, 0.5 * delta
            if better is None:
                break
            self.theta, found, most = self.theta + delta, better, min(most, _WORSE * better.square)
            if k and self.unknown.settled(delta, self.theta):
                break
        if not iterations:
            self.regularised(found)
        self.last, self.spread, self.left, self.missed = found, deviation(found.residuals), found.square, self.whole()
        other = self.pieces.missed()
        if other is not None:
            change = self.at(self.theta, pieces=other).scores - found.scores
            self.between = change.T @ change + change.sum(0)[:, None] * change.sum(0)

    def objective(self, found: Pass, theta: Tensor) -> float:
        return found.misfit + self.c * self.alpha * float(theta @ self.bend @ theta)

    def inverse(self, H: Tensor) -> Tensor:
        """(J^T J + c alpha P)^-1; what nothing depends on stays where it is."""
        small = 1e-12 * H.diagonal().max().clamp(min=1e-300) * torch.eye(len(H), dtype=H.dtype, device=H.device)
        return torch.linalg.inv(H + self.c * self.alpha * self.bend + small)

    @property
    def covariance(self) -> Tensor:
        """Of the coefficients, by the noise and by interpolation, at the last pass."""
        assert self.last is not None
        inverse = self.inverse(self.last.matrix)
        return self.c * inverse + inverse @ self.between @ inverse

    def regularised(self, found: Pass) -> Tensor:
        """The next coefficients, with the c and alpha that go with them."""
        H, spread = found.matrix, found.scores.T @ found.scores
        right = found.scores.sum(0) + H @ self.theta
        smooth = bool(self.bend.any())
        if not self.c:
            self.c = max(found.square, 1e-300)
            self.alpha = max(1e-6 * float(H.diagonal().max()), 1e-300) / self.c if smooth else 0.0
        for _ in range(30):
            inverse = self.inverse(H)
            target = inverse @ right
            used = max(float((inverse * H).sum()), 1e-3)  # how many numbers the data decide
            old, groups = (self.c, self.alpha), len(found.scores)
            bent = max(len(H) - 2 - self.c * self.alpha * float((inverse * self.bend).sum()), 1e-3)
            self.c = max(float((inverse * spread).sum()) / used * groups / max(groups - used, 1.0), 1e-300)
            if smooth:  # a reaction without any bend would make alpha infinite
                stiffest = _STIFFEST * float(H.diagonal().max()) / (self.c * float(self.bend.diagonal().max()))
                self.alpha = min(bent / max(float(target @ self.bend @ target), 1e-300), max(stiffest, 1e-300))
            if abs(math.log(self.c / old[0])) + (abs(math.log(self.alpha / old[1])) if smooth else 0.0) < 0.02:
                break
        return target

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
        found = self.at(self.theta, lumped=True)
        inverse = self.inverse(found.matrix)
        self.unknown.conclude(self.c * inverse + inverse @ self.between @ inverse, inverse @ found.lumped, self.base)


def linearised(model: DGNet, base: Problem, pieces: Corpus, unknown: Unknown, patch: Tensor, scale: float,
               lumped: bool = False) -> Pass:
    """Roll out all windows, with the derivatives of every state by the coefficients."""
    count, unit = len(unknown.theta), unknown.unit
    matrix = torch.zeros(count, count, dtype=torch.float64, device=patch.device)
    other, misfit = matrix.new_zeros(count), matrix.new_zeros(())
    scores, residuals = [], []
    for rows in pieces.together(base):
        data = pieces.part(rows)
        state = model.prepare(data.problem(base), len(data), data.steps)
        solver, rival = state.solver, _lumped(state, len(data), data.steps) if lumped else None
        p, t = solver.problem, data.clock(base)
        free, held = free_nodes(p)
        weight = held / unit
        u = p.restrict(data.state[:, 0]).to(p.dtype)
        coarse, d = u, u.new_zeros(*u.shape, count)
        score = matrix.new_zeros(len(data), int(patch.max()) + 1, count)
        rests = []
        for k in range(data.steps):
            now, f = t + k * p.dt, None if data.source_average is None else data.source_average[:, k]
            after = p.restrict(solver.step(p.expand(u), f, now))
            d = tangents(solver, unknown, u, after, d, now)
            u = after
            rest = (p.restrict(data.state[:, k + 1]) - u)[:, free].double() * weight
            ratio = (rest / scale).square()
            misfit = misfit + (rest.square().sum() if scale == math.inf else scale**2 * torch.log1p(ratio).sum())
            J = d[:, free].double() * weight[..., None]
            weighted = J / (1 + ratio[..., None])
            matrix += weighted.flatten(0, 2).T @ J.flatten(0, 2)
            score.index_add_(1, patch[free], (weighted * rest[..., None]).sum(2))
            rests.append(rest)
            if rival is not None:
                coarse = p.restrict(rival.step(p.expand(coarse), f, now))
                other += weighted.flatten(0, 2).T @ ((coarse - u)[:, free].double() * weight).flatten()
        model.finish(state)
        scores.append(score.flatten(0, 1))
        residuals.append(torch.stack(rests, 1))
    if not math.isfinite(float(misfit)):
        raise SolveError("a rollout of the reaction's fit is not finite")
    return Pass(matrix, torch.cat(scores), float(misfit), torch.cat(residuals), other)


def tangents(solver: GreenSolver, unknown: Unknown, u: Tensor, after: Tensor, d: Tensor, t: float) -> Tensor:
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


def _lumped(state: PreparedDGNet, batch: int, steps: int) -> GreenSolver:
    """The same problem with a lumped mass and the model's reaction."""
    p = state.solver.problem
    p = p.recast(LUMPED, p.advection_form)
    return GreenSolver(p, solves=steps, columns=batch,
                       operators=replace(Operators.classical(p), reaction=state.solver.operators.reaction,
                                         excess=state.solver.operators.excess))


def windows(train: Corpus, length: int, first: int, count: int) -> Corpus:
    """Back-to-back windows of all trajectories from step `first` on; evenly spread, and few enough that a pass stays affordable."""
    starts = torch.arange(first, train.steps - length + 1, length)
    rows = torch.arange(len(train)).repeat_interleave(len(starts))
    starts = starts.repeat(len(train))
    most = max(1, int(_WORK / (train.state.shape[2] * length * count)))
    keep = torch.linspace(0, len(rows) - 1, min(most, len(rows))).round().long().unique()
    return train.windows(rows[keep], starts[keep], length)
