"""`dgnet new FOLDER --mesh FILE`: a problem folder around a mesh of one's own, ready for `dgnet simulate`; no data yet."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from dgnet.files import making, toml_text, visible, write_text
from dgnet.mesh import Mesh, load, save
from dgnet.projects.toml import FILE

DT, STEPS, WARMER = 1.0, 100, 100.0
"""Step, number of steps, and about how much warmer the spot makes the part."""

PROBLEM = """\
# A problem folder around {mesh}: {nodes:,} nodes, {cells:,} {kind}, {size:.4g} across.
#   dgnet simulate {folder} --source {folder}/spots.csv --gif part.gif     a moving picture
#   dgnet studio {folder}                                          draw sources with the mouse
# The numbers below are made up from the size of the mesh: put your own in their place. All keys: docs/problem-files.md.

[problem]
name = "{name}"
title = {title}
fields = ["T"]
dt = {dt:g}                        # time step
offset = {{ T = 0.0 }}            # where a simulation starts

# [units]                      # name them, and "14 mm2/s" is converted
# length = "m"
# time = "s"
# T = "K"

[mesh]
file = {file}

# dT/dt = div(D grad T) - v . grad T - k T + r(T) + f; omitted terms are zero
[pde]
diffusion = {diffusion:.4g}        # length^2/time; in 100 steps heat spreads over about a tenth of the part

# Boundaries without a condition are insulated. This mesh has {names}; "boundary" means all of it.
# [[boundary]]
# name = {first}
# kind = "dirichlet"           # held at a value; or robin (exchange), neumann (flux), periodic
# value = 0.0
"""


def write_around(mesh_file: Path, folder: Path) -> list[Path]:
    """The folder with problem.toml, the mesh and a spot that moves over it; it appears when it is complete."""
    mesh = load(mesh_file)
    alone = mesh_file.suffix.lower() != ".xdmf"  # whose numbers are in another file
    name = mesh_file.name if alone else f"{mesh_file.stem}.npz"
    problem = _problem(mesh, name, folder)
    with making(folder) as part:
        shutil.copyfile(mesh_file, part / name) if alone else save(mesh, part / name)
        write_text(part / "spots.csv", spots(mesh))
        write_text(part / FILE, problem)
    return [folder / name for name in (FILE, name, "spots.csv")]


def _problem(mesh: Mesh, name: str, folder: Path) -> str:
    size, names = _size(mesh), list(mesh.boundaries)
    plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in folder.name.lower()).strip("-") or "part"
    return PROBLEM.format(mesh=visible(name), file=toml_text(name), title=toml_text(f"Heat in {name}"),
                          nodes=mesh.n_nodes, cells=mesh.n_cells, kind="triangles" if mesh.dim == 2 else "tetrahedra",
                          size=size, folder=visible(str(folder)), name=plain, dt=DT, diffusion=1e-4 * size**2 / DT,
                          names=", ".join(map(visible, names[:12])) or "no named ones",
                          first=toml_text(names[0] if names else "boundary"))


def spots(mesh: Mesh) -> str:
    """A spot that goes from node to node, each far from those before, as a table for `--source`."""
    size, axes = _size(mesh), "xyz"[: mesh.dim]
    way = [mesh.points[np.argmin(mesh.points.sum(axis=1))]]
    for _ in range(4):
        apart = np.min([np.linalg.norm(mesh.points - p, axis=1) for p in way], axis=0)
        way.append(mesh.points[int(apart.argmax())])
    rows = [f"{DT * STEPS * k / 4:g},{','.join(f'{v:.6g}' for v in p)},{0.05 * size:.4g},{WARMER / (10 * DT):g}"
            for k, p in enumerate(way)]
    return "\n".join([f"t,{','.join(axes)},radius,power", *rows]) + "\n"


def _size(mesh: Mesh) -> float:
    return float(np.ptp(mesh.points, axis=0).max())
