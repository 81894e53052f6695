"""Training: windows -> loss -> Adam, validated by rollouts of held-out training trajectories.

Batches and noise are drawn from (seed, iteration) alone, so a run that was interrupted resumes exactly as if nothing had happened,
and several processes (torchrun) see slices of the same batches. Test trajectories are not read here.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn

from dgnet.data import Corpus, Dataset, hold_out
from dgnet.data.digests import verifying
from dgnet.errors import InputError, SolveError
from dgnet.files import write_bytes
from dgnet.models.base import LearnedModel
from dgnet.models.classical import Classical
from dgnet.problems import Discretisation, HeldFlow
from dgnet.recipe import Recipe, Stage
from dgnet.scoring.judge import judge
from dgnet.training import replay
from dgnet.training.calibrate import gauss_newton
from dgnet.training.identify import identify

Tensor = torch.Tensor


def evaluate_rne(model: Any, base: Discretisation, data: Corpus, steps: int | None = None) -> float:
    """RNE from offset of free rollouts over all trajectories and steps, or the first `steps`; infinite where one breaks down."""
    return judge({"model": model}, base, data, steps=steps).error("model")


@dataclass
class Progress:
    """What a run has reached; stored with every checkpoint."""

    iteration: int = 0
    best: float = math.inf
    best_iteration: int = 0
    classical: float = math.inf
    seconds: float = 0.0
    updates: int = 0  # optimiser steps taken; `iteration` is the place in the recipe, which the clock may move on
    setbacks: int = 0  # windows that blew up: the best weights were taken again, and the rate halved
    history: list[dict[str, float]] = field(default_factory=list)


_SETBACKS = 5

Tell = Callable[[Progress, int], None]
"""`tell(progress, iterations)`: called after every iteration, with how many there are in all."""


def fit(model: LearnedModel[Any], base: Discretisation, train: Corpus, valid: Corpus, recipe: Recipe, *, seed: int = 0,
        budget: float | None = None, folder: Path | None = None, report: Tell | None = None, resume: bool = True) -> Progress:
    """Train a model in place; it ends with the weights of the best validation rollout, the untrained ones included.

    - `model`: with weights: a `DGNet` or a baseline
    - `base`: the problem; a flow that comes with the data is put in for each batch
    - `train`, `valid`: trajectories to learn from and to validate on
    - `recipe`: the stages
    - `seed`: of the random windows
    - `budget`: seconds of wall clock (all processes together) that end the training early, with the learning rate cooled down in
      time: the schedule follows whichever of iterations and time is further on
    - `folder`: where `last.pt` is kept, to resume from; None for nowhere
    - `report`: called with the progress and the number of iterations after each of them
    - `resume`: go on from `last.pt`

        >>> import dgnet as dg, torch
        >>> mesh = dg.box((4, 4))
        >>> true, guess = (dg.Problem(mesh, dg.PDE(diffusion=D), [], dt=0.1) for D in (0.03, 0.06))
        >>> start = torch.tensor(mesh.points[:, :1]).cos()[None]  # [batch, node, field]
        >>> data = dg.Corpus(dg.rollout(dg.Classical(), true, start, steps=10), None, None, 0.1, (0.0,))
        >>> model = dg.DGNet(dg.DGNetConfig(decoder="none", calibrate=("diffusion",)), guess).double()
        >>> _ = dg.fit(model, guess, data, data, dg.Recipe("short", (dg.Stage(4, 10, method="gauss-newton"),)))
        >>> round(model.coefficients()["diffusion"], 3)  # a factor
        0.5
    """
    parameters = parameter_groups(model, recipe)
    optimiser: torch.optim.Optimizer = torch.optim.Adam(parameters)
    if recipe.weight_decay:
        optimiser = torch.optim.AdamW(parameters, weight_decay=recipe.weight_decay)
    progress = Progress()
    best = {k: v.clone() for k, v in model.state_dict().items()}
    last = None if folder is None else folder / "last.pt"
    if last is not None and resume and last.exists():
        best, progress = _restore(last, model, optimiser)
    else:
        model.fit_statistics(train.state, train.source_average, train.dt, train.velocity)
        best = {k: v.clone() for k, v in model.state_dict().items()}
    scale = train.spread
    ends = np.cumsum([s.iterations for s in recipe.stages])
    begin = time.perf_counter() - progress.seconds
    spent = 0.0  # seconds of the last validation

    def validate(loss: float) -> None:
        nonlocal best, spent
        started = time.perf_counter()
        value = evaluate_rne(model, base, valid, recipe.validate_steps)
        if not progress.history:
            progress.classical = evaluate_rne(Classical(model.rival_mass), base, valid, recipe.validate_steps)
        if value < progress.best:
            progress.best, progress.best_iteration = value, progress.iteration
            best = {k: v.clone() for k, v in model.state_dict().items()}
        progress.seconds = time.perf_counter() - begin
        spent = time.perf_counter() - started
        progress.history.append({"iteration": progress.iteration, "loss": loss, "validation": value, "best": progress.best,
                                 "seconds": progress.seconds})
        if last is not None and _rank() == 0:
            _store(last, model, optimiser, best, progress)

    if not progress.history:
        validate(math.nan)
    total = 0.0
    count = 0
    while progress.iteration < recipe.iterations:
        stage_number = int(np.searchsorted(ends, progress.iteration, side="right"))
        stage = recipe.stages[stage_number]
        start = int(ends[stage_number]) - stage.iterations
        done = (progress.iteration - start) / stage.iterations
        elapsed = _agreed(time.perf_counter() - begin)
        if budget is not None:
            if elapsed >= budget:
                break
        if budget is not None and stage.method == "adam":  # few, decisive steps of Gauss-Newton are not cut short
            before, share = recipe.share(stage_number)
            judged = progress.history[0]["seconds"]  # the untrained model is judged before the stages share the time
            done = max(done, min(1.0, ((elapsed - judged) / max(budget - judged, 1e-9) - before) / share))
            if done >= 1.0 and progress.iteration + 1 < recipe.iterations:  # this stage's time is over
                progress.iteration = int(ends[stage_number])
                validate(total / max(1, count))
                total, count = 0.0, 0
                continue
        _set_rates(optimiser, stage, done, progress.iteration - start, 0.5**progress.setbacks)
        try:
            value = iterate(model, base, train, stage, optimiser, scale, seed, progress.iteration, recipe.clip)
        except SolveError:
            progress.setbacks += 1
            if progress.setbacks > _SETBACKS:
                raise
            model.load_state_dict(best)
            optimiser.state.clear()
            value = math.nan
        total, count = total + value, count + 1
        progress.iteration += 1
        progress.updates += 1
        progress.seconds = time.perf_counter() - begin
        due = progress.iteration % recipe.validate_every == 0
        if due and budget is not None:  # against the clock, judging takes at most a fifth of the time
            due = _agreed(progress.seconds - progress.history[-1]["seconds"]) > 4 * _agreed(spent)
        if due or progress.iteration == recipe.iterations or progress.iteration == ends[stage_number]:
            validate(total / count)
            total, count = 0.0, 0
        if report is not None:
            report(progress, recipe.iterations)
    if count:  # time ran out between two validations: the last weights are a candidate, too
        validate(total / count)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.load_state_dict(best)
    return progress


def _agreed(value: float) -> float:
    """The first process's value, for all: clocks differ, and what they decide must not."""
    if _world() == 1:
        return value
    shared = torch.tensor([value], dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.broadcast(shared, 0)
    return float(shared)


def iterate(model: LearnedModel[Any], base: Discretisation, train: Corpus, stage: Stage, optimiser, scale: Tensor, seed: int,
            iteration: int, clip: float) -> float:
    """One optimiser step; returns the loss."""
    if stage.method == "gauss-newton":
        return gauss_newton(model, base, train, stage, scale)
    if stage.method == "identify":
        return identify(model, base, train)
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
    begin = 0 if special and fresh[0] else special  # the first step's number
    generator = torch.Generator(device=train.state.device).manual_seed(int(rng.integers(2**62)))
    noise = torch.randn((len(rows), *train.state.shape[2:]), generator=generator, device=train.state.device,
                        dtype=train.state.dtype) if stage.noise else None
    mine = slice(_rank(), None, _world())
    device = train.state.device
    data = train.windows(torch.as_tensor(rows[mine]), torch.as_tensor(starts[mine]), length + push)
    optimiser.zero_grad(set_to_none=True)
    problem, flow = data.problem(base), None
    times = (data.clock(base) + data.dt * np.arange(push + length)).tolist()
    if problem.only_flow_changes and callable(problem.pde.velocity):
        flow = HeldFlow(problem.pde.velocity, data.dt)
        problem = problem.given(flow)
    state = model.prepare(problem, len(data), length + push)
    u = data.state[:, 0]
    if noise is not None:
        u = u + stage.noise * scale * noise[mine]
    # learned filters of the initial state act at step 0 of a trajectory only
    first = torch.as_tensor(starts[mine] == 0, device=device)[:, None, None]
    u = torch.where(first, model.begin(state, u), u)
    with torch.no_grad():
        for k in range(push):
            u = model.step(state, u, None if data.source_average is None else data.source_average[:, k], times[k], begin + k)
    # every window counts the same, however many of them a process has
    share = len(data) * _world() / len(rows)
    counted = [k for k in range(length) if k >= stage.skip and (stage.loss == "all" or k in (0, length - 1))]
    offset = data.offset if stage.relative else None

    def misfit(u: Tensor, at: list[int]) -> Tensor:
        """Of states u [B, T, N, F] at these steps of the window."""
        true = data.state[:, push + 1:][:, at]
        return share * _misfit(u, true, scale, offset) if len(data) else u.sum() * 0.0

    if replay.applies(model, state, length, device, [] if flow is None else times[push:]):
        def show(k: int) -> None:
            if flow is not None:
                flow.show(times[push + k])

        source = None if data.source_average is None else data.source_average[:, push:]
        loss = replay.gradients(model, state, u, source, length,
                                lambda states: misfit(states[1:][counted].transpose(0, 1), counted), begin + push, show)
    else:
        states = []
        for k in range(length):
            at = push + k
            u = model.step(state, u, None if data.source_average is None else data.source_average[:, at], times[at], begin + at)
            states.append(u)
        loss = misfit(torch.stack([states[k] for k in counted], 1), counted)
        loss.backward()
    parameters = [p for group in optimiser.param_groups for p in group["params"] if p.grad is not None]
    if _world() > 1:
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad /= _world()
    norm = nn.utils.clip_grad_norm_(parameters, clip) if clip else torch.zeros_like(loss)
    model.finish(state)  # the first question to the device, asked when all of the iteration but the optimiser has been launched
    value, size = torch.stack([loss.detach(), norm.to(loss)]).tolist()
    if not math.isfinite(size):
        raise SolveError(f"the gradient at iteration {iteration} is not finite")
    optimiser.step()
    return value


def _misfit(u: Tensor, true: Tensor, scale: Tensor, offset: Sequence[float] | None) -> Tensor:
    """Mean squared error in units of the data's spread; given an offset, the mean relative L2 error of the states [..., N, F]."""
    if offset is not None:
        size = ((true - true.new_tensor(list(offset) or [0.0])) / scale).flatten(-2).norm(dim=-1).clamp(min=1e-12)
        return (((u - true) / scale).flatten(-2).norm(dim=-1) / size).mean()
    return (((u - true) / scale) ** 2).mean()


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    free = [p for n, p in model.named_parameters() if n.startswith(("free_", "calibration"))]
    rest = [p for n, p in model.named_parameters() if not n.startswith(("free_", "calibration"))]
    named = {id(p): n for n, p in model.named_parameters()}
    return [{"params": group, "factor": factor, "names": [named[id(p)] for p in group]}
            for group, factor in ((rest, 1.0), (free, recipe.free_lr)) if group]


def _set_rates(optimiser: torch.optim.Optimizer, stage: Stage, done: float, iteration: int, factor: float = 1.0) -> None:
    if stage.decay == "cosine":
        rate = 0.5 * (1 + math.cos(math.pi * min(1.0, done))) * (1 - stage.end) + stage.end
    else:
        rate = stage.decay_rate ** (iteration // max(1, stage.decay_every))
    for group in optimiser.param_groups:
        group["lr"] = stage.lr * rate * group["factor"] * factor
        for name, p in zip(group["names"], group["params"]):
            p.requires_grad_(not stage.only or name.startswith(stage.only))


# ---------------------------------------------------------------------- processes and checkpoints


def join_processes(device: str) -> bool:
    """Under torchrun, join the group of processes; True for the one that writes files."""
    if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1 and not dist.is_initialized():
        if device.startswith("cuda"):
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return _rank() == 0


def wait_for_all() -> None:
    if _world() > 1:
        dist.barrier()


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _store(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, best: dict[str, Tensor], progress: Progress) -> None:
    """Weights and numbers only: nothing in a checkpoint can run code."""
    save_tensors(path, {"model": model.state_dict(), "best": best, "optimiser": optimiser.state_dict(),
                        "progress": {k: v for k, v in vars(progress).items()}})


def save_tensors(path: Path, value: dict[str, Any]) -> str:
    """Returns the file's SHA-256. Made in memory first: torch may end the whole process when a disk runs full under it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getbuffer())
    return hashlib.sha256(buffer.getbuffer()).hexdigest()


def load_checkpoint(path: Path, device: str = "cpu", sha256: str = "") -> dict[str, Any]:
    """A checkpoint's contents; anything but tensors and plain numbers is refused, and so is a damaged file.

    Every part of the file has a CRC32 of its own, which torch writes but does not compare; `sha256` is that of the whole.
    """
    try:
        if verifying() and path.exists() and not _sound(path, sha256):
            raise InputError(f"{path} is damaged: it is not what was written (its checksum differs)")
        return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"there is no checkpoint {path}") from error
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path} is not a checkpoint of weights: it is damaged, or holds something that could run code") from error


def _sound(path: Path, sha256: str) -> bool:
    if sha256:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return False
    if not zipfile.is_zipfile(path):
        return True  # torch decides what it is
    with zipfile.ZipFile(path) as archive:
        return archive.testzip() is None


def _restore(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], Progress]:
    """Best weights and progress of a checkpoint; model and optimiser take theirs. What does not fit is refused by name."""
    data = load_checkpoint(path, str(next(iter(model.state_dict().values())).device))
    own = vars(Progress())
    for key in ("model", "best", "optimiser", "progress"):
        if not isinstance(data, dict) or not isinstance(data.get(key), dict):
            raise InputError(f"{path} is no checkpoint to go on from: it holds no table '{key}'")
    told = data["progress"]
    for key, value in told.items():
        fits = isinstance(value, list) if key == "history" else isinstance(value, int | float) and (key == "best" or value >= 0)
        if key not in own or not fits:
            raise InputError(f"{path} is no checkpoint to go on from: its progress has '{key}' = {str(value)[:40]}")
    rows = told.get("history", [])
    if any(not isinstance(row, dict) or {"iteration", "validation", "seconds"} - set(row) for row in rows):
        raise InputError(f"{path} is no checkpoint to go on from: its history is not one of validations")
    try:
        model.load_state_dict(data["best"])
        model.load_state_dict(data["model"])
        optimiser.load_state_dict(data["optimiser"])
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} does not fit the model that is trained here") from error
    return data["best"], Progress(**told)


def split(dataset: Dataset, recipe: Recipe, seed: int = 0, limit: int | None = None) -> tuple[list[int], list[int]]:
    """Numbers of the trajectories to train on and to validate with; with a single one, it serves for both."""
    numbers = dataset.of("train")[:limit]
    if len(numbers) < 2:
        return numbers, numbers
    return hold_out(numbers, min(recipe.hold_out, len(numbers) - 1), np.random.default_rng(seed))
