"""Several processes that train one model (torchrun): they draw the same batches, and each takes a slice of them."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import distributed as dist
from torch import nn


def join_processes(device: str) -> bool:
    """Under torchrun, join the group of processes; True for the one that writes files."""
    if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1 and not dist.is_initialized():
        if device.startswith("cuda"):
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return rank() == 0


def wait_for_all() -> None:
    if world() > 1:
        dist.barrier()


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def agreed(value: float) -> float:
    """The first process's value, for all: clocks differ, and what they decide must not."""
    if world() == 1:
        return value
    shared = torch.tensor([value], dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.broadcast(shared, 0)
    return float(shared)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """The mean over all processes, in place; every parameter has a gradient."""
    if world() > 1:
        for p in parameters:
            assert p.grad is not None
            dist.all_reduce(p.grad)
            p.grad.div_(world())
