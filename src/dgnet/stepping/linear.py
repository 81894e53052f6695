"""Many equal steps as one operation: a linear equation whose operators do not change, on the CPU.

    u+ = u + A^-1 [ E (u - c) + c s + dt (P f + g) ],      E = -dt K,  s = -dt K 1           (see `solver`)

Such steps are made in NumPy: two products that add to the right-hand side in place, and one solve; no checks, no graph, no copies.
`Linear.states` is a whole rollout that can be differentiated. Its way back takes one solve with the transposed matrix and one
product for each step. With y_k = A^-T dl/du_k+1 on the free rows,

    dl/du_k += dl/du_k+1 + E^T y_k            dl/df_k = dt P^T y_k            dl/dg = dt sum_k y_k
    dl/dK = -dt sum_k y_k (u_k - c_k + theta (u_k+1 - u_k))^T                 dl/dM = -sum_k y_k (u_k+1 - u_k)^T

The sums over the steps are products of tall arrays at the entries of the pattern, for many steps at once. Of the way there the
states are kept and nothing else; where the mass is learned, their increments, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dgnet.operators import EdgeMatrix
from dgnet.operators.sparse import outer_on_pattern
from dgnet.stepping.fold import fold, unfold
from dgnet.stepping.host import OnHost, Rows, unwritten

if TYPE_CHECKING:
    from dgnet.problems import Problem
    from dgnet.stepping.operator import StepOperator
    from dgnet.stepping.solver import Operators

Tensor = torch.Tensor
Array = np.ndarray

_ENTRIES = 2_000_000  # of the states whose products on the pattern are taken at once: longer rows are quicker, but need memory


class Linear:
    """Steps of one `StepOperator` with the source matrix and the loads of `ops`, all on the CPU.

    Arrays are [G n] for one column or [G n, R]: the layout of `fold`, flattened, in the problem's precision. Steps start from
    states that have the Dirichlet values [n, F] already (`rests`), and keep them.
    """

    def __init__(self, problem: Problem, ops: Operators, op: StepOperator, stiffness: EdgeMatrix) -> None:
        self.problem, self.op, self.ops, self.stiffness, self.load_changes = problem, op, ops, stiffness, problem.data_changes
        self.shape = problem.n_nodes, problem.n_fields  # of a state
        self.pattern, self.dt = op.A.pattern, op.dt
        self.groups = b, f = op.groups
        self.n = self.pattern.n
        self.size = b * f * self.n
        self.dtype: torch.dtype = op.A.values.dtype
        fixed = None if op.elimination is None else op.elimination.fixed
        self.fixed = None if fixed is None else np.flatnonzero(fixed.expand(b, f, self.n).numpy())
        self._sums = ops.sums(0.0, op.dt)
        self.sums = None if op.sums is None else op.sums.detach().mT.expand(b, f, self.n).reshape(-1).numpy()
        self.host = op.prepared if isinstance(op.prepared, OnHost) else None
        self.moved = self._rows_of(op.explicit)
        self._version = stiffness.version
        self._still: dict[tuple[int, int], Array | None] = {}
        self._walls: dict[tuple[int, int], Array] = {}

    def unchanged(self, stiffness: EdgeMatrix) -> bool:
        return stiffness is self.stiffness and stiffness.version == self._version

    @property
    def inputs(self) -> tuple[Tensor | None, ...]:
        """Tensors of the steps besides state and source: mass, stiffness, part taken ahead, source matrix, row sums."""
        ops = self.ops
        advanced = None if ops.advanced_part is None else ops.advanced_part.values
        return ops.mass.values, self.stiffness.values, advanced, ops.source.values, self._sums

    def follows(self, *inputs: Tensor | None) -> bool:
        """Gradients are asked for, of the operators or of these inputs."""
        for x in (*inputs, *self._made_of, self.ops.load(0.0) if self.load_changes else None):
            if x is not None and x.requires_grad:
                return True
        return False

    @cached_property
    def _made_of(self) -> list[Tensor]:
        """`inputs`, and the load where it does not change."""
        load = None if self.load_changes else self.ops.load(0.0)
        return [x for x in (*self.inputs, load) if x is not None]

    def _rows_of(self, A: EdgeMatrix, factor: float = 1.0, transposed: bool = False) -> Rows:
        """A matrix with values that broadcast to [b, f, nnz], as one block-diagonal one."""
        values = A.values.detach().expand(*self.groups, self.pattern.nnz)
        matrix = EdgeMatrix(self.pattern, values.reshape(-1, self.pattern.nnz)).to_scipy()
        return Rows(matrix.T.tocsr() if transposed else matrix, factor)

    @cached_property
    def sources(self) -> Rows:
        """dt P."""
        return self._rows_of(self.ops.source, self.dt)

    @cached_property
    def moved_back(self) -> Rows:
        """E^T."""
        return self.moved if self.op.symmetric else self._rows_of(self.op.explicit, transposed=True)

    @cached_property
    def sources_back(self) -> Rows:
        """dt P^T."""
        return self._rows_of(self.ops.source, self.dt, transposed=True)

    # ------------------------------------------------------------------ layout

    def array(self, u: Tensor) -> Array:
        """[B, n, F] as an array of columns."""
        if u.requires_grad:
            u = u.detach()
        if u.dtype != self.dtype:
            u = u.to(self.dtype)
        if u.shape[0] * u.shape[2] == 1:
            return u.numpy()[0, :, 0]
        x = fold(u, *self.groups).contiguous().numpy()
        return x.reshape(-1) if x.shape[2] == 1 else x.reshape(-1, x.shape[2])

    def tensor(self, x: Array, batch: int, fields: int) -> Tensor:
        """The inverse of `array`; shares memory with it where it can."""
        if x.size == self.n:
            return torch.from_numpy(x[None, :, None])
        b, f = self.groups
        return unfold(torch.from_numpy(x).view(b * f, self.n, -1), b, f, batch, fields)

    def columns(self, x: Tensor) -> Tensor:
        """States of many steps [B, T, n, F] -> [G, n, R T]: what shares a matrix side by side, the steps of a column together."""
        b, f = self.groups
        order = ((2, 0, 3, 1) if f == 1 else (3, 2, 0, 1)) if b == 1 else (0, 2, 3, 1) if f == 1 else (0, 3, 2, 1)
        return x.permute(*order).reshape(b * f, self.n, -1)

    # ------------------------------------------------------------------ steps

    def force(self, t: float, batch: int, fields: int) -> Array | None:
        """dt g of the step that begins at t."""
        key = batch, fields
        if not self.load_changes and key in self._still:
            return self._still[key]
        load = self.ops.load(t, self.dt)
        found = None if load is None else self.array((load.detach() * self.dt).expand(batch, self.n, fields))
        if not self.load_changes:
            self._still[key] = found
        return found

    def rests(self, u: Array, batch: int, fields: int) -> bool:
        """A state has the Dirichlet values already: its steps change nothing there."""
        if self.fixed is None:
            return True
        key, values = (batch, fields), self.problem.still_values
        if key not in self._walls and values is not None:
            self._walls[key] = self.array(values.expand(batch, self.n, fields))[self.fixed]
        return bool((u[self.fixed] == self._walls[key]).all())

    def step(self, u: Tensor, f: Tensor | None, t: float) -> Tensor | None:
        """u [B, N, F] at t -> u at t + dt, with a source of the same shape.

        None where this is not the way: other shapes, gradients, Dirichlet values that have to be taken over.
        """
        shape, (n, fields) = u.shape, self.shape
        if len(shape) != 3 or not shape[0] or shape[1] != n or shape[2] != fields or (f is not None and f.shape != shape):
            return None
        if torch.is_grad_enabled() and self.follows(u, f):
            return None
        dtype, p = u.dtype, self.problem
        if p.periodic:
            u, f = p.restrict(u), None if f is None else p.restrict(f)
        x = self.array(u)
        if self.fixed is not None and not self.rests(x, shape[0], shape[2]):
            return None
        d = self.increment(x, None if f is None else self.array(f), self.force(t, shape[0], shape[2]))
        new = self.tensor(x + d, shape[0], shape[2])
        if p.periodic:
            new = p.expand(new)
        return new if dtype == self.dtype else new.to(dtype)

    def increment(self, u: Array, f: Array | None, force: Array | None) -> Array:
        """u+ - u."""
        right = self.begin(u, force)
        if f is not None:
            self.sources.add_product(f, right)
        return self.increment_of(u, right)

    def begin(self, u: Array, force: Array | None) -> Array:
        """A right-hand side to add to: the boundary loads, or zero."""
        return np.zeros(u.shape, u.dtype) if force is None else force.copy()

    def increment_of(self, u: Array, right: Array) -> Array:
        """u+ - u; `right` has what drives the step, and is overwritten."""
        away = np.empty(u.shape, u.dtype)
        c = self.shift(u, away)
        self.moved.add_product(away, right)
        if self.sums is not None:
            right += self.sums * c if u.ndim == 1 and self.size == self.n else self._weighted(c)
        if self.fixed is None:
            return self.solve(right)
        right[self.fixed] = 0.0
        d = self.solve(right)
        d[self.fixed] = 0.0  # exactly: an iteration that starts from other solutions leaves a rest, which would stay for good
        return d

    def shift(self, u: Array, out: Array) -> Any:
        """u - c into `out`; returns c, the value at the pivot: a number, [R] or [G, 1, R]."""
        pivot = self.op.pivot
        if self.size == self.n:
            c = u[pivot]
            np.subtract(u, c, out=out)
            return c
        blocks = u.reshape(-1, self.n, 1 if u.ndim == 1 else u.shape[1])
        c = blocks[:, pivot:pivot + 1]
        np.subtract(blocks, c, out=out.reshape(blocks.shape))
        return c

    def _weighted(self, c: Any) -> Array:
        """c s."""
        assert self.sums is not None
        whole = self.sums.reshape(-1, self.n, 1) * c
        return whole.reshape(self.size, -1) if whole.shape[2] > 1 else whole.reshape(-1)

    def solve(self, right: Array, transposed: bool = False) -> Array:
        if self.host is not None:
            return self.host.array(right, transposed)
        b, f = self.groups
        return self.op.inverse(torch.from_numpy(right).view(b * f, self.n, -1), transposed).numpy().reshape(right.shape)

    def march(self, u: Tensor, f: Tensor | None, steps: int, t0: float, first: int = 0,
              into: Array | None = None) -> Iterator[tuple[Array, Array]]:
        """The states after each step and their increments, from u [B, n, F] after `first` steps from t0, and sources
        [B, steps, n, F].

        `into` [steps, n]: where to put the states; they are views of it then.
        """
        (batch, _, fields), x = u.shape, self.array(u)
        steady = None
        if f is not None and f.stride(1) == 0:  # one source for all steps, expanded
            steady = self.begin(x, None)
            self.sources.add_product(self.array(f[:, 0]), steady)
            f = None
        source = None if f is None else self.history(f)
        for k in range(steps):
            if k == 0 or self.load_changes:
                load = self.force(t0 + (first + k) * self.dt, batch, fields)
                force = load if steady is None else steady if load is None else steady + load
            d = self.increment(x, None if source is None else source(k), force)
            x = np.add(x, d, out=None if into is None else into[k])
            yield x, d

    def working(self, x: Array, batch: int, fields: int) -> Tensor:
        """The tensor that steps work on [B, P, F], after the step of `march` that gave x."""
        return self.tensor(x, batch, fields)

    def rows(self, x: Tensor) -> Array | None:
        """Many steps [B, T, n, F] as [T, n], where they are one column of the problem's precision."""
        return x.detach().numpy()[0, :, :, 0] if x.shape[0] * x.shape[3] == 1 and x.dtype == self.dtype else None

    def history(self, x: Tensor) -> Callable[[int], Array]:
        """The arrays of many steps [B, T, n, F], by the number of the step."""
        rows = self.rows(x)
        return rows.__getitem__ if rows is not None else lambda k: self.array(x[:, k])

    # ------------------------------------------------------------------ with gradients

    def states(self, u: Tensor, f: Tensor | None, steps: int, t0: float, first: int = 0) -> Tensor:
        """u [B, n, F] and the states after each step [B, steps + 1, n, F], differentiable; as `march` has them."""
        loads = [self.ops.load(t0 + (first + k) * self.dt, self.dt) for k in (range(steps) if self.load_changes else (0,))]
        load = None if loads[0] is None else torch.stack([g for g in loads if g is not None])
        return _States.apply(self, steps, (t0, first), *self.inputs, load, u, f)


