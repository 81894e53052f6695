"""The functions of a project's physics.py. The file is run only where a problem file names one of its functions.

A run brings along the values that functions of space and arrays had (`kept`), so that most runs need no code when they are opened.
Where one does, for a reaction or a value in time, its copy of physics.py is run only if the user has run the same text before.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.problems.conditions import TimeTable, knots_of
from dgnet.projects.named_files import PHYSICS

Tensor = torch.Tensor


class Physics:
    """physics.py of one folder, run at the first use and never from anywhere else.

    `kept` belongs to a folder that a run brings along: values that take the place of functions and files. Without it the folder is
    one that the user has named. `values` collects what functions of space and arrays gave; `text` is what was run.
    """

    def __init__(self, folder: Path, kept: Mapping[str, np.ndarray] | None = None) -> None:
        self.path, self.kept = folder / PHYSICS, kept
        self.values: dict[str, np.ndarray] = dict(kept or {})
        self.text: bytes | None = None
        self._module: ModuleType | None = None

    def stored(self, where: str) -> np.ndarray | None:
        """The values that a run brings along for a place in its problem file."""
        return None if self.kept is None else self.kept.get(_key(where))

    def remembered(self, where: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The values for a place in the problem file: what a run brings along, else what `make` gives, which is collected."""
        known = self.stored(where)
        if known is None:
            known = self.values[_key(where)] = make()
        return known

    def function(self, name: str, where: str) -> Callable[..., Any]:
        """The function as it stands in the file."""
        module = self._run(where)
        found = getattr(module, name, None)
        if not callable(found):
            known = [k for k, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
            raise InputError(f"{where} names the function '{name}', which {self.path} does not have"
                             + did_you_mean(name, known, "it has"))
        return found

    def _run(self, where: str) -> ModuleType:
        if self._module is not None:
            return self._module
        if not self.path.is_file():
            raise InputError(f"{where} names a function, but there is no {self.path}")
        if self.path.resolve().parent != self.path.parent.resolve():
            raise InputError(f"{self.path} points outside of its folder, so it is not run")
        try:
            text = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror}") from error
        digest = hashlib.sha256(text).hexdigest()
        if self.kept is None:
            trust(digest)
        elif not is_trusted(digest):
            raise InputError(f"{where} needs the code in {self.path} (SHA-256 {digest[:16]}...), which came with the run and which "
                             "you have not run before, so it is not run; name your own problem folder that holds the same file "
                             "with --problem")
        module = ModuleType("physics")
        module.__file__ = str(self.path)
        self.text = text
        try:
            exec(compile(text, str(self.path), "exec"), module.__dict__)
        except SyntaxError as error:
            raise InputError(f"{self.path}, line {error.lineno or 1}: {error.msg}") from error
        except (Exception, SystemExit) as error:
            raise InputError(self._said(error, "running it")) from error
        self._module = module
        return module

    def _said(self, error: BaseException, doing: str) -> str:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(self.path)]
        at = f", line {lines[-1]}" if lines else ""
        text = (str(error).splitlines() or [""])[0].rstrip(".")
        return f"{self.path}{at}: {doing} failed with {type(error).__name__}" + (f": {text}" if text else "")

    # ------------------------------------------------------------------ kinds of functions

    def of_space_time(self, name: str, where: str, *, trailing: tuple[int, ...] = ()) -> Callable[[Tensor, float], Tensor]:
        """f(x [n, d], t) -> [n, *trailing], checked at every call; a `TimeTable` as it is."""
        function = self.function(name, where)
        if isinstance(function, TimeTable) and not trailing:
            return function

        def call(x: Tensor, t: float) -> Tensor:
            return self._checked(function, name, (x, t), (len(x), *trailing))

        call.knots = knots_of(function)  # type: ignore[attr-defined]
        return call

    def of_space(self, name: str, where: str, x: Tensor, shapes: tuple[tuple[int, ...], ...]) -> Tensor:
        """f(x [n, d]) at given points, in one of the shapes, in double precision."""
        return torch.from_numpy(self.remembered(
            where, lambda: self._checked(self.function(name, where), name, (x,), *shapes).to(torch.float64).cpu().numpy()))

    def mask(self, name: str, where: str, x: np.ndarray) -> np.ndarray:
        """f(x [n, d]) -> true or false [n]."""
        value = self._called(self.function(name, where), name, (torch.tensor(x),))
        try:
            found = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{self.path}: {name}() must return true or false for every point") from error
        if found.shape != (len(x),) or found.dtype != bool:
            raise InputError(f"{self.path}: {name}() must return true or false for every point [{len(x)}], got "
                             f"{found.dtype} {list(found.shape)}")
        return found

    def reaction(self, name: str, where: str, fields: int) -> Callable[[Tensor], Tensor]:
        """r(u [..., F]) -> [..., F]; tried once, then used as it is."""
        function = self.function(name, where)
        trial = torch.linspace(-1.0, 1.0, 6 * fields).reshape(2, 3, fields)
        value = self._called(function, name, (trial,))
        if not isinstance(value, Tensor) or value.shape != trial.shape:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{self.path}: {name}() must return a tensor of the shape [..., {fields}] it is given, got {got} "
                             f"for {list(trial.shape)}")
        return function

    def takes_time(self, name: str, where: str) -> bool:
        """Whether a function has a second argument."""
        try:
            return len(inspect.signature(self.function(name, where)).parameters) > 1
        except (TypeError, ValueError):
            return False

    def _called(self, function: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return function(*arguments)
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(self._said(error, f"{name}()")) from error

    def _checked(self, function: Callable[..., Any], name: str, arguments: tuple[Any, ...], *shapes: tuple[int, ...]) -> Tensor:
        value = self._called(function, name, arguments)
        try:
            found = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{self.path}: {name}() must return numbers, got {type(value).__name__}") from error
        if found.dtype == torch.bool or found.is_complex():
            got = "true or false" if found.dtype == torch.bool else "complex ones"
            raise InputError(f"{self.path}: {name}() must return real numbers, got {got}")
        if tuple(found.shape) not in shapes:
            wanted = " or ".join(str(list(s)) for s in shapes)
            raise InputError(f"{self.path}: {name}() must return {wanted} numbers, got {list(found.shape)}")
        if not bool(torch.isfinite(found).all()):
            raise InputError(f"{self.path}: {name}() returned a number that is not finite")
        return found.to(arguments[0].device)


def _key(where: str) -> str:
    """The place within the problem file, whatever folder that is in."""
    return where.rsplit(": ", 1)[-1]


# ---------------------------------------------------------------------- which physics.py the user has run before


def trusted_file() -> Path:
    """$XDG_STATE_HOME/dgnet/trusted-physics, by default under ~/.local/state; $DGNET_TRUSTED names another file. It holds SHA-256
    sums, one a line."""
    named = os.environ.get("DGNET_TRUSTED")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "dgnet" / "trusted-physics"


def is_trusted(digest: str) -> bool:
    try:
        return digest in trusted_file().read_text().split()
    except (OSError, UnicodeDecodeError):
        return False


def trust(digest: str) -> None:
    """Remember it; where the file cannot be written, nothing is remembered and `--problem` stays the way to confirm."""
    if is_trusted(digest):
        return
    try:
        trusted_file().parent.mkdir(parents=True, exist_ok=True)
        with trusted_file().open("a") as file:
            file.write(digest + "\n")
    except OSError:
        pass
