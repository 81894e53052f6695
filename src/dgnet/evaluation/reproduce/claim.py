"""Who works on what: a claim is a locked file, and the system drops the lock when its process ends, however it ends.

Processes on one machine, or on a shared file system that knows locks, can so work through the same cells at once. The file
says who holds it; it stays when the lock goes, since removing it would let two processes lock two files of one name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType

from dgnet.errors import InputError


class Claim:
    """A lock that is held until `release`, the end of a `with`, or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, path: Path) -> Claim | None:
        """The claim, or None while a living process has it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise InputError(f"{path} cannot be locked ({error.strerror}); choose a folder on another file system") from error
        note = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)
        return cls(descriptor)

    def release(self) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def holder(path: Path) -> str:
    """Who holds a claim, in words; empty if nobody does."""
    if not path.exists():
        return ""
    claim = Claim.take(path) if os.access(path, os.W_OK) else None
    if claim is not None:
        claim.release()
        return ""
    try:
        note = json.loads(path.read_text())
        return f"process {note['pid']} on {note['host']} since {note['since']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
