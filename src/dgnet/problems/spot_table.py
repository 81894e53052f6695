"""A table of moving Gaussian spots (CSV) as a source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from dgnet.arguments import Positive, axes, checked
from dgnet.errors import InputError
from dgnet.files import csv_number, read_csv
from dgnet.mesh import Mesh
from dgnet.problems.deposit import Deposit

Tensor = torch.Tensor

_ENTRIES = 1 << 21  # of one evaluation of all spots
_PANELS = 10_000  # most pieces of one stretch of a path


@checked
@dataclass(frozen=True, eq=False)
class SpotTable:
    """f(x, t) = sum of P(t) exp(-|x - p(t)|^2 / (2 r(t)^2)) from a table: p, r and P linear between rows.

    - `names`: of the spots [S]
    - `times`: of the rows of each spot [R], increasing
    - `values`: position p, radius r (lengths) and peak P of each row [R, d + 2]; P in the unit of the equation's right-hand side:
      K/s for heat without a capacity (W/m3 over rho c_p), W/m3 with one
    - `lasting`: outside of its rows a spot stays as it is at the nearest one; off there unless given
    - `mesh`: on whose nodes and middles of edges it has values, anywhere without one; `brings`: see `on`, which sets both

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
    lasting: bool = False
    mesh: Mesh | None = None
    brings: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.times) == len(self.values) > 0:
            counts = f"{len(self.names)}, {len(self.times)} and {len(self.values)}"
            raise InputError(f"a table of spots needs as many names as times and values, got {counts}")
        for name, times, values in zip(self.names, self.times, self.values):
            if times.ndim != 1 or not len(times) or values.ndim != 2 or len(values) != len(times) or values.shape[1] < 4:
                raise InputError(f"{_spot(name)} needs times [rows] and as many values [rows, coordinates + 2], got "
                                 f"{list(times.shape)} and {list(values.shape)}")
            sound = np.isfinite(times).all() and np.isfinite(values).all()
            if not (sound and (np.diff(times) > 0).all() and (values[:, -2] > 0).all()):
                raise InputError(f"{_spot(name)}: its times must increase, its radii be positive, and all of it be finite")

    @checked
    def on(self, mesh: Mesh, brings: np.ndarray | None = None) -> SpotTable:
        """The same spots for a solver on a mesh: at its points, narrow ones have values whose integral over the mesh is that of the
        spot, as far as it lies on the mesh (`Deposit`). Those of about a spacing or more have the values that they have anywhere.

        `brings` [P]: what a unit at each point brings a solver that has a rule of its own (`Model.brings`).
        """
        if self.values[0].shape[1] - 2 != mesh.dim:
            raise InputError(f"spots have {self.values[0].shape[1] - 2} coordinates, the mesh {mesh.dim}")
        sizes = mesh.n_nodes, len(mesh.edges), mesh.n_nodes + len(mesh.edges)
        if brings is not None and not (brings.ndim == 1 and len(brings) in sizes and np.isfinite(brings).all()):
            raise InputError(f"brings must be {sizes[0]} or {sizes[2]} finite numbers, got {list(brings.shape)}")
        return replace(self, mesh=mesh, brings=brings)

    @classmethod
    @checked
    def read(cls, path: Path | str, dim: int) -> SpotTable:
        """From CSV with columns t, x, y[, z], radius, power and, for several spots, spot."""
        path = Path(path)
        axes = ["x", "y", "z"][:dim]
        columns = ["t", *axes, "radius", "power"]
        spots: dict[str, list[tuple[int, list[float]]]] = {}
        for line, row in read_csv(path, columns, ["spot"]):
            numbers = [csv_number(row[name], path, line, name) for name in columns]
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

    @checked
    def at(self, times: Annotated[np.ndarray, axes("times")]) -> np.ndarray:
        """Position, radius and power of every spot at any times [T]: [S, T, d + 2]; the power is zero where a spot is off."""
        found = np.empty((len(self.times), len(times), self.values[0].shape[1]))
        for spot, (knots, values) in zip(found, zip(self.times, self.values)):
            for column in range(values.shape[1]):
                spot[:, column] = np.interp(times, knots, values[:, column])
            if not self.lasting:
                spot[(times < knots[0]) | (times > knots[-1]), -1] = 0.0
        return found

    def units(self) -> list[SpotTable]:
        """Each spot by itself with power 1 at all times: before and after its rows it stays where its path begins and ends."""
        return [replace(self, names=(name,), times=(times,), lasting=True,
                        values=(np.concatenate([values[:, :-1], np.ones((len(values), 1))], axis=1),))
                for name, times, values in zip(self.names, self.times, self.values)]

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """[1, T, N, 1], the protocol of sources."""
        x = x if x.is_floating_point() else x.double()
        total = x.new_zeros(len(t), len(x))
        for spot in self.at(t.cpu().numpy().astype(np.float64)):
            if spot[:, -1].any():
                on = np.flatnonzero(spot[:, -1])
                shape = bells(x, spot[on, :-2], spot[on, -2], self.mesh, self.brings)
                total.index_add_(0, torch.from_numpy(on).to(x.device), torch.from_numpy(spot[on, -1:]).to(x) * shape)
        return total[None, :, :, None]

    @checked
    def average(self, x: Annotated[Tensor, axes("points, coordinates")], start: int, stop: int, dt: Positive,
                t0: float = 0.0) -> Tensor:
        """(1/dt) integral of f over each step start .. stop-1, counted from the time t0: [1, n, N, 1].

        The same for any cut of the steps into windows. Gauss-Legendre between all rows of the table (where f has kinks and jumps),
        in pieces that no spot crosses by more than its radius.
        """
        if stop <= start:
            raise InputError(f"steps from {start} to {stop} are none")
        if x.shape[1] != self.values[0].shape[1] - 2:
            raise InputError(f"points must have {self.values[0].shape[1] - 2} coordinates, as the spots, got {x.shape[1]}")
        steps = t0 + dt * np.arange(start, stop + 1)
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

    def _pieces(self, edges: np.ndarray) -> np.ndarray:
        """Number of parts of each interval between edges: once per radius that a spot travels in it."""
        ends, middle = self.at(edges), self.at(0.5 * (edges[1:] + edges[:-1]))
        way = np.linalg.norm(np.diff(ends[:, :, :-2], axis=1), axis=2)
        radius = np.minimum(ends[:, 1:, -2], ends[:, :-1, -2])
        crossed = np.where(middle[:, :, -1] != 0, way / radius, 0.0)
        if crossed.max() > _PANELS:
            spot, k = np.unravel_index(int(crossed.argmax()), crossed.shape)
            raise InputError(f"{_spot(self.names[spot])} travels {crossed.max():.0f} of its radii between t = {edges[k]:g} and "
                             f"{edges[k + 1]:g}; give it a larger radius or rows that switch it off on the way")
        return np.maximum(1, np.ceil(crossed.max(axis=0))).astype(np.int64)


def bells(x: Tensor, places: np.ndarray, radii: np.ndarray, mesh: Mesh | None = None, brings: np.ndarray | None = None) -> Tensor:
    """exp(-|x - p|^2 / (2 r^2)) at points x [N, d] for places p [T, d] and radii r [T]: [T, N].

    On a mesh, x are its nodes, the middles of its edges, or both, and narrow ones have the values of `Deposit`.
    """
    p, r = torch.from_numpy(places).to(x), torch.from_numpy(radii).to(x)
    found = torch.exp((x[None] - p[:, None]).square().sum(-1) / (-2 * r[:, None] ** 2))
    if mesh is not None:
        deposit = Deposit.of(mesh)
        narrow = np.flatnonzero(deposit.narrow(places, radii))
        if len(narrow):
            values = deposit.values(places[narrow], radii[narrow], len(x), brings)
            found[torch.from_numpy(narrow).to(x.device)] = torch.from_numpy(values).to(x)
    return found


def _spot(name: str) -> str:
    return f"spot '{name}'" if name else "the spot"
