"""Equation and boundary conditions of a problem file on a mesh: numbers, tensors, arrays, functions, values per field or region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.files import did_you_mean, read_array
from dgnet.mesh import ALL, Mesh
from dgnet.problems.conditions import Condition, Dirichlet, Neumann, Periodic, Robin, Value
from dgnet.problems.curves import ByRegion, Scaled
from dgnet.problems.fibres import fibre_tensors
from dgnet.problems.pde import PDE
from dgnet.projects.materials import curve_of, melted, table_of, times
from dgnet.projects.physics import Physics
from dgnet.projects.toml import (
    ELSEWHERE,
    ArrayFile,
    BoundarySpec,
    CurveSpec,
    Fibres,
    Function,
    Number,
    ProblemFile,
    Term,
    TimeFile,
)


def equation_of(file: ProblemFile, mesh: Mesh, physics: Physics) -> PDE:
    """The equation of a problem file, with its coefficients on the cells and nodes of the mesh."""
    spec, where = file.pde, f"{file.path}: pde"
    velocity: Any = None
    if isinstance(spec.velocity, tuple):
        if len(spec.velocity) != mesh.dim:
            raise InputError(f"{where}.velocity has {len(spec.velocity)} components, but the mesh is {mesh.dim}D")
        velocity = list(spec.velocity)
    elif isinstance(spec.velocity, Function):
        velocity = _velocity(spec.velocity.name, f"{where}.velocity", mesh, physics)
    reaction = None
    if isinstance(spec.reaction, Function):
        reaction = physics.reaction(spec.reaction.name, f"{where}.reaction", len(file.fields))
    diffusion, decay = (_coefficient(term, key, file, mesh, physics)
                        for term, key in ((spec.diffusion, spec.spread), (spec.decay, "decay")))
    capacity: Any = 1.0
    for key, term in spec.capacity.items():
        part = _coefficient(term, key, file, mesh, physics)
        part = part if key == "density" else melted(part, spec.melting, where)
        capacity = _product(capacity, part, file.fields)
    return PDE(file.fields, diffusion, velocity, decay, reaction, capacity)


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


def _coefficient(term: Term, name: str, file: ProblemFile, mesh: Mesh, physics: Physics) -> Any:
    where = f"{file.path}: pde.{name}"
    if isinstance(term, Mapping) and set(term) & set(file.fields):
        for key in [*term, *file.fields]:
            if key not in file.fields or key not in term:
                raise InputError(f"{where} needs one value for each of the fields {', '.join(file.fields)}; '{key}' "
                                 f"{'is none of them' if key not in file.fields else 'is missing'}")
        return {f: _values(term[f], name, f"{where}.{f}", file, mesh, physics) for f in file.fields}
    return _values(term, name, where, file, mesh, physics)


def _values(term: Term, name: str, where: str, file: ProblemFile, mesh: Mesh, physics: Physics) -> Any:
    d, K, N = mesh.dim, mesh.n_cells, mesh.n_nodes
    spreads, cells = name in ("diffusion", "conductivity"), name != "decay"
    shapes: tuple[tuple[int, ...], ...] = ((K,), (K, d, d)) if spreads else ((K,),) if cells else ((N,),)
    if isinstance(term, Function | ArrayFile):
        if isinstance(term, ArrayFile):
            known = physics.stored(where)
            found = physics.keep(where, read_array(file.folder / term.path, shapes).astype(np.float64)) if known is None else known
        else:
            x = torch.tensor(mesh.centroids if cells else mesh.points)
            found = physics.of_space(term.name, where, x, shapes).numpy()
        if cells and not spreads and not (found > 0).all():
            raise InputError(f"{where} must be positive, got {found.min():g} in cell {int(found.argmin())}")
        return found
    if isinstance(term, Fibres):
        if not spreads:
            raise InputError(f"{where} must be a number: only diffusion and conductivity have fibres")
        tensors = _along_fibres(term, where, file, mesh, physics)
        return tensors if term.times is None else Scaled(_values(term.times, name, f"{where}.times", file, mesh, physics), tensors)
    if isinstance(term, CurveSpec):
        if name in ("along", "across"):
            raise InputError(f"{where} must be a number: a curve of the field that multiplies both along and across is 'times'")
        if name == "density":
            raise InputError(f"{where} cannot change with the field: give the product with the capacity as volumetric_capacity")
        curve = curve_of(term, name, where, file.folder, file.units, physics)
        if not spreads and curve.least <= 0:
            raise InputError(f"{where} must be positive, but falls to {curve.least:g}")
        return curve
    if isinstance(term, Mapping):
        melts = name in ("capacity", "volumetric_capacity") and "" not in file.pde.melting and bool(file.pde.melting)
        if melts or any(isinstance(part, CurveSpec) for part in term.values()):
            parts = ByRegion({part: _values(value, name, f"{where}.{part}", file, mesh, physics) for part, value in term.items()})
            parts.cells(mesh, where)  # every cell has one
            return parts
        return _by_region(term, name, where, mesh)
    if isinstance(term, tuple):
        if not spreads:
            raise InputError(f"{where} must be a number, not a tensor")
        if len(term) != d:
            raise InputError(f"{where} is a {len(term)} x {len(term)} tensor, but the mesh is {d}D")
        return np.array(term)
    return _signed(term, name, where)


def _along_fibres(term: Fibres, where: str, file: ProblemFile, mesh: Mesh, physics: Physics) -> np.ndarray:
    """A tensor for each cell [K, d, d]."""
    shape, here = (mesh.n_cells, mesh.dim), f"{where}.fibres"
    directions: np.ndarray
    if isinstance(term.directions, tuple):
        if len(term.directions) != mesh.dim:
            raise InputError(f"{here} has {len(term.directions)} components, but the mesh is {mesh.dim}D")
        directions = np.broadcast_to(np.array(term.directions), shape)
    elif isinstance(term.directions, Function):
        directions = physics.of_space(term.directions.name, here, torch.tensor(mesh.centroids), (shape,)).numpy()
    else:
        known = physics.stored(here)
        directions = (physics.keep(here, read_array(file.folder / term.directions.path, (shape,)).astype(np.float64))
                      if known is None else known)
    along, across = (_values(value, key, f"{where}.{key}", file, mesh, physics)
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


def _by_region(term: Mapping[str, Any], name: str, where: str, mesh: Mesh) -> np.ndarray:
    """One value per cell [K], averaged to the nodes [N] where the term needs that (decay)."""
    value = np.full(mesh.n_cells, np.nan)
    owner = np.full(mesh.n_cells, "", dtype=object)
    for region, number in term.items():
        if region != ELSEWHERE and region not in mesh.regions:
            raise InputError(f"{where}: there is no region or field '{region}'"
                             + did_you_mean(region, [*mesh.regions, ELSEWHERE], "the mesh has the regions"))
        if not isinstance(number, float):
            raise InputError(f"{where}.{region} must be a number")
        _signed(number, name, f"{where}.{region}")
        if region == ELSEWHERE:
            continue
        cells = mesh.regions[region]
        twice = cells[~np.isnan(value[cells])]
        if len(twice):
            raise InputError(f"{where}: cell {twice[0]} is in the regions '{owner[twice[0]]}' and '{region}'")
        value[cells], owner[cells] = number, region
    left = np.flatnonzero(np.isnan(value))
    if len(left):
        if ELSEWHERE not in term:
            raise InputError(f"{where}: cell {left[0]} is in none of its regions; give '{ELSEWHERE}' a value, too")
        value[left] = term[ELSEWHERE]
    if name != "decay":
        return value
    share = np.repeat((mesh.volumes / (mesh.dim + 1))[:, None], mesh.dim + 1, axis=1)
    total = np.bincount(mesh.cells.ravel(), (share * value[:, None]).ravel(), minlength=mesh.n_nodes)
    return total / np.bincount(mesh.cells.ravel(), share.ravel(), minlength=mesh.n_nodes)


def conditions_of(file: ProblemFile, mesh: Mesh, physics: Physics) -> tuple[Condition, ...]:
    """The boundary conditions of a problem file; each names a boundary of the mesh."""
    found: list[Condition] = []
    for k, spec in enumerate(file.boundaries, start=1):
        where = f"{file.path}: boundary[{k}]"
        for key, name in (("name", spec.name), ("partner", spec.partner)):
            if name and name != ALL and name not in mesh.boundaries:
                raise InputError(f"{where}.{key}: the mesh has no boundary '{name}' (it has: {', '.join([*mesh.boundaries, ALL])})")
        for j, other in enumerate(file.boundaries[:k - 1], start=1):  # a fixed value leaves no room for another condition
            if (spec.name == other.name and "dirichlet" in (spec.kind, other.kind) and "periodic" not in (spec.kind, other.kind)
                    and (spec.field == other.field or None in (spec.field, other.field))):
                raise InputError(f"{where}: '{spec.name}' has a {other.kind} condition already (boundary[{j}])")
        found.append(_condition(spec, where, file, physics))
    return tuple(found)


def _condition(spec: BoundarySpec, where: str, file: ProblemFile, physics: Physics) -> Condition:
    def value(given: Number, key: str) -> Value:
        if isinstance(given, TimeFile):
            return table_of(given, f"{where}.{key}", file.folder, file.units, physics)
        return physics.of_space_time(given.name, f"{where}.{key}") if isinstance(given, Function) else given

    if spec.kind == "dirichlet":
        return Dirichlet(spec.name, value(spec.value, "value"), spec.field)
    if spec.kind == "neumann":
        return Neumann(spec.name, value(spec.value, "flux"), spec.field)
    if spec.kind == "robin":
        return Robin(spec.name, value(spec.coefficient, "coefficient"), value(spec.value, "ambient"), spec.field)
    return Periodic(spec.name, spec.partner)
