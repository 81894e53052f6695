"""The same answers on the GPU: every backend, captured or not, fused kernels and adjoints."""

import pytest
import torch

from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.operators import EdgeMatrix, Geometry, mass, stiffness
from dgnet.problems import PDE, Dirichlet, Problem
from dgnet.stepping import GreenSolver, bounds_of
from dgnet.stepping.backends import apply, prepare

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BACKENDS = ["lu", "iterative", "dense"]


@pytest.mark.parametrize("cells", [(6, 5), (4, 3, 3)])
def test_cuda_equals_cpu_captured_or_not(cells):
    mesh = box(cells, perturb=0.2, seed=2)
    states = {}
    for device in ("cpu", "cuda"):
        p = Problem(mesh, PDE(fields=("a", "b"), diffusion={"a": 0.1, "b": 0.3}, velocity=[0.2, 0.1, 0.1][: mesh.dim],
                                     reaction=lambda u: u - u**3), [Dirichlet("left", 0.2)], 0.05, device=device)
        g = torch.Generator().manual_seed(0)
        u0 = torch.randn(3, mesh.n_nodes, 2, dtype=torch.float64, generator=g).to(device)
        f = torch.randn(3, 20, mesh.n_nodes, 2, dtype=torch.float64, generator=g).to(device)
        with torch.no_grad():
            for backend in BACKENDS:
                for capture in (True, False):
                    states[device, backend, capture] = rollout(Classical(backend=backend), p, u0, f, capture=capture).cpu()
    reference = states["cpu", "lu", False]
    for key, state in states.items():
        assert float((state - reference).norm() / reference.norm()) < 1e-9, key


@pytest.mark.parametrize("columns", [1, 3, 32, 50])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_kernels_equal_the_plain_iteration(columns, groups, dtype):
    g = Geometry.of(box((9, 8), perturb=0.2))
    base = (mass(g) + stiffness(g, 0.001)).values
    values = base * (1 + 0.1 * torch.arange(groups, dtype=torch.float64))[:, None]
    b = torch.randn(groups, g.n, columns, dtype=dtype)
    out = {}
    for device in ("cpu", "cuda"):
        A = EdgeMatrix(g.pattern.to(device), values.to(device, dtype))
        M = EdgeMatrix(A.pattern, mass(g).values.to(device, dtype)[None])
        prepared = prepare(A, "iterative", bounds_of(A, M, 0.5, symmetric=True), True)
        assert prepared.label.startswith("chebyshev")
        out[device] = prepared.solve(b.to(device)).cpu()
        out[device + "T"] = prepared.solve(b.to(device), transposed=True).cpu()
        x = A @ b.to(device)
        out[device + "@"] = x.cpu()
    for what in ("", "T", "@"):
        near = 1e-4 if dtype == torch.float32 else 1e-10
        torch.testing.assert_close(out["cuda" + what], out["cpu" + what], rtol=near, atol=near)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_on_the_device(backend):
    g = Geometry.of(box((2, 2), perturb=0.2))
    values = (mass(g) + stiffness(g, 0.1)).values[None].cuda().requires_grad_()
    pattern = g.pattern.to("cuda")
    b = torch.randn(1, g.n, 2, dtype=torch.float64, device="cuda", requires_grad=True)

    def solve(values, b):
        A = EdgeMatrix(pattern, values)
        return apply(prepare(A, backend, bounds_of(A), symmetric=False, tolerance=1e-14), A, b)

    assert torch.autograd.gradcheck(solve, (values, b), atol=1e-6, nondet_tol=1e-10)


def test_stiff_float32_solves_reach_their_tolerance():
    mesh = box((20, 20), perturb=0.3, seed=4)
    p = Problem(mesh, PDE(diffusion=1.0), [], 200 * mesh.spacing**2, dtype=torch.float32, device="cuda")
    u = torch.randn(2, mesh.n_nodes, 1, device="cuda")
    got, want = GreenSolver(p, "iterative").step(u), GreenSolver(p, "lu").step(u)
    assert float((got - want).norm() / want.norm()) < 1e-3
