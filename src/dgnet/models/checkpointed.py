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
from dgnet.models.base import Memory, Stepper
from dgnet.models.capture import Recorded
from dgnet.stepping.host import unwritten

Tensor = torch.Tensor
Found = tuple[Tensor, ...]

_IDLE_BYTES = 1 << 31  # that recordings may leave to the allocator of a device


def checkpointed(stepper: Stepper, u: Tensor, source: Tensor | None, steps: int, time: Callable[[int], float], number: int,
                 special: int = 0) -> Tensor:
    """u [B, P, F] and the states after each step [B, steps + 1, P, F], with sources [B, steps, N, F]; differentiable.

    - `time`: when step k = 0, 1, ... begins; `number`: that of the first one, counted from the start of the trajectory
    - `special`: how many of the steps come before those that are all alike
    """
    run = Steps(stepper, u, source, steps, time, number, special)
    found: Tensor = _Checkpointed.apply(run, u, source, *(x for x, _ in run.pairs), *run.others)
    return found


def gradients(stepper: Stepper, u: Tensor, source: Tensor | None, steps: int, loss: Callable[[Tensor], Tensor], number: int,
              special: int = 0, show: Callable[[int], None] | None = None) -> Tensor:
    """Loss of u and the states that follow it at the nodes [B, steps + 1, N, F], its gradients added to those of leaves.

    As `checkpointed`, with recorded steps: `stepper` repeats its step (`Stepper.repeats`), sources need no gradient, and `show(k)`
    puts the flow of step k where the step finds it.
    """
    run = Steps(stepper, u, source, steps, lambda k: 0.0, number, special, True, show)
    with torch.no_grad():
        states = run.ahead(u, source)
    states.requires_grad_()
    value = loss(stepper.read(states.flatten(0, 1)).unflatten(0, states.shape[:2]))
    (direct,) = torch.autograd.grad(value, states)
    above, _, totals = run.back(states.detach(), source, direct, False)
    ends = [(x, g) for (x, _), g in zip(run.pairs, totals)] + [(x, g) for x, g in ((u, above),) if u.requires_grad]
    for leaf, g in zip(run.others, totals[len(run.pairs):]):
        leaf.grad = g if leaf.grad is None else leaf.grad + g
    if ends:
        torch.autograd.backward([x for x, _ in ends], [g for _, g in ends])
    if u.is_cuda and torch.cuda.memory_reserved() > 4 * torch.cuda.memory_allocated() + _IDLE_BYTES:
        torch.cuda.empty_cache()  # what recordings held is of no use to the next ones, but to other processes on this device
    return value.detach()


