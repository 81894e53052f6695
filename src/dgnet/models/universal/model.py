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

from collections.abc import Mapping, Sequence
from math import exp
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dgnet.arguments import checked
from dgnet.data.digests import load_checkpoint
from dgnet.errors import InputError
from dgnet.files import read_json
from dgnet.models.base import START, Model, SolverStepper
from dgnet.models.classical import Classical, ClassicalStepper
from dgnet.models.universal.elements import ElementNet
from dgnet.models.universal.gathering import Gathering
from dgnet.models.universal.local import SPREAD, surroundings
from dgnet.models.universal.network import UniversalNet
from dgnet.models.universal.operators import element_operators, operators
from dgnet.models.universal.steps import GatheredSteps
from dgnet.operators import check_scheme
from dgnet.problems import CONSISTENT, Problem
from dgnet.problems.lift import Lift
from dgnet.stepping import GreenSolver, Linear, Operators, Solver

Tensor = torch.Tensor

WEIGHTS = Path(__file__).parent / "weights"
_ELEMENT_SIZES = 6  # numbers that an `ElementNet` is built with


class PreparedUniversal(SolverStepper):
    """A problem made ready. `gathering` is None where the solver is the classical one.

    Steps work on the values at the nodes, then the memory of the edges: how far the middles are from the means of the ends.
    """

    def __init__(self, main: Solver, gathering: Gathering | None, n_nodes: int, stable: int = 0) -> None:
        super().__init__(main, stable)
        self.gathering, self.n_nodes = gathering, n_nodes
        self._arrays: tuple[Linear, GatheredSteps] | None = None

    def between(self, u: Tensor) -> Tensor:
        """Values at nodes and middles; fitted, where u [B, N, F] has none at the middles."""
        return u if u.shape[1] != self.n_nodes else Lift.of(self.problem.mesh, u.device)(u)

    def lift(self, u: Tensor) -> Tensor:
        if self.gathering is None:
            return u[:, :self.n_nodes]
        u = self.between(u)
        return torch.cat([u[:, :self.n_nodes], self.gathering.curve(u)], 1)

    def read(self, u: Tensor) -> Tensor:
        return u[:, :self.n_nodes]

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        p, gather, n = self.problem, self.gathering, self.n_nodes
        start = self.starts(k, t)
        if gather is None:
            return self.main.step(u, None if source is None else source[:, :n], t, start=start)
        nodes, memory = u[:, :n].to(p.dtype), u[:, n:].to(p.dtype)
        nodes = self.solver.walled(nodes, t) if start else nodes
        level = self.solver.operator(t).reference(nodes)
        found = gather(nodes - level, None if source is None else self.between(source.to(p.dtype)), memory)
        new = self.solver.step_moved(nodes, found[:, :n], t, start)
        if new.requires_grad:
            return torch.cat([new, found[:, n:]], 1).to(u.dtype)
        found[:, :n] = new
        return found.to(u.dtype)

    def brings(self) -> np.ndarray | None:
        return None if self.gathering is None else self.gathering.brought() / self.problem.dt

    def linear(self) -> Linear | None:
        linear = super().linear()
        if linear is None or self.gathering is None or torch.is_grad_enabled():
            return linear if self.gathering is None else None
        if self._arrays is None or self._arrays[0] is not linear:
            self._arrays = linear, GatheredSteps(linear, self.gathering)
        return self._arrays[1]

    def repeats(self, times: Sequence[float] = ()) -> bool:
        return not times and super().repeats()


class ElementStepper(ClassicalStepper):
    """Steps with corrected quadratic elements. States have values at nodes and middles."""

    def brings(self) -> np.ndarray | None:
        source, p = self.solver.operators.source, self.problem
        total = source.values.new_zeros(p.n).index_add(0, source.pattern.col.long(), source.values.detach()[0, 0])
        found: np.ndarray = total.double().cpu().numpy()
        return found


class Jumps(NamedTuple):
    """Jumps of the diffusivity beyond those of the training parts."""

    share: float  # of the nodes around which they are
    ratio: float  # the largest one
    trained: float  # and that of the training
    place: tuple[float, ...]


