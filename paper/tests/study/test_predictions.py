"""`dgnet-paper score`: anyone's predictions against a truth on file, with numbers worked out by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from dgnet.data import Header, Trajectory
from dgnet.data.store import write_dataset
from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet_paper.study.predictions import score_files
from paper.tests.command import dgnet_paper

MESH = box((3, 2))
STEPS, NODES = 4, MESH.n_nodes


def trajectory(value: float, split: str, index: int, steps: int = STEPS, nodes: int = NODES, dt: float = 0.5) -> Trajectory:
    return Trajectory(np.full((steps + 1, nodes, 1), value), dt * np.arange(steps + 1), split=split, index=index)


def header(mesh: Mesh = MESH, steps: int = STEPS, fields: tuple[str, ...] = ("T",), dt: float = 0.5) -> Header:
    return Header(mesh, fields, dt, steps, (1.0,) * len(fields))


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    """One training trajectory of 3, two test trajectories of 2 and 4; the offset is 1."""
    path = tmp_path / "truth.h5"
    write_dataset(path, header(), [trajectory(3, "train", 0), trajectory(2, "test", 0), trajectory(4, "test", 1)])
    return path


def plain(path: Path, state: np.ndarray, name: str = "state") -> Path:
    with h5py.File(path, "w") as file:
        file[name] = state
    return path


def test_a_plain_file_of_test_trajectories(truth: Path, tmp_path: Path) -> None:
    state = np.empty((2, STEPS + 1, NODES, 1))
    state[0], state[1] = 2.1, 4.0
    state[1, -1] = 5.0  # wrong at the end alone
    found = score_files(plain(tmp_path / "p.h5", state), truth)
    score, n = found["score"], STEPS + 1
    assert found["trajectories"] == 2 and found["nodes"] == NODES
    assert score["mse"] == pytest.approx((n * 0.01 + 1) / (2 * n))
    assert score["log10_mse"] == pytest.approx(math.log10(score["mse"]))
    assert score["rne"] == pytest.approx(math.sqrt((n * 0.01 + 1) / (n * 4 + n * 16)))
    assert score["rne_from_offset"] == pytest.approx(math.sqrt((n * 0.01 + 1) / (n * 1 + n * 9)))
    assert score["rne_final"] == pytest.approx(math.sqrt((0.01 + 1) / (4 + 16)))
    assert score["until"] == pytest.approx(STEPS * 0.5) and score["until_share"] == pytest.approx(1.0)
    assert score["trajectories"] == {"test 1": pytest.approx(0.1), "test 2": pytest.approx(math.sqrt(1 / (n * 9)))}


def test_shapes_that_are_understood(truth: Path, tmp_path: Path) -> None:
    all_right = np.stack([np.full((STEPS + 1, NODES), v) for v in (3.0, 2.0, 4.0)])
    for state in (all_right, all_right[..., None], all_right[1:], all_right[1:, ..., None]):
        assert score_files(plain(tmp_path / "p.h5", state), truth)["score"]["mse"] == 0
    assert score_files(plain(tmp_path / "p.h5", all_right[1:2, ..., None]), truth, trajectory=1)["score"]["mse"] == 0
    assert score_files(plain(tmp_path / "p.h5", all_right[2]), truth, trajectory=2)["score"]["mse"] == 0
    assert score_files(plain(tmp_path / "p.h5", all_right[:1]), truth, split="train")["score"]["mse"] == 0


def test_our_own_format_is_matched_by_name(truth: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    write_dataset(path, header(), [trajectory(4, "test", 1), trajectory(2, "test", 0)])  # in another order
    found = score_files(path, truth)
    assert found["trajectories"] == 2 and found["score"]["mse"] == 0
    write_dataset(path, header(), [trajectory(4, "test", 7)])
    with pytest.raises(InputError, match="test trajectory 7 is not among those of the truth"):
        score_files(path, truth)
    write_dataset(path, replace(header(), provenance={"trajectory": 2}), [trajectory(4, "test", 0)])
    assert score_files(path, truth)["score"]["mse"] == 0  # as `dgnet rollout --trajectory 2` writes it


def test_predictions_that_diverged(truth: Path, tmp_path: Path) -> None:
    state = np.full((2, STEPS + 1, NODES, 1), 2.0)
    state[0, 3] = np.nan
    out = tmp_path / "s.json"
    assert "not finite" in dgnet_paper("score", plain(tmp_path / "p.h5", state), truth, "--json", out)
    assert json.loads(out.read_text())["score"]["rne"] is None


def test_the_command_prints_the_numbers(truth: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.json"
    state = np.full((2, STEPS + 1, NODES, 1), 2.0)
    state[1] = 4.4
    printed = dgnet_paper("score", plain(tmp_path / "p.h5", state), truth, "--json", out)
    assert "RNE over the rollout" in printed and "never" in printed
    assert json.loads(out.read_text())["score"]["mse"] == pytest.approx(0.08, rel=1e-6)


@pytest.mark.parametrize(("shape", "words"), [
    ((2, STEPS, NODES, 1), "predicts 4 stored times, the truth truth.h5 has 5"),
    ((2, STEPS + 1, NODES + 1, 1), f"predicts {NODES + 1} nodes, the truth truth.h5 has {NODES}"),
    ((2, STEPS + 1, NODES, 2), "predicts 2 fields, the truth truth.h5 has 1"),
    ((5, STEPS + 1, NODES, 1), "predicts 5 trajectories, the truth truth.h5 has 2 for test and 3 in all"),
    ((7,), "state has shape"),
])
def test_plain_files_that_do_not_fit(truth: Path, tmp_path: Path, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        score_files(plain(tmp_path / "p.h5", np.zeros(shape)), truth)


def test_data_sets_that_do_not_fit(truth: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    other = box((3, 3))
    moved = Mesh(MESH.points + 0.01, MESH.cells, MESH.boundaries)
    cases = [(header(other), trajectory(1, "test", 0, nodes=other.n_nodes), "is about a mesh of"),
             (header(moved), trajectory(1, "test", 0), "another mesh than the truth: node"),
             (header(steps=3), trajectory(1, "test", 0, steps=3), "has 3 steps, the truth 4"),
             (header(fields=("u",)), trajectory(1, "test", 0), "has the fields u, the truth T"),
             (header(dt=0.25), trajectory(1, "test", 0, dt=0.25), "has steps of 0.25, the truth of 0.5")]
    for head, one, words in cases:
        write_dataset(path, head, [one])
        with pytest.raises(InputError, match=words):
            score_files(path, truth)


def test_files_that_are_none(truth: Path, tmp_path: Path) -> None:
    text = tmp_path / "p.h5"
    text.write_text("no HDF5")
    for path, words in ((text, "is not an HDF5 file"), (tmp_path / "none.h5", "there is no file"), (tmp_path, "is a folder"),
                        (plain(tmp_path / "q.h5", np.zeros(3), "u"), "nor has it a dataset 'state'")):
        with pytest.raises(InputError, match=words):
            score_files(path, truth)
