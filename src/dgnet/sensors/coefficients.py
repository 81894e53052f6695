"""Coefficients of the equation from the readings of sensors alone, by Gauss-Newton on rollouts of the classical solver.

The unknowns are factors on the given diffusion, decay and convective coefficients, as a whole or one for each region (those of
`calibrate` in problem.toml). Readings are not linear in them, so there are no kernels: a step takes 2p + 1 rollouts for p numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.models import few_threads, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import Discretisation
from dgnet.problems.finer import prolonged, refined
from dgnet.sensors.readings import Readings, cleaned, interpolation
from dgnet.sensors.sensor import rows
from dgnet.training.calibrate import linearised, newton_step

Tensor = torch.Tensor

COEFFICIENTS = ("diffusion", "decay", "convection")
_STEPS, _SETTLED = 20, 1e-5


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Factors on the given coefficients.

    - `names` and `factors` [p]; `sd` [p]: standard deviations of their logarithms (relative errors), from noise and mesh
    - `mesh` [p]: the bias of the given mesh, taken off
    - `noise`: standard deviation of the readings, found from what the fit leaves unless given; `misfit`: that root mean square
    - `notes`: what was wrong with the readings, what they do not determine
    """

    names: tuple[str, ...]
    factors: np.ndarray
    sd: np.ndarray
    mesh: np.ndarray
    noise: float
    misfit: float
    notes: tuple[str, ...]


def recover_coefficients(problem: Discretisation, readings: Readings, names: Sequence[str], *, per_region: bool = False,
                         start: Tensor | None = None, source: Callable[[Tensor], Tensor] | None = None,
                         noise: float | None = None) -> Coefficients:
    """Factors on coefficients that explain the readings best.

    - `problem`: with the coefficients that are the first guess
    - `readings`: as for `recover`
    - `names`: which of diffusion, decay, convection
    - `per_region`: one factor for each region of the mesh (not of convection)
    - `start` [N, F], `noise`: as for `recover`
    - `source`: what drives the part: averages over the steps [H, n, F] at points [n, d]

    They are fitted on the given mesh and on the mesh refined once. The scheme is of second order, so a third of the difference is
    added to the finer answer; what that leaves is taken to be as large again, and is in the standard deviations.
    """
    begin = (torch.zeros(problem.mesh.n_nodes, problem.n_fields) if start is None else start).double()
    readings = cleaned(readings, problem, None if start is None else float(begin.mean()))
    model = DGNet(DGNetConfig(decoder="none", network=False, calibrate=tuple(names), regions=per_region), problem).double()
    with torch.no_grad():
        coarse = _fitted(model, problem, readings, begin, source)
        fine = _fitted(model, refined(problem), readings, prolonged(problem.mesh)(begin, smooth=True), source)
        rest = (fine.theta - coarse.theta) / 3
        torch.nn.utils.vector_to_parameters(fine.theta + rest, _parameters_in_order(model))
    count = len(fine.residual), len(rest)
    misfit = float(fine.residual.square().mean().sqrt())
    sigma = misfit * float(np.sqrt(count[0] / (count[0] - count[1]))) if noise is None else noise
    normal = (fine.jacobian.T @ fine.jacobian).numpy()
    size = np.sqrt(np.diagonal(normal)).clip(1e-300)
    sd = sigma * np.sqrt(np.diagonal(np.linalg.pinv(normal / size[:, None] / size, 1e-12, hermitian=True))) / size
    sd = np.where(np.diagonal(normal) > 0, np.hypot(sd, rest.numpy()), np.inf)  # infinite: nothing depends on it
    found = model.coefficients()
    notes = [f"The readings do not determine {name}: its standard deviation is {s:.0%}." for name, s in zip(found, sd) if s > 0.5]
    factors, bias = np.array(list(found.values())), -4 * rest.numpy()
    return Coefficients(tuple(found), factors, sd, bias, sigma, misfit, (*readings.notes, *notes))


def _parameters_in_order(model: DGNet) -> list[torch.nn.Parameter]:
    """In the order of `model.coefficients()`; that of `model.parameters()` is another."""
    return [model.calibration[name] for name in model.config.calibrate]


class _Fit(NamedTuple):
    theta: Tensor  # [p], logarithms of the factors
    residual: Tensor  # [m], in the unit of the readings
    jacobian: Tensor  # [m, p]


def _fitted(model: DGNet, problem: Discretisation, readings: Readings, begin: Tensor,
            source: Callable[[Tensor], Tensor] | None) -> _Fit:
    """Gauss-Newton to its end on one mesh, from where the model is."""
    steps = int(np.ceil(readings.times[-1] / problem.dt - 1e-9))
    w, there = rows(readings.sensors, problem), torch.from_numpy(np.isfinite(readings.values))
    at, wanted = torch.from_numpy(interpolation(readings.times, steps, problem.dt)), torch.from_numpy(readings.values)[there]
    drive = None if source is None else source(torch.tensor(problem.mesh.points))[None, :steps].double()
    parameters = _parameters_in_order(model)

    def residual(theta: Tensor) -> Tensor:
        torch.nn.utils.vector_to_parameters(theta, parameters)
        states = rollout(model, problem, begin[None], drive, steps)[0]
        return (at @ torch.einsum("npf,spf->ns", states, w))[there] - wanted

    with few_threads(problem.mesh.n_nodes):
        theta = torch.nn.utils.parameters_to_vector(parameters)
        if len(wanted) <= len(theta):
            raise InputError(f"{len(wanted)} readings cannot determine {len(theta)} coefficients")
        for _ in range(_STEPS):
            before, (theta, _) = theta, newton_step(residual, theta)
            if float((theta - before).abs().max()) < _SETTLED:
                break
        return _Fit(theta, *linearised(residual, theta))
