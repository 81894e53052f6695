"""Trajectories in memory on one device, as models are rolled out on them and trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from dgnet.arguments import Positive, checked
from dgnet.data.trajectory import Trajectory
from dgnet.errors import InputError
from dgnet.problems import WORKING, Problem, Rule, given_velocity

Tensor = torch.Tensor


class Middles(Protocol):
    """The start [B, E, F] and the step averages of the source [B, T, E, F] at the middles of the mesh's edges, known as functions.

    Solvers with points beside the nodes (quadratic elements) use them; without, they fit what is stored at the nodes. `origin` is a
    sentence that says where they come from.
    """

    @property
    def origin(self) -> str: ...
    @property
    def start(self) -> Tensor | None: ...
    @property
    def source_average(self) -> Tensor | None: ...
    def part(self, rows: Sequence[int]) -> Middles: ...


@dataclass(frozen=True, eq=False)
class StoredMiddles:
    """Sources [B, T, E, F] that were evaluated when the data were made; starts are known at the nodes only."""

    source_average: Tensor
    start: None = None
    origin: str = "Between the nodes, sources are evaluated, and starts are fitted to the data at the nodes."

    def part(self, rows: Sequence[int]) -> StoredMiddles:
        return StoredMiddles(self.source_average[torch.as_tensor(rows, device=self.source_average.device)])


@checked
@dataclass(frozen=True, eq=False)
class Corpus:
    """Trajectories in memory on one device, to train and score models on.

    - `state`: [B, T+1, N, F], in the unit of each field
    - `source_average`: the source averaged over each step [B, T, N, F], field/time; None without a source
    - `velocity`: a given flow that changes in time [B, T+1, N, d], length/time; None without one
    - `dt`: time between two states
    - `offset`: per field, what relative errors are measured from; () for zero
    - `begin`: time of each first state [B], in double precision on the CPU; zero unless told
    - `middles`: start and source between the nodes, where they are known; None where they are not
    - `ends`: the mean of the source at both ends of each step [B, T, N, F], for schemes that take that (`under`); None unless asked
      for
    - `error`: about what interpolation missed of the states [B, T+1, N, F]; None where nothing was interpolated

        >>> import dgnet as dg, torch
        >>> data = dg.Corpus(torch.rand(3, 11, 25, 1), None, None, dt=0.1, offset=(0.0,))
        >>> len(data), data.steps, data.part([0, 2]).state.shape
        (3, 10, torch.Size([2, 11, 25, 1]))
    """

    state: Tensor
    source_average: Tensor | None
    velocity: Tensor | None
    dt: Positive
    offset: tuple[float, ...]
    begin: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    middles: Middles | None = None
    ends: Tensor | None = None
    error: Tensor | None = None

    def __post_init__(self) -> None:
        if self.state.dim() != 4 or self.state.shape[1] < 2:
            raise InputError(f"states must be [trajectory, time, node, field] at two times at least, got {list(self.state.shape)}")
        batch, times, nodes, fields = self.state.shape
        for name, count, last in (("source_average", times - 1, fields), ("ends", times - 1, fields), ("velocity", times, 0)):
            value = getattr(self, name)
            if value is not None and (value.dim() != 4 or value.shape[:3] != (batch, count, nodes) or value.shape[3] != (
                    last or value.shape[3])):
                raise InputError(f"{name} must be [{batch}, {count}, {nodes}, {last or 'd'}] beside states "
                                 f"{list(self.state.shape)}, got {list(value.shape)}")
        if self.offset and len(self.offset) not in (1, fields):
            raise InputError(f"{len(self.offset)} offsets were given for {fields} fields")
        if self.begin.dim() != 1 or len(self.begin) not in (1, batch):
            raise InputError(f"begin must be one time for each of {batch} trajectories, got {list(self.begin.shape)}")
        object.__setattr__(self, "begin", self.begin.expand(batch))

    @classmethod
    def of(cls, parts: Sequence[Trajectory], dt: float, offset: tuple[float, ...] = (), device: torch.device | str = "cpu",
           dtype: torch.dtype = WORKING) -> Corpus:
        """Equally long trajectories. One without a source beside others that have one gets a source of zeros."""
        def stack(name: str) -> Tensor | None:
            values = [getattr(p, name) for p in parts]
            given = [v for v in values if v is not None]
            if not given:
                return None
            if len(given) < len(values) and name == "velocity":
                p = parts[next(i for i, v in enumerate(values) if v is None)]
                raise InputError(f"{p.split} trajectory {p.index} has no velocity, but others of the batch have one")
            return torch.from_numpy(np.stack([np.zeros_like(given[0]) if v is None else v for v in values])).to(device, dtype)

        state = stack("state")
        assert state is not None
        begin = torch.tensor([float(p.time[0]) for p in parts], dtype=torch.float64)
        samples = stack("source")
        ends = None if samples is None else 0.5 * (samples[:, :-1] + samples[:, 1:])
        return cls(state, stack("source_average"), stack("velocity"), dt, offset, begin, ends=ends, error=stack("state_error"))

    @checked
    def under(self, rule: Rule) -> Corpus:
        """The same with the source as a scheme of this rule sees it in place of its averages."""
        if rule == "average" or self.source_average is None:
            return self
        if self.ends is None:
            raise InputError("the paper's scheme takes a source at both ends of each step, but these trajectories hold its "
                             "averages over the steps only")
        return replace(self, source_average=self.ends, ends=None)

    @property
    def steps(self) -> int:
        return self.state.shape[1] - 1

    def __len__(self) -> int:
        return self.state.shape[0]

    @checked
    def part(self, rows: Sequence[int]) -> Corpus:
        if not all(-len(self) <= row < len(self) for row in rows):
            raise InputError(f"there are {len(self)} trajectories, so there is none of a number in {list(rows)}")
        number = torch.as_tensor(rows, dtype=torch.long)
        index = number.to(self.state.device)
        part = self._each(lambda v: v[index], lambda v: v[index], self.begin[number])
        return part if self.middles is None else replace(part, middles=self.middles.part(number.tolist()))

    def to(self, dtype: torch.dtype) -> Corpus:
        """In another precision."""
        return replace(self._each(lambda v: v.to(dtype), lambda v: v.to(dtype), self.begin), middles=self.middles)

    def windows(self, rows: Tensor, starts: Tensor, length: int) -> Corpus:
        """Pieces of `length` steps, one per (row, start); both on the CPU."""
        begin = self.begin[rows] + self.dt * starts
        at = (starts[:, None] + torch.arange(length + 1)).to(self.state.device)
        rows = rows[:, None].to(self.state.device)
        part = self._each(lambda v: v[rows, at], lambda v: v[rows, at[:, :-1]], begin)
        between = None if self.middles is None else self.middles.source_average
        return part if between is None else replace(part, middles=StoredMiddles(between[rows, at[:, :-1]]))

    def _each(self, at_times: Callable[[Tensor], Tensor], over_steps: Callable[[Tensor], Tensor], begin: Tensor) -> Corpus:
        """The same change of all tensors: of those with a row per time, and of sources with a row per step. No middles."""
        sources = (None if f is None else over_steps(f) for f in (self.source_average, self.ends))
        velocity = None if self.velocity is None else at_times(self.velocity)
        error = None if self.error is None else at_times(self.error)
        return Corpus(at_times(self.state), next(sources), velocity, self.dt, self.offset, begin, ends=next(sources), error=error)

    def missed(self) -> Corpus | None:
        """The same with states that are wrong by about as much as interpolation may have made them; None where nothing was."""
        return None if self.error is None else replace(self, state=self.state + self.error, error=None)

    @property
    def spread(self) -> Tensor:
        """Per field: root mean square of the states around their offset, [F]."""
        shift = self.state.new_tensor(self.offset or [0.0])
        return (self.state - shift).square().mean((0, 1, 2)).sqrt().clamp(min=1e-12)

    def timed(self, base: Problem) -> bool:
        """Something depends on the time besides the stored flow, which goes with its row."""
        still = base if self.velocity is None else base.with_velocity(None)
        return still.time_dependent or still.data_changes

    def together(self, base: Problem) -> list[list[int]]:
        """Rows that one time serves: those that begin at the same one where it matters, else all of them."""
        if not self.timed(base):
            return [list(range(len(self)))]
        same = torch.unique((self.begin / self.dt * 1e6).round(), return_inverse=True)[1]
        return [torch.nonzero(same == k)[:, 0].tolist() for k in range(int(same.max()) + 1)]

    def clock(self, base: Problem) -> float:
        """The time at which all pieces begin; 0 where it does not matter."""
        if not len(self) or not self.timed(base):
            return 0.0
        if float(self.begin.max() - self.begin.min()) > 1e-6 * self.dt:
            raise InputError("these pieces begin at different times, and the problem depends on the time: step them apart")
        return float(self.begin[0])

    def problem(self, base: Problem) -> Problem:
        """The problem with this batch's own flow."""
        return base if self.velocity is None else base.with_velocity(given_velocity(self.velocity, self.dt, self.clock(base)))
