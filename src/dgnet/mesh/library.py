"""Ready-made meshes that ship with the package, so that scenarios, tests and the demo do not need gmsh."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import as_file, files

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.mesh.io import load
from dgnet.mesh.mesh import Mesh


def shipped_names() -> list[str]:
    """Names of the meshes that come with dgnet (written by `python -m dgnet_paper.scenarios.meshes`).

        >>> import dgnet as dg
        >>> "bracket-small" in dg.shipped_names()
        True
    """
    folder = files("dgnet.mesh") / "files"
    if not folder.is_dir():
        return []
    return sorted(entry.name.removesuffix(".npz") for entry in folder.iterdir() if entry.name.endswith(".npz"))


@checked
@lru_cache(maxsize=32)
def shipped(name: str) -> Mesh:
    """A mesh that comes with dgnet.

    - `name`: one of `shipped_names()`; `NAME` has the size of the paper, `NAME-small` a few hundred nodes. Lengths are in metres
      for gear-plate and bracket, without a unit for the others

        >>> import dgnet as dg
        >>> dg.shipped("gear-plate-small")
        Mesh(482 nodes, 858 triangles, boundaries: outer, gear, holes)
    """
    if name not in shipped_names():
        raise InputError(f"no mesh '{name}' ships with dgnet (known: {', '.join(shipped_names())})")
    with as_file(files("dgnet.mesh") / "files" / f"{name}.npz") as path:
        return load(path)
