"""Finished cells on disk: loose in the folders of a study, or packed into a store that is small enough for a repository.

    OUT/cells/TAG/              cell.json, sample.npz (frames of the first test trajectory), run/, pictures
    STORE/cells.jsonl           one cell a line, sorted by tag: a change of one cell is a change of one line
    STORE/frames.npz            TAG/frames: step numbers; TAG/truth in single precision; TAG/MODEL: model - truth in half precision
    STORE/pictures/TAG-*.png    pictures that a cell drew itself

A store keeps eight digits of a number, and of the frames what a picture shows: the first field of the middle and the last one. The
truth of a scenario is stored once, with its classical cell. Weights are not kept.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dgnet.errors import InputError
from dgnet.files import (
    arrays_of,
    discard,
    locked,
    read_json,
    read_text,
    unfinished,
    unwritable,
    write_bytes,
    write_json,
    write_text,
    writing,
)
from dgnet_paper.study.experiment import SQUARES, Experiment, Record

CELLS, FRAMES, PICTURES = "cells.jsonl", "frames.npz", "pictures"
_DIGITS = 8
_TYPES: dict[str, type] = {"about": dict, "history": list, "curves": dict, "scores": dict, "cell": dict, "date": str,
                           "seconds": dict,
                           "hardware": str, "figures": list, "sharing": int}


# ---------------------------------------------------------------------- records


class _Checked(dict[str, Any]):
    """A record, or a part of one: reading a key that is not there names the file that lacks it."""

    def __init__(self, rows: Mapping[str, Any], path: Path) -> None:
        super().__init__(rows)
        self.path = path

    def __missing__(self, key: str) -> None:
        raise InputError(f"{self.path} is damaged: it has no '{key}'")


def read(cell: Experiment, out: Path) -> Record:
    """The record of a finished cell of the study OUT."""
    return read_json(cell.folder(out) / "cell.json")


def read_from(folder: Path) -> Record:
    """The record in the folder of a finished cell."""
    path = folder / "cell.json"
    if not path.exists():
        raise InputError(f"{folder} is no finished cell: it has no cell.json")
    return _checked(read_json(path, {"tag": str}), path)


def load(folders: Sequence[Path]) -> dict[str, Record]:
    """All finished cells of some studies by tag, stores included; `folder` is where each lies. The later of two counts."""
    found: dict[str, Record] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        if not (folder / "cells").is_dir() and not packed(folder):
            raise InputError(f"{folder} is no study: it has neither a folder 'cells' nor a file {CELLS}")
        for path, raw in (*_stored(folder), *_loose(folder)):
            record = _checked(raw, path)
            if record["tag"] not in found or record.get("date", "") > found[record["tag"]].get("date", ""):
                found[record["tag"]] = record
    return found


def packed(folder: Path) -> bool:
    """FOLDER is a store."""
    return (folder / CELLS).exists()


def _loose(folder: Path) -> Iterable[tuple[Path, Record]]:
    for path in sorted(folder.glob("cells/*/cell.json")):
        record = read_json(path, {"tag": str})
        if path.parent.name != record["tag"]:
            raise InputError(f"{path}: '{record['tag']}' is not the name of a cell in this folder")
        yield path, {**record, "folder": path.parent}


def _stored(folder: Path) -> Iterable[tuple[Path, Record]]:
    path = folder / CELLS
    for number, line in enumerate(read_text(path).splitlines() if path.exists() else (), 1):
        try:
            record = json.loads(line)
            str.strip(record["tag"])  # a text
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged in line {number}") from error
        yield path, {**record, "folder": folder}


def _checked(record: Record, path: Path) -> Record:
    """The record of a cell whose parts are what tables and pictures expect, else InputError."""
    try:
        cell = Experiment.parse(record["tag"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if cell.tag != record["tag"]:
        raise InputError(f"{path}: '{record['tag']}' is not the name of a cell")
    damage = _damage(record)
    if damage:
        raise InputError(f"{path} is damaged: {damage}")
    if "scores" in record:
        record = {**record, "scores": _Checked({name: _Checked(row, path) for name, row in record["scores"].items()}, path)}
    return _Checked(record, path)


def _damage(record: Record) -> str:
    """What is wrong with the parts of a record, in words; empty where nothing is."""
    for key, kind in _TYPES.items():
        if not isinstance(record.get(key, kind()), kind):
            return f"'{key}' is of the wrong kind"
    for name, row in record.get("scores", {}).items():
        figures = [row.get(k) for k in ("rne", "mse", "rne_from_offset")] if isinstance(row, dict) else [""]
        if any(not isinstance(v, int | float | None) for v in figures):
            return f"the scores of '{name}' are not numbers"
    curves = record.get("curves", {})
    lists = all(isinstance(row, list) for row in curves.values()) and len({len(row) for row in curves.values()}) < 2
    sound = {"its seconds are not numbers": all(isinstance(v, int | float) for v in record.get("seconds", {}).values()),
             "its figures are not names": all(isinstance(name, str) for name in record.get("figures", ())),
             "its history is not a list of tables": all(isinstance(row, dict) for row in record.get("history", ())),
             "its curves are not lists of one length, with the time": not curves or (lists and "time" in curves)}
    return next((words for words, right in sound.items() if not right), "")


def failures(folders: Sequence[Path]) -> dict[str, str]:
    """Cells that were tried and could not be finished, with the reason."""
    return {path.parent.name: str(read_json(path).get("error", "")) for folder in folders
            for path in sorted(folder.glob("cells/*/failed.json")) if not (path.parent / "cell.json").exists()}


# ---------------------------------------------------------------------- frames and pictures


def sample(record: Record | None) -> dict[str, np.ndarray]:
    """Frames of the first test trajectory: `frames` [K], `truth` and each model [K, N, F]; empty where there are none."""
    if record is None:
        return {}
    if packed(record["folder"]):
        return _unpacked_frames(record)
    path = record["folder"] / "sample.npz"
    if not path.exists():
        return {}
    with arrays_of(path) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    fields = [value for name, value in found.items() if name != "frames"]
    whole = "truth" in found and "frames" in found and found["frames"].ndim == 1 and all(
        value.dtype.kind == "f" and value.ndim == 3 and value.shape == found["truth"].shape for value in fields)
    if not whole or len(found["frames"]) != len(found["truth"]):
        raise InputError(f"{path} is damaged: it does not hold frames of one shape, with the truth")
    return found


def _unpacked_frames(record: Record) -> dict[str, np.ndarray]:
    tag, cell = record["tag"], Experiment.parse(record["tag"])
    with arrays_of(record["folder"] / FRAMES) as arrays:
        if cell.scenario == SQUARES or f"{tag}/frames" not in arrays:
            return {}
        truth = arrays[f"{truth_of(cell).tag}/truth"]
        names = [key.split("/")[1] for key in arrays.files if key.startswith(f"{tag}/")]
        models = {name: truth + arrays[f"{tag}/{name}"] for name in names if name not in ("frames", "truth")}
        return {"frames": arrays[f"{tag}/frames"], "truth": truth, **models}


def truth_of(cell: Experiment) -> Experiment:
    """The cell of the classical solvers on the same test trajectories: its frames hold the truth."""
    return Experiment("classical", cell.scenario, cell.size, cell.truth, few=cell.few, scale=cell.scale)


def picture(record: Record, name: str) -> Path:
    """Where a picture of a cell lies, in a store or in the folder of the cell."""
    folder: Path = record["folder"]
    return folder / PICTURES / f"{record['tag']}-{name}" if packed(folder) else folder / Path(name).name


# ---------------------------------------------------------------------- stores and copies


def pack(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the finished cells of some studies as one store; returns their tags."""
    records = load(folders)
    cells = {Experiment.parse(tag): record for tag, record in sorted(records.items())}
    arrays: dict[str, np.ndarray] = {}
    for cell, record in cells.items():
        if _drawn(cell, cells):
            arrays |= {f"{cell.tag}/{name}": value for name, value in _packed_frames(sample(record),
                                                                                     cell == truth_of(cell)).items()}
    out.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_short({k: v for k, v in record.items() if k != "folder"}), separators=(",", ":"))
             for record in cells.values()]
    write_text(out / CELLS, "\n".join(lines) + "\n")
    with writing(out / FRAMES) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    for record in cells.values():
        for name in record.get("figures", ()):
            if picture(record, name).exists():
                write_bytes(out / PICTURES / f"{record['tag']}-{name}", picture(record, name).read_bytes())
    return [cell.tag for cell in cells]


