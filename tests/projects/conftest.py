"""A tiny project: a plate of 8 x 6 squares, a moving spot, three short trajectories."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet import cli
from dgnet.mesh import Mesh, box, save
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, Problem, Robin
from dgnet.problems.spot_table import SpotTable

DT, STEPS = 0.1, 6
SPOTS = "t,x,y,radius,power\n0,0.2,0.2,0.15,30\n0.6,0.8,0.5,0.15,30\n"
TOML = """\
[problem]
name = "tiny"
fields = ["T"]
dt = 0.1
offset = { T = 20.0 }

[units]
length = "m"
time = "s"
T = "K"

[mesh]
file = "plate.msh"

[pde]
diffusion = 0.05

[[boundary]]
name = "left"
kind = "robin"
coefficient = 0.02
ambient = 20.0

[[data]]
file = "run-*.npz"
split = "train"
source = "run-*.csv"

[[data]]
file = "last.npz"
split = "test"
source = "run-1.csv"
"""


def plate() -> Mesh:
    return box((8, 6), upper=(1.2, 0.9), perturb=0.15, seed=1)


def states(mesh: Mesh, spots: str, folder: Path, diffusion: float = 0.06) -> np.ndarray:
    """[T+1, N]: a classical rollout with another diffusivity than the project's, so that there is something to learn."""
    path = folder / "states.csv"
    path.write_text(spots)
    problem = Problem(mesh, PDE(("T",), diffusion=diffusion), [Robin("left", 0.02, 20.0)], DT)
    source = SpotTable.read(path, 2).average(torch.tensor(mesh.points), 0, STEPS, DT)
    path.unlink()
    start = torch.full((1, mesh.n_nodes, 1), 20.0, dtype=torch.float64)
    return rollout(Classical(), problem, start, source)[0, :, :, 0].numpy()


def write_tiny(folder: Path, toml: str = TOML) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    mesh = plate()
    save(mesh, folder / "plate.msh")
    for name, spots in (("run-1", SPOTS), ("run-2", SPOTS.replace("0.2,0.2", "0.9,0.2"))):
        (folder / f"{name}.csv").write_text(spots)
        np.savez(folder / f"{name}.npz", state=states(mesh, spots, folder), time=DT * np.arange(STEPS + 1))
    np.savez(folder / "last.npz", state=states(mesh, SPOTS, folder))
    (folder / "problem.toml").write_text(toml)
    return folder


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The real entry of the command line, in this process."""
    monkeypatch.setattr("sys.argv", ["dgnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)
