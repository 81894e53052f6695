"""The contract of every model: prepare a problem once, then step.

    stepper = model.prepare(problem)
    u = stepper.begin(u0)
    u = stepper.step(u, source, t, k)          once for every step k, from t to t + dt
    states at the nodes: stepper.read(u)
    stepper.finish()

DGNet, the classical solver and every baseline follow it, so that they run through the same training, tables and timings.
A model that changes another one is a `Wrapper`, whose steppers are `WrappedStepper`s: they hand on every name of both classes.
Axes are [batch, time, node, field] everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.problems import CONSISTENT, Problem, Rule, SpotTable
from dgnet.stepping import GreenSolver, Linear, Solver
from dgnet.stepping.bounds import Bounds

Tensor = torch.Tensor
Memory = Mapping[str, Tensor]
"""Numbers by name."""
START = 2
"""Steps after a start that are L-stable, unless a model says otherwise."""
Pairs = list[tuple[Tensor, Tensor]]
"""(tensor, leaf): what weights made of the problem, and the leaf of autograd that a step uses in its place."""


class Severed(NamedTuple):
    """A stepper cut off from how its operators came about, so that this part of a gradient is taken once for many steps."""

    stepper: Stepper
    pairs: Pairs


class Stepper(ABC):
    """A problem that a model has made ready to step. A stepper has `step`; everything else has a default.

    States have values at the P points of the model, the mesh's N nodes first (`Model.points`).
    """

    @abstractmethod
    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        """Step k: u [B, P, F] at time t and the source of the step [B, N or P, F], by the model's `rule`, or its moments
        [B, `moments`, N or P, F] -> u at t + dt."""

    def begin(self, u: Tensor) -> Tensor:
        """What step 0 starts from [B, P, F], given the initial state [B, N or P, F]."""
        return self.lift(u)

    def lift(self, u: Tensor) -> Tensor:
        """What later steps go on from [B, P, F], given a state at the nodes [B, N, F] or at all points already."""
        return u

    def read(self, u: Tensor) -> Tensor:
        """The values at the nodes [B, N, F] of a state [B, P, F]."""
        return u

    def finish(self) -> None:  # noqa: B027
        """Raise if a check failed that was put off to the end of a rollout."""

    def phase(self, k: int) -> int:
        """Steps of the same phase are the same sequence of operations; all from the model's `first_steps` on have one phase."""
        return 0

    def foresee(self, source: Tensor | None, first: int) -> None:  # noqa: B027
        """The sources of all steps of a rollout [B, steps, ...], of which the first one has the number `first`."""

    def starts(self, k: int, t: float) -> bool:
        """Whether step k from the time t is one of those after the start or a jump, which differ from all others."""
        return False

    def memory(self) -> Memory:
        """What the steps so far leave to the next beside u: bounds that widen along a run, the length of adaptive steps."""
        return {}

    def remember(self, memory: Memory) -> None:  # noqa: B027
        """Go on after the steps that left this memory; an empty one is that of a start."""

    def brings(self) -> np.ndarray | None:
        """What a unit of the source at each point brings in all, per time [P]; None where it is the integral of the interpolated
        source, as that of linear and quadratic elements is."""
        return None

    # ------------------------------------------------------------------ what only some can

    @property
    def green(self) -> GreenSolver | None:
        """The linear solver of the usual steps, where there is one."""
        return None

    @property
    def solver(self) -> GreenSolver:
        """`green`, where there must be one."""
        if self.green is None:
            raise InputError("capacity or diffusion change with the solution: this step has no single operator to look at")
        return self.green

    def linear(self) -> Linear | None:
        """All steps but those that are `starts` as operations on arrays; None where they are not one linear operator."""
        return None

    def settle(self) -> None:  # noqa: B027
        """Make every step as those long after the start."""

    def restart(self, k: int) -> None:  # noqa: B027
        """Take steps from the number k on as those after a start: something jumps there that the problem does not tell."""

    def repeats(self, times: Sequence[float] = ()) -> bool:
        """The step is the same sequence of device operations every time, so that a CUDA graph may replay it.

        With `times`, those of the steps of a problem in which only a given flow changes: made so for them, if that can be.
        """
        return False

    def severed(self) -> Severed | None:
        """The same stepper with what weights made of the problem as leaves; None where that cannot be."""
        return None


S = TypeVar("S", bound=Stepper)
"""The stepper of a model."""

