"""The learned diffusivities."""

from __future__ import annotations

import torch

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.part import Part
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.problems.curves import typical

Tensor = torch.Tensor


class Diffusion(Part):
    """Each cell's diffusivity times exp(S), S a learned symmetric tensor with entries between -1/2 and 1/2.

    Guarantee: the stiffness of diffusion stays symmetric and positive semidefinite, and its rows sum to zero.
    """

    def contribute(self, build: Build) -> None:
        assert build.numbers is not None
        build.shapes = build.numbers.cell[:, :-1]
        build.diffusion = learned_diffusion(build.problem, build.numbers.cell[:, :-1], build.diffusion_in_cells)


def learned_diffusion(p: Problem, raw: Tensor, factor: Tensor | None = None) -> EdgeMatrix:
    """Cell diffusivities times exp(S), S symmetric from raw [K, s] with entries in (-1/2, 1/2): positive semidefinite.

    `factor` > 0, [K] or [F, K], multiplies the diffusivity of each cell (calibrated regions). Values [1, f, nnz], in double.
    """
    fields: list[Tensor] = []
    for D in p.pde.per_field("diffusion")[: 1 if p.pde.shared("diffusion") else None]:
        D = torch.as_tensor(typical(D, p.mesh, "diffusion"), dtype=torch.float64, device=p.geometry.device)
        own = factor if factor is None or factor.dim() == 1 else factor[len(fields)]
        fields.append(shaped_stiffness(p, D, raw, own).values)
    return EdgeMatrix(p.geometry.exact.pattern, torch.stack(fields)[None])


def shaped_stiffness(p: Problem, D: Tensor, raw: Tensor | None, factor: Tensor | None = None) -> EdgeMatrix:
    """The stiffness of a diffusivity D ([], [K], [d, d] or [K, d, d]) times exp(S) and factor [K]: values [nnz], in double."""
    g, d, cells = p.geometry.exact, p.mesh.dim, p.mesh.n_cells
    eye = torch.eye(d, dtype=g.dtype, device=g.device)
    tensor = D.reshape(-1, 1, 1) * eye if D.dim() <= 1 else D.expand(cells, d, d)
    if raw is not None:
        raw = raw.double()
        rows, cols = torch.triu_indices(d, d, device=g.device)
        S = torch.zeros(cells, d, d, dtype=g.dtype, device=g.device)
        bounded = soft_limit(raw, 0.5, 0.5)
        S = S.index_put((torch.arange(cells, device=g.device)[:, None], rows, cols), bounded)
        S = S + S.mT - torch.diag_embed(torch.diagonal(S, dim1=-2, dim2=-1))
        half = eye + S / 4 + S @ S / 32  # (I + S/4 + S^2/32)^2 = exp(S/2) to third order, and always positive semidefinite
        root = half @ half  # symmetric, commutes with S
        tensor = root @ tensor @ root
    local = torch.einsum("k,kid,kde,kje->kij", g.volumes, g.gradients, tensor.expand(cells, d, d), g.gradients)
    return EdgeMatrix.from_cells(g.pattern, local if factor is None else local * factor[:, None, None])
