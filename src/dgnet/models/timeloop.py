"""`rollout`, the time loop of all predictions. Axes are [batch, time, node, field] everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, overload

import numpy as np
import torch

from dgnet.arguments import Count, Finite, checked, finite
from dgnet.errors import InputError, SolveError
from dgnet.models.base import Model, Stepper
from dgnet.models.capture import captured
from dgnet.models.checkpointed import checkpointed
from dgnet.models.pause import Pause
from dgnet.problems import HeldFlow, Problem
from dgnet.stepping import Linear
from dgnet.stepping.host import unwritten

Tensor = torch.Tensor
Array = np.ndarray

_ONE_THREAD_NODES = 10_000  # below this number, one thread is enough
_ABSURD_GROWTH = 1e6  # beyond everything that drives a linear equation: no solution, whatever the units
_STEPS_AHEAD = 1000  # that are searched for jumps at once
_STEPS_PER_LOOK = 100  # at how large the state is


@contextmanager
def few_threads(nodes: int, device: str = "cpu") -> Iterator[None]:
    """One thread for small meshes: on busy cores, threads that wait for each other make a step of these 10 to 30 times slower."""
    before = torch.get_num_threads()
    small = nodes < _ONE_THREAD_NODES and torch.device(device).type == "cpu"
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(before)



@overload
def rollout(model: Model[Any], problem: Problem, u0: Tensor | Pause, source: Tensor | None = None,
            steps: int | None = None, *, pause: Literal[False] = False, t0: float = 0.0, checkpoint: bool = False,
            capture: bool | Literal["always"] = True, sink: Callable[[int, Tensor], None] | None = None,
            progress: Callable[[int], None] | None = None) -> Tensor: ...


@overload
def rollout(model: Model[Any], problem: Problem, u0: Tensor | Pause, source: Tensor | None = None,
            steps: int | None = None, *, pause: Literal[True], t0: float = 0.0, checkpoint: bool = False,
            capture: bool | Literal["always"] = True, sink: Callable[[int, Tensor], None] | None = None,
            progress: Callable[[int], None] | None = None) -> tuple[Tensor, Pause]: ...


@checked
def rollout(model: Model[Any], problem: Problem, u0: Tensor | Pause, source: Tensor | None = None,
            steps: Count | None = None, *, pause: bool = False, t0: Finite = 0.0, checkpoint: bool = False,
            capture: bool | Literal["always"] = True, sink: Callable[[int, Tensor], None] | None = None,
            progress: Callable[[int], None] | None = None) -> Tensor | tuple[Tensor, Pause]:
    """States [B, steps+1, N, F] of a model from an initial state: the time loop of all predictions.

    - `model`: `Classical()`, a `DGNet` or any other `Model`
    - `problem`: what is stepped; its device is that of states and sources
    - `u0`: initial states [B, N, F], in the unit of each field, or the `Pause` of an earlier rollout, which goes on. A state begins
      anew: a model that filters starts, or has first steps of its own, does so, and what it has between the nodes is fitted. States
      have the precision of the initial one
    - `source`: averages over the steps [B or 1, steps, N, F] (`step_average`), or as many moments as the model takes
      (`Model.moments`), [B or 1, steps, moments, N, F] (`step_moments`); field/time, or W/m3 with a heat
      capacity; None for none. A model with points beside the nodes (`model.points(problem)`, quadratic elements) takes both at all
      of them, too; from nodes alone it interpolates
    - `steps`: how many; by default as many as there are sources
    - `pause`: return the states and a `Pause`, from which a later rollout goes on as if this one had never stopped
    - `t0`: the time at which it begins, for what changes in time; a `Pause` has its own
    - `checkpoint`: with gradients, keep the states alone and make every step again on the way back, for long rollouts whose graph
      does not fit into memory. The gradient is the same and takes up to twice as long. Steps on the CPU that are all the same
      and linear keep no more than that anyway
    - `capture`: on CUDA, record a step once and replay it (without gradients); "always" runs the step that would be recorded on the
      CPU, too
    - `sink`: called with each step's number and state as it is made; only the last state is then returned, [B, 1, N, F], so that
      memory does not grow with the number of steps
    - `progress`: called with the number of each finished step

    Differentiable in states, sources, coefficients and weights. A solve that misses its tolerance or a state that grows without
    bound is a `SolveError`.

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [dg.Dirichlet("left", 1.0)], dt=0.5)
        >>> states = dg.rollout(dg.Classical(), problem, torch.zeros(1, 25, 1, dtype=torch.float64), steps=200)
        >>> states.shape, round(states[0, -1].mean().item(), 4)
        (torch.Size([1, 201, 25, 1]), 1.0)
    """
    request = _Request.of(model, problem, u0, source, steps, t0, checkpoint, capture, sink, progress)
    ready = Ready(model, problem, request.batch, request.steps, replayed=request.replayed)
    states = ready.march(request)
    return (states, ready.pause()) if pause else states


@dataclass(frozen=True, eq=False)
class _Request:
    """What a rollout is asked for, checked."""

    start: Tensor | Pause
    source: Tensor | None  # [B, steps, P, F]
    steps: int
    t0: float
    checkpoint: bool
    capture: bool | Literal["always"]
    sink: Callable[[int, Tensor], None] | None
    progress: Callable[[int], None] | None

    @classmethod
    def of(cls, model: Model[Any], problem: Problem, start: Tensor | Pause, source: Tensor | None, steps: int | None,
           t0: float, checkpoint: bool, capture: bool | Literal["always"], sink: Callable[[int, Tensor], None] | None,
           progress: Callable[[int], None] | None) -> _Request:
        if problem.degree == 2 and len(model.points(problem)) != problem.n_nodes:
            raise InputError(f"{model.name} has linear elements: roll it out on the problem itself, not on `problem.quadratic`")
        if isinstance(start, Pause):
            start.check(model, problem)
            start = replace(start, state=finite(start.state, "the pause").to(problem.geometry.device))
            if t0 != 0.0:
                raise InputError(f"t0 = {t0:g} does not apply to a pause, which goes on at t = {start.time:g}")
            batch = len(start.state)
        else:
            _check_given(model, problem, start, "the initial state")
            if start.dim() != 3 or not len(start):
                raise InputError(f"the initial state must be [batch, node, field], got {list(start.shape)}")
            batch = len(finite(start, "the initial state"))
        if source is not None:
            _check_given(model, problem, source, "the source")
            if source.dim() not in (4, 5) or source.shape[0] not in (1, batch):
                raise InputError(f"the source must be [batch, step, node, field], got {list(source.shape)}")
            if source.dim() == 5 and source.shape[2] != model.moments:
                raise InputError(f"{model.name} takes {model.moments} moments of the source in each step, got {source.shape[2]}")
            source = finite(source, "the source").expand(batch, *[-1] * (source.dim() - 1))
            source = source[:, :, 0] if source.dim() == 5 and model.moments == 1 else source
        steps = (source.shape[1] if source is not None else 0) if steps is None else steps
        if steps < 1 or (source is not None and source.shape[1] < steps):
            raise InputError(f"a rollout of {steps} steps needs as many step-averaged sources, got "
                             f"{'none' if source is None else source.shape[1]}")
        return cls(start, source, steps, t0, checkpoint, capture, sink, progress)

    @property
    def given(self) -> Tensor:
        """The tensor that it begins with."""
        return self.start.state if isinstance(self.start, Pause) else self.start

    @property
    def batch(self) -> int:
        return len(self.given)

    @property
    def replayed(self) -> bool:
        """The step is recorded once and replayed."""
        cuda = self.given.is_cuda or self.capture == "always"
        return bool(self.capture) and cuda and not torch.is_grad_enabled() and self.steps > 8


@checked
class Ready:
    """A model made ready for a problem: rollouts that share its set-up, among them the parts of one that is fed piece by piece.

    - `model`, `problem`: as of `rollout`
    - `batch`, `steps`: trajectories, and steps of all parts together, for the choice of a backend
    - `replayed`: one rollout is to come, and its step is recorded with the flow that it has at each time
    """

    def __init__(self, model: Model[Any], problem: Problem, batch: Count = 1, steps: Count = 1000,
                 replayed: bool = False) -> None:
        self.flow: HeldFlow | None = None
        if replayed and problem.only_flow_changes and callable(problem.pde.velocity):
            self.flow = HeldFlow(problem.pde.velocity, problem.dt)
            problem = problem.with_velocity(self.flow)
        self.model, self.problem, self.batch, self.steps = model, problem, batch, steps
        self.stepper: Stepper = model.prepare(problem, batch, steps)
        self._march: _March | None = None

    @checked
    def rollout(self, start: Tensor | Pause, source: Tensor | None = None, steps: Count | None = None, *, t0: Finite = 0.0,
                checkpoint: bool = False, capture: bool | Literal["always"] = True,
                sink: Callable[[int, Tensor], None] | None = None, progress: Callable[[int], None] | None = None) -> Tensor:
        """As `rollout`."""
        return self.march(_Request.of(self.model, self.problem, start, source, steps, t0, checkpoint, capture, sink, progress))

    def march(self, request: _Request) -> Tensor:
        try:
            return self._marched(request, self.stepper)
        except _Growth:
            raise
        except SolveError:
            if request.sink is not None:  # what was handed over cannot be taken back
                raise
            careful = self.model.prepare(self.problem, self.batch, self.steps, careful=True)
            return self._marched(replace(request, capture=False), careful)

    def _marched(self, request: _Request, stepper: Stepper) -> Tensor:
        self._march = _March(self.model, self.problem, stepper, request, self.flow)
        return self._march.run()

    def pause(self) -> Pause:
        """Where the last rollout stands: after it, or without gradients in its `sink`."""
        if self._march is None:
            raise InputError("there is no rollout yet that could pause")
        return self._march.pause()


def _check_given(model: Model[Any], problem: Problem, value: Tensor, what: str) -> None:
    points = problem.mesh.n_nodes
    if value.dim() > 1 and value.shape[-2] != points:  # at all points of the model, perhaps
        points = len(model.points(problem))
    if value.dim() < 2 or tuple(value.shape[-2:]) != (points, problem.n_fields):
        problem.check_state(value, what)


class _March:
    """One rollout under way: the state after `k` of its steps, of which the first one has the number `first` from the start.

    Steps are taken one by one (`eager`), from a recording (`recorded`), as operations on arrays (`arrays`, and with gradients
    `linear_states`), or a second time on the way back (`checkpointed`); `run` chooses.
    """

    def __init__(self, model: Model[Any], problem: Problem, stepper: Stepper, request: _Request,
                 flow: HeldFlow | None) -> None:
        self.model, self.problem, self.stepper, self.flow = model, problem, stepper, flow
        self.source, self.steps, self.checkpoint = request.source, request.steps, request.checkpoint
        start, self.replayed, self.k = request.start, request.replayed, 0
        self.first, self.t0 = (start.step, start.t0) if isinstance(start, Pause) else (0, request.t0)
        self.dtype = start.dtype
        self.linear = None if self.replayed else stepper.linear()
        nodes, working = problem.mesh.n_nodes, None if self.linear is None else self.linear.dtype
        if isinstance(start, Pause):
            stepper.remember({name: value.to(start.state.device) for name, value in start.memory.items()})
            u = start.state if start.state.shape[1] != nodes else stepper.lift(start.state)
            wide = stepper.lift(u.new_zeros(1, nodes, u.shape[2])).shape[1]
            if u.shape[1] != wide:
                raise InputError(f"the pause must hold values at {wide} points of {model.name}, got {u.shape[1]}")
            begun = start.values
        else:
            stepper.remember({})
            u, begun = stepper.begin(start), start if start.shape[1] == nodes else start[:, :nodes]
        stepper.foresee(self.source, self.first)
        self.u = u if working is None else u.to(working)  # many equal steps are not rounded in between
        self.array: Array | None = None  # the state of `linear`, where that is newer
        size = start.size if isinstance(start, Pause) else None
        self.watch = _Watch(problem, begun, self.source, self.t0, self.first, size) if model.solves else None
        stable = model.stable_steps(problem)  # with the weights of all others
        self.special = max(0, model.first_steps - self.first, stable - self.first)
        self.graph = torch.is_grad_enabled() and (self.linear is None or model.first_steps > max(self.first, stable)
                                                  or self.linear.follows(u, self.source))
        self.record = _Record(begun, request.steps, self.graph, request.sink, request.progress, self.watch)

    def time(self, k: int) -> float:
        """When step k begins: the same number wherever the rollout was cut."""
        return self.t0 + (self.first + k) * self.problem.dt

    def starts(self, k: int) -> bool:
        """Step k differs from all others, since something jumps (`Stepper.starts`)."""
        return self.stepper.starts(self.first + k, self.time(k))

    def force(self, k: int) -> Tensor | None:
        return None if self.source is None else self.source[:, k]

    def pause(self) -> Pause:
        """Where it stands."""
        u, p = self.u, self.problem
        if self.array is not None and self.linear is not None:
            u = p.expand(self.linear.working(self.array, u.shape[0], u.shape[2]))
        if not u.requires_grad:
            u = u.clone()  # of memory that later steps or the caller write to
        size = None if self.watch is None else self.watch.driven_by_sources(self.k)
        return Pause(u, self.first + self.k, self.t0, p.dt, self.model.name, p.mesh.n_nodes, self.dtype, p.mesh.fingerprint, size,
                     self.stepper.memory())

    def run(self) -> Tensor:
        if self.checkpoint and self.graph and self.linear is None:
            self.checkpointed()
        else:
            if self.linear is not None:
                self.eager(self.special + (self.linear.fixed is not None))  # the first one takes Dirichlet values over
                while self.k < self.steps:
                    ahead = min(self.k + _STEPS_AHEAD, self.steps) if self.problem.data_changes else self.steps
                    looked = range(self.k, ahead) if self.problem.data_changes else ()
                    (self.linear_states if self.graph else self.arrays)(self.linear, next(filter(self.starts, looked), ahead))
                    while self.k < self.steps and self.problem.data_changes and self.starts(self.k):
                        self.eager(self.k + 1)
            elif self.replayed:
                self.eager(max(3, self.special + 1))  # they compile and fill caches
                self.recorded()
            self.eager(self.steps)
        self.stepper.finish()
        return self.record.result()

    def taken(self, k: int, u: Tensor) -> None:
        """Step k has led to u."""
        self.u, self.k = u, k + 1
        self.record.keep(self.k, self.stepper.read(u))

    def at_step(self, k: int, error: SolveError) -> SolveError:
        return SolveError(f"step {self.first + k + 1} of {self.first + self.steps}: {error}")

    # ------------------------------------------------------------------ kinds of steps; each begins with step `k`

    def eager(self, stop: int) -> None:
        """The steps before `stop`, one by one."""
        for k in range(self.k, min(stop, self.steps)):
            try:
                u = self.stepper.step(self.u, self.force(k), self.time(k), self.first + k)
            except SolveError as error:
                raise self.at_step(k, error) from error
            self.taken(k, u)

    def recorded(self) -> None:
        """The remaining steps as repetitions of one recording, if there can be one."""
        begun = self.k
        if begun == self.steps:
            return
        times = [self.time(k) for k in range(begun, self.steps)]
        step = captured(self.stepper, self.u, self.force(begun), times, self.first + begun, self.flow)
        if step is not None:
            for k in range(begun, self.steps):
                self.taken(k, step(self.u if k == begun else None, self.force(k), self.time(k)))

    def arrays(self, linear: Linear, stop: int) -> None:
        """The steps before `stop` without gradients."""
        begun = self.k
        if begun == stop:
            return
        p, record, source = self.problem, self.record, None if self.source is None else self.source[:, begun:stop]
        batch, _, fields = self.u.shape
        rows = None if record.out is None or p.periodic else linear.rows(record.out)
        made = linear.march(p.restrict(self.u), None if source is None else p.restrict(source), stop - begun, self.t0,
                            self.first + begun, None if rows is None else rows[begun + 1:])
        try:
            for x, _ in made:
                self.array, self.k = x, self.k + 1
                if rows is None:
                    record.keep(self.k, p.expand(linear.tensor(x, batch, fields)))
                elif record.progress is not None or record.watched(self.k):
                    record.made(self.k)
        except SolveError as error:
            raise error if isinstance(error, _Growth) else self.at_step(self.k, error) from error
        self.u, self.array = p.expand(linear.working(x, batch, fields)), None

    def linear_states(self, linear: Linear, stop: int) -> None:
        """The steps before `stop` with gradients."""
        p, begun = self.problem, self.k
        if begun == stop:
            return
        f = None if self.source is None else p.restrict(self.source[:, begun:stop]).to(linear.dtype)
        states = p.expand(linear.states(p.restrict(self.u), f, stop - begun, self.t0, self.first + begun))
        self.record.extend(begun, states, whole=begun == 0 and self.record.first is self.u and not p.periodic)
        self.u, self.k = states[:, -1], stop

    def checkpointed(self) -> None:
        """All steps; their gradients make each a second time."""
        made = checkpointed(self.stepper, self.u, self.source, self.steps, self.time, self.first, self.special)
        read = self.stepper.read(made.flatten(0, 1)).unflatten(0, made.shape[:2])
        self.record.extend(0, read, whole=self.u is self.record.first)
        self.u, self.k = made[:, -1], self.steps


class _Record:
    """What a rollout has made so far, in the precision of its start: the states in one tensor, or handed over one by one."""

    def __init__(self, first: Tensor, steps: int, graph: bool, sink: Callable[[int, Tensor], None] | None,
                 progress: Callable[[int], None] | None, watch: _Watch | None) -> None:
        self.first, self.steps, self.sink, self.progress, self.watch, self.last = first, steps, sink, progress, watch, first
        # with gradients the states are joined at the end: writing each into one tensor makes the way back quadratic in their number
        self.pieces = [first[:, None]] if sink is None and graph else []  # [B, some steps, N, F]
        self.out = None if sink or graph else unwritten(first.shape[0], steps + 1, *first.shape[1:], like=first)
        if self.out is not None:
            self.out[:, 0] = first

    def keep(self, k: int, value: Tensor) -> None:
        """The state after k steps [B, N, F]."""
        if self.out is not None:
            self.out[:, k] = value
        elif self.sink is not None:
            value = value.to(self.first.dtype)
            self.sink(k, value)
        else:
            value = value.to(self.first.dtype)
            self.pieces.append(value[:, None])
        self.made(k, value)

    def extend(self, k: int, states: Tensor, whole: bool) -> None:
        """The state after k steps and all that follow [B, steps - k + 1, N, F]; `whole`: the first one is that of the rollout."""
        states = states.to(self.first.dtype)
        if self.sink is None:
            self.pieces = [states] if whole else [*self.pieces, states[:, 1:]]
        for j in range(1, states.shape[1]):
            if self.sink is not None:
                self.sink(k + j, states[:, j])
            if self.sink is not None or self.progress is not None or self.watched(k + j):
                self.made(k + j, states[:, j])

    def made(self, k: int, value: Tensor | None = None) -> None:
        """Report and look at the state after k steps, `value` where it is not in `out`."""
        if self.progress is not None:
            self.progress(k)
        if self.sink is not None:
            self.last = value if value is not None else self.last
        if self.watch is not None and self.watched(k):
            self.watch.look(k, self.at(k) if value is None or self.out is not None else value, None if self.sink else self.at)

    def watched(self, k: int) -> bool:
        """The size of the state after k steps is looked at."""
        return k == 1 or k == self.steps or k % _STEPS_PER_LOOK == 0

    def at(self, k: int) -> Tensor:
        """The state after k steps [B, N, F], where states are kept."""
        return self.out[:, k] if self.out is not None else torch.cat(self.pieces, 1)[:, k]

    def result(self) -> Tensor:
        if self.sink is not None:
            return self.last[:, None]
        return self.out if self.out is not None else self.pieces[0] if len(self.pieces) == 1 else torch.cat(self.pieces, 1)


class _Growth(SolveError):
    """A solve that is careful would end the same way."""


class _Watch:
    """How large a state may be: finite, and without a reaction or growth of its own not far above what drives it.

    `first` steps have been made since t0, and have driven states to at most `size`; None at the start.
    """

    def __init__(self, problem: Problem, u0: Tensor, source: Tensor | None, t0: float, first: int,
                 size: float | None) -> None:
        self.problem, self.source, self.t0, self.first, self.last = problem, source, t0, first, 0
        self.begins = size is None
        self.scale = float(u0.detach().abs().max()) if size is None else size
        self.free = problem.pde.reaction is not None or problem.least_decay < 0

    def look(self, k: int, u: Tensor, states: Callable[[int], Tensor] | None) -> None:
        """Raise if the state after k steps is out of bounds; `states` gives those since the last look."""
        if not self._small(u, k):
            steps = range(self.last + 1, k + 1) if states is not None else ()
            at = next((j for j in steps if not self._small(states(j), k)), None)  # type: ignore[misc]
            now, n = float(u.detach().abs().max()), self.first
            where = f"at step {n + at}" if at is not None else f"between steps {n + self.last} and {n + k}"
            raise _Growth(f"the rollout grows without bound: too large {where}, {now:.2g} after {n + k} (is a condition missing "
                          "where the flow enters, or the time step too long?)")
        self.last = k
        if k == 1 and self.begins:
            self.scale = max(self.scale, float(u.detach().abs().max()))

    def _small(self, u: Tensor, k: int) -> bool:
        top = float(u.detach().abs().max())
        if not isfinite(top):
            return False
        return self.free or top <= _ABSURD_GROWTH * self.scale or top <= _ABSURD_GROWTH * self._driven(k)

    def driven_by_sources(self, k: int) -> float:
        """The size of the start and of what sources have brought in k steps."""
        return self.scale + (0.0 if self.source is None else k * self.problem.dt * float(self.source[:, :k].detach().abs().max()))

    def _driven(self, k: int) -> float:
        """The size of everything that a state after k steps may come from."""
        p, size, steps = self.problem, self.driven_by_sources(k), self.first + k
        apart = max(1, steps // 50)
        for t in (self.t0 + j * p.dt for j in range(0, steps + 1, apart)):
            w, g = p.fixed_values(t), p.load(t, apart * p.dt)
            size += 0.0 if w is None else float(w.detach().abs().max())
            size += 0.0 if g is None else steps * p.dt * float((g.detach().abs().T / p.lumps[0]).max())
        return size
