"""`dgnet new`: a small complete project to be edited, an L-shaped aluminium plate with a hole, heated by a moving spot; or a folder
around a mesh of one's own, without data.

The data of the plate are made with quadratic elements on a finer mesh with smaller steps, so that the classical solver on the
project's own mesh is visibly worse than what can be learned. They are 1.2e-4 (relative to the rise above ambient) away from a
converged solution.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch

from dgnet.files import making, toml_text, visible, write_text
from dgnet.mesh import ALL, Mesh, load, save
from dgnet.models import Classical, few_threads, rollout
from dgnet.problems.conditions import Robin
from dgnet.problems.pde import PDE
from dgnet.problems.problem import Problem
from dgnet.problems.sources import step_average
from dgnet.problems.spot_table import SpotTable
from dgnet.progress import Report
from dgnet.projects.shapes import plate
from dgnet.projects.toml import FILE

DIFFUSIVITY, EXCHANGE, AMBIENT = 9.7e-5, 2.0e-5, 293.15
DT, STEPS = 0.25, 60
TRAIN, TEST = 10, 2
RADIUS, SPEED, POWER = 0.014, 0.05, 60.0
CORNERS = np.array([(0, 0), (0.3, 0), (0.3, 0.08), (0.1, 0.08), (0.1, 0.2), (0, 0.2)], dtype=float)
HOLE = ((0.05, 0.15), 0.02)
SIDES = ["bottom", "right", "inner", "inner", "top", "left"]
SPACING = 0.012
SUBSTEPS = 4  # of the simulations in a step of the data

PROBLEM = """\
# A problem folder: mesh, equation, boundaries and the simulations to learn from.
#   dgnet check .             check mesh, equation and data; error of the classical solver
#   dgnet train . --out RUN   train a surrogate;   dgnet evaluate RUN   score it on the test trajectories
#   dgnet rollout RUN --source spots.csv --vtk out.pvd     simulate a new source
# Numbers are in the units below; "14 mm2/s" is converted. All keys: docs/problem-files.md.

[problem]
name = "plate"
title = "Moving heat spot on an L-shaped aluminium plate"
fields = ["T"]
dt = 0.25                      # s, the step of the data and of the surrogate
offset = { T = 293.15 }        # ambient: relative errors are measured from it, and a rollout starts with it

[units]
length = "m"
time = "s"
T = "K"

[mesh]
file = "plate.msh"             # any mesh of triangles or tetrahedra that meshio reads; names come from its physical groups
# or a shape:
# shape = "l-shape"            # rectangle, box, disc, l-shape, polygon
# size = [0.3, 0.2]
# arms = [0.08, 0.1]
# spacing = 0.012
# holes = [{ centre = [0.05, 0.15], radius = 0.02 }]
# names for unnamed parts:
# boundaries.foot = { y = 0.0 }
# regions.weld = { x = [0.09, 0.11] }

# dT/dt = div(D grad T) - v . grad T - k T + r(T) + f; omitted terms are zero
[pde]
diffusion = "97 mm2/s"         # a number, a tensor [[..], [..]], { function = "NAME" }, or one value per region: see below
# Heat in several materials: give density = "2700 kg/m3", capacity = "900 J/kg/K" and conductivity = "237 W/m/K" instead, each one
# number or one per region; sources are then W/m3 and exchange coefficients W/m2/K.
# velocity = [0.0, 0.0]        # or "data", or { function = "NAME" }
# decay = 0.0                  # 1/s
# reaction = "unknown"         # learned from the data; or { function = "NAME" } in physics.py
# calibrate = ["diffusion"]    # known only roughly: fitted to the data (diffusion, decay, convection)
# per_region = true            # one factor for each region of the mesh instead of one for all
# [pde.diffusion]              # one value per region
# weld = "60 mm2/s"
# elsewhere = "97 mm2/s"

