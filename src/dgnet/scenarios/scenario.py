"""A scenario is one object that holds the whole experiment: geometry, physics, sampling, truth and what to beat."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.problems.conditions import Condition
from dgnet.problems.discretisation import CONSISTENT, WORKING, Discretisation
from dgnet.problems.flow import given_velocity
from dgnet.problems.pde import PDE
from dgnet.problems.phase import PhaseChange
from dgnet.problems.sources import Source

SIZES = ("small", "paper")
TRUTHS = ("same-mesh", "converged")
_LARGEST = 1000.0  # factor on sources
_SPLIT = {"train": 0, "test": 1}

Tensor = torch.Tensor

Initial = Tensor | Callable[[Tensor], Tensor]
"""Nodal values [B, N, F], linear in between, or a function of points x [n, d] that returns [B, n, F]."""


@dataclass(frozen=True)
class Draw:
    """One trajectory to be: its split, its number there, and the seed of the whole data set."""

    split: str
    index: int
    base: int = 0

    def sequence(self, name: str) -> np.random.SeedSequence:
        """Independent for every scenario, split and number, whatever else is drawn."""
        return np.random.SeedSequence(self.base, spawn_key=(zlib.crc32(name.encode()), _SPLIT[self.split], self.index))

    def rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng(self.sequence(name))

    def seed(self, name: str) -> int:
        """The number stored with the trajectory (63 bits)."""
        return int(self.sequence(name).generate_state(1, np.uint64)[0] >> 1)


@dataclass(frozen=True, eq=False)
class Sample:
    """What distinguishes the trajectories of a batch."""

    initial: Initial
    source: Source | None = None
    phases: tuple[float, ...] | None = None  # seconds into the flow's record, one per trajectory
    labels: tuple[tuple[str, ...], ...] = ()  # kinds of sources of each trajectory


@dataclass(frozen=True)
class Truth:
    """Settings of the reference solver: mesh refined r times, s substeps per stored step, elements of a degree.

    `order` is that of the time scheme; transport wants 3, whose stability region holds a part of the imaginary axis.
    """

    refine: int
    substeps: int
    degree: int = 1
    order: int = 2

    @property
    def finer(self) -> Truth:
        """Half the spacing, half the step: what a certificate compares with."""
        return replace(self, refine=self.refine + 1, substeps=2 * self.substeps)


@dataclass(frozen=True)
class Flow:
    """Settings of the one flow of a geometry. Its record holds the horizon plus `phases` seconds to start from."""

    mean_velocity: float
    viscosity: float
    dt: float
    spin_up: float
    phases: float
    refine: int = 0


@dataclass(frozen=True)
class Figure:
    """A published result."""

    mse: float
    rne: float


@dataclass(frozen=True)
class Parameter:
    """A line of a scenario's card; `origin` is "paper", "script" (the authors' public one) or "ours"."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class Scale:
    """Factors on the sources (the paper's robustness table): spot size, peak power, number of spots."""

    size: float = 1.0
    power: float = 1.0
    count: float = 1.0


Sampler = Callable[["Scenario", Sequence[tuple[Draw, np.random.Generator]]], Sample]


@dataclass(frozen=True, eq=False)
class Scenario:
    """See the module. `sampler` turns draws into initial states, sources and phases; all else is data."""

    name: str
    title: str
    size: str
    equation: str
    geometry: str
    build_mesh: Callable[[], Mesh]
    pde: PDE
    conditions: tuple[Condition, ...]
    dt: float
    steps: int
    train: int
    test: int
    sampler: Sampler
    truths: Mapping[str, Truth]
    paper: Mapping[str, Figure]
    parameters: tuple[Parameter, ...]
    offset: tuple[float, ...] = ()
    panels: int = 1
    flow: Flow | None = None
    phase_change: PhaseChange | None = None
    scale: Scale = field(default_factory=Scale)
    scalable: bool = False

    @cached_property
    def mesh(self) -> Mesh:
        return self.build_mesh()

    @property
    def horizon(self) -> float:
        return self.dt * self.steps

    @property
    def offsets(self) -> tuple[float, ...]:
        """Per field: what a relative error is measured from."""
        return self.offset or (0.0,) * len(self.pde.fields)

    @property
    def times(self) -> Tensor:
        """Stored times [T+1]."""
        return self.dt * torch.arange(self.steps + 1, dtype=torch.float64)

    def truth(self, kind: str) -> Truth:
        if kind not in self.truths:
            raise InputError(f"unknown kind of truth '{kind}' (known: {', '.join(TRUTHS)})")
        return self.truths[kind]

    def draws(self, trajectories: int | None = None, seed: int = 0) -> list[Draw]:
        """All trajectories of a data set, training first; at most `trajectories` of each split."""
        if trajectories is not None and trajectories < 1:
            raise InputError(f"the number of trajectories must be positive, got {trajectories}")
        if seed < 0:
            raise InputError(f"a seed must not be negative, got {seed}")
        counts = {split: count if trajectories is None else min(trajectories, count)
                  for split, count in (("train", self.train), ("test", self.test))}
        return [Draw(split, index, seed) for split, count in counts.items() for index in range(count)]

    def sample(self, draws: Sequence[Draw]) -> Sample:
        """Initial states, source and phases of these trajectories as one batch."""
        return self.sampler(self, [(draw, draw.rng(self.name)) for draw in draws])

    def problem(self, velocity: Tensor | None = None, *, device: torch.device | str = "cpu",
                dtype: torch.dtype = torch.float64, consistent: float = CONSISTENT) -> Discretisation:
        """What a model is given: the discretised equation, with the stored flow [B, T+1, N, d] where there is one."""
        if (self.flow is None) != (velocity is None):
            raise InputError(f"'{self.name}' {'has no' if self.flow is None else 'needs a'} flow that changes in time")
        pde = self.pde
        if velocity is not None:
            pde = replace(pde, velocity=given_velocity(velocity.to(device, dtype), self.dt))
        return Discretisation(self.mesh, pde, self.conditions, self.dt, consistent, dtype=dtype, device=device)

    def scaled(self, size: float = 1.0, power: float = 1.0, count: float = 1.0) -> Scenario:
        """The same scenario with larger, stronger or more sources; seeds and everything else stay."""
        if not self.scalable:
            raise InputError(f"the sources of '{self.name}' cannot be scaled")
        if not all(0 < factor <= _LARGEST for factor in (size, power, count)):
            raise InputError(f"the factors that scale sources must be positive and at most {_LARGEST:g}, got size {size:g}, power "
                             f"{power:g}, count {count:g}")
        return replace(self, scale=Scale(size, power, count))


def base_problem(scenario: Scenario, device: str, dtype: torch.dtype = WORKING) -> Discretisation:
    """The scenario's problem; a flow that changes in time is put in for each batch."""
    velocity = None
    if scenario.flow is not None:
        velocity = torch.zeros(1, 2, scenario.mesh.n_nodes, scenario.mesh.dim)
    return scenario.problem(velocity, device=device, dtype=dtype)


def stack(parts: Sequence[Sequence[float] | np.ndarray]) -> Tensor:
    """One row per trajectory, float64."""
    return torch.from_numpy(np.stack([np.asarray(p, dtype=np.float64) for p in parts]))
