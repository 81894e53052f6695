"""Tables in time in problem.toml: as .csv files with units, as objects of physics.py, in a run that brings them along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.prediction.to_files import predict_to_files
from dgnet.problems import Dirichlet, Neumann, Problem, Robin, TimeTable
from dgnet.projects.project import Project, carried, carry, described
from dgnet.training.identity import fingerprint
from dgnet.training.simulator import simulator

PROBLEM = """
[problem]
fields = ["T"]
dt = "1 min"
offset = 20.0
[units]
length = "m"
time = "s"
T = "°C"
[mesh]
shape = "rectangle"
size = ["0.2 m", "0.1 m"]
spacing = "25 mm"
[[boundary]]
name = "left"
kind = "neumann"
flux = "flux.csv"
[[boundary]]
name = "top"
kind = "robin"
coefficient = { function = "wind" }
ambient = "air.csv"
[[boundary]]
name = "bottom"
kind = "dirichlet"
value = { function = "held" }
[pde]
density = "7850 kg/m3"
capacity = "450 J/kg/K"
conductivity = "45 W/m/K"
"""
FILES = {
    "flux.csv": "t [min], flux [kW/m2]\n0, 0\n0.1, 0\n0.1, 200\n0.2, 200\n0.2, 0\n",
    "air.csv": "# measured\nt [h]; T [°C]\n0; 20\n1; 26\n",
    "physics.py": ("import torch\nfrom dgnet.problems import TimeTable\nheld = TimeTable([0.0, 30.0, 30.0], [20.0, 20.0, 25.0])\n"
                   "def wind(x, t):\n    return 25.0 + 50.0 * (7.0 < t < 7.5) + 0 * x[:, 0]\nwind.knots = [7.0, 7.5]\n")}


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in ({"problem.toml": PROBLEM} | FILES | files).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def opened(folder: Path) -> Project:
    return described(folder, "", folder / "none", 5)


def loads(project: Project) -> tuple[Any, ...]:
    case = project.case
    p = Problem(case.mesh, case.pde, case.conditions, case.dt)
    convection, flux = p.convection_part(0.0, p.dt), p.flux_load(0.0, p.dt)
    assert convection is not None and flux is not None
    return p.dt * float(flux.sum()), p.dt * float(convection.row_sums().sum()), p.fixed_values(p.dt)


def test_tables_have_the_units_of_their_columns(tmp_path: Path) -> None:
    project = opened(write(tmp_path))
    flux, exchange, held = project.case.conditions
    assert isinstance(flux, Neumann) and isinstance(exchange, Robin) and isinstance(held, Dirichlet)
    assert isinstance(flux.flux, TimeTable) and isinstance(exchange.ambient, TimeTable) and isinstance(held.value, TimeTable)
    assert flux.flux.knots.tolist() == [0.0, 6.0, 6.0, 12.0, 12.0] and exchange.ambient(torch.zeros(1, 2), 1800.0) == 23.0
    brought, exchanged, values = loads(project)
    assert brought == pytest.approx(200e3 * 6.0 * 0.1) and float(values.max()) == 25.0
    assert exchanged == pytest.approx((25.0 * 60 + 50.0 * 0.5) * 0.2)


def test_a_run_brings_its_tables_along(tmp_path: Path) -> None:
    project = opened(write(tmp_path / "own"))
    carry(project, tmp_path / "run")
    for name in ("flux.csv", "air.csv"):
        (tmp_path / "own" / name).unlink()
    again = carried(tmp_path / "run", "own", tmp_path / "none", 5)
    assert loads(again)[:2] == pytest.approx(loads(project)[:2])
    assert fingerprint(again.case) == fingerprint(project.case)


def test_another_table_is_another_problem(tmp_path: Path) -> None:
    """Also where it differs between the times at which functions are compared."""
    one, other = (opened(write(tmp_path / name, **{"flux.csv": text})) for name, text in (
        ("a", FILES["flux.csv"]), ("b", FILES["flux.csv"].replace("0.2, 200", "0.2, 150"))))
    assert fingerprint(one.case) != fingerprint(other.case)


@pytest.mark.parametrize("model", ["classical", "universal"])
def test_a_simulation_takes_them(tmp_path: Path, model: str) -> None:
    """The flux is on for 6 s of the first step of a minute; nothing else is near this part."""
    plain = PROBLEM.replace('{ function = "wind" }', "0.0").replace('"dirichlet"', '"neumann"').replace("value", "flux").replace(
        '{ function = "held" }', "0.0")
    states: list[np.ndarray] = []
    run = simulator(write(tmp_path, **{"problem.toml": plain}), model)
    found = predict_to_files(run, steps=3, sink=lambda k, u: states.append(u.copy()))
    if model == "classical":
        assert found["balance"]["T"]["fluxes"] == pytest.approx(200e3 * 6.0 * 0.1) and found["balance"]["T"]["closes"] < 1e-6
    held = run.case.mesh.dual_volumes() @ (states[-1][:, 0] - 20.0) * 7850 * 450
    assert held == pytest.approx(200e3 * 6.0 * 0.1, rel=1e-3)  # single precision


@pytest.mark.parametrize(("name", "text", "words"), [
    ("flux.csv", "t, q\n0, 1\n1, x\n", "row 2 of the table is not two numbers, the time and the value"),
    ("flux.csv", "t [s], q [kg]\n0, 1\n", "wrong unit"),
    ("flux.csv", "t, q\n2, 1\n1, 1\n", "boundary.1..flux: the times of a table"),
    ("flux.csv", "", "has no rows"), ("air.csv", "t [s], T [K]\n0, 300\n", "air.csv"),
    ("physics.py", "held = 3\n", "names the function 'wind'"),
    ("physics.py", FILES["physics.py"].replace("[7.0, 7.5]", "'abc'"), "knots of a boundary value must be times")])
def test_bad_tables_are_one_sentence(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        opened(write(tmp_path, **{name: text}))


def test_a_missing_file_and_a_wrong_number_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.csv"):
        opened(write(tmp_path, **{"problem.toml": PROBLEM.replace('"air.csv"', '"none.csv"')}))
    negative = PROBLEM.replace('{ function = "wind" }', '"wind.csv"')
    with pytest.raises(InputError, match="must not be negative, got -2"):
        loads(opened(write(tmp_path, **{"problem.toml": negative, "wind.csv": "t [s], h [W/m2/K]\n0, 5\n100, -2\n"})))
    assert np.isfinite(loads(opened(write(tmp_path, **{"problem.toml": negative, "wind.csv": "0 5\n100 2\n"})))[0])