class _States(torch.autograd.Function):
    """The rollout of `Linear.states` with the adjoint of the module's docstring."""

    @staticmethod
    def forward(ctx: Any, linear: Linear, steps: int, begun: tuple[float, int],  # type: ignore[override]
                *inputs: Tensor | None) -> Tensor:
        u, f = inputs[-2:]
        assert u is not None
        batch, n, fields = u.shape
        out = unwritten(batch, steps + 1, n, fields, like=u)
        out[:, 0] = u
        learned = ctx.needs_input_grad[3] or ctx.needs_input_grad[5]  # mass, advanced part
        changes = unwritten(batch, steps, n, fields, like=u) if learned else None
        rows = linear.rows(out)
        for k, (x, d) in enumerate(linear.march(u, f, steps, *begun, None if rows is None else rows[1:])):
            if rows is None:
                out[:, k + 1] = linear.tensor(x, batch, fields)
            if changes is not None:
                changes[:, k] = linear.tensor(d, batch, fields)
        ctx.linear = linear
        ctx.shapes = [None if x is None else x.shape for x in inputs]
        ctx.save_for_backward(out, changes, f)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        out, changes, f = ctx.saved_tensors
        back = _Back(ctx.linear, out, changes, f, ctx.shapes, ctx.needs_input_grad[3:])
        return None, None, None, *back.run(g)


