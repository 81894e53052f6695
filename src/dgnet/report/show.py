"""Pictures of a data set: a strip of snapshots and an animation per field."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgnet.data import Dataset
from dgnet.progress import Report
from dgnet.report.series import movie, snapshots


def show(path: Path, out: Path, *, trajectory: int = 0, columns: int = 5, frames: int = 40, gif: bool = True,
         progress: Report | None = None) -> list[Path]:
    """Draw one trajectory of a data set; returns the files written."""
    with Dataset(path) as data:
        mesh, fields, dt, states = data.mesh, data.fields, data.dt, data.read(trajectory, only=()).state
    written = []
    for f, name in enumerate(fields):
        stem = f"{path.stem}-{trajectory:02d}" + (f"-{name}" if len(fields) > 1 else "")
        written.append(out / f"{stem}.png")
        snapshots(written[-1], mesh, [name], dt, _spread(states[:, :, f:f + 1], columns), f"{path.stem}, trajectory {trajectory}")
        if gif:
            written.append(out / f"{stem}.gif")

            def tell(done: int, total: int, name: str = stem) -> None:
                if progress is not None:
                    progress(name, done, total)

            movie(written[-1], mesh, [name], dt, _spread(states[:, :, f:f + 1], frames), tell)
    return written


def _spread(states: np.ndarray, count: int) -> list[tuple[int, np.ndarray]]:
    """Steps and states [N, 1] of at most `count` times from the first to the last."""
    return [(k, states[k]) for k in sorted({round(k) for k in np.linspace(0, len(states) - 1, min(len(states), max(2, count)))})]
