"""Moving Gaussian spots as a batched source f(x, t) = sum over spots of P(t) exp(-|x - p(t)|^2 / (2 r^2))."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgnet_paper.scenarios.paths import Path, Paths, window

Tensor = torch.Tensor


ALWAYS = (-1e9, 1e9, 1.0)


@dataclass(frozen=True)
class Spot:
    """One spot: kind and path, radius r, peak P, and a window (on, off, ramp) in seconds besides that of its path."""

    kind: str
    path: Path
    radius: float
    peak: float
    window: tuple[float, float, float] = ALWAYS


class Spots:
    """Spots of a batch of trajectories, the same number S in each; the source protocol, one field."""

    def __init__(self, batch: Sequence[Sequence[Spot]]) -> None:
        self.shape = (len(batch), len(batch[0]))
        flat = [spot for spots in batch for spot in spots]
        self.paths = Paths([spot.path for spot in flat])
        self.radius = torch.tensor([s.radius for s in flat], dtype=torch.float64)
        self.peak = torch.tensor([s.peak for s in flat], dtype=torch.float64)
        self.window = torch.tensor([s.window for s in flat], dtype=torch.float64)

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """[B, T, N, 1]. Spots are added one by one, so that memory stays at two results."""
        if self.radius.device != x.device:  # move once, where the work is
            self.paths = self.paths.to(x.device)
            self.radius, self.peak, self.window = (v.to(x.device) for v in (self.radius, self.peak, self.window))
        times = t.to(device=x.device, dtype=torch.float64)
        B, S = self.shape
        where = self.paths.position(times).reshape(B, S, len(t), -1).to(x.dtype)
        on, off, ramp = self.window.T
        power = self.peak[:, None] * self.paths.power(times) * window(times, on, off, ramp)
        power = power.reshape(B, S, len(t)).to(x.dtype)
        scale = (-0.5 / self.radius**2).reshape(B, S).to(x.dtype)
        total = x.new_zeros(B, len(t), len(x))
        for s in range(S):
            centre = where[:, s]  # [B, T, d]
            distance = (x[:, 0] - centre[..., 0, None]) ** 2
            for axis in range(1, x.shape[1]):
                distance += (x[:, axis] - centre[..., axis, None]) ** 2
            total += distance.mul_(scale[:, s, None, None]).exp_().mul_(power[:, s, :, None])
        return total[..., None]
