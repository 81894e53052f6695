"""Where matrices have entries: against a sorted list of all pairs, and made once for a mesh."""

import numpy as np
import pytest

from dgnet.mesh import Mesh, box
from dgnet.operators import Geometry, Pattern
from dgnet.problems import PDE, Periodic, Problem


def shuffled(mesh: Mesh) -> np.ndarray:
    return np.random.default_rng(0).permutation(mesh.n_nodes)[mesh.cells]


@pytest.mark.parametrize(("cells", "n"), [(shuffled(box((5, 4))), 30), (shuffled(box((3, 2, 2))), 36), (box((2, 2)).cells, 12),
                                          (np.array([[0, 1, 1]]), 2)])
def test_entries_are_all_pairs_of_a_cell_in_order(cells: np.ndarray, n: int) -> None:
    """Also of cells with a node twice, as periodic boundaries make them, and with nodes that no cell has."""
    k = cells.shape[1]
    keys, slots = np.unique(np.repeat(cells, k, axis=1).ravel() * n + np.tile(cells, (1, k)).ravel(), return_inverse=True)
    p = Pattern.from_cells(cells, n)
    np.testing.assert_array_equal(p.row * n + p.col, keys)
    np.testing.assert_array_equal(p.crow, np.searchsorted(keys // n, np.arange(n + 1)))
    np.testing.assert_array_equal(p.cell_slots.ravel(), slots.ravel())
    np.testing.assert_array_equal(p.col[p.transpose] * n + p.row[p.transpose], keys)
    np.testing.assert_array_equal(p.diagonal, np.flatnonzero(keys // n == keys % n))


def test_problems_on_a_mesh_share_it_unless_their_degrees_of_freedom_differ() -> None:
    mesh = box((3, 3))
    one, other = (Problem(mesh, PDE(diffusion=D), [], dt=0.1) for D in (0.1, 0.2))
    ring = Problem(mesh, PDE(), [Periodic("left", "right")], dt=0.1)
    assert one.geometry.pattern is other.geometry.pattern is not ring.geometry.pattern
    assert ring.geometry.pattern.n == 12 and one.quadratic.geometry.pattern.n == 16 + len(mesh.edges)
    turned = Geometry.of(mesh, dof=np.arange(16)[::-1].copy())
    assert turned.pattern is not one.geometry.pattern
