"""Parametric shapes meshed by gmsh: channel, DFG benchmark channel, gear plate and bracket.

gmsh is an extra (`pip install 'dgnet[mesh]'`) and its wheel needs system libraries that a bare machine lacks, so it is
imported inside the functions only; what the package itself needs ships ready-made (`dgnet.mesh.shipped`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dgnet.errors import InputError
from dgnet.mesh.mesh import Mesh


def channel(length: float = 24.0, height: float = 8.0, obstacles: Sequence[tuple[Sequence[float], float]] = (), size: float = 0.3,
            near: float | None = None, reach: float = 2.0) -> Mesh:
    """The channel [0, length] x [0, height] around discs, each given by centre and radius.

    Boundaries: `inlet` (x = 0), `outlet` (x = length), `walls` and, with obstacles, `obstacle`. The spacing is `size`, or
    `near` on obstacles, growing linearly to `size` at distance `reach` from them.
    """
    positive(length=length, height=height, size=size, near=size if near is None else near, reach=reach)
    for k, ((x, y), radius) in enumerate(obstacles):
        positive(**{f"the radius of obstacle {k}": radius})
        if not (radius < x < length - radius and radius < y < height - radius):
            raise InputError(f"obstacle {k} at {(x, y)} reaches out of the channel")
        for j, (other, width) in enumerate(obstacles[:k]):
            if math.hypot(x - other[0], y - other[1]) <= radius + width:
                raise InputError(f"obstacles {j} and {k} overlap")
    with gmsh_model("channel") as g:
        occ = g.model.occ
        corners = [occ.addPoint(x, y, 0) for x, y in ((0, 0), (length, 0), (length, height), (0, height))]
        low, outlet, high, inlet = (occ.addLine(corners[k], corners[(k + 1) % 4]) for k in range(4))
        inner = [occ.addCircle(*centre, 0, radius) for centre, radius in obstacles]
        surface(g, [[low, outlet, high, inlet], *[[c] for c in inner]])
        names = {"inlet": [inlet], "outlet": [outlet], "walls": [low, high]} | ({"obstacle": inner} if inner else {})
        return generate_mesh(g, 2, names, size, near, reach, inner)


def dfg_channel(size: float = 0.04, near: float | None = None, reach: float = 0.3) -> Mesh:
    """The DFG cylinder benchmark (Schaefer & Turek 1996): [0, 2.2] x [0, 0.41], cylinder of radius 0.05 at (0.2, 0.2).

    Boundaries inlet, outlet, walls, obstacle. The spacing at the cylinder is `near` (a tenth of `size` by default).
    """
    return channel(2.2, 0.41, [((0.2, 0.2), 0.05)], size=size, near=size / 10 if near is None else near, reach=reach)


def gear_plate(size: float = 0.018) -> Mesh:
    """The plate of the laser scenario: a bulging outline with a gear-shaped and two round holes.

    Four splines from corner to corner of [0, 1.4] x [0, 0.9]; a 24-vertex gear of radii 0.21 and 0.18 at the centre; two
    holes of radius 0.096 at distance 0.45 from it. Spacing `size` on the curves, 2 `size` from distance 0.15 on; the default
    gives the paper's 6,072 nodes (and 11,750 triangles). Boundaries `outer`, `gear`, `holes`.
    """
    positive(size=size)
    with gmsh_model("gear plate") as g:
        occ = g.model.occ
        corners = [occ.addPoint(x, y, 0) for x, y in ((0, 0), (1.4, 0), (1.4, 0.9), (0, 0.9))]
        bulges = [occ.addPoint(x, y, 0) for x, y in ((0.7, -0.09), (1.54, 0.45), (0.7, 0.99), (-0.14, 0.45))]
        outer = [occ.addSpline([corners[i], bulges[i], corners[(i + 1) % 4]]) for i in range(4)]
        turn = 2 * np.pi * np.arange(24) / 24
        radius = np.where(np.arange(24) % 2 == 0, 0.21, 0.18)
        teeth = [occ.addPoint(0.7 + r * np.cos(a), 0.45 + r * np.sin(a), 0) for r, a in zip(radius, turn)]
        gear = [occ.addLine(teeth[i], teeth[(i + 1) % 24]) for i in range(24)]
        holes = [occ.addCircle(0.7 + side * 0.45, 0.45, 0, 0.096) for side in (-1, 1)]
        surface(g, [outer, gear, [holes[0]], [holes[1]]])
        # the sizes of the public script: gmsh's own defaults for the rest, which also spread sizes from the boundary
        g.option.setNumber("Mesh.Algorithm", 5)
        _sizes(g, outer + gear + holes, 2 * size, size, 0.15, sampling=None)
        g.option.setNumber("Mesh.MeshSizeExtendFromBoundary", 1)
        return generate_mesh(g, 2, {"outer": outer, "gear": gear, "holes": holes})


def bracket(size: float = 1.8e-3) -> Mesh:
    """An L-bracket in metres: 60 x 30 mm base, 40 mm high back, 10 mm thick, with a bore of radius 7 mm through the base.

    The base lies on z = 0 and spans x in [0, 0.06], y in [0, 0.03]; the back rises at x in [0, 0.01] to z = 0.04, with a fillet of
    5 mm in the inner corner; the bore stands at (0.0375, 0.015). Boundaries: `base` (z = 0), `bore`, and `faces` for the
    rest. The spacing is uniform.
    """
    positive(size=size)
    long, wide, high, thick, fillet, radius = 0.060, 0.030, 0.040, 0.010, 0.005, 0.007
    with gmsh_model("bracket") as g:
        occ = g.model.occ
        profile = [(0, 0), (long, 0), (long, thick), (thick + fillet, thick), (thick, thick + fillet), (thick, high), (0, high)]
        points = [occ.addPoint(x, 0, z) for x, z in profile]
        centre = occ.addPoint(thick + fillet, 0, thick + fillet)
        curves = [occ.addCircleArc(points[3], centre, points[4]) if i == 3 else occ.addLine(points[i], points[(i + 1) % 7])
                  for i in range(7)]
        solid = occ.extrude([(2, face(g, [curves]))], 0, wide, 0)
        body = [e for e in solid if e[0] == 3]
        middle = (long + thick + fillet) / 2
        occ.cut(body, [(3, occ.addCylinder(middle, wide / 2, -thick, 0, 0, 3 * thick, radius))])
        occ.synchronize()
        names: dict[str, list[int]] = {"base": [], "bore": [], "faces": []}
        for _, tag in g.model.getEntities(2):
            box = np.array(g.model.getBoundingBox(2, tag)).reshape(2, 3)
            extent = box[1] - box[0]
            flat = extent[2] < 1e-6 and abs(box[0, 2]) < 1e-6
            round_ = g.model.getType(2, tag) == "Cylinder" and abs(extent[0] - 2 * radius) < 1e-4
            names["base" if flat else "bore" if round_ else "faces"].append(tag)
        g.option.setNumber("Mesh.OptimizeNetgen", 1)
        return generate_mesh(g, 3, names, size)


# ---------------------------------------------------------------------- geometry helpers


def positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} must be a positive number, got {value}")


def face(g: Any, loops: Sequence[Sequence[int]]) -> int:
    return int(g.model.occ.addPlaneSurface([g.model.occ.addCurveLoop(list(loop)) for loop in loops]))


def surface(g: Any, loops: Sequence[Sequence[int]]) -> None:
    face(g, loops)
    g.model.occ.synchronize()


# ---------------------------------------------------------------------- gmsh itself


@contextmanager
def gmsh_model(shape: str) -> Iterator[Any]:
    """The gmsh module with an empty model; what goes wrong inside becomes one sentence."""
    try:
        import gmsh
    except (ImportError, OSError) as error:  # OSError: the wheel is there, a system library such as libGLU is not
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"meshing a {shape} needs gmsh ({reason}): pip install 'dgnet[mesh]', and the system libraries "
                         f"it names; shipped meshes need neither") from error
    ours = not gmsh.isInitialized()
    if ours:
        gmsh.initialize(interruptible=False)  # leaves signals alone, so that it also works off the main thread
    gmsh.option.setNumber("General.Terminal", 0)
    gmsh.model.add("dgnet")
    try:
        yield gmsh
    except InputError:
        raise
    except Exception as error:  # gmsh raises plain Exception
        raise InputError(f"gmsh could not mesh the {shape}: {error}") from error
    finally:
        gmsh.model.remove()
        if ours:
            gmsh.finalize()


def _sizes(g: Any, curves: Sequence[int], size: float, near: float, reach: float, sampling: int | None = 200) -> None:
    """Spacing `near` on the curves, growing linearly to `size` at distance `reach`."""
    fields = g.model.mesh.field
    distance = fields.add("Distance")
    fields.setNumbers(distance, "CurvesList", list(curves))
    if sampling:
        fields.setNumber(distance, "Sampling", sampling)
    ramp = fields.add("Threshold")
    for key, value in {"InField": distance, "SizeMin": near, "SizeMax": size, "DistMin": 0, "DistMax": reach}.items():
        fields.setNumber(ramp, key, value)
    fields.setAsBackgroundMesh(ramp)
    g.option.setNumber("Mesh.MeshSizeExtendFromBoundary", 0)


def generate_mesh(g: Any, dim: int, names: Mapping[str, Sequence[int]], size: float | None = None, near: float | None = None,
              reach: float = 1.0, curves: Sequence[int] = ()) -> Mesh:
    """Mesh the model and read it back: points in use, cells, and the facets on each named group of entities."""
    if size is not None and near is not None and curves:
        _sizes(g, curves, size, near, reach)
    elif size is not None:
        g.option.setNumber("Mesh.MeshSizeMax", size)
        g.option.setNumber("Mesh.MeshSizeMin", size)
    try:
        g.model.mesh.generate(dim)
    finally:
        for option, default in (("Mesh.MeshSizeMax", 1e22), ("Mesh.MeshSizeMin", 0), ("Mesh.MeshSizeExtendFromBoundary", 1),
                                ("Mesh.Algorithm", 6), ("Mesh.OptimizeNetgen", 0)):
            g.option.setNumber(option, default)
    tags, xyz, _ = g.model.mesh.getNodes()
    points = np.asarray(xyz).reshape(-1, 3)[:, :dim]
    kind = {1: 1, 2: 2, 3: 4}  # gmsh's numbers for 2-node line, 3-node triangle, 4-node tetrahedron
    cells = np.asarray(g.model.mesh.getElementsByType(kind[dim])[1], dtype=np.int64).reshape(-1, dim + 1)
    index = np.full(int(max(tags)) + 1, -1)
    used = np.isin(tags, cells)  # not the control points of splines
    index[np.asarray(tags)[used]] = np.arange(used.sum())
    boundaries = {}
    for name, entities in names.items():
        parts = [g.model.mesh.getElementsByType(kind[dim - 1], tag)[1] for tag in entities]
        boundaries[name] = index[np.concatenate(parts).astype(np.int64).reshape(-1, dim)]
    return Mesh(points[used], index[cells], boundaries)
