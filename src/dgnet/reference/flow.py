"""Unsteady incompressible flow through a channel: the velocity fields of the contaminant scenarios.

    du/dt + (u . grad) u + grad p - nu lap u = 0,   div u = 0      (density 1)

Taylor–Hood elements: P2 velocity (third order in L2), P1 pressure, on straight triangles. Time: BDF3 with the convection
extrapolated to third order (BDF3/EX3), so every step solves one Stokes problem with a fixed matrix,

    [A B'] [u]   [rhs]       A = 11/(6 dt) M + nu K
    [B 0 ] [p] = [ 0 ]       rhs = M (3 u^n - 3/2 u^n-1 + 1/3 u^n-2)/dt - 3 N^n + 3 N^n-1 - N^n-2.

EX3 and not EX2: its stability region holds the imaginary axis up to 0.63, EX2's and AB2's hold none of it, and at a cell
Péclet number of tens the convective eigenvalues lie there. The step is bounded by `step_limit`, about dt < 0.12 h/|u|.

N is the convective form plus half of u div u, and the outlet is the directional do-nothing condition
nu du/dn - p n = 1/2 min(u.n, 0) u: with both, convection cannot feed energy into the flow, so vortices may leave through the
outlet. Walls and obstacles do not slip; the inlet has a parabolic profile that rises smoothly from rest.

Two solvers for the same matrix: `lu` factors it once (SciPy SuperLU, best on a CPU); `schur` is made for a GPU: A is nearly a
mass matrix, so a Chebyshev iteration P of fixed length inverts it (its bounds are certified element by element), and the
pressure comes from the explicit inverse of S = B P B'. As S uses the same polynomial P, div u vanishes to rounding
however short the iteration is. On CUDA the whole step is one CUDA graph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log, sqrt
from pathlib import Path
from typing import Any, Protocol
from zipfile import BadZipFile

import numpy as np
import torch
from scipy.sparse import block_array, coo_array, csr_array, eye_array, kron
from scipy.sparse.linalg import splu
from torch import Tensor

from dgnet.errors import InputError, SolveError
from dgnet.files import writing
from dgnet.mesh.mesh import Mesh

BDF = (11 / 6, 3.0, -1.5, 1 / 3)
"""du/dt at the new time = (BDF[0] u^n+1 - BDF[1] u^n - BDF[2] u^n-1 - BDF[3] u^n-2) / dt."""
EXTRAPOLATE = (3.0, -3.0, 1.0)
CHECK_EVERY = 500  # steps between checks of the residual: cheap enough to be invisible, close enough to name the time
STEP_MARGIN = 1.1  # steps longer than this times the estimated limit are refused
FLOAT32_INVERSE_ABOVE = 16_000  # pressure nodes; reading a float64 inverse would dominate the step beyond this


# ---------------------------------------------------------------------- P2 elements

def p2_cells(mesh: Mesh) -> np.ndarray:
    """Nodes of each P2 triangle [K, 6]: corners, then the middles of edges 01, 12, 20, numbered as in `mesh.refined(1)`."""
    key = mesh.edges @ np.array([mesh.n_nodes, 1])
    pairs = np.sort(mesh.cells[:, [[0, 1], [1, 2], [2, 0]]], axis=2)
    return np.concatenate([mesh.cells, mesh.n_nodes + np.searchsorted(key, pairs @ np.array([mesh.n_nodes, 1]))], axis=1)


def p2_points(mesh: Mesh) -> np.ndarray:
    return np.concatenate([mesh.points, mesh.points[mesh.edges].mean(axis=1)])


def p2_shapes(bary: np.ndarray) -> np.ndarray:
    """Values of the six P2 shape functions [..., 6] at barycentric coordinates [..., 3]."""
    middle = 4 * bary[..., [0, 1, 2]] * bary[..., [1, 2, 0]]
    return np.concatenate([bary * (2 * bary - 1), middle], axis=-1)


def _p2_slopes(bary: np.ndarray) -> np.ndarray:
    """Derivatives of the P2 shape functions with respect to the three barycentric coordinates [Q, 6, 3]."""
    slopes = np.zeros((len(bary), 6, 3))
    for i in range(3):
        j = (i + 1) % 3
        slopes[:, i, i] = 4 * bary[:, i] - 1
        slopes[:, 3 + i, i], slopes[:, 3 + i, j] = 4 * bary[:, j], 4 * bary[:, i]
    return slopes


def _triangle_rule() -> tuple[np.ndarray, np.ndarray]:
    """Radon's 7 points [7, 3] and weights (sum 1), exact to degree 5: all that P2 convection needs."""
    root = sqrt(15)
    points, weights = [np.full((1, 3), 1 / 3)], [0.225]
    for a, w in (((6 - root) / 21, (155 - root) / 1200), ((6 + root) / 21, (155 + root) / 1200)):
        points.append(np.full((3, 3), a) + (1 - 3 * a) * np.eye(3))
        weights += [w] * 3
    return np.concatenate(points), np.array(weights)


