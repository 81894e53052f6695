"""Universal steps on arrays: the same as `Universal.step` without gradients, one product and one solve each, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from dgnet.green import GreenSolver, Linear
from dgnet.models.universal.gathering import Gathering
from dgnet.problems.lift import Lift

Tensor = torch.Tensor


class GatheredSteps(Linear):
    """Steps whose right-hand side and memory of the edges are made by a `Gathering`; all fields share their matrices."""

    def __init__(self, solver: GreenSolver, linear: Linear, gathering: Gathering) -> None:
        super().__init__(solver.problem, linear.ops, linear.op, linear.stiffness)
        self.gathering = gathering

    def march(self, u: Tensor, f: Tensor | None, steps: int, t: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """From nodes and memory [B, N + E, F], and sources at the nodes, or at nodes and middles [B, steps, N + E, F]."""
        (batch, points, fields), n = u.shape, self.n
        lift = Lift.of(self.problem.mesh) if f is not None and f.shape[2] == n else None
        whole = self._column(u)
        nodes, memory = whole[:n], whole[n:]
        table = self.gathering.table(f is not None)
        x = np.empty((points if f is None else points + points, *whole.shape[1:]), whole.dtype)
        for k in range(steps):
            c = self.shift(nodes, x[:n])
            if f is not None:
                row = f[:, k].to(self.dtype)
                x[n:n + points] = self._column(row if lift is None else lift(row))
            x[-len(memory):] = memory
            found = (table @ torch.from_numpy(x)).numpy()
            d = self.increment_of(found[:n], c, self.force(t + k * self.dt, batch, fields))
            nodes, memory = nodes + d, found[n:]
            yield nodes, d

    def _column(self, u: Tensor) -> np.ndarray:
        """[B, m, F] as [m] or [m, B F]."""
        x = u.detach().to(self.dtype).transpose(0, 1).flatten(1).numpy()
        return x[:, 0] if x.shape[1] == 1 else x
