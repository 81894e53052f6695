"""Random parts, meshed by gmsh: what universal weights are trained and tested on.

`TRAIN` and `TEST` name generators that have no shape in common. A part has about the wished number of nodes, a spacing that
changes by up to a factor of four across it, and no named boundaries. The same `numpy` generator gives the same part with the
same version of gmsh, so parts are stored (`dgnet.mesh.save_parts`) and not drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dgnet.errors import InputError
from dgnet.mesh.mesh import Mesh
from dgnet.mesh.shapes import generate_mesh, gmsh_model

Draw = Callable[[Any, np.random.Generator], None]
"""Puts a shape of about unit size into the model of gmsh."""


def random_part(kind: str, nodes: int, rng: np.random.Generator) -> Mesh:
    """A random part of a kind from `TRAIN` or `TEST` with about `nodes` nodes."""
    if kind not in KINDS:
        raise InputError(f"unknown kind of part '{kind}' (known: {', '.join(KINDS)})")
    dim, draw = KINDS[kind]
    with gmsh_model("part") as g:
        draw(g, rng)
        g.model.occ.synchronize()
        bodies = g.model.getEntities(dim)
        volume = sum(g.model.occ.getMass(*body) for body in bodies)
        low, high = np.array(g.model.getBoundingBox(-1, -1)).reshape(2, 3)
        share = 0.8660 if dim == 2 else 0.72  # of a square or cube of the spacing, for each node
        grading, centre = rng.uniform(0.25, 1.0), rng.uniform(low, high)
        reach = rng.uniform(0.2, 0.7) * float((high - low).max())
        size = (volume / (share * nodes)) ** (1 / dim) * (1.35 - 0.35 * grading)
        distance = "+".join(f"({axis}-({c:.6g}))^2" for axis, c in zip("xyz", centre))
        g.model.mesh.field.add("MathEval", 1)
        g.model.mesh.field.setString(1, "F", f"{size:.6g}*({grading:.4g}+{1 - grading:.4g}*Tanh(Sqrt({distance})/{reach:.4g}))")
        g.model.mesh.field.setAsBackgroundMesh(1)
        g.option.setNumber("Mesh.MeshSizeExtendFromBoundary", 0)
        g.option.setNumber("Mesh.MeshSizeFromPoints", 0)
        g.option.setNumber("Mesh.Algorithm", 5 if rng.random() < 0.5 else 6)
        return generate_mesh(g, dim, {})


def random_parts(kinds: Sequence[str], count: int, nodes: tuple[int, int], seed: int) -> list[tuple[str, Mesh]]:
    """`count` random parts, (kind, mesh) each, the kinds in turn; wished numbers of nodes are log-uniform between two bounds.

    Parts with slivers (quality below 0.05) or far from the wished size are drawn again. The shipped weights for flat parts come
    from random_parts(TRAIN[2], 440, (120, 420), 101) and (TRAIN[2], 400, (120, 420), 201), those for bodies from (TRAIN[3], 200,
    (130, 450), 103) and (TRAIN[3], 160, (140, 460), 203), the test parts from (TEST[2], 64, (150, 700), 102) and (TEST[3], 32,
    (200, 600), 104), with gmsh 4.15.
    """
    found: list[tuple[str, Mesh]] = []
    (low, high), tried = nodes, 0
    while len(found) < count:
        rng = np.random.default_rng([seed, tried])
        tried += 1
        kind = kinds[tried % len(kinds)]
        wished = int(np.exp(rng.uniform(np.log(low), np.log(high))))
        try:
            mesh = random_part(kind, wished, rng)
        except (InputError, ValueError):  # some draws make shapes that cannot be meshed
            if tried > 20 * count + 20:
                raise
            continue
        if 0.6 * low <= mesh.n_nodes <= 1.5 * high and mesh.quality.min() >= 0.05:
            found.append((kind, mesh))
    return found


# ---------------------------------------------------------------------- flat shapes


def _loop(g: Any, points: np.ndarray) -> int:
    occ = g.model.occ
    tags = [occ.addPoint(x, y, 0) for x, y in points]
    return int(occ.addCurveLoop([occ.addLine(a, b) for a, b in zip(tags, [*tags[1:], tags[0]])]))


def _ring(centre: Sequence[float] | np.ndarray, radii: np.ndarray, turn: float = 0.0) -> np.ndarray:
    """Points at these radii, at equal angles about a centre."""
    angle = turn + 2 * np.pi * np.arange(len(radii)) / len(radii)
    return np.asarray(centre) + radii[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)


def _holes(rng: np.random.Generator, most: int, room: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Up to `most` outlines of holes that stay clear of the rim and of each other; room(x) is the distance to the rim."""
    found: list[tuple[np.ndarray, float]] = []
    outlines = []
    for _ in range(20 * most):
        if len(found) >= most:
            break
        centre, radius = rng.uniform(-0.8, 0.8, 2), rng.uniform(0.06, 0.22)
        if float(room(centre[None])[0]) > 1.5 * radius and all(np.linalg.norm(centre - c) > 1.4 * (r + radius) for c, r in found):
            found.append((centre, radius))
            corners = int(rng.choice([3, 4, 5, 6, 24]))
            outlines.append(_ring(centre, np.full(corners, radius) * rng.uniform(0.7, 1.0, corners if corners < 24 else 1),
                                  rng.uniform(0, 6)))
    return outlines


