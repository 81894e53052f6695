"""The paper's networks with limits (`BOUNDED`): its numbers of edges, its residual network, and its variant without Green."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.edges import directed_slots
from dgnet.models.dgnet.parts.part import Part, network_precision
from dgnet.models.gnn import MLP, GeometryNet, StateNet
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import product
from dgnet_paper.model.config import PaperConfig

Tensor = torch.Tensor


class EdgeDecoder(Part):
    """L_neural of the paper (Eq. 10) with limits: one number for each directed edge and field.

        [L_neural]_ij = limit * size_i / degree_i * tanh(Decoder([h_i, h_j])),     [L_neural]_ii = -sum_j [L_neural]_ij

    size_i is that of row i of L_physics: its diagonal, and for advection half its absolute row sum (its diagonal vanishes inside).
    With a flow that changes, size follows it. Without L_physics it is that of the identity in one step.

    Guarantee: zero row sums, and sum_j |[L_neural]_ij| over the neighbours at most limit * size_i. Energy may grow.
    """

    def __init__(self, c: PaperConfig, problem: Problem) -> None:
        super().__init__()
        self.config, F = c, problem.n_fields
        self.fields = F
        if c.network:
            self.geometry_net = GeometryNet(problem.mesh.dim, c.hidden, c.layers)
            self.decode_edge = MLP([2 * c.hidden, c.hidden, F], zero=True)
        if c.free:
            self.free_edge = nn.Parameter(torch.zeros(2 * len(problem.mesh.edges), F))

    def contribute(self, build: Build) -> None:
        at = self.stiffness(build)
        fixed = None if build.problem.time_dependent else at(0.0)
        build.unsigned = at if fixed is None else lambda t: fixed

    def stiffness(self, build: Build) -> Callable[[float], EdgeMatrix]:
        """t -> -M L_neural, values [b, F, nnz]."""
        p, graph = build.problem, build.graph
        pattern, device = p.geometry.pattern, p.geometry.device
        to, slots = torch.as_tensor(p.geometry.dof, device=device)[graph.to], directed_slots(p, graph)
        z = torch.zeros(len(to), self.fields, dtype=torch.float64, device=device)
        if self.config.network:
            with network_precision(self.config.amp, device):
                h = self.geometry_net(graph)[0]
            h = h.to(build.scales.mean.dtype)
            z = z + self.decode_edge(torch.cat([h[graph.to], h[graph.frm]], -1))
        if self.config.free:
            z = z + self.free_edge
        degree = torch.zeros(pattern.n, dtype=z.dtype, device=device).index_add(0, to, torch.ones_like(z[:, 0]))
        share = -self.config.edge_limit * torch.tanh(z).T / degree[to]  # [F, 2E]
        still = (p.diffusion_part.diagonal + p.decay_part.diagonal).abs() if build.physics else p.mass.diagonal / p.dt

        def at(t: float) -> EdgeMatrix:
            size, advection = still, p.advection(t) if build.physics else None
            if advection is not None:
                size = size + 0.5 * EdgeMatrix(pattern, advection.values.detach().abs()).row_sums()
            entries = share * size[..., to]  # [b, F, 2E]
            values = torch.zeros(*entries.shape[:2], pattern.nnz, dtype=entries.dtype, device=device)
            values = values.index_add(-1, slots, entries).index_add(-1, pattern.diagonal[to], -entries)
            return EdgeMatrix(pattern, values).to(p.dtype)

        return at


class Residual(Part):
    """The residual network (Section 3.5): u+ <- u+ + dt rate tanh(network(u+, f)).

    Guarantee: a step changes by at most dt times the standard deviation of the training data's rates. Energy may grow.
    """

    def __init__(self, c: PaperConfig, problem: Problem, inputs: int = 0) -> None:
        super().__init__()
        self.config, F = c, problem.n_fields
        self.residual_net = StateNet(problem.mesh.dim, inputs or 2 * F, F, c.residual_hidden, c.residual_layers, c.plain)

    def network(self, build: Build) -> Callable[[Tensor], Tensor]:
        """[B, N, C] -> [B, N, F]; what depends on the mesh alone is computed once, where no gradient is asked for."""
        with network_precision(self.config.amp, build.problem.geometry.device):
            known = None if torch.is_grad_enabled() else self.residual_net.edge_terms(build.graph)

        def network(x: Tensor) -> Tensor:
            with network_precision(self.config.amp, x.device):
                return self.residual_net(x, build.graph, None if torch.is_grad_enabled() else known)

        return network

    def contribute(self, build: Build) -> None:
        if build.early:
            return
        network, scales, dt = self.network(build), build.scales, build.problem.dt

        def correction(u: Tensor, new: Tensor, source: Tensor | None, t: float) -> Tensor:
            return new + dt * scales.rate * torch.tanh(network(scales.inputs(new, source)).to(new.dtype))

        build.corrections.append(correction)


class EndToEnd(Residual):
    """Variant D: an end-to-end network that is shown L_physics u, but does not solve with it. It guarantees nothing."""

    replaces_step = True

    def __init__(self, c: PaperConfig, problem: Problem) -> None:
        super().__init__(c, problem, 3 * problem.n_fields)

    def contribute(self, build: Build) -> None:
        p, network, scales, ops = build.problem, self.network(build), build.scales, build.operators()

        def instead(u: Tensor, source: Tensor | None, t: float) -> Tensor:
            Lu = -product(ops.stiffness(t), p.restrict(u)) / ops.mass.row_sums()[0].T
            change = network(torch.cat([scales.inputs(u, source), p.expand(Lu) / scales.rate], -1))
            return u + p.dt * scales.rate * change.to(u.dtype)

        build.instead = instead
