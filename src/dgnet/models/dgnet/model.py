"""DGNet: a Green solver whose operator is partly learned (paper, Section 3).

    paper                                                             here
    L_physics (Section 3.4.1)                                         DGNet.L_physics
    L_neural (Section 3.4.2, Eq. 9-10)                                DGNet.L_neural: the sum of `parts`
    L = L_physics + L_neural                         (Eq. 8)          DGNet.hybrid_operator
    G = (I - dt/2 L)^-1                              (Section 3.3)    DGNet.G
    u+ = G [ (I + dt/2 L) u + dt (f + f+) / 2 ]      (Eq. 7)          DGNet.update
    u+ <- u+ + residual network                      (Section 3.5)    parts.paper.PlainResidual
    variants A-D of the ablation                     (Section 4.3)    config.variants

With `PAPER` (scheme "paper", `parts.paper`) this is the paper's text; docs/paper.md has it element by element. Two more models
share the method:

- ours (scheme "elements", decoder "structured"): finite elements with mass M and stiffness K, so that L = -M^-1 K and the update is
  (M + dt/2 K) u+ = (M - dt/2 K) u + dt P f, f the average of the source over the step. What may be learned is M, K and P, with a
  limit for every part: no weights can make energy. Every part has a file in `parts`, with its guarantee.
- bounded (`BOUNDED`, `parts.bounded`): the paper's networks on lumped finite elements, with limits.

In all of them K is one for the whole step (`green.solver`), a reaction enters by predictor-corrector, and boundary conditions are
inside the system.

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

import torch

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.green import GreenSolver, Operators
from dgnet.green.backends import Monitor
from dgnet.green.bounds import Bounds
from dgnet.models.base import Again, impose
from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.curved import linear_problem, solver_of, unit_problem
from dgnet.models.dgnet.learner import Learner
from dgnet.models.dgnet.masses import mass_change
from dgnet.models.dgnet.parts import Material
from dgnet.models.dgnet.parts.start import EarlySteps
from dgnet.models.dgnet.prepared import PreparedDGNet
from dgnet.models.gnn import MeshGraph
from dgnet.problems import CONSISTENT, Discretisation

Tensor = torch.Tensor

_DENSE = 3000  # nodes up to which a long rollout on CUDA uses the explicit inverse


@checked
class DGNet(Learner):
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

    # ------------------------------------------------------------------ the paper

    def L_physics(self, problem: Discretisation, graph: MeshGraph, early: bool = False) -> Build:
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

    def hybrid_operator(self, problem: Discretisation, graph: MeshGraph, early: bool = False) -> tuple[Operators, Build]:
        """L = L_physics + L_neural (Eq. 8), as M, K, P and the reaction; `early`: that of the early steps."""
        build = self.L_physics(problem, graph, early)
        self.L_neural(build)
        return build.operators(), build

    def G(self, problem: Discretisation, operators: Operators, batch: int, steps: int, careful: bool) -> GreenSolver:
        """The discrete Green's function, ready to be applied: a solver with (M + dt/2 K)^-1."""
        backend, cuda = "auto", problem.geometry.device.type == "cuda"
        if self.config.plain and not problem.time_dependent:  # the paper: factorise once, solve many times
            backend = "lu"
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
        return state.stepper.step(u, source, t)

    # ------------------------------------------------------------------ Model; what only hands on to its state is in `Learner`

    @property
    def name(self) -> str:
        return "dgnet-paper" if self.config.plain else "dgnet"

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> PreparedDGNet:
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
        return PreparedDGNet(solver, graph, start, early, tuple(build.corrections), build.instead)

    def again(self, problem: Discretisation, batch: int = 1) -> Again[PreparedDGNet] | None:
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
            return PreparedDGNet(solver, graph, None, None, tuple(build.corrections), build.instead)

        return prepared

    def prepare_curved(self, problem: Discretisation, graph: MeshGraph, careful: bool) -> PreparedDGNet:
        """Where capacity or diffusion are curves of u."""
        c = self.config
        if c.early_steps or c.learn_start or c.calibrate:
            raise InputError("where capacity or diffusion change with u, a DGNet has no early_steps, learn_start or calibrate")
        problem = self.own_form(problem)
        build = self.L_physics(unit_problem(problem), graph)
        self.L_neural(build)
        solver = solver_of(problem, build, problem.geometry.device.type == "cuda" and not careful)
        return PreparedDGNet(solver, graph, None, None, tuple(build.corrections), None)

    def own_form(self, p: Discretisation) -> Discretisation:
        """The problem in the discretisation that this model corrects. A problem that asks for another one is not overruled."""
        c = self.config
        for what, asked, usual, mine in (("advection_form", p.advection_form, "galerkin", c.advection_form),
                                         ("consistent", p.consistent, CONSISTENT, c.consistent)):
            if asked not in (usual, mine):
                raise InputError(f"the problem's {what} is {asked!r}, that of the model {mine!r}: give DGNetConfig the same")
        return p.recast(c.consistent, c.advection_form)

    def step(self, state: PreparedDGNet, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        new = self.update(state, u, source, t, k) if state.instead is None else state.instead(u, source, t)
        for correction in state.corrections:
            new = correction(u, new, source, t)
        return impose(state.stepper.problem, new, t)
