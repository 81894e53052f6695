"""Full and read-only disks: one sentence, no crash, no left-over file, and what was finished is kept: with room, the same goes on.

A full disk is a limit on the size of files (RLIMIT_FSIZE), and a small file system in memory where it may be mounted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dgnet.prediction.to_files import predict_to_files
from dgnet.report import series
from tests.attacks.commands import alone, dgnet, left_over
from tests.attacks.test_processes import cell, data, imported, learn, make, states, weights
from tests.projects.conftest import write_tiny


def roll(run: Path, folder: Path, steps: int = 60) -> None:
    series.PAUSE = -1.0  # a checkpoint at every step
    start = {"source": run.parent / "spots.csv"} if (run.parent / "spots.csv").exists() else {"trajectory": 0}
    predict_to_files(run, steps=steps, out=folder / "x.h5", **start)  # type: ignore[arg-type]


def xdmf(run: Path, folder: Path, steps: int = 60) -> None:
    series.PAUSE = -1.0
    predict_to_files(run, source=run.parent / "spots.csv", steps=steps, xdmf=folder / "x.xdmf")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, a run on it, and what each job gives where there is room."""
    root = tmp_path_factory.mktemp("room")
    assert alone(root / "logs", make, root)[0] == 0
    assert alone(root / "logs", learn, data(root), root / "run")[0] == 0
    (root / "spots.csv").write_text("t,x,y,radius,power\n0,0.2,0.2,0.1,30\n60,1.2,0.7,0.1,30\n")
    for job in (roll, xdmf):
        (root / job.__name__).mkdir()
        code, said = alone(root / "logs", job, root / "run", root / job.__name__)
        assert code == 0, said
    return root


def refused(found: tuple[int | None, str]) -> None:
    """An InputError about the disk: neither a crash (a negative code) nor a success."""
    code, said = found
    assert code == 1 and "NoRoom: cannot write " in said.splitlines()[-1], (code, said[-600:])


SHARES = [0.03, 0.99]


@pytest.mark.parametrize("share", SHARES)
def test_generate(share: float, made: Path, tmp_path: Path) -> None:
    refused(alone(tmp_path / "logs", make, tmp_path, most=int(share * data(made).stat().st_size)))
    assert [p for p in left_over(tmp_path) if not p.endswith(".parts")] == []
    if share > 0.5:  # every trajectory had room, only all of them together had not
        assert len(list(tmp_path.glob("*.parts/*.h5"))) == 3
    assert alone(tmp_path / "logs", make, tmp_path)[0] == 0
    assert data(tmp_path).read_bytes() == data(made).read_bytes() and left_over(tmp_path) == []


@pytest.mark.parametrize("share", SHARES)
def test_rollout(share: float, made: Path, tmp_path: Path) -> None:
    """The space of all states is asked for before the first step."""
    refused(alone(tmp_path / "logs", roll, made / "run", tmp_path, most=int(share * (made / "roll" / "x.h5").stat().st_size)))
    assert left_over(tmp_path) == []
    assert alone(tmp_path / "logs", roll, made / "run", tmp_path)[0] == 0
    assert (tmp_path / "x.h5").read_bytes() == (made / "roll" / "x.h5").read_bytes() and left_over(tmp_path) == []


@pytest.mark.parametrize("share", SHARES)
def test_rollout_to_xdmf(share: float, made: Path, tmp_path: Path) -> None:
    heavy = made / "xdmf" / "x.xdmf.h5"
    refused(alone(tmp_path / "logs", xdmf, made / "run", tmp_path, most=int(share * heavy.stat().st_size)))
    assert set(left_over(tmp_path)) <= {"x.xdmf.states.part", "x.xdmf.states.resume"}
    assert alone(tmp_path / "logs", xdmf, made / "run", tmp_path)[0] == 0
    assert (tmp_path / "x.xdmf.h5").read_bytes() == heavy.read_bytes() and left_over(tmp_path) == []


