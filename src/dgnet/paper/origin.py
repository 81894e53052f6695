"""Where the figures of a cell come from: code, hardware, and how its training went.

Early cells did not record all of it. What they lack is unknown here: nothing is filled in.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dgnet.paper.blocks import Block, Text

Record = Mapping[str, Any]

PACKAGE = Path(__file__).parents[1]
DECISIVE = ("recipe.py", "mesh", "operators", "problems", "green", "data", "reference", "models", "scenarios", "scoring",
            "training")
"""What decides the result of a cell."""
_LATE, _BETTER, _ENOUGH = 0.2, 0.98, 5  # last part of a training; factor on the error that is progress; validations that can tell


@cache
def code_version() -> str:
    """Checksum of the code that decides a result; comments, docstrings and layout do not count."""
    total = hashlib.sha256()
    for name in DECISIVE:
        place = PACKAGE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            total.update(path.relative_to(PACKAGE).as_posix().encode() + _meaning(path.read_text(encoding="utf-8")).encode())
    return total.hexdigest()[:12]


def _meaning(source: str) -> str:
    """The code without comments, docstrings and other sentences that stand alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]  # type: ignore[attr-defined]
    return _dump(tree)


def _dump(node: Any) -> str:
    """A syntax tree as text, alike under every version of Python: as `ast.dump` writes it in 3.12."""
    if isinstance(node, list):
        return f"[{', '.join(map(_dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parameters = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))  # of types: 3.11 knows none
    values = dict(ast.iter_fields(node)) | ({"type_params": []} if parameters else {})
    kept = [f"{name}={_dump(value)}" for name, value in values.items()
            if value is not None or getattr(type(node), name, ...) is not None]
    return f"{type(node).__name__}({', '.join(kept)})"


@cache
def commit() -> str | None:
    """The commit of a checkout of the project that this code runs from; None where it is installed or copied."""
    root = PACKAGE.parents[1]
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True,
                              timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


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
