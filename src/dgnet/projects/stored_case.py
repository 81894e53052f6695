"""A case as files: its mesh, and one archive of names, numbers and arrays. No code: a case with functions cannot be stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.files import arrays_of, writing
from dgnet.mesh import load, save
from dgnet.problems import PDE, ByRegion, Case, Curve, Scaled, TimeTable, Units
from dgnet.problems.conditions import CONDITIONS
from dgnet.problems.curves import Latent

CASE, MESH = "case.npz", "mesh.npz"
_KEYS = ("name", "title", "size", "equation", "pde", "conditions", "dt", "steps", "offset", "given_flow", "units")


class _Function(Exception):
    """A part of a case is a function, or a condition of a class that no file knows."""


def _kinds() -> dict[str, Any]:
    """The classes that a file names."""
    return {cls.__name__: cls for cls in (PDE, Units, Curve, Latent, Scaled, ByRegion, TimeTable, *CONDITIONS.values())}


def write_case(case: Case, folder: Path) -> bool:
    """Write a case; returns whether it could be: a reaction, a flow or boundary values that are functions cannot."""
    arrays: dict[str, np.ndarray] = {}
    try:
        about = {key: _packed(getattr(case, key), arrays) for key in _KEYS}
    except _Function:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    save(case.mesh, folder / MESH)
    with writing(folder / CASE) as part:
        np.savez(part, case=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]
    return True


def read_case(folder: Path) -> Case:
    """What `write_case` wrote."""
    mesh = load(folder / MESH)
    with arrays_of(folder / CASE) as archive:
        arrays = {key: archive[key] for key in archive.files}
        about = {key: _unpacked(value, arrays) for key, value in json.loads(str(arrays["case"])).items()}
        return Case(build_mesh=lambda: mesh, **{key: about[key] for key in _KEYS})


def _packed(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """As JSON; arrays go beside it and are named there."""
    if isinstance(value, torch.Tensor | np.ndarray):
        key = f"array{len(arrays)}"
        arrays[key] = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
        return {"array": key, "tensor": isinstance(value, torch.Tensor)}
    if type(value).__name__ in _kinds():
        parts = {f.name: _packed(getattr(value, f.name), arrays) for f in fields(value) if f.init}
        return {"is": type(value).__name__, "of": parts}
    if isinstance(value, Mapping):
        return {"table": {key: _packed(part, arrays) for key, part in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_packed(part, arrays) for part in value]}
    if callable(value) or is_dataclass(value):
        raise _Function
    return value.item() if isinstance(value, np.generic) else value


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        found = arrays[value["array"]]
        return torch.from_numpy(found) if value["tensor"] else found
    if "is" in value:
        return _kinds()[value["is"]](**{key: _unpacked(part, arrays) for key, part in value["of"].items()})
    if "table" in value:
        return {key: _unpacked(part, arrays) for key, part in value["table"].items()}
    return tuple(_unpacked(part, arrays) for part in value["list"])
