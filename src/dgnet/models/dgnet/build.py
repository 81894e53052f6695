"""The operators of a step under construction: those of the classical solver, until learned parts change them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import torch

from dgnet.models.dgnet.flow import FlowInCells
from dgnet.models.gnn import MeshGraph
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import InTime, Operators

if TYPE_CHECKING:
    from dgnet.models.dgnet.parts.start import MassChange

Tensor = torch.Tensor

Rate = Callable[[Tensor], Tensor]
Advance = Callable[[Tensor, Tensor | None, float], Tensor]
"""u [B, N, F], source of the step [B, N, F], time t -> a state at t + dt."""
Correction = Callable[[Tensor, Tensor, Tensor | None, float], Tensor]
"""u at t, a state at t + dt, source of the step, time t -> a better state at t + dt."""


class Scales(NamedTuple):
    """Statistics of the training data, per field [F], and the problem's capacity, averaged over the cells."""

    mean: Tensor
    std: Tensor
    source_std: Tensor
    rate: Tensor  # standard deviation of du/dt
    low: Tensor  # range within which a reaction is used unchanged
    high: Tensor
    capacity: Tensor

    def inputs(self, u: Tensor, source: Tensor | None) -> Tensor:
        """State and source as a network gets them, normalised: [B, N, 2F]."""
        f = torch.zeros_like(u) if source is None else source / self.source_std
        return torch.cat([(u - self.mean) / self.std, f], -1)


class Numbers(NamedTuple):
    """Learned numbers before their limits, in double precision."""

    pair: Tensor  # [E, 2] of undirected edges: mass, start
    directed: Tensor  # [2E] of directed edges: source
    cell: Tensor  # [K, s + 1] of cells: diffusion (s entries of a symmetric tensor), streamline diffusion
    flow: Tensor | None  # [K, w + w or 3 w] of cells, for each feature of the flow's direction: streamline diffusion, swirl


