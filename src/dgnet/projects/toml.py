"""problem.toml -> frozen dataclasses. Nothing is built here; values, functions and files are only named.

Every error is one sentence with the file and the key; an unknown key fails with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgnet.arguments import Count, NotNegative, Positive, Whole
from dgnet.errors import InputError
from dgnet.files import read_dataclass, read_toml
from dgnet.problems.units import FIELD, TIME, Units
from dgnet.projects.equation import BoundarySpec, PDESpec, read_condition, read_pde
from dgnet.projects.shapes import MeshSpec, read_mesh
from dgnet.projects.table import Table

FILE = "problem.toml"
SPLITS = ("train", "test")


@dataclass(frozen=True)
class SourceSpec:
    """Where a trajectory's source comes from: samples in its file, a function, or a table of moving spots."""

    kind: str = "file"  # file | none | function | spots
    function: str = ""
    table: str = ""
    field: str = ""


@dataclass(frozen=True)
class SeriesSpec:
    """One entry of [[data]]: a file, or a pattern that stands for several."""

    file: str
    split: str = ""  # empty: as the file says, else train
    source: SourceSpec = field(default_factory=SourceSpec)
    sensors: str = ""  # positions, for tables of sensor values that name the sensor only
    begin: float | None = None  # stored time that becomes t = 0
    resample: bool = False  # interpolate linearly between the stored times


@dataclass(frozen=True)
class Training:
    """Changes of the recipe; zero or empty: the recipe's own value."""

    minutes: Positive = 5.0
    windows: tuple[Count, ...] = ()  # lengths of the stages' windows
    iterations: tuple[Count, ...] = ()
    learning_rate: NotNegative = 0.0
    batch: Whole = 0
    hold_out: Whole = 0  # training trajectories kept for validation
    noise: NotNegative = 0.0


@dataclass(frozen=True)
class ProblemFile:
    path: Path
    name: str
    title: str
    fields: tuple[str, ...]
    units: Units
    offset: tuple[float, ...]
    dt: float
    mesh: MeshSpec
    pde: PDESpec
    boundaries: tuple[BoundarySpec, ...]
    data: tuple[SeriesSpec, ...]
    model: Mapping[str, Any]
    training: Training

    @property
    def folder(self) -> Path:
        return self.path.parent


# ---------------------------------------------------------------------- the file


def read(folder: Path, name: str = "") -> ProblemFile:
    """The problem file of a folder; a problem without a name gets `name`, or the folder's name."""
    path = folder / FILE
    if not path.parent.is_dir() or not (path.exists() or path.is_symlink()):
        if folder.is_file():
            raise InputError(f"{folder} is a file, not a folder with {FILE}; if it is a mesh, `dgnet new my-part --mesh {folder}` "
                             "makes such a folder around it")
        raise InputError(f"there is no {path}; `dgnet new {folder}` writes an example")
    return parse(read_toml(path), path, name)


def parse(values: Mapping[str, Any], path: Path, name: str = "") -> ProblemFile:
    top = Table(values, path)
    head = top.table("problem", required=True)
    fields = head.texts("fields")
    if not fields or len(set(fields)) != len(fields):
        raise InputError(f"{head.where('fields')} must be distinct names, got {list(fields)}")
    units = _units(top.table("units"), fields)
    dt = head.number("dt", None, TIME, units, positive=True)
    name = head.text("name", name or path.parent.resolve().name or "own")
    if any(c in name for c in "/\\\n\"'"):
        raise head.wrong("name", "a plain name")
    title, offset = head.text("title", name), _offset(head, fields, units)
    head.close()
    mesh, pde = read_mesh(top.table("mesh", required=True), units), read_pde(top.table("pde", required=True), fields, units)
    boundaries = tuple(read_condition(t, fields, units, pde.heat) for t in top.tables("boundary"))
    data = tuple(_series(t, fields, units) for t in top.tables("data"))
    model = top.table("model")
    training = read_dataclass(Training, top.table("training").values, f"{path}: training")
    top.close()
    return ProblemFile(path, name, title, fields, units, offset, dt, mesh, pde, boundaries, data, model.values, training)


def _units(t: Table, fields: Sequence[str]) -> Units:
    length, time = t.text("length", ""), t.text("time", "")
    own = {f: t.text(f) for f in fields if t.has(f)}
    t.close()
    try:
        return Units(length, time, own)
    except InputError as error:
        raise InputError(f"{t.path}: units: {error}") from error


def _offset(t: Table, fields: Sequence[str], units: Units) -> tuple[float, ...]:
    """One number for all fields, or a table with one per field."""
    if not t.has("offset"):
        return (0.0,) * len(fields)
    if isinstance(t.values["offset"], dict):
        inner = t.table("offset")
        found = tuple(inner.number(f, 0.0, FIELD, units, f) for f in fields)
        inner.close()
        return found
    return tuple(t.number("offset", None, FIELD, units, f) for f in fields)


def _series(t: Table, fields: Sequence[str], units: Units) -> SeriesSpec:
    source = SourceSpec()
    if t.has("source"):
        value = t.values["source"]
        if isinstance(value, dict):
            source = _source(t.table("source"), fields)
        else:
            text = t.text("source")
            source = SourceSpec(text) if text in ("file", "none") else SourceSpec("spots", table=text)
    begin = t.number("begin", None, TIME, units) if t.has("begin") else None
    spec = SeriesSpec(t.text("file"), t.text("split", "", SPLITS), source, t.text("sensors", ""), begin, t.flag("resample"))
    t.close()
    return spec


def _source(t: Table, fields: Sequence[str]) -> SourceSpec:
    named = [key for key in ("function", "spots") if t.has(key)]
    if len(named) != 1:
        raise InputError(f"{t.path}: {t.place} needs one of function and spots")
    spec = SourceSpec(named[0], t.text("function", ""), t.text("spots", ""), t.text("field", "") if t.has("field") else "")
    t.close()
    if spec.field and spec.field not in fields:
        raise InputError(f"{t.where('field')} is '{spec.field}', but the fields are {list(fields)}")
    return spec
