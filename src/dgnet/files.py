"""Files as every part of dgnet writes, reads and locks them.

A file appears under its name only when it is whole; until then it has a name of its own in the same folder, so that any number of
processes may write the same file and the last one leaves a complete one. What fails is said in one sentence (`InputError`).
"""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import logging
import math
import os
import re
import secrets
import socket
import tokenize
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, get_type_hints

from dgnet.errors import LARGEST, InputError, NoRoom

if TYPE_CHECKING:
    import numpy as np
    from filelock import FileLock

T = TypeVar("T")

_LOG = logging.getLogger("dgnet")  # says on stderr what it is given, unless the program that uses dgnet decides otherwise
_HOST = f"{zlib.crc32(socket.gethostname().encode()):08x}"
_NO_LOCKS = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSPC,
             errno.EDQUOT}
_POLL = 0.02  # seconds between two looks at a lock that another process has
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
_WORDS = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up", errno.EROFS: "the file system is read-only",
          errno.EFBIG: "the largest file size is reached", errno.EACCES: "permission denied", errno.EPERM: "not permitted",
          errno.EISDIR: "it is a folder", errno.ENOTDIR: "a part of the path is not a folder", errno.ENAMETOOLONG:
          "the name is too long", errno.EEXIST: "a part of the path is not a folder", errno.ELOOP: "symbolic links in a loop",
          errno.ENOENT: "no such file or folder"}


def cause(error: BaseException) -> str:
    """Why it failed, in words: of the operating system where it said so, else the error's first line."""
    if isinstance(error, OSError) and error.errno in _WORDS:
        return _WORDS[error.errno]
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def unwritable(path: Path, error: BaseException) -> InputError:
    """The sentence about a file that cannot be written."""
    kind = NoRoom if isinstance(error, OSError) and error.errno in _FULL else InputError
    return kind(f"cannot write {path}: {cause(error)}")


# ---------------------------------------------------------------------- words

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def visible(text: str, but: str = "") -> str:
    """The text with control characters written as escapes, except those in `but`: they would end a line or steer a terminal."""
    return _CONTROL.sub(lambda c: c[0] if c[0] in but else repr(c[0])[1:-1], text)


def toml_text(text: str) -> str:
    """A text as TOML writes it, in quotes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"the name {text!a} is not text in UTF-8, so that no file can hold it: rename it") from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def remark(text: str) -> None:
    """A line on stderr, unless the program that uses dgnet decides otherwise: something that a person should know."""
    _LOG.warning(visible(text))


# ---------------------------------------------------------------------- writing


def unfinished(path: Path) -> Path:
    """A name for the unfinished PATH in the same folder: of this process alone, hidden, with the same suffix.

    What processes of this machine that live no more left of the same PATH is removed.
    """
    start = f".{path.name[:24]}.{zlib.crc32(path.name.encode(errors='surrogateescape')):08x}.{_HOST}-"
    try:
        left = [entry for entry in os.scandir(path.parent) if entry.name.startswith(start)]
    except OSError:
        left = []
    for entry in left:
        pid = entry.name[len(start):].split("-")[0]
        if pid.isdecimal() and not _lives(int(pid)):
            discard(Path(entry.path))
    return path.with_name(f"{start}{os.getpid()}-{secrets.token_hex(4)}.part{path.suffix if len(path.suffix) < 12 else ''}")


def discard(path: Path) -> None:
    """Remove a file or a folder, if it is there and can be removed; never what a symbolic link points to."""
    import shutil

    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        pass


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # another user's
    return True


_PROTECTED: dict[tuple[int, int], str] = {}  # files by device and number, and why they must stay


@contextmanager
def protecting(paths: Mapping[Path, str]) -> Iterator[None]:
    """Within the block, `writing` refuses to replace these files, with the reason."""
    found = {(stat.st_dev, stat.st_ino): why for path, why in paths.items() if (stat := _stat(path)) is not None}
    before = dict(_PROTECTED)
    _PROTECTED.update(found)
    try:
        yield
    finally:
        _PROTECTED.clear()
        _PROTECTED.update(before)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Gives a path to write to; after the block its file becomes PATH (0666 less umask, or the permissions that PATH had).

    If the block or the disk fails, nothing is left behind and PATH is what it was. The folder is made where it is missing.
    """
    path = Path(path)
    part: Path | None = None
    if "\0" in str(path):
        raise InputError(f"cannot write {str(path)!r}: the name holds a null character")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if path.exists() and not path.is_file():
            raise InputError(f"cannot write {path}: it is a device or a pipe, not a file")
        there = _stat(path)
        if there is not None and (there.st_dev, there.st_ino) in _PROTECTED:
            why = _PROTECTED[there.st_dev, there.st_ino]
            raise InputError(f"cannot write {path}: {why}, and this command reads it; write elsewhere, or --overwrite")
        path.parent.mkdir(parents=True, exist_ok=True)
        part = unfinished(path)
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield part
        descriptor = os.open(part, os.O_RDWR)
        try:
            os.fsync(descriptor)  # a full or broken disk may say so only now
            if path.exists():
                os.fchmod(descriptor, path.stat().st_mode & 0o777)
        finally:
            os.close(descriptor)
        os.replace(part, path)
    except OSError as error:
        if error.filename is not None and os.fspath(error.filename) not in {str(part), str(path), str(path.parent)}:
            raise  # about another file, which its message names
        raise unwritable(path, error) from error
    finally:
        if part is not None:
            discard(part)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    with writing(path) as part:
        part.write_bytes(data)


