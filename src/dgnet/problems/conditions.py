"""Boundary conditions on named boundaries. Boundaries without a condition are insulated (zero flux).

Values are numbers or functions value(x, t) of points x [n, d] (float64 tensor) and a time t (float), returning [n].
`field` restricts a condition to one field; None means all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from dgnet.arguments import checked
from dgnet.errors import InputError

Value = float | Callable[[torch.Tensor, float], torch.Tensor]


@checked
@dataclass(frozen=True)
class Dirichlet:
    """A held value: u = value on a boundary.

    - `boundary`: its name in the mesh; `"boundary"` is all of them
    - `value`: a number or a function value(x, t), in the unit of the field
    - `field`: the name of the field it holds for; None for all fields

        >>> import dgnet as dg
        >>> wall = dg.Dirichlet("left", 20.0)
        >>> tide = dg.Dirichlet("right", lambda x, t: 2.0 + 0.1 * t + 0 * x[:, 0], field="level")
    """

    boundary: str
    value: Value = 0.0
    field: str | None = None


@checked
@dataclass(frozen=True)
class Neumann:
    """A given flux into the domain: D du/dn = flux on a boundary.

    - `boundary`: its name in the mesh; `"boundary"` is all of them
    - `flux`: a number or a function flux(x, t), positive inwards. Unit of the field times length/time; W/m2 with a heat capacity
    - `field`: the name of the field it holds for; None for all fields

        >>> import dgnet as dg
        >>> heated = dg.Neumann("bottom", 3.0)
    """

    boundary: str
    flux: Value = 0.0
    field: str | None = None


@checked
@dataclass(frozen=True)
class Robin:
    """Exchange with the surroundings: -D du/dn = coefficient * (u - ambient) on a boundary.

    - `boundary`: its name in the mesh; `"boundary"` is all of them
    - `coefficient`: a number or a function coefficient(x, t), not negative. Length/time; W/m2/K with a heat capacity
    - `ambient`: a number or a function ambient(x, t), in the unit of the field
    - `field`: the name of the field it holds for; None for all fields

        >>> import dgnet as dg
        >>> cooled = dg.Robin("boundary", coefficient=7.1e-6, ambient=298.15)
    """

    boundary: str
    coefficient: Value = 0.0
    ambient: Value = 0.0
    field: str | None = None


@checked
@dataclass(frozen=True)
class Periodic:
    """Two boundaries that are one and the same: what leaves through one enters through the other. Holds for all fields.

    - `boundary`, `partner`: names in the mesh; a translation must map the nodes of the first onto those of the second

        >>> import dgnet as dg
        >>> ring = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [dg.Periodic("left", "right")], dt=0.1)
        >>> ring.mesh.n_nodes, ring.n  # nodes, and degrees of freedom
        (25, 20)
    """

    boundary: str
    partner: str

    def __post_init__(self) -> None:
        if self.boundary == self.partner:
            raise InputError(f"a periodic condition needs two boundaries, got '{self.boundary}' twice")


Condition = Dirichlet | Neumann | Robin | Periodic
