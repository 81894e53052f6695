"""Would data fit better if a coefficient were larger or smaller by a factor? Least squares on rollouts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from dgnet.problems import PDE, Problem
from dgnet.problems.curves import ELSEWHERE
from dgnet.problems.pde import Array
from dgnet.projects.materials import times

Tensor = torch.Tensor


def fitted(misfit: Callable[[dict[str, float]], Tensor | None], names: tuple[str, ...]) -> tuple[dict[str, float], Tensor]:
    """The factors with the smallest misfit and that misfit: Gauss-Newton for their logarithms, from 1."""
    def factors(logs: np.ndarray) -> dict[str, float]:
        return {name: float(np.exp(v)) for name, v in zip(names, logs)}

    at, gap = np.zeros(len(names)), misfit(dict.fromkeys(names, 1.0))
    assert gap is not None
    for _ in range(5):
        beside = [misfit(factors(at + 0.02 * e)) for e in np.eye(len(names))]
        slopes = [(b - gap).flatten() / 0.02 for b in beside if b is not None]
        if len(slopes) < len(names):
            break
        J = torch.stack(slopes, 1)
        normal = (J.T @ J).cpu().numpy()
        step = -np.linalg.lstsq(normal, (J.T @ gap.flatten()).cpu().numpy(), rcond=1e-10)[0].clip(-1.5, 1.5)
        new = misfit(factors(at + step))
        if new is None or float(new.norm()) >= float(gap.norm()):
            break
        at, gap = at + step, new
        if np.abs(step).max() < 0.02:
            break
    return factors(at), gap


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
