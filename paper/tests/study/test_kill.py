"""SIGKILL at random moments, then the same again: generate, train and rollout end as if nothing had happened.

DGNET_KILLS=20 pytest tests/evaluation/test_kill.py  kills each of them twenty times (two by default).
"""

from __future__ import annotations

import csv
import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dgnet.models.dgnet import DGNetConfig
from dgnet.prediction.to_files import predict_to_files
from dgnet.recipe import Recipe, Stage
from dgnet.report import series
from dgnet.training.plan import Plan
from dgnet.training.run import train
from dgnet_paper.scenarios import generate as making
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.scenario import Scenario
from tests.cli.forked import finish, kill

KILLS = int(os.environ.get("DGNET_KILLS", "2"))
SPOTS = "t,x,y,radius,power\n0,0.2,0.2,0.1,30\n60,1.2,0.7,0.1,30\n90,0.4,0.2,0.1,20\n"


def scenario(size: int = 3) -> Scenario:
    return replace(get("laser-heat", "small"), steps=10, train=size, test=2)


def generate(folder: Path, _: Path) -> None:
    making._MOST["cpu"] = 1  # a finished trajectory at a time: more moments to be killed at
    making.generate(scenario(), folder, truth="same-mesh")


def learn(folder: Path, data: Path) -> None:
    config = DGNetConfig(hidden=8, layers=1, free=True, learn_start=True)
    stages = (Stage(11, 2, batch=2, lr=1e-2, noise=0.02, pushforward=1), Stage(9, 4, batch=2, lr=5e-3, from_start=0.5))
    train(scenario(), "same-mesh", data, folder / "run", Plan(config, Recipe("kill", stages, validations=5, hold_out=1)))


def roll(folder: Path, run: Path) -> None:
    series.PAUSE = 0.03
    predict_to_files(run, source=run.parent / "spots.csv", steps=500, out=folder / "x.h5", xdmf=folder / "x.xdmf", every=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a run on them."""
    root = tmp_path_factory.mktemp("unbroken")
    finish(generate, root, root)
    finish(learn, root, next(root.glob("*.h5")))
    (root / "spots.csv").write_text(SPOTS)
    return root


def nothing() -> None:
    """Starts the server of processes."""


def battered(job: Callable[[Path, Path], None], root: Path, given: Path, same: Callable[[Path, Path], None]) -> None:
    """One to three kills in a row at random moments, then to the end and compared; until there were enough of them."""
    rng = np.random.default_rng(zlib.crc32(job.__name__.encode()))
    (root / "whole").mkdir()
    finish(nothing)
    seconds = finish(job, root / "whole", given)
    kills = trials = 0
    while kills < KILLS:
        trials += 1
        assert trials < 10 * KILLS, "the jobs end before they can be killed"
        folder = root / f"trial-{trials}"
        folder.mkdir()
        for _ in range(int(rng.integers(1, 4))):
            if kills < KILLS:
                kills += kill(job, folder, given, after=seconds * rng.uniform(0.02, 1.0))
        finish(job, folder, given)
        same(root / "whole", folder)
    print(f"{job.__name__}: {kills} kills in {trials} trials")


def test_generate(tmp_path: Path) -> None:
    def same(a: Path, b: Path) -> None:
        name = "laser-heat-small-same-mesh.h5"
        assert (a / name).read_bytes() == (b / name).read_bytes()
        assert not list(b.glob("*.part"))

    battered(generate, tmp_path, tmp_path, same)


def test_train(made: Path, tmp_path: Path) -> None:
    def history(folder: Path) -> list[dict[str, str]]:
        with (folder / "run" / "history.csv").open() as file:
            return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]

    def same(a: Path, b: Path) -> None:
        one, two = (torch.load(f / "run" / "weights.pt", weights_only=True) for f in (a, b))
        assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
        assert history(a) == history(b) and len(history(a)) == 7
        last = [torch.load(f / "run" / "last.pt", weights_only=True)["model"] for f in (a, b)]
        assert all(torch.equal(last[0][k], last[1][k]) for k in one)
        assert not list((b / "run").glob("*.part"))

    battered(learn, tmp_path, next(made.glob("*.h5")), same)


def test_rollout(made: Path, tmp_path: Path) -> None:
    def same(a: Path, b: Path) -> None:
        assert sorted(p.name for p in b.iterdir()) == ["x.h5", "x.xdmf", "x.xdmf.h5"]
        assert (a / "x.h5").read_bytes() == (b / "x.h5").read_bytes()
        assert (a / "x.xdmf").read_bytes() == (b / "x.xdmf").read_bytes()
        with h5py.File(a / "x.xdmf.h5") as one, h5py.File(b / "x.xdmf.h5") as two:
            assert list(one["field0"]) == list(two["field0"]) and len(one["field0"]) == 168  # each third of 500, and the last
            assert all(np.array_equal(one["field0"][k], two["field0"][k]) for k in one["field0"])

    battered(roll, tmp_path, made / "run", same)
