"""The one sparse matrix type: a fixed one-ring pattern and a tensor of values.

`Pattern` holds where entries may stand (node i and its neighbours, plus the diagonal; structurally symmetric, CSR order).
`EdgeMatrix` adds values [..., nnz]; leading axes are independent matrices (one per field or per trajectory). Products and
solves are differentiable in the values and in the vectors, and no N x N array is ever formed.
"""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, sparray, spmatrix

from dgnet.errors import InputError
from dgnet.operators import kernels

Tensor = torch.Tensor

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")  # what is used of it has not moved in years


@dataclass(frozen=True, eq=False)
class Pattern:
    """CSR structure with sorted columns. `transpose[k]` is the slot of (j, i) for slot k = (i, j), `diagonal[i]` of (i, i)."""

    n: int
    crow: Tensor  # [n + 1] int32
    col: Tensor  # [nnz] int32
    row: Tensor  # [nnz] int32
    diagonal: Tensor  # [n] int64
    transpose: Tensor  # [nnz] int64
    cell_slots: Tensor  # [K, d+1, d+1] int64: where each entry of a cell's local matrix goes

    @classmethod
    def from_cells(cls, cells: np.ndarray, n: int, device: torch.device | str = "cpu") -> Pattern:
        """One-ring pattern of cells [K, d+1] over n degrees of freedom."""
        k = cells.shape[1]
        if torch.device(device).type == "cuda":  # sorting is what takes long on the host
            on = torch.tensor(cells, device=device)
            keys, slots = torch.unique(on[:, :, None] * n + on[:, None, :], return_inverse=True)
            row, col = keys // n, keys % n
            return cls(n, torch.searchsorted(row, torch.arange(n + 1, device=device)).int(), col.int(), row.int(),
                       torch.nonzero(row == col).ravel(), torch.searchsorted(keys, col * n + row), slots)
        # turning a sparse matrix round sorts its entries by column and keeps their order otherwise, in linear time: once by column,
        # once by row; its values are the numbers of the entries of all local matrices
        cells = cells.astype(np.int32)
        flat = cells.ravel()
        every = np.arange(0, flat.size * k + 1, k, dtype=np.int32)
        local = csr_array((np.arange(every[-1], dtype=np.int32), np.repeat(cells, k, axis=0).ravel(), every),
                          shape=(flat.size, n)).tocsc()
        entries = csr_array((local.data, flat[local.indices], local.indptr), shape=(n, n)).tocsc()
        start, first = entries.indptr, np.append(True, entries.indices[1:] != entries.indices[:-1])
        first[start[:-1][start[:-1] < first.size]] = True  # the first one of a row, and of each column in it
        number = np.cumsum(first)
        slots = np.empty(first.size, dtype=np.int64)
        slots[entries.data] = number - 1
        crow, col = np.append(0, number)[start], entries.indices[first]
        row = np.repeat(np.arange(n), np.diff(crow))
        turned = csr_array((np.arange(col.size), col, crow), shape=(n, n)).tocsc()

        def put(array: np.ndarray, dtype: torch.dtype) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array)).to(device=device, dtype=dtype)

        return cls(n, put(crow, torch.int32), put(col, torch.int32), put(row, torch.int32),
                   put(np.flatnonzero(row == col), torch.int64), put(turned.data, torch.int64),
                   put(slots.reshape(-1, k, k), torch.int64))

    @property
    def nnz(self) -> int:
        return self.col.numel()

    @property
    def device(self) -> torch.device:
        return self.col.device

    def to(self, device: torch.device | str) -> Pattern:
        if torch.device(device) == self.device:
            return self
        return Pattern(self.n, *(t.to(device) for t in (self.crow, self.col, self.row, self.diagonal, self.transpose,
                                                        self.cell_slots)))

    def slots(self, i: np.ndarray | Tensor, j: np.ndarray | Tensor) -> Tensor:
        """Slots of the entries (i, j), which must be in the pattern."""
        i, j = (torch.as_tensor(a, dtype=torch.int64, device=self.device) for a in (i, j))
        want = i * self.n + j
        place = torch.searchsorted(self._keys, want).clamp(max=self.nnz - 1)
        if not torch.equal(self._keys[place], want):
            raise InputError("an entry outside the one-ring pattern was asked for")
        return place

    def facet_slots(self, facets: np.ndarray) -> Tensor:
        """Slots of the entries of the matrices of facets [F m m], for facets [F, m] given in degrees of freedom."""
        k = facets.shape[1]
        return self.slots(np.repeat(facets, k, axis=1).ravel(), np.tile(facets, (1, k)).ravel())

    @cached_property
    def _keys(self) -> Tensor:
        return self.row.long() * self.n + self.col.long()

    @cached_property
    def upper(self) -> Tensor:
        """Slots with row < col: one per undirected edge, in the order of `Mesh.edges`."""
        return torch.nonzero(self.row < self.col).ravel()

    def tiled(self, copies: int) -> tuple[Tensor, Tensor]:
        """(crow, col) of the block-diagonal matrix with `copies` blocks: a batch of matrices as one."""
        if copies == 1:
            return self.crow, self.col
        cache = self.__dict__.setdefault("_tiles", {})
        if copies not in cache:
            block = torch.arange(copies, device=self.device, dtype=torch.int32)[:, None]
            crow = torch.cat([(self.crow[:-1] + block * self.nnz).ravel(), (block[-1] + 1) * self.nnz])
            cache[copies] = (crow.int(), (self.col + block * self.n).ravel().int())
        return cache[copies]

    @cached_property
    def ell(self) -> tuple[Tensor, Tensor]:
        """Padded layout for the GPU kernels: columns [width, n] int32 and source slots [width, n] (nnz marks padding)."""
        counts = (self.crow[1:] - self.crow[:-1]).long()
        width = int(counts.max())
        lane = torch.arange(width, device=self.device)[:, None]
        slot = self.crow[:-1].long() + lane
        used = lane < counts
        slot = torch.where(used, slot, self.nnz)
        own = torch.arange(self.n, device=self.device, dtype=torch.int32).expand(width, -1)
        padded = torch.cat([self.col, self.col.new_zeros(1)])
        return torch.where(used, padded[slot], own).contiguous(), slot.contiguous()

    def to_ell(self, values: Tensor) -> Tensor:
        """Values [G, nnz] in the padded layout [G, width, n]."""
        slots = self.ell[1]
        padded = torch.cat([values, values.new_zeros(values.shape[0], 1)], dim=1)
        return padded.index_select(1, slots.ravel()).view(-1, *slots.shape)


