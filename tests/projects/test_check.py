"""`dgnet check`: known numbers on known cases, and a verdict for every kind of mistake."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.mesh import box, save
from dgnet.models import Classical, rollout
from dgnet.models.universal import Universal
from dgnet.problems import CONSISTENT, LUMPED, PDE, Dirichlet, Problem
from dgnet.problems.case import base_problem
from dgnet.projects import load, project, trajectory
from dgnet.projects.check import Item, check, smallest_angles
from dgnet.projects.project import Project
from dgnet.training.fit import evaluate_rne
from dgnet_paper.reference.transport import solve
from tests.projects.conftest import DT, STEPS, TOML, command, plate, write_tiny


def items(p: Project) -> dict[str, Item]:
    return {i.name: i for i in check(p)}


def edited(folder: Path, *pairs: tuple[str, str]) -> dict[str, Item]:
    text = TOML
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return items(load(write_tiny(folder, text)))


def test_known_numbers(tmp_path: Path) -> None:
    """On squares of side a cut in two, the mean edge is h = a (2 + sqrt 2) / 3; everything follows from that."""
    a, D, v, dt = 0.1, 2e-3, 0.3, 0.05
    mesh = box((10, 10))
    pde = PDE(("u",), diffusion=D, velocity=[v, 0.0])
    u = np.tile(np.sin(mesh.points[:, 0]), (4, 1))
    found = items(project("square", mesh, pde, [], dt, [trajectory(u, mesh, dt)], tmp_path / "d.h5"))
    h = a * (2 + np.sqrt(2)) / 3
    assert found["diffusion"].numbers["fourier"] == pytest.approx(D * dt / h**2, rel=1e-9)
    assert found["diffusion"].numbers["fourier_max"] == pytest.approx(D * dt / h**2, rel=1e-9)
    assert found["diffusion"].numbers["stiffness"] == pytest.approx(Problem(mesh, pde, [], dt).stiffness_number)
    assert found["advection"].numbers["peclet_max"] == pytest.approx(v * h / (2 * D), rel=1e-9)
    assert found["advection"].numbers["courant"] == pytest.approx(v * dt / h, rel=1e-9)
    assert found["cells"].numbers["smallest_angle"] == pytest.approx(45.0) and found["mesh"].numbers["nodes"] == 121
    assert found["cells"].numbers["radius_ratio"] == pytest.approx(2 * (np.sqrt(2) - 1), rel=1e-9)
    assert found["solver"].numbers["backend"] in ("lu", "iterative") and found["advection"].verdict == "note"
    assert found["data"].verdict == "warn"  # no test trajectory


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_flow_that_stands_still_in_places_without_diffusion(tmp_path: Path) -> None:
    """|v| h / (2 D) is infinite where something flows; where nothing does, 0 / 0 is no number."""
    mesh, dt = box((6, 6)), 0.05
    velocity = np.zeros((mesh.n_nodes, 2))
    velocity[mesh.points[:, 0] > 0.9, 0] = 0.1
    pde = PDE(("u",), velocity=velocity, reaction=lambda u: u * (1 - u))
    u = np.tile(0.3 + 0.1 * np.sin(mesh.points[:, 1]), (4, 1))
    found = items(project("still", mesh, pde, [], dt, [trajectory(u, mesh, dt)], tmp_path / "d.h5"))["advection"]
    assert found.numbers["peclet_max"] == np.inf and found.numbers["peclet"] == 0


def test_angles_in_space() -> None:
    """Kuhn's tetrahedra: dihedral angles of 45, 60 and 90 degrees."""
    assert np.allclose(smallest_angles(box((2, 2, 2))), 45.0)


