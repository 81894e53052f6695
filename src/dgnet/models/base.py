"""The contract of every model: prepare a problem once, then step.

DGNet, the classical solver and every baseline follow it, so that they run through the same training, tables and timings.
Axes are [batch, time, node, field] everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.green import GreenSolver, Linear, Stepper
from dgnet.green.bounds import Bounds
from dgnet.problems import CONSISTENT, Discretisation, Rule, SpotTable

Tensor = torch.Tensor
S = TypeVar("S")
"""What a model makes of a problem in `prepare` and needs in `step`."""

Memory = Mapping[str, Tensor]
"""Numbers by name."""

Again = Callable[[Bounds | None], S]
"""Bounds of the spectrum of the matrices, or None to have them measured -> a problem made ready, with the weights of now."""


class Model(ABC, Generic[S]):
    """A model has a `name`, `prepare` and `step`; everything else has a default."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As in the registry and in tables."""

    @abstractmethod
    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> S:
        """Make a problem ready. `batch` trajectories and `steps` steps are hints for choosing a backend.

        `careful` checks every solve at once and falls back where one misses, instead of checking all of them at the end.
        Differentiable: what weights make of the problem is part of the graph, so prepare once per optimiser step.
        """

    @abstractmethod
    def step(self, state: S, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        """Step k: u [B, N, F] at time t and the source of the step [B, N, F], by its `rule` -> u at t + dt.

        A model that has more points than the mesh has nodes steps [B, P, F] instead: see `lift` and `read`.
        """

    @property
    def rule(self) -> Rule:
        """How its scheme takes a source: averaged over the step, or as the mean of both ends of it."""
        return "average"

    # ------------------------------------------------------------------ points beside the nodes

    def points(self, problem: Discretisation) -> np.ndarray:
        """Where it has values [P, d], the mesh's nodes first. A start or a source that is a function is best evaluated here."""
        return problem.mesh.points

    def lift(self, state: S, u: Tensor) -> Tensor:
        """What steps work on [B, P, F], from values at the nodes [B, N, F] or at all points already."""
        return u

    def read(self, state: S, u: Tensor) -> Tensor:
        """The values at the nodes [B, N, F] of what steps work on."""
        return u

    def brings(self, state: S) -> np.ndarray | None:
        """What a unit of the source at each point brings in all, per time [P]; None where it is the integral of the interpolated
        source, as that of linear and quadratic elements is."""
        return None

    def taking(self, spots: SpotTable, problem: Discretisation) -> SpotTable:
        """Spots as this model takes them up on the mesh of a problem (`SpotTable.on`)."""
        return spots.on(problem.mesh, self.brought(problem))

    def brought(self, problem: Discretisation) -> np.ndarray | None:
        """`brings` of a problem that is not prepared yet."""
        if type(self).brings is Model.brings:
            return None
        with torch.no_grad():
            return self.brings(self.prepare(problem, 1, 1))

    # ------------------------------------------------------------------ the first steps

    def begin(self, state: S, u: Tensor) -> Tensor:
        """What step 0 starts from, given the initial state [B, N, F] (or [B, P, F], see `points`)."""
        return self.lift(state, u)

    @property
    def first_steps(self) -> int:
        """How many steps after the start differ from all others."""
        return 0

    @property
    def plain_start(self) -> bool:
        """A rollout begins as it goes on: no filter of the initial state, no first steps that differ."""
        return self.first_steps == 0

    def phase(self, k: int) -> int:
        """Steps of the same phase are the same sequence of operations; all from `first_steps` on have one phase."""
        return min(k, self.first_steps)

    # ------------------------------------------------------------------ from one step to the next

    def memory(self, state: S) -> Memory:
        """What the steps so far leave to the next beside u: bounds that widen along a run, the length of adaptive steps."""
        return {}

    def remember(self, state: S, memory: Memory) -> None:
        """Go on after the steps that left this memory; an empty one is that of a start."""

    # ------------------------------------------------------------------ recorded steps (`capture`)

    def capturable(self, state: S) -> bool:
        """The step is the same sequence of device operations every time, so a CUDA graph may replay it."""
        return False

    def freeze(self, state: S, times: Sequence[float]) -> bool:
        """Where only a given flow changes, make the step capturable at these times; False if that cannot be."""
        return False

    def severed(self, state: S) -> tuple[S, list[tuple[Tensor, Tensor]]] | None:
        """The same state with what weights made of the problem as leaves, and (tensor, leaf) pairs; None where that cannot be."""
        return None

    def step_weights(self) -> Iterator[nn.Parameter]:
        """Weights that act in every step, and not through what `severed` cuts off."""
        return iter(())

    # ------------------------------------------------------------------ checks, statistics

    @property
    def solves(self) -> bool:
        """The states follow from an equation: a rollout that grows without bound is an error, not a result."""
        return False

    def finish(self, state: S) -> None:
        """Raise if a check failed that was put off to the end of a rollout."""

    def solver(self, state: S) -> GreenSolver | None:
        """The linear solver of the usual steps, where there is one."""
        return None

    def linear_steps(self, state: S) -> Linear | None:
        """All steps from `first_steps` on as operations on arrays, where they are one linear operator; None elsewhere."""
        return None

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
    """A model with weights, all of which act in every step. `config` is the frozen dataclass that it was built from."""

    config: Any

    def step_weights(self) -> Iterator[nn.Parameter]:
        return self.parameters()

    def again(self, problem: Discretisation, batch: int) -> Again[S] | None:
        """`prepare` for weights that change, as a function that asks nothing of the host, so that it can be recorded together with
        the steps that follow; None where that cannot be."""
        return None

    def fit_data(self, base: Discretisation, train: Corpus, valid: Corpus) -> float:
        """Fit at once, without iterations (the stage method "fitted"): returns the error of the held-out trajectories."""
        raise InputError(f"{self.name} is trained by iterations, not fitted at once")


def solver_memory(**solvers: Stepper) -> Memory:
    """The memory of solvers by the names of their parts of a model."""
    return {name: torch.tensor(solver.memory, dtype=torch.float64) for name, solver in solvers.items()}


def set_memory(memory: Memory, **solvers: Stepper) -> None:
    """What `solver_memory` gave, put into solvers of the same names; those that have none begin anew."""
    for name, solver in solvers.items():
        solver.memory = tuple(memory[name].tolist()) if name in memory else ()


def impose(p: Discretisation, u: Tensor, t: float) -> Tensor:
    """Dirichlet values hold exactly after a correction, too, and nodes that periodic boundaries identify stay one."""
    u, w = p.restrict(u), p.fixed_values(t + p.dt)
    if p.fixed is not None and w is not None:
        u = torch.where(p.fixed.T, w.to(u.dtype), u)
    return p.expand(u)
