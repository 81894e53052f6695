"""Errors of predicted states [..., T, N, F] against true ones, as the paper defines them, and what the paper leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgnet.errors import InputError

Tensor = torch.Tensor


@dataclass(frozen=True)
class Score:
    """MSE and RNE over everything; `fluctuation` is the RNE measured from the offset (T - T_amb)."""

    mse: float
    rne: float
    fluctuation: float
    rne_final: float
    fields: dict[str, float]  # fluctuation RNE of each field


def mse(predicted: Tensor, true: Tensor) -> float:
    """Mean squared error over all entries."""
    _check(predicted, true)
    return float((predicted.double() - true.double()).square().mean())


def rne(predicted: Tensor, true: Tensor, offset: Sequence[float] | None = None) -> float:
    """||predicted - true|| / ||true - offset|| over all entries (paper, Section 4.1, where the offset is zero)."""
    _check(predicted, true)
    true, predicted = true.double(), predicted.double()
    base = true if offset is None else true - true.new_tensor(list(offset))
    return float((predicted - true).norm() / base.norm())


def rne_over_time(predicted: Tensor, true: Tensor, offset: Sequence[float] | None = None) -> Tensor:
    """RNE of each stored time [T], over batch, nodes and fields of [B, T, N, F]."""
    _check(predicted, true)
    true, predicted = true.double(), predicted.double()
    base = true if offset is None else true - true.new_tensor(list(offset))

    def size(u: Tensor) -> Tensor:
        return u.square().sum(dim=(0, 2, 3)).sqrt()

    return size(predicted - true) / size(base).clamp_min(torch.finfo(torch.float64).tiny)


def score(predicted: Tensor, true: Tensor, offset: Sequence[float] | None = None,
          fields: Sequence[str] = ("u",)) -> Score:
    """All of the above for [B, T, N, F]."""
    shift = [0.0] * true.shape[-1] if offset is None else list(offset)
    each = {name: rne(predicted[..., [i]], true[..., [i]], shift[i:i + 1]) for i, name in enumerate(fields)}
    return Score(mse(predicted, true), rne(predicted, true), rne(predicted, true, shift),
                 rne(predicted[:, -1:], true[:, -1:]), each)


def _check(predicted: Tensor, true: Tensor) -> None:
    if predicted.shape != true.shape:
        raise InputError(f"predicted states have shape {list(predicted.shape)}, true ones {list(true.shape)}")
