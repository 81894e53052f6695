"""Steps as short or as long as a tolerance asks for; stored times stay the user's.

Steps of dG(k) in time have a polynomial each, which gives the states at all stored times within (`LongSteps`): steps may be many
times longer than stored ones. Others are halved between stored times until that changes nothing any more (`Halvings`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
import torch

from dgnet.arguments import checked
from dgnet.errors import InputError, RangeError, SolveError
from dgnet.models.base import LearnedModel, Memory, Model, Stepper, WrappedStepper, Wrapper
from dgnet.models.classical import Classical, ClassicalStepper
from dgnet.problems import Problem

Tensor = torch.Tensor

_DEEPEST, _LONGEST = 14, 6  # halvings of a step, and doublings, at most
_EASY = 0.1  # share of the tolerance below which the next step may be twice as long (its error would be eight times larger)


@checked
class Adaptive(Wrapper["Halvings | LongSteps"]):
    """A model whose steps are halved until their error is below a tolerance, by comparing each with two of half the length.

    Those of `Classical(scheme="dg1")` or "dg2" may become up to 64 times longer than stored ones, too: their error is judged by the
    jump with which they begin. Not with a reaction or matrices that change in time, and with gradients never longer. They do not
    reach beyond the sources that a rollout is given: parts of one with a source agree with the whole within the tolerance only.

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

    @property
    def moments(self) -> int:
        return 1

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> Halvings | LongSteps:
        if isinstance(self.model, Classical) and self.model.moments > 1:
            if problem.pde.reaction is None and not problem.time_dependent:
                return LongSteps(self, self.model, problem.double, batch, steps)
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


class LongSteps(Stepper):
    """Steps of dG(k) of length dt 2^level, and the polynomial of the last one that reaches beyond a stored time.

    Its memory is that polynomial, the level and the scale of errors, so that a rollout goes on within a long step.
    """

    def __init__(self, model: Adaptive, classical: Classical, problem: Problem, batch: int, steps: int) -> None:
        self.model, self.classical, self.problem, self.batch, self.steps = model, classical, problem, batch, steps
        self.steppers: dict[int, ClassicalStepper] = {}
        self.source: Tensor | None = None  # averages of all steps to come
        self.first = 0
        self.remember({})

    def at(self, level: int) -> ClassicalStepper:
        """The stepper of a length."""
        if level not in self.steppers:
            problem = replace(self.problem, dt=self.problem.dt * 2.0**level) if level else self.problem
            self.steppers[level] = self.classical.prepare(problem, self.batch, self.steps, careful=True)
        return self.steppers[level]

    def foresee(self, source: Tensor | None, first: int) -> None:
        self.source, self.first = source, first

    def begin(self, u: Tensor) -> Tensor:
        self.model.taken = self.model.rejected = 0
        self.model.shortest = float("inf")
        return self.at(0).begin(u.double())

    def lift(self, u: Tensor) -> Tensor:
        return self.at(0).lift(u.double())

    def read(self, u: Tensor) -> Tensor:
        return self.at(0).read(u)

    def memory(self) -> Memory:
        if self.scale is None or self.origin is None:
            return {}
        found = {"level": torch.tensor(self.level), "scale": self.scale, "origin": self.origin}
        if self.course is not None:
            found |= {"course": self.course, "covered": torch.tensor(self.covered)}
        return found

    def remember(self, memory: Memory) -> None:
        self.level, self.covered = int(memory.get("level", 0)), tuple(memory["covered"].tolist()) if "covered" in memory else (0, 0)
        self.scale, self.origin, self.course = memory.get("scale"), memory.get("origin"), memory.get("course")

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        if self.origin is None:
            self.origin, self.scale = u.detach(), _range(u)
        if self.course is not None and self.covered[0] <= k < self.covered[1]:
            return self.within(k + 1, t + self.problem.dt)
        self.course, done, level = None, 0.0, min(self.level, self.longest(k, t))
        while done < 1:
            f = None if source is None else self.moments(source, k, level)
            stepper = self.at(level)
            ends, new = stepper.solver.course(u, None if f is None else stepper.lift(f), t + done * self.problem.dt)
            jump = sum((-v if i % 2 else v for i, v in enumerate(ends)), torch.zeros_like(u)).detach().abs().amax((0, 1))
            assert self.scale is not None and self.origin is not None
            scale = torch.maximum(self.scale, torch.maximum(_range(new), (new - self.origin).detach().abs().amax((0, 1))))
            size = float(torch.where(scale > 0, jump / scale, torch.zeros_like(scale)).max())
            if not size <= self.model.tolerance and level > -_DEEPEST:
                self.model.rejected += 1
                level -= 1
                continue
            if not size <= self.model.tolerance:
                raise SolveError(f"steps of {self.problem.dt * 2.0**level:.3g} still miss the tolerance {self.model.tolerance:g}: "
                                 "is the start or a source too rough for it?")
            self.scale, self.model.taken = scale, self.model.taken + 1
            self.model.shortest = min(self.model.shortest, self.problem.dt * 2.0**level)
            if level > 0:
                self.course, self.covered = torch.stack([u, *ends]).detach(), (k, k + 2**level)
            done, u = done + 2.0**level, new
            easy = size < self.model.tolerance * 0.5 ** (self.classical.moments + 1)
            if easy and level < _LONGEST and (level >= 0 or (done * 2.0 ** -(level + 1)).is_integer()):
                level += 1
            if done < 1:
                level = min(level, 0)
        self.level = level
        return u if self.course is None else self.within(k + 1, t + self.problem.dt)

    def longest(self, k: int, t: float) -> int:
        """How long a step that begins with step k may be: within what is known of sources, and not across jumps."""
        if torch.is_grad_enabled():
            return 0
        known = _LONGEST if self.source is None else int(math.log2(max(1, self.first + self.source.shape[1] - k)))
        dt, level = self.problem.dt, min(_LONGEST, known)
        while level > 0 and any(self.problem.jumps(t + j * dt) for j in range(2**level)):
            level -= 1
        return level

    def moments(self, source: Tensor, k: int, level: int) -> Tensor:
        """Moments [B, i, P, F] over a step: a source is constant in each stored one."""
        if level <= 0 or self.source is None:
            return source.double()[:, None]
        count = 2**level
        P = [np.polynomial.legendre.Legendre.basis(i).integ() for i in range(self.classical.moments)]
        edges = np.linspace(-1, 1, count + 1)
        weights = torch.tensor(np.stack([0.5 * np.diff(p(edges)) for p in P]), device=source.device)
        f = self.source[:, k - self.first:k - self.first + count].double()
        return torch.einsum("it,btpf->bipf", weights, f)

    def within(self, k: int, t: float) -> Tensor:
        """The state after k steps, at t, by the polynomial of the step that covers it."""
        assert self.course is not None
        begin, end = self.covered
        x = 2 * (k - begin) / (end - begin) - 1
        P = np.polynomial.legendre.legvander(np.array([x]), len(self.course) - 2)[0]
        u = self.course[0] + sum((v * float(p) for v, p in zip(self.course[1:], P)), torch.zeros_like(self.course[0]))
        if k == end:
            self.course = None
        p = self.at(0).problem
        return p.expand(self.at(0).solver.walled(p.restrict(u), t))


def _range(u: Tensor) -> Tensor:
    return (u.amax(1) - u.amin(1)).detach().amax(0)
