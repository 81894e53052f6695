"""The analysis against textbook answers: spectra, norms, Theorem 2, consistency; large and small meshes agree; pictures exist."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import linalg

from dgnet.errors import InputError
from dgnet.mesh import box, perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, Dirichlet, Problem, Robin
from dgnet.report import pictures
from dgnet_paper.analyse.operator import Pencil, study
from dgnet_paper.analyse.pictures import analyse
from dgnet_paper.model import BOUNDED, PaperConfig, variants

SMALL = PaperConfig(free=True, hidden=12, layers=1, residual_hidden=12, residual_layers=1, reaction_hidden=12)


def model_of(config: DGNetConfig, problem: Problem, moved: float = 0.0) -> DGNet:
    torch.manual_seed(0)
    model = DGNet(config, problem).to(problem.dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(moved * torch.randn_like(p))
    return model


def vortex(mesh) -> torch.Tensor:
    x, y = mesh.points.T * np.pi
    return torch.tensor(np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)], 1))


def test_heat_equation_has_the_eigenvalues_of_the_square() -> None:
    """-pi^2 (i^2 + j^2), and with a fixed rim everything decays."""
    problem = Problem(perturbed_square(16), PDE(diffusion=1.0), (), 0.01)
    found = study(model_of(SMALL, problem), problem).fields[0]
    lowest = np.sort(-found.spectra["learned"].real)[:4] / np.pi**2
    assert lowest == pytest.approx([0, 1, 1, 2], abs=0.03)
    n = found.numbers
    for key in ("physics", "learned"):  # untrained: the same operator
        assert n[key]["stable"] and n[key]["dissipative"] and n[key]["contractive"] and n[key]["symmetric"] and n[key]["proven"]
        assert n[key]["step_norm_mass"] == pytest.approx(1.0, abs=1e-10)
    assert n["theorem2"]["gamma"] < 1e-8 * abs(n["physics"]["leftmost"]) and not n["theorem2"]["applies"]  # constants do not decay
    fixed = replace(problem, conditions=tuple(Dirichlet(side) for side in ("left", "right", "top", "bottom")))
    n = analyse(model_of(SMALL, fixed), fixed)["fields"]["u"]
    assert n["learned"]["rightmost"] == pytest.approx(-2 * np.pi**2, rel=0.03) and n["theorem2"]["applies"]
    assert n["theorem2"]["eta"] == pytest.approx(-n["physics"]["rightmost"]) and n["learned"]["step_norm_mass"] < 1


def test_theorem_2_where_it_applies() -> None:
    """A strong decay makes eta large: then the bound -eta + gamma holds for the learned operator, and the step contracts."""
    problem = Problem(perturbed_square(7), PDE(diffusion=0.01, decay=5.0), (), 1.0)
    found = analyse(model_of(replace(BOUNDED, hidden=12, layers=1), problem, 0.3), problem)["fields"]["u"]
    t, n = found["theorem2"], found["learned"]
    assert 0 < t["gamma"] < t["eta"] and t["applies"] and not n["symmetric"]
    assert n["rightmost"] <= n["log_norm_mass"] + 1e-9 and n["log_norm_mass"] <= t["bound"] + 1e-9 < 0
    assert n["step_norm_mass"] < 1 == n["step_norm_bound"]
    # the paper's sharper bound on the step, (1 + h mu) / (1 - h mu), does not hold: stiff modes tend to |r| = 1
    assert n["step_norm_mass"] > n["step_norm_bound_paper"]
    assert 0 < found["size"]["frobenius_ratio"] < 0.5 and found["size"]["per_node"]["max"] < 1


CASES = {
    "diffusion": (PDE(diffusion=0.1), SMALL),
    "advection": (None, replace(SMALL, advection_form="skew")),
    "paper": (None, replace(BOUNDED, hidden=12, layers=1, advection_form="skew")),
}


@pytest.mark.parametrize("kind", CASES)
def test_large_meshes_give_what_small_ones_give(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Krylov methods against dense ones on the same mesh, and both against plain linear algebra."""
    mesh = perturbed_square(14)
    pde, config = CASES[kind]
    problem = Problem(mesh, pde or PDE(diffusion=1e-3, velocity=vortex(mesh)), (Robin("left", 0.2, 1.0),), 0.05)
    model = model_of(config, problem, 0.2)
    small, large = (study(model, problem, dense=limit) for limit in (None, 10))
    a, b = small.numbers()["fields"]["u"], large.numbers()["fields"]["u"]
    for key in ("physics", "learned"):
        for name in ("rightmost", "log_norm_mass", "log_norm_euclidean", "step_norm_mass"):
            assert b[key][name] == pytest.approx(a[key][name], rel=1e-4, abs=1e-6), (key, name)
        assert a[key]["stable"] == b[key]["stable"] and a[key]["contractive"] == b[key]["contractive"]
    assert b["theorem2"]["gamma"] == pytest.approx(a["theorem2"]["gamma"], rel=1e-3)
    assert b["size"]["frobenius_ratio"] == pytest.approx(a["size"]["frobenius_ratio"], rel=0.1)
    assert a["learned"]["proven"] and not large.numbers()["complete_spectrum"]

    q = small.fields[0].learned
    M, K = q.M.toarray(), q.K.toarray()
    L = -np.linalg.solve(M, K)
    root = linalg.sqrtm(M).real
    inverse = np.linalg.inv(root)
    S = np.linalg.solve(M + 0.025 * K, M - 0.025 * K)
    mine = root @ L @ inverse
    assert a["learned"]["rightmost"] == pytest.approx(np.linalg.eigvals(L).real.max(), abs=1e-9)
    assert a["learned"]["log_norm_mass"] == pytest.approx(np.linalg.eigvalsh(0.5 * (mine + mine.T)).max(), abs=1e-9)
    assert a["learned"]["log_norm_euclidean"] == pytest.approx(np.linalg.eigvalsh(0.5 * (L + L.T)).max(), abs=1e-9)
    assert a["learned"]["step_norm_mass"] == pytest.approx(np.linalg.norm(root @ S @ inverse, 2), abs=1e-9)
    if kind != "paper":  # skew advection along the walls, learned mass and diffusion: dissipative for any weights
        assert a["learned"]["dissipative"] and a["learned"]["contractive"]


