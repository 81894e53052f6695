"""From the nodes of a mesh to the middles of its edges, for a solver with quadratic elements or on the mesh refined once.

The value at a middle is that of the quadratic polynomial that fits the nodes around the edge best (weighted least squares), so
quadratics are met exactly and smooth fields with third order. Where there are too few nodes around, those around them join. Where
even these do not settle a quadratic, the value is linear along the edge. A field that jumps or has a kink is rounded off there.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array

from dgnet.mesh import Mesh

Tensor = torch.Tensor

_made: WeakKeyDictionary[Mesh, dict[torch.device, Lift]] = WeakKeyDictionary()
STEADY = 2.5  # largest sum of absolute weights of a fit that counts as settled; linear interpolation has 1
_BLOCK = 50_000  # edges that are fitted at once


class Lift:
    """Values at nodes [..., N, F] -> at nodes and middles [..., N + E, F]: linear, differentiable, without waiting for the host.

    - `mesh`: whose edges
    """

    def __init__(self, mesh: Mesh, device: torch.device | str = "cpu") -> None:
        index, weight = _fitted(mesh)
        self.n_nodes, self.weight = mesh.n_nodes, torch.tensor(weight, device=device)
        self.index = torch.tensor(index, device=device)
        rows = np.repeat(np.arange(len(index)), index.shape[1])
        table = csr_array((weight.ravel(), (rows, index.ravel())), shape=(len(index), mesh.n_nodes))
        double = torch.sparse_csr_tensor(torch.tensor(table.indptr), torch.tensor(table.indices), torch.tensor(table.data),
                                         size=table.shape, check_invariants=False)
        self._tables = {torch.float64: double, torch.float32: double.float()}

    @classmethod
    def of(cls, mesh: Mesh, device: torch.device | str = "cpu") -> Lift:
        """The one of a mesh, made once."""
        lifts = _made.setdefault(mesh, {})
        device = torch.device(device)
        if device not in lifts:
            with torch.inference_mode(False):  # it stays with the mesh, for rollouts with gradients, too
                lifts[device] = cls(mesh, device)
        return lifts[device]

    def __call__(self, u: Tensor) -> Tensor:
        """Also of what has values at the middles already, which it leaves alone."""
        if u.shape[-2] != self.n_nodes:
            return u
        level = u[..., :1, :].detach()  # so that a constant stays what it is, exactly
        v = u - level
        if u.is_cuda or (torch.is_grad_enabled() and u.requires_grad):
            around = v.index_select(-2, self.index.ravel()).unflatten(-2, self.index.shape)
            middles = (around * self.weight.to(u.dtype)[..., None]).sum(-2)
        else:
            found = torch.mm(self._tables[u.dtype], v.movedim(-2, 0).reshape(self.n_nodes, -1))
            middles = found.reshape(-1, *u.shape[:-2], u.shape[-1]).movedim(0, -2)
        return torch.cat([u, middles + level], -2)

    def back(self, weights: Tensor) -> Tensor:
        """The transpose: weights of values at nodes and middles [..., N + E, F] -> weights of those at the nodes [..., N, F]."""
        with torch.enable_grad():
            u = weights.new_zeros(*weights.shape[:-2], self.n_nodes, weights.shape[-1]).requires_grad_()
            return torch.autograd.grad(self(u), u, weights)[0]


def _fitted(mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Nodes around each edge [E, w] and their weights in the value of its middle; weights of places that are not used are zero."""
    n, edges = mesh.n_nodes, mesh.edges
    pairs = np.concatenate([edges, edges[:, ::-1]]).T
    near = csr_array((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), shape=(n, n)) + eye_array(n)
    ends = csr_array((np.ones(edges.size), (np.repeat(np.arange(len(edges)), 2), edges.ravel())), shape=(len(edges), n))
    index, weight = _fit(mesh, np.arange(len(edges)), ends @ near)
    loose = np.flatnonzero(~(np.abs(weight).sum(1) <= STEADY))
    if len(loose):
        wide_index, wide = _fit(mesh, loose, ends[loose] @ near @ near)
        lost = ~(np.abs(wide).sum(1) <= STEADY)
        wide_index[lost], wide[lost] = edges[loose[lost], 0][:, None], 0.0
        wide_index[lost, :2], wide[lost, :2] = edges[loose[lost]], 0.5
        room = max(0, wide.shape[1] - weight.shape[1])
        index = np.pad(index, ((0, 0), (0, room)), mode="edge")
        weight = np.pad(weight, ((0, 0), (0, room)))
        index[loose, : wide.shape[1]], weight[loose] = wide_index, 0.0
        weight[loose, : wide.shape[1]] = wide
    return index, weight


