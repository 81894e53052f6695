"""Files of a part that is followed (`dgnet follow`): tables that grow with the readings, fields for ParaView, pictures, a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import Normalize
from scipy.special import ndtri

from dgnet.errors import InputError
from dgnet.files import read_text, unwritable, write_json, write_text
from dgnet.following import Course, Event, Follower, Row, Update, described
from dgnet.inverse import Sensor
from dgnet.mesh import save
from dgnet.report.figures import Band, chart, csv_rows, grid
from dgnet.report.pictures import scale_of
from dgnet.report.templates import write_page

_REACH = float(ndtri(0.95))  # of a band of 90%, in standard deviations
_SHOWN = 9  # sensors in a picture, at most
_KEPT = 5000  # rows in a picture, at most
_SAVED = 50  # rows between two copies of the state


class Journal:
    """The files of one part: `follow` takes rows of readings, `finish` writes the rest.

    - `part`: which is followed
    - `points`: where estimates are asked for
    - `folder`: estimates.csv, fit.csv and events.jsonl grow there; `again` appends to those that exist
    """

    def __init__(self, part: Follower, points: Sequence[Sensor], folder: Path, title: str, again: bool = False) -> None:
        self.part, self.points, self.folder, self.title = part, list(points), folder, title
        self.events: list[Event] = []
        self.rows: list[tuple[float, np.ndarray, np.ndarray, np.ndarray]] = []
        self._count = 0
        names = [s.name for s in self.points]
        self._begin("estimates.csv", ["t", "at", *(f"{n}{what}" for n in names for what in ("", " sd", " low", " high"))], again)
        self._begin("fit.csv", ["t", "chi-square", "readings used",
                                *(f"{n}{what}" for n in part.names for what in ("", " expected", " sd"))], again)
        self._begin("events.jsonl", [], again)

    def _begin(self, name: str, columns: list[str], again: bool) -> None:
        path, head = self.folder / name, ",".join(columns) + "\n" if columns else ""
        if not again or not path.exists():
            write_text(path, head)
        elif not read_text(path).startswith(head):
            raise InputError(f"{path} has other columns: go on with the same sensors and points")

    def _append(self, name: str, line: str) -> None:
        try:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise unwritable(self.folder / name, error) from error

    def _event(self, event: Event) -> str:
        """Keep it; its line of JSON."""
        self.events.append(event)
        line = json.dumps(asdict(event))
        self._append("events.jsonl", line)
        return line

    def follow(self, stream: Iterable[Row], tell: Callable[[Event, str], None]) -> None:
        """Take in rows as they come; every event is told with its line of JSON."""
        for row in stream:
            usable = np.isfinite(row.time)
            done = self.part.update(row.time, row.values) if usable else None
            said = [Event(row.time if usable else self.part.time, "time", (), row.said)] if row.said else []
            for event in (*said, *(() if done is None else done.events)):
                tell(event, self._event(event))
            if done is not None and not np.isnan(done.expected).all():
                self._row(row.values, done)

    def _row(self, values: np.ndarray, done: Update) -> None:
        """One row of readings and what it led to."""
        part = self.part
        self.rows.append((done.time, np.where(done.used, values, np.nan), done.expected, done.sd))
        del self.rows[:-_KEPT]
        mean, sd = part.at(self.points)
        ends = np.stack([mean, sd, mean - _REACH * sd, mean + _REACH * sd], 1).ravel()
        self._append("estimates.csv", *csv_rows([[done.time, part.t0 + part.step * part.problem.dt, *ends]]))
        beside = np.stack([values, done.expected, done.sd], 1).ravel()
        self._append("fit.csv", *csv_rows([[done.time, done.chi_square, float(done.count), *beside]]))
        self._count += 1
        if self._count % _SAVED == 0:
            part.save(self.folder / "state.npz")

    def finish(self, horizon: int = 0, smooth: bool = False) -> list[Path]:
        """Fields, forecast and past, pictures and the page; returns what was written."""
        part, folder = self.part, self.folder
        part.save(folder / "state.npz")
        written = ["state.npz", "estimates.csv", "fit.csv", "events.jsonl"]
        ahead = None if horizon < 1 else part.forecast(horizon, self.points)
        if ahead is not None:
            self._course("forecast.csv", ahead)
            written.append("forecast.csv")
        if smooth:
            past = part.smooth(self.points)
            self._course("smoothed.csv", past)
            written.append("smoothed.csv")
        written += self._fields(ahead)
        self._over_time(ahead)
        write_json(folder / "followed.json", self.summary())
        self._page()
        return [folder / name for name in (*written, "sensors.png", "followed.json", "followed.html")]

    def summary(self) -> dict[str, Any]:
        """As JSON: what is assumed, how consistent the readings are with it, what happened."""
        part, (ratio, low, high) = self.part, self.part.consistency
        return {"time": part.time, "steps": part.step, "readings": part.count, "chi_square_per_reading": ratio,
                "expected_within": [low, high], "noise": part.noise, "unknown": {n: asdict(p) for n, p in part.priors.items()},
                "exact": part.exact, "rank": part.filter.rank, "left_out": part.filter.lost, "linear": part.dynamics.linear,
                "alarm": part.watch.alarm, "sensors_left_out": [part.names[k] for k in sorted(part.watch.out)],
                "events": [asdict(e) for e in self.events]}

    def lines(self) -> list[str]:
        """The same in sentences."""
        part, (ratio, low, high) = self.part, self.part.consistency
        how = ("exact" if part.exact else f"in {part.filter.rank} directions of largest variance; a step left out at most "
               f"{part.filter.lost:.1e} of it")
        return [f"{part.count} readings of {len(part.names)} sensors up to t = {part.time:g}; Kalman filter of "
                f"{part.dynamics.d} numbers, {how}{'' if part.dynamics.linear else '; extended: the step is not linear'}",
                f"chi-square per reading {ratio:.3f} (within {low:.3f} to {high:.3f} in 95% of cases where all is as assumed)"]

    # ------------------------------------------------------------------ parts

    def _course(self, name: str, course: Course) -> None:
        low, high = course.mean - _REACH * course.sd, course.mean + _REACH * course.sd
        columns = ["t", *(f"{s.name}{what}" for s in self.points for what in ("", " sd", " low", " high"))]
        named = [k for k, label in enumerate(self.part.labels) if not label.startswith("field ")]  # numbers of modes tell nobody
        columns += [f"{self.part.labels[k]}{what}" for k in named for what in ("", " sd")]
        seen = np.stack([course.mean, course.sd, low, high], 2).reshape(len(low), -1)
        drives = np.stack([course.drives, course.drives_sd], 2)[:, named].reshape(len(low), -1)
        lines = csv_rows(np.concatenate([course.times[:, None], seen, drives], axis=1))
        write_text(self.folder / name, "\n".join([",".join(columns), *lines]) + "\n")

    def _fields(self, ahead: Course | None) -> list[str]:
        """field.vtu and field.png: the estimate, the unknown source where there is one, the field at the end of the forecast."""
        part, mesh, fields = self.part, self.part.problem.mesh, self.part.problem.pde.fields
        shown = {"estimate": part.estimate()}
        driving = part.driving()
        if driving is not None:
            shown["source"] = driving
        if ahead is not None:
            shown["forecast"] = ahead.fields[-1]
        columns: dict[str, np.ndarray] = {}
        for what, found in shown.items():
            for f, name in enumerate(fields):
                label = {"estimate": name, "source": f"source of {name}", "forecast": f"{name} forecast"}[what]
                columns |= {label: found.mean[:, f], f"{label} sd": found.sd[:, f]}
        save(mesh, self.folder / "field.vtu", columns)
        bands = []
        for what, found in shown.items():
            norm, colours = scale_of(found.mean[:, :1].T)
            bands += [Band([(f"{what}, t = {found.time:.4g}", found.mean[:, :1].T)], norm, colours, fields[0]),
                      Band([("sd", found.sd[:, :1].T)], Normalize(0, max(float(found.sd[:, 0].max()), 1e-300)), "Reds", "sd")]
        places = np.array([s.mark for s in part.sensors if s.mark is not None]).reshape(-1, mesh.dim)

        def mark(axis: Any, row: int, column: int) -> None:
            if mesh.dim == 2:
                axis.scatter(*places.T, s=9, color="white", edgecolor="black", linewidth=0.6, zorder=3)

        grid(self.folder / "field.png", mesh, bands, [""], decorate=mark, width=3.4)
        return ["field.vtu", "field.png"]

    def _over_time(self, ahead: Course | None) -> None:
        """Readings beside the bands that were expected of them, the forecast after them."""
        times = np.array([r[0] for r in self.rows])
        values, expected, sd = (np.array([r[k] for r in self.rows]) for k in (1, 2, 3))
        names = self.part.names[:_SHOWN]
        with chart(self.folder / "sensors.png", 7.2, 1.25 * len(names) + 0.5, letters=8) as figure:
            for k, name in enumerate(names):
                axis = figure.add_subplot(len(names), 1, k + 1)
                if len(times):
                    low, high = (expected[:, k] + sign * _REACH * sd[:, k] for sign in (-1, 1))
                    axis.fill_between(times, low, high, color="#1f6f8b", alpha=0.25, linewidth=0)
                    axis.plot(times, values[:, k], ".", color="#222222", ms=2.5)
                place = next((j for j, s in enumerate(self.points) if s.name == name), None)
                if ahead is not None and place is not None:
                    low, high = (ahead.mean[:, place] + sign * _REACH * ahead.sd[:, place] for sign in (-1, 1))
                    axis.fill_between(ahead.times, low, high, color="#e09f3e", alpha=0.35, linewidth=0)
                    axis.plot(ahead.times, ahead.mean[:, place], color="#e09f3e", lw=1.4)
                for event in self.events:
                    if event.kind == "alarm" or (event.kind == "sensor" and name in event.sensors):
                        axis.axvline(event.time, color="#d1495b", lw=0.8, ls="-" if event.kind == "alarm" else ":")
                axis.set_title(name, loc="left", pad=2)
                axis.grid(alpha=0.25, linewidth=0.5)

    def _page(self) -> None:
        part, alarms = self.part, [e for e in self.events if e.kind == "alarm"]
        mood, word = (("bad", "Alarm") if part.watch.alarm else ("even", "Alarms, over now") if alarms else
                      ("even", "Sensors left out") if part.watch.out else ("good", "Inside the bands"))
        write_page(self.folder / "followed.html", "followed.html", title=f"{self.title}: followed", heading=self.title, mood=mood,
                   word=word, time=part.time, notes=[*part.notes, *self.lines()], folder=self.folder,
                   events=[(f"{e.time:g}", e.kind, e.text) for e in self.events[-200:]],
                   assumed=described(part.priors, part.noise))
