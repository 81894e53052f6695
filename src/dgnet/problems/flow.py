"""A flow in time as a captured step reads it: from buffers that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Tensor = torch.Tensor


class HeldFlow:
    """v(t) until something is held; from then on what is held, whatever t is: the start of a step at 0, its end at dt.

    A CUDA graph repeats the same operations on the same memory. So a step is recorded from t = 0 to dt, and before each
    repetition `show(t)` copies the flow at t and t + dt to where the recorded step looks for them.
    """

    def __init__(self, flow: Callable[[float], Tensor], dt: float) -> None:
        self.flow, self.dt = flow, dt
        self._held: tuple[Tensor, Tensor] | None = None
        self._both: Tensor | None = None

    def __call__(self, t: float) -> Tensor:
        if self._held is None:
            return self.flow(t)
        start, end = self._held
        if start is end or t == 0.0:
            return start
        return end if t == self.dt else torch.lerp(start, end, t / self.dt)

    def show(self, t: float) -> None:
        """Hold the flow of the step that begins at t."""
        start, end = self.flow(t), self.flow(t + self.dt)
        if self._both is None or self._held is None or self._held[0].shape != start.shape:
            self._both = torch.cat([start, end] if start.dim() == 3 else [start[None], end[None]])
            first, second = self._both.chunk(2)
            self._held = (first, second) if start.dim() == 3 else (first[0], second[0])
        else:
            self._held[0].copy_(start)
            self._held[1].copy_(end)

    def ends(self, operator: Callable[[float], Tensor]) -> tuple[Tensor, Tensor] | None:
        """A function of the flow, [b, ...] at t, at the start and the end of the step that is shown: called once for both."""
        if self._both is None or self._held is None:
            return None
        held, self._held = self._held, (self._both, self._both)
        try:
            first, second = operator(0.0).chunk(2)
        finally:
            self._held = held
        return first, second

    def spread(self, times: Sequence[float]) -> None:
        """Hold the flows of many times at once, side by side along the batch: for what has to be true at all of them."""
        rows = [self.flow(t) for t in times]
        every = torch.cat([r if r.dim() == 3 else r[None] for r in rows])
        self._held, self._both = (every, every), None

    def release(self) -> None:
        self._held = self._both = None
