"""The equations of one step in the enthalpy, at all nodes: evaluation, the linear systems of Newton's method, and the inverse.

E(u) is the enthalpy in the volume of each node, phi the stacked integrals that the wide matrix W acts on (`enthalpy`). Arrays are
[n, B, F] and [m, n, B, F] for the m terms of W.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csc_array, diags_array, eye_array
from scipy.sparse.linalg import splu

from dgnet.operators import EdgeMatrix
from dgnet.operators.wide import Wide
from dgnet.problems import Problem
from dgnet.problems.curves import Curve, Tables
from dgnet.stepping.bounds import Bounds, bounds_of, norm_bound
from dgnet.stepping.material import Materials, Term

Tensor = torch.Tensor

MOST = {"cpu": 500, "cuda": 3000}
"""Iterations beyond which a factorisation for each column is quicker."""
_MISS = 10.0  # the norm that is looked at is not the one that the bounds are for
_ROUNDING = 100 * torch.finfo(torch.float64).eps
_TINY = torch.finfo(torch.float64).tiny


class At(NamedTuple):
    """Everything at a state u: enthalpy E and its slope D in u, and phi and their slopes."""

    u: Tensor
    E: Tensor
    D: Tensor
    phi: Tensor
    slope: Tensor


class System:
    """The terms of a step from t to t + dt, or of a stage that is a `share` of it; `curves` are those of `tables`, in order."""

    def __init__(self, p: Problem, m: Materials, curves: list[Curve], tables: Tables, t: float, theta: float,
                 dt: float, share: float = 1.0) -> None:
        self.problem, self.tables, self.dt = p, tables, dt * share
        self.mass_low = m.mass_low
        place = {id(c): k for k, c in enumerate(curves)}
        device = p.geometry.device

        def index(terms: list[Term]) -> list[int]:
            return [-1 if term.curve is None else place[id(term.curve)] for term in terms]  # -1: u itself

        def columns(terms: list[Term]) -> Tensor:
            return torch.tensor([[float(k in term.fields) for k in range(p.n_fields)] for term in terms], dtype=torch.float64,
                                device=device)  # [terms, F]

        mass = list(m.mass)
        sums = [term.matrix.row_sums() for term in mass]
        self.mass_curve = index(mass)
        self.volume = torch.stack(sums)[:, :, None, None] * columns(mass)[:, None, None]  # [mass terms, n, 1, F]
        coupled = [Term(term.matrix - EdgeMatrix.from_diagonal(term.matrix.pattern, one), term.curve, term.fields)
                   for term, one in zip(mass, sums) if m.coupled]
        carried, linear = list(m.carried(t + 0.5 * dt)), list(m.linear(t, dt))
        self.terms = [*coupled, *m.spread, *carried, *linear]
        self.coupled, self.spreading = len(coupled), len(m.spread)
        self.closed = p.fixed is None and not carried and not linear
        rest = len(self.terms) - self.coupled
        self.factors = [1.0] * self.coupled + [theta * self.dt] * rest
        self.ratios = torch.tensor([-1.0] * self.coupled + [(1 - theta) / theta] * rest, dtype=torch.float64,
                                   device=device)[:, None, None, None]
        # where rows sum to zero, what is the same everywhere is taken away before the product: a constant then stays one, exactly
        closed = [True] * (self.coupled + len(m.spread)) + [p.advection_form != "skew"] * len(carried)
        self.shifted = closed + [False] * len(linear)
        self.curve = index(self.terms)
        own = columns(self.terms)
        self.own = None if bool(own.all()) else own[:, None, None]
        self.wide = Wide([EdgeMatrix(term.matrix.pattern, term.matrix.values.detach()) for term in self.terms], self.factors)
        self.free = None if p.fixed is None else (~p.fixed.T)[:, None].double()  # [n, 1, f]
        self.high = max([1.0, *(_highest(term.matrix) for term in (*mass, *m.spread, *linear))])
        self.imag = 0.0
        if p.pde.velocity is not None:
            A = p.mass + p.stiffness(t, dt) * (theta * self.dt)
            self.imag = bounds_of(A, p.mass, p.mass_bounds[0], p.advection(t + 0.5 * dt)).imag

    # ------------------------------------------------------------------ evaluation

    def at(self, u: Tensor) -> At:
        """Everything at u [n, B, F]; differentiable in u and in the curves."""
        one, pivot = torch.ones_like(u), self.problem.pivot
        values, integrals = ((*found.unbind(0), more) for found, more in zip(self.tables.at(u), (one, u)))
        E, D = self.volume[0] * integrals[self.mass_curve[0]], self.volume[0] * values[self.mass_curve[0]]
        for volume, k in zip(self.volume[1:], self.mass_curve[1:]):
            E, D = torch.addcmul(E, volume, integrals[k]), torch.addcmul(D, volume, values[k])
        chosen = [integrals[k] for k in self.curve]
        phi = torch.stack([x - x[pivot:pivot + 1] if shifted else x for x, shifted in zip(chosen, self.shifted)])
        slope = torch.stack([values[k] for k in self.curve])
        return At(u, E, D, *((phi, slope) if self.own is None else (phi * self.own, slope * self.own)))

    def product(self, phi: Tensor) -> Tensor:
        """W phi: [m, n, B, F] -> [n, B, F], without gradients."""
        return (self.wide @ phi).view(phi.shape[1:])

    def magnitude(self, at: At) -> Tensor:
        """Size of the terms whose sum is a residual [n, B, F]: their rounding is what no iteration can pass.

        An integral has the rounding of u times its slope, too, and phi that of what was taken away at the pivot.
        """
        away = self.tables.at(at.u[self.problem.pivot])[1]
        taken = torch.stack([at.u[self.problem.pivot] if k < 0 else away[k] for k in self.curve])[:, None]
        parts = at.phi.abs() + taken.abs() + at.slope * at.u.abs()
        return at.E.abs() + at.D * at.u.abs() + (self.wide.diagonals.abs()[..., None, None] * parts).sum(0)

    def gathered(self, phi: Tensor) -> Tensor:
        """W phi, with gradients in phi and in the matrices."""
        parts = [(term.matrix @ x.flatten(1)) * factor for term, x, factor in zip(self.terms, phi, self.factors)]
        return torch.stack(parts).sum(0).view(phi.shape[1:])

    def stored(self, u: Tensor) -> Tensor:
        """M H(u) [n, B, F], with gradients."""
        at = self.at(u)
        return at.E + self.gathered(torch.where(self.ratios < 0, at.phi, torch.zeros_like(at.phi)))

    def masked(self, x: Tensor) -> Tensor:
        """x on the free nodes, zero on those with fixed values."""
        return x if self.free is None else x * self.free

    def imposed(self, u: Tensor, wall: Tensor | None) -> Tensor:
        return u if wall is None or self.free is None else torch.where(self.free.bool(), u, wall)

    # ------------------------------------------------------------------ linear systems

    def solve(self, at: At, right: Tensor, reduction: float, known: Bounds | None = None, transposed: bool = False) -> Tensor:
        """z with (I + W q) z = right on the free nodes, q = slope / D, to a relative residual of `reduction`.

        Chebyshev's iteration; a factorisation where that would take too long (a strong flow), or where the bounds do not hold and a
        run of it misses. In a closed box what is left of the residual is spread such that its sum is zero: E + z conserves.
        `transposed`: with the transposed matrix, and without that. `known`: bounds that hold at any state, and nothing is looked
        at; None measures those of this one.
        """
        q = at.slope / at.D
        P = 1 + (self.wide.diagonals[..., None, None] * q).sum(0)
        bounds = known or self._bounds(*self._share(q, P))
        count = bounds.iterations(reduction)
        if count > MOST[right.device.type] * right[0].numel():
            return self._direct(q, right, transposed)
        flat = q.flatten(2), self.masked(1 / P).flatten(1)
        x, left = self._iterated(*flat, right.flatten(1), bounds.coefficients(count), transposed)
        if known is None:
            weight, share = flat[1].sqrt(), 1.0
            size = (right.flatten(1) * weight).norm(dim=0)
            while not bool(((now := (left * weight).norm(dim=0)) <= _MISS * reduction * size).all()):
                now = now - _ROUNDING * (x * self.masked(P.sqrt()).flatten(1)).norm(dim=0)
                before, share = share, float((now / size.clamp(min=_TINY)).max())
                if share <= _MISS * reduction:
                    break
                if not share < 0.1 * before:
                    return self._direct(q, right, transposed)
                more, left = self._iterated(*flat, left, bounds.coefficients(count), transposed)
                x = x + more
        if self.closed and not transposed:
            x = x + self._spread(at).flatten(1) * left.sum(0)
        return x.view(at.u.shape)

    def _iterated(self, q: Tensor, inverse: Tensor, right: Tensor, coefficients: list[tuple[float, float]],
                  transposed: bool) -> tuple[Tensor, Tensor]:
        """Chebyshev's iteration from zero: the solution and its residual [n, columns]."""
        x, left, p = torch.zeros_like(right), right, torch.zeros_like(right)
        for alpha, beta in coefficients:
            p.mul_(beta).addcmul_(left, inverse)
            x.add_(p, alpha=alpha)
            if transposed:
                left = right - x - (q * self.wide.transposed(x)).sum(0)
            else:
                left = self.wide.taken(right - x, q * x)
        return x, left

    def _spread(self, at: At) -> Tensor:
        """A change of the enthalpy with the sum 1 that K does not see: theta changes by the same number everywhere.

        Where the diffusion all but vanishes it is taken larger, at least a thousandth of the largest one.
        """
        own = slice(self.coupled, self.coupled + self.spreading)
        weight = self.wide.diagonals[own, :, None, None]
        k = (weight * at.slope[own]).sum(0)
        top = k.amax(0)
        k = torch.maximum(k, torch.where(top > 0, 1e-3 * top, torch.ones_like(top)))
        share = at.D * weight.sum(0).clamp(min=1e-300) / k
        return share / share.sum(0)

    def _direct(self, q: Tensor, right: Tensor, transposed: bool) -> Tensor:
        """The same by a factorisation on the host for each column."""
        free = np.ones(right.shape) if self.free is None else self.free.expand_as(right).cpu().numpy()
        slopes, wanted = q.cpu().numpy(), right.cpu().numpy()
        found = np.zeros(right.shape)
        for b, f in np.ndindex(*right.shape[1:]):
            mask = free[:, b, f]
            A = diags_array(mask) @ self.wide.collapsed(slopes[:, :, b, f]) @ diags_array(mask) + eye_array(len(mask))
            found[:, b, f] = splu(csc_array(A)).solve(wanted[:, b, f] * mask, trans="T" if transposed else "N")
        return torch.from_numpy(found).to(right.device)

    def _share(self, q: Tensor, P: Tensor) -> tuple[float, float]:
        """The least share of the mass in the diagonal of a row, and the largest of everything else."""
        mass = 1 + (self.wide.diagonals[:self.coupled, :, None, None] * q[:self.coupled]).sum(0) if self.coupled else 1.0
        share = mass / P
        return float(share.min()), 1 - float(share.min())

    def _bounds(self, least: float, most: float) -> Bounds:
        spread = (self.high - 1.0) * (1.0 if self.coupled else max(most, 0.01))
        return Bounds(self.mass_low * least, 1.0 + spread, self.imag, tight=True)

    @cached_property
    def worst(self) -> Bounds:
        """Bounds that hold at any state: the ratio of two curves is largest where one of them bends."""
        t = self.tables
        edges = torch.cat([t.knots, torch.nextafter(t.knots, torch.full_like(t.knots, -torch.inf))])
        least, most = 1.0, 0.0
        ones = torch.ones(self.problem.n, 1, self.problem.n_fields, dtype=torch.float64, device=t.knots.device)
        for x in edges:
            at = self.at(ones * x)
            q = at.slope / at.D
            low, high = self._share(q, 1 + (self.wide.diagonals[..., None, None] * q).sum(0))
            least, most = min(least, low), max(most, high)
        return self._bounds(least, most)

    # ------------------------------------------------------------------ the inverse

    def inverse(self, E: Tensor) -> Tensor:
        """u with the enthalpy E [n, B, F], exactly."""
        if len(self._mixtures) == 1:
            return self._mixtures[0].inverse(E)
        u = torch.empty_like(E)
        for mixture in self._mixtures:
            u.index_copy_(2, mixture.fields, mixture.inverse(E.index_select(2, mixture.fields)))
        return u

    # ------------------------------------------------------------------ how far a step may go

    def ahead(self, at: At, z: Tensor) -> Callable[[Tensor], Tensor]:
        """u on the way that a change z of the enthalpy begins, as a function of how much of it is gone [B, F].

        The way is straight in s = E + (diagonal of W) phi, what a node would take up if its neighbours stayed as they are: one that
        comes out of a melting range, or to where it conducts better, is not carried further than that allows.
        """
        plain = torch.stack([torch.ones_like(at.u), at.u])
        values, integrals = (torch.cat([x, more[None]]) for x, more in zip(self.tables.at(at.u), plain))
        s, change = (self._alone * integrals).sum(0), (self._alone * values).sum(0) * z / at.D
        return lambda share: self._where(s + share * change)

    @cached_property
    def _alone(self) -> Tensor:
        """Weights of the integral of each curve, and of u itself, in s at each node [L + 1, n, 1, F]."""
        diagonals = self.wide.diagonals[..., None, None] * (1.0 if self.own is None else self.own)
        volume, curves = self.volume.detach(), len(self.tables.rows) // 3
        total = volume.new_zeros(curves + 1, *volume.shape[1:])
        for k, part in zip(self.mass_curve, volume):
            total[k] += part
        for j, (k, part) in enumerate(zip(self.curve, diagonals)):
            total[k] += part if j < self.coupled else part.clamp(min=0.0)  # a flow may take away
        return total

    def _where(self, s: Tensor) -> Tensor:
        """u from s [n, B, F]: halving the knots, since a table of s for each node would not fit into memory; then exactly."""
        rows = self.tables.rows.detach()
        plain = torch.stack([torch.ones_like(rows[0]), torch.zeros_like(rows[0]), rows[0]])[:, None]
        value, slope, integral = torch.cat([rows[1:].reshape(3, -1, rows.shape[1]), plain], 1)  # [L + 1, m + 1] each

        def at(table: Tensor, k: Tensor) -> Tensor:
            return (self._alone * table[:, k]).sum(0)

        last = rows.shape[1] - 1
        k, beyond = torch.zeros_like(s, dtype=torch.long), torch.full_like(s, last, dtype=torch.long)  # the piece lies between
        for _ in range(last.bit_length()):
            middle = (k + beyond + 1) // 2
            passed = at(integral, middle) <= s
            k, beyond = torch.where(passed, middle, k), torch.where(passed, beyond, middle - 1)
        h, c = s - at(integral, k), at(value, k)
        return rows[0][k] + 2 * h / (c + (c * c + 2 * at(slope, k) * h).clamp_(min=0).sqrt_())

    @cached_property
    def _mixtures(self) -> list[_Mixture]:
        """Fields that have the same terms in E, each group with these terms. Nothing of them is copied to the device later on."""
        volume, rows = self.volume.detach(), self.tables.rows.detach()
        own = torch.stack([torch.ones_like(rows[0]), torch.zeros_like(rows[0]), rows[0]])[:, None]
        pieces = torch.cat([rows[1:].reshape(3, -1, rows.shape[1]), own], 1)  # [3, L + 1, m + 1]: the last one is u itself
        found: dict[tuple[int, ...], list[int]] = {}
        for field, row in enumerate((volume != 0).any(1)[:, 0].T.tolist()):
            found.setdefault(tuple(k for k, there in enumerate(row) if there), []).append(field)
        mixtures = []
        for terms, fields in found.items():
            curves = [self.mass_curve[k] for k in terms]
            V = torch.stack([volume[k, :, :, fields[0]] for k in terms])  # [terms, n, 1]: fields that share terms share volumes
            plain = all(k < 0 for k in curves)
            table = torch.stack([pieces[:, k] for k in curves], 1)
            total = V.new_empty(0) if plain or len(terms) == 1 else torch.einsum("tn,tm->nm", V[..., 0], table[2])
            mixtures.append(_Mixture(torch.tensor(fields, device=V.device), V, plain, rows[0], table, total,
                                     total[:, 1:].contiguous() if total.numel() else table[2, 0, 1:].contiguous(),
                                     torch.cat([rows[:1], table[:, 0]])))
        return mixtures


