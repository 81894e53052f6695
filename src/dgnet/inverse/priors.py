"""Priors of what is recovered: histories that are smooth in time, fields that are smooth in space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import splu

from dgnet.inverse.posterior import Choice, Spread
from dgnet.mesh import Mesh
from dgnet.operators import Geometry, stiffness

_COLUMNS = 1000  # of each kind of nodes at which the variance of a field's prior is computed
DECAY = np.sqrt(8.0)  # of a field's correlation: 0.14 at the distance of one length


def histories(count: int, steps: int, dt: float) -> tuple[tuple[Choice, ...], Spread]:
    """Choices and covariance of `count` independent histories [count, steps], flattened; of variance 1.

    With s = |t - t'| / length: exp(-s) for histories that jump, (1 + s') exp(-s') with s' = sqrt(3) s for those with kinks,
    exp(-s^2 / 2) for smooth ones (Matern covariances of order 1/2, 3/2 and infinity).
    """
    apart = np.abs(dt * (np.arange(steps)[:, None] - np.arange(steps)))
    laws = {0.5: lambda s: np.exp(-s), 1.5: lambda s: (1 + np.sqrt(3.0) * s) * np.exp(-np.sqrt(3.0) * s),
            np.inf: lambda s: np.exp(-0.5 * s**2)}

    def spread(choice: Choice, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        C = laws[choice[0]](apart / choice[1])
        return np.einsum("ts,mcs->ctm", C, H.reshape(len(H), count, steps)).reshape(count * steps, len(H)), np.ones(count * steps)

    doublings = range(1, max(1, int(np.log2(max(2, steps)))) + 1)
    return tuple((order, dt * 2.0**k) for order in laws for k in doublings), spread


NUMBER: Choice = (np.inf, np.inf)
"""The only choice of a number's prior."""


def numbers(choice: Choice, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The covariance of independent numbers, as `Unknown.spread`; of variance 1, whatever the choice."""
    return H.T.copy(), np.ones(H.shape[1])


def fields(mesh: Mesh, count: int = 1) -> tuple[tuple[Choice, ...], Spread]:
    """Choices and covariance of `count` independent smooth fields [N, count] on a mesh, flattened; their mean variance is 1.

    (k^2 - div grad) x = white noise with k = sqrt(8) / length, discretised on the mesh: neighbours across a hole or a slit are far
    apart, as heat sees them.
    """
    K = csc_array(stiffness(Geometry.of(mesh), 1.0).to_scipy())
    volumes = mesh.dual_volumes()

    known: dict[float, tuple[Callable[[np.ndarray], np.ndarray], np.ndarray]] = {}

    def spread(choice: Choice, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = H.reshape(len(H), mesh.n_nodes, count)
        if choice[1] not in known:
            solve = splu(csc_array(K + diags_array((DECAY / choice[1]) ** 2 * volumes))).solve
            known[choice[1]] = solve, _variance(mesh, volumes, solve, np.abs(rows).sum((0, 2)))
        solve, variance = known[choice[1]]
        size = variance.mean()
        columns = rows.transpose(1, 2, 0).reshape(mesh.n_nodes, -1)
        moved = solve(volumes[:, None] * solve(columns)) / size
        return moved.reshape(mesh.n_nodes * count, len(H)), np.repeat(variance / size, count)

    extent = float(np.linalg.norm(np.ptp(mesh.points, axis=0)))
    return tuple((1.0, extent * 2.0**-k) for k in range(4)), spread


def _variance(mesh: Mesh, volumes: np.ndarray, solve: Callable[[np.ndarray], np.ndarray], heard: np.ndarray) -> np.ndarray:
    """The diagonal of solve(volumes solve(.)) [N]. On large meshes it is computed at the nodes that readings depend on most
    (`heard` [N]), where little of it is left, and at some others; in between it is linear, being as smooth as the prior. A column
    for each of 100,000 nodes would take an hour."""
    n = mesh.n_nodes
    some = np.arange(n)
    if n > 2 * _COLUMNS:
        order = np.argsort(-heard, kind="stable")
        some = np.concatenate([order[:_COLUMNS], np.random.default_rng(0).choice(order[_COLUMNS:], _COLUMNS, replace=False)])
    found = np.empty(len(some))
    for at in range(0, len(some), 500):
        nodes = some[at:at + 500]
        columns = np.zeros((n, len(nodes)))
        columns[nodes, np.arange(len(nodes))] = 1.0
        found[at:at + 500] = (volumes[:, None] * solve(columns) ** 2).sum(0)
    if len(some) == n:
        return found
    between = LinearNDInterpolator(mesh.points[some], found)(mesh.points)
    return np.where(np.isfinite(between), between, NearestNDInterpolator(mesh.points[some], found)(mesh.points))
