"""The command line. Each command is a thin shell around one function of the library."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dgnet import __version__, files
from dgnet.cli.options import Usage, file_to_write, usage
from dgnet.errors import InputError, SolveError
from dgnet.progress import Report

app = typer.Typer(name="dgnet", help="Discrete Green networks on unstructured meshes.", no_args_is_help=True,
                  pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
bench = typer.Typer(help="Measurements, one command each, with JSON out.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console(markup=False, emoji=False)  # paths and messages are printed as they are, [brackets] and all
errors = Console(stderr=True, markup=False, emoji=False)


def write_json(path: Path | None, result: Any) -> None:
    """Write results for machines, before anything is printed: who reads the screen may go away (`| head`)."""
    if path is not None:
        files.write_json(path, result)


# ---------------------------------------------------------------------- how a command ends


class Stopped(BaseException):
    """SIGINT or SIGTERM, as an exception: everything that is open is closed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_DEBUG = [False]


@app.callback()
def root(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of whatever goes wrong.")] = False,
         no_verify: Annotated[bool, typer.Option("--no-verify", help="Read data sets and weights whose checksums differ.")] = False,
         ) -> None:
    """Discrete Green networks on unstructured meshes."""
    _DEBUG[0] = debug
    if no_verify:
        os.environ["DGNET_VERIFY"] = "0"  # so that processes that this one starts know, too


def main() -> None:
    """Run the command line. Whatever happens, a person reads one sentence.

    Exit codes: 0 done, 1 done with failures that were reported, 2 bad input or a machine that cannot do it (disk, memory), 70 a
    defect of dgnet, 128 + n stopped by signal n.
    """
    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):  # not where they are ignored (nohup, &)
            signal.signal(number, stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show must not end the work
    try:
        sys.exit(app(prog_name="dgnet", standalone_mode=False) or 0)
    except (Exception, Stopped) as error:
        text, code = ending(error)
        if _DEBUG[0]:
            traceback.print_exception(error)
        errors.print(f"dgnet: {_CONTROL.sub(lambda c: repr(c[0])[1:-1], text)}", style="red", highlight=False, soft_wrap=True)
        sys.exit(code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the end of the block: nothing that it begins is lost half-begun."""
    waiting: list[int] = []
    before = {number: signal.signal(number, lambda n, frame: waiting.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if waiting:
            signal.raise_signal(waiting[0])


def ending(error: BaseException) -> tuple[str, int]:
    """The sentence for a person and the exit code."""
    if isinstance(error, Usage):
        return usage(error), 2
    if isinstance(error, InputError | SolveError):
        return str(error), 2
    if isinstance(error, Stopped):
        return f"stopped by {signal.Signals(error.number).name}; the same command goes on with what is finished", 128 + error.number
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        return f"not enough memory ({files.cause(error)}); try a smaller mesh, fewer steps or another device", 2
    if isinstance(error, RecursionError):
        return "a file is nested too deeply to be read", 2
    if isinstance(error, OSError):
        return f"{error.filename}: {files.cause(error)}" if error.filename else files.cause(error), 2
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" in {Path(place[0].filename).name}, line {place[0].lineno}" if place else ""
    return (f"a defect of dgnet: {type(error).__name__}{where}: {files.cause(error)}; run it again as `dgnet --debug ...` for the "
            "traceback, and report it"), 70


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a name may hold line breaks and what steers a terminal
_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|alloc_cpu", re.IGNORECASE)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__)


# ---------------------------------------------------------------------- data sets


@contextmanager
def reporting() -> Iterator[Report]:
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
def narrating(budget: float) -> Iterator[tuple[Report, Callable[[Any, int], None]]]:
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
