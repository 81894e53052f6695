"""Long windows: one step captured and replayed, forwards and backwards.

A window of hundreds of small steps spends its time on launching kernels. Here the step is recorded once per iteration as a
CUDA graph, and once more together with its adjoint; states are kept, everything else is computed again on the way back:

    lambda_T = dl/du_T,     lambda_k = dl/du_k + (du_{k+1}/du_k)^T lambda_{k+1},     dl/dA = sum_k (du_{k+1}/dA)^T lambda_{k+1}

A are the step's matrices, cut off from how they were decoded: that part of the gradient is taken once, at the end. With a flow
that changes, the cut is made at what the matrices are assembled from, and the recorded step reads the flow from buffers that are
filled before each repetition. Without a GPU the same code runs step by step, which is how it is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch

from dgnet.models.base import Model
from dgnet.models.capture import Recorded

Tensor = torch.Tensor

LONG = 12  # steps from which recording pays
_IDLE = 1 << 31  # bytes that may lie idle
_INSTANTS = 12  # of a flow whose bounds are measured


def applies(model: Model[Any], state: Any, length: int, device: torch.device, times: Sequence[float] = ()) -> bool:
    """A window of `length` steps is worth recording here, and can be. `times` are those of its steps where a flow is given."""
    return device.type == "cuda" and length >= LONG and ready(model, state, times)


def ready(model: Model[Any], state: Any, times: Sequence[float] = ()) -> bool:
    """Make the step the same at all times, if it can be."""
    if times:  # bounds vary slowly with the flow, and every residual is checked: some instants are enough
        same = model.freeze(state, times[::max(1, len(times) // _INSTANTS)])
    else:
        same = model.capturable(state)
    return bool(same) and model.severed(state) is not None


def gradients(model: Model[Any], state: Any, u: Tensor, source: Tensor | None, steps: int,
              loss: Callable[[Tensor], Tensor], first: int = 1, show: Callable[[int], None] = lambda k: None) -> Tensor:
    """Loss of the states [steps+1, B, N, F] that follow u, its gradients added to the weights. `first` numbers the first step.

    u may carry gradients of its own. source: [B, steps, N, F]. Each phase of a model's steps is recorded by itself.
    `show(k)` puts the flow of step k where the step finds it.
    """
    found = model.severed(state)
    assert found is not None
    cut, pairs = found
    leaves = [leaf for _, leaf in pairs]
    weights = [p for p in model.step_weights() if p.requires_grad]
    wanted = leaves + weights

    def force(k: int) -> Tensor | None:
        return None if source is None else source[:, k]

    groups = (list(numbers) for _, numbers in groupby(range(first, first + steps), model.phase))
    runs = [(len(numbers), numbers[0]) for numbers in groups]
    begins = [number - first for _, number in runs]

    # forwards
    states = u.new_empty((steps + 1, *u.shape))
    states[0] = u.detach()
    with torch.no_grad():
        for (count, number), begin in zip(runs, begins):
            show(begin)
            ahead = Recorded(lambda x, f, n=number: (model.step(cut, x, f, 0.0, n),), count, states[begin], force(begin))
            for k in range(begin, begin + count):
                show(k)
                states[k + 1] = ahead(states[k], force(k))[0]
            ahead.close()

    # the loss and how it depends on every state by itself
    states.requires_grad_()
    value = loss(states)
    (direct,) = torch.autograd.grad(value, states)
    states = states.detach()

    # backwards
    total = [torch.zeros_like(w) for w in wanted]

    def adjoint(x: Tensor, f: Tensor | None, above: Tensor, number: int) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            found = torch.autograd.grad(model.step(cut, x, f, 0.0, number), [x, *wanted], above, allow_unused=True)
        for held, g in zip(total, found[1:]):
            if g is not None:
                held.add_(g)
        return (found[0],)

    backs = [Recorded(lambda x, f, above, n=number: adjoint(x, f, above, n), count, states[begin], force(begin), direct[steps])
             for (count, number), begin in zip(runs, begins)]
    for held in total:  # recording ran it
        held.zero_()
    above = direct[steps].clone()
    for (count, _), begin, back in reversed(list(zip(runs, begins, backs))):
        for k in reversed(range(begin, begin + count)):
            show(k)
            above = direct[k] + back(states[k], force(k), above)[0]
        back.close()

    ends = [(x, g) for (x, _), g in zip(pairs, total)]
    if u.requires_grad:
        ends.append((u, above))
    for w, g in zip(weights, total[len(leaves):]):
        w.grad = g if w.grad is None else w.grad + g
    if ends:
        torch.autograd.backward([x for x, _ in ends], [g for _, g in ends])
    if u.is_cuda and torch.cuda.memory_reserved() > 4 * torch.cuda.memory_allocated() + _IDLE:
        torch.cuda.empty_cache()  # what recordings held is of no use to the next ones, but to other processes on this device
    return value.detach()
