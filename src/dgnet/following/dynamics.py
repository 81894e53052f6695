"""The step of a part with what drives it, as a filter sees it.

The state is x = (u, a, z, v, q): the field at the model's points, the drives (`drives`), factors of what mesh and step get wrong,
what sensors read at the end of the step before, so that a reading between two steps is linear in x, too, and what sensors that lag
read now. One step is

    u+ = A u + B (f + shapes a) + c,    a+ = rho a + noise,    z+ = rho_z z + noise,    v+ = W u or q,    q+ = e q + b W u + c W u+

with the step of the model itself. Where that is not linear, its derivative is taken at the estimate by central differences as wide
as the standard deviations (extended filter): bands are then as good as the step is linear within them.

The mean goes its own way: it is stepped on finer meshes with smaller steps, too (`Shadow`), and takes over what these say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.following.kalman import Filter
from dgnet.following.unknown_inputs import Prior, Unknowns
from dgnet.inverse import FLOOR, Finer, Sensor, curved_rows, delays, is_linear, loaded_by, rows, summed
from dgnet.models import Classical, Model, Stepper
from dgnet.problems import Problem, Source, SpotTable, step_average

Tensor = torch.Tensor

EXACT, RANK = 800, 150
"""Entries of the state up to which a filter is exact unless told otherwise, and the columns of its root beyond."""
_LASTING = 50.0  # steps after which an old drive counts no more, in comparisons
_SLOW = 20.0  # steps over which what mesh and step get wrong keeps its factors
_PANELS = 8  # parts of a step in which a known source is averaged


class Driven:
    """Steps of a model under a known source and drives, on the given mesh or a finer one.

    - `unknowns`: the drives, on the given mesh; `up` takes values at its nodes to the nodes of this one
    """

    def __init__(self, problem: Problem, model: Model[Any], unknowns: Unknowns, source: Source | None, t0: float, batch: int = 1,
                 up: Callable[[Tensor], Tensor] = lambda values: values) -> None:
        self.problem, self.model, self.unknowns, self.t0, self.up = problem, model, unknowns, t0, up
        self.source = model.taking(source, problem) if isinstance(source, SpotTable) else source
        self.stepper = model.prepare(problem, batch, 1000)
        self.loaded = {name: model.prepare(loaded_by(name)(problem, 1.0), 1, 1000) for name in unknowns.drives
                       if name not in ("field", "source")}

    def driven(self, k: int, u: Tensor, drives: Mapping[str, np.ndarray]) -> Tensor:
        """Step k of states [B, ...] under drives [J, B] by name; what a boundary's drive adds is that to the first state."""
        problem, t, loads, force = self.problem, self.t0 + k * self.problem.dt, torch.zeros(()), self.known(k)
        for name, values in drives.items():
            strength = torch.from_numpy(values)
            if name in self.loaded:
                on, off = (stepper.step(u[:1], None, t, k) for stepper in (self.loaded[name], self.stepper))
                loads = loads + strength[0].view(-1, *[1] * (u.dim() - 1)) * (on - off)
                continue
            field = name == "field"
            shapes = self.unknowns.sources if field else self.unknowns.spot_shapes(problem, self.model, t)
            added = torch.einsum("jb,jnf->bnf", strength, shapes)
            force = summed(force, self.up(added) if field else added, problem.mesh)
        return self.stepper.step(u, None if force is None else force.expand(len(u), -1, -1), t, k) + loads

    def known(self, k: int) -> Tensor | None:
        """The known source over step k: [1, P, F]."""
        if self.source is None:
            return None
        x, start, dt = torch.tensor(self.model.points(self.problem)), self.t0 + k * self.problem.dt, self.problem.dt
        if isinstance(self.source, SpotTable):
            return self.source.average(x, 0, 1, dt, start)[0]
        return step_average(self.source, x, torch.tensor([start], dtype=torch.float64), dt, panels=_PANELS)[0]

    def memory(self) -> dict[str, Tensor]:
        """What steps leave to the next beside the states (`Stepper.memory`)."""
        return {f"{name}/{key}": value for name, stepper in self._steppers.items() for key, value in stepper.memory().items()}

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Go on after the steps that left this."""
        for name, stepper in self._steppers.items():
            start = f"{name}/"
            stepper.remember({key.removeprefix(start): x for key, x in memory.items() if key.startswith(start)})

    @property
    def _steppers(self) -> dict[str, Stepper]:
        return {"": self.stepper, **self.loaded}


class Dynamics(Driven):
    """One step of x and what sensors read of it. Sizes: n for u, J for a, Z for z, S for v, L for q; d together."""

    def __init__(self, problem: Problem, sensors: Sequence[Sensor], priors: Mapping[str, Prior], *, start: Tensor,
                 source: Source | None, spots: SpotTable | None, model: Model[Any], t0: float, finer: bool) -> None:
        u, begin = Unknowns(problem, list(priors), spots, model), start.double()[None]
        self.linear = is_linear(problem, model)
        self.shadow = Shadow(Finer(problem, model), sensors, u, source, start, t0) if finer and Finer.exists(problem) else None
        if "start" in priors:
            sd = torch.from_numpy(np.sqrt(u.variances("start", priors["start"])))
            begin = torch.cat([begin, begin + sd[:, None, None] * u.smooth()])
        super().__init__(problem, model, u, source, t0, len(begin) + sum(u.count(name) for name in u.drives))
        self.weights = self.reading(sensors)
        self.J = sum(u.count(name) for name in u.drives)
        self.variance = np.concatenate([np.zeros(0), *(u.variances(name, priors[name]) for name in u.drives)])
        decay = [np.full(u.count(name), problem.dt / (priors[name].time or 20 * problem.dt)) for name in u.drives]
        self.rho = np.exp(-np.concatenate([np.zeros(0), *decay]))
        self.Z = 0 if self.shadow is None else 1 + len(sensors)
        lags = np.array([s.lag for s in sensors])
        self.late, self.delays = np.flatnonzero(lags), delays(lags[lags > 0], problem.dt)[..., None]
        states = self.stepper.begin(begin)
        self._size = states.shape[1:]
        self._first = states.flatten(1).numpy().T  # [n, 1 + starts]
        self.n = len(self._first)
        ends = np.cumsum([self.n, self.J, self.Z, len(sensors), len(self.late)])
        self.drives, self.factors, self.before, self.now = (slice(int(i), int(j)) for i, j in pairwise(ends))
        self.d = int(ends[-1])

    def reading(self, sensors: Sequence[Sensor]) -> Tensor:
        """Weights [S, N, F] of sensors: of a field that is curved in cells, where finer meshes tell how."""
        return (rows if self.shadow is None else curved_rows)(sensors, self.problem)

    def begun(self, rank: int | None) -> Filter:
        """The estimate before any reading."""
        n, first, sd = self.n, self._first, np.concatenate([np.sqrt(self.variance), np.ones(self.Z)])
        root = np.zeros((self.d, first.shape[1] - 1 + len(sd)))
        root[:n, :first.shape[1] - 1] = first[:, 1:] - first[:, :1]
        root[n:n + len(sd), first.shape[1] - 1:] = np.diag(sd)
        mean = np.concatenate([first[:, 0], np.zeros(self.d - n)])
        both = np.concatenate([mean[:, None], root], axis=1)
        both[self.now] = self.seen(both)[self.late]  # sensors that lag begin where the field begins
        mean, root = both[:, 0], both[:, 1:]
        kept = rank or (self.d if self.d <= EXACT else RANK)
        # in a comparison of variances all entries count as what they do to the field, on average over the part
        memory = self.memory()
        moved = self.stepped(0, mean, root[:, first.shape[1] - 1:])[1][:n, :self.J]
        self.remember(memory)
        size = np.where(self.variance > 0, np.sqrt(self.variance), 1.0)
        drives = np.sqrt((moved**2).mean(axis=0)) / size * np.minimum(1 / (1 - self.rho), _LASTING)
        weights = np.full(self.d, n**-0.5)
        weights[self.drives], weights[self.factors] = drives, 0.0
        return Filter(mean, root, kept, weights)

    def stepped(self, k: int, mean: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F m + c [d] and F S [d, r] after step k."""
        n, r = self.n, root.shape[1]
        columns = np.concatenate([mean[:, None], mean[:, None] + root, *([] if self.linear else [mean[:, None] - root])], axis=1)
        states = torch.from_numpy(np.ascontiguousarray(columns[:n].T)).unflatten(1, self._size)
        drives = {name: columns[self.part(name)] for name in self.unknowns.drives}
        new = self.driven(k, states, drives).flatten(1).numpy().T
        if not np.isfinite(new).all():
            raise InputError(f"the estimate is not finite any more at t = {self.t0 + k * self.problem.dt:g}: a step of "
                             f"{self.model.name} grows without bound")
        moved = new[:, 1:1 + r] - new[:, :1] if self.linear else 0.5 * (new[:, 1:1 + r] - new[:, 1 + r:])
        old = np.concatenate([mean[:, None], root], axis=1)
        fresh = np.concatenate([np.concatenate([new[:, :1], moved], axis=1), np.zeros((self.d - n, 1 + r))])
        fresh[self.drives], fresh[self.factors] = self.rho[:, None] * old[self.drives], self.fading * old[self.factors]
        fresh[self.before] = self.readings(old)
        e, b, c = self.delays
        fresh[self.now] = e * old[self.now] + b * self.seen(old)[self.late] + c * self.seen(fresh)[self.late]
        return fresh[:, 0], fresh[:, 1:]

    @property
    def fading(self) -> float:
        """What is left of the factors z after a step."""
        return float(np.exp(-1 / _SLOW))

    def noise(self, scale: float = 1.0, before: float = 1.0) -> np.ndarray:
        """G [d, J + Z]: the root of a step's noise. It takes drives from `before` to `scale` times the variance of the priors."""
        out = np.zeros((self.d, self.J + self.Z))
        fresh = np.full(self.Z, np.sqrt(1 - self.fading**2))
        sd = np.concatenate([np.sqrt(self.variance * (scale - before * self.rho**2)), fresh])
        out[self.n:self.n + len(sd)] = np.diag(sd)
        return out

    def readings(self, x: np.ndarray) -> np.ndarray:
        """What the sensors read of some states or directions [d, c]: [S, c], late where they lag."""
        found = self.seen(x)
        found[self.late] = x[self.now]
        return found

    def advanced(self, k: int, estimate: Filter, shadow: Shadow | None, noise: np.ndarray) -> None:
        """Step k of an estimate and of its shadow, whose mean it takes."""
        mean, root = self.stepped(k, estimate.mean, estimate.root)
        if shadow is not None:
            shadow.step(k, {name: estimate.mean[self.part(name)] for name in self.unknowns.drives})
            field, third = shadow.field()
            if shadow.finer.same:
                mean[:self.n], mean[self.now] = field.flatten().numpy(), shadow.readings(1.0)[0][self.late]
            estimate.weights[self.factors] = float(third.square().mean().sqrt()) * shadow.finer.gain[0]
        estimate.step(mean, root, noise)

    def nodes(self, x: np.ndarray) -> Tensor:
        """Fields at the nodes of some states or directions [d, c]: [c, N, F]."""
        states = torch.from_numpy(np.ascontiguousarray(x[:self.n].T)).unflatten(1, self._size)
        return self.stepper.read(states)

    def seen(self, x: np.ndarray, weights: Tensor | None = None) -> np.ndarray:
        """What sensors read of some states or directions [d, c]: [S, c]."""
        return torch.einsum("cnf,snf->sc", self.nodes(x), self.weights if weights is None else weights).numpy()

    def part(self, name: str) -> slice:
        """Where the numbers of one drive are in x."""
        drives = self.unknowns.drives
        at = self.n + sum(self.unknowns.count(other) for other in drives[:drives.index(name)])
        return slice(at, at + self.unknowns.count(name))


