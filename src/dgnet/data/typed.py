"""Attributes, arrays and groups of an HDF5 file, each of the kind that is expected of it, or one sentence that names it.

`where` is the file and the place in it, `item` the open file, group or dataset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

from dgnet.errors import InputError


def _attribute(item: Any, key: str, where: str, kinds: str, expected: str, fits: Callable[[np.ndarray], Any]) -> np.ndarray:
    """An attribute whose dtype is one of `kinds` and that `fits`."""
    if key not in item.attrs:
        raise InputError(f"{where} lacks the attribute '{key}'")
    found = item.attrs[key]
    value = np.asarray(found.decode(errors="replace") if isinstance(found, bytes) else found)
    if value.dtype.kind not in kinds or not fits(value):
        words = " ".join(str(value.tolist()).split())
        words = words if len(words) < 60 else words[:57] + "..."
        raise InputError(f"{where}: the attribute '{key}' must be {expected}, got {words}")
    return value


def positive(item: Any, key: str, where: str) -> float:
    """A positive, finite number."""
    return float(_attribute(item, key, where, "fiu", "a positive, finite number", lambda v: v.ndim == 0 and 0 < v < math.inf))


def whole(item: Any, key: str, where: str, least: int = 0) -> int:
    """A whole number."""
    value = int(_attribute(item, key, where, "iu", "a whole number", lambda v: v.ndim == 0))
    if value < least:
        raise InputError(f"{where}: the attribute '{key}' must be at least {least}, got {value}")
    return value


def numbers(item: Any, key: str, where: str, count: int) -> tuple[float, ...]:
    """`count` finite numbers; one stands for itself."""
    value = _attribute(item, key, where, "fiu", f"{count} finite numbers",
                       lambda v: np.atleast_1d(v).shape == (count,) and np.isfinite(v).all())
    return tuple(float(v) for v in np.atleast_1d(value))


def text(item: Any, key: str, where: str) -> str:
    return str(_attribute(item, key, where, "OUS", "a text", lambda v: v.ndim == 0 and isinstance(v.item(), str)))


def names(item: Any, key: str, where: str) -> tuple[str, ...]:
    """Distinct texts, at least one."""
    def decoded(value: np.ndarray) -> list[Any]:
        return [v.decode(errors="replace") if isinstance(v, bytes) else v for v in value.tolist()] if value.ndim == 1 else []

    def fits(value: np.ndarray) -> bool:
        found = decoded(value)
        return bool(found) and all(isinstance(v, str) for v in found) and len(set(found)) == len(found)

    return tuple(decoded(_attribute(item, key, where, "OUSfiub", "distinct names", fits)))


def group(parent: h5py.Group, key: str, where: str) -> h5py.Group:
    found = _found(parent, key, where)
    if not isinstance(found, h5py.Group):
        raise InputError(f"{where}: '{key}' must be a group, but it is an array")
    return found


def array(parent: h5py.Group, key: str, where: str, kinds: str = "fiu") -> h5py.Dataset:
    """A dataset of real numbers (of integers with kinds = "iu")."""
    found = _found(parent, key, where)
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"{where}: '{key}' must be an array, but it is a group")
    if found.shape is None or found.dtype.kind not in kinds:
        raise InputError(f"{where}: '{key}' must hold {'numbers' if 'f' in kinds else 'whole numbers'}, got "
                         f"{'nothing' if found.shape is None else found.dtype}")
    return found


def _found(parent: h5py.Group, key: str, where: str) -> Any:
    try:
        return parent[key]
    except (KeyError, OSError, RuntimeError) as error:  # missing, or a link that leads nowhere
        raise InputError(f"{where} lacks '{key}'" if key not in parent else f"{where}: '{key}' is a link to nothing") from error
