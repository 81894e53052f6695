"""The state at rest: what a linear problem tends to when nothing changes any more."""

from __future__ import annotations

import torch

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping.backends import apply, prepare
from dgnet.stepping.fold import fold, product, unfold
from dgnet.stepping.operator import Elimination

Tensor = torch.Tensor


@checked
def steady(problem: Problem, source: Tensor | None = None, t: float = 0.0) -> Tensor:
    """The state u at rest, K u = S f + g with u = w on held boundaries: [B, N, F]. One direct solve, differentiable.

    - `problem`: without a reaction; something must fix the level of every field: a held value, an exchange or a decay
    - `source`: f at the nodes [B, N, F], field/time (W/m3 with a heat capacity); None for zero and B = 1
    - `t`: the time at which conditions and velocity that change are taken

        >>> import dgnet as dg
        >>> sides = [dg.Dirichlet("left", 20.0), dg.Dirichlet("right", 0.0)]
        >>> wall = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=2.0), sides, dt=1.0)
        >>> wall.mesh.interpolate(dg.steady(wall), [[0.25, 0.5]]).round(6).item()
        15.0
    """
    if problem.pde.reaction is not None:
        raise InputError("a steady state with a reaction is not computed here: roll out until nothing changes any more")
    p = problem.double
    f = p.mass.values.new_zeros(1, p.n_nodes, p.n_fields) if source is None else source.double()
    p.check_state(f, "the source")
    if f.dim() != 3:
        raise InputError(f"the source must be [batch, node, field], got {list(f.shape)}")
    K, g, w = p.stiffness(t), p.load(t), p.fixed_values(t)
    level = torch.zeros(1, p.n_fields, dtype=torch.bool, device=K.values.device)
    if p.fixed is not None:
        level = level | p.fixed.any(-1)
    for part in (p.decay_part, p.convection_part(t)):
        level = level if part is None else level | part.values.detach().any(-1)
    if not bool(level.all()):
        name = p.pde.fields[int(level[0].int().argmin())]
        raise InputError(f"nothing fixes the level of '{name}': a steady state needs a Dirichlet or Robin condition, or a decay")
    right = product(p.source_mass, p.restrict(f))
    right = right if g is None else right + g
    A = K
    if p.fixed is not None:
        walls = Elimination(p.fixed)
        A, right = walls.matrix(K), walls.right(K, right, w)
    b, groups = A.values.shape[:2]
    flat = EdgeMatrix(A.pattern, A.values.reshape(b * groups, -1))
    batch = max(right.shape[0], b)
    x = apply(prepare(flat, "lu", symmetric=p.pde.velocity is None), flat, fold(right.expand(batch, -1, -1), b, groups))
    u = p.expand(unfold(x, b, groups, batch, p.n_fields))
    return u if source is None else u.to(source.dtype)
