"""The same problem by an independent code: NGSolve (a wheel, not a dependency: skipped where it is missing)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dgnet.mesh import Mesh, box
from dgnet.problems.conditions import Dirichlet, Robin
from dgnet.problems.pde import PDE
from dgnet_paper.reference.transport import solve


def ngsolve_state(mesh: Mesh, dt: float, steps: int, substeps: int) -> np.ndarray:
    """Final nodal state of the problem below by NGSolve: P1, Crank-Nicolson with everything implicit."""
    ngs = pytest.importorskip("ngsolve")
    netgen = pytest.importorskip("netgen.meshing")
    raw = netgen.Mesh(dim=2)
    names = ["left", "right", "bottom", "top"]
    points = [raw.Add(netgen.MeshPoint(netgen.Pnt(*p, 0.0))) for p in mesh.points]
    domain = raw.AddRegion("inside", dim=2)
    for cell in mesh.cells:
        raw.Add(netgen.Element2D(domain, [points[i] for i in cell]))
    for name in names:
        index = raw.AddRegion(name, dim=1)
        for facet in mesh.facets(name):
            raw.Add(netgen.Element1D([points[i] for i in facet], index=index))
    grid = ngs.Mesh(raw)
    space = ngs.H1(grid, order=1, dirichlet="left")
    u, v = space.TnT()
    mass = ngs.BilinearForm(u * v * ngs.dx).Assemble()
    wind = ngs.CoefficientFunction((0.8, 0.3))
    rest = ngs.BilinearForm(space)
    rest += (0.05 * ngs.grad(u) * ngs.grad(v) + (wind * ngs.grad(u)) * v + 0.2 * u * v) * ngs.dx
    rest += 0.4 * u * v * ngs.ds("top")
    rest.Assemble()
    load = ngs.LinearForm(0.4 * 1.5 * v * ngs.ds("top")).Assemble()
    h = dt / substeps
    matrix = mass.mat.CreateMatrix()
    matrix.AsVector().data = mass.mat.AsVector() + 0.5 * h * rest.mat.AsVector()
    inverse = matrix.Inverse(space.FreeDofs(), inverse="umfpack" if ngs.config.USE_UMFPACK else "sparsecholesky")
    state = ngs.GridFunction(space)
    for i, p in enumerate(mesh.points):  # nodal values, where `Set` would project
        state.vec[i] = float(np.exp(-30 * ((p - 0.4) ** 2).sum()))
    for i in mesh.nodes_on("left"):
        state.vec[int(i)] = 0.0
    change = state.vec.CreateVector()
    for _ in range(steps * substeps):
        change.data = h * (load.vec - rest.mat * state.vec)
        state.vec.data += inverse * change
    return np.array([state.vec[i] for i in range(mesh.n_nodes)])


def test_agrees_with_ngsolve():
    """Same P1 elements on the same mesh: what differs is the code and the time scheme, both at small steps."""
    mesh = box((16, 16), perturb=0.2)
    theirs = ngsolve_state(mesh, 0.1, 5, 200)
    u = solve(mesh, PDE(diffusion=0.05, velocity=(0.8, 0.3), decay=0.2), [Dirichlet("left"), Robin("top", 0.4, 1.5)],
              lambda x: torch.exp(-30 * ((x - 0.4) ** 2).sum(1))[None, :, None], dt=0.1, steps=5, substeps=100)
    ours = u[0, -1, :, 0].numpy()
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)
