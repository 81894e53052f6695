"""Recorded steps: a step, or a step with its adjoint, as one CUDA graph that is replayed.

`rollout` replays the step of a prediction (`captured`), training that of a long window and its adjoint (`Recorded`). Without CUDA
the same functions are called again each time, which is how they are tested. What a stepper must offer for it is the same step every
time (`Stepper.repeats`).
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from dgnet.models.base import Stepper
from dgnet.problems import HeldFlow

Tensor = torch.Tensor


def captured(stepper: Stepper, u: Tensor, f: Tensor | None, times: Sequence[float], k: int,
             flow: HeldFlow | None) -> CapturedStep | None:
    """The step at these times as one recording; None where it has to be launched operation by operation."""
    if flow is None:
        return CapturedStep(stepper, u, f, 0.0, k, None) if stepper.repeats() else None
    if not stepper.repeats(times):
        return None
    try:
        return CapturedStep(stepper, u, f, times[0], k, flow)
    except RuntimeError as error:
        flow.release()
        warnings.warn(f"the step with a given flow could not be captured and is launched piece by piece: {error}",
                      RuntimeWarning, stacklevel=5)
        return None


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection in here: an old recording that is thrown away during a capture would spoil it."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class CapturedStep:
    """One step as a CUDA graph with fixed buffers; without CUDA the same step on the same buffers, called again each time."""

    def __init__(self, stepper: Stepper, u: Tensor, f: Tensor | None, t: float, k: int, flow: HeldFlow | None) -> None:
        self.u, self.f, self.flow = u.clone(), None if f is None else f.clone(), flow
        self.graph: torch.cuda.CUDAGraph | None = None
        if flow is not None:
            flow.show(t)

        def step() -> Tensor:
            return stepper.step(self.u, self.f, 0.0, k)

        self.step = step
        if not u.is_cuda:
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
            if flow is not None:  # an operation that waits for the host would spoil the capture: better to know before
                torch.cuda.set_sync_debug_mode("error")
                try:
                    step()
                finally:
                    torch.cuda.set_sync_debug_mode("default")
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph), undisturbed():
            self.u.copy_(step())

    def __call__(self, u: Tensor | None, f: Tensor | None, t: float) -> Tensor:
        if u is not None:
            self.u.copy_(u)
        if self.f is not None and f is not None:
            self.f.copy_(f)
        if self.flow is not None:
            self.flow.show(t)
        if self.graph is None:
            self.u.copy_(self.step())
        else:
            self.graph.replay()
        return self.u


class Recorded:
    """A function of tensors (None allowed) as a CUDA graph with buffers of its own; elsewhere, or for few `calls`, just itself."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], calls: int, *examples: Tensor | None) -> None:
        self.function = function
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: list[Tensor | None] = []
        self.outputs: tuple[Tensor, ...] = ()
        if calls < 3 or examples[0] is None or not examples[0].is_cuda:
            return
        self.inputs = [None if x is None else x.detach().clone() for x in examples]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        # not `torch.cuda.graph`: it collects garbage and empties the allocator, which costs more than a window
        with torch.cuda.stream(side):
            function(*self.inputs)
            self.graph = torch.cuda.CUDAGraph()
            with undisturbed():
                self.graph.capture_begin()
                try:
                    self.outputs = function(*self.inputs)
                finally:
                    self.graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)

    def __call__(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        """The outputs; on CUDA they are overwritten by the next call."""
        if self.graph is None:
            return self.function(*inputs)
        for held, x in zip(self.inputs, inputs):
            if held is not None and x is not None:
                held.copy_(x)
        self.graph.replay()
        return self.outputs

    def close(self) -> None:
        """Give back the memory of the recording now: the collector of garbage cannot know how much hangs on it."""
        if self.graph is not None:
            torch.cuda.current_stream().synchronize()
            self.graph.reset()
        self.graph, self.inputs, self.outputs = None, [], ()
