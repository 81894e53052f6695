"""The store: round trips, lazy pieces, equal bytes, and one clear sentence for every malformed file."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from dgnet.data import (
    Dataset,
    Header,
    Trajectory,
    assemble,
    write_dataset,
    write_part,
)
from dgnet.errors import InputError
from dgnet.mesh import Mesh, perturbed_square

STEPS, FIELDS = 7, ("u", "v")


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return perturbed_square(4)


def make(mesh: Mesh, seed: int, split: str = "train", velocity_start: int | None = None) -> Trajectory:
    rng = np.random.default_rng(seed)
    shape = (STEPS + 1, mesh.n_nodes, 2)
    return Trajectory(rng.normal(3.0, 2.0, shape).astype(np.float32), 0.1 * np.arange(STEPS + 1),
                      rng.normal(size=shape).astype(np.float32), rng.normal(size=(STEPS, *shape[1:])).astype(np.float32),
                      velocity_start=velocity_start, seed=2**62 + seed, split=split, index=seed, labels=("a", "b"))


@pytest.fixture()
def header(mesh: Mesh) -> Header:
    record = np.random.default_rng(9).normal(size=(STEPS + 4, mesh.n_nodes, 2)).astype(np.float32)
    return Header(mesh, FIELDS, 0.1, STEPS, (1.0, 2.0), {"scenario": "x", "refine": 2, "scale": 0.5}, record)


@pytest.fixture()
def file(tmp_path: Path, mesh: Mesh, header: Header) -> Path:
    path = tmp_path / "set.h5"
    write_dataset(path, header, [make(mesh, 0, velocity_start=0), make(mesh, 1, velocity_start=3), make(mesh, 2, "test", 1)])
    return path


def test_round_trip(file: Path, mesh: Mesh, header: Header) -> None:
    with Dataset(file) as data:
        assert (len(data), data.fields, data.dt, data.steps, data.offset) == (3, FIELDS, 0.1, STEPS, (1.0, 2.0))
        assert data.provenance == header.provenance
        assert data.of("train") == [0, 1] and data.of("test") == [2]
        assert np.array_equal(data.mesh.points, mesh.points) and np.array_equal(data.mesh.cells, mesh.cells)
        assert set(data.mesh.boundaries) == set(mesh.boundaries)
        assert all(np.array_equal(data.mesh.boundaries[k], mesh.boundaries[k]) for k in mesh.boundaries)
        for k in range(3):
            want, got = make(mesh, k), data.read(k)
            assert np.array_equal(got.state, want.state) and np.array_equal(got.time, want.time)
            assert np.array_equal(got.source, want.source) and np.array_equal(got.source_average, want.source_average)
            assert (got.seed, got.index, got.labels) == (want.seed, k, ("a", "b"))
        assert np.array_equal(data.read(1).velocity, header.velocity[3:3 + STEPS + 1])


def test_pieces_are_slices(file: Path, mesh: Mesh, header: Header) -> None:
    with Dataset(file) as data:
        piece, whole = data.read(1, 2, 3), make(mesh, 1)
        for name, end in (("state", 6), ("time", 6), ("source", 6), ("source_average", 5)):
            assert np.array_equal(getattr(piece, name), getattr(whole, name)[2:end])
        assert np.array_equal(piece.velocity, header.velocity[5:9])
        assert data.read(0, only=()).source is None
        batch = data.batch([0, 1], [1, 4], 3, dtype=torch.float64)
        assert batch.state.shape == (2, 4, mesh.n_nodes, 2) and batch.source_average.shape == (2, 3, mesh.n_nodes, 2)
        assert batch.steps == 3 and batch.velocity.shape == (2, 4, mesh.n_nodes, 2)
        assert np.array_equal(batch.state[1].numpy(), make(mesh, 1).state[4:8].astype(np.float64))
        assert batch.to(torch.float32).begin.tolist() == pytest.approx([0.1, 0.4])
        for start, steps in ((5, 3), (-1, 2), (0, 0)):
            with pytest.raises(InputError, match="does not fit"):
                data.read(0, start, steps)


def test_own_velocity_and_no_source(tmp_path: Path, mesh: Mesh) -> None:
    path, flow = tmp_path / "own.h5", np.ones((STEPS + 1, mesh.n_nodes, 2), np.float32)
    bare = replace(make(mesh, 0), source=None, source_average=None, velocity=flow)
    write_dataset(path, Header(mesh, FIELDS, 0.1, STEPS), [bare])
    with Dataset(path) as data:
        assert data.has_velocity and not data.has_source and np.array_equal(data.read(0).velocity, flow)
        assert data.batch([0]).source_average is None


def test_parts_give_the_same_bytes_at_any_time(tmp_path: Path, mesh: Mesh, header: Header) -> None:
    contents = []
    for run in range(2):
        parts = [tmp_path / f"{run}-{k}.h5" for k in range(2)]
        for k, part in enumerate(parts):
            write_part(part, make(mesh, k, velocity_start=k))
        assemble(tmp_path / f"{run}.h5", header, parts)
        contents.append((tmp_path / f"{run}.h5").read_bytes())
        time.sleep(1.1 - 1.1 * run)  # time stamps have a resolution of one second
    assert contents[0] == contents[1]
    assert not list(tmp_path.glob("*.part"))


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, mesh: Mesh, header: Header) -> None:
    def broken():
        yield make(mesh, 0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(tmp_path / "x.h5", header, broken())
    assert list(tmp_path.iterdir()) == []


def test_silent_sources_take_no_space(tmp_path: Path, mesh: Mesh) -> None:
    zero = np.zeros((STEPS + 1, mesh.n_nodes, 2))
    silent = replace(make(mesh, 0), source=zero, source_average=zero[1:])
    write_dataset(tmp_path / "x.h5", Header(mesh, FIELDS, 0.1, STEPS), [silent])
    with h5py.File(tmp_path / "x.h5") as raw:
        assert raw["trajectories/00000/source"].id.get_storage_size() == 0
    with Dataset(tmp_path / "x.h5") as data:
        assert not data.read(0).source.any()


# ---------------------------------------------------------------------- malformed files


def edit(change: Callable[[h5py.File], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as raw:
            change(raw)
    return apply


def reshape(raw: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    del raw[name]
    raw[name] = np.zeros(shape, np.float32)


def put_nan(raw: h5py.File) -> None:
    raw["trajectories/00001/state"][5, 3, 1] = np.nan


MALFORMED = {
    "foreign": (edit(lambda f: f.attrs.__delitem__("format")), "not a dgnet data set"),
    "version": (edit(lambda f: f.attrs.__setitem__("version", 99)), "version 99, this program reads version 1"),
    "no dt": (edit(lambda f: f.attrs.__delitem__("dt")), "lacks the attribute 'dt'"),
    "no points": (edit(lambda f: f.__delitem__("mesh/points")), "lacks 'mesh/points'"),
    "no trajectories": (edit(lambda f: f.__delitem__("trajectories")), "lacks 'trajectories'"),
    "empty": (edit(lambda f: [f["trajectories"].__delitem__(k) for k in list(f["trajectories"])]), "holds no trajectory"),
    "no state": (edit(lambda f: f.__delitem__("trajectories/00001/state")), "trajectory 1 lacks 'state'"),
    "no seed": (edit(lambda f: f["trajectories/00001"].attrs.__delitem__("seed")), "lacks the attribute 'seed'"),
    "split": (edit(lambda f: f["trajectories/00001"].attrs.__setitem__("split", "dev")), "unknown split 'dev'"),
    "half a source": (edit(lambda f: f.__delitem__("trajectories/00000/source")), "only one of 'source' and"),
    "state shape": (edit(lambda f: reshape(f, "trajectories/00002/state", (8, 24, 2))),
                    r"trajectory 2: state has shape \[8, 24, 2\], expected \[8, 25, 2\]"),
    "average shape": (edit(lambda f: reshape(f, "trajectories/00000/source_average", (8, 25, 2))),
                      r"source_average has shape \[8, 25, 2\], expected \[7, 25, 2\]"),
    "time shape": (edit(lambda f: reshape(f, "trajectories/00000/time", (3,))), r"time has shape \[3\]"),
    "record shape": (edit(lambda f: reshape(f, "velocity", (11, 25, 3))), r"velocity has shape \[11, 25, 3\]"),
    "record too short": (edit(lambda f: reshape(f, "velocity", (9, 25, 2))), "takes its velocity from row 3"),
    "points shape": (edit(lambda f: reshape(f, "mesh/points", (25, 4))), r"mesh/points has shape \[25, 4\]"),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-1000]), "is truncated"),
    "text": (lambda p: p.write_text("hello"), "is not an HDF5 file"),
    "missing": (lambda p: p.unlink(), "there is no file"),
    "not a number": (edit(put_nan), "state of trajectory 1 is not a finite number at step 5, node 3"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_named(case: str, file: Path) -> None:
    damage, message = MALFORMED[case]
    damage(file)
    with pytest.raises(InputError, match=message) as caught, Dataset(file) as data:
        data.check_numbers()
    assert "\n" not in str(caught.value)


def test_trajectory_checks_its_shapes(mesh: Mesh) -> None:
    good = make(mesh, 0)
    with pytest.raises(InputError, match="source_average has shape"):
        replace(good, source_average=good.source)
    with pytest.raises(InputError, match="split train or test"):
        replace(good, split="other")
    with pytest.raises(InputError, match=r"axes \[time, node, field\]"):
        replace(good, state=good.state[0])


# ---------------------------------------------------------------------- statistics


def test_moments_use_training_alone(file: Path, mesh: Mesh) -> None:
    with Dataset(file) as data:
        mean, spread = data.moments()
    values = np.concatenate([make(mesh, k).state.reshape(-1, 2) for k in (0, 1)]).astype(np.float64)
    assert mean == pytest.approx(values.mean(0), rel=1e-12) and spread == pytest.approx(values.std(0), rel=1e-10)


def test_a_field_that_never_varies_has_spread_one(tmp_path: Path, mesh: Mesh) -> None:
    state = np.full((STEPS + 1, mesh.n_nodes, 1), 298.15, dtype=np.float32)
    write_dataset(tmp_path / "still.h5", Header(mesh, ("T",), 0.1, STEPS), [Trajectory(state, 0.1 * np.arange(STEPS + 1))] * 2)
    with Dataset(tmp_path / "still.h5") as data:
        mean, spread = data.moments()
    assert spread.tolist() == [1.0] and mean == pytest.approx(298.15, rel=1e-6)
