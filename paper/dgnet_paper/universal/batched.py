"""Training over many small meshes at once: their steps as batched dense matrices.

A problem of n nodes is [n, n]; problems of about the same size make one batch, padded with nodes that stay at zero. For the few
hundred nodes of a training part this is far quicker than sparse solves: one batched inverse, then two products a step.

    loss = mean over problems of log( squared error / squared error of the better classical solver )

so that easy and hard problems count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from dgnet.models.dgnet.edges import cell_pairs
from dgnet.models.dgnet.limits import soft_limit
from dgnet.models.dgnet.parts.mass import RANGE_DOWN, mass_headroom
from dgnet.models.gnn import MeshGraph
from dgnet.models.universal.local import Surroundings, surroundings
from dgnet.models.universal.network import Numbers, beside_the_flow, stretched
from dgnet.models.universal.operators import convective
from dgnet.problems import Problem

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Part:
    """One problem with its truth, as training sees it. Sources are averages over the steps."""

    name: str
    fourier: float
    problem: Problem
    nodal: Tensor  # [b, T, N] source at the nodes
    middle: Tensor  # [b, T, E] at the middles of the edges
    start_middle: Tensor  # [b, E] start there
    truth: Tensor  # [b, T+1, N]


@dataclass(eq=False)
class Parts:
    """A batch of problems on one device. Node k of problem b has the number b n + k."""

    names: list[str]
    fourier: Tensor
    surroundings: Surroundings
    n: int
    mass: Tensor  # [B n] lumped
    weight: Tensor  # [E] consistent mass of each edge
    first: Tensor  # [E]
    second: Tensor  # [E]
    cells: Tensor  # [K, d+1]
    area: Tensor  # [K] dt V
    bubble: Tensor  # [K] V / ((d+1)(d+2))
    slopes: Tensor  # [K, d+1, d]
    still: Tensor  # [B, n, n] dt times decay
    load: Tensor  # [B, T, n] dt times boundary fluxes
    facets: Tensor  # [F, d] of convective boundaries
    exchange: Tensor  # [F, d, d] dt times their matrices
    ambient: Tensor  # [F, d] dt times their loads
    held: Tensor  # [B, n] Dirichlet or padding
    values: Tensor  # [B, T+1, n] held values
    nodal: Tensor  # [B, b, T, n]
    middle: Tensor  # [E, b, T]
    start_middle: Tensor  # [E, b]
    truth: Tensor  # [B, b, T+1, n]
    headroom: float
    steepness: Tensor  # [K] dt tr K / (d+1) of each cell
    carried: Tensor | None  # [B, n, n] dt times the advection
    points: Tensor  # [K, d+1, d] corners of the cells
    dt: Tensor  # [K]
    rival: Tensor | None = None  # [B, 2] squared errors of consistent and lumped mass

    @property
    def count(self) -> int:
        return len(self.names)


def gather(parts: Sequence[Part], device: str | torch.device = "cpu") -> Parts:
    """A batch of problems, padded to the largest."""
    n, B = max(part.problem.mesh.n_nodes for part in parts), len(parts)
    T = parts[0].nodal.shape[1]
    found = [surroundings(part.problem) for part in parts]
    nodes = [n * k for k in range(B)]
    edges, offset = [], 0
    for s in found:
        edges.append(offset)
        offset += len(s.graph.pairs)
    E = offset
    graphs = [s.graph for s in found]
    flows = found[0].carried is not None
    halves = [len(g.pairs) for g in graphs]

    def padded(x: Tensor, value: float = 0.0) -> Tensor:
        return torch.nn.functional.pad(x, (0, n - x.shape[-1]), value=value)

    node = torch.cat([torch.nn.functional.pad(g.node, (0, 0, 0, n - len(g.node))) for g in graphs])
    edge = torch.cat([g.edge[:m] for g, m in zip(graphs, halves)] + [g.edge[m:] for g, m in zip(graphs, halves)])
    to = torch.cat([g.to[part] + o for half in (0, 1) for g, m, o in zip(graphs, halves, nodes)
                    for part in [slice(half * m, (half + 1) * m)]])
    frm = torch.cat([to[E:], to[:E]])
    cells = torch.cat([g.cells + o for g, o in zip(graphs, nodes)])
    graph = MeshGraph(node.float().to(device), node[:, :0].to(device), edge.float().to(device), to.to(device), frm.to(device),
                      torch.arange(2 * E).reshape(2, E).T.to(device), cells.to(device))
    all_of = Surroundings(graph, torch.cat([s.side for s in found]).float().to(device),
                          torch.cat([s.of_cell + o for s, o in zip(found, edges)]).to(device), found[0].ends.to(device),
                          torch.cat([s.units for s in found]).to(device), torch.cat([s.root for s in found]).to(device),
                          torch.cat([s.carried for s in found if s.carried is not None]).to(device) if flows else None)
    still = torch.zeros(B, n, n, dtype=torch.float64)
    carried = torch.zeros(B, n, n, dtype=torch.float64) if flows else None
    load, values = torch.zeros(B, T, n, dtype=torch.float64), torch.zeros(B, T + 1, n, dtype=torch.float64)
    held = torch.ones(B, n, dtype=torch.bool)
    dim = parts[0].problem.mesh.dim
    facets = [torch.zeros(0, dim, dtype=torch.long)]
    exchange, ambient = [torch.zeros(0, dim, dim, dtype=torch.float64)], [torch.zeros(0, dim, dtype=torch.float64)]
    for k, part in enumerate(parts):
        p, m = part.problem, part.problem.mesh.n_nodes
        rest = p.decay_part
        for one in convective(p):
            facets.append(one.nodes + k * n)
            exchange.append(p.dt * one.matrix)
            ambient.append(p.dt * one.load(0.0, 0.0))
        row, col = p.geometry.pattern.row.long(), p.geometry.pattern.col.long()
        still[k, row, col] = p.dt * rest.values[0, 0]
        advection = p.advection()
        if carried is not None and advection is not None:
            carried[k, row, col] = p.dt * advection.values[0, 0]
        held[k, :m] = False if p.fixed is None else p.fixed[0]
        for t in range(T + 1):
            w = p.fixed_values(t * p.dt)
            values[k, t, :m] = 0.0 if w is None else w[:, 0]
            g = None if t == T else p.flux_load(t * p.dt, p.dt)
            if g is not None:
                load[k, t, :m] = p.dt * g[:, 0]
    geometries = [part.problem.geometry for part in parts]
    volumes = torch.cat([g.volumes for g in geometries])
    dt = torch.cat([torch.full((part.problem.mesh.n_cells,), part.problem.dt, dtype=torch.float64) for part in parts])
    slopes = torch.cat([g.gradients for g in geometries])
    spread = torch.einsum("kid,kde,kie->k", slopes, all_of.root.cpu() @ all_of.root.cpu().mT, slopes)
    put = {
        "mass": torch.cat([padded(part.problem.source_mass.row_sums()[0, 0], 1.0) for part in parts]),
        "weight": torch.cat([cell_pairs(g).weight for g in geometries]), "first": to[:E], "second": to[E:], "cells": cells,
        "area": dt * volumes, "bubble": volumes / ((dim + 1) * (dim + 2)), "slopes": slopes, "still": still, "load": load,
        "facets": torch.cat(facets), "exchange": torch.cat(exchange), "ambient": torch.cat(ambient), "held": held, "values": values,
        "nodal": torch.stack([padded(part.nodal * part.problem.dt) for part in parts]),
        "middle": torch.cat([(part.middle * part.problem.dt).permute(2, 0, 1) for part in parts]),
        "start_middle": torch.cat([part.start_middle.T for part in parts]),
        "truth": torch.stack([padded(part.truth) for part in parts]), "steepness": dt * volumes * spread / (dim + 1),
        "points": torch.cat([g.points[g.cells] for g in geometries]), "dt": dt}
    return Parts([part.name for part in parts], torch.tensor([part.fourier for part in parts]), all_of, n,
                 headroom=mass_headroom(parts[0].problem), carried=None if carried is None else carried.to(device),
                 **{name: value.to(device) for name, value in put.items()})


def silent(batch: Parts) -> Numbers:
    """Numbers that change nothing."""
    s = batch.surroundings
    E, (K, sides) = len(batch.weight), s.side.shape[:2]
    zero = torch.zeros(K, s.units.shape[-1] + 1, sides, dtype=torch.float64, device=batch.mass.device)
    edge = zero.new_zeros(E)
    node, cell = zero.new_zeros(len(batch.mass)), zero.new_zeros(K)
    flow = None if batch.carried is None else cell
    return Numbers(edge, zero.new_zeros(2 * E), zero.new_zeros(K, sides), zero, zero, edge, cell, node, node, flow,
                   None if flow is None else zero[..., 0])


def loads(batch: Parts, z: Numbers) -> Tensor:
    """dt times what the source brings to each node in each step, [B, T, n, b]."""
    B, b, T, n = batch.nodal.shape
    f = batch.nodal.permute(0, 3, 1, 2).reshape(B * n, b * T)
    i, j, w = batch.first, batch.second, batch.weight[:, None]
    E = len(i)
    total = batch.mass[:, None] * f
    gap = f[j] - f[i]  # consistent mass: lumped minus its graph Laplacian
    total = total.index_add(0, i, w * (1 + z.source[:E, None]) * gap).index_add(0, j, -w * (1 + z.source[E:, None]) * gap)
    curve = batch.middle.reshape(E, b * T) - 0.5 * (f[i] + f[j])
    start = batch.truth[:, :, 0].permute(0, 2, 1).reshape(B * n, b)
    now = batch.start_middle - 0.5 * (start[i] + start[j])
    means = []
    keep = z.keep[:, None]
    for k in range(T):
        new = keep * now + (0.5 + 0.5 * keep) * curve.view(E, b, T)[:, :, k]
        means.append(0.5 * (now + new))
        now = new
    memory = torch.stack(means, -1).reshape(E, b * T)
    sides = batch.surroundings.of_cell
    found = torch.bmm(batch.bubble[:, None, None] * z.middle, curve[sides]) + torch.bmm(
        batch.steepness[:, None, None] * z.memory, memory[sides])  # [K, d+1, b T]
    total = total.index_add(0, batch.cells.ravel(), found.flatten(0, 1))
    return total.view(B, n, b, T).permute(0, 3, 1, 2)


def matrices(batch: Parts, z: Numbers, consistent: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass, dt times stiffness, what is taken ahead of it, [B, n, n] each, and dt times the exchange with the ambient [B, n]."""
    B, n = batch.count, batch.n
    phi = (consistent + soft_limit(z.mass, RANGE_DOWN, batch.headroom)) * batch.weight
    i, j = batch.first, batch.second

    def at(a: Tensor, c: Tensor) -> Tensor:
        return a * n + c % n

    M = torch.diag_embed(batch.mass.view(B, n)).flatten()
    M = M.index_add(0, torch.cat([at(i, j), at(j, i), at(i, i), at(j, j)]), torch.cat([phi, phi, -phi, -phi]))
    D = stretched(batch.surroundings, z.stretch)
    local = torch.einsum("k,kid,kde,kje->kij", batch.area, batch.slopes, D, batch.slopes)
    factor, ahead = z.rim[batch.facets].mean(1).exp(), z.rim_ahead[batch.facets].mean(1)
    ring = factor[:, None, None] * batch.exchange
    where = torch.cat([at(c[:, :, None], c[:, None, :]).ravel() for c in (batch.cells, batch.facets)])
    K = batch.still.flatten().index_add(0, where, torch.cat([local.ravel(), ring.ravel()]))
    later = torch.cat([(z.ahead[:, None, None] * local).ravel(), (ahead[:, None, None] * ring).ravel()])
    A = torch.zeros_like(K).index_add(0, where, later)
    if batch.carried is not None:
        along, swirl = beside_the_flow(batch.surroundings, z, batch.slopes, batch.points, batch.dt)
        more = batch.area[:, None, None] * (along + swirl)
        K = (K + batch.carried.flatten()).index_add(0, where[:more.numel()], more.ravel())
    g = batch.mass.new_zeros(B * n).index_add(0, batch.facets.ravel(), (factor[:, None] * batch.ambient).ravel())
    return M.view(B, n, n), K.view(B, n, n), A.view(B, n, n), g.view(B, n)


