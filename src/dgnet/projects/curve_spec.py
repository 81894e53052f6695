"""Curves and latent heat as a problem file gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgnet.errors import InputError
from dgnet.problems.units import FIELD, LATENT_HEAT, LATENT_VOLUME, Dimension, Units
from dgnet.projects.table import Table


@dataclass(frozen=True)
class CurveSpec:
    """A coefficient as a function of the field: a table in a .csv file, or a function of physics.py between two values."""

    of: str  # the field
    dimension: Dimension
    file: str = ""
    function: str = ""
    limits: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Melting:
    """A latent heat, per mass or volume as the capacity is, and where it is taken up: at one value of the field or between two."""

    heat: float
    low: float
    high: float | None = None


def melting_of(t: Table, capacity: Sequence[str], of: str, units: Units) -> dict[str, Melting]:
    """`latent_heat` and `melting`, for all cells ("") or per region; `capacity`: the keys that the capacity was given by."""
    if not t.has("latent_heat") and not t.has("melting"):
        return {}
    heat, at = t.need("latent_heat"), t.need("melting")
    if not capacity:
        raise InputError(f"{t.where('latent_heat')} needs density and capacity, or volumetric_capacity")
    dimension = LATENT_HEAT if "capacity" in capacity else LATENT_VOLUME
    if not isinstance(heat, dict) and not isinstance(at, dict):
        return {"": _melt(t, dimension, of, units)}
    heats, places = t.table("latent_heat"), t.table("melting")
    for key in [*heats.values, *places.values]:
        heats.need(key)
        places.need(key)
    rows = {key: {"latent_heat": heats.values[key], "melting": places.values[key]} for key in heats.values}
    return {key: _melt(Table(row, t.path, f"{t.place}[{key}]"), dimension, of, units) for key, row in rows.items()}


def _melt(t: Table, dimension: Dimension, of: str, units: Units) -> Melting:
    heat, at = "latent_heat", "melting"
    value = t.values[at]
    ends = value if isinstance(value, list) else [value]
    if len(ends) not in (1, 2):
        raise t.wrong(at, "one value, or [begin, end]")
    low, *high = (t.quantity(v, at, FIELD, units, of) for v in ends)
    if high and not low < high[0]:
        raise t.wrong(at, "[begin, end] in this order")
    latent = t.quantity(t.values[heat], heat, dimension, units, of)
    if latent <= 0:
        raise t.wrong(heat, "positive")
    return Melting(latent, low, high[0] if high else None)


def curve_spec(t: Table, dimension: Dimension, units: Units, of: str) -> CurveSpec:
    function, limits = t.text("curve"), t.need("range")
    if not isinstance(limits, list) or len(limits) != 2:
        raise t.wrong("range", "[lowest, highest]")
    low, high = (t.quantity(v, "range", FIELD, units, of) for v in limits)
    if not low < high:
        raise t.wrong("range", "[lowest, highest] in this order")
    t.close()
    return CurveSpec(of, dimension, function=function, limits=(low, high))
