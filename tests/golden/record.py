"""States that must not change when code only moves: `python -m tests.golden.record` writes golden.npz, the test compares with it.

Every shipped set of weights and both classical solvers make a few steps from the first test draw of their scenario. A channel's
flow and start are made up, so that no reference solver is needed. Kept are the last states at 64 nodes. A short training on the
tiny project of tests/projects keeps its validation errors.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from dgnet.models.classical import Classical
from dgnet.models.timeloop import rollout
from dgnet.problems import Problem
from dgnet.problems.sources import step_average
from dgnet.problems.spot_table import SpotTable
from dgnet.projects import load
from dgnet.training.own import train_project
from dgnet.training.run import Run
from dgnet_paper.scenarios.scenario import Scenario, scenario_of
from dgnet_paper.study.pretrained import SHELF
from tests.projects.conftest import DT, TOML, plate, write_tiny
from tests.projects.conftest import STEPS as PROJECT_STEPS

FILE = Path(__file__).parent / "golden.npz"
STEPS, NODES = 4, 64


def made_up_flow(scenario: Scenario, steps: int = STEPS) -> torch.Tensor:
    """A smooth flow [1, steps + 1, N, d] along the first axis that pulses and meanders; no solution of anything."""
    x = torch.tensor(scenario.mesh.points)
    low, high = x.amin(0), x.amax(0)
    s = (x - low) / (high - low)
    t = torch.arange(steps + 1, dtype=torch.float64)[:, None]
    v = torch.zeros(steps + 1, *x.shape, dtype=torch.float64)
    v[..., 0] = 4 * s[:, 1] * (1 - s[:, 1]) * (1 + 0.2 * torch.sin(0.7 * t))
    v[..., 1] = 0.3 * torch.sin(6 * s[:, 0] - 0.5 * t) * s[:, 1] * (1 - s[:, 1])
    return v[None].float()


def first_steps(scenario: Scenario, steps: int = STEPS) -> tuple[Problem, torch.Tensor, torch.Tensor | None]:
    """Problem, start and source of the first test draw, in single precision."""
    draw = [d for d in scenario.draws() if d.split == "test"][:1]
    sample = scenario.sample(draw)
    x = torch.tensor(scenario.mesh.points)
    start = (sample.initial(x) if callable(sample.initial) else sample.initial).float()
    if not start.any():  # a channel is empty until something is injected: put a cloud into it
        s = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
        start = start + torch.exp(-((s - 0.4) ** 2).sum(-1) / 0.02).float()[None, :, None]
    source = None
    if sample.source is not None:
        source = step_average(sample.source, x, scenario.times[:steps], scenario.dt, scenario.panels).float()
    flow = None if scenario.flow is None else made_up_flow(scenario, steps)
    return scenario.problem(flow, dtype=torch.float32), start, source


def states(label: str) -> dict[str, np.ndarray]:
    """Last states [nodes, fields] of one shipped set of weights and of the classical solvers beside it."""
    run = Run.open(SHELF / label)
    scenario = scenario_of(run)
    problem, start, source = first_steps(scenario)
    at = np.linspace(0, scenario.mesh.n_nodes - 1, NODES).astype(int)
    out = {}
    for name, model in {"dgnet": run.model, "consistent": Classical(1.0), "lumped": Classical(0.0)}.items():
        with torch.no_grad():
            out[f"{label}/{name}"] = rollout(model, problem, start, source, STEPS)[0, -1].double().numpy()[at]
    return out


def training(folder: Path) -> np.ndarray:
    """Validation errors of a few iterations on the tiny project: untrained first, then after each stage.

    Its sources are stored step averages at the nodes, which do not depend on how spots get onto a mesh.
    """
    toml = TOML.replace('source = "run-*.csv"', 'source = "file"').replace('source = "run-1.csv"', 'source = "file"')
    tiny = write_tiny(folder / "tiny", toml + "\n[training]\nwindows = [2, 4]\niterations = [6, 4]\nminutes = 10\n")
    for name, table in (("run-1", "run-1"), ("run-2", "run-2"), ("last", "run-1")):
        average = SpotTable.read(tiny / f"{table}.csv", 2).average(torch.tensor(plate().points), 0, PROJECT_STEPS, DT)[0].numpy()
        with np.load(tiny / f"{name}.npz") as arrays:
            np.savez(tiny / f"{name}.npz", source_average=average, allow_pickle=False, **arrays)
    _, progress = train_project(load(tiny), folder / "run")
    return np.array([row["validation"] for row in progress.history if row["iteration"] in (0, 6, 10)] + [progress.classical])


def labels() -> list[str]:
    return sorted(folder.name for folder in SHELF.iterdir() if (folder / "weights.pt").exists())


if __name__ == "__main__":
    found: dict[str, np.ndarray] = {}
    for label in labels():
        found |= states(label)
        print(label, {k.split("/")[1]: float(np.abs(v).max()) for k, v in found.items() if k.startswith(label)}, flush=True)
    with TemporaryDirectory() as scratch:
        found["training"] = training(Path(scratch))
        print("training", found["training"])
    np.savez_compressed(FILE, allow_pickle=False, **found)  # type: ignore[arg-type]
