"""Residuals of rollouts: their derivatives by what is unknown, the noise of the data, and patches of nodes that hang together.

Derivatives [B, n, F, K] are stepped along with the state. Noise of a first state stays with its rollout, so the residuals of nodes
side by side hang together: what patches of nodes contribute to the gradient says how large the variance is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dgnet.discovery.least_squares import Sums
from dgnet.errors import SolveError
from dgnet.models.dgnet import DGNet
from dgnet.problems import Problem

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor
Tangent = Callable[[Any, Tensor, Tensor, Tensor, float], Tensor]
"""`tangent(stepper, u, after, d, t)`: derivatives of the state `after` a step from u, from those before it, [B, n, F, K]."""

_ACROSS = 5  # patches along each axis


def patches(base: Problem) -> Tensor:
    """A number for each degree of freedom: boxes of nodes, whose residuals may hang together."""
    x = base.mesh.points
    box = np.minimum((x - x.min(0)) / np.maximum(np.ptp(x, axis=0), 1e-300) * _ACROSS, _ACROSS - 1).astype(int)
    label = np.unique(box @ _ACROSS ** np.arange(x.shape[1]), return_inverse=True)[1].ravel()
    out = np.zeros(base.n, dtype=np.int64)
    out[base.geometry.dof] = label
    return torch.tensor(out)


@dataclass(frozen=True, eq=False)
class Sweep(Sums):
    """All trajectories rolled out once, with tangents.

    - `residuals` [B, T, n, F] at the free nodes, in their units
    - `aside` [K]: J^T W (a change of the states), where one was given
    """

    residuals: Tensor
    aside: Tensor


@torch.no_grad()
def sweep(model: DGNet, base: Problem, data: Corpus, count: int, tangent: Tangent, patch: Tensor, *, unit: Tensor,
          begin: Tensor | None = None, scale: float = math.inf, change: Tensor | None = None, careful: bool = False) -> Sweep:
    """Residuals (data - rollout) / unit and their derivatives by `count` numbers; a SolveError where a rollout is not finite.

    - `begin` [B, N, F]: first states in place of the data's
    - `scale`: of Cauchy's misfit, sum of scale^2 log(1 + r^2 / scale^2); squares where it is infinite
    - `change` [B, T+1, N, F]: of the states, see `Sweep.aside`
    """
    matrix = torch.zeros(count, count, dtype=torch.float64, device=patch.device)
    aside, misfit = matrix.new_zeros(count), matrix.new_zeros(())
    groups, residuals = [], []
    for rows in data.together(base):
        part = data.part(rows)
        state = model.prepare(part.problem(base), len(part), part.steps, careful=careful)
        stepper, t = state.main, part.clock(base)
        p = stepper.problem
        free, held = free_nodes(p)
        weight = held / unit
        u = p.restrict(part.state[:, 0] if begin is None else begin[rows]).to(p.dtype)
        d, score, left = u.new_zeros(*u.shape, count), matrix.new_zeros(len(part), int(patch.max()) + 1, count), []
        for k in range(part.steps):
            now, f = t + k * p.dt, None if part.source_average is None else part.source_average[:, k]
            after = p.restrict(stepper.step(p.expand(u), f, now))
            d, u = tangent(stepper, u, after, d, now), after
            r = (p.restrict(part.state[:, k + 1]) - u)[:, free].double() * weight
            ratio, J = (r / scale).square(), d[:, free].double() * weight[..., None]
            misfit = misfit + (r.square().sum() if scale == math.inf else scale**2 * torch.log1p(ratio).sum())
            weighted = J / (1 + ratio[..., None])
            matrix += weighted.flatten(0, 2).T @ J.flatten(0, 2)
            score.index_add_(1, patch[free], (weighted * r[..., None]).sum(2))
            left.append(r)
            if change is not None:
                aside += weighted.flatten(0, 2).T @ (p.restrict(change[rows, k + 1])[:, free].double() * weight).flatten()
        state.finish()
        groups.append(score.flatten(0, 1))
        residuals.append(torch.stack(left, 1))
    if not math.isfinite(float(misfit)):
        raise SolveError("a rollout of the fit is not finite")
    every = torch.cat(residuals)
    return Sweep(matrix, torch.cat(groups), float(misfit), float(every.square().mean()), every.numel(), every, aside)


def free_nodes(p: Problem) -> tuple[Tensor, Tensor]:
    """Degrees of freedom [n] of which some field has no Dirichlet value, and there which, as numbers [m, F] (1: free)."""
    if p.fixed is None:
        free = torch.ones(p.n, dtype=torch.bool, device=p.geometry.device)
        return free, torch.ones(p.n, p.n_fields, dtype=torch.float64, device=p.geometry.device)
    open_ = (~p.fixed).expand(p.n_fields, p.n).T
    free = open_.any(1)
    return free, open_[free].double()


def noise_level(state: Tensor) -> float:
    """Standard deviation of white noise in states [B, T+1, N, 1]: the least that differences in time of any order up to 7 show."""
    found, d = [], state.double()
    for order in range(1, min(8, state.shape[1] - 1)):
        d = d.diff(dim=1)
        found.append(deviation(d) / math.sqrt(math.comb(2 * order, order)))
    return min(found, default=0.0)


def deviation(x: Tensor) -> float:
    """Standard deviation of what lies around zero, whatever the tails are."""
    return 1.4826 * float(x.abs().median())


def quiet_noise(state: Tensor) -> float:
    """Standard deviation of white noise in states [B, T+1, N, F], from the time at which they change least: third differences."""
    if state.shape[1] < 4:
        return 0.0
    d = state.double().diff(n=3, dim=1).abs().transpose(0, 1).flatten(1)
    return 1.4826 * float(d.median(1).values.min()) / math.sqrt(20)
