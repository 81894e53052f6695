"""How commands end: whatever happens, one sentence and an exit code; the traceback for who asks. Names are printed as they are."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from dgnet import cli
from dgnet.cli import screen, shell
from dgnet.errors import InputError, NoRoom, SolveError

NAMES = ["x[/y]", "[red]", "a[b", "$HOME", "`id`", "ü", "x;y", "[/]", ":smile:", "-"]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize(("error", "code", "words"), [
    (InputError("no mesh"), 2, "no mesh"), (NoRoom("cannot write x: the disk is full"), 2, "the disk is full"),
    (SolveError("residual 1"), 2, "residual 1"), (PermissionError(errno.EACCES, "Permission denied", "a/b"), 2, "a/b: permission"),
    (OSError(errno.ENOSPC, "No space left on device"), 2, "the disk is full"), (OSError("Can't read data"), 2, "Can't read data"),
    (FileNotFoundError(errno.ENOENT, "No such file", "x"), 2, "x: no such file"), (RecursionError("deep"), 2, "nested too deeply"),
    (OSError(errno.ELOOP, "Too many levels", "l"), 2, "l: symbolic links in a loop"),
    (OSError(errno.ENAMETOOLONG, "File name too long", "n"), 2, "n: the name is too long"),
    (MemoryError(), 2, "not enough memory"), (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB"), 2, "CUDA out of memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: not enough memory"), 2, "not enough memory"),
    (shell.Stopped(2), 130, "stopped by SIGINT; rerun the same command to resume"), (shell.Stopped(15), 143, "stopped by SIGTERM"),
    (KeyError("weights"), 70, "a defect of dgnet: KeyError in test_shell.py, line "), (RuntimeError("shapes"), 70, "RuntimeError"),
    (AssertionError(), 70, "AssertionError"),
])
@pytest.mark.parametrize("debug", [False, True])
def test_endings(error: BaseException, code: int, words: str, debug: bool, monkeypatch: pytest.MonkeyPatch,
                 capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> list[str]:
        raise error

    monkeypatch.setattr("dgnet.models.registry.listed", fails)
    assert command(monkeypatch, *["--debug"] * debug, "models") == code
    said = capsys.readouterr().err
    assert words in said.splitlines()[-1] and said.splitlines()[-1].startswith("dgnet: ")
    assert ("Traceback" in said) == debug and (debug or len(said.splitlines()) == 1)


def test_memory_that_there_is_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dgnet.models.registry.listed", lambda: torch.empty(1 << 60))
    assert command(monkeypatch, "models") == 2
    assert "not enough memory" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "check", f"./{name}") == 2
    assert name in capsys.readouterr().err
    assert command(monkeypatch, "models", "--json", f"./{name}/s.json") == 0 and (tmp_path / name / "s.json").exists()
    with screen.reporting() as report:
        report(name, 1, 2)
    with screen.narrating(1.0) as (report, _):
        report(name, 1, 2)
    shell.console.print(name, highlight=False)
    assert capsys.readouterr().out.splitlines()[-1] == name


def test_results_are_written_before_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dgnet models --json x | head -1`: the reader goes away, the file is there."""
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(shell.console, "print", gone)
    assert command(monkeypatch, "models", "--json", tmp_path / "x.json") == 1
    assert (tmp_path / "x.json").exists()
