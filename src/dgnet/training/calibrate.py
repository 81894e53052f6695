"""Few unknown coefficients at once: Gauss-Newton on rollouts, where Adam would need a hundred small steps.

    minimise |r(theta)|^2,   r = (rollout - data) / spread          theta: logarithms of the calibrated factors
    (J^T J) delta = -J^T r,  J by central differences of the rollout, so 2p + 1 rollouts a step for p numbers

The steps are deterministic and need no learning rate. Near the solution sigma^2 (J^T J)^-1 is the covariance of theta for
white noise sigma in the data (`uncertainty`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from dgnet.errors import InputError, SolveError
from dgnet.problems import Discretisation
from dgnet.training.recipe import Recipe, Stage

if TYPE_CHECKING:
    from dgnet.training.fit import Corpus

Tensor = torch.Tensor

_MOST = 64  # numbers; each costs two rollouts a step
_DIFFERENCE = 1e-2  # of the logarithm: the truncation error is of order 1e-5, as is rounding in float32
_LONGEST = 1.0  # step of a logarithm: a factor of e
LEARNED = ("geometry_net", "decode", "free", "reaction_net", "residual_net")
"""Names of everything else that a DGNet learns."""


def gauss_newton(model: nn.Module, base: Discretisation, train: Corpus, stage: Stage, scale: Tensor) -> float:
    """One step, halved until it makes the misfit smaller; returns the mean squared misfit before it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.no_grad():
        start = _flat(parameters)
        residual, jacobian = _linearised(model, base, train, stage, scale, parameters)
        normal = jacobian.T @ jacobian
        normal.diagonal().add_(1e-12 * normal.diagonal().max())  # a number that nothing depends on stays where it is
        delta = -torch.linalg.solve(normal, jacobian.T @ residual)
        delta = delta * min(1.0, _LONGEST / max(float(delta.abs().max()), 1e-300))
        before = float(residual.square().mean())
        for _ in range(6):
            _set(parameters, start + delta)
            try:
                after = float(_residual(model, base, train, stage, scale).square().mean())
            except SolveError:
                after = float("inf")
            if after <= before:
                return before
            delta = 0.5 * delta
        _set(parameters, start)
    return before


def uncertainty(model: nn.Module, base: Discretisation, train: Corpus, length: int) -> dict[str, list[float]]:
    """Standard errors of the calibrated logarithms (that is, relative errors of the factors), by parameter name.

    They take what is left of the misfit for white noise; what the mesh misses is a bias and not in them.
    """
    names = [name for name, _ in model.named_parameters() if name.startswith("calibration.")]
    parameters = [p for name, p in model.named_parameters() if name in names]
    stage = Stage(1, length, method="gauss-newton")
    with torch.no_grad():
        residual, jacobian = _linearised(model, base, train, stage, train.state.new_ones(()), parameters)
        covariance = residual.square().mean() * torch.linalg.inv(jacobian.T @ jacobian)
        errors = covariance.diagonal().sqrt()
    sizes = [p.numel() for p in parameters]
    return {n.removeprefix("calibration."): e.tolist() for n, e in zip(names, errors.split(sizes))}


def calibrated_first(plan: Recipe, steps: int, iterations: int = 8) -> Recipe:
    """The plan with its coefficients calibrated on whole trajectories before it, and again after each stage.

    In between they are held: they are stated as physics, so nothing else moves them. What the mesh gets wrong biases the first
    values; where corrections of the mass and the source take over a part of it, the next ones are closer.
    """
    calibration = Stage(iterations, steps, method="gauss-newton", only=("calibration",))
    again = replace(calibration, iterations=max(1, iterations // 2))
    stages = [calibration]
    for s in plan.stages:
        stages += [replace(s, only=s.only or LEARNED), again]
    return replace(plan, stages=tuple(stages))


# ---------------------------------------------------------------------- pieces


def _linearised(model: nn.Module, base: Discretisation, train: Corpus, stage: Stage, scale: Tensor,
                parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """r [m] and J [m, p] in float64."""
    start = _flat(parameters)
    if not 0 < len(start) <= _MOST:
        raise InputError(f"Gauss-Newton fits between 1 and {_MOST} numbers, not {len(start)}: name them by `only`")
    residual = _residual(model, base, train, stage, scale)
    columns = []
    for k in range(len(start)):
        ends = []
        for sign in (1.0, -1.0):
            moved = start.clone()
            moved[k] += sign * _DIFFERENCE
            _set(parameters, moved)
            ends.append(_residual(model, base, train, stage, scale))
        columns.append((ends[0] - ends[1]) / (2 * _DIFFERENCE))
    _set(parameters, start)
    return residual, torch.stack(columns, 1)


def _residual(model, base: Discretisation, train: Corpus, stage: Stage, scale: Tensor) -> Tensor:
    """Misfit of rollouts over back-to-back windows of all trajectories, [m] in float64."""
    length = min(stage.length, train.steps)
    starts = torch.arange(min(stage.first, train.steps - length), train.steps - length + 1, length)
    rows = torch.arange(len(train)).repeat_interleave(len(starts))
    data = train.windows(rows, starts.repeat(len(train)), length)
    misfit = ((data.predict(model, base) - data.state) / scale)[:, 1 + stage.skip:].double().flatten()
    if not bool(torch.isfinite(misfit).all()):
        raise SolveError("a rollout of the calibration is not finite")
    return misfit


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in parameters]) if parameters else torch.zeros(0, dtype=torch.float64)


def _set(parameters: list[nn.Parameter], values: Tensor) -> None:
    for p, part in zip(parameters, values.split([p.numel() for p in parameters])):
        p.copy_(part.view(p.shape))
