"""What reduced-order models share: a basis from training states, the projection, and a fit without iterations.

    u(t) = c(t) + V a(t)      V [nF, r] modes of the training states around their mean (POD), a [r] a few numbers

c is the mean with the Dirichlet values of the time. Each field has modes of its own, orthonormal with the volumes of the nodes.
They are weights of fixed shape [F, n, modes], of which the first `rank` are used. The rank is chosen by rollouts of held-out
training trajectories, then everything is fitted again with those included. A model with new weights has random modes, like any
network.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.models.base import LearnedModel, Stepper, impose
from dgnet.models.timeloop import rollout
from dgnet.operators import lumped
from dgnet.problems import Problem

Tensor = torch.Tensor
S = TypeVar("S", bound="Subspace")

RECIPE = {"method": "fitted"}
_SNAPSHOTS = 1000  # states, and as many responses, that a basis is made of, at most


@dataclass(frozen=True, eq=False)
class Subspace(Stepper):
    """A problem seen from the basis. Matrices act on rows: states [B, nF], coordinates [B, R] with R = F r."""

    model: Reduced[Any]
    problem: Problem
    centre: Tensor  # [n, F]
    wide: Tensor  # [R, nF] V^T
    narrow: Tensor  # [nF, R] coordinates of a state without its centre

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        p, model = self.problem, self.model
        x = (p.restrict(u) - model.about(self, t)).flatten(1).to(self.wide.dtype)
        f = None if source is None else p.restrict(source).flatten(1).to(x.dtype)
        a = model.advance(self, x, f, t)  # [B, R]
        new = (a @ self.wide).unflatten(-1, (p.n, model.fields)) + model.about(self, t + p.dt)
        return impose(p, p.expand(new.to(u.dtype)), t)

    def repeats(self, times: Sequence[float] = ()) -> bool:
        return not (times or self.problem.time_dependent or self.problem.data_changes)


class Reduced(LearnedModel[S]):
    """The frame. A method adds `project` (what it makes of a problem), `advance` and `learn`."""

    name: ClassVar[str]

    centre: Tensor
    rank: Tensor
    flow_centre: Tensor

    def __init__(self, modes: int, flow_modes: int, problem: Problem) -> None:
        super().__init__()
        n, self.fields = problem.n, problem.n_fields
        self.modes = min(modes, n)
        self.register_buffer("centre", torch.zeros(n, self.fields))
        self.register_buffer("rank", torch.tensor(self.modes))
        random = torch.linalg.qr(torch.randn(self.fields, n, self.modes, dtype=torch.float64))[0]
        self.basis = nn.Parameter((random / self._volume(problem).cpu().sqrt()[:, None]).float())  # weights begin on the CPU
        self.moving = callable(problem.pde.velocity)
        if self.moving:
            size = problem.mesh.n_nodes * problem.mesh.dim
            self.register_buffer("flow_centre", torch.zeros(size))
            self.flow_basis = nn.Parameter(torch.linalg.qr(torch.randn(size, min(flow_modes, size)))[0])

    @staticmethod
    def _volume(problem: Problem) -> Tensor:
        return lumped(problem.geometry).diagonal.double()

    # ------------------------------------------------------------------ Model

    def subspace(self, problem: Problem) -> Subspace:
        if (problem.n, problem.n_fields) != tuple(self.centre.shape):
            raise InputError(f"this {self.name} was fitted on {len(self.centre)} degrees of freedom of {self.fields} fields; "
                             f"the problem has {problem.n} of {problem.n_fields}: its modes belong to one mesh")
        if self.moving != callable(problem.pde.velocity):
            raise InputError(f"this {self.name} was fitted {'with' if self.moving else 'without'} a flow that changes in time")
        V = self.basis[..., :int(self.rank)].double()  # [F, n, r]
        if problem.fixed is not None:
            V = V * (~problem.fixed).expand(self.fields, -1)[..., None]
        wide = torch.einsum("fnr,fg->frng", V, torch.eye(self.fields, dtype=V.dtype, device=V.device)).flatten(2).flatten(0, 1)
        weight = self._volume(problem)[:, None].expand(-1, self.fields).flatten()
        return Subspace(self, problem, self.centre, wide, (wide * weight).T)

    def about(self, space: Subspace, t: float) -> Tensor:
        """c(t) [n, F]."""
        w, fixed = space.problem.fixed_values(t), space.problem.fixed
        return space.centre if w is None or fixed is None else torch.where(fixed.T, w.to(space.centre), space.centre)

    @abstractmethod
    def advance(self, state: S, x: Tensor, f: Tensor | None, t: float) -> Tensor:
        """Coordinates [B, R] at t + dt from the state without its centre and the source, [B, nF] each."""

    def flow_at(self, space: Subspace, t: float) -> Tensor:
        """Coordinates [b, q] of the flow at a time."""
        velocity = space.problem.pde.velocity
        assert callable(velocity)
        v = torch.as_tensor(velocity(t))
        return (v.reshape(-1, len(self.flow_centre)).to(self.flow_basis) - self.flow_centre) @ self.flow_basis

    # ------------------------------------------------------------------ the fit

    @abstractmethod
    def settings(self) -> Iterable[tuple[float, ...]]:
        """What held-out trajectories choose from: the share of the energy that the basis may leave out, and what else there is."""

    def learn(self, base: Problem, data: Corpus, setting: tuple[float, ...]) -> None:
        """What is fitted besides the basis, under one of the settings."""

    def responses(self, base: Problem, data: Corpus) -> Tensor | None:
        """Further states [S, n, F] that the basis should hold."""
        return None

    @torch.no_grad()
    def fit_data(self, base: Problem, train: Corpus, valid: Corpus) -> float:
        """Choose a setting by rollouts of `valid`, then fit all of the data. Returns the error of the held-out rollouts."""
        best, chosen, tried = math.inf, None, set()
        left_out = self.take_basis(base, train)
        for setting in self.settings():
            self.rank.fill_(int((left_out > setting[0]).sum()))
            key = (int(self.rank), *setting[1:])
            if key in tried:
                continue
            tried.add(key)
            self.learn(base, train, setting)
            error = self.held_out(base, valid)
            if error < best:
                best, chosen = error, setting
        if chosen is None:
            raise InputError(f"no setting of {self.name} follows the held-out trajectories: all of them diverge")
        if not torch.equal(valid.state, train.state):  # a single trajectory serves for both
            train = joined(train, valid)
        left_out = self.take_basis(base, train)
        self.rank.fill_(int((left_out > chosen[0]).sum()))
        self.learn(base, train, chosen)
        return best

    @torch.no_grad()
    def held_out(self, base: Problem, valid: Corpus) -> float:
        """Relative error of free rollouts from the offset, all trajectories together."""
        wrong = size = 0.0
        for rows in valid.together(base):
            part = valid.part(rows)
            states = rollout(self, part.problem(base), part.state[:, 0], part.source_average, part.steps, t0=part.clock(base))
            wrong += float((states - part.state).double().square().sum())
            size += float((part.state - part.state.new_tensor(part.offset or [0.0])).double().square().sum())
        return math.sqrt(wrong / size) if math.isfinite(wrong) and size > 0 else math.inf

    def take_basis(self, base: Problem, data: Corpus) -> Tensor:
        """All modes of the data; returns the share of the energy [modes] that is lost without each and all behind it."""
        states = thinned(base.restrict(data.state).flatten(0, 1)).double()
        mean = states.mean(0)
        self.centre.copy_(mean)
        more = self.responses(base, data)
        states = states - mean if more is None else torch.cat([states - mean, more.double()])
        if base.fixed is not None:
            states = states * (~base.fixed).T
        self.basis.zero_()
        left_out = states.new_zeros(self.modes)
        for f in range(self.fields):
            V, share = modes_of(states[..., f], self._volume(base), self.modes)
            self.basis[f, :, :V.shape[1]] = V.to(self.basis)
            left_out[:len(share)] = torch.maximum(left_out[:len(share)], share)
        if self.moving:
            assert data.velocity is not None
            flow = thinned(data.velocity.flatten(0, 1)).flatten(1).double()
            self.flow_centre.copy_(flow.mean(0))
            V = modes_of(flow - flow.mean(0), flow.new_ones(flow.shape[1]), self.flow_basis.shape[1])[0]
            self.flow_basis.zero_()
            self.flow_basis[:, :V.shape[1]] = V.to(self.flow_basis)
        return left_out


def thinned(rows: Tensor) -> Tensor:
    """At most `_SNAPSHOTS` of the rows, evenly spread."""
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), _SNAPSHOTS)).round().long().to(rows.device)]


def modes_of(rows: Tensor, weight: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Leading modes [n, r <= most] of rows [S, n], orthonormal with the weights, and the energy [r] that is lost without each."""
    scaled = rows * weight.sqrt()
    if len(scaled) <= scaled.shape[1]:
        size, left = torch.linalg.eigh(scaled @ scaled.T)
        found = scaled.T @ left
    else:
        size, found = torch.linalg.eigh(scaled.T @ scaled)
    size, found = size.flip(0).clamp(min=0), found.flip(1)
    count = min(int((size > 1e-13 * size[0]).sum()), most)
    left_out = size.flip(0).cumsum(0).flip(0)[:count] / size.sum().clamp(min=1e-300)
    return torch.linalg.qr(found[:, :count])[0] / weight.sqrt()[:, None], left_out


def joined(first: Corpus, second: Corpus) -> Corpus:
    """The trajectories of both."""
    def both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        return None if a is None or b is None else torch.cat([a, b])

    return Corpus(torch.cat([first.state, second.state]), both(first.source_average, second.source_average),
                  both(first.velocity, second.velocity), first.dt, first.offset, torch.cat([first.begin, second.begin]))
