"""The paper's model as its text has it (`PAPER`, Sections 3.3 to 3.5); docs/paper.md says what the text leaves open.

    [L_physics]_ij = m_ij l_ij / 2|Omega_i|      gradient, for advection -v_i . grad u          (Section 3.4.1)
    [L_physics]_ij = D w_ij / |Omega_i|          Laplacian, w_ij = (cot alpha + cot beta) / 2
    [L_physics]_ii = minus the sum of its row
    [L_neural]_ij  = Decoder([h_i, h_j])         for the edges (i, j), nothing on the diagonal   (Eq. 10)
    u+             = G [ (I + dt/2 L) u + dt (f + f+) / 2 ] + residual network(u)                (Eq. 7, Section 3.5)

The solver's matrices are M = diag |Omega_i| and K = -M L. None of it has a limit: weights can make energy, mass and infinity.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dgnet.mesh import Mesh
from dgnet.models.dgnet.build import Build
from dgnet.models.dgnet.edges import directed_slots
from dgnet.models.dgnet.parts.part import Part, network_precision
from dgnet.models.gnn import MLP, GeometryNet
from dgnet.operators import EdgeMatrix, Geometry, lumped, nodal_velocity
from dgnet.problems import Problem
from dgnet_paper.model.bounded import Residual
from dgnet_paper.model.config import PaperConfig

Tensor = torch.Tensor


class ControlVolumes(Part):
    """L_physics of the paper: nothing in it is learned. Diffusion stays as it is, its stiffness has the cotangent weights.

    |Omega_i| is the Voronoi area, in obtuse triangles the mixed one of Meyer et al. 2003. Tetrahedra, of which the paper says
    nothing, give equal shares to their corners: few of them contain their circumcentre.
    """

    is_physics = True

    def contribute(self, build: Build) -> None:
        p, pattern = build.problem, build.problem.geometry.pattern
        kind = "mixed" if p.mesh.dim == 2 else "barycentric"
        plain = EdgeMatrix(pattern, _kept(p.geometry, "volumes", lambda: lumped(p.geometry, kind).values))
        weighted = [plain] if p.capacity is None else [lumped(p.geometry, kind, c) for c in p.capacity]
        build.source = build.reaction_mass = EdgeMatrix(pattern, plain.values[None, None])
        build.mass, build.mass_low = EdgeMatrix(pattern, torch.stack([m.values for m in weighted])[None]), 1.0
        rates = [torch.as_tensor(k, dtype=p.dtype, device=p.geometry.device).expand(p.mesh.n_nodes)
                 for k in p.pde.per_field("decay")[: 1 if p.pde.shared("decay") else None]]
        build.decay = EdgeMatrix(pattern, torch.stack([plain.scale_rows(p.restrict(k[:, None])[:, 0]).values for k in rates])[None])
        if p.pde.velocity is not None:
            still = None if callable(p.pde.velocity) else green_gauss(p, 0.0)
            build.advection = (lambda t: green_gauss(p, t)) if still is None else lambda t: still


def _kept(g: Geometry, name: str, make: Callable[[], Tensor]) -> Tensor:
    """What belongs to a mesh, made once: every update of a training, and every step in a flow that changes, asks for it."""
    kept: dict[str, Tensor] = g.__dict__.setdefault("_control_volumes", {})
    if name not in kept:
        kept[name] = make()
    return kept[name]


def green_gauss(p: Problem, t: float) -> EdgeMatrix:
    """|Omega_i| v_i . grad u by the Green-Gauss theorem: entries v_i . n_ij l_ij / 2. Values [b, 1, nnz], rows sum to zero."""
    g = p.geometry
    velocity = p.pde.velocity(t) if callable(p.pde.velocity) else p.pde.velocity
    assert velocity is not None
    at = nodal_velocity(g, velocity).double()[..., g.cells, :]  # [..., K, d+1, d]
    faces = _kept(g.exact, "faces", lambda: g.exact.tensor(dual_faces(g.mesh)))
    if p.capacity is not None:
        faces = faces * p.carried_capacity.double()[:, None, None, None]
    local = 0.5 * torch.einsum("...kid,kijd->...kij", at, faces)
    local = local - torch.diag_embed(local.sum(-1))
    return EdgeMatrix(g.pattern, EdgeMatrix.from_cells(g.pattern, local).values.reshape(-1, 1, g.pattern.nnz)).to(p.dtype)


def dual_faces(mesh: Mesh) -> np.ndarray:
    """n_ij l_ij inside each cell [K, i, j, d]: the face between the control volumes of corners i and j, from i to j.

    In a triangle it runs from the middle of the edge to the circumcentre (obtuse: to the middle of the longest edge), which
    bounds the mixed Voronoi areas; in a tetrahedron through the barycentres.
    """
    if mesh.dim == 3:
        g = mesh.gradients
        return (g[:, None] - g[:, :, None]) * (mesh.volumes / 4)[:, None, None, None]
    x = mesh.points[mesh.cells]
    next_, last = np.roll(x, -1, axis=1), np.roll(x, 1, axis=1)
    cosine = ((next_ - x) * (last - x)).sum(2, keepdims=True)  # its sign
    weight = ((next_ - last) ** 2).sum(2, keepdims=True) * cosine  # barycentric coordinates of the circumcentre, but for their sum
    obtuse = cosine < 0
    centre = np.where(obtuse.any(1), (obtuse * 0.5 * (next_ + last)).sum(1), (weight * x).sum(1) / weight.sum(1))
    along = centre[:, None] - 0.5 * (x + next_)  # of the face between a corner and the next one
    faces, corner = np.zeros((mesh.n_cells, 3, 3, 2)), np.arange(3)
    faces[:, corner, (corner + 1) % 3] = np.stack([along[..., 1], -along[..., 0]], -1)
    return faces - faces.transpose(0, 2, 1, 3)


class Decoder(Part):
    """L_neural of the paper (Eq. 9-10): a plain network gives one number, 1/time, for each directed edge and field.

    Guarantee: none. Rows need not sum to zero, so that a constant need not stay one. Only the start at zero is ours.
    """

    def __init__(self, c: PaperConfig, problem: Problem) -> None:
        super().__init__()
        self.amp = c.amp
        self.geometry_net = GeometryNet(problem.mesh.dim, c.hidden, c.layers, plain=True)
        self.decode_edge = MLP([2 * c.hidden, c.hidden, problem.n_fields], zero=True)

    def contribute(self, build: Build) -> None:
        p, graph = build.problem, build.graph
        with network_precision(self.amp, p.geometry.device):
            h = self.geometry_net(graph)[0]
        h = h.to(build.scales.mean.dtype)
        entries = self.decode_edge(torch.cat([h[graph.to], h[graph.frm]], -1)).T.double()  # [F, 2E]
        receiver = torch.as_tensor(p.geometry.dof, device=p.geometry.device)[graph.to]
        weighted = -build.mass.diagonal[..., receiver].double() * entries
        values = torch.zeros(*weighted.shape[:2], p.geometry.pattern.nnz, dtype=weighted.dtype, device=weighted.device)
        K = EdgeMatrix(p.geometry.pattern, values.index_add(-1, directed_slots(p, graph), weighted))
        build.any_term = K.to(p.dtype)


class PlainResidual(Residual):
    """The residual network of the paper (Section 3.5): u+ <- u+ + dt rate network(u), u the state before the step.

    Guarantee: none. The text says where it acts and that it is small. That it sees the state before the step is what the authors'
    published code does. Ours: the state is normalised, and a rate of the training data is the unit of what it adds.
    """

    def __init__(self, c: PaperConfig, problem: Problem) -> None:
        super().__init__(c, problem, problem.n_fields)

    def contribute(self, build: Build) -> None:
        network, scales, dt = self.network(build), build.scales, build.problem.dt

        def correction(u: Tensor, new: Tensor, source: Tensor | None, t: float) -> Tensor:
            return new + dt * scales.rate * network((u - scales.mean) / scales.std).to(new.dtype)

        build.corrections.append(correction)
