"""The same heat steps by other programs: one process per interpreter, told by lines of JSON what to run (`dgnet bench peers`).

    M (u+ - u) = dt (-K (u+ + u) / 2 + M f)          linear elements, consistent mass, insulated boundary

This file is run by its path, also by an interpreter without dgnet: it imports nothing but NumPy until a program is asked for. A
program is a function that takes a `Case`, makes the mesh in its own form, and returns what the clock runs: from that mesh to the
last state. It calls `mark` after the first step. The clock is the processor time of this process, on one thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray
Mark = Callable[[], None]
Run = Callable[[Mark], tuple[Array, str]]
"""Runs all steps; gives the answer, and what was used in words."""


@dataclass(frozen=True)
class Case:
    """Nodes [N, d], cells [K, d+1], start and source [N]; `tolerance` is that of iterative solves, relative."""

    points: Array
    cells: Array
    u0: Array
    f: Array
    D: float
    dt: float
    steps: int
    tolerance: float
    dtype: str
    matrices: str = ""  # file with M and K, for programs that do not assemble

    @classmethod
    def read(cls, path: str) -> Case:
        with np.load(path, allow_pickle=False) as file:
            return cls(**{name: file[name] if file[name].ndim else file[name].item() for name in file.files})

    @property
    def dim(self) -> int:
        return self.points.shape[1]


# ---------------------------------------------------------------------- dgnet


def dgnet(backend: str) -> Callable[[Case], Run]:
    """A rollout of the classical solver, as a user calls it; only the last state is kept."""
    def program(case: Case) -> Run:
        import torch

        import dgnet as dg

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
                end = dg.rollout(Seen(backend=backend), problem, u0, f[:, None].expand(-1, case.steps, -1, -1),
                                 sink=lambda k, u: mark() if k == 1 else None)
                label = seen[-1].operator().prepared.label  # with gradients it would be another operator, factorised anew
            return end[0, -1, :, 0].double().numpy(), label

        return run

    return program


def dgnet_gradient(case: Case) -> Run:
    """The derivative of |u|^2 at the end in the diffusivity, a number, and in the source at every node: [1 + N]."""
    import torch

    import dgnet as dg

    torch.set_num_threads(1)
    dtype, mesh = getattr(torch, case.dtype), dg.Mesh(case.points, case.cells)

    def run(mark: Mark) -> tuple[Array, str]:
        D = torch.tensor(case.D, dtype=dtype, requires_grad=True)
        f = torch.tensor(case.f, dtype=dtype, requires_grad=True)
        problem = dg.Problem(mesh, dg.PDE(diffusion=D), [], case.dt, dtype=dtype)
        states = dg.rollout(dg.Classical(), problem, torch.tensor(case.u0, dtype=dtype)[None, :, None],
                            f[None, None, :, None].expand(-1, case.steps, -1, -1))
        states[:, -1].square().sum().backward()
        assert D.grad is not None and f.grad is not None
        return np.concatenate([D.grad.double().numpy()[None], f.grad.double().numpy()]), "auto"

    return run


# ---------------------------------------------------------------------- scikit-fem and SciPy


def _skfem_mesh(case: Case) -> Any:
    import skfem

    kind = skfem.MeshTri if case.dim == 2 else skfem.MeshTet
    return kind(np.ascontiguousarray(case.points.T), np.ascontiguousarray(case.cells.T))


def _assembled(case: Case, mesh: Any) -> tuple[Any, Any]:
    """M and K by scikit-fem, in the precision of the case."""
    import skfem
    from skfem.models.poisson import laplace, mass

    basis = skfem.Basis(mesh, skfem.ElementTriP1() if case.dim == 2 else skfem.ElementTetP1(), intorder=2)
    return tuple(form.assemble(basis).astype(case.dtype) for form in (mass, laplace))  # type: ignore[return-value]


def _factor(A: Any) -> Any:
    from scipy.sparse.linalg import splu

    return splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def scikit_fem_superlu(case: Case) -> Run:
    mesh = _skfem_mesh(case)

    def run(mark: Mark) -> tuple[Array, str]:
        M, K = _assembled(case, mesh)
        half = (0.5 * case.dt * case.D) * K
        factor, B, u = _factor(M + half), (M - half).tocsr(), case.u0.astype(case.dtype)
        load = case.dt * (M @ case.f.astype(case.dtype))
        for k in range(case.steps):
            u = factor.solve(B @ u + load)
            if k == 0:
                mark()
        return u, "MMD"

    return run


def scipy_cg(case: Case) -> Run:
    """Preconditioned by the diagonal, each step started from the last state."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import cg

    mesh = _skfem_mesh(case)

    def run(mark: Mark) -> tuple[Array, str]:
        M, K = _assembled(case, mesh)
        half = (0.5 * case.dt * case.D) * K
        A, B, u = (M + half).tocsr(), (M - half).tocsr(), case.u0.astype(case.dtype)
        inverse, load = diags_array(1 / A.diagonal()), case.dt * (M @ case.f.astype(case.dtype))
        for k in range(case.steps):
            u, failed = cg(A, B @ u + load, x0=u, rtol=case.tolerance, M=inverse)
            assert failed == 0, "SciPy's CG did not converge"
            if k == 0:
                mark()
        return u, "Jacobi"

    return run


