"""Fused GPU kernels for the iteration, in Triton: one launch per iteration instead of a product and three updates.

The matrix is read in padded (ELL) layout: columns and values [width, n], so that neighbouring threads read neighbouring
addresses. Vectors are [G, n, R]; program (i, r, g) owns a tile of nodes and columns of group g.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor

try:
    import triton
    import triton.language as tl

    AVAILABLE = True
except ImportError:  # CPU builds of torch come without Triton
    AVAILABLE = False

if AVAILABLE:

    @triton.jit
    def _iterate(cols, vals, dinv, b, x, p, out, n, r, alpha, beta, WIDTH: tl.constexpr, FIRST: tl.constexpr,
                 BN: tl.constexpr, BR: tl.constexpr):
        """z = (b - A x) / D;  p = z + beta p;  out = x + alpha p.   FIRST: x = 0, p not read."""
        g = tl.program_id(2)
        node = tl.program_id(0) * BN + tl.arange(0, BN)
        column = tl.program_id(1) * BR + tl.arange(0, BR)
        inside = node < n
        tile = inside[:, None] & (column < r)[None, :]
        base = g.to(tl.int64) * n * r
        at = base + node[:, None] * r + column[None, :]
        rest = tl.load(b + at, mask=tile, other=0.0)
        if not FIRST:
            for k in range(WIDTH):
                j = tl.load(cols + k * n + node, mask=inside, other=0)
                v = tl.load(vals + (g.to(tl.int64) * WIDTH + k) * n + node, mask=inside, other=0.0)
                rest -= v[:, None] * tl.load(x + base + j[:, None] * r + column[None, :], mask=tile, other=0.0)
        z = rest * tl.load(dinv + g.to(tl.int64) * n + node, mask=inside, other=0.0)[:, None]
        if FIRST:
            tl.store(p + at, z, mask=tile)
            tl.store(out + at, alpha * z, mask=tile)
        else:
            z += beta * tl.load(p + at, mask=tile, other=0.0)
            tl.store(p + at, z, mask=tile)
            tl.store(out + at, tl.load(x + at, mask=tile, other=0.0) + alpha * z, mask=tile)

    @triton.jit
    def _multiply(cols, vals, x, out, n, r, WIDTH: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr):
        """out = A x."""
        g = tl.program_id(2)
        node = tl.program_id(0) * BN + tl.arange(0, BN)
        column = tl.program_id(1) * BR + tl.arange(0, BR)
        inside = node < n
        tile = inside[:, None] & (column < r)[None, :]
        base = g.to(tl.int64) * n * r
        total = tl.zeros((BN, BR), dtype=out.dtype.element_ty)
        for k in range(WIDTH):
            j = tl.load(cols + k * n + node, mask=inside, other=0)
            v = tl.load(vals + (g.to(tl.int64) * WIDTH + k) * n + node, mask=inside, other=0.0)
            total += v[:, None] * tl.load(x + base + j[:, None] * r + column[None, :], mask=tile, other=0.0)
        tl.store(out + base + node[:, None] * r + column[None, :], total, mask=tile)

    @triton.jit
    def _residual(cols, vals, dinv, b, x, sums, n, r, WIDTH: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr):
        """sums[0] += |b - A x|^2 / D, sums[1] += |b|^2 / D, per column, into sums [2, G, R]."""
        g = tl.program_id(2)
        node = tl.program_id(0) * BN + tl.arange(0, BN)
        column = tl.program_id(1) * BR + tl.arange(0, BR)
        inside = node < n
        tile = inside[:, None] & (column < r)[None, :]
        base = g.to(tl.int64) * n * r
        right = tl.load(b + base + node[:, None] * r + column[None, :], mask=tile, other=0.0)
        rest = right
        for k in range(WIDTH):
            j = tl.load(cols + k * n + node, mask=inside, other=0)
            v = tl.load(vals + (g.to(tl.int64) * WIDTH + k) * n + node, mask=inside, other=0.0)
            rest -= v[:, None] * tl.load(x + base + j[:, None] * r + column[None, :], mask=tile, other=0.0)
        w = tl.load(dinv + g.to(tl.int64) * n + node, mask=inside, other=0.0)[:, None]
        here = column < r
        groups = tl.num_programs(2)
        tl.atomic_add(sums + g * r + column, tl.sum(rest * rest * w, axis=0).to(tl.float64), mask=here)
        tl.atomic_add(sums + groups * r + g * r + column, tl.sum(right * right * w, axis=0).to(tl.float64), mask=here)


def _grid(n: int, r: int, groups: int) -> tuple[tuple[int, int, int], int, int]:
    block_r = min(32, triton.next_power_of_2(r))
    block_n = max(8, 128 // block_r)
    return (triton.cdiv(n, block_n), triton.cdiv(r, block_r), groups), block_n, block_r


def iterate(cols: Tensor, vals: Tensor, dinv: Tensor, b: Tensor, coefficients: list[tuple[float, float]]) -> Tensor:
    """The whole Chebyshev iteration from x = 0: b [G, n, R] -> x [G, n, R]."""
    groups, n, r = b.shape
    grid, block_n, block_r = _grid(n, r, groups)
    p, x, spare = torch.empty_like(b), torch.empty_like(b), torch.empty_like(b)
    for k, (alpha, beta) in enumerate(coefficients):
        _iterate[grid](cols, vals, dinv, b, spare, p, x, n, r, alpha, beta, WIDTH=cols.shape[0], FIRST=k == 0,
                       BN=block_n, BR=block_r)
        x, spare = spare, x
    return spare


def multiply(cols: Tensor, vals: Tensor, x: Tensor) -> Tensor:
    """A x for ELL values [G, width, n] and x [G, n, R]. With G = 1, A may have more or fewer columns than its n rows."""
    groups, n, r = x.shape[0], cols.shape[1], x.shape[2]
    grid, block_n, block_r = _grid(n, r, groups)
    out = x.new_empty(groups, n, r)
    _multiply[grid](cols, vals, x, out, n, r, WIDTH=cols.shape[0], BN=block_n, BR=block_r)
    return out


def rectangular(cols: Tensor, vals: Tensor, x: Tensor) -> Tensor:
    """A x for one matrix with any number of columns: ELL values [1, width, rows], x [columns, R] -> [rows, R]."""
    rows, r = cols.shape[1], x.shape[1]
    grid, block_n, block_r = _grid(rows, r, 1)
    out = x.new_empty(rows, r)
    _multiply[grid](cols, vals, x.contiguous(), out, rows, r, WIDTH=cols.shape[0], BN=block_n, BR=block_r)
    return out


def residual(cols: Tensor, vals: Tensor, dinv: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Largest relative residual over all columns, weighted with 1/D, as a tensor on the device."""
    groups, n, r = b.shape
    grid, block_n, block_r = _grid(n, r, groups)
    sums = torch.zeros(2, groups, r, dtype=torch.float64, device=b.device)
    _residual[grid](cols, vals, dinv, b, x, sums, n, r, WIDTH=cols.shape[0], BN=block_n, BR=block_r)
    return (sums[0] / sums[1].clamp(min=1e-300)).max().sqrt()
