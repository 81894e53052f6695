"""Transport along the curl of a learned potential."""

from __future__ import annotations

import torch

from dgnet.models.dgnet.parts.streamline import FlowInCells
from dgnet.operators import EdgeMatrix
from dgnet.problems import Discretisation

Tensor = torch.Tensor

def swirl_transport(p: Discretisation, raw: Tensor, flow: FlowInCells) -> EdgeMatrix:
    """sum over cells of V a . (grad phi_i x grad phi_j): transport along the curl of a, a piecewise constant potential.

    a = h |v| times `raw` [K, ways] (one component, 2D) or [K, 3 ways] (3D) times what is seen of the direction. Skew, with zero
    row and column sums whatever `raw` is: it moves, but neither makes nor destroys anything. Values [b, 1, nnz], in double.
    """
    g = p.geometry.exact
    scale, w = g.volumes ** (1 + 1 / g.dim) * flow.speed, flow.seen
    x, y = g.gradients[:, :, None, :], g.gradients[:, None, :, :]
    if g.dim == 2:
        potential = (w * raw).sum(-1) * scale
        local = potential[..., None, None] * (x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0])
    else:
        a = torch.einsum("kaw,...kw->...ka", raw.view(len(raw), 3, -1), w) * scale[..., None]
        local = torch.einsum("...ka,kija->...kij", a, torch.linalg.cross(*torch.broadcast_tensors(x, y)))
    return EdgeMatrix(g.pattern, EdgeMatrix.from_cells(g.pattern, local).values.reshape(-1, 1, g.pattern.nnz))
