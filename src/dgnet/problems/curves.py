"""Coefficients that change with the solution: curves of u, alone, times a tensor, or one for each region of the mesh.

    capacity  c(u),  enthalpy     H(u) = integral of c            (with the latent heat of melting)
    diffusion D(u),  Kirchhoff    theta(u) = integral of D        (grad theta = D grad u)

A curve is linear between its points, so that its integral is known exactly. Every coefficient of an equation is a sum of `Law`s on
a mesh: a factor in each cell (a number or a tensor) times a curve of u, or a factor alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch

from dgnet.arguments import Count, Finite, Scalar, checked, tensor
from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.mesh import Mesh
from dgnet.operators import Array

Tensor = torch.Tensor

ELSEWHERE = "elsewhere"
SHARP = 1e-3
"""A transition at one value of u is spread over this share of L / c, what its latent heat L would change u by."""


@checked
@dataclass(frozen=True)
class Latent:
    """Heat taken up between two values of u, evenly: a melting range, or a narrow one that stands for a sharp transition.

    - `heat`: per volume, in the unit of the capacity times u (J/m3)
    - `low`, `high`: where melting begins and ends, in the unit of u
    """

    heat: Scalar
    low: float
    high: float

    def __post_init__(self) -> None:
        heat = float(torch.as_tensor(self.heat).detach())
        if not (isfinite(heat) and heat >= 0):
            raise InputError(f"the latent heat must be finite and not negative, got {heat:.4g}")
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise InputError(f"melting must end above where it begins, got {self.low:g} to {self.high:g}")


class Segments(NamedTuple):
    """A curve piece by piece: below the first knot, between the knots, above the last one."""

    knots: Tensor  # [m], increasing
    left: Tensor  # [m + 1] where each piece is counted from
    value: Tensor  # [m + 1] there
    slope: Tensor  # [m + 1]
    integral: Tensor  # [m + 1] there, from the first point of the curve

    def place(self, u: Tensor) -> Tensor:
        """The piece of each u; a knot belongs to the piece above it."""
        return torch.bucketize(u.detach().contiguous(), self.knots, right=True)


@checked
@dataclass(frozen=True, eq=False)
class Curve:
    """A coefficient as a function of u: linear between points, constant beyond them, not negative.

    - `at`: values of u [m], increasing; at least two
    - `values`: of the coefficient there [m]; a tensor may require gradients
    - `latent`: heat taken up besides, for a capacity (`melting` adds it)
    - `extends`: whether u may leave the range of the points, where the end values hold. If not, a run that does is an error
    - `name`: for messages

    Values and integrals are computed in the precision of u.

        >>> import dgnet as dg, torch
        >>> k = dg.Curve([300.0, 400.0], [10.0, 20.0], name="conductivity")
        >>> k.value(torch.tensor([300.0, 350.0, 500.0])), k.integral(torch.tensor(400.0))
        (tensor([10., 15., 20.]), tensor(1500.))
        >>> c = dg.Curve([300.0, 400.0], [2e6, 2e6]).melting(1e8, 350.0, 360.0)
        >>> c.integral(torch.tensor(400.0, dtype=torch.float64)).item()  # 100 K of heating and the latent heat
        300000000.0
    """

    at: Array
    values: Array
    latent: tuple[Latent, ...] = ()
    extends: bool = False
    name: str = "curve"
    points: tuple[Tensor, Tensor] = field(init=False, repr=False)  # both [m] in double precision, on the CPU or where values are

    def __post_init__(self) -> None:
        values = torch.as_tensor(self.values, dtype=torch.float64)
        at = torch.as_tensor(self.at, dtype=torch.float64, device=values.device).detach()
        if at.dim() != 1 or at.shape != values.shape or len(at) < 2:
            raise InputError(f"the {self.name} needs as many values as points, two at least, got {list(values.shape)} for "
                             f"{list(at.shape)}")
        rise = at.diff()
        if not bool((rise > 0).all()):
            bad = int((~(rise > 0)).nonzero()[0])
            raise InputError(f"the points of the {self.name} must increase, but {float(at[bad + 1]):g} follows {float(at[bad]):g}")
        fine = torch.isfinite(values.detach()) & (values.detach() >= 0)
        if not bool(fine.all()):
            bad = int((~fine).nonzero()[0])
            raise InputError(f"the {self.name} must be finite and not negative, got {float(values.detach()[bad]):.4g} at "
                             f"{float(at[bad]):g}")
        object.__setattr__(self, "points", (at, values))

    @classmethod
    @checked
    def of(cls, function: Callable[[Tensor], Tensor], low: Finite, high: Finite, points: Count = 513, name: str = "curve") -> Curve:
        """The table of a function of u (torch, node by node) between two values of u."""
        at = torch.linspace(low, high, points, dtype=torch.float64)
        values = tensor(function(at), "what the function returns")
        return cls(at, values.expand(len(at)) if values.dim() == 0 else values, name=name)

    @checked
    def melting(self, heat: Scalar, low: float, high: float | None = None) -> Curve:
        """The same capacity with a latent heat per volume, taken up evenly between two values of u.

        At one value alone the transition is sharp: it is spread over a thousandth of what the latent heat would change u by.
        """
        if high is None:
            capacity = self.value(torch.tensor(low, dtype=torch.float64)).detach()
            half = 0.5 * SHARP * float(torch.as_tensor(heat).detach() / capacity)
            low, high = low - half, low + half
        return replace(self, latent=(*self.latent, Latent(heat, low, high)))

    def __mul__(self, factor: Array) -> Curve | Scaled:
        """The curve in other units (a number), or times a field of numbers or tensors in the cells."""
        if np.ndim(factor):
            return Scaled(self, factor)
        by = torch.as_tensor(factor, dtype=torch.float64, device=self.points[1].device)
        return replace(self, values=self.points[1] * by, latent=tuple(replace(x, heat=by * x.heat) for x in self.latent))

    # ------------------------------------------------------------------ what is known of it

    @property
    def low(self) -> float:
        return float(self.points[0][0])

    @property
    def high(self) -> float:
        return float(self.points[0][-1])

    @property
    def least(self) -> float:
        return float(self.points[1].detach().min())

    @property
    def mean(self) -> Tensor:
        """The mean over its range without the latent heat: what stands for the curve where a number is asked for."""
        at, values = self.points
        return (0.5 * (values[1:] + values[:-1]) * at.diff()).sum() / (at[-1] - at[0])

    @property
    def bends(self) -> list[float]:
        """Values of u at which it jumps: the ends of melting ranges."""
        return sorted({x for melt in self.latent for x in (melt.low, melt.high)})

    # ------------------------------------------------------------------ evaluation

    @property
    def segments(self) -> Segments:
        """Differentiable in the values and latent heats; kept where they need no gradients."""
        tracked = self.points[1].requires_grad or any(torch.is_tensor(x.heat) and x.heat.requires_grad for x in self.latent)
        return self._cut() if tracked else self._kept

    @cached_property
    def _kept(self) -> Segments:
        return self._cut()

    def _cut(self) -> Segments:
        at, values = self.points
        extra = torch.tensor(self.bends, dtype=at.dtype, device=at.device)
        knots = torch.cat([at, extra]).unique()
        left = torch.cat([knots[:1], knots])
        middle = torch.cat([knots[:1] - 1, 0.5 * (knots[1:] + knots[:-1]), knots[-1:] + 1])
        own = torch.bucketize(middle, at).clamp(1, len(at) - 1)  # the interval of points that holds the piece
        slope = (values[own] - values[own - 1]) / (at[own] - at[own - 1])
        inside = (middle > at[0]) & (middle < at[-1])
        slope = torch.where(inside, slope, torch.zeros_like(slope))
        start = torch.where(inside, values[own - 1] + slope * (left - at[own - 1]),
                            torch.where(middle < at[0], values[0], values[-1]))
        for melt in self.latent:
            over = (middle > melt.low) & (middle < melt.high)
            start = start + over * (torch.as_tensor(melt.heat, dtype=at.dtype, device=at.device) / (melt.high - melt.low))
        width = knots.diff()
        grown = width * (start[1:-1] + 0.5 * slope[1:-1] * width)
        total = torch.cat([grown.new_zeros(1), grown.cumsum(0)])
        total = total - total[torch.searchsorted(knots, at[0])]
        return Segments(knots, left, start, slope, torch.cat([total[:1], total]))

    def _pieces(self, u: Tensor) -> tuple[Tensor, ...]:
        s = Segments(*(x.to(u.device, u.dtype) for x in self.segments))
        k = s.place(u)
        return u - s.left[k], s.value[k], s.slope[k], s.integral[k]

    def value(self, u: Tensor) -> Tensor:
        """The coefficient at u, the share of the latent heat included."""
        x, value, slope, _ = self._pieces(u)
        return value + slope * x

    def integral(self, u: Tensor) -> Tensor:
        """The integral over u from the first point: the enthalpy of a capacity, Kirchhoff's transform of a diffusion."""
        x, value, slope, integral = self._pieces(u)
        return integral + x * (value + 0.5 * slope * x)


