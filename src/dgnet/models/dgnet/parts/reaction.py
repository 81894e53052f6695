"""The reaction r(u): given or learned, and guarded outside of the training data."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.models.dgnet.build import Build, Rate, Scales
from dgnet.models.dgnet.config import DGNetConfig
from dgnet.models.dgnet.parts.library import Library
from dgnet.models.dgnet.parts.part import Part, network_precision
from dgnet.models.gnn import MLP
from dgnet.problems import Problem

Tensor = torch.Tensor


class Reaction(Part):
    """r(u), node by node: the known one, or what is learned: a table, a sum of few terms, or a network.

    It is used unchanged up to three times the range of the training data. Outside, r stays what it is at the end of that range, and
    what sticks out decays within a step: r(u) = r(w) - (u - w) / dt, w = u clipped. With a capacity the part that sticks out
    belongs to the mass, not to the reaction's load: it becomes the `excess`.

    Guarantee: r(u) + u/dt is bounded, and with it a rollout, also where the equation itself has no bound (logistic growth below
    zero) or a network extrapolates.
    """

    def __init__(self, c: DGNetConfig, problem: Problem) -> None:
        super().__init__()
        self.config, F = c, problem.n_fields
        if c.reaction_table and F != 1:
            raise InputError(f"a table of the reaction is for one field, not for {F}")
        if c.reaction == "learned":
            self.reaction_net: MLP | ReactionTable | Library = (
                ReactionTable(c.reaction_table) if c.reaction_table else
                Library(problem.pde.fields, c.reaction_degree, c.odd_reaction, c.reaction_terms) if c.reaction_degree else
                MLP([F, c.reaction_hidden, c.reaction_hidden, F], zero=True))

    @property
    def library(self) -> Library | None:
        """The terms, where the reaction is learned as a sum of such."""
        return self.reaction_net if self.config.reaction_degree and isinstance(self.reaction_net, Library) else None

    @property
    def table(self) -> ReactionTable | None:
        """The table of values, where the reaction is learned as one."""
        return self.reaction_net if self.config.reaction_table and isinstance(self.reaction_net, ReactionTable) else None

    def fit_statistics(self, state: Tensor, scales: Scales) -> None:
        """Lay a table's places over the range of the training data; measure the terms of a library there."""
        if self.library is not None:
            self.library.spread(state)
        if self.table is None:
            return
        low, high = state.amin((0, 1, 2)), state.amax((0, 1, 2))
        top = torch.maximum(high.abs(), low.abs())
        ends = (-top / scales.std, top / scales.std) if self.config.odd_reaction else (
            (low - scales.mean) / scales.std, (high - scales.mean) / scales.std)
        self.table.spread(float(ends[0]), float(ends[1]), 0.0 if self.config.odd_reaction else float(-scales.mean / scales.std))

    def contribute(self, build: Build) -> None:
        p, scales = build.problem, build.scales
        build.reaction, build.learned = self.guarded(p, scales), self.config.reaction == "learned"
        if build.reaction is not None and p.capacity is not None:
            build.excess = lambda u: (u - torch.clamp(u, scales.low, scales.high)) / p.dt

    def guarded(self, p: Problem, scales: Scales) -> Rate | None:
        """r(u) as above; None where the equation has none and none is learned."""
        inner = p.pde.reaction if self.config.reaction == "known" else self.learned(scales)
        if inner is None:
            return None

        def guarded(u: Tensor) -> Tensor:
            inside = torch.clamp(u, scales.low, scales.high)
            return inner(inside) if p.capacity is not None else inner(inside) - (u - inside) / p.dt

        return guarded

    def learned(self, scales: Scales) -> Rate:
        """The learned reaction without its guard."""
        library = self.library
        if library is not None:
            return lambda u: _size(scales).to(u.dtype) * library(u)

        def net(v: Tensor) -> Tensor:
            with network_precision(self.config.amp, v.device):
                return self.reaction_net(v.to(scales.mean.dtype)).to(v.dtype)

        def learned(u: Tensor) -> Tensor:
            if self.config.odd_reaction:
                v = u / scales.std
                return _size(scales) * 0.5 * (net(v) - net(-v))
            return _size(scales) * net((u - scales.mean) / scales.std)

        return learned

    def features(self, u: Tensor, scales: Scales) -> Tensor:
        """How the reaction of each field depends on each value of its table, [..., 1, J], or of its library, [..., F, P]."""
        if self.library is not None:
            return _size(scales)[:, None].to(u.dtype) * self.library.features(u)[..., None, :]
        assert self.table is not None
        if self.config.odd_reaction:
            return _size(scales) * 0.5 * (self.table.features(u / scales.std) - self.table.features(-u / scales.std))
        return _size(scales) * self.table.features((u - scales.mean) / scales.std)


def _size(scales: Scales) -> Tensor:
    """[F]: how large a reaction is that makes up for the rates of the training data."""
    return scales.rate * scales.capacity


class ReactionTable(nn.Module):
    """A function of one number, piecewise linear, constant beyond its ends; zero is one of its places.

    `deviation` is the standard deviation of what the model makes of each value, in units of the reaction (NaN: never estimated),
    `density` the share of the training states at each place. Both are statements about the data; nothing is computed from them.
    """

    def __init__(self, intervals: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(intervals + 2))
        self.register_buffer("first", torch.zeros(()))
        self.register_buffer("spacing", torch.ones(()))
        self.register_buffer("deviation", torch.full((intervals + 2,), torch.nan))
        self.register_buffer("density", torch.full((intervals + 2,), torch.nan))
        self.register_load_state_dict_pre_hook(_without_band)

    first: Tensor
    spacing: Tensor
    deviation: Tensor
    density: Tensor

    def spread(self, low: float, high: float, zero: float) -> None:
        """Lay the places over low .. high."""
        h = max(high - low, 1e-12) / (len(self.values) - 2)
        self.spacing.fill_(h)
        self.first.fill_(zero + h * float(np.floor((low - zero) / h)))

    def where(self) -> Tensor:
        """The places [J], normalised, in double precision."""
        return self.first.double() + self.spacing.double() * torch.arange(len(self.values), device=self.values.device)

    def places(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The interval of each entry, and how far into it."""
        x = ((v - self.first) / self.spacing).clamp(0, len(self.values) - 1)
        i = x.detach().floor().clamp(max=len(self.values) - 2)
        return i.long(), x - i

    def features(self, v: Tensor) -> Tensor:
        """[..., J]: what each value of the table contributes."""
        i, part = self.places(v)
        out = torch.zeros(*v.shape, len(self.values), dtype=v.dtype, device=v.device)
        return out.scatter_(-1, i[..., None], 1 - part[..., None]).scatter_(-1, i[..., None] + 1, part[..., None])

    def forward(self, v: Tensor) -> Tensor:
        i, part = self.places(v)
        left, right = (self.values.index_select(0, (i + k).flatten()).view(v.shape) for k in (0, 1))
        return torch.lerp(left, right, part.to(left.dtype))


def _without_band(table: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights saved before there was a band have none."""
    for name in ("deviation", "density"):
        state.setdefault(prefix + name, table.get_buffer(name))
