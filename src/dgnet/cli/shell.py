"""The command line. Each command is a thin shell around one function of the library."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dgnet import __version__
from dgnet.cli.options import file_to_write
from dgnet.errors import InputError

app = typer.Typer(name="dgnet", help="Discrete Green networks on unstructured meshes.", no_args_is_help=True,
                  pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
bench = typer.Typer(help="Measurements, one command each, with JSON out.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console(markup=False)  # paths and names may hold brackets
errors = Console(stderr=True, markup=False)


def write_text(path: Path, text: str) -> None:
    """The file appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def write_json(path: Path | None, result: Any) -> None:
    """Write results for machines."""
    if path is not None:
        write_text(path, json.dumps(result, indent=1))


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__)


# ---------------------------------------------------------------------- data sets


@contextmanager
def reporting() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per task name: report(what, done, total)."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:3.0f}%"),
               TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


@contextmanager
def narrating(budget: float) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Any, int], None]]]:
    """Progress bars as in `reporting`, and one for training: loss, validation error, the classical one beside it, time left."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TextColumn("{task.percentage:3.0f}%"),
               TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False))
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(what: str, done: float, total: float, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, note=note)
            bars.update(tasks[what], completed=done, total=total, note=note)

        def tell(progress: Any, total: int) -> None:
            last = progress.history[-1] if progress.history else {"loss": float("nan"), "validation": float("nan")}
            share = min(1.0, max(progress.iteration / total, progress.seconds / budget))
            update("training", share, 1.0, f"loss {last['loss']:.1e}  validation {last['validation']:.2e}  "
                                           f"(classical {progress.classical:.2e})")

        yield update, tell


@contextmanager
def folding() -> Iterator[Callable[[int, int, Any, int], None]]:
    """A bar for trainings one after the other: tell(number, of how many, progress, iterations)."""
    with reporting() as report:
        def tell(at: int, count: int, progress: Any, total: int) -> None:
            report(f"without trajectory {at + 1} of {count}", progress.iteration, total)

        yield tell


Size = Annotated[str, typer.Option(help="small or paper")]
Truth = Annotated[str, typer.Option(help="same-mesh or converged")]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Problem = Annotated[Path | None, typer.Option(help="Your own problem folder, in place of the copy that the run carries; it must be "
                                              "the same problem. This confirms its physics.py.")]
AllowDifferent = Annotated[bool, typer.Option("--allow-different", help="Take a problem that is not what the run was trained on; "
                                              "the output says what differs.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result for machines to this file.", callback=file_to_write)]


def checked_device(name: str) -> str:
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise InputError(f"unknown device '{name}' (known: cpu, cuda)")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("this machine has no usable CUDA device")
    return name
