"""The training loop: updates, validated by free rollouts of trajectories; the best weights are kept.

Validations are spread evenly over the updates or over the budget, whichever ends the training, so that every model is looked at
equally often, however many updates it makes. Against a clock a validation takes about a fiftieth of the time: where whole
rollouts take longer, shorter ones are looked at, in all validations of the training: four for each trajectory, spread evenly over
it, since its first steps alone say little about the rest (a channel is empty at first).

Against a clock a stage of long windows that would have time for a few updates only is left out, and its time goes to the others.
After a validation that is far worse than the best one, a recipe may ask for the best weights again and steps that are as much
shorter as it was worse.

One update is `training.update`, learning rates and the clock are `training.schedule`, files to resume from
`training.checkpoints`, several processes `training.processes`. Test trajectories are not read here.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dgnet.arguments import checked
from dgnet.data import Corpus, Dataset
from dgnet.errors import SolveError
from dgnet.models.base import LearnedModel, Model
from dgnet.models.classical import Classical
from dgnet.problems import Problem
from dgnet.recipe import Recipe, Stage
from dgnet.scoring.judge import judge
from dgnet.scoring.metrics import Sums
from dgnet.training.checkpoints import Progress, restore, store
from dgnet.training.processes import agreed, rank
from dgnet.training.schedule import Place, place, set_rates, unaffordable
from dgnet.training.update import iterate, parameter_groups

Tensor = torch.Tensor

_SETBACKS = 5
_JUDGING = 1 / 50  # share of a budget that one validation may take
_PROBES = (40, 10)  # a validation is timed by rollouts of these parts of its steps
_PIECES = 4  # of a trajectory that a shortened validation looks at
_SHORTEST = 25  # part of a trajectory that each of them is at least: a few steps say nothing about a free rollout
_SLOWER = (1 / 64, 1 / 4)  # range of the factor on the learning rate after a validation that is far worse than the best
_EARLY = (2, 4, 8)  # updates after which a recipe that takes steps back looks whether it must
_MOST = 3  # trajectories that validate
_TIMED = 2  # updates of a stage after which later ones may be left out; the last of them is timed
_FEWEST = 20  # updates that a later stage must have time for

Tell = Callable[[Progress, int], None]
"""`tell(progress, iterations)`: called after every iteration, with how many there are in all."""


def evaluate_rne(model: Model[Any], base: Problem, data: Corpus, steps: int | None = None, pieces: int = 1) -> float:
    """RNE from offset of free rollouts over all trajectories and steps, or the first `steps`; infinite where one breaks down.

    With `pieces`, of so many rollouts of `steps` steps for each trajectory, which begin at its true states, evenly spread over it.
    """
    if steps is None or pieces == 1 or steps >= data.steps:
        return judge({"model": model}, base, data, steps=steps).error("model")
    starts = torch.linspace(0, data.steps - steps, pieces).round().long().repeat(len(data))
    parts = data.windows(torch.arange(len(data)).repeat_interleave(pieces), starts, steps)
    later = torch.nonzero(starts)[:, 0].tolist()
    sums = [judge({"model": model}, base, data, steps=steps).sums["model"],
            judge({"model": model}, base, parts.part(later), first=max(1, model.first_steps)).sums["model"]]
    return Sums.join(sums).rne_from_offset


@checked
def fit(model: LearnedModel[Any], base: Problem, train: Corpus, valid: Corpus, recipe: Recipe, *, seed: int = 0,
        budget: float | None = None, folder: Path | None = None, report: Tell | None = None, resume: bool = True) -> Progress:
    """Train a model in place; it ends with the weights of the best validation rollout, the untrained ones included.

    - `model`: with weights: a `DGNet` or a baseline
    - `base`: the problem; a flow that comes with the data is put in for each batch
    - `train`, `valid`: trajectories to learn from and to validate on
    - `recipe`: the stages
    - `seed`: of the random windows
    - `budget`: seconds of wall clock (all processes together) that end the training early, with the learning rate cooled down in
      time: the schedule follows whichever of iterations and time is further on
    - `folder`: where `last.pt` is kept, to resume from; None for nowhere
    - `report`: called with the progress and the number of iterations after each of them
    - `resume`: go on from `last.pt`

        >>> import dgnet as dg, torch
        >>> mesh = dg.box((4, 4))
        >>> true, guess = (dg.Problem(mesh, dg.PDE(diffusion=D), [], dt=0.1) for D in (0.03, 0.06))
        >>> start = torch.tensor(mesh.points[:, :1]).cos()[None]  # [batch, node, field]
        >>> data = dg.Corpus(dg.rollout(dg.Classical(), true, start, steps=10), None, None, 0.1, (0.0,))
        >>> model = dg.DGNet(dg.DGNetConfig(decoder="none", calibrate=("diffusion",)), guess).double()
        >>> _ = dg.fit(model, guess, data, data, dg.Recipe("short", (dg.Stage(4, 10, method="gauss-newton"),)))
        >>> round(model.coefficients()["diffusion"], 3)  # a factor
        0.5
    """
    training = _OnRollouts(model, base, train.under(model.rule), valid, recipe, seed, budget,
                           None if folder is None else folder / "last.pt")
    return training.fit(report, resume)


class Loop(ABC):
    """Gradient descent in place: steps, validations, the best weights, the clock, and a file to resume from.

    - `model`, `recipe`: what is trained and how
    - `budget`: seconds of wall clock, or None
    - `last`: file to resume from, or None

    What is minimised and what judges are the two functions to be given: `step` and `error`.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, budget: float | None = None, last: Path | None = None) -> None:
        self.model = model
        self.whole = self.recipe = recipe
        self.budget, self.last = budget, last
        groups = parameter_groups(model, recipe)
        self.optimiser: torch.optim.Optimizer = torch.optim.Adam(groups)
        if recipe.weight_decay:
            self.optimiser = torch.optim.AdamW(groups, weight_decay=recipe.weight_decay)
        self.progress = Progress()
        self.best: dict[str, Tensor] = {}
        self.losses: list[float] = []  # since the last validation
        self.begin = 0.0  # the clock at the start
        self.lasted = 0.0  # seconds of the last update

    @abstractmethod
    def step(self, stage: Stage) -> float:
        """One step of the optimiser (`descend`); returns the loss."""

    @abstractmethod
    def error(self) -> float:
        """What a validation says of the weights of now."""

    def rival(self) -> float:
        """The error to beat."""
        return math.inf

    def prepare(self) -> None:
        """What is done once, before any step."""
        return None

    def settle(self) -> None:
        """What is done before the first validation."""
        return None

    def fit(self, tell: Tell | None = None, resume: bool = True) -> Progress:
        """Train; the model ends with the best weights."""
        self.start(resume)
        self.run(tell)
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)
        self.model.load_state_dict(self.best)
        return self.progress

    def descend(self, loss: Tensor) -> float:
        """One step of the optimiser against a loss."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in self.model.parameters() if p.grad is not None], self.recipe.clip)
        self.optimiser.step()
        return float(loss.detach())

    def start(self, resume: bool) -> None:
        """Resume, or judge the untrained model."""
        model = self.model
        stored = self.last is not None and resume and self.last.exists()
        if agreed(stored) and self.last is not None:  # the first process may write the file before another one looks
            self.best, self.progress = restore(self.last, model, self.optimiser)
        else:
            self.prepare()
            self.best = _copied(model)
        self.begin = time.perf_counter() - self.progress.seconds
        self.leave_out()
        if not self.progress.history:
            self.settle()
            self.validate()

    def run(self, tell: Tell | None) -> None:
        """Updates until the recipe or the budget ends."""
        progress = self.progress
        while progress.iteration < self.recipe.iterations:  # which may lose stages on the way
            elapsed = agreed(time.perf_counter() - self.begin)
            if self.budget is not None and elapsed >= self.budget:
                break
            at = place(self.recipe, progress.iteration, self.clock(elapsed))
            if at.over:
                progress.iteration = at.end
                self.validate()
                continue
            set_rates(self.optimiser, at.stage, at.done, 0.5**progress.setbacks * progress.slower)
            self.update(at.stage)
            self.afford(at)
            if self.due() or progress.iteration in (self.recipe.iterations, at.end):
                # what is fitted at once has seen the held-out trajectories in the end: their error from before counts
                self.validate(self.losses[-1] if at.stage.method == "fitted" else None)
            if tell is not None:
                tell(progress, self.recipe.iterations)
        if self.losses:  # time ran out between two validations: the last weights are a candidate, too
            self.validate()

    def afford(self, at: Place) -> None:
        """After some updates of a stage against a clock: leave out later ones that would have time for too few."""
        if self.budget is not None and at.stage.method == "adam" and self.progress.iteration - at.begin == _TIMED:
            left = [k for k in range(len(self.whole.stages)) if k not in self.progress.left_out]
            none = unaffordable(self.recipe, at.number, agreed(self.lasted), self.budget, _FEWEST)
            self.progress.left_out += [left[k] for k in none]
            self.leave_out()

    def leave_out(self) -> None:
        """The recipe without the stages that there is no time for."""
        self.recipe = self.whole.without(self.progress.left_out)

    def clock(self, elapsed: float) -> float | None:
        """Share of the time for updates that has passed: the untrained model is judged before the stages share it."""
        if self.budget is None:
            return None
        judged = self.progress.history[0]["seconds"]
        return (elapsed - judged) / max(self.budget - judged, 1e-9)

    def update(self, stage: Stage) -> None:
        """One step of the optimiser; after windows that blow up, the best weights again and half the rate."""
        progress, started = self.progress, time.perf_counter() - self.begin
        try:
            loss = self.step(stage)
        except SolveError:
            progress.setbacks += 1
            if progress.setbacks > _SETBACKS:
                raise
            self.take_best()
            loss = math.nan
        self.losses.append(loss)
        progress.iteration += 1
        progress.updates += 1
        progress.seconds = time.perf_counter() - self.begin
        self.lasted = progress.seconds - started

    def take_best(self) -> None:
        """Go on from the best weights, as if the optimiser had not moved yet."""
        self.model.load_state_dict(self.best)
        self.optimiser.state.clear()

    def due(self) -> bool:
        """It is time to validate: enough of the updates or of the budget has passed since the last time. Where a recipe takes steps
        back, also after a few updates, as long as none was better than the untrained weights."""
        progress, last = self.progress, self.progress.history[-1]
        if self.recipe.retreat and progress.best_iteration == 0 and progress.updates in _EARLY:
            return True
        passed = (progress.iteration - last["iteration"]) / self.recipe.iterations
        if self.budget is not None:
            judged = progress.history[0]["seconds"]
            passed = max(passed, agreed(progress.seconds - last["seconds"]) / max(self.budget - judged, 1e-9))
        return passed * self.recipe.validations >= 1

    def validate(self, known: float | None = None) -> None:
        """Judge the weights of now, unless their error is known, keep them if they are the best, and write the checkpoint."""
        progress = self.progress
        value = self.error() if known is None else known
        if not progress.history:
            progress.classical = self.rival()
        if self.recipe.retreat and value > self.recipe.retreat * progress.best:
            self.take_best()
            progress.retreats += 1
            # what weights add to the error grows with the length of their steps
            progress.slower *= min(_SLOWER[1], max(_SLOWER[0], progress.best / value))
        if value < progress.best:
            progress.best, progress.best_iteration, self.best = value, progress.iteration, _copied(self.model)
        progress.seconds = time.perf_counter() - self.begin
        loss = sum(self.losses) / len(self.losses) if self.losses else math.nan
        self.losses = []
        progress.history.append({"iteration": progress.iteration, "updates": progress.updates, "loss": loss, "validation": value,
                                 "best": progress.best, "seconds": progress.seconds})
        if self.last is not None and rank() == 0:
            store(self.last, self.model, self.optimiser, self.best, progress)


class _OnRollouts(Loop):
    """Windows of trajectories, judged by free rollouts."""

    model: LearnedModel[Any]

    def __init__(self, model: LearnedModel[Any], base: Problem, train: Corpus, valid: Corpus, recipe: Recipe, seed: int,
                 budget: float | None, last: Path | None) -> None:
        super().__init__(model, recipe, budget, last)
        self.base, self.train, self.valid, self.seed, self.scale = base, train, valid, seed, train.spread

    def prepare(self) -> None:
        self.model.fit_statistics(self.train.state, self.train.source_average, self.train.dt, self.train.velocity)

    def settle(self) -> None:
        """Pieces of validation rollouts, where whole ones would take too much of the budget."""
        whole = self.recipe.validate_steps or self.valid.steps
        fitted = any(stage.method == "fitted" for stage in self.recipe.stages)  # validates by itself, once
        if self.budget is None or fitted or whole < 2:
            return
        limit, few = _JUDGING * self.budget, max(1, whole // _PROBES[0])
        more = max(few + 1, whole // _PROBES[1])
        self.probe(few)  # the first rollout on a device is slower than the next ones
        short, long = self.probe(few), self.probe(more)
        expected = long + (whole - more) * max(long - short, 0.0) / (more - few)
        if expected > limit:
            dearer = max(1.0, self.probe(few, _PIECES) / max(short, 1e-9))  # a step of all pieces
            steps = int(whole * limit / (expected * dearer))
            self.progress.validation_steps = max(1, whole // _SHORTEST, min(whole // _PIECES, steps))

    def probe(self, steps: int, pieces: int = 1) -> float:
        """Seconds of a validation of so many steps."""
        started = time.perf_counter()
        evaluate_rne(self.model, self.base, self.valid, steps, pieces)
        return agreed(time.perf_counter() - started)

    def step(self, stage: Stage) -> float:
        if stage.method == "fitted":
            return self.model.fit_data(self.base, self.train, self.valid)
        return iterate(self.model, self.base, self.train, stage, self.optimiser, self.scale, self.seed, self.progress.iteration,
                       self.recipe.clip)

    def error(self) -> float:
        return self._error_of(self.model)

    def rival(self) -> float:
        return self._error_of(Classical(self.model.rival_mass))

    def _error_of(self, model: Model[Any]) -> float:
        if self.progress.validation_steps:
            return evaluate_rne(model, self.base, self.valid, self.progress.validation_steps, _PIECES)
        return evaluate_rne(model, self.base, self.valid, self.recipe.validate_steps)


def _copied(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def split(dataset: Dataset, recipe: Recipe, seed: int = 0, limit: int | None = None) -> tuple[list[int], list[int]]:
    """Numbers of the trajectories to train on and to validate with. A single one serves for both, and so do some of all where the
    recipe holds none out."""
    numbers = dataset.of("train")[:limit]
    if len(numbers) < 2:
        return numbers, numbers
    count = min(recipe.hold_out or validated(len(numbers)), len(numbers) - 1)
    order = np.random.default_rng(seed).permutation(np.asarray(numbers))
    training, validation = sorted(order[count:].tolist()), sorted(order[:count].tolist())
    return (training if recipe.hold_out else list(numbers)), validation


def validated(trajectories: int) -> int:
    """How many of the training trajectories validate."""
    return max(1, min(_MOST, trajectories // 5))
