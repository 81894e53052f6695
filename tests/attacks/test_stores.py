"""Data sets (HDF5) of wrong types, shapes, links and numbers, in every command that reads one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dgnet.data import digests
from tests.attacks.harness import EXCEPTION, Case, dgnet, face, parameters, sentence

FILE = "tiny/imported.h5"
FIRST = "trajectories/00000"


def opened(change: Callable[[h5py.File], Any]) -> Callable[[Path], None]:
    """Do something to the data set of the ground, and take its checksums away: files of other programs have none."""
    def bare(_: str, item: Any) -> None:
        for key in (digests.SUM, digests.ROWS):
            item.attrs.pop(key, None)

    def does(at: Path) -> None:
        with h5py.File(at / FILE, "r+") as file:
            bare("", file)
            file.visititems(bare)
            change(file)
    return does


def attribute(name: str, value: Any, of: str = "/") -> Callable[[Path], None]:
    return opened(lambda file: file[of].attrs.__setitem__(name, value))


def lacking(name: str, of: str = "/") -> Callable[[Path], None]:
    return opened(lambda file: file[of].attrs.__delitem__(name))


def dataset(name: str, value: Any) -> Callable[[Path], None]:
    """A dataset replaced; None: by a group."""
    def change(file: h5py.File) -> None:
        if name in file:
            del file[name]
        if value is None:
            file.create_group(name)
        else:
            file[name] = value
    return opened(change)


def link(name: str, to: Any) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = to
    return opened(change)


def bytes_of(change: Callable[[bytearray], Any]) -> Callable[[Path], None]:
    def does(at: Path) -> None:
        content = bytearray((at / FILE).read_bytes())
        (at / FILE).write_bytes(bytes(change(content) or content))
    return does


def poke(name: str, at: tuple[int, ...], value: float) -> Callable[[Path], None]:
    return opened(lambda file: file[name].__setitem__(at, value))


NODES = 63
CHANGES: dict[str, Callable[[Path], None]] = {
    "format is a number": attribute("format", 7),
    "format is of another program": attribute("format", "other"),
    "version is a text": attribute("version", "one"),
    "version is an array": attribute("version", [1, 1]),
    "version of the future": attribute("version", 99),
    "fields is a number": attribute("fields", 3.0),
    "fields is a text": attribute("fields", "T"),
    "fields is empty": attribute("fields", np.array([], dtype="S1")),
    "fields twice the same": attribute("fields", ["T", "T"]),
    "fields are numbers": attribute("fields", [1, 2]),
    "fields is missing": lacking("fields"),
    "dt is a text": attribute("dt", "fast"),
    "dt is not a number": attribute("dt", np.nan),
    "dt is infinite": attribute("dt", np.inf),
    "dt is zero": attribute("dt", 0.0),
    "dt is negative": attribute("dt", -0.1),
    "dt is an array": attribute("dt", [0.1, 0.1]),
    "dt is complex": attribute("dt", 0.1 + 1j),
    "steps is a text": attribute("steps", "six"),
    "steps is negative": attribute("steps", -6),
    "steps is a fraction": attribute("steps", 6.5),
    "steps is huge": attribute("steps", 2**60),
    "steps is an array": attribute("steps", [6, 6]),
    "offset is a text": attribute("offset", "cold"),
    "offset is a number": attribute("offset", 20.0),
    "offset of two fields": attribute("offset", [20.0, 20.0]),
    "offset is not finite": attribute("offset", [np.nan]),
    "no mesh": opened(lambda file: file.__delitem__("mesh")),
    "mesh is a dataset": dataset("mesh", 5),
    "points are texts": dataset("mesh/points", np.array([[b"a", b"b"]] * NODES)),
    "points are a group": dataset("mesh/points", None),
    "points are flat": dataset("mesh/points", np.zeros(NODES)),
    "points are complex": dataset("mesh/points", np.zeros((NODES, 2), dtype=complex)),
    "points are not finite": poke("mesh/points", (3, 0), np.nan),
    "points are empty": dataset("mesh/points", np.zeros((0, 2))),
    "cells are numbers with fractions": dataset("mesh/cells", np.full((96, 3), 0.5)),
    "cells are texts": dataset("mesh/cells", np.array([[b"a", b"b", b"c"]])),
    "cells name no node": poke("mesh/cells", (0, 0), 10**6),
    "cells are negative": poke("mesh/cells", (0, 0), -1),
    "cells are a group": dataset("mesh/cells", None),
    "cells are pairs": dataset("mesh/cells", np.zeros((96, 2), dtype=int)),
    "boundaries are a dataset": dataset("mesh/boundaries", 5),
    "a boundary is a group": dataset("mesh/boundaries/left", None),
    "a boundary of texts": dataset("mesh/boundaries/left", np.array([b"x"])),
    "a boundary inside": dataset("mesh/boundaries/left", np.array([[20, 30]])),
    "a region is a text": dataset("mesh/regions/steel", "x"),
    "trajectories are a dataset": dataset("trajectories", np.zeros(3)),
    "trajectories are none": dataset("trajectories", None),
    "a trajectory is a dataset": dataset(FIRST, np.zeros(3)),
    "state is a group": dataset(f"{FIRST}/state", None),
    "state is texts": dataset(f"{FIRST}/state", np.full((7, NODES, 1), b"x")),
    "state is a single number": dataset(f"{FIRST}/state", 1.0),
    "state is complex": dataset(f"{FIRST}/state", np.zeros((7, NODES, 1), dtype=complex)),
    "state is true and false": dataset(f"{FIRST}/state", np.zeros((7, NODES, 1), dtype=bool)),
    "state is a record": dataset(f"{FIRST}/state", np.zeros((7, NODES, 1), dtype=[("a", "f4"), ("b", "f4")])),
    "state has too few steps": dataset(f"{FIRST}/state", np.zeros((6, NODES, 1))),
    "state has too many nodes": dataset(f"{FIRST}/state", np.zeros((7, NODES + 1, 1))),
    "state is empty": dataset(f"{FIRST}/state", h5py.Empty("f4")),
    "state is not finite": poke(f"{FIRST}/state", (2, 5, 0), np.nan),
    "state is infinite": poke(f"{FIRST}/state", (2, 5, 0), np.inf),
    "state is missing": opened(lambda file: file.__delitem__(f"{FIRST}/state")),
    "time is texts": dataset(f"{FIRST}/time", np.array([b"x"] * 7)),
    "time is a group": dataset(f"{FIRST}/time", None),
    "time goes back": dataset(f"{FIRST}/time", np.array([0, 0.1, 0.2, 0.1, 0.4, 0.5, 0.6])),
    "time is not finite": dataset(f"{FIRST}/time", np.array([0, 0.1, np.nan, 0.3, 0.4, 0.5, 0.6])),
    "time has steps of its own": dataset(f"{FIRST}/time", 0.2 * np.arange(7)),
    "split is unknown": attribute("split", "validation", FIRST),
    "split is a number": attribute("split", 3, FIRST),
    "split is an array": attribute("split", ["train", "test"], FIRST),
    "split is missing": lacking("split", FIRST),
    "seed is a text": attribute("seed", "lucky", FIRST),
    "seed is an array": attribute("seed", [1, 2], FIRST),
    "seed is missing": lacking("seed", FIRST),
    "index is a text": attribute("index", "first", FIRST),
    "labels are numbers": attribute("labels", [1.5, 2.5], FIRST),
    "velocity of another dimension": dataset(f"{FIRST}/velocity", np.zeros((7, NODES, 3))),
    "velocity is a group": dataset(f"{FIRST}/velocity", None),
    "velocity start without a record": attribute("velocity_start", 0, FIRST),
    "velocity start is a text": attribute("velocity_start", "now", FIRST),
    "the record of the flow is a group": dataset("velocity", None),
    "source without its average": opened(lambda file: file.__delitem__(f"{FIRST}/source_average")),
    "source is texts": dataset(f"{FIRST}/source", np.full((7, NODES, 1), b"x")),
    "state is a link to nothing": link(f"{FIRST}/state", h5py.SoftLink("/nowhere")),
    "state is a link to itself": link(f"{FIRST}/state", h5py.SoftLink(f"/{FIRST}/state")),
    "state is a link to another file": link(f"{FIRST}/state", h5py.ExternalLink("elsewhere.h5", "/state")),
    "state is a link to a system file": link(f"{FIRST}/state", h5py.ExternalLink("/etc/passwd", "/")),
    "trajectories are a link to all": link("trajectories", h5py.SoftLink("/")),
    "cut off in the middle": bytes_of(lambda content: content[:len(content) // 2]),
    "cut off at the start": bytes_of(lambda content: content[:100]),
    "empty": bytes_of(lambda content: bytearray(b" ")),
    "the signature is gone": bytes_of(lambda content: b"XXXXXXXX" + content[8:]),
    "its first page is noise": bytes_of(lambda content: content[:40] + bytes(range(256)) * 4 + content[1064:]),
}

ODD = {"fields are numbers", "offset is a number", "labels are numbers", "state is true and false", "a region is a text"}
"""What other programs may write and dgnet may read or refuse: `test_odd` wants either, said in one sentence or shown."""

SHOWS = "show tiny/imported.h5 --out pictures --no-gif --snapshots 2"
SHOWN = [Case(SHOWS, "imported.h5", does, "run", name=f"show, {name}")
         for name, does in CHANGES.items() if name not in ODD]
EVERY = 8  # the other commands get one change in eight: what they read with is the same
OTHERS = [Case(f"{command}", "imported.h5", does, "run", name=f"{command.split()[0]}, {name}")
          for k, command in enumerate(("evaluate run --no-figures --data tiny/imported.h5",
                                       "paper analyse run --data tiny/imported.h5",
                                       "rollout run --trajectory 0 --data tiny/imported.h5",
                                       "paper score tiny/imported.h5 tiny/imported.h5"))
          for name, does in list(CHANGES.items())[2 * k::EVERY] if name not in ODD]
CASES = SHOWN + OTHERS


@pytest.mark.parametrize("name", sorted(ODD))
def test_odd(name: str, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(grounds("run"), tmp_path / "at")
    CHANGES[name](tmp_path / "at")
    found = dgnet(tmp_path / "at", SHOWS)
    if found.code == 0:
        assert list((tmp_path / "at/pictures").glob("*.png")), found
        assert all(line.startswith("Next: ") for line in found.err.strip().splitlines()), found
    else:
        said = sentence(found.err)
        assert found.code == 2 and said is not None and "imported.h5" in said and not EXCEPTION.search(said), found


@pytest.mark.parametrize("case", parameters(CASES))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)