class _Mixture(NamedTuple):
    """Tables that give u from the enthalpy of nodes whose volume is made of the same materials."""

    fields: Tensor
    volume: Tensor  # [terms, n, 1]
    plain: bool  # E is linear in u
    left: Tensor  # [m + 1] where each piece between the knots begins
    pieces: Tensor  # [3, terms, m + 1]: value, slope and integral there
    total: Tensor  # [n, m + 1]: E there; empty for one material
    ends: Tensor  # [n, m] or [m]: E at the knots, of one material per volume
    rows: Tensor  # [4, m + 1]: left, value, slope and integral of the first material

    def inverse(self, E: Tensor) -> Tensor:
        if self.plain:
            return E / self.volume.sum(0)[..., None]
        flat = E.flatten(1)
        if len(self.volume) == 1:
            flat = flat / self.volume[0]
            k = torch.bucketize(flat, self.ends, right=True)
            start, c, s, total = self.rows.gather(1, k.view(1, -1).expand(4, -1)).view(4, *flat.shape).unbind(0)
        else:
            k = torch.searchsorted(self.ends, flat.contiguous(), right=True)
            c, s = ((self.volume * x[:, k]).sum(0) for x in self.pieces[:2])
            start, total = self.left[k], self.total.gather(1, k)
        h = flat - total
        return (start + 2 * h / (c + torch.addcmul(c * c, s, h, value=2).clamp_(min=0).sqrt_())).view(E.shape)


def _highest(A: EdgeMatrix) -> float:
    """A bound of the largest eigenvalue of diag(A)^-1 A on the rows that have a diagonal, A symmetric."""
    diagonal = A.diagonal.detach()
    root = torch.where(diagonal > 0, diagonal, torch.ones_like(diagonal)).rsqrt() * (diagonal > 0)
    scaled = A.values.detach() * root.index_select(-1, A.pattern.row) * root.index_select(-1, A.pattern.col)
    return 1.0 + float(norm_bound(A.pattern, scaled.index_fill(-1, A.pattern.diagonal, 0.0)))
