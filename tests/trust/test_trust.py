"""How far a run can be trusted: the range of its data, who leaves it, and trajectories left out of training."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dgnet import cli
from dgnet.data import Dataset, Header, Trajectory, write_dataset
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models.dgnet import DGNetConfig
from dgnet.prediction.to_files import predict_to_files
from dgnet.recipe import Recipe, Stage
from dgnet.training.plan import Plan
from dgnet.training.run import Run, train
from dgnet.trust import folds, leave_one_out, ranges
from dgnet.trust.ranges import (
    Guard,
    Span,
    TrainingRange,
    extents,
    measure_range,
    range_findings,
    sentence,
    slopes,
)
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.generate import generate


def known(sources: bool = True) -> TrainingRange:
    return TrainingRange(("T", "S"), (Span(0.0, 10.0, 5.0, 1.0), Span(-1.0, 1.0, 0.0, 0.5)), (4.0, 2.0),
                         (Span(0.0, 3.0, 1.0, 1.0), Span(0.0, 0.0, 0.0, 0.0)) if sources else (),
                         ((0.2, 0.4), (math.inf, 0.0)) if sources else (), 3, 20)


# ---------------------------------------------------------------------- the range


def test_measures_have_their_closed_forms() -> None:
    mesh = box((80, 80))
    x, y = mesh.points.T
    linear = (2 * x - 3 * y)[None, :, None]
    assert np.allclose(slopes(mesh, linear), 13)
    for count, radius in ((1, 0.05), (2, 0.08)):  # the extent is the radius, however many spots there are
        spots = sum(np.exp(-((x - a) ** 2 + (y - 0.5) ** 2) / (2 * radius**2)) for a in np.linspace(0.5, 0.85, count))
        two = np.stack([spots, 0 * x], -1)[None]
        assert extents(mesh, two)[0, 0] == pytest.approx(radius, rel=0.15 if count > 1 else 0.03)
        assert np.isnan(extents(mesh, two)[0, 1])


def test_range_is_that_of_all_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, rng = box((5, 4)), np.random.default_rng(0)
    rows = []
    for k in range(3):
        state = rng.normal(300, 5, (8, mesh.n_nodes, 2)).astype(np.float32)
        f = rng.normal(0, 1, (8, mesh.n_nodes, 2)).astype(np.float32)
        rows.append(Trajectory(state, 0.1 * np.arange(8), f, f[1:], split="train" if k < 2 else "test"))
    write_dataset(tmp_path / "a.h5", Header(mesh, ("a", "b"), 0.1, 7), rows)
    monkeypatch.setattr(ranges, "_ROWS", 3 * mesh.n_cells * 3 * 2)  # three steps at a time
    with Dataset(tmp_path / "a.h5") as data:
        found = measure_range(data, [0, 1])
    whole, source = np.concatenate([r.state for r in rows[:2]]), np.concatenate([r.source_average for r in rows[:2]])
    for f in range(2):
        assert found.states[f].low == whole[..., f].min() and found.states[f].high == whole[..., f].max()
        assert found.states[f].mean == pytest.approx(whole[..., f].mean(), rel=1e-3)  # states at the seams of pieces count twice
        assert found.states[f].std == pytest.approx(whole[..., f].std(), rel=0.05)
        assert found.sources[f].high == source[..., f].max()
        assert found.gradients[f] == pytest.approx(np.sqrt(slopes(mesh, whole.astype(float))[..., f].max()))
        width = extents(mesh, source.astype(float))[:, f]
        assert found.extents[f] == (pytest.approx(width.min()), pytest.approx(width.max()))
    again = TrainingRange.from_dict(json.loads(json.dumps(found.as_dict())))
    assert again == found


def test_range_without_a_source_and_of_one_that_is_never_on() -> None:
    for value in (known(), known(False)):
        text = json.dumps(value.as_dict(), allow_nan=False)
        assert TrainingRange.from_dict(json.loads(text)) == value


# ---------------------------------------------------------------------- who leaves it


def test_guard_says_which_field_when_and_by_how_much() -> None:
    guard = Guard(known(), box((4, 4)), 0.5)
    inside = np.tile([5.0, 0.0], (3, 1))
    guard.states(0, inside, inside)
    assert guard.findings() == [] and sentence([]) is None
    high = inside + np.array([[5.1, 0.0], [6.0, 0.0], [8.0, 0.0]])  # 10.1 is within two percent of the width
    guard.states(3, inside, high)
    guard.states(6, inside - [[0.0, 1.5]], inside)
    top, = (f for f in guard.findings() if f["what"] == "high")
    assert top == {"field": "T", "what": "high", "time": 2.0, "step": 4, "value": 13.0, "training": [0.0, 10.0], "beyond": 0.3}
    low, = (f for f in guard.findings() if f["what"] == "low")
    assert low["field"] == "S" and low["step"] == 6 and low["beyond"] == pytest.approx(0.25)
    said = sentence(guard.findings())
    assert said is not None and said.count(".") - said.count("0.") <= 3 and "\n" not in said
    for word in ("T goes up to 13 (from t = 2 on), training had 0 to 10, 30% of that width beyond", "S goes down to -1.5"):
        assert word in said


def test_guard_watches_gradients_and_sources() -> None:
    mesh = box((20, 20))
    x, y = mesh.points.T
    guard = Guard(known(), mesh, 1.0)
    zero = 0 * x
    guard.gradients(7, np.stack([5 * x, x], -1)[None])
    assert [(f["field"], f["what"], f["step"], round(f["beyond"], 3)) for f in guard.findings()] == [("T", "gradient", 7, 0.25)]
    spot = np.exp(-((x - 0.5) ** 2 + (y - 0.5) ** 2) / (2 * 0.1**2))
    guard.sources(2, np.stack([np.stack([0.01 * spot, zero], -1), np.stack([3.0 * spot, zero], -1)]))
    narrow = guard.findings()[-1]
    assert narrow["what"] == "extent" and narrow["step"] == 3 and 0.7 < narrow["beyond"] < 1.1  # the faint one does not count
    guard.sources(4, np.stack([6 * spot, 0.1 * spot], -1)[None])
    what = {(f["field"], f["what"]) for f in guard.findings()}
    assert ("T", "source high") in what and ("S", "source high") in what
    other = Guard(known(False), mesh, 1.0)
    other.sources(0, np.stack([spot, zero], -1)[None])
    found, = other.findings()
    assert found["field"] == "T" and found["beyond"] is None and "training had none" in str(sentence([found]))


def test_judged_states_keep_the_worst_of_a_kind() -> None:
    mesh = box((4, 4))
    states = torch.zeros(3, 5, mesh.n_nodes, 2)
    states[1, 2, 0, 0], states[2, 3, 1, 0] = 12.0, 15.0
    found = [f for f in range_findings(known(False), mesh, 0.1, states, None) if f["what"] == "high"]
    assert len(found) == 1 and found[0]["trajectory"] == 2 and found[0]["value"] == 15.0 and found[0]["step"] == 3


# ---------------------------------------------------------------------- runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, scenario = tmp_path_factory.mktemp("run"), get("laser-heat", "small")
    data = generate(scenario, root, truth="same-mesh", trajectories=3)
    plan = Recipe("short", (Stage(3, 3, batch=2, lr=1e-2),), hold_out=1)
    train(scenario, "same-mesh", data, root / "run", Plan(DGNetConfig(hidden=8, layers=1), plan))
    return root / "run"


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_rollout_warns_in_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mild.csv").write_text("t,x,y,radius,power\n0,0.2,0.2,0.2,10\n20,1.2,0.7,0.2,10\n")
    (tmp_path / "hot.csv").write_text("t,x,y,radius,power\n0,0.2,0.2,0.2,10\n8,1.2,0.7,0.2,900\n20,1.2,0.7,0.2,900\n")
    for name in ("mild", "hot"):
        assert command(monkeypatch, "rollout", folder, "--source", tmp_path / f"{name}.csv", "--json", tmp_path / "x.json") == 0
        said, result = capsys.readouterr().out, json.loads((tmp_path / "x.json").read_text())
        assert ("leaves the range" in said) == (name == "hot") and (result["warning"] is not None) == (name == "hot")
        assert bool(result["left_range"]) == (name == "hot")
    high = next(f for f in result["left_range"] if f["what"] == "high")
    top = json.loads((folder / "range.json").read_text())["fields"]["T"]["state"]["high"]
    assert high["field"] == "T" and high["training"][1] == top and high["value"] == result["range"]["T"][1]
    assert result["warning"] in said


def test_range_is_kept_with_the_run(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(folder, copied)
    (copied / "range.json").unlink(missing_ok=True)
    text = (copied / "run.toml").read_text()
    data = Run.open(folder).data
    predict_to_files(copied, trajectory=0, steps=2)
    assert (copied / "range.json").exists()
    (copied / "run.toml").write_text(text.replace(data.name, "gone.h5"))  # the data set is gone, its range is not
    assert predict_to_files(copied, trajectory=0, data=data, steps=2)["training_range"]["trajectories"] == 3
    (copied / "range.json").write_text("{}")
    with pytest.raises(InputError, match=r"range\.json is damaged"):
        predict_to_files(copied, trajectory=0, data=data, steps=2)
    (copied / "range.json").unlink()
    found = predict_to_files(copied, trajectory=0, data=data, steps=2)
    assert found["training_range"] is None and found["left_range"] is None and found["warning"] is None


def test_links_leave_one_out_and_copy_nothing(folder: Path, tmp_path: Path) -> None:
    data = Run.open(folder).data
    folds.link_without(data, tmp_path / "rest.h5", [0, 1, 2], 1)
    with Dataset(data) as whole, Dataset(tmp_path / "rest.h5") as rest:
        assert len(rest) == 2 and rest.splits == ("train", "train") and rest.provenance == whole.provenance
        for mine, theirs in ((0, 0), (1, 2)):
            assert np.array_equal(rest.read(mine).state, whole.read(theirs).state)
    with h5py.File(tmp_path / "rest.h5") as file:
        assert all(isinstance(file["trajectories"].get(k, getlink=True), h5py.ExternalLink) for k in file["trajectories"])


def test_leave_one_out_is_resumed_fold_by_fold(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = tmp_path / "run"
    shutil.copytree(folder, run_folder)
    run, trained = Run.open(run_folder), []
    original = folds.train

    def counting(*arguments, **options):
        with Dataset(arguments[2]) as data:
            trained.append((len(data), arguments[4].config.hidden, options["budget"]))
        if len(trained) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(folds, "train", counting)
    with pytest.raises(KeyboardInterrupt):
        leave_one_out(run, budget=3.0)
    assert not (run_folder / "trust.json").exists()
    result = leave_one_out(run, budget=3.0)
    assert trained == [(2, 8, 1.0)] * 4  # the first fold once, the second twice
    assert [f["trajectory"] for f in result["folds"]] == [0, 1, 2] and result == json.loads((run_folder / "trust.json").read_text())
    errors = [f["rne"] for f in result["folds"]]
    assert result["mean"] == pytest.approx(np.mean(errors)) and result["worst"] == max(errors) and min(errors) > 0
    assert not list((run_folder / "leave-one-out").rglob("*.h5")) and not list((run_folder / "leave-one-out").rglob("last.pt"))
    leave_one_out(run, budget=3.0)
    assert len(trained) == 4
    # the command tells, and the page shows it
    assert command(monkeypatch, "evaluate", run_folder, "--leave-one-out", "--budget", 0.05) == 0
    assert len(trained) == 4 and "Leave-one-out on 3 trajectories: mean RNE" in capsys.readouterr().out
    page = (run_folder / "report.html").read_text()
    assert "expect an error of about" in page and "worst of 3 trials" in page
    assert json.loads((run_folder / "test.json").read_text())["leave_one_out"]["mean"] == result["mean"]


def test_leave_one_out_needs_two_and_a_budget_its_option(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    copied = tmp_path / "run"
    shutil.copytree(folder, copied)
    text = (copied / "run.toml").read_text()
    (copied / "run.toml").write_text(text.replace("trajectories = 0", "trajectories = 1"))
    with pytest.raises(InputError, match="at least two"):
        leave_one_out(Run.open(copied))
    assert command(monkeypatch, "evaluate", folder, "--budget", 1) == 2
    assert "--leave-one-out" in capsys.readouterr().err
