"""Materials in problem.toml: curves in files and functions, latent heat, regions, units, and the balance of a rollout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.problems import PDE, ByRegion, Curve, Scaled
from dgnet.projects.project import carried, carry, described, on_mesh
from dgnet.recipe import GENERAL
from dgnet.training.own import first_choice
from dgnet.training.plan import make_plan
from dgnet.training.simulator import simulator
from tests.projects.conftest import command

HEAD = """
[problem]
fields = ["T"]
dt = "10 s"
offset = 20.0
[units]
length = "m"
time = "s"
T = "°C"
[mesh]
shape = "rectangle"
size = ["0.2 m", "0.1 m"]
spacing = "25 mm"
regions.steel = { x = [0.0, 0.1] }
[[boundary]]
name = "left"
kind = "neumann"
flux = "200 kW/m2"
[[boundary]]
name = "top"
kind = "robin"
coefficient = "25 W/m2/K"
ambient = "20 °C"
[pde]
"""
MIXED = """
density = { steel = "7850 kg/m3", elsewhere = "2700 kg/m3" }
capacity = { steel = "c(T).csv", elsewhere = "900 J/kg/K" }
conductivity = { steel = "k(T).csv", elsewhere = "237 W/m/K" }
latent_heat = { elsewhere = "397 kJ/kg" }
melting = { elsewhere = ["655 °C", "665 °C"] }
"""
ONE = """
density = "7850 kg/m3"
capacity = "c(T).csv"
conductivity = "k(T).csv"
"""


def write(folder: Path, pde: str, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "problem.toml").write_text(HEAD + pde, encoding="utf-8")
    tables = {"k(T).csv": "T [°C], k(T) [W/m/K]\n0, 54\n800, 27.3\n1300, 27.3\n",
              "c(T).csv": "# Eurocode, roughly\nT [°C]; c [kJ/kg/K]\n0; 0.44\n720; 1.4\n735; 5.0\n750; 1.4\n1300; 0.65\n"} | files
    for name, text in tables.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def equation(folder: Path) -> PDE:
    return described(folder, "", folder / "none", 5).case.pde


def test_curves_units_and_regions_are_read(tmp_path: Path) -> None:
    pde = equation(write(tmp_path, MIXED))
    capacity, diffusion = pde.capacity, pde.diffusion
    assert isinstance(capacity, ByRegion) and isinstance(diffusion, ByRegion)
    steel, other = capacity.parts["steel"], capacity.parts["elsewhere"]
    assert isinstance(steel, Scaled) and isinstance(other, Scaled) and isinstance(diffusion.parts["steel"], Curve)
    assert steel.curve.points[1].tolist() == [440.0, 1400.0, 5000.0, 1400.0, 650.0]  # kJ became J
    melt = other.curve.latent[0]
    assert (melt.heat, melt.low, melt.high) == (397e3, 655.0, 665.0)
    assert diffusion.parts["elsewhere"] == 237.0 and diffusion.parts["steel"].name == "conductivity (k(T).csv)"


def test_one_material_with_a_sharp_transition(tmp_path: Path) -> None:
    pde = equation(write(tmp_path, ONE + 'latent_heat = "270 kJ/kg"\nmelting = "1250 °C"\n'))
    assert isinstance(pde.capacity, Curve)
    melt = pde.capacity.latent[0]
    assert float(melt.heat) == pytest.approx(270e3 * 7850) and 0 < melt.high - melt.low < 1.0


def test_a_function_of_the_field_is_a_curve(tmp_path: Path) -> None:
    text = 'diffusion = { curve = "D", range = ["0 °C", "100 °C"] }\n'
    folder = write(tmp_path, text.replace('"0 °C", "100 °C"', "0, 100"))
    plain = (folder / "problem.toml").read_text().replace('"200 kW/m2"', "0.0").replace('"25 W/m2/K"', "0.0")  # no heat: no watts
    (folder / "problem.toml").write_text(plain)
    (folder / "physics.py").write_text("def D(u):\n    return 1e-6 * (1 + 0.01 * u)\n")
    D = equation(folder).diffusion
    assert isinstance(D, Curve) and D.high == 100.0
    assert float(D.value(torch.tensor(50.0, dtype=torch.float64))) == pytest.approx(1.5e-6)


def test_a_curve_times_fibres(tmp_path: Path) -> None:
    wood = ONE.replace('"k(T).csv"', '{ fibres = [1, 1], along = "0.4 W/m/K", across = "0.1 W/m/K", times = "rise.csv" }')
    D = equation(write(tmp_path, wood, **{"rise.csv": "T [°C], rise [1]\n0, 1\n1300, 2\n"})).diffusion
    assert isinstance(D, Scaled) and D.curve.points[1].tolist() == [1.0, 2.0]
    assert np.allclose(np.asarray(D.by)[0], [[0.25, 0.15], [0.15, 0.25]])


def test_a_run_carries_its_curves(tmp_path: Path) -> None:
    project = described(write(tmp_path / "own", MIXED), "own", tmp_path / "none", 5)
    assert project.file is not None
    (tmp_path / "run").mkdir()
    carry(project, tmp_path / "run")
    again = carried(tmp_path / "run", "own", tmp_path / "none", 5)
    from dgnet.mesh import save
    save(project.case.mesh, tmp_path / "other.msh")
    for case in (again.case, on_mesh(again, tmp_path / "other.msh")):
        parts = case.pde.capacity.parts  # type: ignore[union-attr]
        assert np.allclose(parts["steel"].curve.points[1], [440.0, 1400.0, 5000.0, 1400.0, 650.0])


def test_unknown_curves_are_asked_for(tmp_path: Path) -> None:
    for pde, names in (('density = "7850 kg/m3"\ncapacity = "unknown"\nconductivity = "unknown"\n', ("capacity", "diffusion")),
                       ('volumetric_capacity = "unknown"\nconductivity = "k(T).csv"\n', ("capacity",))):
        folder = write(tmp_path, pde)
        project = described(folder, "", folder / "none", 5)
        plan = make_plan(project, 4, 40)
        config, recipe = plan.config, plan.recipe
        assert project.unknowns.curves == config.unknown_curves == names and first_choice(project) == "dgnet"
        assert [s.method for s in recipe.stages] == ["material", *["adam"] * len(GENERAL), "material"]
        with pytest.raises(InputError, match="must be found from data"):
            simulator(folder)


@pytest.mark.parametrize(("pde", "files", "said"), [
    (ONE.replace('"7850 kg/m3"', '"unknown"'), {}, "density must be given"),
    (ONE.replace('"c(T).csv"', '"unknown"') + 'latent_heat = "270 kJ/kg"\nmelting = "700 °C"\n', {}, "leave it out"),
    (ONE.replace('"k(T).csv"', '"unknown"') + 'reaction = "unknown"\n', {}, "nor with an unknown reaction"),
    (ONE.replace('"k(T).csv"', '"unknown"') + 'calibrate = ["decay"]\n', {}, "neither with pde.calibrate"),
    (ONE, {"k(T).csv": "0 50\n10 40\n10 30\n"}, r"conductivity: the points of .*k\(T\)\.csv.* must increase, but 10 follows 10"),
    (ONE, {"c(T).csv": "0 500\n1300 0\n"}, r"pde\.capacity must be positive, but falls to 0"),
    (ONE, {"k(T).csv": "0 -3\n10 40\n"}, "not negative, got -3 at 0"),
    (ONE, {"k(T).csv": "T [K], k [W/m/K]\n0, 50\n1300, 40\n"}, "not that of T"),
    (ONE, {"k(T).csv": "T [°C], k [W/m]\n0, 50\n1300, 40\n"}, "has the wrong unit"),
    (ONE, {"k(T).csv": "k [W/m/K]\n0, 50\n1300, 40\n"}, "1 units in brackets"),
    (ONE, {"k(T).csv": "0, 50, 3\n1300, 40, 3\n"}, "row 1 of the table is not two numbers, T and the coefficient"),
    (ONE, {"k(T).csv": "T, k\n"}, "no rows of two numbers"),
    (ONE, {"k(T).csv": "0, 5O\n20, 50\n1300, 40\n"}, "row 1 of the table is not two numbers"),
    (ONE, {"k(T).csv": "T, k\n0, inf\n1300, 40\n"}, "row 1 of the table is not two numbers"),
    (ONE.replace("k(T)", "missing"), {}, r"missing\.csv"),
    (ONE.replace('"7850 kg/m3"', '"c(T).csv"'), {}, "density cannot change with the field"),
    (ONE + 'latent_heat = "270 kJ/kg"\n', {}, "melting is missing"),
    (ONE + 'latent_heat = "270 kJ"\nmelting = "700 °C"\n', {}, "latent_heat: '270 kJ' has the wrong unit"),
    (ONE + 'latent_heat = "270 kJ/kg"\nmelting = ["710 °C", "700 °C"]\n', {}, "in this order"),
    (ONE + 'latent_heat = { lead = "270 kJ/kg" }\nmelting = { lead = "700 °C" }\n', {}, "there is no region 'lead'"),
    ('diffusion = 1e-5\nlatent_heat = "270 kJ/kg"\nmelting = "700 °C"\n', {}, "needs density and capacity"),
    (ONE.replace('"k(T).csv"', '{ fibres = [1, 0], along = "k(T).csv", across = "0.1 W/m/K" }'), {}, "along must be a number"),
    (ONE.replace('"k(T).csv"', '{ fibres = [1, 0], along = 1.0, across = 0.1, times = 2.0 }'), {}, "times must be a curve"),
    (ONE + 'decay = "k(T).csv"\n', {}, r"decay must be a number or a table"),
])
def test_bad_materials_are_one_sentence(tmp_path: Path, pde: str, files: dict[str, str], said: str) -> None:
    folder = write(tmp_path, pde, **files)
    with pytest.raises(InputError, match=said) as caught:
        described(folder, "", folder / "none", 5).case.problem()
    assert "\n" not in str(caught.value)


def test_a_table_that_does_not_cover_the_run_ends_with_exit_code_2(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path, ONE, **{"k(T).csv": "0 54\n60 50\n"})
    assert command(monkeypatch, "simulate", folder, "--steps", 20) == 2
    assert "the conductivity (k(T).csv) ends at 60: its table must cover the run" in " ".join(capsys.readouterr().err.split())
    assert command(monkeypatch, "simulate", folder, "--steps", 1, "--model", "quadratic") == 2
    assert "need linear elements" in " ".join(capsys.readouterr().err.split())
    (folder / "k(T).csv").write_text("0 54\n1300 50\n")
    assert command(monkeypatch, "simulate", folder, "--steps", 1) == 0
    assert "dgnet check" not in capsys.readouterr().err  # it has no data to check


def test_simulate_prints_a_balance_that_closes(tmp_path: Path) -> None:
    from dgnet.prediction.to_files import predict_to_files, summary
    from dgnet.training.simulator import simulator
    found = predict_to_files(simulator(write(tmp_path, MIXED), "classical"), steps=30)
    row = found["balance"]["T"]
    assert row["fluxes"] == pytest.approx(200e3 * 0.1 * 300) and row["closes"] < 1e-6
    assert row["stored"] == pytest.approx(row["fluxes"] + row["exchange"], rel=1e-6)
    assert "entered 6e+06 J/m (fluxes 6e+06), left" in summary(found)
