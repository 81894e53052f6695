"""Messages of a graph network in one kernel: gather, activation and sum without arrays of the size of the edges and the batch.

    m_i = sum over incoming edges (i, j) of silu(a_i + b_j + c_ij)         a, b, m [N, B, H], c [2E, H] sorted by receiver

Launched operation by operation this reads and writes the memory of all messages about nine times, which is what most of an update
of the paper's model is. A program owns a node and a block of columns (b, h) and runs over the node's edges; the way back runs over
the same edges in both directions, so that there are no atomics and the same result every time.
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

_COLUMNS = 512  # of a program

if AVAILABLE:

    @triton.jit
    def _forward(a, b, c, frm, ends, out, columns, H: tl.constexpr, BLOCK: tl.constexpr):
        """out_i = sum_e silu(a_i + b_frm(e) + c_e)."""
        node = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = column < columns
        h = column % H
        own = tl.load(a + node * columns + column, mask=inside, other=0.0)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for e in range(tl.load(ends + node), tl.load(ends + node + 1)):
            j = tl.load(frm + e).to(tl.int64)
            z = own + tl.load(b + j * columns + column, mask=inside, other=0.0) + tl.load(c + e * H + h)
            total += z / (1.0 + tl.exp(-z))
        tl.store(out + node * columns + column, total, mask=inside)

    @triton.jit
    def _backward(a, b, c, g, frm, reverse, ends, grad_a, grad_b, grad_c, columns, edges, H: tl.constexpr, BLOCK: tl.constexpr):
        """Gradients of a node's a and b, and of its incoming edges' c: one part for each block of columns, [blocks, 2E, H]."""
        node = tl.program_id(0).to(tl.int64)
        block = tl.program_id(1)
        column = block * BLOCK + tl.arange(0, BLOCK)
        inside = column < columns
        h = column % H
        place = node * columns + column
        own_a = tl.load(a + place, mask=inside, other=0.0)
        own_b = tl.load(b + place, mask=inside, other=0.0)
        own_g = tl.load(g + place, mask=inside, other=0.0)
        total_a = tl.zeros((BLOCK,), dtype=tl.float32)
        total_b = tl.zeros((BLOCK,), dtype=tl.float32)
        for e in range(tl.load(ends + node), tl.load(ends + node + 1)):
            j = tl.load(frm + e).to(tl.int64)
            back = tl.load(reverse + e)
            there = j * columns + column
            z = own_a + tl.load(b + there, mask=inside, other=0.0) + tl.load(c + e * H + h)
            s = 1.0 / (1.0 + tl.exp(-z))
            d = own_g * s * (1.0 + z * (1.0 - s))
            total_a += d
            part = tl.sum(tl.reshape(d, (BLOCK // H, H)), axis=0)
            tl.store(grad_c + (block.to(tl.int64) * edges + e) * H + tl.arange(0, H), part)
            z = tl.load(a + there, mask=inside, other=0.0) + own_b + tl.load(c + back * H + h)
            s = 1.0 / (1.0 + tl.exp(-z))
            total_b += tl.load(g + there, mask=inside, other=0.0) * s * (1.0 + z * (1.0 - s))
        tl.store(grad_a + place, total_a, mask=inside)
        tl.store(grad_b + place, total_b, mask=inside)


def applies(a: Tensor, b: Tensor, c: object) -> bool:
    """The kernels are there for these arrays."""
    width = a.shape[-1]
    single = a.dtype == b.dtype == torch.float32 and isinstance(c, Tensor) and c.dtype == torch.float32
    return AVAILABLE and a.is_cuda and single and a.dim() == 3 and 16 <= width <= _COLUMNS and not width & (width - 1)


def total(a: Tensor, b: Tensor, c: Tensor, frm: Tensor, ends: Tensor) -> Tensor:
    """The sums [N, B, H]."""
    a, b, c = a.contiguous(), b.contiguous(), c.contiguous()
    n, columns = len(a), a[0].numel()
    out = torch.empty_like(a)
    grid = (n, triton.cdiv(columns, _COLUMNS))
    _forward[grid](a, b, c, frm, ends, out, columns, H=a.shape[-1], BLOCK=_COLUMNS, num_warps=4)
    return out


def gradients(a: Tensor, b: Tensor, c: Tensor, g: Tensor, frm: Tensor, reverse: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
    """Of `total` with dl/dm = g: gradients of a, b and c."""
    a, b, c, g = a.contiguous(), b.contiguous(), c.contiguous(), g.contiguous()
    n, columns = len(a), a[0].numel()
    blocks = triton.cdiv(columns, _COLUMNS)
    grad_a, grad_b = torch.empty_like(a), torch.empty_like(b)
    grad_c = c.new_empty(blocks, *c.shape)
    _backward[(n, blocks)](a, b, c, g, frm, reverse, ends, grad_a, grad_b, grad_c, columns, len(c), H=a.shape[-1], BLOCK=_COLUMNS,
                           num_warps=4)
    return grad_a, grad_b, grad_c.sum(0)
