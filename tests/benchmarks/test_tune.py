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
    return {"error": error, "setup_s": setup, "source_s": 0.0, "rollout_s": steps, **more}


def test_the_page_of_costs() -> None:
    own = clocks(1e-3, 0.02, 0.01, solver="universal")
    best = clocks(9e-4, 0.01, 0.05, solver="classical", kind="P2", refine=0, substeps=1, skip=1)
    row = {"part": "gear", "conditions": "mixed", "fourier": 0.1, "nodes": 300, "own": own, "best": best, "complete": True,
           "ratio": 2.0, "steps_ratio": 5.0}
    none = row | {"best": None, "complete": False, "ratio": float("inf"), "steps_ratio": float("inf")}
    page = equal.table({"dim": 2, "hardware": "a CPU", "rows": [row, row | {"ratio": 0.5}, none]})
    assert "none before the time was over" in page and "P2, same mesh" in page
    assert "On 2 of 3 parts" in page and "cost is 1.00, of the steps alone 5.00; on 1 of them" in page
    assert "quadratic elements on 2 parts" in page


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
    assert row["best"] is None or row["best"]["error"] <= row["own"]["error"]
