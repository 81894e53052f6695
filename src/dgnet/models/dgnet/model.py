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
from typing import Any

import numpy as np
import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.green import GreenSolver, Operators, product
from dgnet.models.dgnet.config import DGNetConfig
from dgnet.models.dgnet.parts.calibration import _CALIBRATED, regional_decay, regional_diffusion, regions_of
from dgnet.models.dgnet.parts.diffusion import learned_diffusion
from dgnet.models.dgnet.parts.edges import directed_slots, pair_correction
from dgnet.models.dgnet.parts.limits import ceiling, soft_limit
from dgnet.models.dgnet.parts.mass import _RANGE_DOWN, learned_mass, mass_headroom
from dgnet.models.dgnet.parts.reaction import Table
from dgnet.models.dgnet.parts.source import source_stencil
from dgnet.models.dgnet.parts.start import Transfer, start_filter, transfer
from dgnet.models.dgnet.parts.streamline import FlowInCells, streamline_diffusion
from dgnet.models.dgnet.parts.swirl import swirl_transport
from dgnet.models.gnn import MLP, GeometryNet, MeshGraph, StateNet
from dgnet.operators import EdgeMatrix
from dgnet.problems import CONSISTENT, Discretisation, Robin

Tensor = torch.Tensor

_DENSE = 3000  # nodes up to which a long rollout on CUDA uses the explicit inverse
_GENTLE = 0.2  # what goes with a flow has many numbers in each cell: an optimiser of given pace should move them less


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
