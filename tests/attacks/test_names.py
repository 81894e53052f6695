# ruff: noqa: E501  (a table: one case a line)
"""Names and titles that steer a terminal, are formulas that are none, or that no file can hold; names of what is exported and made."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.harness import Case, Outcome, face, parameters
from tests.attacks.test_problems import written

ESCAPE, SIMULATE = "\\u001b[31m\\u001b]0;x\\u0007", "simulate tiny --source tiny/run-1.csv --steps 2 --model classical"


def title(text: str) -> Callable[[Path], None]:
    return written(('fields = ["T"]', f'fields = ["T"]\ntitle = "{text}"'))


def field(text: str) -> Callable[[Path], None]:
    return written(('fields = ["T"]', f'fields = ["{text}"]'), ("offset = { T = 20.0 }", f'offset = {{ "{text}" = 20.0 }}'), ('T = "K"', f'"{text}" = "K"'))


def mesh_called(name: str) -> Callable[[Path], None]:
    return lambda at: shutil.copy(at / "tiny/plate.msh", at / name)


def calm(*names: str) -> Callable[[Outcome], None]:
    """Nothing that steers a terminal was printed, and these files are there."""
    def right(outcome: Outcome) -> None:
        assert "\x1b" not in outcome.out + outcome.err and "\x07" not in outcome.out + outcome.err
        for name in names:
            assert (outcome.folder / name).stat().st_size > 0, name
    return right


def made(folder: str, mesh: str) -> Callable[[Outcome], None]:
    """problem.toml is TOML that names the mesh, and the mesh lies beside it."""
    def right(outcome: Outcome) -> None:
        calm()(outcome)
        table = tomllib.loads((outcome.folder / folder / "problem.toml").read_text())
        assert table["mesh"]["file"] == mesh and (outcome.folder / folder / mesh).is_file()
        assert table["problem"]["title"] == f"Heat in {mesh}"
    return right


STEER = [Case(f"{SIMULATE} --png x.png --gif x.gif --out x.h5", does=does, ground="project", right=calm("x.png", "x.gif", "x.h5"), name=f"{what}, simulate")
         for what, does in {"a title that steers": title(ESCAPE), "a title that is no formula": title("$x^{$"), "a title with a line break": title("a\\nb"), "a title of marks": title("\\u202e\\u2028\\u0085"),
                            "a field that steers": field(ESCAPE), "a field that is no formula": field("$x^{$"), "a field of one dollar": field("a$"), "a field with a line break": field("a\\nb")}.items()]
STEER += [Case("check tiny", does=does, ground="project", right=calm("tiny/imported.h5"), name=f"{what}, check")
          for what, does in {"a title that steers": title(ESCAPE), "a field that steers": field(ESCAPE), "a title of brackets": title("[/red] [bold]")}.items()]
STEER += [Case("show tiny/imported.h5 --out o --no-gif --snapshots 2", does=None, ground="run", right=calm(), name="show of a sound file")]

REFUSED = [Case(command, words, does, "project", name=name) for name, command, words, does in (
    ("a title with a null character", "check tiny", "null", title("a\\u0000b")), ("a field with a null character", "check tiny", "null", field("a\\u0000b")), ("a field of nothing", "check tiny", "problem.fields", field("")),
    ("a name with a null character", "check tiny", "null", written(('name = "tiny"', 'name = "a\\u0000b"'))),
    ("a boundary of nothing", "check tiny", "boundary", written(('file = "plate.msh"\n', 'file = "plate.msh"\n[mesh.boundaries]\n"" = { x = 0 }\n'))),
    ("a boundary of spaces", "check tiny", "boundary", written(('file = "plate.msh"\n', 'file = "plate.msh"\n[mesh.boundaries]\n"  " = { x = 0 }\n'))),
    ("a region of nothing", "check tiny", "region", written(('file = "plate.msh"\n', 'file = "plate.msh"\n[mesh.regions]\n"" = { x = [0, 0.6] }\n'))),
    ("a region with a null character", "check tiny", "null", written(('file = "plate.msh"\n', 'file = "plate.msh"\n[mesh.regions]\n"a\\u0000" = { x = [0, 0.6] }\n'))),
    ("a unit with a null character", "check tiny", "null", written(('length = "m"', 'length = "m\\u0000"'))),
    ("a comment with a null character", "check tiny", "null", written(('name = "tiny"', 'name = "tiny" # \0'))),
    ("export to a quote", "export tiny --out 'a\"b.c'", "include", None), ("export to a backslash", "export tiny --out 'a\\b.c'", "include", None), ("export to a line break", "export tiny --out 'a\nb.c'", "include", None),
    ("export to a trigraph", "export tiny --out 'a??(b.c'", "include", None), ("export to a point", "export tiny --out .c", ".pt2", None), ("export to no kind", "export tiny --out x", ".pt2", None), ("export to a folder of that name", "export tiny --out x.c", "x.c", lambda at: (at / "x.c").mkdir()),
    ("export without a folder", "export tiny --out tiny/plate.msh/x.c", "plate.msh", None), ("export of a probe outside", "export tiny --out x.fmu --probe 9,9", "9", None), ("export of a probe beyond numbers", "export tiny --out x.fmu --probe 1e308,0", "probe", None),
    ("export of a probe in space", "export tiny --out x.fmu --probe 0.1,0.1,0.1", "prob", None), ("export of a probe of nothing", "export tiny --out x.fmu --probe ,", "--probe", None), ("export of no model", "export tiny --out x.c --model quadratic", "P2", None),
    ("new of nothing", "new ''", "name", None), ("new here", "new .", "name", None), ("new above", "new ..", "..", None), ("new of the root", "new /", "name", None), ("new of spaces in a file", "new tiny/problem.toml/x", "problem.toml", None),
    ("new around nothing", "new d --mesh nowhere.msh", "nowhere.msh", None), ("new around a table", "new d --mesh tiny/run-1.csv", "run-1.csv", None), ("new around a folder", "new d --mesh tiny", "tiny", None), ("new over the problem", "new tiny --mesh tiny/plate.msh", "tiny", None),
    ("new around bytes", "new d --mesh x.msh", "x.msh", lambda at: (at / "x.msh").write_bytes(bytes(range(256)))), ("new around a mesh without cells", "new d --mesh x.obj", "x.obj", lambda at: (at / "x.obj").write_text("v 0 0 0\n")),
    ("new around elements of Abaqus", "new d --mesh x.inp", "DCAX3", lambda at: (at / "x.inp").write_text("*NODE\n1, 0, 0\n2, 1, 0\n3, 0, 1\n*ELEMENT, TYPE=DCAX3\n1, 1, 2, 3\n")),
)]
MESHES = ["a\nb.msh", 'a"b.msh', "a\\b.msh", "a\x7fb.msh", "*.msh", "[x].msh", "a\x1b[31mb.msh", "it's.msh", "a{b}.msh", "#.msh", "ü ✓.msh", "'''.msh", '""".msh', "%s.msh", "$HOME.msh"]
NEW = [Case(f"new d --mesh {shlex.quote(name)}", does=mesh_called(name), ground="project", right=made("d", name), name=f"new around {name!r}") for name in MESHES]
NEW += [Case(f"new {shlex.quote(name)} --mesh tiny/plate.msh", ground="project", right=made(name, "plate.msh"), name=f"new called {name!r}") for name in ("a\nb", "\x1b[2J", "it's", "ü", "a b", "#")]

CASES = [*STEER, *REFUSED, *NEW]


@pytest.mark.parametrize("case", parameters(CASES))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)


def test_a_backend_that_matplotlib_does_not_know(grounds: Callable[[str], Path], tmp_path: Path) -> None:
    """The environment says how others draw; commands draw into files."""
    shutil.copytree(grounds("project"), tmp_path / "at")
    command = [sys.executable, "-m", "dgnet", *f"{SIMULATE} --png x.png".split()]
    done = subprocess.run(command, cwd=tmp_path / "at", capture_output=True, text=True, timeout=120,
                          env=os.environ | {"MPLBACKEND": "zz", "PYTHONPATH": str(Path(__file__).parents[2] / "src")})
    assert done.returncode == 0 and (tmp_path / "at/x.png").stat().st_size > 0, done.stderr
