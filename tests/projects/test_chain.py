"""From `dgnet new` to a rollout, in Python. The tutorial (tests/test_docs.py) goes the same way by commands."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.models import Classical, rollout
from dgnet.prediction.to_files import predict_to_files
from dgnet.problems import PDE, Problem, Robin
from dgnet.problems.spot_table import SpotTable
from dgnet.projects import Training, load, project, template, trajectory
from dgnet.training.bars import error_bars
from dgnet.training.evaluate import evaluate
from dgnet.training.own import train_project
from dgnet.training.plan import make_plan
from dgnet.training.run import Run
from dgnet_paper.reference.transport import solve
from dgnet_paper.scenarios.scenario import scenario_of
from tests.projects.conftest import DT, SPOTS, STEPS, TOML, command, plate, states, write_tiny


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "example"
    template.write(folder)
    return folder


def test_the_example_is_the_truth(example: Path) -> None:
    """Its simulations agree with an independent solver on a mesh refined twice with an eighth of the step."""
    case = load(example).case
    start = torch.full((1, case.mesh.n_nodes, 1), template.AMBIENT, dtype=torch.float64)
    steps = 30
    true = solve(case.mesh, case.pde, case.conditions, start, dt=case.dt, steps=steps, refine=2, substeps=8, degree=2,
                 source=SpotTable.read(example / "runs" / "test-1.csv", 2)).numpy()[0, ..., 0]
    made = np.load(example / "runs" / "test-1.npz")["state"][: steps + 1]
    assert np.linalg.norm(made - true) < 2e-4 * np.linalg.norm(true - template.AMBIENT)


def test_the_example(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its data are the truth of the problem it describes, not of another one; every comment in it is valid when it is said."""
    p = load(example)
    s = p.case
    assert s.pde.diffusion == pytest.approx(template.DIFFUSIVITY) and s.conditions == (Robin("boundary", 2e-5, 293.15),)
    with Dataset(p.data) as data:
        counts = len(data.of("train")), len(data.of("test"))
    assert (*counts, s.steps, s.offsets) == (template.TRAIN, template.TEST, template.STEPS, (template.AMBIENT,))
    with Dataset(p.data) as data:
        classical = rollout(Classical(), s.problem(), torch.from_numpy(data.read(0).state[:1]).double(),
                            torch.from_numpy(data.read(0).source_average)[None].double())
        truth = data.read(0).state
    assert 0.005 < np.linalg.norm(classical[0].numpy() - truth) / np.linalg.norm(truth - template.AMBIENT) < 0.05
    text = template.PROBLEM.replace('diffusion = "97', '# diffusion = "97').replace(
        "ambient = 293.15", 'ambient = { function = "room" }')
    for key in ("boundaries.foot", "regions.weld", "velocity", "decay", "reaction", "calibrate", "per_region", "[pde.diffusion]",
                "weld =", "elsewhere =", "[model]", "hidden"):
        assert text.count(f"# {key}") == 1
        text = text.replace(f"# {key}", key)
    (example / "problem.toml").write_text(text)
    all_of_it = load(example)
    plan = make_plan(all_of_it, 10, 60, sources=True)
    config, recipe = plan.config, plan.recipe
    assert config.regions and config.hidden == 32 and all_of_it.unknowns.reaction and recipe.stages[0].method == "gauss-newton"
    assert command(monkeypatch, "new", example) == 2
    assert "is not empty" in capsys.readouterr().err
    (example / "problem.toml").write_text(template.PROBLEM)


def test_baselines_train_on_it_too(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tiny / "problem.toml").write_text(TOML + "[model.mgn]\nhidden = 16\n")
    assert command(monkeypatch, "train", tiny, "--model", "mgn", "--budget", 0.02, "--out", tmp_path / "run") == 0
    run = Run.open(tmp_path / "run")
    assert run.settings.model == "mgn" and run.model.config.hidden == 16
    assert evaluate(run, run.data)[0]["scores"]["mgn"]["rne"] > 0


def test_in_python(tmp_path: Path) -> None:
    """The example of docs/problem-files.md, on a small mesh."""
    mesh = plate()
    (tmp_path / "spots.csv").write_text(SPOTS)
    spots = SpotTable.read(tmp_path / "spots.csv", 2)
    own = project("plate", mesh, PDE(("T",), diffusion=0.05), [Robin("left", 0.02, 20.0)], DT,
                  [trajectory(states(mesh, SPOTS, tmp_path), mesh, DT, spots, split) for split in ("train", "train", "test")],
                  tmp_path / "data.h5", offset=[20.0], training=Training(windows=(4,), iterations=(30,)))
    run, progress = train_project(own, tmp_path / "run")
    result, _, _ = evaluate(run, own.data)
    made = predict_to_files(run, source=tmp_path / "spots.csv", out=tmp_path / "out.h5")
    assert progress.best < progress.classical and result["error_ratio"] < 1 and made["steps"] == STEPS
    for again in (Run.open(tmp_path / "run"), Run.open(tmp_path / "run", case=own.case)):
        assert torch.equal(again.model.free_pair, run.model.free_pair) and again.identity == run.identity and not again.notes
    shutil.rmtree(tmp_path / "run" / "problem")
    with pytest.raises(InputError, match="was made in Python"):
        Run.open(tmp_path / "run")
    with pytest.raises(InputError, match="problem of your own"):
        scenario_of(run)


