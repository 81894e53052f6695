"""Pictures from finished cells alone. Each function returns whether it found something to draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from dgnet.report.figures import COLOURS as OURS
from dgnet.report.figures import ERROR_MAP, Band, error_norm, grid, save
from dgnet.report.pictures import STYLE, robust_limits
from dgnet_paper.scenarios import get
from dgnet_paper.study.experiment import FAMILIES, METHODS, Record, is_variant
from dgnet_paper.study.origin import learned
from dgnet_paper.study.results import Setting, Shelf
from dgnet_paper.study.rows import CLASSICAL, Row, label, ordered, solvers
from dgnet_paper.study.stored import sample
from dgnet_paper.study.targets import COUNTS
from dgnet_paper.study.tradeoff import whole

COLOURS = {**OURS, "dgnet-paper": "#e8862e", "dgnet-bounded": "#e9b44c", "pod": "#1b1b1b", "opinf": "#9e9e9e",
           "deeponet": "#6a4c93", "mgn": "#2a9d5c", "mp-pde": "#8ab17d", "beno": "#b08968", "phympgn": "#457b9d",
           "transolver": "#c77dff", "amg": "#7f5539", "singer": "#577590"}
_LARGEST = 100.0  # errors above this are drawn as arrows there
_DIVERGED = 30.0  # errors in time above this are cut off
_STYLE = {**STYLE, "font.size": 9, "axes.titlesize": 10}


def colour(row: str) -> str:
    return COLOURS.get(row) or COLOURS.get(row.removesuffix("-published"), "#555555")


def _marker(row: Row) -> str:
    """Diamonds solve the equation, squares need no training by gradients, circles are trained, stars without the reaction."""
    if row.unknown:
        return "*"
    return "D" if row.key.startswith("classical") else "s" if row.key in ("universal", "pod", "opinf") else "o"


@contextmanager
def _panels(path: Path, width: float, height: float, columns: int = 1, legend: bool = True) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure with axes side by side, written to PATH after the block; a legend beside the last one makes it high enough."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = [figure.add_subplot(1, columns, k + 1) for k in range(columns)]
        for axis in axes:
            axis.grid(alpha=0.25, which="both", linewidth=0.5)
            axis.spines[["top", "right"]].set_visible(False)
        yield figure, axes
        if legend:
            lines = len(axes[-1].get_legend_handles_labels()[1])
            figure.set_figheight(max(figure.get_figheight(), 0.19 * lines + 0.3))
            axes[-1].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        save(figure, path, 150)


# ---------------------------------------------------------------------- errors of all models


def overview(path: Path, shelf: Shelf, s: Setting, scenarios: Sequence[str]) -> bool:
    """RNE of every model on every scenario; rings are the paper's figures (its own data), crosses models that did not learn, arrows
    errors above 100."""
    rows = [row for row in ordered([Row(key) for key in CLASSICAL] + [row for name in scenarios for row in shelf.rows(name, s)])
            if not is_variant(row.key)]
    values = {(y, row): v for y, name in enumerate(scenarios) for row in rows
              if (v := shelf.value(name, row, s)) is not None and math.isfinite(v.mean)}
    if not values:
        return False
    with _panels(path, 7.6, 0.42 * len(scenarios) + 1.3) as (_, (axis,)):
        for (y, row), value in values.items():
            marker = ">" if value.mean > _LARGEST else _marker(row) if value.learned else "x"
            size = 11.0 if row.unknown else 8.0 if row.key == "dgnet" else 6.0
            axis.plot(min(value.mean, _LARGEST), y, marker, color=colour(row.key), ms=size, alpha=0.9, zorder=3,
                      mec="white" if row.unknown and value.learned else None, mew=0.6 if row.unknown else None)
        for row in rows:
            if any(drawn == row for _, drawn in values):
                axis.plot([], [], _marker(row), color=colour(row.key), ms=6, label=row.title)
        if s.size == "paper":
            for y, name in enumerate(scenarios):
                published = get(name, s.size).paper
                for row in rows:
                    if row.published in published and row.key not in FAMILIES:
                        axis.plot(published[row.published].rne, y + 0.22, "o", mfc="none", color=colour(row.key), ms=6, zorder=2)
            axis.plot([], [], "o", mfc="none", color="#555555", ms=6, label="published")
        axis.set_xscale("log")
        axis.set_yticks(range(len(scenarios)), list(scenarios))
        axis.invert_yaxis()
        axis.set_xlabel("RNE over the rollout of the test trajectories")
    return True


def curves(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Error in time of every model, measured from the offset; the first seed of each. Variants of an ablation have their own."""
    found: dict[str, tuple[list[float], np.ndarray]] = {}
    for row in (*solvers(s.truth), *shelf.rows(scenario, s)):
        records = shelf.found(scenario, row, s)
        if records and not row.unknown and not is_variant(row.key):
            errors = np.array(records[0]["curves"][row.key], dtype=float)  # None becomes nan
            found[row.key] = records[0]["curves"]["time"], np.where(errors > 0, errors, np.nan)
    if not found:
        return False
    with _panels(path, 6.2, 3.2) as (_, (axis,)):
        for key, (time, errors) in found.items():
            style = "--" if key.startswith("classical") else "-"
            axis.semilogy(time, errors, style, color=colour(key), lw=2.0 if key == "dgnet" else 1.3, label=label(key))
        if any((errors > _DIVERGED).any() for _, errors in found.values()):
            axis.set_ylim(top=_DIVERGED)
        axis.set(xlabel="time", ylabel="RNE from the offset" if any(get(scenario, s.size).offsets) else "RNE", title=scenario)
    return True


