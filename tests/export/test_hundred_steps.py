"""Shipped models that left as C, ONNX and FMU make the library's states over 100 steps to 1e-4; channels are refused in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import dgnet as dg
import dgnet_paper
from dgnet.errors import InputError
from dgnet.export import export
from dgnet.export.c_file import Compiled, find_compiler, written
from dgnet.problems.case import base_problem
from dgnet.problems.spot_table import SpotTable
from dgnet.training.simulator import Simulator

PRETRAINED = Path(dgnet_paper.__file__).parent / "pretrained"
STEPS, CLOSE = 100, 1e-4
compiler = find_compiler() or ""
needs_compiler = pytest.mark.skipif(not compiler, reason="no C compiler")


def run_of(name: str) -> Simulator:
    return dg.load_run(PRETRAINED / f"{name}-converged")


def spots(run: Simulator) -> tuple[SpotTable, dict[str, float]]:
    """One spot that moves through the middle, as a table and as the inputs of an FMU; it changes fields by about their scale."""
    mesh, end = run.case.mesh, STEPS * run.case.dt
    size = float(np.ptp(mesh.points, axis=0).max())
    middle, speed = mesh.points.mean(0), 0.2 * size / end
    power = 5.0 * float(run.model.typical()[1].max()) / end
    rows = np.array([[*middle, 0.1 * size, power], [middle[0] + speed * end, middle[1], 0.1 * size, power]])
    start = {"spot1_x": middle[0], "spot1_y": middle[1], "spot1_vx": speed, "spot1_radius": 0.1 * size, "spot1_power": power}
    return SpotTable(("spot",), (np.array([0.0, end]),), (rows,)), start


def expected(run: Simulator, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The library's states [101, N] and the source [1, 100, N, 1]."""
    problem = base_problem(run.case, "cpu")
    source = spots(run)[0].average(torch.tensor(run.case.mesh.points), 0, STEPS, run.case.dt).float()
    with torch.no_grad():
        return dg.rollout(run.model, problem, u, source)[0, :, :, 0], source


def beginning(run: Simulator) -> torch.Tensor:
    """A start [1, N, 1] that is smooth in space and of the size of the training data."""
    mean, std, _ = run.model.typical()
    x = torch.tensor(run.case.mesh.points, dtype=torch.float32)
    return (mean + std * torch.sin(5 * (x / x.max())).sum(1))[None, :, None]


@needs_compiler
@pytest.mark.parametrize("name", [pytest.param("laser-heat", marks=pytest.mark.slow), "allen-cahn"])
def test_c_over_a_hundred_steps(name: str, tmp_path: Path) -> None:
    run = run_of(name)
    u = beginning(run)
    states, source = expected(run, u)
    c = Compiled(written(run, base_problem(run.case, "cpu"), "mine"), tmp_path, compiler, "float")
    c.array("state", u.numel())[:] = u.numpy().ravel()
    for k in range(STEPS):
        c.array("source", u.numel())[:] = source[0, k].numpy().ravel()
        c.step()
    found = torch.from_numpy(c.array("state", u.numel()).copy())
    c.close()
    assert float((states[-1] - states[0]).abs().max()) > 0.1 * float(states.std())
    assert float((found - states[-1]).abs().max()) <= CLOSE * float(states.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["laser-heat"])
def test_onnx_over_a_hundred_steps(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    run = run_of(name)
    u = beginning(run)
    states, source = expected(run, u)
    made = export(run, tmp_path / "step.onnx")
    step, now = onnxruntime.InferenceSession(str(made.program)), u.numpy()
    for k in range(STEPS):
        (now,) = step.run(None, {"u": now, "source": source[:, k].numpy()})
    assert np.abs(now[0, :, 0] - states[-1].numpy()).max() <= CLOSE * float(states.abs().max())


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["laser-heat", "allen-cahn"])
def test_a_unit_over_a_hundred_steps(name: str, tmp_path: Path) -> None:
    fmpy = pytest.importorskip("fmpy")
    run = run_of(name)
    mean = float(run.model.typical()[0].mean())
    states, _ = expected(run, torch.full((1, run.case.mesh.n_nodes, 1), mean))
    field, dt = run.case.pde.fields[0], run.case.dt
    node = int(np.linalg.norm(run.case.mesh.points - run.case.mesh.points.mean(0), axis=1).argmin())
    made = export(run, tmp_path / "unit.fmu", probes=[tuple(run.case.mesh.points[node])])
    start = spots(run)[1]
    times = dt * np.arange(STEPS + 1)
    path = np.array(list(zip(times, start["spot1_x"] + start["spot1_vx"] * times)), dtype=[("time", float), ("spot1_x", float)])
    found = fmpy.simulate_fmu(str(made.program), stop_time=STEPS * dt, step_size=dt, output_interval=dt, input=path,
                              start_values={f"start_{field}": mean, **start}, output=[f"probe1_{field}", f"high_{field}"])
    scale = float(states.abs().max())
    assert np.abs(found[f"probe1_{field}"] - states[:, node].numpy()).max() <= CLOSE * scale
    assert np.abs(found[f"high_{field}"] - states.max(1).values.numpy()).max() <= CLOSE * scale


@pytest.mark.parametrize("kind", ["c", "onnx", "fmu", "pt2"])
def test_a_channel_is_refused_in_words(kind: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="its flow changes in time, and a program holds one step"):
        export(run_of("cylinder"), tmp_path / f"step.{kind}")
    assert not list(tmp_path.iterdir())
