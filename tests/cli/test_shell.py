"""How commands end: whatever happens, one sentence and an exit code; the traceback for who asks. Names are printed as they are."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from dgnet import cli
from dgnet.cli import screen, shell
from dgnet.errors import InputError, NoRoom, SolveError
from dgnet.files import write_json
from dgnet_paper.study import stored
from dgnet_paper.study.blocks import Head, Lines, Picture, Table, Text, to_markdown

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

    monkeypatch.setattr("dgnet_paper.scenarios.names", fails)
    assert command(monkeypatch, *["--debug"] * debug, "scenarios") == code
    said = capsys.readouterr().err
    assert words in said.splitlines()[-1] and said.splitlines()[-1].startswith("dgnet: ")
    assert ("Traceback" in said) == debug and (debug or len(said.splitlines()) == 1)


def test_memory_that_there_is_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("dgnet_paper.scenarios.names", lambda: torch.empty(1 << 60))
    assert command(monkeypatch, "scenarios") == 2
    assert "not enough memory" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_names_are_printed_as_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "check", f"./{name}") == 2
    assert name in capsys.readouterr().err
    assert command(monkeypatch, "scenarios", "--json", f"./{name}/s.json") == 0 and (tmp_path / name / "s.json").exists()
    with screen.reporting() as report:
        report(name, 1, 2)
    with screen.narrating(1.0) as (report, _):
        report(name, 1, 2)
    shell.console.print(name, highlight=False)
    assert capsys.readouterr().out.splitlines()[-1] == name


def test_results_are_written_before_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dgnet-paper scenarios --json x | head -1`: the reader goes away, the file is there."""
    def gone(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(shell.console, "print", gone)
    assert command(monkeypatch, "scenarios", "--json", tmp_path / "x.json") == 1
    assert (tmp_path / "x.json").exists()


# ---------------------------------------------------------------------- what strangers' cells could carry


def study(folder: Path, tag: str) -> Path:
    cell = folder / "cells" / tag
    write_json(cell / "cell.json", {"tag": tag, "cell": {"kind": "classical"}, "date": "2024"})
    return cell


TAG = "classical_laser-heat_small_same-mesh_classical_s0"


def test_merge_follows_no_links(tmp_path: Path) -> None:
    cell = study(tmp_path / "theirs", TAG)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "more").write_text("secret")
    os.symlink(tmp_path / "secret", cell / "sample.npz")
    os.symlink(tmp_path / "folder", cell / "run")
    assert stored.merge([tmp_path / "theirs"], tmp_path / "ours") == [TAG]
    assert sorted(p.name for p in (tmp_path / "ours").rglob("*")) == sorted(["cells", TAG, "cell.json"])


def test_merge_of_a_linked_cell_is_refused(tmp_path: Path) -> None:
    cell = study(tmp_path / "theirs", TAG)
    os.replace(cell / "cell.json", tmp_path / "elsewhere.json")
    os.symlink(tmp_path / "elsewhere.json", cell / "cell.json")
    with pytest.raises(InputError, match="symbolic link"):
        stored.merge([tmp_path / "theirs"], tmp_path / "ours")
    assert not list((tmp_path / "ours" / "cells").glob("*/cell.json")) and not list(tmp_path.rglob("*.part*"))


@pytest.mark.parametrize("tag", ["../../x", "/x", "x", "classical_laser-heat_small_same-mesh_classical_s0_n0/../../.."])
def test_merge_writes_nowhere_else(tag: str, tmp_path: Path) -> None:
    write_json(tmp_path / "theirs" / "cells" / "a" / "cell.json", {"tag": tag, "cell": {}})
    with pytest.raises(InputError, match="name of a cell"):
        stored.merge([tmp_path / "theirs"], tmp_path / "ours")
    assert not (tmp_path / "ours" / "cells").exists() or not any((tmp_path / "ours" / "cells").iterdir())


def test_markdown_carries_no_tags(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    from PIL import Image

    Image.new("RGB", (4, 4)).save(tmp_path / "p.png")
    page = to_markdown("T", [Head(evil), Text(f"{evil} and p < 0.1"), Table([evil], [[evil]]), Picture(tmp_path / "p.png", evil),
                             Lines("how", [f"a\n```\n{evil}", f"```{evil}"])], tmp_path / "pictures", "pictures")
    outside = "".join(part for k, part in enumerate(page.split("```")) if k % 2 == 0)
    assert "<script" not in outside and "p < 0.1" in page and page.count("```") == 2
