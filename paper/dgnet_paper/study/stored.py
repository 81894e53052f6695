"""Finished cells on disk: read, checked, merged from several machines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dgnet.errors import InputError
from dgnet.files import Lock, discard, read_json, unfinished, unwritable
from dgnet.scoring.metrics import current_names
from dgnet_paper.study import archive
from dgnet_paper.study.experiment import Experiment, current_methods


def read(cell: Experiment, out: Path) -> dict[str, Any]:
    """The record of a finished cell of the study OUT."""
    return _renamed(current_names(read_json(cell.folder(out) / "cell.json")))


def read_from(folder: Path) -> dict[str, Any]:
    """The record in the folder of a finished cell."""
    path = folder / "cell.json"
    if not path.exists():
        raise InputError(f"{folder} is no finished cell: it has no cell.json")
    return _checked(current_names(read_json(path, {"tag": str})), path)


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """`updates` was `iterations` in older cells."""
    return {"updates" if key == "iterations" else key: value for key, value in record.items()}


def load(folders: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """All finished cells of some studies by tag, packed ones included; `folder` is where each lies. The later of two counts."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"there is no folder {folder}")
        if not (folder / "cells").is_dir() and not (folder / archive.CELLS).exists():
            raise InputError(f"{folder} is no study: it has neither a folder 'cells' nor a file {archive.CELLS}")
        for path, record in (*archive.records(folder), *_loose(folder)):
            tag, record = record["tag"], _checked(record, path)
            if tag not in found or record.get("date", "") > found[tag].get("date", ""):
                found[tag] = record
    return found


def _loose(folder: Path) -> Iterable[tuple[Path, dict[str, Any]]]:
    """The cells of a study that is being worked on, each in a folder of its own."""
    for path in sorted(folder.glob("cells/*/cell.json")):
        record = current_methods(current_names(read_json(path, {"tag": str})))
        if path.parent.name != record.get("stored_as", record["tag"]):
            raise InputError(f"{path}: '{record['tag']}' is not the name of a cell in this folder")
        yield path, {**record, "folder": path.parent}


class _Part(dict[str, Any]):
    """Of a record: who asks for something that is not there is told which file lacks it."""

    def __init__(self, rows: Mapping[str, Any], path: Path) -> None:
        super().__init__(rows)
        self.path = path

    def __missing__(self, key: str) -> None:
        raise InputError(f"{self.path} is damaged: it has no '{key}'")


def _checked(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record of a cell, unless its parts are not what tables and pictures expect."""
    record = _renamed(record)
    try:
        cell = Experiment.parse(record["tag"])
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if cell.tag != record["tag"]:
        raise InputError(f"{path}: '{record['tag']}' is not the name of a cell")
    wanted: dict[str, type] = {"about": dict, "history": list, "curves": dict, "scores": dict, "cell": dict, "date": str,
                               "seconds": dict, "hardware": str, "figures": list, "sharing": int}
    for key, kind in wanted.items():
        if not isinstance(record.get(key, kind()), kind):
            raise InputError(f"{path} is damaged: '{key}' is of the wrong kind")
    for name, row in record.get("scores", {}).items():
        figures = [row.get(k) for k in ("rne", "mse", "rne_from_offset")] if isinstance(row, dict) else [""]
        if any(not isinstance(v, int | float | None) for v in figures):
            raise InputError(f"{path} is damaged: the scores of '{name}' are not numbers")
    if any(not isinstance(v, int | float) for v in record.get("seconds", {}).values()):
        raise InputError(f"{path} is damaged: its seconds are not numbers")
    if not all(isinstance(name, str) for name in record.get("figures", ())):
        raise InputError(f"{path} is damaged: its figures are not names")
    if not all(isinstance(row, dict) for row in record.get("history", ())):
        raise InputError(f"{path} is damaged: its history is not a list of tables")
    curves = record.get("curves", {})
    if curves and not ("time" in curves and all(isinstance(row, list) for row in curves.values())
                       and len(set(map(len, curves.values()))) == 1):
        raise InputError(f"{path} is damaged: its curves are not lists of one length, with the time")
    if "scores" in record:
        record["scores"] = _Part({name: _Part(row, path) for name, row in record["scores"].items()}, path)
    return _Part(record, path)


def failures(folders: Sequence[Path]) -> dict[str, str]:
    """Cells that were tried and could not be finished, with the reason."""
    out = {}
    for folder in folders:
        for path in sorted(folder.glob("cells/*/failed.json")):
            if not (path.parent / "cell.json").exists():
                out[path.parent.name] = str(read_json(path).get("error", ""))
    return out


def merge(sources: Sequence[Path], out: Path) -> list[str]:
    """Copy the finished cells of other studies that OUT does not have; returns their tags."""
    here, copied = load([out]) if (out / "cells").is_dir() else {}, []
    wanted = {tag: record for tag, record in load(sources).items() if tag not in here}
    for record in wanted.values():  # before the first is copied
        if (record["folder"] / "cell.json").is_symlink():
            raise InputError(f"{record['folder'] / 'cell.json'} is a symbolic link, which merge does not follow")
    for tag, record in wanted.items():
        target = out / "cells" / tag
        part = unfinished(target)
        try:
            if (record["folder"] / archive.CELLS).exists():
                archive.unpack(record, part)
            else:
                shutil.copytree(record["folder"], part, ignore=_not_merged)
            claim = Lock.take(target / ".claim", True)
            assert claim is not None
            with claim:
                for item in part.iterdir():  # cell.json last: what has it is finished
                    if item.name != "cell.json":
                        if (target / item.name).is_dir():
                            discard(target / item.name)
                        os.replace(item, target / item.name)
                os.replace(part / "cell.json", target / "cell.json")
        except (OSError, shutil.Error) as error:
            raise unwritable(target, error) from error
        finally:
            discard(part)
        copied.append(tag)
    return copied


def _not_merged(folder: str, names: list[str]) -> set[str]:
    """What stays behind: unfinished things, and symbolic links, which could point to any file of this machine."""
    return {name for name in names if (Path(folder) / name).is_symlink() or name in (".claim", "last.pt") or ".part" in name}
