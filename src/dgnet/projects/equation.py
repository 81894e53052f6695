"""[pde] and [[boundary]] of a problem file: read without a mesh, then as equation and conditions on one.

Coefficients are numbers, tensors, arrays, functions, curves, fibres, or one of these per field or region.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import InputError
from dgnet.files import read_array
from dgnet.mesh import ALL, Mesh
from dgnet.problems.conditions import CONDITIONS, Condition, Value
from dgnet.problems.curves import ByRegion, Scaled
from dgnet.problems.fibres import fibre_tensors
from dgnet.problems.pde import PDE
from dgnet.problems.units import DENSITY, PURE, SPECIFIC_HEAT, SPEED, TERMS, VOLUMETRIC_HEAT, Dimension, Units
from dgnet.projects.curves import CurveSpec, Melting, TimeFile, curve_of, melted, read_curve, read_melting, table_of, times
from dgnet.projects.physics import Physics
from dgnet.projects.table import Table

UNKNOWN = "unknown"
CAPACITY = {"density": DENSITY, "capacity": SPECIFIC_HEAT, "volumetric_capacity": VOLUMETRIC_HEAT}


@dataclass(frozen=True)
class Function:
    """A function of physics.py."""

    name: str


@dataclass(frozen=True)
class ArrayFile:
    """Numbers in a .npy file."""

    path: str


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

@dataclass(frozen=True)
class PDESpec:
    diffusion: Term = 0.0
    velocity: str | tuple[float, ...] | Function | None = None  # "data": comes with every trajectory
    decay: Term = 0.0
    reaction: Function | None = None  # what is known of it
    unknowns: Unknowns = dataclasses.field(default_factory=Unknowns)
    capacity: Mapping[str, Term] = dataclasses.field(default_factory=dict)  # key -> term: their product is the capacity; empty: 1
    spread: str = "diffusion"  # the key that `diffusion` was given by
    melting: Mapping[str, Melting] = dataclasses.field(default_factory=dict)  # of each region; "" for all cells

    @property
    def heat(self) -> bool:
        """Whether the equation balances energy: a capacity is given."""
        return bool(self.capacity)


@dataclass(frozen=True)
class BoundarySpec:
    kind: str
    name: str
    field: str | None = None
    values: Mapping[str, float | Function | TimeFile] = dataclasses.field(default_factory=dict)
    partner: str = ""


@dataclass(frozen=True, eq=False)
class Site:
    """Where a problem file gets its coefficients: on a mesh, with the files and functions of its folder."""

    path: Path  # of the problem file
    fields: tuple[str, ...]
    units: Units
    mesh: Mesh
    physics: Physics
    pde: PDESpec

    @property
    def folder(self) -> Path:
        return self.path.parent


# ---------------------------------------------------------------------- in the problem file


def read_pde(t: Table, fields: Sequence[str], units: Units) -> PDESpec:
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
            velocity = t.numbers("velocity", (2, 3), SPEED, units)
        else:
            raise t.wrong("velocity", '[vx, vy], [vx, vy, vz], "data" or { function = "NAME" }')
    reaction, unknown_reaction = None, False
    if isinstance(t.values.get("reaction"), dict):
        reaction = _function(t.table("reaction"))
    else:
        unknown_reaction = t.text("reaction", "none", choices=("none", UNKNOWN)) == UNKNOWN
    calibrate = tuple(dict.fromkeys(t.texts("calibrate", (), ("diffusion", "decay", "convection"))))
    unknowns = Unknowns(unknown_reaction, _unknown(t), calibrate, t.flag("per_region"))
    spec = PDESpec(diffusion, velocity, decay, reaction, unknowns, capacity, spread,
                   read_melting(t, list(capacity), fields[0], units))
    t.close()
    if "capacity" in unknowns.curves and spec.melting:
        raise InputError(f"{t.where('latent_heat')} is found together with the unknown capacity: leave it out")
    if unknowns.curves and (len(fields) > 1 or calibrate or unknown_reaction):
        raise InputError(f"{t.where(spread)} or its capacity is unknown: that goes with one field, and neither with pde.calibrate "
                         "nor with an unknown reaction")
    if unknowns.per_region and not {"diffusion", "decay"} & set(calibrate):
        raise InputError(f"{t.where('per_region')} needs diffusion or decay in pde.calibrate")
    return spec


def _unknown(t: Table) -> tuple[str, ...]:
    """The coefficients that are "unknown": curves to be found in the data."""
    keys = {"capacity": ("capacity", "volumetric_capacity"), "diffusion": ("diffusion", "conductivity")}
    return tuple(name for name, own in keys.items() if any(t.values.get(key) == UNKNOWN for key in own))


def _capacity(t: Table, fields: Sequence[str], units: Units) -> dict[str, Term]:
    """`density` and `capacity` (specific heat), or their product `volumetric_capacity`."""
    keys = [key for key in CAPACITY if t.has(key)]
    if "volumetric_capacity" in keys and len(keys) > 1:
        raise InputError(f"{t.where('volumetric_capacity')} is density times capacity: give either it or the two, got all")
    if keys in (["density"], ["capacity"]):  # one is not enough
        t.need("capacity" if keys == ["density"] else "density")
    return {key: _term(t, key, CAPACITY[key], units, "cells", fields) for key in keys}


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
            return read_curve(inner, dimension, units, of)
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
    if isinstance(t.values["fibres"], dict):
        directions = _function(t.table("fibres"))
    elif isinstance(t.values["fibres"], list):
        directions = t.numbers("fibres", (2, 3))
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


def read_condition(t: Table, fields: Sequence[str], units: Units, heat: bool) -> BoundarySpec:
    name, kind = t.text("name"), t.text("kind", choices=list(CONDITIONS))
    cls = CONDITIONS[kind]
    periodic = cls.role == "periodic"
    field = t.text("field", choices=fields) if not periodic and t.has("field") else None
    of = field or fields[0]
    dimensions = {key: TERMS[term][heat] if isinstance(term, str) else term for key, term in cls.keys.items()}

    def number(key: str) -> float | Function | TimeFile:
        value = t.values.get(key)
        if isinstance(value, dict):
            return _function(t.table(key))
        if isinstance(value, str) and value.lower().endswith(".csv"):
            return TimeFile(t.text(key), of, dimensions[key])
        return t.number(key, None, dimensions[key], units, of)

    values = {key: number(key) for key in cls.keys}
    partner = t.text("partner") if periodic else ""
    t.close()
    for key, value in values.items():
        if cls.keys[key] == "convection" and isinstance(value, float) and value < 0:
            raise t.wrong(key, "zero or positive")
    return BoundarySpec(kind, name, field, values, partner)


# ---------------------------------------------------------------------- on a mesh


def equation_of(site: Site) -> PDE:
    """The equation of a problem file, with its coefficients on the cells and nodes of the mesh."""
    spec, where, mesh, physics = site.pde, f"{site.path}: pde", site.mesh, site.physics
    velocity: Any = None
    if isinstance(spec.velocity, tuple):
        if len(spec.velocity) != mesh.dim:
            raise InputError(f"{where}.velocity has {len(spec.velocity)} components, but the mesh is {mesh.dim}D")
        velocity = list(spec.velocity)
    elif isinstance(spec.velocity, Function):
        velocity = _velocity(spec.velocity.name, f"{where}.velocity", mesh, physics)
    reaction = None
    if spec.reaction is not None:
        reaction = physics.reaction(spec.reaction.name, f"{where}.reaction", len(site.fields))
    diffusion, decay = (_coefficient(term, key, site)
                        for term, key in ((spec.diffusion, spec.spread), (spec.decay, "decay")))
    capacity: Any = 1.0
    for key, term in spec.capacity.items():
        part = _coefficient(term, key, site)
        part = part if key == "density" else melted(part, spec.melting, where)
        capacity = _product(capacity, part, site.fields)
    return PDE(site.fields, diffusion, velocity, decay, reaction, capacity)


def _product(a: Any, b: Any, names: Sequence[str]) -> Any:
    """Of two coefficients, each for all fields or one per field."""
    if not isinstance(a, Mapping) and not isinstance(b, Mapping):
        return times(a, b)
    return {f: times(a[f] if isinstance(a, Mapping) else a, b[f] if isinstance(b, Mapping) else b) for f in names}


def _velocity(name: str, where: str, mesh: Mesh, physics: Physics) -> Any:
    """A steady flow where the function has one argument, else one that changes in time."""
    x = torch.tensor(mesh.points)
    if physics.stored(where) is not None or not physics.takes_time(name, where):
        return physics.of_space(name, where, x, ((mesh.n_nodes, mesh.dim),))
    function = physics.of_space_time(name, where, trailing=(mesh.dim,))
    function(x, 0.0)
    return lambda t: function(x, t)


def _coefficient(term: Term, name: str, site: Site) -> Any:
    where = f"{site.path}: pde.{name}"
    if isinstance(term, Mapping) and set(term) & set(site.fields):
        for key in [*term, *site.fields]:
            if key not in site.fields or key not in term:
                raise InputError(f"{where} needs one value for each of the fields {', '.join(site.fields)}; '{key}' "
                                 f"{'is none of them' if key not in site.fields else 'is missing'}")
        return {f: _values(term[f], name, f"{where}.{f}", site) for f in site.fields}
    return _values(term, name, where, site)


def _values(term: Term, name: str, where: str, site: Site) -> Any:
    mesh, physics = site.mesh, site.physics
    d, K, N = mesh.dim, mesh.n_cells, mesh.n_nodes
    spreads, cells = name in ("diffusion", "conductivity"), name != "decay"
    shapes: tuple[tuple[int, ...], ...] = ((K,), (K, d, d)) if spreads else ((K,),) if cells else ((N,),)
    if isinstance(term, Function | ArrayFile):
        found = _listed(term, where, mesh.centroids if cells else mesh.points, shapes, site)
        if cells and not spreads and not (found > 0).all():
            raise InputError(f"{where} must be positive, got {found.min():g} in cell {int(found.argmin())}")
        return found
    if isinstance(term, Fibres):
        if not spreads:
            raise InputError(f"{where} must be a number: only diffusion and conductivity have fibres")
        tensors = _along_fibres(term, where, site)
        return tensors if term.times is None else Scaled(_values(term.times, name, f"{where}.times", site), tensors)
    if isinstance(term, CurveSpec):
        if name in ("along", "across"):
            raise InputError(f"{where} must be a number: a curve of the field that multiplies both along and across is 'times'")
        if name == "density":
            raise InputError(f"{where} cannot change with the field: give the product with the capacity as volumetric_capacity")
        curve = curve_of(term, name, where, site.folder, site.units, physics)
        if not spreads and curve.least <= 0:
            raise InputError(f"{where} must be positive, but falls to {curve.least:g}")
        return curve
    if isinstance(term, Mapping):
        return _by_region(term, name, where, site)
    if isinstance(term, tuple):
        if not spreads:
            raise InputError(f"{where} must be a number, not a tensor")
        if len(term) != d:
            raise InputError(f"{where} is a {len(term)} x {len(term)} tensor, but the mesh is {d}D")
        return np.array(term)
    return _signed(term, name, where)


def _listed(term: Function | ArrayFile, where: str, x: np.ndarray, shapes: tuple[tuple[int, ...], ...], site: Site) -> np.ndarray:
    """The values of a function at points x [n, d], or those of a file, in one of the shapes."""
    if isinstance(term, Function):
        return site.physics.of_space(term.name, where, torch.tensor(x), shapes).numpy()
    return site.physics.remembered(where, lambda: read_array(site.folder / term.path, shapes).astype(np.float64))


def _along_fibres(term: Fibres, where: str, site: Site) -> np.ndarray:
    """A tensor for each cell [K, d, d]."""
    mesh, here = site.mesh, f"{where}.fibres"
    shape = (mesh.n_cells, mesh.dim)
    if isinstance(term.directions, tuple):
        if len(term.directions) != mesh.dim:
            raise InputError(f"{here} has {len(term.directions)} components, but the mesh is {mesh.dim}D")
        directions = np.broadcast_to(np.array(term.directions), shape)
    else:
        directions = _listed(term.directions, here, mesh.centroids, (shape,), site)
    along, across = (_values(value, key, f"{where}.{key}", site)
                     for key, value in (("along", term.along), ("across", term.across)))
    try:
        return fibre_tensors(directions, along, across)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _signed(number: float, name: str, where: str) -> float:
    """The number, if it has the sign that the term needs."""
    if number < 0 and name in ("diffusion", "conductivity", "along", "across"):
        raise InputError(f"{where} must not be negative, got {number:g}")
    if number <= 0 and name in ("density", "capacity", "volumetric_capacity"):
        raise InputError(f"{where} must be positive, got {number:g}")
    return number


def _by_region(term: Mapping[str, Any], name: str, where: str, site: Site) -> np.ndarray | ByRegion:
    """One value per cell [K], averaged to the nodes [N] where the term needs that (decay); parts, where one of them is a curve."""
    mesh, melting = site.mesh, site.pde.melting
    melts = name in ("capacity", "volumetric_capacity") and "" not in melting and bool(melting)
    curved = melts or any(isinstance(part, CurveSpec) for part in term.values())
    for region, part in term.items():
        if not curved and not isinstance(part, float):
            raise InputError(f"{where}.{region} must be a number")
    parts = ByRegion({region: _values(part, name, f"{where}.{region}", site) for region, part in term.items()})
    cells = parts.cells(mesh, where)  # every cell has one
    if curved:
        return parts
    value = np.empty(mesh.n_cells)
    for region, rows in cells.items():
        value[rows] = term[region]
    if name != "decay":
        return value
    share = np.repeat((mesh.volumes / (mesh.dim + 1))[:, None], mesh.dim + 1, axis=1)
    total = np.bincount(mesh.cells.ravel(), (share * value[:, None]).ravel(), minlength=mesh.n_nodes)
    return total / np.bincount(mesh.cells.ravel(), share.ravel(), minlength=mesh.n_nodes)


def conditions_of(boundaries: Sequence[BoundarySpec], site: Site) -> tuple[Condition, ...]:
    """The boundary conditions of a problem file; each names a boundary of the mesh."""
    found: list[Condition] = []
    for k, spec in enumerate(boundaries, start=1):
        where = f"{site.path}: boundary[{k}]"
        for key, name in (("name", spec.name), ("partner", spec.partner)):
            if name and name != ALL and name not in site.mesh.boundaries:
                raise InputError(f"{where}.{key}: the mesh has no boundary '{name}' (it has: "
                                 f"{', '.join([*site.mesh.boundaries, ALL])})")
        for j, other in enumerate(boundaries[:k - 1], start=1):  # a fixed value leaves no room for another condition
            roles = {CONDITIONS[spec.kind].role, CONDITIONS[other.kind].role}
            if (spec.name == other.name and "held" in roles and "periodic" not in roles and (
                    spec.field == other.field or None in (spec.field, other.field))):
                raise InputError(f"{where}: '{spec.name}' has a {other.kind} condition already (boundary[{j}])")
        values = {key: _boundary_value(value, f"{where}.{key}", site) for key, value in spec.values.items()}
        more = {"partner": spec.partner} if spec.partner else {"field": spec.field}
        cls: Any = CONDITIONS[spec.kind]
        found.append(cls(boundary=spec.name, **values, **more))
    return tuple(found)


def _boundary_value(value: float | Function | TimeFile, where: str, site: Site) -> Value:
    if isinstance(value, TimeFile):
        return table_of(value, where, site.folder, site.units, site.physics)
    return site.physics.of_space_time(value.name, where) if isinstance(value, Function) else value
