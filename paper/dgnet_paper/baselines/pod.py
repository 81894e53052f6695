"""POD-Galerkin (Sirovich 1987; Kunisch and Volkwein 2001): the classical solver in a subspace of training states.

    M_r da/dt = -K_r(t) a + V^T [ S (f + r(u)) + g - K c ] - V^T M dc/dt,      M_r = V^T M V, K_r = V^T K V

stepped by Crank-Nicolson with dense matrices of r x r. It is told the whole equation, as the classical solver is. The known
reaction is evaluated at the nodes (predictor and corrector, as there), sources and loads are projected. A flow is projected on
modes of the training flows, v = v_0 + sum b_j v_j, so that K_r = K_0 + sum b_j C_j is linear in the few numbers b_j(t).

The basis holds, beside the states, what the training sources make of a state at rest within one step. Fitted: the modes, from the
training states alone; how many is chosen by held-out trajectories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dgnet.data import Corpus
from dgnet.errors import InputError
from dgnet.operators import EdgeMatrix
from dgnet.problems import Problem
from dgnet.stepping import GreenSolver
from dgnet.stepping.fold import product
from dgnet_paper.baselines.adapter import Settings
from dgnet_paper.baselines.reduced import Reduced, Subspace, thinned

Tensor = torch.Tensor

TAILS = (1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12, 0.0)  # shares of the energy that a basis may leave out


@dataclass(frozen=True)
class PODConfig(Settings):
    modes: int = 200  # at most
    flow_modes: int = 40


@dataclass(frozen=True, eq=False)
class Galerkin(Subspace):
    """Projected operators, acting on rows."""

    carry: Tensor  # [nF, R] state -> coordinates one step later; with a flow: -> coordinates now
    gather: Tensor  # [nF, R] rates at nodes -> what they add to the coordinates in a step; with a flow: to the right-hand side
    still: Tensor | None  # [R] what loads and centre add, unless they change in time
    inverse: Tensor  # [R, R] of M_r + dt/2 K_r
    mass: Tensor | None = None  # with a flow: M_r [R, R]
    stiffness: Tensor | None = None  # [1 + q, R, R] that of rest and mean flow, then of each mode of the flow
    shift: Tensor | None = None  # [1 + q, R] the same of the centre


class POD(Reduced[Galerkin]):
    name = "pod"

    def __init__(self, config: PODConfig, problem: Problem) -> None:
        if problem.exchange_changes:
            raise InputError("pod does not take a convective coefficient that changes in time")
        if callable(problem.pde.velocity) and problem.advection_form == "upwind":
            raise InputError("pod needs an advection that is linear in the flow: galerkin or skew, not upwind")
        super().__init__(config.modes, config.flow_modes, problem)
        self.config = config

    def prepare(self, problem: Problem, batch: int = 1, steps: int = 1000, careful: bool = False) -> Galerkin:
        own, p, dt = self.subspace(problem), problem.double, problem.dt
        still = p.with_velocity(None) if self.moving else p

        def on_basis(A: EdgeMatrix) -> Tensor:
            """V^T A [R, nF]."""
            return product(A.mT, own.wide.unflatten(1, (p.n, -1))).flatten(1)

        V, S, K = own.wide.T, on_basis(p.source_mass), on_basis(still.stiffness(0.0))
        mass = on_basis(p.mass) @ V + torch.diag((V == 0).all(0).to(V.dtype))  # a field may have fewer modes than others
        if self.moving:
            return self._in_a_flow(own, still, mass, K, S, on_basis)
        inverse = torch.linalg.inv(mass + 0.5 * dt * (K @ V))
        step = torch.eye(len(inverse), dtype=V.dtype, device=V.device) - dt * inverse @ (K @ V)
        ready = Galerkin(self, problem, own.centre, own.wide, own.narrow, own.narrow @ step.T, dt * (inverse @ S).T, None,
                         inverse)
        return self._rounded(replace(ready, still=None if p.data_changes else self._forcing(ready, 0.0) @ inverse.T))

    def _in_a_flow(self, own: Subspace, still: Problem, mass: Tensor, K: Tensor, S: Tensor,
                   on_basis: Callable[[EdgeMatrix], Tensor]) -> Galerkin:
        problem = own.problem
        shape = (problem.mesh.n_nodes, problem.mesh.dim)
        parts, shifts, c = [], [], own.centre.double().flatten()
        for k, v in enumerate(torch.cat([self.flow_centre[None], self.flow_basis.T]).double()):
            moved = still.with_velocity(v.reshape(shape)).advection()
            assert moved is not None
            C = on_basis(moved) + (K if k == 0 else 0.0)
            parts.append(C @ own.wide.T)
            shifts.append(C @ c)
        ready = Galerkin(self, problem, own.centre, own.wide, own.narrow, own.narrow, problem.dt * S.T, None, mass, mass,
                         torch.stack(parts), torch.stack(shifts))
        load = still.load(0.0)
        constant = None if load is None else problem.dt * (own.wide @ load.expand(-1, self.fields).flatten())
        return self._rounded(replace(ready, still=None if problem.data_changes else constant))

    @staticmethod
    def _rounded(state: Galerkin) -> Galerkin:
        """In the problem's precision: what is left to do is a handful of dense products."""
        rounded: dict[str, Any] = {k: v.to(state.problem.dtype) for k, v in vars(state).items() if isinstance(v, Tensor)}
        return replace(state, **rounded)

    def _forcing(self, state: Galerkin, t: float) -> Tensor:
        """dt V^T (g - K c) - V^T M (c+ - c) [R] or [b, R], in double precision: what does not depend on the coordinates."""
        p = state.problem.double
        before, after = (self.about(state, s).double() for s in (t, t + p.dt))
        force = -product(p.stiffness(t, p.dt), (0.5 * (before + after))[None].expand(self._batch(p, t), -1, -1))
        load = p.load(t, p.dt)
        if load is not None:
            force = force + load
        if p.data_changes:
            force = force - product(p.mass, (after - before)[None]) / p.dt
        return p.dt * force.flatten(1) @ state.wide.double().T

    @staticmethod
    def _batch(p: Problem, t: float) -> int:
        v = p.pde.velocity(t) if callable(p.pde.velocity) else None
        return v.shape[0] if isinstance(v, Tensor) and v.dim() == 3 else 1

    def advance(self, state: Galerkin, x: Tensor, f: Tensor | None, t: float) -> Tensor:
        p = state.problem
        still = state.still if not p.data_changes else self._forcing(state, t).to(x.dtype)
        if state.stiffness is None or state.shift is None or state.mass is None:
            if p.data_changes and still is not None:
                still = still @ state.inverse.T
            a = x @ state.carry if still is None else x @ state.carry + still
            return self._react(state, x, a if f is None else a + f @ state.gather, t, None)
        b = self.flow_at(state, t + 0.5 * p.dt)
        b = torch.cat([b.new_ones(len(b), 1), b], 1)  # [b, 1 + q]
        K = torch.einsum("bq,qij->bij", b, state.stiffness)
        now = x @ state.carry
        right = -p.dt * torch.einsum("bij,bj->bi", K.expand(len(now), -1, -1), now)
        if not p.data_changes:
            right = right - p.dt * (b @ state.shift)
        right = right if still is None else right + still
        right = right if f is None else right + f @ state.gather
        left = torch.linalg.inv(state.mass + 0.5 * p.dt * K).mT  # [b, R, R], for rows
        return self._react(state, x, now + (right[:, None] @ left)[:, 0], t, left)

    def _react(self, state: Galerkin, x: Tensor, a: Tensor, t: float, left: Tensor | None) -> Tensor:
        """The known reaction: with r(u), then with the mean of it and that of the guess."""
        reaction = state.problem.pde.reaction
        if reaction is None:
            return a

        def at_nodes(x: Tensor, t: float) -> Tensor:
            return reaction(x.unflatten(-1, state.centre.shape) + self.about(state, t)).flatten(1)

        def add(rate: Tensor) -> Tensor:
            right = rate @ state.gather
            return a + (right if left is None else (right[:, None] @ left)[:, 0])

        start = at_nodes(x, t)
        guess = at_nodes(add(start) @ state.wide, t + state.problem.dt)
        return add(0.5 * (start + guess))

    # ------------------------------------------------------------------ the fit

    def settings(self) -> Iterable[tuple[float, ...]]:
        return ((tail,) for tail in TAILS)

    def responses(self, base: Problem, data: Corpus) -> Tensor | None:
        """What sources of the data make of a state of zero within one step [S, n, F], without loads and flow."""
        if data.source_average is None:
            return None
        f = thinned(base.restrict(data.source_average).flatten(0, 1)).double()
        p = base.double.with_velocity(None)
        operator = GreenSolver(p, solves=1, columns=len(f)).operator(0.0)
        return p.dt * operator.solve(product(p.source_mass, f))
