"""Follow a running part: the whole field with bands from readings as they come, forecasts, alarms, and a look back.

A Kalman filter on the model's own step (`dynamics`), which is told what is unknown (`drives`). It is exact where the state has few
entries, and keeps the directions of largest variance where it has many (`kalman`). Each row of readings is compared with what was
expected of it (`watch`).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import chi2

from dgnet.arguments import Count, Finite, Positive, Share, array, checked, number
from dgnet.errors import InputError
from dgnet.files import read_arrays, write_arrays
from dgnet.following.dynamics import Dynamics, Shadow, in_double
from dgnet.following.kalman import Filter, Innovation
from dgnet.following.unknown_inputs import Prior, learned
from dgnet.following.watch import ROWS, Event, Watch
from dgnet.inverse import Readings, Sensor, Sensors, called, first_state, named, rows
from dgnet.models import Model, few_threads
from dgnet.problems import Case, Problem, Source, SpotTable
from dgnet.training import differences, fingerprint, summed

Tensor = torch.Tensor

_JUMP = 10_000  # steps: a time farther ahead is a mistake
_EXCESS = 2.0  # chi-square over its mean above which drives are taken for stronger while an alarm lasts
_STRONGEST = 1e6  # times their variance
LEARN = 30
"""Rows from which strengths are learned."""


@dataclass(frozen=True, eq=False)
class Field:
    """A field with its uncertainty: `mean` and `sd` [N, F] at the mesh's nodes at one `time`."""

    time: float
    mean: np.ndarray
    sd: np.ndarray

    @checked
    def band(self, share: Share = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Ends of the bands that hold the truth with this probability."""
        reach = float(ndtri(0.5 + 0.5 * share)) * self.sd
        return self.mean - reach, self.mean + reach


@dataclass(frozen=True, eq=False)
class Course:
    """What is estimated over time.

    - `times` [T]
    - `mean`, `sd` [T, S]: of sensors, without their noise
    - `drives`, `drives_sd` [T, J]: in the order of `Follower.labels`
    - `fields`: the whole field at the last time (`forecast`) or at every time (`smooth`, where asked for)
    """

    times: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    drives: np.ndarray
    drives_sd: np.ndarray
    fields: tuple[Field, ...]


@dataclass(frozen=True, eq=False)
class Update:
    """One row of readings beside what was expected of it: [S], before it was used.

    - `used`: which sensors were used
    - `chi_square`, `count`: of those used; the first is about the second where the model holds
    - `events`: what a person should know
    """

    time: float
    expected: np.ndarray
    sd: np.ndarray
    used: np.ndarray
    chi_square: float
    count: int
    events: tuple[Event, ...]


@dataclass(frozen=True, eq=False)
class _Moment:
    """All that readings change of a `Follower`, beside its watch and the past of its filter."""

    step: int
    count: int
    chi_square: float
    scale: float
    last_scale: float
    mean: np.ndarray
    root: np.ndarray
    read: list[Innovation]
    memory: dict[str, Tensor]
    shadow: Shadow | None
    predicted: np.ndarray


@dataclass(frozen=True, eq=False)
class _Row:
    """A row of readings [S], which of them were used, and the moment before it."""

    time: float
    values: np.ndarray
    used: np.ndarray
    before: _Moment


@checked
class Follower:
    """Follows a part from readings as they come: `update`, then `estimate`, `forecast` and `smooth` at any time.

    While an alarm lasts, unknown drives are taken for as strong as the readings ask for: bands widen, and the field is found again.

    - `problem`: which part; linear, or not (extended filter)
    - `sensors`: `Point`, `Patch`, `Flux` of dgnet.inverse, or coordinates [S, d]
    - `unknown`: what is not known and how strong it may be: a `Prior` for each of start, field (a source anywhere that changes),
      source (strengths of `spots`), flux:BOUNDARY, ambient
    - `noise`: standard deviation of a reading
    - `start`: the start [N, F] where it is known, and the mean of an unknown one; zero unless given
    - `source`: what is known of the sources, f(x, t)
    - `spots`: places or paths of sources whose strength is unknown
    - `model`: whose step; the classical solver unless given
    - `t0`: the time of the start
    - `rank`: columns of the covariance's root; exact where the state has at most as many entries. By default exact up to 800
      entries, 150 beyond
    - `chance`: of a false alarm in a row of readings
    - `finer`: take off what mesh and step get wrong, and put what that leaves into the bands, as for `recover`

        >>> import dgnet as dg, torch
        >>> from dgnet.following import Follower, Prior
        >>> problem = dg.Problem(dg.box((6, 6)), dg.PDE(diffusion=0.05), [dg.Robin("boundary", 0.5, 20.0)], dt=0.1)
        >>> part = Follower(problem, [[0.2, 0.3], [0.7, 0.6]], {"start": Prior(5.0, 0.5)}, noise=0.1,
        ...                 start=torch.full((49, 1), 20.0))
        >>> for k in range(20):
        ...     _ = part.update(0.1 * k, [22.0, 21.5])
        >>> part.estimate().mean.shape, part.forecast(steps=5).mean.shape
        ((49, 1), (6, 2))
    """

    def __init__(self, problem: Problem, sensors: Sensors, unknown: Mapping[str, Prior], *,
                 noise: Positive, start: Tensor | None = None, source: Source | None = None, spots: SpotTable | None = None,
                 model: Model[Any] | None = None, t0: Finite = 0.0, rank: Count | None = None, chance: Share = 1e-6,
                 finer: bool = True) -> None:
        self.problem, self.model = in_double(problem, model)
        self.sensors, self.notes = placed(sensors, self.problem)
        self.names = called(self.sensors)
        self.noise, self.t0, self.priors = noise, t0, dict(unknown)
        self.watch = Watch(self.names, chance)
        self.step, self.time, self.count, self.chi_square = 0, -np.inf, 0, 0.0
        self._rows: deque[_Row] = deque(maxlen=ROWS)
        self.scale = self._last_scale = 1.0  # variance of the drives over that of their priors: while alarms last it grows
        begin = first_state(problem, start)
        with torch.no_grad(), few_threads(problem.mesh.n_nodes):
            self.dynamics = Dynamics(self.problem, self.sensors, self.priors, start=begin, source=source, spots=spots,
                                     model=self.model, t0=t0, finer=finer)
            self.filter, self.shadow = self.dynamics.begun(rank), self.dynamics.shadow
            self._predicted = self._ends()
            self._shadows: deque[Shadow | None] = deque()  # at the ends of the steps that the filter remembers

    # ------------------------------------------------------------------ readings

    @property
    def exact(self) -> bool:
        """Whether the covariance is complete; otherwise `filter.lost` says which share of it a step left out, at most."""
        return self.filter.rank >= len(self.filter.mean)

    def update(self, time: float, readings: Sequence[float] | np.ndarray) -> Update:
        """Take in one row of readings [S], not a number where there is none."""
        time, values = number(time, "time"), array(readings, "readings").astype(np.float64)
        if values.shape != (len(self.sensors),):
            raise InputError(f"a row has {len(self.sensors)} readings, got {list(values.shape)}")
        wrong = self._wrong(time)
        if wrong:
            nothing = np.full(len(values), np.nan)
            return Update(time, nothing, nothing, np.zeros(len(values), bool), 0.0, 0, (Event(time, "time", (), wrong),))
        events = self.watch.interval(time, self.time) if np.isfinite(self.time) else []
        there, found = self.watch.present(time, values)
        events += found
        before = self._moment()
        with torch.no_grad(), few_threads(self.problem.mesh.n_nodes):
            expected, seen = self._expected(self._reach(time))
            index = np.flatnonzero(there)
            whole = Innovation.of(values[index] - expected[index], seen[index], self.noise)
            used, found = self.watch.judge(time, index, whole.gap, whole.covariance())
            events += found
            if self.watch.newly_blamed:
                self._again(self.watch.newly_blamed)
                before = self._moment()
            row = _Row(time, values, np.isin(np.arange(len(values)), index[used]), before)
            sd = np.sqrt((seen**2).sum(1) + self.noise**2)
            events += self.watch.hang(time, expected, np.where(row.used, values, np.nan) - expected, sd)
            taken = self._take(row)
        return Update(time, expected, sd, row.used, 0.0 if taken is None else taken.chi_square, int(used.sum()), tuple(events))

    def _moment(self) -> _Moment:
        f = self.filter
        return _Moment(self.step, self.count, self.chi_square, self.scale, self._last_scale, f.mean, f.root, list(f.read),
                       self.dynamics.memory(), None if self.shadow is None else self.shadow.copy(), self._predicted)

    def _go_back(self, moment: _Moment) -> None:
        """All that readings change as it was at a moment."""
        self.step, self.count, self.chi_square = moment.step, moment.count, moment.chi_square
        self.scale, self._last_scale, self._predicted = moment.scale, moment.last_scale, moment.predicted
        self.filter.mean, self.filter.root, self.filter.read = moment.mean, moment.root, list(moment.read)
        self.shadow = None if moment.shadow is None else moment.shadow.copy()
        self.dynamics.remember(moment.memory)

    def _take(self, row: _Row) -> Innovation | None:
        """Use the readings of a row and keep it; what they were compared with, or None where none is used."""
        self._rows.append(row)
        expected, seen = self._expected(self._reach(row.time))
        self.time = row.time
        if not row.used.any():
            return None
        taken = Innovation.of(row.values[row.used] - expected[row.used], seen[row.used], self.noise)
        before = self.filter.mean
        self.filter.update(taken)
        self._follow_on(self.filter.mean - before)
        self.count, self.chi_square = self.count + len(taken.gap), self.chi_square + taken.chi_square
        excess = taken.chi_square / len(taken.gap)
        if self.watch.alarm and excess > _EXCESS:
            self.scale = min(_STRONGEST, self.scale * excess)
        return taken

    def _again(self, sensors: Sequence[int]) -> None:
        """The last rows once more, without sensors that turned out to be at fault: what they read had been believed until then."""
        rows = list(self._rows)
        if not rows:
            return
        for _ in range(min(self.step - rows[0].before.step, len(self.filter.past))):
            self.filter.past.pop()
            self._shadows.pop()
        self._go_back(rows[0].before)
        self._rows.clear()
        for row in rows:
            used = row.used & ~np.isin(np.arange(len(row.used)), sensors)
            self._take(_Row(row.time, row.values, used, self._moment()))

    def _wrong(self, time: float) -> str:
        """What makes a row useless, empty where nothing does."""
        if not np.isfinite(time):
            return "a row has no time: left out"
        if time <= self.time:
            return f"t = {time:g} comes after t = {self.time:g}: the row is left out"
        if time < self.t0 - 1e-9 * self.problem.dt:
            return f"t = {time:g} lies before the start at {self.t0:g}: the row is left out"
        ahead = (time - max(self.time, self.t0)) / self.problem.dt
        if ahead > _JUMP:
            return f"t = {time:g} is {ahead:.3g} steps ahead: the row is left out (are times in another unit?)"
        return ""

    def _reach(self, time: float) -> float:
        """Step until `time` is reached; its share of the last step."""
        place = max(0.0, (time - self.t0) / self.problem.dt)
        target = int(np.ceil(place - 1e-9))
        while self.step < target:
            self._shadows.append(None if self.shadow is None else self.shadow.copy())
            self.dynamics.advanced(self.step, self.filter, self.shadow, self.dynamics.noise(self.scale, self._last_scale))
            self._last_scale, self._predicted = self.scale, self._ends()
            while len(self._shadows) > len(self.filter.past):
                self._shadows.popleft()
            self.step += 1
        return min(1.0, place - (self.step - 1)) if self.step else 1.0

    def _ends(self) -> np.ndarray:
        """What the mean says of the readings at both ends of the last step [2, S], by the given mesh."""
        mean = self.filter.mean[:, None]
        return np.stack([mean[self.dynamics.before, 0], self.dynamics.readings(mean)[:, 0]])

    def _expected(self, share: float) -> tuple[np.ndarray, np.ndarray]:
        """H m [S] and H S [S, r] of readings at a share of the last step."""
        both = np.concatenate([self.filter.mean[:, None], self.filter.root], axis=1)
        found = share * self.dynamics.readings(both) + (1 - share) * both[self.dynamics.before]
        if self.shadow is not None:
            found += self.shadow.table(share) @ both[self.dynamics.factors]
            if self.shadow.finer.same:
                found[:, 0] += self.shadow.readings(share)[0] - (share * self._predicted[1] + (1 - share) * self._predicted[0])
        return found[:, 0], found[:, 1:]

    def _follow_on(self, change: np.ndarray) -> None:
        """The shadow moves as readings move the mean."""
        if self.shadow is not None:
            late = np.zeros(len(self.sensors))
            late[self.dynamics.late] = change[self.dynamics.now]
            self.shadow.move(self.dynamics.nodes(change[:, None])[0], late)

    # ------------------------------------------------------------------ files

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the state belongs to, by content: problem, mesh, model, sensors, known sources; not the start, which it replaces."""
        problem, spots, source = self.problem, self.dynamics.unknowns.spots, self.dynamics.source
        case = Case(name="", title="", equation="", build_mesh=lambda: problem.mesh, pde=problem.pde, dt=problem.dt, steps=1,
                    conditions=tuple(problem.conditions))
        weights = self.model.state_dict().values() if isinstance(self.model, torch.nn.Module) else ()
        sensors = {f"sensor {name}": repr(sensor.changed(name="")) for name, sensor in zip(self.names, self.sensors)}
        drawn = {"spots": _drawn(spots, problem, self.t0), "source": _drawn(source, problem, self.t0)}
        return fingerprint(case) | sensors | {"model": f"{self.model.name} {summed(*weights)}"} | drawn

    @checked
    def save(self, path: Path | str) -> None:
        """Write what is needed to go on later to an .npz file: numbers and one text of JSON, no code.

        Of the past it holds the last rows and the estimate before them: a sensor that is blamed later is left out of these again.
        """
        rows = list(self._rows)
        first, scales = rows[0].before if rows else self._moment(), [*(row.before.scale for row in rows), self.scale]
        about = {"version": 4, "part": self.identity, "sensors": self.names, "noise": self.noise, "t0": self.t0,
                 "step": first.step, "time": self.time, "count": first.count, "chi_square": first.chi_square,
                 "before": first.last_scale, "rank": self.filter.rank, "lost": self.filter.lost, "watch": self.watch.state(),
                 "unknown": {name: asdict(prior) for name, prior in self.priors.items()}, "finer": self.shadow is not None}
        arrays = {"about": np.array(json.dumps(about)), "mean": first.mean, "root": first.root, "predicted": first.predicted,
                  "times": np.array([row.time for row in rows]), "scales": np.array(scales),
                  "values": np.array([row.values for row in rows]).reshape(-1, len(self.sensors)),
                  "used": np.array([row.used for row in rows], bool).reshape(-1, len(self.sensors))}
        arrays |= {f"memory/{name}": value.numpy() for name, value in first.memory.items()}
        arrays |= {} if first.shadow is None else {f"shadow/{name}": value for name, value in first.shadow.state().items()}
        write_arrays(Path(path), arrays)

    @classmethod
    @checked
    def load(cls, path: Path | str, problem: Problem, sensors: Sensors, *, start: Tensor | None = None,
             source: Source | None = None, spots: SpotTable | None = None, model: Model[Any] | None = None) -> Follower:
        """Go on from what `save` wrote, with the same problem, sensors and model. Strengths, noise and times come from the file."""
        arrays = read_arrays(Path(path), "the state of a part that is followed")
        try:
            about, mean, root, predicted = json.loads(str(arrays["about"])), arrays["mean"], arrays["root"], arrays["predicted"]
            times, values, uses, scales = (arrays[name] for name in ("times", "values", "used", "scales"))
            priors = {name: Prior(**prior) for name, prior in about["unknown"].items()}
            noise, t0, rank, finer = (about[name] for name in ("noise", "t0", "rank", "finer"))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} does not hold the state of a part that is followed, or one of an older version: begin anew"
                             ) from error
        part = cls(problem, sensors, priors, noise=noise, start=start, source=source, spots=spots, model=model, t0=t0, rank=rank,
                   finer=finer)
        found = differences(about["part"], part.identity)
        if found:
            raise InputError(f"{path} belongs to another part: {'; '.join(found)}")
        memory, shadow = ({name.removeprefix(kind): x for name, x in arrays.items() if name.startswith(kind)}
                          for kind in ("memory/", "shadow/"))
        whole = bool(shadow) == (part.shadow is not None)
        if not whole or mean.shape != part.filter.mean.shape or root.ndim != 2 or len(root) != len(mean):
            raise InputError(f"{path} does not hold the state of a part that is followed")
        if part.shadow is not None:
            part.shadow.restore(shadow)
        part._go_back(_Moment(about["step"], about["count"], about["chi_square"], float(scales[0]), about["before"], mean, root, [],
                              {name: torch.from_numpy(x) for name, x in memory.items()}, part.shadow, predicted))
        part.watch, part.filter.lost = Watch.restored(part.names, about["watch"]), about["lost"]
        with torch.no_grad(), few_threads(problem.mesh.n_nodes):
            for time, row, used, scale in zip(times.tolist(), values, uses, scales[1:].tolist()):
                part._take(_Row(time, row, used, part._moment()))
                part.scale = scale
        part.time = about["time"]
        return part

    # ------------------------------------------------------------------ answers

    def estimate(self) -> Field:
        """The whole field at the end of the current step, from all readings so far."""
        return self._field(self.step, self.filter.mean, self.filter.root, self.shadow)

    @checked
    def at(self, sensors: Sensors) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [S] of what these sensors would read now, without noise and lag."""
        mean, sd, *_ = self._row(self.filter.mean, self.filter.root, self.shadow, named(sensors))
        return mean, sd

    def driving(self) -> Field | None:
        """The unknown source field, where `field` is unknown: over the step that begins now."""
        unknowns = self.dynamics.unknowns
        if "field" not in unknowns.drives:
            return None
        part, shapes = self.dynamics.part("field"), unknowns.sources.numpy()
        mean = np.einsum("j,jnf->nf", self.filter.mean[part], shapes)
        sd = np.sqrt((np.einsum("jr,jnf->rnf", self.filter.root[part], shapes, optimize=True) ** 2).sum(0))
        return Field(self.t0 + self.step * self.problem.dt, mean, sd)

    @checked
    def forecast(self, steps: Count, sensors: Sensors | None = None) -> Course:
        """From now on, if drives fade as their priors say: readings [steps+1, S] and the field at the end."""
        if steps > _JUMP:
            raise InputError(f"a forecast has 1 to {_JUMP:,} steps, got {steps:,}")
        there, memory = self.sensors if sensors is None else named(sensors), self.dynamics.memory()
        ahead = Filter(self.filter.mean, self.filter.root, self.filter.rank, self.filter.weights.copy())
        shadow = None if self.shadow is None else self.shadow.copy()
        found = [self._row(ahead.mean, ahead.root, shadow, there)]
        with torch.no_grad(), few_threads(self.problem.mesh.n_nodes):
            for k in range(self.step, self.step + steps):
                before = self._last_scale if k == self.step else self.scale
                self.dynamics.advanced(k, ahead, shadow, self.dynamics.noise(self.scale, before))
                ahead.past.clear()
                found.append(self._row(ahead.mean, ahead.root, shadow, there))
        self.dynamics.remember(memory)
        return self._course(range(self.step, self.step + steps + 1), found,
                            (self._field(self.step + steps, ahead.mean, ahead.root, shadow),))

    @checked
    def smooth(self, sensors: Sensors | None = None, fields: bool = False) -> Course:
        """The past in the light of all readings, as far back as memory reaches (1 GB); with `fields` the whole field, too."""
        there, found, whole = self.sensors if sensors is None else named(sensors), [], []
        with torch.no_grad(), few_threads(self.problem.mesh.n_nodes):
            shadows = [*self._shadows, self.shadow][::-1]
            for back, (shadow, (mean, root, C)) in enumerate(zip(shadows, self.filter.smoothed())):
                found.append(self._row(mean, root, shadow, there, C))
                if fields:
                    whole.append(self._field(self.step - back, mean, root, shadow, C))
        return self._course(range(self.step - len(found) + 1, self.step + 1), found[::-1], tuple(whole[::-1]))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the drives in a `Course`; those of a field are its modes."""
        unknowns, found = self.dynamics.unknowns, list[str]()
        for name in unknowns.drives:
            count = unknowns.count(name)
            if name == "source" and unknowns.spots is not None:
                found += [spot or f"spot {k}" for k, spot in enumerate(unknowns.spots.names, start=1)]
            else:
                found += [name] if count == 1 else [f"{name} {k + 1}" for k in range(count)]
        return tuple(found)

    @property
    def consistency(self) -> tuple[float, float, float]:
        """Chi-square over the number of readings used, and the interval that holds it with 95% where the model is right."""
        count = max(1, self.count)
        return self.chi_square / count, float(chi2.ppf(0.025, count)) / count, float(chi2.ppf(0.975, count)) / count

    def _row(self, mean: np.ndarray, root: np.ndarray, shadow: Shadow | None, sensors: Sequence[Sensor],
             C: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
        """Mean and standard deviation of sensors and drives. What finer meshes say of a reading belongs to the filter's mean."""
        drives, both, own = self.dynamics.drives, np.concatenate([mean[:, None], root], axis=1), np.zeros(len(sensors))
        weights = self.dynamics.reading(sensors)
        seen = self.dynamics.seen(both, weights)
        if shadow is not None:
            reached, third = shadow.at(sensors)
            if shadow.finer.same:
                seen[:, 0] += reached - self.dynamics.seen(shadow.field()[0].flatten()[:, None].numpy(), weights)[:, 0]
            seen = seen + shadow.finer.gain[1] * np.outer(third, both[self.dynamics.factors][0])
            own = shadow.finer.gain[0] * third
        return seen[:, 0], np.sqrt(_variance(seen[:, 1:], C) + own**2), mean[drives], np.sqrt(_variance(root[drives], C))

    def _course(self, steps: range, found: list[tuple[np.ndarray, ...]], fields: tuple[Field, ...]) -> Course:
        mean, sd, drives, drives_sd = (np.stack(x) for x in zip(*found))
        return Course(self.t0 + self.problem.dt * np.array(steps), mean, sd, drives, drives_sd, fields)

    def _field(self, step: int, mean: np.ndarray, root: np.ndarray, shadow: Shadow | None, C: np.ndarray | None = None) -> Field:
        both = np.concatenate([mean[:, None], root], axis=1)
        found, own = self.dynamics.nodes(both), torch.zeros(())  # [1 + r, N, F]
        if shadow is not None:
            gain, third = shadow.finer.gain, shadow.field()[1][:self.problem.mesh.n_nodes]
            found = found + gain[1] * torch.from_numpy(both[self.dynamics.factors][0])[:, None, None] * third
            own = (gain[0] * third) ** 2
        variance = _variance(found[1:].flatten(1).numpy().T, C).reshape(found.shape[1:]) + own.numpy()
        return Field(self.t0 + step * self.problem.dt, found[0].numpy(), np.sqrt(variance))


def _variance(directions: np.ndarray, C: np.ndarray | None) -> np.ndarray:
    """Of numbers that depend on z ~ N(0, C) by directions [., r]; C is 1 unless given."""
    return ((directions if C is None else directions @ C) * directions).sum(1).clip(min=0.0)


def _drawn(source: Source | None, problem: Problem, t0: float) -> str:
    """A source by content: a table by its rows, a function by what it gives at the first steps."""
    if source is None:
        return "none"
    if isinstance(source, SpotTable):
        return f"table{' that lasts' * source.lasting}, {summed(*source.times, *source.values)}"
    times = t0 + problem.dt * torch.tensor((0.0, 1.0, 3.0, 10.0), dtype=torch.float64)
    return f"function, {summed(source(torch.tensor(problem.mesh.points), times))}"


@checked
def follow(problem: Problem, readings: Readings, unknown: Sequence[str] | Mapping[str, Prior] = ("start", "field"), *,
           noise: Positive | None = None, start: Tensor | None = None, source: Source | None = None,
           spots: SpotTable | None = None, model: Model[Any] | None = None, rank: Count | None = None,
           learn: Count = LEARN, finer: bool = True) -> Follower:
    """Follow a part through given readings; the `Follower` then takes further ones.

    - `problem`: which part
    - `readings`: of sensors, with their times; the first one is the start
    - `unknown`: what is not known (start, field, source, flux:BOUNDARY, ambient): names, whose strengths follow from the likelihood
      of the first readings, or a `Prior` for each
    - `noise`: standard deviation of a reading; from the likelihood of the first readings unless given
    - `start`, `source`, `spots`, `model`, `rank`, `finer`: as of a `Follower`
    - `learn`: how many of the first rows decide strengths and noise

        >>> import dgnet as dg, numpy as np, torch
        >>> from dgnet.inverse import Point, Readings
        >>> problem = dg.Problem(dg.box((6, 6)), dg.PDE(diffusion=0.05), [dg.Robin("boundary", 0.5, 0.0)], dt=0.1)
        >>> rng, times = np.random.default_rng(0), 0.1 * np.arange(40)
        >>> values = np.exp(-times)[:, None] + 0.01 * rng.standard_normal((40, 2))
        >>> seen = Readings(times, values, (Point((0.2, 0.3), "a"), Point((0.7, 0.6), "b")))
        >>> part = dg.follow(problem, seen, ["start"], start=torch.ones(49, 1))
        >>> bool(part.estimate().sd.max() < 0.2)
        True
    """
    if not unknown:
        raise InputError("name at least one unknown: start, field, source, flux:BOUNDARY or ambient")
    double, solver = in_double(problem, model)
    sensors, _ = placed(readings.sensors, double)
    columns = [k for k, s in enumerate(readings.sensors) if s in sensors]
    t0 = float(readings.times[0])
    if isinstance(unknown, Mapping) and noise is not None:
        priors, level = dict(unknown), noise
    else:
        first = Readings(readings.times[:learn] - t0, readings.values[:learn, columns], tuple(sensors))
        priors, level = learned(double, first, list(unknown), noise=noise, start=start, source=source, spots=spots, model=solver,
                                t0=t0, finer=finer)
        priors |= dict(unknown) if isinstance(unknown, Mapping) else {}
    part = Follower(double, sensors, priors, noise=level, start=start, source=source, spots=spots, model=solver, t0=t0, rank=rank,
                    finer=finer)
    for time, values in zip(readings.times, readings.values[:, columns]):
        part.update(float(time), values)
    return part


def placed(sensors: Sensors, problem: Problem) -> tuple[list[Sensor], tuple[str, ...]]:
    """The sensors that lie in the part, and a note about each of the others."""
    kept, notes = [], []
    for sensor in named(sensors):
        try:
            rows([sensor], problem)
            kept.append(sensor)
        except InputError as error:
            notes.append(f"{error}: left out")
    if not kept:
        raise InputError("no sensor can be used: " + (notes[0] if notes else "there is none"))
    return kept, tuple(notes)
