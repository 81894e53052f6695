"""`python -m benchmarks auto`: unseen cases, their ratios and the page. Speeds are not asserted."""

from __future__ import annotations

import pytest
import torch

from benchmarks import auto, solver
from benchmarks.auto import Case


def test_cases_cover_their_ranges_and_are_not_those_of_the_fit() -> None:
    found = auto.cases()
    assert len(found) >= 60 and found == auto.cases()
    assert {len(c.cells) for c in found} == {2, 3} and {c.trajectories for c in found} == {1, 32}
    for values, (low, high) in (([c.nodes for c in found], auto.NODES), ([c.stiffness for c in found], auto.STIFFNESS),
                                ([c.steps for c in found], auto.STEPS)):
        assert 0.9 * low <= min(values) < 2 * low and high / 2 < max(values) <= 1.1 * high
    assert not {c.cells for c in found} & set(solver.SIZES.values())
    assert all(c.problem().n_nodes == c.nodes for c in found if c.nodes < 1_500)  # no cell is turned over
    assert max(c.nodes * c.trajectories for c in found if c.trajectories > 1) <= 1.1 * auto.ENTRIES


@pytest.mark.parametrize("cells", [(5, 4), (2, 2, 3)])
def test_a_row(cells: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "_MOMENT", 0.0)
    case = Case(cells, 2.0, 100, 3, torch.float32)
    row = auto.compared(case)
    assert row["nodes"] == case.problem().n_nodes and {"lu", "iterative", "dense"} <= set(row["totals"])
    assert row["ratio"] == row["totals"][row["choice"]] / min(row["totals"].values()) and row["ratio"] >= 1
    monkeypatch.setattr(auto, "_MOST", {row["choice"]: (1, 1)})  # what auto takes is not measured: no ratio, and not within
    other = auto.compared(case)
    assert other["ratio"] is None and "limited to 1 nodes" in other["left_out"][row["choice"]]
    assert auto.summary([row, other])["all"] == {"cases": 2, "within": 0.5 * (row["ratio"] <= auto.GOAL),
                                                 "mean": pytest.approx(row["ratio"]), "worst": row["ratio"]}
