"""One Stokes step of the flow solver: the convection term and two solvers for the same fixed matrix.

    [A B'] [u]   [force]      A = 11/(6 dt) M + nu K
    [B 0 ] [p] = [  0  ]

`CoupledLU` factors the matrix once (SciPy SuperLU, best on a CPU). `DenseSchur` is made for a GPU: a Chebyshev iteration of fixed
length inverts A, and the pressure comes from the explicit inverse of the Schur complement.
"""

from __future__ import annotations

import warnings
from math import ceil, log, sqrt
from typing import Protocol

import numpy as np
import torch
from scipy.sparse import block_array, coo_array, csr_array, eye_array, kron
from scipy.sparse.linalg import splu
from torch import Tensor

from dgnet.errors import SolveError
from dgnet_paper.reference.taylor_hood import TaylorHood, p2_shapes, p2_slopes, triangle_rule


def to_torch(matrix: csr_array, device: torch.device) -> Tensor:
    matrix = csr_array(matrix)
    matrix.sort_indices()
    index = np.int32 if device.type == "cuda" else np.int64  # cuSPARSE reads half the index bytes; MKL builds differ
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Sparse CSR tensor support is in beta"
        return torch.sparse_csr_tensor(torch.from_numpy(matrix.indptr.astype(index)),
                                       torch.from_numpy(matrix.indices.astype(index)),
                                       torch.from_numpy(np.ascontiguousarray(matrix.data)), matrix.shape).to(device)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Products of pairs [..., 2] -> [..., 1]; a general sum over an axis of two is several times slower."""
    return a[..., :1] * b[..., :1] + a[..., 1:] * b[..., 1:]


class Convection:
    """N(u) [n, 2]: the weak form of (u.grad) u + u div u / 2, minus half of min(u.n, 0) u on the outlet.

    Gather to cells, one small matrix product for values and slopes at the quadrature points, products, one back, and a sparse
    sum at the nodes (sparse, because atomic adds would make the result depend on the run).
    """

    def __init__(self, space: TaylorHood, outlet: str, device: torch.device) -> None:
        mesh = space.mesh
        bary, weight = triangle_rule()
        slopes = p2_slopes(bary)
        phi = p2_shapes(bary)
        # slopes along the reference axes: lambda_0 = 1 - xi - eta
        table = np.concatenate([phi, slopes[:, :, 1] - slopes[:, :, 0], slopes[:, :, 2] - slopes[:, :, 0]])

        gauss, gauss_weight = np.polynomial.legendre.leggauss(4)
        s = (1 + gauss) / 2
        edge_phi = np.stack([(1 - s) * (1 - 2 * s), s * (2 * s - 1), 4 * s * (1 - s)], axis=1)
        facets = space.facets(outlet)
        length, normal = mesh.facet_geometry(outlet)

        def send(a: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(a)).to(device)

        self.cells = send(space.cells.T.ravel())
        self.table = send(table)
        self.back = send((phi * weight[:, None]).T)
        scaled = mesh.gradients * mesh.volumes[:, None, None]  # the cell's area rides on the slopes
        self.grad_xi, self.grad_eta = send(scaled[:, 1]), send(scaled[:, 2])
        self.edges = send(facets.T.ravel())
        self.edge_table = send(edge_phi)
        self.edge_back = send(-0.25 * (edge_phi * gauss_weight[:, None]).T)
        self.edge_normal = send(normal * length[:, None])
        nodes = np.concatenate([space.cells.T.ravel(), facets.T.ravel()])
        self.sum = to_torch(coo_array((np.ones(len(nodes)), (nodes, np.arange(len(nodes)))),
                                       shape=(space.n, len(nodes))).tocsr(), device)

    def __call__(self, u: Tensor) -> Tensor:
        k, f = len(self.cells) // 6, len(self.edges) // 3
        value, d_xi, d_eta = (self.table @ u[self.cells].view(6, 2 * k)).view(3, -1, k, 2)
        along_xi, along_eta = dot(value, self.grad_xi), dot(value, self.grad_eta)  # [Q, K, 1]
        half_div = 0.5 * (dot(d_xi, self.grad_xi) + dot(d_eta, self.grad_eta))
        local = self.back @ (along_xi * d_xi + along_eta * d_eta + half_div * value).view(-1, 2 * k)
        at_outlet = (self.edge_table @ u[self.edges].view(3, 2 * f)).view(-1, f, 2)
        inwards = dot(at_outlet, self.edge_normal).clamp(max=0)
        local_edge = self.edge_back @ (inwards * at_outlet).view(-1, 2 * f)
        return self.sum @ torch.cat([local.view(-1, 2), local_edge.view(-1, 2)])


class StokesSolver(Protocol):
    def __call__(self, force: Tensor, divergence: Tensor) -> tuple[Tensor, Tensor]:
        """(u, p) with A u + B'p = force [n_f, 2] and B u = divergence [n_p]."""


