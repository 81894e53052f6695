"""Graph networks on a mesh: what the hybrid operator and the residual are made of.

Encode-process-decode (paper, Section 3.4.2): node and edge encoders, M message-passing layers with residuals, decoders. All
parts are MLPs; all decoders start at zero, so that an untrained model is the classical solver.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from dgnet.mesh import Mesh
from dgnet.operators import Geometry

Tensor = torch.Tensor


class MLP(nn.Sequential):
    """Linear layers with SiLU in between; `zero` starts the last one at zero, `norm` ends with a LayerNorm."""

    def __init__(self, sizes: list[int], zero: bool = False, norm: bool = False) -> None:
        layers: list[nn.Module] = []
        for i, (a, b) in enumerate(pairwise(sizes)):
            layers += [nn.Linear(a, b)] + ([nn.SiLU()] if i < len(sizes) - 2 else [])
        last = layers[-1]
        assert isinstance(last, nn.Linear)
        if zero:
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        if norm:
            layers.append(nn.LayerNorm(sizes[-1]))
        super().__init__(*layers)


@dataclass(frozen=True, eq=False)
class MeshGraph:
    """A mesh as a graph: directed edges (both ways) with geometric features that do not depend on units.

    Nodes: position in the bounding box, boundary flag C_i (the paper's), and ours: size of the control volume and the share of
    a full turn that the domain fills around the node (1 inside, 1/2 on a straight boundary, more at re-entrant corners).
    Edges: displacement and length in local spacings, boundary flag, cotangent weight.
    """

    node: Tensor  # [N, a]
    edge: Tensor  # [2E, b]
    to: Tensor  # [2E] node that receives
    frm: Tensor  # [2E] node that sends
    pairs: Tensor  # [E, 2] directed edges (both ways) of each undirected one
    cells: Tensor  # [K, d+1]

    @classmethod
    def of(cls, geometry: Geometry) -> MeshGraph:
        mesh, E = geometry.mesh, len(geometry.mesh.edges)
        i, j = mesh.edges.T
        to, frm = np.concatenate([i, j]), np.concatenate([j, i])
        low, high = mesh.points.min(0), mesh.points.max(0)
        volume = mesh.dual_volumes()
        local = volume ** (1 / mesh.dim)
        flag = mesh.on_boundary.astype(float)
        node = np.column_stack([2 * (mesh.points - low) / (high - low).max() - 1, flag, np.log(volume / volume.mean()),
                                turn_share(mesh)])
        step = (mesh.points[frm] - mesh.points[to]) / np.sqrt(local[to] * local[frm])[:, None]
        rim = np.zeros(E)
        sides = np.concatenate([mesh.boundary_facets[:, [a, b]] for a in range(mesh.dim) for b in range(a)])
        key = np.array([mesh.n_nodes, 1])
        rim[np.searchsorted(mesh.edges @ key, np.unique(np.sort(sides, axis=1) @ key))] = 1.0
        weight = mesh.cotangent_weights / (mesh.edge_lengths ** (mesh.dim - 2))
        edge = np.column_stack([step, np.linalg.norm(step, axis=1), np.tile(rim, 2), np.tile(np.tanh(weight), 2)])
        put = geometry.tensor

        def index(a: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(a), device=geometry.device)

        return cls(put(node), put(edge), index(to), index(frm), index(np.arange(2 * E).reshape(2, E).T), geometry.cells)


def turn_share(mesh: Mesh) -> np.ndarray:
    """Angle (2D) or solid angle (3D) that the cells fill around each node, as a share of the full one [N]."""
    x = mesh.points[mesh.cells]
    share = np.zeros(mesh.cells.shape)
    for c in range(mesh.dim + 1):
        rest = [k for k in range(mesh.dim + 1) if k != c]
        e = [x[:, k] - x[:, c] for k in rest]
        length = [np.linalg.norm(v, axis=1) for v in e]
        if mesh.dim == 2:
            share[:, c] = np.arccos(np.clip((e[0] * e[1]).sum(1) / (length[0] * length[1]), -1, 1)) / (2 * np.pi)
        else:
            top = np.abs(np.linalg.det(np.stack(e, axis=1)))
            bottom = (length[0] * length[1] * length[2] + (e[0] * e[1]).sum(1) * length[2]
                      + (e[0] * e[2]).sum(1) * length[1] + (e[1] * e[2]).sum(1) * length[0])
            share[:, c] = 2 * np.arctan2(top, bottom) / (4 * np.pi)
    return np.bincount(mesh.cells.ravel(), share.ravel(), minlength=mesh.n_nodes)


class Processor(nn.Module):
    """M layers h_i <- h_i + Update(h_i, sum_j Message(h_i, h_j, e_ij)), for h [..., N, H] (batched) and e [2E, H].

    The first linear layer of Message is split by its inputs, so that products with H columns run over nodes, not edges.
    """

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.receive = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.send = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        self.edge = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(layers))
        self.message = nn.ModuleList(nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden)) for _ in range(layers))
        self.update = nn.ModuleList(MLP([2 * hidden, hidden, hidden], norm=True) for _ in range(layers))

    def forward(self, h: Tensor, e: Tensor, graph: MeshGraph) -> Tensor:
        degree = torch.zeros(h.shape[-2], dtype=h.dtype, device=h.device).index_add(
            0, graph.to, torch.ones(len(graph.to), dtype=h.dtype, device=h.device))
        scale = (1 / degree.sqrt())[:, None]  # keeps the sum's size the same at nodes of any degree
        for receive, send, edge, message, update in zip(self.receive, self.send, self.edge, self.message, self.update):
            m = message(receive(h).index_select(-2, graph.to) + send(h).index_select(-2, graph.frm) + edge(e))
            total = torch.zeros_like(h).index_add(-2, graph.to, m.to(h.dtype)) * scale
            h = h + update(torch.cat([h, total], -1))
        return h


class GeometryNet(nn.Module):
    """Encoder and processor of the operator network: node embeddings h [N, H] from geometry alone."""

    def __init__(self, dim: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.node = MLP([dim + 3, hidden, hidden], norm=True)
        self.edge = MLP([dim + 3, hidden, hidden], norm=True)
        self.process = Processor(hidden, layers)

    def forward(self, graph: MeshGraph) -> tuple[Tensor, Tensor]:
        e = self.edge(graph.edge)
        return self.process(self.node(graph.node), e, graph), e


class StateNet(nn.Module):
    """A message-passing network on states [B, N, C] -> [B, N, F], zero at birth."""

    def __init__(self, dim: int, inputs: int, outputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.node = MLP([inputs + 2, hidden, hidden], norm=True)
        self.edge = MLP([dim + 3, hidden, hidden], norm=True)
        self.process = Processor(hidden, layers)
        self.decode = MLP([hidden, hidden, outputs], zero=True)

    def forward(self, x: Tensor, graph: MeshGraph) -> Tensor:
        place = graph.node[:, -3::2].expand(*x.shape[:-1], 2)  # boundary flag and turn share: no absolute position
        return self.decode(self.process(self.node(torch.cat([x, place], -1)), self.edge(graph.edge), graph))
