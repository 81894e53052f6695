"""Files of what sensors told (`dgnet recover`) and of their places (`dgnet place`): tables, pictures, fields for ParaView."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.patches import Ellipse
from scipy.special import ndtri

from dgnet.files import write_json, write_text
from dgnet.inverse import SENSORS, Coefficients, Placement, Recovered, Sensor, Track
from dgnet.mesh import Mesh, save
from dgnet.report.figures import Band, chart, csv_rows, grid
from dgnet.report.pictures import axes_of, draw_outline, scale_of


def write(found: Recovered, mesh: Mesh, fields: tuple[str, ...], folder: Path) -> list[Path]:
    """NAME.csv and NAME.png of every answer, NAME.vtu of fields, answers.json and fit.csv (readings beside what explains them)."""
    written = []
    for name in found.answers:
        stem = name.replace(":", "-")
        if found.history(name):
            _history(found, name, folder / stem)
        elif found.columns[name]:
            continue  # a number: it is in answers.json
        else:
            _field(found, name, mesh, fields, folder / stem)
            written.append(folder / f"{stem}.vtu")
        written += [folder / f"{stem}.csv", folder / f"{stem}.png"]
    _fit(found, folder)
    write_json(folder / "answers.json", summary(found))
    return [*written, folder / "fit.csv", folder / "answers.json"]


def summary(found: Recovered) -> dict[str, Any]:
    """As JSON: noise, misfit, notes and every answer; bands hold each number with a probability of 90%."""
    answers = {}
    for name, answer in found.answers.items():
        low, high = answer.band()
        parts = {"mean": answer.mean, "sd": answer.sd, "low": low, "high": high, "seen": answer.seen}
        answers[name] = {"length": answer.length, "switched": answer.switched, "columns": list(found.columns[name])} | {
            key: (value.reshape(found.shapes[name]).T if found.history(name) else value.reshape(found.shapes[name])).tolist()
            for key, value in parts.items()}
    return {"noise": found.noise, "misfit": found.misfit, "determined": found.determined, "unknowns": found.unknowns,
            "sensors": [s.name for s in found.readings.sensors], "notes": list(found.notes), "answers": answers}


def _history(found: Recovered, name: str, stem: Path) -> None:
    """Averages over the steps, with the bands of 90% and the share of the prior variance that the readings remove."""
    low, high = (x.reshape(found.shapes[name]).T for x in found.answers[name].band())
    mean, sd, seen = (found.get(name, what) for what in ("mean", "sd", "seen"))
    columns, values = ["from", "to"], [found.times[:-1], found.times[1:]]
    for k, label in enumerate(found.columns[name]):
        columns += [label, f"{label} sd", f"{label} low", f"{label} high", f"{label} seen"]
        values += [mean[:, k], sd[:, k], low[:, k], high[:, k], seen[:, k]]
    _table(stem.with_suffix(".csv"), columns, np.stack(values, 1))
    with chart(stem.with_suffix(".png"), 6.4, 1.8 * mean.shape[1] + 0.6) as figure:
        for k, label in enumerate(found.columns[name]):
            axis = figure.add_subplot(mean.shape[1], 1, k + 1)
            axis.fill_between(found.times, np.append(low[:, k], low[-1, k]), np.append(high[:, k], high[-1, k]), step="post",
                              color="#1f6f8b", alpha=0.25, linewidth=0)
            axis.stairs(mean[:, k], found.times, color="#1f6f8b", lw=1.6, baseline=None)
            axis.set_title(f"{label}, with the band that holds it with a probability of 90%")
            axis.grid(alpha=0.25, linewidth=0.5)
        axis.set_xlabel("time")


def _field(found: Recovered, name: str, mesh: Mesh, fields: tuple[str, ...], stem: Path) -> None:
    """Means, standard deviations and what the sensors see of a field, at the nodes."""
    columns, values = list("xyz"[: mesh.dim]), list(mesh.points.T)
    parts = {what: found.get(name, what) for what in ("mean", "sd", "seen")}
    for f, field in enumerate(fields):
        columns += [field, f"{field} sd", f"{field} seen"]
        values += [part[:, f] for part in parts.values()]
    _table(stem.with_suffix(".csv"), columns, np.stack(values, 1))
    save(mesh, stem.with_suffix(".vtu"), dict(zip(columns[mesh.dim:], values[mesh.dim:])))
    norm, colours = scale_of(parts["mean"].T)
    bands = [Band([(f"{fields[0]}: change" if name == "start" else "source", parts["mean"][:, :1].T)], norm, colours, "mean"),
             Band([("sd", parts["sd"][:, :1].T)], Normalize(0, max(float(parts["sd"].max()), 1e-300)), "Reds", "sd"),
             Band([("seen", parts["seen"][:, :1].T)], Normalize(0, 1), "viridis", "share of the variance removed")]
    grid(stem.with_suffix(".png"), mesh, bands, [name])


def _fit(found: Recovered | Track, folder: Path) -> None:
    """fit.csv: the readings beside what explains them."""
    names = [s.name for s in found.readings.sensors]
    rows = np.concatenate([found.readings.times[:, None], found.readings.values, found.fitted], axis=1)
    _table(folder / "fit.csv", ["t", *names, *(f"{n} fitted" for n in names)], rows)


def _table(path: Path, columns: list[str], rows: np.ndarray) -> None:
    write_text(path, "\n".join([",".join(columns), *csv_rows(rows)]) + "\n")


def write_placement(found: Placement, candidates: Sequence[Sensor], mesh: Mesh, folder: Path) -> list[Path]:
    """sensors.csv (as `dgnet recover` takes it), curve.csv and, in 2D, a picture of places and curve."""
    columns = [key for cls in SENSORS for key in cls.columns]
    lines = [",".join(["sensor", *"xyz"[: mesh.dim], *columns, "field", "lag"])]
    for s in found.sensors:
        place = [""] * mesh.dim if s.mark is None else [f"{x:.8g}" for x in s.mark]
        own = [getattr(s, key) if key in s.columns else "" for key in columns]
        lines.append(",".join([s.name, *place, *(x if isinstance(x, str) else f"{x:.8g}" for x in own), s.field or "",
                               f"{s.lag:.8g}" if s.lag else ""]))
    write_text(folder / "sensors.csv", "\n".join(lines) + "\n")
    _table(folder / "curve.csv", ["sensors", "uncertainty"], np.stack([np.arange(len(found.uncertainty)), found.uncertainty], 1))
    with chart(folder / "places.png", 8.4, 3.2) as figure:
        curve = figure.add_subplot(1, 2, 2)
        curve.plot(found.uncertainty, "o-", color="#1f6f8b", ms=4)
        curve.set(xlabel="sensors", ylabel="standard deviation left, of that before", ylim=(0, 1.05))
        if mesh.dim == 2:
            part = axes_of(figure, (1, 2, 1), mesh)
            draw_outline(part, mesh)
            for some, style in ((candidates, {"s": 4, "color": "#c0c8ce"}), (found.sensors, {"s": 26, "color": "#d1495b"})):
                places = np.array([s.mark for s in some if s.mark is not None]).reshape(-1, 2)
                part.scatter(places[:, 0], places[:, 1], zorder=3, **style)
    return [folder / "sensors.csv", folder / "curve.csv", folder / "places.png"]


def write_track(found: Track, mesh: Mesh, folder: Path) -> list[Path]:
    """path.csv and path.png (with bands), spot.csv (as `dgnet simulate --source` takes it), fit.csv, answers.json."""
    axes = list("xyz"[: mesh.dim])
    ends, sd = (np.append(x, x[-1]) for x in (found.power, found.power_sd))
    columns = ["t", *(name for a in axes for name in (a, f"{a} sd")), "power", "power sd"]
    places = np.stack([found.path, found.path_sd], 2).reshape(len(found.path), -1)
    _table(folder / "path.csv", columns, np.column_stack([found.times, places, ends, sd]))
    _table(folder / "spot.csv", ["t", *axes, "radius", "power"],
           np.column_stack([found.times, found.path, np.full(len(ends), found.radius), ends]))
    _fit(found, folder)
    write_json(folder / "answers.json", track_summary(found))
    written = [folder / name for name in ("path.csv", "spot.csv", "fit.csv", "answers.json")]
    if mesh.dim == 2:
        with chart(folder / "path.png", 8.4, 3.2) as figure:
            part, power = axes_of(figure, (1, 2, 1), mesh), figure.add_subplot(1, 2, 2)
            draw_outline(part, mesh)
            for place, wide in zip(found.path, found.path_sd):
                part.add_patch(Ellipse(tuple(place), *(2 * float(ndtri(0.95)) * wide), color="#1f6f8b", alpha=0.08, linewidth=0))
            part.plot(*found.path.T, color="#1f6f8b", lw=1.6)
            sensed = np.array([s.mark for s in found.readings.sensors if s.mark is not None]).reshape(-1, 2)
            part.scatter(*sensed.T, s=14, color="#d1495b", zorder=3)
            reach = float(ndtri(0.95)) * sd
            power.fill_between(found.times, ends - reach, ends + reach, step="post", color="#1f6f8b", alpha=0.25, linewidth=0)
            power.stairs(found.power, found.times, color="#1f6f8b", lw=1.6, baseline=None)
            power.set(xlabel="time", ylabel="power, with the band of 90%")
        written.append(folder / "path.png")
    return written


def track_summary(found: Track) -> dict[str, Any]:
    """As JSON: places and powers with their standard deviations."""
    return {"noise": found.noise, "misfit": found.misfit, "notes": list(found.notes), "radius": found.radius,
            "times": found.times.tolist(), "path": found.path.tolist(), "path_sd": found.path_sd.tolist(),
            "power": found.power.tolist(), "power_sd": found.power_sd.tolist()}


def factors_summary(found: Coefficients) -> dict[str, Any]:
    """As JSON: factors on the given coefficients, relative standard deviations, ends of the bands of 90%."""
    reach = np.exp(float(ndtri(0.95)) * found.sd)
    others = {} if found.others is None else {"answers": summary(found.others)["answers"]}
    return others | {"noise": found.noise, "misfit": found.misfit, "notes": list(found.notes),
                     "factors": {name: {"factor": f, "sd": s, "low": f / r, "high": f * r, "mesh": m}
                                 for name, f, s, r, m in zip(found.names, found.factors, found.sd, reach, found.mesh)}}


def factor_lines(found: Coefficients) -> list[str]:
    """One sentence for each coefficient."""
    lines = [f"{name}: {f:.4g} times the given one, standard deviation {s:.2%}, without the bias of the mesh ({m:+.1%})"
             for name, f, s, m in zip(found.names, found.factors, found.sd, found.mesh)]
    others = [] if found.others is None else answer_lines(found.others)
    return [*lines, *others, f"noise {found.noise:.3g}, misfit {found.misfit:.3g}"]


def answer_lines(found: Recovered, fields: tuple[str, ...] = ()) -> list[str]:
    """One sentence for each history, field or number."""
    lines = []
    for name, answer in found.answers.items():
        mean, sd = found.get(name), found.get(name, "sd")
        if mean.ndim == 1:
            what = "{}: {:+.4g} to what was given" if found.columns[name] == (name,) else f"{name} of {{}}: {{:.4g}}"
            lines += [f"{what.format(label, m)}, standard deviation {s:.3g}" for label, m, s in zip(found.columns[name], mean, sd)]
            continue
        for k, label in enumerate(found.columns[name] or fields):
            kind = "; switched on and off" if answer.switched > 0.5 else ""
            lines.append(f"{name}, {label}: from {mean[:, k].min():.4g} to {mean[:, k].max():.4g}, "
                         f"standard deviation {np.median(sd[:, k]):.3g} (median){kind}")
    return lines


def track_lines(found: Track) -> list[str]:
    """Where the spot was, and how strong."""
    first, last = (", ".join(f"{x:.4g}" for x in place) for place in found.path[[0, -1]])
    wide, mean = float(np.median(found.path_sd)), float(found.power.mean())
    stays = bool((found.path == found.path[0]).all())
    return [f"place: {first}, standard deviation {wide:.3g}" if stays else
            f"path: from {first} to {last}, standard deviation {wide:.3g} (median)",
            f"power: {mean:.4g} in the mean, from {found.power.min():.4g} to {found.power.max():.4g}, standard deviation "
            f"{np.median(found.power_sd):.3g} (median)", f"noise {found.noise:.3g}, misfit {found.misfit:.3g}"]


def write_factors(found: Coefficients, mesh: Mesh, fields: tuple[str, ...], folder: Path) -> list[Path]:
    """answers.json, and the files of what was found with the factors."""
    written = [] if found.others is None else write(found.others, mesh, fields, folder)
    write_json(folder / "answers.json", factors_summary(found))
    return written or [folder / "answers.json"]


def write_answer(found: Recovered | Coefficients | Track, mesh: Mesh, fields: tuple[str, ...],
                 folder: Path) -> tuple[dict[str, Any], list[str], list[Path]]:
    """JSON, sentences and files of any answer of `dgnet recover`."""
    if isinstance(found, Coefficients):
        return factors_summary(found), [*found.notes, *factor_lines(found)], write_factors(found, mesh, fields, folder)
    if isinstance(found, Track):
        return track_summary(found), [*found.notes, *track_lines(found)], write_track(found, mesh, folder)
    count, sensed = int(np.isfinite(found.fitted).sum()), len(found.readings.sensors)
    whole = (f"{count} readings of {sensed} sensors determine {found.determined:.1f} of {found.unknowns} numbers; "
             f"noise {found.noise:.3g}, misfit {found.misfit:.3g}")
    return summary(found), [*found.notes, whole, *answer_lines(found, fields)], write(found, mesh, fields, folder)
