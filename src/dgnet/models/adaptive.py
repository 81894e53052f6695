"""Steps as short as a tolerance asks for, between stored times that stay the user's."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

import torch

from dgnet.arguments import checked
from dgnet.errors import InputError, RangeError, SolveError
from dgnet.models.base import LearnedModel, Memory, Model, Stepper, WrappedStepper, Wrapper
from dgnet.problems import Problem

Tensor = torch.Tensor

_DEEPEST = 14  # halvings of a step, at most
_EASY = 0.1  # share of the tolerance below which the next step may be twice as long (its error would be eight times larger)


@checked
class Adaptive(Wrapper["Halvings"]):
    """A model whose steps are halved until their error is below a tolerance, by comparing each with two of half the length.

    - `model`: any model that solves an equation and has no steps of its own: the classical solvers, or a DGNet without a residual
      network and early steps
    - `tolerance`: of the error of a step at any node, relative to the range that each field has reached so far, space and time
      together

    A step keeps the two halves; schemes are of second order, so their error is a third of the difference. Between two stored times
    there are at least two steps. A source is the average of the stored step. Classical steps are computed in double precision.
    `taken`, `rejected` and `shortest` say what the last rollout did.

        >>> import dgnet as dg, torch
        >>> from dgnet.models import Adaptive
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(reaction=lambda u: -5 * u), [], dt=0.5)
        >>> model = Adaptive(dg.Classical(), tolerance=1e-5)
        >>> last = dg.rollout(model, problem, torch.ones(1, 25, 1, dtype=torch.float64), steps=2)[0, -1, 0, 0]
        >>> abs(last.item() - 0.006738) < 1e-4, model.taken > 20
        (True, True)
    """

    def __init__(self, model: Model[Any], tolerance: float) -> None:
        if not (isfinite(tolerance) and 0 < tolerance < 1):
            raise InputError(f"the tolerance of adaptive steps must lie between 0 and 1, got {tolerance:g}")
        if isinstance(model, Adaptive):
            raise InputError("the steps of this model are adaptive already")
        if not model.any_step:
            raise InputError(f"the steps of {model.name} must all have the length that its corrections are for, so they cannot be "
                             "adaptive: take Classical, or a DGNet without a residual network and early steps")
        self.model, self.tolerance = model, tolerance
        self.taken = self.rejected = 0
        self.shortest = float("inf")

    @property
    def name(self) -> str:
        return f"{self.model.name}, adaptive"

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> Halvings:
        return Halvings(self, problem if isinstance(self.model, LearnedModel) else problem.double, batch, steps)

    def figures(self) -> dict[str, float]:
        """What the last rollout did."""
        return {"tolerance": self.tolerance, "taken": self.taken, "rejected": self.rejected, "shortest": self.shortest}


class Halvings(WrappedStepper):
    """Where a rollout stands: a stepper for each length dt / 2^level that was needed, and how long steps are now.

    Its memory is the length of steps, what their error is measured against, and the memory of the steppers: NAME of level 3 is
    "3 NAME".
    """

    def __init__(self, model: Adaptive, problem: Problem, batch: int, steps: int) -> None:
        self.model, self.problem, self.batch, self.steps = model, problem, batch, steps
        self.steppers: dict[int, Stepper] = {}
        self.level = self.made = 0  # length, and how many steps there were
        self.start: Tensor | None = None
        self.scale: Tensor | None = None  # [F]: range of each field so far
        self.earlier: dict[int, Memory] = {}  # the memory of steppers that an earlier part of the rollout had

    def at(self, level: int) -> Stepper:
        """The stepper of a length."""
        if level not in self.steppers:
            problem = replace(self.problem, dt=self.problem.dt / 2**level) if level else self.problem
            self.steppers[level] = self.model.model.prepare(problem, self.batch, self.steps, careful=True)
            self.steppers[level].remember(self.earlier.get(level, {}))
        return self.steppers[level]

    @property
    def inner(self) -> Stepper:  # type: ignore[override]
        return self.at(0)

    def lift(self, u: Tensor) -> Tensor:
        return self.inner.lift(u.double())

    def begin(self, u: Tensor) -> Tensor:
        self.model.taken = self.model.rejected = 0
        self.model.shortest = float("inf")
        return self.inner.begin(u.double())

    def finish(self) -> None:
        """Nothing: every solve was checked at once, and what rejected steps have reached is no part of the rollout."""

    def memory(self) -> Memory:
        levels = self.earlier | {level: stepper.memory() for level, stepper in self.steppers.items()}
        found = {f"{level} {name}": value for level, memory in levels.items() for name, value in memory.items()}
        if self.start is not None and self.scale is not None:
            found |= {"level": torch.tensor(self.level), "made": torch.tensor(self.made), "start": self.start, "scale": self.scale}
        return found

    def remember(self, memory: Memory) -> None:
        self.level, self.made = int(memory.get("level", 0)), int(memory.get("made", 0))
        self.start, self.scale, self.earlier = memory.get("start"), memory.get("scale"), {}
        for key, value in memory.items():
            level, _, name = key.partition(" ")
            if name:
                self.earlier[int(level)] = {**self.earlier.get(int(level), {}), name: value}
        for count, stepper in self.steppers.items():
            stepper.remember(self.earlier.get(count, {}))

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        source = None if source is None else source.double()
        if self.start is None:
            self.start, self.scale = u.detach(), _range(u)
        dt, done = self.problem.dt, 0.0  # the share of the step that is behind us: a whole number of the current halves
        while done < 1:
            h = dt / 2**self.level
            found = self._tried(u, source, t + done * dt, self.made)
            if found is None:
                self.model.rejected += 1
                self.level += 1
                if self.level > _DEEPEST:
                    raise SolveError(f"steps of {h:.3g} still miss the tolerance {self.model.tolerance:g}: is the start or a "
                                     "source too rough for it?")
                continue
            u, easy = found
            self.model.taken += 2
            self.made += 2
            self.model.shortest = min(self.model.shortest, h / 2)
            done += 0.5**self.level
            if easy and self.level and (done * 2 ** (self.level - 1)).is_integer():
                self.level -= 1
        return u

    def _tried(self, u: Tensor, source: Tensor | None, t: float, k: int) -> tuple[Tensor, bool] | None:
        """The state after a step of the current length, by two halves, and whether a longer one would do; None if it would not."""
        half = self.problem.dt / 2 ** (self.level + 1)
        whole, part = self.at(self.level), self.at(self.level + 1)
        try:
            coarse = whole.step(u, source, t, k)
            fine = part.step(part.step(u, source, t, k), source, t + half, k)
        except SolveError:
            return None
        except RangeError:  # a step that is too long may overshoot
            if self.level == _DEEPEST:
                raise
            return None
        assert self.scale is not None and self.start is not None
        scale = torch.maximum(self.scale, torch.maximum(_range(fine), (fine - self.start).detach().abs().amax((0, 1))))
        error = (fine - coarse).detach().abs().amax((0, 1)) / 3
        size = float(torch.where(scale > 0, error / scale, torch.zeros_like(scale)).max())
        if not size <= self.model.tolerance:
            return None
        self.scale = scale
        return fine, size < _EASY * self.model.tolerance


def _range(u: Tensor) -> Tensor:
    return (u.amax(1) - u.amin(1)).detach().amax(0)
