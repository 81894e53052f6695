"""A flow as it is stored: snapshots of one long run, and how they are read on other refinements of the mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from scipy.sparse import csr_array

from dgnet.errors import InputError
from dgnet.files import writing
from dgnet.mesh.mesh import Mesh
from dgnet_paper.reference.flow import ChannelFlow
from dgnet_paper.reference.taylor_hood import p2_interpolator


@dataclass(frozen=True, eq=False)
class FlowRecord:
    """Velocities of a flow at equal times: `values` [T, n_p2, 2] at start, start + dt, ...

    They are P2 on `mesh.refined(refine)`, that is, nodal values on `mesh.refined(refine + 1)`, whose first nodes are those
    of every coarser mesh.
    """

    mesh: Mesh
    refine: int
    dt: float
    values: np.ndarray
    start: float = 0.0

    def __post_init__(self) -> None:
        n = self.flow_mesh.n_nodes + len(self.flow_mesh.edges)
        if self.values.ndim != 3 or self.values.shape[1:] != (n, 2):
            raise InputError(f"flow velocities must have shape [T, {n}, 2], got {list(self.values.shape)}")

    @cached_property
    def flow_mesh(self) -> Mesh:
        return self.mesh.refined(self.refine)

    @property
    def times(self) -> np.ndarray:
        return self.start + self.dt * np.arange(len(self.values))

    def interpolator(self, refine: int) -> csr_array:
        """Matrix [n_nodes of mesh.refined(refine), n_p2]: a selection up to refine + 1, P2 shape functions beyond."""
        return p2_interpolator(self.mesh, self.refine, refine)

    def snapshots(self, refine: int, span: slice = slice(None)) -> np.ndarray:
        """Velocities at the nodes of `mesh.refined(refine)` [T, nodes, 2]."""
        values = self.values[span]
        if refine <= self.refine + 1:
            return values[:, : self.mesh.refined(refine).n_nodes]
        matrix = self.interpolator(refine).astype(values.dtype)
        return np.stack([matrix @ v for v in values])

    def save(self, path: str | Path) -> None:
        path = Path(path)
        named = {f"boundary:{name}": facets for name, facets in self.mesh.boundaries.items()}
        with writing(path) as part, part.open("wb") as file:
            np.savez(file, points=self.mesh.points, cells=self.mesh.cells, refine=self.refine, dt=self.dt, start=self.start,
                     values=self.values, **named)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | Path) -> FlowRecord:
        try:
            with np.load(path, allow_pickle=False) as file:
                named = {key.removeprefix("boundary:"): file[key] for key in file.files if key.startswith("boundary:")}
                return cls(Mesh(file["points"], file["cells"], named), int(file["refine"]), float(file["dt"]), file["values"],
                           float(file["start"]))
        except (OSError, KeyError, ValueError, BadZipFile) as error:
            raise InputError(f"{path} is not a complete flow record: {error}") from error


def simulate(mesh: Mesh, *, mean_velocity: float, viscosity: float, dt_flow: float, spin_up: float, duration: float,
             store_every: int, refine: int = 0, device: str | torch.device = "cpu", method: str = "auto",
             perturbation: float = 0.3, begin: FlowRecord | None = None, dtype: type = np.float32,
             progress: Callable[[int, int], None] | None = None) -> FlowRecord:
    """One long run on `mesh.refined(refine)`: from rest through `spin_up`, then `duration` stored every `store_every` steps.

    The record starts at its own time zero and has floor(duration / (store_every dt_flow)) + 1 snapshots.
    `begin` starts from the last snapshot of another run of the same mesh (any refinement) instead of from rest, which makes
    the spin-up on a fine mesh short. `progress(done, total)` counts steps.
    """
    if store_every < 1 or duration < 0 or spin_up < 0:
        raise InputError("store_every must be at least 1, spin_up and duration not negative")
    flow_mesh = mesh.refined(refine)
    initial = None
    if begin is not None:
        if begin.mesh.n_nodes != mesh.n_nodes:
            raise InputError("the flow to begin from belongs to another mesh")
        initial = begin.interpolator(refine + 1) @ begin.values[-1].astype(np.float64)
    flow = ChannelFlow(flow_mesh, mean_velocity=mean_velocity, viscosity=viscosity, dt=dt_flow, device=device, method=method,
                       initial=initial, perturbation=0.0 if begin is not None else perturbation,
                       ramp=0.0 if begin is not None else None)
    before = round(spin_up / dt_flow)
    stored = int(duration / (store_every * dt_flow) + 1e-9) + 1
    total = before + (stored - 1) * store_every
    done, block = 0, max(store_every, 50)
    while done < before:
        count = min(block, before - done)
        flow.advance(count)
        done += count
        if progress:
            progress(done, total)
    values: np.ndarray = np.empty((stored, flow.space.n, 2), dtype=dtype)
    values[0] = flow.velocity
    for k in range(1, stored):
        flow.advance(store_every)
        values[k] = flow.velocity
        if progress:
            progress(before + k * store_every, total)
    flow.check()
    return FlowRecord(mesh, refine, store_every * dt_flow, values)