def _flat(g: Any, rng: np.random.Generator, outline: np.ndarray) -> None:
    def room(x: np.ndarray) -> np.ndarray:
        a, b = outline, np.roll(outline, -1, 0)
        t = np.clip(((x[:, None] - a) * (b - a)).sum(-1) / ((b - a) ** 2).sum(-1), 0, 1)
        gap = np.linalg.norm(x[:, None] - a - t[..., None] * (b - a), axis=-1).min(1)
        rise = np.where(b[:, 1] == a[:, 1], 1e-30, b[:, 1] - a[:, 1])
        crossing = ((a[:, 1] > x[:, None, 1]) != (b[:, 1] > x[:, None, 1])) & (
            x[:, None, 0] < a[:, 0] + (x[:, None, 1] - a[:, 1]) / rise * (b[:, 0] - a[:, 0]))
        return np.where(crossing.sum(1) % 2 == 1, gap, -gap)

    loops = [_loop(g, outline), *(_loop(g, hole) for hole in _holes(rng, int(rng.integers(0, 4)), room))]
    g.model.occ.addPlaneSurface(loops)


def blob(g: Any, rng: np.random.Generator) -> None:
    """A smooth closed curve with lobes, stretched; up to three holes."""
    angle = 2 * np.pi * np.arange(72) / 72
    radius = 1 + sum(rng.normal(0, 0.25 / k) * np.cos(k * angle + rng.uniform(0, 6.3)) for k in range(2, 6))
    outline = _ring((0, 0), np.clip(radius, 0.35, None))
    _flat(g, rng, outline * [1, rng.uniform(0.5, 1)])


def polygon(g: Any, rng: np.random.Generator) -> None:
    """A star-shaped polygon with sharp and re-entrant corners; up to three holes."""
    corners = int(rng.integers(3, 10))
    _flat(g, rng, _ring((0, 0), rng.uniform(0.45, 1.1, corners), rng.uniform(0, 6.3)))


def neck(g: Any, rng: np.random.Generator) -> None:
    """Two bodies joined by a thin neck; up to three holes."""
    x = np.linspace(-1, 1, 25)
    half = np.sqrt(np.clip(1 - x**2, 0, None)) * (rng.uniform(0.12, 0.3) + rng.uniform(0.3, 0.7) * np.abs(x) ** rng.uniform(1, 2.5))
    upper = np.stack([1.2 * x, half], 1)[1:-1]
    lower = np.stack([1.2 * x, -half * rng.uniform(0.6, 1)], 1)[1:-1][::-1]
    _flat(g, rng, np.concatenate([[[-1.2, 0]], upper, [[1.2, 0]], lower])[::-1])


