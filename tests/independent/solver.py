"""The equations of dgnet, solved by other means: NumPy assembly by quadrature and SciPy factorisations, in double precision.

Of dgnet it reads declarations alone (points, cells, conditions, coefficients, the points of curves). Matrices, curves and their
integrals, time steps and Newton's method are its own:

    M (H(u+) - H(u)) + dt [ K theta(w) + C H(w) + L w ] = dt (S (f + r) + g),      phi(w) = (1 - a) phi(u) + a phi(u+)

with H = c u and theta = D u where capacity and diffusion are numbers. Newton's unknown is s = u + sum of H and theta, each in units
of its own mean, of which u, H and theta are piecewise smooth functions with slopes of at most one: however steep a curve is.
A line search keeps the residual falling; where that ends, the step is followed from a length of zero on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import skfem
import torch
from scipy.sparse import block_array, block_diag, coo_array, csc_array, csr_array, diags_array
from scipy.sparse.linalg import splu
from skfem.quadrature import get_quadrature

import dgnet as dg

Array = np.ndarray
Matrix = csr_array


def over_step(data: Callable[[float], Array], t: float, dt: float) -> Array:
    """What a step from t to t + dt takes of boundary data that change in time: their average, by Gauss's rule with 8 points."""
    at, weights = np.polynomial.legendre.leggauss(8)
    return sum(0.5 * w * data(t + (0.5 + 0.5 * s) * dt) for s, w in zip(at, weights))


def step_averages(source: Callable[[Array, float], Array], x: Array, dt: float, steps: int) -> Array:
    """Averages of f(x, t) over each step [steps, N, ...], by Gauss's rule with 8 points."""
    at, weights = np.polynomial.legendre.leggauss(8)
    return np.stack([sum(0.5 * w * source(x, (k + 0.5 + 0.5 * s) * dt) for s, w in zip(at, weights)) for k in range(steps)])


# ---------------------------------------------------------------------- curves


class Law:
    """A function of u, linear between points and constant beyond, with latent heats spread over their ranges; its integral."""

    def __init__(self, curve: Any) -> None:
        at, values = (np.asarray(x.detach()) for x in curve.points)
        melts = [(float(m.heat), m.low, m.high) for m in curve.latent]
        self.knots = np.unique(np.concatenate([at, *([low, high] for _, low, high in melts)]))
        inner = 0.5 * (self.knots[1:] + self.knots[:-1])
        extra = sum((np.where((inner > low) & (inner < high), heat / (high - low), 0.0) for heat, low, high in melts), 0.0 * inner)
        right, left = np.interp(self.knots[1:], at, values) + extra, np.interp(self.knots[:-1], at, values) + extra
        width = np.diff(self.knots)
        self.start = np.concatenate([[values[0]], left, [values[-1]]])  # of the pieces, the first one counted from its end
        self.slope = np.concatenate([[0.0], (right - left) / width, [0.0]])
        self.total = np.concatenate([[0.0, 0.0], np.cumsum(0.5 * (left + right) * width)])
        self.total = self.total - np.interp(at[0], self.knots, self.total[1:])
        self.left = np.concatenate([self.knots[:1], self.knots])

    def __call__(self, u: Array, side: str = "right") -> tuple[Array, Array]:
        """The integral and the value at u; where it jumps, that of the piece on this side."""
        k = np.searchsorted(self.knots, u, side=side)
        x = u - self.left[k]
        return self.total[k] + x * (self.start[k] + 0.5 * self.slope[k] * x), self.start[k] + self.slope[k] * x


class Identity:
    """u itself, with the slope 1."""

    knots = np.empty(0)

    def __call__(self, u: Array) -> tuple[Array, Array]:
        return u, np.ones_like(u)


PLAIN = Identity()


# ---------------------------------------------------------------------- elements


