"""Rollouts with another time step, on another mesh, and with sources from every kind of file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.mesh import box, save
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNetConfig
from dgnet.models.registry import entry
from dgnet.prediction.source_files import stored_source
from dgnet.prediction.to_files import predict_to_files, summary
from dgnet.problems import PDE, Problem, Robin
from dgnet.problems.case import base_problem
from dgnet.problems.spot_table import SpotTable
from dgnet.projects import load
from dgnet.training.run import Run, Settings
from dgnet_paper.model import PaperConfig
from tests.projects.conftest import DT, SPOTS, STEPS, TOML, command, write_tiny

CORE = 'file = "plate.msh"\nregions.core = { x = [0, 0.62] }'
LAMP = "import torch\n\ndef lamp(x, t):\n    return 5.0 * x[:, 0] * t\n"


@pytest.fixture
def own(tmp_path: Path) -> Run:
    """An untrained run, that is, the classical solver, of a plate of two materials; its physics.py holds a source."""
    text = TOML.replace('file = "plate.msh"', CORE).replace("diffusion = 0.05", 'conductivity = { core = 0.1, elsewhere = 0.2 }\n'
                                                            "volumetric_capacity = { core = 2.0, elsewhere = 3.0 }")
    folder = write_tiny(tmp_path / "p", text)
    (folder / "physics.py").write_text(LAMP)
    p = load(folder)
    return opened(p, DGNetConfig(hidden=8, layers=1))


def opened(p: Any, config: Any, model: str = "dgnet") -> Run:
    settings = Settings(p.case.name, "own", "given", str(p.data), model)
    made = entry(model).make(config, base_problem(p.case, "cpu"))
    folder = p.folder / "run"
    folder.mkdir(exist_ok=True)
    return Run(folder=folder, settings=settings, case=p.case, model=made, project=p)


def states(run: Run, **options: Any) -> tuple[dict[str, Any], np.ndarray]:
    kept: list[np.ndarray] = []
    result = predict_to_files(run, sink=lambda k, u: kept.append(u), **options)
    return result, np.stack(kept)


def test_another_step_is_the_equation_with_that_step(own: Run, tmp_path: Path) -> None:
    spots = tmp_path / "s.csv"
    spots.write_text(SPOTS)
    result, found = states(own, source=spots, dt=DT / 4)
    assert result["steps"] == 4 * STEPS and result["dt"] == DT / 4
    p = replace(own.case, dt=DT / 4).problem()
    f = SpotTable.read(spots, 2).on(p.mesh).average(torch.tensor(p.mesh.points), 0, 4 * STEPS, DT / 4)
    want = rollout(Classical(), p, torch.full((1, p.mesh.n_nodes, 1), 20.0, dtype=torch.float64), f, 4 * STEPS)[0].numpy()
    np.testing.assert_allclose(found, want, atol=2e-4 * np.ptp(want))
    assert f"Steps of {DT / 4:g} s instead of the {DT:g} s of the training" in summary(result)
    assert states(own, source=spots)[0]["notes"] == []


@pytest.mark.parametrize("ratio", [0.5, 2.0, 0.4])
def test_a_stored_source_keeps_its_integral(own: Run, ratio: float) -> None:
    with Dataset(own.data) as data:
        whole = data.read(0).source_average
        drive, steps = stored_source(data, 0, ratio), int(STEPS / ratio)
        rows = torch.cat([drive.rows(k, min(k + 2, steps)) for k in range(0, steps, 2)], 1)[0].numpy()  # in blocks
        assert whole is not None and len(rows) == steps
        np.testing.assert_allclose(ratio * rows.sum(0), whole.sum(0), rtol=1e-5)
        if ratio == 2.0:
            np.testing.assert_allclose(rows, 0.5 * (whole[::2] + whole[1::2]), rtol=1e-5)
    result, found = states(own, trajectory=0, dt=ratio * DT)
    assert result["steps"] == steps and result["rne"] is not None and np.isfinite(found).all()


def test_another_mesh(own: Run, tmp_path: Path) -> None:
    """Equation and conditions come from the problem file, regions included; the result is that mesh's own solution."""
    other = box((11, 9), upper=(1.2, 0.9), perturb=0.1, seed=8)
    save(other, tmp_path / "other.msh")
    result, found = states(own, source=own.project.folder / "run-1.csv", mesh=tmp_path / "other.msh")
    assert result["nodes"] == other.n_nodes and "instead of the mesh of the training" in summary(result)
    core = other.centroids[:, 0] <= 0.62
    pde = PDE(("T",), np.where(core, 0.1, 0.2), capacity=np.where(core, 2.0, 3.0))
    p = Problem(other, pde, [Robin("left", 0.02, 20.0)], DT)
    f = SpotTable.read(own.project.folder / "run-1.csv", 2).on(other).average(torch.tensor(other.points), 0, STEPS, DT)
    want = rollout(Classical(), p, torch.full((1, other.n_nodes, 1), 20.0, dtype=torch.float64), f, STEPS)[0].numpy()
    np.testing.assert_allclose(found, want, atol=2e-4 * np.ptp(want))


