"""When the steps of a window are recorded once per update and replayed, forwards and backwards (`models.checkpointed`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dgnet.models.base import Stepper

LONG = 12  # steps from which recording pays
_INSTANTS = 12  # of a flow whose bounds are measured


def applies(stepper: Stepper, length: int, device: torch.device, times: Sequence[float] = ()) -> bool:
    """A window of `length` steps is worth recording here, and can be. `times` are those of its steps where a flow is given."""
    return device.type == "cuda" and length >= LONG and ready(stepper, times)


def ready(stepper: Stepper, times: Sequence[float] = ()) -> bool:
    """Make the step the same at all times, if it can be."""
    # bounds vary slowly with the flow, and every residual is checked: some instants are enough
    return stepper.repeats(times[::max(1, len(times) // _INSTANTS)]) and stepper.severed() is not None
