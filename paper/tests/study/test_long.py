"""Long rollouts: fifty thousand steps stream to disk in the memory of five thousand, and what is written can be read back."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import meshio
import numpy as np
import pytest
import torch
from PIL import Image

from dgnet.data import Dataset, Header, Trajectory, write_dataset
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models.base import Model, Stepper
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.prediction import to_files as rollouts
from dgnet.prediction.to_files import predict_to_files
from dgnet.problems import PDE, Dirichlet, Robin
from dgnet.problems.case import base_problem
from dgnet.report import series
from dgnet.stepping import operator
from dgnet.training.run import Run, Settings
from dgnet_paper.model import PaperConfig
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.scenario import Flow, Scenario
from tests.cli.forked import finish

Tensor = torch.Tensor
SPOTS = "t,x,y,radius,power\n0,0.2,0.2,0.1,3\n400,0.8,0.7,0.1,3\n"


class Fades(Stepper):
    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        return torch.lerp(u, source, 0.01) if source is not None else u * 0.99


class Fading(Model[Fades]):
    """The cheapest model there is: what is asked here is about the rollout around it."""

    name = "fading"

    def prepare(self, problem: Any, batch: int = 1, steps: int = 1000, careful: bool = False) -> Fades:
        return Fades()


def scenario(cells: tuple[int, ...] = (10, 10), fields: tuple[str, ...] = ("T",)) -> Scenario:
    conditions = (Robin("right", 0.3, 1.0), Dirichlet("left", 1.0))
    return replace(get("laser-heat", "small"), build_mesh=lambda: box(cells, perturb=0.2), name="tiny", dt=0.01,
                   pde=PDE(fields, diffusion=0.05), conditions=conditions, offset=tuple(1.0 for _ in fields))


def opened(folder: Path, model: Any, which: Scenario) -> Callable[[Path, str], Run]:
    """A run that is no folder of the command line: on a mesh and with a model of one's own."""
    folder.mkdir(exist_ok=True)
    for name in ("run.toml", "weights.pt"):
        (folder / name).write_text("none")
    return lambda path, device="cpu": Run(
        folder=folder, settings=Settings("tiny", "small", "same-mesh", str(folder / "none.h5")), case=which, model=model)


def long(root: Path, steps: int, every: int) -> None:
    """In a process of its own: its peak of memory is written to PEAK-STEPS."""
    Run.open = opened(root / "run", Fading(), scenario((20, 20)))  # type: ignore[method-assign,assignment]
    rollouts._BLOCK = 1 << 18
    (root / "spots.csv").write_text(SPOTS)
    predict_to_files(root / "run", source=root / "spots.csv", steps=steps, every=every, out=root / f"{steps}.h5")
    (root / f"peak-{steps}").write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


def test_memory_does_not_grow_with_the_steps(tmp_path: Path) -> None:
    for steps in (5_000, 50_000):
        finish(long, tmp_path, steps, 10)
    few, many = (int((tmp_path / f"peak-{steps}").read_text()) / 1024 for steps in (5_000, 50_000))  # MiB
    assert many < few + 24  # all states would be 84 MiB
    with Dataset(tmp_path / "50000.h5") as data, Dataset(tmp_path / "5000.h5") as short:
        assert data.steps == 5_000 and data.dt == 0.1 and data.provenance["every"] == 10
        assert np.array_equal(data.read(0, 0, 500).state, short.read(0).state)
        last = data.read(0, 4_990, 10)
        assert np.isclose(last.time[-1], 500.0) and abs(last.state[-1]).max() < 1e-6  # spots are off


# ---------------------------------------------------------------------- a run that goes on


class Stop(BaseException):
    """What an interrupt from the keyboard is: not an error."""