def learning(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Validation error during training, as a multiple of what the classical solver (with the mass of the model: lumped for the
    paper's DGNet) makes on the same states; the first seed of each model. A dot is where the weights come from."""
    lines: dict[Row, tuple[np.ndarray, np.ndarray]] = {}
    for row in shelf.rows(scenario, s):
        records = [] if is_variant(row.key) else shelf.found(scenario, row, s)
        points = [(h["seconds"], h["validation"]) for r in records[:1] for h in r.get("history", ()) if h["validation"] is not None]
        if len(points) > 2 and records[0].get("validation_classical"):  # what is fitted at once has no curve
            seconds, errors = np.array(points, dtype=float).T
            lines[row] = seconds, errors / records[0]["validation_classical"]
    if not lines:
        return False
    with _panels(path, 6.2, 3.2) as (_, (axis,)):
        for row, (seconds, ratio) in lines.items():
            axis.semilogy(seconds, ratio, color=colour(row.key), lw=2.0 if row.key == "dgnet" else 1.3,
                          ls=":" if row.unknown else "-",
                          label=row.title)
            best = int(ratio.argmin())
            axis.plot(seconds[best], ratio[best], "o", color=colour(row.key), ms=4)
        axis.axhline(1.0, color=colour("classical_consistent"), ls="--", lw=1, label="the classical solver")
        axis.set_ylim(top=min(axis.get_ylim()[1], _DIVERGED * max(float(ratio[0]) for _, ratio in lines.values())))
        axis.set(xlabel="seconds of training", ylabel="validation error / classical", title=scenario)
    return True


def fields(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Truth beside every model: the first test trajectory half-way and at the end, and the error at the end."""
    base = shelf.found(scenario, Row("classical_consistent"), s)
    truth = sample(base[0] if base else None)
    if not truth:
        return False
    shown: dict[str, np.ndarray] = {}
    for row in dict.fromkeys(["dgnet", *FAMILIES, *(row.key for row in shelf.rows(scenario, s) if not is_variant(row.key))]):
        records = shelf.found(scenario, Row(row), s)
        frames = sample(records[0]) if records else {}
        if row in frames:
            shown[label(row) if learned(records[0]) else f"{label(row)}, untrained"] = frames[row]
    shown[label("classical_consistent")] = truth["classical_consistent"]
    definition, true, last = get(scenario, s.size), truth["truth"][..., 0], len(truth["frames"]) - 1
    low, high = robust_limits(true)
    room = 10 * (high - low)

    def line(k: int) -> np.ndarray:
        rows = [true[k], *(np.nan_to_num(v[k, :, 0], nan=high, posinf=high, neginf=low) for v in shown.values())]
        return np.clip(np.stack(rows), low - room, high + room)

    errors = np.abs(line(last) - true[last])
    lines = [(f"t = {truth['frames'][k] * definition.dt:.3g}", line(k)) for k in sorted({max(0, last // 2), last})]
    bands = [Band(lines, Normalize(low, high), "RdBu_r" if low == -high else "inferno", definition.pde.fields[0], "both"),
             Band([("|error|", errors)], error_norm(*_comparable(errors)), ERROR_MAP, "one scale", "max")]
    grid(path, definition.mesh, bands, ["truth", *shown], "", width=1.7 if definition.mesh.dim == 2 else None, dpi=120)
    return True


def _comparable(errors: np.ndarray) -> list[np.ndarray]:
    """Errors that set the scale: a model that is ten times worse than the middle one may saturate."""
    each = np.array([float(np.sqrt(np.mean(e**2))) for e in errors[1:]])
    return [e for e, size in zip(errors[1:], each) if size <= 10 * np.median(each)] or list(errors[1:])


# ---------------------------------------------------------------------- one question each


def efficiency(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Error against the number of training trajectories."""
    top = get(scenario, s.size).train
    top = min(top, s.few) if s.few else top
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for row in (m for m in METHODS if METHODS[m].model not in ("", "classical")):
        for n in sorted({min(n, top) for n in COUNTS}):
            value = shelf.value(scenario, Row(row), s, "rne_from_offset", trajectories=0 if n == top else n)
            if value is not None and math.isfinite(value.mean):
                lines.setdefault(row, []).append((n, value.mean, value.spread))
    lines = {row: points for row, points in lines.items() if len(points) > 1}
    if not lines:
        return False
    with _panels(path, 5.6, 3.1) as (_, (axis,)):
        for row, points in lines.items():
            n, mean, spread = np.array(points).T
            axis.errorbar(n, mean, spread, fmt="o-", color=colour(row), ms=5, lw=1.5, label=label(row))
        for row in CLASSICAL:
            value = shelf.value(scenario, Row(row), s, "rne_from_offset")
            if value is not None:
                axis.axhline(value.mean, color=colour(row), ls="--", lw=1, label=label(row))
        axis.set(xscale="log", yscale="log", xlabel="training trajectories", ylabel="RNE from the offset", title=scenario)
        ticks = sorted({int(p[0]) for points in lines.values() for p in points})
        axis.set_xticks(ticks, [str(t) for t in ticks])
        axis.minorticks_off()
    return True


def ablation(path: Path, shelf: Shelf, s: Setting, scenarios: Sequence[str], rows: Sequence[str]) -> bool:
    """Bars per variant, a panel per scenario."""
    names = [name for name in scenarios if any(shelf.value(name, Row(row), s) for row in rows)]
    if not names:
        return False
    with _panels(path, 3.1 * len(names) + 0.6, 2.9, len(names), legend=False) as (_, axes):
        for axis, name in zip(axes, names):
            for k, row in enumerate(rows):
                v = shelf.value(name, Row(row), s, "rne_from_offset")
                if v is not None and v.learned and math.isfinite(v.mean):
                    axis.bar(k, v.mean, color="#e8862e" if row in FAMILIES else "#8a9ba8", zorder=3)
                else:
                    why = "not run" if v is None else "diverged" if v.learned else "did not learn"
                    axis.text(k, 0.03, why, rotation=90, ha="center", va="bottom", fontsize=8, transform=axis.get_xaxis_transform())
            axis.set(yscale="log", xlim=(-0.6, len(rows) - 0.4), title=name)
            axis.set_xticks(range(len(rows)), ["full" if row in FAMILIES else row[-1] for row in rows])
            best = shelf.value(name, Row("classical_lumped"), s, "rne_from_offset")
            if best is not None:
                axis.axhline(best.mean, color=colour("classical_lumped"), ls="--", lw=1, zorder=4)
        axes[0].set_ylabel("RNE from the offset")
    return True


def scaling(path: Path, record: Record) -> bool:
    """Milliseconds per step and megabytes against nodes."""
    rows = [r for r in record["result"]["rows"] if "not_run" not in r]
    if not rows:
        return False
    with _panels(path, 7.4, 3.0, 2) as (figure, axes):
        for model in dict.fromkeys(r["model"] for r in rows):
            own = [r for r in rows if r["model"] == model]
            style = {"color": colour(model), "lw": 1.5, "ms": 5, "label": label(model)}
            axes[0].loglog([r["nodes"] for r in own], [r["ms_per_step"] for r in own], "o-", **style)
            axes[1].loglog([r["nodes"] for r in own], [max(r["peak_bytes"] or 1, 1) / 1e6 for r in own], "o-", **style)
        axes[0].set(xlabel="nodes", ylabel="ms per step")
        axes[1].set(xlabel="nodes", ylabel="MB")
        figure.suptitle(record["hardware"], fontsize=9)
    return True


def tradeoff(path: Path, record: Record) -> bool:
    """Error against the cost of all test trajectories; the model is the star."""
    found = record["result"]
    rows = [r for r in found["rows"] if "not_run" not in r and r["error"] and math.isfinite(r["error"])]
    if not rows:
        return False
    shapes = {"P1": ("D", "#1f6f8b"), "P1, lumped": ("D", "#8a9ba8"), "P2": ("s", "#b5651d"), "reference": ("s", "#2a9d5c")}
    with _panels(path, 5.8, 3.3) as (_, (axis,)):
        for name in dict.fromkeys(_solver(r) for r in rows):
            points = np.array([(whole(r), r["error"]) for r in rows if _solver(r) == name])
            marker, shade = shapes.get(name, ("*", COLOURS["dgnet"]))
            star = marker == "*"
            axis.loglog(points[:, 0], points[:, 1], marker, color=shade, ms=14 if star else 6, zorder=3 if star else 2,
                        label=label(name))
        for model in [r for r in rows if _solver(r) not in shapes][:1]:
            axis.axhline(model["error"], color=COLOURS["dgnet"], lw=0.8, ls=":")
            axis.axvline(whole(model), color=COLOURS["dgnet"], lw=0.8, ls=":")
        for side in (axis.xaxis, axis.yaxis):  # less than two decades: more than the powers of ten, but not all
            side.set_minor_locator(LogLocator(subs=(2, 5)))
            side.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set(xlabel=f"seconds for {found['trajectories']} trajectories of {found['steps']} steps, set-up and sources included",
                 ylabel="RNE from the offset", title=f"{found['scenario']} on {found['hardware']}")
    return True


def _solver(row: dict[str, Any]) -> str:
    return str(row["kind"] if row["solver"] == "classical" else row["solver"])
