"""The balance of a rollout for people: which models have one, and in which units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dgnet.models import Classical, Model
from dgnet.models.base import LearnedModel
from dgnet.problems import LUMPED, Problem
from dgnet.problems.case import Case
from dgnet.stepping import Balance, Totals

LARGEST = 300_000
"""Nodes above which no balance is taken: it needs the matrices a second time, in double precision."""


def balance_of(model: Model[Any], problem: Problem) -> Balance | None:
    """Follows the rollout of a model; None for models with points beside the nodes or of another scheme in time, large meshes, and
    operators in time."""
    between = len(model.points(problem)) != problem.mesh.n_nodes
    if model.moments > 1 or problem.time_dependent or problem.mesh.n_nodes > LARGEST or between:
        return None
    share = LUMPED if problem.pde.curved else problem.consistent
    if isinstance(model, Classical):
        if model.theta != 0.5:
            return None
        share = share if model.consistent is None else model.consistent
    return Balance(problem if share == problem.consistent else problem.recast(share, problem.advection_form),
                   learned=isinstance(model, LearnedModel), start=model.stable_steps(problem))


def content_units(case: Case) -> dict[str, str]:
    """The unit of what a field has in all, by field: J or, for 1 m of depth, J/m with a heat capacity."""
    dimension = (0, case.mesh.dim - 3, 0, 1, 0) if case.pde.weighted else (1, case.mesh.dim, 0, 0, 0)
    return {name: case.units.name(dimension, name) for name in case.pde.fields}


def sentences(balance: Mapping[str, Mapping[str, float]] | None, units: Mapping[str, str]) -> list[str]:
    """One for each field."""
    return [f"{name}: {Totals.of(row).sentence(units[name])}" for name, row in (balance or {}).items()]
