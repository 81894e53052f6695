"""Training over many small meshes at once: steps with corrected elements as batched dense matrices.

Parts of about the same size make one batch, padded with nodes that stay at zero. A batch of all parts' graphs is one graph, so the
network is the one that the library uses. Steps are those of the library: two of dG(1), then Crank-Nicolson; sources are known by
their averages, held values at the ends of steps.

    r = log( error / error of the same elements without corrections ),   loss = mean r + 2 mean max(r' + 0.15, 0)^2

with r' against the best of linear (consistent, lumped) and quadratic elements: it pulls at problems that are hardly better. For
the few hundred nodes of a training part this is far quicker than sparse solves. The shipped weights of linear elements
(`UniversalNet`) were trained by version 0.1 in the same way; their JSON says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from dgnet.models.gnn import MeshGraph
from dgnet.models.universal.elements import (
    ElementNet,
    Numbers,
    Tables,
    beside_the_flow,
    corrected_mass,
    corrected_source,
    corrected_stiffness,
    coupling,
    root_of,
    stiffness_of,
    tables,
    taken_ahead,
)
from dgnet.models.universal.local import Surroundings, surroundings
from dgnet.models.universal.operators import convective
from dgnet.operators.elements import element
from dgnet.problems import Problem
from dgnet_paper.reference.galerkin import polynomials
from dgnet_paper.universal.problems import STEPS, PartProblem

Tensor = torch.Tensor
F64 = torch.float64


class Facets(NamedTuple):
    """Convective facets: corners [F, d], nodes [F, a], coefficient times mass [F, a, a] and load of the ambient [F, a]."""

    corners: Tensor
    nodes: Tensor
    matrix: Tensor
    load: Tensor


@dataclass(frozen=True, eq=False)
class Example:
    """One problem with its truth, on the CPU, for elements of a degree."""

    fourier: float
    surroundings: Surroundings
    cells: Tensor  # [K, m] degrees of freedom
    wide: Tensor  # [K, q] nodes and middles
    volumes: Tensor  # [K]
    gradients: Tensor  # [K, d+1, d]
    decay: float
    facets: Facets
    flux: Tensor  # [n]
    transport: Tensor  # [K, m, m] of the flow
    held: Tensor  # [n]
    walls: Tensor  # [T+1, n]
    start: Tensor  # [n, b]
    source: Tensor  # [q, T b] averages at nodes and middles
    truth: Tensor  # [T, N, b]
    dt: float
    errors: tuple[float, float, float]  # of quadratic, linear and lumped linear elements, L-stable start
    norm: float  # of the truth with its start


def transport_of(p: Problem) -> Tensor:
    """Element matrices of the advection [K, m, m]: means of l_a phi_i dphi_j/dl_c times v_a . g_c."""
    assert p.pde.velocity is not None and not callable(p.pde.velocity)
    v = torch.as_tensor(np.asarray(p.pde.velocity), dtype=F64)[p.geometry.cells]  # [K, d+1, d]
    push = p.geometry.volumes[:, None, None] * torch.einsum("kad,kcd->kac", v, p.geometry.gradients)
    m = len(p.geometry.element.mass)
    return (push.flatten(1) @ torch.tensor(p.geometry.element.carried).reshape(-1, m * m)).unflatten(1, (m, m))


def example(part: PartProblem, degree: int, truth: np.ndarray, errors: tuple[float, float, float]) -> Example:
    """A drawn problem with its truth [b, T+1, N] and the errors of quadratic, linear and lumped linear elements."""
    plain = part.problem()
    wide = plain.quadratic
    p = wide if degree == 2 else plain
    g, d = p.geometry, p.mesh.dim
    kind = element(d - 1, degree)
    facets = [Facets(one.corners, one.nodes, one.matrix, one.load(0.0, 0.0)) for one in convective(p)]
    a = len(kind.mass)
    none = Facets(torch.zeros(0, d, dtype=torch.long), torch.zeros(0, a, dtype=torch.long), torch.zeros(0, a, a, dtype=F64),
                  torch.zeros(0, a, dtype=F64))
    both = Facets(*(torch.cat(x) for x in zip(none, *facets)))
    flux = p.flux_load(0.0)
    walls = [torch.zeros(p.n, dtype=F64) if p.fixed is None else p.fixed_values(k * p.dt)[:, 0] for k in range(STEPS + 1)]
    f = part.samples(torch.tensor(wide.geometry.nodes))[..., 0]  # [b, T, q n]
    start = part.start(torch.tensor(g.nodes))[..., 0].T
    m = len(g.element.mass)
    return Example(part.fourier, surroundings(plain), torch.tensor(g.dof[g.element.nodes_of(p.mesh, p.mesh.cells)]),
                   torch.tensor(element(d, 2).nodes_of(p.mesh, p.mesh.cells)), g.volumes, g.gradients, float(part.pde.decay), both,
                   torch.zeros(p.n, dtype=F64) if flux is None else flux[:, 0],
                   torch.zeros(p.mesh.n_cells, m, m, dtype=F64) if part.pde.velocity is None else transport_of(p),
                   torch.zeros(p.n, dtype=torch.bool) if p.fixed is None else p.fixed[0], torch.stack(walls), start,
                   f.permute(2, 1, 0).flatten(1), torch.tensor(truth[:, 1:]).permute(1, 2, 0).contiguous(), p.dt, errors,
                   float(np.linalg.norm(truth)))


@dataclass(eq=False)
class Batch:
    """Examples on one device. Node k of example b has the number b N + k in the graph and b n + k among the unknowns."""

    tables: Tables
    surroundings: Surroundings
    count: int
    n: int  # unknowns of the largest one
    gathered: int  # nodes and middles of the largest one
    nodes: int  # of the graph
    fourier: Tensor
    stiffness: Tensor  # [K, m, m] element matrices
    root: Tensor
    volumes: Tensor
    gradients: Tensor
    step: Tensor  # [K] dt of the cell's example
    decay: Tensor  # [K]
    transport: Tensor | None  # [K, m, m]
    corners: Tensor
    ring: Tensor  # [F, a, a]
    ambient: Tensor  # [F, a]
    facets: Tensor  # [F, a] global unknowns
    entries: Tensor  # places of element matrices in the dense ones
    facet_entries: Tensor
    gathering: Tensor  # places of the entries of the source
    flux: Tensor
    free: Tensor
    walls: Tensor
    start: Tensor
    source: Tensor
    truth: Tensor
    live: Tensor
    dt: Tensor
    plain: Tensor  # [B] error of the elements without corrections
    rival: Tensor  # [B] least error of all
    norm: Tensor


def gather(parts: Sequence[Example], degree: int, device: str | torch.device = "cpu") -> Batch:
    """A batch of examples, padded to the largest."""
    B, dim = len(parts), parts[0].gradients.shape[-1]
    t = tables(dim, degree, str(torch.device(device)))
    N, n, q = (max(k) for k in zip(*((e.truth.shape[1], len(e.held), len(e.source)) for e in parts)))
    graphs = [e.surroundings.graph for e in parts]
    halves = [len(g.pairs) for g in graphs]
    E = sum(halves)
    edges = np.concatenate([[0], np.cumsum(halves)])[:-1]
    pad = torch.nn.functional.pad
    node = torch.cat([pad(g.node, (0, 0, 0, N - len(g.node))) for g in graphs])
    edge = torch.cat([g.edge[:h] for g, h in zip(graphs, halves)] + [g.edge[h:] for g, h in zip(graphs, halves)])
    to = torch.cat([g.to[:h] + k * N for k, (g, h) in enumerate(zip(graphs, halves))])
    frm = torch.cat([g.frm[:h] + k * N for k, (g, h) in enumerate(zip(graphs, halves))])
    cells = torch.cat([g.cells + k * N for k, g in enumerate(graphs)])
    graph = MeshGraph(node.float().to(device), node[:, :0].to(device), edge.float().to(device), torch.cat([to, frm]).to(device),
                      torch.cat([frm, to]).to(device), torch.arange(2 * E).reshape(2, E).T.to(device), cells.to(device))
    found = [e.surroundings for e in parts]
    flow = found[0].carried is not None
    whole = Surroundings(graph, torch.cat([s.side for s in found]).float().to(device),
                         torch.cat([s.of_cell + int(o) for s, o in zip(found, edges)]).to(device), found[0].ends.to(device),
                         *(torch.cat([getattr(s, name) for s in found]).to(device) for name in ("units", "root")),
                         *((torch.cat([getattr(s, name) for s in found]).to(device) for name in ("carried", "drift"))
                           if flow else (None, None)))

    def put(x: Tensor) -> Tensor:
        return x.to(device)

    def padded(name: str, sizes: tuple[int, ...]) -> Tensor:
        values = [getattr(e, name) for e in parts]
        return put(torch.stack([pad(x.to(F64), [k for a, b in reversed(list(zip(x.shape, sizes))) for k in (0, b - a)])
                                for x in values]))

    def places(rows: Tensor, columns: Tensor, width: int) -> Tensor:  # rows are global, columns those of the example
        return put((rows[:, :, None] * width + columns[:, None, :]).ravel())

    at = torch.cat([e.cells + k * n for k, e in enumerate(parts)])
    ring = torch.cat([e.facets.nodes + k * n for k, e in enumerate(parts)])
    volumes, gradients = put(torch.cat([e.volumes for e in parts])), put(torch.cat([e.gradients for e in parts]))
    stiffness = volumes[:, None, None] * stiffness_of(t, coupling(whole, gradients))

    def per_cell(values: Sequence[float]) -> Tensor:
        return put(torch.cat([torch.full((len(e.volumes),), v, dtype=F64) for e, v in zip(parts, values)]))

    held = torch.stack([pad(e.held, (0, n - len(e.held)), value=True) for e in parts])
    T, b = parts[0].truth.shape[0], parts[0].truth.shape[2]
    errors = torch.tensor([e.errors for e in parts], dtype=F64)
    return Batch(
        t, whole, B, n, q, N, torch.tensor([e.fourier for e in parts]), stiffness, root_of(stiffness), volumes, gradients,
        per_cell([e.dt for e in parts]), per_cell([e.decay for e in parts]),
        put(torch.cat([e.transport for e in parts])) if flow else None, put(torch.cat([e.facets.corners + k * N
                                                                                   for k, e in enumerate(parts)])),
        put(torch.cat([e.facets.matrix for e in parts])), put(torch.cat([e.facets.load for e in parts])), put(ring),
        places(at, torch.cat([e.cells for e in parts]), n), places(ring, torch.cat([e.facets.nodes for e in parts]), n),
        places(at, torch.cat([e.wide for e in parts]), q), padded("flux", (n,)), put((~held).to(F64)),
        padded("walls", (T + 1, n)), padded("start", (n, b)), padded("source", (q, T * b)), padded("truth", (T, N, b)),
        put(torch.stack([torch.arange(N) < e.truth.shape[1] for e in parts]).to(F64)),
        put(torch.tensor([e.dt for e in parts], dtype=F64)), put(errors[:, 0] if degree == 2 else errors[:, 1:].amin(1)),
        put(errors.amin(1)), put(torch.tensor([e.norm for e in parts], dtype=F64)))


def silent(batch: Batch) -> Numbers:
    """Numbers that change nothing."""
    K, (m, q) = len(batch.volumes), batch.tables.own.shape
    zero = torch.zeros(K, m, q, dtype=F64, device=batch.volumes.device)
    square = zero[..., :m]
    flow = batch.transport is not None
    return Numbers(square, square, zero, square[..., 0], zero.new_zeros(len(batch.ring)), zero[:, 0, 0] if flow else None,
                   square if flow else None)


def inverse_of(A: Tensor, least: int = 64) -> Tensor:
    """The inverse of matrices whose symmetric part is positive definite, by halves: products are what a GPU does best."""
    n = A.shape[-1]
    if n <= least:
        return torch.linalg.inv_ex(A)[0]
    h = n // 2
    a, b, c, d = A[:, :h, :h], A[:, :h, h:], A[:, h:, :h], A[:, h:, h:]
    inner = inverse_of(a, least)
    x, y = inner @ b, c @ inner
    rest = inverse_of(d - c @ x, least)
    xs = x @ rest
    return torch.cat([torch.cat([inner + xs @ y, -xs], 2), torch.cat([-rest @ y, rest], 2)], 1)


class _Inverse(torch.autograd.Function):
    """Its derivative needs the inverse alone."""

    @staticmethod
    def forward(ctx, A: Tensor) -> Tensor:  # type: ignore[override]
        G = inverse_of(A)
        ctx.save_for_backward(G)
        return G

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:  # type: ignore[override]
        G, = ctx.saved_tensors
        return -(G.mT @ g @ G.mT)


def _first_step() -> tuple[complex, np.ndarray]:
    """(l, [c0, c1]) of a step of dG(1): v+ = Re (l M + dt K)^-1 (c0 (M v + dt F_0) + c1 (dt F_1 - M v))."""
    s, w = np.polynomial.legendre.leggauss(6)
    s, w = 0.5 * (1 + s), 0.5 * w
    P, dP = polynomials(2, s)
    left = np.array([1.0, -1.0])
    space = (P * w) @ P.T
    shifts, Q = np.linalg.eig(np.linalg.solve(space, (P * w) @ dP.T + np.outer(left, left)))
    gather = np.linalg.inv(Q) @ np.linalg.inv(space)
    k = int(np.argmax(shifts.imag))
    return complex(shifts[k]), 2 * Q[:, k].sum() * gather[k]


SHIFT, _GATHER = _first_step()


def matrices(batch: Batch, z: Numbers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mass and stiffness [B, n, n], source [B, n, q] and boundary load [B, n]. What is taken later is a mass times dt."""
    t, B, n = batch.tables, batch.count, batch.n
    V = batch.volumes[:, None, None]
    K = corrected_stiffness(batch.root, z) + (batch.decay * batch.volumes)[:, None, None] * t.mass
    if batch.transport is not None:
        K = K + batch.transport + V * sum(beside_the_flow(t, batch.surroundings, z, batch.gradients, batch.step))
    factor = z.rim.exp()[:, None]

    def dense(parts: Sequence[tuple[Tensor, Tensor]], width: int) -> Tensor:
        total = torch.zeros(B * n * width, dtype=F64, device=V.device)
        for where, values in parts:
            total = total.index_add(0, where, values.ravel())
        return total.view(B, n, width)

    g = batch.flux.ravel().index_add(0, batch.facets.ravel(), (factor * batch.ambient).ravel()).view(B, n)
    return (dense([(batch.entries, V * corrected_mass(t, z) + batch.step[:, None, None] * taken_ahead(batch.root, z))], n),
            dense([(batch.entries, K), (batch.facet_entries, factor[..., None] * batch.ring)], n),
            dense([(batch.gathering, V * corrected_source(t, z))], batch.gathered), g)


