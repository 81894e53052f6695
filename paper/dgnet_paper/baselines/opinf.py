"""Operator inference (Peherstorfer and Willcox 2016; McQuarrie, Huang and Willcox 2021): a reduced model from data alone.

    a+ = a + A a + B V^T W f + c + H (a (x) a) + sum_j b_j N_j a

in the coordinates a of a basis of training states (`reduced`); W are the volumes of the nodes, b_j the coordinates of a flow that
changes in time, at mid-step. All operators come from one ridge regression on the training trajectories; neither the equation nor a
coefficient is told. H sees the leading modes only. The rank, the ridge, and whether H and N are there at all are chosen by rollouts
of held-out trajectories.

Stability: without H and N, eigenvalues of I + A outside of the unit circle are moved onto it, so that no rollout grows without
bound. With them only the held-out rollouts tell. Dirichlet values are imposed after every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import nn

from dgnet.data import Corpus
from dgnet.problems import Problem
from dgnet_paper.baselines.adapter import Settings
from dgnet_paper.baselines.reduced import Reduced, Subspace, thinned

Tensor = torch.Tensor

TAILS = (1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 0.0)  # shares of the energy that a basis may leave out
RIDGES = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)  # against the mean square of the features


@dataclass(frozen=True)
class OpInfConfig(Settings):
    modes: int = 200  # of each field, at most
    flow_modes: int = 6
    quadratic: int = 20  # leading modes of all fields whose products are features


@dataclass(frozen=True, eq=False)
class Inferred(Subspace):
    """Operators, acting on rows [B, ...]; R = F r coordinates."""

    carry: Tensor  # [R, R] I + A
    source: Tensor  # [R, R] B
    constant: Tensor  # [R] c
    pairs: Tensor | None  # [2, P] coordinates whose products are features
    products: Tensor  # [P, R] H
    moved: Tensor | None  # [q R, R] N

    def repeats(self, times: Sequence[float] = ()) -> bool:
        return bool(times) or super().repeats()  # the same few products whatever the flow is


class OpInf(Reduced[Inferred]):
    name = "opinf"

    quadratic: Tensor
    carried: Tensor

    def __init__(self, config: OpInfConfig, problem: Problem) -> None:
        super().__init__(config.modes, config.flow_modes, problem)
        self.config = config
        R, q = self.fields * self.modes, self.flow_basis.shape[1] if self.moving else 0
        lead = self.fields * self._leading(self.modes)
        self.linear = nn.Parameter(-0.1 * torch.rand(R).diag())
        self.source = nn.Parameter(torch.eye(R) * problem.dt)
        self.constant = nn.Parameter(torch.zeros(R))
        self.products = nn.Parameter(torch.zeros(lead * (lead + 1) // 2, R))
        self.moved = nn.Parameter(torch.zeros(q, R, R))
        self.register_buffer("quadratic", torch.tensor(False))
        self.register_buffer("carried", torch.tensor(False))

    def _leading(self, rank: int) -> int:
        """Modes of each field that enter products."""
        return min(rank, self.config.quadratic // self.fields)

    def _used(self) -> Tensor:
        """Coordinates in use among F x modes."""
        device = self.linear.device
        return (torch.arange(self.fields, device=device)[:, None] * self.modes
                + torch.arange(int(self.rank), device=device)).flatten()

    def _pairs(self) -> Tensor:
        rank, device = int(self.rank), self.linear.device
        lead = torch.cat([f * rank + torch.arange(self._leading(rank), device=device) for f in range(self.fields)])
        return lead[torch.triu_indices(len(lead), len(lead), device=device)]

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> Inferred:
        own, at, dtype = self.subspace(problem), self._used(), problem.dtype
        eye = torch.eye(len(at), device=at.device)
        pairs = self._pairs() if bool(self.quadratic) else None
        moved = self.moved[:, at][..., at].flatten(0, 1) if bool(self.carried) else None
        return Inferred(self, problem, own.centre.to(dtype), own.wide.to(dtype), own.narrow.to(dtype),
                        (self.linear[at][:, at] + eye).to(dtype), self.source[at][:, at].to(dtype), self.constant[at].to(dtype),
                        pairs, self.products[:0 if pairs is None else pairs.shape[1], at].to(dtype),
                        None if moved is None else moved.to(dtype))

    def advance(self, state: Inferred, x: Tensor, f: Tensor | None, t: float) -> Tensor:
        a = x @ state.narrow
        new = torch.addmm(state.constant, a, state.carry)
        if f is not None:
            new = new + f @ state.narrow @ state.source
        if state.pairs is not None:
            new = new + (a[:, state.pairs[0]] * a[:, state.pairs[1]]) @ state.products
        if state.moved is not None:
            b = self.flow_at(state, t + 0.5 * state.problem.dt).to(a.dtype)
            new = new + (b[..., None] * a[:, None]).flatten(1) @ state.moved
        return new

    # ------------------------------------------------------------------ the fit

    def settings(self) -> Iterable[tuple[float, ...]]:
        """(tail of the energy, ridge, with products, with the flow)."""
        return product(TAILS, RIDGES, (0.0, 1.0), (0.0, 1.0) if self.moving else (0.0,))

    def responses(self, base: Problem, data: Corpus) -> Tensor | None:
        return None if data.source_average is None else data.dt * thinned(base.restrict(data.source_average).flatten(0, 1))

    def learn(self, base: Problem, data: Corpus, setting: tuple[float, ...]) -> None:
        _, ridge, quadratic, carried = setting
        own = self.subspace(base)
        shift = own.centre.double()
        a = (base.restrict(data.state).double() - shift).flatten(2) @ own.narrow  # [B, T+1, R]
        now, R = a[:, :-1].flatten(0, 1), a.shape[-1]
        groups = [now, torch.ones_like(now[:, :1])]
        if data.source_average is not None:
            groups.append(base.restrict(data.source_average).double().flatten(2).flatten(0, 1) @ own.narrow)
        if quadratic:
            i, j = self._pairs()
            groups.append(now[:, i] * now[:, j])
        if carried and data.velocity is not None:
            v = 0.5 * (data.velocity[:, 1:] + data.velocity[:, :-1])
            b = ((v.flatten(2) - self.flow_centre) @ self.flow_basis).double().flatten(0, 1)
            groups.append((b[..., None] * now[:, None]).flatten(1))
        change = (a[:, 1:] - a[:, :-1]).flatten(0, 1)
        weights = ridge_regression(groups, change, ridge, [g.shape[1] == R for g in groups])
        rest = iter(weights[2:])
        at = self._used()
        for target in (self.linear, self.source, self.constant, self.products, self.moved):
            target.zero_()
        eye = torch.eye(R, dtype=a.dtype, device=a.device)
        linear = weights[0] if quadratic or carried else bounded(weights[0] + eye) - eye
        self.linear[at[:, None], at] = linear.to(self.linear)
        self.constant[at] = weights[1][0].to(self.constant)
        if data.source_average is not None:
            self.source[at[:, None], at] = next(rest).to(self.source)
        if quadratic:
            found = next(rest)
            self.products[:len(found)].index_copy_(1, at, found.to(self.products))
        if carried and data.velocity is not None:
            self.moved[:, at[:, None], at] = next(rest).unflatten(0, (-1, R)).to(self.moved)
        self.quadratic.fill_(bool(quadratic))
        self.carried.fill_(bool(carried))


def ridge_regression(groups: list[Tensor], target: Tensor, ridge: float, square: list[bool]) -> list[Tensor]:
    """Weights [D_g, R] of each group of features [S, D_g], each of them scaled to mean square 1 before the ridge is added.

    The ridge pulls groups that are `square` (as wide as the target) towards a multiple of the identity, itself fitted first, and
    all others towards zero.
    """
    plain = torch.stack([g.flatten() for g, s in zip(groups, square) if s], 1)
    factors = iter(torch.linalg.lstsq(plain, target.flatten()[:, None]).solution[:, 0])
    eye = torch.eye(target.shape[1], dtype=target.dtype, device=target.device)
    prior = [next(factors) * eye if s else target.new_zeros(g.shape[1], target.shape[1]) for g, s in zip(groups, square)]
    scales = [g.square().mean().sqrt().clamp(min=1e-30) for g in groups]
    z = torch.cat([g / s for g, s in zip(groups, scales)], 1)
    left = target - sum(g @ w for g, w in zip(groups, prior))
    damping = ridge * torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    found = torch.linalg.solve(z.T @ z / len(z) + damping, z.T @ left / len(z))
    return [w0 + w / s for w0, w, s in zip(prior, found.split([g.shape[1] for g in groups]), scales)]


def bounded(step: Tensor) -> Tensor:
    """The matrix with eigenvalues outside of the unit circle moved onto it."""
    values, vectors = torch.linalg.eig(step)
    size = values.abs()
    if not len(size) or float(size.max()) <= 1.0:
        return step
    kept = vectors * (values / size.clamp(min=1.0))
    return torch.linalg.solve(vectors, kept, left=False).real
