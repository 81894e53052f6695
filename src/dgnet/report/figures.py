"""Figures of an evaluation: error in time, single trajectories beside truth, and where on the mesh the error lives.

Errors of different solvers always share one scale, so that a paler panel is a smaller error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure

from dgnet.data import Corpus
from dgnet.files import writing
from dgnet.mesh import Mesh
from dgnet.models import title_of
from dgnet.progress import Report
from dgnet.report.pictures import STYLE, axes_of, draw_field, legible, panel_size, scale_of
from dgnet.scoring import Sums, rivals, rne
from dgnet.training import Run

Tensor = torch.Tensor

COLOURS = {"dgnet": "#d1495b", "classical_consistent": "#1f6f8b", "classical_lumped": "#8a9ba8", "classical_p2": "#3c8d40",
           "classical_refined": "#7a5c99", "universal": "#e09f3e", "universal_p2": "#b5651d"}
ERROR_MAP = "Reds"
_LABEL, _TITLE, _BAR = 0.32, 0.3, 0.85  # inches left, above and right of the panels


@dataclass(frozen=True, eq=False)
class Band:
    """Rows of panels on one colour scale: a label and frames [K, N] for each row."""

    rows: Sequence[tuple[str, np.ndarray]]
    norm: Normalize
    colours: str
    bar: str  # label of the colour bar
    extend: str = "neither"


def grid(path: Path, mesh: Mesh, bands: Sequence[Band], titles: Sequence[str], heading: str = "", *, width: float | None = None,
         dpi: int = 110, decorate: Callable[[Any, int, int], object] | None = None) -> None:
    """Panels in rows (quantities) and columns (times or models), one colour bar per band; 2D and 3D.

    `decorate(axis, row, column)` may draw on top of a panel.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = layout(mesh, [len(b.rows) for b in bands], len(titles), width, 0.24 if heading else 0.0)
        if heading:
            figure.text(0.5, 1 - 0.08 / figure.get_figheight(), heading, ha="center", va="top", fontsize=10)
        at = 0
        for band in bands:
            colours = matplotlib.colormaps[band.colours]
            for label, frames in band.rows:
                for k, frame in enumerate(frames):
                    draw_field(axes[at][k], mesh, frame, band.norm, colours)
                    if decorate is not None:
                        decorate(axes[at][k], at, k)
                side_label(figure, axes[at][0], label)
                at += 1
            colour_bar(figure, axes[at - len(band.rows)][-1], axes[at - 1][-1], band.norm, colours, band.bar, band.extend)
        for axis, title in zip(axes[0], titles):
            axis.set_title(title, pad=3)
        save(figure, path, dpi)


def layout(mesh: Mesh, bands: Sequence[int], columns: int, width: float | None, head: float, *, left: float = _LABEL,
           between: float = 0.12) -> tuple[Figure, list[list[Any]]]:
    """A figure with sum(bands) x columns panels, a little space `between` bands; lengths in inches."""
    w, h = panel_size(mesh, width)
    gap, rows = between, sum(bands)
    full = (left + columns * w + _BAR, head + _TITLE + rows * h + gap * (len(bands) - 1) + 0.05)
    figure = Figure(figsize=full)
    axes, top = [], full[1] - head - _TITLE
    starts = set(np.cumsum(bands)[:-1].tolist())
    for row in range(rows):
        top -= gap if row in starts else 0.0
        line = [axes_of(figure, (rows, columns, row * columns + k + 1), mesh) for k in range(columns)]
        for k, axis in enumerate(line):
            axis.set_position(((left + k * w) / full[0], (top - h) / full[1], 0.98 * w / full[0], 0.97 * h / full[1]))
        axes.append(line)
        top -= h
    return figure, axes


def side_label(figure: Figure, axis: Any, text: str) -> None:
    place = axis.get_position(original=True)
    figure.text(0.5 * _LABEL / figure.get_figwidth(), 0.5 * (place.y0 + place.y1), text, rotation=90, ha="center", va="center",
                fontsize=9)


def colour_bar(figure: Figure, upper: Any, lower: Any, norm: Normalize, colours: Colormap, label: str, extend: str) -> Any:
    """Beside the panels from `upper` to `lower`."""
    high, low = upper.get_position(original=True), lower.get_position(original=True)
    span = high.y1 - low.y0
    axis = figure.add_axes((high.x1 + 0.1 / figure.get_figwidth(), low.y0 + 0.1 * span, 0.11 / figure.get_figwidth(), 0.8 * span))
    figure.colorbar(matplotlib.cm.ScalarMappable(norm, colours), cax=axis, label=label, extend=extend, extendfrac=0.04)
    return axis


