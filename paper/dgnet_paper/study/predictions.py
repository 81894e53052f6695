"""Anyone's predictions against a truth on file.

The truth is a data set (docs/data-format.md). Predictions are one as well, matched by split and number, or a plain HDF5 file with a
dataset "state" of shape [T+1, N, F] or [B, T+1, N, F] (F may be left out for a single field), in the order of the truth's test
trajectories, or of all of its trajectories.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from dgnet.data import Dataset
from dgnet.data.store import FORMAT
from dgnet.errors import InputError
from dgnet.files import strict
from dgnet.scoring.metrics import Sums
from dgnet_paper.study.results import number


def score_files(predictions: Path, truth: Path, split: str | None = None, trajectory: int | None = None) -> dict[str, Any]:
    """All metrics for JSON. `split` narrows the trajectories down; `trajectory` says which number of the truth a single one is."""
    with Dataset(truth) as true, _opened(predictions, len(true.fields)) as predicted:
        pairs = _matched(predicted, true, split, trajectory)
        parts = [_sums(predicted, row, true, number) for row, number in pairs]
        sums = Sums.join(parts)
        found = strict(asdict(sums.score(true.fields, true.dt)))
        each = {f"{true.splits[number]} {number}": value for (_, number), value in zip(pairs, found["trajectories"])}
        return {"predictions": predictions.name, "truth": truth.name, "trajectories": len(pairs), "steps": true.steps,
                "nodes": sums.nodes, "fields": list(true.fields), "dt": true.dt, "offset": list(true.offset),
                "score": {**found, "trajectories": each}}


class _Plain:
    """A plain file: `state` read as [B, T+1, N, F]."""

    def __init__(self, path: Path, file: h5py.File, width: int) -> None:
        if not isinstance(file.get("state"), h5py.Dataset):
            raise InputError(f"{path} is neither a dgnet data set nor has it a dataset 'state'")
        self.path, self.data = path, file["state"]
        shape = tuple(self.data.shape)
        if width == 1 and (len(shape) == 2 or (len(shape) == 3 and shape[-1] != 1)):
            shape = (*shape, 1)  # the axis of a single field was left out
        self.single = len(shape) == 3
        self.shape = (1, *shape) if self.single else shape
        if len(self.shape) != 4:
            raise InputError(f"{path}: state has shape {list(self.data.shape)}, expected [time, node, field] or "
                             "[trajectory, time, node, field]")

    def raw_states(self, row: int) -> np.ndarray:
        return np.asarray(self.data[()] if self.single else self.data[row], dtype=np.float64).reshape(self.shape[1:])


@contextmanager
def _opened(path: Path, width: int) -> Iterator[Dataset | _Plain]:
    """Predictions in our own format or in a plain file."""
    with _open(path) as file:
        if file.attrs.get("format") != FORMAT:
            yield _Plain(path, file, width)
            return
    with Dataset(path) as found:
        yield found


def _matched(found: Dataset | _Plain, true: Dataset, split: str | None, trajectory: int | None) -> list[tuple[int, int]]:
    """(row of the predictions, number in the truth) pairs; complains about whatever does not fit."""
    if isinstance(found, Dataset):
        return _same_format(found, true, split, trajectory)
    path, (count, times, nodes, width) = found.path, found.shape
    wanted = (true.steps + 1, true.mesh.n_nodes, len(true.fields))
    for what, got, want in zip(("stored times", "nodes", "fields"), (times, nodes, width), wanted):
        if got != want:
            raise InputError(f"{path} predicts {got} {what}, the truth {true.path.name} has {want}")
    numbers = list(range(len(true))) if split is None else true.of(split)
    if split is None and count != len(true):
        numbers = true.of("test")
    if trajectory is not None:
        numbers = [_existing(true, trajectory)]
    if count != len(numbers):
        raise InputError(f"{path} predicts {count} trajectories, the truth {true.path.name} has {len(true.of('test'))} for "
                         f"test and {len(true)} in all; choose with --split or --trajectory, or store as many")
    return list(enumerate(numbers))


def _same_format(found: Dataset, true: Dataset, split: str | None, trajectory: int | None) -> list[tuple[int, int]]:
    name = found.path
    if found.mesh.points.shape != true.mesh.points.shape:
        raise InputError(f"{name} is about a mesh of {found.mesh.n_nodes} nodes in {found.mesh.dim}D, the truth about "
                         f"{true.mesh.n_nodes} in {true.mesh.dim}D")
    size = float(np.ptp(true.mesh.points, axis=0).max())
    if np.abs(found.mesh.points - true.mesh.points).max() > 1e-6 * size:
        node = int(np.abs(found.mesh.points - true.mesh.points).max(axis=1).argmax())
        raise InputError(f"{name} is about another mesh than the truth: node {node} lies elsewhere")
    if found.fields != true.fields:
        raise InputError(f"{name} has the fields {', '.join(found.fields)}, the truth {', '.join(true.fields)}")
    if found.steps != true.steps:
        raise InputError(f"{name} has {found.steps} steps, the truth {true.steps}")
    if abs(found.dt - true.dt) > 1e-9 * true.dt:
        raise InputError(f"{name} has steps of {found.dt:g}, the truth of {true.dt:g}")
    told = trajectory if trajectory is not None else found.provenance.get("trajectory")  # as `dgnet rollout` notes it
    if isinstance(told, int) and told >= 0:
        if len(found) != 1:
            raise InputError(f"{name} holds {len(found)} trajectories, they cannot all be number {told} of the truth")
        return [(0, _existing(true, told))]
    where = {true.origin(number)[:2]: number for number in range(len(true))}
    pairs = []
    for row in range(len(found)):
        key = found.origin(row)[:2]
        if split is not None and key[0] != split:
            continue
        if key not in where:
            raise InputError(f"{name}: {key[0]} trajectory {key[1]} is not among those of the truth")
        pairs.append((row, where[key]))
    if not pairs:
        raise InputError(f"{name} has no {split} trajectory")
    return pairs


def _existing(true: Dataset, number: int) -> int:
    if not 0 <= number < len(true):
        raise InputError(f"{true.path.name} has {len(true)} trajectories, there is no number {number}")
    return number


def _sums(predicted: Dataset | _Plain, row: int, true: Dataset, number: int) -> Sums:
    both = predicted.raw_states(row), true.read(number, only=()).state
    got, want = (torch.from_numpy(np.asarray(states, dtype=np.float64))[None] for states in both)
    return Sums.of(got, want, true.offset)


def _open(path: Path) -> h5py.File:
    if not path.exists():
        raise InputError(f"there is no file {path}")
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file of predictions")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"{path} is not an HDF5 file") from error


def measures(result: dict[str, Any]) -> list[tuple[str, str]]:
    """Rows of a table: each measure in words, and its value."""
    found = result["score"]
    until = "never" if found["until"] is None else f"{number(found['until'])} ({100 * found['until_share']:.0f}% of the horizon)"
    rows = [("MSE", found["mse"]), ("log10 MSE", found["log10_mse"]), ("RNE over the rollout", found["rne"]),
            ("RNE from offset", found["rne_from_offset"]), ("RNE of the last step", found["rne_final"]),
            *((f"RNE from offset of {name}", value) for name, value in found["fields"].items() if len(result["fields"]) > 1)]
    return [*((name, "not finite" if value is None else number(value)) for name, value in rows),
            ("time at which RNE passes 0.1", until)]
