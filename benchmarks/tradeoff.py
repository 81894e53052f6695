"""Cost at equal error: a trained model, and the classical solver with other elements, meshes and steps. Set-up and sources count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dgnet.errors import InputError
from dgnet.progress import Report
from dgnet.training.run import Run
from dgnet_paper.scenarios.scenario import scenario_of
from dgnet_paper.study import tradeoff
from dgnet_paper.study.compared import tests_of
from dgnet_paper.study.pretrained import load


def run(folder: Path | None = None, data: Path | None = None, pretrained: str | None = None, trajectories: int | None = None,
        budget: float = 45.0, device: str = "cpu", report: Report | None = None) -> dict[str, Any]:
    """Cost at equal error of the run in a folder, or of the shipped weights of a scenario, beside classical settings.

    `data`: test trajectories; of shipped weights a folder of data sets, out/pretrained unless given. `budget`: seconds of search.
    """
    if (folder is None) == (pretrained is None):
        raise InputError("give --folder of a training run, or --pretrained with the name of a scenario")
    if folder is not None:
        opened = Run.open(folder, device)
        return tradeoff.tradeoff(opened, data or opened.data, device, trajectories, budget, report=report)
    opened = load(str(pretrained), device=device)
    count = min(trajectories or scenario_of(opened).test, scenario_of(opened).test)
    path = tests_of(scenario_of(opened), opened.settings.truth, count, data or Path("out/pretrained"), device, report)
    return tradeoff.tradeoff(opened, path, device, trajectories, budget, report=report)


table = tradeoff.markdown
