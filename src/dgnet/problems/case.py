"""A case: the problem that a paper scenario and a user's own problem share, before any data and any model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.problems.conditions import Condition
from dgnet.problems.curves import curves_of
from dgnet.problems.flow import given_velocity
from dgnet.problems.pde import PDE
from dgnet.problems.problem import CONSISTENT, WORKING, Problem
from dgnet.problems.sources import Source
from dgnet.problems.units import Units

Tensor = torch.Tensor

OWN = "own"
"""The `size` of a user's own problem; paper scenarios are small or paper."""

GIVEN_FLOW = "given with the data"


@dataclass(frozen=True, eq=False)
class Opening:
    """Start and source of a case where nothing else says so (the studio opens with it).

    - `start`: nodal values [1, N, F], or None for the offset
    - `source`: f(x, t) [1, T, N, F] and the `panels` of a step for its average
    - `flow`: v(t) [1, N, d] of a case whose flow comes with its data
    - `notes`: sentences for whoever looks at it
    """

    start: Tensor | None = None
    source: Source | None = None
    panels: int = 1
    flow: Callable[[float], Tensor] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """Mesh, equation, boundary conditions and time step.

    - `given_flow`: a velocity that changes in time comes with the data
    - `training`: a plan of training of its own (`training.plan.Plan`); None: read off the features of the case
    - `tally`: sums over all predicted states besides the errors (`scoring.judge.Tally`)

    A case that knows more than this about itself overrides the methods below.
    """

    name: str
    title: str
    size: str = OWN
    equation: str  # for people
    build_mesh: Callable[[], Mesh]
    pde: PDE
    conditions: tuple[Condition, ...]
    dt: float
    steps: int
    offset: tuple[float, ...] = ()
    given_flow: bool = False
    units: Units = field(default_factory=Units)
    training: Any = None
    tally: Any = None

    @cached_property
    def mesh(self) -> Mesh:
        return self.build_mesh()

    @property
    def horizon(self) -> float:
        return self.dt * self.steps

    @property
    def offsets(self) -> tuple[float, ...]:
        """Per field: what a relative error is measured from."""
        return self.offset or (0.0,) * len(self.pde.fields)

    @property
    def times(self) -> Tensor:
        """Stored times [T+1]."""
        return self.dt * torch.arange(self.steps + 1, dtype=torch.float64)

    @property
    def moving(self) -> bool:
        """Whether anything flows, steadily or not."""
        return self.given_flow or self.pde.velocity is not None

    @property
    def particulars(self) -> dict[str, str]:
        """Facts that identify the case besides mesh, equation, conditions, step and offset."""
        return {"flow": GIVEN_FLOW} if self.given_flow else {}

    @property
    def published(self) -> dict[str, float] | None:
        """The figures (mse, rne) that the literature reports for DGNet on this case."""
        return None

    def opening(self) -> Opening:
        """The start and the source of the case where nothing else says so."""
        return Opening()

    def between_nodes(self, dataset: Any, numbers: Sequence[int], device: torch.device | str) -> Any:
        """Starts and sources at the middles of the edges (`data.Middles`) of these trajectories of a `data.Dataset`; None: there
        are only the nodes' values, and a fit to them."""
        return None

    def remarks(self, states: Mapping[str, Tensor], truth: Tensor) -> dict[str, Any]:
        """Further results for the JSON of an evaluation from states [B, T+1, N, F] by model and the truth; sentences of it for
        people stand under "remarks"."""
        return {}

    def problem(self, velocity: Tensor | None = None, *, device: torch.device | str = "cpu",
                dtype: torch.dtype = torch.float64, consistent: float = CONSISTENT) -> Problem:
        """The discretised equation that a model gets, with the stored flow [B, T+1, N, d] where there is one."""
        if self.given_flow != (velocity is not None):
            raise InputError(f"'{self.name}' {'needs a' if self.given_flow else 'has no'} flow that changes in time")
        pde = self.pde
        if velocity is not None:
            pde = replace(pde, velocity=given_velocity(velocity.to(device, dtype), self.dt))
        return Problem(self.mesh, pde, self.conditions, self.dt, consistent, dtype=dtype, device=device)


def base_problem(case: Case, device: str, dtype: torch.dtype = WORKING) -> Problem:
    """The discretised case before its data: fluid at rest where the flow comes with the data, put in for each batch."""
    rest = torch.zeros(1, 2, case.mesh.n_nodes, case.mesh.dim) if case.given_flow else None
    return case.problem(rest, device=device, dtype=dtype)


def equation(pde: PDE, flow: bool = False) -> str:
    """The equation in words of symbols, with the terms that there are."""
    def there(name: str) -> bool:
        return any(not np.isscalar(v) or v != 0 for v in pde.per_field(name))

    def symbol(letter: str, name: str) -> str:
        return f"{letter}(u)" if any(curves_of(v) for v in pde.per_field(name)) else letter

    heat, c = pde.weighted, symbol("c", "capacity")
    moving = flow or pde.velocity is not None
    terms = [f"div({symbol('D', 'diffusion')} grad u)"] * there("diffusion") + ["- v . grad u"] * (moving and not heat)
    terms += ["- k u"] * there("decay") + ["+ r(u)"] * (pde.reaction is not None) + ["+ f"]
    left = "du/dt" if not heat else f"{c} (du/dt + v . grad u)" if moving else f"{c} du/dt"
    return (f"{left} = " + " ".join(terms)).replace("= + ", "= ")
