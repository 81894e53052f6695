"""Checksums of data sets and of weights, written with a file and compared when it is read.

Data sets carry the CRC32 of all numbers and names. It notices every flipped bit and runs at about 2 GB/s; it is no protection
against intent. Long arrays have one sum per block of rows, so that reading a window verifies that window. `DGNET_VERIFY=0` switches
the comparison off.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.files import plain, write_bytes

SUM, ROWS = "crc32", "crc32_rows"  # attributes: sums, and rows of a block
_BLOCKS = 8192  # sums that fit an attribute


def verifying() -> bool:
    return os.environ.get("DGNET_VERIFY", "1") != "0"


def block_rows(length: int, chunk: int) -> int:
    """Rows under one sum: a chunk, or several of them where there are very many."""
    return chunk * max(1, -(-length // (chunk * _BLOCKS)))


def mark(data: h5py.Dataset, sums: Iterable[int], rows: int) -> None:
    data.attrs[SUM], data.attrs[ROWS] = np.array(list(sums), dtype=np.uint32), rows


def mark_whole(data: h5py.Dataset) -> None:
    """Sums of an array that has been on disk with zeros in their place (`mark`), block by block."""
    rows = int(data.attrs[ROWS])
    data.attrs.modify(SUM, np.array([crc(data[at:at + rows]) for at in range(0, len(data), rows)], dtype=np.uint32))


def crc(value: np.ndarray, start: int = 0) -> int:
    return zlib.crc32(np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).data, start)


def header_sum(file: h5py.File) -> int:
    """Of attributes, provenance, mesh and the sums of the flow's record."""
    found = mesh_sum(file["mesh"], _attributes(file, _attributes(file["provenance"], 0) if "provenance" in file else 0))
    return array_sum(file["velocity"], found) if "velocity" in file else found


def mesh_sum(group: h5py.Group, start: int = 0) -> int:
    return _arrays(group, start)


def trajectory_sum(group: h5py.Group) -> int:
    """Of attributes, times, and the names and sums of what else there is."""
    return _arrays(group, _attributes(group, 0))


def contents_sum(group: h5py.Group, names: Iterable[str] | None = None) -> int:
    """Of the names and sums of these trajectories, all by default."""
    found = [[name, int(group[name].attrs.get(SUM, 0))] for name in sorted(group if names is None else names)]
    return zlib.crc32(json.dumps(found).encode())


def _attributes(item: Any, start: int) -> int:
    values = {name: np.asarray(value).tolist() for name, value in item.attrs.items() if name not in (SUM, ROWS)}
    return zlib.crc32(json.dumps(values, sort_keys=True, default=str).encode(), start)


def _arrays(group: h5py.Group, start: int) -> int:
    for name in sorted(group):
        start = zlib.crc32(name.encode(), start)
        item = group[name]
        start = _arrays(item, start) if isinstance(item, h5py.Group) else array_sum(item, start)
    return start


def array_sum(data: h5py.Dataset, start: int = 0) -> int:
    """Its sums where it has some, else its numbers."""
    start = zlib.crc32(str(data.shape).encode(), start)
    return crc(data.attrs[SUM], zlib.crc32(str(data.attrs[ROWS]).encode(), start)) if SUM in data.attrs else crc(data[()], start)


# ---------------------------------------------------------------------- weights


def save_tensors(path: Path, value: dict[str, Any]) -> str:
    """Returns the file's SHA-256. Made in memory first: torch may end the whole process when a disk runs full under it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getbuffer())
    return hashlib.sha256(buffer.getbuffer()).hexdigest()


def load_checkpoint(path: Path, device: str = "cpu", sha256: str = "") -> dict[str, Any]:
    """The contents of a file of weights; anything but tensors and plain numbers is refused, and so is a damaged file.

    Every part of the file has a CRC32 of its own, which torch writes but does not compare; `sha256` is that of the whole.
    """
    try:
        if verifying() and plain(path).exists() and not _sound(path, sha256):
            raise InputError(f"{path} is damaged: it is not what was written (its checksum differs)")
        found = torch.load(path, map_location=device, weights_only=True)
        if not isinstance(found, dict):
            raise InputError(f"{path} holds something else than tensors by their names")
        return found
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except (InputError, torch.AcceleratorError):  # a device that cannot be had says nothing about the file
        raise
    except Exception as error:
        raise InputError(f"{path} does not hold weights: it is damaged, or holds something that could run code") from error


def _sound(path: Path, sha256: str) -> bool:
    if sha256:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return False
    if not zipfile.is_zipfile(path):
        return True  # torch decides what it is
    with zipfile.ZipFile(path) as archive:
        return archive.testzip() is None