def adjoint_superlu(case: Case) -> Run:
    """The gradient of `dgnet_gradient` by hand: one factorisation for both directions, all states kept."""
    mesh = _skfem_mesh(case)

    def run(mark: Mark) -> tuple[Array, str]:
        M, K = _assembled(case, mesh)
        half, dt = (0.5 * case.dt * case.D) * K, case.dt
        factor, B, states = _factor(M + half), (M - half).tocsr(), [case.u0.astype(case.dtype)]
        load = dt * (M @ case.f.astype(case.dtype))
        for _ in range(case.steps):
            states.append(factor.solve(B @ states[-1] + load))
        way, in_D, total = 2 * states[-1], 0.0, np.zeros_like(load)
        for k in reversed(range(case.steps)):
            back = factor.solve(way)
            total += back
            in_D -= 0.5 * dt * float(back @ (K @ (states[k] + states[k + 1])))
            way = B @ back
        return np.concatenate([[in_D], dt * (M @ total)]), "SuperLU"

    return run


_PARTS = ("indptr", "indices", "data")


def matrices(case: Case) -> Run:
    """Assembly alone, what PETSc is given: M and K in the file `case.matrices`."""
    M, K = (X.tocsr() for X in _assembled(case, _skfem_mesh(case)))
    np.savez(case.matrices, **{name + part: getattr(X, part) for name, X in (("M", M), ("K", K)) for part in _PARTS})
    mesh = _skfem_mesh(case)

    def run(mark: Mark) -> tuple[Array, str]:
        _assembled(case, mesh)
        return np.zeros(1), "scikit-fem"

    return run


# ---------------------------------------------------------------------- PETSc and FEniCSx


def _petsc() -> Any:
    import petsc4py

    petsc4py.init([])
    from petsc4py import PETSc

    return PETSc


def _petsc_solver(A: Any, kind: str, tolerance: float) -> tuple[Any, str]:
    PETSc = _petsc()
    ksp = PETSc.KSP().create(A.comm)
    ksp.setOperators(A)
    pc = ksp.getPC()
    if kind == "cholesky":
        ksp.setType("preonly")
        pc.setType("cholesky")
        try:
            pc.setFactorSolverType("cholmod")
            ksp.setUp()
            return ksp, "CHOLMOD"
        except PETSc.Error:  # built without it
            pc.setFactorSolverType("petsc")
            return ksp, "PETSc's own"
    ksp.setType("cg")
    pc.setType("icc")
    ksp.setInitialGuessNonzero(True)
    ksp.setTolerances(rtol=tolerance, atol=0.0, max_it=5000)
    return ksp, "ICC(0)"


