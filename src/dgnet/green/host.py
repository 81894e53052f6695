"""What all solvers on the host share: the work is done on NumPy arrays, whatever device the states are on."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

Tensor = torch.Tensor


class OnHost(ABC):
    """Solves with one block-diagonal matrix of G blocks of n rows."""

    label: str
    capturable = False

    @abstractmethod
    def array(self, b: np.ndarray, transposed: bool = False) -> np.ndarray:
        """A^-1 b, or A^-T b, for an array [G n] or [G n, R]; of the shape and precision of b."""

    def solve(self, b: Tensor, transposed: bool = False) -> Tensor:
        """The same for a tensor [G, n, R]."""
        host = b.detach().reshape(-1, b.shape[-1]).cpu().numpy()
        return torch.from_numpy(self.array(host, transposed)).to(b.device).view(b.shape)
