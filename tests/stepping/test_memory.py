"""Memory of a prepared problem grows linearly with its nodes: counted in bytes of the tensors that are held."""

import numpy as np
import torch

from dgnet.mesh import box
from dgnet.problems import PDE, Problem
from dgnet.stepping import GreenSolver


def held(thing, seen: set[int]) -> int:
    """Bytes of all tensors and arrays reachable from an object."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        if thing.layout == torch.sparse_csr:
            return held([thing.crow_indices(), thing.col_indices(), thing.values()], seen)
        return thing.untyped_storage().nbytes()
    if isinstance(thing, np.ndarray):
        return thing.nbytes
    if isinstance(thing, dict):
        return sum(held(v, seen) for v in thing.values())
    if isinstance(thing, list | tuple):
        return sum(held(v, seen) for v in thing)
    if type(thing).__module__.startswith("dgnet"):
        return held(vars(thing), seen) if hasattr(thing, "__dict__") else 0
    return 0


def test_memory_is_linear_in_nodes():
    nodes, bytes_ = [], []
    for n in (20, 40, 80, 160):
        mesh = box((n, n), perturb=0.2)
        p = Problem(mesh, PDE(diffusion=1.0), [], 0.04 * mesh.spacing**2, dtype=torch.float32)
        solver = GreenSolver(p, "iterative")
        solver.step(torch.randn(1, mesh.n_nodes, 1))
        nodes.append(mesh.n_nodes)
        bytes_.append(held(solver, set()))
    assert np.polyfit(np.log(nodes), np.log(bytes_), 1)[0] < 1.05
    assert bytes_[-1] / nodes[-1] < 4000  # mesh, float64 geometry and patterns included
