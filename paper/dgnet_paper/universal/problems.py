"""Random heat problems on random parts: what universal weights are trained and tested on.

    du/dt = div(D grad u) - k u + f(x, t)     D a number, by regions or a tensor; Dirichlet, Robin, Neumann or insulated pieces

Everything is drawn in units of the mesh: with h the mean edge length, Fo = dt D / h^2 is log-uniform in `FOURIER`, the Biot number
of a Robin piece, coefficient h / D, in `BIOT`, widths of spots in `WIDTHS` spacings. Two trajectories share a problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files

import numpy as np
import torch
from scipy.sparse.linalg import spsolve

from dgnet.mesh import Mesh
from dgnet.operators import Geometry, mass, stiffness
from dgnet.problems.conditions import Condition, Dirichlet, Neumann, Robin
from dgnet.problems.finer import refined
from dgnet.problems.pde import PDE
from dgnet.problems.problem import Problem
from dgnet.problems.sources import Source, step_average
from dgnet_paper.reference.galerkin import march
from dgnet_paper.universal.bodies import load_parts

Tensor = torch.Tensor

@dataclass(frozen=True)
class Span:
    """What problems are drawn from: Fourier numbers, Biot numbers, times in which a held value rises (in steps), and the share of
    problems whose held values jump away from the start at once."""

    fourier: tuple[float, float]
    biot: tuple[float, float]
    rise: tuple[float, float]
    jumps: float


TESTED = Span((0.003, 3.0), (1e-3, 10.0), (2.0, 20.0), 0.0)
TRAINED = Span((0.002, 12.0), (1e-3, 100.0), (0.3, 20.0), 0.3)
"""Wider than what is tested: layers at the boundary that are thinner than a cell, and meshes refined once, are in it."""
WIDTHS = (0.8, 5.0)
PECLET = (0.3, 30.0)
COURANT = (0.05, 2.0)
STEPS = 24
PANELS = 2
UNSEEN = ("pulsed", "ring", "line", "step", "waves")
_TEST_SEED, _FLOW_SEED = {2: 11, 3: 12}, 14
CONDITIONS = ("dirichlet", "insulated", "robin", "mixed")


@dataclass(frozen=True, eq=False)
class Spots:
    """Moving Gaussian spots of n trajectories with s spots each: strength(t) exp(-|x - c(t)|^2 / 2 w^2).

    c(t) = c0 + v t + a (cos, sin)(omega t + phase) along two directions; the strength swings about its mean.
    """

    centre: Tensor  # [n, s, d]
    speed: Tensor  # [n, s, d]
    axes: Tensor  # [n, s, 2, d]
    omega: Tensor  # [n, s]
    width: Tensor  # [n, s]
    strength: Tensor  # [n, s]
    swing: Tensor  # [n, s]

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        centre, speed, axes, omega, width, strength, swing = (
            value.to(x) for value in (self.centre, self.speed, self.axes, self.omega, self.width, self.strength, self.swing))
        at, turn = t.to(x), omega[..., None] * t.to(x)
        c = (centre[:, :, None] + speed[:, :, None] * at[:, None] + turn.cos()[..., None] * axes[:, :, None, 0]
             + turn.sin()[..., None] * axes[:, :, None, 1])  # [n, s, T, d]
        power = strength[..., None] * (1 + swing[..., None] * torch.sin(1.7 * turn + width[..., None]))
        total = torch.zeros(*c.shape[0:1], len(t), len(x), dtype=x.dtype, device=x.device)
        for k in range(c.shape[1]):
            away = (x - c[:, k, :, None]).square().sum(-1)
            total += power[:, k, :, None] * torch.exp(-0.5 * away / width[:, k, None, None] ** 2)
        return total[..., None]


@dataclass(frozen=True, eq=False)
class Waves:
    """A smooth random field of n trajectories: level + sum of amplitudes times cos(k . x + phase)."""

    level: Tensor  # [n]
    wave: Tensor  # [n, m, d]
    phase: Tensor  # [n, m]
    amplitude: Tensor  # [n, m]

    def __call__(self, x: Tensor) -> Tensor:
        level, wave, phase, amplitude = (value.to(x) for value in (self.level, self.wave, self.phase, self.amplitude))
        angle = torch.einsum("nmd,xd->nxm", wave, x) + phase[:, None]
        return (level[:, None] + (amplitude[:, None] * angle.cos()).sum(-1))[..., None]


@dataclass(frozen=True, eq=False)
class PartProblem:
    """A heat problem on a part: what is known, and its source and start as functions."""

    kind: str
    conditions_kind: str
    fourier: float
    mesh: Mesh
    pde: PDE
    conditions: tuple[Condition, ...]
    dt: float
    start: Callable[[Tensor], Tensor]
    source: Source | None

    def problem(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Problem:
        return Problem(self.mesh, self.pde, self.conditions, self.dt, dtype=dtype, device=device)

    def truth(self, steps: int = STEPS, refine: int | None = None, substeps: int = 2) -> Tensor:
        """[2, steps + 1, N, 1]: quadratic elements on the mesh refined twice (3D: once), two steps of dG(2) to a step."""
        fine = self.problem()
        for _ in range(4 - self.mesh.dim if refine is None else refine):
            fine = refined(fine)
        states = march(fine.quadratic, self.start, self.source, steps, substeps)
        return torch.tensor(states[:, :, :self.mesh.n_nodes])[..., None]

    def samples(self, x: Tensor, steps: int = STEPS) -> Tensor:
        """Step averages of the source at points x: [2, steps, n, 1]."""
        start = self.dt * torch.arange(steps, dtype=torch.float64)
        if self.source is None:
            return torch.zeros(2, steps, len(x), 1, dtype=torch.float64)
        return step_average(self.source, x, start, self.dt, PANELS)


def draw(kind: str, mesh: Mesh, rng: np.random.Generator, conditions: str | None = None,
         fourier: float | None = None, span: Span = TESTED) -> PartProblem:
    """A random problem on a part."""
    fo = float(np.exp(rng.uniform(*np.log(span.fourier)))) if fourier is None else fourier
    dt = fo * mesh.spacing**2
    conditions = str(rng.choice(CONDITIONS)) if conditions is None else conditions
    start = _start(mesh, rng)
    mesh, rules = _conditions(mesh, conditions, dt, start, rng, span)
    diffusion, decay = _coefficients(mesh, rng), 0.0
    if rng.random() < 0.2:
        decay = float(np.exp(rng.uniform(np.log(1e-3), np.log(0.1)))) / dt
    return PartProblem(kind, conditions, fo, mesh, PDE(diffusion=diffusion, decay=decay), rules, dt, start,
                       None if rng.random() < 0.1 else _spots(mesh, dt, rng))


def draw_flow(kind: str, mesh: Mesh, rng: np.random.Generator, span: Span = TESTED) -> PartProblem:
    """A random problem with a steady flow that keeps its volume.

    The cell's Peclet number |v| h / D of the fastest place is log-uniform in `PECLET`, its Courant number |v| dt / h in `COURANT`.
    Half of the flows circulate inside the part, the others pass through it; those bring in a held value.
    """
    peclet, courant = (float(np.exp(rng.uniform(*np.log(span)))) for span in (PECLET, COURANT))
    h = mesh.spacing
    dt = courant / peclet * h**2
    through = rng.random() < 0.5
    start = _start(mesh, rng)
    velocity = _velocity(mesh, through, rng)
    velocity *= peclet / h / np.linalg.norm(velocity, axis=1).max()
    if through:
        facets = mesh.boundary_facets
        enters = (velocity[facets].mean(1) * mesh.facet_geometry()[1]).sum(1) < 0
        mesh = Mesh(mesh.points, mesh.cells, {"inflow": facets[enters], "outflow": facets[~enters]})
        rise = float(rng.normal()) * float(rng.random() < 0.6)
        rules: tuple[Condition, ...] = (Dirichlet("inflow", _Held(start, rise, float(rng.uniform(4, 20)) * dt)),)
        conditions = "inflow"
    else:
        conditions = str(rng.choice(CONDITIONS))
        mesh, rules = _conditions(mesh, conditions, dt, start, rng, span)
    pde = PDE(diffusion=_coefficients(mesh, rng), velocity=velocity)
    return PartProblem(kind, conditions, courant / peclet, mesh, pde, rules, dt, start,
                       None if rng.random() < 0.1 else _spots(mesh, dt, rng))


def _velocity(mesh: Mesh, through: bool, rng: np.random.Generator) -> np.ndarray:
    """[N, 2]: the curl of a stream function at the nodes. Circulating flows have one that is zero on the rim."""
    g, field = Geometry.of(mesh), _start(mesh, rng)(torch.tensor(mesh.points))[0, :, 0].numpy()
    if through:
        way, size = rng.normal(size=2), float(np.ptp(mesh.points, axis=0).max())
        psi = mesh.points @ (way / np.linalg.norm(way)) + 0.05 * size * rng.uniform() * (field - field.mean())
    else:
        inside = np.flatnonzero(~mesh.on_boundary)
        K, load = stiffness(g, 1.0).to_scipy().tocsr(), mass(g, 1.0).to_scipy() @ (0.5 + field - field.mean())
        psi = np.zeros(mesh.n_nodes)
        psi[inside] = spsolve(K[inside][:, inside].tocsc(), load[inside])
    slope = mesh.gradients.transpose(0, 2, 1) @ psi[mesh.cells][..., None]  # [K, 2, 1]
    nodal = np.zeros((mesh.n_nodes, 2))
    np.add.at(nodal, mesh.cells, (mesh.volumes[:, None, None] * slope.transpose(0, 2, 1)).repeat(3, 1))
    return nodal[:, ::-1] * [1, -1] / np.bincount(mesh.cells.ravel(), mesh.volumes.repeat(3), minlength=mesh.n_nodes)[:, None]


@cache  # reading and checking the meshes takes as long as many a rollout on one of them
def unseen_parts(dim: int) -> tuple[tuple[str, Mesh], ...]:
    """(kind, mesh) of the parts that ship for tests: generators and shapes that no training has seen (`bodies.TEST`)."""
    with as_file(files("dgnet_paper.scenarios") / "files" / f"test-parts-{dim}d.npz") as path:
        return tuple(load_parts(path))


def unseen_problem(dim: int, number: int, flow: bool = False, refine: int = 0) -> PartProblem:
    """The problem on a test part, or the one with a flow (2D): always the same for the same number. `refine`: on the mesh refined
    so often, with the same random numbers in units of its spacing."""
    seed, (kind, mesh) = _FLOW_SEED if flow else _TEST_SEED[dim], unseen_parts(dim)[number]
    return (draw_flow if flow else draw)(kind, mesh.refined(refine) if refine else mesh, np.random.default_rng([seed, number, 0]))


def driven(part: PartProblem, kind: str, rng: np.random.Generator) -> PartProblem:
    """The same part from rest, driven by a source of a kind that no training has (`UNSEEN`)."""
    mesh, h, dt, d = part.mesh, part.mesh.spacing, part.dt, part.mesh.dim
    place = torch.as_tensor(mesh.points[rng.integers(mesh.n_nodes, size=2)])  # [2, d], one for each trajectory
    way = torch.as_tensor(np.linalg.qr(rng.normal(size=(2, d, d)))[0][:, 0])
    width, size = 2.5 * h, float(np.ptp(mesh.points, axis=0).max())
    waves = torch.as_tensor(rng.normal(size=(2, 3, d))) * (2 * np.pi / (10 * h))

    def value(x: Tensor, t: Tensor) -> Tensor:
        share = (t / (STEPS * dt))[None, :, None]  # [1, T, 1]
        away = x - place.to(x)[:, None, None]  # [2, 1, n, d]
        if kind == "pulsed":
            return torch.exp(-0.5 * away.square().sum(-1) / width**2) * torch.sigmoid(12 * torch.sin(2 * np.pi * 4 * share))
        if kind == "ring":
            return torch.exp(-0.5 * ((away.norm(dim=-1) - 0.4 * size * share) / width) ** 2)
        if kind == "line":
            return torch.exp(-0.5 * ((torch.einsum("btnd,bd->btn", away, way.to(x)) + size * (0.5 - share)) / width) ** 2)
        field = torch.einsum("nd,bmd->bnm", x, waves.to(x)).cos().sum(-1)[:, None]
        if kind == "step":
            return field * (share > 5 / STEPS)
        return field * torch.cos(2 * np.pi * 3 * share)

    rest = Waves(torch.zeros(2, dtype=torch.float64), *(torch.zeros(2, 1, *s, dtype=torch.float64) for s in ((d,), (), ())))
    rules = tuple(replace(c, ambient=0.0) if isinstance(c, Robin) else replace(c, value=0.0) if isinstance(c, Dirichlet) else c
                  for c in part.conditions if not isinstance(c, Neumann))
    return replace(part, conditions=rules, start=rest, source=lambda x, t: value(x, t)[..., None] / (STEPS * dt))


def _coefficients(mesh: Mesh, rng: np.random.Generator) -> float | np.ndarray:
    """Half of the parts are uniform; others have two or three materials, or conduct better along one direction."""
    choice, d = rng.random(), mesh.dim
    if choice < 0.5:
        return 1.0
    centre = mesh.centroids - mesh.centroids.mean(0)
    if choice < 0.75:
        region = sum((centre @ rng.normal(size=d) > 0).astype(int) for _ in range(2))
        return np.exp(rng.uniform(-1.2, 1.2, 3))[region]
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    sizes = np.exp(rng.uniform(0, np.log(6.0), d))
    return axes @ np.diag(sizes / np.exp(np.log(sizes).mean())) @ axes.T


def _conditions(mesh: Mesh, kind: str, dt: float, start: Waves, rng: np.random.Generator,
                span: Span) -> tuple[Mesh, tuple[Condition, ...]]:
    """The boundary cut into one to three pieces by planes, with a condition on each."""
    facets, h = mesh.boundary_facets, mesh.spacing
    middle = mesh.points[facets].mean(1)
    cuts = 0 if kind == "insulated" else int(rng.integers(1, 3)) if kind == "mixed" else int(rng.integers(0, 2))
    label = sum(((middle - np.median(middle, 0)) @ rng.normal(size=mesh.dim) > 0).astype(int) for _ in range(cuts)) + np.zeros(
        len(facets), dtype=int)
    pieces = {f"piece{k}": facets[label == k] for k in np.unique(label)}
    rules: list[Condition] = []
    kinds = {"dirichlet": ["dirichlet"], "insulated": [], "robin": ["robin"],
             "mixed": list(rng.permutation(["dirichlet", "robin", "neumann", "insulated"]))}[kind]
    for k, name in enumerate(pieces):
        if not kinds:
            continue
        rule = kinds[k % len(kinds)]
        size, ramp = float(rng.normal()), float(np.exp(rng.uniform(*np.log(span.rise)))) * dt
        if rule == "dirichlet":
            rise = size * float(rng.random() < 0.6)
            jump = float(rng.normal()) * float(rng.random() < span.jumps) if span.jumps else 0.0  # nothing is drawn for a test
            rules.append(Dirichlet(name, _Held(start, rise, ramp, jump)))
        elif rule == "robin":
            rules.append(Robin(name, float(np.exp(rng.uniform(*np.log(span.biot)))) / h, float(start.level[0]) + size))
        elif rule == "neumann":
            rules.append(Neumann(name, 0.3 * size * h / dt))
    return Mesh(mesh.points, mesh.cells, pieces), tuple(rules)


@dataclass(frozen=True, eq=False)
class _Held:
    """A held value: that of the first trajectory's start and a `jump`, and a smooth rise to `size` more."""

    start: Waves
    size: float
    ramp: float
    jump: float = 0.0

    def __call__(self, x: Tensor, t: float) -> Tensor:
        rise = 1 - float(np.exp(-((t / self.ramp) ** 2)))
        return self.start(x)[0, :, 0] + self.jump + self.size * rise


