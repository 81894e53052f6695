"""Random problems: linear ones and ones with curves, each from a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import dgnet as dg
from tests.independent.solver import Array, Independent, step_averages

Rng = np.random.Generator


@dataclass
class Drawn:
    """A problem with a start at all points of the model [B, N, F] and averages of its source [B, steps, N, F].

    `stiff`: its reaction is too fast for predictor and corrector.
    """

    problem: dg.Problem
    model: dg.Classical
    u0: Array
    source: Array | None
    steps: int
    stiff: bool = False

    def dgnet(self) -> Array:
        """States of dgnet at the nodes of the mesh [B, steps + 1, N, F]."""
        source = None if self.source is None else torch.from_numpy(self.source)
        with torch.no_grad():
            return dg.rollout(self.model, self.problem, torch.from_numpy(self.u0), source, self.steps).numpy()

    def other(self) -> Independent:
        share = self.model.consistent
        if share is None:
            share = 0.0 if self.problem.pde.curved else self.problem.consistent
        return Independent(self.problem, share, self.model.theta, self.model.degree, self.stiff)

    def independent(self) -> Array:
        """The same by the solver of this folder."""
        found = [self.other().rollout(u0, source, self.steps, self.model.start) for u0, source in self._batch()]
        return np.stack(found)[:, :, : self.problem.mesh.n_nodes]

    def misfit(self, states: Array) -> float:
        """How far these states are from solving the equations of the independent solver, in the worst step."""
        other, found = self.other(), 0.0
        for b, (_, source) in enumerate(self._batch()):
            for k in (k for k in range(self.steps) if not other.starts(k, self.model.start)):
                drive = other.drive(source, k, states[b, k][other.space.owner])
                found = max(found, other.misfit(states[b, k], drive, k, states[b, k + 1]))
        return found

    def _batch(self) -> list[tuple[Array, Array | None]]:
        return [(u0, None if self.source is None else self.source[b]) for b, u0 in enumerate(self.u0)]


def difference(one: Array, other: Array) -> float:
    """Of states [B, steps + 1, N, F], over the largest value of each field."""
    return float((np.abs(one - other).max((0, 1, 2)) / (np.abs(other).max((0, 1, 2)) + 1e-300)).max())


# ---------------------------------------------------------------------- pieces


def some_mesh(rng: Rng, size: float = 1.0) -> dg.Mesh:
    """A perturbed box in the plane or in space, of some proportions, with two or three regions."""
    flat = rng.random() < 0.7
    cells = tuple(int(k) for k in (rng.integers(4, 10, 2) if flat else rng.integers(2, 4, 3)))
    upper = tuple(float(size * x) for x in rng.uniform(0.5, 1.5, len(cells)))
    mesh = dg.box(cells, upper=upper, perturb=float(rng.choice([0.0, 0.15, 0.25 if flat else 0.15])), seed=int(rng.integers(1000)))
    place = mesh.centroids @ rng.normal(size=len(cells))
    cut = np.quantile(place, [0.3, 0.7])
    regions = {"low": np.flatnonzero(place <= cut[0]), "high": np.flatnonzero(place > cut[1])}
    return replace(mesh, regions=regions)


def polynomial(rng: Rng, lower: float, upper: float, time: float) -> Callable[[Any, float], Any]:
    """A function of place and time with values between two numbers for 0 <= t <= time."""
    middle, half = 0.5 * (lower + upper), 0.5 * (upper - lower)
    slopes, bend = 0.2 * rng.uniform(-1, 1, 3), rng.uniform(-0.4, 0.4, 2)

    def value(x: Any, t: float) -> Any:
        s = t / time
        across = sum(float(a) * x[:, k] for k, a in enumerate(slopes[:x.shape[1]]))  # boxes have sides of about one
        return middle + half * (across + float(bend[0] * s + bend[1] * s * s))

    return value


def data(rng: Rng, lower: float, upper: float, time: float) -> Any:
    return polynomial(rng, lower, upper, time) if rng.random() < 0.4 else float(rng.uniform(lower, upper))


def spd(rng: Rng, d: int, size: float) -> list[list[float]]:
    turn, _ = np.linalg.qr(rng.normal(size=(d, d)))
    return (turn @ np.diag(size * rng.uniform(0.2, 1.5, d)) @ turn.T).tolist()


def conditions(rng: Rng, mesh: dg.Mesh, fields: tuple[str, ...], lower: float, upper: float, conduct: float, time: float,
               periodic: bool = True) -> list[Any]:
    """On each side none or one of the three kinds; `conduct` is a conductivity over a length."""
    found: list[Any] = []
    pairs = [("left", "right"), ("bottom", "top"), ("back", "front")][: mesh.dim]
    if periodic and rng.random() < 0.2:
        pair = pairs.pop(int(rng.integers(len(pairs))))
        found.append(dg.Periodic(*pair))
    for name in (side for pair in pairs for side in pair):
        which = None if rng.random() < 0.7 else str(rng.choice(fields))
        kind = rng.choice(["none", "held", "flux", "exchange"])
        if kind == "held":
            found.append(dg.Dirichlet(name, data(rng, lower, upper, time), which))
        elif kind == "flux":
            size = conduct * (upper - lower)
            found.append(dg.Neumann(name, data(rng, -size, size, time), which))
        elif kind == "exchange":
            found.append(dg.Robin(name, data(rng, 0.1 * conduct, 3 * conduct, time), data(rng, lower, upper, time), which))
    return found


def starts(rng: Rng, x: Array, fields: int, lower: float, upper: float, batch: int) -> Array:
    """Smooth, rough, with a jump, or constant."""
    out = np.empty((batch, len(x), fields))
    for b in range(batch):
        for k in range(fields):
            kind = rng.choice(["smooth", "rough", "jump", "constant"])
            wave = np.sin(3 * x @ rng.normal(size=x.shape[1]) / np.abs(x).max() + rng.uniform(0, 6))
            share = {"smooth": 0.5 + 0.5 * wave, "rough": rng.random(len(x)), "jump": (wave > 0).astype(float),
                     "constant": np.full(len(x), rng.random())}[str(kind)]
            out[b, :, k] = lower + (upper - lower) * share
    return out


def sources(rng: Rng, x: Array, fields: int, size: float, dt: float, steps: int, batch: int) -> Array | None:
    if rng.random() < 0.4:
        return None
    made = []
    for _ in range(batch):
        centre, speed = x[rng.integers(len(x))], rng.normal(size=x.shape[1]) * np.abs(x).max() / (3 * steps * dt)
        width = 0.3 * np.abs(x).max()
        strengths = size * rng.uniform(-1, 1, fields)

        def spot(x: Array, t: float, centre: Array = centre, speed: Array = speed, width: float = width,
                 strengths: Array = strengths) -> Array:
            return np.exp(-(((x - centre - speed * t) / width) ** 2).sum(1))[:, None] * strengths

        made.append(step_averages(spot, x, dt, steps))
    return np.stack(made)


# ---------------------------------------------------------------------- linear problems


def linear(seed: int) -> Drawn:
    """Coefficients of all kinds, conditions of all kinds, flows in all forms, both degrees."""
    return drawn(np.random.default_rng([1, seed]))


def reacting(seed: int) -> Drawn:
    """The same with a reaction, slow against the step or fast."""
    rng = np.random.default_rng([3, seed])
    plain, fast = drawn(rng), rng.random() < 0.5
    rate = float(rng.uniform(5, 50) if fast else rng.uniform(0.05, 0.3)) / plain.problem.dt
    target, bend, mixing = float(rng.uniform(-1, 1)), float(rng.uniform(0, 0.2)), float(rng.uniform(-0.5, 0.5))

    def reaction(u: Any) -> Any:
        away = u - target
        return -rate * (away + bend * away**3 - (mixing * away.flip(-1) if u.shape[-1] > 1 else 0.0))

    problem = replace(plain.problem, pde=replace(plain.problem.pde, reaction=reaction))
    model = replace(plain.model, start=0, theta=0.5) if fast else plain.model
    return replace(plain, problem=problem, model=model, stiff=fast)


def drawn(rng: Rng) -> Drawn:
    mesh = some_mesh(rng)
    d, cells, nodes = mesh.dim, mesh.n_cells, mesh.n_nodes
    degree = 2 if rng.random() < 0.35 else 1
    fields = ("u",) if rng.random() < 0.6 else ("u", "v")
    steps, batch = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    number = float(10 ** rng.uniform(-2, 0.5))
    dt = number * mesh.spacing**2 / 0.1
    flows = rng.random() < 0.5
    form = str(rng.choice(["galerkin", "skew", "upwind"] if degree == 1 else ["galerkin", "skew"]))
    velocity: Any = None
    if flows:
        size = 0.5 * mesh.spacing / dt
        base = size * (rng.normal(size=d) + 0.3 * rng.normal(size=(nodes, d)))
        kind = rng.choice(["constant", "nodal", "time"])
        velocity = base[0].tolist() if kind == "constant" else base if kind == "nodal" else (
            lambda t: torch.from_numpy(base * (1 - 0.5 * t / (steps * dt))))

    def diffusion() -> Any:
        return [lambda: float(rng.uniform(0.05, 0.2)), lambda: rng.uniform(0.05, 0.2, cells), lambda: spd(rng, d, 0.1),
                lambda: np.array([spd(rng, d, 0.1) for _ in range(cells)]),
                lambda: dg.ByRegion({"low": 0.2, "high": spd(rng, d, 0.1), "elsewhere": 0.03})][int(rng.integers(5))]()

    def capacity() -> Any:
        kinds = [lambda: 1.0, lambda: float(rng.uniform(0.5, 3)), lambda: rng.uniform(0.5, 3, cells),
                 lambda: dg.ByRegion({"low": 2.0, "high": 0.7, "elsewhere": 1.0})]
        return kinds[int(rng.integers(2 if flows and form == "skew" else 4))]()

    def decay() -> Any:
        return [lambda: 0.0, lambda: float(rng.uniform(0, 1)), lambda: rng.uniform(0, 1, nodes)][int(rng.integers(3))]()

    def each(one: Callable[[], Any]) -> Any:
        return one() if len(fields) == 1 or rng.random() < 0.5 else {f: one() for f in fields}

    pde = dg.PDE(fields, diffusion=each(diffusion), velocity=velocity, decay=each(decay),
                 capacity=capacity() if flows else each(capacity))
    found = conditions(rng, mesh, fields, -1.0, 2.0, 0.1, steps * dt)
    problem = dg.Problem(mesh, pde, found, dt, advection_form=form)
    model = dg.Classical(consistent=None if degree == 2 else rng.choice([None, 0.0, 0.5, 1.0]), degree=degree,
                         theta=float(rng.choice([0.5, 0.5, 0.7, 1.0])), start=int(rng.integers(0, 3)))
    x = model.points(problem)
    u0 = starts(rng, x, len(fields), -1.0, 2.0, batch)
    return Drawn(problem, model, shared(problem, u0, degree), sources(rng, x, len(fields), 1.0 / dt, dt, steps, batch), steps)


def shared(problem: dg.Problem, u0: Array, degree: int = 1) -> Array:
    """The start with one value where periodic boundaries join nodes."""
    p = problem.quadratic if degree == 2 else problem
    return p.expand(p.restrict(torch.from_numpy(u0))).numpy() if p.periodic else u0


# ---------------------------------------------------------------------- curves


def conductivity(rng: Rng, lower: float, upper: float, size: float) -> dg.Curve:
    """Constant, bent, with a steep step, with a gap, or growing from zero."""
    span = upper - lower
    kind = rng.choice(["constant", "bent", "step", "gap", "power"])
    if kind == "constant":
        at, values = np.array([0.0, 1.0]), np.full(2, 1.0)
    elif kind == "bent":
        at = np.sort(rng.random(int(rng.integers(2, 7))))
        at, values = at + 1e-3 * np.arange(len(at)), 10 ** rng.uniform(-1, 0.3, len(at))
    elif kind == "step":
        middle, width = rng.uniform(0.2, 0.8), 10 ** rng.uniform(-3, -1)
        values = np.repeat(10 ** rng.uniform(-2, 0.5, 2), 2)
        at = np.array([0.0, middle - width, middle + width, 1.0])
    elif kind == "gap":
        middle, width = rng.uniform(0.2, 0.8), 10 ** rng.uniform(-2, -1)
        at = np.array([0.0, middle - width, middle, middle + width, 1.0])
        values = np.array([1.0, 1.0, 10 ** rng.uniform(-2, 1.5), 1.0, 1.0])
    else:
        at = np.linspace(0, 1, 17)
        values = np.clip((at - rng.uniform(0, 0.4)), 0, None) ** rng.integers(1, 4)
    return dg.Curve(lower + span * at, size * values, extends=True, name="conductivity")


def heat(rng: Rng, lower: float, upper: float, size: float, melts: bool) -> dg.Curve:
    """Constant, bent or with a peak; with melting ranges from sharp to wide."""
    span = upper - lower
    kind = rng.choice(["constant", "bent", "peak"])
    if kind == "constant":
        at, values = np.array([0.0, 1.0]), np.ones(2)
    elif kind == "bent":
        at = np.sort(rng.random(int(rng.integers(2, 7))))
        at, values = at + 1e-3 * np.arange(len(at)), 10 ** rng.uniform(-0.5, 0.5, len(at))
    else:
        middle, width = rng.uniform(0.2, 0.8), 10 ** rng.uniform(-2, -1)
        at = np.array([0.0, middle - width, middle, middle + width, 1.0])
        values = np.array([1.0, 1.0, 10 ** rng.uniform(0, 1.5), 1.0, 1.0])
    curve = dg.Curve(lower + span * at, size * values, extends=True, name="capacity")
    for _ in range(int(rng.integers(1, 3)) if melts else 0):
        latent, begin = size * span * 10 ** rng.uniform(-1, 1), lower + span * rng.uniform(0.1, 0.8)
        if rng.random() < 0.25:
            curve = curve.melting(float(latent), float(begin))
        else:
            curve = curve.melting(float(latent), float(begin), float(begin + span * 10 ** rng.uniform(-3, -0.5)))
    return curve


def curved(seed: int) -> Drawn:
    """Capacity and diffusion as curves: steps short and long, fronts that cross many cells at once, regions, flows."""
    rng = np.random.default_rng([2, seed])
    mesh = some_mesh(rng)
    d = mesh.dim
    fields = ("u",) if rng.random() < 0.8 else ("u", "v")
    lower, upper = [(0.0, 1.0), (300.0, 1500.0), (-1.0, 2.0)][int(rng.integers(3))]
    size_c, size_k = (1.0, 0.1) if rng.random() < 0.6 else (4e6, 30.0)
    steps, batch = int(rng.integers(2, 5)), int(rng.integers(1, 3))
    melts = rng.random() < 0.6
    dt = float(10 ** rng.uniform(-1, 2.5)) * mesh.spacing**2 * size_c / size_k

    def k() -> Any:
        one = conductivity(rng, lower, upper, size_k)
        kind = rng.choice(["curve", "curve", "tensor", "regions"])
        if kind == "curve":
            return one
        if kind == "tensor":
            return dg.Scaled(one, spd(rng, d, 1.0))
        other = conductivity(rng, lower, upper, size_k * 10 ** rng.uniform(-1.5, 1))
        return dg.ByRegion({"low": one, "high": dg.Scaled(other, spd(rng, d, 1.0)), "elsewhere": 0.5 * size_k})

    def c() -> Any:
        one = heat(rng, lower, upper, size_c, melts)
        if rng.random() < 0.7:
            return one
        return dg.ByRegion({"low": one, "high": heat(rng, lower, upper, 0.5 * size_c, rng.random() < 0.5),
                            "elsewhere": 1.5 * size_c})

    def each(one: Callable[[], Any]) -> Any:
        return one() if len(fields) == 1 or rng.random() < 0.5 else {f: one() for f in fields}

    velocity: Any = None
    form = str(rng.choice(["galerkin", "upwind"]))
    flows = rng.random() < 0.25
    if flows:
        size = 10 ** rng.uniform(-1.5, 0.7) * mesh.spacing / dt
        velocity = (size * rng.normal(size=d)).tolist()
    reaction = None
    if rng.random() < 0.2:
        rate = 0.1 * size_c / dt
        reaction = lambda u: -rate * (u - u.flip(-1) * 0.5 - 0.5 * lower)  # noqa: E731
    decay = float(rng.uniform(0, 0.3) * size_c / dt) if rng.random() < 0.2 else 0.0
    pde = dg.PDE(fields, diffusion=each(k), capacity=c() if flows else each(c), velocity=velocity, reaction=reaction, decay=decay)
    found = conditions(rng, mesh, fields, lower, upper, size_k, steps * dt)
    problem = dg.Problem(mesh, pde, found, dt, advection_form=form)
    model = dg.Classical(consistent=None if rng.random() < 0.8 else 1.0, theta=float(rng.choice([0.5, 0.5, 1.0])),
                         start=int(rng.random() < 0.3))
    x = mesh.points
    u0 = shared(problem, starts(rng, x, len(fields), lower, upper, batch))
    power = size_c * (upper - lower) / dt * 10 ** rng.uniform(-1.5, 0.5)
    return Drawn(problem, model, u0, sources(rng, x, len(fields), power, dt, steps, batch), steps)
