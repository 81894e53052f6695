"""How far a rollout is from the training data: where and how strongly it is driven, how it starts, how long it lasts.

A rollout has a profile, a short vector of numbers in groups. Its distance from the training trajectories is that to the nearest
one, in units of their spread. Divided by the largest distance that a training trajectory has from the others, it widens bands
(`bands`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dgnet.data import Corpus
from dgnet.mesh import Mesh

GROUPS = ("start", "power", "places", "duration")
_BINS = 3  # along each axis, of the places that are driven
_FLOOR = 0.05  # smallest spread of a number, against the largest of its group
_MOST = 1000.0  # what was never driven in training is infinitely far away


class Profile:
    """Gathers the profile of one rollout, step by step. `memory` travels with checkpoints."""

    def __init__(self, mesh: Mesh, fields: int) -> None:
        points, size = mesh.points, mesh.dual_volumes()
        low, extent = points.min(0), np.ptp(points, axis=0)
        self.share = size / size.sum()
        self.moments = np.concatenate([np.ones((1, len(points))), ((points - low) / extent - 0.5).T])  # 1 and positions
        cell = np.minimum((_BINS * (points - low) / extent).astype(int), _BINS - 1)
        self.bin = np.ravel_multi_index(tuple(cell.T), (_BINS,) * mesh.dim)
        self.bins, self.fields = _BINS**mesh.dim, fields
        self.starts = np.zeros((len(self.moments) + 1, fields))
        self.totals = np.zeros((3 + self.bins, fields))  # sums over steps of total power, its largest, peak; of each bin
        self.upto = 0  # steps whose source is in

    def state(self, k: int, u: np.ndarray) -> None:
        """The state after k steps [N, F]: of the first, its mean, its first moments and its spread."""
        if k > 0:
            return
        mean = self.share @ u
        self.starts[0] = mean
        self.starts[1:-1] = (self.moments[1:] * self.share) @ (u - mean)
        self.starts[-1] = np.sqrt(self.share @ np.square(u - mean))

    def sources(self, first: int, f: np.ndarray) -> None:
        """Sources [n, N or P, F] of the steps from `first` on; what was seen before is not counted again."""
        f = np.abs(f[max(0, self.upto - first):, :len(self.share)].astype(np.float64))
        if not len(f):
            return
        power = np.einsum("n,tnf->tf", self.share, f)
        self.totals[0] += power.sum(0)
        self.totals[1] = np.maximum(self.totals[1], power.max(0))
        self.totals[2] = np.maximum(self.totals[2], f.max((0, 1)))
        for k in range(self.fields):
            self.totals[3:, k] += np.bincount(self.bin, self.share * f[..., k].sum(0), self.bins)
        self.upto += len(f)

    @property
    def memory(self) -> np.ndarray:
        return np.concatenate([[float(self.upto)], self.starts.ravel(), self.totals.ravel()])

    @memory.setter
    def memory(self, value: np.ndarray) -> None:
        self.upto = int(value[0])
        self.starts = value[1: 1 + self.starts.size].reshape(self.starts.shape).copy()
        self.totals = value[1 + self.starts.size:].reshape(self.totals.shape).copy()

    def groups(self, duration: float) -> list[np.ndarray]:
        """One vector for each of `GROUPS`."""
        steps = max(1, self.upto)
        power = np.concatenate([self.totals[:1] / steps, self.totals[1:3]])
        return [self.starts.ravel(), power.ravel(), (self.totals[3:] / steps).ravel(), np.array([duration])]


@dataclass(frozen=True, eq=False)
class Known:
    """Profiles of the training trajectories: `rows` [m, q], the spread of each number [q], the group of each [q].

    `reach`: the largest distance of one of them from all others; 0 for a single one, which says nothing about distances.
    """

    rows: np.ndarray
    spread: np.ndarray
    group: np.ndarray
    reach: float

    @classmethod
    def of(cls, profiles: list[list[np.ndarray]], size: float) -> Known:
        """From profiles, and the spread of the training states: what a start that is always the same is compared with."""
        rows = np.array([np.concatenate(p) for p in profiles])
        group = np.concatenate([np.full(len(part), k) for k, part in enumerate(profiles[0])])
        spread = rows.std(0)
        for k in range(len(GROUPS)):
            mine = group == k
            top = size if GROUPS[k] == "start" else float(np.abs(rows[:, mine]).max())
            spread[mine] = np.maximum(spread[mine], _FLOOR * max(top, float(spread[mine].max()), 1e-100))
        found = cls(rows, spread, group, 0.0)
        far = [found.nearest(row, np.delete(rows, k, 0))[0] for k, row in enumerate(rows)] if len(rows) > 1 else [0.0]
        return cls(rows, spread, group, max(far))

    def nearest(self, row: np.ndarray, others: np.ndarray) -> tuple[float, int]:
        """Distance to the nearest row, and the group that it is largest in."""
        square = ((others - row) / self.spread) ** 2
        each = np.stack([square[:, self.group == k].mean(1) for k in range(len(GROUPS))], 1)
        best = int(each.max(1).argmin())
        return float(np.sqrt(each[best].max())), int(each[best].argmax())

    def widening(self, profile: list[np.ndarray]) -> tuple[float, str]:
        """By how much bands are widened, 1 to 1000, and what is furthest away."""
        distance, group = self.nearest(np.concatenate(profile), self.rows)
        return (min(_MOST, max(1.0, distance / self.reach)) if self.reach > 0 else 1.0), GROUPS[group]

    def as_dict(self) -> dict[str, Any]:
        return {"rows": self.rows.tolist(), "spread": self.spread.tolist(), "group": self.group.tolist(), "reach": self.reach}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Known:
        return cls(np.array(found["rows"], dtype=np.float64), np.array(found["spread"], dtype=np.float64),
                   np.array(found["group"], dtype=np.int64), float(found["reach"]))


def profiles_of(data: Corpus, mesh: Mesh) -> list[list[np.ndarray]]:
    """Of trajectories in memory."""
    out = []
    for b in range(len(data)):
        one = Profile(mesh, data.state.shape[-1])
        one.state(0, data.state[b, 0].double().cpu().numpy())
        if data.source_average is not None:
            one.sources(0, data.source_average[b].cpu().numpy())
        out.append(one.groups(data.steps * data.dt))
    return out
