"""A free rollout (f = 0) of 100,000 steps stays bounded for every structured model of the small scenarios, whatever its weights.

Linear scenarios: the step is one matrix S. Its norm in |.|_M is at most 1, so no step makes |u|_M grow, and S^100000 is taken by
repeated squaring. With a reaction or a given flow there is no such matrix; these are stepped: 400 steps by default, all 100,000
with DGNET_LONG=1, which also uses the scenarios' own flows (default: a stream function) and adds trained models.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import cholesky, solve_triangular

from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import SolveError
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig, PreparedDGNet
from dgnet.problems import Problem, given_velocity
from dgnet.stepping import product
from dgnet.training.plan import make_plan
from dgnet.training.run import train
from dgnet_paper.scenarios import get, names
from dgnet_paper.scenarios.generate import flow_record, flow_rows, generate
from dgnet_paper.scenarios.scenario import Scenario
from tests.models.test_dgnet import dense, swirl

Tensor = torch.Tensor

LONG = bool(os.environ.get("DGNET_LONG"))
STEPS = 100_000 if LONG else 400
LINEAR = [n for n in names() if get(n, "small").pde.reaction is None and not get(n, "small").pde.curved]
OTHER = [n for n in names() if get(n, "small").pde.reaction is not None]


def back_and_forth(rows: Tensor, dt: float) -> tuple[Callable[[float], Tensor], int]:
    """A flow that runs through its record [1, T, N, d] and back for ever, and its period in steps."""
    loop = torch.cat([rows, rows.flip(1)[:, 1:]], 1)
    period = loop.shape[1] - 1
    recorded = given_velocity(loop, dt)
    return lambda t: recorded(t % (period * dt)), period


def posed(s: Scenario, flows: Path) -> tuple[Problem, int | None]:
    """The problem and the period of its flow."""
    if s.flow is None:
        return s.problem(), None
    record = flow_record(s, flows) if LONG else None
    rows = swirl(s.mesh, 1, 16) if record is None else flow_rows(s, record, [0.0]).double()
    velocity, period = back_and_forth(rows, s.dt)
    return s.problem(torch.zeros(1, 2, s.mesh.n_nodes, 2)).with_velocity(velocity), period


def saturated(config: DGNetConfig, p: Problem, reach: Tensor, seed: int) -> DGNet:
    """Every weight 30 times a normal number; the statistics are those of states between the rows of `reach` [2, F]."""
    torch.manual_seed(seed)
    model = DGNet(replace(config, hidden=16, layers=2, reaction_hidden=16), p).double()
    with torch.no_grad():
        for w in model.parameters():
            w.copy_(30 * torch.randn_like(w))
    model.fit_statistics(reach[None, :, None].expand(1, 2, p.mesh.n_nodes, -1), None, p.dt)
    return model


def prepared(model: DGNet, p: Problem, period: int | None) -> PreparedDGNet:
    """With a periodic flow, the operator of each step of the period is factorised once."""
    state = model.prepare(p, 4, STEPS)
    if period is not None:
        build, kept = state.solver.operator, {}

        def operator(t: float = 0.0, theta: float | None = None, dt: float | None = None):
            k = round(t / p.dt) % period
            if k not in kept:
                kept[k] = build(k * p.dt, theta, dt)
            return kept[k]

        state.solver.operator = operator  # type: ignore[method-assign]
    return state


def energy(state: PreparedDGNet, u: Tensor, offset: Tensor) -> Tensor:
    """|u - offset|_M of each trajectory and field [B, F]."""
    v = state.solver.problem.restrict(u) - offset
    return (v * product(state.solver.operators.mass, v)).sum(1).clamp(min=0).sqrt()


def starts(s: Scenario, p: Problem, reach: Tensor, seed: int) -> Tensor:
    """Two of the scenario's own starts and two of white noise between the ends of `reach`."""
    drawn = s.sample(s.draws()[:2]).initial
    own = drawn if isinstance(drawn, Tensor) else drawn(torch.tensor(s.mesh.points))
    noise = torch.rand(own.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u = torch.cat([own, reach[0] + noise * (reach[1] - reach[0])])
    values = p.fixed_values(0.0)
    return u if p.fixed is None or values is None else torch.where(p.fixed.T, values, u)


def march(s: Scenario, model: DGNet, p: Problem, period: int | None, u: Tensor, steps: int) -> tuple[PreparedDGNet, Tensor]:
    """|u|_M [K, B, F] at 200 times; every state in between is finite, or the solver would have complained."""
    offset = torch.tensor(s.offsets, dtype=torch.float64)
    with torch.no_grad():
        state = prepared(model, p, period)
        sizes = [energy(state, u, offset)]
        for k in range(steps):
            u = state.step(u, None, (k if period is None else k % period) * p.dt, k)
            if (k + 1) % (steps // 200) == 0:
                sizes.append(energy(state, u, offset))
        state.finish()
    return state, torch.stack(sizes)


def reach_of(s: Scenario) -> Tensor:
    """What the states of a reaction live in [2, F]: all of them have their fixed points in [-1, 1] or [0, 1]."""
    symmetric = s.name in ("allen-cahn", "fitzhugh-nagumo")
    ends = torch.tensor([[-1.0 if symmetric else 0.0], [1.0]], dtype=torch.float64)
    return torch.tensor(s.offsets, dtype=torch.float64) + ends.expand(2, len(s.pde.fields))


def end_of_range(s: Scenario, model: DGNet, state: PreparedDGNet) -> Tensor:
    """|u - offset|_M [F] of a constant state at the end of the range in which the reaction is believed."""
    area = float(state.solver.operators.mass.row_sums()[0, 0].sum())
    offset = torch.tensor(s.offsets, dtype=torch.float64)
    return torch.maximum((model.low - offset).abs(), (model.high - offset).abs()) * area**0.5


@pytest.mark.parametrize("name", LINEAR)
def test_linear_scenarios_never_grow(name: str) -> None:
    s = get(name, "small")
    p = s.problem()
    ambient = torch.tensor(s.offsets, dtype=torch.float64)
    for seed in range(2):
        model = saturated(s.training.config, p, reach_of(s), seed)
        with torch.no_grad():
            state = model.prepare(p, p.mesh.n_nodes, 1)
            unit = torch.eye(p.mesh.n_nodes, dtype=torch.float64)[..., None]
            S = (state.step(unit + ambient, None, 0.0, 1) - ambient)[..., 0].numpy().T  # column j: the response to node j
            assert float((state.step(0 * unit[:1] + ambient, None, 0.0, 1) - ambient).abs().max()) < 1e-9
        R = cholesky(dense(state.solver.operators.mass.values, p))  # M = R^T R
        step = R @ S @ solve_triangular(R, np.eye(len(R)))  # S as seen in |.|_M
        assert np.linalg.norm(step, 2) <= 1 + 1e-10
        far = np.linalg.matrix_power(step, 100_000)
        assert np.linalg.norm(far, 2) <= 1 + 1e-10
        if LONG:
            u = starts(s, p, reach_of(s), seed)
            _, sizes = march(s, model, p, None, u, STEPS)
            assert bool((sizes[1:] <= sizes[:-1] * (1 + 1e-9) + 1e-9).all())


@pytest.mark.parametrize("name, learned", [*((n, False) for n in OTHER), ("allen-cahn", True), ("fitzhugh-nagumo", True)])
def test_reactions_and_given_flows_stay_bounded(name: str, learned: bool, tmp_path: Path) -> None:
    s = get(name, "small")
    p, period = posed(s, tmp_path)
    reach = reach_of(s)
    config = make_plan(s, 4, 40, unknowns=Unknowns(reaction=learned)).config
    config = replace(config, learn_start=False, learn_swirl=s.flow is not None)
    model = saturated(config, p, reach, 0)
    state, sizes = march(s, model, p, period, starts(s, p, reach, 0), STEPS)
    used = sizes / end_of_range(s, model, state)
    print(f"{name}{' learned' if learned else ''}: {float(used.max()):.3g} of the range, late {float(used[100:].max()):.3g}")
    assert bool((used <= 5).all()) and bool((used[100:] <= 1).all())


@pytest.mark.skipif(not LONG, reason="trains every scenario; set DGNET_LONG=1")
@pytest.mark.parametrize("name", names())
def test_trained_models_stay_bounded(name: str, tmp_path: Path) -> None:
    s = get(name, "small")
    data = generate(s, tmp_path, truth="converged")
    run, progress = train(s, "converged", data, tmp_path / "run", budget=15.0)
    p, period = posed(s, tmp_path)
    model = run.model.double()
    state, sizes = march(s, model, p, period, starts(s, p, reach_of(s), 0), STEPS)
    used = sizes / end_of_range(s, model, state)
    print(f"{name}: validation {progress.best:.2g} ({progress.classical:.2g}), {float(used.max()):.3g} of the believed range")
    if name in LINEAR:
        assert bool((sizes[1:] <= sizes[:-1] * (1 + 1e-9) + 1e-9).all())
    else:
        assert bool((used <= 5).all()) and bool((used[100:] <= 1).all())


def test_the_reaction_is_believed_near_the_data_and_bounded_elsewhere() -> None:
    s = get("fisher-kpp", "small")
    p = s.problem()
    free = DGNet(DGNetConfig(decoder="none", network=False), p).double()
    model = DGNet(DGNetConfig(decoder="none", network=False), p).double()
    model.fit_statistics(torch.rand(1, 3, p.mesh.n_nodes, 1, dtype=torch.float64), None, p.dt)
    known, guarded, unguarded = p.pde.reaction, model.reaction(p), free.reaction(p)
    assert known is not None and guarded is not None and unguarded is not None
    near, far = torch.linspace(-0.9, 1.9, 50, dtype=torch.float64)[:, None], torch.tensor([[-50.0], [50.0]], dtype=torch.float64)
    assert torch.equal(guarded(near), known(near)) and torch.equal(unguarded(far), known(far))
    assert bool((guarded(far) * far < 0).all()) and bool((guarded(far) + far / p.dt).abs().max() < 5 / p.dt)
    old = {k: v for k, v in model.state_dict().items() if k not in ("low", "high")}  # weights saved before there was a range
    free.load_state_dict(old)
    assert torch.equal(free.low, torch.full_like(free.low, -torch.inf))
    # noise around zero: logistic growth below zero has no bound, the classical solver leaves the floating-point numbers
    u0 = 0.5 * torch.randn(1, p.mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float(rollout(model, p, u0, None, 100).abs().max()) < 20
        with pytest.raises(SolveError):
            rollout(Classical(), p, u0, None, 100)
