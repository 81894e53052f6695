"""How long a fine solver takes: of a scenario, of a channel with its flow, of a problem of one's own."""

from __future__ import annotations

import pytest
import torch

from dgnet.data import Corpus
from dgnet.mesh import box
from dgnet.output import fine
from dgnet.output.fine import fine_time
from dgnet.problems import PDE, Robin
from dgnet.problems.case import Case
from dgnet.scenarios import get


def own(mesh, pde: PDE, **more: object) -> Case:
    return Case(name="own", title="own", equation="", build_mesh=lambda: mesh, pde=pde, conditions=(Robin("boundary", 0.1, 1.0),),
                dt=0.1, steps=50, **more)  # type: ignore[arg-type]


def corpus(case: Case, flow: bool = False) -> Corpus:
    shape = (1, 9, case.mesh.n_nodes)
    return Corpus(torch.rand(*shape, 1), None, torch.full((*shape, 2), 0.1) if flow else None, case.dt, ())


def test_a_problem_of_ones_own_and_a_channel() -> None:
    case = own(box((4, 4)), PDE(diffusion=0.1))
    found = fine_time(case, "own", corpus(case), "cpu")
    assert found is not None and found.seconds > 0 and "reference solver of dgnet" in found.solver and found.flow_seconds is None
    carried = own(box((4, 4)), PDE(diffusion=0.1), given_flow=True)
    assert fine_time(carried, "own", corpus(carried, flow=True), "cpu") is not None
    channel = get("cylinder", "small")
    found = fine_time(channel, "same-mesh", corpus(channel, flow=True), "cpu")
    assert found is not None and "made the data" in found.solver and found.flow_seconds is not None and found.flow_seconds > 0


def test_what_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = own(box((4, 4)), PDE(diffusion=0.1))
    monkeypatch.setattr(fine, "_MOST", 100)
    assert fine_time(case, "own", corpus(case), "cpu") is None
