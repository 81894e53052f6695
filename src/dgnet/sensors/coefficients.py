"""Coefficients of the equation from the readings of sensors alone, by Gauss-Newton on rollouts of the classical solver.

The unknowns are factors on the given diffusion, decay and convective coefficients, as a whole or one for each region (those of
`calibrate` in problem.toml). Readings are not linear in them, so there are no kernels: a step takes 2p + 1 rollouts for p numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.models import few_threads, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import Discretisation
from dgnet.sensors.readings import Readings, cleaned, interpolation
from dgnet.sensors.sensor import rows
from dgnet.training.calibrate import linearised, newton_step

Tensor = torch.Tensor

COEFFICIENTS = ("diffusion", "decay", "convection")
_STEPS, _SETTLED = 20, 1e-5


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Factors on the given coefficients.

    - `names` and `factors` [p]; `sd` [p]: standard deviations of their logarithms (relative errors), from the noise alone
    - `noise`: standard deviation of the readings, found from what the fit leaves unless given; `misfit`: that root mean square
    - `notes`: what was wrong with the readings, what they do not determine
    """

    names: tuple[str, ...]
    factors: np.ndarray
    sd: np.ndarray
    noise: float
    misfit: float
    notes: tuple[str, ...]


def recover_coefficients(problem: Discretisation, readings: Readings, names: Sequence[str], *, per_region: bool = False,
                         start: Tensor | None = None, source: Tensor | None = None, noise: float | None = None) -> Coefficients:
    """Factors on coefficients that explain the readings best.

    - `problem`: with the coefficients that are the first guess
    - `readings`: as for `recover`
    - `names`: which of diffusion, decay, convection
    - `per_region`: one factor for each region of the mesh (not of convection)
    - `start` [N, F], `source` [H, N, F], `noise`: as for `recover`

    The bias of mesh and step is not in the standard deviations: compare with a finer mesh where it matters.
    """
    begin = torch.zeros(problem.mesh.n_nodes, problem.n_fields) if start is None else start
    readings = cleaned(readings, problem, None if start is None else float(begin.double().mean()))
    steps = int(np.ceil(readings.times[-1] / problem.dt - 1e-9))
    config = DGNetConfig(decoder="none", network=False, calibrate=tuple(names), regions=per_region)
    model = DGNet(config, problem).double()
    parameters = [p for name, p in model.named_parameters() if name.startswith("calibration.")]
    w, there = rows(readings.sensors, problem), torch.from_numpy(np.isfinite(readings.values))
    at = torch.from_numpy(interpolation(readings.times, steps, problem.dt))
    wanted = torch.from_numpy(readings.values)[there]
    scale = float(wanted.std())
    drive = None if source is None else source[None, :steps].double()

    def residual(theta: Tensor) -> Tensor:
        torch.nn.utils.vector_to_parameters(theta, parameters)
        states = rollout(model, problem, begin.double()[None], drive, steps)[0]
        return ((at @ torch.einsum("npf,spf->ns", states.double(), w))[there] - wanted) / scale

    with torch.no_grad(), few_threads(problem.mesh.n_nodes):
        theta = torch.nn.utils.parameters_to_vector(parameters)
        if len(wanted) <= len(theta):
            raise InputError(f"{len(wanted)} readings cannot determine {len(theta)} coefficients")
        for _ in range(_STEPS):
            before, (theta, _) = theta, newton_step(residual, theta)
            if float((theta - before).abs().max()) < _SETTLED:
                break
        r, J = linearised(residual, theta)
        torch.nn.utils.vector_to_parameters(theta, parameters)
    misfit = scale * float(r.square().mean().sqrt())
    sigma = misfit * float(np.sqrt(len(r) / (len(r) - len(theta)))) if noise is None else noise
    normal = (J.T @ J).numpy()
    size = np.sqrt(np.diagonal(normal)).clip(1e-300)
    sd = sigma / scale * np.sqrt(np.diagonal(np.linalg.pinv(normal / size[:, None] / size, 1e-12, hermitian=True))) / size
    sd = np.where(np.diagonal(normal) > 0, sd, np.inf)  # nothing depends on it
    found = model.coefficients()
    notes = [f"The readings do not determine {name}: its standard deviation is {s:.0%}." for name, s in zip(found, sd) if s > 0.5]
    return Coefficients(tuple(found), np.array(list(found.values())), sd, sigma, misfit, (*readings.notes, *notes))
