"""Several matrices side by side as one: W = [A_1 A_2 ... A_m], so that one product gives A_1 x_1 + ... + A_m x_m.

Entries that are zero are left out, so that matrices of different regions of a mesh cost together what one of the whole mesh costs.
Values are those of the matrices at the time; there are no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_array, hstack

from dgnet.operators import kernels
from dgnet.operators.sparse import EdgeMatrix

Tensor = torch.Tensor


class Wide:
    """W [n, m n] from m matrices with values [nnz] on one pattern, each times a number."""

    def __init__(self, matrices: Sequence[EdgeMatrix], factors: Sequence[float]) -> None:
        pattern = matrices[0].pattern
        self.n, self.m, self.device = pattern.n, len(matrices), pattern.device
        parts = [A.to_scipy() * factor for A, factor in zip(matrices, factors)]
        self.diagonals = torch.from_numpy(np.stack([A.diagonal() for A in parts])).to(self.device)  # [m, n]
        for A in parts:
            A.eliminate_zeros()
        self._matrix = csr_array(hstack(parts, format="csr"))

    def __matmul__(self, x: Tensor) -> Tensor:
        """sum_k A_k x_k: [m, n, columns] -> [n, columns]."""
        return _product(self._rows, x.reshape(self.m * self.n, -1))

    def taken(self, b: Tensor, x: Tensor) -> Tensor:
        """b - W x, for b [n, columns] and x [m, n, columns]."""
        x = x.reshape(self.m * self.n, -1)
        A = self._rows
        if isinstance(A, tuple):
            return b - _product(A, x)
        return torch.addmv(b[:, 0], A, x[:, 0], alpha=-1)[:, None] if x.shape[1] == 1 else torch.addmm(b, A, x, alpha=-1)

    def collapsed(self, q: np.ndarray) -> csr_array:
        """sum_k A_k diag(q_k) [n, n], for q [m, n]."""
        A = self._matrix
        entries = A.data * q.ravel()[A.indices]
        return csr_array((entries, A.indices % self.n, A.indptr), shape=(self.n, self.n))

    def transposed(self, y: Tensor) -> Tensor:
        """A_k^T y for every k: [n, columns] -> [m, n, columns]."""
        return _product(self._columns, y).view(self.m, self.n, -1)

    @cached_property
    def _rows(self) -> Tensor | tuple[Tensor, Tensor]:
        return _layout(self._matrix, self.device)

    @cached_property
    def _columns(self) -> Tensor | tuple[Tensor, Tensor]:
        return _layout(csr_array(self._matrix.T), self.device)


def _layout(A: csr_array, device: torch.device) -> Tensor | tuple[Tensor, Tensor]:
    """CSR, or padded columns and values [width, rows] for the GPU kernels."""
    if not (device.type == "cuda" and kernels.AVAILABLE):
        return torch.sparse_csr_tensor(torch.from_numpy(A.indptr.astype(np.int32)), torch.from_numpy(A.indices.astype(np.int32)),
                                       torch.from_numpy(A.data), size=A.shape, check_invariants=False).to(device)
    count = np.diff(A.indptr)
    width = max(1, int(count.max()))
    columns, values = np.zeros((width, A.shape[0]), np.int32), np.zeros((width, A.shape[0]))
    row = np.repeat(np.arange(A.shape[0]), count)
    lane = np.arange(A.nnz) - A.indptr[row]
    columns[lane, row], values[lane, row] = A.indices, A.data
    return torch.from_numpy(columns).to(device), torch.from_numpy(values[None]).to(device)


def _product(A: Tensor | tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    if isinstance(A, tuple):
        return kernels.rectangular(A[0], A[1], x)
    return torch.mv(A, x[:, 0])[:, None] if x.shape[1] == 1 else torch.mm(A, x)
