"""A step in plain operations: gathers, products and sums with constants, which other formats can hold.

Matrices are in a padded row layout (products are gathers), the solve is the fixed number of Chebyshev iterations that its proven
bounds ask for (the explicit inverse where that would be too many). Reaction by predictor-corrector, Dirichlet rows, the memory of
the edges of the universal step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.export.pieces import Pieces
from dgnet.models.universal import Gathering
from dgnet.operators import EdgeMatrix, Pattern
from dgnet.problems import Lift
from dgnet.stepping import Bounds, GreenSolver

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
        self.register_buffer("values", values.permute(2, 0, 1).contiguous())  # [f, w, n]

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
        places = self.columns.expand(u.shape[0], u.shape[2], -1)  # runtimes gather single numbers faster than short rows
        near = u.transpose(1, 2).gather(2, places).reshape(u.shape[0], u.shape[2], *self.values.shape[1:])
        return (near * self.values).sum(2).transpose(1, 2)


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


class Step(nn.Module):
    """A solver's step for one mesh, time step and set of conditions: u [B, N, F], f [B, N, F] -> u after dt.

    `network`: whose weights the solver's reaction uses. `near`: dt times what nodes get of a source at the nodes, where it is not
    the solver's own.
    """

    def __init__(self, solver: GreenSolver, network: nn.Module | None = None, near: EdgeMatrix | None = None) -> None:
        super().__init__()
        made = Pieces.of(solver)
        made = made if near is None else replace(made, source=near * (1 / made.problem.dt))
        p, dtype = made.problem, made.problem.dtype
        self.dt, self.pivot, self.dtype, self.rates, self.network = p.dt, made.pivot, dtype, made.rates, network
        self.explicit, self.source = Product(made.explicit, dtype), Product(made.source, dtype)
        self.solve = Solve(made.system, made.bounds, dtype)
        for name, value in (("sums", made.sums), ("load", made.load), ("wall", p.fixed_values(0.0)),
                            ("fixed", None if p.fixed is None else p.fixed.T), ("owner", p.owner if p.periodic else None),
                            ("dof", p.dof if p.periodic else None)):
            self.keep(name, value)
        self.full = None if p.fixed is None else Product(made.full, dtype)
        self.gather = nn.ModuleList([Product(A, dtype) for A in made.gather])

    def keep(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, None if value is None else value.detach().clone(memory_format=torch.contiguous_format))

    owner: Tensor | None
    dof: Tensor | None
    load: Tensor | None
    fixed: Tensor | None
    wall: Tensor | None
    sums: Tensor | None

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
        return self.outward(new).to(u.dtype)

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


class Middles(nn.Module):
    """From values at the nodes [B, N, F] those at the middles of edges [B, E, F]; `curve`: their distance from the mean of ends."""

    first: Tensor
    second: Tensor

    def __init__(self, g: Gathering, lift: Lift, dtype: torch.dtype) -> None:
        super().__init__()
        self.fit = Padded(lift.index.T, lift.weight.T[..., None].to(dtype))
        self.register_buffer("first", g.first.long())
        self.register_buffer("second", g.second.long())

    def forward(self, u: Tensor) -> Tensor:
        level = u[:, :1]
        return level + self.fit(u - level)

    def curve(self, u: Tensor, middles: Tensor) -> Tensor:
        return middles - 0.5 * (u.index_select(1, self.first) + u.index_select(1, self.second))


class EdgeStart(nn.Module):
    """A start at the nodes [B, N, F] as a state: the same, then the memory of the edges [B, N + E, F]."""

    def __init__(self, g: Gathering, lift: Lift, dtype: torch.dtype) -> None:
        super().__init__()
        self.middles = Middles(g, lift, dtype)

    def forward(self, u: Tensor) -> Tensor:
        return torch.cat([u, self.middles.curve(u, self.middles(u))], 1)


class EdgeStep(Step):
    """A step of a state [B, N + E, F] with a source at the nodes [B, N, F], which is fitted at the middles."""

    keep_memory: Tensor
    gain: Tensor

    def __init__(self, solver: GreenSolver, g: Gathering, lift: Lift) -> None:
        super().__init__(solver, near=g.near)
        dtype = solver.problem.dtype
        self.n, self.middles = g.n, Middles(g, lift, dtype)
        crow, _, col, _ = g.places
        self.of_middles, self.of_memory = (Padded.rows(crow, col, values.to(dtype)) for values in (g.middle, g.memory))
        self.register_buffer("keep_memory", g.keep[:, None].to(dtype))
        self.register_buffer("gain", g.gain[:, None].to(dtype))

    def forward(self, u: Tensor, source: Tensor) -> Tensor:
        nodes, memory, f = u[:, :self.n], u[:, self.n:].to(self.dtype), source.to(self.dtype)
        middles = self.middles(f)
        new = self.stepped(nodes, source, self.of_middles(middles) + self.of_memory(memory))
        kept = self.keep_memory * memory + self.gain * self.middles.curve(f, middles)
        return torch.cat([new, kept.to(u.dtype)], 1)
