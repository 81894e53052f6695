"""How long a fine solver takes for one trajectory on this machine: the one that made the data where that is known, else ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dgnet.data import Corpus
from dgnet.errors import InputError, SolveError
from dgnet.problems.case import Case
from dgnet.reference.flow import ChannelFlow
from dgnet.reference.record import FlowRecord
from dgnet.reference.transport import solve
from dgnet.scenarios.generate import truth_states
from dgnet.scenarios.scenario import Draw, Scenario, Truth

_STEPS = (1, 4)  # that are timed, and extended to all of them: it is slow
_FLOW_STEPS = 5
_MOST = 150_000  # nodes of the fine mesh above which it is not timed
_OURS = Truth(refine=1, substeps=4, degree=2)


@dataclass(frozen=True)
class Fine:
    """Seconds for one trajectory, which solver it is, from how many steps they were extended; seconds of a flow, computed once."""

    seconds: float
    solver: str
    steps: int
    flow_seconds: float | None = None


def fine_time(case: Case, truth: str, data: Corpus, device: str) -> Fine | None:
    """Measured on the first steps; None where the mesh would be too large or the reference does not know the equation."""
    known = isinstance(case, Scenario)
    settings = case.truth(truth) if isinstance(case, Scenario) else _OURS
    nodes = case.mesh.n_nodes * 2 ** (case.mesh.dim * (settings.refine + settings.degree - 1))
    if nodes > _MOST or (case.given_flow and case.mesh.dim == 3):
        return None
    flow = None if data.velocity is None else _record(case, data.velocity[0].cpu().numpy())
    try:
        took = [_clock(lambda steps=steps: _states(case, settings, data, flow, steps, device)) for steps in _STEPS]  # type: ignore[misc]
    except (InputError, SolveError):
        return None
    each = max(took[1] - took[0], 0.0) / (_STEPS[1] - _STEPS[0])
    solver = ("The fine solver that made the data" if known else
              "The reference solver of dgnet (quadratic elements on half the spacing, a quarter of the step)")
    return Fine(took[0] + (case.steps - _STEPS[0]) * each, solver, _STEPS[1],
                _flow_time(case, device) if isinstance(case, Scenario) and case.flow is not None else None)


def _states(case: Case, settings: Truth, data: Corpus, flow: FlowRecord | None, steps: int, device: str) -> torch.Tensor:
    if isinstance(case, Scenario):
        sample = case.sample([Draw("test", 0)])
        sample = sample if flow is None else replace(sample, phases=(0.0,))
        return truth_states(replace(case, steps=steps), sample, settings, flow, device)
    start = data.state[:1, 0].double().cpu()
    given: Any = flow
    return solve(case.mesh, case.pde, case.conditions, start, dt=case.dt, steps=steps, refine=settings.refine,
                 substeps=settings.substeps, degree=settings.degree, flow=given, device=device)


def _record(case: Case, rows: np.ndarray) -> FlowRecord:
    """The first rows [T, N, 2] of a stored flow, linear along the edges: which numbers they are does not matter for the time."""
    some = rows[: _STEPS[1] + 2]
    return FlowRecord(case.mesh, 0, case.dt, np.concatenate([some, some[:, case.mesh.edges].mean(axis=2)], axis=1))


def _flow_time(case: Scenario, device: str) -> float:
    """Seconds of the flow of all trajectories, from its set-up and a few steps."""
    spec = case.flow
    assert spec is not None
    begin = time.perf_counter()
    flow = ChannelFlow(case.mesh.refined(spec.refine), mean_velocity=spec.mean_velocity, viscosity=spec.viscosity, dt=spec.dt,
                       device=device)
    set_up = time.perf_counter() - begin
    return set_up + (spec.spin_up + spec.phases + case.horizon) / spec.dt * _clock(lambda: flow.advance(_FLOW_STEPS)) / _FLOW_STEPS


def _clock(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin
