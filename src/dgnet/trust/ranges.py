"""The range of the data that a run was trained on, and who leaves it.

A surrogate can be trusted near its data. `training_range` measures them (states, gradients, sources), `Guard` follows a rollout and
says in one sentence where it leaves that range.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.files import write_json
from dgnet.mesh import Mesh
from dgnet.problems import Units
from dgnet.training import Run, Simulator

Tensor = torch.Tensor

MARGIN = 0.02  # of its width that a range may be left without a word
STEEPER = 0.1  # by how much gradients and concentrations may exceed those of the training data
_ROWS = 1 << 22  # entries looked at in one piece


# ---------------------------------------------------------------------- what the training data were


@dataclass(frozen=True)
class Span:
    """Values of one field."""

    low: float
    high: float
    mean: float
    std: float

    @property
    def width(self) -> float:
        return max(self.high - self.low, 1e-6 * max(abs(self.low), abs(self.high)), 1e-300)


@dataclass(frozen=True)
class TrainingRange:
    """Per field: states, steepest gradient, step-averaged sources and how concentrated these were.

    The extent of a source is sqrt(integral of f^2 / integral of |grad f|^2) where it is on: r for Gaussian spots of radius r in
    the plane, however many there are.
    """

    fields: tuple[str, ...]
    states: tuple[Span, ...]
    gradients: tuple[float, ...]
    sources: tuple[Span, ...]  # empty without a source
    extents: tuple[tuple[float, float], ...]  # smallest and largest; infinite and zero where it was never on
    trajectories: int
    steps: int

    def as_dict(self) -> dict[str, Any]:
        rows = {}
        for i, name in enumerate(self.fields):
            rows[name] = {"state": asdict(self.states[i]), "gradient": self.gradients[i]}
            if self.sources:
                low, high = self.extents[i]
                on = high > 0
                rows[name] |= {"source": asdict(self.sources[i]), "extent": [low, high] if on else None}
        return {"trajectories": self.trajectories, "steps": self.steps, "fields": rows, "version": __version__}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> TrainingRange:
        rows = found["fields"].values()
        driven = all("source" in row for row in rows)
        return cls(tuple(found["fields"]), tuple(Span(**row["state"]) for row in rows),
                   tuple(float(row["gradient"]) for row in rows), tuple(Span(**row["source"]) for row in rows) if driven else (),
                   tuple(_extent(row["extent"]) for row in rows) if driven else (), int(found["trajectories"]), int(found["steps"]))


def _extent(value: list[float] | None) -> tuple[float, float]:
    return (math.inf, 0.0) if value is None else (float(value[0]), float(value[1]))


def slopes(mesh: Mesh, u: np.ndarray) -> np.ndarray:
    """|grad u|^2 in the cells of states [..., N, F]: [..., K, F]."""
    slope = np.einsum("kid,...kif->...kdf", mesh.gradients, u[..., mesh.cells, :], optimize=True)
    return np.square(slope).sum(-2)


def extents(mesh: Mesh, f: np.ndarray) -> np.ndarray:
    """sqrt(integral of f^2 / integral of |grad f|^2) of sources [..., N, F]: [..., F]; not a number where f is zero or uniform."""
    square = np.einsum("n,...nf->...f", mesh.dual_volumes(), np.square(f))
    rough = np.einsum("k,...kf->...f", mesh.volumes, slopes(mesh, f))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((square > 0) & (rough > 0), np.sqrt(square / rough), np.nan)


class _Moments:
    """Running minimum, maximum, mean and standard deviation of fields [..., F]."""

    def __init__(self, width: int) -> None:
        self.low, self.high = np.full(width, math.inf), np.full(width, -math.inf)
        self.sum, self.square, self.count = np.zeros(width), np.zeros(width), 0
        self.shift = np.zeros(width)

    def add(self, rows: np.ndarray) -> None:
        flat = rows.reshape(-1, rows.shape[-1]).astype(np.float64)
        if not self.count:
            self.shift = flat.mean(0)  # sums of squares of 300 K would lose the fluctuation
        self.low, self.high = np.minimum(self.low, flat.min(0)), np.maximum(self.high, flat.max(0))
        self.sum += (flat - self.shift).sum(0)
        self.square += np.square(flat - self.shift).sum(0)
        self.count += len(flat)

    def spans(self) -> tuple[Span, ...]:
        mean = self.sum / self.count
        std = np.sqrt(np.maximum(self.square / self.count - mean**2, 0.0))
        return tuple(Span(float(a), float(b), float(c), float(d))
                     for a, b, c, d in zip(self.low, self.high, mean + self.shift, std))


def measure_range(data: Dataset, numbers: Sequence[int]) -> TrainingRange:
    """Read trajectories of a data set piece by piece."""
    mesh, width = data.mesh, len(data.fields)
    states, sources = _Moments(width), _Moments(width)
    slope, smallest, largest = np.zeros(width), np.full(width, math.inf), np.zeros(width)
    rows = max(1, _ROWS // (mesh.n_cells * (mesh.dim + 1) * width))
    driven = data.has_source
    for number in numbers:
        for start in range(0, data.steps, rows):
            part = data.read(number, start, min(rows, data.steps - start), only=("source_average",) if driven else ())
            states.add(part.state)
            slope = np.maximum(slope, np.sqrt(slopes(mesh, part.state.astype(np.float64)).max((0, 1))))
            if part.source_average is not None:
                f = part.source_average.astype(np.float64)
                sources.add(f)
                extent = extents(mesh, f)  # of what is nearly off, too: the smallest of all is what a warning compares with
                smallest = np.fmin(smallest, np.fmin.reduce(extent, axis=0, initial=math.inf))
                largest = np.fmax(largest, np.fmax.reduce(extent, axis=0, initial=0.0))
    found = sources.spans() if driven else ()
    return TrainingRange(data.fields, states.spans(), tuple(map(float, slope)), found,
                         tuple((float(a), float(b)) for a, b in zip(smallest, largest)) if driven else (), len(numbers), data.steps)


def training_range(run: Simulator, keep: bool = True) -> TrainingRange | None:
    """RUN/range.json; where it is missing it is measured from the run's data set and kept. None if that is missing as well, and of
    a simulator that was not trained."""
    if not isinstance(run, Run):
        return None
    path = run.folder / "range.json"
    if path.exists():
        try:
            return TrainingRange.from_dict(json.loads(path.read_text()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged; remove it, and it is made again from the data set") from error
    if not run.data.is_file():
        return None
    with Dataset(run.data) as data:
        found = measure_range(data, data.of("train")[: run.settings.trajectories or None])
    if keep:
        write_json(path, found.as_dict())
    return found


# ---------------------------------------------------------------------- who leaves it


_KINDS = ("low", "high", "gradient", "source low", "source high", "extent")


class Guard:
    """Follows a rollout and remembers where it left the range of the training data, and how far it went.

    `memory` [kinds, F, 2] holds the most extreme value and the first step beyond the range; it travels with checkpoints. Of `steps`
    states shown one by one (`state`), gradients are looked at about 200 times.
    """

    def __init__(self, known: TrainingRange, mesh: Mesh, dt: float, steps: int = 0) -> None:
        self.known, self.mesh, self.dt, self.steps = known, mesh, dt, steps
        self.memory = np.full((len(_KINDS), len(known.fields), 2), np.nan)
        self._limits: dict[str, np.ndarray] = {
            "low": np.array([s.low - MARGIN * s.width for s in known.states]),
            "high": np.array([s.high + MARGIN * s.width for s in known.states]),
            "gradient": (1 + STEEPER) * np.array(known.gradients)}
        if known.sources:
            self._limits |= {"source low": np.array([s.low - MARGIN * s.width for s in known.sources]),
                             "source high": np.array([s.high + MARGIN * s.width for s in known.sources]),
                             "extent": np.array([low for low, _ in known.extents]) / (1 + STEEPER)}

    def state(self, k: int, u: np.ndarray) -> None:
        """The state after k steps [N, F]."""
        self.states(k, u.min(axis=0)[None], u.max(axis=0)[None])
        if k % max(1, self.steps // 200) == 0 or k == self.steps:
            self.gradients(k, u[None])

    def states(self, first: int, low: np.ndarray, high: np.ndarray) -> None:
        """Extremes over the nodes [n, F] of states from step `first` on."""
        if (low >= self._limits["low"]).all() and (high <= self._limits["high"]).all():
            return  # the usual case, in every step of a rollout
        self._note("low", first, low, -1)
        self._note("high", first, high, 1)

    def gradients(self, first: int, u: np.ndarray) -> None:
        """States [n, N, F] from step `first` on."""
        self._note("gradient", first, np.sqrt(slopes(self.mesh, u.astype(np.float64)).max(1)), 1)

    def sources(self, first: int, f: np.ndarray) -> None:
        """Step-averaged sources [n, N or P, F] of the steps from `first` on."""
        f = f[:, :self.mesh.n_nodes]
        if not self.known.sources:
            self._limits.setdefault("source high", np.zeros(len(self.known.fields)))
            self._note("source high", first, np.abs(f).max(1).astype(np.float64), 1)
            return
        self._note("source low", first, f.min(1).astype(np.float64), -1)
        self._note("source high", first, f.max(1).astype(np.float64), 1)
        rows = max(1, _ROWS // (self.mesh.n_cells * (self.mesh.dim + 1) * f.shape[2]))
        extent = np.concatenate([extents(self.mesh, f[k:k + rows].astype(np.float64)) for k in range(0, len(f), rows)])
        # a source that is nearly off has an extent without meaning: only what is as strong as in training counts
        strong = np.abs(f).max(1) >= 0.1 * np.array([max(abs(s.low), abs(s.high)) for s in self.known.sources])
        self._note("extent", first, np.where(strong, extent, np.nan), -1)

    def _note(self, kind: str, first: int, rows: np.ndarray, sign: int) -> None:
        limit, memory = self._limits[kind], self.memory[_KINDS.index(kind)]
        beyond = sign * rows > sign * limit
        for f in np.flatnonzero(beyond.any(0)):
            if np.isnan(memory[f, 1]):
                memory[f, 1] = first + int(np.argmax(beyond[:, f]))
            peak = np.nanmax(sign * rows[:, f])
            memory[f, 0] = sign * (peak if np.isnan(memory[f, 0]) else max(peak, sign * memory[f, 0]))

    def findings(self) -> list[dict[str, Any]]:
        """What left the range: field, quantity, first time, most extreme value, and by how much."""
        found = []
        for i, kind in enumerate(_KINDS):
            for f, name in enumerate(self.known.fields):
                value, step = self.memory[i, f]
                if not math.isnan(step):
                    found.append({"field": name, "what": kind, "time": float(step) * self.dt, "step": int(step),
                                  "value": float(value), **self._excess(kind, f, float(value))})
        return found

    def _excess(self, kind: str, f: int, value: float) -> dict[str, Any]:
        """`training` is what the data had, `beyond` the share by which it is exceeded (None: there was nothing to compare with)."""
        known = self.known
        if kind == "gradient":
            return {"training": known.gradients[f], "beyond": value / known.gradients[f] - 1 if known.gradients[f] > 0 else None}
        if kind == "extent":
            return {"training": known.extents[f][0], "beyond": known.extents[f][0] / value - 1}
        if kind.startswith("source") and not known.sources:
            return {"training": None, "beyond": None}
        span = known.sources[f] if kind.startswith("source") else known.states[f]
        gap = span.low - value if kind.endswith("low") else value - span.high
        return {"training": [span.low, span.high], "beyond": gap / span.width}


def sentence(findings: Sequence[dict[str, Any]], units: Units | None = None) -> str | None:
    """One sentence about all findings, with the units of the problem; None without any."""
    units, parts = units or Units(), []
    for found in findings:
        name, t, value, had, beyond = (found[k] for k in ("field", "time", "value", "training", "beyond"))
        when, unit = f"from t = {t:.4g} {units.time}".rstrip() + " on", f" {units.fields.get(name, '')}".rstrip()
        if found["what"] in ("low", "high"):
            word = "down to" if found["what"] == "low" else "up to"
            parts.append(f"{name} goes {word} {value:.4g}{unit} ({when}), training had {had[0]:.4g} to {had[1]:.4g}{unit}, "
                         f"{_percent(beyond)} of that width beyond")
        elif found["what"] == "gradient":
            more = "training had no gradient" if beyond is None else f"{1 + beyond:.2g} times the steepest in training"
            parts.append(f"gradients of {name} reach {value:.3g} ({when}), {more}")
        elif found["what"] == "extent":
            parts.append(f"the source of {name} is {1 + beyond:.2g} times narrower than any in training ({when})")
        elif had is None:
            parts.append(f"{name} is driven by a source ({when}), training had none")
        else:
            parts.append(f"the source of {name} reaches {value:.3g} ({when}), training had {had[0]:.3g} to {had[1]:.3g}, "
                         f"{_percent(beyond)} of that width beyond")
    return None if not parts else "This leaves the range of the training data: " + "; ".join(parts) + "."


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share < 10 else f"{share:.0f} times"


def range_findings(known: TrainingRange, mesh: Mesh, dt: float, states: Tensor, source: Tensor | None) -> list[dict[str, Any]]:
    """Findings for rollouts [B, T+1, N, F] and sources [B, T, N, F]; each names its trajectory, the worst one of a kind is kept."""
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    rows = max(1, _ROWS // (mesh.n_cells * (mesh.dim + 1) * states.shape[-1]))
    for b in range(len(states)):
        guard, u = Guard(known, mesh, dt), states[b].numpy()
        guard.states(0, u.min(1), u.max(1))
        for start in range(0, len(u), rows):
            guard.gradients(start, u[start:start + rows])
        if source is not None:
            guard.sources(0, source[b].cpu().numpy())
        for found in guard.findings():
            key = found["field"], found["what"]
            size = math.inf if found["beyond"] is None else found["beyond"]
            before = worst.get(key)
            if before is None or size > (math.inf if before["beyond"] is None else before["beyond"]):
                worst[key] = found | {"trajectory": b}
    return list(worst.values())
