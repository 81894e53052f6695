"""Bands on predictions: how far a rollout may be from the truth, by split conformal prediction on unseen trajectories.

    |u_true - u| <= q w s(x, t)        w: distance from the training data (`distance`), s: local size of the error

s is a sum with weights >= 0 of the typical error at that time, of how far the field is from its start and of how much it bends
between neighbours, fitted to the errors on training trajectories. It gives the band its shape. q follows from n other trajectories,
by their scores z = |error| / (w s). Its promises need nothing but that a new trajectory comes from where these come from:

- on average over trajectories, at least the share L of all values (nodes, times, fields) lies inside: the smallest q for which
  (n R(q) + 1) / (n + 1) <= 1 - L, R the share of values outside (conformal risk control);
- everywhere: with a probability of at least L no value of the whole trajectory lies outside: q is number ceil((n + 1) L) of the
  sorted largest scores.

With n trajectories no promise can be above n / (n + 1); where more is asked for, that much is promised.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from dgnet.data import Corpus, Dataset
from dgnet.errors import InputError
from dgnet.files import read_json, write_json
from dgnet.mesh import Mesh
from dgnet.models import few_threads
from dgnet.problems import base_problem
from dgnet.scoring import judge_file, predict
from dgnet.training import Run, Simulator
from dgnet.trust.distance import Known, profiles_of

Tensor = torch.Tensor

FILE = "bands.json"
LEVELS = (0.8, 0.9, 0.95)
_SHAPED, _PROFILED = 8, 100  # training trajectories that shape a band, and that distances are measured from
_POINTS = 20_000  # values of a trajectory that are looked at
_LEAST = 1e-3  # of the typical error: the least that a value may be wrong
_ROUNDING = 1e-6  # of the spread of the states


class Bends:
    """How far every node is from the mean of its neighbours: what linear elements miss is in proportion to it."""

    def __init__(self, mesh: Mesh) -> None:
        self.i, self.j = np.concatenate([mesh.edges, mesh.edges[:, ::-1]]).T
        order = np.argsort(self.i, kind="stable")
        self.i, self.j = self.i[order], self.j[order]
        self.first, self.count = np.searchsorted(self.i, np.arange(mesh.n_nodes)), np.bincount(self.i)[:, None]

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Of states [..., N, F]."""
        return np.abs(np.add.reduceat(u[..., self.j, :] - u[..., self.i, :], self.first, axis=-2) / self.count)


@dataclass(frozen=True, eq=False)
class Shape:
    """s(x, t): the typical error over time [T+1, F] and the weights [3, F] of what it is made of; `least` [F] is never undercut."""

    typical: np.ndarray
    weights: np.ndarray
    least: np.ndarray
    dt: float

    @classmethod
    def of(cls, states: np.ndarray, truth: np.ndarray, dt: float, bends: Bends) -> Shape:
        """From rollouts [B, T+1, N, F] on training trajectories and the truth."""
        error = np.abs(states - truth)
        least = _ROUNDING * truth.std((0, 1, 2)) + 1e-300
        typical = np.maximum(error.mean((0, 2)), least)
        parts = _parts(states, states[:, :1], np.broadcast_to(typical[None, :, None], states.shape), bends)
        chosen = np.random.default_rng(0).integers(0, error[:, 1:, :, 0].size, _POINTS)
        weights = np.zeros((3, len(least)))
        for f in range(len(least)):
            unit = parts[0][:, 1:, :, f].reshape(-1)[chosen]
            A = np.stack([p[:, 1:, :, f].reshape(-1)[chosen] / unit for p in parts], 1)
            weights[:, f] = nnls(A, error[:, 1:, :, f].reshape(-1)[chosen] / unit)[0]
        return cls(typical, weights, least, dt)

    def at(self, t: np.ndarray, u: np.ndarray, start: np.ndarray, bends: Bends) -> np.ndarray:
        """s [..., T, N, F] of states at times t [T] that began with `start` [..., 1, N, F]; zero at the start itself.

        Beyond the times of training the typical error grows in proportion to the time.
        """
        times = self.dt * np.arange(len(self.typical))
        usual = np.stack([np.interp(t, times, column) for column in self.typical.T], -1) * np.maximum(1.0, t / times[-1])[:, None]
        parts = _parts(u, start, np.broadcast_to(usual[:, None], u.shape), bends)
        size = sum(w * p for w, p in zip(self.weights, parts))
        return np.maximum(size, np.maximum(_LEAST * usual, self.least)[:, None]) * (t > 0)[:, None, None]


def _parts(u: np.ndarray, start: np.ndarray, usual: np.ndarray, bends: Bends) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return usual, np.abs(u - start), bends(u)