def dissection(space: TaylorHood, free: np.ndarray, leaf: int = 8) -> np.ndarray:
    """Nested dissection of the unknowns (velocity pairs of the free nodes, then pressures), by bisecting the cells.

    Half the fill of COLAMD and a quarter of its set-up. Within each part velocities come first, so that no pivot of a pressure is
    zero when its turn comes.
    """
    centroids, taken, parts = space.mesh.centroids, np.zeros(space.n, dtype=bool), []

    def take(nodes: np.ndarray) -> np.ndarray:
        nodes = nodes[~taken[nodes]]
        taken[nodes] = True
        return nodes

    def split(cells: np.ndarray) -> None:
        if len(cells) <= leaf:
            parts.append(take(np.unique(space.cells[cells])))
            return
        x = centroids[cells]
        cells = cells[np.argsort(x[:, np.ptp(x, axis=0).argmax()], kind="stable")]
        left, right = cells[: len(cells) // 2], cells[len(cells) // 2:]
        between = take(np.intersect1d(space.cells[left], space.cells[right]))
        split(left)
        split(right)
        parts.append(between)

    split(np.arange(len(centroids)))
    place = np.full(space.n, -1)
    place[free] = np.arange(len(free))
    order = []
    for nodes in parts:
        moving = place[nodes[place[nodes] >= 0]]
        order += [(2 * moving[:, None] + np.arange(2)).ravel(), 2 * len(free) + nodes[nodes < space.mesh.n_nodes]]
    return np.concatenate(order)


class CoupledLU:
    def __init__(self, a: csr_array, b: csr_array, order: np.ndarray, device: torch.device) -> None:
        self.nf, self.order, self.device = a.shape[0], order, device
        coupled = block_array([[kron(a, eye_array(2)), b.T], [b, None]], format="csr")
        self.lu = splu(coupled[order][:, order].tocsc(), permc_spec="NATURAL", diag_pivot_thresh=1e-3,
                       options={"SymmetricMode": True})

    def __call__(self, force: Tensor, divergence: Tensor) -> tuple[Tensor, Tensor]:
        rhs = torch.cat([force.reshape(-1), divergence]).cpu().numpy()
        solution = np.empty_like(rhs)
        solution[self.order] = self.lu.solve(rhs[self.order])
        x = torch.from_numpy(solution).to(self.device)
        return x[: 2 * self.nf].view(-1, 2), x[2 * self.nf:]


class DenseSchur:
    def __init__(self, a: csr_array, b: csr_array, bounds: tuple[float, float], tolerance: float, device: torch.device,
                 dtype: torch.dtype) -> None:
        low, high = bounds
        centre, self.sigma = (high + low) / 2, (high - low) / (high + low)
        rate = self.sigma / (1 + sqrt(1 - self.sigma**2))
        self.iterations = max(2, ceil(log(tolerance / 2) / log(rate)))
        scale = 1 / (centre * a.diagonal())
        self.jacobi = torch.from_numpy(scale).to(device)[:, None]
        self.iterate = to_torch(eye_array(a.shape[0], format="csr") - a.multiply(scale[:, None]).tocsr(), device)
        self.b, self.bt = to_torch(b, device), to_torch(b.T.tocsr(), device)
        self.inverse = self._inverse(b, device).to(dtype)

    def velocity(self, force: Tensor) -> Tensor:
        """P force: Chebyshev semi-iteration x_k+1 = x_k-1 + w (G x_k + f - x_k-1), G = I - D^-1 A / centre, from zero."""
        f = self.jacobi * force
        before, x, w = torch.zeros_like(f), f, 2.0
        for _ in range(self.iterations - 1):
            w = 1 / (1 - self.sigma**2 * w / 4)
            after = torch.lerp(before, f, w)
            torch.addmm(after, self.iterate, x, alpha=w, out=after)
            before, x = x, after
        return x

    def _inverse(self, b: csr_array, device: torch.device) -> Tensor:
        n_p, n_u = b.shape
        schur = torch.empty(n_p, n_p, dtype=torch.float64, device=device)
        chunk = max(1, min(n_p, 60_000_000 // n_u))  # half a GB per temporary
        row, col = (torch.from_numpy(np.asarray(v, dtype=np.int64)).to(device) for v in b.tocoo().coords)
        value = torch.from_numpy(b.tocoo().data).to(device)
        for start in range(0, n_p, chunk):
            stop = min(start + chunk, n_p)
            span = slice(int(b.indptr[start]), int(b.indptr[stop]))
            columns = torch.zeros(n_u, stop - start, dtype=torch.float64, device=device)
            columns[col[span], row[span] - start] = value[span]
            schur[:, start:stop] = self.b @ self.velocity(columns.view(n_u // 2, -1)).view(n_u, -1)
        schur = 0.5 * (schur + schur.T)
        factor, info = torch.linalg.cholesky_ex(schur)
        if int(info) != 0:
            raise SolveError(f"the pressure matrix is not positive definite (pivot {int(info)}): is there an outlet?")
        del schur
        return torch.cholesky_inverse(factor)

    def __call__(self, force: Tensor, divergence: Tensor) -> tuple[Tensor, Tensor]:
        u = self.velocity(force)
        rest = torch.mv(self.b, u.view(-1)) - divergence
        p = (self.inverse @ rest.to(self.inverse.dtype)).to(rest.dtype)
        return u - self.velocity(torch.mv(self.bt, p).view(-1, 2)), p
