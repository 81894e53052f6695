"""SIGINT and SIGTERM: the command ends within five seconds with one sentence, no process stays, and the same command goes on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.attacks.commands import alone, dgnet, left_over, signalled
from tests.attacks.test_processes import cell, make
from tests.projects.conftest import write_tiny

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
PATIENCE = 5.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    write_tiny(root / "tiny")
    code, said = alone(root / "logs", dgnet, "train", root / "tiny", "--out", root / "run", "--budget", "0.02")
    assert code == 0, said
    (root / "spots.csv").write_text("t,x,y,radius,power\n0,0.2,0.2,0.1,30\n60,1.2,0.7,0.1,30\n")
    return root


def stopped(found: tuple[int | None, float, str], number: int) -> None:
    code, seconds, said = found
    assert code == 128 + number and seconds < PATIENCE, (code, seconds, said[-600:])
    assert f"stopped by {signal.Signals(number).name}; rerun the same command" in said.splitlines()[-1] and "Traceback" not in said


@BOTH
def test_train(number: int, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    job = (dgnet, "train", made / "tiny", "--out", folder, "--budget")
    stopped(signalled(tmp_path / "logs", number, (folder / "last.pt").exists, *job, "5"), number)
    assert left_over(tmp_path) == [] and not (folder / "weights.pt").exists()
    code, said = alone(tmp_path / "logs", *job, "0.02")
    assert code == 0 and (folder / "weights.pt").exists(), said


@BOTH
def test_rollout(number: int, made: Path, tmp_path: Path) -> None:
    job = (dgnet, "rollout", made / "run", "--source", made / "spots.csv", "--steps", 100_000, "--every", 100,
           "--out", tmp_path / "x.h5", "--json", tmp_path / "x.json")
    stopped(signalled(tmp_path / "logs", number, (tmp_path / "x.h5.resume").exists, *job), number)
    assert left_over(tmp_path) == ["x.h5.part", "x.h5.resume"]


@BOTH
def test_check_of_a_new_project(number: int, tmp_path: Path) -> None:
    """Before anything is imported: nothing of it stays."""
    folder = write_tiny(tmp_path / "tiny")
    job = (dgnet, "train", folder, "--out", tmp_path / "run")
    stopped(signalled(tmp_path / "logs", number, lambda: any(folder.glob("*imported.h5*")), *job), number)
    assert left_over(tmp_path) == []
    assert alone(tmp_path / "logs", dgnet, "check", folder)[0] == 0


DEAF = """
import os, signal, time
from dgnet.cli import shell
class Deaf:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.01)  # what a handler raises here is dropped
def work(**options):
    Deaf()
    time.sleep(20)
shell.commands = lambda of: work
signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background inherits that it is ignored
shell.main()
"""


@pytest.mark.parametrize("name, code", [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_that_python_drops_is_heard(name: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", DEAF.format(name=name)], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and done.stderr.splitlines() == [f"dgnet: stopped by {name}; rerun the same command to resume"]


# ---------------------------------------------------------------------- kills, of what paper/tests/study/test_kill.py does not kill


@pytest.mark.parametrize("after", [0.02, 0.2, 0.6])
def test_a_cell_that_is_killed(after: float, tmp_path: Path) -> None:
    begin = time.monotonic()
    code, _, _ = signalled(tmp_path / "logs", signal.SIGKILL, lambda: time.monotonic() - begin > after, cell, tmp_path)
    assert code in (0, -signal.SIGKILL)
    code, said = alone(tmp_path / "logs", cell, tmp_path)
    assert code == 0, said
    assert len(list(tmp_path.glob("cells/*/cell.json"))) == 1 and left_over(tmp_path) == []


@pytest.mark.parametrize("at", [".imported.h5", "imported.h5"])
def test_an_import_that_is_killed(at: str, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(made / "tiny", folder, ignore=shutil.ignore_patterns("imported.h5"))
    code, _, _ = signalled(tmp_path / "logs", signal.SIGKILL, lambda: any(folder.glob(f"{at}*")), dgnet, "check", folder)
    assert code in (0, -signal.SIGKILL)
    code, said = alone(tmp_path / "logs", dgnet, "check", folder)
    assert code == 0 and left_over(tmp_path) == [], said


def test_generate_stopped_between_trajectories(tmp_path: Path) -> None:
    ready = lambda: any(tmp_path.glob("*.parts/*.h5"))  # noqa: E731
    signalled(tmp_path / "logs", signal.SIGTERM, ready, make, tmp_path)
    assert alone(tmp_path / "logs", make, tmp_path)[0] == 0 and left_over(tmp_path) == []