def test_what_is_refused(own: Run, tmp_path: Path) -> None:
    spots = own.project.folder / "run-1.csv"
    save(box((4, 4)), tmp_path / "other.npz")
    nameless = box((4, 4))
    save(type(nameless)(nameless.points, nameless.cells, {}), tmp_path / "nameless.npz")
    save(box((2, 2, 2)), tmp_path / "space.npz")
    free = opened(own.project, DGNetConfig(hidden=8, layers=1, free=True))
    residual = opened(own.project, PaperConfig(hidden=8, layers=1, residual=True, residual_hidden=8, residual_layers=1))
    mgn = opened(own.project, entry("mgn").config(), "mgn")
    wrong = [(free, {"mesh": tmp_path / "other.npz"}, "free = false"),
             (own, {"mesh": tmp_path / "nameless.npz"}, "no boundary 'left'"),
             (own, {"mesh": tmp_path / "none.npz"}, "none.npz"), (own, {"mesh": tmp_path / "space.npz"}, "3D"),
             (own, {"mesh": tmp_path / "other.npz", "trajectory": 0}, "a stored trajectory is on the mesh of the training"),
             (own, {"dt": -1.0}, "must be positive"), (own, {"dt": float("nan")}, "dt must be a number"),
             (residual, {"dt": 0.05}, "its residual network belongs to the steps of 0.1"), (mgn, {"dt": 0.05}, "mgn learned steps"),
             (mgn, {"mesh": tmp_path / "other.npz"}, "not mgn")]
    for run, options, words in wrong:
        with pytest.raises(InputError, match=words) as caught:
            predict_to_files(run, source=spots, **options)
        assert "\n" not in str(caught.value)


def test_sources_in_every_format(own: Run, tmp_path: Path) -> None:
    mesh, samples = own.case.mesh, 3.0 + np.random.default_rng(0).standard_normal((STEPS + 1, own.case.mesh.n_nodes))
    trapezoid = 0.5 * (samples[1:] + samples[:-1])
    np.save(tmp_path / "a.npy", trapezoid)
    np.savez(tmp_path / "b.npz", source=samples, state=np.zeros_like(samples))
    np.savez(tmp_path / "c.npz", source_average=trapezoid[:, ::-1], points=mesh.points[::-1])
    points, cells = np.pad(mesh.points, ((0, 0), (0, 1))), [("triangle", mesh.cells)]
    lines = []
    for k, row in enumerate(samples):
        meshio.Mesh(points, cells, {"source": row}).write(tmp_path / f"d-{k}.vtu")
        lines.append(f'<DataSet timestep="{k * DT}" file="d-{k}.vtu"/>')
    (tmp_path / "d.pvd").write_text(f"<VTKFile><Collection>{''.join(lines)}</Collection></VTKFile>")
    expected, n = states(own, source=tmp_path / "a.npy")[1], 0
    for name in ("b.npz", "c.npz", "d.pvd"):
        result, found = states(own, source=tmp_path / name)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        n += result["steps"]
    assert n == 3 * STEPS
    for bad, words in ((own.data, "holds 3 trajectories"), (tmp_path / "gone.npy", "there is no file"),
                       (tmp_path / "x.txt", "a source is read from"), (tmp_path / "gone.vtu", "gone.vtu")):
        with pytest.raises(InputError, match=words):
            states(own, source=bad)
    np.save(tmp_path / "f.npy", trapezoid[:, :5])
    with pytest.raises(InputError, match="has 5 nodes and no points"):
        states(own, source=tmp_path / "f.npy")
    with pytest.raises(InputError, match=f"given for {STEPS} steps, not for 99"):
        states(own, source=tmp_path / "a.npy", steps=99)


def test_a_function_of_physics_as_a_source(own: Run) -> None:
    _, found = states(own, source="physics:lamp")
    p = own.case.problem()
    f = 5.0 * torch.tensor(p.mesh.points)[:, 0] * (DT * (torch.arange(STEPS) + 0.5))[:, None]
    want = rollout(Classical(), p, torch.full((1, p.mesh.n_nodes, 1), 20.0, dtype=torch.float64), f[None, ..., None], STEPS)[0]
    np.testing.assert_allclose(found, want.numpy(), atol=1e-4)
    with pytest.raises(InputError, match=r"names the function 'lump'.*did you mean 'lamp'"):
        states(own, source="physics:lump")


def test_a_source_that_misses_the_part_is_said(own: Run, tmp_path: Path) -> None:
    (tmp_path / "mm.csv").write_text("t,x,y,radius,power\n0,200,200,15,30\n0.6,800,500,15,30\n")
    result, found = states(own, source=tmp_path / "mm.csv")
    assert np.ptp(found) < 1e-3 and "Warning: the spot misses the mesh: its path covers x 200 to 800" in summary(result)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = "\n[model]\nfree = false\nhidden = 8\nlayers = 1\n[training]\nwindows = [2]\niterations = [2]\n"
    folder = write_tiny(tmp_path / "p", TOML + small)
    (folder / "physics.py").write_text(LAMP)
    run = tmp_path / "run"
    assert command(monkeypatch, "train", folder, "--out", run) == 0
    save(box((9, 7), upper=(1.2, 0.9)), tmp_path / "other.msh")
    capsys.readouterr()
    other = tmp_path / "other.msh"
    assert command(monkeypatch, "rollout", run, "--source", folder / "run-1.csv", "--dt", 0.05, "--mesh", other) == 0
    out = capsys.readouterr().out
    assert "12 steps of 0.05 s on 80 nodes" in out and "Steps of 0.05 s instead of the 0.1 s" in out
    assert "instead of the mesh" in out
    assert command(monkeypatch, "rollout", run, "--source", "physics:lamp") == 2
    assert "physics.py" in capsys.readouterr().err  # the run brings no code that nothing names; the folder is to be named
    assert command(monkeypatch, "rollout", run, "--source", "physics:lamp", "--problem", folder) == 0
