"""Trajectories in memory on one device, as models are rolled out on them and trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from dgnet.data.store import Dataset
from dgnet.errors import InputError
from dgnet.problems import WORKING, Discretisation, given_velocity

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Corpus:
    """Trajectories in memory on one device, to train and score models on.

    - `state`: [B, T+1, N, F], in the unit of each field
    - `source`: its average over each step [B, T, N, F], field/time; None without a source
    - `velocity`: a given flow that changes in time [B, T+1, N, d], length/time; None without one
    - `dt`: time between two states
    - `offset`: per field, what relative errors are measured from; () for zero
    - `begin`: time of each first state [B], in double precision on the CPU; zero unless told

        >>> import dgnet as dg, torch
        >>> data = dg.Corpus(torch.rand(3, 11, 25, 1), None, None, dt=0.1, offset=(0.0,))
        >>> len(data), data.steps, data.part([0, 2]).state.shape
        (3, 10, torch.Size([2, 11, 25, 1]))
    """

    state: Tensor
    source: Tensor | None
    velocity: Tensor | None
    dt: float
    offset: tuple[float, ...]
    begin: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    def __post_init__(self) -> None:
        object.__setattr__(self, "begin", self.begin.expand(len(self)))

    @classmethod
    def read(cls, dataset: Dataset, numbers: Sequence[int], device: str, dtype: torch.dtype = WORKING) -> Corpus:
        b = dataset.batch(list(numbers), device=device, dtype=dtype, only=("source_average", "velocity"))
        return cls(b.state, b.source_average, b.velocity, dataset.dt, dataset.offset, b.time[:, 0].cpu())

    @property
    def steps(self) -> int:
        return self.state.shape[1] - 1

    def __len__(self) -> int:
        return self.state.shape[0]

    def part(self, rows: Sequence[int]) -> Corpus:
        number = torch.as_tensor(rows, dtype=torch.long)
        index = number.to(self.state.device)
        return Corpus(self.state[index], None if self.source is None else self.source[index],
                      None if self.velocity is None else self.velocity[index], self.dt, self.offset, self.begin[number])

    def to(self, dtype: torch.dtype) -> Corpus:
        """In another precision."""
        return Corpus(self.state.to(dtype), None if self.source is None else self.source.to(dtype),
                      None if self.velocity is None else self.velocity.to(dtype), self.dt, self.offset, self.begin)

    def windows(self, rows: Tensor, starts: Tensor, length: int) -> Corpus:
        """Pieces of `length` steps, one per (row, start); both on the CPU."""
        begin = self.begin[rows] + self.dt * starts
        at = (starts[:, None] + torch.arange(length + 1)).to(self.state.device)
        rows = rows[:, None].to(self.state.device)
        return Corpus(self.state[rows, at], None if self.source is None else self.source[rows, at[:, :-1]],
                      None if self.velocity is None else self.velocity[rows, at], self.dt, self.offset, begin)

    @property
    def spread(self) -> Tensor:
        """Per field: root mean square of the states around their offset, [F]."""
        shift = self.state.new_tensor(self.offset or [0.0])
        return (self.state - shift).square().mean((0, 1, 2)).sqrt().clamp(min=1e-12)

    def timed(self, base: Discretisation) -> bool:
        """Something depends on the time besides the stored flow, which goes with its row."""
        still = base if self.velocity is None else base.given(None)
        return still.time_dependent or still.data_changes

    def together(self, base: Discretisation) -> list[list[int]]:
        """Rows that one time serves: those that begin at the same one where it matters, else all of them."""
        if not self.timed(base):
            return [list(range(len(self)))]
        same = torch.unique((self.begin / self.dt * 1e6).round(), return_inverse=True)[1]
        return [torch.nonzero(same == k)[:, 0].tolist() for k in range(int(same.max()) + 1)]

    def clock(self, base: Discretisation) -> float:
        """The time at which all pieces begin; 0 where it does not matter."""
        if not len(self) or not self.timed(base):
            return 0.0
        if float(self.begin.max() - self.begin.min()) > 1e-6 * self.dt:
            raise InputError("these pieces begin at different times, and the problem depends on the time: step them apart")
        return float(self.begin[0])

    def problem(self, base: Discretisation) -> Discretisation:
        """The problem with this batch's own flow."""
        return base if self.velocity is None else base.given(given_velocity(self.velocity, self.dt, self.clock(base)))
