"""The flow of a channel as a loop that ships with the package: enough to look at, not for training or scores.

A stretch of a developed flow on the paper's mesh (`ChannelFlow`, spun up on a coarser mesh), closed by fading its end into its
begin: sums of flows without divergence have none. What is stored is the mean and the strongest modes of its singular value
decomposition, in 16 and 8 bits, with their strengths over time.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import torch

Tensor = torch.Tensor


class LoopedFlow:
    """v(t) [1, N, 2] from one turn of velocities [T, N, 2] at times 0, dt, ..., linear in between."""

    def __init__(self, rows: Tensor, dt: float) -> None:
        self.rows, self.dt = rows, dt

    @property
    def period(self) -> float:
        return len(self.rows) * self.dt

    def __call__(self, t: float) -> Tensor:
        place = (t / self.dt) % len(self.rows)
        k = min(int(place), len(self.rows) - 1)
        return torch.lerp(self.rows[k], self.rows[(k + 1) % len(self.rows)], place - k)[None]


def ships(name: str) -> bool:
    """Whether there is a loop of this scenario's flow."""
    return _file(name).is_file()


def looped_flow(name: str) -> LoopedFlow:
    """The flow at the nodes of a scenario's mesh of the paper's size, float32."""
    with as_file(_file(name)) as path:
        return LoopedFlow(*read_loop(path))


def _file(name: str) -> Traversable:
    return files("dgnet_paper.scenarios") / "files" / f"flow-{name}.npz"


def read_loop(path: Path) -> tuple[Tensor, float]:
    """Velocities [T, N, 2] of one turn, float32, and the time between them."""
    with np.load(path, allow_pickle=False) as file:
        flat = file["strengths"] @ file["shapes"].astype(np.float32) + (file["peak"] / 32767 * file["mean"]).astype(np.float32)
        return torch.from_numpy(flat.reshape(len(flat), -1, 2)), float(file["dt"])
