"""Foreign inputs through the real command line: each ends in one sentence and exit code 2, or works and is right.

A case is a line of a table: what is done to a folder, the command, and words that its sentence must hold. Every case gets a copy of
its ground (tests/attacks/conftest.py) and a process of its own, forked from a server that has imported everything once, with limits
on time and memory. For all cases alike:

    refused   exit code 2, one sentence on stderr that names the culprit, no traceback, and every file as it was before
    works     exit code 0, nothing half-written left behind, and a stated property of the result holds
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.cli.forked import start

SECONDS = 30  # of one case: those that end in time need well below one
MEMORY = 8 << 30  # bytes of address space beyond what the process has at its start
CACHES = ("imported.h5",)  # what a command may leave although it refuses: the data of a project, read and checked
HALF = re.compile(r"\.part$|\.tmp$|\.part\.|~$|^tmp|\.resume$")  # names of files that are not whole
EXCEPTION = re.compile(r"Traceback|\b[A-Z]\w*(?:Error|Exception|Warning)\b|<class |object at 0x|NoneType|errno|\bdtype\(")


@dataclass(frozen=True)
class Outcome:
    """What a command left: its folder, exit code, and words."""

    folder: Path
    code: int | None
    out: str
    err: str


@dataclass(frozen=True)
class Case:
    """`says`: words of the one sentence. `right` instead: the command works, and this holds for what it leaves."""

    command: str
    says: str | Sequence[str] = ()
    does: Callable[[Path], object] | None = None
    ground: str = "empty"
    right: Callable[[Outcome], None] | None = None
    name: str = ""
    wrong: str = ""  # why the case is not met yet; it then has to fail

    @property
    def words(self) -> tuple[str, ...]:
        return (self.says,) if isinstance(self.says, str) else tuple(self.says)


def parameters(cases: Sequence[Case]) -> list[object]:
    """For pytest.mark.parametrize, with readable names."""
    marks = [[pytest.mark.xfail(reason=c.wrong, strict=True)] if c.wrong else [] for c in cases]
    return [pytest.param(c, id=re.sub(r"[^\w .,=+-]", "_", c.name or c.command)[:90], marks=m) for c, m in zip(cases, marks)]


def refusals(ground: str, table: str) -> list[Case]:
    """Cases from lines `COMMAND | word | word`, each to be refused with a sentence that holds the words."""
    rows = [[part.strip() for part in line.split(" | ")] for line in table.strip().splitlines() if line.strip()]
    return [Case(command, words, ground=ground) for command, *words in rows]


def face(case: Case, grounds: Callable[[str], Path], folder: Path) -> None:
    """Run one case and judge it."""
    __tracebackhide__ = True
    place = folder / "at"
    shutil.copytree(grounds(case.ground), place, symlinks=True)
    if case.does is not None:
        case.does(place)
    before = files(place)
    outcome = dgnet(place, case.command)
    told = f"\n$ dgnet {case.command}\nexit {outcome.code}\n{outcome.out[-1500:]}\n{outcome.err[-3000:]}"
    assert outcome.code is not None, f"no end within {SECONDS} s{told}"
    after = files(place)
    left = [name for name in after if name not in before and HALF.search(Path(name).name)]
    assert not left, f"left behind: {left}{told}"
    if case.right is not None:
        assert outcome.code == 0, told
        assert "Traceback" not in outcome.err and "Warning" not in outcome.err, told
        case.right(outcome)
        return
    assert outcome.code == 2, told
    said = sentence(outcome.err)
    assert said is not None, f"not one sentence{told}"
    assert "physics.py" in said or not EXCEPTION.search(said), f"words of a program, not of a person{told}"
    assert len(re.findall(r"[A-Za-z]{2,}", said)) >= 4, f"hardly a sentence{told}"
    for word in case.words:  # physics.py is the user's own code: the name of its exception belongs there
        assert word.lower() in said.lower(), f"'{word}' is not named{told}"
    changed = [n for n in {*before, *after} if before.get(n) != after.get(n) and Path(n).name not in CACHES]
    assert not changed, f"files changed: {changed}{told}"


def sentence(err: str) -> str | None:
    """The one sentence of a refusal; None if there is more or less than that."""
    lines = err.strip().splitlines()
    return lines[0] if len(lines) == 1 and lines[0].startswith(("dgnet: ", "dgnet-paper: ")) else None


def files(folder: Path) -> dict[str, str]:
    """Every file below a folder with a fingerprint of its content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[name] = hashlib.sha1(path.read_bytes()).hexdigest()
    return found


# ---------------------------------------------------------------------- the process


def dgnet(folder: Path, command: str, seconds: float = SECONDS) -> Outcome:
    """`dgnet COMMAND` in a folder, in a process of its own; exit code None where it had to be ended."""
    process = begin(folder, command)
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        code = None
    else:
        code = process.exitcode
    return Outcome(folder, code, *(path.read_text(errors="replace") if path.exists() else "" for path in _words(folder)))


PAPER = ("demo", "scenarios", "generate", "certify", "cards", "pretrained", "analyse", "universal", "reproduce", "report", "score")
"""Commands of dgnet-paper; the others are those of dgnet."""


def begin(folder: Path, command: str, name: str = "") -> BaseProcess:
    """The same, not waited for. `name` tells its words from those of others in the folder."""
    return start(_command, str(folder), shlex.split(command), *map(str, _words(folder, name)))


def _words(folder: Path, name: str = "") -> tuple[Path, Path]:
    """Files beside the folder that take stdout and stderr."""
    return folder.parent / f"{folder.name}{name}.out", folder.parent / f"{folder.name}{name}.err"


def _command(folder: str, arguments: list[str], out: str, err: str) -> None:
    """In the new process: the real entry of the command line."""
    for number, name in ((1, out), (2, err)):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
    os.chdir(folder)
    os.environ["COLUMNS"] = "240"
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if Path("/proc/self/statm").exists() else 0
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    paper = bool(arguments) and (arguments[0] == "paper" or arguments[0] in PAPER)  # or `dgnet`
    sys.argv = ["dgnet-paper", *arguments[arguments[0] == "paper":]] if paper else ["dgnet", *arguments]
    sys.stdin = open(os.devnull)
    import dgnet.cli
    import dgnet_paper.cli

    (dgnet_paper.cli if paper else dgnet.cli).main()
