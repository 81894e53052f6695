"""`dgnet simulate`: a problem file without data, from the start to pictures and files."""

from __future__ import annotations

from pathlib import Path

import meshio
import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet import cli
from dgnet.errors import InputError
from dgnet.prediction.to_files import predict_to_files
from dgnet.problems.case import base_problem
from dgnet.training.simulator import simulator

PROBLEM = """
problem = { name = "plate", fields = ["T"], dt = 0.02, offset = { T = 20.0 } }
mesh = { file = "plate.msh" }
pde = { diffusion = 0.1 }
[[boundary]]
name = "left"
kind = "robin"
coefficient = 0.5
ambient = 20.0
"""
SPOTS = "t,x,y,radius,power,spot\n0,0.2,0.3,0.15,30,a\n0.4,0.8,0.6,0.15,30,a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dg.save_mesh(dg.box((8, 8), perturb=0.2), tmp_path / "plate.msh")
    (tmp_path / "problem.toml").write_text(PROBLEM)
    (tmp_path / "spots.csv").write_text(SPOTS)
    return tmp_path


def simulated(folder: Path, model: str = "universal", **options: object) -> tuple[dict, np.ndarray]:
    states: list[np.ndarray] = []
    run = simulator(folder, model)
    result = predict_to_files(run, steps=12, sink=lambda k, u: states.append(u.copy()), **options)  # type: ignore[arg-type]
    return result, np.stack(states)


@pytest.mark.parametrize("model", ["universal", "classical", "quadratic"])
def test_states_are_those_of_the_model(folder: Path, model: str) -> None:
    result, states = simulated(folder, model, source=folder / "spots.csv")
    case = simulator(folder, model).case
    own = {"universal": dg.Universal(), "classical": dg.Classical(1.0), "quadratic": dg.Classical(1.0, degree=2)}[model]
    problem = base_problem(case, "cpu")
    points = torch.tensor(own.points(problem))
    source = dg.SpotTable.read(folder / "spots.csv", 2).average(points, 0, 12, case.dt).float()
    with torch.no_grad():
        expected = dg.rollout(own, problem, torch.full((1, problem.mesh.n_nodes, 1), 20.0), source)[0]
    assert np.allclose(states, expected.numpy(), atol=1e-4)
    assert states.max() > 21.0 and result["trained"] is False
    assert any("Universal weights act" in note for note in result["notes"]) == (model == "universal")


def test_a_file_that_holds_no_weights_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="does not hold weights"):
        simulator(folder, weights=folder / "spots.csv")


def test_without_a_source_conditions_may_drive_it(folder: Path) -> None:
    with pytest.raises(InputError, match="needs --source or --initial"):
        simulated(folder)
    text = PROBLEM.replace("ambient = 20.0", "ambient = 90.0")
    (folder / "problem.toml").write_text(text)
    assert 20.5 < simulated(folder)[1].max() < 90.0
    (folder / "problem.toml").write_text(PROBLEM.replace("diffusion = 0.1", 'diffusion = 0.1, reaction = { function = "grow" }'))
    (folder / "physics.py").write_text("def grow(u):\n    return u\n")
    assert simulated(folder)[1].max() > 20.5


def test_what_must_be_learned_needs_data(folder: Path) -> None:
    for line, words in (('reaction = "unknown"', "the reaction is"), ('calibrate = ["diffusion"]', "diffusion must be")):
        (folder / "problem.toml").write_text(PROBLEM.replace("diffusion = 0.1 }", f"diffusion = 0.1, {line} }}"))
        with pytest.raises(InputError, match=words):
            simulator(folder)
    (folder / "problem.toml").write_text(PROBLEM)
    with pytest.raises(InputError, match="data is missing"):
        dg.load_project(folder)


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["dgnet", "simulate", str(folder), *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0)

    assert run("--source", folder / "spots.csv", "--steps", 6, "--vtk", folder / "o.pvd", "--png", folder / "o.png") == 0
    shown = capsys.readouterr().out
    assert "Universal weights act in full around" in shown and "training data" not in shown
    assert (folder / "o.png").stat().st_size > 1000
    last = sorted((folder / "o").glob("*.vtu"))[-1] if (folder / "o").is_dir() else sorted(folder.rglob("*.vtu"))[-1]
    assert meshio.read(last).point_data["T"].max() > 20.5
    assert run("--model", "nonsense", "--source", folder / "spots.csv") == 2


@pytest.mark.parametrize(("model", "adaptive"), [("universal", None), ("quadratic", None), ("classical", None),
                                                 ("classical", 1e-4)])
def test_an_interrupted_simulation_goes_on_with_all_that_it_had(folder: Path, model: str, adaptive: float | None,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """States at the nodes lack the memory of the edges, the middles of quadratic elements and the length of adaptive steps."""
    _, whole = simulated(folder, model, source=folder / "spots.csv", adaptive=adaptive)
    monkeypatch.setattr("dgnet.report.series.PAUSE", -1.0)  # a checkpoint after every step

    def stop(k: int, u: np.ndarray) -> None:
        if k == 7:
            raise KeyboardInterrupt

    rest = dict(source=folder / "spots.csv", steps=12, out=folder / "out.h5", adaptive=adaptive)
    with pytest.raises(KeyboardInterrupt):
        predict_to_files(simulator(folder, model), sink=stop, **rest)  # type: ignore[arg-type]
    states: list[np.ndarray] = []
    result = predict_to_files(simulator(folder, model), sink=lambda k, u: states.append(u.copy()), **rest)  # type: ignore[arg-type]
    assert result["resumed_from"] == 6 and np.array_equal(np.stack(states), whole[7:])