def _assembled(blocks: np.ndarray, rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int]) -> csr_array:
    i = np.broadcast_to(rows[:, :, None], blocks.shape)
    j = np.broadcast_to(cols[:, None, :], blocks.shape)
    return coo_array((blocks.ravel(), (i.ravel(), j.ravel())), shape=shape).tocsr()


@dataclass(frozen=True, eq=False)
class TaylorHood:
    """Matrices of the P2–P1 pair on a mesh: mass, stiffness (scalar, [n, n]) and B = -(q, div v) [n_p, 2n], with the
    two velocity components of a node side by side."""

    mesh: Mesh

    def __post_init__(self) -> None:
        if self.mesh.dim != 2:
            raise InputError("the flow solver is two-dimensional, but the mesh is 3D")

    @property
    def n(self) -> int:
        return self.mesh.n_nodes + len(self.mesh.edges)

    @cached_property
    def cells(self) -> np.ndarray:
        return p2_cells(self.mesh)

    @cached_property
    def element_matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """Mass and stiffness per cell [K, 6, 6]."""
        bary, weight = _triangle_rule()
        phi = p2_shapes(bary)
        area = self.mesh.volumes[:, None, None]
        slope = np.einsum("qai,kid->kqad", _p2_slopes(bary), self.mesh.gradients)
        return area * np.einsum("q,qa,qb->ab", weight, phi, phi), area * np.einsum("q,kqad,kqbd->kab", weight, slope, slope)

    @cached_property
    def mass(self) -> csr_array:
        return _assembled(self.element_matrices[0], self.cells, self.cells, (self.n, self.n))

    @cached_property
    def stiffness(self) -> csr_array:
        return _assembled(self.element_matrices[1], self.cells, self.cells, (self.n, self.n))

    @cached_property
    def divergence(self) -> csr_array:
        bary, weight = _triangle_rule()
        slope = np.einsum("qai,kid->kqad", _p2_slopes(bary), self.mesh.gradients)
        local = -self.mesh.volumes[:, None, None, None] * np.einsum("q,qi,kqad->kiad", weight, bary, slope)
        columns = (2 * self.cells[:, :, None] + np.arange(2)).reshape(len(self.cells), 12)
        return _assembled(local.reshape(-1, 3, 12), self.mesh.cells, columns, (self.mesh.n_nodes, 2 * self.n))

    def nodes_on(self, name: str) -> np.ndarray:
        """P2 nodes on a named boundary."""
        return np.unique(self.facets(name))

    def facets(self, name: str) -> np.ndarray:
        """Facets of a boundary with their middles [F, 3]."""
        facets = self.mesh.facets(name)
        key = self.mesh.edges @ np.array([self.mesh.n_nodes, 1])
        middle = np.searchsorted(key, np.sort(facets, axis=1) @ np.array([self.mesh.n_nodes, 1]))
        return np.column_stack([facets, self.mesh.n_nodes + middle])


# ---------------------------------------------------------------------- torch pieces

def _to_torch(matrix: csr_array, device: torch.device) -> Tensor:
    matrix = csr_array(matrix)
    matrix.sort_indices()
    index = np.int32 if device.type == "cuda" else np.int64  # cuSPARSE reads half the index bytes; MKL builds differ
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Sparse CSR tensor support is in beta"
        return torch.sparse_csr_tensor(torch.from_numpy(matrix.indptr.astype(index)),
                                       torch.from_numpy(matrix.indices.astype(index)),
                                       torch.from_numpy(np.ascontiguousarray(matrix.data)), matrix.shape).to(device)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Products of pairs [..., 2] -> [..., 1]; a general sum over an axis of two is several times slower."""
    return a[..., :1] * b[..., :1] + a[..., 1:] * b[..., 1:]


class _Convection:
    """N(u) [n, 2]: the weak form of (u.grad) u + u div u / 2, minus half of min(u.n, 0) u on the outlet.

    Gather to cells, one small matrix product for values and slopes at the quadrature points, products, one back, and a sparse
    sum at the nodes (sparse, because atomic adds would make the result depend on the run).
    """

    def __init__(self, space: TaylorHood, outlet: str, device: torch.device) -> None:
        mesh = space.mesh
        bary, weight = _triangle_rule()
        slopes = _p2_slopes(bary)
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
        self.sum = _to_torch(coo_array((np.ones(len(nodes)), (nodes, np.arange(len(nodes)))),
                                       shape=(space.n, len(nodes))).tocsr(), device)

    def __call__(self, u: Tensor) -> Tensor:
        k, f = len(self.cells) // 6, len(self.edges) // 3
        value, d_xi, d_eta = (self.table @ u[self.cells].view(6, 2 * k)).view(3, -1, k, 2)
        along_xi, along_eta = _dot(value, self.grad_xi), _dot(value, self.grad_eta)  # [Q, K, 1]
        half_div = 0.5 * (_dot(d_xi, self.grad_xi) + _dot(d_eta, self.grad_eta))
        local = self.back @ (along_xi * d_xi + along_eta * d_eta + half_div * value).view(-1, 2 * k)
        at_outlet = (self.edge_table @ u[self.edges].view(3, 2 * f)).view(-1, f, 2)
        inwards = _dot(at_outlet, self.edge_normal).clamp(max=0)
        local_edge = self.edge_back @ (inwards * at_outlet).view(-1, 2 * f)
        return self.sum @ torch.cat([local.view(-1, 2), local_edge.view(-1, 2)])


class _Solver(Protocol):
    def __call__(self, force: Tensor, divergence: Tensor) -> tuple[Tensor, Tensor]:
        """(u, p) with A u + B'p = force [n_f, 2] and B u = divergence [n_p]."""


