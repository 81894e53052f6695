"""Errors of predicted states [B, T, N, F] against true ones, as the paper defines them, and what the paper leaves out.

All figures follow from three sums of squares over the nodes, [B, T, F] each: of the error, of the truth, and of the truth
measured from its offset. Pieces of a large test set are summed one by one and joined (`Sums.join`), with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dgnet.errors import InputError

Tensor = torch.Tensor

LIMIT = 0.1
"""The RNE up to which a rollout counts as usable."""


@dataclass(frozen=True)
class Score:
    """MSE and RNE over everything; `fluctuation` is the RNE measured from the offset (T - T_amb)."""

    mse: float
    rne: float
    fluctuation: float
    rne_final: float
    fields: dict[str, float]  # fluctuation RNE of each field
    log10_mse: float = math.nan
    until: float | None = None  # time at which the RNE of a stored time first passes LIMIT; None: never
    until_share: float | None = None  # the same as a share of the horizon
    trajectories: tuple[float, ...] = ()  # fluctuation RNE of each


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of squares over the nodes [B, T, F] in double precision; a state that is not a number counts as infinitely wrong."""

    error: Tensor
    truth: Tensor
    fluctuation: Tensor
    nodes: int

    @classmethod
    def of(cls, predicted: Tensor, true: Tensor, offset: Sequence[float] | None = None) -> Sums:
        _check(predicted, true)
        if true.dim() != 4:
            raise InputError(f"states have axes [batch, time, node, field], got shape {list(true.shape)}")
        if offset is not None and len(offset) not in (1, true.shape[-1]):
            raise InputError(f"{len(offset)} offsets were given for {true.shape[-1]} fields")
        true, predicted = true.double(), predicted.double()
        base = true if offset is None else true - true.new_tensor(list(offset))
        error = (predicted - true).square().sum(2).nan_to_num(nan=math.inf, posinf=math.inf)
        return cls(error.cpu(), true.square().sum(2).cpu(), base.square().sum(2).cpu(), true.shape[2])

    @staticmethod
    def join(parts: Sequence[Sums]) -> Sums:
        """Trajectories of several pieces, one after the other."""
        return Sums(torch.cat([p.error for p in parts]), torch.cat([p.truth for p in parts]),
                    torch.cat([p.fluctuation for p in parts]), parts[0].nodes)

    def rne_over_time(self, offset: bool = False) -> Tensor:
        """RNE of each stored time [T]; without an answer where the truth is zero, there as 0 or infinity."""
        size = (self.fluctuation if offset else self.truth).sum((0, 2))
        wrong = self.error.sum((0, 2))
        ratio = (wrong / size.clamp_min(torch.finfo(torch.float64).tiny)).sqrt()
        return torch.where(size > 0, ratio, torch.where(wrong > 0, math.inf, 0.0))

    def until(self, dt: float = 1.0, limit: float = LIMIT) -> float | None:
        """Time at which the RNE of a stored time first passes the limit; None if it never does.

        Times at which the truth is zero have no relative error and are passed over.
        """
        counted = self.truth.sum((0, 2)) > 0
        late = torch.nonzero((self.rne_over_time() > limit) & counted)
        return float(late[0]) * dt if len(late) else None

    def score(self, fields: Sequence[str] = ("u",), dt: float = 1.0) -> Score:
        e, t, f = self.error, self.truth, self.fluctuation
        value = float(e.sum() / (self.nodes * e.numel()))
        until = self.until(dt)
        return Score(value, _ratio(e, t), _ratio(e, f), _ratio(e[:, -1], t[:, -1]),
                     {name: _ratio(e[..., i], f[..., i]) for i, name in enumerate(fields)},
                     math.log10(value) if value > 0 else -math.inf, until,
                     None if until is None else until / max(dt * (e.shape[1] - 1), 1e-300),
                     tuple(_ratio(e[b], f[b]) for b in range(len(e))))


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
          fields: Sequence[str] = ("u",), dt: float = 1.0) -> Score:
    """All of the above for [B, T, N, F] with stored times `dt` apart."""
    return Sums.of(predicted, true, offset).score(fields, dt)


def _ratio(error: Tensor, size: Tensor) -> float:
    wrong, whole = float(error.sum()), float(size.sum())
    if whole > 0:
        return math.sqrt(wrong / whole)
    return math.inf if wrong > 0 else 0.0


def _check(predicted: Tensor, true: Tensor) -> None:
    if predicted.shape != true.shape:
        raise InputError(f"predicted states have shape {list(predicted.shape)}, true ones {list(true.shape)}")
