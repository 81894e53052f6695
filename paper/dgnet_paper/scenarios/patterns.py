"""Dynamic light: six patterns with random parameters, added up. Parameters have one row per trajectory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dgnet_paper.scenarios.scenario import stack

Tensor = torch.Tensor

NAMES = ("spiral", "ring", "spot", "wave", "lattice", "bar")
FASTEST = 0.35
"""No pattern moves faster than this (in radii of the dish per second)."""
WIDTH = 0.08
"""No pattern is narrower than this."""


def draw(rng: np.random.Generator, coarse: float = 1.0) -> dict[str, np.ndarray]:
    """Parameters of the six patterns of one trajectory; `coarse` > 1 widens them for coarse meshes."""
    low, high = WIDTH * coarse, 1.5 * WIDTH * coarse
    turn = 2 * np.pi
    return {
        "peak": rng.uniform(0.8, 1.6, 6),
        "phase": rng.uniform(0, turn, 6),
        "spiral": np.array([*rng.uniform(-0.3, 0.3, 2), rng.choice([-2, -1, 1, 2]), rng.uniform(4, 9) / coarse,
                            rng.uniform(0.3, 1.0)]),  # centre, arms, winding, frequency
        "ring": np.array([*rng.uniform(-0.2, 0.2, 2), rng.uniform(0.4, 0.6), rng.uniform(0.1, 0.2),
                          rng.uniform(0.4, 1.0), rng.uniform(low, high)]),  # centre, mean radius, swing, frequency, width
        "spot": np.array([*rng.uniform(0.3, 0.7, 2), *rng.uniform(0.15, 0.35, 2), rng.uniform(0, turn),
                          rng.uniform(low, high)]),  # amplitudes, frequencies, phase of y, width
        "wave": np.array([rng.uniform(0, turn), rng.uniform(6, 14) / coarse, rng.uniform(0.5, 1.5)]),
        "lattice": np.array([rng.uniform(0, turn), rng.uniform(0.4, 0.8) * coarse, rng.uniform(0.3, 1.0)]),
        "bar": np.array([*rng.uniform(-0.2, 0.2, 2), rng.uniform(0.1, 0.25) * rng.choice([-1, 1]),
                         rng.uniform(low, high)]),  # centre, turning rate, width
    }


class Light:
    """f(x, t) >= 0 [B, T, N, 1]: rotating spiral, pulsating ring, moving spot, wave, breathing lattice, turning bar."""

    def __init__(self, draws: Sequence[dict[str, np.ndarray]]) -> None:
        self.values = {key: stack([d[key] for d in draws]) for key in draws[0]}

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        p = {key: value.to(x.device, x.dtype)[..., None, None] for key, value in self.values.items()}  # [B, k, 1, 1]
        X, Y, s = x[:, 0], x[:, 1], t.to(x.device, x.dtype)[:, None]
        peak, phase = p["peak"].unbind(1), p["phase"].unbind(1)

        cx, cy, arms, winding, omega = p["spiral"].unbind(1)
        dx, dy = X - cx, Y - cy
        r2 = dx * dx + dy * dy  # [B, 1, N]
        fade = r2 / (r2 + 0.02)  # an angle has no value at the centre
        angle = arms * torch.atan2(dy, dx) + winding * r2.sqrt() + phase[0]
        total = peak[0] * 0.5 * (1 + fade * torch.cos(angle - omega * s))

        cx, cy, mean, swing, omega, width = p["ring"].unbind(1)
        radius = ((X - cx) ** 2 + (Y - cy) ** 2).sqrt()
        total = total + _bell(radius - (mean + swing * torch.sin(omega * s + phase[1])), width, peak[1])

        ax, ay, wx, wy, shift, width = p["spot"].unbind(1)
        dx = X - ax * torch.sin(wx * s + phase[2])
        dy = Y - ay * torch.sin(wy * s + shift)
        total += peak[2] * torch.exp(-0.5 * (dx * dx + dy * dy) / width**2)

        heading, number, omega = p["wave"].unbind(1)
        along = number * (torch.cos(heading) * X + torch.sin(heading) * Y) + phase[3]
        total += peak[3] * 0.5 * (1 + torch.cos(along - omega * s))

        heading, period, omega = p["lattice"].unbind(1)
        u = (torch.cos(heading) * X + torch.sin(heading) * Y) * (np.pi / period)
        v = (torch.cos(heading) * Y - torch.sin(heading) * X) * (np.pi / period)
        total += (torch.cos(u) * torch.cos(v)) ** 2 * (peak[4] * 0.5 * (1 + torch.sin(omega * s + phase[4])))

        cx, cy, rate, width = p["bar"].unbind(1)
        turned = rate * s + phase[5]
        total += _bell(torch.cos(turned) * (X - cx) + torch.sin(turned) * (Y - cy), width, peak[5])
        return total[..., None]


def _bell(distance: Tensor, width: Tensor, peak: Tensor) -> Tensor:
    return peak * torch.exp(-0.5 * (distance / width) ** 2)
