"""The frame of the command line: groups of commands, how a command ends, options that several commands share."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from dgnet import __version__, files
from dgnet.cli.options import Usage, careful, file_to_write, target_of, usage
from dgnet.cli.screen import console, errors
from dgnet.errors import InputError, SolveError

GROUPS = {
    "Your problem": ("new", "studio", "simulate", "check", "import", "train", "evaluate", "rollout", "show", "export"),
    "Sensors": ("recover", "place", "follow", "design"),
    "Models": ("models",),
}
"""Groups of `dgnet --help` and the order of their commands."""


def _overwrite() -> Any:
    """The option --overwrite, as typer makes it."""
    def with_option(overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files even if other commands need "
                                                                                "them.")] = False) -> None:
        pass

    single = typer.Typer(add_completion=False)
    single.command()(with_option)
    return next(p for p in typer.main.get_command(single).params if p.name == "overwrite")


class Careful:
    """A command that replaces nothing that other commands need, unless --overwrite says so (`options.careful`)."""

    params: list[Any]

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.asks = any(map(target_of, self.params)) and all(p.name != "overwrite" for p in self.params)
        if self.asks:
            self.params.append(_overwrite())

    def invoke(self, context: Any) -> Any:
        overwrite = context.params.pop("overwrite", False) if self.asks else context.params.get("overwrite", False)
        if getattr(context, "invoked_subcommand", None) is not None:
            return super().invoke(context)  # type: ignore[misc]
        with careful(self.params, context.params, overwrite):
            return super().invoke(context)  # type: ignore[misc]


class CarefulGroup(Careful, TyperGroup):
    """The same for a group that is a command of its own."""


class Literal(Careful, TyperCommand):
    """A command whose help is printed as it is written: [brackets] are no markup."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        parts: list[Any] = [self, *self.params]
        for part in parts:
            part.help = None if part.help is None else escape(part.help)
        self.epilog = escape(self.epilog or "")


Function = TypeVar("Function", bound=Callable[..., Any])

_PANELS: dict[int, dict[str, str]] = {}  # of each command line: name of a command -> its group in the help


def group(name: str, text: str, groups: Mapping[str, Sequence[str]]) -> typer.Typer:
    """A command line: commands in the order of `groups`, whichever module adds them first, with the options of `root`."""
    order = [one for names in groups.values() for one in names]

    class Grouped(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return sorted(super().list_commands(ctx), key=lambda one: order.index(one) if one in order else len(order))

    made = typer.Typer(name=name, cls=Grouped, help=text, no_args_is_help=True, pretty_exceptions_enable=False,
                       context_settings={"help_option_names": ["-h", "--help"]},
                       epilog=f"`{name} COMMAND --help` ends with examples.")
    made.callback()(root)
    _PANELS[id(made)] = {one: panel for panel, names in groups.items() for one in names}
    return made


def command(*examples: str, name: str | None = None, of: typer.Typer | None = None) -> Callable[[Function], Function]:
    """Add a command to its group, with examples at the end of its help."""
    def add(function: Function) -> Function:
        called = name or function.__name__
        panel = _PANELS.get(id(of or app), {}).get(called)
        text = "\n\n".join([f"Example{'s' * (len(examples) > 1)}:", *examples])
        return (of or app).command(called, cls=Literal, rich_help_panel=panel, epilog=text)(function)

    return add


def write_json(path: Path | None, result: Any) -> None:
    """Write results as JSON, before anything is printed: the reader of the output may end first (`| head`)."""
    if path is not None:
        files.write_json(path, result)


# ---------------------------------------------------------------------- how a command ends


class Stopped(BaseException):
    """SIGINT or SIGTERM, as an exception: everything that is open is closed on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_DEBUG = [False]
_AGAIN = 0.02  # seconds after which a signal is sent again


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"dgnet {__version__}", highlight=False)
        raise typer.Exit


def root(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
         no_verify: Annotated[bool, typer.Option("--no-verify", help="Read data sets and weights even if a checksum "
                                                                     "differs.")] = False,
         version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True,
                                              callback=_print_version)] = False) -> None:
    """Compute and learn time-dependent fields on unstructured meshes."""
    _DEBUG[0] = debug
    if no_verify:
        os.environ["DGNET_VERIFY"] = "0"  # read by processes that this one starts


app = group("dgnet", "Discrete Green networks on unstructured meshes.", GROUPS)


@cache
def commands(of: typer.Typer = app) -> Any:
    """All commands as one click group. Built once: that takes 40 ms, and one process may run many commands."""
    return typer.main.get_command(of)


def main(of: typer.Typer = app) -> None:
    """Run a command line. An error is told in one sentence.

    Exit codes: 0 done, 1 done with failures that were reported, 2 bad input or a machine that cannot do it (disk, memory), 70 a
    defect of dgnet, 128 + n stopped by signal n.
    """
    def stop(number: int, frame: Any) -> None:
        raise Stopped(number)

    def swallowed(seen: Any) -> None:
        """Python drops what is raised while it deletes an object: a signal that came just then is sent again."""
        if not isinstance(seen.exc_value, Stopped):
            return hook(seen)
        number = seen.exc_value.number
        signal.signal(signal.SIGALRM, lambda _, frame: signal.raise_signal(number))
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    os.environ["MPLBACKEND"] = "agg"  # no command opens a window, and a name that matplotlib does not know would end it
    hook, sys.unraisablehook = sys.unraisablehook, swallowed
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):  # not where they are ignored (nohup, &)
            signal.signal(number, stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show must not end the work
    try:
        sys.exit(commands(of)(prog_name=of.info.name, standalone_mode=False) or 0)
    except (Exception, Stopped) as error:
        text, code = ending(error)
        if _DEBUG[0]:
            traceback.print_exception(error)
        errors.print(f"{of.info.name}: {files.visible(text)}", style="red", highlight=False, soft_wrap=not errors.is_terminal)
        sys.exit(code)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def ending(error: BaseException) -> tuple[str, int]:
    """The sentence for a person and the exit code."""
    if isinstance(error, Usage):
        return usage(error), 2
    if isinstance(error, InputError | SolveError):
        return str(error), 2
    if isinstance(error, Stopped):
        return f"stopped by {signal.Signals(error.number).name}; rerun the same command to resume", 128 + error.number
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error))):
        return f"not enough memory ({files.cause(error)}); try a smaller mesh, fewer steps or another device", 2
    if isinstance(error, RecursionError):
        return "a file is nested too deeply to be read", 2
    if isinstance(error, OSError):
        return f"{error.filename}: {files.cause(error)}" if error.filename else files.cause(error), 2
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" in {Path(place[0].filename).name}, line {place[0].lineno}" if place else ""
    return (f"a defect of dgnet: {type(error).__name__}{where}: {files.cause(error)}; rerun it as `dgnet --debug ...` for the "
            "traceback, and report it"), 70


_NO_MEMORY = re.compile(r"out of memory|not enough memory|can't allocate memory|alloc_cpu", re.IGNORECASE)


# ---------------------------------------------------------------------- options that several commands share


Device = Annotated[str, typer.Option(help="cpu or cuda")]
Problem = Annotated[Path | None, typer.Option(help="Use this problem folder instead of the copy stored in the run. It must be the "
                                                   "same "
                                              "problem. Its physics.py will be executed.")]
AllowDifferent = Annotated[bool, typer.Option("--allow-different", help="Accept a problem that differs from the one the run was "
                                                                        "trained "
                                              "on. The output lists the differences.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the result as JSON to this file.",
                                             callback=file_to_write(".json"))]


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
