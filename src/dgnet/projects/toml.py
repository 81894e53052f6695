"""problem.toml -> frozen dataclasses. Nothing is built here; values, functions and files are only named.

Every error is one sentence with the file and the key; an unknown key fails with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import InputError
from dgnet.files import read_toml
from dgnet.problems.curves import ELSEWHERE as ELSEWHERE
from dgnet.problems.units import DENSITY, FIELD, LENGTH, PURE, SPECIFIC_HEAT, SPEED, TERMS, TIME, VOLUMETRIC_HEAT, Dimension, Units
from dgnet.projects.curve_spec import CurveSpec, Melting, curve_spec, melting_of
from dgnet.projects.table import Table

FILE = "problem.toml"
UNKNOWN = "unknown"
SPLITS = ("train", "test")
KINDS = ("dirichlet", "neumann", "robin", "periodic")


@dataclass(frozen=True)
class Function:
    """A function of physics.py."""

    name: str


@dataclass(frozen=True)
class ArrayFile:
    """Numbers in a .npy file."""

    path: str


@dataclass(frozen=True)
class TimeFile:
    """A boundary value over time in a .csv file."""

    path: str
    of: str  # the field
    dimension: Dimension


Tensor = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Fibres:
    """Diffusion along and across the fibres of each cell; `along` and `across` may differ from region to region.

    `times`: a curve of the field that multiplies both.
    """

    directions: tuple[float, ...] | Function | ArrayFile
    along: Term
    across: Term
    times: CurveSpec | None = None


Term = float | Tensor | Function | ArrayFile | Fibres | CurveSpec | Mapping[str, Any]
"""A coefficient: a number, a tensor, a function, an array, fibres, a curve, or one of these per field or region."""

Number = float | Function | TimeFile


@dataclass(frozen=True)
class Selection:
    """A part of the mesh: everything between limits along axes, or where a function of x is true."""

    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    function: str = ""


@dataclass(frozen=True)
class MeshSpec:
    """One of: a file, the name of a shipped mesh, or a shape with its measures."""

    file: str = ""
    shipped: str = ""
    shape: str = ""
    measures: Mapping[str, Any] = field(default_factory=dict)
    boundaries: Mapping[str, Selection] = field(default_factory=dict)
    regions: Mapping[str, Selection] = field(default_factory=dict)


@dataclass(frozen=True)
class PDESpec:
    diffusion: Term = 0.0
    velocity: str | tuple[float, ...] | Function | None = None  # "data": comes with every trajectory
    decay: Term = 0.0
    reaction: str | Function = "none"  # none | unknown | a function
    calibrate: tuple[str, ...] = ()
    per_region: bool = False
    capacity: Mapping[str, Term] = field(default_factory=dict)  # key -> term: their product is the capacity; empty: 1
    spread: str = "diffusion"  # the key that `diffusion` was given by
    melting: Mapping[str, Melting] = field(default_factory=dict)  # of each region; "" for all cells
    unknown: tuple[str, ...] = ()  # which of capacity and diffusion are curves to be found

    @property
    def unknowns(self) -> Unknowns:
        return Unknowns(self.reaction == UNKNOWN, self.unknown, self.calibrate, self.per_region)

    @property
    def heat(self) -> bool:
        """Whether the equation balances energy: a capacity is given."""
        return bool(self.capacity)


@dataclass(frozen=True)
class BoundarySpec:
    name: str
    kind: str
    field: str | None = None
    value: Number = 0.0  # dirichlet; the flux of neumann; the ambient of robin
    coefficient: Number = 0.0
    partner: str = ""


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

    minutes: float = 5.0
    windows: tuple[int, ...] = ()  # lengths of the stages' windows
    iterations: tuple[int, ...] = ()
    learning_rate: float = 0.0
    batch: int = 0
    hold_out: int = 0  # training trajectories kept for validation
    noise: float = 0.0


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
    mesh, pde = _mesh(top.table("mesh", required=True), units), _pde(top.table("pde", required=True), fields, units)
    boundaries = tuple(_boundary(t, fields, units, pde.heat) for t in top.tables("boundary"))
    data = tuple(_series(t, fields, units) for t in top.tables("data"))
    model = top.table("model")
    training = _training(top.table("training"))
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


def _mesh(t: Table, units: Units) -> MeshSpec:
    given = [key for key in ("file", "shipped", "shape") if t.has(key)]
    if len(given) != 1:
        raise InputError(f"{t.path}: mesh needs one of file, shape and shipped, got {' and '.join(given) or 'none of them'}")
    file, shipped, shape = t.text("file", ""), t.text("shipped", ""), t.text("shape", "")
    boundaries = _selections(t.table("boundaries"), units)
    regions = _selections(t.table("regions"), units)
    measures = {}
    if shape:  # which measures there are is the shape's own business
        measures = {key: _measure(t, key, units) for key in t.values if key not in ("shape", "boundaries", "regions")}
    else:
        t.close()
    return MeshSpec(file, shipped, shape, measures, boundaries, regions)


def _measure(t: Table, key: str, units: Units) -> Any:
    def of(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(of(v) for v in value)
        if isinstance(value, dict):
            return {k: of(v) for k, v in value.items()}
        return value if isinstance(value, bool) else t.quantity(value, key, LENGTH, units)

    return of(t.values[key])


def _selections(t: Table, units: Units) -> dict[str, Selection]:
    found = {}
    for name in t.values:
        inner = t.table(name)
        if inner.has("function"):
            found[name] = Selection(function=inner.text("function"))
        else:
            limits = {axis: _limits(inner, axis, units) for axis in ("x", "y", "z") if inner.has(axis)}
            if not limits and not inner.values:
                raise InputError(f"{t.where(name)} selects nothing: give x, y or z, or a function")
            found[name] = Selection(limits)
        inner.close()
    return found


def _limits(t: Table, axis: str, units: Units) -> tuple[float, float]:
    value = t.values[axis]
    if isinstance(value, list):
        if len(value) != 2:
            raise t.wrong(axis, "one number or [lower, upper]")
        low, high = (t.quantity(v, axis, LENGTH, units) for v in value)
        if low > high:
            raise t.wrong(axis, "[lower, upper] in this order")
        return low, high
    at = t.quantity(value, axis, LENGTH, units)
    return at, at


def _pde(t: Table, fields: Sequence[str], units: Units) -> PDESpec:
    capacity = _capacity(t, fields, units)
    spread = "conductivity" if t.has("conductivity") else "diffusion"
    if spread == "conductivity" and t.has("diffusion"):
        raise InputError(f"{t.where('conductivity')} and pde.diffusion are the same term: give one of them")
    if spread == "conductivity" and not capacity:
        raise InputError(f"{t.where('conductivity')} needs density and capacity, or volumetric_capacity; without them give "
                         "pde.diffusion, the conductivity over density times capacity")
    diffusion = _term(t, spread, TERMS["diffusion"][bool(capacity)], units, "cells", fields)
    decay = _term(t, "decay", TERMS["decay"][bool(capacity)], units, "nodes", fields)
    velocity: str | tuple[float, ...] | Function | None = None
    if t.has("velocity"):
        value = t.values["velocity"]
        if value == "data":
            velocity = "data"
        elif isinstance(value, dict):
            velocity = _function(t.table("velocity"))
        elif isinstance(value, list) and len(value) in (2, 3):
            velocity = tuple(t.quantity(v, "velocity", SPEED, units) for v in value)
        else:
            raise t.wrong("velocity", '[vx, vy], [vx, vy, vz], "data" or { function = "NAME" }')
    reaction: str | Function = "none"
    if t.has("reaction"):
        if isinstance(t.values["reaction"], dict):
            reaction = _function(t.table("reaction"))
        else:
            reaction = t.text("reaction", choices=("none", "unknown"))
    calibrate = t.texts("calibrate", (), ("diffusion", "decay", "convection"))
    spec = PDESpec(diffusion, velocity, decay, reaction, tuple(dict.fromkeys(calibrate)), t.flag("per_region"), capacity, spread,
                   melting_of(t, list(capacity), fields[0], units), _unknown(t))
    t.close()
    if "capacity" in spec.unknown and spec.melting:
        raise InputError(f"{t.where('latent_heat')} is found together with the unknown capacity: leave it out")
    if spec.unknown and (len(fields) > 1 or spec.calibrate or spec.reaction == "unknown"):
        raise InputError(f"{t.where(spread)} or its capacity is unknown: that goes with one field, and neither with pde.calibrate "
                         "nor with an unknown reaction")
    if spec.per_region and not {"diffusion", "decay"} & set(calibrate):
        raise InputError(f"{t.where('per_region')} needs diffusion or decay in pde.calibrate")
    return spec


def _unknown(t: Table) -> tuple[str, ...]:
    """The coefficients that are "unknown": curves to be found in the data."""
    keys = {"capacity": ("capacity", "volumetric_capacity"), "diffusion": ("diffusion", "conductivity")}
    return tuple(name for name, own in keys.items() if any(t.values.get(key) == UNKNOWN for key in own))


def _capacity(t: Table, fields: Sequence[str], units: Units) -> dict[str, Term]:
    """`density` and `capacity` (specific heat), or their product `volumetric_capacity`."""
    known = {"density": DENSITY, "capacity": SPECIFIC_HEAT, "volumetric_capacity": VOLUMETRIC_HEAT}
    given = [key for key in known if t.has(key)]
    if "volumetric_capacity" in given and len(given) > 1:
        raise InputError(f"{t.where('volumetric_capacity')} is density times capacity: give either it or the two, got all")
    if given in (["density"], ["capacity"]):  # one is not enough
        t.need("capacity" if given == ["density"] else "density")
    return {key: _term(t, key, known[key], units, "cells", fields) for key in given}


def _term(t: Table, key: str, dimension: Dimension, units: Units, array: str, fields: Sequence[str]) -> Term:
    if not t.has(key):
        return 0.0
    of = key if key in fields else fields[0]  # a table per field
    value = t.values[key]
    if value == UNKNOWN and not t.place.count("."):
        if key in ("density", "decay"):
            raise t.wrong(key, "given: capacity, diffusion and conductivity can be unknown")
        return 1.0  # until it is found
    if isinstance(value, dict):
        inner = t.table(key)
        if inner.has("function"):
            return _function(inner)
        if inner.has(array):
            file = inner.text(array)
            inner.close()
            return ArrayFile(file)
        if array == "cells" and inner.has("curve"):
            return curve_spec(inner, dimension, units, of)
        if {"fibres", "along", "across"} & set(value):
            return _fibres(inner, dimension, units, fields)
        if not value:
            raise InputError(f"{t.where(key)} is an empty table")
        return {name: _term(inner, name, dimension, units, array, fields) for name in value}
    if isinstance(value, list):
        if key != "decay" and all(isinstance(row, list) and len(row) == len(value) for row in value) and len(value) in (2, 3):
            return tuple(tuple(t.quantity(v, key, dimension, units, of) for v in row) for row in value)
        raise t.wrong(key, "a number, a square tensor, or a table")
    if isinstance(value, str) and value.lower().endswith(".csv"):
        if array != "cells":
            raise t.wrong(key, "a number or a table, since it does not change with the field")
        return CurveSpec(of, dimension, file=value)
    return t.quantity(value, key, dimension, units, of)


def _fibres(t: Table, dimension: Dimension, units: Units, fields: Sequence[str]) -> Fibres:
    directions: tuple[float, ...] | Function | ArrayFile
    for key in ("fibres", "along", "across"):
        t.need(key)
    given = t.values["fibres"]
    if isinstance(given, dict):
        directions = _function(t.table("fibres"))
    elif isinstance(given, list) and len(given) in (2, 3) and all(isinstance(v, int | float) for v in given):
        directions = tuple(float(v) for v in given)
    else:
        directions = ArrayFile(t.text("fibres"))
    along, across = (_term(t, key, dimension, units, "cells", fields) for key in ("along", "across"))
    times = _term(t, "times", PURE, units, "cells", fields) if t.has("times") else None
    if times is not None and not isinstance(times, CurveSpec):
        raise t.wrong("times", 'a curve of the field: a .csv file or { curve = "NAME", range = [a, b] }')
    t.close()
    return Fibres(directions, along, across, times)


def _function(t: Table) -> Function:
    name = t.text("function")
    t.close()
    return Function(name)


def _boundary(t: Table, fields: Sequence[str], units: Units, heat: bool) -> BoundarySpec:
    name, kind = t.text("name"), t.text("kind", choices=KINDS)
    field = t.text("field", choices=fields) if kind != "periodic" and t.has("field") else None
    of = field or fields[0]

    def number(key: str, dimension: Dimension, default: float | None = None) -> Number:
        given = t.values.get(key)
        if isinstance(given, dict):
            return _function(t.table(key))
        if isinstance(given, str) and given.lower().endswith(".csv"):
            return TimeFile(t.text(key), of, dimension)
        return t.number(key, default, dimension, units, of)

    spec = {
        "dirichlet": lambda: BoundarySpec(name, kind, field, number("value", FIELD)),
        "neumann": lambda: BoundarySpec(name, kind, field, number("flux", TERMS["flux"][heat])),
        "robin": lambda: BoundarySpec(name, kind, field, number("ambient", FIELD),
                                      number("coefficient", TERMS["convection"][heat])),
        "periodic": lambda: BoundarySpec(name, kind, partner=t.text("partner")),
    }[kind]()
    t.close()
    if isinstance(spec.coefficient, float) and spec.coefficient < 0:
        raise t.wrong("coefficient", "zero or positive")
    return spec


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
    given = [key for key in ("function", "spots") if t.has(key)]
    if len(given) != 1:
        raise InputError(f"{t.path}: {t.place} needs one of function and spots")
    spec = SourceSpec(given[0], t.text("function", ""), t.text("spots", ""), t.text("field", "") if t.has("field") else "")
    t.close()
    if spec.field and spec.field not in fields:
        raise InputError(f"{t.where('field')} is '{spec.field}', but the fields are {list(fields)}")
    return spec


def _training(t: Table) -> Training:
    plain: dict[str, Callable[[str], Any]] = {
        "minutes": lambda k: t.number(k, Training.minutes, positive=True), "windows": t.counts, "iterations": t.counts,
        "learning_rate": lambda k: t.number(k, 0.0), "batch": lambda k: t.count(k, 0), "hold_out": lambda k: t.count(k, 0),
        "noise": lambda k: t.number(k, 0.0)}
    found = Training(**{key: take(key) for key, take in plain.items()})
    t.close()
    if min(found.learning_rate, found.noise) < 0:
        raise InputError(f"{t.path}: training.{'noise' if found.noise < 0 else 'learning_rate'} must not be negative")
    return found
