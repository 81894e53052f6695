"""What all baselines share: inputs, scales, boundary values, geometry. Only the network in between differs.

Every network gets, at every degree of freedom,

    [ u^k | step-averaged source | known fields | node type ]      u, f: F channels each; node type: 4

Known fields are the coefficients that DGNet's operators are built from: diffusivity (one channel per field unless shared; the
upper triangle of a tensor), decay if there is one, boundary load per volume if there is one, velocity at mid-step if there is
one. The known reaction r(u) is not a field and is not given. States, sources and rates are scaled by the training split
(`fit_statistics`), known fields by the problem the model was built for; both are buffers, so they travel with the weights.
The time t is no input: training windows start anywhere in a trajectory.

A network predicts the normalised rate (u+ - u)/dt, or the normalised next state; Dirichlet values are imposed after every step.
Networks run on degrees of freedom, so that periodic meshes need nothing more. Geometry is computed once per mesh and kept.
As with DGNet, what `prepare` computes from weights is part of the gradient's graph: prepare once per optimiser step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import nn

from dgnet.errors import InputError
from dgnet.models.base import LearnedModel, Severed, Stepper, impose
from dgnet.operators import lumped
from dgnet.problems import Problem
from dgnet.problems.curves import typical

Tensor = torch.Tensor
T = TypeVar("T")

TYPES = ("interior", "free boundary", "flux or exchange", "Dirichlet")


@dataclass(frozen=True)
class Settings:
    """Base of the configurations. The defaults are the size comparable with DGNet's; `published` is that of the method's paper."""

    @classmethod
    def comparable(cls) -> Self:
        return cls()

    @classmethod
    def published(cls) -> Self:
        return cls()


# ---------------------------------------------------------------------- geometry, kept with the mesh


def kept(p: Problem, key: Any, make: Callable[[Problem], T]) -> T:
    """make(p), computed once per geometry. For what depends on mesh, conditions and coefficients, not on the velocity."""
    cache = p.geometry.__dict__.setdefault("_baselines", {})
    if key not in cache:
        cache[key] = make(p)
    return cache[key]


@dataclass(frozen=True, eq=False)
class Graph:
    """Directed edges, sorted by receiver, between n degrees of freedom."""

    to: Tensor  # [E] receives
    frm: Tensor  # [E] sends
    step: Tensor  # [E, d] x_from - x_to
    count: Tensor  # [n, 1] incoming edges, at least 1

    @classmethod
    def of(cls, p: Problem, to: np.ndarray, frm: np.ndarray) -> Graph:
        """From pairs of nodes; duplicates and loops are dropped."""
        g = p.geometry
        a, b = g.dof[to].astype(np.int64), g.dof[frm].astype(np.int64)
        _, first = np.unique(a * g.n + b, return_index=True)
        first = first[a[first] != b[first]]
        step = g.mesh.points[frm[first]] - g.mesh.points[to[first]]
        count = np.maximum(np.bincount(a[first], minlength=g.n), 1)[:, None]
        return cls(torch.as_tensor(a[first], device=g.device), torch.as_tensor(b[first], device=g.device), g.tensor(step),
                   g.tensor(count))

    @cached_property
    def features(self) -> Tensor:
        """[E, d+1]: displacement and distance."""
        return torch.cat([self.step, self.step.norm(dim=-1, keepdim=True)], -1)

    def total(self, message: Tensor) -> Tensor:
        """Sum of messages [B, E, H] at their receivers [B, n, H]."""
        out = message.new_zeros(*message.shape[:-2], len(self.count), message.shape[-1])
        return out.index_add(-2, self.to, message)

    def mean(self, message: Tensor) -> Tensor:
        return self.total(message) / self.count


def mesh_graph(p: Problem) -> Graph:
    """Both directions of every mesh edge."""
    return kept(p, "mesh", lambda p: Graph.of(p, p.mesh.edges.T.ravel(), p.mesh.edges[:, ::-1].T.ravel()))


def near_graph(p: Problem, k: int) -> Graph:
    """Mesh edges and the k nearest nodes of every node."""
    def make(p: Problem) -> Graph:
        n, e = p.mesh.n_nodes, p.mesh.edges
        near = nearest(p.mesh.points, p.mesh.points, min(k + 1, n))[:, 1:]
        return Graph.of(p, np.concatenate([e[:, 0], e[:, 1], np.repeat(np.arange(n), near.shape[1])]),
                        np.concatenate([e[:, 1], e[:, 0], near.ravel()]))
    return kept(p, ("near", k), make)


def nearest(points: np.ndarray, at: np.ndarray, k: int) -> np.ndarray:
    """Indices [len(at), k] of the nearest of `points`."""
    return cKDTree(points).query(at, k)[1].reshape(len(at), k)


def farthest(points: np.ndarray, count: int) -> np.ndarray:
    """Farthest-point sampling: `count` indices, from the point nearest to the centre on."""
    chosen = np.empty(min(count, len(points)), dtype=np.int64)
    chosen[0] = np.argmin(((points - points.mean(0)) ** 2).sum(1))
    gap = np.full(len(points), np.inf)
    for k in range(1, len(chosen)):  # each choice needs the last one; runs once per mesh
        gap = np.minimum(gap, ((points - points[chosen[k - 1]]) ** 2).sum(1))
        chosen[k] = np.argmax(gap)
    return chosen


@dataclass(frozen=True, eq=False)
class Nodes:
    """What mesh, conditions and coefficients say about each degree of freedom."""

    points: np.ndarray  # [n, d]
    x: Tensor  # [n, d] place in the bounding box, -1..1 along its longest side
    types: Tensor  # [n, 4] one-hot
    boundary: Tensor  # [n, 1] 1 on the boundary; periodic ones are none
    volume: Tensor  # [n, 1] control volume
    fields: Tensor  # [n, C] diffusion, decay and capacity, not scaled
    load: Tensor | None  # [n, F] boundary load per volume; None when there is none or it changes in time

    @classmethod
    def of(cls, p: Problem) -> Nodes:
        g, mesh = p.geometry, p.mesh
        owner = np.unique(g.dof, return_index=True)[1]
        wall = np.ones(len(mesh.boundary_facets), dtype=bool)
        for c in p.conditions:
            for name in c.boundaries if c.role == "periodic" else ():
                wall[mesh.facet_index(name)] = False
        kind = np.zeros(g.n, dtype=np.int64)
        kind[g.dof[mesh.boundary_facets[wall]]] = 1
        boundary = (kind > 0).astype(float)[:, None]
        for c in p.conditions:
            if c.role in ("flux", "exchange"):
                kind[g.dof[mesh.nodes_on(c.boundary)]] = 2
        types = nn.functional.one_hot(torch.as_tensor(kind, device=g.device), len(TYPES)).to(g.dtype)
        if p.fixed is not None:
            fixed = p.fixed.any(0)[:, None]  # [n, 1]
            types = torch.where(fixed, torch.eye(len(TYPES), dtype=g.dtype, device=g.device)[-1], types)
        low, high = mesh.points.min(0), mesh.points.max(0)
        x = 2 * (mesh.points - low) / (high - low).max() - 1
        volume = lumped(g).diagonal[:, None]
        load = None if p.data_changes else p.load(0.0)
        return cls(mesh.points[owner], g.tensor(x[owner]), types, g.tensor(boundary), volume, p.restrict(coefficients(p)).detach(),
                   None if load is None else (load / volume).expand(-1, p.n_fields).detach())


def coefficients(p: Problem) -> Tensor:
    """Diffusion, decay and capacity at the nodes [N, C], those that there are; per-cell values are averaged by volume."""
    g, N = p.geometry, p.mesh.n_nodes
    weight = g.volumes[:, None].expand_as(g.cells).reshape(-1, 1)
    total = weight.new_zeros(N, 1).index_add(0, g.cells.ravel(), weight)
    upper = torch.triu_indices(g.dim, g.dim, device=g.device)

    def at_nodes(value: Any) -> Tensor:
        v = torch.as_tensor(value, dtype=g.dtype, device=g.device)
        v = v[..., upper[0], upper[1]] if v.dim() >= 2 else v[..., None]  # [C] or [K, C]
        if v.dim() == 1:
            return v.expand(N, -1)
        per_corner = v[:, None].expand(-1, g.dim + 1, -1).reshape(-1, v.shape[-1])
        return v.new_zeros(N, v.shape[-1]).index_add(0, g.cells.ravel(), per_corner * weight) / total

    pde = p.pde
    spread = pde.frozen.per_field("diffusion")  # networks see numbers in place of curves
    parts = [at_nodes(typical(D, p.mesh, "diffusion")) for D in spread[: 1 if pde.shared("diffusion") else None]]
    decay = [torch.as_tensor(k, dtype=g.dtype, device=g.device).reshape(-1, 1).expand(N, 1)
             for k in pde.per_field("decay")[: 1 if pde.shared("decay") else None]]
    capacity = [] if p.capacity is None else [at_nodes(c) for c in p.capacity]
    return torch.cat(parts + [k for k in decay if bool((k != 0).any())] + capacity, -1)


# ---------------------------------------------------------------------- the model's frame


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a network sees of a step, normalised."""

    u: Tensor  # [B, n, F]
    source: Tensor  # [B, n, F]
    known: Tensor  # [B, n, C]
    types: Tensor  # [B, n, 4]
    t: float

    @cached_property
    def all(self) -> Tensor:
        """[B, n, 2F + C + 4]."""
        return torch.cat([self.u, self.source, self.known, self.types], -1)


