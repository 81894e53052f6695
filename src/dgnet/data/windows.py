"""Windows: sub-sequences of trajectories, the unit of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dgnet.errors import InputError


@dataclass(frozen=True)
class Windows:
    """All pieces of `length` steps of the given trajectories, from step `first` on, every `stride`-th."""

    numbers: tuple[int, ...]
    steps: int
    length: int
    stride: int = 1
    first: int = 0

    def __post_init__(self) -> None:
        if self.length < 1 or self.stride < 1 or self.first < 0:
            raise InputError("a window needs a positive length and stride, and a first step that is not negative")
        if self.first + self.length > self.steps:
            raise InputError(f"a window of {self.length} steps from step {self.first} does not fit {self.steps} steps")

    @property
    def starts(self) -> np.ndarray:
        return np.arange(self.first, self.steps - self.length + 1, self.stride)

    def __len__(self) -> int:
        return len(self.numbers) * len(self.starts)

    def pairs(self) -> np.ndarray:
        """(trajectory, start) of every window [W, 2]."""
        numbers, starts = np.meshgrid(np.asarray(self.numbers, dtype=np.int64), self.starts, indexing="ij")
        return np.stack([numbers.ravel(), starts.ravel()], axis=1)

    def epoch(self, size: int, rng: np.random.Generator) -> Iterator[tuple[list[int], list[int]]]:
        """Batches (trajectories, starts) that visit every window once, in random order; the last one may be smaller."""
        pairs = rng.permutation(self.pairs())
        for at in range(0, len(pairs), size):
            part = pairs[at:at + size]
            yield part[:, 0].tolist(), part[:, 1].tolist()

    def draw(self, size: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """One random batch, with replacement."""
        part = self.pairs()[rng.integers(0, len(self), size)]
        return part[:, 0].tolist(), part[:, 1].tolist()


def hold_out(numbers: Sequence[int], count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Split trajectories into those for training and `count` for validation."""
    if not 0 <= count < len(numbers):
        raise InputError(f"{count} of {len(numbers)} training trajectories cannot be held out for validation")
    order = rng.permutation(np.asarray(numbers))
    return sorted(order[count:].tolist()), sorted(order[:count].tolist())
