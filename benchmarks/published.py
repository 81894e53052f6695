"""`python -m benchmarks published`: numbers of others beside ours, each with its source.

Every benchmark is a small problem that someone else has published a number for: a value that a solver should find, or the error
that another code made at a given mesh width. Ours are those of the classical solver, with linear (P1) and quadratic elements (P2).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from benchmarks.materials import Barenblatt, Stefan
from dgnet import __version__
from dgnet.mesh import ALL, Mesh, box
from dgnet.problems import PDE, Condition, Dirichlet, FunctionSource, Periodic, Problem, Robin, Source, step_average
from dgnet.progress import Report
from dgnet.stepping import GreenSolver
from dgnet.stepping.fold import product
from dgnet.stepping.steady import steady
from dgnet_paper.study.timing import hardware

Tensor = torch.Tensor
Watch = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Benchmark:
    """`compute(degree)` gives our number with elements of that degree."""

    name: str
    quantity: str
    published: float
    source: str
    setting: str  # of ours
    compute: Callable[[int], float]
    degrees: tuple[int, ...] = (1, 2)
    long: bool = False  # minutes, not seconds


# ---------------------------------------------------------------------- tools


def march(problem: Problem, degree: int, start: Callable[[Tensor], Tensor], steps: int, source: Source | None = None,
          stable: int = 0, watch: Watch | None = None) -> tuple[Problem, Tensor]:
    """The problem with elements of a degree, and its last state [1, P, 1] from u0(x); `watch(k, u)` sees the state of each step."""
    p = problem if degree == 1 else problem.quadratic
    x = torch.tensor(p.geometry.nodes, device=p.geometry.device)
    solver, u = GreenSolver(p, solves=steps), start(x)[None, :, None].to(p.geometry.device)
    for k in range(steps):
        f = None if source is None else step_average(source, x, torch.tensor([k * p.dt], device=x.device), p.dt)[:, 0]
        u = solver.step(u, f, k * p.dt, start=k < stable)
        if watch is not None:
            watch(k + 1, u)
    return p, u


def at(p: Problem, u: Tensor, place: Sequence[float]) -> float:
    """The value at a node of the mesh, or the middle of an edge."""
    gap = np.linalg.norm(p.geometry.nodes - np.asarray(place), axis=1)
    return float(u[0, int(gap.argmin()), 0])


def norm(p: Problem, e: Tensor) -> float:
    """L2 norm of a field [1, P, 1] of the elements."""
    e = p.restrict(e)
    return math.sqrt(float((e * product(p.source_mass, e)).sum()))


# ---------------------------------------------------------------------- the problems


def nafems_t3(degree: int) -> float:
    """A bar with a swinging end: °C at x = 0.08 m after 32 s."""
    def end(x: Tensor, t: float) -> Tensor:
        return torch.full_like(x[:, 0], 100 * math.sin(math.pi * t / 40))

    pde = PDE(diffusion=35.0, capacity=7200 * 440.5)
    bar = Problem(box((50, 1), upper=(0.1, 0.002)), pde, [Dirichlet("left", 0.0), Dirichlet("right", end)], 0.25)
    return at(*march(bar, degree, lambda x: torch.zeros(len(x), dtype=x.dtype), 128), (0.08, 0.0))


def nafems_t4(degree: int) -> float:
    """A plate that is hot at its foot and cooled at two sides: °C at (0.6, 0.2) m, at rest."""
    cooled: list[Condition] = [Robin("right", 750.0, 0.0), Robin("top", 750.0, 0.0), Dirichlet("bottom", 100.0)]
    plate = Problem(box((30, 50), upper=(0.6, 1.0)), PDE(diffusion=52.0), cooled, 1.0)
    p = plate if degree == 1 else plate.quadratic
    return at(p, steady(p), (0.6, 0.2))


def robin_shock(degree: int, biot: float = 10.0, fourier: float = 1.0) -> float:
    """A wall at 1 that is cooled by a fluid at 0 from one side: the value at the insulated side."""
    wall = Problem(box((40, 1), upper=(1.0, 0.025)), PDE(diffusion=1.0), [Robin("right", biot, 0.0)], fourier / 200)
    return at(*march(wall, degree, lambda x: torch.ones(len(x), dtype=x.dtype), 200, stable=2), (0.0, 0.0))


def robin_series(biot: float, fourier: float, x: float = 0.0, terms: int = 40) -> float:
    """Sum of C_n exp(-z_n^2 Fo) cos(z_n x) with z_n tan(z_n) = Bi and C_n = 4 sin(z_n) / (2 z_n + sin(2 z_n))."""
    roots = [brentq(lambda z: z * math.sin(z) - biot * math.cos(z), n * math.pi, (n + 0.5) * math.pi) for n in range(terms)]
    return sum(4 * math.sin(z) / (2 * z + math.sin(2 * z)) * math.exp(-z * z * fourier) * math.cos(z * x) for z in roots)


class Manufactured:
    """PFHub 7a: eta = (1 - tanh((y - a) / sqrt(2 kappa))) / 2 with a = 1/4 + A1 t sin(B1 x) + A2 sin(B2 x + C2 t)."""

    kappa, A1, B1, A2, B2, C2 = 0.0004, 0.0075, 8 * math.pi, 0.03, 22 * math.pi, 0.0625 * math.pi
    end = 8.0

    def front(self, x: Tensor, t: float) -> Tensor:
        return 0.25 + self.A1 * t * torch.sin(self.B1 * x) + self.A2 * torch.sin(self.B2 * x + self.C2 * t)

    def __call__(self, x: Tensor, t: float) -> Tensor:
        """The solution at points [N, 2]."""
        return 0.5 * (1 - torch.tanh((x[:, 1] - self.front(x[:, 0], t)) / math.sqrt(2 * self.kappa)))

    def source(self, x: Tensor, t: float) -> Tensor:
        """What has to be added to -4 eta (eta - 1) (eta - 1/2) + kappa laplace(eta) so that it is the solution."""
        one, two = self.B1 * x[:, 0], self.B2 * x[:, 0] + self.C2 * t
        slope = self.A1 * self.B1 * t * torch.cos(one) + self.A2 * self.B2 * torch.cos(two)
        bend = -self.A1 * self.B1**2 * t * torch.sin(one) - self.A2 * self.B2**2 * torch.sin(two)
        speed = self.A1 * torch.sin(one) + self.A2 * self.C2 * torch.cos(two)
        tanh = torch.tanh((x[:, 1] - self.front(x[:, 0], t)) / math.sqrt(2 * self.kappa))
        root = math.sqrt(self.kappa)
        return (1 - tanh**2) / (4 * root) * (-2 * root * tanh * slope**2 + math.sqrt(2) * (speed - self.kappa * bend))

    def problem(self, width: float, dt: float, device: str = "cpu") -> Problem:
        mesh = box((round(1 / width), round(0.5 / width)), upper=(1.0, 0.5))
        pde = PDE(("eta",), diffusion=self.kappa, reaction=lambda u: -4 * u * (u - 1) * (u - 0.5))
        rules: list[Condition] = [Periodic("left", "right"), Dirichlet("bottom", 1.0), Dirichlet("top", 0.0)]
        return Problem(mesh, pde, rules, dt, device=device)


@cache
def pfhub_7a(width: float, degree: int, dt: float = 0.04) -> float:
    """L2 error at t = 8."""
    exact = Manufactured()
    p, u = march(exact.problem(width, dt), degree, lambda x: exact(x, 0.0), round(exact.end / dt), FunctionSource(exact.source))
    return norm(p, u - exact(torch.tensor(p.geometry.nodes), exact.end)[None, :, None])


def cone(x: Tensor) -> Tensor:
    return (1 - (x - torch.tensor([0.5, 0.25])).norm(dim=-1) / 0.15).clamp(min=0.0)


def turning(x: Tensor) -> Tensor:
    return 2 * math.pi * torch.stack([0.5 - x[:, 1], x[:, 0] - 0.5], 1)


def turn(cells: int = 40, steps: int = 100) -> tuple[Mesh, float]:
    return box((cells, cells), perturb=0.2, seed=3), 1.0 / steps


def rotating_cone(degree: int) -> float:
    """The top of a cone after one turn, Galerkin and Crank-Nicolson."""
    mesh, dt = turn()
    problem = Problem(mesh, PDE(diffusion=0.0, velocity=turning(torch.tensor(mesh.points))), [Dirichlet(ALL, 0.0)], dt)
    return float(march(problem, degree, cone, round(1 / dt))[1].max())


FRONT = (10.0, 20.0)  # times between which the speed of a front is taken


def front_speed(degree: int, start: Callable[[Tensor], Tensor]) -> float:
    """Of the level 1/2 of u' = u'' + u (1 - u) between two times."""
    length, cells, dt = 60.0, 300, 0.1
    pde = PDE(diffusion=1.0, reaction=lambda u: u * (1 - u))
    strip = Problem(box((cells, 1), upper=(length, length / cells)), pde, [], dt)
    nodes = (strip if degree == 1 else strip.quadratic).geometry.nodes
    foot = np.flatnonzero(nodes[:, 1] == 0.0)
    foot = foot[np.argsort(nodes[foot, 0])]
    places: dict[float, float] = {}

    def watch(k: int, u: Tensor) -> None:
        x, value = nodes[foot, 0], u[0, foot, 0].numpy()
        last = int(np.flatnonzero(value >= 0.5)[-1])
        places[k] = float(np.interp(-0.5, -value[last:last + 2], x[last:last + 2]))

    march(strip, degree, start, round(FRONT[1] / dt), stable=2, watch=watch)
    first, last = (round(t / dt) for t in FRONT)
    return (places[last] - places[first]) / (FRONT[1] - FRONT[0])


