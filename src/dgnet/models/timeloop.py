"""`rollout`, the time loop of all predictions. Axes are [batch, time, node, field] everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any, Literal

import torch

from dgnet.errors import InputError, SolveError
from dgnet.green import Linear
from dgnet.green.host import unwritten
from dgnet.models.base import Model
from dgnet.models.capture import captured
from dgnet.models.checkpointed import checkpointed
from dgnet.problems import Discretisation, HeldFlow

Tensor = torch.Tensor


_SMALL = 10_000  # nodes below which one thread is enough
_ABSURD = 1e6  # growth beyond everything that drives a linear equation: no solution, whatever the units
_WATCHED = 100  # steps between two looks at how large the state is


@contextmanager
def few_threads(nodes: int, device: str = "cpu") -> Iterator[None]:
    """One thread for small meshes: on busy cores, threads that wait for each other make a step of these 10 to 30 times slower."""
    before = torch.get_num_threads()
    small = nodes < _SMALL and torch.device(device).type == "cpu"
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if small:
            torch.set_num_threads(before)


def rollout(model: Model[Any], problem: Discretisation, u0: Tensor, source: Tensor | None = None, steps: int | None = None, *,
            t0: float = 0.0, checkpoint: bool = False, capture: bool | Literal["always"] = True,
            sink: Callable[[int, Tensor], None] | None = None, progress: Callable[[int], None] | None = None) -> Tensor:
    """States [B, steps+1, N, F] of a model from an initial state: the time loop of all predictions.

    - `model`: `Classical()`, a `DGNet` or any other `Model`
    - `problem`: what is stepped; its device is that of states and sources
    - `u0`: initial states [B, N, F], in the unit of each field
    - `source`: averages over the steps [B or 1, steps, N, F] (`step_average`); field/time, or W/m3 with a heat
      capacity; None for none. A model with points beside the nodes (`model.points(problem)`, quadratic elements) takes both at all
      of them, too; from nodes alone it interpolates
    - `steps`: how many; by default as many as there are sources
    - `t0`: the time at which it begins
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
    if torch.is_inference_mode_enabled():  # what is made here stays with the problem, for rollouts with gradients, too
        with torch.inference_mode(False), torch.no_grad():
            return rollout(model, problem, u0, source, steps, t0=t0, checkpoint=checkpoint, capture=capture, sink=sink,
                           progress=progress)
    if problem.degree == 2 and len(model.points(problem)) != problem.n_nodes:
        raise InputError(f"{model.name} has linear elements: roll it out on the problem itself, not on `problem.quadratic`")
    _check_given(model, problem, u0, "the initial state")
    if u0.dim() != 3:
        raise InputError(f"the initial state must be [batch, node, field], got {list(u0.shape)}")
    if source is not None:
        _check_given(model, problem, source, "the source")
        if source.dim() != 4 or source.shape[0] not in (1, u0.shape[0]):
            raise InputError(f"the source must be [batch, step, node, field], got {list(source.shape)}")
        source = source.expand(u0.shape[0], -1, -1, -1)
    steps = (source.shape[1] if source is not None else 0) if steps is None else steps
    if steps < 1 or (source is not None and source.shape[1] < steps):
        raise InputError(f"a rollout of {steps} steps needs as many step-averaged sources, got "
                         f"{'none' if source is None else source.shape[1]}")

    try:
        return _march(model, problem, u0, source, steps, t0, checkpoint, capture, sink, progress, careful=False)
    except _Growth:
        raise
    except SolveError:
        if sink is not None:  # what was handed over cannot be taken back
            raise
        return _march(model, problem, u0, source, steps, t0, checkpoint, False, sink, progress, careful=True)


def _check_given(model: Model[Any], problem: Discretisation, value: Tensor, what: str) -> None:
    points = problem.mesh.n_nodes
    if value.dim() > 1 and value.shape[-2] != points:  # at all points of the model, perhaps
        points = len(model.points(problem))
    if value.dim() < 2 or tuple(value.shape[-2:]) != (points, problem.n_fields):
        problem.check_state(value, what)


def _own_steps(model: Model[Any]) -> bool:
    """`linear_steps` says what `step` does: nobody has put another `step` in the place of the one that it was written for."""
    def where(name: str) -> type:
        return next(kind for kind in type(model).__mro__ if name in vars(kind))

    return "step" not in vars(model) and issubclass(where("linear_steps"), where("step"))


