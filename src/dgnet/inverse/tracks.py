"""Where a heat source is: the place of a spot that stays, or the path of one that moves, and its power over time.

A Gaussian spot of known radius at p(t) with power q(t). Readings are linear in q but not in p; both come from the sensor kernels,
so no step of the search needs a rollout:

    y_n = sum over steps k of q_k  lag_{n-1-k} . (average over step k of exp(-|x - p(t)|^2 / 2 r^2))

The first path: sources of any strength >= 0 at many places, in pieces of the time; few of them remain (non-negative least squares),
and where most of their strength is, the search begins. Then Gauss-Newton, with smooth priors on path and power whose lengths the
evidence chooses, as for all unknowns (`posterior`). Bands are those of the linearised problem at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError
from dgnet.inverse.finer import Gap
from dgnet.inverse.kernels import kernels
from dgnet.inverse.place import spread_out
from dgnet.inverse.posterior import Choice, Posterior, Spread, Unknown, infer
from dgnet.inverse.priors import NUMBER, histories, numbers
from dgnet.inverse.readings import Readings, cleaned, disagreeing
from dgnet.inverse.recover import SECOND, doubts, late
from dgnet.inverse.rollouts import Known, Measured, Rollout, no_second, refuse_several_fields
from dgnet.inverse.sensor import Averages, called
from dgnet.models import Model, few_threads
from dgnet.problems import LEAST, Deposit, Problem, Source, bells

Tensor = torch.Tensor

TRACKS = ("place", "path")
_PLACES, _PIECES = 120, 10  # where and when the first search allows sources
_ROUNDS, _SETTLED = 30, 0.02  # of Gauss-Newton, and the movement (in radii) after which it ends
_AGAIN = 5  # rounds after which the lengths of the priors are chosen again
_NARROW, _WIDE = 1e-2, 1e2  # radius of a spot over the mesh's spacing, and over its size
_ASIDE = 0.02  # widths, for derivatives
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
def recover_track(problem: Problem, readings: Readings, radius: Positive, *, moving: bool = True,
                  start: Tensor | None = None, source: Source | Averages | None = None, noise: Positive | None = None,
                  model: Model[Any] | None = None, finer: bool = True) -> Track:
    """The path (or, if it is not `moving`, the place) and the power of one spot of known radius.

    - `problem`, `readings`, `start`, `source`, `noise`, `model`, `finer`: as for `recover`
    - `radius`: r of the spot, a length
    """
    refuse_several_fields(problem)
    least, most = _NARROW * problem.mesh.spacing, _WIDE * float(np.ptp(problem.mesh.points, axis=0).max())
    if not least <= radius <= most:
        raise InputError(f"the radius of the spot must lie between {least:.3g} and {most:.3g} on this mesh, got {radius:g}: is it "
                         "in another unit of length?")
    with few_threads(problem.mesh.n_nodes), torch.no_grad():
        search = _Search(problem, readings, Known.of(problem, start, source), model, finer, radius)
        found, notes = search.run(moving, noise=None if finer else noise), no_second(search.why)
        if search.finer is not None:
            notes = search.finer.narrow({"The spot": radius})
            for _ in range(SECOND):
                search.gap = search.missed(found)
                found = search.run(moving, found, noise)
    return search.track(found, notes)


class _Shape:
    """A spot of power 1 and a known radius as a model takes it up.

    - `width`: its radius, or that with which nodes resolve it where it is narrow (`Deposit`)
    """

    def __init__(self, problem: Problem, model: Model[Any], radius: float) -> None:
        self.mesh, self.radius = problem.mesh, radius
        self.points, self._brings = torch.tensor(model.points(problem)), model.brought(problem)
        self.width = max(radius, LEAST * problem.mesh.spacing)

    def at(self, places: np.ndarray) -> Tensor:
        """At places [T, d]: [T, P]."""
        return bells(self.points, places, np.full(len(places), self.radius), self.mesh, self._brings)

    def along(self, knots: np.ndarray, slopes: bool = True) -> Tensor:
        """Averages over steps where it goes from knot to knot [H, P], and their derivatives by both ends: [1 + 2 d, H, P]."""
        d, aside = knots.shape[1], _ASIDE * self.width
        way = np.linalg.norm(np.diff(knots, axis=0), axis=1).max()
        nodes, weights = np.polynomial.legendre.leggauss(3 + 3 * int(way / self.width))
        shapes = self.points.new_zeros(1 + 2 * d * slopes, len(knots) - 1, len(self.points))
        for s, w in zip(0.5 * (1 + nodes), 0.5 * weights):
            place = (1 - s) * knots[:-1] + s * knots[1:]
            value = self.at(place)
            shapes[0] += w * value
            if not slopes:
                continue
            narrow = Deposit.of(self.mesh).narrow(place, np.full(len(place), self.radius))
            away = self.points[None] - torch.tensor(place)[:, None]  # [H, P, d]
            slope = (value[..., None] * away / self.radius**2).movedim(-1, 0)
            for axis, step in enumerate(aside * np.eye(d) if narrow.any() else ()):  # these have no formula
                slope[axis, narrow] = (self.at(place[narrow] + step) - self.at(place[narrow] - step)) / (2 * aside)
            shapes[1:1 + d] += w * (1 - s) * slope
            shapes[1 + d:] += w * s * slope
        return shapes


@dataclass(frozen=True, eq=False)
class _Found:
    """A path [H+1, d], the power [H], the answer there, and whether it settled."""

    knots: np.ndarray
    power: np.ndarray
    answer: Posterior
    asked: tuple[np.ndarray, list[Unknown]]  # readings and unknowns as they were linearised
    settled: bool


class _Search(Measured):
    """Readings y [m] of one spot, what is known taken off."""

    def __init__(self, problem: Problem, readings: Readings, known: Known, model: Model[Any] | None, finer: bool,
                 radius: float) -> None:
        super().__init__(problem, cleaned(readings, problem, known.level), known, model, finer)
        self.shape, mesh = _Shape(problem, self.model, radius), problem.mesh
        self.made = kernels(problem, self.readings.sensors, self.steps, self.model)
        self.expected = self.made.readings(self.source, self.known.start).double().numpy()  # [S, H+1], without the spot
        self.values = self.readings.values - self.at @ self.expected.T
        self.gap: Gap | None = None  # what mesh and step get wrong
        self.middle = 0.5 * (mesh.points.min(0) + mesh.points.max(0))
        self.extent = float(np.ptp(mesh.points, axis=0).mean())

    def missed(self, found: _Found) -> Gap:
        """What mesh and step get wrong of the readings that a path leads to."""
        def put(run: Rollout) -> None:
            ends, steps = np.linspace(0, self.steps, run.count + 1), np.arange(self.steps + 1)
            knots = np.stack([np.interp(ends, steps, column) for column in found.knots.T], 1)
            shape = _Shape(run.problem, run.finer.model, self.shape.radius).along(knots, slopes=False)[0]
            run.add((run.halved(torch.from_numpy(found.power))[:, None] * shape)[..., None])

        return self.gap_of(self.at @ self.series(found.knots, found.power).T, put)

    @property
    def y(self) -> np.ndarray:
        """[m], without what mesh and step get wrong."""
        return (self.values - (0.0 if self.gap is None else self.gap.bias))[self.there]

    @property
    def others(self) -> list[Unknown]:
        return [] if self.gap is None else [self.gap.unknown(self.readings.times, self.there)]

    def series(self, knots: np.ndarray, power: np.ndarray) -> np.ndarray:
        """Readings at the ends of the steps [S, H+1]."""
        R = self.made.responses(self.shape.along(knots, slopes=False)[..., None]).double()[:, :, 0].numpy()
        return self.expected + R @ power

    def responses(self, shapes: Tensor) -> np.ndarray:
        """Responses [m, J, H] of the readings to shapes [J, P] or [J, H, P] in each step."""
        R = self.made.responses(shapes[..., None]).double().numpy()  # [S, H+1, J, H]
        return np.einsum("tn,snjk->tsjk", self.at, R)[self.there]

    def first(self, moving: bool) -> np.ndarray:
        """A path [H+1, d] to begin with."""
        places = np.array([s.mark for s in spread_out(self.shape.mesh, _PLACES)])
        pieces = np.array_split(np.arange(self.steps), min(_PIECES, self.steps))
        R = self.responses(self.shape.at(places))
        table = np.stack([R[..., piece].sum(-1) for piece in pieces], -1)  # [m, places, pieces]
        strength = nnls(table.reshape(len(table), -1), self.y, maxiter=20 * table[0].size)[0].reshape(len(places), len(pieces))
        if not moving:
            strength = strength.sum(1, keepdims=True)
        near = np.exp(-((places[:, None] - places) ** 2).sum(-1) / (2 * self.shape.width**2))
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
        return self.responses(self.shape.along(knots))

    def linear(self, knots: np.ndarray, power: np.ndarray, priors: tuple[Prior, Prior], moving: bool,
               noise: float | None) -> tuple[Posterior, tuple[np.ndarray, list[Unknown]]]:
        """The answer to the problem linearised at a path and a power, and what was asked."""
        R, d = self.linearised(knots), knots.shape[1]
        J = np.zeros((len(R), d, self.steps + 1))
        J[..., :-1] += R[:, 1:1 + d] * power
        J[..., 1:] += R[:, 1 + d:] * power
        J = J if moving else J.sum(-1, keepdims=True)
        off = (knots if moving else knots[:1]).T - self.middle[:, None]  # [d, H+1 or 1]
        wanted = self.y + np.einsum("mdk,dk->m", J, off)
        path = Unknown("path", J.reshape(len(J), -1), *priors[0], strength=None if moving else self.extent)
        blocks = [path, Unknown("power", R[:, 0], *priors[1]), *self.others]
        return infer(wanted, blocks, noise), (wanted, blocks)

    def run(self, moving: bool, before: _Found | None = None, noise: float | None = None) -> _Found:
        """Gauss-Newton to its end, from an answer before where there is one."""
        d, steps, dt = len(self.middle), self.steps, self.problem.dt
        choices, spread = histories(d, steps + 1, dt)
        kinks = tuple(c for c in choices if c[0] == _SMOOTH and c[1] > 2 * dt) or choices[:1]
        all_ = (kinks, spread) if moving else ((NUMBER,), numbers), histories(1, steps, dt)
        now, share, last = all_, 1.0, np.inf
        if before is None:
            knots = self.first(moving)
            power = infer(self.y, [Unknown("power", self.linearised(knots)[:, 0], *all_[1])], noise).numbers["power"]
        else:
            knots, power = before.knots, before.power
        for k in range(_ROUNDS):
            found, _ = self.linear(knots, power, now, moving, noise)
            change = np.broadcast_to(found.numbers["path"].reshape(d, -1).T + self.middle, knots.shape) - knots
            largest = float(np.abs(change).max())
            share, last = share * (0.7 if largest > last else 1.0), largest
            knots = knots + change * min(share, self.shape.width / max(largest, 1e-300))
            power = found.numbers["power"]
            if largest < _SETTLED * self.shape.width:
                break
            now = all_ if k % _AGAIN == 0 else tuple(((found.answer(name).choice,), prior[1])  # type: ignore[assignment]
                                                     for name, prior in zip(("path", "power"), all_))
        return _Found(knots, power, *self.linear(knots, power, all_, moving, noise), largest < _SETTLED * self.shape.width)

    def track(self, found: _Found, notes: Sequence[str]) -> Track:
        """What was found, with notes on what to doubt."""
        d, path, power = len(self.middle), found.answer.answer("path"), found.answer.answer("power")
        sd = np.broadcast_to(path.sd.reshape(d, -1).T, found.knots.shape)
        total = self.series(found.knots, power.mean)
        left = self.readings.values - self.at @ total.T - (0.0 if self.gap is None else self.gap.bias)
        left[self.there] -= sum(u.response @ found.answer.numbers[u.name] for u in self.others)
        wanted, blocks = found.asked
        dim = float((sd.max(1) > self.shape.width).mean())
        notes = [*self.readings.notes, *notes]
        notes += [] if found.settled else [f"The search did not settle in {_ROUNDS} rounds: do not trust the path."]
        notes += disagreeing(left, self.readings.sensors)
        notes += doubts(left, called(self.readings.sensors), self.gap, found.answer.noise, lambda: late(
            left, wanted, [u.like(found.answer) for u in blocks], None, torch.from_numpy(total), np.zeros(len(total)), self.at,
            self.problem.dt))
        if dim > 0.01:
            notes.append(f"The sensors hardly see where the spot is in {dim:.0%} of the time: its band is wider than the spot.")
        times, misfit = self.problem.dt * np.arange(self.steps + 1), float(np.sqrt(np.nanmean(left**2)))
        return Track(times, found.knots, sd, power.mean, power.sd, self.shape.radius, found.answer.noise, misfit, self.readings,
                     self.readings.values - left, tuple(notes))