@checked
class Universal(Model[PreparedUniversal | ClassicalStepper]):
    """The classical solver with corrections for every mesh: less error before there is any data.

    - `nets`: networks by dimension; the shipped ones unless given. A dimension without one is solved classically
    - `degree`: of the elements: 1 linear, 2 quadratic. Quadratic ones take ten times the time of a step and make a fraction of the
      error (`elements` says what is corrected there)

    It has values at the middles of the edges, too (`points`): a source or a start that is a function is best evaluated at all of
    them. Given at the nodes alone, it is fitted. `coverage` tells for which share of a mesh the corrections hold.

        >>> import dgnet as dg, torch
        >>> plate = dg.Problem(dg.box((8, 8)), dg.PDE(diffusion=1.0), [dg.Robin("boundary", 1.0, 0.0)], dt=0.01)
        >>> states = dg.rollout(dg.Universal(), plate, torch.ones(1, 81, 1, dtype=torch.float64), steps=5)
        >>> states.shape
        torch.Size([1, 6, 81, 1])
    """

    def __init__(self, nets: Mapping[int, UniversalNet | ElementNet] | None = None, degree: int = 1) -> None:
        check_scheme(degree=degree)
        self.loaded: dict[str, UniversalNet | ElementNet] = {} if nets is None else {net.name: net for net in nets.values()}
        self.shipped, self.degree = nets is None, degree
        if any(isinstance(net, ElementNet) != (degree == 2) or (isinstance(net, ElementNet) and net.degree != degree)
               for net in self.loaded.values()):
            raise InputError(f"these weights do not belong to elements of degree {degree}")

    @property
    def name(self) -> str:
        return "universal" if self.degree == 1 else "universal (P2)"

    @property
    def solves(self) -> bool:
        return True

    @property
    def start(self) -> int:
        """How many steps after the start, or after a jump of boundary data, are L-stable: as the weights were trained."""
        return START if self.degree == 2 else 0

    def stable_steps(self, problem: Problem) -> int:
        return self.start if self.acts(problem) else START

    @property
    def first_steps(self) -> int:
        return self.start

    @property
    def any_step(self) -> bool:
        return False  # linear elements remember the step before; and other steps have other corrections: halving never converges

    def net(self, dim: int, flow: bool = False) -> UniversalNet | ElementNet | None:
        """The network for meshes of this dimension, with or without a flow; None where there is none."""
        name = f"{'universal' if self.degree == 1 else 'elements2'}-{'flow-' * flow}{dim}d"
        path = WEIGHTS / f"{name}.pt"
        if self.shipped and name not in self.loaded and path.exists():
            kind = UniversalNet if self.degree == 1 else ElementNet
            self.loaded[name] = kind.load(path, str(read_json(path.with_suffix(".json"), {"sha256": str})["sha256"]))
        return self.loaded.get(name)

    def _net_for(self, problem: Problem) -> UniversalNet | ElementNet | None:
        return self.net(problem.mesh.dim, problem.pde.velocity is not None)

    def acts(self, problem: Problem) -> bool:
        """Whether there are corrections for problems of this kind."""
        return untrained(problem) is None and self._net_for(problem) is not None

    def coverage(self, problem: Problem) -> float:
        """Share of the nodes around which everything lies in the range of the training parts: there the corrections act in full."""
        net = self._net_for(problem) if self.acts(problem) else None
        if net is None:
            return 0.0
        return float((net.to(problem.geometry.device).fading(surroundings(problem).to(net.low_node.dtype))[0] == 1).double().mean())

    def jumps(self, problem: Problem) -> Jumps | None:
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

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000,
                careful: bool = False) -> PreparedUniversal | ClassicalStepper:
        net = self._net_for(problem) if self.acts(problem) else None
        deferred = problem.geometry.device.type == "cuda" and not careful
        if self.degree == 2:
            if not isinstance(net, ElementNet):
                return Classical(CONSISTENT, degree=2).prepare(problem, batch, steps, careful)
            plain = problem.held().recast(CONSISTENT, problem.advection_form)
            s = surroundings(plain).to(net.low_node.dtype)
            learned = element_operators(plain.quadratic, s, net.to(problem.geometry.device))
            solver = GreenSolver(plain.quadratic, solves=steps, columns=batch, operators=learned)
            solver.monitor.deferred = deferred
            return ElementStepper(solver, START)
        if problem.pde.curved:
            classical = Classical().prepare(problem, batch, steps, careful)
            return PreparedUniversal(classical.main, None, problem.mesh.n_nodes, classical.stable)
        problem = problem.held().recast(CONSISTENT, problem.advection_form)
        ops: Operators | None = None
        gathering = None
        if isinstance(net, UniversalNet):
            s = surroundings(problem).to(net.low_node.dtype)
            z = net.to(problem.geometry.device)(s, fade=True)
            ops = operators(problem, s, z)
            gathering = Gathering.of(problem, s, z, ops.stiffness(0.0))
        solver = GreenSolver(problem, solves=steps, columns=batch, operators=ops)
        solver.monitor.deferred = deferred
        return PreparedUniversal(solver, gathering, problem.mesh.n_nodes, self.start if gathering else START)

    def points(self, problem: Problem) -> np.ndarray:
        if self.degree == 1 and not self.acts(problem):
            return problem.mesh.points
        return np.concatenate([problem.mesh.points, problem.mesh.middles])

    def brought(self, problem: Problem) -> np.ndarray | None:
        if not self.acts(problem):
            return None
        with torch.no_grad():
            return self.prepare(problem, 1, 1).brings()


def load_weights(path: Path) -> UniversalNet | ElementNet:
    """Universal weights from a file, for linear or for quadratic elements."""
    state = load_checkpoint(path)
    sizes = state.get("sizes")
    return (ElementNet if sizes is not None and len(sizes) == _ELEMENT_SIZES else UniversalNet).of(state, path)


def untrained(p: Problem) -> str | None:
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
