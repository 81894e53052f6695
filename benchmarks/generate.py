"""Time that the generation of every data set takes, flow included."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from dgnet.progress import Report
from dgnet_paper.scenarios import get, names
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.study.timing import hardware


def run(out: Path = Path("out/generate"), size: str = "small", truth: str = "converged", only: list[str] | None = None,
        device: str = "cpu", report: Report | None = None) -> dict[str, Any]:
    """Seconds and MB of the data sets of all scenarios, or of some."""
    for name in only or names():
        get(name, size).truth(truth)
    rows = []
    for name in only or names():
        folder = out / f"{name}-{size}-{truth}"
        shutil.rmtree(folder, ignore_errors=True)
        start = time.perf_counter()
        path = generate(get(name, size), folder, truth=truth, device=device, report=report)
        rows.append({"scenario": name, "size": size, "truth": truth, "device": device, "seconds": time.perf_counter() - start,
                     "megabytes": path.stat().st_size / 1e6})
        shutil.rmtree(folder)
    return {"benchmark": "generate", "hardware": hardware(device), "rows": rows}
