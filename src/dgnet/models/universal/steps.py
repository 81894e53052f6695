"""Universal steps on arrays: the same as `Universal.step` without gradients, in place of one wide product, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.sparse import csr_array, hstack

from dgnet.green import GreenSolver, Linear
from dgnet.green.conjugate import Rows
from dgnet.models.universal.gathering import Gathering
from dgnet.problems.lift import Lift

Tensor = torch.Tensor

_LIFTED = 8  # steps whose sources get their values at the middles at once


class GatheredSteps(Linear):
    """Steps whose right-hand side and memory of the edges are those of a `Gathering`; all fields share their matrices.

        right = E (u - c) + N f + W w            w+ = keep w + G f

    f at nodes and middles, w the memory. Each product adds to its result in place; rows of the wide matrices are read once.
    """

    def __init__(self, solver: GreenSolver, linear: Linear, gathering: Gathering) -> None:
        super().__init__(solver.problem, linear.ops, linear.op, linear.stiffness)
        g, n, E = gathering, self.n, len(gathering.keep)
        place = g.places.col.numpy(), g.places.crow.numpy()

        def around(values: Tensor) -> csr_array:
            return csr_array((values.detach().numpy(), *place), shape=(n, E))

        self.keep = g.keep.detach().numpy()
        self.remembered = Rows.of(around(g.memory))
        self.near = Rows.of(hstack([g.near.to_scipy(), around(g.middle)], format="csr"))
        gain = g.gain.detach()
        columns = torch.stack([g.first, g.second, torch.arange(n, n + E)], 1).ravel().int().numpy()
        self.gained = Rows.of(csr_array((torch.stack([-0.5 * gain, -0.5 * gain, gain], 1).ravel().numpy(), columns,
                                         np.arange(0, 3 * E + 1, 3, dtype=np.int32)), shape=(E, n + E)))

    def march(self, u: Tensor, f: Tensor | None, steps: int, t: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """From nodes and memory [B, N + E, F], and sources at the nodes, or at nodes and middles [B, steps, N + E, F]."""
        (batch, _, fields), n = u.shape, self.n
        x, memory = self.array(u[:, :n]), self.array(u[:, n:]).copy()
        keep = self.keep if memory.ndim == 1 else self.keep[:, None]
        source = None if f is None else self.history(f)
        for k in range(steps):
            right = self.begin(x, self.force(t + k * self.dt, batch, fields))
            self.remembered.add_product(memory, right)
            memory *= keep
            if source is not None:
                driving = source(k)
                self.near.add_product(driving, right)
                self.gained.add_product(driving, memory)
            d = self.increment_of(x, right)
            x = x + d
            yield x, d

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
