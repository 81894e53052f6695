"""Trajectories that do not begin at 0 are checked, trained on and judged at their own time."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from dgnet.data import Trajectory
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNetConfig
from dgnet.problems import PDE, Dirichlet, Problem
from dgnet.projects.check import check
from dgnet.projects.project import project
from dgnet.recipe import Recipe, Stage
from dgnet.training.evaluate import evaluate
from dgnet.training.plan import Plan
from dgnet.training.run import train

DT, STEPS = 0.1, 12


def test_the_classical_solver_is_exact_on_its_own_later_data(tmp_path: Path) -> None:
    mesh, pde = box((5, 5), perturb=0.2), PDE(diffusion=0.05)
    walls = [Dirichlet("left", lambda x, t: math.sin(2 * t) + 0 * x[:, 0])]
    problem = Problem(mesh, pde, walls, DT)
    rows = []
    for k, begin in enumerate((0.7, 0.7, 2.0)):
        start = torch.full((1, mesh.n_nodes, 1), math.sin(2 * begin), dtype=torch.float64)
        with torch.no_grad():
            states = rollout(Classical(), problem, start, None, STEPS, t0=begin)[0].numpy().astype(np.float32)
        rows.append(Trajectory(states, begin + DT * np.arange(STEPS + 1), split="test" if k == 2 else "train", index=k))
    own = project("later", mesh, pde, walls, DT, rows, tmp_path / "d.h5")
    found = {item.name: item for item in check(own)}
    assert found["fixed values"].numbers["difference"] < 1e-5 and found["step"].numbers["explained"] > 0.999
    assert max(e["consistent"] for e in found["classical"].numbers["errors"].values()) < 1e-5

    plan = Recipe("none", (Stage(1, 2, batch=2, lr=0.0),), hold_out=1)
    run, progress = train(own.case, "given", own.data, tmp_path / "run", Plan(DGNetConfig(hidden=8, layers=1), plan))
    assert progress.classical < 1e-5
    assert evaluate(run, own.data)[0]["scores"]["classical_consistent"]["rne"] < 1e-5