def _start(mesh: Mesh, rng: np.random.Generator) -> Waves:
    """Both trajectories start alike (held values follow the start): constant, or waves of at least five spacings."""
    m, h = 4, mesh.spacing
    rough = rng.random() < 0.5
    wave = rng.normal(size=(1, m, mesh.dim))
    wave *= (2 * np.pi / (h * np.exp(rng.uniform(np.log(5), np.log(30), (1, m, 1))))) / np.linalg.norm(wave, axis=-1, keepdims=True)
    amplitude = rng.normal(size=(1, m)) * rough * 0.5
    phase, level = rng.uniform(0, 6.3, (1, m)), rng.normal(size=1)
    return Waves(*(torch.as_tensor(a).expand(2, *a.shape[1:]) for a in (level, wave, phase, amplitude)))


def _spots(mesh: Mesh, dt: float, rng: np.random.Generator, n: int = 2) -> Spots:
    """One to four spots; a spot travels up to one width in a step, and heats by about 1 in all."""
    s, d, h = int(rng.integers(1, 5)), mesh.dim, mesh.spacing
    width = h * np.exp(rng.uniform(np.log(WIDTHS[0]), np.log(WIDTHS[1]), (n, s)))
    pace = width * rng.uniform(0, 1, (n, s)) ** 2 / dt  # length per time
    direction = rng.normal(size=(n, s, d))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    orbit = rng.random((n, s)) < 0.6
    radius = np.maximum(np.ptp(mesh.points, axis=0).max() * rng.uniform(0.05, 0.35, (n, s)), width)
    first = rng.normal(size=(n, s, d))
    first -= (first * direction).sum(-1, keepdims=True) * direction
    first /= np.linalg.norm(first, axis=-1, keepdims=True)
    axes = np.stack([direction, first], 2) * (radius * orbit)[..., None, None]
    centre = mesh.points[rng.integers(mesh.n_nodes, size=(n, s))] - 0.5 * STEPS * dt * (pace * ~orbit)[..., None] * direction
    omega = pace / radius * rng.choice([-1, 1], (n, s))
    strength = np.exp(rng.uniform(-1, 1, (n, s))) / (dt * np.minimum(STEPS, 1 + width / (pace * dt + 1e-9)))
    return Spots(*(torch.as_tensor(a) for a in (centre, direction * (pace * ~orbit)[..., None], axes, omega, width, strength,
                                                rng.uniform(0, 0.8, (n, s)))))