def test_the_classical_solver_on_its_own_data(tmp_path: Path) -> None:
    """Data of the consistent solver: it is exact on them, the lumped one is not, and a step is explained in full."""
    mesh = plate()
    pde, walls = PDE(("u",), diffusion=0.05), [Dirichlet("left", 1.0)]
    u0 = torch.sin(3 * torch.tensor(mesh.points)).sum(1)[None, :, None]
    u0[:, mesh.nodes_on("left")] = 1.0
    states = rollout(Classical(), Problem(mesh, pde, walls, DT), u0, None, STEPS)[0].numpy()
    data = [trajectory(states, mesh, DT, split=s) for s in ("train", "test")]
    found = items(project("own", mesh, pde, walls, DT, data, tmp_path / "d.h5"))
    errors = found["classical"].numbers["errors"]
    assert errors["train"]["consistent"] < 1e-6 < 1e-3 < errors["train"]["lumped"]
    assert errors["test"] == pytest.approx(errors["train"])
    assert found["step"].numbers["explained"] > 1 - 1e-4 and found["fixed values"].verdict == "ok"
    balance = found["balance"].numbers["u"]
    assert balance["closes"] < 1e-6 and balance["stored"] == pytest.approx(balance["fixed"]) and balance["source"] == 0
    wrong = items(project("own", mesh, pde, [Dirichlet("left", 0.0)], DT, data, tmp_path / "d.h5"))
    assert wrong["fixed values"].verdict == "warn" and wrong["fixed values"].numbers["difference"] == pytest.approx(1.0)


def test_verdicts(tmp_path: Path) -> None:
    good = edited(tmp_path / "a")
    assert {i.verdict for i in good.values()} <= {"ok", "note"}
    assert good["spots"].numbers["radius_over_spacing"] == pytest.approx(0.15 / plate().spacing, rel=1e-6)
    assert good["source"].numbers["radii_per_step"] == pytest.approx(np.hypot(0.6, 0.3) / 6 / 0.15, rel=1e-6)
    assert "is it meant to be about 2" in edited(tmp_path / "b", ("offset = { T = 20.0 }", ""))["field T"].text
    assert edited(tmp_path / "c", ("diffusion = 0.05", "diffusion = 5e-9"))["diffusion"].verdict == "warn"
    assert edited(tmp_path / "d", ("diffusion = 0.05", "diffusion = 50"))["step"].verdict == "warn"
    idle = edited(tmp_path / "e", ("diffusion = 0.05", "diffusion = 0.05\ncalibrate = [\"decay\"]"))
    assert idle["equation"].verdict == "warn" and "nothing to calibrate" in idle["equation"].text


def test_narrow_and_fast_spots(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "p")
    for path in folder.glob("run-*.csv"):
        path.write_text(path.read_text().replace("0.15,30", "0.03,30"))
    found = items(load(folder))
    assert found["spots"].verdict == "warn" and found["source"].numbers["trapezoid"] > 0.15


def test_command(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "check", tiny, "--json", tiny / "check.json") == 0
    out = capsys.readouterr().out
    record = json.loads((tiny / "check.json").read_text())
    assert record["problem"] == "tiny" and record["verdict"] == "ok"
    for item in record["items"]:
        assert item["text"] in out and item["verdict"] in ("ok", "note")
    assert "diffusion 0.05 m2/s" in out


def test_flat_cells(tmp_path: Path) -> None:
    """A sliver is named."""
    folder = write_tiny(tmp_path / "p")
    points = box((8, 6), upper=(1.2, 0.9)).points.copy()
    mesh = box((8, 6), upper=(1.2, 0.9))
    inner = int(np.flatnonzero(~mesh.on_boundary)[0])
    cell = mesh.cells[np.flatnonzero((mesh.cells == inner).any(1))[0]]
    others = cell[cell != inner]
    points[inner] = points[inner] + 0.999 * (points[others].mean(0) - points[inner])
    save(type(mesh)(points, mesh.cells, mesh.boundaries), folder / "plate.msh")
    found = items(load(folder))
    assert found["cells"].verdict == "warn" and "nearly flat" in found["cells"].text


