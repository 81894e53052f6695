"""Unknown coefficients recovered from two trajectories of the reference solver on a finer mesh, from twice or half their value."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet.models import rollout
from dgnet.models.dgnet import DGNet, DGNetConfig, regions_of
from dgnet.operators import mass
from dgnet.problems import PDE, Problem, Robin, step_average
from dgnet.training import Recipe, Stage, calibrated_first, fit, uncertainty
from dgnet_paper.reference.transport import solve

Tensor = torch.Tensor

DT, STEPS = 0.05, 20
TRUE = {"diffusion": 0.05, "decay": 0.6, "convection": 0.2}
PLAN = Recipe("calibration", (Stage(5, STEPS, method="gauss-newton", only=("calibration",)),))
"""Whole trajectories from their start: noise in the first state dies out, in short windows it would look like diffusion."""


def plate() -> Mesh:
    return box((30, 25), upper=(1.2, 1.0), perturb=0.2, seed=2)


def problem(mesh: Mesh, wrong: str | None = None, factor: float = 1.0) -> Problem:
    value = TRUE | ({} if wrong is None else {wrong: TRUE[wrong] * factor})
    return Problem(mesh, PDE(("T",), diffusion=value["diffusion"], decay=value["decay"]),
                          (Robin("boundary", value["convection"], 0.0),), DT, dtype=torch.float32)


def lamps(x: Tensor, t: Tensor) -> Tensor:
    """Two trajectories [2, T, n, 1]: a lamp that is switched on softly, and one that moves."""
    def spot(a: Tensor, b: Tensor, width: float) -> Tensor:
        return torch.exp(-((x[:, 0] - a[:, None]) ** 2 + (x[:, 1] - b[:, None]) ** 2) / width**2)

    on = (1 - torch.exp(-5 * t))[:, None]
    return torch.stack([3 * on * spot(0 * t + 0.4, 0 * t + 0.4, 0.4), 2 * on * spot(0.3 + 0.7 * t, 0.8 - 0.2 * t, 0.35)])[..., None]


def simulated(p: Problem) -> tuple[Tensor, Tensor]:
    """States [2, T+1, N, 1] from the independent solver, refined twice with four substeps, and the step-averaged source."""
    start = torch.zeros(2, p.mesh.n_nodes, 1, dtype=torch.float64)
    states = solve(p.mesh, p.pde, p.conditions, start, dt=DT, steps=STEPS, refine=2, substeps=4, source=lamps)
    return states, step_average(lamps, torch.tensor(p.mesh.points), DT * torch.arange(STEPS), DT)


@lru_cache
def truth() -> tuple[Tensor, Tensor]:
    return simulated(problem(plate()))


def noisy(states: Tensor, share: float) -> Tensor:
    """White noise on every stored value, the start included, in units of the data's spread."""
    g = torch.Generator().manual_seed(3)
    return states + share * states.std() * torch.randn(states.shape, generator=g, dtype=states.dtype)


def calibrated(model: DGNet, base: Problem, states: Tensor, source: Tensor | None, plan: Recipe = PLAN) -> dict[str, float]:
    data = Corpus(states.float(), None if source is None else source.float(), None, base.dt, (0.0,))
    progress = fit(model, base, data, data, plan)
    assert progress.best < 0.3 * progress.classical  # far better than the wrong coefficients
    return model.coefficients()


@pytest.mark.parametrize("factor", [2.0, 0.5])
@pytest.mark.parametrize("name", TRUE)
@pytest.mark.parametrize("noise, tolerance", [(0.0, 0.01), (0.01, 0.05)], ids=["clean", "noisy"])
def test_a_coefficient_is_recovered(name: str, factor: float, noise: float, tolerance: float) -> None:
    base = problem(plate(), name, factor)
    model = DGNet(DGNetConfig(decoder="none", network=False, calibrate=(name,)), base)
    states, source = truth()
    found = calibrated(model, base, noisy(states, noise), source)
    assert list(found) == [name]
    print(f"{name} x {factor}, noise {noise}: {factor * found[name] - 1:+.2%}")
    assert found[name] * factor == pytest.approx(1.0, rel=tolerance)


