"""The files that a problem is made of: what must not be overwritten, and what data are imported from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

PROBLEM, PHYSICS, IMPORTED = "problem.toml", "physics.py", "imported.h5"


def problem_files(folder: Path) -> Iterator[Path]:
    """The problem file of a folder, physics.py, the imported data, and every file that the problem names."""
    yield from (folder / name for name in (PROBLEM, PHYSICS, IMPORTED) if (folder / name).is_file())
    try:
        table = tomllib.loads((folder / PROBLEM).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return  # said when it is read
    yield from named_files(table, folder)


def named_files(value: Any, folder: Path) -> Iterator[Path]:
    """The files that exist of all texts in a value of TOML, patterns included, each with what belongs to it."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from named_files(each, folder)
    if not isinstance(value, str) or not value:
        return
    try:
        for path in folder.glob(value) if any(c in value for c in "*?[") else [folder / value]:
            if path.is_file():
                yield path
                yield from (path.parent / name for name in parts_of(path) if (path.parent / name).is_file())
    except (OSError, ValueError, NotImplementedError):
        return  # no pattern, and no name that a file can have


def parts_of(path: Path) -> list[str]:
    """Names of the files that an XDMF or PVD file refers to."""
    if path.suffix.lower() not in (".xdmf", ".pvd"):
        return []
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError):
        return []
    found = [e.get("file", "") for e in root.iter("DataSet")]
    found += [i.text.strip().split(":")[0] for i in root.iter("DataItem") if i.get("Format") == "HDF" and i.text]
    return list(dict.fromkeys(filter(None, found)))