Again = Callable[[Bounds | None], S]
"""Bounds of the spectrum of the matrices, or None to have them measured -> a problem made ready, with the weights of now."""


class Model(ABC, Generic[S]):
    """A model has a `name` and `prepare`; everything else has a default."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "step" in vars(cls):
            raise TypeError(f"{cls.__name__}.step would never be called: steps belong to the `Stepper` that `prepare` returns")

    @property
    @abstractmethod
    def name(self) -> str:
        """As in the registry and in tables."""

    @abstractmethod
    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> S:
        """Make a problem ready. `batch` trajectories and `steps` steps are hints for choosing a backend.

        `careful` checks every solve at once and falls back where one misses, instead of checking all of them at the end.
        Differentiable: what weights make of the problem is part of the graph, so prepare once per optimiser step.
        """

    def points(self, problem: Problem) -> np.ndarray:
        """Where it has values [P, d], the mesh's nodes first. A start or a source that is a function is best evaluated here."""
        return problem.mesh.points

    @property
    def rule(self) -> Rule:
        """How its scheme takes a source: averaged over the step, or as the mean of both ends of it."""
        return "average"

    @property
    def moments(self) -> int:
        """How many moments of a source its steps take (`step_moments`): 1 for averages alone."""
        return 1

    @property
    def first_steps(self) -> int:
        """How many steps after the start differ from all others."""
        return 0

    def stable_steps(self, problem: Problem) -> int:
        """How many of the steps after the start of a problem are L-stable; with any, so are those around jumps of its data."""
        return 0

    @property
    def solves(self) -> bool:
        """The states follow from an equation: a rollout that grows without bound is an error, not a result."""
        return False

    @property
    def any_step(self) -> bool:
        """Steps may be of any length, one after the other: none makes up for its own, or remembers the one before."""
        return self.solves

    def again(self, problem: Problem, batch: int) -> Again[S] | None:
        """`prepare` for weights that change, as a function that asks nothing of the host, so that it can be recorded together with
        the steps that follow; None where that cannot be."""
        return None

    def brought(self, problem: Problem) -> np.ndarray | None:
        """`Stepper.brings` of a problem that is not prepared yet."""
        return None

    def taking(self, spots: SpotTable, problem: Problem) -> SpotTable:
        """Spots as this model takes them up on the mesh of a problem (`SpotTable.on`)."""
        return spots.on(problem.mesh, self.brought(problem))

    def fit_statistics(self, state: Tensor, source: Tensor | None, dt: float, velocity: Tensor | None = None) -> None:
        """Scales of the training data: states [B, T+1, N, F], step-averaged sources [B, T, N, F], velocities [B, T+1, N, d]."""

    def typical(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and spread of the states, and size of the sources that the model was made for, each [F] or []."""
        return torch.zeros(()), torch.ones(()), torch.ones(())

    @property
    def rival_mass(self) -> float:
        """`consistent` of the classical solver that training compares the model with: 1 is Galerkin's mass, 0 lumped."""
        return CONSISTENT


class LearnedModel(Model[S], nn.Module):
    """A model with weights. `config` is the frozen dataclass that it was built from."""

    config: Any

    def fit_data(self, base: Problem, train: Corpus, valid: Corpus) -> float:
        """Fit at once, without iterations (the stage method "fitted"): returns the error of the held-out trajectories."""
        raise InputError(f"{self.name} is trained by iterations, not fitted at once")


# ---------------------------------------------------------------------- steppers made of solvers


class SolverStepper(Stepper):
    """Steps of solvers: `main` makes all but the first steps, others have names.

    `stable`: how many steps after the start are L-stable. With any, so are those in which boundary data jump and the ones after.
    """

    def __init__(self, main: Solver, stable: int = 0, **others: Solver) -> None:
        self.main, self.stable, self.solvers = main, stable, {"solver": main, **others}

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return self.main.step(u, source, t, start=self.starts(k, t))

    def starts(self, k: int, t: float) -> bool:
        return k < self.stable or (self.stable > 0 and self.problem.jumps(t))

    def phase(self, k: int) -> int:
        return int(k >= self.stable)

    def settle(self) -> None:
        self.stable = 0

    def restart(self, k: int) -> None:
        self.stable += k if self.stable else 0

    @property
    def problem(self) -> Problem:
        """The problem as it is solved."""
        return self.main.problem

    def finish(self) -> None:
        for solver in self.solvers.values():
            solver.finish()

    def memory(self) -> Memory:
        return {name: torch.tensor(solver.memory, dtype=torch.float64) for name, solver in self.solvers.items()}

    def remember(self, memory: Memory) -> None:
        for name, solver in self.solvers.items():
            solver.memory = tuple(memory[name].tolist()) if name in memory else ()

    @property
    def green(self) -> GreenSolver | None:
        return self.main if isinstance(self.main, GreenSolver) else None

    def linear(self) -> Linear | None:
        return None if self.green is None else self.green.linear()

    def repeats(self, times: Sequence[float] = ()) -> bool:
        return self.main.freeze(times) if times else self.main.capturable


def impose(p: Problem, u: Tensor, t: float) -> Tensor:
    """Dirichlet values hold exactly after a correction, too, and nodes that periodic boundaries identify stay one."""
    u, w = p.restrict(u), p.fixed_values(t + p.dt)
    if p.fixed is not None and w is not None:
        u = torch.where(p.fixed.T, w.to(u.dtype), u)
    return p.expand(u)


# ---------------------------------------------------------------------- models that change another one

_ABOUT_STEPS = ("green", "solver", "linear", "repeats", "severed", "starts")


class Wrapper(Model[S]):
    """A model around another one, `model`: hands on every name of `Model` that it does not change, on the problem `inner`."""

    model: Model[Any]

    def inner(self, problem: Problem) -> Problem:
        """The problem that the wrapped model solves in place of this one."""
        return problem

    def points(self, problem: Problem) -> np.ndarray:
        return self.model.points(self.inner(problem))

    @property
    def rule(self) -> Rule:
        return self.model.rule

    @property
    def moments(self) -> int:
        return self.model.moments

    @property
    def first_steps(self) -> int:
        return self.model.first_steps

    def stable_steps(self, problem: Problem) -> int:
        return self.model.stable_steps(self.inner(problem))

    @property
    def solves(self) -> bool:
        return self.model.solves

    @property
    def any_step(self) -> bool:
        return self.model.any_step

    def brought(self, problem: Problem) -> np.ndarray | None:
        return self.model.brought(self.inner(problem))

    def taking(self, spots: SpotTable, problem: Problem) -> SpotTable:
        return self.model.taking(spots, self.inner(problem))

    def fit_statistics(self, state: Tensor, source: Tensor | None, dt: float, velocity: Tensor | None = None) -> None:
        self.model.fit_statistics(state, source, dt, velocity)

    def typical(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.model.typical()

    @property
    def rival_mass(self) -> float:
        return self.model.rival_mass


class WrappedStepper(Stepper):
    """A stepper around another one, `inner`: hands on every name of `Stepper` that it does not change.

    What says how the wrapped one steps (`_ABOUT_STEPS`) holds only while `step` is handed on, too: a subclass with a step of its
    own has none of it unless it says so itself.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "step" in vars(cls):
            for name in _ABOUT_STEPS:
                if name not in vars(cls):
                    setattr(cls, name, vars(Stepper)[name])

    def __init__(self, inner: Stepper) -> None:
        self.inner = inner

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return self.inner.step(u, source, t, k)

    def begin(self, u: Tensor) -> Tensor:
        return self.inner.begin(u)

    def lift(self, u: Tensor) -> Tensor:
        return self.inner.lift(u)

    def read(self, u: Tensor) -> Tensor:
        return self.inner.read(u)

    def foresee(self, source: Tensor | None, first: int) -> None:
        self.inner.foresee(source, first)

    def finish(self) -> None:
        self.inner.finish()

    def phase(self, k: int) -> int:
        return self.inner.phase(k)

    def starts(self, k: int, t: float) -> bool:
        return self.inner.starts(k, t)

    def settle(self) -> None:
        self.inner.settle()

    def restart(self, k: int) -> None:
        self.inner.restart(k)

    def memory(self) -> Memory:
        return self.inner.memory()

    def remember(self, memory: Memory) -> None:
        self.inner.remember(memory)

    def brings(self) -> np.ndarray | None:
        return self.inner.brings()

    @property
    def green(self) -> GreenSolver | None:
        return self.inner.green

    @property
    def solver(self) -> GreenSolver:
        return self.inner.solver

    def linear(self) -> Linear | None:
        return self.inner.linear()

    def repeats(self, times: Sequence[float] = ()) -> bool:
        return self.inner.repeats(times)

    def severed(self) -> Severed | None:
        found = self.inner.severed()
        if found is None:
            return None
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, inner=found.stepper)
        return Severed(twin, found.pairs)
