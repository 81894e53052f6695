"""`dgnet evaluate`: scores, table and figures, in 2D and 3D and with several fields."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dgnet import cli
from dgnet.mesh import Mesh, box
from dgnet.recipe import Recipe, Stage
from dgnet.report import figures
from dgnet.scoring import judge
from dgnet.scoring.metrics import rne
from dgnet.training import evaluate as module
from dgnet.training.plan import OPERATOR, Plan
from dgnet.training.run import Run, train
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.scenarios.waves import activation


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture(scope="module", params=["laser-heat", pytest.param("laser-heat-3d", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few iterations on two trajectories of each split."""
    root, scenario = tmp_path_factory.mktemp(request.param), get(request.param, "small")
    data = generate(scenario, root, truth="same-mesh", trajectories=2)
    train(scenario, "same-mesh", data, root / "run",
          Plan(OPERATOR, Recipe("short", (Stage(2, 8, 16, 3e-3), Stage(2, 40, 8, 2e-3)), hold_out=1)))
    return root / "run"


def test_command_prints_scores_and_draws(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "evaluate", folder, "--json", folder / "x.json") == 0
    result, printed = json.loads((folder / "x.json").read_text()), capsys.readouterr().out
    assert result == json.loads((folder / "test.json").read_text()) and result["trajectories"] == 2
    best = min(result["scores"][n]["rne_from_offset"] for n in ("classical_consistent", "classical_lumped"))
    assert result["error_ratio"] == result["scores"]["dgnet"]["rne_from_offset"] / best
    assert set(result["seconds"]) == set(result["scores"]) and min(result["seconds"].values()) > 0
    for row in result["scores"].values():
        assert f"{row['rne_from_offset']:.3g}" in printed
    assert sorted(p.name for p in (folder / "figures").iterdir()) == [
        "bands.png", "best.png", "error-in-time.png", "error-map.png", "worst.png"]
    for path in (folder / "figures").iterdir():
        assert path.name in printed
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))
        assert pixels.shape[1] > 600 and len(np.unique(pixels.astype(int) @ [65536, 256, 1])) > 200  # something is drawn


def test_bands_are_not_tested_on_what_made_them(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "evaluate", folder, "--calibrate", Run.open(folder).data) == 2
    assert "holds the trajectories that are scored" in capsys.readouterr().err
    assert command(monkeypatch, "evaluate", folder, "--split", "train", "--calibrate", "x.h5") == 2


def test_scores_are_those_of_the_states(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.open(folder)
    result, states, data = module.evaluate(run, run.data)
    for name, s in states.items():
        assert s.shape == data.state.shape
        assert result["scores"][name]["rne_from_offset"] == pytest.approx(rne(s, data.state, run.case.offsets), rel=1e-12)
    monkeypatch.setattr(judge, "BYTES", {"cpu": 1.0})  # one trajectory at a time
    single = module.evaluate(run, run.data)[1]
    assert all(torch.allclose(single[name], s, rtol=1e-5, atol=1e-3) for name, s in states.items())


def test_train_split_has_its_own_files_and_figures_can_be_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(monkeypatch, "evaluate", folder, "--split", "train", "--no-figures") == 0
    assert (folder / "train.json").exists() and not (folder / "figures-train").exists()


@pytest.mark.parametrize("mesh", [box((5, 4)), box((3, 2, 2))], ids=["2D", "3D"])
def test_figures_of_several_fields_and_of_one_trajectory(mesh: Mesh, tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    truth = torch.randn(1, 4, mesh.n_nodes, 2, generator=g)
    states = {name: truth + size * torch.randn(truth.shape, generator=g)
              for name, size in (("dgnet", 0.1), ("classical_consistent", 0.2), ("classical_lumped", 0.0))}
    result = {"scores": {n: {"rne_from_offset": rne(s, truth)} for n, s in states.items()}, "scenario": "x", "size": "small",
              "truth": "same-mesh", "split": "test"}
    seen: list[tuple[int, int]] = []
    written = figures.write(result, states, truth, mesh, 0.1, ("u", "v"), (0.0, 0.0), tmp_path,
                            lambda what, done, total: seen.append((done, total)))
    names = ["best-u.png", "best-v.png", "error-in-time.png", "error-map-u.png", "error-map-v.png"]
    assert sorted(p.name for p in written) == names
    assert sorted(tmp_path.iterdir()) == sorted(written) and seen[-1] == (5, 5)


def test_errors_share_a_scale_that_no_solver_leaves() -> None:
    small, large = np.linspace(0, 1, 1000), np.linspace(0, 5, 1000)
    norm = figures.error_norm(small, large)
    assert norm.vmin == 0 and norm.vmax == pytest.approx(np.quantile(large, 0.995))
    assert figures.error_norm(np.zeros(3)).vmax == 1


@pytest.mark.parametrize("break_it", ["folder", "weights", "truth", "split"])
def test_bad_input_is_one_sentence(break_it: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    bad, extra = tmp_path / "bad", []
    if break_it != "folder":
        bad.mkdir()
        text = (folder / "run.toml").read_text()
        (bad / "run.toml").write_text(text.replace('truth = "same-mesh"', 'truth = "converged"') if break_it == "truth" else text)
        (bad / "weights.pt").write_bytes(b"x" if break_it == "weights" else (folder / "weights.pt").read_bytes())
        extra = ["--split", "dev"] if break_it == "split" else []
    assert command(monkeypatch, "evaluate", bad, *extra) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1 and not (bad / "figures").exists()


def test_times_of_activation_where_the_scenario_has_them() -> None:
    """A front that moves by one node a step, and a model whose front is half a step late and does not reach the last nodes."""
    nodes, steps = 12, 8
    place = torch.arange(nodes, dtype=torch.float64)
    truth = (torch.arange(steps + 1)[:, None] - place + 0.5).clamp(0, 1)[None, ..., None]
    late = (torch.arange(steps + 1)[:, None] - place).clamp(0, 1)[None, ..., None]
    told = activation({"dgnet": truth, "classical_lumped": late}, truth, 0.1, 0.5)
    found, (line,) = told["activation"], told["remarks"]
    assert found["models"]["dgnet"] == {"error": 0.0, "share": 1.0} and found["mean"] == pytest.approx(0.1 * 4, abs=1e-9)
    assert found["models"]["classical_lumped"]["error"] == pytest.approx(0.05)
    assert found["models"]["classical_lumped"]["share"] == pytest.approx(8 / 9)
    assert "0.4 in the mean" in line and "0.05 (88.9% of the places)" in line
