"""The balance of a rollout, term by term: what entered, what is stored, what left.

    stored = source + fluxes + exchange + fixed values - decay - carried away (+ made) + gap

Stored is the change of the integral of H(u) (of c u, where c is a number). Every term but the stored one is an integral over time,
taken as its step takes it: by both ends, or by the line that an L-stable step has in between. What enters
where values are fixed is what the equations of those nodes lack. What is left over is made by a reaction or by learned parts, where
there are any; otherwise it is a gap, within the tolerance of the solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import torch

from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.problems.curves import Curve
from dgnet.stepping.backends import prepare
from dgnet.stepping.enthalpy import EnthalpySolver
from dgnet.stepping.fold import fold, product, unfold
from dgnet.stepping.material import Materials, Term
from dgnet.stepping.operator import Elimination
from dgnet.stepping.stiff import GAMMA

Tensor = torch.Tensor


@dataclass(frozen=True)
class Totals:
    """The balance of one field over a rollout, per metre of depth in 2D: heat in J/m or J, or the field times area or volume."""

    stored: float
    source: float
    fluxes: float
    exchange: float
    fixed: float
    decay: float
    carried: float
    made: float  # by a reaction or learned parts
    gap: float

    @classmethod
    def of(cls, row: Mapping[str, float]) -> Totals:
        """From `as_dict`."""
        return cls(**{f.name: row[f.name] for f in fields(cls)})

    @property
    def entered(self) -> float:
        return sum(max(0.0, x) for x in self.terms.values())

    @property
    def left(self) -> float:
        return sum(max(0.0, -x) for x in self.terms.values())

    @property
    def terms(self) -> dict[str, float]:
        return {name: x for name, x in asdict(self).items() if name not in ("stored", "gap")}

    @property
    def closes(self) -> float:
        """The gap in parts of what moved."""
        size = max(self.entered, self.left, abs(self.stored))
        return abs(self.gap) / size if size > 0 else 0.0

    def as_dict(self) -> dict[str, float]:
        return asdict(self) | {"entered": self.entered, "left": self.left, "closes": self.closes}

    def sentence(self, unit: str) -> str:
        """entered 12 J/m (source 12), left 2 J/m (exchange 2), stored 10 J/m; closes to 1e-12."""
        def part(word: str, total: float, sign: float) -> str:
            named = ", ".join(f"{name} {abs(x):.4g}" for name, x in self.terms.items() if sign * x > 0)
            return f"{word} {f'{total:.5g} {unit}'.rstrip()}" + (f" ({named})" if named else "")

        stored = f"stored {f'{self.stored:.5g} {unit}'.rstrip()}"
        text = ", ".join([part("entered", self.entered, 1.0), part("left", self.left, -1.0), stored])
        return text + ("" if self.made else f"; closes to {self.closes:.0e}")


class Balance:
    """Follows a rollout of one trajectory: call `state` with every state in turn, `source` with the source of every step.

    `start`: how many steps after the start, or after a jump, are L-stable. Their mean is not that of their ends.
    """

    def __init__(self, problem: Problem, t0: float = 0.0, learned: bool = False, start: int = 0) -> None:
        p = self.problem = problem.double
        self.start, self.begun = start, list[tuple[int, Tensor, Tensor]]()  # L-stable steps with the states at both ends
        self.driven: dict[int, Tensor] = {}  # the sources of these steps, where capacity or diffusion are curves
        self.sources = 0
        self.before: Tensor | None = None
        m = self.materials = Materials.classical(p)
        self.t0, self.steps, self.making = t0, -1, learned or m.reaction is not None
        self.terms: dict[str, tuple[Term, ...]] = {"spread": m.spread, "carried": m.carried(0.0), "linear": m.linear(0.0, 0.0)}
        self.curves = {id(t.curve): t.curve for group in (m.mass, *self.terms.values()) for t in group}
        self.sums: dict[int, Tensor] = {}
        self.ends: list[dict[int, Tensor]] = []
        self.last: dict[int, Tensor] = {}
        self.sourced: Tensor | None = None

    def state(self, u: Tensor) -> None:
        """The next state [N, F]."""
        p = self.problem
        inner = p.restrict(u).to(p.geometry.device, torch.float64)
        if self.before is not None and self._starts(self.steps):
            self.begun.append((self.steps, self.before, inner))
        self.before = inner
        now = {key: _integral(curve, inner) for key, curve in self.curves.items()}
        self.steps += 1
        self.ends = [now] if not self.ends else self.ends
        self.last = now
        for key, value in now.items():
            self.sums[key] = value.clone() if key not in self.sums else self.sums[key].add_(value)

    def source(self, f: Tensor) -> None:
        """The average source of a step [N, F]."""
        p = self.problem
        inner = p.restrict(f).to(p.geometry.device, torch.float64)
        if p.pde.curved and self._starts(self.sources):
            self.driven[self.sources] = inner
        self.sources += 1
        self.sourced = inner.clone() if self.sourced is None else self.sourced.add_(inner)

    def _starts(self, k: int) -> bool:
        return k < self.start or (self.start > 0 and self.problem.jumps(self.t0 + k * self.problem.dt))

    def _means(self) -> tuple[dict[int, Tensor], Tensor]:
        """By how much integrals over L-stable steps differ from means of both ends, and what held values brought into the rows of
        free nodes as they were taken over [n, F]."""
        p, dt = self.problem, self.problem.dt
        found = {key: torch.zeros_like(value) for key, value in self.sums.items()}
        taken = torch.zeros(p.n, p.n_fields, dtype=torch.float64, device=p.geometry.device)
        solver = EnthalpySolver(p) if p.pde.curved and self.begun else None
        for k, u, new in self.begun:
            t = self.t0 + k * dt
            if solver is not None:
                inner = solver.stages(u[None], self.driven[k][None] if k in self.driven else None, t)[0][0]
                for key, curve in self.curves.items():
                    first, middle, last = (_integral(curve, x) for x in (u, inner, new))
                    found[key] += dt * ((1 - GAMMA) * middle + GAMMA * last - 0.5 * (first + last))
                continue
            w = p.fixed_values(t)
            held = u if w is None or p.fixed is None else torch.where(p.fixed.T, w, u)
            taken += product(p.mass, (held - u)[None])[0]
            found[id(None)] += dt * (0.5 * (new - u) - self._slope(held, new))
        return found, taken

    def _slope(self, u: Tensor, new: Tensor) -> Tensor:
        """Half of the change of the straight line that dG(1) has within a step: (2 M + dt K / 3) b = M (u+ - u)."""
        p = self.problem
        A = p.mass * 2.0 + p.stiffness(0.0) * (p.dt / 3)
        right = product(p.mass, (new - u)[None])
        if p.fixed is not None:
            walls = Elimination(p.fixed)
            A, right = walls.matrix(A), walls.right(A, right, 0.5 * (new - u)[None])
        b, f = A.values.shape[:2]
        ready = prepare(EdgeMatrix(A.pattern, A.values.reshape(b * f, -1).detach()), "lu", symmetric=p.pde.velocity is None)
        return unfold(ready.solve(fold(right.detach(), b, f)), b, f, 1, p.n_fields)[0]

    def totals(self) -> list[Totals]:
        """One for each field."""
        p, m, first = self.problem, self.materials, self.ends[0]
        width, dt = p.n_fields, p.dt

        def gathered(terms: tuple[Term, ...], values: dict[int, Tensor]) -> Tensor:
            total = torch.zeros(p.n, width, dtype=torch.float64, device=p.geometry.device)
            for term in terms:
                mask = torch.tensor([float(k in term.fields) for k in range(width)], dtype=torch.float64, device=total.device)
                total = total + mask * (term.matrix @ values[id(term.curve)])
            return total

        more, taken = self._means()
        over = {key: dt * (value - 0.5 * (first[key] + self.last[key])) + more[key] for key, value in self.sums.items()}
        change = {key: self.last[key] - first[key] for key in self.sums}
        stored, spread, carried = gathered(m.mass, change), gathered(m.spread, over), gathered(self.terms["carried"], over)
        times = [self.t0 + k * dt for k in range(self.steps)] if p.data_changes else [0.0]
        repeat = 1 if p.data_changes else self.steps
        u = over[id(None)] if id(None) in over else torch.zeros_like(stored)
        decay, exchange = product(p.decay_part.to(torch.float64), u[None])[0], torch.zeros_like(stored)
        convection = p.convection_part(0.0)
        if convection is not None:
            exchange = -product(convection, u[None])[0]
        fluxes = torch.zeros_like(stored)
        for t in times:
            for total, load in ((fluxes, p.flux_load(t, dt)), (exchange, p.convection_load(t, dt))):
                if load is not None:
                    total += dt * repeat * load
        source = torch.zeros_like(stored) if self.sourced is None else dt * product(m.source, self.sourced[None])[0]
        rest = stored + spread + carried + decay - exchange - fluxes - source
        held = torch.zeros_like(rest, dtype=torch.bool) if p.fixed is None else p.fixed.T.expand_as(rest)
        fixed, free = (rest * held + taken * ~held).sum(0), ((rest - taken) * ~held).sum(0)
        rows = [x.sum(0).tolist() for x in (stored, source, fluxes, exchange)]
        rows += [fixed.tolist(), (-decay.sum(0)).tolist(), (-carried.sum(0)).tolist()]
        rows += [free.tolist() if self.making else [0.0] * width, [0.0] * width if self.making else free.tolist()]
        return [Totals(*(row[k] for row in rows)) for k in range(width)]


def _integral(curve: Curve | None, u: Tensor) -> Tensor:
    return u if curve is None else curve.integral(u)
