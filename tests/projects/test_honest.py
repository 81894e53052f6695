"""Sentences that were wrong or missing: noise called an error, a wrong coefficient called right, sources that miss the part."""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, Problem, Robin
from dgnet.problems.sight import spot_doubts
from dgnet.problems.sources import FunctionSource, converged_average
from dgnet.problems.spot_table import SpotTable
from dgnet.projects import load, project, trajectory
from dgnet.projects.between_meshes import error_of, transfer
from dgnet.projects.check import Item, check
from tests.projects.conftest import DT, TOML, write_tiny

MESH = box((10, 8), upper=(1.2, 0.9), perturb=0.15, seed=1)
CORE = np.flatnonzero(MESH.centroids[:, 0] < 0.6)


def judged(tmp_path: Path, truth: PDE, given: PDE, noise: float = 0.0) -> dict[str, Item]:
    """`check` of a problem whose data follow another equation, with noise as a share of the range."""
    mesh = Mesh(MESH.points, MESH.cells, MESH.boundaries, {"core": CORE})
    walls, steps = [Robin("left", 0.3, 20.0)], 40
    draws, data = np.random.default_rng(0), []
    for k, split in enumerate(("train", "train", "test")):
        spot = SpotTable(("",), (np.array([0.0, 4.0]),), (np.array([[0.2, 0.2 + 0.1 * k, 0.2, 30.0], [1.0, 0.6, 0.2, 30.0]]),))
        u0 = torch.full((1, mesh.n_nodes, 1), 20.0, dtype=torch.float64)
        f = spot.average(torch.tensor(mesh.points), 0, steps, DT)
        states = rollout(Classical(), Problem(mesh, truth, walls, DT), u0, f, steps)[0].numpy()
        states = states + noise * np.ptp(states) * draws.standard_normal(states.shape)
        data.append(trajectory(states, mesh, DT, spot, split))
    return {i.name: i for i in check(project("own", mesh, given, walls, DT, data, tmp_path / "d.h5", offset=[20.0]))}


def test_noise_is_not_a_wrong_coefficient(tmp_path: Path) -> None:
    pde = PDE(("T",), diffusion=0.002)
    found = judged(tmp_path, pde, pde, noise=0.01)
    assert found["step"].numbers["explained"] < 0.5 and found["step"].numbers["correlation"] < 0
    assert found["step"].verdict == "note" and "noise" in found["step"].text
    assert found["coefficients"].verdict == "ok"
    assert "warn" not in {i.verdict for i in found.values() if i.name != "start"}  # which jumps, too


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_wrong_coefficient_is_named_with_its_factor(tmp_path: Path, noise: float) -> None:
    found = judged(tmp_path, PDE(("T",), diffusion=0.02), PDE(("T",), diffusion=0.01), noise)["coefficients"]
    assert found.verdict == "warn" and "diffusion × " in found.text
    assert found.numbers["fits"][0]["factors"]["diffusion"] == pytest.approx(2.0, rel=0.1)


def test_a_wrong_capacity_is_named_with_its_region(tmp_path: Path) -> None:
    c = np.where(np.isin(np.arange(MESH.n_cells), CORE), 2.5, 1.0)
    found = judged(tmp_path, PDE(("T",), diffusion=0.01, capacity=c), PDE(("T",), diffusion=0.01))["coefficients"]
    assert found.verdict == "warn" and "with capacity in core × 2.5:" in found.text
    both = np.where(c > 1, 2.5, 0.6)
    found = judged(tmp_path, PDE(("T",), diffusion=0.01, capacity=both), PDE(("T",), diffusion=0.01))["coefficients"]
    assert found.verdict == "warn" and "capacity in core × 2.5, capacity elsewhere × 0.6" in found.text
    everywhere = judged(tmp_path, PDE(("T",), diffusion=0.01, capacity=2.0), PDE(("T",), diffusion=0.01))["coefficients"]
    assert everywhere.verdict == "warn" and "capacity × 2:" in everywhere.text


