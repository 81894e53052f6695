"""Coefficients of the equation from the readings of sensors alone, by Gauss-Newton on rollouts of the classical solver.

The unknowns are factors on the given diffusion, decay, convective coefficients and latent heat, as a whole or one for each region.
Readings are not linear in them, so there are no kernels: a step takes 2p + 1 rollouts for p numbers. Linear unknowns may be asked
for at the same time (strengths of spots, boundary fluxes, the ambient value): then every step infers both from the readings
linearised in the factors (`posterior`), and kernels take the place of rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dgnet.arguments import Positive, checked
from dgnet.errors import InputError
from dgnet.models import Classical, few_threads, rollout
from dgnet.problems import Discretisation, SpotTable
from dgnet.problems.finer import prolonged, refined
from dgnet.sensors.factors import Factors
from dgnet.sensors.kernels import kernels
from dgnet.sensors.posterior import Answer, Posterior, Unknown, infer
from dgnet.sensors.priors import NUMBER, numbers
from dgnet.sensors.readings import Readings, cleaned, disagreeing, interpolation
from dgnet.sensors.recover import Recovered, responses_of, with_prior
from dgnet.sensors.sensor import first_state, rows
from dgnet.training.calibrate import linearised, newton_step

Tensor = torch.Tensor
Drive = Callable[[Tensor], Tensor]

_STEPS, _SETTLED = 20, 1e-5
_DIFFERENCE = 1e-2  # of a logarithm
_WIDE = 1.0  # standard deviation of a factor's logarithm before any reading, where linear unknowns are inferred with it


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Factors on the given coefficients.

    - `names` and `factors` [p]; `sd` [p]: standard deviations of their logarithms (relative errors), from noise and mesh
    - `mesh` [p]: the bias of the given mesh, taken off
    - `noise`: standard deviation of the readings, found from what the fit leaves unless given; `misfit`: that root mean square
    - `notes`: what was wrong with the readings, what they do not determine
    - `others`: the linear unknowns that were found with them, without the bias of the mesh; None where none were asked for
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
def recover_coefficients(problem: Discretisation, readings: Readings, names: Sequence[str], *, per_region: bool = False,
                         start: Tensor | None = None, source: Drive | None = None, noise: Positive | None = None,
                         also: Sequence[str] = (), spots: SpotTable | None = None) -> Coefficients:
    """Factors on coefficients that explain the readings best.

    - `problem`: with the coefficients that are the first guess
    - `readings`: as for `recover`
    - `names`: which of diffusion, decay, convection, latent (the heat of melting of the capacity's curve)
    - `per_region`: one factor for each region of the mesh (not of convection and latent heat)
    - `start` [N, F], `noise`: as for `recover`
    - `source`: what drives the part: averages over the steps [H, n, F] at points [n, d]
    - `also`: which of source, flux:BOUNDARY and ambient are unknown, too; `spots` as for `recover`

    They are fitted on the given mesh and on the mesh refined once. The scheme is of second order, so a third of the difference is
    added to the finer answer; what that leaves is taken to be as large again, and is in the standard deviations.
    """
    for name in also:
        if name in ("field", "start"):
            raise InputError(f"'{name}' and coefficients cannot be recovered at once: with as many numbers as nodes it explains "
                             "what coefficients would")
    begin = first_state(problem, start)
    readings = cleaned(readings, problem, None if start is None else float(begin.mean()))
    factors = Factors(names, per_region, problem)
    with torch.no_grad(), few_threads(problem.mesh.n_nodes):
        asked = _Asked(factors, readings, source, noise, tuple(also), spots)
        coarse = asked.fitted(problem, begin, np.zeros(len(factors.labels)))
        fine = asked.fitted(refined(problem), prolonged(problem.mesh)(begin, smooth=True), coarse.theta)
    rest = (fine.theta - coarse.theta) / 3
    sd = np.hypot(fine.sd, rest)
    notes = [f"The readings do not determine {name}: its standard deviation is {s:.0%}." for name, s in zip(factors.labels, sd)
             if s > 0.5]
    result = Coefficients(factors.labels, np.exp(fine.theta + rest), sd, -4 * rest, fine.noise, fine.misfit,
                          (*readings.notes, *fine.notes, *notes))
    return replace(result, others=_without_bias(coarse.others, fine.others)) if fine.others and coarse.others else result


def _without_bias(coarse: Recovered, fine: Recovered) -> Recovered:
    """The linear unknowns, extrapolated like the factors."""
    answers = {}
    for name, answer in fine.answers.items():
        rest = (answer.mean - coarse.answers[name].mean) / 3
        answers[name] = replace(answer, mean=answer.mean + rest, sd=np.hypot(answer.sd, rest))
    return replace(fine, answers=answers)


@dataclass(frozen=True, eq=False)
class _Fit:
    """On one mesh: logarithms of the factors [p] with their standard deviations, and the linear unknowns."""

    theta: np.ndarray
    sd: np.ndarray
    noise: float
    misfit: float
    others: Recovered | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Asked:
    factors: Factors
    readings: Readings
    source: Drive | None
    noise: float | None
    also: tuple[str, ...]
    spots: SpotTable | None

    def fitted(self, problem: Discretisation, begin: Tensor, theta: np.ndarray) -> _Fit:
        """Gauss-Newton to its end on one mesh, from theta on."""
        steps = int(np.ceil(self.readings.times[-1] / problem.dt - 1e-9))
        drive = None if self.source is None else self.source(torch.tensor(problem.mesh.points))[:steps].double()
        count = int(np.isfinite(self.readings.values).sum())
        if count <= len(theta):
            raise InputError(f"{count} readings cannot determine {len(theta)} coefficients")
        return self._jointly(problem, begin, drive, steps, theta) if self.also else self._alone(problem, begin, drive, steps, theta)

    def _alone(self, problem: Discretisation, begin: Tensor, drive: Tensor | None, steps: int, theta: np.ndarray) -> _Fit:
        w, there = rows(self.readings.sensors, problem), torch.from_numpy(np.isfinite(self.readings.values))
        at = torch.from_numpy(interpolation(self.readings.times, steps, problem.dt))
        wanted = torch.from_numpy(self.readings.values)[there]

        def residual(x: Tensor) -> Tensor:
            states = rollout(Classical(), self.factors.applied(problem, x.exp().tolist()), begin[None],
                             None if drive is None else drive[None], steps)[0]
            return (at @ torch.einsum("npf,spf->ns", states, w))[there] - wanted

        now = torch.from_numpy(theta.copy())
        for _ in range(_STEPS):
            before, (now, _) = now, newton_step(residual, now)
            if float((now - before).abs().max()) < _SETTLED:
                break
        left, J = (x.numpy() for x in linearised(residual, now))
        table, misfit = np.full(there.shape, np.nan), float(np.sqrt(np.square(left).mean()))
        table[there.numpy()] = left
        sigma = misfit * float(np.sqrt(len(left) / (len(left) - len(theta)))) if self.noise is None else self.noise
        normal = J.T @ J
        size = np.sqrt(np.diagonal(normal)).clip(1e-300)
        sd = sigma * np.sqrt(np.diagonal(np.linalg.pinv(normal / size[:, None] / size, 1e-12, hermitian=True))) / size
        sd = np.where(np.diagonal(normal) > 0, sd, np.inf)  # infinite: nothing depends on it
        return _Fit(now.numpy(), sd, sigma, misfit, notes=tuple(disagreeing(table, self.readings.sensors)))

    def _jointly(self, problem: Discretisation, begin: Tensor, drive: Tensor | None, steps: int, theta: np.ndarray) -> _Fit:
        """Factors and linear unknowns x: y = base(theta) + H(theta) x, linearised in theta where the last step led."""
        at, there = interpolation(self.readings.times, steps, problem.dt), np.isfinite(self.readings.values)
        y = self.readings.values[there]
        parts: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}

        def seen(x: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
            p = self.factors.applied(problem, np.exp(x).tolist())
            made = kernels(p, self.readings.sensors, steps)
            base = (at @ made.readings(drive, begin).double().numpy().T)[there]
            found = {name: responses_of(name, p, made, self.readings.sensors, self.spots, None) for name in self.also}
            parts.update({name: part[1:] for name, part in found.items()})
            return base, [np.einsum("tn,snj->tsj", at, R.double().numpy())[there] for R, _, _ in found.values()]

        def unknowns(H: list[np.ndarray], left: np.ndarray, now: Posterior | None) -> list[Unknown]:
            """With the lengths of the last answers, and without switches; with all of them where there are none."""
            out = [with_prior(name, R, parts[name][0], problem, steps, float(np.abs(left).max())) for name, R in zip(self.also, H)]
            if now is None:
                return out
            kept = [next(c for c in u.choices if c[1] == a.length) for u, a in zip(out, now.answers[-len(out):])]
            return [replace(u, choices=(c,), switched=None) for u, c in zip(out, kept)]

        base, H = seen(theta)
        first = infer(y - base, unknowns(H, y - base, None), self.noise)
        x = [a.mean for a in first.answers]
        found, change = first, np.inf
        for k in range(_STEPS + 1):
            last = change < 1e-3 or k == _STEPS
            ends = [[b + sum(R @ v for R, v in zip(Hs, x)) for b, Hs in map(seen, (theta + d, theta - d))]
                    for d in _DIFFERENCE * np.eye(len(theta))]
            J = np.stack([(up - down) / (2 * _DIFFERENCE) for up, down in ends], 1)
            left = y - base + J @ theta
            factors = Unknown("factors", J, (NUMBER,), numbers, strength=_WIDE)
            found = infer(left, [factors, *unknowns(H, y - base, None if last else found)], self.noise)
            if last:
                break
            step = found.answers[0].mean - theta
            change = float(np.abs(step).max())
            theta, x = theta + step * min(1.0, 1.0 / max(change, 1e-300)), [a.mean for a in found.answers[1:]]
            base, H = seen(theta)
        return self._joint_fit(theta, found, parts, problem.dt * np.arange(steps + 1), y - base - sum(
            R @ a.mean for R, a in zip(H, found.answers[1:])), there)

    def _joint_fit(self, theta: np.ndarray, found: Posterior, parts: dict[str, tuple[tuple[int, ...], tuple[str, ...]]],
                   times: np.ndarray, left: np.ndarray, there: np.ndarray) -> _Fit:
        fitted, misfit = np.full(there.shape, np.nan), float(np.sqrt(np.square(left).mean()))
        fitted[there] = self.readings.values[there] - left
        answers: dict[str, Answer] = {a.name: a for a in found.answers[1:]}
        shapes, columns = ({n: p[k] for n, p in parts.items()} for k in (0, 1))
        others = Recovered(answers, shapes, columns, times, found.noise, misfit, found.determined, self.readings, fitted, ())  # type: ignore[arg-type]
        return _Fit(theta, found.answers[0].sd, found.noise, misfit, others)