@pytest.mark.parametrize("at", [0, 1, 17, 39, 40])
def test_interrupted_goes_on_and_other_requests_do_not(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    which = scenario((6, 5), ("T", "S"))
    torch.manual_seed(0)
    model = DGNet(PaperConfig(hidden=8, layers=1, residual=True), base_problem(which, "cpu"))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    monkeypatch.setattr(Run, "open", opened(tmp_path / "run", model, which))
    monkeypatch.setattr(series, "PAUSE", -1.0)  # a checkpoint at every step
    n = which.mesh.n_nodes
    np.save(tmp_path / "start.npy", np.random.default_rng(0).normal(1.0, 0.3, (n, 2)))
    seen: list[int] = []

    def stop(k: int, u: np.ndarray) -> None:
        seen.append(k)
        if k == at:
            raise Stop

    def go(name: str, **options: Any) -> dict[str, Any]:
        return predict_to_files(tmp_path / "run", initial=tmp_path / "start.npy", steps=40, every=4, out=tmp_path / name, **options)

    whole = go("whole.h5")
    assert whole["resumed_from"] == 0
    with pytest.raises(Stop):
        go("x.h5", sink=stop)
    assert not (tmp_path / "x.h5").exists() and (tmp_path / "x.h5.part").exists() == (at > 1)  # a start is no pause
    seen.clear()
    again = go("x.h5", sink=lambda k, u: seen.append(k))
    assert again["resumed_from"] == max(0, at - 1) and seen == list(range(at if at > 1 else 0, 41))
    assert (tmp_path / "x.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert again["range"] == whole["range"] and not list(tmp_path.glob("x.h5.*"))
    # something else was asked for: from the beginning
    with pytest.raises(Stop):
        go("x.h5", sink=stop)
    np.save(tmp_path / "start.npy", np.full((n, 2), 2.0))
    assert go("x.h5")["resumed_from"] == 0
    with Dataset(tmp_path / "x.h5") as data:
        assert np.all(data.read(0).state[0] == 2.0)


def test_a_flow_that_changes_goes_on_with_the_bounds_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With operators that change in time the solver widens its bounds from step to step: they are part of where it was."""
    flow = Flow(1.0, 1.0, 0.01, 0.0, 0.0)
    which = replace(scenario((12, 10)), flow=flow, conditions=(Dirichlet("left", 1.0),), pde=PDE(("T",), diffusion=0.002), dt=0.02)
    mesh, steps, rng = which.mesh, 24, np.random.default_rng(0)
    x = mesh.points
    wind = np.stack([np.stack([1 + np.sin(0.3 * k) * x[:, 1], np.cos(0.5 * k) * x[:, 0]], -1) for k in range(steps + 1)])
    state = rng.normal(1, 0.2, (steps + 1, mesh.n_nodes, 1))
    time = which.dt * np.arange(steps + 1)
    write_dataset(tmp_path / "flow.h5", Header(mesh, ("T",), which.dt, steps, (1.0,)),
                  [Trajectory(state.astype(np.float32), time, velocity=wind.astype(np.float32))])
    torch.manual_seed(0)
    velocity = torch.zeros(1, 2, mesh.n_nodes, 2)
    model = DGNet(DGNetConfig(hidden=8, layers=1), which.problem(velocity, dtype=torch.float32))
    monkeypatch.setattr(Run, "open", opened(tmp_path / "run", model, which))
    monkeypatch.setattr(series, "PAUSE", -1.0)
    monkeypatch.setattr(operator, "choose", lambda *arguments: "iterative")

    def go(name: str, at: int = -1) -> dict[str, Any]:
        def stop(k: int, u: np.ndarray) -> None:
            if k == at:
                raise Stop

        return predict_to_files(tmp_path / "run", trajectory=0, data=tmp_path / "flow.h5", out=tmp_path / name, sink=stop)

    whole = go("whole.h5")
    for at in (1, 9, 20):
        with pytest.raises(Stop):
            go("x.h5", at)
        again = go("x.h5")
        assert again["resumed_from"] == at - 1 and again["rne"] == whole["rne"]
        assert (tmp_path / "x.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()


def test_a_damaged_note_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "open", opened(tmp_path / "run", Fading(), scenario((3, 3))))
    np.save(tmp_path / "start.npy", np.arange(16.0))
    options: dict[str, Any] = {"initial": tmp_path / "start.npy", "steps": 9, "out": tmp_path / "x.h5"}
    for text in (b"", b"PK\x03\x04 cut", b"no archive"):
        (tmp_path / "x.h5.resume").write_bytes(text)
        (tmp_path / "x.h5.part").write_bytes(b"half")
        assert predict_to_files(tmp_path / "run", **options)["resumed_from"] == 0
        with Dataset(tmp_path / "x.h5") as data:
            assert np.array_equal(data.read(0).state[0, :, 0], np.arange(16))


# ---------------------------------------------------------------------- files for other programs


@pytest.fixture(scope="module", params=[((6, 5), ("T",)), ((3, 3, 2), ("T", "a & b"))], ids=["plane", "space"])
def rolled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, np.ndarray, Path]:
    """A scenario, all states of a rollout of 11 steps, and the folder of its files (every third state)."""
    which, tmp_path = scenario(*request.param), tmp_path_factory.mktemp("rolled")
    start = np.random.default_rng(0).normal(1.0, 0.3, (which.mesh.n_nodes, len(which.pde.fields)))
    np.save(tmp_path / "start.npy", start)
    states: list[np.ndarray] = []
    out = tmp_path / "files"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "open", opened(tmp_path / "run", Fading(), which))
        result = predict_to_files(tmp_path / "run", initial=tmp_path / "start.npy", steps=11, every=3, vtk=out / "x.pvd",
                          xdmf=out / "x.xdmf", gif=out / "x.gif", png=out / "x.png", sink=lambda k, u: states.append(u.copy()))
    assert result["xdmf"] == str(out / "x.xdmf") and result["out"] is None
    assert sorted(p.name for p in out.iterdir()) == ["x-vtu", "x.gif", "x.png", "x.pvd", "x.xdmf", "x.xdmf.h5"]  # no store left
    return which, np.stack(states), out


SHOWN = [0, 3, 6, 9, 11]


def test_xdmf_holds_the_states(rolled: tuple[Scenario, np.ndarray, Path]) -> None:
    which, states, out = rolled
    with meshio.xdmf.TimeSeriesReader(out / "x.xdmf") as reader:
        points, cells = reader.read_points_cells()
        assert np.array_equal(points[:, :which.mesh.dim], which.mesh.points) and points.shape[1] == 3
        assert np.array_equal(cells[0].data, which.mesh.cells) and cells[0].type == {2: "triangle", 3: "tetra"}[which.mesh.dim]
        assert reader.num_steps == len(SHOWN)
        for i, k in enumerate(SHOWN):
            t, point_data, _ = reader.read_data(i)
            assert t == k * which.dt and list(point_data) == list(which.pde.fields)
            for f, name in enumerate(which.pde.fields):
                assert point_data[name].dtype == np.float32 and np.array_equal(point_data[name], states[k, :, f])


def test_pvd_holds_the_states(rolled: tuple[Scenario, np.ndarray, Path]) -> None:
    which, states, out = rolled
    sets = ElementTree.parse(out / "x.pvd").getroot().findall("Collection/DataSet")
    assert [float(s.attrib["timestep"]) for s in sets] == [k * which.dt for k in SHOWN]
    for k, entry in zip(SHOWN, sets):
        mesh = meshio.read(out / entry.attrib["file"])
        assert set(which.pde.fields) == set(mesh.point_data)
        for f, name in enumerate(which.pde.fields):
            assert np.array_equal(mesh.point_data[name].ravel(), states[k, :, f])


def test_vtk_shows_the_right_names_and_times(rolled: tuple[Scenario, np.ndarray, Path]) -> None:
    vtk = pytest.importorskip("vtk")
    from vtk.util.numpy_support import vtk_to_numpy

    which, states, out = rolled
    for k in SHOWN:
        reader = vtk.vtkXMLUnstructuredGridReader()
        reader.SetFileName(str(out / "x-vtu" / f"x-{k:06d}.vtu"))
        reader.Update()
        data = reader.GetOutput().GetPointData()
        for f, name in enumerate(which.pde.fields):
            assert np.array_equal(vtk_to_numpy(data.GetArray(name)), states[k, :, f])


def test_pictures_show_something(rolled: tuple[Scenario, np.ndarray, Path]) -> None:
    _, _, out = rolled
    with Image.open(out / "x.gif") as film:
        assert film.n_frames == len(SHOWN)
        first = np.asarray(film.convert("RGB")).astype(int)
        film.seek(len(SHOWN) - 1)
        assert np.abs(np.asarray(film.convert("RGB")).astype(int) - first).mean() > 0.1  # it moves
    with Image.open(out / "x.png") as picture:
        assert len(np.unique(np.asarray(picture.convert("RGB"), dtype=int) @ [65536, 256, 1])) > 200


def test_mp4_needs_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "open", opened(tmp_path / "run", Fading(), scenario((4, 4))))
    np.save(tmp_path / "start.npy", np.ones(25))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(InputError, match="ffmpeg"):
        predict_to_files(tmp_path / "run", initial=tmp_path / "start.npy", steps=4, mp4=tmp_path / "x.mp4")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run", "start.npy"]


# stands in for the encoder where it is not installed: counts the bytes of raw frames that arrive
ENCODER = """#!{python}
import json, sys
size = sys.argv[sys.argv.index("-s") + 1]
count = len(sys.stdin.buffer.read())
open(sys.argv[-1], "w").write(json.dumps([size, count]))
"""


def test_frames_reach_the_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(Run, "open", opened(tmp_path / "run", Fading(), scenario((4, 4))))
    np.save(tmp_path / "start.npy", np.linspace(0, 1, 25))
    (tmp_path / "bin").mkdir()
    encoder = tmp_path / "bin" / "ffmpeg"
    encoder.write_text(ENCODER.format(python=sys.executable))
    encoder.chmod(encoder.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    predict_to_files(tmp_path / "run", initial=tmp_path / "start.npy", steps=6, mp4=tmp_path / "x.mp4")
    size, count = json.loads((tmp_path / "x.mp4").read_text())
    width, height = map(int, size.split("x"))
    assert width % 2 == height % 2 == 0 and count == 7 * 4 * width * height  # seven RGBA frames
    encoder.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    with pytest.raises(InputError, match="ffmpeg could not write"):
        predict_to_files(tmp_path / "run", initial=tmp_path / "start.npy", steps=6, mp4=tmp_path / "y.mp4")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith((".", "y"))]


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_mp4_is_a_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "open", opened(tmp_path / "run", Fading(), scenario((4, 4))))
    np.save(tmp_path / "start.npy", np.linspace(0, 1, 25))
    predict_to_files(tmp_path / "run", initial=tmp_path / "start.npy", steps=6, mp4=tmp_path / "x.mp4")
    assert b"ftyp" in (tmp_path / "x.mp4").read_bytes()[:16]