def test_three_coefficients_at_once_and_how_sure_they_are() -> None:
    """What noise alone does to them is what their standard errors say."""
    wrong = {"diffusion": 2.0, "decay": 0.5, "convection": 0.6}
    base = problem(plate())
    base = replace(base, pde=PDE(("T",), diffusion=0.1, decay=0.3), conditions=(Robin("boundary", 0.12, 0.0),))
    states, source = truth()
    found = {}
    for noise in (0.0, 0.01):
        model = DGNet(DGNetConfig(decoder="none", network=False, calibrate=tuple(wrong)), base)
        found[noise] = calibrated(model, base, noisy(states, noise), source)
        assert {k: v * wrong[k] for k, v in found[noise].items()} == pytest.approx(dict.fromkeys(wrong, 1.0), rel=0.03)
    data = Corpus(noisy(states, 0.01).float(), source.float(), None, DT, (0.0,))
    sure = {name: bar.noise for name, bar in uncertainty(model, base, data).items()}
    assert sure.keys() == wrong.keys() and all(0 < e < 0.01 for e in sure.values())
    for name, error in sure.items():
        assert abs(math.log(found[0.01][name] / found[0.0][name])) < 4 * error


def two_regions() -> tuple[Mesh, np.ndarray]:
    mesh = box((30, 25), upper=(1.2, 1.0), perturb=0.2, seed=2)
    west = np.flatnonzero(mesh.centroids[:, 0] < 0.6)
    mesh = Mesh(mesh.points, mesh.cells, mesh.boundaries, {"west": west, "east": np.setdiff1d(np.arange(mesh.n_cells), west)})
    return mesh, np.where(mesh.centroids[:, 0] < 0.6, 0.08, 0.02)


@pytest.mark.parametrize("noise, tolerance", [(0.0, 0.01), (0.01, 0.05)], ids=["clean", "noisy"])
def test_diffusivities_of_two_regions_are_recovered(noise: float, tolerance: float) -> None:
    """From one wrong number for both."""
    mesh, diffusivity = two_regions()
    true = Problem(mesh, PDE(("T",), diffusion=diffusivity), (Robin("boundary", 0.2, 0.0),), DT, dtype=torch.float32)
    states, source = simulated(true)
    base = replace(true, pde=PDE(("T",), diffusion=0.04))
    model = DGNet(DGNetConfig(decoder="none", network=False, calibrate=("diffusion",), regions=True), base)
    found = calibrated(model, base, noisy(states, noise), source)
    assert found == pytest.approx({"diffusion in east": 0.5, "diffusion in west": 2.0}, rel=tolerance)


