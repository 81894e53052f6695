"""Where to measure: the k of many possible sensors that leave least uncertainty about what is to be recovered.

With x = L z, z ~ N(0, I) and readings H_i x of candidate i, the information of a choice is J = I + sum of L' H_i' H_i L / noise^2.
The posterior variance of all unknowns is trace(L J^-1 L') (criterion "A"); log det J is what the readings tell ("D").
Neither needs a reading, only the kernels. Sensors are chosen one by one, each the best in addition to those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from dgnet.arguments import Count, Positive, checked
from dgnet.errors import InputError
from dgnet.inverse.kernels import kernels
from dgnet.inverse.sensor import Point, Sensor, Sensors, named
from dgnet.inverse.unknowns import LAG, linear_kind
from dgnet.mesh import Mesh
from dgnet.models import Model, few_threads
from dgnet.problems import Problem, SpotTable

_MOST = 4000  # unknown numbers
_DETAIL = 1e-6  # of the prior's variance: directions below are left out


@dataclass(frozen=True, eq=False)
class Placement:
    """Sensors in the order in which they were chosen, and what they leave.

    - `chosen`: numbers of the candidates
    - `sensors`: the same as objects
    - `uncertainty` [k+1]: root mean square of the posterior standard deviations with 0, 1, ..., k sensors, over that of the prior
    - `information`: the pieces J is made of, one for each candidate, for `left`
    """

    chosen: tuple[int, ...]
    sensors: tuple[Sensor, ...]
    uncertainty: np.ndarray
    information: np.ndarray  # [S, r, r]
    prior: np.ndarray  # [r]

    @checked
    def left(self, chosen: Sequence[int]) -> float:
        """The posterior variance of any choice of candidates, over that of the prior."""
        if not all(0 <= k < len(self.information) for k in chosen):
            raise InputError(f"candidates are numbered from 0 to {len(self.information) - 1}, got {list(chosen)}")
        J = np.eye(len(self.prior)) + self.information[list(chosen)].sum(0)
        return float((np.diagonal(np.linalg.inv(J)) * self.prior).sum() / self.prior.sum())


@checked
def place(problem: Problem, candidates: Sensors, count: Count, unknown: Sequence[str], horizon: Count, *,
          noise: Positive, strength: Positive, length: Positive | None = None, spots: SpotTable | None = None,
          criterion: Literal["A", "D"] = "A", model: Model[Any] | None = None) -> Placement:
    """The best places for sensors, before anything is measured.

    - `problem`: a linear one
    - `candidates`: where sensors could be, as for `kernels`
    - `count`: how many of them to choose
    - `unknown`: what they shall tell, as for `recover`: source, field, start, flux:BOUNDARY
    - `horizon`: number of steps, each of which ends with a reading
    - `noise`: standard deviation of a reading
    - `strength`: standard deviation of what is unknown, before any reading
    - `length`: over which it is correlated: a time for histories, a distance for fields; a quarter of the whole unless given
    - `spots`: places or paths of the sources whose strength is unknown
    - `criterion`: A for the least variance of all unknowns together, D for the most information
    - `model`: whose step; the classical solver unless given

        >>> import dgnet as dg, numpy as np
        >>> problem = dg.Problem(dg.box((6, 6)), dg.PDE(diffusion=0.02), [], dt=0.1)
        >>> lamp = dg.SpotTable(("lamp",), (np.array([0.0, 9.0]),), (np.array([[0.2, 0.2, 0.15, 1.0]] * 2),))
        >>> best = dg.place(problem, [[0.8, 0.8], [0.2, 0.25], [0.5, 0.9]], 2, ["source"], 20, noise=0.01, strength=1.0, spots=lamp)
        >>> best.chosen[0], bool(best.uncertainty[2] < best.uncertainty[1] < 1)
        (1, True)
    """
    there = named(candidates)
    if not 1 <= count <= len(there):
        raise InputError(f"{count} of {len(there)} candidates cannot be chosen")
    if not unknown:
        raise InputError("name at least one unknown: source, field, start or flux:BOUNDARY")
    if LAG in unknown:
        raise InputError("sensors are not placed for their own lags: name what they shall tell of the part")
    with few_threads(problem.mesh.n_nodes), torch.no_grad():
        made, kinds = kernels(problem, there, horizon, model), [linear_kind(name, problem, horizon, spots) for name in unknown]
        responses = [kind.responses(problem, made, there, model).double().numpy() for kind in kinds]
    rows, prior = [], []
    for kind, R in zip(kinds, responses):
        if R.shape[2] > _MOST:
            raise InputError(f"{R.shape[2]} unknown numbers are too many to place sensors for: use a mesh with at most {_MOST}")
        past = bool(kind.columns)
        block = kind.prior(R[:, 0], problem)
        reach = length or 0.25 * (problem.dt * horizon if past else block.choices[0][1])
        w, V = np.linalg.eigh(strength**2 * block.spread((1.5 if past else 1.0, reach), np.eye(R.shape[2]))[0])
        kept = w > _DETAIL * w[-1]
        rows.append(R @ (V[:, kept] * np.sqrt(w[kept])) / noise)
        prior.append(w[kept])
    whole = np.concatenate(rows, axis=2)
    information = np.einsum("stq,str->sqr", whole, whole)
    try:
        return _greedy(there, information, np.concatenate(prior), count, criterion)
    except np.linalg.LinAlgError as error:
        raise InputError(f"a strength of {strength:g} beside a noise of {noise:g} is beyond double precision") from error


def _greedy(candidates: list[Sensor], information: np.ndarray, prior: np.ndarray, count: int, criterion: str) -> Placement:
    J, chosen, left = np.eye(len(prior)), list[int](), [1.0]
    for _ in range(count):
        open_ = [k for k in range(len(candidates)) if k not in chosen]
        if criterion == "D":
            worth = [np.linalg.slogdet(J + information[k])[1] for k in open_]
        else:
            worth = [-float((np.diagonal(np.linalg.inv(J + information[k])) * prior).sum()) for k in open_]
        best = open_[int(np.argmax(worth))]
        chosen.append(best)
        J = J + information[best]
        left.append(float((np.diagonal(np.linalg.inv(J)) * prior).sum() / prior.sum()))
    return Placement(tuple(chosen), tuple(candidates[k] for k in chosen), np.sqrt(left), information, prior)


def spread_out(mesh: Mesh, count: int) -> list[Sensor]:
    """Candidates all over a part: nodes, each as far as possible from those before it."""
    chosen = [int(np.linalg.norm(mesh.points - mesh.points.mean(0), axis=1).argmin())]
    away = np.linalg.norm(mesh.points - mesh.points[chosen[0]], axis=1)
    while len(chosen) < min(count, mesh.n_nodes):
        chosen.append(int(away.argmax()))
        away = np.minimum(away, np.linalg.norm(mesh.points - mesh.points[chosen[-1]], axis=1))
    return [Point(tuple(mesh.points[k].tolist()), f"p{n}") for n, k in enumerate(chosen, start=1)]
