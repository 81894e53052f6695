"""An unknown reaction of one field through rollouts, before anything else is trained; with a band.

    minimise  sum s^2 log(1 + (y_k - u_k)^2 / s^2) + c alpha |second differences of theta|^2      u_k: rollout of a window

r is a cubic spline with coefficients theta, laid down in the model's table. A window is rolled out from its first state: no
difference of noisy states is divided by dt, and the noise of all nodes and steps is averaged. Gauss-Newton; the columns of the
Jacobian are stepped along with the state, all in one solve (tangent of a step; phi(u) the splines at u):

    (M + dt/2 K) d+ = (M - dt/2 K) d + dt/2 M [r'(u) d + phi(u) + r'(u+) d* + phi(u+)],      d* the same with r'(u) d + phi(u) alone

- The logarithm (Cauchy) keeps the few nodes where the mesh misses a layer from bending the curve; windows that begin while a rough
  start smooths out are left out.
- Noise of a window's first state stays with the window, so residuals hang together: c is the variance of what patches of nodes
  contribute to the gradient, against what J^T J says. alpha is the one that makes the data most likely (evidence).
- Windows become longer as long as noise is most of what is left.
- The band: c (J^T J + c alpha P)^-1 for the noise, and beside it what the curve would change if the mass were lumped, which is of
  the order of the mesh's own error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.interpolate import BSpline

from dgnet.errors import InputError, SolveError
from dgnet.green import GreenSolver, Operators
from dgnet.models.dgnet import DGNet, PreparedDGNet, Reaction
from dgnet.problems import LUMPED, Discretisation

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor

_SPLINES = 24
_SHORT, _LONGER = 4, 4  # steps of the first windows, and how much longer the next ones are
_ITERATIONS = 6  # of Gauss-Newton for each length
_WORK = 2e7  # nodes times steps times splines of a pass: more windows than that are thinned out
_TAIL = 2.4  # where Cauchy's weights set in, in standard deviations
_ROUGH = 3.0  # a patch that misses the data by this many times the usual: the window's start is not resolved
_NOISY = 0.25  # share of noise in what is left, above which longer windows are worth their work
_ACROSS = 5  # patches along each axis


@dataclass(frozen=True, eq=False)
class Pass:
    """All windows rolled out once: J^T W J [K, K], gradients of patches [C, K], objective, residuals, lumped against consistent."""

    matrix: Tensor
    scores: Tensor
    misfit: float
    residuals: Tensor  # [windows, steps, free nodes]
    lumped: Tensor  # [K]: J^T W (rollout with a lumped mass - rollout)


def identify(model: Any, base: Discretisation, train: Corpus) -> float:
    """Set the table and its band; returns the mean square of what it leaves unexplained, against that without a reaction."""
    if not isinstance(model, DGNet) or _reaction(model).table is None:
        raise InputError("only a DGNet whose learned reaction is a table can be identified")
    fit = Fit(model, base, train)
    length, first = min(_SHORT, train.steps), 0
    whole, left = fit.descend(length, first)
    settled = fit.settled(length)
    if settled:
        first = settled
        left = fit.descend(length, first)[1]
    noise = noise_level(train.state)
    while length < train.steps - first and (length == _SHORT or noise**2 > _NOISY * fit.spread**2):
        length = min(_LONGER * length, train.steps - first)
        try:
            left = fit.descend(length, first)[1]
        except SolveError:  # such long windows blow up: the shorter ones have to do
            break
    fit.finish()
    return left / max(whole, 1e-300)


class Fit:
    """The unknowns, and what is known of them so far."""

    def __init__(self, model: DGNet, base: Discretisation, train: Corpus) -> None:
        self.model, self.base, self.train = model, base, train
        table = _reaction(model).table
        assert table is not None
        device = train.state.device
        self.table, self.basis, self.patch = table, splines(len(table.values)).to(device), patches(base).to(device)
        count = self.basis.shape[1]
        bend = torch.diff(torch.eye(count, dtype=torch.float64, device=device), n=2, dim=0)
        self.bend, self.theta = bend.T @ bend, torch.zeros(count, dtype=torch.float64, device=device)
        self.c = self.alpha = self.spread = 0.0
        self.pieces, self.scale = train, math.inf
        self.last: Pass | None = None

    def at(self, theta: Tensor, lumped: bool = False) -> Pass:
        """Roll out with these coefficients; a SolveError where that is not finite."""
        with torch.no_grad():
            self.table.values.copy_(self.basis @ theta)
            return linearised(self.model, self.base, self.pieces, self.basis, self.patch, self.scale, lumped)

    def descend(self, length: int, first: int) -> tuple[float, float]:
        """Gauss-Newton on windows of this length that begin at step `first` or later; mean squared misfits before and after."""
        self.pieces, self.scale = windows(self.train, length, first, len(self.theta)), math.inf
        found = self.at(self.theta)
        before = float(found.residuals.square().mean())
        for k in range(_ITERATIONS):
            if k == 1:
                self.scale = max(_TAIL * _deviation(found.residuals), 1e-300)
                found = self.at(self.theta)
            target = self.regularised(found)
            delta, better = target - self.theta, None
            for _ in range(6):
                try:
                    better = self.at(self.theta + delta)
                except SolveError:
                    better = None
                if better is not None and self.objective(better, self.theta + delta) <= self.objective(found, self.theta):
                    break
                better, delta = None, 0.5 * delta
            if better is None:
                break
            self.theta, found = self.theta + delta, better
            if k and float((self.basis @ delta).norm()) < 0.01 * float((self.basis @ self.theta).norm()):
                break
        self.last, self.spread = found, _deviation(found.residuals)
        return before, float(found.residuals.square().mean())

    def objective(self, found: Pass, theta: Tensor) -> float:
        return found.misfit + self.c * self.alpha * float(theta @ self.bend @ theta)

    def inverse(self, H: Tensor) -> Tensor:
        """(J^T J + c alpha P)^-1; what nothing depends on stays where it is."""
        small = 1e-12 * H.diagonal().max().clamp(min=1e-300) * torch.eye(len(H), dtype=H.dtype, device=H.device)
        return torch.linalg.inv(H + self.c * self.alpha * self.bend + small)

    def regularised(self, found: Pass) -> Tensor:
        """The next coefficients, with the c and alpha that go with them."""
        H, spread = found.matrix, found.scores.T @ found.scores
        right = found.scores.sum(0) + H @ self.theta
        if not self.alpha:
            self.c = max(float(found.residuals.square().mean()), 1e-300)
            self.alpha = max(1e-6 * float(H.diagonal().max()), 1e-300) / self.c
        for _ in range(30):
            inverse = self.inverse(H)
            target = inverse @ right
            used = max(float((inverse * H).sum()), 1e-3)  # how many numbers the data decide
            bent = max(len(H) - 2 - self.c * self.alpha * float((inverse * self.bend).sum()), 1e-3)
            old = self.c, self.alpha
            groups = len(found.scores)
            self.c = max(float((inverse * spread).sum()) / used * groups / max(groups - used, 1.0), 1e-300)
            self.alpha = bent / max(float(target @ self.bend @ target), 1e-300)
            if abs(math.log(self.c / old[0])) + abs(math.log(self.alpha / old[1])) < 0.02:
                break
        return target

    def settled(self, length: int) -> int:
        """The step from which on windows are as good as usual: twice the time in which a patch misses by `_ROUGH` times as much."""
        assert self.last is not None
        free = _free(self.base)
        square, patch = self.last.residuals.square().mean(1), self.patch[free.to(self.patch.device)]
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
        """The table and its band at the last coefficients."""
        found = self.at(self.theta, lumped=True)
        inverse, model, table = self.inverse(found.matrix), self.model, self.table
        with torch.no_grad():
            u = table.where() * model.std.double() + (0.0 if model.config.odd_reaction else model.mean.double())
            phi = _reaction(model).features(u[:, None], model.scales)[:, 0].double() @ self.basis
            noise = (phi @ (self.c * inverse) * phi).sum(1)
            mesh = (phi @ (inverse @ found.lumped)).square()
            wide = torch.nn.functional.pad(mesh[None], (4, 4), mode="replicate")[0]
            mesh = wide.unfold(0, 9, 1).mean(-1)  # where the change crosses zero, the mesh's error need not do so
            table.deviation.copy_((noise + mesh).clamp(min=0).sqrt())
            states = self.train.state[..., 0].flatten(0, 1)[:, self.base.owner[_free(self.base)]]
            v = (states - (0.0 if model.config.odd_reaction else model.mean)) / model.std
            table.density.copy_(table.features(v.flatten()[:: max(1, v.numel() // 1_000_000)]).double().mean(0))


def linearised(model: DGNet, base: Discretisation, pieces: Corpus, basis: Tensor, patch: Tensor, scale: float,
               lumped: bool = False) -> Pass:
    """Roll out all windows, with the derivatives of every state by the coefficients."""
    count = basis.shape[1]
    matrix = torch.zeros(count, count, dtype=torch.float64, device=basis.device)
    other, misfit = matrix.new_zeros(count), matrix.new_zeros(())
    scores, residuals = [], []
    for rows in pieces.together(base):
        data = pieces.part(rows)
        state = model.prepare(data.problem(base), len(data), data.steps)
        solver, rival = state.solver, _lumped(state, len(data), data.steps) if lumped else None
        p, t = solver.problem, data.clock(base)
        free = _free(p)
        u = p.restrict(data.state[:, 0]).to(p.dtype)
        coarse, d = u, u.new_zeros(*u.shape[:2], count)
        score = matrix.new_zeros(len(data), int(patch.max()) + 1, count)
        rests = []
        for k in range(data.steps):
            now, f = t + k * p.dt, None if data.source_average is None else data.source_average[:, k]
            after = p.restrict(solver.step(p.expand(u), f, now))
            d = tangents(model, solver, u, after, d, basis, now)
            u = after
            rest = (p.restrict(data.state[:, k + 1]) - u)[:, free, 0].double()
            ratio = (rest / scale).square()
            misfit = misfit + (rest.square().sum() if scale == math.inf else scale**2 * torch.log1p(ratio).sum())
            J = d[:, free].double()
            weighted = J / (1 + ratio[..., None])
            matrix += weighted.flatten(0, 1).T @ J.flatten(0, 1)
            score.index_add_(1, patch[free], weighted * rest[..., None])
            rests.append(rest)
            if rival is not None:
                coarse = p.restrict(rival.step(p.expand(coarse), f, now))
                other += weighted.flatten(0, 1).T @ (coarse - u)[:, free, 0].double().flatten()
        model.finish(state)
        scores.append(score.flatten(0, 1))
        residuals.append(torch.stack(rests, 1))
    if not math.isfinite(float(misfit)):
        raise SolveError("a rollout of the reaction's fit is not finite")
    return Pass(matrix, torch.cat(scores), float(misfit), torch.cat(residuals), other)


def tangents(model: DGNet, solver: GreenSolver, u: Tensor, after: Tensor, d: Tensor, basis: Tensor, t: float) -> Tensor:
    """Derivatives [B, n, K] of the state after a step by the coefficients, from those before it."""
    op, ops = solver.operator(t), solver.operators
    drive = _along(model, ops, u, d, basis)
    guess = d + op.solve(op.right_hand_side(d, ops.gathered(drive)))
    mean = [0.5 * (a + b) for a, b in zip(drive, _along(model, ops, after, guess, basis))]
    return d + op.solve(op.right_hand_side(d, ops.gathered(mean)))


def _reaction(model: DGNet) -> Reaction:
    found = model.part(Reaction)
    if found is None:
        raise InputError("this model has no reaction")
    return found


def _along(model: DGNet, ops: Operators, u: Tensor, d: Tensor, basis: Tensor) -> list[Tensor]:
    """Derivatives [B, n, K] of the rates at u, which itself has derivatives d."""
    with torch.enable_grad():
        v = u.detach().requires_grad_()
        slopes = [torch.autograd.grad(rate.sum(), v)[0] for rate in ops.rates(v)]
    first, *rest = (slope * d for slope in slopes)
    return [first + (_reaction(model).features(u, model.scales)[..., 0, :].double() @ basis).to(u.dtype), *rest]


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


def splines(places: int) -> Tensor:
    """[J, K]: cubic B-splines at J equidistant places."""
    count = max(4, min(_SPLINES, places))
    knots = np.arange(-3, count + 1) / (count - 3)
    return torch.tensor(BSpline.design_matrix(np.linspace(0, 1, places), knots, 3).toarray())


def patches(base: Discretisation) -> Tensor:
    """A number for each degree of freedom: boxes of nodes, whose residuals may hang together."""
    x = base.mesh.points
    box = np.minimum((x - x.min(0)) / np.maximum(np.ptp(x, axis=0), 1e-300) * _ACROSS, _ACROSS - 1).astype(int)
    label = np.unique(box @ _ACROSS ** np.arange(x.shape[1]), return_inverse=True)[1].ravel()
    out = np.zeros(base.n, dtype=np.int64)
    out[base.geometry.dof] = label
    return torch.tensor(out)


def noise_level(state: Tensor) -> float:
    """Standard deviation of white noise in states [B, T+1, N, 1]: the least that differences in time of any order up to 7 show."""
    found, d = [], state.double()
    for order in range(1, min(8, state.shape[1] - 1)):
        d = d.diff(dim=1)
        found.append(_deviation(d) / math.sqrt(math.comb(2 * order, order)))
    return min(found, default=0.0)


def _deviation(x: Tensor) -> float:
    """Standard deviation of what lies around zero, whatever the tails are."""
    return 1.4826 * float(x.abs().median())


def _free(p: Discretisation) -> Tensor:
    """Degrees of freedom without a Dirichlet value."""
    return torch.ones(p.n, dtype=torch.bool, device=p.geometry.device) if p.fixed is None else ~p.fixed[0]
