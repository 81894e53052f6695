"""The balance of a rollout, term by term: what entered, what is stored, what left.

    stored = source + fluxes + exchange + fixed values - decay - carried away (+ made) + gap

Stored is the change of the integral of H(u) (of c u, where c is a number). Every term but the stored one is an integral over time,
taken as Crank-Nicolson takes it. What enters where values are fixed is what the equations of those nodes lack. What is left over is
made by a reaction or by learned parts, where there are any; otherwise it is a gap, within the tolerance of the solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import torch

from dgnet.problems import Problem
from dgnet.problems.curves import Curve
from dgnet.stepping.fold import product
from dgnet.stepping.material import Materials, Term

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
    """Follows a rollout of one trajectory: call `state` with every state in turn, `source` with the source of every step."""

    def __init__(self, problem: Problem, t0: float = 0.0, learned: bool = False) -> None:
        p = self.problem = problem.double
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
        self.sourced = inner.clone() if self.sourced is None else self.sourced.add_(inner)

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

        over = {key: dt * (value - 0.5 * (first[key] + self.last[key])) for key, value in self.sums.items()}
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
        fixed, free = (rest * held).sum(0), (rest * ~held).sum(0)
        rows = [x.sum(0).tolist() for x in (stored, source, fluxes, exchange)]
        rows += [fixed.tolist(), (-decay.sum(0)).tolist(), (-carried.sum(0)).tolist()]
        rows += [free.tolist() if self.making else [0.0] * width, [0.0] * width if self.making else free.tolist()]
        return [Totals(*(row[k] for row in rows)) for k in range(width)]


def _integral(curve: Curve | None, u: Tensor) -> Tensor:
    return u if curve is None else curve.integral(u)
