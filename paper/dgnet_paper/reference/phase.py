"""The independent truth for phase change: rho c_eff(T) dT/dt = div(k(T) grad T) + Q as dH/dt = div grad theta + Q.

P1 elements with H and theta interpolated at the nodes, lumped mass, BDF2 on the enthalpy (backward Euler first):

    V sum_j a_j H^{n+1-j} + dt (K theta(T^{n+1}) + R T^{n+1}) = dt sum_j s_j (V Q^{n-j} + G^{n-j})

Q^m, G^m: source and boundary loads (R T_amb among them) on average over substep m, V: nodal volumes, K: Laplacian stiffness,
constant although k(T) is not, R: convective boundary. What enters the domain is what H gains, to the tolerance. Second order in
space; in time as well while the front is resolved.

Newton's method: with k dT = dtheta the linear systems V a_0 H'/k + dt R/k + dt K are symmetric positive definite, and
differ between trajectories by their diagonals only, so conjugate gradients serve all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh
from dgnet.problems.conditions import Condition, Value
from dgnet.problems.sources import Source
from dgnet_paper.reference.assembly import Space, to_torch
from dgnet_paper.reference.phase_change import PhaseChange
from dgnet_paper.reference.transport import Averages, Initial, boundary_average, boundary_values, fixed_in_time, sum_up

Tensor = torch.Tensor

_BDF = {1: (1.0, -1.0), 2: (1.5, -2.0, 0.5)}


def solve(mesh: Mesh, material: PhaseChange, conditions: Sequence[Condition], initial: Initial, *, dt: float, steps: int,
          refine: int = 0, substeps: int = 1, source: Source | None = None, device: str | torch.device = "cpu",
          dtype: torch.dtype = torch.float64, progress: Callable[[int], None] | None = None, order: int = 2,
          panels: int = 1, gauss: int = 3, tolerance: float = 1e-10) -> Tensor:
    """Temperatures at times 0, dt, ... at the coarse nodes [B, steps+1, N, 1], on the CPU; arguments as `transport.solve`.

    Nothing is divided by rho c: sources in W/m^3, Neumann values k dT/dn in W/m^2, Robin coefficients in W/(m^2 K).
    """
    states = march(mesh, material, conditions, initial, dt=dt, steps=steps, refine=refine, substeps=substeps,
                   source=source, device=device, dtype=dtype, progress=progress, order=order, panels=panels, gauss=gauss,
                   tolerance=tolerance)
    return torch.stack([state.cpu() for state in states], dim=1)


def march(mesh: Mesh, material: PhaseChange, conditions: Sequence[Condition], initial: Initial, *, dt: float, steps: int,
          refine: int = 0, substeps: int = 1, source: Source | None = None, device: str | torch.device = "cpu",
          dtype: torch.dtype = torch.float64, progress: Callable[[int], None] | None = None, order: int = 2,
          panels: int = 1, gauss: int = 3, tolerance: float = 1e-10) -> Iterator[Tensor]:
    """As `solve`, one state [B, N, 1] at a time, starting with t = 0, on the device."""
    if dt <= 0 or steps < 0 or substeps < 1:
        raise InputError(f"need dt > 0, steps >= 0 and substeps >= 1, got {dt}, {steps} and {substeps}")
    if order not in _BDF:
        raise InputError(f"the enthalpy scheme has order 1 or 2, not {order}")
    device = torch.device(device)
    h = dt / substeps
    system = _Enthalpy(Space(mesh, refine), material, conditions, steps * dt, device, dtype)
    average = None if source is None else Averages(source, system.points, h, panels, gauss, 1)
    t = system.initial(initial, 1 if average is None else average.batch)
    coarse = torch.as_tensor(system.space.coarse, device=device)

    yield t[coarse].T[..., None].contiguous()
    past: list[tuple[Tensor, Tensor | None]] = []  # newest first: H, and the mean source of the step that follows
    for n in range(steps * substeps):
        driven = sum_up([(1.0, None if average is None else average(n * h)[0]), (1.0, system.moving_load(n * h, h))])
        past = [(material.enthalpy(t), driven), *past[:order - 1]]
        a = _BDF[len(past)]
        s = np.cumsum(a)[:-1]
        nodal = sum_up([(-a[j + 1], past[j][0]) for j in range(len(past))]
                       + [(h * float(s[j]), past[j][1]) for j in range(len(past))])
        assert nodal is not None
        t = system.step(t, system.volume * nodal, a[0], h, (n + 1) * h, tolerance)
        if (n + 1) % substeps == 0:
            yield t[coarse].T[..., None].contiguous()
            if progress is not None:
                progress((n + 1) // substeps)


class _Enthalpy:
    """The assembled problem; temperatures are [M, B]."""

    def __init__(self, space: Space, material: PhaseChange, conditions: Sequence[Condition], end: float,
                 device: torch.device, dtype: torch.dtype) -> None:
        self.space, self.material, self.device, self.dtype = space, material, device, dtype
        self.points = self._tensor(space.points)
        self.volume = self._tensor(np.asarray(space.mass().sum(axis=1)))
        stiffness = space.stiffness(np.array(1.0))
        self.stiffness = to_torch(stiffness, device, dtype)
        self.diagonal = self._tensor(stiffness.diagonal())[:, None]
        self.exchange = torch.zeros_like(self.volume)
        self.free = torch.ones_like(self.volume)
        self.dirichlet: list[tuple[Tensor, Tensor, Value]] = []
        self.loads: list[tuple[Tensor, Tensor, Tensor, Value]] = []  # nodes, points, weights, value
        for c in conditions:
            if c.role == "periodic":
                raise InputError("the phase-change solver knows no periodic boundaries")
            index = space.nodes_on(c.boundary)
            nodes = torch.as_tensor(index, device=device)
            points = self.points[nodes]
            if c.role == "held":
                self.dirichlet.append((nodes, points, c.drive))
                self.free[nodes] = 0
                continue
            weight = None
            if c.role == "exchange":
                weight = np.zeros(space.size)
                weight[index] = fixed_in_time(c.coefficient, points, end, c.boundary)
            lumped = self._tensor(np.asarray(space.boundary_mass(c.boundary, weight).sum(axis=1)))
            if c.role == "exchange":
                self.exchange += lumped
            self.loads.append((nodes, points, lumped[nodes], c.drive))
        # a Newton step ends where H bends: without this it can jump to and fro across the transition for ever
        self.bends = [material.temperature + f * material.width for f in (-1.0, -0.5, 0.0, 0.5, 1.0)]

    def _tensor(self, value: np.ndarray) -> Tensor:
        return torch.tensor(np.asarray(value), device=self.device, dtype=self.dtype)

    def initial(self, initial: Initial, batch: int) -> Tensor:
        want = self.space.size if callable(initial) else self.space.n_coarse
        given = (initial(self.points) if callable(initial) else torch.as_tensor(initial)).to(self.device, self.dtype)
        if given.ndim != 3 or given.shape[1:] != (want, 1):
            raise InputError(f"the initial state must have shape [B, {want}, 1], got {list(given.shape)}")
        if len(given) != batch and 1 not in (len(given), batch):
            raise InputError(f"the initial state has {len(given)} trajectories, but the source has {batch}")
        t = given[..., 0].T.expand(-1, max(batch, len(given))).contiguous()
        if not callable(initial):
            t = to_torch(self.space.prolongation, self.device, self.dtype) @ t
        return self._impose(t.clone(), 0.0)

    def _impose(self, t: Tensor, time: float) -> Tensor:
        for nodes, points, value in self.dirichlet:
            t[nodes] = boundary_values(value, points, time)
        return t

    def moving_load(self, time: float, h: float) -> Tensor | None:
        """What changes of g, on average over the substep that begins at this time and per volume: [M, 1 or B]."""
        total: Tensor | None = None
        for nodes, points, weights, value in self.loads:
            if callable(value):
                part = weights * boundary_average(value, points, time, h) / self.volume[nodes]
                total = part.new_zeros(len(self.points), part.shape[1]) if total is None else total
                total[nodes] += part
        return total

    def step(self, t: Tensor, b: Tensor, a0: float, h: float, time: float, tolerance: float) -> Tensor:
        """Solve a0 V H(T) + h (K theta(T) + R T) = b + h g by Newton's method from t [M, B], g the loads that stay."""
        m = self.material
        for nodes, points, weights, value in self.loads:
            if not callable(value):
                b[nodes] += h * weights * boundary_values(value, points, time)
        t = self._impose(t.clone(), time)
        scale = (self.volume * (m.enthalpy(t).abs() + m.density * m.latent_heat)).norm(dim=0)
        error = 0.0
        for _ in range(60):
            residual = b - a0 * self.volume * m.enthalpy(t) - h * self.exchange * t
            residual = torch.addmm(residual, self.stiffness, m.kirchhoff(t), beta=1, alpha=-h) * self.free
            error = float((residual.norm(dim=0) / scale).max())
            if error <= tolerance:
                return t
            if not np.isfinite(error):
                break
            k = m.conductivity(t)
            shift = (a0 * self.volume * m.capacity(t) + h * self.exchange) / k
            new = t + self._solve(shift, h, residual, max(1e-6, min(1e-2, 0.1 * tolerance / error))) / k
            for bend in self.bends:
                new = torch.where((t - bend) * (new - bend) < 0, torch.full_like(new, bend), new)
            t = new
        raise SolveError(f"Newton's method for the enthalpy stopped at a relative residual of {error:.1e}: use more substeps")

    def _solve(self, shift: Tensor, h: float, r: Tensor, reduction: float) -> Tensor:
        """(diag(shift) + h K) x = r on the free nodes by conjugate gradients, Jacobi preconditioned, [M, B] at once."""
        inverse = self.free / (shift + h * self.diagonal)
        x = torch.zeros_like(r)
        z = inverse * r
        p = z.clone()
        rz = (r * z).sum(0)
        goal = rz * reduction**2
        for iteration in range(2000):
            if iteration % 4 == 0 and bool((rz <= goal).all()):
                return x
            ap = torch.addmm(shift * p, self.stiffness, p, beta=1, alpha=h) * self.free
            alpha = rz / (p * ap).sum(0).clamp_(min=torch.finfo(r.dtype).tiny)
            x.addcmul_(p, alpha)
            r = torch.addcmul(r, ap, alpha, value=-1)
            z = inverse * r
            before, rz = rz, (r * z).sum(0)
            p = torch.addcmul(z, p, rz / before.clamp(min=torch.finfo(r.dtype).tiny))
        raise SolveError("conjugate gradients for the enthalpy step did not converge in 2000 iterations")
