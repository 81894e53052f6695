"""Rows of readings as they come: from standard input, or from a CSV file that another program goes on writing."""

from __future__ import annotations

import csv
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgnet.errors import LARGEST, InputError
from dgnet.files import cause, plain
from dgnet.inverse import NOTHING, checked_header, kelvin_shift, shift_note

_PAUSE = 0.2  # seconds between two looks at a file


@dataclass(frozen=True, eq=False)
class Row:
    """One row of readings: its time, values [S] in the order of the sensors (not a number where there is none), what to say."""

    time: float
    values: np.ndarray
    said: str = ""


def rows(path: Path | None, sensors: Sequence[str], wait: float = 0.0, known: Sequence[str] = ()) -> Iterator[Row]:
    """Of a file, or of standard input (None): columns t and sensors by name; those of `known` may be there as well.

    At the end of a file it waits as many seconds for more; a row counts once its line has ended. What cannot be read is said in
    the row and does not end the stream; a header that is wrong does.
    """
    name = "standard input" if path is None else str(path)
    header: list[str] = []
    for number, line in enumerate(sys.stdin if path is None else _lines(path, wait), start=1):
        cells = next(csv.reader([line.lstrip("\ufeff")]), [])
        if not any(cell.strip() for cell in cells):
            continue
        if not header:
            header = checked_header(cells, [*sensors, *(other for other in known if other not in sensors)], name)
            continue
        yield _row(cells, header, sensors, f"line {number}")
    if not header:
        raise InputError(f"{name} has no header: a column t (the time), and one for each sensor")


def in_kelvin(stream: Iterable[Row], level: float) -> Iterator[Row]:
    """The same rows; where the first readings look like degrees Celsius of a start at `level` kelvin, 273.15 more."""
    shift = None
    for row in stream:
        told = row.said
        if shift is None and np.isfinite(row.values).any():
            shift = kelvin_shift(row.values, level)
            if shift:
                told = shift_note(row.values, shift)
        yield Row(row.time, row.values + (shift or 0.0), told)


def _row(cells: Sequence[str], header: Sequence[str], sensors: Sequence[str], where: str) -> Row:
    values = np.full(len(sensors), np.nan)
    if len(cells) != len(header):
        return Row(math.nan, values, f"{where} has {len(cells)} cells under {len(header)} columns: left out")
    found, bad = {}, []
    for column, cell in zip(header, cells):
        try:
            found[column] = math.nan if cell.strip().lower() in NOTHING else float(cell)
            if abs(found[column]) > LARGEST:
                raise ValueError
        except ValueError:
            found[column] = math.nan
            bad.append(f"'{cell.strip()}' under '{column}'")
    values[:] = [found.get(name, math.nan) for name in sensors]
    values[~np.isfinite(values)] = np.nan
    return Row(found["t"], values, f"{where}: {', '.join(bad)} is no number" if bad else "")


def _lines(path: Path, wait: float) -> Iterator[str]:
    """Lines of a file as they are finished; the last one without an end once waiting is over."""
    try:
        with plain(path).open(encoding="utf-8", errors="replace") as file:
            rest, since = "", time.monotonic()
            while True:
                text = file.read()
                if text:
                    *whole, rest = (rest + text).split("\n")
                    yield from whole
                    since = time.monotonic()
                elif path.stat().st_size < file.tell():
                    raise InputError(f"{path} became shorter while it was read")
                elif time.monotonic() - since >= wait:
                    break
                else:
                    time.sleep(min(_PAUSE, wait))
            if rest:
                yield rest
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {cause(error)}") from error
