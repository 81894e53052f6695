"""`dgnet rollout`: tables of spots, streaming, ParaView files, and what it says to bad input."""

import builtins
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import h5py
import meshio
import numpy as np
import pytest
import torch

from dgnet import cli
from dgnet.data import Dataset
from dgnet.errors import InputError, SolveError
from dgnet.models import rollout
from dgnet.prediction import source_files as drives
from dgnet.prediction import to_files as module
from dgnet.prediction.to_files import predict_to_files
from dgnet.problems import step_average
from dgnet.problems.case import base_problem
from dgnet.problems.spot_table import SpotTable
from dgnet.recipe import Recipe, Stage
from dgnet.report import series
from dgnet.scoring.metrics import rne
from dgnet.training.plan import OPERATOR, Plan
from dgnet.training.run import Run, train
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.scenarios.lasers import AMBIENT
from dgnet_paper.scenarios.paths import waypoint
from dgnet_paper.scenarios.spots import Spot, Spots

TABLE = """t,x,y,radius,power,spot
0.2,0.2,0.2,0.1,30,a
0,1.0,0.7,0.08,20,b
4.0,1.2,0.3,0.1,30,a
9.3,0.3,0.6,0.08,20,b
7.1,0.4,0.8,0.2,10,a
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, scenario = tmp_path_factory.mktemp("run"), get("laser-heat", "small")
    data = generate(scenario, root, truth="same-mesh", trajectories=2)
    train(scenario, "same-mesh", data, root / "run",
          Plan(OPERATOR, Recipe("short", (Stage(2, 8, 16, 3e-3), Stage(2, 40, 8, 2e-3)), hold_out=1)))
    return root / "run"


def table(path: Path, text: str = TABLE) -> Path:
    path.write_text(text)
    return path


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet", "rollout", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def collected(folder: Path, **options: Any) -> tuple[dict[str, Any], np.ndarray]:
    states: list[np.ndarray] = []
    result = predict_to_files(folder, sink=lambda k, u: states.append(u.copy()), **options)
    return result, np.stack(states)


# ---------------------------------------------------------------------- tables


def test_table_is_linear_between_rows_and_off_outside(tmp_path: Path) -> None:
    spots = SpotTable.read(table(tmp_path / "a.csv"), 2)
    assert spots.names == ("a", "b")
    a, b = spots.at(np.array([0.0, 2.1, 7.1, 7.2]))
    assert a[0, -1] == 0 and a[3, -1] == 0 and b[0, -1] == 20  # off before its first row and after its last one
    assert np.allclose(a[1], [0.7, 0.25, 0.1, 30]) and np.allclose(a[2], [0.4, 0.8, 0.2, 10])


def test_average_is_the_integral(tmp_path: Path) -> None:
    """Against quadrature on a thousand panels, with jumps and kinks inside steps."""
    spots = SpotTable.read(table(tmp_path / "a.csv"), 2)
    x = torch.rand(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dt, n, fine = 0.5, 20, 2000
    t = dt * (torch.arange(n * fine, dtype=torch.float64) + 0.5) / fine
    midpoint = spots(x, t)[0, :, :, 0].reshape(n, fine, -1).mean(1)
    found = spots.average(x, 0, n, dt)[0, :, :, 0]
    assert float((found - midpoint).abs().max()) < 2e-6 * float(midpoint.max())  # jumps lie on panel edges here
    pieces = torch.cat([spots.average(x, k, k + 4, dt) for k in range(0, n, 4)], dim=1)
    assert torch.allclose(pieces[0, :, :, 0], found, rtol=1e-6, atol=1e-8)  # another cut moves quadrature points, no more


def test_average_agrees_with_the_scenarios_spots(tmp_path: Path) -> None:
    """A path with constant speed as a table and as the library's own spot, while both are on."""
    points = np.array([[0.1, 0.1], [0.9, 0.1], [0.9, 0.5]])
    own = Spots([[Spot("waypoint", waypoint(points, 0.1, 0.0), 0.1, 5.0)]])
    spots = SpotTable.read(table(tmp_path / "a.csv", "t,x,y,radius,power\n0,0.1,0.1,0.1,5\n8,0.9,0.1,0.1,5\n12,0.9,0.5,0.1,5\n"), 2)
    x = torch.rand(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    start = torch.arange(1, 21, dtype=torch.float64) * 0.5  # away from the library's ramps
    assert torch.allclose(step_average(own, x, start, 0.5, 4), spots.average(x, 1, 21, 0.5), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("text", "word"), [
    ("", "empty"),
    ("t,x,y,radius,power\n", "no rows"),
    ("t,x,y,radius\n0,0,0,1\n", "lacks the column 'power'"),
    ("t,x,y,radius,powr\n0,0,0,1,1\n", "did you mean 'power'"),
    ("t,x,y,z,radius,power\n0,0,0,0,1,1\n", "unknown column 'z'"),
    ("t,x,x,y,radius,power\n0,0,0,0,1,1\n", "twice the column 'x'"),
    ("t,x,y,radius,power\n0,0,0,1,1\n1,0,abc,1,1\n", "line 3: 'abc' in column 'y'"),
    ("t,x,y,radius,power\n0,0,0,1,nan\n1,0,0,1,1\n", "line 2: 'nan' in column 'power'"),
    ("t,x,y,radius,power\n0,0,0,1,1\n1,0,0,0,1\n", "line 3: a radius must be positive"),
    ("t,x,y,radius,power\n0,0,0,1,1\n1,0,0,1\n", "line 3: 4 cells under 5 columns"),
    ("t,x,y,radius,power,spot\n0,0,0,1,1,a\n1,0,0,1,1,b\n0,0,0,1,1,a\n", "line 4: the times of spot 'a' must increase"),
    ("t,x,y,radius,power\n0,0,0,1,1\n", "line 2: the spot has one row"),
    ("t,x,y,radius,power\n0,0,0,1e-9,1\n1,1,0,1e-9,1\n", "of its radii"),
])
def test_malformed_tables_are_named(text: str, word: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                    capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "bad.csv", text)
    assert command(monkeypatch, folder, "--source", path, "--out", tmp_path / "x.h5") == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and word in said[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv"]


# ---------------------------------------------------------------------- rollouts


def test_table_rolls_out_as_in_memory(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "a.csv")
    assert command(monkeypatch, folder, "--source", path, "--steps", 12, "--out", tmp_path / "x.h5", "--json",
                   tmp_path / "x.json") == 0
    run, scenario = Run.open(folder), get("laser-heat", "small")
    x = torch.tensor(scenario.mesh.points)
    source = SpotTable.read(path, 2).average(x, 0, 12, scenario.dt).float()
    start = torch.full((1, len(x), 1), AMBIENT)
    with torch.no_grad():
        expected = rollout(run.model, base_problem(scenario, "cpu"), start, source)
    with Dataset(tmp_path / "x.h5") as data:
        found = data.read(0)
        assert data.provenance["truth"] == "prediction" and data.dt == scenario.dt and data.offset == (AMBIENT,)
        assert np.array_equal(data.mesh.cells, scenario.mesh.cells)
    assert np.array_equal(found.state, expected[0].numpy()) and np.allclose(found.time, scenario.dt * np.arange(13))
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["range"]["T"] == [float(expected.min()), float(expected.max())] and result["spots"] == 2
    assert result["rne"] is None and float(expected.max()) > AMBIENT + 20
    assert "x.h5" in capsys.readouterr().out


def test_stored_trajectory_is_judged(folder: Path, tmp_path: Path) -> None:
    number, run = 3, Run.open(folder)
    result, states = collected(folder, trajectory=number)
    with Dataset(run.data) as data:
        batch = data.batch([number])
    assert len(states) == batch.steps + 1
    assert result["rne"] == pytest.approx(rne(torch.from_numpy(states)[None], batch.state, [AMBIENT]), rel=1e-6)
    # the same source, another start
    np.save(tmp_path / "hot.npy", np.full(len(states[0]), AMBIENT + 50))
    hot, other = collected(folder, trajectory=number, initial=tmp_path / "hot.npy", steps=5)
    assert hot["rne"] is None and hot["steps"] == 5 and np.all(other[5] > states[5])


@pytest.mark.parametrize("drive", ["table", "stored"])
def test_streamed_in_blocks_equals_whole(drive: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"trajectory": 2} if drive == "stored" else {"source": table(tmp_path / "a.csv")}
    whole, states = collected(folder, **options, out=tmp_path / "whole.h5")
    monkeypatch.setattr(module, "_WHOLE", 0)
    monkeypatch.setattr(module, "_BLOCK", 7 * 4 * states.shape[1])  # seven steps at a time
    monkeypatch.setattr(series, "CHUNK", 3 * 4 * states.shape[1])  # three states a chunk
    held: list[int] = []
    name = "stored_source" if drive == "stored" else "source_from"
    monkeypatch.setattr(module, name, _counting(getattr(module, name), held))
    blocks, again = collected(folder, **options, out=tmp_path / "blocks.h5")
    assert max(held) == 7 and sum(held) == whole["steps"]
    assert np.allclose(again, states, rtol=1e-6)
    assert blocks["rne"] == (None if drive == "table" else pytest.approx(whole["rne"], rel=1e-3))
    for name, expected in (("whole", states), ("blocks", again)):
        with Dataset(tmp_path / f"{name}.h5") as data:
            assert np.array_equal(data.read(0).state, expected)


def _counting(opened: Callable[..., drives.Drive], held: list[int]) -> Any:
    def counted(*arguments: Any) -> drives.Drive:
        found = opened(*arguments)

        def rows(start: int, stop: int) -> torch.Tensor:
            held.append(stop - start)
            return found.rows(start, stop)

        return replace(found, rows=rows)

    return counted


def test_paraview_files_hold_the_states(folder: Path, tmp_path: Path) -> None:
    for every, steps in ((1, 9), (4, 6)):  # the second leaves nothing of the first
        _, states = collected(folder, source=table(tmp_path / "a.csv"), steps=steps, vtk=tmp_path / "heat.pvd", every=every)
        sets = ElementTree.parse(tmp_path / "heat.pvd").getroot().findall("Collection/DataSet")
        shown = sorted({*range(0, steps + 1, every), steps})
        assert [float(s.attrib["timestep"]) for s in sets] == [0.5 * k for k in shown]
        assert sorted(p.name for p in (tmp_path / "heat-vtu").iterdir()) == [f"heat-{k:06d}.vtu" for k in shown]
        for k, entry in zip(shown, sets):
            mesh = meshio.read(tmp_path / entry.attrib["file"])
            assert np.array_equal(mesh.point_data["T"].ravel(), states[k, :, 0])
            assert np.allclose(mesh.points[:, :2], get("laser-heat", "small").mesh.points)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "heat-vtu", "heat.pvd"]


def test_nothing_is_left_when_a_rollout_fails(folder: Path, tmp_path: Path) -> None:
    def fail(k: int, u: np.ndarray) -> None:
        if k == 3:
            raise SolveError("it broke")

    with pytest.raises(SolveError, match="it broke"):
        predict_to_files(folder, trajectory=0, out=tmp_path / "x.h5", vtk=tmp_path / "x.pvd", sink=fail)
    assert list(tmp_path.iterdir()) == []
    hot = table(tmp_path / "hot.csv", "t,x,y,radius,power\n0,0.2,0.2,0.1,1e39\n9,0.8,0.2,0.1,1e39\n")
    with pytest.raises(InputError, match="'1e39' in column 'power' is beyond"):
        predict_to_files(folder, source=hot, out=tmp_path / "x.h5")
    assert list(tmp_path.iterdir()) == [hot]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _without_states(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["trajectories/00000/state"]


def _noted(**changes: object) -> Callable[[Path], None]:
    def does(path: Path) -> None:
        note = path.with_suffix(".resume")
        with np.load(note) as archive:
            found = dict(archive) | {name: np.array(value) for name, value in changes.items()}
        with note.open("wb") as file:
            np.savez(file, **found)
    return does


@pytest.mark.parametrize("damage", [
    _cut, _without_states, lambda path: path.write_bytes(bytes(range(256)) * 99), lambda path: path.write_bytes(b""),
    lambda path: path.unlink(), lambda path: _cut(path.with_suffix(".resume")), _noted(step="x"), _noted(step=-3),
    _noted(step=10**6), _noted(state=np.zeros(3)), _noted(state=np.array(["a"])), lambda path: None])
def test_what_an_interrupted_rollout_left_is_begun_anew_if_it_is_damaged(
        damage: Callable[[Path], None], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "PAUSE", -1.0)
    spots, out = table(tmp_path / "spots.csv"), tmp_path / "x.h5"

    def stop(k: int, u: np.ndarray) -> None:
        if k == 7:
            raise KeyboardInterrupt

    predict_to_files(folder, source=spots, steps=10, out=tmp_path / "whole.h5")
    with pytest.raises(KeyboardInterrupt):
        predict_to_files(folder, source=spots, steps=10, out=out, sink=stop)
    damage(tmp_path / "x.h5.part")
    predict_to_files(folder, source=spots, steps=10, out=out)
    assert out.read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["spots.csv", "whole.h5", "x.h5"]


@pytest.mark.parametrize(("arguments", "word"), [
    ((), "needs --source, --trajectory or --initial"),
    (("--trajectory", 99), "no number 99"),
    (("--trajectory", 0, "--steps", 41), "source for 40 steps"),
    (("--trajectory", 0, "--steps", 0), "greater than or equal to 1"),
    (("--trajectory", 0, "--out", "x.csv"), "must end in .h5"),
    (("--trajectory", 0, "--vtk", "x.vtu"), "must end in .pvd"),
    (("--source", "nowhere.csv"), "no file nowhere.csv"),
    (("--initial", "nowhere.npy"), "no file nowhere.npy"),
    (("--trajectory", 0, "--data", "nowhere.h5"), "no file nowhere.h5"),
    (("--trajectory", 0, "--device", "tpu"), "unknown device"),
])
def test_bad_input_is_one_sentence(arguments: tuple, word: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, folder, *arguments) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and word in said[0] and list(tmp_path.iterdir()) == []


def test_data_set_is_not_overwritten_and_starts_are_checked(folder: Path, tmp_path: Path) -> None:
    data = Run.open(folder).data
    with pytest.raises(InputError, match="is the data set of the run"):
        predict_to_files(folder, trajectory=0, out=data)
    np.save(tmp_path / "short.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"must hold numbers \[482, 1\] or \[482\], got float64 \[3\]"):
        predict_to_files(folder, initial=tmp_path / "short.npy")


def test_missing_meshio_is_said_before_any_work(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "meshio":
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="pip install meshio"):
        predict_to_files(folder, trajectory=0, vtk=tmp_path / "x.pvd")
