"""Follows a rollout as it is made."""

from __future__ import annotations

import math

import numpy as np

from dgnet.data import Dataset
from dgnet.errors import SolveError
from dgnet.problems.case import Case
from dgnet.problems.sight import Bounds
from dgnet.stepping import Balance
from dgnet.trust.distance import Profile
from dgnet.trust.training_range import Guard

_BLOCK = 1 << 22  # bytes of stored states that are read at once


class Watch:
    """Follows a rollout: range of every field, finite numbers, the training range, the maximum principle, the error against a
    stored truth; its profile, where bands need it."""

    def __init__(self, case: Case, stored: Dataset | None, number: int, steps: int, guard: Guard | None = None,
                 ratio: float = 1.0, profile: Profile | None = None, bounds: Bounds | None = None) -> None:
        self.profile, self.bounds = profile, bounds
        self.ratio = ratio  # step of the rollout over the stored step; states are compared at common times
        self.guard, self.stride = guard, max(1, steps // 200)  # gradients are looked at 200 times
        width, self.nodes = len(case.pde.fields), case.mesh.n_nodes
        self.low, self.high = np.full(width, math.inf), np.full(width, -math.inf)
        self.offset, self.stored, self.number, self.steps = np.array(case.offsets), stored, number, steps
        self.block = max(1, _BLOCK // (4 * case.mesh.n_nodes * width))
        self.first, self.held = 0, np.empty((0, case.mesh.n_nodes, width), dtype=np.float32)
        self.error = self.size = 0.0
        self.balance: Balance | None = None

    def balanced(self) -> dict[str, dict[str, float]] | None:
        """What entered, left and is stored of each field; None where that was not followed."""
        if self.balance is None:
            return None
        return {name: found.as_dict() for name, found in zip(self.balance.problem.pde.fields, self.balance.totals())}

    def add(self, k: int, u: np.ndarray) -> None:
        if not np.isfinite(u).all():
            raise SolveError(f"the rollout is no longer finite at step {k}")
        if k == 0 and self.profile is not None:
            self.profile.start(u)
        low, high = u.min(axis=0), u.max(axis=0)
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        if self.bounds is not None:
            self.bounds.state(k, u)
        if self.guard is not None:
            self.guard.states(k, low[None], high[None])
            if k % self.stride == 0 or k == self.steps:
                self.guard.gradients(k, u[None])
        place = k * self.ratio
        k = round(place)
        if self.stored is None or k > self.stored.steps or abs(place - k) > 1e-6 * max(1, k):
            return
        if not self.first <= k < self.first + len(self.held):
            self.first = min(k, self.stored.steps - 1)  # a window has at least one step, that is two states
            self.held = self.stored.read(self.number, self.first, min(self.block, self.stored.steps - self.first), only=()).state
        true = self.held[k - self.first].astype(np.float64)
        self.error += float(np.square(u - true).sum())
        self.size += float(np.square(true - self.offset).sum())

    def source(self, first: int, rows: np.ndarray) -> None:
        """Of steps from `first` on [n, N or P, F]."""
        if self.bounds is not None:
            self.bounds.sources(first, rows)
        rows = rows[:, :self.nodes]
        if self.profile is not None:
            self.profile.source(first, rows)
        if self.guard is not None:
            self.guard.sources(first, rows)

    def memory(self) -> dict[str, np.ndarray]:
        """Numbers that a resumed rollout needs from its first part."""
        return {"low": self.low, "high": self.high, "sums": np.array([self.error, self.size]),
                "guard": np.empty(0) if self.guard is None else self.guard.memory,
                "profile": np.empty(0) if self.profile is None else self.profile.memory,
                "sight": np.empty(0) if self.bounds is None else self.bounds.memory}

    def restore(self, left: dict[str, np.ndarray]) -> None:
        self.low, self.high = left["low"], left["high"]
        self.error, self.size = (float(v) for v in left["sums"])
        if self.guard is not None and left["guard"].shape == self.guard.memory.shape:
            self.guard.memory = left["guard"]
        if self.bounds is not None and left.get("sight", np.empty(0)).shape == self.bounds.memory.shape:
            self.bounds.memory = left["sight"]
        if self.profile is not None and left["profile"].shape == self.profile.memory.shape:
            self.profile.memory = left["profile"]

    @property
    def rne(self) -> float | None:
        if self.stored is None or self.steps * self.ratio > self.stored.steps * (1 + 1e-9):
            return None
        return math.sqrt(self.error / self.size) if self.size > 0 else None
