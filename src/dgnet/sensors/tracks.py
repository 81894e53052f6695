"""Where a heat source is: the place of a spot that stays, or the path of one that moves, and its power over time.

A Gaussian spot of known radius at p(t) with power q(t). Readings are linear in q but not in p; both come from the sensor kernels,
so no step of the search needs a rollout:

    y_n = sum over steps k of q_k  lag_{n-1-k} . (average over step k of exp(-|x - p(t)|^2 / 2 r^2))

The first path: sources of any strength >= 0 at many places, in pieces of the time; few of them remain (non-negative least squares),
and where most of their strength is, the search begins. Then Gauss-Newton, with smooth priors on path and power whose lengths the
evidence chooses, as for all unknowns (`posterior`). Bands are those of the linearised problem at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model, few_threads
from dgnet.problems import Discretisation
from dgnet.sensors.kernels import Kernels, kernels
from dgnet.sensors.place import spread_out
from dgnet.sensors.posterior import Choice, Posterior, Spread, Unknown, infer
from dgnet.sensors.priors import NUMBER, histories, numbers
from dgnet.sensors.readings import Readings, cleaned, disagreeing, interpolation
from dgnet.sensors.sensor import Averages, first_state, over_steps

Tensor = torch.Tensor

TRACKS = ("place", "path")
_PLACES, _PIECES = 120, 10  # where and when the first search allows sources
_ROUNDS, _SETTLED = 30, 0.02  # of Gauss-Newton, and the movement (in radii) after which it ends
_AGAIN = 5  # rounds after which the lengths of the priors are chosen again
_NARROW, _WIDE = 1e-2, 1e2  # radius of a spot over the mesh's spacing, and over its size
_SMOOTH = 1.5  # of the path: with kinks. Smoother priors made bands that held half of the truth

Prior = tuple[tuple[Choice, ...], Spread]


@dataclass(frozen=True, eq=False)
class Track:
    """Where a spot was and how strong.

    - `times` [H+1]: ends of the steps
    - `path`, `path_sd` [H+1, d]: where it is at these times; one row, repeated, where it stays
    - `power`, `power_sd` [H]: averages over the steps, in the unit of the equation's right-hand side
    - `noise`: standard deviation of the readings, as given or found; `misfit`: root mean square of what is left
    """

    times: np.ndarray
    path: np.ndarray
    path_sd: np.ndarray
    power: np.ndarray
    power_sd: np.ndarray
    radius: float
    noise: float
    misfit: float
    readings: Readings
    fitted: np.ndarray  # [T, S]
    notes: tuple[str, ...]


@checked
def recover_track(problem: Discretisation, readings: Readings, radius: Positive, *, moving: bool = True,
                  start: Tensor | None = None, source: Averages | None = None, noise: Positive | None = None,
                  model: Model[Any] | None = None) -> Track:
    """The path (or, if it is not `moving`, the place) and the power of one spot of known radius.

    - `problem`, `readings`, `start`, `source`, `noise`, `model`: as for `recover`
    - `radius`: r of the spot, a length
    """
    if problem.n_fields > 1:
        raise InputError("spots drive one field; this problem has several")
    least, most = _NARROW * problem.mesh.spacing, _WIDE * float(np.ptp(problem.mesh.points, axis=0).max())
    if not least <= radius <= most:
        raise InputError(f"the radius of the spot must lie between {least:.3g} and {most:.3g} on this mesh, got {radius:g}: is it "
                         "in another unit of length?")
    begin = first_state(problem, start)
    readings = cleaned(readings, problem, None if start is None else float(begin.mean()))
    horizon = int(np.ceil(readings.times[-1] / problem.dt - 1e-9))
    with few_threads(problem.mesh.n_nodes), torch.no_grad():
        made = kernels(problem, readings.sensors, horizon, model)
        at, there = interpolation(readings.times, horizon, problem.dt), np.isfinite(readings.values)
        expected = at @ made.readings(over_steps(source, horizon), begin).double().numpy().T
        search = _Search(problem.mesh, made, torch.tensor((model or Classical()).points(problem)), radius, at, there,
                         (readings.values - expected)[there], noise)
        found = search.run(moving)
    return search.track(*found, readings, expected)


class _Search:
    """Readings y [m] of one spot, what is known taken off."""

    def __init__(self, mesh: Mesh, made: Kernels, points: Tensor, radius: float, at: np.ndarray, there: np.ndarray, y: np.ndarray,
                 noise: float | None) -> None:
        self.mesh, self.made, self.points, self.radius, self.noise = mesh, made, points, radius, noise
        self.at, self.there, self.y, self.steps = at, there, y, made.horizon
        self.middle = 0.5 * (mesh.points.min(0) + mesh.points.max(0))
        self.extent = float(np.ptp(mesh.points, axis=0).mean())

    def seen(self, shapes: Tensor) -> np.ndarray:
        """Responses [m, J, H] of the readings to shapes [J, P] or [J, H, P] in each step."""
        R = self.made.responses(shapes[..., None]).double().numpy()  # [S, H+1, J, H]
        return np.einsum("tn,snjk->tsjk", self.at, R)[self.there]

    def first(self, moving: bool) -> np.ndarray:
        """A path [H+1, d] to begin with."""
        places = np.array([s.place for s in spread_out(self.mesh, _PLACES)])  # type: ignore[union-attr]
        square = (self.points[None] - torch.tensor(places)[:, None]).square().sum(-1)
        pieces = np.array_split(np.arange(self.steps), min(_PIECES, self.steps))
        R = self.seen(torch.exp(square / (-2 * self.radius**2)))
        table = np.stack([R[..., piece].sum(-1) for piece in pieces], -1)  # [m, places, pieces]
        strength = nnls(table.reshape(len(table), -1), self.y, maxiter=20 * table[0].size)[0].reshape(len(places), len(pieces))
        if not moving:
            strength = strength.sum(1, keepdims=True)
        near = np.exp(-((places[:, None] - places) ** 2).sum(-1) / (2 * self.radius**2))
        when, where = [], []
        for piece, own in zip(pieces if moving else [np.arange(self.steps)], strength.T):
            if own.max() > 0.05 * strength.max():
                weight = own * near[(near @ own).argmax()]
                where.append(weight @ places / weight.sum())
                when.append(piece.mean() + 0.5)
        if not when:
            raise InputError("no source of positive power anywhere in the part explains the readings")
        return np.stack([np.interp(np.arange(self.steps + 1), when, x) for x in np.transpose(where)], 1)

    def linearised(self, knots: np.ndarray) -> np.ndarray:
        """[m, 1 + 2 d, H]: responses to unit power on the path, and their derivatives by both ends of each step."""
        r2, d = self.radius**2, knots.shape[1]
        way = np.linalg.norm(np.diff(knots, axis=0), axis=1).max()
        nodes, weights = np.polynomial.legendre.leggauss(3 + 3 * int(way / self.radius))
        shapes = self.points.new_zeros(1 + 2 * d, self.steps, len(self.points))
        ends = torch.tensor(knots)
        for s, w in zip(0.5 * (1 + nodes), 0.5 * weights):
            place = (1 - s) * ends[:-1] + s * ends[1:]
            away = self.points[None] - place[:, None]  # [H, P, d]
            value = w * torch.exp(away.square().sum(-1) / (-2 * r2))
            shapes[0] += value
            slope = (value[..., None] * away / r2).movedim(-1, 0)
            shapes[1:1 + d] += (1 - s) * slope
            shapes[1 + d:] += s * slope
        return self.seen(shapes)

    def linear(self, knots: np.ndarray, power: np.ndarray, priors: tuple[Prior, Prior], moving: bool) -> Posterior:
        """The answer to the problem linearised at a path and a power."""
        R, d = self.linearised(knots), knots.shape[1]
        J = np.zeros((len(self.y), d, self.steps + 1))
        J[..., :-1] += R[:, 1:1 + d] * power
        J[..., 1:] += R[:, 1 + d:] * power
        J = J if moving else J.sum(-1, keepdims=True)
        off = (knots if moving else knots[:1]).T - self.middle[:, None]  # [d, H+1 or 1]
        wanted = self.y + np.einsum("mdk,dk->m", J, off)
        path = Unknown("path", J.reshape(len(J), -1), *priors[0], strength=None if moving else self.extent)
        return infer(wanted, [path, Unknown("power", R[:, 0], *priors[1])], self.noise)

    def run(self, moving: bool) -> tuple[np.ndarray, Posterior, bool]:
        """The path [H+1, d], the answer there, and whether it settled."""
        d, steps, dt = len(self.middle), self.steps, self.made.dt
        choices, spread = histories(d, steps + 1, dt)
        kinks = tuple(c for c in choices if c[0] == _SMOOTH and c[1] > 2 * dt) or choices[:1]
        all_ = (kinks, spread) if moving else ((NUMBER,), numbers), histories(1, steps, dt)
        knots, now, share, before = self.first(moving), all_, 1.0, np.inf
        power = infer(self.y, [Unknown("power", self.linearised(knots)[:, 0], *all_[1])], self.noise).answers[0].mean
        for k in range(_ROUNDS):
            found = self.linear(knots, power, now, moving)
            change = np.broadcast_to(found.answers[0].mean.reshape(d, -1).T + self.middle, knots.shape) - knots
            largest = float(np.abs(change).max())
            share, before = share * (0.7 if largest > before else 1.0), largest
            knots = knots + change * min(share, self.radius / max(largest, 1e-300))
            power = found.answers[1].mean
            if largest < _SETTLED * self.radius:
                break
            now = all_ if k % _AGAIN == 0 else tuple(  # type: ignore[assignment]
                ((next(c for c in prior[0] if c[1] == a.length),), prior[1]) for a, prior in zip(found.answers, all_))
        return knots, self.linear(knots, power, all_, moving), largest < _SETTLED * self.radius

    def track(self, knots: np.ndarray, found: Posterior, settled: bool, readings: Readings, expected: np.ndarray) -> Track:
        """What was found, with notes on what to doubt."""
        d, (path, power) = len(self.middle), found.answers
        sd = np.broadcast_to(path.sd.reshape(d, -1).T, knots.shape)
        fitted = np.full(self.there.shape, np.nan)
        fitted[self.there] = expected[self.there] + self.linearised(knots)[:, 0] @ power.mean
        table = readings.values - fitted
        left = table[self.there]
        dim = float((sd.max(1) > self.radius).mean())
        notes = [] if settled else [f"The search did not settle in {_ROUNDS} rounds: do not trust the path."]
        notes += disagreeing(table, readings.sensors)
        if dim > 0.01:
            notes.append(f"The sensors hardly see where the spot is in {dim:.0%} of the time: its band is wider than the spot.")
        return Track(self.made.dt * np.arange(self.steps + 1), knots, sd, power.mean, power.sd, self.radius, found.noise,
                     float(np.sqrt(np.square(left).mean())), readings, fitted, (*readings.notes, *notes))
