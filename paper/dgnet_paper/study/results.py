"""Finished cells, found by what they are about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

from dgnet_paper.scenarios import names
from dgnet_paper.study.experiment import METHODS, Experiment, Record
from dgnet_paper.study.origin import learned
from dgnet_paper.study.rows import Row
from dgnet_paper.study.stored import failures, load

Scale = tuple[float, float, float]
USUAL: Scale = (1.0, 1.0, 1.0)


@dataclass(frozen=True, order=True)
class Setting:
    """What the cells of one section share."""

    size: str
    truth: str
    few: int = 0
    factor: float = 1.0

    @classmethod
    def of(cls, cell: Experiment) -> Setting:
        return cls(cell.size, cell.truth, cell.few, cell.factor)

    @property
    def trial(self) -> bool:
        return bool(self.few) or self.factor != 1.0

    @property
    def slug(self) -> str:
        """For the names of pictures."""
        return f"{self.size}-{self.truth}" + (f"-trial-{self.few or 'all'}-{self.factor:g}" if self.trial else "")

    @property
    def title(self) -> str:
        cut = f" (a trial: {self.few or 'all'} trajectories per split, {self.factor:g} of the iterations)" if self.trial else ""
        return f"{self.size} size, {self.truth} truth{cut}"


@dataclass(frozen=True)
class Value:
    """Mean and spread (standard deviation) over seeds; infinite where a rollout diverged.

    `unlearned` counts seeds whose best weights are the untrained ones.
    """

    mean: float
    spread: float
    seeds: int
    unlearned: int = 0

    @classmethod
    def of(cls, numbers: Iterable[float | None], unlearned: int = 0) -> Value | None:
        values = [math.inf if v is None else float(v) for v in numbers]
        if not values:
            return None
        whole = all(math.isfinite(v) for v in values)
        spread = stdev(values) if whole and len(values) > 1 else 0.0
        return cls(fmean(values) if whole else math.inf, spread, len(values), unlearned)

    @property
    def learned(self) -> bool:
        """Some seed learned something, or there was nothing to learn."""
        return self.unlearned < self.seeds

    def text(self) -> str:
        if not math.isfinite(self.mean):
            return "diverged"
        if self.seeds == 1:
            return number(self.mean)
        return f"{number(self.mean)} ± {number(float(f'{self.spread:.1g}')).replace('.00e', 'e')}"


def number(value: float) -> str:
    """Three digits, without exponents where they can be helped."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e")


@dataclass(frozen=True, eq=False)
class Shelf:
    """All cells of some folders."""

    records: dict[str, Record]
    failed: dict[str, str]

    @classmethod
    def open(cls, folders: Sequence[Path]) -> Shelf:
        return cls(load(folders), failures(folders))

    @cached_property
    def cells(self) -> dict[Experiment, Record]:
        return {Experiment.parse(tag): record for tag, record in self.records.items()}

    def settings(self) -> list[Setting]:
        """Of all cells that train or judge; whole studies before trials, paper size first."""
        found = {Setting.of(c) for c in self.cells if c.kind in ("train", "robust", "operator")}
        lone = {Setting(c.size, c.truth, c.few) for c in self.cells if c.kind == "classical"}
        found |= {s for s in lone if not any((f.size, f.truth, f.few) == (s.size, s.truth, s.few) for f in found)}
        if not found:
            found = {Setting(c.size, c.truth, c.few) for c in self.cells}
        return sorted(found, key=lambda s: (s.trial, s.size != "paper", s.truth, s.few, s.factor))

    def seeds(self, cell: Experiment) -> list[Record]:
        """The records of a cell and of its other seeds, from the code of the newest: two versions have no common mean."""
        same = sorted(((c.seed, r) for c, r in self.cells.items() if replace(c, seed=0) == replace(cell, seed=0)),
                      key=lambda pair: pair[0])
        if not same:
            return []
        newest = max((r for _, r in same), key=lambda r: str(r.get("date", "")))
        return [r for _, r in same if r.get("code") == newest.get("code")]

    def found(self, scenario: str, row: Row, s: Setting, trajectories: int = 0, scale: Scale = USUAL) -> list[Record]:
        """The cells that hold a row's scores: one for each seed, or that of the classical solvers; none where it was not run."""
        if row.classical:
            cell = Experiment("classical", scenario, s.size, s.truth, few=s.few, scale=scale)
            return [r for r in (self.records.get(cell.tag),) if r is not None and row.key in r["scores"]]
        cell = training(scenario, row.key, s, row.unknown, trajectories)
        return self.seeds(cell if scale == USUAL else replace(cell, kind="robust", scale=scale))

    def value(self, scenario: str, row: Row, s: Setting, key: str = "rne", trajectories: int = 0) -> Value | None:
        """A score of a method or a classical solver."""
        return value(self.found(scenario, row, s, trajectories), row, key)

    def of_kind(self, kind: str, s: Setting | None = None) -> dict[Experiment, Record]:
        """The cells of a kind, of one setting or of all."""
        return {c: r for c, r in self.cells.items() if c.kind == kind and (s is None or Setting.of(c) == s)}

    def rows(self, scenario: str, s: Setting) -> list[Row]:
        """Trained on a scenario with all of its trajectories."""
        found = {Row(c.method, c.unknown_reaction) for c in self.cells if c.kind == "train" and c.scenario == scenario
                 and c.trajectories == 0 and Setting.of(c) == s}
        return [row for m in METHODS for u in (False, True) if (row := Row(m, u)) in found]

    def scenarios(self, s: Setting) -> list[str]:
        found = {c.scenario for c in self.cells if (c.size, c.truth, c.few) == (s.size, s.truth, s.few)}
        return [name for name in names() if name in found]


def value(records: Sequence[Record], row: Row, key: str) -> Value | None:
    """A score over the seeds of a row; None where there are none."""
    return Value.of((r["scores"][row.key][key] for r in records), sum(not learned(r) for r in records))


def training(scenario: str, method: str, s: Setting, unknown: bool = False, trajectories: int = 0) -> Experiment:
    return Experiment("train", scenario, s.size, s.truth, method, trajectories=trajectories, unknown_reaction=unknown, few=s.few,
                factor=s.factor)
