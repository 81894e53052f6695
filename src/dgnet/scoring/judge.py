"""Free rollouts of test trajectories, scored piece by piece: memory does not grow with the test set."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.data import Corpus, Dataset
from dgnet.data.fits import check_fits
from dgnet.errors import InputError, SolveError
from dgnet.files import strict
from dgnet.models import few_threads, rollout
from dgnet.problems import Discretisation
from dgnet.problems.case import base_problem
from dgnet.scenarios.scenario import Scenario
from dgnet.scoring.metrics import Sums

Tensor = torch.Tensor

_BYTES = {"cpu": 5e8, "cuda": 2e9}  # of the stored arrays of one piece
_MOST = 16  # trajectories of one piece
FRAMES = 4  # of the trajectory that is kept for pictures
CURVE = 60  # points of a curve over time


@dataclass(eq=False)
class Judged:
    """Scores of several models on the same trajectories, the seconds they took, and some frames of the first trajectory."""

    trajectories: int
    steps: int
    frames: list[int]
    sums: dict[str, Sums] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sample: dict[str, np.ndarray] = field(default_factory=dict)  # [frames, N, F] each; "truth" as well
    errors: dict[str, str] = field(default_factory=dict)  # models whose rollout broke down, and why
    melting: dict[str, np.ndarray] = field(default_factory=dict)  # see _melting

    def scores(self, scenario: Scenario) -> dict[str, dict[str, Any]]:
        """For JSON: what is not finite becomes None."""
        out = {}
        for name, sums in self.sums.items():
            row = strict(asdict(sums.score(scenario.pde.fields, scenario.dt)))
            row["seconds"] = self.seconds[name]
            row["steps_per_second"] = self.trajectories * self.steps / self.seconds[name] if self.seconds[name] else None
            if name in self.errors:
                row["error"] = self.errors[name]
            if name in self.melting:
                row["melting"] = _melting_numbers(self.melting[name])
            out[name] = row
        return out

    def curves(self, scenario: Scenario) -> dict[str, list[float | None]]:
        """RNE from the offset at up to CURVE of the stored times, and those times."""
        rows = np.unique(np.linspace(0, self.steps, min(CURVE, self.steps) + 1).round().astype(int))
        found = {name: strict(s.rne_over_time(offset=True)[torch.from_numpy(rows)].tolist()) for name, s in self.sums.items()}
        return {"time": [float(k) * scenario.dt for k in rows], **found}


def predict(model: Any, base: Discretisation, data: Corpus, steps: int | None = None) -> Tensor:
    """Free rollouts [B, steps+1, N, F] of every row from its first state, at its own time."""
    groups, steps = data.together(base), steps or data.steps
    if len(groups) == 1:
        source = None if data.source is None else data.source[:, :steps]
        return rollout(model, data.problem(base), data.state[:, 0], source, steps, t0=data.clock(base))
    out = torch.empty_like(data.state[:, : steps + 1])
    for rows in groups:
        out[rows] = predict(model, base, data.part(rows), steps)
    return out


def judge(models: Mapping[str, Any], scenario: Scenario, path: Path, device: str = "cpu", limit: int | None = None) -> Judged:
    """Roll out every model on all test trajectories of a data set, or on the first `limit` of them."""
    base = base_problem(scenario, device)
    with Dataset(path) as dataset:
        check_fits(dataset, scenario)
        numbers = dataset.of("test")[:limit]
        if not numbers:
            raise InputError(f"{path} has no test trajectory")
        steps = dataset.steps
        frames = sorted({max(1, round(k)) for k in np.linspace(0, steps, FRAMES + 1)[1:]})
        result = Judged(len(numbers), steps, frames)
        pieces: dict[str, list[Sums]] = {name: [] for name in models}
        for chunk in _chunks(numbers, scenario, steps, device):
            data = Corpus.read(dataset, chunk, device)
            if "truth" not in result.sample:
                result.sample["truth"] = data.state[0, frames].cpu().numpy()
            for name, model in models.items():
                states, seconds = _roll(name, model, data, base, scenario, device, result)
                result.seconds[name] = result.seconds.get(name, 0.0) + seconds
                pieces[name].append(Sums.of(states, data.state, scenario.offsets))
                if name not in result.sample:
                    result.sample[name] = states[0, frames].cpu().numpy()
                if scenario.phase_change is not None:
                    found = _melting(states, data.state, scenario)
                    result.melting[name] = _melting_join(result.melting.get(name), found)
                del states
    result.sums = {name: Sums.join(parts) for name, parts in pieces.items()}
    return result


def _roll(name: str, model: Any, data: Corpus, base: Any, scenario: Scenario, device: str, result: Judged) -> tuple[Tensor, float]:
    _wait(device)
    begin = time.perf_counter()
    try:
        with torch.no_grad(), few_threads(scenario.mesh.n_nodes, device):
            states = predict(model, base, data)
    except SolveError as error:  # a rollout that breaks down is a result, too
        states = torch.full_like(data.state, math.nan)
        result.errors[name] = str(error)
    _wait(device)
    return states, time.perf_counter() - begin


def _wait(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()


def _chunks(numbers: list[int], scenario: Scenario, steps: int, device: str) -> list[list[int]]:
    width = len(scenario.pde.fields) * 4 + (scenario.mesh.dim if scenario.flow is not None else 0)
    one = 4 * (steps + 1) * scenario.mesh.n_nodes * width
    size = int(max(1, min(_MOST, _BYTES[torch.device(device).type] // one)))
    return [numbers[at:at + size] for at in range(0, len(numbers), size)]


# ---------------------------------------------------------------------- where a phase transition goes wrong


def _melting(states: Tensor, truth: Tensor, scenario: Scenario) -> np.ndarray:
    """Sums over all states: squared error in all, squared error, signed error and count where the truth is in transition or
    above it, highest predicted and true value. The transition is T_c - w .. T_c + w."""
    phase = scenario.phase_change
    assert phase is not None
    hot = truth > phase.temperature - phase.width
    error = (states - truth).double()
    return np.array([float(error.square().sum()), float(error[hot].square().sum()), float(error[hot].sum()), float(hot.sum()),
                     float(states.double().max()), float(truth.double().max()), float(truth.numel())])


def _melting_join(a: np.ndarray | None, b: np.ndarray) -> np.ndarray:
    if a is None:
        return b
    top = np.array([False, False, False, False, True, True, False])
    return np.where(top, np.maximum(a, b), a + b)


def _melting_numbers(m: np.ndarray) -> dict[str, float | None]:
    return strict({"share_of_error": float(m[1] / max(m[0], 1e-300)), "share_of_states": float(m[3] / max(m[6], 1.0)),
                  "mean_overheating": float(m[2] / max(m[3], 1.0)), "highest": float(m[4]), "highest_true": float(m[5])})
