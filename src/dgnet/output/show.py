"""Pictures of a data set: a strip of snapshots and an animation per field."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dgnet.data import Dataset
from dgnet.output.pictures import animation, strip
from dgnet.progress import Report


def show(path: Path, out: Path, *, trajectory: int = 0, snapshots: int = 5, frames: int = 40, gif: bool = True,
         progress: Report | None = None) -> list[Path]:
    """Draw one trajectory of a data set; returns the files written."""
    with Dataset(path) as data:
        mesh, states = data.mesh, data.read(trajectory, only=()).state
        time, fields = data.dt * np.arange(data.steps + 1), data.fields
    written = []
    for f, name in enumerate(fields):
        values = states[:, :, f]
        limits = robust_limits(values)
        stem = f"{path.stem}-{trajectory:02d}" + (f"-{name}" if len(fields) > 1 else "")
        rows = _spread(len(time), snapshots)
        written.append(out / f"{stem}.png")
        strip(written[-1], mesh, values[rows], [_title(time[k]) for k in rows], name, limits)
        if gif:
            rows = _spread(len(time), frames)
            written.append(out / f"{stem}.gif")

            def tell(done: int, name: str = stem, total: int = len(rows)) -> None:
                if progress is not None:
                    progress(name, done, total)

            animation(written[-1], mesh, values[rows], [_title(time[k]) for k in rows], name, limits, progress=tell)
    return written


def robust_limits(values: np.ndarray) -> tuple[float, float] | None:
    """Where a few nodes alone are extreme, leave them out of the colour scale; None lets the pictures choose."""
    low, high = np.quantile(values, [0.0005, 0.9995])
    if low < 0 < high and -low > 0.25 * high and high > -0.25 * low:
        low, high = -max(-low, high), max(-low, high)
    return (float(low), float(high)) if high > low else None


def _spread(count: int, wanted: int) -> list[int]:
    return sorted({round(k) for k in np.linspace(0, count - 1, min(count, max(2, wanted)))})


def _title(t: float) -> str:
    return f"t = {t:.3g}"
