"""What a sensor reads of a field: a value at a point, an average over a patch, a flux through a boundary.

Each is a row of weights w on the mesh's nodes. A sensor with the time constant `lag` reads v, one without reads w . u itself:

    lag dv/dt = w . u - v,      v = w . u at the start

Both are linear in the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, ClassVar

import numpy as np
import torch
from scipy.sparse import csr_array

from dgnet.arguments import Finite, NotNegative, Positive, axes, checked, finite
from dgnet.errors import InputError
from dgnet.mesh import from_cells
from dgnet.problems import Lift, Problem, typical

Tensor = torch.Tensor

_ACROSS = 17  # points across a patch: about 200 in a disc, 2,000 in a ball


class Sensor:
    """What a sensor reads of a field: a kind of its own is a class with `linear`, and stands in `SENSORS`.

    - `columns`: of a table of sensors, beside sensor, x, y, z, field and lag, and whether they hold numbers or words. A row in
      which the first of them is filled (a number other than zero) is of this kind
    """

    columns: ClassVar[Mapping[str, type]] = {}
    name: str
    field: str | None
    lag: float

    @property
    def mark(self) -> tuple[float, ...] | None:
        """Its place in pictures and tables; None without one."""
        return getattr(self, "place", None)

    def changed(self, **values: object) -> Sensor:
        """The same sensor with another name, field or lag."""
        return replace(self, **values)  # type: ignore[type-var]  # every kind is a dataclass

    def linear(self, problem: Problem) -> csr_array:
        """The values at points [points, N], of which it reads the mean."""
        raise NotImplementedError

    def weights(self, problem: Problem) -> np.ndarray:
        """w [N] of the linear field."""
        return np.asarray(self.linear(problem).mean(axis=0)).ravel()

    def quadratic(self, problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Corners of cells [P, d + 1], what their values count in the quadratic field [P, d + 1], and what the middles between
        two of them do [P, d + 1, d + 1]."""
        linear = self.linear(problem)
        corners = linear.indices.reshape(linear.shape[0], -1)
        at = linear.data.reshape(corners.shape)
        return corners, at * (2 * at - 1) / len(at), 4 * at[:, :, None] * at[:, None] / len(at)


@checked
@dataclass(frozen=True)
class Point(Sensor):
    """The value of a field at a place, linear within its cell.

    - `place`: coordinates, anywhere in the part
    - `name`: of the sensor
    - `field`: which field it reads; None for the first one
    - `lag`: its time constant, in the unit of time of the problem; 0 where it follows at once
    """

    place: tuple[Finite, ...]
    name: str = ""
    field: str | None = None
    lag: NotNegative = 0.0

    def linear(self, problem: Problem) -> csr_array:
        """The values at its points [points, N], of which it reads the mean."""
        return _inside(self, problem, _place(self, problem)[None])


@checked
@dataclass(frozen=True)
class Patch(Sensor):
    """The average of a field over a disc (2D) or ball (3D), as far as it lies in the part: what a camera or a large bead sees.

    - `place`: of its middle
    - `radius`: a length
    - `name`, `field`, `lag`: as of a `Point`
    """

    columns: ClassVar[Mapping[str, type]] = {"radius": float}

    place: tuple[Finite, ...]
    radius: Positive
    name: str = ""
    field: str | None = None
    lag: NotNegative = 0.0

    def linear(self, problem: Problem) -> csr_array:
        """The values at evenly spread points [points, N]."""
        middle = _place(self, problem)
        spread = np.linspace(-1, 1, _ACROSS)
        grid = np.array([p for p in product(spread, repeat=len(middle)) if np.dot(p, p) <= 1])
        return _inside(self, problem, middle + self.radius * grid)


