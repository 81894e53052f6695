"""A learned reaction of one field as a table."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

Tensor = torch.Tensor

class Table(nn.Module):
    """A function of one number, piecewise linear, constant beyond its ends; zero is one of its places.

    `deviation` is the standard deviation of what the model makes of each value, in units of the reaction (NaN: never estimated),
    `density` the share of the training states at each place. Both are statements about the data; nothing is computed from them.
    """

    def __init__(self, intervals: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(intervals + 2))
        self.register_buffer("first", torch.zeros(()))
        self.register_buffer("spacing", torch.ones(()))
        self.register_buffer("deviation", torch.full((intervals + 2,), torch.nan))
        self.register_buffer("density", torch.full((intervals + 2,), torch.nan))
        self.register_load_state_dict_pre_hook(_without_band)

    first: Tensor
    spacing: Tensor
    deviation: Tensor
    density: Tensor

    def spread(self, low: float, high: float, zero: float) -> None:
        """Lay the places over low .. high."""
        h = max(high - low, 1e-12) / (len(self.values) - 2)
        self.spacing.fill_(h)
        self.first.fill_(zero + h * float(np.floor((low - zero) / h)))

    def where(self) -> Tensor:
        """The places [J], normalised, in double precision."""
        return self.first.double() + self.spacing.double() * torch.arange(len(self.values), device=self.values.device)

    def places(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The interval of each entry, and how far into it."""
        x = ((v - self.first) / self.spacing).clamp(0, len(self.values) - 1)
        i = x.detach().floor().clamp(max=len(self.values) - 2)
        return i.long(), x - i

    def features(self, v: Tensor) -> Tensor:
        """[..., J]: what each value of the table contributes."""
        i, part = self.places(v)
        out = torch.zeros(*v.shape, len(self.values), dtype=v.dtype, device=v.device)
        return out.scatter_(-1, i[..., None], 1 - part[..., None]).scatter_(-1, i[..., None] + 1, part[..., None])

    def forward(self, v: Tensor) -> Tensor:
        i, part = self.places(v)
        left, right = (self.values.index_select(0, (i + k).flatten()).view(v.shape) for k in (0, 1))
        return torch.lerp(left, right, part.to(left.dtype))


def _without_band(table: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights saved before there was a band have none."""
    for name in ("deviation", "density"):
        state.setdefault(prefix + name, getattr(table, name))
