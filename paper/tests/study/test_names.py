"""Cells that were stored before the paper's model followed its text: they are read, and called what they are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dgnet_paper.model import BOUNDED, PAPER
from dgnet_paper.study import drawing, results, stored
from dgnet_paper.study.experiment import METHODS, Experiment, current_methods

STUDY = Path(__file__).parents[3] / "docs" / "results" / "study"


def test_stored_cells_of_the_bounded_model_are_called_bounded() -> None:
    shelf = results.Shelf.open([STUDY])
    found = {c.method: r for c, r in shelf.cells.items() if c.scenario == "laser-heat" and c.method.startswith("dgnet-")}
    assert {"dgnet-bounded", *(f"dgnet-bounded-{v}" for v in "ABCD")} <= set(found)
    of_the_text = [r for c, r in shelf.cells.items() if c.method.startswith("dgnet-paper") and c.kind == "train"]
    assert of_the_text and all("scheme" in r["config"] for r in of_the_text)  # what has none is the bounded one
    record = found["dgnet-bounded"]
    assert record["config"]["decoder"] == "edge" and "dgnet-bounded" in record["scores"] and "dgnet-bounded" in record["curves"]
    assert drawing.label("dgnet-bounded") == "DGNet, paper's, bounded"
    frames = results.sample(record)
    assert "dgnet-bounded" in frames and np.isfinite(frames["dgnet-bounded"]).all()


def test_a_cell_of_the_papers_text_keeps_its_name(tmp_path: Path) -> None:
    cell = Experiment("train", "laser-heat", method="dgnet-paper")
    new = {"tag": cell.tag, "cell": {"method": "dgnet-paper"}, "config": {"scheme": "paper"}, "scores": {"dgnet-paper": {}}}
    assert current_methods(new) is new
    old = {**new, "config": {"decoder": "edge"}}
    folder = cell.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text(json.dumps(old))
    (read,) = stored.load([tmp_path]).values()
    assert read["tag"] == Experiment("train", "laser-heat", method="dgnet-bounded").tag
    assert list(read["scores"]) == ["dgnet-bounded"]


def test_the_two_are_what_they_are_called() -> None:
    assert METHODS["dgnet-bounded"].config == BOUNDED and METHODS["dgnet-paper-C"].config.plain
    assert METHODS["dgnet-paper"].model == "dgnet-paper" and PAPER.plain and not BOUNDED.plain
