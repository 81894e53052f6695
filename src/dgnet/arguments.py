"""Checks of arguments: those of public names are checked, and converted, by their annotations.

`checked` is put on functions, methods and classes. Numbers enter through `tensor` and `array` and nowhere else: integers become
double precision, nothing else is changed; half precision is refused, and complex numbers, texts, dates, True and lists of unequal
rows are no numbers (arrays of truth values are: 1 and 0). Lists and arrays are taken where a tensor is expected, paths as texts,
and numbers of NumPy as those of Python. What does not fit is an `InputError` that names the argument; which sizes and ranges go is
said by the function itself.
"""

from __future__ import annotations

import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, wraps
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike

from dgnet.errors import InputError

Tensor = torch.Tensor
T = TypeVar("T")

# what has another name for those who use it: classes, and functions by their folders
_NAMES = {"mesh.load": "load_mesh", "mesh.save": "save_mesh", "projects.load": "load_project",
          "prediction.predict_to_files": "rollout_run", "training.train_project": "train", "training.Run.open": "load_run",
          "reference.solve": "reference_solve"}
_LONG = 60  # letters of a value that are shown
_SEQUENCE, _MAPPING, _CALLABLE = (typing.get_origin(x) for x in (Sequence[int], Mapping[int, int], Callable[[int], int]))


# ---------------------------------------------------------------------- numbers


def array(value: object, what: str) -> np.ndarray:
    """Numbers as an array in single or double precision, or whole ones."""
    if isinstance(value, torch.Tensor):
        _ordinary(value, what)
        if value.requires_grad:
            raise InputError(f"{what} must be numbers without gradients, which end here: give {what}.detach()")
        value = value.cpu().resolve_conj().resolve_neg().numpy()
    try:
        found = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InputError(f"{what} must be numbers in rows of equal length, got {described(value)}") from error
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InputError(f"{what} must be numbers, but some of them are masked")
    if found.dtype.kind not in "fiub" or _truth(value):
        shown = found if found.ndim and found.dtype.kind != "O" else value
        raise InputError(f"{what} must be real numbers, got {described(shown)}")
    if found.dtype.kind == "f" and found.dtype.itemsize not in (4, 8):
        raise InputError(f"{what} must be in single or double precision, got {described(found)}")
    if any(step < 0 for step in found.strides):  # a view in reverse order, which torch does not take
        found = found.copy()
    return found.astype(found.dtype.newbyteorder("="), copy=False)


def tensor(value: object, what: str) -> Tensor:
    """Numbers as a tensor in single or double precision, with the gradients that they have."""
    if isinstance(value, list | tuple) and any(isinstance(x, torch.Tensor) for x in value):
        rows = [tensor(x, what) for x in value]
        if len({row.shape for row in rows}) > 1:
            raise InputError(f"{what} must be numbers in rows of equal length, got {described(value)}")
        kind = torch.float64 if any(row.dtype == torch.float64 for row in rows) else torch.float32
        return torch.stack([row.to(kind) for row in rows])
    if not isinstance(value, torch.Tensor):
        found = array(value, what)
        return torch.tensor(found if found.dtype.kind == "f" else _doubled(found, what))
    _ordinary(value, what)
    if value.dtype in (torch.float64, torch.float32):
        return value
    return torch.from_numpy(_doubled(value.cpu().numpy(), what)).to(value.device)


def _doubled(value: np.ndarray, what: str) -> np.ndarray:
    """Whole numbers in double precision, which holds those up to 2^53."""
    most = max(abs(int(value.max())), abs(int(value.min()))) if value.size else 0
    if most > 1 << 53:
        raise InputError(f"{what} must be numbers that double precision holds, got whole ones of up to {most}")
    return value.astype(np.float64)


def _ordinary(value: Tensor, what: str) -> None:
    """Real numbers one beside the other in memory, in a precision that computing is done with."""
    if value.dtype in (torch.float16, torch.bfloat16):
        raise InputError(f"{what} must be in single or double precision, got {described(value)}")
    if value.is_complex() or value.is_quantized:
        raise InputError(f"{what} must be real numbers, got {described(value)}")
    if value.layout != torch.strided or value.is_meta:
        raise InputError(f"{what} must be an ordinary tensor, not one {'on meta' if value.is_meta else f'of {value.layout}'}")