def test_interpolation_onto_nodes_of_the_other_mesh_costs_nothing() -> None:
    mesh = box((6, 5))
    fine = mesh.refined(1)
    values = np.sin(6 * fine.points[:, :1] + fine.points[:, 1:])[None]
    way = transfer(mesh, fine.points, fine.cells, "x")
    assert not way.exact and error_of(way, values, np.zeros(1)) < 1e-12
    other = box((13, 11), perturb=0.2, seed=2)  # and where nodes lie between, it is of the size of the true error

    def wave(x: np.ndarray) -> np.ndarray:
        return np.sin(6 * x[:, :1] + x[:, 1:])[None]

    way = transfer(mesh, other.points, other.cells, "x")
    true = np.linalg.norm(way(wave(other.points)) - wave(mesh.points)) / np.linalg.norm(wave(mesh.points))
    assert 0.4 * true < error_of(way, wave(other.points), np.zeros(1)) < 4 * true


@pytest.mark.parametrize("scale, words", [(1e3, "its path covers x 200 to 800"), (1e-3, "its path covers x 0.0002 to 0.0008")])
def test_a_source_in_other_units_is_noticed(tmp_path: Path, scale: float, words: str) -> None:
    folder = write_tiny(tmp_path / "p")
    for path in folder.glob("run-*.csv"):
        rows = [(0.0, 0.2, 0.2, 0.15), (0.6, 0.8, 0.5, 0.15)]
        path.write_text("t,x,y,radius,power\n" + "".join(f"{t},{x * scale},{y * scale},{r * scale},30\n" for t, x, y, r in rows))
    found = {i.name: i for i in check(load(folder))}
    item = found["spots"]
    assert item.verdict == "warn" and words in item.text and "other units of length?" in item.text
    assert not spot_doubts(MESH, SpotTable.read(write_tiny(tmp_path / "q") / "run-1.csv", 2))


def test_a_pulse_within_a_step_is_integrated() -> None:
    """10 ms of 50 inside a step of 250 ms: its average is 2."""
    x = torch.tensor(MESH.points)

    def pulse(x: torch.Tensor, t: float) -> torch.Tensor:
        return torch.full((len(x),), 50.0 if 0.313 < t < 0.323 else 0.0, dtype=x.dtype)

    average, rough = converged_average(FunctionSource(pulse), x, 0.25 * torch.arange(4, dtype=torch.float64), 0.25)
    assert average[0, :, 0, 0].tolist() == pytest.approx([0.0, 2.0, 0.0, 0.0], rel=0.05) and rough < 0.1
    smooth, rest = converged_average(FunctionSource(lambda x, t: x[:, 0] * t), x, torch.zeros(1, dtype=torch.float64), 0.25)
    assert float((smooth[0, 0, :, 0] - 0.125 * x[:, 0]).abs().max()) < 1e-12 and rest < 1e-12


def test_the_file_beside_an_xdmf_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = 'file = "last.npz"\nsplit = "test"\nsource = "run-1.csv"'
    folder = write_tiny(tmp_path / "p", TOML.replace(old, 'file = "out.xdmf"'))
    points = np.pad(MESH.points, ((0, 0), (0, 1)))
    monkeypatch.chdir(folder)  # meshio puts the .h5 into the working directory
    with meshio.xdmf.TimeSeriesWriter("out.xdmf") as writer:
        writer.write_points_cells(points, [("triangle", MESH.cells)])
        for k in range(3):
            writer.write_data(DT * k, point_data={"T": np.full(len(points), 20.0)})
    (folder / "out.h5").unlink()
    with pytest.raises(InputError, match=r"keeps its numbers in out.h5, which is not beside it"):
        load(folder)


def test_a_flow_passes_where_no_condition_is(tmp_path: Path) -> None:
    found = judged(tmp_path, PDE(("T",), diffusion=0.01), PDE(("T",), diffusion=0.01, velocity=[0.1, 0.0]))["boundary"]
    assert "no condition on right" in found.text and "the flow carries" in found.text and "insulated" not in found.text
