"""Curves of the material: capacity c(u) and diffusion D(u), given or learned, and the solver of a DGNet where there are any.

    M dH(u)/dt = -K theta(u) - L u + P (f + r(u)) + g        M, K, P: those of capacity and diffusion 1, with what was learned
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.models.dgnet.build import Build, Scales
from dgnet.models.dgnet.parts.diffusion import shaped_stiffness
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.problems.curves import Curve, frozen
from dgnet.problems.pde import Material as Coefficient
from dgnet.stepping import EnthalpySolver, Materials
from dgnet.stepping.material import Term, law_lists

Tensor = torch.Tensor

POINTS = {"capacity": 61, "diffusion": 13}
"""A capacity may hold a latent heat; a diffusion is smooth."""


def with_material(p: Problem, capacity: Coefficient | None = None, diffusion: Coefficient | None = None) -> Problem:
    """The same problem with another capacity or diffusion, on the same geometry."""
    stale = {"capacity", "mass", "source_mass", "diffusion_part", "lumps", "stiffness_number", "double"}
    return p.derived(stale, pde=replace(p.pde, capacity=p.pde.capacity if capacity is None else capacity,
                                        diffusion=p.pde.diffusion if diffusion is None else diffusion))


class MaterialCurve(nn.Module):
    """A positive function of u: its value times exp(`values`), linear between points that lie evenly over `low` .. `high`.

    `covariance` is that of the logarithms (NaN: never estimated), `density` the share of the training states at each point. `size`
    is what `values` of zero stand for. Zero at first.
    """

    def __init__(self, points: int, size: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(points, dtype=torch.float64))
        nothing = torch.full((points,), torch.nan)
        for name, value in (("low", torch.tensor(0.0)), ("high", torch.tensor(1.0)), ("size", torch.tensor(size)),
                            ("covariance", nothing.repeat(points, 1)), ("density", nothing)):
            self.register_buffer(name, value.double())

    low: Tensor
    high: Tensor
    size: Tensor
    covariance: Tensor
    density: Tensor

    @property
    def at(self) -> Tensor:
        """The points [J]."""
        part = torch.linspace(0, 1, len(self.values), dtype=torch.float64, device=self.low.device)
        return self.low + part * (self.high - self.low)

    def spread(self, state: Tensor) -> None:
        """Lay the points over the range of the states, and count these."""
        low, high = state.min().double(), state.max().double()
        self.low.copy_(low)
        self.high.copy_(torch.maximum(high, low + 1e-9 * low.abs() + 1e-30))
        step = (self.high - self.low) / (len(self.values) - 1)
        nearest = ((state.flatten().double() - self.low) / step).round().long().clamp(0, len(self.values) - 1)
        self.density.copy_(torch.bincount(nearest, minlength=len(self.values)) / nearest.numel())

    def curve(self, name: str) -> Curve:
        return Curve(self.at, self.size.double() * self.values.double().exp(), extends=True, name=name)


class Material(Part):
    """Capacity and diffusion of one field as learned curves of u, in place of those of the equation.

    Guarantee: both stay positive, so that the enthalpy is monotone and diffusion takes energy away, for any weights. Untrained
    they are constants: the equation's own where it has numbers, else those at the lower end of its curves. Beyond the training
    states the end values hold.
    """

    def __init__(self, names: tuple[str, ...], problem: Problem) -> None:
        super().__init__()
        if problem.n_fields != 1:
            raise InputError(f"unknown curves of the material are for one field, not for {problem.n_fields}")
        sizes = {}
        for name in names:
            size = torch.as_tensor(frozen(problem.pde.per_field(name)[0]))
            if size.dim():
                raise InputError(f"an unknown {name} is one curve for the whole mesh, not one per cell or region")
            sizes[name] = float(size) or 1.0
        self.material = nn.ModuleDict({name: MaterialCurve(POINTS[name], sizes[name]) for name in names})

    def fit_statistics(self, state: Tensor, scales: Scales) -> None:
        for curve in self.material.values():
            assert isinstance(curve, MaterialCurve)
            curve.spread(state)

    def curves(self) -> dict[str, MaterialCurve]:
        return {name: curve for name, curve in self.material.items() if isinstance(curve, MaterialCurve)}

    def told(self, problem: Problem) -> Problem:
        """The problem with these curves."""
        return with_material(problem, **{name: c.curve(name) for name, c in self.curves().items()})

    def contribute(self, build: Build) -> None:
        """Nothing: the curves are in the problem (`told`), and what is built are the matrices they go with."""


# ---------------------------------------------------------------------- the solver where there are curves


def linear_problem(p: Problem) -> Problem:
    """The problem with the values at the lower ends of its curves: all that the paper's models can be told."""
    return with_material(p, p.pde.frozen.capacity, p.pde.frozen.diffusion)


def unit_problem(p: Problem) -> Problem:
    """The problem with capacity and diffusion 1, whose matrices are corrected."""
    return with_material(p, 1.0, 1.0)


def solver_of(p: Problem, build: Build, deferred: bool) -> EnthalpySolver:
    """The solver of a problem with curves, with the learned matrices in place of the classical ones.

    The stiffness of every region and field has the learned shapes of its cells: symmetric, positive semidefinite, rows that sum to
    zero, whatever the curves are. The mass is the learned one where one capacity without a jump holds for the whole mesh, else
    the classical one. With a lumped mass and f = g = 0, d/dt sum V (integral of theta dH) = -theta^T K theta <= 0 for any weights.
    """
    plain = Materials.classical(p.double)

    def one(name: str) -> bool:
        """One curve for the whole mesh, without a jump."""
        found = [law for law, _ in law_lists(p, name)]
        return len(found) == 1 and not found[0].factor.dim() and found[0].curve is not None and not found[0].curve.latent

    def own(terms: tuple[Term, ...], A: EdgeMatrix) -> tuple[Term, ...]:
        return (Term(EdgeMatrix(A.pattern, A.values[0, 0].double()), terms[0].curve, terms[0].fields),)

    learned = plain
    if one("capacity"):
        coupled = plain.coupled or build.mass is not build.problem.mass
        learned = replace(learned, mass=own(plain.mass, build.mass), coupled=coupled, mass_low=build.mass_low)
    if one("diffusion"):
        total = build.diffusion
        for term in build.still_terms:
            total = total + term
        learned = replace(learned, spread=own(plain.spread, total))
    elif build.shapes is not None:
        learned = replace(learned, spread=tuple(replace(term, matrix=shaped_stiffness(p, factor, build.shapes))
                                                for term, factor in zip(plain.spread, plain.spread_factors)))
    learned = replace(learned, source=build.source.to(p.double.dtype), plain=build.reaction_mass.to(p.double.dtype),
                      reaction=build.reaction, may_be_stiff=not build.learned)
    return EnthalpySolver(p, materials=learned, deferred=deferred)
