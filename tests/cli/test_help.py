"""Help of both command lines: commands in groups, an example for each that can be run as it stands, brackets as written."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import dgnet
import dgnet.cli
import dgnet_paper.cli
from dgnet.cli import shell
from dgnet_paper.cli import frame

LINES = {"dgnet": (dgnet.cli.app, shell.GROUPS), "dgnet-paper": (dgnet_paper.cli.app, frame.GROUPS)}


def commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name), command


EVERY = {path: command for name, (app, _) in LINES.items() for path, command in commands(typer.main.get_command(app), (name,))}


def help_of(line: str, *path: str) -> str:
    done = CliRunner().invoke(LINES[line][0], [*path, "--help"], env={"COLUMNS": "300", "TERMINAL_WIDTH": "300"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("line", LINES)
def test_groups(line: str) -> None:
    page, groups = help_of(line), LINES[line][1]
    top = {path[1] for path in EVERY if path[0] == line}
    assert top == {name for names in groups.values() for name in names}
    at = [page.index(word) for group, names in groups.items() for word in (f"─ {group} ─", *(f"\n│ {n} " for n in names))]
    assert at == sorted(at) and "─ Commands" not in page


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_examples_can_be_run(path: tuple[str, ...]) -> None:
    known = {option for p in EVERY[path].params for option in p.opts + p.secondary_opts}
    shown = re.split(r"Examples?:\s*\n", help_of(*path))[1]
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line)
        assert words[: len(path)] == [*path], line
        assert not [w for w in words if w.startswith("--") and w not in known], line


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_is_shown_as_written(path: tuple[str, ...]) -> None:
    page = help_of(*path)
    for p in EVERY[path].params:
        for part in re.findall(r"\[[^\]]*\]", (getattr(p, "help", None) or "").replace("\\[", "[")):
            assert part in page, f"{p.name}: {part}"
    if path == ("dgnet", "rollout"):
        assert "[nodes] or [nodes, fields]" in page


def test_version() -> None:
    done = CliRunner().invoke(dgnet.cli.app, ["--version"])
    assert done.exit_code == 0 and done.output == f"dgnet {dgnet.__version__}\n"


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_command_ends_with_the_next_one(path: tuple[str, ...]) -> None:
    assert "advise(" in inspect.getsource(EVERY[path].callback)


def test_few_commands() -> None:
    assert len({path for path in EVERY if path[0] == "dgnet"}) <= 16
