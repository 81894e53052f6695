"""Meshes on disk: `.npz` natively, `.msh`, `.vtu` and `.xdmf` through meshio; read are all formats that meshio knows.

What survives a round trip: points, cells and their order, boundary and region names in every format. `.msh` holds them as
gmsh physical groups (binary, format 2.2), `.vtu` and `.xdmf` as 0/1 cell data `boundary:NAME` on extra facet cells and
`region:NAME` on cells. Files of other programs: physical groups of `.msh` become boundaries and regions (unnamed ones
`physical-TAG`), groups of inner facets are left out, nodes that no cell uses are dropped; other programs' `.vtu` and
`.xdmf` have no names. A mesh whose third coordinate is constant comes back as 2D.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgnet.arguments import checked
from dgnet.errors import InputError
from dgnet.files import arrays_of, cause, plain, remark, writing
from dgnet.mesh.mesh import Mesh

_MESHIO = {".msh": "gmsh", ".vtu": "vtu", ".xdmf": "xdmf"}
_SIMPLEX = {2: "triangle", 3: "tetra"}
_FACET = {2: "line", 3: "triangle"}
_IGNORED = ("vertex", "line")  # blocks that may stand beside the cells


@checked
def load(path: str | os.PathLike[str]) -> Mesh:
    """Read a mesh from a file; names of boundaries and regions come with it (see the module).

    - `path`: the file. Its suffix is the format: `.npz`, `.msh` of gmsh, `.vtu`, `.xdmf` and all that meshio reads

    Anything unreadable raises `InputError` naming the file.

        >>> import dgnet as dg
        >>> dg.save_mesh(dg.box((3, 3)), "square.msh")
        >>> dg.load_mesh("square.msh")
        Mesh(16 nodes, 18 triangles, boundaries: left, right, bottom, top)
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if not path.is_file():
        raise InputError(f"there is no mesh file {path}")
    if suffix != ".npz" and suffix not in _meshio().extension_to_filetypes:
        raise InputError(f"{path}: meshes are read from .npz and from what meshio knows (.msh, .vtu, .xdmf, .vtk, .med, .inp, "
                         f"...), not '{path.suffix}'")
    try:
        return _read_npz(path) if suffix == ".npz" else _read_meshio(path, suffix)
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path}: {error}") from error


@checked
def save(mesh: Mesh, path: str | os.PathLike[str], point_data: Mapping[str, np.ndarray] | None = None) -> None:
    """Write a mesh, and fields on its nodes, to a file; an old one is replaced only by a whole new one.

    - `mesh`: the mesh, names included
    - `path`: the file; its suffix is the format: `.npz`, `.msh`, `.vtu` or `.xdmf`
    - `point_data`: name -> values at the nodes [N] or [N, k], in any unit

        >>> import dgnet as dg
        >>> mesh = dg.box((3, 3))
        >>> dg.save_mesh(mesh, "heights.vtu", {"height": mesh.points[:, 1]})
    """
    path = Path(path)
    suffix = _suffix(path)
    data = {name: np.asarray(values) for name, values in (point_data or {}).items()}
    for name, values in data.items():
        if values.ndim not in (1, 2) or len(values) != mesh.n_nodes or values.dtype.kind not in "fiub":
            raise InputError(f"point data '{name}' must be numbers [{mesh.n_nodes}] or [{mesh.n_nodes}, k], got {values.dtype} "
                             f"{list(values.shape)}")
    if suffix == ".npz":
        arrays: dict[str, Any] = {"points": mesh.points, "cells": mesh.cells.astype(np.int32)}
        arrays |= {f"boundary:{name}": facets.astype(np.int32) for name, facets in mesh.boundaries.items()}
        arrays |= {f"region:{name}": index.astype(np.int32) for name, index in mesh.regions.items()}
        arrays |= {f"data:{name}": values for name, values in data.items()}
        _replace(path, lambda temporary: _write_npz(temporary, arrays))
    elif suffix == ".msh":
        _replace(path, lambda temporary: _write_msh(mesh, temporary, data))
    else:
        options = {"data_format": "XML"} if suffix == ".xdmf" else {}  # one file, so that replacing it is atomic
        whole = _flagged(mesh, data)
        _replace(path, lambda temporary: _meshio().write(temporary, whole, file_format=suffix[1:], **options))