def _dissection(space: TaylorHood, free: np.ndarray, leaf: int = 8) -> np.ndarray:
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


class _CoupledLU:
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


class _DenseSchur:
    def __init__(self, a: csr_array, b: csr_array, bounds: tuple[float, float], tolerance: float, device: torch.device,
                 dtype: torch.dtype) -> None:
        low, high = bounds
        centre, self.sigma = (high + low) / 2, (high - low) / (high + low)
        rate = self.sigma / (1 + sqrt(1 - self.sigma**2))
        self.iterations = max(2, ceil(log(tolerance / 2) / log(rate)))
        scale = 1 / (centre * a.diagonal())
        self.jacobi = torch.from_numpy(scale).to(device)[:, None]
        self.iterate = _to_torch(eye_array(a.shape[0], format="csr") - a.multiply(scale[:, None]).tocsr(), device)
        self.b, self.bt = _to_torch(b, device), _to_torch(b.T.tocsr(), device)
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


# ---------------------------------------------------------------------- the flow

def _rise(s: np.ndarray) -> np.ndarray:
    """0 to 1 with two vanishing derivatives at both ends, so that rest is an exact history."""
    s = np.clip(s, 0, 1)
    return s**3 * (10 - 15 * s + 6 * s**2)


class ChannelFlow:
    """A flow on `mesh`, advanced step by step; see the module's docstring for the scheme.

    The inlet must be straight. Its velocity is 6 U s (1 - s) (1 + b(t) (2s - 1)) a(t) along the inward normal, s from 0 to 1
    across it: a(t) rises over `ramp`, and b(t) is one pulse of height `perturbation` over `pulse` that breaks the symmetry
    (it carries no net flux), after which the inflow is steady. They default to one and two times inlet width / U.
    Every boundary but inlet and outlet is a wall. `initial` [n_p2, 2] starts from a given velocity instead of rest.
    `tolerance` is the factor by which `schur` reduces the error of the extrapolated velocity in each step, and the relative
    residual at which `check` gives up; what is left in smooth flow is many orders below it.
    """

    def __init__(self, mesh: Mesh, *, mean_velocity: float, viscosity: float, dt: float, inlet: str = "inlet",
                 outlet: str = "outlet", ramp: float | None = None, perturbation: float = 0.3, pulse: float | None = None,
                 initial: np.ndarray | None = None, start: float = 0.0, device: str | torch.device = "cpu", method: str = "auto",
                 tolerance: float = 1e-6, graph: bool = True) -> None:
        for name, number in (("mean_velocity", mean_velocity), ("viscosity", viscosity), ("dt", dt), ("tolerance", tolerance)):
            if not (np.isfinite(number) and number > 0):
                raise InputError(f"{name} must be a positive number, got {number}")
        self.device = torch.device(device)
        if method == "auto":
            method = "schur" if self.device.type == "cuda" else "lu"
        if method not in ("lu", "schur"):
            raise InputError(f"unknown flow solver '{method}' (known: auto, lu, schur)")
        self.mesh, self.dt, self.viscosity, self.method = mesh, dt, viscosity, method
        self.space = space = TaylorHood(mesh)
        self.start, self.steps = start, 0
        n = space.n

        modes, fixed = self._inflow(inlet, outlet, mean_velocity)
        free = np.setdiff1d(np.arange(n), fixed)
        pair = (2 * free[:, None] + np.arange(2)).ravel()
        pair_fixed = (2 * fixed[:, None] + np.arange(2)).ravel()
        a = (BDF[0] / dt * space.mass + viscosity * space.stiffness).tocsr()
        a_free, b_free = a[free][:, free].tocsr(), space.divergence[:, pair].tocsr()

        def send(x: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)

        self.free, self.fixed = send(free), send(fixed)
        self.modes = send(modes.reshape(len(fixed) * 2, -1))  # [2 n_fixed, modes]
        self.a, self.b, self.bt = (_to_torch(m, self.device) for m in (a_free, b_free, b_free.T.tocsr()))
        self.mass = _to_torch((space.mass[free] / dt).tocsr(), self.device)
        self.lift = send((a[free][:, fixed] @ modes.reshape(len(fixed), -1)).reshape(2 * len(free), -1))
        self.leak = send(space.divergence[:, pair_fixed] @ modes.reshape(2 * len(fixed), -1))

        width = float(mesh.facet_geometry(inlet)[0].sum())
        ramp = width / mean_velocity if ramp is None else ramp  # a faster start makes thin layers that need a smaller dt
        pulse = 2 * width / mean_velocity if pulse is None else pulse
        times = start + dt * np.arange(ceil(max(0.0, ramp, pulse if perturbation else 0.0, start) / dt - start / dt) + 2)
        s = np.clip(times / pulse, 0, 1) if pulse > 0 else np.ones_like(times)
        rise = _rise(times / ramp) if ramp > 0 else np.ones_like(times)
        self.inflow = send(np.stack([rise, rise * perturbation * 64 * s**3 * (1 - s) ** 3], axis=1))

        self.convection = _Convection(space, outlet, self.device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.u = torch.zeros(3, n, 2, dtype=torch.float64, device=self.device)  # newest first
        if initial is not None:
            if np.shape(initial) != (n, 2):
                raise InputError(f"the initial velocity must have shape [{n}, 2], got {list(np.shape(initial))}")
            self.u[:] = send(np.asarray(initial, dtype=np.float64))
        self.n_u = self.convection(self.u[0]).repeat(3, 1, 1)
        self.p = torch.zeros(2, mesh.n_nodes, dtype=torch.float64, device=self.device)
        self.rhs = torch.zeros(len(free), 2, dtype=torch.float64, device=self.device)
        self.tolerance = tolerance

        self.solve: _Solver
        if method == "lu":
            self.solve = _CoupledLU(a_free, b_free, _dissection(space, free), self.device)
        else:
            dtype = torch.float32 if mesh.n_nodes > FLOAT32_INVERSE_ABOVE else torch.float64
            self.solve = _DenseSchur(a_free, b_free, self._bounds(), tolerance, self.device, dtype)
        self._graph = self._captured() if graph and method == "schur" and self.device.type == "cuda" else None

    def _inflow(self, inlet: str, outlet: str, mean_velocity: float) -> tuple[np.ndarray, np.ndarray]:
        """Boundary values of the parabola and of its asymmetric part [n_fixed, 2, 2], and the nodes with given velocity."""
        space, points = self.space, p2_points(self.mesh)
        edge = self.mesh.nodes_on(inlet)
        _, normals = self.mesh.facet_geometry(inlet)
        normal = normals.mean(axis=0)
        if np.abs(normals - normal).max() > 1e-6:
            raise InputError(f"the inlet '{inlet}' must be straight")
        tangent = np.array([-normal[1], normal[0]])
        reach = self.mesh.points[edge] @ tangent
        nodes = space.nodes_on(inlet)
        s = (points[nodes] @ tangent - reach.min()) / np.ptp(reach)
        profile = 6 * mean_velocity * s * (1 - s)
        out = {tuple(sorted(f)) for f in self.mesh.facets(outlet).tolist()}
        solid = np.array([tuple(sorted(f)) not in out for f in self.mesh.boundary_facets.tolist()])
        fixed = np.unique(space.facets("boundary")[solid])
        modes = np.zeros((len(fixed), 2, 2))
        place = np.searchsorted(fixed, nodes)
        modes[place] = -normal[:, None] * np.stack([profile, profile * (2 * s - 1)], axis=1)[:, None, :]
        return modes, fixed

    def _bounds(self) -> tuple[float, float]:
        """Spectrum of D^-1 A: it lies between the extremes over single elements (Wathen 1987), also on free nodes alone."""
        mass, stiffness = self.space.element_matrices
        local = BDF[0] / self.dt * mass + self.viscosity * stiffness
        root = 1 / np.sqrt(np.einsum("kaa->ka", local))
        values = np.linalg.eigvalsh(root[:, :, None] * local * root[:, None, :])
        return float(values[:, 0].min()), float(values[:, -1].max())

    # ------------------------------------------------------------------ stepping

    def _step(self) -> None:
        self.clock += 1
        coefficient = self.inflow[self.clock.clamp(max=len(self.inflow) - 1)].view(-1)
        u1, u2, u3 = self.u
        n1, n2, n3 = self.n_u
        guess = EXTRAPOLATE[0] * (u1 - u2) + u3
        conv = EXTRAPOLATE[0] * (n1 - n2) + n3
        history = BDF[1] * u1 + BDF[2] * u2 + BDF[3] * u3
        rhs = self.mass @ history - conv[self.free] - (self.lift @ coefficient).view(-1, 2)
        v, p = guess[self.free], 2 * self.p[0] - self.p[1]
        # solved as a correction of the extrapolated state, so that errors of the solver scale with a small quantity
        force = rhs - self.a @ v - torch.mv(self.bt, p).view(-1, 2)
        dv, dp = self.solve(force, -torch.mv(self.b, v.view(-1)) - self.leak @ coefficient)
        new = torch.empty_like(u1)
        new[self.free] = v + dv
        new[self.fixed] = (self.modes @ coefficient).view(-1, 2)
        fresh = self.convection(new)
        self.u.copy_(torch.stack([new, u1, u2]))
        self.n_u.copy_(torch.stack([fresh, n1, n2]))
        self.p.copy_(torch.stack([p + dp, self.p[0]]))
        self.rhs.copy_(rhs)

    def _captured(self) -> Any:
        state = [x.clone() for x in (self.u, self.n_u, self.p, self.clock)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set up their workspaces outside of the capture
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph: Any = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step()
        except RuntimeError as error:  # a library that cannot be captured costs speed, not correctness
            warnings.warn(f"the flow step could not be captured as a CUDA graph: {error}", stacklevel=3)
            graph = None
        for x, old in zip((self.u, self.n_u, self.p, self.clock), state):
            x.copy_(old)
        return graph

    def advance(self, steps: int) -> None:
        for _ in range(steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()
            self.steps += 1
            if self.steps % CHECK_EVERY == 0:
                self.check()

    def check(self) -> tuple[float, float]:
        """Relative residuals of the momentum and continuity equations of the last step; `SolveError` when too large."""
        v, p = self.u[0][self.free], self.p[0]
        momentum = (self.rhs - self.a @ v - torch.mv(self.bt, p).view(-1, 2)).norm() / self.rhs.norm().clamp(min=1e-300)
        coefficient = self.inflow[self.clock.clamp(max=len(self.inflow) - 1)].view(-1)
        given = self.leak @ coefficient
        flux = torch.mv(self.b, v.view(-1)) + given
        size = given.norm().clamp(min=1e-300)
        both = torch.stack([momentum, flux.norm() / size]).tolist()
        if not np.isfinite(both).all() or float(self.u[0].abs().max()) > 1e6 * float(self.modes.abs().max()):
            raise SolveError(f"the flow blew up before t = {self.time:.6g}; take a time step below {self.dt:g}")
        # convection beyond its limit need not explode: it can saturate as noise that looks like a flow
        limit = self.step_limit()
        if self.dt > STEP_MARGIN * limit:
            raise SolveError(f"the flow's time step {self.dt:g} is too long at t = {self.time:.6g}; take at most {limit:.2g}")
        if max(both) > self.tolerance:
            raise SolveError(f"the flow solve at t = {self.time:.6g} missed its tolerance: residuals {both[0]:.1e} (momentum), "
                             f"{both[1]:.1e} (divergence)")
        return both[0], both[1]

    # ------------------------------------------------------------------ what is read from it

    @property
    def time(self) -> float:
        return self.start + self.steps * self.dt

    @property
    def velocity(self) -> np.ndarray:
        """Velocities at the P2 nodes [n_p2, 2]: the nodes of `mesh.refined(1)`."""
        return self.u[0].cpu().numpy().copy()

    @property
    def pressure(self) -> np.ndarray:
        """Pressure at the mesh's nodes [n_nodes]."""
        return self.p[0].cpu().numpy().copy()

    def step_limit(self) -> float:
        """Estimate of the largest stable step for the velocity of now, 0.63 / (4.5 max |u . grad lambda|).

        3.2 max |u . grad lambda| is the largest convective eigenvalue of P2 with frozen u, and shear adds to it. Measured on
        five channels: clean at 0.9 of the limit, unstable at 1.2 to 1.4 of it. Cells where viscosity rules do not count.
        """
        c = self.convection
        u = self.u[0][c.cells].view(6, -1, 2)
        area = torch.from_numpy(self.mesh.volumes).to(self.device)
        xi, eta = (_dot(u, g)[..., 0] / area for g in (c.grad_xi, c.grad_eta))
        rate = torch.maximum(torch.maximum(xi.abs(), eta.abs()), (xi + eta).abs()).amax(0)
        damping = self.viscosity * torch.from_numpy((self.mesh.gradients**2).sum(axis=2).max(axis=1)).to(self.device)
        return 0.63 / (4.5 * max(float((rate * (rate > 3 * damping)).max()), 1e-300))

    def forces(self, name: str) -> np.ndarray:
        """Force of the flow on a no-slip boundary [2] (drag and lift for flow along x).

        The weak form: the momentum equation tested with the functions that are one on the boundary, which converges twice as
        fast as integrating the stress. Second order in time. The boundary must not touch the inlet or the outlet.
        """
        nodes, total = self._force_rows(name)
        u = self.u
        rate = (1.5 * u[0] - 2 * u[1] + 0.5 * u[2]) / self.dt
        balance = total["mass"] @ rate + self.viscosity * (total["stiffness"] @ u[0]) + self.n_u[0][nodes].sum(0)
        return -(balance + total["gradient"] @ self.p[0]).cpu().numpy()

    def _force_rows(self, name: str) -> tuple[Tensor, dict[str, Tensor]]:
        cache: dict[str, tuple[Tensor, dict[str, Tensor]]] = self.__dict__.setdefault("_force_cache", {})
        if name not in cache:
            nodes = self.space.nodes_on(name)
            b = self.space.divergence
            rows = {"mass": self.space.mass[nodes].sum(axis=0), "stiffness": self.space.stiffness[nodes].sum(axis=0),
                    "gradient": np.stack([b[:, 2 * nodes + c].sum(axis=1) for c in range(2)])}
            cache[name] = (torch.from_numpy(nodes).to(self.device),
                           {k: torch.from_numpy(np.asarray(v)).to(self.device) for k, v in rows.items()})
        return cache[name]

    def pressure_at(self, points: np.ndarray) -> np.ndarray:
        """Pressure at points [P] (P1, extrapolated from the nearest cell for points just outside of the polygon)."""
        mesh, values = self.mesh, []
        for x in np.atleast_2d(points):
            bary = 1 / 3 + np.einsum("kid,kd->ki", mesh.gradients, x - mesh.centroids)
            cell = int(bary.min(axis=1).argmax())
            values.append(bary[cell] @ self.pressure[mesh.cells[cell]])
        return np.array(values)


# ---------------------------------------------------------------------- records

@dataclass(frozen=True, eq=False)
class FlowRecord:
    """Velocities of a flow at equal times: `values` [T, n_p2, 2] at start, start + dt, ...

    They are P2 on `mesh.refined(refine)`, that is, nodal values on `mesh.refined(refine + 1)`, whose first nodes are those
    of every coarser mesh.
    """

    mesh: Mesh
    refine: int
    dt: float
    values: np.ndarray
    start: float = 0.0

    def __post_init__(self) -> None:
        n = self.flow_mesh.n_nodes + len(self.flow_mesh.edges)
        if self.values.ndim != 3 or self.values.shape[1:] != (n, 2):
            raise InputError(f"flow velocities must have shape [T, {n}, 2], got {list(self.values.shape)}")

    @cached_property
    def flow_mesh(self) -> Mesh:
        return self.mesh.refined(self.refine)

    @property
    def times(self) -> np.ndarray:
        return self.start + self.dt * np.arange(len(self.values))

    def interpolator(self, refine: int) -> csr_array:
        """Matrix [n_nodes of mesh.refined(refine), n_p2]: a selection up to refine + 1, P2 shape functions beyond."""
        return p2_interpolator(self.mesh, self.refine, refine)

    def snapshots(self, refine: int, span: slice = slice(None)) -> np.ndarray:
        """Velocities at the nodes of `mesh.refined(refine)` [T, nodes, 2]."""
        values = self.values[span]
        if refine <= self.refine + 1:
            return values[:, : self.mesh.refined(refine).n_nodes]
        matrix = self.interpolator(refine).astype(values.dtype)
        return np.stack([matrix @ v for v in values])

    def save(self, path: str | Path) -> None:
        path = Path(path)
        named = {f"boundary:{name}": facets for name, facets in self.mesh.boundaries.items()}
        with writing(path) as part, part.open("wb") as file:
            np.savez(file, points=self.mesh.points, cells=self.mesh.cells, refine=self.refine, dt=self.dt, start=self.start,
                     values=self.values, **named)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | Path) -> FlowRecord:
        try:
            with np.load(path, allow_pickle=False) as file:
                named = {key.removeprefix("boundary:"): file[key] for key in file.files if key.startswith("boundary:")}
                return cls(Mesh(file["points"], file["cells"], named), int(file["refine"]), float(file["dt"]), file["values"],
                           float(file["start"]))
        except (OSError, KeyError, ValueError, BadZipFile) as error:
            raise InputError(f"{path} is not a complete flow record: {error}") from error


def p2_interpolator(mesh: Mesh, refine: int, target: int) -> csr_array:
    """From P2 values on `mesh.refined(refine)` to the nodes of `mesh.refined(target)`; exact, with at most 6 entries a row."""
    flow = mesh.refined(refine)
    n = flow.n_nodes + len(flow.edges)
    if target <= refine + 1:
        rows = mesh.refined(target).n_nodes
        return csr_array((np.ones(rows), np.arange(rows), np.arange(rows + 1)), shape=(rows, n))
    levels = target - refine
    fine = flow.refined(levels)
    node, first = np.unique(fine.cells.ravel(), return_index=True)
    cell = first // 3 // 4**levels  # the four children of a cell follow each other
    bary = 1 / 3 + np.einsum("nid,nd->ni", flow.gradients[cell], fine.points - flow.centroids[cell])
    bary = np.round(bary * 2**levels) / 2**levels  # nodes of a regular refinement sit at dyadic coordinates
    matrix = coo_array((p2_shapes(bary).ravel(), (np.repeat(node, 6), p2_cells(flow)[cell].ravel())), shape=(len(node), n)).tocsr()
    matrix.eliminate_zeros()
    return matrix


def p2_values(mesh: Mesh, values: np.ndarray, points: np.ndarray) -> np.ndarray:
    """A P2 field [n_p2, ...] at any points [P, 2], extrapolated from the nearest cell a little outside of the mesh."""
    from scipy.spatial import cKDTree

    _, near = cKDTree(mesh.centroids).query(points, k=min(24, mesh.n_cells))
    bary = 1 / 3 + np.einsum("pkid,pkd->pki", mesh.gradients[near], points[:, None] - mesh.centroids[near])
    best = np.arange(len(points)), bary.min(axis=2).argmax(axis=1)
    return np.einsum("pa,pa...->p...", p2_shapes(bary[best]), values[p2_cells(mesh)[near[best]]])


def simulate(mesh: Mesh, *, mean_velocity: float, viscosity: float, dt_flow: float, spin_up: float, duration: float,
             store_every: int, refine: int = 0, device: str | torch.device = "cpu", method: str = "auto",
             perturbation: float = 0.3, begin: FlowRecord | None = None, dtype: type = np.float32,
             progress: Callable[[int, int], None] | None = None) -> FlowRecord:
    """One long run on `mesh.refined(refine)`: from rest through `spin_up`, then `duration` stored every `store_every` steps.

    The record starts at its own time zero and has floor(duration / (store_every dt_flow)) + 1 snapshots.
    `begin` starts from the last snapshot of another run of the same mesh (any refinement) instead of from rest, which makes
    the spin-up on a fine mesh short. `progress(done, total)` counts steps.
    """
    if store_every < 1 or duration < 0 or spin_up < 0:
        raise InputError("store_every must be at least 1, spin_up and duration not negative")
    flow_mesh = mesh.refined(refine)
    initial = None
    if begin is not None:
        if begin.mesh.n_nodes != mesh.n_nodes:
            raise InputError("the flow to begin from belongs to another mesh")
        initial = begin.interpolator(refine + 1) @ begin.values[-1].astype(np.float64)
    flow = ChannelFlow(flow_mesh, mean_velocity=mean_velocity, viscosity=viscosity, dt=dt_flow, device=device, method=method,
                       initial=initial, perturbation=0.0 if begin is not None else perturbation,
                       ramp=0.0 if begin is not None else None)
    before = round(spin_up / dt_flow)
    stored = int(duration / (store_every * dt_flow) + 1e-9) + 1
    total = before + (stored - 1) * store_every
    done, block = 0, max(store_every, 50)
    while done < before:
        count = min(block, before - done)
        flow.advance(count)
        done += count
        if progress:
            progress(done, total)
    values: np.ndarray = np.empty((stored, flow.space.n, 2), dtype=dtype)
    values[0] = flow.velocity
    for k in range(1, stored):
        flow.advance(store_every)
        values[k] = flow.velocity
        if progress:
            progress(before + k * store_every, total)
    flow.check()
    return FlowRecord(mesh, refine, store_every * dt_flow, values)


# ---------------------------------------------------------------------- validation

DFG = {
    "2D-1": {"drag": (5.57, 5.59), "lift": (0.0104, 0.0110), "pressure drop": (0.1172, 0.1176)},
    "2D-2": {"drag max": (3.22, 3.24), "lift max": (0.99, 1.01), "Strouhal": (0.295, 0.305)},
}
"""Published intervals of the cylinder benchmarks (Schäfer and Turek 1996): steady at Re 20, periodic at Re 100.

The signed maximum of the lift in 2D-2 converges to 0.987, just below its interval; see docs/results/flow.md.
"""


def dfg(case: str, *, mesh: Mesh | None = None, refine: int = 0, dt: float | None = None, longest: float | None = None,
        device: str | torch.device = "cpu", method: str = "auto",
        progress: Callable[[str, int, int], None] | None = None) -> dict[str, Any]:
    """Flow around a cylinder against the published intervals, on `mesh.refined(refine)` with the cylinder made round again.

    With `refine` > 0 the flow develops on the coarse mesh first. `dt` is that of the last mesh; see `cylinder_flow`.
    """
    if case not in DFG:
        raise InputError(f"unknown DFG case '{case}' (known: {', '.join(DFG)})")
    if refine < 0:
        raise InputError(f"refine must not be negative, got {refine}")
    if mesh is None:
        from dgnet.mesh.library import shipped  # here, so that flows on other meshes do not need the files

        mesh = shipped("dfg-cylinder")
    begin = None
    for level in range(refine + 1):
        begin, ours = cylinder_flow(case, mesh.refined(level), dt=dt if level == refine else None, begin=begin, longest=longest,
                                    device=device, method=method, progress=progress)
    return ours


def cylinder_flow(case: str, mesh: Mesh, *, dt: float | None = None, begin: ChannelFlow | None = None,
                  longest: float | None = None, tolerance: float = 1e-4, rounded: bool = True,
                  device: str | torch.device = "cpu", method: str = "auto",
                  progress: Callable[[str, int, int], None] | None = None) -> tuple[ChannelFlow, dict[str, Any]]:
    """The developed flow of a DFG case on one mesh, and its figures beside the published ones.

    Channel [0, 2.2] x [0, 0.41], cylinder of diameter D = 0.1 at (0.2, 0.2), nu = 1e-3, mean inflow U = 0.2 (2D-1) or 1 (2D-2),
    coefficients 2 F / (U^2 D). It marches, from rest or from the state of `begin` on another mesh, until the force is steady
    (2D-1) or until the extremes of drag and lift repeat to within `tolerance` over three periods (2D-2), and no farther than
    `longest` (20 and 10; `settled` in the result says which). `dt` defaults to 0.85 of the step limit, or to a cautious guess of
    that where the flow starts from rest. `rounded` gives the cylinder's polygon the area of the circle.
    """
    steady, diameter = case == "2D-1", 0.1
    speed = 0.2 if steady else 1.0
    mesh = _rounded(mesh, (0.2, 0.2), diameter / 2, rounded)
    longest = (20.0 if steady else 10.0) if longest is None else longest
    common: dict[str, Any] = {"mean_velocity": speed, "viscosity": 1e-3, "device": device, "method": method}
    if begin is not None:
        common |= {"initial": p2_values(begin.mesh, begin.velocity, p2_points(mesh)), "ramp": 0.0, "perturbation": 0.0}
    if dt is None:
        dt = 0.056 / (speed * float(np.sqrt((mesh.gradients**2).sum(axis=2).max())))  # 0.8 of the limit at twice the mean speed
        if begin is not None:
            dt = 0.85 * ChannelFlow(mesh, dt=dt, **common | {"device": "cpu", "method": "lu"}).step_limit()
    flow = ChannelFlow(mesh, dt=dt, **common)
    every = max(1, round(0.001 / (speed * dt)))
    wait = 1 / speed if begin is None else 0.0  # the lift of a flow just started can stand still
    samples: list[np.ndarray] = []
    crests: list[tuple[float, ...]] = []
    settled = False
    while not settled and flow.time < longest * (1 - 1e-9):
        flow.advance(every)
        samples.append(2 * flow.forces("obstacle") / (speed**2 * diameter))
        if progress and len(samples) % 10 == 0:
            progress(f"{case}, {mesh.n_nodes:,} nodes", round(1000 * flow.time / longest), 1000)
        if steady:
            back = round(1 / (every * dt))
            settled = flow.time > wait and len(samples) > back and float(np.ptp(samples[-back:], axis=0).max()) < 0.1 * tolerance
        elif len(samples) > 2 and samples[-3][1] < samples[-2][1] >= samples[-1][1] and samples[-2][1] > 0.3:
            crests.append(_extremes(np.array(samples[-round(0.36 / (every * dt)):])))
            settled = len(crests) > 3 and float(np.ptp(crests[-3:], axis=0).max()) < tolerance
    flow.check()
    also: dict[str, float] = {}
    if steady:
        front, back_side = flow.pressure_at(np.array([[0.15, 0.2], [0.25, 0.2]]))
        ours = {"drag": samples[-1][0], "lift": samples[-1][1], "pressure drop": front - back_side}
    else:
        if len(crests) < 4:
            raise SolveError(f"the flow shed no vortices before t = {longest:g}")
        high, low, drag, drag_low = crests[-1]
        lift = np.array(samples)[-round(1.1 / (every * dt)):, 1]
        ours = {"drag max": drag, "lift max": high, "Strouhal": diameter / speed / period(lift, every * dt)}
        # lift swings about a small negative mean, so its largest value and its amplitude differ by two per cent
        also = {"lift min": low, "lift amplitude": (high - low) / 2, "drag min": drag_low}
    around = len(mesh.nodes_on("obstacle"))
    return flow, {"case": case, "nodes": mesh.n_nodes, "cells": mesh.n_cells, "around": around, "rounded": rounded, "dt": dt,
                  "time": flow.time, "settled": settled, "also": {name: float(value) for name, value in also.items()},
                  "quantities": {name: {"ours": float(ours[name]), "published": [low, high],
                                        "inside": bool(low <= ours[name] <= high)} for name, (low, high) in DFG[case].items()}}


def _extremes(forces: np.ndarray) -> tuple[float, float, float, float]:
    """Largest and smallest lift and drag of [T, 2]."""
    drag, lift = forces.T
    return _peak(lift), -_peak(-lift), _peak(drag), -_peak(-drag)


def period(signal: np.ndarray, dt: float) -> float:
    """Mean time between upward crossings of the middle of an oscillating signal (linear interpolation between samples)."""
    level = signal - 0.5 * (signal.max() + signal.min())
    k = np.flatnonzero((level[:-1] < 0) & (level[1:] >= 0))
    if len(k) < 2:
        raise SolveError("the signal has less than one full period")
    crossing = k - level[k] / (level[k + 1] - level[k])
    return float((crossing[-1] - crossing[0]) / (len(k) - 1) * dt)


def _peak(signal: np.ndarray) -> float:
    """Maximum of the parabola through the largest sample and its neighbours."""
    k = int(np.clip(signal.argmax(), 1, len(signal) - 2))
    left, top, right = signal[k - 1:k + 2]
    bend = left - 2 * top + right
    return float(top - (right - left) ** 2 / (8 * bend)) if bend < 0 else float(signal.max())


def _rounded(mesh: Mesh, centre: tuple[float, float], radius: float, equal_area: bool = True) -> Mesh:
    """The nodes of the obstacle moved onto the circle, or a little out of it, so that their polygon has the circle's area.

    On the circle itself they make a cylinder that is thinner by about the square of their spacing.
    """
    nodes = mesh.nodes_on("obstacle")
    away = mesh.points[nodes] - centre
    angle = np.sort(np.arctan2(away[:, 1], away[:, 0]))
    area = 0.5 * np.sin(np.diff(np.append(angle, angle[0] + 2 * np.pi))).sum()
    scale = radius * (sqrt(np.pi / area) if equal_area else 1.0)
    points = mesh.points.copy()
    points[nodes] = centre + scale * away / np.linalg.norm(away, axis=1, keepdims=True)
    return Mesh(points, mesh.cells, mesh.boundaries)
