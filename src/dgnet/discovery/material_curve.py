"""The learned curves of a material with their uncertainty, for people and other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.files import write_text
from dgnet.models.dgnet import DGNet, Material

_HIGH, _FLANK = 1.5, 0.002  # of the median: a hump of a capacity; of its height: what its flanks fall from point to point


@dataclass(frozen=True, eq=False)
class Found:
    """All [J]: value(u) of a curve, the standard deviation of its logarithm (NaN: never estimated), the share of training states.

    `hump`: where a capacity stands out, from u to u, and the heat that it takes up there beyond the line between both ends, with
    its standard deviation; None where there is none.
    """

    name: str
    u: np.ndarray
    value: np.ndarray
    deviation: np.ndarray
    share: np.ndarray
    hump: tuple[float, float, float, float] | None

    @property
    def sentence(self) -> str:
        """The curve in words."""
        text = f"{self.name}: {self.value[0]:.4g} at {self.u[0]:.4g}, {self.value[-1]:.4g} at {self.u[-1]:.4g}"
        seen = self.share > 0
        if not np.isnan(self.deviation).all() and seen.any():
            text += f", known to about ±{100 * float(np.median(self.deviation[seen])):.2g}%"
        if self.hump is not None:
            low, high, heat, deviation = self.hump
            text += f"; between {low:.4g} and {high:.4g} it takes up {heat:.4g} ± {deviation:.2g} more (latent heat)"
        vague = self.deviation > 0.5
        if vague.any():
            text += f"; {100 * vague.mean():.0f}% of its points are not determined by these data (more than ±50%)"
        return text


def found_curves(model: Any) -> list[Found]:
    """The learned curves of a model; empty where it has none."""
    material = model.part(Material) if isinstance(model, DGNet) else None
    out = []
    for name, curve in {} if material is None else material.curves().items():
        with torch.no_grad():
            at, value, covariance, share = (x.cpu().numpy() for x in (
                curve.at, curve.size * curve.values.exp(), curve.covariance, curve.density))
        hump = _hump(at, value, covariance) if name == "capacity" else None
        out.append(Found(name, at, value, np.sqrt(np.clip(np.diag(covariance), 0, None)), share, hump))
    return out


def _hump(at: np.ndarray, value: np.ndarray, covariance: np.ndarray) -> tuple[float, float, float, float] | None:
    """Where the curve stands out most, see `Found`; the trapezoidal rule is exact, since it is linear between its points."""
    top, usual = int(value.argmax()), float(np.median(value))
    if value[top] < _HIGH * usual:
        return None
    low, up, falls = top, top, _FLANK * (value[top] - usual)
    while low > 0 and value[low] - value[low - 1] > falls:
        low -= 1
    while up < len(at) - 1 and value[up] - value[up + 1] > falls:
        up += 1
    weight = np.zeros_like(value)
    for k in range(low, up):
        weight[[k, k + 1]] += 0.5 * (at[k + 1] - at[k])
    weight[[low, up]] -= 0.5 * (at[up] - at[low])
    slope = weight * value  # by the logarithms
    return float(at[low]), float(at[up]), float(weight @ value), float(np.sqrt(max(0.0, slope @ covariance @ slope)))


def write_curves(folder: Path, found: list[Found], field: str) -> None:
    """NAME.csv for each curve: u, value, one standard deviation below and above, the share of the training states nearest to it."""
    for one in found:
        rows = zip(one.u, one.value, one.value * np.exp(-one.deviation), one.value * np.exp(one.deviation), one.share)
        head = f"{field},{one.name},one deviation below,one deviation above,share of training states"
        text = "\n".join([head, *(",".join("" if np.isnan(v) else f"{v:.9g}" for v in row) for row in rows)])
        write_text(folder / f"{one.name}.csv", text + "\n")
