"""DGNet: a Green solver whose operator is partly learned (paper, Section 3).

    L = L_physics + L_neural                                            hybrid operator        (Eq. 7)
    u+ = G [ (I + dt/2 L) u + dt f ],   G = (I - dt/2 L)^-1             discrete Green update  (Eq. 6)
    u+ <- u+ + small bounded residual network                           (Section 3.5)

In finite-element form, with mass M and stiffness K, L = -M^-1 K and the update is (M + dt/2 K) u+ = (M - dt/2 K) u + dt P f.
Two decoders turn a graph network on the mesh geometry into L_neural:

`edge`, the paper's: one bounded number per directed edge, zero row sums, scaled by the local physical operator.

`structured`, ours: what may be learned is chosen so that no weights can make energy. Every part has a limit.
    M    symmetric, lumped minus a graph Laplacian whose weights keep every cell's mass positive definite;
         row sums, and with them constants and the total mass, never change
    K    each cell's diffusivity times exp(symmetric tensor): stays positive semidefinite
    P    the source's own stencil, directed; its row sums stay, so a uniform source is exact
    C    advection as given, plus learned streamline diffusion, 0 to 10 times that of an upwind scheme, and a learned swirl:
         transport along the curl of a potential in the cells, skew, with zero row and column sums; both may depend on where
         the flow goes
    calibrated coefficients: the given ones times 1e-6 to 1e6

What holds for any finite weights, in every step, whatever the flow does in time (K is that of the middle of the step):

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

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.green import GreenSolver, Operators, bounds_of, fold, product, unfold
from dgnet.green.backends import Prepared, apply, prepare
from dgnet.mesh import Mesh
from dgnet.models.gnn import MLP, GeometryNet, MeshGraph, StateNet
from dgnet.operators import EdgeMatrix, Geometry, mass, nodal_velocity
from dgnet.problems import CONSISTENT, Discretisation, Robin

Tensor = torch.Tensor

DECODERS = ("structured", "edge", "none")
REACTIONS = ("known", "learned", "none")
CALIBRATED = ("diffusion", "decay", "convection")
INTERVALS = 64  # of a table of the reaction, unless told otherwise
_DENSE = 3000  # nodes up to which a long rollout on CUDA uses the explicit inverse
_GENTLE = 0.2  # what goes with a flow has many numbers in each cell: an optimiser of given pace should move them less
_RANGE_DOWN = 1.5  # the mass factor of an edge may fall by this much below its classical value
_STREAMLINE = 10.0  # largest strength of streamline diffusion; 1 is what an upwind scheme has, trained models use up to 1.3
_CALIBRATED = 1e6  # largest factor of a calibrated coefficient, and the inverse of the smallest


@dataclass(frozen=True)
class DGNetConfig:
    """Every learned part by name; each can be switched off."""

    decoder: str = "structured"
    network: bool = True  # the geometry network feeds the decoder
    free: bool = False  # plus one free number per edge and cell: for one fixed mesh
    learn_mass: bool = True
    learn_source: bool = True
    learn_diffusion: bool = True
    learn_streamline: bool = False
    learn_swirl: bool = False  # divergence-free corrections of the transport; they and streamline diffusion see its direction
    learn_start: bool = False  # filter of the initial state, for data whose start the mesh cannot resolve
    early_steps: int = 0  # so many first steps have a mass and diffusivities of their own, while a rough start smooths out
    residual: bool = False
    reaction: str = "known"
    odd_reaction: bool = False  # r(-u) = -r(u), a symmetry known beforehand
    calibrate: tuple[str, ...] = ()
    regions: bool = False  # calibrate diffusion and decay in each of the mesh's regions by itself
    physics: bool = True  # off: the paper's variant A
    green: bool = True  # off: the paper's variant D, a network that only sees what the operator gives
    consistent: float = 1.0  # these two hold for a problem that has the usual ones (1, "galerkin"); one that has others must agree
    advection_form: str = "galerkin"
    edge_limit: float = 0.3  # |L_neural| against the local physical operator, `edge` decoder
    hidden: int = 64
    layers: int = 3
    residual_hidden: int = 64
    residual_layers: int = 3
    reaction_hidden: int = 64
    reaction_table: int = 0  # above 0: a learned reaction of one field is a table of so many intervals instead of a network
    amp: bool = False  # networks in bfloat16 (mixed precision); operators and solves never are

    def __post_init__(self) -> None:
        for value, known, what in ((self.decoder, DECODERS, "decoder"), (self.reaction, REACTIONS, "reaction")):
            if value not in known:
                raise InputError(f"unknown {what} '{value}' (known: {', '.join(known)})")
        if self.regions and not {"diffusion", "decay"} & set(self.calibrate):
            raise InputError("regions = true needs diffusion or decay among the calibrated coefficients")
        if self.early_steps and (self.early_steps < 2 or not (self.structured and self.learn_mass and self.green)):
            raise InputError("early_steps must be 0 or at least 2, and needs the structured decoder with a learned mass")
        if self.reaction_table and (self.reaction_table < 2 or self.reaction != "learned"):
            raise InputError("reaction_table must be 0 or at least 2, and needs reaction = \"learned\"")
        strange = set(self.calibrate) - set(CALIBRATED)
        if strange:
            raise InputError(f"cannot calibrate '{min(strange)}' (known: {', '.join(CALIBRATED)})")

    @property
    def structured(self) -> bool:
        return self.decoder == "structured"


PAPER = DGNetConfig(decoder="edge", residual=True, consistent=0.0, learn_mass=False, learn_source=False, learn_diffusion=False)
VARIANTS = {
    "A": replace(PAPER, physics=False),  # without L_physics
    "B": replace(PAPER, decoder="none"),  # without L_neural
    "C": replace(PAPER, residual=False),  # without the residual network
    "D": replace(PAPER, green=False, decoder="none"),  # without the Green solver
}


def soft_limit(z: Tensor, down: float, up: float) -> Tensor:
    """Smooth, monotone, slope 1 at 0, values in (-down, up)."""
    return torch.where(z > 0, up * torch.tanh(z / up), down * torch.tanh(z / down))


def ceiling(z: Tensor, top: float) -> Tensor:
    """Smooth, monotone, below top; z itself, to rounding, below top - 7."""
    return top - nn.functional.softplus(top - z, beta=3.0)


class DGNet(nn.Module):
    """The model. Weights are for one kind of problem (dimension, fields) and, with `free`, for one mesh."""

    def __init__(self, config: DGNetConfig, problem: Discretisation) -> None:
        super().__init__()
        c = self.config = config
        d, F = problem.mesh.dim, problem.n_fields
        self.dim, self.fields = d, F
        self.symmetric_size = d * (d + 1) // 2
        self.ways = d + d * (d + 1) // 2  # what is seen of a direction
        self.flow_size = self.ways * (1 + (1 if d == 2 else 3))  # streamline diffusion, and the components of a potential
        if config.network and config.decoder != "none":
            self.geometry_net = GeometryNet(d, c.hidden, c.layers)
            if c.decoder == "edge":
                self.decode_edge = MLP([2 * c.hidden, c.hidden, F], zero=True)
            else:
                self.decode_pair = MLP([3 * c.hidden, c.hidden, 2], zero=True)  # mass, start
                self.decode_source = MLP([3 * c.hidden, c.hidden, 1], zero=True)
                self.decode_cell = MLP([c.hidden, c.hidden, self.symmetric_size + 1], zero=True)  # diffusion, streamline
                if c.learn_swirl:
                    self.decode_flow = MLP([c.hidden, c.hidden, self.flow_size], zero=True)
                if c.early_steps:
                    self.decode_early_pair = MLP([3 * c.hidden, c.hidden, 2], zero=True)
                    self.decode_early_cell = MLP([c.hidden, c.hidden, self.symmetric_size + 1], zero=True)
        if c.free and c.structured:
            self.free_pair = nn.Parameter(torch.zeros(len(problem.mesh.edges), 2))
            self.free_source = nn.Parameter(torch.zeros(2 * len(problem.mesh.edges)))
            self.free_cell = nn.Parameter(torch.zeros(problem.mesh.n_cells, self.symmetric_size + 1))
            if c.learn_swirl:
                self.free_flow = nn.Parameter(torch.zeros(problem.mesh.n_cells, self.flow_size))
            if c.early_steps:
                self.free_early_pair = nn.Parameter(torch.zeros_like(self.free_pair))
                self.free_early_cell = nn.Parameter(torch.zeros_like(self.free_cell))
        elif c.free:
            self.free_edge = nn.Parameter(torch.zeros(2 * len(problem.mesh.edges), F))
        self.field_names = problem.pde.fields
        self.region_names = regions_of(problem.mesh)[0] if c.regions else ()
        for name in c.calibrate:
            self._refuse_zero(name, problem)
        if c.calibrate:
            self.calibration = nn.ParameterDict({
                name: nn.Parameter(torch.zeros(self.own_fields(name, problem) + self.own_regions(name))) for name in c.calibrate})
        if c.reaction_table and F != 1:
            raise InputError(f"a table of the reaction is for one field, not for {F}")
        if c.reaction == "learned":
            self.reaction_net: MLP | Table = (Table(c.reaction_table) if c.reaction_table
                                              else MLP([F, c.reaction_hidden, c.reaction_hidden, F], zero=True))
        if c.residual or not c.green:
            extra = 0 if c.green else F
            self.residual_net = StateNet(d, 2 * F + extra, F, c.residual_hidden, c.residual_layers)
        for name in ("mean", "std", "source_std", "rate"):  # statistics of the training data, per field
            self.register_buffer(name, torch.zeros(F) if name == "mean" else torch.ones(F))
        capacity = torch.ones(F) if problem.capacity is None else problem.capacity.detach().mean(1).expand(F).float().cpu()
        self.register_buffer("capacity", capacity.clone(), persistent=False)  # the problem's, on average over the cells
        self.register_buffer("low", torch.full((F,), -torch.inf))  # where the reaction is believed, see `reaction`
        self.register_buffer("high", torch.full((F,), torch.inf))
        self.register_load_state_dict_pre_hook(_without_range)

    low: Tensor
    high: Tensor
    solves = True
    stepwise = ("residual_net", "reaction_net")  # weights that act in every step; all others act through the operators

    mean: Tensor
    std: Tensor
    source_std: Tensor
    rate: Tensor
    capacity: Tensor

    @property
    def name(self) -> str:
        return "dgnet"

    def fit_statistics(self, state: Tensor, source: Tensor | None, dt: float, velocity: Tensor | None = None) -> None:
        """Scales of the training data: states [B, T+1, N, F], step-averaged sources [B, T, N, F]; velocities are not needed."""
        self.mean.copy_(state.mean((0, 1, 2)))
        self.std.copy_(state.std((0, 1, 2)).clamp(min=1e-12))
        if source is not None:
            self.source_std.copy_(source.std((0, 1, 2)).clamp(min=1e-12))
        self.rate.copy_(((state[:, 1:] - state[:, :-1]) / dt).std((0, 1, 2)).clamp(min=1e-12))
        low, high = state.amin((0, 1, 2)), state.amax((0, 1, 2))
        span = (high - low).clamp(min=1e-12)
        self.low.copy_(low - span)
        self.high.copy_(high + span)
        table = getattr(self, "reaction_net", None)
        if isinstance(table, Table):
            top = torch.maximum(high.abs(), low.abs())
            ends = (-top / self.std, top / self.std) if self.config.odd_reaction else (
                (low - self.mean) / self.std, (high - self.mean) / self.std)
            table.spread(float(ends[0]), float(ends[1]), 0.0 if self.config.odd_reaction else float(-self.mean / self.std))

    # ------------------------------------------------------------------ Model protocol

    def prepare(self, problem: Discretisation, batch: int = 1, steps: int = 1000, careful: bool = False) -> State:
        """Decode the operators for this mesh; with gradients on, they are part of the graph."""
        cache = problem.geometry.__dict__.setdefault("_dgnet", {})
        if "graph" not in cache:
            cache["graph"] = MeshGraph.of(problem.geometry)
        graph: MeshGraph = cache["graph"]
        problem = problem.held() if self.config.green else problem  # networks keep their own precision
        problem = self.own_form(problem)
        operators, start = self.hybrid(problem, graph)
        first, switch = None, None
        if self.config.early_steps:
            first, start = self.hybrid(problem, graph, early=True)
            switch = transfer(problem, first.mass, operators.mass, operators.mass_low)
        backend = "auto"
        if problem.geometry.device.type == "cuda":  # for few nodes one dense product is quicker than a dozen small kernels
            few = problem.n <= _DENSE and steps >= 100 and not problem.time_dependent
            backend = "dense" if few else "iterative"
        solver, early = (None if ops is None else GreenSolver(problem, backend, solves=steps, columns=batch, operators=ops)
                         for ops in (operators, first))
        assert solver is not None
        for one in (solver, early):
            if one is not None:
                one.monitor.deferred = problem.geometry.device.type == "cuda" and not careful
        net = getattr(self, "residual_net", None)
        with self.mixed():
            parts = None if net is None or torch.is_grad_enabled() else net.edge_parts(graph)
        return State(solver, graph, start, parts, early, switch)

    def own_form(self, p: Discretisation) -> Discretisation:
        """The problem in the discretisation that this model corrects. A problem that asks for another one is not overruled."""
        c = self.config
        for what, asked, usual, mine in (("advection_form", p.advection_form, "galerkin", c.advection_form),
                                         ("consistent", p.consistent, CONSISTENT, c.consistent)):
            if asked not in (usual, mine):
                raise InputError(f"the problem's {what} is {asked!r}, that of the model {mine!r}: give DGNetConfig the same")
        return p.recast(c.consistent, c.advection_form)

    def step(self, state: State, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        if k == 0 and state.start is not None:
            u = u + state.start(u)
        if not self.config.green:
            return self.without_green(state, u, source, t)
        if k == self.config.early_steps and state.switch is not None:
            u = u + state.switch(u)
        solver = state.early if state.early is not None and k < self.config.early_steps else state.solver
        new = solver.step(u, source, t)
        if self.config.residual:
            with self.mixed():
                change = self.residual_net(self.inputs(new, source), state.graph, state.parts)
            change = torch.tanh(change.to(new.dtype))
            new = new + state.solver.problem.dt * self.rate * change
        return impose(state.solver.problem, new, t)

    def capturable(self, state: State) -> bool:
        p = state.solver.problem
        if not self.config.green:
            return not (p.time_dependent or p.data_changes)
        return not (p.time_dependent or p.data_changes) and state.solver.operator().prepared.capturable

    def freeze(self, state: State, times: Sequence[float]) -> bool:
        return state.solver.freeze(times) if self.config.green else True

    def finish(self, state: State) -> None:
        state.solver.monitor.check()
        if state.early is not None:
            state.early.monitor.check()

    def severed(self, state: State) -> tuple[State, list[tuple[Tensor, Tensor]]] | None:
        """The same state with operators as leaves, and (tensor, leaf) pairs; None where they change with time, unless frozen."""
        found = state.solver.severed() if self.config.green else None
        if found is None:
            return None
        early, switch, pairs = None, None, found[1]
        if state.early is not None and state.switch is not None:
            first = state.early.severed()
            if first is None:
                return None
            switch, more = state.switch.severed()
            early, pairs = first[0], [*pairs, *first[1], *more]
        return State(found[0], state.graph, state.start, early=early, switch=switch), pairs

    @property
    def first_steps(self) -> int:
        """How many steps after the start differ from all others."""
        return self.config.early_steps + 1 if self.config.early_steps else int(self.config.learn_start)

    def pieces(self, first: int, steps: int) -> list[tuple[int, int]]:
        """(count, k): a window of steps first, first + 1, ... in runs of equal steps, each done like step k (start apart)."""
        n = self.config.early_steps
        if first > n or not n:
            return [(steps, max(1, first))]
        ends = np.minimum(np.cumsum([0, n - first, 1, steps]), steps)
        return [(int(count), k) for count, k in zip(np.diff(ends), (1, n, n + 1)) if count]

    def mixed(self) -> AbstractContextManager[Any]:
        """What runs inside is a network: with `amp`, its products are in bfloat16 (cached casts would spoil a captured step)."""
        if not self.config.amp:
            return nullcontext()
        return torch.autocast(self.mean.device.type, torch.bfloat16, cache_enabled=False)

    def inputs(self, u: Tensor, source: Tensor | None) -> Tensor:
        """[B, N, 2F]: what a network sees of a step, normalised."""
        f = torch.zeros_like(u) if source is None else source / self.source_std
        return torch.cat([(u - self.mean) / self.std, f], -1)

    # ------------------------------------------------------------------ hybrid operator

    def hybrid(self, p: Discretisation, graph: MeshGraph, early: bool = False) -> tuple[Operators, Transfer | None]:
        """M, K, P and the reaction: L_physics with what was learned; and the filter of the initial state.

        `early` asks for the operators of the first steps.
        """
        c = self.config
        M, P, S = p.mass, p.source_mass, p.source_mass
        diffusion, mass_low = p.diffusion_part, p.mass_bounds[0]
        extra: Callable[[float], EdgeMatrix] | None = None  # L_neural of the `edge` decoder, as a part of K
        streamline: Tensor | None = None
        turning: Tensor | None = None
        swirl: Tensor | None = None
        start = None
        if c.structured:
            pair, directed, cell, flow = (None if x is None else x.double() for x in self.decoded(graph, p, early))
            assert pair is not None and directed is not None and cell is not None
            if c.learn_mass:
                delta = soft_limit(pair[:, 0], _RANGE_DOWN, mass_headroom(p))
                M, mass_low = learned_mass(p, delta)
                S = M if p.capacity is None else pair_correction(p, S, delta)
            if c.learn_source:
                P = source_stencil(p, graph, soft_limit(directed, 3.0, 3.0))
            if c.learn_start and (early or not c.early_steps):
                start = start_filter(p, M, mass_low, soft_limit(pair[:, 1], 0.5, 0.5))
            if c.learn_diffusion:
                diffusion = learned_diffusion(p, cell[:, :-1], self.in_cells("diffusion", p))
            if c.learn_streamline and p.pde.velocity is not None:
                streamline = cell[:, -1]
            if flow is not None and p.pde.velocity is not None:
                flow = _GENTLE * flow
                turning, swirl = flow[:, :self.ways], soft_limit(flow[:, self.ways:], 0.5, 0.5)
        elif c.decoder == "edge":
            extra = self.neural_operator(graph, p)
        if diffusion is p.diffusion_part:
            diffusion = regional_diffusion(p, self.in_cells("diffusion", p))
        decay = regional_decay(p, self.in_cells("decay", p))

        K = diffusion * self.factor("diffusion") + decay * self.factor("decay")
        decay_sums = None if p.decay_sums is None or not c.physics else (decay * self.factor("decay")).row_sums()
        if not c.physics:
            K = K * 0.0
        settled = K.values.double()

        def rest(t: float) -> EdgeMatrix | None:
            advection = p.advection(t) if c.physics else None
            if extra is None:
                return advection
            return extra(t) if advection is None else advection + extra(t)

        def stiffness(t: float, still: Tensor = settled, streamline: Tensor | None = streamline,
                      turning: Tensor | None = turning, swirl: Tensor | None = swirl) -> EdgeMatrix:
            total, unsigned = EdgeMatrix(K.pattern, still), rest(t)
            convection = p.convection_part(t) if c.physics else None
            if convection is not None:
                total = total + convection * self.factor("convection")
            if unsigned is not None:
                total = total + unsigned
            if streamline is not None or swirl is not None:
                flow = FlowInCells.at(p, t)
                if streamline is not None:
                    total = total + streamline_diffusion(p, streamline, flow, turning)
                if swirl is not None:
                    total = total + swirl_transport(p, swirl, flow)
            return total.to(p.dtype)

        fixed_K = None if p.time_dependent else stiffness(0.0)

        def moving_sums(t: float) -> Tensor | None:
            if not c.physics:
                return None
            return p.moving_sums(t, self.factor("convection"))

        def load(t: float) -> Tensor | None:
            flux, exchange = p.flux_load(t), p.convection_load(t) if c.physics else None
            if exchange is None:
                return flux
            exchange = (exchange * self.factor("convection")).to(p.dtype)
            return exchange if flux is None else flux + exchange

        load_changes = p.data_changes or p.time_dependent  # a convective coefficient in time is in both
        constant_load = None if load_changes else load(0.0)
        ops = Operators(
            mass=M, source=P, stiffness=stiffness if fixed_K is None else lambda t: fixed_K, rest=rest,
            load=load if load_changes else lambda t: constant_load, reaction=self.reaction(p), mass_low=mass_low,
            symmetric=(p.pde.velocity is None or not c.physics) and extra is None, time_dependent=p.time_dependent,
            still_sums=decay_sums, moving_sums=moving_sums, parts=(settled, streamline, turning, swirl),
            assemble=None if extra is not None or "convection" in c.calibrate else stiffness)
        if p.capacity is not None:
            ops = replace(ops, plain=S, excess=self.excess(p))
        return ops, start

    def decoded(self, graph: MeshGraph, p: Discretisation, early: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Raw outputs per undirected edge [E, 2], directed edge [2E] and cell [K, s+1], and what goes with a flow [K, 10 or 36]."""
        name = "early_" if early else ""
        g = p.geometry
        pair = torch.zeros(len(graph.pairs), 2, dtype=g.dtype, device=g.device)
        directed = torch.zeros(len(graph.to), dtype=g.dtype, device=g.device)
        cell = torch.zeros(len(graph.cells), self.symmetric_size + 1, dtype=g.dtype, device=g.device)
        flow: Tensor | None = None
        if self.config.learn_swirl:
            flow = torch.zeros(len(graph.cells), self.flow_size, dtype=g.dtype, device=g.device)
        if self.config.network:
            with self.mixed():
                h, e = self.geometry_net(graph)
            h, e = h.to(self.mean.dtype), e.to(self.mean.dtype)
            i, j = graph.to[graph.pairs[:, 0]], graph.frm[graph.pairs[:, 0]]
            both = e[graph.pairs].sum(1)  # e is read in both directions: the result does not depend on the order of i, j
            pair = pair + getattr(self, f"decode_{name}pair")(torch.cat([h[i] + h[j], (h[i] - h[j]).abs(), both], -1))
            directed = directed + self.decode_source(torch.cat([h[graph.to], h[graph.frm], e], -1))[:, 0]
            corners = h[graph.cells].mean(1)
            cell = cell + getattr(self, f"decode_{name}cell")(corners)
            if flow is not None:
                flow = flow + self.decode_flow(corners)
        if self.config.free:
            pair, cell = pair + getattr(self, f"free_{name}pair"), cell + getattr(self, f"free_{name}cell")
            directed = directed + self.free_source
            flow = None if flow is None else flow + self.free_flow
        return pair, directed, cell, flow

    def neural_operator(self, graph: MeshGraph, p: Discretisation) -> Callable[[float], EdgeMatrix]:
        """The paper's L_neural (Eq. 9) as a stiffness: -M L_neural, values [b, F, nnz], zero row sums.

        [L_neural]_ij = limit * size_i / degree_i * tanh(Decoder([h_i, h_j])), size_i that of row i of L_physics: its diagonal,
        and for advection half its absolute row sum (its diagonal vanishes inside). With a flow that changes, size follows it.
        """
        pattern, device = p.geometry.pattern, p.geometry.device
        dof = torch.as_tensor(p.geometry.dof, device=device)
        to, slots = dof[graph.to], directed_slots(p, graph)
        z = torch.zeros(len(to), self.fields, dtype=torch.float64, device=device)
        if self.config.network:
            with self.mixed():
                h = self.geometry_net(graph)[0]
            h = h.to(self.mean.dtype)
            z = z + self.decode_edge(torch.cat([h[graph.to], h[graph.frm]], -1))
        if self.config.free:
            z = z + self.free_edge
        degree = torch.zeros(pattern.n, dtype=z.dtype, device=device).index_add(0, to, torch.ones_like(z[:, 0]))
        share = -self.config.edge_limit * torch.tanh(z).T / degree[to]  # [F, 2E]
        still = (p.diffusion_part.diagonal + p.decay_part.diagonal).abs()
        if not self.config.physics:  # no local operator to lean on: the identity's scale in one step
            still = p.mass.diagonal / p.dt

        def at(t: float) -> EdgeMatrix:
            size, advection = still, p.advection(t) if self.config.physics else None
            if advection is not None:
                size = size + 0.5 * EdgeMatrix(pattern, advection.values.detach().abs()).row_sums()
            entries = share * size[..., to]  # [b, F, 2E]
            values = torch.zeros(*entries.shape[:2], pattern.nnz, dtype=entries.dtype, device=device)
            values = values.index_add(-1, slots, entries).index_add(-1, pattern.diagonal[to], -entries)
            return EdgeMatrix(pattern, values).to(p.dtype)

        if p.time_dependent:
            return at
        fixed = at(0.0)
        return lambda t: fixed

    def reaction(self, p: Discretisation) -> Callable[[Tensor], Tensor] | None:
        """r(u): given, learned node by node, or none.

        It is believed within thrice the range of the training data. Outside, r stays what it is at the end of that range, and
        what sticks out decays within a step: r(u) = r(w) - (u - w) / dt, w = u clipped. So r(u) + u/dt is bounded, and with it
        a rollout, also where the equation itself has no bound (logistic growth below zero) or a network extrapolates.
        With a capacity what sticks out is a matter of the mass, not of the reaction's load: see `excess`.
        """
        if self.config.reaction == "none" or (self.config.reaction == "known" and p.pde.reaction is None):
            return None
        believed = p.pde.reaction if self.config.reaction == "known" else self.learned_reaction()
        assert believed is not None

        def guarded(u: Tensor) -> Tensor:
            inside = torch.clamp(u, self.low, self.high)
            return believed(inside) if p.capacity is not None else believed(inside) - (u - inside) / p.dt

        return guarded

    def excess(self, p: Discretisation) -> Callable[[Tensor], Tensor] | None:
        """(u - w) / dt of `reaction`, by itself; None where there is no reaction."""
        return None if self.reaction(p) is None else lambda u: (u - torch.clamp(u, self.low, self.high)) / p.dt

    def learned_reaction(self) -> Callable[[Tensor], Tensor]:
        def net(v: Tensor) -> Tensor:
            with self.mixed():
                return self.reaction_net(v.to(self.mean.dtype)).to(v.dtype)

        def learned(u: Tensor) -> Tensor:
            if self.config.odd_reaction:
                v = u / self.std
                return self.reaction_scale * 0.5 * (net(v) - net(-v))
            return self.reaction_scale * net((u - self.mean) / self.std)

        return learned

    @property
    def reaction_scale(self) -> Tensor:
        """[F]: how large a reaction is that makes up for the rates of the training data."""
        return self.rate * self.capacity

    def reaction_features(self, u: Tensor) -> Tensor:
        """[..., J]: how the learned reaction depends on each value of its table."""
        table = self.reaction_net
        assert isinstance(table, Table)
        if self.config.odd_reaction:
            return self.reaction_scale * 0.5 * (table.features(u / self.std) - table.features(-u / self.std))
        return self.reaction_scale * table.features((u - self.mean) / self.std)

    # ------------------------------------------------------------------ calibrated coefficients

    def own_fields(self, name: str, p: Discretisation) -> tuple[int, ...]:
        """Fields with a coefficient of their own have a factor of their own."""
        return () if name == "convection" or p.pde.shared(name) else (self.fields,)

    def own_regions(self, name: str) -> tuple[int, ...]:
        """Convection is a matter of boundaries, not of regions."""
        return (len(self.region_names),) if self.region_names and name in self.config.calibrate and name != "convection" else ()

    def _refuse_zero(self, name: str, p: Discretisation) -> None:
        """A factor times zero is zero: every calibrated number needs a guess that is not."""
        if name == "convection":
            if not any(isinstance(c, Robin) and (callable(c.coefficient) or c.coefficient) for c in p.conditions):
                raise InputError("convection is zero on every boundary, so no factor can be calibrated: give a guess")
            return
        values = p.pde.per_field(name)[: None if self.own_fields(name, p) else 1]
        for label, value in zip([f" of {f}" for f in p.pde.fields] if len(values) > 1 else [""], values):
            if not bool(torch.as_tensor(value).any()):
                raise InputError(f"{name}{label} is zero everywhere, so no factor can be calibrated: give a guess that is not zero")

    def factor(self, name: str) -> Tensor | float:
        """What multiplies a coefficient: 1 at birth; [f, 1] where fields differ. What regions have is in `in_cells`."""
        if name not in self.config.calibrate or self.own_regions(name):
            return 1.0
        value = self.calibrated(name)
        return value[:, None] if value.dim() else value

    def calibrated(self, name: str) -> Tensor:
        """exp of the calibrated numbers, between 1e-6 and 1e6: [], [F], [regions] or [F, regions]."""
        top = float(np.log(_CALIBRATED))
        return ceiling(-ceiling(-self.calibration[name].double(), top), top).exp()

    def in_cells(self, name: str, p: Discretisation) -> Tensor | None:
        """The factors of the regions, cell by cell: [K], or [F, K] where fields differ."""
        if not self.own_regions(name):
            return None
        names, region = regions_of(p.mesh)
        strange = [n for n in names if n not in self.region_names]
        if strange:
            raise InputError(f"the model knows no region '{strange[0]}' (it was made for: {', '.join(self.region_names)})")
        place = torch.tensor([self.region_names.index(n) for n in names], device=p.geometry.device)
        return self.calibrated(name)[..., place[torch.as_tensor(region, device=p.geometry.device)]]

    def coefficients(self) -> dict[str, float]:
        """What was learned about the physics: by how much each calibrated coefficient differs from the one that was given.

        `diffusion`, or `diffusion of u`, `diffusion in steel`, `diffusion of u in steel` where fields or regions differ.
        """
        found: dict[str, float] = {}
        for name in self.config.calibrate:
            value = self.calibrated(name).detach().cpu()
            regions = [f" in {r}" for r in self.region_names] if self.own_regions(name) else [""]
            fields = [f" of {f}" for f in self.field_names] if value.numel() > len(regions) else [""]
            labels = [f"{name}{f}{r}" for f in fields for r in regions]
            found |= dict(zip(labels, value.flatten().tolist()))
        return found

    # ------------------------------------------------------------------ variant D

    def without_green(self, state: State, u: Tensor, source: Tensor | None, t: float) -> Tensor:
        """The paper's ablation: an end-to-end network that is shown L_physics u, but does not solve with it."""
        p = state.solver.problem
        Lu = -product(p.stiffness(t), p.restrict(u)) / p.mass.row_sums()[0].T
        x = torch.cat([self.inputs(u, source), p.expand(Lu) / self.rate], -1)
        with self.mixed():
            change = self.residual_net(x, state.graph, state.parts)
        new = u + p.dt * self.rate * change.to(u.dtype)
        return impose(p, new, t)


