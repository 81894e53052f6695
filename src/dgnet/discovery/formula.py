"""The learned reaction of several fields as a formula with its standard deviations, for people and other programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dgnet.discovery.material_curve import found_curves
from dgnet.files import write_text
from dgnet.models.dgnet import DGNet, Reaction


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
    found = []
    for f, field in enumerate(library.fields):
        own = [Summand(field, term, float(value[p, f]), float(deviation[p, f]), abs(float(top[p, f])))
               for p, term in enumerate(library.names) if float(value[p, f])]
        found += sorted(own, key=lambda s: -s.size)
    return found


def formulas(found: list[Summand]) -> list[str]:
    """One line for each field, such as r_u = (9.641 ± 0.014) u − (9.642 ± 0.045) v."""
    lines = []
    for field in dict.fromkeys(s.field for s in found):
        text = ""
        for s in (s for s in found if s.field == field):
            sign = "− " if s.coefficient < 0 else "+ " if text else ""
            text += f" {sign}{_number(s)}{'' if s.term == '1' else f' {s.term}'}"
        lines.append(f"r_{field} ={text}")
    return lines


def sentences(model: Any) -> list[str]:
    """What a model found about the physics, in words: formulas of its reaction, the curves of its material."""
    return formulas(summands(model)) + [curve.sentence for curve in found_curves(model)]


def _number(s: Summand) -> str:
    """With as many digits as its deviation allows: two of it."""
    value = abs(s.coefficient)
    if not math.isfinite(s.deviation) or s.deviation <= 0:
        return f"{value:.5g}"
    digits = min(12, max(0, 1 - math.floor(math.log10(s.deviation))))
    if digits > 8 or value >= 1e6:
        return f"({value:.5g} ± {s.deviation:.2g})"
    return f"({value:.{digits}f} ± {s.deviation:.{digits}f})"


def write_formula(path: Path, found: list[Summand]) -> None:
    """A line for each summand."""
    head = "field,term,coefficient,standard deviation,largest size in the training data"
    rows = (f'{s.field},"{s.term}",{s.coefficient:.9g},{"" if math.isnan(s.deviation) else f"{s.deviation:.3g}"},{s.size:.5g}'
            for s in found)
    write_text(path, "\n".join([head, *rows]) + "\n")