# ---------------------------------------------------------------------- files


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix != ".npz" and suffix not in _MESHIO:
        raise InputError(f"{path}: meshes are read and written as .npz, .msh, .vtu or .xdmf, not '{path.suffix}'")
    return suffix


def _replace(path: Path, write: Callable[[str], Any]) -> None:
    """Write beside the target, then rename: no half-written file ever carries the final name."""
    with writing(path) as temporary:
        try:
            with _quiet():
                write(str(temporary))
        except (InputError, OSError):
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"cannot write {path}: {cause(error)}") from error


def _write_npz(path: str, arrays: Mapping[str, Any]) -> None:
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)


@contextlib.contextmanager
def _quiet() -> Any:
    """meshio prints warnings and errors to the terminal."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _meshio() -> Any:
    try:
        import meshio
    except ImportError as error:
        raise InputError("reading and writing .msh, .vtu and .xdmf needs meshio: pip install meshio") from error
    return meshio


# ---------------------------------------------------------------------- npz


def _read_npz(path: Path) -> Mesh:
    with arrays_of(path, "a mesh in .npz format") as archive:
        arrays = {key: archive[key] for key in archive.files if not key.startswith("data:")}
    if not {"points", "cells"} <= set(arrays):
        raise InputError("the file holds no arrays 'points' and 'cells', so it is not a mesh in .npz format")
    if arrays["points"].dtype.kind not in "fiu":
        raise InputError(f"the array 'points' holds {arrays['points'].dtype}, not numbers")

    def named(kind: str) -> dict[str, np.ndarray]:
        return {key.removeprefix(kind): value for key, value in arrays.items() if key.startswith(kind)}

    return Mesh(arrays["points"], arrays["cells"], named("boundary:"), named("region:"))


# ---------------------------------------------------------------------- meshio, reading


def _read_meshio(path: Path, suffix: str) -> Mesh:
    meshio = _meshio()
    text, types = _abaqus(path) if suffix == ".inp" else ("", [])
    try:
        with _quiet():  # other formats: meshio's own guess
            raw = meshio.read(io.StringIO(text), "abaqus") if text else meshio.read(path, file_format=_MESHIO.get(suffix))
    except (Exception, SystemExit) as error:  # meshio leaves by sys.exit, and its parsers fail in many ways
        known = (f"; its elements are {', '.join(types)}, and read are triangles (CPS3, DC2D3, S3) and tetrahedra (C3D4, DC3D4)"
                 if types else "")
        raise InputError(f"the file is truncated or not a mesh in {suffix} format{known}") from error
    kinds = [block.type for block in raw.cells]
    dim = 3 if "tetra" in kinds else 2
    other = [k for k in kinds if k not in (_SIMPLEX[dim], _FACET[dim], *_IGNORED)]
    if other:
        raise InputError(f"the mesh holds cells of type '{other[0]}', but only triangles or tetrahedra are known here")
    cells, cell_names = _collect(raw, _SIMPLEX[dim], dim, dim)
    if not len(cells):
        raise InputError("the file holds no triangles and no tetrahedra")
    facets, facet_names = _collect(raw, _FACET[dim], dim - 1, dim)
    points = np.asarray(raw.points, dtype=np.float64)
    if cells.min() < 0 or cells.max() >= len(points):
        raise InputError(f"a cell names node {int(cells.max())}, but the mesh has {len(points)} nodes")
    used = np.zeros(len(points), dtype=bool)
    used[cells.ravel()] = True
    if dim == 2 and points.shape[1] == 3:
        depth = points[used, 2]
        if np.ptp(depth) > 1e-12 * np.ptp(points[used, :2]):
            raise InputError("the triangles form a surface in space; only flat 2D meshes and 3D tetrahedra are known here "
                             "(gmsh fills a closed surface with tetrahedra)")
        points = points[:, :2]
    index = np.cumsum(used) - 1
    mesh = Mesh(points[used], index[cells])
    boundaries = {}
    if facet_names:
        on = _on_boundary(mesh, index[facets], used[facets].all(axis=1))
        boundaries = {name: index[facets[mask & on]] for name, mask in facet_names.items() if (mask & on).any() or not mask.any()}
    regions = {name: np.flatnonzero(mask) for name, mask in cell_names.items()}
    return Mesh(mesh.points, mesh.cells, boundaries, regions)


_SAME = {"DC2D3": "CPS3", "CPE3": "CPS3", "CPS3T": "CPS3", "CPE3T": "CPS3", "DC2D4": "CPS4", "CPE4": "CPS4", "DC2D6": "CPE6",
         "DC3D4": "C3D4", "C3D4T": "C3D4", "DC3D10": "C3D10", "DC3D6": "C3D6", "DC3D8": "C3D8"}
"""Elements of Abaqus for heat, and others of the same shape, by names that meshio knows."""
_TYPE = re.compile(r"^(\s*\*element\b[^\n]*?\btype\s*=\s*)([\w-]+)", re.IGNORECASE | re.MULTILINE)
_SET = re.compile(r"^\s*\*(?:element|elset|node|nset|surface)\b[^\n]*?\b(?:elset|nset|name)\s*=\s*([^,\n]+)",
                  re.IGNORECASE | re.MULTILINE)
_named: set[tuple[Path, str]] = set()


def _abaqus(path: Path) -> tuple[str, list[str]]:
    """A file of Abaqus with elements that meshio knows, and which ones it had. What is not read of it is said once."""
    text = plain(path).read_text(errors="replace")
    types = list(dict.fromkeys(found[2].upper() for found in _TYPE.finditer(text)))
    sets = ", ".join(dict.fromkeys(found[1].strip() for found in _SET.finditer(text)))
    if sets and (path, sets) not in _named:
        _named.add((path, sets))
        remark(f"{path}: its sets ({sets[:200]}) are not read; name boundaries and regions in problem.toml")
    return _TYPE.sub(lambda found: found[1] + _SAME.get(found[2].upper(), found[2]), text) + "\n", types


def _collect(raw: Any, kind: str, rank: int, dim: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """All elements of a kind [K, rank+1], and for each name a mask [K] of those that carry it."""
    blocks = [i for i, block in enumerate(raw.cells) if block.type == kind]
    if not blocks:
        return np.empty((0, rank + 1), dtype=np.int64), {}
    elements = np.concatenate([np.asarray(raw.cells[i].data, dtype=np.int64) for i in blocks])
    names: dict[str, np.ndarray] = {}
    if "gmsh:physical" in raw.cell_data:
        tags = np.concatenate([np.asarray(raw.cell_data["gmsh:physical"][i]) for i in blocks])
        known = {int(tag): name for name, (tag, of) in raw.field_data.items() if int(of) == rank}
        for tag in [*known, *sorted(set(np.unique(tags).tolist()) - set(known) - {0})]:
            names[known.get(tag, f"physical-{tag}")] = tags == tag
    prefix = "region:" if rank == dim else "boundary:"
    for key, values in raw.cell_data.items():
        if key.startswith(prefix):
            names[key.removeprefix(prefix)] = np.concatenate([np.asarray(values[i]).ravel() for i in blocks]) > 0
    return elements, names


def _on_boundary(mesh: Mesh, facets: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Which facets lie on the boundary [F]: a group of inner facets (a crack, an interface) is no boundary."""
    outer = np.sort(mesh.boundary_facets, axis=1)
    _, label = np.unique(np.concatenate([outer, np.sort(facets, axis=1)]), axis=0, return_inverse=True)
    label = label.ravel()
    return valid & np.isin(label[len(outer):], label[:len(outer)])


