"""One trajectory as NumPy arrays, and a batch of trajectories as tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError

SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """States at the nodes, with source and flow; axes [time, node, field].

    `source` holds f at the stored times, `source_average` its mean over each step (the Duhamel term); both are None
    where the equation has no source. `velocity` is the given flow where it changes in time. Instead of its own velocity
    a trajectory may name its first row (`velocity_start`) in the record that a file shares among its trajectories.
    """

    state: np.ndarray  # [T+1, N, F]
    time: np.ndarray  # [T+1]
    source: np.ndarray | None = None  # [T+1, N, F]
    source_average: np.ndarray | None = None  # [T, N, F]
    velocity: np.ndarray | None = None  # [T+1, N, d]
    velocity_start: int | None = None
    seed: int = 0
    split: str = "train"
    index: int = 0
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.state.ndim != 3:
            raise InputError(f"a state has axes [time, node, field], got shape {list(self.state.shape)}")
        if self.split not in SPLITS:
            raise InputError(f"a trajectory belongs to the split train or test, got '{self.split}'")
        times, nodes, width = self.state.shape
        wanted = {"time": (times,), "source": (times, nodes, width), "source_average": (times - 1, nodes, width)}
        for name, shape in wanted.items():
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise InputError(f"{name} has shape {list(value.shape)}, expected {list(shape)}")
        if self.velocity is not None and (self.velocity.ndim != 3 or self.velocity.shape[:2] != (times, nodes)):
            raise InputError(f"velocity has shape {list(self.velocity.shape)}, expected [{times}, {nodes}, d]")

    @property
    def steps(self) -> int:
        return len(self.state) - 1


@dataclass(frozen=True, eq=False)
class Batch:
    """Equally long pieces of trajectories as tensors, axes [batch, time, node, field]."""

    state: torch.Tensor  # [B, T+1, N, F]
    time: torch.Tensor  # [B, T+1], float64
    source: torch.Tensor | None = None  # [B, T+1, N, F]
    source_average: torch.Tensor | None = None  # [B, T, N, F]
    velocity: torch.Tensor | None = None  # [B, T+1, N, d]

    @property
    def steps(self) -> int:
        return self.state.shape[1] - 1

    def __len__(self) -> int:
        return self.state.shape[0]

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Batch:
        """The same on another device or in another precision; times stay float64."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {name: v if v is None else v.to(device=device, dtype=dtype)
                                 for name, v in values.items()}
        moved["time"] = self.time.to(device=device)
        return Batch(**moved)


def collate(parts: list[Trajectory], device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Batch:
    """Stack equally long trajectories. One without a source beside others that have one gets a source of zeros."""
    def stack(name: str, kind: torch.dtype = dtype) -> torch.Tensor | None:
        values = [getattr(p, name) for p in parts]
        given = [v for v in values if v is not None]
        if not given:
            return None
        if len(given) < len(values):
            if name == "velocity":
                p = parts[next(i for i, v in enumerate(values) if v is None)]
                raise InputError(f"{p.split} trajectory {p.index} has no velocity, but others of the batch have one")
            values = [np.zeros_like(given[0]) if v is None else v for v in values]
        return torch.from_numpy(np.stack(values)).to(device=device, dtype=kind)

    state, time = stack("state"), stack("time", torch.float64)
    assert state is not None and time is not None
    return Batch(state, time, stack("source"), stack("source_average"), stack("velocity"))
