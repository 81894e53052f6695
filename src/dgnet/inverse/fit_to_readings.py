"""Training from sensors alone: what a DGNet learns, from readings at points instead of whole fields.

    minimise  |(readings of the rollout - readings) / size|^2 / c + sum of alpha_b theta_b' P_b theta_b + rho theta' theta

First the numbers that state physics: calibrated coefficients, a reaction (a spline of one field, terms of several), curves of the
material. Gauss-Newton on whole rollouts; c, the variance of what is left, and the smoothness alpha of each curve are those with
most evidence; terms that the readings cannot tell from zero go. Then the corrections of the operator by gradient descent through
the rollouts, judged by readings that they did not see: of the last experiment, or of every fourth sensor where there is but one.
Corrections of single nodes and edges (`free`) are left out: few sensors cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from dgnet.discovery import Differences, Found, Prior, least_squares, splines
from dgnet.errors import InputError, SolveError
from dgnet.inverse.readings import Readings, interpolation, steps_until
from dgnet.inverse.sensor import delayed, field_number, rows
from dgnet.models import few_threads, rollout
from dgnet.models.dgnet import DGNet, Material, Reaction
from dgnet.problems import Problem
from dgnet.recipe import Recipe, Stage
from dgnet.training import Loop

Tensor = torch.Tensor

_ROUNDS, _SETTLED = 10, 2e-3  # of Gauss-Newton, and the largest change of a number after which it ends
_SHARES = (0.25, 0.5, 1.0)  # of the time: long rollouts with a wrong reaction are far from linear in it
_LONGEST = 1.0  # of a step of Gauss-Newton: a factor of e of what has a logarithm, the usual size of a reaction
_FREE = {"curve": 1.0, "other": 10.0}  # standard deviations before any reading
_SURE = 3.0  # standard deviations by which a term of a reaction must differ from zero
_RATE, _UPDATES, _LOOK = 3e-3, 400, 5  # learning rate, most updates of the operator, updates between two looks at what is held out
_KNOWN = 0.5  # a number whose standard deviation is above this share of that before any reading is not determined


@dataclass(frozen=True, eq=False)
class Experiment:
    """Readings, the start [N, F] and what drove it: averages over the steps [H, N, F], or None."""

    readings: Readings
    start: Tensor
    source: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Learned:
    """What readings taught a model.

    - `before`, `numbers`, `after`: root mean square of what rollouts leave of all readings, over the spread of the readings:
      untrained, with the numbers found, and with the operator's corrections
    - `held`: the same of the readings that judged the corrections, before and after them; None where there are no corrections
    - `determined`: how many of `unknowns` numbers the readings determine
    - `sd`: relative standard deviations of calibrated coefficients, by their names
    - `notes`: what was wrong with the readings, what they do not determine
    """

    before: float
    numbers: float
    after: float
    held: tuple[float, float] | None
    determined: float
    unknowns: int
    sd: dict[str, float]
    notes: tuple[str, ...]


def learn(model: DGNet, base: Problem, experiments: Sequence[Experiment], *, seconds: float = 60.0) -> Learned:
    """Fit a model in place to the readings of experiments.

    - `model`: a fresh `DGNet` in double precision; its settings say what is unknown
    - `base`: the problem, in double precision
    - `experiments`: one or more; starts and sources are taken as known
    - `seconds`: for the corrections of the operator
    """
    if not experiments:
        raise InputError("there is no experiment to learn from")
    with few_threads(base.mesh.n_nodes):
        readings = _ReadingsModel(model, base, experiments)
        model.fit_statistics(readings.states(), readings.source, base.dt)
        before, fit = readings.size(), _NumbersFit(readings, _blocks(model))
        fit.run()
        numbers, sd = readings.size(), fit.conclude(model)
        held = _corrections(model, readings, seconds)
        notes = [note for e in experiments for note in e.readings.notes]
        if fit.determined < 0.9 * fit.count:
            notes.append(f"{readings.count} readings determine {fit.determined:.1f} of {fit.count} numbers; the rest follows from "
                         "smoothness and from what was assumed before.")
        notes += [f"The readings do not determine {name}." for name, value in sd.items() if not value < _KNOWN]
        if held is not None and not held[1] < held[0]:
            notes.append("Corrections of the operator did not lower the misfit of readings that were held out: they stay zero.")
        return Learned(before, numbers, readings.size(), held, fit.determined, fit.count, sd, tuple(dict.fromkeys(notes)))


class _ReadingsModel:
    """All experiments at once: rollouts of the model as the sensors read them."""

    def __init__(self, model: DGNet, base: Problem, experiments: Sequence[Experiment]) -> None:
        self.model, self.base = model, base
        self.steps = max(steps_until(e.readings.times[-1], base.dt) for e in experiments)
        self.start = torch.stack([e.start.double() for e in experiments])
        self.source: Tensor | None = None
        if any(e.source is not None for e in experiments):
            self.source = torch.zeros(len(experiments), self.steps, *self.start.shape[1:], dtype=torch.float64)
            for own, e in zip(self.source, experiments):
                if e.source is not None:
                    own[: len(e.source)] = e.source[: self.steps]
        self.at = [torch.from_numpy(interpolation(e.readings.times, self.steps, base.dt)) for e in experiments]
        self.rows = [rows(e.readings.sensors, base) for e in experiments]
        self.lags = [[s.lag for s in e.readings.sensors] for e in experiments]
        self.there = [torch.from_numpy(np.isfinite(e.readings.values)) for e in experiments]
        self.wanted = torch.cat([torch.from_numpy(e.readings.values)[t] for e, t in zip(experiments, self.there)])
        field = [np.broadcast_to([field_number(s, base) for s in e.readings.sensors], e.readings.values.shape) for e in experiments]
        number = torch.cat([torch.from_numpy(f.copy())[t] for f, t in zip(field, self.there)])
        middle = self.start.mean((0, 1))
        self.unit = torch.ones_like(self.wanted)
        for f in number.unique().tolist():
            own = number == f
            self.unit[own] = (self.wanted[own] - middle[f]).square().mean().sqrt().clamp(min=1e-12)
        self.count, last = len(self.wanted), len(experiments) - 1
        trial = [torch.full_like(t, k == last and last > 0) for k, t in enumerate(self.there)]
        if last == 0:
            trial[0][:, ::4] = len(experiments[0].readings.sensors) > 3
        self.held = torch.cat([h[t] for h, t in zip(trial, self.there)])
        when = torch.cat([torch.from_numpy(e.readings.times)[:, None].expand(t.shape)[t] for e, t in zip(experiments, self.there)])
        self.step = torch.ceil(when / base.dt - 1e-9)  # the step after which a reading can be told
        self.values = [(e.readings.values, f) for e, f in zip(experiments, field)]

    def states(self) -> Tensor:
        """Starts and readings as states [1, 2, n, F], which tell the model the range of its fields and how quickly they change."""
        columns = []
        for f in range(self.base.n_fields):
            pairs = [np.stack([v[:-1][m], v[1:][m]]) for v, own in self.values
                     for m in [(own[1:] == f) & np.isfinite(v[:-1]) & np.isfinite(v[1:])]]
            first = self.start[..., f].flatten().numpy()
            columns.append(np.concatenate([*pairs, np.stack([first, first])], axis=1))
        length = max(c.shape[1] for c in columns)
        return torch.from_numpy(np.stack([np.resize(c, (2, length)) for c in columns], -1))[None]

    def residual(self, share: float = 1.0) -> Tensor:
        """[m], over the spread of the readings, those of the first share of the time; differentiable in the model's weights."""
        steps = max(1, round(share * self.steps))
        states = rollout(self.model, self.base, self.start, None if self.source is None else self.source[:, :steps], steps)
        found = [(at[:, : steps + 1] @ delayed(torch.einsum("npf,spf->sn", own, w), lags, self.base.dt).T)[t]
                 for own, at, w, lags, t in zip(states, self.at, self.rows, self.lags, self.there)]
        out = ((torch.cat(found) - self.wanted) / self.unit)[self.step <= steps]
        if not bool(torch.isfinite(out).all()):
            raise SolveError("a rollout of the fit to readings is not finite")
        return out

    def size(self, which: Tensor | None = None) -> float:
        with torch.no_grad():
            found = self.residual()
            return float((found if which is None else found[which]).square().mean().sqrt())


