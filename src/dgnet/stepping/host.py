"""Solvers on the host, and their tools: the work is done on NumPy arrays, whatever device the states are on."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from math import prod

import numpy as np
import torch
from scipy.sparse import csr_array

from dgnet.errors import InputError

Tensor = torch.Tensor


def unwritten(*shape: int, like: Tensor) -> Tensor:
    """`like.new_empty`. On the host in NumPy's memory, which asks for large pages: the first write is ten times quicker then."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    size = prod(shape) * like.element_size()
    try:
        return torch.from_numpy(np.empty(size, np.uint8)).view(like.dtype).view(shape)
    except MemoryError:
        raise InputError(f"results {list(shape)} need {size / 1e9:.3g} GB, which is more than there is") from None


LARGE = 10_000  # rows from which a second core is used
_NARROW = 4  # right-hand sides that BLAS leaves to one thread


@cache
def threaded_blas() -> bool:
    """BLAS may use several threads: there are cores, and the environment does not forbid it."""
    said = next((os.environ[name] for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS") if name in os.environ), "")
    return said != "1" and len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)) > 1


def in_narrow_parts(solve: Callable[[np.ndarray], np.ndarray], b: np.ndarray) -> np.ndarray:
    """solve(b) for [n, R], a few columns at a time where BLAS has threads; from `LARGE` rows on the parts share torch's threads.

    A factorisation's blocks are so small that threads of BLAS spend their time waiting for each other, the more so on busy cores.
    """
    if b.ndim == 1 or b.shape[1] <= _NARROW or not threaded_blas():
        return solve(b)
    x = np.empty_like(b)

    def part(k: int) -> None:
        x[:, k:k + _NARROW] = solve(np.ascontiguousarray(b[:, k:k + _NARROW]))

    starts = range(0, b.shape[1], _NARROW)
    if len(b) >= LARGE and torch.get_num_threads() > 1:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(part, starts))
    else:
        for k in starts:
            part(k)
    return x


class Rows:
    """A sparse matrix in compressed rows that adds its products to arrays in place."""

    def __init__(self, A: csr_array, factor: float = 1.0) -> None:
        data = A.data if factor == 1.0 else A.data * A.data.dtype.type(factor)
        self.start, self.column, self.value = (torch.from_numpy(x) for x in (A.indptr, A.indices, data))
        self.width = A.shape[1]
        self._blocks: dict[tuple[int, int], Tensor] = {}

    @property
    def nbytes(self) -> int:
        return self.value.nbytes + self.column.nbytes

    def add_product(self, x: np.ndarray, y: np.ndarray, rows: slice | None = None) -> None:
        """y += A x in place for y [n] or [n, R], C-contiguous; `rows`: these rows alone."""
        first, last = (0, len(self.start) - 1) if rows is None else (rows.start, min(rows.stop, len(self.start) - 1))
        block = self._blocks.get((first, last))
        if block is None:
            s, e = int(self.start[first]), int(self.start[last])
            block = torch.sparse_csr_tensor(self.start[first:last + 1] - s, self.column[s:e], self.value[s:e],
                                            (last - first, self.width), check_invariants=False)
            self._blocks[first, last] = block
        part = torch.from_numpy(y if rows is None else y[first:last])
        (part.addmv_ if x.ndim == 1 else part.addmm_)(block, torch.from_numpy(x))


class OnHost(ABC):
    """Solves with one block-diagonal matrix of G blocks of n rows."""

    label: str
    capturable = False

    @abstractmethod
    def array(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        """A^-1 b, or A^-T b, for an array [G n] or [G n, R]; of the shape and precision of b."""

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        """The same for a tensor [G, n, R]."""
        host = b.detach().reshape(-1, b.shape[-1]).cpu().numpy()
        return torch.from_numpy(self.array(host, transposed)).to(b.device).view(b.shape)
