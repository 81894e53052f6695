"""The learned reaction of one field as a curve with its band, for pictures and other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.files import write_text
from dgnet.models.dgnet import DGNet, Reaction
from dgnet.problems.units import FIELD, Dimension, Units

FILE = "reaction.csv"
_RATE: tuple[Dimension, Dimension] = ((1, 0, -1, 0, 0), (0, -3, -1, 1, 0))  # of r: without a capacity, and with one


@dataclass(frozen=True, eq=False)
class Curve:
    """All [J]: r(u) at the places of the table, its standard deviation (NaN: never estimated), the share of the training states."""

    u: np.ndarray
    r: np.ndarray
    deviation: np.ndarray
    share: np.ndarray


def curve_of(model: Any) -> Curve | None:
    """None where the model has no learned reaction, or one that is a network."""
    reaction = model.part(Reaction) if isinstance(model, DGNet) else None
    table = None if reaction is None else reaction.table
    if table is None:
        return None
    with torch.no_grad():
        middle = torch.zeros_like(model.mean) if model.config.odd_reaction else model.mean
        u = table.where() * model.std.double() + middle.double()
        r = model.learned_reaction()(u.to(model.mean.dtype)[:, None])[:, 0]
    arrays = (x.double().cpu().numpy() for x in (u, r, table.deviation, table.density))
    return Curve(*arrays)


def labels(field: str, units: Units, weighted: bool) -> tuple[str, str]:
    """What stands at the axes: the field and r, with their units where they are known. `weighted`: the equation counts energy."""
    names = (field, units.name(FIELD, field)), ("r", units.name(_RATE[weighted], field))
    first, second = (f"{name} [{unit}]" if unit else name for name, unit in names)
    return first, second


def write_curve(path: Path, curve: Curve, axes: tuple[str, str]) -> None:
    """A line for each place: u, r, one standard deviation of r, the share of the training states nearest to it."""
    head = ",".join(f'"{name}"' if "," in name else name for name in (
        *axes, axes[1].replace("r", "standard deviation of r", 1), "share of training states"))
    rows = zip(curve.u, curve.r, curve.deviation, curve.share)
    write_text(path, "\n".join([head, *(",".join("" if np.isnan(v) else f"{v:.9g}" for v in row) for row in rows)]) + "\n")
