"""The judge: the only one that rolls models out on trajectories and scores them.

Training's validation, `check`, `certify`, leave-one-out, `evaluate`, `evaluate --pretrained` and `reproduce` all ask here, so a
figure means the same everywhere. `judge` takes trajectories in memory. `judge_file` reads them from a data set, piece by piece, and
refuses one that does not fit the case. A model that diverges, or whose solve fails, is scored as infinitely wrong, and `failures`
says at which step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dgnet.arguments import Count, Whole, checked
from dgnet.data import Corpus, Dataset
from dgnet.data.fits import check_fits
from dgnet.errors import InputError, SolveError
from dgnet.files import strict
from dgnet.models import Classical, Pause, Refined, few_threads, rollout
from dgnet.models.base import Model
from dgnet.models.universal import Universal
from dgnet.problems import CONSISTENT, LUMPED, Problem
from dgnet.problems.case import Case, base_problem
from dgnet.scoring.metrics import Score, Sums

Tensor = torch.Tensor

BYTES = {"cpu": 5e8, "cuda": 2e9}
"""Size of the arrays of one piece, by kind of device."""
_MOST = 16  # trajectories read at once
FINER = {"cpu": 60_000, "cuda": 1_000_000}
"""Points (nodes and edges) up to which tables hold the rows of quadratic elements and of the refined mesh, by kind of device."""
FITTED = "Between the nodes, starts and sources are fitted to the data at the nodes: quadratic, by least squares."
FRAMES = 4  # of the trajectory that is kept for pictures
CURVE = 60  # points of a curve over time


def rivals() -> dict[str, Classical]:
    """The classical solvers that every table holds."""
    return {"classical_consistent": Classical(CONSISTENT), "classical_lumped": Classical(LUMPED)}


def finer(points: float, device: str = "cpu", curved: bool = False) -> dict[str, Model]:
    """The classical rows with more points than the mesh has nodes: quadratic elements, and linear ones on the mesh refined once.

    Quadratic elements do not know materials that change with the solution (`curved`). None for problems whose `points` (nodes and
    edges) are too many for the device to do this aside.
    """
    if points > FINER[torch.device(device).type]:
        return {}
    quadratic: dict[str, Model] = {} if curved else {"classical_p2": Classical(CONSISTENT, degree=2)}
    return quadratic | {"classical_refined": Refined(Classical(CONSISTENT))}


def without_data(base: Problem) -> dict[str, Model]:
    """Learned models that need no data of the problem: universal weights, where they act on it."""
    found: dict[str, Model] = {"universal": Universal()}
    if base.mesh.n_nodes + len(base.mesh.edges) <= FINER[base.geometry.device.type]:
        found["universal_p2"] = Universal(degree=2)
    return {name: model for name, model in found.items() if isinstance(model, Universal) and model.acts(base)}


@checked
def predict(model: Model, base: Problem, data: Corpus, steps: Count | None = None) -> Tensor:
    """Free rollouts [B, steps+1, N, F] of every trajectory from its first state, at its own time.

    - `model`: any model
    - `base`: the problem; a flow that comes with the data is put in
    - `data`: trajectories that give start, source and flow
    - `steps`: how many; all of theirs by default

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [], dt=0.1)
        >>> data = dg.Corpus(torch.rand(2, 6, 25, 1, dtype=torch.float64), None, None, 0.1, (0.0,))
        >>> dg.predict(dg.Classical(), problem, data).shape
        torch.Size([2, 6, 25, 1])
    """
    return _predicted(model, base, data.under(model.rule), steps or data.steps)


def _predicted(model: Model, base: Problem, data: Corpus, steps: int, first: int = 0) -> Tensor:
    """`first`: the number of the step that the data begin with."""
    groups = data.together(base)
    if len(groups) == 1:
        (start, source), clock = given(model, base, data), data.clock(base)
        source = None if source is None else source[:, :steps]
        if first:
            at = Pause(data.state[:, 0], first, clock - first * base.dt, base.dt, model.name, base.mesh.n_nodes, data.state.dtype)
            return rollout(model, data.problem(base), at, source, steps)
        return rollout(model, data.problem(base), start, source, steps, t0=clock)
    out = data.state.new_empty(len(data), steps + 1, *data.state.shape[2:])
    for rows in groups:
        out[rows] = _predicted(model, base, data.part(rows), steps, first)
    return out


def given(model: Model, base: Problem, data: Corpus) -> tuple[Tensor, Tensor | None]:
    """Start and source at the nodes, and where the model has points beside them and the data know it, at those."""
    start, source, middles = data.state[:, 0], data.source_average, data.middles
    if middles is None or len(model.points(base)) == base.mesh.n_nodes:
        return start, source
    if middles.start is not None:
        start = torch.cat([start, middles.start.to(start)], 1)
    if source is not None and middles.source_average is not None:
        source = torch.cat([source, middles.source_average.to(source)], 2)
    return start, source


class Tally(Protocol):
    """Sums over all predicted states besides the errors: made piece by piece, joined, then turned into figures under `name`."""

    name: str

    def of(self, states: Tensor, truth: Tensor) -> np.ndarray:
        """Sums over one piece of trajectories, from states and truth [B, T+1, N, F]."""
        ...

    def join(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Sums over two pieces together."""
        ...

    def numbers(self, sums: np.ndarray) -> dict[str, float | None]:
        """Figures for JSON."""
        ...


