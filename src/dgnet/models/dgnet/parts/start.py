"""What acts at the start alone: the filter of the initial state, operators of the first steps, and the change of mass in both."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.edges import pair_correction
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import GreenSolver, bounds_of, fold, product, unfold
from dgnet.stepping.backends import Prepared, apply, prepare

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class MassChange:
    """What is added to a state whose nodal values are read by another mass from now on: M^-1 (F - M) u, so that M u+ = F u."""

    problem: Problem
    right: EdgeMatrix  # F
    mass: EdgeMatrix  # M, values [f, nnz]
    mass_low: float
    solver: Prepared

    def __call__(self, u: Tensor) -> Tensor:
        p, M = self.problem, EdgeMatrix(self.mass.pattern, self.mass.values[None])
        inner = p.restrict(u).to(p.dtype)
        f = len(self.mass.values)
        difference = fold(product(self.right, inner) - product(M, inner), 1, f)
        return p.expand(unfold(apply(self.solver, self.mass, difference), 1, f, u.shape[0], u.shape[2])).to(u.dtype)

    def severed(self) -> tuple[MassChange, list[tuple[Tensor, Tensor]]]:
        """The same with its matrices as leaves, and (tensor, leaf) pairs."""
        pairs = [(A.values, A.values.detach().requires_grad_()) for A in (self.right, self.mass) if A.values.requires_grad]
        leaf = {id(x): y for x, y in pairs}
        right, M = (EdgeMatrix(A.pattern, leaf.get(id(A.values), A.values)) for A in (self.right, self.mass))
        return MassChange(self.problem, right, M, self.mass_low, self.solver), pairs


def mass_change(p: Problem, right: EdgeMatrix, M: EdgeMatrix, mass_low: float) -> MassChange:
    flat = EdgeMatrix(M.pattern, M.values[0])
    backend = "iterative" if p.geometry.device.type == "cuda" else "lu"
    ready = prepare(flat, backend, bounds_of(flat, flat, mass_low, symmetric=True), symmetric=True)
    return MassChange(p, right, flat, mass_low, ready)


class Start(Part):
    """A filter of the initial state, for data whose start the mesh cannot resolve: u0 becomes M_theta^-1 (M + graph Laplacian) u0.

    Guarantee: keeps constants and the total mass; acts once and changes |u|_M by a bounded factor. It must follow the mass.
    `early`: the filter is for the mass of the early steps.
    """

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.early = early

    def contribute(self, build: Build) -> None:
        assert build.numbers is not None
        if build.early == self.early:
            delta = soft_limit(build.numbers.pair[:, 1], 0.5, 0.5)
            build.start = start_filter(build.problem, build.mass, build.mass_low, delta)


def start_filter(p: Problem, M: EdgeMatrix, mass_low: float, delta: Tensor) -> MassChange:
    """What is added to the initial state, once.

    A learned mass reads nodal values in its own way. Projecting the start keeps its moments, phi^T M u0, which decide how a
    rough start evolves; a learned Laplacian (zero at birth, like the whole) does what is left.
    """
    return mass_change(p, pair_correction(p, p.mass, delta), M, mass_low)


@dataclass(frozen=True, eq=False)
class EarlySteps:
    """The first `steps` steps of a rollout: a solver of their own, then `switch`, once, to the mass of all later steps.

    Guarantee: each of the two solvers keeps what the parts guarantee; the switch changes |u|_M once, by a bounded factor, and keeps
    constants and the total mass. Step number `steps` is the first one of the others, done after the switch.
    """

    steps: int
    solver: GreenSolver
    switch: MassChange

    def severed(self, start: bool) -> tuple[EarlySteps, list[tuple[Tensor, Tensor]]] | None:
        """The same with matrices as leaves, and (tensor, leaf) pairs."""
        solver = self.solver.severed(start)
        if solver is None:
            return None
        switch, pairs = self.switch.severed()
        return EarlySteps(self.steps, solver[0], switch), [*solver[1], *pairs]