def _fit(mesh: Mesh, rows: np.ndarray, patches: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Least squares in each patch (a row of the matrix) around the middle of edge rows[k]; NaN where it is not settled."""
    half = 0.5 * mesh.edge_lengths[rows]  # the ends are at distance 1
    return quadratic(mesh.points, mesh.middles[rows], half, patches, soft=0.1)


def quadratic(points: np.ndarray, targets: np.ndarray, reach: np.ndarray, patches: csr_array,
              soft: float) -> tuple[np.ndarray, np.ndarray]:
    """Points around each target [T, w] and their weights in its value: of the quadratic that fits the values there best.

    - `points` [M, d], `targets` [T, d]
    - `reach` [T]: a length, in whose units distances y weigh 1 / max(y^2, soft)^2
    - `patches` [T, M]: which points are around a target

    Weights are NaN where the points do not settle a quadratic; those of places that are not used are zero.
    """
    patches, d = csr_array(patches), points.shape[1]
    counts = np.diff(patches.indptr)
    used = np.arange(counts.max()) < counts[:, None]
    index = np.zeros(used.shape, dtype=np.int64)
    index[used] = patches.indices
    index[~used] = np.repeat(index[:, 0], (~used).sum(1))
    weight = np.empty(index.shape)
    for k in range(0, len(targets), _BLOCK):
        part = slice(k, k + _BLOCK)
        y = (points[index[part]] - targets[part, None]) / reach[part, None, None]
        closeness = np.where(used[part], 1 / np.maximum((y**2).sum(-1), soft) ** 2, 0.0)
        terms = [(), *((a,) for a in range(d)), *combinations_with_replacement(range(d), 2)]
        basis = np.stack([np.prod([y[..., a] for a in term], axis=0) * np.ones_like(closeness) for term in terms], -1)
        normal = np.swapaxes(basis * closeness[..., None], 1, 2) @ basis
        size = np.sqrt(np.einsum("ess->es", normal)).clip(1e-100)
        first, settled = _first_of_inverse(normal / (size[:, :, None] * size[:, None]))
        weight[part] = closeness * (basis @ (first / size / size[:, :1])[..., None])[..., 0]
        weight[part][~settled] = np.nan
    return index, weight


def _first_of_inverse(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first columns [E, m] of the inverses of symmetric matrices [E, m, m] with a unit diagonal, and where they are settled.

    A = L D L^T entry by entry, each for all edges at once. A pivot of D near zero means that the terms depend on each other.
    """
    m = A.shape[1]
    L, D = np.moveaxis(A, 0, -1).copy(), np.empty((m, len(A)))
    settled = np.ones(len(A), dtype=bool)
    for k in range(m):
        D[k] = L[k, k]
        settled &= D[k] > 1e-9
        D[k][~settled] = 1.0
        below = L[k + 1:, k] / D[k]
        L[k + 1:, k + 1:] -= below[:, None] * L[k + 1:, k][None]
        L[k + 1:, k] = below
    x = np.zeros((m, len(A)))
    x[0] = 1.0
    for k in range(1, m):
        x[k] = -(L[k, :k] * x[:k]).sum(0)
    x /= D
    for k in range(m - 2, -1, -1):
        x[k] -= (L[k + 1:, k] * x[k + 1:]).sum(0)
    return x.T, settled
