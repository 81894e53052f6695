"""No weights make energy: |u|_M never exceeds its start, in both precisions, whatever the flow does in time.

Weights are s N(0, 1), s up to 1e4, in every learned part that the proof covers (`dgnet.models.dgnet`): mass, diffusion, streamline
diffusion, swirl, calibrated coefficients, the geometry network; free numbers too. Flows: none, steady, turned round at every step,
another random one at every step. None flows through the boundary, except in "through", where what flows in is held at zero.

How much is rounding? A step solves A u+ = B u with matrices of relative precision eps, so the energy may gain a share of order
eps (1 + kappa) in a step, kappa = max dt/2 K_ii / M_ii, and steps times that in all. Twice that is allowed here; the gain is zero
where anything dissipates, and was at most 0.6 of the unit elsewhere.

Every combination is stepped as a user would, 40 steps; two of them 2,000 steps with prepared operators, six 10,000 steps with
`-m slow`, all with DGNET_LONG=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dgnet.mesh import Mesh, box
from dgnet.models.dgnet import DGNet, DGNetConfig, PreparedDGNet, ceiling
from dgnet.problems import PDE, Dirichlet, Periodic, Problem, Robin
from dgnet.problems.conditions import Condition
from dgnet.stepping import StepOperator, product

Tensor = torch.Tensor

LONG = bool(os.environ.get("DGNET_LONG"))
SIZES = (1.0, 100.0, 1e4)
DTYPES = (torch.float32, torch.float64)
CONFIG = DGNetConfig(free=True, learn_source=False, learn_streamline=True, learn_swirl=True, advection_form="skew", hidden=16,
                     layers=2)
DT, TRAJECTORIES, PERIOD = 0.05, 4, 16
"""A flow that changes is drawn from PERIOD different ones."""
FLOWS = ("none", "steady", "turning", "random")
ALLOWED = 2.0


@dataclass(frozen=True)
class Case:
    mesh: Mesh
    conditions: tuple[Condition, ...]
    through: bool = False  # the flow enters on the left


SQUARE, CUBE = box((6, 5), perturb=0.25, seed=3), box((3, 3, 3), perturb=0.2, seed=3)
EVEN = box((6, 5))
CASES = {
    "insulated": Case(SQUARE, ()),
    "fixed": Case(SQUARE, (Dirichlet("boundary"),)),
    "convective": Case(SQUARE, (Robin("left", 2.0, 0.0), Robin("top", 0.1, 0.0))),
    "periodic": Case(EVEN, (Periodic("left", "right"),)),
    "mixed": Case(SQUARE, (Dirichlet("left"), Robin("right", 2.0, 0.0))),
    "through": Case(SQUARE, (Dirichlet("left"),), through=True),
    "3D insulated": Case(CUBE, ()),
    "3D mixed": Case(CUBE, (Dirichlet("left"), Robin("front", 2.0, 0.0))),
}


def flow_in(case: Case, kind: str, dtype: torch.dtype) -> Callable[[float], Tensor] | Tensor | None:
    """Nodal velocities, any numbers inside. On the boundary zero, but for what goes through from left to right."""
    if kind == "none":
        return None
    mesh, g = case.mesh, torch.Generator().manual_seed(5)
    v = torch.randn(PERIOD, mesh.n_nodes, mesh.dim, generator=g, dtype=torch.float64)
    if any(isinstance(c, Periodic) for c in case.conditions):
        side = np.isin(mesh.points[:, 1], [0.0, 1.0])  # flows round in x, and what leaves on the right comes in on the left
        v[:, side, 1] = 0.0
        left, right = (np.flatnonzero(mesh.points[:, 0] == x) for x in (0.0, 1.0))
        v[:, right] = v[:, left]
    elif case.through:
        v[:, mesh.on_boundary, 1] = 0.0
        v[:, :, 0] = v[:, :, 0].abs()
    else:
        v[:, mesh.on_boundary] = 0.0
    v = v.to(dtype)
    if kind == "steady":
        return v[0]
    rows = torch.stack([v[0], -v[0]] * (PERIOD // 2)) if kind == "turning" and not case.through else v
    return lambda t: rows[int(t / DT + 1e-6) % PERIOD]


def drawn(config: DGNetConfig, p: Problem, size: float, seed: int) -> DGNet:
    model = DGNet(config, p).to(p.dtype)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for w in model.parameters():
            w.copy_(size * torch.randn(w.shape, generator=g, dtype=torch.float64))
    return model


def kept(state: PreparedDGNet) -> None:
    """The operator of each step of the period is made once: thousands of steps then cost their solves only."""
    build, made = state.solver.operator, {}

    def operator(t: float = 0.0, theta: float | None = None, dt: float | None = None) -> StepOperator:
        k = round(t / DT) % PERIOD
        if k not in made:
            made[k] = build(k * DT, theta, dt)
        return made[k]

    state.solver.operator = operator  # type: ignore[method-assign]


def gained(case: Case, kind: str, dtype: torch.dtype, size: float, steps: int, config: DGNetConfig = CONFIG,
           prepared: bool = False) -> float:
    """Largest relative gain of energy over its start, in units of rounding: eps (1 + kappa) steps."""
    velocity = flow_in(case, kind, dtype)
    p = Problem(case.mesh, PDE(diffusion=1e-3, decay=0.0, velocity=velocity), case.conditions, DT, dtype=dtype)
    model = drawn(config, p, size, 7)
    g = torch.Generator().manual_seed(1)
    u = torch.randn(TRAJECTORIES, p.mesh.n_nodes, 1, generator=g, dtype=dtype)
    u[0] = 1.0  # a constant neither grows nor fades
    u = p.expand(p.restrict(u))
    if p.fixed is not None:
        u = u * (~p.fixed).T
    with torch.no_grad():
        state = model.prepare(p, len(u), steps)
        M = state.solver.operators.mass.to(torch.float64)
        kappa = max(float((0.5 * DT * state.solver.operators.stiffness(t).diagonal / M.diagonal).max()) for t in (0.0, DT))
        if prepared and p.time_dependent:
            kept(state)

        def energy(u: Tensor) -> Tensor:
            v = p.restrict(u).double()
            return (v * product(M, v)).sum((1, 2))

        start = energy(u)
        most = torch.zeros_like(start)
        for k in range(steps):
            u = state.step(u, None, k * DT, k)
            if k % 10 == 0 or k < 100:
                most = torch.maximum(most, energy(u) / start - 1)
            assert torch.isfinite(u).all()
        state.finish()
    return float(most.max()) / (torch.finfo(dtype).eps * (1 + kappa) * steps)


COMBINATIONS = [(name, kind, dtype) for name in CASES for kind in FLOWS for dtype in DTYPES]
FAR = [("periodic", "turning", torch.float32), ("mixed", "random", torch.float32)]
FARTHER = [("insulated", "none", torch.float32), ("insulated", "steady", torch.float32), ("3D insulated", "random", torch.float32),
           ("convective", "turning", torch.float64)]


@pytest.mark.parametrize("number", range(len(COMBINATIONS)), ids=["-".join(map(str, c)) for c in COMBINATIONS])
def test_no_weights_make_energy(number: int) -> None:
    name, kind, dtype = COMBINATIONS[number]
    for size in SIZES if LONG else [SIZES[(number // 2 + number // 8) % 3]]:
        assert gained(CASES[name], kind, dtype, size, 40) <= ALLOWED, size


@pytest.mark.parametrize("name, kind, dtype", COMBINATIONS if LONG else
                         [pytest.param(*c, marks=pytest.mark.slow) for c in (*FAR, *FARTHER)])
def test_no_weights_make_energy_in_ten_thousand_steps(name: str, kind: str, dtype: torch.dtype) -> None:
    for size in SIZES if LONG else (1e4,):
        assert gained(CASES[name], kind, dtype, size, 10_000, prepared=True) <= ALLOWED, size


@pytest.mark.parametrize("name, kind, dtype", FAR)
def test_no_weights_make_energy_in_two_thousand_steps(name: str, kind: str, dtype: torch.dtype) -> None:
    assert gained(CASES[name], kind, dtype, 1e4, 2_000, prepared=True) <= ALLOWED


@pytest.mark.parametrize("kind", ["none", "random"])
def test_no_calibrated_coefficients_make_energy(kind: str) -> None:
    """In double precision: coefficients a million times larger leave single precision no digits to show it with."""
    config = replace(CONFIG, calibrate=("diffusion", "convection"))
    for size in SIZES:
        assert gained(CASES["convective"], kind, torch.float64, size, 100, config) <= ALLOWED, size


def test_the_start_and_the_early_steps_change_energy_by_a_bounded_factor() -> None:
    """Each acts once. A cell's mass has eigenvalues between 0.05 (d + 2) and 2.5 d + 3.5, in units of V / (d + 1)(d + 2)."""
    p = Problem(SQUARE, PDE(diffusion=1e-3), (), DT, dtype=torch.float32)
    u = torch.randn(TRAJECTORIES, p.mesh.n_nodes, 1, generator=torch.Generator().manual_seed(1))
    for size in SIZES:
        model = drawn(replace(CONFIG, learn_start=True, early_steps=3), p, size, 3)
        with torch.no_grad():
            state = model.prepare(p, len(u), 100)
            M = state.solver.operators.mass
            sizes, v = [], state.begin(u)
            for k in range(100):
                v = state.step(v, None, k * DT, k)
                sizes.append((v * product(M, v)).sum((1, 2)).sqrt())
        ratio = (2.5 * 2 + 3.5) / (0.05 * 4)
        assert bool((torch.stack(sizes) <= ratio**2 * (u * product(M, u)).sum((1, 2)).sqrt()).all())


def test_every_learned_part_has_a_limit() -> None:
    p = Problem(SQUARE, PDE(diffusion=1e-3, velocity=flow_in(CASES["insulated"], "steady", torch.float32)), (), DT,
                       dtype=torch.float32)
    largest = []
    for size in (1e2, 1e4, 1e6):
        model = drawn(replace(CONFIG, network=False), p, size, 7)
        with torch.no_grad():
            model.free_cell.abs_()
            largest.append(model.prepare(p).solver.operators.stiffness(0.0).values.abs().max())
    assert float(largest[2]) == pytest.approx(float(largest[1]), rel=1e-3) and float(largest[1]) < 2 * float(largest[0])
    z = torch.tensor([0.0, 1.3, 5.0, 10.0, 1e30, torch.inf], dtype=torch.float64)
    limited = ceiling(z, 10.0)
    assert torch.allclose(limited[:2], z[:2], rtol=0, atol=1e-14) and bool((limited <= 10).all()) and float(limited[-1]) == 10.0