@pytest.mark.parametrize("share", [0.1, 0.95])
def test_train(share: float, made: Path, tmp_path: Path) -> None:
    refused(alone(tmp_path / "logs", learn, data(made), tmp_path / "run",
                  most=int(share * (made / "run" / "last.pt").stat().st_size)))
    assert left_over(tmp_path) == []
    assert alone(tmp_path / "logs", learn, data(made), tmp_path / "run")[0] == 0
    one, two = weights(made / "run"), weights(tmp_path / "run")
    assert all(torch.equal(one[k], two[k]) for k in one) and left_over(tmp_path) == []


@pytest.mark.parametrize("share", [0.1, 0.99])
def test_import(share: float, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "tiny")
    assert alone(tmp_path / "logs", imported, folder)[0] == 0
    whole, size = states(folder / "imported.h5"), (folder / "imported.h5").stat().st_size
    (folder / "imported.h5").unlink()
    refused(alone(tmp_path / "logs", imported, folder, most=int(share * size)))
    assert left_over(folder) == [] and not (folder / "imported.h5").exists()
    code, said = alone(tmp_path / "logs", dgnet, "check", folder, most=int(share * size))
    assert code == 2 and said.splitlines()[-1].startswith("dgnet: cannot write") and "Traceback" not in said
    assert alone(tmp_path / "logs", dgnet, "check", folder)[0] == 0
    assert states(folder / "imported.h5") == whole


@pytest.mark.parametrize("most", [5_000, 60_000])
def test_reproduce(most: int, tmp_path: Path) -> None:
    """A full disk ends the study instead of failing one cell after the other."""
    refused(alone(tmp_path / "logs", cell, tmp_path, most=most))
    assert not list(tmp_path.glob("cells/*/failed.json")) and [p for p in left_over(tmp_path) if not p.endswith(".parts")] == []
    assert alone(tmp_path / "logs", cell, tmp_path)[0] == 0
    assert len(list(tmp_path.glob("cells/*/cell.json"))) == 1


# ---------------------------------------------------------------------- a file system of its own


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many KiB."""
    place = tmp_path / "disk"

    def mounted(size: int) -> Path:
        place.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(place)]
        done = subprocess.run(mount, capture_output=True, check=False)
        if done.returncode:
            pytest.skip("no file system may be mounted here")
        return place

    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root may mount a file system")
    yield mounted
    subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


def jobs(made: Path, place: Path) -> dict[str, tuple[Any, ...]]:
    return {"generate": (make, place), "rollout": (roll, made / "run", place), "train": (learn, data(made), place / "run")}


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("name", ["generate", "rollout", "train"])
def test_a_small_disk(name: str, size: int, made: Path, disk: Callable[[int], Path], tmp_path: Path) -> None:
    place = disk(size)
    refused(alone(tmp_path / "logs", *jobs(made, place)[name]))
    kept = {"x.h5.part", "x.h5.resume"} if name == "rollout" and size == 64 else set()  # the states until the disk was full
    assert {p for p in left_over(place) if not p.endswith(".parts")} == kept
    subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
    code, said = alone(tmp_path / "logs", *jobs(made, place)[name])
    assert code == 0, said


def test_a_read_only_disk(made: Path, disk: Callable[[int], Path], tmp_path: Path) -> None:
    """What is there can be used, what would have to be written is refused."""
    place = disk(16_384)
    folder = write_tiny(place / "tiny")
    fresh = write_tiny(place / "fresh")
    assert alone(tmp_path / "logs", imported, folder)[0] == 0
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    assert alone(tmp_path / "logs", dgnet, "check", folder)[0] == 0
    for arguments in (("check", fresh), ("check", folder, "--json", place / "x.json"), ("new", place / "plate"),
                      ("train", folder, "--out", place / "run")):
        code, said = alone(tmp_path / "logs", dgnet, *arguments)
        assert code == 2 and "read-only" in said.splitlines()[-1] and "Traceback" not in said, (arguments, said[-600:])
