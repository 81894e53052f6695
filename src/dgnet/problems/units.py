"""Numbers with units: `"14 mm2/s"` becomes 1.4e-5 where a problem counts in metres and seconds.

Lengths and times are converted to the problem's own; the unit of a field (K, mol/L, anything) is a name that must match.
Energies count in J and masses in kg, so a power per volume is W/m3 where the length is m, and J/mm3/s where it is mm.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from dgnet.errors import InputError

LENGTHS = {"m": 1.0, "km": 1e3, "dm": 1e-1, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "nm": 1e-9, "in": 0.0254, "ft": 0.3048}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}

ENERGIES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "mJ": 1e-3, "Wh": 3600.0, "kWh": 3.6e6}
POWERS = {"W": 1.0, "kW": 1e3, "MW": 1e6, "mW": 1e-3}
MASSES = {"kg": 1.0, "g": 1e-3, "mg": 1e-6, "t": 1e3}
_DEGREES = {"K", "°C", "degC", "C"}  # per degree they are the same

Dimension = tuple[int, int, int, int, int]
"""Powers of field, length, time, energy and mass."""

PURE: Dimension = (0, 0, 0, 0, 0)
TIME: Dimension = (0, 0, 1, 0, 0)
LENGTH: Dimension = (0, 1, 0, 0, 0)
FIELD: Dimension = (1, 0, 0, 0, 0)
RATE: Dimension = (0, 0, -1, 0, 0)
SPEED: Dimension = (0, 1, -1, 0, 0)
DIFFUSIVITY: Dimension = (0, 2, -1, 0, 0)
FLUX: Dimension = (1, 1, -1, 0, 0)
DENSITY: Dimension = (0, -3, 0, 0, 1)
SPECIFIC_HEAT: Dimension = (-1, 0, 0, 1, -1)
VOLUMETRIC_HEAT: Dimension = (-1, -3, 0, 1, 0)
LATENT_HEAT: Dimension = (0, 0, 0, 1, -1)
LATENT_VOLUME: Dimension = (0, -3, 0, 1, 0)
TERMS: dict[str, tuple[Dimension, Dimension]] = {
    "diffusion": (DIFFUSIVITY, (-1, -1, -1, 1, 0)), "decay": (RATE, (-1, -3, -1, 1, 0)), "flux": (FLUX, (0, -2, -1, 1, 0)),
    "convection": (SPEED, (-1, -2, -1, 1, 0))}
"""Dimensions of the terms of the equation and its conditions: without a capacity, and with one (then it counts energy)."""

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$", re.DOTALL)
_FACTOR = re.compile(r"([A-Za-zµ°%]+)\^?([+-]?\d+)?$")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


@dataclass(frozen=True)
class Units:
    """Units that a problem counts in. Empty names mean: nothing is said, so nothing is converted."""

    length: str = ""
    time: str = ""
    fields: dict[str, str] = field(default_factory=dict)  # name of a field -> its unit

    def __post_init__(self) -> None:
        for name, known, what in ((self.length, LENGTHS, "length"), (self.time, TIMES, "time")):
            if name and name not in known:
                raise InputError(f"unknown unit of {what} '{name}' (known: {', '.join(known)})")

    def name(self, dimension: Dimension, of: str = "") -> str:
        """The unit of a quantity in this problem, as a person writes it; empty where nothing was declared."""
        bases = [self.fields.get(of, ""), self.length, self.time, "J", "kg"]
        if any(power and not base for base, power in zip(bases, dimension)):
            return ""
        if self.time == "s" and dimension[2:4] == (-1, 1):
            bases[3], dimension = "W", (*dimension[:2], 0, *dimension[3:])
        top = [base + (str(power) if power > 1 else "") for base, power in zip(bases, dimension) if power > 0]
        low = [base + (str(-power) if power < -1 else "") for base, power in zip(bases, dimension) if power < 0]
        return ("·".join(top) or "1") + "".join("/" + unit for unit in low) if top or low else ""

    def in_time(self, value: float) -> str:
        """A time as a person writes it: 0.25 s, or the number alone where no unit was declared."""
        return f"{value:g} {self.time}".rstrip()

    def convert(self, text: str, dimension: Dimension, of: str = "") -> float:
        """A number with a unit in the problem's own units; raises ValueError with the reason."""
        found = _NUMBER.match(text)
        if not found:
            raise ValueError(f"'{text}' is not a number with a unit")
        value, unit = float(found[1]), found[2].translate(_RAISED)
        powers, factor = [0] * len(dimension), 1.0
        for k, part in enumerate(unit.split("/")):
            for token in re.split(r"[\s*·()]+", part):
                if token in ("", "1"):
                    continue
                sign, (axes, scale, power) = (-1 if k else 1), self._factor(token, of, bool(k))
                for axis, each in axes.items():
                    powers[axis] += sign * power * each
                factor *= scale ** (sign * power)
        if tuple(powers) != dimension:
            wanted = _written(dimension)
            raise ValueError(f"'{text}' has the wrong unit: expected {wanted}")
        result = value * factor
        if not math.isfinite(result):
            raise ValueError(f"'{text}' is not a finite number")
        return result

    def _factor(self, token: str, of: str, below: bool) -> tuple[dict[int, int], float, int]:
        """Axes with their powers, scale and exponent of one unit; `below` a stroke, degrees of temperature are all the same."""
        own = self.fields.get(of, "")
        if own and (token == own or (below and {token, own} <= _DEGREES)):
            return {0: 1}, 1.0, 1
        found = _FACTOR.match(token)
        if not found:
            raise ValueError(f"'{token}' is not a unit")
        name, power = found[1], int(found[2] or 1)
        if abs(power) > 9:
            raise ValueError(f"'{token}' is not a unit")
        if own and (name == own or (below and {name, own} <= _DEGREES)):
            return {0: 1}, 1.0, power
        if name in ENERGIES:
            return {3: 1}, ENERGIES[name], power
        if name in MASSES:
            return {4: 1}, MASSES[name], power
        if name in POWERS:
            if not self.time:
                raise ValueError(f"'{name}' needs units.time, what the problem counts in")
            return {3: 1, 2: -1}, POWERS[name] * TIMES[self.time], power
        for axis, known, base in ((1, LENGTHS, self.length), (2, TIMES, self.time)):
            if name in known:
                if not base:
                    raise ValueError(f"'{name}' needs units.{'length' if axis == 1 else 'time'}, what the problem counts in")
                return {axis: 1}, known[name] / known[base], power
        other = f" and not that of {of} ({own})" if own else ""
        raise ValueError(f"'{name}' is not a unit of length, time, energy or mass{other}")


def _written(dimension: Dimension) -> str:
    names = ("field", "length", "time", "energy", "mass")
    parts = [name + (f"^{power}" if power != 1 else "") for name, power in zip(names, dimension) if power]
    return " ".join(parts) or "a plain number"
