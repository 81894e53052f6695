"""What one step of a Green solver is made of, where nothing changes in time: the common ground of all kinds of export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dgnet.errors import InputError
from dgnet.operators import EdgeMatrix
from dgnet.problems import Case, Problem
from dgnet.stepping import Bounds, GreenSolver

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Pieces:
    """A d = E (u - c) + c s + dt (P f + sum of G_k r_k(u) + g),  u+ = u + d,  with d given at Dirichlet rows (`green.solver`).

    Matrices have values [1, f, nnz], f = 1 where all fields share them. c is the value at the degree of freedom `pivot`.
    """

    problem: Problem
    explicit: EdgeMatrix  # E = -dt K
    source: EdgeMatrix  # P
    full: EdgeMatrix  # A before its Dirichlet rows are those of the identity
    system: EdgeMatrix  # A
    bounds: Bounds  # of diag(A)^-1 A; those that are proven
    symmetric: bool
    pivot: int
    sums: Tensor | None  # s = E 1 [n, f]; None where it is zero
    load: Tensor | None  # dt g [n, F]
    gather: tuple[EdgeMatrix, ...]  # G_k, which turn rates into loads
    rates: Callable[[Tensor], list[Tensor]]  # r_k(u), each [..., n, F]

    @classmethod
    def of(cls, solver: GreenSolver) -> Pieces:
        p, ops, op = solver.problem, solver.operators, solver.operator()
        load = ops.load(0.0)
        gather = [] if ops.reaction is None else [ops.mass if ops.plain is None else ops.plain]
        gather += [] if ops.reaction_excess is None else [ops.mass * -1.0]
        return cls(p, op.explicit, ops.source, op.full, op.A, op.bounds if ops.symmetric else op.measure_bounds(), ops.symmetric,
                   op.pivot, None if op.sums is None else op.sums[0].detach(), None if load is None else (p.dt * load).detach(),
                   tuple(gather), ops.rates)


def refuse_changing(problem: Problem, case: Case) -> None:
    """A file holds one step of a linear solver: what changes in time or with the solution cannot be in it."""
    if problem.pde.curved:
        raise InputError(f"the step of '{case.name}' cannot be exported: capacity or diffusion change with the field, and such "
                         "steps iterate")
    if problem.time_dependent or problem.data_changes:
        what = "its flow" if case.given_flow else "a coefficient or boundary value"
        raise InputError(f"the step of '{case.name}' cannot be exported: {what} changes in time, and a program holds one step")


def refuse_fast(solver: GreenSolver, case: Case) -> None:
    """After steps of the model: whether one of them had to be implicit."""
    if solver.stiff.found:
        raise InputError(f"the step of '{case.name}' cannot be exported: its reaction is fast against the step, and implicit steps "
                         "iterate")
