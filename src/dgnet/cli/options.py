"""Numbers that options take, checked before any work begins, and the rule about options that do not apply.

A count is at least 1, a seed fits 63 bits, minutes and factors are positive and finite. An option that has no effect in a command
is refused, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.errors import InputError
from dgnet.files import cause

SEEDS = 2**63  # a seed is stored with the data in 63 bits


def positive(value: float | None) -> float | None:
    """A callback for options: positive and finite."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise typer.BadParameter(f"{value:g} is not a positive, finite number.")
    return value


def positives(values: list[float] | None) -> list[float] | None:
    return None if values is None else [v for v in map(positive, values) if v is not None]


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


def file_to_write(path: Path | None) -> Path | None:
    """A callback for files to write: what is in the way is told before the work begins."""
    if path is not None:
        if path.is_dir():
            raise typer.BadParameter(f"'{path}' is a folder, not a file to write.")
        folder_to_write(path.parent)
    return path


def folder_to_write(path: Path | None) -> Path | None:
    """The same for folders to write into, which are made where they are missing."""
    for part in () if path is None else (path, *path.parents):
        try:
            wrong = "is a file" if part.exists() and not part.is_dir() else ""
            wrong = "is a broken link" if part.is_symlink() and not part.exists() else wrong
        except OSError as error:  # a loop of links, or a name that no file can have
            wrong = f"cannot be a folder ({cause(error)})"
        if wrong:
            raise typer.BadParameter(f"'{part}' {wrong}, so nothing can be written into it.")
    return path


Seed = Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of all random numbers.")]


Adaptive = Annotated[float | None, typer.Option(
    help="Halve steps until the error of each is below this share of the range of each field; stored times stay as they are.",
    callback=positive)]


def given(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"  # by name: some versions of typer bring a click of their own


def refuse(context: typer.Context, reasons: Mapping[str, str]) -> None:
    """Refuse the first of these options (by the names of their parameters) that was given, with the reason."""
    for name, reason in reasons.items():
        if given(context, name):
            option = next(p.opts[0] for p in context.command.params if p.name == name)
            raise InputError(f"{option} does not apply here: {reason}")


Usage: type[Exception] = typer.BadParameter.__mro__[1]
"""UsageError of the click that typer works with: some versions of typer bring their own."""


def usage(error: Any) -> str:
    """The sentence about a command line that cannot be understood, instead of typer's box; what to call for help."""
    where = "dgnet" if error.ctx is None else error.ctx.command_path
    if type(error).__name__ == "NoArgsIsHelpError":  # its help is on the screen already
        return f"`{where}` alone does nothing, a command has to follow"
    return f"{error.format_message().rstrip('.')}; `{where} --help` explains the options"
