"""Pictures from finished cells alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
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
from dgnet_paper.study import archive
from dgnet_paper.study.experiment import FAMILIES, METHODS, is_variant
from dgnet_paper.study.origin import learned
from dgnet_paper.study.results import Record, Setting, Shelf, sample
from dgnet_paper.study.rows import CLASSICAL, Row, label, ordered, solvers
from dgnet_paper.study.targets import COUNTS, TARGETS
from dgnet_paper.study.tradeoff import whole

COLOURS = {**OURS, "dgnet-paper": "#e8862e", "dgnet-bounded": "#e9b44c", "pod": "#1b1b1b", "opinf": "#9e9e9e",
           "deeponet": "#6a4c93", "mgn": "#2a9d5c", "mp-pde": "#8ab17d", "beno": "#b08968", "phympgn": "#457b9d",
           "transolver": "#c77dff", "amg": "#7f5539", "singer": "#577590"}


_BEYOND = 100.0  # errors above this are drawn as arrows there


def _marker(row: Row) -> str:
    """Diamonds solve the equation, squares need no training by gradients, circles are trained, stars without the reaction."""
    if row.unknown:
        return "*"
    return "D" if row.key.startswith("classical") else "s" if row.key in ("universal", "pod", "opinf") else "o"


def _size(row: Row) -> float:
    """Of a marker, in points."""
    return 11.0 if row.unknown else 8.0 if row.key == "dgnet" else 6.0


def colour(row: str) -> str:
    return COLOURS.get(row) or COLOURS.get(row.removesuffix("-published"), "#555555")


def _axes(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, columns, k + 1) for k in range(columns)]
    for axis in axes:
        axis.grid(alpha=0.25, which="both", linewidth=0.5)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Figure, axis: Any) -> None:
    """Beside the axis; the figure becomes as high as its lines need."""
    lines = len(axis.get_legend_handles_labels()[1])
    figure.set_figheight(max(figure.get_figheight(), 0.19 * lines + 0.3))
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))


_STYLE = {**STYLE, "font.size": 9, "axes.titlesize": 10}


def overview(path: Path, shelf: Shelf, s: Setting, scenarios: Sequence[str]) -> bool:
    """RNE of every model on every scenario; rings are the paper's figures (its own data), crosses models that did not learn, arrows
    errors above 100."""
    rows = [row for row in ordered([Row(key) for key in CLASSICAL] + [row for name in scenarios for row in shelf.rows(name, s)])
            if not is_variant(row.key)]
    with matplotlib.rc_context(_STYLE):
        figure, (axis,) = _axes(7.6, 0.42 * len(scenarios) + 1.3)
        drawn = set()
        for y, name in enumerate(scenarios):
            published = get(name, s.size).paper
            for row in rows:
                value = shelf.value(name, row, s)
                if value is not None and math.isfinite(value.mean):
                    marker = ">" if value.mean > _BEYOND else _marker(row) if value.learned else "x"
                    axis.plot(min(value.mean, _BEYOND), y, marker, color=colour(row.key), ms=_size(row), alpha=0.9, zorder=3,
                              mec="white" if row.unknown and value.learned else None, mew=0.6 if row.unknown else None)
                    drawn.add(row)
                figure_ = published.get(row.published) if s.size == "paper" else None
                if figure_ is not None and row.key not in FAMILIES:
                    axis.plot(figure_.rne, y + 0.22, "o", mfc="none", color=colour(row.key), ms=6, zorder=2)
        if not drawn:
            return False
        for row in (row for row in rows if row in drawn):
            axis.plot([], [], _marker(row), color=colour(row.key), ms=6, label=row.title)
        if s.size == "paper":
            axis.plot([], [], "o", mfc="none", color="#555555", ms=6, label="published")
        axis.set_xscale("log")
        axis.set_yticks(range(len(scenarios)), list(scenarios))
        axis.invert_yaxis()
        axis.set_xlabel("RNE over the rollout of the test trajectories")
        _legend(figure, axis)
        save(figure, path, 150)
    return True


def curves(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Error in time of every model, measured from the offset; the first seed of each. Variants of an ablation have their own."""
    found: dict[str, tuple[list[float], list[float | None]]] = {}
    for one in (*solvers(s.truth), *shelf.rows(scenario, s)):
        records = shelf.found(scenario, one, s)
        if records and not one.unknown and not is_variant(one.key):
            found[one.key] = (records[0]["curves"]["time"], records[0]["curves"][one.key])
    if not found:
        return False
    with matplotlib.rc_context(_STYLE):
        figure, (axis,) = _axes(6.2, 3.2)
        for row, (time, values) in found.items():
            kept = np.array([math.nan if v is None else v for v in values], dtype=float)
            kept[kept <= 0] = math.nan
            style = "--" if row.startswith("classical") else "-"
            axis.semilogy(time, kept, style, color=colour(row), lw=2.0 if row == "dgnet" else 1.3, label=label(row))
        top = [v for _, values in found.values() for v in values if v]
        if top and max(top) > 30:
            axis.set_ylim(top=30)  # what lies above has diverged
        axis.set(xlabel="time", ylabel="RNE from the offset" if any(get(scenario, s.size).offsets) else "RNE", title=scenario)
        _legend(figure, axis)
        save(figure, path, 150)
    return True


