"""`python -m benchmarks step`: what a step, a gradient and the set-up cost beside plain SciPy, on one CPU core.

Everything is a heat equation on a square with convective edges and a source that changes with every step, Crank-Nicolson in double
precision, dt D / h^2 = 0.5. The rivals have the same matrices and the same factorisation (SuperLU, MMD):

    loop      u = lu.solve(B @ u + C @ f), with B = M - dt/2 K and C = dt M
    adjoint   the same loop with all states kept; then y = lu.solve(g, "T"), g = g_k + B^T y, dl/df = C^T y, and
              dl/dD = -dt/2 y . K1 (u_k + u_k+1), K1 the stiffness of diffusivity 1

All figures of a row are taken in turn, as CPU time of this process; medians of the repetitions. Read the ratios.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.sparse.linalg import SuperLU, splu
from torch.nn.functional import pad

from dgnet import __version__
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, Model, Ready, few_threads, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Problem, Robin
from dgnet.stepping import GreenSolver
from dgnet_paper.study.timing import hardware, peak

Tensor = torch.Tensor

SIZES = {"500": 21, "10k": 100, "100k": 316}  # cells along an edge
STEPS = {"500": 400, "10k": 100, "100k": 20}
GRADIENT_STEPS, REACTION_STEPS, LONG = 100, 400, 10_000
DIFFUSION = 0.1


def run(sizes: list[str] | None = None, repeats: int = 5, tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """All measurements at these sizes; `tell` gets a line for each."""
    chosen = sizes or list(SIZES)
    found: dict[str, Any] = {"benchmark": "step", "version": __version__, "hardware": hardware("cpu"), "rows": []}

    def add(row: dict[str, Any]) -> None:
        found["rows"].append(row)
        tell(sentence(row))

    with few_threads(1):
        add(checkpoints(repeats))  # first, as long as there is no memory of other measurements to use again
        for size in chosen:
            for measure in (steps_of, gradient_of, setup_of):
                add(measure(size, repeats))
        add(long_way_back(repeats))
    return found


def problem(mesh: Mesh, diffusion: float | Tensor = DIFFUSION) -> Problem:
    """The square with `box` cells; time is such that dt D / h^2 = 0.5."""
    h2 = 1 / (mesh.n_nodes ** 0.5 - 1) ** 2
    return Problem(mesh, PDE(diffusion=diffusion), [Robin("boundary", DIFFUSION, 0.0)], dt=0.5 * h2 / DIFFUSION)


def given(p: Problem, steps: int) -> tuple[Tensor, Tensor]:
    """A rough start and sources."""
    rng = torch.Generator().manual_seed(0)
    return (torch.rand(1, p.n, 1, generator=rng, dtype=torch.float64), torch.rand(1, steps, p.n, 1, generator=rng,
                                                                                   dtype=torch.float64))


def in_turn(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each action, after one round that does not count."""
    clocks: dict[str, list[float]] = {name: [] for name in actions}
    for k in range(repeats + 1):
        for name, action in actions.items():
            gc.collect()
            begin = time.process_time()
            action()
            if k:
                clocks[name].append(time.process_time() - begin)
    return {name: median(clock) for name, clock in clocks.items()}


# ---------------------------------------------------------------------- the rival


class Plain:
    """The same scheme in a few lines of SciPy; all boundary loads are zero here."""

    def __init__(self, p: Problem) -> None:
        M, K = p.mass.to_scipy(), p.stiffness().to_scipy()
        self.dt, self.K1 = p.dt, csr_array(p.diffusion_part.to_scipy() * (1 / DIFFUSION))
        self.B, self.C = csr_array(M - 0.5 * p.dt * K), csr_array(p.dt * M)
        self.A = (M + 0.5 * p.dt * K).tocsc()

    def factor(self) -> SuperLU:
        return splu(self.A, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})

    def loop(self, lu: SuperLU, u: np.ndarray, f: np.ndarray) -> np.ndarray:
        for row in f:
            u = lu.solve(self.B @ u + self.C @ row)
        return u

    def adjoint(self, u: np.ndarray, f: np.ndarray) -> tuple[float, np.ndarray]:
        """dl/dD and dl/df of l = sum of all states squared, halved."""
        lu, steps = self.factor(), len(f)
        states = np.empty((steps + 1, len(u)))
        states[0] = u
        for k in range(steps):
            states[k + 1] = lu.solve(self.B @ states[k] + self.C @ f[k])
        g, dD, df = states[steps].copy(), 0.0, np.empty_like(f)
        for k in range(steps - 1, -1, -1):
            y = lu.solve(g, "T")
            df[k] = self.C.T @ y
            dD -= 0.5 * self.dt * float(y @ (self.K1 @ (states[k] + states[k + 1])))
            g = states[k] + self.B.T @ y
        return dD, df