@pytest.mark.parametrize("driven", [False, True])
def test_check_train_and_evaluate_judge_alike(tmp_path: Path, driven: bool) -> None:
    """A plate of 10 m x 1 mm: what `check` says of the classical solver is what `train` and `evaluate` compare with."""
    mesh = box((20, 4), upper=(10.0, 1e-3))
    pde, walls, dt = PDE(("T",), diffusion=1e-5), [Dirichlet("left", 350.0)] if driven else [], 5.0
    u = torch.full((1, mesh.n_nodes, 1), 300.0, dtype=torch.float64)
    states = rollout(Classical(), Problem(mesh, pde, walls, dt), u, None, 20)[0].numpy()
    data = [trajectory(states, mesh, dt, split=s) for s in ("train", "test")]
    own = project("slender", mesh, pde, walls, dt, data, tmp_path / "d.h5")
    found = items(own)
    with Dataset(own.data) as stored:
        corpus = stored.batch(stored.of("test"))
    kinds = {"consistent": Classical(CONSISTENT), "lumped": Classical(LUMPED), "p2": Classical(CONSISTENT, degree=2),
             "universal": Universal(), "universal_p2": Universal(degree=2)}
    judged = {name: evaluate_rne(kind, base_problem(own.case, "cpu"), corpus) for name, kind in kinds.items()}
    errors = found["classical"].numbers["errors"]["test"]
    assert errors == pytest.approx(judged, rel=1e-6, abs=1e-12)
    assert errors["consistent"] < (1e-6 if driven else 1e-12)
    assert found["solver"].verdict == "note" and found["solver"].numbers["precision"] == "float64"
    assert "computed in double precision, since the stiffness number" in found["solver"].text


def test_sources_between_the_nodes(tmp_path: Path) -> None:
    """A table or a function is evaluated at the middles of the edges and kept with the data; samples and a function that knows the
    nodes only are not, and quadratic elements then fit the source, which `check` says."""
    mesh, dt, pde = box((8, 8), perturb=0.2), 0.05, PDE(("T",), diffusion=0.02)

    def spot(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        where = torch.stack([0.3 + 0.4 * t, 0.5 + 0 * t], -1).to(x)
        return torch.exp(-((x - where[:, None]) ** 2).sum(-1) / (2 * 0.12**2))[None, :, :, None]

    def by_node(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.ones(1, len(t), mesh.n_nodes, 1, dtype=torch.float64)

    start = torch.zeros(1, mesh.n_nodes, 1, dtype=torch.float64)
    truth = solve(mesh, pde, [], start, dt=dt, steps=10, refine=1, substeps=4, degree=2, source=spot)[0].numpy()
    one = trajectory(truth, mesh, dt, spot)
    assert one.source_middles is not None and one.source_middles.shape == (10, len(mesh.edges), 1)
    assert trajectory(truth, mesh, dt, by_node).source_middles is None
    assert one.source is not None and trajectory(truth, mesh, dt, one.source[..., 0]).source_middles is None
    errors, texts = [], []
    for name, each in (("evaluated", one), ("fitted", replace(one, source_middles=None))):
        own = project(name, mesh, pde, [], dt, [each, replace(each, split="test")], tmp_path / f"{name}.h5")
        found = items(own)["classical"]
        errors.append(found.numbers["errors"]["test"])
        texts.append(found.text)
    assert errors[0]["p2"] < 0.5 * errors[1]["p2"] < errors[1]["consistent"]
    assert "fitted" in texts[1] and "fitted" not in texts[0]
    with Dataset(tmp_path / "evaluated.h5") as data:
        middles = data.middles([0, 1])
        assert middles is not None and torch.equal(middles.part([1]).source_average[0], torch.from_numpy(one.source_middles))
    with h5py.File(tmp_path / "evaluated.h5", "r+") as file:
        group = file["trajectories/00000"]
        del group["source_middles"]
        group["source_middles"] = np.zeros((10, 3, 1), dtype=np.float32)
    with Dataset(tmp_path / "evaluated.h5") as data, pytest.raises(InputError, match=r"evaluated\.h5: trajectory 0"):
        data.middles([0])
