"""The same problem with factors on its coefficients: what is fitted where coefficients are unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.mesh import Mesh
from dgnet.models.dgnet import regions_of
from dgnet.problems import Problem, Robin
from dgnet.problems.conditions import changed
from dgnet.problems.curves import ByRegion, Curve, Scaled, Varied, curves_of, typical
from dgnet.problems.pde import PDE

Tensor = torch.Tensor

COEFFICIENTS = ("diffusion", "decay", "convection", "latent")
REGIONAL = ("diffusion", "decay")


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
                conditions = [replace(c, coefficient=changed(c.coefficient, by)) if isinstance(c, Robin) else c for c in conditions]
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
        if not any(isinstance(c, Robin) and (callable(c.coefficient) or c.coefficient) for c in problem.conditions):
            raise InputError(f"convection is zero on every boundary, {why}")
    elif name == "latent":
        if not any(curve.latent for value in pde.per_field("capacity") for curve in curves_of(value)):
            raise InputError("no capacity has a latent heat, so no factor can be found: give a guess (`melting`)")
    else:
        for field, value in zip(pde.fields, pde.per_field(name)):
            if not bool(torch.as_tensor(typical(value, problem.mesh, name)).any()):
                raise InputError(f"{name}{'' if pde.shared(name) else f' of {field}'} is zero everywhere, {why}")