class _Back:
    """The way back through a rollout; gradients in the order of the arguments of `_States`."""

    def __init__(self, linear: Linear, out: Tensor, changes: Tensor | None, f: Tensor | None, shapes: list[Any],
                 needs: tuple[bool, ...]) -> None:
        self.linear, self.out, self.changes, self.f, self.shapes = linear, out, changes, f, shapes
        self.mass, self.stiffness, self.advanced_part, self.source, self.sums, self.load, self.start, self.driven = needs
        self.matrices = self.mass or self.stiffness or self.advanced_part or (self.source and f is not None)
        self.totals: dict[str, Tensor] = {}
        self.loads = torch.empty(shapes[5], dtype=out.dtype) if self.load and linear.load_changes else None

    def run(self, g: Tensor) -> list[Tensor | None]:
        linear, out = self.linear, self.out
        batch, steps, fields = out.shape[0], out.shape[1] - 1, out.shape[3]
        forcing = unwritten(*self.f.shape, like=self.f) if self.driven and self.f is not None else None
        rows = None if forcing is None else linear.rows(forcing)
        together = max(8, min(64, _ENTRIES // (batch * linear.n * fields)))
        incoming, held = linear.history(g), []
        adjoint = incoming(steps)
        for k in range(steps - 1, -1, -1):
            if linear.fixed is not None:
                adjoint = adjoint.copy()
                adjoint[linear.fixed] = 0.0
            y = linear.solve(adjoint, transposed=True)
            adjoint = incoming(k) + adjoint
            linear.moved_back.add_product(y, adjoint)
            if forcing is not None:
                driving = np.empty(y.shape, y.dtype) if rows is None else rows[k]
                driving[:] = 0.0
                linear.sources_back.add_product(y, driving)
                if rows is None:
                    forcing[:, k] = linear.tensor(driving, batch, fields)
            if self.sums or self.load:
                self.gather(k, linear.tensor(y, batch, fields))
            if self.matrices:
                held.append(y)
                if len(held) == together or k == 0:
                    self.gather_matrices(k, held)
                    held = []
        start = linear.tensor(adjoint, batch, fields) if self.start else None
        order = ("mass", "stiffness", "advanced_part", "source", "sums", "load")
        found = [self.totals[name].sum_to_size(shape) if name in self.totals else None for name, shape in zip(order, self.shapes)]
        return [*found[:5], found[5] if self.loads is None else self.loads, start, forcing]

    def gather(self, k: int, y: Tensor) -> None:
        """Adds the share of the adjoint of step k [B, n, F] to the gradients of loads and row sums."""
        if self.loads is not None:
            self.loads[k] = y.sum(0).mul_(self.linear.dt).sum_to_size(self.loads.shape[1:])
        elif self.load:
            self._add("load", y.sum(0, keepdim=True), self.linear.dt)
        if self.sums:
            pivot = self.linear.op.pivot
            self._add("sums", (y * self.out[:, k, pivot:pivot + 1]).mT, -self.linear.dt)

    def gather_matrices(self, k: int, held: list[Array]) -> None:
        """Adds the shares of the adjoints of the steps from k on, the last one first, to the gradients of the matrices."""
        linear, dt, pivot = self.linear, self.linear.dt, self.linear.op.pivot
        last = k + len(held)
        b, f = linear.groups
        left = torch.from_numpy(np.stack(held[::-1], -1)).view(b * f, linear.n, -1)
        held.clear()

        def outer(right: Tensor) -> Tensor:
            return outer_on_pattern(linear.pattern, left, linear.columns(right)).view(b, f, -1)

        if self.stiffness:
            u = self.out[:, k:last]
            between = torch.lerp(u, self.out[:, k + 1:last + 1], linear.op.theta).sub_(u[:, :, pivot:pivot + 1])
            self._add("stiffness", outer(between), -dt)
        if self.changes is not None:
            change = outer(self.changes[:, k:last])
            if self.mass:
                self._add("mass", change, -1.0)
            if self.advanced_part:
                self._add("advanced_part", change, -dt)
        if self.source and self.f is not None:
            self._add("source", outer(self.f[:, k:last]), dt)

    def _add(self, name: str, value: Tensor, factor: float) -> None:
        if name in self.totals:
            self.totals[name].add_(value, alpha=factor)
        else:
            self.totals[name] = value * factor
