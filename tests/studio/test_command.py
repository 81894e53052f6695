"""What `dgnet studio` opens: the gallery, a run, a problem, a mesh."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.errors import InputError
from dgnet.studio.scene import path_scene, run_scene
from dgnet.studio.server import listening
from dgnet.studio.simulation import Controls, Simulation, Spot
from dgnet_paper.scenarios import names
from dgnet_paper.scenarios.looped import looped_flow
from dgnet_paper.scenes import gallery

PROBLEM = """
[problem]
name = "plate"
title = "A warm plate"
fields = ["T"]
dt = 0.1
offset = { T = 300.0 }
[units]
length = "m"
time = "s"
T = "K"
[mesh]
file = "part.msh"
[pde]
diffusion = 0.02
[[boundary]]
name = "left"
kind = "robin"
coefficient = 0.4
ambient = 300.0
"""


def test_the_gallery_holds_all_scenarios() -> None:
    found = gallery()
    assert next(iter(found)) == "laser-heat" and set(found) == set(names())
    assert all(entry.title and entry.about for entry in found.values())
    scene = found["cardiac"].make()  # no weights ship for it; its stimulus is a short pulse, which sets the pointer's power
    assert list(scene.models) == ["classical"] and scene.power > 0.01


@pytest.mark.parametrize("name", ["cylinder", "sediments", "obstacles", "wavy-channel"])
def test_channels_flow_as_in_the_loop_that_ships(name: str) -> None:
    """What is poured in moves downstream; the flow keeps to the walls, enters as the scenario says, and closes its loop."""
    scene = gallery()[name].make()
    mesh, flow, spec = scene.case.mesh, looped_flow(name), scene.case.flow  # type: ignore[attr-defined]
    assert set(scene.models) == {"classical", "trained"}
    times = np.linspace(0, flow.period, 9)
    v = torch.cat([flow(t) for t in times])
    inlet = mesh.nodes_on("inlet")
    walls = np.setdiff1d(np.unique(mesh.boundary_facets), np.union1d(inlet, mesh.nodes_on("outlet")))
    assert torch.allclose(v[0], v[-1], atol=1e-5) and float(v[:, walls].abs().max()) < 0.05 * spec.mean_velocity
    assert abs(float(v[:, inlet, 0].max()) / (1.5 * spec.mean_velocity) - 1) < 0.05  # a parabola
    jump = max(float((flow(t) - flow(t + flow.dt)).norm() / flow(t).norm()) for t in np.arange(0, flow.period, flow.dt))
    assert jump < 0.2
    simulation = Simulation(scene, Controls.read(scene, {"model": "classical"}))
    spot = Spot((3.0, 4.0), (3.0, 4.0), 0.6, 1.0)
    simulation.advance(4, [spot], False, 60.0)
    places = []
    for _ in range(2):
        c = simulation.values()[0].clip(0) * mesh.dual_volumes()
        places.append(float(c @ mesh.points[:, 0] / c.sum()))
        simulation.advance(20, [], False, 60.0)
    assert 0.3 < (places[1] - places[0]) / spec.mean_velocity < 3


def test_problem_mesh_and_nonsense(tmp_path: Path) -> None:
    dg.save_mesh(dg.box((3, 3)), tmp_path / "part.msh")
    (tmp_path / "problem.toml").write_text(PROBLEM)
    for path, title in ((tmp_path, "A warm plate"), (tmp_path / "part.msh", "Heat in part.msh")):
        scene = path_scene(path)
        simulation = Simulation(scene, Controls.read(scene, {}))
        assert simulation.advance(2, [], True, 60.0) == 2 and scene.title == title
    told = path_scene(tmp_path).described()
    assert told["units"] == {"time": "s", "length": "m", "fields": ["K"], "power": "K/s", "flux": "K·m/s", "coefficient": "m/s"}
    assert told["conditions"] == [{"boundary": "left", "kind": "exchange", "value": 300.0, "coefficient": 0.4, "fixed": False}]
    with pytest.raises(InputError, match="did you mean"):
        path_scene(Path("laser-heta"), ["laser-heat"])


def test_a_trained_run_begins_where_its_data_do(tmp_path: Path) -> None:
    mesh, pde = dg.box((4, 4)), dg.PDE(diffusion=0.1)

    start = torch.rand(3, mesh.n_nodes, 1, dtype=torch.float64)
    states = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.1), start, steps=8)
    runs = [dg.trajectory(s, mesh, 0.1, split=k) for s, k in zip(states.numpy(), ("train", "train", "test"))]
    run, _ = dg.train(dg.project("cooling", mesh, pde, [], 0.1, runs, tmp_path / "cooling.h5"), tmp_path / "run", minutes=0.002)

    scene = run_scene(run)
    assert torch.allclose(scene.start[0], start[2].float()) and scene.usual == "trained"


def test_without_its_packages_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InputError, match=r"dgnet\[studio\]"):
        listening({})
