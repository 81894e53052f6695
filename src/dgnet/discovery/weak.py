"""Which terms a reaction of several fields has: least squares over all nodes and steps, one term less at a time.

What the known terms of the equation leave over is what the reaction adds (weak form, integrated over the m steps of a window):

    y = M (u_m - u_0) / dt + sum_k w_k [ K u_k - g(t_k) ] - sum_k P f_k  =  sum_p theta_p x_p,      x_p = sum_k w_k M phi_p(u_k)

with weights 1 / V, V the nodal volumes. w are Simpson's weights, so that terms do not stand in for an error of the time step, as
they would with the rule of the solver. The noise of the states is divided by m dt. All that is kept are X^T X, X^T y and y^T y of
each trajectory: each of them is left out once, and the terms fitted to the others are scored on it. Beginning with all terms, the
one goes that matters least, and of those that stay each gives way to one that went before, where that fits better. The fewest terms
are taken whose score is as good as the best one within what the trajectories differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dgnet.discovery.residuals import free_nodes
from dgnet.models.dgnet import DGNet, Library
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import Operators
from dgnet.stepping.fold import product

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor

_WINDOW = 4  # steps
_SLACK, _LEAST = 0.02, 1e-7  # what a term must gain in the square, of the best score and of y itself: the data have errors, too
_PIECES = 4  # of the time, where there is but one trajectory
_RIDGE = 1e-10
_BETTER, _EXACT = 1e-3, 1e-13  # by which a misfit must become smaller for a term to give way to another; rounding, of the square
_SIMPSON = {1: (1 / 2, 1 / 2), 2: (1 / 3, 4 / 3, 1 / 3), 4: (1 / 3, 4 / 3, 2 / 3, 4 / 3, 1 / 3)}


@dataclass(frozen=True, eq=False)
class Normal:
    """Of G groups of data and each field: X^T X [G, F, P, P], X^T y [G, F, P], y^T y [G, F]."""

    matrix: Tensor
    right: Tensor
    square: Tensor

    def solved(self, field: int, terms: Tensor, without: int | None = None) -> Tensor:
        """Values of the terms, fitted to all groups but one."""
        keep = torch.arange(len(self.square), device=self.square.device) != (-1 if without is None else without)
        A = self.matrix[keep, field].sum(0)[terms][:, terms]
        b = self.right[keep, field].sum(0)[terms]
        return torch.linalg.solve(A + _RIDGE * A.diagonal().max().clamp(min=1e-300) * torch.eye(len(A)).to(A), b)

    def misfit(self, field: int, terms: Tensor, values: Tensor, group: int) -> float:
        A, b = self.matrix[group, field][terms][:, terms], self.right[group, field, terms]
        return float(self.square[group, field] - 2 * values @ b + values @ A @ values)

    def scores(self, field: int, terms: Tensor) -> Tensor:
        """[G]: misfit of every group by the terms fitted to the others, against its y^T y in the mean."""
        scale = float(self.square[:, field].mean()) + 1e-300
        found = [self.misfit(field, terms, self.solved(field, terms, g), g) / scale for g in range(len(self.square))]
        return torch.tensor(found, dtype=torch.float64)


def choose_terms(model: DGNet, library: Library, base: Problem, train: Corpus) -> None:
    """Set the library's active terms and first values."""
    with torch.no_grad():
        normal = gathered(model, library, base, train)
        size = (model.rate * model.capacity).double()
        library.active.zero_()
        library.values.zero_()
        for f in range(model.fields):
            terms = sparse(normal, f)
            library.active[terms, f] = 1.0
            library.values[terms, f] = (normal.solved(f, terms) / size[f]).to(library.values)


def sparse(normal: Normal, field: int) -> Tensor:
    """The numbers of the terms that are kept."""
    terms = torch.arange(normal.right.shape[-1], device=normal.right.device)
    path = [(terms, normal.scores(field, terms))]
    while len(terms) > 1:
        A = normal.matrix[:, field].sum(0)[terms][:, terms]
        inverse = torch.linalg.inv(A + _RIDGE * A.diagonal().max().clamp(min=1e-300) * torch.eye(len(A)).to(A))
        loss = normal.solved(field, terms).square() / inverse.diagonal()
        terms = exchanged(normal, field, terms[torch.arange(len(terms), device=terms.device) != loss.argmin()])
        path.append((terms, normal.scores(field, terms)))
    best = min(path, key=lambda step: float(step[1].mean()))[1]
    for terms, score in reversed(path):
        gap = score - best
        if float(gap.mean()) <= _LEAST + _SLACK * float(best.mean()) + float(gap.std()) / len(gap) ** 0.5:
            return terms
    raise AssertionError("the best is one of them")


