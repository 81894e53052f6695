"""What is unknown about a part, from the readings of its sensors, with bands and with what the sensors cannot see.

Linear unknowns (`unknowns`), several at once: their responses come from sensor kernels, the answer is a Gaussian posterior
(`posterior`). Factors on coefficients (`coefficients`) and time constants of sensors are found with them by Gauss-Newton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError, SolveError
from dgnet.files import did_you_mean
from dgnet.inverse.finer import Gap
from dgnet.inverse.kernels import kernels
from dgnet.inverse.posterior import Answer, Posterior, Unknown, infer
from dgnet.inverse.priors import NUMBER, numbers
from dgnet.inverse.readings import APART, Readings, cleaned, coloured
from dgnet.inverse.rollouts import Known, Measured, Rollout, no_second, read
from dgnet.inverse.sensor import Averages, called, delayed
from dgnet.inverse.unknowns import KINDS, LAG, Strengths, linear_kind
from dgnet.models import Classical, Model, few_threads
from dgnet.problems import Problem, Source, SpotTable
from dgnet.progress import Report

Tensor = torch.Tensor

FACTORS = "factors"
SECOND = 2
"""Searches with what a second solution of the answer before them says of mesh and step; more where factors still move."""
_MOST, _NEAR = 6, 0.1  # of such searches, and the change of factors after which one more is the last
_STEPS, _SETTLED = 20, 1e-3  # of Gauss-Newton, and the change after which it ends: of a logarithm, of a lag in steps
_DIFFERENCE = 1e-2  # of both, for derivatives
_WIDE = 1.0  # standard deviation of a factor's logarithm before any reading
_LATE = 0.1  # standard deviation of a lag before any reading, of the whole time
_SURE = 4.0  # standard deviations above zero from which a lag is named
_COARSE = 10.0  # times the noise, above which mesh and step are named for residuals that are none
_DIMLY = 0.5  # share of the prior variance below which a number counts as unseen


@dataclass(frozen=True, eq=False)
class Recovered:
    """Answers by name: histories [H, spots] or [H, 1] (averages over the steps), fields [N, F], numbers [1] (ambient) or [S] (lag).

    - `noise`: standard deviation of the readings, as given or found; `misfit`: root mean square of what the answers leave
    - `determined`: how many numbers the readings determine, of `unknowns`
    - `notes`: what was wrong with the readings, what the sensors do not see
    """

    answers: dict[str, Answer]
    shapes: dict[str, tuple[int, ...]]
    columns: dict[str, tuple[str, ...]]
    times: np.ndarray  # [H + 1], ends of the steps
    noise: float
    misfit: float
    determined: float
    readings: Readings
    fitted: np.ndarray  # [T, S]
    notes: tuple[str, ...]

    @property
    def unknowns(self) -> int:
        return sum(a.mean.size for a in self.answers.values())

    @checked
    def get(self, name: str, what: Literal["mean", "sd", "prior_sd", "seen"] = "mean") -> np.ndarray:
        """`mean`, `sd`, `prior_sd` or `seen` of an answer, in its shape; histories as [H, columns]."""
        if name not in self.answers:
            raise InputError(f"'{name}' was not asked for" + did_you_mean(name, self.answers, "known"))
        value: np.ndarray = getattr(self.answers[name], what).reshape(self.shapes[name])
        return value.T if self.history(name) else value

    @checked
    def history(self, name: str) -> bool:
        """Whether an answer is a history (strengths, a flux), not a field or a number."""
        return name == "source" or name.startswith("flux:")


@checked
def recover(problem: Problem, readings: Readings, unknown: Sequence[str], *, spots: SpotTable | None = None,
            start: Tensor | None = None, source: Source | Averages | None = None, noise: Positive | None = None,
            model: Model[Any] | None = None, finer: bool = True, report: Report | None = None) -> Recovered:
    """What is unknown about a part, from readings of sensors, with uncertainty.

    - `problem`: a linear one
    - `readings`: of sensors, as `read_readings` reads them from CSV; they are checked and cleaned first
    - `unknown`: which of source (the strength of each spot over time), field (a steady source anywhere), start, flux:BOUNDARY (into
      the part, the same along the boundary, over time), ambient (what is to be added to the ambient values of all Robin
      conditions), lag (the time constants of sensors that have none)
    - `spots`: places or paths and radii of the sources whose strength is unknown; their powers are not used
    - `start`: what is known of the start [N, F]; zero unless given. An unknown start is found as a deviation from it
    - `source`: what is known of the sources: f(x, t), a `SpotTable`, or averages over the steps [H, P or N, F]
    - `noise`: standard deviation of the readings; found by the evidence unless given
    - `model`: whose step; the classical solver unless given
    - `finer`: take off what mesh and step get wrong, as solutions on finer meshes with smaller steps tell, and put what that leaves
      into the bands. Without it they hold noise alone: for readings of a simulation on this very mesh with this step
    - `report`: called with what is done, how much of it is done and how much there is

        >>> import dgnet as dg, numpy as np, torch
        >>> from dgnet.inverse import Point, Readings
        >>> problem = dg.Problem(dg.box((6, 6)), dg.PDE(diffusion=0.1), [dg.Robin("boundary", 1.0, 0.0)], dt=0.1)
        >>> lamp = dg.SpotTable(("lamp",), (np.array([0.0, 9.0]),), (np.array([[0.4, 0.5, 0.2, 1.0]] * 2),))
        >>> sensors = tuple(Point(place, f"s{k}") for k, place in enumerate([(0.3, 0.5), (0.7, 0.6)]))
        >>> states = dg.rollout(dg.Classical(), problem, torch.zeros(1, 49, 1, dtype=torch.float64),
        ...                     3.0 * lamp.average(torch.tensor(problem.mesh.points), 0, 30, 0.1))
        >>> seen = problem.mesh.interpolate(states[0], [s.place for s in sensors])[..., 0]
        >>> noisy = seen + 1e-3 * np.random.default_rng(0).standard_normal(seen.shape)
        >>> found = dg.recover(problem, Readings(0.1 * np.arange(31), noisy, sensors), ["source"], spots=lamp, finer=False)
        >>> bool(abs(found.get("source")[5:25].mean() - 3.0) < 0.1)
        True
    """
    known = Known.of(problem, start, source, spots)
    question = Question(problem, readings, unknown, known, noise=noise, model=model, finer=finer, report=report)
    with few_threads(problem.mesh.n_nodes), torch.no_grad():
        return question.recovered(question.settled())


# ---------------------------------------------------------------------- questions


class Changes(Protocol):
    """Coefficients of a problem that numbers change (`factors`)."""

    labels: tuple[str, ...]

    def applied(self, problem: Problem, factors: Sequence[float]) -> Problem: ...


@dataclass(frozen=True, eq=False)
class Fit:
    """An answer from some of the sensors.

    - `phi` [p]: where readings are linearised; `first`: where they were before the second solution
    - `found`: of all unknowns
    - `left` [T, S]: of the readings of the sensors `index`
    - `y` [m], `blocks`: readings and unknowns as they were linearised there; `gap`: what was taken off for mesh and step
    """

    phi: np.ndarray
    first: np.ndarray
    found: Posterior
    left: np.ndarray
    index: list[int]
    y: np.ndarray
    blocks: tuple[Unknown, ...]
    gap: Gap | None
    notes: tuple[str, ...] = ()


class Question(Measured):
    """Readings y, and what is asked: linear unknowns x, and numbers phi that readings do not depend on linearly: logarithms of
    factors on coefficients, and the time constants of sensors in steps.

        y = base(phi) + R(phi) x + what mesh and step get wrong + noise

    Gauss-Newton on phi, with the posterior of all unknowns in every step. What mesh and step get wrong is found for what is known,
    then for the answer of a first search (`finer`), then for that of a second one; the third is final where factors have settled.
    """

    def __init__(self, problem: Problem, readings: Readings, unknown: Sequence[str], known: Known, *, noise: float | None,
                 model: Model[Any] | None = None, factors: Changes | None = None, finer: bool = True,
                 report: Report | None = None) -> None:
        if not unknown and factors is None:
            raise InputError(f"name at least one unknown (known: {', '.join(KINDS)})")
        if any(name.startswith("flux:") for name in unknown):  # a history jumps in every step
            model = Classical(start=0) if model is None else replace(model, start=0) if isinstance(model, Classical) else model
        super().__init__(problem, cleaned(readings, problem, known.level), known, model, finer)
        self.noise, self.factors, self.report = noise, factors, report
        self.kinds = [linear_kind(name, problem, self.steps, known.spots) for name in unknown if name != LAG]
        self.count = 0 if factors is None else len(factors.labels)
        self.slow = [k for k, s in enumerate(self.readings.sensors) if LAG in unknown and not s.lag]  # their lags are asked for
        if LAG in unknown and not self.slow:
            raise InputError("the lags of all sensors are given: there is none to find")
        self._made: dict[bytes, tuple[Tensor, dict[str, Tensor]]] = {}

    # ------------------------------------------------------------------ what numbers lead to

    def applied(self, problem: Problem, phi: np.ndarray) -> Problem:
        """The problem, on this mesh or another one, with its factors."""
        return problem if self.factors is None else self.factors.applied(problem, np.exp(phi[:self.count]).tolist())

    def lags(self, phi: np.ndarray) -> np.ndarray:
        """Those that are asked for [S]; zero elsewhere."""
        out = np.zeros(len(self.readings.sensors))
        out[self.slow] = phi[self.count:] * self.problem.dt
        return out

    def made(self, phi: np.ndarray) -> tuple[Tensor, dict[str, Tensor]]:
        """Readings [S, H+1] where linear unknowns are zero, and responses [S, H+1, n] to these; without lags that are asked for."""
        key = phi[:self.count].tobytes()
        if key not in self._made:
            p, sensors, start = self.applied(self.problem, phi), self.readings.sensors, self.known.start
            if len(self._made) > 2 * self.count:
                self._made.clear()
            if self.kinds:
                if self.report is not None:
                    self.report("sensors", 0, 1)
                found = kernels(p, sensors, self.steps, self.model)
                responses = {kind.name: kind.responses(p, found, sensors, self.model).double() for kind in self.kinds}
                self._made[key] = found.readings(self.source, start).double(), responses
            else:
                self._made[key] = read(p, self.model, sensors, start, self.source, self.steps), {}
        return self._made[key]

    def base_and_responses(self, phi: np.ndarray, index: list[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """base [T, S] and R [T, S, n] by name."""
        (base, responses), lags, dt = self.made(phi), self.lags(phi)[index], self.problem.dt
        tables = {name: np.einsum("tn,snj->tsj", self.at, delayed(R[index], lags, dt).numpy()) for name, R in responses.items()}
        return self.at @ delayed(base[index], lags, dt).numpy().T, tables

    def series(self, phi: np.ndarray, found: Mapping[str, np.ndarray]) -> Tensor:
        """base + R x at the ends of the steps [S, H+1], without lags that are asked for."""
        base, responses = self.made(phi)
        return base + sum(R @ torch.from_numpy(found[name]) for name, R in responses.items())

    def whole(self, phi: np.ndarray, found: Mapping[str, np.ndarray], index: list[int]) -> np.ndarray:
        """base + R x [T, S]."""
        return self.at @ delayed(self.series(phi, found)[index], self.lags(phi)[index], self.problem.dt).numpy().T

    def slopes(self, phi: np.ndarray, found: Mapping[str, np.ndarray], index: list[int]) -> np.ndarray:
        """Derivatives [T, S, p] of that by phi."""
        out = np.zeros((len(self.at), len(index), len(phi)))
        for k in range(len(phi)):
            ends = np.stack([phi, phi])
            ends[:, k] += (_DIFFERENCE, -_DIFFERENCE)
            ends[:, self.count:] = ends[:, self.count:].clip(min=0.0)
            up, down = (self.whole(end, found, index) for end in ends)
            out[..., k] = (up - down) / (ends[0, k] - ends[1, k])
        return out

    def gap(self, phi: np.ndarray, found: Mapping[str, np.ndarray], index: list[int]) -> Gap:
        """What mesh and step get wrong of the readings that an answer leads to."""
        assert self.finer is not None
        lags = self.lags(phi)
        sensors = [s.changed(lag=s.lag or lags[k]) for k, s in enumerate(self.readings.sensors) if k in index]

        def put(run: Rollout) -> None:
            for kind in self.kinds:
                kind.put(run, torch.from_numpy(found[kind.name].reshape(kind.shape)))

        return self.gap_of(self.whole(phi, found, index), put, self.finer.changed(lambda p: self.applied(p, phi)), sensors)

    # ------------------------------------------------------------------ answers

    def settled(self) -> Fit:
        """The answer; unless coefficients are asked for, without sensors whose residuals stand out."""
        index, notes = list(range(len(self.readings.sensors))), list[str]()
        while True:
            fit = self._settled(index)
            size = np.sqrt(np.nanmean(fit.left**2, axis=0))
            worst = int(size.argmax())
            alike = len(size) < 4 or size[worst] < APART * np.median(size) or size[worst] < 3 * (self.noise or 0.0)
            if alike or self.factors is not None:
                return replace(fit, notes=(*notes, *fit.notes))
            name = called(self.readings.sensors)[index.pop(worst)]
            notes.append(f"Sensor '{name}' disagrees with the others (residuals of {size[worst]:.3g}, the median is "
                         f"{np.median(size):.3g}): drifting, misplaced or slow, left out.")

    def _settled(self, index: list[int]) -> Fit:
        """The answer from these sensors: the first search knows what the mesh gets wrong of what is known, which may change so
        quickly that unknowns would take it up; each further one what it gets wrong of the answer before it."""
        phi, fit, why, moved = np.zeros(self.count + len(self.slow)), None, self.why, np.inf
        found: Mapping[str, np.ndarray] = {kind.name: np.zeros(int(np.prod(kind.shape))) for kind in self.kinds}
        for k in range(_MOST + 1):
            gap, last = None, self.finer is None or k == _MOST or (k >= SECOND and moved < _NEAR)
            if self.finer is not None:
                try:
                    gap = self.gap(phi, found, index)
                except SolveError as error:
                    why = str(error)
                    if fit is not None:
                        phi, last = fit.first, True
            before, fit = fit, self._searched(phi, index, gap if gap is not None and (k or gap.rest.any()) else None, fit, last)
            if before is not None:
                fit = replace(fit, first=before.first)
                step = np.abs(fit.phi - before.phi)[:self.count]  # in standard deviations: what the mesh gets wrong changes with it
                moved = float((step / fit.found.answer(FACTORS).sd).max()) if self.count else 0.0
            if last:
                break
            phi, found = fit.phi, fit.found.numbers
        assert fit is not None
        return replace(fit, notes=no_second(why))

    def _searched(self, phi: np.ndarray, index: list[int], gap: Gap | None = None, before: Fit | None = None,
                  last: bool = False) -> Fit:
        """Gauss-Newton on phi to its end. Priors are those of an answer before; the last step of the `last` search tries all."""
        values = self.readings.values[:, index] - (0.0 if gap is None else gap.bias)
        there = np.isfinite(values)
        others = [] if gap is None else [gap.unknown(self.readings.times, there)]
        noise = self.noise if last else None  # what the first solution misses is no noise
        found = None if before is None else before.found
        change = np.inf if len(phi) else 0.0
        for k in range(_STEPS + 1):
            end = change < _SETTLED or k == _STEPS
            base, tables = self.base_and_responses(phi, index)
            y = (values - base)[there]
            linear = self._linear(tables, y, there, found, every=last and end)
            J, bent = np.zeros((len(y), 0)), list[Unknown]()
            if len(phi):
                if found is None:
                    found = infer(y, [*linear, *others], noise, self.report) if linear else Posterior((), 0.0, 0.0, np.zeros(0))
                    linear = self._linear(tables, y, there, found, every=False)
                J = self.slopes(phi, found.numbers, index)[there]
                widths = ((FACTORS, J[:, :self.count], _WIDE), (LAG, J[:, self.count:], _LATE * self.steps))
                bent = [Unknown(name, part, (NUMBER,), numbers, strength=wide) for name, part, wide in widths if part.shape[1]]
            blocks, previous = (*bent, *linear, *others), found
            found = with_lags(y + J @ phi, blocks, noise, self.report)
            if end:
                break
            assert previous is not None
            limit = np.inf if gap is not None else self._misfit(phi, previous.numbers, values, index)
            moved = self._moved(phi, found, values, index, limit)
            change, phi = float(np.abs(moved - phi).max()), moved
        assert found is not None
        left = np.full(there.shape, np.nan)
        left[there] = y + J @ phi - found.fitted
        return Fit(phi, phi, found, left, index, y + J @ phi, blocks, gap)

    def _linear(self, tables: dict[str, np.ndarray], y: np.ndarray, there: np.ndarray, found: Posterior | None,
                every: bool) -> list[Unknown]:
        """The linear unknowns with every prior that is tried, or with those of an answer and without switches."""
        largest = float(np.abs(y).max())
        out = [kind.prior(tables[kind.name][there], self.problem, largest) for kind in self.kinds]
        return out if every else [u.like(found) for u in out]

    def _misfit(self, phi: np.ndarray, found: Mapping[str, np.ndarray], values: np.ndarray, index: list[int]) -> float:
        return float(np.nanmean((values - self.whole(phi, found, index)) ** 2))

    def _moved(self, phi: np.ndarray, found: Posterior, values: np.ndarray, index: list[int], limit: float) -> np.ndarray:
        """From phi towards where the linearised question leads, so far that the misfit stays within its limit."""
        target = np.concatenate([found.numbers[name] for name in (FACTORS, LAG) if name in found.numbers])
        longest = np.where(np.arange(len(phi)) < self.count, 1.0, phi.clip(min=1.0))
        delta = (target - phi) / max(1.0, float((np.abs(target - phi) / longest).max()))
        for _ in range(6):
            moved = phi + delta
            moved[self.count:] = moved[self.count:].clip(min=0.0)
            try:
                if self._misfit(moved, found.numbers, values, index) <= limit:
                    return moved
            except SolveError:
                pass
            delta = 0.5 * delta
        return phi

    def recovered(self, fit: Fit) -> Recovered:
        """The linear unknowns and lags of an answer, with notes on what to doubt."""
        dt, readings = self.problem.dt, self.readings
        if len(fit.index) < len(readings.sensors):
            readings = readings.keeping(fit.index)
        answers = {kind.name: fit.found.answer(kind.name) for kind in self.kinds}
        shapes, columns = {kind.name: kind.shape for kind in self.kinds}, {kind.name: kind.columns for kind in self.kinds}
        if self.slow:
            slow, names = fit.found.answer(LAG), called(self.readings.sensors)
            used = [k for k, sensor in enumerate(self.slow) if sensor in fit.index]
            answers[LAG] = Answer(LAG, dt * slow.mean[used].clip(min=0.0), dt * slow.sd[used], dt * slow.prior_sd[used], NUMBER)
            shapes[LAG], columns[LAG] = (len(used),), tuple(names[self.slow[k]] for k in used)
        notes, readings_there, count = list(readings.notes), len(fit.y), sum(a.mean.size for a in answers.values())
        if readings_there < count:
            notes.append(f"{readings_there} readings for {count} unknown numbers: the rest follows from the smoothness that the "
                         "prior assumes.")
        for answer in answers.values():
            dim = float((answer.seen < _DIMLY).mean())
            if dim > 0.01:
                notes.append(f"The sensors hardly see {dim:.0%} of '{answer.name}' (there its band is nearly that of the prior).")
        return Recovered(answers, shapes, columns, dt * np.arange(self.steps + 1), fit.found.noise,
                         float(np.sqrt(np.nanmean(fit.left**2))), fit.found.determined, readings, readings.values - fit.left,
                         (*notes, *fit.notes, *self._narrow(), *self.doubts(fit)))

    def _narrow(self) -> tuple[str, ...]:
        """Spots, unknown or known, that meshes do not resolve."""
        tables = [*(kind.spots for kind in self.kinds if isinstance(kind, Strengths)), self.known.source]
        radii = {f"Spot '{name}'" if name else "The spot": float(values[:, -2].min()) for table in tables
                 if isinstance(table, SpotTable) for name, values in zip(table.names, table.values)}
        return () if self.finer is None else self.finer.narrow(radii)

    def doubts(self, fit: Fit) -> list[str]:
        """Notes on sensors whose residuals are no noise, and on what that may be."""
        total, lags = self.series(fit.phi, fit.found.numbers)[fit.index], self.lags(fit.phi)[fit.index]
        names, asked = called(self.readings.sensors), [k in self.slow for k in fit.index]
        return doubts(fit.left, [names[k] for k in fit.index], fit.gap, fit.found.noise, lambda: np.where(asked, 0.0, late(
            fit.left, fit.y, [u.like(fit.found) for u in fit.blocks], self.noise, total, lags, self.at, self.problem.dt)))


def with_lags(y: np.ndarray, blocks: Sequence[Unknown], noise: float | None, report: Report | None = None) -> Posterior:
    """The posterior, with lags of zero where they would be negative: other lags and histories follow these.

    A history that is late and sensors that lag less are nearly alike, so that one sensor without a lag tells about all. Standard
    deviations of the lags themselves are those without that.
    """
    free = infer(y, blocks, noise, report)
    if LAG not in free.numbers or (free.numbers[LAG] >= 0).all():
        return free
    zero, found = np.zeros(len(free.numbers[LAG]), dtype=bool), free
    held = [replace(u.like(free), strength=max(float(np.sqrt(np.mean(free.answer(u.name).prior_sd ** 2))), 1e-300)) for u in blocks]

    def without(unknowns: Sequence[Unknown]) -> list[Unknown]:
        return [replace(u, response=np.where(zero, 0.0, u.response)) if u.name == LAG else u for u in unknowns]

    while (found.numbers[LAG] < 0).any():
        zero[(found.answer(LAG).mean / found.answer(LAG).sd).argmin()] = True
        found = infer(y, without(held), free.noise)
    found = infer(y, without(blocks), noise)
    lags = replace(found.answer(LAG), mean=found.numbers[LAG].clip(min=0.0), sd=free.answer(LAG).sd)
    return replace(found, answers=tuple(lags if a.name == LAG else a for a in found.answers))


def doubts(left: np.ndarray, names: Sequence[str], gap: Gap | None, noise: float, lags: Callable[[], np.ndarray]) -> list[str]:
    """Notes on residuals [T, S] that are no noise, and on what that may be: `lags` [S] are found only where there are some."""
    odd = coloured(left)
    if not odd:
        return []
    found = lags()
    if (found > 0).any():
        slow = ", ".join(f"'{name}' by about {lag:.2g}" for name, lag in zip(names, found) if lag > 0)
        why = f"sensors may read late ({slow}): give their time constants (lag), or ask for them"
    elif gap is None or np.abs(gap.bias[:, odd]).max() > _COARSE * noise:
        why = "mesh or step may be too coarse"
    else:
        why = "something that is not asked for may drive the part there, or a coefficient or a place is wrong"
    who = ", ".join(f"'{names[k]}'" for k in odd)
    return [f"What the answer leaves of {who} is no noise, one reading hangs together with the next: {why}. Bands are too narrow."]


def late(left: np.ndarray, y: np.ndarray, blocks: Sequence[Unknown], noise: float | None, total: Tensor, lags: np.ndarray,
         at: np.ndarray, dt: float) -> np.ndarray:
    """By how much more sensors seem to lag [S], 0 where that is not sure: as unknowns beside those of an answer.

    - `left` [T, S], `y` [m], `blocks`: residuals, and readings with unknowns as they were linearised
    - `total` [S, H+1]: what the answer says of w . u at the ends of the steps; `lags`: as they are
    """
    step = 0.1 * dt
    slope = at @ ((delayed(total, lags + step, dt) - delayed(total, lags, dt)) / step).numpy().T
    table = (slope[..., None] * np.eye(len(total)))[np.isfinite(left)]
    wide = _LATE * dt * (total.shape[1] - 1)
    answer = infer(y, [*blocks, Unknown(LAG, table, (NUMBER,), numbers, strength=wide)], noise).answers[-1]
    return np.where(answer.mean > _SURE * answer.sd, answer.mean, 0.0)
