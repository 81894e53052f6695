"""Gaussian spots some of whose numbers are free: powers over time, a path or a place, when they are on.

    f(x, t) = P(t) exp(-|x - p(t)|^2 / (2 r^2))   for on <= t <= off, P and p linear between knots

Averages over steps and their derivatives by the free numbers are exact in the switching times and by Gauss-Legendre otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.problems import Deposit, SpotTable, bells

_DIRECTIONS = 16  # sides of the polygon that stands for a circle of speeds
_PIECES = 64  # of a step that a quick spot crosses, at most
_ASIDE = 0.02  # radii
_DIGITS = 9  # of numbers in a table

Range = tuple[float, float]


@checked
@dataclass(frozen=True)
class FreeSpot:
    """A Gaussian spot to be designed. What is given as a range is free, what is given as a number is not.

    - `name`: in tables and pictures
    - `radius`: r, a length
    - `power`: lowest and highest P, or a number; in the unit of the equation's right-hand side
    - `place`: where it stays; or
    - `path`: the known path of a single spot (a `SpotTable`, its powers are not used); or
    - `area`: lowest and highest corner of a box in which its place is free, with `bends` knots of its path (1: it stays)
    - `speed`: the highest of a free path, length/time
    - `rate`: the highest change of its power, power/time
    - `knots`: of a free power over time, linear in between
    - `on`, `off`: when it is switched on and off, a time or a range; the beginning and the end unless given
    """

    name: str
    radius: Positive
    power: Range | float
    place: tuple[float, ...] | None = None
    path: SpotTable | None = None
    area: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    bends: int = 5
    speed: float = math.inf
    rate: float = math.inf
    knots: int = 21
    on: Range | float | None = None
    off: Range | float | None = None


class FreeSpots:
    """Spots over `steps` steps of `dt` in `dim` dimensions as functions of one vector of free numbers theta [n].

    `lower`, `upper` [n] bound them, `rows` and `most` are the other limits, rows @ theta <= most: rates, speeds, on before off.
    `moves` [n] tells which of them the source is not linear in.
    """

    def __init__(self, spots: list[FreeSpot], dim: int, steps: int, dt: float, mesh: Mesh | None = None,
                 brings: np.ndarray | None = None) -> None:
        if not spots:
            raise InputError("a design needs at least one source")
        if len({s.name for s in spots}) < len(spots):
            raise InputError("two sources have the same name")
        self.dt, self.steps, self.dim = dt, steps, dim
        self.parts, at = list[_Part](), 0
        for spot in spots:
            self.parts.append(_Part(spot, dim, steps, dt, at, mesh, brings))
            at += self.parts[-1].n
        if not at:
            raise InputError("nothing is free: give a power, an area or a switching time of a source as a range")
        self.n = at
        self.lower, self.upper = (np.concatenate([getattr(p, which) for p in self.parts]) for which in ("lower", "upper"))
        self.moves = np.concatenate([p.moves for p in self.parts])
        limits = [(part, *limit) for part in self.parts for limit in part.limits()]
        self.rows, self.most = np.zeros((len(limits), at)), np.array([most for _, _, most in limits])
        for row, (part, entries, _) in zip(self.rows, limits):
            for k, value in entries.items():
                row[part.first + k] = value

    def averages(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Of the source over each step at points x [P, d]: [steps, P]."""
        return np.sum([part.averages(theta, x) for part in self.parts], axis=0)

    def derivatives(self, theta: np.ndarray, x: np.ndarray, free: np.ndarray) -> np.ndarray:
        """Of the averages by those numbers that are `free` [n]: [number, steps, P]."""
        out = np.zeros((int(free.sum()), self.steps, len(x)))
        at = np.cumsum(free) - 1
        for part in self.parts:
            for k, column in part.derivatives(theta, x, free[part.first: part.first + part.n]):
                out[at[k]] = column
        return out

    def table(self, theta: np.ndarray) -> SpotTable:
        """As a table of spots, rounded to what its file holds."""
        rows = [part.rows(theta) for part in self.parts]
        return SpotTable(tuple(p.spot.name for p in self.parts), tuple(t for t, _ in rows), tuple(v for _, v in rows))

    def first(self, rng: np.random.Generator | None = None) -> np.ndarray:
        """Where a search begins: the middle of all ranges, on all the time; with `rng` places and times are random."""
        theta = 0.5 * (self.lower + self.upper)
        for part in self.parts:
            for k, end in ((part.on, 0.05), (part.off, 0.95)):
                if k is not None:
                    theta[k] = self.lower[k] + end * (self.upper[k] - self.lower[k])
        if rng is None:
            return theta
        drawn = self.lower + rng.uniform(0.05, 0.95, self.n) * (self.upper - self.lower)
        for part in self.parts:  # a path whose knots are drawn one by one would break its limit of speed: they stay together
            if part.places is not None:
                one = drawn[part.places[0]]
                drawn[part.places] = one if part.spot.speed < math.inf else drawn[part.places]
        for part in self.parts:
            if part.on is not None and part.off is not None and drawn[part.off] < drawn[part.on] + 2 * self.dt:
                drawn[[part.on, part.off]] = theta[[part.on, part.off]]
        return np.where(self.moves, drawn, theta)


