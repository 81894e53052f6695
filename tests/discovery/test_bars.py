"""The error bar of a calibrated coefficient covers the truth: noise, mesh and time step are in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch

from dgnet.data import Corpus
from dgnet.discovery import calibrate
from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, Dirichlet, Problem, Robin, step_average
from dgnet.problems.finer import half_steps, prolonged, refined
from dgnet.stepping import product
from dgnet.training import Recipe, Stage, fit, uncertainty
from dgnet_paper.reference.transport import solve

Tensor = torch.Tensor
DT, STEPS = 0.05, 16
TRUE = {"diffusion": 0.05, "decay": 0.6, "convection": 0.2}
GUESS = {"diffusion": 0.1, "decay": 0.3, "convection": 0.12}


def lamps(width: float) -> Callable[[Tensor, Tensor], Tensor]:
    def heating(x: Tensor, t: Tensor) -> Tensor:
        """Two trajectories [2, T, n, 1]: a lamp at rest and one that moves."""
        places = (torch.stack([0 * t + 0.4, 0 * t + 0.4], 1), torch.stack([0.3 + 0.7 * t, 0.8 - 0.2 * t], 1))
        deep = ((x[:, 2] - 0.3) ** 2 if x.shape[1] == 3 else 0.0)
        on = (1 - torch.exp(-5 * t))[:, None]
        far = [((x[:, :2] - p[:, None]) ** 2).sum(-1) + deep for p in places]
        return torch.stack([3 * on * torch.exp(-r / width**2) for r in far])[..., None]

    return heating


def equation(mesh: Mesh, value: dict[str, float]) -> Problem:
    return Problem(mesh, PDE(("T",), diffusion=value["diffusion"], decay=value["decay"]),
                          (Robin("boundary", value["convection"], 0.0),), DT)


@lru_cache
def plate(dim: int, seed: int) -> Mesh:
    if dim == 3:
        return box((5, 4, 3), upper=(1.0, 0.8, 0.6), perturb=0.15, seed=seed)
    return box((12, 10), upper=(1.2, 1.0), perturb=0.2, seed=seed)


@lru_cache
def truth(dim: int, seed: int, width: float) -> tuple[Tensor, Tensor]:
    """States of the independent solver on a mesh refined twice, and the step-averaged source at the coarse nodes."""
    mesh = plate(dim, seed)
    p = equation(mesh, TRUE)
    start = torch.zeros(2, mesh.n_nodes, 1, dtype=torch.float64)
    states = solve(mesh, p.pde, p.conditions, start, dt=DT, steps=STEPS, refine=2, substeps=2, source=lamps(width))
    return states, step_average(lamps(width), torch.tensor(mesh.points), DT * torch.arange(STEPS), DT)


def calibrated(dim: int, seed: int, width: float, names: tuple[str, ...], noise: float) -> tuple[DGNet, Problem, Corpus]:
    states, source = truth(dim, seed, width)
    g = torch.Generator().manual_seed(seed)
    states = states + noise * states.std() * torch.randn(states.shape, generator=g, dtype=states.dtype)
    base = equation(plate(dim, seed), TRUE | {n: GUESS[n] for n in names})
    model = DGNet(DGNetConfig(decoder="none", network=False, calibrate=names), base).double()
    data = Corpus(states, source, None, DT, (0.0,))
    fit(model, base, data, data, Recipe("calibration", (Stage(4, STEPS, method="gauss-newton", only=("calibration",)),)))
    return model, base, data


@pytest.mark.parametrize(("dim", "seed", "width", "names", "noise"), [
    (2, 2, 0.2, ("diffusion",), 0.0), (2, 2, 0.2, ("diffusion",), 0.01), (2, 3, 0.2, ("diffusion",), 0.05),
    (2, 4, 0.35, ("diffusion", "decay", "convection"), 0.0), (2, 5, 0.35, ("diffusion", "decay", "convection"), 0.01),
    (3, 0, 0.3, ("diffusion",), 0.0), (3, 0, 0.3, ("diffusion",), 0.01), (3, 1, 0.3, ("diffusion",), 0.01)])
def test_the_bar_covers_the_truth(dim: int, seed: int, width: float, names: tuple[str, ...], noise: float) -> None:
    model, base, data = calibrated(dim, seed, width, names, noise)
    for source in (None, lamps(width)):
        bars = uncertainty(model, base, data, source)
        assert list(bars) == list(names)
        for name, bar in bars.items():
            true = TRUE[name] / GUESS[name]
            off, before = math.log(bar.best / true), math.log(bar.factor / true)
            print(f"{dim}D, seed {seed}, noise {noise:g}, {name}: fitted {before:+.2%}, best {off:+.2%} ± {bar.error:.2%}, "
                  f"standard error from noise {bar.noise:.2%}")
            assert abs(off) < bar.error < 0.3
            if name == "diffusion":
                assert abs(before) > 5 * bar.noise  # what noise alone would have said
                assert abs(off) < (0.8 if source is None else 0.3) * abs(before)


def test_a_source_that_is_the_same_for_all_trajectories() -> None:
    """Of two trajectories: one row stands for both, as a table of spots gives it."""
    model, base, data = calibrated(2, 2, 0.2, ("diffusion",), 0.0)

    def first(x: Tensor, t: Tensor) -> Tensor:
        return lamps(0.2)(x, t)[:1]

    bars = [uncertainty(model, base, data, source)["diffusion"] for source in (
        first, lambda x, t: first(x, t).expand(len(data), -1, -1, -1))]
    assert len(data) == 2 and bars[0] == bars[1]


def test_too_many_nodes_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model, base, data = calibrated(2, 2, 0.2, ("diffusion",), 0.0)
    monkeypatch.setattr(calibrate, "_FINEST", 100)
    bar = uncertainty(model, base, data)["diffusion"]
    assert math.isnan(bar.mesh) and math.isnan(bar.step) and "not included" in str(bar)
    assert bar.best == pytest.approx(bar.factor, rel=1e-3)
    monkeypatch.undo()
    monkeypatch.setattr(calibrate, "_FINE", 4 * base.mesh.n_nodes * STEPS)  # room for one trajectory of two
    assert abs(uncertainty(model, base, data)["diffusion"].mesh) > 0.02


def test_prolongation_is_exact_where_it_should_be() -> None:
    for mesh in (plate(2, 2), plate(3, 0)):
        x, fine = torch.tensor(mesh.points), torch.tensor(mesh.refined().points)
        up = prolonged(mesh)
        for smooth in (False, True):
            torch.testing.assert_close(up(1 + x @ x.new_ones(mesh.dim, 2), smooth), 1 + fine @ x.new_ones(mesh.dim, 2))
        bump, wanted = (torch.exp(-((y - 0.4) ** 2).sum(1) / 0.3)[None, :, None] for y in (x, fine))
        assert float((up(bump, True) - wanted).norm()) < 0.7 * float((up(bump) - wanted).norm())
    f = torch.arange(5.0)[None, :, None, None]
    assert half_steps(f)[0, 2:8, 0, 0].tolist() == [0.75, 1.25, 1.75, 2.25, 2.75, 3.25]


def test_coefficients_go_with_the_mesh() -> None:
    """Refined, a problem has the stiffness of the same coefficients: of a linear function the energies agree."""
    mesh = plate(2, 2)
    x = torch.tensor(mesh.points)
    pde = PDE(("u", "v"), diffusion={"u": torch.linspace(1, 2, mesh.n_cells), "v": 0.3}, decay=1 + x[:, 0],
              capacity=torch.linspace(2, 3, mesh.n_cells), velocity=lambda t: (1 + t) * x)
    coarse = Problem(mesh, pde, [Dirichlet("left", 1.0, "u")], DT)
    fine = refined(coarse)
    assert fine.fixed is not None and coarse.fixed is not None and int(fine.fixed.sum()) == 2 * int(coarse.fixed.sum()) - 1

    u = torch.stack([x[:, 0], x[:, 1]], -1)[None]
    for part in ("diffusion_part", "mass"):
        a, b = (float((product(getattr(p, part), w) * w).sum()) for p, w in ((coarse, u), (fine, prolonged(mesh)(u))))
        assert a == pytest.approx(b, rel=1e-12)
    assert torch.equal(fine.pde.velocity(1.0)[: mesh.n_nodes], pde.velocity(1.0))  # type: ignore[misc, operator]


def test_what_the_data_do_not_tell_is_said() -> None:
    states, source = truth(2, 2, 0.2)
    base = equation(plate(2, 2), TRUE | {"decay": 1e-9})
    model = DGNet(DGNetConfig(decoder="none", network=False, calibrate=("decay",)), base).double()
    for data in (Corpus(states, source, None, DT, (0.0,)), Corpus(0 * states, 0 * source, None, DT, (0.0,))):
        assert str(uncertainty(model, base, data)["decay"]) == "not determined by these data"


@pytest.mark.parametrize(("pde", "name", "word"), [
    (PDE(diffusion=0.1), "decay", "decay is zero everywhere"),
    (PDE(diffusion=0.0, decay=1.0), "diffusion", "diffusion is zero everywhere"),
    (PDE(("u", "v"), diffusion={"u": 1.0, "v": 0.0}), "diffusion", "diffusion of v is zero everywhere"),
    (PDE(diffusion=0.1), "convection", "convection is zero on every boundary")])
def test_zero_times_any_factor_is_refused(pde: PDE, name: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        DGNet(DGNetConfig(calibrate=(name,)), Problem(plate(2, 2), pde, [Robin("left", 0.0, 1.0)], DT))
