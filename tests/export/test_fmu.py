"""`dgnet export --out unit.fmu`: FMPy validates and simulates it, and its probes are those of the library."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.export import export
from dgnet.export.c_file import find_compiler
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, Dirichlet, Robin
from dgnet.problems.case import base_problem
from dgnet.problems.spot_table import SpotTable
from tests.export.test_export import fake

fmpy = pytest.importorskip("fmpy")
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


@pytest.mark.parametrize("version", [2, 3])
def test_a_unit_is_valid_and_follows_the_library(version: int, tmp_path: Path) -> None:
    from fmpy.validation import validate_fmu

    run = replace(fake(PDE(diffusion=0.1), (Dirichlet("left", 1.5), Robin("right", 2.0, 0.4))), model=Classical(start=0))
    result = export(run, tmp_path / "plate.fmu", fmi=version, probes=[(0.5, 0.5), (0.3, 0.9)])
    assert sorted(p.name for p in result.paths) == sorted(p.name for p in tmp_path.iterdir())
    assert validate_fmu(str(result.program)) == []
    problem, dt, steps = base_problem(run.case, "cpu"), run.case.dt, 20
    start = {"start_u": 0.25, "right_ambient": 2.0, "spot1_radius": 0.2,
             "spot1_power": 5.0, "spot1_x": 0.2, "spot1_y": 0.3, "spot1_vx": 0.4}
    time = dt * np.arange(steps + 1)
    place = np.array(list(zip(time, 0.2 + 0.4 * time)), dtype=[("time", float), ("spot1_x", float)])
    found = fmpy.simulate_fmu(str(result.program), stop_time=steps * dt, step_size=dt, output_interval=dt, start_values=start,
                              input=place, output=["probe1_u", "probe2_u", "high_u", "mean_u"])
    other = replace(run.case, conditions=(Dirichlet("left", 1.5), Robin("right", 2.0, 2.0)))
    table = SpotTable(("spot",), (np.array([0.0, 9.0]),), (np.array([[0.2, 0.3, 0.2, 5.0], [0.2 + 3.6, 0.3, 0.2, 5.0]]),))
    source = table.average(torch.tensor(problem.mesh.points), 0, steps, dt).float()
    states = rollout(Classical(start=0), base_problem(other, "cpu"), torch.full((1, 25, 1), 0.25), source)[0, :, :, 0]
    middle = int(np.linalg.norm(problem.mesh.points - 0.5, axis=1).argmin())
    assert len(found) == steps + 1
    np.testing.assert_allclose(found["probe1_u"], states[:, middle], atol=1e-5)
    np.testing.assert_allclose(found["high_u"], states.max(1).values, atol=1e-5)
    assert found["mean_u"][0] == pytest.approx(0.25) and not np.allclose(found["probe2_u"], found["probe1_u"])


def test_communication_steps_need_not_fit(tmp_path: Path) -> None:
    run = replace(fake(PDE(diffusion=0.1), (Dirichlet("left", 1.5),)), model=Classical(start=0))
    result, dt = export(run, tmp_path / "plate.fmu", fmi=3), run.case.dt
    once = fmpy.simulate_fmu(str(result.program), stop_time=12 * dt, step_size=dt, output_interval=4 * dt)
    longer = fmpy.simulate_fmu(str(result.program), stop_time=12 * dt, step_size=4 * dt, output_interval=4 * dt)
    np.testing.assert_allclose(longer["mean_u"], once["mean_u"], rtol=1e-12)


def test_what_a_unit_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    run = replace(fake(PDE(diffusion=0.1)), model=Classical(start=0))
    for words, settings in (("FMI 2 and 3", {"fmi": 1}), ("outside", {"probes": [(2.0, 0.5)]}),
                            ("coordinates", {"probes": [(0.5,)]}), ("spots", {"spots": -1})):
        with pytest.raises(InputError, match=words):
            export(run, tmp_path / "unit.fmu", **settings)
    assert not list(tmp_path.iterdir())
