"""How a model is trained: stages of windows, as plain data.

`paper` is the paper's own (Section 3.5, Table of Appendix C): short sub-sequences, noise on the first state, pushforward, loss
on the first and last prediction, Adam with step decay. `staged` is ours: short windows away from rough starts, then long
ones, loss on every step; validation rollouts pick the weights, and the untrained model is one of the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from dgnet.arguments import Count, NotNegative, Positive, Share, Such, Whole, checked
from dgnet.errors import InputError


@checked
@dataclass(frozen=True)
class Stage:
    """A stretch of training: `iterations` of an optimiser on random windows of trajectories.

    - `iterations`: how many
    - `length`: steps of a window
    - `batch`: windows per iteration
    - `lr`: learning rate
    - `first`: windows begin at this step or later
    - `from_start`: share of windows that begin at step 0, whatever `first` says
    - `skip`: steps of a window before the loss counts
    - `loss`: all states of a window, or the ends (the first and the last)
    - `unit`: of the errors in the loss: the data's spread, or the change of one step (both root mean squares over the training
      data), or own, what the first step of the window itself changes (at least a hundredth of the former)
    - `relative`: error of every state against its own size (relative L2) instead of the data's spread; a state counts as a tenth
      of the root mean square of the training states at least, since a channel is empty at first
    - `noise`: on the first state, in standard deviations
    - `step_noise`: on the first state, as a share of what one step changes: over the training data, or with `unit` own in this
      window
    - `pushforward`: up to this many steps without gradient before the window
    - `cut`: gradients reach back one step only (the pushforward trick inside the window), with the loss on the ends: that is one
      step from the first state and one from the last but one, the steps between them without gradient
    - `decay`: of the learning rate: cosine or step; `decay_every`, `decay_rate`: of the latter, in iterations and as a factor.
      Where a budget of time ends the stage early, both follow the share of the time
    - `end`: share of the learning rate that is left when the cosine is over
    - `only`: names of weights to train; all of them when empty
    - `method`: adam; gauss-newton, for few numbers, on all trajectories in back-to-back windows; identify, for
      an unknown reaction; material, for unknown curves of capacity and diffusion; fitted, for a model that is fitted at once

        >>> import dgnet as dg
        >>> dg.Stage(iterations=500, length=8, lr=3e-3)
        Stage(iterations=500, length=8, batch=16, lr=0.003, ...)
    """

    iterations: Count
    length: Count
    batch: Count = 16
    lr: NotNegative = 1e-3
    first: Whole = 0
    from_start: Share = 0.0
    skip: Whole = 0
    loss: str = "all"
    unit: str = "spread"
    relative: bool = False
    noise: NotNegative = 0.0
    step_noise: NotNegative = 0.0
    pushforward: Whole = 0
    cut: bool = False
    decay: str = "cosine"
    decay_every: Whole = 0
    decay_rate: Positive = 0.1
    end: Share = 0.02
    only: tuple[str, ...] = ()
    method: str = "adam"

    def __post_init__(self) -> None:
        known = ("adam", "gauss-newton", "identify", "material", "fitted")
        if self.method not in known:
            raise InputError(f"unknown training method '{self.method}' (known: {', '.join(known)})")
        if self.loss not in ("all", "ends"):
            raise InputError(f"unknown loss '{self.loss}' (known: all, ends)")
        if self.unit not in ("spread", "change", "own"):
            raise InputError(f"unknown unit of the loss '{self.unit}' (known: spread, change, own)")
        if self.decay not in ("cosine", "step"):
            raise InputError(f"unknown learning-rate decay '{self.decay}' (known: cosine, step)")
        if self.skip >= self.length:
            raise InputError(f"skip must be less than the {self.length} steps of a window, or no loss is left, got {self.skip}")
        if self.cut and (self.loss != "ends" or self.pushforward):
            raise InputError("cut = true goes with loss = \"ends\" and without pushforward")


@checked
@dataclass(frozen=True)
class Recipe:
    """How a model is trained: stages, one after the other; validation rollouts choose the weights.

    - `name`: of the recipe
    - `stages`: of training
    - `validations`: how often, evenly over the updates or the budget, whichever ends the training; after every stage as well
    - `validate_steps`: of a validation rollout; None for whole trajectories
    - `hold_out`: training trajectories that are kept for validation; with 0 none is, and rollouts of up to three of those that the
      model is trained on choose the weights
    - `free_lr`: factor on the learning rate of free per-edge numbers and calibrated coefficients
    - `clip`: largest norm of a gradient
    - `weight_decay`: above 0, AdamW
    - `eps`: Adam's, in units of the gradient: where gradients are smaller, weights hardly move
    - `by_updates`: learning rates follow the updates alone, never the clock: a budget of time ends the training where it is, to be
      resumed
    - `retreat`: after a validation that is worse than the best one by this factor or more, the best weights again and a learning
      rate that is lower by as much, by 4 to 64; 0 for never

        >>> import dgnet as dg
        >>> plan = dg.Recipe("short", (dg.Stage(100, 4), dg.Stage(50, 20, lr=5e-4)))
        >>> plan.iterations
        150
    """

    name: str
    stages: tuple[Stage, ...]
    validations: Whole = 20
    validate_steps: Count | None = None
    hold_out: Whole = 2
    free_lr: NotNegative = 10.0
    clip: Annotated[float, Such("a positive number", lambda x: x > 0)] = 1.0
    weight_decay: NotNegative = 0.0
    eps: Annotated[float, Such("a positive number", lambda x: x > 0)] = 1e-8
    by_updates: bool = False
    retreat: NotNegative = 0.0

    @property
    def iterations(self) -> int:
        return sum(s.iterations for s in self.stages)

    def share(self, stage: int) -> tuple[float, float]:
        """(before, own): parts of the whole effort, in steps and what an iteration costs besides them."""
        cost = [s.iterations * (s.length + 60) for s in self.stages]
        return sum(cost[:stage]) / sum(cost), cost[stage] / sum(cost)

    def without(self, stages: Sequence[int]) -> Recipe:
        """The same recipe without the stages of these numbers."""
        return replace(self, stages=tuple(s for k, s in enumerate(self.stages) if k not in stages)) if stages else self

    def scaled(self, factor: float) -> Recipe:
        """The same recipe with more or fewer iterations; learning rates decay at the same shares of them."""
        return replace(self, stages=tuple(replace(s, iterations=max(1, round(s.iterations * factor)),
                                                  decay_every=s.decay_every and max(1, round(s.decay_every * factor)))
                                          for s in self.stages))


@dataclass(frozen=True)
class PaperSettings:
    """A row of the paper's hyperparameter table, and what its text leaves open (chosen on validation rollouts,
    docs/results/depth.md): `noise` on the first state, as a share of the change of one step; the share of the windows that begin
    at the `start` of a trajectory; LayerNorm in the networks (`norm`)."""

    batch: int
    lr: float
    epochs: int
    decay_step: int
    decay_rate: float
    length: int
    noise: float = 0.1
    start: float = 0.1
    norm: bool = False


GENERAL = (Stage(400, 8, 16, 3e-3), Stage(400, 40, 8, 2e-3, from_start=0.25))
"""Short windows, then long ones."""

IN_A_FLOW = (Stage(200, 8, 8, 3e-3), Stage(150, 30, 8, 2e-3))
"""Fewer iterations, since each costs more; nothing is special about the start."""


def paper_recipe(row: PaperSettings, trajectories: int, steps: int, noise: float = 0.01) -> Recipe:
    """The paper's recipe by a row of its table. The paper does not say how weights are chosen; it trains on all trajectories."""
    length = min(row.length - 1, steps)  # a sub-sequence of Q states is Q - 1 steps
    per_epoch = max(1, trajectories * (steps // length) // row.batch)
    stage = Stage(row.epochs * per_epoch, length, row.batch, row.lr, loss="ends", noise=noise, pushforward=1, decay="step",
                  decay_every=row.decay_step * per_epoch, decay_rate=row.decay_rate)
    return Recipe("paper", (stage,), hold_out=0)


def settled(plan: Recipe, row: PaperSettings) -> Recipe:
    """The paper's recipe with the readings that validation rollouts have settled (docs/results/depth.md).

    Small noise is a share of a step's change; the pushforward trick cuts gradients between the steps of a window; the errors of a
    window count in units of its own first change, and Adam's eps is below any gradient: with 1e-8 the networks hardly move where a
    step changes little.
    """
    stages = tuple(replace(s, noise=0.0, pushforward=0, cut=True, unit="own", step_noise=row.noise, from_start=row.start)
                   for s in plan.stages)
    return replace(plan, stages=stages, by_updates=True, eps=1e-16)
