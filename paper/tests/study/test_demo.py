"""The demo: its two acts on small settings, its files, its figures, its manners."""

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dgnet.data import Dataset
from dgnet.models import Classical, rollout
from dgnet.problems import LUMPED
from dgnet.scoring.metrics import rne
from dgnet_paper import cli
from dgnet_paper.demo import acts as module
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.lasers import AMBIENT, TEST_KINDS

FILES = ["demo.gif", "demo.json", "demo.png", "laser.gif", "laser.png"]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet-paper", "demo", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The small plate in both acts, the cheap truth, a few iterations, four frames."""
    monkeypatch.setattr(module, "TRUTH", "same-mesh")
    monkeypatch.setattr(module, "demo", partial(module.demo, size="small", frames=4, budget=60.0, factor=0.01))


def test_command_runs_from_data_to_test_and_again(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--out", tmp_path, "--json", tmp_path / "again.json") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.json", "data", "demo-run", *FILES]
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record == json.loads((tmp_path / "again.json").read_text())
    _check_show(record["show"])
    assert set(record["rne"]) == {"dgnet", "classical_lumped", "classical_consistent"}
    assert set(record["seconds"]) == {"generate", "train", "evaluate", "rollout_dgnet", "rollout_classical"}
    assert all(0 < s < 60 for s in record["seconds"].values()) and record["reused"] == []
    assert record["seconds"]["rollout_dgnet"] + record["seconds"]["rollout_classical"] < record["seconds"]["evaluate"]
    best = min(record["rne"]["classical_lumped"], record["rne"]["classical_consistent"])
    assert record["error_ratio"] == record["rne"]["dgnet"] / best and record["wins"] == (record["error_ratio"] < 1)
    found = record["training"]  # single precision: an untrained DGNet and the classical solver round differently
    assert found["iterations"] == 8 and found["validation"] <= 1.0001 * found["validation_classical"]
    assert set(record["kinds"]["test"]) - set(record["kinds"]["train"]) <= set(TEST_KINDS)

    # the figures are those of the stored data
    scenario = get("laser-heat", "small")
    with Dataset(tmp_path / "data" / "laser-heat-small-same-mesh.h5") as data:
        test = data.batch(data.of("test"), dtype=torch.float64)
    with torch.no_grad():
        lumped = rollout(Classical(LUMPED), scenario.problem(), test.state[:, 0], test.source_average)
    assert rne(lumped, test.state, [AMBIENT]) == pytest.approx(record["rne"]["classical_lumped"], rel=1e-3)

    printed = capsys.readouterr().out
    for word in ("never occur in training", f"{record['rne']['dgnet']:.5f}", f"{record['error_ratio']:.2f}", "demo.gif",
                 "DGNet makes" if record["wins"] else "does NOT win"):
        assert word in printed
    _check_pictures(tmp_path)

    # run again, nothing is generated or trained
    assert command(monkeypatch, "--out", tmp_path) == 0
    second = json.loads((tmp_path / "demo.json").read_text())
    assert second["reused"] == ["data", "training"] and second["rne"] == record["rne"] and second["training"] == record["training"]
    assert second["seconds"]["train"] == record["seconds"]["train"] and "used again" in capsys.readouterr().out


def _check_show(show: dict) -> None:
    scenario = get("laser-heat", "small")
    assert (show["nodes"], show["steps"], show["dt"]) == (scenario.mesh.n_nodes, scenario.steps, scenario.dt)
    assert AMBIENT + 10 < show["peak"] < 2000 and 0 < show["peak_time"] <= scenario.horizon
    assert show["steps_per_second"] == pytest.approx(show["steps"] / show["seconds"])


def _check_pictures(folder: Path) -> None:
    for name in ("laser.gif", "demo.gif"):
        assert (folder / name).stat().st_size < 3e6
        with Image.open(folder / name) as gif:
            assert gif.n_frames == 4 and min(gif.size) > 200
            first = np.asarray(gif.convert("RGB"), dtype=int)
            gif.seek(3)
            assert np.abs(np.asarray(gif.convert("RGB"), dtype=int) - first).max() > 100  # the plate has warmed up
    for name in ("laser.png", "demo.png"):
        with Image.open(folder / name) as png:
            assert png.width > 1000


def test_other_settings_train_anew_and_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRUTH", "same-mesh")
    for name in ("picture", "animation"):  # drawn in the test above
        monkeypatch.setattr(module.Duel, name, lambda *a: None)
    learn = partial(module.learn, frames=2, budget=60.0, factor=0.005)

    def stop(progress: object, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path, tell=stop)
    folder = tmp_path / "demo-run"
    assert not (folder / "weights.pt").exists() and (folder / "last.pt").exists() and not (tmp_path / "demo.png").exists()
    first, _ = learn(tmp_path)
    other, _ = learn(tmp_path, seed=1)
    assert first["reused"] == other["reused"] == ["data"] and 'seed = 1' in (folder / "run.toml").read_text()
    assert other["rne"]["classical_lumped"] == first["rne"]["classical_lumped"]
    (folder / "run.toml").write_text("not [ toml")
    third, _ = learn(tmp_path, seed=1)
    assert third["rne"] == other["rne"] and third["reused"] == ["data"]


def test_table_is_plain_about_a_defeat() -> None:
    record = {"rne": {"dgnet": 0.006, "classical_consistent": 0.004, "classical_lumped": 0.008,
                      "classical_p2": 0.002, "classical_refined": 0.003, "universal": 0.001}, "error_ratio": 1.5, "wins": False,
              "seconds": {"train": 1.0}, "trajectories": 4, "steps": 40, "nodes": 482, "truth": "converged",
              "kinds": {"train": ["orbit", "raster"], "test": ["orbit", "spline"]}}
    rows, sentences = module.table(record)
    assert [row[1:] for row in rows[:3]] == [("0.00600", "1.50"), ("0.00400", "1.00"), ("0.00800", "2.00")]
    assert [row[:2] for row in rows[3::2]] == [("classical, quadratic elements", "0.00200"), ("universal weights", "0.00100")]
    assert "NOT" in sentences[2] and "quadratic elements on that mesh make 0.00200" in sentences[3]
    assert re.search(r"follow spline paths.*orbit paths occur in both", sentences[1])


@pytest.mark.parametrize("arguments", [("--device", "tpu"), ("--seed", -1)])
def test_bad_input_is_one_sentence(arguments: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--out", tmp_path / "x", *arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (tmp_path / "x").exists()