@dataclass(frozen=True)
class Promise:
    """A level that was asked for: q of the average and of everywhere, and what each of them promises."""

    level: float
    average: float
    average_promised: float
    everywhere: float
    everywhere_promised: float


@dataclass(frozen=True, eq=False)
class Bands:
    """What a run needs to put bands on its rollouts; RUN/bands.json.

    - `shape`: of the error; `known`: the training data that distances are measured from
    - `promises`: by level
    - `trajectories`: that calibrated it, none of which training saw
    - `weights`: checksum of the run's weights
    """

    shape: Shape
    known: Known
    promises: tuple[Promise, ...]
    trajectories: int
    weights: str

    def promise(self, level: float) -> Promise:
        for found in self.promises:
            if math.isclose(found.level, level):
                return found
        raise InputError(f"there are bands of {', '.join(f'{p.level:g}' for p in self.promises)}, not of {level:g}")

    def as_dict(self) -> dict[str, Any]:
        return {"trajectories": self.trajectories, "weights": self.weights, "promises": [vars(p) for p in self.promises],
                "known": self.known.as_dict(),
                "shape": {"typical": self.shape.typical.tolist(), "weights": self.shape.weights.tolist(),
                          "least": self.shape.least.tolist(), "dt": self.shape.dt}}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Bands:
        s = found["shape"]
        typical, weights, least = (np.array(s[key], dtype=np.float64) for key in ("typical", "weights", "least"))
        shape = Shape(typical, weights, least, float(s["dt"]))
        return cls(shape, Known.from_dict(found["known"]), tuple(Promise(**p) for p in found["promises"]),
                   int(found["trajectories"]), str(found["weights"]))


@dataclass(frozen=True, eq=False)
class Scores:
    """z of n trajectories at some of their values [n, P], the largest of all of their values [n], and their widening w [n]."""

    some: np.ndarray
    largest: np.ndarray
    widened: np.ndarray

    def promise(self, level: float, rows: Sequence[int] | None = None) -> Promise:
        """From these trajectories, or from some of them."""
        rows = range(len(self.largest)) if rows is None else rows
        some, largest, n = np.sort(self.some[list(rows)], axis=None), np.sort(self.largest[list(rows)]), len(rows)
        outside = max(0.0, ((n + 1) * (1 - level) - 1) / n)  # share of values that may lie outside
        average = some[max(0, math.ceil((1 - outside) * len(some) - 1e-9) - 1)] if outside > 0 else largest[-1]
        k = min(n, math.ceil((n + 1) * level - 1e-9))
        most = n / (n + 1)
        return Promise(level, float(average), min(level, most), float(largest[k - 1]), min(k / (n + 1), most))


def scores_of(shape: Shape, known: Known, mesh: Mesh, states: Tensor, data: Corpus) -> Scores:
    """Of rollouts [B, T+1, N, F] against the truth, from the first step on."""
    bends, t = Bends(mesh), data.dt * np.arange(1, data.steps + 1)
    widened = np.array([known.widening(p)[0] for p in profiles_of(data, mesh)])
    size = data.state[0, 1:].numel()
    chosen = np.random.default_rng(1).choice(size, min(size, _POINTS), replace=False)  # the same for all, before any look at them
    some, largest = [], []
    for u, true, w in zip(states, data.state, widened):
        u_, true_ = u.double().cpu().numpy(), true.double().cpu().numpy()
        z = np.abs(u_[1:] - true_[1:]) / (w * shape.at(t, u_[1:], u_[:1], bends))
        some.append(z.reshape(-1)[chosen])
        largest.append(float(z.max()))
    return Scores(np.array(some), np.array(largest), widened)


def calibrate(mesh: Mesh, train: Corpus, train_states: Tensor, held: Corpus, held_states: Tensor, weights: str = "",
              profiles: list[list[np.ndarray]] | None = None) -> tuple[Bands, Scores]:
    """Bands for new rollouts, and the scores they come from.

    - `train`, `train_states` [B, T+1, N, F]: training trajectories and rollouts on them, which give the bands their shape
    - `held`, `held_states`: trajectories that neither trained nor chose the weights
    - `weights`: checksum of the weights
    - `profiles`: of all training trajectories, where `train` holds some of them only
    """
    shape = Shape.of(train_states.double().cpu().numpy(), train.state.double().cpu().numpy(), train.dt, Bends(mesh))
    known = Known.of(profiles_of(train, mesh) if profiles is None else profiles, float(train.state.double().std()))
    scores = scores_of(shape, known, mesh, held_states, held)
    return Bands(shape, known, tuple(scores.promise(level) for level in LEVELS), len(held), weights), scores


# ---------------------------------------------------------------------- of a run


