"""Steps as short as a tolerance asks for, between stored times that stay the user's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Generic

import numpy as np
import torch

from dgnet.arguments import checked
from dgnet.errors import InputError, RangeError, SolveError
from dgnet.models.base import LearnedModel, Memory, Model, S
from dgnet.problems import Discretisation, Rule

Tensor = torch.Tensor

_DEEPEST = 14  # halvings of a step, at most
_EASY = 0.1  # share of the tolerance below which the next step may be twice as long (its error would be eight times larger)


@dataclass
class Halvings(Generic[S]):
    """Where a rollout stands: a solver for each length dt / 2^level that was needed, and how long steps are now."""

    problem: Discretisation
    batch: int
    steps: int
    solvers: dict[int, S] = field(default_factory=dict)
    level: int = 0
    start: Tensor | None = None
    scale: Tensor | None = None  # [F]: range of each field so far
    left: dict[int, Memory] = field(default_factory=dict)  # the memory of solvers that an earlier part of the rollout had


@checked
class Adaptive(Model[Halvings[S]]):
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

    def __init__(self, model: Model[S], tolerance: float) -> None:
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
    def solves(self) -> bool:
        return self.model.solves

    @property
    def rule(self) -> Rule:
        return self.model.rule

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> Halvings[S]:
        return Halvings(problem if isinstance(self.model, LearnedModel) else problem.double, batch, steps)

    def figures(self) -> dict[str, float]:
        """What the last rollout did."""
        return {"tolerance": self.tolerance, "taken": self.taken, "rejected": self.rejected, "shortest": self.shortest}

    def _solver(self, state: Halvings[S], level: int) -> S:
        if level not in state.solvers:
            problem = replace(state.problem, dt=state.problem.dt / 2**level) if level else state.problem
            state.solvers[level] = self.model.prepare(problem, state.batch, state.steps, careful=True)
            self.model.remember(state.solvers[level], state.left.get(level, {}))
        return state.solvers[level]

    def points(self, problem: Discretisation) -> np.ndarray:
        return self.model.points(problem)

    def lift(self, state: Halvings[S], u: Tensor) -> Tensor:
        return self.model.lift(self._solver(state, 0), u.double())

    def begin(self, state: Halvings[S], u: Tensor) -> Tensor:
        self.taken = self.rejected = 0
        self.shortest = float("inf")
        return self.model.begin(self._solver(state, 0), u.double())

    def read(self, state: Halvings[S], u: Tensor) -> Tensor:
        return self.model.read(self._solver(state, 0), u)

    def memory(self, state: Halvings[S]) -> Memory:
        """The length of steps, what their error is measured against, and the memory of the solvers: NAME of level 3 is "3 NAME"."""
        levels = state.left | {level: self.model.memory(solver) for level, solver in state.solvers.items()}
        found = {f"{level} {name}": value for level, memory in levels.items() for name, value in memory.items()}
        if state.start is not None and state.scale is not None:
            found |= {"level": torch.tensor(state.level), "start": state.start, "scale": state.scale}
        return found

    def remember(self, state: Halvings[S], memory: Memory) -> None:
        state.level = int(memory.get("level", 0))
        state.start, state.scale, state.left = memory.get("start"), memory.get("scale"), {}
        for key, value in memory.items():
            level, _, name = key.partition(" ")
            if name:
                state.left[int(level)] = {**state.left.get(int(level), {}), name: value}
        for count, solver in state.solvers.items():
            self.model.remember(solver, state.left.get(count, {}))

    def step(self, state: Halvings[S], u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        source = None if source is None else source.double()
        if state.start is None:
            state.start, state.scale = u.detach(), self._range(u)
        dt, done = state.problem.dt, 0.0  # the share of the step that is behind us: a whole number of the current halves
        while done < 1:
            h = dt / 2**state.level
            found = self._tried(state, u, source, t + done * dt, k)
            if found is None:
                self.rejected += 1
                state.level += 1
                if state.level > _DEEPEST:
                    raise SolveError(f"steps of {h:.3g} still miss the tolerance {self.tolerance:g}: is the start or a source too "
                                     "rough for it?")
                continue
            u, easy = found
            self.taken += 2
            self.shortest = min(self.shortest, h / 2)
            done += 0.5**state.level
            if easy and state.level and (done * 2 ** (state.level - 1)).is_integer():
                state.level -= 1
        return u

    def _tried(self, state: Halvings[S], u: Tensor, source: Tensor | None, t: float, k: int) -> tuple[Tensor, bool] | None:
        """The state after a step of the current length, by two halves, and whether a longer one would do; None if it would not."""
        half = state.problem.dt / 2 ** (state.level + 1)
        whole, part = self._solver(state, state.level), self._solver(state, state.level + 1)
        try:
            coarse = self.model.step(whole, u, source, t, k)
            fine = self.model.step(part, self.model.step(part, u, source, t, k), source, t + half, k)
        except SolveError:
            return None
        except RangeError:  # a step that is too long may overshoot
            if state.level == _DEEPEST:
                raise
            return None
        assert state.scale is not None and state.start is not None
        scale = torch.maximum(state.scale, torch.maximum(self._range(fine), (fine - state.start).detach().abs().amax((0, 1))))
        error = (fine - coarse).detach().abs().amax((0, 1)) / 3
        size = float(torch.where(scale > 0, error / scale, torch.zeros_like(scale)).max())
        if not size <= self.tolerance:
            return None
        state.scale = scale
        return fine, size < _EASY * self.tolerance

    @staticmethod
    def _range(u: Tensor) -> Tensor:
        return (u.amax(1) - u.amin(1)).detach().amax(0)