def fisher_step(degree: int) -> float:
    return front_speed(degree, lambda x: (x[:, 0] < 5.0).to(x.dtype))


def fisher_wave(degree: int) -> float:
    return front_speed(degree, lambda x: (1 + torch.exp((x[:, 0] - 10) / math.sqrt(6))) ** -2)


def fisher_theory() -> float:
    """Mean of 2 - 3/(2t) between the two times."""
    return 2 - 1.5 * math.log(FRONT[1] / FRONT[0]) / (FRONT[1] - FRONT[0])


def shrinking_circle(degree: int) -> float:
    """d(R^2)/dt of a quarter of a disc of u' = D laplace(u) + (u - u^3) / tau, in units of D."""
    D, width, cells, dt, steps = 1.0, 0.03, 64, 1.5e-4, 600
    tau = width**2 / (2 * D)  # the layer is tanh(distance / width)
    quarter = Problem(box((cells, cells)), PDE(diffusion=D, reaction=lambda u: (u - u**3) / tau), [], dt)
    areas: dict[int, float] = {}

    def watch(k: int, u: Tensor) -> None:
        if k in (steps // 4, steps):  # the first quarter lets the layer settle
            inside = p.restrict(0.5 * (u + 1))
            areas[k] = float(product(p.source_mass, inside).sum())

    p = quarter if degree == 1 else quarter.quadratic
    march(quarter, degree, lambda x: torch.tanh((0.7 - x.norm(dim=-1)) / width), steps, watch=watch)
    first, last = sorted(areas)
    return 4 / math.pi * (areas[last] - areas[first]) / ((last - first) * dt)


# ---------------------------------------------------------------------- the table

NAFEMS = "The Standard NAFEMS Benchmarks, TNSB Rev. 3, NAFEMS 1990"
SYMPHAS = "Silber, SymPhas (5-point stencil, forward Euler), PFHub upload SymPhas_7a_CS_5pt, 2021"
BACKWARD = "Sereewattanawoot, finite differences, forward and backward Euler, PFHub upload Forward_Backward_Euler, 2018"
SKFEM = "Gustafsson and McBain, scikit-fem, JOSS 5(52), 2020: the same scheme with its matrices"
MMSP = "Keller, MMSP (forward Euler), PFHub upload MMSP_explicit_mpi, 2019"


def _pfhub(width: float, published: float, source: str) -> Benchmark:
    return Benchmark("PFHub 7a, Allen–Cahn, manufactured", f"L2 error at t = 8, h = {width:g}", published, source,
                     f"{round(1 / width)} × {round(0.5 / width)} squares, 200 steps", lambda degree: pfhub_7a(width, degree),
                     (1,) if width < 0.005 else (1, 2), width < 0.005)


BENCHMARKS = (
    Benchmark("NAFEMS T3, bar with a swinging end", "°C at x = 0.08 m, t = 32 s", 36.60, NAFEMS, "50 elements, 128 steps",
              nafems_t3),
    Benchmark("NAFEMS T4, plate with convection", "°C at E (0.6 m, 0.2 m)", 18.3, NAFEMS, "30 × 50 squares", nafems_t4),
    Benchmark("Robin shock, Biot 10", "centre of the wall at Fo = 1", 1.2620 * math.exp(-1.4289**2),
              "Incropera, DeWitt et al., Fundamentals of Heat and Mass Transfer, Table 5.1: C₁ = 1.2620, ζ₁ = 1.4289",
              "40 elements, 200 steps, the first 2 L-stable", robin_shock),
    _pfhub(0.01, 7.808620e-3, SYMPHAS), _pfhub(0.01, 6.786366e-3, BACKWARD), _pfhub(0.01, 3.25675e-3, MMSP),
    _pfhub(5.128247e-3, 1.529863e-3, SYMPHAS), _pfhub(2.096435e-3, 3.182940e-4, SYMPHAS), _pfhub(1.074114e-3, 7.179946e-5, SYMPHAS),
    Benchmark("Rotating cone, P1", "height after one turn", 0.87874602093190, SKFEM, "40 × 40 squares, perturbed; 100 steps",
              rotating_cone, (1,)),
    Benchmark("Rotating cone, P2", "height after one turn", 0.89624829883617, SKFEM, "40 × 40 squares, perturbed; 100 steps",
              rotating_cone, (2,)),
    Benchmark("Fisher wave", "speed of the exact wave, 5/√6", 5 / math.sqrt(6),
              "Ablowitz and Zeppetella, Bull. Math. Biol. 41, 1979", "300 elements of 0.2, Δt = 0.1", fisher_wave),
    Benchmark("Fisher front from a step", "mean speed from t = 10 to 20: 2√(rD) less 3/(2t)", fisher_theory(),
              "Kolmogorov, Petrovsky, Piskunov 1937; logarithmic delay: Bramson, Mem. AMS 285, 1983 (asymptotic)",
              "300 elements of 0.2, Δt = 0.1", fisher_step),
    Benchmark("Shrinking Allen–Cahn circle", "d(R²)/dt in units of D", -2.0,
              "Allen and Cahn, Acta Metall. 27, 1979: speed D/R of a thin layer", "64 × 64 squares on a quarter, layer 0.03",
              shrinking_circle),
    Benchmark("Solidification of aluminium, two-phase Stefan problem", "front after 5 s, mm", 1e3 * Stefan().front(5.0),
              "Neumann's solution: Carslaw and Jaeger, Conduction of Heat in Solids, 1959; data of code_aster's TTNL02 with the "
              "latent heat that satisfies the balance of the front, 9.004e8 J/m³", "200 elements, 100 steps",
              lambda degree: 1e3 * Stefan().found(200, 100)[0], (1,)),
    Benchmark("Porous medium, Barenblatt's solution", "height in the middle at t = 3", Barenblatt().height / math.sqrt(3.0),
              "Barenblatt, Prikl. Mat. Mekh. 16, 1952; Vázquez, The Porous Medium Equation, 2007", "64 × 64 squares, 32 steps",
              lambda degree: Barenblatt().found(64, 32)[0], (1,)),
)


def run(full: bool = False, report: Report | None = None) -> dict[str, Any]:
    """All benchmarks; the long ones with `full` only."""
    rows = []
    for k, b in enumerate(BENCHMARKS):
        row: dict[str, Any] = {"name": b.name, "quantity": b.quantity, "published": b.published, "source": b.source,
                               "setting": b.setting}
        for degree in b.degrees:
            if full or not b.long:
                begin = time.perf_counter()
                row[f"P{degree}"] = b.compute(degree)
                row[f"P{degree}_s"] = time.perf_counter() - begin
        rows.append(row)
        if report is not None:
            report("published numbers", k + 1, len(BENCHMARKS))
    return {"benchmark": "published", "version": __version__, "hardware": hardware("cpu"), "rows": rows}
