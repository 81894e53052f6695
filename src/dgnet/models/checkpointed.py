"""A differentiable rollout that keeps its states alone: on the way back every step is made a second time, with its graph.

    above_T = dl/du_T,      above_k = dl/du_k + (du_k+1/du_k)^T above_k+1,      dl/dA = sum_k (du_k+1/dA)^T above_k+1

A are all tensors that a step depends on, besides state and source. The operators of a solver are cut off from how they came about
(`Stepper.severed`), so that this part of the gradient is taken once; every other tensor is found in the graph of the first step.

- `dg.rollout(checkpoint=True)`: for rollouts whose graph does not fit into memory. A second step that is not the first one again,
  or depends on more than was found, is an error and not a wrong gradient
- training, `recorded`: a window of hundreds of small steps spends its time on launching kernels. On CUDA the step is recorded, and
  once more together with its adjoint, for each phase of the steps. A flow that changes is shown before each of them (`HeldFlow`).
  Elsewhere the same functions are called again each time, which is how they are tested
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch

from dgnet.errors import InputError
from dgnet.models.base import Stepper
from dgnet.models.capture import Recorded
from dgnet.stepping.host import unwritten

Tensor = torch.Tensor
Found = tuple[Tensor, ...]

_IDLE_BYTES = 1 << 31  # that recordings may leave to the allocator of a device


def checkpointed(stepper: Stepper, u: Tensor, source: Tensor | None, steps: int, time: Callable[[int], float], number: int,
                 special: int = 0, recorded: bool = False, show: Callable[[int], None] | None = None) -> Tensor:
    """u [B, P, F] and the states after each step [B, steps + 1, P, F], with sources [B, steps, N, F]; differentiable.

    - `time`: when step k = 0, 1, ... begins; `number`: that of the first one, counted from the start of the trajectory
    - `special`: how many of the steps come before those that are all alike
    - `recorded`: `stepper` repeats its step (`Stepper.repeats`), and sources need no gradient; `show(k)` puts the flow of step k
      where the step finds it
    """
    cut, pairs = stepper.severed() or (stepper, [])
    run, begun = _Steps(cut, steps, time, number, [leaf for _, leaf in pairs], recorded, show), stepper.memory()
    for k in sorted({0, min(special, steps - 1)}):
        x = u.detach().requires_grad_()
        run.show(k)
        run.wanted += run.unknown(run.step(k, x, None if source is None else source[:, k].detach()), x)
    cut.remember(begun)
    found: Tensor = _Checkpointed.apply(run, u, source, *(x for x, _ in pairs), *run.wanted[len(pairs):])
    return found


class _Steps:
    """Steps of a stepper, and the leaves of autograd that they depend on, `wanted`."""

    def __init__(self, stepper: Stepper, steps: int, time: Callable[[int], float], number: int, wanted: list[Tensor],
                 recorded: bool, show: Callable[[int], None] | None) -> None:
        self.stepper, self.steps, self.time, self.number, self.wanted = stepper, steps, time, number, wanted
        self.recorded, self.show = recorded, (lambda k: None) if show is None else show
        phases = groupby(range(steps), lambda k: stepper.phase(number + k) if recorded else 0)
        self.runs = [list(group) for _, group in phases]  # of steps that are recorded as one

    def step(self, k: int, u: Tensor, f: Tensor | None) -> Tensor:
        with torch.enable_grad():
            return self.stepper.step(u, f, self.time(k), self.number + k)

    def repeated(self, function: Callable[..., Found], count: int, k: int, *examples: Tensor | None) -> Callable[..., Found]:
        """`function(k, ...)` for `count` steps that are all alike."""
        if not self.recorded:
            return function
        self.show(k)
        made = Recorded(lambda *given: function(k, *given), count, *examples)

        def again(j: int, *given: Tensor | None) -> Found:
            self.show(j)
            return made(*given)

        again.close = made.close  # type: ignore[attr-defined]
        return again

    def unknown(self, new: Tensor, *given: Tensor | None) -> list[Tensor]:
        """The leaves of the graph of a step that are neither given nor wanted."""
        known, found = {id(x) for x in (*given, *self.wanted)}, []
        waiting: list[Any] = [new.grad_fn]
        seen = {None}
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += [before for before, _ in node.next_functions]
                if node.name().endswith("AccumulateGrad") and id(node.variable) not in known:
                    found.append(node.variable)
        return found


class _Checkpointed(torch.autograd.Function):
    """The rollout of `checkpointed`."""

    @staticmethod
    def forward(ctx: Any, run: _Steps, u: Tensor, source: Tensor | None, *tensors: Tensor) -> Tensor:  # type: ignore[override]
        out = unwritten(u.shape[0], run.steps + 1, *u.shape[1:], like=u)
        out[:, 0] = u
        ctx.run, ctx.memory = run, []

        def ahead(k: int, x: Tensor, f: Tensor | None) -> Found:
            return (run.stepper.step(x, f, run.time(k), run.number + k),)

        for group in run.runs:
            begin = group[0]
            step = run.repeated(ahead, len(group), begin, out[:, begin], None if source is None else source[:, begin])
            for k in group:
                if not run.recorded:
                    ctx.memory.append(run.stepper.memory())
                u = step(k, out[:, k] if run.recorded else u, None if source is None else source[:, k])[0]
                out[:, k + 1] = u
            _close(step)
        ctx.save_for_backward(out, source)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        run, (out, source) = ctx.run, ctx.saved_tensors
        driven = ctx.needs_input_grad[2]
        forcing = unwritten(*source.shape, like=source) if driven else None
        totals = [torch.zeros_like(x) for x in run.wanted]

        def back(k: int, x: Tensor, f: Tensor | None, above: Tensor) -> Found:
            x, f = x.detach().requires_grad_(), None if f is None else f.detach().requires_grad_(driven)
            new = run.step(k, x, f)
            if not run.recorded:
                _check(k, new, out[:, k + 1], run.unknown(new, x, f))
            given = [x, f] if driven else [x]
            found = torch.autograd.grad(new, [*given, *run.wanted], above, retain_graph=True, allow_unused=True)
            for total, one in zip(totals, found[len(given):]):
                if one is not None:
                    total.add_(one)
            return tuple(torch.zeros_like(x) if one is None else one for x, one in zip(given, found))

        def force(k: int) -> Tensor | None:
            return None if source is None else source[:, k]

        steps = [run.repeated(back, len(group), group[0], out[:, group[0]], force(group[0]), g[:, run.steps]) for group in run.runs]
        for total in totals:  # recording ran it
            total.zero_()
        above = g[:, run.steps]
        for group, step in reversed(list(zip(run.runs, steps))):
            for k in reversed(group):
                if not run.recorded:
                    run.stepper.remember(ctx.memory[k])
                found = step(k, out[:, k], force(k), above)
                above = g[:, k] + found[0]
                if forcing is not None:
                    forcing[:, k] = found[1]
            _close(step)
        if run.recorded and out.is_cuda and torch.cuda.memory_reserved() > 4 * torch.cuda.memory_allocated() + _IDLE_BYTES:
            torch.cuda.empty_cache()  # what recordings held is of no use to the next ones, but to other processes on this device
        return None, above, forcing, *totals


def _close(step: Any) -> None:
    if hasattr(step, "close"):
        step.close()


def _check(k: int, new: Tensor, before: Tensor, unknown: list[Tensor]) -> None:
    """Whether step k, made again, is what it was."""
    room = torch.finfo(before.dtype).eps ** 0.5 * float(before.abs().max())
    if not float((new.detach() - before).abs().max()) <= room:
        raise InputError(f"step {k + 1}, made again for its gradient, gives other values (is it random, or does it depend on the "
                         "steps before it?): roll out without checkpoint=True")
    if unknown:
        raise InputError(f"step {k + 1} depends on a tensor with gradients, {list(unknown[0].shape)}, that the first one does not: "
                         "roll out without checkpoint=True")
