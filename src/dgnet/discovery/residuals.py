"""What rollouts leave over: the noise of the data, and patches of nodes whose residuals hang together."""

from __future__ import annotations

import math

import numpy as np
import torch

from dgnet.problems import Problem

Tensor = torch.Tensor

_ACROSS = 5  # patches along each axis


def patches(base: Problem) -> Tensor:
    """A number for each degree of freedom: boxes of nodes, whose residuals may hang together."""
    x = base.mesh.points
    box = np.minimum((x - x.min(0)) / np.maximum(np.ptp(x, axis=0), 1e-300) * _ACROSS, _ACROSS - 1).astype(int)
    label = np.unique(box @ _ACROSS ** np.arange(x.shape[1]), return_inverse=True)[1].ravel()
    out = np.zeros(base.n, dtype=np.int64)
    out[base.geometry.dof] = label
    return torch.tensor(out)


def noise_level(state: Tensor) -> float:
    """Standard deviation of white noise in states [B, T+1, N, 1]: the least that differences in time of any order up to 7 show."""
    found, d = [], state.double()
    for order in range(1, min(8, state.shape[1] - 1)):
        d = d.diff(dim=1)
        found.append(deviation(d) / math.sqrt(math.comb(2 * order, order)))
    return min(found, default=0.0)


def deviation(x: Tensor) -> float:
    """Standard deviation of what lies around zero, whatever the tails are."""
    return 1.4826 * float(x.abs().median())



def quiet_noise(state: Tensor) -> float:
    """Standard deviation of white noise in states [B, T+1, N, F], from the time at which they change least: third differences."""
    if state.shape[1] < 4:
        return 0.0
    d = state.double().diff(n=3, dim=1).abs().transpose(0, 1).flatten(1)
    return 1.4826 * float(d.median(1).values.min()) / math.sqrt(20)