@dataclass(eq=False)
class Judged:
    """Scores of several models on the same trajectories, the seconds they took, and some frames of the first trajectory."""

    fields: tuple[str, ...]
    dt: float
    steps: int
    trajectories: int = 0
    sums: dict[str, Sums] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # models whose rollout broke down or diverged, and at which step
    sample: dict[str, np.ndarray] = field(default_factory=dict)  # [frames, N, F] each; "truth" as well
    tally: Tally | None = None
    tallies: dict[str, np.ndarray] = field(default_factory=dict)  # its sums by model
    states: dict[str, Tensor] = field(default_factory=dict)  # [B, T+1, N, F] on the CPU, where they are to be kept
    data: Corpus | None = None  # what they were judged on, where states are kept
    between: str = ""  # where models have points beside the nodes: what they were given there, a sentence

    @property
    def frames(self) -> list[int]:
        return sorted({max(1, round(k)) for k in np.linspace(0, self.steps, FRAMES + 1)[1:]})

    def error(self, name: str) -> float:
        """RNE from offset; infinite where the model diverged."""
        return self.sums[name].rne_from_offset

    def score(self, name: str) -> Score:
        return self.sums[name].score(self.fields, self.dt)

    def scores(self) -> dict[str, dict[str, Any]]:
        """All figures by model, infinite where it diverged (null in JSON); `error` says at which step."""
        out = {}
        for name, seconds in self.seconds.items():
            row: dict[str, Any] = asdict(self.score(name))
            row["seconds"] = seconds
            row["steps_per_second"] = self.trajectories * self.steps / seconds if seconds else None
            if name in self.failures:
                row["error"] = self.failures[name]
            if self.tally is not None:
                row[self.tally.name] = self.tally.numbers(self.tallies[name])
            out[name] = row
        return out

    def curves(self) -> dict[str, list[float | None]]:
        """RNE from offset at up to CURVE of the stored times, and those times."""
        rows = np.unique(np.linspace(0, self.steps, min(CURVE, self.steps) + 1).round().astype(int))
        found = {name: strict(s.rne_over_time(offset=True)[torch.from_numpy(rows)].tolist()) for name, s in self.sums.items()}
        return {"time": [float(k) * self.dt for k in rows], **found}

    def add(self, models: Mapping[str, Model], base: Problem, data: Corpus, keep: bool, first: int = 0) -> None:
        """Roll out on more trajectories, which begin with step number `first`."""
        truth = data.state[:, : self.steps + 1]
        self.trajectories += len(data)
        self.sample.setdefault("truth", truth[0, self.frames].cpu().numpy())
        if any(len(model.points(base)) > base.mesh.n_nodes for model in models.values()):
            self.between = FITTED if data.middles is None else data.middles.origin
        for name, model in models.items():
            states, seconds, failure = _roll(model, base, data, self.steps, first)
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            if failure is not None:
                self.failures.setdefault(name, failure)
            new = Sums.of(states, truth, data.offset)
            self.sums[name] = Sums.join([self.sums[name], new]) if name in self.sums else new
            self.sample.setdefault(name, states[0, self.frames].cpu().numpy())
            if self.tally is not None:
                more = self.tally.of(states, truth)
                self.tallies[name] = self.tally.join(self.tallies[name], more) if name in self.tallies else more
            if keep:
                self.states[name] = torch.cat([*([self.states[name]] if name in self.states else []), states.cpu()])
            del states


