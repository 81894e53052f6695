"""One update of the weights: random windows -> loss -> gradient -> optimiser.

Windows and noise are drawn from (seed, iteration) alone, so a run that was interrupted resumes exactly as if nothing had happened,
and several processes see slices of the same batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from dgnet.data import Corpus
from dgnet.discovery.calibrate import gauss_newton
from dgnet.discovery.identify import identify
from dgnet.discovery.material import identify_material
from dgnet.errors import SolveError
from dgnet.models.base import LearnedModel, Stepper
from dgnet.models.checkpointed import gradients
from dgnet.problems import HeldFlow, Problem
from dgnet.recipe import Recipe, Stage
from dgnet.scoring.judge import given
from dgnet.training import replay
from dgnet.training.processes import average_gradients, rank, world

Tensor = torch.Tensor

_SMALLEST = 0.1  # size of a state in a relative loss, against that of the usual one


def iterate(model: LearnedModel[Any], base: Problem, train: Corpus, stage: Stage, optimiser: torch.optim.Optimizer,
            scale: Tensor, seed: int, iteration: int, clip: float) -> float:
    """One step of the stage's method; returns the loss."""
    if stage.method == "gauss-newton":
        return gauss_newton(model, base, train, stage, scale)
    if stage.method == "identify":
        return identify(model, base, train)
    if stage.method == "material":
        return identify_material(model, base, train)
    optimiser.zero_grad(set_to_none=True)
    stepper, loss = _descended(model, base, train, draw(model, base, train, stage, seed, iteration), stage, scale)
    parameters = [p for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
    average_gradients(parameters)
    norm = nn.utils.clip_grad_norm_(parameters, clip) if clip else torch.zeros_like(loss)
    stepper.finish()  # the first question to the device, asked when all of the iteration but the optimiser has been launched
    value, size = torch.stack([loss.detach(), norm.to(loss)]).tolist()
    if not math.isfinite(size):
        raise SolveError(f"the gradient at iteration {iteration} is not finite")
    optimiser.step()
    return value


@dataclass(frozen=True, eq=False)
class Drawn:
    """Windows of one iteration, those of all processes.

    - `rows`, `starts`: trajectory and first step of each window, [B]
    - `push`, `length`: steps without and with gradient
    - `number`: of the first step, as the model counts them (`first_steps`)
    - `noise`: standard normal numbers for the first states [B, N, F], or None
    """

    rows: np.ndarray
    starts: np.ndarray
    push: int
    length: int
    number: int
    noise: Tensor | None


def draw(model: LearnedModel[Any], base: Problem, train: Corpus, stage: Stage, seed: int, iteration: int) -> Drawn:
    """The windows of an iteration."""
    rng = np.random.default_rng([seed, iteration])
    push = int(rng.integers(0, stage.pushforward + 1)) if stage.pushforward else 0
    length = min(stage.length, train.steps - push)
    top = max(1, train.steps - length - push + 1)
    rows = rng.integers(0, len(train), stage.batch)
    starts = rng.integers(min(stage.first, top - 1), top, stage.batch)
    fresh = rng.random(stage.batch) < stage.from_start
    special = model.first_steps
    if special:  # steps after the start that differ: a batch has all of its windows from the start, or all behind these
        fresh[:] = fresh[0] or top <= special
        starts = np.maximum(starts, special)
    if train.timed(base):  # one time serves the whole batch: windows of different trajectories from one start
        fresh[:], starts[:] = fresh[0], starts[0]
        same = np.flatnonzero((train.begin - train.begin[rows[0]]).abs().numpy() < 1e-6 * train.dt)
        rows = same[rows % len(same)] if stage.noise else rng.permutation(same)[:stage.batch]  # none twice, unless noise differs
        fresh, starts = fresh[:len(rows)], starts[:len(rows)]
    starts = np.where(fresh, 0, starts)
    generator = torch.Generator(device=train.state.device).manual_seed(int(rng.integers(2**62)))
    noise = torch.randn((len(rows), *train.state.shape[2:]), generator=generator, device=train.state.device,
                        dtype=train.state.dtype) if stage.noise else None
    return Drawn(rows, starts, push, length, 0 if special and fresh[0] else special, noise)


def _descended(model: LearnedModel[Any], base: Problem, train: Corpus, batch: Drawn, stage: Stage,
               scale: Tensor) -> tuple[Stepper, Tensor]:
    """The prepared problem and the loss of this process's windows, its gradients added to the weights."""
    mine, push, length = slice(rank(), None, world()), batch.push, batch.length
    device = train.state.device
    data = train.windows(torch.as_tensor(batch.rows[mine]), torch.as_tensor(batch.starts[mine]), length + push)
    problem, flow = data.problem(base), None
    times = (data.clock(base) + data.dt * np.arange(push + length)).tolist()
    if problem.only_flow_changes and callable(problem.pde.velocity):
        flow = HeldFlow(problem.pde.velocity, data.dt)
        problem = problem.with_velocity(flow)
    stepper = model.prepare(problem, len(data), length + push)
    u, source = given(model, base, data)
    if batch.noise is not None:
        u = u + stage.noise * scale * batch.noise[mine]
    # learned filters of the initial state act at step 0 of a trajectory only
    first = torch.as_tensor(batch.starts[mine] == 0, device=device)[:, None, None]
    u = torch.where(first, stepper.begin(u), stepper.lift(u))

    def step(u: Tensor, k: int) -> Tensor:
        return stepper.step(u, None if source is None else source[:, k], times[k], batch.number + k)

    with torch.no_grad():
        for k in range(push):
            u = step(u, k)
    # every window counts the same, however many of them a process has
    share = len(data) * world() / len(batch.rows)
    counted = [k for k in range(length) if k >= stage.skip and (stage.loss == "all" or k in (0, length - 1))]
    true, offset = data.state[:, push + 1:][:, counted], data.offset if stage.relative else None

    def loss_of(states: Tensor) -> Tensor:
        """Of the counted states [B, T, N, F]."""
        return share * misfit(states, true, scale, offset) if len(data) else states.sum() * 0.0

    if replay.applies(stepper, length, device, [] if flow is None else times[push:]):
        def show(k: int) -> None:
            if flow is not None:
                flow.show(times[push + k])

        loss = gradients(stepper, u, None if source is None else source[:, push:], length,
                         lambda states: loss_of(states[:, 1:][:, counted]), batch.number + push,
                         max(0, model.first_steps - batch.number - push), show)
        return stepper, loss
    states = []
    for k in range(length):
        u = step(u, push + k)
        states.append(stepper.read(u))
    loss = loss_of(torch.stack([states[k] for k in counted], 1))
    loss.backward()
    return stepper, loss


def misfit(u: Tensor, true: Tensor, scale: Tensor, offset: Sequence[float] | None) -> Tensor:
    """Mean squared error in units of the data's spread; given an offset, the mean relative L2 error of the states [..., N, F].

    The relative error of a state is |u - true| / max(|true - offset|, 0.1 sqrt(N F)), all fields in units of their spread: the
    training states have sqrt(N F) in the root mean square. Without the second number an empty channel (zero truth) would
    decide the loss alone.
    """
    error = (u - true) / scale
    if offset is None:
        return error.square().mean()
    size = ((true - true.new_tensor(list(offset) or [0.0])) / scale).flatten(-2).norm(dim=-1)
    usual = math.sqrt(true.shape[-1] * true.shape[-2])
    return (error.flatten(-2).norm(dim=-1) / size.clamp(min=_SMALLEST * usual)).mean()


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Weights with their factor on the learning rate and their names, as the optimiser takes them."""
    free = [p for n, p in model.named_parameters() if n.startswith(("free_", "calibration"))]
    rest = [p for n, p in model.named_parameters() if not n.startswith(("free_", "calibration"))]
    named = {id(p): n for n, p in model.named_parameters()}
    return [{"params": group, "factor": factor, "names": [named[id(p)] for p in group]}
            for group, factor in ((rest, 1.0), (free, recipe.free_lr)) if group]