@dataclass(frozen=True, eq=False)
class Prepared(Stepper):
    """A problem made ready: what the adapter needs, and what the network itself keeps (`own`)."""

    model: Baseline
    problem: Problem
    nodes: Nodes
    known: Tensor | None  # [n, C] or [b, n, C] where nothing known changes in time, not scaled
    own: Any

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        p = self.problem
        new = p.expand(self.model.advance(self, p.restrict(u), None if source is None else p.restrict(source), t))
        return new if p.fixed is None else impose(p, new, t)

    def severed(self) -> Severed | None:
        """With what `Baseline.ready` computed from weights as leaves."""
        own = self.own
        if not (isinstance(own, tuple) and hasattr(own, "_asdict")):
            return None if own is not None else Severed(self, [])
        pairs = [(v, v.detach().requires_grad_()) for v in own if isinstance(v, Tensor) and v.requires_grad]
        leaves = iter(leaf for _, leaf in pairs)
        cut = [next(leaves) if isinstance(v, Tensor) and v.requires_grad else v for v in own]
        return Severed(replace(self, own=type(own)(*cut)), pairs)

    def repeats(self, times: Sequence[float] = ()) -> bool:
        """Nothing in a network's step depends on what the flow is."""
        return bool(times) or not (self.problem.time_dependent or self.problem.data_changes)


