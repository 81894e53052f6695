"""Jobs in processes that can be killed: forked from a server that has imported everything once, so that each start is cheap."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["dgnet.cli", "dgnet.prediction.to_files", "dgnet.report.page", "dgnet_paper.study.pretrained",
                                "dgnet_paper.study.evidence", "dgnet.projects", "dgnet.projects.check",
                                "dgnet_paper.scenarios.generate", "dgnet.training.own", "torch._dynamo", "skfem", "meshio",
                                "dgnet.cli.design", "dgnet.cli.follow", "dgnet.cli.problems", "dgnet.cli.runs", "dgnet.cli.sensors",
                                "dgnet.designs.design", "dgnet.export", "dgnet.following.files", "dgnet.inverse.files",
                                "dgnet.report.designed", "dgnet.report.followed", "dgnet.report.recovered", "dgnet.trust",
                                "rich.progress", "rich.table",
                                "matplotlib.pyplot", "matplotlib.backends.backend_agg", "pytest", "tests.cli.forked",
                                "tests.attacks.harness", "tests.attacks.server"])


def _single(job: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    job(*arguments)


def start(job: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = CONTEXT.Process(target=_single, args=(job, arguments))
    process.start()
    return process


def finish(job: Callable[..., None], *arguments: Any) -> float:
    """Runs a job to its end; returns its seconds."""
    begin = time.perf_counter()
    process = start(job, *arguments)
    process.join(300)
    assert process.exitcode == 0, f"the job ended with {process.exitcode}"
    return time.perf_counter() - begin


def kill(job: Callable[..., None], *arguments: Any, after: float) -> bool:
    """Starts a job and sends it SIGKILL; False if it was over before."""
    process = start(job, *arguments)
    process.join(after)
    if process.exitcode is None and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL), f"the job ended with {process.exitcode}"
    return process.exitcode != 0
