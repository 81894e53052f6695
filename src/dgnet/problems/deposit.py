"""Values of narrow Gaussian spots at the points of a mesh.

Values at points, summed over the mesh, are the integral of a spot only where the spot is wide against the spacing. A narrow one
would bring nearly nothing between the nodes and a multiple of its power on one of them. So a spot exp(-|x - p|^2 / 2 r^2) of less
than `WIDE` spacings has the values

    s exp(-|x - p'|^2 / 2 r'^2)

with a radius r' that nodes resolve, and s and p' such that integral and centre of mass are those of the part of the spot on the
mesh. This holds for the nodes, with the consistent mass of linear elements, and for the middles of the edges, each with an equal
share of its cells: quadratic elements and the mesh refined once take both, and so their integrals are right, too.
"""

from __future__ import annotations

from functools import cached_property
from itertools import combinations
from weakref import WeakKeyDictionary

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import erf

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.mesh.locate import Locator

WIDE, FADE = 0.9, 0.8
"""Radius in spacings from which values are those of the spot, and up to which its integral is exact; in between they mix."""
LEAST = 0.7
"""Smallest radius r' in spacings."""
_REACH = 4.5  # radii beyond which a spot counts as zero: 4e-5 of its peak
_LEAF = 1.4  # radii: largest piece of a facet that is integrated at once
_POINT = 1e-3  # radius in spacings below which a spot is as good as a point
_ASIDE = 1e-4  # radii
_ROUNDS = 20  # at most, for the centre of mass
_CLOSE = 1e-5  # of it, in radii
_TOGETHER = 1000  # spots

_made: WeakKeyDictionary[Mesh, Deposit] = WeakKeyDictionary()


