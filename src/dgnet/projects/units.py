"""Numbers with units: `"14 mm2/s"` becomes 1.4e-5 where a problem counts in metres and seconds.

Lengths and times are converted to the problem's own; the unit of a field (K, mol/L, anything) is a name that must match.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from dgnet.errors import InputError

LENGTHS = {"m": 1.0, "km": 1e3, "dm": 1e-1, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "nm": 1e-9, "in": 0.0254, "ft": 0.3048}
TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}

Dimension = tuple[int, int, int]
"""Powers of field, length and time."""

PURE: Dimension = (0, 0, 0)
TIME: Dimension = (0, 0, 1)
LENGTH: Dimension = (0, 1, 0)
FIELD: Dimension = (1, 0, 0)
RATE: Dimension = (0, 0, -1)
SPEED: Dimension = (0, 1, -1)
DIFFUSIVITY: Dimension = (0, 2, -1)
FLUX: Dimension = (1, 1, -1)

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$", re.DOTALL)
_FACTOR = re.compile(r"([A-Za-zµ°%]+)\^?([+-]?\d+)?$")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


@dataclass(frozen=True)
class Units:
    """What a problem counts in. Empty names mean: nothing is said, so nothing is converted."""

    length: str = ""
    time: str = ""
    fields: dict[str, str] = field(default_factory=dict)  # name of a field -> its unit

    def __post_init__(self) -> None:
        for name, known, what in ((self.length, LENGTHS, "length"), (self.time, TIMES, "time")):
            if name and name not in known:
                raise InputError(f"unknown unit of {what} '{name}' (known: {', '.join(known)})")

    def name(self, dimension: Dimension, of: str = "") -> str:
        """The unit of a quantity in this problem, as a person writes it; empty where nothing was declared."""
        bases = (self.fields.get(of, ""), self.length, self.time)
        if any(power and not base for base, power in zip(bases, dimension)):
            return ""
        top = [base + (str(power) if power > 1 else "") for base, power in zip(bases, dimension) if power > 0]
        low = [base + (str(-power) if power < -1 else "") for base, power in zip(bases, dimension) if power < 0]
        return ("·".join(top) or "1") + "".join("/" + unit for unit in low) if top or low else ""

    def convert(self, text: str, dimension: Dimension, of: str = "") -> float:
        """A number with a unit in the problem's own units; raises ValueError with the reason."""
        found = _NUMBER.match(text)
        if not found:
            raise ValueError(f"'{text}' is not a number with a unit")
        value, unit = float(found[1]), found[2].translate(_RAISED)
        powers, factor = [0, 0, 0], 1.0
        for k, part in enumerate(unit.split("/")):
            for token in re.split(r"[\s*·()]+", part):
                if token in ("", "1"):
                    continue
                sign, (axis, scale, power) = (-1 if k else 1), self._factor(token, of)
                powers[axis] += sign * power
                factor *= scale ** (sign * power)
        if tuple(powers) != dimension:
            wanted = _written(dimension)
            raise ValueError(f"'{text}' has the wrong unit: expected {wanted}")
        result = value * factor
        if not math.isfinite(result):
            raise ValueError(f"'{text}' is not a finite number")
        return result

    def _factor(self, token: str, of: str) -> tuple[int, float, int]:
        own = self.fields.get(of, "")
        if own and token == own:
            return 0, 1.0, 1
        found = _FACTOR.match(token)
        if not found:
            raise ValueError(f"'{token}' is not a unit")
        name, power = found[1], int(found[2] or 1)
        if abs(power) > 9:
            raise ValueError(f"'{token}' is not a unit")
        if own and name == own:
            return 0, 1.0, power
        for axis, known, base in ((1, LENGTHS, self.length), (2, TIMES, self.time)):
            if name in known:
                if not base:
                    raise ValueError(f"'{name}' needs units.{'length' if axis == 1 else 'time'}, what the problem counts in")
                return axis, known[name] / known[base], power
        raise ValueError(f"'{name}' is not a unit of length or time" + (f" and not that of {of} ({own})" if own else ""))


def _written(dimension: Dimension) -> str:
    names = ("field", "length", "time")
    parts = [name + (f"^{power}" if power != 1 else "") for name, power in zip(names, dimension) if power]
    return " ".join(parts) or "a plain number"
