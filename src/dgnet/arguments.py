"""What public names are given: every argument is checked, and converted, by its annotation.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
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
    """What a user's function has returned: finite numbers of this shape; `what` names the function."""
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


def _is(kind: type | tuple[type, ...], words: str) -> _Kind:
    """Values of a class, as they are."""
    def take(value: Any, where: str) -> Any:
        if not isinstance(value, kind):
            raise _Wrong(where, words, value)
        return value

    return _Kind(words, lambda value: isinstance(value, kind), take)


def _single(value: Any) -> Any:
    """The number of Python in an array or tensor without axes; not where `tensor` refuses it or gradients would be lost."""
    if isinstance(value, np.generic | np.ndarray) and value.shape == ():
        return value if value.dtype.kind == "f" and value.dtype.itemsize not in (4, 8) else value.item()
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.requires_grad and not value.is_meta:
        return value if value.dtype in (torch.float16, torch.bfloat16) else value.item()
    return value


def _take_float(value: Any, where: str) -> float:
    found = _single(value)
    if isinstance(found, bool) or not isinstance(found, int | float) or found != found:
        raise _Wrong(where, "a number", value)
    try:
        return float(found)
    except OverflowError:
        raise _Wrong(where, "a number", value) from None


def _take_int(value: Any, where: str) -> int:
    found = _single(value)
    if isinstance(found, bool) or not isinstance(found, int):
        raise _Wrong(where, "a whole number", value)
    if abs(found) >= 1 << 63:
        raise _Wrong(where, "a whole number of up to 18 digits", value)
    return found


def _take_bool(value: Any, where: str) -> bool:
    found = _single(value)
    if not isinstance(found, bool):
        raise _Wrong(where, "True or False", value)
    return found


def _take_path(value: Any, where: str) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value) or not _written(str(value)):
        raise _Wrong(where, "a path", value)
    return Path(os.fsdecode(value))


def _take_text(value: Any, where: str) -> str:
    if not isinstance(value, str) or "\0" in value or not _written(value):
        raise _Wrong(where, "a text", value)
    return str(value)