class Deposit:
    """Integrals of spots of peak 1 over a mesh, and the values of narrow ones at its points.

    - `mesh`: of the points
    """

    def __init__(self, mesh: Mesh) -> None:
        d, x = mesh.dim, mesh.points
        self.dim, self.points, self.cells, self.middles = d, x, mesh.cells, mesh.middles
        corners = x[mesh.cells]
        facets = x[mesh.boundary_facets]
        reach = np.linalg.norm(facets - facets.mean(1, keepdims=True), axis=2).max(1)
        self.rim, self._facets = float(reach.max()), (cKDTree(facets.mean(1)), reach, facets)
        self.edge_nodes = x[mesh.on_boundary]
        ends, lengths = mesh.edges.ravel(), np.repeat(mesh.edge_lengths, 2)
        self.around = np.bincount(ends, lengths, mesh.n_nodes) / np.bincount(ends, minlength=mesh.n_nodes)  # spacing at nodes
        share = mesh.volumes / ((d + 1) * (d + 2))
        first = share[:, None, None] * (corners.sum(1, keepdims=True) + corners)  # integrals of phi_j x
        self.nodal = np.concatenate([mesh.dual_volumes()[:, None], _added(mesh.cells, first, mesh.n_nodes)], 1)
        sides = np.sort(mesh.cells[:, list(combinations(range(d + 1), 2))], axis=2) @ np.array([mesh.n_nodes, 1])
        place = np.searchsorted(mesh.edges @ np.array([mesh.n_nodes, 1]), sides)
        weight = np.bincount(place.ravel(), np.repeat(mesh.volumes / place.shape[1], place.shape[1]), len(mesh.edges))
        self.central = np.concatenate([weight[:, None], weight[:, None] * mesh.middles], 1)

    @classmethod
    def of(cls, mesh: Mesh) -> Deposit:
        """The one of a mesh, made once."""
        if mesh not in _made:
            _made[mesh] = cls(mesh)
        return _made[mesh]

    @cached_property
    def locator(self) -> Locator:
        return Locator(self.points, self.cells)

    @cached_property
    def _trees(self) -> tuple[cKDTree, cKDTree, cKDTree, cKDTree]:
        """Search trees of the cells' centroids, the boundary's nodes, all nodes, the middles."""
        return tuple(cKDTree(x) for x in (self.points[self.cells].mean(1), self.edge_nodes, self.points, self.middles))  # type: ignore

    def spacing(self, places: np.ndarray) -> np.ndarray:
        """The mean length of the edges around places [T, d]: [T]; outside of the mesh, that of its nearest cell."""
        found: np.ndarray = self.locator(places)[0] @ self.around
        return found

    def inside(self, places: np.ndarray) -> np.ndarray:
        """A mask of the places [T, d] that lie on the mesh [T]."""
        found = np.ones(len(places), dtype=bool)
        found[self.locator(places)[1]] = False
        return found

    def narrow(self, places: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """A mask of the spots that have values of their own [T], so that their integrals are right."""
        return radii < WIDE * self.spacing(places)

    def values(self, places: np.ndarray, radii: np.ndarray, count: int, brings: np.ndarray | None = None) -> np.ndarray:
        """Values of narrow spots [T, d], [T] at `count` points: the nodes, nodes and middles, or the middles: [T, count].

        `brings` [count]: what a unit at each point brings, for solvers with a rule of their own.
        """
        n, m = len(self.points), len(self.middles)
        if count not in (n, n + m, m):
            raise InputError(f"spots on a mesh have values at its {n} nodes, its {m} middles of edges or both, not at {count} "
                             "points")
        spacing = self.spacing(places)
        integral, centre = self.integrals(places, radii)
        wide = np.maximum(radii, LEAST * spacing)
        nodes = [(2, self.points, self.nodal)] * (count != m or n == m)
        middles = [(3, self.middles, self.central)] * (count != n)
        found = np.concatenate([self._spread(*one, places, wide, integral, centre) for one in (*nodes, *middles)], 1)
        if brings is not None:
            total = found @ brings
            found *= np.divide(integral, total, out=np.ones_like(total), where=total > 0.5 * integral)[:, None]
        mixed = ((WIDE - radii / spacing) / (WIDE - FADE)).clip(0, 1)
        rows, x = np.flatnonzero(mixed < 1), np.concatenate([x for _, x, _ in (*nodes, *middles)])
        square = ((x[None] - places[rows, None]) ** 2).sum(2)
        found[rows] += (1 - mixed[rows, None]) * (np.exp(square / (-2 * radii[rows, None] ** 2)) - found[rows])
        return found

    def _spread(self, tree: int, x: np.ndarray, weights: np.ndarray, places: np.ndarray, radii: np.ndarray, integral: np.ndarray,
                centre: np.ndarray) -> np.ndarray:
        """Gaussians at points x [n, d] with these integrals [T] and centres of mass [T, d] by the weights [n, 1 + d]."""
        d, T = self.dim, len(places)
        lists = self._trees[tree].query_ball_point(places, _REACH * radii + 1e-300)
        row, column = _pairs(lists)
        at, width, off = places.astype(np.float64), radii[:, None], places - centre
        x, weights = x[column], weights[column].copy()
        weights[:, 1:] -= weights[:, :1] * centre[row]  # first moments around the centre of mass
        arm = x - centre[row]
        for _ in range(_ROUNDS):
            shape = np.exp(-0.5 * _squares((x - at[row]) / width[row]))
            moments = _added(row, shape[:, None] * weights, T)
            total = np.where(moments[:, :1] > 0, moments[:, :1], 1.0)
            off = moments[:, 1:] / total
            far = np.abs(off).max(axis=1) > _CLOSE * width[:, 0]
            if not far.any():
                break
            second = _added(row, (shape * weights[:, 0])[:, None, None] * arm[:, :, None] * arm[:, None, :], T) / total[..., None]
            spread = second - off[:, :, None] * off[:, None, :] + 0.01 * width[..., None] ** 2 * np.eye(d)
            step = -width**2 * np.linalg.solve(spread, off[..., None])[..., 0] * far[:, None]  # whatever else is asked for with it
            size = np.linalg.norm(step, axis=1, keepdims=True)
            at = at + step * np.minimum(1.0, width / np.maximum(size, 1e-300))
            away = at - places
            at = places + away * np.minimum(1.0, 3 * width / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-300))
        scale = np.where(moments[:, 0] > 0, integral / total[:, 0], 0.0)
        found = np.zeros((T, len(self._trees[tree].data)))
        found[row, column] = scale[row] * shape
        return found

    def integrals(self, places: np.ndarray, radii: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Integrals [T] over the mesh of spots of peak 1 at places [T, d] with radii [T], and their centres of mass [T, d]."""
        d = self.dim
        matrix, away = self.locator(places)
        inside = np.ones(len(places))
        inside[away] = 0.0
        width = np.maximum(radii, _POINT * (matrix @ self.around))  # narrower ones have the same share on the mesh
        share, centre = inside.copy(), places.copy()
        near = self._trees[1].query(places)[0] < _REACH * width + 2 * self.rim
        for rows in np.array_split(np.flatnonzero(near), 1 + int(near.sum()) // _TOGETHER):
            # a step inwards, so that a place on the boundary has a side
            inwards = self._trees[0].query(places[rows])[1]
            way = (self.points[self.cells[inwards]].mean(1) - places[rows]) * inside[rows, None]
            at = places[rows] + way * (_ASIDE * width[rows] / np.maximum(np.linalg.norm(way, axis=1), 1e-300))[:, None]
            cut, pull = self._cut(at, width[rows])
            share[rows] = (inside[rows] - cut).clip(0, 1)
            centre[rows] += pull / np.maximum(share[rows, None], 1e-9)
        return share * (2 * np.pi) ** (d / 2) * radii**d, centre

    def _cut(self, places: np.ndarray, radii: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Share [T] of each spot that the boundary takes off a place inside (or, negative, adds to one outside), and how far it
        moves the first moment [T, d], in units of the whole spot.

        By Gauss's theorem: with the share C(q) of a whole spot within a distance q, the share on the mesh is the integral of
        C(q) (x - p).n / (w q^d) over the boundary (w the full angle), and the first moment that of -r^2 f n. Without C it would be
        the full angle inside and zero outside, and C differs from 1 close by alone. Facets are halved until they are shorter than
        the radius; then a rule is used that is exact for quadratics.
        """
        d, T = self.dim, len(places)
        centres, reach, facets = self._facets
        lists = centres.query_ball_point(places, _REACH * radii + reach.max())
        row, which = _pairs(lists)
        corners = facets[which]  # [m, d, d]
        i, j = np.triu_indices(d, 1)
        a = (1 - (d + 1) ** -0.5) / d
        found = np.zeros((T, 1 + d))
        while len(row):
            sides = _squares(corners[:, i] - corners[:, j])
            largest, width = sides.max(1), radii[row]
            middle = np.einsum("mid->md", corners) / d
            near = _squares(middle - places[row]) < (_REACH * width + 0.6 * np.sqrt(largest)) ** 2  # circumradius of a flat facet
            row, corners, sides, done = row[near], corners[near], sides[near], (largest <= (_LEAF * width) ** 2)[near]
            at, part = row[done], (corners[done] - places[row[done], None]) / radii[row[done], None, None]
            x = a * np.einsum("mid->md", part)[:, None] + (1 - d * a) * part  # [m, d, d], in radii
            normal = _normals(part) / d  # the part of each point
            square = _squares(x)
            height = np.einsum("md,md->m", part[:, 0], normal)
            covered = height * np.einsum("mi->m", _within(square, d)) / (2 * np.pi * (d - 1))
            bell = np.einsum("mi->m", np.exp(-0.5 * square)) / (2 * np.pi) ** (d / 2)
            found += _added(at, np.concatenate([(_angles(part) - covered)[:, None], -bell[:, None] * normal], 1), T)
            longest, m = sides[~done].argmax(1), np.arange(int((~done).sum()))
            one, two = corners[~done].copy(), corners[~done].copy()
            half = 0.5 * (one[m, i[longest]] + one[m, j[longest]])
            one[m, i[longest]], two[m, j[longest]] = half, half
            corners, row = np.concatenate([one, two]), np.concatenate([row[~done]] * 2)
        return found[:, 0], found[:, 1:] * radii[:, None]


def _pairs(lists: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places and what is near them, pair by pair."""
    row = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
    return row, np.concatenate([np.zeros(0, np.int64), *(np.asarray(one, dtype=np.int64) for one in lists)])


def _squares(x: np.ndarray) -> np.ndarray:
    """Squares of lengths, along the last axis."""
    found: np.ndarray = np.einsum("...d,...d->...", x, x)
    return found


def _normals(x: np.ndarray) -> np.ndarray:
    """Outward normals [m, d] of facets with corners x [m, d, d], as long as the facets are large."""
    side = x[:, 1] - x[:, 0]
    return np.stack([side[:, 1], -side[:, 0]], 1) if x.shape[1] == 2 else 0.5 * np.cross(side, x[:, 2] - x[:, 0])


def _within(square: np.ndarray, d: int) -> np.ndarray:
    """C / q^d with the share C of a spot of radius 1 within a distance q, from q squared."""
    if d == 2:
        return -np.expm1(-0.5 * square) / np.maximum(square, 1e-300)
    q = np.sqrt(square)
    share = erf(q / 2**0.5) - (2 / np.pi) ** 0.5 * q * np.exp(-0.5 * square)
    return np.where(q > 1e-2, share / np.maximum(q, 1e-2) ** 3, (2 / np.pi) ** 0.5 * (1 / 3 - 0.1 * square))


def _angles(x: np.ndarray) -> np.ndarray:
    """Shares of the full angle [m] under which facets with corners x [m, d, d] show their inner side to the origin."""
    if x.shape[1] == 2:
        a, b = x[:, 0], x[:, 1]
        return np.arctan2(a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], (a * b).sum(1)) / (2 * np.pi)
    a, b, c = x[:, 0], x[:, 1], x[:, 2]
    p, q, r = (np.sqrt(_squares(v)) for v in (a, b, c))
    ab, bc, ca = (np.einsum("md,md->m", *pair) for pair in ((a, b), (b, c), (c, a)))
    return np.arctan2(np.einsum("md,md->m", a, np.cross(b, c)), p * q * r + ab * r + bc * p + ca * q) / (2 * np.pi)


def _added(index: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """Sums of rows [m, ...] by their index [m]: [size, ...]."""
    shape = values.shape[index.ndim:]
    columns = values.reshape(index.size, int(np.prod(shape))).T
    return np.stack([np.bincount(index.ravel(), column, size) for column in columns], 1).reshape(size, *shape)
