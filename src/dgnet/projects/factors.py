"""Would data fit better if a coefficient were larger or smaller by a factor? Least squares on rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from dgnet.discovery.least_squares import Differences, least_squares
from dgnet.errors import SolveError
from dgnet.problems import PDE, Problem
from dgnet.problems.curves import ELSEWHERE
from dgnet.problems.pde import Array
from dgnet.projects.curves import times

Tensor = torch.Tensor


def fitted(misfit: Callable[[dict[str, float]], Tensor], names: tuple[str, ...]) -> tuple[dict[str, float], Tensor]:
    """The factors with the smallest misfit and that misfit: Gauss-Newton for their logarithms, from 1. Where rollouts break down
    beside 1, the factors are 1."""
    def factors(logs: Tensor) -> dict[str, float]:
        return dict(zip(names, logs.exp().tolist()))

    def at(logs: Tensor) -> Differences:
        return Differences(lambda x: misfit(factors(x)).double().flatten(), logs, 0.02, sides=(1.0,))

    start = torch.zeros(len(names), dtype=torch.float64)
    try:
        start = least_squares(at, start, rounds=5, longest=1.5, settled=0.02).theta
    except SolveError:
        pass
    return factors(start), misfit(factors(start))


def scaled(p: Problem, factors: dict[str, float]) -> PDE:
    """The equation with its diffusion and capacity times factors, everywhere or (`capacity in REGION`) in some cells."""
    pde = p.pde
    for name, factor in factors.items():
        term, _, region = name.partition(" in ")
        if term == "source":
            continue
        weight: Array = factor
        if region:
            cells = p.mesh.regions[region] if region != ELSEWHERE else np.setdiff1d(
                np.arange(p.mesh.n_cells), np.concatenate(list(p.mesh.regions.values())))
            weight = np.ones(p.mesh.n_cells)
            weight[cells] = factor
        rows = {f: times(v, weight) for f, v in zip(pde.fields, pde.per_field(term))}
        value = rows[pde.fields[0]] if pde.shared(term) else rows
        pde = replace(pde, diffusion=value) if term == "diffusion" else replace(pde, capacity=value)
    return pde
