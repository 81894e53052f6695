"""Data sets from scenarios: truth in batches, written trajectory by trajectory, resumed after an interruption.

Every finished trajectory is a whole file in NAME.parts/; when all are there they are joined under the final name.
Batches are cut at fixed places, so that an interrupted and resumed run writes exactly what an undisturbed one does.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.data import Dataset, Header, Trajectory, assemble, write_part
from dgnet.data.store import Scalar
from dgnet.data.trajectory import SPLITS
from dgnet.errors import InputError
from dgnet.files import discard, locked, read_text, write_text
from dgnet.problems.sources import Source
from dgnet.progress import Report
from dgnet_paper.reference.phase import solve as solve_phase
from dgnet_paper.reference.record import FlowRecord, simulate
from dgnet_paper.reference.transport import solve
from dgnet_paper.scenarios.redrawn import averages
from dgnet_paper.scenarios.scenario import Draw, Sample, Scale, Scenario, Truth

Tensor = torch.Tensor

_BYTES = {"cpu": 1 << 30, "cuda": 1 << 34}  # of one batch of results
_MOST = {"cpu": 4, "cuda": 64}  # trajectories in a batch, and with it what an interruption can cost


def generate(scenario: Scenario, out: Path, *, truth: str = "converged", trajectories: int | None = None, seed: int = 0,
             device: str = "cpu", overwrite: bool = False, report: Report | None = None, split: str | None = None) -> Path:
    """Write the data set to OUT/NAME-SIZE-TRUTH.h5 and return that path; a complete one is left as it is.

    At most `trajectories` of each split. If interrupted, the same call resumes. With `split` only that one is made,
    as OUT/NAME-SIZE-TRUTH-SPLIT[-TRAJECTORIES].h5; its trajectories are those of the whole data set, since each draws by its own
    seed.
    """
    draws = [draw for draw in scenario.draws(trajectories, seed) if split in (None, draw.split)]
    if not draws:
        raise InputError(f"unknown split '{split}' (known: {', '.join(SPLITS)})")
    settings = scenario.truth(truth)
    path = out / f"{file_stem(scenario, truth, split, trajectories)}.h5"
    origin = provenance(scenario, truth, draws, seed, device)
    with locked(path):  # several processes: one makes it, the others find it
        if path.exists() and not overwrite:
            _check_existing(path, origin)
        else:
            _make(path, scenario, draws, settings, origin, device, report)
    return path


def _make(path: Path, scenario: Scenario, draws: Sequence[Draw], settings: Truth, origin: dict[str, Scalar], device: str,
          report: Report | None) -> None:
    parts = _parts_folder(path, origin)
    flow = flow_record(scenario, path.parent, device, report)
    record = None if flow is None else flow.snapshots(0)
    targets = [parts / f"{draw.split}-{draw.index:05d}.h5" for draw in draws]
    for chunk in batches(scenario, len(draws), device):
        missing = [i for i in chunk if not targets[i].exists()]
        if missing:
            made = _trajectories(scenario, [draws[i] for i in chunk], settings, flow, device,
                                 _shifted(report, scenario, chunk, len(draws)))
            for i, trajectory in zip(chunk, made):
                if i in missing:
                    write_part(targets[i], trajectory)
    header = Header(scenario.mesh, scenario.pde.fields, scenario.dt, scenario.steps, scenario.offsets, origin, record)
    assemble(path, header, targets)
    discard(parts)


def truth_states(scenario: Scenario, sample: Sample, settings: Truth, flow: FlowRecord | None, device: str = "cpu",
                 progress: Callable[[int], None] | None = None) -> Tensor:
    """The reference solution of a batch at the coarse nodes [B, T+1, N, F], float64 on the CPU."""
    panels = max(1, -(-scenario.panels // settings.substeps))
    if scenario.phase_change is not None:
        return solve_phase(scenario.mesh, scenario.phase_change, scenario.conditions, sample.initial, dt=scenario.dt,
                           steps=scenario.steps, refine=settings.refine, substeps=settings.substeps, source=sample.source,
                           device=device, progress=progress, panels=panels)
    given: Any = flow
    return solve(scenario.mesh, scenario.pde, scenario.conditions, sample.initial, dt=scenario.dt, steps=scenario.steps,
                 refine=settings.refine, substeps=settings.substeps, degree=settings.degree, source=sample.source,
                 flow=given, phases=sample.phases, device=device, progress=progress, order=settings.order, panels=panels)


def source_rows(scenario: Scenario, source: Source, batch: int, device: str = "cpu") -> tuple[np.ndarray, np.ndarray]:
    """Samples [B, T+1, N, F] and step averages [B, T, N, F] of a source at the coarse nodes, float32."""
    x = torch.tensor(scenario.mesh.points, dtype=torch.float64, device=device)
    samples = np.concatenate([source(x, t[None]).float().cpu().numpy() for t in scenario.times.to(device)], axis=1)
    return samples, averages(scenario, source, batch, scenario.mesh.points, device).cpu().numpy()


# ---------------------------------------------------------------------- flow


def flow_record(scenario: Scenario, folder: Path | None, device: str = "cpu", report: Report | None = None,
                ) -> FlowRecord | None:
    """The one flow of a channel, from FOLDER/flow-*.npz where it has been computed before with the same settings."""
    spec = scenario.flow
    if spec is None:
        return None
    every = round(scenario.dt / spec.dt)
    if abs(every * spec.dt - scenario.dt) > 1e-9 * scenario.dt:
        raise InputError(f"the flow's step {spec.dt:g} does not divide the step {scenario.dt:g} of '{scenario.name}'")
    duration = scenario.horizon + spec.phases + scenario.dt  # one row more: the last step may look ahead
    settings = json.dumps([asdict(spec), every, duration, scenario.mesh.n_nodes, __version__])
    path = None if folder is None else (
        folder / f"flow-{scenario.name}-{scenario.size}-{zlib.crc32(settings.encode()):08x}.npz")
    if path is None:
        return _simulated(scenario, every, duration, device, report)
    with locked(path):
        if not path.exists():
            _simulated(scenario, every, duration, device, report).save(path)
        return FlowRecord.load(path)


def _simulated(scenario: Scenario, every: int, duration: float, device: str, report: Report | None) -> FlowRecord:
    spec = scenario.flow
    assert spec is not None

    def tell(done: int, total: int) -> None:
        if report is not None:
            report(f"{scenario.name}: flow", done, total)

    return simulate(scenario.mesh, mean_velocity=spec.mean_velocity, viscosity=spec.viscosity, dt_flow=spec.dt,
                    spin_up=spec.spin_up, duration=duration, store_every=every, refine=spec.refine, device=device, progress=tell)


def flow_rows(scenario: Scenario, flow: FlowRecord, phases: Sequence[float]) -> Tensor:
    """The velocities of trajectories that begin at these phases [B, T+1, N, 2], float32."""
    record = flow.snapshots(0)
    first = [round(phase / scenario.dt) for phase in phases]
    return torch.from_numpy(np.stack([record[k:k + scenario.steps + 1] for k in first]))


# ---------------------------------------------------------------------- pieces


def file_stem(scenario: Scenario, truth: str, split: str | None = None, trajectories: int | None = None) -> str:
    scale = "" if scenario.scale == Scale() else "-scaled-{size:g}-{power:g}-{count:g}".format(**asdict(scenario.scale))
    part = "" if split is None else f"-{split}" + (f"-{trajectories}" if trajectories else "")
    return f"{scenario.name}-{scenario.size}-{truth}{scale}{part}"


def provenance(scenario: Scenario, truth: str, draws: Sequence[Draw], seed: int, device: str) -> dict[str, Scalar]:
    """Everything that decides the numbers of a data set."""
    settings = asdict(scenario.truth(truth))
    scale = {f"scale_{k}": v for k, v in asdict(scenario.scale).items()}
    return {"package": "dgnet", "package_version": __version__, "scenario": scenario.name, "size": scenario.size,
            "truth": truth, **settings, **scale, "seed": seed, "panels": scenario.panels, "device": _kind(device),
            "train": sum(d.split == "train" for d in draws), "test": sum(d.split == "test" for d in draws)}


def batches(scenario: Scenario, count: int, device: str) -> list[range]:
    """Where a data set is cut: by the size of its results alone, never by what is already there."""
    kind = _kind(device)
    one = 3 * 8 * (scenario.steps + 1) * scenario.mesh.n_nodes * len(scenario.pde.fields)
    size = max(1, min(_MOST[kind], _BYTES[kind] // one))
    return [range(at, min(at + size, count)) for at in range(0, count, size)]


def _trajectories(scenario: Scenario, draws: Sequence[Draw], settings: Truth, flow: FlowRecord | None, device: str,
                  progress: Callable[[int], None] | None) -> Iterator[Trajectory]:
    sample = scenario.sample(draws)
    states = truth_states(scenario, sample, settings, flow, device, progress)
    rows = None if sample.source is None else source_rows(scenario, sample.source, len(draws), device)
    time = scenario.times.numpy()
    for b, draw in enumerate(draws):
        first = None if sample.phases is None else round(sample.phases[b] / scenario.dt)
        yield Trajectory(
            states[b].numpy(), time, source=None if rows is None else rows[0][b],
            source_average=None if rows is None else rows[1][b], velocity_start=first, seed=draw.seed(scenario.name),
            split=draw.split, index=draw.index, labels=sample.labels[b] if sample.labels else ())


def _shifted(report: Report | None, scenario: Scenario, chunk: range, count: int) -> Callable[[int], None] | None:
    """Progress of the whole data set in trajectory steps, from the steps of one batch."""
    if report is None:
        return None
    total = count * scenario.steps
    return lambda step: report(scenario.name, chunk.start * scenario.steps + len(chunk) * step, total)


def _parts_folder(path: Path, origin: dict[str, Scalar]) -> Path:
    """The folder of finished trajectories; what an earlier, different request left in it is dropped."""
    folder = path.with_suffix(".parts")
    note = folder / "request.json"
    text = json.dumps(origin, sort_keys=True)
    if folder.exists() and (not note.exists() or read_text(note) != text):
        discard(folder)
    if not folder.exists():
        write_text(note, text)
    return folder


def _check_existing(path: Path, origin: dict[str, Scalar]) -> None:
    with Dataset(path) as found:
        different = [key for key, value in origin.items() if found.provenance.get(key) != value]
        if different:
            key = different[0]
            raise InputError(f"{path} already holds a data set with {key} = {found.provenance.get(key)} instead of "
                             f"{origin[key]}; choose another folder or --overwrite")


def _kind(device: Any) -> str:
    return torch.device(device).type
