"""Boundary conditions on named boundaries. Boundaries without a condition are insulated (zero flux).

Values are numbers, tables in time (`TimeTable`) or functions value(x, t) of points x [n, d] (float64 tensor) and a time t (float),
returning [n]. `field` restricts a condition to one field; None means all of them.

A step takes fluxes, coefficients and ambient values on average over the step (`samples`), held values at its end.

Nothing outside of this file asks for a condition by its class: a new one says by its `role` which of three laws it is, and by
`coefficient` and `drive` with which numbers (`Condition`), and stands in `CONDITIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, get_args

import numpy as np
import torch

from dgnet.arguments import array, checked, finite, tensor
from dgnet.errors import InputError
from dgnet.problems.units import FIELD, Dimension

Tensor = torch.Tensor

_PARTS, _MOST = 8, 256  # parts of a step that every function is looked at in, and that it may be cut into
_POINTS = 8  # in each of them
_SMOOTH = 1e-7  # of the integral over the step: parts with a smaller error are not cut
_INSIDE = 1e-9  # of a part: how far its ends are moved inwards
_SMALL, _HALVINGS = 1e-5, 6  # a change that is none, relative to the value; and how often a step is halved to find a jump in it
_SNAP = 1e-13  # of a time: rounding of k dt


@checked
@dataclass(frozen=True, eq=False)
class TimeTable:
    """A boundary value from a table in time, the same all along the boundary: linear between rows.

    - `times` [R]: not decreasing; two rows at one time are a jump, and the second one holds from then on
    - `values` [R]: in the unit of what it stands for; a tensor that requires gradients gets them

    Before the first row and after the last one it stays as there. Integrals over steps are exact.

        >>> import dgnet as dg
        >>> pulse = dg.TimeTable([0.0, 2.0, 2.0, 3.0, 3.0], [0.0, 0.0, 1e6, 1e6, 0.0])  # for 1 s from t = 2 s on
        >>> heated = dg.Neumann("bottom", pulse)
        >>> bar = dg.Problem(dg.box((4, 1)), dg.PDE(capacity=4e6), [heated], dt=5.0)
        >>> round(5.0 * bar.load(0.0, 5.0).sum().item())  # J in the first step, for 1 m of width and depth
        1000000
    """

    times: np.ndarray | Sequence[float]
    values: Tensor | np.ndarray | Sequence[float]

    def __post_init__(self) -> None:
        times = array(self.times, "the times of a table in time").astype(np.float64)
        values = tensor(self.values, "the values of a table in time").double()
        if times.ndim != 1 or not len(times) or tuple(values.shape) != times.shape:
            raise InputError(f"a table in time needs one value for each time, got the shapes {list(times.shape)} and "
                             f"{list(values.shape)}")
        if not (np.isfinite(times).all() and bool(torch.isfinite(values.detach()).all())):
            raise InputError("the times and values of a table in time must be finite")
        if (np.diff(times) < 0).any():
            k = int((np.diff(times) < 0).argmax())
            raise InputError(f"the times of a table must not decrease, but {times[k + 1]:g} comes after {times[k]:g}")
        object.__setattr__(self, "times", times)
        object.__setattr__(self, "values", values)

    @property
    def knots(self) -> np.ndarray:
        """Times at which it bends or jumps."""
        return self.times  # type: ignore[return-value]

    def at(self, t: np.ndarray) -> Tensor:
        """Values at times [T]."""
        knots, values = self.knots, self.values
        assert isinstance(values, Tensor)
        after = np.searchsorted(knots, t + _SNAP * np.abs(t), side="right")
        low, high = (after - 1).clip(0, len(knots) - 1), after.clip(0, len(knots) - 1)
        width = knots[high] - knots[low]
        share = np.where(width > 0, (t - knots[low]) / np.where(width > 0, width, 1.0), 0.0).clip(0.0, 1.0)
        first, second, part = (torch.from_numpy(v).to(values.device) for v in (low, high, share))
        return torch.lerp(values[first], values[second], part)

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """[n]."""
        return self.at(np.array([t])).to(x.device).expand(len(x))

    def __add__(self, by: float) -> TimeTable:
        assert isinstance(self.values, Tensor)
        return TimeTable(self.times, self.values + by)

    def __mul__(self, by: float) -> TimeTable:
        assert isinstance(self.values, Tensor)
        return TimeTable(self.times, self.values * by)


Value = float | TimeTable | Callable[[Tensor, float], Tensor]
"""A function may have attributes: `knots`, the times at which it jumps or bends, where integrals over steps are cut; and `jumps`,
the times after which steps begin anew (`Classical.start`), or another value that jumps when it does. Without, they are searched."""


def changed(value: Value, factor: float = 1.0, more: float = 0.0) -> Value:
    """factor * value + more, with the same knots."""
    if not callable(value):
        return factor * value + more
    if isinstance(value, TimeTable):
        return value * factor + more

    def function(x: Tensor, t: float) -> Tensor:
        return factor * value(x, t) + more

    function.knots, function.jumps = knots_of(value), value  # type: ignore[attr-defined]
    return function


def lowest(value: Value) -> float:
    """The lowest number that a value takes, as far as that can be told without asking a function: infinity for one."""
    if callable(value) and not isinstance(value, TimeTable):
        return math.inf
    return float(torch.as_tensor(value.values if isinstance(value, TimeTable) else value).detach().min())


def knots_of(value: Value) -> np.ndarray:
    """Times at which a value jumps or bends, as far as it tells."""
    try:
        return np.asarray(getattr(value, "knots", ()), dtype=np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise InputError("the knots of a boundary value must be times") from error


def value_at(value: Value, x: Tensor, times: np.ndarray) -> Tensor:
    """At points x [n, d] and times [T]: [T, n] in double precision; [1, n] of a number."""
    if isinstance(value, TimeTable):
        return value.at(times).to(x.device)[:, None].expand(-1, len(x))
    if not callable(value):
        return torch.as_tensor(value, dtype=torch.float64, device=x.device).expand(1, len(x))
    rows = []
    for t in times.tolist():
        row = tensor(value(x, t), "what a boundary value f(x, t) returns")
        if row.shape != x.shape[:1]:
            raise InputError(f"a boundary value f(x, t) must return numbers {[len(x)]}, got {list(row.shape)}")
        rows.append(row.to(x.device, torch.float64))
    return finite(torch.stack(rows), "what a boundary value f(x, t) returns")  # once for all times: it waits for the device


def samples(values: Sequence[Value], x: Tensor, t: float, dt: float, moment: int = 0) -> tuple[Tensor, list[Tensor]]:
    """Samples of boundary values at points x [n, d] over a step from t to t + dt: weights [K] of sum 1, samples [K, n] of each.
    With a `moment` i the weights are those of the integral with the Legendre polynomial i of the step.

    One sample at t where nothing changes or dt is 0. Between knots tables are linear: two Gauss points each are exact, also for
    the product of two. Other functions are looked at 64 times in every step or more, as sources are (`converged_average`): a pulse
    of a thirtieth of a step is not overlooked. Where they are rough the step is cut in halves again and again, so that a jump costs
    a few hundred values more. All values share the points, so that what is constant stays in balance with what it multiplies.
    """
    moving = [value for value in values if callable(value)]
    if dt == 0.0 or not moving:
        weight = torch.full((1,), float(not moment), dtype=torch.float64, device=x.device)
        return weight, [value_at(value, x, np.array([t])) for value in values]
    knots = np.concatenate([knots_of(value) for value in moving])
    edges = np.unique(np.concatenate([[t], knots[(knots > t) & (knots < t + dt)], [t + dt]]))
    if all(isinstance(value, TimeTable) for value in moving):
        times, weights = _gauss(edges[:-1], edges[1:])
        found = [value_at(value, x, times) for value in values]
    else:
        count = np.ceil(_PARTS * np.diff(edges) / dt - 1e-9).astype(int).clip(min=1)
        cut = np.concatenate([np.linspace(a, b, n, endpoint=False) for a, b, n in zip(edges, edges[1:], count)] + [edges[-1:]])
        weights, times, both = _cut_as_needed(lambda times: torch.cat([value_at(value, x, times) for value in moving], 1), cut)
        rest = iter(both.split(len(x), 1))
        found = [next(rest) if callable(value) else value_at(value, x, np.array([t])) for value in values]
    weights = weights * np.polynomial.legendre.Legendre.basis(moment)(2 * (times - t) / dt - 1)
    share = torch.from_numpy(weights / dt).to(x.device)
    return share, [value.expand(len(share), -1) for value in found]


@torch.no_grad()
def jump_within(value: Value, x: Tensor, begin: float, end: float) -> bool:
    """Whether a boundary value at points x [n, d] jumps between two times, the ends among them: at one of its knots, or where it
    does most of its change in less than a fiftieth of that time; if it has `jumps`, only at these, or where that value does."""
    said = getattr(value, "jumps", None)
    if callable(said):
        return jump_within(said, x, begin, end)
    if said is not None:
        room = _INSIDE * (end - begin)
        return any(begin - room <= time <= end + room for time in said)
    if not callable(value) or not len(x):
        return False

    def at(*times: float) -> Tensor:
        return value_at(value, x, np.array(times))

    begin -= _INSIDE * (end - begin)  # what jumps there does so in this step, too
    first, last = at(begin, end)
    least = _SMALL * float(torch.maximum(first.abs(), last.abs()).max())
    for knot in np.unique(knots_of(value)):
        room = max(_INSIDE * (end - begin), 10 * _SNAP * abs(knot))
        if begin - room <= knot <= end + room:
            before, after = at(knot - room, knot + room)
            if float((after - before).abs().max()) > max(least, _SMALL * float(torch.maximum(after.abs(), before.abs()).max())):
                return True
    whole = now = float((last - first).abs().max())
    if whole <= least:
        return False
    for _ in range(_HALVINGS):
        middle = 0.5 * (begin + end)
        between = at(middle)[0]
        one, other = float((between - first).abs().max()), float((last - between).abs().max())
        if one > other:
            end, last, now = middle, between, one
        else:
            begin, first, now = middle, between, other
        whole = max(whole, now)
    return now > 0.5 * whole


def _gauss(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two points in each interval and their weights [2 P]: exact for cubics."""
    half = 0.5 * (right - left)[:, None]
    return (left[:, None] + half * (1 + np.array([-1.0, 1.0]) / np.sqrt(3))).ravel(), half.repeat(2, 1).ravel()


