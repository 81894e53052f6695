"""Honest clocks: warm-up, synchronised, medians."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch


def timed(action: Callable[[], object], device: str, repeats: int = 7, budget: float = 3.0) -> float:
    """Median seconds of an action after a warm-up, within about `budget` seconds."""
    samples: list[float] = []
    start = time.perf_counter()
    for k in range(repeats + 1):
        sync(device)
        begin = time.perf_counter()
        action()
        sync(device)
        if k or time.perf_counter() - begin > budget / 2:
            samples.append(time.perf_counter() - begin)
        if time.perf_counter() - start > budget and samples:
            break
    return median(samples)


def captured(action: Callable[[], object], repeats: int = 200) -> float:
    """Median seconds of an action replayed as a CUDA graph, timed by events over batches of ten replays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        action()
        action()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    for _ in range(10):
        graph.replay()
    samples = []
    for _ in range(repeats // 10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) / 1e4)
    return median(samples)


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads of {os.cpu_count()}"


def resident() -> int:
    """Bytes of memory this process holds now."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Peak:
    """The most memory held at once during a block, beyond what was held before it; None where it cannot be known."""

    bytes: int | None = None


@contextmanager
def peak(device: str) -> Iterator[Peak]:
    """On CUDA what torch allocated, on the CPU the resident size of the process (Linux)."""
    result = Peak()
    before: int | None
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield result
        torch.cuda.synchronize()
        result.bytes = torch.cuda.max_memory_allocated() - before
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = resident()
    except OSError:
        before = None
    yield result
    if before is not None:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        result.bytes = max(0, 1024 * int(status["VmHWM"].split()[0]) - before)
