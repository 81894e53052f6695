"""Structured and perturbed boxes in plain NumPy."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from dgnet.arguments import Whole, checked
from dgnet.errors import InputError
from dgnet.mesh.mesh import Mesh


@checked
def box(cells: tuple[int, ...], lower: tuple[float, ...] | None = None, upper: tuple[float, ...] | None = None,
        perturb: float = 0.0, seed: Whole = 0) -> Mesh:
    """A rectangle or a box, cut into triangles or tetrahedra.

    - `cells`: squares or cubes along each axis, two or three counts
    - `lower`, `upper`: two opposite corners, in the unit of length of the problem; 0 and 1 by default
    - `perturb`: inner nodes are moved at random by up to this share of the spacing, 0 to 0.5; boundary nodes stay
    - `seed`: of these moves

    Boundaries are named left, right (first axis), bottom, top (second), back, front (third). In 2D the diagonals of the
    squares alternate, so that no direction is preferred.

        >>> import dgnet as dg
        >>> dg.box((4, 2), upper=(2.0, 1.0))
        Mesh(15 nodes, 16 triangles, boundaries: left, right, bottom, top)
        >>> dg.box((2, 2, 2), perturb=0.2, seed=1).dim
        3
    """
    d = len(cells)
    if d not in (2, 3) or min(cells) < 1:
        raise InputError(f"a box needs two or three positive cell counts, got {list(cells)}")
    if not 0 <= perturb < 0.5:
        raise InputError(f"perturb must lie in [0, 0.5), got {perturb}")
    lo = np.zeros(d) if lower is None else np.array(lower)
    hi = np.ones(d) if upper is None else np.array(upper)
    if len(lo) != d or len(hi) != d:
        raise InputError(f"the corners of a box must have {d} coordinates each, got {len(lo)} and {len(hi)}")
    n = np.array(cells)
    grid = np.stack(np.meshgrid(*[np.arange(k + 1) for k in cells], indexing="ij"), axis=-1).reshape(-1, d)
    index = np.arange(len(grid)).reshape(n + 1)
    points = grid.astype(float)
    if perturb:
        inner = ((grid > 0) & (grid < n)).all(axis=1)
        points[inner] += np.random.default_rng(seed).uniform(-perturb, perturb, size=(int(inner.sum()), d))
    points = lo + points * (hi - lo) / n

    if d == 2:
        a, b, c, e = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
        even = (np.add.outer(np.arange(cells[0]), np.arange(cells[1])) % 2 == 0)
        first = np.where(even[..., None], np.stack([a, b, c], -1), np.stack([a, b, e], -1))
        second = np.where(even[..., None], np.stack([a, c, e], -1), np.stack([b, c, e], -1))
        simplices = np.stack([first, second], axis=2).reshape(-1, 3)
    else:  # Kuhn's six tetrahedra per cube: one path from corner to corner per order of the axes
        start = np.stack(np.meshgrid(*[np.arange(k) for k in cells], indexing="ij"), axis=-1).reshape(-1, 3)
        paths = []
        for order in permutations(range(3)):
            corner = start.copy()
            path = [corner.copy()]
            for axis in order:
                corner[:, axis] += 1
                path.append(corner.copy())
            paths.append(np.stack([index[tuple(p.T)] for p in path], axis=1))
        simplices = np.stack(paths, axis=1).reshape(-1, 4)

    mesh = Mesh(points, simplices)
    names = [("left", "right"), ("bottom", "top"), ("back", "front")]
    facets = mesh.boundary_facets
    boundaries = {}
    for axis in range(d):
        for side, name in enumerate(names[axis]):
            value = 0 if side == 0 else n[axis]
            boundaries[name] = facets[(grid[facets, axis] == value).all(axis=1)]
    return Mesh(points, simplices, boundaries)


def perturbed_square(n: int, perturb: float = 0.25, seed: int = 0) -> Mesh:
    """The unit square as an n x n grid with moved inner nodes: (n+1)^2 nodes, the mesh of the paper's classical PDEs."""
    return box((n, n), perturb=perturb, seed=seed)