# ---------------------------------------------------------------------- meshio, writing


def _in_space(vectors: np.ndarray) -> np.ndarray:
    """2D points and vectors with a zero third component, as gmsh and ParaView expect them."""
    values = np.asarray(vectors, dtype=np.float64)
    return np.pad(values, ((0, 0), (0, 1))) if values.ndim == 2 and values.shape[1] == 2 else values


def _write_msh(mesh: Mesh, path: str, data: Mapping[str, np.ndarray]) -> None:
    """gmsh 2.2: one physical tag per element, so a facet with two names is written twice; a cell cannot be."""
    meshio = _meshio()
    tags = np.zeros(mesh.n_cells, dtype=np.int32)
    fields, blocks, physical = {}, [], []
    for tag, (name, facets) in enumerate(mesh.boundaries.items(), start=1):
        _gmsh_name(name)
        fields[name] = np.array([tag, mesh.dim - 1])
        if len(facets):
            blocks.append((_FACET[mesh.dim], facets))
            physical.append(np.full(len(facets), tag, dtype=np.int32))
    for tag, (name, index) in enumerate(mesh.regions.items(), start=len(fields) + 1):
        _gmsh_name(name)
        if name in fields:
            raise InputError(f"a .msh file cannot hold a boundary and a region of the same name '{name}'")
        if tags[index].any():
            raise InputError(f"a .msh file cannot hold region '{name}': cell {int(index[tags[index] > 0][0])} is in another too")
        tags[index] = tag
        fields[name] = np.array([tag, mesh.dim])
    blocks.append((_SIMPLEX[mesh.dim], mesh.cells))
    physical.append(tags)
    fields_on_nodes = {name: _in_space(values) for name, values in data.items()}
    for name, values in fields_on_nodes.items():
        if values.ndim == 2 and values.shape[1] not in (1, 3, 9):
            raise InputError(f"a .msh file cannot hold point data '{name}' of {values.shape[1]} components, only scalars, vectors "
                             f"and tensors")
    whole = meshio.Mesh(_in_space(mesh.points), blocks, point_data=fields_on_nodes, field_data=fields,
                        cell_data={"gmsh:physical": physical, "gmsh:geometrical": physical})
    meshio.write(path, whole, file_format="gmsh22", binary=True)


