"""problem.toml: units, keys, and one sentence for everything that is wrong with it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import InputError
from dgnet.mesh import box, save
from dgnet.problems import Dirichlet, Neumann, Periodic, Robin
from dgnet.problems.units import DIFFUSIVITY, FIELD, FLUX, PURE, RATE, SPEED, TERMS, TIME, VOLUMETRIC_HEAT, Units
from dgnet.projects import load
from dgnet.projects.equation import Function
from dgnet.projects.shapes import Selection
from dgnet.projects.toml import read
from dgnet.training.plan import make_plan
from tests.projects.conftest import TOML, plate, write_tiny

UNITS = Units("m", "s", {"T": "K"})


@pytest.mark.parametrize("text, dimension, value", [
    ("14 mm2/s", DIFFUSIVITY, 14e-6), ("14 mm²/s", DIFFUSIVITY, 14e-6), ("14 mm^2 / s", DIFFUSIVITY, 14e-6),
    ("3.6 km/h", SPEED, 1.0), ("6 1/min", RATE, 0.1), ("6 min-1", RATE, 0.1), ("2 h", TIME, 7200.0), ("-3e-1 K", FIELD, -0.3),
    ("5 K mm/ms", FLUX, 5.0), ("7", PURE, 7.0), (".5 s", TIME, 0.5)])
def test_units(text: str, dimension: tuple[int, int, int], value: float) -> None:
    assert UNITS.convert(text, dimension, "T") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text, dimension, words", [
    ("14 mm/s", DIFFUSIVITY, r"wrong unit: expected length\^2 time\^-1"), ("14", DIFFUSIVITY, "wrong unit"),
    ("14 furlong/s", SPEED, "'furlong' is not a unit"), ("fast", SPEED, "not a number with a unit"), ("1e999 s", TIME, "finite"),
    ("3 C", FIELD, r"not that of T \(K\)")])
def test_wrong_units(text: str, dimension: tuple[int, int, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        UNITS.convert(text, dimension, "T")


def test_units_are_named() -> None:
    assert (UNITS.name(DIFFUSIVITY), UNITS.name(RATE), UNITS.name(FLUX, "T"), Units().name(SPEED)) == ("m2/s", "1/s", "K·m/s", "")


def test_the_file_in_full(tmp_path: Path) -> None:
    """Everything that can be said, read back as dataclasses."""
    (tmp_path / "problem.toml").write_text("""