def roll(batch: Batch, z: Numbers) -> Tensor:
    """States [B, T, N, b] at the nodes of all problems after each step."""
    M, K, S, g = matrices(batch, z)
    B, n, b, T = batch.count, batch.n, batch.start.shape[2], batch.walls.shape[1] - 1
    dt = batch.dt[:, None, None]
    w0, w1 = batch.walls[:, :-1].mT, batch.walls[:, 1:].mT  # [B, n, T]
    load = (dt * (S @ batch.source)).view(B, n, T, b)
    load = load + (dt * (g[..., None] - K @ (0.5 * (w0 + w1))) - M @ (w1 - w0))[..., None]
    slope = -dt * (K @ (w1 - w0))[:, :, :2] / 6  # first moments of what moving held values bring
    free = batch.free[:, :, None]
    load, slope = load * free[..., None], slope * free
    inner, rest = free * free.mT, torch.diag_embed(1 - batch.free)
    M, K = M * inner, dt * K * inner
    real, turned = SHIFT.real * M + K + rest, SHIFT.imag * M
    G, R = _Inverse.apply(torch.cat([M + 0.5 * K + rest, real])).split(B)
    X = _Inverse.apply(real + turned @ (R @ turned))
    GK = G @ K
    driven = (G @ load.flatten(2)).view(B, n, T, b)
    v = (batch.start - batch.walls[:, 0, :, None]) * free
    states = []
    c0, c1 = (complex(c) for c in _GATHER)
    for k in range(T):
        if k < 2:
            moment = c0 * load[:, :, k] + c1 * slope[:, :, k, None] + (c0 - c1) * (M @ v)  # P_1 is -1 where the step begins
            parts = X @ torch.cat([moment.real, moment.imag], 2)
            v = parts[..., :b] + R @ (turned @ parts[..., b:])
        else:
            v = v - GK @ v + driven[:, :, k]
        states.append((w1[:, :, k, None] + v)[:, :batch.nodes])
    return torch.stack(states, 1)


def errors(batch: Batch, states: Tensor) -> Tensor:
    """[B]: relative to the norm of the truth."""
    gap = (states - batch.truth) * batch.live[:, None, :, None]
    return gap.square().sum((1, 2, 3)).clamp(min=1e-30).sqrt() / batch.norm


def numbers(net: ElementNet, batch: Batch) -> Numbers:
    z: Numbers = net(batch.surroundings, batch.stiffness, batch.corners)
    return z


def loss(batch: Batch, states: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and r of each example."""
    e = errors(batch, states)
    r, best = (e / batch.plain).log(), (e / batch.rival).log()
    return r.mean() + 2 * torch.relu(best + 0.15).square().mean(), r