class _Inverse(torch.autograd.Function):
    """The inverse of symmetric positive definite matrices [B, n, n] by Cholesky; its derivative needs the inverse alone."""

    @staticmethod
    def forward(ctx, A: Tensor) -> Tensor:  # type: ignore[override]
        G = torch.cholesky_inverse(torch.linalg.cholesky(A))
        ctx.save_for_backward(G)
        return G

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:  # type: ignore[override]
        G, = ctx.saved_tensors
        return -(G @ g @ G)


def roll(batch: Parts, z: Numbers, consistent: float = 1.0, load: Tensor | None = None) -> Tensor:
    """States [B, b, T+1, n] of all problems."""
    M, K, more, ambient = matrices(batch, z, consistent)
    A = M + 0.5 * K + more
    free = (~batch.held).to(A.dtype)
    inner = A * free[:, :, None] * free[:, None, :] + torch.diag_embed(1 - free)
    G: Tensor = _Inverse.apply(inner) if batch.carried is None else torch.linalg.inv(inner)
    drive = (loads(batch, z) if load is None else load) + batch.load[..., None] + ambient[:, None, :, None]  # [B, T, n, b]
    u = batch.truth[:, :, 0].transpose(1, 2)  # [B, n, b]
    states = [u]
    for k in range(drive.shape[1]):
        rise = ((batch.values[:, k + 1] - batch.values[:, k]) * batch.held)[..., None]
        right = (drive[:, k] - K @ u - A @ rise.expand_as(u)) * free[..., None]
        u = u + G @ right + rise
        states.append(u)
    return torch.stack(states, 1).permute(0, 3, 1, 2)


def squared_error(batch: Parts, states: Tensor) -> Tensor:
    """[B]: over trajectories, times and nodes."""
    return (states - batch.truth).square().sum((1, 2, 3))


def rivals(batch: Parts) -> Tensor:
    """Squared errors [B, 2] of the classical solvers with consistent and lumped mass."""
    with torch.no_grad():
        z = silent(batch)
        load = batch.nodal.permute(0, 2, 3, 1) * batch.mass.view(batch.count, 1, -1, 1)
        lumped = roll(replace(batch, still=torch.diag_embed(batch.still.sum(-1))), z, 0.0, load)
        return torch.stack([squared_error(batch, roll(batch, z)), squared_error(batch, lumped)], 1)


def log_ratio(batch: Parts, z: Numbers) -> Tensor:
    """[B]: log of the error against that of the better classical solver."""
    if batch.rival is None:
        batch.rival = rivals(batch)
    least = 1e-10 * batch.truth.square().sum((1, 2, 3))  # a part that stays as it is has no error to compare
    return 0.5 * ((squared_error(batch, roll(batch, z)) + least) / (batch.rival.amin(1) + least)).log()