def _packed_frames(frames: Mapping[str, np.ndarray], with_truth: bool) -> dict[str, np.ndarray]:
    """The first field of the middle and the last frame: models as their distance from the truth, which keeps small errors."""
    if not frames:
        return {}
    last = len(frames["frames"]) - 1
    chosen = sorted({last // 2, last})
    field = {name: np.asarray(value, dtype=np.float64)[chosen, :, :1] for name, value in frames.items() if name != "frames"}
    truth = field.pop("truth")
    with np.errstate(over="ignore"):  # what diverged is infinite
        found = {name: (value - truth).astype(np.float16) for name, value in field.items()}
    return {"frames": np.asarray(frames["frames"])[chosen], **({"truth": truth.astype(np.float32)} if with_truth else {}), **found}


def _drawn(cell: Experiment, cells: Iterable[Experiment]) -> bool:
    """A picture of fields shows this cell: the classical solvers, and of a trained model its first seed with all trajectories."""
    if cell.kind == "classical":
        return not cell.scaled
    if cell.kind != "train" or cell.unknown_reaction or cell.trajectories or truth_of(cell) not in cells:
        return False
    return cell.seed == min(c.seed for c in cells if replace(c, seed=cell.seed) == cell)


def merge(sources: Sequence[Path], out: Path) -> list[str]:
    """Copy the finished cells of other studies that OUT does not have; returns their tags."""
    present = load([out]) if (out / "cells").is_dir() else {}
    wanted = {tag: record for tag, record in load(sources).items() if tag not in present}
    for record in wanted.values():  # before the first is copied
        if (record["folder"] / "cell.json").is_symlink():
            raise InputError(f"{record['folder'] / 'cell.json'} is a symbolic link, which merge does not follow")
    for tag, record in wanted.items():
        target = out / "cells" / tag
        part = unfinished(target)
        try:
            if packed(record["folder"]):
                _unpack(record, part)
            else:
                shutil.copytree(record["folder"], part, ignore=_not_merged)
            with locked(target):
                discard(target)  # an attempt that was not finished
                os.replace(part, target)
        except (OSError, shutil.Error) as error:
            raise unwritable(target, error) from error
        finally:
            discard(part)
    return list(wanted)


def _unpack(record: Record, folder: Path) -> None:
    """A cell of a store as a study keeps it: its record, the frames that are there and its pictures."""
    write_json(folder / "cell.json", {k: v for k, v in record.items() if k != "folder"})
    frames = sample(record)
    if frames:
        np.savez(folder / "sample.npz", allow_pickle=False, **frames)  # type: ignore[arg-type]
    for name in record.get("figures", ()):
        if picture(record, name).exists():
            write_bytes(folder / Path(name).name, picture(record, name).read_bytes())


def _not_merged(folder: str, names: list[str]) -> set[str]:
    """What stays behind: unfinished things, and symbolic links, which could point to any file of this machine."""
    return {name for name in names if (Path(folder) / name).is_symlink() or name == "last.pt" or ".part" in name}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return [_short(v) for v in value] if isinstance(value, list | tuple) else value
