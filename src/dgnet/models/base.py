"""What every model is: prepare a problem once, then step. `rollout` is the time loop of all predictions.

DGNet, the classical solver and every baseline follow the same protocol, so that they run through the same tables and
timings. Axes are [batch, time, node, field] everywhere.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any, Literal, Protocol

import torch

from dgnet.errors import InputError, SolveError
from dgnet.problems import Discretisation, HeldFlow

Tensor = torch.Tensor


_SMALL = 10_000  # nodes below which one thread is enough
_ABSURD = 1e6  # growth beyond everything that drives a linear equation: no solution, whatever the units
_WATCHED = 100  # steps between two looks at how large the state is


@contextmanager
def few_threads(nodes: int, device: str = "cpu") -> Iterator[None]:
    """One thread for small meshes: on busy cores, threads that wait for each other make a step of these 10 to 30 times slower."""
    before = torch.get_num_threads()
    small = nodes < _SMALL and torch.device(device).type == "cpu"
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(before)


class Model(Protocol):
    """`prepare` returns whatever `step` needs for this problem (its state); both are differentiable where that matters.

    A model may have `freeze(state, times) -> bool`: where only a given flow changes, make the step capturable at these times;
    and `first_steps`: how many steps after the start differ from all others. Where `solves` is true its states follow from an
    equation: a rollout that grows without bound is then an error, not a result.
    """

    @property
    def name(self) -> str: ...

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> Any:
        """Make a problem ready. `batch` trajectories and `steps` steps are hints for choosing a backend.

        `careful` checks every solve at once and falls back where one misses, instead of checking all of them at the end.
        """
        ...

    def step(self, state: Any, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        """Step k: u [B, N, F] at time t and the step-averaged source [B, N, F] -> u at t + dt."""
        ...

    def capturable(self, state: Any) -> bool:
        """The step is the same sequence of device operations every time, so a CUDA graph may replay it."""
        ...

    def finish(self, state: Any) -> None:
        """Raise if a deferred check failed."""
        ...


def rollout(model: Model, problem: Discretisation, u0: Tensor, source: Tensor | None = None, steps: int | None = None, *,
            t0: float = 0.0, capture: bool | Literal["always"] = True, sink: Callable[[int, Tensor], None] | None = None,
            progress: Callable[[int], None] | None = None) -> Tensor:
    """States [B, steps+1, N, F] from u0 [B, N, F] and step-averaged sources [B, steps, N, F].

    On CUDA a step is captured once and replayed, also with a given flow; `capture="always"` runs the step that would be captured
    on the CPU, too. With a `sink`, each state is handed over as it is made (step index, state)
    and only the last one is returned, [B, 1, N, F]: memory does not grow with the number of steps.
    """
    problem.check_state(u0, "the initial state")
    if u0.dim() != 3:
        raise InputError(f"the initial state must be [batch, node, field], got {list(u0.shape)}")
    if source is not None:
        problem.check_state(source, "the source")
        if source.dim() != 4 or source.shape[0] not in (1, u0.shape[0]):
            raise InputError(f"the source must be [batch, step, node, field], got {list(source.shape)}")
        source = source.expand(u0.shape[0], -1, -1, -1)
    steps = (source.shape[1] if source is not None else 0) if steps is None else steps
    if steps < 1 or (source is not None and source.shape[1] < steps):
        raise InputError(f"a rollout of {steps} steps needs as many step-averaged sources, got "
                         f"{'none' if source is None else source.shape[1]}")

    try:
        return _march(model, problem, u0, source, steps, t0, capture, sink, progress, careful=False)
    except _Growth:
        raise
    except SolveError:
        if sink is not None:  # what was handed over cannot be taken back
            raise
        return _march(model, problem, u0, source, steps, t0, False, sink, progress, careful=True)


def _march(model: Model, problem: Discretisation, u0: Tensor, source: Tensor | None, steps: int, t0: float,
           capture: bool | Literal["always"],
           sink: Callable[[int, Tensor], None] | None, progress: Callable[[int], None] | None, careful: bool) -> Tensor:
    replay = bool(capture) and (u0.is_cuda or capture == "always") and not torch.is_grad_enabled() and steps > 8
    flow = None
    if replay and problem.only_flow_changes and callable(problem.pde.velocity):
        flow = HeldFlow(problem.pde.velocity, problem.dt)
        problem = problem.given(flow)
    state = model.prepare(problem, u0.shape[0], steps, careful)
    # with gradients the states are stacked at the end: writing each into one tensor makes the way back quadratic in their number
    kept = [u0] if sink is None and torch.is_grad_enabled() else None
    out = None if sink or kept else u0.new_empty((u0.shape[0], steps + 1, *u0.shape[1:]))
    if out is not None:
        out[:, 0] = u0
    u = u0

    def keep(k: int, value: Tensor) -> None:
        if kept is not None:
            kept.append(value)
        elif out is not None:
            out[:, k] = value
        elif sink is not None:
            sink(k, value)
        if progress is not None:
            progress(k)
        if watch is not None and (k == 1 or k == steps or k % _WATCHED == 0):
            watch.look(k, value, (lambda j: out[:, j]) if out is not None else (lambda j: kept[j]) if kept is not None else None)

    watch = _Watch(problem, u0, source) if getattr(model, "solves", False) else None

    def advance(k: int, u: Tensor) -> Tensor:
        try:
            return model.step(state, u, None if source is None else source[:, k], t0 + k * problem.dt, k)
        except SolveError as error:
            raise SolveError(f"step {k + 1} of {steps}: {error}") from error

    # the first steps run eagerly: they compile, fill caches and may differ (`first_steps`)
    warm = min(steps, max(3, getattr(model, "first_steps", 0) + 1)) if replay else steps
    for k in range(warm):
        u = advance(k, u)
        keep(k + 1, u)
    step = None
    if replay and warm < steps:
        times = [t0 + k * problem.dt for k in range(warm, steps)]
        step = _captured(model, state, u, None if source is None else source[:, warm], times, warm, flow)
    for k in range(warm, steps):
        f = None if source is None else source[:, k]
        t = t0 + k * problem.dt
        u = advance(k, u) if step is None else step(u if k == warm else None, f, t)
        keep(k + 1, u)
    model.finish(state)
    if kept is not None:
        return torch.stack(kept, 1)
    return u[:, None] if out is None else out


class _Growth(SolveError):
    """A solve that is careful would end the same way."""


class _Watch:
    """How large a state may be: finite, and without a reaction or growth of its own not far above what drives it."""

    def __init__(self, problem: Discretisation, u0: Tensor, source: Tensor | None) -> None:
        self.problem, self.source, self.last = problem, source, 0
        self.scale = float(u0.detach().abs().max())
        self.free = problem.pde.reaction is not None or problem.least_decay < 0

    def look(self, k: int, u: Tensor, states: Callable[[int], Tensor] | None) -> None:
        """Raise if the state after k steps is out of bounds; `states` gives those since the last look."""
        if not self._small(u, k):
            steps = range(self.last + 1, k + 1) if states is not None else ()
            first = next((j for j in steps if not self._small(states(j), k)), None)  # type: ignore[misc]
            where = f"at step {first}" if first is not None else f"between steps {self.last} and {k}"
            raise _Growth(f"the rollout grows without bound: too large {where}, {float(u.detach().abs().max()):.2g} after {k} "
                          "(is a condition missing where the flow enters, or the time step too long?)")
        self.last = k
        if k == 1:
            self.scale = max(self.scale, float(u.detach().abs().max()))

    def _small(self, u: Tensor, k: int) -> bool:
        top = float(u.detach().abs().max())
        if not isfinite(top):
            return False
        return self.free or top <= _ABSURD * self.scale or top <= _ABSURD * self._driven(k)

    def _driven(self, k: int) -> float:
        """The size of everything that a state after k steps may come from."""
        p = self.problem
        size = self.scale + (0.0 if self.source is None else k * p.dt * float(self.source.abs().max()))
        for t in (j * p.dt for j in range(0, k + 1, max(1, k // 50))):
            w, g = p.fixed_values(t), p.load(t)
            size += 0.0 if w is None else float(w.detach().abs().max())
            size += 0.0 if g is None else k * p.dt * float((g.detach().abs().T / p.mass.row_sums()[0]).max())
        return size


def _captured(model: Model, state: Any, u: Tensor, f: Tensor | None, times: Sequence[float], k: int,
              flow: HeldFlow | None) -> _Captured | None:
    """The step at these times as one recording; None where it has to be launched operation by operation."""
    if flow is None:
        return _Captured(model, state, u, f, 0.0, k, None) if model.capturable(state) else None
    freeze = getattr(model, "freeze", None)
    if freeze is None or not freeze(state, times):
        return None
    try:
        return _Captured(model, state, u, f, times[0], k, flow)
    except RuntimeError as error:
        flow.release()
        warnings.warn(f"the step with a given flow could not be captured and is launched piece by piece: {error}",
                      RuntimeWarning, stacklevel=4)
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


class _Captured:
    """One step as a CUDA graph with fixed buffers; without CUDA the same step on the same buffers, called again each time."""

    def __init__(self, model: Model, state: Any, u: Tensor, f: Tensor | None, t: float, k: int, flow: HeldFlow | None) -> None:
        self.u, self.f, self.flow = u.clone(), None if f is None else f.clone(), flow
        self.graph: torch.cuda.CUDAGraph | None = None
        if flow is not None:
            flow.show(t)

        def step() -> Tensor:
            return model.step(state, self.u, self.f, 0.0, k)

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
