"""What exists for the first steps alone: the filter of the initial state, and operators of their own for rough starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.edges import pair_correction
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.masses import MassChange, mass_change
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import GreenSolver

Tensor = torch.Tensor


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

    def severed(self) -> tuple[EarlySteps, list[tuple[Tensor, Tensor]]] | None:
        """The same with matrices as leaves, and (tensor, leaf) pairs."""
        solver = self.solver.severed()
        if solver is None:
            return None
        switch, pairs = self.switch.severed()
        return EarlySteps(self.steps, solver[0], switch), [*solver[1], *pairs]


def phase_of_step(k: int, early: int) -> int:
    """0: one of the early steps, 1: the one after them, which begins with the switch, 2: all later ones."""
    return 2 if not early or k > early else int(k == early)