def finite(value: Tensor, what: str) -> Tensor:
    """The same numbers, if all of them are finite."""
    inner = value.detach()
    for axis, (size, stride) in enumerate(zip(inner.shape, inner.stride())):
        if stride == 0 and size > 1:  # expanded: the same numbers again and again
            inner = inner.narrow(axis, 0, 1)
    if not bool(torch.isfinite(inner.sum())):  # a sum may also be too large
        bad = ~torch.isfinite(inner)
        if bool(bad.any()):
            at = bad.nonzero()[0].tolist()
            raise InputError(f"{what} must be finite, got {float(inner[tuple(at)]):g}" + (f" at {at}" if at else ""))
    return value


def number(value: object, what: str) -> float:
    """A number, which need not be one: NaN stands for what is missing."""
    found = _single(value)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise InputError(f"{what} must be a number, got {described(value)}")
    try:
        return float(found)
    except OverflowError:
        raise InputError(f"{what} must be a number, got {described(value)}") from None


def returned(value: object, shape: Sequence[int], what: str) -> Tensor:
    """The result of a user's function: finite numbers of this shape; `what` names the function."""
    found = tensor(value, f"what {what} returns")
    if tuple(found.shape) != tuple(shape):
        raise InputError(f"{what} must return numbers {list(shape)}, got {list(found.shape)}")
    return finite(found, f"what {what} returns")


def _truth(value: object) -> bool:
    """True or False, or one of them in a list: no number, though NumPy takes it for one."""
    return isinstance(value, bool | np.bool_) or (isinstance(value, list | tuple) and any(_truth(x) for x in value))


def described(value: object) -> str:
    """A value in a few words."""
    if isinstance(value, torch.Tensor | np.ndarray):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{'a tensor' if isinstance(value, torch.Tensor) else 'an array'} {list(value.shape)} of {kind}"
    if inspect.isclass(value):
        return f"the class {_name(value)}"
    if value is None or isinstance(value, bool | int | float | complex | str | np.generic):
        text = repr(value.item() if isinstance(value, np.generic) else value)
        return text if len(text) <= _LONG else f"{text[:_LONG]}..."
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if inspect.isroutine(value):
        parameters = ""
        with suppress(ValueError, TypeError):
            parameters = str(inspect.signature(value))
        return f"the function {getattr(value, '__name__', '')}{parameters}"[:_LONG]
    return f"a {_name(type(value))}"


def _name(kind: type) -> str:
    return _NAMES.get(kind.__name__, kind.__name__)


# ---------------------------------------------------------------------- more than a type


@dataclass(frozen=True)
class Such:
    """In `Annotated`: of the values of a type those for which this holds; `words` for what is wanted."""

    words: str
    holds: Callable[[Any], bool]


def between(low: float, high: float = math.inf, words: str = "") -> Such:
    """Finite numbers in a range, the ends included."""
    return Such(words or f"a number from {low:g} to {high:g}", lambda x: low <= x <= high and math.isfinite(x))


def axes(names: str) -> Such:
    """Arrays with these axes, none of them empty."""
    count = names.count(",") + 1
    return Such(f"numbers [{names}]", lambda x: x.ndim == count and 0 not in x.shape)


def _is_device(name: Any) -> bool:
    try:
        kind = torch.device(name).type
    except (RuntimeError, ValueError):
        return False
    return kind == "cpu" or (kind == "cuda" and torch.cuda.is_available())