def _petsc_steps(case: Case, M: Any, K: Any, kind: str, u: Any, f: Any, mark: Mark) -> str:
    """All steps in PETSc, u in place."""
    PETSc = _petsc()
    A, B = M.copy(), M.copy()
    half = 0.5 * case.dt * case.D
    same = M.getInfo()["nz_used"] == K.getInfo()["nz_used"]
    structure = PETSc.Mat.Structure.SAME if same else PETSc.Mat.Structure.SUBSET  # scikit-fem leaves zeros out of K
    A.axpy(half, K, structure=structure)
    B.axpy(-half, K, structure=structure)
    A.setOption(PETSc.Mat.Option.SPD, True)
    ksp, label = _petsc_solver(A, kind, case.tolerance)
    load, b = u.duplicate(), u.duplicate()
    M.mult(f, load)
    load.scale(case.dt)
    for k in range(case.steps):
        B.multAdd(u, load, b)
        ksp.solve(b, u)
        assert ksp.getConvergedReason() > 0, "PETSc did not converge"
        if k == 0:
            mark()
    return label


def petsc(kind: str) -> Callable[[Case], Run]:
    """PETSc on given matrices; the time that scikit-fem takes to assemble them is added by the caller."""
    def program(case: Case) -> Run:
        PETSc = _petsc()
        with np.load(case.matrices) as file:
            given = [[file[name + part] for part in _PARTS] for name in ("M", "K")]
        size = (len(case.points),) * 2

        def run(mark: Mark) -> tuple[Array, str]:
            M, K = (PETSc.Mat().createAIJ(size, csr=csr, comm=PETSc.COMM_SELF) for csr in given)
            u, f = (PETSc.Vec().createWithArray(x.copy(), comm=PETSc.COMM_SELF) for x in (case.u0, case.f))
            label = _petsc_steps(case, M, K, kind, u, f, mark)
            return u.array.copy(), label

        return run

    return program


def fenicsx(kind: str) -> Callable[[Case], Run]:
    """dolfinx assembles, PETSc steps. Its compiled forms are kept between runs, and its own order of nodes is undone outside."""
    def program(case: Case) -> Run:
        PETSc = _petsc()
        import dolfinx
        import ufl
        from dolfinx.fem.petsc import assemble_matrix
        from mpi4py import MPI

        shape = {2: "triangle", 3: "tetrahedron"}[case.dim]
        element = ufl.VectorElement("Lagrange", shape, 1)
        mesh = dolfinx.mesh.create_mesh(MPI.COMM_SELF, case.cells.astype(np.int64), case.points, ufl.Mesh(element))

        def run(mark: Mark) -> tuple[Array, str]:
            V = dolfinx.fem.FunctionSpace(mesh, ("Lagrange", 1))
            v, w = ufl.TrialFunction(V), ufl.TestFunction(V)
            forms = [dolfinx.fem.form(x) for x in (v * w * ufl.dx, ufl.inner(ufl.grad(v), ufl.grad(w)) * ufl.dx)]
            M, K = (assemble_matrix(form) for form in forms)
            M.assemble()
            K.assemble()
            order = _order(V, mesh)
            u, f = (PETSc.Vec().createWithArray(x[order].copy(), comm=PETSc.COMM_SELF) for x in (case.u0, case.f))
            label = _petsc_steps(case, M, K, kind, u, f, mark)
            found = np.empty_like(case.u0)
            found[order] = u.array
            return found, label

        return run

    return program


def _order(V: Any, mesh: Any) -> Array:
    """The given node behind each degree of freedom."""
    of_dof = np.empty(V.dofmap.index_map.size_local, dtype=np.int64)
    cells = mesh.topology.index_map(mesh.topology.dim).size_local
    geometry = np.asarray(mesh.geometry.dofmap.array).reshape(cells, -1)
    dofs = np.asarray(V.dofmap.list.array).reshape(cells, -1)
    of_dof[dofs.ravel()] = np.asarray(mesh.geometry.input_global_indices)[geometry.ravel()]
    return of_dof


# ---------------------------------------------------------------------- finite elements in PyTorch


