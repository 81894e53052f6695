"""Calibrated coefficients, as a whole or region by region."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.limits import ceiling
from dgnet.models.dgnet.parts.diffusion import learned_diffusion
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix, mass
from dgnet.problems import Problem
from dgnet.problems.curves import typical

Tensor = torch.Tensor

_LARGEST = 1e6  # factor of a calibrated coefficient, and the inverse of the smallest


class Calibration(Part):
    """Factors of the given coefficients: exp of one number for each, or for each field and region with a value of its own.

    Guarantee: every factor lies between 1e-6 and 1e6, so a coefficient keeps its sign and never vanishes.
    """

    def __init__(self, names: tuple[str, ...], regions: bool, problem: Problem) -> None:
        super().__init__()
        self.names, self.fields = names, problem.pde.fields
        self.regions = regions_of(problem.mesh)[0] if regions else ()
        sizes = {}
        for name in names:
            own = () if name == "convection" or problem.pde.shared(name) else (len(self.fields),)
            _refuse_zero(name, problem, bool(own))
            sizes[name] = own + ((len(self.regions),) if self.regional(name) else ())
        self.calibration = nn.ParameterDict({name: nn.Parameter(torch.zeros(size)) for name, size in sizes.items()})

    def contribute(self, build: Build) -> None:
        p = build.problem
        for name in self.names:
            if not self.regional(name):
                build.factors[name] = self.factor(name)
            elif name == "diffusion":
                build.diffusion_in_cells = self.in_cells(name, p)
                build.diffusion = regional_diffusion(p, build.diffusion_in_cells)
            else:
                build.decay = regional_decay(p, self.in_cells(name, p))

    def regional(self, name: str) -> bool:
        """Convection is a matter of boundaries, not of regions."""
        return bool(self.regions) and name != "convection"

    def factor(self, name: str) -> Tensor:
        """What multiplies a coefficient: 1 at birth; [f, 1] where fields differ."""
        value = self.calibrated(name)
        return value[:, None] if value.dim() else value

    def calibrated(self, name: str) -> Tensor:
        """exp of the calibrated numbers, between 1e-6 and 1e6: [], [F], [regions] or [F, regions]."""
        top = math.log(_LARGEST)
        return ceiling(-ceiling(-self.calibration[name].double(), top), top).exp()

    def in_cells(self, name: str, p: Problem) -> Tensor:
        """The factors of the regions, cell by cell: [K], or [F, K] where fields differ."""
        names, region = regions_of(p.mesh)
        strange = [n for n in names if n not in self.regions]
        if strange:
            raise InputError(f"the model knows no region '{strange[0]}' (it was made for: {', '.join(self.regions)})")
        place = torch.tensor([self.regions.index(n) for n in names], device=p.geometry.device)
        return self.calibrated(name)[..., place[torch.as_tensor(region, device=p.geometry.device)]]

    def coefficients(self) -> dict[str, float]:
        """By how much each calibrated coefficient differs from the given one.

        `diffusion`, or `diffusion of u`, `diffusion in steel`, `diffusion of u in steel` where fields or regions differ.
        """
        found: dict[str, float] = {}
        for name in self.names:
            value = self.calibrated(name).detach().cpu()
            regions = [f" in {r}" for r in self.regions] if self.regional(name) else [""]
            fields = [f" of {f}" for f in self.fields] if value.numel() > len(regions) else [""]
            labels = [f"{name}{f}{r}" for f in fields for r in regions]
            found |= dict(zip(labels, value.flatten().tolist()))
        return found


def _refuse_zero(name: str, p: Problem, own: bool) -> None:
    """A factor times zero is zero: every calibrated number needs a guess that is not. `own`: fields differ."""
    if name == "convection":
        if not any(c.exchanges for c in p.conditions):
            raise InputError("convection is zero on every boundary, so no factor can be calibrated: give a guess")
        return
    values = p.pde.per_field(name)[: None if own else 1]
    for label, value in zip([f" of {f}" for f in p.pde.fields] if len(values) > 1 else [""], values):
        if not bool(torch.as_tensor(typical(value, p.mesh, name)).any()):
            raise InputError(f"{name}{label} is zero everywhere, so no factor can be calibrated: give a guess that is not zero")


def regions_of(mesh: Mesh) -> tuple[tuple[str, ...], np.ndarray]:
    """Names in alphabetical order and the region of each cell [K]; cells outside of all of them form the region `rest`."""
    names, index = sorted(mesh.regions), np.full(mesh.n_cells, -1)
    if not names:
        raise InputError("coefficients are calibrated per region, but the mesh names no regions")
    for k, name in enumerate(names):
        cells = mesh.regions[name]
        twice = cells[index[cells] >= 0]
        if twice.size:
            raise InputError(f"cell {twice[0]} is in the regions '{names[index[twice[0]]]}' and '{name}'; calibration needs one")
        index[cells] = k
    if (index < 0).any():
        if "rest" in names:
            raise InputError("the mesh has a region 'rest' and cells outside of all regions, which would have the same name")
        names, index = [*names, "rest"], np.where(index < 0, len(names), index)
    return tuple(names), index


def regional_diffusion(p: Problem, factor: Tensor) -> EdgeMatrix:
    """The classical stiffness with each cell's diffusivity times factor [K] or [F, K]. Values [1, f, nnz], in double."""
    g, d = p.geometry, p.mesh.dim
    return learned_diffusion(p, torch.zeros(p.mesh.n_cells, d * (d + 1) // 2, dtype=g.dtype, device=g.device), factor)


def regional_decay(p: Problem, factor: Tensor) -> EdgeMatrix:
    """The decay times the mass with each cell's share times factor [K] or [F, K]. Values [1, f, nnz], in double."""
    g = p.geometry
    fields: list[Tensor] = []
    for decay in p.pde.per_field("decay")[: 1 if p.pde.shared("decay") else None]:
        k = torch.as_tensor(decay, dtype=g.dtype, device=g.device)
        local = k if k.dim() == 0 else k[g.cells].mean(-1)
        fields.append(mass(g.exact, p.consistent, local * (factor if factor.dim() == 1 else factor[len(fields)])).values)
    return EdgeMatrix(g.pattern, torch.stack(fields)[None])