_LEAST, _MOST = 1e-150, 1e150  # squares of these are numbers, too
Finite = Annotated[float, between(-_MOST, _MOST, "a finite number (up to 1e150)")]
Positive = Annotated[float, between(_LEAST, _MOST, "a positive number (1e-150 to 1e150)")]
NotNegative = Annotated[float, between(0, _MOST, "a number that is not negative (up to 1e150)")]
Share = Annotated[float, between(0, 1)]
Count = Annotated[int, between(1, 1 << 53, "a whole number of at least 1")]
Whole = Annotated[int, between(0, 1 << 53, "a whole number of at least 0")]
Scalar = Finite | Annotated[Tensor, Such("a finite number (up to 1e150)", lambda x: x.dim() == 0 and bool(torch.isfinite(x)))]
Precision = Annotated[torch.dtype, Such("torch.float64 or torch.float32", lambda x: x in (torch.float64, torch.float32))]
_DEVICE = Such("cpu or, where there is one, cuda", _is_device)
Device = Annotated[str, _DEVICE]
AnyDevice = Annotated[str | torch.device, _DEVICE]


# ---------------------------------------------------------------------- kinds of arguments


class _Wrong(Exception):
    """A value that does not fit: where in the argument, what it must be, what it is."""

    def __init__(self, where: str, wanted: str, value: object) -> None:
        super().__init__(where, wanted, value)
        self.where, self.wanted, self.value = where, wanted, value

    def sentence(self) -> str:
        hint = ""
        if inspect.isclass(self.value):
            hint = f": give one, {_name(self.value)}(...)"
        elif callable(self.value) and "function" not in self.wanted and "number" in self.wanted:
            hint = ": give its values"
        return f"{self.where} must be {self.wanted}, got {described(self.value)}{hint}"


@dataclass(frozen=True)
class _Kind:
    """An annotation: in words, whether a value is of it already, and what a value becomes or `_Wrong`."""

    words: str
    fits: Callable[[Any], bool]
    take: Callable[[Any, str], Any]


def _only(words: str, fits: Callable[[Any], bool]) -> _Kind:
    """Values that fit, as they are."""
    def take(value: Any, where: str) -> Any:
        if not fits(value):
            raise _Wrong(where, words, value)
        return value

    return _Kind(words, fits, take)


def _single(value: Any) -> Any:
    """The number of Python in an array or tensor without axes; not where `tensor` refuses it or gradients would be lost."""
    if isinstance(value, np.generic | np.ndarray) and value.shape == ():
        return value if value.dtype.kind == "f" and value.dtype.itemsize not in (4, 8) else value.item()
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.requires_grad and not value.is_meta:
        return value if value.dtype in (torch.float16, torch.bfloat16) else value.item()
    return value


def _scalar(words: str, of: type | tuple[type, ...], make: Callable[[Any], Any]) -> _Kind:
    """Numbers or truth values of Python, NumPy and torch; NaN is none, and True is no number."""
    def fits(value: Any) -> bool:
        return isinstance(value, of) and (isinstance(value, bool) == (of is bool))

    def take(value: Any, where: str) -> Any:
        found = _single(value)
        if not fits(found) or found != found or (of is int and abs(found) >= 1 << 63):
            raise _Wrong(where, words, value)
        try:
            return make(found)
        except OverflowError:
            raise _Wrong(where, words, value) from None

    return _Kind(words, fits, take)


def _word(words: str, of: tuple[type, ...], make: Callable[[Any], Any]) -> _Kind:
    """Texts and paths without a null character."""
    def take(value: Any, where: str) -> Any:
        if not isinstance(value, (str, *of)) or "\0" in str(value) or (make is not str and not str(value)):
            raise _Wrong(where, words, value)
        try:
            os.fsencode(str(value))  # a file can hold it: escapes of names that are no UTF-8 do, other halves of characters do not
        except UnicodeEncodeError:
            raise _Wrong(where, words, value) from None
        return make(value)

    return _Kind(words, lambda value: isinstance(value, of), take)


def _numbers(words: str, of: tuple[type, ...], make: Callable[[object, str], Any]) -> _Kind:
    def take(value: Any, where: str) -> Any:
        if value is None or isinstance(value, str | Mapping | set | frozenset) or callable(value):
            raise _Wrong(where, "numbers", value)
        return make(value, where)

    return _Kind(words, lambda value: isinstance(value, of), take)


def _tensor_or_array(value: object, what: str) -> Tensor | np.ndarray:
    """Arrays stay arrays, all else becomes a tensor; both hold no whole numbers."""
    if not isinstance(value, np.ndarray):
        return tensor(value, what)
    found = array(value, what)
    return found if found.dtype.kind == "f" else _doubled(found, what)