class _Product(torch.autograd.Function):
    """y = A x for values [G, nnz], x [G, n, R]; exact derivatives in both, on the pattern only."""

    @staticmethod
    def forward(ctx: Any, pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.pattern = pattern
        ctx.save_for_backward(values, x)
        return raw_product(pattern, values, x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        values, x = ctx.saved_tensors
        grad_values = grad_x = None
        if ctx.needs_input_grad[1]:
            grad_values = outer_on_pattern(ctx.pattern, g, x)
            if values.shape[0] == 1:
                grad_values = grad_values.sum(0, keepdim=True)
        if ctx.needs_input_grad[2]:
            grad_x = raw_product(ctx.pattern, values.index_select(1, ctx.pattern.transpose), g.contiguous())
        return None, grad_values, grad_x


def version(values: Tensor) -> int:
    """Another number whenever these values have been changed in place. Under `torch.inference_mode`, which does not count that, it
    follows from the values themselves."""
    return zlib.crc32(values.cpu().contiguous().view(-1).numpy().data) if values.is_inference() else values._version


def csr(pattern: Pattern, values: Tensor) -> Tensor:
    """The block-diagonal torch CSR matrix of values [G, nnz]."""
    groups = values.shape[0]
    crow, col = pattern.tiled(groups)
    size = groups * pattern.n
    return torch.sparse_csr_tensor(crow, col, values.reshape(-1), size=(size, size), check_invariants=False)


def raw_product(pattern: Pattern, values: Tensor, x: Tensor) -> Tensor:
    """A x without autograd: values [G, nnz], x [G, n, R] -> [G, n, R]."""
    if x.is_cuda and kernels.AVAILABLE:  # also because the library's products cannot be relied on inside a CUDA graph
        return kernels.multiply(pattern.ell[0], pattern.to_ell(values), x)
    return csr_product(csr(pattern, values), x)


def csr_product(matrix: Tensor, x: Tensor) -> Tensor:
    """The product of a block-diagonal matrix with x [G, n, R]."""
    if x.shape[-1] == 1:
        return torch.mv(matrix, x.reshape(-1)).view(x.shape)
    return torch.mm(matrix, x.reshape(-1, x.shape[-1])).view(x.shape)


def outer_on_pattern(pattern: Pattern, left: Tensor, right: Tensor) -> Tensor:
    """sum_R left_i right_j at every (i, j) of the pattern: [G, n, R] x [G, n, R] -> [G, nnz]."""
    if not left.is_cuda and left.shape[-1] > 1:  # the library's product, which makes no array [nnz, R]
        empty = csr(pattern, left.new_zeros(1, pattern.nnz))
        return torch.stack([torch.sparse.sampled_addmm(empty, a.contiguous(), b.contiguous().T, beta=0.0).values()
                            for a, b in zip(left, right.expand_as(left))])
    return (left.index_select(1, pattern.row) * right.index_select(1, pattern.col)).sum(-1)


@dataclass(frozen=True, eq=False)
class EdgeMatrix:
    """A sparse matrix, or a batch of them, on a one-ring pattern: values [..., nnz]."""

    pattern: Pattern
    values: Tensor

    def __post_init__(self) -> None:
        if self.values.shape[-1] != self.pattern.nnz:
            raise InputError(f"a matrix on this pattern needs {self.pattern.nnz} values, got {self.values.shape[-1]}")

    @property
    def version(self) -> int:
        """Another number whenever the values have been changed in place."""
        return version(self.values)

    # ------------------------------------------------------------------ construction

    @classmethod
    def from_cells(cls, pattern: Pattern, local: Tensor) -> EdgeMatrix:
        """Assemble local matrices [..., K, d+1, d+1]."""
        flat = local.flatten(-3)
        values = flat.new_zeros((*flat.shape[:-1], pattern.nnz))
        return cls(pattern, values.index_add(-1, pattern.cell_slots.ravel(), flat))

    @classmethod
    def from_diagonal(cls, pattern: Pattern, entries: Tensor) -> EdgeMatrix:
        values = entries.new_zeros((*entries.shape[:-1], pattern.nnz))
        return cls(pattern, values.index_copy(-1, pattern.diagonal, entries))

    @classmethod
    def from_facets(cls, pattern: Pattern, slots: Tensor, local: Tensor) -> EdgeMatrix:
        """Assemble facet matrices [..., F, m, m] at `Pattern.facet_slots` of the facets."""
        flat = local.flatten(-3)
        return cls(pattern, flat.new_zeros((*flat.shape[:-1], pattern.nnz)).index_add(-1, slots, flat))

    @classmethod
    def from_scipy(cls, pattern: Pattern, matrix: sparray | spmatrix) -> EdgeMatrix:
        """Entries of a SciPy matrix; one outside the pattern is an error."""
        coo = csr_array(matrix).tocoo()
        coo.sum_duplicates()
        slots = pattern.slots(coo.row, coo.col)
        values = torch.zeros(pattern.nnz, dtype=torch.from_numpy(coo.data).dtype, device=pattern.device)
        values[slots] = torch.from_numpy(coo.data).to(pattern.device)
        return cls(pattern, values)

    # ------------------------------------------------------------------ algebra

    def __add__(self, other: EdgeMatrix) -> EdgeMatrix:
        if other.pattern is not self.pattern:
            raise InputError("only matrices on the same pattern can be added")
        return EdgeMatrix(self.pattern, self.values + other.values)

    def __sub__(self, other: EdgeMatrix) -> EdgeMatrix:
        return self + other * -1.0

    def __mul__(self, factor: float | Tensor) -> EdgeMatrix:
        return EdgeMatrix(self.pattern, self.values * factor)

    __rmul__ = __mul__

    def __matmul__(self, x: Tensor) -> Tensor:
        """A x: x is [n], or [..., n, R] with leading axes that match those of the values (if they have any)."""
        if x.dim() == 1:
            return (self @ x[:, None])[..., 0]
        if x.shape[-2] != self.pattern.n:
            raise InputError(f"the matrix has {self.pattern.n} columns, the vector {x.shape[-2]} entries")
        values = self.values.reshape(-1, self.pattern.nnz)
        if values.shape[0] == 1:  # one matrix for all: fold the leading axes of x into columns
            lead, n, r = x.shape[:-2], x.shape[-2], x.shape[-1]
            folded = x.reshape(-1, n, r).transpose(0, 1).reshape(1, n, -1)
            y = self._product(values, folded.contiguous())
            return y.view(n, -1, r).transpose(0, 1).reshape(*lead, n, r)
        lead = torch.broadcast_shapes(self.values.shape[:-1], x.shape[:-2])
        x = x.expand(*lead, *x.shape[-2:])
        values = self.values.expand(*lead, self.pattern.nnz).reshape(-1, self.pattern.nnz)
        y = self._product(values.contiguous(), x.reshape(-1, *x.shape[-2:]).contiguous())
        return y.view(x.shape)

    def blocks(self, x: Tensor) -> Tensor:
        """A x for as many vectors as there are matrices: x [G, n, R] -> [G, n, R], the leading axes of the values flattened."""
        return self._product(self.values.reshape(-1, self.pattern.nnz), x.contiguous())

    def _product(self, values: Tensor, x: Tensor) -> Tensor:
        tracked = torch.is_grad_enabled() and (values.requires_grad or x.requires_grad)
        if not tracked and values.numel() == self.values.numel():
            if not x.is_cuda:
                return csr_product(self._csr, x)
            if kernels.AVAILABLE:
                return kernels.multiply(self.pattern.ell[0], self._ell, x)
        return _Product.apply(self.pattern, values, x)

    @cached_property
    def _csr(self) -> Tensor:
        return csr(self.pattern, self.values.detach().reshape(-1, self.pattern.nnz))

    @cached_property
    def _ell(self) -> Tensor:
        return self.pattern.to_ell(self.values.detach().reshape(-1, self.pattern.nnz))

    @property
    def mT(self) -> EdgeMatrix:
        """Transpose."""
        return EdgeMatrix(self.pattern, self.values.index_select(-1, self.pattern.transpose))

    @property
    def diagonal(self) -> Tensor:
        return self.values.index_select(-1, self.pattern.diagonal)

    def row_sums(self) -> Tensor:
        ones = self.values.new_ones((*self.values.shape[:-1], self.pattern.n, 1))
        return (self @ ones)[..., 0]

    def scale_rows(self, factor: Tensor) -> EdgeMatrix:
        """diag(factor) A."""
        return EdgeMatrix(self.pattern, self.values * factor.index_select(-1, self.pattern.row))

    def to(self, dtype: torch.dtype) -> EdgeMatrix:
        return EdgeMatrix(self.pattern, self.values.to(dtype))

    def to_scipy(self) -> csr_array:
        """SciPy CSR; a batch becomes its block-diagonal matrix."""
        values = self.values.detach().reshape(-1, self.pattern.nnz)
        crow, col = self.pattern.tiled(values.shape[0])
        size = values.shape[0] * self.pattern.n
        return csr_array((values.reshape(-1).cpu().numpy(), col.cpu().numpy(), crow.cpu().numpy()), shape=(size, size))
