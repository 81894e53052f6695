"""The grounds that cases start from, each made once by the commands themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.harness import dgnet
from tests.projects.conftest import TOML, write_tiny

QUICK = TOML + "\n[model]\nhidden = 8\nlayers = 1\n\n[training]\nwindows = [2]\niterations = [2]\n"
TAG = "train_laser-heat_small_same-mesh_dgnet_s0_d1"


def _empty(folder: Path) -> None:
    folder.mkdir(parents=True)


def _project(folder: Path) -> None:
    """A problem of one's own: tiny/."""
    write_tiny(folder / "tiny", QUICK)


def _run(folder: Path) -> None:
    """The same with its data imported, and a run trained on it: run/."""
    _project(folder)
    _do(folder, "train tiny --out run")


def _study(folder: Path) -> None:
    """A study of two cells, its data, and the weights of one packed: study/, data/, shelf/."""
    _empty(folder)
    _do(folder, f"paper reproduce {TAG} --out study --data data --budget 0.02")
    _do(folder, f"paper pretrained pack study/cells/{TAG} --out shelf")


_GROUNDS: dict[str, Callable[[Path], None]] = {"empty": _empty, "project": _project, "run": _run, "study": _study}


def _do(folder: Path, command: str) -> None:
    done = dgnet(folder, command, seconds=120)
    assert done.code == 0, (command, done.out, done.err)


@pytest.fixture(scope="session")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("grounds")

    def ground(name: str) -> Path:
        folder = root / name
        if not folder.exists():
            _GROUNDS[name](folder)
        return folder

    return ground
