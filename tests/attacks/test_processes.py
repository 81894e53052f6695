"""Several processes at once on one folder end as one would: nothing is corrupted, nothing fails, nothing is left over."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from dgnet.files import locked
from dgnet.models.dgnet import DGNetConfig
from dgnet.prediction.to_files import predict_to_files
from dgnet.projects import load, template
from dgnet.recipe import Recipe, Stage
from dgnet.training.plan import Plan
from dgnet.training.run import train
from dgnet_paper.scenarios import generate as making
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.scenario import Scenario
from dgnet_paper.study import engine, stored
from dgnet_paper.study.experiment import Experiment
from tests.attacks.commands import alone, dgnet, left_over, together
from tests.projects.conftest import write_tiny


def scenario() -> Scenario:
    return replace(get("laser-heat", "small"), steps=6, train=2, test=1)


def make(folder: Path) -> None:
    making._MOST["cpu"] = 1
    making.generate(scenario(), folder, truth="same-mesh")


def learn(data: Path, folder: Path, hidden: int = 8) -> None:
    config = DGNetConfig(hidden=hidden, layers=1, free=True)
    train(scenario(), "same-mesh", data, folder, Plan(config, Recipe("two", (Stage(8, 2, batch=2, lr=1e-2),), hold_out=1)))


def roll(run: Path, out: Path) -> None:
    predict_to_files(run, trajectory=0, steps=6, out=out, xdmf=out.with_suffix(".xdmf"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set and a run on it."""
    root = tmp_path_factory.mktemp("alone")
    assert alone(root / "logs", make, root)[0] == 0
    code, said = alone(root / "logs", learn, data(root), root / "run")
    assert code == 0, said
    return root


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A project and the states that its import gives."""
    folder = write_tiny(tmp_path_factory.mktemp("project") / "tiny")
    load(folder)
    return folder, states(folder / "imported.h5")


def data(folder: Path) -> Path:
    return next(folder.glob("*.h5"))


def states(path: Path) -> bytes:
    with h5py.File(path) as file:
        return b"".join(np.asarray(file[f"trajectories/{k}/state"]).tobytes() for k in sorted(file["trajectories"]))


def weights(run: Path) -> dict[str, Any]:
    return torch.load(run / "weights.pt", weights_only=True)


def imported(folder: Path) -> None:
    load(folder)


def test_ten_imports_at_once(project: tuple[Path, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(project[0], folder, ignore=shutil.ignore_patterns("imported.h5"))
    found = together(tmp_path / "logs", *[(imported, folder)] * 10)
    assert found.codes() == [0] * 10 and states(folder / "imported.h5") == project[1] and left_over(folder) == []


def test_ten_checks_at_once(project: tuple[Path, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(project[0], folder, ignore=shutil.ignore_patterns("imported.h5"))
    jobs = [(dgnet, "check", folder, "--json", tmp_path / f"{k}.json") for k in range(10)]
    found = together(tmp_path / "logs", *jobs)
    assert found.codes() == [0] * 10, found.said()
    texts = {(tmp_path / f"{k}.json").read_text() for k in range(10)}
    assert len(texts) == 1 and states(folder / "imported.h5") == project[1] and left_over(folder) == []


def test_five_evaluations_at_once(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "run", tmp_path / "run")
    found = together(tmp_path / "logs", *[(dgnet, "evaluate", tmp_path / "run", "--no-figures",
                                           "--json", tmp_path / "same.json")] * 5)
    assert found.codes() == [0] * 5, [found.said(k)[-300:] for k in range(5)]
    score = json.loads((tmp_path / "same.json").read_text())["scores"]
    assert score == json.loads((tmp_path / "run" / "test.json").read_text())["scores"] and left_over(tmp_path) == []


def test_two_trainings_in_one_folder(made: Path, tmp_path: Path) -> None:
    """Both wait for the process that has the folder, and say so; then one trains, and the other finds its run finished."""
    with locked(tmp_path / "run" / "run.toml"):
        found = together(tmp_path / "logs", *[(learn, data(made), tmp_path / "run")] * 2)
        waited = [found.says(k, f"waiting for process {os.getpid()}") for k in range(2)]
    assert found.codes() == [0, 0], found.said(0) + found.said(1)
    assert waited == [True, True]
    one, two = weights(made / "run"), weights(tmp_path / "run")
    assert all(torch.equal(one[k], two[k]) for k in one) and left_over(tmp_path) == []


def test_two_different_trainings_in_one_folder(made: Path, tmp_path: Path) -> None:
    """One of them gets the folder, the other is refused."""
    found = together(tmp_path / "logs", *[(learn, data(made), tmp_path / "run", hidden) for hidden in (8, 9)])
    assert sorted(code or 0 for code in found.codes()) == [0, 1]
    lost = next(k for k, p in enumerate(found.processes) if p.exitcode)
    assert "holds another run" in found.said(lost)
    weights(tmp_path / "run")


def test_generating_one_data_set(made: Path, tmp_path: Path) -> None:
    found = together(tmp_path / "logs", *[(make, tmp_path)] * 5)
    assert found.codes() == [0] * 5, found.said()
    assert data(tmp_path).read_bytes() == data(made).read_bytes() and left_over(tmp_path) == []


def test_rollouts_into_one_file(made: Path, tmp_path: Path) -> None:
    assert alone(tmp_path / "logs", roll, made / "run", tmp_path / "whole.h5")[0] == 0
    found = together(tmp_path / "logs", *[(roll, made / "run", tmp_path / "x.h5")] * 5)
    assert found.codes() == [0] * 5, found.said()
    assert (tmp_path / "x.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes() and left_over(tmp_path) == []


def new(folder: Path) -> None:
    template.TRAIN, template.TEST, template.STEPS = 1, 1, 2
    dgnet("new", folder)


def test_six_new_projects_of_one_name(tmp_path: Path) -> None:
    found = together(tmp_path / "logs", *[(new, tmp_path / "plate")] * 6)
    assert sorted(code or 0 for code in found.codes()) == [0, 2, 2, 2, 2, 2]
    assert len(list((tmp_path / "plate" / "runs").iterdir())) == 4 and left_over(tmp_path) == []
    assert sum("is not empty" in found.said(k) for k in range(6)) == 5


def cell(folder: Path) -> None:
    engine.POLL = 0.05
    summary = engine.run([Experiment("classical", "laser-heat", "small", "same-mesh", few=1)],
                         engine.Options(folder / "data", folder, say=lambda text: None))
    assert not summary.failed, summary.failed


def test_one_cell_by_many(tmp_path: Path) -> None:
    found = together(tmp_path / "logs", *[(cell, tmp_path)] * 5)
    assert found.codes() == [0] * 5, [found.said(k)[-500:] for k in range(5)]
    assert len(stored.load([tmp_path])) == 1 and left_over(tmp_path) == []


SENSORS, COUNT = "sensor,x,y\na,0.3,0.3\nb,0.9,0.5\n", 40


def read(folder: Path, level: float) -> Path:
    """Readings of the two sensors of the plate."""
    path, rng = folder / f"readings-{level:g}.csv", np.random.default_rng(int(level))
    rows = [f"{0.1 * k:g},{level + rng.normal():.4f},{level + rng.normal():.4f}" for k in range(COUNT)]
    path.write_text("\n".join(["t,a,b", *rows]) + "\n")
    (folder / "sensors.csv").write_text(SENSORS)
    return path


def follow(project: Path, readings: Path, out: Path) -> tuple[Any, ...]:
    return (dgnet, "follow", project, readings, "--sensors", readings.parent / "sensors.csv", "--out", out, "--model", "classical",
            "--unknown", "start", "--noise", 1, "--strength", "start=2")


@pytest.mark.parametrize("levels", [(20.0, 20.0), (20.0, 22.0)], ids=["the same", "different"])
def test_two_follow_in_one_folder(levels: tuple[float, float], project: tuple[Path, bytes], tmp_path: Path) -> None:
    """What stays is what one of them would have left alone: no row of the other is among its rows."""
    readings = [read(tmp_path, level) for level in levels]
    alone_in = []
    for k, path in enumerate(readings):
        assert alone(tmp_path / "logs", *follow(project[0], path, tmp_path / f"alone-{k}"))[0] == 0
        alone_in.append({p.name: p.read_bytes() for p in (tmp_path / f"alone-{k}").glob("*.csv")})
    found = together(tmp_path / "logs", *[follow(project[0], path, tmp_path / "live") for path in readings])
    assert found.codes() == [0, 0], found.said(0) + found.said(1)
    assert {p.name: p.read_bytes() for p in (tmp_path / "live").glob("*.csv")} in alone_in
    assert left_over(tmp_path / "live") == [] and not list(tmp_path.glob(".*.lock"))


def test_who_shares_a_folder_is_told(project: tuple[Path, bytes], tmp_path: Path) -> None:
    path = read(tmp_path, 20.0)
    with locked(tmp_path / "live"):
        found = together(tmp_path / "logs", follow(project[0], path, tmp_path / "live"))
        assert found.says(0, f"waiting for process {os.getpid()}")
    assert found.codes() == [0], found.said()


@pytest.mark.parametrize("words", ["recover {tiny} {readings} --sensors {sensors} --unknown start --model classical --out {out}",
                                   "show {tiny}/imported.h5 --out {out} --no-gif --snapshots 2",
                                   "export {tiny} --out {out}/x.c", "simulate {tiny} --source {tiny}/run-1.csv --model classical "
                                   "--out {out}/x.h5 --vtk {out}/x.pvd --png {out}/x.png"], ids=lambda w: w.split()[0])
def test_two_of_a_command_on_one_folder(words: str, project: tuple[Path, bytes], tmp_path: Path) -> None:
    def job(out: Path) -> tuple[Any, ...]:
        text = words.format(tiny=project[0], readings=readings, sensors=tmp_path / "sensors.csv", out=out)
        return (dgnet, *text.split())

    readings = read(tmp_path, 20.0)
    code, said = alone(tmp_path / "logs", *job(tmp_path / "alone"))
    assert code == 0, said
    found = together(tmp_path / "logs", *[job(tmp_path / "live")] * 2)
    assert found.codes() == [0] * 2, [found.said(k) for k in range(2)]
    one, two = (sorted(str(p.relative_to(at)) for p in at.rglob("*")) for at in (tmp_path / "alone", tmp_path / "live"))
    assert one == two and left_over(tmp_path) == []
