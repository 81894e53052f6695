"""Commands in processes of their own that run at once, on disks without room, or until a signal ends them."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tests.cli.forked import start

LIMIT = 120  # seconds until a process counts as hanging


def silently(log: Path, job: Callable[..., Any], *arguments: Any, most: int | None = None) -> None:
    """Runs a job with its words in a file; with `most`, no file may grow beyond so many bytes, as on a disk that runs full."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests were started in the background
    if most is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    job(*arguments)


def dgnet(*arguments: object) -> None:
    """The command line in this process."""
    from dgnet import cli

    sys.argv = ["dgnet", *map(str, arguments)]
    cli.main()


def limited(log: Path, most: int, *arguments: Any) -> None:
    silently(log, *arguments, most=most)


class Words:
    """Started commands: their exit codes and what they said."""

    def __init__(self, logs: Path, jobs: Sequence[tuple[Any, ...]], most: int | None = None) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = [logs / f"{k}.log" for k in range(len(jobs))]
        self.processes: list[BaseProcess] = [
            start(silently, log, *job) if most is None else start(limited, log, most, *job) for log, job in zip(self.logs, jobs)]

    def codes(self) -> list[int | None]:
        for process in self.processes:
            process.join(LIMIT)
            if process.exitcode is None:
                process.kill()
                process.join()
        return [p.exitcode for p in self.processes]

    def said(self, number: int = 0) -> str:
        log = self.logs[number]
        return log.read_text(errors="replace") if log.exists() else ""

    def says(self, number: int, words: str) -> bool:
        """Waits until a command has said these words; False if it ends without them."""
        late = time.monotonic() + LIMIT
        while words not in self.said(number) and self.processes[number].exitcode is None and time.monotonic() < late:
            self.processes[number].join(0.02)
        return words in self.said(number)


def together(logs: Path, *jobs: tuple[Any, ...]) -> Words:
    return Words(logs, jobs)


def alone(logs: Path, *job: Any, most: int | None = None) -> tuple[int | None, str]:
    """Exit code and words of one job."""
    words = Words(logs, [job], most)
    return words.codes()[0], words.said()


def signalled(logs: Path, number: int, ready: Callable[[], bool], *job: Any) -> tuple[int | None, float, str]:
    """Sends a signal once `ready`; exit code, seconds until the end, and the words."""
    words = Words(logs, [job])
    process = words.processes[0]
    late = time.monotonic() + LIMIT
    while not ready() and process.exitcode is None and time.monotonic() < late:
        process.join(0.005)
    begin = time.monotonic()
    if process.exitcode is None and process.pid is not None:
        os.kill(process.pid, number)
    code = words.codes()[0]
    return code, time.monotonic() - begin, words.said()


def left_over(folder: Path) -> list[str]:
    """Unfinished files anywhere below a folder. A lock file may stay: the kernel drops the lock of a process that ends."""
    def odd(name: str) -> bool:
        left = name.startswith(".") or name.endswith((".resume", ".parts")) or ".part" in name
        return left and not name.endswith(".lock")

    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if odd(p.name))
