"""The frame of the command line `dgnet-paper`: that of dgnet with other commands."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli import screen, shell
from dgnet.cli.options import folder_to_write

GROUPS = {
    "Scenarios": ("demo", "scenarios", "generate", "certify", "cards"),
    "Models": ("train", "evaluate", "pretrained", "analyse", "universal"),
    "Tables": ("reproduce", "report", "score"),
}
"""Groups of `dgnet-paper --help` and the order of their commands."""

app = shell.group("dgnet-paper", "The experiments of the paper: scenarios, baselines, tables, figures.", GROUPS)
command = partial(shell.command, of=app)
advise = partial(screen.advise, program="dgnet-paper")

Size = Annotated[str, typer.Option(help="small or paper")]
Truth = Annotated[str, typer.Option(help="same-mesh or converged")]

PROCESSES = 1024  # side by side, at most


def named(value: str | None) -> str | None:
    """A callback for names: not empty."""
    if value is not None and not value.strip():
        raise typer.BadParameter("an empty name stands for nothing.")
    return value


def all_named(values: list[str] | None) -> list[str] | None:
    """The same for lists, in which commas separate names."""
    for value in values or ():
        named(value.replace(",", " "))
    return values


def page_to_write(path: Path | None) -> Path | None:
    """A callback for a page FILE.md with a folder of pictures, or the folder of both."""
    return path if path is not None and path.suffix == ".md" else folder_to_write()(path)