# ---------------------------------------------------------------------- measurements


def steps_of(size: str, repeats: int) -> dict[str, Any]:
    """A step without gradients: of the solver, in a rollout, of learned models, beside the loop."""
    p, steps = problem(box((SIZES[size],) * 2)), STEPS[size]
    u, f = given(p, steps)
    plain = Plain(p)
    lu, u_, f_ = plain.factor(), u[0, :, 0].numpy(), f[0, :, :, 0].numpy()
    solver = GreenSolver(p, "lu", solves=steps)
    torch.manual_seed(0)
    learned: dict[str, Model[Any]] = {"classical": Classical(), "dgnet": DGNet(DGNetConfig(hidden=8, layers=1), p).double(),
                                      "universal": Universal()}

    def single() -> Tensor:
        state = u
        for k in range(steps):
            state = solver.step(state, f[:, k], k * p.dt)
        return state

    with torch.no_grad():
        actions: dict[str, Callable[[], object]] = {"scipy": lambda: plain.loop(lu, u_, f_), "step": single,
                                                    "rollout": _prepared(Classical(start=0, backend="lu"), p, u, f)}
        actions |= {name: _prepared(model, p, u, f) for name, model in learned.items()}
        found = in_turn(actions, repeats if size != "500" else 5 * repeats)
    return {"kind": "step", "size": size, "nodes": p.n, "us": {name: 1e6 * x / steps for name, x in found.items()}}


def _prepared(model: Model[Any], p: Problem, u: Tensor, f: Tensor) -> Callable[[], object]:
    """A rollout whose set-up is done before; between the nodes there is no source."""
    ready, more = Ready(model, p, 1, f.shape[1]), len(model.points(p)) - p.n_nodes
    start, source = pad(u, (0, 0, 0, more)), pad(f, (0, 0, 0, more))
    return lambda: ready.rollout(start, source)


def gradient_of(size: str, repeats: int) -> dict[str, Any]:
    """The gradient of 100 steps in the diffusivity and in all sources, with factorisation; and the memory it takes at most."""
    mesh = box((SIZES[size],) * 2)
    p = problem(mesh)
    u, f = given(p, GRADIENT_STEPS)
    plain = Plain(p)
    u_, f_ = u[0, :, 0].numpy(), f[0, :, :, 0].numpy()
    values: dict[str, tuple[float, np.ndarray]] = {}

    def forward() -> None:
        with torch.no_grad():
            rollout(Classical(start=0, backend="lu"), p, u, f)

    def gradient() -> None:
        diffusion, source = torch.tensor(DIFFUSION, dtype=torch.float64, requires_grad=True), f.clone().requires_grad_()
        states = rollout(Classical(start=0, backend="lu"), problem(mesh, diffusion), u, source)
        (0.5 * states.square().sum()).backward()
        assert diffusion.grad is not None and source.grad is not None
        values["dgnet"] = float(diffusion.grad), source.grad[0, :, :, 0].numpy()

    def by_hand() -> None:
        values["scipy"] = plain.adjoint(u_, f_)

    with peak("cpu") as most:
        gradient()
    found = in_turn({"adjoint": by_hand, "gradient": gradient, "forward": forward}, repeats if size != "100k" else min(repeats, 3))
    gap = max(abs(values["dgnet"][0] / values["scipy"][0] - 1),
              float(np.abs(values["dgnet"][1] - values["scipy"][1]).max() / np.abs(values["scipy"][1]).max()))
    return {"kind": "gradient", "size": size, "nodes": p.n, "steps": GRADIENT_STEPS, "seconds": found, "memory_bytes": most.bytes,
            "gap": gap}


def setup_of(size: str, repeats: int) -> dict[str, Any]:
    """From the mesh to the first step, beside the factorisation alone."""
    mesh = box((SIZES[size],) * 2)
    points, cells = mesh.points.copy(), mesh.cells.copy()
    plain = Plain(problem(mesh))

    def ready(own: Mesh) -> None:
        with torch.no_grad():
            GreenSolver(problem(own), "lu").operator()

    found = in_turn({"factor": plain.factor, "mesh": lambda: Mesh(points, cells), "first": lambda: ready(Mesh(points, cells)),
                     "again": lambda: ready(mesh)}, repeats)
    return {"kind": "setup", "size": size, "nodes": mesh.n_nodes, "seconds": found}