@cache
def _lobatto() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points on [-1, 1], both ends among them, their weights [8], and what annihilates all polynomials of degree 5 [8, 2]."""
    P = np.polynomial.Legendre.basis(_POINTS - 1)
    x = np.sort(np.concatenate([[-1.0, 1.0], P.deriv().roots()]))
    weights = 2 / (_POINTS * (_POINTS - 1) * P(x) ** 2)
    return x, weights, np.linalg.qr(np.polynomial.legendre.legvander(x, _POINTS - 1))[0][:, -2:]


def _cut_as_needed(function: Callable[[np.ndarray], Tensor], edges: np.ndarray) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Weights [K], times [K] and values [K, m] of a function of time, in parts between edges or halves of them.

    A part is halved while the two components of its values that no polynomial of degree 5 has are large. A jump between any two of
    the points, the ends among them, has them: they are more than twice the error that it makes.
    """
    x, w, rough = _lobatto()
    left, right = edges[:-1], edges[1:]
    spent, size = 0, 0.0
    parts: list[tuple[np.ndarray, np.ndarray, Tensor]] = []
    while len(left):
        middle, half = 0.5 * (left + right), 0.5 * (right - left)
        times = middle[:, None] + half[:, None] * (1 - _INSIDE) * x  # a knot belongs to the part after it
        value = function(times.ravel()).unflatten(0, times.shape)  # [P, 8, m]
        weights, spent = half[:, None] * w, spent + len(left)
        with torch.no_grad():
            like = {"device": value.device, "dtype": value.dtype}
            if not size:
                size = float((torch.tensor(weights, **like)[..., None] * value.abs()).sum((0, 1)).max())
            error = torch.einsum("pkm,kr->pmr", value, torch.tensor(rough, **like)).abs().sum(-1).amax(1)
            again = (error.cpu().numpy() * 2 * half > _SMOOTH * size) & (spent < _MOST)
        done = torch.from_numpy(~again).to(value.device)
        parts.append((weights[~again].ravel(), times[~again].ravel(), value[done].flatten(0, 1)))
        left, right = (np.stack(pair, 1)[again].ravel() for pair in ((left, middle), (middle, right)))
    weights, times, values = zip(*parts)
    return np.concatenate(weights), np.concatenate(times), torch.cat(values)


