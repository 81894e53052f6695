"""Galerkin schemes in time for a linear problem, of any order: a truth for quadratic elements must be finer in time, too.

    M u' = -K u + F(t),    u = w(t) on held nodes,    v = u - w:    M v' = -K v + F - M w' - K w    on the free ones

dG(k): v is a polynomial of degree k in each step, discontinuous between steps; order 2k + 1, and what the operator damps goes to
zero however long the step is (L-stable: Pade (k, k+1) of the exponential). cG(k): continuous, of degree k, tested with degree
k - 1; order 2k, cG(1) is Crank-Nicolson. Everything that drives the problem enters by its Legendre moments over the step,

    F_i = int_0^1 P_i(2s - 1) F(t + s dt) ds

so that a pulse is taken up whole. The blocks of a step are diagonalised once: real and complex shifts of one pencil, each a sparse
factorisation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.polynomial import legendre
from scipy.sparse import csc_array, csr_array
from scipy.sparse.linalg import SuperLU, splu

from dgnet.problems import Problem

Array = np.ndarray
Shape = Callable[[torch.Tensor], torch.Tensor]
"""Points [n, d] -> values [B, n, 1]."""

_GAUSS = 6  # points in time for each panel of the moments
_MOST = 4_000_000  # values of a source that are made at once


def polynomials(count: int, s: Array) -> tuple[Array, Array]:
    """P_0 .. P_count-1 of Legendre on [0, 1] and their slopes at s [q]: [count, q] each."""
    eye = np.eye(count)
    values = [legendre.legval(2 * s - 1, row) for row in eye]
    slopes = [2 * legendre.legval(2 * s - 1, legendre.legder(row)) for row in eye]
    return np.stack(values), np.stack(slopes)


@dataclass(frozen=True, eq=False)
class Shift:
    """One shift of the pencil: its solutions x of (l M + dt K) x = p . R add (q x) to the coefficients of the step."""

    solve: Callable[[Array], Array]
    gather: Array  # p
    spread: Array  # q, doubled where it stands for a conjugate pair

    @classmethod
    def of(cls, M: csr_array, K: csr_array, shift: complex, gather: Array, spread: Array) -> Shift:
        real = abs(shift.imag) < 1e-12
        matrix = (shift.real if real else shift) * M + K
        lu: SuperLU = splu(csc_array(matrix), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}, diag_pivot_thresh=0.01)
        return cls(lu.solve, gather.real, spread.real) if real else cls(lu.solve, gather, 2 * spread)


class Scheme:
    """Steps of length dt with M and dt K of the free nodes: `kind` is "c" or "d", `degree` that of the polynomial."""

    def __init__(self, M: csr_array, K: csr_array, kind: str, degree: int) -> None:
        self.M, self.K, self.kind = M, K, kind
        self.count = count = degree if kind == "c" else degree + 1
        s, w = np.polynomial.legendre.leggauss(12)
        s, w = 0.5 * (1 + s), 0.5 * w
        P, dP = polynomials(count, s)
        mass = (P * w) @ P.T
        if kind == "c":  # v = v0 + dt times the integral of a polynomial of degree k - 1, tested with the same
            integrals = np.stack([(polynomials(count, a * s)[0] * (a * w)).sum(1) for a in s], 1)  # [count, q]
            time, space = mass, (P * w) @ integrals.T
        else:
            left = (-1.0) ** np.arange(count)
            time, space = (P * w) @ dP.T + np.outer(left, left), mass
        shifts, Q = np.linalg.eig(np.linalg.solve(space, time))
        gather = np.linalg.inv(Q) @ np.linalg.inv(space)
        self.parts = [Shift.of(M, K, l, gather[k], Q[:, k]) for k, l in enumerate(shifts) if l.imag > -1e-12]

    def step(self, v: Array, moments: Array) -> Array:
        """v [n, B] and dt times the moments of the force [m, n, B] -> v at the end of the step."""
        right = moments[:self.count].copy()
        if self.kind == "c":
            right[0] -= self.K @ v
        else:
            right += ((-1.0) ** np.arange(self.count))[:, None, None] * (self.M @ v)
        found = np.zeros_like(right)
        for part in self.parts:
            x = part.solve(np.ascontiguousarray(np.tensordot(part.gather, right, 1)))
            found += (part.spread[:, None, None] * x).real
        total: Array = found.sum(0)  # every P_i is 1 at the end, and so is its integral for the first one alone
        return v + found[0] if self.kind == "c" else total


@dataclass(frozen=True, eq=False)
class Forcing:
    """What drives a problem with one field, as moments over steps of length dt."""

    problem: Problem
    source: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None
    dt: float
    panels: int = 1
    averages: bool = False  # all that is known of a source is its average over the step

    def moments(self, steps: int, batch: int, count: int = 3) -> Iterator[tuple[Array, Array, Array]]:
        """Of each step: dt times the moments [count, n, B] of M w' and K w taken off the load, and w at both of its ends [n]."""
        p = self.problem
        s, w = np.polynomial.legendre.leggauss(_GAUSS)
        s = np.concatenate([(k + 0.5 * (1 + s)) / self.panels for k in range(self.panels)])
        w = np.tile(0.5 * w / self.panels, self.panels)
        P, dP = polynomials(count, s)
        M, K, S = (A.to_scipy() for A in (p.mass, p.stiffness(0.0), p.source_mass))
        x = torch.tensor(p.geometry.nodes)
        block = max(1, int(_MOST / (len(s) * len(x) * batch)))
        rest = p.load(0.0)
        before = self.held(0.0)
        for first in range(0, steps, block):
            last = min(first + block, steps)
            times = (np.arange(first, last)[:, None] + s) * self.dt
            found = None
            if self.source is not None:
                f = self.source(x, torch.tensor(times.ravel()))[..., 0].numpy().reshape(-1, last - first, len(s), len(x))
                found = np.einsum("btqn,iq,q->tinb", f, P, w, optimize=True)
                if self.averages:
                    found[:, 1:] = 0.0
            for k in range(first, last):
                out = np.zeros((count, p.n, batch))
                if found is not None:
                    for i in range(count):
                        out[i] += S @ found[k - first, i]
                if rest is not None:
                    out[0] += rest.numpy()
                after = before
                if p.fixed is not None:
                    after = self.held((k + 1) * self.dt)
                    now = (np.stack([before + (after - before) * a for a in s], 1) if self.averages
                           else np.stack([self.held(t) for t in times[k - first]], 1))  # [n, q]
                    for i in range(count):
                        slope = (after - (-1.0) ** i * before) - now @ (w * dP[i])
                        out[i] -= (M @ slope / self.dt + K @ (now @ (w * P[i])))[:, None]
                yield self.dt * out, before, after
                before = after

    def held(self, t: float) -> Array:
        """w(t) [n]: zero but on held nodes."""
        w = self.problem.fixed_values(t)
        return np.zeros(self.problem.n) if w is None else w[:, 0].numpy()


