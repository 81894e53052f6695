"""Coefficients of the equation from the readings of sensors alone, by Gauss-Newton on rollouts of the classical solver.

The unknowns are factors on the given diffusion, decay, convective coefficients and latent heat, as a whole or one for each region.
Readings are not linear in them, so there are no kernels: a step takes 2p + 1 rollouts for p numbers. Linear unknowns may be asked
for at the same time (strengths of spots, boundary fluxes, the ambient value): then every step infers both from the readings
linearised in the factors (`recover.Question`), and kernels take the place of rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError
from dgnet.inverse.factors import Factors
from dgnet.inverse.readings import Readings, disagreeing
from dgnet.inverse.recover import FACTORS, Known, Question, Recovered
from dgnet.inverse.sensor import Averages
from dgnet.models import few_threads
from dgnet.problems import Problem, SpotTable
from dgnet.problems.sources import Source

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Factors on the given coefficients.

    - `names` and `factors` [p]; `sd` [p]: standard deviations of their logarithms (relative errors), from noise, mesh and step
    - `mesh` [p]: the bias of the given mesh and step, taken off
    - `noise`: standard deviation of the readings, as given or found; `misfit`: root mean square of what the fit leaves
    - `notes`: what was wrong with the readings, what they do not determine
    - `others`: the other unknowns that were found with them; None where none were asked for
    """

    names: tuple[str, ...]
    factors: np.ndarray
    sd: np.ndarray
    mesh: np.ndarray
    noise: float
    misfit: float
    notes: tuple[str, ...]
    others: Recovered | None = None


@checked
def recover_coefficients(problem: Problem, readings: Readings, names: Sequence[str], *, per_region: bool = False,
                         start: Tensor | None = None, source: Source | Averages | None = None, noise: Positive | None = None,
                         also: Sequence[str] = (), spots: SpotTable | None = None, finer: bool = True) -> Coefficients:
    """Factors on coefficients that explain the readings best.

    - `problem`: with the coefficients that are the first guess
    - `readings`: as for `recover`
    - `names`: which of diffusion, decay, convection, latent (the heat of melting of the capacity's curve)
    - `per_region`: one factor for each region of the mesh (not of convection and latent heat)
    - `start` [N, F], `source`, `noise`, `finer`: as for `recover`
    - `also`: which of source, flux:BOUNDARY, ambient and lag are unknown, too; `spots` as for `recover`

    They are fitted on the given mesh, and again without what solutions on finer meshes with smaller steps say that it gets wrong of
    the readings; what that leaves is in the standard deviations.
    """
    if not names:
        raise InputError("name at least one coefficient: diffusion, decay, convection or latent")
    for name in also:
        if name in ("field", "start"):
            raise InputError(f"'{name}' and coefficients cannot be recovered at once: with as many numbers as nodes it explains "
                             "what coefficients would")
    factors = Factors(names, per_region, problem)
    question = Question(problem, readings, also, Known.of(problem, start, source, spots), noise=noise, factors=factors, finer=finer)
    count = int(question.there.sum())
    if count <= len(factors.labels):
        raise InputError(f"{count} readings cannot determine {len(factors.labels)} coefficients")
    with torch.no_grad(), few_threads(problem.mesh.n_nodes):
        fit = question.settled()
        found, answer = question.recovered(fit), fit.found.answer(FACTORS)
    notes = [f"The readings do not determine {name}: its standard deviation is {s:.0%}."
             for name, s in zip(factors.labels, answer.sd) if s > 0.5]
    bias = fit.first[:len(factors.labels)] - answer.mean
    return Coefficients(factors.labels, np.exp(answer.mean), answer.sd, bias, found.noise, found.misfit,
                        (*found.notes, *disagreeing(fit.left, found.readings.sensors), *notes), found if also else None)
