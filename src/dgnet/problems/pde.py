"""The partial differential equation, declared: what is known about the physics, before any mesh.

For every field u of the problem

    du/dt = div(D grad u) - v . grad u - k u + r(u) + f(x, t)

with diffusivity D, velocity v, decay k, reaction r and source f. Divide densities and heat capacities out first, so that
du/dt stands alone (D = conductivity / (density * heat capacity), and likewise for sources and convective coefficients).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dgnet.errors import InputError

Tensor = torch.Tensor

Array = float | Sequence[float] | Sequence[Sequence[float]] | np.ndarray | Tensor
"""Diffusivity: a number, one per cell [K], a tensor [d, d], or a tensor per cell [K, d, d]. Decay: a number or [N]."""

Coefficient = Array | Mapping[str, Array]
"""Shared by all fields, or given per field name."""

Velocity = Array | Callable[[float], Tensor]
"""Constant [d], nodal [N, d], or a function of time that returns [N, d] or, one per trajectory, [batch, N, d]."""

Reaction = Callable[[Tensor], Tensor]
"""Node-wise r(u): [..., F] -> [..., F], written with torch operations."""


@dataclass(frozen=True, eq=False)
class PDE:
    """See the module's equation. A coefficient that is zero or None does not enter the operators."""

    fields: tuple[str, ...] = ("u",)
    diffusion: Coefficient = 0.0
    velocity: Velocity | None = None
    decay: Coefficient = 0.0
    reaction: Reaction | None = None

    def __post_init__(self) -> None:
        if not self.fields or len(set(self.fields)) != len(self.fields):
            raise InputError(f"a PDE needs distinct field names, got {list(self.fields)}")
        for name in ("diffusion", "decay"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                strange = set(value) - set(self.fields)
                if strange:
                    raise InputError(f"{name} is given for field '{min(strange)}', but the fields are {list(self.fields)}")
                missing = [f for f in self.fields if f not in value]
                if missing:
                    raise InputError(f"{name} is not given for field '{missing[0]}'")

    def per_field(self, name: str) -> list[Array]:
        """The coefficient `name` for each field in turn."""
        value = getattr(self, name)
        return [value[f] for f in self.fields] if isinstance(value, Mapping) else [value] * len(self.fields)

    def shared(self, name: str) -> bool:
        """True when all fields have the same coefficient."""
        return not isinstance(getattr(self, name), Mapping)