def exchanged(normal: Normal, field: int, terms: Tensor) -> Tensor:
    """As many terms, none of which another one could replace with a smaller misfit: terms may stand in for each other."""
    A, b, square = normal.matrix[:, field].sum(0), normal.right[:, field].sum(0), float(normal.square[:, field].sum())
    A = A + _RIDGE * A.diagonal().max().clamp(min=1e-300) * torch.eye(len(A)).to(A)

    def misfit(chosen: Tensor) -> float:
        return max(square - float(b[chosen] @ torch.linalg.solve(A[chosen][:, chosen], b[chosen])), _EXACT * square)

    best = misfit(terms)
    while True:
        out, tried = torch.ones_like(b, dtype=torch.bool).index_fill(0, terms, False).nonzero()[:, 0], [terms]
        for k in range(len(terms)):
            rest = torch.cat([terms[:k], terms[k + 1:]])
            solved = torch.linalg.solve(A[rest][:, rest], torch.cat([b[rest, None], A[rest][:, out]], 1))
            free = A.diagonal()[out] - (A[rest][:, out] * solved[:, 1:]).sum(0)  # of a term, what the others do not explain
            gain = (b[out] - A[out][:, rest] @ solved[:, 0]).square() / free
            tried.append(torch.cat([rest, out[gain.argmax()][None]]).sort().values)
        found = min(tried, key=misfit)
        if misfit(found) >= best * (1 - _BETTER):
            return terms
        best, terms = misfit(found), found


def gathered(model: DGNet, library: Library, base: Problem, train: Corpus) -> Normal:
    """The sums of all trajectories; of one alone, those of pieces of its time."""
    fields, count = model.fields, len(library.size)
    length = next((n for n in (_WINDOW, 2) if n <= train.steps), 1)
    groups = len(train) if len(train) > 1 else min(_PIECES, max(1, train.steps // length))
    like = torch.zeros(0, dtype=torch.float64, device=train.state.device)
    normal = Normal(like.new_zeros(groups, fields, count, count), like.new_zeros(groups, fields, count),
                    like.new_zeros(groups, fields))
    for rows in train.together(base):
        data = train.part(rows).to(torch.float64)
        state = model.prepare(data.problem(base), len(data), data.steps)
        p, ops = state.solver.problem, state.solver.operators
        free, held = free_nodes(p)
        volume = p.source_mass.row_sums()[0].double().expand(fields, -1).T[free]
        for start in range(0, data.steps - length + 1, length):
            y, x = (part[:, free] for part in _window(data, p, ops, library, start, length, data.clock(base)))
            w = held / volume
            number = torch.tensor(rows if len(train) > 1 else [start * groups // data.steps], device=like.device)
            normal.matrix.index_add_(0, number, torch.einsum("bnfp,nf,bnfq->bfpq", x, w, x))
            normal.right.index_add_(0, number, torch.einsum("bnfp,nf,bnf->bfp", x, w, y))
            normal.square.index_add_(0, number, torch.einsum("bnf,nf,bnf->bf", y, w, y))
    return normal


def _window(data: Corpus, p: Problem, ops: Operators, library: Library, start: int, length: int,
            t: float) -> tuple[Tensor, Tensor]:
    """y [B, n, F] and x [B, n, F, P]."""
    def times(A: EdgeMatrix, u: Tensor) -> Tensor:
        return product(EdgeMatrix(A.pattern, A.values.double()), u)

    states = [p.restrict(data.state[:, k]) for k in range(start, start + length + 1)]
    y, phi = times(ops.mass, states[-1] - states[0]) / p.dt, torch.zeros((), dtype=torch.float64)
    for k, (u, w) in enumerate(zip(states, _SIMPSON[length]), start):
        y = y + w * times(ops.stiffness(t + k * p.dt), u)
        phi = phi + w * library.features(u)
        # loads are integrated; where the exchange changes they are sampled as K is, so that a state at the ambient value rests
        load = ops.load(t + k * p.dt) if p.exchange_changes else None if k == start + length else ops.load(t + k * p.dt, p.dt)
        if load is not None:
            y = y - (w if p.exchange_changes else 1.0) * load
    if data.source_average is not None:
        y = y - times(ops.source, p.restrict(data.source_average[:, start:start + length].sum(1)))
    gather = ops.mass if ops.plain is None else ops.plain
    x = [times(gather, one[..., None].expand_as(y)) for one in phi.unbind(-1)]
    return y, torch.stack(x, -1)
