"""Coefficients of the equation from the readings of sensors alone, by Gauss-Newton on rollouts of the classical solver.

The unknowns are factors on the given diffusion, decay, convective coefficients and latent heat, as a whole or one for each region.
Readings are not linear in them, so there are no kernels: a step takes 2p + 1 rollouts for p numbers. Linear unknowns may be asked
for at the same time (strengths of spots, boundary fluxes, the ambient value): then every step infers both from the readings
linearised in the factors (`recover.Question`), and kernels take the place of rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.inverse.readings import Readings, disagreeing
from dgnet.inverse.recover import FACTORS, Question, Recovered
from dgnet.inverse.rollouts import Known
from dgnet.inverse.sensor import Averages
from dgnet.mesh import Mesh
from dgnet.models import few_threads
from dgnet.models.dgnet import regions_of
from dgnet.problems import (
    PDE,
    ByRegion,
    Curve,
    Problem,
    Scaled,
    Source,
    SpotTable,
    Varied,
    changed,
    curves_of,
    typical,
)

Tensor = torch.Tensor

COEFFICIENTS = ("diffusion", "decay", "convection", "latent")
REGIONAL = ("diffusion", "decay")


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Factors on the given coefficients.

    - `names` and `factors` [p]; `sd` [p]: standard deviations of their logarithms (relative errors), from noise, mesh and step
    - `mesh` [p]: the bias of the given mesh and step, taken off
    - `noise`: standard deviation of the readings, as given or found; `misfit`: root mean square of what the fit leaves
    - `notes`: what was wrong with the readings, what they do not determine
    - `others`: the other unknowns that were found with them; None where none were asked for
    """

    names: tuple[str, ...]
    factors: np.ndarray
    sd: np.ndarray
    mesh: np.ndarray
    noise: float
    misfit: float
    notes: tuple[str, ...]
    others: Recovered | None = None


@checked
def recover_coefficients(problem: Problem, readings: Readings, names: Sequence[str], *, per_region: bool = False,
                         start: Tensor | None = None, source: Source | Averages | None = None, noise: Positive | None = None,
                         also: Sequence[str] = (), spots: SpotTable | None = None, finer: bool = True) -> Coefficients:
    """Factors on coefficients that explain the readings best.

    - `problem`: with the coefficients that are the first guess
    - `readings`: as for `recover`
    - `names`: which of diffusion, decay, convection, latent (the heat of melting of the capacity's curve)
    - `per_region`: one factor for each region of the mesh (not of convection and latent heat)
    - `start` [N, F], `source`, `noise`, `finer`: as for `recover`
    - `also`: which of source, flux:BOUNDARY, ambient and lag are unknown, too; `spots` as for `recover`

    They are fitted on the given mesh, and again without what solutions on finer meshes with smaller steps say that it gets wrong of
    the readings; what that leaves is in the standard deviations.
    """
    if not names:
        raise InputError("name at least one coefficient: diffusion, decay, convection or latent")
    for name in also:
        if name in ("field", "start"):
            raise InputError(f"'{name}' and coefficients cannot be recovered at once: with as many numbers as nodes it explains "
                             "what coefficients would")
    factors = Factors(names, per_region, problem)
    question = Question(problem, readings, also, Known.of(problem, start, source, spots), noise=noise, factors=factors, finer=finer)
    count = int(question.there.sum())
    if count <= len(factors.labels):
        raise InputError(f"{count} readings cannot determine {len(factors.labels)} coefficients")
    with torch.no_grad(), few_threads(problem.mesh.n_nodes):
        fit = question.settled()
        found, answer = question.recovered(fit), fit.found.answer(FACTORS)
    notes = [f"The readings do not determine {name}: its standard deviation is {s:.0%}."
             for name, s in zip(factors.labels, answer.sd) if s > 0.5]
    bias = fit.first[:len(factors.labels)] - answer.mean
    return Coefficients(factors.labels, np.exp(answer.mean), answer.sd, bias, found.noise, found.misfit,
                        (*found.notes, *disagreeing(fit.left, found.readings.sensors), *notes), found if also else None)


# ---------------------------------------------------------------------- problems with factors on their coefficients


