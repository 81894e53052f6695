"""What options take, checked before any work begins: numbers, names, and files to write; and options that do not apply.

A count is at least 1, a seed fits 63 bits, minutes and factors are positive and finite. An option that has no effect in a command
is refused, never ignored. A file that another command needs is not replaced (`careful`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.errors import LARGEST, InputError
from dgnet.files import cause, locked, protecting

SEEDS = 2**63  # a seed is stored with the data in 63 bits


def positive(value: float | None) -> float | None:
    """A callback for options: positive, finite, and no number whose square overflows."""
    if value is not None and not 1 / LARGEST <= value <= LARGEST:
        raise typer.BadParameter(f"{value:g} is not a positive, finite number from {1 / LARGEST:g} to {LARGEST:g}.")
    return value


Seed = Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Seed of all random numbers.")]


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


def point(text: str) -> tuple[float, ...]:
    """Coordinates of a probe."""
    try:
        return tuple(float(x) for x in text.split(","))
    except ValueError:
        raise InputError(f"--probe {text}: coordinates are numbers with commas in between, as in 0.3,0.7") from None


Usage: type[Exception] = typer.BadParameter.__mro__[1]
"""UsageError of the click that typer works with: some versions of typer bring their own."""


def usage(error: Any) -> str:
    """The sentence about a command line that cannot be understood, instead of typer's box; what to call for help."""
    where = "dgnet" if error.ctx is None else error.ctx.command_path
    if type(error).__name__ == "NoArgsIsHelpError":  # its help is on the screen already
        return f"`{where}` alone does nothing, a command has to follow"
    return f"{error.format_message().rstrip('.')}; `{where} --help` explains the options"


# ---------------------------------------------------------------------- what a command writes


Beside = Callable[[Path], Iterable[Path]]
"""Further files that are written with one."""


@dataclass(frozen=True)
class Target:
    """What an option writes: a file that ends as one of `endings` with others `beside` it, or a folder (no `endings`).

    `shared`: several commands may work in the folder at once, because they share the work themselves.
    """

    endings: tuple[str, ...] = ()
    beside: Beside | None = None
    shared: bool = False

    def files(self, path: Path) -> list[Path]:
        return [path, *(() if self.beside is None else self.beside(path))] if self.endings else []

    @property
    def locked(self) -> bool:
        """Whether a second command waits: what is written is more than one file, and must be of one command."""
        return not self.shared and (not self.endings or self.beside is not None)


def file_to_write(*endings: str, beside: Beside | None = None) -> Callable[[Path | None], Path | None]:
    """A callback for files to write: what is in the way is said before the work begins (`careful`)."""
    return _writes(Target(endings, beside))


def folder_to_write(shared: bool = False) -> Callable[[Path | None], Path | None]:
    """The same for folders to write into, which are made where they are missing."""
    return _writes(Target(shared=shared))


def _writes(target: Target) -> Callable[[Path | None], Path | None]:
    def checked(path: Path | None) -> Path | None:
        if path is not None and target.endings and path.is_dir():
            raise typer.BadParameter(f"'{path}' is a folder, not a file to write.")
        _way(path.parent if path is not None and target.endings else path)
        return path

    checked.writes = target  # type: ignore[attr-defined]
    return checked


def vtk_files(path: Path) -> Iterator[Path]:
    """What lies beside FILE.pvd: a folder of .vtu."""
    return path.with_name(f"{path.stem}-vtu").glob(f"{escape(path.stem)}-*.vtu")


def xdmf_files(path: Path) -> list[Path]:
    """What lies beside FILE.xdmf."""
    return [path.with_name(path.name + ".h5")]


def _way(path: Path | None) -> Path | None:
    for part in () if path is None else (path, *path.parents):
        try:
            wrong = "is a file" if part.exists() and not part.is_dir() else ""
            wrong = "is a broken link" if part.is_symlink() and not part.exists() else wrong
        except OSError as error:  # a loop of links, or a name that no file can have
            wrong = f"cannot be a folder ({cause(error)})"
        if wrong:
            raise typer.BadParameter(f"'{part}' {wrong}, so nothing can be written into it.")
    return path


def target_of(parameter: Any) -> Target | None:
    """What a parameter of a command writes; None for all that it reads. Typer wraps the callback that says so."""
    return getattr(getattr(parameter.callback, "__wrapped__", None), "writes", None)


