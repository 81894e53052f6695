"""The [mesh] table of a problem file: read, then as a mesh from a file, a shipped mesh, or a shape.

Flat shapes are meshed here, without gmsh, by letting the edges of a Delaunay triangulation push its nodes apart until they sit
evenly (Persson and Strang, A simple mesh generator in MATLAB, 2004). The shapes of `dgnet.mesh` (gmsh) are available, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import Delaunay, QhullError

from dgnet.errors import InputError
from dgnet.mesh import ALL, Mesh, box, bracket, channel, dfg_channel, gear_plate, shipped, shipped_names
from dgnet.mesh import load as load_mesh
from dgnet.problems.units import LENGTH, Units
from dgnet.projects.physics import Physics
from dgnet.projects.table import Table

_MOST = 200_000  # nodes of a shape
_POOR = 0.1  # radius ratio below which a shape counts as not meshed

Distance = Callable[[np.ndarray], np.ndarray]
"""Signed distance of points [n, 2] from the edge of a shape, negative inside."""

Holes = Sequence[tuple[tuple[float, float], float]]
"""Centres and radii."""


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


# ---------------------------------------------------------------------- in the problem file


def read_mesh(t: Table, units: Units) -> MeshSpec:
    named = [key for key in ("file", "shipped", "shape") if t.has(key)]
    if len(named) != 1:
        raise InputError(f"{t.path}: mesh needs one of file, shape and shipped, got {' and '.join(named) or 'none of them'}")
    file, shipped, shape = t.text("file", ""), t.text("shipped", ""), t.text("shape", "", choices=list(SHAPES))
    boundaries, regions = (_selections(t.table(key), units) for key in ("boundaries", "regions"))
    measures = {key: take(t, key, units) for key, take in SHAPES[shape][1].items()} if shape else {}
    t.close(f"a measure of the shape '{shape}'" if shape else "a known key")
    return MeshSpec(file, shipped, shape, measures, boundaries, regions)


def _selections(t: Table, units: Units) -> dict[str, Selection]:
    found = {}
    for name in t.values:
        inner = t.table(name)
        if inner.has("function"):
            found[name] = Selection(function=inner.text("function"))
        else:
            limits = {axis: inner.span(axis, LENGTH, units) for axis in ("x", "y", "z") if inner.has(axis)}
            if not limits and not inner.values:
                raise InputError(f"{t.where(name)} selects nothing: give x, y or z, or a function")
            found[name] = Selection(limits)
        inner.close()
    return found


Measure = Callable[[Table, str, Units], Any]
"""Reads a measure of a shape from the table [mesh]."""


def _length(default: float | None = None, positive: bool = True) -> Measure:
    return lambda t, key, units: t.number(key, default, LENGTH, units, positive=positive)


def _vector(size: int, default: tuple[float, ...] | None = None, positive: bool = True) -> Measure:
    return lambda t, key, units: t.numbers(key, (size,), LENGTH, units, default=default, positive=positive)


def _outline(t: Table, key: str, units: Units) -> tuple[tuple[float, ...], ...]:
    value = t.need(key)
    if not isinstance(value, list) or len(value) < 3 or any(not isinstance(p, list) or len(p) != 2 for p in value):
        raise t.wrong(key, "at least three corners [x, y]")
    return tuple(tuple(t.quantity(v, key, LENGTH, units) for v in p) for p in value)


def _circles(t: Table, key: str, units: Units) -> tuple[tuple[tuple[float, ...], float], ...]:
    found = []
    for inner in t.tables(key):
        found.append((inner.numbers("centre", (2,), LENGTH, units), inner.number("radius", None, LENGTH, units, positive=True)))
        inner.close()
    return tuple(found)


# ---------------------------------------------------------------------- as a mesh


def build(spec: MeshSpec, folder: Path, physics: Physics, where: str) -> Mesh:
    """The mesh with the names that the problem file adds."""
    if spec.file:
        mesh = load_mesh(folder / spec.file)
    elif spec.shipped:
        if spec.shipped not in shipped_names():
            raise InputError(f"{where}: mesh.shipped: there is no shipped mesh '{spec.shipped}' (known: "
                             f"{', '.join(shipped_names())})")
        mesh = shipped(spec.shipped)
    else:
        try:
            mesh = SHAPES[spec.shape][0](**spec.measures)
        except InputError as error:
            raise InputError(f"{where}: mesh: {error}") from error
    facets = mesh.boundary_facets
    boundaries = dict(mesh.boundaries)
    for name, selection in spec.boundaries.items():
        if name == ALL:
            raise InputError(f"{where}: mesh.boundaries.{name}: this name stands for the whole boundary")
        inside = _selected(selection, mesh, mesh.points, physics, f"{where}: mesh.boundaries.{name}")
        chosen = facets[inside[facets].all(axis=1)]
        if not len(chosen):
            raise InputError(f"{where}: mesh.boundaries.{name} selects no boundary facet of the mesh")
        boundaries[name] = chosen
    regions = dict(mesh.regions)
    for name, selection in spec.regions.items():
        cells = np.flatnonzero(_selected(selection, mesh, mesh.centroids, physics, f"{where}: mesh.regions.{name}"))
        if not len(cells):
            raise InputError(f"{where}: mesh.regions.{name} selects no cell of the mesh")
        regions[name] = cells
    return Mesh(mesh.points, mesh.cells, boundaries, regions) if spec.boundaries or spec.regions else mesh


def _selected(selection: Selection, mesh: Mesh, points: np.ndarray, physics: Physics, where: str) -> np.ndarray:
    if selection.function:
        return physics.mask(selection.function, where, points)
    slack = 1e-6 * mesh.spacing
    inside = np.ones(len(points), dtype=bool)
    for axis, (low, high) in selection.limits.items():
        if (k := "xyz".index(axis)) >= mesh.dim:
            raise InputError(f"{where} has limits along {axis}, but the mesh is flat")
        inside &= (points[:, k] >= low - slack) & (points[:, k] <= high + slack)
    return inside


# ---------------------------------------------------------------------- shapes by name


def grid(size: tuple[float, ...], spacing: float, corner: tuple[float, ...], perturb: float) -> Mesh:
    """A rectangle or a box."""
    _not_too_many(math.prod(1 + s / spacing for s in size))
    counts = tuple(max(1, round(s / spacing)) for s in size)
    return box(counts, corner, tuple(c + s for c, s in zip(corner, size)), perturb)


def l_shape(size: tuple[float, float], arms: tuple[float, float], spacing: float, holes: Holes = ()) -> Mesh:
    (w, h), (a, b) = size, arms
    if a >= h or b >= w:
        raise InputError("arms must be thinner than the size: [height of the lower arm, width of the left arm]")
    corners = np.array([(0, 0), (w, 0), (w, a), (b, a), (b, h), (0, h)], dtype=float)
    return plate(corners, holes, spacing, ["bottom", "right", "inner", "inner", "top", "left"])


SHAPES: dict[str, tuple[Callable[..., Mesh], dict[str, Measure]]] = {
    "rectangle": (grid, {"size": _vector(2), "spacing": _length(), "corner": _vector(2, (0.0, 0.0), positive=False),
                         "perturb": _length(0.2, positive=False)}),
    "box": (grid, {"size": _vector(3), "spacing": _length(), "corner": _vector(3, (0.0, 0.0, 0.0), positive=False),
                   "perturb": _length(0.0, positive=False)}),
    "disc": (lambda centre, **rest: disc(middle=np.array(centre), **rest),
             {"centre": _vector(2, (0.0, 0.0), positive=False), "radius": _length(), "spacing": _length()}),
    "l-shape": (l_shape, {"size": _vector(2), "arms": _vector(2), "spacing": _length(), "holes": _circles}),
    "polygon": (lambda outline, holes, spacing: plate(np.array(outline), holes, spacing),
                {"outline": _outline, "spacing": _length(), "holes": _circles}),
    "channel": (lambda size, spacing, obstacles: channel(size[0], size[1], obstacles, size=spacing),
                {"size": _vector(2), "spacing": _length(), "obstacles": _circles}),
    "gear-plate": (lambda spacing: gear_plate(spacing), {"spacing": _length()}),
    "bracket": (lambda spacing: bracket(spacing), {"spacing": _length()}),
    "dfg-channel": (lambda spacing: dfg_channel(spacing), {"spacing": _length()}),
}
"""What makes each shape, and its measures. The first five need nothing, the others gmsh (`pip install 'dgnet[mesh]'`)."""


# ---------------------------------------------------------------------- a mesh generator for flat shapes


def disc(radius: float, spacing: float, middle: np.ndarray | None = None) -> Mesh:
    """A disc; its boundary is `rim`."""
    centre = np.zeros(2) if middle is None else middle
    return meshed(lambda x: np.linalg.norm(x - centre, axis=1) - radius, centre - radius, centre + radius, spacing,
                  np.empty((0, 2)), [("rim", lambda x: np.abs(np.linalg.norm(x - centre, axis=1) - radius))])


def plate(corners: np.ndarray, holes: Holes, spacing: float,
          names: Sequence[str] = ()) -> Mesh:
    """A polygon with round holes. Boundaries are `side-1`, ... (or `names`) along the corners, and `hole-1`, ..."""
    start, end = corners, np.roll(corners, -1, axis=0)
    middles = np.array([c for c, _ in holes], dtype=float).reshape(-1, 2)
    radii = np.array([r for _, r in holes])

    def from_sides(x: np.ndarray) -> np.ndarray:  # [n, sides]
        way = end - start
        along = ((x[:, None] - start) * way).sum(2) / (way**2).sum(1).clip(1e-300)
        return np.linalg.norm(x[:, None] - start - along.clip(0, 1)[..., None] * way, axis=2)

    def distance(x: np.ndarray) -> np.ndarray:
        (ax, ay), (bx, by) = start.T, end.T
        above = (ay > x[:, 1:]) != (by > x[:, 1:])
        with np.errstate(divide="ignore", invalid="ignore"):
            cut = above & (x[:, :1] < (bx - ax) * (x[:, 1:] - ay) / (by - ay) + ax)
        d = from_sides(x).min(axis=1) * np.where(cut.sum(axis=1) % 2, -1.0, 1.0)
        if len(radii):
            d = np.maximum(d, (radii - np.linalg.norm(x[:, None] - middles, axis=2)).max(axis=1))
        return d

    labels = list(names) or [f"side-{k + 1}" for k in range(len(corners))]

    def from_named(name: str) -> Distance:
        mine = [k for k, label in enumerate(labels) if label == name]
        return lambda x: from_sides(x)[:, mine].min(axis=1)

    def from_hole(k: int) -> Distance:
        return lambda x: np.abs(np.linalg.norm(x - middles[k], axis=1) - radii[k])

    pieces = [(name, from_named(name)) for name in dict.fromkeys(labels)]
    pieces += [(f"hole-{k + 1}", from_hole(k)) for k in range(len(radii))]
    return meshed(distance, corners.min(axis=0), corners.max(axis=0), spacing, corners, pieces)


def meshed(distance: Distance, lower: np.ndarray, upper: np.ndarray, spacing: float, fixed: np.ndarray,
           pieces: Sequence[tuple[str, Distance]], rounds: int = 400) -> Mesh:
    """Evenly spaced triangles where `distance` is negative; `pieces` name parts of the boundary by their distance."""
    _not_too_many(float(np.prod((upper - lower) / spacing)) * 1.2)
    low, high = lower - spacing, upper + spacing
    rows = np.arange(low[1], high[1], spacing * math.sqrt(3) / 2)
    x, y = np.meshgrid(np.arange(low[0], high[0], spacing), rows)
    x[1::2] += spacing / 2
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    points = points[distance(points) < 0.001 * spacing]
    if len(fixed):  # corners stay; what is very near to one would make slivers
        points = points[np.linalg.norm(points[:, None] - fixed, axis=2).min(axis=1) > 0.5 * spacing]
        points = np.concatenate([fixed, points])
    if len(points) < 3:
        raise InputError(f"a spacing of {spacing:g} is too coarse for this shape")
    still, before, edges = len(fixed), np.full_like(points, np.inf), np.empty((0, 2), dtype=int)
    for _ in range(rounds):
        if np.abs(points - before).max() > 0.1 * spacing:
            before, cells = points.copy(), _inside(points, distance, spacing)
            pairs = np.sort(np.concatenate([cells[:, [0, 1]], cells[:, [1, 2]], cells[:, [2, 0]]]), axis=1)
            edges = np.unique(pairs, axis=0)
        bar = points[edges[:, 0]] - points[edges[:, 1]]
        length = np.linalg.norm(bar, axis=1, keepdims=True).clip(1e-300)
        wanted = 1.2 * math.sqrt(float((length**2).mean()))
        push = np.maximum(wanted - length, 0) / length * bar
        force = np.zeros_like(points)
        np.add.at(force, edges[:, 0], push)
        np.add.at(force, edges[:, 1], -push)
        force[:still] = 0
        points = points + 0.2 * force
        d = distance(points)
        out = np.flatnonzero(d > 0)
        out = out[out >= still]
        points[out] = _pulled(points[out], distance, spacing)
        if np.linalg.norm(0.2 * force[d < -0.001 * spacing], axis=1).max(initial=0.0) < 0.002 * spacing:
            break
    near = np.flatnonzero(np.abs(distance(points)) < 0.25 * spacing)
    near = near[near >= still]
    points[near] = _pulled(points[near], distance, spacing)  # what is nearly on the boundary belongs onto it
    cells = _inside(points, distance, spacing)
    used = np.unique(cells)
    place = np.zeros(len(points), dtype=np.int64)
    place[used] = np.arange(len(used))
    mesh = Mesh(points[used], place[cells])
    if mesh.quality.min() < _POOR:
        raise InputError(f"a spacing of {spacing:g} is too coarse for this shape: its worst cell is a sliver; take a finer one")
    facets = mesh.boundary_facets
    middle = mesh.points[facets].mean(axis=1)
    nearest = np.stack([of(middle) for _, of in pieces]).argmin(axis=0)
    named = {name: facets[nearest == k] for k, (name, _) in enumerate(pieces) if (nearest == k).any()}
    return Mesh(mesh.points, mesh.cells, named)


def _inside(points: np.ndarray, distance: Distance, spacing: float) -> np.ndarray:
    """Delaunay triangles of the points whose middle is inside."""
    try:
        cells = Delaunay(points).simplices
    except QhullError as error:
        raise InputError(f"a spacing of {spacing:g} is too coarse for this shape") from error
    a, b, c = points[cells[:, 0]], points[cells[:, 1]], points[cells[:, 2]]
    area = np.abs((b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0])
    keep = (distance((a + b + c) / 3) < -0.001 * spacing) & (area > 1e-3 * spacing**2)
    if not keep.any():
        raise InputError(f"a spacing of {spacing:g} is too coarse for this shape")
    return cells[keep].astype(np.int64)


def _pulled(points: np.ndarray, distance: Distance, spacing: float) -> np.ndarray:
    """Points moved onto the boundary along the gradient of the distance."""
    h = 1e-6 * spacing
    for _ in range(2):
        d = distance(points)
        slope = np.stack([(distance(points + h * e) - d) / h for e in np.eye(2)], axis=1)
        points = points - d[:, None] * slope / (slope**2).sum(axis=1, keepdims=True).clip(1e-3)
    return points


def _not_too_many(nodes: float) -> None:
    if not nodes <= _MOST:
        raise InputError(f"this spacing would make about {nodes:.0f} nodes, more than {_MOST}; take a larger one or a mesh file")
