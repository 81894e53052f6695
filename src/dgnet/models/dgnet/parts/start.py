"""The filter of the initial state, and the change from one mass to another."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dgnet.green import bounds_of, fold, product, unfold
from dgnet.green.backends import Prepared, apply, prepare
from dgnet.models.dgnet.parts.edges import pair_correction
from dgnet.operators import EdgeMatrix
from dgnet.problems import Discretisation

Tensor = torch.Tensor

@dataclass(frozen=True, eq=False)
class Transfer:
    """What is added to a state whose nodal values are read by another mass from now on: M^-1 (F - M) u, so that M u+ = F u."""

    problem: Discretisation
    right: EdgeMatrix  # F
    mass: EdgeMatrix  # M, values [f, nnz]
    mass_low: float
    solver: Prepared

    def __call__(self, u: Tensor) -> Tensor:
        p, M = self.problem, EdgeMatrix(self.mass.pattern, self.mass.values[None])
        inner = p.restrict(u).to(p.dtype)
        f = len(self.mass.values)
        rest = fold(product(self.right, inner) - product(M, inner), 1, f)
        return p.expand(unfold(apply(self.solver, self.mass, rest), 1, f, u.shape[0], u.shape[2])).to(u.dtype)

    def severed(self) -> tuple[Transfer, list[tuple[Tensor, Tensor]]]:
        """The same with its matrices as leaves, and (tensor, leaf) pairs."""
        pairs = [(A.values, A.values.detach().requires_grad_()) for A in (self.right, self.mass) if A.values.requires_grad]
        leaf = {id(x): y for x, y in pairs}
        right, M = (EdgeMatrix(A.pattern, leaf.get(id(A.values), A.values)) for A in (self.right, self.mass))
        return Transfer(self.problem, right, M, self.mass_low, self.solver), pairs


def transfer(p: Discretisation, right: EdgeMatrix, M: EdgeMatrix, mass_low: float) -> Transfer:
    flat = EdgeMatrix(M.pattern, M.values[0])
    backend = "iterative" if p.geometry.device.type == "cuda" else "lu"
    ready = prepare(flat, backend, bounds_of(flat, flat, mass_low, symmetric=True), symmetric=True)
    return Transfer(p, right, flat, mass_low, ready)


def start_filter(p: Discretisation, M: EdgeMatrix, mass_low: float, delta: Tensor) -> Transfer:
    """What is added to the initial state, once: u0 is replaced by M_theta^-1 (M + graph Laplacian) u0.

    A learned mass reads nodal values in its own way. Projecting the start keeps its moments, phi^T M u0, which decide how a
    rough start evolves; a learned Laplacian (zero at birth, like the whole) does what is left. Keeps constants and the total.
    """
    return transfer(p, pair_correction(p, p.mass, delta), M, mass_low)
