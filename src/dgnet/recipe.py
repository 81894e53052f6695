"""How a model is trained: stages of windows, as plain data.

`paper` is the paper's own (Section 3.5, Table of Appendix C): short sub-sequences, noise on the first state, pushforward, loss
on the first and last prediction, Adam with step decay. `staged` is ours: short windows away from rough starts, then long
ones, loss on every step; validation rollouts pick the weights, and the untrained model is one of the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dgnet.errors import InputError


@dataclass(frozen=True)
class Stage:
    """`iterations` of Adam on random windows of `length` steps that start at step `first` or later."""

    iterations: int
    length: int
    batch: int = 16
    lr: float = 1e-3
    first: int = 0
    from_start: float = 0.0  # share of windows that begin at step 0, whatever `first` says
    skip: int = 0  # steps of a window before the loss counts
    loss: str = "all"  # all | ends
    relative: bool = False  # error of every state against its own size (relative L2) instead of the data's spread
    noise: float = 0.0  # on the first state, in standard deviations
    pushforward: int = 0  # up to this many steps without gradient before the window
    decay: str = "cosine"  # cosine | step
    decay_every: int = 0
    decay_rate: float = 0.1
    end: float = 0.02  # of the learning rate, left when the cosine is over
    only: tuple[str, ...] = ()  # names of parts to train; all of them when empty
    method: str = "adam"  # adam | gauss-newton: for few numbers, all trajectories in back-to-back windows | identify: a table

    def __post_init__(self) -> None:
        if self.method not in ("adam", "gauss-newton", "identify"):
            raise InputError(f"unknown training method '{self.method}' (known: adam, gauss-newton, identify)")
        if self.loss not in ("all", "ends"):
            raise InputError(f"unknown loss '{self.loss}' (known: all, ends)")
        if self.decay not in ("cosine", "step"):
            raise InputError(f"unknown learning-rate decay '{self.decay}' (known: cosine, step)")
        if min(self.iterations, self.length, self.batch) < 1:
            raise InputError("a stage needs positive iterations, length and batch")


@dataclass(frozen=True)
class Recipe:
    name: str
    stages: tuple[Stage, ...]
    validate_every: int = 50
    validate_steps: int | None = None
    hold_out: int = 2
    free_lr: float = 10.0  # factor on the learning rate of free per-edge numbers and calibrated coefficients
    clip: float = 1.0
    weight_decay: float = 0.0  # above 0: AdamW

    @property
    def iterations(self) -> int:
        return sum(s.iterations for s in self.stages)

    def share(self, stage: int) -> tuple[float, float]:
        """(before, own): parts of the whole effort, in steps and what an iteration costs besides them."""
        cost = [s.iterations * (s.length + 60) for s in self.stages]
        return sum(cost[:stage]) / sum(cost), cost[stage] / sum(cost)

    def scaled(self, factor: float) -> Recipe:
        """The same recipe with more or fewer iterations."""
        return replace(self, stages=tuple(replace(s, iterations=max(1, round(s.iterations * factor))) for s in self.stages))


@dataclass(frozen=True)
class PaperSettings:
    """A row of the paper's hyperparameter table."""

    batch: int
    lr: float
    epochs: int
    decay_step: int
    decay_rate: float
    length: int


GENERAL = (Stage(400, 8, 16, 3e-3), Stage(400, 40, 8, 2e-3, from_start=0.25))
"""Short windows, then long ones."""

IN_A_FLOW = (Stage(200, 8, 8, 3e-3), Stage(150, 30, 8, 2e-3))
"""Fewer iterations, since each costs more; nothing is special about the start."""


def paper_recipe(row: PaperSettings, trajectories: int, steps: int, noise: float = 0.01) -> Recipe:
    """The paper's recipe by a row of its table."""
    length = min(row.length - 1, steps)  # a sub-sequence of Q states is Q - 1 steps
    per_epoch = max(1, trajectories * (steps // length) // row.batch)
    stage = Stage(row.epochs * per_epoch, length, row.batch, row.lr, loss="ends", noise=noise, pushforward=1, decay="step",
                  decay_every=row.decay_step * per_epoch, decay_rate=row.decay_rate)
    return Recipe("paper", (stage,), validate_every=max(20, per_epoch))