@checked
@dataclass(frozen=True)
class Flux(Sensor):
    """What leaves through a boundary, -integral of D du/dn (W per metre of depth for heat with a capacity in 2D, W in 3D).

    The gradient is that of the cells at the boundary: first order in the mesh's spacing.

    - `boundary`: its name in the mesh
    - `name`, `field`, `lag`: as of a `Point`
    """

    columns: ClassVar[Mapping[str, type]] = {"boundary": str}

    boundary: str
    name: str = ""
    field: str | None = None
    lag: NotNegative = 0.0

    def weights(self, problem: Problem) -> np.ndarray:
        cells, slopes = self.slopes(problem)
        return np.bincount(problem.mesh.cells[cells].ravel(), slopes.ravel(), problem.mesh.n_nodes)

    def slopes(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """The cells [B] at the boundary, and what leaves through their facets where one corner is 1 [B, d + 1]."""
        mesh, rows = problem.mesh, problem.mesh.facet_index(self.boundary)
        cells, (size, normal) = mesh.facet_cells[rows], mesh.facet_geometry(self.boundary)
        given = problem.pde.per_field("diffusion")[field_number(self, problem)]
        D = torch.as_tensor(typical(given, mesh, "diffusion"), dtype=torch.float64).detach().cpu().numpy()
        D = D[cells] if D.ndim in (1, 3) else D
        along = D[..., None] * normal if D.ndim <= 1 else np.einsum("...ij,...j->...i", D, normal)
        return cells, -size[:, None] * np.einsum("fkd,fd->fk", mesh.gradients[cells], np.broadcast_to(along, normal.shape))


    def quadratic(self, problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mesh, (cells, slopes) = problem.mesh, self.slopes(problem)
        corners = mesh.cells[cells]
        at = (corners[:, :, None] == mesh.facets(self.boundary)[:, None]).any(-1) / mesh.dim  # middle of the facet
        return corners, (4 * at - 1) * slopes, 4 * (at[:, :, None] * slopes[:, None] + slopes[:, :, None] * at[:, None])


SENSORS: tuple[type[Sensor], ...] = (Flux, Patch, Point)
"""In the order in which a row of a table is tried."""

Sensors = Sequence[Sensor] | Annotated[np.ndarray, axes("sensor, coordinate")]
"""Sensors, or the coordinates of points [S, d]."""


def first_state(problem: Problem, start: Tensor | None) -> Tensor:
    """The start [N, F] in double precision; zero unless given."""
    shape = problem.mesh.n_nodes, problem.n_fields
    if start is None:
        return torch.zeros(shape, dtype=torch.float64)
    if start.shape != shape:
        raise InputError(f"the start must be [{shape[0]} nodes, {shape[1]} fields], got {list(start.shape)}")
    return finite(start, "the start").double()


FirstState = Annotated[Tensor, axes("point, field")]
Averages = Annotated[Tensor, axes("step, point, field")]
"""A source averaged over each step [H, P or N, F]."""


def over_steps(source: Averages | None, steps: int) -> Tensor | None:
    """The averages of a source over the steps that readings cover."""
    if source is None:
        return None
    if len(source) < steps:
        raise InputError(f"readings cover {steps} steps, but the source is given for {len(source)}")
    return finite(source[:steps], "the source")


def named(sensors: Sensors) -> list[Sensor]:
    """Sensors from places [S, d]; given sensors as they are."""
    if len(sensors) and isinstance(sensors[0], Sensor):
        return list(sensors)  # type: ignore[arg-type]
    places = np.asarray(sensors, dtype=np.float64)
    if places.ndim != 2 or not np.isfinite(places).all():
        raise InputError(f"sensors are given as objects or by finite coordinates [sensors, axes], got {list(places.shape)}")
    return [Point(tuple(place.tolist()), f"sensor {k}") for k, place in enumerate(places, start=1)]


def called(sensors: Sequence[Sensor]) -> tuple[str, ...]:
    """Names of sensors; those without one are numbered."""
    return tuple(s.name or f"sensor {k}" for k, s in enumerate(sensors, start=1))


def rows(sensors: Sequence[Sensor], problem: Problem) -> Tensor:
    """The weights of all sensors on all nodes and fields: [S, N, F] in double precision."""
    out = torch.zeros(len(sensors), problem.mesh.n_nodes, problem.n_fields, dtype=torch.float64)
    for row, sensor in zip(out, sensors):
        row[:, field_number(sensor, problem)] = torch.from_numpy(sensor.weights(problem))
    return out


def curved_rows(sensors: Sequence[Sensor], problem: Problem) -> Tensor:
    """The weights [S, N, F] that read the quadratic field through the nodes (`Lift`) instead of the linear one.

    Third order in the spacing, and second order for fluxes.
    """
    mesh, lift = problem.mesh, Lift.of(problem.mesh)
    out = torch.zeros(len(sensors), mesh.n_nodes, problem.n_fields, dtype=torch.float64)
    for row, sensor in zip(out, sensors):
        corners, value, pair = sensor.quadratic(problem)
        i, j = np.triu_indices(corners.shape[1], 1)
        ends = np.sort(np.stack([corners[:, i], corners[:, j]], -1), -1).reshape(-1, 2)
        keys = mesh.edges @ np.array([mesh.n_nodes, 1])
        edges = np.searchsorted(keys, ends @ np.array([mesh.n_nodes, 1]))
        nodal = np.bincount(corners.ravel(), value.ravel(), mesh.n_nodes)
        middles = np.bincount(edges, pair[:, i, j].ravel(), len(mesh.edges))
        row[:, field_number(sensor, problem)] = lift.back(torch.from_numpy(np.concatenate([nodal, middles]))[:, None])[:, 0]
    return out


def delays(lags: Sequence[float] | np.ndarray, dt: float) -> np.ndarray:
    """[3, S]: v after a step = e v + b (w . u before it) + c (w . u after it), exact where w . u is linear within the step."""
    lags = np.asarray(lags, dtype=np.float64)
    slow = np.maximum(lags, 1e-300) / dt
    e = np.where(lags > 0, np.exp(-1 / slow), 0.0)
    late = np.where(lags > 0, slow * (1 - e), 0.0)  # the mean of v's memory over the step
    return np.stack([e, late - e, 1 - late])


def delayed(values: Tensor, lags: Sequence[float] | np.ndarray, dt: float) -> Tensor:
    """What sensors with these time constants [S] read, from w . u at the ends of all steps: [S, H+1, ...] -> [S, H+1, ...]."""
    if not np.any(lags):
        return values
    e, b, c = (torch.from_numpy(x).to(values).view(-1, *[1] * (values.dim() - 2)) for x in delays(lags, dt))
    out = [values[:, 0]]
    for n in range(1, values.shape[1]):
        out.append(e * out[-1] + b * values[:, n - 1] + c * values[:, n])
    return torch.stack(out, 1)


def field_number(sensor: Sensor, problem: Problem) -> int:
    """Which field of the problem a sensor reads."""
    fields = problem.pde.fields
    if sensor.field is not None and sensor.field not in fields:
        raise InputError(f"{_who(sensor)} reads the field '{sensor.field}', but the fields are {', '.join(fields)}")
    return 0 if sensor.field is None else fields.index(sensor.field)


def _place(sensor: Point | Patch, problem: Problem) -> np.ndarray:
    place = np.asarray(sensor.place, dtype=np.float64)
    if place.shape != (problem.mesh.dim,) or not np.isfinite(place).all():
        raise InputError(f"{_who(sensor)} needs {problem.mesh.dim} finite coordinates, got {list(sensor.place)}")
    return place


def _inside(sensor: Point | Patch, problem: Problem, places: np.ndarray) -> csr_array:
    """The values at those of some places that lie in the part [places, N]."""
    rows, outside = from_cells(problem.mesh.points, problem.mesh.cells, places)
    if len(outside) == len(places):
        raise InputError(f"{_who(sensor)} at {list(sensor.place)} lies outside of the part")
    return rows[np.setdiff1d(np.arange(len(places)), outside)]


def _who(sensor: Sensor) -> str:
    return f"sensor '{sensor.name}'" if sensor.name else "a sensor"