def profile(g: Any, rng: np.random.Generator) -> None:
    """Two to five bars joined at right angles, some drilled: sections of beams and frames."""
    occ = g.model.occ
    x, y = 0.0, 0.0
    bars = []
    for k in range(int(rng.integers(2, 6))):
        long, thick = rng.uniform(0.6, 1.4), rng.uniform(0.15, 0.4)
        w, h = (long, thick) if k % 2 == 0 else (thick, long)
        bars.append((2, occ.addRectangle(x - w / 2, y - h / 2, 0, w, h)))
        x, y = x + rng.choice([-0.45, 0.0, 0.45]) * w, y + rng.choice([-0.45, 0.0, 0.45]) * h
    body = occ.fuse(bars[:1], bars[1:])[0]
    drills = [(2, occ.addDisk(*rng.uniform(-0.6, 0.6, 2), 0, r, r)) for r in rng.uniform(0.04, 0.09, int(rng.integers(0, 4)))]
    body = occ.cut(body, drills)[0] if drills else body
    _largest(g, body, 2)


def gear(g: Any, rng: np.random.Generator) -> None:
    """A toothed wheel with a bore and round openings."""
    occ = g.model.occ
    teeth, depth = int(rng.integers(7, 15)), rng.uniform(0.08, 0.2)
    wheel = occ.addPlaneSurface([_loop(g, _ring((0, 0), np.tile([1.0, 1.0, 1 - depth, 1 - depth], teeth)))])
    cuts = [(2, occ.addDisk(0, 0, 0, r, r)) for r in [rng.uniform(0.1, 0.25)]]
    count = int(rng.integers(0, 7))
    cuts += [(2, occ.addDisk(0.55 * math.cos(2 * math.pi * k / count), 0.55 * math.sin(2 * math.pi * k / count), 0, 0.13, 0.13))
             for k in range(count)]
    occ.cut([(2, wheel)], cuts)


def slotted(g: Any, rng: np.random.Generator) -> None:
    """An ellipse or an annulus with slots from the rim inwards."""
    occ = g.model.occ
    a = rng.uniform(0.6, 1.0)
    body = [(2, occ.addDisk(0, 0, 0, 1, a))]
    cuts = [(2, occ.addDisk(*rng.uniform(-0.15, 0.15, 2), 0, 0.3, 0.25))] if rng.random() < 0.5 else []
    for angle in rng.uniform(0, 2 * np.pi, int(rng.integers(1, 5))):
        slot = occ.addRectangle(0.45, -0.04, 0, 0.8, rng.uniform(0.05, 0.12))
        occ.rotate([(2, slot)], 0, 0, 0, 0, 0, 1, angle)
        cuts.append((2, slot))
    _largest(g, occ.cut(body, cuts)[0], 2)


# ---------------------------------------------------------------------- solids


def _largest(g: Any, bodies: Sequence[tuple[int, int]], dim: int) -> None:
    """Keep the largest connected body: cuts may have made several."""
    occ = g.model.occ
    bodies = [body for body in bodies if body[0] == dim]
    best = max(bodies, key=lambda body: occ.getMass(*body))
    occ.remove([body for body in bodies if body != best], recursive=True)


def _drilled(g: Any, rng: np.random.Generator, body: Sequence[tuple[int, int]], most: int) -> None:
    occ, axes = g.model.occ, np.eye(3)
    drills = []
    for _ in range(int(rng.integers(0, most + 1))):
        axis, at = axes[rng.integers(3)], rng.uniform(-0.5, 0.5, 3)
        drills.append((3, occ.addCylinder(*(at - 2 * axis), *(4 * axis), rng.uniform(0.08, 0.2))))
    _largest(g, occ.cut(list(body), drills)[0] if drills else body, 3)


