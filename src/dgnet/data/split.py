"""Which training trajectories are kept for validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dgnet.errors import InputError


def hold_out(numbers: Sequence[int], count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Split trajectories into those for training and `count` for validation."""
    if not 0 <= count < len(numbers):
        raise InputError(f"{count} of {len(numbers)} training trajectories cannot be held out for validation")
    order = rng.permutation(np.asarray(numbers))
    return sorted(order[count:].tolist()), sorted(order[:count].tolist())
