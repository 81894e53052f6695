"""Observers of a rollout: each is shown every state and source, and remembers what a resumed rollout needs of it.

`Guard` (the range of the training data), `Profile` (the distance from it) and `Bounds` (the maximum principle) are others.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch

from dgnet.data import Dataset
from dgnet.errors import SolveError
from dgnet.problems.case import Case
from dgnet.stepping import Balance

_BLOCK = 1 << 22  # bytes of stored states that are read at once


class Observer(Protocol):
    """Follows a rollout. `memory` travels with its checkpoints."""

    memory: np.ndarray

    def sources(self, first: int, rows: np.ndarray) -> None:
        """Sources [n, N or P, F] of the steps from `first` on, before their states."""

    def state(self, k: int, u: np.ndarray) -> None:
        """The state after k steps [N, F]."""


class Range:
    """Lowest and highest value of every field; refuses what is not finite."""

    def __init__(self, fields: int) -> None:
        self.memory = np.stack([np.full(fields, math.inf), np.full(fields, -math.inf)])

    def sources(self, first: int, rows: np.ndarray) -> None:
        pass

    def state(self, k: int, u: np.ndarray) -> None:
        if not np.isfinite(u).all():
            raise SolveError(f"the rollout is no longer finite at step {k}")
        self.memory = np.stack([np.minimum(self.memory[0], u.min(axis=0)), np.maximum(self.memory[1], u.max(axis=0))])


class Truth:
    """The error against a stored trajectory, at common times: a step is `ratio` stored ones."""

    def __init__(self, case: Case, data: Dataset, number: int, steps: int, ratio: float) -> None:
        self.data, self.number, self.steps, self.ratio, self.offset = data, number, steps, ratio, np.array(case.offsets)
        self.block = max(1, _BLOCK // (4 * case.mesh.n_nodes * len(self.offset)))
        self.first, self.held = 0, np.empty((0, case.mesh.n_nodes, len(self.offset)), dtype=np.float32)
        self.memory = np.zeros(2)  # sums of squares: of the error, of the truth

    def sources(self, first: int, rows: np.ndarray) -> None:
        pass

    def state(self, k: int, u: np.ndarray) -> None:
        place = k * self.ratio
        k = round(place)
        if k > self.data.steps or abs(place - k) > 1e-6 * max(1, k):
            return
        if not self.first <= k < self.first + len(self.held):
            self.first = min(k, self.data.steps - 1)  # a window has at least one step, that is two states
            self.held = self.data.read(self.number, self.first, min(self.block, self.data.steps - self.first), only=()).state
        true = self.held[k - self.first].astype(np.float64)
        self.memory = self.memory + np.array([np.square(u - true).sum(), np.square(true - self.offset).sum()])

    @property
    def rne(self) -> float | None:
        """None where the rollout is longer than what is stored."""
        if self.steps * self.ratio > self.data.steps * (1 + 1e-9) or not self.memory[1] > 0:
            return None
        return math.sqrt(self.memory[0] / self.memory[1])


class Content:
    """What entered, left and is stored of each field; a part of a rollout has no balance."""

    def __init__(self, balance: Balance) -> None:
        self.balance, self.memory = balance, np.empty(0)
        self._rows: dict[int, np.ndarray] = {}

    def sources(self, first: int, rows: np.ndarray) -> None:
        self._rows |= {first + k: row for k, row in enumerate(rows[:, :self.balance.problem.mesh.n_nodes])}

    def state(self, k: int, u: np.ndarray) -> None:
        self.balance.state(torch.from_numpy(u))
        row = self._rows.pop(k - 1, None)
        if row is not None:
            self.balance.source(torch.from_numpy(row))

    def totals(self) -> dict[str, dict[str, float]]:
        return {name: found.as_dict() for name, found in zip(self.balance.problem.pde.fields, self.balance.totals())}
