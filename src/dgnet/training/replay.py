"""Long windows: steps recorded once per update and replayed, forwards and backwards (`models.checkpointed`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dgnet.models.base import Stepper
from dgnet.models.checkpointed import checkpointed

Tensor = torch.Tensor

LONG = 12  # steps from which recording pays
_INSTANTS = 12  # of a flow whose bounds are measured


def applies(stepper: Stepper, length: int, device: torch.device, times: Sequence[float] = ()) -> bool:
    """A window of `length` steps is worth recording here, and can be. `times` are those of its steps where a flow is given."""
    return device.type == "cuda" and length >= LONG and ready(stepper, times)


def ready(stepper: Stepper, times: Sequence[float] = ()) -> bool:
    """Make the step the same at all times, if it can be."""
    # bounds vary slowly with the flow, and every residual is checked: some instants are enough
    return stepper.repeats(times[::max(1, len(times) // _INSTANTS)]) and stepper.severed() is not None


def states(stepper: Stepper, u: Tensor, source: Tensor | None, steps: int, first: int = 1, first_steps: int = 0,
           show: Callable[[int], None] | None = None) -> Tensor:
    """u and the states that follow it at the nodes [B, steps + 1, N, F], differentiable in u and weights.

    source: [B, steps, N, F]. `first` numbers the first step, of a model with so many `first_steps`. `show(k)` puts the flow of step
    k where the step finds it.
    """
    made = checkpointed(stepper, u, source, steps, lambda k: 0.0, first, max(0, first_steps - first), recorded=True, show=show)
    return stepper.read(made.flatten(0, 1)).unflatten(0, made.shape[:2])
