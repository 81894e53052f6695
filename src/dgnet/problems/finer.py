"""The same problem with a finer discretisation, to see what the coarse one gets wrong.

Coefficients in cells are those of the parent cell, and boundaries are refined as the polygons they are: neither what a cell
averages away nor what a polygon misses of a curve is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from dgnet.mesh import Mesh
from dgnet.problems.curves import ByRegion, Curve, Scaled
from dgnet.problems.problem import Problem

Tensor = torch.Tensor

_IN_CELLS = ("diffusion", "capacity")


def refined(p: Problem) -> Problem:
    """On the mesh refined once: half the spacing, the same step; the old nodes are the first ones."""
    mesh, cells, up = p.mesh.refined(), p.mesh.n_cells, prolonged(p.mesh)

    def each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
        if isinstance(value, Mapping):
            return {name: each(v, change) for name, v in value.items()}
        if isinstance(value, Curve):
            return value
        if isinstance(value, Scaled):
            return Scaled(value.curve, each(value.by, change))
        if isinstance(value, ByRegion):  # the children of a region's cells are its cells
            return ByRegion(each(value.parts, change))
        return change(torch.as_tensor(value, dtype=torch.float64)) if np.ndim(value) else value

    def children(value: Tensor) -> Tensor:
        whole = value.dim() != 2 and len(value) == cells  # [K] or [K, d, d]; [d, d] is one tensor for all
        return value.repeat_interleave(2**p.mesh.dim, 0) if whole else value

    def nodal(value: Tensor) -> Tensor:
        return up(value[:, None])[:, 0]

    velocity = p.pde.velocity
    if callable(velocity):
        flow = velocity

        def moved(t: float) -> Tensor:
            return up(flow(t))

        velocity = moved
    elif velocity is not None and np.ndim(velocity) > 1:
        velocity = up(torch.as_tensor(velocity))
    changes = {f.name: each(getattr(p.pde, f.name), children) for f in fields(p.pde) if f.name in _IN_CELLS}
    return replace(p, mesh=mesh, pde=replace(p.pde, **changes, decay=each(p.pde.decay, nodal), velocity=velocity))


def prolonged(mesh: Mesh) -> Callable[..., Tensor]:
    """A map of nodal values [..., N, F] to the mesh refined once: as they are at old nodes, in the middle of edges interpolated.

    By default linear; `smooth` is cubic: (u_i + u_j)/2 + (g_i - g_j) . (x_j - x_i)/8 with the mean gradients g of the cells around
    a node. The difference shows what linear interpolation misses of a smooth function, though not all of it.
    """
    i, j = torch.tensor(mesh.edges).T
    along = torch.tensor(mesh.points[mesh.edges[:, 1]] - mesh.points[mesh.edges[:, 0]]) / 8
    cells, gradients, volumes = torch.tensor(mesh.cells), torch.tensor(mesh.gradients), torch.tensor(mesh.volumes)
    corners = cells.ravel()
    around = torch.zeros(mesh.n_nodes, dtype=torch.float64).index_add(0, corners, volumes.repeat_interleave(mesh.dim + 1))

    def up(u: Tensor, smooth: bool = False) -> Tensor:
        v = u.double().cpu().movedim(-2, 0)  # [N, ...]
        middle = 0.5 * (v[i] + v[j])
        if smooth:
            slopes = torch.einsum("k,kid,ki...->kd...", volumes, gradients, v[cells]).repeat_interleave(mesh.dim + 1, 0)
            g = v.new_zeros(mesh.n_nodes, *slopes.shape[1:]).index_add(0, corners, slopes)
            g = g / around.view(-1, *[1] * (g.dim() - 1))
            middle = middle + torch.einsum("ed...,ed->e...", g[i] - g[j], along)
        return torch.cat([v, middle]).movedim(0, -2).to(u)

    return up


def half_steps(source: Tensor) -> Tensor:
    """Averages over half steps [B, 2T, N, F] from those over steps [B, T, N, F]: linear in time, each step keeps its mean."""
    slope = torch.diff(torch.cat([source[:, :1], source, source[:, -1:]], 1), dim=1)
    slope = 0.125 * (slope[:, 1:] + slope[:, :-1])
    return torch.stack([source - slope, source + slope], 2).flatten(1, 2)