def _written(text: str) -> bool:
    """A file can hold it: names of files that are no UTF-8 have escapes of their own, other halves of characters have none."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _numbers(make: Callable[[object, str], Any], words: str) -> Callable[[Any, str], Any]:
    def take(value: Any, where: str) -> Any:
        if value is None or isinstance(value, str | Mapping | set | frozenset) or callable(value):
            raise _Wrong(where, words, value)
        return make(value, where)

    return take


_PLAIN: dict[object, _Kind] = {
    float: _Kind("a number", lambda v: isinstance(v, float | int) and not isinstance(v, bool), _take_float),
    int: _Kind("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool), _take_int),
    bool: _Kind("True or False", lambda v: isinstance(v, bool), _take_bool),
    str: _Kind("a text", lambda v: isinstance(v, str), _take_text),
    Path: _Kind("a path", lambda v: isinstance(v, os.PathLike), _take_path),
    os.PathLike: _Kind("a path", lambda v: isinstance(v, os.PathLike), _take_path),
    torch.Tensor: _Kind("a tensor", lambda v: isinstance(v, torch.Tensor), _numbers(tensor, "numbers")),
    ArrayLike: _Kind("numbers", lambda v: True, _numbers(array, "numbers")),
    np.ndarray: _Kind("an array", lambda v: isinstance(v, np.ndarray), _numbers(array, "numbers")),
    type(None): _is(type(None), "None"),
}
def _tensor_or_array(value: object, what: str) -> Tensor | np.ndarray:
    """Arrays stay arrays, all else becomes a tensor; both hold no whole numbers."""
    if not isinstance(value, np.ndarray):
        return tensor(value, what)
    found = array(value, what)
    return found if found.dtype.kind == "f" else _doubled(found, what)


_NUMBERS = _Kind("numbers", lambda v: isinstance(v, torch.Tensor | np.ndarray | list | tuple),
                 _numbers(_tensor_or_array, "numbers"))
_ANY = _Kind("anything", lambda value: True, lambda value, where: value)


@cache
def _kind(annotation: Any) -> _Kind:
    """What an annotation asks for."""
    if annotation is None:
        annotation = type(None)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return _ANY
    if origin in (typing.Union, types.UnionType):
        if torch.Tensor in inner and np.ndarray in inner:  # lists are numbers, too
            inner = (*(x for x in inner if typing.get_origin(x) is not _SEQUENCE and x is not np.ndarray and x is not torch.Tensor),
                     torch.Tensor, np.ndarray)
            return _union([_NUMBERS if x is np.ndarray else _kind(x) for x in inner if x is not torch.Tensor])
        return _union([_kind(member) for member in inner])
    if origin is typing.Annotated:
        return _such(_kind(inner[0]), [rule for rule in inner[1:] if isinstance(rule, Such)])
    if origin is typing.Literal:
        words = " or ".join(map(repr, inner))
        return _Kind(words, lambda v: isinstance(v, str | bool | int), partial(_take_literal, inner, words))
    if origin in _PLAIN:
        return _PLAIN[origin]
    if origin is _CALLABLE or annotation is _CALLABLE:
        return _function(None if not inner or inner[0] is Ellipsis else len(inner[0]))
    if getattr(annotation, "_is_protocol", False):
        if "__call__" not in vars(annotation):
            return _having(annotation)
        return _function(len(inspect.signature(annotation.__call__).parameters) - 1)
    if origin is tuple and (len(inner) != 2 or inner[1] is not Ellipsis):
        return _rows([_kind(member) for member in inner])
    if origin in (tuple, list, _SEQUENCE):
        return _many(_kind(inner[0]), tuple if origin is tuple else None)
    if origin in (dict, _MAPPING):
        return _table(_kind(inner[0]), _kind(inner[1]))
    found = origin if isinstance(origin, type) else annotation
    if not isinstance(found, type):
        raise TypeError(f"no kind of argument: {annotation}")
    return _is(found, f"a {_name(found)}")


def _take_literal(values: tuple[Any, ...], words: str, value: Any, where: str) -> Any:
    for one in values:
        if value is one or (type(value) is type(one) and value == one):
            return one
    raise _Wrong(where, words, value)


def _such(kind: _Kind, rules: Sequence[Such]) -> _Kind:
    """Values of a kind for which more holds."""
    words = " and ".join(rule.words for rule in rules) or kind.words

    def take(value: Any, where: str) -> Any:
        found = kind.take(value, where)
        for rule in rules:
            if not rule.holds(found):
                raise _Wrong(where, rule.words, value)
        return found

    return _Kind(words, kind.fits, take)


def _having(protocol: Any) -> _Kind:
    """Things with the attributes of a protocol."""
    names = [name for name in {**vars(protocol), **protocol.__annotations__} if not name.startswith("_")]
    words = f"a {_name(protocol)}, with {', '.join(names)}"

    def fits(value: Any) -> bool:
        return not inspect.isclass(value) and all(hasattr(value, name) for name in names)

    def take(value: Any, where: str) -> Any:
        if not fits(value):
            raise _Wrong(where, words, value)
        return value

    return _Kind(words, fits, take)


def _union(members: Sequence[_Kind]) -> _Kind:
    """The first member that the value is of, else the first that it can be converted to."""
    words = list(dict.fromkeys(m.words for m in members))
    text = ", ".join(words[:-1]) + " or " * (len(words) > 1) + words[-1]

    def take(value: Any, where: str) -> Any:
        error: _Wrong | InputError | None = None
        for member in (*(m for m in members if m.fits(value)), *(m for m in members if not m.fits(value))):
            try:
                return member.take(value, where)
            except (_Wrong, InputError) as wrong:
                deep = isinstance(wrong, InputError) or wrong.where != where  # says more than that it is no member
                error = wrong if error is None and deep else error
        raise error if error is not None else _Wrong(where, text, value)

    return _Kind(text, lambda value: any(m.fits(value) for m in members), take)


def _function(count: int | None) -> _Kind:
    """A function that can be called with so many arguments."""
    words = "a function" + ("" if count is None else f" of {count} argument{'s' * (count != 1)}")

    def take(value: Any, where: str) -> Any:
        if not callable(value):
            raise _Wrong(where, words, value)
        try:
            signature = inspect.signature(value)
        except (ValueError, TypeError):  # of a function written in C
            return value
        try:
            if count is not None:
                signature.bind(*range(count))
        except TypeError:
            raise _Wrong(where, words, value) from None
        return value

    return _Kind(words, callable, take)


def _elements(value: Any, where: str, words: str) -> list[Any]:
    """A list, tuple or array without its form: one of text or a table is none."""
    if isinstance(value, np.ndarray | torch.Tensor):
        if value.ndim == 0:
            raise _Wrong(where, words, value)
        return list(value)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise _Wrong(where, words, value)
    return list(value)


def _many(inner: _Kind, make: Callable[[list[Any]], Any] | None) -> _Kind:
    """A list of values of one kind; unless `make` asks for another form, one that fits stays the same object."""
    words = f"a list ({inner.words} each)"

    def take(value: Any, where: str) -> Any:
        given = _elements(value, where, words)
        found = [inner.take(x, f"{where}[{k}]") for k, x in enumerate(given)]
        if make is not None:
            return make(found)
        return value if isinstance(value, Sequence) and all(a is b for a, b in zip(found, given)) else found

    return _Kind(words, lambda v: isinstance(v, list | tuple), take)


def _rows(inner: Sequence[_Kind]) -> _Kind:
    """A tuple of values of these kinds."""
    words = f"a list of {len(inner)}"

    def take(value: Any, where: str) -> Any:
        given = _elements(value, where, words)
        if len(given) != len(inner):
            raise _Wrong(where, words, value)
        return tuple(kind.take(x, f"{where}[{k}]") for k, (kind, x) in enumerate(zip(inner, given)))

    return _Kind(words, lambda v: isinstance(v, list | tuple), take)


def _table(key: _Kind, inner: _Kind) -> _Kind:
    """A table of values of one kind by name."""
    words = "a dict"

    def take(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _Wrong(where, words, value)
        found = {key.take(k, f"a name in {where}"): inner.take(x, f"{where}[{k!r}]") for k, x in value.items()}
        return value if all(found[k] is x for k, x in value.items()) else found

    return _Kind(words, lambda v: isinstance(v, Mapping), take)


def converted(value: object, annotation: Any, where: str) -> Any:
    """The value as its annotation wants it, as an argument of a `checked` function would be; `where` names it in the error."""
    try:
        return _kind(annotation).take(value, where)
    except _Wrong as wrong:
        raise InputError(wrong.sentence()) from None


# ---------------------------------------------------------------------- the border


class _Border:
    """The kinds of a function's parameters, looked up when it is first called."""

    def __init__(self, function: Callable[..., Any], owner: str) -> None:
        self.function, self.owner = function, owner
        self._kinds: tuple[list[tuple[str, _Kind]], dict[str, _Kind]] | None = None

    @property
    def kinds(self) -> tuple[list[tuple[str, _Kind]], dict[str, _Kind]]:
        if self._kinds is None:
            hints = typing.get_type_hints(self.function, include_extras=True)
            named = {p.name: _kind(hints[p.name]) if p.name in hints else _ANY
                     for p in inspect.signature(self.function).parameters.values()}
            order = [(p.name, named[p.name]) for p in inspect.signature(self.function).parameters.values()
                     if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
            self._kinds = order, named
        return self._kinds

    def taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments as the function takes them. Too many, too few and unknown ones are Python's to refuse."""
        order, named = self.kinds
        try:
            first = [kind.take(x, name) for (name, kind), x in zip(order, args)]
            return [*first, *args[len(first):]], {k: named[k].take(x, k) if k in named else x for k, x in kwargs.items()}
        except _Wrong as wrong:
            raise InputError(f"{self.owner}: {wrong.sentence()}") from None
        except InputError as error:  # about numbers
            raise InputError(f"{self.owner}: {error}") from None


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
    border = _Border(function, owner)

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        with ordinary():
            first, named = border.taken(args, kwargs)
            return function(*first, **named)

    return guarded
