"""What a filter is told that it does not know: the start, and drives of the part that change while it is followed.

A drive is a(t) [J] with the covariance C exp(-|t - t'| / time): the strengths of the smoothest source fields of the part (`field`)
or of spots at known places (`source`), a flux through a boundary (`flux:NAME`), or what the surroundings are warmer than assumed
(`ambient`). Over a step of length dt, a <- rho a + noise with rho = exp(-dt / time).

Smooth fields are sums of the eigenfunctions of -laplace on the part, with the variances of (k^2 - laplace)^s x = white noise and
k = sqrt(8) / length; s = 1 is the prior of `priors.fields`, 1.5 the default here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import eigsh

from dgnet.arguments import Finite, NotNegative, checked
from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.inverse import (
    DECAY,
    Choice,
    Kernels,
    Kind,
    Known,
    Measured,
    Readings,
    Rollout,
    Sensor,
    Spread,
    Unknown,
    checked_spots,
    infer,
    kernels,
    linear_kind,
    refuse_nonlinear,
    strongest,
    taken_shapes,
)
from dgnet.mesh import Mesh
from dgnet.models import Classical, Model, few_threads
from dgnet.operators import Geometry, stiffness
from dgnet.problems import Problem, Source, SpotTable

Tensor = torch.Tensor

KINDS = ("start", "field", "source", "flux:BOUNDARY", "ambient")
MODES = 64
"""Smooth source fields whose strengths are followed."""
_DENSE = 1500  # nodes up to which all eigenfunctions are computed
_STARTS = 200  # smooth fields that an unknown start is made of, on larger meshes
_ROUNDING = 1e-9  # smallest noise, relative to the readings
_READINGS = 400  # from which strengths are learned, at most


@checked
@dataclass(frozen=True)
class Prior:
    """What is assumed of an unknown before any reading.

    - `strength`: its standard deviation, in its own unit
    - `length`: the distance over which a field is correlated; of `start` and `field`
    - `time`: over which a drive is correlated; of all but `start`
    - `smoothness`: of a field: (k^2 - laplace)^smoothness x = white noise
    """

    strength: NotNegative
    length: NotNegative = 0.0
    time: NotNegative = 0.0
    smoothness: Finite = 1.5


class Modes:
    """The smoothest fields of a part: V-orthonormal eigenfunctions [N, M] of -laplace and their eigenvalues [M], smallest first."""

    def __init__(self, mesh: Mesh) -> None:
        K, V = csc_array(stiffness(Geometry.of(mesh), 1.0).to_scipy()), mesh.dual_volumes()
        self.volume, self.extent = float(V.sum()), float(np.linalg.norm(np.ptp(mesh.points, axis=0)))
        if mesh.n_nodes <= _DENSE:
            self.values, self.fields = eigh(K.toarray(), np.diag(V))
        else:
            shift = -1e-3 * (np.pi / self.extent) ** 2
            self.values, self.fields = eigsh(K, _STARTS, csc_array(diags_array(V)), sigma=shift, which="LM")
        self.values = self.values.clip(min=0.0)

    def variances(self, length: float, smoothness: float, count: int | None = None) -> np.ndarray:
        """Of the strengths of the first `count` fields, such that the variance of their sum is 1 on average over the part."""
        spectrum = ((DECAY / (length or 0.25 * self.extent)) ** 2 + self.values[:count]) ** (-2.0 * smoothness)
        return self.volume * spectrum / spectrum.sum()


@dataclass(frozen=True, eq=False)
class SmoothStart(Kind):
    """The start as a sum of smooth fields `shapes` [J, N, F]."""

    shapes: Tensor

    def responses(self, problem: Problem, made: Kernels, sensors: Sequence[Sensor], model: Model[Any] | None = None) -> Tensor:
        return made.starts(self.shapes)

    def put(self, run: Rollout, x: Tensor) -> None:
        run.start = run.start + torch.einsum("j,jnf->nf", x, self.shapes)


@dataclass(frozen=True, eq=False)
class SmoothSources(Kind):
    """Sources of smooth shapes [J, N, F], the strength of each over time."""

    shapes: Tensor

    def responses(self, problem: Problem, made: Kernels, sensors: Sequence[Sensor], model: Model[Any] | None = None) -> Tensor:
        return made.responses(self.shapes).flatten(2)

    def put(self, run: Rollout, x: Tensor) -> None:
        run.add(torch.einsum("tj,jnf->tnf", run.halved(x.T), run.finer.up(self.shapes, run.level)))


class Unknowns:
    """The unknown start and drives of a problem: shapes, responses, and how they change in a step."""

    def __init__(self, problem: Problem, names: Sequence[str], spots: SpotTable | None = None,
                 model: Model[Any] | None = None) -> None:
        self.problem, self.names, self.spots, self.model = problem, tuple(names), spots, model or Classical()
        self._tables: dict[tuple[Problem, Model[Any]], SpotTable] = {}
        for name in self.names:
            if name not in KINDS and not name.startswith("flux:"):
                raise InputError(f"'{name}' cannot be followed as an unknown{did_you_mean(name, KINDS)}")
        if len(set(self.names)) < len(self.names):
            raise InputError(f"an unknown is named twice: {', '.join(self.names)}")
        if "source" in self.names:
            checked_spots(spots, problem)
        self.drives = tuple(name for name in self.names if name != "start")

    @cached_property
    def modes(self) -> Modes:
        return Modes(self.problem.mesh)

    def count(self, name: str) -> int:
        """Numbers of one drive."""
        if name == "field":
            return min(MODES, self.problem.mesh.n_nodes) * self.problem.n_fields
        return len(self.spots.names) if name == "source" and self.spots is not None else 1

    def smooth(self, count: int | None = None) -> Tensor:
        """The smoothest fields, one after the other in each field of the equation: [M F, N, F]."""
        shapes = torch.from_numpy(np.ascontiguousarray(self.modes.fields[:, :count].T))
        each = torch.eye(self.problem.n_fields, dtype=torch.float64)
        return torch.einsum("mn,fg->mfng", shapes, each).flatten(0, 1)

    @cached_property
    def sources(self) -> Tensor:
        """The smooth source fields that are followed [M F, N, F]."""
        return self.smooth(MODES)

    def spot_shapes(self, problem: Problem, model: Model[Any], time: float) -> Tensor:
        """Spots of power 1 in the step of a problem, on this mesh or another one, that begins at a time: [J, P, 1]."""
        assert self.spots is not None
        key = problem, model
        if key not in self._tables:
            self._tables[key] = model.taking(self.spots, problem)
        return taken_shapes(self._tables[key], problem, model, 0, 1, time)[:, 0]

    def variances(self, name: str, prior: Prior) -> np.ndarray:
        """Of all numbers of one unknown."""
        if name in ("start", "field"):
            each = self.modes.variances(prior.length, prior.smoothness, MODES if name == "field" else None)
            return np.repeat(prior.strength**2 * each, self.problem.n_fields)
        return np.full(self.count(name), prior.strength**2)

    # ------------------------------------------------------------------ strengths from readings

    def kind(self, name: str, steps: int, t0: float) -> Kind:
        """As an unknown that readings depend on linearly."""
        if name == "start":
            shapes = self.smooth()
            return SmoothStart(name, (len(shapes),), (), shapes)
        if name == "field":
            return SmoothSources(name, (len(self.sources), steps), (), self.sources)
        return linear_kind(name, self.problem, steps, self.spots, t0, over_time=True)

    def choices(self, name: str, steps: int) -> tuple[tuple[Choice, ...], Spread]:
        """Times of drives and lengths of fields from which the likelihood chooses, and the covariance that they lead to."""
        dt, extent, count = self.problem.dt, self.modes.extent, self.count(name)
        times = (0.0,) if name == "start" else tuple(dt * 2.0**k for k in range(3, max(4, int(np.log2(steps)) + 4), 2))
        lengths = tuple(extent * 2.0**-k for k in range(4)) if name in ("start", "field") else (0.0,)
        apart = dt * np.abs(np.arange(steps)[:, None] - np.arange(steps))

        def spread(choice: Choice, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            prior = prior_of(choice)
            variance = self.variances(name, prior)
            if name == "start":
                return variance[:, None] * H.T, variance
            moved = np.einsum("ts,mcs->ctm", np.exp(-apart / prior.time), H.reshape(len(H), count, steps), optimize=True)
            return (variance[:, None, None] * moved).reshape(count * steps, -1), np.repeat(variance, steps)

        return tuple((time, length) for time in times for length in lengths), spread


def prior_of(choice: Choice, strength: float = 1.0) -> Prior:
    """Of what the likelihood chooses from: the time of a drive and the length of a field, each 0 where there is none."""
    time, length = choice
    return Prior(strength, length, time)


def learned(problem: Problem, readings: Readings, unknown: Sequence[str], *, noise: float | None = None,
            start: Tensor | None = None, source: Source | None = None, spots: SpotTable | None = None,
            model: Model[Any] | None = None, t0: float = 0.0, finer: bool = True) -> tuple[dict[str, Prior], float]:
    """Priors and noise with the largest likelihood of some readings, whose times are counted from the start at `t0`.

    Readings depend linearly on all unknowns (sensor kernels), so that strengths are found as `recover` finds them.
    """
    unknowns, known = Unknowns(problem, unknown, spots, model), Known.of(problem, start, source, spots, t0)
    refuse_nonlinear(problem, unknowns.model)
    every = max(1, int(np.ceil(np.isfinite(readings.values).sum() / _READINGS)))
    m = Measured(problem, Readings(readings.times[::every], readings.values[::every], readings.sensors), known, model, finer)
    if not m.there.any():
        raise InputError("there is no reading to learn from")
    with torch.no_grad(), few_threads(problem.mesh.n_nodes):
        kinds, made = [unknowns.kind(name, m.steps, t0) for name in unknown], kernels(problem, readings.sensors, m.steps, model, t0)
        reached = m.at @ made.readings(m.source, known.start).double().numpy().T
        y = (m.readings.values - reached)[m.there]
        tables = {kind.name: np.einsum("tn,snj->tsj", m.at, kind.responses(problem, made, readings.sensors, model).double().numpy())
                  for kind in kinds}
        blocks = [Unknown(name, R[m.there], *unknowns.choices(name, m.steps)) for name, R in tables.items()]
        if m.finer is not None:
            found = infer(y, blocks).numbers

            def put(run: Rollout) -> None:
                for kind in kinds:
                    kind.put(run, torch.from_numpy(found[kind.name].reshape(kind.shape)))

            gap = m.gap_of(reached + sum(R @ found[name] for name, R in tables.items()), put)
            y, blocks = y - gap.bias[m.there], [*blocks, gap.unknown(m.readings.times, m.there)]
    choices, strengths, level = strongest(y, blocks, noise)
    if level < _ROUNDING * float(np.abs(m.readings.values[m.there]).max()):
        raise InputError("the first readings differ by no more than rounding from what the unknowns explain: they tell nothing "
                         "about the noise; give it, or more readings")
    return {name: prior_of(choice, strength) for name, choice, strength in zip(unknown, choices, strengths.tolist())}, level


def described(priors: Mapping[str, Prior], noise: float) -> list[str]:
    """One line for each unknown, and one for the noise."""
    def of(prior: Prior) -> str:
        parts = {"length": prior.length, "time": prior.time}
        return "".join(f", {name} {value:.3g}" for name, value in parts.items() if value)

    return [*(f"{name}: standard deviation {prior.strength:.3g}{of(prior)}" for name, prior in priors.items()),
            f"noise of a reading: {noise:.3g}"]