def write_text(path: Path, text: str) -> None:
    """In UTF-8."""
    write_bytes(path, text.encode(errors="surrogateescape"))


def strict(value: Any) -> Any:
    """The same for strict JSON: numbers that are not finite become None, tuples lists, NumPy's numbers and paths plain ones."""
    if isinstance(value, Mapping):
        return {k: strict(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if type(value).__module__ == "numpy":
        return strict(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, a line to each entry. What JSON cannot hold is refused."""
    try:
        text = json.dumps(strict(value), indent=1, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise unwritable(path, error) from error
    write_text(path, text + "\n")


# ---------------------------------------------------------------------- HDF5


class _Patient:
    """A file for HDF5, which must not see a write fail: it would crash when it closes. The first error is kept for later."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.error: OSError | None = None
        self.at = self.end = 0  # place and length of the file as HDF5 knows them

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset if whence == 0 else self.end + offset if whence == 2 else self.at + offset
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int) -> bytes:
        """h5py takes nothing without this for a file, but calls `readinto`."""
        buffer = bytearray(size)
        self.readinto(buffer)
        return bytes(buffer)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                write_at(self.file, view, self.at)
            except OSError as error:
                self.error = error
        self.at += len(view)
        self.end = max(self.end, self.at)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self.error is None:
            self.file.seek(self.at)
            count = self.file.readinto(view)  # type: ignore[attr-defined]
        else:
            count = 0
        view[count:] = bytes(len(view) - count)
        self.at += len(view)
        return len(view)

    def truncate(self, size: int) -> int:
        if self.error is None:
            try:
                self.file.truncate(size)
            except OSError as error:
                self.error = error
        self.end = size
        return size

    def flush(self) -> None:
        pass  # written without a buffer


def write_at(file: BinaryIO, data: bytes | memoryview, at: int) -> None:
    """All of it: a disk that runs full may take a part and fail at the rest."""
    view = memoryview(data)
    while len(view):
        done = os.pwrite(file.fileno(), view, at)
        view, at = view[done:], at + done


@contextmanager
def writing_hdf5(path: Path, libver: tuple[str, str] | None = None) -> Iterator[Any]:
    """An open `h5py.File` that becomes PATH after the block, as with `writing`. A full disk is an InputError, never a crash."""
    import h5py

    with writing(path) as part, part.open("r+b", buffering=0) as raw:
        patient = _Patient(raw)  # type: ignore[arg-type]
        try:
            with h5py.File(patient, "w", libver=libver) as file:
                yield file
        except Exception as error:
            raise (patient.error or error) from None
        if patient.error is not None:
            raise patient.error


# ---------------------------------------------------------------------- reading


def plain(path: Path) -> Path:
    """The path, unless something else than a file or a folder is there: reading a pipe would wait for ever."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"cannot read {path}: it is a device or a pipe, not a file")
    return path


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A text in UTF-8, without null characters; with "utf-8-sig", a mark at its start is left out."""
    try:
        text = plain(Path(path)).read_text(encoding=encoding)
        if "\0" in text:
            raise InputError(f"{path} is not text: it holds a null character")
        return text
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8") from error
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {cause(error)}") from error


def read_array(path: Path, shapes: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Finite numbers of one of these shapes from a .npy file."""
    import numpy as np

    try:
        value = np.load(plain(path), allow_pickle=False)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except DAMAGED as error:
        raise InputError(f"{path} is not an array of numbers (.npy)") from error
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or value.shape not in shapes:
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else "an archive"
        raise InputError(f"{path} must hold numbers {' or '.join(str(list(s)) for s in shapes)}, got {got}")
    if not np.isfinite(value).all():
        raise InputError(f"{path} is not finite at index {np.argwhere(~np.isfinite(value))[0].tolist()}")
    if np.abs(value).max(initial=0.0) > LARGEST:
        raise InputError(f"{path} holds numbers beyond what can be computed with ({LARGEST:g})")
    return value


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz file of numbers and texts, and a checksum of them."""
    import numpy as np

    with writing(path) as part, part.open("wb") as file:
        np.savez(file, checksum=np.array(_checksum(arrays)), **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path, what: str) -> dict[str, np.ndarray]:
    """Arrays that `write_arrays` wrote: whole, and without code. `what` it should hold, in words."""
    with arrays_of(path, what) as archive:
        found = {name: archive[name] for name in archive.files}
        if str(found.pop("checksum")) != _checksum(found):
            raise InputError(f"{path} does not hold {what}: its checksum is another")
        return found


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return found.hexdigest()


_PLENTY, _PACKED = 1 << 30, 50  # bytes that any archive may unpack to, and how many for each byte beyond that
DAMAGED = (OSError, ValueError, EOFError, KeyError, IndexError, AttributeError, TypeError, NotImplementedError, RuntimeError,
           SyntaxError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)
"""What reading a file of a wrong or broken format fails with."""


@contextmanager
def arrays_of(path: Path, what: str = "arrays (.npz)") -> Iterator[Any]:
    """An open .npz archive. One that is damaged, lacks an array, or unpacks to far more than it is, is said not to hold `what`."""
    import numpy as np

    try:
        with zipfile.ZipFile(plain(Path(path))) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
        if size > _PLENTY and size > _PACKED * path.stat().st_size:
            raise InputError(f"{path} has {path.stat().st_size / 1e6:.1f} MB and would unpack to {size / 1e9:.1f} GB, more than "
                             f"{_PACKED} times its size: it is not read")
        with np.load(path, allow_pickle=False) as archive:
            yield archive
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"{path}: the file is damaged, or does not hold {what}") from error


def read_json(path: Path, keys: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object in a JSON file. `keys` must be there, with values of these annotations (`typed`)."""
    text = read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {cause(error)}") from error
    return _checked(found, path, keys or {})


def read_toml(path: Path, keys: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The tables of a TOML file, `keys` as in `read_json`."""
    text = read_text(path)
    try:
        found = tomllib.loads(text)
        null = _null(found)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid TOML: {cause(error)}") from error
    if null is not None:
        raise InputError(f"{path}: {null!r} holds a null character, which no name or title may")
    return _checked(found, path, keys or {})


def _null(value: Any) -> str | None:
    """The first text with a null character, which other files could not hold."""
    if isinstance(value, str):
        return value[:80] if "\0" in value else None
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((found for found in map(_null, inner) if found is not None), None)


def _checked(found: Any, path: Path, keys: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InputError(f"{path} must hold an object with named entries, not {'null' if found is None else repr(found)[:60]}")
    return found | typed(found, keys, str(path)) if keys else found


def typed(values: Mapping[str, Any], kinds: Mapping[str, Any], where: str, optional: Iterable[str] = ()) -> dict[str, Any]:
    """The entries of a table that `kinds` names, each converted by its annotation; `where` is the file and the place in it.

    The one reader of tables: texts, numbers, whole numbers, truth values, lists and tables are never taken for each other, save
    that a whole number is a number. Entries that `kinds` does not name are left out.
    """
    from dgnet.arguments import converted

    for key in kinds:
        if key not in values and key not in optional:
            near = get_close_matches(key, [name for name in values if name not in kinds], 1)
            raise InputError(f"{where} lacks '{key}'" + (f"; is '{near[0]}' meant to be it?" if near else ""))
    return {key: converted(values[key], kind, f"{where}: '{key}'") for key, kind in kinds.items() if key in values}


def read_dataclass(kind: type[T], values: Mapping[str, Any], where: str, base: T | None = None) -> T:
    """A dataclass from a table of TOML or JSON, its fields converted by their annotations (`typed`).

    A key that is no field is refused with the nearest field. Fields that are left out are those of `base`, else their defaults.
    What the dataclass itself refuses is said with `where` before it.
    """
    hints, known = get_type_hints(kind, include_extras=True), [f for f in fields(kind) if f.init]  # type: ignore[arg-type]
    names = [f.name for f in known]
    for key in values:
        if key not in names:
            raise InputError(f"{where}: unknown key '{key}'" + did_you_mean(key, names))
    free = [f.name for f in known if base is not None or f.default is not MISSING or f.default_factory is not MISSING]
    found = typed(values, {name: hints[name] for name in names}, where, free)
    try:
        return kind(**found) if base is None else replace(base, **found)  # type: ignore[type-var]
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def read_csv(path: Path, required: list[str], optional: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with their line numbers; the header is checked."""
    reader = csv.reader(read_text(path, "utf-8-sig").splitlines())
    try:
        lines = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error
    if not lines:
        raise InputError(f"{path} is empty")
    header = [name.strip().lower() for name in lines[0][1]]
    known = [*required, *optional]
    for name in header:
        if name not in known:
            raise InputError(f"{path}: unknown column '{name}'" + did_you_mean(name, known))
    for name in known:
        if header.count(name) > 1 or (name in required and name not in header):
            raise InputError(f"{path} {'lacks the' if name not in header else 'has twice the'} column '{name}'")
    for line, cells in lines[1:]:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise InputError(f"{path}, line {line}: {len(cells)} cells under {len(header)} columns")
        yield line, {name: cell.strip() for name, cell in zip(header, cells)}


def csv_number(text: str, path: Path, line: int, column: str) -> float:
    """A finite number in a cell, no larger than what can be computed with."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}, line {line}: '{text}' in column '{column}' is not a finite number")
    if abs(value) > LARGEST or (column == "radius" and 0 < value < 1 / LARGEST):
        raise InputError(f"{path}, line {line}: '{text}' in column '{column}' is beyond what can be computed with ({LARGEST:g})")
    return value


def did_you_mean(name: str, known: Iterable[str], has: str = "known") -> str:
    """How a sentence about an unknown name ends: "; did you mean 'x'?" or, if none is near, " (known: x, y)"."""
    names = list(dict.fromkeys(known))
    near = get_close_matches(name, names, 1)
    return f"; did you mean '{near[0]}'?" if near else f" ({has}: {', '.join(names) or 'none'})"


# ---------------------------------------------------------------------- locks


class Lock:
    """PATH, locked by this process until `release`; the kernel drops the lock when the process ends, however it ends.

    The file says who holds it and goes with the lock. Where locks cannot be had (a read-only folder, some network file systems)
    the work goes on without one: `held` is then False, and atomic writes alone protect the result.
    """

    def __init__(self, path: Path, inner: FileLock | None) -> None:
        self.path, self._inner = path, inner

    @property
    def held(self) -> bool:
        return self._inner is not None

    @classmethod
    def take(cls, path: Path, wait: bool = False) -> Lock | None:
        """The lock, or None while a living process has it; with `wait`, once that one has let go."""
        from filelock import FileLock, Timeout

        note = json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()

        def sign(descriptor: int) -> None:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note, 0)

        inner = FileLock(path, fallback_to_soft=False, poll_interval=_POLL, on_acquired=sign)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            inner.acquire(timeout=-1 if wait else 0)
        except Timeout:
            return None
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return cls(path, None)
            raise InputError(f"cannot lock {path}: {cause(error)}") from error
        return cls(path, inner)

    def release(self) -> None:
        if self._inner is not None:
            discard(self.path)  # while it is locked: who waits for it sees that it is gone and makes a new one
            self._inner.release()
            self._inner = None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def holder(path: Path) -> str:
    """Who holds the lock file PATH, in words; empty if nobody does."""
    if not path.exists():
        return ""
    lock = Lock.take(path) if os.access(path, os.W_OK) else None
    if lock is not None:
        lock.release()
        return ""
    try:
        note = json.loads(path.read_text())
        return f"process {note['pid']} on {note['host']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"


@contextmanager
def locked(path: Path, waiting: Callable[[str], None] = remark) -> Iterator[Lock]:
    """One process at a time holds PATH, by the lock file .NAME.lock beside it. Who has to wait is told whom for: waiting(words).

    Look again for PATH inside: another process may have made it meanwhile. Not to be nested for one PATH.
    """
    beside = path.with_name(f".{path.name[:200]}.lock")
    lock = Lock.take(beside)
    if lock is None:
        waiting(f"waiting for {holder(beside) or 'another process'}, which works on {path}")
        lock = Lock.take(beside, wait=True)
    assert lock is not None
    with lock:
        yield lock


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """Gives a folder to fill that becomes FOLDER after the block, which is new or empty. If the block fails, nothing is left."""
    if not folder.name or "\0" in str(folder):
        raise InputError(f"'{visible(str(folder))}' cannot be the name of a new folder")
    part = unfinished(folder)
    with locked(folder):
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise InputError(f"{folder} exists and is not empty; choose another name")
            part.mkdir(parents=True)
            yield part
            os.replace(part, folder)
        except OSError as error:
            raise unwritable(folder, error) from error
        finally:
            discard(part)