class Space:
    """Lagrange elements of degree 1 or 2 on a mesh: integrals by quadrature."""

    def __init__(self, mesh: Any, degree: int = 1, periodic: list[dg.Periodic] | None = None) -> None:
        self.mesh, self.degree, self.dim = mesh, degree, mesh.points.shape[1]
        self.corners = np.asarray(mesh.cells)
        x = mesh.points[self.corners]
        jacobian = np.swapaxes(x[:, 1:] - x[:, :1], 1, 2)
        self.volumes = np.abs(np.linalg.det(jacobian)) / (2 if self.dim == 2 else 6)
        inverse = np.linalg.inv(jacobian)
        self.grads = np.concatenate([-inverse.sum(1, keepdims=True), inverse], 1)  # of barycentric coordinates [K, d + 1, d]
        edges = {tuple(e): mesh.n_nodes + k for k, e in enumerate(np.asarray(mesh.edges).tolist())} if degree == 2 else {}
        self.edges = edges
        self.points = mesh.points if degree == 1 else np.concatenate([mesh.points, mesh.points[np.asarray(mesh.edges)].mean(1)])
        self.dofs = self._nodes(self.corners)
        self.number = self._identified(periodic or [])
        self.n = int(self.number.max()) + 1
        self.l, self.w = rule(self.dim)

    def _nodes(self, simplices: Array) -> Array:
        if self.degree == 1:
            return simplices
        pairs = combinations(range(simplices.shape[1]), 2)
        middles = [[self.edges[tuple(sorted(row))] for row in simplices[:, list(p)].tolist()] for p in pairs]
        return np.concatenate([simplices, np.array(middles).T], 1)

    def _identified(self, periodic: list[dg.Periodic]) -> Array:
        """The unknown of each node: those that a translation of one boundary onto its partner joins have one."""
        group = np.arange(len(self.points))
        for c in periodic:
            a, b = (np.unique(self._nodes(self.mesh.facets(name))) for name in (c.boundary, c.partner))
            shift = self.points[b].mean(0) - self.points[a].mean(0)
            partner = b[np.argmin(np.linalg.norm(self.points[a][:, None] + shift - self.points[b], axis=2), 1)]
            for i, j in zip(a, partner):
                group[group == group[max(i, j)]] = group[min(i, j)]
        return np.unique(group, return_inverse=True)[1]

    @cached_property
    def owner(self) -> Array:
        return np.unique(self.number, return_index=True)[1]

    def shapes(self, l: Array) -> tuple[Array, Array]:
        """Basis functions [q, m] and their derivatives by barycentric coordinates [q, m, c] at points l [q, c]."""
        eye = np.eye(l.shape[1])
        if self.degree == 1:
            return l, np.broadcast_to(eye, (len(l), *eye.shape))
        pairs = list(combinations(range(l.shape[1]), 2))
        values = [l[:, i] * (2 * l[:, i] - 1) for i in range(l.shape[1])] + [4 * l[:, i] * l[:, j] for i, j in pairs]
        slopes = [(4 * l[:, [i]] - 1) * eye[i] for i in range(l.shape[1])]
        slopes += [4 * (l[:, [i]] * eye[j] + l[:, [j]] * eye[i]) for i, j in pairs]
        return np.stack(values, 1), np.stack(slopes, 1)

    def assembled(self, local: Array, nodes: Array) -> Matrix:
        """The matrix on unknowns of local matrices [K, m, m]."""
        at = self.number[nodes]
        rows, cols = np.broadcast_arrays(at[:, :, None], at[:, None])
        return csr_array(coo_array((local.ravel(), (rows.ravel(), cols.ravel())), shape=(self.n, self.n)))

    # integrals over cells

    def mass(self, share: float, weight: Array | float = 1.0) -> Matrix:
        """Of w phi_i phi_j, `share` of it consistent and the rest lumped; w a number, in cells [K] or at the nodes of the mesh.

        With linear elements a nodal w is averaged over each cell.
        """
        phi, _ = self.shapes(self.l)
        nodal = np.ndim(weight) == 1 and len(weight) != len(self.volumes)
        at = np.broadcast_to(np.asarray(weight)[self.corners] @ self.l.T if nodal else np.reshape(weight, (-1, 1)),
                             (len(self.volumes), len(self.w)))
        if nodal and self.degree == 1:
            at = np.broadcast_to(np.asarray(weight)[self.corners].mean(1)[:, None], at.shape)
        local = np.einsum("k,q,kq,qi,qj->kij", self.volumes, self.w, at, phi, phi)
        lumped = np.einsum("kij,il->kil", local, np.eye(local.shape[1]))
        return self.assembled(share * local + (1 - share) * lumped, self.dofs)

    def stiffness(self, D: Array) -> Matrix:
        """Of grad phi_i . D grad phi_j; D [K, d, d]."""
        _, slopes = self.shapes(self.l)
        g = np.einsum("qic,kcd->qkid", slopes, self.grads)
        return self.assembled(np.einsum("k,q,qkid,kde,qkje->kij", self.volumes, self.w, g, D, g, optimize=True), self.dofs)

    def advection(self, velocity: Array, form: str, weight: Array) -> Matrix:
        """Of w phi_i v . grad phi_j; v at the nodes of the mesh [N, d], w in cells [K]."""
        if form == "upwind":
            return self._upwind(velocity, weight)
        phi, slopes = self.shapes(self.l)
        v = np.einsum("qa,kad->qkd", self.l, velocity[self.corners])
        along = np.einsum("qkd,qjc,kcd->qkj", v, slopes, self.grads, optimize=True)
        C = self.assembled(np.einsum("k,q,qi,qkj->kij", self.volumes * weight, self.w, phi, along, optimize=True), self.dofs)
        if form == "galerkin":
            return C
        moving = weight[(velocity[self.corners] != 0).any((1, 2))]  # skew: one capacity where there is flow
        c = float(moving[0]) if len(moving) else 1.0
        C = C if not len(moving) else self.advection(velocity, "galerkin", np.full(len(weight), c))
        facets, normals = self._skin
        vn = np.einsum("fad,fd->fa", velocity[facets], normals)
        return 0.5 * (C - C.T) + 0.5 * c * self.facet_mass(facets, vn)

    def _upwind(self, velocity: Array, weight: Array) -> Matrix:
        """Through each piece of a dual face, between middles of edges, facets and cells: what comes in has the value upstream."""
        m = self.dim + 1
        local = np.zeros((len(self.volumes), m, m))
        for i in range(m):
            for j in range(m):
                if i != j:
                    normal = (self.grads[:, j] - self.grads[:, i]) * (self.volumes * weight / m)[:, None]  # from i to j
                    flow = ((velocity[self.corners[:, i]] + velocity[self.corners[:, j]]) / 2 * normal).sum(1)
                    local[:, i, j] += np.minimum(flow, 0.0)
                    local[:, i, i] -= np.minimum(flow, 0.0)
        return self.assembled(local, self.dofs)

    # integrals over facets

    @cached_property
    def _skin(self) -> tuple[Array, Array]:
        """The facets of one cell alone, and their outward normals."""
        found: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for k, cell in enumerate(self.corners.tolist()):
            for a in range(len(cell)):
                found.setdefault(tuple(sorted(cell[:a] + cell[a + 1:])), []).append((k, a))
        single = [(facet, *owners[0]) for facet, owners in found.items() if len(owners) == 1]
        g = np.array([self.grads[k, a] for _, k, a in single])
        return np.array([facet for facet, _, _ in single]), -g / np.linalg.norm(g, axis=1, keepdims=True)

    def nodes_on(self, name: str) -> Array:
        return np.unique(self._nodes(np.asarray(self.mesh.facets(name))))

    def facet_mass(self, facets: Array, weight: Array) -> Matrix:
        return self.assembled(self._facet_local(facets, weight), self._nodes(facets))

    def facet_load(self, facets: Array, values: Array, weight: Array) -> Array:
        """Of w q phi_i; q at the nodes of each facet."""
        local = np.einsum("fij,fj->fi", self._facet_local(facets, weight), values)
        return np.bincount(self.number[self._nodes(facets)].ravel(), local.ravel(), minlength=self.n)

    def _facet_local(self, facets: Array, weight: Array) -> Array:
        """Of w phi_i phi_j; w at the corners or at all nodes of each facet, with linear elements averaged over it."""
        x = self.mesh.points[facets]
        size = np.linalg.norm(x[:, 1] - x[:, 0], axis=1) if self.dim == 2 else 0.5 * np.linalg.norm(
            np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0]), axis=1)
        l, w = rule(self.dim - 1)
        phi, _ = self.shapes(l)
        if self.degree == 1:
            at = np.broadcast_to(weight.mean(1)[:, None], (len(facets), len(w)))
        else:
            at = weight @ (l if weight.shape[1] == l.shape[1] else phi).T
        return np.einsum("f,q,fq,qi,qj->fij", size, w, at, phi, phi, optimize=True)