class Build:
    """L_physics of a problem; every part changes or adds what it is responsible for. `operators` then puts it together.

    Matrices have values [b, f, nnz]. What a part must keep:

        mass, mass_low   symmetric positive definite; a proven lower bound of diag(M)^-1 M
        source           how a source becomes a load: row sums as in the problem's `source_mass`
        diffusion        positive semidefinite, rows sum to zero
        still_terms      further symmetric positive semidefinite terms of K, rows sum to zero
        flow_terms       (function, tensors): function(flow, *tensors) is a term of K that follows a flow; rows sum to zero, the
                         symmetric part is positive semidefinite. Weights may enter through the tensors only
        advection        t -> the term of K that a given flow makes; None without one
        unsigned         t -> a term of K without a sign; rows sum to zero
        any_term         a term of K that does not change in time; neither its sign nor its row sums matter
        closed           the rows of `any_term` sum to zero
        factors          calibrated factors of diffusion, decay and convection, broadcast to [f, 1]
        reaction, excess r(u), and what the mass takes away besides (`parts.reaction`); `learned` where r is not the problem's own
        start            what is added to the initial state, once
        corrections      act on the new state after each step
        instead          takes the place of the solver's step (variant D)
        once             all steps are differentiated together, so that what networks make of the mesh alone is made once for all
    """

    def __init__(self, problem: Problem, graph: MeshGraph, scales: Scales, physics: bool = True,
                 early: bool = False) -> None:
        p = self.problem = problem
        self.graph, self.scales, self.physics, self.early = graph, scales, physics, early
        self.numbers: Numbers | None = None
        self.mass, self.mass_low = p.mass, p.mass_bounds[0]
        self.source, self.reaction_mass = p.source_mass, p.source_mass
        self.diffusion, self.decay = p.diffusion_part, p.decay_part
        self.diffusion_in_cells: Tensor | None = None  # calibrated factors of regions, [K] or [F, K]
        self.shapes: Tensor | None = None  # numbers of the learned diffusivities [K, s], before their limits
        self.factors: dict[str, Tensor | float] = {"diffusion": 1.0, "decay": 1.0, "convection": 1.0}
        self.still_terms: list[EdgeMatrix] = []
        self.flow_terms: list[tuple[Callable[..., EdgeMatrix], tuple[Tensor, ...]]] = []
        self.advection: Callable[[float], EdgeMatrix | None] = p.advection
        self.unsigned: Callable[[float], EdgeMatrix] | None = None
        self.any_term: EdgeMatrix | None = None
        self.closed = self.once = False
        self.reaction: Rate | None = None
        self.excess: Rate | None = None
        self.learned = False
        self.start: MassChange | None = None
        self.corrections: list[Correction] = []
        self.instead: Advance | None = None

    def copied(self) -> Build:
        """The same so far, to go on from again."""
        other = copy(self)
        other.factors, other.still_terms = dict(self.factors), list(self.still_terms)
        other.flow_terms, other.corrections = list(self.flow_terms), list(self.corrections)
        return other

    def operators(self) -> Operators:
        """What a step of the Green solver is made of."""
        p = self.problem
        decay = self.decay * self.factors["decay"]
        still = self.diffusion * self.factors["diffusion"] + decay
        if not self.physics:
            still = still * 0.0
        for term in (*self.still_terms, *([] if self.any_term is None else [self.any_term])):
            still = still + term
        decays = decay if p.decay_sums is not None and self.physics else None
        sums = [A.row_sums() for A in (decays, None if self.closed else self.any_term) if A is not None]
        ingredients = (still.values.double(), *(x for _, tensors in self.flow_terms for x in tensors))
        K = None if p.time_dependent else self.stiffness(0.0, 0.0, *ingredients)
        load_changes = p.data_changes or p.time_dependent  # a convective coefficient in time is in both
        load = None if load_changes else self.load(0.0)
        calibrated = isinstance(self.factors["convection"], Tensor)
        return Operators(
            mass=self.mass, source=self.source, stiffness=self._in_time(K, ingredients),
            indefinite_part=self.without_sign, load=self.load if load_changes else lambda t, dt=0.0: load, reaction=self.reaction,
            mass_low=self.mass_low,
            symmetric=(p.pde.velocity is None or not self.physics) and self.unsigned is None and self.any_term is None,
            time_dependent=p.time_dependent,
            row_sums_constant=None if not sums else sums[0] if len(sums) == 1 else sums[0] + sums[1],
            moving_sums=self.moving_sums, ingredients=ingredients,
            assemble=None if self.unsigned is not None or calibrated else self.stiffness,
            plain=None if p.capacity is None else self.reaction_mass, reaction_excess=self.excess, may_be_stiff=not self.learned)

    def without_sign(self, t: float) -> EdgeMatrix | None:
        """The terms of K(t) that need not be positive semidefinite."""
        moving = self.moving_without_sign(t)
        return self.any_term if moving is None else moving if self.any_term is None else moving + self.any_term

    def moving_without_sign(self, t: float) -> EdgeMatrix | None:
        """Those of them that may change in time."""
        advection = self.advection(t) if self.physics else None
        if self.unsigned is None:
            return advection
        return self.unsigned(t) if advection is None else advection + self.unsigned(t)

    def _in_time(self, still: EdgeMatrix | None, ingredients: tuple[Tensor, ...]) -> InTime[EdgeMatrix]:
        """K, or the one that never changes."""
        if still is None:
            return lambda t, dt=0.0: self.stiffness(t, dt, *ingredients)
        return lambda t, dt=0.0: still

    def stiffness(self, t: float, dt: float, still: Tensor, *tensors: Tensor) -> EdgeMatrix:
        """K from what does not change (`still`, [b, f, nnz]) and the tensors of `flow_terms`, one after the other."""
        p, middle = self.problem, t + 0.5 * dt
        total, unsigned = EdgeMatrix(p.geometry.pattern, still), self.moving_without_sign(middle)
        convection = p.convection_part(t, dt) if self.physics else None
        if convection is not None:
            total = total + convection * self.factors["convection"]
        if unsigned is not None:
            total = total + unsigned
        if self.flow_terms:
            flow = FlowInCells.at(p, middle)
            for term, own in self.flow_terms:
                total, tensors = total + term(flow, *tensors[:len(own)]), tensors[len(own):]
        return total.to(p.dtype)

    def moving_sums(self, t: float, dt: float = 0.0) -> Tensor | None:
        return self.problem.moving_sums(t, dt, self.factors["convection"]) if self.physics else None

    def load(self, t: float, dt: float = 0.0) -> Tensor | None:
        """Boundary fluxes and exchange, integrated."""
        p = self.problem
        flux, exchange = p.flux_load(t, dt), p.convection_load(t, dt) if self.physics else None
        if exchange is None:
            return flux
        exchange = (exchange * self.factors["convection"]).to(p.dtype)
        return exchange if flux is None else flux + exchange
