"""Training on a user's own problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dgnet.models.registry import changed, configure
from dgnet.problems.case import OWN
from dgnet.projects import TRUTH, Project
from dgnet.training.fit import Progress
from dgnet.training.plan import Wishes
from dgnet.training.run import Run, train


def train_project(project: Project, folder: Path, *, model: str = "dgnet", seed: int = 0, device: str = "cpu",
                  minutes: float | None = None, trajectories: int | None = None,
                  report: Callable[[Progress, int], None] | None = None) -> tuple[Run, Progress]:
    """Train a model on a project for `minutes` (those of its [training] table by default); interrupted, it goes on."""
    wishes = Wishes.of(project)
    config = None if model == "dgnet" else changed(model, project.model, configure(model), wishes.where)
    return train(project.case, TRUTH, project.data, folder, model=model, recipe=OWN, seed=seed, device=device,
                 budget=60 * (project.training.minutes if minutes is None else minutes), trajectories=trajectories,
                 config=config, wishes=wishes, project=project, report=report)