@contextmanager
def chart(path: Path, width: float, height: float, dpi: int = 120, letters: float = 9) -> Iterator[Figure]:
    """A figure of lines, in inches, which is saved at the end; `letters` in points."""
    with matplotlib.rc_context({**STYLE, "font.size": letters, "axes.titlesize": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        save(figure, path, dpi)


def save(figure: Figure, path: Path, dpi: int) -> None:
    """A PNG in full colour; it appears under its name only when it is whole."""
    with writing(path) as part:
        legible(figure).savefig(part, format="png", dpi=dpi)


def csv_rows(rows: Iterable[Iterable[float]]) -> list[str]:
    """Lines of a table; what is not a number is empty."""
    return [",".join("" if np.isnan(x) else f"{x:.8g}" for x in row) for row in rows]


# ---------------------------------------------------------------------- the figures of `dgnet evaluate`


def write(result: dict[str, Any], states: dict[str, Tensor], truth: Tensor, mesh: Mesh, dt: float, fields: Sequence[str],
          offset: Sequence[float], folder: Path, report: Report | None = None) -> list[Path]:
    """All figures of an evaluation: states and truth [B, T+1, N, F]. Returns the files."""
    scores, mine = result["scores"], result.get("model", "dgnet")
    rival = min(rivals(), key=lambda name: scores[name]["rne_from_offset"])
    each = [rne(states[mine][b:b + 1], truth[b:b + 1], offset) for b in range(len(truth))]
    chosen = {"best": int(np.argmin(each))}
    if len(each) > 1:
        chosen["worst"] = int(np.argmax(each))
    total = 1 + len(fields) * (len(chosen) + 1)
    written: list[Path] = []

    def done(path: Path) -> None:
        written.append(path)
        if report is not None:
            report("figures", len(written), total)

    head = f"{result['scenario']} ({result['size']}), {result['truth']} truth"
    error_in_time(path := folder / "error-in-time.png", states, truth, dt, offset, head)
    done(path)
    for f, name in enumerate(fields):
        tail = f"-{name}" if len(fields) > 1 else ""
        for word, b in chosen.items():
            own = {m: rne(s[b:b + 1], truth[b:b + 1], offset) for m, s in states.items()}
            heading = (f"{head}: {word} of {len(each)} {result['split']} trajectories, RNE {own[mine]:.2g} "
                       f"(classical {own[rival]:.2g})")
            trajectory(path := folder / f"{word}{tail}.png", mesh, truth[b, :, :, f].numpy(), states[mine][b, :, :, f].numpy(),
                       states[rival][b, :, :, f].numpy(), dt, name, heading, title_of(mine))
            done(path)
        error_map(path := folder / f"error-map{tail}.png", mesh, {m: s[..., f] for m, s in states.items()}, truth[..., f],
                  f"{head}: RMS error in {name} over time and trajectories")
        done(path)
    return written


def error_in_time(path: Path, states: dict[str, Tensor], truth: Tensor, dt: float, offset: Sequence[float], heading: str) -> None:
    """RNE of every stored time after the first, of all trajectories together and the range over single ones."""
    time = dt * np.arange(1, truth.shape[1])
    with chart(path, 6.4, 3.8, 150) as figure:
        axis = figure.add_subplot()
        for name, s in states.items():
            colour = COLOURS.get(name, "k")
            whole = Sums.of(s, truth, offset)
            single = np.stack([one.rne_over_time(offset=True)[1:].numpy() for one in whole.each()])
            axis.fill_between(time, single.min(axis=0), single.max(axis=0), color=colour, alpha=0.15, linewidth=0)
            axis.semilogy(time, whole.rne_over_time(offset=True)[1:].numpy(), color=colour, lw=1.8, label=title_of(name))
        axis.set(xlabel="time", ylabel="RNE from the offset" if any(offset) else "RNE", xlim=(0, float(time[-1])))
        axis.set_title(f"{heading}: {len(truth)} trajectories and their range")
        axis.grid(alpha=0.25, which="both", linewidth=0.5)
        axis.legend(frameon=False)


def trajectory(path: Path, mesh: Mesh, truth: np.ndarray, ours: np.ndarray, rival: np.ndarray, dt: float, name: str,
               heading: str, label: str = "DGNet", columns: int = 4) -> None:
    """Truth, prediction and both errors of one trajectory [T+1, N] at a few times."""
    rows = sorted({max(1, round(k)) for k in np.linspace(0, len(truth) - 1, columns + 1)[1:]})
    shown = truth[rows]
    norm, colours = scale_of(truth)
    errors = np.abs(ours[rows] - shown), np.abs(rival[rows] - shown)
    bands = [Band([("truth", shown), (label, ours[rows])], norm, colours, name),
             Band([(f"|error|, {label}", errors[0]), ("|error|, classical", errors[1])], error_norm(*errors), ERROR_MAP,
                  f"|error in {name}|", "max")]
    grid(path, mesh, bands, [f"t = {k * dt:.3g}" for k in rows], heading)


def error_map(path: Path, mesh: Mesh, states: dict[str, Tensor], truth: Tensor, heading: str) -> None:
    """RMS error of every node over trajectories and times, states and truth [B, T+1, N], one panel per model."""
    maps = {m: (s - truth).double().square().mean((0, 1)).sqrt().numpy() for m, s in states.items()}
    band = Band([("RMS error", np.stack(list(maps.values())))], error_norm(*maps.values()), ERROR_MAP, "RMS error", "max")
    titles = [f"{title_of(m)} ({np.sqrt(np.mean(v**2)):.2g})" for m, v in maps.items()]
    grid(path, mesh, [band], titles, heading, width=2.8 if mesh.dim == 2 else None)


def error_norm(*errors: np.ndarray) -> Normalize:
    """From zero to nearly the largest error of all: a few single nodes may saturate."""
    top = max(float(np.quantile(e, 0.995)) for e in errors)
    return Normalize(0.0, top if top > 0 and np.isfinite(top) else 1.0)


def draw(run: Run, result: dict[str, Any], states: dict[str, Tensor], data: Corpus, folder: Path,
         report: Report | None = None) -> list[Path]:
    """The figures of an evaluation in a folder: error in time, best and worst trajectory, error map."""
    s = run.case
    return write(result, states, data.state.cpu(), s.mesh, s.dt, s.pde.fields, s.offsets, folder, report)
