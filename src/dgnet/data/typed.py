"""Attributes, arrays and groups of an HDF5 file, each of the kind that is expected of it, or one sentence that names it.

`where` is the file and the place in it, `item` the open file, group or dataset.
"""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np

from dgnet.errors import InputError


def _scalar(item: Any, key: str, where: str, kinds: str, expected: str) -> Any:
    if key not in item.attrs:
        raise InputError(f"{where} lacks the attribute '{key}'")
    value = np.asarray(item.attrs[key])
    if value.shape != () or value.dtype.kind not in kinds:
        raise InputError(f"{where}: the attribute '{key}' must be {expected}, got {_short(item.attrs[key])}")
    return value.item()


def number(item: Any, key: str, where: str, positive: bool = False) -> float:
    """A finite number."""
    expected = "a positive, finite number" if positive else "a finite number"
    value = float(_scalar(item, key, where, "fiu", expected))
    if not math.isfinite(value) or (positive and value <= 0):
        raise InputError(f"{where}: the attribute '{key}' must be {expected}, got {value:g}")
    return value


def whole(item: Any, key: str, where: str, least: int = 0) -> int:
    """A whole number."""
    value = _scalar(item, key, where, "iu", "a whole number")
    if value < least:
        raise InputError(f"{where}: the attribute '{key}' must be at least {least}, got {value}")
    return int(value)


def numbers(item: Any, key: str, where: str, count: int) -> tuple[float, ...]:
    """`count` finite numbers; one stands for itself."""
    value = np.atleast_1d(np.asarray(item.attrs[key]))
    if value.shape != (count,) or value.dtype.kind not in "fiu" or not np.isfinite(value).all():
        raise InputError(f"{where}: the attribute '{key}' must be {count} finite numbers, got {_short(item.attrs[key])}")
    return tuple(float(v) for v in value)


def text(item: Any, key: str, where: str) -> str:
    value = item.attrs.get(key)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if key not in item.attrs:
        raise InputError(f"{where} lacks the attribute '{key}'")
    if not isinstance(value, str):
        raise InputError(f"{where}: the attribute '{key}' must be a text, got {_short(value)}")
    return str(value)


def names(item: Any, key: str, where: str) -> tuple[str, ...]:
    """Distinct texts, at least one."""
    if key not in item.attrs:
        raise InputError(f"{where} lacks the attribute '{key}'")
    found = np.asarray(item.attrs[key])
    values = [v.decode(errors="replace") if isinstance(v, bytes) else v for v in found.tolist()] if found.ndim == 1 else []
    if not values or any(not isinstance(v, str) for v in values) or len(set(values)) != len(values):
        raise InputError(f"{where}: the attribute '{key}' must be distinct names, got {_short(item.attrs[key])}")
    return tuple(values)


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


def _short(value: Any) -> str:
    words = " ".join(str(np.asarray(value).tolist()).split())
    return words if len(words) < 60 else words[:57] + "..."
