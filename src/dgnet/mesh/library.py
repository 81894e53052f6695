"""Ready-made meshes that ship with the package, so that scenarios, tests and the demo do not need gmsh."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import as_file, files

from dgnet.errors import InputError
from dgnet.mesh.io import load
from dgnet.mesh.mesh import Mesh


def shipped_names() -> list[str]:
    """Names of the meshes in `dgnet/mesh/files`, written by `python -m dgnet.mesh.build`."""
    folder = files("dgnet.mesh") / "files"
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(".npz") for entry in folder.iterdir() if entry.name.endswith(".npz"))


@lru_cache(maxsize=32)
def shipped(name: str) -> Mesh:
    """A shipped mesh by name, `NAME` in the size of the paper or `NAME-small` with a few hundred nodes."""
    if name not in shipped_names():
        raise InputError(f"no mesh '{name}' ships with dgnet (known: {', '.join(shipped_names())})")
    with as_file(files("dgnet.mesh") / "files" / f"{name}.npz") as path:
        return load(path)
