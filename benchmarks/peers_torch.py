"""Programs in PyTorch for `python -m benchmarks peers`: dgnet itself, torch-fem and TensorMesh. See `peers_run` for what a program is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import dgnet as dg
from dgnet.stepping.backends import NAMES

if TYPE_CHECKING:
    from benchmarks.peers_run import Array, Case, Mark, Run


def _gradient_or_end(u: torch.Tensor, D: torch.Tensor, f: torch.Tensor) -> Array:
    """The last state, or where D requires a gradient that of |u|^2: [1 + N]."""
    if not D.requires_grad:
        return u.double().numpy()
    u.square().sum().backward()
    assert D.grad is not None and f.grad is not None
    return np.concatenate([D.grad.double().numpy()[None], f.grad.double().numpy()])


# ---------------------------------------------------------------------- dgnet


def dgnet(backend: str) -> Callable[[Case], Run]:
    """A rollout of the classical solver, as a user calls it; only the last state is kept."""
    def program(case: Case) -> Run:
        torch.set_num_threads(1)
        dtype, mesh = getattr(torch, case.dtype), dg.Mesh(case.points, case.cells)
        seen: list[Any] = []

        class Seen(dg.Classical):
            def prepare(self, *given: Any, **more: Any) -> Any:
                seen.append(super().prepare(*given, **more))
                return seen[-1]

        def run(mark: Mark) -> tuple[Array, str]:
            problem = dg.Problem(mesh, dg.PDE(diffusion=case.D), [], case.dt, dtype=dtype)
            u0, f = (torch.tensor(x, dtype=dtype)[None, :, None] for x in (case.u0, case.f))
            with torch.no_grad():
                end = dg.rollout(Seen(start=0, backend=backend), problem, u0, f[:, None].expand(-1, case.steps, -1, -1),
                                 sink=lambda k, u: mark(1) if k == 1 else None)
                label = seen[-1].solver.operator().prepared.label  # with gradients it would be another operator, factorised anew
            return end[0, -1, :, 0].double().numpy(), label

        return run

    return program


def dgnet_gradient(case: Case) -> Run:
    """The derivative of |u|^2 at the end in the diffusivity, a number, and in the source at every node: [1 + N]."""
    torch.set_num_threads(1)
    dtype, mesh = getattr(torch, case.dtype), dg.Mesh(case.points, case.cells)

    def run(mark: Mark) -> tuple[Array, str]:
        D = torch.tensor(case.D, dtype=dtype, requires_grad=True)
        f = torch.tensor(case.f, dtype=dtype, requires_grad=True)
        problem = dg.Problem(mesh, dg.PDE(diffusion=D), [], case.dt, dtype=dtype)
        states = dg.rollout(dg.Classical(start=0), problem, torch.tensor(case.u0, dtype=dtype)[None, :, None],
                            f[None, None, :, None].expand(-1, case.steps, -1, -1))
        return _gradient_or_end(states[0, -1, :, 0], D, f), "auto"

    return run


# ---------------------------------------------------------------------- other programs


def torch_fem(method: str | None, gradient: bool = False) -> Callable[[Case], Run]:
    """torch-fem's own Crank-Nicolson, with the solver that it chooses or with conjugate gradients and the diagonal ("jacobi").

    Its precision is torch's default one. It integrates the mass of a linear element at one point: here it is given the
    consistent mass, so that its answer is the same.
    """
    def program(case: Case) -> Run:
        import torchfem
        from torchfem.materials import IsotropicConductivity2D, IsotropicConductivity3D

        torch.set_num_threads(1)
        dtype = getattr(torch, case.dtype)
        torch.set_default_dtype(dtype)
        points, cells = torch.tensor(case.points, dtype=dtype), torch.tensor(case.cells)
        kind: Any = torchfem.PlanarHeat if case.dim == 2 else torchfem.SolidHeat
        conductivity = IsotropicConductivity2D if case.dim == 2 else IsotropicConductivity3D
        pattern = (torch.ones(case.dim + 1, case.dim + 1) + torch.eye(case.dim + 1)) / ((case.dim + 1) * (case.dim + 2))

        def run(mark: Mark) -> tuple[Array, str]:
            class Heat(kind):  # type: ignore[misc]
                begun = 0

                def integrate_mass(self) -> torch.Tensor:
                    """[K, d+1, d+1]; `time_integration` asks for it right before its first step."""
                    self.begun = 0
                    detJ = self.eval_shape_functions(self.etype.ipoints)[2]
                    volume = sum(w * self.compute_m(J, self.material.rho) for w, J in zip(self.etype.iweights, detJ))
                    return volume[:, None, None] * pattern

                def integrate_material(self, *given: Any, **more: Any) -> Any:
                    if given[6] == 0:  # the first Newton iteration of a step
                        self.begun += 1
                        if self.begun == (1 if gradient else 2):
                            mark(self.begun - 1)
                    return super().integrate_material(*given, **more)

            D = torch.tensor(case.D, requires_grad=gradient)
            f = torch.tensor(case.f, dtype=dtype, requires_grad=gradient)
            model = Heat(points, cells, conductivity(D, rho=1.0))
            M = model.assemble_matrix(model.integrate_mass(), torch.empty(0, dtype=torch.long))
            model.heat_flux, model.temperatures = (M @ f)[:, None], torch.tensor(case.u0, dtype=dtype)[:, None]
            with torch.set_grad_enabled(gradient):
                u, *_ = model.time_integration(  # rtol is Newton's: one solve is enough for a linear step
                    torch.tensor([0.0, case.steps * case.dt]), case.dt, atol=0.0, rtol=0.5, stol=case.tolerance,
                    method="cg" if method else None, preconditioner=method, differentiable_parameters=D if gradient else None)
            return _gradient_or_end(u[-1, :, 0], D, f), method or "its choice"

        return run

    return program


def tensormesh(method: str, gradient: bool = False) -> Callable[[Case], Run]:
    """TensorMesh assembles, its sparse solver (torch-sla) steps. A kept factorisation has no gradient: "cg" has."""
    def program(case: Case) -> Run:
        import meshio
        from tensormesh import LaplaceElementAssembler, MassElementAssembler, Mesh

        torch.set_num_threads(1)
        dtype = getattr(torch, case.dtype)
        torch.set_default_dtype(dtype)
        kind = "triangle" if case.dim == 2 else "tetra"
        mesh = Mesh.from_meshio(meshio.Mesh(case.points.astype(case.dtype), [(kind, case.cells)]))

        def run(mark: Mark) -> tuple[Array, str]:
            D = torch.tensor(case.D, requires_grad=gradient)
            f = torch.tensor(case.f, dtype=dtype, requires_grad=gradient)
            M, K = (kind.from_mesh(mesh)() for kind in (MassElementAssembler, LaplaceElementAssembler))
            u = torch.tensor(case.u0, dtype=dtype)
            with torch.set_grad_enabled(gradient):
                half = K * (0.5 * case.dt * D)
                A, B, load = M + half, M - half, case.dt * (M @ f)
                factor = A.lu() if method == "lu" else None
                if gradient:
                    mark(0)
                for k in range(case.steps):
                    b = B @ u + load
                    u = factor.solve(b) if factor is not None else A.solve(
                        b, backend="pytorch", method=method, tol=case.tolerance,
                        atol=case.tolerance * float(b.detach().norm()))
                    if k == 0 and not gradient:
                        mark(1)
            return _gradient_or_end(u, D, f), method

        return run

    return program


PROGRAMS: dict[str, Callable[[Case], Run]] = {
    **{f"dgnet {backend}": dgnet(backend) for backend in ("auto", *NAMES)},
    "torch-fem, its choice": torch_fem(None), "torch-fem, CG": torch_fem("jacobi"),
    "TensorMesh, LU": tensormesh("lu"), "TensorMesh, CG": tensormesh("cg"),
    "gradient: dgnet": dgnet_gradient,
    "gradient: TensorMesh, CG": tensormesh("cg", gradient=True), "gradient: torch-fem, CG": torch_fem("jacobi", gradient=True),
}