class Shadow:
    """The mean of a part that is followed, on finer meshes with smaller steps: what the given mesh and step get wrong of it.

    After a step two solutions U' and U'' of the mean (`Finer`) tell the field U'' + (U'' - U') / 3, and readings likewise. What
    readings then change of the estimate changes both.
    """

    def __init__(self, finer: Finer, sensors: Sequence[Sensor], unknowns: Unknowns, source: Source | None, start: Tensor,
                 t0: float) -> None:
        self.finer = finer
        self.levels = [_Level(finer, level, sensors, unknowns, source, start, t0) for level in (finer.last - 1, finer.last)]
        self.squares, self.count = np.zeros(len(sensors)), 0  # of what readings differ by, over all steps
        self._rows: dict[tuple[Sensor, ...], list[Tensor]] = {}

    def step(self, k: int, drives: Mapping[str, np.ndarray]) -> None:
        """Step k with drives [J] by name."""
        for level in self.levels:
            level.step(k, drives)
        self.squares, self.count = self.squares + self.readings(1.0)[1] ** 2, self.count + 1

    def field(self) -> tuple[Tensor, Tensor]:
        """The field [P, F] at the points of the given model, and a third of the difference: by which it may still be wrong."""
        points = len(self.finer.model.points(self.finer.problems[0]))
        return _extrapolated(*(level.u[0, :points] for level in self.levels))

    def readings(self, share: float) -> tuple[np.ndarray, np.ndarray]:
        """The same of readings [S] at a share of the last step, before they were used."""
        return _extrapolated(*(level.read(share) for level in self.levels))

    def at(self, sensors: Sequence[Sensor]) -> tuple[np.ndarray, np.ndarray]:
        """The same of what sensors would read of the field [S], without lag."""
        key = tuple(sensors)
        if key not in self._rows:
            self._rows[key] = [curved_rows(sensors, level.problem) for level in self.levels]
        return _extrapolated(*(level.read_by(weights) for level, weights in zip(self.levels, self._rows[key])))

    def table(self, share: float) -> np.ndarray:
        """How factors of variance 1 change these readings [S, 1 + S]: one of all of them, one of each (`Gap.unknown`)."""
        third, gain = self.readings(share)[1], self.finer.gain
        size = np.hypot(third, FLOOR * np.sqrt(self.squares / max(1, self.count)))
        return np.concatenate([gain[1] * third[:, None], gain[0] * np.diag(size)], axis=1)

    def move(self, change: Tensor, late: np.ndarray) -> None:
        """Change the field at the nodes by [N, F], and what sensors that lag read by [S]."""
        for level in self.levels:
            level.move(change, late)

    def copy(self) -> Shadow:
        """The same at this moment."""
        other = copy(self)
        other.levels = [copy(level) for level in self.levels]
        return other

    def state(self) -> dict[str, np.ndarray]:
        """All that changes, for a file; `restore` takes it back."""
        found: dict[str, np.ndarray] = {"squares": self.squares, "count": np.array(self.count)}
        for k, level in enumerate(self.levels):
            found |= {f"u{k}": level.u.numpy(), f"end{k}": level.end, f"seen{k}": level.parts}
            found |= {f"memory{k} {name}": value.numpy() for name, value in level.left.items()}
        return found

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for k, level in enumerate(self.levels):
            if state[f"u{k}"].shape != level.u.shape:
                raise InputError("it is of another mesh")
            level.u, level.end, level.parts = torch.from_numpy(state[f"u{k}"]), state[f"end{k}"], state[f"seen{k}"]
            level.left = {name.removeprefix(f"memory{k} "): torch.from_numpy(value) for name, value in state.items()
                          if name.startswith(f"memory{k} ")}
        self.squares, self.count = state["squares"], int(state["count"])


