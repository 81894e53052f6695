"""The cell that a point lies in, and linear interpolation in it, as one sparse matrix."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

_OUTSIDE = 1e-8


class Locator:
    """The cells of a mesh by place: points [N, d], cells [K, d+1]."""

    def __init__(self, points: np.ndarray, cells: np.ndarray) -> None:
        corner, low, high = points[cells], points.min(0), points.max(0)
        far = 1e3 * (high - low).max()  # beyond that distances may not be numbers any more
        self.low, self.high = low - far, high + far
        self.size, self.cells, self.origin = len(points), cells, corner[:, 0]
        self.inverse = np.linalg.inv(corner[:, 1:] - corner[:, :1])  # lambda_1.. = (x - x_0) inverse
        self.tree = cKDTree(corner.mean(axis=1))

    def __call__(self, targets: np.ndarray, block: int = 20_000) -> tuple[csr_array, np.ndarray]:
        """P1 interpolation [targets, points]; outside, the values at the edge of the nearest cell. And which are outside."""
        cells, targets = self.cells, np.clip(targets, self.low, self.high)
        best = np.zeros(len(targets), dtype=np.int64)
        weight = np.full((len(targets), cells.shape[1]), -np.inf)
        todo = np.arange(len(targets))
        for count in (8, 64, 400):
            count = min(count, len(cells))
            for at in range(0, len(todo), max(1, block * 8 // count)):
                rows = todo[at:at + max(1, block * 8 // count)]
                near = self.tree.query(targets[rows], count)[1].reshape(len(rows), count)
                inner = np.einsum("rkd,rkde->rke", targets[rows][:, None] - self.origin[near], self.inverse[near])
                found = np.concatenate([1 - inner.sum(-1, keepdims=True), inner], axis=-1)
                choice = found.min(-1).argmax(1)
                best[rows], weight[rows] = near[np.arange(len(rows)), choice], found[np.arange(len(rows)), choice]
            todo = todo[weight[todo].min(axis=1) < -_OUTSIDE]
            if not len(todo) or count == len(cells):
                break
        inside = weight.clip(min=0.0)
        inside /= inside.sum(axis=1, keepdims=True)
        return sparse_rows(cells[best], inside, self.size), todo


def from_cells(points: np.ndarray, cells: np.ndarray, targets: np.ndarray, block: int = 20_000) -> tuple[csr_array, np.ndarray]:
    """That of a mesh, for once."""
    return Locator(points, cells)(targets, block)


def sparse_rows(columns: np.ndarray, weights: np.ndarray, width: int) -> csr_array:
    """A matrix [rows, width] from the columns [rows, k] that each row has and their weights [rows, k]."""
    rows = np.repeat(np.arange(len(columns)), columns.shape[1])
    return csr_array((weights.ravel(), (rows, columns.ravel())), shape=(len(columns), width))