def rule(dim: int) -> tuple[Array, Array]:
    """Barycentric points [q, c] and weights [q] that sum to 1, exact to degree 6."""
    x, w = get_quadrature({1: skfem.ElementLineP1, 2: skfem.ElementTriP1, 3: skfem.ElementTetP1}[dim].refdom, 6)
    return np.concatenate([1 - x.sum(0, keepdims=True), x]).T, w / w.sum()


# ---------------------------------------------------------------------- the equation of a step


@dataclass
class Terms:
    """A sum of matrices, each on a function of u."""

    parts: list[tuple[Matrix, Any]] = field(default_factory=list)

    def __call__(self, u: Array) -> Array:
        return sum((A @ law(u)[0] for A, law in self.parts), np.zeros_like(u))

    def slope(self, u: Array) -> Any:
        return sum((A @ diags_array(law(u)[1]) for A, law in self.parts), csr_array((len(u), len(u))))

    @property
    def linear(self) -> bool:
        return all(law is PLAIN for _, law in self.parts)


class Independent:
    """Steps of a declared problem. `share` of the mass is consistent; `theta` 1/2 Crank-Nicolson to 1 backward Euler.

    `stiff`: the reaction is too fast for predictor and corrector, and taken implicitly (M and K are numbers then).
    """

    def __init__(self, p: dg.Problem, share: float = 1.0, theta: float = 0.5, degree: int = 1, stiff: bool = False) -> None:
        self.p, self.pde, self.mesh, self.theta, self.stiff = p, p.pde, p.mesh, theta, stiff
        self.space = Space(p.mesh, degree, [c for c in p.conditions if isinstance(c, dg.Periodic)])
        self.tensor = torch.tensor(self.space.points)
        self.S = self.space.mass(share)
        self.laws: dict[int, Law] = {}
        curved = [self._parts("capacity", k) for k in range(self.fields)]
        melts = any(isinstance(law, Law) and len(curve.latent) for parts in curved for _, law, curve in parts)
        of_mass = 0.0 if melts else share
        self.M = [Terms([(self.space.mass(of_mass, w), law) for w, law, _ in parts]) for parts in curved]
        self.K = [Terms([(self.space.stiffness(D), law) for D, law, _ in self._parts("diffusion", k)]) for k in range(self.fields)]
        self.decay = [self.space.mass(share, np.asarray(x)) for x in p.pde.per_field("decay")]

    @property
    def fields(self) -> int:
        return len(self.pde.fields)

    def _parts(self, name: str, k: int) -> list[tuple[Array, Any, Any]]:
        """A coefficient of a field as factors in the cells, numbers or tensors, each with a function of u."""
        value, cells, d = self.pde.per_field(name)[k], self.mesh.n_cells, self.mesh.points.shape[1]

        def factor(x: Any) -> Array:
            a = np.asarray(x.detach() if isinstance(x, torch.Tensor) else x, float)
            if name == "capacity":
                return np.broadcast_to(a, (cells,)).copy()
            if a.ndim <= 1:
                return np.broadcast_to(a, (cells,))[:, None, None] * np.eye(d)
            return np.broadcast_to(a, (cells, d, d)).copy()

        def one(value: Any) -> tuple[Array, Any, Any]:
            curve = value if isinstance(value, dg.Curve) else value.curve if isinstance(value, dg.Scaled) else None
            if curve is None:
                return factor(value), PLAIN, None
            by = factor(1.0 if isinstance(value, dg.Curve) else value.by)
            return by, self.laws.setdefault(id(curve), Law(curve)), curve

        if not isinstance(value, dg.ByRegion):
            return [one(value)]
        found, free = [], np.ones(cells, bool)
        for region in sorted(value.parts, key=lambda r: r == "elsewhere"):
            mask = free.copy() if region == "elsewhere" else np.isin(np.arange(cells), self.mesh.regions[region])
            free &= ~mask
            by, law, curve = one(value.parts[region])
            found.append((by * mask.reshape(-1, *[1] * (by.ndim - 1)), law, curve))
        return found

    # boundary data

    def _at(self, value: Any, nodes: Array, t: float) -> Array:
        if not callable(value):
            return np.full(nodes.shape, float(value))
        return np.asarray(value(self.tensor[nodes.ravel()], t)).reshape(nodes.shape)

    def _of(self, kind: type, k: int) -> list[tuple[Any, Array, Array]]:
        """Conditions on a field, with corners and nodes of their facets."""
        found = [c for c in self.p.conditions if isinstance(c, kind) and c.field in (None, self.pde.fields[k])]
        return [(c, facets, self.space._nodes(facets)) for c in found for facets in [np.asarray(self.mesh.facets(c.boundary))]]

    def load(self, k: int, t: float) -> Array:
        g = np.zeros(self.space.n)
        for c, facets, nodes in self._of(dg.Neumann, k):
            g += self.space.facet_load(facets, self._at(c.flux, nodes, t), np.ones(facets.shape))
        for c, facets, nodes in self._of(dg.Robin, k):
            g += self.space.facet_load(facets, self._at(c.ambient, nodes, t), self._at(c.coefficient, nodes, t))
        return g

    def exchange(self, k: int, t: float) -> Array:
        """Of convective boundaries, dense [n, n] so that it can be averaged like any data."""
        A = np.zeros((self.space.n, self.space.n))
        for c, facets, nodes in self._of(dg.Robin, k):
            A += self.space.facet_mass(facets, self._at(c.coefficient, nodes, t)).toarray()
        return A

    def walls(self, k: int, t: float) -> tuple[Array, Array]:
        """Which unknowns are held, and at what value at t."""
        held, w = np.zeros(self.space.n, bool), np.zeros(self.space.n)
        for c in self.p.conditions:
            if isinstance(c, dg.Dirichlet) and c.field in (None, self.pde.fields[k]):
                nodes = self.space.nodes_on(c.boundary)
                held[self.space.number[nodes]], w[self.space.number[nodes]] = True, self._at(c.value, nodes, t)
        return held, w

    # steps

    def starts(self, k: int, start: int) -> bool:
        """Whether step k is L-stable."""
        return k < start or (start > 0 and self.p.jumps(k * self.p.dt))

    def rollout(self, u0: Array, source: Array | None, steps: int, start: int = 0) -> Array:
        """u0 [N, F] and averages over the steps [steps, N, F] -> states [steps + 1, N, F]."""
        u, states = u0[self.space.owner], [u0]
        for k in range(steps):
            u = self.step(u, self.drive(source, k, u), k, self.starts(k, start))
            states.append(u[self.space.number])
        return np.stack(states)

    def drive(self, source: Array | None, k: int, u: Array) -> Array:
        return np.zeros_like(u) if source is None else self.S @ source[k][self.space.owner]

    def step(self, u: Array, drive: Array, k: int, start: bool = False) -> Array:
        """Step k; at a start straight lines of discontinuous Galerkin, or two diagonally implicit stages."""
        t, dt = k * self.p.dt, self.p.dt
        if start and all(terms.linear for terms in (*self.M, *self.K)):
            return self._galerkin(self._steps(t, dt, self.theta), u, drive, t)
        if start:
            return self._staged(t, u, drive)
        steps = self._steps(t, dt, self.theta)
        return self._implicit(steps, u, drive, t) if self.stiff else self._solved(steps, u, drive)

    def _staged(self, t: float, u: Array, drive: Array) -> Array:
        """Both stages of a diagonally implicit method (Alexander 1977) where materials change with u."""
        a = (1 - 1 / np.sqrt(2)) * self.p.dt
        walls = [self.walls(k, t + a)[1] for k in range(self.fields)]
        second = [replace(s, dt=a) for s in self._steps(t, self.p.dt, 1.0)]

        def solved(drive: Array) -> Array:
            ends = []
            for k, s in enumerate(second):
                inner = replace(s, w=walls[k]).solved(u[:, k], drive[:, k])
                ends.append(s.solved(u[:, k], drive[:, k] + (self.p.dt / a - 1) / a * (s.E(inner) - s.E(u[:, k]))))
            return np.stack(ends, 1)

        if self.pde.reaction is None:
            return solved(drive)
        before = self.rate(u)
        return solved(drive + self.S @ (before + self.rate(solved(drive + self.S @ before))) / 2)

    def _galerkin(self, steps: list[Step], u: Array, drive: Array, t: float) -> Array:
        """v = a + b (2 s - 1) + walls that move linearly, tested with 1 and 2 s - 1; the rate is a line, too."""
        u = np.stack([np.where(held, w, u[:, k]) for k in range(u.shape[1]) for held, w in [self.walls(k, t)]], 1)

        def solved(first: Array, second: Array) -> Array:
            ends = []
            for k, s in enumerate(steps):
                held, w0 = self.walls(k, t)
                M, K = s.E.slope(u[:, k]).toarray(), s.dt * s.rest.slope(u[:, k]).toarray()
                change, free = np.where(held, s.w - w0, 0.0), ~held
                w0 = np.where(held, w0, 0.0)
                r0 = s.dt * (first[:, k] + s.load) - M @ change - K @ (w0 + change / 2)
                r1 = s.dt * second[:, k] - K @ change / 6
                M, K, v = M[np.ix_(free, free)], K[np.ix_(free, free)], (M @ (u[:, k] - w0))[free]
                both = np.linalg.solve(np.block([[M + K, M], [-M, M + K / 3]]), np.concatenate([r0[free] + v, r1[free] - v]))
                end = np.where(held, s.w, 0.0)
                end[free] = both[: free.sum()] + both[free.sum():]
                ends.append(end)
            return np.stack(ends, 1)

        if self.pde.reaction is None:
            return solved(drive, 0 * drive)
        before = self.rate(u)
        after = self.rate(solved(drive + self.S @ before, 0 * drive))
        return solved(drive + self.S @ (before + after) / 2, self.S @ (after - before) / 6)

    def misfit(self, u: Array, drive: Array, k: int, new: Array) -> float:
        """How far a state is from the end of step k: what is left of the equations over what drives them."""
        u, new, steps = u[self.space.owner], new[self.space.owner], self._steps(k * self.p.dt, self.p.dt, self.theta)
        drive = drive + self.S @ self._mean_rate(steps, u, drive)
        left = [s.residual(s.right(u[:, f], drive[:, f]), np.stack([u[:, f], new[:, f]])) for f, s in enumerate(steps)]
        return float(max(np.linalg.norm(r[1]) / max(np.linalg.norm(r[0]), 1e-300) for r in left))

    def rate(self, u: Array) -> Array:
        assert self.pde.reaction is not None
        return self.pde.reaction(torch.from_numpy(u)).detach().numpy()

    def _summed(self, u: torch.Tensor) -> torch.Tensor:
        assert self.pde.reaction is not None
        return self.pde.reaction(u).sum(0)

    def _solved(self, steps: list[Step], u: Array, drive: Array) -> Array:
        drive = drive + self.S @ self._mean_rate(steps, u, drive)
        return np.stack([s.solved(u[:, k], drive[:, k]) for k, s in enumerate(steps)], 1)

    def _mean_rate(self, steps: list[Step], u: Array, drive: Array) -> Array:
        """The reaction over a step by predictor and corrector."""
        if self.pde.reaction is None:
            return np.zeros_like(u)
        start, theta = self.rate(u), steps[0].theta
        first = drive + self.S @ start
        guess = np.stack([s.solved(u[:, k], first[:, k]) for k, s in enumerate(steps)], 1)
        return (1 - theta) * start + theta * self.rate(guess)

    def _implicit(self, steps: list[Step], u: Array, drive: Array, t: float) -> Array:
        """Two stages of a diagonally implicit method (Alexander 1977), all fields at once."""
        gamma, dt = 1 - 1 / np.sqrt(2), self.p.dt
        first = self._stage(steps, u, u, drive, gamma * dt, t + gamma * dt)
        return self._stage(steps, u + (1 - gamma) / gamma * (first - u), first, drive, gamma * dt, t + dt)

    def _stage(self, steps: list[Step], b: Array, guess: Array, drive: Array, a: float, t: float) -> Array:
        """U with M (U - b) = a (-K U + S r(U) + load): Newton's method with the slopes of r from torch."""
        n, fields = b.shape
        walls = [self.walls(k, t) for k in range(fields)]
        held, w = np.concatenate([h for h, _ in walls]), np.concatenate([w for _, w in walls])
        A = block_diag([s.E.slope(b[:, 0]) + a * s.rest.slope(b[:, 0]) for s in steps], format="csr")
        M = block_diag([s.E.slope(b[:, 0]) for s in steps], format="csr")
        S = block_diag([self.S] * fields, format="csr")
        right = M @ b.T.ravel() + a * np.concatenate([drive[:, k] + s.load for k, s in enumerate(steps)])
        U = np.where(held, w, guess.T.ravel())
        for _ in range(50):
            state = U.reshape(fields, n).T
            J = torch.autograd.functional.jacobian(self._summed, torch.from_numpy(state)).numpy()  # [i, n, j]
            slopes = block_array([[diags_array(J[i, :, j]) for j in range(fields)] for i in range(fields)])
            left = np.where(held, 0.0, right + a * (S @ self.rate(state).T.ravel()) - A @ U)
            change = linear_solve(A - a * S @ slopes, left, held, 0 * w)
            U = U + change
            if np.abs(change).max() <= 1e-13 * np.abs(U).max():
                return U.reshape(fields, n).T
        raise NoSolution("of a stage")

    def _steps(self, t: float, dt: float, theta: float) -> list[Step]:
        """The step of each field from t to t + dt."""
        made = []
        for k in range(self.fields):
            velocity, parts = self.pde.velocity, list(self.K[k].parts)
            if velocity is not None:
                v = np.asarray(velocity(t + 0.5 * dt) if callable(velocity) else velocity, float)
                v = np.broadcast_to(v, self.mesh.points.shape)
                parts += [(self.space.advection(v, self.p.advection_form, w), law) for w, law, _ in self._parts("capacity", k)]
            if self._of(dg.Robin, k):
                parts.append((csr_array(over_step(lambda s, k=k: self.exchange(k, s), t, dt)), PLAIN))
            load = over_step(lambda s, k=k: self.load(k, s), t, dt)
            made.append(Step(self.M[k], Terms([*parts, (self.decay[k], PLAIN)]), load, *self.walls(k, t + dt), dt, theta))
        return made


