"""A finished study as three small things: what a repository keeps of it.

    FOLDER/cells.jsonl          one cell a line, sorted by tag: a change of one cell is a change of one line
    FOLDER/frames.npz           frames of the first test trajectory, for pictures
    FOLDER/pictures/TAG-*.png   pictures that a cell drew itself

Numbers keep eight digits. Only frames that a picture shows are kept: the first field of the middle and the last frame. The truth is
stored once per scenario with 16 bits. A model's frames are stored as their difference from the truth with 8 bits, so a small error
keeps its shape. Weights are not kept here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgnet.errors import InputError
from dgnet.files import arrays_of, read_text, write_bytes, write_json, write_text, writing
from dgnet.scoring.metrics import current_names
from dgnet_paper.study.experiment import SQUARES, Experiment, Record, current_methods

CELLS, FRAMES, PICTURES = "cells.jsonl", "frames.npz", "pictures"
_DIGITS = 8
_BITS = {"truth": 16, "error": 8}


def pack(records: Mapping[str, Record], samples: Mapping[str, Mapping[str, np.ndarray]], base: Mapping[str, str],
         out: Path) -> None:
    """Write the store. `samples[tag]` are arrays [frame, node, field]; `base[tag]` is the cell that holds the truth of a cell."""
    out.mkdir(parents=True, exist_ok=True)
    plain = ({k: v for k, v in records[tag].items() if k not in ("folder", "stored_as")} for tag in sorted(records))
    lines = [json.dumps(_short(record), separators=(",", ":")) for record in plain]
    arrays: dict[str, np.ndarray] = {}
    for tag, sample in sorted(samples.items()):
        truth = sample["truth"]  # its own: that of the base may have other frames, where one of the two was packed before
        last = len(sample["frames"]) - 1
        chosen = sorted({last // 2, last})
        arrays[f"{tag}/frames"] = np.asarray(sample["frames"])[chosen]
        for name, value in sample.items():
            if name == "frames" or (name == "truth" and base.get(tag, tag) != tag):
                continue
            field = np.asarray(value, dtype=np.float64)[chosen, :, :1]
            kind = "truth" if name == "truth" else "error"
            if kind == "error":
                field = field - np.asarray(truth, dtype=np.float64)[chosen, :, :1]
            arrays[f"{tag}/{name}/codes"], arrays[f"{tag}/{name}/range"] = _coded(field, kind)
    write_text(out / CELLS, "\n".join(lines) + "\n")
    with writing(out / FRAMES) as part, part.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)  # type: ignore[arg-type]
    for tag, record in records.items():
        for name in record.get("figures", ()):
            drawn = picture(record, name)
            if drawn.exists():
                write_bytes(out / PICTURES / f"{tag}-{name}", drawn.read_bytes())


def records(folder: Path) -> Iterable[tuple[Path, Record]]:
    """The file and the cells of a store; none where a folder has no store. `folder` of a record is the store."""
    path = folder / CELLS
    if not path.exists():
        return
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            record = current_methods(current_names(json.loads(line)))
            str.strip(record["tag"])  # a text
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged in line {number}") from error
        yield path, {**record, "folder": folder}


def sample(record: Record, base: str) -> dict[str, np.ndarray]:
    """Frames of a stored cell as `write_sample` had them; empty where there are none."""
    tag = record.get("stored_as", record["tag"])
    with arrays_of(record["folder"] / FRAMES) as arrays:
        if f"{tag}/frames" not in arrays:
            return {}
        truth = _decoded(arrays, f"{base}/truth")
        names = [key.split("/")[1] for key in arrays.files if key.startswith(f"{tag}/") and key.endswith("/codes")]
        out = {name: truth + _decoded(arrays, f"{tag}/{name}") for name in names if name != "truth"}
        return {"frames": arrays[f"{tag}/frames"], "truth": truth, **renamed(record, out)}


def truth_of(cell: Experiment) -> Experiment:
    """The cell of the classical solvers on the same test trajectories: its frames hold the truth."""
    return Experiment("classical", cell.scenario, cell.size, cell.truth, few=cell.few, scale=cell.scale)


def unpack(record: Record, folder: Path) -> None:
    """A stored cell as a study keeps it, in FOLDER: its record, the frames that are there and its pictures."""
    write_json(folder / "cell.json", {k: v for k, v in record.items() if k not in ("folder", "stored_as")})
    cell = Experiment.parse(record["tag"])
    frames = {} if cell.scenario == SQUARES else sample(record, truth_of(cell).tag)
    if frames:
        np.savez(folder / "sample.npz", allow_pickle=False, **frames)  # type: ignore[arg-type]
    for name in record.get("figures", ()):
        if picture(record, name).exists():
            write_bytes(folder / Path(name).name, picture(record, name).read_bytes())


def renamed(record: Record, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays by the method that a record has today, where it was stored under another name."""
    if "stored_as" not in record:
        return arrays
    own = Experiment.parse(record["tag"]).method
    return {own if name in record["stored_as"].split("_") else name: value for name, value in arrays.items()}


def picture(record: Record, name: str) -> Path:
    """Where a picture of a cell lies, in a store or in the folder of the cell."""
    stored = record["folder"] / PICTURES / f"{record.get('stored_as', record['tag'])}-{name}"
    return stored if (record["folder"] / CELLS).exists() else record["folder"] / Path(name).name


def _coded(field: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes of -top .. top around the middle of each frame; the lowest code stands for what is not finite."""
    finite = np.isfinite(field)
    low = np.where(finite, field, np.inf).min((1, 2), keepdims=True)
    high = np.where(finite, field, -np.inf).max((1, 2), keepdims=True)
    middle, half = 0.5 * (low + high), np.maximum(0.5 * (high - low), 1e-300)
    top = 2 ** (_BITS[kind] - 1) - 1
    codes = np.where(finite, np.rint((np.where(finite, field, middle) - middle) / half * top), -top - 1)
    return codes.astype(f"int{_BITS[kind]}"), np.concatenate([middle, half], 1)[..., 0]


def _decoded(arrays: Any, key: str) -> np.ndarray:
    codes, (middle, half) = arrays[f"{key}/codes"], arrays[f"{key}/range"].T[:, :, None, None]
    top = np.iinfo(codes.dtype).max
    return np.where(codes == -top - 1, np.nan, middle + half * codes / top)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_short(v) for v in value]
    return value
