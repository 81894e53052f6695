"""A differentiable rollout that keeps its states alone: on the way back every step is made a second time, with its graph.

    above_T = dl/du_T,      above_k = dl/du_k + (du_k+1/du_k)^T above_k+1,      dl/dA = sum_k (du_k+1/dA)^T above_k+1

A are all tensors that a step depends on, besides state and source. The operators of a solver are cut off from how they came about
(`Model.severed`), so that this part of the gradient is taken once; every other tensor is found in the graph of the first step.
A second step that is not the first one again, or depends on more than was found, is an error and not a wrong gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dgnet.errors import InputError
from dgnet.models.base import Model
from dgnet.stepping.host import unwritten

Tensor = torch.Tensor


def checkpointed(model: Model[Any], state: Any, u: Tensor, source: Tensor | None, steps: int, time: Callable[[int], float],
                 first: int) -> Tensor:
    """u [B, P, F] and the states after each step [B, steps + 1, P, F], with sources [B, steps, N, F]; differentiable.

    Step k begins at `time(k)`, and has the number `first` + k from the start.
    """
    cut, pairs = model.severed(state) or (state, [])
    run, begun = _Steps(model, cut, steps, time, first, [leaf for _, leaf in pairs]), model.memory(state)
    for k in sorted({0, min(max(0, model.first_steps - first), steps - 1)}):
        x = u.detach().requires_grad_()
        run.wanted += run.unknown(run.step(k, x, None if source is None else source[:, k].detach()), x)
    model.remember(cut, begun)
    return _Checkpointed.apply(run, u, source, *(x for x, _ in pairs), *run.wanted[len(pairs):])


@dataclass
class _Steps:
    """Steps of a model, and the tensors that they depend on."""

    model: Model[Any]
    state: Any
    steps: int
    time: Callable[[int], float]
    first: int
    wanted: list[Tensor]  # leaves

    def step(self, k: int, u: Tensor, f: Tensor | None) -> Tensor:
        with torch.enable_grad():
            return self.model.step(self.state, u, f, self.time(k), self.first + k)

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
        ctx.memory = []
        for k in range(run.steps):
            ctx.memory.append(run.model.memory(run.state))
            u = run.model.step(run.state, u, None if source is None else source[:, k], run.time(k), run.first + k)
            out[:, k + 1] = u
        ctx.run = run
        ctx.save_for_backward(out, source)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        run, (out, source) = ctx.run, ctx.saved_tensors
        driven = ctx.needs_input_grad[2]
        forcing = unwritten(*source.shape, like=source) if driven else None
        totals: list[Tensor | None] = [None] * len(run.wanted)
        above = g[:, run.steps]
        for k in range(run.steps - 1, -1, -1):
            x, f = out[:, k].detach().requires_grad_(), None if source is None else source[:, k].detach().requires_grad_(driven)
            run.model.remember(run.state, ctx.memory[k])
            new = run.step(k, x, f)
            _check(k, new, out[:, k + 1], run.unknown(new, x, f))
            given = [x, f] if driven else [x]
            found = torch.autograd.grad(new, [*given, *run.wanted], above, retain_graph=True, allow_unused=True)
            above = g[:, k] if found[0] is None else g[:, k] + found[0]
            if forcing is not None:
                forcing[:, k] = 0.0 if found[1] is None else found[1]
            for j, one in enumerate(found[len(given):]):
                if one is not None:
                    held = totals[j]
                    totals[j] = one if held is None else held + one
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
