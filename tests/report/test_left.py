"""Three scenarios over 100 steps, by C, ONNX and FMU: the same fields as the library's rollout to 1e-4."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dgnet as dg
import dgnet_paper
from dgnet.export import export
from dgnet.export.c_file import Compiled, find_compiler, written
from dgnet.models import rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE
from dgnet.problems.case import base_problem
from dgnet.problems.spot_table import SpotTable
from dgnet.training.run import Run
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.scenario import Draw, scenario_of
from tests.export.test_export import fake, saturated

pytest.importorskip("onnx")
onnxruntime, fmpy = pytest.importorskip("onnxruntime"), pytest.importorskip("fmpy")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_compiler() is None, reason="no C compiler")]

STEPS = 100
SHIPPED = Path(dgnet_paper.__file__).parent / "pretrained"


def steady_channel() -> Run:
    """The cylinder's channel with a flow that does not change: parabolic along it, slowed around the cylinder."""
    base = get("cylinder", "small")
    x = torch.tensor(base.mesh.points, dtype=torch.float64)
    low, high = x.amin(0), x.amax(0)
    across = (x[:, 1] - low[1]) / (high[1] - low[1])
    velocity = torch.stack([4 * across * (1 - across), 0.1 * torch.sin(x[:, 0])], 1).float()
    scenario = replace(base, name="steady-channel", pde=replace(base.pde, velocity=velocity), flow=None, given_flow=False)
    torch.manual_seed(0)
    config = DGNetConfig(hidden=8, layers=1, learn_streamline=True, learn_swirl=True)
    model = saturated(DGNet(config, base_problem(scenario, "cpu")))
    return replace(fake(PDE(diffusion=0.1)), case=scenario, model=model)


def opened(name: str) -> Run:
    return steady_channel() if name == "steady-channel" else dg.load_run(SHIPPED / name)


def start_of(name: str, run: Run) -> torch.Tensor:
    if name != "fisher-kpp-converged":
        return torch.full((1, run.case.mesh.n_nodes, len(run.case.pde.fields)), run.case.offsets[0])
    return scenario_of(run).sample([Draw("test", 0)]).initial(torch.tensor(run.case.mesh.points)).float()


@pytest.mark.parametrize("name", ["laser-heat-same-mesh", "laser-heat-converged", "steady-channel", "fisher-kpp-converged"])
def test_a_scenario_leaves(name: str, tmp_path: Path) -> None:
    run = opened(name)
    problem, dt = base_problem(run.case, "cpu"), run.case.dt
    low, high = run.case.mesh.points.min(0), run.case.mesh.points.max(0)
    begin, end, radius = low + 0.3 * (high - low), low + 0.7 * (high - low), 0.1 * float((high - low).max())
    power = {"laser-heat": 30.0, "fisher-kpp": 0.5}.get(run.case.name, 0.5)
    rows = np.array([[*begin, radius, power], [*end, radius, power]])
    source = SpotTable(("",), (np.array([0.0, STEPS * dt]),), (rows,)).average(
        torch.tensor(problem.mesh.points), 0, STEPS, dt).float()
    u0 = start_of(name, run)
    with torch.no_grad():
        states = rollout(run.model, problem, u0, source, STEPS)
    scale = float(states.max() - states.min())

    c = Compiled(written(run, problem, "left"), tmp_path, find_compiler() or "", "float")
    c.array("state", u0.numel())[:] = u0.numpy().ravel()
    worst = 0.0
    for k in range(STEPS):
        c.array("source", u0.numel())[:] = source[0, k].numpy().ravel()
        c.step()
        worst = max(worst, float(np.abs(c.array("state", u0.numel()) - states[0, k + 1].numpy().ravel()).max()))
    assert worst <= 1e-4 * scale

    files = export(run, tmp_path / "left.onnx")
    u = u0.numpy()
    if "start" in files.extra:
        (u,) = onnxruntime.InferenceSession(str(files.extra["start"])).run(None, {"u": u})
    session, worst = onnxruntime.InferenceSession(str(files.program)), 0.0
    for k in range(STEPS):
        (u,) = session.run(None, {"u": u, "source": source[:, k].numpy()})
        worst = max(worst, float(np.abs(u - states[:, k + 1].numpy()).max()))
    assert worst <= 1e-4 * scale

    # a unit begins with a uniform state; where the scenario does not, the library does so, too
    uniform = torch.full_like(u0, 0.3 if name == "fisher-kpp-converged" else run.case.offsets[0])
    with torch.no_grad():
        states = rollout(run.model, problem, uniform, source, STEPS)
    node = int(np.linalg.norm(run.case.mesh.points - 0.5 * (begin + end), axis=1).argmin())
    unit = export(run, tmp_path / "left.fmu", fmi=3, probes=[tuple(run.case.mesh.points[node])])
    way = dict(zip(("spot1_vx", "spot1_vy"), (end - begin) / (STEPS * dt)))
    time = dt * np.arange(STEPS + 1)
    columns = [("time", float), ("spot1_x", float), ("spot1_y", float)]
    places = np.array(list(zip(time, *(b + (e - b) * time / time[-1] for b, e in zip(begin, end)))), dtype=columns)
    field = run.case.pde.fields[0]
    found = fmpy.simulate_fmu(str(unit.program), stop_time=STEPS * dt, step_size=dt, output_interval=dt, input=places,
                              start_values={"spot1_radius": radius, "spot1_power": power, f"start_{field}": float(uniform[0, 0, 0]),
                                            **way}, output=[f"probe1_{field}"])
    scale = float(states.max() - states.min())
    np.testing.assert_allclose(found[f"probe1_{field}"], states[0, :, node, 0], atol=1e-4 * scale, rtol=0)