# ---------------------------------------------------------------------- on a mesh


@checked
@dataclass(frozen=True, eq=False)
class Scaled:
    """A curve of u times what does not change with u: D(u) = curve(u) * by.

    - `curve`: of u
    - `by`: a number, one per cell [K], a symmetric tensor [d, d] or one per cell [K, d, d]

        >>> import dgnet as dg
        >>> along = dg.Scaled(dg.Curve([300.0, 900.0], [1.0, 0.6]), [[50.0, 0.0], [0.0, 5.0]])  # wood: ten times along the grain
        >>> dg.Problem(dg.box((4, 4)), dg.PDE(("T",), diffusion=along), [], dt=1.0).pde.curved
        True
    """

    curve: Curve
    by: Array


Plain = Array | Curve | Scaled


@checked
@dataclass(frozen=True, eq=False)
class ByRegion:
    """A coefficient for each region of a mesh: numbers, tensors [d, d], curves of u or scaled curves.

    - `parts`: name of a region -> coefficient; "elsewhere" for the cells in none of them

        >>> import dgnet as dg
        >>> dg.ByRegion({"steel": dg.Curve([300.0, 900.0], [50.0, 30.0]), "elsewhere": 0.2}).curves[0].high
        900.0
    """

    parts: Mapping[str, Plain]

    @property
    def curves(self) -> list[Curve]:
        return [c for part in self.parts.values() for c in curves_of(part)]

    def cells(self, mesh: Mesh, what: str) -> dict[str, np.ndarray]:
        """The cells of each region; together they are all cells, each once."""
        owner = np.full(mesh.n_cells, "", dtype=object)
        for region in self.parts:
            if region == ELSEWHERE:
                continue
            if region not in mesh.regions:
                raise InputError(f"{what}: there is no region '{region}'"
                                 + did_you_mean(region, [*mesh.regions, ELSEWHERE], "the mesh has the regions"))
            mine = mesh.regions[region]
            twice = mine[owner[mine] != ""]
            if len(twice):
                raise InputError(f"{what}: cell {twice[0]} is in the regions '{owner[twice[0]]}' and '{region}'")
            owner[mine] = region
        left = np.flatnonzero(owner == "")
        if len(left) and ELSEWHERE not in self.parts:
            raise InputError(f"{what}: cell {left[0]} is in none of its regions; give '{ELSEWHERE}' a value, too")
        owner[left] = ELSEWHERE
        return {region: np.flatnonzero(owner == region) for region in self.parts}


