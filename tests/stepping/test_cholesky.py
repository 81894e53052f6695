"""The Cholesky extra: the same answers where it is installed, one clear sentence where it is not."""

import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.problems import PDE, Dirichlet, Problem
from dgnet.stepping import GreenSolver

try:
    import cholespy  # noqa: F401

    INSTALLED = True
except ImportError:
    INSTALLED = False

MESH = box((9, 8), perturb=0.2)


@pytest.mark.skipif(not INSTALLED, reason="the extra 'cholesky' is not installed")
def test_cholesky_agrees_with_lu_for_many_columns():
    p = Problem(MESH, PDE(diffusion=0.3), [Dirichlet("left", 1.0)], 0.05)
    u = torch.randn(200, MESH.n_nodes, 1, dtype=torch.float64)  # more than the library takes at once
    torch.testing.assert_close(GreenSolver(p, "cholesky").step(u), GreenSolver(p, "lu").step(u), rtol=1e-11, atol=1e-12)
    with pytest.raises(InputError, match="symmetric"):
        GreenSolver(Problem(MESH, PDE(diffusion=0.3, velocity=[1.0, 0.0]), [], 0.05), "cholesky").step(u)


@pytest.mark.skipif(INSTALLED, reason="the extra 'cholesky' is installed")
def test_a_missing_extra_is_named():
    p = Problem(MESH, PDE(diffusion=0.3), [], 0.05)
    with pytest.raises(InputError, match=r"dgnet\[cholesky\]"):
        GreenSolver(p, "cholesky").step(torch.zeros(1, MESH.n_nodes, 1, dtype=torch.float64))
