"""A table of moving Gaussian spots (CSV) as a source, and how CSV tables are read."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree

from dgnet.errors import LARGEST, InputError
from dgnet.files import did_you_mean, read_text

Tensor = torch.Tensor

_ENTRIES = 1 << 21  # of one evaluation of all spots
_PANELS = 10_000  # most pieces of one stretch of a path


@dataclass(frozen=True, eq=False)
class SpotTable:
    """f(x, t) = sum of P(t) exp(-|x - p(t)|^2 / (2 r(t)^2)) from a table: p, r and P linear between rows, off outside them.

    - `names`: of the spots [S]
    - `times`: of the rows of each spot [R], increasing
    - `values`: position p, radius r (lengths) and peak P of each row [R, d + 2]; P in the unit of the equation's right-hand side:
      K/s for heat without a capacity (W/m3 over rho c_p), W/m3 with one

    A source like any other, usually read from CSV:

        >>> import dgnet as dg, pathlib
        >>> rows = "t,x,y,radius,power", "0,0.1,0.5,0.2,30", "2,0.9,0.5,0.2,30"
        >>> _ = pathlib.Path("spots.csv").write_text("\\n".join(rows))
        >>> spots = dg.SpotTable.read("spots.csv", dim=2)
        >>> spots.at(spots.times[0][:1])[0, 0]  # x, y, radius, power
        array([ 0.1,  0.5,  0.2, 30. ])
    """

    names: tuple[str, ...]
    times: tuple[np.ndarray, ...]  # [R] of each spot, increasing
    values: tuple[np.ndarray, ...]  # [R, d + 2]: position, radius, power

    @classmethod
    def read(cls, path: Path | str, dim: int) -> SpotTable:
        """From CSV with columns t, x, y[, z], radius, power and, for several spots, spot."""
        path = Path(path)
        axes = ["x", "y", "z"][:dim]
        columns = ["t", *axes, "radius", "power"]
        spots: dict[str, list[tuple[int, list[float]]]] = {}
        for line, row in read_table(path, columns, ["spot"]):
            numbers = [number_in(row[name], path, line, name) for name in columns]
            if numbers[-2] <= 0:
                raise InputError(f"{path}, line {line}: a radius must be positive, got {row['radius']}")
            name, rows = row.get("spot", ""), spots.setdefault(row.get("spot", ""), [])
            if rows and numbers[0] <= rows[-1][1][0]:
                raise InputError(f"{path}, line {line}: the times of {_spot(name)} must increase, got {row['t']} after "
                                 f"{rows[-1][1][0]:g}")
            rows.append((line, numbers))
        if not spots:
            raise InputError(f"{path} has no rows below its header")
        for name, rows in spots.items():
            if len(rows) < 2:
                raise InputError(f"{path}, line {rows[0][0]}: {_spot(name)} has one row, but a path needs two")
        tables = [np.array([numbers for _, numbers in rows]) for rows in spots.values()]
        return cls(tuple(spots), tuple(t[:, 0] for t in tables), tuple(t[:, 1:] for t in tables))

    def at(self, times: np.ndarray) -> np.ndarray:
        """Position, radius and power of every spot at times [T]: [S, T, d + 2]; the power is zero where a spot is off."""
        found = np.empty((len(self.times), len(times), self.values[0].shape[1]))
        for spot, (knots, values) in zip(found, zip(self.times, self.values)):
            for column in range(values.shape[1]):
                spot[:, column] = np.interp(times, knots, values[:, column])
            spot[(times < knots[0]) | (times > knots[-1]), -1] = 0.0
        return found

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """[1, T, N, 1], the protocol of sources."""
        found = torch.from_numpy(self.at(t.cpu().numpy().astype(np.float64))).to(device=x.device, dtype=x.dtype)
        total = x.new_zeros(len(t), len(x))
        for spot in found:
            power = spot[:, -1]
            if bool((power != 0).any()):
                square = (x[None] - spot[:, None, :-2]).square().sum(-1)
                total += power[:, None] * torch.exp(square / (-2 * spot[:, None, -2] ** 2))
        return total[None, :, :, None]

    def average(self, x: Tensor, start: int, stop: int, dt: float) -> Tensor:
        """(1/dt) integral of f over each step start .. stop-1: [1, n, N, 1].

        Gauss-Legendre between all rows of the table (where f has kinks and jumps), in pieces that no spot crosses by more than
        its radius.
        """
        steps = dt * np.arange(start, stop + 1)
        knots = np.concatenate(self.times)
        edges = np.unique(np.concatenate([steps, knots[(knots > steps[0]) & (knots < steps[-1])]]))
        pieces = self._pieces(edges)
        left = np.repeat(edges[:-1], pieces) + np.concatenate([np.arange(n) for n in pieces]) * np.repeat(
            np.diff(edges) / pieces, pieces)
        width = np.repeat(np.diff(edges) / pieces, pieces)
        nodes, weights = np.polynomial.legendre.leggauss(4)
        when = (left[:, None] + 0.5 * width[:, None] * (1 + nodes)).ravel()
        share = (0.5 * width[:, None] * weights / dt).ravel()
        step = np.clip(np.searchsorted(steps, when, side="right") - 1, 0, stop - start - 1)
        total = x.new_zeros(stop - start, len(x))
        size = max(1, _ENTRIES // len(x))
        for at in range(0, len(when), size):
            part = slice(at, at + size)
            value = self(x, torch.from_numpy(when[part]))[0, :, :, 0]
            total.index_add_(0, torch.from_numpy(step[part]).to(x.device), value * x.new_tensor(share[part])[:, None])
        return total[None, :, :, None]

    def missed(self, points: np.ndarray) -> str:
        """A sentence about the first spot that these points [N, d] hardly see, empty where they see all of them.

        That is one whose source stays below 1% of its power at every point, or whose radius is below a tenth of their spacing or
        twice beyond their extent: a table in other units of length is one or the other.
        """
        tree, low, high = cKDTree(points), points.min(0), points.max(0)
        spacing, extent = float(np.median(tree.query(points, 2)[0][:, 1])), float(np.linalg.norm(high - low))
        for name, knots, values in zip(self.names, self.times, self.values):
            share = np.linspace(0, len(knots) - 1, min(4000, 40 * len(knots)))
            at = np.stack([np.interp(share, np.arange(len(knots)), column) for column in values.T], 1)
            place, radius, power = at[:, :-2], at[:, -2], np.abs(at[:, -1])
            seen = (power * np.exp(-0.5 * (tree.query(place)[0] / radius) ** 2)).max()
            if not power.max() or (seen >= 0.01 * power.max() and radius.max() > 0.1 * spacing and radius.min() < 2 * extent):
                continue
            way, part = (", ".join(f"{axis} {a:.4g} to {b:.4g}" for axis, a, b in zip("xyz", *ends))
                         for ends in ((place.min(0), place.max(0)), (low, high)))
            return (f"{_spot(name)} misses the mesh: its path covers {way} with radii of {radius.min():.4g} to {radius.max():.4g}, "
                    f"the mesh {part} with a spacing of {spacing:.4g}; is the table in other units of length?")
        return ""

    def _pieces(self, edges: np.ndarray) -> np.ndarray:
        """How often each interval between edges is cut: once per radius that a spot travels in it."""
        ends, middle = self.at(edges), self.at(0.5 * (edges[1:] + edges[:-1]))
        way = np.linalg.norm(np.diff(ends[:, :, :-2], axis=1), axis=2)
        radius = np.minimum(ends[:, 1:, -2], ends[:, :-1, -2])
        crossed = np.where(middle[:, :, -1] != 0, way / radius, 0.0)
        if crossed.max() > _PANELS:
            spot, k = np.unravel_index(int(crossed.argmax()), crossed.shape)
            raise InputError(f"{_spot(self.names[spot])} travels {crossed.max():.0f} of its radii between t = {edges[k]:g} and "
                             f"{edges[k + 1]:g}; give it a larger radius or rows that switch it off on the way")
        return np.maximum(1, np.ceil(crossed.max(axis=0))).astype(np.int64)


def read_table(path: Path, required: list[str], optional: list[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with their line numbers; the header is checked."""
    reader = csv.reader(read_text(path, "utf-8-sig").splitlines())
    try:
        lines = [(reader.line_num, cells) for cells in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from error
    if not lines:
        raise InputError(f"{path} is empty")
    header = [name.strip().lower() for name in lines[0][1]]
    known = [*required, *optional]
    for name in header:
        if name not in known:
            raise InputError(f"{path}: unknown column '{name}'" + did_you_mean(name, known))
    for name in known:
        if header.count(name) > 1 or (name in required and name not in header):
            raise InputError(f"{path} {'lacks the' if name not in header else 'has twice the'} column '{name}'")
    for line, cells in lines[1:]:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise InputError(f"{path}, line {line}: {len(cells)} cells under {len(header)} columns")
        yield line, {name: cell.strip() for name, cell in zip(header, cells)}


def number_in(text: str, path: Path, line: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}, line {line}: '{text}' in column '{column}' is not a finite number")
    if abs(value) > LARGEST or (column == "radius" and 0 < value < 1 / LARGEST):
        raise InputError(f"{path}, line {line}: '{text}' in column '{column}' is beyond what can be computed with ({LARGEST:g})")
    return value


def _spot(name: str) -> str:
    return f"spot '{name}'" if name else "the spot"