@dataclass(frozen=True, eq=False)
class _Quadrature:
    """Points in time t [steps, Q], their weights `share` and the spot's shape `near` [steps, Q, P], [1, 1, P] where it stays."""

    t: np.ndarray
    share: np.ndarray
    near: np.ndarray

    def sum(self, factor: np.ndarray) -> np.ndarray:
        """Of factor [steps, Q] times the spot's shape: [steps, P]."""
        weights, near = self.share * factor, self.near
        return weights.sum(1)[:, None] * near[0] if near.shape[1] < weights.shape[1] else np.einsum("hq,hqp->hp", weights, near)


class _Part:
    """One spot. Its numbers stand at `first` .. `first + n - 1` of theta: powers, places, on, off."""

    def __init__(self, spot: FreeSpot, dim: int, steps: int, dt: float, first: int, mesh: Mesh | None,
                 brings: np.ndarray | None) -> None:
        self.spot, self.dim, self.steps, self.dt, self.first, self.mesh, self.brings = spot, dim, steps, dt, first, mesh, brings
        self.end = steps * dt
        called = f"source '{spot.name}'"
        if sum(v is not None for v in (spot.place, spot.path, spot.area)) != 1:
            raise InputError(f"{called} needs a place, a path or an area, one of them")
        if spot.knots < 1 or spot.bends < 1 or not spot.rate > 0 or not spot.speed > 0:
            raise InputError(f"{called}: knots, bends, rate and speed must be positive")
        places = [spot.place] if spot.place is not None else spot.area or []
        if any(len(p) != dim or not np.isfinite(p).all() for p in places):
            raise InputError(f"{called}: places have {dim} finite coordinates")
        if spot.path is not None and len(spot.path.names) != 1:
            raise InputError(f"{called}: its path must be that of one spot, the table has {len(spot.path.names)}")
        power, on, off = (_range(v, d, called) for v, d in ((spot.power, 0.0), (spot.on, 0.0), (spot.off, self.end)))
        if not (0 <= on[0] and off[1] <= self.end + 1e-9 * dt and on[0] < off[1]):
            raise InputError(f"{called} must be on within the time from 0 to {self.end:g}, and on before it is off")
        self.power, self.window = power, (on, off)
        self.knots = self._spread(spot.knots if power[0] < power[1] else 1)
        self.bends = self._spread(spot.bends)
        lower, upper, at = list[float](), list[float](), first
        self.powers = self.places = self.on = self.off = None
        if power[0] < power[1]:
            self.powers = np.arange(at, at + len(self.knots))
            lower, upper, at = [power[0]] * len(self.knots), [power[1]] * len(self.knots), at + len(self.knots)
        still = at - first
        if spot.area is not None:
            if not all(a < b for a, b in zip(*spot.area)):
                raise InputError(f"{called}: the first corner of its area must lie below the second")
            self.places = np.arange(at, at + len(self.bends) * dim).reshape(-1, dim)
            lower, upper = lower + list(spot.area[0]) * len(self.bends), upper + list(spot.area[1]) * len(self.bends)
            at += self.places.size
        if on[0] < on[1]:
            self.on, at, lower, upper = at, at + 1, [*lower, on[0]], [*upper, on[1]]
        if off[0] < off[1]:
            self.off, at, lower, upper = at, at + 1, [*lower, off[0]], [*upper, off[1]]
        self.n, self.lower, self.upper = at - first, np.array(lower), np.array(upper)
        self.moves = np.arange(self.n) >= still

    def _spread(self, count: int) -> np.ndarray:
        """Knots at ends of steps, evenly over the time."""
        return self.dt * np.unique(np.linspace(0, self.steps, count).round()) if count > 1 else np.array([0.0])

    def limits(self) -> list[tuple[dict[int, float], float]]:
        """Entries of a row (by the number within this spot) and what it may reach."""
        found = list[tuple[dict[int, float], float]]()
        if self.powers is not None and self.spot.rate < math.inf:
            for k, wait in enumerate(np.diff(self.knots)):
                found += [({k: -sign, k + 1: sign}, self.spot.rate * wait) for sign in (1.0, -1.0)]
        if self.places is not None and self.spot.speed < math.inf:
            sides, inside = _circle(self.dim)
            for (a, b), wait in zip(zip(self.places[:-1] - self.first, self.places[1:] - self.first), np.diff(self.bends)):
                for side in sides:
                    row = {int(k): -float(c) for k, c in zip(a, side)} | {int(k): float(c) for k, c in zip(b, side)}
                    found.append((row, inside * self.spot.speed * wait))
        if self.on is not None or self.off is not None:  # on for one step at least, so that a path has two rows
            row, most = dict[int, float](), -self.dt
            for number, sign, fixed in ((self.on, 1.0, self.window[0][0]), (self.off, -1.0, self.window[1][0])):
                if number is None:
                    most -= sign * fixed
                else:
                    row[number - self.first] = sign
            found.append((row, most))
        return found

    def switched(self, theta: np.ndarray) -> Range:
        on, off = self.window
        return (on[0] if self.on is None else float(theta[self.on])), (off[0] if self.off is None else float(theta[self.off]))

    def strength(self, theta: np.ndarray, t: np.ndarray) -> np.ndarray:
        """P at times [...]."""
        return np.full(t.shape, self.power[0]) if self.powers is None else np.interp(t, self.knots, theta[self.powers])

    def position(self, theta: np.ndarray, t: np.ndarray) -> np.ndarray:
        """p at times [...]: [..., d]."""
        if self.spot.place is not None:
            return np.broadcast_to(np.array(self.spot.place), (*t.shape, self.dim))
        if self.spot.path is not None:
            return self.spot.path.at(t.ravel())[0, :, : self.dim].reshape(*t.shape, self.dim)
        assert self.places is not None
        return np.stack([np.interp(t, self.bends, way) for way in theta[self.places].T], -1)

    @property
    def stays(self) -> bool:
        return self.spot.place is not None or (self.places is not None and len(self.bends) == 1)

    def near(self, theta: np.ndarray, t: np.ndarray, x: np.ndarray, aside: np.ndarray | float = 0.0) -> np.ndarray:
        """exp(-|x - p(t)|^2 / (2 r^2)) at times [...] and points [P, d] of a mesh, or moved `aside` [d]: [..., P]."""
        places = (self.position(theta, t) + aside).reshape(-1, self.dim)
        found = bells(torch.tensor(x), places, np.full(len(places), self.spot.radius), self.mesh, self.brings)
        return found.numpy().reshape(*t.shape, len(x))

    def slope(self, near: np.ndarray, theta: np.ndarray, t: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
        """The derivative of `near` as the spot moves along an axis; by differences, where a narrow one on a mesh has no formula."""
        aside = _ASIDE * self.spot.radius * np.eye(self.dim)[axis]
        if self.mesh is not None and Deposit.of(self.mesh).narrow(*_flat(self.position(theta, t), self.spot.radius)).any():
            return (self.near(theta, t, x, aside) - self.near(theta, t, x, -aside)) / (2 * aside[axis])
        at = self.position(theta, t)[..., axis, None]
        return near * (x[:, axis] - at) / self.spot.radius**2

    def quadrature(self, theta: np.ndarray, x: np.ndarray) -> _Quadrature:
        """Points in time of every step while it is on: four for each radius that it travels, between the rows of a known path."""
        edges, pieces = self._edges(*self.switched(theta)), 1
        if not self.stays:
            way = np.linalg.norm(np.diff(self.position(theta, edges), axis=1), axis=2).max() / self.spot.radius
            pieces = min(_PIECES, max(1, math.ceil(way)))
        nodes, weights = np.polynomial.legendre.leggauss(4)
        at = ((np.arange(pieces)[:, None] + 0.5 * (1 + nodes)) / pieces).ravel()
        width = np.diff(edges, axis=1)[..., None]
        t = (edges[:, :-1, None] + width * at).reshape(self.steps, -1)
        share = (width / self.dt * np.tile(0.5 * weights / pieces, pieces)).reshape(self.steps, -1)
        return _Quadrature(t, share, self.near(theta, t[:1, :1] if self.stays else t, x))

    def _edges(self, on: float, off: float) -> np.ndarray:
        """Times between which it is on and its path is straight, in each step [steps, K]; the last ones may coincide."""
        ends = self.dt * np.arange(self.steps + 1)
        left, right = ends[:-1].clip(on, off), ends[1:].clip(on, off)
        rows = np.zeros(0) if self.spot.path is None else self.spot.path.times[0]
        rows = rows[(rows > on) & (rows < off)]
        step = (np.searchsorted(ends, rows, side="right") - 1).clip(0, self.steps - 1)
        rank = np.arange(len(rows)) - np.searchsorted(step, step)  # its place among those of the same step
        inside = np.repeat(right[:, None], rank.max(initial=-1) + 1, axis=1)
        inside[step, rank] = rows
        return np.concatenate([left[:, None], inside, right[:, None]], axis=1)

    def averages(self, theta: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Over the steps: [steps, P]."""
        q = self.quadrature(theta, x)
        return q.sum(self.strength(theta, q.t))

    def derivatives(self, theta: np.ndarray, x: np.ndarray, wanted: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Of the averages by the `wanted` numbers of this spot: each with its place in theta."""
        q = self.quadrature(theta, x)
        for k in (self.first + np.flatnonzero(wanted)).tolist():
            if self.powers is not None and k in self.powers:
                yield k, q.sum(_hat(q.t, self.knots, k - int(self.powers[0])))
            elif self.places is not None and k in self.places:
                bend, axis = divmod(k - int(self.places[0, 0]), self.dim)
                slope = self.slope(q.near, theta, q.t[:1, :1] if self.stays else q.t, x, axis)
                yield k, replace(q, near=slope).sum(self.strength(theta, q.t) * _hat(q.t, self.bends, bend))
            else:  # the integral ends here, so its derivative is what is integrated
                out, when = np.zeros((self.steps, len(x))), np.array(theta[k])
                begins = k == self.on
                step = math.floor(when / self.dt + 1e-9) if begins else math.ceil(when / self.dt - 1e-9) - 1
                out[min(max(step, 0), self.steps - 1)] = self.strength(theta, when) * self.near(theta, when, x) / self.dt
                yield k, -out if begins else out

    def rows(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Times [R] and position, radius, power [R, d + 2] of its table."""
        on, off = self.switched(theta)
        knots = np.concatenate([self.knots, self.bends if self.places is not None else []])
        knots = knots if self.spot.path is None else np.concatenate([knots, self.spot.path.times[0]])
        inside = knots[(knots > on + 1e-6 * self.dt) & (knots < off - 1e-6 * self.dt)]
        times = np.array([float(f"{t:.{_DIGITS}g}") for t in (on, *np.unique(inside), off)])
        values = np.concatenate([self.position(theta, times), np.full((len(times), 1), self.spot.radius),
                                 self.strength(theta, times)[:, None]], axis=1)
        return times, np.array([[float(f"{v:.{_DIGITS}g}") for v in row] for row in values])


def _flat(places: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Places [..., d] as [T, d], and the radius at each [T]."""
    flat = places.reshape(-1, places.shape[-1])
    return flat, np.full(len(flat), radius)


def _range(value: Range | float | None, default: float, called: str) -> Range:
    low, high = value if isinstance(value, tuple) else (default, default) if value is None else (value, value)
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise InputError(f"{called}: a range goes from a finite number to a larger one, got {low:g} to {high:g}")
    return float(low), float(high)


def _hat(t: np.ndarray, knots: np.ndarray, k: int) -> np.ndarray:
    """How much knot k counts at times t."""
    return np.interp(t, knots, np.eye(len(knots))[k])


def _circle(dim: int) -> tuple[np.ndarray, float]:
    """Directions n_i [m, d] and c such that n_i . v <= c for all of them implies |v| <= 1."""
    if dim == 2:
        angle = 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
        return np.stack([np.cos(angle), np.sin(angle)], 1), math.cos(math.pi / _DIRECTIONS)
    grid = np.array([p for p in np.ndindex(5, 5, 5) if max(abs(np.array(p) - 2)) == 2]) - 2.0  # 98 points on a cube
    sides = grid / np.linalg.norm(grid, axis=1, keepdims=True)
    every = np.random.default_rng(0).standard_normal((20_000, 3))
    every /= np.linalg.norm(every, axis=1, keepdims=True)
    return sides, 0.99 * float((every @ sides.T).max(1).min())
