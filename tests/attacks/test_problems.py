# ruff: noqa: E501  (a table: one case a line)
"""problem.toml and physics.py: wrong types, units, numbers, names, regions and functions; names of what is written."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.harness import Case, Outcome, face, parameters

LONG = "x" * 300
NEWLINE = "left\\nright"  # as TOML writes it


def written(*changes: tuple[str, str], more: str = "", physics: str = "") -> Callable[[Path], None]:
    """Replace texts of problem.toml, add lines to it, and write physics.py."""
    def does(at: Path) -> None:
        path = at / "tiny/problem.toml"
        text = path.read_text()
        for old, new in changes:
            assert old in text, f"problem.toml holds no {old!r}"
            text = text.replace(old, new, 1)
        path.write_text(text + more)
        if physics:
            (at / "tiny/physics.py").write_text("import torch\n" + physics)
    return does


# ---------------------------------------------------------------------- keys: OLD >> NEW | words of the sentence


KEYS = [tuple(part.strip() for part in row.split(" | ")) for row in r"""
name = "tiny" >> name = 3 | problem.name
name = "tiny" >> name = "" | problem.name
name = "tiny" >> name = "a/b" | problem.name
name = "tiny" >> name = "a\nb" | problem.name
fields = ["T"] >> fields = "T" | problem.fields
fields = ["T"] >> fields = [] | problem.fields
fields = ["T"] >> fields = ["T", "T"] | problem.fields
fields = ["T"] >> fields = [1] | problem.fields
fields = ["T"] >> fields = ["S"] | units.T
fields = ["T"] >> feilds = ["T"] | problem.fields
dt = 0.1 >> dt = "0.1" | problem.dt
dt = 0.1 >> dt = "0.1 m" | problem.dt
dt = 0.1 >> dt = "0.1 parsec" | problem.dt
dt = 0.1 >> dt = 0 | problem.dt
dt = 0.1 >> dt = -0.1 | problem.dt
dt = 0.1 >> dt = nan | problem.dt
dt = 0.1 >> dt = inf | problem.dt
dt = 0.1 >> dt = true | problem.dt
dt = 0.1 >> dt = [0.1] | problem.dt
dt = 0.1 >> dt = { function = "f" } | problem.dt
dt = 0.1 >> dt = 2020-01-01 | problem.dt
dt = 0.1 >> dt = 1e-300 | problem.toml | dt
dt = 0.1 >> dt = 1e300 | problem.toml | dt
offset = { T = 20.0 } >> offset = "cold" | problem.offset
offset = { T = 20.0 } >> offset = { S = 20.0 } | problem.offset
offset = { T = 20.0 } >> offset = nan | problem.offset
offset = { T = 20.0 } >> offset = { T = "20 m" } | problem.offset
length = "m" >> length = "ell" | unit
length = "m" >> length = 1 | units.length
time = "s" >> time = "" | units.time
T = "K" >> T = 5 | units.T
T = "K" >> U = "K" | units.U
file = "plate.msh" >> file = 3 | mesh.file
file = "plate.msh" >> file = "../../../etc/passwd" | passwd
file = "plate.msh" >> file = "plate" | plate
file = "plate.msh" >> shipped = "moon" | moon
file = "plate.msh" >> shape = "moon" | moon
file = "plate.msh" >> shape = "rectangle" | mesh
file = "plate.msh" >> size = 3 | mesh
file = "plate.msh" >> file = "plate.msh", | TOML
diffusion = 0.05 >> diffusion = -0.05 | pde.diffusion
diffusion = 0.05 >> diffusion = nan | pde.diffusion
diffusion = 0.05 >> diffusion = 1e400 | pde.diffusion
diffusion = 0.05 >> diffusion = "0.05 m/s" | pde.diffusion
diffusion = 0.05 >> diffusion = "fast" | pde.diffusion
diffusion = 0.05 >> diffusion = "2 * 0.05" | pde.diffusion
diffusion = 0.05 >> diffusion = "__import__('os').system('true')" | pde.diffusion
diffusion = 0.05 >> diffusion = true | pde.diffusion
diffusion = 0.05 >> diffusion = [0.05, 0.05] | pde.diffusion
diffusion = 0.05 >> diffusion = [[0.05, 0.2], [0.2, 0.05]] | tensor
diffusion = 0.05 >> diffusion = [[0.05, 0.01], [0.03, 0.05]] | tensor
diffusion = 0.05 >> diffusion = [[1, 0, 0], [0, 1, 0], [0, 0, 1]] | 2D
diffusion = 0.05 >> diffusion = {} | pde.diffusion
diffusion = 0.05 >> diffusion = { steel = 0.05 } | steel
diffusion = 0.05 >> diffusion = { T = 0.05, S = 0.05 } | S
diffusion = 0.05 >> diffusion = { cells = "nowhere.npy" } | nowhere.npy
diffusion = 0.05 >> diffusion = { cells = "plate.msh" } | plate.msh
diffusion = 0.05 >> diffusion = { function = 3 } | pde.diffusion.function
diffusion = 0.05 >> diffusion = { function = "f" } | physics.py
diffusion = 0.05 >> diffusion = 0.05, conductivity = 3 | TOML
diffusion = 0.05 >> conductivity = 3 | conductivity
diffusion = 0.05 >> difusion = 0.05 | diffusion
[pde] >> [pdes] | pde
diffusion = 0.05 >> velocity = [1] | pde.velocity
diffusion = 0.05 >> velocity = [1, 2, 3] | 2D
diffusion = 0.05 >> velocity = ["1 K", "2 K"] | pde.velocity
diffusion = 0.05 >> velocity = "dat" | pde.velocity
diffusion = 0.05 >> velocity = "data" | velocity
diffusion = 0.05 >> reaction = "known" | pde.reaction
diffusion = 0.05 >> calibrate = "diffusion" | pde.calibrate
diffusion = 0.05 >> calibrate = ["speed"] | speed
diffusion = 0.05 >> per_region = 1 | pde.per_region
diffusion = 0.05 >> per_region = true | per_region
diffusion = 0.05 >> density = 1 | capacity
diffusion = 0.05 >> volumetric_capacity = 0 | volumetric_capacity
diffusion = 0.05 >> decay = { nodes = [1] } | decay
name = "left" >> name = "lft" | lft
name = "left" >> name = "a/b" | a/b
name = "left" >> name = "[/left]" | [/left]
name = "left" >> name = "$HOME" | $HOME
name = "left" >> name = "left\nright" | left\nright
name = "left" >> name = "left\u001b[31m" | boundary
name = "left" >> name = "" | boundary
name = "left" >> name = ["left"] | boundary
kind = "robin" >> kind = "rubin" | robin
kind = "robin" >> kind = "dirichlet" | boundary
kind = "robin" >> kind = "periodic" | partner
coefficient = 0.02 >> coefficient = -1 | coefficient
coefficient = 0.02 >> coefficient = nan | coefficient
coefficient = 0.02 >> coefficient = "0.02 K" | coefficient
coefficient = 0.02 >> coeficient = 0.02 | coefficient
ambient = 20.0 >> ambient = [20] | ambient
ambient = 20.0 >> ambient = { function = "f", x = 1 } | boundary
file = "run-*.npz" >> file = "walk-*.npz" | walk-*.npz
file = "run-*.npz" >> file = "/etc/*" | data[1].file
file = "run-*.npz" >> file = "**" | data[1].file
file = "run-*.npz" >> file = "" | data[1].file
file = "run-*.npz" >> file = ["run-1.npz"] | data[1].file
file = "last.npz" >> file = "last.zip" | last.zip
file = "last.npz" >> file = "imported.h5" | imported.h5
split = "train" >> split = "validation" | split
split = "train" >> split = "test" | training
split = "train" >> begin = "1 m" | begin
split = "train" >> begin = 99 | begin
split = "train" >> resample = "yes" | resample
split = "train" >> sensors = "plate.msh" | sensors
source = "run-*.csv" >> source = "walk-*.csv" | walk-1.csv
source = "run-*.csv" >> source = 3 | source
source = "run-*.csv" >> source = {} | source
source = "run-*.csv" >> source = { spots = "run-*.csv", field = "S" } | field
source = "run-*.csv" >> source = { spots = "run-1.csv", function = "f" } | source
hidden = 8 >> hidden = 0 | model
hidden = 8 >> hidden = "8" | model
hidden = 8 >> hidden = 1e3 | model
hidden = 8 >> hiden = 8 | hidden
hidden = 8 >> mgn = 3 | mgn
windows = [2] >> windows = 2 | windows
windows = [2] >> windows = [0] | windows
windows = [2] >> windows = [-1] | windows
windows = [2] >> windows = ["2"] | windows
iterations = [2] >> iterations = [2.5] | iterations
iterations = [2] >> minutes = 0 | minutes
iterations = [2] >> minutes = nan | minutes
iterations = [2] >> noise = -1 | noise
iterations = [2] >> learning_rate = inf | learning_rate
iterations = [2] >> hold_out = -1 | hold_out
iterations = [2] >> batch = "x" | batch
""".strip().splitlines()]
KEYS += [(f'name = "left" >> name = "{LONG}"', "boundary"), (f'length = "m" >> length = "{LONG}"', "length"),
         (f'file = "plate.msh" >> file = "{LONG}.msh"', "too long"), (f'file = "last.npz" >> file = "{LONG}.npz"', "too long"),
         (f'diffusion = 0.05 >> diffusion = {{ cells = "{LONG}.npy" }}', ".npy")]

TOML = [Case("check tiny", words, written(tuple(row.split(" >> "))), "project", name=f"toml, {row[:80]}")  # type: ignore[arg-type]
        for row, *words in KEYS]


def mesh(text: str, *changes: tuple[str, str]) -> Callable[[Path], None]:
    return written(('file = "plate.msh"\n', f'file = "plate.msh"\n{text}\n'), *changes)


BY_REGION = ("diffusion = 0.05", "diffusion = { a = 0.05, b = 0.06, elsewhere = 0.07 }")
PLACES = {
    "overlapping regions": (["'a' and 'b'"], mesh("[mesh.regions]\na = { x = [0, 0.7] }\nb = { x = [0.5, 1.2] }", BY_REGION)),
    "a region of nothing": (["mesh.regions.a"], mesh("[mesh.regions]\na = { x = [5, 6] }")),
    "a region without limits": (["mesh.regions.a"], mesh("[mesh.regions]\na = {}")),
    "a region upside down": (["mesh.regions.a"], mesh("[mesh.regions]\na = { x = [1, 0] }")),
    "a region in z": (["mesh.regions.a"], mesh("[mesh.regions]\na = { z = 0 }")),
    "a region of three limits": (["mesh.regions.a"], mesh("[mesh.regions]\na = { x = [0, 1, 2] }")),
    "a region in kelvin": (["mesh.regions.a"], mesh('[mesh.regions]\na = { x = ["0 K", "1 K"] }')),
    "a region that is a number": (["mesh.regions.a"], mesh("[mesh.regions]\na = 3")),
    "a region not covered": (["elsewhere"], mesh("[mesh.regions]\na = { x = [0, 0.6] }", (BY_REGION[0], "diffusion = { a = 0.05 }"))),
    "a region of a negative value": (["diffusion.a"], mesh("[mesh.regions]\na = { x = [0, 0.6] }",
                                                           (BY_REGION[0], "diffusion = { a = -1, elsewhere = 0.07 }"))),
    "a boundary of nothing": (["mesh.boundaries.in"], mesh("[mesh.boundaries]\nin = { x = 9 }")),
    "a boundary by an unknown key": (["mesh.boundaries.in"], mesh("[mesh.boundaries]\nin = { x = 0, w = 1 }")),
    "two conditions on one boundary": (["left"], written(more='\n[[boundary]]\nname = "left"\nkind = "dirichlet"\nvalue = 20\n'
                                                              '[[boundary]]\nname = "left"\nkind = "dirichlet"\nvalue = 30\n')),
    "boundaries that are a table": (["boundary"], written(("[[boundary]]", "[boundary]"))),
    "data that are a table": (["data"], written(("[[data]]", "[data.a]"), ("[[data]]", "[data.b]"))),
    "the same table twice": (["TOML"], written(more="\n[pde]\ndecay = 1\n")),
    "an unknown table": (["trainig"], written(more="\n[trainig]\nminutes = 1\n")),
}
TOML += [Case("check tiny", words, does, "project", name=f"toml, {name}") for name, (words, does) in PLACES.items()]


def _warned(outcome: Outcome, words: str) -> None:
    assert words in outcome.out and "warn" in outcome.out


def ready(outcome: Outcome) -> None:
    assert (outcome.folder / "tiny/imported.h5").is_file()


WORKS = {
    "a boundary with brackets": mesh('[mesh.boundaries]\n"[/red] $1 %s" = { x = 0 }', ('name = "left"', 'name = "[/red] $1 %s"')),
    "a boundary of 300 letters": mesh(f"[mesh.boundaries]\n{LONG} = {{ x = 0 }}", ('name = "left"', f'name = "{LONG}"')),
    "a boundary with a line break": mesh(f'[mesh.boundaries]\n"{NEWLINE}" = {{ x = 0 }}', ('name = "left"', f'name = "{NEWLINE}"')),
    "a region with a stroke": mesh('[mesh.regions]\n"a/b" = { x = [0, 0.6] }',
                                   ("diffusion = 0.05", 'diffusion = { "a/b" = 0.05, elsewhere = 0.05 }')),
    "units converted": written(("dt = 0.1", 'dt = "100 ms"'), ("diffusion = 0.05", 'diffusion = "5e4 mm2/s"')),
    "a function of space": written(("diffusion = 0.05", 'diffusion = { function = "f" }'),
                                   physics="def f(x):\n    return 0.05 + 0 * x[:, 0]\n"),
}
TOML += [Case("check tiny", does=does, ground="project", right=ready, name=f"toml, {name}") for name, does in WORKS.items()]


# ---------------------------------------------------------------------- physics.py


SPREAD, REACTION = ("diffusion = 0.05", 'diffusion = { function = "f" }'), ("diffusion = 0.05", 'diffusion = 0.05\nreaction = { function = "f" }')
AMBIENT, FLOW = ("ambient = 20.0", 'ambient = { function = "f" }'), ("diffusion = 0.05", 'diffusion = 0.05\nvelocity = { function = "f" }')
SOURCE, MASK = ('source = "run-*.csv"', 'source = { function = "f" }'), (
    'file = "plate.msh"\n', 'file = "plate.msh"\n[mesh.regions]\na = { function = "f" }\n')
PHYSICS: list[tuple[str, tuple[str, str], str]] = [
    ("is empty", SPREAD, "pass"),
    ("does not parse", SPREAD, "def f(x:\n"),
    ("has a null character", SPREAD, "def f(x):\n    return '\0'\n"),
    ("raises when run", SPREAD, "raise KeyError('x')\n"),
    ("raises with line breaks", SPREAD, "raise ValueError('a\\nb\\nc')\n"),
    ("leaves when run", SPREAD, "import sys\nsys.exit(0)\n"),
    ("imports what is not there", SPREAD, "import nothing_of_this_name\n"),
    ("names no function", SPREAD, "f = 3\n"),
    ("recurses for ever", SPREAD, "def f(x):\n    return f(x)\n"),
    ("raises when called", SPREAD, "def f(x):\n    return x[:, 9]\n"),
    ("leaves when called", SPREAD, "import sys\ndef f(x):\n    sys.exit(0)\n"),
    ("takes nothing", SPREAD, "def f():\n    return 1\n"),
    ("takes too much", SPREAD, "def f(x, y, z):\n    return x[:, 0]\n"),
    ("gives nothing", SPREAD, "def f(x):\n    pass\n"),
    ("gives a text", SPREAD, "def f(x):\n    return 'x'\n"),
    ("gives one number", SPREAD, "def f(x):\n    return 0.05\n"),
    ("gives another shape", SPREAD, "def f(x):\n    return x\n"),
    ("gives complex numbers", SPREAD, "def f(x):\n    return 1j * x[:, 0]\n"),
    ("gives true and false", SPREAD, "def f(x):\n    return x[:, 0] > 0\n"),
    ("gives numbers that are not finite", SPREAD, "def f(x):\n    return x[:, 0] / 0\n"),
    ("a reaction that raises", REACTION, "def f(u):\n    return u @ u\n"),
    ("a reaction of another shape", REACTION, "def f(u):\n    return u.sum()\n"),
    ("a reaction in time", REACTION, "def f(u, t):\n    return u\n"),
    ("a reaction of numpy", REACTION, "def f(u):\n    return u.numpy()\n"),
    ("a value that raises later", AMBIENT, "def f(x, t):\n    return x[:, 0] if t < 0.05 else 1 / 0\n"),
    ("a value of another shape", AMBIENT, "def f(x, t):\n    return x\n"),
    ("a value without time", AMBIENT, "def f(x):\n    return x[:, 0]\n"),
    ("a flow of one component", FLOW, "def f(x):\n    return x[:, 0]\n"),
    ("a flow that is not finite", FLOW, "def f(x, t):\n    return x / 0\n"),
    ("a source that is not finite", SOURCE, "def f(x, t):\n    return x[:, 0] / t\n"),
    ("a source of two fields", SOURCE, "def f(x, t):\n    return x\n"),
    ("a region of numbers", MASK, "def f(x):\n    return x[:, 0]\n"),
    ("a region that is one answer", MASK, "def f(x):\n    return True\n"),
]
CODE = [Case("check tiny", "physics.py", written(change, physics=code), "project", name=f"physics.py {name}")
        for name, change, code in PHYSICS]
CODE.append(Case("check tiny", "diffusivity", written(SPREAD, physics="def f(x):\n    return -1 - x[:, 0]\n"), "project",
                 name="physics.py gives a negative diffusion"))
CODE.append(Case("check tiny", does=written(REACTION, physics="def f(u):\n    return u / 0\n"), ground="project",
                 right=lambda o: _warned(o, "blows up"), name="physics.py a reaction that is not finite"))
CODE.append(Case("check tiny", does=written(SPREAD, physics="print('hello')\ndef f(x):\n    print('[/x]')\n    return 0.05 + 0 * x[:, 0]\n"),
                 ground="project", right=ready, name="physics.py prints"))


# ---------------------------------------------------------------------- names of what is written


def there(*names: str) -> Callable[[Outcome], None]:
    def found(outcome: Outcome) -> None:
        for name in names:
            assert (outcome.folder / name).stat().st_size > 0
    return found


ODD_NAMES = {"a percent": "100 %d.{}", "spaces": " a  b .{}", "unicode": "Übung ✓ 温度.{}", "a line break": "a\nb.{}", "a quote": "it's.{}",
             "a dollar": "$HOME.{}", "a dash": "-x.{}", "brackets": "[/red].{}"}
COMMANDS = {"check tiny --json": ("project", "json"), "rollout run --trajectory 0 --out": ("run", "h5"),
            "rollout run --trajectory 0 --vtk": ("run", "pvd"), "show tiny/imported.h5 --no-gif --snapshots 2 --out": ("run", ""),
            "paper score tiny/imported.h5 tiny/imported.h5 --json": ("run", "json"), "paper scenarios --json": ("empty", "json"),
            "evaluate run --no-figures --json": ("run", "json"), "paper pretrained --folder shelf --json": ("study", "json")}
WRITTEN = []
for _k, (_command, (_ground, _suffix)) in enumerate(COMMANDS.items()):
    _kind, _name = list(ODD_NAMES.items())[_k % len(ODD_NAMES)]
    _out = _name.format(_suffix).rstrip(".")
    _said = _command.split()[0]
    _quoted = shlex.quote(_out)
    WRITTEN.append(Case(f"{_command}={_quoted}" if _command.endswith("json") else f"{_command} {_quoted}", ground=_ground,
                        right=there(_out) if _suffix else lambda o: None, name=f"{_said} to a name with {_kind}"))
    WRITTEN.append(Case(f"{_command} {LONG}.{_suffix or 'x'}", "too long", ground=_ground, name=f"{_said} to 300 letters, {_suffix}"))
WRITTEN += [
    Case(f"train tiny --out {LONG}", "too long", ground="project"),
    Case(f"new {LONG}", "too long"),
    Case(f"check {LONG}", LONG),
    Case(f"import {LONG}", LONG),
    Case(f"evaluate {LONG}", LONG),
    Case(f"show {LONG}.h5 --out pictures", LONG),
    Case(f"paper generate laser-heat --out {LONG}", "too long"),
    Case(f"paper reproduce {LONG}", LONG),
    Case("check 'a\nb'", "problem.toml"),
    Case("evaluate run/weights.pt", "weights.pt", ground="run"),
    Case("rollout run/weights.pt --trajectory 0", "weights.pt", ground="run"),
    Case("paper analyse run/run.toml", "run.toml", ground="run"),
    Case("export run/run.toml --out x.pt2", "run.toml", ground="run"),
    Case("paper report study/cells", "study", ground="study"),
    Case("paper pretrained --folder study", "study", ground="study"),
    Case("import tiny/problem.toml", "problem.toml", ground="project"),
]

CASES = TOML + CODE + WRITTEN


@pytest.mark.parametrize("case", parameters(CASES))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)
