"""Unknown curves of the material, from trajectories."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.discovery.found import material_curves, write_found
from dgnet.discovery.material import MaterialCurves, hats, identify_material
from dgnet.discovery.residuals import quiet_noise
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig, Material
from dgnet.models.dgnet.parts import material as material_part
from dgnet.problems import PDE, Problem, Robin
from dgnet.problems.case import Case
from dgnet.problems.curves import Curve
from dgnet.recipe import Stage
from dgnet.training.fit import evaluate_rne
from dgnet.training.update import iterate
from dgnet_paper.model import BOUNDED, PaperConfig

LATENT, BOTH = 0.5, ("capacity", "diffusion")


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(material_part, "POINTS", {"capacity": 25, "diffusion": 5})


def capacity(u: torch.Tensor) -> torch.Tensor:
    """1, then 1.5, with a latent heat of 0.5 about u = 0.5."""
    return 1 + 0.5 * torch.sigmoid((u - 0.5) / 0.05) + LATENT * torch.exp(-(((u - 0.5) / 0.15) ** 2)) / (0.15 * np.pi**0.5)


@cache
def world() -> tuple[Problem, Corpus, Corpus]:
    """Heated spots that melt, three to train on and one to test: the classical solver with a quarter of the step, the same mesh."""
    mesh = box((7, 7))
    at = torch.linspace(-0.2, 3, 321, dtype=torch.float64)
    spread = Curve(at, 0.02 + 0.01 * at.clamp(min=0), extends=True)
    pde = PDE(("T",), diffusion=spread, capacity=Curve(at, capacity(at), extends=True))
    rng, x = np.random.default_rng(0), mesh.points
    spots = [np.exp(-((x - c) ** 2).sum(1) / 0.1) for c in rng.uniform(0.2, 0.8, (4, 2))]
    source = torch.tensor(np.stack(spots))[:, None, :, None] * torch.tensor([2.5] * 18 + [0.0] * 6)[None, :, None, None].double()
    base = Problem(mesh, pde, [Robin("left", 0.1, 0.0)], 0.05)
    with torch.no_grad():
        fine = replace(base, dt=0.0125)
        states = rollout(Classical(1.0), fine, torch.zeros(4, mesh.n_nodes, 1).double(), source.repeat_interleave(4, 1), 96)[:, ::4]
    data = Corpus(states, source, None, 0.05, (0.0,))
    return base, data.part([0, 1, 2]), data.part([3])


def fresh(train: Corpus, names: tuple[str, ...] = BOTH, **settings) -> tuple[DGNet, Problem]:
    base = world()[0]
    known = {"capacity": base.pde.capacity, "diffusion": base.pde.diffusion} | dict.fromkeys(names, 1.0)
    untold = replace(base, pde=PDE(("T",), **known))
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(**({"decoder": "none", "unknown_curves": names} | settings)), untold).double()
    model.fit_statistics(train.state, train.source_average, train.dt)
    return model, untold


@pytest.mark.parametrize(("names", "noise", "within"), [(BOTH, 0.0, 0.02), (("diffusion",), 0.0, 0.02), (BOTH, 0.01, 0.05)])
def test_the_curves_are_found(names: tuple[str, ...], noise: float, within: float) -> None:
    base, train, test = world()
    shake = torch.randn(train.state.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = replace(train, state=train.state + noise * train.spread * shake)
    model, untold = fresh(data, names)
    start = evaluate_rne(model, untold, test)
    left = identify_material(model, untold, data)
    assert left < 0.1 and evaluate_rne(model, untold, test) < (0.001 if not noise else 0.004) < 0.1 * start
    for found in material_curves(model):
        true = base.pde.per_field(found.name)[0]
        assert isinstance(true, Curve)
        seen = found.share > 0.01
        off = np.abs(np.log(found.value / true.value(torch.tensor(found.u)).numpy()))[seen]
        assert off.max() < within and np.isfinite(found.deviation).all()
        if found.name == "capacity":
            assert found.hump is not None and found.hump[0] < 0.5 < found.hump[1]
            assert found.hump[2] == pytest.approx(LATENT, rel=within if not noise else 0.1)
            assert "latent heat" in found.sentence


def test_tangents_of_the_enthalpy_step_are_derivatives() -> None:
    _, train, _ = world()
    for names in (BOTH, ("capacity",)):
        model, untold = fresh(train, names)
        fit = MaterialCurves(model, model.part(Material), untold, train.part([0]))
        x = 0.3 * torch.sin(torch.arange(len(fit.x)).double()) - (3.0 if names == BOTH else 0.0) * (torch.arange(len(fit.x)) >= 25)
        with torch.no_grad():
            found = fit.at(x)
            for k in (1, 8, len(x) - 2):
                shift = torch.zeros_like(x)
                shift[k] = 1e-4
                ends = [0.5 * fit.at(x + sign * shift).misfit for sign in (1, -1)]
                assert float(-found.downhill[k]) == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=2e-3, abs=1e-6)


def test_hats_integrate_to_the_curve() -> None:
    at = torch.tensor([0.0, 0.5, 2.0, 3.0], dtype=torch.float64)
    values, u = torch.rand(4, dtype=torch.float64) + 0.1, torch.linspace(-1, 4, 41, dtype=torch.float64)
    torch.testing.assert_close(hats(at, u) @ values, Curve(at, values, extends=True).integral(u))


def test_untrained_parts_change_nothing_and_trained_ones_keep_the_heat() -> None:
    """With curves given, a fresh DGNet is the classical solver; with any mass, source and diffusion learned, heat is conserved."""
    base, train, _ = world()
    closed = replace(base, conditions=[])
    model = DGNet(DGNetConfig(free=True, hidden=8, layers=1), closed).double()
    model.fit_statistics(train.state, train.source_average, train.dt)
    u, f = train.state[:, 10], train.source_average[:, 10:16]
    with torch.no_grad():
        ours, plain = rollout(model, closed, u, f, 6), rollout(Classical(1.0), closed, u, f, 6)
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0), dtype=p.dtype))
        ours = rollout(model, closed, u, None, 6)
    assert float((ours - plain).abs().max()) > 1e-4
    volume, c = closed.source_mass.row_sums()[0, 0], base.pde.capacity
    assert isinstance(c, Curve)
    heat = (c.integral(ours[..., 0]) @ volume)
    torch.testing.assert_close(heat, heat[:, :1].expand_as(heat), rtol=1e-7, atol=1e-9)


def test_parts_are_trained_through_the_enthalpy_step() -> None:
    """The mass of data that a lumped one has made."""
    base, train, _ = world()
    with torch.no_grad():
        train = replace(train, state=rollout(Classical(0.0), base, train.state[:, 0], train.source_average, 24))
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(free=True, hidden=8, layers=1), base).double()
    model.fit_statistics(train.state, train.source_average, train.dt)
    optimiser = torch.optim.Adam([{"params": list(model.parameters()), "factor": 1.0, "names": []}], lr=3e-3)
    losses = [iterate(model, base, train, Stage(9, 4, 4), optimiser, train.spread, 0, 0, 1.0) for _ in range(4)]
    assert losses[-1] < losses[0]


def test_the_papers_models_have_the_constants_of_the_lower_end() -> None:
    base, train, _ = world()
    linear = replace(base, pde=PDE(("T",), diffusion=0.02, capacity=1.0))
    u, f = train.state[:, 5], train.source_average[:, 5:8]
    model = DGNet(BOUNDED, base).double()
    with torch.no_grad():
        torch.testing.assert_close(rollout(model, base, u, f, 3), rollout(Classical(0.0), linear, u, f, 3), rtol=1e-3, atol=1e-4)


def test_tables_of_what_was_found(tmp_path) -> None:
    model, untold = fresh(world()[1])
    case = Case(name="", title="", equation="", build_mesh=lambda: untold.mesh, pde=untold.pde, conditions=(), dt=0.1, steps=1)
    assert write_found(tmp_path, model, case) == ["capacity.csv", "diffusion.csv"]
    head, *rows = (tmp_path / "capacity.csv").read_text().splitlines()
    assert head.startswith("T,capacity,") and len(rows) == 25 and all(r.count(",") == 4 for r in rows)


def test_noise_is_measured_where_little_happens() -> None:
    _, train, _ = world()
    shake = torch.randn(train.state.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert quiet_noise(train.state) < 2e-3
    assert quiet_noise(train.state + 0.01 * shake) == pytest.approx(0.01, rel=0.3)


def test_what_cannot_be_learned_is_refused() -> None:
    base = world()[0]
    for settings in ({"unknown_curves": ("decay",)}, {"unknown_curves": BOTH, "decoder": "edge"},
                     {"unknown_curves": BOTH, "calibrate": ("diffusion",)}):
        with pytest.raises(InputError, match="curve"):
            PaperConfig(**settings)
    with pytest.raises(InputError, match="one field"):
        DGNet(DGNetConfig(unknown_curves=BOTH), replace(base, pde=PDE(("u", "v"), diffusion=1.0)))
    with pytest.raises(InputError, match="unknown curves"):
        identify_material(DGNet(DGNetConfig(hidden=8, layers=1), base), base, world()[1])
