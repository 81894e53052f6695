"""A problem on a mesh: matrices, loads and fixed values, ready for time stepping.

    M du/dt = -K(t) u + S (f + r(u)) + g(t),      u = w(t) on Dirichlet nodes

M mass, weighted by the capacity cell by cell, S plain mass (the same where the capacity is 1), K diffusion + advection + decay
+ convective boundaries, g boundary loads. With M lumped, L = -M^-1 K is the paper's L_physics (Section 3.4.1). Matrices have
values [b, f, nnz]: b is 1 or the batch (each trajectory its own velocity), f is 1 or the number of fields (each field its own
coefficients).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import torch

from dgnet.arguments import AnyDevice, Positive, Precision, checked, tensor
from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.operators import (
    EdgeMatrix,
    Geometry,
    advection,
    check_scheme,
    facet_load,
    facet_mass,
    mass,
    mass_range,
    nodal_velocity,
    stiffness,
)
from dgnet.problems.conditions import ROLES, Condition, Value, jump_within, lowest, samples
from dgnet.problems.curves import typical
from dgnet.problems.pde import PDE, Array, Velocity
from dgnet.problems.periodic import identified
from dgnet.problems.sources import FunctionSource
from dgnet.problems.spot_table import SpotTable

Tensor = torch.Tensor

LUMPED, CONSISTENT = 0.0, 1.0
WORKING = torch.float32
"""Precision of the states that `check`, `train` and `evaluate` judge. What a step computes with follows from `held`."""
SINGLE, DOUBLE = 100.0, 1e10
"""Largest `stiffness_number` s that float32 and float64 hold: what a step loses in rounding is about s eps of the range."""


@checked
@dataclass(frozen=True, eq=False)
class Problem:
    """A problem to step in time (`dgnet.Problem`): mesh, equation, conditions and time step as matrices and loads.

    - `mesh`: where
    - `pde`: the equation
    - `conditions`: on named boundaries; boundaries without one are insulated (zero flux)
    - `dt`: length of a step, in the unit of time of the equation
    - `consistent`: share of the consistent mass matrix: 1 Galerkin, 0 lumped
    - `advection_form`: galerkin (second order), skew (makes no energy) or upwind (first order, no overshoots)
    - `dtype`: precision of the matrices; steps are computed in double precision wherever single does not hold them (`held`)
    - `device`: of the matrices, as torch names it

    States and sources are [batch, node, field] at the mesh's nodes; `restrict` and `expand` map them to the degrees of freedom,
    which differ only where boundaries are periodic. `quadratic` is the same problem with quadratic elements.

    What changes in time is asked for at a time t, `load(t)`, or over a step from t to t + dt, `load(t, dt)`: boundary data on
    average over it, a velocity in its middle.

        >>> import dgnet as dg
        >>> rod = dg.Problem(dg.box((8, 2)), dg.PDE(diffusion=0.1), [dg.Dirichlet("left", 1.0)], dt=0.05)
        >>> rod.mass.row_sums().sum().round(decimals=6).item()  # the area
        1.0
    """

    mesh: Mesh
    pde: PDE
    conditions: Sequence[Condition]
    dt: Positive
    consistent: float = CONSISTENT
    advection_form: str = "galerkin"
    dtype: Precision = torch.float64
    device: AnyDevice = "cpu"
    degree: int = field(default=1, init=False)  # of the elements; 2 by `quadratic`

    def __post_init__(self) -> None:
        check_scheme(self.consistent, self.advection_form)
        known = self.pde.fields
        for c in self.conditions:
            if c.role not in ROLES:
                raise InputError(f"the condition on '{c.boundary}' has the role '{c.role}' (known: {', '.join(ROLES)})")
            for name in c.boundaries:
                self.mesh.facet_index(name)  # raises for an unknown name
            if c.field is not None and c.field not in known:
                raise InputError(f"a condition on '{c.boundary}' names field '{c.field}', but the fields are {list(known)}")
            if any(isinstance(value, SpotTable | FunctionSource) for value in (c.drive, c.coefficient)):
                raise InputError(f"the condition on '{c.boundary}' has a source of the inside for a value: give a number, a table "
                                 "or a function f(x, t) of points and one time")
            if (least := lowest(c.coefficient)) < 0:
                raise InputError(f"the convective coefficient on '{c.boundary}' must not be negative, got {least:g}")
        _ = self.diffusion_part, self.decay_part, self.capacity  # validates the coefficients now, not in the middle of a rollout
        if not callable(self.pde.velocity):
            _ = self.advection()
        if self.pde.reaction is not None:
            state = torch.zeros(1, self.n, self.n_fields, dtype=self.dtype, device=self.geometry.device)
            rate = self.pde.reaction(state)
            if isinstance(rate, Tensor) and not rate.is_floating_point() and not rate.is_complex():  # products take no whole ones
                raise InputError(f"the reaction must return numbers in single or double precision, got {rate.dtype}")
            rate = tensor(rate, "what the reaction returns")
            if rate.shape != state.shape:
                raise InputError(f"the reaction must return numbers of the shape that it is given, {list(state.shape)}, got "
                                 f"{list(rate.shape)}")

    # ------------------------------------------------------------------ degrees of freedom

    @property
    def n_fields(self) -> int:
        return len(self.pde.fields)

    @cached_property
    def geometry(self) -> Geometry:
        plain = Geometry.of(self.mesh, self.device, self.dtype, degree=self.degree)
        return replace(plain, dof=identified(plain, self.conditions))

    @cached_property
    def quadratic(self) -> Problem:
        """The same problem with quadratic elements (P2): states are at the mesh's nodes and then at the middle of its edges.

        Third order in space where coefficients are. Refused with a lumped mass (its entries would not be positive) and upwind.
        """
        if self.degree == 2:
            return self
        check_scheme(self.consistent, "galerkin" if self.pde.velocity is None else self.advection_form, degree=2)
        other = object.__new__(Problem)
        other.__dict__.update({f.name: getattr(self, f.name) for f in fields(self)} | {"degree": 2})
        return other

    @property
    def n(self) -> int:
        """Degrees of freedom per field."""
        return self.geometry.n

    @property
    def n_nodes(self) -> int:
        """Nodes of a state: those of the mesh, and with quadratic elements the middles of its edges."""
        return len(self.geometry.dof)

    @cached_property
    def periodic(self) -> bool:
        """Some nodes share a degree of freedom."""
        return self.n != self.n_nodes

    @cached_property
    def dof(self) -> Tensor:
        """The degree of freedom of each node."""
        return torch.as_tensor(self.geometry.dof, device=self.geometry.device)

    @cached_property
    def owner(self) -> Tensor:
        """One node for each degree of freedom."""
        _, first = np.unique(self.geometry.dof, return_index=True)
        return torch.as_tensor(first, device=self.geometry.device)

    def restrict(self, u: Tensor) -> Tensor:
        """[..., N, F] at nodes -> [..., n, F] at degrees of freedom."""
        return u.index_select(-2, self.owner) if self.periodic else u

    def expand(self, u: Tensor) -> Tensor:
        """[..., n, F] at degrees of freedom -> [..., N, F] at nodes."""
        return u.index_select(-2, self.dof) if self.periodic else u

    # ------------------------------------------------------------------ matrices

    @cached_property
    def capacity(self) -> Tensor | None:
        """The capacity of each cell [f, K] in double precision, f = 1 where all fields share it; None where it is 1 throughout."""
        rows, cells = [], self.mesh.n_cells
        for value in self.pde.per_field("capacity")[: 1 if self.pde.shared("capacity") else None]:
            c = torch.as_tensor(typical(value, self.mesh, "capacity"), dtype=torch.float64, device=self.geometry.device)
            if c.dim() > 1 or (c.dim() == 1 and len(c) != cells):
                raise InputError(f"capacity must be a number or one per cell [{cells}], got shape {list(c.shape)}")
            bad = ~(torch.isfinite(c.detach()) & (c.detach() > 0))
            if bool(bad.any()):
                where = "" if c.dim() == 0 else f" in cell {int(bad.nonzero()[0])}"
                raise InputError(f"the capacity must be finite and positive, got {float(c.detach()[bad].flatten()[0]):.4g}{where}")
            rows.append(c.expand(cells))
        stacked = torch.stack(rows)
        return stacked if stacked.requires_grad or bool((stacked != 1).any()) else None

    @cached_property
    def mass(self) -> EdgeMatrix:
        """M of the time derivative, weighted by the capacity: values [1, f, nnz], f = 1 where all fields share it."""
        if self.capacity is None:
            return self.source_mass
        return self._stacked([mass(self.geometry, self.consistent, c) for c in self.capacity])

    @cached_property
    def source_mass(self) -> EdgeMatrix:
        """S, the plain mass of sources, reactions and decay: values [1, 1, nnz]. The same object as `mass` without a capacity."""
        m = mass(self.geometry, self.consistent)
        return EdgeMatrix(m.pattern, m.values[None, None])

    @property
    def mass_bounds(self) -> tuple[float, float]:
        """Proven bounds of the eigenvalues of diag(M)^-1 M; they hold cell by cell, so for any capacity."""
        return mass_range(self.mesh.dim, self.consistent, self.degree)

    @cached_property
    def lumps(self) -> Tensor:
        """A positive share of the volume, weighted by the capacity, for each degree of freedom [1, f, n].

        The row sums of M; with quadratic elements, whose row sums need not be positive, its diagonal scaled to the same total.
        """
        sums = self.mass.row_sums().detach()
        if self.degree == 1:
            return sums
        diagonal = self.mass.diagonal.detach()
        return diagonal * (sums.sum(-1, keepdim=True) / diagonal.sum(-1, keepdim=True))

    @cached_property
    def time_dependent(self) -> bool:
        """K changes in time: the velocity, or a convective coefficient, is a function of time."""
        return callable(self.pde.velocity) or self.exchange_changes

    @property
    def exchange_changes(self) -> bool:
        """A convective coefficient is a function of time."""
        return any(callable(c.coefficient) for c in self.conditions)

    @cached_property
    def diffusion_part(self) -> EdgeMatrix:
        """Stiffness of the diffusion, positive semidefinite. Values [1, f, nnz]."""
        values = [typical(D, self.mesh, "diffusion") for D in self.pde.per_field("diffusion")]
        return self._stacked([stiffness(self.geometry, D) for D in values[: 1 if self.pde.shared("diffusion") else None]])

    @cached_property
    def decay_part(self) -> EdgeMatrix:
        """The decay times the plain mass, positive semidefinite where the decay is not negative. Values [1, f, nnz]."""
        parts = []
        for decay in self.pde.per_field("decay")[: 1 if self.pde.shared("decay") else None]:
            k = torch.as_tensor(decay, dtype=self.dtype, device=self.geometry.device)
            if k.dim() not in (0, 1) or (k.dim() == 1 and len(k) != self.mesh.n_nodes):
                raise InputError(f"decay must be a number or one per node [{self.mesh.n_nodes}], got shape {list(k.shape)}")
            plain = EdgeMatrix(self.geometry.pattern, self.source_mass.values[0, 0])
            parts.append(mass(self.geometry, self.consistent, weight=k) if k.dim() else plain * k)
        return self._stacked(parts)

    @cached_property
    def least_decay(self) -> float:
        """The smallest decay of any field anywhere, against the capacity: 1/time."""
        return 0.0 if self.decay_sums is None else float((self.decay_part.diagonal / self.mass.diagonal).detach().min())

    @cached_property
    def decay_sums(self) -> Tensor | None:
        """Row sums [1, f, n] of the decay's part of K; None without decay."""
        part = self.decay_part
        return part.row_sums() if part.values.requires_grad or bool(part.values.any()) else None

    def moving_sums(self, t: float, dt: float = 0.0, factor: Tensor | float = 1.0) -> Tensor | None:
        """Row sums [b, f, n] of what else in K(t) has rows that do not sum to zero: convective boundaries, skew advection.

        `factor` multiplies the convective coefficients.
        """
        convection = self.convection_part(t, dt)
        flow = self.advection(t + 0.5 * dt) if self.advection_form == "skew" else None
        found = [A.row_sums() for A in (None if convection is None else convection * factor, flow) if A is not None]
        return None if not found else found[0] if len(found) == 1 else found[0] + found[1]

    def _stacked(self, parts: list[EdgeMatrix]) -> EdgeMatrix:
        return EdgeMatrix(self.geometry.pattern, torch.stack([p.values for p in parts])[None])

    def advection(self, t: float = 0.0) -> EdgeMatrix | None:
        """The velocity's part of K(t), values [b, 1, nnz]; None without a velocity."""
        if self.pde.velocity is None:
            return None
        if not callable(self.pde.velocity):
            return self._advection_constant
        return self._advection_by(self.pde.velocity(t))

    @cached_property
    def _advection_constant(self) -> EdgeMatrix:
        assert self.pde.velocity is not None and not callable(self.pde.velocity)
        return self._advection_by(self.pde.velocity)

    def _advection_by(self, velocity: Array) -> EdgeMatrix:
        C = self._carried(velocity)
        return EdgeMatrix(C.pattern, C.values.reshape(-1, 1, C.pattern.nnz))

    def _carried(self, velocity: Array) -> EdgeMatrix:
        """The advection of c u. The skew form needs div(c v) = 0, so one capacity wherever there is flow."""
        if self.capacity is None:
            return advection(self.geometry, velocity, self.advection_form)
        c = self.carried_capacity
        if self.advection_form != "skew":
            return advection(self.geometry, velocity, self.advection_form, c)
        v = nodal_velocity(self.geometry, velocity).detach()
        moving = c[(v[..., self.geometry.cells, :] != 0).flatten(-2).any(-1).reshape(-1, len(c)).any(0)]
        if len(moving) and float((moving.max() - moving.min()).detach()) > 1e-9 * float(moving.max().detach()):
            raise InputError("the skew form of the advection needs the same capacity wherever there is flow, but it goes from "
                             f"{float(moving.min()):.4g} to {float(moving.max()):.4g} there: use advection_form = \"galerkin\"")
        return advection(self.geometry, velocity, "skew") * (moving[0].to(self.dtype) if len(moving) else 1.0)

    @property
    def carried_capacity(self) -> Tensor:
        """The capacity [K] that goes with the flow, in working precision."""
        assert self.capacity is not None
        if len(self.capacity) > 1:
            raise InputError("fields in a flow share one capacity: divide the equation of each field by its own")
        return self.capacity[0].to(self.dtype)

    def stiffness(self, t: float = 0.0, dt: float = 0.0) -> EdgeMatrix:
        """K at the time t or over a step, values [b, f, nnz]: diffusion, decay, advection and convective boundaries."""
        return self._stiffness(t, dt) if self.time_dependent else self._stiffness_constant

    @cached_property
    def _stiffness_constant(self) -> EdgeMatrix:
        return self._stiffness(0.0, 0.0)

    def _stiffness(self, t: float, dt: float) -> EdgeMatrix:
        K = self.diffusion_part + self.decay_part
        for extra in (self.convection_part(t, dt), self.advection(t + 0.5 * dt)):
            K = K if extra is None else K + extra
        return K

    def convection_part(self, t: float = 0.0, dt: float = 0.0) -> EdgeMatrix | None:
        """Boundaries in exchange: the integral of h phi_i phi_j. Values [1, f, nnz]; None when there are none."""
        if "_convection" in self.__dict__:
            return self.__dict__["_convection"]
        total: EdgeMatrix | None = None
        for c in self.conditions:
            if c.role == "exchange":
                facets = self.geometry.facets(c.boundary)
                weights, h, _ = self._exchange(c, facets, t, dt)
                extra = facet_mass(self.geometry, facets, _mean(weights, h))
                extra = EdgeMatrix(extra.pattern, (extra.values * self._field_mask(c.field)[:, None])[None])
                total = extra if total is None else total + extra
        if not self.exchange_changes and (total is None or not total.values.requires_grad):
            self.__dict__["_convection"] = total
        return total

    # ------------------------------------------------------------------ boundary data

    def load(self, t: float, dt: float = 0.0, moment: int = 0) -> Tensor | None:
        """g [n, F] at a time or over a step: Neumann fluxes and convective exchange with the ambient; None when there is none.
        `moment`: the integral over the step with a Legendre polynomial of it, over dt; 0 for the mean."""
        parts = [g for g in (self._load("flux", t, dt, moment), self._load("exchange", t, dt, moment)) if g is not None]
        return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def flux_load(self, t: float, dt: float = 0.0) -> Tensor | None:
        """The part of g from Neumann conditions."""
        return self._load("flux", t, dt)

    def convection_load(self, t: float, dt: float = 0.0) -> Tensor | None:
        """The part of g from convective (Robin) conditions."""
        return self._load("exchange", t, dt)

    def _load(self, role: str, t: float, dt: float, moment: int = 0) -> Tensor | None:
        """What the conditions of one role bring; asked for once where it does not change."""
        loads: dict[str, Tensor] = self.__dict__.setdefault("_loads", {})
        if role in loads:
            return None if moment else loads[role]
        total: Tensor | None = None
        rules = [c for c in self.conditions if c.role == role and (not moment or callable(c.drive) or callable(c.coefficient))]
        for c in rules:
            facets = self.geometry.facets(c.boundary)
            if role == "flux":
                weights, (q,) = self._on_facets([c.drive], facets, t, dt, moment)
                part = facet_load(self.geometry, facets, torch.tensordot(weights, q, 1).to(self.dtype), 1.0)
            else:
                weights, h, a = self._exchange(c, facets, t, dt, moment)
                every = np.concatenate([facets] * len(weights))  # the sum over the samples is one over as many facets
                part = facet_load(self.geometry, every, (weights[:, None, None] * a).flatten(0, 1), h.flatten(0, 1))
            part = part[:, None] * self._field_mask(c.field)
            total = part if total is None else total + part
        if total is not None and not moment and not any(callable(c.drive) or callable(c.coefficient) for c in rules):
            loads[role] = total
        return total

    @cached_property
    def fixed(self) -> Tensor | None:
        """Dirichlet degrees of freedom as a mask [f, n] with f = 1 or F; None when there are none."""
        rules = [c for c in self.conditions if c.role == "held"]
        if not rules:
            return None
        mask = torch.zeros(self.n_fields, self.n, dtype=torch.bool, device=self.geometry.device)
        for c in rules:
            dofs = self.dof[torch.as_tensor(self.geometry.nodes_on(c.boundary), device=self.geometry.device)]
            rows = slice(None) if c.field is None else self.pde.fields.index(c.field)
            mask[rows, dofs] = True  # type: ignore[index]
        return mask[:1] if bool((mask == mask[:1]).all()) else mask

    @cached_property
    def walls(self) -> tuple[Tensor, Tensor]:
        """Degrees of freedom that some field has fixed [m], and which of the fields [m, f]."""
        assert self.fixed is not None
        nodes = self.fixed.any(0).nonzero()[:, 0]
        return nodes, self.fixed.T.index_select(0, nodes)

    @cached_property
    def pivot(self) -> int:
        """A degree of freedom that no condition fixes, if there is one: its value serves as the reference of a step."""
        return 0 if self.fixed is None else int(self.fixed.any(0).int().argmin())

    def fixed_values(self, t: float) -> Tensor | None:
        """w(t) [n, F] at the Dirichlet degrees of freedom, zero elsewhere. Where two boundaries meet, the later one wins."""
        if self.fixed is None:
            return None
        return self._fixed_at(t) if self.still_values is None else self.still_values

    @cached_property
    def still_values(self) -> Tensor | None:
        """w [n, F] where it is the same at all times; None where it changes."""
        changing = any(c.role == "held" and callable(c.drive) for c in self.conditions)
        return None if changing else self._fixed_at(0.0)

    def fixed_moments(self, t: float, count: int) -> list[Tensor]:
        """Integrals of w - w(t) over the step from t on with the first Legendre polynomials of it, over dt: each [n, F]."""
        before = self.fixed_values(t)
        assert before is not None
        return [self._fixed_at(t, self.dt, i) - (0 if i else before) for i in range(count)]

    def _fixed_at(self, t: float, dt: float = 0.0, moment: int = 0) -> Tensor:
        w = torch.zeros(self.n, self.n_fields, dtype=self.dtype, device=self.geometry.device)
        for c in self.conditions:
            if c.role == "held":
                nodes = torch.as_tensor(self.geometry.nodes_on(c.boundary), device=self.geometry.device)
                weights, (found,) = samples([c.drive], self._x64[nodes], t, dt, moment)
                value = torch.tensordot(weights, found, 1).to(self.dtype)
                cols = range(self.n_fields) if c.field is None else [self.pde.fields.index(c.field)]
                for k in cols:
                    w = w.index_put((self.dof[nodes], torch.tensor(k, device=w.device)), value)
        return w

    @property
    def only_flow_changes(self) -> bool:
        """The velocity is a function of time, and nothing else is."""
        return callable(self.pde.velocity) and not self.exchange_changes and not self.data_changes

    @property
    def data_changes(self) -> bool:
        """Boundary data (loads or Dirichlet values) are functions of time."""
        return any(callable(c.drive) for c in self.conditions)

    def jumps(self, t: float) -> bool:
        """Whether boundary data jump in the step from t on, or in the one before it (`jump_within`)."""
        if not (self.data_changes or self.exchange_changes):
            return False
        seen: dict[float, bool] = self.__dict__.setdefault("_jumps", {})
        for begin in (t, t - self.dt):
            key = round(begin / self.dt, 3)
            if key not in seen:
                seen[key] = any(jump_within(value, self._x64[self.geometry.nodes_on(c.boundary)], begin, begin + self.dt)
                                for c in self.conditions for value in (c.drive, c.coefficient))
            if seen[key]:
                return True
        return False

    @cached_property
    def _x64(self) -> Tensor:
        return torch.tensor(self.geometry.nodes, device=self.geometry.device)

    def _on_facets(self, values: Sequence[Value], facets: np.ndarray, t: float, dt: float,
                   moment: int = 0) -> tuple[Tensor, list[Tensor]]:
        """Weights [K] of the samples of a step, and samples [K, F, m] of each value at the nodes of facets [F, m] (`samples`)."""
        nodes = torch.as_tensor(facets, device=self.geometry.device)
        weights, found = samples(values, self._x64[nodes.ravel()], t, dt, moment)
        return weights, [value.unflatten(1, facets.shape) for value in found]

    def _exchange(self, c: Condition, facets: np.ndarray, t: float, dt: float, moment: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and samples of the convective coefficient and of the ambient value, as in `_on_facets`.

        Where both change they share the samples, so that a state at the ambient value rests whatever the exchange does.
        """
        weights, (h, a) = self._on_facets([c.coefficient, c.drive], facets, t, dt, moment)
        if bool((h.detach() < 0).any()):
            raise InputError(f"the convective coefficient on '{c.boundary}' must not be negative, got {float(h.min()):.4g}")
        if moment and callable(c.coefficient):  # the matrix has its mean
            mean, (every,) = self._on_facets([c.coefficient], facets, t, dt)
            h = _mean(mean, every).expand_as(a)
        if not moment and not (callable(c.coefficient) and callable(c.drive)):
            h, a = _mean(weights, h)[None], _mean(weights, a)[None]
            weights = torch.ones_like(weights[:1])
        return weights, h.to(self.dtype).double(), a.to(self.dtype).double()

    def _field_mask(self, name: str | None) -> Tensor:
        if name is None:
            return torch.ones(1, dtype=self.dtype, device=self.geometry.device)
        hot = [float(f == name) for f in self.pde.fields]
        return torch.tensor(hot, dtype=self.dtype, device=self.geometry.device)

    def with_velocity(self, velocity: Velocity | None) -> Problem:
        """The same problem with another velocity; everything that does not depend on it is shared."""
        other = self.derived({"_advection_constant", "time_dependent"}, pde=replace(self.pde, velocity=velocity))
        if "quadratic" in self.__dict__:
            other.__dict__["quadratic"] = self.quadratic.with_velocity(velocity)
        return other

    def recast(self, consistent: float, advection_form: str) -> Problem:
        """The same problem in another discretisation, on the same geometry."""
        if (consistent, advection_form) == (self.consistent, self.advection_form):
            return self
        check_scheme(consistent, advection_form, self.degree)
        return self.derived({"mass", "source_mass", "decay_part", "decay_sums", "_advection_constant", "lumps"},
                             consistent=consistent, advection_form=advection_form)

    def derived(self, stale: set[str], **changes: object) -> Problem:
        """The same problem with these changes; `stale` names what must be computed anew."""
        other = object.__new__(Problem)
        _ = self.geometry  # shared
        own = stale | {"_stiffness_constant", "quadratic", "double", "_jumps"}
        other.__dict__.update({k: v for k, v in self.__dict__.items() if k not in own} | changes)
        if self.held() is not self:
            other.__dict__["double"] = self.double.derived(stale, **changes)
        return other

    # ------------------------------------------------------------------ precision

    @cached_property
    def double(self) -> Problem:
        """The same problem in float64, on the same pattern."""
        if self.dtype == torch.float64:
            return self
        other = object.__new__(Problem)
        other.__dict__.update({f.name: getattr(self, f.name) for f in fields(self)})
        other.__dict__.update(dtype=torch.float64, geometry=self.geometry.exact, stiffness_number=self.stiffness_number)
        _ = other.diffusion_part, other.decay_part  # shared by what derives from it
        return other

    def held(self) -> Problem:
        """This problem in a precision that holds its steps: itself, or its twin in float64 (states may stay float32)."""
        return self if self.dtype == torch.float64 or self.stiffness_number <= SINGLE else self.double

    @property
    def precision(self) -> str:
        """The precision that a step is computed with, in words."""
        s = self.stiffness_number
        if s > DOUBLE:
            return f"the stiffness number {s:.2g} is beyond double precision (at most {DOUBLE:.0e}): only a constant state is taken"
        if self.held().dtype == torch.float64:
            return "steps are computed in double precision" + (
                f", since the stiffness number {s:.3g} is above {SINGLE:g}" if s > SINGLE else "")
        return "steps are computed in single precision"

    # ------------------------------------------------------------------ checks and numbers to know

    def check_state(self, u: Tensor, what: str = "the state") -> None:
        want = (self.n_nodes, self.n_fields)
        if u.dim() < 2 or tuple(u.shape[-2:]) != want or 0 in u.shape:
            raise InputError(f"{what} must end in [{want[0]} nodes, {want[1]} fields], got {list(u.shape)}")

    @cached_property
    def stiffness_number(self) -> float:
        """Largest dt/2 * K_ii / M_ii: how far from the identity a step is (about 4 dt D / 2h^2 in 2D)."""
        return float((0.5 * self.dt * self.diffusion_part.diagonal.detach() / self.lumps).max())


def _mean(weights: Tensor, values: Tensor) -> Tensor:
    """The mean of samples [K, ...] with weights [K]."""
    return values[0] if len(weights) == 1 else torch.tensordot(weights, values, 1)
