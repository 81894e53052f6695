"""Bands on predictions in pictures, on the page of an evaluation and in the files of a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.files import writing
from dgnet.mesh import Mesh
from dgnet.report.figures import chart
from dgnet.report.series import Frame
from dgnet.training import Run
from dgnet.trust import Bands, Bends, Profile, Promise, Tested, sentences

Tensor = torch.Tensor

LEVEL = 0.9
_PROBES = 3
_ARRAY = 1e9  # bytes of half-widths that are written into one file


@dataclass(frozen=True, eq=False)
class Widths:
    """The half-width of a band along one rollout: q w s(x, t)."""

    bands: Bands
    mesh: Mesh
    dt: float
    level: float
    everywhere: bool
    widened: float
    furthest: str  # what is furthest from the training data

    @classmethod
    def of(cls, bands: Bands, mesh: Mesh, dt: float, level: float, everywhere: bool, profile: Profile, steps: int) -> Widths:
        return cls(bands, mesh, dt, level, everywhere, *bands.known.widening(profile.groups(steps * dt)))

    @property
    def promise(self) -> Promise:
        return self.bands.promise(self.level)

    def along(self, frames: Iterator[Frame]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Frames from the start on, each with its half-width [N, F]."""
        q, bends, start = self.promise.everywhere if self.everywhere else self.promise.average, Bends(self.mesh), None
        for k, u in frames:
            now = np.asarray(u, dtype=np.float64)[None]
            start = now if start is None else start
            size = self.bands.shape.at(np.array([k * self.dt]), now, start, bends)[0]
            yield k, u, (q * self.widened * size).astype(np.float32)

    def wide(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        """Frames with the half-widths as further fields."""
        for k, u, half in self.along(frames):
            yield k, np.concatenate([u, half], axis=1)

    def save(self, path: Path, fields: Sequence[str], frames: Iterator[Frame], count: int) -> Path | None:
        """NAME-bands.npz beside a rollout: time [K], half_width [K, N, F]; nothing where that would be too large."""
        if count * self.mesh.n_nodes * len(fields) * 4 > _ARRAY:
            return None
        steps, halves = [], []
        for k, _, half in self.along(frames):
            steps.append(k)
            halves.append(half)
        target = path.with_name(f"{path.stem}-bands.npz")
        with writing(target) as part, part.open("wb") as file:
            np.savez_compressed(file, time=self.dt * np.array(steps), half_width=np.stack(halves), fields=np.array(fields, np.str_),
                                level=np.array(self.level), promised=np.array(self.promised), widened=np.array(self.widened))
        return target

    @property
    def promised(self) -> float:
        """The share of all values that lies inside on average, or the probability that all of them do (`everywhere`)."""
        return self.promise.everywhere_promised if self.everywhere else self.promise.average_promised

    def as_dict(self) -> dict[str, Any]:
        return {"level": self.level, "promised": self.promised, "everywhere": self.everywhere,
                "trajectories": self.bands.trajectories, "widened": self.widened, "furthest": self.furthest}


def level_of(bands: Bands | None, band: float | None, everywhere: bool, run: Path) -> float:
    """The level that is asked for, refused where there are no bands."""
    if bands is None:
        if band is not None or everywhere:
            raise InputError(f"there are no bands for this rollout: `dgnet evaluate {run}` calibrates them for the mesh and the "
                             "step of the training")
        return LEVEL
    return bands.promise(LEVEL if band is None else band).level


def sentence(found: dict[str, Any]) -> str:
    """About the bands of a rollout, as `Widths.as_dict` describes them."""
    what = "the whole rollout lies inside with a probability of" if found["everywhere"] else "of all values, there lie inside"
    text = f"Bands from {found['trajectories']} test trajectories: {what} at least {found['promised']:.0%}"
    if found["widened"] > 1:
        far = {"start": "its start", "power": "its power", "places": "where it is driven", "duration": "its duration"}
        return (f"{text}, were it like these; it is further from the training data than those are from each other "
                f"({far[found['furthest']]}), so the bands are {found['widened']:.2g} times as wide")
    return text


def draw(path: Path, run: Run, tested: Tested, states: Tensor, data: Corpus, level: float = LEVEL) -> Path:
    """The first field at three nodes of the trajectory in the middle of all, in the band that it is tested in."""
    scores = tested.scores
    number = int(np.argsort(scores.largest)[len(scores.largest) // 2])
    u, true = (x[number].double().cpu().numpy() for x in (states, data.state))
    t = data.dt * np.arange(len(u))
    shape = tested.bands.shape.at(t, u, u[:1], Bends(run.case.mesh))
    half = tested.promise(level, number).average * scores.widened[number] * shape
    moved = np.ptp(true[..., 0], axis=0)
    nodes = np.argsort(moved)[[-1, -1 - len(moved) // 4, -1 - len(moved) // 2]][:_PROBES]
    name, unit = run.case.pde.fields[0], run.case.units.fields.get(run.case.pde.fields[0], "")
    with chart(path, 9.6, 2.6, 110) as figure:
        for k, node in enumerate(nodes):
            axis = figure.add_subplot(1, len(nodes), k + 1)
            now, wide = u[:, node, 0], half[:, node, 0]
            axis.fill_between(t, now - wide, now + wide, color="#d1495b", alpha=0.25, lw=0, label="band")
            axis.plot(t, now, color="#d1495b", lw=1.4, label="prediction")
            axis.plot(t, true[:, node, 0], "k--", lw=1.0, label="truth")
            axis.set(title=f"node {node}", xlabel="time", ylabel=f"{name} {unit}".strip() if k == 0 else "")
        figure.axes[0].legend(frameon=False, fontsize=8)
    return path


def content(found: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the report page says of them."""
    if found is None:
        return None
    rows = [[f"{r['level']:.0%}", f"{r['promised']:.0%}", _share(r["covered"]), f"{r['promised_everywhere']:.0%}",
             _share(r["covered_everywhere"])] for r in found["levels"]]
    return {"sentences": sentences(found), "furthest": max(found["widened"]), "rows": rows, "apart": found["apart"]}


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
