"""Checks of the theory (paper, Appendix on the neural correction): the learned operator beside the classical one.

    L_physics = -M^-1 K            classical mass and stiffness
    L         = -M'^-1 K'          learned ones;   L_neural = L - L_physics

Spectra and the line Re = 0; numerical range and logarithmic norm mu (Definition 2); gamma = |L_neural| against eta = -mu(L_physics)
(Theorem 2); the norm of a step |(M + dt/2 K)^-1 (M - dt/2 K)|; how large L_neural is; and consistency (Theorem 1): how much of
the error that one classical step makes on true states the learned step removes.

Energies are those of the mass: |u|_M^2 = u.Mu, in which mu_M(L) = -lambda_min of (K + K^T)/2 against M. The paper's mu_2 takes
the plain inner product, in which even pure diffusion on an irregular mesh need not dissipate; both are given. Dirichlet nodes are
left out: the operators act on what is free. All of it runs in double precision on the CPU, whatever the model was trained in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import linalg
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, splu

from dgnet.errors import InputError
from dgnet.models.dgnet import DGNet, cell_pairs, edge_mass
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import GreenSolver, Operators

Tensor = torch.Tensor

DENSE = {True: 2500, False: 1600}  # degrees of freedom up to which all eigenvalues are computed: symmetric, or not
ROUNDING = 1e-9  # what counts as zero, relative to the largest eigenvalue
BLUE, ORANGE, RED = "#2f6db3", "#e8862e", "#c0282d"


# ---------------------------------------------------------------------- one operator


@dataclass(frozen=True, eq=False)
class Pencil:
    """L = -M^-1 K on the free degrees of freedom of one field. M is symmetric positive definite."""

    M: csc_array
    K: csc_array
    dense_limit: int | None = None

    @property
    def n(self) -> int:
        return self.M.shape[0]

    @property
    def symmetric(self) -> bool:
        return abs(self.K - self.K.T).max() <= 1e-12 * max(abs(self.K).max(), 1e-300)

    @property
    def small(self) -> bool:
        return self.n <= (DENSE[self.symmetric] if self.dense_limit is None else self.dense_limit)

    def factor(self) -> Callable[[np.ndarray], np.ndarray]:
        if "solve" not in self.__dict__:
            self.__dict__["solve"] = splu(self.M).solve
        return self.__dict__["solve"]

    def apply(self, x: np.ndarray) -> np.ndarray:
        """L x."""
        return -self.factor()(np.ascontiguousarray(self.K @ x))

    def adjoint(self, x: np.ndarray) -> np.ndarray:
        """L^T x."""
        return -(self.K.T @ self.factor()(np.ascontiguousarray(x)))

    def dense(self) -> np.ndarray:
        return self.apply(np.eye(self.n))

    def spectrum(self, count: int = 40) -> tuple[np.ndarray, bool]:
        """Eigenvalues of L, and whether these are all: otherwise those at both ends and beside the imaginary axis."""
        if self.small:
            if self.symmetric:
                half = 0.5 * (self.K + self.K.T)
                return -linalg.eigh(half.toarray(), self.M.toarray(), eigvals_only=True).astype(complex), True
            return linalg.eigvals(self.dense()), True
        count = min(count, self.n - 2)
        if self.symmetric:
            low = _sparse_eigsh(self.K, self.M, count, sigma=self._shift(), which="LM")
            high = _sparse_eigsh(self.K, self.M, count // 2, which="LA")
            return -np.concatenate([low, high]).astype(complex), False
        identity = LinearOperator((self.n, self.n), matvec=self.apply, dtype=float)
        found = [self._arnoldi(identity, count // 2, lambda z: z)]
        size = float(np.abs(found[0]).max()) if len(found[0]) else float(np.max(abs(self.K).sum(axis=1) / self.M.diagonal()))
        # to the right: Cayley's transform, which sends Re = 0 to the unit circle, so that the rightmost are the largest
        for h in (1 / size, 3 / size, 10 / size):
            lu, B = splu((self.M + h * self.K).tocsc()), self.M - h * self.K
            op = LinearOperator((self.n, self.n), matvec=lambda x, lu=lu, B=B: lu.solve(B @ x), dtype=float)
            found.append(self._arnoldi(op, count // 2, partial(_cayley_inverse, h)))
        if not sum(len(f) for f in found):
            raise InputError("no eigenvalue converged")
        return np.concatenate(found), False

    def _arnoldi(self, op: LinearOperator, count: int, back: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Largest eigenvalues of a function of L, mapped back. Each is checked: SciPy 1.17's Arnoldi can return wrong ones."""
        start = np.random.default_rng(0).normal(size=self.n)
        try:
            values, vectors = eigs(op, count, which="LM", ncv=min(self.n - 1, 5 * count), maxiter=300, tol=1e-9, v0=start)
        except ArpackNoConvergence as error:
            values, vectors = error.eigenvalues, error.eigenvectors
        found = back(values)
        wrong = np.linalg.norm(self.K @ vectors + (self.M @ vectors) * found, axis=0)
        right = np.linalg.norm(self.K @ vectors, axis=0) + np.linalg.norm((self.M @ vectors) * found, axis=0)
        return found[wrong <= 1e-5 * right]

    def _shift(self) -> float:
        """Just below the spectrum of a positive semidefinite K: makes K - shift M regular."""
        return -1e-6 * float(np.max(self.K.diagonal() / self.M.diagonal())) - 1e-300

    def reach(self, angle: float = 0.0) -> tuple[float, np.ndarray]:
        """Largest Re(e^{i angle} w) over the numerical range of L in the M inner product, and where it is reached.

        <x, L x>_M = -x* K x: a Hermitian pencil, sparse like the mesh.
        """
        turn = np.exp(1j * angle)
        H = (-0.5 * (turn * self.K + np.conj(turn) * self.K.T)).tocsc()
        H = H.real if angle % np.pi == 0.0 else H
        if self.n <= 800:
            value, vector = linalg.eigh(H.toarray(), self.M.toarray(), subset_by_index=(self.n - 1, self.n - 1))
            return float(value[0]), vector[:, 0]
        size = float(np.max(abs(self.K).sum(axis=1) / self.M.diagonal())) + 1e-300
        start = np.random.default_rng(0).normal(size=self.n)
        # the top is crowded for diffusion: find it roughly (shifted, as convergence is relative), then invert a little above
        guess = float(eigsh(H + size * self.M, 1, self.M, which="LA", tol=1e-4, v0=start, return_eigenvectors=False)[0]) - size
        value, vector = eigsh(H, 1, self.M, sigma=guess + 5e-4 * size, which="LM", v0=start)
        return float(value[0]), vector[:, 0]

    def numerical_range(self, angles: int = 24) -> np.ndarray:
        """Points on the boundary of the numerical range (M inner product), counter-clockwise; convex."""
        if self.symmetric:
            return np.array([-self.reach(np.pi)[0], self.reach(0.0)[0]], dtype=complex)
        points = []
        for angle in -np.linspace(0, np.pi, angles // 2 + 1):
            x = self.reach(angle)[1]
            points.append(-(x.conj() @ (self.K @ x)) / (x.conj() @ (self.M @ x)))
        upper = np.array(points)
        return np.concatenate([upper, upper[-2:0:-1].conj()])

    def euclidean_mu(self) -> float:
        """mu_2(L) = lambda_max((L + L^T) / 2), the paper's."""
        if self.small:
            L = self.dense()
            return float(linalg.eigh(0.5 * (L + L.T), eigvals_only=True, subset_by_index=(self.n - 1, self.n - 1))[0])
        shape, start = (self.n, self.n), np.random.default_rng(0).normal(size=self.n)
        op = LinearOperator(shape, matvec=lambda x: 0.5 * (self.apply(x) + self.adjoint(x)), dtype=float)
        size = 1.1 * abs(float(eigsh(op, 1, which="LM", tol=1e-2, v0=start, return_eigenvectors=False)[0]))
        shifted = LinearOperator(shape, matvec=lambda x: op.matvec(x) + size * x, dtype=float)
        return float(eigsh(shifted, 1, which="LA", tol=1e-7, v0=start, return_eigenvectors=False)[0]) - size

    def step_norm(self, dt: float) -> float:
        """|(M + dt/2 K)^-1 (M - dt/2 K)| in the energy of the mass.

        For symmetric K that is the largest |1 - z| / |1 + z| with z = dt/2 times an eigenvalue: one at an end of the spectrum.
        """
        if self.symmetric:
            z = -0.5 * dt * np.array([self.reach(0.0)[0], -self.reach(np.pi)[0]])
            if z[0] > -1:
                return float(np.abs((1 - z) / (1 + z)).max())
        A, B = (self.M + 0.5 * dt * self.K).tocsc(), (self.M - 0.5 * dt * self.K).tocsc()
        if self.small:
            S = splu(A).solve(B.toarray())
            root = linalg.cholesky(self.M.toarray(), lower=True)  # |S|_M = |R^T S R^-T|_2
            return float(linalg.norm(root.T @ linalg.solve_triangular(root, S.T, lower=True).T, 2))
        lu, solve = splu(A), self.factor()
        # S^T M S against M
        op = LinearOperator((self.n, self.n), dtype=float, matvec=lambda x: B.T @ lu.solve(self.M @ lu.solve(B @ x), "T"))
        return float(np.sqrt(_top(op, self.M, solve)))


def _cayley_inverse(h: float, z: np.ndarray) -> np.ndarray:
    return (z - 1) / (h * (z + 1))


def _top(op: LinearOperator, M: csc_array, solve: Callable[[np.ndarray], np.ndarray]) -> float:
    """Largest eigenvalue of a positive semidefinite operator against M; roughly where it is crowded."""
    inverse = LinearOperator(M.shape, matvec=solve, dtype=float)
    start = np.random.default_rng(0).normal(size=M.shape[0])
    for tolerance in (1e-10, 1e-4):
        try:
            return float(eigsh(op, 1, M, which="LA", Minv=inverse, v0=start, ncv=60, tol=tolerance, maxiter=300,
                               return_eigenvectors=False)[0])
        except ArpackNoConvergence:
            continue
    raise InputError("the norm of an operator did not converge")


def _sparse_eigsh(K: csc_array, M: csc_array, count: int, **how: Any) -> np.ndarray:
    try:
        return eigsh(K, count, M, return_eigenvectors=False, v0=np.ones(K.shape[0]), **how)
    except ArpackNoConvergence as error:
        return error.eigenvalues


def difference_norm(a: Pencil, b: Pencil) -> float:
    """gamma = |L_b - L_a| in the energy of a's mass."""
    if a.small and b.small:
        root = linalg.cholesky(a.M.toarray(), lower=True)
        N = b.dense() - a.dense()
        return float(linalg.norm(root.T @ linalg.solve_triangular(root, N.T, lower=True).T, 2))

    def square(x: np.ndarray) -> np.ndarray:
        y = a.M @ (b.apply(x) - a.apply(x))
        return b.adjoint(y) - a.adjoint(y)

    if not np.abs(square(np.random.default_rng(0).normal(size=a.n))).max() > 0:
        return 0.0
    return float(np.sqrt(_top(LinearOperator((a.n, a.n), matvec=square, dtype=float), a.M, a.factor())))


@dataclass(frozen=True)
class Sizes:
    """Sizes of two operators and of their difference."""

    frobenius: tuple[float, float]  # L_physics, L_neural
    largest: tuple[float, float]
    rows: np.ndarray  # [n, 2] Euclidean norm of each row


def sizes(a: Pencil, b: Pencil, probes: int = 200) -> Sizes:
    """|L_physics| and |L_neural|: entry by entry, or for large meshes by random signs (rows and Frobenius) and 100 columns."""
    if a.small and b.small:
        L = a.dense()
        N = b.dense() - L
        largest = float(np.abs(L).max()), float(np.abs(N).max())
        rows = np.stack([np.linalg.norm(L, axis=1), np.linalg.norm(N, axis=1)], 1)
    else:
        rng = np.random.default_rng(0)
        z = rng.choice([-1.0, 1.0], (a.n, probes))
        L = a.apply(z)
        N = b.apply(z) - L
        rows = np.stack([np.sqrt((L**2).mean(1)), np.sqrt((N**2).mean(1))], 1)
        few = min(100, a.n)
        columns = np.zeros((a.n, few))
        columns[rng.choice(a.n, few, replace=False), np.arange(few)] = 1.0
        L = a.apply(columns)
        largest = float(np.abs(L).max()), float(np.abs(b.apply(columns) - L).max())
    both = np.linalg.norm(rows, axis=0)
    return Sizes((float(both[0]), float(both[1])), largest, rows)


# ---------------------------------------------------------------------- the study


@dataclass(frozen=True, eq=False)
class FieldStudy:
    """The two operators of one field and their properties."""

    name: str
    free: np.ndarray  # degrees of freedom
    physics: Pencil
    learned: Pencil
    spectra: dict[str, np.ndarray]
    complete: bool
    ranges: dict[str, np.ndarray]
    sizes: Sizes
    numbers: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Consistency:
    """One-step errors per time, in units of u per time: true states against a step from the true state before."""

    steps: np.ndarray
    classical: np.ndarray  # [steps] norms
    learned: np.ndarray
    maps: np.ndarray  # [2, N] root mean squares over trajectories, steps and fields: classical, learned
    numbers: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Study:
    """The result of `study`; `numbers()` for JSON, `output.operators.draw` for pictures."""

    problem: Problem
    fields: list[FieldStudy]
    consistency: Consistency | None
    mass_factor: np.ndarray | None  # [E] where the mass is learned
    edge_change: np.ndarray  # [E] change of the stiffness in units of its diagonal
    numbers_: dict[str, Any] = field(default_factory=dict)

    def numbers(self) -> dict[str, Any]:
        out: dict[str, Any] = {**self.numbers_, "fields": {f.name: f.numbers for f in self.fields}}
        out["stable"] = all(f.numbers["learned"]["stable"] for f in self.fields)
        if self.consistency is not None:
            out["consistency"] = self.consistency.numbers
        return out


def study(model: DGNet, problem: Problem, truth_states: Tensor | None = None, source: Tensor | None = None, *,
          t: float = 0.0, steps: int = 40, dense: int | None = None) -> Study:
    """Operators at time `t` (first trajectory, where flows differ), and consistency on true states [B, T+1, N, F].

    `source` [B, T, N, F] is that of the steps, by the model's `rule`; it goes with the states, whose first time is `t`. At most
    `steps` steps of them are used, evenly spread. `dense` overrides the size up to which all eigenvalues are computed.
    """
    p = model.own_form(doubled(problem))
    twin = copy.deepcopy(model).to("cpu", torch.float64).eval()
    if not model.config.green:
        raise InputError("variant D has no operator to analyse: it does not solve")
    with torch.no_grad():
        ready = twin.prepare(p)
        ops, prior = ready.solver.operators, twin.L_physics(p, ready.graph).operators()
        mass, stiffness = prior.mass, prior.stiffness(t)
        learned_mass, learned_stiffness = ops.mass, ops.stiffness(t)
        shared = max(m.values.shape[1] for m in (mass, stiffness, learned_mass, learned_stiffness)) == 1
        names = ["all"] if shared and p.n_fields > 1 and (p.fixed is None or len(p.fixed) == 1) else list(p.pde.fields)
        fields = []
        for number, name in enumerate(names):
            fixed = np.zeros(p.n, dtype=bool) if p.fixed is None else p.fixed[min(number, len(p.fixed) - 1)].numpy()
            free = np.flatnonzero(~fixed)
            physics, learned = (Pencil(_piece(M, number, free), _piece(K, number, free), dense)
                                for M, K in ((mass, stiffness), (learned_mass, learned_stiffness)))
            fields.append(_field_study(name, free, physics, learned, p.dt))
        consistency = None if truth_states is None else _consistency(twin, p, prior, truth_states, source, steps, t)
        pairs = cell_pairs(p.geometry)
        learns = model.config.structured and model.config.learn_mass
        factor = (learned_mass.values[0, 0, pairs.upper] / edge_mass(p, p.mass)[0]).numpy() if learns else None
        change = (learned_stiffness.values - stiffness.values)[0, 0]
        change = 0.5 * (change[pairs.upper] + change[pairs.lower])
        diagonal = stiffness.values[0, 0].abs()
        local = (diagonal[pairs.first] * diagonal[pairs.second]).sqrt().clamp(min=1e-300)
    about = {"nodes": p.mesh.n_nodes, "degrees_of_freedom": p.n, "dt": p.dt, "time": t, "decoder": model.config.decoder,
             "consistent": p.consistent, "complete_spectrum": all(f.complete for f in fields),
             "mass_factor": None if factor is None else _spread(factor)}
    return Study(p, fields, consistency, factor, (change / local).numpy(), about)


def doubled(p: Problem) -> Problem:
    """The same problem in double precision on the CPU."""
    return Problem(p.mesh, p.pde, p.conditions, p.dt, p.consistent, p.advection_form, torch.float64, "cpu")


def _piece(A: EdgeMatrix, number: int, free: np.ndarray) -> csc_array:
    """The matrix of one field (and the first trajectory) on free degrees of freedom."""
    values = A.values[0, min(number, A.values.shape[1] - 1)]
    whole: csr_array = EdgeMatrix(A.pattern, values).to_scipy()
    return csc_array(whole[free][:, free])


def _field_study(name: str, free: np.ndarray, physics: Pencil, learned: Pencil, dt: float) -> FieldStudy:
    pencils = {"physics": physics, "learned": learned}
    spectra, ranges = {}, {}
    numbers: dict[str, Any] = {}
    complete = True
    for key, pencil in pencils.items():
        spectra[key], whole = pencil.spectrum()
        complete &= whole
        ranges[key] = pencil.numerical_range()
        largest = float(np.abs(spectra[key]).max())
        right, mu, norm = float(spectra[key].real.max()), pencil.reach(0.0)[0], pencil.step_norm(dt)
        # The paper bounds the step by (1 + h mu) / (1 - h mu), h = dt/2. For mu < 0 that does not hold: |1 + hz| / |1 - hz|
        # tends to 1 for stiff z, far left or far up, so that over Re z <= mu its supremum is 1 (von Neumann).
        bound = (1 + 0.5 * dt * mu) / (1 - 0.5 * dt * mu) if dt * mu < 2 else None
        numbers[key] = {
            "rightmost": right, "leftmost": float(spectra[key].real.min()), "highest": float(np.abs(spectra[key].imag).max()),
            "symmetric": bool(pencil.symmetric), "log_norm_mass": mu, "log_norm_euclidean": pencil.euclidean_mu(),
            "step_norm_mass": norm, "step_norm_bound": None if bound is None else max(1.0, bound), "step_norm_bound_paper": bound,
            "stable": bool(right <= ROUNDING * largest), "dissipative": bool(mu <= ROUNDING * largest),
            "contractive": bool(norm <= 1 + 1e-8)}
        n = numbers[key]  # a part of the spectrum can show that an operator is unstable; that it is not takes all of it, or mu
        n["proven"] = bool(whole or n["dissipative"] or not n["stable"])
    size = sizes(physics, learned)
    scale = float(np.abs(spectra["physics"]).max())
    gamma, eta = difference_norm(physics, learned), -numbers["physics"]["log_norm_mass"]
    ratio = size.rows[:, 1] / np.maximum(size.rows[:, 0], 1e-300)
    numbers["theorem2"] = {"gamma": gamma, "eta": eta, "applies": bool(gamma < eta and eta > ROUNDING * scale),
                           "bound": gamma - eta, "log_norm_learned": numbers["learned"]["log_norm_mass"]}
    numbers["size"] = {
        "frobenius_physics": size.frobenius[0], "frobenius_neural": size.frobenius[1],
        "frobenius_ratio": size.frobenius[1] / max(size.frobenius[0], 1e-300),
        "largest_physics": size.largest[0], "largest_neural": size.largest[1],
        "largest_ratio": size.largest[1] / max(size.largest[0], 1e-300), "per_node": _spread(ratio)}
    return FieldStudy(name, free, physics, learned, spectra, complete, ranges, size, numbers)


def _spread(x: np.ndarray) -> dict[str, float]:
    return {"min": float(x.min()), "mean": float(x.mean()), "max": float(x.max())}


def _consistency(model: DGNet, p: Problem, prior: Operators, truth: Tensor, source: Tensor | None, count: int,
                 t: float) -> Consistency:
    """Theorem 1 on data: e = (u(t + dt) - step(u(t))) / dt for the step by L_physics and the learned one, from true states."""
    p.check_state(truth, "the true states")
    rounding = torch.finfo(truth.dtype).eps if truth.dtype.is_floating_point else 0.0
    truth = truth.to("cpu", torch.float64)
    f = None if source is None else source.to("cpu", torch.float64)
    total = truth.shape[1] - 1
    chosen = np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))
    # what the model is not told, the classical step it is compared with is not told either
    known = replace(prior, reaction=p.pde.reaction if model.config.reaction == "known" else None)
    classical = GreenSolver(p, columns=len(truth), operators=known)
    state = model.prepare(p, len(truth), len(chosen))
    errors: dict[str, list[Tensor]] = {"classical": [], "operator": [], "learned": []}
    for k in chosen:
        u, after, at = truth[:, k], truth[:, k + 1], t + float(k) * p.dt
        drive = None if f is None else f[:, k]
        for key, new in (("classical", classical.step(u, drive, at)), ("operator", state.solver.step(u, drive, at)),
                         ("learned", state.step(u, drive, at, model.first_steps))):
            errors[key].append((after - new) / p.dt)
    e = {key: torch.stack(value, 1) for key, value in errors.items()}  # [B, steps, N, F]
    norm = {key: float(value.norm()) for key, value in e.items()}
    removed = e["classical"] - e["learned"]
    cosine = float((removed * e["classical"]).sum() / (removed.norm() * e["classical"].norm()).clamp(min=1e-300))
    over = {key: value.square().sum((0, 2, 3)).sqrt().numpy() for key, value in e.items()}
    maps = np.stack([(e[key].square().mean((0, 1, 3))).sqrt().numpy() for key in ("classical", "learned")])
    rate = float(((truth[:, 1:] - truth[:, :-1])[:, chosen] / p.dt).norm())
    small = max(norm["classical"], 1e-300)
    # what the rounding of the stored states alone makes of a one-step error: two roundings, uniform within half a unit each
    floor = rounding / 6**0.5 * float(truth[:, chosen].norm()) / p.dt / 2**0.5
    each = {name: float(e["learned"][..., i].norm() / e["classical"][..., i].norm().clamp(min=1e-300))
            for i, name in enumerate(p.pde.fields)}
    numbers = {"steps": len(chosen), "trajectories": len(truth), "reaction": model.config.reaction,
               "classical": norm["classical"] / max(rate, 1e-300), "learned": norm["learned"] / max(rate, 1e-300),
               "ratio": norm["learned"] / small, "rounding": floor / small, "ratio_operator": norm["operator"] / small,
               # of the mean over time: what does not cancel from step to step, and so builds up in a rollout
               "ratio_mean": float(e["learned"].mean(1).norm() / e["classical"].mean(1).norm().clamp(min=1e-300)),
               "removed": 1 - norm["learned"] / small, "cosine": cosine, "ratio_per_field": each,
               "ratio_by_step": (over["learned"] / np.maximum(over["classical"], 1e-300)).tolist()}
    return Consistency(chosen, over["classical"], over["learned"], maps, numbers)