def _march(model: Model[Any], problem: Discretisation, u0: Tensor, source: Tensor | None, steps: int, t0: float,
           checkpoint: bool, capture: bool | Literal["always"],
           sink: Callable[[int, Tensor], None] | None, progress: Callable[[int], None] | None, careful: bool) -> Tensor:
    replay = bool(capture) and (u0.is_cuda or capture == "always") and not torch.is_grad_enabled() and steps > 8
    flow = None
    if replay and problem.only_flow_changes and callable(problem.pde.velocity):
        flow = HeldFlow(problem.pde.velocity, problem.dt)
        problem = problem.given(flow)
    state = model.prepare(problem, u0.shape[0], steps, careful)
    watch = _Watch(problem, u0, source) if model.solves else None
    linear = model.linear_steps(state) if not replay and _own_steps(model) else None
    u = model.begin(state, u0)
    graph = torch.is_grad_enabled() and (linear is None or model.first_steps > 0 or linear.follows(u, source))
    nodes = problem.mesh.n_nodes
    record = _Record(u0 if u0.shape[1] == nodes else u0[:, :nodes], steps, graph, sink, progress, watch)

    if checkpoint and graph and linear is None:
        made = checkpointed(model, state, u, source, steps, t0, problem.dt)
        record.extend(0, model.read(state, made.flatten(0, 1)).unflatten(0, made.shape[:2]), whole=u is record.first)
        model.finish(state)
        return record.result()

    def advance(k: int, u: Tensor) -> Tensor:
        try:
            return model.step(state, u, None if source is None else source[:, k], t0 + k * problem.dt, k)
        except SolveError as error:
            raise _at_step(k, steps, error) from error

    # the first steps run eagerly: they compile, fill caches and may differ (`first_steps`)
    warm = min(steps, max(3, model.first_steps + 1)) if replay else steps
    if linear is not None:  # the first one takes Dirichlet values over
        warm = min(steps, model.first_steps + (linear.fixed is not None))
    for k in range(warm):
        u = advance(k, u)
        record.keep(k + 1, model.read(state, u))
    if linear is not None and warm < steps:
        rest = None if source is None else source[:, warm:steps]
        (_differentiable if graph else _arrays)(linear, problem, record, u, rest, warm, t0 + warm * problem.dt)
        warm = steps
    step = None
    if replay and warm < steps:
        times = [t0 + k * problem.dt for k in range(warm, steps)]
        step = captured(model, state, u, None if source is None else source[:, warm], times, warm, flow)
    for k in range(warm, steps):
        f = None if source is None else source[:, k]
        t = t0 + k * problem.dt
        u = advance(k, u) if step is None else step(u if k == warm else None, f, t)
        record.keep(k + 1, model.read(state, u))
    model.finish(state)
    return record.result()


def _at_step(k: int, steps: int, error: SolveError) -> SolveError:
    return SolveError(f"step {k + 1} of {steps}: {error}")


def _arrays(linear: Linear, p: Discretisation, record: _Record, u: Tensor, source: Tensor | None, first: int, t: float) -> None:
    """The steps from `first` on without gradients."""
    batch, _, fields = u.shape
    rows = None if record.out is None or p.periodic else linear.rows(record.out)
    made = linear.march(p.restrict(u), None if source is None else p.restrict(source), record.steps - first, t,
                        None if rows is None else rows[first + 1:])
    k = first
    try:
        for x, _ in made:
            k += 1
            if rows is None:
                record.keep(k, p.expand(linear.tensor(x, batch, fields)).to(u.dtype))
            elif record.progress is not None or record.watched(k):
                record.made(k)
    except SolveError as error:
        raise error if isinstance(error, _Growth) else _at_step(k, record.steps, error) from error


def _differentiable(linear: Linear, p: Discretisation, record: _Record, u: Tensor, source: Tensor | None, first: int,
                    t: float) -> None:
    """The steps from `first` on with gradients."""
    f = None if source is None else p.restrict(source).to(linear.dtype)
    states = p.expand(linear.states(p.restrict(u).to(linear.dtype), f, record.steps - first, t)).to(u.dtype)
    same = record.first is u and u.dtype == linear.dtype and not p.periodic
    record.extend(first, states, whole=first == 0 and same)


class _Record:
    """What a rollout has made so far: the states in one tensor, or handed over one by one."""

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
            self.sink(k, value)
        else:
            self.pieces.append(value[:, None])
        self.made(k, value)

    def extend(self, k: int, states: Tensor, whole: bool) -> None:
        """The state after k steps and all that follow [B, steps - k + 1, N, F]; `whole`: the first one is that of the rollout."""
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
            self.watch.look(k, self.at(k) if value is None else value, None if self.sink else self.at)

    def watched(self, k: int) -> bool:
        """The size of the state after k steps is looked at."""
        return k == 1 or k == self.steps or k % _WATCHED == 0

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
    """How large a state may be: finite, and without a reaction or growth of its own not far above what drives it."""

    def __init__(self, problem: Discretisation, u0: Tensor, source: Tensor | None) -> None:
        self.problem, self.source, self.last = problem, source, 0
        self.scale = float(u0.detach().abs().max())
        self.free = problem.pde.reaction is not None or problem.least_decay < 0

    def look(self, k: int, u: Tensor, states: Callable[[int], Tensor] | None) -> None:
        """Raise if the state after k steps is out of bounds; `states` gives those since the last look."""
        if not self._small(u, k):
            steps = range(self.last + 1, k + 1) if states is not None else ()
            first = next((j for j in steps if not self._small(states(j), k)), None)  # type: ignore[misc]
            where = f"at step {first}" if first is not None else f"between steps {self.last} and {k}"
            raise _Growth(f"the rollout grows without bound: too large {where}, {float(u.detach().abs().max()):.2g} after {k} "
                          "(is a condition missing where the flow enters, or the time step too long?)")
        self.last = k
        if k == 1:
            self.scale = max(self.scale, float(u.detach().abs().max()))

    def _small(self, u: Tensor, k: int) -> bool:
        top = float(u.detach().abs().max())
        if not isfinite(top):
            return False
        return self.free or top <= _ABSURD * self.scale or top <= _ABSURD * self._driven(k)

    def _driven(self, k: int) -> float:
        """The size of everything that a state after k steps may come from."""
        p = self.problem
        size = self.scale + (0.0 if self.source is None else k * p.dt * float(self.source.abs().max()))
        for t in (j * p.dt for j in range(0, k + 1, max(1, k // 50))):
            w, g = p.fixed_values(t), p.load(t)
            size += 0.0 if w is None else float(w.detach().abs().max())
            size += 0.0 if g is None else k * p.dt * float((g.detach().abs().T / p.lumps[0]).max())
        return size
