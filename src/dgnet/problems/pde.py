"""The partial differential equation, declared: what is known about the physics, before any mesh.

For every field u of the problem

    c (du/dt + v . grad u) = div(D grad u) - k u + r(u) + f(x, t)

with capacity c, diffusion D, velocity v, decay k, reaction r and source f. Without a capacity c = 1 and D is a diffusivity.
For heat with c = density * specific heat [J/m3/K], D is the conductivity [W/m/K], f and r are powers per volume [W/m3],
fluxes and convective exchange are powers per area, and k is [W/m3/K]. The flux D du/dn is continuous where c or D jumps, and the
heat, the integral of c u, changes only by sources and boundaries. (Dividing by c is the same only where c is constant.)

c and D may change with u: a `Curve`, a curve times a tensor (`Scaled`), one for each region (`ByRegion`). Then the heat is the
enthalpy H, the integral of c over u, and a step solves for it by Newton's method (`green.enthalpy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.operators import Array as Array
from dgnet.problems.curves import ByRegion, Varied, curves_of, frozen

Tensor = torch.Tensor

Coefficient = Array | Mapping[str, Array]
"""Shared by all fields, or given per field name."""

Material = Varied | Mapping[str, Varied]
"""A coefficient that may change with u, shared by all fields or given per field name."""

Velocity = Array | Callable[[float], Tensor]
"""Constant [d], nodal [N, d], or a function of time that returns [N, d] or, one per trajectory, [batch, N, d]."""

Reaction = Callable[[Tensor], Tensor]
"""Node-wise r(u): [..., F] -> [..., F], written with torch operations."""


@checked
@dataclass(frozen=True, eq=False)
class PDE:
    """The equation, before any mesh: c (du/dt + v . grad u) = div(D grad u) - k u + r(u) + f.

    A coefficient is shared by all fields or given per field as a mapping from names; omitted terms are zero.

    - `fields`: names of the fields, at least one
    - `diffusion`: D, a number, one per cell [K], a symmetric tensor [d, d] or one per cell [K, d, d]; length2/time, or the
      conductivity in W/m/K with a heat capacity; or a `Curve` of u, a `Scaled` one or one `ByRegion`
    - `velocity`: v, constant [d], nodal [N, d] or a function of time that returns [N, d] or, one per trajectory, [batch, N, d];
      length/time
    - `decay`: k, a number or one per node [N]; 1/time, or W/m3/K with a heat capacity. What changes with u is the reaction
    - `reaction`: r, a function of the local state [..., F] -> [..., F] in torch; field/time, or W/m3 with a heat capacity
    - `capacity`: c, a number or one per cell [K]; 1, or density times specific heat in J/m3/K; or a `Curve` of u, with latent heat
      (`Curve.melting`), a `Scaled` one or one `ByRegion`

        >>> import dgnet as dg
        >>> heat = dg.PDE(("T",), diffusion=1.4e-5)
        >>> waves = dg.PDE(("u", "v"), diffusion={"u": 1e-3, "v": 0.0}, reaction=lambda s: s - s**3)
    """

    fields: tuple[str, ...] = ("u",)
    diffusion: Material = 0.0
    velocity: Velocity | None = None
    decay: Coefficient = 0.0
    reaction: Reaction | None = None
    capacity: Material = 1.0

    def __post_init__(self) -> None:
        if not self.fields or len(set(self.fields)) != len(self.fields) or not all(name.strip() for name in self.fields):
            raise InputError(f"a PDE needs distinct field names that are not empty, got {list(self.fields)}")
        for name in ("diffusion", "decay", "capacity"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                strange = set(value) - set(self.fields)
                if strange:
                    raise InputError(f"{name} is given for field '{min(strange)}', but the fields are {list(self.fields)}")
                missing = [f for f in self.fields if f not in value]
                if missing:
                    raise InputError(f"{name} is not given for field '{missing[0]}'")
        for curve in (c for value in self.per_field("capacity") for c in curves_of(value)):
            if curve.least <= 0:
                raise InputError(f"the capacity must be positive, but the {curve.name} falls to {curve.least:.4g}")

    @property
    def weighted(self) -> bool:
        """There is a capacity other than 1."""
        return any(isinstance(c, ByRegion) or bool(curves_of(c)) or bool((torch.as_tensor(c).detach() != 1).any())
                   for c in self.per_field("capacity"))

    @property
    def curved(self) -> bool:
        """Capacity or diffusion change with u."""
        return any(curves_of(value) for name in ("capacity", "diffusion") for value in self.per_field(name))

    @property
    def frozen(self) -> PDE:
        """The linear equation: curves of u with the values at their lower ends."""
        def of(value: Material) -> Material:
            return {f: frozen(v) for f, v in value.items()} if isinstance(value, Mapping) else frozen(value)

        return replace(self, capacity=of(self.capacity), diffusion=of(self.diffusion))

    def per_field(self, name: str) -> list[Varied]:
        """The coefficient `name` for each field in turn."""
        value = getattr(self, name)
        return [value[f] for f in self.fields] if isinstance(value, Mapping) else [value] * len(self.fields)

    def shared(self, name: str) -> bool:
        """True when all fields have the same coefficient."""
        return not isinstance(getattr(self, name), Mapping)
