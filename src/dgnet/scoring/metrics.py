"""Errors of predicted states û against true ones u, axes [B, T, N, F]. docs/metrics.md has the same formulas.

    MSE               mean of (û - u)^2 over all entries
    RNE               |û - u| / |u|                 over the whole rollout (paper, Section 4.1)
    RNE from offset   |û - u| / |u - offset|        over the whole rollout; the offset is T_amb of a temperature, or zero
    RNE, last step    |û - u| / |u|                 at the last stored time
    error over time   the RNE, or the RNE from offset, of each stored time
    error ratio       RNE from offset / that of the better classical solver: below 1 is better than both

|.| is the root of the sum of squares over all entries: trajectories, times, nodes, fields. A state that is not a number counts as
infinitely wrong. Where the truth is zero, the ratio is 0 without an error and infinite with one.

All of them follow from three sums of squares over the nodes, [B, T, F] each: of the error, of the truth, and of the truth
measured from its offset. Pieces of a large test set are summed one by one and joined (`Sums.join`), with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError

Tensor = torch.Tensor

LIMIT = 0.1
"""The RNE up to which a rollout counts as usable."""


@dataclass(frozen=True)
class Score:
    """All figures of a model over some trajectories; see the module for their formulas."""

    mse: float
    rne: float
    rne_from_offset: float
    rne_final: float  # RNE of the last step
    fields: dict[str, float]  # RNE from offset of each field
    log10_mse: float = math.nan
    until: float | None = None  # time at which the RNE of a stored time first passes LIMIT; None: never
    until_share: float | None = None  # the same as a share of the horizon
    trajectories: tuple[float, ...] = ()  # RNE from offset of each


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of squares over the nodes [B, T, F] in double precision on the CPU."""

    error: Tensor
    truth: Tensor
    from_offset: Tensor
    nodes: int

    @classmethod
    def of(cls, predicted: Tensor, true: Tensor, offset: Sequence[float] | None = None) -> Sums:
        """Of states [B, T, N, F] and one offset per field, or one for all; zero unless given."""
        _check(predicted, true)
        if true.dim() != 4:
            raise InputError(f"states have axes [batch, time, node, field], got shape {list(true.shape)}")
        if offset and len(offset) not in (1, true.shape[-1]):
            raise InputError(f"{len(offset)} offsets were given for {true.shape[-1]} fields")
        return cls.join([cls._of_one(p[None], t[None], offset) for p, t in zip(predicted, true)])

    @classmethod
    def _of_one(cls, predicted: Tensor, true: Tensor, offset: Sequence[float] | None) -> Sums:
        """One trajectory at a time: in double precision all of them at once would not fit where they do in single precision."""
        true = true.double()
        error = (predicted.double() - true).square().sum(2).nan_to_num(nan=math.inf, posinf=math.inf)
        base = true - true.new_tensor(list(offset)) if offset else true
        return cls(error.cpu(), true.square().sum(2).cpu(), base.square().sum(2).cpu(), true.shape[2])

    @staticmethod
    def join(parts: Sequence[Sums]) -> Sums:
        """Trajectories of several pieces, one after the other."""
        return Sums(torch.cat([p.error for p in parts]), torch.cat([p.truth for p in parts]),
                    torch.cat([p.from_offset for p in parts]), parts[0].nodes)

    def each(self) -> list[Sums]:
        """Of single trajectories."""
        rows = zip(self.error.split(1), self.truth.split(1), self.from_offset.split(1))
        return [Sums(error, truth, from_offset, self.nodes) for error, truth, from_offset in rows]

    @property
    def rne(self) -> float:
        return _ratio(self.error, self.truth)

    @property
    def rne_from_offset(self) -> float:
        return _ratio(self.error, self.from_offset)

    def rne_over_time(self, offset: bool = False) -> Tensor:
        """RNE of each stored time [T]; with `offset` the RNE from offset."""
        size = (self.from_offset if offset else self.truth).sum((0, 2))
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
        e, t, f = self.error, self.truth, self.from_offset
        if len(fields) > e.shape[-1]:
            raise InputError(f"{len(fields)} names were given for {e.shape[-1]} fields")
        value = float(e.sum() / (self.nodes * e.numel()))
        until = self.until(dt)
        return Score(value, self.rne, self.rne_from_offset, _ratio(e[:, -1], t[:, -1]),
                     {name: _ratio(e[..., i], f[..., i]) for i, name in enumerate(fields)},
                     math.log10(value) if value > 0 else -math.inf, until,
                     None if until is None else until / max(dt * (e.shape[1] - 1), 1e-300),
                     tuple(_ratio(e[b], f[b]) for b in range(len(e))))


@checked
def score(predicted: Tensor, true: Tensor, offset: Sequence[float] | None = None,
          fields: Sequence[str] = ("u",), dt: Positive = 1.0) -> Score:
    """All figures (`Score`: mse, rne, rne_from_offset, ...; formulas in docs/metrics.md) of predicted states against true ones.

    - `predicted`, `true`: states [B, T, N, F], in the unit of each field
    - `offset`: per field, what relative errors are measured from; zero by default
    - `fields`: their names
    - `dt`: time between two states

        >>> import dgnet as dg, torch
        >>> true = torch.ones(1, 3, 25, 1)
        >>> round(dg.score(1.1 * true, true).rne, 4)
        0.1
    """
    return Sums.of(predicted, true, offset).score(fields, dt)


def rne(predicted: Tensor, true: Tensor, offset: Sequence[float] | None = None) -> float:
    """|predicted - true| / |true - offset| over all entries of states [..., F]; infinite where one is not a number."""
    _check(predicted, true)
    true, predicted = true.double(), predicted.double()
    base = true - true.new_tensor(list(offset)) if offset else true
    return _ratio((predicted - true).square(), base.square())


def error_ratio(own: float | None, classical: Iterable[float | None]) -> float:
    """Error of a model / error of the better classical solver, below 1 is better; None stands for a rollout that diverged."""
    best = min(math.inf if value is None else value for value in classical)
    value = math.inf if own is None else own
    return value / max(best, 1e-300) if math.isfinite(value) else math.inf


def _ratio(error: Tensor, size: Tensor) -> float:
    wrong, whole = float(error.sum()), float(size.sum())
    if math.isnan(wrong):
        return math.inf
    if whole > 0:
        return math.sqrt(wrong / whole)
    return math.inf if wrong > 0 else 0.0


def _check(predicted: Tensor, true: Tensor) -> None:
    if predicted.shape != true.shape:
        raise InputError(f"predicted states have shape {list(predicted.shape)}, true ones {list(true.shape)}")
