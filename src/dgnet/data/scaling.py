"""Scaling: mean and spread of every field, from training trajectories alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dgnet.data.store import Dataset
from dgnet.errors import InputError


@dataclass(frozen=True)
class Scaling:
    """Per field: normalised = (u - mean) / std. A field that never varies has std 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def scaling_of(arrays: Iterable[np.ndarray]) -> Scaling:
    """Statistics over all but the last axis of several arrays [..., F], in one pass (Chan's update)."""
    count, mean, square = 0, np.zeros(1), np.zeros(1)
    for array in arrays:
        values = np.asarray(array, dtype=np.float64).reshape(-1, array.shape[-1])
        n, centre = len(values), values.mean(axis=0)
        delta, total = centre - mean, count + n
        square = square + ((values - centre) ** 2).sum(axis=0) + delta**2 * (count * n / total)
        mean, count = mean + delta * (n / total), total
    if count == 0:
        raise InputError("scaling needs at least one training trajectory")
    std = np.sqrt(square / count)
    std = np.where(std > 1e-12 * np.maximum(1e-30, np.abs(mean)), std, 1.0)
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()))


def state_scaling(dataset: Dataset, numbers: Iterable[int] | None = None) -> Scaling:
    """Scaling of the states of the training split (or of the given trajectories)."""
    chosen = dataset.of("train") if numbers is None else list(numbers)
    return scaling_of(dataset.read(i, only=()).state for i in chosen)
