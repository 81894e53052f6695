"""The demo on the small plate: its files, its figures, its manners."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dgnet import cli
from dgnet.evaluation import demo as module
from dgnet.scenarios import get
from dgnet.scenarios.lasers import AMBIENT


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet", "demo", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_command_writes_pictures_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "demo", partial(module.demo, size="small", frames=4))
    assert command(monkeypatch, "--out", tmp_path, "--json", tmp_path / "again.json") == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again.json", "demo.json", "laser.gif", "laser.png"]
    record = json.loads((tmp_path / "demo.json").read_text())
    assert record == json.loads((tmp_path / "again.json").read_text())
    scenario = get("laser-heat", "small")
    assert (record["nodes"], record["steps"], record["dt"]) == (scenario.mesh.n_nodes, scenario.steps, scenario.dt)
    assert AMBIENT + 10 < record["peak"] < 2000 and 0 < record["peak_time"] <= scenario.horizon
    assert record["steps_per_second"] == pytest.approx(record["steps"] / record["seconds"])
    printed = capsys.readouterr().out
    for word in (f"{scenario.mesh.n_nodes}", record["backend"], f"{record['peak']:.1f} K", "laser.gif"):
        assert word in printed
    with Image.open(tmp_path / "laser.gif") as gif:
        assert gif.n_frames == 4 and min(gif.size) > 200
        last = np.asarray(gif.convert("RGB"), dtype=int)
        gif.seek(3)
        assert np.abs(np.asarray(gif.convert("RGB"), dtype=int) - last).max() > 100  # the plate has warmed up
    with Image.open(tmp_path / "laser.png") as png:
        assert png.width > 1000


def test_progress_reaches_the_end_and_seeds_matter() -> None:
    scenario = get("laser-heat", "small")
    seen: dict[str, tuple[int, int]] = {}

    def report(what: str, done: int, total: int) -> None:
        seen[what] = (done, total)

    initial, source, _ = module.trajectory(scenario, 0, report=report)
    run, states = module.simulate(scenario, initial, source, report=report)
    assert all(done == total == scenario.steps for done, total in seen.values()) and len(seen) == 2
    assert tuple(states.shape) == (1, scenario.steps + 1, scenario.mesh.n_nodes, 1)
    assert run.peak == float(states.max())
    assert not bool((module.trajectory(scenario, 1)[1] == source).all())


@pytest.mark.parametrize("arguments", [("--device", "tpu"), ("--seed", -1)])
def test_bad_input_is_one_sentence(arguments: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--out", tmp_path / "x", *arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (tmp_path / "x").exists()