Varied = Plain | ByRegion


def curves_of(value: Varied) -> list[Curve]:
    """The curves in a coefficient."""
    if isinstance(value, ByRegion):
        return value.curves
    return [value] if isinstance(value, Curve) else [value.curve] if isinstance(value, Scaled) else []


def frozen(value: Varied) -> Array | ByRegion:
    """The coefficient with the value at the lower end of every curve in place of the curve: that of the linear equation."""
    if isinstance(value, ByRegion):
        return ByRegion({region: frozen(part) for region, part in value.parts.items()})  # type: ignore[misc]
    if isinstance(value, Scaled):
        return torch.as_tensor(value.by, dtype=torch.float64) * float(value.curve.points[1][0].detach())
    return float(value.points[1][0].detach()) if isinstance(value, Curve) else value


def in_places(value: Varied) -> bool:
    """The coefficient belongs to the cells, nodes or regions of one mesh."""
    if isinstance(value, ByRegion):
        return True
    return not isinstance(value, Curve) and np.ndim(value.by if isinstance(value, Scaled) else value) in (1, 3)


class Law(NamedTuple):
    """A part of a coefficient: a factor in each cell times a curve of u, or the factor alone."""

    curve: Curve | None
    factor: Tensor  # [], [K], [d, d] or [K, d, d], in double precision

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest value where it acts; of a tensor, its eigenvalues'."""
        own = self.factor.detach() if self.factor.dim() <= 1 else torch.linalg.eigvalsh(self.factor.detach())
        own = own[own != 0] if bool((own != 0).any()) else own.reshape(-1)[:1]
        values = torch.ones(1, dtype=torch.float64) if self.curve is None else self.curve.points[1].detach().cpu()
        return float(own.min()) * float(values.min()), float(own.max()) * float(values.max())


