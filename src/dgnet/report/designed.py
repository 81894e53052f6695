"""Files of a design (`dgnet design`): the table of sources, targets and limits, pictures, fields for ParaView, a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dgnet.designs import Designed
from dgnet.files import write_json, write_text
from dgnet.mesh import Mesh, save
from dgnet.problems import SpotTable
from dgnet.report.figures import Band, chart, grid
from dgnet.report.pictures import scale_of
from dgnet.report.templates import write_page

_SHOWN = 12  # curves of targets in a picture, at most


def write(found: Designed, mesh: Mesh, field: str, unit: str, title: str, folder: Path) -> list[Path]:
    """sources.csv, design.json, histories.png, fields.png, field.vtu and design.html."""
    write_text(folder / "sources.csv", sources_csv(found.spots, mesh.dim))
    write_json(folder / "design.json", summary(found))
    _histories(found, field, folder / "histories.png")
    peak, last = found.states.max(0), found.states[-1]
    extremes = {f"highest {field}": peak, f"lowest {field}": found.states.min(0)}
    save(mesh, folder / "field.vtu", {f"{field} at the end": last, **extremes})
    norm, colours = scale_of(np.stack([peak, last]))
    ways = [values[:, :2] for values in found.spots.values]

    def mark(axis: Any, row: int, column: int) -> None:
        for k, way in enumerate(ways if mesh.dim == 2 else []):
            axis.plot(*way.T, "o-", color=f"C{k}", ms=3, lw=1.2, mec="white", mew=0.5)

    grid(folder / "fields.png", mesh, [Band([(field, np.stack([peak, last]))], norm, colours, field)],
         ["highest over time", f"at the end, t = {found.times[-1]:.4g}"], decorate=mark, width=3.4)
    mood, word = ("bad", "Limits broken") if not found.holds else (
        ("good", "Targets met, limits kept") if found.reached else ("even", "Limits kept, targets missed"))
    write_page(folder / "design.html", "design.html", title=f"{title}: design", heading=title, mood=mood, word=word, found=found,
               unit=unit, folder=folder, TARGETS=TARGETS, LIMITS=LIMITS, targets=target_rows(found), limits=limit_rows(found))
    return [folder / name for name in ("sources.csv", "design.json", "design.html", "histories.png", "fields.png", "field.vtu")]


def sources_csv(spots: SpotTable, dim: int) -> str:
    """A table that `--source` and problem.toml take."""
    lines = [",".join(["spot", "t", *"xyz"[:dim], "radius", "power"])]
    for name, times, values in zip(spots.names, spots.times, spots.values):
        lines += [",".join([name, *(f"{v:.9g}" for v in (t, *row))]) for t, row in zip(times, values)]
    return "\n".join(lines) + "\n"


def summary(found: Designed) -> dict[str, Any]:
    """As JSON: sources, targets and limits."""
    targets = [{"name": m.name, "met": m.share, "met_finer": m.finer, "error": m.error, "worst": m.worst, "times": m.times.tolist(),
                "wanted": m.wanted.tolist(), "got": m.got.tolist()} for m in found.met]
    limits = [{"what": m.what, "limit": m.limit, "reached": m.reached, "margin": m.margin, "where": m.where} for m in found.margins]
    sources = {name: {"t": times.tolist(), "place": values[:, :-2].tolist(), "radius": values[:, -2].tolist(),
                      "power": values[:, -1].tolist()}
               for name, times, values in zip(found.spots.names, found.spots.times, found.spots.values)}
    return {"reached": found.reached, "limits_hold": found.holds, "exact": found.exact, "rollouts": found.rollouts,
            "seconds": found.seconds, "notes": list(found.notes), "targets": targets, "limits": limits, "sources": sources}


def target_rows(found: Designed) -> list[list[str]]:
    """Name, error, largest error, share and share on the finer mesh of each target."""
    return [[m.name, f"{m.error:.3g}", f"{m.worst:.3g}", f"{m.share:.2%}", "–" if np.isnan(m.finer) else f"{m.finer:.2%}"]
            for m in found.met]


def limit_rows(found: Designed) -> list[list[str]]:
    """Name, limit, what comes nearest, margin and where of each limit."""
    return [[m.what, f"{m.limit:.6g}", f"{m.reached:.6g}", f"{m.margin:.4g}", m.where] for m in found.margins]


TARGETS = ["target", "rms error", "largest", "of what is asked for", "on the finer mesh"]
LIMITS = ["limit of", "limit", "reached", "margin", "where"]


def _histories(found: Designed, field: str, path: Path) -> None:
    """Powers over time, and the targets at points beside what they become."""
    points = [m for m in found.met if m.got.ndim == 1][:_SHOWN]
    with chart(path, 6.8, 4.6 if points else 2.6) as figure:
        axis = figure.add_subplot(2 if points else 1, 1, 1)
        for k, (name, times, values) in enumerate(zip(found.spots.names, found.spots.times, found.spots.values)):
            axis.plot(times, values[:, -1], "o-", ms=2.5, lw=1.4, color=f"C{k}", label=name)
        axis.set(title="power", xlim=(found.times[0], found.times[-1]))
        axis.legend(frameon=False, fontsize=8)
        if points:
            axis = figure.add_subplot(2, 1, 2)
            for k, m in enumerate(points):
                axis.plot(m.times, m.wanted, "--", color=f"C{k}", lw=1.0)
                axis.plot(m.times, m.got, "o-" if len(m.times) < 3 else "-", color=f"C{k}", lw=1.6, label=m.name)
            axis.set(title=f"{field} at the targets: dashed what is wanted", xlabel="time", xlim=(found.times[0], found.times[-1]))
            axis.legend(frameon=False, fontsize=8)
        for one in figure.axes:
            one.grid(alpha=0.25, linewidth=0.5)
