"""The channels of the paper: walls with bumps, grooves and waves, obstacles that are ellipses; and the disc. Meshed by gmsh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.mesh.shapes import generate_mesh, gmsh_model, positive, surface

Profile = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Ellipse:
    """An obstacle: semi-axes `radii`, the first one turned by `angle` (radians) from the x axis."""

    centre: tuple[float, float]
    radii: tuple[float, float]
    angle: float = 0.0

    def outline(self, n: int = 256) -> np.ndarray:
        """Points [n, 2] on the ellipse."""
        t = 2 * np.pi * np.arange(n) / n
        c, s = math.cos(self.angle), math.sin(self.angle)
        local = np.stack([self.radii[0] * np.cos(t), self.radii[1] * np.sin(t)], axis=1)
        return np.asarray(self.centre) + local @ np.array([[c, s], [-s, c]])

    def contains(self, points: np.ndarray) -> np.ndarray:
        c, s = math.cos(self.angle), math.sin(self.angle)
        local = (points - np.asarray(self.centre)) @ np.array([[c, -s], [s, c]])
        return ((local / np.asarray(self.radii)) ** 2).sum(axis=1) <= 1


def circle(centre: tuple[float, float], radius: float) -> Ellipse:
    return Ellipse(centre, (radius, radius))


def hump(peak: float = 0.5) -> Profile:
    """A smooth bump on [0, 1], zero with zero slope at both ends and 1 at `peak`: s^a (1-s)^b, scaled, min(a, b) = 2."""
    if not 0 < peak < 1:
        raise InputError(f"the peak of a hump must lie in (0, 1), got {peak}")
    a, b = 2 * peak / min(peak, 1 - peak), 2 * (1 - peak) / min(peak, 1 - peak)
    return lambda s: (s / peak) ** a * ((1 - s) / (1 - peak)) ** b


def naca(s: np.ndarray) -> np.ndarray:
    """Upper half of a symmetric four-digit NACA airfoil (closed trailing edge) on [0, 1], scaled to height 1."""
    y = 0.2969 * np.sqrt(s) - 0.1260 * s - 0.3516 * s**2 + 0.2843 * s**3 - 0.1036 * s**4
    return y / 0.1000  # half thickness is 5 t y, so y is 0.1 at the thickest place; the last digits do not matter


def wave(periods: int) -> Profile:
    """sin(2 pi periods s): zero at both ends."""
    return lambda s: np.sin(2 * np.pi * periods * s)


@dataclass(frozen=True)
class Bump:
    """A stretch start < x < end of a wall moved up by height * profile((x - start) / (end - start)).

    Up means +y on both walls: a positive height narrows the channel at the bottom wall and widens it at the top one.
    """

    start: float
    end: float
    height: float
    profile: Profile


def disc(radius: float = 1.0, size: float = 0.1) -> Mesh:
    """A disc about the origin, spacing `size`, boundary `rim`."""
    positive(radius=radius, size=size)
    with gmsh_model("disc") as g:
        rim = g.model.occ.addCircle(0, 0, 0, radius)
        surface(g, [[rim]])
        return generate_mesh(g, 2, {"rim": [rim]}, size)


def channel(length: float = 24.0, height: float = 8.0, obstacles: Sequence[Ellipse] = (), bottom: Sequence[Bump] = (),
            top: Sequence[Bump] = (), size: float = 0.3, near: float | None = None, reach: float = 2.0) -> Mesh:
    """The channel [0, length] x [0, height] with ellipses inside and bumps, grooves or waves on its walls.

    Boundaries: `inlet` (x = 0), `outlet` (x = length), `walls` and, with obstacles, `obstacle`. The spacing is `size`, or
    `near` on obstacles and bumps, growing linearly to `size` at distance `reach` from them.
    """
    positive(length=length, height=height, size=size, near=size if near is None else near, reach=reach)
    _check_channel(length, height, obstacles, bottom, top)
    with gmsh_model("channel") as g:
        occ = g.model.occ
        corners = [occ.addPoint(x, y, 0) for x, y in ((0, 0), (length, 0), (length, height), (0, height))]
        low, low_bumps = _wall(g, corners[0], corners[1], 0.0, length, bottom)
        high, high_bumps = _wall(g, corners[3], corners[2], height, length, top)
        inlet, outlet = occ.addLine(corners[0], corners[3]), occ.addLine(corners[1], corners[2])
        inner = [_ellipse(g, e) for e in obstacles]
        surface(g, [[*low, outlet, *[-c for c in reversed(high)], -inlet], *[[c] for c in inner]])
        names = {"inlet": [inlet], "outlet": [outlet], "walls": low + high}
        if inner:
            names["obstacle"] = inner
        return generate_mesh(g, 2, names, size, near, reach, inner + low_bumps + high_bumps)


def _check_channel(length: float, height: float, obstacles: Sequence[Ellipse], bottom: Sequence[Bump],
                   top: Sequence[Bump]) -> None:
    """One sentence about a bump out of order or an obstacle in a wall, before gmsh fails with several."""
    for wall, bumps in (("bottom", bottom), ("top", top)):
        place = 0.0
        for k, bump in enumerate(bumps):
            if not place <= bump.start < bump.end <= length:
                raise InputError(f"bump {k} of the {wall} wall spans {bump.start:g} to {bump.end:g}: bumps must lie in "
                                 f"order, apart, within [0, {length:g}]")
            place = bump.end
    x = np.linspace(0, length, 2001)
    if (_wall_height(x, 0.0, bottom) >= _wall_height(x, height, top)).any():
        raise InputError("the bumps of the bottom and the top wall meet")
    for k, ellipse in enumerate(obstacles):
        positive(**{f"each radius of obstacle {k}": min(ellipse.radii)})
        p = ellipse.outline()
        free = (p[:, 0] > 0) & (p[:, 0] < length)
        free &= (p[:, 1] > _wall_height(p[:, 0], 0.0, bottom)) & (p[:, 1] < _wall_height(p[:, 0], height, top))
        if not free.all():
            raise InputError(f"obstacle {k} at {ellipse.centre} reaches out of the channel")
        for j, other in enumerate(obstacles[:k]):
            if other.contains(p).any() or ellipse.contains(other.outline()).any():
                raise InputError(f"obstacles {j} and {k} overlap")


def _wall_height(x: np.ndarray, level: float, bumps: Sequence[Bump]) -> np.ndarray:
    y = np.full_like(x, level)
    for bump in bumps:
        s = np.clip((x - bump.start) / (bump.end - bump.start), 0, 1)
        y = y + np.where((s > 0) & (s < 1), bump.height * bump.profile(s), 0.0)
    return y


def _wall(g: Any, first: int, last: int, level: float, length: float,
          bumps: Sequence[Bump]) -> tuple[list[int], list[int]]:
    """Curves of a wall from left to right (points first .. last), and those of them that are bumps."""
    occ = g.model.occ
    curves, curved, here, x_here = [], [], first, 0.0
    for bump in bumps:
        if bump.start > x_here:
            there = occ.addPoint(bump.start, level, 0)
            curves.append(occ.addLine(here, there))
            here = there
        there = last if bump.end == length else occ.addPoint(bump.end, level, 0)
        s = 0.5 - 0.5 * np.cos(np.pi * np.arange(1, 80) / 80)  # crowded at the ends, where an airfoil's nose is steep
        x, y = bump.start + s * (bump.end - bump.start), level + bump.height * bump.profile(s)
        curved.append(occ.addSpline([here, *[occ.addPoint(a, b, 0) for a, b in zip(x, y)], there]))
        curves.append(curved[-1])
        here, x_here = there, bump.end
    if x_here < length:
        curves.append(occ.addLine(here, last))
    return curves, curved


def _ellipse(g: Any, e: Ellipse) -> int:
    (a, b), angle = e.radii, e.angle
    if a < b:  # OpenCASCADE wants the long axis first
        a, b, angle = b, a, angle + np.pi / 2
    tag = g.model.occ.addEllipse(*e.centre, 0, a, b)
    g.model.occ.rotate([(1, tag)], *e.centre, 0, 0, 0, 1, angle)
    return int(tag)