def long_way_back(repeats: int) -> dict[str, Any]:
    """The way back of a short and of a long rollout, for each step."""
    p = problem(box((SIZES["500"],) * 2))

    def back(steps: int) -> tuple[Callable[[], object], list[float]]:
        u, f = given(p, steps)
        spent: list[float] = []

        def action() -> None:
            states = rollout(Classical(start=0, backend="lu"), p, u.requires_grad_(), f)
            begin = time.process_time()
            states.square().sum().backward()
            spent.append(time.process_time() - begin)
        return action, spent

    short, long = back(GRADIENT_STEPS), back(LONG)
    in_turn({"short": lambda: [short[0]() for _ in range(10)], "long": long[0]}, min(repeats, 3))
    return {"kind": "back", "nodes": p.n, "us": {str(GRADIENT_STEPS): 1e6 * median(short[1]) / GRADIENT_STEPS,
                                                  str(LONG): 1e6 * median(long[1]) / LONG}}


def checkpoints(repeats: int) -> dict[str, Any]:
    """The gradient of a rollout with a reaction: what it holds at most and takes, with its graph and from the states alone."""
    p = problem(box((SIZES["10k"],) * 2))
    u, f = given(p, REACTION_STEPS)

    def gradient(checkpoint: bool) -> None:
        diffusion = torch.tensor(DIFFUSION, dtype=torch.float64, requires_grad=True)
        own = Problem(p.mesh, PDE(diffusion=diffusion, reaction=lambda u: u * (1 - u) * (u - 0.3)), p.conditions, p.dt)
        rollout(Classical(start=0, backend="lu"), own, u, f, checkpoint=checkpoint).square().sum().backward()

    ways: dict[str, Callable[[], object]] = {"states": lambda: gradient(True), "graph": lambda: gradient(False)}
    held = {}
    for name, way in ways.items():
        with peak("cpu") as most:
            way()
        held[name] = most.bytes
    return {"kind": "checkpoint", "nodes": p.n, "steps": REACTION_STEPS, "states_bytes": 8 * p.n * (REACTION_STEPS + 1),
            "memory_bytes": held, "seconds": in_turn(ways, min(repeats, 3))}


# ---------------------------------------------------------------------- words


def sentence(row: dict[str, Any]) -> str:
    """A row in one line."""
    if row["kind"] == "step":
        us = row["us"]
        return (f"{row['nodes']:,} nodes: SciPy loop {us['scipy']:.0f} us a step; step {us['step'] / us['scipy']:.2f}, rollout "
                f"{us['rollout'] / us['scipy']:.2f} of that; DGNet {us['dgnet'] / us['classical']:.2f}, universal "
                f"{us['universal'] / us['classical']:.2f} of the classical rollout")
    if row["kind"] == "back":
        short, long = row["us"].values()
        return (f"{row['nodes']:,} nodes: way back {short:.0f} us a step of {GRADIENT_STEPS}, {long / short:.2f} of that each of "
                f"{LONG:,}")
    s = row["seconds"]
    if row["kind"] == "checkpoint":
        states, graph = (f"{most / row['states_bytes']:.1f}" if most else "?" for most in row["memory_bytes"].values())
        return (f"{row['nodes']:,} nodes with a reaction: gradient of {row['steps']} steps holds {graph} times the states with its "
                f"graph, {states} times with checkpoint=True, which takes {s['states'] / s['graph']:.2f} of the time")
    if row["kind"] == "gradient":
        held = "" if row["memory_bytes"] is None else f", {row['memory_bytes'] / 1e6:.0f} MB"
        return (f"{row['nodes']:,} nodes: gradient of {row['steps']} steps {s['gradient']:.2f} s, "
                f"{s['gradient'] / s['adjoint']:.2f} of the adjoint by hand, "
                f"{s['gradient'] / s['forward']:.2f} of the forward rollout{held}; differs by {row['gap']:.0e}")
    return (f"{row['nodes']:,} nodes: mesh {s['mesh']:.2f} s; from the mesh to the first step {s['first'] - s['mesh']:.2f} s, "
            f"{(s['first'] - s['mesh']) / s['factor']:.2f} of the factorisation alone; again on the same mesh "
            f"{s['again'] / s['factor']:.2f}")


def table(data: dict[str, Any]) -> str:
    """The rows in sentences."""
    return "\n".join([f"## Step, gradient and set-up on {data['hardware']}", "",
                      "Heat on a square, double precision, one thread; beside plain SciPy with the same SuperLU factorisation.", "",
                      *(f"- {sentence(row)}" for row in data["rows"])])
