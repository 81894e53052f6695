"""Checksums: a flipped bit anywhere in a data set is one sentence, or changes nothing."""

from pathlib import Path

import numpy as np
import pytest

from dgnet.data import Corpus, Dataset, Header, Trajectory, write_dataset
from dgnet.errors import InputError
from dgnet.mesh import Mesh, perturbed_square

STEPS = 5


def make(mesh: Mesh, seed: int, source: bool = True, velocity: bool = False) -> Trajectory:
    rng = np.random.default_rng(seed)
    rows = rng.normal(300.0, 2.0, (STEPS + 1, mesh.n_nodes, 1)).astype(np.float32)
    return Trajectory(rows, 0.1 * np.arange(STEPS + 1), rows if source else None, rows[1:] if source else None,
                      np.ones((STEPS + 1, mesh.n_nodes, 2), np.float32) if velocity else None, seed=seed, index=seed)


def write(path: Path, trajectories: list[Trajectory]) -> Path:
    write_dataset(path, Header(perturbed_square(8), ("T",), 0.1, STEPS, (20.0,), {"scenario": "x", "truth": "given"}), trajectories)
    return path


def everything(path: Path) -> list[bytes]:
    """All that a command could use of a data set."""
    with Dataset(path) as data:
        found = [repr((data.fields, data.dt, data.steps, data.offset, data.provenance, data.splits)).encode(),
                 data.mesh.points.tobytes(), data.mesh.cells.tobytes()]
        found += [rows.tobytes() for rows in data.mesh.boundaries.values()]
        for number in range(len(data)):
            t = data.read(number)
            assert t.source is not None and t.source_average is not None
            found += [t.state.tobytes(), t.time.tobytes(), t.source.tobytes(), t.source_average.tobytes()]
    return found


def flipped(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def test_flipped_bits_are_noticed(tmp_path: Path) -> None:
    """80 flips, spread over numbers, mesh, attributes and the structure of the file."""
    mesh = perturbed_square(8)
    path = write(tmp_path / "set.h5", [make(mesh, 0), make(mesh, 1)])
    whole, before, rng = path.read_bytes(), everything(path), np.random.default_rng(0)
    noticed = 0
    for place in rng.integers(0, len(whole), 80):
        flipped(path, int(place), int(rng.integers(8)))
        try:
            assert everything(path) == before, f"byte {place} changed a result without a word"
        except InputError:
            noticed += 1
        path.write_bytes(whole)
    assert noticed > 20


def test_a_changed_state_is_named_and_can_be_read_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = perturbed_square(8)
    path = write(tmp_path / "set.h5", [make(mesh, 0), make(mesh, 1)])
    place = path.read_bytes().index(make(mesh, 1).state.tobytes())
    flipped(path, place + 4 * mesh.n_nodes, 1)
    with Dataset(path) as data:
        data.read(0)
        with pytest.raises(InputError, match=r"state of trajectory 1.*checksum"):
            data.read(1, 2, 2)
    monkeypatch.setenv("DGNET_VERIFY", "0")
    with Dataset(path) as data:
        assert data.read(1).state.shape == (STEPS + 1, mesh.n_nodes, 1)


def test_files_without_checksums_open_as_before(tmp_path: Path) -> None:
    import h5py

    path = write(tmp_path / "set.h5", [make(perturbed_square(8), 0)])
    before = everything(path)
    with h5py.File(path, "r+") as raw:
        raw.visititems(lambda name, item: [item.attrs.__delitem__(k) for k in list(item.attrs) if k.startswith("crc32")] and None)
        del raw.attrs["crc32"]
    assert everything(path) == before


def test_one_without_a_source_has_zeros_of_its_own(tmp_path: Path) -> None:
    mesh = perturbed_square(8)
    path = write(tmp_path / "set.h5", [make(mesh, 0, source=False), make(mesh, 1)])
    with Dataset(path) as data:
        assert data.has_source
        batch = data.batch([0, 1])
        assert batch.source_average is not None and not batch.source_average[0].any()
        assert np.array_equal(batch.source_average[1].numpy(), make(mesh, 1).source_average)
    stacked = Corpus.of([make(mesh, 0), make(mesh, 1, source=False)], 0.1)
    assert stacked.source_average is not None and not stacked.source_average[1].any()


def test_some_with_a_velocity_and_some_without_are_refused(tmp_path: Path) -> None:
    mesh = perturbed_square(8)
    with pytest.raises(InputError, match="train trajectory 1 has no velocity"):
        Corpus.of([make(mesh, 0, velocity=True), make(mesh, 1)], 0.1)
    with pytest.raises(InputError, match="trajectory 1 has no velocity"):
        Dataset(write(tmp_path / "set.h5", [make(mesh, 0, velocity=True), make(mesh, 1)]))


def test_identity_is_of_the_content(tmp_path: Path) -> None:
    mesh = perturbed_square(8)
    with Dataset(write(tmp_path / "a.h5", [make(mesh, 0), make(mesh, 1)])) as a, \
            Dataset(write(tmp_path / "b.h5", [make(mesh, 0), make(mesh, 2)])) as b:
        assert a.identity() != b.identity() and a.identity([0]) == b.identity([0])