[problem]
name = "all"
title = "All of it"
fields = ["u", "v"]
dt = "500 ms"
offset = { v = 2.0 }
[units]
length = "mm"
time = "s"
[mesh]
shape = "rectangle"
size = [10, "2 cm"]
spacing = 1
boundaries.hot = { x = 0, y = [5, 10] }
boundaries.cold = { function = "cold" }
regions.core = { x = [2, 4] }
[pde]
velocity = ["1 mm/s", 0]
reaction = "unknown"
calibrate = ["diffusion", "convection"]
per_region = true
decay = { u = 0.5, v = "1 1/min" }
[pde.diffusion]
u = { core = "2e-6 m2/s", elsewhere = 1 }
v = [[1, 0], [0, 2]]
[[boundary]]
name = "hot"
kind = "dirichlet"
field = "u"
value = { function = "warm" }
[[boundary]]
name = "right"
kind = "neumann"
flux = -1
[[boundary]]
name = "bottom"
kind = "periodic"
partner = "top"
[[data]]
file = "a-*.npz"
source = { spots = "a-*.csv", field = "v" }
[[data]]
file = "b.csv"
split = "test"
sensors = "places.csv"
source = { function = "lamp" }
begin = "1 min"
resample = true
[model]
hidden = 16
[model.mgn]
hidden = 32
[training]
minutes = 2
windows = [4, 8]
iterations = [10, 20]
hold_out = 1
""")
    f = read(tmp_path)
    assert (f.name, f.title, f.fields, f.dt, f.offset) == ("all", "All of it", ("u", "v"), 0.5, (0.0, 2.0))
    assert f.mesh.measures == {"size": (10.0, 20.0), "spacing": 1.0, "corner": (0.0, 0.0), "perturb": 0.2}
    assert f.mesh.boundaries == {"hot": Selection({"x": (0, 0), "y": (5, 10)}), "cold": Selection(function="cold")}
    assert f.pde.velocity == (1.0, 0.0) and f.pde.unknowns == Unknowns(True, (), ("diffusion", "convection"), True)
    assert f.pde.diffusion["u"]["core"] == pytest.approx(2.0) and f.pde.diffusion["v"] == ((1.0, 0.0), (0.0, 2.0))
    assert f.pde.decay["v"] == pytest.approx(1 / 60)
    assert f.boundaries[0].values == {"value": Function("warm")} and f.boundaries[1].values == {"flux": -1.0}
    assert f.boundaries[2].partner == "top"
    assert f.data[0].source.kind == "spots" and f.data[0].source.field == "v" and f.data[1].begin == 60.0 and f.data[1].resample
    assert f.model == {"hidden": 16, "mgn": {"hidden": 32}} and f.training.windows == (4, 8)


WRONG = [
    ("fields = [\"T\"]", "fileds = [\"T\"]", "problem.fields is missing; is 'fileds' meant to be it"),
    ("dt = 0.1", "dt = 0", "problem.dt must be positive"),
    ("dt = 0.1", "dt = nan", "problem.dt must be a finite number"),
    ("dt = 0.1", "dt = true", "problem.dt must be a finite number"),
    ("dt = 0.1", "dt = \"5 m\"", "problem.dt: '5 m' has the wrong unit"),
    ("name = \"tiny\"", "name = 3", "problem.name must be a text"),
    ("[pde]", "[pdes]", "pde is missing; is 'pdes' meant to be it"),
    ("diffusion = 0.05", "difusion = 0.05", "pde.difusion is not a known key; did you mean 'diffusion'"),
    ("diffusion = 0.05", "diffusion = -1", "pde.diffusion must not be negative"),
    ("diffusion = 0.05", "diffusion = [[1, 2], [2, 1]]", "positive semidefinite"),
    ("diffusion = 0.05", "diffusion = { weld = 1 }", "pde.diffusion: there is no region 'weld'"),
    ("diffusion = 0.05", "diffusion = { cells = \"d.npy\" }", "there is no file"),
    ("diffusion = 0.05", "diffusion = { function = \"d\" }", "pde.diffusion names a function, but there is no"),
    ("diffusion = 0.05", "diffusion = 0.05\nvelocity = [1, 2, 3]", "pde.velocity has 3 components, but the mesh is 2D"),
    ("diffusion = 0.05", "diffusion = 0.05\nvelocity = \"data\"", "has no velocity"),
    ("diffusion = 0.05", "diffusion = 0.05\nreaction = \"known\"", "pde.reaction is 'known', .*did you mean 'unknown'"),
    ("diffusion = 0.05", "diffusion = 0.05\ncalibrate = [\"mass\"]", "pde.calibrate names 'mass'"),
    ("diffusion = 0.05", "diffusion = 0.05\nper_region = true", "pde.per_region needs diffusion or decay"),
    ("diffusion = 0.05", "diffusion = 0.05\ncalibrate = [\"diffusion\"]\nper_region = true", "the mesh names no regions"),
    ("file = \"plate.msh\"", "file = \"gone.msh\"", "there is no mesh file"),
    ("file = \"plate.msh\"", "shape = \"disk\"\nradius = 1", "mesh.shape is 'disk', which is not known; did you mean 'disc'"),
    ("file = \"plate.msh\"", "shape = \"disc\"\nradius = 1", "mesh.spacing is missing"),
    ("file = \"plate.msh\"", "shape = \"disc\"\nradius = 1\nspacing = 0.3\nsize = 2", "mesh.size is not a measure of the shape"),
    ("file = \"plate.msh\"", "shape = \"disc\"\nradius = 1\nspacing = 1e-5", "nodes, more than"),
    ("file = \"plate.msh\"", "file = \"plate.msh\"\nboundaries.hot = { x = 7 }", "mesh.boundaries.hot selects no boundary facet"),
    ("file = \"plate.msh\"", "file = \"plate.msh\"\nshape = \"disc\"", "mesh needs one of file, shape and shipped"),
    ("name = \"left\"", "name = \"west\"", "the mesh has no boundary 'west' .it has: left, right"),
    ("kind = \"robin\"", "kind = \"robbin\"", "is 'robbin', which is not known; did you mean 'robin'"),
    ("coefficient = 0.02", "coefficient = -1", "boundary.1..coefficient must be zero or positive"),
    ("coefficient = 0.02", "", "boundary.1..coefficient is missing"),
    ("file = \"run-*.npz\"", "file = \"walk-*.npz\"", "no file in .* matches 'walk"),
    ("file = \"last.npz\"", "file = \"last.mat\"", "trajectories are read from .h5"),
    ("split = \"test\"", "split = \"validation\"", "data.2..split is 'validation'"),
    ("source = \"run-1.csv\"", "source = { spots = \"run-1.csv\", field = \"u\" }", "is 'u', but the fields are"),
    ("[pde]", "[model]\nhiden = 3\n[pde]", "unknown key 'hiden'; did you mean 'hidden'"),
    ("[pde]", "[model]\nhidden = \"many\"\n[pde]", "'hidden' must be a whole number, got 'many'"),
    ("[pde]", "[model]\ndecoder = \"thick\"\n[pde]", "model: unknown decoder 'thick'"),
    ("[pde]", "[training]\nminutes = -1\n[pde]", "training: .minutes. must be a positive number"),
    ("[pde]", "[extra]\na = 1\n[pde]", "extra is not a known key"),
    ("[pde]", "[pde", "is not valid TOML"),
]


@pytest.mark.parametrize("old, new, words", WRONG, ids=[w[2][:40] for w in WRONG])
def test_one_sentence_for_what_is_wrong(tiny: Path, old: str, new: str, words: str) -> None:
    assert old in TOML
    (tiny / "problem.toml").write_text(TOML.replace(old, new, 1))
    with pytest.raises(InputError, match=words) as caught:
        load(tiny)
    assert "\n" not in str(caught.value) and str(tiny) in str(caught.value)
    assert not (tiny / "imported.h5").exists()


def test_coefficients_and_conditions(tmp_path: Path) -> None:
    """Regions, tensors, functions of space and time arrive in PDE and conditions."""
    folder = write_tiny(tmp_path / "p", TOML.replace("diffusion = 0.05", """
