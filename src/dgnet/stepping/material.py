"""Parts of a step where capacity or diffusion change with u: matrices, each with the curve of u that it acts on.

    M dH(u)/dt = -K theta(u) - C H(u) - L u + S (f + r(u)) + g

H, theta: integrals of capacity and diffusion over u. With curves for each region every term is a sum over them: K theta(u) stands
for sum_l K_l theta_l(u), K_l assembled from the cells of region l with its tensors. Rows and columns of every K_l sum to zero, so
what leaves one node enters others, whatever the curves are, and the flux is continuous where regions meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from dgnet.errors import InputError
from dgnet.operators import EdgeMatrix, advection, mass, mass_range, stiffness
from dgnet.problems import Problem
from dgnet.problems.curves import Curve, Law, laws

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Term:
    """A matrix [nnz] in double precision that acts on the integral of a curve of u, or on u itself, for some of the fields."""

    matrix: EdgeMatrix
    curve: Curve | None
    fields: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Materials:
    """The terms of a step. A learned model replaces matrices and keeps the curves."""

    mass: tuple[Term, ...]  # of the time derivative; row sums are positive
    coupled: bool  # whether the mass has entries beside the diagonal
    mass_low: float  # a proven lower bound of diag(M)^-1 M
    spread: tuple[Term, ...]  # diffusion; symmetric positive semidefinite, rows sum to zero
    spread_factors: tuple[Tensor, ...]  # diffusivity of each of them without its curve: [], [K], [d, d] or [K, d, d]
    carried: Callable[[float], tuple[Term, ...]]  # advection at a time; rows sum to zero
    linear: Callable[[float, float], tuple[Term, ...]]  # decay and convective boundaries over a step from t to t + dt
    source: EdgeMatrix  # turns f into a load
    plain: EdgeMatrix  # turns r(u) into a load
    load: Callable[[float, float], Tensor | None]  # over a step
    reaction: Callable[[Tensor], Tensor] | None
    may_be_stiff: bool = True  # a reaction that is too fast is refused; a learned one stays what it was trained as

    @classmethod
    def classical(cls, p: Problem) -> Materials:
        """The terms of a problem in double precision."""
        if p.degree != 1:
            raise InputError("materials that change with the solution need linear elements (degree 1)")
        found = law_lists(p, "capacity")
        smooth = not any(law.curve is not None and law.curve.latent for law, _ in found)
        consistent = p.consistent if smooth else 0.0  # a mass that couples nodes cannot follow a jump of the enthalpy
        spread = law_lists(p, "diffusion")
        return cls(
            tuple(Term(mass(p.geometry, consistent, in_cells(law.factor, p)), law.curve, fields) for law, fields in found),
            consistent > 0, mass_range(p.mesh.dim, consistent)[0],
            tuple(Term(stiffness(p.geometry, law.factor), law.curve, fields) for law, fields in spread),
            tuple(law.factor for law, _ in spread), lambda t: _carried(p, t), lambda t, dt: _linear(p, t, dt), p.source_mass,
            p.source_mass, p.load, p.pde.reaction)


def law_lists(p: Problem, name: str) -> list[tuple[Law, tuple[int, ...]]]:
    """The laws of a coefficient, each with its fields."""
    every = tuple(range(p.n_fields))
    rows = p.pde.per_field(name)
    groups = [(rows[0], every)] if p.pde.shared(name) else [(row, (k,)) for k, row in enumerate(rows)]
    return [(law, fields) for value, fields in groups for law in laws(value, p.mesh, name, p.geometry.device)]


def in_cells(factor: Tensor, p: Problem) -> Tensor:
    """A capacity's factor in every cell [K]."""
    cells = p.mesh.n_cells
    if factor.dim() > 1 or (factor.dim() == 1 and len(factor) != cells):
        raise InputError(f"capacity must be a number or one per cell [{cells}], got shape {list(factor.shape)}")
    return factor.expand(cells)


def split(A: EdgeMatrix | None, fields: int) -> Iterable[Term]:
    """A matrix with values [b, f, nnz] as terms of u itself, for so many fields."""
    if A is None:
        return
    if len(A.values) > 1:
        raise InputError("with materials that change with the solution, all trajectories share one velocity")
    rows = A.values[0].double()
    every = tuple(range(fields))
    for k, row in enumerate(rows):
        if row.requires_grad or bool(row.any()):
            yield Term(EdgeMatrix(A.pattern, row), None, every if len(rows) == 1 else (k,))


def _linear(p: Problem, t: float, dt: float) -> tuple[Term, ...]:
    return (*split(p.decay_part, p.n_fields), *split(p.convection_part(t, dt), p.n_fields))


def _carried(p: Problem, t: float) -> tuple[Term, ...]:
    velocity = p.pde.velocity(t) if callable(p.pde.velocity) else p.pde.velocity
    if velocity is None:
        return ()
    found = law_lists(p, "capacity")
    if all(law.curve is None for law, _ in found):
        return tuple(split(p.advection(t), p.n_fields))
    if p.advection_form == "skew":
        raise InputError('the skew form of the advection needs a constant capacity: use advection_form = "galerkin"')
    terms = []
    for law, fields in found:
        C = advection(p.geometry, velocity, p.advection_form, in_cells(law.factor, p))
        if C.values.dim() > 1:
            raise InputError("with materials that change with the solution, all trajectories share one velocity")
        terms.append(Term(C.to(torch.float64), law.curve, fields))
    return tuple(terms)