class Baseline(LearnedModel[Prepared]):
    """The frame. A method overrides `ready` (its geometry) and `network`, or `advance` where it does not end in one increment."""

    name: ClassVar[str]
    predicts: ClassVar[str] = "rate"  # rate | state

    mean: Tensor
    std: Tensor
    source_scale: Tensor
    rate_mean: Tensor
    rate: Tensor
    known_shift: Tensor
    known_scale: Tensor
    length: Tensor

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.dim, self.fields = problem.mesh.dim, problem.n_fields
        F = self.fields
        for name in ("mean", "rate_mean"):
            self.register_buffer(name, torch.zeros(F))
        for name in ("std", "source_scale", "rate"):
            self.register_buffer(name, torch.ones(F))
        nodes = kept(problem, "nodes", Nodes.of)
        static = nodes.fields.shape[1]
        known = self.raw_known(problem, nodes, 0.0).reshape(-1, problem.n, self.channels_known(problem)).detach()
        shift = known.mean((0, 1))
        shift[static:] = 0.0  # loads and velocities keep their zero
        spread = (known - shift).square().mean((0, 1)).sqrt()
        scale = torch.where(spread > 1e-5 * shift.abs(), spread, shift.abs())
        if problem.pde.velocity is not None:
            scale[-self.dim:] = spread[-self.dim:].square().sum().sqrt()  # one scale: directions stay directions
        self.register_buffer("known_shift", shift.float())
        self.register_buffer("known_scale", torch.where(scale > 0, scale, torch.ones_like(scale)).float())
        self.register_buffer("length", torch.tensor(problem.mesh.spacing, dtype=torch.float32))
        self.known = len(shift)
        self.channels = 2 * F + self.known + len(TYPES)  # of `Inputs.all`

    # ------------------------------------------------------------------ scales

    def fit_statistics(self, state: Tensor, source: Tensor | None, dt: float, velocity: Tensor | None = None) -> None:
        """Scales of the training split: states [B, T+1, N, F], step-averaged sources [B, T, N, F], velocities [B, T+1, N, d].

        A feature that never changes is left unscaled (std 1), a field that never changes keeps a vanishing rate: no NaN.
        """
        s = state.double()
        mean, std = s.mean((0, 1, 2)), s.std((0, 1, 2))
        still = std <= 1e-7 * mean.abs()  # rounding of a constant
        self.mean.copy_(mean)
        self.std.copy_(torch.where(still | (std == 0), torch.ones_like(std), std))
        change = (s[:, 1:] - s[:, :-1]) / dt
        self.rate_mean.copy_(change.mean((0, 1, 2)))
        self.rate.copy_(change.std((0, 1, 2), correction=0).clamp(min=1e-12))
        if source is not None:
            size = source.double().square().mean((0, 1, 2)).sqrt()
            self.source_scale.copy_(torch.where(size > 0, size, torch.ones_like(size)))
        if velocity is not None:
            speed = velocity.double().square().sum(-1).mean().sqrt()
            self.known_scale[-self.dim:] = torch.where(speed > 0, speed, torch.ones_like(speed)).to(self.known_scale.dtype)

    @staticmethod
    def channels_known(p: Problem) -> int:
        loads = p.n_fields if any(c.role in ("flux", "exchange") for c in p.conditions) else 0
        return kept(p, "nodes", Nodes.of).fields.shape[1] + loads + (0 if p.pde.velocity is None else p.mesh.dim)

    @staticmethod
    def raw_known(p: Problem, nodes: Nodes, t: float, dt: float = 0.0) -> Tensor:
        """[n, C] or [b, n, C]: coefficients, boundary load and velocity at a time or over a step."""
        parts = [nodes.fields]
        load = nodes.load
        if load is None and p.data_changes:
            load = p.load(t, dt)
            load = None if load is None else (load / nodes.volume).expand(-1, p.n_fields)
        if load is not None:
            parts.append(load)
        if p.pde.velocity is not None:
            v = p.pde.velocity(t + 0.5 * dt) if callable(p.pde.velocity) else p.pde.velocity
            v = torch.as_tensor(v, dtype=nodes.fields.dtype, device=nodes.fields.device)  # no checks here: they would synchronise
            v = p.restrict(v.expand(p.mesh.n_nodes, -1) if v.dim() == 1 else v)
            parts.append(v)
            parts = [q.expand(*v.shape[:-2], -1, -1) for q in parts]
        return torch.cat(parts, -1)

    def inputs(self, state: Prepared, u: Tensor, source: Tensor | None, t: float) -> Inputs:
        """u, source [B, n, F] at degrees of freedom."""
        p, B = state.problem, u.shape[0]
        known = self.raw_known(p, state.nodes, t, p.dt) if state.known is None else state.known
        known = (known - self.known_shift) / self.known_scale
        f = torch.zeros_like(u) if source is None else (source / self.source_scale).expand_as(u)
        return Inputs((u - self.mean) / self.std, f, known.expand(B, -1, -1), state.nodes.types.expand(B, -1, -1), t)

    # ------------------------------------------------------------------ Model

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> Prepared:
        got = problem.mesh.dim, problem.n_fields, self.channels_known(problem)
        if got != (self.dim, self.fields, self.known):
            raise InputError(f"this {self.name} was built for {self.dim} dimensions, {self.fields} fields and {self.known} known "
                             f"coefficient channels, but the problem has {got[0]}, {got[1]} and {got[2]}")
        nodes = kept(problem, "nodes", Nodes.of)
        steady = not (callable(problem.pde.velocity) or problem.data_changes)
        return Prepared(self, problem, nodes, self.raw_known(problem, nodes, 0.0) if steady else None, self.ready(problem, nodes))

    def typical(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.std, self.source_scale

    # ------------------------------------------------------------------ what a method adds

    def ready(self, p: Problem, nodes: Nodes) -> Any:
        """The method's own geometry, through `kept`."""
        return None

    def advance(self, state: Prepared, u: Tensor, source: Tensor | None, t: float) -> Tensor:
        """u [B, n, F] at t -> t + dt."""
        out = self.network(state, self.inputs(state, u, source, t))
        if self.predicts == "state":
            return self.mean + self.std * out
        return u + state.problem.dt * (self.rate_mean + self.rate * out)

    def network(self, state: Prepared, z: Inputs) -> Tensor:
        """[B, n, F]: the normalised rate or next state."""
        raise NotImplementedError


# ---------------------------------------------------------------------- pieces of networks


def mlp(sizes: list[int], act: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """Linear layers with an activation in between; `norm` ends with a LayerNorm."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(sizes)):
        layers += ([act()] if i else []) + [nn.Linear(a, b)]
    return nn.Sequential(*layers, *([nn.LayerNorm(sizes[-1])] if norm else []))


class EdgeMLP(nn.Module):
    """MLP of (h_i, h_j, e_ij), or (h_i, h_j - h_i, e_ij), for i <- j. Its first layer runs over nodes, then gathers."""

    def __init__(self, node: int, edge: int, sizes: list[int], act: type[nn.Module] = nn.ReLU, norm: bool = False,
                 relative: bool = False) -> None:
        super().__init__()
        self.parts, self.relative = [node, node, edge], relative
        self.first = nn.Linear(2 * node + edge, sizes[0])
        self.rest = nn.Sequential(act(), mlp(sizes, act, norm))

    def forward(self, h: Tensor, e: Tensor, graph: Graph) -> Tensor:
        """h [B, n, H], e [E, a] or [B, E, a] -> [B, E, sizes[-1]]."""
        here, there, edge = self.first.weight.split(self.parts, 1)
        here = here - there if self.relative else here
        z = (h @ here.T).index_select(-2, graph.to) + (h @ there.T).index_select(-2, graph.frm)
        return self.rest(z + nn.functional.linear(e, edge, self.first.bias))