@dataclass
class Step:
    """E(u+) + theta dt R(u+) = E(u) - (1 - theta) dt R(u) + dt (drive + load), u+ = w where held."""

    E: Terms
    rest: Terms
    load: Array
    held: Array
    w: Array
    dt: float
    theta: float

    def right(self, u: Array, drive: Array) -> Array:
        return self.E(u) - (1 - self.theta) * self.dt * self.rest(u) + self.dt * (drive + self.load)

    def solved(self, u: Array, drive: Array) -> Array:
        b, tau = self.right(u, drive), self.theta * self.dt
        if self.E.linear and self.rest.linear:
            return linear_solve(self.E.slope(u) + tau * self.rest.slope(u), b, self.held, self.w)
        return Newton(self.E, self.rest, tau, b, self.held, self.w).solve(u)

    def residual(self, b: Array, states: Array) -> Array:
        """What is left of the equation at each of the states [m, n]; held values that are not met count."""
        return np.stack([np.where(self.held, self.w - u, b - self.E(u) - self.theta * self.dt * self.rest(u)) for u in states])


def linear_solve(A: Any, b: Array, held: Array, w: Array) -> Array:
    """x with A x = b on the free unknowns, x = w on those held."""
    free = diags_array((~held).astype(float))
    full = free @ A + diags_array(held.astype(float))
    return splu(csc_array(full)).solve(np.where(held, w, b))


