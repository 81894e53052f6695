"""Universal steps on arrays: the same as `Universal.step` without gradients, in place of one wide product, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.sparse import csr_array, hstack

from dgnet.models.universal.gathering import Gathering
from dgnet.problems.lift import Lift
from dgnet.stepping import Linear
from dgnet.stepping.host import Rows

Tensor = torch.Tensor

_LIFTED = 8  # steps whose sources get their values at the middles at once
_CACHED = 8_000_000  # bytes of matrices above which what drives several steps is gathered at once, block by block from the cache
_TOGETHER = 4  # steps
_BLOCK = 4000  # rows


class GatheredSteps(Linear):
    """Steps whose right-hand side and memory of the edges are those of a `Gathering`; all fields share their matrices.

        right = E (u - c) + N f + W w            w+ = keep w + G f

    f at nodes and middles, w the memory. Neither depends on u: several steps may be driven at once.
    """

    def __init__(self, linear: Linear, gathering: Gathering) -> None:
        super().__init__(linear.problem, linear.ops, linear.op, linear.stiffness)
        g, n, E = gathering, self.n, len(gathering.keep)
        place = g.places.col.numpy(), g.places.crow.numpy()

        def around(values: Tensor) -> csr_array:
            return csr_array((values.detach().numpy(), *place), shape=(n, E))

        self.keep = g.keep.detach().numpy()
        self.remembering = self.keep  # the memory after the step that `march` has made last
        self.remembered = Rows(around(g.memory))
        self.near = Rows(hstack([g.near.to_scipy(), around(g.middle)], format="csr"))
        gain = g.gain.detach()
        columns = torch.stack([g.first, g.second, torch.arange(n, n + E)], 1).ravel().int().numpy()
        self.gained = Rows(csr_array((torch.stack([-0.5 * gain, -0.5 * gain, gain], 1).ravel().numpy(), columns,
                                         np.arange(0, 3 * E + 1, 3, dtype=np.int32)), shape=(E, n + E)))

    def march(self, u: Tensor, f: Tensor | None, steps: int, t0: float, first: int = 0,
              into: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """From nodes and memory [B, N + E, F], and sources at the nodes, or at nodes and middles [B, steps, N + E, F]."""
        (batch, _, fields), n = u.shape, self.n
        large = sum(x.nbytes for x in (self.near, self.remembered, self.gained)) > _CACHED
        together, block = (_TOGETHER, _BLOCK) if large else (1, len(self.keep))
        x, source = self.array(u[:, :n]), None if f is None else self.history(f)
        w = [self.array(u[:, n:]).copy()]
        w += [np.empty_like(w[0]) for _ in range(together)]
        for k in range(0, steps, together):
            group = range(k, min(k + together, steps))
            right = [self.begin(x, self.force(t0 + (first + j) * self.dt, batch, fields)) for j in group]
            self.drive(None if source is None else [source(j) for j in group], w, right, block)
            for j, one, memory in zip(group, right, w[1:]):
                d = self.increment_of(x, one)
                x, self.remembering = np.add(x, d, out=None if into is None else into[j]), memory
                yield x, d
            w[0], w[len(group)] = w[len(group)], w[0]

    def working(self, x: np.ndarray, batch: int, fields: int) -> Tensor:
        rows = (torch.from_numpy(values).view(-1, batch, fields).transpose(0, 1) for values in (x, self.remembering))
        return torch.cat(list(rows), 1)

    def drive(self, f: list[np.ndarray] | None, w: list[np.ndarray], right: list[np.ndarray], block: int) -> None:
        """Adds N f + W w to the right-hand sides of steps that follow each other, and makes their memories w[1:] from w[0]."""
        keep = self.keep if w[0].ndim == 1 else self.keep[:, None]
        for first in range(0, len(keep), block):
            rows = slice(first, first + block)
            for j in range(len(right)):
                np.multiply(keep[rows], w[j][rows], out=w[j + 1][rows])
                if f is not None:
                    self.gained.add_product(f[j], w[j + 1], rows)
        for first in range(0, self.n, block):
            rows = slice(first, first + block)
            for j, one in enumerate(right):
                self.remembered.add_product(w[j], one, rows)
                if f is not None:
                    self.near.add_product(f[j], one, rows)

    def history(self, x: Tensor) -> Callable[[int], np.ndarray]:
        if x.shape[2] != self.n:
            return super().history(x)
        lift, steps = Lift.of(self.problem.mesh), x.shape[1]
        held: dict[int, np.ndarray] = {}

        def lifted(k: int) -> np.ndarray:
            if k not in held:
                held.clear()
                part = super(GatheredSteps, self).history(lift(x[:, k:k + _LIFTED].to(self.dtype)))
                held.update({k + j: part(j) for j in range(min(_LIFTED, steps - k))})
            return held[k]

        return lifted