class Factors:
    """One number for each named coefficient, or for each field and region with a value of its own.

    `labels` names them: diffusion, diffusion of u, diffusion in steel, diffusion of u in steel, convection, latent.
    """

    def __init__(self, names: Sequence[str], per_region: bool, problem: Problem) -> None:
        self.names, self.regions = tuple(names), regions_of(problem.mesh)[0] if per_region else ()
        found: list[str] = []
        for name in names:
            if name not in COEFFICIENTS:
                raise InputError(f"coefficient '{name}' cannot be recovered{did_you_mean(name, COEFFICIENTS)}")
            _refuse_zero(name, problem)
            found += [f"{name}{f}{r}" for f in self._fields(name, problem.pde) for r in self._regions(name)]
        self.labels = tuple(found)

    def _fields(self, name: str, pde: PDE) -> list[str]:
        return [""] if name not in REGIONAL or pde.shared(name) else [f" of {f}" for f in pde.fields]

    def _regions(self, name: str) -> list[str]:
        return [f" in {r}" for r in self.regions] if self.regions and name in REGIONAL else [""]

    def applied(self, problem: Problem, factors: Sequence[float]) -> Problem:
        """The problem (or the same on another mesh) with its coefficients times `factors`, in the order of `labels`."""
        given, pde, conditions = dict(zip(self.labels, factors)), problem.pde, list(problem.conditions)
        region = regions_of(problem.mesh)[1] if self.regions else None
        for name in self.names:
            if name == "convection":
                by = given[name]
                conditions = [c.with_coefficient(changed(c.coefficient, by)) for c in conditions]
            elif name == "latent":
                pde = replace(pde, capacity=_each(pde.capacity, lambda value: _melting(value, given["latent"])))
            else:
                own = {f: np.array([given[f"{name}{f}{r}"] for r in self._regions(name)]) for f in self._fields(name, pde)}
                pde = _scaled(pde, name, {f: float(x[0]) if region is None else x[region] for f, x in own.items()},
                              problem.mesh)
        return replace(problem, pde=pde, conditions=conditions)


def _scaled(pde: PDE, name: str, by: dict[str, float | np.ndarray], mesh: Mesh) -> PDE:
    """`by`: a factor, or one per cell, for all fields ("") or each of them (" of u")."""
    def of(value: Varied, field: str) -> Varied:
        factor = by[field]
        return _times(value, _at_nodes(factor, mesh) if name == "decay" and isinstance(factor, np.ndarray) else factor)

    given = pde.diffusion if name == "diffusion" else pde.decay
    found = {f: of(v, f" of {f}") for f, v in given.items()} if isinstance(given, Mapping) else of(given, "")
    return replace(pde, diffusion=found) if name == "diffusion" else replace(pde, decay=found)  # type: ignore[arg-type]


def _at_nodes(factor: np.ndarray, mesh: Mesh) -> np.ndarray:
    """A factor in cells as one at the nodes: the mean of the cells around, by their volumes."""
    share = np.repeat(mesh.volumes, mesh.dim + 1)
    total = np.bincount(mesh.cells.ravel(), share * np.repeat(factor, mesh.dim + 1), mesh.n_nodes)
    return total / np.bincount(mesh.cells.ravel(), share, mesh.n_nodes)


def _each(value: Varied | Mapping[str, Varied], change: Callable[[Varied], Varied]) -> Varied | dict[str, Varied]:
    return {f: change(v) for f, v in value.items()} if isinstance(value, Mapping) else change(value)


def _times(value: Varied, by: float | np.ndarray) -> Varied:
    """A coefficient times a factor, or one per cell (per node for numbers at nodes)."""
    if isinstance(value, ByRegion):
        return ByRegion({region: _times(part, by) for region, part in value.parts.items()})  # type: ignore[misc]
    if isinstance(value, Scaled):
        return Scaled(value.curve, _times(value.by, by))  # type: ignore[arg-type]
    if isinstance(value, Curve):
        return value * by
    given, factor = torch.as_tensor(value, dtype=torch.float64), torch.as_tensor(by, dtype=torch.float64)
    return given * (factor[:, None, None] if factor.dim() and given.dim() > 1 else factor)


def _melting(value: Varied, by: float) -> Varied:
    if isinstance(value, ByRegion):
        return ByRegion({region: _melting(part, by) for region, part in value.parts.items()})  # type: ignore[misc]
    if isinstance(value, Scaled):
        return Scaled(_melting(value.curve, by), value.by)  # type: ignore[arg-type]
    return replace(value, latent=tuple(replace(x, heat=by * x.heat) for x in value.latent)) if isinstance(value, Curve) else value


def _refuse_zero(name: str, problem: Problem) -> None:
    """A factor times zero is zero: every coefficient needs a guess that is not."""
    pde, why = problem.pde, "so no factor can be found: give a guess that is not zero"
    if name == "convection":
        if not any(c.exchanges for c in problem.conditions):
            raise InputError(f"convection is zero on every boundary, {why}")
    elif name == "latent":
        if not any(curve.latent for value in pde.per_field("capacity") for curve in curves_of(value)):
            raise InputError("no capacity has a latent heat, so no factor can be found: give a guess (`melting`)")
    else:
        for field, value in zip(pde.fields, pde.per_field(name)):
            if not bool(torch.as_tensor(typical(value, problem.mesh, name)).any()):
                raise InputError(f"{name}{'' if pde.shared(name) else f' of {field}'} is zero everywhere, {why}")