Role = Literal["held", "flux", "exchange", "periodic"]
ROLES = get_args(Role)


class Condition:
    """What holds on a boundary, for one field or all of them: one of the laws below, or two boundaries that are one.

        held        u = drive                               `coefficient` is infinite
        flux        D du/dn = drive                         `coefficient` is 0
        exchange    -D du/dn = coefficient (u - drive)      `coefficient` is not negative
        periodic    u is the same on `boundary` and `partner`

    A class of its own says which (`role`), by which word a problem file asks for it (`kind`) and with which keys: the dimension of
    each, or the term of the equation (`TERMS`) that it is part of. Matrices, loads, held values, doubts, exports, pages and what
    can be unknown follow from `role`, `coefficient` and `drive`.
    """

    role: ClassVar[Role]
    kind: ClassVar[str]
    keys: ClassVar[Mapping[str, Dimension | str]] = {}
    boundary: str
    field: str | None = None

    @property
    def boundaries(self) -> tuple[str, ...]:
        return (self.boundary,)

    @property
    def drive(self) -> Value:
        """What the boundary holds, the flux into the part, or the ambient value."""
        if self.role != "periodic":
            raise NotImplementedError(f"{type(self).__name__} does not say what its boundary holds or gets (drive)")
        return 0.0

    @property
    def coefficient(self) -> Value:
        """Of the exchange with `drive`: infinite where that is held."""
        if self.role == "exchange":
            raise NotImplementedError(f"{type(self).__name__} does not say its coefficient")
        return math.inf if self.role == "held" else 0.0

    @property
    def draws(self) -> bool:
        """The field is drawn to `drive`: held at it or in exchange with it. A coefficient of zero draws nowhere."""
        return self.role in ("held", "exchange") and (callable(self.coefficient) or self.coefficient > 0)

    @property
    def exchanges(self) -> bool:
        """In exchange with an ambient value, with a coefficient that is not zero."""
        return self.role == "exchange" and self.draws

    def covers(self, field: str) -> bool:
        """It holds for a field."""
        return self.field in (None, field)

    def with_drive(self, value: Value) -> Condition:
        """The same law with another `drive`."""
        if self.role == "exchange":
            return Robin(self.boundary, self.coefficient, value, self.field)
        return self if self.role == "periodic" else (Dirichlet if self.role == "held" else Neumann)(
            self.boundary, value, self.field)

    def with_coefficient(self, value: Value) -> Condition:
        """The same exchange with another coefficient."""
        return Robin(self.boundary, value, self.drive, self.field) if self.role == "exchange" else self


