"""Unknown curves of the material: capacity c(u) and diffusion D(u), linear between their points, from trajectories.

First by least squares (`start`). The enthalpy H and Kirchhoff's transform theta are linear in the values of the curves, and so is
what a window of m steps says about them (lumped V, weights 1 / V):

    sum_j c_j V (Phi_j(u_m) - Phi_j(u_0)) + sum_l d_l dt K sum_k w_k Psi_l(u_k)  =  dt sum_k [ S f_k + w_k (g - L u_k) ]

Phi_j, Psi_l: integrals of the hat functions at the points. Where the states are noisy, the regressors are, too, so the result is a
start only. Then through rollouts: Gauss-Newton on whole trajectories, in the logarithms x of the values, so that they
stay positive and the enthalpy monotone. The columns of the Jacobian are stepped along (`EnthalpySolver.tangent`). Noise of the
first states is smoothed away as far as it is noise, else the curves would do that.

    minimise  |y - u(x)|^2 + c sum_i alpha_i (second difference i of x)^2 + c |x|^2 / _FREE^2

x = 0 is the constant that fits best. alpha_i is what makes the data most likely, averaged over neighbours: a curve may bend
sharply where it melts and is smooth elsewhere. c is the variance of what is left, taken from patches of nodes, since residuals of a
rollout hang together. What the data do not determine stays smooth and near the constant. Covariance: c times the inverse of the
normal matrix for the noise, and what the curves would change if the spacing were halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.optimize import lsq_linear

from dgnet.discovery.least_squares import Prior, least_squares
from dgnet.discovery.residuals import Sweep, free_nodes, patches, quiet_noise, sweep
from dgnet.errors import InputError, SolveError
from dgnet.models import Classical, Refined
from dgnet.models.dgnet import DGNet, Material, PreparedDGNet
from dgnet.operators import EdgeMatrix
from dgnet.problems import PDE, Problem
from dgnet.problems.curves import Curve
from dgnet.scoring.judge import predict
from dgnet.stepping import EnthalpySolver, GreenSolver, product

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor

_LEAST = 0.05  # of the constant that fits best: the lower bound of the first curve
_FREE = 1.0  # standard deviation of the logarithm of a value about which nothing is known
_ITERATIONS = 12
_LONGEST = 1.0  # step of a logarithm: a factor of e
_SMOOTHED = 5  # neighbours that share a smoothness
_SETTLED = 0.03  # a step of the logarithms after which nothing more is to come
_WINDOWS = (1, 4, 16, 64)  # steps over which the equation may be summed
_FINEST = 100_000  # nodes of the refined mesh, up to which the mesh's own error is estimated
_WORK = 1e9  # nodes times steps times unknowns of a pass: more trajectories than that are left out


def identify_material(model: Any, base: Problem, train: Corpus) -> float:
    """Set the curves and their standard deviations; returns the mean squared misfit of rollouts, against that of constants."""
    material = model.part(Material) if isinstance(model, DGNet) else None
    if material is None:
        raise InputError("only a DGNet with unknown curves of the material can identify them")
    with torch.no_grad():
        unknowns = MaterialCurves(model, material, base, train)
        if not bool(unknowns.x.any()):
            start(unknowns)
        x = unknowns.x
        constants = unknowns.misfit(torch.zeros_like(x))
        found = least_squares(unknowns.at, x, unknowns.prior, rounds=_ITERATIONS, longest=_LONGEST, settled=_SETTLED)
        unknowns.put(found.theta)
        last = unknowns.at(found.theta, _bias(unknowns))
        bias = found.prior.inverse(last.matrix) @ last.aside
        covariance = found.prior.covariance(last.matrix) + bias[:, None] * bias
        for name, s in unknowns.slices.items():
            unknowns.curves[name].covariance.copy_(covariance[s, s])
    return found.point.square / max(constants, 1e-300)


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


class MaterialCurves:
    """The logarithms of all curves as one vector x [K], and the rollouts of the model with them."""

    def __init__(self, model: DGNet, material: Material, base: Problem, train: Corpus) -> None:
        self.model, self.base, self.curves = model, base, material.curves()
        counts = [len(c.values) for c in self.curves.values()]
        self.slices = {name: slice(sum(counts[:k]), sum(counts[:k + 1])) for k, name in enumerate(self.curves)}
        most = max(1, int(_WORK / (train.state[0].numel() * sum(counts))))
        self.train = train.part(range(min(most, len(train)))).to(torch.float64)
        self.patch, self.begin = patches(base).to(train.state.device), calmed(base, self.train)

    @property
    def x(self) -> Tensor:
        return torch.cat([c.values.detach() for c in self.curves.values()])

    def put(self, x: Tensor) -> None:
        for name, s in self.slices.items():
            self.curves[name].values.copy_(x[s])

    def solver(self, data: Corpus) -> EnthalpySolver:
        """That of the model, with the values of now."""
        state: PreparedDGNet = self.model.prepare(data.problem(self.base), len(data), data.steps, careful=True)
        assert isinstance(state.main, EnthalpySolver)
        return state.main

    def inner(self, curve: Curve, u: Tensor) -> Tensor | None:
        """Derivatives of the integral of a curve by x: those of the hat functions, times the values."""
        own = self.curves.get(curve.name)
        if own is None:
            return None
        out = u.new_zeros(*u.shape, len(self.x))
        out[..., self.slices[curve.name]] = hats(own.at, u) * curve.points[1]
        return out

    def misfit(self, x: Tensor) -> float:
        """Mean squared misfit of whole rollouts; infinite where they break down."""
        self.put(x)
        try:
            found = float((predict(self.model, self.base, self.train) - self.train.state).square().mean())
        except SolveError:
            return math.inf
        return found if math.isfinite(found) else math.inf

    def at(self, x: Tensor, change: Tensor | None = None) -> Sweep:
        """Whole rollouts from calmed starts; a SolveError where one is not finite."""
        self.put(x)
        return sweep(self.model, self.base, self.train, len(x), self.tangents, self.patch, unit=x.new_ones(1), begin=self.begin,
                     change=change, careful=True)

    def tangents(self, solver: EnthalpySolver, u: Tensor, after: Tensor, d: Tensor, t: float) -> Tensor:
        return solver.tangent(u, after, d, t, self.inner)

    @property
    def prior(self) -> Prior:
        count = len(self.x)
        return Prior(count, tuple(self.slices.values()), torch.full((count,), _FREE).to(self.x), _SMOOTHED, torch.ones(
            sum(s.stop - s.start - 2 for s in self.slices.values())).to(self.x))


# ---------------------------------------------------------------------- least squares


def start(unknowns: MaterialCurves) -> None:
    """Bounded least squares; of several windows those values with the best rollouts. Sets what x = 0 stands for as well."""
    found = []
    for window in (w for w in _WINDOWS if w == 1 or w <= unknowns.train.steps // 2):
        matrix, right = _normal(unknowns, window)
        constants = _constants(unknowns, matrix, right)
        x = _bounded(unknowns, matrix, right, constants)
        _sizes(unknowns, constants)
        found.append((unknowns.misfit(x), x, constants))
    best = min(found, key=lambda one: one[0])
    _sizes(unknowns, best[2])
    unknowns.put(best[1])


def _sizes(unknowns: MaterialCurves, constants: np.ndarray) -> None:
    for curve, size in zip(unknowns.curves.values(), constants):
        curve.size.fill_(float(size))


def _normal(unknowns: MaterialCurves, window: int) -> tuple[Tensor, Tensor]:
    """X^T W X [K, K] and X^T W y [K], by the values themselves."""
    train, base = unknowns.train, unknowns.base
    count, device = len(unknowns.x), train.state.device
    right = torch.zeros(count, dtype=torch.float64, device=device)
    matrix = right.new_zeros(count, count)
    for rows in train.together(base):
        data = train.part(rows)
        solver = unknowns.solver(data)
        p, free = solver.problem, free_nodes(solver.problem)[0]
        weight = (1 / p.source_mass.row_sums()[0, 0].double())[free].repeat(len(rows))
        for begin in range(0, data.steps - window + 1, window):
            x, y = _window(unknowns, solver, data, begin, window)
            flat = x[:, free].flatten(0, 1)
            weighted = (flat * weight[:, None]).T
            matrix += weighted @ flat
            right += weighted @ y[:, free].flatten()
    return matrix.cpu(), right.cpu()


def _window(unknowns: MaterialCurves, solver: EnthalpySolver, data: Corpus, begin: int, length: int) -> tuple[Tensor, Tensor]:
    """What a window says: x [B, n, K] times the values is y [B, n]."""
    p, m, t = solver.problem, solver.materials, data.clock(unknowns.base)
    states = [p.restrict(data.state[:, k]) for k in range(begin, begin + length + 1)]
    weights = [0.5, *[1.0] * (length - 1), 0.5]
    x, y = states[0].new_zeros(*states[0].shape[:2], len(unknowns.x)), torch.zeros_like(states[0][..., 0])

    def over_time(of: Callable[[Tensor], Tensor]) -> Tensor:
        return p.dt * torch.stack([w * of(u) for w, u in zip(weights, states)]).sum(0)

    def add(A: EdgeMatrix, curve: Curve | None, part: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> None:
        """A term of the equation: to the regressors where its curve is unknown, else to the other side."""
        nonlocal y
        own = None if curve is None else unknowns.curves.get(curve.name)
        if own is None or curve is None:
            y = y - (A @ part(lambda u: u if curve is None else curve.integral(u))[..., 0].T).T
            return
        phi = part(lambda u: hats(own.at, u[..., 0])).transpose(0, 1)  # [n, B, J]
        x[..., unknowns.slices[curve.name]] += (A @ phi.flatten(1)).view_as(phi).transpose(0, 1)

    for term in m.mass:
        add(term.matrix, term.curve, lambda of: of(states[-1]) - of(states[0]))
    now, whole = t + begin * p.dt, length * p.dt
    for term in (*m.spread, *m.carried(now + 0.5 * whole), *m.linear(now, whole)):
        add(term.matrix, term.curve, over_time)
    for k in range(begin, begin + length):
        load = m.load(t + k * p.dt, p.dt)
        y = y if load is None else y + p.dt * load[..., 0]
    if data.source_average is not None:
        y = y + p.dt * product(m.source, p.restrict(data.source_average[:, begin:begin + length].sum(1)))[..., 0]
    if m.reaction is not None:
        y = y + product(m.plain, over_time(m.reaction))[..., 0]
    return x, y


def _constants(unknowns: MaterialCurves, matrix: Tensor, right: Tensor) -> np.ndarray:
    """The constant values of the curves that fit best; one that would be negative is as small as it may be."""
    sums = torch.zeros(len(right), len(unknowns.slices), dtype=torch.float64)
    for k, s in enumerate(unknowns.slices.values()):
        sums[s, k] = 1.0
    A, b = sums.T @ matrix @ sums, sums.T @ right
    size = A.diagonal().sqrt().clamp(min=1e-150)
    found = lsq_linear((A / size / size[:, None]).numpy(), (b / size).numpy(), bounds=(0, np.inf)).x / size.numpy()
    given = np.array([float(c.size) for c in unknowns.curves.values()])
    return np.where(found > 1e-6 * np.abs(found).max(), found, given)


def _bounded(unknowns: MaterialCurves, matrix: Tensor, right: Tensor, constants: np.ndarray) -> Tensor:
    """Logarithms of the values over the constants, with a slight penalty on bends."""
    scale = torch.cat([torch.full((s.stop - s.start,), float(c), dtype=torch.float64)
                       for s, c in zip(unknowns.slices.values(), constants)])
    A, bends, eye = matrix * scale * scale[:, None], unknowns.prior.bends.cpu(), torch.eye(len(scale), dtype=torch.float64)
    for s in unknowns.slices.values():  # each curve against its own weight in the data
        rows = bends[:, s].any(1)
        A = A + 1e-6 * float(A.diagonal()[s].mean()) * bends[rows].T @ bends[rows]
        A[s, s] += 1e-9 * float(A.diagonal()[s].mean()) * eye[s, s]
    factor = torch.linalg.cholesky(A + 1e-14 * float(A.diagonal().max()) * eye)
    goal = torch.linalg.solve_triangular(factor, (right * scale)[:, None], upper=False)[:, 0]
    found = torch.tensor(lsq_linear(factor.T.numpy(), goal.numpy(), bounds=(_LEAST, np.inf)).x)
    return found.log().to(unknowns.train.state.device)


# ---------------------------------------------------------------------- rollouts


def _bias(unknowns: MaterialCurves) -> Tensor:
    """What half the spacing changes in rollouts, times 4/3 (second order), nothing else learned; zero where it costs too much."""
    material, mesh = unknowns.model.part(Material), unknowns.base.mesh
    assert material is not None
    if mesh.n_nodes * 2**mesh.dim > _FINEST:
        return torch.zeros_like(unknowns.train.state)
    problem = material.told(unknowns.base)
    own = replace(unknowns.train, state=torch.cat([unknowns.begin[:, None], unknowns.train.state[:, 1:]], 1))
    plain = Classical(unknowns.model.rival_mass)
    return 4 / 3 * (predict(Refined(plain), problem, own) - predict(plain, problem, own))


def calmed(base: Problem, train: Corpus) -> Tensor:
    """First states [B, N, F], smoothed in space by diffusion, by as much as they are noisy and no more."""
    noise, u = quiet_noise(train.state), train.state[:, 0]
    found, around = u, [c for c in base.conditions if c.role == "periodic"]
    if noise <= 1e-6 * float(train.spread.max()):
        return found
    spacing = float(np.mean(np.linalg.norm(np.diff(base.mesh.points[base.mesh.edges], axis=1)[:, 0], axis=1)))
    for k in range(-2, 8):
        smooth = Problem(base.mesh, PDE(base.pde.fields, diffusion=1.0), around, spacing**2 * 4.0**k, device=base.device)
        new = GreenSolver(smooth, theta=1.0).step(u)
        if float((new - u).square().mean().sqrt()) > noise:
            break
        found = new
    return found
