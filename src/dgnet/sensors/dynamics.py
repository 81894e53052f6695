"""The step of a part with what drives it, as a filter sees it.

The state is x = (u, a, v): the field at the model's points, the drives (`drives`), and what the sensors read at the end of the step
before, so that a reading between two steps is linear in x, too. One step is

    u+ = A u + B (f + shapes a) + c,     a+ = rho a + noise,     v+ = W u

with the step of the model itself. Where that is not linear, its derivative is taken at the estimate by central differences as wide
as the standard deviations (extended filter): bands are then as good as the step is linear within them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.models import Classical, Model
from dgnet.problems import Discretisation, SpotTable, step_average
from dgnet.problems.lift import Lift
from dgnet.problems.sources import Source
from dgnet.sensors.drives import Prior, Unknowns
from dgnet.sensors.kalman import Filter
from dgnet.sensors.kernels import refuse_nonlinear
from dgnet.sensors.sensor import Sensor, rows

Tensor = torch.Tensor

EXACT, RANK = 800, 150
"""Entries of the state up to which a filter is exact unless told otherwise, and the columns of its root beyond."""
_LASTING = 50.0  # steps after which an old drive counts no more, in comparisons
_PANELS = 8  # parts of a step in which a known source is averaged


class Dynamics:
    """One step of x and what sensors read of it. Sizes: n for u, J for a, S for v; d together."""

    def __init__(self, problem: Discretisation, sensors: Sequence[Sensor], priors: Mapping[str, Prior], *, start: Tensor,
                 source: Source | None, spots: SpotTable | None, model: Model[Any], t0: float) -> None:
        self.problem, self.model, self.t0 = problem, model, t0
        self.source = source
        self.unknowns = u = Unknowns(problem, list(priors), spots, model)
        self.linear = is_linear(problem, model)
        self.weights = rows(sensors, problem)
        self._x = torch.tensor(model.points(problem))
        self.J = sum(u.count(name) for name in u.drives)
        self.variance = np.concatenate([np.zeros(0), *(u.variances(name, priors[name]) for name in u.drives)])
        decay = [np.full(u.count(name), problem.dt / (priors[name].time or 20 * problem.dt)) for name in u.drives]
        self.rho = np.exp(-np.concatenate([np.zeros(0), *decay]))
        begin = start.double()[None]
        if "start" in priors:
            sd = torch.from_numpy(np.sqrt(u.variances("start", priors["start"])))
            begin = torch.cat([begin, begin + sd[:, None, None] * u.smooth()])
        self.state = model.prepare(problem, len(begin) + self.J, 1000)
        self._loaded = {name: model.prepare(u.loaded(name), 1, 1000) for name in u.drives if name not in ("field", "source")}
        states = model.begin(self.state, begin)
        self._size = states.shape[1:]
        self._first = states.flatten(1).numpy().T  # [n, 1 + starts]
        self.n = len(self._first)
        self.d = self.n + self.J + len(sensors)

    def begun(self, rank: int | None) -> Filter:
        """The estimate before any reading."""
        n, J, first = self.n, self.J, self._first
        root = np.zeros((self.d, first.shape[1] - 1 + J))
        root[:n, :first.shape[1] - 1] = first[:, 1:] - first[:, :1]
        sd = np.sqrt(self.variance)
        root[n:n + J, first.shape[1] - 1:] = np.diag(sd)
        mean = np.concatenate([first[:, 0], np.zeros(self.d - n)])
        kept = rank or (self.d if self.d <= EXACT else RANK)
        # in a comparison of variances all entries count as what they do to the field, on average over the part
        memory = self.memory()
        moved = self.stepped(0, mean, root[:, first.shape[1] - 1:])[1][:n]
        self.remember(memory)
        drives = np.sqrt((moved**2).mean(axis=0)) / np.where(sd > 0, sd, 1.0) * np.minimum(1 / (1 - self.rho), _LASTING)
        weights = np.concatenate([np.full(n, n**-0.5), drives, np.full(len(self.weights), n**-0.5)])
        return Filter(mean, root, kept, weights)

    def stepped(self, k: int, mean: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """F m + c [d] and F S [d, r] after step k."""
        n, end, r, u = self.n, self.n + self.J, root.shape[1], self.unknowns
        t = self.t0 + k * self.problem.dt
        columns = np.concatenate([mean[:, None], mean[:, None] + root, *([] if self.linear else [mean[:, None] - root])], axis=1)
        states = torch.from_numpy(np.ascontiguousarray(columns[:n].T)).unflatten(1, self._size)
        force, loads, at = self._known(k), np.zeros((n, columns.shape[1])), n
        for name in u.drives:
            own = columns[at:at + u.count(name)]
            at += len(own)
            if name in self._loaded:
                both = (self.model.step(state, states[:1], None, t, k) for state in (self._loaded[name], self.state))
                on, off = (x.flatten().numpy() for x in both)
                loads += np.outer(on - off, own[0])
            else:
                force = self._sum(force, torch.einsum("jc,jnf->cnf", torch.from_numpy(own), u.shapes(name, k, self.t0)))
        force = None if force is None else force.expand(len(states), -1, -1)
        new = self.model.step(self.state, states, force, t, k).flatten(1).numpy().T + loads
        if not np.isfinite(new).all():
            raise InputError(f"the estimate is not finite any more at t = {t:g}: a step of {self.model.name} grows without bound")
        moved = new[:, 1:1 + r] - new[:, :1] if self.linear else 0.5 * (new[:, 1:1 + r] - new[:, 1 + r:])
        before = self.seen(np.concatenate([mean[:, None], root], axis=1))
        return (np.concatenate([new[:, 0], self.rho * mean[n:end], before[:, 0]]),
                np.concatenate([moved, self.rho[:, None] * root[n:end], before[:, 1:]]))

    def memory(self) -> dict[str, Tensor]:
        """What steps leave to the next beside x."""
        return {f"{name}/{key}": value for name, state in self._states.items() for key, value in self.model.memory(state).items()}

    def remember(self, memory: Mapping[str, Tensor]) -> None:
        """Go on after the steps that left this."""
        for name, state in self._states.items():
            start = f"{name}/"
            self.model.remember(state, {key.removeprefix(start): x for key, x in memory.items() if key.startswith(start)})

    @property
    def _states(self) -> dict[str, Any]:
        return {"": self.state, **self._loaded}

    def noise(self, scale: float = 1.0, before: float = 1.0) -> np.ndarray:
        """G [d, J]: the root of a step's noise; it takes the drives' variance from `before` to `scale` times that of the priors."""
        out = np.zeros((self.d, self.J))
        out[self.n:self.n + self.J] = np.diag(np.sqrt(self.variance * (scale - before * self.rho**2)))
        return out

    def nodes(self, x: np.ndarray) -> Tensor:
        """Fields at the nodes of some states or directions [d, c]: [c, N, F]."""
        states = torch.from_numpy(np.ascontiguousarray(x[:self.n].T)).unflatten(1, self._size)
        return self.model.read(self.state, states)

    def seen(self, x: np.ndarray, weights: Tensor | None = None) -> np.ndarray:
        """What sensors read of some states or directions [d, c]: [S, c]."""
        return torch.einsum("cnf,snf->sc", self.nodes(x), self.weights if weights is None else weights).numpy()

    def part(self, name: str) -> slice:
        """Where the numbers of one drive are in x."""
        drives = self.unknowns.drives
        at = self.n + sum(self.unknowns.count(other) for other in drives[:drives.index(name)])
        return slice(at, at + self.unknowns.count(name))

    def _known(self, k: int) -> Tensor | None:
        """The known source of step k: [1, P, F]."""
        if self.source is None:
            return None
        return averages(self.source, self.problem, self._x, self.t0 + k * self.problem.dt, 1)

    def _sum(self, one: Tensor | None, other: Tensor) -> Tensor:
        """Of two sources, each given at the nodes or at all points of the model."""
        if one is None:
            return other
        if one.shape[1] != other.shape[1]:
            one, other = (Lift.of(self.problem.mesh)(x) for x in (one, other))
        return one + other


def averages(source: Source, problem: Discretisation, x: Tensor, start: float, steps: int) -> Tensor:
    """Of a source over the steps of a problem from `start` on: [steps, P, F]."""
    if isinstance(source, SpotTable):
        return source.on(problem.mesh).average(x, 0, steps, problem.dt, start)[0]
    begin = start + problem.dt * torch.arange(steps, dtype=torch.float64)
    return step_average(source, x, begin, problem.dt, panels=_PANELS)[0]


def in_double(problem: Discretisation, model: Model[Any] | None) -> tuple[Discretisation, Model[Any]]:
    """The same problem and model in double precision on the CPU: small variances beside large ones need it."""
    solver: Model[Any] = Classical() if model is None else model
    if isinstance(solver, torch.nn.Module) and any(p.dtype != torch.float64 or p.is_cuda for p in solver.parameters()):
        solver = deepcopy(solver).to("cpu", torch.float64)
    if problem.dtype == torch.float64 and problem.geometry.device.type == "cpu":
        return problem, solver
    return replace(problem, dtype=torch.float64, device="cpu"), solver


def is_linear(problem: Discretisation, model: Model[Any]) -> bool:
    """Whether a step is linear in state and source."""
    try:
        refuse_nonlinear(problem, model)
    except InputError:
        return False
    return True