def learning(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Validation error during training, as a multiple of what the classical solver (with the mass of the model: lumped for the
    paper's DGNet) makes on the same states; the first seed of each model. A dot is where the kept weights come from."""
    found = {row: records[0] for row in shelf.rows(scenario, s)
             if not is_variant(row.key) and (records := shelf.found(scenario, row, s))}
    lines: dict[Row, tuple[np.ndarray, np.ndarray]] = {}
    for row, record in found.items():
        told = [(h["seconds"], h["validation"]) for h in record.get("history", ()) if h["validation"] is not None]
        if len(told) > 2 and record.get("validation_classical"):  # what is fitted at once has no curve
            seconds, errors = np.array(told, dtype=float).T
            lines[row] = seconds, errors / record["validation_classical"]
    if not lines:
        return False
    with matplotlib.rc_context(_STYLE):
        figure, (axis,) = _axes(6.2, 3.2)
        for row, (seconds, ratio) in lines.items():
            style = {"color": colour(row.key), "lw": 2.0 if row.key == "dgnet" else 1.3, "ls": ":" if row.unknown else "-"}
            axis.semilogy(seconds, ratio, **style, label=row.title)
            best = int(ratio.argmin())
            axis.plot(seconds[best], ratio[best], "o", color=colour(row.key), ms=4)
        axis.axhline(1.0, color=colour("classical_consistent"), ls="--", lw=1, label="the classical solver")
        top = max(float(ratio[0]) for _, ratio in lines.values())
        axis.set_ylim(top=min(axis.get_ylim()[1], 30 * top))  # what lies above has diverged
        axis.set(xlabel="seconds of training", ylabel="validation error / classical", title=scenario)
        _legend(figure, axis)
        save(figure, path, 150)
    return True


def fields(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Truth beside every model: the first test trajectory half-way and at the end, and the error at the end."""
    base = shelf.found(scenario, Row("classical_consistent"), s)
    truth = sample(base[0] if base else None)
    if not truth:
        return False
    shown: dict[str, np.ndarray] = {}
    titles = {"classical_consistent": label("classical_consistent")}
    for row in ("dgnet", *FAMILIES, *(row.key for row in shelf.rows(scenario, s))):
        records = shelf.found(scenario, Row(row), s)
        kept = sample(records[0]) if records else {}
        if row in kept and row not in shown and not is_variant(row):
            shown[row] = kept[row]
            titles[row] = label(row) if learned(records[0]) else f"{label(row)}, untrained"
    shown["classical_consistent"] = truth["classical_consistent"]
    definition = get(scenario, s.size)
    frames, last = truth["frames"], len(truth["frames"]) - 1
    middle = max(0, last // 2)
    true = truth["truth"][..., 0]
    low, high = robust_limits(true)
    colours = "RdBu_r" if low == -high else "inferno"

    def line(k: int) -> np.ndarray:
        rows = [true[k], *(np.nan_to_num(v[k, :, 0], nan=high, posinf=high, neginf=low) for v in shown.values())]
        return np.clip(np.stack(rows), low - 10 * (high - low), high + 10 * (high - low))

    errors = np.abs(line(last) - true[last])
    name = definition.pde.fields[0]
    lines = [(f"t = {frames[k] * definition.dt:.3g}", line(k)) for k in sorted({middle, last})]
    bands = [Band(lines, Normalize(low, high), colours, name, "both"),
             Band([("|error|", errors)], error_norm(*_comparable(errors)), ERROR_MAP, "one scale", "max")]
    width = 1.7 if definition.mesh.dim == 2 else None
    grid(path, definition.mesh, bands, ["truth", *(titles[row] for row in shown)], "", width=width, dpi=120)
    return True


def _comparable(errors: np.ndarray) -> list[np.ndarray]:
    """Errors that set the scale: a model that is ten times worse than the middle one may saturate."""
    each = np.array([float(np.sqrt(np.mean(e**2))) for e in errors[1:]])
    return [e for e, size in zip(errors[1:], each) if size <= 10 * np.median(each)] or list(errors[1:])


def efficiency(path: Path, shelf: Shelf, s: Setting, scenario: str) -> bool:
    """Error against the number of training trajectories."""
    top = get(scenario, s.size).train
    top = min(top, s.few) if s.few else top
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for row, found in {m: METHODS[m] for m in METHODS}.items():
        if found.model in ("", "classical"):
            continue
        for n in sorted({min(n, top) for n in COUNTS}):
            value = shelf.value(scenario, Row(row), s, "rne_from_offset", trajectories=0 if n == top else n)
            if value is not None and math.isfinite(value.mean):
                lines.setdefault(row, []).append((n, value.mean, value.spread))
    lines = {row: points for row, points in lines.items() if len(points) > 1}
    if not lines:
        return False
    with matplotlib.rc_context(_STYLE):
        figure, (axis,) = _axes(5.6, 3.1)
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
        _legend(figure, axis)
        save(figure, path, 150)
    return True


def ablation(path: Path, shelf: Shelf, s: Setting, scenarios: Sequence[str], rows: Sequence[str]) -> bool:
    """Bars per variant, a panel per scenario."""
    kept = [name for name in scenarios if any(shelf.value(name, Row(row), s) for row in rows)]
    if not kept:
        return False
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes(3.1 * len(kept) + 0.6, 2.9, len(kept))
        for axis, name in zip(axes, kept):
            values = [shelf.value(name, Row(row), s, "rne_from_offset") for row in rows]
            tops = [v.mean if v is not None and v.learned and math.isfinite(v.mean) else math.nan for v in values]
            shades = ["#e8862e" if row in FAMILIES else "#8a9ba8" for row in rows]
            axis.bar(range(len(rows)), tops, color=shades, zorder=3)
            for k, v in enumerate(values):
                if v is None or not v.learned or not math.isfinite(v.mean):
                    why = "not run" if v is None else "diverged" if v.learned else "did not learn"
                    axis.text(k, 0.03, why, rotation=90, ha="center", va="bottom", fontsize=8,
                              transform=axis.get_xaxis_transform())
            axis.set_yscale("log")
            axis.set_xlim(-0.6, len(rows) - 0.4)
            axis.set_xticks(range(len(rows)), ["full" if row in FAMILIES else row[-1] for row in rows])
            best = shelf.value(name, Row("classical_lumped"), s, "rne_from_offset")
            if best is not None:
                axis.axhline(best.mean, color=colour("classical_lumped"), ls="--", lw=1, zorder=4)
            axis.set_title(name)
        axes[0].set_ylabel("RNE from the offset")
        save(figure, path, 150)
    return True


def scaling(path: Path, record: Record) -> bool:
    """Milliseconds per step and megabytes against nodes."""
    rows = [r for r in record["result"]["rows"] if "not_run" not in r]
    if not rows:
        return False
    with matplotlib.rc_context(_STYLE):
        figure, axes = _axes(7.4, 3.0, 2)
        for model in dict.fromkeys(r["model"] for r in rows):
            own = [r for r in rows if r["model"] == model]
            nodes = [r["nodes"] for r in own]
            style = {"color": colour(model), "lw": 1.5, "ms": 5, "label": label(model)}
            axes[0].loglog(nodes, [r["ms_per_step"] for r in own], "o-", **style)
            axes[1].loglog(nodes, [max(r["peak_bytes"] or 1, 1) / 1e6 for r in own], "o-", **style)
        axes[0].set(xlabel="nodes", ylabel="ms per step")
        axes[1].set(xlabel="nodes", ylabel="MB")
        axes[1].legend(frameon=False)
        figure.suptitle(record["hardware"], fontsize=9)
        save(figure, path, 150)
    return True


def tradeoff(path: Path, record: Record) -> bool:
    """Error against the cost of all test trajectories; the model is the star."""
    found = record["result"]
    rows = [r for r in found["rows"] if "not_run" not in r and r["error"] and math.isfinite(r["error"])]
    if not rows:
        return False
    own = {"P1": ("D", "#1f6f8b"), "P1, lumped": ("D", "#8a9ba8"), "P2": ("s", "#b5651d"), "reference": ("s", "#2a9d5c")}
    with matplotlib.rc_context(_STYLE):
        figure, (axis,) = _axes(5.8, 3.3)
        for name in dict.fromkeys(_solver(r) for r in rows):
            points = np.array([(whole(r), r["error"]) for r in rows if _solver(r) == name])
            marker, shade = own.get(name, ("*", COLOURS["dgnet"]))
            star = marker == "*"
            axis.loglog(points[:, 0], points[:, 1], marker, color=shade, ms=14 if star else 6, zorder=3 if star else 2,
                        label=label(name))
        model = next((r for r in rows if _solver(r) not in own), None)
        if model is not None:
            axis.axhline(model["error"], color=COLOURS["dgnet"], lw=0.8, ls=":")
            axis.axvline(whole(model), color=COLOURS["dgnet"], lw=0.8, ls=":")
        for side in (axis.xaxis, axis.yaxis):  # less than two decades: more than the powers of ten, but not all
            side.set_minor_locator(LogLocator(subs=(2, 5)))
            side.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set(xlabel=f"seconds for {found['trajectories']} trajectories of {found['steps']} steps, set-up and sources included",
                 ylabel="RNE from the offset", title=f"{found['scenario']} on {found['hardware']}")
        _legend(figure, axis)
        save(figure, path, 150)
    return True


def _solver(row: dict[str, Any]) -> str:
    if row["solver"] != "classical":
        return str(row["solver"])
    return str(row.get("kind", "P1, lumped" if row.get("mass") == "lumped" else "P1"))


def pictures(target: str, shelf: Shelf, s: Setting, folder: Path, only: Sequence[str] = ()) -> list[Path]:
    """The pictures of one target, as far as its cells are there; `only` some scenarios, if any are named."""
    chosen, out = TARGETS[target], []

    def add(name: str, draw: Callable[[Path], bool]) -> None:
        path = folder / f"{name}-{s.slug}.png"
        if draw(path):
            out.append(path)

    present = [name for name in shelf.scenarios(s) if not only or name in only]
    if target in ("fields", "failure"):
        for name in present if target == "fields" else chosen.scenarios:
            add(f"fields-{name}", partial(fields, shelf=shelf, s=s, scenario=name))
            add(f"curves-{name}", partial(curves, shelf=shelf, s=s, scenario=name))
    elif target == "data-efficiency":
        for name in present:
            add(f"efficiency-{name}", partial(efficiency, shelf=shelf, s=s, scenario=name))
    elif target == "ablation":
        add("ablation", partial(ablation, shelf=shelf, s=s, scenarios=present, rows=chosen.methods))
    elif target == "scaling":
        for cell, record in shelf.cells.items():
            if cell.kind == "scaling" and (cell.size, cell.few) == (s.size, s.few):
                add("scaling", partial(scaling, record=record))
    elif target == "tradeoff":
        for cell, record in shelf.cells.items():
            if cell.kind == "tradeoff" and cell.scenario in present and Setting(cell.size, cell.truth, cell.few, cell.factor) == s:
                add(f"tradeoff-{cell.scenario}-{cell.method}", partial(tradeoff, record=record))
    elif chosen.kind == "operator":  # drawn by the cells themselves
        files = ("spectrum.png",) if target == "spectrum" else ("action.png", "matrices.png")
        found = [r for c, r in shelf.cells.items() if c.kind == "operator" and c.scenario in present
                 and Setting(c.size, c.truth, c.few, c.factor) == s]
        out += [path for r in found for file in files if (path := archive.picture(r, file)).exists()]
    elif target.startswith("table-"):
        add("overview", partial(overview, shelf=shelf, s=s, scenarios=present))
        for name in (name for name in chosen.scenarios if name in present):
            add(f"learning-{name}", partial(learning, shelf=shelf, s=s, scenario=name))
    return out
