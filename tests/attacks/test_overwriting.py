# ruff: noqa: E501  (a table: one case a line)
"""Files that other commands need: inputs of the same call, a problem's, a run's, a study's; nothing replaces them unasked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dgnet.mesh import load as load_mesh
from dgnet.mesh import save
from tests.attacks.conftest import TAG
from tests.attacks.harness import Case, Outcome, dgnet, face, files, parameters, refusals

CELL, CARD = f"study/cells/{TAG}", "shelf/laser-heat-small-same-mesh"
ROLL, SIMULATE = "rollout run --trajectory 0 --steps 2", "simulate tiny --source tiny/run-1.csv --steps 2 --model classical"
SENSORS = "sensor,x,y\na,0.3,0.3\nb,0.9,0.5\n"
READINGS = "t,a,b\n" + "".join(f"{0.1 * k:g},{20 + k},{20 + 0.5 * k}\n" for k in range(8))


def sensed(at: Path) -> None:
    """A folder with sensors and readings."""
    (at / "in").mkdir()
    (at / "in/sensors.csv").write_text(SENSORS)
    (at / "in/readings.csv").write_text(READINGS)


def flat(at: Path) -> None:
    """The mesh of the problem as plate.vtu, which an export would write, too."""
    save(load_mesh(at / "tiny/plate.msh"), at / "tiny/plate.vtu")
    text = (at / "tiny/problem.toml").read_text()
    (at / "tiny/problem.toml").write_text(text.replace("plate.msh", "plate.vtu"))


def linked(at: Path) -> None:
    (at / "soft.json").symlink_to("tiny/problem.toml")
    os.link(at / "tiny/problem.toml", at / "hard.json")


def written(*names: str) -> Callable[[Path], None]:
    def does(at: Path) -> None:
        for name in names:
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            (at / name).write_text("{}")
    return does


NAMED = refusals("run", f"""
{SIMULATE} --json tiny/problem.toml | problem.toml | --overwrite
{SIMULATE} --json tiny/../tiny/./problem.toml | problem.toml | --overwrite
{SIMULATE} --json tiny/run-1.csv | run-1.csv | --source
{SIMULATE} --json tiny/run-2.csv | run-2.csv
{SIMULATE} --json tiny/plate.msh | plate.msh
{SIMULATE} --json tiny/last.npz | last.npz
{SIMULATE} --out tiny/imported.h5 | imported.h5 | --overwrite
{SIMULATE} --gif tiny/problem.toml | problem.toml
{SIMULATE} --png tiny/plate.msh | plate.msh
{SIMULATE} --vtk tiny/problem.toml | problem.toml
{SIMULATE} --json run/run.toml | run.toml
{SIMULATE} --json run/weights.pt | weights.pt
{SIMULATE} --json tiny/imported.h5 | imported.h5
{SIMULATE} --json x.json --png x.json | x.json | --json
check tiny --json tiny/problem.toml | problem.toml
check tiny --json tiny/imported.h5 | imported.h5
check tiny --json tiny/run-2.csv | run-2.csv
import tiny --json tiny/run-1.npz | run-1.npz
import tiny --json tiny/problem.toml | problem.toml
{ROLL} --out tiny/imported.h5 | imported.h5
{ROLL} --data tiny/imported.h5 --out tiny/imported.h5 | imported.h5
{ROLL} --json run/run.toml | run.toml
{ROLL} --json run/problem/problem.toml | problem.toml
{ROLL} --json run/problem/mesh.npz | mesh.npz
{ROLL} --json run/history.csv | history.csv
{ROLL} --png run/last.pt | last.pt
{ROLL} --out run/trained-on.h5 | not a rollout
{ROLL} --json tiny/problem.toml | problem.toml
{ROLL} --xdmf x.xdmf --out x.xdmf.h5 | x.xdmf.h5 | --xdmf
{ROLL} --gif x.gif --json x.gif | x.gif
{ROLL} --source tiny/run-1.csv --json tiny/run-1.csv | run-1.csv | --source
{ROLL} --mp4 tiny/plate.msh | plate.msh
evaluate run --no-figures --json run/run.toml | run.toml
evaluate run --no-figures --json run/weights.pt | weights.pt
evaluate run --no-figures --data tiny/imported.h5 --json tiny/imported.h5 | --data
evaluate run --no-figures --json tiny/problem.toml | problem.toml
paper analyse run --json run/weights.pt | weights.pt
paper analyse run --json run/run.toml | run.toml
paper analyse run --out tiny | folder of a problem
export run --out run/weights.pt | weights.pt
export tiny --out x.c --json tiny/problem.toml | problem.toml
export tiny --out x.c --json x.json | x.json | --out
paper universal tiny --out run/weights.pt | weights.pt | --overwrite
paper universal tiny --out tiny/problem.toml | problem.toml
paper universal tiny --out x.pt --json x.pt | x.pt
paper score tiny/imported.h5 tiny/imported.h5 --json tiny/imported.h5 | imported.h5
paper score tiny/imported.h5 tiny/imported.h5 --json tiny/plate.msh | plate.msh
show tiny/imported.h5 --out tiny | folder of a problem
paper generate laser-heat --out tiny | folder of a problem
paper train laser-heat --out tiny | folder of a problem
train tiny --out tiny | tiny
paper demo --out tiny | folder of a problem
paper cards --only laser-heat --out tiny | folder of a problem
paper scenarios --json tiny/problem.toml | problem.toml
models --json run/run.toml | run.toml
paper certify laser-heat --record tiny/problem.toml | problem.toml
paper pretrained --markdown tiny/problem.toml | problem.toml
paper pretrained --json tiny/problem.toml | problem.toml
paper pretrained --json x.json --markdown x.json | x.json
""")

STUDY = refusals("study", f"""
paper scenarios --json {CELL}/cell.json | cell.json
models --json {CARD}/card.json | card.json
paper pretrained --folder shelf --json {CARD}/card.json | card.json
paper pretrained --folder shelf --markdown {CARD}/card.json | card.json
paper report study --out {CELL}/cell.json | cell.json
paper report study --markdown {CELL}/run/run.toml | run.toml
paper report study --out report.html --dgnet {CELL}/cell.json | cell.json
paper reproduce {TAG} --out study --data data --json {CELL}/cell.json | cell.json
""")

MADE = [
    Case(f"{SIMULATE} --json soft.json", "problem.toml", linked, "run", name="a link to what is read"),
    Case(f"{SIMULATE} --json hard.json", "problem.toml", linked, "run", name="a second name of what is read"),
    Case("export tiny --out tiny/plate.c", ["plate.vtu", "--overwrite"], flat, "project", name="an export beside the mesh it reads"),
    Case("export run --out tiny/plate.c", ["plate.vtu", "--overwrite"], flat, "run", name="an export beside the mesh of a problem"),
    Case("export run --out x.onnx", ["x.json", "--overwrite"], written("x.json"), "run", name="an export beside a foreign .json"),
    Case("export run --out x.c", ["x.h", "--overwrite"], written("x.h"), "run", name="an export beside a foreign .h"),
    Case(f"{ROLL} --xdmf x.xdmf", ["x.xdmf.h5", "--overwrite"], written("x.xdmf.h5"), "run", name="a series beside a foreign .h5"),
    Case(f"{ROLL} --out x.h5", ["x.h5", "not a rollout"], lambda at: shutil.copy(at / "tiny/imported.h5", at / "x.h5"), "run",
         name="a rollout over a data set"),
    Case(f"{ROLL} --out x.h5", ["x.h5", "not a rollout"], written("x.h5"), "run", name="a rollout over what is no HDF5"),
    Case(f"{ROLL} --json run/bands.json", "bands.json", written("run/bands.json"), "run", name="JSON over the bands of a run"),
    Case(f"{ROLL} --json run/range.json", "range.json", written("run/range.json"), "run", name="JSON over the range of a run"),
    Case("paper scenarios --json readings.csv", ["readings.csv", ".json"], written("readings.csv"), name="JSON over a table"),
    Case("paper scenarios --json part.msh", ["part.msh", ".json"], written("part.msh"), name="JSON over a mesh"),
    Case("paper scenarios --json weights.pt", ["weights.pt", ".json"], written("weights.pt"), name="JSON over weights"),
    Case(f"{SIMULATE} --initial start.npy --json start.npy", ["start.npy", "--initial"],
         lambda at: np.save(at / "start.npy", np.full(63, 20.0)), "run", name="JSON over the start"),
    Case("place tiny --count 1 --unknown start --steps 2 --noise 1 --strength 1 --candidates in/sensors.csv --out in",
         ["sensors.csv", "--candidates"], sensed, "project", name="places over the candidates"),
    Case("recover tiny in/readings.csv --sensors in/sensors.csv --unknown start --out tiny", "folder of a problem", sensed, "project",
         name="answers into the problem"),
    Case("follow tiny in/readings.csv --sensors in/sensors.csv --out tiny", "folder of a problem", sensed, "project",
         name="estimates into the problem"),
    Case("place tiny --count 1 --unknown start --steps 2 --noise 1 --strength 1 --out tiny", "folder of a problem", None, "project",
         name="places into the problem"),
    Case("design tiny goal.toml --out tiny", "folder of a problem", written("goal.toml"), "project", name="a design into the problem"),
    Case("train tiny --out other --budget 0.01", "folder of a problem", lambda at: shutil.copytree(at / "tiny", at / "other"),
         "project", name="a run into another problem"),
]


def replaced(name: str) -> Callable[[Outcome], None]:
    def right(outcome: Outcome) -> None:
        json.loads((outcome.folder / name).read_text())
    return right


WORKS = [
    Case("paper scenarios --json old.csv --overwrite", does=written("old.csv"), right=replaced("old.csv"), name="asked for"),
    Case("paper scenarios --json old.json", does=written("old.json"), right=replaced("old.json"), name="JSON over JSON"),
    Case(f"{SIMULATE} --json tiny/note.json", does=written("tiny/note.json"), ground="run", right=replaced("tiny/note.json"),
         name="JSON that no problem names"),
    Case("check tiny --json tiny/run-2.csv --overwrite", ground="run", right=replaced("tiny/run-2.csv"), name="a table, asked for"),
]


@pytest.mark.parametrize("case", parameters([*NAMED, *STUDY, *MADE, *WORKS]))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)


def test_the_same_call_again_replaces_its_results(grounds: Callable[[str], Path], tmp_path: Path) -> None:
    place = tmp_path / "at"
    shutil.copytree(grounds("run"), place)
    outputs = "--out r/x.h5 --vtk r/x.pvd --gif r/x.gif --png r/x.png --json r/x.json"
    for command in (f"{ROLL} {outputs} --xdmf r/x.xdmf", f"{SIMULATE} {outputs}", "export tiny --out r/step.c", "evaluate run --no-figures"):
        first, second = dgnet(place, command), dgnet(place, command)
        assert first.code == second.code == 0, (command, second.err)
    assert not [name for name in files(place) if ".lock" in name]