def test_regions_in_the_operators() -> None:
    """Factors enter as if the coefficients had been given that way; on a mesh with regions in another order, too."""
    mesh, _ = two_regions()
    flat = DGNetConfig(decoder="none", network=False, calibrate=("diffusion", "decay"), regions=True)
    pde = PDE(("u", "v"), diffusion={"u": 0.1, "v": 0.2}, decay=0.3)
    base = Problem(mesh, pde, (), DT)
    model = DGNet(flat, base).double()
    assert set(model.coefficients()) == {"diffusion of u in east", "diffusion of u in west", "diffusion of v in east",
                                         "diffusion of v in west", "decay in east", "decay in west"}
    with torch.no_grad():
        model.calibration["diffusion"].copy_(torch.tensor([[2.0, 3.0], [4.0, 5.0]], dtype=torch.float64).log())
        model.calibration["decay"].copy_(torch.tensor([6.0, 1.0], dtype=torch.float64).log())
    assert model.coefficients()["diffusion of v in west"] == pytest.approx(5.0)
    east = torch.zeros(mesh.n_cells, dtype=torch.float64)
    east[mesh.regions["east"]] = 1
    given = replace(base, pde=replace(pde, decay=0.0, diffusion={"u": 0.1 * (3 - east), "v": 0.2 * (5 - east)}))
    u = torch.randn(1, mesh.n_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    decay = 0.3 * mass(base.geometry, 1.0, 1 + 5 * east)
    with torch.no_grad():
        for config in (flat, replace(flat, decoder="structured", free=True)):
            other = DGNet(config, base).double()
            other.calibration.load_state_dict(model.calibration.state_dict())
            K = other.prepare(base).solver.operators.stiffness(0.0)
            wanted = given.stiffness().values + decay.values
            assert torch.allclose(K.values, wanted, rtol=1e-10, atol=1e-12)
        turned = Mesh(mesh.points, mesh.cells, mesh.boundaries, dict(reversed(list(mesh.regions.items()))))
        assert torch.equal(rollout(model, replace(base, mesh=turned), u, None, 3), rollout(model, base, u, None, 3))
        halves = Mesh(mesh.points, mesh.cells, mesh.boundaries, {"steel": mesh.regions["east"]})
        with pytest.raises(InputError, match="knows no region 'steel'"):
            rollout(model, replace(base, mesh=halves), u, None, 3)


def test_bad_regions_are_named() -> None:
    plain = box((3, 3))
    with pytest.raises(InputError, match="names no regions"):
        DGNet(DGNetConfig(calibrate=("diffusion",), regions=True), Problem(plain, PDE(diffusion=1.0), (), DT))
    with pytest.raises(InputError, match="needs diffusion or decay"):
        DGNetConfig(calibrate=("convection",), regions=True)
    part = Mesh(plain.points, plain.cells, {}, {"a": np.array([0, 1])})
    assert regions_of(part)[0] == ("a", "rest") and regions_of(part)[1].tolist() == [0, 0, *[1] * 16]
    with pytest.raises(InputError, match="cell 1 is in the regions 'a' and 'b'"):
        regions_of(Mesh(plain.points, plain.cells, {}, {"a": np.array([0, 1]), "b": np.array([1, 2])}))
    with pytest.raises(InputError, match="region 'rest'"):
        regions_of(Mesh(plain.points, plain.cells, {}, {"rest": np.array([0, 1])}))


def test_coefficients_before_and_after_the_rest() -> None:
    """`calibrated_first`: what is learned in between makes the surrogate better and does not move the coefficient away."""
    mesh = box((12, 10), upper=(1.2, 1.0), perturb=0.2, seed=2)  # coarse: its errors bias the coefficient
    true = problem(mesh)
    states, source = simulated(true)
    base = problem(mesh, "diffusion", 2.0)
    data = Corpus(states.float(), source.float(), None, DT, (0.0,))
    config = DGNetConfig(free=True, network=False, learn_diffusion=False, calibrate=("diffusion",))
    plan = calibrated_first(Recipe("short", (Stage(60, 5, 8, 3e-3),)), STEPS, 4)
    assert [s.method for s in plan.stages] == ["gauss-newton", "adam", "gauss-newton"]
    found, model = [], DGNet(config, base)
    for stage in plan.stages:
        progress = fit(model, base, data, data, replace(plan, stages=(stage,)))
        found.append((2 * model.coefficients()["diffusion"] - 1, progress.best))
    off, error = zip(*found)
    assert off[1] == off[0] and 0.01 < abs(off[0]) < 0.05 and abs(off[2]) < abs(off[0])
    assert error[2] <= error[1] < 0.7 * error[0]
    with pytest.raises(InputError, match="between 1 and 64 numbers"):
        fit(model, base, data, data, Recipe("all", (Stage(1, 5, method="gauss-newton"),)))
    with pytest.raises(InputError, match="unknown training method"):
        Stage(1, 1, method="newton")