@dataclass(frozen=True, eq=False)
class Tested:
    """Bands for new rollouts, and the scores of the test trajectories: those that made the bands, unless others did (`apart`)."""

    bands: Bands
    scores: Scores
    apart: bool

    def promise(self, level: float, number: int) -> Promise:
        """In which one test trajectory is tested: the bands, or those that the other test trajectories give."""
        others = [k for k in range(len(self.scores.largest)) if k != number]
        return self.bands.promise(level) if self.apart or not others else self.scores.promise(level, others)

    def summary(self) -> dict[str, Any]:
        """For JSON: what is promised to new rollouts, what to the test trajectories, and what share of these lies inside."""
        tests, levels = range(len(self.scores.largest)), []
        for p in self.bands.promises:
            by = [self.promise(p.level, k) for k in tests]
            alone = not self.apart and len(by) < 2
            inside = np.mean([(z <= q.average).mean() for z, q in zip(self.scores.some, by)])
            whole = np.mean([z <= q.everywhere for z, q in zip(self.scores.largest, by)])
            levels.append({"level": p.level, "promised": p.average_promised, "promised_everywhere": p.everywhere_promised,
                           "tested_promised": by[0].average_promised, "tested_promised_everywhere": by[0].everywhere_promised,
                           "covered": None if alone else float(inside), "covered_everywhere": None if alone else float(whole)})
        return {"trajectories": self.bands.trajectories, "tested": len(tests), "apart": self.apart,
                "widened": self.scores.widened.tolist(), "levels": levels}


def bands_of(run: Run, states: Tensor, held: Corpus, calibration: Path | None = None, device: str = "cpu") -> Tested | None:
    """From the test rollouts of an evaluation, or from those of another data set (`calibration`); kept as RUN/bands.json.

    None where the run's data are gone or a rollout is not finite. The trajectories that make the bands must not have chosen the
    weights: those of the split train have.
    """
    if not run.data.is_file():
        return None
    base, name = base_problem(run.case, device), run.settings.model
    with Dataset(run.data) as data:
        numbers = data.of("train")[: run.settings.trajectories or None]
        if not numbers:
            return None
        train = data.batch(numbers[:_SHAPED], device=device, ends=run.model.rule == "trapezoid")
        profiles = [p for n in numbers[:_PROFILED] for p in profiles_of(data.batch([n]), run.case.mesh)]
    with torch.no_grad(), few_threads(run.case.mesh.n_nodes, device):
        rolled = predict(run.model, base, train)
    judged = None if calibration is None else judge_file({name: run.model}, run.case, calibration, device, truth=run.settings.truth,
                                                         keep=True)
    made, truth = (states, held) if judged is None or judged.data is None else (judged.states[name], judged.data)
    if not all(bool(torch.isfinite(x).all()) for x in (rolled, made, states)):
        return None
    bands, scores = calibrate(run.case.mesh, train, rolled, truth, made, weights_sum(run.folder), profiles)
    write_json(run.folder / FILE, bands.as_dict())
    apart = judged is not None
    return Tested(bands, scores_of(bands.shape, bands.known, run.case.mesh, states, held) if apart else scores, apart)


def stored_bands(run: Simulator) -> Bands | None:
    """What `evaluate` kept; None where it kept nothing, or other weights had it."""
    path = run.folder / FILE
    if not isinstance(run, Run) or not path.is_file():
        return None
    try:
        found = Bands.from_dict(read_json(path, {"promises": list, "weights": str}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged; remove it, and `dgnet evaluate` makes it again") from error
    return found if found.weights == weights_sum(run.folder) else None


def weights_sum(folder: Path) -> str:
    path = folder / "weights.pt"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def sentences(found: dict[str, Any], level: float = LEVELS[1]) -> list[str]:
    """What the bands of one level promise and how they did, in words."""
    row, n = next(r for r in found["levels"] if math.isclose(r["level"], level)), found["trajectories"]
    few = f"; {level:.0%} would need {math.ceil(level / (1 - level) - 1e-9)} trajectories" if row["promised"] < level else ""
    kind = f"{'other' if found['apart'] else 'test'} {'trajectory' if n == 1 else 'trajectories'}"
    lines = [f"Bands for new rollouts, from {n} {kind}: on average at least {row['promised']:.0%} of all values lie inside, as "
             f"long as the rollout is like {'this' if n == 1 else 'these'}{few}."]
    if row["covered"] is not None:
        which = f"The {found['tested']} test trajectories" if found["apart"] else f"Each of these in the bands of the other {n - 1}"
        lines.append(f"{which}: {row['covered']:.1%} of all values inside, promised at least {row['tested_promised']:.0%}.")
    return lines
