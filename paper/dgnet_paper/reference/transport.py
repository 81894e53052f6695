"""The independent truth for du/dt = div(D grad u) - v . grad u - k u + r(u) + f(x, t), all trajectories at once.

Galerkin finite elements (P1 or P2, consistent mass, nothing upwinded) on the refined mesh, semi-discretely

    M du/dt = -K u - C(v) u + M (r(u) + f) + g,      K: diffusion, decay and Robin terms.

Time: SBDF of order 2 or 3 (Ascher, Ruuth and Wetton 1995), K implicit and C, r extrapolated, one solve per substep:

    sum_j a_j M u^{n+1-j} + dt K u^{n+1} = dt (sum_j e_j (M r^{n-j} - C u^{n-j}) + sum_j s_j (M F^{n-j} + G^{n-j}))

F^m and G^m are the averages of f and of the boundary loads g over substep m; the s_j are the a_j summed up from the left, which
makes the scheme exact for du/dt = f however fast f moves. Dirichlet values enter at the new time level, so moving ones cost no
order. The first steps are ARS(2,2,2) (Ascher, Ruuth and Spiteri 1997): second order, L-stable, self-starting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Annotated, Protocol

import numpy as np
import torch
from scipy.integrate import quad_vec
from scipy.sparse import csr_matrix

from dgnet.arguments import AnyDevice, Count, Positive, Precision, Whole, axes, checked, finite, tensor
from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh
from dgnet.problems.conditions import Condition, Value
from dgnet.problems.curves import ByRegion
from dgnet.problems.pde import PDE
from dgnet.problems.sources import Source
from dgnet_paper.reference.assembly import Advection, Space, to_torch
from dgnet_paper.reference.linear import SPDSolver

Tensor = torch.Tensor
Initial = Tensor | Callable[[Tensor], Tensor]
"""u at t = 0: [B, N, F] at the coarse nodes (prolonged linearly) or a function of points [M, d] giving [B, M, F]."""

_BDF = {2: (1.5, -2.0, 0.5), 3: (11 / 6, -3.0, 1.5, -1 / 3)}
_EXTRAPOLATE = {2: (2.0, -1.0), 3: (3.0, -3.0, 1.0)}
_GAMMA = 1 - 1 / sqrt(2)
_CUTS, _AVERAGED, _LIMIT = 4, 1e-8, 500  # parts that a boundary value is looked at in, relative error of its average, most parts
_SOURCE_ENTRIES = {"cpu": 1 << 20, "cuda": 1 << 25}  # entries of one call of a source: what bounds its memory


class Flow(Protocol):
    """A recorded velocity: values [T, n, d] at times 0, dt, ...; linear in time between them."""

    dt: float
    values: Tensor | np.ndarray

    def interpolator(self, refine: int) -> csr_matrix:
        """Velocity at the nodes of the mesh refined `refine` times from one snapshot [nodes, n]."""
        ...


@checked
def solve(mesh: Mesh, pde: PDE, conditions: Sequence[Condition], initial: Initial, *, dt: Positive, steps: Whole,
          refine: Whole = 0, substeps: Count = 1, degree: int = 1, source: Source | None = None, flow: Flow | None = None,
          phases: Annotated[Tensor, axes("trajectories")] | Sequence[float] | None = None, device: AnyDevice = "cpu",
          dtype: Precision = torch.float64, progress: Callable[[int], None] | None = None, order: int = 3,
          panels: Count = 1, gauss: Count = 3, tolerance: Positive = 1e-10) -> Tensor:
    """Truth from the independent reference solver : states at times 0, dt, ..., [B, steps+1, N, F].

    - `mesh`, `pde`, `conditions`: the problem; states are those at the nodes of this mesh
    - `initial`: states [B, N, F], or a function of points [n, d] that returns [B, n, F]; the unit of each field
    - `dt`: time between stored states
    - `steps`: how many of them
    - `refine`: how often the mesh is refined: each time half the spacing
    - `substeps`: steps of the solver between stored states
    - `degree`: of the elements, 1 or 2
    - `source`: f(x, t) of points [n, d] and times [T] -> [B, T, n, F]; field/time, or W/m3 with a heat capacity
    - `flow`, `phases`: a recorded velocity in place of that of the PDE; trajectory b sees it from the time phases[b] on
    - `device`, `dtype`: where and in which precision it is computed; the result is on the CPU
    - `progress`: called with the number of finished steps
    - `order`: of the time scheme, 2 or 3
    - `panels`, `gauss`: Gauss rules per substep and points in each, for the average of the source
    - `tolerance`: of the linear solves, relative

    B is the largest batch among initial state, source and phases. Stored states carry the Dirichlet values, also at t = 0. Raises
    SolveError when a solve misses `tolerance` or the explicit terms blow up.

        >>> import dgnet as dg
        >>> mesh = dg.box((4, 4))
        >>> wave = lambda x: x[None, :, :1].cos()
        >>> solve(mesh, dg.PDE(diffusion=0.1), [], wave, dt=0.1, steps=5, refine=1, substeps=2).shape
        torch.Size([1, 6, 25, 1])
    """
    states = march(mesh, pde, conditions, initial, dt=dt, steps=steps, refine=refine, substeps=substeps, degree=degree,
                   source=source, flow=flow, phases=phases, device=device, dtype=dtype, progress=progress, order=order,
                   panels=panels, gauss=gauss, tolerance=tolerance)
    first = next(states).cpu()
    result = torch.empty((len(first), steps + 1, *first.shape[1:]), dtype=dtype)
    result[:, 0] = first
    for k, state in enumerate(states, start=1):
        result[:, k] = state.cpu()
    return result


def march(mesh: Mesh, pde: PDE, conditions: Sequence[Condition], initial: Initial, *, dt: float, steps: int,
          refine: int = 0, substeps: int = 1, degree: int = 1, source: Source | None = None, flow: Flow | None = None,
          phases: Tensor | Sequence[float] | None = None, device: str | torch.device = "cpu",
          dtype: torch.dtype = torch.float64, progress: Callable[[int], None] | None = None, order: int = 3,
          panels: int = 1, gauss: int = 3, tolerance: float = 1e-10) -> Iterator[Tensor]:
    """As `solve`, one state [B, N, F] at a time, starting with t = 0, on the device."""
    if dt <= 0 or steps < 0 or substeps < 1:
        raise InputError(f"need dt > 0, steps >= 0 and substeps >= 1, got {dt}, {steps} and {substeps}")
    if order not in _BDF:
        raise InputError(f"the time scheme has order 2 or 3, not {order}")
    device = torch.device(device)
    periodic = tuple(c for c in conditions if c.role == "periodic")
    space = Space(mesh, refine, degree, periodic)
    h = dt / substeps
    system = _System(space, pde, [c for c in conditions if c.role != "periodic"], source, flow, phases, h,
                     steps * dt, device, dtype, panels, gauss)
    u0 = system.initial(initial)
    yield from _integrate(system, u0, steps, substeps, order, tolerance, progress)


def _integrate(system: _System, u: Tensor, steps: int, substeps: int, order: int, tolerance: float,
               progress: Callable[[int], None] | None) -> Iterator[Tensor]:
    h, a, e = system.h, _BDF[order], _EXTRAPOLATE[order]
    s = np.cumsum(a)[:-1]  # weights of the step averages
    coarse = torch.as_tensor(system.space.coarse, device=u.device)

    def stored(u: Tensor) -> Tensor:  # [F, M, B] -> [B, N, F]
        return u[:, coarse].permute(2, 1, 0).contiguous()

    yield stored(u)
    starter = system.solvers(1.0, _GAMMA * h, tolerance)
    solvers = None
    past: list[tuple[Tensor, _Rates]] = []  # newest first: u and its explicit rates and the source of the step after it
    for n in range(steps * substeps):
        rates = system.rates(u, n * h)
        past = [(u, rates), *past[:order - 1]]
        if len(past) < order:
            u = system.ars(u, rates, n * h, starter)
        else:
            if solvers is None:
                solvers = system.solvers(a[0], h, tolerance)
                del starter
                if system.transport is not None:
                    _probe(system, order, solvers)
            nodal = sum_up([(-a[j + 1], past[j][0]) for j in range(order)]
                           + [(h * e[j], past[j][1].reaction) for j in range(order)]
                           + [(h * float(s[j]), past[j][1].source) for j in range(order)])
            moved = sum_up([(-h * e[j], past[j][1].advection) for j in range(order)]
                           + [(h * float(s[j]), past[j][1].load) for j in range(order)])
            guess = sum_up([(e[j], past[j][0]) for j in range(order)])
            assert nodal is not None and guess is not None
            u = system.implicit(nodal, moved, h, (n + 1) * h, guess, solvers)
        if (n + 1) % substeps == 0:
            if not bool(torch.isfinite(u.sum())):
                raise SolveError(f"the state is not finite at t = {(n + 1) * h:.4g}: use more substeps")
            yield stored(u)
            if progress is not None:
                progress((n + 1) // substeps)


def _probe(system: _System, order: int, solvers: list[SPDSolver], steps: int = 60) -> None:
    """Raise when noise grows under diffusion and advection alone: a step beyond the stability limit of the explicit
    terms fills the truth with nonsense long before it overflows. Without diffusion, third order, h the mean edge, the
    limit is near dt |v| / h = 0.3 for P1 and 0.1 for P2."""
    a, e, h = _BDF[order], _EXTRAPOLATE[order], system.h
    noise = torch.randn((system.n_fields, system.space.size, 1), generator=torch.Generator().manual_seed(0))
    u = noise.to(system.device, system.dtype).repeat(1, 1, system.batch)
    for f in range(system.n_fields):
        u[f, torch.as_tensor(system.fixed[f], device=system.device)] = 0
    past: list[tuple[Tensor, Tensor]] = []
    sizes = []
    for n in range(steps):
        moved = system.transport(u, n * h) if system.transport is not None else torch.zeros_like(u)
        past = [(u, moved), *past[:order - 1]] if past else [(u, moved)] * order
        nodal = sum_up([(-a[j + 1], past[j][0]) for j in range(order)])
        explicit = sum_up([(-h * e[j], past[j][1]) for j in range(order)])
        guess = sum_up([(e[j], past[j][0]) for j in range(order)])
        assert nodal is not None and guess is not None
        u = system.implicit(nodal, explicit, h, 0.0, guess, solvers, homogeneous=True)
        sizes.append(float(u.norm()))
    if not sizes[-1] < 3 * max(sizes[steps // 3], 1e-300):
        raise SolveError(f"the substep {h:.3g} is too long for the velocity on this mesh "
                         f"(noise grew {sizes[-1] / sizes[steps // 3]:.1e} times): use more substeps")


def sum_up(terms: Sequence[tuple[float, Tensor | None]]) -> Tensor | None:
    """Linear combination; None terms are zero."""
    total: Tensor | None = None
    for weight, value in terms:
        if value is not None:
            total = value * weight if total is None else total.add_(value, alpha=weight)
    return total


@dataclass(frozen=True)
class _Rates:
    """Explicit terms at one time: nodal r(u), C(v) u, and f and moving loads averaged over the step that follows; [F, M, B]."""

    reaction: Tensor | None
    advection: Tensor | None
    source: Tensor | None
    load: Tensor | None


@dataclass(frozen=True)
class _Load:
    """One boundary term of g(t): matrix [M, n] times value(x [n, d], t)."""

    field: int
    matrix: Tensor
    points: Tensor
    value: Value


@dataclass(frozen=True)
class _Fixed:
    """Dirichlet nodes [n] of one field and what they hold."""

    field: int
    nodes: Tensor
    points: Tensor
    value: Value


class _System:
    """The assembled problem on one device. States are [F, M, B]: a row of B numbers per node, read as one piece."""

    def __init__(self, space: Space, pde: PDE, conditions: Sequence[Condition], source: Source | None,
                 flow: Flow | None, phases: Tensor | Sequence[float] | None, h: float, end: float, device: torch.device,
                 dtype: torch.dtype, panels: int, gauss: int) -> None:
        self.space, self.pde, self.h, self.device, self.dtype = space, pde, h, device, dtype
        self.points = torch.as_tensor(space.points, device=device, dtype=dtype)
        self.n_fields = len(pde.fields)
        if pde.curved or any(isinstance(value, ByRegion) for value in pde.per_field("diffusion")):
            raise InputError("the reference solver knows no materials that change with the solution, except `PhaseChange`, and no "
                             "regions: give the diffusion cell by cell")
        if pde.weighted:
            raise InputError("the reference solver knows no capacity: divide by it where it is constant")
        self.mass_matrix = space.mass()
        self.mass = to_torch(self.mass_matrix, device, dtype)
        self.source = None if source is None else Averages(source, self.points, h, panels, gauss, self.n_fields)
        self.phases = None if phases is None else torch.as_tensor(phases, dtype=torch.float64)
        self.batch = max(self.source.batch if self.source else 1, 1 if self.phases is None else len(self.phases))
        self.stiffness = [self._stiffness(d, k) for d, k in zip(pde.per_field("diffusion"), pde.per_field("decay"))]
        self.fixed = [np.zeros(space.size, dtype=bool) for _ in pde.fields]
        self.dirichlet: list[_Fixed] = []
        self.loads: list[_Load] = []
        self._constant: dict[int, Tensor | None] = {}
        self._impose(conditions, end)
        self.transport = _transport(space, pde, flow, self.phases, h, end, device, dtype)

    # ------------------------------------------------------------------ set-up

    def _stiffness(self, diffusion: object, decay: object) -> csr_matrix:
        value, k = _array(diffusion), _array(decay)
        matrix = self.space.stiffness(value) if value.any() else csr_matrix(self.mass_matrix.shape)
        if not k.any():
            return matrix
        if k.ndim == 0:
            return matrix + float(k) * self.mass_matrix
        if k.shape != (self.space.n_coarse,):
            raise InputError(f"decay has shape {list(k.shape)}; known are a number and [{self.space.n_coarse}]")
        return matrix + self.space.mass(self.space.prolongation @ k)

    def _impose(self, conditions: Sequence[Condition], end: float) -> None:
        for c in conditions:
            if c.field is not None and c.field not in self.pde.fields:
                raise InputError(f"a condition on '{c.boundary}' names field '{c.field}', but the fields are "
                                 f"{list(self.pde.fields)}")
            fields = range(self.n_fields) if c.field is None else [self.pde.fields.index(c.field)]
            nodes = self.space.nodes_on(c.boundary)
            points = self.points[torch.as_tensor(nodes, device=self.device)]
            if c.role == "held":
                for f in fields:  # a node on two Dirichlet boundaries keeps the value of the later condition
                    self.fixed[f][nodes] = True
                    self.dirichlet.append(_Fixed(f, torch.as_tensor(nodes, device=self.device), points, c.drive))
                continue
            if c.role == "flux":
                matrix, value = self.space.boundary_mass(c.boundary), c.drive
            else:
                weight = np.zeros(self.space.size)
                weight[nodes] = fixed_in_time(c.coefficient, points, end, c.boundary)
                matrix, value = self.space.boundary_mass(c.boundary, weight), c.drive
                for f in fields:
                    self.stiffness[f] = self.stiffness[f] + matrix
            if callable(value) or value != 0:
                part = to_torch(matrix[:, nodes], self.device, self.dtype)
                self.loads += [_Load(f, part, points, value) for f in fields]

    def initial(self, initial: Initial) -> Tensor:
        """u at t = 0 as [F, M, B] with the Dirichlet values imposed."""
        n, m = self.space.n_coarse, self.space.size
        given = tensor(initial(self.points) if callable(initial) else initial, "the initial state")
        given = finite(given, "the initial state").to(self.device, self.dtype)
        want = m if callable(initial) else n
        if given.ndim != 3 or given.shape[1:] != (want, self.n_fields):
            raise InputError(f"the initial state must have shape [B, {want}, {self.n_fields}], got {list(given.shape)}")
        self.batch = max(self.batch, len(given))
        for name, size in (("initial state", len(given)), ("source", self.source.batch if self.source else 1),
                           ("phases", 1 if self.phases is None else len(self.phases))):
            if size not in (1, self.batch):
                raise InputError(f"the {name} has {size} trajectories, but the batch has {self.batch}")
        u = given.permute(2, 1, 0).expand(-1, -1, self.batch)
        if not callable(initial):
            p = to_torch(self.space.prolongation, self.device, self.dtype)
            u = torch.stack([p @ field.contiguous() for field in u])
        u = u.clone(memory_format=torch.contiguous_format)
        for f in range(self.n_fields):
            self._set_dirichlet(u[f], f, 0.0)
        return u

    def solvers(self, mass: float, step: float, tolerance: float) -> list[SPDSolver]:
        """Solvers of (mass M + step K) x = b, one per field; fields with equal matrices share one."""
        made: list[SPDSolver] = []
        for f, k in enumerate(self.stiffness):
            same = [g for g in range(f) if (self.fixed[g] == self.fixed[f]).all() and _equal(self.stiffness[g], k)]
            made.append(made[same[0]] if same else SPDSolver(
                mass * self.mass_matrix + step * k, self.fixed[f], device=self.device, dtype=self.dtype,
                columns=self.batch, tolerance=tolerance))
        return made

    # ------------------------------------------------------------------ the pieces of a step

    def rates(self, u: Tensor, t: float, source: bool = True) -> _Rates:
        reaction = self.pde.reaction
        r = None if reaction is None else reaction(u.permute(1, 2, 0)).permute(2, 0, 1).contiguous()
        c = None if self.transport is None else self.transport(u, t)
        if not source:
            return _Rates(r, c, None, None)
        return _Rates(r, c, None if self.source is None else self.source(t), self.moving_load(t))

    def implicit(self, nodal: Tensor, moved: Tensor | None, step: float, t: float, guess: Tensor,
                 solvers: list[SPDSolver], homogeneous: bool = False) -> Tensor:
        """Solve A u = M nodal + moved + step g with u(t) given on Dirichlet nodes, g the loads that stay; all [F, M, B]."""
        result = torch.empty_like(guess)
        for f in range(self.n_fields):
            b = self.mass @ nodal[f]
            if moved is not None:
                b = b + moved[f]
            load = None if homogeneous else self.load(f)
            if load is not None:
                b.add_(load, alpha=step)
            x = guess[f]
            if not homogeneous:
                self._set_dirichlet(x, f, t)
            result[f] = solvers[f](b, x)
        return result

    def ars(self, u: Tensor, now: _Rates, t: float, solvers: list[SPDSolver]) -> Tensor:
        """One step of ARS(2,2,2). The source and moving loads enter both stages as their averages over the step."""
        h, g = self.h, _GAMMA
        delta = 1 - 1 / (2 * g)
        first = sum_up([(1.0, u), (g * h, now.reaction), (g * h, now.source)])
        assert first is not None
        u1 = self.implicit(first, sum_up([(-g * h, now.advection), (g * h, now.load)]), g * h, t + g * h, u.clone(), solvers)
        then = self.rates(u1, t + g * h, source=False)
        nodal = sum_up([(1.0, u), (h * delta, now.reaction), (h * (1 - delta), then.reaction), (h, now.source)])
        assert nodal is not None
        # -gamma h (K u1 - g) = M (u1 - first) + gamma h (C u - G) on the free rows, from the first stage: no product with K
        ratio = (1 - g) / g
        nodal.add_(u1 - first, alpha=ratio)
        moved = sum_up([(-h * delta + ratio * g * h, now.advection), (-h * (1 - delta), then.advection), (g * h, now.load)])
        return self.implicit(nodal, moved, g * h, t + h, u1.clone(), solvers)

    def load(self, f: int) -> Tensor | None:
        """What stays of g of field f: [M, 1]."""
        if f not in self._constant:
            self._constant[f] = sum_up([(1.0, load.matrix @ boundary_values(load.value, load.points, 0.0))
                                        for load in self.loads if load.field == f and not callable(load.value)])
        return self._constant[f]

    def moving_load(self, t: float) -> Tensor | None:
        """What changes of g, on average over the substep that begins at t: [F, M, 1 or B]."""
        moving = [load for load in self.loads if callable(load.value)]
        if not moving:
            return None
        parts = [(load.field, load.matrix @ boundary_average(load.value, load.points, t, self.h)) for load in moving]
        total = self.points.new_zeros(self.n_fields, len(self.points), max(part.shape[1] for _, part in parts))
        for f, part in parts:
            total[f] += part
        return total

    def _set_dirichlet(self, u: Tensor, f: int, t: float) -> None:
        for c in self.dirichlet:
            if c.field == f:
                u[c.nodes] = boundary_values(c.value, c.points, t)


class Averages:
    """Averages of a source over one substep [F, M, B], in pieces of bounded memory."""

    def __init__(self, source: Source, points: Tensor, h: float, panels: int, gauss: int, n_fields: int) -> None:
        self.source, self.points = source, points
        node, weight = np.polynomial.legendre.leggauss(gauss)
        offset = h * (np.arange(panels)[:, None] + 0.5 * (1 + node)) / panels
        self.offset = torch.as_tensor(offset.ravel(), device=points.device)
        self.weight = torch.as_tensor(np.tile(0.5 * weight / panels, panels), device=points.device, dtype=points.dtype)
        probe = tensor(source(points[:1], self.offset[:1]), "what the source returns")
        if probe.ndim != 4 or probe.shape[1:] != (1, 1, n_fields):
            raise InputError(f"a source must return [B, T, n, {n_fields}]; for one time and point it gave "
                             f"{list(probe.shape)}")
        self.batch = len(probe)
        entries = _SOURCE_ENTRIES.get(points.device.type, 1 << 20)
        per_time = self.batch * n_fields
        self.times = max(1, min(len(offset.ravel()), entries // (per_time * min(len(points), 4096))))
        self.rows = max(1, entries // (per_time * self.times))

    def __call__(self, t: float) -> Tensor:
        pieces = []
        for x in self.points.split(self.rows):
            total: Tensor | None = None
            for offset, weight in zip(self.offset.split(self.times), self.weight.split(self.times)):
                value = (self.source(x, t + offset).to(x.dtype) * weight[:, None, None]).sum(dim=1)  # [B, n, F]
                total = value if total is None else total.add_(value)
            assert total is not None
            pieces.append(total.permute(2, 1, 0))
        return torch.cat(pieces, dim=1)


def _transport(space: Space, pde: PDE, flow: Flow | None, phases: Tensor | None, h: float, end: float,
               device: torch.device, dtype: torch.dtype) -> Callable[[Tensor, float], Tensor] | None:
    """u [F, M, B], t -> C(v(t)) u [F, M, B]."""
    if flow is not None and pde.velocity is not None:
        raise InputError("the velocity is given twice: by the PDE and by a flow")
    if flow is None and phases is not None:
        raise InputError("phases are given, but no flow")
    if flow is None and not callable(pde.velocity):
        if pde.velocity is None:
            return None
        v = _array(pde.velocity)
        if v.shape not in ((space.dim,), (space.n_coarse, space.dim)):
            raise InputError(f"velocity has shape {list(v.shape)}; known are [{space.dim}] and "
                             f"[{space.n_coarse}, {space.dim}]")
        nodal = space.prolongation @ np.broadcast_to(v, (space.n_coarse, space.dim))
        matrix = to_torch(space.advection(nodal), device, dtype)
        return lambda u, t: torch.stack([matrix @ field for field in u])

    advection = Advection(space, device, dtype)
    velocity = (_given(space, pde, device, dtype) if flow is None
                else _recorded(space, flow, phases, end, device, dtype))

    def apply(u: Tensor, t: float) -> Tensor:
        v = velocity(t)
        return torch.stack([advection(v, field) for field in u])

    return apply


def _given(space: Space, pde: PDE, device: torch.device, dtype: torch.dtype) -> Callable[[float], Tensor]:
    prolong = to_torch(space.prolongation, device, dtype)

    def velocity(t: float) -> Tensor:
        assert callable(pde.velocity)
        v = torch.as_tensor(pde.velocity(t)).to(device, dtype)
        v = v[None] if v.ndim == 2 else v
        if v.ndim != 3 or v.shape[1:] != (space.n_coarse, space.dim):
            raise InputError(f"the velocity must be [N, d] or [batch, N, d], got {list(v.shape)}")
        return (prolong @ v.permute(1, 2, 0).reshape(space.n_coarse, -1)).reshape(space.size, space.dim, -1)

    return velocity


def _recorded(space: Space, flow: Flow, phases: Tensor | None, end: float, device: torch.device,
              dtype: torch.dtype) -> Callable[[float], Tensor]:
    start = torch.zeros(1, dtype=torch.float64) if phases is None else phases.cpu()
    first = int(torch.floor(start.min() / flow.dt + 1e-9))
    last = int(torch.ceil((start.max() + end) / flow.dt - 1e-9))
    if first < 0 or last > len(flow.values) - 1:
        raise InputError(f"the flow is recorded for times 0 to {(len(flow.values) - 1) * flow.dt:.6g}, but the "
                         f"trajectories need {float(start.min()):.6g} to {float(start.max()) + end:.6g}")
    values = torch.as_tensor(flow.values[first:last + 1]).to(device, dtype)
    n = values.shape[1]
    values = values.reshape(len(values), -1)
    spread = to_torch(flow.interpolator(space.level)[space.representative], device, dtype)
    start = start.to(device)

    def velocity(t: float) -> Tensor:
        place = (start + t) / flow.dt - first
        k = place.floor().clamp_(0, max(len(values) - 2, 0)).long()
        late = (place - k).to(dtype)[:, None]
        snapshot = values[k] if len(values) == 1 else torch.lerp(values[k], values[k + 1], late)  # [B, n d]
        return (spread @ snapshot.T.reshape(n, -1)).reshape(space.size, space.dim, -1)

    return velocity


def _array(value: object) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=float)


def _equal(a: csr_matrix, b: csr_matrix) -> bool:
    return a is b or (a != b).nnz == 0


def boundary_values(value: Value, points: Tensor, t: float) -> Tensor:
    """A boundary value at points [n, d] as [n, 1], or [n, B] when it returns one row per trajectory [B, n]."""
    if not callable(value):
        return torch.full_like(points[:, :1], float(value))
    result = torch.as_tensor(value(points, t)).to(points)
    return result.T.contiguous() if result.ndim == 2 else result.expand(len(points))[:, None]


def boundary_average(value: Value, points: Tensor, t: float, h: float) -> Tensor:
    """The average from t to t + h as `boundary_values`: adaptive Gauss-Kronrod, cut at the knots that a value tells."""
    shape = boundary_values(value, points, t).shape
    knots = np.asarray(getattr(value, "knots", ()), dtype=np.float64).ravel()
    cuts = np.unique(np.concatenate([t + h * np.arange(1, _CUTS) / _CUTS, knots[(knots > t) & (knots < t + h)]]))

    def at(s: float) -> np.ndarray:
        return boundary_values(value, points, s).double().cpu().numpy().ravel()

    size = max(float(np.abs(at(s)).max()) for s in t + h * np.linspace(0.05, 0.95, 10))
    total, _ = quad_vec(at, t, t + h, epsabs=_AVERAGED * h * size + 1e-300, epsrel=_AVERAGED, norm="max", limit=_LIMIT, points=cuts)
    return torch.from_numpy(total / h).to(points).reshape(shape)


def fixed_in_time(value: Value, points: Tensor, end: float, name: str) -> np.ndarray:
    first = boundary_values(value, points, 0.0)
    times = [*np.linspace(0.0, end, 64).tolist(), *np.ravel(getattr(value, "knots", ())).tolist()]
    if not all(torch.equal(first, boundary_values(value, points, t)) for t in times) or first.shape[1] > 1:
        raise InputError(f"the Robin coefficient on '{name}' must not depend on time or trajectory")
    return first[:, 0].cpu().numpy()