def test_calibration_is_found_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The data were made with 1.2 times the diffusivity that the file gives."""
    folder = write_tiny(tmp_path / "p", TOML.replace("diffusion = 0.05", "diffusion = 0.05\ncalibrate = [\"diffusion\"]")
                        + "[training]\nwindows = [4]\niterations = [2]\n"
                        + "[model]\ndecoder = \"none\"\nnetwork = false\nfree = false\n")
    assert command(monkeypatch, "train", folder, "--out", tmp_path / "run", "--json", tmp_path / "t.json") == 0
    told = json.loads((tmp_path / "t.json").read_text())
    found, bar, text = told["coefficients"]["diffusion"], told["error_bars"]["diffusion"], capsys.readouterr().out
    assert found == pytest.approx(1.2, rel=0.02) and f"diffusion: {found:.4g} times" in text and "bias of the mesh" in text
    assert abs(np.log(bar["best"] / 1.2)) < bar["error"] and bar["factor"] == found
    assert "(which does not know the calibrated diffusion)" in text
    run = Run.open(tmp_path / "run")
    assert (tmp_path / "run" / "coefficients.json").is_file() and asdict(error_bars(run)["diffusion"]) == bar
    (tmp_path / "run" / "coefficients.json").write_text("{}")  # made again
    assert error_bars(run)["diffusion"].best == pytest.approx(bar["best"], rel=1e-6)


def test_an_unknown_reaction_is_learned(tmp_path: Path) -> None:
    """A decay that the equation does not mention. The reaction is fitted first, by itself; a second of it helps."""
    mesh = plate()
    problem = Problem(mesh, PDE(("T",), diffusion=0.05, decay=2.0), [], DT)
    g = torch.Generator().manual_seed(0)
    starts = torch.rand(4, 1, 1, dtype=torch.float64, generator=g) + 0.2 * torch.sin(4 * torch.tensor(mesh.points)[None, :, :1])
    runs = rollout(Classical(), problem, starts, None, STEPS).numpy()
    data = [trajectory(r, mesh, DT, split="test" if k == 3 else "train") for k, r in enumerate(runs)]
    own = project("fading", mesh, PDE(("T",), diffusion=0.05), [], DT, data, tmp_path / "d.h5", unknown_reaction=True,
                  training=Training(windows=(4,), iterations=(1,)))
    first, then = make_plan(own, 3, STEPS).recipe.stages
    assert (first.method, first.only) == ("identify", ("reaction_net",)) and not then.only
    run, _ = train_project(own, tmp_path / "run", minutes=0.05)
    assert run.model.config.reaction == "learned" and not run.model.config.learn_source
    assert evaluate(run, own.data)[0]["error_ratio"] < 0.05
    head, *rows = (tmp_path / "run" / "reaction.csv").read_text().splitlines()
    assert head == "T,r,standard deviation of r,share of training states"
    T, r, deviation, share = np.array([[float(v) for v in row.split(",")] for row in rows]).T
    seen = share > 0.002
    assert np.abs(r + 2.0 * T)[seen].max() < 0.1 * 2.0 * T.max() and (deviation > 0).all() and share.sum() == pytest.approx(1)


def test_training_says_what_is_wrong(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    for options, words in ((("--budget", 0), "'--budget'"), (("--trajectories", 0), "'--trajectories'"),
                           (("--model", "mgm"), "did you mean 'mgn'"), (("--model", "classical"), "nothing to train")):
        assert command(monkeypatch, "train", tiny, "--out", tmp_path / "run", *options) == 2
        assert words in capsys.readouterr().err
    (tiny / "problem.toml").write_text(TOML + "[training]\nwindows = [4]\niterations = [1, 2]\n")
    assert command(monkeypatch, "train", tiny, "--out", tmp_path / "run") == 2
    assert "must have the same length" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert command(monkeypatch, "train", tmp_path / "empty", "--out", tmp_path / "run") == 2
    assert "`dgnet new" in capsys.readouterr().err


def test_the_documented_python(example: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The example of docs/problem-files.md as it stands there, with seconds of training: at most 20 lines."""
    page = (Path(__file__).parents[2] / "docs" / "problem-files.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20 and code.count("minutes=0.75") == 1
    (example.parent / "plate").symlink_to(example)
    monkeypatch.chdir(example.parent)
    exec(compile(code.replace("minutes=0.75", "minutes=0.05"), "problem-files.md", "exec"), {})
    assert "'universal-tuned'" in capsys.readouterr().out and Path("out.pvd").exists()
