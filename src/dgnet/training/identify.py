"""An unknown reaction of one field by linear least squares, before anything else is trained.

A step of the truth tells what the known terms leave over: with M, K and P those of the model and u, u+ the data,

    rho = S^-1 [ (M + dt/2 K) u+ - (M - dt/2 K) u - dt P f ] / dt        and        rho = (r(u) + r(u+)) / 2 + O(dt^2)

at every node; S is M without the capacity. r is a table, so this is linear in its values; what the operator misses is noise that
many nodes and steps average.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dgnet.errors import InputError
from dgnet.green import GreenSolver, fold, product, unfold
from dgnet.green.backends import apply
from dgnet.models.dgnet import DGNet, Table, Transfer, transfer
from dgnet.problems import Discretisation

if TYPE_CHECKING:
    from dgnet.training.fit import Corpus

Tensor = torch.Tensor

_STEPS = 200  # of the data that are looked at, spread over all of it
_SMOOTH, _SMALL = 1e-6, 1e-10  # weights of second differences and of the values themselves: for places that no state visits


def identify(model: Any, base: Discretisation, train: Corpus) -> float:
    """Set the table; returns the mean square of what it leaves unexplained, against that of rho."""
    if not isinstance(model, DGNet) or not isinstance(getattr(model, "reaction_net", None), Table):
        raise InputError("only a DGNet whose learned reaction is a table can be identified")
    table: Any = model.reaction_net
    size = len(table.values)
    normal = torch.zeros(size, size, dtype=torch.float64, device=train.state.device)
    right, whole = normal.new_zeros(size), normal.new_zeros(())
    chosen = torch.linspace(0, train.steps - 1, min(_STEPS, train.steps)).round().long().unique().tolist()
    with torch.no_grad():
        for rows in train.together(base):
            data = train if len(rows) == len(train) else train.part(rows)
            solver = model.prepare(data.problem(base), len(data), 1).solver
            ops = solver.operators
            plain = ops.mass if ops.plain is None else ops.plain  # what the reaction is gathered with, the same at all times
            mass = transfer(solver.problem, plain, plain, ops.mass_low)
            for k in chosen:
                features, rho, weight = samples(model, solver, mass, data, k, data.clock(base) + k * data.dt)
                normal += (features * weight).T @ features
                right += features.T @ (weight[:, 0] * rho)
                whole += (weight[:, 0] * rho.square()).sum()
        top = normal.diagonal().max()
        bend = torch.diff(torch.eye(size, dtype=torch.float64, device=normal.device), n=2, dim=0)
        ridge = top * (_SMOOTH * bend.T @ bend + _SMALL * torch.eye(size, dtype=torch.float64, device=normal.device))
        values = torch.linalg.solve(normal + ridge, right)
        table.values.copy_(values)
        left = whole - 2 * values @ right + values @ normal @ values
    return float(left / whole.clamp(min=1e-300))


def samples(model: DGNet, solver: GreenSolver, mass: Transfer, data: Corpus, k: int, t: float) -> tuple[Tensor, Tensor, Tensor]:
    """Of step k (from time t) of every trajectory, at the nodes that are free: features [S, J], rho [S] and weights [S, 1]."""
    p, ops, dt = solver.problem, solver.operators, data.dt
    u, after = (p.restrict(data.state[:, j]) for j in (k, k + 1))
    rest = product(ops.mass, after - u) + 0.5 * dt * product(ops.stiffness(t + 0.5 * dt), u + after)
    f = None if data.source is None else p.restrict(data.source[:, k])
    force = solver._force(f, t, dt)
    if force is not None:
        rest = rest - dt * force
    rho = unfold(apply(mass.solver, mass.mass, fold(rest / dt, 1, 1)), 1, 1, *u.shape[::2])[..., 0].double()
    weight = mass.mass.row_sums()[0].double().expand_as(rho)
    free = torch.ones(p.n, dtype=torch.bool, device=u.device) if p.fixed is None else ~p.fixed[0]
    features = 0.5 * (model.reaction_features(u) + model.reaction_features(after))[..., 0, :].double()
    return features[:, free].flatten(0, 1), rho[:, free].flatten(), weight[:, free].reshape(-1, 1)