class Steps:
    """Steps ahead, and back a second time with their graphs, and the leaves of autograd that they depend on.

    `pairs` are those of the operators, with the tensors that they stand for; `others` were found in the graph of a step.
    """

    def __init__(self, stepper: Stepper, u: Tensor, source: Tensor | None, steps: int, time: Callable[[int], float], number: int,
                 special: int, recorded: bool = False, show: Callable[[int], None] | None = None) -> None:
        self.stepper, self.pairs = stepper.severed() or (stepper, [])
        self.steps, self.time, self.number, self.recorded = steps, time, number, recorded
        self.show = (lambda k: None) if show is None else show
        self.others: list[Tensor] = []
        self.memory: list[Memory] = []  # before each step
        phases = groupby(range(steps), lambda k: stepper.phase(number + k) if recorded else 0)
        self.runs = [list(group) for _, group in phases]  # of steps that are recorded as one
        begun = stepper.memory()
        for k in sorted({0, min(special, steps - 1)}):
            x = u.detach().requires_grad_()
            self.show(k)
            self.others += self.unknown(self.step(k, x, None if source is None else source[:, k].detach()), x)
        self.stepper.remember(begun)

    @property
    def wanted(self) -> list[Tensor]:
        """All leaves, `pairs` first."""
        return [leaf for _, leaf in self.pairs] + self.others

    def step(self, k: int, u: Tensor, f: Tensor | None) -> Tensor:
        with torch.enable_grad():
            return self.stepper.step(u, f, self.time(k), self.number + k)

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

    def repeated(self, function: Callable[..., Found], count: int, k: int, *examples: Tensor | None) -> Recorded:
        """`function(k, ...)` for `count` steps from k on that are all alike, as a recording."""
        self.show(k)
        return Recorded(lambda *inputs: function(k, *inputs), count, *examples)

    def ahead(self, u: Tensor, source: Tensor | None) -> Tensor:
        """u and the states after each step [B, steps + 1, P, F], without gradients."""
        out = unwritten(u.shape[0], self.steps + 1, *u.shape[1:], like=u)
        out[:, 0] = u

        def force(k: int) -> Tensor | None:
            return None if source is None else source[:, k]

        def one(k: int, x: Tensor, f: Tensor | None) -> Found:
            return (self.stepper.step(x, f, self.time(k), self.number + k),)

        for group in self.runs:
            if self.recorded:
                step = self.repeated(one, len(group), group[0], out[:, group[0]], force(group[0]))
                for k in group:
                    self.show(k)
                    out[:, k + 1] = step(out[:, k], force(k))[0]
                step.close()
                continue
            for k in group:
                self.memory.append(self.stepper.memory())
                (u,) = one(k, u, force(k))
                out[:, k + 1] = u
        return out

    def back(self, out: Tensor, source: Tensor | None, g: Tensor, driven: bool) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        """From dl/du of all states: that of the first one, of sources where they are `driven`, and of `wanted`."""
        forcing = unwritten(*source.shape, like=source) if driven and source is not None else None
        totals = [torch.zeros_like(x) for x in self.wanted]

        def force(k: int) -> Tensor | None:
            return None if source is None else source[:, k]

        def one(k: int, x: Tensor, f: Tensor | None, above: Tensor) -> Found:
            x, f = x.detach().requires_grad_(), None if f is None else f.detach().requires_grad_(driven)
            new = self.step(k, x, f)
            if not self.recorded:
                _check(k, new, out[:, k + 1], self.unknown(new, x, f))
            inputs = [x] if forcing is None else [x, f]
            found = torch.autograd.grad(new, [*inputs, *self.wanted], above, retain_graph=True, allow_unused=True)
            for total, part in zip(totals, found[len(inputs):]):
                if part is not None:
                    total.add_(part)
            return tuple(torch.zeros_like(x) if part is None else part for x, part in zip(inputs, found))

        steps = [self.repeated(one, len(group), group[0], out[:, group[0]], force(group[0]), g[:, self.steps])
                 for group in self.runs] if self.recorded else []
        for total in totals:  # recording ran it
            total.zero_()
        above = g[:, self.steps]
        for number, group in reversed(list(enumerate(self.runs))):
            for k in reversed(group):
                if self.recorded:
                    self.show(k)
                    found = steps[number](out[:, k], force(k), above)
                else:
                    self.stepper.remember(self.memory[k])
                    found = one(k, out[:, k], force(k), above)
                above = g[:, k] + found[0]
                if forcing is not None:
                    forcing[:, k] = found[1]
            if self.recorded:
                steps[number].close()
        return above, forcing, totals


class _Checkpointed(torch.autograd.Function):
    """The rollout of `checkpointed`."""

    @staticmethod
    def forward(ctx: Any, run: Steps, u: Tensor, source: Tensor | None, *tensors: Tensor) -> Tensor:  # type: ignore[override]
        out = run.ahead(u, source)
        ctx.run = run
        ctx.save_for_backward(out, source)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        above, forcing, totals = ctx.run.back(*ctx.saved_tensors, g, ctx.needs_input_grad[2])
        return None, above, forcing, *totals


def _check(k: int, new: Tensor, before: Tensor, unknown: list[Tensor]) -> None:
    """Whether step k, made again, is what it was."""
    room = torch.finfo(before.dtype).eps ** 0.5 * float(before.abs().max())
    if not float((new.detach() - before).abs().max()) <= room:
        raise InputError(f"step {k + 1}, made again for its gradient, gives other values (is it random, or does it depend on the "
                         "steps before it?): roll out without checkpoint=True")
    if unknown:
        raise InputError(f"step {k + 1} depends on a tensor with gradients, {list(unknown[0].shape)}, that the first one does not: "
                         "roll out without checkpoint=True")
