"""Unknown curves of the material: capacity c(u) and diffusion D(u), linear between their points, from trajectories.

First by least squares (`started`). The enthalpy H and Kirchhoff's transform theta are linear in the values of the curves, and so is
what a window of m steps says about them (lumped V, weights 1 / V):

    sum_j c_j V (Phi_j(u_m) - Phi_j(u_0)) + sum_l d_l dt K sum_k w_k Psi_l(u_k)  =  dt sum_k [ S f_k + w_k (g - L u_k) ]

Phi_j, Psi_l: integrals of the hat functions at the points. Where the states are noisy, the regressors are, too, so the result is a
start only. Then through rollouts (`refined`): Gauss-Newton on whole trajectories, in the logarithms x of the values, so that they
stay positive and the enthalpy monotone. The columns of the Jacobian are stepped along (`EnthalpySolver.tangent`).

    minimise  |y - u(x)|^2 + c sum_i alpha_i (second difference i of x)^2 + c |x - x_0|^2 / _FREE^2

alpha_i is what makes the data most likely, averaged over neighbours: a curve may bend sharply where it melts and is smooth
elsewhere. c is the variance of what is left, taken from patches of nodes, since residuals of a rollout hang together. What the data do
not determine stays smooth and within a factor of about e^_FREE of where least squares have put the whole curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.optimize import lsq_linear

from dgnet.errors import SolveError
from dgnet.green import EnthalpySolver
from dgnet.green.material import Materials
from dgnet.green.fold import product
from dgnet.problems import Discretisation
from dgnet.problems.curves import Curve
from dgnet.training.identify import noise_level, patches
from dgnet.training.unknowns import free_nodes

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor

_LEAST = 0.05  # of the constant that fits best: the lower bound of the first curve
_FREE = 2.0  # standard deviation of the logarithm of a value about which nothing is known
_ITERATIONS = 12
_LONGEST = 1.0  # step of a logarithm: a factor of e
_SMOOTHED = 5  # neighbours that share a smoothness
_WORK = 1e9  # nodes times steps times unknowns of a pass: more trajectories than that are left out


def hats(at: Tensor, u: Tensor) -> Tensor:
    """Integrals [..., J] of the hat functions at the points [J], from the first point to u; constant beyond the ends."""
    h = at.diff()
    i = torch.bucketize(u.contiguous(), at[1:-1])
    x = u - at[i]
    inside = x.clamp(min=0.0).minimum(h[i])
    beyond = (x - h[i]).clamp(min=0.0)
    before = x.clamp(max=0.0)
    full = torch.zeros(len(at), len(at), dtype=at.dtype, device=at.device)  # [i, j]: over the intervals before the i-th
    for k in range(len(h)):
        full[k + 1:, k] += 0.5 * h[k]
        full[k + 1:, k + 1] += 0.5 * h[k]
    out = full[i]
    square = 0.5 * inside.square() / h[i]
    out.scatter_add_(-1, i[..., None], (inside - square + before)[..., None])
    return out.scatter_add_(-1, i[..., None] + 1, (square + beyond)[..., None])


class Unknowns:
    """The values of some curves of a problem as one vector of logarithms.

    - `curves`: the unknown ones, as they are in `problem.pde`; their points stay, their values are the start
    """

    def __init__(self, curves: Sequence[Curve]) -> None:
        self.curves = list(curves)
        self.at = [c.points[0] for c in curves]
        counts = [len(a) for a in self.at]
        self.slices = [slice(sum(counts[:k]), sum(counts[:k + 1])) for k in range(len(counts))]
        self.x = torch.cat([c.points[1].detach().log() for c in curves])
        self.prior = self.x  # where nothing is known

    def values(self, x: Tensor) -> list[Tensor]:
        return [x[s].exp() for s in self.slices]

    def inner(self, x: Tensor, curves: Sequence[Curve]) -> Callable[[Curve, Tensor], Tensor | None]:
        """Derivatives of the integrals of the curves by x: those of the hat functions times the values."""
        place = {id(c): k for k, c in enumerate(curves)}

        def found(curve: Curve, u: Tensor) -> Tensor | None:
            k = place.get(id(curve))
            if k is None:
                return None
            out = u.new_zeros(*u.shape, len(x))
            out[..., self.slices[k]] = hats(self.at[k].to(u), u) * x[self.slices[k]].exp().to(u)
            return out

        return found

    @property
    def bends(self) -> Tensor:
        """Second differences of all curves [rows, K], for points at any distance."""
        rows = []
        for at, s in zip(self.at, self.slices):
            h = at.diff()
            scale = float(h.mean()) ** 2
            for i in range(1, len(at) - 1):
                row = torch.zeros(len(self.x), dtype=torch.float64)
                row[s.start + i - 1], row[s.start + i + 1] = 2 / (h[i - 1] * (h[i - 1] + h[i])), 2 / (h[i] * (h[i - 1] + h[i]))
                row[s.start + i] = -2 / (h[i - 1] * h[i])
                rows.append(row * scale)
        return torch.stack(rows) if rows else torch.zeros(0, len(self.x), dtype=torch.float64)

    def groups(self) -> list[slice]:
        """Rows of `bends` of each curve."""
        counts = [max(0, len(at) - 2) for at in self.at]
        return [slice(sum(counts[:k]), sum(counts[:k + 1])) for k in range(len(counts))]


# ---------------------------------------------------------------------- least squares


def started(unknowns: Unknowns, problem: Discretisation, train: Corpus, window: int) -> None:
    """Set the logarithms to those of the bounded least-squares fit; `window`: steps over which the equation is summed."""
    m = Materials.classical(problem)
    count, free = len(unknowns.x), free_nodes(problem)[0]
    matrix, right = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    volume = problem.source_mass.row_sums()[0, 0].double()
    for rows in train.together(problem):
        data = train.part(rows).to(torch.float64)
        for start in range(0, data.steps - window + 1, window):
            x, y = _window(unknowns, m, problem, data, start, window)
            w = (1 / volume)[free]
            flat, load = x[:, free].flatten(0, 1), y[:, free].flatten()
            weight = w.repeat(len(rows))[:, None]
            matrix += (flat * weight).T @ flat
            right += (flat * weight).T @ load
    constant = _constants(unknowns, matrix, right)
    scale = torch.cat([torch.full((len(at),), c, dtype=torch.float64) for at, c in zip(unknowns.at, constant)])
    matrix = matrix * scale * scale[:, None]
    matrix = matrix + 1e-6 * float(matrix.diagonal().mean()) * (unknowns.bends.T @ unknowns.bends + 1e-3 * torch.eye(count).double())
    lower = torch.linalg.cholesky(matrix + 1e-14 * float(matrix.diagonal().max()) * torch.eye(count).double())
    goal = torch.linalg.solve_triangular(lower, (right * scale)[:, None], upper=False)[:, 0]
    found = lsq_linear(lower.T.numpy(), goal.numpy(), bounds=(_LEAST, np.inf)).x
    unknowns.x, unknowns.prior = (torch.tensor(found) * scale).log(), scale.log()


def _window(unknowns: Unknowns, m: Materials, p: Discretisation, data: Corpus, start: int, length: int) -> tuple[Tensor, Tensor]:
    """What a window says: x [B, n, K] times the values is y [B, n]."""
    states = [p.restrict(data.state[:, k])[..., 0] for k in range(start, start + length + 1)]
    x = torch.zeros(*states[0].shape, len(unknowns.x), dtype=torch.float64)
    y = torch.zeros_like(states[0])
    weights = [0.5, *[1.0] * (length - 1), 0.5]

    def add(matrix, curve: Curve | None, part: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> None:
        """A term of the equation: to the regressors where its curve is unknown, else to the other side."""
        nonlocal x, y
        k = next((k for k, c in enumerate(unknowns.curves) if c is curve), None)
        if k is None:
            y = y - (matrix @ part(lambda u: u if curve is None else curve.integral(u)).T).T
            return
        phi = part(lambda u: hats(unknowns.at[k], u))  # [B, n, J]
        moved = matrix @ phi.transpose(0, 1).flatten(1)
        x[..., unknowns.slices[k]] += moved.view(phi.shape[1], phi.shape[0], -1).transpose(0, 1)

    for term in m.mass:
        add(term.matrix, term.curve, lambda of: of(states[-1]) - of(states[0]))
    t = data.clock(p) + (start + 0.5 * length) * p.dt
    for term in (*m.spread, *m.carried(t), *m.linear(t)):
        add(term.matrix, term.curve, lambda of: p.dt * torch.stack([w * of(u) for w, u in zip(weights, states)]).sum(0))
    for k in range(start, start + length):
        load = m.load(data.clock(p) + (k + 0.5) * p.dt)
        if load is not None:
            y = y + p.dt * load[..., 0]
        if data.source_average is not None:
            y = y + p.dt * product(m.source.to(torch.float64), p.restrict(data.source_average[:, k]))[..., 0]
    return x, y


def _constants(unknowns: Unknowns, matrix: Tensor, right: Tensor) -> list[float]:
    """The constant values of the curves that fit best."""
    sums = torch.zeros(len(unknowns.x), len(unknowns.at), dtype=torch.float64)
    for k, s in enumerate(unknowns.slices):
        sums[s, k] = 1.0
    A, b = sums.T @ matrix @ sums, sums.T @ right
    size = A.diagonal().sqrt().clamp(min=1e-300)
    found = lsq_linear((A / size / size[:, None]).numpy(), (b / size).numpy(), bounds=(1e-12, np.inf)).x / size.numpy()
    return [max(float(c), 1e-300) for c in found]


# ---------------------------------------------------------------------- rollouts


@dataclass(frozen=True, eq=False)
class Pass:
    """All trajectories rolled out once: J^T W J [K, K], gradients of patches [C, K], objective, residuals."""

    matrix: Tensor
    scores: Tensor
    misfit: float
    residuals: Tensor


class Refinement:
    """Gauss-Newton on whole trajectories from a start; `build(values)` makes the problem with these values of the curves."""

    def __init__(self, unknowns: Unknowns, build: Callable[[Sequence[Tensor]], tuple[Discretisation, list[Curve]]],
                 train: Corpus) -> None:
        self.unknowns, self.build, self.train = unknowns, build, train
        self.base, self.first = build(unknowns.values(unknowns.x))[0], unknowns.prior
        self.patch = patches(self.base)
        self.bends, self.c = unknowns.bends, 0.0
        self.alpha = torch.full((len(self.bends),), 1.0, dtype=torch.float64)

    def at(self, x: Tensor) -> Pass:
        """Roll out; a SolveError where that is not finite."""
        p, curves = self.build(self.unknowns.values(x))
        inner, count = self.unknowns.inner(x, curves), len(x)
        matrix, misfit = torch.zeros(count, count, dtype=torch.float64), 0.0
        scores, residuals = [], []
        for rows in self.train.together(p):
            data = self.train.part(rows).to(torch.float64)
            solver, t, (free, held) = EnthalpySolver(p), data.clock(p), free_nodes(p)
            u = p.restrict(data.state[:, 0])
            d = u.new_zeros(*u.shape, count)
            score, rests = matrix.new_zeros(len(data), int(self.patch.max()) + 1, count), []
            for k in range(data.steps):
                now, f = t + k * p.dt, None if data.source_average is None else data.source_average[:, k]
                with torch.no_grad():
                    after = p.restrict(solver.step(p.expand(u), f, now))
                d, u = solver.tangent(u, after, d, now, inner), after
                rest = (p.restrict(data.state[:, k + 1]) - u)[:, free] * held
                misfit += float(rest.square().sum())
                J = d[:, free] * held[..., None]
                matrix += J.flatten(0, 2).T @ J.flatten(0, 2)
                score.index_add_(1, self.patch[free], (J * rest[..., None]).sum(2))
                rests.append(rest)
            solver.finish()
            scores.append(score.flatten(0, 1))
            residuals.append(torch.stack(rests, 1))
        if not math.isfinite(misfit):
            raise SolveError("a rollout of the material's fit is not finite")
        return Pass(matrix, torch.cat(scores), misfit, torch.cat(residuals))

    def penalty(self) -> Tensor:
        return self.bends.T @ (self.alpha[:, None] * self.bends) + torch.eye(len(self.first)).double() / _FREE**2

    def objective(self, found: Pass, x: Tensor) -> float:
        bent, away = self.bends @ x, x - self.first
        return found.misfit + self.c * float((self.alpha * bent.square()).sum() + away.square().sum() / _FREE**2)

    def step(self, found: Pass, x: Tensor) -> Tensor:
        """The next logarithms, with the c and alpha that go with them."""
        H, spread, groups = found.matrix, found.scores.T @ found.scores, len(found.scores)
        right = found.scores.sum(0) + H @ x
        if not self.c:
            self.c = max(float(found.residuals.square().mean()), 1e-300)
        for _ in range(30):
            inverse = torch.linalg.inv(H + self.c * self.penalty())
            target = inverse @ (right + self.c * self.first / _FREE**2)
            used = max(float((inverse * H).sum()), 1e-3)
            old = self.c
            self.c = max(float((inverse * spread).sum()) / used * groups / max(groups - used, 1.0), 1e-300)
            square = (self.bends @ target).square() + self.c * (self.bends @ inverse * self.bends).sum(1)
            for rows in self.unknowns.groups():
                own = square[rows]
                wide = torch.nn.functional.pad(own[None], (_SMOOTHED // 2, _SMOOTHED // 2), mode="replicate")[0]
                self.alpha[rows] = 1 / wide.unfold(0, _SMOOTHED, 1).mean(-1).clamp(min=1e-8)
            if abs(math.log(self.c / old)) < 0.02:
                break
        return target

    def run(self) -> None:
        """Descend; sets the unknowns."""
        x = self.unknowns.x
        found = self.at(x)
        for k in range(_ITERATIONS):
            delta, better = self.step(found, x) - x, None
            delta = delta * min(1.0, _LONGEST / max(float(delta.abs().max()), 1e-300))
            for _ in range(6):
                try:
                    better = self.at(x + delta)
                except SolveError:
                    better = None
                if better is not None and self.objective(better, x + delta) <= self.objective(found, x):
                    break
                better, delta = None, 0.5 * delta
            if better is None:
                break
            x, found = x + delta, better
            if k and float(delta.abs().max()) < 0.02:
                break
        self.unknowns.x, self.last = x, found
        self.deviation = (self.c * torch.linalg.inv(found.matrix + self.c * self.penalty())).diagonal().sqrt()