@contextmanager
def careful(parameters: Sequence[Any], values: Mapping[str, Any], overwrite: bool) -> Iterator[None]:
    """Nothing that another command needs is replaced, and two commands on one folder work one after the other.

    Refused, unless `overwrite`: to write what the call reads; a file that a problem, a run or a cell of a study needs; a data set;
    a file of another kind; results into the folder of a problem. Refused in any case: two options that write the same file.
    """
    targets = [(_named(p), Path(values[p.name]), target) for p in parameters
               if (target := target_of(p)) is not None and values.get(p.name) is not None]
    reads = {path: name for p in parameters if target_of(p) is None for path, name in _reads(_named(p), values.get(p.name))}
    written: dict[Path, str] = {}
    for option, path, target in targets:
        for file in target.files(path):
            other = written.setdefault(_place(file), option)
            if other != option:
                raise InputError(f"{option} {path}: {other} writes {file}, too; give each a file of its own")
    if not overwrite:
        for option, path, target in targets:
            for file in target.files(path):
                reason = _needed(file, path, target, reads)
                if reason:
                    raise InputError(f"{option} {path}: {reason}; take another name, or --overwrite to replace it")
            if not target.endings and (path / _PROBLEM).is_file() and not (path / _RUN).is_file():
                raise InputError(f"{option} {path} is the folder of a problem; results need a folder of their own, or --overwrite")
    with ExitStack() as stack:
        for place in sorted({_place(path) for _, path, target in targets if target.locked}):
            if place.name:
                stack.enter_context(locked(place))
        if not overwrite:
            stack.enter_context(protecting({path: f"{name} names it" for path, name in reads.items()
                                            if path.name != _IMPORTED}))
        yield


_PROBLEM, _RUN, _IMPORTED = "problem.toml", "run.toml", "imported.h5"
_MADE = ("run.toml", "weights.pt", "last.pt", "range.json", "trust.json", "bands.json", "coefficients.json", "spectrum.json",
         "cell.json", "failed.json", "card.json")
"""Files of runs, cells and shipped weights that commands read again, as far as an option could write one of the kind."""


def _named(parameter: Any) -> str:
    name = str(parameter.opts[0])
    return name if name.startswith("-") else name.upper()


def _place(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links in a loop, said when it is written
        return path.absolute()


def _reads(option: str, value: Any) -> Iterator[tuple[Path, str]]:
    """Files that a value of a parameter names, and those that a problem folder needs."""
    from dgnet.projects.named_files import problem_files

    for text in value if isinstance(value, list | tuple) else (value,):
        if not isinstance(text, str | Path) or not str(text).strip() or "\0" in str(text):
            continue
        path = Path(text)
        try:
            if path.is_file():
                yield path, option
            elif (path / _PROBLEM).is_file():
                yield from ((file, option) for file in problem_files(path))
        except OSError:
            pass  # a name that no file can have, said when it is read


def _needed(file: Path, main: Path, target: Target, reads: Mapping[Path, str]) -> str:
    """Why a file must not be replaced; empty where it may."""
    from dgnet.projects.named_files import problem_files

    try:
        if not file.exists():
            return ""
        same = next(((path, name) for path, name in reads.items() if path.samefile(file)), None)
    except OSError:
        return ""
    if same is not None:
        return f"this command reads {same[0]} ({same[1]})"
    place = _place(file)
    for folder in place.parents:
        if (folder / _PROBLEM).is_file() and place in map(_place, problem_files(folder)):
            return f"the problem in {folder} needs {file}"
    if file != main and file.parent == main.parent and not main.exists():
        return f"{file} would be written beside it, and is there already"
    if file == main and file.suffix.lower() not in target.endings:
        return f"{file} is there, and does not end in {target.endings[0]}"
    if file == main and ".h5" in target.endings and not _rollout(file):
        return f"{file} is there, and is not a rollout"
    if place.name in _MADE:
        return f"{file} is there, and other commands read it"
    return ""


def _rollout(file: Path) -> bool:
    """Whether `dgnet rollout` or `simulate` has written this HDF5 file."""
    import h5py

    try:
        with h5py.File(file, "r") as content:
            return str(content["provenance"].attrs["truth"]) == "prediction"
    except (OSError, KeyError, RuntimeError, AttributeError):
        return False


# ---------------------------------------------------------------------- options of several commands

Adaptive = Annotated[float | None, typer.Option(
    help="Halve steps until the error of each is below this share of the range of each field; stored times stay as they are.",
    callback=positive)]
Source = Annotated[str | None, typer.Option(help="CSV table of moving spots (t, x, y[, z], radius, power[, spot]); a source in "
                                                 ".npy, .npz, .h5, .pvd, .vtu or .xdmf; or physics:NAME, a function f(x, t) in the "
                                                 "problem's physics.py.")]
Initial = Annotated[Path | None, typer.Option(help="Start, a .npy file of shape [nodes] or [nodes, fields]; the default is the "
                                                   "problem's offset.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps; the default is that of the source or trajectory, else of the "
                                                "problem (100 without data).", min=1)]
Out = Annotated[Path | None, typer.Option(help="HDF5 file for the states, written during the rollout.",
                                          callback=file_to_write(".h5", ".hdf5"))]
Vtk = Annotated[Path | None, typer.Option(help="FILE.pvd for ParaView, with a folder of .vtu beside it.",
                                          callback=file_to_write(".pvd", beside=vtk_files))]
Gif = Annotated[Path | None, typer.Option(help="Animation, FILE.gif.", callback=file_to_write(".gif"))]
Png = Annotated[Path | None, typer.Option(help="Snapshots, FILE.png.", callback=file_to_write(".png"))]
Every = Annotated[int, typer.Option(help="Write one state every N steps.", min=1)]
