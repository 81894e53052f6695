"""Data that do not fit a problem are refused by what differs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgnet.data import Dataset, Header, Trajectory, write_dataset
from dgnet.data.fits import check_fits
from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet_paper.scenarios import get

SCENARIO = get("laser-heat", "small")


def header(**changes: object) -> Header:
    s = SCENARIO
    origin = {"scenario": s.name, "size": s.size, "truth": "converged"}
    return replace(Header(s.mesh, s.pde.fields, s.dt, 2, s.offsets, origin), **changes)


def of(mesh: Mesh, points: np.ndarray | None = None, cells: np.ndarray | None = None) -> Mesh:
    return Mesh(mesh.points if points is None else points, mesh.cells if cells is None else cells)


def trajectory(dt: float = SCENARIO.dt, start: float = 0.0, velocity: bool = False) -> Trajectory:
    n = SCENARIO.mesh.n_nodes
    return Trajectory(np.full((3, n, 1), 300.0, np.float32), start + dt * np.arange(3),
                      velocity=np.zeros((3, n, 2), np.float32) if velocity else None)


BACK = SCENARIO.mesh.n_nodes - 1 - SCENARIO.mesh.cells
WRONG = {
    "doubled coordinates": (header(mesh=of(SCENARIO.mesh, 2 * SCENARIO.mesh.points)), trajectory(), "another mesh.*node"),
    "reversed nodes": (header(mesh=of(SCENARIO.mesh, SCENARIO.mesh.points[::-1].copy(), BACK)), trajectory(), "another mesh"),
    "order of cells": (header(mesh=of(SCENARIO.mesh, cells=np.roll(SCENARIO.mesh.cells, 1, axis=0))), trajectory(), "another mesh"),
    "field": (header(fields=("c",)), trajectory(), "the fields c, .* has T"),
    "dt": (header(dt=2 * SCENARIO.dt), trajectory(2 * SCENARIO.dt), "time step"),
    "dt is not a number": (header(dt=float("nan")), trajectory(), "dt|time step nan"),
    "times": (header(), trajectory(1.5 * SCENARIO.dt), "times are not steps|stored time 1"),
    "offset": (header(offset=(20.0,)), trajectory(), "offset 20"),
    "flow": (header(), trajectory(velocity=True), "has a flow"),
    "scenario": (header(provenance={"scenario": "phase-transition", "size": "small"}), trajectory(), "data of 'phase-transition'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_named(what: str, tmp_path: Path) -> None:
    head, one, message = WRONG[what]
    write_dataset(tmp_path / "x.h5", head, [one])
    with pytest.raises(InputError, match=message), Dataset(tmp_path / "x.h5") as data:
        check_fits(data, SCENARIO)


def test_what_fits_is_taken(tmp_path: Path) -> None:
    write_dataset(tmp_path / "x.h5", header(), [trajectory(start=1.0)])
    with Dataset(tmp_path / "x.h5") as data:
        check_fits(data, SCENARIO, "converged")
        with pytest.raises(InputError, match="begin at 0"):
            check_fits(data, SCENARIO, from_zero=True)
        with pytest.raises(InputError, match="converged truth"):
            check_fits(data, SCENARIO, "same-mesh")