# ---------------------------------------------------------------------- Newton's method


class NoSolution(Exception):
    """The independent solver has found none."""


@dataclass
class Newton:
    """u with E(u) + tau R(u) = b on the free unknowns, u = w on those held."""

    E: Terms
    R: Terms
    tau: float
    b: Array
    held: Array
    w: Array
    tolerance: float = 1e-12

    def solve(self, old: Array) -> Array:
        """From u at the beginning of the step; along steps that grow from a length of zero where that does not converge."""
        start = np.where(self.held, self.w, old)
        self._parametrised(np.concatenate([old, start]))
        u = self._newton(start, 1.0, old)
        if u is not None:
            return u
        u, share, stride = start, 0.0, 0.1
        while share < 1:
            to = min(1.0, share + stride)
            found = self._newton(np.where(self.held, self._wall(to, old), u), to, old)
            if found is None:
                stride *= 0.5
                if stride < 1e-6:
                    raise NoSolution(f"at {share:.3g} of the step")
            else:
                u, share, stride = found, to, 1.5 * stride
        return u

    def _wall(self, share: float, old: Array) -> Array:
        return (1 - share) * old + share * self.w

    def _parametrised(self, around: Array) -> None:
        """s(u) = u + sum of laws, each in units of its own mean: a table of pieces, so that u(s) is exact."""
        laws = list({id(law): law for _, law in (*self.E.parts, *self.R.parts) if law is not PLAIN}.values())
        knots = np.unique(np.concatenate([law.knots for law in laws]))
        low, high = min(around.min(), knots[0]), max(around.max(), knots[-1])
        sizes = [(law(np.array([high]))[0] - law(np.array([low]))[0])[0] / (high - low) for law in laws]
        self.laws, self.sizes, self.knots = laws, [size if size > 0 else 1.0 for size in sizes], knots
        self.ends, above = self._s(knots)
        _, below = self._s(knots, "left")
        # pieces: where each is counted from, s and its slope there, and how fast the slope changes
        self.left, self.total = np.concatenate([knots[:1], knots]), np.concatenate([self.ends[:1], self.ends])
        self.slope = np.concatenate([below[:1], above])
        self.bend = np.concatenate([[0.0], (below[1:] - above[:-1]) / np.diff(knots), [0.0]])

    def _s(self, u: Array, side: str = "right") -> tuple[Array, Array]:
        found = [law(u, side) for law in self.laws]
        return (u + sum(x / size for (x, _), size in zip(found, self.sizes)),
                1 + sum(x / size for (_, x), size in zip(found, self.sizes)))

    def _u(self, s: Array) -> Array:
        k = np.searchsorted(self.ends, s, side="right")
        h, c, bend = s - self.total[k], self.slope[k], self.bend[k]
        return self.left[k] + 2 * h / (c + np.sqrt(np.maximum(c**2 + 2 * bend * h, 0.0)))

    def _newton(self, u: Array, share: float, old: Array) -> Array | None:
        first, tau = self.E(old), share * self.tau
        b = first + share * (self.b - first)
        wall = self._wall(share, old) if share < 1 else self.w
        free = ~self.held
        weight = 1 / np.sqrt(np.abs(self.E.slope(u).diagonal()) + tau * np.abs(self.R.slope(u).diagonal()))
        size = np.linalg.norm((np.abs(self.E(u)) + np.abs(b) + sum(
            np.abs(tau * A) @ np.abs(law(u)[0]) for A, law in self.R.parts)) * weight)
        s = self._s(np.where(self.held, wall, u))[0]

        def residual(s: Array) -> tuple[Array, Array]:
            u = np.where(self.held, wall, self._u(s))
            return u, np.where(free, b - self.E(u) - tau * self.R(u), 0.0)

        u, r = residual(s)
        best = np.linalg.norm(r * weight)
        goal = 1e-15 * size + self.tolerance * np.linalg.norm(np.where(free, b - self.E(old) - tau * self.R(old), 0.0) * weight)
        for _ in range(200):
            if best <= goal:
                return u
            slope = 1 / self._s(u)[1]
            J = (self.E.slope(u) + tau * self.R.slope(u)) @ diags_array(slope)
            keep = diags_array(free.astype(float))
            try:
                d = splu(csc_array(keep @ J @ keep + diags_array(self.held.astype(float)))).solve(r)
            except RuntimeError:
                return None
            length, found = 1.0, False
            while length > 1e-9:
                new_u, new_r = residual(s + length * d)
                now = np.linalg.norm(new_r * weight)
                if now <= (1 - 1e-4 * length) * best:
                    s, u, r, best, found = s + length * d, new_u, new_r, now, True
                    break
                length *= 0.5
            if not found:
                return u if best <= 1e3 * goal and best <= 1e-13 * size else None
        return None