def _extrapolated(one: Any, two: Any) -> tuple[Any, Any]:
    """What two solutions of second order say of the truth, and a third of their difference."""
    return two + (two - one) / 3, (two - one) / 3


class _Level(Driven):
    """One of the two solutions.

    - `u` [1, P, F]: the field; `end` [S]: what sensors read of it, late where they lag
    - `parts` [parts + 1, S]: the same over the last step, before its readings were used
    - `left`: what steps left to the next beside u (`memory`): copies of this level step with the same solvers
    """

    def __init__(self, finer: Finer, level: int, sensors: Sequence[Sensor], unknowns: Unknowns, source: Source | None,
                 start: Tensor, t0: float) -> None:
        def up(values: Tensor) -> Tensor:
            return finer.up(values, level)

        super().__init__(finer.problems[level], finer.model, unknowns, source, t0, up=up)
        self.steps, lags = 2**level, [s.lag for s in sensors]
        self.weights, self.late = curved_rows(sensors, self.problem), np.array(lags) > 0
        self.delays = delays(lags, self.problem.dt)
        self.u = self.stepper.begin(up(start.double())[None])
        self.end = self.read_by(self.weights)
        self.parts, self.left = self.end[None], self.memory()

    def read_by(self, weights: Tensor) -> np.ndarray:
        return torch.einsum("nf,snf->s", self.stepper.read(self.u)[0], weights).numpy()

    def step(self, k: int, drives: Mapping[str, np.ndarray]) -> None:
        """All steps of this level within step k of the given problem."""
        parts, now, (e, b, c) = [self.end], self.read_by(self.weights), self.delays
        self.remember(self.left)
        for j in range(k * self.steps, (k + 1) * self.steps):
            self.u = self.driven(j, self.u, {name: a[:, None] for name, a in drives.items()})
            before, now = now, self.read_by(self.weights)
            parts.append(e * parts[-1] + b * before + c * now)
        self.parts, self.end, self.left = np.array(parts), parts[-1], self.memory()

    def read(self, share: float) -> np.ndarray:
        """The readings [S] at a share of the last step."""
        places = np.linspace(0, 1, len(self.parts)) if len(self.parts) > 1 else np.ones(1)
        return np.array([np.interp(share, places, column) for column in self.parts.T])

    def move(self, change: Tensor, late: np.ndarray) -> None:
        self.u = self.u + self.stepper.lift(self.up(change)[None])
        self.end = np.where(self.late, self.end + late, self.read_by(self.weights))


def in_double(problem: Problem, model: Model[Any] | None) -> tuple[Problem, Model[Any]]:
    """The same problem and model in double precision on the CPU: small variances beside large ones need it."""
    solver: Model[Any] = Classical() if model is None else model
    if isinstance(solver, torch.nn.Module) and any(p.dtype != torch.float64 or p.is_cuda for p in solver.parameters()):
        solver = deepcopy(solver).to("cpu", torch.float64)
    if problem.dtype == torch.float64 and problem.geometry.device.type == "cpu":
        return problem, solver
    return replace(problem, dtype=torch.float64, device="cpu"), solver
