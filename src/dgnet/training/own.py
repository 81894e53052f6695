"""Training on a user's own problem: the general recipe with the changes of its [training] table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.projects import TRUTH, Project
from dgnet.training.calibrate import calibrated_first
from dgnet.training.fit import Progress
from dgnet.training.presets import reaction_first, recipe_for
from dgnet.training.recipe import Recipe, Stage
from dgnet.training.run import Run, train


def train_project(project: Project, folder: Path, *, model: str = "dgnet", seed: int = 0, device: str = "cpu",
                  minutes: float | None = None, trajectories: int | None = None,
                  report: Callable[[Progress, int], None] | None = None) -> tuple[Run, Progress]:
    """Train a model on a project for `minutes` (those of its [training] table by default); interrupted, it goes on."""
    with Dataset(project.data) as data:
        count, steps = len(data.of("train")[:trajectories]), data.steps
    plan = recipe_of(project, count, steps) if model == "dgnet" else None
    return train(project.case, TRUTH, project.data, folder, model=model, recipe="own", seed=seed, device=device,
                 budget=60 * (project.training.minutes if minutes is None else minutes), trajectories=trajectories,
                 config=project.config(model), plan=plan, unknown_reaction=project.unknown_reaction, project=project, report=report)


def recipe_of(project: Project, trajectories: int, steps: int) -> Recipe:
    """Short windows, then long ones; an unknown reaction and calibrated coefficients come first, by themselves."""
    wish = project.training
    plan, c = recipe_for(project.case.name, "staged", trajectories, steps), project.config()
    if wish.windows or wish.iterations:
        count = max(len(wish.windows), len(wish.iterations))
        if {len(wish.windows), len(wish.iterations)} - {0, count}:
            raise InputError("training.windows and training.iterations must have the same length, one entry per stage")
        windows, iterations = wish.windows or (8, *(40,) * (count - 1)), wish.iterations or (400,) * count
        plan = replace(plan, stages=tuple(
            Stage(n, min(w, steps), 16 if k == 0 else 8, 3e-3 if k == 0 else 2e-3, from_start=0.25 if k else 0.0)
            for k, (w, n) in enumerate(zip(windows, iterations))))
    if wish.learning_rate:
        top = max(s.lr for s in plan.stages)
        plan = replace(plan, stages=tuple(replace(s, lr=s.lr / top * wish.learning_rate) for s in plan.stages))
    plan = replace(plan, stages=tuple(replace(s, batch=wish.batch or s.batch, noise=wish.noise or s.noise) for s in plan.stages))
    if wish.hold_out:
        if wish.hold_out >= trajectories > 1:
            raise InputError(f"training.hold_out = {wish.hold_out} leaves none of the {trajectories} training trajectories")
        plan = replace(plan, hold_out=wish.hold_out)
    plan = replace(plan, name="own")
    if project.unknown_reaction:
        plan = reaction_first(plan, steps, bool(c.reaction_table))
    if not project.calibrate:
        return plan
    plan = calibrated_first(plan, steps)
    more = (c.decoder != "none" and (c.network or c.free)) or c.residual or not c.green or c.reaction == "learned"
    return plan if more else replace(plan, stages=plan.stages[:1])  # nothing but coefficients is learned
