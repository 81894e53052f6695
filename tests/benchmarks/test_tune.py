"""`python -m benchmarks tune` and `python -m benchmarks equal`, at sizes that take seconds."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import equal, tune
from dgnet.problems.finer import refined
from dgnet.projects import template
from dgnet_paper.study.tradeoff import Setting
from dgnet_paper.universal.problems import PartProblem, unseen_problem


@pytest.mark.slow
def test_tuning_beside_training_from_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "STEPS", 4)
    monkeypatch.setattr(tune, "disc", lambda radius, spacing: disc(radius, 3 * spacing))
    found = tune.run(tmp_path, 0.01, ("disc",), (1,))
    assert [(row["model"], row["trajectories"]) for row in found["rows"]] == [("universal-tuned", 1), ("dgnet", 1), ("dgnet", 5)]
    for row in found["rows"]:
        assert row["ratio"] == pytest.approx(row["error"] / row["classical"])
    assert len({row["universal"] for row in found["rows"]}) == 1
    page = tune.table(found)
    assert "| tuned, 1 | DGNet from zero, 1 | DGNet from zero, 5 |" in page and page.count("| disc |") == 1


disc = tune.disc


def clocks(error: float, setup: float, steps: float, **more: object) -> dict[str, object]:
    return {"error": error, "setup_s": setup, "source_s": 0.1, "rollout_s": steps, **more}


def test_costs_of_other_lengths_and_the_page() -> None:
    own = clocks(1e-3, 0.06, 0.01, solver="universal-quadratic")
    dear = clocks(9e-4, 0.02, 0.05, solver="classical", kind="P2", refine=0, substeps=1, skip=1)
    slow = clocks(9e-4, 0.5, 0.03, solver="classical", kind="P1", refine=1, substeps=1, skip=1)
    assert equal.spent(own, 24, "set-up") == pytest.approx(0.07) and equal.spent(own, 48, "whole") == pytest.approx(0.28)
    best = equal.cheapest([dear, slow], own)
    assert "P2" in best["set-up, 24"]["what"] and best["set-up, 24"]["ratio"] == pytest.approx(1.0)
    assert "P1" in best["set-up, 1000"]["what"] and best["steps, 1000"]["ratio"] == pytest.approx(3.0)
    row = {"part": "gear", "conditions": "mixed", "fourier": 0.1, "nodes": 300, "own": own, "complete": True, "size": 500,
           "reached": [dear, slow], "best": best, "judged": True}
    none = row | {"reached": [], "best": equal.cheapest([], own), "complete": False}
    rows = [row, row | {"size": 6000, "judged": False}, none]
    page = equal.table({"dim": 2, "hardware": "a CPU", "rows": rows, "training_s": 1800.0})
    saved = equal.spent(slow, 1000, "whole") - equal.spent(own, 1000, "whole")
    ratios = " | ".join(f"{one['ratio']:.2f}" for one in best.values())
    assert f"| 500 | 2 | 1 | {ratios} | {1800 / saved:,.0f} |" in page and ratios.startswith("3.00 | 1.00 |")
    assert "none before the time was over" in page and "as on smaller ones" in page


def test_a_part_of_another_size_has_the_same_problem() -> None:
    small, large = equal.sized(2, 8, 500), equal.sized(2, 8, 6000)
    assert 4000 < large.mesh.n_nodes < 9000 and (small.fourier, small.conditions_kind) == (large.fourier, large.conditions_kind)
    assert large.dt == pytest.approx(large.fourier * large.mesh.spacing**2)


def test_a_part_refined_keeps_its_materials() -> None:
    part = next(p for p in (unseen_problem(2, k) for k in range(30)) if np.ndim(p.pde.diffusion) == 1)
    trial = equal.PartTrial.of(replace_truth(part))
    once = trial.problem(Setting(refine=1), None)
    want = refined(part.problem(dtype=once.dtype))
    assert torch.allclose(once.diffusion_part.values, want.diffusion_part.values, rtol=1e-5)
    assert trial.problem(Setting(substeps=2), None).dt == pytest.approx(part.dt / 2)


def replace_truth(part: PartProblem) -> PartProblem:
    """Without the time that its truth takes."""
    class Quick(PartProblem):
        def truth(self, *_: object, **__: object) -> torch.Tensor:
            return torch.zeros(2, 25, self.mesh.n_nodes, 1, dtype=torch.float64)

    return Quick(**{f.name: getattr(part, f.name) for f in fields(part)})


@pytest.mark.slow
def test_the_cost_of_an_error() -> None:
    part = min((unseen_problem(2, k) for k in range(8)), key=lambda p: p.mesh.n_nodes)
    row = equal.compared(part, 2.0)
    assert row["nodes"] == part.mesh.n_nodes and row["own"]["error"] > 0
    assert all(one["error"] <= row["own"]["error"] for one in row["reached"])
    again = equal.compared(part, 0.0, [row["own"] | {"kind": "P2", "refine": 1, "substeps": 1, "skip": 1, "solver": "classical"}])
    assert not again["judged"] and again["best"]["steps, 24"]["ratio"] > 1
