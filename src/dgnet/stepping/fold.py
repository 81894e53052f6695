"""Matrices [b, f, nnz] times states [B, n, F]: b is 1 or the batch, f is 1 or the number of fields."""

from __future__ import annotations

import torch

from dgnet.operators import EdgeMatrix

Tensor = torch.Tensor


def fold(u: Tensor, b: int, f: int) -> Tensor:
    """[B, n, F] -> [G, n, R] for matrices [b, f, nnz]: what shares a matrix becomes columns of one product."""
    batch, n, fields = u.shape
    if b == 1 and f == 1:
        return u.transpose(0, 1).reshape(1, n, batch * fields)
    if b == 1:
        return u.permute(2, 1, 0).contiguous()
    if f == 1:
        return u.contiguous()
    return u.transpose(1, 2).reshape(batch * fields, n, 1)


def unfold(x: Tensor, b: int, f: int, batch: int, fields: int) -> Tensor:
    """The inverse of `fold`."""
    n = x.shape[1]
    if b == 1 and f == 1:
        return x.view(n, batch, fields).transpose(0, 1)
    if b == 1:
        return x.permute(2, 1, 0)
    if f == 1:
        return x
    return x.view(batch, fields, n).transpose(1, 2)


def product(A: EdgeMatrix, u: Tensor) -> Tensor:
    """A u for a matrix with values [b, f, nnz] and a state [B, n, F]."""
    b, f = A.values.shape[:2]
    if not u.is_cuda:
        return unfold(A.blocks(fold(u, b, f)), b, f, u.shape[0], u.shape[2])
    flat = EdgeMatrix(A.pattern, A.values.reshape(b * f, -1)) if b * f > 1 else A
    return unfold(flat @ fold(u, b, f) if b * f > 1 else A @ fold(u, b, f), b, f, u.shape[0], u.shape[2])
