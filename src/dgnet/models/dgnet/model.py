"""DGNet: a Green solver whose operator is partly learned (paper, Section 3).

    paper                                                             here
    L_physics (Section 3.4.1)                                         DGNet.L_physics
    L_neural (Section 3.4.2, Eq. 9-10)                                DGNet.L_neural: the sum of `parts`
    L = L_physics + L_neural                         (Eq. 8)          DGNet.hybrid_operator
    G = (I - dt/2 L)^-1                              (Section 3.3)    DGNet.G
    u+ = G [ (I + dt/2 L) u + dt (f + f+) / 2 ]      (Eq. 7)          DGNet.update
    u+ <- u+ + residual network                      (Section 3.5)    parts.paper.Residual
    variants A-D of the ablation                     (Section 4.3)    parts.paper.VARIANTS

Deviations from the paper:
- Finite elements with mass M and stiffness K: L = -M^-1 K, and the update is (M + dt/2 K) u+ = (M - dt/2 K) u + dt P f. With M
  lumped and the `edge` decoder (`parts.paper.PAPER`) this is the paper's.
- f is the average of the source over the step, not the mean of its two ends.
- K is that of the middle of the step. A reaction enters by predictor-corrector; boundary conditions are inside the system.
- The paper's numbers of edges have no limit; ours are bounded by the local physical operator and have zero row sums.
- By default (`structured`) no weights can make energy: what may be learned is M, K and P with a limit for every part; the residual
  network is off. Every part has a file in `parts`, with its guarantee.

What holds for any finite weights, in every step, whatever the flow does in time:

    f = g = 0, no reaction, no residual network, homogeneous conditions   =>   |u+|_M <= |u|_M

without a flow; and with one if `advection_form` is "skew" and nothing flows in, or what flows in is held at zero. With "galerkin"
(the default: more accurate) what was learned makes no energy either, but the divergence of the interpolated flow can, at the rate
max |div v| / 2. The filter of the start and the change from the early steps' mass to the other's act once each; they change
|u|_M by a bounded factor. All of it holds to rounding: matrices are assembled in double and rounded once to the working precision,
so that a step can gain a share of order eps (1 + dt |K| / |M|), eps that of the working precision. Weights so large that a network
overflows are an error of the solve. The `edge` decoder and the residual network have no such proof.

Every learned part starts at zero: untrained, DGNet is the classical solver on the same mesh, to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.green import GreenSolver, Operators
from dgnet.models.base import LearnedModel, impose
from dgnet.models.dgnet.build import Advance, Build, Rate, Scales
from dgnet.models.dgnet.config import DGNetConfig
from dgnet.models.dgnet.masses import MassChange, mass_change
from dgnet.models.dgnet.parts import Calibration, Part, Reaction, parts_of
from dgnet.models.dgnet.parts.reaction import ReactionTable
from dgnet.models.dgnet.parts.start import EarlySteps, phase_of_step
from dgnet.models.gnn import MLP, MeshGraph, StateNet
from dgnet.problems import CONSISTENT, Discretisation

Tensor = torch.Tensor
P = TypeVar("P", bound=Part)

_DENSE = 3000  # nodes up to which a long rollout on CUDA uses the explicit inverse


@dataclass(frozen=True, eq=False)
class PreparedDGNet:
    """A problem made ready: the hybrid solver, and what acts besides it."""

    solver: GreenSolver
    graph: MeshGraph
    start: MassChange | None  # filter of the initial state
    early: EarlySteps | None
    corrections: tuple[Advance, ...]
    instead: Advance | None  # variant D

    def changes(self) -> dict[str, MassChange]:
        """What is done to a state once: `start` to the initial one, `switch` after the early steps."""
        found = {"start": self.start, "switch": None if self.early is None else self.early.switch}
        return {name: change for name, change in found.items() if change is not None}


class DGNet(LearnedModel[PreparedDGNet]):
    """The classical solver with learned corrections: a list of parts that all start at zero.

    - `config`: which parts
    - `problem`: the problem it is made for; weights are for one kind of problem (dimension, fields) and, with `free`, for one mesh
    - `extra`: parts of your own, which act after those of the configuration

    Untrained it is the classical solver, to rounding. What holds for any weights is in the module's docstring.

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [], dt=0.1)
        >>> model = dg.DGNet(dg.DGNetConfig(hidden=8, layers=1), problem).double()
        >>> u = torch.rand(1, 25, 1, dtype=torch.float64)
        >>> with torch.no_grad():
        ...     torch.allclose(dg.rollout(model, problem, u, steps=3), dg.rollout(dg.Classical(), problem, u, steps=3))
        True
    """

    def __init__(self, config: DGNetConfig, problem: Discretisation, extra: Sequence[Part] = ()) -> None:
        super().__init__()
        self.config, self.dim, self.fields = config, problem.mesh.dim, problem.n_fields
        self.parts = (*parts_of(config, problem), *extra)  # a tuple: the weights below have no part in their names
        for part in self.parts:
            for name, weight in part.named_parameters(recurse=False):
                self.register_parameter(name, weight)
            for name, module in part.named_children():
                self.add_module(name, module)
        F, capacity = self.fields, problem.capacity
        mean_capacity = torch.ones(F) if capacity is None else capacity.detach().mean(1).expand(F).float().cpu()
        starts = {"mean": torch.zeros(F), "std": torch.ones(F), "source_std": torch.ones(F), "rate": torch.ones(F),
                  "low": torch.full((F,), -torch.inf), "high": torch.full((F,), torch.inf), "capacity": mean_capacity.clone()}
        for name, value in starts.items():
            self.register_buffer(name, value, persistent=name != "capacity")
        self.register_load_state_dict_pre_hook(_older)

    # ------------------------------------------------------------------ the paper

    def L_physics(self, problem: Discretisation, graph: MeshGraph, early: bool = False) -> Build:
        """The classical operators of the problem; nothing of them in variant A."""
        return Build(problem, graph, self.scales, self.config.physics, early)

    def L_neural(self, build: Build) -> None:
        """Every learned part adds to the operators under construction."""
        for part in self.parts:
            part.contribute(build)

    def hybrid_operator(self, problem: Discretisation, graph: MeshGraph, early: bool = False) -> tuple[Operators, Build]:
        """L = L_physics + L_neural (Eq. 8), as M, K, P and the reaction; `early`: that of the early steps."""
        build = self.L_physics(problem, graph, early)
        self.L_neural(build)
        return build.operators(), build

    def G(self, problem: Discretisation, operators: Operators, batch: int, steps: int, careful: bool) -> GreenSolver:
        """The discrete Green's function, ready to be applied: a solver with (M + dt/2 K)^-1."""
        backend, cuda = "auto", problem.geometry.device.type == "cuda"
        if cuda:  # for few nodes one dense product is quicker than a dozen small kernels
            few = problem.n <= _DENSE and steps >= 100 and not problem.time_dependent
            backend = "dense" if few else "iterative"
        solver = GreenSolver(problem, backend, solves=steps, columns=batch, operators=operators)
        solver.monitor.deferred = cuda and not careful
        return solver

    def update(self, state: PreparedDGNet, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        """u+ = G [ (I + dt/2 L) u + dt f ] (Eq. 7). The early steps have a G of their own."""
        early = state.early
        if early is not None and k < early.steps:
            return early.solver.step(u, source, t)
        if early is not None and k == early.steps:
            u = u + early.switch(u)
        return state.solver.step(u, source, t)

    # ------------------------------------------------------------------ Model

    @property
    def name(self) -> str:
        return "dgnet"

    @property
    def solves(self) -> bool:
        return True

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> PreparedDGNet:
        cache = problem.geometry.__dict__.setdefault("_dgnet", {})
        if "graph" not in cache:
            cache["graph"] = MeshGraph.of(problem.geometry)
        graph: MeshGraph = cache["graph"]
        problem = self.own_form(problem.held() if self.config.green else problem)  # networks keep their own precision
        operators, build = self.hybrid_operator(problem, graph)
        solver, start, early = self.G(problem, operators, batch, steps, careful), build.start, None
        if self.config.early_steps:
            first, first_build = self.hybrid_operator(problem, graph, early=True)
            switch = mass_change(problem, first.mass, operators.mass, operators.mass_low)
            start = first_build.start
            early = EarlySteps(self.config.early_steps, self.G(problem, first, batch, steps, careful), switch)
        return PreparedDGNet(solver, graph, start, early, tuple(build.corrections), build.instead)

    def own_form(self, p: Discretisation) -> Discretisation:
        """The problem in the discretisation that this model corrects. A problem that asks for another one is not overruled."""
        c = self.config
        for what, asked, usual, mine in (("advection_form", p.advection_form, "galerkin", c.advection_form),
                                         ("consistent", p.consistent, CONSISTENT, c.consistent)):
            if asked not in (usual, mine):
                raise InputError(f"the problem's {what} is {asked!r}, that of the model {mine!r}: give DGNetConfig the same")
        return p.recast(c.consistent, c.advection_form)

    def begin(self, state: PreparedDGNet, u: Tensor) -> Tensor:
        return u if state.start is None else u + state.start(u)

    def step(self, state: PreparedDGNet, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        new = self.update(state, u, source, t, k) if state.instead is None else state.instead(u, source, t)
        for correction in state.corrections:
            new = correction(new, source, t)
        return impose(state.solver.problem, new, t)

    @property
    def first_steps(self) -> int:
        return self.config.early_steps + 1 if self.config.early_steps else 0

    def phase(self, k: int) -> int:
        return phase_of_step(k, self.config.early_steps)

    def capturable(self, state: PreparedDGNet) -> bool:
        p = state.solver.problem
        still = not (p.time_dependent or p.data_changes)
        return still and (state.instead is not None or state.solver.operator().prepared.capturable)

    def freeze(self, state: PreparedDGNet, times: Sequence[float]) -> bool:
        return state.instead is not None or state.solver.freeze(times)

    def finish(self, state: PreparedDGNet) -> None:
        state.solver.monitor.check()
        if state.early is not None:
            state.early.solver.monitor.check()

    def severed(self, state: PreparedDGNet) -> tuple[PreparedDGNet, list[tuple[Tensor, Tensor]]] | None:
        """The same state with operators as leaves, and (tensor, leaf) pairs; None where they change with time, unless frozen."""
        solver = None if state.instead is not None else state.solver.severed()
        early = (None, []) if state.early is None else state.early.severed()
        if solver is None or early is None:
            return None
        return replace(state, solver=solver[0], early=early[0]), [*solver[1], *early[1]]

    def step_weights(self) -> Iterator[nn.Parameter]:
        return (weight for part in self.parts if part.acts_in_step for weight in part.parameters())

    def solver(self, state: PreparedDGNet) -> GreenSolver:
        return state.solver

    @property
    def rival_mass(self) -> float:
        return self.config.consistent

    # ------------------------------------------------------------------ statistics of the training data

    calibration: nn.ParameterDict
    reaction_net: MLP | ReactionTable
    residual_net: StateNet
    mean: Tensor
    std: Tensor
    source_std: Tensor
    rate: Tensor
    low: Tensor
    high: Tensor
    capacity: Tensor

    @property
    def scales(self) -> Scales:
        return Scales(self.mean, self.std, self.source_std, self.rate, self.low, self.high, self.capacity)

    def fit_statistics(self, state: Tensor, source: Tensor | None, dt: float, velocity: Tensor | None = None) -> None:
        self.mean.copy_(state.mean((0, 1, 2)))
        self.std.copy_(state.std((0, 1, 2)).clamp(min=1e-12))
        if source is not None:
            self.source_std.copy_(source.std((0, 1, 2)).clamp(min=1e-12))
        self.rate.copy_(((state[:, 1:] - state[:, :-1]) / dt).std((0, 1, 2)).clamp(min=1e-12))
        low, high = state.amin((0, 1, 2)), state.amax((0, 1, 2))
        span = (high - low).clamp(min=1e-12)
        self.low.copy_(low - span)
        self.high.copy_(high + span)
        for part in self.parts:
            part.fit_statistics(state, self.scales)

    def typical(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.std, self.source_std

    # ------------------------------------------------------------------ what was learned about the physics

    def part(self, kind: type[P]) -> P | None:
        """The part of this kind, if there is one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def keeping(self, *kinds: type[Part]) -> DGNet:
        """A copy with these kinds of parts and no others."""
        twin = copy.deepcopy(self)
        twin.parts = tuple(part for part in twin.parts if isinstance(part, kinds))
        twin.config = replace(self.config, early_steps=0)
        return twin

    def coefficients(self) -> dict[str, float]:
        """By how much each calibrated coefficient differs from the given one, see `Calibration.coefficients`."""
        found = self.part(Calibration)
        return {} if found is None else found.coefficients()

    def reaction(self, problem: Discretisation) -> Rate | None:
        """r(u), guarded outside of the range of the training data; None where there is none."""
        found = self.part(Reaction)
        return None if found is None else found.guarded(problem, self.scales)

    def learned_reaction(self) -> Rate:
        """The learned reaction r(u), without its guard."""
        found = self.part(Reaction)
        if found is None or self.config.reaction != "learned":
            raise InputError("this model has no learned reaction")
        return found.learned(self.scales)


def _older(model: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights saved before there was a range use the reaction everywhere; unused numbers of edges are dropped."""
    for name in ("low", "high"):
        state.setdefault(prefix + name, model.get_buffer(name))
    if prefix + "free_edge" in state and "free_edge" not in dict(model.named_parameters(recurse=False)):
        del state[prefix + "free_edge"]
