"""A scenario is a case of the paper with the whole experiment around it: sampling, truth and what to beat."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dgnet.discovery.unknowns import CURVES, Unknowns
from dgnet.errors import InputError
from dgnet.problems.case import Case, Opening
from dgnet.problems.sources import Source
from dgnet_paper.reference.phase_change import Melting, PhaseChange
from dgnet_paper.scenarios.waves import activation

SIZES = ("small", "paper")
TRUTHS = ("same-mesh", "converged")
_LARGEST = 1000.0  # factor on sources
_SPLIT = {"train": 0, "test": 1}

if TYPE_CHECKING:
    from dgnet.data import Dataset
    from dgnet.training.plan import Plan
    from dgnet.training.run import Run

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


@dataclass(frozen=True, eq=False, kw_only=True)
class Scenario(Case):
    """A case of the paper that draws its own trajectories: `sampler` turns draws into initial states, sources and phases."""

    geometry: str
    train: int
    test: int
    sampler: Sampler
    truths: Mapping[str, Truth]
    paper: Mapping[str, Figure]
    parameters: tuple[Parameter, ...]
    training: Plan
    panels: int = 1
    flow: Flow | None = None
    scale: Scale = field(default_factory=Scale)
    scalable: bool = False
    activated: float | None = None  # of the first field, where waves of it are followed by their times of activation
    phase_change: PhaseChange | None = None  # of the truth; the equation does not know it

    def __post_init__(self) -> None:
        object.__setattr__(self, "given_flow", self.flow is not None)  # computed once and stored with the data
        object.__setattr__(self, "tally", None if self.phase_change is None else Melting(self.phase_change))

    @property
    def published(self) -> dict[str, float] | None:
        return asdict(self.paper["DGNet"]) if "DGNet" in self.paper else None

    def opening(self) -> Opening:
        """The start and the source of the first test; a channel of the paper's size flows as in the loop that ships."""
        from dgnet_paper.scenarios.looped import looped_flow, ships

        flow = None
        notes: tuple[str, ...] = ()
        if self.given_flow:
            if self.size != "paper" or not ships(self.name):
                raise InputError(f"{self.name}: its flow comes with its data, and there are none here")
            flow = looped_flow(self.name)
            notes = (f"The flow repeats itself every {flow.period:g} {self.units.time or 'units of time'}.",)
        sample = self.sample([Draw("test", 0)])
        x = torch.tensor(self.mesh.points, dtype=torch.float64)
        start = sample.initial(x) if callable(sample.initial) else sample.initial
        return Opening(start, sample.source, self.panels, flow, notes)

    def between_nodes(self, dataset: Dataset, numbers: Sequence[int], device: torch.device | str) -> Any:
        """The draws behind the trajectories, where the data come from this version of the scenario."""
        from dgnet_paper.scenarios.redrawn import Redrawn

        return Redrawn.of(self, dataset, numbers, device)

    def remarks(self, states: Mapping[str, Tensor], truth: Tensor) -> dict[str, Any]:
        """Times of activation, where the scenario has waves."""
        return {} if self.activated is None else activation(states, truth, self.dt, self.activated)

    @property
    def particulars(self) -> dict[str, str]:
        given = {"flow": self.flow, "phase_change": self.phase_change}
        return {name: repr(value) for name, value in given.items() if value is not None}

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

    def scaled(self, size: float = 1.0, power: float = 1.0, count: float = 1.0) -> Scenario:
        """The same scenario with larger, stronger or more sources; seeds and everything else stay."""
        if not self.scalable:
            raise InputError(f"the sources of '{self.name}' cannot be scaled")
        if not all(0 < factor <= _LARGEST for factor in (size, power, count)):
            raise InputError(f"the factors that scale sources must be positive and at most {_LARGEST:g}, got size {size:g}, power "
                             f"{power:g}, count {count:g}")
        return replace(self, scale=Scale(size, power, count))


def stack(parts: Sequence[Sequence[float] | np.ndarray]) -> Tensor:
    """One row per trajectory, float64."""
    return torch.from_numpy(np.stack([np.asarray(p, dtype=np.float64) for p in parts]))


def scenario_of(run: Run) -> Scenario:
    """The case of a run of the paper, which can also draw trajectories and has published figures."""
    if not isinstance(run.case, Scenario):
        raise InputError(f"{run.folder} is about a problem of your own: its trajectories come from its data")
    return run.case


def unknowns_of(scenario: Scenario, asked: bool = True) -> Unknowns:
    """What `--unknown-reaction` and `--unknown-curves` mean of a scenario: its reaction, or else the curves of its material."""
    if not asked:
        return Unknowns()
    return Unknowns(curves=CURVES) if scenario.pde.reaction is None and scenario.pde.curved else Unknowns(reaction=True)