# Boundaries without a condition are insulated (zero flux). "boundary" is the whole boundary; this mesh has bottom, right, inner,
# top, left, hole-1.
[[boundary]]
name = "boundary"
kind = "robin"                 # -D dT/dn = coefficient (T - ambient); or dirichlet, neumann, periodic
coefficient = "0.02 mm/s"      # heat transfer coefficient over density times heat capacity
ambient = 293.15

# Simulations or measurements: .npz, .h5, .pvd, .xdmf, .vtu, .csv of sensors. `*` in source stands for the same text as in file.
[[data]]
file = "runs/train-*.npz"
split = "train"
source = "runs/train-*.csv"    # moving spots; or { function = "NAME" }, "file" (samples in the data), "none"

[[data]]
file = "runs/test-*.npz"       # never used in training; give at least one
split = "test"
source = "runs/test-*.csv"

[training]
minutes = 0.75                 # at most, on one CPU core; larger meshes need more

# [model]                      # settings of DGNet, for experts
# hidden = 32
"""

PHYSICS = '''\
"""Functions that problem.toml may name: { function = "NAME" }. Points x are torch tensors [n, d], t is a number.

This file is executed only if problem.toml names one of its functions. The example does not use it.
"""

import torch


def reaction(u):
    """r(u) for states [..., fields]: pde.reaction = { function = "reaction" }."""
    return -0.01 * (u - 293.15)


def conductivity(x):
    """Diffusivity at the middle of every cell: pde.diffusion = { function = "conductivity" }."""
    return 9.7e-5 * (1.0 + 0.2 * (x[:, 0] > 0.1))


def room(x, t):
    """Ambient temperature: [[boundary]] ambient = { function = "room" }."""
    return torch.full((len(x),), 293.15 + 0.1 * t, dtype=x.dtype)


def lamp(x, t):
    """A source, in K/s: [[data]] source = { function = "lamp" }."""
    return 5.0 * torch.exp(-((x[:, 0] - 0.05 - 0.02 * t) ** 2 + (x[:, 1] - 0.04) ** 2) / 0.03**2)
'''


def write(folder: Path, seed: int = 0, report: Report | None = None) -> list[Path]:
    """The example in a new folder, which appears when it is complete."""
    folder = Path(folder)
    with making(folder) as part:
        (part / "runs").mkdir()
        mesh = plate(CORNERS, [HOLE], SPACING, SIDES)
        save(mesh, part / "plate.msh")
        rng = np.random.default_rng(seed)
        names = [f"train-{k + 1}" for k in range(TRAIN)] + [f"test-{k + 1}" for k in range(TEST)]
        paths = [part / "runs" / f"{name}.csv" for name in names]
        for name, path in zip(names, paths):
            path.write_text(spots(mesh, rng, smooth=name.startswith("test")))
        (part / "spots.csv").write_text(spots(mesh, rng, smooth=True))
        with few_threads(mesh.n_nodes):
            states = simulated(mesh, [SpotTable.read(p, 2) for p in paths], report)
        for name, state in zip(names, states):
            np.savez_compressed(part / "runs" / f"{name}.npz", state=state[..., 0].astype(np.float32),
                                time=DT * np.arange(STEPS + 1), points=mesh.points)
        (part / FILE).write_text(PROBLEM)
        (part / "physics.py").write_text(PHYSICS)
    return [folder / FILE, folder / "physics.py", folder / "plate.msh", folder / "runs", folder / "spots.csv"]


def spots(mesh: Mesh, rng: np.random.Generator, smooth: bool, count: int = 2) -> str:
    """Paths over the plate as CSV: straight from place to place in training, on curves at test."""
    lines = ["t,x,y,radius,power,spot"]
    horizon = DT * STEPS
    for spot in range(count):
        knots = [mesh.points[rng.integers(mesh.n_nodes)]]
        while len(knots) < 2 or np.linalg.norm(np.diff(knots, axis=0), axis=1).sum() < SPEED * horizon:
            knots.append(mesh.points[rng.integers(mesh.n_nodes)])
        at = np.concatenate([[0.0], np.linalg.norm(np.diff(knots, axis=0), axis=1).cumsum()]) / SPEED
        keep = np.concatenate([[True], np.diff(at) > 1e-9])
        at, way = at[keep], np.array(knots)[keep]
        when = np.linspace(0, horizon, STEPS + 1) if smooth else np.unique(np.concatenate([at[at < horizon], [horizon]]))
        where = np.stack([np.interp(when, at, way[:, k]) for k in range(2)], axis=1)
        if smooth:  # a running mean turns the corners into curves
            where = np.stack([np.convolve(np.pad(where[:, k], 4, mode="edge"), np.ones(9) / 9, "valid") for k in range(2)], axis=1)
        power = POWER * rng.uniform(0.7, 1.0 if smooth else 1.3)  # what is asked later stays inside of what was seen
        lines += [f"{t:.6g},{x:.6g},{y:.6g},{RADIUS},{power:.4g},{spot + 1}" for t, (x, y) in zip(when, where)]
    return "\n".join(lines) + "\n"


def simulated(mesh: Mesh, tables: list[SpotTable], report: Report | None = None) -> np.ndarray:
    """States [B, T+1, N, 1] of quadratic elements on the mesh refined once, with a quarter of the step."""
    fine, dt = mesh.refined(1), DT / SUBSTEPS
    problem = Problem(fine, PDE(("T",), diffusion=DIFFUSIVITY), (Robin(ALL, EXCHANGE, AMBIENT),), dt)
    model, done = Classical(degree=2), []
    x, times = torch.tensor(model.points(problem)), dt * torch.arange(SUBSTEPS * STEPS, dtype=torch.float64)
    start = torch.full((1, fine.n_nodes, 1), AMBIENT, dtype=torch.float64)
    for table in tables:
        states = rollout(model, problem, start, step_average(table, x, times, dt))
        done.append(states[0, ::SUBSTEPS, : mesh.n_nodes].numpy())
        if report is not None:
            report("simulations", len(done), len(tables))
    return np.stack(done)


# ---------------------------------------------------------------------- around a mesh

PART_DT, PART_STEPS, WARMER = 1.0, 100, 100.0
"""Step, number of steps, and about how much warmer the spot makes the part."""

PART = """\
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
        write_text(part / "spots.csv", moving_spot(mesh))
        write_text(part / FILE, problem)
    return [folder / name for name in (FILE, name, "spots.csv")]


