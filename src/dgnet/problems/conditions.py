"""Boundary conditions on named boundaries. What is not named has no flux.

Values are numbers or functions value(x, t) of points x [n, d] (float64 tensor) and a time t (float), returning [n].
`field` restricts a condition to one field; None means all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Value = float | Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class Dirichlet:
    """u = value."""

    boundary: str
    value: Value = 0.0
    field: str | None = None


@dataclass(frozen=True)
class Neumann:
    """D du/dn = flux (inwards positive)."""

    boundary: str
    flux: Value = 0.0
    field: str | None = None


@dataclass(frozen=True)
class Robin:
    """-D du/dn = coefficient * (u - ambient): convective exchange with the surroundings."""

    boundary: str
    coefficient: Value = 0.0
    ambient: Value = 0.0
    field: str | None = None


@dataclass(frozen=True)
class Periodic:
    """The two boundaries are identified by the translation that maps the first onto the second. Holds for all fields."""

    boundary: str
    partner: str


Condition = Dirichlet | Neumann | Robin | Periodic