def test_numerical_range_encloses_the_spectrum() -> None:
    mesh = perturbed_square(8)
    problem = Problem(mesh, PDE(diffusion=1e-2, velocity=vortex(mesh)), (), 0.05)
    found = study(model_of(SMALL, problem, 0.2), problem).fields[0]
    pencil: Pencil = found.learned
    hull, values = found.ranges["learned"], found.spectra["learned"]
    for angle in -np.linspace(0, 2 * np.pi, 7):
        reach = pencil.reach(angle)[0]
        assert (np.exp(1j * angle) * values).real.max() <= reach + 1e-9
        assert (np.exp(1j * angle) * hull).real.max() <= reach + 1e-9
    assert hull.real.max() == pytest.approx(pencil.reach(0.0)[0], abs=1e-6)


def test_consistency_sees_what_was_learned() -> None:
    """Truth with half the diffusivity: a model that knows it removes the whole error of a step, an untrained one nothing."""
    mesh = perturbed_square(8)

    def make(D: float) -> Problem:
        return Problem(mesh, PDE(("u", "v"), diffusion=D, reaction=torch.sin), (Dirichlet("left", 1.0, "v"),), 0.05)

    g = torch.Generator().manual_seed(0)
    u0, f = (torch.rand(2, *shape, dtype=torch.float64, generator=g) for shape in ((mesh.n_nodes, 2), (12, mesh.n_nodes, 2)))
    with torch.no_grad():
        truth = rollout(Classical(start=0), make(0.05), u0, f)
    config = DGNetConfig(decoder="none", network=False, calibrate=("diffusion",))
    model = model_of(config, make(0.1))
    c = analyse(model, make(0.1), truth, f, steps=5)["consistency"]
    assert c["ratio"] == pytest.approx(1.0) and c["steps"] == 5 and c["trajectories"] == 2 and c["classical"] > 1e-3
    with torch.no_grad():
        model.calibration["diffusion"].fill_(np.log(0.5))
    n = analyse(model, make(0.1), truth, f)
    c = n["consistency"]
    assert c["ratio"] < 1e-9 and c["removed"] == pytest.approx(1.0) and c["cosine"] == pytest.approx(1.0)
    assert len(c["ratio_by_step"]) == c["steps"] == 12 and set(c["ratio_per_field"]) == {"u", "v"}
    assert n["fields"]["u"]["size"]["frobenius_ratio"] == pytest.approx(0.5)
    # a reaction that the model is to learn is not given to the classical step beside it either
    c = analyse(model_of(replace(config, reaction="learned", calibrate=()), make(0.05)), make(0.05), truth, f)["consistency"]
    assert c["ratio"] == pytest.approx(1.0) and c["classical"] > 0.01


@pytest.mark.parametrize("kind", ["plane", "flow", "space", "edge"])
def test_pictures_and_plain_numbers(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = pictures.save_figure
    monkeypatch.setattr(pictures, "save_figure", lambda figure, path, dpi: save(figure, path, dpi // 3))  # as sharp takes seconds
    mesh = box((4, 3, 3), perturb=0.2) if kind == "space" else perturbed_square(7)
    pde = PDE(diffusion=0.1, velocity=vortex(mesh) if kind == "flow" else None)
    problem = Problem(mesh, pde, (), 0.05, dtype=torch.float32)  # trained in single precision, analysed in double
    model = model_of(replace(BOUNDED, hidden=12, layers=1) if kind == "edge" else SMALL, problem, 0.1)
    states = torch.rand(2, 4, mesh.n_nodes, 1)
    out = analyse(model, problem, states, None, folder=tmp_path, dense=20 if kind == "plane" else None)
    assert json.loads(json.dumps(out, allow_nan=False)) == out
    assert set(out["figures"]) == {"spectrum.png", "matrices.png", "edges.png", "truncation.png", "consistency.png"}
    assert all((tmp_path / name).stat().st_size > 2000 for name in out["figures"]) and not list(tmp_path.glob("*.part"))
    assert (out["mass_factor"] is None) == (kind == "edge") and next(model.parameters()).dtype == torch.float32


def test_a_model_without_an_operator_is_refused() -> None:
    problem = Problem(perturbed_square(4), PDE(diffusion=0.1), (), 0.05)
    with pytest.raises(InputError, match="does not solve"):
        analyse(model_of(variants(BOUNDED)["D"], problem), problem)
