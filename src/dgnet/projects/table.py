"""A table of a TOML file that knows what it was asked, so that every error names the file and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.problems.units import PURE, Dimension, Units


class Table:
    """A TOML table with its place in the file. A key that is never read is unknown."""

    def __init__(self, values: Mapping[str, Any], path: Path, place: str = "") -> None:
        self.values, self.path, self.place = dict(values), path, place
        self.asked: list[str] = []

    def where(self, key: str) -> str:
        return f"{self.path}: {self.place + '.' if self.place else ''}{key}"

    def wrong(self, key: str, expected: str) -> InputError:
        return InputError(f"{self.where(key)} must be {expected}, got {_short(self.values[key])}")

    def has(self, key: str) -> bool:
        self.asked.append(key)
        return key in self.values

    def need(self, key: str) -> Any:
        if not self.has(key):
            near = get_close_matches(key, [k for k in self.values if k not in self.asked], 1)
            raise InputError(f"{self.where(key)} is missing" + (f"; is '{near[0]}' meant to be it?" if near else ""))
        return self.values[key]

    def text(self, key: str, default: str | None = None, choices: Sequence[str] = ()) -> str:
        if default is not None and not self.has(key):
            return default
        value = self.need(key)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, "a text that is not empty")
        if choices and value not in choices:
            raise InputError(f"{self.where(key)} is '{value}', which is not known" + did_you_mean(value, choices))
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        if not self.has(key):
            return default
        if not isinstance(self.values[key], bool):
            raise self.wrong(key, "true or false")
        return self.values[key]

    def count(self, key: str, default: int) -> int:
        if not self.has(key):
            return default
        value = self.values[key]
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, "a positive whole number")
        return value

    def number(self, key: str, default: float | None = None, dimension: Dimension = PURE, units: Units | None = None,
               of: str = "", positive: bool = False) -> float:
        if default is not None and not self.has(key):
            return default
        value = self.quantity(self.need(key), key, dimension, units, of)
        if positive and value <= 0:
            raise self.wrong(key, "positive")
        return value

    def numbers(self, key: str, sizes: Sequence[int], dimension: Dimension = PURE, units: Units | None = None, of: str = "",
                default: tuple[float, ...] | None = None, positive: bool = False) -> tuple[float, ...]:
        """A list of as many numbers as one of `sizes`."""
        if default is not None and not self.has(key):
            return default
        value = self.need(key)
        expected = f"{' or '.join(map(str, sizes))} {'positive ' if positive else ''}numbers"
        if not isinstance(value, list) or len(value) not in sizes:
            raise self.wrong(key, expected)
        found = tuple(self.quantity(v, key, dimension, units, of) for v in value)
        if positive and min(found) <= 0:
            raise self.wrong(key, expected)
        return found

    def span(self, key: str, dimension: Dimension, units: Units | None, of: str = "", single: bool = True) -> tuple[float, float]:
        """[lowest, highest]; with `single` also one number, which is both."""
        value = self.need(key)
        if single and not isinstance(value, list):
            return (self.quantity(value, key, dimension, units, of),) * 2
        if not isinstance(value, list) or len(value) != 2:
            raise self.wrong(key, "one number or [lowest, highest]" if single else "[lowest, highest]")
        low, high = self.numbers(key, (2,), dimension, units, of)
        if low > high or (low == high and not single):
            raise self.wrong(key, "[lowest, highest] in this order")
        return low, high

    def quantity(self, value: Any, key: str, dimension: Dimension, units: Units | None, of: str = "") -> float:
        if isinstance(value, str) and units is not None:
            try:
                return units.convert(value, dimension, of)
            except ValueError as error:
                raise InputError(f"{self.where(key)}: {error}") from error
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise InputError(f"{self.where(key)} must be a finite number, got {_short(value)}")
        return float(value)

    def texts(self, key: str, default: tuple[str, ...] | None = None, choices: Sequence[str] = ()) -> tuple[str, ...]:
        if default is not None and not self.has(key):
            return default
        value = self.need(key)
        if not isinstance(value, list) or any(not isinstance(v, str) or not v.strip() for v in value):
            raise self.wrong(key, "a list of texts")
        for v in value:
            if choices and v not in choices:
                raise InputError(f"{self.where(key)} names '{v}', which is not known (known: {', '.join(choices)})")
        return tuple(value)

    def table(self, key: str, required: bool = False) -> Table:
        if required:
            self.need(key)
        value = self.values[key] if self.has(key) else {}
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return Table(value, self.path, f"{self.place}.{key}" if self.place else key)

    def tables(self, key: str) -> list[Table]:
        value = self.values[key] if self.has(key) else []
        if not isinstance(value, list) or any(not isinstance(v, dict) for v in value):
            raise self.wrong(key, f"a list of tables ([[{key}]])")
        return [Table(v, self.path, f"{key}[{k}]") for k, v in enumerate(value, start=1)]

    def close(self, what: str = "a known key") -> None:
        for key in self.values:
            if key not in self.asked:
                raise InputError(f"{self.where(key)} is not {what}" + did_you_mean(key, self.asked))


def _short(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) < 60 else text[:57] + "..."


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
