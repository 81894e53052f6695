"""The same heat steps by other programs: one process per interpreter, told by lines of JSON what to run (`python -m benchmarks peers`).

    M (u+ - u) = dt (-K (u+ + u) / 2 + M f)          linear elements, consistent mass, insulated boundary

This file is run by its path, also by an interpreter without dgnet: it imports nothing but NumPy until a program is asked for. A
program is a function that takes a `Case`, makes the mesh in its own form, and returns what the clock runs: from that mesh to the
last state. It calls `mark(k)` after k of its steps (the last call counts): the mean of the others is the time of a step, the rest
is set-up. The clock is the processor time of this process, on one thread.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray
Mark = Callable[[int], None]
Run = Callable[[Mark], tuple[Array, str]]
"""Runs all steps; gives the answer, and what was used in words."""
MEMORY = 12 * 10**9
"""Bytes that a process may take: a program that asks for more fails, and not the machine."""


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


def _direct(A: Any) -> Callable[[Array, Array], Array]:
    from scipy.sparse.linalg import splu

    factor = splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return lambda b, guess: factor.solve(b)


def _jacobi(A: Any, tolerance: float) -> Callable[[Array, Array], Array]:
    """Conjugate gradients preconditioned by the diagonal."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import cg

    A = A.tocsr()
    inverse = diags_array(1 / A.diagonal())

    def solve(b: Array, guess: Array) -> Array:
        u, failed = cg(A, b, x0=guess, rtol=tolerance, M=inverse)
        assert failed == 0, "SciPy's CG did not converge"
        return u

    return solve


def _scipy_step(case: Case, mesh: Any, method: str) -> tuple[Any, Any, Any, Array, Callable[[Array, Array], Array]]:
    """M, K, the matrix of the right-hand side, its load, and what solves (of a right-hand side and a first guess)."""
    M, K = _assembled(case, mesh)
    half = (0.5 * case.dt * case.D) * K
    solve = _direct(M + half) if method == "lu" else _jacobi(M + half, case.tolerance)
    return M, K, (M - half).tocsr(), case.dt * (M @ case.f.astype(case.dtype)), solve


def scipy_steps(method: str) -> Callable[[Case], Run]:
    """scikit-fem assembles, SciPy steps: SuperLU, or conjugate gradients that start from the last state."""
    def program(case: Case) -> Run:
        mesh = _skfem_mesh(case)

        def run(mark: Mark) -> tuple[Array, str]:
            _, _, B, load, solve = _scipy_step(case, mesh, method)
            u = case.u0.astype(case.dtype)
            for k in range(case.steps):
                u = solve(B @ u + load, u)
                if k == 0:
                    mark(1)
            return u, "MMD" if method == "lu" else "Jacobi"

        return run

    return program


def adjoint(method: str) -> Callable[[Case], Run]:
    """The gradient of `peers_torch.dgnet_gradient` by hand: one factorisation or preconditioner for both ways, all states kept."""
    def program(case: Case) -> Run:
        mesh = _skfem_mesh(case)

        def run(mark: Mark) -> tuple[Array, str]:
            M, K, B, load, solve = _scipy_step(case, mesh, method)
            states, dt = [case.u0.astype(case.dtype)], case.dt
            for _ in range(case.steps):
                states.append(solve(B @ states[-1] + load, states[-1]))
            way, in_D, total, back = 2 * states[-1], 0.0, np.zeros_like(load), np.zeros_like(load)
            for k in reversed(range(case.steps)):
                back = solve(way, back)
                total += back
                in_D -= 0.5 * dt * float(back @ (K @ (states[k] + states[k + 1])))
                way = B @ back
            return np.concatenate([[in_D], dt * (M @ total)]), "SuperLU" if method == "lu" else "SciPy CG"

        return run

    return program


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
            mark(1)
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


# ---------------------------------------------------------------------- the process


PROGRAMS: dict[str, Callable[[Case], Run]] = {
    "scikit-fem + SuperLU": scipy_steps("lu"), "SciPy CG": scipy_steps("cg"), "matrices": matrices,
    "PETSc Cholesky": petsc("cholesky"), "PETSc CG + ICC": petsc("cg"),
    "FEniCSx, Cholesky": fenicsx("cholesky"), "FEniCSx, CG + ICC": fenicsx("cg"),
    "gradient: adjoint by hand, SuperLU": adjoint("lu"), "gradient: adjoint by hand, CG": adjoint("cg"),
}
"""Those that need no PyTorch; the others are in `peers_torch`."""


def _program(name: str) -> Callable[[Case], Run]:
    if name in PROGRAMS:
        return PROGRAMS[name]
    from benchmarks import peers_torch

    return peers_torch.PROGRAMS[name]


def measured(name: str, path: str, out: str, steps: int | None = None) -> dict[str, Any]:
    """Processor seconds of one run, and MB that it took beyond what was in use; the answer goes to the file `out`.

    `steps`: only so many of the steps of the case.
    """
    case = Case.read(path)
    case = case if steps is None else replace(case, steps=steps)
    marks: list[tuple[float, int]] = []
    before = _fresh_peak()
    made = time.process_time()
    try:
        run = _program(name)(case)
    except ImportError as error:
        return {"missing": f"not installed ({error})"}
    begin = time.process_time()
    try:
        found, label = run(lambda k: marks.append((time.process_time(), k)))
    except Exception as error:  # whatever another program makes of the problem is its row, not the end of the table
        return {"failed": _reason(error)}
    total = time.process_time() - begin
    np.save(out, found)
    result: dict[str, Any] = {"total_s": total, "mesh_s": begin - made, "label": label, "steps": case.steps}
    if before is not None:
        result["memory_MB"] = (_memory("VmHWM") - before) / 1024
    if marks and case.steps > marks[-1][1]:
        step = (begin + total - marks[-1][0]) / (case.steps - marks[-1][1])
        result |= {"step_s": step, "setup_s": max(0.0, total - case.steps * step)}
    return result


def _reason(error: Exception) -> str:
    """Why a run failed, in a line."""
    asked = re.search(r"tried to allocate (\d+) bytes", str(error))
    if asked:
        return f"asks for {int(asked[1]) / 1e9:.0f} GB at once, more than the {MEMORY / 1e9:.0f} GB that a program may take"
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _memory(key: str) -> int:
    """kB of this process: VmRSS what it has, VmHWM the most it had."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1])


def _fresh_peak() -> int | None:
    """kB in use; from here on the peak is counted anew. None where the system does not tell."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what was freed goes back, so that a later run does not hide in it
        Path("/proc/self/clear_refs").write_text("5")
        return _memory("VmRSS")
    except (OSError, AttributeError):
        return None


def main() -> None:
    """One request a line: {"name", "path", "out"}, "steps" if fewer; one answer a line."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    answers = sys.stdout
    sys.stdout = sys.stderr  # what programs print is no answer
    for line in sys.stdin:
        gc.collect()
        gc.freeze()  # what is left are libraries: the next collection need not look at them
        answers.write(json.dumps(measured(**json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
