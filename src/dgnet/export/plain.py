"""A step in plain operations: gathers, products and sums with constants, which other formats can hold.

Matrices are in a padded row layout (products are gathers), the solve is the fixed number of Chebyshev iterations that its proven
bounds ask for (the explicit inverse where that would be too many). Reaction by predictor-corrector, Dirichlet rows, residual
network. Baselines are traced as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dgnet.errors import InputError
from dgnet.export.pieces import Pieces
from dgnet.models.dgnet import DGNet, MassChange
from dgnet.models.gnn import MeshGraph, StateNet
from dgnet.operators import EdgeMatrix, Pattern
from dgnet.stepping import GreenSolver
from dgnet.stepping.bounds import Bounds, bounds_of

Tensor = torch.Tensor

TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-12}
_UNROLLED = 400  # iterations of a solve that a program may hold
_DENSE = 4000  # degrees of freedom up to which the explicit inverse takes their place where they are more
_QUICK = 2000  # and up to which it does where it is quicker
_GATHERED = 15  # entries of a dense matrix that are multiplied while one of a sparse one is gathered


class Padded(nn.Module):
    """A u for u [B, m, F], from the columns [w, n] and values [w, n, f] of rows of equal length w."""

    columns: Tensor
    values: Tensor

    def __init__(self, columns: Tensor, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("columns", columns.long().ravel())
        self.register_buffer("values", values.contiguous())

    @classmethod
    def rows(cls, crow: Tensor, col: Tensor, values: Tensor) -> Padded:
        """From a matrix in CSR order; shorter rows end in zeros."""
        counts = crow[1:] - crow[:-1]
        n, width = len(counts), int(counts.max())
        row = torch.repeat_interleave(torch.arange(n), counts)
        lane = torch.arange(len(col)) - crow[:-1][row]
        columns, padded = torch.zeros(width, n, dtype=torch.long), values.new_zeros(width, n, 1)
        columns[lane, row], padded[lane, row, 0] = col.long(), values.detach()
        return cls(columns, padded)

    def forward(self, u: Tensor) -> Tensor:
        width, n = self.values.shape[:2]
        near = u.index_select(1, self.columns).reshape(u.shape[0], width, n, u.shape[2])
        return (near * self.values).sum(1)


class Product(Padded):
    """A u for a matrix with values [1, f, nnz] and u [B, n, F]."""

    def __init__(self, A: EdgeMatrix, dtype: torch.dtype) -> None:
        columns, slots = A.pattern.ell
        flat = A.values.detach().reshape(-1, A.pattern.nnz).to(dtype)
        padded = torch.cat([flat, flat.new_zeros(len(flat), 1)], 1)
        super().__init__(columns, padded[:, slots.ravel()].view(-1, *slots.shape).permute(1, 2, 0))


class Solve(nn.Module):
    """A^-1 b [B, n, F] by a fixed Chebyshev iteration, or by the explicit inverse."""

    def __init__(self, A: EdgeMatrix, bounds: Bounds, dtype: torch.dtype) -> None:
        super().__init__()
        values = A.values.detach().reshape(-1, A.pattern.nnz).double()
        reach = torch.finfo(dtype).eps * bounds.high / max(bounds.low, 1e-300) if bounds.usable else 1.0
        self.inner = torch.float64 if reach > 1e-6 else dtype  # a stiff matrix needs more digits than single precision has
        tolerance = TOLERANCE[self.inner] if self.inner == dtype else 1e-9
        count = bounds.iterations(tolerance)
        self.coefficients: list[tuple[float, float]] = []
        dense = A.pattern.n <= _QUICK and A.pattern.n**2 < _GATHERED * count * A.pattern.nnz
        if count <= _UNROLLED and not dense:
            self.coefficients = bounds.coefficients(count)
            self.product = Product(EdgeMatrix(A.pattern, values), self.inner)
            self.register_buffer("weight", (1 / values[:, A.pattern.diagonal]).T.to(self.inner).contiguous())  # [n, f]
        elif A.pattern.n <= _DENSE:
            self.register_buffer("inverse", torch.linalg.inv(_dense(A.pattern, values)).to(dtype))  # [f, n, n]
        else:
            raise InputError(f"the step is too stiff to export: {count:,} iterations on {A.pattern.n:,} nodes; a smaller time step "
                             "needs fewer")
        self.label = f"chebyshev({count})" if self.coefficients else "dense inverse"

    weight: Tensor
    inverse: Tensor

    def forward(self, b: Tensor) -> Tensor:
        if not self.coefficients:
            if len(self.inverse) == 1:
                return torch.matmul(self.inverse[0], b)
            return torch.matmul(self.inverse, b.permute(2, 1, 0)).permute(2, 1, 0)
        right = b.to(self.inner)
        x, r, p = torch.zeros_like(right), right, torch.zeros_like(right)
        for alpha, beta in self.coefficients:
            p = beta * p + self.weight * r
            x = x + alpha * p
            r = right - self.product(x)
        return x.to(b.dtype)


def _dense(pattern: Pattern, values: Tensor) -> Tensor:
    full = values.new_zeros(len(values), pattern.n, pattern.n)
    full[:, pattern.row.long(), pattern.col.long()] = values
    return full


class Residual(nn.Module):
    """`StateNet` in plain operations: x [B, N, C] -> [B, N, F]."""

    edge: Tensor
    place: Tensor
    receiver: Tensor
    sender: Tensor
    degree: Tensor

    def __init__(self, net: StateNet, graph: MeshGraph) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("edge", net.edge(graph.edge).detach())
        self.register_buffer("place", graph.place.clone())
        self.register_buffer("receiver", graph.to.clone())
        self.register_buffer("sender", graph.frm.clone())
        ones = torch.ones(len(graph.to), dtype=graph.node.dtype)
        self.register_buffer("degree", torch.zeros(len(graph.node), dtype=graph.node.dtype).index_add(0, graph.to, ones))

    def forward(self, x: Tensor) -> Tensor:
        h = self.net.node(torch.cat([x, self.place.expand(x.shape[0], -1, -1)], -1))
        scale = (1 / self.degree.sqrt())[:, None]
        p = self.net.process
        for receive, send, edge, message, update in zip(p.receive, p.send, p.edge, p.message, p.update):
            m = functional.silu(receive(h).index_select(1, self.receiver) + send(h).index_select(1, self.sender) + edge(self.edge))
            total = torch.zeros_like(h).index_add(1, self.receiver, m) * scale
            outer: Any = list(message.children())[1]  # linear, so it may act on the sum
            total = functional.linear(total, outer.weight) + outer.bias * (scale * self.degree[:, None])
            h = h + update(torch.cat([h, total], -1))
        return self.net.decode(h)


class Step(nn.Module):
    """A solver's step for one mesh, time step and set of conditions: u [B, N, F], f [B, N, F] -> u after dt.

    With the `model` whose solver it is, what acts besides: its networks of states, on the graph of the mesh. `near`: dt times what
    nodes get of a source at the nodes, where it is not the solver's own.
    """

    def __init__(self, solver: GreenSolver, model: DGNet | None = None, graph: MeshGraph | None = None,
                 near: EdgeMatrix | None = None) -> None:
        super().__init__()
        made = Pieces.of(solver)
        made = made if near is None else replace(made, source=near * (1 / made.problem.dt))
        p, dtype = made.problem, made.problem.dtype
        self.dt, self.periodic, self.pivot, self.dtype, self.rates = p.dt, p.periodic, made.pivot, dtype, made.rates
        self.keep("owner", p.owner if self.periodic else None)
        self.keep("dof", p.dof if self.periodic else None)
        self.explicit, self.source = Product(made.explicit, dtype), Product(made.source, dtype)
        self.solve = Solve(made.system, made.bounds, dtype)
        for name, value in (("sums", made.sums), ("load", made.load), ("wall", p.fixed_values(0.0)),
                            ("fixed", None if p.fixed is None else p.fixed.T)):
            self.keep(name, value)
        self.full = None if p.fixed is None else Product(made.full, dtype)
        self.gather = nn.ModuleList([Product(A, dtype) for A in made.gather])
        learned = model is not None and model.config.reaction == "learned"
        self.reaction_net = model.reaction_net if model is not None and learned else None  # whose weights the reaction uses
        self.residual = None
        if model is not None and graph is not None and model.config.residual:
            self.residual = Residual(model.residual_net, graph)
            self.inputs: Callable[[Tensor, Tensor | None], Tensor] = model.scales.inputs
        self.keep("rate", None if model is None else model.rate)

    def keep(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, None if value is None else value.detach().clone(memory_format=torch.contiguous_format))

    owner: Tensor | None
    dof: Tensor | None
    load: Tensor | None
    fixed: Tensor | None
    wall: Tensor | None
    sums: Tensor | None
    rate: Tensor | None

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        return self.stepped(u, source)

    def stepped(self, u: Tensor, source: Tensor, more: Tensor | None = None) -> Tensor:
        """With `more` on the right-hand side."""
        inner, f = self.inward(u).to(self.dtype), self.inward(source).to(self.dtype)
        c = inner[:, self.pivot:self.pivot + 1]
        right = self.explicit(inner - c) + self.dt * self.source(f)
        if more is not None:
            right = right + more
        if self.sums is not None:
            right = right + c * self.sums
        if self.load is not None:
            right = right + self.load
        if len(self.gather) == 0:
            new = self.advanced(inner, right)
        else:
            start = self.rates(inner)
            guess = self.advanced(inner, right + self.dt * self.gathered(start))
            mean = [0.5 * (r + after) for r, after in zip(start, self.rates(guess))]
            new = self.advanced(inner, right + self.dt * self.gathered(mean))
        new = self.outward(new).to(u.dtype)
        if self.residual is not None and self.rate is not None:
            new = new + self.dt * self.rate * torch.tanh(self.residual(self.inputs(new, source)))
            new = self.outward(self.imposed(self.inward(new)))
        return new

    def gathered(self, rates: list[Tensor]) -> Tensor:
        loads = [product(r) for product, r in zip(self.gather, rates)]
        return loads[0] if len(loads) == 1 else loads[0] + loads[1]

    def advanced(self, u: Tensor, right: Tensor) -> Tensor:
        """u plus the increment, which Dirichlet rows know beforehand."""
        if self.full is not None and self.fixed is not None and self.wall is not None:
            gap = torch.where(self.fixed, self.wall - u, 0.0)
            right = torch.where(self.fixed, gap, right - self.full(gap))
        return self.imposed(u + self.solve(right))

    def imposed(self, u: Tensor) -> Tensor:
        return u if self.fixed is None or self.wall is None else torch.where(self.fixed, self.wall.to(u.dtype), u)

    def inward(self, u: Tensor) -> Tensor:
        return u if self.owner is None else u.index_select(1, self.owner)

    def outward(self, u: Tensor) -> Tensor:
        return u if self.dof is None else u.index_select(1, self.dof)


class Filter(nn.Module):
    """What is done to a state once (`MassChange`): to the initial one, or between the early steps and the others."""

    def __init__(self, change: MassChange) -> None:
        super().__init__()
        p, M = change.problem, change.mass
        self.solve = Solve(M, bounds_of(M, M, change.mass_low, symmetric=True), p.dtype)
        self.right, self.dtype = Product(change.right - EdgeMatrix(M.pattern, M.values[None]), p.dtype), p.dtype
        self.register_buffer("owner", p.owner.clone() if p.periodic else None)
        self.register_buffer("dof", p.dof.clone() if p.periodic else None)

    owner: Tensor | None
    dof: Tensor | None

    def forward(self, u: Tensor) -> Tensor:
        inner = u if self.owner is None else u.index_select(1, self.owner)
        change = self.solve(self.right(inner.to(self.dtype))).to(u.dtype)
        return u + (change if self.dof is None else change.index_select(1, self.dof))


class Traced(nn.Module):
    """Any model's own step."""

    def __init__(self, model: Any, state: Any) -> None:
        super().__init__()
        self.model, self.state = model, state

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        return self.state.step(u, source, 0.0, self.model.first_steps)
