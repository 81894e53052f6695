"""Calibrated coefficients, as a whole or region by region."""

from __future__ import annotations

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.models.dgnet.parts.diffusion import learned_diffusion
from dgnet.operators import EdgeMatrix, mass
from dgnet.problems import Discretisation

Tensor = torch.Tensor

_CALIBRATED = 1e6  # largest factor of a calibrated coefficient, and the inverse of the smallest


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


def regional_diffusion(p: Discretisation, factor: Tensor | None) -> EdgeMatrix:
    """The classical stiffness with each cell's diffusivity times factor [K] or [F, K]. Values [1, f, nnz], in double."""
    if factor is None:
        return p.diffusion_part
    g, d = p.geometry, p.mesh.dim
    return learned_diffusion(p, torch.zeros(p.mesh.n_cells, d * (d + 1) // 2, dtype=g.dtype, device=g.device), factor)


def regional_decay(p: Discretisation, factor: Tensor | None) -> EdgeMatrix:
    """The decay times the mass with each cell's share times factor [K] or [F, K]. Values [1, f, nnz], in double."""
    if factor is None:
        return p.decay_part
    g = p.geometry
    parts: list[Tensor] = []
    for decay in p.pde.per_field("decay")[: 1 if p.pde.shared("decay") else None]:
        k = torch.as_tensor(decay, dtype=g.dtype, device=g.device)
        local = k if k.dim() == 0 else k[g.cells].mean(-1)
        parts.append(mass(g.exact, p.consistent, local * (factor if factor.dim() == 1 else factor[len(parts)])).values)
    return EdgeMatrix(g.pattern, torch.stack(parts)[None])
