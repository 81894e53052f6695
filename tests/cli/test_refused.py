"""Files that could run code when they are read: every one a user can be handed is refused, and nothing in it runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgnet import cli
from dgnet.errors import InputError
from dgnet.mesh import box, save
from dgnet.models.dgnet import DGNetConfig
from dgnet.prediction.to_files import predict_to_files
from dgnet.projects import load
from dgnet.recipe import Recipe, Stage
from dgnet.training.plan import Plan
from dgnet.training.run import train
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.generate import generate

PROBLEM = """
[problem]
name = "slab"
fields = ["T"]
dt = 0.1
[mesh]
file = "slab.npz"
[pde]
diffusion = 0.02
[[data]]
file = "train.npz"
split = "train"
source = "none"
"""


class Evil:
    """Leaves a trace when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.target,)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, scenario = tmp_path_factory.mktemp("made"), get("laser-heat", "small")
    learn(root / "run", generate(scenario, root, truth="same-mesh", trajectories=2))
    return root


def learn(folder: Path, data: Path) -> None:
    plan = Recipe("short", (Stage(2, 2, batch=2, lr=1e-2),), hold_out=1)
    train(get("laser-heat", "small"), "same-mesh", data, folder, Plan(DGNetConfig(hidden=8, layers=1), plan))


@pytest.mark.parametrize("file", ["weights.pt", "last.pt"])
@pytest.mark.parametrize("how", ["alone", "among weights"])
def test_checkpoints_of_a_run(file: str, how: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                              capsys: pytest.CaptureFixture[str]) -> None:
    folder, trace = tmp_path / "run", tmp_path / "was-here"
    shutil.copytree(made / "run", folder)
    good = torch.load(folder / file, weights_only=True)
    torch.save(Evil(trace) if how == "alone" else good | {"extra": Evil(trace)}, folder / file)
    if file == "last.pt":
        with pytest.raises(InputError, match=r"last\.pt"):
            learn(folder, next(made.glob("*.h5")))
    else:
        for command in (["evaluate", str(folder)], ["rollout", str(folder), "--trajectory", "0"],
                        ["export", str(folder), "--out", str(tmp_path / "step.pt2")]):
            monkeypatch.setattr("sys.argv", ["dgnet", *command])
            with pytest.raises(SystemExit) as stop:
                cli.main()
            said = capsys.readouterr().err.strip().splitlines()
            assert stop.value.code == 2 and len(said) == 1 and "weights.pt" in said[0]
    assert not trace.exists() and not (tmp_path / "step.pt2").exists()


def test_start_and_note_of_a_rollout(made: Path, tmp_path: Path) -> None:
    trace, n = tmp_path / "was-here", get("laser-heat", "small").mesh.n_nodes
    np.save(tmp_path / "start.npy", np.array([Evil(trace)] * n, dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"start\.npy"):
        predict_to_files(made / "run", initial=tmp_path / "start.npy", steps=2)
    with (tmp_path / "x.h5.resume").open("wb") as file:
        np.savez(file, request=np.array(Evil(trace), dtype=object), step=np.array(Evil(trace), dtype=object))
    (tmp_path / "x.h5.part").write_bytes(b"")
    assert predict_to_files(made / "run", trajectory=0, steps=2, out=tmp_path / "x.h5")["resumed_from"] == 0
    assert not trace.exists()


@pytest.mark.parametrize("where", ["state", "time", "mesh"])
def test_data_and_mesh_of_a_project(where: str, tmp_path: Path) -> None:
    folder, trace, mesh = tmp_path / "slab", tmp_path / "was-here", box((3, 3))
    folder.mkdir()
    (folder / "problem.toml").write_text(PROBLEM)
    save(mesh, folder / "slab.npz")
    arrays: dict[str, Any] = {"state": np.ones((4, mesh.n_nodes, 1)), "time": 0.1 * np.arange(4)}
    evil = np.array([Evil(trace)], dtype=object)
    if where == "mesh":
        np.savez(folder / "slab.npz", points=evil, cells=mesh.cells)
    np.savez(folder / "train.npz", **(arrays | ({} if where == "mesh" else {where: evil})))
    with pytest.raises(InputError, match="slab" if where == "mesh" else r"train\.npz"):
        load(folder)
    assert not trace.exists() and not (folder / "imported.h5").exists()


def test_the_trap_works(tmp_path: Path) -> None:
    """What the tests above rely on: unpickled carelessly, the trace is left."""
    torch.save(Evil(tmp_path / "was-here"), tmp_path / "x.pt")
    torch.load(tmp_path / "x.pt", weights_only=False)
    assert (tmp_path / "was-here").exists()
