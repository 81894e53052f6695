"""Finished cells, found by what they are about."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from dgnet.paper import archive
from dgnet.paper.cell import METHODS, Cell
from dgnet.paper.engine import failures, load
from dgnet.scenarios import names

Record = dict[str, Any]
CLASSICAL = {"classical_consistent": "classical, consistent mass", "classical_lumped": "classical, lumped mass"}


@dataclass(frozen=True, order=True)
class Setting:
    """What the cells of one section share."""

    size: str
    truth: str
    few: int = 0
    factor: float = 1.0

    @property
    def trial(self) -> bool:
        return bool(self.few) or self.factor != 1.0

    @property
    def title(self) -> str:
        cut = f" (a trial: {self.few or 'all'} trajectories per split, {self.factor:g} of the iterations)" if self.trial else ""
        return f"{self.size} size, {self.truth} truth{cut}"


@dataclass(frozen=True)
class Value:
    """Mean and spread (standard deviation) over seeds; infinite where a rollout diverged."""

    mean: float
    spread: float
    seeds: int

    @classmethod
    def of(cls, numbers: Iterable[float | None]) -> Value | None:
        values = [math.inf if v is None else float(v) for v in numbers]
        if not values:
            return None
        whole = all(math.isfinite(v) for v in values)
        return cls(fmean(values) if whole else math.inf, stdev(values) if whole and len(values) > 1 else 0.0, len(values))

    def text(self) -> str:
        if not math.isfinite(self.mean):
            return "diverged"
        if self.seeds == 1:
            return number(self.mean)
        spread = f"{self.spread:.1g}" if 1e-3 <= self.spread < 10 else number(float(f"{self.spread:.1g}")).replace(".00", "")
        return f"{number(self.mean)} ± {spread}"


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
    def cells(self) -> dict[Cell, Record]:
        return {Cell.parse(tag): record for tag, record in self.records.items()}

    def settings(self) -> list[Setting]:
        """Of all cells that train or judge; whole studies before trials, paper size first."""
        found = {Setting(c.size, c.truth, c.few, c.factor) for c in self.cells if c.kind in ("train", "robust", "operator")}
        lone = {Setting(c.size, c.truth, c.few) for c in self.cells if c.kind == "classical"}
        found |= {s for s in lone if not any((f.size, f.truth, f.few) == (s.size, s.truth, s.few) for f in found)}
        if not found:
            found = {Setting(c.size, c.truth, c.few) for c in self.cells}
        return sorted(found, key=lambda s: (s.trial, s.size != "paper", s.truth, s.few, s.factor))

    def seeds(self, cell: Cell) -> list[Record]:
        """The records of a cell and of its other seeds."""
        same = [(c.seed, r) for c, r in self.cells.items() if replace(c, seed=0) == replace(cell, seed=0)]
        return [r for _, r in sorted(same, key=lambda pair: pair[0])]

    def classical(self, scenario: str, s: Setting, scale: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> Record | None:
        return self.records.get(Cell("classical", scenario, s.size, s.truth, few=s.few, scale=scale).tag)

    def trained(self, scenario: str, method: str, s: Setting, unknown: bool = False, trajectories: int = 0) -> list[Record]:
        return self.seeds(training(scenario, method, s, unknown, trajectories))

    def value(self, scenario: str, row: str, s: Setting, key: str = "rne", unknown: bool = False,
              trajectories: int = 0) -> Value | None:
        """A score of a method or a classical solver."""
        if row in CLASSICAL:
            record = self.classical(scenario, s)
            return None if record is None else Value.of([record["scores"][row][key]])
        return Value.of(r["scores"][row][key] for r in self.trained(scenario, row, s, unknown, trajectories))

    def methods(self, scenario: str, s: Setting) -> list[tuple[str, bool]]:
        """(method, reaction unknown) that were trained on a scenario with all of its trajectories."""
        found = {(c.method, c.unknown_reaction) for c in self.cells if c.kind == "train" and c.scenario == scenario
                 and c.trajectories == 0 and Setting(c.size, c.truth, c.few, c.factor) == s}
        return [(m, u) for m in METHODS for u in (False, True) if (m, u) in found]

    def scenarios(self, s: Setting) -> list[str]:
        found = {c.scenario for c in self.cells if (c.size, c.truth, c.few) == (s.size, s.truth, s.few)}
        return [name for name in names() if name in found]


def training(scenario: str, method: str, s: Setting, unknown: bool = False, trajectories: int = 0) -> Cell:
    return Cell("train", scenario, s.size, s.truth, method, trajectories=trajectories, unknown_reaction=unknown, few=s.few,
                factor=s.factor)


def sample(record: Record | None) -> dict[str, np.ndarray]:
    """Stored frames of the first test trajectory; empty where there are none."""
    if record is None:
        return {}
    if (record["folder"] / archive.CELLS).exists():
        return archive.sample(record, truth_of(Cell.parse(record["tag"])).tag)
    path = record["folder"] / "sample.npz"
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as arrays:
        return archive.renamed(record, {name: arrays[name] for name in arrays.files})


def truth_of(cell: Cell) -> Cell:
    """The cell of the classical solvers on the same test trajectories: its frames hold the truth."""
    return Cell("classical", cell.scenario, cell.size, cell.truth, few=cell.few, scale=cell.scale)


def pack(folders: Sequence[Path], out: Path) -> int:
    """Write the finished cells of some studies as one small store (see `archive`); returns how many there are."""
    shelf = Shelf.open(folders)
    shown = {tag: sample(shelf.records[tag]) for cell in shelf.cells if _drawn(cell, shelf) for tag in (cell.tag,)}
    archive.pack(shelf.records, {tag: arrays for tag, arrays in shown.items() if arrays},
                 {cell.tag: truth_of(cell).tag for cell in shelf.cells}, out)
    return len(shelf.records)


def _drawn(cell: Cell, shelf: Shelf) -> bool:
    """A picture of fields shows this cell: the classical solvers, and of a trained model its first seed with all trajectories."""
    if cell.kind == "classical":
        return not cell.scaled
    if cell.kind != "train" or cell.unknown_reaction or cell.trajectories or truth_of(cell) not in shelf.cells:
        return False
    return cell.seed == min(c.seed for c in shelf.cells if replace(c, seed=cell.seed) == cell)
