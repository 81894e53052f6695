"""Sources f(x, t): functions first. What a solver sees, step averages or samples, is derived from them.

A source is any callable f(x, t) with points x [N, d] and times t [T] that returns [B, T, N, F]: one value per
trajectory of a batch (B = 1 for a single one), time, node and field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from dgnet.errors import InputError

Tensor = torch.Tensor


class Source(Protocol):
    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """f at points x [N, d] and times t [T] as [B, T, N, F]."""
        ...


class FunctionSource:
    """One trajectory, one field, from a plain function f(x [N, d], t: float) -> [N]."""

    def __init__(self, function: Callable[[Tensor, float], Tensor]) -> None:
        self.function = function

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return torch.stack([self.function(x, float(s)) for s in t])[None, :, :, None]


def step_average(source: Source, x: Tensor, start: Tensor, dt: float, panels: int = 1, order: int = 4) -> Tensor:
    """(1/dt) * integral of f over [start, start + dt] for each start [T]: the Duhamel term of a step, [B, T, N, F].

    Composite Gauss-Legendre: `panels` sub-intervals with `order` points each, exact for polynomials of degree 2*order-1.
    A source that crosses its own width w at speed c within a step needs about panels = c*dt/w (see `panels_for`).
    """
    if dt <= 0:
        raise InputError(f"the time step must be positive, got {dt}")
    nodes, weights = np.polynomial.legendre.leggauss(order)
    total: Tensor | None = None
    for panel in range(panels):
        for node, weight in zip(nodes, weights):
            offset = dt * (panel + 0.5 * (1 + node)) / panels
            value = source(x, start + offset) * (0.5 * weight / panels)
            total = value if total is None else total + value
    assert total is not None
    return total


def panels_for(speed: float, width: float, dt: float) -> int:
    """Sub-intervals that keep the integrand smooth for Gauss points: one per width travelled."""
    return max(1, int(np.ceil(speed * dt / width)))


def sample(source: Source, x: Tensor, times: Tensor) -> Tensor:
    """Point samples f(x, t_k) [B, T, N, F]."""
    return source(x, times)
