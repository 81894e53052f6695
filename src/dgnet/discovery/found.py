"""What a DGNet found about the physics, as values, sentences and tables: a reaction, curves of the material.

    reaction.csv of one field: u, r(u), one standard deviation of r, share of the training states; of several: a line for each term
    capacity.csv, diffusion.csv   u, value, one standard deviation below and above, share of the training states

Calibrated coefficients are in `DGNet.coefficients`, their error bars in `calibrate.uncertainty`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.files import write_text
from dgnet.models.dgnet import DGNet, Material, Reaction
from dgnet.problems.case import Case
from dgnet.problems.units import FIELD, Dimension

REACTION = "reaction.csv"
_RATE: tuple[Dimension, Dimension] = ((1, 0, -1, 0, 0), (0, -3, -1, 1, 0))  # of r: without a capacity, and with one
_HIGH, _FLANK = 1.5, 0.002  # of the median: a hump of a capacity; of its height: what its flanks fall from point to point


# ---------------------------------------------------------------------- a reaction of one field


@dataclass(frozen=True, eq=False)
class ReactionCurve:
    """All [J]: r(u) at the places of the table, its standard deviation (NaN: never estimated), the share of the training states."""

    u: np.ndarray
    r: np.ndarray
    deviation: np.ndarray
    share: np.ndarray


def reaction_curve(model: Any) -> ReactionCurve | None:
    """None where the model has no learned reaction, or one that is a network."""
    reaction = model.part(Reaction) if isinstance(model, DGNet) else None
    table = None if reaction is None else reaction.table
    if table is None:
        return None
    with torch.no_grad():
        middle = torch.zeros_like(model.mean) if model.config.odd_reaction else model.mean
        u = table.where() * model.std.double() + middle.double()
        r = model.learned_reaction()(u.to(model.mean.dtype)[:, None])[:, 0]
    return ReactionCurve(*(x.double().cpu().numpy() for x in (u, r, table.deviation, table.density)))


def reaction_axes(case: Case) -> tuple[str, str]:
    """What stands at the axes of r(u): the field and r, with their units where they are known."""
    field, units = case.pde.fields[0], case.units
    names = (field, units.name(FIELD, field)), ("r", units.name(_RATE[case.pde.weighted], field))
    first, second = (f"{name} [{unit}]" if unit else name for name, unit in names)
    return first, second


# ---------------------------------------------------------------------- a reaction of several fields


@dataclass(frozen=True)
class Summand:
    """coefficient * term in the reaction of a field, with its standard deviation (NaN: never estimated), in the units of the data.

    `size`: of the summand at the training state where it is largest.
    """

    field: str
    term: str
    coefficient: float
    deviation: float
    size: float

    @property
    def number(self) -> str:
        """The coefficient without its sign, with as many digits as its deviation allows: two of it."""
        value = abs(self.coefficient)
        if not math.isfinite(self.deviation) or self.deviation <= 0:
            return f"{value:.5g}"
        digits = min(12, max(0, 1 - math.floor(math.log10(self.deviation))))
        if digits > 8 or value >= 1e6:
            return f"({value:.5g} ± {self.deviation:.2g})"
        return f"({value:.{digits}f} ± {self.deviation:.{digits}f})"


def summands(model: Any) -> list[Summand]:
    """Field by field, the largest first; empty where the model has no such reaction."""
    reaction = model.part(Reaction) if isinstance(model, DGNet) else None
    library = None if reaction is None else reaction.library
    if library is None:
        return []
    with torch.no_grad():
        scale = (model.rate * model.capacity).double()
        top = (library.values * library.active).double() * scale
        unit = scale / library.size.double()[:, None]
        value, deviation = top / library.size.double()[:, None], library.deviation.double() * unit
    rows = [Summand(field, term, float(value[p, f]), float(deviation[p, f]), abs(float(top[p, f])))
            for f, field in enumerate(library.fields) for p, term in enumerate(library.names) if float(value[p, f])]
    return sorted(rows, key=lambda s: (library.fields.index(s.field), -s.size))


def formulas(found: Sequence[Summand]) -> list[str]:
    """One line for each field, such as r_u = (9.641 ± 0.014) u − (9.642 ± 0.045) v."""
    lines = []
    for field in dict.fromkeys(s.field for s in found):
        text = ""
        for s in (s for s in found if s.field == field):
            sign = "− " if s.coefficient < 0 else "+ " if text else ""
            text += f" {sign}{s.number}{'' if s.term == '1' else f' {s.term}'}"
        lines.append(f"r_{field} ={text}")
    return lines


# ---------------------------------------------------------------------- curves of the material


@dataclass(frozen=True, eq=False)
class MaterialCurve:
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
        visited = self.share > 0
        if not np.isnan(self.deviation).all() and visited.any():
            text += f", known to about ±{100 * float(np.median(self.deviation[visited])):.2g}%"
        if self.hump is not None:
            low, high, heat, deviation = self.hump
            text += f"; between {low:.4g} and {high:.4g} it takes up {heat:.4g} ± {deviation:.2g} more (latent heat)"
        vague = self.deviation > 0.5
        if vague.any():
            text += f"; {100 * vague.mean():.0f}% of its points are not determined by these data (more than ±50%)"
        return text


def material_curves(model: Any) -> list[MaterialCurve]:
    """The learned curves of a model; empty where it has none."""
    material = model.part(Material) if isinstance(model, DGNet) else None
    out = []
    for name, curve in {} if material is None else material.curves().items():
        with torch.no_grad():
            at, value, covariance, share = (x.cpu().numpy() for x in (
                curve.at, curve.size * curve.values.exp(), curve.covariance, curve.density))
        hump = _hump(at, value, covariance) if name == "capacity" else None
        out.append(MaterialCurve(name, at, value, np.sqrt(np.clip(np.diag(covariance), 0, None)), share, hump))
    return out


def _hump(at: np.ndarray, value: np.ndarray, covariance: np.ndarray) -> tuple[float, float, float, float] | None:
    """Where the curve stands out most, see `MaterialCurve`; exact, since the curve is linear between points."""
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


# ---------------------------------------------------------------------- in words and as tables


def sentences(model: Any) -> list[str]:
    """What a model found about the physics, in words: formulas of its reaction, the curves of its material."""
    return formulas(summands(model)) + [curve.sentence for curve in material_curves(model)]


def write_found(folder: Path, model: Any, case: Case) -> list[str]:
    """The tables of what a model found, see the module; returns their names."""
    curve, terms, field, tables = reaction_curve(model), summands(model), case.pde.fields[0], dict[str, str]()
    head: tuple[str, ...]
    if curve is not None:
        u, r = reaction_axes(case)
        head = u, r, r.replace("r", "standard deviation of r", 1), "share of training states"
        tables[REACTION] = _csv(head, zip(curve.u, curve.r, curve.deviation, curve.share))
    if terms:
        head = "field", "term", "coefficient", "standard deviation", "largest size in the training data"
        tables[REACTION] = _csv(head, ((s.field, s.term, s.coefficient, s.deviation, s.size) for s in terms))
    for one in material_curves(model):
        head = field, one.name, "one deviation below", "one deviation above", "share of training states"
        tables[f"{one.name}.csv"] = _csv(head, zip(one.u, one.value, one.value * np.exp(-one.deviation),
                                                   one.value * np.exp(one.deviation), one.share))
    for name, text in tables.items():
        write_text(folder / name, text)
    return list(tables)


def _csv(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Text of a table; what is not a number is empty."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(head)
    table.writerows([v if isinstance(v, str) else "" if np.isnan(v) else f"{v:.9g}" for v in row] for row in rows)
    return text.getvalue()