@checked
@dataclass(frozen=True)
class Dirichlet(Condition):
    """A held value: u = value on a boundary.

    - `boundary`: its name in the mesh; `"boundary"` is all of them
    - `value`: a number, a `TimeTable` or a function value(x, t), in the unit of the field
    - `field`: the name of the field it holds for; None for all fields

        >>> import dgnet as dg
        >>> wall = dg.Dirichlet("left", 20.0)
        >>> tide = dg.Dirichlet("right", lambda x, t: 2.0 + 0.1 * t + 0 * x[:, 0], field="level")
    """

    role, kind, keys = "held", "dirichlet", {"value": FIELD}

    boundary: str
    value: Value = 0.0
    field: str | None = None

    @property
    def drive(self) -> Value:
        return self.value


@checked
@dataclass(frozen=True)
class Neumann(Condition):
    """A given flux into the domain: D du/dn = flux on a boundary.

    - `boundary`: its name in the mesh; `"boundary"` is all of them
    - `flux`: a number, a `TimeTable` or a function flux(x, t), positive inwards. Unit of the field times length/time, W/m2 with a
      heat capacity
    - `field`: the name of the field it holds for; None for all fields

        >>> import dgnet as dg
        >>> heated = dg.Neumann("bottom", 3.0)
    """

    role, kind, keys = "flux", "neumann", {"flux": "flux"}

    boundary: str
    flux: Value = 0.0
    field: str | None = None

    @property
    def drive(self) -> Value:
        return self.flux


@checked
@dataclass(frozen=True)
class Robin(Condition):
    """Exchange with the surroundings: -D du/dn = coefficient * (u - ambient) on a boundary.

    - `boundary`: its name in the mesh; `"boundary"` is all of them
    - `coefficient`: a number, a `TimeTable` or a function coefficient(x, t), not negative. Length/time; W/m2/K with a heat capacity
    - `ambient`: a number, a `TimeTable` or a function ambient(x, t), in the unit of the field
    - `field`: the name of the field it holds for; None for all fields

        >>> import dgnet as dg
        >>> cooled = dg.Robin("boundary", coefficient=7.1e-6, ambient=298.15)
    """

    role, kind, keys = "exchange", "robin", {"coefficient": "convection", "ambient": FIELD}

    boundary: str
    coefficient: Value = 0.0
    ambient: Value = 0.0
    field: str | None = None

    @property
    def drive(self) -> Value:
        return self.ambient


@checked
@dataclass(frozen=True)
class Periodic(Condition):
    """Two boundaries that are one and the same: what leaves through one enters through the other. Holds for all fields.

    - `boundary`, `partner`: names in the mesh; a translation must map the nodes of the first onto those of the second

        >>> import dgnet as dg
        >>> ring = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [dg.Periodic("left", "right")], dt=0.1)
        >>> ring.mesh.n_nodes, ring.n  # nodes, and degrees of freedom
        (25, 20)
    """

    role, kind = "periodic", "periodic"

    boundary: str
    partner: str

    def __post_init__(self) -> None:
        if self.boundary == self.partner:
            raise InputError(f"a periodic condition needs two boundaries, got '{self.boundary}' twice")

    @property
    def boundaries(self) -> tuple[str, str]:
        return self.boundary, self.partner


CONDITIONS: dict[str, type[Condition]] = {c.kind: c for c in (Dirichlet, Neumann, Robin, Periodic)}
"""The kinds of conditions, by their words in a problem file."""
