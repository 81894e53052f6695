"""Atomic writes, locks, and sentences about files: no name is shared by two writers, nothing half-written ever shows."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import multiprocessing
import os
import resource
import signal
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dgnet.errors import InputError
from dgnet.files import (
    Lock,
    did_you_mean,
    holder,
    locked,
    read_array,
    read_dataclass,
    read_json,
    read_toml,
    unfinished,
    write_json,
    write_text,
    writing,
    writing_hdf5,
)

FORK = multiprocessing.get_context("fork")
LIBVER = ("v110", "v110")


def forked(job: Callable[..., Any], *arguments: Any) -> Any:
    process = FORK.Process(target=job, args=arguments)
    process.start()
    return process


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---------------------------------------------------------------------- writing


def test_the_file_appears_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    target = tmp_path / "new" / "x.json"
    with writing(target) as part:
        assert part.parent == target.parent and part.suffix == ".json" and not target.exists()
        part.write_text("1")
    assert target.read_text() == "1" and names(target.parent) == ["x.json"]


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), SystemExit(1)])
def test_after_a_failure_the_old_file_stands(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "x"
    target.write_text("old")
    with pytest.raises(type(error)), writing(target) as part:
        part.write_text("new")
        raise error
    assert target.read_text() == "old" and names(tmp_path) == ["x"]


def test_permissions(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "")
        (tmp_path / "old").write_text("")
        (tmp_path / "old").chmod(0o604)
        write_text(tmp_path / "old", "")
    finally:
        os.umask(mask)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.iterdir()}
    assert modes == {"new": 0o640, "old": 0o604}


def test_what_dead_processes_left_is_removed_and_the_living_keep_theirs(tmp_path: Path) -> None:
    target = tmp_path / "x[1].npz"

    def die() -> None:
        with writing(target):
            os.kill(os.getpid(), signal.SIGKILL)

    process = forked(die)
    process.join()
    assert len(names(tmp_path)) == 1
    living = unfinished(target)
    assert names(tmp_path) == []
    living.write_text("")
    write_text(target, "")
    assert names(tmp_path) == sorted([living.name, target.name])


@pytest.mark.parametrize(("make", "words"), [
    (lambda p: (p / "x").mkdir(), "it is a folder"),
    (lambda p: os.mkfifo(p / "x"), "a pipe"),
])
def test_targets_that_are_no_files(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path)
    with pytest.raises(InputError, match=f"cannot write .*/x: .*{words}"):
        write_text(tmp_path / "x", "1")
    assert names(tmp_path) == ["x"]


def test_names_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    os.symlink("loop", tmp_path / "loop")
    for name, words in (("x" * 300, "too long"), ("file/x", "not a folder"), ("loop/x", "loop|exist"), ("a\0b", "null character")):
        with pytest.raises(InputError, match=words):
            write_text(tmp_path / name, "")
    longest = tmp_path / ("x" * 255)
    write_text(longest, "1")
    assert longest.read_text() == "1"


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("safe")
    os.symlink("other", tmp_path / "x")
    write_text(tmp_path / "x", "new")
    assert (tmp_path / "other").read_text() == "safe" and not (tmp_path / "x").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    def job() -> None:
        os.setuid(65534)
        with pytest.raises(InputError, match=r"cannot write .*: permission denied"):
            write_text(tmp_path / "x", "")
        with locked(tmp_path / "x") as lock:
            assert not lock.held
        os._exit(7)

    process = forked(job)
    process.join()
    assert process.exitcode == 7


def test_errors_about_other_files_keep_their_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), writing(tmp_path / "x"):
        (tmp_path / "elsewhere").read_text()


def test_a_hundred_writers_at_once(tmp_path: Path) -> None:
    target = tmp_path / "x.json"

    def write(number: int) -> None:
        for _ in range(10):
            write_json(target, [number] * 1000)

    for process in [forked(write, k) for k in range(10)]:
        process.join()
        assert process.exitcode == 0
    found = json.loads(target.read_text())
    assert found == [found[0]] * 1000 and names(tmp_path) == ["x.json"]


# ---------------------------------------------------------------------- HDF5


def test_hdf5_is_what_h5py_reads_and_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        with writing_hdf5(tmp_path / name, LIBVER) as file:
            for k in range(20):
                made = file.create_dataset(f"g{k}/x", data=np.arange(5000.0 + k), chunks=(1000,), track_times=False, compression=1)
                made.attrs["unit"] = "K" * k
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()
    with h5py.File(tmp_path / "a.h5") as file:
        assert all(np.array_equal(file[f"g{k}/x"], np.arange(5000.0 + k)) and file[f"g{k}/x"].attrs["unit"] == "K" * k
                   for k in range(20))


@pytest.mark.parametrize("most", [0, 100, 3000, 100_000, 390_000])
def test_hdf5_on_a_full_disk(tmp_path: Path, most: int) -> None:
    def job() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with pytest.raises(InputError, match=r"cannot write .*x.h5: the largest file size"):
            with writing_hdf5(tmp_path / "x.h5", LIBVER) as file:
                for k in range(10):
                    file.create_dataset(f"x{k}", data=np.random.default_rng(k).random(5000), chunks=(1000,))
                    file.flush()
        os._exit(7)

    process = forked(job)
    process.join()
    assert process.exitcode == 7 and names(tmp_path) == []


# ---------------------------------------------------------------------- JSON, TOML, names


def test_json_is_strict(tmp_path: Path) -> None:
    write_json(tmp_path / "x", {"a": (math.nan, -math.inf, 1.5), "b": np.float32(2), "c": np.arange(2), "d": Path("p")})
    assert read_json(tmp_path / "x") == {"a": [None, None, 1.5], "b": 2.0, "c": [0, 1], "d": "p"}
    with pytest.raises(InputError, match=r"cannot write .*y: Object of type object"):
        write_json(tmp_path / "y", {"a": object()})


@pytest.mark.parametrize(("text", "words"), [
    (b"[1]", "must hold an object with named entries, not"), (b"null", "not null"), (b"{", "is not JSON"),
    (b"\xff\xfe", "not text in UTF-8"), (b"[" * 100_000, "is not JSON"), (b"1" * 5000, "is not JSON"),
    (b"{}", "lacks 'a'"), (b'{"a": "1"}', "'a' must be a number, got '1'"), (b'{"a": true}', "got True"),
    (b'{"a": null}', "got None"),
])
def test_json_of_wrong_types(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(text)
    with pytest.raises(InputError, match=words):
        read_json(tmp_path / "x", {"a": float})


def test_toml(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a = 1")
    assert read_toml(tmp_path / "x", {"a": int}) == {"a": 1}
    (tmp_path / "x").write_text("a = = 1")
    with pytest.raises(InputError, match=r"x is not valid TOML: Invalid value .at line 1"):
        read_toml(tmp_path / "x")
    with pytest.raises(InputError, match="there is no file"):
        read_toml(tmp_path / "y")
    with pytest.raises(InputError, match=r"cannot read .*: it is a folder"):
        read_toml(tmp_path)


@dataclass(frozen=True)
class Row:
    name: str
    count: int = 1
    size: float | None = None
    parts: tuple[int, ...] = ()
    table: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError("the count is negative")


def test_a_dataclass_from_a_table() -> None:
    values = {"name": "a", "size": 2, "parts": [1, 2], "table": {"k": 1}}
    row = read_dataclass(Row, values, "x [row]")
    assert row == Row("a", 1, 2.0, (1, 2), {"k": 1.0}) and isinstance(row.size, float) and isinstance(row.parts, tuple)
    assert read_dataclass(Row, {"count": 3}, "x", base=row) == replace(row, count=3)
    for wrong, words in (({}, "x [row] lacks 'name'"), ({"nam": "a"}, "unknown key 'nam'; did you mean 'name'?"),
                         ({"name": 1}, "x [row]: 'name' must be a text, got 1"),
                         ({"name": "a", "count": 2.0}, "'count' must be a whole number, got 2.0"),
                         ({"name": "a", "count": True}, "'count' must be a whole number, got True"),
                         ({"name": "a", "size": "2"}, "'size' must be a number or None, got '2'"),
                         ({"name": "a", "parts": 3}, "'parts' must be a list"),
                         ({"name": "a", "parts": [1, "2"]}, "'parts'[1] must be a whole number"),
                         ({"name": "a", "count": -1}, "x [row]: the count is negative")):
        with pytest.raises(InputError) as error:
            read_dataclass(Row, wrong, "x [row]")
        assert words in str(error.value)


def test_did_you_mean() -> None:
    assert did_you_mean("mgm", ["mgn", "gcn"]) == "; did you mean 'mgn'?"
    assert did_you_mean("zzz", ["mgn", "gcn"]) == " (known: mgn, gcn)"
    assert did_you_mean("zzz", [], "it has") == " (it has: none)"


# ---------------------------------------------------------------------- locks


def test_one_at_a_time(tmp_path: Path) -> None:
    """Five processes add one, ten times each, to a number in a file."""
    target = tmp_path / "x"
    target.write_text("0")

    def add() -> None:
        for _ in range(10):
            with locked(target):
                write_text(target, str(int(target.read_text()) + 1))

    for process in [forked(add) for _ in range(5)]:
        process.join()
        assert process.exitcode == 0
    assert target.read_text() == "50" and names(tmp_path) == ["x"]


def test_a_dead_process_holds_nothing_and_a_living_one_is_named(tmp_path: Path) -> None:
    target, lock = tmp_path / "x", tmp_path / ".x.lock"

    def hold() -> None:
        with locked(target):
            (tmp_path / "held").touch()
            time.sleep(60)

    process = forked(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    assert Lock.take(lock) is None and holder(lock).startswith(f"process {process.pid} on ")
    process.kill()
    process.join()
    assert holder(lock) == ""
    with locked(target, waiting=lambda words: pytest.fail(words)) as taken:
        assert taken.held
    assert names(tmp_path) == ["held"]


def test_who_waits_is_told(tmp_path: Path) -> None:
    target = tmp_path / "x"

    def hold() -> None:
        with locked(target):
            (tmp_path / "held").touch()
            time.sleep(0.3)
            target.touch()

    process = forked(hold)
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    said: list[str] = []
    with locked(target, said.append):
        assert target.exists()
    process.join()
    assert len(said) == 1 and said[0].startswith(f"waiting for process {process.pid} on ") and said[0].endswith(str(target))


def test_without_locks_the_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network file system without them."""
    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path / "x") as lock:
        assert not lock.held


def test_an_array_with_a_damaged_header_is_refused(tmp_path: Path) -> None:
    """NumPy reads the header as a piece of Python, which fails in ways of its own."""
    path = tmp_path / "start.npy"
    np.save(path, np.ones(4))
    whole = path.read_bytes()
    for at in range(128):
        for bit in (1, 4, 32):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1:])
            with suppress(InputError):
                read_array(path, [(4,)])
