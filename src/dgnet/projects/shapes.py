"""The [mesh] table as a mesh: a file, a shipped mesh, or a shape.

Flat shapes are meshed here, without gmsh, by letting the edges of a Delaunay triangulation push its nodes apart until they sit
evenly (Persson and Strang, A simple mesh generator in MATLAB, 2004). The shapes of `dgnet.mesh` (gmsh) are available, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import Delaunay, QhullError

from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.mesh import ALL, Mesh, box, bracket, channel, circle, dfg_channel, gear_plate, shipped, shipped_names
from dgnet.mesh import load as load_mesh
from dgnet.projects.physics import Physics
from dgnet.projects.toml import MeshSpec, Selection

_MOST = 200_000  # nodes of a shape
_POOR = 0.1  # radius ratio below which a shape counts as not meshed

Distance = Callable[[np.ndarray], np.ndarray]
"""Signed distance of points [n, 2] from the edge of a shape, negative inside."""


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
        mesh = shape(spec.shape, spec.measures, where)
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


class Measures:
    """The measures of one shape, each asked for by name; what is left over is unknown."""

    def __init__(self, values: Mapping[str, Any], name: str, where: str) -> None:
        self.values, self.name, self.where = dict(values), name, where
        self.known: list[str] = []

    def length(self, key: str, default: float | None = None, positive: bool = True) -> float:
        value = self._get(key, default)
        if not isinstance(value, float) or (positive and value <= 0):
            raise self._wrong(key, "a positive number" if positive else "a number")
        return value

    def vector(self, key: str, sizes: Sequence[int], default: tuple[float, ...] | None = None, positive: bool = False) -> Any:
        value = self._get(key, default)
        if not isinstance(value, tuple) or len(value) not in sizes or any(
                not isinstance(v, float) or (positive and v <= 0) for v in value):
            raise self._wrong(key, f"{' or '.join(map(str, sizes))} {'positive ' if positive else ''}numbers")
        return value

    def outline(self, key: str) -> np.ndarray:
        value = self._get(key, None)
        if not isinstance(value, tuple) or len(value) < 3 or any(
                not isinstance(p, tuple) or len(p) != 2 or any(not isinstance(v, float) for v in p) for p in value):
            raise self._wrong(key, "at least three corners [x, y]")
        return np.array(value)

    def circles(self, key: str) -> list[tuple[tuple[float, float], float]]:
        value = self._get(key, ())
        if not isinstance(value, tuple):
            raise self._wrong(key, "a list of { centre = [x, y], radius = r }")
        found = []
        for hole in value:
            if not isinstance(hole, dict) or set(hole) != {"centre", "radius"}:
                raise self._wrong(key, "a list of { centre = [x, y], radius = r }")
            inner = Measures(hole, self.name, f"{self.where}.{key}")
            found.append((inner.vector("centre", (2,)), inner.length("radius")))
        return found

    def close(self) -> None:
        for key in self.values:
            if key not in self.known:
                raise InputError(f"{self.where}.{key} is no measure of the shape '{self.name}'"
                                 + did_you_mean(key, self.known, "it has"))

    def _get(self, key: str, default: Any) -> Any:
        self.known.append(key)
        if key not in self.values and default is None:
            raise InputError(f"{self.where}.{key} is missing: the shape '{self.name}' needs it")
        return self.values.get(key, default)

    def _wrong(self, key: str, expected: str) -> InputError:
        return InputError(f"{self.where}.{key} must be {expected}, got {self.values.get(key)!r}")


def shape(name: str, measures: Mapping[str, Any], where: str) -> Mesh:
    """A shape by name with its measures."""
    if name not in SHAPES:
        raise InputError(f"{where}: mesh.shape is '{name}', which is not known" + did_you_mean(name, SHAPES))
    m = Measures(measures, name, f"{where}: mesh")
    make = SHAPES[name](m)
    m.close()
    try:
        return make()
    except InputError as error:
        raise InputError(f"{m.where}: {error}") from error


def _grid(m: Measures, dim: int) -> Callable[[], Mesh]:
    size, spacing = m.vector("size", (dim,), positive=True), m.length("spacing")
    corner = m.vector("corner", (dim,), (0.0,) * dim)
    perturb = m.length("perturb", 0.0 if dim == 3 else 0.2, positive=False)

    def make() -> Mesh:
        _not_too_many(math.prod(1 + s / spacing for s in size))
        counts = tuple(max(1, round(s / spacing)) for s in size)
        return box(counts, corner, tuple(c + s for c, s in zip(corner, size)), perturb)

    return make


def _disc(m: Measures) -> Callable[[], Mesh]:
    centre, radius, spacing = m.vector("centre", (2,), (0.0, 0.0)), m.length("radius"), m.length("spacing")
    return partial(disc, radius, spacing, np.array(centre))


def _l_shape(m: Measures) -> Callable[[], Mesh]:
    (w, h), (a, b) = m.vector("size", (2,), positive=True), m.vector("arms", (2,), positive=True)
    spacing, holes = m.length("spacing"), m.circles("holes")
    if a >= h or b >= w:
        raise InputError(f"{m.where}.arms must be thinner than the size: [height of the lower arm, width of the left arm]")
    corners = np.array([(0, 0), (w, 0), (w, a), (b, a), (b, h), (0, h)], dtype=float)
    return lambda: plate(corners, holes, spacing, ["bottom", "right", "inner", "inner", "top", "left"])


def _polygon(m: Measures) -> Callable[[], Mesh]:
    corners, spacing, holes = m.outline("outline"), m.length("spacing"), m.circles("holes")
    return lambda: plate(corners, holes, spacing)


def _channel(m: Measures) -> Callable[[], Mesh]:
    (length, height), size, holes = m.vector("size", (2,), positive=True), m.length("spacing"), m.circles("obstacles")
    return lambda: channel(length, height, [circle(c, r) for c, r in holes], size=size)


SHAPES: dict[str, Callable[[Measures], Callable[[], Mesh]]] = {
    "rectangle": lambda m: _grid(m, 2), "box": lambda m: _grid(m, 3), "disc": _disc, "l-shape": _l_shape, "polygon": _polygon,
    "channel": _channel, "gear-plate": lambda m: partial(gear_plate, m.length("spacing")),
    "bracket": lambda m: partial(bracket, m.length("spacing")), "dfg-channel": lambda m: partial(dfg_channel, m.length("spacing")),
}
"""The first five need nothing; the others are made by gmsh (`pip install 'dgnet[mesh]'`)."""


# ---------------------------------------------------------------------- a mesh generator for flat shapes


def disc(radius: float, spacing: float, middle: np.ndarray | None = None) -> Mesh:
    """A disc; its boundary is `rim`."""
    centre = np.zeros(2) if middle is None else middle
    return meshed(lambda x: np.linalg.norm(x - centre, axis=1) - radius, centre - radius, centre + radius, spacing,
                  np.empty((0, 2)), [("rim", lambda x: np.abs(np.linalg.norm(x - centre, axis=1) - radius))])


def plate(corners: np.ndarray, holes: Sequence[tuple[tuple[float, float], float]], spacing: float,
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
