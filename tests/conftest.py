import gc
import os
import tempfile

import numpy as np
import pytest
import torch

from dgnet.mesh import Mesh, box

torch.set_num_threads(1)
os.environ["DGNET_TRUSTED"] = f"{tempfile.mkdtemp()}/trusted-physics"  # tests leave the user's own record alone


def pytest_collection_finish() -> None:
    """What is alive now stays: collections, which dgnet also asks for between measurements, need not look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["triangles", "tetrahedra"])
def mesh(request) -> Mesh:
    return box((7, 6), perturb=0.25, seed=3) if request.param == "triangles" else box((4, 3, 3), perturb=0.2, seed=3)


def shuffled(mesh: Mesh, seed: int = 0) -> Mesh:
    """The same mesh with nodes, cells and corners in random order, orientations mixed."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(mesh.n_nodes)
    place = np.argsort(order)
    cells = rng.permuted(place[mesh.cells], axis=1)[rng.permutation(mesh.n_cells)]
    return Mesh(mesh.points[order], cells, {name: rng.permuted(place[f], axis=1) for name, f in mesh.boundaries.items()})