_PATH = _word("a path", (os.PathLike,), lambda value: Path(os.fsdecode(value)))
_PLAIN: dict[object, _Kind] = {
    float: _scalar("a number", (float, int), float), int: _scalar("a whole number", int, int),
    bool: _scalar("True or False", bool, bool), str: _word("a text", (str,), str), Path: _PATH, os.PathLike: _PATH,
    torch.Tensor: _numbers("a tensor", (torch.Tensor,), tensor), ArrayLike: _numbers("numbers", (object,), array),
    np.ndarray: _numbers("an array", (np.ndarray,), array), type(None): _only("None", lambda value: value is None),
}
_NUMBERS = _numbers("numbers", (torch.Tensor, np.ndarray, list, tuple), _tensor_or_array)
_ANY = _only("anything", lambda value: True)


@cache
def _kind(annotation: Any) -> _Kind:
    """The kind that an annotation asks for."""
    annotation = type(None) if annotation is None else annotation
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in (Any, object) or isinstance(annotation, TypeVar):
        return _ANY
    if origin in (typing.Union, types.UnionType):
        if torch.Tensor in inner and np.ndarray in inner:  # lists are numbers, too
            others = [x for x in inner if typing.get_origin(x) is not _SEQUENCE and x not in (np.ndarray, torch.Tensor)]
            return _union([*map(_kind, others), _NUMBERS])
        return _union([_kind(member) for member in inner])
    if origin is typing.Annotated:
        return _such(_kind(inner[0]), [rule for rule in inner[1:] if isinstance(rule, Such)])
    if origin is typing.Literal:
        return _only(" or ".join(map(repr, inner)), lambda value: any(type(value) is type(one) and value == one for one in inner))
    if origin in _PLAIN:
        return _PLAIN[origin]
    if _CALLABLE in (origin, annotation):
        return _function(None if not inner or inner[0] is Ellipsis else len(inner[0]))
    if getattr(annotation, "_is_protocol", False):
        if "__call__" in vars(annotation):
            return _function(len(inspect.signature(annotation.__call__).parameters) - 1)
        names = [name for name in {**vars(annotation), **annotation.__annotations__} if not name.startswith("_")]
        return _only(f"a {_name(annotation)}, with {', '.join(names)}",
                     lambda value: not inspect.isclass(value) and all(hasattr(value, name) for name in names))
    if origin in (tuple, list, _SEQUENCE):
        if origin is tuple and inner[-1] is not Ellipsis:
            return _list([_kind(member) for member in inner], len(inner), tuple)
        return _list(repeat(_kind(inner[0])), None, tuple if origin is tuple else None, f" ({_kind(inner[0]).words} each)")
    if origin in (dict, _MAPPING):
        return _table(_kind(inner[0]), _kind(inner[1]))
    found = origin if isinstance(origin, type) else annotation
    if not isinstance(found, type):
        raise TypeError(f"no kind of argument: {annotation}")
    return _only(f"a {_name(found)}", lambda value: isinstance(value, found))


def _such(kind: _Kind, rules: Sequence[Such]) -> _Kind:
    """Values of a kind for which more holds."""
    def take(value: Any, where: str) -> Any:
        found = kind.take(value, where)
        for rule in rules:
            if not rule.holds(found):
                raise _Wrong(where, rule.words, value)
        return found

    return _Kind(" and ".join(rule.words for rule in rules) or kind.words, kind.fits, take)


def _union(members: Sequence[_Kind]) -> _Kind:
    """The first member that the value is of, else the first that it can be converted to."""
    words = list(dict.fromkeys(m.words for m in members))
    text = ", ".join(words[:-1]) + " or " * (len(words) > 1) + words[-1]

    def take(value: Any, where: str) -> Any:
        error: _Wrong | InputError | None = None
        for member in sorted(members, key=lambda m: not m.fits(value)):
            try:
                return member.take(value, where)
            except (_Wrong, InputError) as wrong:
                deep = isinstance(wrong, InputError) or wrong.where != where  # says more than that it is no member
                error = wrong if error is None and deep else error
        raise error if error is not None else _Wrong(where, text, value)

    return _Kind(text, lambda value: any(m.fits(value) for m in members), take)


