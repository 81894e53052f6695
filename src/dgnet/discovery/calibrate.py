"""Calibration of a few coefficients by Gauss-Newton on rollouts; Adam would need a hundred small steps.

    minimise |r(theta)|^2,   r = (rollout - data) / spread          theta: logarithms of the calibrated factors
    (J^T J) delta = -J^T r,  J by central differences of the rollout, so 2p + 1 rollouts a step for p numbers

The steps are deterministic and need no learning rate. How sure the numbers are is told by `uncertainty`: noise in the data makes
them scatter, the mesh and the time step bias them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from dgnet.arguments import checked
from dgnet.data import Corpus
from dgnet.discovery.least_squares import Differences, Found, least_squares
from dgnet.errors import SolveError
from dgnet.models.dgnet import DGNet
from dgnet.models.timeloop import few_threads, rollout
from dgnet.problems import Problem, Source, step_average
from dgnet.problems.finer import half_steps, prolonged, refined
from dgnet.recipe import Recipe, Stage
from dgnet.scoring.judge import predict

Tensor = torch.Tensor

_LONGEST = 1.0  # step of a logarithm: a factor of e
_FINEST, _FINE = 100_000, 30_000_000  # nodes of the refined mesh, and of all its states and fields, where its bias is estimated
LEARNED = ("geometry_net", "decode", "free", "reaction_net", "residual_net")
"""Names of everything else that a DGNet learns."""


def gauss_newton(model: nn.Module, base: Problem, train: Corpus, stage: Stage, scale: Tensor) -> float:
    """One step, halved until the misfit does not grow; returns the mean squared misfit before it."""
    return _fitted(model, base, train, stage, scale, [p for p in model.parameters() if p.requires_grad], rounds=1).history[0]


@dataclass(frozen=True)
class Bar:
    """Error bar of one calibrated factor. All errors are relative."""

    factor: float  # as the model has it
    best: float  # without the bias of mesh and step, as far as it can be estimated
    error: float  # the true factor is expected in best * exp(-error) .. best * exp(error)
    noise: float  # standard error, with what the fit leaves taken for white noise
    mesh: float  # bias of the spacing, not a number where it was not estimated
    step: float  # bias of the time step, likewise

    def __str__(self) -> str:
        def signed(x: float) -> str:
            return f"{x:+.1%}" if abs(x) >= 1e-3 else f"{x:+.1g}"

        if not self.error < 1:
            return "not determined by these data"
        if math.isnan(self.mesh):
            return f"{self.best:.4g} ± {self.error:.1%}, the bias of the mesh not included: too many nodes to refine it"
        return (f"{self.best:.4g} ± {self.error:.1%} without the bias of the mesh ({signed(self.mesh)}) and of the time step "
                f"({signed(self.step)}), both estimated by halving; noise ±{self.noise:.1g}")


@checked
def uncertainty(model: DGNet, base: Problem, train: Corpus, source: Source | None = None) -> dict[str, Bar]:
    """Error bars of the calibrated factors, named as in `model.coefficients()`.

    - `model`: a fitted `DGNet` with calibrated coefficients
    - `base`: the problem, with the coefficients that were the first guess
    - `train`: the trajectories it was fitted to
    - `source`: f(x [n, d], t [T]) -> [B, T, n, F] where it is known as a function: much more precise than its nodal values

    Noise: sigma^2 (J^T J)^-1 with sigma^2 the mean square of what the fit leaves. Bias: the coefficients are fitted once more with
    the classical solver (no corrections learned), on the given mesh and step, on the mesh refined once, and with half the step;
    for a scheme of second order b = 4/3 (theta_h - theta_h/2) each. `best` has both taken off, and may be wrong by as much: its
    error is sqrt((2 noise)^2 + b^2 + ...), which covers orders of convergence from 0.8 on.

    Of the start and the source only nodal values are known. Between them they are interpolated, linearly and by a cubic; the part
    of b that hangs on it counts on its own, so that it cannot hide another one of opposite sign: the larger of |b| and
    sqrt(b_1^2 + b_2^2) is taken, b = b_1 + b_2.

    Most of the cost are 4 rollouts on the refined mesh (2 with `source`). With more than 100,000 nodes there it is left out, and
    where states would take too much memory only the first trajectories are looked at.

        >>> import dgnet as dg, torch
        >>> mesh = dg.box((4, 4))
        >>> true, guess = (dg.Problem(mesh, dg.PDE(diffusion=D), [], dt=0.1) for D in (0.03, 0.06))
        >>> start = torch.tensor(mesh.points[:, :1]).cos()[None]
        >>> data = dg.Corpus(dg.rollout(dg.Classical(), true, start, steps=10), None, None, 0.1, (0.0,))
        >>> model = dg.DGNet(dg.DGNetConfig(decoder="none", calibrate=("diffusion",)), guess).double()
        >>> _ = dg.fit(model, guess, data, data, dg.Recipe("short", (dg.Stage(4, 10, method="gauss-newton"),)))
        >>> bar = dg.uncertainty(model, guess, data)["diffusion"]
        >>> round(bar.factor, 3), bar.noise < 1e-3 < bar.error  # no noise in these data, but a coarse mesh
        (0.5, True)
    """
    exact, data = replace(base, dtype=torch.float64), train.to(torch.float64)
    twin = _classical_twin(model, exact)
    parameters, stage = [twin.calibration[name] for name in model.config.calibrate], Stage(1, data.steps, method="gauss-newton")
    fine = base.mesh.n_nodes * 2**base.mesh.dim
    rows = min(len(data), _FINE // (fine * data.steps * model.fields)) if fine <= _FINEST else 0
    with torch.no_grad(), few_threads(base.mesh.n_nodes, str(base.device)):
        jacobian, square = _converged(twin, exact, data, stage, parameters)
        theta = _flat(parameters)
        noise = (square * _inverse(jacobian.T @ jacobian).diagonal()).sqrt()
        noise = torch.where(jacobian.any(0), noise, math.inf)  # nothing depends on it
        mesh = plain = step = torch.full_like(noise, math.nan)
        if rows:
            if rows < len(data):
                data = data.part(range(rows))
                jacobian, _ = _converged(twin, exact, data, stage, parameters)
            here, fitted = _flat(parameters), partial(_fitted_elsewhere, twin, exact, data, parameters, jacobian, source)
            mesh, step = (4 / 3 * (here - fitted(kind)) for kind in ("mesh", "step"))
            plain = mesh if source is not None else 4 / 3 * (here - fitted("mesh, linear"))
        spread = torch.maximum(mesh.abs(), torch.hypot(plain, mesh - plain)).nan_to_num()
        error = (4 * noise.square() + spread.square() + step.nan_to_num().square()).sqrt()
        best = (theta - mesh.nan_to_num() - step.nan_to_num()).exp()
    found = model.coefficients()
    columns = zip(found, found.values(), *(x.tolist() for x in (best, error, noise, mesh, step)))
    return {name: Bar(*numbers) for name, *numbers in columns}


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


@torch.no_grad()
def _fitted(model: nn.Module, base: Problem, train: Corpus, stage: Stage, scale: Tensor, parameters: list[nn.Parameter],
            rounds: int) -> Found[Differences]:
    """Gauss-Newton for the parameters of a model, in place."""
    def residual(theta: Tensor) -> Tensor:
        _set(parameters, theta)
        return _residual(model, base, train, stage, scale)

    found = least_squares(lambda theta: Differences(residual, theta), _flat(parameters), rounds=rounds, longest=_LONGEST,
                          settled=1e-4)
    _set(parameters, found.theta)
    return found


def _residual(model, base: Problem, train: Corpus, stage: Stage, scale: Tensor) -> Tensor:
    """Misfit of rollouts over back-to-back windows of all trajectories, [m] in float64."""
    length = min(stage.length, train.steps)
    starts = torch.arange(min(stage.first, train.steps - length), train.steps - length + 1, length)
    rows = torch.arange(len(train)).repeat_interleave(len(starts))
    data = train.windows(rows, starts.repeat(len(train)), length)
    misfit = ((predict(model, base, data) - data.state) / scale)[:, 1 + stage.skip:].double().flatten()
    if not bool(torch.isfinite(misfit).all()):
        raise SolveError("a rollout of the calibration is not finite")
    return misfit


def _classical_twin(model: DGNet, base: Problem) -> DGNet:
    """The same equation, calibrated numbers and reaction, with nothing else learned; in double precision."""
    twin, held = DGNet(model.config.bare(), base), model.state_dict()
    twin.load_state_dict({name: held[name] for name in twin.state_dict()})
    twin = twin.to(base.device).double()
    for name, p in twin.named_parameters():
        p.requires_grad_(name.startswith("calibration."))
    return twin


def _converged(model: DGNet, base: Problem, data: Corpus, stage: Stage,
               parameters: list[nn.Parameter]) -> tuple[Tensor, float]:
    """Gauss-Newton to the end; J and the mean squared residual there."""
    found = _fitted(model, base, data, stage, data.spread, parameters, rounds=8)
    jacobian = found.point.jacobian
    _set(parameters, found.theta)
    return jacobian, found.point.square


def _fitted_elsewhere(model: DGNet, base: Problem, data: Corpus, parameters: list[nn.Parameter], jacobian: Tensor,
                      source: Source | None, kind: str) -> Tensor:
    """The numbers that fit the data on the refined mesh, or with half the step. J hardly changes, so it is kept."""
    start, normal = _flat(parameters), _inverse(jacobian.T @ jacobian)
    for _ in range(2):
        states = _finer_states(model, base, data, source, kind)
        residual = ((states - data.state) / data.spread)[:, 1:].flatten()
        _set(parameters, _flat(parameters) - normal @ (jacobian.T @ residual))
    found = _flat(parameters)
    _set(parameters, start)
    return found


def _finer_states(model: DGNet, base: Problem, data: Corpus, source: Source | None, kind: str) -> Tensor:
    """Rollouts [B, T+1, N, F] on the refined mesh or with half the step, at the data's nodes and times."""
    out, up, smooth = data.state.clone(), prolonged(base.mesh), kind == "mesh"
    for rows in data.together(base):
        part = data.part(rows)
        problem, u, f, parts = part.problem(base), part.state[:, 0], part.source_average, 1
        if kind == "step":
            problem, f, parts = replace(problem, dt=0.5 * problem.dt), None if f is None else half_steps(f), 2
        else:
            problem, u, f = refined(problem), up(u, smooth), None if f is None or source is not None else up(f, smooth)
        if source is not None:
            times = part.clock(base) + problem.dt * torch.arange(parts * data.steps, dtype=torch.float64)
            f = step_average(source, torch.tensor(problem.mesh.points), times, problem.dt)
            f = f.expand(len(data), -1, -1, -1)[rows].to(u)

        def keep(k: int, state: Tensor, rows: list[int] = rows, parts: int = parts) -> None:
            if k % parts == 0:
                out[rows, k // parts] = state[:, :out.shape[2]]

        rollout(model, problem, u, f, parts * data.steps, t0=part.clock(base), sink=keep)
    return out


def _inverse(normal: Tensor) -> Tensor:
    """Of J^T J; a number that nothing depends on gets an error without bound instead of stopping the rest."""
    return torch.linalg.inv(normal + torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
                            * (1e-14 * normal.diagonal().max() + 1e-300))


def _flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in parameters]) if parameters else torch.zeros(0, dtype=torch.float64)


def _set(parameters: list[nn.Parameter], values: Tensor) -> None:
    for p, part in zip(parameters, values.split([p.numel() for p in parameters])):
        p.copy_(part.view(p.shape))
