"""The search behind `design`: rollouts and their derivatives, and quadratic programs step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import linprog

from dgnet.designs.quadratic import minimise
from dgnet.designs.spots import FreeSpots
from dgnet.errors import InputError
from dgnet.inverse import is_linear
from dgnet.models import Model, rollout
from dgnet.problems import Problem, SpotTable

Tensor = torch.Tensor

_MOST = 3e9  # bytes of the derivatives
_NUDGE = 1e-5  # of the source, for derivatives of what is not linear
_GENTLE = 1e-7  # weight of sudden changes of power beside the targets: of equal designs, the gentlest
_SHORT, _LONG = 8, 40  # steps of a search from one of several starts, and from the best of them
_NARROW = 1e-9  # region of trust, over the ranges, that ends a search: a range may be far too wide
_ADDED = 40  # rows of broken limits that are added at once
_SURE = 1e-6  # of the distance between a limit and the start that is kept for rounding


class Plant:
    """Rollouts of one model from one start over `steps` steps, and their derivatives by sources."""

    def __init__(self, problem: Problem, model: Model[Any], start: Tensor, steps: int) -> None:
        self.problem, self.model, self.start, self.steps = problem, model, start.to(problem.dtype), steps
        if model.rule != "average":
            raise InputError(f"{model.name} takes a source at both ends of each step, a design averages it over the step")
        self.x = model.points(problem)
        self.rollouts, self.linear = 0, is_linear(problem, model)
        self._still: np.ndarray | None = None

    def states(self, sources: np.ndarray | None, starts: Tensor | None = None) -> np.ndarray:
        """[B, H+1, N] for averages over the steps [B, H, P]."""
        given = None if sources is None else torch.from_numpy(sources)[..., None].to(self.start)
        count = 1 if sources is None else len(sources)
        self.rollouts += count
        start = (self.start if starts is None else starts)[None].expand(count, -1, -1)
        return rollout(self.model, self.problem, start, given, self.steps)[..., 0].double().numpy()

    def driven(self, table: SpotTable) -> np.ndarray:
        """[H+1, N] under a table of spots."""
        f = self.model.taking(table, self.problem).average(torch.tensor(self.x), 0, self.steps, self.problem.dt)[0, :, :, 0].numpy()
        return self.states(f[None])[0]

    def derivatives(self, changes: np.ndarray, f: np.ndarray, U: np.ndarray) -> np.ndarray:
        """[n, H+1, N] of the states along `changes` [n, H, P] of the source f [H, P], whose states are U."""
        if changes.shape[0] * U.size * 8 > _MOST:
            raise InputError(f"{len(changes)} free numbers on {U.shape[1]} nodes over {self.steps} steps are too many: use fewer "
                             "knots")
        if self.linear:
            zero = torch.zeros_like(self.start)
            if self._still is None:
                self._still = self.states(None, zero)[0]
            return self.states(changes, zero) - self._still
        size = np.abs(changes).max((1, 2)).clip(1e-300)
        by = _NUDGE * max(float(np.abs(f).max()), 1e-3 * float(size.max())) / size
        return (self.states(f + by[:, None, None] * changes) - U) / by[:, None, None]


@dataclass(frozen=True, eq=False)
class Aim:
    """A target on a mesh: values and weights [T, S] at the ends of the steps `at` [T], read by `rows` [S, N] or at `nodes` [S]."""

    name: str
    at: np.ndarray
    rows: np.ndarray | None
    nodes: np.ndarray | None
    values: np.ndarray
    weights: np.ndarray

    def read(self, U: np.ndarray) -> np.ndarray:
        """[..., T S] of states [..., H+1, N]."""
        part = U[..., self.at, :]
        part = part[..., self.nodes] if self.rows is None else part @ self.rows.T
        return part.reshape(*part.shape[:-2], -1)

    def error(self, U: np.ndarray) -> float:
        """Root mean square of the difference."""
        return float(np.sqrt(np.average((self.read(U) - self.values.ravel()) ** 2, weights=self.weights.ravel())))

    def scale(self, passive: np.ndarray) -> float:
        """Root mean square of what is asked for beyond what happens without the sources."""
        return self.error(passive) or float(np.abs(self.values).max()) or 1.0

    def place(self, k: int, points: np.ndarray) -> str:
        """Where entry k of what `read` returns is."""
        return f"'{self.name}'" if self.nodes is None else coordinates(points[self.nodes[k % len(self.nodes)]])


def coordinates(point: np.ndarray) -> str:
    """A point in a sentence."""
    return f"({', '.join(f'{x:.4g}' for x in point)})"


@dataclass(frozen=True, eq=False)
class _Here:
    """A choice, its source and states, what it costs."""

    theta: np.ndarray
    f: np.ndarray
    U: np.ndarray
    cost: float


class Search:
    """Choices of the free numbers that meet the aims within the limits."""

    def __init__(self, plant: Plant, free: FreeSpots, aims: list[Aim], highest: float | None, lowest: float | None) -> None:
        self.plant, self.free, self.aims = plant, free, aims
        self.given = np.array([np.inf if highest is None else highest, -np.inf if lowest is None else lowest])
        if not self.given[0] > self.given[1]:
            raise InputError(f"the highest value must be above the lowest, got {highest} and {lowest}")
        self.passive = plant.states(None)[0]
        near = self.passive[0].max(), self.passive[0].min()
        away = [abs(g - n) for g, n in zip(self.given, near) if np.isfinite(g)]
        self.size = max(*away, 1e-12) if away else 1.0
        sure = _SURE * self.size
        self.limits = self.given + np.array([-sure, sure])
        self.exact = plant.linear and not free.moves.any()
        self.feasible = True
        self.span = free.upper - free.lower
        self._rows: set[tuple[int, int, int]] = set()  # (sign, step, node) of limits that matter
        self.scales = [a.scale(self.passive) for a in aims]
        self._factors = [np.sqrt(a.weights.ravel()) / scale for a, scale in zip(aims, self.scales)]
        self._shift = np.zeros(sum(a.values.size for a in aims))
        self._bend = self._gentleness()
        self._kept: np.ndarray | None = None  # the slope, where it is the same everywhere

    def tighten(self, by: np.ndarray) -> None:
        """Lower the highest and raise the lowest value that is aimed at."""
        self.limits = self.limits + np.array([-by[0], by[1]])

    def aim_at(self, differences: list[np.ndarray]) -> float:
        """Aim below the targets by what a better solver reads above; returns by what share this moves the aims."""
        before, self._shift = self._shift, np.concatenate([d * w for d, w in zip(differences, self._factors)])
        return float(np.linalg.norm(self._shift - before))

    def _gentleness(self) -> np.ndarray:
        """[n, n]: squares of the differences of neighbouring powers, over their ranges."""
        out = 1e-4 * np.eye(self.free.n)
        for part in self.free.parts:
            if part.powers is not None:
                D = np.diff(np.eye(len(part.powers)), axis=0)
                out[np.ix_(part.powers, part.powers)] += D.T @ D
        return _GENTLE * out

    # ------------------------------------------------------------------ one choice

    def at(self, theta: np.ndarray, weight: float) -> _Here:
        f = self.free.averages(theta, self.plant.x)
        U = self.plant.states(f[None])[0]
        z = theta / self.span
        cost = 0.5 * float(np.square(self._residual(U)).sum()) + 0.5 * float(z @ self._bend @ z)
        return _Here(theta, f, U, cost + weight * self.beyond(U) / self.size)

    def _residual(self, U: np.ndarray) -> np.ndarray:
        """Weighted differences to the targets."""
        return np.concatenate([(a.read(U) - a.values.ravel()) * w for a, w in zip(self.aims, self._factors)]) + self._shift

    def beyond(self, U: np.ndarray) -> float:
        """By how much the limits are broken."""
        return max(0.0, float(U.max() - self.limits[0]), float(self.limits[1] - U.min()))

    def slope(self, here: _Here, free: np.ndarray) -> np.ndarray:
        """Derivatives of the states by the free numbers, over their ranges: [n, H+1, N]."""
        out = self.plant.derivatives(self.free.derivatives(here.theta, self.plant.x, free), here.f, here.U)
        out *= self.span[free][:, None, None]
        return out

    # ------------------------------------------------------------------ one step

    def step(self, here: _Here, J: np.ndarray, free: np.ndarray, trust: float, weight: float) -> tuple[np.ndarray, float]:
        """The best change of theta by the linear model, and by how much it still breaks the limits."""
        A = np.concatenate([a.read(J) * w for a, w in zip(self.aims, self._factors)], axis=1)
        bend = self._bend[np.ix_(free, free)]
        P = np.zeros((len(J) + 1,) * 2)
        P[:-1, :-1] = A @ A.T + bend
        q = np.append(A @ self._residual(here.U) + self._bend[free] @ (here.theta / self.span), weight)
        plain = self._plain(here.theta, free, trust)
        for _ in range(60):
            G, h = self._with_limits(plain, here.U, J)
            x = minimise(P, q, G, h)
            after = here.U + np.tensordot(x[:-1], J, 1)
            if not self._note_broken(after, self.size * max(x[-1], 0.0)):
                break
        d = np.zeros(self.free.n)
        d[free] = x[:-1] * self.span[free]
        return d, self.beyond(after)

    def _plain(self, theta: np.ndarray, free: np.ndarray, trust: float) -> tuple[np.ndarray, np.ndarray]:
        """Rows of bounds, trust, rates and speeds for changes over their ranges, the last column is how far limits give way."""
        n = int(free.sum())
        up = np.minimum(trust, (self.free.upper - theta)[free] / self.span[free])
        down = np.minimum(trust, (theta - self.free.lower)[free] / self.span[free])
        rows, left = self.free.rows[:, free] * self.span[free], self.free.most - self.free.rows @ theta
        G = np.zeros((2 * n + len(rows) + 1, n + 1))
        G[:n, :n], G[n:2 * n, :n], G[2 * n:-1, :n], G[-1, -1] = np.eye(n), -np.eye(n), rows, -1.0
        return G, np.concatenate([up, down, left.clip(min=0.0), [0.0]])

    def _with_limits(self, plain: tuple[np.ndarray, np.ndarray], U: np.ndarray, J: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        G, h = plain
        if not self._rows:
            return G, h
        sign, k, node = np.array(sorted(self._rows)).T
        limit = np.where(sign > 0, self.limits[0], self.limits[1])
        rows = np.concatenate([sign[:, None] * J[:, k, node].T / self.size, np.full((len(sign), 1), -1.0)], axis=1)
        return np.concatenate([G, rows]), np.concatenate([h, sign * (limit - U[k, node]) / self.size])

    def _note_broken(self, U: np.ndarray, given_way: float) -> bool:
        """Add rows for what breaks a limit by more than it gives way: at each step its worst node, and the worst of all."""
        new = set[tuple[int, int, int]]()
        for sign, limit in zip((1, -1), self.limits):
            if not np.isfinite(limit):
                continue
            over = sign * (U - limit) - given_way - 0.1 * _SURE * self.size
            steps = np.flatnonzero(over.max(1) > 0)
            new |= {(sign, int(k), int(over[k].argmax())) for k in steps}
            if len(steps):
                most = np.argpartition(over, -_ADDED, axis=None)[-_ADDED:] if over.size > _ADDED else np.arange(over.size)
                new |= {(sign, int(k), int(n)) for k, n in zip(*np.unravel_index(most, over.shape)) if over[k, n] > 0}
        fresh = bool(new - self._rows)
        self._rows |= new
        return fresh

    # ------------------------------------------------------------------ the whole search

    def run(self, starts: int, seed: int, theta: np.ndarray | None = None) -> np.ndarray:
        """The best choice found, from the middle of all ranges and random beginnings, or from `theta`."""
        if self.exact:
            return self._convex(self.free.first() if theta is None else theta)
        if theta is None:
            rng = np.random.default_rng(seed)
            starts = starts if self.free.moves.any() else 1
            found = [self._descend(self.free.first(rng if k else None), _SHORT) for k in range(starts)]
            theta = min(found, key=lambda here: here.cost).theta
        best = self._descend(theta, _LONG)
        self.feasible = self.beyond(best.U) <= self.size * 1e-3
        return best.theta

    def _convex(self, theta: np.ndarray) -> np.ndarray:
        """The quadratic program; limits give way only if they have to."""
        free = np.ones(self.free.n, dtype=bool)
        here = self.at(theta, 0.0)
        J = self._constant_slope(here)
        for weight in (1e2, 1e5, 1e8):
            d, beyond = self.step(here, J, free, 2.0, weight)
            self.feasible = beyond <= self.size * 1e-5
            if self.feasible:
                break
        return np.clip(theta + d, self.free.lower, self.free.upper)

    def _constant_slope(self, here: _Here) -> np.ndarray:
        """By all numbers, of a linear problem with fixed places: the same everywhere."""
        if self._kept is None:
            self._kept = self.slope(here, np.ones(self.free.n, dtype=bool))
        return self._kept

    def _descend(self, theta: np.ndarray, steps: int) -> _Here:
        """Steps within a region of trust, which shrinks where the linear model was wrong and grows where it was right."""
        weight, trust = 1e2, 0.2
        here = self.at(theta, weight)
        still = ~self.free.moves
        if still.any():  # the best powers for these paths and times
            d, _ = self.step(here, self.slope(here, still), still, 2.0, weight)
            here = min(here, self.at(here.theta + d, weight), key=lambda h: h.cost)
        every = np.ones(self.free.n, dtype=bool)
        for _ in range(steps):
            J = self.slope(here, every)
            while trust > _NARROW:
                d, _ = self.step(here, J, every, trust, weight)
                new = self.at(np.clip(here.theta + d, self.free.lower, self.free.upper), weight)
                if new.cost < here.cost:
                    break
                trust *= 0.3
            if trust <= _NARROW:
                break
            gain, here = here.cost - new.cost, new
            trust = min(0.5, 1.6 * trust)
            if gain < 1e-4 * here.cost + 1e-9:  # a share of 0.005%
                break
        return here

    # ------------------------------------------------------------------ what cannot be

    def impossible(self, theta: np.ndarray) -> str:
        """A sentence about limits that no choice keeps."""
        limit, value, where = self.nearest_limit(self.at(theta, 0.0).U)
        word = "cannot be kept: with the best choice" if self.exact else "is not kept by any choice that was found: with the best"
        return f"The limit of {limit:g} {word}, the field is {value:.6g} at {where}."

    def nearest_limit(self, U: np.ndarray) -> tuple[float, float, str]:
        """The limit that is broken most or least far away, the value there, and where that is."""
        over = np.stack([U - self.limits[0], self.limits[1] - U])
        which, k, node = np.unravel_index(int(over.argmax()), over.shape)
        return float(self.given[which]), float(U[k, node]), self.moment(int(k), int(node))

    def moment(self, k: int, node: int) -> str:
        """A node after step k, in a sentence."""
        return f"{coordinates(self.plant.problem.mesh.points[node])}, t = {k * self.plant.problem.dt:.4g}"

    def why_not(self, theta: np.ndarray, k: int, share: float) -> str:
        """A sentence about target k, which is missed by a share: what the limits allow where it is missed most."""
        here, aim, dt = self.at(theta, 0.0), self.aims[k], self.plant.problem.dt
        missed = aim.values.ravel() - aim.read(here.U)
        worst = int(np.abs(missed).argmax())
        wanted, t = aim.values.ravel()[worst], aim.at[worst // aim.values.shape[1]] * dt
        place = aim.place(worst, self.plant.problem.mesh.points)
        head = f"Target '{aim.name}' is missed by {share:.1%} of what is asked for"
        if not self.exact:
            return f"{head}: {wanted - missed[worst]:.6g} instead of {wanted:.6g} at {place}, t = {t:.4g} (best of all starts)."
        J, sign = self._constant_slope(here), float(np.sign(missed[worst]))
        reach, binding = self._furthest(here, J, sign * aim.read(J)[:, worst])
        best, word = wanted - missed[worst] + sign * reach, "most" if sign > 0 else "least"
        if sign * (best - wanted) > -1e-4 * abs(missed[worst]):
            return f"{head}: {wanted:.6g} at {place}, t = {t:.4g}, can be reached, but not together with the rest of the targets."
        return f"{head}: at {place}, t = {t:.4g}, {wanted:.6g} is wanted, and the limits allow at {word} {best:.6g} ({binding})."

    def _furthest(self, here: _Here, J: np.ndarray, along: np.ndarray) -> tuple[float, str]:
        """How far a linear function can grow within all limits, and which of these hold it back."""
        free = np.ones(self.free.n, dtype=bool)
        plain = self._plain(here.theta, free, np.inf)
        for _ in range(60):
            G, h = self._with_limits(plain, here.U, J)
            found = linprog(-along, G[:, :-1], h, bounds=(None, None))
            if found.status != 0 or not self._note_broken(here.U + np.tensordot(found.x, J, 1), 0.0):
                break
        if found.status != 0:
            return 0.0, "the limits"
        count = len(plain[1])
        held = found.ineqlin.marginals < -1e-9 * np.abs(along).max()
        words = []
        if held[count:].any():
            limit, _, where = self.nearest_limit(here.U + np.tensordot(found.x, J, 1))
            words.append(f"the limit of {limit:g} is reached at {where}")
        at_end = held[: self.free.n] | held[self.free.n: 2 * self.free.n]
        names = [p.spot.name for p in self.free.parts if at_end[p.first: p.first + p.n].any()]
        words += [f"the power of {' and '.join(names)} is at its limit"] if names else []
        words += ["a rate or a speed is at its limit"] if held[2 * self.free.n: count - 1].any() else []
        return float(along @ found.x), "; ".join(words) or "the limits"