# ---------------------------------------------------------------------- numbers of the physics


@dataclass(frozen=True, eq=False)
class _Block:
    """weights = basis @ theta: numbers that belong together; `free`: their standard deviation before any reading."""

    name: str
    weights: nn.Parameter
    basis: Tensor  # [weights, K]
    smooth: bool
    free: float


def _blocks(model: DGNet) -> list[_Block]:
    """What is unknown about the physics, in few numbers."""
    reaction, material = model.part(Reaction), model.part(Material)

    def single(name: str, weights: nn.Parameter) -> _Block:
        return _Block(name, weights, torch.eye(weights.numel(), dtype=torch.float64), False, _FREE["other"])

    found = [single(name, model.calibration[name]) for name in model.config.calibrate]
    if reaction is not None and model.config.reaction == "learned":
        if reaction.library is not None:
            found.append(single("terms", reaction.library.values))
        elif reaction.table is not None:
            table = reaction.table.values
            found.append(_Block("reaction", table, splines(len(table)), True, _FREE["other"]))
        else:
            raise InputError("a reaction that is a network cannot be learned from readings: leave the model's settings out")
    curves = {} if material is None else material.curves()
    return found + [_Block(name, curve.values, splines(len(curve.values)), True, _FREE["curve"]) for name, curve in curves.items()]


