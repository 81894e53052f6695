"""Design: powers, paths and switching times of sources that make a field what it shall be and keep it within limits.

With the states U(theta) of a rollout as functions of the free numbers theta (`design_spots`), a step of the search solves

    minimise over d:  |r + J d|^2 / 2    where   lower <= theta + d <= upper,  rates and speeds,  lowest <= U + U' d <= highest

for all nodes and times: a quadratic program, r the weighted differences to the targets, J and U' derivatives by rollouts. A linear
equation whose sources stay where they are (or move on known paths) is solved by one of these, exactly: U is linear in the powers.
Paths, switching times and materials that change with the field take several, each within a region of trust, from several starts.
The limits of the state are rows that are added where they would be broken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dgnet.arguments import Finite, NotNegative, Positive, checked
from dgnet.designs.search import Aim, Plant, Search, coordinates
from dgnet.designs.spots import FreeSpot, FreeSpots
from dgnet.errors import InputError
from dgnet.inverse import Finer, Patch, Point, first_state, refuse_missed, refuse_several_fields, rows
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model, few_threads
from dgnet.problems import Problem, SpotTable, prolonged

Tensor = torch.Tensor

_ROUNDS = 4  # of searches with limits that are tightened by what a check finds beyond them
_SAME = 1e-3  # share by which an aim may move without another search


@checked
@dataclass(frozen=True, eq=False)
class Target:
    """What the first field shall be.

    - `name`: in tables and pictures
    - `value`: a number, or a field [N]
    - `history`: instead of a value, times and values, linear in between
    - `place`: the point where it is wanted, or the middle of a disc or ball of `radius` whose average is wanted; every node unless
      given
    - `area`: of the nodes, those in the box between two corners
    - `begin`, `end`: from when to when it is wanted; the whole time unless given
    - `weight`: how much it counts beside other targets
    """

    name: str
    value: Finite | np.ndarray = 0.0
    history: tuple[np.ndarray, np.ndarray] | None = None
    place: tuple[Finite, ...] | None = None
    radius: NotNegative = 0.0
    area: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    begin: Finite = 0.0
    end: Finite | None = None
    weight: Positive = 1.0


@dataclass(frozen=True, eq=False)
class Met:
    """How well a target is met.

    - `times` [T]; `wanted`, `got` [T] at a point, [T, nodes] of a field
    - `error`: root mean square of the difference; `worst`: the largest, both in the unit of the field
    - `share`: `error` over the root mean square of what was asked for, measured from what happens without any of the sources
    - `finer`: the same share on the mesh refined once with half the step; not a number where that was not computed
    """

    name: str
    times: np.ndarray
    wanted: np.ndarray
    got: np.ndarray
    error: float
    worst: float
    share: float
    finer: float


@dataclass(frozen=True)
class Margin:
    """A limit, the value that comes nearest to it, and how far that stays away (negative: the limit is broken)."""

    what: str
    limit: float
    reached: float
    margin: float
    where: str = ""


@dataclass(frozen=True, eq=False)
class Designed:
    """Sources as designed, and what they do.

    - `spots`: a table of spots for `dgnet simulate --source`, `dgnet rollout --source` or problem.toml
    - `met`: of each target; `reached`: whether all are within the tolerance
    - `margins`: of all limits, by rollouts of the same model and on the finer mesh
    - `states` [H+1, N]: the field over time, `times` [H+1]
    - `notes`: what could not be met and why, what was not checked
    - `exact`: one quadratic program, whose answer no other choice of the powers can beat
    - `rollouts`, `seconds`: what it took
    """

    spots: SpotTable
    met: tuple[Met, ...]
    reached: bool
    margins: tuple[Margin, ...]
    states: np.ndarray
    times: np.ndarray
    notes: tuple[str, ...]
    exact: bool
    rollouts: int
    seconds: float
    free: tuple[FreeSpot, ...] = field(default=())

    @property
    def holds(self) -> bool:
        """Whether every limit holds, on the finer mesh, too."""
        return all(m.margin >= 0 for m in self.margins)


@checked
def design(problem: Problem, sources: Sequence[FreeSpot], targets: Sequence[Target], steps: int, *,
           highest: float | None = None, lowest: float | None = None, start: Tensor | None = None, model: Model[Any] | None = None,
           tolerance: float = 0.02, starts: int = 4, seed: int = 0, finer: bool = True, correct: bool = False) -> Designed:
    """Choose powers, paths and switching times of sources so that targets are met and limits hold.

    - `problem`: with one field; materials may change with the solution
    - `sources`: `FreeSpot` of dgnet.designs: what is free about each of them, and its limits
    - `targets`: `Target` of dgnet.designs
    - `steps`: how many
    - `highest`, `lowest`: what the field may reach, anywhere and at any time
    - `start`: [N, 1]; zero unless given
    - `model`: whose rollouts; the classical solver unless given
    - `tolerance`: up to which share (`Met.share`) a target counts as met
    - `starts`: how many beginnings of free paths and times are tried
    - `seed`: of these beginnings
    - `finer`: check on the mesh refined once with half the step, too, and keep limits there
    - `correct`: meet the targets on that finer mesh instead: what it reads differently is taken off what is aimed at

        >>> import dgnet as dg, torch
        >>> from dgnet.designs import FreeSpot, Target
        >>> problem = dg.Problem(dg.box((8, 8)), dg.PDE(diffusion=0.05), [dg.Robin("boundary", 0.2, 20.0)], dt=0.1)
        >>> heater = FreeSpot("heater", radius=0.15, power=(0.0, 40.0), place=(0.3, 0.4))
        >>> warm = Target("middle", 24.0, place=(0.5, 0.5), begin=2.0)
        >>> found = dg.design(problem, [heater], [warm], 40, highest=32.0, start=torch.full((81, 1), 20.0))
        >>> found.reached, found.holds, bool(found.states.max() < 32)
        (True, True, True)
    """
    began = time.perf_counter()
    refuse_several_fields(problem)
    if not targets:
        raise InputError("a design needs at least one target")
    if steps < 1 or starts < 1 or not tolerance > 0:
        raise InputError("steps, starts and the tolerance must be positive")
    solver = model or Classical()
    free = FreeSpots(list(sources), problem.mesh.dim, steps, problem.dt, problem.mesh, solver.brought(problem))
    for spot in sources:
        _refuse_outside(spot, problem.mesh)
    begin = first_state(problem, start)
    with few_threads(problem.mesh.n_nodes), torch.no_grad():
        plant = Plant(problem, solver, begin, steps)
        aims = [_aim(t, problem, steps) for t in targets]
        search = Search(plant, free, aims, highest, lowest)
        _within(search, highest, lowest)
        fine, notes = _finer_plant(plant) if finer else (None, [])
        again = None if fine is None else [_finer_aim(a, t, fine.problem) for a, t in zip(aims, targets)]
        if correct and again is None:
            raise InputError("targets can be corrected by a finer mesh only where there is one")
        theta = _settled(search, fine, again if correct else None, starts, seed)
        return _designed(search, fine, again, theta, tolerance, correct, notes, began, tuple(sources))


def _refuse_outside(spot: FreeSpot, mesh: Mesh) -> None:
    """Refuse a source that misses the mesh wherever it may go."""
    if spot.place is not None:
        way = np.array([spot.place])
    elif spot.path is not None:
        way = spot.path.values[0][:, : mesh.dim]
    else:
        assert spot.area is not None
        within = np.clip(mesh.points, *spot.area)
        way = within[[np.square(within - mesh.points).sum(1).argmin()]]  # where it comes nearest to the mesh
    rows = np.column_stack([way, np.full(len(way), spot.radius), np.ones(len(way))])
    refuse_missed(SpotTable((spot.name,), (np.arange(len(way), dtype=np.float64),), (rows,)), mesh, "source")


def _within(search: Search, highest: float | None, lowest: float | None) -> None:
    """Refuse limits that the start breaks already."""
    start, points = search.passive[0], search.plant.problem.mesh.points
    for limit, sign, word in ((highest, 1, "above"), (lowest, -1, "below")):
        if limit is not None and (sign * (start - limit) > 0).any():
            worst = int((sign * start).argmax())
            raise InputError(f"the start is {word} the limit of {limit:g} already: {start[worst]:.6g} at "
                             f"{coordinates(points[worst])}")


def _settled(search: Search, fine: Plant | None, again: list[Aim] | None, starts: int, seed: int) -> np.ndarray:
    """Search, and again while the table itself breaks a limit or, with aims on the finer mesh (`again`), misses a target there."""
    theta = search.run(starts, seed)
    for _ in range(_ROUNDS):
        table = search.free.table(theta)
        U = search.plant.driven(table)
        V = U if fine is None else fine.driven(table)
        beyond = np.maximum([U.max() - search.given[0], search.given[1] - U.min()],
                            [V.max() - search.given[0], search.given[1] - V.min()])
        moved = 0.0 if again is None else search.aim_at([a.read(V) - b.read(U) for a, b in zip(again, search.aims)])
        if not search.feasible or ((beyond <= 0).all() and moved < _SAME):
            break
        search.tighten(np.where(beyond > 0, 1.1 * beyond, 0.0))
        theta = search.run(1, seed, theta)
    return theta


def _finer_plant(plant: Plant) -> tuple[Plant | None, list[str]]:
    """The same problem on the refined mesh with half the step; None, and why, where that is not possible."""
    if not Finer.exists(plant.problem):
        return None, ["Not checked on a finer mesh: it would be too large."]
    finer = Finer(plant.problem, plant.model)  # linear between nodes: a start that keeps a limit does so there, too
    return Plant(finer.problems[1], finer.model, prolonged(plant.problem.mesh)(plant.start), 2 * plant.steps), []


def _finer_aim(aim: Aim, target: Target, problem: Problem) -> Aim:
    """The same values at the same places and times; nodes of the given mesh are the first of the refined one."""
    return replace(aim, at=2 * aim.at, rows=None if aim.rows is None else _reader(target, problem))


def _reader(target: Target, problem: Problem) -> np.ndarray:
    assert target.place is not None
    where = Patch(target.place, target.radius, target.name) if target.radius else Point(target.place, target.name)
    return rows([where], problem)[..., 0].numpy()


def _aim(target: Target, problem: Problem, steps: int) -> Aim:
    """A target on a mesh and its steps."""
    called, dt, nodes = f"target '{target.name}'", problem.dt, problem.mesh.n_nodes
    end = steps * dt if target.end is None else target.end
    if not 0 <= target.begin <= end <= steps * dt * (1 + 1e-9) or not target.weight > 0:
        raise InputError(f"{called} must be wanted within 0 to {steps * dt:g} with a positive weight, got {target.begin:g} to "
                         f"{end:g}")
    at = np.arange(max(1, int(np.ceil(target.begin / dt - 1e-6))), int(np.floor(end / dt + 1e-6)) + 1)
    at = at if len(at) else np.array([max(1, round(end / dt))])
    value = np.asarray(target.value, dtype=np.float64) if target.history is None else np.interp(at * dt, *target.history)[:, None]
    if not np.isfinite(value).all() or (target.history is None and value.shape not in ((), (nodes,))):
        raise InputError(f"{called}: its values must be finite, one number or one for each of {nodes} nodes")
    if target.place is not None:
        if value.ndim == 1:
            raise InputError(f"{called}: a field is wanted at every node, not at one place")
        return Aim(target.name, at, _reader(target, problem), None, np.broadcast_to(value, (len(at), 1)),
                   np.full((len(at), 1), target.weight / len(at)))
    chosen, points = np.arange(nodes), problem.mesh.points
    if target.area is not None:
        chosen = np.flatnonzero(((points >= target.area[0]) & (points <= target.area[1])).all(1))
        if not len(chosen):
            raise InputError(f"{called}: there is no node in its area")
    size = problem.mesh.dual_volumes()[chosen]
    values = value[None, chosen] if value.ndim == 1 else value
    return Aim(target.name, at, None, chosen, np.broadcast_to(values, (len(at), len(chosen))),
               np.broadcast_to(target.weight * size / size.sum() / len(at), (len(at), len(chosen))))


# ---------------------------------------------------------------------- what is said about a design


def _designed(search: Search, fine: Plant | None, again: list[Aim] | None, theta: np.ndarray, tolerance: float, correct: bool,
              notes: list[str], began: float, sources: tuple[FreeSpot, ...]) -> Designed:
    plant, dt, table = search.plant, search.plant.problem.dt, search.free.table(theta)
    U = plant.driven(table)
    margins = [*_free_margins(search.free, table), *_state_margins(search, U, plant, "")]
    shares = [np.nan] * len(search.aims)
    if fine is not None and again is not None:
        V = fine.driven(table)
        margins += _state_margins(search, V, fine, ", finer mesh")
        shares = [aim.error(V) / scale for aim, scale in zip(again, search.scales)]
    met = []
    for aim, scale, share in zip(search.aims, search.scales, shares):
        got, error = aim.read(U).reshape(aim.values.shape), aim.error(U)
        wanted, values = (v[:, 0] if aim.nodes is None else v for v in (aim.values, got))
        worst = float(np.abs(got - aim.values).max())
        met.append(Met(aim.name, aim.at * dt, wanted, values, error, worst, error / scale, share))
    missed = [k for k, m in enumerate(met) if not (m.finer if correct else m.share) <= tolerance]
    if not search.feasible:
        notes.append(search.impossible(theta))
    else:
        notes += [search.why_not(theta, k, met[k].finer if correct else met[k].share) for k in missed]
        coarse = [m for m in met if not correct and m.share <= tolerance < m.finer]
        notes += [f"On the mesh refined once with half the step, target '{m.name}' is missed by {m.finer:.1%}: the mesh is coarse "
                  "for it. With `correct`, targets are met on the finer mesh." for m in coarse]
    count = plant.rollouts + (0 if fine is None else fine.rollouts)
    return Designed(table, tuple(met), not missed, tuple(margins), U, dt * np.arange(plant.steps + 1), tuple(notes), search.exact,
                    count, time.perf_counter() - began, sources)


def _free_margins(free: FreeSpots, table: SpotTable) -> list[Margin]:
    """Of powers, rates, speeds and areas, from the table that is written."""
    found = list[Margin]()
    for part, times, values in zip(free.parts, table.times, table.values):
        name, spot, power = part.spot.name, part.spot, values[:, -1]
        if part.powers is not None:
            low, high = part.power
            most, least = float(power.max()), float(power.min())
            found += [Margin(f"power of {name}, highest", high, most, high - most, f"t = {times[power.argmax()]:.4g}"),
                      Margin(f"power of {name}, lowest", low, least, least - low, f"t = {times[power.argmin()]:.4g}")]
            if np.isfinite(spot.rate):
                rate = float(np.abs(np.diff(power) / np.diff(times)).max())
                found.append(Margin(f"rate of {name}", spot.rate, rate, spot.rate - rate))
        if part.places is not None:
            assert spot.area is not None
            low_, high_ = np.array(spot.area)
            inside = float(np.minimum(values[:, :-2] - low_, high_ - values[:, :-2]).min())
            found.append(Margin(f"area of {name}", 0.0, inside, inside))
            if np.isfinite(spot.speed) and len(part.bends) > 1:
                speed = float((np.linalg.norm(np.diff(values[:, :-2], axis=0), axis=1) / np.diff(times)).max())
                found.append(Margin(f"speed of {name}", spot.speed, speed, spot.speed - speed))
    # a number at its limit is written with nine digits
    return [replace(m, margin=0.0) if abs(m.margin) <= 1e-8 * abs(m.limit) else m for m in found]


def _state_margins(search: Search, U: np.ndarray, plant: Plant, kind: str) -> list[Margin]:
    found = list[Margin]()
    for limit, sign, word in zip(search.given, (1, -1), ("highest", "lowest")):
        if np.isfinite(limit):
            k, node = np.unravel_index(int((sign * U).argmax()), U.shape)
            where = f"{coordinates(plant.problem.mesh.points[node])}, t = {k * plant.problem.dt:.4g}"
            what = f"{word} {plant.problem.pde.fields[0]}{kind}"
            found.append(Margin(what, float(limit), float(U[k, node]), float(sign * (limit - U[k, node])), where))
    return found