def torch_fem(gradient: bool) -> Callable[[Case], Run]:
    """torch-fem's own Crank-Nicolson; it has no mark of its first step. Its precision is torch's default one.

    It integrates the mass of a linear element at one point, so its matrices, and its answer, are a little different.
    """
    def program(case: Case) -> Run:
        import torch
        import torchfem
        from torchfem.materials import IsotropicConductivity2D, IsotropicConductivity3D

        torch.set_num_threads(1)
        dtype = getattr(torch, case.dtype)
        torch.set_default_dtype(dtype)
        points, cells = torch.tensor(case.points, dtype=dtype), torch.tensor(case.cells)

        def run(mark: Mark) -> tuple[Array, str]:
            D = torch.tensor(case.D, requires_grad=gradient)
            f = torch.tensor(case.f, dtype=dtype, requires_grad=gradient)
            material, kind = (IsotropicConductivity2D, "PlanarHeat") if case.dim == 2 else (IsotropicConductivity3D, "SolidHeat")
            model = getattr(torchfem, kind)(points, cells, material(D, rho=1.0))
            M = model.assemble_matrix(model.integrate_mass(), torch.empty(0, dtype=torch.long))
            model.heat_flux = (M @ f)[:, None]
            model.temperatures = torch.tensor(case.u0, dtype=dtype)[:, None]
            with torch.set_grad_enabled(gradient):
                u, *_ = model.time_integration(torch.tensor([0.0, case.steps * case.dt]), case.dt, atol=0.0, rtol=case.tolerance,
                                               stol=case.tolerance)
            end = u[-1, :, 0]
            if not gradient:
                return end.double().numpy(), "auto"
            end.square().sum().backward()
            assert D.grad is not None and f.grad is not None
            return np.concatenate([D.grad.double().numpy()[None], f.grad.double().numpy()]), "auto"

        return run

    return program


def tensormesh(method: str, gradient: bool = False) -> Callable[[Case], Run]:
    """TensorMesh assembles, its sparse solver (torch-sla) steps. A kept factorisation has no gradient: there it is made anew."""
    def program(case: Case) -> Run:
        import meshio
        import torch
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
                factor = A.lu() if method == "lu" and not gradient else None
                for k in range(case.steps):
                    b = B @ u + load
                    u = factor.solve(b) if factor is not None else A.solve(
                        b, backend="scipy" if method == "lu" else "pytorch", method=method, tol=case.tolerance,
                        atol=case.tolerance * float(b.detach().norm()))
                    if k == 0:
                        mark()
            if not gradient:
                return u.double().numpy(), method
            u.square().sum().backward()
            assert D.grad is not None and f.grad is not None
            return np.concatenate([D.grad.double().numpy()[None], f.grad.double().numpy()]), method

        return run

    return program


# ---------------------------------------------------------------------- the process


PROGRAMS: dict[str, Callable[[Case], Run]] = {
    "scikit-fem + SuperLU": scikit_fem_superlu, "SciPy CG": scipy_cg, "matrices": matrices,
    "PETSc Cholesky": petsc("cholesky"), "PETSc CG + ICC": petsc("cg"),
    "FEniCSx, Cholesky": fenicsx("cholesky"), "FEniCSx, CG + ICC": fenicsx("cg"),
    "torch-fem": torch_fem(False), "TensorMesh, LU": tensormesh("lu"), "TensorMesh, CG": tensormesh("cg"),
    "gradient: dgnet": dgnet_gradient, "gradient: adjoint by hand": adjoint_superlu,
    "gradient: torch-fem": torch_fem(True), "gradient: TensorMesh": tensormesh("lu", gradient=True),
}


def measured(name: str, path: str, out: str, steps: int | None = None) -> dict[str, Any]:
    """Processor seconds of one run; the answer goes to the file `out`."""
    case = Case.read(path)
    case = case if steps is None else replace(case, steps=steps)
    first: list[float] = []
    try:
        program = dgnet(name.removeprefix("dgnet ")) if name.startswith("dgnet ") else PROGRAMS[name]
        run = program(case)
    except ImportError as error:
        return {"missing": f"not installed ({error})"}
    begin = time.process_time()
    try:
        found, label = run(lambda: first.append(time.process_time()))
    except Exception as error:  # whatever another program makes of the problem is its row, not the end of the table
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    total = time.process_time() - begin
    np.save(out, found)
    result: dict[str, Any] = {"total_s": total, "label": label}
    if first and case.steps > 1:
        step = (begin + total - first[0]) / (case.steps - 1)
        result |= {"step_s": step, "setup_s": max(0.0, total - case.steps * step)}
    return result


def main() -> None:
    """One request a line: {"name", "path", "out"}; one answer a line."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what programs print is no answer
    for line in sys.stdin:
        answers.write(json.dumps(measured(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