def laws(value: Varied, mesh: Mesh, what: str, device: torch.device | str = "cpu") -> list[Law]:
    """A coefficient as a sum of laws, those without a curve in one. `what` names it in messages."""
    def number(x: Array) -> Tensor:
        return torch.as_tensor(x, dtype=torch.float64, device=device)

    if not isinstance(value, ByRegion):
        if isinstance(value, Scaled):
            return [Law(value.curve, number(value.by))]
        return [Law(value, number(1.0))] if isinstance(value, Curve) else [Law(None, number(value))]
    found: list[Law] = []
    plain: Tensor | None = None
    for region, cells in value.cells(mesh, what).items():
        mask = torch.zeros(mesh.n_cells, dtype=torch.float64, device=device)
        mask[torch.as_tensor(cells, device=device)] = 1.0
        for law in laws(value.parts[region], mesh, what, device):  # type: ignore[arg-type]
            part = _masked(law.factor, mask, f"{what}.{region}", mesh)
            if law.curve is not None:
                found.append(Law(law.curve, part))
            else:
                plain = part if plain is None else _sum(plain, part)
    return found if plain is None else [*found, Law(None, plain)]


def typical(value: Varied, mesh: Mesh, what: str) -> Array:
    """The coefficient with the mean of every curve in place of the curve: a number, per cell or tensors, as an `Array`."""
    if not isinstance(value, ByRegion | Curve | Scaled):
        return value
    total: Tensor | None = None
    for law in laws(value, mesh, what):
        part = law.factor if law.curve is None else law.factor * law.curve.mean.to(law.factor.device)
        total = part if total is None else _sum(total, part)
    assert total is not None
    return total


def _masked(factor: Tensor, mask: Tensor, what: str, mesh: Mesh) -> Tensor:
    d, cells = mesh.dim, mesh.n_cells
    if tuple(factor.shape) not in ((), (cells,), (d, d), (cells, d, d)):
        raise InputError(f"{what} must be a number, one per cell [{cells}] or a tensor [{d}, {d}], got shape {list(factor.shape)}")
    return factor * mask if factor.dim() <= 1 else factor * mask[:, None, None]


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two factors; numbers in cells are multiples of the identity where the other is a tensor."""
    def like(part: Tensor, other: Tensor) -> Tensor:
        eye = torch.eye(other.shape[-1], dtype=part.dtype, device=part.device) if part.dim() <= 1 < other.dim() else None
        return part if eye is None else part.reshape(-1, 1, 1) * eye

    return like(a, b) + like(b, a)


class Tables(NamedTuple):
    """Several curves on common knots: one search gives all of them."""

    knots: Tensor  # [m]
    rows: Tensor  # [1 + 3 L, m + 1]: where each piece begins, and there the value, the slope and the integral of each curve

    def at(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Values and integrals of all curves at u [...]: both [L, ...]."""
        k = torch.bucketize(u.detach().contiguous(), self.knots, right=True).reshape(-1)
        found = self.rows.gather(1, k.expand(len(self.rows), -1))  # many times quicker than index_select
        x = u.reshape(-1) - found[0]
        value, slope, integral = found[1:].reshape(3, -1, len(x)).unbind(0)
        change = slope * x
        return (value + change).view(-1, *u.shape), torch.addcmul(integral, x, value + 0.5 * change).view(-1, *u.shape)


def tabulated(curves: Sequence[Curve], device: torch.device | str = "cpu") -> Tables:
    """Curves on the union of their knots, in double precision; differentiable in their values."""
    pieces = [Segments(*(x.to(device) for x in c.segments)) for c in curves]
    knots = torch.cat([s.knots for s in pieces]).unique()
    left = torch.cat([knots[:1], knots])
    middle = torch.cat([knots[:1] - 1, 0.5 * (knots[1:] + knots[:-1]), knots[-1:] + 1])
    values, slopes, integrals = [], [], []
    for s in pieces:
        k = s.place(middle)
        x = left - s.left[k]
        values.append(s.value[k] + s.slope[k] * x)
        slopes.append(s.slope[k])
        integrals.append(s.integral[k] + x * (s.value[k] + 0.5 * s.slope[k] * x))
    return Tables(knots, torch.stack([left, *values, *slopes, *integrals]))
