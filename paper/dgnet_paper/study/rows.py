"""Rows of the tables: where their figures are stored, what they are called, and what their models are told.

To add a row:

- a solver without weights: its key in `scoring.judge.rivals` or `finer` (the classical cells then score it) and a line in
  `CLASSICAL` here
- a model of the registry: it is a row wherever its cells are; `Entry.told` says what it is told
- a column of the paper's tables, or a row that is missed where it was not run: `targets.py`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgnet.models.registry import TOLD_ALL, entry
from dgnet_paper.scenarios import get
from dgnet_paper.study.experiment import METHODS, is_variant

CLASSICAL = {"classical_consistent": "classical, consistent", "classical_lumped": "classical, lumped",
             "classical_p2": "classical, quadratic", "classical_refined": "classical, mesh refined",
             "universal": "universal weights, no data of it"}
"""Solvers of the classical cells: the key of their scores, and their title."""
FINER = ("classical_p2", "classical_refined", "universal")
"""Those that aim at the equation and not at linear elements on this mesh: with truth of the models' own mesh they are left out."""
TOLD = ("*is told*: all rows are given the mesh, the sources and the boundary values. *Whole equation* adds the coefficients, the "
        "flow and the reaction as the equation has them; *coefficients, flow* are fields that a network reads.")
_SHORT = {**CLASSICAL, "dgnet": "DGNet, ours", "dgnet-paper": "DGNet, paper's", "dgnet-bounded": "DGNet, paper's, bounded"}


@dataclass(frozen=True)
class Row:
    """A row: `key` of its scores (a method, or a classical solver), and whether the reaction is learned instead of told."""

    key: str
    unknown: bool = False

    @property
    def classical(self) -> bool:
        return self.key in CLASSICAL

    @property
    def title(self) -> str:
        return label(self.key) + (", reaction unknown" if self.unknown else "")

    @property
    def told(self) -> str:
        """What the model knows besides mesh, sources and boundary values."""
        if self.classical:
            return TOLD_ALL
        if is_variant(self.key) and self.key.endswith("-A"):  # without L_physics
            return "the reaction alone"
        return "all but the reaction" if self.unknown else entry(METHODS[self.key].model).told

    @property
    def published(self) -> str:
        """The name in the paper's tables; empty where it has no such row."""
        return "" if self.classical or self.unknown else METHODS[self.key].published


def solvers(truth: str) -> list[Row]:
    """The classical rows."""
    return [Row(key) for key in CLASSICAL if truth != "same-mesh" or key not in FINER]


def label(key: str) -> str:
    """The title of a row of scores."""
    return _SHORT.get(key) or (METHODS[key].title if key in METHODS else key)


def reacts(scenario: str, size: str) -> bool:
    """The equation has a reaction, so that a model may be told it or not."""
    return get(scenario, size).pde.reaction is not None


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Each once: classical solvers first, then the methods in their order, with the reaction unknown after known."""
    places = {key: k for k, key in enumerate((*CLASSICAL, *METHODS))}
    return sorted(dict.fromkeys(rows), key=lambda row: (places[row.key], row.unknown))
