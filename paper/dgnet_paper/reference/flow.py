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
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgnet.errors import InputError, SolveError
from dgnet.mesh.mesh import Mesh
from dgnet_paper.reference.stokes import Convection, CoupledLU, DenseSchur, StokesSolver, dissection, dot, to_torch
from dgnet_paper.reference.taylor_hood import TaylorHood, p2_points

BDF = (11 / 6, 3.0, -1.5, 1 / 3)
"""du/dt at the new time = (BDF[0] u^n+1 - BDF[1] u^n - BDF[2] u^n-1 - BDF[3] u^n-2) / dt."""
EXTRAPOLATE = (3.0, -3.0, 1.0)
CHECK_EVERY = 500  # steps between checks of the residual: cheap enough to be invisible, close enough to name the time
STEP_MARGIN = 1.1  # steps longer than this times the estimated limit are refused
FLOAT32_INVERSE_ABOVE = 16_000  # pressure nodes; reading a float64 inverse would dominate the step beyond this


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
        self.a, self.b, self.bt = (to_torch(m, self.device) for m in (a_free, b_free, b_free.T.tocsr()))
        self.mass = to_torch((space.mass[free] / dt).tocsr(), self.device)
        self.lift = send((a[free][:, fixed] @ modes.reshape(len(fixed), -1)).reshape(2 * len(free), -1))
        self.leak = send(space.divergence[:, pair_fixed] @ modes.reshape(2 * len(fixed), -1))

        width = float(mesh.facet_geometry(inlet)[0].sum())
        ramp = width / mean_velocity if ramp is None else ramp  # a faster start makes thin layers that need a smaller dt
        pulse = 2 * width / mean_velocity if pulse is None else pulse
        times = start + dt * np.arange(ceil(max(0.0, ramp, pulse if perturbation else 0.0, start) / dt - start / dt) + 2)
        s = np.clip(times / pulse, 0, 1) if pulse > 0 else np.ones_like(times)
        rise = _rise(times / ramp) if ramp > 0 else np.ones_like(times)
        self.inflow = send(np.stack([rise, rise * perturbation * 64 * s**3 * (1 - s) ** 3], axis=1))

        self.convection = Convection(space, outlet, self.device)
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

        self.solve: StokesSolver
        if method == "lu":
            self.solve = CoupledLU(a_free, b_free, dissection(space, free), self.device)
        else:
            dtype = torch.float32 if mesh.n_nodes > FLOAT32_INVERSE_ABOVE else torch.float64
            self.solve = DenseSchur(a_free, b_free, self._bounds(), tolerance, self.device, dtype)
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
        xi, eta = (dot(u, g)[..., 0] / area for g in (c.grad_xi, c.grad_eta))
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
