"""Where the figures of a cell come from: code, hardware, and how its training went.

Early cells did not record all of it. What they lack is unknown here: nothing is filled in.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dgnet import __version__
from dgnet_paper.study.blocks import Block, Text

Record = Mapping[str, Any]

HERE = Path(__file__)
_LATE, _BETTER, _ENOUGH = 0.2, 0.98, 5  # last part of a training; factor on the error that is progress; validations that can tell


@cache
def code_version() -> str:
    """The last commit that changed code, of a checkout of the project; the version of dgnet where it is installed or copied."""
    root = next((folder for folder in HERE.parents if (folder / ".git").exists()), None)
    try:
        done = subprocess.run(["git", "-C", str(root), "log", "-1", "--format=%H", "--", "src/dgnet", "paper/dgnet_paper"],
                              capture_output=True, text=True, timeout=10) if root is not None else None
    except (OSError, subprocess.SubprocessError):
        done = None
    return done.stdout.strip()[:12] if done is not None and done.returncode == 0 and done.stdout.strip() else __version__


# ---------------------------------------------------------------------- one cell


def learned(record: Record) -> bool:
    """Validation fell below that of the untrained weights. Cells that train nothing count as learned."""
    return record.get("best_iteration") != 0


def improving(history: Sequence[Mapping[str, float | None]]) -> bool | None:
    """The last fifth of the time still lowered the best validation error by 2%; None with fewer than five validations."""
    rows = [(row["seconds"], row["validation"]) for row in history if row["validation"] is not None and row["seconds"] is not None]
    if len(rows) < _ENOUGH + 1:
        return None
    late = rows[-1][0] - _LATE * (rows[-1][0] - rows[0][0])  # type: ignore[operator]
    before = min(value for seconds, value in rows if seconds <= late)  # type: ignore[operator, type-var]
    return min(value for _, value in rows) < _BETTER * before  # type: ignore[operator, type-var]


def trained_on(record: Record) -> str:
    """Trajectories that gave gradients, of those that the model was given."""
    given = record.get("training_trajectories")
    held = record.get("recipe", {}).get("hold_out")
    if given is None or held is None:
        return "unknown"
    used = given if given < 2 else given - min(held, given - 1)
    return f"{used} of {given}"


# ---------------------------------------------------------------------- several cells in one table


@dataclass(frozen=True, order=True)
class Origin:
    """Hardware and code of a cell; `code` is empty where the cell does not say."""

    hardware: str
    version: str
    code: str

    @classmethod
    def of(cls, record: Record) -> Origin:
        return cls(record.get("hardware", "hardware not recorded"), record.get("version", ""), record.get("code", ""))

    def __str__(self) -> str:
        return f"{self.hardware}, dgnet {self.version or 'of an unknown version'}, code {self.code or 'not recorded'}"


class Marks:
    """Letters for the origins of a table's figures; the most common one needs none."""

    def __init__(self, records: Iterable[Record]) -> None:
        found = Counter(Origin.of(r) for r in records)
        ordered = sorted(found, key=lambda origin: (-found[origin], origin))
        self.letters = {origin: "" if k == 0 else _letter(k - 1) for k, origin in enumerate(ordered)}

    def of(self, records: Iterable[Record]) -> str:
        """[a], or nothing for the common origin."""
        letters = sorted({self.letters.get(Origin.of(r), "?") for r in records} - {""})
        return f"[{', '.join(letters)}]" if letters else ""

    def legend(self) -> list[Block]:
        """What the letters mean; nothing for a table without figures."""
        if not self.letters:
            return []
        common, *others = self.letters
        return [Text(f"Computed on {common}" + "".join(f"; [{self.letters[origin]}] on {origin}" for origin in others) + ".")]


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else str(number)
