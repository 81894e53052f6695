"""What is wrong with readings as they come, and when they leave their bands.

Expected readings have a mean and a covariance C. Gaps g between readings and their means have the chi-square g' C^-1 g. The part of
one sensor in it, given the others, is e^2 with e = (C^-1 g)_i / sqrt((C^-1)_ii), a standard normal number; the rest is the
chi-square of the others. If only one sensor is off, it is at fault (or something happens right beside it) and is left out until it
agrees again. If others are off as well, the part does what the model does not know: an alarm. Both look at the last rows together,
and at how readings usually scatter: where earlier rows had more than their share of chi-square, it takes as much more to be off.

Where the model holds, gaps over their standard deviations g / s are white: the products of one row with the next have a sum that is
about N(0, rows). A sensor whose gaps hang together is named, with its lag -sum(g v / s^2) / sum(v^2 / s^2) where that is sure. v is
the rate at which its expected readings change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy.stats import chi2

ROWS = 10
"""Rows of readings that are looked at together."""
_STUCK = 5  # equal readings in a row, of a sensor that is noisy otherwise
_GATE = 5.0  # standard deviations beyond which a single reading is not used where the others agree
_BLAME = 1e-4  # probability below which one sensor is at fault where the others agree
_AGREE = 0.01  # probability below which the others do not agree either
_SCATTER = 2.0  # most chi-square per reading that counts as usual
_GAP = 5.0  # times the usual interval
_HANG, _ENOUGH = 5.0, 20  # standard deviations of the sum of products above which gaps are no noise; rows before that is said
_LATE = 4.0  # standard deviations above zero from which a lag is named


@dataclass(frozen=True)
class Event:
    """Something that a person should know.

    - `time`: of the reading
    - `kind`: alarm (readings leave their bands), clear (they are back), sensor (one is at fault and left out), back (it is used
      again), colour (its gaps are no noise), time (of a row)
    - `sensors`: which
    - `text`: a sentence
    """

    time: float
    kind: Literal["alarm", "clear", "sensor", "back", "colour", "time"]
    sensors: tuple[str, ...]
    text: str


@dataclass(eq=False)
class Watch:
    """Looks at every row of readings of some sensors; `chance` is the probability of a false alarm in a row."""

    names: Sequence[str]
    chance: float = 1e-6
    out: set[int] = field(default_factory=set)  # sensors at fault
    alarm: bool = False
    usual: tuple[float, int] = (0.0, 0)  # chi-square of all rows before the last ones, without those of alarms, and their readings
    blamed: dict[int, int] = field(default_factory=dict)  # sensors that left their bands alone, and how many rows ago
    missing: set[int] = field(default_factory=set)
    last: np.ndarray = field(init=False)  # [S], the last reading
    repeats: np.ndarray = field(init=False)  # [S], how often it was repeated
    moved: np.ndarray = field(init=False)  # [S], how often it changed
    rows: deque[tuple[float, np.ndarray]] = field(default_factory=lambda: deque(maxlen=ROWS))  # chi-square, e [S] of those used
    outside: deque[np.ndarray] = field(default_factory=lambda: deque(maxlen=ROWS))  # gaps over their standard deviations [S]
    spacing: deque[float] = field(default_factory=lambda: deque(maxlen=20))  # times between rows
    before: np.ndarray = field(init=False)  # [3, S]: time, expected reading and gap over standard deviation at the row before
    sums: np.ndarray = field(init=False)  # [4, S]: rows, products of gaps, and of a lag the products on both sides
    coloured: set[int] = field(default_factory=set)  # sensors whose gaps are no noise

    def __post_init__(self) -> None:
        count = len(self.names)
        self.last, self.repeats, self.moved = np.full(count, np.nan), np.zeros(count, int), np.zeros(count, int)
        self.before, self.sums = np.full((3, count), np.nan), np.zeros((4, count))

    # ------------------------------------------------------------------ before anything is expected

    def interval(self, time: float, before: float) -> list[Event]:
        """A gap in the times."""
        found = []
        usual = float(np.median(self.spacing)) if len(self.spacing) >= 3 else np.inf
        if time - before > _GAP * usual:
            found.append(Event(time, "time", (), f"no readings from t = {before:g} to {time:g}: bands widen meanwhile"))
        else:
            self.spacing.append(time - before)
        return found

    def present(self, time: float, values: np.ndarray) -> tuple[np.ndarray, list[Event]]:
        """Which readings [S] are there and alive, and what is not."""
        there, found = np.isfinite(values), list[Event]()
        for k in map(int, np.flatnonzero(~there)):
            if k not in self.missing:
                self.missing.add(k)
                found.append(self._about(time, "sensor", k, "has no reading: the others are used"))
        for k in map(int, np.flatnonzero(there)):
            if k in self.missing:
                self.missing.discard(k)
                found.append(self._about(time, "back", k, "reads again"))
            same = values[k] == self.last[k]
            self.repeats[k], self.moved[k] = (self.repeats[k] + 1, self.moved[k]) if same else (0, self.moved[k] + 1)
            self.last[k] = values[k]
            if self.repeats[k] >= _STUCK and self.moved[k] > 2 * _STUCK:
                there[k] = False
                if k not in self.out:
                    self.out.add(k)
                    found.append(self._about(time, "sensor", k, f"repeats its reading of {values[k]:g}: dead, left out"))
        return there, found

    # ------------------------------------------------------------------ beside what was expected

    def judge(self, time: float, index: np.ndarray, gap: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, list[Event]]:
        """Which of the readings of the sensors `index` [m] to use, given their gaps [m] and what covariance was expected [m, m]."""
        found = self._readmitted(time, index, gap / np.sqrt(np.diagonal(covariance)))
        self.blamed = {k: ago + 1 for k, ago in self.blamed.items() if ago < ROWS}
        used = np.array([k not in self.out for k in index], dtype=bool)
        if not used.any():
            return used, found
        inverse = np.linalg.inv(covariance[np.ix_(used, used)])
        weighted = inverse @ gap[used]
        chi, apart = float(gap[used] @ weighted), weighted / np.sqrt(np.diagonal(inverse))
        worst = int(np.abs(apart).argmax())
        single = len(apart) > 2 and abs(apart[worst]) > _GATE and chi - apart[worst] ** 2 < chi2.isf(_AGREE, len(apart) - 1)
        if single:  # one wrong reading is not yet a fault of the sensor, several are
            k = int(index[used][worst])
            chi, apart[worst] = chi - apart[worst] ** 2 + _GATE**2, _GATE
            found.append(self._about(time, "sensor", k, f"is off by {gap[used][worst]:.3g}, the others are not: reading not used"))
        row = np.full(len(self.names), np.nan)
        row[index[used]] = apart
        if len(self.rows) == ROWS and not self.alarm:
            self.usual = self.usual[0] + self.rows[0][0], self.usual[1] + int(np.isfinite(self.rows[0][1]).sum())
        self.rows.append((chi, row))
        found += self._windowed(time)
        if single:
            used[np.flatnonzero(used)[worst]] = False
        return used & np.array([k not in self.out for k in index], dtype=bool), found

    def hang(self, time: float, expected: np.ndarray, gap: np.ndarray, sd: np.ndarray) -> list[Event]:
        """Gaps [S] of readings, not a number where there are none, and their standard deviations: whether they hang together."""
        e, found = gap / sd, list[Event]()
        if not self.alarm:
            since, rest, last = self.before
            slope = np.where(time > since, (expected - rest) / np.where(time > since, time - since, 1.0), np.nan)
            terms = np.stack([np.ones(len(e)), e * last, -e * slope / sd, (slope / sd) ** 2])
            self.sums += np.where(np.isfinite(e * last * slope), terms, 0.0)
        self.before = np.stack([np.where(np.isfinite(e), time, np.nan), expected, np.where(self.alarm, np.nan, e)])
        rows, product, one, other = self.sums
        for k in map(int, np.flatnonzero((rows >= _ENOUGH) & (product > _HANG * np.sqrt(rows)))):
            if k not in self.coloured:
                self.coloured.add(k)
                late = one[k] > _LATE * np.sqrt(other[k])
                why = (f"it may read late, by {one[k] / other[k]:.2g} or more: give its time constant (lag)" if late else
                       "it may read late, mesh or step may be too coarse, or something unknown drives the part there")
                text = f"is off by more than noise, one reading like the next: {why}. Bands are too narrow"
                found.append(self._about(time, "colour", k, text))
        return found

    @property
    def newly_blamed(self) -> list[int]:
        """Sensors that left their bands alone, found so at the last row."""
        return [k for k, ago in self.blamed.items() if ago == 0 and k in self.out]

    def _windowed(self, time: float) -> list[Event]:
        """The last rows together: one sensor at fault, an alarm, or its end."""
        scatter = min(_SCATTER, max(1.0, self.usual[0] / max(1, self.usual[1])))
        total = sum(chi for chi, _ in self.rows) / scatter
        apart = np.array([row for _, row in self.rows]) / np.sqrt(scatter)
        count = int(np.isfinite(apart).sum())
        if total < chi2.isf(max(_BLAME, self.chance), count):
            if self.alarm and total < chi2.isf(0.1, count):
                self.alarm = False
                return [Event(time, "clear", (), f"readings are back inside their bands (chi-square {total:.0f} of {count})")]
            return []
        share = np.nansum(apart**2, axis=0)
        k = int(share.argmax())
        own = int(np.isfinite(apart[:, k]).sum())
        if count - own >= 2 and total - share[k] < chi2.isf(_AGREE, count - own) and not self.alarm:
            self.out.add(k)
            self.blamed[k] = 0
            for j, (chi, row) in enumerate(self.rows):
                if np.isfinite(row[k]):
                    self.rows[j] = chi - row[k] ** 2, np.where(np.arange(len(row)) == k, np.nan, row)
            for row in self.outside:
                row[k] = np.nan
            return [self._about(time, "sensor", k, "leaves its bands while the others stay inside: drifting, slow, misplaced, or "
                                                   "something happens right beside it; left out until it agrees again")]
        if self.alarm or total < chi2.isf(self.chance, count):
            return []
        self.alarm = True
        self.out -= set(self.blamed)  # they were the first to see it
        off = [j for j in np.argsort(-share) if share[j] > chi2.isf(_AGREE, max(1, np.isfinite(apart[:, j]).sum()))] or [k]
        names = (*(self.names[j] for j in self.blamed), *(self.names[j] for j in off))
        return [Event(time, "alarm", names, f"ALARM: readings leave their bands (chi-square {total:.0f} of {count} in the last "
                                            f"{len(self.rows)} rows), most of all at {', '.join(names[:3])}")]

    def _readmitted(self, time: float, index: np.ndarray, gaps: np.ndarray) -> list[Event]:
        """Sensors at fault that have agreed for as many rows as are looked at together."""
        row = np.full(len(self.names), np.nan)
        row[index] = gaps
        self.outside.append(row)
        found = []
        for k in sorted(self.out):
            recent = np.array([r[k] for r in self.outside])
            if len(recent) == ROWS and np.isfinite(recent).all() and np.mean(recent**2) < 1.5:
                self.out.discard(k)
                found.append(self._about(time, "back", k, f"agrees again over {ROWS} rows: used from here on"))
        return found

    def state(self) -> dict[str, Any]:
        """All of it as plain numbers and lists, for a file; `restored` takes it back."""
        return {"chance": self.chance, "out": sorted(self.out), "alarm": self.alarm, "usual": self.usual,
                "blamed": sorted(self.blamed.items()),
                "missing": sorted(self.missing), "last": self.last.tolist(), "repeats": self.repeats.tolist(),
                "moved": self.moved.tolist(),
                "rows": [[chi, row.tolist()] for chi, row in self.rows], "outside": [row.tolist() for row in self.outside],
                "spacing": list(self.spacing), "before": self.before.tolist(), "sums": self.sums.tolist(),
                "coloured": sorted(self.coloured)}

    @classmethod
    def restored(cls, names: Sequence[str], state: dict[str, Any]) -> Watch:
        watch = cls(names, state["chance"], set(state["out"]), bool(state["alarm"]), tuple(state["usual"]), dict(state["blamed"]),
                    set(state["missing"]))
        watch.last, watch.repeats, watch.moved = (np.array(state[name], dtype=kind) for name, kind in
                                                  (("last", float), ("repeats", int), ("moved", int)))
        watch.rows.extend((chi, np.array(row, dtype=float)) for chi, row in state["rows"])
        watch.outside.extend(np.array(row, dtype=float) for row in state["outside"])
        watch.spacing.extend(state["spacing"])
        watch.before, watch.sums = np.array(state["before"], dtype=float), np.array(state["sums"], dtype=float)
        watch.coloured = set(state["coloured"])
        return watch

    def _about(self, time: float, kind: Literal["sensor", "back", "colour"], k: int, text: str) -> Event:
        return Event(time, kind, (self.names[k],), f"sensor '{self.names[k]}' {text}")