def _function(count: int | None) -> _Kind:
    """A function that can be called with so many arguments."""
    def fits(value: Any) -> bool:
        if not callable(value) or count is None:
            return callable(value)
        try:
            signature = inspect.signature(value)
        except (ValueError, TypeError):  # of a function written in C
            return True
        try:
            return bool(signature.bind(*range(count)))
        except TypeError:
            return False

    return _only("a function" + ("" if count is None else f" of {count} argument{'s' * (count != 1)}"), fits)


def _list(kinds: Iterable[_Kind], count: int | None, make: Callable[[list[Any]], Any] | None, each: str = "") -> _Kind:
    """A list, tuple or array of `count` or any number of values; unless `make` gives it a form, one that fits stays as it is."""
    words = "a list" + (each if count is None else f" of {count}")

    def take(value: Any, where: str) -> Any:
        arrays = isinstance(value, np.ndarray | torch.Tensor) and value.ndim > 0
        if not arrays and (isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence)):
            raise _Wrong(where, words, value)
        members = list(value)
        if count is not None and len(members) != count:
            raise _Wrong(where, words, value)
        found = [kind.take(x, f"{where}[{k}]") for k, (kind, x) in enumerate(zip(kinds, members))]
        if make is not None:
            return make(found)
        return value if not arrays and all(a is b for a, b in zip(found, members)) else found

    return _Kind(words, lambda v: isinstance(v, list | tuple), take)


def _table(key: _Kind, inner: _Kind) -> _Kind:
    """A table of values of one kind by name."""
    def take(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _Wrong(where, "a dict", value)
        found = {key.take(k, f"a name in {where}"): inner.take(x, f"{where}[{k!r}]") for k, x in value.items()}
        return value if all(found[k] is x for k, x in value.items()) else found

    return _Kind("a dict", lambda v: isinstance(v, Mapping), take)


def converted(value: object, annotation: Any, where: str) -> Any:
    """The value as its annotation wants it, as an argument of a `checked` function would be; `where` names it in the error."""
    try:
        return _kind(annotation).take(value, where)
    except _Wrong as wrong:
        raise InputError(wrong.sentence()) from None


# ---------------------------------------------------------------------- the border


def ordinary() -> AbstractContextManager[object]:
    """Out of torch's inference mode, whose tensors cannot be used again later; without gradients there, as in it."""
    if not torch.is_inference_mode_enabled():
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


def checked(thing: T) -> T:
    """A function, method or class whose arguments are checked, and converted, by their annotations whenever it is called."""
    if inspect.isclass(thing):
        thing.__init__ = _guarded(thing.__init__, _name(thing))  # type: ignore[method-assign, misc]
        return thing
    name, folder = getattr(thing, "__qualname__", ""), thing.__module__.split(".")[1]
    return _guarded(thing, _NAMES.get(f"{folder}.{name}", name))  # type: ignore[return-value, arg-type]


def _guarded(function: Callable[..., Any], owner: str) -> Callable[..., Any]:
    """The function behind its border. Too many, too few and unknown arguments are Python's to refuse."""
    @cache
    def kinds() -> tuple[list[tuple[str, _Kind]], dict[str, _Kind]]:
        hints, parameters = typing.get_type_hints(function, include_extras=True), inspect.signature(function).parameters.values()
        named = {p.name: _kind(hints[p.name]) if p.name in hints else _ANY for p in parameters}
        return [(p.name, named[p.name]) for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)], named

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with ordinary():
            order, named = kinds()
            try:
                first = [kind.take(x, name) for (name, kind), x in zip(order, args)]
                by_name = {k: named[k].take(x, k) if k in named else x for k, x in kwargs.items()}
            except (_Wrong, InputError) as error:
                text = error.sentence() if isinstance(error, _Wrong) else error
                raise InputError(f"{owner}: {text}") from None
            return function(*first, *args[len(first):], **by_name)

    return guarded
