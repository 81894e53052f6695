"""The change from one mass to another: nodal values that another matrix reads from now on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import bounds_of, fold, product, unfold
from dgnet.stepping.backends import Prepared, apply, prepare

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class MassChange:
    """What is added to a state whose nodal values are read by another mass from now on: M^-1 (F - M) u, so that M u+ = F u."""

    problem: Problem
    right: EdgeMatrix  # F
    mass: EdgeMatrix  # M, values [f, nnz]
    mass_low: float
    solver: Prepared

    def __call__(self, u: Tensor) -> Tensor:
        p, M = self.problem, EdgeMatrix(self.mass.pattern, self.mass.values[None])
        inner = p.restrict(u).to(p.dtype)
        f = len(self.mass.values)
        difference = fold(product(self.right, inner) - product(M, inner), 1, f)
        return p.expand(unfold(apply(self.solver, self.mass, difference), 1, f, u.shape[0], u.shape[2])).to(u.dtype)

    def severed(self) -> tuple[MassChange, list[tuple[Tensor, Tensor]]]:
        """The same with its matrices as leaves, and (tensor, leaf) pairs."""
        pairs = [(A.values, A.values.detach().requires_grad_()) for A in (self.right, self.mass) if A.values.requires_grad]
        leaf = {id(x): y for x, y in pairs}
        right, M = (EdgeMatrix(A.pattern, leaf.get(id(A.values), A.values)) for A in (self.right, self.mass))
        return MassChange(self.problem, right, M, self.mass_low, self.solver), pairs


def mass_change(p: Problem, right: EdgeMatrix, M: EdgeMatrix, mass_low: float) -> MassChange:
    flat = EdgeMatrix(M.pattern, M.values[0])
    backend = "iterative" if p.geometry.device.type == "cuda" else "lu"
    ready = prepare(flat, backend, bounds_of(flat, flat, mass_low, symmetric=True), symmetric=True)
    return MassChange(p, right, flat, mass_low, ready)
