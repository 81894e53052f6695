"""Trajectories of a data set drawn again: their starts and sources as functions, for points that are not stored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from dgnet.data import Dataset
from dgnet.problems.case import Case
from dgnet.problems.sources import Source, step_average
from dgnet_paper.scenarios.scenario import Draw, Sample, Scale, Scenario

Tensor = torch.Tensor

_ENTRIES = {"cpu": 1 << 16, "cuda": 1 << 26}  # of one call of a source: on the CPU what stays in its cache, half the time of more


def averages(scenario: Scenario, source: Source, batch: int, points: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """Step averages [B, T, P, F] of a source at points [P, d], float32 on the device."""
    kind, width = torch.device(device).type, len(scenario.pde.fields)
    x, times = torch.tensor(points, device=device), scenario.times[:-1].to(device)
    rows = max(1, _ENTRIES[kind] // (batch * len(points) * width))
    out = torch.empty((batch, scenario.steps, len(points), width), dtype=torch.float32, device=device)
    for first in range(0, scenario.steps, rows):
        block = times[first:first + rows]
        out[:, first:first + len(block)] = step_average(source, x, block, scenario.dt, scenario.panels).float()
    return out


class Redrawn:
    """Starts and sources at the middles of the mesh's edges (`dgnet.data.Middles`) from the draws behind stored trajectories."""

    origin = "Between the nodes, starts and sources are those that the trajectories were drawn with."

    def __init__(self, scenario: Scenario, draws: Sequence[Draw], device: torch.device | str) -> None:
        self.scenario, self.draws, self.device = scenario, list(draws), device

    @classmethod
    def of(cls, case: Case, dataset: Dataset, numbers: Sequence[int], device: torch.device | str) -> Redrawn | None:
        """None where the data do not come from this scenario, or were drawn by another version of it."""
        found = dataset.provenance
        if not isinstance(case, Scenario) or (found.get("scenario"), found.get("size")) != (case.name, case.size):
            return None
        if Scale(*(float(found.get(f"scale_{name}", 1.0)) for name in ("size", "power", "count"))) != case.scale:
            return None
        stored = [dataset.origin(n) for n in numbers]
        draws = [Draw(split, index, int(found.get("seed", 0))) for split, index, _ in stored]
        same = all(draw.seed(case.name) == seed for draw, (_, _, seed) in zip(draws, stored))
        return cls(case, draws, device) if same else None

    def part(self, rows: Sequence[int]) -> Redrawn:
        return Redrawn(self.scenario, [self.draws[r] for r in rows], self.device)

    @cached_property
    def _sample(self) -> Sample:
        return self.scenario.sample(self.draws)

    @cached_property
    def _points(self) -> np.ndarray:
        mesh = self.scenario.mesh
        return mesh.middles

    @cached_property
    def start(self) -> Tensor:
        """[B, E, F]: the function where there is one, else linear in between, as the truth has it."""
        initial = self._sample.initial
        if callable(initial):
            u = initial(torch.tensor(self._points))
        else:
            i, j = torch.tensor(self.scenario.mesh.edges).T
            u = 0.5 * (initial[:, i] + initial[:, j])
        return u.expand(len(self.draws), -1, -1).to(self.device)

    @cached_property
    def source_average(self) -> Tensor | None:
        """[B, T, E, F]."""
        source = self._sample.source
        return None if source is None else averages(self.scenario, source, len(self.draws), self._points, self.device)
