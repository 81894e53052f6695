"""Sources f(x, t) as functions. Solvers use their step averages or samples.

A source is any callable f(x, t) with points x [N, d] and times t [T] that returns [B, T, N, F]: one value per
trajectory of a batch (B = 1 for a single one), time, node and field.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, Protocol

import numpy as np
import torch

from dgnet.arguments import Count, Positive, axes, between, checked, finite, returned, tensor
from dgnet.errors import InputError

Tensor = torch.Tensor

_SMOOTH = 1e-4  # relative change at which an average counts as converged


class Source(Protocol):
    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """f at points x [N, d] and times t [T] as [B, T, N, F]."""
        ...


@checked
class FunctionSource:
    """A source of one field in one trajectory from a plain function.

    - `function`: f(x, t) of points x [N, d] and one time t, returns [N]; field/time, or W/m3 with a heat capacity

        >>> import dgnet as dg, torch
        >>> lamp = dg.FunctionSource(lambda x, t: torch.exp(-((x[:, 0] - t) ** 2)))
        >>> lamp(torch.zeros(5, 2), torch.tensor([0.0, 1.0])).shape  # [trajectory, time, node, field]
        torch.Size([1, 2, 5, 1])
    """

    def __init__(self, function: Callable[[Tensor, float], Tensor]) -> None:
        self.function = function

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        rows = [returned(self.function(x, float(s)), x.shape[:1], "a source f(x, t)") for s in t]
        return torch.stack(rows)[None, :, :, None]


def _at(source: Source, x: Tensor, t: Tensor) -> Tensor:
    """f at points and times [B, T, N, F], checked."""
    value = tensor(source(x, t), "what the source returns")
    if value.dim() != 4 or value.shape[1:3] != (len(t), len(x)):
        raise InputError(f"a source f(x, t) of {len(x)} points and {len(t)} times must return numbers [trajectory, {len(t)}, "
                         f"{len(x)}, field], got {list(value.shape)}")
    return value


Rule = Literal["average", "trapezoid"]
"""The value of a source in a step: its average over the step, or the mean of its values at both ends (the paper, Eq. 6)."""


@checked
def step_average(source: Source, x: Annotated[Tensor, axes("points, coordinates")], start: Annotated[Tensor, axes("times")],
                 dt: Positive, panels: Count = 1, order: Annotated[int, between(1, 64, "a whole number from 1 to 64")] = 4,
                 rule: Rule = "average") -> Tensor:
    """(1/dt) * integral of f over [start, start + dt] for each start: what a step sees of a source, [B, T, N, F].

    Composite Gauss-Legendre, exact for polynomials of degree 2*order-1 in every panel.

    - `source`: f(x, t) of points [N, d] and times [T], returns [B, T, N, F]
    - `x`: points [N, d], usually `torch.tensor(mesh.points)`
    - `start`: times at which the steps begin [T]
    - `dt`: length of a step, time
    - `panels`: parts that a step is cut into; a source that crosses its own width w at speed c needs about c*dt/w
    - `order`: points in time per panel
    - `rule`: average, or trapezoid for (f(start) + f(start + dt)) / 2, whatever the source does in between

        >>> import dgnet as dg, torch
        >>> ramp = dg.FunctionSource(lambda x, t: t + 0 * x[:, 0])
        >>> dg.step_average(ramp, torch.zeros(1, 2), torch.tensor([0.0, 1.0]), dt=1.0).flatten()
        tensor([0.5000, 1.5000])
    """
    finite(x, "x")
    finite(start, "start")
    if rule == "trapezoid":
        return finite(0.5 * (_at(source, x, start) + _at(source, x, start + dt)), "what the source returns")
    nodes, weights = np.polynomial.legendre.leggauss(order)
    total: Tensor | None = None
    for panel in range(panels):
        for node, weight in zip(nodes, weights):
            offset = dt * (panel + 0.5 * (1 + node)) / panels
            value = _at(source, x, start + offset) * (0.5 * weight / panels)
            total = value if total is None else total + value
    assert total is not None
    return finite(total, "what the source returns")


@checked
def step_moments(source: Source, x: Annotated[Tensor, axes("points, coordinates")], start: Annotated[Tensor, axes("times")],
                 dt: Positive, count: Count, panels: Count = 1,
                 order: Annotated[int, between(1, 64, "a whole number from 1 to 64")] = 6) -> Tensor:
    """Moments of a source in every step, (1/dt) * integral of P_i f over [start, start + dt] for i < count: [B, T, count, N, F].

    P_i are the Legendre polynomials of the step, P_0 = 1 (the average), P_1 from -1 to 1. What steps of dG(k) take: k + 1 of them.

    - `source`, `x`, `start`, `dt`, `panels`, `order`: as of `step_average`
    - `count`: how many

        >>> import dgnet as dg, torch
        >>> ramp = dg.FunctionSource(lambda x, t: t + 0 * x[:, 0])
        >>> dg.step_moments(ramp, torch.zeros(1, 2), torch.tensor([0.0, 1.0]), dt=1.0, count=2).flatten()
        tensor([0.5000, 0.1667, 1.5000, 0.1667])
    """
    nodes, weights = np.polynomial.legendre.leggauss(order)
    total: Tensor | None = None
    for panel in range(panels):
        for node, weight in zip(nodes, weights):
            s = (panel + 0.5 * (1 + node)) / panels
            P = np.polynomial.legendre.legvander(np.array([2 * s - 1]), count - 1)[0] * (0.5 * weight / panels)
            value = _at(source, x, start + dt * s)
            part = torch.stack([value * p for p in P.tolist()], 2)
            total = part if total is None else total + part
    assert total is not None
    return finite(total, "what the source returns")


def converged_average(source: Source, x: Tensor, start: Tensor, dt: float, most: int = 512) -> tuple[Tensor, float]:
    """Step averages [B, T, N, F] with as many panels as they need, and how much the last doubling still changed them (relative).

    The number is found at up to 2,000 of the points. At least 16 panels are tried, that is 64 times in every step, so that a pulse
    of a fiftieth of a step is not overlooked.
    """
    probe = x[:: max(1, len(x) // 2000)]
    tried = {panels: step_average(source, probe, start, dt, panels) for panels in (1, 2, 4, 8, 16)}
    panels, change = 16, 1.0
    while panels <= most:
        size = float(tried[panels].norm())
        change = float((tried[panels] - tried[panels // 2]).norm()) / size if size > 0 else 0.0
        if change <= _SMOOTH or panels == most:
            break
        panels *= 2
        tried[panels] = step_average(source, probe, start, dt, panels)
    best = tried[panels]
    enough = next(p for p in tried if float((tried[p] - best).norm()) <= _SMOOTH * float(best.norm()) or p == panels)
    return (best if len(probe) == len(x) else step_average(source, x, start, dt, enough)), change


def panels_for(speed: float, width: float, dt: float) -> int:
    """Sub-intervals that keep the integrand smooth for Gauss points: one per width travelled."""
    return max(1, int(min(np.ceil(speed * dt / width), 1e9)))