class _NumbersFit:
    """Gauss-Newton on all numbers, with the noise and the smoothness of most evidence."""

    def __init__(self, readings: _ReadingsModel, blocks: list[_Block]) -> None:
        self.readings, self.blocks = readings, blocks
        self.theta = torch.zeros(self.count, dtype=torch.float64)
        self.prior, self.covariance = self.assumed(), torch.eye(self.count, dtype=torch.float64)

    @property
    def count(self) -> int:
        return sum(b.basis.shape[1] for b in self.blocks)

    @property
    def determined(self) -> float:
        return self.prior.used

    @property
    def slices(self) -> list[slice]:
        ends = np.cumsum([0, *(b.basis.shape[1] for b in self.blocks)])
        return [slice(int(a), int(b)) for a, b in pairwise(ends)]

    def assumed(self) -> Prior:
        """Before any reading."""
        free = [torch.full((b.basis.shape[1],), b.free, dtype=torch.float64) for b in self.blocks]
        return Prior(self.count, tuple(s for b, s in zip(self.blocks, self.slices) if b.smooth), torch.cat(free) if free else None)

    def put(self, theta: Tensor) -> None:
        for b, s in zip(self.blocks, self.slices):
            b.weights.copy_((b.basis @ theta[s]).view_as(b.weights).to(b.weights))

    @torch.no_grad()
    def run(self) -> None:
        if not self.blocks:
            return
        for share in _SHARES:
            self.descend(share)
        while self.dropped():
            self.descend(1.0)
        self.put(self.theta)

    def descend(self, share: float) -> None:
        def residual(theta: Tensor) -> Tensor:
            self.put(theta)
            return self.readings.residual(share)

        found: Found[Differences] = least_squares(lambda theta: Differences(residual, theta), self.theta, self.prior,
                                                  rounds=_ROUNDS, longest=_LONGEST, settled=_SETTLED)
        self.theta, self.prior, self.covariance = found.theta, found.prior, found.covariance

    def dropped(self) -> bool:
        """Leave out the terms of a reaction that the readings cannot tell from zero, the least sure half of them at once."""
        for k, (b, s) in enumerate(zip(self.blocks, self.slices)):
            if b.name != "terms":
                continue
            sure = self.theta[s].abs() / self.covariance.diagonal()[s].sqrt()
            weak = int((sure < _SURE).sum())
            if not weak or len(sure) < 2:
                return False
            stay = sure.argsort()[max(1, weak // 2):].sort().values
            every = torch.arange(self.count)
            self.theta = self.theta[torch.cat([every[: s.start], s.start + stay, every[s.stop:]])]
            self.blocks[k] = replace(b, basis=b.basis[:, stay])
            self.prior = replace(self.assumed(), alpha=self.prior.alpha, c=self.prior.c)
            return True
        return False

    @torch.no_grad()
    def conclude(self, model: DGNet) -> dict[str, float]:
        """Standard deviations into the model's parts; those of calibrated coefficients by their names."""
        reaction, material, found = model.part(Reaction), model.part(Material), []
        for b, s in zip(self.blocks, self.slices):
            covariance = b.basis @ self.covariance[s, s] @ b.basis.T
            sd = covariance.diagonal().clamp(min=0).sqrt()
            if b.name in model.config.calibrate:
                found += sd.tolist()
            elif material is not None and b.name in material.curves():
                material.curves()[b.name].covariance.copy_(covariance)
            elif reaction is not None and reaction.library is not None:
                own = reaction.library
                own.active.copy_((b.basis.abs().sum(1) > 0).view_as(own.active).to(own.active))
                own.deviation.copy_(sd.view_as(own.deviation).to(own.deviation))
            elif reaction is not None and reaction.table is not None:
                u = reaction.table.where() * model.std.double() + (0.0 if model.config.odd_reaction else model.mean.double())
                slopes = reaction.features(u[:, None], model.scales)[:, 0].double()
                reaction.table.deviation.copy_((slopes @ covariance * slopes).sum(1).clamp(min=0).sqrt())
        return dict(zip(model.coefficients(), found)) if found else {}


# ---------------------------------------------------------------------- corrections of the operator


class _Corrections(Loop):
    """Corrections of the operator, judged by readings that are held out."""

    def __init__(self, model: DGNet, readings: _ReadingsModel, weights: tuple[str, ...], seconds: float) -> None:
        stage = Stage(_UPDATES, 1, lr=_RATE, end=1.0, only=weights)
        super().__init__(model, Recipe("readings", (stage,), validations=_UPDATES // _LOOK), seconds)
        self.readings = readings

    def step(self, stage: Stage) -> float:
        return self.descend(self.readings.residual()[~self.readings.held].square().mean())

    def error(self) -> float:
        return self.readings.size(self.readings.held)


def _corrections(model: DGNet, readings: _ReadingsModel, seconds: float) -> tuple[float, float] | None:
    """Descend while it helps the readings that are held out; their misfit before and after. None where nothing can be corrected."""
    numbers = ("calibration.", "reaction_net.", "material.")
    weights = tuple(n for n, _ in model.named_parameters() if not n.startswith(numbers))
    if not weights or not bool(readings.held.any()):
        return None
    progress = _Corrections(model, readings, weights, seconds).fit()
    return progress.history[0]["validation"], progress.best