class Table(nn.Module):
    """A function of one number, piecewise linear, constant beyond its ends; zero is one of its places.

    `deviation` is the standard deviation of what the model makes of each value, in units of the reaction (NaN: never estimated),
    `density` the share of the training states at each place. Both are statements about the data; nothing is computed from them.
    """

    def __init__(self, intervals: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(intervals + 2))
        self.register_buffer("first", torch.zeros(()))
        self.register_buffer("spacing", torch.ones(()))
        self.register_buffer("deviation", torch.full((intervals + 2,), torch.nan))
        self.register_buffer("density", torch.full((intervals + 2,), torch.nan))
        self.register_load_state_dict_pre_hook(_without_band)

    first: Tensor
    spacing: Tensor
    deviation: Tensor
    density: Tensor

    def spread(self, low: float, high: float, zero: float) -> None:
        """Lay the places over low .. high."""
        h = max(high - low, 1e-12) / (len(self.values) - 2)
        self.spacing.fill_(h)
        self.first.fill_(zero + h * float(np.floor((low - zero) / h)))

    def where(self) -> Tensor:
        """The places [J], normalised, in double precision."""
        return self.first.double() + self.spacing.double() * torch.arange(len(self.values), device=self.values.device)

    def places(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """The interval of each entry, and how far into it."""
        x = ((v - self.first) / self.spacing).clamp(0, len(self.values) - 1)
        i = x.detach().floor().clamp(max=len(self.values) - 2)
        return i.long(), x - i

    def features(self, v: Tensor) -> Tensor:
        """[..., J]: what each value of the table contributes."""
        i, part = self.places(v)
        out = torch.zeros(*v.shape, len(self.values), dtype=v.dtype, device=v.device)
        return out.scatter_(-1, i[..., None], 1 - part[..., None]).scatter_(-1, i[..., None] + 1, part[..., None])

    def forward(self, v: Tensor) -> Tensor:
        i, part = self.places(v)
        left, right = (self.values.index_select(0, (i + k).flatten()).view(v.shape) for k in (0, 1))
        return torch.lerp(left, right, part.to(left.dtype))


def _without_band(table: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights saved before there was a band have none."""
    for name in ("deviation", "density"):
        state.setdefault(prefix + name, getattr(table, name))


def _without_range(model: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights saved before there was a range believe the reaction everywhere."""
    for name in ("low", "high"):
        state.setdefault(prefix + name, getattr(model, name))


@dataclass(frozen=True, eq=False)
class State:
    """A problem made ready: the hybrid solver, the mesh graph, the filter of the initial state."""

    solver: GreenSolver
    graph: MeshGraph
    start: Transfer | None
    parts: list[Tensor] | None = None  # of the residual network: what depends on the mesh alone, where no gradient is asked for
    early: GreenSolver | None = None  # that of the first steps, where they have operators of their own
    switch: Transfer | None = None  # before the first step of the others


def impose(p: Discretisation, u: Tensor, t: float) -> Tensor:
    """Dirichlet values hold exactly after a correction, too, and nodes that periodic boundaries identify stay one."""
    u, w = p.restrict(u), p.fixed_values(t + p.dt)
    if p.fixed is not None and w is not None:
        u = torch.where(p.fixed.T, w.to(u.dtype), u)
    return p.expand(u)


# ---------------------------------------------------------------------- structured parts


class Pairs(NamedTuple):
    """Undirected edges seen from the matrices."""

    of_cell: Tensor  # [K, (d+1)d/2] edge of each pair of corners
    weight: Tensor  # [E] consistent mass of each edge: sum over its cells of V / ((d+1)(d+2))
    upper: Tensor  # [E] slots of (i, j)
    lower: Tensor  # [E] slots of (j, i)
    first: Tensor  # [E] slots of (i, i)
    second: Tensor  # [E] slots of (j, j)


def cell_pairs(g: Geometry) -> Pairs:
    cache = g.__dict__.setdefault("_pairs", {})
    if "pairs" not in cache:
        n, d = g.mesh.n_nodes, g.dim
        key = torch.as_tensor(g.mesh.edges[:, 0] * n + g.mesh.edges[:, 1], device=g.device)
        ends = [(a, b) for a in range(d + 1) for b in range(a + 1, d + 1)]
        low = torch.stack([torch.minimum(g.cells[:, a], g.cells[:, b]) for a, b in ends], 1)
        high = torch.stack([torch.maximum(g.cells[:, a], g.cells[:, b]) for a, b in ends], 1)
        edge = torch.searchsorted(key, low * n + high)
        share = g.exact.volumes / ((d + 1) * (d + 2))
        weight = torch.zeros(len(g.mesh.edges), dtype=torch.float64, device=g.device).index_add(
            0, edge.ravel(), share[:, None].expand_as(edge).reshape(-1))
        i, j = (torch.as_tensor(g.dof[g.mesh.edges[:, k]], device=g.device) for k in (0, 1))
        cache["pairs"] = Pairs(edge, weight, g.pattern.slots(i, j), g.pattern.slots(j, i), g.pattern.diagonal[i],
                               g.pattern.diagonal[j])
    return cache["pairs"]


def directed_slots(p: Discretisation, graph: MeshGraph) -> Tensor:
    dof = torch.as_tensor(p.geometry.dof, device=p.geometry.device)
    return p.geometry.pattern.slots(dof[graph.to], dof[graph.frm])


def edge_mass(p: Discretisation, base: EdgeMatrix) -> Tensor:
    """Consistent mass of every edge [f, E], as it is in `base`: p.mass, with the capacity of its cells, or p.source_mass."""
    e = cell_pairs(p.geometry)
    if p.capacity is None or base is p.source_mass:
        return e.weight[None]
    d = p.mesh.dim
    share = (p.geometry.exact.volumes * p.capacity / ((d + 1) * (d + 2)))[..., None].expand(-1, *e.of_cell.shape).flatten(1)
    return share.new_zeros(len(share), len(e.weight)).index_add(1, e.of_cell.ravel(), share)


def pair_correction(p: Discretisation, base: EdgeMatrix, delta: Tensor) -> EdgeMatrix:
    """base - graph Laplacian: entry (i, j) grows by delta_ij times the consistent mass of the edge, rows keep their sums."""
    e = cell_pairs(p.geometry)
    c = (edge_mass(p, base) * delta)[None]
    values = base.values.double().index_add(-1, torch.cat([e.upper, e.lower, e.first, e.second]), torch.cat([c, c, -c, -c], -1))
    return EdgeMatrix(base.pattern, values).to(p.dtype)


def source_stencil(p: Discretisation, graph: MeshGraph, delta: Tensor) -> EdgeMatrix:
    """S plus delta_ij times the consistent mass of the edge at (i, j), taken from (i, i): how node i gathers the source."""
    e = cell_pairs(p.geometry)
    c = (torch.cat([e.weight, e.weight]) * delta)[None, None]
    S = p.source_mass
    values = S.values.double().index_add(-1, torch.cat([e.upper, e.lower, e.first, e.second]), torch.cat([c, -c], -1))
    return EdgeMatrix(S.pattern, values).to(p.dtype)


def mass_headroom(p: Discretisation) -> float:
    """How far an edge's factor may rise: a cell's mass stays positive definite below (d+2)/(d+1); 5% are kept back."""
    d = p.mesh.dim
    return 0.95 * (d + 2) / (d + 1) - p.consistent


def learned_mass(p: Discretisation, delta: Tensor) -> tuple[EdgeMatrix, float]:
    """M with edge factors consistent + delta, and a proven lower bound of diag(M)^-1 M.

    In units of the share V/((d+1)(d+2)) a cell has lumped mass d+2 and off-diagonals phi_ij = consistent + delta_ij; its graph
    Laplacian is at most (d+1) max(phi), so the cell's lowest eigenvalue is at least d + 2 - (d+1) max(phi) > 0. A capacity
    multiplies the cell as a whole, so the bound does not depend on it.
    """
    d = p.mesh.dim
    edge = cell_pairs(p.geometry).of_cell
    with torch.no_grad():
        phi = (p.consistent + delta)[edge]  # [K, pairs]
        ends = [(a, b) for a in range(d + 1) for b in range(a + 1, d + 1)]
        low = (d + 2) - (d + 1) * phi.amax(1).clamp(min=0)
        diagonal = torch.stack([(d + 2) - phi[:, [k for k, e in enumerate(ends) if a in e]].sum(1) for a in range(d + 1)], 1)
        bound = float((low / diagonal.amax(1)).min())
    return pair_correction(p, p.mass, delta), min(bound, 1.0)


def learned_diffusion(p: Discretisation, raw: Tensor, factor: Tensor | None = None) -> EdgeMatrix:
    """Cell diffusivities times exp(S), S symmetric from raw [K, s] with entries in (-1/2, 1/2): positive semidefinite.

    `factor` > 0, [K] or [F, K], multiplies the diffusivity of each cell (calibrated regions). Values [1, f, nnz], in double.
    """
    g, d = p.geometry.exact, p.mesh.dim
    raw = raw.double()
    rows, cols = torch.triu_indices(d, d, device=g.device)
    S = torch.zeros(len(raw), d, d, dtype=g.dtype, device=g.device)
    bounded = soft_limit(raw, 0.5, 0.5)
    S = S.index_put((torch.arange(len(raw), device=g.device)[:, None], rows, cols), bounded)
    S = S + S.mT - torch.diag_embed(torch.diagonal(S, dim1=-2, dim2=-1))
    eye = torch.eye(d, dtype=g.dtype, device=g.device)
    half = eye + S / 4 + S @ S / 32  # (I + S/4 + S^2/32)^2 = exp(S/2) to third order, and always positive semidefinite
    root = half @ half  # symmetric, commutes with S
    parts: list[Tensor] = []
    for D in p.pde.per_field("diffusion")[: 1 if p.pde.shared("diffusion") else None]:
        D = torch.as_tensor(D, dtype=g.dtype, device=g.device)
        tensor = D.reshape(-1, 1, 1) * eye if D.dim() <= 1 else D.expand(len(raw), d, d)
        local = torch.einsum("k,kid,kde,kje->kij", g.volumes, g.gradients, root @ tensor @ root, g.gradients)
        if factor is not None:
            local = local * (factor if factor.dim() == 1 else factor[len(parts)])[:, None, None]
        parts.append(EdgeMatrix.from_cells(g.pattern, local).values)
    return EdgeMatrix(g.pattern, torch.stack(parts)[None])


def regions_of(mesh: Mesh) -> tuple[tuple[str, ...], np.ndarray]:
    """Names in alphabetical order and the region of each cell [K]; cells outside of all of them form the region `rest`."""
    names, index = sorted(mesh.regions), np.full(mesh.n_cells, -1)
    if not names:
        raise InputError("coefficients are calibrated per region, but the mesh names no regions")
    for k, name in enumerate(names):
        cells = mesh.regions[name]
        twice = cells[index[cells] >= 0]
        if twice.size:
            raise InputError(f"cell {twice[0]} is in the regions '{names[index[twice[0]]]}' and '{name}'; calibration needs one")
        index[cells] = k
    if (index < 0).any():
        if "rest" in names:
            raise InputError("the mesh has a region 'rest' and cells outside of all regions, which would have the same name")
        names, index = [*names, "rest"], np.where(index < 0, len(names), index)
    return tuple(names), index


def regional_diffusion(p: Discretisation, factor: Tensor | None) -> EdgeMatrix:
    """The classical stiffness with each cell's diffusivity times factor [K] or [F, K]. Values [1, f, nnz], in double."""
    if factor is None:
        return p.diffusion_part
    g, d = p.geometry, p.mesh.dim
    return learned_diffusion(p, torch.zeros(p.mesh.n_cells, d * (d + 1) // 2, dtype=g.dtype, device=g.device), factor)


def regional_decay(p: Discretisation, factor: Tensor | None) -> EdgeMatrix:
    """The decay times the mass with each cell's share times factor [K] or [F, K]. Values [1, f, nnz], in double."""
    if factor is None:
        return p.decay_part
    g = p.geometry
    parts: list[Tensor] = []
    for decay in p.pde.per_field("decay")[: 1 if p.pde.shared("decay") else None]:
        k = torch.as_tensor(decay, dtype=g.dtype, device=g.device)
        local = k if k.dim() == 0 else k[g.cells].mean(-1)
        parts.append(mass(g.exact, p.consistent, local * (factor if factor.dim() == 1 else factor[len(parts)])).values)
    return EdgeMatrix(g.pattern, torch.stack(parts)[None])


class FlowInCells(NamedTuple):
    """The flow as learned numbers meet it."""

    way: Tensor  # [..., K, d] its direction, zero where it rests
    speed: Tensor  # [..., K], times the capacity

    @classmethod
    def at(cls, p: Discretisation, t: float) -> FlowInCells:
        g = p.geometry
        velocity = p.pde.velocity(t) if callable(p.pde.velocity) else p.pde.velocity
        v = nodal_velocity(g, velocity).double()[..., g.cells, :].mean(-2)
        speed = v.norm(dim=-1)
        way = v / speed.clamp(min=torch.finfo(v.dtype).tiny)[..., None]
        return cls(way, speed if p.capacity is None else speed * p.carried_capacity)

    @property
    def seen(self) -> Tensor:
        """What learned numbers multiply: the direction w and w w^T, [..., K, d + d(d+1)/2]."""
        w, d = self.way, self.way.shape[-1]
        return torch.cat([w, *(w[..., a, None] * w[..., a:] for a in range(d))], -1)


def streamline_diffusion(p: Discretisation, strength: Tensor, flow: FlowInCells, turning: Tensor | None = None) -> EdgeMatrix:
    """sum over cells of V tau (v . grad phi_i)(v . grad phi_j), tau = strength h / 2|v|. Values [b, 1, nnz], in double.

    strength [K], plus `turning` [K, ways] times what is seen of the direction; where that is negative, zero; at most 10.
    """
    g = p.geometry.exact
    if turning is not None:
        strength = strength + (turning * flow.seen).sum(-1)
    strength = ceiling(strength.clamp(min=0.0), _STREAMLINE)  # clamp passes the gradient at 0, so it can leave zero
    along = torch.einsum("...kd,kid->...ki", flow.way, g.gradients)
    scale = 0.5 * g.volumes ** (1 + 1 / g.dim) * strength * flow.speed
    values = EdgeMatrix.from_cells(g.pattern, scale[..., None, None] * along[..., :, None] * along[..., None, :]).values
    return EdgeMatrix(g.pattern, values.reshape(-1, 1, g.pattern.nnz))


def swirl_transport(p: Discretisation, raw: Tensor, flow: FlowInCells) -> EdgeMatrix:
    """sum over cells of V a . (grad phi_i x grad phi_j): transport along the curl of a, a piecewise constant potential.

    a = h |v| times `raw` [K, ways] (one component, 2D) or [K, 3 ways] (3D) times what is seen of the direction. Skew, with zero
    row and column sums whatever `raw` is: it moves, but neither makes nor destroys anything. Values [b, 1, nnz], in double.
    """
    g = p.geometry.exact
    scale, w = g.volumes ** (1 + 1 / g.dim) * flow.speed, flow.seen
    x, y = g.gradients[:, :, None, :], g.gradients[:, None, :, :]
    if g.dim == 2:
        potential = (w * raw).sum(-1) * scale
        local = potential[..., None, None] * (x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0])
    else:
        a = torch.einsum("kaw,...kw->...ka", raw.view(len(raw), 3, -1), w) * scale[..., None]
        local = torch.einsum("...ka,kija->...kij", a, torch.linalg.cross(*torch.broadcast_tensors(x, y)))
    return EdgeMatrix(g.pattern, EdgeMatrix.from_cells(g.pattern, local).values.reshape(-1, 1, g.pattern.nnz))


@dataclass(frozen=True, eq=False)
class Transfer:
    """What is added to a state whose nodal values are read by another mass from now on: M^-1 (F - M) u, so that M u+ = F u."""

    problem: Discretisation
    right: EdgeMatrix  # F
    mass: EdgeMatrix  # M, values [f, nnz]
    mass_low: float
    solver: Prepared

    def __call__(self, u: Tensor) -> Tensor:
        p, M = self.problem, EdgeMatrix(self.mass.pattern, self.mass.values[None])
        inner = p.restrict(u).to(p.dtype)
        f = len(self.mass.values)
        rest = fold(product(self.right, inner) - product(M, inner), 1, f)
        return p.expand(unfold(apply(self.solver, self.mass, rest), 1, f, u.shape[0], u.shape[2])).to(u.dtype)

    def severed(self) -> tuple[Transfer, list[tuple[Tensor, Tensor]]]:
        """The same with its matrices as leaves, and (tensor, leaf) pairs."""
        pairs = [(A.values, A.values.detach().requires_grad_()) for A in (self.right, self.mass) if A.values.requires_grad]
        leaf = {id(x): y for x, y in pairs}
        right, M = (EdgeMatrix(A.pattern, leaf.get(id(A.values), A.values)) for A in (self.right, self.mass))
        return Transfer(self.problem, right, M, self.mass_low, self.solver), pairs


def transfer(p: Discretisation, right: EdgeMatrix, M: EdgeMatrix, mass_low: float) -> Transfer:
    flat = EdgeMatrix(M.pattern, M.values[0])
    backend = "iterative" if p.geometry.device.type == "cuda" else "lu"
    ready = prepare(flat, backend, bounds_of(flat, flat, mass_low, symmetric=True), symmetric=True)
    return Transfer(p, right, flat, mass_low, ready)


def start_filter(p: Discretisation, M: EdgeMatrix, mass_low: float, delta: Tensor) -> Transfer:
    """What is added to the initial state, once: u0 is replaced by M_theta^-1 (M + graph Laplacian) u0.

    A learned mass reads nodal values in its own way. Projecting the start keeps its moments, phi^T M u0, which decide how a
    rough start evolves; a learned Laplacian (zero at birth, like the whole) does what is left. Keeps constants and the total.
    """
    return transfer(p, pair_correction(p, p.mass, delta), M, mass_low)
