"""The interface of a learned part, and how its networks are computed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import nn

from dgnet.models.dgnet.build import Build, Scales

Tensor = torch.Tensor


class Part(nn.Module):
    """One learned part of DGNet: it changes the operators under construction. With fresh weights it must change nothing, unless it
    belongs to L_physics.

    Its weights are registered with the model under their own names (not below the part's), so a name may be used once.
    """

    is_physics: ClassVar[bool] = False  # it belongs to L_physics and has no weights
    replaces_step: ClassVar[bool] = False  # there is no solver's step to go back to without it

    def fit_statistics(self, state: Tensor, scales: Scales) -> None:
        """Take statistics of the training states [B, T+1, N, F] that go beyond `scales`, which are set."""

    def contribute(self, build: Build) -> None:
        """Change `build`; what every part must keep is in its docstring. With gradients on, this is part of the graph."""
        raise NotImplementedError


def network_precision(amp: bool, device: torch.device) -> AbstractContextManager[object]:
    """What runs inside is a network: with `amp`, its products are in bfloat16 (cached casts would spoil a captured step)."""
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if amp else nullcontext()