@checked
def judge(models: Mapping[str, Model], base: Problem, data: Corpus, *, steps: Count | None = None,
          keep: bool = False, first: Whole = 0) -> Judged:
    """Roll out several models on the same trajectories in memory and score them. One that diverges counts as infinitely wrong.

    - `models`: by name
    - `base`: the problem; a flow that comes with the data is put in
    - `data`: the true trajectories
    - `steps`: number of steps to score, from the first on; all by default
    - `keep`: keep the predicted states
    - `first`: number of the step that the data begin with; 0: with a start, which a model may filter

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [], dt=0.1)
        >>> true = dg.rollout(dg.Classical(), problem, torch.rand(2, 25, 1, dtype=torch.float64), steps=5)
        >>> found = dg.judge({"lumped": dg.Classical(0.0)}, problem, dg.Corpus(true, None, None, 0.1, (0.0,)))
        >>> 0 < found.error("lumped") < 1  # RNE from offset
        True
    """
    if steps is not None and steps > data.steps:
        raise InputError(f"the data have {data.steps} steps to be judged by, not {steps}")
    result = Judged(base.pde.fields, data.dt, steps or data.steps, data=data if keep else None)
    for rows in _batches(range(len(data)), data.state[0].numel(), data.state.device.type):
        result.add(models, base, data if len(rows) == len(data) else data.part(rows), keep, first)
    return result


def judge_file(models: Mapping[str, Model], case: Case, path: Path, device: str = "cpu", *, split: str = "test",
               numbers: Sequence[int] | None = None, limit: int | None = None, truth: str = "", keep: bool = False) -> Judged:
    """Roll out every model on the trajectories of a split, at most the first `limit`, or on those with these `numbers`.

    Data of another mesh, fields, time step or (where given) kind of truth are refused. With `keep` all states stay in memory.
    """
    base = base_problem(case, device)
    with Dataset(path) as dataset:
        check_fits(dataset, case, truth)
        numbers = dataset.of(split)[:limit] if numbers is None else numbers
        if not numbers:
            raise InputError(f"{path} has no {split} trajectory")
        result = Judged(case.pde.fields, case.dt, dataset.steps, tally=case.tally)
        one = (dataset.steps + 1) * case.mesh.n_nodes * (len(case.pde.fields) + (case.mesh.dim / 4 if case.given_flow else 0))
        ends = any(model.rule == "trapezoid" for model in models.values())
        finer = any(len(model.points(base)) > case.mesh.n_nodes for model in models.values())

        def read(rows: Sequence[int]) -> Corpus:
            return replace(dataset.batch(rows, device=device, ends=ends),
                           middles=(case.between_nodes(dataset, rows, device) or dataset.middles(rows, device)) if finer else None)

        pieces: Iterable[Corpus]
        if keep:
            result.data = whole = read(numbers)
            pieces = (whole.part(rows) for rows in _batches(range(len(numbers)), one, device, _MOST))
        else:
            pieces = (read(rows) for rows in _batches(numbers, one, device, _MOST))
        for piece in pieces:
            result.add(models, base, piece, keep)
    return result


def _roll(model: Model, base: Problem, data: Corpus, steps: int, first: int = 0) -> tuple[Tensor, float, str | None]:
    """(states, seconds, what went wrong). A rollout that breaks down is a result, too: it is not a number everywhere."""
    device, failure = str(data.state.device), None
    if data.middles is not None and len(model.points(base)) > base.mesh.n_nodes:
        _ = data.middles.start, data.middles.source_average  # not on its clock: sources at the nodes are stored, too
    _wait(device)
    begin = time.perf_counter()
    try:
        with torch.no_grad(), few_threads(base.mesh.n_nodes, device):
            states = _predicted(model, base, data.under(model.rule), steps, first)
    except SolveError as error:
        states, failure = torch.full_like(data.state[:, : steps + 1], math.nan), str(error)
    _wait(device)
    seconds = time.perf_counter() - begin
    if failure is None:
        finite = torch.stack([u.isfinite().all() for u in states.unbind(1)]).cpu()
        if not bool(finite.all()):
            failure = f"step {int(finite.int().argmin())} of {steps}: the state is no longer finite"
    return states, seconds, failure


def _batches(numbers: Sequence[int], values: float, device: str, most: int | None = None) -> list[Sequence[int]]:
    """Trajectories of `one` values each, in pieces that fit into memory: state, prediction, source and room for the step."""
    size = int(max(1, BYTES[torch.device(device).type] // (16 * values)))
    size = min(size, most or size)
    return [numbers[at:at + size] for at in range(0, len(numbers), size)]


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