def march(problem: Problem, start: Shape, source: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None, steps: int,
          substeps: int = 1, kind: str = "d", degree: int = 2, first: int = 0, panels: int = 1, averages: bool = False) -> Array:
    """States [B, steps + 1, n] of a linear problem with one field, on its own degrees of freedom.

    `first` substeps of dG(1) go before those of the scheme. `averages`: sources are known by their averages and held values at the
    ends of steps alone, as a solver is told them.
    """
    p, dt = problem, problem.dt / substeps
    free = np.flatnonzero(~(np.zeros(p.n, bool) if p.fixed is None else p.fixed[0].numpy()))
    M, K = (csr_array(A.to_scipy().tocsr()[free][:, free]) for A in (p.mass, p.stiffness(0.0)))
    K = K * dt
    u0 = start(torch.tensor(p.geometry.nodes))[..., 0].numpy().T  # [n, B]
    usual = Scheme(M, K, kind, degree)
    begin = Scheme(M, K, "d", 1) if first else usual
    states = [u0]
    v: Array | None = None
    for k, (moments, w0, w1) in enumerate(Forcing(p, source, dt, panels, averages).moments(steps * substeps, u0.shape[1])):
        v = (u0 - w0[:, None])[free] if v is None else v
        v = (begin if k < first else usual).step(v, moments[:, free])
        if (k + 1) % substeps == 0:
            u = np.repeat(w1[:, None], u0.shape[1], 1)
            u[free] += v
            states.append(u)
    return np.stack(states).transpose(2, 0, 1)
