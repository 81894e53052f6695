"""Smooth limits of learned numbers."""

from __future__ import annotations

import torch
from torch import nn

Tensor = torch.Tensor

def soft_limit(z: Tensor, down: float, up: float) -> Tensor:
    """Smooth, monotone, slope 1 at 0, values in (-down, up)."""
    return torch.where(z > 0, up * torch.tanh(z / up), down * torch.tanh(z / down))


def ceiling(z: Tensor, top: float) -> Tensor:
    """Smooth, monotone, below top; z itself, to rounding, below top - 7."""
    return top - nn.functional.softplus(top - z, beta=3.0)
