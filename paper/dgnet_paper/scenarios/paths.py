"""Paths of moving spots: where a laser is at time t, and whether it is on.

Every path is a closed formula in t (nothing is integrated or remembered), so any times may be asked in any order. A
path object holds n paths of one kind; its tensors have n as their first axis. `Paths` mixes kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from scipy.interpolate import CubicSpline

Tensor = torch.Tensor

RAMP = 0.5
"""Seconds over which a spot is switched on or off (a cubic ramp; a jump would spoil every quadrature in time)."""


def _tensor(value: object) -> Tensor:
    return torch.as_tensor(np.asarray(value, dtype=np.float64))


class _Always:
    """A path that is never off."""

    def power(self, t: Tensor) -> Tensor:
        first: Tensor = getattr(self, fields(self)[0].name)  # type: ignore[arg-type]
        return torch.ones(len(first), len(t), dtype=t.dtype, device=t.device)


class _Timed:
    """A path that is on from `start` [n] for its `duration` [n]."""

    start: Tensor
    duration: Any

    def power(self, t: Tensor) -> Tensor:
        return window(t, self.start, self.start + self.duration)


@dataclass(frozen=True, eq=False)
class Orbit(_Always):
    """centre + radius (cos(omega t + phase) a + sin(omega t + phase) b) in the plane of unit vectors a, b."""

    centre: Tensor  # [n, d]
    a: Tensor  # [n, d]
    b: Tensor  # [n, d]
    radius: Tensor  # [n]
    omega: Tensor  # [n]
    phase: Tensor  # [n]

    def position(self, t: Tensor) -> Tensor:
        angle = (self.omega[:, None] * t + self.phase[:, None])[..., None]
        return self.centre[:, None] + self.radius[:, None, None] * (
            torch.cos(angle) * self.a[:, None] + torch.sin(angle) * self.b[:, None])


@dataclass(frozen=True, eq=False)
class Lissajous(_Always):
    """centre + amplitude sin(omega t + phase), per axis."""

    centre: Tensor  # [n, d]
    amplitude: Tensor  # [n, d]
    omega: Tensor  # [n, d]
    phase: Tensor  # [n, d]

    def position(self, t: Tensor) -> Tensor:
        angle = self.omega[:, None] * t[:, None] + self.phase[:, None]
        return self.centre[:, None] + self.amplitude[:, None] * torch.sin(angle)


@dataclass(frozen=True, eq=False)
class Polyline(_Timed):
    """Through `vertices` at constant speed from time `start`, off before and after: waypoints and rasters."""

    vertices: Tensor  # [n, V, d]; shorter ones repeat their last vertex
    speed: Tensor  # [n]
    start: Tensor  # [n]

    @property
    def _lengths(self) -> Tensor:
        return (self.vertices[:, 1:] - self.vertices[:, :-1]).norm(dim=2)

    @property
    def duration(self) -> Tensor:  # type: ignore[override]
        return self._lengths.sum(1) / self.speed

    def position(self, t: Tensor) -> Tensor:
        lengths = self._lengths
        reached = torch.cat([torch.zeros_like(lengths[:, :1]), lengths.cumsum(1)], dim=1)  # [n, V]
        way = ((t - self.start[:, None]) * self.speed[:, None]).clamp_min(0)
        way = torch.minimum(way, reached[:, -1:])  # [n, T]
        leg = torch.searchsorted(reached.contiguous(), way.contiguous(), right=True).sub(1)
        leg = leg.clamp(0, lengths.shape[1] - 1)
        share = (way - reached.gather(1, leg)) / lengths.gather(1, leg).clamp_min(1e-300)
        index = leg[..., None].expand(-1, -1, self.vertices.shape[2])
        first, second = self.vertices.gather(1, index), self.vertices.gather(1, index + 1)
        return first + share.clamp(0, 1)[..., None] * (second - first)


@dataclass(frozen=True, eq=False)
class Spline(_Timed):
    """The C2 cubic through points reached at equal intervals from `start` over `duration`, off before and after."""

    pieces: Tensor  # [n, V, 4, d]: powers of the local parameter, highest first; unused pieces repeat the last one
    count: Tensor  # [n], pieces in use
    start: Tensor  # [n]
    duration: Tensor  # [n]

    def position(self, t: Tensor) -> Tensor:
        s = ((t - self.start[:, None]) / self.duration[:, None]).clamp(0, 1) * self.count[:, None]
        piece = torch.minimum(s.floor(), self.count[:, None] - 1)
        local = (s - piece)[..., None]
        index = piece.long()[..., None, None].expand(-1, -1, 4, self.pieces.shape[3])
        c = self.pieces.gather(1, index)  # [n, T, 4, d]
        return ((c[:, :, 0] * local + c[:, :, 1]) * local + c[:, :, 2]) * local + c[:, :, 3]


@dataclass(frozen=True, eq=False)
class Billiard(_Always):
    """Straight flight reflected at the sides of a box, as a triangle wave per axis."""

    low: Tensor  # [n, d]
    high: Tensor  # [n, d]
    first: Tensor  # [n, d]
    velocity: Tensor  # [n, d]

    def position(self, t: Tensor) -> Tensor:
        width = (self.high - self.low)[:, None]
        free = (self.first - self.low)[:, None] + self.velocity[:, None] * t[:, None]
        return self.low[:, None] + width - (torch.remainder(free, 2 * width) - width).abs()


Path = Orbit | Lissajous | Polyline | Spline | Billiard


def window(t: Tensor, on: Tensor, off: Tensor, ramp: Tensor | float = RAMP) -> Tensor:
    """1 between on and off [n], cubic ramps of `ramp` seconds inside that interval, 0 outside: [n, T]."""
    length = torch.as_tensor(ramp, dtype=t.dtype, device=t.device).expand(len(on))[:, None]

    def step(s: Tensor) -> Tensor:
        s = s.clamp(0, 1)
        return s * s * (3 - 2 * s)

    return step((t - on[:, None]) / length) * step((off[:, None] - t) / length)


# ---------------------------------------------------------------------- single paths


def orbit(centre: Sequence[float], radius: float, omega: float, phase: float, a: Sequence[float] = (1.0, 0.0),
          b: Sequence[float] = (0.0, 1.0)) -> Orbit:
    return Orbit(_tensor([centre]), _tensor([a]), _tensor([b]), _tensor([radius]), _tensor([omega]), _tensor([phase]))


def lissajous(centre: np.ndarray, amplitude: np.ndarray, omega: np.ndarray, phase: np.ndarray) -> Lissajous:
    return Lissajous(_tensor([centre]), _tensor([amplitude]), _tensor([omega]), _tensor([phase]))


def waypoint(points: np.ndarray, speed: float, start: float = 0.0) -> Polyline:
    """Straight legs through points [V, d]."""
    return Polyline(_tensor([points]), _tensor([speed]), _tensor([start]))


def raster(corner: np.ndarray, across: np.ndarray, up: np.ndarray, lines: int, speed: float,
           start: float = 0.0) -> Polyline:
    """`lines` strokes along the vector `across`, to and fro, stacked along the vector `up`."""
    level = np.arange(lines)[:, None, None] / max(1, lines - 1) * up
    turn = np.array([[0.0, 1.0], [1.0, 0.0]])[np.arange(lines) % 2][:, :, None] * across
    return waypoint((corner + level + turn).reshape(-1, len(corner)), speed, start)


def spline(points: np.ndarray, duration: float, start: float = 0.0) -> Spline:
    """Not-a-knot cubic through points [V, d]."""
    n = len(points) - 1
    pieces = CubicSpline(np.arange(n + 1), points).c.transpose(1, 0, 2)  # [V-1, 4, d]
    return Spline(_tensor([pieces]), _tensor([n]), _tensor([start]), _tensor([duration]))


def billiard(low: Sequence[float], high: Sequence[float], first: np.ndarray, velocity: np.ndarray) -> Billiard:
    return Billiard(_tensor([low]), _tensor([high]), _tensor([first]), _tensor([velocity]))


# ---------------------------------------------------------------------- many paths


class Paths:
    """Any number of single paths of any kinds, evaluated kind by kind. Order is kept."""

    def __init__(self, singles: Sequence[Path]) -> None:
        self.count = len(singles)
        self.groups: list[tuple[Tensor, Path]] = []
        for kind in dict.fromkeys(type(p) for p in singles):
            index = [i for i, p in enumerate(singles) if type(p) is kind]
            self.groups.append((torch.tensor(index), _joined([singles[i] for i in index])))

    def to(self, device: torch.device | str) -> Paths:
        moved = object.__new__(Paths)
        moved.count = self.count
        moved.groups = [(index.to(device), type(path)(*[getattr(path, f.name).to(device) for f in fields(path)]))
                        for index, path in self.groups]
        return moved

    def position(self, t: Tensor) -> Tensor:
        """[n, T, d] at times t [T]."""
        return self._gather([path.position(t) for _, path in self.groups])

    def power(self, t: Tensor) -> Tensor:
        """On/off factor in [0, 1] [n, T]."""
        return self._gather([path.power(t) for _, path in self.groups])

    def _gather(self, parts: list[Tensor]) -> Tensor:
        out = parts[0].new_empty((self.count, *parts[0].shape[1:]))
        for (index, _), part in zip(self.groups, parts):
            out[index] = part
        return out


def _joined(singles: Sequence[Path]) -> Path:
    """Concatenate paths of one kind; along the second axis the shorter ones repeat their last entry."""
    columns = []
    for f in fields(singles[0]):
        parts = [getattr(p, f.name) for p in singles]
        longest = max(p.shape[1] for p in parts) if parts[0].dim() > 1 else 0
        columns.append(torch.cat([p if p.dim() < 2 or p.shape[1] == longest else
                                  torch.cat([p, p[:, -1:].expand(-1, longest - p.shape[1], *p.shape[2:])], dim=1)
                                  for p in parts]))
    return type(singles[0])(*columns)