def _problem(mesh: Mesh, name: str, folder: Path) -> str:
    size, names = _size(mesh), list(mesh.boundaries)
    plain = "".join(c if c.isalnum() and c.isascii() else "-" for c in folder.name.lower()).strip("-") or "part"
    return PART.format(mesh=visible(name), file=toml_text(name), title=toml_text(f"Heat in {name}"),
                          nodes=mesh.n_nodes, cells=mesh.n_cells, kind="triangles" if mesh.dim == 2 else "tetrahedra",
                          size=size, folder=visible(str(folder)), name=plain, dt=PART_DT, diffusion=1e-4 * size**2 / PART_DT,
                          names=", ".join(map(visible, names[:12])) or "no named ones",
                          first=toml_text(names[0] if names else "boundary"))


def moving_spot(mesh: Mesh) -> str:
    """A spot that goes from node to node, each far from those before, as a table for `--source`."""
    size, axes = _size(mesh), "xyz"[: mesh.dim]
    way = [mesh.points[np.argmin(mesh.points.sum(axis=1))]]
    for _ in range(4):
        apart = np.min([np.linalg.norm(mesh.points - p, axis=1) for p in way], axis=0)
        way.append(mesh.points[int(apart.argmax())])
    rows = [f"{PART_DT * PART_STEPS * k / 4:g},{','.join(f'{v:.6g}' for v in p)},{0.05 * size:.4g},{WARMER / (10 * PART_DT):g}"
            for k, p in enumerate(way)]
    return "\n".join([f"t,{','.join(axes)},radius,power", *rows]) + "\n"


def _size(mesh: Mesh) -> float:
    return float(np.ptp(mesh.points, axis=0).max())
