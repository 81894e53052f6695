"""What mesh and step get wrong of readings, from solutions on finer meshes with smaller steps.

Schemes of second order in both leave a quarter of their error on the mesh refined once with half the step. With readings y' and y''
of two solutions, the second one on the finer mesh,

    truth = y'' + (y'' - y') / 3 + e,        e = (share z_s(t) + common z(t)) (y'' - y') / 3

with factors z ~ N(0, 1), of each sensor and of all together, that change slowly in time. The first two terms are taken for the
truth (`Gap.bias` is what they add to readings of the given mesh), the last one is an unknown beside the others (`Gap.unknown`), so
that bands include it. Solutions are rollouts of the answer: on the given mesh and that refined once where it is large, which
costs about as much as the kernels of some more sensors, else on those refined once and twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dgnet.inverse.posterior import Unknown
from dgnet.inverse.priors import NUMBER, numbers
from dgnet.models import Classical, Model
from dgnet.models.dgnet import Calibration, DGNet, Material, Reaction
from dgnet.models.universal import Tuned, Universal
from dgnet.problems import WIDE, Problem, half_steps, prolonged, refined

Tensor = torch.Tensor

MOST, FEW = 250_000, 20_000
"""Nodes of a refined mesh up to which it is used where the mesh is refined once, and where it is refined twice."""
_SHARE, _COMMON = 0.6, 0.4  # what extrapolation left of random problems
_TRAINED = 1.0  # the same where a model was trained on data: its error is not that of a scheme, but below it
FLOOR = 0.5
"""Of a sensor's usual difference: the least that counts at any time."""
_SLOW, _MODES = 0.3, 12  # of the whole time: over which z is correlated; numbers that it has for each sensor


def anywhere(model: Model[Any]) -> Model[Any]:
    """The model on other meshes. Corrections that a DGNet learned belong to its mesh: what it learned of the physics stays."""
    if isinstance(model, DGNet):
        return model.keeping(Calibration, Material, Reaction)
    return model if isinstance(model, Classical | Universal | Tuned) else Classical()


class Finer:
    """A problem on finer meshes with smaller steps, each with half the spacing and half the step of the one before.

    - `problems`: the given one first; of the last two the solutions are compared
    - `model`: that solves them (`anywhere`)
    - `same`: it solves the given problem as the given model does
    """

    def __init__(self, problem: Problem, model: Model[Any]) -> None:
        self.model, self.same = anywhere(model), isinstance(model, Classical | Universal)
        self.problems, self._up = [problem], list[Callable[..., Tensor]]()
        for _ in range(2 if problem.mesh.n_nodes * 4**problem.mesh.dim <= FEW else 1):
            self._up.append(prolonged(self.problems[-1].mesh))
            self.problems.append(replace(refined(self.problems[-1]), dt=0.5 * self.problems[-1].dt))

    @staticmethod
    def exists(problem: Problem) -> bool:
        return problem.mesh.n_nodes * 2**problem.mesh.dim <= MOST

    def changed(self, change: Callable[[Problem], Problem]) -> Finer:
        """The same meshes with problems that are changed alike."""
        other = copy(self)
        other.problems = [change(p) for p in self.problems]
        return other

    @property
    def gain(self) -> tuple[float, float]:
        """Of a third of the difference of two solutions, what may be wrong: of each sensor's own, and of all in common."""
        return (_SHARE, _COMMON) if self.same else (_TRAINED, _TRAINED)

    def narrow(self, radii: Mapping[str, float]) -> tuple[str, ...]:
        """A note about each of some spots, by name, that is too narrow for the first of the two meshes that are compared.

        There it is spread over the spacing (`Deposit`), and what that gets wrong beside it is not of second order.
        """
        most = WIDE * self.problems[self.last - 1].mesh.spacing
        return tuple(f"{name} has a radius of {radius:.3g}, the meshes that are compared spacings from "
                     f"{most / WIDE:.3g} on: bands hold too little of what it does nearby; a mesh with a spacing of "
                     f"{self.problems[0].mesh.spacing * radius / most:.2g} shows it"
                     for name, radius in radii.items() if radius < most)

    @property
    def last(self) -> int:
        """Halvings of the finest one."""
        return len(self._up)

    def up(self, values: Tensor, level: int) -> Tensor:
        """Values at the given nodes [..., N, F] at the nodes of a finer mesh."""
        for up in self._up[:level]:
            values = up(values, smooth=True)
        return values

    @staticmethod
    def halved(averages: Tensor, level: int) -> Tensor:
        """Averages over the steps [H, ...] as those over smaller ones [2^level H, ...]."""
        flat = averages.reshape(1, len(averages), -1, 1)
        for _ in range(level):
            flat = half_steps(flat)
        return flat.reshape(-1, *averages.shape[1:])


@dataclass(frozen=True, eq=False)
class Gap:
    """What readings miss [T, S]: `bias`, to be added to them, and `rest`, by which that may still be wrong, with its `gain`."""

    bias: np.ndarray
    rest: np.ndarray
    gain: tuple[float, float]

    @classmethod
    def of(cls, finer: Finer, given: np.ndarray, first: np.ndarray, second: np.ndarray) -> Gap:
        """From the readings [T, S] of both solutions, and those `given` that miss something; a trained model's have no bias."""
        third = (second - first) / 3
        return cls(second + third - given if finer.same else np.zeros_like(third), third, finer.gain)

    def unknown(self, times: np.ndarray, there: np.ndarray) -> Unknown:
        """The error at the readings that are `there`, of [T, S], by independent numbers of variance 1."""
        span = max(float(np.ptp(times)), 1e-300)
        value, mode = np.linalg.eigh(np.exp(-np.abs(times[:, None] - times) / (_SLOW * span)))
        modes = (mode * np.sqrt(value.clip(min=0.0)))[:, ::-1][:, :_MODES]
        size = np.hypot(self.rest, FLOOR * np.sqrt(np.square(self.rest).mean(0)))
        each = self.gain[0] * np.einsum("ts,tk,sr->tsrk", size, modes, np.eye(there.shape[1]))[there]
        together = self.gain[1] * np.einsum("ts,tk->tsk", self.rest, modes)[there]
        table = np.concatenate([each.reshape(len(each), -1), together], 1)
        return Unknown(MESH, table, (NUMBER,), numbers, strength=1.0, wanted=False)


MESH = "mesh"
"""The name of that unknown."""
