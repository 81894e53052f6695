"""Waves of excitation: when each place is activated, and where spirals have their tips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.models.registry import title_of

Tensor = torch.Tensor


def activation_times(u: Tensor, dt: float, threshold: float = 0.5) -> Tensor:
    """When a field [B, T+1, N] first reaches the threshold [B, N]: linear between stored times dt apart, NaN where never."""
    above = u >= threshold
    first = above.int().argmax(1)  # [B, N]
    before = (first - 1).clamp(min=0)
    a, b = (u.gather(1, k[:, None])[:, 0] for k in (before, first))
    part = torch.where(first > 0, (threshold - a) / torch.where(b != a, b - a, torch.ones_like(b)), torch.zeros_like(a))
    return torch.where(above.any(1), (before + part) * dt, torch.full_like(a, torch.nan))


def activation_error(predicted: Tensor, true: Tensor) -> float:
    """Mean distance of activation times [B, N], in their unit, over the places that both activate; NaN if there are none."""
    return float((predicted - true).abs().nanmean())


def activation(states: Mapping[str, Tensor], truth: Tensor, dt: float, threshold: float) -> dict[str, Any]:
    """When the first field of states [B, T+1, N, F] reaches the threshold, by model, in the unit of time.

    `activation`: over the places that are activated, the mean of the truth, and by model the mean distance from it and the share
    of those places that the model activates, too. `remarks`: the same as a sentence.
    """
    true = activation_times(truth[..., 0].cpu(), dt, threshold)
    there, models = ~true.isnan(), {}
    for name, found in states.items():
        times = activation_times(found[..., 0].cpu(), dt, threshold)
        models[name] = {"error": activation_error(times, true), "share": float((~times.isnan())[there].double().mean())}
    mean = float(true.nanmean())
    each = (f"{title_of(name)} {row['error']:.3g}" + ("" if row["share"] == 1 else f" ({row['share']:.1%} of the places)")
            for name, row in models.items() if name != "told")
    return {"activation": {"threshold": threshold, "mean": mean, "models": models},
            "remarks": [f"Times of activation (the first field reaches {threshold:g}): {mean:.4g} in the mean of all places; "
                        f"mean error: {', '.join(each)}."]}


def tips(mesh: Mesh, states: np.ndarray, centre: Sequence[float]) -> np.ndarray:
    """How often the phase of two fields [N, 2] about `centre` winds around each triangle [K]: +1 and -1 at the tips of spirals.

    The phase is the angle of (u, v) - centre. A spiral's tip is the one place without a phase, so the sum over a part of the mesh
    changes only if a tip leaves through its boundary.
    """
    if mesh.dim != 2:
        raise InputError("tips of spirals are points in 2D meshes")
    phase = np.arctan2(states[:, 1] - centre[1], states[:, 0] - centre[0])[mesh.cells]  # [K, 3]
    change = np.roll(phase, -1, axis=1) - phase
    turns = np.rint(((change + np.pi) % (2 * np.pi) - np.pi).sum(axis=1) / (2 * np.pi)).astype(int)
    a, b, c = mesh.points[mesh.cells].transpose(1, 0, 2)
    left = np.sign((b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0])
    return turns * left.astype(int)
