"""`python -m benchmarks rollout`: a whole classical trajectory on the gear plate, beside the same loop with a cached sparse LU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import splu

from benchmarks.materials import heated_plate
from dgnet import __version__
from dgnet.mesh import shipped
from dgnet.models import Classical, rollout
from dgnet.operators import EdgeMatrix
from dgnet.problems import LUMPED, PDE, Problem, Robin
from dgnet_paper.study.timing import hardware, sync, timed

STEPS = {"cpu": 200, "cuda": 2000}


def run(device: str = "cpu", mesh: str = "gear-plate", steps: int | None = None) -> dict[str, Any]:
    """Steps per second with lumped and consistent mass, 1 and 16 trajectories, step-averaged sources, float32.

    Then the same plate of steel whose capacity and conductivity change with the temperature, heated through its change of phase.
    """
    steps = steps or STEPS[device]
    shape = shipped(mesh)
    pde = PDE(diffusion=50 / (7850 * 450))
    rows = []
    for batch in (1, 16):
        source = torch.rand(batch, steps, shape.n_nodes, 1, generator=torch.Generator().manual_seed(0)).to(device)
        u0 = torch.full((batch, shape.n_nodes, 1), 298.15, device=device)
        for consistent in (0.0, 1.0):
            problem = Problem(shape, pde, [Robin("boundary", 25 / (7850 * 450), 298.15)], 0.5, consistent=consistent,
                                     dtype=torch.float32, device=device)
            model = Classical(consistent=consistent)
            solver = model.prepare(problem, batch, steps).green
            label = "" if solver is None else solver.operator().prepared.label
            rows.append(_row(model.name, label, model, problem, u0, source))
        plate, power = heated_plate(shape, steps, torch.float32, device)
        rows.append(_row("classical, steel", "newton", Classical(), plate, torch.full_like(u0, 20.0), source.mul(2 * power)))
        rows.append(_rival(problem, u0, source, device, batch))
    return {"benchmark": "rollout", "version": __version__, "hardware": hardware(device), "device": device, "mesh": mesh,
            "nodes": shape.n_nodes, "rows": rows}


def _row(name: str, backend: str, model: Classical, problem: Problem, u0: torch.Tensor,
         source: torch.Tensor) -> dict[str, Any]:
    batch, steps = source.shape[:2]
    with torch.no_grad():
        seconds = timed(partial(rollout, model, problem, u0, source), str(u0.device.type), repeats=3, budget=20.0)
    return {"model": name, "backend": backend, "trajectories": batch, "steps": steps, "seconds": seconds,
            "steps_per_s": steps / seconds, "trajectory_steps_per_s": batch * steps / seconds}


def _rival(problem: Problem, u0: torch.Tensor, source: torch.Tensor, device: str, batch: int) -> dict[str, Any]:
    """Factor once, solve many (the paper's Appendix C.2): CuPy's splu on CUDA, SciPy's on the CPU. Lumped mass."""
    p = problem.recast(LUMPED, problem.advection_form)
    M, K = p.mass, p.stiffness()
    A = EdgeMatrix(M.pattern, (M + K * (0.5 * p.dt)).values[0])
    B = EdgeMatrix(M.pattern, (M - K * (0.5 * p.dt)).values[0, 0])
    volume, load = M.diagonal[0, 0][:, None], p.load(0.0)
    assert load is not None
    matrix = A.to_scipy().astype(np.float64).tocsc()
    name = "scipy splu"
    steps = min(source.shape[1], 60)
    if device == "cuda":
        try:
            import cupy
            from cupyx.scipy.sparse import csc_matrix
            from cupyx.scipy.sparse.linalg import splu as gpu_splu
        except ImportError:
            return {"model": "cupy splu", "trajectories": batch, "not_run": "CuPy is not installed"}
        name, factor = "cupy splu", gpu_splu(csc_matrix(matrix.astype(np.float32)))

        def solve(b: torch.Tensor) -> torch.Tensor:
            return torch.from_dlpack(factor.solve(cupy.from_dlpack(b.contiguous())))
    else:
        host = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})

        def solve(b: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(host.solve(b.double().numpy())).float()

    def trajectory() -> None:
        u = u0[..., 0].T.contiguous()
        for k in range(steps):
            u = solve(B @ u + p.dt * (volume * source[:, k, :, 0].T + load))
        sync(device)

    with torch.no_grad():
        seconds = timed(trajectory, device, repeats=2, budget=20.0)
    return {"model": name, "backend": "factor once", "trajectories": batch, "steps": steps, "seconds": seconds,
            "steps_per_s": steps / seconds, "trajectory_steps_per_s": batch * steps / seconds}
