"""A flow that changes in time: from stored rows, and as a recorded step reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor


def given_velocity(rows: Tensor, dt: float, t0: float = 0.0) -> Callable[[float], Tensor]:
    """v(t) [B, N, d] from rows [B, T+1, N, d] at times t0, t0 + dt, ..., linear in between and constant outside."""
    last = rows.shape[1] - 1

    def velocity(t: float) -> Tensor:
        place = min(max((t - t0) / dt, 0.0), float(last))
        k = min(int(place), last - 1)
        return torch.lerp(rows[:, k], rows[:, k + 1], place - k)

    return velocity


class HeldFlow:
    """v(t) until something is held; from then on what is held: the start of a step for t = 0, its middle for any other t.

    A CUDA graph repeats the same operations on the same memory. So a step is recorded from t = 0 to dt, and before each
    repetition `show(t)` copies the flow at t (networks look at it) and t + dt/2 (the solver does) to where the recorded step
    looks for them.
    """

    def __init__(self, flow: Callable[[float], Tensor], dt: float) -> None:
        self.flow, self.dt = flow, dt
        self._held: tuple[Tensor, Tensor] | None = None

    def __call__(self, t: float) -> Tensor:
        if self._held is None:
            return self.flow(t)
        return self._held[0] if t == 0.0 else self._held[1]

    def show(self, t: float) -> None:
        """Hold the flow of the step that begins at t."""
        now = self.flow(t), self.flow(t + 0.5 * self.dt)
        if self._held is None or self._held[0].shape != now[0].shape:
            self._held = now[0].clone(), now[1].clone()
        else:
            for held, value in zip(self._held, now):
                held.copy_(value)

    def spread(self, times: Sequence[float]) -> None:
        """Hold the flows of many times at once, side by side along the batch: for what has to be true at all of them."""
        rows = [self.flow(t) for t in times]
        every = torch.cat([r if r.dim() == 3 else r[None] for r in rows])
        self._held = every, every

    def release(self) -> None:
        self._held = None