velocity = { function = "wind" }
decay = { west = 1.0, elsewhere = 0.0 }
reaction = { function = "growth" }
[pde.diffusion]
west = "2 m2/min"
elsewhere = 0.05""").replace("file = \"plate.msh\"", """file = "plate.msh"
boundaries.hot = { function = "hot" }
regions.west = { x = [0, 0.6] }""").replace("kind = \"robin\"\ncoefficient = 0.02\nambient = 20.0", """kind = "robin"
coefficient = 0.02
ambient = { function = "room" }
[[boundary]]
name = "hot"
kind = "dirichlet"
value = "25 K"
[[boundary]]
name = "top"
kind = "neumann"
flux = 0.5"""))
    (folder / "physics.py").write_text("""
import torch
def wind(x):
    return torch.stack([x[:, 1], 0 * x[:, 0]], 1)
def growth(u):
    return u * (1 - u)
def room(x, t):
    return 20.0 + t + 0 * x[:, 0]
def hot(x):
    return x[:, 0] > 1.19
""")
    s = load(folder).case
    mesh = plate()
    west = mesh.centroids[:, 0] <= 0.6
    assert np.allclose(s.pde.diffusion, np.where(west, 2 / 60, 0.05))
    assert s.pde.decay.shape == (mesh.n_nodes,) and s.pde.decay[mesh.points[:, 0] < 0.4].min() == 1.0
    assert torch.allclose(s.pde.velocity, torch.tensor(mesh.points)[:, [1]] * torch.tensor([1.0, 0.0]))
    assert s.pde.reaction(torch.tensor([[0.5]])).item() == 0.25
    kinds = [type(c) for c in s.conditions]
    assert kinds == [Robin, Dirichlet, Neumann]
    assert s.conditions[0].ambient(torch.zeros(3, 2), 1.5).tolist() == [21.5] * 3
    assert set(s.mesh.nodes_on("hot")) == set(s.mesh.nodes_on("right"))
    problem = s.problem()
    assert problem.data_changes and not problem.time_dependent


PHYSICS = [
    ("def d(x):\n    return x[:, 0] * nan\n", "physics.py, line 2: d.. failed with NameError"),
    ("def d(x):\n    return x\n", "must return .* numbers, got"),
    ("def d(x)\n    return x\n", "physics.py, line 1: expected ':'"),
    ("def e(x):\n    return x\n", "does not have .it has: e"),
    ("raise SystemExit(3)\n", "running it failed with SystemExit"),
    ("import torch\ndef d(x):\n    return 0 * x[:, 0] + float('inf')\n", "not finite"),
]


@pytest.mark.parametrize("text, words", PHYSICS, ids=[w[:30] for _, w in PHYSICS])
def test_mistakes_in_physics(tiny: Path, text: str, words: str) -> None:
    (tiny / "problem.toml").write_text(TOML.replace("diffusion = 0.05", "diffusion = { function = \"d\" }"))
    (tiny / "physics.py").write_text(text)
    with pytest.raises(InputError, match=words):
        load(tiny)


def test_physics_runs_only_when_it_is_named_and_only_from_its_folder(tiny: Path, tmp_path: Path) -> None:
    (tiny / "physics.py").write_text("open('ran', 'w')\nraise RuntimeError\n")
    load(tiny)
    outside = tmp_path / "elsewhere.py"
    outside.write_text("def d(x):\n    return 0.05 + 0 * x[:, 0]\n")
    (tiny / "physics.py").unlink()
    (tiny / "physics.py").symlink_to(outside)
    (tiny / "problem.toml").write_text(TOML.replace("diffusion = 0.05", "diffusion = { function = \"d\" }"))
    with pytest.raises(InputError, match="points outside of its folder"):
        load(tiny)


def test_periodic(tmp_path: Path) -> None:
    text = TOML.replace("name = \"left\"\nkind = \"robin\"\ncoefficient = 0.02\nambient = 20.0",
                        "name = \"left\"\nkind = \"periodic\"\npartner = \"right\"")
    folder = write_tiny(tmp_path / "p", text)
    save(box((8, 6), upper=(1.2, 0.9)), folder / "plate.msh")
    s = load(folder).case
    assert isinstance(s.conditions[0], Periodic) and s.problem().n == s.mesh.n_nodes - 7


HEAT = """conductivity = { core = "200 W/m/K", elsewhere = "15 W/(m °C)" }
density = { core = "2700 kg/m3", elsewhere = "7.9 g/cm3" }
capacity = { core = "900 J/kg/K", elsewhere = "0.5 kJ/(kg K)" }
decay = "3 W/m3/K"
"""


def heated(folder: Path, old: str = "", new: str = "") -> Path:
    text = TOML.replace("diffusion = 0.05\n", HEAT).replace("coefficient = 0.02", 'coefficient = "12 W/m2/K"')
    text = text.replace('file = "plate.msh"', 'file = "plate.msh"\nregions.core = { x = [0, 0.5] }')
    assert old in text
    return write_tiny(folder, text.replace(old, new, 1) if old else text)


def test_density_capacity_and_conductivity_by_region(tmp_path: Path) -> None:
    s = load(heated(tmp_path / "p")).case
    core = np.isin(np.arange(s.mesh.n_cells), s.mesh.regions["core"])
    np.testing.assert_allclose(s.pde.capacity, np.where(core, 2.43e6, 3.95e6))
    np.testing.assert_allclose(s.pde.diffusion, np.where(core, 200.0, 15.0))
    robin = s.conditions[0]
    assert isinstance(robin, Robin) and robin.coefficient == 12 and s.pde.decay == 3
    assert s.equation.startswith("c du/dt = div(D grad u)")
    one = load(heated(tmp_path / "q", HEAT, 'diffusion = "15 W/m/K"\nvolumetric_capacity = "3.95 MJ/m3/K"\n')).case
    assert (one.pde.capacity, one.pde.diffusion) == (pytest.approx(3.95e6), pytest.approx(15.0))


def test_energy_in_millimetres_and_hours() -> None:
    units = Units("mm", "h", {"T": "°C"})
    assert units.convert("200 W/m/K", TERMS["diffusion"][1], "T") == pytest.approx(200 * 3600 / 1000)
    assert units.convert("2.43 MJ/m3/K", VOLUMETRIC_HEAT, "T") == pytest.approx(2.43e-3)
    assert UNITS.name(TERMS["diffusion"][1], "T") == "W/K/m" and units.name(TERMS["flux"][1]) == "J/mm2/h"


@pytest.mark.parametrize("old, new, words", [
    ('density = { core = "2700 kg/m3", elsewhere = "7.9 g/cm3" }', "", "pde.density is missing"),
    ('"2700 kg/m3"', '"2700 kg/m2"', "pde.density.core: '2700 kg/m2' has the wrong unit"),
    ('"2700 kg/m3"', "-1", "pde.density.core must be positive"), ("density", "densty", "density is missing; is 'densty' meant"),
    (HEAT, HEAT + "volumetric_capacity = 3", "volumetric_capacity is density times capacity"),
    ('"200 W/m/K"', '"97 mm2/s"', r"pde.conductivity.core: '97 mm2/s' has the wrong unit: expected field\^-1"),
    ('"12 W/m2/K"', '"0.02 mm/s"', "boundary.1..coefficient: '0.02 mm/s' has the wrong unit"),
    ('"900 J/kg/K"', "[[1, 0], [0, 1]]", "capacity.core must be a number"),
    ("conductivity", "diffusion = 3\nconductivity", "same term"),
    (HEAT, "conductivity = 3", "conductivity needs density and capacity"), ('"900 J/kg/K"', "0", "capacity.core must be positive"),
    (HEAT, 'diffusion = 1\nvolumetric_capacity = { function = "c" }', "there is no")])
def test_what_is_wrong_with_a_capacity(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load(heated(tmp_path / "p", old, new))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fields", [("u", "v"), ("u",)])
def test_the_settings_of_an_unknown_reaction_that_the_docs_show(tmp_path: Path, fields: tuple[str, ...]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "unknown-reaction.md").read_text()
    model, = (block for block in page.split("```toml\n")[1:] if "reaction_degree" in block)
    model = model.split("```")[0] if len(fields) > 1 else "[model]\nreaction_degree = 2"
    mesh = box((4, 4))
    save(mesh, tmp_path / "mesh.npz")
    np.savez(tmp_path / "train.npz", state=np.random.default_rng(0).random((6, mesh.n_nodes, len(fields))))
    names = ", ".join(f'"{name}"' for name in fields)
    (tmp_path / "problem.toml").write_text(f'''
        problem = {{ name = "dish", fields = [{names}], dt = 0.1 }}
        mesh = {{ file = "mesh.npz" }}
        pde = {{ diffusion = 0.01, reaction = "unknown" }}
        data = [{{ file = "train.npz", split = "train" }}]
        {model}''')
    own = load(tmp_path)
    config = make_plan(own, 4, 5).config
    assert config.reaction_degree == 2 and len(config.reaction_terms) == len(fields) - 1
