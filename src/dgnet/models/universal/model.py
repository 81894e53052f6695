"""`Universal`: the classical solver with corrections that were learned once, on thousands of random parts, for every mesh.

Their network sees local shape, boundary and dimensionless numbers alone (`local`), so it needs no data of the part at hand. What
it corrects, and what holds for any weights (`operators`, `network`):

    mass M          symmetric positive definite; rows keep their sums, so constants and the total are kept
    diffusion K     symmetric positive semidefinite, rows sum to zero
    ahead           parts of K are taken later than the middle of the step (up to backward Euler's), which damps; steady states stay
    convection      each coefficient times a factor between 1/2 and 2; a part at the ambient value stays there
    source          a uniform source is exact; middles of the edges and their memory add what the nodes do not see

    flow            diffusion along it, positive semidefinite; transport beside it, skew with zero row and column sums

With f = g = 0 and no flow no step gains energy in the norm of M + ahead; with a flow the corrections add none to what the classical
solver makes of it. Superposition holds: the model is linear wherever the equation is.

Where a number lies outside the range of the training parts, the corrections fade to zero around it. There it is the classical
solver, and so it is for what was not trained at all: flows that change in time, reactions, periodic boundaries, fields with
coefficients of their own, a convective coefficient that is a function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dgnet.arguments import checked
from dgnet.files import read_json
from dgnet.green import GreenSolver, Linear, Stepper
from dgnet.models.base import Memory, Model, set_memory, solver_memory
from dgnet.models.classical import Classical
from dgnet.models.universal.gathering import Gathering
from dgnet.models.universal.local import SPREAD, Surroundings, surroundings
from dgnet.models.universal.network import Numbers, UniversalNet
from dgnet.models.universal.operators import operators
from dgnet.models.universal.steps import GatheredSteps
from dgnet.problems import CONSISTENT, Discretisation
from dgnet.problems.lift import Lift

Tensor = torch.Tensor

WEIGHTS = Path(__file__).parent / "weights"


@dataclass(frozen=True, eq=False)
class PreparedUniversal:
    """A problem made ready. `gathering` is None where the solver is the classical one."""

    solver: Stepper
    gathering: Gathering | None
    n_nodes: int

    def lift(self, u: Tensor) -> Tensor:
        """Values at nodes and middles; fitted, where u [B, N, F] has none at the middles."""
        return u if u.shape[1] != self.n_nodes else Lift.of(self.solver.problem.mesh, u.device)(u)

    def arrays(self, linear: Linear) -> GatheredSteps:
        """These steps with what is gathered, made once."""
        assert self.gathering is not None
        kept: dict[Linear, GatheredSteps] = self.__dict__.setdefault("_arrays", {})
        if linear not in kept:
            kept.clear()
            kept[linear] = GatheredSteps(linear, self.gathering)
        return kept[linear]


class Jumps(NamedTuple):
    """Jumps of the diffusivity beyond those of the training parts."""

    share: float  # of the nodes around which they are
    ratio: float  # the largest one
    trained: float  # and that of the training
    place: tuple[float, ...]


@checked
class Universal(Model[PreparedUniversal]):
    """The classical solver with corrections for every mesh: less error before there is any data.

    - `nets`: networks by dimension; the shipped ones unless given. A dimension without one is solved classically

    It has values at the middles of the edges, too (`points`): a source or a start that is a function is best evaluated at all of
    them. Given at the nodes alone, it is fitted. `coverage` tells for which share of a mesh the corrections hold.

        >>> import dgnet as dg, torch
        >>> plate = dg.Problem(dg.box((8, 8)), dg.PDE(diffusion=1.0), [dg.Robin("boundary", 1.0, 0.0)], dt=0.01)
        >>> states = dg.rollout(dg.Universal(), plate, torch.ones(1, 81, 1, dtype=torch.float64), steps=5)
        >>> states.shape
        torch.Size([1, 6, 81, 1])
    """

    def __init__(self, nets: Mapping[int, UniversalNet] | None = None) -> None:
        self.loaded = {} if nets is None else {net.name: net for net in nets.values()}
        self.shipped = nets is None

    @property
    def name(self) -> str:
        return "universal"

    @property
    def solves(self) -> bool:
        return True

    @property
    def any_step(self) -> bool:
        return False  # edges remember the step before

    def net(self, dim: int, flow: bool = False) -> UniversalNet | None:
        """The network for meshes of this dimension, with or without a flow; None where there is none."""
        name = f"universal-flow-{dim}d" if flow else f"universal-{dim}d"
        path = WEIGHTS / f"{name}.pt"
        if self.shipped and name not in self.loaded and path.exists():
            self.loaded[name] = UniversalNet.load(path, str(read_json(path.with_suffix(".json"), {"sha256": str})["sha256"]))
        return self.loaded.get(name)

    def _net_for(self, problem: Discretisation) -> UniversalNet | None:
        return self.net(problem.mesh.dim, problem.pde.velocity is not None)

    def acts(self, problem: Discretisation) -> bool:
        """Whether there are corrections for problems of this kind."""
        return untrained(problem) is None and self._net_for(problem) is not None

    def numbers(self, problem: Discretisation) -> tuple[Surroundings, Numbers] | None:
        """What the network makes of a problem; None for one of a kind that it was not trained for."""
        net = self._net_for(problem) if self.acts(problem) else None
        if net is None:
            return None
        s = surroundings(problem).to(net.low_node.dtype)
        return s, net.to(problem.geometry.device)(s, fade=True)

    def coverage(self, problem: Discretisation) -> float:
        """Share of the nodes around which everything lies in the range of the training parts: there the corrections act in full."""
        net = self._net_for(problem) if self.acts(problem) else None
        if net is None:
            return 0.0
        return float((net.to(problem.geometry.device).fading(surroundings(problem).to(net.low_node.dtype))[0] == 1).double().mean())

    def jumps(self, problem: Discretisation) -> Jumps | None:
        """Where the diffusivity jumps by more than in the training parts, so that the corrections fade; None where it does not."""
        net = self._net_for(problem) if self.acts(problem) else None
        if net is None:
            return None
        s = surroundings(problem).to(net.low_node.dtype)
        net = net.to(problem.geometry.device)
        spread = s.graph.edge[:len(s.graph.pairs), SPREAD]
        worst, most = int(spread.argmax()), float(net.high_edge[SPREAD])
        if float(spread[worst]) <= most:
            return None
        ends = s.graph.to[s.graph.pairs[net.jumps(s) < 1]]
        middle = problem.mesh.middles[worst]
        return Jumps(len(ends.unique()) / problem.mesh.n_nodes, exp(float(spread[worst])), exp(most), tuple(middle.tolist()))

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> PreparedUniversal:
        if problem.pde.curved:
            return PreparedUniversal(Classical().prepare(problem, batch, steps, careful), None, problem.mesh.n_nodes)
        problem = problem.held().recast(CONSISTENT, problem.advection_form)
        found, ops, gathering = self.numbers(problem), None, None
        if found is not None:
            ops = operators(problem, *found)
            gathering = Gathering.of(problem, *found, ops.stiffness(0.0))
        solver = GreenSolver(problem, solves=steps, columns=batch, operators=ops)
        solver.monitor.deferred = problem.geometry.device.type == "cuda" and not careful
        return PreparedUniversal(solver, gathering, problem.mesh.n_nodes)

    def step(self, state: PreparedUniversal, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        p, gather = state.solver.problem, state.gathering
        if gather is None:
            return state.solver.step(u, None if source is None else source[:, :state.n_nodes], t)
        assert isinstance(state.solver, GreenSolver)
        given, n = u.dtype, state.n_nodes
        nodes, memory = u[:, :n].to(p.dtype), u[:, n:].to(p.dtype)
        level = state.solver.operator(t).reference(nodes)
        found = gather(nodes - level, None if source is None else state.lift(source.to(p.dtype)), memory)
        new = state.solver.step_moved(nodes, found[:, :n], t)
        if new.requires_grad:
            return torch.cat([new, found[:, n:]], 1).to(given)
        found[:, :n] = new
        return found.to(given)

    def points(self, problem: Discretisation) -> np.ndarray:
        if not self.acts(problem):
            return problem.mesh.points
        return np.concatenate([problem.mesh.points, problem.mesh.middles])

    def brings(self, state: PreparedUniversal) -> np.ndarray | None:
        return None if state.gathering is None else state.gathering.brought() / state.solver.problem.dt

    def lift(self, state: PreparedUniversal, u: Tensor) -> Tensor:
        """The values at the nodes, then the memory of the edges: how far the middles are from the means of the ends."""
        if state.gathering is None:
            return u[:, :state.n_nodes]
        u = state.lift(u)
        return torch.cat([u[:, :state.n_nodes], state.gathering.curve(u)], 1)

    def read(self, state: PreparedUniversal, u: Tensor) -> Tensor:
        return u[:, :state.n_nodes]

    def capturable(self, state: PreparedUniversal) -> bool:
        return state.solver.capturable

    def memory(self, state: PreparedUniversal) -> Memory:
        return solver_memory(solver=state.solver)

    def remember(self, state: PreparedUniversal, memory: Memory) -> None:
        set_memory(memory, solver=state.solver)

    def finish(self, state: PreparedUniversal) -> None:
        state.solver.finish()

    def solver(self, state: PreparedUniversal) -> GreenSolver | None:
        return state.solver if isinstance(state.solver, GreenSolver) else None

    def linear_steps(self, state: PreparedUniversal) -> Linear | None:
        solver = self.solver(state)
        linear = None if solver is None else solver.linear()
        if linear is None or solver is None or state.gathering is None:
            return linear
        return None if torch.is_grad_enabled() else state.arrays(linear)


def untrained(p: Discretisation) -> str | None:
    """Why the corrections do not apply to a problem, in words; None where they do."""
    if p.pde.curved:
        return "its materials change with the solution"
    if callable(p.pde.velocity):
        return "its flow changes in time"
    if p.pde.velocity is not None and p.advection_form != "galerkin":
        return f"its advection has the form '{p.advection_form}'"
    if p.pde.velocity is not None and p.capacity is not None:
        return "something flows and it has a capacity"
    if p.pde.reaction is not None:
        return "there is a reaction"
    if p.n != p.mesh.n_nodes:
        return "boundaries are periodic"
    shared = all(p.pde.shared(name) for name in ("diffusion", "decay", "capacity")) and all(
        getattr(c, "field", None) is None for c in p.conditions)
    if p.n_fields > 1 and not shared:
        return "its fields have coefficients or conditions of their own"
    if p.exchange_changes:
        return "a convective coefficient is a function"
    return None
