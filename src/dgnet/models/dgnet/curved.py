"""DGNet where capacity or diffusion are curves of u: learned matrices, each with the curve that it acts on.

    M dH(u)/dt = -K theta(u) - L u + P (f + r(u)) + g        M, K, P: those of capacity and diffusion 1, with what was learned
"""

from __future__ import annotations

from dataclasses import replace

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.parts.diffusion import shaped_stiffness
from dgnet.models.dgnet.parts.material import with_material
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import EnthalpySolver, Materials
from dgnet.stepping.material import Term, law_lists


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
