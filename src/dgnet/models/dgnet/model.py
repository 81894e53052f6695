"""DGNet: a Green solver whose operator is partly learned (paper, Section 3).

    paper                                                             here
    L_physics (Section 3.4.1)                                         DGNet.L_physics
    L_neural (Section 3.4.2, Eq. 9-10)                                DGNet.L_neural: the sum of `parts`
    L = L_physics + L_neural                         (Eq. 8)          DGNet.hybrid_operator
    G = (I - dt/2 L)^-1                              (Section 3.3)    DGNet.G
    u+ = G [ (I + dt/2 L) u + dt (f + f+) / 2 ]      (Eq. 7)          DGNet.update
    u+ <- u+ + residual network                      (Section 3.5)    dgnet_paper.model.paper.PlainResidual
    variants A-D of the ablation                     (Section 4.3)    dgnet_paper.model.variants

Ours (`DGNetConfig`): finite elements with mass M and stiffness K, so that L = -M^-1 K and the update is
(M + dt/2 K) u+ = (M - dt/2 K) u + dt P f, f the average of the source over the step. What may be learned is M, K and P, with a
limit for every part: no weights can make energy. Every part has a file in `parts`, with its guarantee.

The distribution dgnet-paper makes two more models of the same class with parts of its own (`dgnet_paper.model`): the paper's text
(`PAPER`; docs/paper.md has it element by element), and the paper's networks on lumped finite elements, with limits (`BOUNDED`).

In all of them K is one for the whole step (`stepping.solver`), a reaction enters by predictor-corrector, and boundary conditions
are inside the system.

What holds for any finite weights of the structured decoder, in every step, whatever the flow does in time:

    f = g = 0, no reaction, no residual network, homogeneous conditions   =>   |u+|_M <= |u|_M

without a flow; and with one if `advection_form` is "skew" and nothing flows in, or what flows in is held at zero. With "galerkin"
(the default: more accurate) what was learned makes no energy either, but the divergence of the interpolated flow can, at the rate
max |div v| / 2. The filter of the start and the change from the early steps' mass to the other's act once each; they change
|u|_M by a bounded factor. All of it holds to rounding: matrices are assembled in double and rounded once to the working precision,
so that a step can gain a share of order eps (1 + dt |K| / |M|), eps that of the working precision. Weights so large that a network
overflows are an error of the solve. The `edge` decoders and the residual networks have no such proof.

Every learned part starts at zero: untrained, DGNet is its L_physics, for finite elements the classical solver, to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Self, TypeVar

import torch
from torch import nn

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.models.base import Again, LearnedModel, Severed, SolverStepper, impose
from dgnet.models.dgnet.build import Advance, Build, Correction, Rate, Scales
from dgnet.models.dgnet.config import DGNetConfig
from dgnet.models.dgnet.parts import Calibration, Material, Part, Reaction, parts_of
from dgnet.models.dgnet.parts.library import Library
from dgnet.models.dgnet.parts.material import linear_problem, solver_of, unit_problem
from dgnet.models.dgnet.parts.reaction import ReactionTable
from dgnet.models.dgnet.parts.start import EarlySteps, MassChange, mass_change
from dgnet.models.gnn import MLP, MeshGraph, StateNet
from dgnet.problems import CONSISTENT, Problem, Rule
from dgnet.stepping import EnthalpySolver, GreenSolver, Linear, Operators
from dgnet.stepping.backends import Monitor
from dgnet.stepping.bounds import Bounds

Tensor = torch.Tensor
P = TypeVar("P", bound=Part)

_DENSE = 3000  # nodes up to which a long rollout on CUDA uses the explicit inverse


@checked
class DGNet(LearnedModel["PreparedDGNet"]):
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

    calibration: nn.ParameterDict
    reaction_net: MLP | ReactionTable | Library
    residual_net: StateNet
    mean: Tensor
    std: Tensor
    source_std: Tensor
    rate: Tensor
    low: Tensor
    high: Tensor
    capacity: Tensor

    def __init__(self, config: DGNetConfig, problem: Problem, extra: Sequence[Part] = ()) -> None:
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

    def L_physics(self, problem: Problem, graph: MeshGraph, early: bool = False) -> Build:
        """The classical operators of the problem, or the paper's; nothing of them in variant A."""
        build = Build(problem, graph, self.scales, self.config.physics, early)
        for part in self.parts:
            if part.is_physics:
                part.contribute(build)
        return build

    def L_neural(self, build: Build) -> None:
        """Every learned part adds to the operators under construction."""
        for part in self.parts:
            if not part.is_physics:
                part.contribute(build)

    def hybrid_operator(self, problem: Problem, graph: MeshGraph, early: bool = False) -> tuple[Operators, Build]:
        """L = L_physics + L_neural (Eq. 8), as M, K, P and the reaction; `early`: that of the early steps."""
        build = self.L_physics(problem, graph, early)
        self.L_neural(build)
        return build.operators(), build

    def G(self, problem: Problem, operators: Operators, batch: int, steps: int, careful: bool) -> GreenSolver:
        """The discrete Green's function, ready to be applied: a solver with (M + dt/2 K)^-1."""
        cuda = problem.geometry.device.type == "cuda"
        backend = "auto" if problem.time_dependent else self.config.backend
        if cuda:  # for few nodes one dense product is quicker than a dozen small kernels
            few = problem.n <= _DENSE and steps >= 100 and not problem.time_dependent
            backend = "dense" if few else "iterative"
        solver = GreenSolver(problem, backend, solves=steps, columns=batch, operators=operators)
        solver.monitor.deferred = cuda and not careful
        return solver

    def update(self, state: PreparedDGNet, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        """u+ = G [ (I + dt/2 L) u + dt f ] (Eq. 7). The early steps have a G of their own, and the first ones after a start are
        L-stable."""
        early, start = state.early, state.starts(k, t)
        if early is not None and k < early.steps:
            return early.solver.step(u, source, t, start=start)
        if early is not None and k == early.steps:
            u = u + early.switch(u)
        return state.main.step(u, source, t, start=start)

    # ------------------------------------------------------------------ Model

    @property
    def name(self) -> str:
        return self.config.model

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> PreparedDGNet:
        graph = MeshGraph.kept(problem.geometry, self.config.plain)
        material = self.part(Material)
        problem = problem if material is None else material.told(problem)
        if problem.pde.curved:
            if not self.config.linear:
                return self.prepare_curved(problem, graph, careful)
            problem = linear_problem(problem)
        problem = self.own_form(problem.held() if self.config.green else problem)  # networks keep their own precision
        operators, build = self.hybrid_operator(problem, graph)
        solver, start, early = self.G(problem, operators, batch, steps, careful), build.start, None
        if self.config.early_steps:
            first, first_build = self.hybrid_operator(problem, graph, early=True)
            switch = mass_change(problem, first.mass, operators.mass, operators.mass_low)
            start = first_build.start
            early = EarlySteps(self.config.early_steps, self.G(problem, first, batch, steps, careful), switch)
        return PreparedDGNet(self, solver, graph, start, early, tuple(build.corrections), build.instead)

    def again(self, problem: Problem, batch: int = 1) -> Again[PreparedDGNet] | None:
        """L_physics and what belongs to the mesh once, L_neural and the matrices of a step every time. For the paper's scheme,
        where nothing changes in time."""
        if not self.config.plain or problem.time_dependent or problem.data_changes or problem.pde.curved:
            return None
        graph, own, monitor = MeshGraph.kept(problem.geometry, True), self.own_form(problem.held()), Monitor(deferred=True)
        physics = self.L_physics(own, graph)

        def prepared(bounds: Bounds | None) -> PreparedDGNet:
            build = physics.copied()
            build.once = True
            self.L_neural(build)
            solver = GreenSolver(own, "iterative", columns=batch, operators=build.operators())
            solver.monitor = monitor
            solver.hold(bounds)
            return PreparedDGNet(self, solver, graph, None, None, tuple(build.corrections), build.instead)

        return prepared

    def prepare_curved(self, problem: Problem, graph: MeshGraph, careful: bool) -> PreparedDGNet:
        """Where capacity or diffusion are curves of u."""
        c = self.config
        if c.early_steps or c.learn_start or c.calibrate:
            raise InputError("where capacity or diffusion change with u, a DGNet has no early_steps, learn_start or calibrate")
        problem = self.own_form(problem)
        build = self.L_physics(unit_problem(problem), graph)
        self.L_neural(build)
        solver = solver_of(problem, build, problem.geometry.device.type == "cuda" and not careful)
        return PreparedDGNet(self, solver, graph, corrections=tuple(build.corrections))

    def own_form(self, p: Problem) -> Problem:
        """The problem in the discretisation that this model corrects. A problem that asks for another one is not overruled."""
        c = self.config
        for what, asked, usual, mine in (("advection_form", p.advection_form, "galerkin", c.advection_form),
                                         ("consistent", p.consistent, CONSISTENT, c.consistent)):
            if asked not in (usual, mine):
                raise InputError(f"the problem's {what} is {asked!r}, that of the model {mine!r}: give DGNetConfig the same")
        return p.recast(c.consistent, c.advection_form)

    @property
    def rule(self) -> Rule:
        return self.config.rule

    @property
    def solves(self) -> bool:
        return True

    @property
    def any_step(self) -> bool:
        return self.config.green and self.config.physics and not self.config.residual and not self.config.early_steps

    @property
    def rival_mass(self) -> float:
        return self.config.consistent

    def stable_steps(self, problem: Problem) -> int:
        return self.config.start

    @property
    def first_steps(self) -> int:
        return max(self.config.early_steps + 1 if self.config.early_steps else 0, self.config.start)

    # ------------------------------------------------------------------ statistics of the training data

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

    def keeping(self, *kinds: type[Part]) -> Self:
        """A copy with these kinds of parts and no others, but for those that replace the solver's step."""
        twin = copy.deepcopy(self)
        twin.parts = tuple(part for part in twin.parts if isinstance(part, kinds) or part.replaces_step)
        twin.config = replace(self.config, early_steps=0)
        return twin

    def coefficients(self) -> dict[str, float]:
        """By how much each calibrated coefficient differs from the given one, see `Calibration.coefficients`."""
        found = self.part(Calibration)
        return {} if found is None else found.coefficients()

    def reaction(self, problem: Problem) -> Rate | None:
        """r(u), guarded outside of the range of the training data; None where there is none."""
        found = self.part(Reaction)
        return None if found is None else found.guarded(problem, self.scales)

    def curved(self, problem: Problem) -> bool:
        """Capacity or diffusion change with u in this model: its steps have no single operator."""
        return bool(self.config.unknown_curves) or (problem.pde.curved and not self.config.linear)

    def learned_reaction(self) -> Rate:
        """The learned reaction r(u), without its guard."""
        found = self.part(Reaction)
        if found is None or self.config.reaction != "learned":
            raise InputError("this model has no learned reaction")
        return found.learned(self.scales)


class PreparedDGNet(SolverStepper):
    """A problem made ready: the hybrid solver, and what acts besides it.

    - `start`, `early`: filter of the initial state, and the first steps, where they differ
    - `corrections`: of each new state; `instead`: of the solver's step (variant D)
    """

    def __init__(self, model: DGNet, main: GreenSolver | EnthalpySolver, graph: MeshGraph, start: MassChange | None = None,
                 early: EarlySteps | None = None, corrections: tuple[Correction, ...] = (), instead: Advance | None = None) -> None:
        super().__init__(main, model.config.start, **({} if early is None else {"early": early.solver}))
        self.model, self.graph, self.start, self.early = model, graph, start, early
        self.corrections, self.instead = corrections, instead

    def begin(self, u: Tensor) -> Tensor:
        return u if self.start is None else u + self.start(u)

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        new = self.model.update(self, u, source, t, k) if self.instead is None else self.instead(u, source, t)
        for correction in self.corrections:
            new = correction(u, new, source, t)
        return impose(self.problem, new, t)

    def phase(self, k: int) -> int:
        """It rises with each of the L-stable steps, the early ones, and the one after them, which begins with the switch."""
        early = 0 if self.early is None else self.early.steps
        return super().phase(k) + (2 if not early or k > early else int(k == early))

    def changes(self) -> dict[str, MassChange]:
        """What is done to a state once: `start` to the initial one, `switch` after the early steps."""
        found = {"start": self.start, "switch": None if self.early is None else self.early.switch}
        return {name: change for name, change in found.items() if change is not None}

    def linear(self) -> Linear | None:
        return None if self.instead is not None or self.corrections else super().linear()

    def repeats(self, times: Sequence[float] = ()) -> bool:
        if self.instead is None:
            return super().repeats(times)
        return bool(times) or not (self.problem.time_dependent or self.problem.data_changes)

    def severed(self) -> Severed | None:
        """With operators as leaves; None where they change with time, unless they were made to repeat."""
        main = None if self.instead is not None or self.green is None else self.green.severed(self.stable > 0)
        early = (None, []) if self.early is None else self.early.severed(self.stable > 0)
        if main is None or early is None:
            return None
        twin = PreparedDGNet(self.model, main[0], self.graph, self.start, early[0], self.corrections, self.instead)
        return Severed(twin, [*main[1], *early[1]])


def _older(model: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights saved before there was a range use the reaction everywhere; unused numbers of edges are dropped."""
    for name in ("low", "high"):
        state.setdefault(prefix + name, model.get_buffer(name))
    if prefix + "free_edge" in state and "free_edge" not in dict(model.named_parameters(recurse=False)):
        del state[prefix + "free_edge"]
