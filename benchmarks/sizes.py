"""Sizes of the code: files, lines and statements of every folder. `python benchmarks/sizes.py`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"library": "src/dgnet", "paper": "paper/dgnet_paper", "benchmarks": "benchmarks", "tests": "tests", "tests of the paper": "paper/tests"}


def size(folder: Path, deep: bool = True) -> tuple[int, int, int]:
    """Files, lines and statements (nodes `ast.stmt`; a docstring counts as one) of the Python files in a folder."""
    texts = [path.read_text() for path in (folder.rglob if deep else folder.glob)("*.py")]
    return len(texts), sum(t.count("\n") for t in texts), sum(isinstance(n, ast.stmt) for t in texts for n in ast.walk(ast.parse(t)))


def row(name: str, place: Path, deep: bool = True) -> str:
    files, lines, statements = size(place, deep)
    return f"{name:34s} {files:5d} files {lines:7d} lines {statements:7d} statements"


def main() -> None:
    for name, place in FOLDERS.items():
        print(row(name, ROOT / place))
        if place.startswith(("src", "paper/dg")):
            for folder in sorted(p for p in (ROOT / place).iterdir() if p.is_dir() and any(p.rglob("*.py"))):
                print(row(f"    {folder.name}", folder))
            print(row("    (top)", ROOT / place, deep=False))


if __name__ == "__main__":
    main()