def blocks(g: Any, rng: np.random.Generator) -> None:
    """One to three boxes joined, drilled through."""
    occ = g.model.occ
    boxes = []
    for _ in range(int(rng.integers(1, 4))):
        size, corner = rng.uniform(0.5, 1.4, 3), rng.uniform(-0.9, -0.2, 3)
        boxes.append((3, occ.addBox(*corner, *size)))
    _drilled(g, rng, occ.fuse(boxes[:1], boxes[1:])[0] if len(boxes) > 1 else boxes, 2)


def extruded(g: Any, rng: np.random.Generator) -> None:
    """A blob or polygon with holes, drawn to a thickness."""
    (blob if rng.random() < 0.5 else polygon)(g, rng)
    occ = g.model.occ
    occ.extrude([body for body in occ.getEntities(2)], 0, 0, rng.uniform(0.25, 0.9))


def turned(g: Any, rng: np.random.Generator) -> None:
    """A stepped shaft, often bored."""
    occ = g.model.occ
    z, pieces = 0.0, []
    for _ in range(int(rng.integers(2, 5))):
        length = rng.uniform(0.25, 0.7)
        pieces.append((3, occ.addCylinder(0, 0, z, 0, 0, length, rng.uniform(0.25, 0.7))))
        z += length
    body = occ.fuse(pieces[:1], pieces[1:])[0]
    if rng.random() < 0.6:
        body = occ.cut(body, [(3, occ.addCylinder(0, 0, -1, 0, 0, 5, rng.uniform(0.08, 0.18)))])[0]
    _largest(g, body, 3)


def rounded(g: Any, rng: np.random.Generator) -> None:
    """A ball or a cone with flat cuts."""
    occ = g.model.occ
    body = [(3, occ.addSphere(0, 0, 0, 0.8))] if rng.random() < 0.5 else [(3, occ.addCone(0, 0, -0.7, 0, 0, 1.4, 0.8, 0.3))]
    for _ in range(int(rng.integers(1, 4))):
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        cutter = occ.addBox(-2, -2, rng.uniform(0.3, 0.55), 4, 4, 4)
        axis = np.cross([0, 0, 1], direction)
        occ.rotate([(3, cutter)], 0, 0, 0, *axis, math.acos(np.clip(direction[2], -1, 1)))
        body = occ.cut(body, [(3, cutter)])[0]
    _largest(g, body, 3)


KINDS: dict[str, tuple[int, Draw]] = {
    "blob": (2, blob), "polygon": (2, polygon), "neck": (2, neck), "profile": (2, profile), "gear": (2, gear),
    "slotted": (2, slotted), "blocks": (3, blocks), "extruded": (3, extruded), "turned": (3, turned), "rounded": (3, rounded)}
TRAIN = {2: ("blob", "polygon", "neck"), 3: ("blocks", "extruded")}
TEST = {2: ("profile", "gear", "slotted"), 3: ("turned", "rounded")}


# ---------------------------------------------------------------------- many meshes in one file


def save_parts(path: Any, parts: Sequence[tuple[str, Mesh]]) -> None:
    """Points, cells and kinds of many parts, compressed, in one .npz."""
    meshes = [mesh for _, mesh in parts]
    sizes = np.array([(m.n_nodes, m.n_cells) for m in meshes], dtype=np.int64)
    np.savez_compressed(path, kinds=np.array([kind for kind, _ in parts]), sizes=sizes,
                        points=np.concatenate([m.points for m in meshes]).astype(np.float32),
                        cells=np.concatenate([m.cells for m in meshes]).astype(np.uint16))


def load_parts(path: Any) -> list[tuple[str, Mesh]]:
    """What `save_parts` wrote: (kind, mesh) of each part."""
    with np.load(path, allow_pickle=False) as file:
        kinds, sizes, points, cells = (file[key] for key in ("kinds", "sizes", "points", "cells"))
    ends = np.cumsum(sizes, 0)
    return [(str(kind), Mesh(points[b - n:b].astype(float), cells[d - k:d].astype(np.int64)))
            for kind, (n, k), (b, d) in zip(kinds, sizes, ends)]