def _gmsh_name(name: str) -> None:
    if not name.isprintable() or '"' in name or "\\" in name:
        raise InputError(f"a .msh file cannot hold the name {name!r}")


def _flagged(mesh: Mesh, data: Mapping[str, np.ndarray]) -> Any:
    """Cells, then the named facets as cells of their own, with a 0/1 array per name."""
    meshio = _meshio()
    index = {name: mesh.facet_index(name) for name, facets in mesh.boundaries.items() if len(facets)}
    named = np.unique(np.concatenate([*index.values(), np.empty(0, dtype=np.int64)]))
    blocks = [(_SIMPLEX[mesh.dim], mesh.cells)]
    if len(named):
        blocks.append((_FACET[mesh.dim], mesh.boundary_facets[named]))

    def flags(cells: np.ndarray, facets: np.ndarray) -> list[np.ndarray]:
        chosen = [np.isin(np.arange(mesh.n_cells), cells), np.isin(named, facets)]
        return [c.astype(np.int32) for c in chosen[:len(blocks)]]

    none = np.empty(0, dtype=np.int64)
    cell_data = {f"boundary:{name}": flags(none, index.get(name, none)) for name in mesh.boundaries}
    cell_data |= {f"region:{name}": flags(cells, none) for name, cells in mesh.regions.items()}
    return meshio.Mesh(_in_space(mesh.points), blocks, point_data={k: _in_space(v) for k, v in data.items()}, cell_data=cell_data)
