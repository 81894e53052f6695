"""How far truth is from converged, beside the error of the classical solver that a model has to beat.

The certificate of a data set is the distance, at the coarse nodes, between truth at (refine, substeps) and at (refine + 1,
2 substeps). It is good when it lies at least ten times below the error of the classical solver on the same mesh and step.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dgnet.data import Corpus
from dgnet.files import locked, read_json, write_json
from dgnet.progress import Report
from dgnet.scoring.judge import judge, rivals
from dgnet.scoring.metrics import rne
from dgnet_paper.reference.record import FlowRecord
from dgnet_paper.scenarios import Sample, Scenario, Truth
from dgnet_paper.scenarios.generate import flow_record, flow_rows, source_rows, truth_states

Tensor = torch.Tensor


@dataclass(frozen=True)
class Certificate:
    """Relative distances, measured from the scenario's offset (T - T_amb)."""

    scenario: str
    size: str
    truth: str
    settings: Truth
    trajectories: int
    steps: int
    distance: float
    distance_final: float
    classical: dict[str, float]
    seconds: float

    @property
    def ratio(self) -> float | None:
        """How many times the best classical error exceeds the distance."""
        return min(self.classical.values()) / self.distance if self.classical and self.distance > 0 else None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def certify(scenario: Scenario, *, truth: str = "converged", trajectories: int = 2, seed: int = 0, device: str = "cpu",
            flows: Path | None = None, steps: int | None = None,
            report: Report | None = None) -> Certificate:
    """Solve the first training trajectories twice, the second time on half the spacing and step.

    `flows` is a folder (that of a data set) where the flow of a channel is looked for and kept; `steps` cuts the
    trajectories short.
    """
    begin = time.perf_counter()
    draws = [d for d in scenario.draws(trajectories, seed) if d.split == "train"]
    sample = scenario.sample(draws)
    settings = scenario.truth(truth)
    flow = flow_record(scenario, flows, device, report)
    scenario = replace(scenario, steps=min(steps or scenario.steps, scenario.steps))
    states = []
    for name, level in ((f"truth {settings.refine}, {settings.substeps}", settings), ("finer", settings.finer)):
        def tell(step: int, name: str = name) -> None:
            if report is not None:
                report(f"{scenario.name}: {name}", step, scenario.steps)

        states.append(truth_states(scenario, sample, level, flow, device, tell))
    coarse, fine = states
    offset = scenario.offsets
    return Certificate(scenario.name, scenario.size, truth, settings, len(draws), scenario.steps,
                       rne(coarse, fine, offset),
                       rne(coarse[:, -1:], fine[:, -1:], offset),
                       classical_error(scenario, sample, coarse, flow, device), time.perf_counter() - begin)


def classical_error(scenario: Scenario, sample: Sample, truth: Tensor, flow: FlowRecord | None,
                    device: str = "cpu") -> dict[str, float]:
    """Error of Crank–Nicolson without learning, on the scenario's mesh and time step, against `truth` [B, T+1, N, F].

    With the lumped mass (the paper's L_physics) and with the consistent one; sources enter as their step averages.
    """
    batch = len(truth)
    source = None if sample.source is None else torch.from_numpy(source_rows(scenario, sample.source, batch, device)[1])
    velocity = None if flow is None or sample.phases is None else flow_rows(scenario, flow, sample.phases)
    data = Corpus(truth.to(device), None if source is None else source.double().to(device), None, scenario.dt, scenario.offsets)
    found = judge(rivals(), scenario.problem(velocity, device=device), data)
    return {name.removeprefix("classical_"): found.error(name) for name in reversed(rivals())}


def update_record(path: Path, certificate: Certificate) -> None:
    """Put a certificate into the JSON file that the scenario cards are written from, keyed by name, size and truth."""
    with locked(path):
        record = read_json(path) if path.exists() else {}
        record[f"{certificate.scenario}/{certificate.size}/{certificate.truth}"] = certificate.as_dict()
        write_json(path, dict(sorted(record.items())))
